"""Tables of Spark: saved in the buckets of arrangements, joined without a shuffle, imported."""

from __future__ import annotations

import glob
import os
import shutil
from collections import Counter
from contextlib import redirect_stdout
from datetime import date
from decimal import Decimal
from io import StringIO

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from test_types import VALUES

from pyspark_diff import (
    Dataflow,
    DiffFrame,
    InvalidDiffError,
    NotReadableError,
    SchemaError,
    StorageError,
    TimeRegressionError,
    thresholds,
)
from pyspark_diff.dataflow.stored import StateReader
from pyspark_diff.runners.spark import SparkRunner
from pyspark_diff.spark.tables import checked_table
from pyspark_diff.times import Antichain

ORDERS = [(f"n{i}", i % 3, float(i)) for i in range(100)]

in_buckets = pytest.mark.classic_only("a plan tells the buckets of a table, and a client has none")


@pytest.fixture
def tables(spark):
    """Names of tables that the fixture drops at the end; joins are not broadcast."""
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    yield "diff_a", "diff_b"
    spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")
    for name in "diff_a", "diff_b":
        spark.sql(f"DROP TABLE IF EXISTS {name}")


def fed(spark, **settings):
    flow = Dataflow(spark, buckets=4, **settings)
    orders, orders_in = flow.input("orders", "name string, n int, amount double", key="name")
    output = orders.keep("orders")
    orders_in.upsert(ORDERS)
    flow.advance_to(1)
    orders_in.upsert([("n0", 7, 7.0)])
    flow.advance_to(2)
    return flow, output


def rows(frame):
    return Counter(tuple(row) for row in frame.collect())


def plan(frame):
    with redirect_stdout(StringIO()) as text:
        frame.explain()
    return text.getvalue()


def files_of(spark, name):
    location = spark.sql(f"DESCRIBE EXTENDED {name}").where("col_name = 'Location'").collect()
    return glob.glob(f"{location[0][1].removeprefix('file:')}/**/*.parquet", recursive=True)


@pytest.mark.parametrize("driver_rows", [thresholds.current.driver_table_rows_max, 0])
def test_saved_tables_are_joined_without_an_exchange(spark, tables, driver_rows, use_thresholds):
    use_thresholds(driver_table_rows_max=driver_rows)
    a, b = tables
    flow, output = fed(spark, keep_history=True)
    with flow:
        output.save_as_table(a)
        output.save_as_table(b, time=0)
        assert rows(spark.table(a)) == rows(output.at())
        assert rows(spark.table(b)) == rows(output.at(0)) == Counter(ORDERS)
        # Each bucket has one file: no row moved between buckets.
        assert len(files_of(spark, a)) == 4
    joined = spark.table(a).join(spark.table(b), "name")
    for frame in joined, spark.table(a).groupBy("name").count(), spark.table(a).dropDuplicates(
            ["name"]), spark.table(a).join(spark.table(a).withColumnRenamed("n", "m"), "name"):
        assert "Exchange" not in plan(frame), plan(frame)
    assert joined.count() == 100
    # Other plans do show an exchange.
    assert "Exchange" in plan(spark.table(a).groupBy("n").count())
    cached = spark.table(a).cache()
    assert cached.count() == 100 and cached.storageLevel.useMemory
    cached.unpersist()


@pytest.mark.slow
def test_writing_moves_no_row_where_buckets_fit(spark, tables, monkeypatch, use_thresholds):
    use_thresholds(driver_table_rows_max=0)
    from pyspark_diff.spark import tables as module

    moved = []
    repartition = type(spark.range(1)).repartition
    monkeypatch.setattr(
        type(spark.range(1)), "repartition",
        lambda self, *args: moved.append(args) or repartition(self, *args),
    )
    flow, output = fed(spark)
    with flow:
        for buckets in None, 2, 8:
            output.save_as_table(tables[0], buckets=buckets, mode="overwrite")
            assert rows(spark.table(tables[0])) == rows(output.at())
            assert not moved
        output.save_as_table(tables[0], by="N", mode="overwrite")
        assert len(moved) == 1 and len(files_of(spark, tables[0])) <= 4
        assert "Exchange" not in plan(spark.table(tables[0]).groupBy("n").count())
        output.save_as_table(tables[0], buckets=3, mode="overwrite")
        assert len(moved) == 2
    assert module.BUCKET == "_bucket"


