"""Programs that grow while they run: a late operator has the output of an early one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import Run, programs, schedules
from pyspark.sql import functions as F

from pyspark_diff import Dataflow, NotReadableError, StaleWarning

EXAMPLES = settings().max_examples
buckets = st.integers(1, 3)
memory_rows = st.sampled_from([0, 1, 4096])


def examples(share: float) -> settings:
    """A share of the run's examples."""
    return settings(max_examples=max(1, round(EXAMPLES * share)))


def check_growth(spark, data, lags=False, **options):
    """With ``lags``, inputs that had nothing to do with each other meet while some of them lag."""
    program = data.draw(programs(meet=lags))
    schedule = data.draw(schedules(program.inputs, lags=lags))
    steps, outputs = st.integers(int(lags), len(schedule)), len(program.outputs)
    late = data.draw(st.lists(steps, min_size=outputs, max_size=outputs))
    others = data.draw(st.sets(st.integers(0, len(program.inputs) + len(program.ops) - 1)))
    keeps = {*range(len(program.inputs)), *(() if lags else others)}
    with Run(spark, program, late=late, keeps=keeps, **options) as run:
        run.take(schedule, ("may look at the times", "loop", "leave"))


@examples(3)
@given(data=st.data(), buckets=buckets, memory_rows=memory_rows, history=st.booleans())
def test_operators_that_are_added_late_on_the_driver(spark, data, buckets, memory_rows, history):
    check_growth(
        spark, data, runner="local", buckets=buckets, memory_rows=memory_rows, keep_history=history
    )


@examples(3)
@given(data=st.data(), buckets=buckets, memory_rows=memory_rows)
def test_operators_that_make_inputs_meet_of_which_one_lags(spark, data, buckets, memory_rows):
    check_growth(spark, data, lags=True, runner="local", buckets=buckets, memory_rows=memory_rows)


@examples(0.3)
@given(data=st.data(), buckets=buckets, memory_rows=memory_rows)
def test_operators_that_are_added_late_in_spark(spark, data, buckets, memory_rows):
    check_growth(spark, data, runner="spark", buckets=buckets, memory_rows=memory_rows)


# Programs name the kept collections, and reading changes no state.


@pytest.fixture
def flow(spark):
    with Dataflow(spark, runner="local") as flow:
        yield flow


def fed(flow, keep=True):
    """An input with three pairs, and a step that has removed the first."""
    pairs, pairs_in = flow.input("pairs", "k int, v int")
    if keep:
        pairs.keep("pairs")
    pairs_in.insert([(1, 1), (1, 2), (2, 5)])
    flow.advance_to(1)
    pairs_in.remove([(1, 1)])
    flow.advance_to(2)
    return pairs, pairs_in


def test_nothing_is_kept_that_nobody_named(flow):
    pairs, pairs_in = fed(flow, keep=False)
    counts = pairs.select("k").count()
    alive = [counts, pairs.groupBy("k").count(), pairs.join(pairs.toDF("v", "k"), "k")]
    pairs_in.insert([(3, 3)])
    flow.advance_to(3)
    assert flow.arrangements().count() == 0 and len(alive) == 3
    for read in (counts.at, counts.to_df, counts.hold):
        with pytest.raises(NotReadableError, match="not kept.*keep()"):
            read()


def test_to_look_at_a_program_changes_nothing(flow):
    pairs, pairs_in = flow.input("pairs", "k int, v int")
    counts = pairs.select("k").count()
    for _ in range(2):
        assert flow.step() is False
        assert flow.describe().count("\n") == 1 and flow.arrangements().count() == 0
        probe = counts.probe()
        assert "k" in repr(counts) and probe.less_than(1)
    counts.keep()
    others, others_in = flow.input("others", "k int")  # inputs too can still be added
    pairs_in.insert([(1, 1)])
    assert flow.advance_to(1) and not probe.less_than(1)
    assert counts.at(0).collect() == [(1, 1)]
    assert flow.describe().count("count") == counts.schema.names.count("count") + 2
    before = flow.arrangements().collect()
    counts.probe(), counts.count(), flow.describe(), repr(flow)
    assert flow.step() is False and flow.arrangements().collect() == before


@pytest.mark.parametrize("odd", [None, 5, "", "  "])
def test_names_are_texts(flow, odd):
    pairs, _ = flow.input("pairs", "k int")
    if odd is None:
        assert pairs.keep(odd) is pairs
        return
    with pytest.raises(TypeError, match="name of a kept collection"):
        pairs.keep(odd)


