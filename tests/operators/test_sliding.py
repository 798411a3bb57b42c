"""Expiry and delay by an interval equal their definitions at every time.

    delay(A, w) at t            =  A at t - w
    expire_after(A, w) at t     =  A at t  -  A at t - w

    expire_after(A, w, c) at t  =  the records of A at t with c + w > t
"""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Op, Program, total
from programs import Run, programs, schedules
from pyspark.sql import functions as F

from pyspark_diff import (
    Dataflow,
    DiffFrame,
    InvalidTimeError,
    NonDeterministicError,
    NotReadableError,
    ProgramChangedError,
    SchemaError,
)

EXAMPLES = settings().max_examples
COLUMNS = "k int, at int"
#: Longer than any time that is asked for, too.
INTERVALS = st.sampled_from([1, 2, 3, 7, 100])


def examples(share):
    return settings(max_examples=max(1, round(EXAMPLES * share)))


records = st.tuples(st.sampled_from([0, 1, None]), st.integers(-4, 12))
updates = st.lists(
    st.tuples(records, st.integers(0, 12), st.sampled_from([1, 1, 2, -1, -2])), max_size=25
)


def accumulated(history, t):
    return total((record, diff) for record, time, diff in history if time <= t)


def late(history, w, t):
    return accumulated(history, t - w)


def recent(history, w, t):
    then = ((record, -n) for record, n in late(history, w, t).items())
    return total([*accumulated(history, t).items(), *then])


def fresh(history, w, t):
    return total((r, n) for r, n in accumulated(history, t).items() if r[1] + w > t)


def answers(history, u, v, t):
    """The results of `program`, by name."""
    new = fresh(history, v, t)
    keys = total(((k,), n) for (k, _), n in new.items())
    return {
        "delayed": late(history, u, t),
        "recent": recent(history, u, t),
        "fresh": fresh(history, u, t),
        "counted": total(((*k, n), 1) for k, n in keys.items()),
        "both": total([*late(history, u + v, t).items(),
                       *((r, -n) for r, n in late(history, u + 2 * v, t).items())]),
        "late and fresh": total((r, n) for r, n in late(history, u, t).items() if r[1] + v > t),
        "one column": total(((r[0],), n) for r, n in late(history, v, t).items()),
    }


def program(frame, u, v):
    """By name a frame of each kind: of the input, of derived collections, and of each other."""
    delayed = frame.delay(u)
    return {
        "delayed": delayed,
        "recent": frame.expire_after(u),
        "fresh": frame.expire_after(u, "at"),
        "counted": frame.expire_after(v, "AT").select("k").count(),
        "both": delayed.delay(v).expire_after(v),
        "late and fresh": delayed.expire_after(v, "at"),
        "one column": frame.delay(v).select("k"),
    }


@examples(1)
@given(history=updates, u=INTERVALS, v=INTERVALS)
def test_whole_histories(spark, history, u, v):
    rows = [(*record, time, diff) for record, time, diff in history]
    frame = DiffFrame(spark.createDataFrame(rows, f"{COLUMNS}, time int, diff int"))
    times = sorted({t + w for _, t, _ in history for w in (0, u, v, u + v)})
    for name, result in program(frame, u, v).items():
        emitted = [(row[:-2], row[-2], row[-1]) for row in map(tuple, result.to_df().collect())]
        for t in range(-1, max(times, default=0) + 2) if max(times, default=0) < 60 else times:
            assert accumulated(emitted, t) == answers(history, u, v, t)[name], (name, t)


def shown(emitted):
    return lambda record, time, diff: emitted.append((tuple(record), time, diff))


@st.composite
def feeds(draw):
    """For each step its updates, and the time to which the input advances then."""
    history = sorted(draw(updates), key=lambda update: update[1])
    cuts = sorted(draw(st.sets(st.integers(1, 16), min_size=1, max_size=6)))
    steps, begin = [], 0
    for cut in cuts:
        # Some come before their time.
        ready = [u for u in history if u[1] < cut + draw(st.sampled_from([0, 0, 3]))]
        now = [u for u in ready if u[1] >= begin]
        history = [u for u in history if u not in now]
        steps.append((now, cut))
        begin = cut
    return steps


