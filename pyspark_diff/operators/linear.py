"""Linear operators as stages: Spark expressions, and stages that need no Spark."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Callable, ClassVar, Iterable, Iterator, Mapping, Sequence

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.errors import (
    DiffOverflowError,
    InvalidDiffError,
    InvalidTimeError,
    SchemaError,
    SettingsChangedError,
    errors_to_text,
    to_text,
)
from pyspark_diff.kernels.equality import normalise
from pyspark_diff.kernels.pauses import pause
from pyspark_diff.operators.contract import Stage
from pyspark_diff.operators.node import Linear, Node
from pyspark_diff.spark.data_types import has_maps
from pyspark_diff.spark.frames import column, map_in_arrow, map_tables
from pyspark_diff.spark.jvm import frame_of_no_rows
from pyspark_diff.spark.normal_form import has_floats, normal_form
from pyspark_diff.spark.pandas_frames import check_zones, from_series, to_frame
from pyspark_diff.spark.schema import DIFF, TIME, Schema
from pyspark_diff.spark.settings import ZONE, Settings
from pyspark_diff.spark.user_functions import user_functions
from pyspark_diff.spark.values import python_values, to_array
from pyspark_diff.spark.zone_use import reads_zone

_NOT_WEIGHED = "a diff multiplied by its weight leaves the range of 64-bit integers"
_NOT_NEGATED = "a diff of -9223372036854775808 cannot be negated within 64 bits"


@dataclass(frozen=True)
class Pick(Stage):
    """Columns selected by name, perhaps renamed: `select` with names, `drop`, renaming.

    Parameters
    ----------
    names : tuple of (str, str)
        Pairs of (column of the input, name in the output).
    """

    names: tuple[tuple[str, str], ...]
    keeps_time_and_diff = True
    may_fail = False

    def on_frame(self, frame: DataFrame) -> DataFrame:
        # A column may be missing because no reader wants it.
        picked = [column(old).alias(new) for old, new in self.names if old in frame.columns]
        return frame.select(*picked, TIME, DIFF)

    def on_table(self, table: pa.Table) -> pa.Table:
        known = frozenset(table.schema.names)
        present = [(old, new) for old, new in self.names if old in known]
        selected = table.select([*(old for old, _ in present), TIME, DIFF])
        if all(old == new for old, new in present):
            return selected
        return selected.rename_columns([*(new for _, new in present), TIME, DIFF])

    def needs(self, wanted: frozenset[str]) -> frozenset[str]:
        """Columns of the input from which the wanted columns are computed."""
        return frozenset(old for old, new in self.names if new in wanted)


def pick(kind: str, source: Node, names: Sequence[tuple[str, str]]) -> Linear:
    """The node with some columns of ``source``: pairs of a column and its name in the output."""
    stage = Pick(tuple(names))
    fields = [
        T.StructField(new, field.dataType, field.nullable)
        for new, field in ((new, source.schema.field(old)) for old, new in names)
    ]
    return Linear(kind, source, Schema(T.StructType(fields)), stage, stage.needs)


@dataclass(frozen=True)
class DropNull(Stage):
    """The records in which none of some columns is null."""

    columns: tuple[str, ...]
    keeps_time_and_diff = True
    may_fail = False

    def on_frame(self, frame: DataFrame) -> DataFrame:
        for name in self.columns:
            frame = frame.where(column(name).isNotNull())
        return frame

    def on_table(self, table: pa.Table) -> pa.Table:
        for name in self.columns:
            if table[name].null_count:
                table = table.filter(pc.is_valid(table[name]))
        return table


def drop_null(source: Node, columns: Sequence[str]) -> Linear:
    """The node without the records in which one of some columns is null."""
    stage = DropNull(tuple(columns))
    need = frozenset(columns)
    return Linear("dropna", source, source.schema, stage, lambda wanted: wanted | need)


@dataclass(frozen=True)
class NormalForm(Stage):
    """The same records, with the values of some columns in normal form.

    Parameters
    ----------
    columns : tuple of (str, DataType)
        Columns with maps or floats, and their types.
    """

    columns: tuple[tuple[str, T.DataType], ...]
    keeps_time_and_diff = True

    def on_frame(self, frame: DataFrame) -> DataFrame:
        present = frozenset(frame.columns)
        return frame.withColumns({
            name: normal_form(column(name), kind) for name, kind in self.columns if name in present
        })

    def on_table(self, table: pa.Table) -> pa.Table:
        for name, _ in self.columns:
            place = table.schema.get_field_index(name)
            if place >= 0:
                chunks = [normalise(chunk) for chunk in table.column(place).chunks]
                values = pa.chunked_array(chunks, table.schema.field(place).type)
                table = table.set_column(place, table.schema.field(place), values)
        return table


def with_normal_form(source: Node, *, floats: bool = False) -> Node:
    """The node with the maps of its records in normal form; itself if they have none.

    Users and expressions return maps with their entries in any order, and functions of users
    return zeros of both signs. Equal values must be alike before an expression distinguishes them.

    Parameters
    ----------
    floats : bool
        Also bring floats into normal form. Updates of inputs and results of expressions have it.
    """
    columns = tuple(
        (field.name, field.dataType) for field in source.schema.struct.fields
        if has_maps(field.dataType) or floats and has_floats(field.dataType)
    )
    if not columns:
        return source
    return Linear("sort_maps", source, source.schema, NormalForm(columns), lambda wanted: wanted)


@dataclass(frozen=True)
class MultiplyDiff(Stage):
    """Multiplies the diff by a column of whole numbers, and drops the column.

    Parameters
    ----------
    name : str
        The column; null counts as zero.
    """

    name: str
    keeps_time_and_diff = False

    def on_frame(self, frame: DataFrame) -> DataFrame:
        weight = F.coalesce(column(self.name).cast("long"), F.lit(0))
        # Decimal products are exact, so that this condition finds each overflow.
        exact = column(DIFF).cast("decimal(19,0)") * weight.cast("decimal(19,0)")
        fits = exact.between(F.lit(-(2**63)).cast("decimal(38,0)"), F.lit(2**63 - 1))
        message = to_text(DiffOverflowError(_NOT_WEIGHED))
        product = F.when(fits, exact.cast("long")).otherwise(F.raise_error(F.lit(message)))
        return frame.withColumn(DIFF, product).drop(self.name)

    def on_table(self, table: pa.Table) -> pa.Table:
        weight = pc.fill_null(table[self.name].cast(pa.int64()), 0)
        try:
            product = pc.multiply_checked(table[DIFF], weight)
        except pa.ArrowInvalid as error:
            raise DiffOverflowError(_NOT_WEIGHED) from error
        table = table.set_column(table.column_names.index(DIFF), DIFF, product)
        return table.drop_columns([self.name])


def multiply_diff(source: Node, name: str) -> Linear:
    """The node that multiplies each diff by a column, and drops the column."""
    names = [n for n in source.schema.names if n != name]
    schema, stage = source.schema.only(names), MultiplyDiff(name)
    return Linear("weighted", source, schema, stage, lambda wanted: wanted | {name})


@dataclass(frozen=True)
class Negate(Stage):
    """Every diff with the other sign."""

    keeps_time_and_diff = False

    def on_frame(self, frame: DataFrame) -> DataFrame:
        # Spark would wrap around without ANSI mode, and raise its own error with it.
        message = to_text(DiffOverflowError(_NOT_NEGATED))
        diff = column(DIFF)
        least = diff == F.lit(-(2**63))
        return frame.withColumn(DIFF, F.when(least, F.raise_error(message)).otherwise(-diff))

    def on_table(self, table: pa.Table) -> pa.Table:
        try:
            negative = pc.negate_checked(table[DIFF])
        except pa.ArrowInvalid as error:
            raise DiffOverflowError(_NOT_NEGATED) from error
        return table.set_column(table.column_names.index(DIFF), DIFF, negative)


def negate(source: Node) -> Linear:
    """The node with every diff with the other sign."""
    return Linear("negate", source, source.schema, Negate(), lambda wanted: wanted)


@dataclass(frozen=True)
class Expression(Stage):
    """An expression that Spark evaluates row by row.

    Parameters
    ----------
    apply : callable
        From a frame of update rows to a frame of update rows.
    takes : StructType
        Spark schema of the input's update rows.
    same : tuple of (str, str)
        Known pairs of (column of the input, equal column of the output).
    label : str
        The operator and its columns, for the report of a step.
    written : Settings, optional
        The settings under which it was written; its evaluation requires the same settings.
    functions : tuple
        The users' functions that it called when it was written: see `user_functions`.
    """

    apply: Callable[[DataFrame], DataFrame]
    takes: T.StructType
    keeps_time_and_diff: bool = True
    same: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    label: str = field(default="", compare=False)
    written: Settings | None = field(default=None, compare=False)
    functions: tuple[Any, ...] = field(default=(), compare=False)
    portable = False

    def on_frame(self, frame: DataFrame) -> DataFrame:
        if self.written is not None:
            self.written.check(frame.sparkSession, self._reads_zone)
        if self.functions:
            self._check_functions(frame.sparkSession)
        return self.apply(frame)

    def on_table(self, table: pa.Table) -> pa.Table:
        raise TypeError("only Spark evaluates this stage")

    def other_than(self, values: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        """Settings that may change its values and that differ from ``values``.

        Parameters
        ----------
        values : mapping of str to str
            Values by the names of settings.

        Returns
        -------
        dict
            By name the value under which it was written, and the value in ``values``.
        """
        differing = {} if self.written is None else self.written.differing(values)
        if ZONE in differing and not self._reads_zone():
            del differing[ZONE]
        return differing

    def _check_functions(self, spark: SparkSession) -> None:
        """Raise an error if a name of a function has another function since."""
        if user_functions(self.apply(frame_of_no_rows(spark, self.takes))) != self.functions:
            raise SettingsChangedError(
                "an expression calls a function of the session by its name, and another function "
                "has been registered under that name since. A step would mix values of both. Make "
                "the dataflow again, and call the object that spark.udf.register or F.udf returns"
            )

    def _reads_zone(self) -> bool:
        """Whether its values may depend on the session's time zone."""
        spark = None if self.written is None else self.written.session
        return spark is None or reads_zone(self.apply(frame_of_no_rows(spark, self.takes)))


