"""The driver runner: the same kernels in the driver's own process, without any Spark job.

A Spark job costs a tenth of a second whatever its size; a few thousand updates are done here
before it would have been planned.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import replace
from itertools import chain
from typing import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from pyspark_diff.errors import DiffError, earliest
from pyspark_diff.fallbacks import COMPILED, fall_back
from pyspark_diff.kernels.key_ranges import MOST_BYTES
from pyspark_diff.kernels.split import partition
from pyspark_diff.kernels.updates import Updates, concat
from pyspark_diff.operators.contract import Stage
from pyspark_diff.operators.linear import Expression
from pyspark_diff.runners.feed import Feed
from pyspark_diff.runners.parquet import ROWS
from pyspark_diff.runners.pieces import Intake, Waiting, share
from pyspark_diff.runners.read import Read, read_bucket, read_together
from pyspark_diff.runners.stop import Stop
from pyspark_diff.runners.threads import side_by_side
from pyspark_diff.runners.work import (
    TOGETHER,
    BucketResult,
    Merge,
    Work,
    merge_bucket,
    run_bucket,
    run_together,
)
from pyspark_diff.spark.schema import Schema
from pyspark_diff.trace import storage
from pyspark_diff.trace.batch import BatchFile

#: From this many rows on, in all or in a bucket, buckets are done side by side; fewer are done at
#: once, whatever their buckets.
THREADED, PER_BUCKET = 50_000, 8_192

#: Of so many tables with so few rows it is known what a stage made of them last.
MADE, MADE_ROWS = 8, 1024

#: Evaluates stages that only Spark knows, on a table.
Evaluate = Callable[[pa.Table, Sequence[Stage]], pa.Table]


class LocalRunner:
    """Runs kernels on the driver.

    Parameters
    ----------
    evaluate : callable
        Evaluates a chain of Spark expressions on a table.
    stop : Stop, optional
        What ends the step that it runs for.
    """

    def __init__(self, evaluate: Evaluate, stop: Stop | None = None):
        self._evaluate, self._stop = evaluate, stop or Stop()
        #: What stages last made of small tables, as several operators may read what a chain gives.
        self._made: deque[tuple[pa.Table, Stage, pa.Table]] = deque(maxlen=MADE)

    def run(self, work: Work, schema: Schema, feeds: Sequence[Feed]) -> list[BucketResult]:
        """As `pyspark_diff.runners.spark.SparkRunner.run`."""
        if work.buckets > 1 and not apart(rows_of(feeds), work.buckets):
            found = self._together(work, schema, feeds)
            if found is not None:
                return found
        intake = Intake(os.path.dirname(work.directory), work.most, work.name)
        for feed in feeds:
            for bucket, part in self._parts(work, schema, feed):
                intake.add(bucket, part)
        buckets, waiting = intake.buckets(), Waiting(work.most)
        threads = _threads(buckets, sum(intake.rows.values()))
        if threads > 1:
            rows = (intake.rows[b] + sum(map(len, work.old(b))) for b in buckets)
            work = replace(work, most=share(rows, work.most, threads))
        return self._each(
            lambda bucket: run_bucket(work, bucket, intake, waiting, in_memory=True),
            buckets,
            threads,
        )

    def read(self, read: Read, rows: float) -> list[BucketResult]:
        """As `pyspark_diff.runners.spark.SparkRunner.read`; so many rows are new."""
        buckets, waiting = read.buckets(), Waiting(read.most)
        few = rows < TOGETHER and len(buckets) > 1
        if few and not read.at and not read.kernel.visits_all:
            with self._stop.obeyed():
                found = read_together(read, buckets, Waiting(read.most))
            if found is not None:
                return found
        threads = _threads(buckets, rows)
        if threads > 1:
            most = share(map(read.rows, buckets), read.most, threads)
            # Pairs are made in chunks, a fourth of this each, whatever they are made of.
            read = replace(read, most=max(1, min(most, 4 * read.most // threads)))
        return self._each(
            lambda bucket: read_bucket(read, bucket, waiting, in_memory=True), buckets, threads
        )

    def _together(
        self, work: Work, schema: Schema, feeds: Sequence[Feed]
    ) -> list[BucketResult] | None:
        """What `run` gives for few rows; None where they cannot be held, or have become many."""
        held, rows = [], 0
        for feed in feeds:
            how = feed.split(work, schema)
            for table in self.tables(feed.bare(), work.most):
                held.append(how.updates(table))
                rows += len(held[-1])
                if apart(rows, work.buckets) or rows > work.most:
                    return None
        with self._stop.obeyed():
            return run_together(work, concat(held), Waiting(work.most))

    def merge(self, merge: Merge) -> dict[int, tuple[BatchFile, ...]]:
        """Merge the files of an arrangement."""
        buckets = sorted(merge.files)
        threads = _threads(buckets, THREADED)
        most = max(1, merge.most // threads)

        def merged(bucket: int) -> tuple[BatchFile, ...]:
            self._stop.check()
            return merge_bucket(
                merge.files[bucket], merge.directory, bucket, merge.since, most, merge.by_time,
                in_memory=True,
            )

        # To the end: where it is left before that, a Ctrl-C that comes meanwhile is lost.
        return dict(zip(buckets, list(side_by_side(merged, buckets, threads))))

    def _parts(
        self, work: Work, schema: Schema, feed: Feed
    ) -> Iterator[tuple[int, Updates]]:
        """The updates of a feed, by bucket. They are not consolidated: nothing is moved from here
        to there."""
        how, feed = feed.split(work, schema), feed.bare()

        def split(feed: Feed) -> Iterator[tuple[int, Updates]]:
            for table in self.tables(feed, work.most):
                yield from partition(how.updates(table), work.layout, work.buckets)

        scan, cores = feed.source.scan, os.cpu_count() or 1
        # A function of the user, which changes times and diffs as it likes, has one thread.
        if scan is None or scan.rows < THREADED or not (feed.portable and feed.is_constant):
            yield from split(feed)
            return
        parts = scan.pieces()
        size = max(part.size for part in parts)
        threads = min(cores, len(parts), max(1, work.most // ROWS), max(1, MOST_BYTES // size))
        feeds = (replace(feed, source=replace(feed.source, scan=part)) for part in parts)
        for found in side_by_side(lambda part: list(split(part)), feeds, threads):
            yield from found

    def tables(self, feed: Feed, most: int | None = None) -> Iterator[pa.Table]:
        """The update rows of a feed, its chain applied; up to so many at once."""
        source = feed.source
        if source.scan is not None:
            tables: Iterable[pa.Table] = source.scan.tables()
        elif source.frame is not None:
            raise ValueError("a user's frame is evaluated by Spark, not on the driver")
        elif source.table is not None:
            tables = [source.table]
        elif source.rest:
            tables = chain.from_iterable(rest.tables() for rest in source.rest)
        else:
            tables = map(storage.read_table, source.paths)
        for table in tables:
            step = table.num_rows if most is None else min(table.num_rows, _fitting(table, most))
            for start in range(0, table.num_rows, step or 1):
                self._stop.check()
                part = table if step == table.num_rows else table.slice(start, step)
                with self._stop.obeyed():
                    staged = self._staged(part, feed.chain)
                yield staged

    def _each(
        self, do: Callable[[int], BucketResult], buckets: Sequence[int], threads: int
    ) -> list[BucketResult]:
        """The results of all buckets, so many of them at work at once.

        An error with a time ends no other bucket, as another one may have an earlier time.
        """
        errors: list[DiffError] = []

        def done(bucket: int) -> BucketResult | None:
            self._stop.check()
            try:
                with self._stop.obeyed():
                    return do(bucket)
            except DiffError as error:
                if error.first_time is None:
                    raise
                errors.append(error)
                return None

        results = list(side_by_side(done, buckets, threads))
        if errors:
            raise earliest(errors)
        return [result for result in results if result is not None]

    def _staged(self, table: pa.Table, stages: Sequence[Stage]) -> pa.Table:
        waiting: list[Stage] = []
        for stage in (*stages, None):
            if stage is not None and not stage.portable:
                waiting.append(stage)
                continue
            if waiting:
                # Neighbours are evaluated in one go: the cost is per call.
                for one in waiting:
                    if isinstance(one, Expression):
                        operator, _, columns = one.label.partition(" ")
                        fall_back(operator, COMPILED, f"Spark evaluates {columns}")
                table = self._evaluate(table, waiting)
                waiting = []
            if stage is not None:
                table = self._made_of(table, stage)
        return table

    def _made_of(self, table: pa.Table, stage: Stage) -> pa.Table:
        """What a stage makes of a table: of a small one it is made once."""
        if table.num_rows > MADE_ROWS:
            return stage.on_table(table)
        for of, by, made in tuple(self._made):
            if of is table and by is stage:
                return made
        made = stage.on_table(table)
        self._made.append((table, stage, made))
        return made


def _threads(buckets: Sequence[int], rows: float) -> int:
    """Many rows are worth a thread for each bucket, as kernels let others run."""
    return min(len(buckets), os.cpu_count() or 1) if apart(rows, len(buckets)) else 1


def apart(rows: float, buckets: int) -> bool:
    """Whether so many rows of so many buckets are best done bucket by bucket."""
    return rows >= min(THREADED, PER_BUCKET * buckets)


def _fitting(table: pa.Table, most: int) -> int:
    """How many of its rows are taken at once."""
    # What all of its buffers hold is known at once; of a slice it is more than its rows are.
    if table.get_total_buffer_size() <= MOST_BYTES or table.nbytes <= MOST_BYTES:
        return most
    return max(1, min(most, MOST_BYTES * table.num_rows // table.nbytes))


def rows_of(feeds: Sequence[Feed]) -> float:
    """Number of update rows that reach an operator; infinite where only Spark can tell."""
    return sum((feed.source.rows if feed.source.rows is not None else np.inf) for feed in feeds)
