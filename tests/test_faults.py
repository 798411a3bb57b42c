"""What faults in tasks have taught: see ci/faults."""

from __future__ import annotations

import errno
import os

import pyarrow as pa
import pytest
from programs import files_of

from pyspark_diff import Dataflow, StorageError
from pyspark_diff.errors import from_text
from pyspark_diff.runners import tasks


def merged(path):
    """What a task gives that merges one file."""
    do = tasks.merge_buckets([(0, [str(path)])], str(path.parent), None)
    return [batch.to_pylist() for batch in do(iter([pa.record_batch({"id": [0]})]))]


def test_an_error_of_a_file_that_may_pass_is_for_spark_to_try_again(tmp_path, monkeypatch):
    def refuse(code):
        def fail(*_):
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(pa, "memory_map", fail)

    for code in errno.EIO, errno.ESTALE, errno.ETIMEDOUT:
        refuse(code)
        with pytest.raises(RuntimeError) as caught:
            merged(tmp_path / "00000.arrow")
        found = from_text(str(caught.value))
        assert isinstance(found, StorageError) and os.strerror(code) in str(found)
    # What does not pass is told at once.
    for code in errno.ENOSPC, errno.EDQUOT, errno.ENOENT, errno.EACCES:
        refuse(code)
        ((row,),) = merged(tmp_path / "00000.arrow")
        assert row["result"] is None and os.strerror(code) in row["error"]


def test_an_error_of_a_file_in_a_job_that_merges_is_one_of_the_library(spark, tmp_path):
    """It comes as a text of Spark's."""
    with Dataflow(spark, runner="spark", buckets=1, root=str(tmp_path)) as flow:
        path = tmp_path / "00000.arrow"
        path.mkdir()  # what is there is no file, which may pass
        with pytest.raises(StorageError, match=str(path)):
            flow._spark_runner.merge({0: [str(path)]}, str(tmp_path / "merged"), None)
        assert not files_of(flow) and not (tmp_path / "merged").exists()
