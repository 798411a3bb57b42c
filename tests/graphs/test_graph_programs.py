"""Programs and paths of GraphDiff against brute force, after a load and after steps of changes.

    GraphDiff(v, e).method().at(t)  =  the method on the graph at t

The graphs have self-loops, parallel edges, isolated vertices, and ends that are no vertices.
"""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any, Callable

import pytest
from edge_history import Edge, EdgeHistory
from graphframes import pg
from pyspark.sql import functions as F

from pyspark_diff import Dataflow
from pyspark_diff.errors import SchemaError
from pyspark_diff.graphs import GraphDiff, Pregel

#: Ids of both kinds. The last id is no vertex, and its predecessor has no edge.
IDS: dict[str, list[Any]] = {"long": [*range(7)], "string": [f"v {n}'s" for n in range(7)]}
Program = Callable[[GraphDiff], Any]
Oracle = Callable[[list[Any], list[Edge]], Counter[Any]]


def plain(row: Any) -> Any:
    return tuple(plain(each) if isinstance(each, tuple) else each for each in row)


def check(spark: Any, kind: str, programs: dict[str, tuple[Program, Oracle]], steps: int = 3,
          runner: str = "local") -> None:
    """Compare each program with its oracle after a load and after steps of changes."""
    ids, chance = IDS[kind], random.Random(kind + min(programs))
    ends = [*ids[:5], ids[6]]
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        vertices, vertices_in = flow.input("vertices", f"id {kind}, n int")
        edges, session = flow.input("edges", f"src {kind}, dst {kind}, km int")
        graph = GraphDiff(vertices, edges)
        outputs = {name: program(graph).keep(name) for name, (program, _) in programs.items()}
        vertices_in.insert([(v, n) for n, v in enumerate(ids[:6])])
        history = EdgeHistory(session, chance, lambda _: (
            chance.choice(ends), chance.choice(ends), chance.randrange(3)
        ))
        for step in range(steps):
            if step:
                history.change(3, twice=True)
            else:
                history.load(9, [(ids[1], ids[2], 1)] * 2 + [(ids[3], ids[3], 0)])
            flow.advance_to(step + 1)
            for name, frame in outputs.items():
                actual = Counter(map(plain, frame.at().collect()))
                assert actual == programs[name][1](ids[:6], history.rows), (name, step)


def shortest(
    first: Callable[[int], bool], last: Callable[[int], bool], most: int,
    allowed: Callable[[int], bool] = lambda km: True,
) -> Oracle:
    """The oracle of bfs: all walks of each length, until one reaches the end."""
    def oracle(ids: list[Any], edges: list[Edge]) -> Counter[Any]:
        usable = [row for row in edges if row[0] in ids and row[1] in ids and allowed(row[2])]
        walks = [(v, ()) for n, v in enumerate(ids) if first(n)]
        for length in range(most + 1):
            done = [(v, path) for v, path in walks if last(ids.index(v))]
            if done:
                paths: Counter[Any] = Counter()
                for v, path in done:
                    nodes = [path[0][0] if path else v, *(edge[1] for edge in path)]
                    row: list[Any] = [(nodes[0], ids.index(nodes[0]))]
                    for n in range(most):
                        if n:
                            row.append((nodes[n], ids.index(nodes[n])) if n < length else None)
                        row.append(path[n] if n < length else None)
                    paths[(*row, (v, ids.index(v)))] += 1
                return paths
            walks = [(edge[1], (*path, edge)) for v, path in walks for edge in usable
                     if edge[0] == v]
        return Counter()
    return oracle


@pytest.mark.parametrize("kind", IDS)
def test_bfs_after_each_step(spark, kind):
    """Growing and shrinking paths, empty paths, and paths over allowed edges only."""
    check(spark, kind, {
        "one": (lambda g: g.bfs("n = 0", "n = 4", maxPathLength=4),
                shortest(lambda n: n == 0, lambda n: n == 4, 4)),
        "several": (lambda g: g.bfs(F.col("n") < 2, "n > 2", "km > 0", maxPathLength=3),
                    shortest(lambda n: n < 2, lambda n: n > 2, 3, lambda km: km > 0)),
        "same": (lambda g: g.bfs("n < 3", "n > 1", maxPathLength=1),
                 shortest(lambda n: n < 3, lambda n: n > 1, 1)),
        "alone": (lambda g: g.bfs("n = 0", "n = 5", maxPathLength=3),
                  shortest(lambda n: n == 0, lambda n: n == 5, 3)),
    })


