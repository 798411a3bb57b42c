"""The Spark runner: one job for each exchange, one task for each bucket.

The shuffle moves a few Arrow blobs of each task, never rows, and never state. A Spark table with
the buckets of the arrangement needs no shuffle: the task that reads a bucket does its work.
"""

from __future__ import annotations

import json
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import reduce
from typing import Any, Callable, ContextManager, Sequence, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.conversion import LocalDataToArrowConversion

from pyspark_diff import thresholds
from pyspark_diff.errors import StorageError, errors_from_text
from pyspark_diff.fallbacks import count
from pyspark_diff.operators.contract import Stage
from pyspark_diff.runners import tasks
from pyspark_diff.runners.bilinear import Rest
from pyspark_diff.runners.feed import Feed, UpdateRows
from pyspark_diff.runners.fused import Fused
from pyspark_diff.runners.pieces import Given
from pyspark_diff.runners.read import Read
from pyspark_diff.runners.stop import Stop
from pyspark_diff.runners.work import BucketResult, Merge, Split, Work
from pyspark_diff.spark.data_types import arrow_type, without_nullability
from pyspark_diff.spark.frames import (
    arrow_table,
    column,
    frame_of_table,
    map_in_arrow,
    update_struct,
)
from pyspark_diff.spark.jobs import run_job
from pyspark_diff.spark.jvm import needs_job, planned_by_bucket, reads_buckets
from pyspark_diff.spark.schema import DIFF, TIME, Schema, TimeType
from pyspark_diff.spark.session import parallelism
from pyspark_diff.spark.task_jobs import has_tasks, run_moved, run_tasks
from pyspark_diff.spark.values import filled
from pyspark_diff.trace import storage
from pyspark_diff.trace.batch import BatchFile

_T = TypeVar("_T")