def check_steps(spark, data, **options):
    steps, u, v = data.draw(feeds()), data.draw(INTERVALS), data.draw(INTERVALS)
    closes = data.draw(st.booleans())
    history = [update for now, _ in steps for update in now]
    with Dataflow(spark, time_type="int", **options) as flow:
        source, session = flow.input("source", COLUMNS)
        emitted = {}
        for name, result in program(source, u, v).items():
            result.inspect(shown(emitted.setdefault(name, [])))
        for now, cut in steps:
            session.update([(*record, time, diff) for record, time, diff in now])
            flow.advance_to(cut)
            for t in range(cut):
                expected = answers(history, u, v, t)
                for name, updates in emitted.items():
                    assert accumulated(updates, t) == expected[name], (name, t)
        if closes:
            session.close()
            flow.step()
            for t in (cut, cut + u, cut + u + v, cut + u + 2 * v, 400):
                for name, expected in answers(history, u, v, t).items():
                    assert accumulated(emitted[name], t) == expected, (name, t)


@examples(4)
@given(data=st.data(), buckets=st.sampled_from([1, 2, 3, 7]))
def test_steps_on_the_driver(spark, data, buckets):
    check_steps(spark, data, runner="local", buckets=buckets)


@examples(0.3)
@given(data=st.data(), buckets=st.sampled_from([1, 3]))
def test_steps_in_spark(spark, data, buckets):
    check_steps(spark, data, runner="spark", buckets=buckets)


@examples(1)
@given(data=st.data(), local=st.sampled_from([0, 2, 5]))
def test_steps_by_size(spark, data, local):
    check_steps(spark, data, local_rows=local, buckets=2)


# Among other operators, whatever befalls a dataflow.


@st.composite
def sliding_programs(draw, **options):
    """A random program. Its operators may read the first input delayed, or its recent records
    only."""
    program = draw(programs(**options))
    count, later = len(program.inputs), (draw(INTERVALS), draw(INTERVALS))
    added = tuple(
        Op(name, (draw(st.sampled_from([0, node])),), (interval,))
        for node, name, interval in zip((0, count), ("delay", "expire_after"), later)
    )
    first = st.sampled_from([0, count, count + 1, count + 1])
    ops = tuple(
        Op(
            op.name,
            tuple(node + 2 if node >= count else node or draw(first) for node in op.reads),
            op.args,
        )
        for op in program.ops
    )
    others = {node + 2 if node >= count else node for node in program.outputs}
    return Program(program.inputs, (*added, *ops), tuple(sorted(others | {count, count + 1})))


REFUSED = ("may look at the times", "depend on when", "loop", "leave")
buckets = st.integers(1, 3)
in_memory_rows = st.sampled_from([0, 1, 4096])


@examples(3)
@given(data=st.data(), buckets=buckets, in_memory_rows=in_memory_rows, history=st.booleans())
def test_random_programs_that_grow_and_from_which_updates_are_discarded(
    spark, data, buckets, in_memory_rows, history
):
    program = data.draw(sliding_programs())
    schedule = data.draw(schedules(program.inputs, lags=True, discards=True))
    late = data.draw(st.lists(st.sampled_from([0, 0, 0, 1, 2]), min_size=4, max_size=4))
    with Run(
        spark, program, runner="local", buckets=buckets, memory_rows=in_memory_rows, late=late,
        keeps=range(len(program.inputs)), keep_history=history,
    ) as run:
        run.take(schedule, REFUSED)


@examples(0.3)
@given(data=st.data(), buckets=buckets, in_memory_rows=in_memory_rows)
def test_random_programs_in_spark(spark, data, buckets, in_memory_rows):
    program = data.draw(sliding_programs(most=3))
    schedule = data.draw(schedules(program.inputs, most=3, frames=True))
    with Run(spark, program, runner="spark", buckets=buckets, memory_rows=in_memory_rows) as run:
        run.take(schedule)


