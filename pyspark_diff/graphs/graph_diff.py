"""GraphFrames' interface over a graph that changes over time.

    GraphDiff(v, e).method(...).at(t)  =  GraphFrame(v at t, e at t).method(...)

The names, arguments and result columns are those of graphframes-py 0.12. A server needs no plugin.
If GraphFrames returns any of several right results, the choice is fixed here: the name of a
component is its smallest vertex.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from pyspark_diff.errors import SchemaError
from pyspark_diff.frame.diffframe import DiffFrame
from pyspark_diff.graphs.connected_components import connected_components
from pyspark_diff.graphs.edges import at_least_one
from pyspark_diff.graphs.graph_ranks import ranks_by_source, ranks_of
from pyspark_diff.graphs.graph_tables import GraphTables, check_options, induced, packed
from pyspark_diff.graphs.independent_set import maximal_independent_set
from pyspark_diff.graphs.k_core import core_numbers
from pyspark_diff.graphs.label_propagation import label_propagation
from pyspark_diff.graphs.neighbor_paths import accumulated
from pyspark_diff.graphs.neighborhood_labels import neighborhood_labels
from pyspark_diff.graphs.neighbours import both_ways
from pyspark_diff.graphs.path_rows import shortest_path_rows
from pyspark_diff.graphs.paths import cycles, simple_paths
from pyspark_diff.graphs.shortest_paths import shortest_paths
from pyspark_diff.graphs.strongly_connected_components import strongly_connected_components
from pyspark_diff.graphs.triangles import triangles
from pyspark_diff.graphs.vertex_program import Pregel
from pyspark_diff.spark.frames import column


class GraphDiff(GraphTables):
    """A graph that changes over time, with the methods of a GraphFrame.

    Parameters
    ----------
    vertices : DiffFrame, DataFrame, GraphFrame or PropertyGraphFrame
        A table with a column ``id``, each once, and any attributes. A GraphFrame has both tables.
        All groups of a PropertyGraphFrame together are a graph with the columns of its
        ``to_graphframe``. Their data may be collections.
    edges : DiffFrame or DataFrame, optional
        A table with columns ``src`` and ``dst`` of the type of ``id``, and any attributes. An edge
        with an end that is no vertex counts in the algorithms, but only vertices have results.
        A vertex with a null as its id, and an edge with a null end, count nowhere; `validate`
        refuses them.

    Raises
    ------
    SchemaError
        If a column is missing, or types differ.

    Notes
    -----
    A plain Spark frame is a constant: it is the same at all times.

    The class lacks ``hyper_anf`` and other sketches, random walks and their embeddings,
    ``svdPlusPlus`` and ``powerIterationClustering``; the page of limits has reasons, also for
    Louvain. Arguments that choose an algorithm, checkpoints or a level of storage have no effect.

    Source: GraphFrames, https://graphframes.io

    Examples
    --------
    >>> from pyspark_diff import Dataflow
    >>> from pyspark_diff.graphs import GraphDiff
    >>> with Dataflow(spark) as flow:
    ...     vertices, vertices_in = flow.input("vertices", "id long, name string")
    ...     edges, edges_in = flow.input("edges", "src long, dst long")
    ...     parts = GraphDiff(vertices, edges).connectedComponents().keep("parts")
    ...     vertices_in.insert([(1, "Ann"), (2, "Bob"), (3, "Eve")])
    ...     edges_in.insert([(1, 2), (2, 3)])
    ...     _ = flow.advance_to(1)
    ...     edges_in.remove([(2, 3)])
    ...     _ = flow.advance_to(2)
    ...     sorted(tuple(row) for row in parts.at().collect())
    [(1, 'Ann', 1), (2, 'Bob', 1), (3, 'Eve', 3)]
    """

    def connectedComponents(self, *_: Any, **options: Any) -> DiffFrame:
        """The vertices with the ``component`` of each: its smallest vertex.

        Parameters
        ----------
        **options
            The options of GraphFrames, which choose an algorithm and its checkpoints. They have no
            effect here.
        """
        check_options(options, "connectedComponents", {
            "algorithm", "checkpointInterval", "broadcastThreshold", "useLabelsAsComponents",
            "use_local_checkpoints", "max_iter", "storage_level",
        })
        return self._with(connected_components(self._plain()), "component")

    def stronglyConnectedComponents(self, maxIter: int | None = None) -> DiffFrame:
        """The vertices with the strongly connected ``component`` of each: its smallest vertex.

        Parameters
        ----------
        maxIter : int, optional
            No effect: the loop runs to its fixed point.
        """
        return self._with(strongly_connected_components(self._plain()), "component")

    def labelPropagation(self, maxIter: int, *_: Any, **options: Any) -> DiffFrame:
        """The vertices with the ``label`` of each after some rounds.

        A vertex takes the smallest label with the most votes. GraphFrames takes any such label.
        """
        check_options(options, "labelPropagation", {
            "algorithm", "use_local_checkpoints", "checkpoint_interval", "storage_level",
        })
        rounds = at_least_one(maxIter, "maxIter")
        return self._with(label_propagation(self._plain(), rounds=rounds), "label")

    def shortestPaths(
        self, landmarks: Sequence[Any], *_: Any, is_directed: bool = True, **options: Any
    ) -> DiffFrame:
        """The vertices with ``distances``: a map from a landmark to the number of edges to it.

        Parameters
        ----------
        landmarks : sequence of ids
        is_directed : bool
            Whether a path follows the direction of edges.
        """
        check_options(options, "shortestPaths", {
            "algorithm", "use_local_checkpoints", "checkpoint_interval", "storage_level",
        })
        if not landmarks:
            raise SchemaError("shortestPaths needs landmarks. Pass the ids of some vertices")
        # A path to a landmark is a path from it along reversed edges.
        turned = self._edges.select(F.col("dst").alias("src"), F.col("src").alias("dst"))
        steps = turned.withColumn("weight", F.lit(1).cast("long"))
        known = self._vertices.select("id").where(F.col("id").isin(list(landmarks)))
        distances = shortest_paths(
            steps, known.toDF("node"), per_source=True, directed=is_directed,
            negative_weights=True,  # there is none
        )
        entries = F.struct("source", F.col("distance").cast("int"))
        maps = distances.groupBy("node").agg(
            F.map_from_entries(F.sort_array(F.collect_list(entries))).alias("distances"))
        return self._with(maps, "distances", F.expr("map()"))

    def neighborhood_aware_cdlp(
        self, max_iter: int, structural_similarity_multiplier: float = 0.5,
        ignore_direct_links: bool = False, initial_label_col: str | None = None,
        is_directed: bool = True, *_: Any, **options: Any,
    ) -> DiffFrame:
        """The vertices with the ``label`` of each after some rounds of weighted votes.

        Parameters
        ----------
        max_iter : int
            The largest number of rounds.
        structural_similarity_multiplier : float
            The weight of each vertex that both ends of an edge have an edge to.
        ignore_direct_links : bool
            Whether only these vertices count, and not the edge itself, which has weight 1.
        initial_label_col : str, optional
            The column of the first labels. By default a vertex starts with its id.
        is_directed : bool
            Whether a label goes along an edge only, or in both directions. Without a direction
            parallel edges are one.

        Notes
        -----
        A vertex takes the label with the largest weight, and the largest one of several. Common
        neighbours are counted exactly, so that `lg_nom_entries` has no effect. GraphFrames
        estimates large numbers of them.
        """
        check_options(options, "neighborhood_aware_cdlp", {
            "lg_nom_entries", "use_local_checkpoints", "checkpoint_interval", "storage_level",
        })
        rounds = at_least_one(max_iter, "max_iter")
        similarity = float(structural_similarity_multiplier)
        if not 0 <= similarity < math.inf or ignore_direct_links and not similarity:
            raise SchemaError(
                f"structural_similarity_multiplier is {structural_similarity_multiplier!r}. Pass a "
                "number of at least 0, and above 0 with ignore_direct_links=True"
            )
        first = "id" if initial_label_col is None else initial_label_col
        labels = self._vertices.select("id", column(first).alias("label")).toDF("node", "label")
        arcs = self._ways()
        if not is_directed:
            arcs = both_ways(self._edges.select("src", "dst")).distinct()
        voted = neighborhood_labels(labels, arcs, rounds, 1 - ignore_direct_links, similarity)
        return self._with(voted, "label")

    def triangleCount(self, *_: Any, **options: Any) -> DiffFrame:
        """The vertices with the ``count`` of triangles of each."""
        check_options(options, "triangleCount", {"storage_level", "algorithm", "lg_nom_entries"})
        if options.get("algorithm", "exact") != "exact":
            raise SchemaError(
                "triangleCount is exact here. Leave algorithm= out, or pass algorithm='exact'"
            )
        listed = triangles(self._plain())
        corners = reduce(DiffFrame.union, [listed.select(name).toDF("node") for name in "abc"])
        return self._with(corners.count(), "count", F.lit(0).cast("long"))

    def k_core(self, *_: Any, **options: Any) -> DiffFrame:
        """The vertices with ``kcore``: the largest k such that a vertex is in the k-core.
        """
        check_options(options, "k_core", {
            "checkpoint_interval", "use_local_checkpoints", "storage_level",
        })
        cores = core_numbers(self._edges.select("src", "dst"))
        return self._with(cores, "kcore", F.lit(0).cast("long"))

    def maximal_independent_set(self, seed: int = 42, *_: Any, **options: Any) -> DiffFrame:
        """The ``id`` of each vertex in a maximal independent set.

        No edge is between two of them, and every other vertex has an edge to one of them. The set
        depends on the graph alone.

        Parameters
        ----------
        seed : int
            No effect, as the order of vertices depends on their ids.
        """
        check_options(options, "maximal_independent_set", {
            "checkpoint_interval", "use_local_checkpoints", "storage_level",
        })
        chosen = maximal_independent_set(self._plain()).toDF("id")
        return self._vertices.select("id").distinct().join(chosen, "id", "left_semi")

    def pageRank(
        self, resetProbability: float = 0.15, sourceId: Any = None, maxIter: int | None = None,
        tol: float | None = None,
    ) -> GraphDiff:
        """The graph with ``pagerank`` of each vertex, and ``weight`` of each edge.

        Parameters
        ----------
        resetProbability : float
            The probability of a jump, above 0 and below 1.
        sourceId : id, optional
            The vertex that all jumps lead to. By default jumps lead to every vertex.
        maxIter : int, optional
            The number of rounds.
        tol : float, optional
            Instead of `maxIter`: the largest distance of a rank from its limit, which determines
            the number of rounds.

        Notes
        -----
        With r the reset probability and d(u) the number of edges from u, from rank 1 on::

            rank(v) := r + (1 - r) * sum over edges (u, v) of rank(u) / d(u)

        The final ranks add up to the number of vertices, or to 1 with `sourceId`: if a vertex has
        no edge from it, all ranks are scaled. Ranks are multiples of 2**-40.

        A change of one edge changes the ranks of all vertices that its end reaches.
        """
        if (maxIter is None) == (tol is None):
            raise SchemaError("pageRank needs either maxIter or tol. Pass one of them")
        reset = _reset_probability(resetProbability)
        if maxIter is None:
            if not isinstance(tol, (int, float)) or not 0 < tol < 1:
                raise SchemaError(f"tol is {tol!r}. Pass a number above 0 and below 1")
            rounds = max(1, math.ceil(math.log(tol) / math.log(1 - reset)))
        else:
            rounds = at_least_one(maxIter, "maxIter")
        everyone = self._vertices.select("id").toDF("node").distinct()
        starts = everyone
        if sourceId is not None:
            starts = everyone.where(F.col("node") == sourceId).union(_missing(everyone, sourceId))
        ranks = ranks_of(everyone, self._ways(), starts, reset, rounds)
        return self._ranked(self._with(ranks, "pagerank", F.lit(0.0)))

    def parallelPersonalizedPageRank(
        self, resetProbability: float = 0.15, sourceIds: Sequence[Any] | None = None,
        maxIter: int | None = None,
    ) -> GraphDiff:
        """The graph with ``pageranks`` of each vertex, and ``weight`` of each edge.

        Parameters
        ----------
        resetProbability : float
            The probability of a jump, above 0 and below 1.
        sourceIds : sequence of ids
            The vertices that jumps lead to, each with ranks of its own.
        maxIter : int
            The number of rounds.

        Notes
        -----
        The ranks are an array in the order of `sourceIds`; in GraphFrames they are a vector. Each
        entry is the ``pagerank`` of `pageRank` with that vertex as its ``sourceId``.
        """
        reset = _reset_probability(resetProbability)
        rounds = at_least_one(maxIter, "maxIter")
        sources = list(sourceIds or ())
        if not sources or len(set(sources)) < len(sources):
            raise SchemaError(
                "parallelPersonalizedPageRank needs sourceIds, each once. Pass the ids of some "
                "vertices"
            )
        everyone = self._vertices.select("id").toDF("node").distinct()
        for source in sources:
            everyone = everyone.union(_missing(everyone, source))
        ranks = ranks_by_source(everyone, self._ways(), sources, reset, rounds)
        none = F.array(*[F.lit(0.0)] * len(sources))
        return self._ranked(self._with(ranks, "pageranks", none))

    def _ways(self) -> DiffFrame:
        return self._edges.select("src", "dst").toDF("node", "other")

    def _ranked(self, vertices: DiffFrame) -> GraphDiff:
        """The graph with other vertices, and the weights of edges."""
        degrees = self.outDegrees.toDF("src", "weight_")
        edges = self._edges.join(degrees, "src").withColumn("weight", 1 / F.col("weight_"))
        return GraphDiff(vertices, edges.select(*map(column, self._edges.columns), "weight"))

    def bfs(
        self, fromExpr: str | Column, toExpr: str | Column, edgeFilter: str | Column | None = None,
        maxPathLength: int = 10,
    ) -> DiffFrame:
        """The shortest paths from some vertices to others: a row for each.

        Parameters
        ----------
        fromExpr, toExpr : str or Column
            Conditions for the first and the last vertex of a path.
        edgeFilter : str or Column, optional
            A condition for its edges.
        maxPathLength : int
            The largest number of edges of a path.

        Returns
        -------
        DiffFrame
            ``from``, ``e0``, ``v1``, ``e1``, …, ``to``: structs of the columns of vertices and
            edges. The columns are those of a path of `maxPathLength` edges, and those after the end
            of a shorter path are null. In GraphFrames the columns depend on the length, which may
            change here.

        Notes
        -----
        All paths have the length of the shortest one between any two of these vertices. It is zero
        if a vertex meets both conditions. Each of parallel edges is a path of its own. An edge with
        an end that is no vertex is in no path.
        `pyspark_diff.graphs.bfs` returns the distance of each node.
        """
        if not isinstance(maxPathLength, int) or maxPathLength < 0:
            raise SchemaError(
                f"maxPathLength is {maxPathLength!r}. Pass a whole number of at least 0")
        edges = self._edges if edgeFilter is None else self._edges.where(edgeFilter)
        vertices = self._vertices.select("id", packed(self._vertices, "vertex"))
        firsts, lasts = (self._where(condition) for condition in (fromExpr, toExpr))
        arcs = induced(edges, self._vertices).select("src", "dst", packed(edges, "edge"))
        return shortest_path_rows(
            vertices.toDF("node", "vertex"), arcs.toDF("node", "other", "edge"), firsts, lasts,
            maxPathLength,
        )

    def _where(self, condition: str | Column) -> DiffFrame:
        """The vertices for which a condition is true: ``node``, each once."""
        return self._vertices.where(condition).select("id").toDF("node").distinct()

    def all_paths(
        self, from_expr: str | Column, to_expr: str | Column,
        edge_filter: str | Column | None = None, max_path_length: int = 5,
        is_directed: bool = True, *_: Any, **options: Any,
    ) -> DiffFrame:
        """All paths between vertices that visit no vertex twice: ``path`` and ``len``.

        Parameters
        ----------
        from_expr, to_expr : str or Column
            Conditions for the first and the last vertex of a path.
        edge_filter : str or Column, optional
            A condition for its edges.
        max_path_length : int
            The largest number of edges of a path.
        is_directed : bool
            Whether a path follows the direction of edges.

        Notes
        -----
        A path has at least one edge, and parallel edges are one. The number of paths, also of those
        that end elsewhere, may grow exponentially with their length.
        """
        check_options(options, "all_paths", {
            "checkpoint_interval", "use_local_checkpoints", "storage_level",
        })
        most = at_least_one(max_path_length, "max_path_length")
        edges = self._edges if edge_filter is None else self._edges.where(edge_filter)
        arcs = self._arcs(edges, is_directed)
        paths = simple_paths(self._where(from_expr), arcs, most).where(F.size("path") > 1)
        length = (F.size("path") - 1).cast("long").alias("len")
        return paths.join(self._where(to_expr), "node", "left_semi").select("path", length)

    def detectingCycles(self, *_: Any, **options: Any) -> DiffFrame:
        """``found_cycles``: each cycle, as a list of ids from its smallest vertex back to it.

        Notes
        -----
        A cycle visits no other vertex twice, and has one row. Parallel edges are one. The number of
        paths to be followed may grow exponentially with the size of the graph.
        """
        check_options(options, "detectingCycles", {
            "checkpoint_interval", "use_local_checkpoints", "storage_level",
        })
        everyone = self._vertices.select("id").toDF("node").distinct()
        return cycles(everyone, self._arcs(self._edges, True)).toDF("found_cycles")

    def _arcs(self, edges: DiffFrame, directed: bool) -> DiffFrame:
        """``node`` and ``other``, each pair once, of edges between vertices."""
        ends = induced(edges, self._vertices).select("src", "dst").toDF("node", "other")
        if not directed:
            ends = ends.union(ends.select("other", "node").toDF("node", "other"))
        return ends.distinct()

    @property
    def pregel(self) -> Pregel:
        """A program of vertices that send messages, without its parts: see `Pregel`."""
        return Pregel(self._vertices, induced(self._edges, self._vertices))

    def aggregate_neighbors(
        self, starting_vertices: str | Column, accumulator_names: Sequence[str],
        accumulator_inits: Sequence[str | Column], accumulator_updates: Sequence[str | Column],
        max_hops: int = 3, stopping_condition: str | Column | None = None,
        target_condition: str | Column | None = None,
        required_vertex_attributes: Sequence[str] | None = None,
        required_edge_attributes: Sequence[str] | None = None,
        edge_filter: str | Column | None = None, remove_loops: bool = False, *_: Any,
        **options: Any,
    ) -> DiffFrame:
        """Values that are accumulated along each path from some vertices.

        Parameters
        ----------
        starting_vertices : str or Column
            A condition for the first vertex of a path.
        accumulator_names : sequence of str
            The columns of the values.
        accumulator_inits, accumulator_updates : sequence of str or Column
            Their first values over the columns of a vertex, and their values after an edge. The
            latter use the values before the edge, and the structs ``src_attributes``,
            ``edge_attributes`` and ``dst_attributes``.
        max_hops : int
            The largest number of edges of a path.
        stopping_condition, target_condition : str or Column, optional
            A path ends if one of them is true, over the columns for the updates. At least one of
            them is needed. With a target only paths that end at one have results.
        required_vertex_attributes, required_edge_attributes : sequence of str, optional
            The columns of the structs.
        edge_filter : str or Column, optional
            A condition for an edge of a path, over the same columns.
        remove_loops : bool
            Whether self-loops are left out.

        Returns
        -------
        DiffFrame
            ``id`` of the last vertex, ``hop``, the number of edges, and the values: a row for each
            path. Paths may visit a vertex again.
        """
        check_options(options, "aggregate_neighbors", {
            "checkpoint_interval", "use_local_checkpoints", "storage_level",
        })
        most = at_least_one(max_hops, "max_hops")
        names = list(accumulator_names)
        if not names or not len(names) == len(accumulator_inits) == len(accumulator_updates):
            raise SchemaError(
                "aggregate_neighbors needs a first value and an update for each accumulator. Pass "
                "lists of the same length"
            )
        if stopping_condition is None and target_condition is None:
            raise SchemaError(
                "aggregate_neighbors needs the end of a path. Pass stopping_condition or "
                "target_condition"
            )
        start = self._vertices.where(starting_vertices)
        edges = self._edges.where("src <> dst") if remove_loops else self._edges
        last = self._vertices.select(
            F.col("id").alias("dst"),
            packed(self._vertices, "dst_attributes", required_vertex_attributes))
        steps = edges.select(
            "src", "dst", packed(edges, "edge_attributes", required_edge_attributes)
        ).join(last, "dst", "left")
        condition = [
            None if each is None else _as_column(each)
            for each in (stopping_condition, target_condition, edge_filter)
        ]
        return accumulated(
            start.withColumn(
                "src_attributes",
                packed(self._vertices, "src_attributes", required_vertex_attributes)),
            steps, dict(zip(names, map(_as_column, accumulator_inits))),
            dict(zip(names, map(_as_column, accumulator_updates))), most, *condition,
        )

    def aggregateMessages(
        self, aggCol: Column | str | Sequence[Column | str],
        sendToSrc: Column | str | Sequence[Column | str] | None = None,
        sendToDst: Column | str | Sequence[Column | str] | None = None,
        *_: Any, **options: Any,
    ) -> DiffFrame:
        """``id`` and aggregates of the messages that edges send to their ends.

        Parameters
        ----------
        aggCol : Column, str, or a sequence of them
            Aggregates of the column ``MSG``.
        sendToSrc, sendToDst : Column, str, or a sequence of them, optional
            Messages to an end, over the structs ``src``, ``edge`` and ``dst`` of `triplets`. A null
            is no message.
        """
        check_options(options, "aggregateMessages", {"intermediate_storage_level"})
        calls = list(map(_as_column, _several(aggCol)))
        sent = [("src", message) for message in _several(sendToSrc)]
        sent += [("dst", message) for message in _several(sendToDst)]
        if not calls or not sent:
            raise SchemaError(
                "aggregateMessages needs an aggregate and a message. Pass aggCol, and sendToSrc "
                "or sendToDst"
            )
        triplets = self.triplets
        parts = [
            triplets.select(
                F.col(f"{end}.id").alias("id"),
                _as_column(message).alias("MSG"),
            )
            for end, message in sent
        ]
        messages = reduce(DiffFrame.union, parts).where("MSG IS NOT NULL")
        return messages.groupBy("id").agg(*calls)


def _reset_probability(value: Any) -> float:
    reset = float(value)
    if not 0 < reset < 1:
        raise SchemaError(f"resetProbability is {value!r}. Pass a number above 0 and below 1")
    return reset


def _missing(everyone: DiffFrame, source: Any) -> DiffFrame:
    """An empty collection of nodes, with the claim that a source is a vertex.

    Without a dataflow the error comes from reading it.
    """
    # With a missing source all ranks are zero, as in an empty graph.
    starts = everyone.where(F.col("node") == source)
    number = starts.agg(F.count("*").alias("n"), empty=True).where("n = 0")
    some = everyone.agg(F.count("*").alias("all")).where("all > 0")
    checked = number.crossJoin(some.hint("broadcast")).assert_empty(
        f"pageRank: no vertex has the id {source!r} of sourceId")
    return checked.crossJoin(everyone.hint("broadcast")).select("node")


def _as_column(expression: str | Column) -> Column:
    return F.expr(expression) if isinstance(expression, str) else expression


def _several(columns: Any) -> Iterable[Any]:
    if columns is None:
        return ()
    return (columns,) if isinstance(columns, (str, Column)) else columns
