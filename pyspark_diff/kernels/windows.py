"""Functions of the rows of ordered partitions, maintained: the changes of each row's results.

For the input ``I``, every key and every time ``t``, with the rows of the key in the order of their
values, each repeated by its count::

    accumulate(windows(I, f), t)  =  { (row, f(the row, among the rows at t)) }

A step reads the rows of the keys that it touches, or only the rows around the touched ones, as far
as its functions reach. `pyspark_diff.kernels.window_replay` selects the evaluated rows.
"""

from __future__ import annotations

from typing import Callable, Iterator, NamedTuple, Sequence

import numpy as np
import pyarrow as pa

from pyspark_diff import thresholds
from pyspark_diff.kernels import buffers, ranking, window_frames
from pyspark_diff.kernels import window_replay as segment
from pyspark_diff.kernels.candidates import check
from pyspark_diff.kernels.equality import rows_equal
from pyspark_diff.kernels.updates import Int64
from pyspark_diff.kernels.window_functions import CandidateRanges, Evaluated, Function, validity
from pyspark_diff.kernels.window_reach import Reach, WindowFrame
from pyspark_diff.kernels.window_rows import WindowRows

_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
#: The maximal count of a row in sums, so that they have room.
_LARGE = 1 << 31


class NegativeCountError(Exception):
    """A row has a negative count: ``candidate``, ``time`` and ``count`` describe it."""

    def __init__(self, candidate: int, time: int, count: int):
        super().__init__(candidate, time, count)
        self.candidate, self.time, self.count = candidate, time, count


class Changed(NamedTuple):
    """Changes of results: the candidate, time, diff and results of each change."""

    candidate: Int64
    time: Int64
    diff: Int64
    results: list[pa.Array]


def windows(
    rows: WindowRows,
    functions: Sequence[Function],
    column: Callable[[str], pa.Array],
    order: tuple[str, bool] | None,
    open_from: int | None = None,
) -> Iterator[Changed]:
    """The changes of the results of functions, in pieces.

    Parameters
    ----------
    column : callable
        A column of the candidates by its name.
    order : tuple of (str, bool), or None
        The first column of the order, and whether it is descending.
    open_from : int, optional
        From this time on a row with a negative count is treated as absent, since its missing
        insertions may still arrive.

    Raises
    ------
    NegativeCountError
        If a row has a negative count.
    """
    if (rows.base < 0).any():
        wrong = int(np.flatnonzero(rows.base < 0)[0])
        raise NegativeCountError(wrong, int(rows.time[0]), int(rows.base[wrong]))
    reach = Reach.of_all([function.reach for function in functions])
    ranges = _ranges_of(rows, functions, column, order)
    near = _near(rows, reach, functions, ranges)
    states = [function.prepare(rows, column) for function in functions]
    diff = rows.diff if open_from is None else _none_owed(rows, open_from)
    was, now = rows.base, rows.base.copy()
    tree_was = segment.tree_of(rows.bounds, was)
    valid = np.empty(0, np.bool_)
    if reach.valid:
        valid = validity(column(reach.valid[0]))
    valid_was = segment.tree_of(rows.bounds, was * valid) if valid.size else was[:0]
    trees = (tree_was, tree_was.copy(), valid, valid_was, valid_was.copy())
    progress = np.array([0, -1, 0], np.int64)
    packed, status = reach.packed(), segment.MORE
    while status == segment.MORE:
        status, entries, segments = segment.replay(
            rows.bounds, was, now, *trees, rows.tie_low, rows.tie_high, *near,
            rows.starts, rows.cand, rows.time, diff, packed, progress,
            thresholds.current.window_entries_max,
        )
        check(status != segment.OVERFLOW)
        if status == segment.NEGATIVE:
            raise NegativeCountError(*map(int, progress))
        evaluated = Evaluated(rows, entries, segments, column, ranges, reach)
        results = [
            function.evaluate(evaluated, state) for function, state in zip(functions, states)
        ]
        yield _differences(evaluated, results)


