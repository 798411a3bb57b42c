"""The cases of GraphFrames' own Python suite, for `GraphDiff` over graphs that change.

    at(GraphDiff(v, e).method(), t) = the answer that the suite asserts

Source: ``python/tests/test_graphframes.py`` of GraphFrames 0.12 (https://graphframes.io). Each
graph begins with an edge too many and without its last edge. The cases pass options without an
effect as the suite does. The suite's cases of caches, sketches, random walks, SVD++
and power iteration have no counterpart here.
"""

from __future__ import annotations

import inspect

import pytest
from graphframes import GraphFrame
from graphframes.graphframe import AggregateNeighbors
from graphframes.lib import AggregateMessages
from graphframes.lib import Pregel as TheirPregel
from pyspark import StorageLevel
from pyspark.sql import functions as F

from pyspark_diff import Dataflow
from pyspark_diff.errors import AssertionFailedError, SchemaError
from pyspark_diff.graphs import GraphDiff, Pregel

PEOPLE = ([(1, "A"), (2, "B"), (3, "C")], "id long, name string")
ACTIONS = ([(1, 2, "love"), (2, 1, "hate"), (2, 3, "follow")], "src long, dst long, action string")
#: The checkpoints and levels of storage that the suite passes.
STORED = {
    "use_local_checkpoints": True, "checkpoint_interval": 5,
    "storage_level": StorageLevel.MEMORY_AND_DISK,
}
#: Members without a counterpart: names of columns, and methods that docs/limits.md leaves out.
LEFT_OUT = {
    "ID", "SRC", "DST", "EDGE", "WEIGHT", "hyper_anf", "svdPlusPlus", "powerIterationClustering",
}


def ids(*numbers):
    return [(n,) for n in numbers], "id long"


def pairs(*edges):
    return list(edges), "src long, dst long"


def after_steps(spark, vertices, edges, program, extra=None):
    """The rows of a program after the edges came and went, with their columns."""
    (people, people_type), (rows, rows_type) = vertices, edges
    extra = extra or (*rows[0][1::-1], *rows[0][2:])
    with Dataflow(spark, runner="local") as flow:
        nodes, nodes_in = flow.input("nodes", people_type)
        ways, ways_in = flow.input("ways", rows_type)
        answer = program(GraphDiff(nodes, ways)).keep("answer")
        nodes_in.insert(people)
        ways_in.insert([*rows[:-1], extra])
        flow.advance_to(1)
        ways_in.insert(rows[-1:])
        ways_in.remove([extra])
        flow.advance_to(2)
        first = answer.at(1).collect()
        ways_in.remove(rows[:1])
        flow.advance_to(3)
        ways_in.insert(rows[:1])
        flow.advance_to(4)
        last = answer.at(3).collect()
    assert sorted(map(repr, first)) == sorted(map(repr, last))
    return last


def values(rows, name):
    return {row["id"]: row[name] for row in rows}


@pytest.mark.parametrize("theirs, ours", [(GraphFrame, GraphDiff), (TheirPregel, Pregel)])
def test_members_and_their_parameters(theirs, ours):
    public = {name for name in dir(theirs) if not name.startswith("_")}
    assert {name for name in public if not hasattr(ours, name)} == public & LEFT_OUT
    for name in sorted(public - LEFT_OUT):
        method = getattr(theirs, name)
        if callable(method):
            all_parameters = [*inspect.signature(method).parameters.values()]
            named = {
                parameter.name: None for parameter in all_parameters
                if parameter.kind is not parameter.VAR_POSITIONAL
            }
            signature = inspect.signature(getattr(ours, name))
            signature.bind(*named)
            # The names of parameters of Pregel's setters differ.
            if theirs is GraphFrame:
                signature.bind(**named)


def test_options_by_position(spark):
    rows = after_steps(
        spark, PEOPLE, ACTIONS,
        lambda g: g.cache().persist(StorageLevel.DISK_ONLY).connectedComponents("graphframes", 2))
    assert values(rows, "component") == {1: 1, 2: 1, 3: 1}
    rows = after_steps(
        spark, PEOPLE, ACTIONS, lambda g: g.unpersist().labelPropagation(2, "graphx"))
    assert {"id", "name", "label"} == set(rows[0].asDict())


