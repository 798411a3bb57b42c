"""Expiry and delay by an interval of struct times, field by field.

    delay(A, w) at t            =  A at t - w
    expire_after(A, w) at t     =  A at t  -  A at t - w

    expire_after(A, w, c) at t  =  the records of A at t without c + w <= t
"""

from __future__ import annotations

import shutil
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import total
from pyspark.sql import functions as F
from test_product_times import PAIR, TIMES, examples, frontiers, kind_of
from test_sliding import program as forms

from pyspark_diff import (
    Dataflow,
    DiffFrame,
    InvalidTimeError,
    NotReadableError,
    ProgramChangedError,
    SchemaError,
)

#: The times that are asked for have fields below this, intervals reach beyond it.
SIDE = 5


def columns_of(fields):
    parts = ", ".join(f"{name}: {kind}" for name, kind in TIMES[:fields])
    return f"k int, at struct<{parts}>"


@st.composite
def updates(draw, fields):
    time = st.tuples(*[st.integers(0, SIDE - 2)] * fields)
    event = st.tuples(*[st.integers(-1, SIDE)] * fields)
    record = st.tuples(st.sampled_from([0, 1, None]), event)
    return draw(st.lists(st.tuples(record, time, st.sampled_from([1, 1, 2, -1])), max_size=14))


@st.composite
def intervals(draw, fields):
    lengths = draw(st.tuples(*[st.sampled_from([0, 1, 2, 7])] * fields))
    return lengths if any(lengths) else (*lengths[1:], 1)


def plus(time, by):
    return tuple(a + b for a, b in zip(time, by))


def no_later(time, other):
    return all(a <= b for a, b in zip(time, other))


def accumulated(history, t):
    return total((record, diff) for record, time, diff in history if no_later(time, t))


def late(history, w, t):
    return accumulated(history, tuple(a - b for a, b in zip(t, w)))


def less(collection, other):
    return total([*collection.items(), *((record, -n) for record, n in other.items())])


def alive(collection, w, t):
    return total((r, n) for r, n in collection.items() if not no_later(plus(r[1], w), t))


def keys(collection):
    return total(((k,), n) for (k, _), n in collection.items())


def answers(history, u, v, t):
    """The results of `program`, by name."""
    delayed, now = late(history, u, t), accumulated(history, t)
    fresh = keys(alive(now, v, t))
    both = late(history, plus(u, v), t)
    twice = {k[0] for k, n in keys(delayed).items() if n > 0 and k[0] is not None}
    return {
        "delayed": delayed,
        "recent": less(now, delayed),
        "fresh": alive(now, u, t),
        "counted": total(((*k, n), 1) for k, n in fresh.items()),
        "both": less(both, late(history, plus(plus(u, v), v), t)),
        "late and fresh": alive(delayed, v, t),
        "one column": keys(late(history, v, t)),
        "joined": total(
            ((k,), 1) for (k,), n in keys(now).items() if n > 0 and k in twice
        ),
    }


def program(frame, u, v):
    """The forms that times of one field have, too, and a join with a delayed collection."""
    known = frame.delay(u).select("k").threshold(lambda n: int(n > 0))
    now = frame.select("k").threshold(lambda n: int(n > 0))
    return {**forms(frame, u, v), "joined": now.join(known, "k")}


def normal(record):
    return tuple(tuple(value) if isinstance(value, tuple) else value for value in record)


def frame_of(spark, history, fields):
    rows = [(*record, time, diff) for record, time, diff in history]
    schema = f"{columns_of(fields)}, time {kind_of(fields)}, diff int"
    return DiffFrame(spark.createDataFrame(rows, schema))


@examples(2)
@given(data=st.data(), fields=st.sampled_from([2, 2, 3]))
def test_whole_histories(spark, data, fields):
    history = data.draw(updates(fields))
    u, v = data.draw(intervals(fields)), data.draw(intervals(fields))
    frames = program(frame_of(spark, history, fields), u, v)
    for name in data.draw(st.lists(st.sampled_from(sorted(frames)), min_size=1, max_size=2)):
        frame = frames[name]
        rows = [tuple(row) for row in frame.to_df().collect()]
        emitted = [(normal(row[:-2]), tuple(row[-2]), row[-1]) for row in rows]
        for t in product((*range(SIDE), 20), repeat=fields):
            assert accumulated(emitted, t) == answers(history, u, v, t)[name], (name, t)


