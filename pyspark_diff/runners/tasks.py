"""Functions that run inside Spark's Python workers.

An arrange consists of two functions with a shuffle between. `split_rows` turns rows into one
consolidated blob for each bucket, and `run_buckets` does a bucket's work on its blobs.
`work_in_place` does both at once, for rows that are in their buckets already. Errors of the library
travel as data: Spark would retry a task that raises an error, and would report the error as text.
Only transient errors of the file system are raised, since a retry may help.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import astuple
from typing import Any, Callable, Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext

from pyspark_diff import thresholds
from pyspark_diff.errors import (
    DiffError,
    earliest,
    errors_to_text,
    from_payload,
    to_payload,
    to_text,
)
from pyspark_diff.fallbacks import Fallbacks, counting
from pyspark_diff.kernels import ipc
from pyspark_diff.kernels.memory import worker_task
from pyspark_diff.kernels.split import split
from pyspark_diff.operators.contract import Stage
from pyspark_diff.runners.bilinear import Rest
from pyspark_diff.runners.bucket import read_bucket
from pyspark_diff.runners.fused import Fused, run_behind
from pyspark_diff.runners.parquet import ParquetScan
from pyspark_diff.runners.pieces import Given, Intake, RowsInMemory
from pyspark_diff.runners.read import Read
from pyspark_diff.runners.work import (
    BucketResult,
    Merge,
    Split,
    Work,
    merge_bucket,
    run_bucket,
)
from pyspark_diff.trace import storage
from pyspark_diff.trace.batch import BatchFile
from pyspark_diff.trace.credentials import sent

BLOBS = "bucket int, part long, blob binary, error string"
RESULTS = "bucket int, result string, output binary, error string"

#: The bucket of a result that reports rows outside of the task of their bucket.
MISPLACED = -1
#: The bucket of a result that is a list of the fallbacks of a task, not of update rows.
FELL_BACK = -2

#: Bytes of the number of a blob before its content, and the number of an error. Arrow needs buffers
#: at multiples of eight bytes.
NUMBER_BYTES, FAILED = 8, -1

Batches = Iterator[pa.RecordBatch]
Row = tuple[Any, ...]
#: From the number of a task to its blobs or results, as rows without the column of errors.
Task = Callable[[int], Iterator[Row]]
#: Update rows that a task reads or computes: a file, or a value with their computation.
Part = str | Rest | ParquetScan


@sent
def split_rows(how: Split, chain: Sequence[Stage] = ()) -> Callable[[Batches], Batches]:
    """A ``mapInArrow`` function from update rows to blobs, portable stages applied on the way."""

    def run(batches: Batches) -> Batches:
        return _as_data(BLOBS, _blobs(how, _staged(_chunks(batches), chain)))

    return run


@sent
def split_parts(how: Split, parts: Sequence[Part], chain: Sequence[Stage]) -> Task:
    """`split_rows` for rows that the tasks read or compute: a task for each part."""

    def run(number: int) -> Iterator[Row]:
        return _blobs(how, _chunks(_staged(_tables(parts[number]), chain)))

    return run


@sent
def read_parts(parts: Sequence[Part]) -> Callable[[Batches], Batches]:
    """A ``mapInArrow`` function from a range over parts to the update rows of the parts."""

    def run(batches: Batches) -> Batches:
        with errors_to_text(), storage.opened_for_task():
            for table in _read(batches, parts):
                yield from table.to_batches(max_chunksize=1 << 16)

    return run


@sent
def write_rows(directory: str) -> Callable[[Batches], Batches]:
    """A ``mapInArrow`` function that writes rows to files: yields path and number of rows."""

    def run(batches: Batches) -> Batches:
        return _written(_chunks(batches), directory)

    return run


@sent
def write_parts(
    parts: Sequence[Part], chain: Sequence[Stage], names: Sequence[str], directory: str
) -> Callable[[Batches], Batches]:
    """`write_rows` for rows that the tasks read or compute: partition i of a range has part i."""

    def run(batches: Batches) -> Batches:
        with errors_to_text(), storage.opened_for_task():
            tables = _staged(_read(batches, parts), chain)
            yield from _written(_chunks(table.select(names) for table in tables), directory)

    return run


@sent
def run_buckets(work: Work, fused: Sequence[Fused] = ()) -> Callable[[Batches], Batches]:
    """A ``mapInArrow`` function from one bucket's blobs to its result, and to the results of fused
    operators. Partition i has bucket i."""

    def blobs(batches: Batches) -> Iterator[tuple[int, int, pa.Buffer]]:
        for batch in batches:
            errors = batch.column("error").drop_null()
            if len(errors):
                raise _from_json(errors[0].as_py())
            for number in range(batch.num_rows):  # a blob each, never a row each
                bucket, part = (batch.column(name)[number].as_py() for name in ("bucket", "part"))
                yield bucket, part, batch.column("blob")[number].as_buffer()

    def run(batches: Batches) -> Batches:
        return _as_data(RESULTS, _counted(_results(work, fused, _partition(), blobs(batches))))

    return run


@sent
def run_moved(
    work: Work, fused: Sequence[Fused] = ()
) -> Callable[[int, Iterable[bytes]], Iterator[Row]]:
    """`run_buckets` for a bucket's blobs in the form of `moved`."""

    def blobs(bucket: int, received: Iterable[bytes]) -> Iterator[tuple[int, int, pa.Buffer]]:
        for content in received:
            part = int.from_bytes(content[:NUMBER_BYTES], "big", signed=True)
            blob = pa.py_buffer(content).slice(NUMBER_BYTES)
            if part == FAILED:
                raise _from_json(blob.to_pybytes().decode())
            yield bucket, part, blob

    def run(bucket: int, received: Iterable[bytes]) -> Iterator[Row]:
        results = _counted(_results(work, fused, bucket, blobs(bucket, received)))
        return _with_error(len(RESULTS.split(", ")), results)

    return run


