"""The functions of windows: the rows that each reads from a row, and its results for rows.

    result = f(the row, among the rows of its frame)

`pyspark_diff.kernels.windows` selects the evaluated rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Callable, NamedTuple, Sequence

import numpy as np
import pyarrow as pa

from pyspark_diff.kernels import ranking, window_frames
from pyspark_diff.kernels import window_replay as segment
from pyspark_diff.kernels.accumulators import Accumulator, layout_of, tally
from pyspark_diff.kernels.candidates import expand
from pyspark_diff.kernels.diff_vectors import check as check_vectors
from pyspark_diff.kernels.results import GroupSums, Result
from pyspark_diff.kernels.updates import Int64
from pyspark_diff.kernels.window_reach import FROM_HERE, UP_TO_HERE, Reach, WindowFrame
from pyspark_diff.kernels.window_rows import WindowRows


class CandidateRanges(NamedTuple):
    """Ranges of each candidate that do not depend on counts: the candidates that a change of it
    affects, and the candidates that are read from it."""

    changed_low: Int64
    changed_high: Int64
    seen_low: Int64
    seen_high: Int64


class Evaluated:
    """Segments on which functions are evaluated.

    Parameters
    ----------
    entries, segments : ndarray of int64
        Of `pyspark_diff.kernels.window_replay`.
    column : callable
        A column of the candidates by its name.
    ranges : dict of WindowFrame to (ndarray of int64, ndarray of int64)
        The candidates in the frame of each candidate.
    reach : Reach
        The reach of the segments.
    """

    def __init__(
        self, rows: WindowRows, entries: Int64, segments: Int64, column: Callable[[str], pa.Array],
        ranges: dict[WindowFrame, tuple[Int64, Int64]], reach: Reach,
    ):
        self.rows, self.entries, self.segments, self.column = rows, entries, segments, column
        self.reach = reach
        #: The picks for one column, which are the same for other columns.
        self.picked: dict[tuple[str, WindowFrame, str | None], Int64] = {}
        self.at, self.segment_of = window_frames.emitted(segments)
        self._ranges = ranges

    @cached_property
    def candidates(self) -> Int64:
        """The candidate of each entry in a region."""
        return self.entries[self.at, 0]

    @cached_property
    def places(self) -> tuple[Int64, Int64, Int64]:
        """See `window_frames.places`, for the entries in regions."""
        parts = window_frames.places(self.entries, self.segments, self.rows.tie)
        return tuple(part[self.at] for part in parts)  # type: ignore[return-value]

    @cached_property
    def totals(self) -> Int64:
        """The number of rows in the partition of each entry."""
        return self.segments[self.segment_of, segment.TOTAL]

    def has_valid(self, function: Function) -> bool:
        """Whether the segments contain the rows with a value that a function searches."""
        return bool(self.reach.valid) and function.reach.valid == self.reach.valid

    def frames(self, frame: WindowFrame) -> tuple[Int64, Int64]:
        """The entries in the frame of each entry."""
        start = self.segments[self.segment_of, segment.START]
        stop = self.segments[self.segment_of, segment.STOP]
        if frame.low is None and frame.high is None:
            return start, stop
        if not frame.rows:
            return window_frames.frames_of(self.entries, self.segments, *self._ranges[frame])
        low = start if frame.low is None else np.clip(self.at + int(frame.low), start, stop)
        high = stop if frame.high is None else np.clip(self.at + int(frame.high) + 1, start, stop)
        return low, np.maximum(low, high)


@dataclass(frozen=True)
class Function(ABC):
    """A function of a row among the rows of its partition.

    Parameters
    ----------
    kind : pyarrow.DataType
        Type of the result.
    """

    kind: pa.DataType

    @property
    @abstractmethod
    def reach(self) -> Reach:
        """The rows that it reads."""

    @property
    def frames(self) -> tuple[WindowFrame, ...]:
        """Its frame, if it has one."""
        return ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads."""
        return ()

    @property
    def distinguishes_ties(self) -> bool:
        """Whether its results may differ for tied rows."""
        return True

    def prepare(self, rows: WindowRows, column: Callable[[str], pa.Array]) -> Any:
        """The state that it needs for each candidate while a partition is replayed."""
        return None

    @abstractmethod
    def evaluate(self, evaluated: Evaluated, state: Any) -> pa.Array:
        """The results of all entries in regions."""


#: Functions that depend only on the place of a row.
PLACES = ("row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile")


