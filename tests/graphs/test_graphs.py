"""Graph algorithms against networkx: at every time of a history, and step by step.

    accumulate(algorithm(updates), t) = oracle(accumulate(updates, t))

Histories insert and delete edges, roots and nodes without edges. No oracle is incremental.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
import random
import re
from collections import Counter, deque
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Callable, Iterable

import networkx as nx
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from graphframes import GraphFrame
from py4j.clientserver import ClientServerConnection
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from pyspark_diff import (
    AssertionFailedError,
    Dataflow,
    DiffFrame,
    SchemaError,
    StalledError,
    graphs,
)

#: Ids of any size: no algorithm may rely on small or dense ids.
IDS = (-(2**63), -5, 0, 1, 2, 3, 8, 13, 2**40, 2**63 - 1)
#: The collections of a test, and their columns.
PARTS = {
    "edges": "src long, dst long, weight int",
    "roots": "node long",
    "alone": "node long",
}


@dataclass(frozen=True)
class Snapshot:
    """The edges at one time with their numbers of copies, and two sets of nodes."""

    edges: Counter[tuple[int, int, int]]
    roots: frozenset[int] = frozenset()
    alone: frozenset[int] = frozenset()

    @property
    def nodes(self) -> set[int]:
        return {node for edge in self.edges for node in edge[:2]} | self.alone

    def rows(self, part: str) -> Counter[tuple[int, ...]]:
        items = getattr(self, part)
        return items if part == "edges" else Counter((node,) for node in items)

    def directed(self) -> nx.MultiDiGraph:
        graph = nx.MultiDiGraph()
        graph.add_nodes_from(self.nodes)
        for src, dst, weight in self.edges.elements():
            graph.add_edge(src, dst, weight=weight)
        return graph

    def simple(self) -> nx.Graph:
        graph = nx.Graph()
        graph.add_nodes_from(self.nodes)
        graph.add_edges_from((src, dst) for src, dst, _ in self.edges if src != dst)
        return graph


History = list[Snapshot]


# Oracles.


def reached(now: Snapshot) -> Any:
    return {(node,) for node, _ in hops(now)}


def hops(now: Snapshot) -> Any:
    return distances(now, None)


def distances(now: Snapshot, weight: str | None = "weight") -> Any:
    graph = now.directed()
    graph.add_nodes_from(now.roots)
    if not now.roots:
        return {}.items()
    return nx.multi_source_dijkstra_path_length(graph, set(now.roots), weight=weight).items()


def each_distance(now: Snapshot) -> Any:
    singles = [Snapshot(now.edges, frozenset({root})) for root in now.roots]
    return [(*single.roots, *row) for single in singles for row in distances(single)]


def smallest_of(components: Any) -> Any:
    return {(node, min(component)) for component in components for node in component}


def core_edges(k: int) -> Callable[[Snapshot], Any]:
    return lambda now: {tuple(sorted(edge)) for edge in nx.k_core(now.simple(), k).edges}


def three_corners(now: Snapshot) -> Any:
    cliques = nx.enumerate_all_cliques(now.simple())  # the smaller ones first
    few = itertools.takewhile(lambda clique: len(clique) <= 3, cliques)
    return {tuple(sorted(clique)) for clique in few if len(clique) == 3}


def clustered(now: Snapshot) -> Any:
    graph = now.simple()
    many, share = nx.triangles(graph), nx.clustering(graph)
    return {(node, graph.degree(node), many[node], float(share[node])) for node in graph}


def ranks(rounds: int | None) -> Callable[[Snapshot], Any]:
    def oracle(now: Snapshot) -> Any:
        degree = Counter(src for src, _, _ in now.edges.elements())
        rank = dict.fromkeys(now.nodes, 1_000_000 if rounds is None else 6_000_000)
        for _ in itertools.count() if rounds is None else range(rounds):
            next_rank = dict.fromkeys(now.nodes, 1_000_000)
            for src, dst, _ in now.edges.elements():
                next_rank[dst] += 5 * rank[src] // (6 * degree[src])
            rank, before = next_rank, rank
            if rounds is None and rank == before:
                break
        return rank.items()

    return oracle


def voted(now: Snapshot) -> Any:
    graph = now.simple()
    labels = {node: node for node in graph}
    for _ in range(4):
        before = dict(labels)
        for node in graph:
            votes = Counter(before[other] for other in graph[node])
            if votes:
                labels[node] = min(votes, key=lambda label: (-votes[label], label))
    return labels.items()


def numbers(now: Snapshot) -> Any:
    graph = now.directed()
    return {(n, graph.in_degree(n), graph.out_degree(n), graph.degree(n)) for n in graph}


def with_parents(now: Snapshot) -> Any:
    away = dict(hops(now))
    before = {
        node: min((src for src, dst, _ in now.edges if dst == node and away.get(src) == n - 1),
                  default=None)
        for node, n in away.items()
    }
    return {(node, n, before[node] if n else None) for node, n in away.items()}


def lengths(now: Snapshot) -> Any:
    """Distances with thirds as weights, added up from the root on."""
    graph = now.directed()
    graph.add_nodes_from(now.roots)
    for *_, edge in graph.edges(data=True):
        edge["third"] = edge["weight"] / 3
    if not now.roots:
        return {}.items()
    length_of = nx.multi_source_dijkstra_path_length(graph, set(now.roots), weight="third")
    return {(node, float(n)) for node, n in length_of.items()}


def clustered_both_ways(now: Snapshot) -> Any:
    graph, ways = now.simple(), {(a, b) for a, b, _ in now.edges if a != b}
    rows = set()
    for node in graph:
        near = set(graph[node])
        edges = sum(a in near and b in near for a, b in ways)
        pairs = len(near) * (len(near) - 1)
        rows.add((node, len(near), edges, edges / pairs if pairs else 0.0))
    return rows


def voted_both_ways(now: Snapshot) -> Any:
    ways = {(a, b) for a, b, _ in now.edges if a != b}
    labels = {node: node for node in now.nodes}
    for _ in range(4):
        before = dict(labels)
        for node in labels:
            votes = Counter(before[b if a == node else a] for a, b in ways if node in (a, b))
            if votes:
                labels[node] = min(votes, key=lambda label: (-votes[label], label))
    return labels.items()


def surfers(now: Snapshot, personal: Any = None, rounds: int = 3) -> Any:
    """Surfers by the rounds since their last restart, and the shares that restart in each round."""
    unit, reset, degree = 2**40, 0.15, Counter(src for src, _, _ in now.edges.elements())
    starts = now.nodes if personal is None else now.nodes & personal
    if not starts:
        return {(node, 0.0) for node in now.nodes}
    walks = [Counter(dict.fromkeys(starts, unit))]
    for _ in range(rounds):
        moved: Counter[int] = Counter()
        for src, dst, _ in now.edges.elements():
            moved[dst] += walks[-1][src] * 17 // (degree[src] * 20)
        walks.append(moved)
    lost = [sum(n for node, n in walk.items() if not degree[node]) for walk in walks]
    restarts: list[float] = []
    for k in range(rounds):
        total = 0.0
        for i in range(k + 1):
            total += lost[i] / (unit * len(starts)) * (restarts[k - 1 - i] if i < k else 1)
        restarts.append(reset + (1 - reset) * total)
    result = {(node, walks[-1][node] / (unit * len(starts))) for node in now.nodes}
    for k in range(rounds):
        factor = restarts[rounds - 1 - k] / (unit * len(starts))
        result = {(node, rank + walks[k][node] * factor) for node, rank in result}
    return result


def undirected(now: Snapshot) -> Snapshot:
    """Each edge and its reverse; a self-loop once."""
    back = Counter({(b, a, weight): n for (a, b, weight), n in now.edges.items() if a != b})
    return Snapshot(now.edges + back, now.roots, now.alone)


def pregel_distances(graph: Any) -> DiffFrame:
    first = graph.roots.distinct().withColumn("first", F.lit(0).cast("long"))
    return graphs.pregel(
        graph.edges, first, initial={"distance": F.col("first")}, aggregate=F.min("msg"),
        to_dst=F.col("src.Distance") + F.col("edge.weight"),
        update={"distance": F.least("distance", "msg")},
    ).where("distance is not null")


def pregel_components(graph: Any) -> DiffFrame:
    here, there = F.col("src.component"), F.col("dst.component")
    return graphs.pregel(
        graph.edges, graph.alone, initial={"component": F.col("node")}, aggregate=F.min("msg"),
        to_dst=F.when(here < there, here), to_src=[F.when(here > there, there)],
        update={"component": F.least("component", "msg")},
    )


def pregel_ranks(graph: Any) -> DiffFrame:
    known = graphs.degrees(graph.edges, graph.alone)
    degree = F.col("src.out_degree")
    # A removed edge may join the new degree of its source, and that may be 0.
    share = F.call_function("div", F.col("src.rank") * 5, F.when(degree > 0, degree * 6))
    return graphs.pregel(
        graph.edges, known, initial={"rank": F.lit(6_000_000).cast("long")},
        to_dst=share, aggregate=F.sum("msg"),
        update={"rank": F.coalesce("msg", F.lit(0)) + 1_000_000}, max_rounds=3,
    )


Program = Callable[[Any], DiffFrame]
ALGORITHMS: dict[str, tuple[Program, Callable[[Snapshot], Any]]] = {
    "reachability": (lambda g: graphs.reachability(g.edges, g.roots), reached),
    "bfs": (lambda g: graphs.bfs(g.edges, g.roots), hops),
    "bfs_with_parents": (lambda g: graphs.bfs(g.edges, g.roots, parents=True), with_parents),
    "degrees": (lambda g: graphs.degrees(g.edges, g.alone), numbers),
    "shortest_paths_of_doubles": (
        lambda g: graphs.shortest_paths(
            g.edges.withColumn("weight", F.col("weight") / F.lit(3.0)), g.roots),
        lengths,
    ),
    "local_clustering_directed": (
        lambda g: graphs.local_clustering(g.edges, g.alone, directed=True), clustered_both_ways
    ),
    "label_propagation_directed": (
        lambda g: graphs.label_propagation(g.edges, g.alone, rounds=4, directed=True),
        voted_both_ways,
    ),
    "pagerank_of_one": (
        lambda g: graphs.pagerank(g.edges, g.alone, rounds=3, reset_probability=0.15), surfers
    ),
    "pagerank_personal": (
        lambda g: graphs.pagerank(
            g.edges, g.roots if g.alone is None else g.alone.union(g.roots), rounds=3,
            reset_probability=0.15, personal=g.roots),
        lambda now: surfers(replace(now, alone=now.alone | now.roots), now.roots),
    ),
    "bfs_undirected": (
        lambda g: graphs.bfs(g.edges, g.roots, parents=True, directed=False),
        lambda now: with_parents(undirected(now)),
    ),
    "reachability_undirected": (
        lambda g: graphs.reachability(g.edges, g.roots, directed=False),
        lambda now: reached(undirected(now)),
    ),
    "shortest_paths_undirected": (
        lambda g: graphs.shortest_paths(g.edges, g.roots, directed=False),
        lambda now: distances(undirected(now)),
    ),
    "pagerank_undirected": (
        lambda g: graphs.pagerank(
            g.edges, g.alone, rounds=3, reset_probability=0.15, directed=False),
        lambda now: surfers(undirected(now)),
    ),
    "shortest_paths": (lambda g: graphs.shortest_paths(g.edges, g.roots), distances),
    "shortest_paths_per_source": (
        lambda g: graphs.shortest_paths(g.edges, g.roots, per_source=True), each_distance
    ),
    "connected_components": (
        lambda g: graphs.connected_components(g.edges, g.alone),
        lambda now: smallest_of(nx.connected_components(now.simple())),
    ),
    "strongly_connected_components": (
        lambda g: graphs.strongly_connected_components(g.edges, g.alone),
        lambda now: smallest_of(nx.strongly_connected_components(now.directed())),
    ),
    "k_core_1": (lambda g: graphs.k_core(g.edges, 1), core_edges(1)),
    "k_core_2": (lambda g: graphs.k_core(g.edges, 2), core_edges(2)),
    "k_core_nodes_3": (
        lambda g: graphs.k_core_nodes(g.edges, 3),
        lambda now: {(node,) for edge in core_edges(3)(now) for node in edge},
    ),
    "transitive_closure": (
        lambda g: graphs.transitive_closure(g.edges),
        lambda now: set(nx.transitive_closure(nx.DiGraph(now.directed())).edges),
    ),
    "triangles": (lambda g: graphs.triangles(g.edges), three_corners),
    "local_clustering": (lambda g: graphs.local_clustering(g.edges, g.alone), clustered),
    "pagerank_3": (lambda g: graphs.pagerank(g.edges, g.alone, rounds=3), ranks(3)),
    "pagerank_to_rest": (lambda g: graphs.pagerank(g.edges, g.alone, rounds=None), ranks(None)),
    "pregel_distances": (pregel_distances, distances),
    "pregel_components": (
        pregel_components, lambda now: smallest_of(nx.connected_components(now.simple()))
    ),
    "pregel_ranks": (pregel_ranks, ranks(3)),
    "label_propagation": (
        lambda g: graphs.label_propagation(g.edges, g.alone, rounds=4), voted
    ),
}

every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)


# Graphalytics: each program reads one graph, and returns a row for each vertex.

#: The source of its searches.
SOURCE = 0


def with_unreachable(reachable: DiffFrame, graph: Any, none: float) -> DiffFrame:
    """Distances, also to vertices that cannot be reached."""
    rows = graphs.nodes_of(graph).join(reachable, "node", "left")
    return rows.withColumn("distance", F.coalesce("distance", F.lit(none)))


def all_distances(now: Snapshot, third: bool) -> Any:
    there = replace(now, roots=frozenset({SOURCE}))
    reachable: dict[int, Any] = dict(lengths(there) if third else hops(there))
    return {(node, reachable.get(node, math.inf if third else 2**63 - 1)) for node in now.nodes}


def probabilities(now: Snapshot) -> Any:
    rank = dict.fromkeys(now.nodes, 1 / len(now.nodes))
    degree = Counter(src for src, _, _ in now.edges)
    for _ in range(4):
        lost = sum(n for node, n in rank.items() if not degree[node])
        next_rank = dict.fromkeys(rank, (0.15 + 0.85 * lost) / len(rank))
        for src, dst, _ in now.edges:
            next_rank[dst] += 0.85 * rank[src] / degree[src]
        rank = next_rank
    return {(node, round(n, 9)) for node, n in rank.items()}


def graphalytics(algorithm: str, directed: bool) -> tuple[Program, Callable[[Snapshot], Any]]:
    programs: dict[str, Program] = {
        "BFS": lambda g: with_unreachable(
            graphs.bfs(g, [SOURCE], directed=directed), g, 2**63 - 1),
        "SSSP": lambda g: with_unreachable(
            graphs.shortest_paths(g, [SOURCE], weight="third", directed=directed), g, math.inf),
        "WCC": graphs.connected_components,
        "CDLP": lambda g: graphs.label_propagation(g, rounds=4, directed=directed),
        "LCC": lambda g: graphs.local_clustering(g, directed=directed).select(
            "node", "coefficient"),
        "PR": lambda g: graphs.pagerank(
            g, rounds=4, reset_probability=0.15, directed=directed
        ).withColumn("rank", F.round("rank", 9)),
    }
    # Two opposite edges replace each undirected one. The definitions of Graphalytics agree then.
    definitions: dict[str, Callable[[Snapshot], Any]] = {
        "BFS": lambda now: all_distances(now, False),
        "SSSP": lambda now: all_distances(now, True),
        "WCC": lambda now: smallest_of(nx.connected_components(now.simple())),
        "CDLP": voted_both_ways,
        "LCC": lambda now: {(node, share) for node, *_, share in clustered_both_ways(now)},
        "PR": probabilities,
    }

    def program(parts: Any) -> DiffFrame:
        named = parts.alone.select(F.lit("x").alias("node"), F.col("node").alias("id"))
        weighted = parts.edges.withColumn("third", F.col("weight") / F.lit(3.0))
        return programs[algorithm](SimpleNamespace(vertices=named, edges=weighted))

    define = definitions[algorithm]
    return program, define if directed else lambda now: define(undirected(now))


GRAPHALYTICS = {
    (algorithm, directed): graphalytics(algorithm, directed)
    for algorithm in ("BFS", "SSSP", "WCC", "CDLP", "LCC", "PR") for directed in (True, False)
}
PROGRAMS: dict[Any, Any] = {**ALGORITHMS, **GRAPHALYTICS}
#: Programs with a hundred rounds at each time. They read only the beginning of a history.
LONG = {"pagerank_to_rest"}
#: Programs with too large an output for a chain of ten thousand nodes.
NOT_LINEAR = {"transitive_closure"}
#: Programs that read attributes of vertices.
PREGEL = {"pregel_distances", "pregel_components", "pregel_ranks"}
#: Programs with rounds of some milliseconds. A chain needs one round for each node.
SLOW_ROUNDS = {"pregel_distances", "pregel_components"}


# Histories.


def at_random(seed: int) -> History:
    """Six times of insertions and deletions of edges, roots and nodes without edges."""
    choice = random.Random(seed)
    ids = choice.sample(IDS, choice.randint(5, len(IDS)))
    now, history = Snapshot(Counter()), []
    for _ in range(6):
        edges = +now.edges
        edges.subtract(choice.sample(sorted(edges.elements()), edges.total() // 3))
        for _ in range(choice.randint(1, len(ids))):
            edges[choice.choice(ids), choice.choice(ids), choice.randint(0, 9)] += 1
        sets = [
            nodes ^ frozenset(choice.sample(ids, choice.randint(0, 2)))
            for nodes in (now.roots, now.alone)
        ]
        now = Snapshot(+edges, *sets)
        history.append(now)
    return history


def of_shapes() -> History:
    """Graphs of awkward shape, and an empty one. Each replaces its predecessor in one time."""
    grid = [(3 * i + j, 3 * i + j + 1) for i in range(3) for j in range(2)]
    grid += [(3 * i + j, 3 * i + j + 3) for i in range(2) for j in range(3)]
    # A label takes the most rounds against the order of ids.
    path = [(n + 1, n) for n in range(9)]
    shapes = [
        [(0, n) for n in range(1, 8)],
        path,
        [],
        [(4, 4), (4, 4), (5, 5), (5, 6), (5, 6), (6, 5), (7, 7)],
        [*path, (0, 9)],
        list(itertools.permutations(range(5), 2)),
        grid,
    ]
    return [
        Snapshot(
            Counter((IDS[src], IDS[dst], (src + dst) % 4) for src, dst in shape),
            frozenset({IDS[0], IDS[-1]}), frozenset({IDS[2]}),
        )
        for shape in shapes
    ]


def simple_at_random(directed: bool) -> History:
    """Random insertions and deletions without parallel edges and self-loops."""
    choice = random.Random(17)
    pairs_of = itertools.permutations if directed else itertools.combinations
    pairs, history = sorted(pairs_of(IDS[1:9], 2)), []
    edges = {pair: choice.randint(1, 9) for pair in choice.sample(pairs, 12)}
    for _ in range(4):
        alone = frozenset({SOURCE, choice.choice(IDS)})
        there = Counter((*pair, weight) for pair, weight in edges.items())
        history.append(Snapshot(there, alone=alone))
        for pair in choice.sample(sorted(edges), 3):
            del edges[pair]
        edges |= {pair: choice.randint(1, 9) for pair in choice.sample(pairs, 3)}
    return history


def updates_of(history: History, part: str) -> list[tuple[Any, ...]]:
    """Update rows that make one collection of a history."""
    updates, before = [], Counter[tuple[int, ...]]()
    for at, now in enumerate(history):
        change = Counter(now.rows(part))
        change.subtract(before)
        updates += [(*row, at, diff) for row, diff in change.items() if diff]
        before = now.rows(part)
    return updates


def whole_collections(spark: Any, history: History) -> SimpleNamespace:
    """The collections of a history, each with all of its updates."""
    return SimpleNamespace(**{
        part: DiffFrame(spark.createDataFrame(
            updates_of(history, part), f"{columns}, time long, diff long"
        ))
        for part, columns in PARTS.items()
    })


def check_whole(spark: Any, name: Any, history: History) -> None:
    program, oracle = PROGRAMS[name]
    history = history[:2] if name in LONG else history
    result = program(whole_collections(spark, history))
    updates = [tuple(row) for row in result.to_df().collect()]
    for at, now in enumerate(history):
        actual: Counter[tuple[Any, ...]] = Counter()
        for *row, time, diff in updates:
            actual[tuple(row)] += diff if time <= at else 0
        assert Counter({row: n for row, n in actual.items() if n}) == Counter(oracle(now)), at
    middle = len(history) // 2
    shown = [tuple(row) for row in result.at(middle).collect()]
    assert sorted(shown) == sorted(oracle(history[middle]))


@every_algorithm
@pytest.mark.parametrize("seed", range(2))
def test_at_every_time_of_a_random_history(spark, name, seed):
    check_whole(spark, name, at_random(seed))


@every_algorithm
def test_shapes(spark, name):
    check_whole(spark, name, of_shapes())


def check_steps(spark: Any, name: Any, history: History, ends: Iterable[int]) -> None:
    """Steps that end at some times, one after another."""
    program, oracle = PROGRAMS[name]
    actual: Counter[tuple[Any, ...]] = Counter()

    def follow(updates: pa.Table) -> None:
        for *row, _, diff in zip(*(column.to_pylist() for column in updates.columns)):
            actual[tuple(row)] += diff

    with Dataflow(spark, runner="local") as flow:
        inputs = {part: flow.input(part, columns) for part, columns in PARTS.items()}
        collections = SimpleNamespace(**{part: frame for part, (frame, _) in inputs.items()})
        probe = program(collections).inspect(follow, by_table=True).probe()
        rows = {part: updates_of(history, part) for part in PARTS}
        first = 0
        for end in ends:
            for part, (_, session) in inputs.items():
                session.update([row for row in rows[part] if first <= row[-2] < end])
                session.advance_to(end)
                session.flush()
            flow.step_while(lambda: probe.less_than(end))
            expected = Counter(oracle(history[end - 1]))
            assert Counter({row: n for row, n in actual.items() if n}) == expected, end
            first = end


@every_algorithm
def test_step_by_step(spark, name):
    # Steps of one time and of several.
    check_steps(spark, name, at_random(7), (1, 2) if name in LONG else (1, 2, 3, 5, 6))


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("algorithm", ["BFS", "SSSP", "WCC", "CDLP", "LCC", "PR"])
def test_graphalytics(spark, algorithm, directed):
    history = simple_at_random(directed)
    check_whole(spark, (algorithm, directed), history)
    check_steps(spark, (algorithm, directed), history, (1, 2, 4))


@pytest.mark.parametrize("name", sorted(
    set(ALGORITHMS) - {"shortest_paths_of_doubles"} - PREGEL
))
def test_every_algorithm_takes_objects_with_vertices_and_edges(spark, name):
    """With the column names of GraphFrames, and with attributes."""
    program, oracle = ALGORITHMS[name]
    history = at_random(3)[: 1 if name in LONG else None]
    parts = whole_collections(spark, history)
    attribute = F.lit("x").alias("node")
    graph = SimpleNamespace(
        vertices=parts.alone.select(attribute, F.col("node").alias("id")),
        edges=parts.edges.withColumn("relation", F.lit("follows")),
    )
    roots = parts.roots.select(F.lit(1).alias("age"), F.col("node").alias("id"))
    result = program(SimpleNamespace(edges=graph, roots=roots, alone=None))
    at = len(history) - 1
    assert collected(result, at) == sorted(map(tuple, oracle(history[at])), key=order)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - NOT_LINEAR))
def test_long_circle_that_breaks(spark, name):
    """A removal leaves one chain, and a second removal leaves two."""
    length = 2_000 if name in SLOW_ROUNDS else 10_000
    choice = random.Random(1)
    ids = [choice.getrandbits(64) - 2**63 for _ in range(length)]
    circle = [(src, dst, abs(src - dst) % 4) for src, dst in zip(ids, [*ids[1:], ids[0]])]
    roots, alone = frozenset({ids[0]}), frozenset({2**63 - 1})
    history = [
        Snapshot(Counter(edges), roots, alone)
        for edges in (circle, circle[:-1], circle[: length // 2] + circle[length // 2 + 1 : -1])
    ]
    check_steps(spark, name, history, (1, 2, 3))


@pytest.mark.slow
def test_components_that_only_nested_loops_make_out(spark):
    """A chain of pairs with the least ids at its ends: each pass finds only the pairs there."""
    order = [*range(0, 12, 2), *range(11, 0, -2)]
    pairs = [edge for n in order for edge in ((n, n + 100), (n + 100, n))]
    chain = list(zip(order, order[1:]))
    edges = [(src, dst, 0) for src, dst in (*pairs, *chain)]
    gone = [edge for edge in edges if edge != (6, 106, 0)]
    with_back_edge = [*edges, (9, 4, 0)]
    history = [Snapshot(Counter(now)) for now in (edges, gone, with_back_edge, edges, [])]
    check_steps(spark, "strongly_connected_components", history, (1, 2, 3, 5))
    check_whole(spark, "strongly_connected_components", history)
    with Dataflow(spark) as flow:
        arcs, session = flow.input("edges", "src long, dst long")
        components = graphs.strongly_connected_components(arcs).keep()
        session.insert([edge[:2] for edge in edges])
        flow.advance_to(1)
        loops = {iteration.loop for iteration in flow.last_report.iterations}
        assert "strongly_connected_components" in loops and len(collected(components)) == 24


# Inputs.


def of_rows(spark: Any, columns: str, *rows: tuple[Any, ...]) -> DiffFrame:
    return DiffFrame(spark.createDataFrame(
        [(*row, 0, 1) for row in rows], f"{columns}, time int, diff int"
    ))


def order(row: tuple[Any, ...]) -> Any:
    """Nulls first, as in SQL."""
    return [(value is not None, value) for value in row]


def collected(result: DiffFrame, at: Any = 0) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in result.at(at).collect()), key=order)


@pytest.mark.parametrize("kind", ["tinyint", "smallint", "int", "bigint", "date", "decimal(3,0)"])
def test_components_of_ids_of_each_type(spark, kind):
    """With ids on both sides of zero."""
    rows = [(-128, 127), (-128, -127), (0, 1), (1, 63), (63, 64), (-2, -1), (5, 5)]
    ends = [
        F.date_add(F.lit("2024-01-01").cast("date"), F.col(end)) if kind == "date" else
        F.col(end).cast(kind) for end in ("src", "dst")
    ]
    frame = spark.createDataFrame(rows, "src int, dst int").select(
        ends[0].alias("src"), ends[1].alias("dst")
    )
    ids = {n: v for a, b, x, y in zip(*zip(*rows), *zip(*frame.collect()))
           for n, v in ((a, x), (b, y))}
    least = {-128: -128, 127: -128, -127: -128, 0: 0, 1: 0, 63: 0, 64: 0, -2: -2, -1: -2, 5: 5}
    assert collected(graphs.connected_components(frame)) == sorted(
        (ids[node], ids[component]) for node, component in least.items()
    )


def test_few_labels_set_out_where_a_small_one_is_first(spark):
    """Most nodes receive the least label of their component before any other foreign label."""
    rows = np.random.default_rng(5).integers(0, 2000, (8000, 2))
    with Dataflow(spark, runner="local") as flow:
        edges, session = flow.input("edges", "src long, dst long")
        components = graphs.connected_components(edges).keep()
        session.insert(pa.table({"src": rows[:, 0], "dst": rows[:, 1]}))
        session.advance_to(1)
        session.flush()
        flow.step()
        assert Counter(row.component for row in components.at().collect())[0] > 1900
        # Each node sends one label to its neighbours, and hardly any node retracts it.
        assert sum(turn.changes for turn in flow.last_report.iterations) < 1.2 * 2 * len(rows)


def test_ids_are_of_any_ordered_type_and_columns_of_any_name(spark):
    roads = of_rows(
        spark, "`from.city` string, km long, to string",
        ("ä", 3, "b"), ("b", 4, "c"), ("y", 5, "z"), ("ä", 9, "c"),
    )
    names = {"src": "from.city", "dst": "to"}
    components = graphs.connected_components(roads, **names)
    assert components.schema.simpleString() == "struct<node:string,component:string>"
    # Spark orders text by its bytes.
    assert collected(components) == [
        ("b", "b"), ("c", "b"), ("y", "y"), ("z", "y"), ("ä", "b")
    ]
    start = of_rows(spark, "id string", ("ä",))
    paths = graphs.shortest_paths(roads, start, weight="km", **names)
    assert paths.schema.simpleString() == "struct<node:string,distance:bigint>"
    assert collected(paths) == [("b", 3), ("c", 7), ("ä", 0)]


def test_types(spark):
    edges = of_rows(spark, "src int, dst int, weight short", (1, 2, 3))
    nodes = of_rows(spark, "node int", (1,))
    expected = {
        graphs.bfs(edges, nodes): "node:int,distance:bigint",
        graphs.shortest_paths(edges, nodes, per_source=True):
            "source:int,node:int,distance:bigint",
        graphs.strongly_connected_components(edges): "node:int,component:int",
        graphs.triangles(edges): "a:int,b:int,c:int",
        graphs.local_clustering(edges):
            "node:int,degree:bigint,triangles:bigint,coefficient:double",
        graphs.pagerank(edges): "node:int,rank:bigint",
        graphs.label_propagation(edges): "node:int,label:int",
        graphs.k_core(edges, 1): "src:int,dst:int",
        graphs.transitive_closure(edges): "src:int,dst:int",
    }
    for result, columns in expected.items():
        assert result.schema.simpleString() == f"struct<{columns}>"


@pytest.mark.parametrize("form", ["static", "history", "collections"])
def test_objects_with_vertices_and_edges(spark, form):
    vertices = spark.createDataFrame([(1, "x"), (2, "y"), (9, "z")], "id long, name string")
    edges = spark.createDataFrame([(2, 1, "follow")], "src long, dst long, relation string")
    if form != "static":
        vertices = vertices.withColumns({"time": F.lit(0), "diff": F.lit(1)})
        edges = edges.withColumns({"time": F.lit(0), "diff": F.lit(2)})
    if form == "collections":
        vertices, edges = DiffFrame(vertices), DiffFrame(edges)
    graph = SimpleNamespace(vertices=vertices, edges=edges)
    times = 1 if form == "static" else 2
    assert collected(graphs.edges_of(graph)) == [(2, 1)] * times
    assert collected(graphs.nodes_of(graph)) == [(1,), (2,), (9,)]
    assert collected(graphs.local_clustering(graph)) == [(1, 1, 0, 0.0), (2, 1, 0, 0.0),
                                                         (9, 0, 0, 0.0)]
    assert collected(graphs.connected_components(graph)) == [(1, 1), (2, 1), (9, 9)]


def graph_frame(vertices, edges):
    """An object of GraphFrames' class, also without its jar on the class path."""
    try:
        return GraphFrame(vertices, edges)
    except (Py4JJavaError, TypeError):
        # The constructor needs the jar's class in the JVM. Connect needs its plugin only later.
        graph = GraphFrame.__new__(GraphFrame)
        graph._impl = SimpleNamespace(_vertices=vertices, _edges=edges)
        return graph


