"""Codes: values as 64-bit numbers in their order, so that they are searched as numbers.

    a <= b  ⟺  code(a) <= code(b)
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from pyspark_diff.kernels import quantiles
from pyspark_diff.kernels.updates import joined
from pyspark_diff.operators.contract import Stage
from pyspark_diff.operators.node import Linear, Node
from pyspark_diff.spark.frames import map_tables
from pyspark_diff.spark.schema import Schema


@dataclass(frozen=True)
class Codes(Stage):
    """Replaces a column by its codes."""

    name: str
    keeps_time_and_diff = True
    may_fail = False

    def on_frame(self, frame: DataFrame) -> DataFrame:
        return map_tables(frame, self.on_table, _coded(frame.schema, self.name))

    def on_table(self, table: pa.Table) -> pa.Table:
        number = table.column_names.index(self.name)
        codes = quantiles.codes(joined([table[self.name]]))
        return table.set_column(number, self.name, codes)


def coded(source: Node, name: str) -> Linear:
    """The node that replaces a column by its codes."""
    schema = Schema(_coded(source.schema.struct, name))
    return Linear("codes", source, schema, Codes(name), lambda wanted: wanted | {name})


def _coded(struct: T.StructType, name: str) -> T.StructType:
    return T.StructType([
        T.StructField(name, T.LongType(), field.nullable) if field.name == name else field
        for field in struct
    ])
