"""GraphDiff against networkx and GraphX's formulas, after a load and after each step of changes.

    GraphDiff(v, e).method().at(t)  =  the method on the graph at t
"""

from __future__ import annotations

import itertools
import random
import sys
from types import SimpleNamespace

import networkx as nx
import pytest
from edge_history import EdgeHistory
from pyspark.sql import functions as F

from pyspark_diff import AssertionFailedError, Dataflow
from pyspark_diff.errors import SchemaError
from pyspark_diff.graphs import GraphDiff, graph_ranks, pagerank

#: Vertices of both kinds of ids; the last ones have no edge.
IDS = {"long": list(range(9)), "string": [f"v {n}'s" for n in range(9)]}


def ranks_of(vertices, edges, reset, rounds, source=None):
    """GraphX's ranks: its formula, and the sum of ranks scaled at the end."""
    starts = vertices if source is None else [source]
    degrees = {v: sum(a == v for a, _ in edges) for v in vertices}
    ranks = {v: 1.0 if v in starts else 0.0 for v in vertices}
    for _ in range(rounds):
        sums = dict.fromkeys(vertices, 0.0)
        for a, b in edges:
            sums[b] += ranks[a] / degrees[a]
        ranks = {v: (reset if v in starts else 0) + (1 - reset) * sums[v] for v in vertices}
    total = sum(ranks.values())
    return {v: rank * len(starts) / total for v, rank in ranks.items()}


def expected(ids, edges):
    """Each result by vertex, from scratch."""
    directed = nx.MultiDiGraph()
    directed.add_nodes_from(ids)
    directed.add_edges_from(edges)
    plain = nx.Graph(directed)
    plain.remove_edges_from(nx.selfloop_edges(plain))
    smallest = {v: min(part) for part in nx.connected_components(plain) for v in part}
    strong = {v: min(part) for part in nx.strongly_connected_components(directed) for v in part}
    to = {v: nx.single_source_shortest_path_length(directed, v) for v in ids}
    marks = ids[:2]
    return {
        "component": smallest,
        "strong": strong,
        "distances": {v: {m: to[v][m] for m in marks if m in to[v]} for v in ids},
        "count": nx.triangles(plain),
        "kcore": nx.core_number(plain),
        "pagerank": ranks_of(ids, edges, 0.15, 6),
        "personal": ranks_of(ids, edges, 0.2, 4, ids[0]),
        "several": [ranks_of(ids, edges, 0.2, 4, source) for source in ids[:2]],
    }


@pytest.mark.parametrize("kind", IDS)
@pytest.mark.parametrize("runner", ["local", pytest.param("spark", marks=pytest.mark.slow)])
def test_each_method_is_right_after_each_step(spark, kind, runner):
    ids, chance = IDS[kind], random.Random(kind)
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        vertices, vertices_in = flow.input("vertices", f"id {kind}, size int")
        edges, edges_in = flow.input("edges", f"src {kind}, dst {kind}, km int")
        graph = GraphDiff(vertices, edges)
        outputs = {
            "component": graph.connectedComponents(algorithm="graphx").keep("component"),
            "strong": graph.stronglyConnectedComponents(maxIter=10).keep("strong"),
            "distances": graph.shortestPaths(ids[:2]).keep("distances"),
            "count": graph.triangleCount().keep("count"),
            "kcore": graph.k_core().keep("kcore"),
            "pagerank": graph.pageRank(maxIter=6).vertices.keep("pagerank"),
            "personal": graph.pageRank(0.2, ids[0], maxIter=4).vertices.keep("personal"),
            "several": graph.parallelPersonalizedPageRank(
                0.2, ids[:2], maxIter=4).vertices.keep("several"),
        }
        vertices_in.insert([(v, n) for n, v in enumerate(ids)])
        history = EdgeHistory(
            edges_in, chance, lambda n: (chance.choice(ids[:7]), chance.choice(ids[:7]), n)
        )
        for step in range(3):
            if step:
                history.change(3)
            else:
                history.load(9)
            flow.advance_to(step + 1)
            wanted = expected(ids, [row[:2] for row in history.rows])
            for name, frame in outputs.items():
                rows = frame.at().collect()
                assert {row["id"]: row["size"] for row in rows} == dict(zip(ids, range(9)))
                answer = {row["id"]: row[-1] for row in rows}
                if name == "several":
                    for number, ranks in enumerate(wanted[name]):
                        some = {v: ranks[number] for v, ranks in answer.items()}
                        assert some == pytest.approx(ranks, abs=1e-6), step
                elif name in ("pagerank", "personal"):
                    assert answer == pytest.approx(wanted[name], abs=1e-6), (name, step)
                else:
                    assert answer == wanted[name], (name, step)


