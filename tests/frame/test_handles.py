"""Columns of a frame, ``df["x"]`` and ``df.x``, have the same meaning as in PySpark.

    f(frame, columns of the frame) at t  ==  f(table at t, columns of the table)
"""

from __future__ import annotations

from collections import Counter

import pytest
from plain import local_frame
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from pyspark_diff import Dataflow, DiffFrame, SchemaError

EDGES = [(1, 2, 0.5), (2, 3, 1.5), (3, 1, 2.5), (1, 2, 0.5), (None, 1, 1.0), (3, None, 0.0)]
PEOPLE = [(1, "a", 1), (2, "b", None), (3, None, 3), (3, "c", 4)]
SCHEMAS = {"edges": "src int, dst int, `a b` double", "people": "Id int, name string, dst int"}
ROWS = {"edges": EDGES, "people": PEOPLE}


@pytest.fixture(scope="module")
def tables(spark):
    return [local_frame(spark, ROWS[name], SCHEMAS[name]) for name in ("edges", "people")]


@pytest.fixture(scope="module")
def frames(tables):
    return [DiffFrame(t.withColumns({"time": F.lit(0), "diff": F.lit(1)})) for t in tables]


def derived(e):
    filtered = e.where(e.src > 1)
    return filtered.select(e.src, filtered["a b"], (e.dst + filtered.src).alias("more"))


def far(e, p):
    joined = e.join(p, e.src == p.Id)
    return joined.where(p.name != "x").select(e.dst, p.dst.alias("other"), (e["a b"] * 2))


#: Operations on frames of edges and people, of this library or of PySpark.
DONE = {
    "select": lambda e, p: e.select(e.src, e["dst"], e["a b"]),
    "names of fields": lambda e, p: e.select(
        F.struct(e.src, e["a b"]), F.to_json(F.struct(e["DST"], F.struct(e.src).alias("s")))),
    "names of zipped arrays": lambda e, p: (lambda a: a.select(F.arrays_zip(a.x, a.y)))(
        e.select(F.array("src").alias("x"), F.array("dst").alias("y"))),
    "fields of both sides": lambda e, p: e.join(
        p, F.to_json(F.struct(e.src)) == F.to_json(F.struct(p.Id.alias("src")))
    ).select(F.struct(e.src, p.name)),
    "names of results": lambda e, p: e.select(
        e.src + 1, e.src.cast("string"), e["a b"] + e.dst, F.upper(e.dst.cast("string")), -e.src,
        F.coalesce(e.src, e.dst),
    ),
    "another case": lambda e, p: p.select(p["ID"], p["NAME"], p["id"] + 1),
    "by number": lambda e, p: e.select(e[0], e[-1]),
    "list": lambda e, p: e[["src", "a b"]],
    "list of columns": lambda e, p: e[[e.src, e.dst + 1]],
    "condition": lambda e, p: e[e.src > 1],
    "conditions": lambda e, p: e[(e.src > 1) & e.dst.isNotNull() | (e["a b"] == 0.5)],
    "where": lambda e, p: e.where(e["src"] == e["dst"] - 1),
    "star": lambda e, p: e.select("*", (e.src + 1).alias("m")),
    "its star": lambda e, p: e.select(e["*"]),
    "star of a column": lambda e, p: e.select(F.col("*"), e.src),
    "withColumn": lambda e, p: e.withColumn("src", e.src * 2),
    "withColumns": lambda e, p: e.withColumns({"SRC": e.dst, "m": e.src}),
    "drop": lambda e, p: e.drop(e.src, F.col("DST")),
    "of an earlier one": lambda e, p: derived(e),
    "of an earlier one, after others": lambda e, p: e.distinct().dropna().withColumn(
        "dst", e.dst + 1
    ).select(e.src, e["a b"], "dst"),
    "of a union": lambda e, p: e.union(e).select(e.src),
    "groupBy": lambda e, p: e.groupBy(e.src).agg(F.sum(e.dst), F.max(e["a b"] + 1), F.count("*")),
    "groupBy an expression": lambda e, p: e.groupBy((e.src % 2)).agg(F.count(e.dst).alias("n")),
    "key of a group": lambda e, p: e.groupBy("src").agg(F.count("*").alias("n")).select(
        e.src, "n"
    ),
    "agg": lambda e, p: e.agg(F.sum(e.src), F.countDistinct(e.src, e.dst)),
    "join": lambda e, p: e.join(p, e.src == p.Id),
    "join of two conditions": lambda e, p: e.join(p, [e.src == p.Id, e.dst == p.dst]),
    "join with more": lambda e, p: e.join(p, (e.src == p.Id) & (e["a b"] < p.dst), "left"),
    "join with more, full": lambda e, p: e.join(p, (p.Id == e.src) & (e.dst < p.dst), "full"),
    "semi join with more": lambda e, p: e.join(p, (p.Id == e.src) & (e.dst < p.dst), "left_semi"),
    "join and drop": lambda e, p: e.join(p, e.dst == p.dst).drop(p.dst, p.Id),
    "join and drop the left": lambda e, p: e.join(p, e.dst == p.dst).drop(e.dst).distinct(),
    "join and take": lambda e, p: far(e, p),
    "join and its star": lambda e, p: e.join(p, e.src == p.Id).select(p["*"], e.src),
    "join by name": lambda e, p: e.join(p, "dst").select(e.dst, e.src, p.name),
    "join by name, left": lambda e, p: e.join(p, "dst", "left").select(e.dst, p.Id),
    "join by name, right": lambda e, p: e.join(p, "dst", "right").select(p.dst, e.src),
    "join by name, either": lambda e, p: e.join(p, "dst").select(e.dst, p.dst.alias("other")),
    "expressions of keys": lambda e, p: e.join(p, e.src + 1 == p.Id * 2, "left"),
    "grouped after": lambda e, p: e.join(p, e.src == p.Id).groupBy(p.name).agg(F.sum(e.dst)),
    "unpivot": lambda e, p: e.select("src", "dst").unpivot([e.src], [e.dst], "what", "value"),
}


