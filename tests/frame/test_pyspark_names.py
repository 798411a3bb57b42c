"""A DiffFrame has each public name of PySpark's DataFrame, or an error that names a replacement.

    method(collection) at t  ==  method(table of the records at t)
"""

from __future__ import annotations

import operator
from collections import Counter

import pyarrow as pa
import pytest
from plain import local_frame
from pyspark.sql import DataFrame, GroupedData, Window
from pyspark.sql import functions as F

from pyspark_diff import Dataflow, DiffFrame, NotReadableError, SchemaError
from pyspark_diff.frame.as_pyspark import hint
from pyspark_diff.frame.grouped import GroupedDiff

SCHEMA = "Id int, name string, `a b` double"
ROWS = [(1, "a", 0.5), (2, None, None), (3, "c", 1.5), (3, "c", 1.5), (None, "d", 2.0)]


@pytest.fixture(scope="module")
def table(spark):
    return local_frame(spark, ROWS, SCHEMA)


@pytest.fixture(scope="module")
def ours(table):
    return DiffFrame(table.withColumns({"time": F.lit(0), "diff": F.lit(1)}))


PUBLIC = sorted(name for name in dir(DataFrame) if not name.startswith("_"))


@pytest.mark.parametrize("name", PUBLIC)
def test_each_public_name_is_there_or_has_a_hint(ours, name):
    if hasattr(DiffFrame, name):
        assert hint(name) is None, "it is there"
        return
    with pytest.raises(AttributeError, match=f"a DiffFrame has no {name}: ") as caught:
        getattr(ours, name)
    assert len(str(caught.value)) > 40
    assert not hasattr(ours, name)


def test_hints_are_for_what_pyspark_has():
    from pyspark_diff.frame import as_pyspark

    known = {*as_pyspark._ACTIONS, *as_pyspark._OTHERS}
    newer = {"asTable", "zipWithIndex", "nearestByJoin"}  # not in all versions that work
    assert known - newer <= set(PUBLIC) | {"registerTempTable"}


def test_an_unknown_name_tells_the_columns(ours):
    with pytest.raises(AttributeError, match="no 'nosuch'; its columns are Id, name, a b"):
        ours.nosuch  # noqa: B018
    with pytest.raises(AttributeError, match="_nosuch"):
        ours._nosuch  # noqa: B018


def _twice(batches):
    for batch in batches:
        yield batch
        yield batch.filter(pa.array([k == 3 for k in batch["Id"].to_pylist()]))


