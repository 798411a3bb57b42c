"""One bucket, or several together, of an operator that reads arrangements: bilinear or a replay."""

from __future__ import annotations

from dataclasses import replace
from typing import Sequence

from pyspark_diff.kernels.updates import concat
from pyspark_diff.operators.contract import BilinearKernel, ReplayKernel
from pyspark_diff.runners.bilinear import process_bilinear
from pyspark_diff.runners.pieces import RowsInMemory
from pyspark_diff.runners.read import Read
from pyspark_diff.runners.replay import process_replay
from pyspark_diff.runners.view import opened
from pyspark_diff.runners.work import BucketResult, write_files
from pyspark_diff.trace import storage


def read_bucket(
    read: Read, bucket: int, waiting: RowsInMemory, *, in_memory: bool = False
) -> BucketResult:
    """Process one bucket in a step, or in a loop at a coordinate.

    Parameters
    ----------
    waiting : RowsInMemory
        The count of output rows in memory.
    in_memory : bool
        Small batches may stay in this process's memory.
    """
    read = read.fitting(bucket)
    if isinstance(read.kernel, BilinearKernel):
        return process_bilinear(read, read.kernel, bucket, waiting, in_memory)
    if isinstance(read.kernel, ReplayKernel):
        return process_replay(read, read.kernel, bucket, waiting, in_memory)
    raise TypeError(f"{read.kernel!r} is neither a replay nor bilinear")


def read_together(
    read: Read, buckets: Sequence[int], waiting: RowsInMemory
) -> list[BucketResult] | None:
    """Process several buckets in one call: see `pyspark_diff.runners.work.run_together`.

    Returns
    -------
    list of BucketResult or None
        None if they exceed the memory, or have too many pairs.
    """
    own = read.own
    united = replace(
        read, views=tuple(view.together(buckets) for view in read.views),
        own=None if own is None else own.together(buckets),
    ).fitting(0)
    if united.ranges(0) != [None] or united.looks_up_many(0):
        return None
    whole = read_bucket(united, 0, waiting, in_memory=True)
    if whole.rest:
        storage.remove_files(list(whole.paths()))
        return None
    result = replace(whole, bucket=-1, files=())
    if whole.files and own is not None:
        updates = concat(opened(file.path for file in whole.files))
        storage.remove_files([file.path for file in whole.files])
        files = write_files(read.directory, updates, own.layout, read.all_buckets)
        result = replace(result, together=files)
    return [result]
