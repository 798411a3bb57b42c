"""Motifs: all matches of a pattern of nodes and edges in a graph."""

from __future__ import annotations

from typing import Any, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.frame.diffframe import DiffFrame
from pyspark_diff.graphs.edges import GraphParts, parts_of
from pyspark_diff.graphs.patterns import EdgeTerm, Motif, parsed
from pyspark_diff.spark.frames import column


def find(
    edges: Any, pattern: str, nodes: Any = None, *, src: str = "src", dst: str = "dst"
) -> DiffFrame:
    """All matches of a motif, as GraphFrames' ``find``, kept up to date.

    A pattern is a list of terms with ``;`` between them. The term ``(a)-[e]->(b)`` is an edge ``e``
    from a node ``a`` to a node ``b``, and ``(b)<-[e]-(a)`` is the same. The term ``(a)`` is a node.
    A name is the same node everywhere, and two names may match one node. Nodes ``()`` and edges
    ``[]`` without a name have to match, and the result does not have them. ``!(a)-[]->(b)`` means
    that the edge does not exist.

    The term ``(a)-[e]-(b)`` is an edge in any direction, and a self-loop matches in both. The term
    ``(a)<-[e]->(b)`` is two edges, ``e1`` from `a` to `b` and ``e2`` back. The term
    ``(a)-[e*2]->(b)`` is a path of two edges ``_e1`` and ``_e2`` over the node ``_ab1``, and
    ``(a)-[e*1..3]->(b)`` a path of one to three edges.

    Parameters
    ----------
    edges : DiffFrame, DataFrame, or object with ``vertices`` and ``edges``
        Directed. Each parallel edge is a separate match.
    pattern : str
    nodes : DiffFrame, DataFrame or sequence of ids, optional
        Nodes that may have no edge: column ``id`` (or ``node``), of the type of ``src``. Vertices
        of ``edges`` count without being named.
    src, dst : str
        The columns of an edge's ends.

    Returns
    -------
    DiffFrame
        A row for each match, and a column for each name of the pattern, in the order of their first
        use. A node is a struct of ``id`` and the other columns of the vertices, or of `nodes` if
        the graph has no vertices. The other columns are null for a node that is an end of an edge
        and no vertex. A name of a longer path is null in the matches of shorter ones. An edge is a
        struct of ``src``, ``dst`` and its other columns. A name that only negated terms have is
        each node of the graph for which the terms are true.

    Raises
    ------
    SchemaError
        If the text is no pattern, with the position of the fault; if a column is missing, or types
        differ.

    Notes
    -----
    The program has a join for each edge of the pattern, and an antijoin for each negated edge.
    Edges that share nodes with the joined ones come first, and the operators keep intermediate
    matches as state. The last joins add attributes of nodes, if there are any. Terms without a
    common node produce all pairs of their matches, and a name that only negated terms have produces
    pairs with all nodes. Write further conditions as `where` on the result, such as
    ``where("a.id < b.id")``; apply conditions on edges alone to the edges before.

    A term without a direction, and each length of a path, have matches of their own: the program
    has the product of them as branches, at most 64. Two paths between the same nodes share the
    nodes between, as these have the same names. An end without a name is another node in each path:
    GraphFrames shares the nodes between these, too, and `find` refuses the names.

    The language is that of GraphFrames 0.12. It also allows ranges of hops next to other terms, and
    refuses negated paths. The columns ``_pattern`` and ``_direction`` of GraphFrames are left out.
    For an ``id`` as a key write ``select(F.col("a.id").alias("node"))``.

    One changed edge of 100k between 10k nodes (the pattern below) takes about 39 ms on two cores,
    1/32 of loading them.

    Source: Dave, Jindal, Li, Xin, Gonzalez, Zaharia, "GraphFrames: an integrated API for mixing
    graph and relational queries", GRADES 2016.

    Examples
    --------
    Who is followed and does not follow back:

    >>> from pyspark_diff.graphs import find
    >>> rows = [("ann", "bob", 0, 1), ("bob", "ann", 0, 1), ("ann", "eve", 0, 1),
    ...         ("bob", "ann", 5, -1)]
    >>> edges = spark.createDataFrame(rows, "src string, dst string, time int, diff int")
    >>> fans = find(edges, "(a)-[e]->(b); !(b)-[]->(a)")
    >>> fans.schema.simpleString()
    'struct<a:struct<id:string>,e:struct<src:string,dst:string>,b:struct<id:string>>'
    >>> found = fans.select("a.id", F.col("b.id").alias("other"))
    >>> [sorted(tuple(row) for row in found.at(time).collect()) for time in (0, 5)]
    [[('ann', 'eve')], [('ann', 'bob'), ('ann', 'eve')]]
    """
    motif = parsed(pattern)
    graph = parts_of(edges, nodes, src=src, dst=dst)
    branches = [_matches(motif, terms, graph) for terms in motif.branches]
    return branches[0].concat(*branches[1:]) if len(branches) > 1 else branches[0]