#: Operations on a frame of this library or of PySpark.
DONE = {
    "withColumns": lambda df: df.withColumns({"n": F.upper("name"), "name": F.lit("x")}),
    "withColumns in another case": lambda df: df.withColumns({"NAME": F.lit("x")}),
    "withColumn in another case": lambda df: df.withColumn("ID", F.col("iD") + 1),
    "withColumnsRenamed": lambda df: df.withColumnsRenamed({"id": "k", "none": "m", "a b": "c"}),
    "withColumnsRenamed one after the other": lambda df: df.withColumnsRenamed(
        {"name": "k", "k": "m", "ID": "name"}
    ),
    "withColumnRenamed in another case": lambda df: df.withColumnRenamed("NAME", "label"),
    "drop in another case": lambda df: df.drop("ID", "nosuch"),
    "select in another case": lambda df: df.select("ID", "NAME"),
    "select star": lambda df: df.select("*"),
    "dropna": lambda df: df.dropna(),
    "dropna all": lambda df: df.dropna("all", subset=["ID", "name"]),
    "dropna thresh": lambda df: df.dropna(thresh=2),
    "na.drop": lambda df: df.na.drop(subset="name"),
    "fillna": lambda df: df.fillna(7),
    "fillna text": lambda df: df.fillna("x", subset=["name"]),
    "fillna dict": lambda df: df.fillna({"Id": 5, "name": "y"}),
    "na.fill": lambda df: df.na.fill(1.5, ["a b"]),
    "replace": lambda df: df.replace(3, 4),
    "replace dict": lambda df: df.replace({"a": "z", "c": None}, subset=["name"]),
    "replace list": lambda df: df.replace(["a", "c"], ["b", "d"], "name"),
    "na.replace": lambda df: df.na.replace({1: 9}),
    "unpivot": lambda df: df.select("Id", "a b").unpivot("Id", "a b", "what", "value"),
    "unpivot the others": lambda df: df.select("name", "Id").melt("name", None, "what", "value"),
    "unionAll": lambda df: df.unionAll(df),
    "union that widens": lambda df: df.select("Id", F.lit("7"), "a b").union(
        df.select("a b", F.col("Id"), F.lit("2.5"))
    ),
    "union that widens to long and decimal": lambda df: df.select("Id", F.lit(1).alias("n")).union(
        df.select(F.col("Id").cast("long"), F.lit("1.25").cast("decimal(4,2)"))
    ),
    "union with another date": lambda df: df.select(F.lit("2024-01-02").cast("date")).union(
        df.select(F.lit("2024-01-02").cast("timestamp"))
    ),
    "union with nulls": lambda df: df.select("Id", "name").union(df.select(F.lit(None), "name")),
    "exceptAll that widens": lambda df: df.select("Id").exceptAll(
        df.where("Id < 3").select(F.col("Id").cast("double"))
    ),
    "intersect that widens": lambda df: df.select(F.col("Id").cast("short")).intersect(
        df.select("Id")
    ),
    "unionByName that widens": lambda df: df.unionByName(
        df.select(F.col("Id").cast("long").alias("a b"), "name", F.col("a b").alias("iD"))
    ),
    "unionByName with missing ones that widens": lambda df: df.select("Id", "name").unionByName(
        df.select(F.col("Id").cast("long").alias("ID"), "a b"), allowMissingColumns=True
    ),
    "mapInArrow": lambda df: df.drop("a b").mapInArrow(_twice, "Id int, name string"),
    "unionByName": lambda df: df.unionByName(df.select("a b", "name", "Id")),
    "unionByName in another case": lambda df: df.unionByName(
        df.select("a b", "name", F.col("Id").alias("ID"))
    ),
    "unionByName with missing ones": lambda df: df.drop("name").unionByName(
        df.withColumn("more", F.lit(1)).drop("a b"), allowMissingColumns=True
    ),
    "where": lambda df: df.where("ID > 1"),
    "filter": lambda df: df.filter(F.col("NAME") == "c"),
    "selectExpr": lambda df: df.selectExpr("NAME", "`A B`", "id + 1"),
    "toDF": lambda df: df.toDF("x", "Y", "z z"),
    "transform": lambda df: df.transform(lambda rows: rows.withColumn("n", F.col("ID") + 1)),
    "mapInPandas": lambda df: df.select("name").mapInPandas(lambda parts: parts, "name string"),
    "hint": lambda df: df.hint("broadcast"),
    "crossJoin": lambda df: df.select("name", "Id").crossJoin(
        df.select("a b", F.lit(1)).hint("broadcast")),
    "distinct": lambda df: df.distinct(),
    "dropDuplicates": lambda df: df.dropDuplicates(["name", "ID"]),
    "drop_duplicates": lambda df: df.drop_duplicates(["ID"]),
    "subtract": lambda df: df.select("name", "Id").subtract(df.where("Id=1").select("name", "ID")),
    "intersectAll": lambda df: df.toDF("x", "y", "z").intersectAll(df.where("Id > 1")),
}


