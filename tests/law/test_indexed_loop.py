"""Loops on numbers return the same updates as other loops, also if both run in turns."""

from __future__ import annotations

import os
import time
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as F

from pyspark_diff import Dataflow, DiffOverflowError, Loop, StalledError, graphs, thresholds
from pyspark_diff.engine import indexed_loop, loop_batches
from pyspark_diff.engine.indexed_loop import IndexedLoop, _by_function
from pyspark_diff.engine.loop import Iteration
from pyspark_diff.engine.loop_batches import Sorted
from pyspark_diff.kernels.layout import Layout
from pyspark_diff.kernels.updates import spread
from pyspark_diff.operators.threshold import ThresholdKernel
from pyspark_diff.runners import numbers
from pyspark_diff.runners.numbers import Unfit
from pyspark_diff.runners.threads import Team

node = st.integers(0, 6)
#: Inserts and removals of edges, each at one of the next few times; some cancel, some go below
#: zero.
changes = st.lists(
    st.tuples(node, node, st.integers(0, 3), st.sampled_from([1, 1, 1, -1, 2])), max_size=8
)


def both_ways(edges):
    return edges.union(edges.select(F.col("dst").alias("src"), F.col("src").alias("dst")))


def nearest(edges):
    def further(near):
        moved = near.join(edges, "src").select(
            F.col("dst").alias("src"), (F.col("distance") + 1).alias("distance")
        )
        candidates = start.union(moved.where(F.col("distance") < 9))
        return candidates.top_k(1, "distance", per="src")

    start = edges.where("src = 0").select("src").distinct().withColumn(
        "distance", F.lit(0).cast("long")
    )
    return start.iterate(further)


def least_label(edges):
    labels = edges.select("src").distinct().withColumn("label", F.col("src"))

    def round_of(now):
        sent = now.join(edges, "src").select(F.col("dst").alias("src"), "label")
        return labels.union(sent).top_k(1, "label", per="src")

    return labels.iterate(round_of)


def reached(edges):
    start = edges.where("src = 0").select("src").distinct()
    return start.iterate(
        lambda now: start.union(
            now.join(edges, "src").select(F.col("dst").alias("src"))
        ).distinct()
    )


def core(edges):
    simple = both_ways(edges.where("src != dst")).distinct()

    def round_of(remaining):
        active = remaining.select("src").threshold(lambda n: 1 if n >= 2 else 0)
        half = simple.join(active, "src").select(
            F.col("dst").alias("src"), F.col("src").alias("dst")
        )
        return half.join(active, "src").select(
            F.col("dst").alias("src"), F.col("src").alias("dst")
        )

    return simple.iterate(round_of)


def counted(edges):
    """A loop with a count: the nodes that several edges reach, after at most four iterations."""
    start = edges.select("src").distinct()

    def round_of(now):
        met = now.join(edges, "src").select(F.col("dst").alias("src"))
        return met.count().where(F.col("count") > 1).select("src").union(start)

    return start.iterate(round_of, max_iterations=4, on_limit="return")


def jumping(edges):
    """The least node that is met by jumps to the least neighbour. Both sides of the join change."""
    start = edges.toDF("src", "label").top_k(1, "label", per="src")

    def round_of(now):
        jumped = now.toDF("node", "src").join(now, "src")
        jumped = jumped.select(F.col("node").alias("src"), "label")
        return now.union(jumped).top_k(1, "label", per="src")

    return start.iterate(round_of)


def parity(edges):
    """Nodes at even and at odd distances from 0, each computed from the other."""
    def beyond(nodes):
        return nodes.join(edges, "src").select(F.col("dst").alias("src"))

    start = edges.where("src = 0").select("src").distinct()
    with Loop() as loop:
        even, odd = loop.variable(start), loop.variable(start.where(F.col("src") > 0))
        even.set(beyond(odd).union(start).distinct())
        odd.set(beyond(even).distinct())
    return even.leave().concat(loop.leave(odd))


