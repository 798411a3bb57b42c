"""The Spark runner and the data source over Spark Connect, where its client is installed.

    over Connect  ==  without it,   and Ctrl-C ends the job there too
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from connect_server import server

ROOT = Path(__file__).parents[2]

#: A session of Connect and one without it do not get along in one process.
PROGRAM = """
import os, signal, sys, threading, time
from pyspark.sql import SparkSession, Window, functions as F
from pyspark_diff import Dataflow

spark = SparkSession.builder.getOrCreate()
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

# What a shell has put into the background ignores it.
signal.signal(signal.SIGINT, signal.default_int_handler)
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


#: Conditions, windows, types and names that Spark can analyse, and the library refuses. Requests
#: that Spark refuses are not here: they would be in the log without the library.
ASKED = """
import logging
from datetime import timedelta
from pyspark.sql import SparkSession, Window, functions as F
from pyspark_diff import Dataflow, DiffError
from pyspark_diff.graphs import pregel

spark = SparkSession.builder.getOrCreate()

def refused(make):
    try:
        make()
    except DiffError as error:
        print(type(error).__name__)
    else:
        print("taken")

with Dataflow(spark, runner="local", buckets=2) as flow:
    left, left_in = flow.input("left", "k int, x int, at timestamp, s struct<a: int, b: string>")
    right, right_in = flow.input("right", "K2 long, y double, until timestamp, name string")
    l, r = left.alias("l"), right.alias("r")
    some = left.join(right, F.col("k") == F.col("K2"))
    l.join(r, (F.col("r.k2") == F.col("l.k")) & (F.col("l.x") + 1 < F.col("r.y")))
    l.join(r, F.expr("l.s.a") == F.expr("r.k2 + 1"))
    l.join(r, F.expr("upper(l.s.b)").eqNullSafe(F.expr("concat(r.name, 'l.x', date '2020-01-01')")))
    l.join(r, F.when(F.col("l.k") > 0, F.col("l.x")).cast("long") == F.col("r.k2"), "left")
    left.join(right, left["s"]["a"] == right["K2"], "full")
    l.join(r, (F.col("l.at") < F.col("r.until"))
           & (F.col("r.until") <= F.col("l.at") + F.expr("INTERVAL 5 minutes")))
    left.join_interval(right, "at", "until", lower="-5 minutes", upper=timedelta(days=1))
    left.fillna(0, ["x"]).replace(1, 2, ["k"]).dropna()
    left.groupBy("k").agg(F.percentile("x", 0.5), F.max_by("s", "at"))
    over = Window.partitionBy("k").orderBy(F.desc("x"))
    left.select("k", F.lag("x", 2, 0).over(over), F.sum("x").over(over.rowsBetween(-2, 0)))
    edges, _ = flow.input("edges", "src int, dst int")
    for message in ("src.v", "dst.v"):
        pregel(edges, initial={"v": F.lit(0)}, to_dst=F.col(message), aggregate=F.min("msg"),
               update={"v": F.least("v", "msg")}, max_rounds=2)
    pregel(edges, initial={"v": F.lit(0)}, to_src=F.col("src.v") + F.col("dst.v"),
           aggregate=F.max("msg"), update={"v": F.least("v", "msg")}, max_rounds=2)
    df = spark.createDataFrame([(1, 2, "a")], "k int, z int, name string")
    flow.constant(df)
    joined = left.join(df.alias("d"), left["k"] == df["k"])
    joined.select(df["z"], "x")

    refused(lambda: l.join(r, F.col("l.k") + F.col("r.k2") == F.lit(0)))
    refused(lambda: l.join(r, F.col("l.x") != F.col("r.y")))
    refused(lambda: l.join(r, F.expr("l.k = r.k2 OR l.x = r.y")))
    refused(lambda: left.join_interval(right, "at", "until", lower="5 bananas"))
    refused(lambda: left.join_interval(right, "s", "until", lower="5 minutes"))
    refused(lambda: left.groupBy("k").agg(F.hll_sketch_agg("x")))
    refused(lambda: left.select(F.ntile(2).over(over), F.rand()))
    refused(lambda: left.select(F.collect_set("x").over(over)))
    refused(lambda: left.withColumn("now", F.current_timestamp()))
    refused(lambda: left.withColumn("u", F.current_user()))
    refused(lambda: left.withColumn("d", F.curdate()))
    refused(lambda: left.withColumn("e", F.unix_timestamp()))
    refused(lambda: left.withColumn("e", F.expr("UNIX_TIMESTAMP( )")))
    left.withColumn("e", F.unix_timestamp("at"))
    refused(lambda: left.withColumn("c", F.expr("CURRENT_CATALOG()")))
    refused(lambda: left.where(F.expr("current_user = 'a'")))
    refused(lambda: left.withColumn("p", F.expr("SPARK_PARTITION_ID()")))
    refused(lambda: left.union(right))
    refused(lambda: left.select(df["z"]))
    refused(lambda: left.groupBy("k").agg(F.sum("x") + F.rand()))
    refused(lambda: flow.input("variants", "v variant")[0].distinct())
    refused(lambda: left.withColumn("__x", F.lit(1)))
    refused(lambda: left.orderBy("k") if hasattr(left, "orderBy") else left["none"])
    some.count().keep()
    left_in.insert([(1, 2, None, None)])
    right_in.insert([(1, 2.0, None, "a")])
    left_in.close(), right_in.close()
    flow.step()
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

spark = SparkSession.builder.getOrCreate()

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

PIPELINES = ROOT / "examples" / "pipelines"


def run(command, folder, **environment):
    """The output of a program that knows no session of another one."""
    pytest.importorskip("grpc_status", reason="the client of Spark Connect is not installed")
    # Not the session that other tests use, if its address is in the environment.
    inherited = {name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    ran = subprocess.run(
        command, env={**inherited, "PYTHONPATH": path, **environment}, cwd=folder,
        capture_output=True, text=True, timeout=600,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout.splitlines()


@pytest.fixture
def over(tmp_path):
    """Runs a program over a server."""
    pytest.importorskip("grpc_status", reason="the client of Spark Connect is not installed")
    with server(tmp_path / "server", level="info") as (address, log):
        yield lambda program, *arguments: run(
            [sys.executable, "-c", program, *map(str, arguments)], tmp_path, SPARK_REMOTE=address
        ), log


def test_the_spark_runner_over_connect(over, tmp_path):
    assert over[0](PROGRAM, tmp_path / "patience") == [
        "[(0, 45, 6), (1, 60, 6), (2, 105, 6)]", "[(0, -2, 2), (0, 3, 1), (1, 2, 1)]",
        "interrupted", "[(1, 1), (2, 1)] True", "5",
    ]


def test_what_is_asked_leaves_no_stack_trace_in_the_log_of_the_server(over):
    """Whether an expression belongs to one side, say, is known without an analysis that fails."""
    ask, log = over
    printed = ask(ASKED)
    # The place of each request that is not refused.
    assert [place for place, line in enumerate(printed) if line == "taken"] == []
    text = log.read_text()
    assert "SparkConnectServer" in text  # it is the right file
    traces = re.findall(r"^.*\n(?:.*\n)??\tat .*", text, re.MULTILINE)
    assert traces == []


def test_every_test_left_out_over_connect_says_why():
    """In the sources, as those of a file that is not run say nothing when it is collected."""
    reasons = []
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".classic_only"):
                reason = node.args[0] if len(node.args) == 1 and not node.keywords else None
                text = reason.value if isinstance(reason, ast.Constant) else None
                assert isinstance(text, str) and text.strip(), f"{path.name}:{node.lineno}"
                reasons.append(text)
    assert reasons


def test_the_data_source_over_connect(over, tmp_path):
    before, two = [(1, "a"), (2, "b")], [(1, "a"), (2, "b"), (2, "b"), (2, "c")]
    assert over[0](DATA_SOURCE, tmp_path) == list(map(str, [
        [], before, [], two, [(1, "a"), (2, "c")], [(1, "a"), (2, "b"), (2, "c")],
        [*two, (3, "d")], [(1, "a"), (2, "c")], [(1, "a"), (2, "b"), (2, "c"), (3, "d")],
    ]))


def test_a_pipeline_reads_and_writes_a_store(tmp_path):
    """The example: as a table and as a stream, and as a sink; each run goes on where it was."""
    shutil.copytree(PIPELINES, tmp_path / "pipelines")
    specification = tmp_path / "pipelines" / "spark-pipeline.yml"
    specification.write_text(specification.read_text().replace("/data/clicks", str(tmp_path)))
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.sql.catalogImplementation hive\nspark.sql.shuffle.partitions 2\n")
    (tmp_path / "landing").mkdir()
    started = {"SPARK_CONF_DIR": str(tmp_path)}

    def night(*clicks):
        (tmp_path / "landing" / f"{uuid.uuid4()}.json").write_text("\n".join(
            json.dumps({"id": id, "page": page, "seconds": 2}) for id, page in clicks))
        command = [sys.executable, str(PIPELINES / "night.py"), "--store", str(tmp_path / "store")]
        printed = run(command, tmp_path)
        program = Path(sys.executable).parent / "spark-pipelines"
        run([str(program), "run", "--spec", str(specification)], specification.parent, **started)
        tables = specification.parent / "spark-warehouse"
        return printed, *(
            sorted(tuple(row.values()) for row in pq.read_table(tables / name).to_pylist())
            for name in ("busy_pages", "changes_of_pages")
        )

    assert night((1, "home"), (2, "home"), (3, "shop")) == ([], [], [])
    first = [("home", 2, 4, 1, 1), ("shop", 1, 2, 1, 1)]
    assert night((2, "shop")) == (["home 2 4", "shop 1 2"], [("home", 2, 4)], first)
    printed, busy, changes = night((4, "help"))
    assert (printed, busy) == (["home 1 2", "shop 2 4"], [("shop", 2, 4)])
    assert changes == sorted([
        *first, ("home", 2, 4, 2, -1), ("home", 1, 2, 2, 1), ("shop", 1, 2, 2, -1),
        ("shop", 2, 4, 2, 1),
    ])
