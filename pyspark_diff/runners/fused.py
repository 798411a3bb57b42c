"""Readers that are done where what they read is written: by the same task, bucket by bucket.

A reader sees the equal buckets of its arrangements and nothing else. So the task that takes
updates into a bucket has all that a reader of the arrangement needs there, once its batch is
written: the driver knows the other files beforehand. With ``R`` a reader of ``A``::

    job of A, then job of R  =  one job of (A, then R) in each bucket

What a task leaves out here is not lost: the driver sees which buckets a reader has no result of,
and does them by a job of the reader's own. So a reader that fails is left out, too, and fails
there, where its name is known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Iterator, Mapping, Sequence

from pyspark_diff.runners.pieces import Waiting
from pyspark_diff.runners.read import Read, read_bucket
from pyspark_diff.runners.work import BucketResult
from pyspark_diff.trace.batch import BatchFile


@dataclass(frozen=True)
class Fused:
    """One such reader. Travels to the executors.

    Parameters
    ----------
    read : Read
        As far as it is known beforehand: of what the tasks write nothing is in its views.
    made : mapping of int to int
        For each of its views that the tasks write: who does, 0 for what takes the updates in, and
        for the readers of a job their places from 1 on.
    """

    read: Read
    made: Mapping[int, int]

    def within(self, bucket: int, files: Mapping[int, Sequence[BatchFile]]) -> Read:
        """What it reads in a bucket, given the files that were written there, by who did."""
        views = list(self.read.views)
        for place, number in self.made.items():
            view = views[place]
            new = *view.new.get(bucket, ()), *(file.path for file in files[number])
            views[place] = replace(view, new={bucket: new} if new else {})
        return replace(self.read, views=tuple(views))


def read_behind(
    fused: Sequence[Fused], bucket: int, taken: Sequence[BatchFile]
) -> Iterator[BucketResult]:
    """What readers give in a bucket, once its updates have been taken in.

    Parameters
    ----------
    fused : sequence of Fused
        Each behind those whose output it reads.
    bucket : int
    taken : sequence of BatchFile
        What was written of the updates.
    """
    if len(taken) > 1:
        # Where these were cut another attempt of the task may cut them elsewhere, and so might what
        # is read of them: their files have names of their own, but those of readers have not.
        return
    files = {0: tuple(taken)}
    for number, one in enumerate(fused, 1):
        read = one.within(bucket, files)
        files[number] = ()
        if bucket in read.buckets():
            try:
                found = read_bucket(read, bucket, Waiting(read.most))
            except Exception:
                return
            files[number] = found.files
            yield replace(found, operator=number)
