"""Salt: what spreads a collection over the buckets where its key would not.

A record of the large side gets a salt, a hash of itself; each record of the small side is copied
for every salt. Joined by the salt, every pair meets once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.kernels import hashing
from pyspark_diff.kernels.updates import joined
from pyspark_diff.operators.contract import Stage
from pyspark_diff.operators.node import Linear, Node
from pyspark_diff.spark.frames import column
from pyspark_diff.spark.schema import Schema

#: How many parts a collection is spread over: more than most clusters have cores for one job.
SALTS = 64


@dataclass(frozen=True)
class Salt(Stage):
    """One more column: a hash of the others.

    Parameters
    ----------
    name : str
    columns : tuple of str
        Columns that are hashed.
    """

    name: str
    columns: tuple[str, ...]
    keeps_time_and_diff = True
    may_fail = False

    def on_frame(self, frame: DataFrame) -> DataFrame:
        value = F.lit(0)
        if self.columns:
            value = F.pmod(F.hash(*[column(name) for name in self.columns]), F.lit(SALTS))
        return frame.withColumn(self.name, value)

    def on_table(self, table: pa.Table) -> pa.Table:
        value = np.zeros(table.num_rows, dtype=np.int32)
        if self.columns and table.num_rows:
            columns = [joined([table[name]]) for name in self.columns]
            value = hashing.bucket_of(hashing.spark_hash(columns), SALTS)
        return table.append_column(self.name, pa.array(value, pa.int32()))


@dataclass(frozen=True)
class Replicate(Stage):
    """Each record once for every salt.

    Parameters
    ----------
    name : str
        Column of the salt.
    """

    name: str
    keeps_time_and_diff = False
    may_fail = False

    def on_frame(self, frame: DataFrame) -> DataFrame:
        salts = F.array(*[F.lit(i) for i in range(SALTS)])
        return frame.withColumn(self.name, F.explode(salts))

    def on_table(self, table: pa.Table) -> pa.Table:
        rows = pa.array(np.repeat(np.arange(table.num_rows), SALTS))
        salts = np.tile(np.arange(SALTS, dtype=np.int32), table.num_rows)
        return table.take(rows).append_column(self.name, pa.array(salts))


def salt(source: Node, name: str, columns: tuple[str, ...] | None = None) -> Linear:
    """The node that spreads ``source``, by a hash of some columns or all, in a column ``name``."""
    names = source.schema.names if columns is None else columns
    need = frozenset(names)
    stage = Salt(name, names)
    schema = _with(source, name)
    return Linear("salt", source, schema, stage, lambda wanted: (wanted | need) - {name})


def replicate(source: Node, name: str) -> Linear:
    """The node that copies ``source`` for every salt, told by a column ``name``."""
    stage = Replicate(name)
    return Linear("replicate", source, _with(source, name), stage, lambda wanted: wanted - {name})


def _with(source: Node, name: str) -> Schema:
    field = T.StructField(name, T.IntegerType(), False)
    return Schema(T.StructType([*source.schema.struct.fields, field]))