def test_messages(spark):
    """The messages of the user guide, with the references of GraphFrames."""
    am = AggregateMessages
    people = [(1, 30), (2, 40), (3, 50)], "id long, age int"
    rows = after_steps(spark, people, pairs((1, 2), (2, 1), (2, 3)), lambda g: g.aggregateMessages(
        F.sum(am.msg).alias("ages"), sendToSrc=am.dst["age"], sendToDst="src.age"))
    assert values(rows, "ages") == {1: 80, 2: 110, 3: 40}
    rows = after_steps(spark, people, pairs((1, 2), (2, 1), (2, 3)), lambda g: g.aggregateMessages(
        ["max(MSG) AS most", F.min(am.msg).alias("least")], sendToDst=[am.src["age"]]))
    assert {row["id"]: (row["most"], row["least"]) for row in rows} == {
        1: (40, 40), 2: (30, 30), 3: (40, 40)}


def test_triplets(spark):
    rows = after_steps(spark, PEOPLE, ACTIONS, lambda g: g.triplets)
    assert sorted((row.src.name, row.dst.name, row.edge.action) for row in rows) == [
        ("A", "B", "love"), ("B", "A", "hate"), ("B", "C", "follow")]


def test_names_of_columns(spark):
    wrong = spark.createDataFrame([(1, "A")], "invalid_1 long, invalid_2 string")
    edges = spark.createDataFrame([(1, 2)], "src long, dst long")
    with pytest.raises(SchemaError, match="id"):
        GraphDiff(wrong, edges)


@pytest.mark.parametrize("vertices, edges, is_valid", [
    (ids(1, 2, 3), pairs((1, 2), (2, 1), (2, 3)), True),
    (ids(1, 2, 3, 1), pairs((1, 2), (2, 1), (2, 3)), False),
    (ids(1, 2, 3), pairs((1, 2), (2, 1), (2, 3), (1, 4)), False),
])
def test_validate(spark, vertices, edges, is_valid):
    with Dataflow(spark, runner="local") as flow:
        nodes, nodes_in = flow.input("nodes", vertices[1])
        ways, ways_in = flow.input("ways", edges[1])
        GraphDiff(nodes, ways).validate()
        nodes_in.insert(vertices[0])
        ways_in.insert(edges[0])
        if is_valid:
            flow.advance_to(1)
        else:
            with pytest.raises(AssertionFailedError):
                flow.advance_to(1)


@pytest.mark.parametrize("attributes", [(), ("edge1",)])
def test_undirected_and_reversed(spark, attributes):
    schema = "src long, dst long" + ", attr string" * len(attributes)
    edges = [(1, 2, *attributes), (2, 3, *attributes)]
    turned = [(b, a, *rest) for a, b, *rest in edges]
    both = after_steps(spark, PEOPLE, (edges, schema), lambda g: g.as_undirected().edges)
    assert sorted(map(tuple, both)) == sorted(edges + turned)
    reverse = after_steps(spark, PEOPLE, (edges, schema), lambda g: g.as_reversed().edges)
    assert sorted(map(tuple, reverse)) == sorted(turned)


@pytest.mark.parametrize("method, column, expected", [
    ("outDegrees", "outDegree", {1: 1, 2: 2}),
    ("inDegrees", "inDegree", {1: 1, 2: 1, 3: 1}),
    ("degrees", "degree", {1: 2, 2: 3, 3: 1}),
])
def test_degrees(spark, method, column, expected):
    rows = after_steps(spark, PEOPLE, ACTIONS, lambda g: getattr(g, method))
    assert set(rows[0].asDict()) == {"id", column}
    assert values(rows, column) == expected


