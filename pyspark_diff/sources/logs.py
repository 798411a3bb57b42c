"""Logs: tables to which changes are added, read on in the order of a column.

    read rows  =  rows with a greater order than all rows before

A late row has an order that was read already. So the rows up to there are counted and their orders
summed. If these differ, `updates` raises an error. `upserts` reads the whole table and compares it
with its state, where the row of a key is

    the row with the greatest order among all rows read so far; none if it is a deletion
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.dataflow.source import (
    Change,
    Forget,
    Offset,
    Reading,
    Source,
    Updates,
    Upserts,
    Versions,
    hidden_names,
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
    table: Table, *, key: str | Sequence[str], order: str, deleted: str | None = None,
    retention: int | Decimal | timedelta | None = None,
) -> Source:
    """A table to which the newest row of each key is added: the latest row wins.

    Parameters
    ----------
    table : str, DataFrame, or callable
        As of `updates`.
    key : str or list of str
    order : str
        A number, text, date or timestamp that grows with the versions of a key. Rows may be added
        in any order.
    deleted : str, optional
        A boolean column: whether the row deletes its key.
    retention : int, Decimal or timedelta, optional
        The distance from the greatest order of earlier readings up to which a row may be late, for
        an order of whole numbers, decimals, dates or timestamps. Later rows are left out. By
        default a row may have any order.

    Raises
    ------
    SourceError
        By `Dataflow.catch_up`: if a row has no order, or two different rows of a key have the
        greatest one.
    DuplicateKeyError
        By `Dataflow.catch_up`: if a row differs from the present row of its key, which has the same
        order and is no longer in the table.

    Notes
    -----
    At every time a key has the row with the greatest order among all rows read so far, and no row
    if that is a deletion. So a late row changes nothing if its key has a later version, and a
    deletion may come before its row. A row that is delivered again changes nothing.

    With `deleted` the state keeps a tombstone for each deleted key: its key and its order. So the
    table may lose rows that were read. Without a `retention` tombstones stay for ever. With one,
    those beyond it are removed from time to time, which reads the state. A join by the key arranges
    the rows once more, without tombstones.

    Each reading scans the column of the order in the whole table. If rows are late or were taken
    away, the latest row of each key is read from the whole table. This is counted as a fallback
    from the path "added rows".

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
    check_retention(retention)
    return _Upserts(table, as_keys(key), order, deleted, retention)


