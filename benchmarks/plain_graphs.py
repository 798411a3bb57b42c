"""Graph algorithms without the library, from scratch: plain Spark loops, and GraphX.

    python benchmarks/plain_graphs.py bfs 1000:2000 1000000:10000000 --graphx
    python benchmarks/plain_graphs.py k_core 1000000:5000000

A Scala program calls GraphX. Spark's own compiler compiles it. GraphX runs in a separate process
with half of the machine's memory, and may exhaust the memory or the time.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator

import numpy as np
import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import pyspark_diff
from graph_data import Graph, size, write_graph
from measure import Memory, machine, seconds, table
from pyspark_diff.kernels.hashing import spark_xxhash64

ROOT = 0
K = 5
#: The maximum of broadcast nodes. A broadcast halves the processor time, and costs memory.
BROADCAST = 2_000_000
#: The time limit of GraphX in seconds.
LIMIT = 600
SCALA = Path(__file__).parent / "graphx" / "GraphXBaseline.scala"


def bfs(edges: DataFrame, root: int = ROOT) -> DataFrame:
    """Return the distances from a root: columns ``node`` and ``distance``."""
    spark = edges.sparkSession
    cores = spark.sparkContext.defaultParallelism
    frontier = spark.range(root, root + 1).toDF("node")
    reached = frontier.select("node", F.lit(0).cast("long").alias("distance"))
    distance = 0
    while True:
        distance += 1
        on = F.col("node") == F.col("src")
        # Without a shuffle of the edges, a large graph takes half the processor time.
        further = F.broadcast(frontier).join(edges, on)
        targets = further.select(F.col("dst").alias("node")).distinct()
        fresh = targets.join(reached, "node", "left_anti")
        fresh = fresh.withColumn("distance", F.lit(distance).cast("long")).localCheckpoint()
        if fresh.count() == 0:
            return reached
        # Without this the loop takes twice as long on a small graph, and no less on a large one.
        reached = reached.union(fresh).coalesce(cores).localCheckpoint()
        frontier = fresh.select("node")


def reachability(edges: DataFrame, root: int = ROOT) -> DataFrame:
    """Return the nodes that a root reaches: columns ``node`` and ``root``."""
    return bfs(edges, root).select("node", F.lit(root).cast("long").alias("root"))


def simple(edges: DataFrame) -> DataFrame:
    """Return the edges of a simple undirected graph, each once, the smaller end first."""
    small, large = F.least("src", "dst").alias("src"), F.greatest("src", "dst").alias("dst")
    return edges.where("src != dst").select(small, large).distinct()


def k_core(edges: DataFrame, k: int = K) -> DataFrame:
    """Return the edges of the k-core of a simple graph: columns ``src`` and ``dst``."""
    core, before, now = edges, -1, edges.count()
    while now != before:
        ends = core.select(F.col("src").alias("node")).union(core.select("dst"))
        degrees = ends.groupBy("node").count()
        nodes = degrees.where(F.col("count") >= k).select("node").localCheckpoint()
        if nodes.count() <= BROADCAST:
            nodes = F.broadcast(nodes)
        for end in ("src", "dst"):
            core = core.join(nodes.withColumnRenamed("node", end), end, "left_semi")
        core = core.select("src", "dst").localCheckpoint()
        before, now = now, core.count()
    return core


def components(arcs: DataFrame) -> DataFrame:
    """Return the smallest node of each component: columns ``node`` and ``component``."""
    labels = arcs.select(F.col("src").alias("node")).distinct()
    labels = labels.withColumn("component", F.col("node")).localCheckpoint()
    smaller = F.col("sent") < F.col("component")
    while True:
        near = labels.join(arcs, F.col("node") == F.col("src"))
        sent = near.groupBy(F.col("dst").alias("node")).agg(F.min("component").alias("sent"))
        now = labels.join(sent, "node").select("node", F.least("component", "sent"), smaller)
        now = now.toDF("node", "component", "moved").localCheckpoint()
        labels = now.select("node", "component")
        if now.where("moved").isEmpty():
            return labels


def both_ways(edges: DataFrame) -> DataFrame:
    """Return each edge and its reverse."""
    return edges.union(edges.select("dst", "src"))


@dataclass(frozen=True)
class Digest:
    """The contents of a collection in any order: its number of records, and a sum of hashes."""

    records: int
    hashes: int

    @classmethod
    def of_frame(cls, frame: DataFrame) -> "Digest":
        """Return the digest of a frame of integer columns."""
        columns = ", ".join(f"CAST(`{name}` AS BIGINT)" for name in frame.columns)
        row = frame.selectExpr(
            "count(*) records", f"sum(CAST(xxhash64({columns}) AS DECIMAL(38, 0))) hashes"
        ).first()
        assert row is not None  # an aggregate without keys has one row
        return cls(row.records, int(row.hashes or 0))

    @classmethod
    def of_updates(cls, updates: pa.Table) -> "Digest":
        """Return the digest of the sum of updates: columns of longs, then time and diff."""
        *values, _, diffs = updates.columns
        hashes, diff = spark_xxhash64(values), diffs.to_numpy()
        # The sum of two halves: the whole sum does not fit into 64 bits.
        high, low = (int(np.dot(half, diff)) for half in (hashes >> 32, hashes & 0xFFFFFFFF))
        return cls(int(diff.sum()), (high << 32) + low)

    def __add__(self, other: "Digest") -> "Digest":
        return Digest(self.records + other.records, self.hashes + other.hashes)


@dataclass(frozen=True)
class Baseline:
    """An algorithm from scratch.

    Parameters
    ----------
    loop : callable
        Computes the answer from edges with plain Spark.
    prepare : callable
        Prepares the edges outside the loop's time.
    graphx : str
        Function of `GraphXBaseline`, or empty if GraphX has no such algorithm.
    argument : int
        Second argument of that function.
    """

    loop: Callable[[DataFrame], DataFrame]
    prepare: Callable[[DataFrame], DataFrame]
    graphx: str
    argument: int

    def answer(self, edges: DataFrame) -> DataFrame:
        """Return the answer, without a measurement."""
        return self.loop(self.prepare(edges))

    def measure(self, spark: SparkSession, path: str) -> tuple[float, float, DataFrame]:
        """Return the seconds to cache the edges, the seconds of the loop, and its answer."""
        edges = self.prepare(spark.read.parquet(path)).cache()
        try:
            before, _ = seconds(edges.count)
            took, answer = seconds(lambda: self.loop(edges))
            return before, took, answer
        finally:
            edges.unpersist()


BASELINES = {
    "bfs": Baseline(bfs, lambda edges: edges, "bfs", ROOT),
    "components": Baseline(components, both_ways, "components", 0),
    "k_core": Baseline(k_core, simple, "kCore", K),
    "reachability": Baseline(reachability, lambda edges: edges, "", ROOT),
}


class Failed(Exception):
    """GraphX returned no answer. The message is its error."""


class GraphX:
    """GraphX, ready to run. State: a folder with the compiled classes.

    Parameters
    ----------
    folder : str
        Folder of the compiled classes.
    limit : float
        Time limit of a run in seconds.
    """

    def __init__(self, folder: str, limit: float = LIMIT):
        self._limit = limit
        self._jar = os.path.join(folder, "graphx-baseline.jar")
        home = os.environ.get("JAVA_HOME")
        java = os.path.join(home, "bin", "java") if home else "java"
        jars = os.path.join(os.path.dirname(pyspark.__file__), "jars")
        arguments = ["-usejavacp", "-nowarn", "-d", self._jar, str(SCALA)]
        if not glob.glob(os.path.join(jars, "spark-graphx_*.jar")):
            jars = os.path.join(os.environ.get("SPARK_HOME", ""), "jars")
        subprocess.run(
            [java, "-cp", os.path.join(jars, "*"), "scala.tools.nsc.Main", *arguments], check=True
        )

    @contextlib.contextmanager
    def started(
        self, baseline: Baseline, warm: str
    ) -> Iterator[Callable[[str], dict[str, Any]]]:
        """Run a function of `GraphXBaseline` in a separate process.

        Parameters
        ----------
        baseline : Baseline
        warm : str
            Edges of a small graph, to warm the JVM.

        Yields
        ------
        callable
            Takes the path of edges, and returns seconds and sums. After a `Failed` error the
            process accepts no more paths.
        """
        job = [baseline.graphx, str(baseline.argument), self._jar, warm]
        with tempfile.TemporaryFile("w+") as errors_file:
            child = subprocess.Popen(
                [sys.executable, __file__, "in-this-process", *job],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors_file,
                text=True,
                start_new_session=True,  # so that a signal to the group also ends the JVM
            )

            def stop() -> None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)

            def run(path: str) -> dict[str, Any]:
                overrun = threading.Timer(self._limit, stop)
                overrun.start()
                answer = _asked(child, path)
                if overrun.finished.is_set() and not answer:
                    raise Failed(f"stopped after {self._limit:g} s")
                overrun.cancel()
                if not answer:
                    errors_file.seek(0)
                    lines = errors_file.read().splitlines()
                    thrown = re.compile(r"(Caused by: )?[\w.]+(Error|Exception)\b")
                    errors = [line for line in lines if thrown.match(line)]
                    raise Failed((errors or lines or ["no message"])[0].strip())
                result: dict[str, Any] = json.loads(answer)
                return result

            try:
                yield run
            finally:
                stop()
                child.communicate()


def _asked(child: subprocess.Popen[str], path: str) -> str:
    """Return the answer of a process about a path, or an empty text if the process has ended."""
    assert child.stdin is not None and child.stdout is not None  # both are pipes
    try:
        child.stdin.write(path + "\n")
        child.stdin.flush()
    except BrokenPipeError:
        return ""
    # A JVM may also print to this pipe.
    return next((line for line in child.stdout if line.startswith("{")), "")


def graphx_here(function: str, argument: int, jar: str, warm: str) -> None:
    """Answer about each path on standard input, in a session of this process."""
    # GraphX stores graphs in the heap. Our own sessions have a small heap, as they work outside it.
    heap = f"{machine()['memory_gib'] / 2:.0f}g"
    spark = pyspark_diff.session("GraphX", memory=heap, conf={"spark.jars": jar})
    spark.sparkContext.setLogLevel("ERROR")
    jvm: Any = spark._jvm
    baseline = getattr(jvm.benchmarks.GraphXBaseline, function)
    baseline(warm, argument)
    for line in sys.stdin:
        with Memory() as memory:
            build, run, records, total = baseline(line.rstrip("\n"), argument)
        answer = {
            "build_seconds": round(build, 2),
            "seconds": round(run, 2),
            "records": int(records),
            "sum": int(total),
            "peak_gib": memory.gigabytes(),
        }
        print(json.dumps(answer), flush=True)


def recomputed(
    name: str,
    measured: Callable[[str], tuple[float, float]],
    graph: Graph,
    shapes: list[tuple[int, int]],
    limit: float,
) -> list[dict[str, Any]]:
    """Measure the rows of a system that computes from scratch after each batch.

    Parameters
    ----------
    name : str
    measured : callable
        Returns the seconds to read the edges at a path, and the seconds of the computation.
    graph : Graph
    shapes : list of (int, int)
        Rounds in a batch, and all rounds.
    limit : float
        Time limit of a row in seconds, for reads and computations.
    """
    rows = []
    for batch, changes in shapes if limit else []:
        reading: list[float] = []
        took: list[float] = []
        for first in range(0, changes, batch):
            if sum(reading) + sum(took) >= limit:
                break
            path = graph.write_after(min(first + batch, changes))
            before, duration = measured(path)
            shutil.rmtree(path)
            reading.append(before)
            took.append(duration)
        rounds = min(len(took) * batch, changes)
        row = {
            "rounds_per_batch": batch,
            "batches": f"{len(took):,} of {len(range(0, changes, batch)):,}",
            "rounds": rounds,
            "complete": rounds == changes,
            "read_seconds": round(sum(reading), 2),
            "seconds": round(sum(took), 2),
            "median_ms": round(statistics.median(took) * 1e3, 1) if took else None,
            "us_per_round": round(sum(took) / rounds * 1e6, 1) if rounds else None,
        }
        print(f"  {name} {batch:>9,} x {row['batches']}: {row['seconds']} s", flush=True)
        rows.append(row)
    return rows


def sums(answer: DataFrame) -> dict[str, int]:
    """Return GraphX's digest of an answer: the number of records, and the sum of a column."""
    counted = {"distance": "distance", "component": "component", "dst": "src + dst", "root": "root"}
    total = f"sum({counted[answer.columns[1]]})"
    row = answer.selectExpr("count(*) records", f"{total} total").first()
    assert row is not None  # an aggregate without keys has one row
    return {"records": row.records, "sum": row.total or 0}


