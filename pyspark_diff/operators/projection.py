"""Columns and conditions that need no Spark: formulas that Arrow computes next to the rows.

Both are linear, and have Spark's results: see `pyspark_diff.expressions.compiled`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Callable, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.expressions.compiled import CompiledExpression
from pyspark_diff.kernels.arrow_expression import ArrowExpression, Field, column_of
from pyspark_diff.kernels.equality import has_forms, normalise
from pyspark_diff.operators.contract import Stage
from pyspark_diff.operators.node import Linear, Node
from pyspark_diff.spark.frames import column
from pyspark_diff.spark.normal_form import without_signed_zeros
from pyspark_diff.spark.schema import DIFF, TIME, Schema
from pyspark_diff.spark.settings import ZONE, Settings


@dataclass(frozen=True)
class BySpark:
    """The same operator as a function of Spark frames.

    It stays on the driver: columns of the JVM cannot travel to the executors, which do not need it.

    Parameters
    ----------
    apply : callable or None
        From a frame of update rows to a frame of update rows.
    inputs : StructType or None
        The data columns of the input.
    written : Settings or None
        The settings under which the operator was written.
    reads_zone : bool
        Whether the operator depends on the time zone of the settings.
    """

    apply: Callable[[DataFrame], DataFrame] | None = None
    inputs: T.StructType | None = None
    written: Settings | None = None
    reads_zone: bool = False

    def __reduce__(self) -> tuple[type["BySpark"], tuple[()]]:
        return BySpark, ()

    def other_than(self, values: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        """The time zone under which a formula was written and that of `values`, if it reads both.

        A formula depends on no other setting that may change after it was written.
        """
        changed = {} if self.written is None else self.written.differing(values)
        return {ZONE: changed[ZONE]} if self.reads_zone and ZONE in changed else {}

    def on_frame(self, frame: DataFrame, outputs: Mapping[str, frozenset[str]]) -> DataFrame:
        """The output columns whose input columns are present.

        Parameters
        ----------
        frame : DataFrame
            A column may be missing because no reader wants it.
        outputs : mapping of str to frozenset of str
            For each column of the output the columns of the input from which it is computed.
        """
        if self.apply is None or self.inputs is None:
            raise TypeError("a stage on an executor takes tables only")
        if self.written is not None:
            self.written.check(frame.sparkSession, lambda: self.reads_zone)
        present = set(frame.columns)
        if present.issuperset(self.inputs.names):
            return self.apply(frame)
        full = [
            column(f.name) if f.name in present else F.lit(None).cast(f.dataType).alias(f.name)
            for f in self.inputs.fields
        ]
        outputs_present = [column(name) for name, needs in outputs.items() if needs <= present]
        return self.apply(frame.select(*full, TIME, DIFF)).select(*outputs_present, TIME, DIFF)


@dataclass(frozen=True)
class Compute(Stage):
    """Columns that are computed from other columns: `select` and `withColumn`.

    Parameters
    ----------
    outputs : tuple of (str, ArrowExpression)
        Names and values of the columns of the output.
    by_spark : BySpark
        The same for frames.
    """

    outputs: tuple[tuple[str, ArrowExpression], ...]
    by_spark: BySpark = field(default=BySpark(), compare=False)
    keeps_time_and_diff = True

    def on_frame(self, frame: DataFrame) -> DataFrame:
        computed = self.by_spark.on_frame(frame, {name: f.columns for name, f in self.outputs})
        return without_signed_zeros(computed, {name for name, f in self.outputs if _has_zeros(f)})

    def on_table(self, table: pa.Table) -> pa.Table:
        present = frozenset(table.column_names)
        computed = [(n, formula) for n, formula in self.outputs if formula.columns <= present]
        columns = [_normal_column(formula, table) for _, formula in computed]
        names = [name for name, _ in computed]
        return pa.table([*columns, table[TIME], table[DIFF]], names=[*names, TIME, DIFF])

    def other_than(self, values: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        """See `BySpark.other_than`."""
        return self.by_spark.other_than(values)

    def needs(self, wanted: frozenset[str]) -> frozenset[str]:
        """Columns of the input from which the wanted columns are computed."""
        inputs = (formula.columns for name, formula in self.outputs if name in wanted)
        return frozenset[str]().union(*inputs)


def _has_zeros(formula: ArrowExpression) -> bool:
    """Whether a value may be `-0.0`; columns of the input are in normal form."""
    return not isinstance(formula, Field) and has_forms(formula.kind)


def _normal_column(formula: ArrowExpression, table: pa.Table) -> pa.Array | pa.ChunkedArray:
    values = column_of(formula, table)
    if not _has_zeros(formula):
        return values
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([normalise(chunk) for chunk in values.chunks], values.type)
    return normalise(values)


@dataclass(frozen=True)
class Filter(Stage):
    """The records for which a condition is true, and neither false nor null: `where`.

    Parameters
    ----------
    by_spark : BySpark
        The same for frames.
    wanted : frozenset of str, optional
        The output columns that have readers; by default all columns.
    """

    condition: ArrowExpression
    by_spark: BySpark = field(default=BySpark(), compare=False)
    wanted: frozenset[str] | None = field(default=None, compare=False)
    keeps_time_and_diff = True

    def on_frame(self, frame: DataFrame) -> DataFrame:
        return self.by_spark.on_frame(
            frame, {name: frozenset({name}) for name in frame.columns if name not in (TIME, DIFF)}
        )

    def on_table(self, table: pa.Table) -> pa.Table:
        true = column_of(self.condition, table)
        if self.wanted is not None:
            # Most of the work on a wide table is copying columns without readers. Small tables
            # drop them too, since they are concatenated with large tables.
            names = {*self.wanted, TIME, DIFF}
            table = table.select([name for name in table.column_names if name in names])
        return table.filter(true)

    def other_than(self, values: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        """See `BySpark.other_than`."""
        return self.by_spark.other_than(values)

    def giving(self, wanted: frozenset[str]) -> Filter:
        """The stage for readers of some output columns."""
        return replace(self, wanted=wanted)

    def needs(self, wanted: frozenset[str]) -> frozenset[str]:
        """The wanted columns and the columns of the condition."""
        return wanted | self.condition.columns


def compute(
    kind: str,
    source: Node,
    schema: Schema,
    columns: Sequence[CompiledExpression],
    apply: Callable[[DataFrame], DataFrame],
    written: Settings,
) -> Linear | None:
    """The node with computed columns; None if they are not of the types that Spark found.

    Parameters
    ----------
    schema : Schema
        Spark's schema of the output.
    columns : sequence of CompiledExpression
        In the order of the schema.
    apply : callable
        The same operator on a Spark frame of update rows.
    written : Settings
        The settings under which the columns were written.
    """
    if schema.types != tuple(compiled.kind for compiled in columns):
        return None
    outputs = tuple((name, compiled.formula) for name, compiled in zip(schema.names, columns))
    reads_zone = any(compiled.reads_zone for compiled in columns)
    stage = Compute(outputs, BySpark(apply, source.schema.struct, written, reads_zone))
    return Linear(kind, source, schema, stage, stage.needs)


def keep_where(
    kind: str,
    source: Node,
    condition: CompiledExpression,
    apply: Callable[[DataFrame], DataFrame],
    written: Settings,
) -> Linear | None:
    """The node's records for which a condition is true; None if it is no condition."""
    if condition.kind != T.BooleanType():
        return None
    by_spark = BySpark(apply, source.schema.struct, written, condition.reads_zone)
    stage = Filter(condition.formula, by_spark)
    return Linear(kind, source, source.schema, stage, stage.needs)
