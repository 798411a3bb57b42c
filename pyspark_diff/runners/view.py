"""What of an arrangement an operator reads in one step: its files, by where their updates stand.

For the interval ``[lower, upper)`` that is processed::

    old     updates before it                earlier   those in it that have been processed
    new     the others in it                 both      files that have to be told by time

Where times are structs an interval goes on from a first field, and has no end: updates may come
there that are late in it and early in another field. So those of earlier steps may lie in it, and
are old or earlier by their first fields, under the keys that are looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Iterable, Mapping, Sequence

import numpy as np

from pyspark_diff.kernels.consolidate import consolidate, runs_of
from pyspark_diff.kernels.key_ranges import Keys, within
from pyspark_diff.kernels.layout import Layout
from pyspark_diff.kernels.lookup import matching_rows
from pyspark_diff.kernels.updates import Updates, concat
from pyspark_diff.operators.contract import Side
from pyspark_diff.runners.work import opened_together
from pyspark_diff.trace import storage


@dataclass(frozen=True)
class View:
    """The files in which an operator finds an arrangement, by bucket.

    Parameters
    ----------
    layout : Layout
    names : tuple of str
    old, new, both : mapping of int to tuple of str
        Files of updates before the interval, in it, and of those that have to be told by time.
    rows : int
        Rows of the files that may hold new updates.
    depth : int
        Number of loops around the arrangement.
    earlier : mapping of int to tuple of str
        In a loop, files of updates in the interval that have been processed; `new` are the others.
    first : bool
        Whether what is new in `both` is processed.
    recorded : mapping of int to tuple of str
        Files of updates of earlier steps, which may lie in the interval.
    """

    layout: Layout
    names: tuple[str, ...]
    old: Mapping[int, tuple[str, ...]]
    new: Mapping[int, tuple[str, ...]]
    both: Mapping[int, tuple[str, ...]]
    rows: int
    depth: int = 0
    earlier: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    first: bool = True
    recorded: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    def paths(self) -> list[str]:
        """All files."""
        every = (self.old, self.new, self.both, self.earlier, self.recorded)
        return [path for files in every for paths in files.values() for path in paths]

    def of(self, bucket: int) -> list[str]:
        """All files of one bucket."""
        every = (self.old, self.new, self.both, self.earlier, self.recorded)
        return [path for files in every for path in files.get(bucket, ())]

    def together(self, buckets: Sequence[int]) -> "View":
        """Some buckets as one, the first."""
        every = (
            {0: opened_together(files, buckets)}
            for files in (self.old, self.new, self.both, self.earlier, self.recorded)
        )
        old, new, both, earlier, recorded = every
        return replace(
            self, old=old, new=new, both=both, earlier=earlier, recorded=recorded
        )

    def width(self, bucket: int) -> int:
        """Bytes of a row of one bucket, about."""
        held = opened(self.of(bucket))
        return sum(updates.nbytes for updates in held) // max(1, sum(map(len, held)))

    def at_coordinate(self, new: Mapping[int, tuple[str, ...]], first: bool) -> "View":
        """The view when only some of the new files are processed."""
        earlier = {}
        for bucket, paths in self.new.items():
            now = new.get(bucket, ())
            if rest := tuple(path for path in paths if path not in now):
                earlier[bucket] = rest
        return replace(self, new=new, earlier=earlier, first=first)

    def side(self, bucket: int, keys: Keys, lower: int | None, upper: int | None) -> Side:
        """What is in a range of one bucket."""
        old, earlier, new, both = (
            [within(updates, keys) for updates in opened(files.get(bucket, ()))]
            for files in (self.old, self.earlier, self.new, self.both)
        )
        for updates in both:
            before, inside = _told(updates, lower, upper)
            old.append(before)
            (new if self.first else earlier).append(inside)
        grouped = runs_of(new[0]) if len(new) == 1 else consolidate(concat(new))
        return Side(old, earlier, grouped, self.depth, self.layout, self.names, lower)

    def with_recorded(
        self, side: Side, bucket: int, keys: Updates, lower: int | None
    ) -> Side:
        """The same with what earlier steps have of some keys."""
        if not self.recorded:
            return side
        old, earlier = [*side.old], [*side.earlier]
        for updates in opened(self.recorded.get(bucket, ())):
            _, rows = matching_rows(keys, updates)
            before, inside = _told(updates.take(np.sort(rows)), lower, None)
            old += [before] if len(before) else []
            earlier += [inside] if len(inside) else []
        return replace(side, old=old, earlier=earlier)


def opened(paths: Iterable[str]) -> list[Updates]:
    """The updates of some files."""
    return [storage.open_updates(path) for path in paths]


def _told(
    updates: Updates, lower: int | None, upper: int | None
) -> tuple[Updates, Updates]:
    """The updates before an interval, and those in it."""
    times = updates.times()
    before = np.zeros(times.size, dtype=bool) if lower is None else times < lower
    inside = ~before if upper is None else ~before & (times < upper)
    return updates.take(before), updates.take(inside)
