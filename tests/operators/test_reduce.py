"""A user's own reduce: when it is called, with what, and what becomes of its mistakes."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest
from oracle import accumulate

from pyspark_diff import (
    Dataflow,
    DiffFrame,
    FunctionError,
    NegativeMultiplicityError,
    NonDeterministicError,
    SchemaError,
)

every_runner = pytest.mark.parametrize("runner", ["local", "spark"])


def added(key, values):
    return [(sum((n or 0) * count for (n,), count in values),)]


def run(flow, session, updates, to):
    session.update(updates)
    session.advance_to(to)
    session.flush()
    flow.step()


@pytest.fixture
def calls(tmp_path):
    """A function whose calls are counted in any process, and their arguments."""
    log = tmp_path / "calls"
    log.touch()

    def counted(key, values):
        with open(log, "a") as file:
            file.write(f"{key!r} {values!r}\n")
        return added(key, values)

    def calls_since():
        lines = Path(log).read_text().splitlines()
        log.write_text("")
        return sorted(lines)

    return counted, calls_since


@every_runner
def test_it_is_called_once_for_each_touched_key_and_interesting_time(spark, runner, calls):
    counted, calls_since = calls
    with Dataflow(spark, runner=runner, buckets=3) as flow:
        n, n_in = flow.input("n", "k string, n long")
        updates = []
        n.reduce(counted, "total long", key="k").inspect(lambda r, t, d: updates.append((r, t, d)))
        run(flow, n_in, [(k, i, 0, 1) for k in "abcdef" for i in (1, 2)], 1)
        assert calls_since() == sorted(f"({k!r},) [((1,), 1), ((2,), 1)]" for k in "abcdef")
        # One key changes at two times, and at a third in a way that cancels out.
        run(flow, n_in, [("b", 5, 1, 1), ("b", 5, 3, -1), ("b", 7, 2, 1), ("b", 7, 2, -1)], 5)
        assert calls_since() == [
            "('b',) [((1,), 1), ((2,), 1), ((5,), 1)]", "('b',) [((1,), 1), ((2,), 1)]"
        ]
        assert accumulate(updates, 1)[("b", 8)] == 1 and accumulate(updates, 3)[("b", 3)] == 1
        # A key that vanishes needs no call, and one that is not touched has none.
        run(flow, n_in, [("c", 1, 5, -1), ("c", 2, 5, -1)], 6)
        assert calls_since() == []
        assert ("c", 3) not in accumulate(updates, 5) and accumulate(updates, 4)[("c", 3)] == 1


@every_runner
@pytest.mark.parametrize("form", ["pandas", "arrow"])
def test_tables_come_and_go(spark, runner, form):
    def spread(key, table):
        frame = table if form == "pandas" else table.to_pandas()
        assert list(frame.columns) == ["n", "word", "diff"]
        words = frame[frame["diff"] > 0][["word"]].assign(many=frame["diff"], k2=key[0])
        words = words[["many", "word"]]
        if form == "pandas":
            return words
        import pyarrow as pa

        return pa.Table.from_pandas(words, preserve_index=False)

    rows = [(1, 2, "b", 0, 1), (1, 1, "a", 0, 2), (2, 1, "z", 1, 1), (1, 1, "a", 2, -2)]
    with Dataflow(spark, runner=runner) as flow:
        n, n_in = flow.input("n", "k int, n long, word string")
        updates = []
        words = n.groupBy("k").reduce(spread, "word string, many long", form=form)
        words.inspect(lambda r, t, d: updates.append((r, t, d)))
        run(flow, n_in, rows, 3)
    assert accumulate(updates, 0) == Counter({(1, "a", 2): 1, (1, "b", 1): 1})
    assert accumulate(updates, 2) == Counter({(1, "b", 1): 1, (2, "z", 1): 1})


def test_values_come_in_order_with_nulls_first(spark):
    groups = []

    def look(key, values):
        groups.append((key, values))
        return []

    rows = [("k", 2, "b", 0, 1), ("k", None, "z", 0, 3), ("k", 2, None, 0, 1), ("k", 1, "y", 0, 1)]
    frame = spark.createDataFrame(rows, "k string, n int, s string, time int, diff int")
    with Dataflow(spark, runner="local") as flow:
        n, n_in = flow.input("n", "k string, n int, s string")
        n.reduce(look, "x int", key="k").inspect(print)
        n_in.update(frame.withColumn("time", frame.time.cast("long")))
        n_in.close()
        flow.step()
    assert groups == [
        (("k",), [((None, "z"), 3), ((1, "y"), 1), ((2, None), 1), ((2, "b"), 1)])
    ]


@every_runner
def test_a_failing_function_is_told_with_key_and_time_and_the_step_can_be_repeated(
    spark, runner, tmp_path
):
    flag = tmp_path / "broken"
    flag.touch()

    def moody(key, values):
        if key == ("b",) and flag.exists():
            raise ValueError("no b today")
        return added(key, values)

    with Dataflow(spark, runner=runner) as flow:
        n, n_in = flow.input("n", "k string, n long")
        updates = []
        n.reduce(moody, "total long", key="k").inspect(lambda r, t, d: updates.append((r, t, d)))
        n_in.update([("a", 1, 0, 1), ("b", 2, 7, 1)])
        n_in.advance_to(9)
        n_in.flush()
        with pytest.raises(FunctionError) as caught:
            flow.step()
        message = str(caught.value)
        assert "('b',)" in message and "time 7" in message and "no b today" in message
        flag.unlink()
        flow.step()
        assert sorted(updates) == [(("a", 1), 0, 1), (("b", 2), 7, 1)]


@pytest.mark.parametrize("allowed", [False, True])
def test_negative_multiplicities_are_refused_unless_allowed(spark, allowed):
    rows = [("a", 1, 0, 1), ("a", 2, 3, -1)]
    frame = DiffFrame(spark.createDataFrame(rows, "k string, n long, time int, diff int"))
    totals = frame.reduce(added, "total long", key="k", allow_negative=allowed)
    if allowed:
        assert totals.at(3).collect() == [("a", -1)]
        return
    with pytest.raises(NegativeMultiplicityError, match=r"'a'.* at time 3 .*\(2,\).* -1"):
        totals.to_df()


@pytest.mark.parametrize("back_to", ["a state of the same step", "what was before the step"])
def test_another_result_for_the_same_values_is_refused(spark, back_to):
    numbers = itertools.count()

    def whim(key, values):
        return [(next(numbers),)]

    with Dataflow(spark, runner="local") as flow:
        n, n_in = flow.input("n", "k string, n long")
        n.reduce(whim, "x long", key="k").inspect(lambda *_: None)
        if back_to == "what was before the step":
            run(flow, n_in, [("a", 1, 0, 1)], 1)
            later = [("a", 2, 1, 1), ("a", 2, 2, -1)]
        else:
            later = [("a", 1, 1, 1), ("a", 2, 2, 1), ("a", 2, 3, -1)]
        with pytest.raises(NonDeterministicError, match=r"for the key \('a',\) at time \d"):
            run(flow, n_in, later, 9)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([(1, 2)], "a row of 2 values"),
        ([("x",)], "not a int64"),
        ([(1.5,)], "1.5 is a float"),
        (None, "TypeError"),
    ],
)
def test_wrong_results_are_told(spark, result, message):
    rows = [("a", 1, 0, 1)]
    frame = DiffFrame(spark.createDataFrame(rows, "k string, n long, time int, diff int"))
    with pytest.raises((SchemaError, FunctionError), match=message):
        frame.reduce(lambda key, values: result, "x long", key="k").to_df()


def test_bad_arguments_are_told(spark):
    rows = [("a", 1, 0, 1)]
    frame = DiffFrame(spark.createDataFrame(rows, "k string, n long, time int, diff int"))
    with pytest.raises(SchemaError, match="needs the columns of the key"):
        frame.reduce(added, "x long")
    with pytest.raises(SchemaError, match="no column 'z'"):
        frame.reduce(added, "x long", key="z")
    with pytest.raises(SchemaError, match="form must be one of rows, pandas, arrow"):
        frame.reduce(added, "x long", key="k", form="list")
    with pytest.raises(SchemaError, match="twice"):
        frame.reduce(added, "x long", key=["k", "k"])


@every_runner
def test_output_is_taken_back_exactly(spark, runner):
    """A key with several output records: those that stay cause no updates."""

    def pairs(key, values):
        ns = [n for (n,), count in values for _ in range(count)]
        return list(itertools.combinations(ns, 2)) + [(None, 0.5)]

    rows = [("a", 1, 0, 1), ("a", 2, 0, 2)]
    with Dataflow(spark, runner=runner) as flow:
        n, n_in = flow.input("n", "k string, n long")
        updates = []
        n.reduce(pairs, "x long, y double", key="k").inspect(
            lambda r, t, d: updates.append((r, t, d)))
        with pytest.raises(SchemaError):  # a long is no double: refused, and nothing is applied
            n_in.update([("a", "x", 0, 1)])
        run(flow, n_in, rows, 1)
        assert accumulate(updates, 0) == Counter({
            ("a", 1, 2.0): 2, ("a", 2, 2.0): 1, ("a", None, 0.5): 1
        })
        del updates[:]
        run(flow, n_in, [("a", 2, 1, -1)], 2)
        assert sorted(updates) == [(("a", 1, 2.0), 1, -1), (("a", 2, 2.0), 1, -1)]
