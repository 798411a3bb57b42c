"""Operators that are done where what they take is made: by the same task, bucket by bucket.

A reader sees the equal buckets of its arrangements and nothing else. So the task that takes
updates into a bucket has all that a reader of the arrangement needs there, once its batch is
written: the driver knows the other files beforehand. And where what an operator gives is arranged
by the key that it is in buckets by, nothing has to be moved. With ``R`` a reader of ``A``, and
``B`` an arrangement of ``R`` by the same key::

    job of A, then job of R, then job of B  =  one job of (A, then R, then B) in each bucket

What a task leaves out here is not lost: the driver sees which buckets a reader has no result of,
and does them by a job of the reader's own; an arrangement that is not whole is made anew. So what
fails is left out, too, and fails there, where its name is known.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Iterator, Mapping, Sequence

from pyspark_diff.fallbacks import FUSED, count
from pyspark_diff.operators.contract import Stage
from pyspark_diff.runners.pieces import Given, Intake, Waiting
from pyspark_diff.runners.read import Read, read_bucket
from pyspark_diff.runners.work import BucketResult, Split, Work, run_bucket


class NotHere(Exception):
    """The task cannot run an operator, for this reason."""


@dataclass(frozen=True)
class Reading:
    """A reader that is done like that. Travels to the executors.

    Parameters
    ----------
    read : Read
        As far as it is known beforehand: of what the tasks write nothing is in its views.
    made : mapping of int to int
        For each of its views that the tasks write: who does, 0 for what takes the updates in, and
        for others their places from 1 on.
    """

    read: Read
    made: Mapping[int, int]

    @property
    def name(self) -> str:
        """The operator that reads."""
        return self.read.name

    @property
    def directory(self) -> str:
        """Where files go."""
        return self.read.directory

    @property
    def needs(self) -> set[int]:
        """What has to be done before."""
        return set(self.made.values())

    def paths(self) -> Iterator[str]:
        """All files that are read, as far as they are known beforehand."""
        return self.read.paths()

    def within(self, bucket: int, done: Mapping[int, BucketResult]) -> Read:
        """What it reads in a bucket, given what was done there."""
        views = list(self.read.views)
        for place, number in self.made.items():
            view = views[place]
            new = *view.new.get(bucket, ()), *(file.path for file in done[number].files)
            views[place] = replace(view, new={bucket: new} if new else {})
        return replace(self.read, views=tuple(views))

    def run(self, bucket: int, done: Mapping[int, BucketResult]) -> BucketResult | None:
        """Do it in a bucket; None where there is nothing to do."""
        read = self.within(bucket, done)
        return read_bucket(read, bucket, Waiting(read.most)) if bucket in read.buckets() else None


@dataclass(frozen=True)
class Taking:
    """An operator that takes in what another one gives, in the bucket where it is given. Travels
    to the executors.

    Parameters
    ----------
    work : Work
    split : Split
        How what is given becomes updates.
    chain : tuple of Stage
        What is applied on the way.
    source : int
        Whose output it is.
    """

    work: Work
    split: Split
    chain: tuple[Stage, ...]
    source: int

    @property
    def name(self) -> str:
        """The operator that takes updates in."""
        return self.work.name

    @property
    def directory(self) -> str:
        """Where files go."""
        return self.work.directory

    @property
    def needs(self) -> set[int]:
        """What has to be done before."""
        return {self.source}

    def paths(self) -> Iterator[str]:
        """All files that are read."""
        for files in self.work.files.values():
            yield from files

    def run(self, bucket: int, done: Mapping[int, BucketResult]) -> BucketResult | None:
        """Do it in a bucket; None where there is nothing to do.

        Raises
        ------
        NotHere
            If it cannot be done here: not all is at hand, or some of it belongs into other buckets.
        """
        given = done[self.source]
        if given.output.paths or given.rest:
            raise NotHere("the input of a bucket exceeds the memory of a task")
        table = given.output.table
        if table is None or not table.num_rows:
            return None
        for stage in self.chain:
            table = stage.on_table(table)
        updates = self.split.updates(table)
        if (self.split.layout.buckets(updates, self.split.buckets) != bucket).any():
            raise NotHere("the output of a bucket belongs to another bucket")
        intake = Intake(os.path.dirname(self.work.directory), self.work.most, self.work.name)
        intake.add(bucket, updates)
        return run_bucket(self.work, bucket, intake, Waiting(self.work.most))


Fused = Reading | Taking


def run_behind(
    fused: Sequence[Fused], bucket: int, taken: BucketResult | None
) -> Iterator[BucketResult]:
    """What operators give in a bucket, once its updates have been taken in.

    Parameters
    ----------
    fused : sequence of Fused
        Each behind those that it needs.
    bucket : int
    taken : BucketResult or None
        What became of the updates; None where there were none.
    """
    nothing = BucketResult(bucket, (), Given(), 0, 0)
    done: dict[int, BucketResult] = {}
    if taken is None or not _is_cut(taken):
        done[0] = _needed(taken or nothing, 0, fused)
    del taken  # as large as what a task may hold, like the output of each of the others
    for number, one in enumerate(fused, 1):
        if one.needs <= done.keys():
            try:
                found = one.run(bucket, done)
            except Exception as error:  # A job of its own runs it again, and reports the fault.
                reason = str(error) if isinstance(error, NotHere) else type(error).__name__
                count(one.name, FUSED, reason)
                continue
            left = fused[number:]
            done = {other: _needed(result, other, left) for other, result in done.items()}
            if found is None or isinstance(one, Reading) or not _is_cut(found):
                done[number] = _needed(found or nothing, number, left)
            if found is not None:
                yield replace(found, operator=number)
                del found


def _needed(result: BucketResult, number: int, left: Sequence[Fused]) -> BucketResult:
    """What those that are left need of a result: all see its files, and some take its output."""
    if any(isinstance(one, Taking) and one.source == number for one in left):
        return result
    return replace(result, output=Given(), later={})


def _is_cut(taken: BucketResult) -> bool:
    """Whether a bucket was written in pieces: another attempt of the task may cut it elsewhere, and
    so might what is read of it. The pieces have names of their own, what readers write has not."""
    return len(taken.files) > 1
