"""Times that are structs: at every time the answer is that of the updates that are no later in any
field, through every operator.

    frame.at((i, j))  =  program( updates of the inputs at times (a, b) with a <= i and b <= j )
"""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import evaluate, normal, total
from program_ops import ddl
from programs import build, formed, pool, programs
from pyspark.sql import functions as F
from test_iterate import looping

from pyspark_diff import (
    Dataflow,
    DiffFrame,
    InvalidTimeError,
    Loop,
    NegativeMultiplicityError,
    NotReadableError,
    SchemaError,
    TimeRegressionError,
    graphs,
)

EXAMPLES = settings().max_examples
SIDE = 3
TIMES = [("a", "int"), ("b", "bigint"), ("c", "smallint")]


def examples(share):
    return settings(max_examples=max(1, round(EXAMPLES * share)))


def accumulated(history, time):
    return total(
        (normal(record), diff) for record, at, diff in history
        if all(a <= b for a, b in zip(at, time))
    )


def kind_of(fields):
    return f"struct<{', '.join(f'{name}: {kind}' for name, kind in TIMES[:fields])}>"


@st.composite
def histories(draw, inputs, fields):
    pools = {columns: draw(pool(columns)) for columns in dict.fromkeys(inputs)}
    time = st.tuples(*[st.integers(0, SIDE - 1)] * fields)
    return [
        draw(st.lists(
            st.tuples(st.sampled_from(pools[columns]), time, st.sampled_from([1, 1, 2, -1, -2, 0])),
            max_size=12,
        ))
        for columns in inputs
    ]


def framed(spark, form, history, columns, fields):
    rows = [(*record, *time, diff) for record, time, diff in history]
    names = [f"time {number}" for number in range(fields)]
    told = (*columns, *((n, "bigint") for n in names), ("diff", "bigint"))
    made = formed(spark, form, rows, told)
    frame = made if form == "frame" else spark.createDataFrame(made, ddl(told))
    parts = [F.col(f"`{n}`").cast(kind).alias(name) for n, (name, kind) in zip(names, TIMES)]
    rest = [F.col(f"`{name}`") for name, _ in columns]
    return DiffFrame(frame.select(*rest, F.struct(*parts).alias("time"), "diff"))


def check(spark, data, program, fields, form):
    given_ = data.draw(histories(program.inputs, fields))
    frames = [
        framed(spark, form, history, columns, fields)
        for history, columns in zip(given_, program.inputs)
    ]
    nodes = build(program, frames)
    for node in program.outputs:
        found = nodes[node].to_df()
        assert found.schema["time"].dataType.simpleString() == kind_of(fields).replace(" ", "")
        rows = [(tuple(row[:-2]), tuple(row[-2]), row[-1]) for row in found.collect()]
        keys = [(normal(record), time) for record, time, _ in rows]
        assert len(set(keys)) == len(keys) and all(diff for _, _, diff in rows)
        for time in product(range(SIDE), repeat=fields):
            now = [accumulated(history, time) for history in given_]
            assert accumulated(rows, time) == evaluate(program, now)[node], time
        time = data.draw(st.tuples(*[st.integers(0, SIDE)] * fields))
        expected = evaluate(program, [accumulated(history, time) for history in given_])[node]
        if min(expected.values(), default=0) < 0:
            with pytest.raises(NegativeMultiplicityError):
                nodes[node].at(time)
        else:
            there = Counter(normal(tuple(row)) for row in nodes[node].at(list(time)).collect())
            assert there == expected


@examples(3)
@given(data=st.data(), fields=st.sampled_from([2, 2, 3]))
def test_random_programs(spark, data, fields):
    program = data.draw(programs(most=3, whole=True))
    check(spark, data, program, fields, "arrow")


@examples(0.3)
@given(data=st.data())
def test_random_programs_of_frames_that_spark_reads(spark, data):
    check(spark, data, data.draw(programs(most=2, whole=True)), 2, "frame")