def test_the_columns_of_bfs_are_those_of_the_longest_path(spark):
    vertices = spark.createDataFrame([(1, "a"), (2, "b")], "id long, `a.b` string")
    edges = spark.createDataFrame([(1, 2, 3)], "src long, dst long, `k m` int")
    graph = GraphDiff(vertices, edges)
    paths = graph.bfs("id = 1", "id = 2", maxPathLength=2)
    assert paths.columns == ["from", "e0", "v1", "e1", "to"]
    assert [plain(row) for row in paths.at(0).collect()] == [
        ((1, "a"), (1, 2, 3), None, None, (2, "b"))]
    assert len(graph.bfs("id = 1", "id = 2").columns) == 21
    assert graph.bfs("id = 1", "id = 1", maxPathLength=0).columns == ["from", "to"]


def test_a_program_of_pregel_after_each_step(spark):
    """Ranks by GraphFrames' own example, and messages in both directions over edges and ends."""
    def inner(ids: list[Any], edges: list[Edge]) -> list[Edge]:
        return [row for row in edges if row[0] in ids and row[1] in ids]

    def least(ids: list[Any], edges: list[Edge]) -> Counter[Any]:
        values = {v: n * 10 for n, v in enumerate(ids)}
        for _ in range(3):
            got: dict[Any, list[int]] = {}
            for src, dst, km in inner(ids, edges):
                got.setdefault(dst, []).append(values[src] + km)
                if values[src] < values[dst]:
                    got.setdefault(src, []).append(values[dst] - 1)
            values = {v: min([value, *got.get(v, [])]) for v, value in values.items()}
        return Counter((v, n, values[v]) for n, v in enumerate(ids))

    def sums(ids: list[Any], edges: list[Edge]) -> Counter[Any]:
        first, second = dict.fromkeys(ids, 1), dict.fromkeys(ids, 0)
        for _ in range(10):
            got = Counter()
            for src, dst, _ in inner(ids, edges):
                got[dst] += first[src] % 7 + 1
            first, second = (
                {v: got[v] for v in ids}, {v: first[v] + got[v] for v in ids})
        return Counter((v, n, first[v], second[v]) for n, v in enumerate(ids))

    msg = Pregel.msg()
    check(spark, "long", {
        "least": (
            lambda g: g.pregel.setMaxIter(3).setCheckpointInterval(1).withVertexColumn(
                "least", F.col("n") * 10, F.least("least", msg)
            ).sendMsgToDst(Pregel.src("least") + Pregel.edge("km")).sendMsgToSrc(
                F.when(Pregel.src("least") < Pregel.dst("least"), Pregel.dst("least") - 1)
            ).aggMsgs(F.min(msg)).run(),
            least),
        "sums": (
            lambda g: g.pregel.withVertexColumn(
                "first", F.lit(1).cast("long"), F.coalesce(msg, F.lit(0).cast("long"))
            ).withVertexColumn(
                "second", F.lit(0).cast("long"), F.col("first") + F.coalesce(msg, F.lit(0))
            ).sendMsgToDst(Pregel.src("first") % 7 + 1).aggMsgs(F.sum(msg)).run(),
            sums),
    })


def votes(early: bool, stop: bool, skip: bool, rounds: int, first: int) -> Oracle:
    """Sums of messages of active vertices, by GraphFrames' own order of tests for the end."""
    def oracle(ids: list[Any], edges: list[Edge]) -> Counter[Any]:
        inner = [row for row in edges if row[0] in ids and row[1] in ids]
        values = {v: n % 3 for n, v in enumerate(ids)}
        active = {v: n == first for n, v in enumerate(ids)}
        for _ in range(rounds):
            sums: Counter[Any] = Counter()
            receivers = set()
            for src, dst, km in inner:
                if km and values[src] > 1 and (not skip or active[src] or active[dst]):
                    sums[dst] += values[src] - 1
                    receivers.add(dst)
            if early and not receivers:
                break
            active = {v: v in receivers and values[v] < 6 for v in ids}
            values = {v: values[v] + sums[v] if v in receivers else values[v] - 1 for v in ids}
            if stop and not any(active.values()):
                break
        return Counter((v, n, values[v]) for n, v in enumerate(ids))
    return oracle


