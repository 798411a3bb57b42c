"""Programs and paths of GraphDiff against brute force, after a load and after steps of changes.

    GraphDiff(v, e).method().at(t)  =  the method on the graph at t

The graphs have self-loops, parallel edges, isolated vertices, and ends that are no vertices.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, Callable

import pytest
from pyspark.sql import functions as F

from pyspark_diff import Dataflow
from pyspark_diff.graphs import GraphDiff

#: Ids of both kinds: the last one is no vertex, and the one before it has no edge.
IDS: dict[str, list[Any]] = {"long": [*range(7)], "string": [f"v {n}'s" for n in range(7)]}
Edge = tuple[Any, Any, int]
Program = Callable[[GraphDiff], Any]
Oracle = Callable[[list[Any], list[Edge]], Counter[Any]]


def plain(row: Any) -> Any:
    return tuple(plain(each) if isinstance(each, tuple) else each for each in row)


def check(spark: Any, kind: str, programs: dict[str, tuple[Program, Oracle]], steps: int = 3,
          runner: str = "local") -> None:
    """Compare each program with its oracle after a load and after steps of changes."""
    ids, choice = IDS[kind], random.Random(kind + min(programs))
    ends = [*ids[:5], ids[6]]
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        vertices, vertices_in = flow.input("vertices", f"id {kind}, n int")
        edges, session = flow.input("edges", f"src {kind}, dst {kind}, km int")
        graph = GraphDiff(vertices, edges)
        kept = {name: program(graph).keep(name) for name, (program, _) in programs.items()}
        vertices_in.insert([(v, n) for n, v in enumerate(ids[:6])])
        there: list[Edge] = []
        for step in range(steps):
            going = choice.sample(there, 3) if step else []
            coming = [
                (choice.choice(ends), choice.choice(ends), choice.randrange(3))
                for _ in range(3 if step else 9)
            ]
            if not step:
                coming += [(ids[1], ids[2], 1)] * 2 + [(ids[3], ids[3], 0)]
            coming += going[:1]
            session.insert(coming)
            session.remove(going)
            there += coming
            for row in going:
                there.remove(row)
            flow.advance_to(step + 1)
            for name, frame in kept.items():
                actual = Counter(map(plain, frame.at().collect()))
                assert actual == programs[name][1](ids[:6], there), (name, step)


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
                found: Counter[Any] = Counter()
                for v, path in done:
                    nodes = [path[0][0] if path else v, *(edge[1] for edge in path)]
                    row: list[Any] = [(nodes[0], ids.index(nodes[0]))]
                    for n in range(most):
                        if n:
                            row.append((nodes[n], ids.index(nodes[n])) if n < length else None)
                        row.append(path[n] if n < length else None)
                    found[(*row, (v, ids.index(v)))] += 1
                return found
            walks = [(edge[1], (*path, edge)) for v, path in walks for edge in usable
                     if edge[0] == v]
        return Counter()
    return oracle


@pytest.mark.parametrize("kind", IDS)
def test_bfs_after_each_step(spark, kind):
    """Paths that become longer and shorter, of no edge, and over allowed edges alone."""
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
    found = graph.bfs("id = 1", "id = 2", maxPathLength=2)
    assert found.columns == ["from", "e0", "v1", "e1", "to"]
    assert [plain(row) for row in found.at(0).collect()] == [
        ((1, "a"), (1, 2, 3), None, None, (2, "b"))]
    assert len(graph.bfs("id = 1", "id = 2").columns) == 21
    assert graph.bfs("id = 1", "id = 1", maxPathLength=0).columns == ["from", "to"]
