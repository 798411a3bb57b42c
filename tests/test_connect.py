"""The Spark runner and the data source over Spark Connect, where its client is installed.

    over Connect  ==  without it,   and Ctrl-C ends the job there too
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

#: A session of Connect and one without it do not get along in one process.
PROGRAM = """
import os, signal, sys, threading, time
from pyspark.sql import SparkSession, Window, functions as F
from pyspark_diff import Dataflow

spark = SparkSession.builder.remote("local[2]").getOrCreate()
with Dataflow(spark, runner="spark", buckets=2) as flow:
    left, left_in = flow.input("left", "k int, x int")
    right, right_in = flow.input("right", "k int, y int")
    both = left.join(right, "k").groupBy("k")
    sums = both.agg(F.sum(F.col("x") * F.col("y")).alias("s"), F.count("*").alias("n")).keep()
    left_in.insert([(i % 3, i) for i in range(10)])
    right_in.insert(spark.range(6).selectExpr("int(id % 3) AS k", "int(id) AS y"))
    for session in left_in, right_in:
        session.advance_to(1)
        session.flush()
    flow.step()
    left_in.remove([(0, 3)])
    left_in.close(), right_in.close()
    flow.step()
    print(sorted(map(tuple, sums.at().collect())))

with Dataflow(spark, runner="spark", buckets=2) as flow:
    rows, rows_in = flow.input("rows", "k int, x int")
    over = Window.partitionBy("k").orderBy(F.desc("x"))
    ranked = rows.select("k", F.col("x") - F.lag("x", 1, 0).over(over), F.rank().over(over)).keep()
    rows_in.insert([(0, 1), (0, 3), (1, 2)])
    rows_in.close()
    flow.step()
    print(sorted(map(tuple, ranked.at().collect())))

def wait(row):
    if os.path.exists(patience):
        open(f"{patience}-{row.k}", "w").close()
        time.sleep(120)
    return [(row.k,)]

def interrupt():
    while not os.path.exists(f"{patience}-1"):
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)

patience = sys.argv[1]
open(patience, "w").close()
with Dataflow(spark, runner="spark", buckets=2) as flow:
    rows, rows_in = flow.input("rows", "k int")
    counts = rows.flat_map(wait, "k int").count().keep()
    rows_in.insert([(1,), (2,)])
    rows_in.close()
    threading.Thread(target=interrupt).start()
    try:
        flow.step()
    except KeyboardInterrupt:
        print("interrupted")
    os.remove(patience)
    began = time.monotonic()
    flow.step()  # it would wait for tasks that go on
    print(sorted(map(tuple, counts.at().collect())), time.monotonic() - began < 100)
print(spark.range(5).count())
spark.stop()
"""


#: A store, with a collection and an inbox.
STORE = """
import sys
from pyspark_diff import Dataflow
from pyspark_diff.sources import inbox

store = sys.argv[1] + "/store"

def program(flow):
    flow.input("orders", "id int, v string", key="id")[0].keep("orders")
    flow.source("clicks", inbox(store, "clicks", schema="id int, v string")).keep("clicks")

def opened(spark):
    return Dataflow.open(store, program, spark=spark, runner="local", buckets=2, keep_history=True)

def feed(spark, *rows):
    with opened(spark) as flow:
        orders = flow.session("orders")
        orders.upsert(rows)
        flow.advance_to(orders.time() + 1)
        flow.catch_up()
        print(sorted(map(tuple, flow["clicks"].at().collect())), flush=True)
"""

DATA_SOURCE = STORE + """
import pyspark_diff
from pyspark.sql import SparkSession

spark = SparkSession.builder.remote("local[2]").config(
    "spark.sql.shuffle.partitions", "2").getOrCreate()

def read(reader, **options):
    return reader.format("diff").options(path=store, name="orders", **options).load()

def ran(frame, kind, **options):
    writer = frame.writeStream.format(kind).options(
        checkpointLocation=f"{sys.argv[1]}/{kind}_checkpoint", **options)
    writer.trigger(availableNow=True).start().awaitTermination()

feed(spark, (1, "a"), (2, "b"))
print(sorted(map(tuple, read(spark.read).collect())))  # the server has found it
spark.dataSource.register(pyspark_diff.DefaultSource)
for rows in [(2, "c")], [(3, "d")]:
    feed(spark, *rows)
    ran(read(spark.readStream, shape="changes"), "parquet", path=f"{sys.argv[1]}/out")
    found = spark.read.parquet(f"{sys.argv[1]}/out")
    print(sorted(tuple(row)[:2] for row in found.collect()))
    print(sorted(map(tuple, read(spark.read).where("id < 3").collect())))
    ran(read(spark.readStream, shape="changes").where("diff > 0").select("id", "v"), "diff",
        path=store, name="clicks")
