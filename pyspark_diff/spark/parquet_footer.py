"""Footers of Parquet files: whether a reader other than Spark reads the same values.

    fallback_reason(file, columns) is None  ⟹  deltalake reads these columns as Spark does

A footer has the names and types of the columns, and Spark's own keys about the calendar of dates.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Mapping

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

#: The key of Spark's version, and the keys of files with dates in the calendar of Spark 2.
VERSION_KEY, LEGACY_KEY = b"org.apache.spark.version", b"org.apache.spark.legacyDateTime"
_LEGACY_INT96_KEY = b"org.apache.spark.legacyINT96"
#: The microseconds that 64 bits of nanoseconds can represent, from 1677 to 2262.
_NANOSECOND_RANGE = -(2**63 // 1000), 2**63 // 1000
#: The result of a footer is kept for as many files.
_FOOTERS_MAX = 20_000


def is_read_as(there: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a column of one type has the values of another one, as Spark reads it.

    Timestamps in nanoseconds, such as those of 96 bits, have not.
    """
    if pa.types.is_timestamp(there) and pa.types.is_timestamp(wanted):
        return there.unit == wanted.unit and (there.tz is None) == (wanted.tz is None)
    if there in (pa.large_string(), pa.string_view()):
        return bool(wanted == pa.string())
    if there in (pa.large_binary(), pa.binary_view()):
        return bool(wanted == pa.binary())
    return bool(there == wanted)


@lru_cache(maxsize=_FOOTERS_MAX)
def fallback_reason(
    path: str, size: int, columns: tuple[tuple[str, pa.DataType], ...]
) -> str | None:
    """Return the reason why Spark has to read some columns of a file; None if there is no reason.

    A file of a Delta table never changes, so each file is examined once.

    Parameters
    ----------
    size : int
        Bytes of the file, by the log of its table.
    columns : tuple of (str, pyarrow.DataType)
        Names and types by the schema of the table.

    Raises
    ------
    OSError or pyarrow.ArrowException
        If the file cannot be read.
    """
    with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as reader:
        schema, footer = reader.schema_arrow, reader.metadata
        leaves = [footer.schema.column(i) for i in range(len(footer.schema))]
        int96 = {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}
        reason = _column_reason(schema, columns, int96) or _calendar_reason(
            footer.metadata or {}, [kind for _, kind in columns], bool(int96)
        )
        examined = sorted(int96.intersection(name for name, _ in columns))
        for group in range(footer.num_row_groups if examined and reason is None else 0):
            table = reader.read_row_group(group, examined, use_threads=False)
            if not all(map(_has_nanoseconds, table.columns)):
                return "a timestamp of 96 bits is outside the years 1677 to 2262"
        return reason


def _column_reason(
    schema: pa.Schema, columns: tuple[tuple[str, pa.DataType], ...], int96: set[str]
) -> str | None:
    lower = [name.lower() for name in schema.names]
    for name, wanted in columns:
        count = lower.count(name.lower())
        if count != schema.names.count(name) or count > 1:
            return f"the names of column {name!r} differ in case between table and file"
        if not count:
            continue  # The file is older than the column, which is null in both readers.
        there = schema.field(name).type
        if name in int96:
            # Spark's own timestamps have a zone, and the footer of an INT96 column has no place
            # for it.
            if not pa.types.is_timestamp(wanted) or wanted.tz is None:
                return f"column {name!r} has timestamps of 96 bits and is {wanted} in the table"
        elif any(path.startswith(f"{name}.") for path in int96):
            return f"column {name!r} has nested timestamps of 96 bits"
        elif not is_read_as(there, wanted):
            return f"column {name!r} is {there} in the file and {wanted} in the table"
    return None


def _calendar_reason(
    keys: Mapping[bytes, bytes], kinds: list[pa.DataType], has_int96: bool
) -> str | None:
    version = keys.get(VERSION_KEY)
    if version is None or not any(map(_has_dates, kinds)):
        return None
    is_legacy = version < b"3.0.0" or LEGACY_KEY in keys
    if has_int96:
        is_legacy = is_legacy or version < b"3.1.0" or _LEGACY_INT96_KEY in keys
    return "dates or timestamps are in the calendar of Spark 2" if is_legacy else None


def _has_dates(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_dates(kind.field(i).type) for i in range(kind.num_fields))
    return pa.types.is_date(kind) or pa.types.is_timestamp(kind)


def _has_nanoseconds(values: pa.ChunkedArray) -> bool:
    """Whether nanoseconds of 64 bits can represent all these timestamps in microseconds."""
    bounds = pc.min_max(values.cast(pa.int64())).as_py()
    if bounds["min"] is None:
        return True
    low, high = _NANOSECOND_RANGE
    return bool(low < bounds["min"] and bounds["max"] < high)
