"""Sessions of inputs that have a key: what is given takes the place of what was there.

At every time ``t`` the collection is the table that all changes up to ``t`` make of an empty one,
in order of their times, and of one time in the order in which they were given: calls one after the
other, and of a call row by row. What was there before is found by the step, in the arrangement of
the collection by its key, so a session holds nothing but what it was given.
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

    Made by `Dataflow.input` with a ``key``. Changes enter at the session's time, or at that of a
    column of theirs. They are done in order of time, and of one time in the order of the calls and
    of the rows of each: the last one of a key stands. What is handed in becomes visible to
    `Dataflow.step` with `flush`, which also finds what was there before.

    Several threads may feed a session, also while another one steps.

    Notes
    -----
    The rows of a call that are wrong by themselves are refused at once, with all others of the
    call: types that differ, a null in the key, a key that comes twice where it may come once. An
    `insert` of a key that is there and a `remove` of a row that is not are known in the step, which
    then raises, changes nothing, and names them; `discard` drops what was given.

    The rows of one Spark frame have no order, so no more than one of a key may be among them.

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
        """Add rows whose keys are not there.

        Parameters
        ----------
        rows : DataFrame, pyarrow.Table, pandas.DataFrame, or iterable of rows
            See `InputSession.insert`.
        time : str, optional
            A column with the time of each row, of the rows' own or beside them; the session's time
            if not given. A Spark frame is read once here then, to check its times.

        Raises
        ------
        DuplicateKeyError
            If a key comes more than once; by the step if it is there.
        SchemaError
            If names or types differ from the input's, or there is a null in the key.
        TimeRegressionError
            If a time lies before the session's; nothing of ``rows`` is taken then.
        """
        self._change(INSERT, rows, time, once=time is None)

    def upsert(self, rows: Data, *, time: str | None = None) -> None:
        """Set rows: each takes the place of the one with its key, or is added. See `insert`."""
        self._change(UPSERT, rows, time)

    def remove(self, rows: Data, *, time: str | None = None) -> None:
        """Take rows away, of which all columns are given. See `insert`.

        Raises
        ------
        NegativeMultiplicityError
            By the step if a row is not there.
        """
        self._change(REMOVE, rows, time, once=time is None)

    def delete(self, keys: Data, *, time: str | None = None) -> None:
        """Take away the rows of some keys; one that has none is let be.

        Parameters
        ----------
        keys : DataFrame, pyarrow.Table, pandas.DataFrame, or iterable of rows
            The columns of the key, in its order. Where that is one column its values will do.
        time : str, optional
            As of `insert`.
        """
        if len(self.key) == 1 and time is None and isinstance(keys, (list, tuple, set, range)):
            whole = (tuple, list, dict)
            keys = [key if isinstance(key, whole) else (key,) for key in keys]
        self._change(DELETE, keys, time)

    def replace(self, rows: Data) -> None:
        """Make some rows the whole table: those with other keys are taken away.

        Parameters
        ----------
        rows : DataFrame, pyarrow.Table, pandas.DataFrame, or iterable of rows
            See `insert`. None at all make the table empty.

        Notes
        -----
        The step goes through all keys that are there. What stays the same is no change.
        """
        found = self._taken(rows, self.schema)
        clear = self._nothing(1)
        if isinstance(found, DataFrame):
            number = self._numbers(2)
            frame = self._frame(found, UPSERT, number + 1)
            with self._lock:
                now = self._open()
                entered = UpdateRows(self._node.schema, frame=frame, time=now, diff=1)
                cleared = (self._numbered(clear, CLEAR, number), now, 1)
                self._add([Arrival(entered, now)], [cleared])
            return
        self._check_once(found)
        with self._lock:
            now = self._open()
            number = self._next
            self._next += 1 + found.num_rows
            rows = [(self._numbered(clear, CLEAR, number), now, 1)]
            if found.num_rows:
                rest = self._numbered(self._whole(found), UPSERT, number + 1)
                rows.append((rest, now, 1))
            self._add(rows=rows)

    def _change(self, kind: int, data: Data, time: str | None, once: bool = False) -> None:
        struct = self.schema
        if kind == DELETE:
            struct = T.StructType([struct[name] for name in self.key])
        if time is not None:
            struct, time = self._timed(struct, time)
        found = self._taken(data, struct)
        if isinstance(found, DataFrame):
            self._change_frame(kind, found, time)
            return
        if once:
            self._check_once(found)
        if not found.num_rows:
            return
        rows = self._whole(found)
        if time is None:
            with self._lock:
                now = self._open()
                number = self._next
                self._next += rows.num_rows
                self._add(rows=[(self._numbered(rows, kind, number), now, 1)])
            return
        times = found[time].combine_chunks()
        if times.null_count:
            raise InvalidTimeError(nulls(times.null_count, "time", self.name))
        table = self._numbered(rows, kind, self._numbers(rows.num_rows))
        table = table.append_column(TIME, times)
        table = table.append_column(DIFF, pa.array(np.ones(table.num_rows, np.int64)))
        encoded = as_int64(times).to_numpy()
        entered = UpdateRows(self._node.schema, table=table, rows=table.num_rows)
        self._enter(entered, int(encoded.min()), int(encoded.max()))

    def _change_frame(self, kind: int, found: DataFrame, time: str | None) -> None:
        frame = self._frame(found, kind, self._numbers(1), time)
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

    def _taken(self, data: Data, struct: T.StructType) -> DataFrame | pa.Table:
        """Data in some columns; of a table without a null in the key."""
        self._open()
        found = coerce(data, struct, self.name, self._spark)
        if isinstance(found, DataFrame):
            check_deterministic(found)
            return without_signed_zeros(found)
        for name in self.key:
            if found[name].null_count:
                raise SchemaError(
                    f"{found[name].null_count} rows for input {self.name!r} have a null in the key "
                    f"column {name}; nothing was taken. Fill it, or filter these rows out"
                )
        return found

    def _timed(self, struct: T.StructType, time: str) -> tuple[T.StructType, str]:
        """The columns, and that of the time if it is none of them; and the name of that."""
        kind = self._node.time_type.kind
        given = {field.name: field.dataType for field in struct.fields}
        if not isinstance(time, str):
            raise SchemaError(
                f"time is the name of a column with the time of each row, not {time!r}; what has "
                "no such column enters at the session's time, which advance_to sets"
            )
        meant = meant_by(time, given, self._spark)
        if not meant:
            return T.StructType([*struct.fields, T.StructField(time, kind)]), time
        time = meant[0]
        if given[time] != kind:
            raise SchemaError(
                f"column {time} is {given[time].simpleString()}, and times of this dataflow are "
                f"{kind.simpleString()}; give them in a column of another name"
            )
        return struct, time

    def _check_once(self, found: pa.Table) -> None:
        """Refuse rows of which two have one key."""
        if not found.num_rows:
            return
        layout = self._node.record.layout(self.key)
        grouped = consolidate(layout.encode([found[name] for name in self.key], 0, 1))
        twice = grouped.updates.take(grouped.updates.diffs() > 1)
        if len(twice):
            # One of them, for the message.
            columns = [column.to_pylist() for column in layout.decode(twice.take(np.arange(1)))]
            (key,) = zip(*columns)
            raise DuplicateKeyError(
                f"{len(twice)} keys come more than once in the rows for input {self.name!r}, such "
                f"as {key!r}; nothing was taken. Leave one row for each key, or use upsert, of "
                "which the last one stands"
            )

    def _numbers(self, count: int) -> int:
        """The first of so many numbers, which are taken by that."""
        with self._lock:
            first = self._next
            self._next += count
        return first

    def _nothing(self, rows: int) -> pa.Table:
        return pa.table([pa.nulls(rows, field.type) for field in self._node.record.arrow()],
                        names=list(self._node.record.names))

    def _whole(self, found: pa.Table) -> pa.Table:
        """All columns of the records, null where only the key is given."""
        missing = self._nothing(found.num_rows)
        return pa.table(
            [(found if name in found.column_names else missing)[name]
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
        self, found: DataFrame, kind: int, number: int, time: str | None = None
    ) -> DataFrame:
        node, given = self._node, frozenset(found.columns)
        columns = [
            column(field.name) if field.name in given
            else F.lit(None).cast(field.dataType).alias(field.name)
            for field in node.record.struct.fields
        ]
        columns.append(F.lit(kind).cast("byte").alias(node.change))
        columns.append(F.lit(number).cast("long").alias(node.number))
        if time is not None:
            columns += [column(time).alias(TIME), F.lit(1).cast("long").alias(DIFF)]
        return found.select(*columns)

    def _named(self, frame: DataFrame) -> DataFrame:
        node = self._node
        kinds = F.array(*map(F.lit, KINDS))
        kind = F.get(kinds, column(node.change).cast("int"))
        return super()._named(frame).withColumn(node.change, kind)

    def _shown(self, given: Iterable[pa.Table | DataFrame]) -> Discarded:
        """Changes under names that say what they are, in their order."""
        node, (time, _) = self._node, self._names
        names = [*node.record.names, time, node.change]
        found: Discarded = []
        for one in given:
            if isinstance(one, DataFrame):
                kinds = F.array(*map(F.lit, KINDS))
                kind = F.get(kinds, column(node.change).cast("int")).alias(node.change)
                found.append(one.select(*map(column, names[:-1]), kind))
                continue
            one = one.sort_by([(time, "ascending"), (node.number, "ascending")])
            kind = pa.array(KINDS).take(pc.cast(one[node.change].combine_chunks(), pa.int64()))
            found.append(pa.table([*one.select(names[:-1]).columns, kind], names=names))
        return found
