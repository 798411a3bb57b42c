"""Graph algorithms against GraphX, which comes with Spark, at every time of a history.

    at(algorithm(updates), t) = GraphX(at(graph, t))

Histories are a graph that changes much at once, graphs of awkward shape, and a stream of random
insertions and deletions. GraphX is called through py4j, with the class tags that Scala would find
by itself.
"""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from dataclasses import dataclass

import pytest
from py4j.java_gateway import JavaPackage
from pyspark.sql import functions as F
from pyspark.sql import is_remote

from pyspark_diff import DiffFrame, graphs

pytestmark = pytest.mark.classic_only("calls GraphX in the JVM")

#: The first id. py4j passes only numbers of this size as a long.
FIRST = 2**40
#: More rounds than any of the graphs needs.
MOST = 300
#: The targets of the searches for distances.
LANDMARKS = [FIRST, FIRST + 1, FIRST + 2]


@dataclass(frozen=True)
class GraphState:
    """A graph at one time: edges with their numbers of copies, and other nodes."""

    edges: Counter[tuple[int, int]]
    alone: frozenset[int] = frozenset()

    @classmethod
    def from_small_ids(cls, edges, alone=()):
        """Adds `FIRST` to small ids."""
        moved = Counter((FIRST + src, FIRST + dst) for src, dst in edges)
        return cls(moved, frozenset(FIRST + node for node in alone))


def replaced():
    """A second time replaces some edges. There are parallel and opposite edges, and self-loops."""
    choice = random.Random(5)

    def some(count):
        return [(choice.randrange(300), choice.randrange(300)) for _ in range(count)]

    first = some(600)
    first += [first[0], first[1][::-1], (7, 7)]
    return [GraphState.from_small_ids(first), GraphState.from_small_ids(first[250:] + some(250))]


def shapes():
    """Graphs of awkward shape. Each replaces its predecessor in one time."""
    chain = [(node + 1, node) for node in range(12)]
    grid = [(6 * i + j, 6 * i + j + 1) for i in range(6) for j in range(5)]
    grid += [(6 * i + j, 6 * i + j + 6) for i in range(5) for j in range(6)]
    loops = [(0, 0), (0, 0), (3, 4), (3, 4), (4, 3), (5, 5), (2, 5), (1, 2), (1, 2)]
    return [
        GraphState.from_small_ids([(0, node) for node in range(1, 30)], [40, 41]),
        GraphState.from_small_ids(chain),
        GraphState.from_small_ids(loops, [0, 8, 9]),
        GraphState.from_small_ids([*chain, (0, 12)], [61]),
        GraphState.from_small_ids(grid),
        GraphState.from_small_ids(itertools.permutations(range(7), 2), range(5, 12)),
    ]


