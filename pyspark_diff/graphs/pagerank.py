"""PageRank in whole numbers: surfers who follow links, exact at every time.

Ranks that add up to one are whole numbers, too, in units of 2**-52.
"""

from __future__ import annotations

from fractions import Fraction
from numbers import Real
from functools import reduce
from operator import add
from typing import Any, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F

from pyspark_diff.errors import SchemaError
from pyspark_diff.frame.diffframe import DiffFrame
from pyspark_diff.graphs.edges import at_least_one, graph_of, ids_of
from pyspark_diff.graphs.neighbours import undirected

#: The number of surfers that restart at each node in every round.
RESET = 1_000_000
#: The initial number of surfers at each node with a given number of rounds: the average number at a
#: node if no surfer leaves.
START = 6 * RESET
#: The number of surfers that start at a node if ranks add up to one.
UNIT = 1 << 40
#: A sum over all nodes consists of multiples of this number, and of the rest.
_LOW = 1 << 20
#: The largest denominator of a reset probability whose shares are computed without doubles.
_DENOMINATOR = 10_000
#: The number of surfers who restart in each round, as a share of all surfers. The share of lost
#: surfers is a sum over the rounds since their last restart.
_RESTARTS = """
transform(array(array({losses})), lost -> aggregate(
    sequence(0, {last}), cast(array() as array<double>), (restarts, k) -> concat(
        restarts, array({reset}D + (1 - {reset}D) * aggregate(
            sequence(0, k), 0D, (total, i) -> total + lost[i] / ({unit}D * n)
                * if(i = k, 1D, get(restarts, k - 1 - i)))))))[0]"""