@pytest.mark.parametrize("rounds, first", [(1, 1), (2, -1), (4, 1)])
def test_votes_of_pregel_after_each_step(spark, rounds, first):
    """All combinations of the ends of a program and of messages that inactive vertices skip."""
    def program(graph: GraphDiff, early: bool, stop: bool, skip: bool) -> Any:
        msg = Pregel.msg()
        return graph.pregel.setMaxIter(rounds).setEarlyStopping(
            early
        ).setInitialActiveVertexExpression(F.col("n") == first).setUpdateActiveVertexExpression(
            msg.isNotNull() & (F.col("value") < 6)
        ).setStopIfAllNonActiveVertices(stop).setSkipMessagesFromNonActiveVertices(
            skip
        ).withVertexColumn(
            "value", (F.col("n") % 3).cast("long"),
            F.coalesce(F.col("value") + msg, F.col("value") - 1)
        ).sendMsgToDst(
            F.when((Pregel.edge("km") > 0) & (Pregel.src("value") > 1), Pregel.src("value") - 1)
        ).aggMsgs(F.sum(msg)).run()

    check(spark, "long", {
        f"{early} {stop} {skip}": (
            lambda g, parts=(early, stop, skip): program(g, *parts),
            votes(early, stop, skip, rounds, first),
        )
        for early in (False, True) for stop in (False, True) for skip in (False, True)
    }, steps=5)


@pytest.mark.parametrize("kind", IDS)
def test_values_along_paths_after_each_step(spark, kind):
    def oracle(loops: bool, stops: bool, filtered: bool) -> Oracle:
        def paths(ids: list[Any], edges: list[Edge]) -> Counter[Any]:
            counts: Counter[Any] = Counter()
            states = [(v, 0, 1) for n, v in enumerate(ids) if n < 2]
            for hop in range(1, 4):
                following = []
                for v, total, product in states:
                    for src, dst, km in edges:
                        if src != v or not loops and src == dst or filtered and km == 2:
                            continue
                        size = ids.index(dst) if dst in ids else None
                        state = dst, total + km, product * 2 + ids.index(src)
                        # A null is neither true nor false.
                        target = None if size is None else size == 3
                        stop = total > 1 if stops else False
                        if target or (stop and not stops):
                            counts[dst, hop, *state[1:]] += 1
                        if target is False and not stop:
                            following.append(state)
                states = [state for state in following if state[0] in ids]
            return counts
        return paths

    size = F.col("dst_attributes")["n"]
    names, first = ["total", "product"], [F.lit(0), "1"]
    update: list[Any] = [
        F.col("total") + F.col("edge_attributes")["km"], "product * 2 + src_attributes.n"]
    check(spark, kind, {
        "targets": (lambda g: g.aggregate_neighbors(
            "n < 2", names, first, update, target_condition=size == 3), oracle(True, False, False)),
        "stops": (lambda g: g.aggregate_neighbors(
            F.col("n") < 2, names, first, update, stopping_condition="total > 1",
            target_condition=size == 3, remove_loops=True, edge_filter="edge_attributes.km < 2",
            required_vertex_attributes=["n"], required_edge_attributes=["km"]),
            oracle(False, True, True)),
    }, steps=2)


