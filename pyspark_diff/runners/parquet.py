"""Rows of Parquet files, read by the process that needs them, without the JVM.

    parquet_scan(frame) is not None  ⟹  its rows are those of the frame, in any order

Floats are in normal form (`pyspark_diff.spark.normal_form`).

Spark converts columns to rows before it sends them to Python, which takes ten times as long as a
read by pyarrow. The scan requires a plan of only columns and conditions over files
(`pyspark_diff.spark.parquet_plan`), and unchanged files since Spark listed them. The metadata of
the files must prove that both read the same values. Otherwise Spark reads the frame.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Callable, Iterator, Mapping, NamedTuple, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from pyspark_diff import thresholds
from pyspark_diff.errors import SourceError
from pyspark_diff.expressions.compiled import CompiledExpression, compiled
from pyspark_diff.expressions.tree import planned_tree
from pyspark_diff.fallbacks import PYARROW, fall_back
from pyspark_diff.kernels.arrow_expression import (
    Apply,
    ArrowConstant,
    ArrowExpression,
    Field,
    column_of,
)
from pyspark_diff.kernels.equality import normal_table
from pyspark_diff.runners.threads import side_by_side
from pyspark_diff.spark.data_types import arrow_type, without_nullability
from pyspark_diff.spark.parquet_footer import LEGACY_KEY, VERSION_KEY, is_read_as
from pyspark_diff.spark.parquet_plan import Declined, ParquetPlan, ScannedFile, parquet_plan

#: Types whose values Spark and pyarrow read alike.
_TYPES: tuple[T.DataType, ...] = (
    T.BooleanType(), T.ByteType(), T.ShortType(), T.IntegerType(), T.LongType(), T.FloatType(),
    T.DoubleType(), T.StringType(), T.BinaryType(), T.DateType(), T.TimestampType(),
    T.TimestampNTZType(),
)
_CODECS = frozenset({"UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD"})
#: The first days on which calendars agree (the Gregorian calendar), and the first microseconds for
#: which time zones agree (the year 1900).
_AGREED: dict[T.DataType, int] = {
    T.DateType(): -141_427,
    **dict.fromkeys((T.TimestampType(), T.TimestampNTZType()), -2_208_988_800_000_000),
}


#: Whether a number within bounds may equal a constant, be less, and so on.
_MAY_HOLD: dict[str, Callable[["Bounds", int], bool]] = {
    "==": lambda known, n: known.first <= n <= known.last,
    "<": lambda known, n: known.first < n,
    "<=": lambda known, n: known.first <= n,
    ">": lambda known, n: known.last > n,
    ">=": lambda known, n: known.last >= n,
}
_TURNED = {"==": "==", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


class Group(NamedTuple):
    """A row group of a file, and the bytes of its needed columns."""

    file: ScannedFile
    number: int
    rows: int
    size: int


class Bounds(NamedTuple):
    """Statistics of a column in files: least value, greatest value and number of nulls."""

    first: int
    last: int
    nulls: int


@dataclass(frozen=True)
class ParquetScan:
    """Rows of Parquet files. Travels to the executors.

    Parameters
    ----------
    types : tuple of (str, pyarrow.DataType)
        Columns of the files, with the types of the read.
    outputs : tuple of (str, ArrowExpression)
        Names and values of the columns.
    condition : ArrowExpression or None
        The scan omits rows for which it is not true.
    bounds : tuple of (str, Bounds)
        Bounds of columns of whole numbers, dates and timestamps, if all files have statistics.
    """

    groups: tuple[Group, ...]
    types: tuple[tuple[str, pa.DataType], ...]
    outputs: tuple[tuple[str, ArrowExpression], ...]
    condition: ArrowExpression | None = None
    bounds: tuple[tuple[str, Bounds], ...] = ()

    @property
    def rows(self) -> int:
        """Number of rows of the files, including rows that the condition omits."""
        return sum(group.rows for group in self.groups)

    @property
    def size(self) -> int:
        """Estimated number of bytes of the needed columns."""
        return sum(group.size for group in self.groups)

    def only(self, names: Sequence[str]) -> ParquetScan:
        """The scan with some of the columns, in this order."""
        outputs = dict(self.outputs)
        return replace(self, outputs=tuple((name, outputs[name]) for name in names))

    def with_columns(self, **values: ArrowExpression) -> ParquetScan:
        """The scan with other values for some columns, or more columns."""
        return replace(self, outputs=tuple({**dict(self.outputs), **values}.items()))

    def renamed(self, names: Sequence[str]) -> ParquetScan:
        """The same columns under other names."""
        values = (value for _, value in self.outputs)
        return replace(self, outputs=tuple(zip(names, values)))

    def bounds_of(self, name: str) -> Bounds | None:
        """Bounds of the values of a column, if the files have statistics for all their rows.

        None with a condition, since it may omit rows.
        """
        value = dict(self.outputs)[name]
        while isinstance(value, Apply) and value.function == "cast":
            (value,) = value.arguments
        if isinstance(value, ArrowConstant) and isinstance(value.content, int):
            return Bounds(value.content, value.content, 0)
        if self.condition is not None or not isinstance(value, Field):
            return None
        return dict(self.bounds).get(value.name)

    def shared(self, shares: int) -> list[ParquetScan]:
        """The scan in several parts with similar numbers of rows, one for each task."""
        left, done = self.rows, 0
        parts: list[list[Group]] = [[] for _ in range(shares)]
        for group in self.groups:
            parts[min(shares - 1, shares * (done + group.rows // 2) // max(left, 1))].append(group)
            done += group.rows
        return [replace(self, groups=tuple(part)) for part in parts if part] or [self]

    def pieces(self) -> list[ParquetScan]:
        """The scan in parts that have about `parquet_table_rows` rows, or one larger row group."""
        parts: list[list[Group]] = []
        rows = most = thresholds.current.parquet_table_rows
        for group in self.groups:
            if rows + group.rows > most:
                parts.append([])
                rows = 0
            parts[-1].append(group)
            rows += group.rows
        return [replace(self, groups=tuple(part)) for part in parts]

    def check(self) -> None:
        """Check that no file has changed since Spark listed it.

        Raises
        ------
        SourceError
        """
        for file in dict.fromkeys(group.file for group in self.groups):
            if not _is_same(file):
                raise _changed(file)

    def tables(self) -> Iterator[pa.Table]:
        """The rows, in tables of up to `parquet_table_rows` rows.

        Raises
        ------
        SourceError
            If a file has changed since Spark listed it.
        """
        needed = self.condition.columns if self.condition is not None else frozenset[str]()
        needed = needed.union(*[value.columns for _, value in self.outputs])
        kinds = {name: kind for name, kind in self.types if name in needed}
        by_file: dict[ScannedFile, list[Group]] = {}
        for group in self.groups:
            by_file.setdefault(group.file, []).append(group)
        for file, groups in by_file.items():
            try:
                for table in _read(file.path, groups, kinds):
                    yield self._evaluated(table)
            except (OSError, pa.ArrowException) as error:
                raise _changed(file) from error
            if not _is_same(file):
                raise _changed(file)

    def _evaluated(self, table: pa.Table) -> pa.Table:
        if self.condition is not None:
            table = table.filter(column_of(self.condition, table))
        outputs = {name: column_of(value, table) for name, value in self.outputs}
        return normal_table(pa.table(outputs))


def parquet_scan(frame: DataFrame) -> ParquetScan | None:
    """A scan without Spark of the rows of a frame; None if Spark must read them.

    The function reads the footers of the files, and runs no job. If Spark must read Parquet files,
    it counts a fallback of the path "pyarrow".
    """
    try:
        plan = parquet_plan(frame)
        return None if plan is None else _scan(plan, frame.schema)
    except Declined as declined:
        fall_back("input", PYARROW, str(declined))
        return None


def _scan(plan: ParquetPlan, struct: T.StructType) -> ParquetScan:
    most = thresholds.current.parquet_files_max
    if len(plan.files) > most:
        raise Declined(f"the frame has more than {most:,} files")
    outputs = _outputs(plan, struct)
    condition = None
    if plan.condition is not None:
        compiled_condition = _compiled(plan, plan.condition)
        if compiled_condition is None or compiled_condition.kind != T.BooleanType():
            raise Declined("the condition is not compiled")
        condition = compiled_condition.formula
    scan = ParquetScan((), (), outputs, condition)
    needed = frozenset[str]().union(*[value.columns for _, value in outputs])
    needed |= condition.columns if condition is not None else frozenset()
    fields = [field for field in plan.struct.fields if field.name in needed]
    for field in fields:
        if not _is_known(field.dataType):
            raise Declined(f"column {field.name} has the type {field.dataType.simpleString()}")
    threads = min(thresholds.current.parquet_footer_threads_max, len(plan.files))
    ends = list(side_by_side(lambda file: _end(file, fields, condition), plan.files, threads))
    return replace(
        scan,
        groups=tuple(group for end in ends for group in end.groups),
        types=tuple((field.name, arrow_type(field.dataType)) for field in fields),
        bounds=tuple(_joined([end.bounds for end in ends])),
    )


def _outputs(
    plan: ParquetPlan, struct: T.StructType
) -> tuple[tuple[str, ArrowExpression], ...]:
    """The columns of a frame as formulas."""
    if plan.outputs is None:
        if struct.names != plan.struct.names:
            raise Declined("the columns of the frame have other names than those of the files")
        return tuple((f.name, Field(f.name, arrow_type(f.dataType))) for f in struct.fields)
    expressions = [_compiled(plan, text) for text in plan.outputs]
    outputs = []
    for field, expression in zip(struct.fields, expressions, strict=True):
        if expression is None or expression.kind != without_nullability(field.dataType):
            raise Declined(f"the expression of column {field.name} is not compiled")
        outputs.append((field.name, expression.formula))
    return tuple(outputs)


def _compiled(plan: ParquetPlan, text: str) -> CompiledExpression | None:
    exact = set(plan.struct.names)
    lower = {name.lower(): name for name in plan.struct.names}

    def named(name: str) -> str | None:
        if name in exact:
            return name
        return lower.get(name.lower()) if len(lower) == len(exact) else None

    tree = planned_tree(text, named)
    # Without ANSI mode no compiled expression raises an error that Spark words differently.
    return None if tree is None else compiled(tree, plan.struct, ansi=False)


def _is_known(kind: T.DataType) -> bool:
    return kind in _TYPES or isinstance(kind, T.DecimalType)


class _End(NamedTuple):
    """The contents of a footer that a scan needs."""

    groups: tuple[Group, ...]
    bounds: dict[str, Bounds]


def _end(
    file: ScannedFile, fields: Sequence[T.StructField], condition: ArrowExpression | None
) -> _End:
    """The footer of a file, for some columns."""
    try:
        if not _is_same(file):
            raise Declined(f"the file {file.path} has changed after Spark listed it")
        return _parsed(file, pq.read_metadata(file.path), fields, condition)
    except (OSError, pa.ArrowException) as error:  # Spark reports the fault
        raise Declined(f"pyarrow cannot read {file.path}: {error}") from error


def _parsed(
    file: ScannedFile, metadata: pq.FileMetaData, fields: Sequence[T.StructField],
    condition: ArrowExpression | None,
) -> _End:
    leaves = {metadata.schema.column(i).path: i for i in range(len(metadata.schema))}
    schema = metadata.schema.to_arrow_schema()
    lower = [name.lower() for name in schema.names]
    for field in fields:
        name, kind = field.name, arrow_type(field.dataType)
        if "." in name or name not in leaves or lower.count(name.lower()) > 1:
            raise Declined(f"the file {file.path} has no single column {name}")
        if not is_read_as(schema.field(name).type, kind):
            raise Declined(
                f"column {name} has the type {schema.field(name).type} in {file.path}"
            )
    keys = metadata.metadata or {}
    # Spark compares versions as text, too.
    today = keys.get(VERSION_KEY, b"") >= b"3.0.0" and LEGACY_KEY not in keys
    groups, bounds = [], []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        known: dict[str, Bounds] = {}
        size = 0
        for field in fields:
            column = group.column(leaves[field.name])
            size += column.total_uncompressed_size
            if column.compression not in _CODECS:
                raise Declined(f"the file {file.path} has the codec {column.compression}")
            limits = _bounds(column)
            if limits is not None and _is_number(field.dataType):
                known[field.name] = limits
            agreed = _AGREED.get(field.dataType)
            if agreed is not None and not today and (limits is None or limits.first < agreed):
                raise Declined(f"column {field.name} may have dates of the old calendar")
        if group.num_rows and _may_hold(condition, known):
            groups.append(Group(file, number, group.num_rows, size))
            bounds.append(known)
    return _End(tuple(groups), dict(_joined(bounds)))


def _may_hold(condition: ArrowExpression | None, bounds: Mapping[str, Bounds]) -> bool:
    """Whether a condition may be true for rows whose columns lie within bounds."""
    if not isinstance(condition, Apply):
        return True
    if condition.function in ("and", "or"):
        parts = [_may_hold(part, bounds) for part in condition.arguments]
        return all(parts) if condition.function == "and" else any(parts)
    if condition.function not in _MAY_HOLD or len(condition.arguments) != 2:
        return True
    value, other = condition.arguments
    name = condition.function
    if isinstance(value, ArrowConstant):
        value, other, name = other, value, _TURNED[name]
    if not isinstance(value, Field) or not isinstance(other, ArrowConstant):
        return True
    known, content = bounds.get(value.name), other.content
    if known is None or not isinstance(content, int) or isinstance(content, bool):
        return True
    return _MAY_HOLD[name](known, content)


def _is_number(kind: T.DataType) -> bool:
    return isinstance(kind, (T.IntegralType, T.DateType, T.TimestampType, T.TimestampNTZType))


def _bounds(column: pq.ColumnChunkMetaData) -> Bounds | None:
    statistics = column.statistics
    if statistics is None or not statistics.has_null_count or not statistics.has_min_max:
        return None
    low, high = statistics.min_raw, statistics.max_raw
    return Bounds(low, high, statistics.null_count) if isinstance(low, int) else None


def _joined(parts: Sequence[dict[str, Bounds]]) -> Iterator[tuple[str, Bounds]]:
    """The bounds of the columns that have bounds in all parts."""
    for name in parts[0] if parts else ():
        if all(name in part for part in parts):
            firsts, lasts, nulls = zip(*(part[name] for part in parts))
            yield name, Bounds(min(firsts), max(lasts), sum(nulls))


def _read(
    path: str, groups: Sequence[Group], kinds: dict[str, pa.DataType]
) -> Iterator[pa.Table]:
    """Row groups of a file, in some types."""
    if not kinds:
        for group in groups:
            yield pa.table({"none": pa.nulls(group.rows)})
        return
    with pq.ParquetFile(path) as reader:
        for batch in reader.iter_batches(
            thresholds.current.parquet_table_rows, [group.number for group in groups], list(kinds),
            use_threads=False,
        ):
            columns = [batch.column(name) for name in kinds]
            yield pa.table({
                name: column if column.type == kind else column.cast(kind)
                for column, (name, kind) in zip(columns, kinds.items())
            })


def _is_same(file: ScannedFile) -> bool:
    try:
        status = os.stat(file.path)
    except OSError:
        return False
    return (status.st_size, status.st_mtime_ns // 1_000_000) == (file.size, file.modified)


def _changed(file: ScannedFile) -> SourceError:
    return SourceError(
        f"the file {file.path} is not what it was when Spark listed it, or cannot be read here; "
        "nothing was taken. Make the frame anew, so that Spark lists its files again"
    )
