"""Each method looks up names in another case as ``spark.sql.caseSensitive`` demands.

    f(frame, names in another case)  ==  f(frame, names in their case),  or refused if case matters
"""

from __future__ import annotations

from collections import Counter
from functools import reduce

import pyarrow as pa
import pytest
from connect_server import in_sql_text
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from pyspark_diff import Dataflow, DiffFrame, SchemaError, graphs

EDGES = "src long, Dst long, w double"
ROWS = [(1, 2, 0.5), (2, 3, None), (2, 3, 1.5), (None, 1, 1.0), (3, 1, 2.0)]

#: Operations on two frames with the columns of `EDGES`. ``n`` spells the names, ``o`` is the other
#: frame with the names spelled by ``n``, and ``p`` is a plain Spark frame.
DONE = {
    "select": lambda a, o, p, n: a.select(n("src"), F.col(n("Dst"))),
    "select one": lambda a, o, p, n: a.select(n("src")),
    "item": lambda a, o, p, n: a.select(a[n("src")]),
    "items": lambda a, o, p, n: a[[n("src"), n("Dst")]],
    "selectExpr": lambda a, o, p, n: a.selectExpr(f"{n('src')} + 1 AS m", n("Dst")),
    "where": lambda a, o, p, n: a.where(f"{n('src')} > 1"),
    "filter": lambda a, o, p, n: a.filter(F.col(n("src")) > 1),
    "withColumn of": lambda a, o, p, n: a.withColumn("m", F.col(n("src")) + 1),
    "withColumns of": lambda a, o, p, n: a.withColumns({"m": F.col(n("src")) + 1}),
    "transform": lambda a, o, p, n: a.transform(lambda df: df.where(F.col(n("src")) > 1)),
    "dropna": lambda a, o, p, n: a.dropna(subset=[n("w")]),
    "na.drop": lambda a, o, p, n: a.na.drop(subset=n("w")),
    "fillna": lambda a, o, p, n: a.fillna(7, subset=[n("w")]),
    "fillna of a dict": lambda a, o, p, n: a.fillna({n("w"): 7.0}),
    "na.fill": lambda a, o, p, n: a.na.fill(7, n("w")),
    "unpivot": lambda a, o, p, n: a.unpivot([n("w")], [n("src"), n("Dst")], "name", "value"),
    "melt": lambda a, o, p, n: a.melt(n("src"), n("Dst"), "name", "value"),
    "unpivot the rest": lambda a, o, p, n: a.select("src", "Dst").unpivot(
        n("src"), None, "name", "value"
    ),
    "groupBy": lambda a, o, p, n: a.groupBy(n("src")).agg(F.sum(n("Dst")), F.max(n("w"))),
    "groupBy and sum": lambda a, o, p, n: a.groupBy(n("src")).sum(n("Dst")),
    "groupby of a list": lambda a, o, p, n: a.groupby([n("src"), n("Dst")]).count(),
    "agg of a dict": lambda a, o, p, n: a.groupBy("src").agg({n("Dst"): "sum"}),
    "agg": lambda a, o, p, n: a.agg(F.count(n("w")), F.expr(f"sum({n('src')}) + 1")),
    "rollup": lambda a, o, p, n: a.rollup(n("src")).agg(F.sum(n("Dst"))),
    "cube": lambda a, o, p, n: a.cube(n("src"), n("Dst")).count(),
    "groupingSets": lambda a, o, p, n: a.groupingSets([[n("src")], []], n("src")).count(),
    "pivot": lambda a, o, p, n: a.groupBy("Dst").pivot(n("src"), [1, 2]).sum("w"),
    "group and reduce": lambda a, o, p, n: a.groupBy(n("src")).reduce(reduced, "n long"),
    "reduce": lambda a, o, p, n: a.reduce(reduced, "n long", key=[n("src")]),
    "top_k": lambda a, o, p, n: a.top_k(1, by=n("w"), per=n("Dst")),
    "top_k by a column": lambda a, o, p, n: a.top_k(1, by=F.col(n("w")).desc()),
    "dropDuplicates": lambda a, o, p, n: a.dropDuplicates([n("src")]).select("src"),
    "drop_duplicates by an order": lambda a, o, p, n: a.drop_duplicates([n("src")], order=n("w")),
    "weighted": lambda a, o, p, n: a.select("src", "Dst").weighted(n("Dst")).count(),
    "arrange_by_key": lambda a, o, p, n: a.arrange_by_key(n("src")),
    "join by a name": lambda a, o, p, n: a.join(o.select(n("Dst")), n("Dst")),
    "join by names": lambda a, o, p, n: a.join(o, [n("src"), n("Dst")], "left"),
    "join, full": lambda a, o, p, n: a.select("src").join(o.select(n("src")), "src", "full"),
    "join a plain frame": lambda a, o, p, n: a.join(p, a[n("src")] == p.y),
    "join by alias": lambda a, o, p, n: a.alias("l").join(
        o.alias("r"), F.col(f"l.{n('Dst')}") == F.col("r." + n("src"))
    ).select(f"l.{n('src')}"),
    "semijoin": lambda a, o, p, n: a.semijoin(o, n("src")),
    "semijoin by all": lambda a, o, p, n: a.semijoin(o.select(n("src"))),
    "antijoin": lambda a, o, p, n: a.antijoin(o.where(f"{n('src')} > 1"), [n("src")]),
    "unionByName": lambda a, o, p, n: a.unionByName(o),
    "concat": lambda a, o, p, n: a.concat(o.select(n("Dst"), n("w"), n("src"))),
    "iterate": lambda a, o, p, n: a.select("src").iterate(lambda x: x.toDF(n("src")).distinct()),
    "enter_at": lambda a, o, p, n: a.select("src").iterate(
        lambda x: a.select("src").where("src is not null").enter_at(n("src")).union(x).distinct()
    ),
    "edges_of": lambda a, o, p, n: graphs.edges_of(a, src=n("src"), dst=n("Dst")),
    "edges of a plain frame": lambda a, o, p, n: graphs.bfs(
        a.select("src", "Dst"), p.select(F.col("y").alias(n("node"))), src="src", dst=n("Dst")
    ),
    "nodes of a frame": lambda a, o, p, n: graphs.connected_components(
        a.dropna().select("src", "Dst"), p.select(F.col("y").alias(n("id"))), dst=n("Dst")
    ),
}
#: Operations that ignore an unknown column in PySpark, or add a new column.
LENIENT = {
    "drop": lambda a, o, p, n: a.drop(n("src"), n("w")),
    "drop a column": lambda a, o, p, n: a.drop(F.col(n("src"))),
    "withColumnRenamed": lambda a, o, p, n: a.withColumnRenamed(n("src"), "m"),
    "withColumnsRenamed": lambda a, o, p, n: a.withColumnsRenamed({n("Dst"): "m"}),
    "withColumn": lambda a, o, p, n: a.withColumn(n("src"), F.lit(1)),
    "withColumns": lambda a, o, p, n: a.withColumns({n("src"): F.lit(1), "m": F.lit(2)}),
    "unionByName with other columns": lambda a, o, p, n: a.unionByName(o, True),
    "unionByName with fewer": lambda a, o, p, n: a.unionByName(
        o.select(n("Dst"), n("w")), allowMissingColumns=True
    ),
    "equal names": lambda a, o, p, n: a.union(o).exceptAll(a).intersectAll(o),
}