def test_updates_go_out_and_in(spark, tables):
    flow, output = fed(spark, keep_history=True)
    with flow:
        output.save_as_table(tables[0], updates=True)
        updates = rows(output.to_df())
    assert rows(spark.table(tables[0])) == updates
    with Dataflow(spark, keep_history=True) as flow:
        orders, orders_in = flow.import_table(tables[0], input="orders")
        again = orders.keep()
        flow.advance_to(2)
        assert rows(again.to_df()) == updates
        orders_in.insert([("new", 1, 1.0)])
        flow.advance_to(3)
        assert again.at().count() == 101
    whole = DiffFrame(spark.table(tables[0]))
    assert whole.at(0).count() == 100


def test_a_table_is_a_constant_or_rows_of_an_input(spark, tables):
    flow, output = fed(spark)
    with flow:
        output.save_as_table(tables[0])
        output.save_as_table(tables[1], updates=True)
    with Dataflow(spark) as flow:
        orders, orders_in = flow.input("names", "name string")
        joined = orders.join(flow.import_table(tables[0]), "name").keep()
        fresh, _ = flow.import_table(tables[0], input="fresh")
        fresh = fresh.keep()
        orders_in.insert([("n1",), ("nobody",)])
        flow.advance_to(1)
        assert rows(joined.at()) == {("n1", 1, 1.0): 1}
        assert fresh.at().count() == 100
        with pytest.raises(SchemaError, match="flow.input"):
            flow.import_table(tables[1])
        with pytest.raises(StorageError, match="no table nowhere"):
            flow.import_table("nowhere")
        spark.range(2).selectExpr("id", "id AS diff").write.mode("overwrite").saveAsTable(tables[0])
        with pytest.raises(SchemaError, match="none for the other"):
            flow.import_table(tables[0], input="half")


@pytest.mark.parametrize("columns, error, said", [
    ("id, id AS time, IF(id = 1, NULL, 1L) AS diff", InvalidDiffError, "1 rows .* null diff"),
    ("id, id AS time, 1L AS diff", TimeRegressionError, "at time 0 .* which is at 5"),
    ("id, 'x' AS time, 1L AS diff", SchemaError, "time is string, expected bigint"),
    ("id, IF(id = 1, raise_error('broken'), id) AS time, 1L AS diff", PySparkException, "broken"),
], ids=["diff", "time", "type", "job"])
def test_an_import_that_fails_leaves_nothing(spark, tables, columns, error, said):
    with Dataflow(spark) as flow:
        words, words_in = flow.input("words", "word string")
        words.keep()
        words_in.insert([("a",)])
        flow.advance_to(5)
        spark.range(3).createOrReplaceTempView("diff_c")
        spark.sql(f"CREATE OR REPLACE TEMP VIEW diff_d AS SELECT {columns} FROM diff_c")
        try:
            with pytest.raises(error, match=said):
                flow.import_table("diff_d", input="orders")
            # The failed input holds no other back, and its name is free.
            words_in.advance_to(6)
            assert flow.step() and flow.progress().frontier == Antichain([6])
            orders, _ = flow.import_table("diff_c", input="orders")
            orders = orders.keep()
            flow.advance_to(7)
            assert rows(orders.at()) == {(0,): 1, (1,): 1, (2,): 1}
        finally:
            for name in "diff_c", "diff_d":
                spark.catalog.dropTempView(name)


def test_a_program_does_not_give_a_table_again(spark, tables, tmp_path):
    spark.range(3).write.saveAsTable(tables[0])

    def program(flow):
        flow.import_table(tables[0], input="numbers")[0].keep("numbers")

    with pytest.raises(SchemaError, match="each opening"):
        Dataflow.open(tmp_path / "store", program, spark=spark)


def test_buckets_in_a_column_where_spark_has_none(spark, tables):
    flow, output = fed(spark)
    with flow:
        output.save_as_table(tables[0], bucket_column="_bucket")
        assert rows(spark.table(tables[0]).drop("_bucket")) == rows(output.at())
        assert spark.sql(f"SHOW PARTITIONS {tables[0]}").count() == 4
        assert spark.table(tables[0]).where("_bucket <> pmod(hash(name), 4)").count() == 0
        constant = flow.import_table(tables[0])
        assert constant.columns == ["name", "n", "amount"]
        with pytest.raises(SchemaError, match="bucket_column"):
            output.save_as_table(tables[1], bucket_column="Name")


