"""Simple paths and cycles, as lists of nodes."""

from __future__ import annotations

from pyspark.sql import functions as F

from pyspark_diff.frame.diffframe import DiffFrame


def simple_paths(
    starts: DiffFrame, arcs: DiffFrame, most: int | None = None, *, from_smallest: bool = False
) -> DiffFrame:
    """All paths from some nodes that visit no node twice: ``node``, the last one, and ``path``.

    Parameters
    ----------
    starts : DiffFrame
        Column ``node``, each once.
    arcs : DiffFrame
        ``node`` and ``other``, each pair once.
    most : int, optional
        The largest number of edges of a path.
    from_smallest : bool
        Whether only paths count whose first node is the smallest one.

    Notes
    -----
    The paths of each length are records of their own, and their number may grow exponentially with
    the length. A change of an edge changes the paths over it.
    """
    first = starts.select("node", F.array("node").alias("path"))

    def longer(paths: DiffFrame) -> DiffFrame:
        short = paths if most is None else paths.where(F.size("path") <= most)
        new = short.join(arcs, "node").where(~F.array_contains("path", F.col("other")))
        if from_smallest:
            new = new.where(F.col("path")[0] < F.col("other"))
        return first.union(new.select(
            F.col("other").alias("node"), F.array_append("path", F.col("other")).alias("path")))

    return first.iterate(longer, name="simple_paths")


def cycles(nodes: DiffFrame, arcs: DiffFrame) -> DiffFrame:
    """Each cycle without a repeated node once, from its smallest node back to it: ``cycle``.

    Parameters
    ----------
    nodes : DiffFrame
        Column ``node``, each once.
    arcs : DiffFrame
        ``node`` and ``other``, each pair once.
    """
    paths = simple_paths(nodes, arcs, from_smallest=True)
    closed = paths.join(arcs, "node").where(F.col("other") == F.col("path")[0])
    return closed.select(F.array_append("path", F.col("other")).alias("cycle"))
