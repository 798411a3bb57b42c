"""Frames of windows, and how far a change reaches by them.

    a row changes by a change of another one  ⟹  it lies within the reach of that one

so that what is evaluated again, and what has to be known of a partition, follows the change.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from typing import Sequence

import numpy as np

from pyspark_diff.kernels.updates import Int64


@dataclass(frozen=True)
class Reach:
    """What functions look at from a row, and so what a change of a row matters to.

    Parameters
    ----------
    preceding, following : int
        So many rows before it and behind it.
    to_end : bool
        Whether a change matters to all rows behind it.
    to_start : bool
        Whether it matters to all rows before it.
    counted : bool
        Whether it matters to the rows behind it as far as their number changes.
    ties : bool
        Whether rows that tie are looked at together.
    expand : bool
        Whether equal rows may have different results.
    standing : bool
        Whether something of all that stands at first has to be known.
    valid_preceding, valid_following : int
        So many rows before it and behind it with a value that is not null: a change of one that has
        it matters to the rows up to the one that is as many of these away.
    valid : tuple of str
        The columns of which these values are.
    """

    preceding: int = 0
    following: int = 0
    to_end: bool = False
    to_start: bool = False
    counted: bool = False
    ties: bool = False
    expand: bool = False
    standing: bool = False
    valid_preceding: int = 0
    valid_following: int = 0
    valid: tuple[str, ...] = ()

    @property
    def near(self) -> int | None:
        """How many rows on either side are looked at, or more where some have no value, or tie, or
        are within distances; None if all."""
        if self.to_end or self.to_start or self.counted or self.standing:
            return None
        return self.preceding + self.following + self.valid_preceding + self.valid_following

    @classmethod
    def of_all(cls, several: Sequence[Reach]) -> Reach:
        """The reach of several functions together."""
        valid = tuple(dict.fromkeys(name for one in several for name in one.valid))
        # For one column there is a tree. With more of them, all that stands has to be known, and
        # all that is looked at where it is no running frame of which something is on record.
        running = len(valid) > 1
        whole = running and any(one.valid_following or one.valid_preceding > 1 for one in several)
        back, ahead = (
            0 if running else max((getattr(one, name) for one in several), default=0)
            for name in ("valid_preceding", "valid_following")
        )
        return cls(
            max((one.preceding for one in several), default=0),
            max((one.following for one in several), default=0),
            running or any(one.to_end for one in several),
            whole or any(one.to_start for one in several),
            any(one.counted for one in several),
            any(one.ties for one in several),
            any(one.expand for one in several),
            running or any(one.standing for one in several),
            back,
            ahead,
            () if running else valid,
        )

    def packed(self) -> Int64:
        """As `window_replay.replay` takes it."""
        return np.array([int(bool(value)) if isinstance(value, tuple) else int(value)
                         for value in astuple(self)], np.int64)


@dataclass(frozen=True)
class Frame:
    """The rows around a row that a function is of.

    Parameters
    ----------
    rows : bool
        Whether limits count rows; else they are distances in the one column of the order.
    low, high : int, float or None
        From the row on, negative before it; None for no limit. A distance of zero is that of rows
        that tie, also where there are several columns, or others than numbers.
    """

    rows: bool
    low: int | float | None
    high: int | float | None

    @property
    def running(self) -> bool:
        """Whether it begins where its partition does, and ends before that does."""
        return self.low is None and self.high is not None

    @property
    def reach(self) -> Reach:
        """What a function of it looks at."""
        to_end, to_start = self.low is None, self.high is None
        if not self.rows:
            # All beside what is without a limit is known of each candidate.
            return Reach(
                to_end=to_end, to_start=to_start, ties=True, standing=self.running,
            )
        before = [-limit for limit in (self.low, self.high) if limit is not None]
        behind = [limit for limit in (self.low, self.high) if limit is not None]
        return Reach(
            preceding=int(max([0, *before])), following=int(max([0, *behind])), to_end=to_end,
            to_start=to_start, expand=not (to_end and to_start), standing=self.running,
        )

    @property
    def whole_reach(self) -> Reach:
        """The same for one of which nothing is on record, so that all of a partition is looked at
        where it begins with it."""
        if not self.running:
            return self.reach
        return replace(self.reach, to_end=True, to_start=True, standing=False)


#: The rows of a partition up to the row itself, and up to those that tie with it.
UP_TO_HERE = (Frame(True, None, 0), Frame(False, None, 0))

#: Those from the row itself on, and from those that tie with it.
FROM_HERE = (Frame(True, 0, None), Frame(False, 0, None))