def fixed(spark, edges, vertices=((1, "a"), (2, "b"), (3, "c"))):
    return GraphDiff(
        spark.createDataFrame(list(vertices), "id long, name string"),
        spark.createDataFrame(list(edges), "src long, dst long, kind string"),
    )


EDGES = [(1, 2, "x"), (1, 2, "y"), (2, 2, "x"), (2, 9, "x")]


def rows(frame):
    return sorted(tuple(row) for row in frame.at(0).collect())


def test_ranks_of_more_vertices_than_a_long_has_surfers_for(spark, monkeypatch):
    """With units of 2**-60 a long has room for the surfers of 7 vertices."""
    monkeypatch.setattr(graph_ranks, "RANK_UNIT", 1 << 60)
    monkeypatch.setattr(sys.modules[pagerank.__module__], "UNIT", 1 << 60)
    ids, pairs = list(range(80)), [(0, 1), (1, 2), (2, 3)]
    with Dataflow(spark, runner="local") as flow:
        vertices, vertices_in = flow.input("vertices", "id long")
        edges, edges_in = flow.input("edges", "src long, dst long")
        ranked = GraphDiff(vertices, edges).pageRank(maxIter=3).vertices.keep("found")
        others = pagerank(edges, vertices, rounds=4, reset_probability=0.15).keep("others")
        vertices_in.insert([(each,) for each in ids])
        edges_in.insert(pairs)
        flow.advance_to(1)
        assert dict(map(tuple, ranked.at().collect())) == pytest.approx(
            ranks_of(ids, pairs, 0.15, 3), abs=1e-12)
        # A vertex without an edge from it leads to all vertices.
        led = {a: [b for first, b in pairs if first == a] or ids for a in ids}
        ranks = dict.fromkeys(ids, 1 / 80)
        for _ in range(4):
            sums = dict.fromkeys(ids, 0.15 / 80)
            for a, ways in led.items():
                for b in ways:
                    sums[b] += 0.85 * ranks[a] / len(ways)
            ranks = sums
        assert dict(map(tuple, others.at().collect())) == pytest.approx(ranks, abs=1e-12)


def test_degrees_have_the_columns_of_graphframes(spark):
    graph = fixed(spark, EDGES)
    assert graph.outDegrees.columns == ["id", "outDegree"]
    assert rows(graph.outDegrees) == [(1, 2), (2, 2)]
    assert graph.inDegrees.columns == ["id", "inDegree"]
    assert rows(graph.inDegrees) == [(2, 3), (9, 1)]
    assert rows(graph.degrees) == [(1, 2), (2, 5), (9, 1)]
    typed = graph.type_out_degree("kind", ["x", "y"])
    assert rows(typed) == [(1, (1, 1)), (2, (2, 0))]
    assert typed.schema["outDegrees"].dataType.names == ["x", "y"]
    assert rows(graph.type_in_degree("kind", ["x"])) == [(2, (2,)), (9, (1,))]
    assert graph.type_degree("kind", ["x"]).columns == ["id", "degrees"]
    assert rows(graph.type_degree("kind", ["x", "y"])) == [(1, (1, 1)), (2, (4, 1)), (9, (1, 0))]


def test_nulls_are_no_vertices_and_no_ends(spark):
    """GraphFrames counts a null as one more vertex with degrees."""
    methods = [
        lambda g: g.degrees, lambda g: g.outDegrees, lambda g: g.type_degree("kind", ["x", "y"]),
        lambda g: g.find("(a)-[e]->()"), lambda g: g.triplets, lambda g: g.k_core(),
        lambda g: g.connectedComponents(), lambda g: g.pageRank(maxIter=2).vertices,
        lambda g: g.pageRank(maxIter=2).edges, lambda g: g.triangleCount(),
        lambda g: g.filterVertices("id > 0").vertices, lambda g: g.dropIsolatedVertices().vertices,
    ]
    with Dataflow(spark, runner="local", buckets=2) as flow:
        vertices, vertices_in = flow.input("vertices", "id long, name string")
        edges, edges_in = flow.input("edges", "src long, dst long, kind string")
        graph = GraphDiff(vertices, edges)
        right = GraphDiff(vertices.where("id > 0"), edges.where("src > 0 AND dst > 0"))
        outputs = [[method(each).keep() for each in (graph, right)] for method in methods]
        turned = graph.as_reversed().edges.keep()
        vertices_in.insert([(1, "a"), (2, "b"), (None, "n")])
        edges_in.insert([*EDGES, (1, None, "x"), (None, 2, "x"), (None, None, "y")])
        flow.advance_to(1)
        edges_in.remove([(1, None, "x"), (1, 2, "x")])
        edges_in.insert([(2, None, "y")])
        flow.advance_to(2)
        for number, frames in enumerate(outputs):
            with_nulls, without = (sorted(map(tuple, frame.at().collect())) for frame in frames)
            assert with_nulls == without and without, number
        assert turned.at().count() == 6


