"""What the algorithms take: graphs and sets of nodes, from whatever holds them.

A graph is one of

* a `DiffFrame` with a row for each edge,
* a Spark frame with a row for each edge,
* anything with ``vertices`` and ``edges`` that are one of these, such as a `GraphFrame`; vertices
  have a column ``id``.

A Spark frame with columns ``time`` and ``diff`` is a history of updates; any other one is static
and becomes a collection that is there from time 0 on, or beside a collection of a dataflow from the
beginning. All parts of one graph must have times of one
type, as for every other operator of two collections.

A graph's nodes are the ends of its edges, its vertices, and the nodes that are given beside it.
Nodes are given as a collection, as a Spark frame, or as a list of ids, which is as good as a static
frame of them.
Their ids are of any type that has an order. A null is no node: filter such edges out before.
"""

from __future__ import annotations

from typing import Any, Collection, Sequence

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.errors import SchemaError
from pyspark_diff.frame.diffframe import DiffFrame
from pyspark_diff.graphs.neighbours import ends
from pyspark_diff.spark.frames import column
from pyspark_diff.spark.schema import meant_by

#: Columns that a set of nodes may have its ids in; the first that is there counts.
_IDS = ("node", "id")


def edges_of(
    graph: Any, *more: str, src: str = "src", dst: str = "dst", beside: Any = None
) -> DiffFrame:
    """The edges of a graph as a collection with columns ``src`` and ``dst``.

    Parameters
    ----------
    graph : DiffFrame, DataFrame, or object with ``vertices`` and ``edges``
    *more : str
        Columns to keep beside the two ends; all others are dropped.
    src, dst : str
        The columns of the two ends.
    beside : DiffFrame, optional
        What the edges are to be used with. Beside a collection of a dataflow a Spark frame is a
        constant.

    Raises
    ------
    SchemaError
        If a column is missing, or the two ends have different types.

    Examples
    --------
    >>> from pyspark_diff.graphs import edges_of
    >>> roads = spark.createDataFrame([("a", "b", 7)], "start string, end string, km long")
    >>> edges_of(roads, src="start", dst="end").at(0).collect()
    [Row(src='a', dst='b')]
    """
    table = graph if isinstance(graph, (DiffFrame, DataFrame)) else getattr(graph, "edges", None)
    if table is None:
        raise SchemaError(
            "a graph is a DiffFrame or a Spark frame of edges, or has .vertices and .edges; this "
            f"is a {type(graph).__name__}"
        )
    advice = "say which columns are the ends with src=... and dst=..., or rename"
    found = _columns(table, [src, dst, *more], "the edges", advice, beside)
    edges = found.toDF("src", "dst", *more)
    first, second = (edges.schema[name].dataType for name in ("src", "dst"))
    if first != second:
        raise SchemaError(
            f"both ends of an edge must be of one type; {src!r} is {first.simpleString()} and "
            f"{dst!r} is {second.simpleString()}: cast one"
        )
    return edges


def nodes_of(
    graph: Any, nodes: Any = None, *, src: str = "src", dst: str = "dst"
) -> DiffFrame:
    """The nodes of a graph, each once: column ``node``.

    Parameters
    ----------
    graph : DiffFrame, DataFrame, or object with ``vertices`` and ``edges``
    nodes : DiffFrame, DataFrame or sequence of ids, optional
        Nodes that may have no edge: column ``node`` or ``id``.
    src, dst : str
        The columns of the two ends.

    Raises
    ------
    SchemaError
        If a column is missing, or types differ.

    Examples
    --------
    >>> from pyspark_diff.graphs import nodes_of
    >>> edges = spark.createDataFrame([(1, 2), (2, 2)], "src long, dst long")
    >>> alone = spark.createDataFrame([(7,)], "node long")
    >>> sorted(nodes_of(edges, alone).at(0).collect())
    [Row(node=1), Row(node=2), Row(node=7)]
    """
    return graph_of(graph, nodes, src=src, dst=dst)[1]


