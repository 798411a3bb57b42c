"""Floats that are equal and differ in bits: zeros of both signs, and NaN of several bits.

    operator(updates) at t  =  plain Spark's operator on the rows there, each zero without its sign

An equal row removes a row, and their bits may differ.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from test_types import CARRY, COMPARE, OWN, as_texts, nans

from pyspark_diff import Dataflow, DiffFrame, UnsupportedTypeError
from pyspark_diff.sources import snapshots, updates, upserts

RUNNERS = ("local", "spark")
#: Types, with an expression for a value of each type from a number ``x``.
SHAPES = {
    "double": "x", "float": "float(x)", "struct<x:double>": "named_struct('x', x)",
    "array<float>": "array(float(x), null)", "map<string,double>": "map('b', x, 'a', 1D)",
}
#: Operators that distinguish the two zeros, for values of each type and for numbers.
SIGNED = {
    "text": lambda d: d.select("k", F.to_json(F.struct("v")).alias("t")),
    "text as key": lambda d: d.groupBy(F.to_json(F.struct("v")).alias("t")).count(),
    "where text": lambda d: d.where(~F.to_json(F.struct("v")).contains("-")),
    "least text": lambda d: d.groupBy("k").agg(F.min(F.to_json(F.struct("v"))).alias("t")),
}
OF_NUMBER = {
    "power": lambda d: d.select("k", F.pow("v", F.lit(-1.0)).alias("p")),
    "sign": lambda d: d.where("v = 0").select("k", F.atan2("v", F.lit(-1)).alias("p")),
    "where": lambda d: d.where(F.col("v").cast("string") == "0.0"),
}


def numbers(swapped: bool) -> pa.Table:
    """Rows ``k, x, n``; ``swapped`` replaces each zero and each NaN by another form."""
    quiet, payload, negative = nans("double")
    values = [0.0, -0.0, -0.0, quiet, payload, 1.5, None]
    if swapped:
        values = [-0.0, 0.0, 0.0, negative, quiet, 1.5, None]
    mask = np.array([value is None for value in values] * 2)
    flat = np.array([0.0 if value is None else value for value in values] * 2)
    return pa.table({
        "k": pa.array([i % 3 for i in range(14)], pa.int32()),
        "x": pa.array(flat, mask=mask),
        "n": pa.array(range(14), pa.int32()),
    })


def shaped(spark: Any, kind: str, swapped: bool) -> DataFrame:
    frame = spark.createDataFrame(numbers(swapped)).where("x is not null or k <> 1")
    if "map" in kind:
        frame = frame.where("x is not null")  # as Spark 4.2 groups a null value of a map as zero
    return frame.selectExpr("k", f"CAST({SHAPES[kind]} AS {kind}) AS v", "n").coalesce(1)


def unsigned(spark: Any, kind: str) -> DataFrame:
    """The rows in plain Spark, each zero without its sign."""
    return shaped(spark, kind, False).withColumn("v", F.expr({
        "double": "v + 0D", "float": "v + 0F", "struct<x:double>": "named_struct('x', v.x + 0D)",
        "array<float>": "transform(v, y -> y + 0F)",
        "map<string,double>": "map('a', v['a'], 'b', v['b'] + 0D)",
    }[kind]))


def check(spark: Any, kind: str, runner: str, names: list[str]) -> None:
    original, swapped = shaped(spark, kind, False), shaped(spark, kind, True)
    plain = unsigned(spark, kind)
    operators = {**CARRY, **COMPARE, **SIGNED, **OF_NUMBER}
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        rows, session = flow.input("rows", original.schema)
        outputs = {}
        for name in names:
            ours, theirs = OWN[name] if name in OWN else (operators[name],) * 2
            try:
                outputs[name] = ours(rows).keep(), theirs
            except (UnsupportedTypeError, AnalysisException):
                assert name in COMPARE and "map" in kind
        assert outputs
        session.insert(original.toArrow())
        flow.advance_to(1)
        gone = "n % 2 = 0"
        for when, there in enumerate((plain, plain.where(f"NOT ({gone})")), 1):
            for name, (output, theirs) in outputs.items():
                try:
                    expected = theirs(there)
                    expected.schema
                except AnalysisException:
                    continue  # Spark has no sets of maps
                lists = name == "collect_list"
                shown = as_texts(output.at(), any_order=lists)
                assert shown == as_texts(expected, any_order=lists), (name, when)
            if when == 1:
                session.remove(swapped.where(gone))
                flow.advance_to(2)
        # An Arrow table removes the last rows.
        session.remove(swapped.where(f"NOT ({gone})").toArrow())
        flow.advance_to(3)
        assert [name for name, (output, _) in outputs.items() if output.at().count()] == []


def cases(runner: str, few: set[str]) -> list[Any]:
    return [pytest.param(kind, runner, marks=[] if kind in few else [pytest.mark.slow])
            for kind in SHAPES]


@pytest.mark.parametrize(
    ("kind", "runner"), cases("local", {"double"}) + cases("spark", set())
)
def test_a_row_is_removed_by_an_equal_one(spark, kind, runner):
    of_number = OF_NUMBER if kind in ("double", "float") else {}
    check(spark, kind, runner, [*CARRY, *COMPARE, *OWN, *SIGNED, *of_number])


def test_no_sign_is_left_in_tasks_of_spark(spark):
    check(spark, "double", "spark", [*SIGNED, *OF_NUMBER])


def test_signs_are_gone_wherever_rows_enter(spark):
    """No expression distinguishes a removal from its insertion."""
    text = F.col("x").cast("string").alias("t")
    forms = {
        "table": lambda frame: frame.toArrow(),
        "pandas": lambda frame: frame.toPandas(),
        "frame": lambda frame: frame.repartition(2),
        "rows": lambda frame: frame.collect(),
    }
    zero, minus = (spark.createDataFrame([(x,)], "x double") for x in (0.0, -0.0))
    with Dataflow(spark, runner="local", buckets=2) as flow:
        pairs = {
            f"{first} {second}": (insert, remove)
            for first, insert in forms.items() for second, remove in forms.items()
        }
        for name, (insert, _) in pairs.items():
            rows, session = flow.input(name, "x double")
            rows.select(text).keep(f"text {name}")
            session.insert(insert(minus))
        flow.advance_to(1)
        for name, (_, remove) in pairs.items():
            assert flow[f"text {name}"].at().collect() == [("0.0",)], name
            flow.session(name).remove(remove(zero))
        flow.advance_to(2)
        assert not [name for name in pairs if flow[f"text {name}"].at().count()]


def test_signs_are_gone_in_updates_constants_and_files(spark, tmp_path):
    path = str(tmp_path / "rows")
    spark.createDataFrame([(-0.0, 0, 1)], "x double, time long, diff long").write.parquet(path)
    text = F.col("x").cast("string").alias("t")
    signed = spark.read.parquet(path)
    with Dataflow(spark, runner="local", buckets=2) as flow:
        rows, session = flow.input("rows", "x double")
        scanned, from_files = flow.input("scanned", "x double")
        constant = flow.constant(pa.table({"x": [-0.0]})).select(text).keep()
        listed = flow.constant(signed.select("x")).select(text).keep()
        texts, others = rows.select(text).keep(), scanned.select(text).keep()
        session.update(signed)
        session.update(pa.table({"x": [0.0], "time": [1], "diff": [-1]}))
        from_files.insert(signed.select("x"))
        flow.advance_to(1)
        for output in (constant, listed, texts, others):
            assert output.at().collect() == [("0.0",)]
        session.update([(-0.0, 1, 1)])
        from_files.remove([(0.0,)])
        flow.advance_to(2)
        assert texts.at().collect() == [("0.0",)] and not others.at().collect()
    for frame in (signed, spark.createDataFrame([(-0.0, 0, 1)], signed.schema)):
        assert DiffFrame(frame).select(text).at(0).collect() == [("0.0",)]


#: Programs that compute a zero with a sign from one without.
COMPUTED = {
    "compiled": lambda d: d.select((-F.col("x")).alias("y")),
    "literal": lambda d: d.select(F.lit(-0.0).alias("y")),
    "withColumn": lambda d: d.withColumn("y", -F.col("x")).drop("x"),
    "by Spark": lambda d: d.select(F.round(-F.col("x"), 2).alias("y")),
    "in an array": lambda d: d.select(F.array(-F.col("x"))[0].alias("y")),
    "flat_map": lambda d: d.flat_map(lambda row: [(-row.x,)], "y double"),
    "mapInPandas": lambda d: d.mapInPandas(
        lambda parts: (part.assign(y=-part.x).drop(columns="x") for part in parts), "y double"),
    "reduce": lambda d: d.withColumn("k", F.lit(1)).reduce(
        lambda key, values: [(-value[0],) for value, _ in values], "y double", "k").select("y"),
    "sum": lambda d: d.groupBy("x").agg((-F.sum("x")).alias("y")).select("y"),
    "min": lambda d: d.groupBy("x").agg(F.min(-F.col("x")).alias("y")).select("y"),
}


@pytest.mark.parametrize("runner", RUNNERS)
def test_computed_zeros_have_no_sign(spark, runner):
    """A later operator reads stored rows and then new updates: both have one form."""
    text = F.col("y").cast("string").alias("t")
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        rows, session = flow.input("rows", "x double")
        frames = {name: make(rows) for name, make in COMPUTED.items()}
        outputs = {name: frame.keep(name) for name, frame in frames.items()}
        texts = {name: frame.select(text).keep() for name, frame in frames.items()}
        session.insert([(0.0,)])
        flow.advance_to(1)
        later = {name: output.select(text).keep() for name, output in outputs.items()}
        session.insert([(1.0,)])
        flow.advance_to(2)
        session.remove([(-0.0,)])
        flow.advance_to(3)
        for name, output in outputs.items():
            wanted = [("0.0",)] if name == "literal" else [("-1.0",)]
            assert texts[name].at().collect() == wanted, name
            assert later[name].at().collect() == wanted, name
            assert math.copysign(1, output.at().first()[0]) == (1 if name == "literal" else -1)


def test_keys_of_upserts_and_snapshots(spark, tmp_path):
    quiet, payload, _ = nans("double")
    text = F.concat_ws(" ", F.col("k").cast("string"), F.col("v").cast("string")).alias("t")

    def program(flow):
        rows, _ = flow.input("rows", "k double, v double", key="k")
        rows.select(text).keep("texts")
        rows.keep("rows")

    def texts(flow):
        return sorted(row.t for row in flow["texts"].at().collect())

    flow = Dataflow.open(tmp_path / "store", program, spark=spark, runner="local")
    flow.session("rows").upsert(pa.table({"k": [-0.0, payload], "v": [-0.0, 1.0]}))
    flow.advance_to(1)
    assert texts(flow) == ["0.0 0.0", "NaN 1.0"]
    flow.session("rows").upsert(pa.table({"k": [0.0, quiet], "v": [0.0, 2.0]}))
    flow.advance_to(2)
    assert texts(flow) == ["0.0 0.0", "NaN 2.0"]
    flow.close()
    flow = Dataflow.open(tmp_path / "store", program, spark=spark, runner="local")
    frame = spark.createDataFrame(pa.table({"k": [0.0, quiet], "v": [3.0, -0.0]})).repartition(2)
    flow.session("rows").upsert(frame)
    flow.advance_to(3)
    assert texts(flow) == ["0.0 3.0", "NaN 0.0"]
    flow.session("rows").delete(pa.table({"k": [-0.0]}))
    flow.advance_to(4)
    assert texts(flow) == ["NaN 0.0"]
    flow.close()


#: The key and the value of the only row after each reading, and its text.
READINGS = [((-0.0, -0.0), "0.0 0.0"), ((0.0, 0.0), "0.0 0.0"), ((-0.0, 2.0), "0.0 2.0")]


@pytest.mark.parametrize("kind", ["snapshots", "snapshots by key", "upserts", "updates"])
def test_sources(spark, kind):
    rows: list[Any] = []

    def table(columns):
        return lambda: spark.createDataFrame(rows, columns).repartition(1)

    source = {
        "snapshots": lambda: snapshots(table("k double, v double")),
        "snapshots by key": lambda: snapshots(table("k double, v double"), key="k"),
        "upserts": lambda: upserts(table("k double, v double, n long"), key="k", order="n"),
        "updates": lambda: updates(table("k double, v double, time long, diff long")),
    }[kind]()
    with Dataflow(spark, runner="local", buckets=2) as flow:
        read = flow.source("rows", source)
        text = F.concat_ws(" ", F.col("k").cast("string"), F.col("v").cast("string"))
        texts = read.select(text.alias("t")).keep()
        for number, (row, wanted) in enumerate(READINGS):
            if kind == "upserts":
                rows = [*rows, (*row, number)]
            elif kind == "updates":
                gone = READINGS[number - 1][0] if number else None
                back = [] if gone is None else [(-gone[0], -gone[1] or 0.0, number, -1)]
                rows = [*rows, *back, (*row, number, 1)]
            else:
                rows = [row]
            flow.catch_up()
            assert [row.t for row in texts.at().collect()] == [wanted], number


def test_a_store_that_is_opened_again_and_compacted(spark, tmp_path):
    text = F.col("x").cast("string").alias("t")

    def program(flow):
        rows, _ = flow.input("rows", "x double")
        rows.keep("rows")
        rows.select(text).keep("texts")
        rows.select((-F.col("x")).alias("y")).keep("minus")

    def more(flow):
        program(flow)
        flow["minus"].select(F.col("y").cast("string").alias("t")).keep("later")

    flow = Dataflow.open(tmp_path / "store", program, spark=spark, runner="local")
    flow.session("rows").insert([(-0.0,), (0.0,), (-0.0,)])
    flow.advance_to(1)
    for time in range(2, 8):
        flow.session("rows").insert([(1.0,)])
        flow.session("rows").remove([(1.0,)])
        flow.advance_to(time)
    flow.close()
    flow = Dataflow.open(tmp_path / "store", more, spark=spark, runner="local", on_change="extend")
    flow.session("rows").remove([(0.0,)])
    flow.advance_to(10)
    for name in ("rows", "texts", "minus", "later"):
        shown = Counter(str(row[0]) for row in flow[name].at().collect())
        assert shown == {"0.0": 2}, name
    flow.session("rows").remove([(0.0,), (-0.0,)])
    flow.advance_to(11)
    assert not any(flow[name].at().count() for name in ("rows", "texts", "minus", "later"))
    flow.close()
