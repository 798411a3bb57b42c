"""Parquet files that the library reads without the JVM: the frames, and equal rows."""

from __future__ import annotations

import datetime
import os
from collections import Counter
from decimal import Decimal
from typing import Callable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_diff import Dataflow, DiffFrame
from pyspark_diff.dataflow import input_session, inputs, whole_history
from pyspark_diff.errors import SourceError
from pyspark_diff.kernels.equality import normal_table
from pyspark_diff.runners.parquet import Bounds, ParquetScan, parquet_scan

#: The mark of tests about files that the library reads instead of Spark.
without_spark = pytest.mark.classic_only("which files a frame reads is told by its plan in the JVM")

EDGES = pa.table({
    "src": pa.array([1, 2, 2, None, 5], pa.int64()),
    "dst": pa.array([7, 8, None, 9, 1], pa.int64()),
    "kind": ["a", "b", None, "a", "c"],
    "weight": [1.5, float("nan"), -0.0, None, 0.0],
    "day": pa.array([0, 1, 18_000, None, 3], pa.date32()),
})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("parquet")


@pytest.fixture(scope="module")
def edges(spark, folder):
    path = folder / "edges"
    path.mkdir()
    for number in range(2):
        pq.write_table(EDGES, path / f"{number}.parquet", row_group_size=2)
    return spark.read.parquet(str(path))


def rows_of(tables) -> Counter:
    """The counts of the rows of tables; NaN and -0.0 differ from other values."""
    rows = (row for table in tables for row in table.to_pylist())
    return Counter(tuple(map(repr, row.values())) for row in rows)


def same(frame: DataFrame, scan: ParquetScan) -> bool:
    tables = list(scan.tables())
    names = {tuple(table.column_names) for table in tables}
    assert names <= {tuple(frame.columns)}
    return rows_of(tables) == rows_of([normal_table(frame.toArrow())])


#: Frames that are read without Spark.
READ: dict[str, Callable[[DataFrame], DataFrame]] = {
    "plain": lambda df: df,
    "select": lambda df: df.select("dst", "src"),
    "another case": lambda df: df.select("DST", F.col("Src").alias("x")),
    "twice": lambda df: df.select(F.col("src").alias("x"), F.col("src").alias("y")),
    "rename": lambda df: df.withColumnRenamed("src", "a.b").toDF("p", "q", "r", "s", "t"),
    "drop": lambda df: df.drop("weight", "kind"),
    "constant": lambda df: df.withColumn("time", F.lit(0)).withColumn("diff", F.lit(1)),
    "wider": lambda df: df.select(F.lit(1).cast("long").alias("n"), "src"),
    "only constants": lambda df: df.select(F.lit(1).alias("one"), F.lit(None).cast("int")),
    "filter": lambda df: df.where("src > 1 AND src < 5"),
    "filter on another column": lambda df: df.where("kind = 'a'").select("src"),
    "filter with or, not, null": lambda df: df.where("NOT (src = 2 OR dst IS NULL)"),
    "filter that is null": lambda df: df.where("src <> 2"),
    "null-safe": lambda df: df.where(F.col("src").eqNullSafe(2) | F.col("weight").isNull()),
    "in": lambda df: df.where(F.col("kind").isin("a", "c")),
    "date": lambda df: df.where("day >= DATE'1970-01-02'"),
    "year": lambda df: df.where("year(day) = 1970"),
    "starts with": lambda df: df.where("kind LIKE 'a%'"),
    "float compared": lambda df: df.where("weight > 0"),
    "no row": lambda df: df.where("src > 100"),
    "two filters": lambda df: df.where("src > 1").select("dst", "src").where("5 > src"),
    "view": lambda df: df.createOrReplaceTempView("plain_view") or df.sparkSession.sql(
        "SELECT src AS a FROM plain_view WHERE dst > 1"
    ),
}
#: Frames that Spark reads.
NOT_READ: dict[str, Callable[[DataFrame], DataFrame]] = {
    "NaN": lambda df: df.where(F.isnan("weight")),
    "function": lambda df: df.select(F.upper("kind").alias("kind")),
    "arithmetic": lambda df: df.selectExpr("src + 1 AS src"),
    "narrower": lambda df: df.select(F.col("src").cast("int")),
    "text to number": lambda df: df.select(F.expr("try_cast(kind AS int)").alias("n")),
    "like": lambda df: df.where("kind LIKE '_a%'"),
    "file of a row": lambda df: df.select("src", "_metadata.file_name"),
    "row index": lambda df: df.select("src", "_metadata.row_index"),
    "limit": lambda df: df.limit(3),
    "distinct": lambda df: df.distinct(),
    "join": lambda df: df.join(df.select("src"), "src"),
    "union": lambda df: df.union(df),
    "explode": lambda df: df.select(F.explode(F.array("src")).alias("src")),
    "sample": lambda df: df.sample(0.5, seed=1),
    "on a view over a join": lambda df: df.join(df.select("src"), "src").createOrReplaceTempView(
        "joined_view") or df.sparkSession.sql("SELECT src FROM joined_view"),
    "python": lambda df: df.select(F.udf(lambda n: n, "long")("src").alias("src")),
}