def moved(task: Task) -> Callable[[int], Iterator[tuple[int, bytes]]]:
    """The blobs of a task, or its error, in the form of the shuffle: a number, then bytes."""

    def run(number: int) -> Iterator[tuple[int, bytes]]:
        for bucket, part, blob, error in _with_error(len(BLOBS.split(", ")), task(number)):
            if error is not None:
                part, blob = FAILED, error.encode()
            yield bucket, part.to_bytes(NUMBER_BYTES, "big", signed=True) + blob

    return run


def with_errors(task: Task) -> Task:
    """The task with a column of errors, and an error of the library as a row of its own."""
    return lambda number: _with_error(len(RESULTS.split(", ")), task(number))


def over_range(task: Task, ddl: str) -> Callable[[Batches], Batches]:
    """`with_errors` as a ``mapInArrow`` function from a range over the tasks to some columns."""

    def rows(batches: Batches) -> Iterator[Row]:
        for batch in batches:
            for number in batch.column(0).to_numpy():
                yield from task(number)

    return lambda batches: _as_data(ddl, rows(batches))


@sent
def work_in_place(
    how: Split, work: Work, fused: Sequence[Fused] = ()
) -> Callable[[Batches], Batches]:
    """`run_buckets` from update rows: partition i should have exactly the rows of bucket i.

    If a row is in a partition of another bucket, the task reports this and does no work.
    """

    most = thresholds.current.blob_rows

    def results(batches: Batches) -> Iterator[Row]:
        here, number = _partition(), 0
        intake = Intake(os.path.dirname(work.directory), work.most, work.name)
        for table in _chunks(batches):
            updates = how.updates(table)
            if (how.layout.buckets(updates, how.buckets) != here).any():
                yield MISPLACED, "", None
                return
            # Without a shuffle, consolidation before the intake saves nothing.
            for start in range(0, len(updates), most):
                part = updates.between(start, min(start + most, len(updates)))
                intake.add(here, part, number)
                number += 1
        yield from _done(work, fused, here, intake)

    def run(batches: Batches) -> Batches:
        return _as_data(RESULTS, _counted(results(batches)))

    return run


