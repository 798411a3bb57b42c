"""Loops: the law for random programs with loops in them, and the rules one by one."""

from __future__ import annotations

from collections import Counter
from random import Random

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Op, Program, accumulate, columns_of, evaluate
from program_ops import ddl, multiplies
from programs import Run, build, formed, operators, programs, schedules, whole_histories
from pyspark.sql import functions as F

from pyspark_diff import (
    Dataflow,
    DiffFrame,
    Loop,
    NotReadableError,
    SchemaError,
    StalledError,
)
from pyspark_diff.kernels.history import due_after
from pyspark_diff.runners import replay
from pyspark_diff.trace import storage

EXAMPLES = settings().max_examples
RUNNERS = ["local", "spark"]
buckets = st.integers(1, 3)
memory_rows = st.sampled_from([0, 1, 4096])


def examples(share: float) -> settings:
    return settings(max_examples=max(1, round(EXAMPLES * share)))


@st.composite
def bodies(draw: st.DrawFn, inputs, most: int, loops: int) -> Program:
    """A program whose result has the columns of its first input."""
    program = Program(inputs, (), ())
    for _ in range(draw(st.integers(1, most))):
        if loops and draw(st.booleans()):
            op = draw(loop_ops(program, len(columns_of(program)) - 1, loops - 1))
        else:
            op = draw(operators(program, True))
        program = Program(inputs, (*program.ops, op), ())
    columns = columns_of(program)
    last = len(columns) - 1
    candidates = [i for i, kinds in enumerate(columns) if kinds == inputs[0] and i >= len(inputs)]
    result = candidates[-1] if candidates else 0
    ops = list(program.ops)
    shared = tuple(n for n in dict(columns[last]) if n in dict(inputs[0])
                   and dict(columns[last])[n] == dict(inputs[0])[n])
    if shared and (result != last or draw(st.booleans())):
        how = draw(st.sampled_from(["semijoin", "antijoin"]))
        ops.append(Op("pick", (last,), shared[:1]))
        ops.append(Op("join", (result, len(inputs) + len(ops) - 1), (shared[:1], how)))
        result = len(inputs) + len(ops) - 1
    if result < len(inputs) or draw(st.booleans()):
        ops.append(Op("concat", (result, 0)))
        result = len(inputs) + len(ops) - 1
    body = Program(inputs, tuple(ops), ())
    if multiplies(body) or draw(st.booleans()):
        ops.append(Op("threshold", (result,), ("cap",)))
        result = len(inputs) + len(ops) - 1
    return Program(inputs, tuple(ops), (result,))


@st.composite
def loop_ops(draw: st.DrawFn, program: Program, start: int, loops: int) -> Op:
    """A loop that starts with a node of a program, and may read others."""
    columns = columns_of(program)
    others = draw(st.lists(st.integers(0, len(columns) - 1), max_size=2))
    inputs = tuple(columns[i] for i in (start, *others))
    body = draw(bodies(inputs, 3 if loops else 2, loops))
    times = draw(st.integers(1, 4 if not loops else 3))
    style = draw(st.sampled_from(["iterate", "entering", "variables"]))
    return Op("iterate", (start, *others), (times, style, body))


@st.composite
def looping(draw: st.DrawFn, loops: int) -> Program:
    """A random program with a loop, perhaps with nested loops."""
    program = draw(programs(most=2, whole=True))
    last = len(columns_of(program)) - 1
    op = draw(loop_ops(program, last, loops))
    program = Program(program.inputs, (*program.ops, op), ())
    if draw(st.booleans()):
        program = Program(program.inputs, (*program.ops, draw(operators(program, True))), ())
    return Program(program.inputs, program.ops, (len(columns_of(program)) - 1,))


@examples(2)
@given(data=st.data(), buckets=buckets, memory_rows=memory_rows)
def test_random_loops_on_the_driver(spark, data, buckets, memory_rows):
    program = data.draw(looping(0))
    schedule = data.draw(schedules(program.inputs))
    with Run(spark, program, runner="local", buckets=buckets, memory_rows=memory_rows) as run:
        for actions in schedule:
            run.step(actions)
        run.finish()


@examples(2)
@given(data=st.data(), buckets=buckets, memory_rows=memory_rows)
def test_random_nested_loops_on_the_driver(spark, data, buckets, memory_rows):
    program = data.draw(looping(data.draw(st.sampled_from([1, 1, 2]))))
    schedule = data.draw(schedules(program.inputs, most=4))
    with Run(spark, program, runner="local", buckets=buckets, memory_rows=memory_rows) as run:
        for actions in schedule:
            run.step(actions)
        run.finish()


@examples(0.25)
@given(data=st.data(), buckets=buckets, memory_rows=memory_rows)
def test_random_loops_that_change_the_runner(spark, data, buckets, memory_rows):
    program = data.draw(looping(0))
    schedule = data.draw(schedules(program.inputs, most=3, frames=True))
    with Run(spark, program, buckets=buckets, memory_rows=memory_rows) as run:
        for actions in schedule:
            run.flow.runner = data.draw(st.sampled_from(["auto", *RUNNERS]))
            run.flow.local_rows = data.draw(st.sampled_from([0, 2, 5]))
            run.step(actions)
        run.finish()