def test_a_name_is_of_one_collection(flow):
    pairs, _ = flow.input("pairs", "k int")
    counts = pairs.count().keep("counts")
    assert counts.keep("counts") is counts is flow["counts"]
    with pytest.raises(TypeError, match="'counts' already"):
        pairs.distinct().keep("counts")
    with pytest.raises(NotReadableError, match="'nosuch'. The kept names: 'counts'"):
        flow["nosuch"]
    assert "counts" in flow and "nosuch" not in flow and list(flow) == ["counts"]


@pytest.mark.parametrize("runner", ["local", "spark"])
def test_what_is_added_is_filled(spark, runner):
    with Dataflow(spark, runner=runner) as flow:
        pairs, pairs_in = fed(flow)
        sums = pairs.where("v > 1").groupBy("k").count().keep("sums")
        steps = pairs.join(pairs.toDF("v", "w"), "v").keep("steps")
        with pytest.raises(NotReadableError, match="the next one fills it"):
            sums.at()
        assert flow.step() and not flow.step()
        assert sorted(sums.at().collect()) == [(1, 1), (2, 1)]
        assert sorted(steps.at().collect()) == sorted(
            pairs.at().join(pairs.at().toDF("v", "w"), "v").collect()
        )
        with pytest.raises(NotReadableError, match="compacted away"):
            sums.at(0)
        pairs_in.insert([(5, 2), (2, 9)])
        flow.advance_to(3)
        assert sorted(flow["sums"].at().collect()) == [(1, 1), (2, 2), (5, 1)]
        assert sorted(steps.at().collect()) == sorted(
            pairs.at().join(pairs.at().toDF("v", "w"), "v").collect()
        )


def test_what_has_run_is_made_again_where_its_past_is_gone(flow):
    pairs, pairs_in = flow.input("pairs", "k int, v int")
    pairs.keep()
    updates = []
    counts = pairs.select("k").count().inspect(lambda *update: updates.append(update))
    pairs_in.insert([(1, 1), (1, 2)])
    flow.advance_to(1)
    counts.keep("counts")  # it has run without being kept
    counts.where("count > 1").keep("more")
    flow.step()
    assert flow["counts"].at().collect() == flow["more"].at().collect() == [(1, 2)]
    assert len(updates) == 1, "what was shown is not shown again"
    pairs_in.insert([(1, 3)])
    flow.advance_to(2)
    assert flow["more"].at().collect() == [(1, 3)] and len(updates) == 3


def test_what_nobody_reads_again_is_made_again_too(flow):
    """The sums of a closed input are released. A late reader computes them again."""
    words, words_in = flow.input("words", "k int")
    words.keep()
    totals = words.groupBy().agg(F.count("k").alias("n")).distinct()
    totals.inspect(lambda *_: None)
    words_in.insert([(1,), (1,)])
    words_in.close()
    flow.step()
    late = totals.withColumn("twice", F.col("n") * 2).count().keep()
    flow.step()
    assert late.to_df().drop("time", "diff").collect() == [(2, 4, 1)]


def test_columns_that_nobody_wanted_are_kept_from_then_on(flow):
    """An arrangement has the columns that operators read. More columns need another one."""
    pairs, pairs_in = fed(flow)
    names, names_in = flow.input("names", "k int, name string")
    names.keep()
    both = pairs.join(names, "k")
    both.select("k", "name").keep()
    names_in.insert([(1, "a"), (2, "b")])
    flow.advance_to(3)
    late = both.keep()
    pairs_in.remove([(2, 5)])
    flow.advance_to(4)
    assert late.at().collect() == [(1, 2, "a")]


def test_past_that_is_gone_is_refused_where_it_is_asked_for(flow):
    pairs, pairs_in = fed(flow, keep=False)
    counts = pairs.select("k").count()
    with pytest.raises(NotReadableError, match="input 'pairs' was not kept.*before the first step"):
        counts.keep("counts")
    assert "counts" not in flow
    pairs_in.insert([(7, 7)])
    assert flow.advance_to(3)  # the refused operator is gone
    with pytest.raises(NotReadableError):
        counts.inspect(print)
    late, late_in = flow.input("late", "k int")
    assert late_in.time() == 3
    late.count().keep("late")
    late_in.insert([(1,)])
    flow.advance_to(4)
    assert flow["late"].at().collect() == [(1, 1)]


