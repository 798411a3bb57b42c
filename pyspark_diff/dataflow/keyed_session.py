"""Sessions of inputs with a key: an upsert replaces the row of its key.

At every time ``t`` the collection is an empty table after all changes at times up to ``t``, applied
in order of their times. Changes at equal times apply in the order of the calls, and of the rows in
a call. The step looks up the old row of a key in the collection's arrangement, so a session stores
only changes.
"""

from __future__ import annotations

from typing import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.dataflow.coercion import Data, coerce
from pyspark_diff.dataflow.input_session import BaseSession, Discard, Discarded, nulls
from pyspark_diff.engine.state import Arrival
from pyspark_diff.errors import DuplicateKeyError, InvalidTimeError, SchemaError
from pyspark_diff.expressions.check import check_deterministic
from pyspark_diff.kernels.consolidate import consolidate
from pyspark_diff.kernels.layout import as_int64
from pyspark_diff.operators.upsert import (
    CLEAR,
    DELETE,
    INSERT,
    KINDS,
    REMOVE,
    UPSERT,
    ChangesInput,
)
from pyspark_diff.runners.feed import UpdateRows
from pyspark_diff.spark.frames import column
from pyspark_diff.spark.normal_form import without_signed_zeros
from pyspark_diff.spark.schema import DIFF, TIME, meant_by