#: Stars. They expand to the data columns, never to time and diff.
STARS = {
    "a function": lambda df: df.select(F.xxhash64("*"), "*"),
    "a struct": lambda df: df.withColumn("all", F.struct("*")),
    "JSON": lambda df: df.select(F.to_json(F.struct(F.col("*"))).alias("text")),
    "SQL text": lambda df: df.selectExpr("concat_ws(',', *) AS `all`", "Id * 2"),
    "except": lambda df: df.selectExpr("* EXCEPT (name)", "hash(* EXCEPT (Id)) AS h"),
    "a condition": lambda df: df.where(F.hash("*") % 2 == 0),
    "a condition in brackets": lambda df: df[F.hash("*") % 2 == 0],
    "a condition of text": lambda df: df.where("pmod(hash(*), 2) = 0"),
    "an alias": lambda df: df.alias("l").withColumn("more", F.lit(1)).select("L.*", "more"),
    "an alias, text": lambda df: df.alias("l").selectExpr("l.*", "struct(l.*) AS `all`"),
    "rows counted": lambda df: df.select(
        F.count("*").over(Window.partitionBy("name")).alias("n"), F.expr("1 * 2")
    ),
    "a struct of one side": lambda df: df.alias("l").join(
        df.alias("r"), F.col("l.Id") == F.col("r.Id")
    ).select(F.struct("l.*").alias("left"), "r.*"),
    "all of a join": lambda df: df.alias("l").join(
        df.alias("r"), F.col("l.Id") == F.col("r.Id")
    ).select("*"),
}


@pytest.mark.parametrize("star", STARS)
def test_a_star_is_the_columns_of_the_data(table, ours, star):
    expected, actual = STARS[star](table), STARS[star](ours)
    assert (actual.columns, actual.dtypes) == (expected.columns, expected.dtypes)
    assert Counter(map(repr, actual.at(0).collect())) == Counter(map(repr, expected.collect()))


def test_stars_that_would_take_other_columns_are_refused(ours):
    with pytest.raises(SchemaError, match="a star in an expression and a window are in one call"):
        ours.select(F.hash("*"), F.row_number().over(Window.orderBy("Id")))
    joined = ours.alias("l").join(ours.alias("r"), "Id")
    with pytest.raises(SchemaError, match="r.* would have the key Id, and a join by names keeps"):
        joined.where("Id > 1").select("r.*")
    with pytest.raises(SchemaError, match="a star in an expression: more than one column"):
        joined.select(F.hash("*"))


@pytest.mark.parametrize("done", DONE)
def test_what_is_done_is_what_pyspark_does(table, ours, done):
    expected, actual = DONE[done](table), DONE[done](ours)
    assert actual.columns == expected.columns
    assert actual.dtypes == expected.dtypes
    at = actual.at(0)
    assert at.columns == expected.columns
    assert Counter(map(repr, at.collect())) == Counter(map(repr, expected.collect()))


def _joined(df):
    return df.alias("l").join(df.alias("r"), F.col("l.Id") == F.col("r.Id"))


#: Groups, and PySpark's names of expressions.
GROUPS = {
    "no names": lambda df: df.groupBy("Id").sum(),
    "no names, maxima": lambda df: df.groupBy("name").max(),
    "no names, minima": lambda df: df.groupby("NAME", "ID").min("A B", "Id"),
    "no names, means": lambda df: df.groupBy("a b").mean("ID"),
    "sets": lambda df: df.groupingSets([("ID",), ("name", "Id")], "name", "Id").agg(
        F.sum("a b"), F.grouping_id()
    ),
    "no groups": lambda df: df.groupBy().avg(),
    "a number": lambda df: df.groupBy(2).agg(F.sum("Id")),
    "a name and a number": lambda df: df.groupBy("Id", 2).count(),
    "a constant": lambda df: df.groupBy(F.lit(1)).count(),
    "numbers rolled up": lambda df: df.rollup(1, "name").sum(),
    "a cube of a number": lambda df: df.cube(2).count(),
    "a pivot": lambda df: df.groupBy("Id").pivot("name", ["a", "c"]).sum(),
    "a dict": lambda df: df.groupBy("NAME").agg({"*": "count", "ID": "Max"}),
    "aliases": lambda df: _joined(df).groupBy("l.Id").agg(
        F.sum("r.Id"), F.max("l.name").alias("l.name"), F.sum("l.Id") / F.count("r.Id")
    ),
    "aliases, a dict": lambda df: _joined(df).groupBy(F.upper("l.name")).agg({"r.Id": "sum"}),
    "aliases, names of expressions": lambda df: _joined(df).select(
        F.upper("l.name"), F.col("r.Id") + 1, F.col("l.Id").alias("r.Id"),
        F.sum("r.Id").over(Window.partitionBy("l.Id")),
    ),
    "fields that are never null": lambda df: df.select(
        F.when(F.col("Id") > 1, F.struct(F.lit(1).alias("z"))).alias("s")
    ),
    "a field more": lambda df: df.select(
        F.when(F.col("Id") > 1, F.struct("name")).alias("s")
    ).withColumn("s", F.col("s").withField("z", F.lit(1))).groupBy("s").count(),
}