@pytest.mark.parametrize("kind", IDS)
def test_votes_of_the_neighbourhood_after_each_step(spark, kind):
    def oracle(direct: float, similarity: float, directed: bool, first: bool) -> Oracle:
        def labels(ids: list[Any], edges: list[Edge]) -> Counter[Any]:
            arcs = [row[:2] for row in edges]
            if not directed:
                arcs = list({*arcs, *((b, a) for a, b in arcs)})
            out: dict[Any, set[Any]] = {}
            for a, b in arcs:
                out.setdefault(a, set()).add(b)
            now = {v: n // 2 if first else v for n, v in enumerate(ids)}
            for _ in range(3):
                votes: dict[Any, dict[Any, float]] = {}
                for a, b in arcs:
                    if a in ids and b in ids:
                        shared = len(out.get(a, set()) & out.get(b, set()))
                        mine = votes.setdefault(b, {})
                        mine[now[a]] = mine.get(now[a], 0) + direct + similarity * shared
                now = {
                    v: max(votes[v], key=lambda label: (votes[v][label], label))
                    if v in votes else label
                    for v, label in now.items()
                }
            return Counter((v, n, now[v]) for n, v in enumerate(ids))
        return labels

    check(spark, kind, {
        "directed": (lambda g: g.neighborhood_aware_cdlp(3), oracle(1, 0.5, True, False)),
        "shared": (
            lambda g: GraphDiff(
                g.vertices.withColumn("half", F.expr("n div 2")), g.edges
            ).neighborhood_aware_cdlp(
                3, 2, ignore_direct_links=True, is_directed=False, initial_label_col="half",
                lg_nom_entries=12).drop("half"),
            oracle(0, 2, False, True)),
    })


class Group:
    """A group of a PropertyGraphFrame."""

    def __init__(self, data: Any):
        self._data = data

    def get_data(self) -> Any:
        return self._data


def test_a_property_graph_may_change(spark):
    with Dataflow(spark, runner="local") as flow:
        people, people_in = flow.input("people", "id string, property_group string")
        likes, likes_in = flow.input("likes", "src string, dst string, weight double")
        films = spark.createDataFrame([("f1", "films")], "id string, property_group string")
        graph = GraphDiff(SimpleNamespace(
            vertex_property_groups=[Group(people), Group(films)],
            edges_property_groups=[Group(likes)]))
        parts = graph.connectedComponents().keep("parts")
        people_in.insert([("p1", "people"), ("p2", "people")])
        likes_in.insert([("p1", "f1", 1.0), ("p2", "f1", 1.0)])
        flow.advance_to(1)
        assert sorted(map(tuple, parts.at().collect())) == [
            ("f1", "films", "f1"), ("p1", "people", "f1"), ("p2", "people", "f1")]
        likes_in.remove([("p2", "f1", 1.0)])
        flow.advance_to(2)
        assert ("p2", "people", "p2") in set(map(tuple, parts.at().collect()))
    with pytest.raises(SchemaError, match="no group"):
        GraphDiff(SimpleNamespace(vertex_property_groups=[], edges_property_groups=[]))


@pytest.mark.classic_only("GraphFrames' own class of property graphs needs a plugin over Connect")
def test_a_property_graph_of_graphframes(spark):
    people = pg.VertexPropertyGroup(
        "people", spark.createDataFrame([(1, "Ann"), (2, "Bob")], "id long, name string"))
    knows = pg.EdgePropertyGroup(
        "knows", spark.createDataFrame([(1, 2)], "src long, dst long"), people, people,
        is_directed=False, src_column_name="src", dst_column_name="dst")
    graph = GraphDiff(pg.PropertyGraphFrame([people], [knows]))
    assert graph.vertices.columns == ["id", "property_group"]
    assert len({row.component for row in graph.connectedComponents().at(0).collect()}) == 1
    assert sorted(row.outDegree for row in graph.outDegrees.at(0).collect()) == [1, 1]


def test_mistakes_are_named(spark):
    graph = GraphDiff(
        spark.createDataFrame([(1, 2)], "id long, n int"),
        spark.createDataFrame([(1, 1)], "src long, dst long"))
    some = graph.pregel.withVertexColumn("a", F.lit(1), F.lit(1))

    def along(**more: Any) -> Any:
        return graph.aggregate_neighbors("n = 1", ["a"], ["0"], ["a + 1"], **more)

    for call, words in (
        (lambda: graph.bfs("n = 1", "n = 2", maxPathLength=-1), "maxPathLength is -1"),
        (lambda: graph.pregel.run(), r"Call withVertexColumn\(...\) before run"),
        (lambda: some.run(), r"Call sendMsgToDst\(...\) before run"),
        (lambda: some.sendMsgToSrc(F.lit(1)).run(), r"Call aggMsgs\(...\) before run"),
        (lambda: graph.pregel.withVertexColumn("N", F.lit(1), F.lit(1)), "a column 'N' already"),
        (lambda: graph.pregel.setMaxIter(0), "setMaxIter"),
        (lambda: along(), "Pass stopping_condition or"),
        (lambda: along(max_hops=0, target_condition="a > 1"), "max_hops"),
        (lambda: graph.aggregate_neighbors("n = 1", ["a"], [], [], 2, "a > 1"), "the same length"),
        (lambda: graph.neighborhood_aware_cdlp(0), "max_iter"),
        (lambda: graph.neighborhood_aware_cdlp(1, -1), "multiplier is -1"),
        (lambda: graph.neighborhood_aware_cdlp(1, 0, ignore_direct_links=True), "above 0 with"),
        (lambda: graph.neighborhood_aware_cdlp(1, depth=3), "no option 'depth'"),
    ):
        with pytest.raises(SchemaError, match=words):
            call()
