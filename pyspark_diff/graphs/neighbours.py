"""Other forms of edges: by both ends, reversed, as an undirected simple graph."""

from __future__ import annotations

from pyspark.sql import functions as F

from pyspark_diff.frame.diffframe import DiffFrame


def ends(edges: DiffFrame) -> DiffFrame:
    """Column ``node``: both ends of each edge, so each node once for every end."""
    return edges.select("src").union(edges.select("dst")).toDF("node")


def occurrences(nodes: DiffFrame, **among: DiffFrame) -> DiffFrame:
    """The multiplicity of each node in several collections: ``node``, and a column (long) for each
    collection.

    Each occurrence is a record with a 1 in its column, so the operator keeps only sums.
    """
    def counting(collection: DiffFrame, name: str | None) -> DiffFrame:
        counts = {each: F.lit(int(each == name)) for each in among}
        return collection.toDF("node").withColumns(counts)

    parts = counting(nodes, None).concat(*(counting(some, name) for name, some in among.items()))
    return parts.groupBy("node").agg(*(F.sum(name).alias(name) for name in among))


def both_ways(edges: DiffFrame) -> DiffFrame:
    """Each edge and its reverse, as a node and its neighbour: ``node`` and ``other``."""
    return edges.union(edges.select("dst", "src")).toDF("node", "other")


def undirected(edges: DiffFrame) -> DiffFrame:
    """Each edge and its reverse, of the same columns; a self-loop is its own reverse."""
    turned = edges.where(F.col("src") != F.col("dst"))
    return edges.union(turned.select("dst", "src", *edges.columns[2:]).toDF(*edges.columns))


def one_way_each(edges: DiffFrame) -> DiffFrame:
    """The two ends of an edge in order, once for each direction with an edge: one or two.

    Parallel edges count once, and self-loops do not count.
    """
    once = edges.where(F.col("src") != F.col("dst")).distinct()
    up = once.where(F.col("src") < F.col("dst"))
    return up.union(once.where(F.col("src") > F.col("dst")).select("dst", "src"))


def simple(edges: DiffFrame) -> DiffFrame:
    """The undirected simple graph: each pair of neighbours once, with ``src < dst``.

    Parallel and opposite edges are one, and self-loops none.
    """
    up = edges.where(F.col("src") < F.col("dst"))
    down = edges.where(F.col("src") > F.col("dst")).select("dst", "src")
    return up.union(down).distinct()