def reduced(key, values):
    return [(sum(weight for _, weight in values),)]


def spelled(name: str) -> str:
    return name.upper() if name.upper() != name else name.lower()


def same(name: str) -> str:
    return name


@in_sql_text
def test_names_in_another_case_are_found(spark):
    plain = spark.createDataFrame([(1,), (3,)], "y long")
    with Dataflow(spark, runner="local", buckets=1) as flow:
        a, a_in = flow.input("a", EDGES)
        other = {same: a.where("w > 0.7"), spelled: a.where("w > 0.7").toDF("SRC", "DST", "W")}
        outputs = {}
        for name, done in {**DONE, **LENIENT}.items():
            for n, o in other.items():
                outputs[name, n] = done(a, o, plain, n).keep()
        a_in.insert(ROWS)
        flow.advance_to(1)
        results: dict[str, list[tuple[Counter[str], list[str]]]] = {}
        for n in (same, spelled):
            rows = all_rows({name: outputs[name, n].at() for name in {**DONE, **LENIENT}})
            for name, counted in rows.items():
                columns = [column.lower() for column in outputs[name, n].columns]
                results.setdefault(name, []).append((counted, columns))
        for name in {**DONE, **LENIENT}:
            expected, answer = results[name]
            assert answer == expected and expected[0], name