def test_a_stored_collection_is_saved_too(spark, tables, tmp_path):
    def program(flow):
        orders, _ = flow.input("orders", "name string, n int, amount double", key="name")
        orders.keep("orders")

    with Dataflow.open(tmp_path / "store", program, spark=spark, buckets=4) as flow:
        flow.session("orders").upsert(ORDERS)
        flow.advance_to(1)
        flow["orders"].save_as_table(tables[0])
    with StateReader(tmp_path / "store", spark=spark) as reader:
        reader["orders"].save_as_table(tables[1])
        reader["orders"].save_as_table(tables[1], updates=True, mode="overwrite")
    assert spark.table(tables[1]).columns == ["name", "n", "amount", "time", "diff"]
    assert "Exchange" not in plan(spark.table(tables[0]).join(spark.table(tables[1]), "name"))


def test_null_keys_and_odd_names(spark, tables):
    with Dataflow(spark, buckets=3) as flow:
        odd, odd_in = flow.input("odd", "`a.b` string, `c d` int, E double")
        output = odd.arrange_by_key("a.b").keep()
        odd_in.insert([(None, 1, 0.0), (None, 1, -0.0), ("x", None, float("nan"))])
        flow.advance_to(1)
        output.save_as_table(tables[0])
        assert Counter(map(repr, spark.table(tables[0]).collect())) == Counter(
            map(repr, output.at().collect()))
        output.save_as_table(tables[0], by="e", mode="overwrite")
        assert "Exchange" not in plan(spark.table(tables[0]).groupBy("E").count())


def test_empty_collections_and_those_without_a_key(spark, tables):
    with Dataflow(spark) as flow:
        words, words_in = flow.input("words", "word string")
        output, total = words.keep(), words.groupBy().count().keep()
        flow.advance_to(1)
        output.save_as_table(tables[0])
        total.save_as_table(tables[1], by=[])
        assert spark.table(tables[0]).count() == 0
        assert spark.table(tables[0]).columns == ["word"]
        none = words.select().keep()
        flow.step()
        with pytest.raises(SchemaError, match="without columns"):
            none.save_as_table(tables[0], mode="overwrite")


@pytest.mark.parametrize("by", ["", "string", "decimal(38,10)", "array<array<double>>"])
def test_every_type_goes_out_and_in_also_where_there_is_none(spark, tables, by):
    names = {kind: f"c{i}" for i, kind in enumerate(VALUES)}
    schema = ", ".join(f"{name} {kind}" for kind, name in names.items())
    data = [tuple(values[number % len(values)] for values in VALUES.values())
            for number in range(10)]
    key = [names[by]] if by else list(names.values())
    for records in [], data:
        with Dataflow(spark, buckets=3) as flow:
            typed, typed_in = flow.input("typed", schema)
            output = typed.arrange_by_key(*key).keep()
            typed_in.insert(records)
            flow.advance_to(1)
            output.save_as_table(tables[0], mode="overwrite")
            output.save_as_table(tables[1], updates=True, mode="overwrite")
            expected = Counter(map(repr, output.at().collect()))
            assert sum(expected.values()) == len(records)
        with Dataflow(spark, buckets=3) as flow:
            imported = [flow.import_table(name, input=name)[0] for name in tables]
            imported = [frame.arrange_by_key(*key).keep() for frame in imported]
            flow.advance_to(1)
            for frame in imported:
                assert Counter(map(repr, frame.at().collect())) == expected


BAD = ["`../evil`", "x/../../evil", "", ".", "a..b", "a.b.c.d", "a`b", "a b", "a;b", "`a", "..", 7,
       None, "é"]


