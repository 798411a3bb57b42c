"""Logs: tables to which changes are added, read on in the order of a column.

    read rows  =  rows with a greater order than all rows before

A late row has an order that was read already. So the rows up to there are counted. If there are
more than were read, `updates` raises an error, and `upserts` reads the latest row of each key anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.dataflow.source import (
    Deletes,
    Offset,
    Reading,
    Source,
    Updates,
    Upserts,
    Whole,
)
from pyspark_diff.errors import SchemaError, SourceError
from pyspark_diff.fallbacks import ADDED, fall_back
from pyspark_diff.sources.tables import Table, TableSource, at_hand, frame_of, named, table_text
from pyspark_diff.spark.frames import column
from pyspark_diff.spark.schema import as_keys


def updates(
    table: Table, *, diff: str = "diff", time: str | None = "time", order: str | None = None
) -> Source:
    """A table of update rows: columns, a diff, and a time of each.

    Parameters
    ----------
    table : str, DataFrame, or callable
        Name of a table, a frame that is evaluated anew each time, or what gives the frame to read.
        Rows are only ever added to it.
    diff : str
        The column of the diff, a whole number.
    time : str, optional
        The column of the time, of the type of the dataflow's times. With None the rows enter at
        the time of the epoch, and there has to be an order.
    order : str, optional
        A column that grows as rows are added: a number, text, date or timestamp. The time if not
        given; rows that are added later with a time that was read are an error then.

    Raises
    ------
    SourceError
        By `Dataflow.catch_up`: if rows were added whose order was read already, or taken away.

    Notes
    -----
    Each reading scans the column of the order in the whole table, to count what was read before. So
    it costs more as the table grows, also where little is new; and old rows cannot be taken away,
    which is an error. A Delta table that records its changes is read by `delta` for what has
    changed.

    Examples
    --------
    >>> from pyspark_diff import Dataflow
    >>> rows = [("tea", 0, 2), ("milk", 1, 1)]
    >>> table = lambda: spark.createDataFrame(rows, "item string, time long, diff long")
    >>> with Dataflow(spark) as flow:
    ...     stock = flow.source("stock", updates(table)).keep()
    ...     _ = flow.catch_up()
    ...     rows += [("tea", 5, -1)]
    ...     _ = flow.catch_up()
    ...     sorted(row.item for row in stock.at().collect())
    ['milk', 'tea']
    """
    if order is None and time is None:
        raise SchemaError(
            "updates without times are read on by an order: name a column that grows, order=..."
        )
    return _Updates(table, diff, time, order)


def upserts(
    table: Table, *, key: str | Sequence[str], order: str, deleted: str | None = None
) -> Source:
    """A table to which the newest row of each key is added: the latest row wins.

    Parameters
    ----------
    table : str, DataFrame, or callable
        As of `updates`.
    key : str or list of str
    order : str
        A column that grows as rows are added; of a key the row with the greatest stands.
    deleted : str, optional
        A boolean column: whether the row of the key is gone.

    Raises
    ------
    SourceError
        By `Dataflow.catch_up`: if rows were taken away, or a key has two rows of one order.

    Notes
    -----
    Each reading scans the column of the order in the whole table, as of `updates`.

    Rows may be late: their order is smaller than one that was read. Then the latest row of each key
    is taken from the whole table, and compared with the input. This is counted as a fallback from
    the path "added rows". A deletion that comes before its row keeps the key away, as long as the
    table has it: so rows with `deleted` have to stay in the table.

    Examples
    --------
    >>> from pyspark_diff import Dataflow
    >>> rows = [(1, "Rome", 1), (2, "Oslo", 2), (1, "Bonn", 3)]
    >>> table = lambda: spark.createDataFrame(rows, "id int, city string, version long")
    >>> with Dataflow(spark) as flow:
    ...     people = flow.source("people", upserts(table, key="id", order="version"))
    ...     kept = people.select("id", "city").keep()
    ...     _ = flow.catch_up()
    ...     sorted(tuple(row) for row in kept.at().collect())
    [(1, 'Bonn'), (2, 'Oslo')]
    """
    return _Upserts(table, as_keys(key), order, deleted)


class _Log(TableSource):
    """A table to which rows are added in an order."""

    _takes_late_rows = False

    def __init__(self, table: Table, order: str):
        self._table, self._order = table, order

    def _called(self) -> str:
        return table_text(self._table)

    def _since(
        self, spark: SparkSession, offset: Offset
    ) -> tuple[DataFrame, dict[str, Any], int] | None:
        """The added rows, the offset after them, and the number of late ones; None if there are
        none.

        An offset holds the greatest order as text, since JSON has no dates, and the number of rows
        up to it. If rows are late, all rows are returned.
        """
        frame = frame_of(self._table, spark)
        order = column(self._order)
        kind = frame.select(order).schema[0].dataType
        last = None if offset is None else F.lit(offset["order"]).cast(kind)
        beyond = F.lit(True) if last is None else order > last
        row = frame.agg(
            F.max(order).cast("string").alias("order"),
            F.count(F.lit(1)).alias("rows"),
            F.count_if(~beyond).alias("before"),
            F.count_if(order.isNull()).alias("nulls"),
        ).first()
        assert row is not None  # an aggregate without keys has one row
        if row.nulls:
            raise SourceError(
                f"{row.nulls} rows of {table_text(self._table)} have a null in {self._order}, by "
                "which they are read on. Fill it; nothing was taken"
            )
        known = 0 if offset is None else offset["rows"]
        late = row.before - known
        if late < 0 or late and not self._takes_late_rows:
            raise SourceError(
                f"{table_text(self._table)} has {row.before:,} rows up to {self._order} = "
                f"{offset['order']}, and had {known:,} when they were read: rows were "
                f"{'added before it, and no step would read them' if late > 0 else 'taken away'}. "
                + ("Name a column that grows with each added row, order=..."
                   if late > 0 else "The source takes added rows only. Add rows with the "
                   "opposite diff instead, or read the table as snapshots()")
                + "; nothing was taken"
            )
        if row.rows == known:
            return None
        after = {"order": row.order, "rows": row.rows}
        return frame if late else frame.where(beyond), after, late


class _Updates(_Log):
    def __init__(self, table: Table, diff: str, time: str | None, order: str | None):
        super().__init__(table, order or time or "")
        self._diff, self._time = diff, time

    def _columns_now(self, spark: SparkSession) -> T.StructType:
        fields = frame_of(self._table, spark).schema.fields
        own = [self._diff, *([] if self._time is None else [self._time])]
        *own, _ = named(fields, [*own, self._order], self._table, spark)
        return T.StructType([field for field in fields if field.name not in own])

    def read(self, spark: SparkSession, offset: Offset) -> Reading | None:
        since = self._since(spark, offset)
        if since is None:
            return None
        extra = [self._diff, *([] if self._time is None else [self._time])]
        return Reading(
            since[1], [Updates(self._narrowed(since[0], extra), self._diff, self._time)]
        )

    def __repr__(self) -> str:
        return f"updates({table_text(self._table)}, order={self._order!r})"


class _Upserts(_Log):
    _takes_late_rows = True

    def __init__(
        self, table: Table, key: tuple[str, ...], order: str, deleted: str | None
    ):
        super().__init__(table, order)
        self.key, self._deleted = key, deleted

    def _columns_now(self, spark: SparkSession) -> T.StructType:
        fields = frame_of(self._table, spark).schema.fields
        names = [*self.key, self._order, *([] if self._deleted is None else [self._deleted])]
        gone = named(fields, names, self._table, spark)[len(self.key) + 1:]
        return T.StructType([field for field in fields if field.name not in gone])

    def read(self, spark: SparkSession, offset: Offset) -> Reading | None:
        since = self._since(spark, offset)
        if since is None:
            return None
        frame, after, late = since
        frame = self._narrowed(frame, [] if self._deleted is None else [self._deleted])
        gone = F.lit(False) if self._deleted is None else F.coalesce(
            column(self._deleted), F.lit(False)
        )
        deleted, upserted = latest(
            at_hand(frame), self.key, [column(self._order)], gone, table_text(self._table)
        )
        upserted = upserted.select(*map(column, self._known().names))
        if late:
            reason = f"rows of {table_text(self._table)} are late, so the latest row of each key "
            fall_back("upserts", ADDED, f"{reason}is read anew")
            return Reading(after, [Whole(upserted)])
        return Reading(after, [Deletes(deleted), Upserts(upserted)])

    def __repr__(self) -> str:
        return f"upserts({table_text(self._table)}, key={list(self.key)}, order={self._order!r})"


def latest(
    frame: DataFrame, key: Sequence[str], order: Sequence[Column], gone: Column, table: str
) -> tuple[DataFrame, DataFrame]:
    """The last change of each key: the deleted keys, and the present rows.

    Parameters
    ----------
    frame : DataFrame
    key : sequence of str
    order : sequence of Column
        The change with the greatest order is the last one.
    gone : Column
        Whether a change deletes the row of its key.
    table : str
        The name of the table in an error.

    Raises
    ------
    SourceError
        If several changes of a key have the greatest order.
    """
    whole = F.struct(*map(column, frame.columns)).alias("row")
    keys = [column(name).alias(f"key{n}") for n, name in enumerate(key)]
    rows = frame.select(
        *keys, whole, gone.alias("gone"), F.struct(*order).alias("order")
    )
    names = [f"key{n}" for n in range(len(key))]
    last = rows.groupBy(*names).agg(
        F.max("order").alias("order"),
        F.max_by(F.struct("row", "gone"), F.col("order")).alias("last"),
    )
    twice = rows.groupBy(*names, "order").count().where("count > 1").join(
        last.select(*names, "order"), [*names, "order"], "leftsemi"
    ).limit(5).collect()
    if twice:
        shown = "; ".join(repr(tuple(row)[:len(key)]) for row in twice)
        raise SourceError(
            f"changes of one key in {table} have the same order, so none is the last one: {shown}. "
            "Give them an order, order=...; nothing was taken"
        )
    latest_rows = last.select("last.*")
    upserted = latest_rows.where(~F.col("gone")).select("row.*")
    deleted = latest_rows.where("gone").select(*(
        F.col("row").getField(name).alias(name) for name in key
    ))
    return deleted, upserted