@pytest.mark.parametrize("method, column, expected", [
    ("type_out_degree", "outDegrees", {1: (1, 0, 0), 2: (0, 1, 1)}),
    ("type_in_degree", "inDegrees", {1: (0, 1, 0), 2: (1, 0, 0), 3: (0, 0, 1)}),
    ("type_degree", "degrees", {1: (1, 1, 0), 2: (1, 1, 1), 3: (0, 0, 1)}),
])
def test_degrees_by_type(spark, method, column, expected):
    types = ["love", "hate", "follow"]
    rows = after_steps(spark, PEOPLE, ACTIONS, lambda g: getattr(g, method)("action", types))
    assert set(rows[0].asDict()) == {"id", column}
    assert {
        node: tuple(degrees[name] for name in types)
        for node, degrees in values(rows, column).items()
    } == expected


def test_motifs(spark):
    rows = after_steps(spark, PEOPLE, ACTIONS, lambda g: g.find("(a)-[e]->(b)"))
    assert len(rows) == 3 and set(rows[0].asDict()) == {"a", "e", "b"}


@pytest.mark.parametrize("program, vertices, edges", [
    (lambda g: g.filterVertices("id < 3"), "AB", [(1, 2, "love"), (2, 1, "hate")]),
    (lambda g: g.filterVertices(F.col("id") < 3), "AB", [(1, 2, "love"), (2, 1, "hate")]),
    (lambda g: g.filterEdges("dst > 2"), "ABC", [(2, 3, "follow")]),
    (lambda g: g.filterEdges(F.col("dst") > 2), "ABC", [(2, 3, "follow")]),
    (lambda g: g.filterEdges("dst > 2").dropIsolatedVertices(), "BC", [(2, 3, "follow")]),
])
def test_parts(spark, program, vertices, edges):
    remaining = after_steps(spark, PEOPLE, ACTIONS, lambda g: program(g).vertices)
    assert sorted(row["name"] for row in remaining) == list(vertices)
    rows = after_steps(spark, PEOPLE, ACTIONS, lambda g: program(g).edges)
    assert sorted(map(tuple, rows)) == edges


@pytest.mark.parametrize("options, number", [
    ({}, 1), ({"edgeFilter": "action != 'follow'"}, 0), ({"maxPathLength": 1}, 0),
])
def test_bfs(spark, options, number):
    rows = after_steps(
        spark, PEOPLE, ACTIONS, lambda g: g.bfs("name = 'A'", "name = 'C'", **options))
    assert len(rows) == number
    assert all(row["v1"]["name"] == "B" for row in rows)


@pytest.mark.parametrize("options, lengths", [
    ({}, [2]), ({"edge_filter": "action != 'follow'"}, []), ({"max_path_length": 1}, []),
    ({"is_directed": False}, [2]),
])
def test_all_paths(spark, options, lengths):
    """Without a direction, both edges between A and B are one."""
    rows = after_steps(
        spark, PEOPLE, ACTIONS,
        lambda g: g.all_paths("name = 'A'", "name = 'C'", use_local_checkpoints=True, **options))
    assert sorted(row["len"] for row in rows) == lengths
    assert all({"path", "len"} <= set(row.asDict()) for row in rows)


RANKED = pairs((0, 1), (1, 2), (2, 4), (2, 0), (3, 4), (4, 0), (4, 2))


def ranks_by_messages(graph):
    """The suite's page ranks, whose vertices have their number of edges."""
    alpha, msg = 0.15, Pregel.msg()
    return GraphDiff(graph.outDegrees, graph.edges).pregel.setMaxIter(5).setEarlyStopping(
        True
    ).setUseLocalCheckpoints(True).setIntermediateStorageLevel(
        StorageLevel.DISK_ONLY
    ).setCheckpointInterval(3).withVertexColumn(
        "rank", F.lit(1.0 / 5),
        F.coalesce(msg, F.lit(0.0)) * F.lit(1.0 - alpha) + F.lit(alpha / 5),
    ).sendMsgToDst(Pregel.src("rank") / Pregel.src("outDegree")).aggMsgs(F.sum(msg)).run()


def test_ranks_by_messages(spark):
    rows = after_steps(spark, ids(0, 1, 2, 3, 4), RANKED, ranks_by_messages)
    assert values(rows, "rank") == pytest.approx(
        dict(enumerate([0.245, 0.224, 0.303, 0.03, 0.197])), abs=1e-3)