@pytest.mark.parametrize("group", GROUPS)
def test_groups_are_those_of_pyspark(table, ours, group):
    expected, actual = GROUPS[group](table), GROUPS[group](ours)
    assert (actual.columns, actual.dtypes) == (expected.columns, expected.dtypes)
    assert Counter(map(repr, actual.at(0).collect())) == Counter(map(repr, expected.collect()))


#: Members of both classes that return no frame, and cogroup, which has other functions here.
NO_FRAME = {"columns", "dtypes", "explain", "printSchema", "schema", "sparkSession", "cogroup"}


def test_each_method_of_both_is_compared():
    tables = [*DONE.values(), *STARS.values(), *GROUPS.values(), *JOINS.values()]
    called = {name for make in tables for name in make.__code__.co_names}
    for ours, theirs in (DiffFrame, DataFrame), (GroupedDiff, GroupedData):
        both = {name for name in dir(theirs) if not name.startswith("_") and hasattr(ours, name)}
        assert both - NO_FRAME <= called


@pytest.mark.parametrize("key", [0, 4, True, None, 1.5])
def test_keys_of_a_group_that_are_none_are_refused(ours, key):
    for grouped in (ours.groupBy, ours.rollup, ours.cube):
        with pytest.raises(SchemaError, match="^groups are by .*" + str(key)):
            grouped(key)


def test_replace_takes_names_in_their_own_case(ours):
    with pytest.raises(SchemaError, match="write 'Id', not 'ID'"):
        ours.replace(1, 2, subset=["ID"])


#: Kinds of joins, each with all of its names in PySpark.
KINDS = {
    "inner": ["inner"],
    "full": ["outer", "full", "fullouter", "full_outer"],
    "left": ["left", "leftouter", "left_outer", "Left_Outer"],
    "right": ["right", "rightouter", "right_outer"],
    "semi": ["semi", "leftsemi", "left_semi"],
    "anti": ["anti", "leftanti", "left_anti"],
}