@examples(1.5)
@given(data=st.data(), loops=st.sampled_from([0, 0, 1]))
def test_random_loops(spark, data, loops):
    check(spark, data, data.draw(looping(loops)), 2, "arrow")


# In steps, whatever the cut.


def shown(seen):
    return lambda record, time, diff: seen.append((tuple(record), time, diff))


@st.composite
def frontiers(draw, fields, first):
    """A frontier of which that is the least first field, of one time or of several."""
    rest = st.tuples(*[st.integers(0, 1)] * (fields - 1))
    found = [(first, *draw(rest))]
    if draw(st.booleans()):
        found.append((first + 1, *[0] * (fields - 1)))
    return found


def check_steps(spark, data, program, fields, **options):
    pending = data.draw(histories(program.inputs, fields))
    given_ = [[] for _ in pending]
    kind = kind_of(fields)
    with Dataflow(spark, time_type=kind, keep_history=data.draw(st.booleans()), **options) as flow:
        sources = [
            flow.input(f"in{n}", ", ".join(f"`{name}` {k}" for name, k in columns))
            for n, columns in enumerate(program.inputs)
        ]
        nodes = build(program, [frame for frame, _ in sources])
        seen = {node: [] for node in program.outputs}
        kept = {}
        for node in program.outputs:
            nodes[node].inspect(shown(seen[node]))
            kept[node] = nodes[node].keep()
        first = 0
        while first < SIDE:
            first += data.draw(st.sampled_from([1, 1, 2]))
            for number, (_, session) in enumerate(sources):
                now = [u for u in pending[number] if u[1][0] < first or data.draw(st.booleans())]
                pending[number] = [u for u in pending[number] if u not in now]
                # What does not come in time does not come.
                now = [u for u in now if session._frontier.less_equal(u[1])]
                session.update([(*record, time, diff) for record, time, diff in now])
                given_[number] += now
            flow.advance_to(data.draw(frontiers(fields, first)))
            times = [t for t in product(range(SIDE), repeat=fields) if t[0] < first]
            answers = {
                t: evaluate(program, [accumulated(history, t) for history in given_])
                for t in times
            }
            for node, time in product(program.outputs, times):
                assert accumulated(seen[node], time) == answers[time][node], (node, time)
        for node in program.outputs:
            time = (first - 1, *data.draw(st.tuples(*[st.integers(0, SIDE)] * (fields - 1))))
            now = [accumulated(history, time) for history in given_]
            expected = evaluate(program, now)[node]
            found = kept[node].at(time, allow_negative=True).collect()
            assert Counter(normal(tuple(row)) for row in found) == +expected


@examples(4)
@given(data=st.data(), fields=st.sampled_from([2, 2, 3]), buckets=st.integers(1, 3))
def test_random_programs_in_steps(spark, data, fields, buckets):
    program = data.draw(programs(most=4, whole=True))
    check_steps(spark, data, program, fields, runner="local", buckets=buckets)


@examples(0.3)
@given(data=st.data())
def test_random_programs_in_steps_in_spark(spark, data):
    check_steps(spark, data, data.draw(programs(most=2, whole=True)), 2, runner="spark", buckets=2)


@examples(2)
@given(data=st.data(), loops=st.sampled_from([0, 0, 1]))
def test_random_loops_in_steps(spark, data, loops):
    check_steps(spark, data, data.draw(looping(loops)), 2, runner="local", buckets=2)


PAIR = "struct<i: int, j: int>"


