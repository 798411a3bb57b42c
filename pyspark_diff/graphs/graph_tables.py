"""The tables of a graph with GraphFrames' names: vertices, edges, degrees, triplets and filters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pyspark_diff.errors import SchemaError
from pyspark_diff.frame.diffframe import DiffFrame
from pyspark_diff.graphs.find import find
from pyspark_diff.graphs.neighbours import ends
from pyspark_diff.spark.frames import column

if TYPE_CHECKING:
    from typing_extensions import Self


class GraphTables:
    """The tables of a graph that changes over time: the part of `GraphDiff` without algorithms."""

    def __init__(self, vertices: Any, edges: Any = None):
        if edges is None and hasattr(vertices, "vertex_property_groups"):
            vertices, edges = _grouped(vertices)
        if edges is None:
            if not hasattr(vertices, "vertices") or not hasattr(vertices, "edges"):
                raise SchemaError(
                    "GraphDiff takes vertices and edges, or a GraphFrame. This is a "
                    f"{type(vertices).__name__} alone. Pass GraphDiff(vertices, edges)"
                )
            vertices, edges = vertices.vertices, vertices.edges
        tables = (table for table in (vertices, edges) if isinstance(table, DiffFrame))
        changing = next(tables, None)
        self._all_vertices = _collection(vertices, changing, ("id",), "the vertices")
        self._all_edges = _collection(edges, changing, ("src", "dst"), "the edges")
        # A null joins nothing, but it would count as a node with degrees.
        self._vertices = self._all_vertices._without_nulls("id")
        self._edges = self._all_edges._without_nulls("src", "dst")
        wanted = self._vertices.schema["id"].dataType
        for name in ("src", "dst"):
            kind = self._edges.schema[name].dataType
            if kind != wanted:
                raise SchemaError(
                    f"column {name!r} of the edges is {kind.simpleString()}, and 'id' of the "
                    f"vertices is {wanted.simpleString()}. Cast one of them"
                )

    @property
    def vertices(self) -> DiffFrame:
        """The vertices: ``id`` and the attributes."""
        return self._all_vertices

    nodes = vertices

    def cache(self) -> Self:
        """The graph itself: the dataflow keeps its tables, and nothing needs a cache."""
        return self

    def persist(self, *_: Any, **__: Any) -> Self:
        """The graph itself, as `cache`."""
        return self

    def unpersist(self, *_: Any, **__: Any) -> Self:
        """The graph itself, as `cache`."""
        return self

    @property
    def edges(self) -> DiffFrame:
        """The edges: ``src``, ``dst`` and the attributes."""
        return self._all_edges

    def at(self, time: Any = None) -> tuple[DataFrame, DataFrame]:
        """The vertices and edges at a time, for ``GraphFrame(*graph.at(time))``.

        Raises
        ------
        NotReadableError
            If one of them is not kept, or the time is not complete.
        """
        return self._all_vertices.at(time), self._all_edges.at(time)

    def __repr__(self) -> str:
        return f"GraphDiff(v:{self._vertices.columns}, e:{self._edges.columns})"

    @property
    def outDegrees(self) -> DiffFrame:
        """``id`` and ``outDegree`` of each vertex with an edge from it."""
        return self._edges.select("src").count().toDF("id", "outDegree")

    @property
    def inDegrees(self) -> DiffFrame:
        """``id`` and ``inDegree`` of each vertex with an edge to it."""
        return self._edges.select("dst").count().toDF("id", "inDegree")

    @property
    def degrees(self) -> DiffFrame:
        """``id`` and ``degree`` of each vertex with an edge. A self-loop counts twice."""
        return ends(self._edges).count().toDF("id", "degree")

    def type_out_degree(
        self, edge_type_col: str, edge_types: Sequence[Any] | None = None
    ) -> DiffFrame:
        """``id`` and ``outDegrees``: a struct of the number of edges of each type from a vertex."""
        return self._by_type("src", edge_type_col, edge_types, "outDegrees")

    def type_in_degree(
        self, edge_type_col: str, edge_types: Sequence[Any] | None = None
    ) -> DiffFrame:
        """``id`` and ``inDegrees``: a struct of the number of edges of each type to a vertex."""
        return self._by_type("dst", edge_type_col, edge_types, "inDegrees")

    def type_degree(
        self, edge_type_col: str, edge_types: Sequence[Any] | None = None
    ) -> DiffFrame:
        """``id`` and ``degrees``: a struct of the number of edges of each type at a vertex.

        A self-loop counts twice.
        """
        return self.as_undirected()._by_type("src", edge_type_col, edge_types, "degrees")

    def _by_type(
        self, end: str, name: str, types: Sequence[Any] | None, result: str
    ) -> DiffFrame:
        if types is None:
            raise SchemaError(
                "the types of edges are columns of the result, so they cannot change with the "
                "edges. List them: edge_types=[...]"
            )
        calls = [
            F.sum(F.when(column(name) == value, 1).otherwise(0)).cast("int").alias(f"type{number}")
            for number, value in enumerate(types)
        ]
        counts = self._edges.groupBy(end).agg(*calls)
        fields = [F.col(f"type{n}").alias(str(value)) for n, value in enumerate(types)]
        return counts.select(F.col(end).alias("id"), F.struct(*fields).alias(result))

    @property
    def triplets(self) -> DiffFrame:
        """``src``, ``edge`` and ``dst``: for each edge, structs of its ends and of the edge."""
        edges = self._edges.select(packed(self._edges, "edge"), "src", "dst").toDF(
            "edge", "src_id", "dst_id")
        first = self._vertices.select("id", packed(self._vertices, "src"))
        second = self._vertices.select("id", packed(self._vertices, "dst"))
        return edges.join(first.toDF("src_id", "src"), "src_id").join(
            second.toDF("dst_id", "dst"), "dst_id").select("src", "edge", "dst")

    def filterVertices(self, condition: str | Column) -> Self:
        """The graph of the vertices for which a condition is true, and the edges between them."""
        vertices = self._vertices.where(condition)
        return type(self)(vertices, induced(self._edges, vertices))

    def filterEdges(self, condition: str | Column) -> Self:
        """The graph with all vertices, and the edges for which a condition is true."""
        return type(self)(self._all_vertices, self._all_edges.where(condition))

    def dropIsolatedVertices(self) -> Self:
        """The graph without the vertices that have no edge."""
        linked = ends(self._edges).toDF("id").distinct()
        return type(self)(self._vertices.join(linked, "id", "left_semi"), self._all_edges)

    def as_reversed(self) -> Self:
        """The graph with each edge in the other direction."""
        return type(self)(self._all_vertices, _turned(self._all_edges))

    def as_undirected(self) -> Self:
        """The graph with each edge in both directions."""
        edges = _turned(_turned(self._all_edges))
        return type(self)(self._all_vertices, edges.union(_turned(self._all_edges)))

    def validate(self, check_vertices: bool = True, *_: Any, **options: Any) -> None:
        """Fail each step after which a vertex occurs twice or has a null as its id, or an end of an
        edge is null or no vertex.

        Parameters
        ----------
        check_vertices : bool
            Whether the ends of edges are checked.

        Notes
        -----
        The method adds claims to the dataflow. Without a dataflow it checks all times at once, at
        the call, as GraphFrames does.
        """
        check_options(options, "validate", {"intermediate_storage_level"})
        twice = self._vertices.groupBy("id").count().where("count > 1")
        unnamed = self._all_vertices.where("id IS NULL")
        checks = [
            twice.assert_empty("a vertex is there twice"),
            unnamed.assert_empty("the id of a vertex is null"),
        ]
        if check_vertices:
            listed = ends(self._all_edges).toDF("id").distinct()
            missing = listed.join(self._vertices, "id", "left_anti")
            checks.append(missing.assert_empty("an end of an edge is no vertex"))
        for check in checks:
            if check._collection.flow is None:
                check.to_df().collect()

    def find(self, pattern: str) -> DiffFrame:
        """All matches of a motif: see `pyspark_diff.graphs.find`."""
        return find(self, pattern)

    def _plain(self) -> Self:
        """The graph without attributes."""
        return type(self)(self._vertices.select("id"), self._edges.select("src", "dst"))

    def _with(
        self, results: DiffFrame, name: str, default: Column | None = None
    ) -> DiffFrame:
        """The vertices with a result, from a collection of a node and its result."""
        others = [column for column in self._vertices.columns if column != name]
        named = results.toDF("id", "result_")
        how = "inner" if default is None else "left"
        value = F.col("result_") if default is None else F.coalesce("result_", default)
        joined = self._vertices.join(named, "id", how)
        return joined.select(*map(column, others), value.alias(name))


def _collection(
    table: Any, changing: DiffFrame | None, names: Sequence[str], what: str
) -> DiffFrame:
    """A table as a collection, checked to have the columns of a graph in GraphFrames' spelling."""
    if not isinstance(table, (DiffFrame, DataFrame)):
        raise SchemaError(
            f"{what} are a DiffFrame or a Spark frame, not a {type(table).__name__}. Make one with "
            "spark.createDataFrame(...)"
        )
    missing = [name for name in names if name not in table.columns]
    if missing:
        raise SchemaError(
            f"{what} have no column {missing[0]!r}; the columns are {', '.join(table.columns)}. "
            f"Rename one: withColumnRenamed(..., {missing[0]!r})"
        )
    if isinstance(table, DiffFrame):
        return table
    if changing is not None:
        return changing._lifted(table)
    if {"time", "diff"} <= set(table.columns):
        return DiffFrame(table)
    return DiffFrame(table.withColumn("time", F.lit(0)).withColumn("diff", F.lit(1)))