class _Log(TableSource):
    """A table to which rows are added in an order."""

    _takes_late_rows = False

    def __init__(
        self, table: Table, order: str, retention: int | Decimal | timedelta | None = None
    ):
        self._table, self._order, self._retention = table, order, retention

    def _retained(self, greatest: Column, kind: T.DataType, offset: Offset) -> list[Column]:
        """The horizon after a reading, below which rows are late, and whether to forget tombstones.

        Forgetting reads the state, so it is due when the horizon has moved by the retention.
        """
        if self._retention is None:
            return []
        length, before = F.lit(self._retention), {} if offset is None else offset
        horizon = F.try_subtract(greatest, length).cast(kind)
        last, forgotten = (F.lit(before.get(name)).cast(kind) for name in ("horizon", "forgotten"))
        is_due = F.coalesce(F.try_add(forgotten, length).cast(kind) < last, F.lit(False))
        return [F.greatest(horizon, last).cast("string").alias("horizon"), is_due.alias("is_due")]

    def _called(self) -> str:
        return table_text(self._table)

    def _since(
        self, spark: SparkSession, offset: Offset
    ) -> tuple[DataFrame, dict[str, Any], bool] | None:
        """The added rows, the offset after them, and whether rows are late; None if none were
        added.

        An offset has the greatest order as text, since JSON has no dates, and the number of rows
        up to it, with a sum of hashes of their orders. If these differ now and late rows are
        taken, all rows are returned.
        """
        frame = frame_of(self._table, spark)
        order = column(self._order)
        kind = frame.select(order).schema[0].dataType
        last = None if offset is None else F.lit(offset["order"]).cast(kind)
        beyond = F.lit(True) if last is None else order > last
        code = F.pmod(F.xxhash64(order), F.lit(2**31 - 1))
        greatest = F.max(order) if last is None else F.greatest(F.max(order), last)
        row = frame.agg(
            greatest.cast("string").alias("order"),
            F.count(F.lit(1)).alias("rows"),
            F.coalesce(F.sum(code), F.lit(0)).alias("sum"),
            F.count_if(~beyond).alias("before"),
            F.coalesce(F.sum(F.when(~beyond, code)), F.lit(0)).alias("sum_before"),
            F.count_if(order.isNull()).alias("nulls"),
            *self._retained(greatest, kind, offset),
        ).first()
        assert row is not None  # an aggregate without keys has one row
        if row.nulls:
            raise SourceError(
                f"{row.nulls} rows of {table_text(self._table)} have a null in {self._order}, by "
                "which they are read on. Fill it; nothing was taken"
            )
        known = 0 if offset is None else offset["rows"]
        late = row.before - known
        # An offset of an earlier version has no sum.
        others = offset is not None and row.sum_before != offset.get("sum", row.sum_before)
        if (late or others) and not self._takes_late_rows:
            if late > 0:
                finding = "added before it, and no step would read them"
            else:
                finding = "taken away" if late else "taken away, and as many were added before it"
            raise SourceError(
                f"{table_text(self._table)} has {row.before:,} rows up to {self._order} = "
                f"{offset['order']}, and had {known:,} when they were read: rows were {finding}. "
                + ("Name a column that grows with each added row, order=..."
                   if late > 0 else "The source takes added rows only. Add rows with the "
                   "opposite diff instead, or read the table as snapshots()")
                + "; nothing was taken"
            )
        after = {"order": row.order, "rows": row.rows, "sum": row.sum}
        parts = {} if offset is None else offset
        after |= {name: parts[name] for name in ("horizon", "forgotten") if name in parts}
        if self._retention is not None:
            after["horizon"] = row.horizon
            if parts.get("forgotten") is None:
                after["forgotten"] = row.horizon
            elif row.is_due:
                after["forgotten"] = parts["horizon"]
        if late or others:
            return frame, after, True
        return None if row.rows == known else (frame.where(beyond), after, False)


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
        self, table: Table, key: tuple[str, ...], order: str, deleted: str | None,
        retention: int | Decimal | timedelta | None,
    ):
        super().__init__(table, order, retention)
        self.key, self._deleted = key, deleted

    def _columns_now(self, spark: SparkSession) -> T.StructType:
        fields = frame_of(self._table, spark).schema.fields
        names = [*self.key, self._order, *([] if self._deleted is None else [self._deleted])]
        order, *gone = named(fields, names, self._table, spark)[len(self.key):]
        self._check_order(T.StructType(fields)[order])
        return T.StructType([field for field in fields if field.name not in gone])

    def versions(self, columns: T.StructType) -> Versions:
        if self._deleted is None:
            return Versions((self._order,))
        forgets = self._retention is not None
        (tombstone,) = hidden_names(["deleted"], columns.names)
        hidden = T.StructField(tombstone, T.BooleanType())
        return Versions((self._order,), (hidden,), tombstone, forgets)

    def read(self, spark: SparkSession, offset: Offset) -> Reading | None:
        since = self._since(spark, offset)
        if since is None:
            return None
        frame, after, late = since
        frame = self._narrowed(frame, [] if self._deleted is None else [self._deleted])
        known, name = self._known(), table_text(self._table)
        tombstone = self.versions(known).tombstone
        gone = F.lit(False) if self._deleted is None else F.coalesce(
            column(self._deleted), F.lit(False)
        )
        (order,) = named(known.fields, [self._order], self._table, spark)
        horizon = None if offset is None else offset.get("horizon")
        limit = F.lit(horizon).cast(known[order].dataType)
        if horizon is not None:
            frame = frame.where(column(self._order) >= limit)
        last = last_versions(at_hand(frame), self.key, [column(self._order)], gone, name)
        rows = version_rows(last, known.names, [*self.key, order], tombstone)
        if late:
            fall_back("upserts", ADDED, f"rows of {name} are late or were taken away, so the "
                      "latest row of each key is read anew")
        changes: list[Change] = [Upserts(rows)]
        if tombstone and offset and after.get("forgotten") != offset.get("forgotten", horizon):
            changes.append(Forget(column(tombstone) & (column(order) < limit)))
        return Reading(after, changes)

    def _check_order(self, field: T.StructField) -> None:
        length, kind = self._retention, field.dataType
        dated = isinstance(kind, (T.DateType, T.TimestampType, T.TimestampNTZType))
        exact = isinstance(kind, (T.IntegralType, T.DecimalType))
        if length is not None and not (dated if isinstance(length, timedelta) else exact):
            raise SchemaError(
                f"the retention {length!r} cannot be subtracted from {field.name} of "
                f"{table_text(self._table)}, which is {kind.simpleString()}. Give a timedelta for "
                "dates and timestamps, a number for whole numbers and decimals, or None"
            )

    def __repr__(self) -> str:
        return f"upserts({table_text(self._table)}, key={list(self.key)}, order={self._order!r})"


