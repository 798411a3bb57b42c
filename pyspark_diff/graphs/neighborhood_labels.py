"""Label propagation in which a vote counts more if two nodes have neighbours in common."""

from __future__ import annotations

from pyspark.sql import functions as F

from pyspark_diff.frame.diffframe import DiffFrame


def neighborhood_labels(
    labels: DiffFrame, edges: DiffFrame, rounds: int, direct: float, similarity: float
) -> DiffFrame:
    """``node`` and ``label`` after some rounds.

    Parameters
    ----------
    labels : DiffFrame
        ``node``, each once, and its first ``label``.
    edges : DiffFrame
        ``node`` and ``other``: the label of a node is a vote for the other one. Each of parallel
        edges is a vote, and an end may be no node.
    rounds : int
    direct, similarity : float
        The weight of an edge is ``direct + similarity * c``, with the number c of nodes that both
        ends have edges to.

    Notes
    -----
    A node takes the label with the largest sum of weights, and the largest one of several labels.
    The numbers of votes and of common neighbours are whole, so that sums do not depend on their
    order. A node without votes keeps its label.

    Source: Xie, Szymanski, "Community detection using a neighborhood strength driven label
    propagation algorithm", IEEE Network Science Workshop 2011; GraphFrames'
    ``neighborhood_aware_cdlp``.
    """
    nodes = labels.select("node")
    inner = edges.join(nodes, "node", "left_semi").join(nodes.toDF("other"), "other", "left_semi")
    arcs = inner.select("node", "other")
    near = edges.distinct()
    shared = arcs.distinct().join(near.toDF("node", "third"), "node").join(
        near.toDF("other", "third"), ["other", "third"])
    common = shared.select("node", "other").count().toDF("node", "other", "common")
    weighted = arcs.join(common, ["node", "other"], "left").select(
        "node", "other", F.coalesce("common", F.lit(0).cast("long")).alias("common"))
    weight = F.lit(float(direct)) * F.col("votes") + F.lit(float(similarity)) * F.col("common")
    order = [F.col("weight").desc(), F.col("label").desc()]

    def round_of(now: DiffFrame) -> DiffFrame:
        sent = now.join(weighted, "node").select("other", "label", "common")
        sums = sent.toDF("node", "label", "common").groupBy("node", "label").agg(
            F.count("*").alias("votes"), F.sum("common").alias("common"))
        best = sums.select("node", "label", weight.alias("weight")).top_k(1, order, per="node")
        return silent.union(best.select("node", "label"))

    # A message of a node comes in each round, so the nodes without messages are always the same.
    silent = labels.join(arcs.select("other").toDF("node").distinct(), "node", "left_anti")
    return labels.iterate(
        round_of, max_iterations=rounds, on_limit="return", name="neighborhood_labels")
