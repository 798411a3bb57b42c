"""Linear operators as stages: Spark expressions, and those that need no Spark at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterable, Iterator

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from pyspark_diff.errors import DiffOverflowError, InvalidDiffError, InvalidTimeError, SchemaError
from pyspark_diff.expressions import column
from pyspark_diff.schema import DIFF, TIME


@dataclass(frozen=True)
class Pick:
    """Columns picked by name, perhaps under other names: `select` with names, `drop`, renaming.

    Parameters
    ----------
    names : tuple of (str, str)
        Pairs of (column of the input, name in the output).
    """

    names: tuple[tuple[str, str], ...]
    portable = True
    keeps_time_and_diff = True

    def on_frame(self, frame: DataFrame) -> DataFrame:
        # A column may be missing because nothing downstream wants it.
        picked = [column(old).alias(new) for old, new in self.names if old in frame.columns]
        return frame.select(*picked, TIME, DIFF)

    def on_table(self, table: pa.Table) -> pa.Table:
        there = [(old, new) for old, new in self.names if old in table.column_names]
        columns = [table.column(old) for old, _ in there]
        names = [new for _, new in there]
        return pa.table([*columns, table[TIME], table[DIFF]], names=[*names, TIME, DIFF])

    def needs(self, wanted: frozenset[str]) -> frozenset[str]:
        """Columns of the input that the wanted ones are made of."""
        return frozenset(old for old, new in self.names if new in wanted)


@dataclass(frozen=True)
class Negate:
    """Every diff with the other sign."""

    portable = True
    keeps_time_and_diff = False

    def on_frame(self, frame: DataFrame) -> DataFrame:
        return frame.withColumn(DIFF, -column(DIFF))

    def on_table(self, table: pa.Table) -> pa.Table:
        try:
            negative = pc.negate_checked(table[DIFF])
        except pa.ArrowInvalid as error:
            raise DiffOverflowError(
                "a diff of -9223372036854775808 cannot be negated within 64 bits"
            ) from error
        return table.set_column(table.column_names.index(DIFF), DIFF, negative)


@dataclass(frozen=True)
class Expression:
    """Anything that Spark evaluates row by row.

    Parameters
    ----------
    apply : callable
        From a frame of update rows to a frame of update rows.
    keeps_time_and_diff : bool
    """

    apply: Callable[[DataFrame], DataFrame]
    keeps_time_and_diff: bool = True
    portable = False

    def on_frame(self, frame: DataFrame) -> DataFrame:
        return self.apply(frame)

    def on_table(self, table: pa.Table) -> pa.Table:
        raise TypeError("only Spark evaluates this stage")


@dataclass(frozen=True)
class FlatMap:
    """A Python function from one record to any number of records.

    Parameters
    ----------
    function : callable
        From a Row to an iterable of rows (tuples in column order).
    columns : tuple of str
        Columns of the input.
    struct : StructType
        Spark schema of the output rows with time and diff.
    schema : pyarrow.Schema
        The same for Arrow.
    """

    function: Callable[[T.Row], Iterable[Any]]
    columns: tuple[str, ...]
    struct: T.StructType
    schema: pa.Schema
    portable = True
    keeps_time_and_diff = False

    def on_frame(self, frame: DataFrame) -> DataFrame:
        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield from self.on_table(pa.Table.from_batches([batch])).to_batches()

        return frame.mapInArrow(run, self.struct)

    def on_table(self, table: pa.Table) -> pa.Table:
        make = T.Row(*self.columns)
        # The user's own function is called for each record; that is what flat_map is.
        values = [table.column(name).to_pylist() for name in self.columns]
        records = zip(*values) if values else iter([()] * table.num_rows)
        origin: list[int] = []
        rows: list[tuple[Any, ...]] = []
        width = len(self.schema) - 2
        for number, record in enumerate(records):
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
                columns.append(pa.array([row[i] for row in rows], type=field.type))
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                raise SchemaError(
                    f"flat_map's function returned a value for column {field.name!r} that is not "
                    f"a {field.type}: {error}"
                ) from error
        index = pa.array(origin, type=pa.int64())
        # Chunks of one type differ in time zone only where Spark's session zone is not UTC.
        time = table[TIME].take(index).cast(self.schema.field(TIME).type)
        return pa.table([*columns, time, table[DIFF].take(index)], schema=self.schema)


@dataclass(frozen=True)
class MapInPandas:
    """A Python function over pandas frames of update rows, time and diff included.

    Parameters
    ----------
    function : callable
        From an iterator of pandas frames to an iterator of pandas frames.
    time, diff : str
        The user's names for the two columns.
    struct : StructType
        Spark schema of the output rows, with ``__time`` and ``__diff``.
    schema : pyarrow.Schema
        The same for Arrow.
    """

    function: Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]]
    time: str
    diff: str
    struct: T.StructType
    schema: pa.Schema
    portable = True
    keeps_time_and_diff = False

    def on_frame(self, frame: DataFrame) -> DataFrame:
        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            tables = (pa.Table.from_batches([batch]) for batch in batches)
            for table in self._tables(tables):
                yield from table.to_batches()

        return frame.mapInArrow(run, self.struct)

    def on_table(self, table: pa.Table) -> pa.Table:
        tables = list(self._tables(iter([table])))
        return pa.concat_tables(tables) if tables else self.schema.empty_table()

    def _tables(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        names = {TIME: self.time, DIFF: self.diff}
        frames = (
            table.rename_columns([names.get(n, n) for n in table.column_names]).to_pandas()
            for table in tables
        )
        expected = [names.get(name, name) for name in self.schema.names]
        for frame in self.function(frames):
            missing = [name for name in expected if name not in frame.columns]
            if missing:
                raise SchemaError(
                    f"map_in_pandas' function returned a frame without {', '.join(missing)}; its "
                    f"columns are {', '.join(map(str, frame.columns))}"
                )
            if frame[self.time].isna().any():
                raise InvalidTimeError("map_in_pandas' function returned rows with a null time")
            if frame[self.diff].isna().any():
                raise InvalidDiffError("map_in_pandas' function returned rows with a null diff")
            arrays = []
            for name, field in zip(expected, self.schema):
                try:
                    arrays.append(pa.Array.from_pandas(frame[name], type=field.type))
                except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                    raise SchemaError(
                        f"map_in_pandas' function returned a column {name!r} that is not of type "
                        f"{field.type}: {error}"
                    ) from error
            yield pa.table(arrays, schema=self.schema)
