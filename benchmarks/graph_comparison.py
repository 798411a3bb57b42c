"""GraphDiff against GraphX and plain Spark: a load, a changed edge, and runs from scratch.

    python benchmarks/graph_comparison.py 100000:1000000
    python benchmarks/graph_comparison.py 1000000:10000000 --only components --no-plain
    python benchmarks/graph_comparison.py 4000000:34000000 --skewed --only components --no-plain

Each algorithm loads a random graph, then replaces one edge in each step. GraphX and a loop of plain
Spark read the same edges. All answers must be equal where GraphX's are determined: labels of label
propagation are not. GraphX's time is that of building its graph and of the run. Absolute times
depend on the machine: quote ratios.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from dataclasses import dataclass
from typing import Any, Callable

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from graph_data import Graph, size, write_graph
from measure import Memory, save, seconds, table
from plain_graphs import ROOT, Baseline, Failed, GraphX, both_ways, components, simple
from pyspark_diff import Dataflow, DiffFrame, session
from pyspark_diff.graphs import GraphDiff

#: The rounds of page ranks and of label propagation.
ROUNDS = 10
#: Edges replaced before the measured ones, so that kernels of small steps are compiled.
WARM = 2


def page_ranks(edges: DataFrame) -> DataFrame:
    """GraphX's ranks by joins: ``id`` and ``rank``."""
    nodes = edges.select(F.explode(F.array("src", "dst")).alias("id")).distinct().cache()
    degrees = edges.groupBy("src").count()
    arcs = edges.join(degrees, "src").cache()
    ranks = nodes.withColumn("rank", F.lit(1.0))
    for _ in range(ROUNDS):
        sums = arcs.join(ranks, arcs.src == ranks.id).groupBy("dst").agg(
            F.sum(F.col("rank") / F.col("count")).alias("sum"))
        ranks = nodes.join(sums, nodes.id == sums.dst, "left").select(
            "id", (F.lit(0.15) + 0.85 * F.coalesce("sum", F.lit(0.0))).alias("rank")
        ).localCheckpoint()
    total = ranks.agg(F.count("*").alias("n"), F.sum("rank").alias("total"))
    return ranks.crossJoin(total).select("id", (F.col("rank") * F.col("n") / F.col("total")))


def node_triangles(edges: DataFrame) -> DataFrame:
    """Triangles of each node by joins: ``id`` and the number; nodes without one are left out."""
    a, b, c = (edges.toDF(*ends) for ends in (("x", "y"), ("y", "z"), ("x", "z")))
    corners = a.join(b, "y").join(c, ["x", "z"])
    return corners.select(F.explode(F.array("x", "y", "z")).alias("id")).groupBy("id").count()


def distances(edges: DataFrame) -> DataFrame:
    """Numbers of edges to the root by joins: ``id`` and ``distance``."""
    arcs = edges.cache()
    reached = arcs.sparkSession.range(ROOT, ROOT + 1).withColumn("distance", F.lit(0))
    frontier, length = reached, 0
    while frontier.take(1):
        length += 1
        further = arcs.join(F.broadcast(frontier), arcs.dst == frontier.id).select(
            F.col("src").alias("id")).distinct()
        frontier = further.join(reached, "id", "left_anti").withColumn(
            "distance", F.lit(length)).localCheckpoint()
        reached = reached.union(frontier).localCheckpoint()
    return reached


def labels(edges: DataFrame) -> DataFrame:
    """Labels after some rounds by joins, the smallest of the most frequent: ``id``, ``label``."""
    both = both_ways(edges).cache()
    now = both.select(F.col("src").alias("id")).distinct().withColumn("label", F.col("id"))
    for _ in range(ROUNDS):
        votes = both.join(now, both.src == now.id).groupBy("dst", "label").count()
        now = votes.groupBy(F.col("dst").alias("id")).agg(
            F.max_by("label", F.struct("count", -F.col("label"))).alias("label")
        ).localCheckpoint()
    return now


@dataclass(frozen=True)
class Algorithm:
    """An algorithm of this library, of GraphX and of plain Spark.

    Parameters
    ----------
    program : callable
        Returns ``id``, attributes, and the value as the last column.
    value : str
        The number that the values sum up to, over ``id`` and ``value``.
    baseline : Baseline
    is_determined : bool
        Whether GraphX returns one answer.
    """

    program: Callable[[GraphDiff], DiffFrame]
    value: str
    baseline: Baseline
    is_determined: bool = True


def _as_it_is(edges: DataFrame) -> DataFrame:
    return edges


ALGORITHMS = {
    "components": Algorithm(
        lambda graph: graph.connectedComponents(), "value",
        Baseline(components, both_ways, "components", 0)),
    "pagerank": Algorithm(
        lambda graph: graph.pageRank(maxIter=ROUNDS).vertices, "value * id",
        Baseline(page_ranks, _as_it_is, "pageRank", ROUNDS)),
    "triangles": Algorithm(
        lambda graph: graph.triangleCount(), "value",
        Baseline(node_triangles, simple, "triangles", 0)),
    "shortest_paths": Algorithm(
        lambda graph: graph.shortestPaths([ROOT]).where(F.size("distances") > 0).select(
            "id", F.col("distances")[ROOT].alias("distance")), "value",
        Baseline(distances, _as_it_is, "shortestPaths", ROOT)),
    "label_propagation": Algorithm(
        lambda graph: graph.labelPropagation(ROUNDS), "value",
        Baseline(labels, _as_it_is, "labelPropagation", ROUNDS), is_determined=False),
}


