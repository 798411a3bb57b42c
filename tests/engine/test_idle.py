"""A step runs only the operators that its updates reach, and no constants."""

import pytest

from pyspark_diff import Dataflow
from pyspark_diff.engine.compaction import Compaction
from pyspark_diff.runners import view


def _counted(monkeypatch, owner, name):
    calls = []
    original = getattr(owner, name)

    def counting(*arguments):
        calls.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(owner, name, counting)
    return calls


@pytest.mark.parametrize("unreached", [1, 12])
def test_unreached_operators_cost_nothing(spark, monkeypatch, unreached):
    with Dataflow(spark, buckets=2) as flow:
        rows, session = flow.input("rows", "k int, v int")
        reached = rows.where("v > 0").groupBy("k").count().keep("reached")
        others = [
            rows.where(f"v < -{number}").groupBy("k").count().distinct().keep(f"other{number}")
            for number in range(unreached)
        ]
        session.insert([(1, 1), (1, -100)])
        flow.advance_to(1)
        views = _counted(monkeypatch, Compaction, "view")
        session.insert([(1, 2)])
        flow.advance_to(2)
        assert len(views) == 1  # the aggregate reads its arrangement
        session.insert([(1, -100)])
        flow.advance_to(3)
        assert len(views) > unreached
        assert reached.at().collect() == [(1, 2)]
        assert [output.at().collect() for output in others] == [[(1, 2)]] * unreached


@pytest.mark.parametrize("kind", ["constant", "closed", "far ahead"])
@pytest.mark.parametrize("runner", ["local", "spark"])
def test_a_side_without_new_rows_is_not_divided_again(spark, monkeypatch, kind, runner):
    with Dataflow(spark, buckets=2, runner=runner) as flow:
        facts, session = flow.input("facts", "k int")
        names = spark.createDataFrame([(1, "a"), (2, "b")], "k int, name string")
        if kind == "constant":
            side = names
        else:
            side, side_session = flow.input("side", "k int, name string")
            side_session.insert([(1, "a"), (2, "b")])
            if kind == "closed":
                side_session.close()
            else:
                side_session.advance_to(1000)
        joined = facts.join(side, "k").keep("kept")
        total = facts.agg({"k": "sum"}, empty=True).keep("total")
        session.insert([(1,)])
        session.advance_to(1)
        flow.step()
        divided = _counted(monkeypatch, view, "_divided")
        for time in range(2, 5):
            session.insert([(time % 2 + 1,)])
            session.advance_to(time)
            flow.step()
        assert not divided
        assert sorted(joined.at().collect()) == [(1, "a")] * 3 + [(2, "b")]
        assert total.at().collect() == [(5,)]


def test_rows_ahead_of_another_input_are_new_when_it_follows(spark):
    with Dataflow(spark, buckets=2) as flow:
        left, left_session = flow.input("left", "k int")
        right, right_session = flow.input("right", "k int")
        joined = left.join(right, "k").keep("kept")
        for time in (0, 3, 7):
            right_session.advance_to(time)
            right_session.insert([(1,)])
        right_session.advance_to(10)
        left_session.insert([(1,)])
        counts = []
        for time in range(1, 11):
            left_session.advance_to(time)
            flow.step()
            counts.append(joined.at(time - 1).count())
        assert counts == [1, 1, 1, 2, 2, 2, 2, 3, 3, 3]


@pytest.mark.parametrize("runner", ["local", "spark"])
@pytest.mark.parametrize("rows", [0, 1])
def test_a_constant_enters_after_a_step_that_completes_no_time(spark, runner, rows):
    with Dataflow(spark, buckets=2, runner=runner) as flow:
        numbers, session = flow.input("numbers", "k int")
        count = numbers.agg({"k": "count"}, empty=True).keep("count")
        names = spark.createDataFrame([(1, "a")], "k int, name string")
        named = numbers.join(names, "k", "right").keep("named")
        session.insert([(1,)] * rows)
        session.flush()
        flow.step()
        flow.advance_to(1)
        assert count.at().collect() == [(rows,)]
        assert named.at().collect() == [(1, "a")]
        flow.advance_to(2)
        assert count.at().collect() == [(rows,)]
        assert named.at().collect() == [(1, "a")]
