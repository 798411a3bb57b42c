"""A source is read on from its last offset, and a sink receives each change exactly once.

    the sum of the changes of a sink up to an epoch  =  the collection, recomputed from the sources
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from unittest import mock

import pytest
from connect_server import in_sql_text
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff import (
    Dataflow,
    NegativeMultiplicityError,
    NotReadableError,
    ProgramChangedError,
    SchemaError,
    SinkError,
    SourceError,
    StaleWarning,
    StepError,
    TimeRegressionError,
)
from pyspark_diff.dataflow.dataflow import BaseDataflow
from pyspark_diff.dataflow.sink import Sinks
from pyspark_diff.dataflow.source import Sources
from pyspark_diff.sinks import Sink, foreach
from pyspark_diff.sources import (
    Deletes,
    Inserts,
    Reading,
    Removes,
    Source,
    Updates,
    Upserts,
    snapshots,
)

ORDERS, CUSTOMERS = "id int, customer int, amount int", "customer int, region string"


class Killed(BaseException):
    """The end of the process."""


class Log(Source):
    """A list of changes; the offset is the number of changes read. `fails` is an error to raise."""

    def __init__(self, columns, key=()):
        self.changes, self.key, self.fails = [], key, None
        self._columns = T.StructType.fromDDL(columns)

    def columns(self, spark):
        return self._columns

    def read(self, spark, offset):
        if self.fails is not None:
            raise self.fails
        begin = 0 if offset is None else offset
        if begin == len(self.changes):
            return None
        return Reading(len(self.changes), self.changes[begin:])


class Target(Sink):
    """The changes of a sink by epoch. `fails` lists errors to raise before or after a write."""

    def __init__(self):
        self.epochs, self.calls, self.fails = {}, [], []

    def write(self, epoch):
        self.calls.append(epoch.number)
        rows = sorted(map(tuple, epoch.changes.collect()))
        fails = self.fails.pop(0) if self.fails else None
        if fails is not None and fails[0] == "before":
            raise fails[1]
        if epoch.is_first:
            self.epochs.clear()
        assert self.epochs.setdefault(epoch.number, rows) == rows
        rows_so_far = Counter()
        for row in self.all():
            rows_so_far[row[:-2]] += row[-1]
        assert sorted((+rows_so_far).elements()) == sorted(map(tuple, epoch.snapshot().collect()))
        if fails is not None:
            raise fails[1]

    def all(self):
        return [row for number in sorted(self.epochs) for row in self.epochs[number]]

    def snapshot(self):
        total = Counter()
        for row in self.all():
            total[row[:-2]] += row[-1]
        return {row: count for row, count in total.items() if count}


class Shop:
    """Two sources that change, a view of both, and its expected rows."""

    def __init__(self, spark, keyed=False):
        self.spark, self.target = spark, Target()
        self.orders, self.customers = [], {}
        self.log = Log("id int, customer int, amount int", ("id",) if keyed else ())

    def program(self, flow):
        orders = flow.source("orders", self.log)
        customers = flow.source("customers", snapshots(self.table, key="customer"))
        view = orders.join(customers, "customer").groupBy("region").agg(F.sum("amount").alias("n"))
        view.sink("view", self.target)

    def table(self):
        return self.spark.createDataFrame(sorted(self.customers.items()), CUSTOMERS)

    def add(self, *rows):
        self.orders += rows
        if self.log.key:
            self.log.changes.append(Upserts(list(rows)))
        else:
            self.log.changes.append(Inserts(list(rows)))

    def remove(self, row):
        self.orders.remove(row)
        if self.log.key:
            self.log.changes.append(Deletes([row[:1]]))
        else:
            self.log.changes.append(Removes([row]))

    def expected(self):
        amounts = Counter()
        for _, customer, amount in self.orders:
            if customer in self.customers:
                amounts[self.customers[customer]] += amount
        present = {self.customers[c] for _, c, _ in self.orders if c in self.customers}
        return {(region, amounts[region]): 1 for region in present}


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("lasting", [False, True])
def test_random_nights(spark, tmp_path, keyed, lasting):
    choose = random.Random(keyed + 2 * lasting)
    shop, number = Shop(spark, keyed), 0

    def opened():
        if lasting:
            return Dataflow.open(tmp_path / "store", shop.program, spark=spark, buckets=2)
        flow = Dataflow(spark, buckets=2)
        shop.program(flow)
        return flow

    flow = opened()
    for night in range(12):
        for _ in range(choose.randrange(3)):
            number += 1
            shop.add((number, choose.randrange(4), choose.randrange(10)))
        if shop.orders and choose.random() < 0.5:
            shop.remove(choose.choice(shop.orders))
        shop.customers[choose.randrange(4)] = choose.choice(["north", "south", "east"])
        fails = choose.choice([None, None, "source", "before", "behind", "killed"])
        if fails == "source":
            shop.log.fails = OSError("gone")
        elif fails is not None:
            where = choose.choice(["before", "behind"]) if fails == "killed" else fails
            shop.target.fails = [(where, Killed() if fails == "killed" else OSError("full"))]
        try:
            flow.catch_up()
        except SourceError as error:
            assert fails == "source" and "'orders'" in str(error) and "gone" in str(error)
        except SinkError as error:
            assert fails in ("before", "behind") and "'view'" in str(error)
        except Killed:
            assert fails == "killed"
            if lasting:
                flow = opened()  # a killed process closes nothing
        shop.log.fails, shop.target.fails = None, []
        if lasting and choose.random() < 0.3:
            flow.close()
            flow = opened()
        flow.catch_up()
        assert shop.target.snapshot() == shop.expected(), night
        assert shop.target.calls == sorted(shop.target.calls)
    flow.close()


def test_an_epoch_goes_with_its_offsets(spark, tmp_path):
    shop = Shop(spark)
    shop.customers = {1: "north"}
    with Dataflow.open(tmp_path / "store", shop.program, spark=spark) as flow:
        shop.add((1, 1, 5))
        assert flow.catch_up(token="monday") and flow.token == "monday"
        shop.add((2, 1, 5))
        assert not flow.catch_up(token="monday")
        assert shop.target.calls == [1]
        assert flow.catch_up(token="tuesday")
        commits = flow.history().orderBy("commit").select("commit", "sources").collect()
        assert [row.sources for row in commits[1:]] == [
            '{"customers":{"reading":1},"orders":1}', '{"customers":{"reading":2},"orders":2}',
        ]


@in_sql_text
def test_what_a_step_fails_on_is_dropped_and_not_read_again(spark):
    log, target = Log("a int, b int"), Target()
    with Dataflow(spark, runner="local") as flow:
        flow.source("pairs", log).selectExpr("a div b AS c").sink("out", target)
        log.changes.append(Inserts([(6, 2), (1, 0)]))
        for _ in range(2):
            with pytest.raises(ArithmeticError, match=r"input 'pairs'.*\(1, 0\)"):
                flow.catch_up()
        (dropped,) = flow.session("pairs").discard("b = 0")
        assert dropped.num_rows == 1
        assert flow.catch_up() and not flow.catch_up()
        assert target.snapshot() == {(3,): 1}


def test_late_rows_are_refused_or_kept_aside(spark):
    def timed(rows):
        return Updates(spark.createDataFrame(rows, "a string, at long, n long"), "n", "at")

    for late in "refuse", "aside":
        log, target = Log("a string"), Target()
        with Dataflow(spark, runner="local") as flow:
            rows = flow.source("rows", log, late=late).keep()
            if late == "aside":
                flow.late("rows").sink("late", target)
            log.changes.append(timed([("x", 3, 1), ("y", 5, 2)]))
            flow.catch_up()
            assert rows.probe().time() == 6
            log.changes.append(timed([("x", 7, 1), ("x", 3, -1)]))
            if late == "refuse":
                with pytest.raises(TimeRegressionError, match="3 .*'rows'.*6"):
                    flow.catch_up()
                assert sorted(rows.at().collect()) == [("x",), ("y",), ("y",)]
                with pytest.raises(NotReadableError, match="late='aside'"):
                    flow.late("rows")
            else:
                flow.catch_up()
                assert sorted(rows.at().collect()) == [("x",), ("x",), ("y",), ("y",)]
                assert target.snapshot() == {("x", 3, -1): 1}


def test_a_sink_of_another_collection_begins_anew(spark, tmp_path):
    log, target = Log("a int"), Target()
    log.changes.append(Inserts([(1,), (2,), (2,)]))

    def first(flow):
        flow.source("n", log).groupBy("a").count().sink("out", target)

    def second(flow):
        flow.source("n", log).groupBy("a").agg(F.count("*").alias("many")).where("many > 1").sink(
            "out", target
        )

    with Dataflow.open(tmp_path / "store", first, spark=spark) as flow:
        flow.catch_up()
        assert target.snapshot() == {(1, 1): 1, (2, 1 + 1): 1}
    with pytest.raises(ProgramChangedError, match="sink 'out' has another"):
        Dataflow.open(tmp_path / "store", second, spark=spark)
    with Dataflow.open(tmp_path / "store", second, spark=spark, on_change="extend") as flow:
        log.changes.append(Inserts([(1,)]))
        flow.catch_up()
        assert target.snapshot() == {(1, 2): 1, (2, 2): 1}


def test_what_begins_anew_is_read_again(spark, tmp_path):
    log, target = Log("a int, b int"), Target()
    log.changes.append(Inserts([(1, 1), (1, 2)]))

    def first(flow):
        flow.source("n", log).select("a").distinct().sink("out", target)

    def second(flow):
        flow.source("n", log).groupBy("a").agg(F.max("b").alias("b")).sink("out", target)

    with Dataflow.open(tmp_path / "store", first, spark=spark) as flow:
        flow.catch_up()
    with pytest.warns(StaleWarning, match="begin anew that depend on 'n'"):
        flow = Dataflow.open(tmp_path / "store", second, spark=spark, on_change="rebuild")
    with flow:
        flow.catch_up()
        assert target.snapshot() == {(1, 2): 1}


def test_an_input_that_waits_holds_back_what_could_be_taken_back(spark):
    log, target = Log("a int"), Target()
    with Dataflow(spark, runner="local") as flow:
        fed = flow.source("fed", log)
        by_hand, session = flow.input("by hand", "a int")
        fed.distinct().sink("ahead", target)
        fed.union(by_hand).distinct().keep()
        flow.session("fed").insert([(1,), (2,)])
        flow.session("fed").advance_to(5)
        flow.step()
        assert target.snapshot() == {}
        flow.session("fed").discard("a = 1", waiting=True)
        session.advance_to(5)
        flow.step()
        assert target.snapshot() == {(2,): 1}


def test_names_and_forms_are_checked(spark):
    with Dataflow(spark) as flow:
        with pytest.raises(NotReadableError, match="no input .* has a source"):
            flow.catch_up()
        with pytest.raises(SchemaError, match="not from"):
            flow.source("rows", [(1,)])
        with pytest.raises(ValueError, match="'refuse' or 'aside'"):
            flow.source("rows", Log("a int"), late="never")
        with pytest.raises(ValueError, match="none comes too late"):
            flow.source("rows", Log("a int", ("a",)), late="aside")
        rows = flow.source("rows", Log("a int")).sink("out", foreach(print))
        with pytest.raises(SchemaError, match="'out' already"):
            rows.sink("out", foreach(print))
        with pytest.raises(SchemaError, match="not by"):
            rows.sink("other", print)
        with pytest.raises(TypeError, match="function"):
            foreach("print")
    history = spark.createDataFrame([(1, 0, 1)], "a int, time long, diff long")
    from pyspark_diff import DiffFrame

    with pytest.raises(NotReadableError, match="has its whole history"):
        DiffFrame(history).sink("out", foreach(print))


@pytest.mark.parametrize("change", [Upserts([(1,)]), Deletes([(1,)])])
def test_a_change_that_does_not_fit_is_refused(spark, change):
    log = Log("a int")
    with Dataflow(spark) as flow:
        output = flow.source("rows", log).keep()
        log.changes += [Inserts([(1,)]), change]
        with pytest.raises(SchemaError, match="has no key"):
            flow.catch_up()
        log.changes[1:] = [Inserts([(2,)])]
        assert flow.catch_up()
        # The earlier change was inserted once.
        assert sorted(output.at().collect()) == [(1,), (2,)]


@pytest.mark.parametrize("kind", ["int", "date", "timestamp", "timestamp_ntz"])
def test_epochs_have_times_of_any_type(another, kind):
    another.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    table, log, target = [("a",), ("a",)], Log("a string"), Target()
    with Dataflow(another, runner="local", time_type=kind) as flow:
        rows = flow.source("rows", snapshots(lambda: another.createDataFrame(table, "a string")))
        rows.concat(flow.source("log", log)).sink("out", target)
        for _ in range(2):
            frame = another.createDataFrame([("b", 1), ("c", 2)], "a string, n long")
            log.changes.append(Updates(frame, "n"))
            before = rows.probe().time()
            flow.catch_up()
            table[:] = [("a",), ("d",)]
            assert before is None or rows.probe().time() > before
        assert target.snapshot() == {("a",): 1, ("b",): 2, ("c",): 4, ("d",): 1}


def test_a_sink_that_fails_does_not_starve_the_others(spark):
    log, targets = Log("a int"), [Target(), Target()]
    with Dataflow(spark, runner="local") as flow:
        rows = flow.source("rows", log)
        for name, target in zip(["first", "second"], targets):
            rows.sink(name, target)
        log.changes.append(Inserts([(1,)]))
        targets[0].fails = [("before", OSError("full"))]
        with pytest.raises(SinkError, match="'first'"):
            flow.catch_up()
        assert [target.snapshot() for target in targets] == [{}, {(1,): 1}]
        # The probe reports that the epoch is not complete.
        assert rows.probe().time() == 0
        assert not flow.catch_up() and rows.probe().time() == 1
        assert [target.calls for target in targets] == [[1, 1], [1]]


def codes(*functions):
    return {getattr(function, "__wrapped__", function).__code__ for function in functions}


#: The functions of a night, except those that take locks: a tracer can raise between the end of a
#: `with` and the release of its lock, and a signal cannot.
CATCHES_UP = codes(
    BaseDataflow._catch_up, BaseDataflow._advance, BaseDataflow._commit, BaseDataflow._give,
    Sources.read, Sources._read, Sources._feed, Sources.is_ahead, Sinks.due, Sinks.give,
    Sinks._give,
    Sinks.holds, Target.write,
)


class Fault:
    """Raise an error at the n-th line that `CATCHES_UP` runs."""

    def __init__(self, error, at):
        self.error, self.left, self.hit = error, at, False

    def __enter__(self):
        sys.settrace(lambda frame, *_: self.line if frame.f_code in CATCHES_UP else None)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def line(self, frame, event, argument):
        if event == "line" and not self.hit:
            self.left -= 1
            if self.left < 0:
                self.hit = True
                raise self.error("at this line")
        return self.line


@pytest.mark.parametrize("error, keyed, lasting, first, stride", [
    (KeyboardInterrupt, False, True, 0, 17),
    *(pytest.param(error, keyed, lasting, first, 12, marks=pytest.mark.slow)
      for error in (KeyboardInterrupt, OSError) for keyed in (False, True)
      for lasting in (False, True) for first in (0, 3, 6, 9)),
])
def test_catching_up_may_be_cut_short_anywhere(
    spark, tmp_path, error, keyed, lasting, first, stride
):
    """No change is read twice or left out, and a repeated epoch has the same rows."""
    shop = Shop(spark, keyed)
    shop.customers = {0: "north", 1: "south"}
    if lasting:
        flow = Dataflow.open(tmp_path / "store", shop.program, spark=spark, buckets=2)
    else:
        flow = Dataflow(spark, buckets=2)
        shop.program(flow)
    flow.catch_up()
    for at in count(first, stride):
        shop.add((at, at % 2, at), (-at - 1, 1, 1))
        if at % 3:
            shop.remove(shop.orders[0])
        if at % 4 == 0:
            shop.customers[at % 3] = ["north", "east"][at // 4 % 2]
        with Fault(error, at) as fault:
            try:
                flow.catch_up()
            except (error, SinkError, SourceError, StepError):
                pass
        flow.catch_up()
        assert shop.target.snapshot() == shop.expected(), at
        assert shop.target.calls == sorted(shop.target.calls)
        if not fault.hit:
            break
    assert at > 60
    flow.close()


def test_a_step_that_fails_before_it_begins(spark, monkeypatch):
    """The original error is raised: no operator ran, so no update can be the cause."""
    shop = Shop(spark)
    shop.customers = {0: "north", 1: "south"}
    with Dataflow(spark, buckets=2) as flow:
        shop.program(flow)
        flow.catch_up()
        shop.add((1, 1, 1))
        with monkeypatch.context() as patch:
            patch.setattr(flow, "_check_zone", mock.Mock(side_effect=OSError("no reply")))
            with pytest.raises(OSError, match="no reply"):
                flow.catch_up()
        flow.catch_up()
        assert shop.target.snapshot() == shop.expected()


def test_two_threads_catch_up(spark, tmp_path):
    shop = Shop(spark)
    shop.customers = {0: "north", 1: "south"}
    with Dataflow.open(tmp_path / "store", shop.program, spark=spark, buckets=2) as flow:
        with ThreadPoolExecutor(3) as threads:
            for night in range(8):
                shop.add((night, night % 2, night))
                for done in [threads.submit(flow.catch_up) for _ in range(3)]:
                    done.result(60)
                assert shop.target.snapshot() == shop.expected()
        assert len(shop.target.calls) == len(set(shop.target.calls)) <= 8


@pytest.mark.classic_only("counts with an accumulator of Spark's context")
def test_a_few_rows_are_evaluated_once(spark):
    """A step evaluates each frame once, so that a changing view is one table to it.

    The error of the step also names the record that failed.
    """
    evaluated, log = spark.sparkContext.accumulator(0), Log("id int, customer int, amount int")

    def counted(batches):
        for batch in batches:
            evaluated.add(batch.num_rows)
            yield batch

    rows = spark.createDataFrame([(1, 1, 0), (2, 1, 5)], ORDERS)
    with Dataflow(spark, runner="local") as flow:
        orders = flow.source("orders", log)
        orders.select("id", (F.lit(10) % F.col("amount")).alias("share")).keep("shares")
        log.changes.append(Inserts(rows.mapInArrow(counted, ORDERS)))
        with pytest.raises(StepError, match=r"\(1, 1, 0\)|id=1"):
            flow.catch_up()
        assert evaluated.value == 2


def test_a_checked_source_refuses_to_remove_a_row_that_is_not_there(spark):
    log = Log("n int")
    log.changes.append(Inserts([(1,), (2,)]))
    with Dataflow(spark, runner="local") as flow:
        rows = flow.source("rows", log, check=True).keep()
        flow.catch_up()
        log.changes.append(Removes([(9,)]))
        with pytest.raises(NegativeMultiplicityError, match="input 'rows' at time 1.*diff -1"):
            flow.catch_up()
        assert sorted(row.n for row in rows.at().collect()) == [1, 2]
        log.changes.append(Inserts([(9,)]))
        flow.catch_up()
        assert sorted(row.n for row in rows.at().collect()) == [1, 2]