@pytest.mark.parametrize("name", BAD)
def test_a_name_that_is_none_is_refused_before_spark_sees_it(spark, name, tmp_path):
    flow, output = fed(spark)
    with flow:
        warehouse = spark.conf.get("spark.sql.warehouse.dir").removeprefix("file:")
        before = set(os.listdir(os.path.dirname(warehouse)))
        with pytest.raises(SchemaError, match="no name of a table"):
            output.save_as_table(name)
        with pytest.raises(SchemaError, match="no name of a table"):
            flow.import_table(name)
        assert set(os.listdir(os.path.dirname(warehouse))) == before


def test_names_that_are_some():
    assert checked_table("a") == checked_table("`a`") == "`a`"
    assert checked_table("spark_catalog.shop.Orders_1") == "`spark_catalog`.`shop`.`Orders_1`"


def test_what_is_there_stays(spark, tables):
    flow, output = fed(spark)
    with flow:
        spark.range(3).write.saveAsTable(tables[0])
        with pytest.raises(StorageError, match="mode='overwrite'"):
            output.save_as_table(tables[0].upper())
        assert spark.table(tables[0]).count() == 3
        output.save_as_table(tables[0], mode="overwrite")
        assert spark.table(tables[0]).count() == 100
        # A folder without a table, as after a restart without a metastore.
        warehouse = spark.conf.get("spark.sql.warehouse.dir").removeprefix("file:")
        folder = os.path.join(warehouse, tables[1])
        os.makedirs(folder)
        with open(os.path.join(folder, "something"), "w") as file:
            file.write("mine")
        with pytest.raises(StorageError, match="forgets its tables"):
            output.save_as_table(tables[1])
        assert os.listdir(folder) == ["something"]
        shutil.rmtree(folder)


def test_bad_arguments_say_what_was_wrong(spark, tables):
    flow, output = fed(spark)
    with flow:
        for settings, error, said in [
            (dict(mode="append"), ValueError, "'append'"),
            (dict(buckets=0), ValueError, "from 1 to 100000"),
            (dict(buckets=True), ValueError, "from 1 to 100000"),
            (dict(by="nosuch"), SchemaError, "the columns are name, n, amount"),
            (dict(by=["n", "N"]), SchemaError, "more than once"),
            (dict(time=9), NotReadableError, "not complete"),
        ]:
            with pytest.raises(error, match=said):
                output.save_as_table(tables[0], **settings)
        assert not spark.catalog.tableExists(tables[0])


class Jobs:
    """The plans of the jobs that steps run."""

    def __init__(self, monkeypatch):
        self.plans = []
        run_on_spark = SparkRunner._run

        def run(runner, job):
            frame = getattr(job, "__self__", None)
            if isinstance(frame, DataFrame):
                self.plans.append(plan(frame))
            return run_on_spark(runner, job)

        monkeypatch.setattr(SparkRunner, "_run", run)

    def take_exchanges(self):
        """For each job that read a table since the last call, whether it moved rows."""
        exchanges = ["Exchange" in text for text in self.plans if "FileScan" in text]
        self.plans.clear()
        return exchanges


KEYED = [
    ("city string", [(None,), ("Rome",), ("",), ("Oslo",)]),
    ("city string, day date", [(None, None), ("Rome", None), (None, date(2020, 1, 1)),
                               ("Rome", date(2020, 1, 1))]),
    ("id long", [(None,), (7,), (-7,), (2**62,)]),
    ("id int", [(None,), (7,), (-7,)]),
    ("x double", [(None,), (0.0,), (-0.0,), (float("nan"),), (1.5,)]),
    ("d decimal(30,2)", [(None,), (Decimal("0.10"),), (Decimal("-1e20"),)]),
]