def shown(emitted):
    return lambda record, time, diff: emitted.append((normal(record), tuple(time), diff))


def check_steps(spark, data, fields, names=None, history=False, **options):
    pending, pushed = data.draw(updates(fields)), []
    u, v = data.draw(intervals(fields)), data.draw(intervals(fields))
    kind, emitted, collections = kind_of(fields), {}, {}
    with Dataflow(spark, time_type=kind, keep_history=history, **options) as flow:
        source, session = flow.input("source", columns_of(fields))
        for name, frame in program(source, u, v).items():
            if names is None or name in names:
                frame.inspect(shown(emitted.setdefault(name, [])))
                collections[name] = frame.keep()
        for _ in range(data.draw(st.integers(1, 4))):
            now = [update for update in pending if data.draw(st.booleans())]
            pending = [update for update in pending if update not in now]
            now = [update for update in now if session._frontier.less_equal(update[1])]
            session.update([(*record, time, diff) for record, time, diff in now])
            pushed += now
            flow.advance_to(data.draw(frontiers(session._frontier, fields)))
            for t in product(range(SIDE), repeat=fields):
                if session._frontier.less_equal(t):
                    continue
                expected = answers(pushed, u, v, t)
                for name, updates_of in emitted.items():
                    assert accumulated(updates_of, t) == expected[name], (name, t)
            t = data.draw(st.tuples(*[st.integers(0, SIDE - 1)] * fields))
            name = data.draw(st.sampled_from(sorted(collections)))
            expected = answers(pushed, u, v, t)[name]
            try:
                there = collections[name].at(t, allow_negative=True).collect()
            except NotReadableError as error:
                assert session._frontier.less_equal(t) or "compacted" in str(error) and not history
            else:
                rows = total((normal(tuple(row)), 1) for row in there)
                assert not session._frontier.less_equal(t) and rows == +expected, (name, t)


@examples(2)
@given(data=st.data(), fields=st.sampled_from([2, 2, 3]), buckets=st.sampled_from([1, 2, 3]),
       history=st.booleans())
def test_steps_on_the_driver(spark, data, fields, buckets, history):
    check_steps(spark, data, fields, history=history, runner="local", buckets=buckets)


@examples(0.3)
@given(data=st.data())
def test_steps_in_spark(spark, data):
    names = data.draw(st.sets(st.sampled_from(["recent", "fresh", "counted", "both"]), min_size=1))
    check_steps(spark, data, 2, names, runner="spark", buckets=2)


@examples(1)
@given(data=st.data())
def test_steps_by_size(spark, data):
    local = data.draw(st.sampled_from([0, 2, 5]))
    check_steps(spark, data, 2, {"recent", "fresh", "joined"}, local_rows=local, buckets=2)


def test_in_a_store_that_is_opened_again(spark, tmp_path):
    """The store keeps delayed and expiring records; another interval is another program."""
    def write(u):
        def written(flow):
            source, _ = flow.input("source", columns_of(2))
            source.delay(u).select("k").keep("late")
            source.expire_after(u).select("k").keep("recent")
            source.expire_after(u, "at").select("k").keep("fresh")
        return written

    path, kind = str(tmp_path / "store"), kind_of(2)
    with Dataflow.open(path, write((2, 1)), spark=spark, time_type=kind) as flow:
        flow.session("source").update([(1, (0, 0), (0, 0), 1), (2, (5, 0), (1, 1), 1)])
        flow.advance_to((2, 0))
    shutil.copytree(path, tmp_path / "other")
    with Dataflow.open(path, write((2, 1)), spark=spark, time_type=kind) as flow:
        flow.advance_to((9, 0))
        actual = {
            t: [sorted(flow[name].at(t).toPandas()["k"]) for name in ("late", "recent", "fresh")]
            for t in [(8, 0), (8, 1), (8, 9)]
        }
    assert actual == {
        (8, 0): [[], [1], [1]], (8, 1): [[1], [2], []], (8, 9): [[1, 2], [], []],
    }
    with pytest.raises(ProgramChangedError):
        Dataflow.open(str(tmp_path / "other"), write((2, 2)), spark=spark, time_type=kind)


