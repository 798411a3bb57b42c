"""The number of Spark jobs: one for each exchange. All other work runs in the same tasks.

    work before its turn = work in its turn
"""

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import Run, programs, schedules
from pyspark import TaskContext
from pyspark.sql import functions as F
from test_iterate import looping

from pyspark_diff import Dataflow, FunctionError, Loop, graphs
from pyspark_diff.engine import fusion
from pyspark_diff.engine.fusion import Job
from pyspark_diff.engine.loop import Iteration
from pyspark_diff.runners import spark as spark_runner
from pyspark_diff.runners import tasks as task_module
from pyspark_diff.runners.feed import Feed, UpdateRows
from pyspark_diff.runners.fused import FusedReader, Taking, run_behind
from pyspark_diff.runners.pieces import Given
from pyspark_diff.runners.spark import SparkRunner
from pyspark_diff.runners.work import BucketResult
from pyspark_diff.trace import storage

NODES, BUCKETS = 12, 3


@pytest.fixture
def jobs(monkeypatch):
    """A list with an element for each Spark job."""
    jobs_run = []
    run_job = spark_runner.run_job

    def counted(*arguments):
        jobs_run.append(len(jobs_run))
        return run_job(*arguments)

    monkeypatch.setattr(spark_runner, "run_job", counted)
    return jobs_run


def jobs_by_iteration(flow, jobs, time):
    """The jobs of each iteration of the step up to a time."""
    ends = [(None, len(jobs))]
    flow.advance_to(time, on_iteration=lambda done: ends.append((done.iteration, len(jobs))))
    return [(at, end - begin) for (_, begin), (at, end) in zip(ends, ends[1:])][1:]


@pytest.mark.parametrize("how", ["tasks", "frames"])
def test_an_iteration_is_a_job_for_each_exchange(spark, jobs, how, monkeypatch):
    if how == "frames":  # as over Spark Connect
        monkeypatch.setattr(spark_runner, "has_tasks", lambda: False)
    with Dataflow(spark, runner="spark", buckets=BUCKETS) as flow:
        edges, edges_in = flow.input("edges", "src long, dst long")
        roots, roots_in = flow.input("roots", "node long")
        distances = graphs.bfs(edges, roots).keep()
        roots_in.insert([(0,)])
        edges_in.insert([(i, i + 1) for i in range(NODES)])
        load = jobs_by_iteration(flow, jobs, 1)
        edges_in.insert([(2, NODES)])
        step = jobs_by_iteration(flow, jobs, 2)
        assert sorted(map(tuple, distances.at().collect())) == [
            (i, i) for i in range(NODES)] + [(NODES, 3)]
    # A second job merges once eight batches wait. In iteration 1 a second job subtracts the initial
    # value of the variable, which has another source.
    assert [at for (at,), count in load if count > 1] == [1, 7], load
    assert max(count for _, count in load) == 2 and load[-1] == ((NODES,), 0)
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
        # Two inputs, their join, the distinct keys with their arrangement, the groups, and the
        # output that is kept by the whole record.
        assert len(jobs) == 6 and flow.last_report.spark_runs == 10
        assert sorted(map(tuple, sums.at().collect())) == [(0, 63), (1, 70), (2, 57)]


def test_what_is_renamed_on_the_way_is_taken_in_the_same_job(spark, jobs):
    with Dataflow(spark, runner="spark", buckets=BUCKETS) as flow:
        edges, edges_in = flow.input("edges", "k long, to long")
        roots, roots_in = flow.input("roots", "k long, d long")

        def nearer(now):
            # Columns, as a Connect client does not parse SQL text.
            after = now.join(edges, "k").select(
                F.col("to").alias("k"), (F.col("d") + 1).alias("d")
            )
            return after.union(roots).groupBy("k").agg({"d": "min"}).withColumnRenamed(
                "min(d)", "d"
            )

        distances = roots.iterate(nearer).keep()
        roots_in.insert([(0, 0)])
        edges_in.insert([(i, i + 1) for i in range(6)])
        load = jobs_by_iteration(flow, jobs, 1)
        assert sorted(map(tuple, distances.at().collect())) == [(i, i) for i in range(7)]
    # One job adds up the joined rows, and one computes the minima and all later operators.
    assert max(count for (at,), count in load if at > 1) == 2, load


def test_a_reader_that_fails_is_named(spark):
    def fail(key, values):
        raise ValueError("no answer")

    with Dataflow(spark, runner="spark", buckets=BUCKETS) as flow:
        rows, session = flow.input("rows", "k long, v long")
        arranged = rows.arrange_by_key("k")
        arranged.reduce(fail, "w long").keep("failing")
        session.insert([(1, 2)])
        with pytest.raises(FunctionError, match="no answer(.|\n)*failed at reduce"):
            flow.advance_to(1)


def test_what_is_done_in_tasks_and_what_on_the_driver_is_kept_together(spark):
    keys = spark.range(8).selectExpr("id as k", "pmod(hash(id), 4) as bucket").collect()
    first = {row.k for row in keys if row.bucket == keys[0].bucket}
    assert len({row.bucket for row in keys}) > 2  # the driver runs several left buckets

    def total(key, values):
        if TaskContext.get() is not None and key[0] not in first:
            raise ValueError("not in a task")
        return [(sum(value[0] * count for value, count in values),)]

    with Dataflow(spark, buckets=4) as flow:
        rows, session = flow.input("rows", "k long, v long")
        sums = rows.arrange_by_key("k").reduce(total, "w long").keep()
        for time in (1, 2):
            # Only Spark knows the number of their rows.
            session.insert(spark.range(8, numPartitions=2).selectExpr("id as k", "1L as v"))
            flow.advance_to(time)
            assert flow.last_report.local_runs and flow.last_report.spark_runs
            assert sorted(map(tuple, sums.at().collect())) == [(k, time) for k in range(8)]


