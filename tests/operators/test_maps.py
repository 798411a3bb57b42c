"""Maps are equal if they have the same entries, in whichever order: as Spark groups them.

    m == n   =>   every expression has one value of both, and both are one record, key and value
"""

from __future__ import annotations

import math
from collections import Counter

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F

from pyspark_diff import Dataflow, DiffFrame
from pyspark_diff.errors import SchemaError, UnsupportedTypeError
from pyspark_diff.kernels.equality import normalise

RUNNERS = ("local", pytest.param("spark", marks=pytest.mark.slow))

#: Pairs of equal maps with their entries in two orders, and maps that are equal to none.
PAIRS = [
    ({"b": 1.5, "a": -0.0}, {"a": 0.0, "b": 1.5}),
    ({"x": math.nan, "": -1.0}, {"": -1.0, "x": math.nan}),
    ({"a": 1.5, "b": 0.0}, {"b": 0.0, "a": 1.5}),
    ({}, {}), (None, None), ({"a": math.inf}, {"a": math.inf}),
]


def whole_numbers(numbers: dict[str, float] | None) -> dict[str, int | None] | None:
    """A map with the same keys and some nulls, which Spark 4.2 turns into 0.0 among doubles."""
    return numbers and {
        key: int(v) if math.isfinite(v) and v else None for key, v in numbers.items()
    }


def shown(rows: list[Row]) -> Counter[str]:
    """Rows as texts, in which the order of entries is no matter, and -0.0 is 0.0."""
    def plain(value: object) -> object:
        if isinstance(value, dict):
            return sorted((repr(plain(k)), plain(v)) for k, v in value.items())
        if isinstance(value, (list, tuple)):
            return [plain(part) for part in value]
        return value + 0.0 if isinstance(value, float) else value

    return Counter(repr(plain(row)) for row in rows)


@pytest.mark.parametrize("runner", RUNNERS)
def test_equal_maps_are_one_record_key_and_value(spark, runner):
    """Each is inserted in one order, as Python's values or by Spark, and removed in the other."""
    schema = "k int, m map<string,double>, n array<struct<m:map<string,int>>>"
    first, again = (
        [(i % 3, pair[at], [Row(m=whole_numbers(pair[at])), None]) for i, pair in enumerate(PAIRS)]
        for at in (0, 1)
    )
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        rows, feed = flow.input("rows", schema)
        maps = rows.select("m")
        outputs = {
            "kept": (rows, lambda df: df),
            "distinct": (maps.distinct(), lambda df: df.groupBy("m").count().drop("count")),
            "count": (rows.count(), lambda df: df.groupBy(*df.columns).count()),
            "by map": (
                rows.groupBy("m", "n").agg(F.sum("k"), F.min("k"), F.collect_list("k")),
                lambda df: df.groupBy("m", "n").agg(
                    F.sum("k"), F.min("k"), F.sort_array(F.collect_list("k"))),
            ),
            "of maps": (
                rows.groupBy("k").agg(F.count("m"), F.count_distinct("m")),
                lambda df: df.groupBy("k").agg(F.count("m"), F.count_distinct("m")),
            ),
            "join": (
                rows.join(rows.select("k", F.col("m").alias("w")), "k", "left"),
                lambda df: df.join(df.select("k", F.col("m").alias("w")), "k", "left"),
            ),
            "union": (rows.union(rows), lambda df: df.union(df)),
            "computed": (
                rows.select(F.to_json("m"), F.get(F.map_keys(F.col("n")[0]["m"]), F.lit(0))),
                None,
            ),
            "made": (
                rows.select(F.map_from_arrays(
                    F.array(F.col("k"), F.col("k") - 1), F.array("k", "k")).alias("x")
                ).select(F.to_json("x")), None,
            ),
            "reduce": (
                rows.reduce(lambda key, values: [(value[0],) for value, _ in values],
                            "y map<string,double>", key="k"), None,
            ),
        }
        copies = {name: frame.keep() for name, (frame, _) in outputs.items()}
        feed.insert(first)
        feed.insert(spark.createDataFrame(again, schema).repartition(1))
        flow.advance_to(1)
        whole = spark.createDataFrame([*first, *again], schema)
        for name, (_, plain) in outputs.items():
            if plain is not None:
                assert shown(copies[name].at().collect()) == shown(plain(whole).collect()), name
        feed.remove(spark.createDataFrame(first, schema).repartition(1))
        flow.advance_to(2)
        whole = spark.createDataFrame(again, schema)
        for name, (_, plain) in outputs.items():
            if plain is not None:
                assert shown(copies[name].at().collect()) == shown(plain(whole).collect()), name
        assert sum(shown(copies["computed"].at().collect()).values()) == len(PAIRS)
        feed.remove(first)
        flow.advance_to(3)
        assert {name: frame.at().collect() for name, frame in copies.items()} == dict.fromkeys(
            copies, [])