def all_rows(frames):
    """The rows of several frames, read by one job. The names of columns are in lower case."""
    named = []
    for name, frame in frames.items():
        frame = frame.toDF(*[f"c{i}" for i in range(len(frame.columns))])
        row = F.lower(F.to_json(F.struct("*"), {"ignoreNullFields": "false"}))
        named.append(frame.select(F.lit(name).alias("name"), row.alias("row")))
    counts = {name: Counter() for name in frames}
    for name, row in reduce(DataFrame.union, named).coalesce(1).collect():
        counts[name][row] += 1
    return counts


def test_names_in_another_case_are_refused_where_case_matters(another):
    another.conf.set("spark.sql.caseSensitive", "true")
    plain = another.createDataFrame([(1,), (3,)], "y long")
    with Dataflow(another, runner="local", buckets=1) as flow:
        a, _ = flow.input("a", EDGES)
        b = a.toDF("SRC", "DST", "W")
        for name, done in DONE.items():
            with pytest.raises((SchemaError, AnalysisException)):
                print("not refused:", name, done(a, b, plain, spelled))
        assert a.drop("SRC").columns == ["src", "Dst", "w"]
        assert a.withColumnRenamed("SRC", "m").columns == ["src", "Dst", "w"]


def rows_in_each_form(spark, rows, names):
    """The rows in all forms that an input accepts, with these names of columns."""
    kinds = ["src long", "Dst long", "w double"]
    schema = ", ".join(f"{n} {kind.split()[1]}" for n, kind in zip(names, kinds))
    frame = spark.createDataFrame(rows, schema)
    table = pa.table([pa.array(v) for v in zip(*rows)], names=list(names))
    return {
        "dicts": [dict(zip(names, row)) for row in rows],
        "Rows": [Row(**dict(zip(names, row))) for row in rows],
        "frame": frame,
        "far": frame.repartition(2),
        "pandas": table.to_pandas(),
        "arrow": table,
    }


NAMES = ("DST", "Src", "W")


def test_rows_with_names_in_another_case(spark, another):
    rows = [(2, 1, 0.5), (3, 2, 1.5)]
    expected = Counter([(1, 2, 0.5), (2, 3, 1.5)])
    forms = rows_in_each_form(spark, rows, NAMES)
    with Dataflow(spark, runner="local", buckets=1) as flow:
        outputs = {}
        for form, data in forms.items():
            plain, plain_in = flow.input(f"plain {form}", EDGES)
            keyed, keyed_in = flow.input(f"keyed {form}", EDGES, key=["SRC"])
            outputs[form] = [plain.keep(), keyed.keep()]
            plain_in.insert(data)
            keyed_in.upsert([(7, 7, 7.0)])
            keyed_in.replace(data)
            keyed_in.upsert([{"SRC": 9, "DST": 9}])
            keyed_in.delete([{"sRC": 9}])
            lifted = flow.constant(data, EDGES)
            outputs[form].append(lifted.keep())
        updates, updates_in = flow.input("updates", "n long")
        updates_in.update([{"N": 1, "TIME": 0, "Diff": 2}])
        updates_in.update(pa.table({"N": [1], "TIME": [0], "DIFF": [1]}))
        timed, timed_in = flow.input("timed", "n long, at long", key="N")
        timed_in.upsert([{"N": 1, "AT": 0}], time="At")
        counted, timed = updates.count().keep(), timed.keep()
        flow.advance_to(1)
        for form in forms:
            for output in outputs[form]:
                assert Counter(map(tuple, output.at().collect())) == expected, form
        assert counted.at().collect() == [(1, 3)] and timed.at().collect() == [(1, 0)]
        for wrong in ({"src": 1, "SRC": 2}, {"src": 1, "nosuch": 2}):
            with pytest.raises(SchemaError, match="more than once src|unknown nosuch"):
                flow.constant([wrong], EDGES)
    another.conf.set("spark.sql.caseSensitive", "true")
    with Dataflow(another, runner="local", buckets=1) as flow:
        _, session = flow.input("plain", EDGES)
        _, keyed_in = flow.input("keyed", EDGES, key="src")
        for data in rows_in_each_form(another, rows, NAMES).values():
            for refused in (session.insert, session.remove, keyed_in.replace):
                with pytest.raises(SchemaError, match="missing src, Dst, w; unknown DST, Src, W"):
                    refused(data)
        with pytest.raises(SchemaError, match="missing src"):
            keyed_in.delete([{"SRC": 1}])