#: Joins of the tables `LEFT`, `RIGHT` and `WIDE`, by names and by conditions.
JOINS = {
    "a name": lambda a, b, c, how: a.join(b, "k", how),
    "a list": lambda a, b, c, how: a.join(b, ["K"], how),
    "names in another order": lambda a, b, c, how: a.join(b, ["S", "k"], how),
    "the sides swapped": lambda a, b, c, how: b.join(a, ["s", "K"], how),
    "another type": lambda a, b, c, how: a.join(c, ["k"], how),
    "two other types": lambda a, b, c, how: a.join(c, ["v", "k"], how),
    "with itself": lambda a, b, c, how: a.join(a, ["K", "v"], how),
    "a condition": lambda a, b, c, how: a.join(b, a["k"] == b["k"], how),
    "conditions": lambda a, b, c, how: a.join(b, [a["k"] == b["k"], a.s == b.s], how),
    "more than equality": lambda a, b, c, how: a.join(b, (a["k"] == b["k"]) & (a.v < b.w), how),
    "expressions": lambda a, b, c, how: a.join(b, a["k"] + 1 == b["k"] * 1, how),
    "null-safe": lambda a, b, c, how: a.join(b, a["k"].eqNullSafe(b["k"]), how),
    "aliases": lambda a, b, c, how: a.alias("l").join(
        b.alias("r"), F.col("l.k") == F.col("r.k"), how
    ),
    "aliases, a name": lambda a, b, c, how: a.alias("l").join(b.alias("r"), ["k"], how).select(
        "r.k" if "right" in how.lower() else "k", "l.v"
    ),
    "an alias, its key": lambda a, b, c, how: a.alias("l").join(b.alias("r"), ["s", "k"], how)
    .select("r.k" if "right" in how.lower() else "s" if "full" in how or how == "outer" else "l.k"),
    "a column dropped": lambda a, b, c, how: a.join(b, a["k"] == b["k"], how).drop(a["k"]),
    "a name dropped": lambda a, b, c, how: a.join(b, a["k"] == b["k"], how).drop("k", "S"),
    "a star of one side": lambda a, b, c, how: a.alias("l").join(
        a.alias("r"), F.col("l.k") == F.col("r.v"), how
    ).select("l.*"),
    "filtered": lambda a, b, c, how: a.join(b, a["k"] == b["k"], how).where(a["v"] > 1),
}
LEFT = "v int, K int, s string", [(1, 2, "x"), (2, 3, "y"), (3, None, "z"), (3, 2, None)] * 2
RIGHT = "k int, w long, s string", [(2, 7, "x"), (2, 8, "q"), (5, 9, "y"), (None, 1, "z")]
WIDE = "k long, v double", [(2, 1.0), (9, 2.0)]


@pytest.fixture(scope="module")
def joined_tables(spark):
    plain = [local_frame(spark, rows, schema) for schema, rows in (LEFT, RIGHT, WIDE)]
    return plain, [
        DiffFrame(frame.withColumns({"time": F.lit(0), "diff": F.lit(1)})) for frame in plain
    ]


def shape(frame):
    """Names, types and nullability of the columns, in their order."""
    return [(field.name, field.dataType.simpleString(), field.nullable) for field in frame.schema]


@pytest.mark.parametrize("kind", KINDS)
def test_joins_have_the_columns_of_pyspark(joined_tables, kind):
    plain, ours = joined_tables
    for join in JOINS.values():
        how = KINDS[kind][0]
        assert shape(join(*ours, how)) == shape(join(*plain, how))
    for how in KINDS[kind]:
        expected = plain[0].join(plain[1], ["s", "k"], how)
        assert shape(ours[0].join(ours[1], ["s", "k"], how)) == shape(expected)


@pytest.mark.slow
@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize("kind", KINDS)
def test_joins_have_the_rows_of_pyspark(joined_tables, kind, join):
    (expected, actual) = (JOINS[join](*tables, KINDS[kind][0]) for tables in joined_tables)
    at = actual.at(0)
    assert at.columns == expected.columns
    assert Counter(map(repr, at.collect())) == Counter(map(repr, expected.collect()))


def test_a_semijoin_leaves_the_columns_in_their_order(joined_tables):
    _, (a, b, _) = joined_tables
    assert a.semijoin(b, "k").columns == a.antijoin(b, ["s", "k"]).columns == ["v", "K", "s"]


def test_a_key_is_named_once(joined_tables):
    _, (a, b, _) = joined_tables
    with pytest.raises(SchemaError, match="a column twice in `on`: k, K; name each once"):
        a.join(b, ["k", "K"])


