"""Arrangements as values: one copy for all readers, with history back to the earliest hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from oracle import accumulate
from pyspark.sql import functions as F

from pyspark_diff import ClosedError, Dataflow, DiffFrame, NotReadableError, TimeRegressionError
from pyspark_diff.operators.node import Arranged, Keyed
from pyspark_diff.times import Antichain
from pyspark_diff.trace import storage
from pyspark_diff.trace.batch import BatchFile
from pyspark_diff.thresholds import Thresholds
from pyspark_diff.trace.spine import Trace

every_runner = pytest.mark.parametrize("runner", ["local", "spark"])
EDGES = [(1, 2), (2, 3), (2, 4), (3, 1), (4, 4)]


def arranged(flow):
    """The nodes that arrange a stream by key."""
    return [node for node in flow._build().graph.nodes if isinstance(node, Keyed)]


def times_of(batch):
    """The times of the updates in a batch's files."""
    return [int(t) for _, path in batch.opened() for t in storage.open_updates(path).times()]


@pytest.mark.parametrize("memory_rows", [0, 4096])
def test_the_times_of_a_batch_are_advanced_to_its_since(spark, memory_rows, use_thresholds):
    """If not, a late operator receives updates that its first time does not consolidate."""
    use_thresholds(in_memory_rows_max=memory_rows)
    with Dataflow(spark, runner="local", buckets=2) as flow:
        numbers, session = flow.input("numbers", "n long")
        numbers.distinct().keep("kept")
        numbers.keep("rows")  # so that the distinct rows read this arrangement
        early = 0
        for begin in range(0, 12, 2):
            session.insert([(n,) for n in range(begin, begin + 40)])
            session.advance_to(begin + 1)
            session.remove([(begin,)])
            advance(flow, session, begin + 2)
            for trace in flow._state.traces.values():
                for batch in trace.batches:
                    since = batch.description.since.bound
                    assert since <= min(times_of(batch))
                    early += min(times_of(batch)) < trace.since.bound
        assert early  # some batches are not yet at the since of their trace


def advance(flow, session, to):
    session.advance_to(to)
    session.flush()
    flow.step()


@every_runner
def test_a_self_join_by_one_key_shares_one_arrangement(spark, runner, monkeypatch, use_thresholds):
    use_thresholds(in_memory_rows_max=0)  # so that each batch is a file
    use_thresholds(large_memory_divisor=1 << 60)
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        edges, edges_in = flow.input("edges", "src long, dst long")
        updates = []
        siblings = edges.alias("a").join(edges.alias("b"), "src").select("a.dst", "b.dst")
        siblings.toDF("x", "y").inspect(lambda r, t, d: updates.append((r, t, d)))
        edges_in.insert(EDGES)
        advance(flow, edges_in, 1)
        assert len(arranged(flow)) == 1
        batches = {p.parent for p in Path(flow._storage.root).rglob("0*.arrow")}
        assert len(batches) == 1
        assert flow.last_report.spark_runs + flow.last_report.local_runs == 2  # arrange, join
    expected = {(x, y) for s, x in EDGES for r, y in EDGES if s == r}
    assert set(accumulate(updates, 0)) == expected


@every_runner
def test_operators_on_one_key_share_its_arrangement(spark, runner):
    with Dataflow(spark, runner=runner) as flow:
        edges, edges_in = flow.input("edges", "src long, dst long")
        names, names_in = flow.input("names", "src long, name string")
        by_src = edges.arrange_by_key("src")
        outputs = [
            by_src.join(names, "src"),
            edges.join(names, "src", "left_semi"),
            by_src.reduce(lambda key, values: [(len(values),)], "many long"),
            edges.reduce(lambda key, values: [(len(values),)], "many long", key="src"),
        ]
        for output in outputs:
            output.inspect(lambda *_: None)
        edges_in.insert(EDGES)
        names_in.insert([(1, "a"), (2, "b")])
        names_in.advance_to(1)
        names_in.flush()
        advance(flow, edges_in, 1)
        # edges by src, names by src, and the names' keys for the semijoin
        assert sorted(node.key for node in arranged(flow)) == [("src",)] * 3
        assert len(by_src.at(0).collect()) == len(EDGES)
        # three arrangements, two joins, distinct keys, two reduces
        assert flow.last_report.spark_runs + flow.last_report.local_runs == 8