def test_parts_of_a_graph(spark):
    graph = fixed(spark, EDGES)
    assert rows(graph.triplets)[0] == ((1, "a"), (1, 2, "x"), (2, "b"))
    assert len(rows(graph.triplets)) == 3  # an end that is no vertex has no triplet
    some = graph.filterVertices("name <> 'a'")
    assert rows(some.vertices) == [(2, "b"), (3, "c")] and rows(some.edges) == [(2, 2, "x")]
    some = graph.filterEdges(F.col("kind") == "y")
    assert rows(some.edges) == [(1, 2, "y")] and len(rows(some.vertices)) == 3
    assert rows(graph.dropIsolatedVertices().vertices) == [(1, "a"), (2, "b")]
    assert rows(graph.as_reversed().edges)[0] == (2, 1, "x")
    assert len(rows(graph.as_undirected().edges)) == 8
    assert rows(graph.find("(a)-[e]->(b); (b)-[]->(b)").select("a.id", "e.kind")) == [
        (1, "x"), (1, "y"), (2, "x")]
    assert rows(graph.labelPropagation(2).select("id", "label"))[2] == (3, 3)
    assert rows(graph.pageRank(tol=0.01).edges.select("src", "dst", "weight"))[0] == (1, 2, 0.5)
    assert graph.pageRank(maxIter=1).edges.columns == ["src", "dst", "kind", "weight"]


@pytest.mark.parametrize("kind", IDS)
def test_paths_and_cycles_after_each_step(spark, kind):
    """With parallel edges, self-loops, an end that is no vertex, and an edge that moves twice."""
    ids, chance = IDS[kind][:6], random.Random(7)
    vertices = spark.createDataFrame([(v, n) for n, v in enumerate(ids[:5])], f"id {kind}, n int")
    with Dataflow(spark, runner="local", buckets=2) as flow:
        edges, session = flow.input("edges", f"src {kind}, dst {kind}, `a.b` int")
        graph = GraphDiff(vertices, edges)
        outputs = {
            "directed": graph.all_paths("n = 0", "n > 2", "`a.b` < 8", max_path_length=3),
            "undirected": graph.all_paths(F.col("n") < 2, F.col("N") == 4, is_directed=False),
            "cycles": graph.detectingCycles(use_local_checkpoints=True),
        }
        assert outputs["directed"].columns == ["path", "len"]
        assert outputs["cycles"].columns == ["found_cycles"]
        outputs = {name: frame.keep(name) for name, frame in outputs.items()}
        history = EdgeHistory(
            session, chance, lambda n: (chance.choice(ids), chance.choice(ids), n)
        )
        for step in range(3):
            if step:
                history.change(4, twice=True)
            else:
                history.load(10)
            flow.advance_to(step + 1)
            actual = {
                name: sorted(tuple(row) for row in frame.at().collect())
                for name, frame in outputs.items()
            }

            def paths(starts, ends, arcs, most):
                lists = [
                    list(some) for size in range(2, most + 2)
                    for some in itertools.permutations(ids[:5], size)
                    if some[0] in starts and some[-1] in ends
                    and all(pair in arcs for pair in zip(some, some[1:]))
                ]
                return sorted((some, len(some) - 1) for some in lists)

            low = {row[:2] for row in history.rows if row[2] < 8}
            arcs = {row[:2] for row in history.rows}
            assert actual["directed"] == paths(ids[:1], ids[3:5], low, 3), step
            both = arcs | {(b, a) for a, b in arcs}
            assert actual["undirected"] == paths(ids[:2], ids[4:5], both, 5), step
            assert actual["cycles"] == sorted(
                ([*some, some[0]],) for size in range(1, 6)
                for some in itertools.permutations(ids[:5], size)
                if some[0] == min(some)
                and all(pair in arcs for pair in zip(some, (*some[1:], some[0])))), step