@without_spark
@pytest.mark.parametrize("kind", READ)
def test_read_without_spark(edges, kind):
    frame = READ[kind](edges)
    scan = parquet_scan(frame)
    assert scan is not None
    assert same(frame, scan) and sum(t.num_rows for t in scan.tables()) == frame.count()
    parts = scan.shared(3)
    assert rows_of(t for part in parts for t in part.tables()) == rows_of(scan.tables())


@without_spark
@pytest.mark.parametrize("kind", NOT_READ)
def test_read_by_spark(edges, kind):
    assert parquet_scan(NOT_READ[kind](edges)) is None


@without_spark
def test_groups_that_no_row_is_wanted_of_are_left_out(edges):
    scan = parquet_scan(edges.where("src = 5"))
    assert len(scan.groups) == 2 and scan.rows == 2
    assert parquet_scan(edges.where("4 < src OR kind = 'a'")).rows == 10


def written(spark: SparkSession, path: str, how: str) -> DataFrame | None:
    """A frame of files or of a table that Spark has to read."""
    table = EDGES.select(["src", "kind"])
    if how == "csv":
        spark.createDataFrame([(1, "a")], "src int, kind string").write.csv(path)
        return spark.read.csv(path, schema="src int, kind string")
    if how == "partitions":
        spark.createDataFrame([(1, "a")], "src int, kind string").write.partitionBy(
            "kind").parquet(path)
    elif how == "buckets":
        spark.range(9).write.bucketBy(2, "id").option("path", path).saveAsTable("in_buckets")
        return spark.table("in_buckets")
    elif how == "local":
        return spark.createDataFrame([(1,)], "src int")
    elif how == "int96":
        with_setting(spark, "spark.sql.parquet.outputTimestampType", "INT96",
                     lambda: spark.sql("SELECT TIMESTAMP'2020-01-01' AS t").write.parquet(path))
    elif how == "legacy":
        with_setting(spark, "spark.sql.parquet.datetimeRebaseModeInWrite", "LEGACY",
                     lambda: spark.sql("SELECT DATE'1500-01-01' AS d").write.parquet(path))
        return spark.read.option("datetimeRebaseMode", "LEGACY").parquet(path)
    else:
        os.makedirs(path)
        if how == "two schemas":
            pq.write_table(table, f"{path}/0.parquet")
            pq.write_table(table.select(["src"]), f"{path}/1.parquet")
            return spark.read.schema("src long, kind string").parquet(path)
        if how == "narrower":
            pq.write_table(table, f"{path}/0.parquet")
            narrow = table.set_column(0, "src", table["src"].cast(pa.int32()))
            pq.write_table(narrow, f"{path}/1.parquet")
            return spark.read.schema("src long, kind string").parquet(path)
        if how == "another case":
            pq.write_table(table, f"{path}/0.parquet")
            return spark.read.schema("SRC long").parquet(path)
        if how == "old day of nobody":
            old = pa.table({"day": pa.array([-200_000], pa.date32())})
            pq.write_table(old, f"{path}/0.parquet")
            return spark.read.option("datetimeRebaseMode", "CORRECTED").parquet(path)
        if how == "two cases":
            both = pa.table([[1], [2]], names=["src", "SRC"])
            pq.write_table(both, f"{path}/0.parquet")
            return spark.read.schema("src long").parquet(path)
        if how == "struct":
            pq.write_table(pa.table({"s": [{"a": 1}]}), f"{path}/0.parquet")
        if how == "milliseconds":
            moment = pa.array([5], pa.timestamp("ms", tz="UTC"))
            pq.write_table(pa.table({"t": moment}), f"{path}/0.parquet")
        if how == "errors pass":
            pq.write_table(table, f"{path}/0.parquet")
            return spark.read.option("ignoreCorruptFiles", True).parquet(path)
        if how == "cached":
            pq.write_table(table, f"{path}/0.parquet")
            return spark.read.parquet(path).cache()
        if how == "gone":
            pq.write_table(table, f"{path}/0.parquet")
            frame = spark.read.parquet(path)
            os.unlink(f"{path}/0.parquet")
            return frame
        if how == "changed":
            pq.write_table(table, f"{path}/0.parquet")
            frame = spark.read.parquet(path)
            pq.write_table(table.slice(0, 1), f"{path}/0.parquet")
            return frame
    return spark.read.parquet(path)


