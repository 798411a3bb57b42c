"""Coercion: a user's rows get the columns of an input, matched by name and without loss.

For accepted data ``D``, ``coerce(D)`` has the schema's names, types and order, and the values of
``D``. A conversion that would change a value is refused, with names and types in the message.
"""

from __future__ import annotations

from typing import Any, Iterable, Protocol, Sequence, TypeAlias

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from pyspark_diff.errors import SchemaError
from pyspark_diff.kernels.equality import normal_table
from pyspark_diff.spark.data_types import without_nullability
from pyspark_diff.spark.frames import arrow_table as read_frame
from pyspark_diff.spark.frames import column
from pyspark_diff.spark.schema import Schema, meant_by
from pyspark_diff.spark.values import to_array


class ArrowStream(Protocol):
    """A table with the Arrow C stream, such as one of Polars or DuckDB."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """A capsule with the stream."""


#: The data that an input accepts: a Spark, Arrow or pandas table, a table of another library by the
#: Arrow C stream, or rows (tuples, Rows or dicts).
Data: TypeAlias = (
    DataFrame | pa.Table | pa.RecordBatch | pa.RecordBatchReader | pd.DataFrame | ArrowStream
    | Iterable[Any]
)


def arrow_table(data: object) -> pa.Table | None:
    """A table of Arrow, or of another library by the Arrow C stream; None for other data.

    Spark frames return None because the driver does not have their rows, and pandas tables because
    they have types of their own.

    Raises
    ------
    SchemaError
        If the stream has values without columns, or a missing row.
    """
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, pa.RecordBatchReader):
        return data.read_all()
    # A series of pandas 3 has a stream of values, and no columns.
    if isinstance(data, (DataFrame, pd.DataFrame, pd.Series)) or not hasattr(
            data, "__arrow_c_stream__"):
        return None
    try:
        return pa.RecordBatchReader.from_stream(data).read_all()
    except pa.ArrowInvalid as error:
        raise SchemaError(
            f"the Arrow stream of a {type(data).__name__} is no table: {error}. Pass a table with "
            "named columns, such as pa.table({'id': values})"
        ) from error


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
        # A Spark frame without columns loses its number of rows in Arrow, so Spark counts them.
        if not struct.names:
            return _table([], pa.schema([]), frame.count())
        return _cast(read_frame(frame), struct, name)
    if isinstance(data, pd.DataFrame):
        columns = _matched(list(map(str, data.columns)), struct, name, spark)
        if not struct.names:
            return _table([], pa.schema([]), len(data))
        try:
            # A copy: Arrow would share numbers with the frame, which its owner may change.
            data = pa.Table.from_pandas(data.copy(), preserve_index=False).select(columns)
        except pa.ArrowException as error:
            raise SchemaError(f"the rows for input {name!r} do not fit: {error}") from error
    table = arrow_table(data)
    if table is not None:
        columns = _matched(table.column_names, struct, name, spark)
        return _cast(table.select(columns), struct, name)
    return _rows_to_table(data, struct, name, spark)


def _coerce_frame(
    frame: DataFrame, struct: T.StructType, name: str, spark: SparkSession, widen: Sequence[str]
) -> DataFrame:
    sources = _matched(frame.columns, struct, name, spark)
    types = {field.name: field.dataType for field in frame.schema.fields}
    wrong = []
    columns = []
    for field, source in zip(struct.fields, sources):
        kind = types[source]
        wanted = column(source)
        if field.name in widen and isinstance(kind, (T.ByteType, T.ShortType, T.IntegerType)):
            columns.append(wanted.cast(field.dataType).alias(field.name))
            continue
        columns.append(wanted if source == field.name else wanted.alias(field.name))
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
    """The name in ``names`` of each column of the schema."""
    if len(names) == len(struct.names) and set(names) == set(struct.names):
        return list(struct.names)
    matches = [meant_by(n, names, spark) for n in struct.names]
    known = {n for some in matches for n in some}
    missing = [n for n, some in zip(struct.names, matches) if not some]
    extra = [n for n in names if n not in known]
    twice = [n for n, some in zip(struct.names, matches) if len(some) > 1]
    if missing or extra or twice:
        faults = [f"missing {', '.join(missing)}"] if missing else []
        faults += [f"unknown {', '.join(extra)}"] if extra else []
        faults += [f"more than once {', '.join(twice)}"] if twice else []
        raise SchemaError(
            f"the columns for input {name!r} do not fit: {'; '.join(faults)}; given "
            f"({', '.join(names)}), expected ({', '.join(struct.names)})"
        )
    return [n for (n,) in matches]


def _cast(table: pa.Table, struct: T.StructType, name: str) -> pa.Table:
    """A table in exactly the Arrow types of the schema, without loss."""
    expected = Schema(struct).arrow()
    arrays = []
    for column_, field, declared in zip(table.columns, expected, struct.fields):
        if column_.type == field.type:
            arrays.append(column_)
            continue
        try:
            if not _is_lossless(column_.type, field.type):
                raise pa.ArrowInvalid(f"it is {column_.type}")
            arrays.append(column_.cast(field.type))
        except pa.ArrowException as error:
            raise SchemaError(
                f"column {field.name!r} for input {name!r} does not fit: expected "
                f"{declared.dataType.simpleString()}, but {error}"
            ) from error
    return _table(arrays, expected, table.num_rows)


def _is_lossless(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether Arrow reports every loss of a cast."""
    if pa.types.is_struct(kind) and pa.types.is_struct(wanted):
        ours, theirs = ([each.field(i) for i in range(each.num_fields)] for each in (kind, wanted))
        types = {field.name: field.type for field in ours}
        return (
            sorted(field.name for field in ours) == sorted(field.name for field in theirs)
            and all(_is_lossless(types[field.name], field.type) for field in theirs)
        )
    if pa.types.is_map(kind) and pa.types.is_map(wanted):
        return (
            _is_lossless(kind.key_type, wanted.key_type)
            and _is_lossless(kind.item_type, wanted.item_type)
        )
    if _is_list(kind) and _is_list(wanted):
        return _is_lossless(kind.value_type, wanted.value_type)
    return (
        kind == wanted
        or pa.types.is_null(kind)
        or (pa.types.is_integer(kind) and pa.types.is_integer(wanted))
        or (pa.types.is_timestamp(kind) and pa.types.is_timestamp(wanted)
            and (kind.tz is None) == (wanted.tz is None))
        or (_is_text(kind) and pa.types.is_string(wanted))
        or (_is_bytes(kind) and pa.types.is_binary(wanted))
        or (pa.types.is_dictionary(kind) and _is_lossless(kind.value_type, wanted))
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
            f"input {name!r} does not take {type(rows).__name__}. It takes a DataFrame, a pyarrow "
            "or pandas table, one of another library by the Arrow C stream, or an iterable of rows"
            + ("; a single row goes into a list" if isinstance(rows, dict) else "")
        )
    expected = Schema(struct).arrow()
    names = struct.names
    records = []
    known: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:  # a user typed these few rows, so each is checked for a good message
        if isinstance(row, dict):
            # A column that a dict lacks is null, as in PySpark's createDataFrame.
            if not row.keys() <= frozenset(names):
                if tuple(row) not in known:
                    known[tuple(row)] = _respelled(list(row), struct, name, spark)
                row = {known[tuple(row)][key]: value for key, value in row.items()}
            row = tuple(row.get(n) for n in names)
        elif isinstance(row, T.Row) and getattr(row, "__fields__", None):
            row = tuple(row[n] for n in _matched(row.__fields__, struct, name, spark))
        if not isinstance(row, (tuple, list)) or len(row) != len(names):
            # A single row in place of an iterable of rows.
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
    return _table(arrays, expected, len(records))


def _respelled(
    keys: Sequence[str], struct: T.StructType, name: str, spark: SparkSession
) -> dict[str, str]:
    """The column of the schema for each key of a dict; a dict may lack columns."""
    meant = {key: meant_by(key, struct.names, spark) for key in keys}
    spelled = {key: columns[0] for key, columns in meant.items() if columns}
    if len(set(spelled.values())) < len(keys):
        _matched(keys, struct, name, spark)  # raises with the names at fault
    return spelled


def _table(arrays: Sequence[pa.Array], schema: pa.Schema, rows: int) -> pa.Table:
    """A table with a number of rows, even if it has no columns."""
    if not arrays:
        return pa.table({"none": pa.nulls(rows)}).select([])
    return pa.Table.from_arrays(arrays, schema=schema)