@dataclass(frozen=True)
class FlatMap(Stage):
    """A Python function from one record to any number of records.

    Parameters
    ----------
    function : callable
        From a Row to an iterable of rows (tuples in column order).
    inputs : pyarrow.Schema
        Data columns of the input.
    struct : StructType
        Spark schema of the output rows with time and diff.
    schema : pyarrow.Schema
        The same for Arrow.
    """

    function: Callable[[T.Row], Iterable[Any]]
    inputs: pa.Schema
    struct: T.StructType
    schema: pa.Schema
    keeps_time_and_diff = False

    def on_frame(self, frame: DataFrame) -> DataFrame:
        return map_tables(frame, self.on_table, self.struct)

    def on_table(self, table: pa.Table) -> pa.Table:
        for name, error in ((TIME, InvalidTimeError), (DIFF, InvalidDiffError)):
            if table[name].null_count:
                raise error(
                    f"{table[name].null_count} rows have no {name.strip('_')} (it is null): give "
                    "every row one, or filter these rows out"
                )
        make = T.Row(*self.inputs.names)
        # flat_map calls the user's function for each record, so vectors do not help.
        values = [python_values(table.column(f.name).cast(f.type)) for f in self.inputs]
        records = zip(*values) if values else iter([()] * table.num_rows)
        origin: list[int] = []
        rows: list[tuple[Any, ...]] = []
        width = len(self.schema) - 2
        for number, record in enumerate(records):
            pause()
            for row in self.function(make(*record)):
                row = tuple(row) if isinstance(row, (tuple, list)) else (row,)
                if len(row) != width:
                    raise SchemaError(
                        f"flat_map's function returned a row of {len(row)} values, {row!r}; its "
                        f"schema has {width} columns: {', '.join(self.schema.names[:width])}"
                    )
                rows.append(row)
                origin.append(number)
        columns = []
        for i in range(width):
            field = self.schema.field(i)
            try:
                columns.append(to_array([row[i] for row in rows], field.type, zoned=True))
            except TypeError as wrong:
                raise SchemaError(
                    f"flat_map's function returned a value for column {field.name!r} that is not "
                    f"a {field.type}: {wrong}"
                ) from wrong
        index = pa.array(origin, type=pa.int64())
        # Chunks of one type differ in time zone only if Spark's session zone is not UTC.
        time = table[TIME].take(index).cast(self.schema.field(TIME).type)
        return pa.table([*columns, time, table[DIFF].take(index)], schema=self.schema)