def entering(edges):
    """Least labels that enter the loop in late iterations; some never enter."""
    labels = edges.select("src").distinct().withColumn("label", F.col("src"))
    with Loop(max_iterations=12, on_limit="return") as loop:
        sent = loop.variable(labels.where(F.lit(False)))
        # Large labels first, so that smaller ones retract them.
        iteration = F.when(F.col("label") == 1, 12).otherwise(12 - 2 * F.col("label"))
        own = labels.enter_at(iteration)
        least = own.union(sent).top_k(1, "label", per="src")
        sent.set(least.join(edges, "src").select(F.col("dst").alias("src"), "label"))
    return loop.leave(least)


BODIES = {
    "nearest": nearest, "least label": least_label, "reached": reached, "core": core,
    "counted": counted, "jumping": jumping, "parity": parity,
    "entering": entering, "components": graphs.connected_components,
}


class Flow:
    """A dataflow with one loop, and the updates of its last step."""

    def __init__(self, spark, body, buckets):
        self.flow = Dataflow(spark, runner="local", buckets=buckets)
        edges, self.edges = self.flow.input("edges", "src long, dst long")
        # With negative counts, the other loops may never converge.
        output = BODIES[body](edges if body == "nearest" else edges.distinct())
        self.frame = output.keep()
        self._updates: Counter = Counter()
        output.inspect(self._take)

    def step(self, updates, upto):
        self.edges.update(updates)
        self.edges.advance_to(upto)
        self.edges.flush()
        self._updates.clear()
        self.flow.step()

    def _take(self, record, time, diff):
        self._updates[tuple(record), time] += diff

    @property
    def updates(self):
        """The updates of the last step."""
        return {record: diff for record, diff in self._updates.items() if diff}