def test_a_session_takes_what_is_beyond_its_frontier(spark):
    with Dataflow(spark, time_type=PAIR) as flow:
        frame, session = flow.input("source", "k int", start=(1, 2))
        kept = frame.count().keep("counted")
        assert session.time() == (1, 2) and flow.session("source") is session
        assert session.name == "source" and session.schema.names == ["k"]
        session.insert([(7,)])
        session.advance_to([(3, 2), (1, 5)])
        for time in [(2, 4), (3, 1), (0, 9)]:
            for rows in ([(8, time, 1)], spark.createDataFrame(
                [(8, time, 1)], f"k int, time {PAIR}, diff long"
            ).repartition(1)):
                with pytest.raises(TimeRegressionError, match=rf"time \({time[0]}, {time[1]}\) is"):
                    session.update(rows)
        session.update([(8, (1, 5), 1), (9, (4, 2), 1)])
        session.update(spark.createDataFrame(
            [(8, (3, 2), 2)], f"k int, time {PAIR}, diff long"
        ).repartition(1))
        with pytest.raises(InvalidTimeError, match="at several times"):
            session.insert([(8,)])
        for to in [(2, 3), (0, 0), [(3, 2), (0, 5)]]:
            with pytest.raises(TimeRegressionError, match="cannot go back"):
                session.advance_to(to)
        probe = kept.probe()
        assert probe.less_than((1, 3)) and not probe.less_than((1, 0))
        flow.advance_to((4, 0))
        assert session._frontier.elements == ((4, 2),)
        assert not probe.less_than((4, 0)) and probe.less_than((4, 1)) and probe.time() == (4, 0)
        assert repr(session) == "ProductSession('source', at [(4, 2)])"
        assert sorted(kept.at((3, 2)).collect()) == [(7, 1), (8, 2)]
        assert sorted(flow["counted"].at((3, 5)).collect()) == [(7, 1), (8, 3)]
        with pytest.raises(NotReadableError, match="time 4 is not complete"):
            kept.at((4, 0))
        with session:
            pass
        flow.step()
        assert probe.done() and probe.time() is None
        assert sorted(kept.at().collect()) == [(7, 1), (8, 3), (9, 1)]


def test_rows_that_have_no_time(spark):
    with Dataflow(spark, time_type=PAIR) as flow:
        _, session = flow.input("source", "k int")
        for time in (None, (None, 0), (0, None)):
            frame = spark.createDataFrame([(1, time, 1)], f"k int, time {PAIR}, diff long")
            for rows in ([(1, time, 1)], frame.repartition(1)):
                with pytest.raises(InvalidTimeError, match="1 rows for input 'source' have a null"):
                    session.update(rows)
        with pytest.raises(InvalidTimeError, match="never negative"):
            session.advance_to((1, -1))
        with pytest.raises(InvalidTimeError, match="an integer for each field"):
            flow.advance_to(3)


def test_tables_that_do_not_change_in_a_dataflow(spark):
    with Dataflow(spark, time_type=PAIR) as flow:
        frame, session = flow.input("source", "k int")
        names = flow.constant([(1, "one")], "k int, name string")
        named = frame.join(names, "k").keep()
        session.update([(1, (0, 2), 1), (2, (0, 0), 1)])
        flow.advance_to((1, 0))
        assert named.at((0, 2)).collect() == [(1, "one")] and named.at((0, 1)).collect() == []


def test_what_dataflows_with_such_times_have_not(spark, tmp_path):
    with pytest.raises(SchemaError, match="a store holds a dataflow whose times come one after"):
        Dataflow.open(str(tmp_path / "s"), lambda flow: None, spark=spark, time_type=PAIR)
    with Dataflow(spark, time_type=PAIR) as flow:
        for made in (
            lambda: flow.input("a", "k int", key="k"), lambda: flow.input("a", "k int", check=True),
            lambda: flow.clock(1), lambda: flow.source("a", None),
        ):
            with pytest.raises(SchemaError, match="times that come one after the other"):
                made()
        frame, _ = flow.input("source", "k int")
        for made in (lambda: frame.hold(), lambda: frame.sink("s", None),
                     lambda: frame.changes((0, 0)), lambda: frame.plot_history()):
            with pytest.raises(NotReadableError, match="times that come one after the other"):
                made()
        with pytest.raises(NotReadableError, match="one by one"):
            frame.inspect(print, by_table=True)
        kept = frame.count().keep()
        flow.advance_to((1, 0))
        for late in (frame.distinct(), frame):
            with pytest.raises(NotReadableError, match="cannot be added after the first step"):
                late.keep()
        flow.advance_to((2, 0))
        assert kept.at((1, 1)).collect() == []