@examples(0.5)
@given(data=st.data())
def test_random_loops_in_a_whole_history(spark, data):
    program = data.draw(looping(data.draw(st.integers(0, 1))))
    histories = data.draw(whole_histories(program.inputs))
    frames = []
    for history, columns in zip(histories, program.inputs):
        rows = [(*record, time, diff) for record, time, diff in history]
        columns = (*columns, ("time", "bigint"), ("diff", "bigint"))
        frames.append(DiffFrame(
            spark.createDataFrame(formed(spark, "arrow", rows, columns), ddl(columns))))
    node = program.outputs[0]
    collected = build(program, frames)[node].to_df().collect()
    rows = [(tuple(row[:-2]), row[-2], row[-1]) for row in collected]
    for time in sorted({0, *(time for history in histories for _, time, _ in history)}):
        now = [accumulate(history, time) for history in histories]
        assert accumulate(rows, time) == evaluate(program, now)[node]


K = (("k", "bigint"),)
#: The first input goes ahead of the second, which follows.
LAGGING = (
    ((0, "insert", ("rows", [(1,)])), (0, "advance", 5), (0, "flush", None),
     (1, "insert", ("rows", [(1,), (2,)])), (1, "advance", 2), (1, "flush", None)),
    ((0, "insert", ("rows", [(2,)])), (0, "advance", 2), (0, "flush", None),
     (1, "advance", 1), (1, "flush", None)),
    ((1, "insert", ("rows", [(3,)])), (1, "advance", 1), (1, "flush", None)),
)


@pytest.mark.parametrize("of", [(0, 1), (1, 0)])
@pytest.mark.parametrize("ops", [
    [Op("concat", (0, 1))],
    [Op("join", (0, 1), (("k",), "left_semi")), Op("concat", (2, 0)),
     Op("threshold", (3,), ("cap",))],
])
def test_inputs_that_lag(spark, of, ops):
    """Updates ahead of the loop's frontier wait, and enter once."""
    body = Program((K, K), tuple(ops), (len(ops) + 1,))
    program = Program((K, K), (Op("iterate", of, (2, "iterate", body)),), (2,))
    with Run(spark, program, runner="local", buckets=1) as run:
        for actions in LAGGING:
            run.step(actions)
        run.finish()


# Graphs, by hand.

WORKED = [((0, 3), 0, 1), ((0, 2), 5, 1), ((2, 3), 10, 1), ((0, 3), 11, -1)]
#: Nodes by distance from 0, when they change.
LEVELS = [(0, 0, 1), (1, 0, 1), (1, 5, 1), (1, 11, -1), (2, 11, 1)]


def distances(start, edges):
    """The distance of each node from the start: (node, distance)."""
    def body(known):
        further = known.toDF("src", "distance").join(edges, "src").select(
            F.col("dst").alias("node"), (F.col("distance") + 1).alias("distance"))
        return further.union(start).top_k(1, "distance", per="node")

    return start.iterate(body, name="distances")


class Distances:
    """Distances from node 0, kept up to date."""

    def __init__(self, spark, **options):
        self.flow = Dataflow(spark, **options)
        self.edges, self.edges_in = self.flow.input("edges", "src long, dst long")
        roots, self.roots_in = self.flow.input("roots", "node long")
        self.start = roots.withColumn("distance", F.lit(0).cast("long"))
        self.output = distances(self.start, self.edges)
        self.updates = []
        self.levels = []
        self.output.inspect(lambda r, t, d: self.updates.append((r, t, d)))
        self.output.select("distance").inspect(lambda r, t, d: self.levels.append((r, t, d)))
        self.roots_in.insert([(0,)])

    def step(self, edges, upper, on_iteration=None):
        self.edges_in.update([(*edge, time, diff) for edge, time, diff in edges])
        for session in (self.edges_in, self.roots_in):
            session.advance_to(upper)
            session.flush()
        self.flow.step(on_iteration)


def expected_distances(edges, time):
    graph = networkx.DiGraph([e for e, n in accumulate(edges, time).items() if n > 0])
    graph.add_node(0)
    return Counter(networkx.single_source_shortest_path_length(graph, 0).items())


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("cuts", [[20], [1, 6, 11, 20]])
def test_worked_history(spark, runner, cuts):
    run = Distances(spark, runner=runner)
    with run.flow:
        lower = 0
        for upper in cuts:
            run.step([u for u in WORKED if lower <= u[1] < upper], upper)
            lower = upper
        levels = Counter()
        for (distance,), time, diff in run.levels:
            levels[distance, time] += diff
        assert sorted((*key, n) for key, n in levels.items() if n) == LEVELS


@pytest.mark.parametrize("seed", range(4))
def test_a_distance_found_earlier_takes_back_a_later_one(spark, seed):
    """A key is visited again at each larger coordinate where it has recorded updates."""
    random = Random(seed)
    run = Distances(spark, runner="local", buckets=2)
    history, present = [], []
    with run.flow:
        for step in range(12):
            new = []
            for _ in range(4):
                time = 3 * step + random.randrange(3)
                if present and random.random() < 0.5:
                    edge = present.pop(random.randrange(len(present)))
                    new.append((edge, 3 * step + 2, -1))
                else:
                    edge = (random.randrange(9), random.randrange(9))
                    present.append(edge)
                    new.append((edge, time, 1))
            history += new
            run.step(new, 3 * step + 3)
            for time in range(3 * step + 3):
                assert accumulate(run.updates, time) == expected_distances(history, time)


