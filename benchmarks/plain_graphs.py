"""Graph algorithms without the library, from scratch: plain Spark loops, and GraphX.

    python benchmarks/plain_graphs.py bfs 1000:2000 1000000:10000000 --graphx
    python benchmarks/plain_graphs.py k_core 1000000:5000000

GraphX is reached through Scala, which is compiled with the compiler that Spark brings. It runs in
a process of its own, which has half of the machine's memory and may run out of it, or of time.
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
#: Up to this many nodes are sent to all edges. That halves the processor time, and takes memory.
BROADCAST = 2_000_000
#: Seconds after which GraphX is stopped.
LIMIT = 600
SCALA = Path(__file__).parent / "graphx" / "GraphXBaseline.scala"


def bfs(edges: DataFrame, root: int = ROOT) -> DataFrame:
    """Distances from a root: columns ``node`` and ``distance``."""
    spark = edges.sparkSession
    cores = spark.sparkContext.defaultParallelism
    frontier = spark.range(root, root + 1).toDF("node")
    reached = frontier.select("node", F.lit(0).cast("long").alias("distance"))
    distance = 0
    while True:
        distance += 1
        on = F.col("node") == F.col("src")
        # Edges that stay where they are halve the processor time on a large graph.
        further = F.broadcast(frontier).join(edges, on)
        targets = further.select(F.col("dst").alias("node")).distinct()
        found = targets.join(reached, "node", "left_anti")
        found = found.withColumn("distance", F.lit(distance).cast("long")).localCheckpoint()
        if found.count() == 0:
            return reached
        # Without this the loop takes twice as long on a small graph, and no less on a large one.
        reached = reached.union(found).coalesce(cores).localCheckpoint()
        frontier = found.select("node")


def reachability(edges: DataFrame, root: int = ROOT) -> DataFrame:
    """The nodes that can be reached from a root: columns ``node`` and ``root``."""
    return bfs(edges, root).select("node", F.lit(root).cast("long").alias("root"))


def simple(edges: DataFrame) -> DataFrame:
    """The edges of a simple undirected graph, each once, the smaller end first."""
    small, large = F.least("src", "dst").alias("src"), F.greatest("src", "dst").alias("dst")
    return edges.where("src != dst").select(small, large).distinct()


def k_core(edges: DataFrame, k: int = K) -> DataFrame:
    """Edges of the k-core of a simple graph: columns ``src`` and ``dst``."""
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
    """The smallest node of each node's component: columns ``node`` and ``component``."""
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
    """Each edge and its reverse."""
    return edges.union(edges.select("dst", "src"))


@dataclass(frozen=True)
class Digest:
    """What a collection holds, whatever the order: its number of records, and a sum of hashes."""

    records: int
    hashes: int

    @classmethod
    def of(cls, frame: DataFrame) -> "Digest":
        """The digest of a frame whose columns are integers."""
        columns = ", ".join(f"CAST(`{name}` AS BIGINT)" for name in frame.columns)
        row = frame.selectExpr(
            "count(*) records", f"sum(CAST(xxhash64({columns}) AS DECIMAL(38, 0))) hashes"
        ).first()
        assert row is not None  # an aggregate without keys has one row
        return cls(row.records, int(row.hashes or 0))

    @classmethod
    def of_updates(cls, updates: pa.Table) -> "Digest":
        """The digest of what update rows add up to: columns of longs, then time and diff."""
        *values, _, diffs = updates.columns
        hashes, diff = spark_xxhash64(values), diffs.to_numpy()
        # In two halves, as the sum does not fit into 64 bits.
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
        From edges to the answer, with plain Spark.
    prepare : callable
        What is done to the edges before; it is not part of the loop's time.
    graphx : str
        Function of `GraphXBaseline`; empty if it has none.
    argument : int
        Its second argument.
    """

    loop: Callable[[DataFrame], DataFrame]
    prepare: Callable[[DataFrame], DataFrame]
    graphx: str
    argument: int

    def answer(self, edges: DataFrame) -> DataFrame:
        """The answer, whatever it takes."""
        return self.loop(self.prepare(edges))

    def measure(self, spark: SparkSession, path: str) -> tuple[float, float, DataFrame]:
        """Seconds to read and cache the edges, seconds of the loop over them, and its answer."""
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
    """GraphX gave no answer; the message says why."""


class GraphX:
    """GraphX, ready to run. It holds state: a folder with what was compiled.

    Parameters
    ----------
    folder : str
        Where to put what is compiled.
    limit : float
        Seconds after which a run is stopped.
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
        """A function of `GraphXBaseline` in a process of its own.

        Parameters
        ----------
        baseline : Baseline
        warm : str
            Edges of a small graph, to warm the JVM.

        Yields
        ------
        callable
            Takes the path of edges; gives seconds and sums, or raises `Failed`. The process is
            not used again then.
        """
        job = [baseline.graphx, str(baseline.argument), self._jar, warm]
        with tempfile.TemporaryFile("w+") as told:
            child = subprocess.Popen(
                [sys.executable, __file__, "in-this-process", *job],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=told,
                text=True,
                start_new_session=True,  # its JVM goes with it
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
                    told.seek(0)
                    lines = told.read().splitlines()
                    thrown = re.compile(r"(Caused by: )?[\w.]+(Error|Exception)\b")
                    errors = [line for line in lines if thrown.match(line)]
                    raise Failed((errors or lines or ["no message"])[0].strip())
                found: dict[str, Any] = json.loads(answer)
                return found

            try:
                yield run
            finally:
                stop()
                child.communicate()


def _asked(child: subprocess.Popen[str], path: str) -> str:
    """The answer of a process about a path; empty if it has come to an end."""
    assert child.stdin is not None and child.stdout is not None  # both are pipes
    try:
        child.stdin.write(path + "\n")
        child.stdin.flush()
    except BrokenPipeError:
        return ""
    # A JVM may say something too.
    return next((line for line in child.stdout if line.startswith("{")), "")


def graphx_here(function: str, argument: int, jar: str, warm: str) -> None:
    """Answer about each path on standard input, in a session of this process."""
    # Graphs are held in the heap, which is small otherwise: our own work is outside of it.
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
    """Rows of something that knows no changes, and has to compute everything after each batch.

    Parameters
    ----------
    name : str
    measured : callable
        From a path to the seconds that it takes to read the edges, and to compute on them.
    graph : Graph
    shapes : list of (int, int)
        Rounds in a batch, and in all.
    limit : float
        A row is stopped after so many seconds, those of reading and of computing.
    """
    rows = []
    for batch, changes in shapes if limit else []:
        reading: list[float] = []
        took: list[float] = []
        for first in range(0, changes, batch):
            if sum(reading) + sum(took) >= limit:
                break
            path = graph.write_after(min(first + batch, changes))
            before, one = measured(path)
            shutil.rmtree(path)
            reading.append(before)
            took.append(one)
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
    """What GraphX gives of an answer: number of records, and sum of the columns that count."""
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
                found = [baseline.measure(spark, graph.path) for _ in range(options.repeats)]
            row = {
                "nodes": nodes,
                "edges": edges,
                "cache_seconds": [round(before, 2) for before, _, _ in found],
                "plain_seconds": [round(took, 2) for _, took, _ in found],
                **sums(found[-1][2]),
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