class KeyedSession(BaseSession):
    """Feeds an input that has a key, and one row for each key. It holds state, as `InputSession`.

    `Dataflow.input` with a ``key`` returns it. Changes enter at the session's time, or at times in
    a column of their own. They apply in order of time, and at equal times in the order of the calls
    and of their rows: the last change of a key wins. After `flush`, `Dataflow.step` reads the
    changes and looks up the old rows.

    Several threads may feed a session, also during a step.

    Notes
    -----
    A call refuses all its rows if one has a wrong type, a null in the key, or a key that must not
    repeat and does. Only the step can detect an `insert` of an existing key and a `remove` of a
    missing row. The step then raises, changes nothing, and names the row; `discard` drops the
    changes.

    The rows of one Spark frame have no order, so each key may occur once in it.

    Examples
    --------
    >>> from pyspark_diff import Dataflow
    >>> with Dataflow(spark) as flow:
    ...     customers, customers_in = flow.input("customers", "id long, city string", key="id")
    ...     cities = customers.select("city").count().keep("cities")
    ...     customers_in.upsert([(1, "Rome"), (2, "Oslo"), (3, "Rome")])
    ...     customers_in.advance_to(1)
    ...     customers_in.upsert([(1, "Oslo")])
    ...     customers_in.delete([3])
    ...     customers_in.advance_to(2)
    ...     customers_in.replace([(7, "Bonn")])
    ...     customers_in.close()
    ...     _ = flow.step()
    ...     cities.at().collect()
    [Row(city='Bonn', count=1)]
    """

    _node: ChangesInput

    def __init__(
        self, node: ChangesInput, spark: SparkSession, time: str, diff: str, start: int,
        discard: Discard,
    ):
        super().__init__(node, spark, time, diff, start, discard)
        #: Number of the next change.
        self._next = 0

    @property
    def schema(self) -> T.StructType:
        """Spark schema of the rows."""
        return self._node.record.struct

    @property
    def key(self) -> tuple[str, ...]:
        """Columns of the key."""
        return self._node.key

    def insert(self, rows: Data, *, time: str | None = None) -> None:
        """Add rows with new keys.

        Parameters
        ----------
        rows : DataFrame, pyarrow.Table, pandas.DataFrame, or iterable of rows
            See `InputSession.insert`.
        time : str, optional
            The column with the time of each row, one of the input's or an additional one; by
            default rows enter at the session's time. With ``time`` this call reads a Spark frame
            once to check its times.

        Raises
        ------
        DuplicateKeyError
            If a key occurs more than once. The step raises it if the key exists.
        SchemaError
            If names or types differ from the input's, or a key has a null.
        TimeRegressionError
            If a time lies before the session's; nothing of ``rows`` is taken then.
        """
        self._check_versions("insert")
        self._change(INSERT, rows, time, once=time is None)

    def upsert(self, rows: Data, *, time: str | None = None) -> None:
        """Set rows: each replaces the row with its key, or is added. See `insert`."""
        self._change(UPSERT, rows, time)

    def remove(self, rows: Data, *, time: str | None = None) -> None:
        """Take rows away; each row has all columns. See `insert`.

        Raises
        ------
        NegativeMultiplicityError
            The step raises it if a row is missing.
        """
        self._check_versions("remove")
        self._change(REMOVE, rows, time, once=time is None)

    def delete(self, keys: Data, *, time: str | None = None) -> None:
        """Take away the rows of some keys; a key without a row changes nothing.

        Parameters
        ----------
        keys : DataFrame, pyarrow.Table, pandas.DataFrame, or iterable of rows
            The columns of the key, in its order. For a key of one column, plain values suffice.
        time : str, optional
            See `insert`.
        """
        self._check_versions("delete")
        if len(self.key) == 1 and time is None and isinstance(keys, (list, tuple, set, range)):
            whole = (tuple, list, dict)
            keys = [key if isinstance(key, whole) else (key,) for key in keys]
        self._change(DELETE, keys, time)

    def replace(self, rows: Data) -> None:
        """Replace the whole table: the rows of all other keys are taken away.

        Parameters
        ----------
        rows : DataFrame, pyarrow.Table, pandas.DataFrame, or iterable of rows
            See `insert`. Without rows the table becomes empty.

        Notes
        -----
        The step reads all keys of the table. An unchanged row is no change.
        """
        self._check_versions("replace")
        coerced = self._coerced(rows, self.schema)
        clear = self._nulls(1)
        if isinstance(coerced, DataFrame):
            number = self._numbers(2)
            frame = self._frame(coerced, UPSERT, number + 1)
            with self._lock:
                now = self._open()
                entered = UpdateRows(self._node.schema, frame=frame, time=now, diff=1)
                cleared = (self._numbered(clear, CLEAR, number), now, 1)
                self._add([Arrival(entered, now)], [cleared])
            return
        self._check_once(coerced)
        with self._lock:
            now = self._open()
            number = self._next
            self._next += 1 + coerced.num_rows
            rows = [(self._numbered(clear, CLEAR, number), now, 1)]
            if coerced.num_rows:
                rest = self._numbered(self._whole(coerced), UPSERT, number + 1)
                rows.append((rest, now, 1))
            self._add(rows=rows)

    def _forget(self, versions: Data) -> None:
        """Remove versions that no later version has replaced."""
        self._change(REMOVE, versions, None)

    def _change(self, kind: int, data: Data, time: str | None, once: bool = False) -> None:
        struct = self.schema
        if kind == DELETE:
            struct = T.StructType([struct[name] for name in self.key])
        if time is not None:
            struct, time = self._timed(struct, time)
        coerced = self._coerced(data, struct)
        if isinstance(coerced, DataFrame):
            self._change_frame(kind, coerced, time)
            return
        if once:
            self._check_once(coerced)
        if not coerced.num_rows:
            return
        rows = self._whole(coerced)
        if time is None:
            with self._lock:
                now = self._open()
                number = self._next
                self._next += rows.num_rows
                self._add(rows=[(self._numbered(rows, kind, number), now, 1)])
            return
        times = coerced[time].combine_chunks()
        if times.null_count:
            raise InvalidTimeError(nulls(times.null_count, "time", self.name))
        table = self._numbered(rows, kind, self._numbers(rows.num_rows))
        table = table.append_column(TIME, times)
        table = table.append_column(DIFF, pa.array(np.ones(table.num_rows, np.int64)))
        encoded = as_int64(times).to_numpy()
        entered = UpdateRows(self._node.schema, table=table, rows=table.num_rows)
        self._enter(entered, int(encoded.min()), int(encoded.max()))

    def _check_versions(self, change: str) -> None:
        if self._node.sequence:
            raise SchemaError(
                f"input {self.name!r} compares versions of rows by "
                f"{', '.join(self._node.sequence)}, and {change} has none. Give a version by "
                "upsert, or let the source read it"
            )

    def _change_frame(self, kind: int, rows: DataFrame, time: str | None) -> None:
        frame = self._frame(rows, kind, self._numbers(1), time)
        if time is None:
            with self._lock:
                now = self._open()
                entered = UpdateRows(self._node.schema, frame=frame, time=now, diff=1)
                self._add([Arrival(entered, now)])
            return
        span = self._span(frame)
        if span.rows:
            entered = UpdateRows(self._node.schema, frame=frame, rows=span.rows)
            self._enter(entered, *span[:2])

    def _coerced(self, data: Data, struct: T.StructType) -> DataFrame | pa.Table:
        """Rows with some columns. A table with a null in the key is refused here; the step checks
        the rows of a frame."""
        self._open()
        rows = coerce(data, struct, self.name, self._spark)
        if isinstance(rows, DataFrame):
            check_deterministic(rows)
            return without_signed_zeros(rows)
        for name in self.key:
            if rows[name].null_count:
                raise SchemaError(
                    f"{rows[name].null_count} rows for input {self.name!r} have a null in the key "
                    f"column {name}; nothing was taken. Fill it, or filter these rows out"
                )
        return rows

    def _timed(self, struct: T.StructType, time: str) -> tuple[T.StructType, str]:
        """The columns with the time among them, and the name of the time column."""
        kind = self._node.time_type.kind
        types = {field.name: field.dataType for field in struct.fields}
        if not isinstance(time, str):
            raise SchemaError(
                f"time is the name of a column with the time of each row, not {time!r}. Rows "
                "without such a column enter at the session's time, which advance_to sets"
            )
        meant = meant_by(time, types, self._spark)
        if not meant:
            return T.StructType([*struct.fields, T.StructField(time, kind)]), time
        time = meant[0]
        if types[time] != kind:
            raise SchemaError(
                f"column {time} is {types[time].simpleString()}, and times of this dataflow are "
                f"{kind.simpleString()}; give them in a column of another name"
            )
        return struct, time

    def _check_once(self, rows: pa.Table) -> None:
        """Refuse rows with equal keys."""
        if not rows.num_rows:
            return
        layout = self._node.record.layout(self.key)
        grouped = consolidate(layout.encode([rows[name] for name in self.key], 0, 1))
        twice = grouped.updates.take(grouped.updates.diffs() > 1)
        if len(twice):
            # The message shows the first key.
            columns = [column.to_pylist() for column in layout.decode(twice.take(np.arange(1)))]
            (key,) = zip(*columns)
            raise DuplicateKeyError(
                f"{len(twice)} keys come more than once in the rows for input {self.name!r}, such "
                f"as {key!r}; nothing was taken. Leave one row for each key, or use upsert, whose "
                "last row of a key wins"
            )

    def _numbers(self, count: int) -> int:
        """Reserve ``count`` numbers; returns the first."""
        with self._lock:
            first = self._next
            self._next += count
        return first

    def _nulls(self, rows: int) -> pa.Table:
        return pa.table([pa.nulls(rows, field.type) for field in self._node.record.arrow()],
                        names=list(self._node.record.names))

    def _whole(self, rows: pa.Table) -> pa.Table:
        """Rows with all columns of the records; a missing column is null."""
        missing = self._nulls(rows.num_rows)
        return pa.table(
            [(rows if name in rows.column_names else missing)[name]
             for name in self._node.record.names],
            schema=self._node.record.arrow(),
        )

    def _numbered(self, rows: pa.Table, kind: int, number: int) -> pa.Table:
        size = rows.num_rows
        return pa.table(
            [*rows.columns, pa.array(np.full(size, kind, np.int8)),
             pa.array(np.arange(number, number + size))],
            names=list(self._node.schema.names),
        )

    def _frame(
        self, rows: DataFrame, kind: int, number: int, time: str | None = None
    ) -> DataFrame:
        node, names = self._node, frozenset(rows.columns)
        columns = [
            column(field.name) if field.name in names
            else F.lit(None).cast(field.dataType).alias(field.name)
            for field in node.record.struct.fields
        ]
        columns.append(F.lit(kind).cast("byte").alias(node.change))
        columns.append(F.lit(number).cast("long").alias(node.number))
        if time is not None:
            columns += [column(time).alias(TIME), F.lit(1).cast("long").alias(DIFF)]
        return rows.select(*columns)

    def _named(self, frame: DataFrame) -> DataFrame:
        node = self._node
        kinds = F.array(*map(F.lit, KINDS))
        kind = F.get(kinds, column(node.change).cast("int"))
        return super()._named(frame).withColumn(node.change, kind)

    def _shown(self, discarded: Iterable[pa.Table | DataFrame]) -> Discarded:
        """Discarded changes in their order, each with the name of its kind."""
        node, (time, _) = self._node, self._names
        names = [*node.record.names, time, node.change]
        shown: Discarded = []
        for changes in discarded:
            if isinstance(changes, DataFrame):
                kinds = F.array(*map(F.lit, KINDS))
                kind = F.get(kinds, column(node.change).cast("int")).alias(node.change)
                shown.append(changes.select(*map(column, names[:-1]), kind))
                continue
            changes = changes.sort_by([(time, "ascending"), (node.number, "ascending")])
            code = pc.cast(changes[node.change].combine_chunks(), pa.int64())
            kind = pa.array(KINDS).take(code)
            shown.append(pa.table([*changes.select(names[:-1]).columns, kind], names=names))
        return shown