def pagerank(
    edges: Any,
    nodes: Any = None,
    *,
    rounds: int | None = 20,
    reset_probability: float | None = None,
    personal: Any = None,
    directed: bool = True,
    src: str = "src",
    dst: str = "dst",
) -> DiffFrame:
    """The number of surfers at each node, who follow edges at random and sometimes restart.

    In each round, with d(u) the number of edges from u, and ``//`` the division that drops the
    remainder::

        rank(v) := 1,000,000 + sum over edges (u, v) of 5 * rank(u) // (6 * d(u))

    Divided by 6,000,000 this is a PageRank with damping 5/6, and its average is 1 if every node has
    an edge from it. Whole numbers make it exact: ranks depend on neither earlier changes nor the
    order of additions.

    Parameters
    ----------
    edges : DiffFrame, DataFrame, or object with ``vertices`` and ``edges``
        Parallel edges count with their multiplicity, and self-loops count.
    nodes : DiffFrame, DataFrame or sequence of ids, optional
        Nodes that may have no edge: column ``node`` (or ``id``), of the type of ``src``. Vertices
        of ``edges`` count without being named.
    rounds : int, optional
        The number of rounds, from ``rank = 6,000,000`` for each node. With None, rounds until
        nothing changes, from ``rank = 1,000,000``.
    reset_probability : float, optional
        A number above 0 and below 1. With it, ranks are doubles that add up to one: see below.
    personal : DiffFrame, DataFrame or sequence of ids, optional
        With `reset_probability`: the nodes at which surfers start and restart. The default is all
        nodes. A step fails if one of them is not in the graph, unless the graph is empty.
    directed : bool
        Whether an edge leads from ``src`` to ``dst`` only, or in both directions.
    src, dst : str
        The columns of an edge's ends.

    Returns
    -------
    DiffFrame
        ``node``, each once, and ``rank`` (long; double with `reset_probability`).

    Raises
    ------
    SchemaError
        If a column is missing, types differ, ``rounds`` is not a positive whole number,
        ``reset_probability`` is no probability, or ``personal`` is given without it.

    Notes
    -----
    Surfers at a node without an edge from it leave, and so do the remainders of the division.

    A round is monotone: higher ranks never lead to lower ones, and the first round from 1,000,000
    lowers none. So with ``rounds=None`` ranks only grow. At most five sixths of the surfers stay,
    so the ranks stop at the least fixed point of the formula. (From 6,000,000 there need not be a
    fixed point: on two nodes with edges to each other the remainders can swap for ever.) After
    about 85 rounds less than one surfer moves.

    With a reset probability r, and n nodes at which surfers start, ``rank = 1 / n`` at first, and
    in each round::

        rank(v) := (r + (1 - r) * lost) / n + (1 - r) * sum over edges (u, v) of rank(u) / d(u)
        lost    := sum of rank(u) over the nodes u without an edge from them

    The first part is only for nodes at which surfers start. networkx and Graphalytics compute the
    same. GraphX scales the ranks once, after the last round, and adds no lost surfers. Its ranks
    differ by about 1 % if some nodes have no edge from them.

    The loop moves surfers, 2**40 for each start, without those who restart or leave. They are whole
    numbers, and each share is rounded down, so ranks do not depend on earlier changes. Sums over
    the rounds since the last restart are the ranks. In a graph of m edges all ranks together are
    too small by at most about ``m * rounds * rounds * 2**-40 / n``.

    A change of one edge changes the surfers at all nodes that its end reaches. If it changes n or
    the number of lost surfers, all ranks change, but only their sums are computed again.

    One changed edge of 30k between 3k nodes (5 rounds) takes a third of loading them.

    Source: Page, Brin, Motwani, Winograd, "The PageRank citation ranking: bringing order to the
    web", Stanford InfoLab 1999; differential-dataflow ``examples/pagerank.rs``; with a reset
    probability Iosup and others, "LDBC Graphalytics", VLDB 9(13), 2016.

    Examples
    --------
    >>> from pyspark_diff.graphs import pagerank
    >>> edges = spark.createDataFrame([(1, 3), (2, 3), (3, 1)], "src long, dst long")
    >>> for row in pagerank(edges, rounds=2).at(0).orderBy("node").collect():
    ...     print(*row)
    1 10166666
    2 1000000
    3 6833333
    """
    limit = None if rounds is None else at_least_one(rounds, "rounds")
    listed, all_nodes = graph_of(edges, nodes, src=src, dst=dst, beside=personal)
    if not directed:
        listed = undirected(listed)
    if reset_probability is not None:
        return _adding_up_to_one(
            listed, all_nodes, limit, _probability(reset_probability),
            all_nodes if personal is None else _starts(personal, listed, all_nodes),
        )
    if personal is not None:
        raise SchemaError("personal=... needs reset_probability=...: how often surfers start anew")
    arcs = listed.toDF("node", "other")
    degrees = listed.select("src").count().toDF("node", "degree")
    # The multiplicity of a node is the number of surfers that move there.
    reset = all_nodes.withColumn("surfers", F.lit(RESET)).weighted("surfers")
    first = RESET if limit is None else START
    start = all_nodes.withColumn("rank", F.lit(first).cast("long"))
    share = F.call_function("div", F.col("rank") * 5, F.col("degree") * 6)

    def round_of(ranks: DiffFrame) -> DiffFrame:
        leaving = ranks.join(degrees, "node").select("node", share.alias("share"))
        arriving = leaving.weighted("share").join(arcs, "node").select("other").toDF("node")
        return reset.union(arriving).count().toDF("node", "rank")

    if limit is None:
        return start.iterate(round_of, name="pagerank")
    return start.iterate(round_of, max_iterations=limit, on_limit="return", name="pagerank")


