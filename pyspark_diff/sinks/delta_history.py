"""The history of a collection in a Delta table: a slowly changing dimension of type 2.

    rows with is_current  =  the collection after the last epoch
    rows with valid_from <= t < valid_to (or no valid_to)  =  the collection at the time t

An epoch closes the rows that it removes and opens those that it adds, in one commit.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from os import PathLike

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.dataflow.sink import Epoch, Sink
from pyspark_diff.errors import SchemaError, SinkError
from pyspark_diff.sinks.delta import (
    TWICE,
    MergedTable,
    SignedEpoch,
    merged_in_own_session,
    net_changes,
)
from pyspark_diff.spark.delta import DeltaTable
from pyspark_diff.spark.delta_files import DeltaFiles
from pyspark_diff.spark.frames import column, sql_text
from pyspark_diff.spark.schema import Schema, as_keys, quoted

#: The added columns of a history.
COLUMNS = T.StructType([
    T.StructField("valid_from", T.TimestampType()), T.StructField("valid_to", T.TimestampType()),
    T.StructField("is_current", T.BooleanType()),
])


def delta_history(
    table: str | PathLike[str], *, key: str | Sequence[str], replace: bool = False,
    properties: Mapping[str, str] | None = None,
) -> Sink:
    """A Delta table of all rows that the collection ever had, with the time of each.

    A slowly changing dimension of type 2: the columns of the collection, then ``valid_from``,
    ``valid_to`` and ``is_current``. Each epoch closes the rows that it removes and adds the new
    ones, in one commit, once. Rows that do not change are not written.

    Parameters
    ----------
    table, key, replace, properties
        As of `delta_merge`. If the table is a history with these columns, a changed program and
        ``replace=True`` continue it: they close and open the rows that differ.

    Raises
    ------
    SchemaError
        By `DiffFrame.sink`, if the collection has a column ``valid_from``, ``valid_to`` or
        ``is_current``.
    SinkError
        By the step, as of `delta_merge`; and if the table is a history with other columns.

    Notes
    -----
    The times are those of the clock when a refresh writes, and no times of the dataflow. A row is
    valid from ``valid_from`` on, and until before ``valid_to``, which is null while the row is in
    the collection. Rows that a step adds and a later one removes before any epoch leave no trace.

    Examples
    --------
    >>> delta_history("shop.customers_history", key="customer")
    delta_history('shop.customers_history', key=['customer'])
    """
    return _History(table, as_keys(key), replace, properties)


class _History(MergedTable):
    def check(self, schema: T.StructType, spark: SparkSession) -> None:
        clashes = {name.lower() for name in schema.names} & set(COLUMNS.names)
        if clashes:
            raise SchemaError(
                f"the collection has a column {sorted(clashes)[0]!r}, which a history adds. Rename "
                "the column of the collection"
            )
        super().check(schema, spark)

    def _function(self) -> str:
        return "delta_history"

    def _struct(self, epoch: Epoch) -> T.StructType:
        return T.StructType([*epoch.schema.fields, *COLUMNS.fields])

    def _whole(self, epoch: Epoch) -> DataFrame:
        begin = F.timestamp_micros(F.lit(_now()))
        never, current = F.lit(None).cast("timestamp"), F.lit(True)
        return super()._whole(epoch).select(
            "*", *(value.alias(name) for value, name in zip((begin, never, current), COLUMNS.names))
        )

    def _begin(self, signed: SignedEpoch, table: DeltaTable | DeltaFiles | None) -> None:
        epoch = signed.epoch
        if table is None or not continues(epoch.spark, self._name, self._struct(epoch)):
            super()._begin(signed, table)
            return
        self._own(table, signed)
        rows = epoch.spark.read.table(self._name)
        key, values = self._columns_of(epoch.schema, epoch.spark)
        names = [column(name) for name in epoch.schema.names]
        there = rows.where("is_current").select(*names, F.lit(-1).alias("__sign"))
        here = super()._whole(epoch).select(*names, F.lit(1).alias("__sign"))
        net = net_changes(here.unionByName(there), "__sign", key, values)
        merged_in_own_session(signed, net, lambda view: self._statement(view, key, values))

    def _merged(
        self, rows: pa.Table, table: DeltaTable | DeltaFiles, key: Sequence[str],
        signed: SignedEpoch,
    ) -> bool:
        return False  # the path without Spark merges by the key, which a history has many times

    def _statement(self, view: str, key: Sequence[str], values: Sequence[str]) -> str:
        names = [*key, *values]
        new = [f"s._{i}" for i in range(len(names))]
        same = " AND ".join(f"t.{quoted(k)} <=> {n}" for k, n in zip(key, new))
        twice = f"concat({sql_text(TWICE)}, to_json(struct({', '.join(new[: len(key)])})))"
        now = f"timestamp_micros({_now()})"
        # A clock may be set back.
        end = "greatest(t.valid_from, " + now + ")"
        return f"""
            MERGE INTO {self._name} AS t USING (
                SELECT *, explode(CASE __kind WHEN 'delete' THEN array('close')
                    WHEN 'insert' THEN array('new') ELSE array('close', 'open') END) AS __action
                FROM {view}
            ) AS s ON t.is_current AND s.__action <> 'open' AND {same}
            WHEN MATCHED AND s.__action = 'new' THEN UPDATE SET valid_to = raise_error({twice})
            WHEN MATCHED THEN UPDATE SET valid_to = {end}, is_current = false
            WHEN NOT MATCHED AND s.__action <> 'close' THEN INSERT
                ({', '.join(map(quoted, [*names, *COLUMNS.names]))})
                VALUES ({', '.join(new)}, {now}, NULL, true)
        """


def continues(spark: SparkSession, name: str, struct: T.StructType) -> bool:
    """Whether a table is a history with rows, which has these columns.

    Raises
    ------
    SinkError
        If it is a history with other columns.
    """
    rows = spark.read.table(name)
    if not set(COLUMNS.names) <= set(rows.columns) or rows.isEmpty():
        return False
    if not Schema(struct).same_types(Schema(rows.schema)):
        raise SinkError(
            f"Delta table {name} is a history with other columns: they are "
            f"{Schema(rows.schema).describe()}. Nothing was written, as the history would be lost. "
            "Name another table, or drop this one"
        )
    return True


def _now() -> int:
    """The time of the clock in microseconds since 1970."""
    return time.time_ns() // 1000