def with_setting(spark, name, value, do):
    spark.conf.set(name, value)
    try:
        return do()
    finally:
        spark.conf.unset(name)


@without_spark
@pytest.mark.parametrize("how", [
    "csv", "partitions", "buckets", "local", "int96", "legacy", "two schemas", "narrower",
    "another case", "two cases", "old day of nobody", "struct", "milliseconds", "errors pass",
    "cached", "gone", "changed",
])
def test_files_that_spark_reads(spark, tmp_path, how):
    frame = written(spark, str(tmp_path / "files"), how)
    try:
        assert parquet_scan(frame) is None
    finally:
        frame.unpersist()
        spark.sql("DROP TABLE IF EXISTS in_buckets")


@without_spark
@pytest.mark.parametrize("setting", [
    "spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles",
    "spark.sql.parquet.fieldId.read.enabled",
])
def test_settings_under_which_spark_reads(spark, edges, setting):
    assert with_setting(spark, setting, "True", lambda: parquet_scan(edges)) is None


@without_spark
@pytest.mark.parametrize("kind", ["table", "spark's own", "one file", "a path of its own"])
def test_files_that_are_read(spark, tmp_path, kind):
    frame = spark.range(7).selectExpr(
        "id", "CAST(id AS decimal(20, 3)) AS d", "date_add(DATE'1500-01-01', CAST(id AS int)) AS t",
        "TIMESTAMP'1500-01-01 00:00:00' AS z", "CAST(id AS byte) AS b", "CAST(id AS short) AS s",
    )
    path = str(tmp_path / ("a b; isDirectory=true; é%20" if kind == "a path of its own" else "x"))
    frame = frame.repartition(1 if kind == "one file" else 3)

    def write() -> None:
        if kind == "table":
            frame.write.option("path", path).saveAsTable("plain_files")
        else:
            frame.write.parquet(path)

    try:
        with_setting(spark, "spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS", write)
        stored = spark.table("plain_files") if kind == "table" else spark.read.parquet(path)
        assert same(stored, parquet_scan(stored))
    finally:
        spark.sql("DROP TABLE IF EXISTS plain_files")


VALUES = {
    pa.int8(): st.integers(-128, 127), pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1), pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.bool_(): st.booleans(), pa.string(): st.text("aZ é\0\U0001f600", max_size=3),
    pa.large_string(): st.text("ab", max_size=2), pa.binary(): st.binary(max_size=3),
    pa.float32(): st.floats(width=32), pa.float64(): st.floats() | st.just(-0.0),
    pa.decimal128(7, 2): st.integers(-(10**7) + 1, 10**7 - 1).map(lambda n: Decimal(n) / 100),
    pa.decimal128(38, 0): st.integers(-(10**37), 10**37).map(Decimal),
    pa.date32(): st.dates(datetime.date(1583, 1, 1), datetime.date(9999, 12, 31)),
    pa.timestamp("us", tz="UTC"): st.integers(-(2**50), 2**53),
    pa.timestamp("us"): st.integers(-(2**50), 2**53),
}
CONDITIONS = [
    None, "c0 IS NULL", "c0 IS NOT NULL AND c1 IS NULL", "NOT (c0 <=> c0)", "c0 = c0 OR c1 IS NULL",
    "c0 >= c0", "NOT (c0 < c0)",
]