@pytest.mark.parametrize("done", [
    pytest.param(name, marks=pytest.mark.classic_only(
        "a client's e.union(e).select(e.src) is refused by the server"
    )) if name == "of a union" else name for name in DONE
])
def test_what_is_done_is_what_pyspark_does(tables, frames, done):
    expected, actual = DONE[done](*tables), DONE[done](*frames)
    assert actual.columns == expected.columns
    assert [kind for _, kind in actual.dtypes] == [kind for _, kind in expected.dtypes]
    at = actual.at(0)
    assert at.columns == expected.columns
    assert Counter(map(str, at.collect())) == Counter(map(str, expected.collect()))


@pytest.mark.parametrize("runner", ["local", "spark"])
def test_kept_up_to_date(spark, runner):
    def program(edges):
        a, b = edges.alias("a"), edges.toDF("src", "dst")
        paths = a.join(b, (a.dst == b.src) & (a.src != b.dst)).select(a.src, b.dst)
        degrees = edges.groupBy(edges.src).agg(F.count("*").alias("n"))
        return paths.join(degrees, paths.src == degrees.src).where(degrees.n > 1).select(
            paths.dst, (degrees.n + 1).alias("m")
        )

    def expected(rows):
        degrees = Counter(src for src, _ in rows)
        return sorted(
            (d, degrees[a] + 1) for a, b in rows for c, d in rows
            if b == c and a != d and degrees[a] > 1
        )

    with Dataflow(spark, runner=runner, buckets=2) as flow:
        edges, session = flow.input("edges", "src int, dst int")
        output = program(edges).keep()
        rows = [(1, 2), (2, 3), (1, 4), (3, 1), (2, 1)]
        for time, (new, gone) in enumerate([(rows, []), ([(4, 5)], [(1, 2)]), ([(1, 3)], [])]):
            session.insert(new)
            session.remove(gone) if gone else None
            session.advance_to(time + 1)
            session.flush()
            flow.step()
            rows = [row for row in (rows if time == 0 else rows + new) if row not in gone]
            assert sorted(map(tuple, output.at(time).collect())) == expected(rows)


