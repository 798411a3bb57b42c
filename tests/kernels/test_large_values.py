"""Keys with more text than Arrow's offsets of 31 bits reach: any step refuses them by name.

Tests lower Arrow's limit of 2 GiB to `LIMIT` bytes.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from pyspark_diff import Dataflow, TooManyRowsError
from pyspark_diff.kernels import updates

LIMIT = 4_000


@pytest.fixture
def small_offsets(monkeypatch):
    """Arrow fails to put more than `LIMIT` bytes of text into one column."""
    concat = pa.concat_arrays

    def limited(arrays):
        if pa.types.is_string(arrays[0].type) and sum(array.nbytes for array in arrays) > LIMIT:
            raise pa.ArrowInvalid("offset overflow while concatenating arrays, consider casting")
        return concat(arrays)

    monkeypatch.setattr(pa, "concat_arrays", limited)


def test_a_column_that_is_too_large_is_refused_by_name(small_offsets):
    half = pa.array(["x" * (LIMIT - 500)])
    with pytest.raises(TooManyRowsError, match="2 GiB.*make the key finer"):
        updates.joined([half, half])


def test_a_key_that_is_too_large_is_refused_by_name(spark, small_offsets):
    with Dataflow(spark, runner="local", buckets=1) as flow:
        rows, feed = flow.input("rows", "k int, s string")
        counts = rows.reduce(
            lambda key, values: [(len(values),)], "n int", key="k"
        ).keep()
        feed.insert([(1, "a" * (LIMIT - 500)), (2, "b")])
        flow.advance_to(1)
        feed.insert([(1, "c" * (LIMIT - 500))])
        with pytest.raises(TooManyRowsError, match="2 GiB.*heaviest keys are"):
            flow.advance_to(2)
        # The failed step changed nothing, and the remedy works.
        feed.discard()
        feed.insert([(2, "d")])
        flow.advance_to(3)
        assert sorted(tuple(row) for row in counts.at().collect()) == [(1, 1), (2, 2)]


def test_many_bytes_are_read_in_tasks(spark, use_thresholds):
    use_thresholds(work_bytes_max=5_000)
    with Dataflow(spark, runner="local", buckets=2) as flow:
        rows, feed = flow.input("rows", "k int, s string")
        arranged = rows.arrange_by_key("k")
        for n in range(4):
            feed.insert([(n, "x" * 2_000)])
            flow.advance_to(n + 1)
        assert sorted((row.k, len(row.s)) for row in arranged.at().collect()) == [
            (n, 2_000) for n in range(4)
        ]


def test_messages_show_the_beginning_of_long_records(spark):
    with Dataflow(spark, runner="local") as flow:
        rows, feed = flow.input("rows", "s string")
        rows.flat_map(lambda row: [(1 // 0,)], "n int").keep()
        feed.insert([("x" * 100_000,)])
        with pytest.raises(Exception, match="xxx\\.\\.\\. with diff 1") as raised:
            flow.advance_to(1)
        assert len(str(raised.value)) < 5_000
