"""Components of graphs with long paths: the state of their loops, and the smaller graph.

    components(graph) = components of the graph of its labels, for any limit of rounds
"""

from __future__ import annotations

import random
from collections import Counter

import networkx as nx
import numpy as np
import pandas as pd
import pytest

from pyspark_diff import Dataflow, DiffFrame
from pyspark_diff.graphs import (
    GraphDiff,
    connected_components,
    propagation,
    strongly_connected_components,
)


@pytest.fixture
def short(monkeypatch, use_thresholds):
    """Rounds for few arcs, so that small graphs have a smaller graph of labels, too."""
    use_thresholds(label_group_rounds=1, label_rounds=1)


def smallest(edges):
    """Each node and the smallest node of its component, with networkx."""
    return sorted(
        (node, min(part)) for part in nx.connected_components(nx.Graph(list(edges)))
        for node in part)


KINDS = {"long": lambda n: n - 7, "int": lambda n: n << 20, "string": lambda n: f"v.{n}'s"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("runner", "seed"),
    [("local", 1), ("local", 2), pytest.param("spark", 3, marks=pytest.mark.slow)])
def test_components_after_each_step_whatever_the_limit(spark, short, kind, runner, seed):
    """Long paths with cuts, chords, parallel edges and self-loops, one of them moved in a step."""
    chance, name = random.Random(seed), KINDS[kind]
    order = chance.sample(range(40), 40)
    there = Counter((name(a), name(b)) for a, b in zip(order, order[1:]))
    there[name(order[3]), name(order[3])] += 2
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        edges, session = flow.input("edges", f"src {kind}, dst {kind}")
        parts = connected_components(edges).keep("parts")
        session.insert(list(there.elements()))
        for step in range(6 if runner == "local" else 3):
            flow.advance_to(step + 1)
            assert sorted(map(tuple, parts.at().collect())) == smallest(there), step
            gone = chance.sample(sorted(there.elements()), 3)
            come = [
                (name(chance.randrange(40)), name(chance.randrange(40))) for _ in range(2)
            ] + gone[:1]
            session.remove(gone)
            session.insert(come)
            there = +(there - Counter(gone) + Counter(come))
        loops = {each.loop for each in flow.last_report.iterations}
        assert "near_labels" in loops


def test_components_at_all_times_of_a_history_with_three_coordinates(spark, short):
    chance = random.Random(5)
    updates, whole = [], Counter()
    for n in range(70):
        time = tuple(chance.randrange(3) for _ in range(3))
        edge = (chance.randrange(25), chance.randrange(25))
        updates.append((*edge, time, 1))
        if n % 3 == 0:
            updates.append((*edge, tuple(min(2, each + 1) for each in time), -1))
    frame = spark.createDataFrame(
        updates, "src long, dst long, time struct<a: int, b: int, c: int>, diff int")
    parts = connected_components(DiffFrame(frame))
    for at in ((0, 0, 0), (1, 0, 2), (1, 1, 1), (2, 2, 2)):
        whole = Counter()
        for *edge, time, diff in updates:
            whole[tuple(edge)] += diff * all(a <= b for a, b in zip(time, at))
        assert sorted(map(tuple, parts.at(at).collect())) == smallest(+whole), at


@pytest.mark.parametrize("algorithm", [connected_components, strongly_connected_components])
def test_the_state_of_a_long_path_is_not_its_square(spark, algorithm):
    """The nodes are numbered along the path, so that each label is the smallest one for a while."""
    rows = {}
    for length in (200, 600):
        with Dataflow(spark, runner="local") as flow:
            edges, session = flow.input("edges", "src long, dst long")
            parts = algorithm(edges).keep("parts")
            session.insert([(n, (n + 1) % length) for n in range(length)])
            flow.advance_to(1)
            assert {row.component for row in parts.at().collect()} == {0}
            rows[length] = sum(
                row.kept_rows or 0 for row in flow.explain().to_df().collect())
    assert rows[600] < 5 * rows[200]


def test_the_order_of_labels_is_a_permutation(spark):
    """A path of equidistant ids has few labels that are the smallest of some window."""
    paths = [
        [distance * n for n in range(1, 2001)]
        for distance in (1, 1000, 100_000, 1 << 33, -86_400_000_000)
    ]
    frame = spark.createDataFrame(pd.DataFrame({"node": sorted(set(sum(paths, [])))}))
    labels = {
        row.node: row.label
        for row in propagation.own_labels(
            DiffFrame(frame.selectExpr("node", "0 AS time", "1 AS diff"))).at(0).collect()}
    assert len(set(labels.values())) == len(labels)
    for path in paths:
        along = np.array([labels[node] for node in path])
        windows = np.lib.stride_tricks.sliding_window_view(along, 41)
        assert len(set(windows.min(axis=1))) < 400, path[0]


def test_extreme_ids_have_labels(spark):
    ids = [-(2**63), -(2**32), -1, 0, 1, 2**32 - 1, 2**32, 2**63 - 1]
    nodes = DiffFrame(spark.createDataFrame(
        [(each, 0, 1) for each in ids], "node long, time int, diff int"))
    labels = {row.label for row in propagation.own_labels(nodes).at(0).collect()}
    assert len(labels) == len(ids)


@pytest.mark.parametrize("kind", ["long", "string"])
def test_an_independent_set_is_maximal_and_depends_on_the_graph_alone(spark, kind):
    chance, name = random.Random(3), KINDS[kind]
    order = [name(each) for each in range(14)]
    there = Counter((chance.choice(order), chance.choice(order)) for _ in range(20))
    vertices = spark.createDataFrame([(each,) for each in order], f"id {kind}")
    with Dataflow(spark, runner="local") as flow:
        edges, session = flow.input("edges", f"src {kind}, dst {kind}")
        independent = GraphDiff(vertices, edges).maximal_independent_set().keep("chosen")
        session.insert(list(there.elements()))
        for step in range(4):
            flow.advance_to(step + 1)
            chosen = [row.id for row in independent.at().collect()]
            graph = nx.Graph(list(there))
            graph.add_nodes_from(order)
            graph.remove_edges_from(list(nx.selfloop_edges(graph)))
            assert len(chosen) == len(set(chosen)) and not graph.subgraph(chosen).edges, step
            assert nx.is_dominating_set(graph, chosen), step
            gone = chance.sample(sorted(there.elements()), 4)
            come = [(chance.choice(order), chance.choice(order)) for _ in range(3)] + gone[:1]
            session.remove(gone)
            session.insert(come)
            before, there = there, +(there - Counter(gone) + Counter(come))
    fresh = spark.createDataFrame(list(before.elements()), f"src {kind}, dst {kind}")
    again = GraphDiff(vertices, fresh).maximal_independent_set()
    assert sorted(row.id for row in again.at(0).collect()) == sorted(chosen)