# Refusals.


@pytest.mark.parametrize("interval, reason", [
    (3, "an integer for each field, such as .7, 0.; not 3"),
    ("7 days", "not '7 days'"),
    ((1,), "has 1"), ((1, 2, 3), "has 3"), ((1, None), "not .1, None"), ((True, 1), "not .True"),
    ((1, -1), "negative in no field"), ((0, 0), "positive in some field"),
])
def test_intervals_of_structs(spark, interval, reason):
    frame = DiffFrame(spark.sql("SELECT 1 AS k, named_struct('i', 0, 'j', 1) AS time, 1 AS diff"))
    for way in (frame.delay, frame.expire_after):
        with pytest.raises(InvalidTimeError, match=reason):
            way(interval)


def test_what_cannot_be_later(spark):
    last = 2**31 - 1
    for time, where in [((last, 0), "leave the range of times"), ((0, last), "in the field 'j'")]:
        frame = DiffFrame(spark.createDataFrame([(1, time, 1)], f"k int, time {PAIR}, diff int"))
        for way in (frame.delay, frame.expire_after):
            with pytest.raises(InvalidTimeError, match=where):
                way((1, 1)).to_df().collect()


def test_what_is_said_of_a_column(spark):
    frame = frame_of(spark, [((1, (0, 0)), (0, 0), 1)], 2)
    with pytest.raises(SchemaError, match="column 'k' is of type int and the times of type st"):
        frame.expire_after((1, 0), "k")
    with pytest.raises(SchemaError, match="no column 'nosuch' for expire_after"):
        frame.expire_after((1, 0), "nosuch")
    with pytest.raises(SchemaError, match="delay cannot be used in"):
        frame.iterate(lambda known: known.delay((1, 0)))
    late = frame.select("k").iterate(
        lambda known: known.union(frame.delay((2, 0)).select("k")).distinct()
    )
    assert [tuple(row) for row in late.at((1, 5)).collect()] == [(1,)]
    for event in (None, (0, None)):
        late_rows = frame_of(spark, [((1, event), (0, 0), 1)], 2)
        with pytest.raises(InvalidTimeError, match="rows have no at"):
            late_rows.expire_after((1, 0), "at").to_df().collect()


@pytest.mark.parametrize("runner", ["local", "spark"])
def test_times_do_not_leave_their_range(spark, runner):
    last, most = 2**31 - 1, 2**62 - 1
    with Dataflow(spark, time_type=kind_of(2), runner=runner) as flow:
        source, session = flow.input("source", columns_of(2))
        late = source.delay((1, 2)).select("k").keep("late")
        session.update([(1, (0, 0), (last - 1, most - 2), 1)])
        flow.advance_to((last, 0))
        assert late.at((last - 1, most)).collect() == []
        session.update([(2, (0, 0), (last, 0), 1)])
        with pytest.raises(InvalidTimeError, match="leave the range of times"):
            flow.advance_to((last, 1))


def test_the_other_fields_have_their_room(spark):
    frame = frame_of(spark, [((1, (0, 0)), (0, 2**60), 1)], 2)
    assert frame.delay((0, 1)).to_df().collect()[0]["time"] == (0, 2**60 + 1)
    with pytest.raises(InvalidTimeError, match="moves to 57.* in the field 'b' of its time"):
        frame.delay((0, 2**62)).to_df().collect()


def test_a_record_is_there_for_a_band_of_versions(spark):
    """An interval of 0 in a field leaves that out."""
    rows = [((1, (0, 0)), (1, 1), 1)]
    there = frame_of(spark, rows, 2).expire_after((0, 2)).select("k").agg(F.count("*").alias("n"))
    assert {t: [row.n for row in there.at(t).collect()] for t in product((0, 1, 9), (0, 2, 3))} == {
        (0, 0): [], (0, 2): [], (0, 3): [], (1, 0): [], (1, 2): [1], (1, 3): [],
        (9, 0): [], (9, 2): [1], (9, 3): [],
    }
