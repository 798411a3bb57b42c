"""The inputs of the algorithms: graphs and sets of nodes, from any object with these tables.

A graph is one of

* a `DiffFrame` with a row for each edge,
* a Spark frame with a row for each edge,
* an object with ``edges`` of either kind, such as a `GraphFrame`. It may have ``vertices``, with
  the nodes in the column ``id`` (or ``node``).

A Spark frame with columns ``time`` and ``diff`` is a history of updates. Any other Spark frame is
static: a constant next to a collection, and without one a collection from time 0 on. Collections
of one graph must have times of one type, as for every other operator of two collections.

A graph's nodes are the ends of its edges, its vertices, and the nodes that the user lists. A set of
nodes is a collection, a Spark frame, or a list of ids, which is equivalent to a static frame. Ids
have any type with an order. A null is no node, and an edge with a null end is no edge: all
algorithms ignore them.

Results have ids in a column ``node`` and no attributes of nodes; a join adds the attributes:

>>> from types import SimpleNamespace
>>> from pyspark_diff.graphs import degrees
>>> people = spark.createDataFrame([(1, "Ann"), (2, "Bob")], "id long, name string")
>>> follows = spark.createDataFrame([(2, 1)], "src long, dst long")
>>> graph = SimpleNamespace(vertices=people, edges=follows)
>>> found = degrees(graph).withColumnRenamed("node", "id").join(people, "id")
>>> sorted(found.select("name", "in_degree").at(0).collect())
[Row(name='Ann', in_degree=1), Row(name='Bob', in_degree=0)]
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.errors import SchemaError
from pyspark_diff.frame.diffframe import DiffFrame
from pyspark_diff.graphs.neighbours import ends
from pyspark_diff.spark.frames import column
from pyspark_diff.spark.schema import meant_by

#: Possible columns of the ids in a set of nodes; the first existing one counts.
_IDS = ("node", "id")
#: Classes of lists of ids; a text is a sequence, too, but no list of ids.
_LISTS = (Sequence, Set, np.ndarray, pd.Series)


def edges_of(
    graph: Any, *more: str, src: str = "src", dst: str = "dst", beside: Any = None
) -> DiffFrame:
    """The edges of a graph as a collection with columns ``src`` and ``dst``.

    Parameters
    ----------
    graph : DiffFrame, DataFrame, or object with ``vertices`` and ``edges``
    *more : str
        Columns to keep next to the two ends; all others are dropped.
    src, dst : str
        The columns of the two ends.
    beside : DiffFrame or DataFrame, optional
        A table that the edges are combined with. If it is a collection, static edges become a
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
    return edges_with(graph, {name: name for name in more}, src, dst, beside)


def edges_with(
    graph: Any, more: Mapping[str, str], src: str, dst: str, beside: Any = None
) -> DiffFrame:
    """`edges_of`, with further columns of any name, each under a new name."""
    table = graph if isinstance(graph, (DiffFrame, DataFrame)) else getattr(graph, "edges", None)
    if table is None:
        raise SchemaError(
            "a graph is a DiffFrame or a Spark frame of edges, or has .vertices and .edges; this "
            f"is a {type(graph).__name__}"
        )
    advice = "name the columns of the ends with src=... and dst=..., or rename"
    edges = _columns(table, {"src": src, "dst": dst, **more}, "the edges", advice, beside)
    first, second = (edges.schema[name].dataType for name in ("src", "dst"))
    if first != second:
        raise SchemaError(
            f"both ends of an edge must be of one type; {src!r} is {first.simpleString()} and "
            f"{dst!r} is {second.simpleString()}: cast one"
        )
    return edges._without_nulls("src", "dst")


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
    graph: Any, nodes: Any = None, *, src: str, dst: str, beside: Any = None
) -> tuple[DiffFrame, DiffFrame]:
    """`edges_of` and `nodes_of` of a graph, with one read for both."""
    plain = isinstance(graph, (DiffFrame, DataFrame))
    vertices = None if plain else getattr(graph, "vertices", None)
    parts = map(_changing, (nodes, vertices, beside))
    changing = next((part for part in parts if part is not None), None)
    edges = edges_of(graph, src=src, dst=dst, beside=changing)
    node_parts = ends(edges)
    if vertices is not None:
        node_parts = node_parts.union(ids_of(vertices, edges, "the vertices", _IDS[::-1]))
    if nodes is not None:
        node_parts = node_parts.union(ids_of(nodes, edges, "nodes"))
    return edges, node_parts.distinct()


@dataclass(frozen=True)
class GraphParts:
    """A graph with all columns of its tables.

    Parameters
    ----------
    edges : DiffFrame
        ``src``, ``dst``, and the attributes.
    nodes : DiffFrame
        Column ``node``, each once.
    vertices : DiffFrame
        ``node`` and the attributes: a row for each row of the table, and a row with nulls for every
        other node.
    edge_attributes, node_attributes : tuple of str
        Their columns here: a dot, and the name in the user's table.
    """

    edges: DiffFrame
    nodes: DiffFrame
    vertices: DiffFrame
    edge_attributes: tuple[str, ...]
    node_attributes: tuple[str, ...]


