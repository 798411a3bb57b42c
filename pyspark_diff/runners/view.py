"""Views: the files of an arrangement that an operator reads in one step, by their times.

For the interval ``[lower, upper)`` of the step::

    old     updates before the interval      earlier   processed updates in the interval
    new     other updates in the interval    both      files with old and new updates

If times are structs, an interval starts at a value of the first field, and has no end: updates may
arrive that are late in the first field and early in another field. So updates of earlier steps may
lie in the interval. For the visited keys, their first fields decide whether they are old or
earlier.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Iterable, Mapping, Sequence

import numpy as np

from pyspark_diff.kernels.consolidate import consolidate, runs_of
from pyspark_diff.kernels.key_ranges import Keys, updates_between
from pyspark_diff.kernels.layout import Layout
from pyspark_diff.kernels.lookup import matching_rows
from pyspark_diff.kernels.updates import UpdateChunk, concat
from pyspark_diff.operators.contract import Side
from pyspark_diff.runners.work import opened_together
from pyspark_diff.trace import storage


@dataclass(frozen=True)
class ArrangementView:
    """The files of an arrangement for an operator, by bucket.

    Parameters
    ----------
    old, new, both : mapping of int to tuple of str
        Files of updates before the interval, of new updates, and files with both.
    rows : int
        Number of rows of the files that may have new updates.
    depth : int
        Number of loops around the arrangement.
    earlier : mapping of int to tuple of str
        In a loop, files of processed updates in the interval; `new` has the others.
    first : bool
        Whether the new updates of `both` are processed now.
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
        groups = (self.old, self.new, self.both, self.earlier, self.recorded)
        return [path for files in groups for paths in files.values() for path in paths]

    def files_of(self, bucket: int) -> list[str]:
        """All files of one bucket."""
        groups = (self.old, self.new, self.both, self.earlier, self.recorded)
        return [path for files in groups for path in files.get(bucket, ())]

    def together(self, buckets: Sequence[int]) -> "ArrangementView":
        """The view with some buckets united as bucket 0."""
        old, new, both, earlier, recorded = (
            {0: opened_together(files, buckets)}
            for files in (self.old, self.new, self.both, self.earlier, self.recorded)
        )
        return replace(
            self, old=old, new=new, both=both, earlier=earlier, recorded=recorded
        )

    def width(self, bucket: int) -> int:
        """Average number of bytes of a row of one bucket."""
        batches = opened(self.files_of(bucket))
        return sum(updates.nbytes for updates in batches) // max(1, sum(map(len, batches)))

    def at_coordinate(self, new: Mapping[int, tuple[str, ...]], first: bool) -> "ArrangementView":
        """The view for the processing of some of the new files."""
        earlier = {}
        for bucket, paths in self.new.items():
            now = new.get(bucket, ())
            if rest := tuple(path for path in paths if path not in now):
                earlier[bucket] = rest
        return replace(self, new=new, earlier=earlier, first=first)

    def side(self, bucket: int, keys: Keys, lower: int | None, upper: int | None) -> Side:
        """The updates of a range of keys in one bucket."""
        old, earlier, new, both = (
            [updates_between(updates, keys) for updates in opened(files.get(bucket, ()))]
            for files in (self.old, self.earlier, self.new, self.both)
        )
        for updates in both:
            before, inside = _divided(updates, lower, upper)
            old.append(before)
            (new if self.first else earlier).append(inside)
        grouped = runs_of(new[0]) if len(new) == 1 else consolidate(concat(new))
        return Side(old, earlier, grouped, self.depth, self.layout, self.names, lower)

    def with_recorded(
        self, side: Side, bucket: int, keys: UpdateChunk, lower: int | None
    ) -> Side:
        """The side with the updates of earlier steps for some keys."""
        if not self.recorded:
            return side
        old, earlier = [*side.old], [*side.earlier]
        for updates in opened(self.recorded.get(bucket, ())):
            _, rows = matching_rows(keys, updates)
            before, inside = _divided(updates.take(np.sort(rows)), lower, None)
            old += [before] if len(before) else []
            earlier += [inside] if len(inside) else []
        return replace(side, old=old, earlier=earlier)


def opened(paths: Iterable[str]) -> list[UpdateChunk]:
    """The updates of some files."""
    return [storage.open_updates(path) for path in paths]


def _divided(
    updates: UpdateChunk, lower: int | None, upper: int | None
) -> tuple[UpdateChunk, UpdateChunk]:
    """The updates before an interval, and the updates in it."""
    times = updates.times()
    before = np.zeros(times.size, dtype=bool) if lower is None else times < lower
    inside = ~before if upper is None else ~before & (times < upper)
    return updates.take(before), updates.take(inside)