@examples(2)
@given(data=st.data(), buckets=buckets, in_memory_rows=in_memory_rows, killed=st.booleans())
def test_random_programs_in_stores(spark, data, buckets, in_memory_rows, killed, tmp_path_factory):
    program = data.draw(sliding_programs(most=4))
    schedule = data.draw(schedules(program.inputs))
    reopened = data.draw(st.sets(st.integers(1, len(schedule)), min_size=1))
    with Run(
        spark, program, runner="local", buckets=buckets, memory_rows=in_memory_rows,
        reopened=reopened, killed=killed, store=str(tmp_path_factory.mktemp("store") / "sliding"),
    ) as run:
        run.take(schedule, REFUSED)


# Refusals, and the cost of a step.


@pytest.fixture
def frame(spark):
    return DiffFrame(spark.createDataFrame([(1, 2, 0, 1)], f"{COLUMNS}, time int, diff int"))


@pytest.mark.parametrize("interval", [0, -3, 1.5, True, None, "7 days", datetime.timedelta(7)])
def test_an_interval_of_integer_times_is_a_positive_integer(frame, interval):
    for method in (frame.delay, frame.expire_after, lambda w: frame.expire_after(w, "at")):
        with pytest.raises(InvalidTimeError, match="interval"):
            method(interval)


@pytest.mark.parametrize(
    "kind, interval",
    [("date", "12 hours"), ("date", 7), ("timestamp", "1 month"), ("timestamp", 7),
     ("timestamp_ntz", "0 seconds"), ("timestamp", datetime.timedelta(-1)), ("date", "days"),
     ("timestamp", "999999999999 weeks")],
)
def test_an_interval_of_dates_and_timestamps_is_a_length_of_time(spark, kind, interval):
    frame = DiffFrame(spark.sql(f"SELECT 1 AS k, CAST('2026-03-01' AS {kind}) AS time, 1 AS diff"))
    for method in (frame.delay, frame.expire_after):
        with pytest.raises(InvalidTimeError, match="interval"):
            method(interval)


@pytest.mark.parametrize(
    "kind, interval, later",
    [("date", "2 days", "2026-03-03"), ("date", datetime.timedelta(2), "2026-03-03"),
     ("timestamp", "36 hours", "2026-03-02 12:00:00"),
     ("timestamp_ntz", "1 Week", "2026-03-08 00:00:00"),
     ("timestamp", datetime.timedelta(minutes=1), "2026-03-01 00:01:00")],
)
def test_all_types_of_times(spark, kind, interval, later):
    day = f"CAST('2026-03-01' AS {kind})"
    source = spark.sql(f"SELECT 1 AS k, {day} AS at, {day} AS time, 1 AS diff")
    for local in (source, source.repartition(1)):
        frame = DiffFrame(local)
        (moved,) = frame.delay(interval).to_df().selectExpr("CAST(time AS string) AS t").collect()
        assert moved.t == later
        for left in (frame.expire_after(interval), frame.expire_after(interval, "AT")):
            retractions = left.to_df().where("diff < 0").selectExpr("CAST(time AS string) AS t")
            assert [row.t for row in retractions.collect()] == [later]


def test_what_no_column_can_be(spark, frame):
    with pytest.raises(SchemaError, match="no column 'nosuch' for expire_after"):
        frame.expire_after(1, "nosuch")
    with pytest.raises(SchemaError, match="takes the name of a column"):
        frame.expire_after(1, F.col("at"))
    dated = DiffFrame(spark.sql("SELECT DATE'2026-03-01' AS at, 0 AS time, 1 AS diff"))
    with pytest.raises(SchemaError, match="'at' is of type date and the times of type int; cast"):
        dated.expire_after(1, "at")


