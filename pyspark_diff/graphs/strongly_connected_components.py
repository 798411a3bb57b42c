"""Strongly connected components: sets of nodes that can reach each other."""

from __future__ import annotations

from typing import Any

from pyspark.sql import functions as F

from pyspark_diff.frame.diffframe import DiffFrame
from pyspark_diff.frame.loops import MAX_ITERATIONS, Loop
from pyspark_diff.graphs.edges import graph_of
from pyspark_diff.graphs.propagation import named_by_smallest, own_labels, smallest_labels

#: The number of passes with loops outside of another loop, whose rounds are cheap.
PASSES = 2


def strongly_connected_components(
    edges: Any, nodes: Any = None, *, src: str = "src", dst: str = "dst"
) -> DiffFrame:
    """The strongly connected component of each node: the smallest node that it can reach and that
    can reach it.

    Parameters
    ----------
    edges : DiffFrame, DataFrame, or object with ``vertices`` and ``edges``
        Directed. Parallel edges and self-loops make no difference, but the end of a self-loop is a
        node.
    nodes : DiffFrame, DataFrame or sequence of ids, optional
        Nodes that may have no edge: column ``node`` (or ``id``), of the type of ``src``. Vertices
        of ``edges`` count without being named.
    src, dst : str
        The columns of an edge's ends.

    Returns
    -------
    DiffFrame
        ``node``, each once, and ``component``, of the same type.

    Raises
    ------
    SchemaError
        If a column is missing, or types differ.

    Notes
    -----
    First the program removes nodes without an edge to them or without an edge from them, one after
    another. Labels spread forwards, and edges whose ends have different labels are removed, as no
    cycle has such an edge; then the same backwards. If both labels of a node are equal, the node
    with that label reaches it and is reachable from it: these nodes are whole components. The order
    of labels is random, so that few labels pass a node; a component is named at the end.

    A second pass processes the rest, components that are connected by edges in one direction. Two
    nested loops process the remaining edges until no edge is removed: then each connected part has
    one label. On most graphs nothing remains for them.

    A round of a nested loop costs some ten times as much as any other round, and the outer loop has
    as many rounds as there are components in a chain. Memory grows as n log n with the number of
    nodes, and the number of rounds with the longest of the shortest paths within a component. A
    step with more than 10,000 rounds fails with a `StalledError`.

    One changed edge of 1M between 100k nodes takes about 15 ms on two cores, 1/140 of loading them.

    Source: trimming and the labels of both directions: Slota, Rajamanickam, Madduri, "BFS and
    coloring-based parallel algorithms for strongly connected components and related problems",
    IPDPS 2014; Orzan, "On distributed verification and verified distribution", 2004; the nested
    loops: differential-dataflow ``algorithms/graphs/scc.rs``.

    Examples
    --------
    >>> from pyspark_diff.graphs import strongly_connected_components
    >>> rows = [(1, 2, 0, 1), (2, 1, 0, 1), (2, 3, 0, 1), (3, 1, 5, 1)]
    >>> edges = spark.createDataFrame(rows, "src long, dst long, time int, diff int")
    >>> found = strongly_connected_components(edges)
    >>> sorted(tuple(row) for row in found.at(0).collect())
    [(1, 1), (2, 1), (3, 3)]
    >>> sorted(tuple(row) for row in found.at(5).collect())
    [(1, 1), (2, 1), (3, 1)]
    """
    arcs, all_nodes = graph_of(edges, nodes, src=src, dst=dst)
    rest = arcs.where(F.col("src") != F.col("dst")).toDF("node", "other")
    components: list[DiffFrame] = []
    for _ in range(PASSES):
        whole, rest = _settled(rest)
        components.append(whole)
    settled = named_by_smallest(components[0].concat(*components[1:], _nested(rest)))
    alone = all_nodes.antijoin(settled, "node")
    return settled.union(alone.withColumn("component", F.col("node")))


def _settled(arcs: DiffFrame) -> tuple[DiffFrame, DiffFrame]:
    """Nodes with the labels of their components, from one pass in each direction, and the edges of
    all other nodes."""
    arcs, nodes = _trimmed(arcs)
    own = own_labels(nodes)
    forwards = smallest_labels(own, arcs)
    back = _turned(arcs, forwards)
    backwards = smallest_labels(own, back)
    # The node with the smallest label that reaches these nodes is reachable from them, so it is in
    # their component.
    whole = forwards.join(backwards, ["node", "label"])
    return whole, _turned(back, backwards).antijoin(whole, "node")


def _trimmed(arcs: DiffFrame) -> tuple[DiffFrame, DiffFrame]:
    """The edges and nodes after the repeated removal of nodes without an edge to them, or without
    an edge from them.

    The remaining nodes are on cycles, or on paths from one cycle to another.
    """
    back = arcs.select("other", "node").toDF("node", "other")
    # The result at the limit of iterations is correct, too, as it only has more nodes.
    with Loop(MAX_ITERATIONS, on_limit="return", name="trimmed") as loop:
        left = loop.variable(arcs.select("node").union(back.select("node")).distinct())
        reached = left.join(arcs, "node").select("other").toDF("node").distinct()
        leading = left.join(back, "node").select("other").toDF("node").distinct()
        both = left.set(reached.join(leading, "node"))
    nodes = loop.leave(both)
    remaining = arcs.join(nodes, "node").join(nodes.toDF("other"), "other").select("node", "other")
    return remaining, nodes


def _turned(arcs: DiffFrame, labels: DiffFrame) -> DiffFrame:
    """The edges whose ends have the same label, reversed."""
    sent = arcs.join(labels, "node").select("other", "node", "label")
    # A node has one label, so the join only tests whether the other end has the same.
    same = sent.toDF("node", "other", "label").join(labels, ["node", "label"])
    return same.select("node", "other")


def _nested(arcs: DiffFrame) -> DiffFrame:
    """The label of the component of each node that has an edge."""
    own = own_labels(arcs.select("node").union(arcs.select("other").toDF("node")).distinct())
    with Loop(name="strongly_connected_components") as loop:
        remaining = loop.variable(arcs)
        forwards = smallest_labels(own, remaining)
        back = _turned(remaining, forwards)
        remaining.set(_turned(back, smallest_labels(own, back)))
    return loop.leave(forwards)