def _adding_up_to_one(
    edges: DiffFrame, all_nodes: DiffFrame, limit: int | None, reset: float, starts: DiffFrame
) -> DiffFrame:
    """The ranks with a reset probability."""
    if limit is None:
        raise SchemaError("with reset_probability=... the number of rounds has to be given")
    walks = _walks(edges, starts, limit, reset)
    number = starts.agg(F.count("*").alias("n"))
    ends = all_nodes.antijoin(edges.select("src").toDF("node"), "node")
    # One sum of 2**23 surfers who start would not fit into a long.
    high = F.call_function("div", F.col("surfers"), F.lit(_LOW))
    parts = {"high": high, "low": F.col("surfers") % _LOW}
    sums = {name: [f"{name}{k}" for k in range(limit)] for name in parts}
    losses = walks.semijoin(ends, "node").select(
        "round", *(part.alias(name) for name, part in parts.items())
    ).agg(*_by_round("high", sums["high"]), *_by_round("low", sums["low"]), empty=True)
    restarts = F.expr(_RESTARTS.format(
        losses=", ".join(
            f"coalesce({high}, 0) * {float(_LOW)}D + coalesce({low}, 0)"
            for high, low in zip(*sums.values())),
        last=limit - 1, reset=reset, unit=float(UNIT)))
    factors = losses.crossJoin(number.hint("broadcast")).select(restarts.alias("restarts"), "n")
    names = [f"factor{k}" for k in range(limit)]
    factors = factors.select("n", *(
        (F.col("restarts")[limit - 1 - k] / (F.col("n") * float(UNIT))).alias(name)
        for k, name in enumerate(names)))
    visits = [f"visits{k}" for k in range(limit + 1)]
    visited = walks.groupBy("node").agg(*_by_round("surfers", visits))
    table = visited.crossJoin(factors.hint("broadcast")).consolidate()
    last = F.col(visits[-1]) / (F.col("n") * float(UNIT))
    rank = reduce(add, (F.col(a) * F.col(b) for a, b in zip(visits, names)), last)
    ranks = table.select("node", rank.alias("rank"))
    return ranks.union(all_nodes.antijoin(visited, "node").withColumn("rank", F.lit(0.0)))


def _starts(personal: Any, edges: DiffFrame, all_nodes: DiffFrame) -> DiffFrame:
    """The user's nodes, each once; a step fails if one of them is not in the graph."""
    starts = ids_of(personal, edges, "personal").distinct()
    unknown = starts.antijoin(all_nodes, "node")
    some = all_nodes.agg(F.count("*").alias("nodes"))
    unknown = unknown.crossJoin(some.hint("broadcast")).select("node").assert_empty(
        "pagerank: a node of personal= is not in the graph. Add it with nodes=, or leave it out")
    # A whole history has no step to fail: the error comes from reading the checked collection.
    return starts.semijoin(all_nodes, "node").union(unknown)


def _by_round(name: str, totals: Sequence[str]) -> list[Column]:
    """The sum of a column over the surfers of each round."""
    return [
        F.sum(F.when(F.col("round") == number, F.col(name)).otherwise(0)).alias(total)
        for number, total in enumerate(totals)
    ]


def _walks(edges: DiffFrame, starts: DiffFrame, rounds: int, reset: float) -> DiffFrame:
    """The surfers at each node who started a number of rounds ago and did not restart since:
    ``node``, ``round`` and ``surfers``, without zeros.

    They do not depend on the surfers who leave at other nodes, nor on the number of nodes. So a
    change of an edge changes only the surfers at nodes that its end reaches.
    """
    arcs = edges.toDF("node", "other")
    degrees = edges.select("src").count().toDF("node", "degree")
    first = F.lit(UNIT).cast("long").alias("surfers")
    begun = starts.select("node", F.lit(0).alias("round"), first)
    keep = Fraction(1 - reset).limit_denominator(_DENOMINATOR)
    near = keep > 0 and abs(float(keep) - (1 - reset)) < 2**-52
    # Spark has to evaluate an expression with doubles, which takes longer than a round.
    parts = F.col("degree") * keep.denominator
    whole = F.call_function("div", F.col("surfers"), parts)
    share = whole * keep.numerator + F.call_function(
        "div", (F.col("surfers") - whole * parts) * keep.numerator, parts
    ) if near else F.floor(F.col("surfers") * F.lit(1 - reset) / F.col("degree"))

    def further(walks: DiffFrame) -> DiffFrame:
        leaving = walks.where(F.col("round") < rounds).join(degrees, "node").select(
            "node", (F.col("round") + 1).alias("round"), share.alias("surfers"))
        arriving = leaving.where(F.col("surfers") > 0).join(arcs, "node").select(
            "other", "round", "surfers").toDF("node", "round", "surfers")
        return begun.union(
            arriving.groupBy("node", "round").agg(F.sum("surfers").alias("surfers")))

    return begun.iterate(further, max_iterations=rounds + 2, name="pagerank")


def _probability(value: Any) -> float:
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else 0.0
    if not 0 < number < 1:
        raise SchemaError(
            f"reset_probability must be a number above 0 and below 1, such as 0.15, not {value!r}"
        )
    return number