def test_messages_are_aggregated(spark):
    graph = fixed(spark, EDGES[:2])
    sent = graph.aggregateMessages(
        [F.collect_set("MSG").alias("names"), F.count("MSG").alias("n")],
        sendToDst=[F.col("src")["name"]], sendToSrc="if(edge.kind = 'x', dst.name, null)")
    assert rows(sent) == [(1, ["b"], 1), (2, ["a"], 2)]


def test_a_graphframe_is_taken(spark):
    graph = fixed(spark, EDGES)
    frames = SimpleNamespace(
        vertices=spark.createDataFrame([(1,), (2,)], "id long"),
        edges=spark.createDataFrame([(1, 2)], "src long, dst long"))
    assert rows(GraphDiff(frames).connectedComponents()) == [(1, 1), (2, 1)]
    assert [frame.columns for frame in graph.at(0)] == [["id", "name"], ["src", "dst", "kind"]]


def test_mistakes_are_named(spark):
    vertices = spark.createDataFrame([(1,)], "id long")
    with pytest.raises(SchemaError, match=r"GraphDiff\(vertices, edges\)"):
        GraphDiff(vertices)
    with pytest.raises(SchemaError, match="no column 'dst'.*Rename"):
        GraphDiff(vertices, spark.createDataFrame([(1,)], "src long"))
    with pytest.raises(SchemaError, match="'src' of the edges is int.*Cast"):
        GraphDiff(vertices, spark.createDataFrame([(1, 1)], "src int, dst long"))
    with pytest.raises(SchemaError, match="not a list"):
        GraphDiff([(1,)], [(1, 2)])
    graph = fixed(spark, EDGES)
    for call, words in (
        (lambda: graph.pageRank(), "either maxIter or tol"),
        (lambda: graph.pageRank(maxIter=3, tol=0.1), "either maxIter or tol"),
        (lambda: graph.pageRank(1.5, maxIter=3), "above 0 and below 1"),
        (lambda: graph.pageRank(tol=7), "above 0 and below 1"),
        (lambda: graph.parallelPersonalizedPageRank(maxIter=2), "needs sourceIds"),
        (lambda: graph.parallelPersonalizedPageRank(sourceIds=[1]), "maxIter"),
        (lambda: graph.shortestPaths([]), "landmarks"),
        (lambda: graph.triangleCount(algorithm="approx"), "exact"),
        (lambda: graph.connectedComponents(iterations=3), "no option 'iterations'"),
        (lambda: graph.type_in_degree("kind"), "edge_types"),
        (lambda: graph.aggregateMessages(F.count("MSG")), "sendToSrc"),
    ):
        with pytest.raises(SchemaError, match=words):
            call()


@pytest.mark.parametrize(("vertices", "edges", "words"), [
    ([(1,), (1,)], [(1, 1)], "a vertex is there twice"),
    ([(1,), (2,)], [(1, 5)], "an end of an edge is no vertex"),
    ([(1,), (2,)], [(1, None)], r"(?s)an end of an edge is no vertex.*\(None,?\)"),
    ([(1,), (None,)], [(1, 1)], "the id of a vertex is null"),
])
def test_an_invalid_graph_fails_the_step(spark, vertices, edges, words):
    with Dataflow(spark, runner="local") as flow:
        first, vertices_in = flow.input("vertices", "id long")
        second, edges_in = flow.input("edges", "src long, dst long")
        GraphDiff(first, second).validate()
        vertices_in.insert(vertices)
        edges_in.insert(edges)
        with pytest.raises(AssertionFailedError, match=words):
            flow.advance_to(1)
    fixed_graph = GraphDiff(
        spark.createDataFrame(vertices, "id long"),
        spark.createDataFrame(edges, "src long, dst long"))
    with pytest.raises(AssertionFailedError, match=words):
        fixed_graph.validate()
    fixed_graph.filterVertices("id > 1").validate()


def test_a_source_that_is_no_vertex_fails_the_step(spark):
    with Dataflow(spark, runner="local") as flow:
        vertices, vertices_in = flow.input("vertices", "id long")
        edges, _ = flow.input("edges", "src long, dst long")
        GraphDiff(vertices, edges).pageRank(sourceId=7, maxIter=2).vertices.keep("ranks")
        flow.advance_to(1)
        vertices_in.insert([(1,)])
        with pytest.raises(AssertionFailedError, match="no vertex has the id 7"):
            flow.advance_to(2)
    whole = fixed(spark, EDGES).pageRank(sourceId=7, maxIter=2).vertices
    with pytest.raises(AssertionFailedError, match="no vertex has the id 7"):
        whole.at(0).collect()
