"""The explanation of a dataflow: operators, reasons, costs, and the places of rows."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pyspark_diff import REASONS, Dataflow, DiffFrame, FullScanError, SchemaError, graphs
from pyspark_diff.engine.explanation import KEYED, LINEAR, LOOP_PART, SINK, SOURCE
from pyspark_diff.reasons import SCOPES, table
from pyspark_diff.runners.spark import SparkRunner


def _pairs(flow, name="pairs"):
    return flow.input(name, "k long, v long")


def _ranked(pairs, window):
    return pairs.select("k", "v", F.rank().over(window.orderBy("v")).alias("rank"))


#: Programs over pairs by their reason code. A code of spaces means no reason.
PROGRAMS = {
    "": lambda p: p.groupBy("k").agg(F.sum("v"), F.max("v")),
    " ": lambda p: p.where(F.col("v") > 1).distinct(),
    "  ": lambda p: p.withColumn("before", F.lag("v").over(Window.partitionBy("k").orderBy("v"))),
    "FAN_OUT": lambda p: p.join(p.withColumnRenamed("v", "w"), "k"),
    "GROUP_FUNCTION": lambda p: p.reduce(lambda k, rows: [(1,)], "one long", key="k"),
    "PARTITION_READ": lambda p: _ranked(p, Window.partitionBy("k")),
    "WHOLE_COLLECTION": lambda p: _ranked(p, Window),
    "WHOLE_SIDE": lambda p: p.crossJoin(p.select("k").toDF("other").hint("broadcast")),
    "SPARK_EVALUATION": lambda p: p.select(F.soundex(F.col("k").cast("string")).alias("s")),
    "LOOP": lambda p: graphs.connected_components(p.toDF("src", "dst")),
    "LOOP_OF_RECORDS": lambda p: p.select(F.col("k").cast("string").alias("k"), "v").iterate(
        lambda known: known.union(known.select(
            "k", F.least(F.col("v") + 1, F.lit(3)).alias("v"))).distinct()),
}


@pytest.mark.parametrize("codes", PROGRAMS)
def test_reasons(spark, codes):
    with Dataflow(spark, runner="local", buckets=2) as flow:
        pairs, _ = _pairs(flow)
        frame = PROGRAMS[codes](pairs)
        before = frame.explain()
        frame.keep()
        after = flow.explain()
    for explanation in (before, after):
        actual = {reason.code for reason in explanation.reasons}
        assert actual - {"FAN_OUT"} == {codes.strip()} - {"FAN_OUT", ""}
        assert codes != "FAN_OUT" or actual == {"FAN_OUT"}
        for reason in explanation.reasons:
            assert f"{reason.code}: {reason.text}" in " ".join(str(explanation).split())
            assert reason.code in explanation._repr_html_()


def test_every_reason_has_a_program():
    assert set(REASONS) == {codes.strip() for codes in PROGRAMS} - {""}
    assert {reason.scope for reason in REASONS.values()} == set(SCOPES)
    assert all(code == reason.code == str(reason) for code, reason in REASONS.items())


@pytest.mark.parametrize("codes", PROGRAMS)
def test_strict_refuses_what_reads_all_of_its_state(spark, codes):
    reason = REASONS.get(codes)
    with Dataflow(spark, runner="local", strict=True) as flow:
        pairs, pairs_in = _pairs(flow)
        frame = PROGRAMS[codes](pairs)
        if reason is None or reason.scope != "state":
            frame.keep()
        else:
            for show in (frame.keep, lambda: frame.inspect(print)):
                with pytest.raises(FullScanError, match=f"{codes}: .*You may {reason.advice[:9]}"):
                    show()
        # The dataflow is unchanged.
        pairs.count().keep("others")
        pairs_in.insert([(1, 2)])
        flow.advance_to(1)
        assert [tuple(row) for row in flow["others"].at().collect()] == [(1, 2, 1)]


def test_strict_stores(spark, tmp_path):
    def program(flow):
        PROGRAMS["WHOLE_SIDE"](_pairs(flow)[0]).keep("all")

    with pytest.raises(FullScanError, match="WHOLE_SIDE"):
        Dataflow.open(tmp_path / "store", program, spark=spark, strict=True)
    with Dataflow.open(tmp_path / "store", program, spark=spark) as flow:
        flow.session("pairs").insert([(1, 2)])
        flow.advance_to(1)
    with pytest.raises(FullScanError, match="WHOLE_SIDE"):
        Dataflow.open(tmp_path / "store", program, spark=spark, strict=True)


@pytest.mark.parametrize("runner", ["local", "spark"])
def test_costs_are_those_of_the_last_step(spark, runner):
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        pairs, pairs_in = _pairs(flow)
        pairs.where("v >= 0").groupBy("k").agg(F.max("v").alias("most")).keep("most")
        idle, _ = _pairs(flow, "idle")
        idle.count().keep("idle")
        assert "no step has run yet" in str(flow.explain())
        pairs_in.insert([(k, v) for k in range(20) for v in range(50)])
        flow.advance_to(1)
        load = flow.explain()
        pairs_in.insert([(3, 99)])
        flow.advance_to(2)
        change = flow.explain()
        report = flow.last_report
        table = {row.operator: row for row in change.to_df().collect()}
    assert (load.step, change.step) == (1, 2) and change.seconds == report.seconds
    for explanation in (load, change):
        forms = Counter(operator.form for operator in explanation.operators)
        assert forms[SOURCE] == 2 and forms[LINEAR] and forms[KEYED] and not forms[LOOP_PART]
    for name in ("rows_in", "rows_read", "rows_out"):
        total = sum(getattr(operator.cost, name) for operator in change.operators)
        assert total == getattr(report, name)
    busy = [operator for operator in change.operators if operator.cost.rows_in]
    places = {operator.cost.where for operator in busy}
    assert places == {"driver" if runner == "local" else "spark"}
    assert all(operator.cost.rows_in <= 2 for operator in busy) and report.rows_read < 50
    assert sum(operator.cost.rows_in for operator in load.operators) >= 1000
    first, = [
        operator for operator in load.operators
        if operator.arranged_by == ("k",) and operator.rows == 1000
    ]
    assert len(first.readers) >= 1 and table[first.name].kept_rows == 1001
    assert table[first.name].arranged_by == ["k"] and table[first.name].ran
    assert 0 < sum(operator.cost.seconds for operator in change.operators) <= change.seconds


@pytest.mark.parametrize("runner", ["local", "spark"])
def test_costs_in_loops(spark, runner):
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        edges, edges_in = flow.input("edges", "src long, dst long")
        graphs.connected_components(edges).keep("components")
        graphs.bfs(edges, [1]).inspect(lambda *_: None)
        edges_in.insert([(n, n + 1) for n in range(1, 12)])
        flow.advance_to(1)
        explanation, report = flow.explain(), flow.last_report
    inside = [
        operator for operator in explanation.operators if operator.loops and operator.cost.where
    ]
    assert {operator.form for operator in explanation.operators} >= {LOOP_PART, KEYED, SINK, SOURCE}
    assert len({operator.loops for operator in inside}) == 2
    for name in ("rows_in", "rows_out", "rows_read"):
        total = sum(getattr(operator.cost, name) for operator in explanation.operators)
        assert total == getattr(report, name)
    assert sum(operator.cost.seconds for operator in inside) > 0


def test_shared_arrangements_name_their_readers(spark):
    with Dataflow(spark, runner="local") as flow:
        pairs, _ = _pairs(flow)
        other = pairs.toDF("k", "w")
        pairs.join(other.where("w > 1"), "k").keep("one")
        pairs.join(other.where("w > 2"), "k").keep("two")
        explanation = flow.explain()
    assert max(len(operator.readers) for operator in explanation.operators) >= 2


@pytest.mark.parametrize("runner", ["local", "spark"])
def test_skew(spark, runner):
    rows = [(7, v) for v in range(300)] + [(k, k) for k in range(40)]
    with Dataflow(spark, runner=runner, buckets=4) as flow:
        pairs, pairs_in = _pairs(flow)
        pairs.groupBy("k").agg(F.max("v")).keep("most")
        pairs_in.insert(rows[:200])
        flow.advance_to(1)
        pairs_in.insert(rows[200:])
        flow.advance_to(2)
        frame = flow.explain(skew=True)
        assert isinstance(frame, DataFrame)
        filled = frame.where("rows > 0 AND arranged_by = array('k')").collect()
        empty = flow.explain(skew=True).count()
    assert empty % 4 == 0
    name = next(r.operator for r in filled if r.heaviest[0].rows > 200)
    buckets = [row for row in filled if row.operator == name]
    assert sum(row.rows for row in buckets) == 340
    heavy = max(buckets, key=lambda row: row.rows)
    assert json.loads(heavy.heaviest[0].key) == {"k": 7} and heavy.heaviest[0].rows == 301
    assert heavy.share == pytest.approx(heavy.rows / (340 / 4))
    assert (heavy.seconds is not None and heavy.rows_in > 0) == (runner == "spark")


def test_it_runs_nothing(spark, monkeypatch):
    def fail(*_, **__):
        raise AssertionError("a job")

    with Dataflow(spark, runner="local") as flow:
        pairs, pairs_in = _pairs(flow)
        joined = pairs.join(pairs.toDF("k", "w"), "k").keep()
        pairs_in.insert([(1, 2)])
        flow.advance_to(1)
        state = flow._state
        with monkeypatch.context() as patch:
            for name in ("collect", "toArrow", "toPandas", "count", "show"):
                patch.setattr(type(spark.range(1)), name, fail)
            patch.setattr(SparkRunner, "run", fail)
            for explanation in (flow.explain(), joined.explain()):
                assert str(explanation) == repr(explanation) and "join" in explanation._repr_html_()
        assert flow._state is state


def test_inside_of_a_loop_there_is_nothing_to_explain_yet(spark):
    def body(known):
        with pytest.raises(SchemaError, match="collection that leaves it"):
            known.explain()
        return known.distinct()

    history = spark.createDataFrame([(1, 0, 1)], "n long, time long, diff long")
    assert DiffFrame(history).iterate(body).explain().operators


def test_the_page_lists_the_reasons_that_there_are():
    page = (Path(__file__).parents[2] / "docs/how-to/explain.md").read_text()
    assert f"<!-- table: reasons -->\n{table()}\n<!-- end -->" in page


def test_the_text_fits_120_columns_and_starts_with_the_most_expensive(spark):
    names = [f"a_rather_long_name_of_a_column_{n}" for n in range(9)]
    with Dataflow(spark, runner="local", buckets=2) as flow:
        wide, wide_in = flow.input("wide", ", ".join(f"{name} long" for name in names))
        once = wide.groupBy(*names[:8]).count()
        for number in range(12):
            once.where(f"count > {number}").groupBy(names[number % 8]).count().keep(f"k{number}")
        wide_in.insert([(n,) * 9 for n in range(50)])
        flow.advance_to(1)
        text, full = str(flow.explain()), str(flow.explain(full=True))
        operators = flow.explain().operators
        times = sorted((operator.cost.seconds for operator in operators), reverse=True)
    assert max(map(len, text.splitlines())) <= 120 < max(map(len, full.splitlines()))
    assert f"({names[0]}, {', '.join(names[1:8])})" in full and ", +7)" in text
    first = text.splitlines()
    assert first[0] == "the most expensive operators of step 1:" and "others" in first[11]
    assert float(first[1].split()[0].replace(",", "")) == round(times[0] * 1e3, 1)
