"""Frames of windows, and the reach of a change.

    a row changes by a change of another one  ⟹  it lies in the reach of that one

so that the evaluated part, and the part of a partition that must be known, follow the change.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from typing import Sequence

import numpy as np

from pyspark_diff.kernels.updates import Int64


@dataclass(frozen=True)
class Reach:
    """The rows that functions read from a row, and so the rows that a change of a row affects.

    Parameters
    ----------
    preceding, following : int
        Number of rows before it and after it.
    to_end : bool
        Whether a change affects all rows after it.
    to_start : bool
        Whether it affects all rows before it.
    counted : bool
        Whether it affects the rows after it while their number differs.
    ties : bool
        Whether tied rows are read together.
    expand : bool
        Whether equal rows may have different results.
    initial : bool
        Whether the initial state of a whole partition has to be read.
    valid_preceding, valid_following : int
        Number of rows before it and after it with a value that is not null. A change of a
        row with a value affects the rows up to the one at this distance, counted in such
        rows.
    valid : tuple of str
        The columns of these values.
    """

    preceding: int = 0
    following: int = 0
    to_end: bool = False
    to_start: bool = False
    counted: bool = False
    ties: bool = False
    expand: bool = False
    initial: bool = False
    valid_preceding: int = 0
    valid_following: int = 0
    valid: tuple[str, ...] = ()

    @property
    def near(self) -> int | None:
        """Number of rows on either side that are read, or more if some have no value, or tie, or
        are in distances; None if all are read."""
        if self.to_end or self.to_start or self.counted or self.initial:
            return None
        return self.preceding + self.following + self.valid_preceding + self.valid_following

    @classmethod
    def of_all(cls, several: Sequence[Reach]) -> Reach:
        """The reach of several functions together."""
        valid = tuple(dict.fromkeys(name for part in several for name in part.valid))
        # For one column there is a tree. For several, the whole initial state has to be read, and
        # the whole partition unless all frames are running frames with stored results.
        running = len(valid) > 1
        whole = running and any(
            part.valid_following or part.valid_preceding > 1 for part in several
        )
        back, ahead = (
            0 if running else max((getattr(part, name) for part in several), default=0)
            for name in ("valid_preceding", "valid_following")
        )
        return cls(
            max((part.preceding for part in several), default=0),
            max((part.following for part in several), default=0),
            running or any(part.to_end for part in several),
            whole or any(part.to_start for part in several),
            any(part.counted for part in several),
            any(part.ties for part in several),
            any(part.expand for part in several),
            running or any(part.initial for part in several),
            back,
            ahead,
            () if running else valid,
        )

    def packed(self) -> Int64:
        """The argument of `window_replay.replay`."""
        return np.array([int(bool(value)) if isinstance(value, tuple) else int(value)
                         for value in astuple(self)], np.int64)


@dataclass(frozen=True)
class WindowFrame:
    """The rows around a row that are the input of a function.

    Parameters
    ----------
        Whether limits count rows; else they are distances in the only column of the order.
    low, high : int, float or None
        Relative to the row, negative before it; None for no limit. A distance of zero includes tied
        rows, also for several columns, or columns that are not numbers.
        that tie, also where there are several columns, or others than numbers.
    """

    rows: bool
    low: int | float | None
    high: int | float | None

    @property
    def running(self) -> bool:
        """Whether it begins with its partition, and ends before the end of that."""
        return self.low is None and self.high is not None

    @property
    def reach(self) -> Reach:
        """The rows that a function of the frame reads."""
        to_end, to_start = self.low is None, self.high is None
        if not self.rows:
            # The limits of each candidate are known, except for frames without a limit.
            return Reach(
                to_end=to_end, to_start=to_start, ties=True, initial=self.running,
            )
        before = [-limit for limit in (self.low, self.high) if limit is not None]
        after = [limit for limit in (self.low, self.high) if limit is not None]
        return Reach(
            preceding=int(max([0, *before])), following=int(max([0, *after])), to_end=to_end,
            to_start=to_start, expand=not (to_end and to_start), initial=self.running,
        )

    @property
    def whole_reach(self) -> Reach:
        """The reach of a function without stored results: a frame that begins with its partition
        reads all of it."""
        if not self.running:
            return self.reach
        return replace(self.reach, to_end=True, to_start=True, initial=False)


#: The rows of a partition up to the row itself, and up to those that tie with it.
UP_TO_HERE = (WindowFrame(True, None, 0), WindowFrame(False, None, 0))

#: The rows from the row itself on, and from those that tie with it.
FROM_HERE = (WindowFrame(True, 0, None), WindowFrame(False, 0, None))
