"""Breadth-first search: the number of edges from a root to each node."""

from __future__ import annotations

from typing import Any

from pyspark.sql import functions as F

from pyspark_diff.frame.diffframe import DiffFrame
from pyspark_diff.graphs.edges import edges_of, ids_of
from pyspark_diff.graphs.neighbours import undirected


def bfs(
    edges: Any,
    roots: Any,
    *,
    parents: bool = False,
    directed: bool = True,
    src: str = "src",
    dst: str = "dst",
) -> DiffFrame:
    """The number of edges from the nearest root to each reachable node.

    Parameters
    ----------
    edges : DiffFrame, DataFrame, or object with ``vertices`` and ``edges``
        Parallel edges and self-loops make no difference.
    roots : DiffFrame, DataFrame or sequence of ids
        Column ``node`` (or ``id``), of the type of ``src``.
    parents : bool
        Also return the path: the node before each node.
    directed : bool
        Whether an edge leads from ``src`` to ``dst`` only, or in both directions.
    src, dst : str
        The columns of an edge's ends.

    Returns
    -------
    DiffFrame
        ``node``, each once, and ``distance`` (long). A root has distance 0, with or without edges;
        unreachable nodes have no row. With `parents` also ``parent``, of the type of ``node``: the
        least node with an edge to it that is one edge nearer to a root, and null for a root. The
        parents form a shortest path back.

    Raises
    ------
    SchemaError
        If a column is missing, or types differ.

    Notes
    -----
    The number of rounds is the largest distance; each reached edge is followed once.

    One changed edge of 1M between 100k nodes takes about 2 ms on two cores, 1/350 of loading them.

    Source: differential-dataflow ``algorithms/graphs/bfs.rs``; McSherry, Murray, Isaacs, Isard,
    "Differential dataflow", CIDR 2013.

    Examples
    --------
    >>> from pyspark_diff.graphs import bfs
    >>> rows = [(1, 2, 0, 1), (2, 3, 0, 1), (1, 3, 5, 1)]
    >>> edges = spark.createDataFrame(rows, "src long, dst long, time int, diff int")
    >>> roots = spark.createDataFrame([(1,)], "node long")
    >>> for row in bfs(edges, roots).to_df().orderBy("time", "node", "diff").collect():
    ...     print(*row)
    1 0 0 1
    2 1 0 1
    3 2 0 1
    3 2 5 -1
    3 1 5 1
    """
    listed = edges_of(edges, src=src, dst=dst, beside=roots)
    arcs = (listed if directed else undirected(listed)).toDF("node", "other")
    start = ids_of(roots, listed, "the roots").distinct().withColumn(
        "distance", F.lit(0).cast("long")
    )

    def further(near: DiffFrame) -> DiffFrame:
        moved = near.join(arcs, "node")
        longer = moved.select("other", (F.col("distance") + 1).alias("distance"))
        return start.union(longer).top_k(1, "distance", per="node")

    reached = start.iterate(further, name="bfs")
    return _with_parents(reached, arcs) if parents else reached


def _with_parents(reached: DiffFrame, arcs: DiffFrame) -> DiffFrame:
    """The reached nodes with the node before each."""
    nearer = reached.join(arcs, "node").select(
        F.col("other").alias("node"), (F.col("distance") + 1).alias("distance"),
        F.col("node").alias("parent"),
    )
    first = nearer.join(reached, ["node", "distance"]).groupBy("node", "distance").agg(
        F.min("parent").alias("parent")
    )
    kind = reached.schema["node"].dataType
    roots = reached.where(F.col("distance") == 0).withColumn("parent", F.lit(None).cast(kind))
    return roots.union(first)