def latest(
    frame: DataFrame, key: Sequence[str], order: Sequence[Column], gone: Column, table: str
) -> tuple[DataFrame, DataFrame]:
    """The last change of each key: the deleted keys, and the present rows. See `last_versions`."""
    last = last_versions(frame, key, order, gone, table)
    upserted = last.where(~F.col("gone")).select("row.*")
    deleted = last.where("gone").select(*(
        F.col("row").getField(name).alias(name) for name in key
    ))
    return deleted, upserted


def check_retention(retention: int | Decimal | timedelta | None) -> None:
    """Refuse a retention that is no positive length."""
    if retention is None:
        return
    if isinstance(retention, bool) or not isinstance(retention, (int, Decimal, timedelta)):
        raise TypeError(f"retention is a whole number, Decimal or timedelta, not {retention!r}")
    length = retention.total_seconds() if isinstance(retention, timedelta) else retention
    if length <= 0:
        raise ValueError(f"retention is a positive length, not {retention!r}; or None for ever")


def version_rows(
    last: DataFrame, names: Sequence[str], own: Sequence[str], tombstone: str | None,
    hidden: Sequence[Column] = (),
) -> DataFrame:
    """The rows of the last versions, with hidden columns, and with that of tombstones, if any.

    A tombstone has the columns `own`, which are the key and the order, and nulls in others.
    """
    rows = [F.col("row").getField(name) for name in names]
    if tombstone is None:
        return last.select(*(value.alias(name) for name, value in zip(names, rows)))
    return last.select(*(
        (value if name in own else F.when(~F.col("gone"), value)).alias(name)
        for name, value in zip(names, rows)
    ), *hidden, F.col("gone").alias(tombstone))


def last_versions(
    frame: DataFrame, key: Sequence[str], order: Sequence[Column], gone: Column, table: str
) -> DataFrame:
    """The last change of each key, in columns ``row`` and ``gone``.

    Parameters
    ----------
    order : sequence of Column
        The change with the greatest order is the last one.
    gone : Column
        Whether a change deletes the row of its key.
    table : str
        The name of the table in an error.

    Raises
    ------
    SourceError
        If different changes of a key have the greatest order.
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
    twice = _repeated(rows, last, names)
    if twice:
        # A change that was delivered twice is one change.
        changes = rows.groupBy(*names, "order", "row", "gone").agg(F.lit(1).alias("change"))
        twice = _repeated(changes, last, names)
    if twice:
        shown = "; ".join(repr(tuple(row)[:len(key)]) for row in twice)
        raise SourceError(
            f"changes of one key in {table} have the same order, so none is the last one: {shown}. "
            "Give them an order, order=...; nothing was taken"
        )
    return last.select("last.*")


def _repeated(rows: DataFrame, last: DataFrame, names: Sequence[str]) -> list[Row]:
    """Some keys that have several rows of the greatest order."""
    return rows.groupBy(*names, "order").count().where("count > 1").join(
        last.select(*names, "order"), [*names, "order"], "leftsemi"
    ).limit(5).collect()
