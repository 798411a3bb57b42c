"""How many Spark jobs there are: one for each exchange, with the readers in the same tasks."""

from collections import Counter

import pytest

from pyspark_diff import Dataflow, graphs
from pyspark_diff.runners import spark as spark_runner

NODES, BUCKETS = 12, 3


@pytest.fixture
def jobs(monkeypatch):
    """A list with an element for each Spark job."""
    found = []
    run_job = spark_runner.run_job

    def counted(*arguments):
        found.append(len(found))
        return run_job(*arguments)

    monkeypatch.setattr(spark_runner, "run_job", counted)
    return found


def of_iterations(flow, jobs, time):
    """The jobs of each iteration of the step up to a time."""
    ends = [(None, len(jobs))]
    flow.advance_to(time, on_iteration=lambda one: ends.append((one.iteration, len(jobs))))
    return [(at, end - begin) for (_, begin), (at, end) in zip(ends, ends[1:])][1:]


def test_an_iteration_is_a_job_for_each_exchange(spark, jobs):
    with Dataflow(spark, runner="spark", buckets=BUCKETS) as flow:
        edges, edges_in = flow.input("edges", "src long, dst long")
        roots, roots_in = flow.input("roots", "node long")
        found = graphs.bfs(edges, roots).keep()
        roots_in.insert([(0,)])
        edges_in.insert([(i, i + 1) for i in range(NODES)])
        load = of_iterations(flow, jobs, 1)
        edges_in.insert([(2, NODES)])
        step = of_iterations(flow, jobs, 2)
        assert sorted(map(tuple, found.at().collect())) == [
            (i, i) for i in range(NODES)] + [(NODES, 3)]
    # Three more are those that merge, once eight batches wait for it. In iteration 1 what the
    # variable began with is taken off, which comes from elsewhere.
    assert Counter(count for _, count in load[1:])[1] >= len(load) - 3, load
    assert step and all(count <= 1 for _, count in step), step


def test_a_program_without_loops_is_a_job_for_each_exchange(spark, jobs):
    with Dataflow(spark, runner="spark", buckets=BUCKETS) as flow:
        left, left_in = flow.input("left", "k long, v long")
        right, right_in = flow.input("right", "k long, w long")
        met = left.join(right, "k").join(left.select("k").distinct(), "k")
        sums = met.groupBy("w").agg({"v": "sum"}).keep()
        left_in.insert([(k, k) for k in range(20)])
        right_in.insert([(k, k % 3) for k in range(20)])
        flow.advance_to(1)
        # Two inputs, what they give together, the distinct keys and their arrangement in one,
        # the groups, and what is kept by the whole record.
        assert len(jobs) == 6 and flow.report.spark_runs == 10
        assert sorted(map(tuple, sums.at().collect())) == [(0, 63), (1, 70), (2, 57)]
