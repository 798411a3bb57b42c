"""Rows of Parquet files that are read where they are wanted, without the JVM.

    parquet_scan(frame) is not None  ⟹  its rows are those of the frame, in any order

Floats are in normal form (`pyspark_diff.spark.normal_form`).

What Spark hands to Python passes through its rows, which takes ten times as long as reading the
same columns here. So it is done where the plan of a frame is nothing but columns and conditions
over files (`pyspark_diff.spark.parquet_plan`), these are as Spark listed them, and what the files
say of their columns leaves no doubt that both read the same. Anything else is read by Spark.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Callable, Iterator, Mapping, NamedTuple, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from pyspark_diff.errors import SourceError
from pyspark_diff.expressions.compiled import CompiledExpression, compiled
from pyspark_diff.expressions.tree import planned_tree
from pyspark_diff.fallbacks import PYARROW, fall_back
from pyspark_diff.kernels.arrow_expression import Apply, ArrowExpression, Constant, Field, column_of
from pyspark_diff.kernels.equality import normal_table
from pyspark_diff.runners.threads import side_by_side
from pyspark_diff.spark.parquet_footer import LEGACY_KEY, VERSION_KEY, is_read_as
from pyspark_diff.spark.parquet_plan import Declined, ParquetPlan, ScannedFile, parquet_plan
from pyspark_diff.spark.schema import arrow_type, without_nullability

#: So many rows are made at once.
ROWS = 1 << 20
#: More files than this are left to Spark, whose tasks read what they say of themselves.
FILES = 10_000
#: So many threads read what files say of themselves.
_THREADS = 8
#: Types that both read alike.
_TYPES: tuple[T.DataType, ...] = (
    T.BooleanType(), T.ByteType(), T.ShortType(), T.IntegerType(), T.LongType(), T.FloatType(),
    T.DoubleType(), T.StringType(), T.BinaryType(), T.DateType(), T.TimestampType(),
    T.TimestampNTZType(),
)
_CODECS = frozenset({"UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD"})
#: Before the first days on which calendars agree, and the first microseconds for which zones do:
#: the Gregorian calendar, and the year 1900.
_AGREED: dict[T.DataType, int] = {
    T.DateType(): -141_427,
    **dict.fromkeys((T.TimestampType(), T.TimestampNTZType()), -2_208_988_800_000_000),
}


#: Whether a number within bounds may be equal to another one, or less, and so on.
_MAY_HOLD: dict[str, Callable[["Bounds", int], bool]] = {
    "==": lambda known, n: known.first <= n <= known.last,
    "<": lambda known, n: known.first < n,
    "<=": lambda known, n: known.first <= n,
    ">": lambda known, n: known.last > n,
    ">=": lambda known, n: known.last >= n,
}
_TURNED = {"==": "==", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


class Group(NamedTuple):
    """A row group of a file, and the bytes of the columns that are looked at."""

    file: ScannedFile
    number: int
    rows: int
    size: int


class Bounds(NamedTuple):
    """What files say of a column: its values lie between these, and so many are null."""

    first: int
    last: int
    nulls: int


@dataclass(frozen=True)
class ParquetScan:
    """Rows of Parquet files. Travels to the executors.

    Parameters
    ----------
    groups : tuple of Group
    types : tuple of (str, pyarrow.DataType)
        Columns of the files, as they are looked at.
    outputs : tuple of (str, ArrowExpression)
        Names and values of the columns.
    condition : ArrowExpression or None
        Rows for which it is not true are left out.
    bounds : tuple of (str, Bounds)
        Of columns of whole numbers, dates and timestamps, if all files tell.
    """

    groups: tuple[Group, ...]
    types: tuple[tuple[str, pa.DataType], ...]
    outputs: tuple[tuple[str, ArrowExpression], ...]
    condition: ArrowExpression | None = None
    bounds: tuple[tuple[str, Bounds], ...] = ()

    @property
    def rows(self) -> int:
        """How many rows the files have, those that are left out among them."""
        return sum(group.rows for group in self.groups)

    @property
    def size(self) -> int:
        """About how many bytes the columns have that are looked at."""
        return sum(group.size for group in self.groups)

    def only(self, names: Sequence[str]) -> ParquetScan:
        """The same with some of the columns, in this order."""
        outputs = dict(self.outputs)
        return replace(self, outputs=tuple((name, outputs[name]) for name in names))

    def with_columns(self, **values: ArrowExpression) -> ParquetScan:
        """The same with other values for some columns, or more columns."""
        return replace(self, outputs=tuple({**dict(self.outputs), **values}.items()))

    def renamed(self, names: Sequence[str]) -> ParquetScan:
        """The same columns under other names."""
        values = (value for _, value in self.outputs)
        return replace(self, outputs=tuple(zip(names, values)))

    def bounds_of(self, name: str) -> Bounds | None:
        """Between which numbers the values of a column lie, if the files tell of all their rows.

        Not of rows that a condition may leave out.
        """
        value = dict(self.outputs)[name]
        while isinstance(value, Apply) and value.function == "cast":
            (value,) = value.arguments
        if isinstance(value, Constant) and isinstance(value.content, int):
            return Bounds(value.content, value.content, 0)
        if self.condition is not None or not isinstance(value, Field):
            return None
        return dict(self.bounds).get(value.name)

    def shared(self, shares: int) -> list[ParquetScan]:
        """The same in several parts of about as many rows, for as many tasks."""
        left, done = self.rows, 0
        found: list[list[Group]] = [[] for _ in range(shares)]
        for group in self.groups:
            found[min(shares - 1, shares * (done + group.rows // 2) // max(left, 1))].append(group)
            done += group.rows
        return [replace(self, groups=tuple(part)) for part in found if part] or [self]

    def pieces(self) -> list[ParquetScan]:
        """The same in parts that have about `ROWS` rows, or more in one row group."""
        found: list[list[Group]] = []
        rows = ROWS
        for group in self.groups:
            if rows + group.rows > ROWS:
                found.append([])
                rows = 0
            found[-1].append(group)
            rows += group.rows
        return [replace(self, groups=tuple(part)) for part in found]

    def check(self) -> None:
        """See that all files are still those that Spark listed.

        Raises
        ------
        SourceError
        """
        for file in dict.fromkeys(group.file for group in self.groups):
            if not _is_same(file):
                raise _changed(file)

    def tables(self) -> Iterator[pa.Table]:
        """The rows, up to `ROWS` at once.

        Raises
        ------
        SourceError
            If a file is not what it was when Spark listed it.
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
                    yield self._made(table)
            except (OSError, pa.ArrowException) as error:
                raise _changed(file) from error
            if not _is_same(file):
                raise _changed(file)

    def _made(self, table: pa.Table) -> pa.Table:
        if self.condition is not None:
            table = table.filter(column_of(self.condition, table))
        outputs = {name: column_of(value, table) for name, value in self.outputs}
        return normal_table(pa.table(outputs))