@pytest.mark.parametrize("runner", RUNNERS)
def test_functions_of_users_are_given_dicts(spark, runner):
    kind = "k int, m map<string,array<map<int,string>>>, s map<struct<a:int>,int>"
    row = (1, {"a": [{2: "x", 1: None}]}, [({"a": 2}, 5), ({"a": 1}, None)])
    updates: list[object] = []
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        rows, feed = flow.input("rows", kind)
        same = rows.flat_map(lambda row: [tuple(row)], kind).keep()
        reduced = rows.reduce(lambda key, values: [v for v, _ in values], kind[7:], key="k").keep()
        texts = rows.reduce(lambda key, values: [(repr(values),)], "v string", key="k").keep()
        rows.inspect(lambda *update: updates.append(update))
        feed.insert([row])
        flow.advance_to(1)
        plain = rows.keep()
        flow.advance_to(2)
        (text,) = texts.at().collect()
        assert text.v == (
            "[(({'a': [{1: None, 2: 'x'}]}, [({'a': 1}, None), ({'a': 2}, 5)]), 1)]"
        )
        entries = [F.to_json(c) for c in ("m", F.map_entries("s"))]
        expected = plain.at().select(*entries).collect()
        assert same.at().select(*entries).collect() == expected
        assert reduced.at().select(*entries).collect() == expected
        feed.remove([row])
        flow.advance_to(3)
        assert same.at().collect() == reduced.at().collect() == []


def test_a_late_operator_has_the_form_of_the_first(spark):
    """Kept rows fill it; later rows need the same order of entries."""
    with Dataflow(spark, runner="local") as flow:
        rows, feed = flow.input("rows", "m map<string,int>")
        rows.keep()
        feed.insert([({"b": 1, "a": 2},)])
        flow.advance_to(1)
        late = rows.select(F.map_keys("m")[0].alias("first")).keep()
        feed.remove([({"b": 1, "a": 2},)])
        feed.insert([({"d": 1, "c": 2},)])
        flow.advance_to(2)
        assert [row.first for row in late.at().collect()] == ["c"]


def test_a_result_that_is_recorded_has_one_form(spark):
    """A reduce emits a map in one order, and retracts the map that it recorded."""
    with Dataflow(spark, runner="local") as flow:
        rows, feed = flow.input("rows", "k int, n int")
        reduced = rows.reduce(
            lambda key, values: [({"z": len(values), "a": 0},)], "m map<string,int>", key="k"
        ).select(F.map_keys("m")[0].alias("first"), F.col("m")["z"].alias("z")).keep()
        for n in range(3):
            feed.insert([(1, n)])
            flow.advance_to(n + 1)
            assert [tuple(row) for row in reduced.at().collect()] == [("a", n + 1)]


def test_maps_in_keyed_inputs_constants_and_loops(spark):
    with Dataflow(spark, runner="local", keep_history=True) as flow:
        rows, feed = flow.input("rows", "k int, m map<string,int>", key="k")
        fixed = flow.constant([({"b": 1, "a": 2}, 7)], "m map<string,int>, x int")
        output = rows.keep()
        counts = rows.select("m").union(fixed.select("m")).count().keep()
        steps = rows.iterate(lambda now: now.union(
            now.where("k < 3").select((F.col("k") + 1).alias("k"), "m")
        ).distinct()).keep()
        feed.upsert([(1, {"a": 2, "b": 1})])
        flow.advance_to(1)
        assert [row["count"] for row in counts.at().collect()] == [2]
        assert sorted(row.k for row in steps.at().collect()) == [1, 2, 3]
        feed.upsert([(1, {"b": 1, "a": 2})])
        flow.advance_to(2)
        assert output.changes(since=0).collect() == []
        feed.upsert([(1, {"b": 1})])
        flow.advance_to(3)
        assert sorted(row["count"] for row in counts.at().collect()) == [1, 1]
        assert {str(row.m) for row in steps.at().collect()} == {"{'b': 1}"}