def _none_owed(rows: WindowRows, since: int) -> Int64:
    """The diffs of events, changed so that no count is negative from a time on."""
    order = np.argsort(rows.cand, kind="stable")  # the events of each stay in the order of time
    cand, diff = rows.cand[order], rows.diff[order]
    base = rows.base[cand]
    if np.abs(diff.astype(np.float64)).sum() + np.abs(base).max(initial=0) >= 2.0**62:
        return rows.diff  # `replay` checks the sums
    begins = np.diff(cand, prepend=-1) != 0
    total = np.cumsum(diff)
    count = total - (total - diff)[np.maximum.accumulate(np.where(
        begins, np.arange(cand.size), 0))] + base
    count = np.where(rows.time[order] >= since, np.maximum(count, 0), count)
    result = np.empty_like(diff)
    result[order] = count - np.where(begins, base, np.roll(count, 1))
    return result


def read_range(
    rows: WindowRows, functions: Sequence[Function], column: Callable[[str], pa.Array],
    order: tuple[str, bool] | None,
) -> tuple[Int64, Int64]:
    """The first and the last candidate that functions read if each touched candidate changes, for
    any presence of the touched candidates. If its partition has too few, one beyond these.

    Parameters
    ----------
    rows, functions, column, order
        As in `windows`.
    """
    reach = Reach.of_all([function.reach for function in functions])
    near = _near(rows, reach, functions, _ranges_of(rows, functions, column, order))
    touched = np.flatnonzero(rows.touched)
    partition = np.searchsorted(rows.bounds, touched, side="right") - 1
    begin, end = rows.bounds[partition], rows.bounds[partition + 1]
    counts = np.where(rows.touched, 0, np.minimum(np.maximum(rows.base, 0), _LARGE))
    valid = validity(column(reach.valid[0])) if reach.valid else np.zeros(len(rows), np.bool_)
    of_all, of_valid = (np.append(0, np.cumsum(part)) for part in (counts, counts * valid))
    low, high = near.changed_low[touched], near.changed_high[touched]
    low = np.minimum(low, _before(of_all, touched, reach.following, begin))
    high = np.maximum(high, _after(of_all, touched, reach.preceding, end))
    low, high = (np.where(valid[touched], wider, bound) for wider, bound in (
        (np.minimum(low, _before(of_valid, touched, reach.valid_following, begin)), low),
        (np.maximum(high, _after(of_valid, touched, reach.valid_preceding, end)), high),
    ))
    few, many = low < begin, high >= end
    low, high = np.maximum(low, begin), np.minimum(high, end - 1)
    first = np.minimum.reduce([
        near.seen_low[low], _before(of_all, low, reach.preceding, begin),
        _before(of_valid, low, reach.valid_preceding, begin),
    ])
    last = np.maximum.reduce([
        near.seen_high[high], _after(of_all, high, reach.following, end),
        _after(of_valid, high, reach.valid_following, end),
    ])
    few, many = few | (first < begin), many | (last >= end)
    first, last = np.maximum(first, begin), np.minimum(last, end - 1)
    if reach.ties:
        first, last = rows.tie_low[first], rows.tie_high[last]
    return np.where(few, begin - 1, first), np.where(many, end, last)


def _before(sums: Int64, at: Int64, rows: int, begin: Int64) -> Int64:
    """The candidates ``rows`` rows before others, or the last one of the partition before."""
    if not rows:
        return at
    row = sums[at] - rows
    return np.where(row < sums[begin], begin - 1, np.searchsorted(sums, row, side="right") - 1)


def _after(sums: Int64, at: Int64, rows: int, end: Int64) -> Int64:
    """The candidates ``rows`` rows after others, or the first one of the next partition."""
    if not rows:
        return at
    row = sums[at + 1] + rows - 1
    return np.where(row >= sums[end], end, np.searchsorted(sums, row, side="right") - 1)


def _differences(evaluated: Evaluated, results: list[pa.Array]) -> Changed:
    """The results without those that are equal before and after a change."""
    pairs, gone, come = window_frames.pairs_of(evaluated.entries, evaluated.segments)
    before, after = pairs.T
    same = rows_equal(results, before, after)
    count = evaluated.entries[evaluated.at, 1]
    change = count[after] - count[before]
    other, more = ~same, same & (change != 0)
    parts = [
        (gone, -count[gone]), (before[other], -count[before[other]]), (come, count[come]),
        (after[other], count[after[other]]), (after[more], change[more]),
    ]
    at, diff = (np.concatenate(part) for part in zip(*parts))
    index = pa.array(at)
    return Changed(
        evaluated.candidates[at], evaluated.segments[evaluated.segment_of[at], segment.TIME], diff,
        [result.take(index) for result in results],
    )