feed(spark)
spark.stop()
"""

SPECIFICATION = """
name: shop
storage: file://{folder}/storage
libraries: [{{glob: {{include: definitions/**}}}}]
configuration: {{spark.sql.shuffle.partitions: "2"}}
"""

PIPELINE = """
from pyspark import pipelines
from pyspark.sql import SparkSession

spark = SparkSession.active()

def kept(reader, **options):
    return reader.format("diff").options(path={store!r}, name="orders", **options).load()

@pipelines.materialized_view
def totals():
    return kept(spark.read).groupBy("v").count()

@pipelines.table
def changes():
    return kept(spark.readStream, shape="changes")

pipelines.create_sink("clicks", "diff", {{"path": {store!r}, "name": "clicks"}})

@pipelines.append_flow(target="clicks")
def into_clicks():
    return spark.readStream.table("changes").select("id", "v")
"""

NIGHT = STORE + """
from pyspark_diff.spark.session import session

spark = session("night", master="local[2]")
feed(spark, *eval(sys.argv[2]))
for table in sys.argv[3:]:
    found = spark.read.parquet(f"{sys.argv[1]}/spark-warehouse/{table}")
    print(sorted(map(tuple, found.collect())))
"""


def run(command, folder, **environment):
    """What a program prints, of whom no other one's session is known."""
    pytest.importorskip("grpc_status", reason="the client of Spark Connect is not installed")
    # Not the session that other tests use, if its address is in the environment.
    kept = {name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"}
    ran = subprocess.run(
        command, env={**kept, "PYTHONPATH": str(ROOT), **environment}, cwd=folder,
        capture_output=True, text=True, timeout=600,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout.splitlines()


def test_the_spark_runner_over_connect(tmp_path):
    assert run([sys.executable, "-c", PROGRAM, str(tmp_path / "patience")], tmp_path) == [
        "[(0, 45, 6), (1, 60, 6), (2, 105, 6)]", "[(0, -2, 2), (0, 3, 1), (1, 2, 1)]",
        "interrupted", "[(1, 1), (2, 1)] True", "5",
    ]


def test_the_data_source_over_connect(tmp_path):
    before, two = [(1, "a"), (2, "b")], [(1, "a"), (2, "b"), (2, "b"), (2, "c")]
    assert run([sys.executable, "-c", DATA_SOURCE, str(tmp_path)], tmp_path) == list(map(str, [
        [], before, [], two, [(1, "a"), (2, "c")], [(1, "a"), (2, "b"), (2, "c")],
        [*two, (3, "d")], [(1, "a"), (2, "c")], [(1, "a"), (2, "b"), (2, "c"), (3, "d")],
    ]))


def test_a_pipeline_reads_and_writes_a_store(tmp_path):
    """As a table and as a stream, and as a sink; the second run goes on where the first was."""
    folder = tmp_path / "shop"
    (folder / "definitions").mkdir(parents=True)
    (folder / "spark-pipeline.yml").write_text(SPECIFICATION.format(folder=folder))
    (folder / "definitions" / "all.py").write_text(
        PIPELINE.format(store=str(folder / "store")))
    (tmp_path / "spark-defaults.conf").write_text("spark.sql.catalogImplementation hive\n")
    pipelines = [str(Path(sys.executable).parent / "spark-pipelines"), "run"]

    def night(rows, *tables):
        return run([sys.executable, "-c", NIGHT, str(folder), repr(rows), *tables], tmp_path)

    rows = [(1, "a"), (2, "b")]
    assert night(rows) == ["[]"]
    run(pipelines, folder, SPARK_CONF_DIR=str(tmp_path))
    assert night([(3, "b")], "totals") == [str(rows), "[('a', 1), ('b', 1)]"]
    run(pipelines, folder, SPARK_CONF_DIR=str(tmp_path))
    assert night([(3, "b")], "totals", "changes") == [
        str([*rows, (3, "b")]), "[('a', 1), ('b', 2)]",
        "[(1, 'a', 0, 1), (2, 'b', 0, 1), (3, 'b', 1, 1)]",
    ]