def parts_of(graph: Any, nodes: Any = None, *, src: str, dst: str) -> GraphParts:
    """`graph_of`, with all other columns of the edges, and of the vertices, or of the nodes without
    vertices."""
    _, all_nodes = graph_of(graph, nodes, src=src, dst=dst)
    plain = isinstance(graph, (DiffFrame, DataFrame))
    vertices = None if plain else getattr(graph, "vertices", None)
    edges = graph if plain else graph.edges
    more = _attributes(edges, (src, dst), ("src", "dst"), "the edges")
    arcs = edges_with(graph, {f".{name}": name for name in more}, src, dst, beside=all_nodes)
    table, what, ids = (
        (nodes, "the nodes", _IDS) if vertices is None else (vertices, "the vertices", _IDS[::-1])
    )
    further: list[str] = []
    known = all_nodes
    if isinstance(table, (DiffFrame, DataFrame)):
        spark = table.sparkSession
        key = next(name for name in ids if meant_by(name, table.columns, spark))
        further = _attributes(table, (key,), ("id",), what)
        names = {"node": key, **{f".{name}": name for name in further}}
        if further:
            attributes = _columns(table, names, what, "rename it", all_nodes)
            known = all_nodes.join(attributes, "node", "left")
    return GraphParts(
        arcs, all_nodes, known, tuple(f".{name}" for name in more),
        tuple(f".{name}" for name in further),
    )


def _attributes(
    table: DiffFrame | DataFrame, used: Sequence[str], named: Sequence[str], what: str
) -> list[str]:
    """All further columns of a table.

    Raises
    ------
    SchemaError
        If a column has one of the reserved names.
    """
    spark = table.sparkSession
    gone = {own for name in used for own in meant_by(name, table.columns, spark)}
    if isinstance(table, DataFrame) and _has(table, "time", "diff"):
        gone |= {own for name in ("time", "diff") for own in meant_by(name, table.columns, spark)}
    rest = [name for name in table.columns if name not in gone]
    clash = [name for name in rest if meant_by(name, named, spark)]
    if clash:
        raise SchemaError(
            f"{what} have a column {clash[0]!r}, and the result has {', '.join(map(repr, used))} "
            "under that name: rename or drop it"
        )
    return rest


def ids_of(
    nodes: Any, edges: DiffFrame, what: str, names: Sequence[str] = _IDS
) -> DiffFrame:
    """The user's nodes as a collection with the column ``node``.

    Raises
    ------
    SchemaError
        If the column is missing, or its type differs from that of the edges' ends.
    """
    if isinstance(nodes, _LISTS) and not isinstance(nodes, (str, bytes)):
        nodes = _listed(nodes, edges, what)
    spark, there = edges._collection.spark, getattr(nodes, "columns", ())
    name = next((name for name in names if meant_by(name, there, spark)), _IDS[0])
    advice = "rename the one with the ids to 'node'"
    listed = _columns(nodes, {"node": name}, what, advice, edges)
    ours, theirs = listed.schema["node"].dataType, edges.schema["src"].dataType
    if ours != theirs:
        raise SchemaError(
            f"{what} must have ids of the type of the edges' ends, which is "
            f"{theirs.simpleString()}; {name!r} is {ours.simpleString()}: cast one"
        )
    return listed._without_nulls("node")


def _listed(ids: Iterable[Any], edges: DiffFrame, what: str) -> DataFrame:
    """A static frame of a list of ids."""
    kind = edges.schema["src"].dataType
    rows = [(value.item() if isinstance(value, np.generic) else value,) for value in ids]
    try:
        return edges._collection.spark.createDataFrame(
            rows, T.StructType([T.StructField("node", kind)])
        )
    except (PySparkException, TypeError, ValueError) as error:
        raise SchemaError(
            f"{what} must have ids of the type of the edges' ends, which is "
            f"{kind.simpleString()}: {error}"
        ) from error


def at_least_one(value: Any, name: str) -> int:
    """A parameter that is a positive whole number.

    Raises
    ------
    SchemaError
        If the value is not a positive whole number.
    """
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise SchemaError(f"{name} must be a whole number of at least 1, not {value!r}")
    return int(value)


def _columns(
    table: Any, names: Mapping[str, str], what: str, advice: str, beside: Any
) -> DiffFrame:
    """Some columns of a `DiffFrame` or of a Spark frame as a collection, under new names."""
    if not isinstance(table, (DiffFrame, DataFrame)):
        kinds = " or a Spark frame" if "src" in names else ", a Spark frame or a list of ids"
        raise SchemaError(
            f"{what} must be a DiffFrame{kinds}, not a {type(table).__name__}; make one with "
            "spark.createDataFrame(...)"
        )
    spark = table.sparkSession
    missing = [name for name in names.values() if not meant_by(name, table.columns, spark)]
    if missing:
        raise SchemaError(
            f"{what}: there is no column {', '.join(map(repr, missing))}; the columns are "
            f"{', '.join(table.columns)}. If it has another name, {advice}"
        )
    if isinstance(table, DiffFrame):
        return table.select(*names.values()).toDF(*names)
    wanted = [column(name).alias(new) for new, name in names.items()]
    collection = _changing(beside)
    if _has(table, "time", "diff") and (collection is None or collection._collection.flow is None):
        return DiffFrame(table.select(*wanted, "time", "diff"))
    static = table.select(*wanted)
    if collection is None:
        return DiffFrame(static.withColumn("time", F.lit(0)).withColumn("diff", F.lit(1)))
    times = collection._collection.time_name, collection._collection.diff_name
    return collection._lifted(table if _has(table, *times) else static)  # it refuses updates


def _changing(table: Any) -> DiffFrame | None:
    """The collection of a table; None if the table is static."""
    if isinstance(table, DataFrame) and _has(table, "time", "diff"):
        return DiffFrame(table)
    return table if isinstance(table, DiffFrame) else None


def _has(table: DataFrame, *names: str) -> bool:
    return all(meant_by(name, table.columns, table.sparkSession) for name in names)