@in_buckets
@pytest.mark.parametrize("schema, keys", KEYED, ids=[schema for schema, _ in KEYED])
@pytest.mark.parametrize("updates", [False, True])
def test_a_table_in_the_buckets_of_a_key_is_imported_without_an_exchange(
    spark, tables, schema, keys, updates, monkeypatch
):
    jobs = Jobs(monkeypatch)
    key = [field.split()[0] for field in schema.split(", ")]
    data = [(*values, i) for values in keys for i in range(2)]
    more = ", time long, diff long" if updates else ""
    rows_of = [(*row, row[-1], 2) for row in data] if updates else data
    frame = spark.createDataFrame(rows_of, f"{schema}, n int{more}")
    # Eleven buckets are more than the keys, so that some are empty.
    for number, buckets in enumerate((11, 4)):
        frame.repartition(buckets, *key).write.mode("overwrite").bucketBy(buckets, *key).sortBy(
            *key).saveAsTable(tables[number])
    results = []
    for name in tables:
        with Dataflow(spark, buckets=11) as flow:
            records, records_in = flow.import_table(name, input="given")
            output = records.withColumn("m", F.expr("n + 1")).arrange_by_key(*key).keep()
            records_in.advance_to(2)
            flow.step()
            results.append([Counter(map(repr, f.collect())) for f in (output.at(), output.to_df())])
            assert output.at().count() == len(data) * (2 if updates else 1)
            # A float zero loses its sign before the plan, which then ignores the buckets.
            assert jobs.take_exchanges() == [name == tables[1] or "double" in schema]
    assert results[0] == results[1]


@in_buckets
def test_what_save_as_table_wrote_is_imported_without_an_exchange(spark, tables, monkeypatch):
    flow, output = fed(spark)
    with flow:
        output.save_as_table(tables[0])
    jobs, there = Jobs(monkeypatch), rows(spark.table(tables[0]))
    with Dataflow(spark, buckets=4) as flow:
        names, names_in = flow.input("names", "NAME string, again string")
        joined = names.join(flow.import_table(tables[0]), "name").keep()
        names_in.insert([("n1", "x"), ("nobody", "y")])
        flow.advance_to(1)
        assert rows(joined.at()) == {("n1", "x", 1, 1.0): 1}
        assert jobs.take_exchanges() == [False]
    for program, moved, expected in [
        (lambda orders: orders.withColumnRenamed("name", "a.b").arrange_by_key("A.b"), False,
         there),
        # Spark reads no other bucket.
        (lambda orders: orders.where("name = 'n1'").arrange_by_key("name"), False,
         {("n1", 1, 1.0): 1}),
        (lambda orders: orders.where("name = 'nobody'").arrange_by_key("name"), False, {}),
        # Other keys, and two tables at once.
        (lambda orders: orders.arrange_by_key("n"), True, there),
        (lambda orders: orders.arrange_by_key("name", "n"), True, there),
        (lambda orders: orders.union(more).arrange_by_key("name"), True,
         Counter({row: 2 for row in there})),
    ]:
        with Dataflow(spark, buckets=4) as flow:
            more = flow.import_table(tables[0])
            output = program(flow.import_table(tables[0], input="orders")[0]).keep()
            flow.advance_to(1)
            assert jobs.take_exchanges()[-1] is moved
            assert rows(output.at()) == expected


@in_buckets
def test_rows_that_are_not_in_their_bucket_are_moved(spark, tables, monkeypatch):
    flow, output = fed(spark)
    with flow:
        output.save_as_table(tables[0])
    there = rows(spark.table(tables[0]))
    # The files look as if a program with another hash function had written the table.
    for path in files_of(spark, tables[0]):
        bucket = int(path.split("_")[-1].split(".")[0])
        folder, name = os.path.split(path)
        os.remove(f"{folder}/.{name}.crc")
        moved = name.replace(f"_{bucket:05d}", f"_{(bucket + 1) % 4:05d}")
        os.rename(path, f"{folder}/moved-{bucket}-{moved}")
    spark.catalog.refreshTable(tables[0])
    jobs = Jobs(monkeypatch)
    with Dataflow(spark, buckets=4) as flow:
        output = flow.import_table(tables[0], input="orders")[0].arrange_by_key("name").keep()
        flow.advance_to(1)
        assert jobs.take_exchanges() == [False, True]
        assert rows(output.at()) == there


@pytest.mark.parametrize("value", [None, "true", "false"])
def test_an_import_leaves_the_settings_of_the_session(spark, tables, value):
    setting = "spark.sql.sources.bucketing.autoBucketedScan.enabled"
    flow, output = fed(spark)
    with flow:
        output.save_as_table(tables[0])
    try:
        if value is not None:
            spark.conf.set(setting, value)
        with Dataflow(spark, buckets=4) as flow:
            flow.import_table(tables[0], input="orders")[0].arrange_by_key("name").keep()
            flow.advance_to(1)
        assert spark.conf.getAll.get(setting) == value
    finally:
        spark.conf.unset(setting)
