"""What a user hands in, brought into the columns of an input: by name, and without loss.

For data ``D`` that is accepted, ``coerce(D)`` has the schema's names, types and order, and the
values of ``D``; whatever would have to change a value is refused, with names and types in the
message.
"""

from __future__ import annotations

from typing import Any, Iterable, Protocol, Sequence, TypeAlias

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from pyspark_diff.errors import SchemaError
from pyspark_diff.kernels.equality import normal_table
from pyspark_diff.spark.frames import arrow_table as read_frame
from pyspark_diff.spark.frames import column
from pyspark_diff.spark.schema import Schema, meant_by, without_nullability
from pyspark_diff.spark.values import to_array


class ArrowStream(Protocol):
    """What has the Arrow C stream: a table of Polars, of DuckDB, and of others."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """A capsule with the stream."""


#: What a user may hand in: a Spark, Arrow or pandas table, one of another library by the Arrow C
#: stream, or rows (tuples, Rows or dicts).
Data: TypeAlias = (
    DataFrame | pa.Table | pa.RecordBatch | pa.RecordBatchReader | pd.DataFrame | ArrowStream
    | Iterable[Any]
)


def arrow_table(data: object) -> pa.Table | None:
    """A table of Arrow, or of another library by the Arrow C stream; None of what is none.

    Spark frames, whose rows are not here, are none; nor are pandas tables, which have types of
    their own.
    """
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, pa.RecordBatchReader):
        return data.read_all()
    if isinstance(data, (DataFrame, pd.DataFrame)) or not hasattr(data, "__arrow_c_stream__"):
        return None
    return pa.RecordBatchReader.from_stream(data).read_all()


def coerce(
    data: Data, struct: T.StructType, name: str, spark: SparkSession, widen: Sequence[str] = ()
) -> DataFrame | pa.Table:
    """Data in the columns of ``struct``: a frame that Spark has to evaluate, or a table.

    The floats of a table are in normal form, and those of a frame are not: only a plain frame over
    files can be read without Spark.
    """
    rows = _coerced(data, struct, name, spark, widen)
    return rows if isinstance(rows, DataFrame) else normal_table(rows)


def _coerced(
    data: Data, struct: T.StructType, name: str, spark: SparkSession, widen: Sequence[str]
) -> DataFrame | pa.Table:
    if isinstance(data, DataFrame):
        frame = _coerce_frame(data, struct, name, spark, widen)
        # A frame over local rows needs no job to be read.
        if not data.isLocal():
            return frame
        # Without columns Arrow would not tell how many rows there are, but a count does.
        if not struct.names:
            return _of([], pa.schema([]), frame.count())
        return _cast(read_frame(frame), struct, name)
    if isinstance(data, pd.DataFrame):
        found = _matched(list(map(str, data.columns)), struct, name, spark)
        if not struct.names:
            return _of([], pa.schema([]), len(data))
        try:
            # A copy: Arrow would share numbers with the frame, which its owner may change.
            data = pa.Table.from_pandas(data.copy(), preserve_index=False).select(found)
        except pa.ArrowException as error:
            raise SchemaError(f"the rows for input {name!r} do not fit: {error}") from error
    table = arrow_table(data)
    if table is not None:
        found = _matched(table.column_names, struct, name, spark)
        return _cast(table.select(found), struct, name)
    return _rows_to_table(data, struct, name, spark)


def _coerce_frame(
    frame: DataFrame, struct: T.StructType, name: str, spark: SparkSession, widen: Sequence[str]
) -> DataFrame:
    found = _matched(frame.columns, struct, name, spark)
    given = {field.name: field.dataType for field in frame.schema.fields}
    wrong = []
    columns = []
    for field, there in zip(struct.fields, found):
        kind = given[there]
        wanted = column(there)
        if field.name in widen and isinstance(kind, (T.ByteType, T.ShortType, T.IntegerType)):
            columns.append(wanted.cast(field.dataType).alias(field.name))
            continue
        columns.append(wanted if there == field.name else wanted.alias(field.name))
        if without_nullability(kind) != without_nullability(field.dataType):
            wrong.append(
                f"{field.name} is {kind.simpleString()}, expected {field.dataType.simpleString()}"
            )
    if wrong:
        raise SchemaError(f"the rows for input {name!r} do not fit: {'; '.join(wrong)}; cast them")
    return frame.select(*columns)


def _matched(
    names: Sequence[str], struct: T.StructType, name: str, spark: SparkSession
) -> list[str]:
    """The names that the columns of the schema have among those given."""
    if len(names) == len(struct.names) and set(names) == set(struct.names):
        return list(struct.names)
    found = [meant_by(n, names, spark) for n in struct.names]
    known = {n for some in found for n in some}
    missing = [n for n, some in zip(struct.names, found) if not some]
    extra = [n for n in names if n not in known]
    twice = [n for n, some in zip(struct.names, found) if len(some) > 1]
    if missing or extra or twice:
        told = [f"missing {', '.join(missing)}"] if missing else []
        told += [f"unknown {', '.join(extra)}"] if extra else []
        told += [f"more than once {', '.join(twice)}"] if twice else []
        raise SchemaError(
            f"the columns for input {name!r} do not fit: {'; '.join(told)}; given "
            f"({', '.join(names)}), expected ({', '.join(struct.names)})"
        )
    return [n for (n,) in found]


def _cast(table: pa.Table, struct: T.StructType, name: str) -> pa.Table:
    """A table in exactly the Arrow types of the schema; only lossless integer widening is done."""
    expected = Schema(struct).arrow()
    arrays = []
    for column_, field, declared in zip(table.columns, expected, struct.fields):
        if column_.type == field.type:
            arrays.append(column_)
            continue
        try:
            if not _alike(column_.type, field.type):
                raise pa.ArrowInvalid(f"it is {column_.type}")
            arrays.append(column_.cast(field.type))
        except pa.ArrowException as error:
            raise SchemaError(
                f"column {field.name!r} for input {name!r} does not fit: expected "
                f"{declared.dataType.simpleString()}, but {error}"
            ) from error
    return _of(arrays, expected, table.num_rows)


def _alike(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a cast can lose nothing that it would not report."""
    if pa.types.is_struct(given) and pa.types.is_struct(wanted):
        ours, theirs = ([kind.field(i) for i in range(kind.num_fields)] for kind in (given, wanted))
        types = {field.name: field.type for field in ours}
        return (
            sorted(field.name for field in ours) == sorted(field.name for field in theirs)
            and all(_alike(types[field.name], field.type) for field in theirs)
        )
    if pa.types.is_map(given) and pa.types.is_map(wanted):
        return (
            _alike(given.key_type, wanted.key_type) and _alike(given.item_type, wanted.item_type)
        )
    if _is_list(given) and _is_list(wanted):
        return _alike(given.value_type, wanted.value_type)
    return (
        given == wanted
        or pa.types.is_null(given)
        or (pa.types.is_integer(given) and pa.types.is_integer(wanted))
        or (pa.types.is_timestamp(given) and pa.types.is_timestamp(wanted)
            and (given.tz is None) == (wanted.tz is None))
        or (_is_text(given) and pa.types.is_string(wanted))
        or (_is_bytes(given) and pa.types.is_binary(wanted))
        or (pa.types.is_dictionary(given) and _alike(given.value_type, wanted))
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _rows_to_table(
    rows: object, struct: T.StructType, name: str, spark: SparkSession
) -> pa.Table:
    if isinstance(rows, (str, bytes, dict)) or not isinstance(rows, Iterable):
        raise SchemaError(
            f"input {name!r} takes a DataFrame, a pyarrow or pandas table, one of another library "
            f"by the Arrow C stream, or an iterable of rows, not {type(rows).__name__}"
            + ("; a single row goes into a list" if isinstance(rows, dict) else "")
        )
    expected = Schema(struct).arrow()
    names = struct.names
    records = []
    known: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:  # rows that a user typed: few, and checked one by one for a good message
        if isinstance(row, dict):
            # What a dict does not tell is null, as where PySpark makes a frame of dicts.
            if not row.keys() <= frozenset(names):
                if tuple(row) not in known:
                    known[tuple(row)] = _respelled(list(row), struct, name, spark)
                row = {known[tuple(row)][given]: value for given, value in row.items()}
            row = tuple(row.get(n) for n in names)
        elif isinstance(row, T.Row) and getattr(row, "__fields__", None):
            row = tuple(row[n] for n in _matched(row.__fields__, struct, name, spark))
        if not isinstance(row, (tuple, list)) or len(row) != len(names):
            # One row, handed in as if it were a table of them.
            alone = isinstance(rows, tuple) and len(rows) == len(names)
            raise SchemaError(
                f"{row!r} is not a row for input {name!r}, which has the columns "
                f"({', '.join(names)})" + ("; a single row goes into a list" if alone else "")
            )
        records.append(row)
    arrays = []
    values: Sequence[Any]
    for values, field, declared in zip(
        zip(*records) if records else [()] * len(names), expected, struct.fields
    ):
        try:
            arrays.append(to_array(values, field.type))
        except TypeError as error:
            raise SchemaError(
                f"a value for column {field.name!r} of input {name!r} is not a "
                f"{declared.dataType.simpleString()}: {error}"
            ) from error
    return _of(arrays, expected, len(records))


def _respelled(
    given: Sequence[str], struct: T.StructType, name: str, spark: SparkSession
) -> dict[str, str]:
    """The columns of the schema that the keys of a dict are, which need not be all."""
    meant = {one: meant_by(one, struct.names, spark) for one in given}
    found = {one: columns[0] for one, columns in meant.items() if columns}
    if len(set(found.values())) < len(given):
        _matched(given, struct, name, spark)  # says what is wrong
    return found


def _of(arrays: Sequence[pa.Array], schema: pa.Schema, rows: int) -> pa.Table:
    """A table of so many rows, also where there is no column that would tell how many."""
    if not arrays:
        return pa.table({"none": pa.nulls(rows)}).select([])
    return pa.Table.from_arrays(arrays, schema=schema)