def test_real_graphframes(spark):
    vertices = spark.createDataFrame([(1, "a"), (2, "b"), (9, "c")], "id long, name string")
    edges = spark.createDataFrame([(2, 1)], "src long, dst long")
    graph = graph_frame(vertices, edges)
    assert collected(graphs.connected_components(graph)) == [(1, 1), (2, 1), (9, 9)]
    ours = graphs.GraphDiff(graph)
    parts = ours.connectedComponents().at(0)
    assert parts.columns == ["id", "name", "component"]
    assert sorted(map(tuple, parts.collect())) == [(1, "a", 1), (2, "b", 1), (9, "c", 9)]
    back = graph_frame(*ours.at(0))
    assert sorted(map(tuple, back.vertices.collect())) == [(1, "a"), (2, "b"), (9, "c")]
    assert list(map(tuple, back.edges.collect())) == [(2, 1)]


def test_ranks_are_pageranks():
    # Each node has an outgoing edge. The tolerance covers the rounding to whole numbers.
    edges = Counter({(0, 1, 0): 2, (0, 2, 0): 1, (1, 2, 0): 1, (2, 0, 0): 1, (3, 3, 0): 1})
    moves = nx.to_numpy_array(Snapshot(edges).directed(), nodelist=range(4), weight=None)
    moves /= moves.sum(axis=1, keepdims=True)
    plain = np.linalg.solve(np.eye(4) - 5 / 6 * moves.T, np.full(4, 1 / 6))
    for node, rank in ranks(None)(Snapshot(edges)):
        assert rank / 6_000_000 == pytest.approx(plain[node], abs=1e-5)