def _matches(motif: Motif, terms: tuple[EdgeTerm, ...], graph: GraphParts) -> DiffFrame:
    rest = [term for term in terms if not term.negated]
    matches: DiffFrame | None = None
    ends: dict[str, tuple[str, str]] = {}
    while rest:
        known = set() if matches is None else set(matches.columns)
        term = max(rest, key=lambda term: len(known.intersection(term.nodes)))
        rest.remove(term)
        piece, ends_of_edge = _piece(term, graph)
        if term.edge is not None:
            ends[term.edge] = ends_of_edge
        matches = piece if matches is None else _joined(matches, piece, term.nodes)
    used = {name for term in terms for name in term.nodes}
    nodes = [name for name in motif.nodes if name in used or name not in motif.between]
    for name in nodes:
        if matches is None:
            matches = graph.nodes.toDF(name)
        elif name not in matches.columns:
            matches = _joined(matches, graph.nodes.toDF(name), ())
    assert matches is not None  # every pattern has a name
    for term in terms:
        if term.negated:
            matches = matches.antijoin(_piece(term, graph)[0], list(term.nodes))
    return _shown(matches, motif, nodes, graph, ends)


def _piece(term: EdgeTerm, graph: GraphParts) -> tuple[DiffFrame, tuple[str, str]]:
    """The edges that may match a term, and the columns of their ends.

    The columns are the names of nodes, with their ids, and for a named edge its attributes and its
    unnamed ends.
    """
    src, dst = term.src, term.dst
    edges = graph.edges
    if src is not None and src == dst:
        edges = edges.where(F.col("src") == F.col("dst"))
    columns: dict[str, str] = {}
    at = tuple(
        name if name is not None else f"{term.edge}.{end}"
        for name, end in ((src, "src"), (dst, "dst"))
    )
    for name, end, known in zip(at, ("src", "dst"), (src, dst)):
        if known is not None or term.edge is not None:
            columns[name] = end
    if term.edge is not None:
        columns.update({f"{term.edge}{name}": name for name in graph.edge_attributes})
    piece = edges.select(*(column(name).alias(new) for new, name in columns.items()))
    return piece, (at[0], at[1])


def _joined(matches: DiffFrame, piece: DiffFrame, nodes: tuple[str, ...]) -> DiffFrame:
    on = [name for name in nodes if name in matches.columns]
    return matches.join(piece, on) if on else matches.crossJoin(piece.hint("broadcast"))


def _shown(
    matches: DiffFrame, motif: Motif, nodes: Sequence[str], graph: GraphParts,
    ends: dict[str, tuple[str, str]],
) -> DiffFrame:
    """The matches with a struct for each name; null for a name that the branch does not have."""
    if graph.node_attributes:
        for name in nodes:
            more = (f"{name}{attribute}" for attribute in graph.node_attributes)
            matches = matches.join(graph.vertices.toDF(name, *more), name)

    def struct(name: str) -> Column:
        if name in motif.nodes:
            fields, more, table = {"id": name}, graph.node_attributes, graph.vertices
            kinds = {"id": "node"}
        else:
            fields = dict(zip(("src", "dst"), ends.get(name, ("", ""))))
            more, table, kinds = graph.edge_attributes, graph.edges, {"src": "src", "dst": "dst"}
        kinds.update({attribute[1:]: attribute for attribute in more})
        if name not in nodes and name not in ends:
            kind = T.StructType([
                T.StructField(field, table.schema[at].dataType) for field, at in kinds.items()])
            return F.lit(None).cast(kind).alias(name)
        fields.update({attribute[1:]: f"{name}{attribute}" for attribute in more})
        return F.struct(*(column(at).alias(field) for field, at in fields.items())).alias(name)

    return matches.select(*map(struct, motif.names))
