"""The smallest label that reaches a node: what both kinds of components are found by."""

from __future__ import annotations

from pyspark.sql import functions as F

from pyspark_diff.frame.diffframe import DiffFrame


def own_labels(nodes: DiffFrame) -> DiffFrame:
    """Each node with itself as its label: ``node`` and ``component``."""
    return nodes.withColumn("component", F.col("node"))


def smallest_labels(labels: DiffFrame, arcs: DiffFrame) -> DiffFrame:
    """For each node the smallest label among its own and those of all nodes that reach it.

    Parameters
    ----------
    labels : DiffFrame
        Each node once: ``node`` and ``component``.
    arcs : DiffFrame
        Labels go from ``node`` to ``other``; both are among the nodes.

    Notes
    -----
    After i rounds a node has the smallest label from at most i arcs away, so the number of rounds
    is the number of arcs that a smallest label travels: up to the number of nodes on a long path,
    and few on most graphs.

    Right under deletions as well: a label whose way is cut is found again from nothing at that
    time, since every round of the loop is a time of its own, and no node can keep a label alive by
    lending it to another and borrowing it back.
    """

    def round_of(now: DiffFrame) -> DiffFrame:
        sent = now.join(arcs, "node").select("other", "component")
        return labels.union(sent).top_k(1, "component", per="node")

    return labels.iterate(round_of, name="smallest_labels")