def test_a_loop_has_no_time_to_wait(frame):
    with pytest.raises(SchemaError, match="expire_after cannot be used in"):
        frame.iterate(lambda known: known.expire_after(1, "at"))
    with pytest.raises(SchemaError, match="delay cannot be used in"):
        frame.iterate(lambda known: known.delay(1))
    # The collections that enter it may be delayed.
    late = frame.iterate(lambda known: known.union(frame.delay(2)).distinct())
    assert sorted(row.time for row in late.to_df().collect()) == [0]


@pytest.mark.parametrize("runner", ["local", "spark"])
def test_records_without_a_time_and_times_that_do_not_exist(spark, runner):
    with Dataflow(spark, time_type="int", runner=runner) as flow:
        source, session = flow.input("source", COLUMNS)
        source.expire_after(10, "at").keep()
        session.insert([(1, None)])
        with pytest.raises(InvalidTimeError, match="1 rows have no at .it is null.: give"):
            flow.advance_to(1)
        session.discard()
        session.insert([(1, 2**31 - 5)])
        with pytest.raises(InvalidTimeError, match="leave the range of times of type int"):
            flow.advance_to(2)


def test_what_is_added_late_needs_the_times_of_what_came(spark):
    with Dataflow(spark, time_type="int") as flow:
        source, session = flow.input("source", COLUMNS)
        whole = source.keep()
        session.insert([(1, 0)])
        flow.advance_to(1)
        session.insert([(2, 4)])
        flow.advance_to(6)
        for keep_late in (lambda: source.delay(3).keep(), lambda: source.expire_after(3).keep()):
            with pytest.raises(NotReadableError, match="name a column with the time: expire_af"):
                keep_late()
        late = source.expire_after(5, "at").keep()
        flow.advance_to(7)
        assert whole.at().count() == 2 and [tuple(row) for row in late.at().collect()] == [(2, 4)]
        flow.advance_to(10)
        assert late.at().collect() == []


@pytest.mark.parametrize("column", [None, "at"])
def test_what_has_left_is_dropped(spark, column):
    """After a thousand records and a thousand steps, the state keeps only waiting records."""
    with Dataflow(spark, runner="local", buckets=2) as flow:
        source, session = flow.input("source", "k long, at long")
        counted = source.expire_after(10, column).agg(F.count("*").alias("n")).keep()
        session.insert([(k, 0) for k in range(1000)])
        for t in range(1, 200):
            flow.advance_to(t)
            session.insert([(t, t)])
            waits = [a for a in flow._state.traces if a.kind == "waiting"]
            (rows,) = [flow._state.traces[node].rows for node in waits]
            assert t < 30 or rows < 50
        flow.advance_to(200)
        assert [row.n for row in counted.at().collect()] == [10]


def test_a_step_reads_what_falls_due_and_nothing_else(spark):
    with Dataflow(spark, runner="local", buckets=2) as flow:
        source, session = flow.input("source", "k long, at long")
        source.expire_after(100, "at").select("k").inspect(lambda *_: None)
        session.insert([(k, k) for k in range(5000)])
        flow.advance_to(1)
        for t in range(200, 210):
            flow.advance_to(t)
            assert flow._state.report.rows_read == (100 if t == 200 else 1)


# The clock.


