"""Fused operators: the task that computes the input of an operator runs the operator too.

A reader needs only the equal buckets of its arrangements. So the task that arranges updates in a
bucket has, after it wrote its batch, all files for a reader of the arrangement: the driver knows
the other files in advance. If an operator's output is arranged by the key of its buckets, it needs
no shuffle. With ``R`` a reader of ``A``, and ``B`` an arrangement of ``R`` by the same key::

    job of A, then job of R, then job of B  =  one job of (A, then R, then B) in each bucket

A task may skip a fused operator. The driver sees the buckets without a result of a reader, and runs
a separate job of the reader for them. It computes an incomplete arrangement anew. So a task also
skips an operator that fails, and the separate job reports the error with the operator's name.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Iterator, Mapping, Sequence

from pyspark_diff.fallbacks import FUSED, count
from pyspark_diff.operators.contract import Stage
from pyspark_diff.runners.bucket import read_bucket
from pyspark_diff.runners.pieces import Given, Intake, RowsInMemory
from pyspark_diff.runners.read import Read
from pyspark_diff.runners.work import BucketResult, Split, Work, run_bucket


class NotHere(Exception):
    """The task cannot run an operator, for this reason."""


@dataclass(frozen=True)
class FusedReader:
    """A fused reader. Travels to the executors.

    Parameters
    ----------
    read : Read
        The reading with views of all files except those that the tasks write.
    written_by : mapping of int to int
        For each view with files of the tasks the number of the writing operator: 0 for the operator
        of the job, and the places from 1 on for fused operators.
    """

    read: Read
    written_by: Mapping[int, int]

    @property
    def name(self) -> str:
        """Name of the reading operator."""
        return self.read.name

    @property
    def directory(self) -> str:
        """The directory of new files."""
        return self.read.directory

    @property
    def needs(self) -> set[int]:
        """Numbers of the operators that must run before."""
        return set(self.written_by.values())

    def paths(self) -> Iterator[str]:
        """All files to read that the driver knows in advance."""
        return self.read.paths()

    def for_bucket(self, bucket: int, done: Mapping[int, BucketResult]) -> Read:
        """The reading of a bucket with the files of the task's results."""
        views = list(self.read.views)
        for place, number in self.written_by.items():
            view = views[place]
            new = *view.new.get(bucket, ()), *(file.path for file in done[number].files)
            views[place] = replace(view, new={bucket: new} if new else {})
        return replace(self.read, views=tuple(views))

    def run(self, bucket: int, done: Mapping[int, BucketResult]) -> BucketResult | None:
        """Run the operator in a bucket; None if the bucket has no input."""
        read = self.for_bucket(bucket, done)
        if bucket not in read.buckets():
            return None
        return read_bucket(read, bucket, RowsInMemory(read.most))


@dataclass(frozen=True)
class Taking:
    """A fused operator that arranges the output of another operator, in the same bucket. Travels to
    the executors.

    Parameters
    ----------
    split : Split
        The conversion of rows into updates.
    chain : tuple of Stage
        Stages between the two operators.
    source : int
        Number of the operator with the input rows.
    """

    work: Work
    split: Split
    chain: tuple[Stage, ...]
    source: int

    @property
    def name(self) -> str:
        """Name of the arranging operator."""
        return self.work.name

    @property
    def directory(self) -> str:
        """The directory of new files."""
        return self.work.directory

    @property
    def needs(self) -> set[int]:
        """Numbers of the operators that must run before."""
        return {self.source}

    def paths(self) -> Iterator[str]:
        """All files to read."""
        for files in self.work.files.values():
            yield from files

    def run(self, bucket: int, done: Mapping[int, BucketResult]) -> BucketResult | None:
        """Run the operator in a bucket; None if the bucket has no input.

        Raises
        ------
        NotHere
            If the input exceeds the memory, or some of its rows belong to other buckets.
        """
        source = done[self.source]
        if source.output.paths or source.rest:
            raise NotHere("the input of a bucket exceeds the memory of a task")
        table = source.output.table
        if table is None or not table.num_rows:
            return None
        for stage in self.chain:
            table = stage.on_table(table)
        updates = self.split.updates(table)
        if (self.split.layout.buckets(updates, self.split.buckets) != bucket).any():
            raise NotHere("the output of a bucket belongs to another bucket")
        intake = Intake(os.path.dirname(self.work.directory), self.work.most, self.work.name)
        intake.add(bucket, updates)
        return run_bucket(self.work, bucket, intake, RowsInMemory(self.work.most))


Fused = FusedReader | Taking


def run_behind(
    fused: Sequence[Fused], bucket: int, taken: BucketResult | None
) -> Iterator[BucketResult]:
    """The results of fused operators in a bucket, after the arrangement of its updates.

    Parameters
    ----------
    fused : sequence of Fused
        Each operator after the operators that it needs.
    taken : BucketResult or None
        The result of the arrangement; None if the bucket had no updates.
    """
    nothing = BucketResult(bucket, (), Given(), 0, 0)
    done: dict[int, BucketResult] = {}
    if taken is None or not _is_cut(taken):
        done[0] = _needed(taken or nothing, 0, fused)
    del taken  # frees the memory: each output may be as large as a task's limit
    for number, operator in enumerate(fused, 1):
        if operator.needs <= done.keys():
            try:
                result = operator.run(bucket, done)
            except Exception as error:  # A job of its own runs it again, and reports the fault.
                reason = str(error) if isinstance(error, NotHere) else type(error).__name__
                count(operator.name, FUSED, reason)
                continue
            left = fused[number:]
            done = {other: _needed(earlier, other, left) for other, earlier in done.items()}
            if result is None or isinstance(operator, FusedReader) or not _is_cut(result):
                done[number] = _needed(result or nothing, number, left)
            if result is not None:
                yield replace(result, operator=number)
                del result


def _needed(result: BucketResult, number: int, left: Sequence[Fused]) -> BucketResult:
    """The parts of a result that later operators need: its files, and its output if they read it.
    """
    if any(isinstance(operator, Taking) and operator.source == number for operator in left):
        return result
    return replace(result, output=Given(), later={})


def _is_cut(taken: BucketResult) -> bool:
    """Whether a bucket was written in pieces. Another attempt of the task may cut it elsewhere, and
    its readers would then have other rows under equal file names."""
    return len(taken.files) > 1
