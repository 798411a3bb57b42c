"""The functions of windows: what each looks at from a row, and its results over evaluated rows.

    result = f(the row, among the rows of its frame)

`pyspark_diff.kernels.windows` says which rows are evaluated.
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
from pyspark_diff.kernels.results import Result, Sums
from pyspark_diff.kernels.updates import Int64
from pyspark_diff.kernels.window_reach import FROM_HERE, UP_TO_HERE, Frame, Reach
from pyspark_diff.kernels.window_rows import Rows


class Near(NamedTuple):
    """What is known of each candidate whatever the counts: the ones that a change of it matters to,
    and the ones that are looked at from it."""

    changed_low: Int64
    changed_high: Int64
    seen_low: Int64
    seen_high: Int64


class Evaluated:
    """Segments that functions are evaluated on.

    Parameters
    ----------
    rows : Rows
    entries, segments : ndarray of int64
        Of `pyspark_diff.kernels.window_replay`.
    column : callable
        A column of the candidates by its name.
    ranges : dict of Frame to (ndarray of int64, ndarray of int64)
        The candidates in the frame of each candidate.
    reach : Reach
        What is seen in segments.
    """

    def __init__(
        self, rows: Rows, entries: Int64, segments: Int64, column: Callable[[str], pa.Array],
        ranges: dict[Frame, tuple[Int64, Int64]], reach: Reach,
    ):
        self.rows, self.entries, self.segments, self.column = rows, entries, segments, column
        self.reach = reach
        #: What was picked for one column, which is the same for others.
        self.picked: dict[tuple[str, Frame, str | None], Int64] = {}
        self.at, self.of = window_frames.emitted(segments)
        self._ranges = ranges

    @cached_property
    def candidates(self) -> Int64:
        """The candidate of each entry in a region."""
        return self.entries[self.at, 0]

    @cached_property
    def places(self) -> tuple[Int64, Int64, Int64]:
        """See `window_frames.places`, of the entries in regions."""
        found = window_frames.places(self.entries, self.segments, self.rows.tie)
        return tuple(part[self.at] for part in found)  # type: ignore[return-value]

    @cached_property
    def totals(self) -> Int64:
        """How many rows there are in the partition of each."""
        return self.segments[self.of, segment.TOTAL]

    def has_valid(self, function: Function) -> bool:
        """Whether the rows with a value that a function looks for are in the segments."""
        return bool(self.reach.valid) and function.reach.valid == self.reach.valid

    def frames(self, frame: Frame) -> tuple[Int64, Int64]:
        """The entries in the frame of each."""
        start = self.segments[self.of, segment.START]
        stop = self.segments[self.of, segment.STOP]
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
        """What it looks at."""

    @property
    def frames(self) -> tuple[Frame, ...]:
        """Its frame, if it has one."""
        return ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it looks at."""
        return ()

    @property
    def telling(self) -> bool:
        """Whether it can tell apart rows that tie."""
        return True

    def held(self, rows: Rows, column: Callable[[str], pa.Array]) -> Any:
        """What it keeps of each candidate while a partition is replayed."""
        return None

    @abstractmethod
    def of(self, seen: Evaluated, held: Any) -> pa.Array:
        """The results of all entries in regions."""


#: Functions of the place of a row alone.
PLACES = ("row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile")