def test_in_a_loop(spark):
    rows = [(1, 2, 0, 1), (2, 3, 0, 1), (3, 4, 1, 1)]
    edges = DiffFrame(spark.createDataFrame(rows, "src int, dst int, time int, diff int"))
    roots = edges.where(edges.src == 1).select(edges.src.alias("node"))

    def body(nodes):
        return nodes.join(edges, nodes.node == edges.src).select(
            edges.dst.alias("node")
        ).union(roots).distinct()

    reached = roots.iterate(body)
    assert [sorted(row.node for row in reached.at(t).collect()) for t in (0, 1)] == [
        [1, 2, 3], [1, 2, 3, 4]
    ]
    assert reached.where(reached.node > 2).at(0).collect() == [(3,)]


def test_first_records_by_a_column(frames):
    e, p = frames
    assert e.top_k(1, by=e.src.desc(), per="dst").select(e.src).at(0).count() == 4
    assert p.top_k(1, p.Id).at(0).collect() == [(1, "a", 1)]
    assert e.dropDuplicates(["src"], order=[e.dst.desc(), e["a b"]]).at(0).count() == 4


def test_a_collection_joined_with_itself(frames, spark):
    e, _ = frames
    for wrong in (
        lambda: e.join(e, e.src == e.dst),
        lambda: e.alias("a").join(e.alias("b"), e.src == F.col("b.dst")),
        lambda: e.where(e.src > 1).join(e.where(e.src > 0), e.src == e.dst),
        lambda: e.join(e, "src").select(e.dst),
        lambda: e.alias("a").join(e.alias("b"), "src").drop(e.dst),
    ):
        with pytest.raises(SchemaError, match=r"column '(src|dst)' of .* more than once.*alias"):
            wrong()
    table = spark.createDataFrame(EDGES, SCHEMAS["edges"])
    a, b = e.alias("a"), e.alias("b")
    x, y = table.alias("a"), table.alias("b")
    expected = x.join(y, (F.col("a.dst") == F.col("b.src"))).select("a.src", "b.dst")
    for actual in (
        a.join(b, a.dst == b.src).select(a.src, b["dst"]),
        e.join(b, e.dst == b.src).select(e.src, b.dst),
        b.join(e, e.dst == b.src).select(e.src, b.dst).select("src", "dst"),
        e.join(e.where(F.lit(True)).alias("f"), e.dst == F.col("f.src")).select(e.src, "f.dst"),
    ):
        assert Counter(actual.at(0).collect()) == Counter(expected.collect())
        assert actual.columns == ["src", "dst"]


def test_columns_of_other_frames_are_refused(frames):
    e, p = frames
    changed = e.withColumn("src", e.src + 1)
    for wrong in (
        lambda: e.select(p.Id), lambda: e.where(p.Id > 1), lambda: e.groupBy(p.Id).count(),
        lambda: e.agg(F.sum(p.Id)), lambda: e.withColumn("m", p.Id), lambda: e.drop(p.Id),
        lambda: e.top_k(1, p.Id.desc()), lambda: e[p.Id > 1], lambda: e.withColumns({"m": p.Id}),
        lambda: e.join(e.alias("b"), p.Id == F.col("b.src")),
    ):
        with pytest.raises(SchemaError, match=r"'Id' of .*\[Id, name, dst\] is none of .*\[src, d"):
            wrong()
    for wrong in (
        lambda: changed.select(e.src), lambda: e.toDF("a", "b", "c").select(e.src),
        lambda: e.drop("src").where(e.src > 1), lambda: e.withColumnRenamed("src", "x")[[e.src]],
        lambda: e.groupBy("dst").count().select(e.src),
        lambda: e.select(F.lit("src")).select(e.src),
        lambda: e.select("dst").select(e["*"]),
        lambda: p.toDF("src", "n", "m").join(e, "src", "left").select(e.src),
        lambda: e.join(p.toDF("src", "n", "m"), "src", "full").select(e.src),
    ):
        with pytest.raises(SchemaError, match="'src' of .* changed, renamed or dropped"):
            wrong()
    with pytest.raises(SchemaError, match="no column 'nosuch'.*the columns are src, dst, a b"):
        e["nosuch"]
    with pytest.raises(SchemaError, match="no column number 3"):
        e[3]
    with pytest.raises(SchemaError, match="a frame takes the name or number.*1.5"):
        e[1.5]
    with pytest.raises(SchemaError, match="more than one column is called dst"):
        e.join(p, e.src == p.Id)["dst"]