def graph_of(
    graph: Any, nodes: Any = None, *, src: str, dst: str
) -> tuple[DiffFrame, DiffFrame]:
    """`edges_of` and `nodes_of` of a graph, which is read once for both."""
    plain = isinstance(graph, (DiffFrame, DataFrame))
    beside = nodes if plain or isinstance(nodes, DiffFrame) else getattr(graph, "vertices", None)
    edges = edges_of(graph, src=src, dst=dst, beside=beside)
    found = ends(edges)
    for given, what in ((None if plain else graph.vertices, "the vertices"), (nodes, "nodes")):
        if given is not None:
            found = found.union(ids_of(given, edges, what))
    return edges, found.distinct()


def ids_of(nodes: Any, edges: DiffFrame, what: str) -> DiffFrame:
    """Nodes that a user gave, as a collection with the column ``node``.

    Raises
    ------
    SchemaError
        If there is no such column, or its type is not that of the edges' ends.
    """
    if isinstance(nodes, (list, tuple, set, frozenset)):
        nodes = _listed(nodes, edges, what)
    spark, there = edges._collection.spark, getattr(nodes, "columns", ())
    name = next((name for name in _IDS if meant_by(name, there, spark)), _IDS[0])
    advice = "rename the one with the ids to 'node'"
    found = _columns(nodes, [name], what, advice, edges).toDF("node")
    ours, theirs = found.schema["node"].dataType, edges.schema["src"].dataType
    if ours != theirs:
        raise SchemaError(
            f"{what} must have ids of the type of the edges' ends, which is "
            f"{theirs.simpleString()}; {name!r} is {ours.simpleString()}: cast one"
        )
    return found


def _listed(ids: Collection[Any], edges: DiffFrame, what: str) -> DataFrame:
    """A static frame of ids that are given one by one."""
    kind, time = edges.schema["src"].dataType, edges._collection.times
    if not _is_beside(edges) and not isinstance(time, T.IntegralType):
        raise SchemaError(
            f"{what} are given as a list, which is there from time 0 on, and times of this graph "
            f"are of type {time.simpleString()}: give a frame with the columns 'node', 'time' and "
            "'diff'"
        )
    schema = T.StructType([T.StructField("node", kind)])
    try:
        found = edges._collection.spark.createDataFrame([(one,) for one in ids], schema)
    except (PySparkException, TypeError, ValueError) as error:
        raise SchemaError(
            f"{what} must have ids of the type of the edges' ends, which is "
            f"{kind.simpleString()}: {error}"
        ) from error
    if _is_beside(edges):
        return found
    return found.withColumns({"time": F.lit(0).cast(time), "diff": F.lit(1)})


def _is_beside(frame: DiffFrame) -> bool:
    """Whether a static table beside a collection is a constant: else it is a history that has all
    at time 0."""
    there = frame._collection
    return there.flow is not None or isinstance(there.times, T.StructType)


def at_least_one(value: Any, name: str) -> int:
    """A parameter that is a positive whole number.

    Raises
    ------
    SchemaError
        If it is anything else.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise SchemaError(f"{name} must be a whole number of at least 1, not {value!r}")
    return value


def _columns(
    table: Any, names: Sequence[str], what: str, advice: str, beside: Any
) -> DiffFrame:
    """Some columns of a `DiffFrame` or of a Spark frame, as a collection."""
    if not isinstance(table, (DiffFrame, DataFrame)):
        raise SchemaError(
            f"{what} must be a DiffFrame or a Spark frame, not a {type(table).__name__}; make one "
            "with spark.createDataFrame(...)"
        )
    spark = table.sparkSession
    missing = [name for name in names if not meant_by(name, table.columns, spark)]
    if missing:
        raise SchemaError(
            f"{what}: there is no column {', '.join(map(repr, missing))}; the columns are "
            f"{', '.join(table.columns)}. If it has another name, {advice}"
        )
    if isinstance(table, DiffFrame):
        return table.select(*names)
    if isinstance(beside, DiffFrame) and _is_beside(beside):
        return beside._lifted(table).select(*names)
    wanted = [column(name) for name in names]
    if all(meant_by(name, table.columns, spark) for name in ("time", "diff")):
        return DiffFrame(table.select(*wanted, "time", "diff"))
    static = table.select(*wanted)
    return DiffFrame(static.withColumn("time", F.lit(0)).withColumn("diff", F.lit(1)))
