"""Shortest paths: the least total weight of a path to each node."""

from __future__ import annotations

from typing import Any

from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.errors import SchemaError
from pyspark_diff.frame.diffframe import DiffFrame
from pyspark_diff.frame.loops import MAX_ITERATIONS, Loop
from pyspark_diff.graphs.edges import at_least_one, edges_with, ids_of
from pyspark_diff.graphs.neighbours import undirected

_WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
#: The remedy for paths that become shorter for ever.
_CYCLE = (
    "Weights below zero add up to less than zero on a cycle, so that there is no shortest way: "
    "look for a node in these updates that comes again and again"
)
_ADVICE = f"{_CYCLE}. Without such a cycle a shortest way has more edges than max_rounds allows"


def shortest_paths(
    edges: Any,
    sources: Any,
    *,
    weight: str = "weight",
    per_source: bool = False,
    directed: bool = True,
    max_rounds: int | None = None,
    negative_weights: bool = False,
    src: str = "src",
    dst: str = "dst",
) -> DiffFrame:
    """The least sum of weights on a path from a source to each reachable node.

    Parameters
    ----------
    edges : DiffFrame, DataFrame, or object with ``vertices`` and ``edges``
        The lightest of parallel edges counts; self-loops make no difference.
    sources : DiffFrame, DataFrame or sequence of ids
        Column ``node`` (or ``id``), of the type of ``src``.
    weight : str
        The column of weights: whole numbers, float or double. An edge with a weight of null or NaN
        does not count. Doubles are added from the source on, edge by edge, so that a distance does
        not depend on earlier changes.
    per_source : bool
        Distances from each source instead of from the nearest one.
    directed : bool
        Whether an edge leads from ``src`` to ``dst`` only, or in both directions.
    max_rounds : int, optional
        The largest number of edges of a shortest path; the default is 10,000.
    negative_weights : bool
        Whether weights may be below zero. By default a step with such a weight fails with an
        `AssertionFailedError` that names the edge. If they are allowed, there is no shortest path
        with a reachable cycle of negative weight, and the step fails with a `StalledError`. For
        whole numbers it fails as soon as a path has more edges than there are nodes, and more than
        64. For doubles it fails as soon as a distance falls after that by more than rounding
        explains.
    src, dst : str
        The columns of an edge's ends.

    Returns
    -------
    DiffFrame
        ``node`` and ``distance`` (long, or double), each node once; with ``per_source`` also
        ``source`` as the first column, each pair once. A source has distance 0 from itself, with or
        without edges; unreachable nodes have no row.

    Raises
    ------
    SchemaError
        If a column is missing, types differ, or weights have another type.

    Notes
    -----
    The number of rounds is the largest number of edges of a shortest path. An edge is followed
    again whenever the loop finds a shorter path with more edges to its start. With ``per_source``
    all of this happens for each source.

    One changed edge of 1M between 100k nodes takes about 21 ms on two cores, 1/150 of loading them.

    Source: Bellman, "On a routing problem", Quarterly of Applied Mathematics 16, 1958.

    Examples
    --------
    >>> from pyspark_diff.graphs import shortest_paths
    >>> roads = spark.createDataFrame(
    ...     [("a", "b", 9), ("a", "c", 2), ("c", "b", 3)], "src string, dst string, km long")
    >>> depots = spark.createDataFrame([("a",), ("c",)], "node string")
    >>> sorted(tuple(row) for row in shortest_paths(roads, depots, weight="km").at(0).collect())
    [('a', 0), ('b', 3), ('c', 0)]
    >>> found = shortest_paths(roads, depots, weight="km", per_source=True).at(0)
    >>> sorted(tuple(row) for row in found.where("source = 'a'").collect())
    [('a', 'a', 0), ('a', 'b', 5), ('a', 'c', 2)]
    """
    listed = edges_with(edges, {"weight": weight}, src, dst, beside=sources)
    listed = _widened(listed, weight)
    if not negative_weights:
        listed = _without_negative(listed, weight)
    arcs = (listed if directed else undirected(listed)).toDF("node", "other", "weight")
    start = ids_of(sources, listed, "the sources").distinct()
    if per_source:
        start = start.withColumn("source", F.col("node")).select("source", "node")
    key = start.columns
    start = start.withColumn("distance", F.lit(0).cast(arcs.schema["weight"].dataType))

    # The loop needs one more iteration to detect that nothing changes.
    limit = MAX_ITERATIONS if max_rounds is None else at_least_one(max_rounds, "max_rounds") + 1
    # A path that visits a node twice and becomes shorter has a cycle of negative weight. As doubles
    # are rounded, a cycle of weight zero may seem negative for a while.
    whole = isinstance(arcs.schema["weight"].dataType, T.LongType)
    falls = "" if whole else "distance"
    with Loop(
        limit, name="shortest_paths", advice=_ADVICE, endless=_CYCLE, falls=falls
    ) as loop:
        near = loop.variable(start)
        distance = F.col("distance") + F.col("weight")
        longer = near.join(arcs, "node").select(*key[:-1], "other", distance.alias("distance"))
        nearest = near.set(start.union(longer).top_k(1, "distance", per=key))
    return loop.leave(nearest)


def _without_negative(edges: DiffFrame, name: str) -> DiffFrame:
    """The edges, with the claim that no weight is below zero.

    Without a dataflow the error comes from reading them.
    """
    negative = edges.where("weight < 0").assert_empty(
        f"shortest_paths: {name!r} of an edge is below zero. Mend the edge, or allow it with "
        "negative_weights=True"
    )
    return edges.where("weight >= 0").union(negative)


def _widened(edges: DiffFrame, name: str) -> DiffFrame:
    """The edges with a weight, as long or double."""
    kind = edges.schema["weight"].dataType
    if not isinstance(kind, (*_WHOLE, T.FloatType, T.DoubleType)):
        raise SchemaError(
            f"weights must be whole numbers, float or double; {name!r} is {kind.simpleString()}: "
            "cast it to long, or to double"
        )
    weight = F.col("weight")
    if isinstance(kind, _WHOLE):
        return edges.where(weight.isNotNull()).withColumn("weight", weight.cast("long"))
    there = weight.isNotNull() & ~F.isnan(weight)
    return edges.where(there).withColumn("weight", weight.cast("double"))