class SparkRunner:
    """Runs kernels as Spark jobs.

    Parameters
    ----------
    stop : Stop, optional
        Cancellation of the step.
    around : callable
        Returns a context for each job.
    """

    def __init__(
        self, spark: SparkSession, time_type: TimeType, stop: Stop | None = None,
        around: Callable[[], ContextManager[object]] = nullcontext,
    ):
        #: The session of the jobs.
        self.session = spark
        self._time_type = time_type
        self._stop = stop or Stop()
        #: The context around each job, so that callers can observe jobs.
        self.around = around

    def run(
        self, work: Work, schema: Schema, feeds: Sequence[Feed], fused: Sequence[Fused] = ()
    ) -> list[BucketResult]:
        """Do a keyed operator's work of one step.

        Parameters
        ----------
        schema : Schema
            Data columns of the feeds after their chains, in the layout's order.
        fused : sequence of Fused
            Further operators of the same tasks.

        Returns
        -------
        list of BucketResult
            Results of the buckets with updates, and of fused operators in their buckets.
        """
        if not feeds:
            return []
        storage.settle(path for files in work.files.values() for path in files)
        storage.settle(path for operator in fused for path in operator.paths())
        for feed in feeds:
            self._settle(feed.source.rest)
        lent: list[str] = []
        directories = [work.directory, *(operator.directory for operator in fused)]
        with ExitStack() as stack:
            for directory in directories:
                stack.enter_context(storage.job_directory(directory))
            try:
                at_rest = [self._at_rest(work, feed, lent) for feed in feeds]
                results = self._job(work, schema, at_rest, fused)
            finally:
                storage.remove_files(lent)
            for feed in feeds:
                feed.source.check()
            paths = {path for result in results for path in result.paths()}
            for directory in directories:
                with suppress(OSError, StorageError):  # the rest goes with the dataflow
                    storage.remove_others(directory, paths)
            return results

    def _job(
        self, work: Work, schema: Schema, feeds: Sequence[Feed], fused: Sequence[Fused]
    ) -> list[BucketResult]:
        results = self._in_place(work, schema, feeds, fused)
        if results is not None:
            return results
        moved = self._moved(work, schema, feeds, fused)
        if moved is not None:
            return moved
        blobs = [self._blobs(work, schema, feed) for feed in feeds]
        frame = (
            reduce(DataFrame.union, blobs)
            .repartitionById(work.buckets, "bucket")
            .mapInArrow(tasks.run_buckets(work, fused), tasks.RESULTS)
        )
        return self._results(frame)

    def read(self, read: Read, rows: float) -> list[BucketResult]:
        """Do the work of one step of an operator that reads arrangements, without a shuffle."""
        storage.settle(read.paths())
        buckets = read.buckets()
        do = tasks.read_buckets(read, buckets)
        with storage.job_directory(read.directory):
            return self._decoded(self._tasks(len(buckets), do))

    def _moved(
        self, work: Work, schema: Schema, feeds: Sequence[Feed], fused: Sequence[Fused]
    ) -> list[BucketResult] | None:
        """The results if tasks can read or compute all rows themselves, without a Spark plan;
        None if Spark must compute them."""
        if not has_tasks():
            return None
        moved = []
        for feed in feeds:
            parts = self._parts(feed.bare())
            if parts is None:
                return None
            if parts:  # an evaluated feed without rows has no parts
                split = tasks.split_parts(feed.split(work, schema), parts, feed.chain)
                moved.append((len(parts), tasks.moved(split)))
        if not moved:
            return []
        do = tasks.run_moved(work, fused)
        with errors_from_text():
            rows = self._run(lambda: run_moved(self.session, moved, work.buckets, do))
        return self._decoded(rows)

    def _tasks(self, count: int, task: tasks.Task) -> Sequence[tasks.Row]:
        with errors_from_text():
            if has_tasks():
                return self._run(lambda: run_tasks(self.session, count, tasks.with_errors(task)))
            do = tasks.over_range(task, tasks.RESULTS)
            return self._run(self._range(count).mapInArrow(do, tasks.RESULTS).collect)

    def _in_place(
        self, work: Work, schema: Schema, feeds: Sequence[Feed], fused: Sequence[Fused]
    ) -> list[BucketResult] | None:
        """The results of a table with the buckets of the arrangement, without a shuffle; None if
        the table has other buckets."""
        width, frame = len(work.layout.types), feeds[0].source.frame
        if len(feeds) > 1 or frame is None or not width or not reads_buckets(frame, work.buckets):
            return None
        how, rows = self._rows(work, schema, feeds[0])
        results = map_in_arrow(rows, tasks.work_in_place(how, work, fused), tasks.RESULTS)
        with errors_from_text():
            if not self._run(lambda: planned_by_bucket(results, width, work.buckets)):
                return None
            collected = self._run(results.collect)
        # If the table has rows outside of their buckets, despite its plan, a shuffle follows.
        if any(row.bucket == tasks.MISPLACED for row in collected):
            return None
        return self._decoded(collected)

    def _results(self, results: DataFrame) -> list[BucketResult]:
        with errors_from_text():
            rows = self._run(results.collect)
        return self._decoded(rows)

    def _decoded(self, rows: Sequence[tasks.Row]) -> list[BucketResult]:
        tasks.raise_error(error for *_, error in rows)
        results = []
        for bucket, text, output, _ in rows:
            if bucket == tasks.FELL_BACK:
                for operator, path, reason, times in json.loads(text):
                    count(operator, path, reason, times)
            else:
                results.append(_result(bucket, json.loads(text), output))
        return results

    def _run(self, job: Callable[[], _T]) -> _T:
        self._stop.check()
        with self.around():
            return run_job(self.session, job, self._stop.check)

    def merge(self, merges: Sequence[Merge]) -> list[dict[int, tuple[BatchFile, ...]]]:
        """Merge the files of some arrangements, a task for each bucket, without a shuffle."""
        listed = [(merge, bucket) for merge in merges for bucket in sorted(merge.files)]
        storage.settle(path for merge, bucket in listed for path in merge.files[bucket])
        with ExitStack() as stack:
            for merge in merges:
                stack.enter_context(storage.job_directory(merge.directory))
            rows = self._tasks(len(listed), tasks.merge_buckets(listed))
        merged: dict[str, dict[int, tuple[BatchFile, ...]]] = {m.directory: {} for m in merges}
        tasks.raise_error(error for *_, error in rows)
        for (merge, bucket), (_, text, *_) in zip(listed, rows):
            merged[merge.directory][bucket] = _files(json.loads(text)["files"])
        return list(merged.values())

    def materialise(self, feed: Feed, schema: Schema, directory: str) -> UpdateRows:
        """Evaluate a feed once, into files of update rows with some columns."""
        parts, kinds = self._parts(feed), "path string, rows long"
        if parts is not None:
            names = [*schema.names, TIME, DIFF]
            write = tasks.write_parts(parts, feed.chain, names, directory)
            written = self._range(len(parts)).mapInArrow(write, kinds)
        else:
            frame = self.frame(feed.source)
            for stage in feed.chain:
                frame = stage.on_frame(frame)
            frame = frame.select(*map(column, schema.names), TIME, DIFF)
            written = map_in_arrow(frame, tasks.write_rows(directory), kinds)
        with errors_from_text(), storage.job_directory(directory):
            rows = self._run(written.collect)
        feed.source.check()
        return UpdateRows(schema, paths=tuple(r.path for r in rows), rows=sum(r.rows for r in rows))

    def fetch(self, source: UpdateRows) -> pa.Table:
        """The rows of a user's frame that Spark has to read, on the driver."""
        with errors_from_text():
            return self._run(lambda: arrow_table(self.frame(source)))

    def evaluate(self, table: pa.Table, chain: Sequence[Stage]) -> pa.Table:
        """Evaluate column expressions on a few rows: over a local relation, most without a job."""
        struct = chain[0].takes
        if struct is None:
            raise ValueError("only stages that are not portable are evaluated by Spark")
        # Spark's types, since Arrow's types have no collations. An empty list for an empty table,
        # since the conversion fails for a table without chunks.
        rows_in = filled(table.select(struct.names), struct) if table.num_rows else []
        frame = self.session.createDataFrame(rows_in, struct)
        for stage in chain:
            frame = stage.on_frame(frame)
        if table.num_rows > thresholds.current.collect_rows_max:
            return self._run(lambda: arrow_table(frame))
        # Only a job can call users' functions, also for few rows.
        try:
            rows = self._run(frame.collect) if needs_job(frame) else frame.collect()
        except (ValueError, OverflowError):  # Python has no dates after the year 9999
            return self._run(lambda: arrow_table(frame))
        if not rows:  # the conversion knows no empty table
            return pa.schema([(f.name, arrow_type(f.dataType)) for f in frame.schema]).empty_table()
        return LocalDataToArrowConversion.convert(rows, frame.schema, False)

    def frame(self, source: UpdateRows) -> DataFrame:
        """Update rows as a frame with time and diff columns."""
        if source.rest:
            rest = self._shares(source.rest)
            return self._range(len(rest)).mapInArrow(
                tasks.read_parts(rest), update_struct(source.schema, self._time_type)
            )
        if source.frame is None:
            if source.table is not None:
                # The task that reads a null time or diff raises the error.
                struct = without_nullability(update_struct(source.schema, self._time_type))
                return frame_of_table(self.session, source.table.select(struct.names), struct)
            return self._range(len(source.paths)).mapInArrow(
                tasks.read_parts(source.paths), update_struct(source.schema, self._time_type)
            )
        frame = source.frame
        if source.time is not None:
            moment = F.lit(source.time)
            kind = self._time_type.kind
            if isinstance(kind, T.DateType):
                moment = F.date_from_unix_date(moment.cast("int"))
            elif isinstance(kind, T.TimestampNTZType):
                # As text, since a datetime would become an instant in the zone of this process.
                moment = F.lit(self._time_type.decode(source.time).isoformat(" "))
            elif isinstance(kind, T.TimestampType):
                moment = F.timestamp_micros(moment)
            frame = frame.withColumn(TIME, moment.cast(kind))
        if source.diff is not None:
            frame = frame.withColumn(DIFF, F.lit(source.diff).cast("long"))
        return frame

    def _blobs(self, work: Work, schema: Schema, feed: Feed) -> DataFrame:
        parts = self._parts(feed.bare())
        if parts is None:
            how, rows = self._rows(work, schema, feed)
            return map_in_arrow(rows, tasks.split_rows(how), tasks.BLOBS)
        split = tasks.split_parts(feed.split(work, schema), parts, feed.chain)
        do = tasks.over_range(split, tasks.BLOBS)
        return self._range(len(parts)).mapInArrow(do, tasks.BLOBS)

    def _parts(self, feed: Feed) -> Sequence[tasks.Part] | None:
        """The rows of a feed before its chain, in a part for each task; None if Spark must compute
        them, or the chain."""
        source = feed.source
        if source.table is not None or not feed.portable:
            return None
        if source.frame is not None:
            scan = source.scan
            return None if scan is None else scan.shared(parallelism(self.session))
        return self._shares(source.rest) if source.rest else source.paths

    def _rows(self, work: Work, schema: Schema, feed: Feed) -> tuple[Split, DataFrame]:
        """The rows of a feed as a frame with the columns to shuffle, and their conversion into
        blobs."""
        how, frame = feed.split(work, schema), self.frame(feed.source)
        for stage in feed.chain:
            frame = stage.on_frame(frame)
        # Times and diffs that all rows share are not sent: fewer columns reach Python faster.
        into_diff = work.diff_columns.columns if work.diff_columns else ()
        moved = list(dict.fromkeys((*schema.names, *into_diff)))
        moved += [TIME] if how.time is None else []
        moved += [DIFF] if how.diff is None else []
        frame = frame.select(*[column(name) for name in moved])
        if not moved:
            frame = frame.select(F.lit(True).alias(DIFF))
        return how, frame

    def _at_rest(self, work: Work, feed: Feed, lent: list[str]) -> Feed:
        """The feed with its table in files: workers map them, where Spark would copy each row."""
        table = feed.source.table
        if table is None or not all(stage.portable for stage in feed.chain):
            return feed
        size = max(1, -(-table.num_rows // work.buckets))
        paths = []
        for start in range(0, table.num_rows, size):
            path = f"{work.directory}/in-{len(lent):05d}.arrow"
            path, _ = storage.write_batch(path, table.slice(start, size).combine_chunks())
            lent.append(path)
            paths.append(path)
        return replace(feed, source=replace(feed.source, table=None, paths=tuple(paths)))

    def _shares(self, rest: Sequence[Rest]) -> list[Rest]:
        """A rest for each task: one key may have most rows, so that a task for each bucket would
        not spread them."""
        self._settle(rest)
        shares = parallelism(self.session)
        return [share for part in rest for share in part.shared(shares)]

    def _settle(self, rest: Sequence[Rest]) -> None:
        for part in rest:
            storage.settle(part.read.paths())

    def _range(self, count: int) -> DataFrame:
        return self.session.range(0, count, 1, count)


def _result(bucket: int, fields: dict[str, Any], output: bytes | None) -> BucketResult:
    table = None
    if output is not None:
        with pa.ipc.open_stream(output) as reader:
            table = reader.read_all()
    paths, rows = fields["output"]
    return BucketResult(
        bucket, _files(fields["files"]), Given(table, tuple(paths), rows), fields["rows_in"],
        fields["rows_read"],
        {int(at): Given(None, tuple(names), n) for at, (names, n) in fields["later"].items()},
        {int(at): _files(files) for at, files in fields["due"].items()},
        tuple(map(tuple, fields["rest"])), operator=fields["operator"], seconds=fields["seconds"],
    )


def _files(files: Sequence[tuple[str, int, int]]) -> tuple[BatchFile, ...]:
    return tuple(BatchFile(*file) for file in files)