def test_joins_of_three_coordinates_are_visited(spark, monkeypatch):
    """Updates at (3, 0) and (0, 3) are on record; one at (1, 1) makes (3, 3) due as well."""
    assert three_coordinates(spark) == [((7, 3), 1, 1)]

    def pairs_only(keys, sides, at):
        # As if only the joins of a fresh update with one other were interesting.
        return due_after(keys, sides, at) if at in ((1, 1), (3, 0), (0, 3)) else {}

    monkeypatch.setattr(replay, "due_after", pairs_only)
    assert three_coordinates(spark) == []


def three_coordinates(spark):
    """The output of a loop that counts records at (1, 1), (3, 0) and (0, 3) together."""
    shown = []
    with Dataflow(spark, runner="local", buckets=1) as flow:
        zero, zero_in = flow.input("zero", "n long")
        late, late_in = flow.input("late", "n long")

        def up_to_four(x):
            return x.union(x.where("n < 4").select((F.col("n") + 1).alias("n"))).distinct()

        with flow.loop(6, "return") as outer:
            x = outer.variable(zero)
            with flow.loop(6, "return") as inner:
                y = inner.variable(zero)
                y.set(up_to_four(y))
                both = (x.where("n = 1").join(y.where("n = 1"), "n").join(late, "n")
                        .union(x.where("n = 3")).union(y.where("n = 3")))
                three = (both.select(F.lit(7).alias("k")).groupBy("k").agg(F.count("*").alias("n"))
                         .where("n = 3"))
            x.set(up_to_four(x))
            result = inner.leave(three)
        outer.leave(result).consolidate().inspect(lambda r, t, d: shown.append((r, t, d)))
        zero_in.insert([(0,)])
        for step in range(2):
            if step:
                late_in.insert([(1,)])
            for session in (zero_in, late_in):
                session.advance_to(step + 1)
                session.flush()
            flow.step()
    return shown


def test_compaction_keeps_coordinates(spark):
    """Compaction advances times, and merges no updates of different iterations."""
    chain = [((i, i + 1), 0, 1) for i in range(6)]
    run = Distances(spark, runner="local", buckets=1)
    with run.flow:
        run.step(chain, 1)
        history = list(chain)
        for time in range(1, 40):
            new = [((0, 5), time, 1 if time % 2 else -1)]
            history += new
            run.step(new, time + 1)
            assert accumulate(run.updates, time) == expected_distances(history, time)
        nodes = run.flow._state.graph.nodes
        inside = [n for n in nodes if n.loop is not None and n.kind != "enter"]
        traces = [run.flow._state.traces[n] for n in inside if n in run.flow._state.traces]
        updates = [storage.open_updates(path) for trace in traces for path in trace.paths()]
        coordinates = {int(c) for u in updates for c in np.atleast_1d(u.coordinate)}
        assert coordinates >= {1, 2, 3, 4}
        # One row for each value and coordinate, and not one for each of forty times.
        assert sum(trace.rows for trace in traces) < 120


# Small changes.


def random_edges(seed, nodes, edges):
    random = Random(seed)
    return [((random.randrange(nodes), random.randrange(nodes)), 0, 1) for _ in range(edges)]


@pytest.mark.classic_only("counts the jobs of Spark's context")
def test_a_small_change_reads_little_and_needs_no_spark(spark):
    edges = random_edges(1, 3000, 12_000)
    run = Distances(spark)
    with run.flow:
        run.step(edges, 1)
        jobs = spark.sparkContext.statusTracker().getJobIdsForGroup(None)
        before = len(run.updates)
        run.step([(edges[5][0], 1, -1), ((0, 77), 1, 1)], 2)
        changed = len(run.updates) - before
        report = run.flow.last_report
        assert report.spark_runs == 0
        assert spark.sparkContext.statusTracker().getJobIdsForGroup(None) == jobs
        # In proportion to the changes, not to the 12,000 edges.
        assert report.rows_read < 60 * (changed + 20)
        # An iteration that nothing reaches has no turn.
        assert len(report.iterations) <= 16


def test_nothing_changes_without_a_change(spark):
    run = Distances(spark)
    with run.flow:
        run.step(random_edges(2, 50, 100), 1)
        run.step([], 2)
        assert run.flow.last_report.iterations == [] and run.flow.last_report.rows_read == 0


def test_arrangements_from_outside_are_shared(spark):
    """One arrangement of the edges serves a join outside of the loop and one inside."""
    with Dataflow(spark, runner="local") as flow:
        edges, edges_in = flow.input("edges", "src long, dst long")
        start = edges.where("src = 0").select("dst", F.lit(1).cast("long").alias("d")).distinct()
        start = start.toDF("node", "distance")
        output = distances(start, edges)
        output.toDF("src", "distance").join(edges, "src").inspect(lambda *_: None)
        edges_in.insert([(0, 1), (1, 2)])
        edges_in.advance_to(1)
        edges_in.flush()
        flow.step()
        by_source = [row for row in flow.arrangements().collect() if row.key == "src"]
        shared = [row for row in by_source if len(row.readers) == 2]
        assert len(shared) == 1 and shared[0].rows == 2