@without_spark
@given(data=st.data())
def test_any_table_is_read_alike(spark, data, tmp_path_factory):
    path = tmp_path_factory.mktemp("any")
    kinds = data.draw(st.lists(st.sampled_from(list(VALUES)), min_size=2, max_size=5), "kinds")
    for number in range(data.draw(st.integers(1, 2), "files")):
        rows = data.draw(st.integers(0, 8), "rows")
        table = pa.table({
            f"c{i}": pa.array(
                data.draw(st.lists(st.none() | VALUES[kind], min_size=rows, max_size=rows)), kind
            )
            for i, kind in enumerate(kinds)
        })
        pq.write_table(
            table, path / f"{number}.parquet", row_group_size=data.draw(st.integers(1, 9)),
            use_dictionary=data.draw(st.booleans()),
            compression=data.draw(st.sampled_from(["none", "snappy", "zstd", "gzip"])),
            store_schema=data.draw(st.booleans()),
            store_decimal_as_integer=data.draw(st.booleans()),
        )
    frame = spark.read.parquet(str(path))
    condition = data.draw(st.sampled_from(CONDITIONS), "condition")
    frame = frame if condition is None else frame.where(condition)
    scan = parquet_scan(frame)
    if scan is not None:
        assert same(frame, scan)
    # Files without statistics of a date or timestamp may have values of the old calendar.
    moments = any(pa.types.is_temporal(kind) for kind in kinds)
    assert scan is not None or condition is not None or moments


@without_spark
def test_bounds(spark, tmp_path):
    table = pa.table({"n": pa.array([3, None, 5], pa.int32()), "s": ["x", "y", "z"]})
    pq.write_table(table, tmp_path / "0.parquet", row_group_size=2)
    frame = spark.read.parquet(str(tmp_path))
    scan = parquet_scan(frame.selectExpr("n", "CAST(n AS long) AS m", "s", "7 AS seven"))
    assert [scan.bounds_of(name) for name in ("n", "m", "s", "seven")] == [
        Bounds(3, 5, 1), Bounds(3, 5, 1), None, Bounds(7, 7, 0)
    ]
    assert parquet_scan(frame.where("s = 'x'")).bounds_of("n") is None


@pytest.fixture
def updates(spark, tmp_path) -> DataFrame:
    """Update rows in files; some rows cancel."""
    random = np.random.default_rng(3)
    table = pa.table({
        "src": random.integers(0, 20, 900), "dst": random.integers(0, 5, 900),
        "time": random.integers(0, 9, 900), "diff": random.integers(-1, 3, 900).astype(np.int32),
    })
    for number in range(3):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(table.slice(300 * number, 300), path, row_group_size=100)
    return spark.read.parquet(str(tmp_path))


def answers(spark: SparkSession, frame: DataFrame, runner: str) -> list[Counter]:
    """The results of a flow and a whole history that read a frame in several ways."""
    results = []
    with Dataflow(spark, runner=runner) as flow:
        edges, edges_in = flow.input("edges", "src long, dst long")
        others, others_in = flow.input("others", "src long")
        counts = edges.where("dst <> 3").select("src").count().keep()
        upper = edges.select(F.upper(F.col("src").cast("string")).alias("s")).count().keep()
        pairs = edges.join(others, "src").keep()
        shown: list[pa.Table] = []
        edges.select("dst").inspect(shown.append, by_table=True)
        edges_in.insert(frame.select("src", "dst"))
        edges_in.update(frame.where("diff <> 0"))
        others_in.insert(frame.select("src").where("src <= 7"))
        others_in.insert(frame.select("src").where("src > 100"))
        for time in (4, 10):
            edges_in.advance_to(time)
            others_in.advance_to(time)
            flow.step()
            results += [rows_of([c.at(time - 1).toArrow()]) for c in (counts, upper, pairs)]
        results.append(Counter())
        for row, number in rows_of(shown).items():
            results[-1][row[:-1]] += number * int(row[-1])
    degrees = DiffFrame(frame).select("src").count().to_df()
    return [*results, rows_of([degrees.toArrow()])]


