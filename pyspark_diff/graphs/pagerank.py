"""PageRank in whole numbers: surfers who follow links, exact at every time."""

from __future__ import annotations

from typing import Any

from pyspark.sql import functions as F

from pyspark_diff.frame.diffframe import DiffFrame
from pyspark_diff.graphs.edges import at_least_one, graph_of

#: Surfers that start anew at each node in every round.
RESET = 1_000_000
#: Surfers at each node in the beginning, when the number of rounds is given: as many as there are
#: at each on average when no surfer gets lost.
START = 6 * RESET


def pagerank(
    edges: Any,
    nodes: Any = None,
    *,
    rounds: int | None = 20,
    src: str = "src",
    dst: str = "dst",
) -> DiffFrame:
    """The number of surfers at each node, who follow edges at random and now and then start anew.

    In each round, with d(u) the number of edges from u, and ``//`` the division that drops the
    remainder::

        rank(v) := 1,000,000 + sum over edges (u, v) of 5 * rank(u) // (6 * d(u))

    Divided by 6,000,000 that is a PageRank with damping 5/6 in which the average is 1 if every node
    has an edge from it. Whole numbers make it exact: the ranks are the same whatever came and went
    before, and do not depend on the order of additions.

    Parameters
    ----------
    edges : DiffFrame, DataFrame, or object with ``vertices`` and ``edges``
        Directed. Parallel edges count as often as they are there, and self-loops count.
    nodes : DiffFrame or DataFrame, optional
        Nodes that may have no edge: column ``node`` (or ``id``), of the type of ``src``. Vertices
        of ``edges`` count without being named.
    rounds : int, optional
        So many rounds, from ``rank = 6,000,000`` for each node. With None, rounds until nothing
        changes, from ``rank = 1,000,000``.
    src, dst : str
        The columns of an edge's ends.

    Returns
    -------
    DiffFrame
        ``node``, each once, and ``rank`` (long).

    Raises
    ------
    SchemaError
        If a column is missing, types differ, or ``rounds`` is not a positive whole number.

    Notes
    -----
    Surfers at a node without an edge from it leave, as do the remainders of the division.

    A round never lowers the ranks it gives when it is given higher ones, and the first round from
    1,000,000 lowers none; so with ``rounds=None`` ranks only grow, and since five sixths of the
    surfers stay at most, they stop: at the least ranks that the formula leaves as they are. (From
    6,000,000 they may go round in circles: on two nodes with edges to each other remainders can
    swap places for ever.) It takes about 85 rounds until less than one surfer moves.

    A change of one edge changes the ranks of all nodes that its end reaches, so with many rounds it
    costs about as much as all of them.
    Source: Page, Brin, Motwani, Winograd, "The PageRank citation ranking: bringing order to the
    web", Stanford InfoLab 1999; differential-dataflow ``examples/pagerank.rs``.

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
    found, every = graph_of(edges, nodes, src=src, dst=dst)
    arcs = found.toDF("node", "other")
    degrees = found.select("src").count().toDF("node", "degree")
    # Surfers that move are counted by the multiplicity of the node they are at.
    reset = every.withColumn("surfers", F.lit(RESET)).weighted("surfers")
    first = RESET if limit is None else START
    start = every.withColumn("rank", F.lit(first).cast("long"))
    share = F.call_function("div", F.col("rank") * 5, F.col("degree") * 6)

    def round_of(ranks: DiffFrame) -> DiffFrame:
        leaving = ranks.join(degrees, "node").select("node", share.alias("share"))
        arriving = leaving.weighted("share").join(arcs, "node").select("other").toDF("node")
        return reset.union(arriving).count().toDF("node", "rank")

    if limit is None:
        return start.iterate(round_of, name="pagerank")
    return start.iterate(round_of, max_iterations=limit, on_limit="return", name="pagerank")