def test_columns_of_edges_in_messages(spark):
    edges = [(0, 1, 0.5), (1, 2, 1.0), (2, 0, 0.3)], "src long, dst long, weight double"

    def program(graph):
        msg = Pregel.msg()
        return graph.pregel.setMaxIter(2).withVertexColumn(
            "value", F.lit(0.0), F.coalesce(msg, F.lit(0.0))
        ).sendMsgToDst(Pregel.src("value") + Pregel.edge("weight")).aggMsgs(
            F.sum(msg)).required_edge_columns("weight").run()

    rows = after_steps(spark, ids(0, 1, 2), edges, program)
    assert values(rows, "value") == pytest.approx({0: 1.3, 1: 0.8, 2: 1.5})


@pytest.mark.parametrize("vertices, edges, expected", [
    (([(0, "a", "b")], "id long, vattr string, gender string"),
     ([(0, 0, 1)], "src long, dst long, test long"), {0: 0}),
    (([(0, "a0", "b0"), (1, "a1", "b1")], "id long, A string, B string"),
     ([(0, 1, "a01", "b01")], "src long, dst long, A string, B string"), {0: 0, 1: 0}),
    (([(1, "Alice", 30), (2, "Bob", 25), (3, "Charlie", 35)], "id long, name string, age int"),
     ([(1, 2, "friend"), (2, 1, "friend"), (2, 3, "friend"), (3, 2, "enemy")],
      "src long, dst long, relationship string"), {1: 1, 2: 1, 3: 1}),
])
def test_connected_components(spark, vertices, edges, expected):
    rows = after_steps(spark, vertices, edges, lambda g: g.connectedComponents(
        algorithm="graphframes", checkpointInterval=5, use_local_checkpoints=True,
        storage_level=StorageLevel.MEMORY_AND_DISK, broadcastThreshold=-1,
        useLabelsAsComponents=True))
    assert values(rows, "component") == expected
    assert set(vertices[1].replace(",", "").split()[::2]) <= set(rows[0].asDict())


def test_shortest_paths(spark):
    ways = [(1, 2), (1, 5), (2, 3), (2, 5), (3, 4), (4, 5), (4, 6)]
    both = [way for a, b in ways for way in ((a, b), (b, a))]
    rows = after_steps(
        spark, ids(*range(1, 7)), pairs(*both),
        lambda g: g.shortestPaths([1, 4], algorithm="graphx", **STORED), extra=(1, 6))
    assert values(rows, "distances") == {
        1: {1: 0, 4: 2}, 2: {1: 1, 4: 2}, 3: {1: 2, 4: 1}, 4: {1: 2, 4: 0}, 5: {1: 1, 4: 1},
        6: {1: 3, 4: 1},
    }


def test_shortest_paths_without_direction(spark):
    rows = after_steps(
        spark, ids(*range(1, 6)), pairs((1, 2), (2, 3), (3, 4), (4, 5)),
        lambda g: g.shortestPaths([1], is_directed=False), extra=(1, 4))
    assert values(rows, "distances") == {n: {1: n - 1} for n in range(1, 6)}


def test_labels_of_neighbourhoods(spark):
    rows = after_steps(
        spark, ids(1, 2, 3), pairs((1, 2), (2, 3), (3, 1)),
        lambda g: g.neighborhood_aware_cdlp(max_iter=1))
    assert {"id", "label"} <= set(rows[0].asDict()) and len(rows) == 3
    vertices = [(n, letter) for n, letter in enumerate("ABCD", 1)], "id long, seed_label string"
    rows = after_steps(
        spark, vertices, pairs((1, 2), (2, 3), (3, 4), (4, 1)),
        lambda g: g.neighborhood_aware_cdlp(
            max_iter=2, structural_similarity_multiplier=0.25, ignore_direct_links=False,
            initial_label_col="seed_label", is_directed=False, lg_nom_entries=12, **STORED))
    assert set(values(rows, "label").values()) <= set("ABCD") and len(rows) == 4


def test_components_beside_an_edge_without_vertices(spark):
    rows = after_steps(
        spark, ids(*range(1, 6)), pairs((7, 8)), lambda g: g.stronglyConnectedComponents(5))
    assert values(rows, "component") == {n: n for n in range(1, 6)}