def stream():
    """Random insertions and deletions, a few of them at each time."""
    choice = random.Random(11)
    now, states = GraphState.from_small_ids([]), []
    for _ in range(4):
        edges = Counter(now.edges)
        edges.subtract(choice.sample(sorted(edges.elements()), edges.total() // 4))
        nodes = [FIRST + choice.randrange(25) for _ in range(28)]
        edges.update(zip(nodes[::2], nodes[1::2]))
        now = GraphState(+edges, now.alone ^ {FIRST + choice.randrange(40)})
        states.append(now)
    return states


class GraphX:
    """The algorithms of GraphX, each on a graph with edges from a file."""

    def __init__(self, spark):
        self._jvm = spark.sparkContext._jvm
        self._context = spark.sparkContext._jsc.sc()
        self._int = self._jvm.scala.reflect.ClassTag.Int()
        self._lib = self._jvm.org.apache.spark.graphx.lib

    def read(self, path, alone):
        """A graph of the edges in a file, and further nodes."""
        level = self._jvm.org.apache.spark.storage.StorageLevel.MEMORY_AND_DISK()
        graphx = self._jvm.org.apache.spark.graphx
        edges = graphx.GraphLoader.edgeListFile(self._context, str(path), False, 1, level, level)
        nodes = self._jvm.PythonUtils.toSeq([self._jvm.scala.Tuple2(node, 1) for node in alone])
        pair = self._jvm.scala.reflect.ClassTag.AnyRef()
        vertices = self._context.parallelize(nodes, 1, pair)
        return graphx.Graph.apply(
            vertices, edges.edges(), 1, level, level, self._int, self._int
        )

    def connected_components(self, graph):
        return self._labels(self._lib.ConnectedComponents.run(graph, self._int, self._int))

    def strongly_connected_components(self, graph):
        run = self._lib.StronglyConnectedComponents.run
        return self._labels(run(graph, MOST, self._int, self._int))

    def triangles(self, graph):
        return self._labels(self._lib.TriangleCount.run(graph, self._int, self._int))

    def distances(self, graph):
        """From a landmark and a node to the number of edges on the way from node to landmark."""
        landmarks = self._jvm.PythonUtils.toSeq(LANDMARKS)
        text = self._text(self._lib.ShortestPaths.run(graph, landmarks, self._int))
        return {
            (int(landmark), int(node)): int(distance)
            for node, ways in re.findall(r"\((\d+),\w*Map\((.*?)\)\)", text)
            for landmark, distance in re.findall(r"(\d+) -> (\d+)", ways)
        }

    def _labels(self, graph):
        pairs = re.findall(r"\((\d+),(\d+)\)", self._text(graph))
        return {int(node): int(label) for node, label in pairs}

    def _text(self, graph):
        """All vertices as one text, as each object would need a call of py4j."""
        return graph.vertices().toJavaRDD().collect().toString()


@pytest.fixture(scope="module")
def graphx(spark):
    if is_remote():
        pytest.skip("GraphX is called through py4j, and Spark Connect has none")
    if isinstance(spark.sparkContext._jvm.org.apache.spark.graphx.GraphLoader, JavaPackage):
        pytest.skip("this Spark comes without GraphX")
    return GraphX(spark)


@dataclass(frozen=True)
class Case:
    """A history, as GraphX has it at each time, and as collections of edges and of other nodes."""

    graphs: list
    edges: DiffFrame
    alone: DiffFrame


@pytest.fixture(
    scope="module", ids=lambda make: make.__name__,
    params=[replaced, pytest.param(shapes, marks=pytest.mark.slow), stream],
)
def case(request, spark, graphx, tmp_path_factory):
    history = request.param()
    folder = tmp_path_factory.mktemp("graphx")
    loaded = []
    rows = {"edges": [], "alone": []}
    before = GraphState.from_small_ids([])
    for at, now in enumerate(history):
        path = folder / f"{at}.txt"
        path.write_text("".join(f"{src} {dst}\n" for src, dst in now.edges.elements()))
        loaded.append(graphx.read(path, now.alone))
        for part in ("edges", "alone"):
            change = Counter(getattr(now, part))
            change.subtract(Counter(getattr(before, part)))
            rows[part] += [(record, at, diff) for record, diff in change.items() if diff]
        before = now
    edges = spark.createDataFrame(
        [(*edge, *when) for edge, *when in rows["edges"]], "src long, dst long, time int, diff int"
    )
    alone = spark.createDataFrame(rows["alone"], "node long, time int, diff int")
    yield Case(loaded, DiffFrame(edges), DiffFrame(alone))
    for graph in loaded:
        graph.unpersist(True)


def at_each_time(result, case):
    updates = [tuple(row) for row in result.to_df().collect()]
    snapshots, now = [], Counter()
    for at in range(len(case.graphs)):
        for *row, time, diff in updates:
            now[tuple(row)] += diff if time == at else 0
        assert min(now.values()) >= 0
        snapshots.append(sorted((+now).elements()))
    return snapshots


def check_labels(algorithm, case, result):
    """The nodes and their labels agree at every time, and each step changes some label."""
    expected = [algorithm(graph) for graph in case.graphs]
    assert all(a != b for a, b in zip(expected, expected[1:]))
    for at, (rows, labels) in enumerate(zip(at_each_time(result, case), expected)):
        assert rows == sorted(labels.items()), at


def test_connected_components(graphx, case):
    result = graphs.connected_components(case.edges, case.alone)
    check_labels(graphx.connected_components, case, result)


@pytest.mark.slow
def test_strongly_connected_components(graphx, case):
    result = graphs.strongly_connected_components(case.edges, case.alone)
    check_labels(graphx.strongly_connected_components, case, result)


def test_triangles_of_each_node(graphx, case):
    result = graphs.local_clustering(case.edges, case.alone).select("node", "triangles")
    check_labels(graphx.triangles, case, result)


def test_distances_and_what_is_reached(spark, graphx, case):
    landmarks = spark.createDataFrame([(node,) for node in LANDMARKS], "node long")
    # GraphX computes distances to landmarks, so the edges are reversed here.
    turned = case.edges.toDF("dst", "src").withColumn("weight", F.lit(1))
    paths = graphs.shortest_paths(turned, landmarks, per_source=True)
    nearest = graphs.bfs(turned, landmarks)
    reached = graphs.reachability(turned, landmarks)
    expected = [graphx.distances(graph) for graph in case.graphs]
    assert all(a != b for a, b in zip(expected, expected[1:]))
    ours = zip(*(at_each_time(result, case) for result in (paths, nearest, reached)), expected)
    for at, (each, least, there, distances) in enumerate(ours):
        # A landmark without an edge has distance 0 to itself. GraphX omits it.
        distances |= {(node, node): 0 for node in LANDMARKS}
        assert each == sorted((*pair, distance) for pair, distance in distances.items()), at
        shortest = {}
        for (_, node), distance in distances.items():
            shortest[node] = min(distance, shortest.get(node, distance))
        assert least == sorted(shortest.items()), at
        assert there == sorted((node,) for node in shortest), at
