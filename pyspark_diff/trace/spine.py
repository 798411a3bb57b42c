"""The spine: a trace of few batches, of geometrically growing size from the newest to the oldest.

For the batches ``b_0, b_1, …`` of a trace, oldest first::

    upper(b_i) = lower(b_{i+1})
    2 * rows(b_i) > rows(b_{i+1}) + rows(b_{i+2}) + …       once all merges that are due are done,
                                                            but for the last six of tiny batches

So a row is rewritten O(log n) times in its life, and a look-up visits O(log n) batches. The rows
that have cancelled since the oldest batch was written are at most twice the rows of that batch.

A batch is merged only when twice as many rows have come after it, and not half as many. This halves
the cost of merges for steps of equal size, and look-ups visit one or two more batches. Even a merge
of few rows costs as much as a step of one row, so several batches of a few rows are merged at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Callable, Iterable, Mapping

from pyspark_diff import thresholds
from pyspark_diff.times import Antichain, Description
from pyspark_diff.trace.batch import Batch, BatchFile

#: The files of one batch, by bucket.
Files = Mapping[int, tuple[BatchFile, ...]]


@dataclass(frozen=True)
class Trace:
    """Batches with contiguous intervals. Never changes; each method returns a new trace.

    Parameters
    ----------
    lower, upper : Antichain
        The interval the batches cover together.
    since : Antichain
        Accumulations are right at every time beyond it.
    batches : tuple of Batch
        Oldest first; intervals without updates have none.
    """

    lower: Antichain
    upper: Antichain
    since: Antichain
    batches: tuple[Batch, ...] = ()

    @property
    def rows(self) -> int:
        """Number of update rows in all batches."""
        return sum(batch.rows for batch in self.batches)

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(batch.size for batch in self.batches)

    def paths(self) -> list[str]:
        """Paths of all files."""
        return [path for batch in self.batches for path in batch.paths]

    def files(self, bucket: int) -> tuple[str, ...]:
        """Paths of one bucket's files, oldest first."""
        return tuple(
            file.path for batch in self.batches for file in batch.files.get(bucket, ())
        )

    def reaching(self, lower: int | None, upper: int | None) -> "Trace":
        """The batches whose intervals overlap an interval of times.

        The batches may also have updates at other times.

        Parameters
        ----------
        lower, upper : int or None
            The interval ``lower <= time < upper``; None is no bound.

        Examples
        --------
        >>> zero = Antichain([0])
        >>> trace = Trace(zero, zero, zero)
        >>> for upper in (3, 6, 9):
        ...     trace = trace.extended(Antichain([upper]), zero, {0: ()})
        >>> [batch.description.upper.bound for batch in trace.reaching(3, 7).batches]
        [6, 9]
        >>> [batch.description.upper.bound for batch in trace.reaching(None, 3).batches]
        [3]
        """
        def reaches(batch: Batch) -> bool:
            begin, end = batch.description.lower.bound, batch.description.upper.bound
            return (lower is None or end is None or end > lower) and (
                upper is None or begin is not None and begin < upper
            )

        return replace(self, batches=tuple(filter(reaches, self.batches)))

    def extended(
        self, upper: Antichain, since: Antichain, files: Files, advanced: Antichain | None = None
    ) -> "Trace":
        """The trace up to a new upper, with the files of the interval since the last one.

        Parameters
        ----------
        files : mapping of int to tuple of BatchFile
        advanced : Antichain, optional
            The frontier to which the times of the files were advanced. The default is `since`.
        """
        batches = self.batches
        if files:
            description = Description(self.upper, upper, since if advanced is None else advanced)
            batches += (Batch(description, files),)
        return replace(self, upper=upper, since=since, batches=batches)

    def joined(self, lower: Antichain, upper: Antichain, files: Files) -> "Trace":
        """The trace with some of the updates of an interval beyond its upper.

        A loop adds the updates of one interval in many parts, one for each iteration.
        """
        batch = Batch(Description(lower, upper, self.since.meet(lower)), files)
        return replace(self, batches=self.batches + (batch,))

    def due(
        self, fences: Iterable[Antichain] = (), size: Callable[[Batch], int] = lambda b: b.rows
    ) -> list[tuple[int, int]]:
        """The runs of adjacent batches to merge, each as its first number and its end (exclusive).

        Parameters
        ----------
        fences : iterable of Antichain
            Frontiers of readers. Batches before a fence are not merged with batches after it,
            because its reader still has to distinguish the two.
        size : callable, optional
            Returns the number of rows that a merge leaves of a batch. The default is all rows.
        """
        limits = thresholds.current
        stops = {len(self.batches)}
        for fence in fences:
            stops.add(sum(1 for b in self.batches if b.description.upper.precedes(fence)))
        runs = []
        begin = 0
        for stop in sorted(stops):
            rows = count = 0
            for i, batch in enumerate(reversed(self.batches[begin:stop])):
                left = size(batch)
                if i and 2 * left <= rows and (
                    i >= limits.spine_merge_batches_min or rows >= limits.spine_merge_rows_min
                ):
                    count = i + 1
                rows += left
            if count:
                runs.append((stop - count, stop))
            begin = stop
        return runs

    def merged(
        self, first: int, stop: int, since: Antichain, files: Files
    ) -> "Trace":
        """The trace with one batch in place of some adjacent batches with the same updates."""
        before, old, after = self.batches[:first], self.batches[first:stop], self.batches[stop:]
        if not files:
            return replace(self, batches=before + after)
        description = Description(old[0].description.lower, old[-1].description.upper, since)
        return replace(self, batches=before + (Batch(description, files),) + after)