@dataclass(frozen=True)
class Place(Function):
    """A function of the place of a row.

    Parameters
    ----------
    name : str
        One of `PLACES`.
    parts : int
        For ``ntile``, how many.
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
            return Reach(to_end=True, ties=True, standing=True)
        return Reach(to_end=True, to_start=True, ties=True, expand=self.name == "ntile")

    @property
    def telling(self) -> bool:
        return self.name in ("row_number", "ntile")

    def held(self, rows: Rows, column: Callable[[str], pa.Array]) -> Any:
        return np.zeros(len(rows), np.int64) if self.name == "dense_rank" else None

    def of(self, seen: Evaluated, held: Any) -> pa.Array:
        return pa.array(self._numbers(seen, held)).cast(self.kind)

    def _numbers(self, seen: Evaluated, held: Any) -> np.ndarray:
        if self.name == "dense_rank":
            rows = seen.rows
            return window_frames.dense_ranks(seen.entries, seen.segments, rows.tie, held)[seen.at]
        own, low, high = seen.places
        if self.name == "row_number":
            return own + 1
        if self.name == "rank":
            return low + 1
        total = seen.totals
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
    """A column of the row that stands so many rows further, or a default.

    Parameters
    ----------
    column : str
    rows : int
        Negative before it.
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

    def of(self, seen: Evaluated, held: Any) -> pa.Array:
        there = seen.at + self.rows
        inside = (there >= seen.segments[seen.of, segment.START]) & (
            there < seen.segments[seen.of, segment.STOP]
        )
        found = np.full(there.size, -1)
        found[inside] = seen.entries[there[inside], 0]
        return _taken(seen.column(self.column), found, self.default).cast(self.kind)


#: What may be picked of a frame, and how.
PICKED = {
    "first": window_frames.FIRST_OF,
    "last": window_frames.LAST_OF,
    "min": window_frames.LEAST_OF,
    "max": window_frames.GREATEST_OF,
}


@dataclass(frozen=True)
class Picked(Function):
    """A column of one of the rows in the frame; null where there is none.

    Parameters
    ----------
    name : str
        One of `PICKED`.
    column : str
    frame : Frame
    valid : str or None
        A column: the rows where it is null are passed over.
    """

    name: str
    column: str
    frame: Frame
    valid: str | None = None

    @property
    def frames(self) -> tuple[Frame, ...]:
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
    def telling(self) -> bool:
        return self.frame.rows or self.name in ("first", "last")

    def held(self, rows: Rows, column: Callable[[str], pa.Array]) -> Any:
        valid, code = np.ones(len(rows), np.bool_), np.zeros(len(rows), np.int64)
        if self.valid is not None:
            valid = validity(column(self.valid))
        if self.name in ("min", "max"):
            code = ranking.codes([column(self.column)], ((False, False),))
        kept = len(rows) if self.frame.running else 0
        return valid, code, np.full(kept, -1)

    def of(self, seen: Evaluated, held: Any) -> pa.Array:
        same = (self.name, self.frame, self.valid)
        if self.name in ("min", "max") or same not in seen.picked:
            low, high = seen.frames(self.frame)
            valid, code, kept = held
            seen.picked[same] = window_frames.picked(
                seen.entries, seen.segments, low, high, valid, code, PICKED[self.name],
                self.frame.running and not seen.has_valid(self), kept,
            )
        return _taken(seen.column(self.column), seen.picked[same], None).cast(self.kind)


#: All rows before the row itself, and all behind it.
_BEFORE, _BEHIND = Frame(True, None, -1), Frame(True, 1, None)


@dataclass(frozen=True)
class Nth(Function):
    """A column of the row of a number in the frame, or a default.

    Parameters
    ----------
    column : str
    number : int
        From 1 on, or from the end from -1 on.
    frame : Frame
    valid : str or None
        A column: the rows where it is null are passed over.
    default : object
    """

    column: str
    number: int
    frame: Frame
    valid: str | None = None
    default: Any = None

    @property
    def frames(self) -> tuple[Frame, ...]:
        return (self.frame,)

    @property
    def _running(self) -> bool:
        return self.frame.running and self.number >= -1

    @property
    def reach(self) -> Reach:
        if self.valid and (self.frame, self.number < 0) == (_BEFORE, True):
            return Reach(expand=True, valid_preceding=-self.number, valid=(self.valid,))
        if self.valid and (self.frame, self.number > 0) == (_BEHIND, True):
            return Reach(expand=True, valid_following=self.number, valid=(self.valid,))
        return self.frame.reach if self._running else self.frame.whole_reach

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,) if self.valid is None else (self.column, self.valid)

    def held(self, rows: Rows, column: Callable[[str], pa.Array]) -> Any:
        valid = np.ones(len(rows), np.bool_)
        if self.valid is not None:
            valid = validity(column(self.valid))
        return valid, np.zeros((len(rows) if self._running else 0, 2), np.int64)

    def of(self, seen: Evaluated, held: Any) -> pa.Array:
        low, high = seen.frames(self.frame)
        valid, kept = held
        found = window_frames.nth(
            seen.entries, seen.segments, low, high, valid, self.number,
            self._running and not seen.has_valid(self), kept,
        )
        return _taken(seen.column(self.column), found, self.default).cast(self.kind)


