"""The smallest label that reaches a node: the basis of both kinds of components.

The label of a node is a permutation of its id, or begins with a hash of it. So the order of labels
is like a random one, and a node takes few labels before the smallest one: as many as the logarithm
of the number of nodes within reach. This is true of a path, too, whose nodes are numbered one after
another. Each label that a node takes is history of the loop, so the state grows in the same way.
"""

from __future__ import annotations

from typing import Any, cast

from pyspark.sql import Column, is_remote
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff import thresholds
from pyspark_diff.frame.diffframe import DiffFrame
from pyspark_diff.frame.loops import MAX_ITERATIONS, Loop

#: The number of bits by which the labels of one group exceed those of the previous group.
BITS = 2
#: The limit of rounds on the smaller graph: paths of about `label_rounds` times this length.
MERGED_ROUNDS = 100_000
#: The least numbers that are larger than the labels of a group, without the last group.
_ENDS = [(1 << bits) - (1 << 63) for bits in range(0, 64, BITS)]
_INTEGERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
#: Half of the bits of a label.
_HALF = 1 << 32
#: A factor and a modulus for each round of the permutation. The moduli are below `_HALF`, and the
#: products fit into a long.
_MIXERS = (1812433253, _HALF - 5), (1103515245, _HALF - 17)


def own_labels(nodes: DiffFrame) -> DiffFrame:
    """Each node with its own label: ``node`` and ``label``.

    Different nodes have different labels. An integer becomes a long by two rounds of a Feistel
    network, which is a permutation for all functions of its rounds. Every other id becomes a struct
    of its hash and itself.

    Examples
    --------
    >>> from pyspark_diff.graphs.propagation import own_labels
    >>> ids = spark.sql("SELECT id AS node, 0 AS time, 1 AS diff FROM range(3)")
    >>> labels = {row.label for row in own_labels(DiffFrame(ids)).at(0).collect()}
    >>> len(labels)
    3
    """
    if not isinstance(nodes.schema["node"].dataType, _INTEGERS):
        return nodes.withColumn("label", F.struct(F.xxhash64("node").alias("hash"), "node"))
    number = F.col("node").cast("long")
    halves = nodes.withColumn("low", F.pmod(number, F.lit(_HALF)))
    high = F.call_function("div", number - F.col("low"), F.lit(_HALF)) + (_HALF >> 1)
    (factor, modulus), (last_factor, last_modulus) = _MIXERS
    mixed = (high + F.col("low") * factor % modulus) % _HALF
    halves = halves.withColumn("mixed", mixed)
    first = (F.col("low") + F.col("mixed") * last_factor % last_modulus) % _HALF
    label = (first - (_HALF >> 1)) * _HALF + F.col("mixed")
    return halves.select("node", label.alias("label"))


def smallest_labels(
    labels: DiffFrame, arcs: DiffFrame, max_rounds: int = MAX_ITERATIONS
) -> DiffFrame:
    """For each node the smallest label among its own and the labels of all nodes that reach it.

    Parameters
    ----------
    labels : DiffFrame
        Each node once: ``node`` and ``label``, from `own_labels`.
    arcs : DiffFrame
        Labels spread from ``node`` to ``other``; all ends are nodes.
    max_rounds : int
        The limit of rounds after the last label has entered.

    Notes
    -----
    Labels enter in groups by size, the small ones first. A group enters when the smaller labels
    have mostly spread: a label that finds a smaller one at its node is never sent. If all labels
    entered at once, each would spread as far as it is the smallest so far. The group depends on the
    number of bits of the label's distance from the least long, so not on other labels.

    A label spreads over one arc in a round. So the number of rounds is the longest path of a
    smallest label: up to the number of nodes on a path, and few on most graphs.

    Source: differential-dataflow, ``propagate_at`` of ``algorithms/graphs/propagate.rs``.

    The result is right under removals as well. Every round of the loop is a time of its own, so the
    loop recomputes a label from the beginning if its path is cut. Two nodes cannot keep a label
    alive by sending it to each other.
    """
    with Loop(_rounds_of_entry() + max_rounds, name="smallest_labels") as loop:
        smallest = _spread(loop, labels, arcs)[1]
    return loop.leave(smallest)


