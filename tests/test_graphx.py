"""Graph algorithms against GraphX, which comes with Spark, at two times of a history; and a chain.

    at(algorithm(updates), t) = GraphX on the graph as it stands at t

GraphX is called through py4j, with the class tags that Scala would find by itself.
"""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest
from py4j.java_gateway import JavaPackage
from pyspark.sql import functions as F
from pyspark.sql import is_remote

from pyspark_diff import Dataflow, DiffFrame, graphs

#: Ids begin here. What py4j hands over as a long, and not as an int, has to be as large as this.
FIRST = 2**40
NODES, EDGES, REPLACED = 300, 600, 250
#: Where ways end, and the distances to them are asked for.
LANDMARKS = [FIRST, FIRST + 1, FIRST + 2]


class GraphX:
    """Its algorithms, each on a graph that was read from a file."""

    def __init__(self, spark):
        self._jvm = spark.sparkContext._jvm
        self._context = spark.sparkContext._jsc.sc()
        self._int = self._jvm.scala.reflect.ClassTag.Int()
        self._lib = self._jvm.org.apache.spark.graphx.lib

    def read(self, path):
        level = self._jvm.org.apache.spark.storage.StorageLevel.MEMORY_AND_DISK()
        load = self._jvm.org.apache.spark.graphx.GraphLoader.edgeListFile
        return load(self._context, str(path), False, 1, level, level)

    def connected_components(self, graph):
        return self._labels(self._lib.ConnectedComponents.run(graph, self._int, self._int))

    def strongly_connected_components(self, graph):
        run = self._lib.StronglyConnectedComponents.run
        return self._labels(run(graph, NODES, self._int, self._int))

    def triangles(self, graph):
        return self._labels(self._lib.TriangleCount.run(graph, self._int, self._int))

    def distances(self, graph):
        """From a landmark and a node to the number of edges on the way from node to landmark."""
        landmarks = self._jvm.PythonUtils.toSeq(LANDMARKS)
        found = self._told(self._lib.ShortestPaths.run(graph, landmarks, self._int))
        return {
            (int(landmark), int(node)): int(distance)
            for node, ways in re.findall(r"\((\d+),\w*Map\((.*?)\)\)", found)
            for landmark, distance in re.findall(r"(\d+) -> (\d+)", ways)
        }

    def _labels(self, graph):
        found = re.findall(r"\((\d+),(\d+)\)", self._told(graph))
        return {int(node): int(label) for node, label in found}

    def _told(self, graph):
        """All vertices as one text: an object each would be a call each."""
        return graph.vertices().toJavaRDD().collect().toString()


@pytest.fixture(scope="module")
def graphx(spark):
    if is_remote():
        pytest.skip("GraphX is called through py4j, and Spark Connect has none")
    if isinstance(spark.sparkContext._jvm.org.apache.spark.graphx.GraphLoader, JavaPackage):
        pytest.skip("this Spark comes without GraphX")
    return GraphX(spark)


@pytest.fixture(scope="module")
def history():
    """Edges at two times: some of the first ones are gone at the second, and others have come.

    Parallel edges, opposite ones and self-loops are among them.
    """
    choice = random.Random(5)
    first = [(FIRST + choice.randrange(NODES), FIRST + choice.randrange(NODES))
             for _ in range(EDGES)]
    first += [first[0], first[1][::-1], (FIRST + 7, FIRST + 7)]
    come = [(FIRST + choice.randrange(NODES), FIRST + choice.randrange(NODES))
            for _ in range(REPLACED)]
    return [first, first[REPLACED:] + come]


@pytest.fixture(scope="module")
def edges(spark, history):
    rows = [(*edge, at, diff) for at, diff, there in
            ((0, 1, history[0]), (5, -1, history[0]), (5, 1, history[1])) for edge in there]
    return DiffFrame(spark.createDataFrame(rows, "src long, dst long, time int, diff int"))


@pytest.fixture(scope="module")
def read(graphx, history, tmp_path_factory):
    """The graph at each of the two times, as GraphX has it."""
    folder = tmp_path_factory.mktemp("graphx")
    found = []
    for at, there in enumerate(history):
        path = folder / f"{at}.txt"
        path.write_text("".join(f"{src} {dst}\n" for src, dst in there))
        found.append(graphx.read(path))
    yield found
    for graph in found:
        graph.unpersist(True)


def both_times(result):
    return [result.at(time).collect() for time in (0, 5)]


def check_labels(algorithm, read, result):
    """The same nodes with the same labels, at both times, between which something has changed."""
    expected = [algorithm(graph) for graph in read]
    assert expected[0] != expected[1]
    for rows, labels in zip(both_times(result), expected):
        assert len(rows) == len(labels)
        assert {node: label for node, label in rows} == labels


def test_connected_components(graphx, read, edges):
    check_labels(graphx.connected_components, read, graphs.connected_components(edges))


def test_strongly_connected_components(graphx, read, edges):
    result = graphs.strongly_connected_components(edges)
    check_labels(graphx.strongly_connected_components, read, result)


def test_triangles_of_each_node(graphx, read, edges):
    result = graphs.local_clustering(edges).select("node", "triangles")
    check_labels(graphx.triangles, read, result)


def test_shortest_paths_and_bfs(spark, graphx, read, edges):
    landmarks = spark.createDataFrame([(node,) for node in LANDMARKS], "node long")
    # GraphX asks how far it is to a landmark, so ways are turned around.
    turned = edges.toDF("dst", "src").withColumn("weight", F.lit(1))
    paths = graphs.shortest_paths(turned, landmarks, per_source=True)
    nearest = graphs.bfs(turned, landmarks)
    expected = [graphx.distances(graph) for graph in read]
    assert expected[0] != expected[1]
    for rows, found, distances in zip(both_times(paths), both_times(nearest), expected):
        assert {(source, node): distance for source, node, distance in rows} == distances
        assert len(rows) == len(distances)
        least = {}
        for (_, node), distance in distances.items():
            least[node] = min(distance, least.get(node, distance))
        assert sorted(found) == sorted(least.items())


@pytest.mark.slow
def test_bfs_of_a_long_chain_that_breaks(spark):
    """As many iterations as nodes, and half of them again; node n is n away from the beginning."""
    length, middle = 10_000, 5_000
    found = Counter()

    def take(updates):
        for *record, at, diff in zip(*(column.to_pylist() for column in updates.columns)):
            found[(*record, at)] += diff

    with Dataflow(spark, runner="local") as flow:
        edges, edges_in = flow.input("edges", "src long, dst long")
        roots, roots_in = flow.input("roots", "node long")
        graphs.bfs(edges, roots).inspect(take, by_table=True)
        roots_in.insert([(0,)])
        roots_in.close()
        edges_in.insert([(node, node + 1) for node in range(length - 1)])
        edges_in.advance_to(1)
        edges_in.flush()
        flow.step()
        assert +found == Counter({(node, node, 0): 1 for node in range(length)})
        found.clear()
        edges_in.remove([(middle - 1, middle)])
        edges_in.advance_to(2)
        edges_in.flush()
        flow.step()
        assert {update: diff for update, diff in found.items() if diff} == {
            (node, node, 1): -1 for node in range(middle, length)
        }
