"""The shortest paths between two sets of vertices: a row for each path, with its vertices and
edges.

    L(t)     =  the least number of edges from a first to a last vertex at t
    rows(t)  =  all paths of L(t) edges from a first to a last vertex at t
"""

from __future__ import annotations

from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.frame.diffframe import DiffFrame


def shortest_path_rows(
    vertices: DiffFrame, edges: DiffFrame, firsts: DiffFrame, lasts: DiffFrame, most: int
) -> DiffFrame:
    """``from``, ``e0``, ``v1``, ``e1``, …, ``to`` of each shortest path, with nulls after its end.

    Parameters
    ----------
    vertices : DiffFrame
        ``node`` and ``vertex``, a struct of its columns.
    edges : DiffFrame
        ``node``, ``other`` and ``edge``, a struct of its columns.
    firsts, lasts : DiffFrame
        Column ``node``, each once.
    most : int
        The largest number of edges of a path.

    Notes
    -----
    A loop computes the distances from the first vertices. A second loop goes back from the nearest
    last vertices, over edges that lead away from the first ones: each of its records is the end of
    a shortest path.
    """
    arcs = edges.select("node", "other").distinct()
    start = firsts.withColumn("distance", F.lit(0))

    def further(near: DiffFrame) -> DiffFrame:
        moved = near.where(F.col("distance") < most).join(arcs, "node")
        longer = moved.select("other", (F.col("distance") + 1).alias("distance"))
        return start.union(longer).top_k(1, "distance", per="node")

    distances = start.iterate(further, name="bfs")
    reached = distances.join(lasts, "node", "left_semi")
    least = reached.agg(F.min("distance").alias("distance"))
    nearest = reached.join(least, "distance").select("node", F.col("distance").alias("left"))
    ends = nearest.join(vertices, "node").select(
        "node", "left", F.array("vertex").alias("vertices"),
        F.array().cast(T.ArrayType(edges.schema["edge"].dataType)).alias("edges"),
    )
    # The edges that lead away from the first vertices, with their start.
    steps = edges.join(distances, "node").join(vertices, "node").select(
        F.col("other").alias("node"), (F.col("distance") + 1).alias("distance"),
        F.col("node").alias("before"), "edge", "vertex",
    ).join(distances, ["node", "distance"]).select("node", "before", "edge", "vertex")

    def longer_ends(paths: DiffFrame) -> DiffFrame:
        longer = paths.join(steps, "node").select(
            F.col("before").alias("node"), (F.col("left") - 1).alias("left"),
            F.concat(F.array("vertex"), "vertices").alias("vertices"),
            F.concat(F.array("edge"), "edges").alias("edges"),
        )
        return ends.union(longer)

    whole = ends.iterate(longer_ends, name="bfs_paths").where("left = 0")
    between = [
        part
        for number in range(most)
        for part in (
            F.when(F.size("edges") > number, F.get("vertices", F.lit(number))).alias(f"v{number}"),
            F.get("edges", F.lit(number)).alias(f"e{number}"),
        )
    ]
    return whole.select(
        F.col("vertices")[0].alias("from"), *between[1:],
        F.element_at("vertices", -1).alias("to"),
    )