@dataclass(frozen=True)
class PlaceFunction(Function):
    """A function of the place of a row.

    Parameters
    ----------
    name : str
        One of `PLACES`.
    parts : int
        For ``ntile``, the number of parts.
    """

    name: str
    parts: int = 0

    @property
    def reach(self) -> Reach:
        if self.name == "row_number":
            return Reach(counted=True, expand=True)
        if self.name == "rank":
            return Reach(counted=True, ties=True)
        if self.name == "dense_rank":
            return Reach(to_end=True, ties=True, initial=True)
        return Reach(to_end=True, to_start=True, ties=True, expand=self.name == "ntile")

    @property
    def distinguishes_ties(self) -> bool:
        return self.name in ("row_number", "ntile")

    def prepare(self, rows: WindowRows, column: Callable[[str], pa.Array]) -> Any:
        return np.zeros(len(rows), np.int64) if self.name == "dense_rank" else None

    def evaluate(self, evaluated: Evaluated, state: Any) -> pa.Array:
        return pa.array(self._numbers(evaluated, state)).cast(self.kind)

    def _numbers(self, evaluated: Evaluated, state: Any) -> np.ndarray:
        if self.name == "dense_rank":
            rows = evaluated.rows
            ranks = window_frames.dense_ranks(
                evaluated.entries, evaluated.segments, rows.tie, state
            )
            return ranks[evaluated.at]
        own, low, high = evaluated.places
        if self.name == "row_number":
            return own + 1
        if self.name == "rank":
            return low + 1
        total = evaluated.totals
        if self.name == "cume_dist":
            return high / total
        if self.name == "percent_rank":
            return np.where(total > 1, low / np.maximum(total - 1, 1), 0.0)
        size, more = total // self.parts, total % self.parts
        large = more * (size + 1)
        return 1 + np.where(
            own < large, own // (size + 1), more + (own - large) // np.maximum(size, 1)
        )


@dataclass(frozen=True)
class Offset(Function):
    """A column of the row at a distance, or a default.

    Parameters
    ----------
    rows : int
        Distance in rows; negative before the row.
    default : object
    """

    column: str
    rows: int
    default: Any

    @property
    def reach(self) -> Reach:
        return Reach(preceding=max(-self.rows, 0), following=max(self.rows, 0), expand=True)

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def evaluate(self, evaluated: Evaluated, state: Any) -> pa.Array:
        there = evaluated.at + self.rows
        inside = (there >= evaluated.segments[evaluated.segment_of, segment.START]) & (
            there < evaluated.segments[evaluated.segment_of, segment.STOP]
        )
        rows = np.full(there.size, -1)
        rows[inside] = evaluated.entries[there[inside], 0]
        return _rows_or_default(evaluated.column(self.column), rows, self.default).cast(self.kind)


#: The functions that pick a row of a frame, and the kind of each pick.
PICKED = {
    "first": window_frames.FIRST_OF,
    "last": window_frames.LAST_OF,
    "min": window_frames.LEAST_OF,
    "max": window_frames.GREATEST_OF,
}


@dataclass(frozen=True)
class Picked(Function):
    """A column of one of the rows in the frame; null if there is none.

    Parameters
    ----------
    name : str
        One of `PICKED`.
    valid : str or None
        A column: rows with a null in it are skipped.
    """

    name: str
    column: str
    frame: WindowFrame
    valid: str | None = None

    @property
    def frames(self) -> tuple[WindowFrame, ...]:
        return (self.frame,)

    @property
    def reach(self) -> Reach:
        if self.valid and self.name == "last" and self.frame in UP_TO_HERE:
            return Reach(ties=not self.frame.rows, valid_preceding=1, valid=(self.valid,))
        if self.valid and self.name == "first" and self.frame in FROM_HERE:
            return Reach(ties=not self.frame.rows, valid_following=1, valid=(self.valid,))
        return self.frame.reach

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,) if self.valid is None else (self.column, self.valid)

    @property
    def distinguishes_ties(self) -> bool:
        return self.frame.rows or self.name in ("first", "last")

    def prepare(self, rows: WindowRows, column: Callable[[str], pa.Array]) -> Any:
        valid, code = np.ones(len(rows), np.bool_), np.zeros(len(rows), np.int64)
        if self.valid is not None:
            valid = validity(column(self.valid))
        if self.name in ("min", "max"):
            code = ranking.codes([column(self.column)], ((False, False),))
        size = len(rows) if self.frame.running else 0
        return valid, code, np.full(size, -1)

    def evaluate(self, evaluated: Evaluated, state: Any) -> pa.Array:
        same = (self.name, self.frame, self.valid)
        if self.name in ("min", "max") or same not in evaluated.picked:
            low, high = evaluated.frames(self.frame)
            valid, code, record = state
            evaluated.picked[same] = window_frames.picked(
                evaluated.entries, evaluated.segments, low, high, valid, code,
                PICKED[self.name],
                self.frame.running and not evaluated.has_valid(self), record,
            )
        column = evaluated.column(self.column)
        return _rows_or_default(column, evaluated.picked[same], None).cast(self.kind)


#: All rows before the row itself, and all rows after it.
_BEFORE, _AFTER = WindowFrame(True, None, -1), WindowFrame(True, 1, None)