# What a pair of times has that one has not: a join of times at which nothing came.


def history(spark, rows, columns, kind="struct<i: int, j: int>"):
    return DiffFrame(spark.createDataFrame(rows, f"{columns}, time {kind}, diff int"))


def test_what_two_changes_make_together_comes_at_the_join_of_their_times(spark):
    words = history(spark, [("a", (0, 2), 1), ("a", (1, 0), 1)], "w string")
    rows = {tuple(row) for row in words.count().to_df().collect()}
    assert rows == {
        ("a", 1, (0, 2), 1), ("a", 1, (1, 0), 1), ("a", 1, (1, 2), -2), ("a", 2, (1, 2), 1)
    }
    assert words.count().at((0, 1)).collect() == []
    assert words.distinct().at((1, 2)).collect() == [("a",)]
    assert [row.n for row in words.agg(F.count("*").alias("n")).at().collect()] == [2]


def test_three_changes_of_which_no_two_meet_where_all_do(spark):
    rows = [(1, (1, 1, 0), 1), (2, (2, 0, 0), 1), (3, (0, 2, 0), 1), (4, (0, 0, 1), 1)]
    frame = history(spark, rows, "v int", "struct<i: int, j: int, k: int>")
    least = frame.groupBy().agg(F.collect_list("v").alias("all"))
    expected_at = {(2, 2, 1): [1, 2, 3, 4], (2, 2, 0): [1, 2, 3], (1, 2, 1): [1, 3, 4]}
    for time, expected in expected_at.items():
        ((found,),) = least.at(time).collect()
        assert sorted(found) == expected


@examples(2)
@given(rows=st.lists(st.tuples(
    st.integers(0, 4), st.integers(0, 4), st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.sampled_from([1, 1, 1, -1]),
), max_size=14))
def test_graphs(spark, rows):
    # Only edges that are there when they are removed, whatever the time.
    rows = [row for row in rows if row[3] > 0]
    rows += [(a, b, (i + 1, j + 1), -1) for a, b, (i, j), _ in rows[::3]]
    edges = history(spark, rows, "src long, dst long")
    roots = spark.createDataFrame([(0,)], "node long")
    reached = graphs.bfs(edges, roots)
    found = [(tuple(r[:-2]), tuple(r[-2]), r[-1]) for r in reached.to_df().collect()]
    for time in product(range(5), repeat=2):
        now_there = accumulated([((a, b), t, d) for a, b, t, d in rows], time)
        there = {edge for edge, n in now_there.items() if n > 0}
        distances, now, step = {0: 0}, {0}, 0
        while now:
            step += 1
            now = {b for a, b in there if a in now} - set(distances)
            distances.update(dict.fromkeys(now, step))
        assert accumulated(found, time) == Counter(dict.fromkeys(distances.items(), 1)), time


def test_a_loop_of_several_variables(spark):
    edges = history(spark, [(1, 2, (0, 1), 1), (2, 3, (1, 0), 1), (3, 4, (2, 2), 1)],
                    "src int, dst int")
    one = edges.where("src = 1").select(F.col("src").alias("node")).distinct()

    def beyond(nodes):
        return nodes.toDF("src").join(edges, "src").select(F.col("dst").alias("node"))

    with Loop() as loop:
        even, odd = loop.variable(one), loop.variable(one.where(F.lit(False)))
        even.set(beyond(odd).union(one).distinct())
        at_odd = odd.set(beyond(even).distinct())
    found = at_odd.leave()
    for time, expected in {(0, 0): [], (0, 1): [2], (2, 2): [2, 4]}.items():
        assert sorted(row.node for row in found.at(time).collect()) == expected
    with pytest.raises(NotReadableError, match="this one is in none"):
        found.leave()
    with pytest.raises(NotReadableError, match="changes in each iteration"):
        at_odd.at((0, 0))


