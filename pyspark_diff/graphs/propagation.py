"""The smallest label that reaches a node: what both kinds of components are found by."""

from __future__ import annotations

from typing import Any, Sequence, cast

from pyspark.sql import Column, is_remote
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.frame.diffframe import DiffFrame
from pyspark_diff.frame.loops import MAX_ITERATIONS, Loop

#: How many bits a label has more than the last one of those that enter before it.
BITS = 2
#: So many iterations lie between labels of one size and the next: time for most to spread. Those in
#: which nothing happens cost nothing.
APART = 256
#: The bits of a number of each type without its sign.
_WIDTHS: dict[type[T.DataType], int] = {
    T.ByteType: 7, T.ShortType: 15, T.IntegerType: 31, T.LongType: 63,
}
#: More than the last iteration in which a label enters.
_ENTERED = 66 * APART


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
    Where labels are integers small ones go first, those of a size when the smaller ones have mostly
    come to rest: a label that finds a smaller one at its node never sets out. All at once, each
    would go as far as it is the smallest until then. The size is that of the number, and its
    distance from the least of its type below zero, so it is the same whatever else there is; where
    all labels are about as large, as with a large number added to each, they go at once.

    A label travels one arc in a round, so the number of rounds is the number of arcs that smallest
    labels travel: up to the number of nodes on a long path, and few on most graphs.
    Source: differential-dataflow, ``propagate_at`` of ``algorithms/graphs/propagate.rs``.

    Right under deletions as well: a label whose way is cut is found again from nothing at that
    time, since every round of the loop is a time of its own, and no node can keep a label alive by
    lending it to another and borrowing it back.
    """
    with Loop(_ENTERED + MAX_ITERATIONS, name="smallest_labels") as loop:
        sent = loop.variable(labels.where(F.lit(False)))
        smallest = _entered(labels).union(sent).top_k(1, "component", per="node")
        sent.set(smallest.join(arcs, "node").select(F.col("other").alias("node"), "component"))
    return loop.leave(smallest)


def _entered(labels: DiffFrame) -> DiffFrame:
    """The labels in a loop, small ones first where they are integers."""
    width = _WIDTHS.get(type(labels.schema["component"].dataType))
    if width is None:
        return labels
    sizes = [1 << bits for bits in range(0, width, BITS)]
    ends = [*(size - (1 << width) for size in sizes), *sizes]
    return labels.enter_at(_first_below(ends, len(ends) * APART))


def _first_below(ends: Sequence[int], otherwise: int) -> Column:
    """The iteration of the first end that a label is below."""
    if is_remote():
        # Not as text, which the server would be asked for in each step.
        cases: Any = F
        for n, end in enumerate(ends):
            cases = cases.when(F.col("component") < end, n * APART)
        return cast(Column, cases.otherwise(otherwise))
    # Each function is a question to the JVM: in columns this takes a third of a second.
    whens = " ".join(f"WHEN component < {end} THEN {n * APART}" for n, end in enumerate(ends))
    return F.expr(f"CASE {whens} ELSE {otherwise} END")