@pytest.mark.parametrize("length", [500, pytest.param(2000, marks=pytest.mark.slow)])
def test_a_chain_of_many_iterations(spark, length):
    """Thousands of iterations: no plan, no file and no agenda grows with them."""
    run = Distances(spark)
    with run.flow:
        run.step([((i, i + 1), 0, 1) for i in range(length)], 1)
        assert accumulate(run.updates, 0) == Counter({(i, i): 1 for i in range(length + 1)})
        assert len(run.flow.last_report.iterations) == length + 1
        run.step([((length // 2, length // 2 + 1), 1, -1)], 2)
        assert len(accumulate(run.updates, 1)) == length // 2 + 1


# Computed starts.


STARTS = {
    "aggregate": lambda n: n.groupBy("a").agg(F.sum("b").alias("s")),
    "count": lambda n: n.select("a").count().toDF("a", "s"),
    "reduce": lambda n: n.reduce(lambda k, values: [(len(values),)], "s long", key="a"),
    "join": lambda n: n.join(n.toDF("a", "s"), "a").select("a", "s"),
    "distinct": lambda n: n.toDF("a", "s").distinct(),
}


def ones(x):
    """Reads one column of two."""
    return x.select("a", F.lit(1).cast("long").alias("s")).distinct()


def up(x):
    """Reads one column of two, and never comes to rest."""
    return x.select((F.col("a") + 1).alias("a"), F.lit(1).cast("long").alias("s")).distinct()


@pytest.fixture
def pairs(spark):
    return whole(spark, [(1, 2), (1, 3), (2, 5)], "a long, b long")


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_a_computed_start_is_taken_back_whole(pairs, start):
    output = start(pairs).iterate(ones).at(0)
    assert sorted(tuple(row) for row in output.collect()) == [(1, 1), (2, 1)]


@pytest.mark.parametrize("start", [STARTS["aggregate"], STARTS["count"]])
def test_a_computed_start_of_a_loop_in_a_loop(pairs, start):
    output = start(pairs).iterate(lambda x: start(x.toDF("a", "b")).iterate(ones)).at(0)
    assert sorted(tuple(row) for row in output.collect()) == [(1, 1), (2, 1)]


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_a_loop_with_a_computed_start_that_never_comes_to_rest_is_refused(pairs, start):
    with pytest.raises(StalledError, match="3 iterations: .* still change, such as"):
        start(pairs).iterate(up, max_iterations=3).at(0)
    with pytest.raises(StalledError, match="1 iterations"):
        start(pairs).iterate(up, max_iterations=1).at(0)


@pytest.mark.parametrize("start", [STARTS["aggregate"], STARTS["join"]])
def test_a_computed_start_changes_with_its_inputs(spark, start):
    updates = []
    with Dataflow(spark, runner="local") as flow:
        n, n_in = flow.input("n", "a long, b long")
        start(n).iterate(ones).inspect(lambda r, t, d: updates.append((r, t, d)))
        for time, change in enumerate([((1, 2), 1), ((3, 4), 1), ((1, 2), -1)]):
            n_in.update([(*change[0], time, change[1])])
            n_in.advance_to(time + 1)
            n_in.flush()
            flow.step()
    assert [sorted(accumulate(updates, t)) for t in range(3)] == [
        [(1, 1)], [(1, 1), (3, 1)], [(3, 1)]
    ]


# Loops as a user sees them.


def test_a_start_without_rows(spark):
    """The second iteration retracts a start that has no table."""
    with Dataflow(spark, runner="local") as flow:
        numbers, numbers_in = flow.input("numbers", "n long")
        none = numbers.where(F.col("n").cast("string").rlike("x"))
        few = numbers.where("n < 2")
        updates = []
        with flow.loop() as loop:
            x, y = loop.variable(none), loop.variable(few)
            both = x.concat(y).distinct()
            x.set(both.where("n > 7").distinct())
            y.set(both)
            loop.leave(both).inspect(lambda r, t, d: updates.append((r, t, d)))
        none.concat(few).inspect(lambda *_: None)
        numbers_in.insert([(1,), (3,)])
        numbers_in.advance_to(1)
        numbers_in.flush()
        flow.step()
        assert updates == [((1,), 0, 1)]


def test_iterations_can_be_watched(spark):
    run = Distances(spark, runner="local")
    updates = []
    with run.flow as flow:
        distances(run.start, run.edges.inspect(lambda *_: None))
        tables = []

        def body(x):
            x = x.inspect(lambda r, t, d: updates.append((r, t, d)))
            x.inspect(tables.append, by_table=True)
            return x.union(x.where("distance < 2").select(
                "node", (F.col("distance") + 1).alias("distance"))).distinct()

        run.start.iterate(body, name="up").inspect(lambda *_: None)
        live = []

        def stop(turn):
            live.append(turn.iteration)
            if turn.loop == "up" and turn.iteration == (1,):
                raise KeyError("seen enough")

        with pytest.raises(KeyError, match="seen enough"):
            run.step([], 1, stop)
        assert live[-2:] == [(0,), (1,)] and not updates
        live.clear()
        assert flow.step(live.append)
        up = [turn for turn in live if turn.loop == "up"]
        assert [(turn.iteration, turn.changes) for turn in up] == [((0,), 2), ((1,), 1), ((2,), 0)]
        assert all(turn.seconds > 0 for turn in live)
        assert updates == [((0, 0), (0, 0), 1), ((0, 1), (0, 1), 1), ((0, 2), (0, 2), 1)]
        assert [table["iteration"].to_pylist() for table in tables] == [[[0]], [[1]], [[2]]]
        rows = flow.iterations().where("loop = 'up'").select("iteration", "changes").collect()
        assert [tuple(row) for row in rows] == [([0], 2), ([1], 1), ([2], 0)]
        assert flow.iterations().schema.names == ["loop", "iteration", "changes", "seconds"]


def counter(frame, **options):
    return frame.iterate(
        lambda x: x.select((F.col("n") + 1).alias("n")), name="counting", **options)


def whole(spark, rows, columns="n long"):
    return DiffFrame(spark.createDataFrame([(*r, 0, 1) for r in rows],
                                           f"{columns}, time long, diff long"))


@pytest.mark.parametrize("body, still", [
    (lambda x: x.select((F.col("n") + 1).alias("n")), "20"),
    (lambda x: x.select((-F.col("n")).alias("n")), "-1"),
])
def test_what_never_comes_to_rest_is_refused(spark, body, still):
    frame = whole(spark, [(1,)])
    with pytest.raises(StalledError) as refused:
        frame.iterate(body, max_iterations=19, name="restless").at(0)
    for text in ("restless", "19 iterations", f"({still},) at time 0", "max_iterations"):
        assert text in str(refused.value)


def turned(period):
    """The numbers below ``period``, each followed by the next, and the last by the first."""
    return lambda x: x.select(((F.col("n") + 1) % period).alias("n")).distinct()


@pytest.mark.parametrize("period, runner", [(2, "local"), (7, "local"), (3, "auto")])
def test_a_loop_that_swings_is_refused_as_soon_as_it_is_known(spark, period, runner):
    with Dataflow(spark, runner=runner) as flow:
        n, n_in = flow.input("n", "n long")
        n.iterate(turned(period), name="swing").keep()
        n_in.insert([(0,), (1,)][: period // 2])
        n_in.advance_to(1)
        n_in.flush()
        turns = []
        with pytest.raises(StalledError, match=f"swing has no .* every {period} iter") as refused:
            flow.step(turns.append)
        assert len(turns) < 300
        assert ",) at time 0 (" in str(refused.value)


def test_a_loop_of_two_variables_that_swings_is_refused(spark):
    frame = whole(spark, [(1,)])
    with pytest.raises(StalledError, match="every 2 iterations"):
        with Loop() as loop:
            here, there = loop.variable(frame), loop.variable(frame.where(F.lit(False)))
            here.set(there.distinct())
            there.set(here.distinct())
        here.leave().at(0)


def test_a_loop_that_swings_inside_of_another_is_refused(spark):
    frame = whole(spark, [(0,)])
    with pytest.raises(StalledError, match="within .* every 2 iter.* of iteration .0,. around"):
        frame.iterate(lambda x: x.iterate(turned(2), name="within")).at(0)


def far(most):
    """Counts up to ``most``."""
    return lambda x: x.select(
        F.when(F.col("n") < most, F.col("n") + 1).otherwise(F.col("n")).alias("n")).distinct()


@pytest.mark.slow
def test_a_long_way_to_rest_is_none_that_swings(spark):
    """Also if earlier steps reached the end, and the loop works on the difference to them."""
    assert whole(spark, [(0,)]).iterate(far(1000)).at(0).collect() == [(1000,)]
    with Dataflow(spark, runner="local") as flow:
        n, n_in = flow.input("n", "n long")
        output = n.iterate(far(300)).keep()
        for method, rows in (("insert", [(0,)]), ("insert", [(1,), (100,)]), ("remove", [(0,)])):
            getattr(n_in, method)(rows)
            n_in.advance_to(n_in.time() + 1)
            n_in.flush()
            flow.step()
            assert output.at().collect() == [(300,)]


def test_what_swings_up_to_the_end_of_an_older_run_is_no_loop_that_swings(spark):
    """A lamp goes on and off as long as a counter runs, which an earlier step started."""
    def body(x):
        runs = x.where("n >= 2").select(
            F.when(F.col("n") < 500, F.col("n") + 1).otherwise(F.col("n")).alias("n"))
        ends = x.where("n = 500").select(F.lit("e").alias("e"))
        lamp = x.where("n < 2").select(F.lit("e").alias("e"), "n")
        stays = lamp.join(ends, "e", "left_semi").select(F.lit(0).cast("long").alias("n"))
        turns = lamp.join(ends, "e", "left_anti").select((1 - F.col("n")).alias("n"))
        return runs.union(stays).union(turns).distinct()

    with Dataflow(spark, runner="local") as flow:
        n, n_in = flow.input("n", "n long")
        output = n.iterate(body).keep()
        for rows in ([(2,)], [(0,)]):
            n_in.insert(rows)
            n_in.advance_to(n_in.time() + 1)
            n_in.flush()
            flow.step()
        assert sorted(output.at().collect()) == [(0,), (500,)]


def test_a_loop_that_takes_long_says_how_far_it_is(spark, use_thresholds, caplog):
    use_thresholds(loop_log_seconds=0.0)
    with caplog.at_level("INFO", logger="pyspark_diff"):
        assert whole(spark, [(0,)]).iterate(far(3), name="long").at(0).collect() == [(3,)]
    # A step that takes seconds says so in lines of its own.
    messages = [record.getMessage().split(",")[0] for record in caplog.records]
    assert [line for line in messages if line.startswith("long:")][:2] == [
        "long: iteration 0", "long: iteration 1"
    ]


@pytest.mark.parametrize("history", [False, True])
def test_a_refused_step_can_be_followed_by_others(spark, history):
    with Dataflow(spark, keep_history=history) as flow:
        n, n_in = flow.input("n", "n long")
        output = n.iterate(
            lambda x: x.select(F.when(F.col("n") < 5, F.col("n") + 1).otherwise(F.col("n"))
                               .alias("n")), max_iterations=3).keep()
        n_in.insert([(0,)])
        with pytest.raises(StalledError):
            flow.advance_to(1)
        n_in.remove([(0,)])
        n_in.insert([(4,)])
        if history:
            with pytest.raises(StalledError):
                flow.advance_to(2)  # it was there at time 0, and still is
            assert not flow._state.traces
        else:
            flow.advance_to(2)
            assert output.at().collect() == [(5,)]


def test_a_number_of_iterations(spark):
    frame = whole(spark, [(1,), (5,)])
    for times in (1, 2, 7):
        output = counter(frame, max_iterations=times, on_limit="return").at(0)
        assert sorted(row.n for row in output.collect()) == [1 + times, 5 + times]


def test_a_body_that_forgets_to_consolidate_ends(spark):
    frame = whole(spark, [(1,), (5,)])
    output = frame.iterate(lambda x: x.union(x.negate()).union(frame)).at(0)
    assert sorted(row.n for row in output.collect()) == [1, 5]


@pytest.mark.parametrize("several", [False, True])
def test_what_cancels_out_at_a_coordinate_is_taken_back(spark, several):
    """A key whose new updates are there in one iteration and gone in the next has none left."""
    aggregates = [F.count("*"), F.max("n"), F.collect_list("n")][: 3 if several else 1]
    # Lists, as an empty column of numbers would pass for one of most other types.
    frame = whole(spark, [([1], 1), ([2], 2), ([2], 3)], "s array<int>, n long")
    with Loop() as loop:
        x = loop.variable(frame)
        grouped = x.groupBy("s").agg(*[f.alias(f"f{i}") for i, f in enumerate(aggregates)])
        x.set(x.where("n = 2"))
    left = [tuple(row) for row in grouped.leave().at(0).collect()]
    assert left == [([2], 1, 2, [2])[: 1 + len(aggregates)]]


def test_mutual_recursion(spark):
    """Even and odd distances from 1, each computed from the other."""
    edges = whole(spark, [(i, i + 1) for i in range(1, 6)], "src long, dst long")
    none = whole(spark, [(0,)], "node long").where("node = 1")
    start = edges.where("src = 1").select(F.col("src").alias("node"))

    def beyond(nodes):
        return nodes.toDF("src").join(edges, "src").select(F.col("dst").alias("node"))

    with Loop(name="parity") as loop:
        even, odd = loop.variable(start), loop.variable(none)
        even.set(beyond(odd).union(start).distinct())
        odd.set(beyond(even).distinct())
    assert sorted(row.node for row in even.leave().at(0).collect()) == [1, 3, 5]
    assert sorted(row.node for row in loop.leave(odd).at(0).collect()) == [2, 4, 6]


# Records that enter later than others.


def smallest(labels, edges, iteration=None):
    """The least label that reaches each node, with labels that enter one after the other."""
    with Loop(max_iterations=300) as loop:
        sent = loop.variable(labels.where(F.lit(False)))
        own = labels if iteration is None else labels.enter_at(iteration)
        least = own.union(sent).top_k(1, "label", per="node")
        sent.set(least.join(edges, "node").select(F.col("other").alias("node"), "label"))
    return loop.leave(least)


def ring(spark, n):
    rows = [(i, (i + 1) % n, 0, 1) for i in range(n)]
    return DiffFrame(spark.createDataFrame(rows, "node long, other long, time long, diff long"))


@pytest.mark.parametrize("runner", RUNNERS)
def test_what_is_likely_to_win_goes_first(spark, runner):
    """Late labels lose to better ones and are never sent. Quiet iterations cost nothing."""
    went = {}
    for delay in (0, 100):
        with Dataflow(spark, runner=runner) as flow:
            edges, edges_in = flow.input("edges", "node long, other long")
            labels = edges.select("node", F.col("node").alias("label"))
            iteration = F.when(F.col("label") == 0, 0).otherwise(delay)
            least = smallest(labels, edges, iteration).keep()
            edges_in.insert([(i, (i + 1) % 6) for i in range(6)])
            edges_in.advance_to(1)
            edges_in.flush()
            turns = []
            flow.step(turns.append)
            assert sorted(least.at().collect()) == [(i, 0) for i in range(6)]
            went[delay] = sum(turn.changes for turn in turns)
            assert len(turns) < 12
            assert delay == 0 or turns[-1].iteration == (100,)
    assert went[100] < went[0] / 2


def test_a_record_that_is_to_enter_never_or_before_the_beginning_is_refused(spark):
    edges = ring(spark, 3)
    labels = edges.select("node", F.col("node").alias("label"))
    for iteration, error, message in [
        (F.col("label") - 1, SchemaError, "iteration -1"),
        (F.when(F.col("label") > 0, F.col("label")), SchemaError, "is null"),
        (F.col("label") + 298, StalledError, "at iteration 300, and it has 300 at most"),
    ]:
        with pytest.raises(error, match=message):
            smallest(labels, edges, iteration).at(0)
    assert sorted(smallest(labels, edges, F.col("label") + 290).at(0).collect()) == [
        (0, 0), (1, 0), (2, 0)
    ]


def test_enter_at_where_it_makes_no_sense(spark):
    edges = ring(spark, 3)
    with pytest.raises(SchemaError, match="is for loops"):
        edges.enter_at("node")
    with Loop() as loop:
        x = loop.variable(edges)
        with pytest.raises(SchemaError, match="from outside of"):
            x.enter_at("node")
        with pytest.raises(SchemaError, match="this is a string"):
            edges.enter_at(F.col("node").cast("string"))
        x.set(x.distinct())


@pytest.mark.parametrize("runner", ["local", "auto"])
def test_a_loop_that_swings_until_something_enters_is_not_refused(spark, runner):
    """A lamp goes on and off until a switch enters, long after the first check for swings."""
    def blinking(then):
        def body(x):
            there = switch.enter_at(F.lit(400)).select(F.lit("e").alias("e"))
            now = x.withColumn("e", F.lit("e"))
            stays = now.join(there, "e", "left_semi").select(then.cast("long").alias("n"))
            turns = now.join(there, "e", "left_anti").select((1 - F.col("n")).alias("n"))
            return stays.union(turns).distinct()
        return body

    for then, rests in ((F.lit(7), True), (1 - F.col("n"), False)):
        with Dataflow(spark, runner=runner) as flow:
            lamp, lamp_in = flow.input("lamp", "n long")
            switch, switch_in = flow.input("switch", "n long")
            output = lamp.iterate(blinking(then)).keep()
            for session in (lamp_in, switch_in):
                session.insert([(1,)])
                session.advance_to(1)
                session.flush()
            if rests:
                flow.step()
                assert output.at().collect() == [(7,)]
                continue
            with pytest.raises(StalledError, match="every 2 iterations, here at 4"):
                flow.step()


# Refusals.


def test_loops_that_make_no_sense_are_refused(spark):
    frame = whole(spark, [(1,)])
    with pytest.raises(SchemaError, match="never set"):
        with Loop() as loop:
            loop.variable(frame)
    with pytest.raises(SchemaError, match="same columns"):
        frame.iterate(lambda x: x.withColumn("m", F.lit(1)))
    with pytest.raises(SchemaError, match="returns a DiffFrame"):
        frame.iterate(lambda x: None)
    with pytest.raises(SchemaError, match="needs max_iterations"):
        Loop(on_limit="return")
    with pytest.raises(SchemaError, match="positive whole number"):
        Loop(0)
    with pytest.raises(SchemaError, match="'error' or 'return'"):
        Loop(5, "stop")
    with pytest.raises(NotReadableError, match="is in no loop"):
        frame.leave()
    with pytest.raises(SchemaError, match="only a variable"):
        frame.set(frame)
    with Loop() as first:
        x = first.variable(frame)
        with pytest.raises(SchemaError, match="from outside"):
            first.variable(x)
        x.set(x)
        with pytest.raises(SchemaError, match="set once"):
            x.set(x)
        with pytest.raises(NotReadableError, match="leave"):
            x.at(0)
    with pytest.raises(SchemaError, match="a loop has one with statement"):
        first.__enter__()
    with Loop() as second:
        y = second.variable(frame)
        with pytest.raises(SchemaError, match="two loops"):
            y.union(x)
        y.set(y)
    with pytest.raises(SchemaError, match="inside of its loop"):
        second.variable(frame)


def test_the_end_of_a_loop_is_no_part_of_its_body(spark):
    frame = whole(spark, [(1,), (2,)])
    with pytest.raises(SchemaError, match="final state.*Use the collection itself"):
        with Loop(3, "return") as loop:
            v, w = loop.variable(frame), loop.variable(frame)
            longer = v.selectExpr("n + 1 AS n").distinct()
            v.set(longer)
            w.set(loop.leave(longer))
    with pytest.raises(SchemaError, match="final state"):
        frame.iterate(lambda x: x.union(x.where("n = 1").leave()).distinct())
    with pytest.raises(SchemaError, match="final state"):
        with Loop(3, "return") as loop:
            v = loop.variable(frame)
            v.set(v.distinct())
            loop.leave(v.join(loop.leave(v), "n", "left_semi"))
    with Loop(3, "return") as loop:
        v, w = loop.variable(frame), loop.variable(frame)
        longer = v.selectExpr("n + 1 AS n").distinct()
        v.set(longer)
        w.set(longer)
        early = loop.leave(longer)
    assert sorted(row.n for row in early.at(0).collect()) == [4, 5]


#: The collections that a variable may depend on: two variables, the outer one, and an input.
READ = "vwxa"
#: A program that failed: in the inner loop, w is the input in each iteration.
INVARIANT = ("w", "a", 3)
RANDOM_DEPENDENCIES = 3


def depending(seed: int) -> tuple[str, str, int | None]:
    """A random subset of the collections for each of two variables, and a limit."""
    random = Random(seed)
    v, w = ("".join(random.sample(READ, random.randint(1, 4))) for _ in range(2))
    return v, w, random.choice([None, 1, 2, 3])


def inner_oracle(v: set, w: set, x: set, a: set, case: tuple) -> set:
    """The two variables after the last iteration, computed from scratch."""
    of_v, of_w, limit = case
    for _ in range((limit or 30) - 1):
        known = {"v": {n + 1 for n in v if n < 6}, "w": {n + 1 for n in w if n < 6}, "x": x, "a": a}
        v, w = (set().union(*(known[name] for name in names)) for names in (of_v, of_w))
    return v | w


def check_dependencies(spark, runner: str, case: tuple, seed: int) -> None:
    """Compare a nested loop of two variables to the oracle after each of five random steps."""
    of_v, of_w, limit = case
    random = Random(seed)
    kwargs = {"max_iterations": limit, "on_limit": "return"} if limit else {}
    with Dataflow(spark, runner=runner) as flow:
        a, a_in = flow.input("a", "n int")
        b, b_in = flow.input("b", "n int")

        def body(x):
            with Loop(**kwargs) as loop:
                v, w = loop.variable(b), loop.variable(a)
                known = {name: frame.where("n < 6").select((F.col("n") + 1).alias("n"))
                         for name, frame in (("v", v), ("w", w))} | {"x": x, "a": a}
                for variable, names in ((v, of_v), (w, of_w)):
                    first, *others = (known[name] for name in names)
                    for other in others:
                        first = first.union(other)
                    variable.set(first.distinct())
                both = v.union(w)
            return loop.leave(both).union(x).distinct()

        a.distinct().iterate(body, **kwargs).keep("o")
        rows: dict = {"a": set(), "b": set()}
        for time in range(1, 6):
            for name, session in (("a", a_in), ("b", b_in)):
                for n in random.sample(range(5), random.randint(0, 2)):
                    change = session.remove if n in rows[name] else session.insert
                    change([(n,)])
                    rows[name] ^= {n}
            flow.advance_to(time)
            x = set(rows["a"])
            for _ in range(limit or 30):
                x = inner_oracle(rows["b"], rows["a"], x, rows["a"], case) | x
            rows_now = sorted(row.n for row in flow["o"].at().collect())
            assert rows_now == sorted(x), (case, seed, time)


@pytest.mark.parametrize("runner", ["local", pytest.param("spark", marks=pytest.mark.slow)])
def test_a_variable_of_an_inner_loop_may_depend_on_none(spark, runner):
    check_dependencies(spark, runner, INVARIANT, 0)


@pytest.mark.parametrize("case", [*map(depending, range(RANDOM_DEPENDENCIES))])
def test_variables_of_an_inner_loop_depend_on_any_collections(spark, case):
    check_dependencies(spark, "local", case, 1)


def least_of_the_connected(edges):
    both = edges.union(edges.select("dst", "src")).toDF("node", "other")
    start = both.select("node").distinct().withColumn("least", F.col("node"))

    def body(least):
        sent = least.join(both, "node").select(F.col("other").alias("node"), "least")
        return least.union(sent).groupBy("node").agg(F.min("least").alias("least"))

    return start.iterate(body)


@pytest.mark.parametrize("kind, names", [
    ("string", ("a", "b", "c")),
    pytest.param("string", ("n02", "\u00e9 3", "\u00e9 6"), marks=pytest.mark.slow),
    pytest.param("string", ("u1", "u2", "u3"), marks=pytest.mark.slow),
    pytest.param("long", (1, 2, 3), marks=pytest.mark.slow),
])
def test_a_minimum_in_a_loop_is_visited_again_without_new_keys(spark, kind, names):
    a, b, c = names
    with Dataflow(spark) as flow:
        edges, edges_in = flow.input("edges", f"src {kind}, dst {kind}")
        least_of_the_connected(edges).keep("least")
        edges_in.insert([(c, b)])
        flow.advance_to(1)
        edges_in.insert([(c, a), (b, a)])
        flow.advance_to(2)
        edges_in.remove([(c, a)])
        flow.advance_to(3)
        assert sorted(map(tuple, flow["least"].at().collect())) == [(a, a), (b, a), (c, a)]
