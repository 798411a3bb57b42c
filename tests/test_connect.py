"""The Spark runner over Spark Connect; skipped where its client is not installed.

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
from pyspark.sql import SparkSession, functions as F
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


def test_the_spark_runner_over_connect(tmp_path):
    pytest.importorskip("grpc_status", reason="the client of Spark Connect is not installed")
    # Not the session that other tests use, if its address is in the environment.
    kept = {name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "patience")],
        env={**kept, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=600,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "[(0, 45, 6), (1, 60, 6), (2, 105, 6)]", "interrupted", "[(1, 1), (2, 1)] True", "5",
    ]