def test_nodes_beside_vertices(spark):
    vertices = of_rows(spark, "id long", (5,))
    graph = SimpleNamespace(vertices=vertices, edges=of_rows(spark, "src long, dst long", (1, 1)))
    more = of_rows(spark, "node long", (7,), (5,))
    assert collected(graphs.nodes_of(graph, more)) == [(1,), (5,), (7,)]


def test_ids_of_vertices_are_in_id(spark):
    """`id` wins in vertices, and `node` in a frame of nodes. A graph may lack vertices."""
    edges = of_rows(spark, "src long, dst long", (1, 1))
    for name, kind in (("node", "long"), ("Node", "string")):
        vertices = of_rows(spark, f"{name} {kind}, id long", (50 if kind == "long" else "x", 5))
        graph = SimpleNamespace(vertices=vertices, edges=edges)
        assert collected(graphs.nodes_of(graph)) == [(1,), (5,)]
    graph.vertices = of_rows(spark, "node long", (5,))
    assert collected(graphs.nodes_of(graph)) == [(1,), (5,)]
    assert collected(graphs.nodes_of(SimpleNamespace(edges=edges))) == [(1,)]
    graph.vertices = None
    assert collected(graphs.degrees(graph)) == [(1, 1, 1, 2)]
    both = of_rows(spark, "id long, node long", (50, 5))
    assert collected(graphs.nodes_of(edges, both)) == [(1,), (5,)]