def test_methods_and_hints_come_before_columns(spark):
    frame = DiffFrame(spark.createDataFrame(
        [(1, 2, 3, 0, 1)], "count int, first int, _x int, time int, diff int"
    ))
    assert callable(frame.count)
    with pytest.raises(AttributeError, match=r"\.at\(t\)\.first.*the column is frame\['first'\]"):
        frame.first
    assert frame.select(frame._x, frame["first"], frame["count"]).at(0).collect() == [(3, 2, 1)]
    with pytest.raises(AttributeError, match="COUNT"):
        frame.COUNT


def test_what_looks_like_a_handle_is_none(frames, spark):
    e, p = frames
    # Connect puts the name in quotes.
    shown = str(e.src)[len("Column<'"):-2].strip("`")
    assert shown.startswith("src#")
    texts = p.where(F.col("name") != F.lit(shown)).select(F.lit(shown).alias("text"))
    assert texts.at(0).distinct().collect() == [(shown,)]
    assert e.select(F.lit(shown) == e.src.cast("string"), e.src).at(0).count() == 6


def test_fields_and_names_with_dots(spark):
    frame = spark.createDataFrame([((1, 2), 5)], "s struct<f: int, g: int>, `a.b` int")
    ours = DiffFrame(frame.withColumns({"time": F.lit(0), "diff": F.lit(1)}))
    for df in (frame, ours):
        fields = df.select(df["s.f"], df.s.g, df["`a.b`"], df["s"]["f"] + 1)
        assert fields.columns == ["f", "s.g", "a.b", "(s.f + 1)"]
    assert fields.at(0).collect() == [(1, 2, 5, 2)]
    assert ours.select(ours["a.b"]).at(0).collect() == [(5,)]
    with pytest.raises(Exception, match="nosuch"):
        ours["s.nosuch"]


def test_names_where_case_matters(another):
    another.conf.set("spark.sql.caseSensitive", "true")
    frame = DiffFrame(another.createDataFrame([(1, 0, 1)], "k int, time int, diff int"))
    assert frame.select(frame["k"]).columns == ["k"]
    with pytest.raises(SchemaError, match="no column 'K'"):
        frame["K"]
    assert frame.drop(F.col("K")).columns == ["k"]


#: Operations that change columns of `k int, x double, s string`, and the unchanged columns.
CHANGED = {
    "dropna": (lambda df: df.dropna(), "k x s"),
    "fillna of numbers": (lambda df: df.fillna(0), "s"),
    "fillna of text": (lambda df: df.fillna("none"), "k x"),
    "fillna of a subset": (lambda df: df.fillna(0, subset=["x", "s"]), "k s"),
    "fillna of a dict": (lambda df: df.fillna({"k": 0}), "x s"),
    "replace": (lambda df: df.replace(1, 2), "s"),
    "replace in a subset": (lambda df: df.replace(1, 2, "k"), "x s"),
    "replace text": (lambda df: df.replace({"a": "b"}), "k x"),
    "fillna, then more": (lambda df: df.fillna(0).distinct().where("k > 0"), "s"),
}


@pytest.mark.parametrize("changed", CHANGED)
def test_columns_that_a_value_was_put_into_are_others(spark, changed):
    done, same = CHANGED[changed]
    rows = [(1, None, "a"), (None, 1.0, None), (2, 3.0, "c")]
    table = spark.createDataFrame(rows, "k int, x double, s string")
    ours = DiffFrame(table.withColumns({"time": F.lit(0), "diff": F.lit(1)}))
    expected, actual = done(table), done(ours)
    for name in "kxs":
        if name in same.split():
            assert expected.select(table[name]).columns == [name]
            assert actual.select(ours[name]).columns == [name]
            continue
        with pytest.raises(AnalysisException, match="MISSING_ATTRIBUTES|CANNOT_RESOLVE_DATAFRAME"):
            expected.select(table[name]).columns
        with pytest.raises(SchemaError, match=f"'{name}' of .* changed, renamed or dropped"):
            actual.select(ours[name])
    at = actual.where(actual.k > 0).select(actual["s"], actual.x).at(0)
    assert Counter(at.collect()) == Counter(expected.where("k > 0").select("s", "x").collect())