def test_plain_tables_beside_them(spark):
    orders = history(spark, [("Rome", (0, 3), 1), ("Oslo", (1, 0), 1)], "city string")
    countries = spark.createDataFrame([("Rome", "Italy")], "city string, country string")
    assert orders.join(countries, "city").at((0, 3)).collect() == [("Rome", "Italy")]
    assert orders.join(countries, "city").at((5, 2)).collect() == []
    assert orders.join(countries.select("city"), "city", "left_anti").at((5, 2)).collect() == [
        ("Oslo",)
    ]


def test_names_of_columns_like_those_of_fields(spark):
    rows = [(1, 2, (0, 0), 1), (1, 2, (0, 1), -1)]
    frame = DiffFrame(spark.createDataFrame(
        rows, "time_b int, Time_B_1 int, `when` struct<a: int, b: int>, n int"
    ), "WHEN", "N")
    assert frame.columns == ["time_b", "Time_B_1"]
    assert frame.to_df().columns == ["time_b", "Time_B_1", "when", "n"]
    assert [len(frame.at((0, j)).collect()) for j in (0, 1)] == [1, 0]
    assert repr(frame) == "DiffFrame[time_b int, Time_B_1 int; when struct<a:int,b:int>]"
    joined = frame.alias("l").join(frame.alias("r"), F.col("l.time_b") == F.col("r.time_b"))
    assert joined.at((0, 0)).columns == ["time_b", "Time_B_1", "time_b", "Time_B_1"]
    assert joined.to_df().count() == 2


# What is refused.


@pytest.mark.parametrize("kind", ["struct<a: int, b: string>", "struct<a: int>", "struct<>",
                                  "struct<a: date, b: int>"])
def test_structs_that_are_no_times(spark, kind):
    with pytest.raises(SchemaError, match="two or more fields, all of them integers"):
        DiffFrame(spark.createDataFrame([], f"k int, time {kind}, diff int"))


@pytest.mark.parametrize(
    "time, told",
    [(None, "no time"), ((None, 0), "no time"), ((0, None), "the field 'j' of it is null"),
     ((0, -1), "-1 in the field 'j' of its time, of type struct<i:int,j:int>: all fields but")],
)
def test_rows_with_a_time_that_is_none(spark, time, told):
    with pytest.raises(InvalidTimeError, match=told):
        history(spark, [(1, time, 1), (1, (0, 0), 1)], "k int").count().at((1, 1))


def test_negative_first_fields_are_times_like_others(spark):
    frame = history(spark, [(1, (-7, 2), 1)], "k int").count()
    assert frame.at((-7, 2)).collect() == [(1, 1)] and frame.at((-8, 2)).collect() == []
    assert frame.at((0, -1)).collect() == []


def test_what_is_asked_at_times_of_another_shape(spark):
    frame = history(spark, [(1, (0, 0), 1)], "k int")
    for time in (0, (0,), (0, 0, 0), "now", (0, "a")):
        with pytest.raises(InvalidTimeError, match=r"for each field, such as \(3, 0\)"):
            frame.at(time)


def test_what_needs_times_one_after_the_other(spark):
    frame = history(spark, [(1, (0, 0), 1)], "k int")
    plain = DiffFrame(spark.createDataFrame([(1, 0, 1)], "k int, time int, diff int"))
    for made in (lambda: frame.expire_after(1), lambda: frame.delay(1)):
        with pytest.raises(SchemaError, match="times that come one after the other"):
            made()
    for made in (lambda: frame.changes((0, 0)), lambda: frame.save_as_table("t")):
        with pytest.raises(NotReadableError, match="times that come one after the other"):
            made()
    for left, right in ((frame, plain), (plain, frame)):
        with pytest.raises(SchemaError, match="times of different types"):
            left.union(right)
    other = history(spark, [(1, (0, 0), 1)], "k int", "struct<i: int, k: int>")
    with pytest.raises(SchemaError, match="times of different types"):
        frame.join(other, "k")
    with pytest.raises(SchemaError, match="two or more fields, all of them integers"):
        Dataflow(spark, time_type="struct<i: int, j: string>")