def named_by_smallest(labels: DiffFrame) -> DiffFrame:
    """The smallest node with each label in place of the label: ``node`` and ``component``."""
    names = labels.top_k(1, "node", per="label").toDF("component", "label")
    return labels.join(names, "label").select("node", "component")


def connected(nodes: DiffFrame, arcs: DiffFrame) -> DiffFrame:
    """The smallest node of each node's component: ``node`` and ``component``.

    Parameters
    ----------
    nodes : DiffFrame
        Each node once.
    arcs : DiffFrame
        Each edge in both directions: ``node`` and ``other``.

    Notes
    -----
    After a limited number of rounds each node has the smallest label within `label_rounds` arcs
    at least.
    The labels are the nodes of a smaller graph; an arc between nodes with different labels is an
    arc between their labels. The components of the smaller graph join labels. If the limit is
    enough for all nodes, the smaller graph is empty and costs nothing.

    A change of an arc changes labels within the limit, and a few nodes of the smaller graph.

    Source: Kiveris, Lattanzi, Mirrokni, Rastogi, Vassilvitskii, "Connected components in MapReduce
    and beyond", SoCC 2014 (labels in random order, and contraction).
    """
    labels, links = _contracted(own_labels(nodes), arcs)
    own = links.select("node").distinct().withColumn("label", F.col("node"))
    merged = smallest_labels(own, links, MERGED_ROUNDS).toDF("label", "merged")
    # Each label with its smallest node, and the smallest label of its component.
    names = labels.top_k(1, "node", per="label").toDF("name", "label")
    names = names.join(merged, "label", "left").select(
        "label", "name", F.coalesce("merged", "label").alias("merged"))
    smallest = names.drop("label").top_k(1, "name", per="merged").toDF("component", "merged")
    components = names.join(smallest, "merged").select("label", "component")
    return labels.join(components, "label").select("node", "component")


def _contracted(labels: DiffFrame, arcs: DiffFrame) -> tuple[DiffFrame, DiffFrame]:
    """The labels after a limited number of rounds, and the pairs of different labels of neighbours
    in both directions, each once: ``node`` and ``other``."""
    limit = _rounds_of_entry() + thresholds.current.label_rounds
    with Loop(limit, on_limit="return", name="near_labels") as loop:
        before, after = _spread(loop, labels, arcs)
    near = loop.leave(after)
    # If two neighbours have different labels, the smaller label is new at its node: the neighbour
    # would have taken an older one in the last round.
    changed = near.concat(loop.leave(before).negate()).distinct()
    sent = changed.join(arcs, "node").select("other", "label").toDF("node", "from")
    pairs = sent.join(near, "node").where(F.col("from") != F.col("label"))
    links = pairs.select("from", "label").union(pairs.select("label", "from")).distinct()
    return near, links.toDF("node", "other")


def _spread(loop: Loop, labels: DiffFrame, arcs: DiffFrame) -> tuple[DiffFrame, DiffFrame]:
    """The smallest labels before and after an iteration of a loop."""
    before = loop.variable(labels.where(F.lit(False)))
    sent = before.join(arcs, "node").select("other", "label").toDF("node", "label")
    after = _entered(labels).union(sent).top_k(1, "label", per="node")
    before.set(after)
    return before, after


def _rounds_of_entry() -> int:
    """The first iteration in which no label enters."""
    return (len(_ENDS) + 1) * thresholds.current.label_group_rounds


def _entered(labels: DiffFrame) -> DiffFrame:
    """The labels in a loop; the small ones enter first."""
    rounds = thresholds.current.label_group_rounds
    size = "label" if isinstance(labels.schema["label"].dataType, T.LongType) else "label.hash"
    if is_remote():
        cases: Any = F
        for n, end in enumerate(_ENDS):
            cases = cases.when(F.col(size) < end, n * rounds)
        return labels.enter_at(cast(Column, cases.otherwise(len(_ENDS) * rounds)))
    whens = " ".join(f"WHEN {size} < {end} THEN {n * rounds}" for n, end in enumerate(_ENDS))
    return labels.enter_at(F.expr(f"CASE {whens} ELSE {len(_ENDS) * rounds} END"))