@pytest.mark.parametrize("runner", ["local", "spark", "auto"])
def test_answers_agree(spark, updates, runner, monkeypatch):
    results = answers(spark, updates, runner)
    for module in (input_session, inputs, whole_history):
        monkeypatch.setattr(module, "parquet_scan", lambda frame: None)
    assert results == answers(spark, updates, "spark")


@pytest.mark.classic_only("asks Spark's context for its jobs")
def test_a_load_from_files_runs_no_job(spark, updates):
    with Dataflow(spark) as flow:
        edges, edges_in = flow.input("edges", "src long, dst long")
        edges.where("dst > 1").select("src").count().keep()
        before = spark.sparkContext.statusTracker().getJobIdsForGroup(None)
        edges_in.update(updates)
        flow.advance_to(9)
        assert spark.sparkContext.statusTracker().getJobIdsForGroup(None) == before
        assert flow.last_report.spark_runs == 0 and flow.last_report.rows_in > 0


@pytest.mark.parametrize("keys", [2, 400])
def test_several_tables_are_joined_of_which_no_other_column_is_wanted(spark, tmp_path, keys):
    rows = spark.range(400).selectExpr(f"id % {keys} AS k", "id AS v")
    rows.write.parquet(str(tmp_path / "rows"))
    with Dataflow(spark, runner="local", buckets=2) as flow:
        left, left_in = flow.input("left", "k long, v long")
        right, right_in = flow.input("right", "k long")
        counts = left.join(right, "k").select("k").count().keep()
        for _ in range(2):
            left_in.insert(spark.read.parquet(str(tmp_path / "rows")))
        right_in.insert([(k,) for k in range(keys)])
        flow.advance_to(1)
        assert {tuple(row) for row in counts.at().collect()} == {
            (k, 800 // keys) for k in range(keys)
        }


@pytest.mark.parametrize("column", ["time", "diff"])
def test_nulls_are_told(spark, tmp_path, column):
    rows = {"n": [1, 2], "time": [0, 1], "diff": [1, 1], column: [0, None]}
    pq.write_table(pa.table(rows), tmp_path / "0.parquet")
    with Dataflow(spark) as flow:
        _, numbers_in = flow.input("numbers", "n long")
        with pytest.raises(ValueError, match=f"1 rows for input 'numbers' have a null {column}"):
            numbers_in.update(spark.read.parquet(str(tmp_path)))


def test_times_behind_the_frontier_are_told(spark, updates):
    with Dataflow(spark) as flow:
        _, edges_in = flow.input("edges", "src long, dst long")
        edges_in.advance_to(3)
        with pytest.raises(ValueError, match="an update at time 0 is before the frontier"):
            edges_in.update(updates)


@without_spark
def test_a_file_that_changes_later(spark, tmp_path):
    """Before a step Spark reads the new file; within a step the change is an error."""
    path = tmp_path / "0.parquet"
    pq.write_table(pa.table({"n": [1, 2, 3]}), path)
    frame = spark.read.parquet(str(tmp_path))
    scan = parquet_scan(frame)
    with Dataflow(spark) as flow:
        numbers, numbers_in = flow.input("numbers", "n long")
        counts = numbers.count().keep()
        numbers_in.insert(frame)
        pq.write_table(pa.table({"n": [4, 5, 6]}), path)
        os.utime(path, ns=(1, 1))
        flow.advance_to(1)
        assert flow.last_report.spark_runs == 1
        assert {row["n"] for row in counts.at(0).collect()} == {4, 5, 6}
    with pytest.raises(SourceError, match="is not what it was when Spark listed it"):
        list(scan.tables())
    with pytest.raises(SourceError):
        scan.check()