@every_runner
def test_records_operators_share_an_arrangement_by_self(spark, runner):
    with Dataflow(spark, runner=runner) as flow:
        n, n_in = flow.input("n", "n long")
        records = n.arrange_by_self()
        updates = {"count": [], "distinct": [], "threshold": []}
        for name, frame in {
            "count": records.count(), "distinct": records.distinct(),
            "threshold": records.threshold(lambda c: 2 * c),
        }.items():
            frame.inspect(lambda r, t, d, to=updates[name]: to.append((r, t, d)))
        n_in.insert([(1,), (1,), (2,)])
        advance(flow, n_in, 1)
        n_in.remove([(1,)])
        advance(flow, n_in, 2)
        assert len(arranged(flow)) == 1
    assert accumulate(updates["count"], 1) == {(1, 1): 1, (2, 1): 1}
    assert accumulate(updates["distinct"], 1) == {(1,): 1, (2,): 1}
    assert accumulate(updates["threshold"], 1) == {(1,): 2, (2,): 2}


@every_runner
def test_a_reduce_is_joined_as_it_comes_out(spark, runner):
    with Dataflow(spark, runner=runner) as flow:
        edges, edges_in = flow.input("edges", "src long, dst long")
        totals = edges.groupBy("src").agg(F.sum("dst").alias("total"))
        most = edges.reduce(
            lambda key, values: [(max(n for (n,), _ in values),)], "most long", key="src"
        )
        updates = []
        totals.join(most, "src").inspect(lambda r, t, d: updates.append((r, t, d)))
        edges_in.insert(EDGES)
        advance(flow, edges_in, 1)
        edges_in.remove([(2, 4), (1, 2)])
        advance(flow, edges_in, 2)
        # The arrangements of the sums and of the values. The join adds none.
        assert len(arranged(flow)) == 2
    assert accumulate(updates, 0) == {(1, 2, 2): 1, (2, 7, 4): 1, (3, 1, 1): 1, (4, 4, 4): 1}
    assert accumulate(updates, 1) == {(2, 3, 3): 1, (3, 1, 1): 1, (4, 4, 4): 1}


def test_a_collection_written_twice_is_one(spark):
    """All kept frames of a collection share one copy."""
    with Dataflow(spark, runner="local") as flow:
        edges, edges_in = flow.input("edges", "src long, dst long")
        first, other = (edges.select("src").keep() for _ in range(2))
        counts = edges.select("src").count().keep()
        hold = other.hold(0)
        for time in range(2):
            edges_in.insert(EDGES)
            advance(flow, edges_in, time + 1)
        # The sources by self, which the counts read, and the counts.
        assert len(arranged(flow)) == 2
        assert sorted(row.src for row in other.at(0).collect()) == [1, 2, 2, 3, 4]
        assert first.at(1).count() == other.at(1).count() == 10
        assert (2, 4) in counts.at(1).collect()
        hold.release()
    with Dataflow(spark, runner="local") as flow:
        edges, edges_in = flow.input("edges", "src long, dst long")
        sources = edges.select("src")
        counts = edges.select("src").count().keep()
        edges_in.insert(EDGES)
        advance(flow, edges_in, 1)
        assert counts.at(0).count() == 4
        with pytest.raises(NotReadableError, match="not kept"):
            sources.at(0)


def test_columns_that_nobody_reads_are_not_kept(spark):
    with Dataflow(spark, runner="local") as flow:
        wide, wide_in = flow.input("wide", "k long, a string, b string, c string")
        keys, keys_in = flow.input("keys", "k long")
        wide.join(keys, "k").select("b").inspect(lambda *_: None)
        wide_in.insert([(1, "x", "y", "z")])
        graph = flow._build().graph
        stored = [n.stored(graph.wanted[n]) for n in graph.nodes
                  if isinstance(n, Arranged) and n.keeps]
        assert sorted(stored) == [("k",), ("k", "b")]


@every_runner
def test_a_hold_keeps_history_until_it_is_released(spark, runner):
    with Dataflow(spark, runner=runner) as flow:
        n, n_in = flow.input("n", "n long")
        counts = n.count().keep()
        hold = counts.hold()
        assert hold.time() == 0
        for time in range(4):
            n_in.insert([(7,)])
            advance(flow, n_in, time + 1)
        assert [counts.at(t).collect() for t in range(4)] == [[(7, t + 1)] for t in range(4)]
        hold.advance_to(2)
        n_in.insert([(7,)])
        advance(flow, n_in, 5)
        with pytest.raises(NotReadableError, match="compacted away"):
            counts.at(1)
        assert counts.at(2).collect() == [(7, 3)]
        with pytest.raises(TimeRegressionError, match="cannot go back"):
            hold.advance_to(1)
        with hold:
            pass
        n_in.insert([(7,)])
        advance(flow, n_in, 6)
        with pytest.raises(NotReadableError):
            counts.at(4)
        with pytest.raises(NotReadableError, match="held from 5 on"):
            counts.hold(3)
        assert counts.hold(5).time() == 5
        with pytest.raises(ClosedError):
            hold.time()
        assert repr(hold) == "Hold(released)"


def test_only_collections_of_a_dataflow_are_held(spark):
    frame = DiffFrame(spark.createDataFrame([(1, 0, 1)], "n int, time int, diff int"))
    with pytest.raises(NotReadableError, match="has its whole history"):
        frame.hold()