def test_triangles(spark):
    rows = after_steps(
        spark, ids(0, 1, 2), pairs((0, 1), (1, 2), (2, 0)),
        lambda g: g.triangleCount(storage_level=StorageLevel.DISK_ONLY))
    assert values(rows, "count") == {0: 1, 1: 1, 2: 1}


def test_cycles(spark):
    vertices = [(n, letter) for n, letter in enumerate("abcde", 1)], "id long, attr string"
    rows = after_steps(
        spark, vertices, pairs((1, 2), (2, 3), (3, 1), (1, 4), (2, 5)),
        lambda g: g.detectingCycles(**STORED), extra=(4, 2))
    assert [row["found_cycles"] for row in rows] == [[1, 2, 3, 1]]


def test_independent_set(spark):
    vertices = [(n, letter) for n, letter in enumerate("abcd")], "id long, name string"
    edges = [(0, 1, "edge1")], "src long, dst long, name string"
    rows = after_steps(spark, vertices, edges, lambda g: g.maximal_independent_set(
        storage_level=StorageLevel.MEMORY_ONLY, seed=12345), extra=(2, 3, "edge2"))
    members = {row["id"] for row in rows}
    assert len(members) == 3 and {2, 3} < members


def test_core_numbers(spark):
    """A clique of five, vertices with two or three edges to it, and chains from those."""
    clique = [(a, b) for a in range(5) for b in range(a + 1, 5)]
    middle = {5: (0, 1, 2), 6: (0, 1, 3), 7: (1, 2, 4), 8: (0, 3, 4), 9: (1, 2, 3),
              10: (0, 4), 11: (2, 3), 12: (1, 4), 13: (0, 2), 14: (3, 4)}
    edges = clique + [(a, b) for a, ends in middle.items() for b in ends]
    edges += [(n, n - 10) for n in range(15, 30)]
    vertices = [(n, f"v{n}") for n in range(30)], "id long, name string"
    rows = after_steps(spark, vertices, pairs(*edges), lambda g: g.k_core(**STORED), extra=(29, 0))
    cores = {n: 4 for n in range(5)} | {n: len(ends) for n, ends in middle.items()}
    assert values(rows, "kcore") == cores | {n: 1 for n in range(15, 30)}


@pytest.mark.parametrize("vertices, edges, options, expected", [
    (PEOPLE, pairs((1, 2), (2, 3)), lambda: {
        "accumulator_names": ["length"], "accumulator_inits": [F.lit(0)],
        "accumulator_updates": [F.col("length") + 1], "required_vertex_attributes": ["id"],
    }, (3, 2, 2)),
    (ids(1, 2, 3, 4),
     ([(1, 2, "yes"), (2, 3, "yes"), (1, 3, "no")], "src long, dst long, kind string"), lambda: {
        "accumulator_names": ["count"], "accumulator_inits": [F.lit(0)],
        "accumulator_updates": [F.col("count") + 1],
        "edge_filter": AggregateNeighbors.edge_attr("kind") == "yes",
        "required_edge_attributes": ["kind"],
    }, (3, 2, 2)),
    (([(1, 10), (2, 20), (3, 30)], "id long, value long"),
     ([(1, 2, 5.0), (2, 3, 6.0)], "src long, dst long, weight double"), lambda: {
        "accumulator_names": ["values", "weights"],
        "accumulator_inits": [F.lit(0).cast("long"), F.lit(0.0)],
        "accumulator_updates": [
            F.col("values") + AggregateNeighbors.dst_attr("value"),
            F.col("weights") + AggregateNeighbors.edge_attr("weight"),
        ],
        "required_vertex_attributes": ["id", "value"], "required_edge_attributes": ["weight"],
    }, (3, 2, 50, 11.0)),
])
def test_values_along_paths(spark, vertices, edges, options, expected):
    rows = after_steps(spark, vertices, edges, lambda g: g.aggregate_neighbors(
        starting_vertices=F.col("id") == 1, max_hops=3,
        target_condition=AggregateNeighbors.dst_attr("id") == 3, **options()))
    assert [tuple(row) for row in rows] == [expected]