def main() -> None:
    """Run the baselines alone from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("baseline", choices=sorted(BASELINES))
    parser.add_argument("sizes", nargs="+", type=size, metavar="NODES:EDGES")
    parser.add_argument("--graphx", action="store_true", help="run GraphX as well")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds of GraphX")
    parser.add_argument("--repeats", type=int, default=1, help="runs of the plain loop")
    parser.add_argument("--folder", help="where generated graphs go; a temporary one if not given")
    options = parser.parse_args()
    baseline = BASELINES[options.baseline]
    if options.graphx and not baseline.graphx:
        parser.error(f"GraphX has no {options.baseline}; run it without --graphx")
    spark = pyspark_diff.session(f"plain {options.baseline}")
    spark.sparkContext.setLogLevel("ERROR")
    rows = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        graphx = GraphX(folder, options.limit) if options.graphx else None
        warm = write_graph(os.path.join(folder, "warm"), 100, 1000, 0)
        baseline.measure(spark, warm.path)
        for nodes, edges in options.sizes:
            graph = write_graph(folder, nodes, edges, 0)
            with Memory() as memory:
                runs = [baseline.measure(spark, graph.path) for _ in range(options.repeats)]
            row = {
                "nodes": nodes,
                "edges": edges,
                "cache_seconds": [round(before, 2) for before, _, _ in runs],
                "plain_seconds": [round(took, 2) for _, took, _ in runs],
                **sums(runs[-1][2]),
                "peak_gib": memory.gigabytes()["total"],
            }
            if graphx is not None:
                with graphx.started(baseline, warm.path) as run:
                    row["graphx"] = run(graph.path)
            print(row, flush=True)
            rows.append(row)
    print(table(rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["in-this-process"]:
        name, number, library, small = sys.argv[2:]
        graphx_here(name, int(number), library, small)
    else:
        main()
