"""Local clustering: how many of a node's neighbours are neighbours of each other."""

from __future__ import annotations

from typing import Any

from pyspark.sql import functions as F

from pyspark_diff.frame.diffframe import DiffFrame
from pyspark_diff.graphs.edges import graph_of
from pyspark_diff.graphs.neighbours import ends, occurrences, one_way_each, simple
from pyspark_diff.graphs.triangles import triangles_of


def local_clustering(
    edges: Any,
    nodes: Any = None,
    *,
    directed: bool = False,
    src: str = "src",
    dst: str = "dst",
) -> DiffFrame:
    """Degree, triangles and local clustering coefficient of each node.

    Parameters
    ----------
    edges : DiffFrame, DataFrame, or object with ``vertices`` and ``edges``
        Taken as an undirected simple graph: parallel and opposite edges are one, self-loops none,
        but the end of a self-loop is a node.
    nodes : DiffFrame, DataFrame or sequence of ids, optional
        Nodes that may have no edge: column ``node`` (or ``id``), of the type of ``src``. Vertices
        of ``edges`` count without being named.
    directed : bool
        Count the edges between neighbours, opposite ones as two, and not the pairs; a neighbour is
        who has an edge to the node or from it. So Graphalytics defines it for directed graphs.
    src, dst : str
        The columns of an edge's ends.

    Returns
    -------
    DiffFrame
        ``node``, each once; ``degree`` (long), its number of neighbours; ``triangles`` (long), the
        number of pairs of these that are neighbours; and ``coefficient`` (double), that number
        divided by the number of all pairs of neighbours, or 0.0 with fewer than two of them. If
        `directed`, ``edges`` instead of ``triangles``, and a pair may have two of them.

    Raises
    ------
    SchemaError
        If a column is missing, or types differ.

    Notes
    -----
    One changed edge of 100k between 10k nodes takes about 38 ms on two cores, 1/10 of loading them.
    Source: Watts, Strogatz, "Collective dynamics of 'small-world' networks", Nature 393, 1998;
    directed: Iosup and others, "LDBC Graphalytics", VLDB 9(13), 2016.

    Examples
    --------
    >>> from pyspark_diff.graphs import local_clustering
    >>> edges = spark.createDataFrame([(1, 2), (2, 3), (3, 1), (3, 4)], "src long, dst long")
    >>> local_clustering(edges).at(0).orderBy("node").show()
    +----+------+---------+------------------+
    |node|degree|triangles|       coefficient|
    +----+------+---------+------------------+
    |   1|     2|        1|               1.0|
    |   2|     2|        1|               1.0|
    |   3|     3|        1|0.3333333333333333|
    |   4|     1|        0|               0.0|
    +----+------+---------+------------------+
    <BLANKLINE>
    """
    arcs, every = graph_of(edges, nodes, src=src, dst=dst)
    pairs = simple(arcs)
    found = triangles_of(pairs)
    if directed:
        ways = one_way_each(arcs)
        corners = _across(found, ways, "b", "c", "a").concat(
            _across(found, ways, "a", "c", "b"), _across(found, ways, "a", "b", "c")
        )
    else:
        corners = found.select("a").union(found.select("b")).union(found.select("c")).toDF("node")
    closed = "edges" if directed else "triangles"
    sums = occurrences(every, degree=ends(pairs), **{closed: corners})
    degree = F.col("degree")
    share = F.col(closed) * (1 if directed else 2) / (degree * (degree - 1))
    return sums.withColumn("coefficient", F.when(degree > 1, share).otherwise(0.0))


def _across(
    triangles: DiffFrame, ways: DiffFrame, first: str, second: str, corner: str
) -> DiffFrame:
    """A corner of each triangle, as often as there are edges between the two others."""
    return triangles.join(ways.toDF(first, second), [first, second]).select(corner).toDF("node")