@dataclass(frozen=True)
class _Mapped(Stage, ABC):
    """A Python function over parts of the update rows, time and diff included.

    Parameters
    ----------
    function : callable
        From an iterator of parts to an iterator of parts.
    time, diff : str
        The user's names for the two columns.
    inputs : pyarrow.Schema
        Data columns of the input.
    struct : StructType
        Spark schema of the output rows, with ``__time`` and ``__diff``.
    schema : pyarrow.Schema
        The same for Arrow.
    """

    function: Callable[[Iterator[Any]], Iterator[Any]]
    time: str
    diff: str
    inputs: pa.Schema
    struct: T.StructType
    schema: pa.Schema
    keeps_time_and_diff = False
    #: Names of the operator and of a part for messages.
    called: ClassVar[str]
    part: ClassVar[str]

    def on_frame(self, frame: DataFrame) -> DataFrame:
        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with errors_to_text():
                yield from self._mapped(batches)

        return map_in_arrow(frame, run, self.struct)

    def on_table(self, table: pa.Table) -> pa.Table:
        return pa.Table.from_batches(self._mapped(iter(table.to_batches())), self.schema)

    def _mapped(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        names = {TIME: self.time, DIFF: self.diff}
        fields = [*self.inputs, self.schema.field(TIME), self.schema.field(DIFF)]
        renamed = pa.schema([(names.get(field.name, field.name), field.type) for field in fields])
        expected = [names.get(name, name) for name in self.schema.names]
        parts = (
            self._shown(pa.RecordBatch.from_arrays(
                [batch.column(f.name).cast(f.type) for f in fields], schema=renamed
            ))
            for batch in batches
        )
        for part in self.function(parts):
            pause()
            names_of_part = self._names(part)
            missing = [name for name in expected if name not in names_of_part]
            if missing:
                raise SchemaError(
                    f"{self.called}'s function returned a {self.part} without "
                    f"{', '.join(missing)}; its columns are {', '.join(names_of_part)}"
                )
            for name, error in ((self.time, InvalidTimeError), (self.diff, InvalidDiffError)):
                if self._missing(part, name):
                    raise error(f"{self.called}'s function returned rows with a null {name}")
            arrays = []
            for name, kind in zip(expected, self.schema.types):
                try:
                    arrays.append(self._column_of(part, name, kind))
                except (pa.ArrowException, TypeError) as wrong:
                    raise SchemaError(
                        f"{self.called}'s function returned a column {name!r} that is not of type "
                        f"{kind}: {wrong}"
                    ) from wrong
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    @abstractmethod
    def _shown(self, batch: pa.RecordBatch) -> Any:
        """A batch in the form that the function receives."""

    @abstractmethod
    def _names(self, part: Any) -> list[str]:
        """The columns of a part that the function returned."""

    @abstractmethod
    def _missing(self, part: Any, name: str) -> bool:
        """Whether there is a null in a column."""

    @abstractmethod
    def _column_of(self, part: Any, name: str, kind: pa.DataType) -> pa.Array:
        """A column of a part that the function returned."""


class MapInPandas(_Mapped):
    """A Python function over pandas frames of update rows, time and diff included."""

    called, part = "map_in_pandas", "frame"

    def _shown(self, batch: pa.RecordBatch) -> pd.DataFrame:
        return to_frame(batch)

    def _names(self, part: pd.DataFrame) -> list[str]:
        return list(map(str, part.columns))

    def _missing(self, part: pd.DataFrame, name: str) -> bool:
        return bool(part[name].isna().any())

    def _column_of(self, part: pd.DataFrame, name: str, kind: pa.DataType) -> pa.Array:
        return from_series(part[name], kind)


class MapInArrow(_Mapped):
    """A Python function over Arrow batches of update rows, time and diff included."""

    called, part = "mapInArrow", "batch"

    def _shown(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    def _names(self, part: pa.RecordBatch) -> list[str]:
        return list(part.schema.names)

    def _missing(self, part: pa.RecordBatch, name: str) -> bool:
        return part.column(name).null_count > 0

    def _column_of(self, part: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
        column = part.column(name)
        check_zones(column.type, kind)
        return column.cast(kind)