def parquet_scan(frame: DataFrame) -> ParquetScan | None:
    """The rows of a frame as they can be read without Spark; None if Spark has to be asked.

    Nothing is run. The footers of the files are read. If Spark has to read Parquet files, that is a
    fallback of the path "pyarrow".
    """
    try:
        plan = parquet_plan(frame)
        return None if plan is None else _scan(plan, frame.schema)
    except Declined as declined:
        fall_back("input", PYARROW, str(declined))
        return None


def _scan(plan: ParquetPlan, struct: T.StructType) -> ParquetScan:
    if len(plan.files) > FILES:
        raise Declined(f"the frame has more than {FILES:,} files")
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
    threads = min(_THREADS, len(plan.files))
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
    found = [_compiled(plan, text) for text in plan.outputs]
    outputs = []
    for field, one in zip(struct.fields, found, strict=True):
        if one is None or one.kind != without_nullability(field.dataType):
            raise Declined(f"the expression of column {field.name} is not compiled")
        outputs.append((field.name, one.formula))
    return tuple(outputs)


def _compiled(plan: ParquetPlan, text: str) -> CompiledExpression | None:
    exact = set(plan.struct.names)
    lower = {name.lower(): name for name in plan.struct.names}

    def named(name: str) -> str | None:
        if name in exact:
            return name
        return lower.get(name.lower()) if len(lower) == len(exact) else None

    tree = planned_tree(text, named)
    # What may fail for a row would fail in words of its own.
    return None if tree is None else compiled(tree, plan.struct, ansi=False)