@dataclass(frozen=True)
class Listed(Function):
    """The values of a column in the rows of the frame, those that are not null.

    Parameters
    ----------
    column : str
    frame : Frame
    """

    column: str
    frame: Frame

    @property
    def frames(self) -> tuple[Frame, ...]:
        return (self.frame,)

    @property
    def reach(self) -> Reach:
        return self.frame.whole_reach

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def held(self, rows: Rows, column: Callable[[str], pa.Array]) -> Any:
        return validity(column(self.column))

    def of(self, seen: Evaluated, held: Any) -> pa.Array:
        low, high = seen.frames(self.frame)
        frame, entry = expand(low, high - low)
        candidate = seen.entries[entry, 0]
        times = np.where(held[candidate], seen.entries[entry, 1], 0)
        ends = np.concatenate(([0], np.cumsum(times)))
        first = np.searchsorted(frame, np.arange(low.size + 1))
        values = seen.column(self.column).take(pa.array(np.repeat(candidate, times)))
        return pa.LargeListArray.from_arrays(pa.array(ends[first]), values).cast(self.kind)


@dataclass(frozen=True)
class Summed(Function):
    """What is made of sums over the rows in the frame.

    Parameters
    ----------
    column : str or None
        The column that the result calls its first.
    result : Result
    frame : Frame
    """

    column: str | None
    result: Result
    frame: Frame

    @property
    def frames(self) -> tuple[Frame, ...]:
        return (self.frame,)

    @property
    def reach(self) -> Reach:
        return self.frame.reach

    @property
    def columns(self) -> tuple[str, ...]:
        return () if self.column is None else (self.column,)

    @property
    def telling(self) -> bool:
        # In another order sums of doubles may be others.
        return self.frame.rows or any(one.paired for one in self.result.accumulators)

    def held(self, rows: Rows, column: Callable[[str], pa.Array]) -> Any:
        held = self.result.accumulators
        values = [column(name) for name in self.columns]
        each = np.arange(len(rows))
        units = tally(held, values, each, each.size, 1)
        return units, units.zeros(len(rows) if self.frame.running else 0)

    def of(self, seen: Evaluated, held: Any) -> pa.Array:
        low, high = seen.frames(self.frame)
        units, kept = held
        out = units.zeros(low.size)
        check_vectors(window_frames.summed(
            seen.entries, seen.segments, low, high, units.values, units.reals, units.roles(),
            self.frame.running, kept.values, kept.reals, out.values, out.reals,
        ))
        held_of = self.result.accumulators
        return self.result.of(Sums(out, _starts(held_of))).cast(self.kind)


@dataclass(frozen=True)
class SummedPairs(Summed):
    """The same of the pairs of two columns, which may be one.

    Parameters
    ----------
    other : str
        The column that the result calls its second.
    """

    other: str

    @property
    def columns(self) -> tuple[str, ...]:
        return (*super().columns, self.other)


def _starts(accumulators: Sequence[Accumulator]) -> dict[Accumulator, int]:
    return dict(zip(accumulators, layout_of(accumulators)[0]))


def _taken(column: pa.Array, rows: Int64, default: Any) -> pa.Array:
    """Some rows of a column, with the default where the number of one is negative."""
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
