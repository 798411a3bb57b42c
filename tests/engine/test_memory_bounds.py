"""A step processes more rows than fit into memory in pieces, with the same answer.

    A setting bounds the memory, not the input, the state or the output of an operator.
    A step that needs more raises an error with the operator and its heaviest keys.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from time import sleep
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import files_of
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff import Dataflow, StorageError, TooManyRowsError, thresholds
from pyspark_diff.engine.context import StepContext
from pyspark_diff.kernels import ipc, key_ranges, machine_memory
from pyspark_diff.kernels.key_ranges import fitting, ranges, updates_between
from pyspark_diff.kernels.layout import Layout
from pyspark_diff.kernels.updates import UpdateChunk
from pyspark_diff.operators.aggregate import AggregateKernel
from pyspark_diff.operators.collate import CollateKernel
from pyspark_diff.operators.count import CountKernel
from pyspark_diff.operators.join import JoinKernel
from pyspark_diff.operators.top_k import TopKKernel
from pyspark_diff.runners import bilinear, bucket, local, pieces, read, tasks
from pyspark_diff.runners.feed import Feed, UpdateRows
from pyspark_diff.runners.local import LocalRunner
from pyspark_diff.runners.work import OutputForm, Work, run_bucket
from pyspark_diff.spark import session as sessions
from pyspark_diff.spark.schema import DIFF, TIME, Schema
from pyspark_diff.trace import storage

RUNNERS = ["local", "spark"]
PIECE = 1000


@pytest.fixture
def small(another):
    """A session whose dataflows hold few rows in memory at once."""
    another.conf.set("spark.pyspark_diff.pieceRows", str(PIECE))
    return another


@pytest.fixture
def largest(monkeypatch):
    """Counts: most rows of one output table, spilled files, and tables that a rest produced."""
    counts = Counter()
    table, spilled, tables = OutputForm.table, storage.spilled, bilinear.Rest.tables

    def watched(self, changes):
        counts["rows"] = max(counts["rows"], changes[2].size)
        return table(self, changes)

    def counted(folder, updates):
        counts["spilled"] += 1
        return spilled(folder, updates)

    def counted_tables(self):
        for piece in tables(self):
            counts["made"] += 1
            yield piece

    monkeypatch.setattr(OutputForm, "table", watched)
    monkeypatch.setattr(storage, "spilled", counted)
    monkeypatch.setattr(bilinear.Rest, "tables", counted_tables)
    return counts


# Ranges of keys.

sorted_keys = st.lists(
    st.integers(-50, 50) | st.sampled_from([-(2**63), 2**63 - 1]), max_size=60
).map(
    lambda keys: UpdateChunk(np.array(sorted(keys), np.int64), None, 0, 1)
)


@given(
    new=st.lists(sorted_keys, min_size=1, max_size=3), old=st.lists(sorted_keys, max_size=3),
    most=st.integers(1, 200), few=st.sampled_from([0, 1 << 16]),
)
def test_ranges_cover_the_new_keys_once_and_are_small(new, old, most, few):
    with thresholds.using(exact_ranges_rows_max=few):
        cuts = ranges(new, old, most)
    if cuts == [None]:
        assert sum(map(len, (*new, *old))) <= most or not sum(map(len, new))
        return
    assert all(low <= high for low, high in cuts)
    assert all(before[1] < after[0] for before, after in zip(cuts, cuts[1:]))
    keys = {key for updates in new for key in updates.key64.tolist()}
    assert all(sum(low <= key <= high for low, high in cuts) == 1 for key in keys)
    for low, high in cuts:
        touched = [k for updates in (*new, *old) for k in updates.key64.tolist()
                   if low <= k <= high and k in keys]
        assert len(touched) <= most or len(set(touched)) == 1
    for updates in new:
        parts = [updates_between(updates, keys).key64 for keys in cuts]
        assert np.concatenate(parts).tolist() == updates.key64.tolist()


def test_many_keys_are_counted_by_strides(use_thresholds):
    use_thresholds(exact_ranges_rows_max=10)
    new = UpdateChunk(np.repeat(np.arange(5000), 3), None, 0, 1)
    old = UpdateChunk(np.arange(20_000), None, 0, 1)
    cuts = ranges([new], [old], 640)
    sizes = [len(updates_between(new, keys)) + len(updates_between(old, keys)) for keys in cuts]
    assert len(cuts) > 20 and max(sizes) <= 640
    assert sum(len(updates_between(new, keys)) for keys in cuts) == len(new)


def test_few_keys_with_long_histories_are_not_one_range():
    # More rows than `ranges` counts exactly, and fewer new keys than a stride of `most // 64`.
    new = UpdateChunk(np.arange(70_000), None, 0, 1)
    old = UpdateChunk(np.repeat(np.arange(70_000), 130), None, 0, 1)
    most = 1 << 23
    cuts = ranges([new], [old], most)
    assert most >= max(
        len(updates_between(new, keys)) + len(updates_between(old, keys)) for keys in cuts
    )
    assert sum(len(updates_between(new, keys)) for keys in cuts) == len(new)


# The total of all buckets that run at once.


@given(rows=st.lists(st.integers(0, 300), min_size=1), most=st.integers(8, 500),
       threads=st.integers(1, 8))
def test_what_buckets_hold_is_shared(rows, most, threads):
    each = pieces.share(rows, most, threads)
    rows_held = sum(sorted(min(each, bucket) for bucket in rows)[-threads:])
    assert rows_held <= most
    # The threads use all of the room, except for the remainder of the division.
    assert each == most or rows_held > most - threads


@pytest.fixture
def at_work(monkeypatch, use_thresholds):
    """The most rows in running kernels at once, in outputs that waited, and in all outputs."""
    use_thresholds(threaded_rows_min=1)
    monkeypatch.setattr(local.os, "cpu_count", lambda: 4)
    most_rows, now, lock = Counter(), Counter(), threading.Lock()

    def watched(kernel):
        def call(self, sides, *others):
            rows = sum(len(part) for s in sides for part in (*s.old, *s.earlier, s.new.updates))
            with lock:
                now["held"] += rows
                most_rows["held"] = max(most_rows["held"], now["held"])
            sleep(0.03)  # the other kernels begin meanwhile
            results = kernel(self, sides, *others)
            with lock:
                now["held"] -= rows
            return results
        return call

    def waiting(run):
        def call(*args):
            results = run(*args)
            outputs = [output for r in results for output in (r.output, *r.later.values())]
            rows = sum(output.table.num_rows for output in outputs if output.table is not None)
            most_rows["waiting"] = max(most_rows["waiting"], rows)
            most_rows["given"] = max(most_rows["given"], sum(output.rows for output in outputs))
            return results
        return call

    for kernel in (AggregateKernel, CollateKernel, CountKernel, JoinKernel, TopKKernel):
        monkeypatch.setattr(kernel, "__call__", watched(kernel.__call__))
    for name in ("run", "read"):
        monkeypatch.setattr(LocalRunner, name, waiting(getattr(LocalRunner, name)))
    return most_rows


def test_buckets_at_work_hold_no_more_together(small, at_work):
    with Dataflow(small, runner="local", buckets=4) as flow:
        rows, session = flow.input("rows", "k long, v long")
        counts = rows.count().keep()
        largest = rows.groupBy("k").agg(F.max("v").alias("v")).keep()
        pairs = rows.join(rows.select("k", F.col("v").alias("w")), "k").select("v", "w")
        sums = pairs.groupBy("w").agg(F.sum("v").alias("s")).keep()
        data = [(i // 2, i) for i in range(3600)]  # 900 for each bucket
        session.insert(data)
        flow.advance_to(1)
        most_held = at_work["held"]  # a later range contains old rows that no kernel reads
        session.insert(data[:10])
        flow.advance_to(2)
        assert counts.at().count() == 3600
        assert dict(largest.at().collect()) == {i // 2: i | 1 for i in range(3600)}
        totals = {row.w: row.s for row in sums.at().collect()}
        assert totals[3599] == 3598 + 3599 and totals[2] == 2 * 2 * (2 + 3)
    assert PIECE // 2 < most_held <= PIECE
    # Outputs count only when they exist, so one piece of a bucket may exceed the limit.
    assert at_work["waiting"] <= PIECE < 3600 <= at_work["given"]


def test_a_large_bucket_beside_small_ones_is_in_few_pieces(small, at_work, largest):
    with Dataflow(small, runner="local", buckets=4) as flow:
        rows, session = flow.input("rows", "k long, v long")
        sums = rows.groupBy("k").agg(F.max("v").alias("v")).keep()
        session.insert([(0, i) for i in range(900)] + [(k, k) for k in range(1, 40)])
        flow.advance_to(1)
        assert dict(sums.at().collect()) == {0: 899, **{k: k for k in range(1, 40)}}
    assert at_work["held"] > 900 and not largest["spilled"]


def test_a_table_comes_in_by_slices(small):
    table = pa.table({"k": np.arange(5 * PIECE)})
    source = UpdateRows(Schema(T.StructType().add("k", "long")), table=table, rows=table.num_rows)
    slices = list(LocalRunner(None).tables(Feed(source), PIECE))
    assert [part.num_rows for part in slices] == [PIECE] * 5
    assert pa.concat_tables(slices) == table


def test_few_rows_that_become_many_are_not_all_made_to_be_counted(tmp_path, monkeypatch):
    """A stage may turn a row into many: the runner cuts them into buckets as they arrive."""
    most, read_numbers = 100, []
    zeros = np.zeros(most // 2, np.int64)
    table = pa.table({"k": zeros, TIME: zeros, DIFF: zeros + 1})

    def tables(self, feed, most=None):
        for number in range(20):
            read_numbers.append(number)
            yield table

    monkeypatch.setattr(LocalRunner, "tables", tables)
    work = Work(
        "arrange", Layout((pa.int64(),)), ("k",), 2, None, None, {}, str(tmp_path / "made"), True,
        None, None, None, most,
    )
    schema = Schema(T.StructType().add("k", "long"))
    (output,) = LocalRunner(None).run(work, schema, [Feed(UpdateRows(schema, rows=1))])
    assert [file.rows for file in output.files] == [1]
    assert read_numbers == [0, 1, 2, *range(20)]  # three tables are too many; then all, singly


# Wide rows.


@pytest.fixture
def narrow(use_thresholds):
    """The limit on the bytes of columns in memory."""
    use_thresholds(work_bytes_max=100_000)
    return 100_000


def test_wide_rows_are_fewer(narrow):
    text = pa.array(["x" * (10 if i < 500 else 1000) for i in range(1000)])
    wide = UpdateChunk(np.arange(1000), (text,), 0, 1)
    most = fitting([wide], 5000)
    assert max(updates_between(wide, keys).nbytes for keys in ranges([wide], [], most)) <= narrow
    assert fitting([wide.between(0, 500)], 5000) == 5000


@pytest.mark.slow
def test_wide_rows_are_worked_through_in_pieces(spark, narrow, largest, monkeypatch):
    sizes, table = [], OutputForm.table

    def watched(self, changes):
        sizes.append(sum(column.nbytes for column in changes[0]))
        return table(self, changes)

    monkeypatch.setattr(OutputForm, "table", watched)
    with Dataflow(spark, runner="local", buckets=1) as flow:
        rows, session = flow.input("rows", "k long, v string")
        counts = rows.count().keep()
        most = rows.groupBy("k").agg(F.max("v").alias("v")).keep()
        pairs = rows.join(rows.select("k", F.col("v").alias("w")), "k")
        lengths = pairs.groupBy(F.length("v").alias("n")).agg(F.count("*").alias("c")).keep()
        data = [(i % 200, f"{i:0400}") for i in range(1000)]
        for time in (1, 2):
            session.insert(data)
            flow.advance_to(time)
            assert {row["count"] for row in counts.at().collect()} == {time}
            assert dict(most.at().collect()) == {k: f"{800 + k:0400}" for k in range(200)}
            assert dict(lengths.at().collect()) == {400: 5 * 5 * time**2 * 200}
        for batch in (b for trace in flow._state.traces.values() for b in trace.batches):
            for file in (f for files in batch.files.values() for f in files):
                assert storage.open_updates(file.path).nbytes <= narrow
    assert 0 < max(sizes) <= 1.1 * narrow and largest["spilled"]  # 1.1: also numbers


# A join that explodes.


def exploding(spark, runner, rows=400, *, keys=3, **options):
    """The flow, a join with most of its pairs under one key, and its two inputs."""
    flow = Dataflow(spark, runner=runner, buckets=2, **options)
    left, left_in = flow.input("left", "k long, x long")
    right, right_in = flow.input("right", "k long, y long")
    left_in.insert([(i % keys if i % 10 == 0 else 7, i) for i in range(rows)])
    right_in.insert([(i % keys if i % 10 == 0 else 7, -i) for i in range(rows)])
    return flow, left.join(right, "k"), left_in, right_in


def expected(lefts, rights):
    pairs = Counter()
    for k, x in lefts:
        for other, y in rights:
            if k == other:
                pairs[x % 5] += x + y
    return pairs


@pytest.mark.parametrize("runner", RUNNERS)
def test_pairs_are_reduced_by_what_follows(small, largest, runner):
    flow, pairs, left_in, right_in = exploding(small, runner)
    with flow:
        sums = (
            pairs.select((F.col("x") % 5).alias("r"), (F.col("x") + F.col("y")).alias("v"))
            .groupBy("r").agg(F.sum("v").alias("s")).keep()
        )
        kinds = pairs.select("x").distinct().count().keep()
        rows = [(i % 3 if i % 10 == 0 else 7, i) for i in range(400)]
        lefts, rights = list(rows), [(k, -x) for k, x in rows]
        flow_steps = [
            lambda: None,
            lambda: (left_in.remove(lefts[:100]), lefts.__delitem__(slice(0, 100))),
            lambda: (right_in.remove(rights[50:]), rights.__delitem__(slice(50, None))),
            lambda: (left_in.remove(lefts), lefts.clear()),
        ]
        for time, change in enumerate(flow_steps, 1):
            change()
            for session in (left_in, right_in):
                session.advance_to(time)
                session.flush()
            flow.step()
            assert dict(sums.at().collect()) == expected(lefts, rights)
            there = {x for k, x in lefts if any(k == other for other, _ in rights)}
            assert {row.x for row in kinds.at().collect()} == there
            assert files_of(flow) <= flow._state.paths() | flow._outputs.pinned
    if runner == "local":  # on Spark other processes do the work
        assert largest["made"] > 100
        assert largest["rows"] <= 2 * PIECE


def test_pairs_are_made_in_pieces_where_there_is_room_for_more(another, largest, use_thresholds):
    use_thresholds(join_piece_pairs=PIECE)
    flow, pairs, left_in, right_in = exploding(another, "local")
    with flow:
        sums = pairs.groupBy("x").agg(F.min("y").alias("y")).keep()
        left_in.close()
        right_in.close()
        flow.step()
        assert sums.at().count() == 400
    assert largest["made"] > 100 and largest["rows"] <= 2 * PIECE


def test_pieces_of_any_size_have_the_same_columns(another):
    """Tasks concatenate small and large pieces after a filter."""
    another.conf.set("spark.pyspark_diff.pieceRows", "10000")
    few = [(k, k % 5, 1) for k in range(10, 400)]
    with Dataflow(another, runner="spark", buckets=2) as flow:
        left, left_in = flow.input("left", "k int, x int, y int")
        right, right_in = flow.input("right", "k int, z int")
        names, names_in = flow.input("names", "x int, w int")
        pairs = left.join(right, "k").where("(y + z) % 2 = 0")
        counts = pairs.join(names, "x").select("w").count().keep()
        left_in.insert([*few, *[(i % 2, i % 5, i) for i in range(500)]])
        right_in.insert([*[(k, 3) for k, _, _ in few], *[(i % 2, i) for i in range(300)]])
        names_in.insert([(x, -x) for x in range(5)])
        for session in left_in, right_in, names_in:
            session.close()
        flow.step()
        # Numbers of the same parity meet, and their sum is even.
        assert sorted(map(tuple, counts.at().collect())) == [
            (-x, 100 * 150 + 78) for x in (4, 3, 2, 1, 0)
        ]


def test_what_a_small_step_meets_is_not_cut_as_pairs_are(another, monkeypatch, use_thresholds):
    """A join looks up a few keys in a large arrangement: only its output counts as pairs."""
    use_thresholds(join_piece_pairs=100)
    all_ranges = []

    def ranges(*arguments):
        all_ranges.append(key_ranges.ranges(*arguments))
        return all_ranges[-1]

    monkeypatch.setattr(read, "ranges", ranges)
    with Dataflow(another, runner="local", buckets=1) as flow:
        left, left_in = flow.input("left", "k int, x int")
        pairs = left.join(left.toDF("k", "y"), "k").keep()
        left_in.insert([(n, n) for n in range(1000)])
        flow.advance_to(1)
        all_ranges.clear()
        left_in.insert([(7, 1)])
        flow.advance_to(2)
        assert pairs.at().count() == 1003
    assert all_ranges and all(parts == [None] for parts in all_ranges)


def test_what_meets_much_is_not_begun_with_all_buckets_at_once(
    another, monkeypatch, use_thresholds,
):
    """All buckets would look up the keys, and each bucket would then repeat the work."""
    use_thresholds(join_piece_pairs=100)
    begun, read_bucket = [], bucket.read_bucket

    def begin(*arguments, **options):
        begun.append(arguments)
        return read_bucket(*arguments, **options)

    monkeypatch.setattr(bucket, "read_bucket", begin)
    with Dataflow(another, runner="local", buckets=2) as flow:
        left, left_in = flow.input("left", "k int, x int")
        right, right_in = flow.input("right", "k int, y int")
        pairs = left.join(right, "k").keep()
        left_in.insert([(n % 500 * (n % 2), n) for n in range(1000)])
        flow.advance_to(1)
        begun.clear()
        right_in.insert([(n, 1) for n in range(1, 20, 2)])
        flow.advance_to(2)
        assert begun and pairs.at().count() == 20
        begun.clear()
        right_in.insert([(n, 2) for n in range(20)])
        flow.advance_to(3)
        assert not begun and pairs.at().count() == 540


@pytest.mark.parametrize("anti", [False, True])
def test_a_key_that_comes_and_goes_often_in_one_step(small, largest, anti):
    with Dataflow(small, runner="local", buckets=1) as flow:
        left, left_in = flow.input("left", "k long, x long")
        keys, keys_in = flow.input("keys", "k long")
        left_in.update([(7, i, 0, 1) for i in range(200)] + [(8, 0, 0, 1)])
        keys_in.update([(7, time, (-1) ** time) for time in range(101)])
        joined = left.antijoin(keys) if anti else left.semijoin(keys)
        times = joined.select((F.col("x") % 2).alias("p")).count().keep()
        counts = joined.count().keep()
        left_in.close()
        keys_in.close()
        flow.step()
        there = [(8, 0, 1)] if anti else [(7, i, 1) for i in range(200)]
        assert sorted(map(tuple, counts.at().collect())) == there
        there = {(0, 1)} if anti else {(0, 100), (1, 100)}
        assert {tuple(row) for row in times.at().collect()} == there
    assert largest["made"] and largest["rows"] <= 2 * PIECE


@pytest.mark.parametrize("runner", RUNNERS)
def test_what_is_kept_of_an_explosion_is_in_pieces(small, largest, runner):
    flow, pairs, left_in, right_in = exploding(small, runner, 120)
    with flow:
        arranged = pairs.arrange_by_self()
        left_in.close()
        right_in.close()
        flow.step()
        rows = [(i % 3 if i % 10 == 0 else 7, i) for i in range(120)]
        rows_expected = Counter((k, x, -y) for k, x in rows for other, y in rows if k == other)
        assert Counter(map(tuple, arranged.at().collect())) == rows_expected
        batches = [b for trace in flow._state.traces.values() for b in trace.batches]
        assert max(len(files) for batch in batches for files in batch.files.values()) > 3
        assert files_of(flow) <= flow._state.paths() | flow._outputs.pinned
    if runner == "local":
        assert largest["spilled"] and largest["rows"] <= 2 * PIECE


@pytest.mark.parametrize("runner", ["local", pytest.param("spark", marks=pytest.mark.slow)])
def test_an_explosion_inside_a_loop(small, largest, runner):
    with Dataflow(small, runner=runner, buckets=2) as flow:
        edges, edges_in = flow.input("edges", "src long, dst long")
        roots, roots_in = flow.input("roots", "node long")
        # Eighty nodes with all edges between them: many paths, few reachable nodes.
        ways = [(i, j) for i in range(80) for j in range(80)] + [(79, 80), (80, 81)]
        edges_in.insert(ways)
        roots_in.insert([(i,) for i in range(80)])
        reached = roots.iterate(
            lambda nodes: nodes.join(edges.select(F.col("src").alias("node"), "dst"), "node")
            .select(F.col("dst").alias("node")).union(nodes)
            .distinct()
        ).keep()
        for time, change in enumerate([
            lambda: None, lambda: edges_in.remove([(79, 80)]), lambda: edges_in.insert([(5, 80)]),
        ], 1):
            change()
            for session in (edges_in, roots_in):
                session.advance_to(time)
                session.flush()
            flow.step()
            there = set(range(80)) if time == 2 else set(range(82))
            assert {row.node for row in reached.at().collect()} == there
    if runner == "local":
        assert largest["made"] and largest["rows"] <= 2 * PIECE


def test_tasks_that_make_what_is_left_let_go_of_files(tmp_path):
    """A worker outlives its tasks, and an open file keeps its disk space."""
    class Opens(bilinear.Rest):
        def tables(self):
            storage.open_updates(path)
            return iter([])

    path = str(tmp_path / "batch.arrow")
    storage.write_batch(path, ipc.to_batch(UpdateChunk(np.array([1]), None, 0, 1)))
    rest = [Opens(None, 0, 0, 0, 1)]
    assert not list(tasks.read_parts(rest)(iter([pa.record_batch([pa.array([0])], ["id"])])))
    assert path not in storage._opened


def test_a_lagging_side_keeps_what_was_too_many_for_later(small):
    flow, pairs, left_in, right_in = exploding(small, "local", 120)
    with flow:
        other, other_in = flow.input("other", "x long")
        both = pairs.select("x").union(other).count().keep()
        for session in (left_in, right_in):
            session.close()
        flow.step()
        other_in.insert([(7,)])
        other_in.close()
        flow.step()
        counts = {x: n for x, n in both.at().collect()}
        assert counts[7] == 108 + 1 and len(counts) == 120


def test_what_nobody_can_reduce_and_does_not_fit_is_refused(small, monkeypatch):
    flow, pairs, left_in, right_in = exploding(small, "local")
    with flow:
        pairs.inspect(lambda *_: None)
        left_in.close()
        right_in.close()
        monkeypatch.setattr(pieces, "free_memory", lambda: 1 << 20)
        with pytest.raises(TooManyRowsError) as caught:
            flow.step()
        text = str(caught.value)
        assert "join" in text and "(7,): 360 x 360 rows" in text and "fit into memory" in text
        assert not files_of(flow)
        monkeypatch.undo()
        assert flow.step()


def test_rest_of_several_buckets_has_to_fit_together(small, monkeypatch):
    flow, pairs, left_in, right_in = exploding(small, "local", 2000, keys=1)  # keys 0 and 7
    with flow:
        pairs.select("x", "y").inspect(lambda *_: None)
        left_in.insert([(5, i) for i in range(1700)])
        right_in.insert([(5, i) for i in range(1700)])
        left_in.close()
        right_in.close()
        # Each bucket fits, but not both.
        monkeypatch.setattr(pieces, "free_memory", lambda: 4_000_000 * pieces.ROW_BYTES)
        with pytest.raises(TooManyRowsError, match=r"\(7,\): 1,800 x 1,800 rows"):
            flow.step()


def test_rest_counts_the_ranges_that_were_not_reached(small, monkeypatch):
    rests = []
    read = StepContext.read

    def watched(*arguments):
        results, left = read(*arguments)
        rests.extend((rest.rows, results[0].rows_in) for parts in left.values() for rest in parts)
        return results, left

    monkeypatch.setattr(StepContext, "read", watched)
    with Dataflow(small, runner="local", buckets=1) as flow:
        left, left_in = flow.input("left", "k long, x long")
        right, right_in = flow.input("right", "k long, y long")
        for session in (left_in, right_in):
            session.insert([(k, i) for k in range(6) for i in range(400)])
            session.close()
        parity = ((F.col("x") + F.col("y")) % 2).alias("p")
        counts = left.join(right, "k").select("k", parity).count().keep()
        flow.step()
        assert {tuple(row) for row in counts.at().collect()} == {
            (k, p, 80_000) for k in range(6) for p in range(2)
        }
    (rows, rows_in), = rests
    assert 6 * 400 * 400 - 2 * PIECE <= rows <= 6 * 400 * 400
    assert rows_in == 2 * 6 * 400


def test_a_key_that_does_not_fit_is_refused(small, monkeypatch):
    with Dataflow(small, runner="local", buckets=2) as flow:
        rows, session = flow.input("rows", "k long, v long")
        least = rows.groupBy("k").agg(F.min("v").alias("v")).keep()
        session.insert([(i % 50, i) for i in range(1000)] + [(99, i) for i in range(3000)])
        session.close()
        monkeypatch.setattr(pieces, "free_memory", lambda: 1 << 10)
        with pytest.raises(TooManyRowsError, match=r"3,001 rows under one key.*\(99,\): 1 x 3,000"):
            flow.step()
        monkeypatch.undo()
        flow.step()
        assert dict(least.at().collect())[99] == 0


def test_memory_that_gives_out_names_operator_and_keys(small, monkeypatch):
    def gives_out(*_):
        np.empty(1 << 59)

    with Dataflow(small, runner="local", buckets=1) as flow:
        words, session = flow.input("words", "word string")
        counts = words.count().keep()
        session.insert([("a",), ("b",), ("a",)])
        session.close()
        with monkeypatch.context() as patch:
            patch.setattr(CountKernel, "__call__", gives_out)
            with pytest.raises(TooManyRowsError, match=r"count.*heaviest keys.*\('a',\)"):
                flow.step()
        flow.step()
        assert dict(counts.at().collect()) == {"a": 2, "b": 1}


def test_memory_that_gives_out_in_the_lookups_of_a_join_is_told_too(small, monkeypatch):
    flow, pairs, left_in, right_in = exploding(small, "local", 120)
    with flow:
        counts = pairs.select("x").count().keep()
        left_in.close()
        right_in.close()
        with monkeypatch.context() as patch:
            patch.setattr(JoinKernel, "__call__", lambda *_: np.empty(1 << 59))
            with pytest.raises(TooManyRowsError, match=r"join.*suffice.*keys are \(\d,\)"):
                flow.step()
        flow.step()
        assert sum(row["count"] for row in counts.at().collect()) == 108**2 + 3 * 16


def test_what_is_sorted_into_files_leaves_nothing_when_the_disk_is_full(small, monkeypatch):
    flow, pairs, left_in, right_in = exploding(small, "local", 120)
    write = storage.write_batch

    def full(path, batch, **options):
        if "spill-" in path:
            raise StorageError(f"{path!r}: No space left on device")
        return write(path, batch, **options)

    with flow:
        arranged = pairs.arrange_by_self()
        left_in.close()
        right_in.close()
        with monkeypatch.context() as patch:
            patch.setattr(storage, "write_batch", full)
            with pytest.raises(StorageError, match="No space left"):
                flow.step()
        assert not files_of(flow)
        flow.step()
        assert arranged.at().count() == 108 * 108 + 3 * 16


# Input, state and output of keyed operators.


@pytest.mark.parametrize("runner", RUNNERS)
def test_buckets_are_worked_through_in_ranges_of_keys(small, runner):
    with Dataflow(small, runner=runner, buckets=2) as flow:
        rows, session = flow.input("rows", "k long, v string")
        frames = [
            rows.groupBy("k").agg(F.max("v").alias("v"), F.count("*").alias("n")).keep(),
            rows.count().keep(),
            rows.select("k").distinct().keep(),
        ]
        data = [(i % 2500, f"v{i % 7}") for i in range(6000)]
        there = Counter(data)
        session.insert(data)
        for time in (1, 2, 3):
            session.advance_to(time)
            session.flush()
            flow.step()
            groups = {}
            for (k, v), n in there.items():
                groups.setdefault(k, []).append((v, n))
            assert {tuple(r) for r in frames[0].at().collect()} == {
                (k, max(v for v, _ in group), sum(n for _, n in group))
                for k, group in groups.items()
            }
            assert {tuple(r) for r in frames[1].at().collect()} == {
                (k, v, n) for (k, v), n in there.items()
            }
            assert {r.k for r in frames[2].at().collect()} == set(groups)
            gone = list(there)[: 2000]
            session.remove(gone)
            there = +(there - Counter(gone))


def test_attempts_of_a_task_do_not_write_over_each_other(tmp_path):
    """The order of blobs decides the cuts of a bucket: a file belongs to one attempt only."""
    folder = tmp_path / "made"
    folder.mkdir()
    draw = np.random.default_rng(0)
    parts = [UpdateChunk(np.sort(draw.integers(0, 300, 60)), None, 0, 1) for _ in range(10)]
    work = Work(
        "arrange", Layout((pa.int64(),)), ("k",), 1, None, None, {}, str(folder), True, None,
        None, None, 100,
    )

    def attempt(order):
        intake = pieces.Intake(str(tmp_path), 100)
        for number in order:
            intake.add(0, parts[number], number)
        return run_bucket(work, 0, intake, pieces.RowsInMemory(work.most))

    def keys(result):
        batches = [storage.open_updates(file.path) for file in result.files]
        return Counter(dict(zip(np.concatenate([batch.key64 for batch in batches]).tolist(),
                                np.concatenate([batch.diffs() for batch in batches]).tolist())))

    first = attempt(range(10))
    lost = attempt([9, 3, 5, 1, 0, 2, 4, 8, 7, 6])
    counts = Counter(np.concatenate([part.key64 for part in parts]).tolist())
    assert keys(first) == counts and keys(lost) == counts
    assert not set(first.paths()) & set(lost.paths())
    storage.remove_others(str(folder), first.paths())
    assert {str(path) for path in folder.iterdir()} == set(first.paths())


# Snapshots.


@pytest.mark.parametrize("later", [False, True])
def test_records_that_occur_often_are_given_in_chunks(spark, use_thresholds, later):
    use_thresholds(table_chunk_rows=1 << 10, driver_table_rows_max=0 if later else 1000)
    with Dataflow(spark, runner="local") as flow:
        rows, session = flow.input("rows", "n long, s string")
        arranged = rows.arrange_by_self()
        session.update([(1, "a", 0, 30_000), (2, None, 0, 1), (3, "c", 0, 2), (4, "d", 0, 0)])
        session.close()
        flow.step()
        snapshot = arranged.at()
        assert snapshot.groupBy("n", "s").count().collect() != []
        assert {tuple(r) for r in snapshot.groupBy("n", "s").count().collect()} == {
            (1, "a", 30_000), (2, None, 1), (3, "c", 2)
        }
        assert snapshot.schema == arranged.at(None).schema


@pytest.mark.slow
def test_a_record_that_occurs_a_hundred_million_times(spark):
    with Dataflow(spark, runner="local") as flow:
        rows, session = flow.input("rows", "n long")
        arranged = rows.arrange_by_self()
        session.update([(1, 0, 10**8)])
        session.close()
        flow.step()
        assert arranged.at().count() == 10**8


# Available memory.


def test_memory_that_a_container_has_left_is_less_than_the_machines(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_memory, "_GROUP", str(tmp_path))
    machine = machine_memory.free_memory()
    assert machine is not None and machine > 1 << 20
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("5000\n")
    assert machine_memory.free_memory() > 1 << 20
    (tmp_path / "memory.max").write_text("9000\n")
    assert machine_memory.free_memory() == 4000
    (tmp_path / "memory.stat").write_text("anon 70\ninactive_file 500\n")
    assert machine_memory.free_memory() == 4500


# The setting.


@pytest.mark.parametrize("setting", ["0", "-1", "many", "1.5", "\u00b2"])
def test_a_setting_that_is_no_number_of_rows(another, setting):
    another.conf.set("spark.pyspark_diff.pieceRows", setting)
    with pytest.raises(ValueError, match="spark.pyspark_diff.pieceRows.*whole number of rows"):
        Dataflow(another)


@pytest.mark.parametrize("memory, least", [(None, 0), (1 << 30, 0), (1 << 38, (1 << 38) // 200)])
def test_what_is_held_if_the_session_is_silent(spark, monkeypatch, memory, least):
    monkeypatch.setattr(sessions, "all_memory", lambda: memory)
    tasks = sessions.parallelism(spark)
    assert sessions.piece_rows(spark) == max(1 << 23, min(least, 1 << 30) // tasks)
    alone = thresholds.current.driver_rows_alone_max
    assert sessions.driver_rows(spark) == max(alone, min(least, 1 << 30))
    monkeypatch.setattr(sessions, "is_alone", lambda spark: False)
    assert sessions.piece_rows(spark) == 1 << 23
    assert sessions.driver_rows(spark) == thresholds.current.driver_rows_max


@pytest.mark.parametrize("settings, small", [
    ({"master": "local-cluster[2,1,1400]"}, True),
    ({"master": "local-cluster[3,1,1400]"}, False),
    ({"master": "spark://there:7077"}, False),
    ({"master": "spark://there:7077", "cores.max": "2"}, True),
    ({"master": "spark://there:7077", "cores.max": "8"}, False),
    ({"master": "yarn", "executor.instances": "2", "executor.cores": "1"}, True),
    ({"master": "yarn", "executor.instances": "2", "executor.cores": "4"}, False),
    ({"master": "yarn", "executor.instances": "2"}, False),
    ({"master": "yarn", "executor.instances": "1", "executor.cores": "1",
      "dynamicAllocation.enabled": "True"}, False),
])
def test_a_cluster_that_is_told_to_have_no_more_cores_than_the_driver(
    monkeypatch, settings, small
):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(sessions, "is_remote", lambda: False)
    session = SimpleNamespace(conf={f"spark.{name}": value for name, value in settings.items()})
    rows = thresholds.current.driver_rows_alone_max if small else thresholds.current.driver_rows_max
    assert sessions.driver_rows(session) == rows
    # The driver of a Connect client runs on another machine.
    monkeypatch.setattr(sessions, "is_remote", lambda: True)
    assert sessions.driver_rows(session) == thresholds.current.driver_rows_max


def test_the_setting_reaches_the_operators(small):
    with Dataflow(small) as flow:
        assert flow._piece_rows == PIECE