def _is_known(kind: T.DataType) -> bool:
    return kind in _TYPES or isinstance(kind, T.DecimalType)


class _End(NamedTuple):
    """What the end of a file says."""

    groups: tuple[Group, ...]
    bounds: dict[str, Bounds]


def _end(
    file: ScannedFile, fields: Sequence[T.StructField], condition: ArrowExpression | None
) -> _End:
    """The footer of a file, for some columns."""
    try:
        if not _is_same(file):
            raise Declined(f"the file {file.path} has changed after Spark listed it")
        return _told(file, pq.read_metadata(file.path), fields, condition)
    except (OSError, pa.ArrowException) as error:  # Spark reports the fault
        raise Declined(f"pyarrow cannot read {file.path}: {error}") from error


def _told(
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
    # As Spark compares them.
    today = keys.get(VERSION_KEY, b"") >= b"3.0.0" and LEGACY_KEY not in keys
    groups, bounds = [], []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        found: dict[str, Bounds] = {}
        size = 0
        for field in fields:
            column = group.column(leaves[field.name])
            size += column.total_uncompressed_size
            if column.compression not in _CODECS:
                raise Declined(f"the file {file.path} has the codec {column.compression}")
            told = _bounds(column)
            if told is not None and _is_number(field.dataType):
                found[field.name] = told
            agreed = _AGREED.get(field.dataType)
            if agreed is not None and not today and (told is None or told.first < agreed):
                raise Declined(f"column {field.name} may have dates of the old calendar")
        if group.num_rows and _may_hold(condition, found):
            groups.append(Group(file, number, group.num_rows, size))
            bounds.append(found)
    return _End(tuple(groups), dict(_joined(bounds)))


def _may_hold(condition: ArrowExpression | None, bounds: Mapping[str, Bounds]) -> bool:
    """Whether there may be rows for which a condition is true, where columns lie within bounds."""
    if not isinstance(condition, Apply):
        return True
    if condition.function in ("and", "or"):
        parts = [_may_hold(part, bounds) for part in condition.arguments]
        return all(parts) if condition.function == "and" else any(parts)
    if condition.function not in _MAY_HOLD or len(condition.arguments) != 2:
        return True
    value, other = condition.arguments
    name = condition.function
    if isinstance(value, Constant):
        value, other, name = other, value, _TURNED[name]
    if not isinstance(value, Field) or not isinstance(other, Constant):
        return True
    known, content = bounds.get(value.name), other.content
    if known is None or not isinstance(content, int) or isinstance(content, bool):
        return True
    return _MAY_HOLD[name](known, content)


def _is_number(kind: T.DataType) -> bool:
    return isinstance(kind, (T.IntegralType, T.DateType, T.TimestampType, T.TimestampNTZType))


def _bounds(column: pq.ColumnChunkMetaData) -> Bounds | None:
    told = column.statistics
    if told is None or not told.has_null_count or not told.has_min_max:
        return None
    low, high = told.min_raw, told.max_raw
    return Bounds(low, high, told.null_count) if isinstance(low, int) else None


def _joined(parts: Sequence[dict[str, Bounds]]) -> Iterator[tuple[str, Bounds]]:
    """The bounds of those columns that all parts tell of."""
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
            ROWS, [group.number for group in groups], list(kinds), use_threads=False
        ):
            columns = [batch.column(name) for name in kinds]
            yield pa.table({
                name: column if column.type == kind else column.cast(kind)
                for column, (name, kind) in zip(columns, kinds.items())
            })


def _is_same(file: ScannedFile) -> bool:
    try:
        found = os.stat(file.path)
    except OSError:
        return False
    return (found.st_size, found.st_mtime_ns // 1_000_000) == (file.size, file.modified)


def _changed(file: ScannedFile) -> SourceError:
    return SourceError(
        f"the file {file.path} is not what it was when Spark listed it, or cannot be read here; "
        "nothing was taken. Make the frame anew, so that Spark lists its files again"
    )