def test_maps_are_not_joined_by_nor_sorted_by(spark):
    frame = spark.sql("SELECT map('a', 1) AS m, 1 AS k, 0 AS time, 1 AS diff")
    rows = DiffFrame(frame)
    for use in (
        lambda: rows.join(rows.select("m"), "m"),
        lambda: rows.join(rows.select("m"), "m", "left_anti"),
        lambda: rows.alias("a").join(rows.alias("b"), F.col("a.m") == F.col("b.m")),
        lambda: rows.top_k(1, "m"),
        lambda: rows.groupBy("k").agg(F.min("m")).at(0),
        lambda: rows.groupBy("k").agg(F.max_by("k", "m")).at(0),
    ):
        with pytest.raises(Exception, match="(?i)map") as error:
            use()
        assert not isinstance(error.value, (pa.ArrowException, KeyError))
    with pytest.raises(UnsupportedTypeError, match="neither sorts by them nor joins by them"):
        rows.join(rows.select("m"), "m")


def test_a_key_is_once_in_a_map(spark):
    table = pa.table({"m": pa.array([[("a", 1), ("b", 2), ("a", 3)]],
                                    pa.map_(pa.string(), pa.int32()))})
    with pytest.raises(SchemaError, match="twice"):
        normalise(table["m"].chunk(0))
    with Dataflow(spark, runner="local") as flow:
        rows, feed = flow.input("rows", "m map<string,int>")
        rows.keep()
        feed.insert(table)
        with pytest.raises(SchemaError, match="twice"):
            flow.advance_to(1)


def test_maps_have_one_form_with_structs_as_times(spark):
    with Dataflow(spark, runner="local", time_type="struct<day:int,known:int>") as flow:
        rows, feed = flow.input("rows", "m map<string,int>")
        rows.keep()
        first = rows.select(F.map_keys("m")[0].alias("first")).keep()
        entries = spark.sql("SELECT map('b', 1, 'a', 2) AS m")
        feed.insert(entries)
        flow.advance_to((1, 0))
        assert [row.first for row in first.at((0, 0)).collect()] == ["a"]
        feed.remove([({"a": 2, "b": 1},)])
        flow.advance_to((2, 0))
        assert first.at((1, 0)).collect() == []


def test_maps_of_a_whole_history_have_one_form(spark):
    history = spark.sql("""
        SELECT map('b', 1, 'a', 2) AS m, 0 AS time, 1 AS diff
        UNION ALL SELECT map('a', 2, 'b', 1), 1, -1""")
    first = DiffFrame(history).select(F.map_keys("m")[0].alias("first"))
    assert sorted(map(tuple, first.to_df().collect())) == [("a", 0, 1), ("a", 1, -1)]


def test_maps_of_constants_expressions_and_functions_have_one_form(spark):
    """Each of four sources of a record has the larger key first in one of two maps."""
    kind = "m map<int,int>"

    def in_pandas(frames):
        for frame in frames:
            maps = [{b: 0, a: 0} for a, b in zip(frame["a"], frame["b"])]
            yield frame.drop(columns=["a", "b"]).assign(m=maps)

    def in_arrow(batches):
        for batch in batches:
            maps = [[(b, 0), (a, 0)] for a, b in zip(*map(pa.Array.to_pylist, batch.columns[:2]))]
            yield pa.record_batch({
                "m": pa.array(maps, pa.map_(pa.int32(), pa.int32())),
                "time": batch["time"], "diff": batch["diff"],
            })

    with Dataflow(spark, runner="local") as flow:
        rows, feed = flow.input("rows", "a int, b int")
        frames = {
            "constant": flow.constant(spark.sql("SELECT map(2, 0, 1, 0) AS m")),
            "expression": rows.select(F.map_from_arrays(
                F.array("a", "b"), F.array(F.lit(0), F.lit(0))).alias("m")),
            "flat_map": rows.flat_map(lambda row: [({row.b: 0, row.a: 0},)], kind),
            "pandas": rows.mapInPandas(in_pandas, kind),
            "arrow": rows.mapInArrow(in_arrow, kind),
        }
        firsts = {
            name: frame.select(F.map_keys("m")[0].alias("first")).distinct().keep()
            for name, frame in frames.items()
        }
        feed.insert([(1, 2), (2, 1)])
        flow.advance_to(1)
        assert {name: frame.at().collect() for name, frame in firsts.items()} == dict.fromkeys(
            frames, [Row(first=1)])
