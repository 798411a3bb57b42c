"""The inputs of the algorithms: graphs and sets of nodes, from any object that has them.

A graph is one of

* a `DiffFrame` with a row for each edge,
* a Spark frame with a row for each edge,
* anything with ``edges`` that are one of these, such as a `GraphFrame`, and with ``vertices``, if
  it has any, in whose column ``id`` (or ``node``) the nodes are.

A Spark frame with columns ``time`` and ``diff`` is a history of updates; any other one is static:
beside a collection it is there at all times, and where all is static, from time 0 on. Collections
of one graph must have times of one type, as for every other operator of two collections.

A graph's nodes are the ends of its edges, its vertices, and the nodes that the user lists.
Nodes are given as a collection, as a Spark frame, or as a list of ids, which is as good as a static
frame of them. Their ids are of any type that has an order. A null is no node, and an edge with a
null end is no edge: all algorithms leave them out.

Results have ids in a column ``node`` and no attributes of nodes; a join brings these back:

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

#: Columns that a set of nodes may have its ids in; the first that is there counts.
_IDS = ("node", "id")
#: What holds ids one by one; text does, too, and is none.
_LISTS = (Sequence, Set, np.ndarray, pd.Series)


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
    beside : DiffFrame or DataFrame, optional
        What the edges are to be used with. Beside a collection a static frame is a constant.

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
    """`edges_of`, with further columns of any name, each under a new one."""
    table = graph if isinstance(graph, (DiffFrame, DataFrame)) else getattr(graph, "edges", None)
    if table is None:
        raise SchemaError(
            "a graph is a DiffFrame or a Spark frame of edges, or has .vertices and .edges; this "
            f"is a {type(graph).__name__}"
        )
    advice = "say which columns are the ends with src=... and dst=..., or rename"
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
    """`edges_of` and `nodes_of` of a graph, which is read once for both."""
    plain = isinstance(graph, (DiffFrame, DataFrame))
    vertices = None if plain else getattr(graph, "vertices", None)
    parts = map(_changing, (nodes, vertices, beside))
    changing = next((part for part in parts if part is not None), None)
    edges = edges_of(graph, src=src, dst=dst, beside=changing)
    found = ends(edges)
    if vertices is not None:
        found = found.union(ids_of(vertices, edges, "the vertices", _IDS[::-1]))
    if nodes is not None:
        found = found.union(ids_of(nodes, edges, "nodes"))
    return edges, found.distinct()


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
        ``node`` and the attributes: a row for each one of the table, and with nulls for each node
        that has none there.
    edge_attributes, node_attributes : tuple of str
        Their columns here: a dot, and the name that the user's table has.
    """

    edges: DiffFrame
    nodes: DiffFrame
    vertices: DiffFrame
    edge_attributes: tuple[str, ...]
    node_attributes: tuple[str, ...]


def parts_of(graph: Any, nodes: Any = None, *, src: str, dst: str) -> GraphParts:
    """`graph_of`, with all other columns of the edges, and of the vertices or else of the nodes."""
    _, every = graph_of(graph, nodes, src=src, dst=dst)
    plain = isinstance(graph, (DiffFrame, DataFrame))
    vertices = None if plain else getattr(graph, "vertices", None)
    edges = graph if plain else graph.edges
    more = _attributes(edges, (src, dst), ("src", "dst"), "the edges")
    arcs = edges_with(graph, {f".{name}": name for name in more}, src, dst, beside=every)
    table, what, ids = (
        (nodes, "the nodes", _IDS) if vertices is None else (vertices, "the vertices", _IDS[::-1])
    )
    found: list[str] = []
    known = every
    if isinstance(table, (DiffFrame, DataFrame)):
        spark = table.sparkSession
        key = next(name for name in ids if meant_by(name, table.columns, spark))
        found = _attributes(table, (key,), ("id",), what)
        names = {"node": key, **{f".{name}": name for name in found}}
        if found:
            known = every.join(_columns(table, names, what, "rename it", every), "node", "left")
    return GraphParts(
        arcs, every, known, tuple(f".{name}" for name in more), tuple(f".{name}" for name in found)
    )


def _attributes(
    table: DiffFrame | DataFrame, used: Sequence[str], named: Sequence[str], what: str
) -> list[str]:
    """The other columns of a table.

    Raises
    ------
    SchemaError
        If one has a name that is taken.
    """
    spark = table.sparkSession
    gone = {found for name in used for found in meant_by(name, table.columns, spark)}
    if isinstance(table, DataFrame) and _has(table, "time", "diff"):
        gone |= {found for name in ("time", "diff")
                 for found in meant_by(name, table.columns, spark)}
    rest = [name for name in table.columns if name not in gone]
    taken = [name for name in rest if meant_by(name, named, spark)]
    if taken:
        raise SchemaError(
            f"{what} have a column {taken[0]!r} beside {', '.join(map(repr, used))}, which is to be"
            " called so in the result: rename or drop it"
        )
    return rest


def ids_of(
    nodes: Any, edges: DiffFrame, what: str, names: Sequence[str] = _IDS
) -> DiffFrame:
    """Nodes that a user gave, as a collection with the column ``node``.

    Raises
    ------
    SchemaError
        If there is no such column, or its type is not that of the edges' ends.
    """
    if isinstance(nodes, _LISTS) and not isinstance(nodes, (str, bytes)):
        nodes = _listed(nodes, edges, what)
    spark, there = edges._collection.spark, getattr(nodes, "columns", ())
    name = next((name for name in names if meant_by(name, there, spark)), _IDS[0])
    advice = "rename the one with the ids to 'node'"
    found = _columns(nodes, {"node": name}, what, advice, edges)
    ours, theirs = found.schema["node"].dataType, edges.schema["src"].dataType
    if ours != theirs:
        raise SchemaError(
            f"{what} must have ids of the type of the edges' ends, which is "
            f"{theirs.simpleString()}; {name!r} is {ours.simpleString()}: cast one"
        )
    return found._without_nulls("node")


def _listed(ids: Iterable[Any], edges: DiffFrame, what: str) -> DataFrame:
    """A static frame of ids that are given one by one."""
    kind = edges.schema["src"].dataType
    rows = [(one.item() if isinstance(one, np.generic) else one,) for one in ids]
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
        If it is anything else.
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
    held = _changing(beside)
    if _has(table, "time", "diff") and (held is None or held._collection.flow is None):
        return DiffFrame(table.select(*wanted, "time", "diff"))
    static = table.select(*wanted)
    if held is None:
        return DiffFrame(static.withColumn("time", F.lit(0)).withColumn("diff", F.lit(1)))
    times = held._collection.time_name, held._collection.diff_name
    return held._lifted(table if _has(table, *times) else static)  # which refuses updates


def _changing(table: Any) -> DiffFrame | None:
    """The collection that a table is, unless it is static."""
    if isinstance(table, DataFrame) and _has(table, "time", "diff"):
        return DiffFrame(table)
    return table if isinstance(table, DiffFrame) else None


def _has(table: DataFrame, *names: str) -> bool:
    return all(meant_by(name, table.columns, table.sparkSession) for name in names)
