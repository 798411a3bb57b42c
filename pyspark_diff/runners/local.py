"""The driver runner: the same kernels in the driver's own process, without any Spark job.

A Spark job of any size costs a tenth of a second. The driver processes a few thousand updates in
less time than the planning of a job takes.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import replace
from itertools import chain
from typing import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from pyspark_diff import thresholds
from pyspark_diff.errors import DiffError, earliest
from pyspark_diff.fallbacks import COMPILED, fall_back
from pyspark_diff.kernels.split import partition
from pyspark_diff.kernels.updates import UpdateChunk, concat
from pyspark_diff.operators.contract import Stage
from pyspark_diff.operators.linear import Expression
from pyspark_diff.runners.bucket import read_bucket, read_together
from pyspark_diff.runners.feed import Feed
from pyspark_diff.runners.pieces import Intake, RowsInMemory, share
from pyspark_diff.runners.read import Read
from pyspark_diff.runners.stop import Stop
from pyspark_diff.runners.threads import side_by_side
from pyspark_diff.runners.work import (
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

#: Number of cached results of stages.
MADE = 8

#: Evaluates stages that only Spark knows, on a table.
Evaluate = Callable[[pa.Table, Sequence[Stage]], pa.Table]


class LocalRunner:
    """Runs kernels on the driver.

    Parameters
    ----------
    evaluate : callable
        Evaluates a chain of Spark expressions on a table.
    stop : Stop, optional
        Cancellation of the step.
    """

    def __init__(self, evaluate: Evaluate, stop: Stop | None = None):
        self._evaluate, self._stop = evaluate, stop or Stop()
        #: Recent results of stages on small tables, since several operators may read one chain.
        self._made: deque[tuple[pa.Table, Stage, pa.Table]] = deque(maxlen=MADE)

    def run(self, work: Work, schema: Schema, feeds: Sequence[Feed]) -> list[BucketResult]:
        """As `pyspark_diff.runners.spark.SparkRunner.run`."""
        if work.buckets > 1 and not worth_per_bucket(rows_of(feeds), work.buckets):
            results = self._together(work, schema, feeds)
            if results is not None:
                return results
        intake = Intake(os.path.dirname(work.directory), work.most, work.name)
        for feed in feeds:
            for bucket, part in self._parts(work, schema, feed):
                intake.add(bucket, part)
        buckets, waiting = intake.buckets(), RowsInMemory(work.most)
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
        """As `pyspark_diff.runners.spark.SparkRunner.read`, for a number of new rows."""
        buckets, waiting = read.buckets(), RowsInMemory(read.most)
        few = rows < thresholds.current.look_up_bucket_rows_min and len(buckets) > 1
        if few and not read.at and not read.kernel.visits_all:
            with self._stop.obeyed():
                results = read_together(read, buckets, RowsInMemory(read.most))
            if results is not None:
                return results
        threads = _threads(buckets, rows)
        if threads > 1:
            most = share(map(read.rows, buckets), read.most, threads)
            # A chunk of pairs has a fourth of this number, for any number of rows read.
            read = replace(read, most=max(1, min(most, 4 * read.most // threads)))
        return self._each(
            lambda bucket: read_bucket(read, bucket, waiting, in_memory=True), buckets, threads
        )

    def _together(
        self, work: Work, schema: Schema, feeds: Sequence[Feed]
    ) -> list[BucketResult] | None:
        """The results of `run` for few rows; None if they exceed the memory or become many."""
        parts, rows = [], 0
        for feed in feeds:
            how = feed.split(work, schema)
            for table in self.tables(feed.bare(), work.most):
                parts.append(how.updates(table))
                rows += len(parts[-1])
                if worth_per_bucket(rows, work.buckets) or rows > work.most:
                    return None
        with self._stop.obeyed():
            return run_together(work, concat(parts), RowsInMemory(work.most))

    def merge(self, merge: Merge) -> dict[int, tuple[BatchFile, ...]]:
        """Merge the files of an arrangement."""
        buckets = sorted(merge.files)
        threads = _threads(buckets, thresholds.current.threaded_rows_min)
        most = max(1, merge.most // threads)

        def merged(bucket: int) -> tuple[BatchFile, ...]:
            self._stop.check()
            return merge_bucket(
                merge.files[bucket], merge.directory, bucket, merge.since, most, merge.by_time,
                in_memory=True,
            )

        # The list consumes the iterator: an abandoned iterator would lose a Ctrl-C.
        return dict(zip(buckets, list(side_by_side(merged, buckets, threads))))

    def _parts(
        self, work: Work, schema: Schema, feed: Feed
    ) -> Iterator[tuple[int, UpdateChunk]]:
        """The updates of a feed, by bucket. Without a shuffle, consolidation saves nothing here."""
        how, feed = feed.split(work, schema), feed.bare()

        def split(feed: Feed) -> Iterator[tuple[int, UpdateChunk]]:
            for table in self.tables(feed, work.most):
                yield from partition(how.updates(table), work.layout, work.buckets)

        scan, cores = feed.source.scan, os.cpu_count() or 1
        # A user's function, which may change times and diffs, runs in one thread.
        if scan is None or scan.rows < thresholds.current.threaded_rows_min or not (
            feed.portable and feed.is_constant
        ):
            yield from split(feed)
            return
        parts = scan.pieces()
        size = max(part.size for part in parts)
        fitting = min(
            work.most // thresholds.current.parquet_table_rows,
            thresholds.current.work_bytes_max // size,
        )
        threads = min(cores, len(parts), max(1, fitting))
        feeds = (replace(feed, source=replace(feed.source, scan=part)) for part in parts)
        for updates in side_by_side(lambda part: list(split(part)), feeds, threads):
            yield from updates

    def tables(self, feed: Feed, most: int | None = None) -> Iterator[pa.Table]:
        """The update rows of a feed after its chain, in tables of up to ``most`` rows."""
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
        """The results of all buckets, computed by some threads.

        An error with a time cancels no other bucket, since another error may have an earlier time.
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
                # One call evaluates adjacent stages, since each call has a cost.
                for expression in waiting:
                    if isinstance(expression, Expression):
                        operator, _, columns = expression.label.partition(" ")
                        fall_back(operator, COMPILED, f"Spark evaluates {columns}")
                table = self._evaluate(table, waiting)
                waiting = []
            if stage is not None:
                table = self._apply(table, stage)
        return table

    def _apply(self, table: pa.Table, stage: Stage) -> pa.Table:
        """The result of a stage on a table; results of small tables are cached."""
        if table.num_rows > thresholds.current.cached_stage_rows_max:
            return stage.on_table(table)
        for source, applied, result in tuple(self._made):
            if source is table and applied is stage:
                return result
        result = stage.on_table(table)
        self._made.append((table, stage, result))
        return result


def _threads(buckets: Sequence[int], rows: float) -> int:
    """Number of threads: many rows are worth a thread for each bucket, since kernels release the
    interpreter lock."""
    return min(len(buckets), os.cpu_count() or 1) if worth_per_bucket(rows, len(buckets)) else 1


def worth_per_bucket(rows: float, buckets: int) -> bool:
    """Whether a number of rows is worth a call for each bucket."""
    per_bucket = thresholds.current.threaded_rows_per_bucket_min
    return rows >= min(thresholds.current.threaded_rows_min, per_bucket * buckets)


def _fitting(table: pa.Table, most: int) -> int:
    # The size of all buffers is cheap to get, and an upper bound of the size of a slice.
    size = thresholds.current.work_bytes_max
    if table.get_total_buffer_size() <= size or table.nbytes <= size:
        return most
    return max(1, min(most, size * table.num_rows // table.nbytes))


def rows_of(feeds: Sequence[Feed]) -> float:
    """Number of update rows that reach an operator; infinite if only Spark can count them."""
    return sum((feed.source.rows if feed.source.rows is not None else np.inf) for feed in feeds)