def _near(
    rows: WindowRows, reach: Reach, functions: Sequence[Function],
    ranges: dict[WindowFrame, tuple[Int64, Int64]],
) -> CandidateRanges:
    """Ranges of each candidate that do not depend on counts."""
    each = np.arange(len(rows))
    changed_low = changed_high = seen_low = seen_high = each
    if reach.ties:
        # A change of a row's count, or of a sum with ties, affects tied rows.
        changed_low, changed_high = rows.tie_low, rows.tie_high
    # A frame with a search for a value is not read as a whole.
    read = {frame for function in functions for frame in function.frames
            if not (reach.valid and function.reach.valid)}
    for frame, (first, last) in ranges.items():
        if frame not in read:
            continue
        low, high = window_frames.changed_by(rows.bounds, first, last)
        changed_low, changed_high = np.minimum(changed_low, low), np.maximum(changed_high, high)
        seen_high = np.maximum(seen_high, last)
        # For a running frame the results before any candidate are stored.
        seen_low = np.minimum(seen_low, last + 1 if frame.running else first)
    return CandidateRanges(changed_low, changed_high, seen_low, seen_high)


def _ranges_of(
    rows: WindowRows, functions: Sequence[Function], column: Callable[[str], pa.Array],
    order: tuple[str, bool] | None,
) -> dict[WindowFrame, tuple[Int64, Int64]]:
    """The candidates in each frame of distances."""
    return {
        frame: _ranges(rows, frame, column, order)
        for function in functions for frame in function.frames if not frame.rows
    }


def _ranges(
    rows: WindowRows, frame: WindowFrame, column: Callable[[str], pa.Array],
    order: tuple[str, bool] | None,
) -> tuple[Int64, Int64]:
    """The candidates in the frame of each candidate: the first and the last. The last is before the
    first if there are none."""
    counts = np.diff(rows.bounds)
    first = np.repeat(rows.bounds[:-1], counts)
    last = np.repeat(rows.bounds[1:] - 1, counts)
    distant = [limit for limit in (frame.low, frame.high) if limit]
    if distant:
        assert order is not None  # distances are in the column of an order
        name, down = order
        values = column(name)
        valid = validity(values)
        code, low_code, high_code = _codes(values, down, frame.low or 0, frame.high or 0)
        low, high = window_frames.range_frames(rows.bounds, code, valid, low_code, high_code)
        low, high = np.where(valid, low, rows.tie_low), np.where(valid, high, rows.tie_high)
    if frame.low is not None:
        first = low if frame.low else rows.tie_low
    if frame.high is not None:
        last = high if frame.high else rows.tie_high
    return np.ascontiguousarray(first), np.ascontiguousarray(last)


def _codes(
    values: pa.Array, down: bool, low: int | float, high: int | float
) -> tuple[Int64, Int64, Int64]:
    """Numbers in their order, and the limits around each; those of nulls are arbitrary."""
    kind = values.type
    if pa.types.is_floating(kind):
        plain = buffers.fixed(values)
        moved = [plain + plain.dtype.type(-by if down else by) for by in (0, low, high)]
        codes = [ranking.float_codes(pa.array(part)) for part in moved]
        return tuple(~part if down else part for part in codes)  # type: ignore[return-value]
    if pa.types.is_decimal(kind):
        plain = buffers.decimal_words(values)[:, 0].copy()
        low, high = (round(by * 10**kind.scale) for by in (low, high))
    else:
        plain = buffers.fixed(values).astype(np.int64)
    plain = ~plain if down else plain
    return plain, _moved(plain, int(low)), _moved(plain, int(high))


def _moved(numbers: Int64, by: int) -> Int64:
    """Numbers plus ``by``, limited to 64 bits."""
    if by >= 0:
        return np.where(numbers > _MOST - by, _MOST, numbers + by)
    return np.where(numbers < _LEAST - by, _LEAST, numbers + by)