def test_time_and_diff_of_a_whole_history(spark, another):
    rows = [(1, 0, 2)]
    frame = DiffFrame(spark.createDataFrame(rows, "n int, Time int, DIFF int"))
    assert frame.to_df().collect() == rows and frame.columns == ["n"]
    named = DiffFrame(spark.createDataFrame(rows, "n int, Ts int, DIFF int"), time="tS")
    assert named.to_df().columns == ["n", "Ts", "DIFF"]
    another.conf.set("spark.sql.caseSensitive", "true")
    with pytest.raises(SchemaError, match="no time column 'time'"):
        DiffFrame(another.createDataFrame(rows, "n int, Time int, DIFF int"))


def test_names_in_another_case_are_kept_apart_or_refused(another):
    """With spark.sql.caseSensitive, names in different case are different columns."""
    another.conf.set("spark.sql.caseSensitive", "true")
    with Dataflow(another, runner="local") as flow:
        left, left_in = flow.input("left", "k int, a int")
        right, right_in = flow.input("right", "k int, A int")
        both = left.join(right, "k")
        three = left.select("k", "a", (F.col("a") + 1).alias("A"))
        frames = [
            both, three, both.drop("a"), both.toDF("k", "x", "y"),
            left.alias("l").join(right.alias("r"), "k").select("l.a", "r.A"),
        ]
        for frame in frames:
            frame.keep()
        for use in (
            lambda: flow.input("rows", "a int, A int"),
            lambda: flow.input("rows", "a int, A int", key="a"),
            lambda: flow.constant([(1, 2)], "a int, A int"),
            lambda: left.withColumn("A", F.lit(1)),
            lambda: left.withColumnRenamed("k", "A"),
            lambda: left.toDF("a", "A"),
            lambda: left.groupBy("a").agg(F.sum("k").alias("A")),
            lambda: left.groupBy("k").agg(F.sum("a").alias("s"), F.max("a").alias("S")),
            lambda: left.flat_map(lambda row: [], "a int, A int"),
            lambda: left.reduce(lambda key, values: [], "K int", key="k"),
            lambda: left.unionByName(right, allowMissingColumns=True),
            lambda: DiffFrame(another.createDataFrame([], "a int, A int, time int, diff int")),
            lambda: both.select("A"),
            lambda: both.where("A > a"),
            lambda: both.where(F.col("a") > 1),
            lambda: three.groupBy("A").count(),
            lambda: three.groupBy("k").agg(F.sum("A")),
            lambda: three.distinct(),
            lambda: three.top_k(1, "A"),
            lambda: three.join(right, "A"),
            lambda: left.join(right, (left["k"] == right["k"]) & (F.col("a") < F.col("A"))),
        ):
            with pytest.raises(SchemaError, match="appear more than once|more than one column"):
                use()
        with pytest.raises(SchemaError, match="no column 'k'.*K, x"):
            flow.input("rows", "K int, x int", key="k")
        with pytest.raises(SchemaError, match="missing a; unknown A"):
            left_in.insert([{"k": 1, "A": 2}])
        left_in.insert([(1, 2)])
        right_in.insert([(1, 4)])
        flow.advance_to(1)
        assert [frame.at().collect() for frame in frames] == [
            [Row(k=1, a=2, A=4)], [Row(k=1, a=2, A=3)], [Row(k=1, A=4)], [Row(k=1, x=2, y=4)],
            [Row(a=2, A=4)],
        ]
        assert both.to_df().columns == ["k", "a", "A", "time", "diff"]