@pytest.mark.parametrize("body", BODIES)
@given(
    steps=st.lists(changes, min_size=1, max_size=4), buckets=st.integers(1, 3),
    turns=st.lists(st.booleans(), min_size=4, max_size=4), threads=st.sampled_from([1, 3]),
    many=st.booleans(), alone=st.sampled_from([1, 3, 1 << 20]),
)
def test_in_turns_with_the_others(spark, body, steps, buckets, turns, threads, many, alone):
    threaded = 0 if threads > 1 else 1 << 30
    limits = {"loop_shard_rows_min": threaded, "loop_threaded_rows_min": threaded}
    if many:  # few rows go where many go
        limits |= {
            "main_coordinate_batch_rows_min": 1, "index_batch_rows_min": 1,
            "sort_parts_rows_max": 0, "partition_rows_min": 0,
        }
    with (
        thresholds.using(coordinate_batch_rows_min=alone, **limits),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(os, "cpu_count", lambda: threads)
        ours, plain = Flow(spark, body, buckets), Flow(spark, body, buckets)
        run, done = IndexedLoop.run, []

        def counted_run(loop):
            run(loop)
            done.append(True)

        patch.setattr(IndexedLoop, "run", counted_run)
        indexed = Iteration._indexed
        with ours.flow, plain.flow:
            for number, (updates, fits) in enumerate(zip(steps, turns)):
                lower = 4 * number
                rows = [(a, b, lower + t, d) for a, b, t, d in updates]
                for flow, there in ((ours, fits), (plain, False)):
                    patch.setattr(Iteration, "_indexed", indexed if there else lambda *_: False)
                    before = len(done)
                    flow.step(rows, lower + 4)
                    assert len(done) == before or there
                assert ours.updates == plain.updates


def test_loops_are_parted_where_the_keys_of_all_arrangements_lie():
    """The lesser and the greater ends of edges together have their median near 500."""
    least, most = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    ends = np.sort(np.random.default_rng(0).integers(0, 1000, (2, 10_000)), axis=0)
    lesser, greater, none = np.sort(ends[0]), np.sort(ends[1]), np.empty(0, np.int64)
    (_, end), (begin, _) = indexed_loop.shards_of([lesser, greater, none], 2)
    assert begin == end + 1 and 450 < begin < 550
    for arrangements in ([none], [np.array([least])], [np.array([least, most])], [lesser]):
        for threads in (1, 2, 3, 8):
            parts = indexed_loop.shards_of(arrangements, threads)
            assert parts[0][0] == least and parts[-1][1] == most and len(parts) <= threads
            assert all(a[1] + 1 == b[0] and a[0] <= a[1] for a, b in zip(parts, parts[1:]))


def test_steps_of_few_rows_look_at_no_keys_to_be_parted(spark, monkeypatch):
    """Each look at a key is a read from memory."""
    asked = []
    monkeypatch.setattr(indexed_loop, "shards_of", lambda *args: asked.append(args) or [])
    with Dataflow(spark, runner="local", buckets=2) as flow:
        edges, edges_in = flow.input("edges", "src long, dst long")
        graphs.reachability(edges, edges.where("src = 0").selectExpr("src AS node")).keep()
        edges_in.insert([(i, i + 1) for i in range(100)])
        flow.advance_to(1)
        edges_in.remove([(50, 51)])
        flow.advance_to(2)
    assert not asked


def test_what_many_rows_came_at_is_a_batch_of_its_own(use_thresholds):
    def rows(at, count):
        none = np.zeros(count, np.int64)
        return at, [Sorted(none, none, none, none)]

    use_thresholds(coordinate_batch_rows_min=10)
    parts = [rows(0, 3), rows(1, 10), rows(2, 20), rows(3, 4)]
    batches = [[at for at, _ in batch] for batch in loop_batches.batches_of(parts)]
    assert batches == [[2], [1], [0, 3]]  # the largest first: so none is merged at once
    use_thresholds(coordinate_batch_rows_min=100)
    assert len(loop_batches.batches_of(parts)) == 1
    use_thresholds(main_coordinate_batch_rows_min=25)
    parts = [rows(0, 3), rows(1, 30), rows(2, 4)]
    batches = [[at for at, _ in batch] for batch in loop_batches.batches_of(parts)]
    assert batches == [[1], [0, 2]]


def test_what_is_sealed_is_what_was_taken_in(use_thresholds):
    random, parts, expected = np.random.default_rng(0), [], Counter()
    for at, rows in (0, 3), (2, 40), (5, 1), (7, 9):
        keys, values, times = random.integers(0, 3, (3, rows))
        columns = numbers.added_up([(keys, values, times, np.ones(rows, np.int64))])
        expected.update(dict(zip(zip(*columns[:3], [at] * rows), columns[3])))
        parts.append((at, [Sorted(*columns)]))
    layout = Layout((pa.int64(),), value=Layout((pa.int64(),)))
    for many, most in (1, 1), (8, 1 << 16), (1 << 20, 4), (1 << 20, 1 << 16):
        use_thresholds(coordinate_batch_rows_min=many, main_coordinate_batch_rows_min=most)
        actual = Counter()
        for batch in loop_batches.batches_of(parts):
            updates = loop_batches.sealed([(at, rows[0]) for at, rows in batch], layout)
            places = spread(updates.coordinate, len(updates))
            records = list(zip(updates.key64, updates.val64, places, updates.times()))
            assert records == sorted(records)
            actual.update(dict(zip(
                zip(updates.key64, updates.val64, updates.times(), places), updates.diffs()
            )))
        assert actual == expected


def test_what_is_sealed_is_in_order(spark, monkeypatch):
    """A step replaces the least label by a greater one, at its only coordinate."""
    sealed = []

    def written(directory, updates, *more, write=indexed_loop.write_files):
        sealed.append(updates)
        return write(directory, updates, *more)

    monkeypatch.setattr(indexed_loop, "write_files", written)
    with Dataflow(spark, runner="local", buckets=1) as flow:
        edges, edges_in = flow.input("edges", "src long, dst long")
        labels, labels_in = flow.input("labels", "src long, label long")
        with Loop() as loop:
            sent = loop.variable(labels.where(F.lit(False)))
            least = labels.union(sent).top_k(1, "label", per="src")
            sent.set(least.join(edges, "src").select(F.col("dst").alias("src"), "label"))
        loop.leave(least).keep()
        edges_in.insert([(1, 2)])
        labels_in.insert([(7, 5), (7, 9)])
        flow.advance_to(1)
        flow.step()
        labels_in.remove([(7, 5)])
        flow.advance_to(2)
        flow.step()
    changed = [updates for updates in sealed if (updates.diffs() < 0).any()]
    assert [updates.val64.tolist() for updates in changed if len(updates) == 2] == [[5, 9]]
    for updates in changed:
        order = np.lexsort((updates.times(), updates.val64, updates.key64))
        assert order.tolist() == list(range(len(updates)))


class Lagging:
    """Distances from roots, which are a second input."""

    def __init__(self, spark, buckets):
        self.flow = Dataflow(spark, runner="local", buckets=buckets)
        edges, edges_in = self.flow.input("edges", "src long, dst long")
        roots, roots_in = self.flow.input("roots", "node long")
        self.sessions = edges_in, roots_in
        self._updates: Counter = Counter()
        graphs.bfs(edges, roots).inspect(self._take)

    def _take(self, record, time, diff):
        self._updates[tuple(record), time] += diff

    @property
    def updates(self):
        """All updates so far."""
        return {record: diff for record, diff in self._updates.items() if diff}


@given(
    steps=st.lists(
        st.tuples(
            changes, st.lists(st.tuples(node, st.integers(0, 3), st.sampled_from([1, -1]))),
            st.integers(0, 4), st.integers(0, 4), st.booleans(), st.booleans(),
        ),
        min_size=1, max_size=5,
    ),
    buckets=st.integers(1, 6),
)
def test_inputs_that_lag(spark, steps, buckets):
    """One input is ahead of the other, and some steps discard the waiting updates."""
    indexed = Iteration._indexed
    with pytest.MonkeyPatch.context() as patch:
        ours, plain = Lagging(spark, buckets), Lagging(spark, buckets)
        with ours.flow, plain.flow:
            at = [0, 0]
            for edges, roots, *ahead, fits, dropped in steps:
                rows = (
                    [(a, b, at[0] + t, d) for a, b, t, d in edges],
                    [(n, at[1] + t, d) for n, t, d in roots],
                )
                at = [now + more for now, more in zip(at, ahead)]
                for lagging, there in ((ours, fits), (plain, False)):
                    patch.setattr(Iteration, "_indexed", indexed if there else lambda *_: False)
                    for session, updates, upto in zip(lagging.sessions, rows, at):
                        session.update(updates)
                        session.advance_to(upto)
                        session.flush()
                    lagging.flow.step()
                    if dropped:
                        lagging.flow.discard(waiting=True)
                assert ours.updates == plain.updates


@pytest.mark.parametrize("body", BODIES)
def test_loops_run_on_numbers(spark, body, monkeypatch):
    """All these loops run on numbers, from the first step on."""
    done = []
    run = IndexedLoop.run
    monkeypatch.setattr(IndexedLoop, "run", lambda loop: done.append(run(loop)))
    flow = Flow(spark, body, 2)
    with flow.flow:
        flow.step([(0, 1, 0, 1), (1, 2, 0, 1), (2, 0, 0, 1)], 1)
        flow.step([(0, 1, 1, -1)], 2)
        assert len(done) == 2


@pytest.mark.parametrize("most", [1, 3])
def test_a_loop_that_returns_at_its_limit(spark, monkeypatch, most):
    """The nodes within a number of edges, and a step that removes an edge between them."""
    done = []
    run = IndexedLoop.run
    monkeypatch.setattr(IndexedLoop, "run", lambda loop: done.append(run(loop)))
    with Dataflow(spark, runner="local") as flow:
        edges, session = flow.input("edges", "src long, dst long")
        start = edges.where("src = 0").select("src").distinct()

        def further(now):
            moved = now.join(edges, "src").select(F.col("dst").alias("src"))
            return start.union(moved).distinct()

        reached = start.iterate(further, max_iterations=most, on_limit="return").keep()
        session.insert([(0, 0), *((node, node + 1) for node in range(6))])
        for moment, expected in (1, range(most + 1)), (2, range(most)):
            session.advance_to(moment)
            session.flush()
            flow.step()
            nodes = sorted(row.src for row in reached.at(moment - 1).collect())
            assert nodes == list(expected)
            session.remove([(most - 1, most)])
        assert len(done) == 2


def test_what_a_loop_costs_is_told_by_operator(spark, monkeypatch):
    """The costs of a step are those of its operators, and each runs at most once an iteration."""
    done = []
    run = IndexedLoop.run
    monkeypatch.setattr(IndexedLoop, "run", lambda loop: done.append(run(loop)))
    with Dataflow(spark, runner="local") as flow:
        edges, session = flow.input("edges", "src long, dst long")
        start = edges.where("src = 0").select("src").distinct()
        start.iterate(lambda now: start.union(
            now.join(edges, "src").select(F.col("dst").alias("src"))).distinct()).keep()
        session.insert([(node, node + 1) for node in range(50)])
        flow.advance_to(1)
        session.insert([(50, 51)])
        flow.advance_to(2)
        report = flow.last_report
    assert len(done) == 2
    for total in "rows_in", "rows_read", "rows_out":
        assert getattr(report, total) == sum(getattr(c, total) for c in report.costs.values())
    assert report.local_runs == sum(cost.driver_runs for cost in report.costs.values())
    (join,) = [cost for node, cost in report.costs.items() if node.kind == "join"]
    # It takes in the new edge and the node at its end, and reads one node, at the edge's begin.
    assert (join.rows_in, join.rows_read, join.rows_out) == (2, 1, 1)
    assert 0 < join.driver_runs <= len(report.iterations)


def test_what_overflows_is_told_by_the_others(spark):
    with Dataflow(spark, runner="local") as flow:
        numbers, session = flow.input("numbers", "n long")
        output = numbers.iterate(
            lambda now: numbers.union(now.select((F.col("n") * 4).alias("n"))).distinct()
        )
        output.keep()
        session.insert([(2**40,)])
        session.advance_to(1)
        session.flush()
        with pytest.raises(DiffOverflowError):
            flow.step()


def test_a_loop_that_never_rests_is_refused(spark):
    with Dataflow(spark, runner="local") as flow:
        numbers, session = flow.input("numbers", "n long")
        numbers.iterate(
            lambda now: numbers.union(now.select((F.col("n") + 1).alias("n"))).distinct(),
            max_iterations=20,
        ).keep()
        session.insert([(1,)])
        session.advance_to(1)
        session.flush()
        with pytest.raises(StalledError):
            flow.step()


def test_rows_that_are_no_numbers_go_the_other_way(spark, monkeypatch):
    unfit = []
    run = IndexedLoop.run

    def recorded_run(loop):
        try:
            run(loop)
        except Unfit:
            unfit.append(True)
            raise

    monkeypatch.setattr(IndexedLoop, "run", recorded_run)
    flow = Flow(spark, "reached", 2)
    with flow.flow:
        flow.step([(0, 1, 0, 1), (None, 2, 0, 1), (1, None, 0, 1)], 1)
        assert unfit
        assert {row[0] for row in flow.frame.at(0).collect()} == {0, 1, None}


def test_more_rows_than_an_operator_may_hold_go_the_other_way(spark, monkeypatch):
    done = []
    run = IndexedLoop.run
    monkeypatch.setattr(IndexedLoop, "run", lambda loop: done.append(run(loop)))
    rows = [(int(a), int(b), 0, 1) for a, b in np.random.default_rng(2).integers(0, 40, (400, 2))]
    with Dataflow(spark, runner="local", buckets=2) as flow:
        flow._piece_rows = 60
        edges, session = flow.input("edges", "src long, dst long")
        roots, starts = flow.input("roots", "node long")
        distances = graphs.bfs(edges, roots).keep()
        starts.insert([(0,)])
        session.update(rows)
        for entry in (session, starts):
            entry.advance_to(1)
            entry.flush()
        flow.step()
        assert not done and distances.at(0).count() == 40


def test_a_team_is_done_when_an_error_leaves_it():
    """A late thread would change the state of a loop during its next run."""
    done, team = [], Team(3)

    def do(number):
        if number == 0:
            raise ValueError
        time.sleep(0.02)
        done.append(number)

    with pytest.raises(ValueError):
        team.each(do, range(3))
    assert sorted(done) == [1, 2]
    assert team.each(lambda number: -number, range(7)) == [0, -1, -2, -3, -4, -5, -6]
    team.close()


def test_multiplicities_whose_differences_may_not_fit_go_the_other_way():
    kernel = ThresholdKernel(lambda count: 2**62 - 1 if count % 2 else -(2**62))
    counts = np.array([[1, 1], [0, 0], [3, 4], [1, 2]])  # up at one time, down at the next
    with pytest.raises(Unfit):
        _by_function(SimpleNamespace(kernel=kernel), counts)
    kernel = ThresholdKernel(lambda count: 2**60 if count % 2 else -(2**60))
    assert _by_function(SimpleNamespace(kernel=kernel), counts).diffs.tolist() == [2**61, -(2**61)]