def ticked(interval, start, t):
    return total([((t // interval * interval,), 1)]) if t >= start else total([])


@examples(4)
@given(data=st.data(), interval=st.sampled_from([1, 2, 3, 10]), stored=st.booleans())
def test_the_clock_has_the_last_tick(spark, data, interval, stored, tmp_path_factory):
    start = data.draw(st.sampled_from([0, 0, 1, 6, 7]))
    begin = data.draw(st.sampled_from([None, start])) if start == 0 else start
    ticks, ages = [], []
    # A store that is opened again may emit the last updates twice, if their delivery is unknown.
    store = str(tmp_path_factory.mktemp("store") / "clock")

    def written(flow):
        a, _ = flow.input("a", "k int")
        flow.input("b", "k int")
        now = flow.clock(interval, name="time", start=begin)
        now.keep("now").inspect(shown(ticks))
        a.join(now).select("now").distinct().keep("age").inspect(shown(ages))

    def begun():
        if stored:
            return Dataflow.open(store, written, spark=spark, runner="local", buckets=2)
        flow = Dataflow(spark, runner="local", buckets=2)
        written(flow)
        return flow

    flow = begun()
    flow.session("a").insert([(1,)])
    at = [0, 0]
    for _ in range(data.draw(st.integers(1, 6))):
        which = data.draw(st.sampled_from(["a", "b", "flow", "again", "discard"]))
        to = max(at) + data.draw(st.sampled_from([0, 1, 2, 5]))
        if which == "flow":
            flow.advance_to(to)
            at = [to, to]
        elif which == "again" and stored:
            flow.close()
            flow = begun()
        elif which == "discard":
            flow.discard()
        elif which in "ab":
            flow.session(which).advance_to(to)
            at["ab".index(which)] = to
            if data.draw(st.booleans()):
                flow.step()
        for t in range(max(start, 0), min(at) - 1 if which in "ab" else 0):
            if flow["now"].probe().less_equal(t):
                break
            assert accumulated(ticks, t) == ticked(interval, start, t)
    flow.advance_to(max(at) + 3)
    for t in range(max(at) + 3):
        assert accumulated(ticks, t) == ticked(interval, start, t), t
    if max(at) + 2 >= start:
        rows = flow["now"].at().collect()
        assert total((tuple(row), 1) for row in rows) == accumulated(ticks, max(at) + 2)
    flow.close()


def test_the_clock_goes_on_with_those_that_are_open(spark):
    with Dataflow(spark) as flow:
        a, a_in = flow.input("a", "k int")
        _, b_in = flow.input("b", "k int")
        now = flow.clock(5, column="tick").keep()
        a_in.advance_to(12)
        flow.step()
        b_in.advance_to(7)
        flow.step()
        assert now.at(6).collect() == [(5,)]
        b_in.close()
        flow.step()
        assert now.at(11).collect() == [(10,)] and now.columns == ["tick"]
        a_in.close()
        flow.step()
        assert not now.probe().done()
        flow.advance_to(23)
        assert now.at().collect() == [(20,)]
        late = now.selectExpr("tick + 1 AS next").keep()  # a later output reads its state
        flow.advance_to(24)
        assert late.at().collect() == [(21,)]


def test_what_a_clock_cannot_be(spark):
    with Dataflow(spark, time_type="timestamp") as flow:
        for interval in (0, 5, "1 month", None):
            with pytest.raises(InvalidTimeError, match="clock"):
                flow.clock(interval)
        flow.clock("1 second")
        with pytest.raises(SchemaError, match="has an input 'clock' already"):
            flow.clock("1 day")
        with pytest.raises(SchemaError, match="name of the time or diff"):
            flow.clock("1 day", name="other", column="Time")
        with pytest.raises(NotReadableError, match="'clock' is a clock and has no session"):
            flow.session("clock")
        with pytest.raises(InvalidTimeError, match=r"tick \d+ times.*flow.clock.every, start="):
            flow.advance_to(datetime.datetime(2026, 3, 1))


def test_another_interval_is_another_clock(spark, tmp_path):
    def written(interval):
        return lambda flow: flow.clock(interval).keep("now")

    with Dataflow.open(str(tmp_path / "clock"), written(2), spark=spark) as flow:
        flow.advance_to(5)
    with pytest.raises(ProgramChangedError, match="interval differs"):
        Dataflow.open(str(tmp_path / "clock"), written(3), spark=spark)


def test_the_time_of_day_is_refused_and_told_what_to_use(spark, frame):
    for expression in ("current_date()", "current_timestamp()", "now()"):
        with pytest.raises(NonDeterministicError, match=r"write frame.expire_after.*flow.clock"):
            frame.where(F.expr(f"make_date(2026, 1, 1) < {expression}"))
    with pytest.raises(NonDeterministicError) as error:
        frame.withColumn("r", F.rand())
    assert "clock" not in str(error.value)