def _grouped(graph: Any) -> tuple[Any, Any]:
    """The vertices and the edges of all groups of a PropertyGraphFrame."""
    tables = []
    for groups in (graph.vertex_property_groups, graph.edges_property_groups):
        parts = [group.get_data() for group in groups]
        if not parts:
            raise SchemaError(
                "the property graph has no group of vertices, or none of edges. Add one, or pass "
                "GraphDiff(vertices, edges)"
            )
        changing = next((part for part in parts if isinstance(part, DiffFrame)), None)
        if changing is not None:
            parts = [
                part if isinstance(part, DiffFrame) else changing._lifted(part) for part in parts]
        tables.append(reduce(lambda some, part: some.union(part), parts))
    return tables[0], tables[1]


def packed(table: DiffFrame, name: str, columns: Sequence[str] | None = None) -> Column:
    """A struct of some columns of a table, or of all."""
    return F.struct(*map(column, columns or table.columns)).alias(name)


def induced(edges: DiffFrame, vertices: DiffFrame) -> DiffFrame:
    """The edges whose ends are vertices."""
    ids = vertices.select("id")
    columns = edges.columns
    for end in ("src", "dst"):
        edges = edges.join(ids.toDF(end), end, "left_semi")
    return edges.select(*map(column, columns))


def _turned(edges: DiffFrame) -> DiffFrame:
    """Each edge in the other direction: its ends, then its attributes."""
    attributes = [name for name in edges.columns if name not in ("src", "dst")]
    return edges.select(
        F.col("dst").alias("src"), F.col("src").alias("dst"), *map(column, attributes))


def check_options(options: dict[str, Any], method: str, known: set[str]) -> None:
    others = sorted(set(options) - known)
    if others:
        raise SchemaError(
            f"{method} has no option {others[0]!r}. Its options are {', '.join(sorted(known))}"
        )
