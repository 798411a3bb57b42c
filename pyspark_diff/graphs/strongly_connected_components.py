"""Strongly connected components: which nodes can reach each other."""

from __future__ import annotations

from typing import Any

from pyspark_diff.frame.diffframe import DiffFrame
from pyspark_diff.frame.loops import Loop
from pyspark_diff.graphs.edges import graph_of
from pyspark_diff.graphs.propagation import own_labels, smallest_labels


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
    Two nested loops. Labels spread forwards, and edges whose ends have different labels go, since
    no cycle has such an edge; then the same backwards; until nothing goes. In a part that still
    hangs together all nodes then have one label in each direction, its smallest node, which so
    reaches all of them and is reached by all: it is a component. Edges only ever go, so there are
    at most as many outer rounds as components in a chain.
    Source: differential-dataflow ``algorithms/graphs/scc.rs``; McSherry, Murray, Isaacs, Isard,
    "Differential dataflow", CIDR 2013.

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
    arcs, every = graph_of(edges, nodes, src=src, dst=dst)
    own = own_labels(every)

    def turned(kept: DiffFrame, labels: DiffFrame) -> DiffFrame:
        """The edges whose ends have the same label, turned around."""
        sent = kept.join(labels, "node").select("other", "node", "component")
        # A node has one label, so this only asks whether the other end has the same.
        same = sent.toDF("node", "other", "component").join(labels, ["node", "component"])
        return same.select("node", "other")

    with Loop(name="strongly_connected_components") as loop:
        kept = loop.variable(arcs.toDF("node", "other"))
        forwards = smallest_labels(own, kept)
        back = turned(kept, forwards)
        kept.set(turned(back, smallest_labels(own, back)))
    return loop.leave(forwards)