def message(edges: DiffFrame, **changed: Any) -> DiffFrame:
    """Each node sends its id along its edges."""
    usual = {
        "initial": {"x": F.col("node")}, "to_dst": F.col("src.x"), "aggregate": F.max("msg"),
        "update": {"x": F.col("msg")},
    }
    return graphs.pregel(edges, **{**usual, **changed})


BAD = {
    "no such column": (lambda e, n: graphs.bfs(e, n, src="from"), "no column 'from'.*src=.*"),
    "no weight": (lambda e, n: graphs.shortest_paths(e, n, weight="w"), "no column 'w'.*src, dst"),
    "weight of text": (
        lambda e, n: graphs.shortest_paths(e, n, weight="name"), "'name' is string.*cast"
    ),
    "ends of two types": (lambda e, n: graphs.triangles(e, dst="name"), "one type.*string.*cast"),
    "no ids": (lambda e, n: graphs.bfs(e, e), "no column 'node'.*rename"),
    "ids of another type": (
        lambda e, n: graphs.pagerank(e, n.select(F.col("node").cast("int").alias("node"))),
        "bigint; 'node' is int: cast",
    ),
    "no graph": (lambda e, n: graphs.triangles([(1, 2)]), "has .vertices and .edges.*a list"),
    "no frame": (
        lambda e, n: graphs.triangles(SimpleNamespace(vertices=n, edges=7)), "not a int"
    ),
    "roots in a dict": (lambda e, n: graphs.reachability(e, {1: 2}), "roots.*not a dict"),
    "k is zero": (lambda e, n: graphs.k_core(e, 0), "k must be .* at least 1, not 0"),
    "k is true": (lambda e, n: graphs.k_core_nodes(e, True), "at least 1, not True"),
    "no message": (lambda e, n: message(e, to_dst=[]), "there is no message: give to_dst"),
    "values of two names": (
        lambda e, n: message(e, update={"y": F.col("msg")}), "initial has x, and update has y"
    ),
    "a value of two types": (
        lambda e, n: message(e, initial={"x": F.lit(1)}, update={"x": F.col("node")}),
        "'x' is int at first.*bigint: cast",
    ),
    "a value called as a column": (
        lambda e, n: message(e, initial={"Node": F.lit(1)}, update={"Node": F.lit(1)}),
        "cannot have the name 'Node', which is that of a column",
    ),
    "vertices with a column of that name": (
        lambda e, n: message(SimpleNamespace(edges=e, vertices=n.toDF("id").withColumn(
            "MSG", F.lit(1)))),
        "a column 'MSG': rename",
    ),
    "no rounds of pregel": (lambda e, n: message(e, max_rounds=0), "max_rounds must be .* not 0"),
    "no rounds": (lambda e, n: graphs.pagerank(e, rounds=0), "rounds must be .* not 0"),
    "rounds without end": (
        lambda e, n: graphs.label_propagation(e, rounds=None), "rounds must be .* not None"
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused(spark, case):
    edges = of_rows(spark, "src long, dst long, name string", (1, 2, "x"))
    make, message = BAD[case]
    with pytest.raises(SchemaError, match=message):
        make(edges, of_rows(spark, "node long", (1,)))


def test_ranks_that_add_up_to_one_are_networkxs(spark):
    choice = random.Random(5)
    rows = [(choice.randrange(30), choice.randrange(30)) for _ in range(70)]
    graph = nx.MultiDiGraph(rows)
    for personal in (None, [1, 2]):
        actual = dict(collected(graphs.pagerank(
            of_rows(spark, "src long, dst long", *rows), rounds=40, reset_probability=0.4,
            personal=personal,
        )))
        rank = dict.fromkeys(graph, 1 / len(graph))
        starts = {n: 1 for n in graph} if personal is None else {1: 1, 2: 1}
        for _ in range(100):
            lost = sum(rank[n] for n in graph if not graph.out_degree(n))
            rank = {
                n: (0.4 + 0.6 * lost) * starts.get(n, 0) / len(starts)
                + 0.6 * sum(rank[m] / graph.out_degree(m) for m, _ in graph.in_edges(n))
                for n in graph
            }
        assert actual == pytest.approx(rank, abs=1e-7)
        assert sum(actual.values()) <= 1 + 1e-12


def test_ranks_of_surfers_who_start_outside_of_the_graph_fail_the_step(spark):
    with Dataflow(spark, runner="local") as flow:
        edges, session = flow.input("edges", "src string, dst string")
        graphs.pagerank(edges, rounds=2, reset_probability=0.4, personal=["a", "z"]).keep()
        flow.advance_to(1)
        session.insert([("a", "b")])
        with pytest.raises(AssertionFailedError, match="personal= is not in the graph.*'z'"):
            flow.advance_to(2)
    whole = graphs.pagerank(
        of_rows(spark, "src long, dst long", (1, 2)), reset_probability=0.4, personal=[7])
    with pytest.raises(AssertionFailedError, match="personal= is not in the graph"):
        whole.at(0).collect()


@pytest.mark.parametrize("is_flow", [False, True])
def test_nodes_may_be_listed(spark, is_flow):
    rows = [("a", "b"), ("b", "c")]
    if not is_flow:
        edges = of_rows(spark, "src string, dst string", *rows)
        assert collected(graphs.bfs(edges, ["b"])) == [("b", 0), ("c", 1)]
        assert collected(graphs.reachability(edges, {"c"})) == [("c",)]
        assert collected(graphs.connected_components(edges, ("z",)))[-1] == ("z", "z")
        return
    with Dataflow(spark) as flow:
        edges, session = flow.input("edges", "src string, dst string")
        nodes = graphs.bfs(edges, ["b"]).keep()
        session.insert(rows)
        flow.advance_to(1)
        assert collected(nodes, 0) == [("b", 0), ("c", 1)]
        session.remove(rows[1:])
        flow.advance_to(2)
        assert collected(nodes, 1) == [("b", 0)]


#: Types of times, each with a time before the removal of an edge, and the time of the removal.
TIMES = [
    ("bigint", -9, 3), ("smallint", 0, 3), ("date", dt.date(1950, 1, 1), dt.date(2024, 1, 1)),
    ("timestamp", dt.datetime(1950, 1, 1), dt.datetime(2024, 1, 1)),
]


@pytest.mark.parametrize("kind, first, then", TIMES, ids=[kind for kind, *_ in TIMES])
def test_static_parts_are_there_at_all_times(spark, kind, first, then):
    """With times of each type, also with early ones."""
    def changing(columns, *rows):
        return spark.createDataFrame(rows, f"{columns}, time {kind}, diff int")

    edges = changing("src int, dst int", (1, 2, first, 1), (2, 3, first, 1), (2, 3, then, -1))
    nodes = changing("node int", (2, first, 1), (7, then, 1))
    fixed = spark.createDataFrame([(1, 2), (2, 3)], "src int, dst int")
    static_nodes = spark.createDataFrame([(1,)], "id int")
    for roots in (static_nodes, [1]):
        result = graphs.bfs(edges, roots)
        assert collected(result, first) == [(1, 0), (2, 1), (3, 2)]
        assert collected(result, then) == [(1, 0), (2, 1)]
    for roots in (nodes, DiffFrame(nodes)):
        result = graphs.reachability(fixed, roots)
        assert collected(result, first) == [(2,), (3,)]
        assert collected(result, then) == [(2,), (3,), (7,)]
        graph = SimpleNamespace(vertices=static_nodes, edges=fixed)
        assert collected(graphs.nodes_of(graph, roots), then) == [(1,), (2,), (3,), (7,)]
        # Node 7 starts surfers later. The graph must have all of them.
        graph.vertices = spark.createDataFrame([(1,), (7,)], "id int")
        ranks = graphs.pagerank(graph, rounds=1, reset_probability=0.5, personal=roots)
        assert collected(ranks, first) == [(1, 0.0), (2, 0.5), (3, 0.5), (7, 0.0)]


@pytest.mark.parametrize("kind", ["double", "float", "long", "int"])
def test_edges_without_a_weight_are_none(spark, kind):
    real = kind in ("double", "float")
    rows = [(1, 2, None), (2, 3, 1), (1, 3, 5), (1, 4, math.inf if real else 2**31 - 1)]
    if real:
        rows = [(*ends, None if n is None else float(n)) for *ends, n in rows]
        rows += [(1, 3, math.nan), (3, 2, math.nan)]
    edges = spark.createDataFrame(
        [(*row, at, diff) for row in rows for at, diff in ((0, 1), (2, -1))]
        + [(1, 2, rows[1][2], 1, 1)],
        f"src long, dst long, weight {kind}, time int, diff int",
    )
    result = graphs.shortest_paths(edges, [1])
    assert collected(result) == [(1, 0), (3, 5), (4, rows[3][2])]
    assert collected(result, 1) == [(1, 0), (2, 1), (3, 2), (4, rows[3][2])]
    assert collected(result, 2) == [(1, 0), (2, 1)]


@pytest.mark.parametrize("kind", ["long", "double"])
def test_a_cycle_of_negative_weight_is_told(spark, kind):
    edges = spark.createDataFrame(
        [(1, 2, 5), (2, 3, -2), (3, 2, 1), (2, 4, -9)], "src long, dst long, weight int"
    ).withColumn("weight", F.col("weight").cast(kind))
    with pytest.raises(StalledError, match="after 5 iterations.*less than zero on a cycle"):
        graphs.shortest_paths(
            edges, [1], max_rounds=4, negative_weights=True).at(0).collect()
    right = edges.where("src < dst")
    expected = [(1, 0), (2, 5), (3, 3), (4, -4)]
    assert collected(graphs.shortest_paths(
        right, [1], max_rounds=2, negative_weights=True)) == expected
    with pytest.raises(StalledError, match="than max_rounds allows"):
        graphs.shortest_paths(
            right, [1], max_rounds=1, negative_weights=True).at(0).collect()


@pytest.mark.parametrize("kind", ["long", "double"])
def test_a_negative_weight_is_refused_with_its_edge(spark, kind):
    with Dataflow(spark, runner="local") as flow:
        arcs, arcs_in = flow.input("arcs", f"src long, dst long, km {kind}")
        far = graphs.shortest_paths(arcs, [1], weight="km").keep("far")
        arcs_in.insert([(1, 2, 3), (2, 3, 0), (3, 2, 0), (2, 2, 0)])
        flow.advance_to(1)
        assert sorted(tuple(row) for row in far.at().collect()) == [(1, 0), (2, 3), (3, 3)]
        # Also if no path has the edge.
        arcs_in.insert([(8, 9, -1)])
        with pytest.raises(AssertionFailedError, match="(?s)'km'.*below zero.*Mend.*8, 9, -1"):
            flow.advance_to(2)
    edges = spark.sql(
        f"SELECT 1L src, 2L dst, CAST(-1 AS {kind}) weight, 0 time, 1 diff")
    for directed in (True, False):
        with pytest.raises(AssertionFailedError, match="negative_weights=True"):
            graphs.shortest_paths(edges, [1], directed=directed).at(0).collect()


CYCLES = [(1, 2, 5), (2, 3, -2), (3, 2, 1), (2, 4, -9)]


@pytest.mark.parametrize("ids", ["long", "string"])
@pytest.mark.parametrize("per_source", [False, True])
def test_a_cycle_of_negative_weight_is_told_early(spark, ids, per_source):
    """The error comes once a path has more edges than the graph has nodes, at any time."""
    schema = "src long, dst long, weight long, time int, diff int"

    def shortest_paths(rows):
        edges = spark.createDataFrame(rows, schema)
        edges = edges.withColumns({name: F.col(name).cast(ids) for name in ("src", "dst")})
        roots = spark.createDataFrame([(1,)], "node long").select(F.col("node").cast(ids))
        return graphs.shortest_paths(
            edges, roots, per_source=per_source, negative_weights=True)

    pattern = "has no fixed point: in iteration 64 .*has 3 keys.*less than zero on a cycle"
    with pytest.raises(StalledError, match=pattern):
        shortest_paths([(*edge, 0, 1) for edge in CYCLES]).at(0).collect()
    # The cycle exists for one time only, in the middle.
    with pytest.raises(StalledError, match=pattern):
        rows = [(*edge, int(edge[2] == 1), 1) for edge in CYCLES]
        shortest_paths([*rows, (3, 2, 1, 2, -1)]).at(2).collect()
    # A cycle of weight 0, and a negative cycle that no root reaches.
    for rows in (
        [(1, 2, 5, 0, 1), (2, 3, -2, 0, 1), (3, 2, 2, 0, 1)],
        [(1, 5, 1, 0, 1), (2, 3, -2, 0, 1), (3, 2, 1, 0, 1)],
    ):
        assert len(shortest_paths(rows).at(0).collect()) == 2 + (rows[0][1] == 2)


@pytest.mark.classic_only("counts questions to the JVM")
def test_components_are_written_with_few_questions_to_the_jvm(spark, monkeypatch):
    asked, send = [], ClientServerConnection.send_command
    monkeypatch.setattr(
        ClientServerConnection, "send_command",
        lambda *args: (asked.append(1), send(*args))[1],
    )
    with Dataflow(spark) as flow:
        graphs.connected_components(flow.input("edges", "src long, dst long")[0]).keep()
    assert 0 < len(asked) < 4500


@pytest.mark.parametrize("per_source", [False, True])
def test_a_cycle_of_negative_weight_of_doubles_is_told_early(spark, per_source):
    """A cycle of weight 0 raises no error despite the rounding of doubles."""
    def count_reachable(edges, roots=(1,)):
        with Dataflow(spark, runner="local") as flow:
            arcs, arcs_in = flow.input("arcs", "src string, dst string, weight double")
            far = graphs.shortest_paths(
                arcs, [str(root) for root in roots], per_source=per_source, max_rounds=70,
                negative_weights=True,
            ).keep("far")
            arcs_in.insert([(str(a), str(b), weight) for a, b, weight in edges])
            flow.advance_to(1)
            first = far.at().count()
            # A negative cycle that no root reaches.
            arcs_in.insert([("8", "9", -1.0), ("9", "8", 0.5)])
            flow.advance_to(2)
            assert far.at().count() == first
            return first

    pattern = "has no fixed point: in iteration 6[5-8] .*has [0-9]+ keys.*less than zero on a cycle"
    with pytest.raises(StalledError, match=pattern):
        count_reachable([(1, 2, 5.0), (2, 3, -2.0), (3, 2, 2.0 - 1e-9), (2, 4, math.inf)])
    with pytest.raises(StalledError, match=pattern):
        count_reachable([(i, i + 1, 0.5) for i in range(8)] + [(3, 2, -0.51)], (0, 2))
    # Rounding lowers the sum in each round, or once.
    rows = [(1, 2, 1e8), (2, 3, 0.1), (3, 4, 0.2), (4, 2, -0.30000000000000004), (2, 5, -7.5)]
    assert collected_or_stalled(lambda: count_reachable(rows)) in (5, "after 71 iterations")


def collected_or_stalled(run):
    try:
        return run()
    except StalledError as error:
        return re.search(r"after [0-9]+ iterations", str(error))[0]


def test_a_cycle_of_negative_weight_that_comes_later(spark):
    """Long paths of negative weights are no cycles, and a negative cycle fails its step."""
    ids = range(200)
    edges = [(i, i + 1, -3) for i in ids] + [(i, i + 2, -5) for i in range(0, 199, 3)]
    with Dataflow(spark, runner="local") as flow:
        arcs, arcs_in = flow.input("arcs", "src long, dst long, weight long")
        far = graphs.shortest_paths(arcs, [0], negative_weights=True).keep("far")
        arcs_in.insert(edges)
        flow.advance_to(1)
        expected = {i: -3 * i for i in range(201)}
        assert {row.node: row.distance for row in far.at(0).collect()} == expected
        # A cycle of weight 0. A later edge makes it negative.
        arcs_in.insert([(150, 50, 300)])
        flow.advance_to(2)
        assert {row.node: row.distance for row in far.at(1).collect()} == expected
        arcs_in.remove([(100, 101, -3)])
        flow.advance_to(3)
        expected |= {i: -3 * i + 1 for i in range(101, 201)}
        assert {row.node: row.distance for row in far.at(2).collect()} == expected
        arcs_in.insert([(150, 50, 298)])
        with pytest.raises(StalledError, match="has 200 keys.*less than zero on a cycle"):
            flow.advance_to(4)


def test_weights_may_be_times(spark):
    """Static frames have no time column, so a weight may have its name."""
    edges = spark.createDataFrame([(1, 2, 3)], "src long, dst long, time long")
    for roots in ([1], of_rows(spark, "node long", (1,))):
        assert collected(graphs.shortest_paths(edges, roots, weight="time")) == [(1, 0), (2, 3)]


def test_nodes_and_numbers_may_come_from_numpy(spark):
    edges = of_rows(spark, "src long, dst long", (1, 2), (2, 3))
    for roots in (
        np.array([2, 2]), [np.int64(2)], pd.Series([2]), range(2, 3), {2: "x"}.keys(), deque([2])
    ):
        assert collected(graphs.bfs(edges, roots)) == [(2, 0), (3, 1)]
    for wrong in ("2", b"2", 2, iter([2])):
        with pytest.raises(SchemaError, match="Spark frame or a list of ids, not a "):
            graphs.bfs(edges, wrong)
    plain = graphs.pagerank(edges, rounds=2, reset_probability=0.5)
    typed = graphs.pagerank(edges, rounds=np.int64(2), reset_probability=np.float32(0.5))
    assert collected(plain) == collected(typed)


def test_static_edges_beside_nodes_of_a_dataflow(spark):
    edges = spark.createDataFrame([(1, 2), (2, 3)], "src long, dst long")
    with Dataflow(spark) as flow:
        nodes, session = flow.input("nodes", "node long")
        ranks = graphs.pagerank(edges, rounds=1, reset_probability=0.5, personal=nodes).keep()
        session.insert([(2,)])
        flow.advance_to(1)
        assert collected(ranks) == [(1, 0.0), (2, 0.5), (3, 0.5)]
        history = spark.createDataFrame([(1, 0, 1)], "node long, time long, diff long")
        with pytest.raises(SchemaError, match="plain table has its rows at all times.*time, diff"):
            graphs.degrees(nodes.toDF("src").withColumn("dst", F.col("src")), history)


def test_what_is_no_list_of_nodes_is_told(spark):
    edges = of_rows(spark, "src long, dst long", (1, 2))
    with pytest.raises(SchemaError, match="the roots must have ids of the type.*bigint.*'x'"):
        graphs.bfs(edges, ["x"])
    for wrong in (0, 1, True, "x", 1.5):
        with pytest.raises(SchemaError, match="above 0 and below 1"):
            graphs.pagerank(edges, reset_probability=wrong)
    with pytest.raises(SchemaError, match="needs reset_probability"):
        graphs.pagerank(edges, personal=[1])
    with pytest.raises(SchemaError, match="number of rounds"):
        graphs.pagerank(edges, reset_probability=0.1, rounds=None)


def test_pregel_gives_what_the_algorithms_give(spark):
    """On a large graph, step by step. A message with an unknown column is refused."""
    choice = random.Random(8)
    rows = [(choice.randrange(300), choice.randrange(300), choice.randrange(9)) for _ in range(700)]
    with Dataflow(spark) as flow:
        edges, session = flow.input("edges", "src long, dst long, weight int")
        few = edges.select(F.col("src").alias("node")).where("node < 3")
        parts = SimpleNamespace(edges=edges, alone=None, roots=few)
        pairs = [
            (pregel_distances(parts), graphs.shortest_paths(edges, parts.roots.distinct())),
            (pregel_components(parts), graphs.connected_components(edges)),
            (pregel_ranks(parts), graphs.pagerank(edges, rounds=3)),
        ]
        outputs = [(ours.keep(), theirs.keep()) for ours, theirs in pairs]
        for at, (come, go) in enumerate([(rows[:600], []), (rows[600:], rows[:200])]):
            session.insert(come)
            session.remove(go)
            flow.advance_to(at + 1)
            for ours, theirs in outputs:
                assert collected(ours, at) == collected(theirs, at)
    with pytest.raises(AnalysisException, match="nosuch"):
        message(of_rows(spark, "src long, dst long", (1, 2)), to_dst=F.col("src.nosuch"))