@sent
def read_buckets(read: Read, buckets: Sequence[int]) -> Task:
    """A task for each bucket, with the result of its reading."""

    def results(number: int) -> Iterator[Row]:
        began = time.perf_counter()
        result = read_bucket(read, buckets[number], RowsInMemory(read.most))
        yield _result(result, read.directory, read.all_buckets, began)

    return lambda number: _counted(results(number))


@sent
def merge_buckets(listed: Sequence[tuple[Merge, int]]) -> Task:
    """A task for each bucket of some arrangements that merges its files."""

    def run(number: int) -> Iterator[Row]:
        merge, bucket = listed[number]
        merged = merge_bucket(
            merge.files[bucket], merge.directory, bucket, merge.since, merge.most, merge.by_time
        )
        yield bucket, json.dumps({"files": _encoded(merged)}), None

    return run


def raise_error(errors: Iterable[str | None]) -> None:
    """Raise on the driver the earliest error that tasks reported, if there is one."""
    reported = [_from_json(error) for error in errors if error is not None]
    if reported:
        raise earliest(reported)


def _results(
    work: Work, fused: Sequence[Fused], here: int, blobs: Iterable[tuple[int, int, pa.Buffer]]
) -> Iterator[Row]:
    """The results of the bucket of some blobs."""
    intake = Intake(os.path.dirname(work.directory), work.most, work.name)
    for bucket, part, blob in blobs:
        intake.add(bucket, ipc.from_bytes(blob), part)
    yield from _done(work, fused, here, intake)


def _done(work: Work, fused: Sequence[Fused], here: int, intake: Intake) -> Iterator[Row]:
    """The results of a bucket. Fused operators may have work in a bucket without new updates."""
    outputs = work.buckets * (1 + len(fused))
    for bucket in intake.buckets() or [here]:
        result = None
        began = time.perf_counter()
        if bucket in intake.rows:
            result = run_bucket(work, bucket, intake, RowsInMemory(work.most))
            yield _result(result, work.directory, outputs, began)
            began = time.perf_counter()
        for result in run_behind(fused, bucket, result):
            yield _result(result, fused[result.operator - 1].directory, outputs, began)
            began = time.perf_counter()


def _counted(results: Iterator[Row]) -> Iterator[Row]:
    """The results of a task, and a last row with the fallbacks, if there are any."""
    with counting(Fallbacks()) as fallbacks:
        yield from results
    if fallbacks:
        yield FELL_BACK, json.dumps([[*kind, times] for kind, times in fallbacks.items()]), None


def _result(result: BucketResult, directory: str, outputs: int, began: float) -> Row:
    """The row of a result for the driver.

    Parameters
    ----------
    outputs : int
        Number of results of the job, which share the size of inline output.
    began : float
        Start of the work.
    """
    output, inline = result.output, None
    table = None if output.table is None else output.table.combine_chunks()
    most = thresholds.current.inline_output_bytes_max // outputs
    if table is not None and table.num_rows and table.nbytes <= most:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        inline = sink.getvalue().to_pybytes()
        output = Given(None, output.paths, output.rows)
    path = os.path.join(directory, f"out-{result.bucket:05d}.arrow")
    if output.paths:  # another attempt may spill other rows, so the file needs a name of its own
        path = f"{output.paths[-1].removesuffix('.arrow')}-last.arrow"
    output = _in_files(output, path)
    later = {
        code: _in_files(rows, os.path.join(directory, f"later-{code}-{result.bucket:05d}.arrow"))
        for code, rows in result.later.items()
    }
    text = json.dumps({
        "files": _encoded(result.files),
        "output": output[1:],
        "rows_in": result.rows_in,
        "rows_read": result.rows_read,
        "later": {code: rows[1:] for code, rows in later.items()},
        "due": {code: _encoded(files) for code, files in result.due.items()},
        "rest": result.rest,
        "operator": result.operator,
        "seconds": round(time.perf_counter() - began, 6),
    })
    return result.bucket, text, inline