def sums(answer: DataFrame, value: str) -> tuple[int, float]:
    """Return the number of records, and the sum of a value."""
    named = answer.toDF("id", *answer.columns[1:-1], "value")
    row = named.agg(F.count("*"), F.sum(F.expr(value).cast("double"))).first()
    assert row is not None
    return row[0], row[1] or 0.0


def maintained(
    spark: SparkSession, algorithm: Algorithm, graph: Graph, steps: int
) -> tuple[dict[str, Any], tuple[int, float], tuple[int, float]]:
    """Measure a load and steps. Return the figures, and the sums before and after the steps."""
    took = []
    with Dataflow(spark) as flow:
        edges, edges_in = flow.input("edges", "src long, dst long")
        nodes, nodes_in = flow.input("nodes", "id long")
        answer = algorithm.program(GraphDiff(nodes, edges)).keep()
        rows = pq.read_table(graph.path)
        ids = spark.read.parquet(graph.path).select(
            F.explode(F.array("src", "dst")).alias("id")).distinct().toArrow()

        def load() -> None:
            nodes_in.insert(ids)
            edges_in.insert(rows)
            flow.advance_to(1)

        with Memory() as memory:
            load_seconds = seconds(load)[0]
        first = sums(answer.at(0), algorithm.value)
        for step in range(steps):
            def replace() -> None:
                edges_in.remove(graph.gone.slice(step, 1))
                edges_in.insert(graph.come.slice(step, 1))
                flow.advance_to(step + 2)

            took.append(seconds(replace)[0])
        last = sums(answer.at(steps), algorithm.value)
    return {
        "load_seconds": round(load_seconds, 2), "peak_gib": memory.gigabytes(),
        "step_ms": round(statistics.median(took[WARM:]) * 1e3, 1),
    }, first, last


def same(a: tuple[int, float], b: tuple[int, float]) -> bool:
    return a[0] == b[0] and abs(a[1] - b[1]) <= 1e-6 * max(abs(a[1]), 1.0)


def measure(
    spark: SparkSession, name: str, graph: Graph, steps: int, graphx: GraphX | None, warm: str,
    plain: bool,
) -> dict[str, Any]:
    """Measure the row of an algorithm."""
    algorithm = ALGORITHMS[name]
    row: dict[str, Any] = {"algorithm": name, "nodes": graph.nodes, "edges": graph.edges}
    figures, first, last = maintained(spark, algorithm, graph, steps)
    row |= figures
    step = figures["step_ms"] / 1e3
    if graphx is not None:
        try:
            with graphx.started(algorithm.baseline, warm) as run:
                answer = run(graph.path)
        except Failed as error:
            row |= {"graphx_error": str(error)}
        else:
            if algorithm.is_determined and not same(
                first, (answer["records"], float(answer["sum"]))
            ):
                raise AssertionError(f"{name}: GraphX has {answer}, and GraphDiff has {first}")
            took = answer["build_seconds"] + answer["seconds"]
            row |= {
                "graphx_seconds": round(took, 2), "graphx_peak_gib": answer["peak_gib"],
                "load_over_graphx": round(figures["load_seconds"] / took, 2),
                "graphx_over_step": round(took / step),
            }
    if plain:
        after = graph.write_after(steps)
        before, loop, frame = algorithm.baseline.measure(spark, after)
        counting, numbers = seconds(lambda: sums(frame, algorithm.value))
        # A node without triangles has no row in a loop, so its number of rows is not compared.
        if algorithm.is_determined and not same((0, numbers[1]), (0, last[1])):
            raise AssertionError(f"{name}: a plain loop has {numbers}, and GraphDiff has {last}")
        row |= {"plain_seconds": round(before + loop + counting, 2),
                "plain_over_step": round((before + loop + counting) / step)}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sizes", nargs="*", default=[(100_000, 1_000_000)], type=size)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--skewed", action="store_true", help="draw edges by R-MAT")
    parser.add_argument("--only", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--no-graphx", action="store_true")
    parser.add_argument("--no-plain", action="store_true")
    parser.add_argument("--limit", type=float, default=900, help="seconds of a run of GraphX")
    parser.add_argument("--json", default="benchmarks/results/graph_comparison.json")
    arguments = parser.parse_args()
    spark = session("graph comparison", memory="2g", conf={"spark.ui.enabled": False})
    spark.sparkContext.setLogLevel("ERROR")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        warm = os.path.join(folder, "warm")
        small = write_graph(warm, 1_000, 5_000, 20, skewed=arguments.skewed)
        graphx = None if arguments.no_graphx else GraphX(folder, arguments.limit)
        for nodes, edges in arguments.sizes:
            graph = write_graph(folder, nodes, edges, arguments.steps, skewed=arguments.skewed)
            for name in arguments.only:
                maintained(spark, ALGORITHMS[name], small, 3)  # compiles kernels, warms the JVM
                rows.append(measure(
                    spark, name, graph, arguments.steps, graphx, small.path,
                    not arguments.no_plain))
                print(rows[-1], flush=True)
                save(arguments.json, {"steps": arguments.steps, "algorithms": rows})
    print(table(rows))
    spark.stop()


if __name__ == "__main__":
    main()