def test_loops_and_constants_are_added(flow):
    pairs, pairs_in = fed(flow)
    total = pairs.agg(F.sum("v").alias("total")).keep()
    further = pairs.iterate(
        lambda known: known.union(known.where("v < 9").selectExpr("k", "v + 1 AS v")).distinct()
    )
    further.count().keep("further")
    flow.step()
    assert total.at().collect() == [(7,)]
    assert flow["further"].at().count() == len(range(2, 10)) + len(range(5, 10))
    with pytest.raises(NotReadableError, match="the output of loop.* was not kept"):
        further.select("k").distinct().keep()
    again = pairs.agg(F.count("v").alias("number")).keep()
    flow.step()
    assert again.at().collect() == [(2,)]


def test_a_step_that_fails_leaves_the_program_as_it_was(flow):
    pairs, pairs_in = fed(flow)
    shares = pairs.selectExpr("k div (v - 2) AS share").keep()
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO|[Zz]ero"):
        flow.step()
    assert sorted(pairs.at().collect()) == [(1, 2), (2, 5)]
    with pytest.raises(NotReadableError):
        shares.at()


# Nothing is stale in silence.


def test_steps_take_what_was_not_flushed(flow):
    pairs, pairs_in = flow.input("pairs", "k int, v int")
    pairs.keep()
    pairs_in.insert([(1, 1)])
    pairs_in.advance_to(1)
    assert flow.step()
    assert pairs.at().collect() == [(1, 1)]


def test_a_step_without_news_says_what_waits(flow, recwarn):
    pairs, pairs_in = flow.input("pairs", "k int, v int")
    assert flow.step() is False and not recwarn.list
    pairs_in.insert([(1, 1)])
    flow.step()
    with pytest.warns(StaleWarning, match="nothing to do.*input 'pairs' at 0 wait.*advance it"):
        assert flow.step() is False


def test_reading_says_what_holds_it_back(flow, recwarn):
    left, left_in = flow.input("left", "k int, a int")
    right, right_in = flow.input("right", "k int, b int")
    both = left.join(right, "k").keep()
    left_in.insert([(1, 1)])
    right_in.insert([(1, 2)])
    flow.advance_to(1)
    assert both.at().collect() == [(1, 1, 2)] and not recwarn.list
    left_in.insert([(1, 5)])
    with pytest.warns(StaleWarning, match="input 'left' was given updates.*step()"):
        both.at()
    left_in.advance_to(4)
    flow.step()
    with pytest.warns(StaleWarning, match="input 'right' at 1 holds it back.*'left' at 4"):
        assert both.at().count() == 1
    with pytest.raises(NotReadableError, match="input 'right' at 1 holds it back"):
        both.at(2)
    assert flow.advance_to(3) and left_in.time() == 4 and right_in.time() == 3
    assert both.at(2).count() == 2


def test_all_inputs_advance_together(flow):
    _, left_in = flow.input("left", "k int")
    _, right_in = flow.input("right", "k int")
    left_in.advance_to(5)
    assert flow.advance_to(3) and (left_in.time(), right_in.time()) == (5, 3)
    with pytest.raises(ValueError, match="back to 2: input 'left' at 5, input 'right' at"):
        flow.advance_to(2)
    right_in.close()
    assert flow.advance_to(6) and left_in.time() == 6
    left_in.close()
    assert flow.advance_to(7) and not flow.advance_to(8)


@pytest.mark.parametrize("kind", ["arrow", "pandas", "spark", True])
def test_each_step_is_shown_as_a_table(flow, kind):
    pairs, pairs_in = flow.input("pairs", "k int, v int")
    shown = []
    pairs.inspect(shown.append, by_table=kind)
    with pytest.raises(ValueError, match="by_table"):
        pairs.inspect(print, by_table="polars")
    with pytest.raises(TypeError, match="takes a function .* not 'print'"):
        pairs.inspect("print", by_table=kind)
    for time in range(2):
        pairs_in.insert([(time, 1)] * (time + 1))
        flow.advance_to(time + 1)
    first, second = shown
    names = first.column_names if kind in (True, "arrow") else list(first.columns)
    assert names == ["k", "v", "time", "diff"]
    count = {"pandas": len, "spark": lambda t: t.count()}.get(kind, lambda t: t.num_rows)
    assert (count(first), count(second)) == (1, 2)


LATE = {
    "join": (lambda a, b: a.join(b, "x"), [(1, 5), (1, 5), (1, 6), (1, 6)]),
    "cross": (
        lambda a, b: a.crossJoin(b.toDF("z", "y").hint("broadcast")),
        [(x, 1, y) for x in (1, 1, 2) for y in (5, 6)],
    ),
    "union": (lambda a, b: a.union(b.select("x")).count(), [(1, 4), (2, 1)]),
    "loop": (
        lambda a, b: a.iterate(lambda x: x.union(a).union(b.select("x")).distinct()), [(1,), (2,)]
    ),
}


