"""The work of one operator that reads arrangements: one bucket, one interval, one coordinate.

For each arrangement ``A`` that it reads, and the interval ``[lower, upper)``::

    old = updates of A before lower      (times may have been advanced to it)
    new = updates of A in [lower, upper)

in one bucket. No shuffle is needed: equal keys of all arrangements lie in equal buckets.

The operator processes all times of the interval at once, at the current coordinate ``c``, which is
``()`` outside of loops. With ``F`` the operator's function, ``I`` its input and ``O`` its output,
projected on the outer time::

    sum(O at coordinates <= c) = F(sum(I at coordinates <= c))

so the output at ``c`` is the change of the right side in the interval, minus the output at smaller
coordinates. Only keys with new updates and keys that are due can have output.

A bucket that exceeds the memory is processed in pieces, each a range of keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Iterator, Mapping, Sequence

import numpy as np

from pyspark_diff import thresholds
from pyspark_diff.kernels.consolidate import consolidate, runs_of
from pyspark_diff.kernels.history import distinct_keys
from pyspark_diff.kernels.key_ranges import (
    Keys,
    fitting,
    ranges,
    rows_of,
    updates_between,
)
from pyspark_diff.kernels.updates import UpdateChunk, concat, empty
from pyspark_diff.operators.contract import BilinearKernel, Kernel, Side
from pyspark_diff.runners.view import ArrangementView, opened
from pyspark_diff.runners.work import OutputForm
from pyspark_diff.times import Antichain, Coordinate
from pyspark_diff.trace import storage
from pyspark_diff.trace.batch import Paths


@dataclass(frozen=True)
class Read:
    """The work of a reading operator in one step, for all buckets. Travels to the executors.

    Parameters
    ----------
    name : str
        Name of the operator, for errors.
    views : tuple of ArrangementView
        Views of the arrangements that it reads.
    own : ArrangementView or None
        A view of the arrangement of its output.
    output : OutputForm or None
        None if no operator reads the updates themselves.
    stored : tuple of int
        Positions of the columns of the arranged output among all output columns.
    directory : str
        Directory of new files.
    keeps : bool
        Whether the arranged output gets a new batch.
    since : int or None
        Times of the new batch are advanced to it.
    lower, upper : int or None
        The interval; None is no bound.
    most : int
        Maximal number of rows in memory.
    at : tuple of int
        The current coordinate; ``()`` outside of loops.
    due : mapping of int to tuple of str
        In a loop, files of due keys, which are visited like keys with new updates.
    all_buckets : int
        Number of all buckets.
    frontier : Antichain
        If times are structs, the upper frontier of the step.
    chosen : tuple of int, optional
        The remaining buckets. By default all buckets that may have work.
    """

    name: str
    kernel: Kernel
    views: tuple[ArrangementView, ...]
    own: ArrangementView | None
    output: OutputForm | None
    stored: tuple[int, ...]
    directory: str
    keeps: bool
    since: int | None
    lower: int | None
    upper: int | None
    most: int
    at: Coordinate = ()
    due: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    all_buckets: int = 1
    frontier: Antichain = Antichain()
    chosen: tuple[int, ...] | None = None

    def buckets(self) -> list[int]:
        """Buckets that may have work."""
        if self.chosen is not None:
            return sorted(self.chosen)
        buckets = set(self.due)
        for view in self.views:
            buckets.update(view.new, view.both if view.first else ())
        if self.kernel.visits_all and self.own is not None:
            buckets.update(self.own.old)
        return sorted(buckets.union(self.due_rows))

    @cached_property
    def due_rows(self) -> dict[int, int]:
        """For keys that are times, estimated numbers of old updates that fall due, by bucket."""
        due: dict[int, int] = {}
        for view in self.views if self.kernel.by_time else ():
            assert isinstance(view.old, Paths)  # only the driver uses this property
            for batch in view.old.batches:
                for bucket, path in batch.opened():
                    rows = len(self._falling_due(storage.open_updates(path)))
                    for number in (batch.files if bucket is None else [bucket]) if rows else ():
                        due[number] = due.get(number, 0) + (rows if bucket is not None else 1)
        return due

    def _falling_due(self, updates: UpdateChunk, *, every: bool = False) -> UpdateChunk:
        """For keys that are times, the updates with keys in the interval, or before its end."""
        start, stop = 0, len(updates)
        if not every:
            # A complete collection has no lower bound, and no update that falls due.
            lower = self.lower
            start = stop if lower is None else int(np.searchsorted(updates.key64, lower))
        if self.upper is not None:
            stop = int(np.searchsorted(updates.key64, self.upper))
        return updates.between(start, max(start, stop))

    def paths(self) -> Iterator[str]:
        """All files to read."""
        for view in self.views if self.own is None else (*self.views, self.own):
            yield from view.paths()
        for paths in self.due.values():
            yield from paths

    def rows(self, bucket: int) -> int:
        """Maximal number of rows that the operator reads of a bucket."""
        return sum(map(len, chain(*self._files(bucket))))

    def fitting(self, bucket: int) -> "Read":
        """The reading with a limit of rows in memory that suits a bucket.

        A `Rest` keeps the result of this method. A second call may find another limit, since the
        size of a file differs by some bytes from the size of its source.
        """
        most = fitting(list(chain(*self._files(bucket))), self.most)
        if isinstance(self.kernel, BilinearKernel):
            width = sum(view.width(bucket) for view in self.views)
            size = 2 * thresholds.current.work_bytes_max  # a chunk is a fourth
            most = max(1, min(most, size // max(1, width)))
        return self if most == self.most else replace(self, most=most)

    @property
    def pairs(self) -> int:
        """Maximal number of a bilinear operator's output rows in memory. Its input may have more
        rows, since it looks up rows instead of copying them."""
        return min(self.most, thresholds.current.join_piece_pairs)

    def ranges(self, bucket: int) -> list[Keys]:
        """The ranges of keys of the pieces of a bucket."""
        return ranges(*self._files(bucket), self.most)

    def looks_up_many(self, bucket: int) -> bool:
        """Whether a bilinear operator looks up more rows of a bucket than `pairs`. Its output then
        exceeds this limit as well, so its buckets are processed one by one."""
        new, old = self._files(bucket)
        bilinear = isinstance(self.kernel, BilinearKernel)
        if not bilinear or not new or sum(map(len, old)) <= self.pairs:
            return False
        keys = np.unique(np.concatenate([updates.key64 for updates in new]))
        rows = sum(int(rows_of(updates.key64, keys, keys).sum()) for updates in old)
        return rows > self.pairs

    def _files(self, bucket: int) -> tuple[list[UpdateChunk], list[UpdateChunk]]:
        """The updates whose keys are visited in a bucket, and the updates for look-ups."""
        new = opened(self.due.get(bucket, ()))
        old = [] if self.own is None else opened(self.own.old.get(bucket, ()))
        if self.kernel.visits_all:
            new, old = [*new, *old], []
        for view in self.views:
            new += opened(view.new.get(bucket, ()))
            both = opened(view.both.get(bucket, ()))
            (new if view.first else old).extend(both)
            for files in (view.old, view.earlier, view.recorded):
                old += opened(files.get(bucket, ()))
        if self.kernel.by_time:
            new, old = [*new, *map(self._falling_due, old)], []
        return new, old

    def visited_again(self, bucket: int, keys: Keys) -> list[UpdateChunk]:
        """The due keys of a range."""
        return [updates_between(updates, keys) for updates in opened(self.due.get(bucket, ()))]

    def sides(self, bucket: int, keys: Keys) -> list[Side]:
        """The sides of a range of keys in one bucket."""
        sides = [view.side(bucket, keys, self.lower, self.upper) for view in self.views]
        if any(view.recorded for view in self.views):
            touched = visited_keys(self.visited_again(bucket, keys), sides)
            sides = [
                view.with_recorded(side, bucket, touched, self.lower)
                for view, side in zip(self.views, sides)
            ]
        if not self.frontier.is_empty:
            sides = [replace(side, frontier=self.frontier) for side in sides]
        if self.kernel.by_time:
            sides = [
                replace(
                    side, old=list(map(self._falling_due, side.old)),
                    new=runs_of(self._falling_due(side.new.updates, every=True)),
                ) for side in sides
            ]
        return sides


def visited_keys(due: Sequence[UpdateChunk], sides: Sequence[Side]) -> UpdateChunk:
    """The visited keys, each once."""
    parts = [distinct_keys(s.new).at(0, 1).placed(0) for s in sides if len(s.new.updates)]
    parts += due
    if not parts:
        return empty()
    if len(parts) == 1:
        return parts[0]
    return consolidate(concat(parts)).updates