@dataclass(frozen=True)
class Nth(Function):
    """A column of the row with a number in the frame, or a default.

    Parameters
    ----------
    number : int
        From 1 on, or from the end from -1 on.
    valid : str or None
        A column: rows with a null in it are skipped.
    default : object
    """

    column: str
    number: int
    frame: WindowFrame
    valid: str | None = None
    default: Any = None

    @property
    def frames(self) -> tuple[WindowFrame, ...]:
        return (self.frame,)

    @property
    def _running(self) -> bool:
        return self.frame.running and self.number >= -1

    @property
    def reach(self) -> Reach:
        if self.valid and (self.frame, self.number < 0) == (_BEFORE, True):
            return Reach(expand=True, valid_preceding=-self.number, valid=(self.valid,))
        if self.valid and (self.frame, self.number > 0) == (_AFTER, True):
            return Reach(expand=True, valid_following=self.number, valid=(self.valid,))
        return self.frame.reach if self._running else self.frame.whole_reach

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,) if self.valid is None else (self.column, self.valid)

    def prepare(self, rows: WindowRows, column: Callable[[str], pa.Array]) -> Any:
        valid = np.ones(len(rows), np.bool_)
        if self.valid is not None:
            valid = validity(column(self.valid))
        return valid, np.zeros((len(rows) if self._running else 0, 2), np.int64)

    def evaluate(self, evaluated: Evaluated, state: Any) -> pa.Array:
        low, high = evaluated.frames(self.frame)
        valid, record = state
        picked = window_frames.nth(
            evaluated.entries, evaluated.segments, low, high, valid, self.number,
            self._running and not evaluated.has_valid(self), record,
        )
        return _rows_or_default(evaluated.column(self.column), picked, self.default).cast(self.kind)


@dataclass(frozen=True)
class Listed(Function):
    """The values of a column in the rows of the frame, without nulls."""

    column: str
    frame: WindowFrame

    @property
    def frames(self) -> tuple[WindowFrame, ...]:
        return (self.frame,)

    @property
    def reach(self) -> Reach:
        return self.frame.whole_reach

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def prepare(self, rows: WindowRows, column: Callable[[str], pa.Array]) -> Any:
        return validity(column(self.column))

    def evaluate(self, evaluated: Evaluated, state: Any) -> pa.Array:
        low, high = evaluated.frames(self.frame)
        frame, entry = expand(low, high - low)
        candidate = evaluated.entries[entry, 0]
        times = np.where(state[candidate], evaluated.entries[entry, 1], 0)
        ends = np.concatenate(([0], np.cumsum(times)))
        first = np.searchsorted(frame, np.arange(low.size + 1))
        values = evaluated.column(self.column).take(pa.array(np.repeat(candidate, times)))
        return pa.LargeListArray.from_arrays(pa.array(ends[first]), values).cast(self.kind)


@dataclass(frozen=True)
class Summed(Function):
    """A function of sums over the rows in the frame.

    Parameters
    ----------
    column : str or None
        The first column of the result.
    """

    column: str | None
    result: Result
    frame: WindowFrame

    @property
    def frames(self) -> tuple[WindowFrame, ...]:
        return (self.frame,)

    @property
    def reach(self) -> Reach:
        return self.frame.reach

    @property
    def columns(self) -> tuple[str, ...]:
        return () if self.column is None else (self.column,)

    @property
    def distinguishes_ties(self) -> bool:
        # In another order sums of doubles may differ.
        return self.frame.rows or any(part.paired for part in self.result.accumulators)

    def prepare(self, rows: WindowRows, column: Callable[[str], pa.Array]) -> Any:
        accumulators = self.result.accumulators
        values = [column(name) for name in self.columns]
        each = np.arange(len(rows))
        units = tally(accumulators, values, each, each.size, 1)
        return units, units.zeros(len(rows) if self.frame.running else 0)

    def evaluate(self, evaluated: Evaluated, state: Any) -> pa.Array:
        low, high = evaluated.frames(self.frame)
        units, record = state
        out = units.zeros(low.size)
        check_vectors(window_frames.summed(
            evaluated.entries, evaluated.segments, low, high, units.values, units.reals,
            units.roles(),
            self.frame.running, record.values, record.reals, out.values, out.reals,
        ))
        accumulators = self.result.accumulators
        return self.result.evaluate(GroupSums(out, _starts(accumulators))).cast(self.kind)


@dataclass(frozen=True)
class SummedPairs(Summed):
    """A function of sums over pairs of two columns, possibly the same column twice.

    Parameters
    ----------
    other : str
        The second column of the result.
    """

    other: str

    @property
    def columns(self) -> tuple[str, ...]:
        return (*super().columns, self.other)


def _starts(accumulators: Sequence[Accumulator]) -> dict[Accumulator, int]:
    return dict(zip(accumulators, layout_of(accumulators)[0]))


def _rows_or_default(column: pa.Array, rows: Int64, default: Any) -> pa.Array:
    """Some rows of a column, with the default for negative row numbers."""
    missing = rows < 0
    if not missing.any():
        return column.take(pa.array(rows))
    if default is None:
        return column.take(pa.array(rows, mask=missing))
    both = pa.concat_arrays([column, pa.array([default], column.type)])
    return both.take(pa.array(np.where(missing, len(column), rows)))


def validity(column: pa.Array) -> np.ndarray:
    """Whether each value of a column is not null."""
    if not column.null_count:
        return np.ones(len(column), np.bool_)
    return column.is_valid().to_numpy(zero_copy_only=False)