@pytest.mark.parametrize("kind", LATE)
@pytest.mark.parametrize("runner", ["local", "spark"])
@pytest.mark.parametrize("ahead", [0, 1])
def test_what_is_added_waits_for_the_input_that_lags(spark, kind, runner, ahead):
    with Dataflow(spark, buckets=2, runner=runner) as flow:
        a, a_in = flow.input("a", "x int")
        b, b_in = flow.input("b", "x int, y int")
        a.keep("a")
        b.keep("b")
        a_in.insert([(1,), (2,)])
        b_in.insert([(1, 5)])
        flow.advance_to(8)
        rows = ([(1,)], [(1, 6)])
        first, second = (a_in, b_in) if ahead == 0 else (b_in, a_in)
        first.insert(rows[ahead])
        first.advance_to(10)
        flow.step()
        program, expected = LATE[kind]
        late = program(flow["a"], flow["b"]).where("x > 0").keep("late")
        flow.step()
        with pytest.raises(NotReadableError, match="holds it back"):
            late.at()
        second.insert(rows[1 - ahead])
        second.advance_to(9)
        flow.step()
        with pytest.raises(NotReadableError, match="holds it back"):
            late.at()
        flow.advance_to(11)
        assert sorted(late.at().collect()) == sorted(expected)


def test_what_is_written_twice_is_kept_twice(spark):
    for twice in (False, True):
        with Dataflow(spark, runner="local", buckets=1) as flow:
            words, words_in = flow.input("words", "k string")
            first, again = (words.groupBy("k").count() for _ in range(2))
            first.keep("first")
            if twice:
                again.keep("again")
            words_in.insert([("a",), ("a",)])
            flow.advance_to(1)
            assert first.at().collect() == [("a", 2)]
            if twice:
                assert again.at().collect() == [("a", 2)]
                continue
            with pytest.raises(NotReadableError, match="is not kept.*second frame.*keep both"):
                again.at()


@pytest.mark.parametrize("keep_history", [False, True])
def test_an_inspection_goes_on_below_operators_that_are_added_late(spark, keep_history):
    """A late operator reads the input of an inspection that has shown the past."""
    shown = []
    with Dataflow(spark, runner="local", keep_history=keep_history) as flow:
        rows, session = flow.input("rows", "k bigint")
        rows.keep()
        distinct = rows.dropDuplicates().inspect(lambda *update: shown.append(update))
        aggregates = [("e", F.count("k")), ("m", F.max("k")), ("s", F.sum("k"))]
        for time, (name, aggregate) in enumerate(aggregates):
            session.insert([(time,), (time,)])
            flow.advance_to(time + 1)
            distinct.groupBy().agg(aggregate.alias(name)).keep(name)
        session.insert([(3,)])
        session.remove([(0,), (0,)])
        flow.advance_to(4)
        assert [flow[name].at().collect() for name, _ in aggregates] == [[(3,)], [(3,)], [(6,)]]
    assert sorted(((k,), time, diff) for (k,), time, diff in shown) == [
        ((0,), 0, 1), ((0,), 3, -1), ((1,), 1, 1), ((2,), 2, 1), ((3,), 3, 1)]


def test_a_store_opens_with_an_operator_that_was_added_below_an_inspection(spark, tmp_path):
    shown = []

    def program(flow):
        rows, _ = flow.input("rows", "k bigint")
        rows.keep()
        distinct = rows.dropDuplicates().inspect(lambda *update: shown.append(update))
        if is_late:
            distinct.groupBy().agg(F.count("k").alias("e")).keep("counts")
        program.distinct = distinct

    is_late = False
    with Dataflow.open(tmp_path, program, spark=spark) as flow:
        flow.session("rows").insert([(0,)])
        flow.advance_to(1)
        program.distinct.groupBy().agg(F.count("k").alias("e")).keep("counts")
        flow.session("rows").insert([(1,)])
        flow.advance_to(2)
    is_late = True
    for time in 2, 3:
        with Dataflow.open(tmp_path, program, spark=spark) as flow:
            flow.session("rows").insert([(time,)])
            flow.advance_to(time + 1)
            assert flow["counts"].at().collect() == [(time + 1,)]
    assert [(k, time, diff) for (k,), time, diff in shown] == [(n, n, 1) for n in range(4)]
