"""Salt: a further key that spreads a collection over the buckets if its own key does not.

A record of the large side gets a salt, a hash of itself. Each record of the small side is copied
for every salt. Joined by the salt, and by the key if there is one, every pair meets once.

If only some keys are hot, all other records have one salt on either side, and no copies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.kernels import hashing
from pyspark_diff.kernels.updates import joined
from pyspark_diff.operators.contract import Stage
from pyspark_diff.operators.node import Linear, Node
from pyspark_diff.spark.frames import column
from pyspark_diff.spark.schema import Schema

#: Number of parts of a spread collection: most clusters have fewer cores for one job.
SALTS = 64


@dataclass(frozen=True)
class Hot:
    """Keys that many records have.

    Parameters
    ----------
    columns : tuple of str
        Columns of the key, or some of them.
    keys : tuple of tuple
        Values of these columns in hot keys: Python values that Spark and Arrow know, never None.
        Empty if every key is hot.
    """

    columns: tuple[str, ...]
    keys: tuple[tuple[object, ...], ...]

    def named(self, columns: tuple[str, ...]) -> "Hot":
        """The same keys with other names of their columns."""
        return replace(self, columns=columns)

    def in_frame(self) -> Column:
        """Whether a record's key is hot."""
        if not self.keys:
            return F.lit(True)
        each = (
            reduce(Column.__and__, [column(n) == _literal(v) for n, v in zip(self.columns, key)])
            for key in self.keys
        )
        return F.coalesce(reduce(Column.__or__, each), F.lit(False))

    def in_table(self, table: pa.Table) -> np.ndarray:
        """Whether each record's key is hot."""
        hot = np.full(table.num_rows, not self.keys)
        for key in self.keys:
            equals = np.ones(table.num_rows, dtype=bool)
            for name, value in zip(self.columns, key):
                kind = table.schema.field(name).type
                equal = pc.equal(table[name], pa.scalar(value, kind))
                equals &= equal.fill_null(False).to_numpy(zero_copy_only=False)
            hot |= equals
        return hot


@dataclass(frozen=True)
class Salt(Stage):
    """Adds a column: a hash of other columns.

    Parameters
    ----------
    columns : tuple of str
        Columns that are hashed.
    hot : Hot, optional
        Keys of the records that get a salt; by default all keys. Other records get zero.
    """

    name: str
    columns: tuple[str, ...]
    hot: Hot | None = None
    keeps_time_and_diff = True
    may_fail = False

    def on_frame(self, frame: DataFrame) -> DataFrame:
        value = F.lit(0)
        if self.columns:
            value = F.pmod(F.hash(*[column(name) for name in self.columns]), F.lit(SALTS))
        if self.hot is not None:
            value = F.when(self.hot.in_frame(), value).otherwise(F.lit(0))
        return frame.withColumn(self.name, value)

    def on_table(self, table: pa.Table) -> pa.Table:
        value = np.zeros(table.num_rows, dtype=np.int32)
        rows = np.ones(table.num_rows, bool) if self.hot is None else self.hot.in_table(table)
        if self.columns and rows.any():
            some = table if rows.all() else table.filter(pa.array(rows))
            columns = [joined([some[name]]) for name in self.columns]
            value[rows] = hashing.bucket_of(hashing.spark_hash(columns), SALTS)
        return table.append_column(self.name, pa.array(value, pa.int32()))


@dataclass(frozen=True)
class Replicate(Stage):
    """Each record once for every salt.

    Parameters
    ----------
    name : str
        Column of the salt.
    hot : Hot, optional
        Keys of the records that are copied; by default all keys. Other records get the salt zero.
    """

    name: str
    hot: Hot | None = None
    keeps_time_and_diff = False
    may_fail = False

    def on_frame(self, frame: DataFrame) -> DataFrame:
        salts = F.array(*[F.lit(i) for i in range(SALTS)])
        if self.hot is not None:
            salts = F.when(self.hot.in_frame(), salts).otherwise(F.array(F.lit(0)))
        return frame.withColumn(self.name, F.explode(salts))

    def on_table(self, table: pa.Table) -> pa.Table:
        hot = True if self.hot is None else self.hot.in_table(table)
        copies = np.broadcast_to(np.where(hot, SALTS, 1), table.num_rows)
        ends = np.cumsum(copies)
        salts = np.arange(copies.sum()) - np.repeat(ends - copies, copies)
        rows = pa.array(np.repeat(np.arange(table.num_rows), copies))
        return table.take(rows).append_column(self.name, pa.array(salts, pa.int32()))


def _literal(value: object) -> Column:
    """A value with Arrow's meaning. Java's old classes would shift days before 1582, and would
    place timestamps without a time zone in the zone of this process."""
    if not isinstance(value, date):
        return F.lit(value)
    kind = "date"
    if isinstance(value, datetime):
        kind = "timestamp_ntz" if value.tzinfo is None else "timestamp"
    return F.lit(value.isoformat()).cast(kind)


def salt(
    source: Node, name: str, columns: tuple[str, ...] | None = None, hot: Hot | None = None
) -> Linear:
    """The node that spreads ``source``, by a hash of some columns or all, in a column ``name``."""
    names = source.schema.names if columns is None else columns
    need = frozenset(names) | _asked(hot)
    stage = Salt(name, names, hot)
    schema = _with(source, name)
    return Linear("salt", source, schema, stage, lambda wanted: (wanted | need) - {name})


def replicate(source: Node, name: str, hot: Hot | None = None) -> Linear:
    """The node that copies ``source`` for every salt, with the salt in a column ``name``."""
    stage, need = Replicate(name, hot), _asked(hot)
    return Linear(
        "replicate", source, _with(source, name), stage, lambda wanted: (wanted | need) - {name}
    )


def _asked(hot: Hot | None) -> frozenset[str]:
    """The columns that decide whether a key is hot."""
    return frozenset(hot.columns if hot is not None and hot.keys else ())


def _with(source: Node, name: str) -> Schema:
    field = T.StructField(name, T.IntegerType(), False)
    return Schema(T.StructType([*source.schema.struct.fields, field]))