def _in_files(output: Given, path: str) -> Given:
    """The rows, all in files."""
    if output.table is None or not output.table.num_rows:
        return Given(None, output.paths, output.rows)
    path, _ = storage.write_batch(path, output.table.combine_chunks(), make=False)
    return Given(None, (*output.paths, path), output.rows)


def _encoded(files: Iterable[BatchFile]) -> list[tuple[str, int, int]]:
    return [astuple(file) for file in files]


def _blobs(how: Split, tables: Iterable[pa.Table]) -> Iterator[tuple[int, int, bytes]]:
    number = _partition() << 24
    for table in tables:
        for bucket, part in split(how.updates(table), how.layout, how.buckets):
            most = thresholds.current.blob_rows
            for start in range(0, len(part), most):
                stop = min(start + most, len(part))
                yield bucket, number, ipc.to_bytes(part.between(start, stop))
                number += 1


def _chunks(batches: Iterable[pa.RecordBatch | pa.Table]) -> Iterator[pa.Table]:
    chunk: list[pa.Table] = []
    rows = size = 0
    for batch in batches:
        chunk.append(pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch)
        rows += batch.num_rows
        size += batch.nbytes
        limits = thresholds.current
        if rows >= limits.task_chunk_rows or size >= limits.task_chunk_bytes:
            yield pa.concat_tables(chunk)
            chunk, rows, size = [], 0, 0
    if chunk:
        yield pa.concat_tables(chunk)


def _written(tables: Iterable[pa.Table], directory: str) -> Batches:
    for number, table in enumerate(tables):
        if table.num_rows:
            name = f"rows-{_partition():05d}-{number:03d}.arrow"
            path = os.path.join(directory, name)
            with errors_to_text():
                path, _ = storage.write_batch(path, table.combine_chunks(), make=False)
            yield pa.RecordBatch.from_pydict({"path": [path], "rows": [table.num_rows]})


def _read(batches: Batches, parts: Sequence[Part]) -> Iterator[pa.Table]:
    """The rows of the parts whose numbers the batches have."""
    for batch in batches:
        for number in batch.column(0).to_numpy():
            yield from _tables(parts[number])


def _tables(part: Part) -> Iterable[pa.Table]:
    return [storage.read_table(part)] if isinstance(part, str) else part.tables()


def _staged(tables: Iterable[pa.Table], chain: Sequence[Stage]) -> Iterator[pa.Table]:
    for table in tables:
        for stage in chain:
            table = stage.on_table(table)
        yield table


def _as_data(ddl: str, rows: Iterator[Row]) -> Batches:
    """A record batch with some columns for each row."""
    names = [field.split()[0] for field in ddl.split(", ")]
    kinds = {"int": pa.int32(), "long": pa.int64(), "binary": pa.binary(), "string": pa.string()}
    types = [kinds[field.split()[1]] for field in ddl.split(", ")]
    for row in _with_error(len(names), rows):
        arrays = [pa.array([value], type=kind) for value, kind in zip(row, types)]
        yield pa.RecordBatch.from_arrays(arrays, names=names)


def _with_error(width: int, rows: Iterator[Row]) -> Iterator[Row]:
    """The rows of a task with an empty column of errors; an error of the library is a further row.

    The function raises transient errors of the file system, so that Spark tries the task again.
    """
    try:
        with worker_task(), storage.opened_for_task():
            for row in rows:
                yield *row, None
    except DiffError as error:
        if storage.may_pass(error):
            raise RuntimeError(to_text(error)) from error
        yield 0, *[None] * (width - 2), json.dumps([*to_payload(error), error.first_time])


def _from_json(text: str) -> DiffError:
    name, message, first_time = json.loads(text)
    error = from_payload(name, message)
    error.first_time = first_time
    return error


def _partition() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()
