"""Update rows whose columns are plain numbers, and linear operators on them without any table.

For a stage ``f`` that has a form for numbers, and rows without nulls::

    on_numbers(f)(rows)  =  f.on_table(rows)      or Unfit is raised, and nothing is given

A table of Arrow costs a tenth of a millisecond for each operator however few its rows are; a loop
that has few rows in each of its iterations is over in that time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from pyspark_diff import thresholds
from pyspark_diff.kernels.arrow_expression import Apply, ArrowConstant, ArrowExpression, Field
from pyspark_diff.kernels.consolidate import consolidate_parts
from pyspark_diff.kernels.jit import kernel
from pyspark_diff.kernels.key_index import AT, MOST, PAST
from pyspark_diff.kernels.key_index import DIFF as DIFF_PART
from pyspark_diff.kernels.key_index import TIME as TIME_PART
from pyspark_diff.kernels.key_index import VALUE, large, ordered, summed
from pyspark_diff.kernels.layout import Layout, as_int64, from_int64
from pyspark_diff.kernels.order import by_bits
from pyspark_diff.kernels.updates import Int64, UpdateChunk, joined, one_or_all
from pyspark_diff.operators.contract import Stage
from pyspark_diff.operators.linear import DropNull, Negate, Pick
from pyspark_diff.operators.projection import Compute, Filter
from pyspark_diff.spark.schema import DIFF, TIME, Schema

#: The reason if arithmetic leaves 64 bits. The general operators raise the user's error.
_OVERFLOW = "a number may exceed 64 bits"


class Unfit(Exception):
    """The general operators have to process these rows, for this reason."""


@dataclass(frozen=True)
class Numbers:
    """Update rows as arrays of int64, each as long as the others.

    Parameters
    ----------
    columns : mapping of str to ndarray of int64
        As `pyspark_diff.kernels.layout.as_int64` has them; no value is null.
    """

    columns: Mapping[str, Int64]
    time: Int64
    diff: Int64

    def __len__(self) -> int:
        return int(self.time.size)

    def where(self, which: np.ndarray) -> "Numbers":
        """The rows that a mask, or their numbers, say."""
        columns = {name: values[which] for name, values in self.columns.items()}
        return Numbers(columns, self.time[which], self.diff[which])

    def table(self, schema: Schema, time: pa.DataType) -> pa.Table:
        """The rows as a table of update rows."""
        arrow = schema.arrow()
        arrays = [from_int64(pa.array(self.columns[f.name]), f.type) for f in arrow]
        arrays += [from_int64(pa.array(self.time), time), pa.array(self.diff)]
        fields = [*arrow, pa.field(TIME, time), pa.field(DIFF, pa.int64())]
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def numbers_of(table: pa.Table) -> Numbers:
    """The rows of a table of update rows.

    Raises
    ------
    Unfit
        If a column is not of numbers, or has nulls.
    """
    columns = {name: _number(table[name]) for name in table.column_names}
    return Numbers(columns, columns.pop(TIME), columns.pop(DIFF))


def _number(column: pa.ChunkedArray) -> Int64:
    if column.null_count or not is_number(column.type):
        raise Unfit("a column has nulls, or is not of integers")
    return as_int64(joined([column])).to_numpy()


def is_number(kind: pa.DataType) -> bool:
    """Whether values of a type are told apart, and ordered, by a number of 64 bits."""
    return Layout((kind,)).exact


def together(parts: Iterable[Numbers]) -> list[Numbers]:
    """The same rows in one part, if they are few: each part costs. No part is empty."""
    filled = [part for part in parts if len(part)]
    if len(filled) < 2 or sum(map(len, filled)) > thresholds.current.sort_parts_rows_max:
        return filled
    return [whole(filled)]


def whole(parts: Sequence[Numbers]) -> Numbers:
    """The rows of some parts as one, with the columns that all of them have."""
    if len(parts) == 1:
        return parts[0]
    names = [name for name in parts[0].columns if all(name in part.columns for part in parts)]
    return Numbers(
        {name: np.concatenate([part.columns[name] for part in parts]) for name in names},
        np.concatenate([part.time for part in parts]),
        np.concatenate([part.diff for part in parts]),
    )


#: Keys, values or None where there are none, times and diffs.
Columns = tuple[Int64, "Int64 | None", Int64, Int64]


def added_up(
    parts: Sequence[Columns], least: int = PAST, most: int = MOST
) -> tuple[Int64, Int64, Int64, Int64]:
    """Keys, values, times and diffs of several parts in order, equal updates as one and none that
    cancel. Where there are no values they are zero.

    Parameters
    ----------
    parts : sequence of (ndarray, ndarray or None, ndarray, ndarray)
        Keys, values, times and diffs.
    least, most : int
        Only rows whose keys are in this range are wanted.

    Examples
    --------
    >>> row = np.array([3, 1, 2, 2])
    >>> [part.tolist() for part in added_up([(row, row, row, row)], 2)]
    [[2, 3], [2, 3], [2, 3], [4, 3]]
    """
    rows = sum(keys.size for keys, *_ in parts)
    if not is_table(parts):
        done, sums = _packed(parts, least, most)
        if not done and rows <= thresholds.current.sort_parts_rows_max:
            columns = [np.concatenate(column) for column in zip(*(
                (keys, np.broadcast_to(values, keys.size), times, diffs)
                for keys, values, times, diffs in map(_valued, parts)
            ))]
            done, sums = _small(*columns, least, most)
        if done:
            return sums[0], sums[1], sums[2], sums[3]
    if least > PAST or most < MOST:
        parts = [_in_range(part, least, most) for part in parts]
    updates = consolidate_parts([
        UpdateChunk(keys, None, one_or_all(times), one_or_all(diffs), values)
        for keys, values, times, diffs in parts
    ]).updates
    values = np.zeros(len(updates), np.int64) if updates.val64 is None else updates.val64
    return updates.key64, values, updates.times(), updates.diffs()


def is_table(parts: Sequence[Columns]) -> bool:
    """Whether parts are so many keys without values, at what may be one time, that a table adds
    them up."""
    return (
        sum(keys.size for keys, *_ in parts) >= thresholds.current.partition_rows_min
        and all(
            values is None and (not keys.size or times[0] == times[-1])
            for keys, values, times, _ in parts
        )
    )


def _in_range(part: Columns, least: int, most: int) -> Columns:
    keys, values, times, diffs = part
    inside = np.flatnonzero((keys >= least) & (keys <= most))
    return keys[inside], None if values is None else values[inside], times[inside], diffs[inside]


def _valued(part: Columns) -> tuple[Int64, Int64, Int64, Int64]:
    """The part with values, of which one may stand for all."""
    keys, values, times, diffs = part
    return keys, np.zeros(1, np.int64) if values is None else values, times, diffs


def _packed(parts: Sequence[Columns], least: int, most: int) -> tuple[bool, Int64]:
    """As `added_up`, where each row has room in one number; gives whether it has."""
    valued = list(map(_valued, parts))
    bounds = np.empty((2, 4), np.int64)
    bounds[0], bounds[1] = MOST, PAST
    count = sum(_bounded(*part, least, most, bounds) for part in valued)
    widths = np.zeros(4, np.int64)
    if not _fits(count, bounds, widths):
        return count == 0, np.empty((4, 0), np.int64)
    packed, n = np.empty(count, np.int64), 0
    for part in valued:
        n = _pack(*part, least, most, bounds, widths, packed, n)
    return True, _unpacked(packed, bounds, widths)


_ROWS = "int64[:]!-, int64[:]!-, int64[:]!-, int64[:]!-, int64, int64"


@kernel(f"{_ROWS}, int64[:,:]")
def _bounded(keys, values, times, diffs, least, most, bounds):  # type: ignore[no-untyped-def]
    """How many rows are wanted, and the least and the greatest of each of their columns."""
    count = 0
    each = -(values.size > 1)  # one may stand for all
    for i in range(keys.size):
        if least <= keys[i] <= most:
            count += 1
            row = keys[i], values[i & each], times[i], diffs[i]
            for p in range(4):
                bounds[0, p] = min(bounds[0, p], row[p])
                bounds[1, p] = max(bounds[1, p], row[p])
    return count


@kernel("int64, int64[:,:], int64[:]")
def _fits(count, bounds, widths):  # type: ignore[no-untyped-def]
    """Whether a row has room in one number; and how many bits of it each column takes."""
    if count == 0:
        return False
    for p in range(4):
        reach = np.uint64(bounds[1, p]) - np.uint64(bounds[0, p])
        while widths[p] < 64 and reach >> np.uint64(widths[p]):
            widths[p] += 1
    return widths.sum() <= 63 and not (large(bounds[0, 3]) or large(bounds[1, 3]))


@kernel(f"{_ROWS}, int64[:,:], int64[:], int64[:], int64")
def _pack(  # type: ignore[no-untyped-def]
    keys, values, times, diffs, least, most, bounds, widths, packed, n
):
    """Write the rows that are wanted behind so many others; gives how many there are then."""
    each = -(values.size > 1)
    for i in range(keys.size):
        if least <= keys[i] <= most:
            code = keys[i] - bounds[0, 0]
            code = code << widths[1] | values[i & each] - bounds[0, 1]
            code = code << widths[2] | times[i] - bounds[0, 2]
            packed[n] = code << widths[3] | diffs[i] - bounds[0, 3]
            n += 1
    return n


@kernel("int64[:], int64[:,:], int64[:]")
def _unpacked(packed, bounds, widths):  # type: ignore[no-untyped-def]
    """The rows in order, equal ones as one."""
    for i in range(1, packed.size):
        if packed[i] >> widths[3] < packed[i - 1] >> widths[3]:
            packed = by_bits(packed, widths[3], widths.sum() - widths[3])
            break
    rows = np.empty((4, packed.size), np.int64)
    n = i = 0
    while i < packed.size:
        code = packed[i] >> widths[3]
        total = 0
        while i < packed.size and packed[i] >> widths[3] == code:
            total += (packed[i] - (code << widths[3])) + bounds[0, 3]
            i += 1
        if total != 0:
            for p in range(2, -1, -1):
                rows[p, n] = (code & ((np.int64(1) << widths[p]) - 1)) + bounds[0, p]
                code >>= widths[p]
            rows[3, n] = total
            n += 1
    return rows[:, :n]


@kernel("int64[:]!-, int64[:]!-, int64[:]!-, int64[:]!-, int64, int64")
def _small(keys, values, times, diffs, least, most):  # type: ignore[no-untyped-def]
    events = np.empty((keys.size, 5), np.int64)
    n = 0
    for i in range(keys.size):
        if large(diffs[i]):
            return False, np.empty((4, 0), np.int64)
        if least <= keys[i] <= most:
            events[n, AT] = keys[i]
            events[n, VALUE] = values[i]
            events[n, TIME_PART] = times[i]
            events[n, DIFF_PART] = diffs[i]
            n += 1
    ordered(events, 0, n, AT, VALUE, TIME_PART, np.empty((0, 5), np.int64))
    count = summed(events, 0, n)
    rows = np.empty((4, count), np.int64)
    for i in range(count):
        rows[0, i] = events[i, AT]
        rows[1, i] = events[i, VALUE]
        rows[2, i] = events[i, TIME_PART]
        rows[3, i] = events[i, DIFF_PART]
    return True, rows


OnNumbers = Callable[[Numbers], Numbers]


def on_numbers(stage: Stage) -> OnNumbers | None:
    """A linear operator on numbers; None if it is for tables only."""
    if isinstance(stage, Pick):
        return lambda rows: Numbers(
            {new: rows.columns[old] for old, new in stage.names if old in rows.columns},
            rows.time, rows.diff,
        )
    if isinstance(stage, DropNull):
        return lambda rows: rows  # there are none
    if isinstance(stage, Negate):
        return _negated
    if isinstance(stage, Compute) and all(_known(formula) for _, formula in stage.outputs):
        return lambda rows: Numbers(
            {
                name: _whole(_value(formula, rows), rows) for name, formula in stage.outputs
                if formula.columns <= rows.columns.keys()
            },
            rows.time, rows.diff,
        )
    if isinstance(stage, Filter) and _known(stage.condition):
        return lambda rows: rows.where(_whole(_value(stage.condition, rows), rows) != 0)
    return None


def _negated(rows: Numbers) -> Numbers:
    if (rows.diff == np.iinfo(np.int64).min).any():
        raise Unfit(_OVERFLOW)
    return Numbers(rows.columns, rows.time, -rows.diff)


def _added(a: Int64, b: Int64) -> Int64:
    total = a + b
    if np.any(((a ^ total) & (b ^ total)) < 0):
        raise Unfit(_OVERFLOW)
    return total


def _subtracted(a: Int64, b: Int64) -> Int64:
    difference = a - b
    if np.any(((a ^ b) & (a ^ difference)) < 0):
        raise Unfit(_OVERFLOW)
    return difference


def _multiplied(a: Int64, b: Int64) -> Int64:
    if np.any(np.abs(np.multiply(a, b, dtype=np.float64)) >= 2.0**62):
        raise Unfit(_OVERFLOW)
    return a * b


_FUNCTIONS: Mapping[str, Callable[[Int64, Int64], Int64]] = {
    "+": _added,
    "-": _subtracted,
    "*": _multiplied,
    "==": np.equal,
    "<=>": np.equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "and": np.logical_and,
    "or": np.logical_or,
}


def _known(formula: ArrowExpression) -> bool:
    if isinstance(formula, Field):
        return is_number(formula.kind)
    if isinstance(formula, ArrowConstant):
        return formula.kind == pa.int64() and formula.content is not None
    if not isinstance(formula, Apply) or not all(map(_known, formula.arguments)):
        return False
    kinds = [argument.kind for argument in formula.arguments]
    if formula.function in ("+", "-", "*"):
        return kinds == [pa.int64(), pa.int64()]
    if formula.function in ("and", "or"):
        return kinds == [pa.bool_(), pa.bool_()]
    return formula.function in _FUNCTIONS and len(kinds) == 2 and kinds[0] == kinds[1]


def _value(formula: ArrowExpression, rows: Numbers) -> Int64:
    if isinstance(formula, Field):
        return rows.columns[formula.name]
    if isinstance(formula, ArrowConstant):
        return np.int64(formula.content)  # type: ignore[arg-type]
    first, second = (_value(argument, rows) for argument in formula.arguments)
    return _FUNCTIONS[formula.function](first, second)


def _whole(value: Int64, rows: Numbers) -> Int64:
    """A value for each row, as a number."""
    return np.broadcast_to(np.asarray(value, np.int64), len(rows))
