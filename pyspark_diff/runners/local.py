"""The driver runner: the same kernels in the driver's own process, without any Spark job.

A Spark job costs a tenth of a second whatever its size; a few thousand updates are done here
before it would have been planned.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from pyspark_diff.kernels.split import partition
from pyspark_diff.operators.contract import Stage
from pyspark_diff.runners.feed import Feed
from pyspark_diff.runners.pieces import Intake
from pyspark_diff.runners.read import Read, read_bucket
from pyspark_diff.runners.stop import Stop
from pyspark_diff.runners.work import BucketResult, Split, Work, merge_bucket, run_bucket
from pyspark_diff.spark.schema import Schema
from pyspark_diff.trace import storage
from pyspark_diff.trace.batch import BatchFile

#: From this many rows on, buckets are done side by side.
THREADED = 50_000

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

    def run(self, work: Work, schema: Schema, feeds: Sequence[Feed]) -> list[BucketResult]:
        """As `pyspark_diff.runners.spark.SparkRunner.run`."""
        intake = Intake(os.path.dirname(work.directory), work.most)
        for feed in feeds:
            how = Split(
                work.layout,
                schema.names,
                work.buckets,
                None,
                None,
                feed.lower,
                feed.upper,
                feed.floor(work.lower),
                feed.ceiling(work.upper),
                work.diff_columns,
            )
            for table in self.tables(feed):
                updates = how.updates(table)
                # Not consolidated before: nothing is moved from here to there.
                for bucket, part in partition(updates, work.layout, work.buckets):
                    intake.add(bucket, part)
        return self._each(
            lambda bucket: run_bucket(work, bucket, intake, in_memory=True),
            intake.buckets(),
            sum(intake.rows.values()),
        )

    def read(self, read: Read, rows: float) -> list[BucketResult]:
        """As `pyspark_diff.runners.spark.SparkRunner.read`; so many rows are new."""
        return self._each(
            lambda bucket: read_bucket(read, bucket, in_memory=True), read.buckets(), rows
        )

    def merge(
        self, files: Mapping[int, Sequence[str]], directory: str, since: int | None, most: int
    ) -> dict[int, tuple[BatchFile, ...]]:
        """As `pyspark_diff.runners.spark.SparkRunner.merge`."""
        merged = {}
        for bucket in sorted(files):
            self._stop.check()
            merged[bucket] = merge_bucket(
                files[bucket], directory, bucket, since, most, in_memory=True
            )
        return merged

    def tables(self, feed: Feed) -> Iterator[pa.Table]:
        """The update rows of a feed, its chain applied."""
        source = feed.source
        if source.frame is not None:
            raise ValueError("a user's frame is evaluated by Spark, not on the driver")
        if source.table is not None:
            tables: Iterable[pa.Table] = [source.table]
        elif source.rest:
            tables = chain.from_iterable(rest.tables() for rest in source.rest)
        else:
            tables = map(storage.read_table, source.paths)
        for table in tables:
            self._stop.check()
            if table.num_rows:
                with self._stop.obeyed():
                    staged = self._staged(table, feed.chain)
                yield staged

    def _each(
        self, do: Callable[[int], BucketResult], buckets: Sequence[int], rows: float
    ) -> list[BucketResult]:
        """The results of all buckets; many rows are worth a thread each, as kernels let others
        run."""

        def done(bucket: int) -> BucketResult:
            self._stop.check()
            with self._stop.obeyed():
                return do(bucket)

        if rows < THREADED or len(buckets) < 2:
            return list(map(done, buckets))
        with ThreadPoolExecutor(min(len(buckets), os.cpu_count() or 1)) as pool:
            try:
                results = pool.map(done, buckets)
            except RuntimeError:  # the program ends, and waits for a step: no thread can be had
                results = map(done, buckets)
            return list(results)

    def _staged(self, table: pa.Table, stages: Sequence[Stage]) -> pa.Table:
        waiting: list[Stage] = []
        for stage in (*stages, None):
            if stage is not None and not stage.portable:
                waiting.append(stage)
                continue
            if waiting:
                # Neighbours are evaluated in one go: the cost is per call.
                table = self._evaluate(table, waiting)
                waiting = []
            if stage is not None:
                table = stage.on_table(table)
        return table


def rows_of(feeds: Sequence[Feed]) -> float:
    """Number of update rows that reach an operator; infinite where only Spark can tell."""
    return sum((feed.source.rows if feed.source.rows is not None else np.inf) for feed in feeds)