def test_names_where_case_matters(another, table):
    another.conf.set("spark.sql.caseSensitive", "true")
    frame = another.createDataFrame([(1, 2, 0, 1)], "k int, v int, time int, diff int")
    ours = DiffFrame(frame)
    assert ours.drop("K").columns == ["k", "v"]
    assert ours.withColumnRenamed("V", "w").columns == ["k", "v"]
    with pytest.raises(SchemaError, match="no column 'K'"):
        ours.arrange_by_key("K")


def test_keys_are_found_in_any_case(spark):
    frame = spark.createDataFrame([(1, 2, 0, 1)], "Key int, v int, time int, diff int")
    assert DiffFrame(frame).groupBy("KEY").count().at(0).collect() == [(1, 1)]
    assert DiffFrame(frame).arrange_by_key("key").top_k(1, by="V").at(0).collect() == [(1, 2)]
    assert DiffFrame(frame).dropDuplicates(["KEY"]).at(0).count() == 1


def test_printed_and_told(ours, table, capsys):
    ours.printSchema()
    printed = capsys.readouterr().out
    table.printSchema()
    assert printed == capsys.readouterr().out
    assert ours.dtypes == table.dtypes
    assert ours.sparkSession is table.sparkSession


@pytest.mark.parametrize("number", [bool, int, float, len, iter, list, range])
def test_a_collection_is_no_number_and_no_list(ours, number):
    with pytest.raises(NotReadableError, match=r"changes over time.*\.at\(t\)\."):
        number(ours.count())


@pytest.mark.parametrize("compare", [operator.lt, operator.le, operator.gt, operator.ge])
def test_a_collection_is_not_compared_with_numbers(ours, compare):
    for pair in ((ours.count(), 0), (0, ours.count())):
        with pytest.raises(NotReadableError, match=r"not a number; \.at\(t\)\.count\(\)"):
            compare(*pair)


def test_columns_that_are_not_there_are_named(ours):
    for call in (
        lambda: ours.dropna(subset=["nosuch"]), lambda: ours.fillna({"nosuch": 1}),
        lambda: ours.replace(1, 2, "nosuch"), lambda: ours.fillna(1, "nosuch"),
    ):
        with pytest.raises(SchemaError, match="no column 'nosuch'.*the columns are Id, name, a b"):
            call()
    with pytest.raises(SchemaError, match="unionByName needs the same columns"):
        ours.unionByName(ours.drop("name"))
    with pytest.raises(SchemaError, match="unionByName needs the same columns"):
        ours.unionByName(ours.drop("name", "Id").withColumn("more", F.lit(1)))
    with pytest.raises(SchemaError, match="union needs the same columns"):
        ours.unionByName(
            ours.withColumn("Id", F.array("Id")).drop("name"), allowMissingColumns=True
        )


def test_what_a_function_of_batches_may_not_give(ours):
    for wrong, message in (
        (lambda it: (b.drop_columns(["time"]) for b in it), "without time"),
        (lambda it: (b.drop_columns(["Id"]) for b in it), "without Id"),
        (lambda it: (b.set_column(0, "Id", pa.array(["x"] * len(b))) for b in it), "'Id' that is"),
        (
            lambda it: (b.set_column(3, "time", pa.nulls(len(b), pa.int32())) for b in it),
            "with a null time",
        ),
    ):
        with pytest.raises(Exception, match=f"mapInArrow's function returned .*{message}"):
            ours.mapInArrow(wrong, "Id int").at(0)


def test_they_are_kept_up_to_date(spark):
    with Dataflow(spark, runner="local") as flow:
        rows, session = flow.input("rows", "k int, s string")
        filled = rows.fillna("none").unionByName(rows.select("s", "k").dropna()).keep()
        session.insert([(1, None), (2, "b")])
        session.advance_to(1)
        session.flush()
        flow.step()
        session.remove([(1, None)])
        session.close()
        flow.step()
        assert sorted(filled.at().collect()) == [(2, "b"), (2, "b")]