def test_two_holds_are_as_good_as_the_earlier(spark):
    with Dataflow(spark, runner="local") as flow:
        n, n_in = flow.input("n", "n long")
        by_n = n.arrange_by_key("n")
        early, late = by_n.hold(0), by_n.hold(2)
        for time in range(4):
            n_in.insert([(time,)])
            advance(flow, n_in, time + 1)
        assert by_n.at(0).count() == 1
        early.release()
        n_in.insert([(9,)])
        advance(flow, n_in, 5)
        with pytest.raises(NotReadableError):
            by_n.at(1)
        assert by_n.at(2).count() == 3
        late.release()


@pytest.mark.parametrize("sizes", [[1], [1000, 1], [3, 50, 7]], ids=str)
def test_rows_are_rewritten_a_few_times_and_batches_are_few(sizes):
    zero = Antichain([0])
    trace, rows, rewritten = Trace(zero, zero, zero), 0, 0
    merges = 0
    for step in range(1000):
        size = sizes[step % len(sizes)]
        trace = trace.extended(Antichain([step + 1]), zero, {0: (BatchFile(f"{step}", size, 0),)})
        rows += size
        for first, stop in reversed(trace.due()):
            merged = sum(batch.rows for batch in trace.batches[first:stop])
            rewritten += merged
            merges += 1
            trace = trace.merged(first, stop, zero, {0: (BatchFile(f"{step}m", merged, 0),)})
        batch_rows = [batch.rows for batch in trace.batches]
        assert sum(batch_rows) == rows
        assert all(
            2 * size > sum(batch_rows[i + 1:])
            or len(batch_rows) - i <= Thresholds.spine_merge_batches_min
            and sum(batch_rows[i + 1:]) < Thresholds.spine_merge_rows_min
            for i, size in enumerate(batch_rows)
        )
        assert len(batch_rows) <= 16
    assert rewritten / rows < 4.5
    assert merges <= 200 or sizes != [1]  # a merge costs as much as a step


def test_the_list_of_arrangements(spark):
    with Dataflow(spark, time_type="date", buckets=1) as flow:
        import datetime

        day = datetime.date(2024, 5, 1)
        a, a_in = flow.input("a", "k long, x string", start=day)
        b, b_in = flow.input("b", "k long, y string", start=day)
        by_k = a.arrange_by_key("k")
        joined = by_k.join(b, "k")
        joined.count().inspect(lambda *_: None)
        a_in.insert([(1, "p"), (2, "q")])
        b_in.insert([(1, "z")])
        b_in.close()
        advance(flow, a_in, day + datetime.timedelta(days=1))
        frame = flow.arrangements()
        assert frame.columns == [
            "name", "key", "rows", "batches", "bytes", "lower", "upper", "since", "readers"
        ]
        rows = {row.name.split("(")[1].rstrip(")"): row for row in frame.collect()}
        of_a = rows["a"]
        assert (of_a.key, of_a.rows, of_a.batches) == ("k", 2, 1) and of_a.bytes > 0
        assert (of_a.lower, of_a.upper) == (day, day + datetime.timedelta(days=1))
        assert [reader.split("-")[0] for reader in of_a.readers] == ["join", "at, to_df"]
        assert rows["b"].upper is None and rows["b"].rows == 1
        assert rows["a, b"].readers[0].startswith("count-")  # the arrangement of the count
        text = flow.describe()
        assert text.splitlines()[0].split() == frame.columns
        assert "complete" in text and "2024-05-02" in text


@every_runner
def test_a_lagging_reader_finds_what_the_other_side_compacts_for_others(spark, runner):
    """One input runs ahead through many merges; the join still sees its history time by time."""
    with Dataflow(spark, runner=runner, buckets=1) as flow:
        a, a_in = flow.input("a", "k long, x long")
        b, b_in = flow.input("b", "k long")
        updates = []
        a.join(b, "k").inspect(lambda r, t, d: updates.append((r, t, d)))
        a.groupBy("k").agg(F.max("x")).inspect(lambda *_: None)
        for time in range(9):
            a_in.insert([(1, time)])
            a_in.remove([(1, time - 1)] if time else [])
            advance(flow, a_in, time + 1)
        b_in.insert([(1,)])
        b_in.advance_to(4)
        b_in.flush()
        flow.step()
        assert [accumulate(updates, t) for t in range(4)] == [{(1, t): 1} for t in range(4)]
        b_in.remove([(1,)])
        b_in.advance_to(7)
        b_in.flush()
        flow.step()
        assert not accumulate(updates, 4) and not accumulate(updates, 6)
        b_in.close()
        a_in.close()
        flow.step()
        assert not accumulate(updates, 99)
