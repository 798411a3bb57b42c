"""The smallest label that reaches a node: the basis of both kinds of components."""

from __future__ import annotations

from typing import Any, Sequence, cast

from pyspark.sql import Column, is_remote
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.frame.diffframe import DiffFrame
from pyspark_diff.frame.loops import MAX_ITERATIONS, Loop

#: The number of bits by which the labels of one group exceed those of the previous group.
BITS = 2
#: The number of iterations between two groups, in which most labels spread. Empty iterations cost
#: nothing.
APART = 256
#: The bits of a number of each type without its sign.
_WIDTHS: dict[type[T.DataType], int] = {
    T.ByteType: 7, T.ShortType: 15, T.IntegerType: 31, T.LongType: 63,
}
#: An iteration after the last one in which a label enters.
_ENTERED = 66 * APART


def own_labels(nodes: DiffFrame) -> DiffFrame:
    """Each node with itself as its label: ``node`` and ``component``."""
    return nodes.withColumn("component", F.col("node"))


def smallest_labels(labels: DiffFrame, arcs: DiffFrame) -> DiffFrame:
    """For each node the smallest label among its own and the labels of all nodes that reach it.

    Parameters
    ----------
    labels : DiffFrame
        Each node once: ``node`` and ``component``.
    arcs : DiffFrame
        Labels spread from ``node`` to ``other``; all ends are nodes.

    Notes
    -----
    Integer labels enter in groups by size, the small ones first. A group enters when the smaller
    labels have mostly spread: a label that finds a smaller one at its node is never sent. If all
    labels entered at once, each would spread as far as it is the smallest so far. The group depends
    on the number of bits, or of its distance from the least number of its type if it is negative.
    So it does not depend on other labels; labels of one size, as with a large number added to each,
    enter together.

    A label spreads over one arc in a round. So the number of rounds is the longest path of a
    smallest label: up to the number of nodes on a path, and few on most graphs.
    Source: differential-dataflow, ``propagate_at`` of ``algorithms/graphs/propagate.rs``.

    The result is right under removals as well. Every round of the loop is a time of its own, so the
    loop recomputes a label from the beginning if its path is cut. Two nodes cannot keep a label
    alive by sending it to each other.
    """
    with Loop(_ENTERED + MAX_ITERATIONS, name="smallest_labels") as loop:
        sent = loop.variable(labels.where(F.lit(False)))
        smallest = _entered(labels).union(sent).top_k(1, "component", per="node")
        sent.set(smallest.join(arcs, "node").select(F.col("other").alias("node"), "component"))
    return loop.leave(smallest)


def _entered(labels: DiffFrame) -> DiffFrame:
    """The labels in a loop; of integers the small ones enter first."""
    width = _WIDTHS.get(type(labels.schema["component"].dataType))
    if width is None:
        return labels
    sizes = [1 << bits for bits in range(0, width, BITS)]
    ends = [*(size - (1 << width) for size in sizes), *sizes]
    return labels.enter_at(_first_below(ends, len(ends) * APART))


def _first_below(ends: Sequence[int], otherwise: int) -> Column:
    """The iteration for the first end that is greater than the label."""
    if is_remote():
        # A text would need a request to the server in each step.
        cases: Any = F
        for n, end in enumerate(ends):
            cases = cases.when(F.col("component") < end, n * APART)
        return cast(Column, cases.otherwise(otherwise))
    # Each function is a call of the JVM: with columns this takes a third of a second.
    whens = " ".join(f"WHEN component < {end} THEN {n * APART}" for n, end in enumerate(ends))
    return F.expr(f"CASE {whens} ELSE {otherwise} END")