def test_what_was_taken_of_nothing_is_not_read():
    node = object()
    turns = {
        ("taken", 1): Taking(None, None, (), 0),
        ("read", 1): FusedReader(None, {0: 1}),
    }
    nothing = Given()
    done = [BucketResult(0, (), nothing, 1, 0, operator=number) for number in range(3)]
    job = Job(node, turns, done)
    assert not job.is_valid(2)  # its input cancelled out, and it had no turn
    rows = UpdateRows(None)
    job.emitted(node, [replace(done[0], output=Given(rows=1))], [Feed(rows)])
    assert job.took(1, [Feed(rows)]) and job.results(1) and job.is_valid(2)
    job = Job(node, turns, done)
    job.emitted(node, [], [Feed(rows)])
    assert not job.took(1, [Feed(rows), Feed(rows)]) and not job.is_valid(2)
    # If the tasks took no rows either, the result is valid.
    assert Job(node, turns, [done[0], done[2]]).is_valid(2)


def test_what_had_no_turn_is_not_held(spark, monkeypatch):
    jobs_held = []
    iterate = Iteration._iterate

    def counted(loop, *arguments):
        iterate(loop, *arguments)
        jobs_held.append(len({id(job) for job, _ in loop.step.early.values()}))

    monkeypatch.setattr(Iteration, "_iterate", counted)
    with tasks_here(Random(0), lost=[0]), Dataflow(spark, runner="spark", buckets=2) as flow:
        rows, session = flow.input("rows", "k long")
        with Loop(NODES, "return") as loop:
            now = loop.variable(rows)
            counts = now.distinct().count()  # the distinct rows do not change
            now.set(now.concat(now))
        result = loop.leave(counts).keep()
        session.insert([(1,), (2,)])
        flow.advance_to(1)
        assert sorted(map(tuple, result.at().collect())) == [(1, 1), (2, 1)]
    assert len(jobs_held) == NODES and max(jobs_held) <= 2


def test_a_task_holds_what_is_still_taken_and_no_more(monkeypatch):
    size, allocated = 1 << 20, []

    def run(reading, bucket, done):
        allocated.append(pa.total_allocated_bytes())
        table = pa.table({"k": np.zeros(size // 8, np.int64)}).take(np.arange(size // 8))
        return BucketResult(bucket, (), Given(table, (), len(table)), 0, 0)

    monkeypatch.setattr(FusedReader, "run", run)
    many = [FusedReader(None, {0: 0}) for _ in range(8)]
    for result in run_behind(many, 0, run(None, 0, {})):
        assert result.output.rows
    assert max(allocated) - allocated[0] < 3 * size


@contextmanager
def tasks_here(random, lost=(0, 0, 0.3)):
    """Run tasks in this process, and lose some of their early results at random.

    Yields a list with, for each early result, whether the step used it.
    """
    used = []
    run, took = SparkRunner.run, fusion.Job.took

    def tasks(spark, count, do):
        return [result for number in range(count) for result in do(number)]

    def moved(spark, makers, buckets, do):
        parts = [[] for _ in range(buckets)]
        for count, make in makers:
            for number in range(count):
                for bucket, part in make(number):
                    parts[bucket].append(part)
        return [result for bucket, content in enumerate(parts) for result in do(bucket, content)]

    def losing(*arguments):
        results, share = run(*arguments), random.choice(lost)
        fused = arguments[4] if len(arguments) > 4 else ()
        missing = {result.bucket: set() for result in results}
        for bucket, numbers in missing.items():
            for number, operator in enumerate(fused, 1):
                # A task that skips an operator skips those that need it, too.
                if random.random() < share or numbers & operator.needs:
                    numbers.add(number)
        left = []
        for result in results:
            if result.operator in missing[result.bucket]:
                storage.remove_files(list(result.paths()))
            else:
                left.append(result)
        return left

    def noted(*arguments):
        used.append(took(*arguments))
        return used[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_module, "worker_task", nullcontext)  # this is no worker
        patch.setattr(spark_runner, "run_tasks", tasks)
        patch.setattr(spark_runner, "run_moved", moved)
        patch.setattr(SparkRunner, "run", losing)
        patch.setattr(fusion.Job, "took", noted)
        yield used


def check(spark, data, program, most, **options):
    schedule = data.draw(schedules(program.inputs, most=most))
    memory_rows = data.draw(st.sampled_from([0, 1, 4096]))
    with tasks_here(Random(data.draw(st.integers(0, 99)))) as used:
        buckets = data.draw(st.integers(1, 3))
        with Run(
            spark, program, runner="spark", buckets=buckets, memory_rows=memory_rows, **options
        ) as run:
            for actions in schedule:
                run.step(actions)
            run.finish()
    return used


@settings(max_examples=2 * settings().max_examples)
@given(data=st.data())
def test_random_programs(spark, data):
    check(spark, data, data.draw(programs(most=5)), 4)


@settings(max_examples=2 * settings().max_examples)
@given(data=st.data())
def test_random_loops(spark, data):
    check(spark, data, data.draw(looping(data.draw(st.sampled_from([0, 0, 1, 2])))), 4)
