"""Maximal independent sets: nodes without edges between them, to which no node can be added."""

from __future__ import annotations

from typing import Any

from pyspark.sql import functions as F

from pyspark_diff.frame.diffframe import DiffFrame
from pyspark_diff.graphs.edges import graph_of
from pyspark_diff.graphs.neighbours import both_ways
from pyspark_diff.graphs.propagation import own_labels


def maximal_independent_set(
    edges: Any, nodes: Any = None, *, src: str = "src", dst: str = "dst"
) -> DiffFrame:
    """Nodes without edges between them, such that every other node has an edge to one of them.

    Parameters
    ----------
    edges, nodes, src, dst
        The graph, as in `connected_components`: taken as undirected.

    Returns
    -------
    DiffFrame
        ``node``, each node of the set once.

    Raises
    ------
    SchemaError
        If a column is missing, or types differ.

    Notes
    -----
    Nodes have an order that looks random and depends on their ids alone. A node is in the set if no
    neighbour before it is in the set. So the set depends on the graph alone, and on no earlier
    change. The number of rounds is that of the longest path in this order, which is about the
    logarithm of the number of nodes.

    Source: Blelloch, Fineman, Shun, "Greedy sequential maximal independent set and matching are
    parallel on average", SPAA 2012.

    Examples
    --------
    >>> from pyspark_diff.graphs import maximal_independent_set
    >>> rows = [(0, n, time, diff) for n in (1, 2, 3) for time, diff in ((0, 1), (5, -1))]
    >>> edges = spark.createDataFrame(rows, "src long, dst long, time int, diff int")
    >>> chosen = maximal_independent_set(edges, [0, 1, 2, 3])
    >>> [sorted(row.node for row in chosen.at(time).collect()) for time in (0, 5)]
    [[1, 2, 3], [0, 1, 2, 3]]
    """
    listed, all_nodes = graph_of(edges, nodes, src=src, dst=dst)
    labels = own_labels(all_nodes)
    arcs = both_ways(listed.where(F.col("src") != F.col("dst"))).distinct()
    first = arcs.join(labels, "node").toDF("first", "node", "before")
    later = first.join(labels, "node").where(F.col("before") < F.col("label"))
    follows = later.select("first", "node").toDF("node", "other")

    def round_of(chosen: DiffFrame) -> DiffFrame:
        beaten = chosen.join(follows, "node").select("other").toDF("node").distinct()
        return all_nodes.antijoin(beaten, "node")

    return all_nodes.iterate(round_of, name="maximal_independent_set")
