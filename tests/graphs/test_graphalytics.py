"""The validation graphs of LDBC Graphalytics, after steps of inserted and removed edges.

    at(algorithm(edges), t) = the published output

Source: the validation suite of Graphalytics 1.x, folder ``validation-graphs`` (Apache License 2.0,
https://github.com/ldbc/ldbc_graphalytics). Here the files are texts. Each part of an input has a
vertex and its neighbours, and each part of an output a vertex and its value. A history begins with
edges that the graph lacks, and without some of its edges.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Callable

import pytest

from pyspark_diff import Dataflow, DiffFrame, graphs

EXAMPLE = "1 3 5, 2 4 5 10, 3 1 5 8 10, 4, 5 3 4 8, 6 3 4, 7 4, 8 1, 9 4, 10"
EXAMPLE_BOTH_WAYS = "2 3 4, 3 4 5 8, 4, 5 6 8, 6 7 8 9 10, 7 9, 8, 9, 10"
EXAMPLE_WEIGHTS = (
    "1 3 0.5, 1 5 0.3, 2 4 0.1, 2 5 0.3, 2 10 0.12, 3 1 0.53, 3 5 0.62, 3 8 0.21, 3 10 0.52, "
    "5 3 0.69, 5 4 0.53, 5 8 0.1, 6 3 0.23, 6 4 0.39, 7 4 0.83, 8 1 0.39, 9 4 0.69"
)
EXAMPLE_WEIGHTS_BOTH_WAYS = (
    "2 3 0.9, 2 4 0.69, 3 4 0.13, 3 5 0.5, 3 8 0.32, 5 6 0.63, 5 8 0.12, 6 7 0.53, 6 8 0.64, "
    "6 9 0.23, 6 10 0.63, 7 9 0.36"
)
RANKED = (
    "1 19 21 22 27 31 37 45 48, 2 3 20 39 46, 3 6 10 32 41 45, 4 15, 5 15 16 18 28 47, 6 49, "
    "7 6 27 43 46, 8 5 21 29 30 32 43, 9 16 18 21 28 30 35 40, 10 9 13 28 29 33, 11 3 39, "
    "12 47 50, 13 7 12 17 32 48, 14 4 20 21 35 38 40, 15 8 24 31 35 44, 16, 17 5 9 11 16 26 37, "
    "18 1 12 28 30 44 45 47 50, 19 10 11 13 27 38, 20 15 25, 21 22 27 31 32 40, 22 19 26 27 31, "
    "23 22 35 36 38 40 46 47, 24 9 13 15 34 36 50, 25 8 24 30 34 41 47, 26 7 31 37 40 44 47, "
    "27 31 33 43, 28 8 32 42 45, 29 1 2 12 14 16 19 20 36, 30 9 24 34 44, 31 11 17 32 39 46 47, "
    "32 2 28 29 30 31, 33 7 8 9 10 32 34 37, 34 26 48, 35 3 10 17 24 26 28 33 41, "
    "36 20 21 29 32 46, 37 1 5 9 13 23 24, 38 2 22 50, 39 6 8 20 28 30 47 48, "
    "40 5 7 8 11 33 34 37 49, 41 24 43, 42, 43 1 2 11 15 17 29 38 47, 44 11 13 15, "
    "45 5 11 12 21 24, 46 23 24 26 31 36 41, 47 8 14 16 28 29 34 35 40 42 46 50, "
    "48 8 19 30 35 38 43 50, 49 7 8 17 18, 50 4 28 47"
)
#: An undirected graph with each edge at both of its ends. Its program reads it as directed edges.
RANKED_BOTH_WAYS = (
    "1 20 23 25 41, 2 9 10 19 28 49, 3 5, 4 9 26 29 33 37, 5 3 15 45, 6 8 9 13 21 24 26, "
    "7 13 25 28, 8 6 14 16 17 25 38, 9 2 4 6 17 19 40 47, 10 2 11 13 39, 11 10 13 19 22 37 39 42, "
    "12 49, 13 6 7 10 11 17 40 41, 14 8 18 38, 15 5 21 28, 16 8 28 50, 17 8 9 13 20 36, "
    "18 14 34 42, 19 2 9 11 35 37 46 48, 20 1 17 41, 21 6 15 26 32 33 41 48, 22 11 24 28 44, "
    "23 1 50, 24 6 22 25 28 42, 25 1 7 8 24 43, 26 4 6 21 34 37 41 48, 27 38 45 46 48 49, "
    "28 2 7 15 16 22 24 40, 29 4 46 49, 30 33 41 44, 31 37 40 41 43 45, 32 21 34 40 49, "
    "33 4 21 30, 34 18 26 32 35 42 43, 35 19 34 48, 36 17, 37 4 11 19 26 31 47, "
    "38 8 14 27 45 48, 39 10 11 46 48 49, 40 9 13 28 31 32 46, 41 1 13 20 21 26 30 31 42, "
    "42 11 18 24 34 41 49, 43 25 31 34, 44 22 30, 45 5 27 31 38, 46 19 27 29 39 40, 47 9 37 49, "
    "48 19 21 26 27 35 38 39, 49 2 12 27 29 32 39 42 47, 50 16 23"
)
#: The ranks of vertices 1 to 50.
RANKS = """
0.01230514588446495 0.01851622003726000 0.02089512714725092 0.01176585382420890 0.01812188699760293
0.01370603172547424 0.01766993644629599 0.03400137250799818 0.02253772178242931 0.01315614200506950
0.02654403475508309 0.01386383239731235 0.02030864505387470 0.00902512774017356 0.03672808695956838
0.01771992643552917 0.02031073797506916 0.01298439013813405 0.01267137259396788 0.01679586725172487
0.01911653027692032 0.01289817411164510 0.00882485667115226 0.03290195003741163 0.01067032002801407
0.02369530123252170 0.01673916517786888 0.03375421104823002 0.02465138400978424 0.02526104021117763
0.03431971273393954 0.03497314211893426 0.01458158825232488 0.02164031394989468 0.02020836868133508
0.01508472096454471 0.01476737354061426 0.01319038598708231 0.02360994727883383 0.01809943553861050
0.01394375154429174 0.01357868803688285 0.02524445976750379 0.01988024806748353 0.01694403111121369
0.02259342804847692 0.03719089314603851 0.02035602345369202 0.01710526843866147 0.02454782687642342
"""
RANKS_BOTH_WAYS = """
0.019994702651822727 0.020610527884557025 0.008226197386781101 0.021139185066112783
0.018444923156792234 0.024084954259336728 0.013969559462575373 0.02668963976681411
0.028142861825430434 0.0167741910684128 0.027637864862787215 0.006621828608749126
0.028324716269103052 0.014542367946479423 0.015402400704682247 0.01596880444520349
0.023834104226113394 0.014200722829925825 0.0273410188338063 0.014831275189133464
0.028735574782495082 0.018477892825502034 0.0127497982048853 0.021373651088358408
0.02260732176089701 0.027376096254376446 0.02134704763359033 0.030362032973210468
0.013746478682938448 0.015427396286657406 0.021464508199961305 0.017138368029391664
0.0144541313014486 0.025238308891148063 0.013262988386629346 0.0070517851315193706
0.024052774570892436 0.021986830533936328 0.020440927586411146 0.024365531838954662
0.03322922856031516 0.024740924162144014 0.014067683035912583 0.011297668545718825
0.019241976534635333 0.02077051826476872 0.013446644926660565 0.027733140385859008
0.034087820865793435 0.012943113300369766
"""


def breadth_first(root: int, directed: bool = True) -> Callable[[Any], DiffFrame]:
    return lambda graph: graphs.bfs(graph, [root], directed=directed)


def nearest(root: int, directed: bool = True) -> Callable[[Any], DiffFrame]:
    return lambda graph: graphs.shortest_paths(graph, [root], weight="weight", directed=directed)


def votes(rounds: int, directed: bool = True) -> Callable[[Any], DiffFrame]:
    return lambda graph: graphs.label_propagation(graph, rounds=rounds, directed=directed)


def clustering(directed: bool = True) -> Callable[[Any], DiffFrame]:
    return lambda graph: graphs.local_clustering(graph, directed=directed).select(
        "node", "coefficient")


def ranks(rounds: int, directed: bool = True) -> Callable[[Any], DiffFrame]:
    return lambda graph: graphs.pagerank(
        graph, rounds=rounds, reset_probability=0.15, directed=directed)


@dataclass(frozen=True)
class Case:
    """A validation graph, its program and its published output.

    Parameters
    ----------
    neighbours : str
        A vertex and its neighbours in each part; vertices without one stand alone.
    program : callable
    output : str
        A vertex and its value in each part. A vertex that is not reached is left out.
    weights : str
        The edges with their weights, if the program needs them.
    """

    neighbours: str
    program: Callable[[Any], DiffFrame]
    output: str
    weights: str = ""
    edges: list[tuple[int, int, float]] = field(init=False)
    vertices: list[tuple[int]] = field(init=False)

    def __post_init__(self) -> None:
        adjacent = [[int(n) for n in part.split()] for part in self.neighbours.split(",")]
        edges = [(part[0], n, 1.0) for part in adjacent for n in part[1:]]
        if self.weights:
            parts = [part.split() for part in self.weights.split(",")]
            edges = [(int(src), int(dst), float(weight)) for src, dst, weight in parts]
        object.__setattr__(self, "edges", edges)
        ends = {end for edge in edges for end in edge[:2]}
        ends |= {part[0] for part in adjacent if part}
        object.__setattr__(self, "vertices", [(end,) for end in sorted(ends)])

    def expected(self) -> dict[int, float]:
        pairs = [part.split() for part in self.output.split(",")]
        return {int(node): float(value) for node, value in pairs}


def numbered(values: str) -> str:
    return ", ".join(f"{n} {value}" for n, value in enumerate(values.split(), 1))


BOTH_WAYS_CLUSTERS = (
    "2 1, 3 0.3333333333333333, 4 1, 5 0.6666666666666666, 6 0.2, 7 1, 8 0.6666666666666666, "
    "9 1, 10 0"
)
CASES = {
    "bfs": Case(
        "1 2 3, 2 3 4 5, 3 1, 4 6 7 8, 5 2 1, 6 4 8, 7, 8 1 2 3, 9 10", breadth_first(1),
        "1 0, 2 1, 3 1, 4 2, 5 2, 6 3, 7 3, 8 3"),
    "bfs, undirected": Case(
        "1 2 3 5 8, 2 3 4 5 8, 3 8, 4 6 7 8, 6 8, 9", breadth_first(1, directed=False),
        "1 0, 2 1, 3 1, 4 2, 5 1, 6 2, 7 3, 8 1"),
    "bfs, example": Case(EXAMPLE, breadth_first(1), "1 0, 3 1, 4 2, 5 1, 8 2, 10 2"),
    "bfs, undirected example": Case(
        EXAMPLE_BOTH_WAYS, breadth_first(2, directed=False),
        "2 0, 3 1, 4 1, 5 2, 6 3, 7 4, 8 2, 9 4, 10 4"),
    "sssp": Case(
        "", nearest(1), "1 0, 2 0.5, 3 2, 4 4, 5 1, 6 1.5, 7 32.5, 8 35.7, 10 24.5",
        "1 2 0.5, 1 3 5, 1 4 5, 2 5 0.5, 3 4 2, 5 6 0.5, 6 3 0.5, 6 10 23, 7 1 1, 7 8 3.2, "
        "8 10 0.2, 9 10 0.1, 10 7 8"),
    "sssp, example": Case(
        "", nearest(1), "1 0, 3 0.5, 4 0.83, 5 0.3, 8 0.4, 10 1.02", EXAMPLE_WEIGHTS),
    "sssp, undirected example": Case(
        "", nearest(2, directed=False),
        "2 0, 3 0.82, 4 0.69, 5 1.26, 6 1.78, 7 2.31, 8 1.14, 9 2.01, 10 2.41",
        EXAMPLE_WEIGHTS_BOTH_WAYS),
    "wcc": Case(
        "1 2 3, 2 1 3 4, 3, 4 2, 5, 6 7 8, 7 6, 8, 9 3", graphs.connected_components,
        "1 1, 2 1, 3 1, 4 1, 5 5, 6 6, 7 6, 8 6, 9 1"),
    "wcc, example": Case(
        EXAMPLE, graphs.connected_components, numbered("1 " * 10)),
    "wcc, undirected example": Case(
        EXAMPLE_BOTH_WAYS, graphs.connected_components,
        ", ".join(f"{n} 2" for n in range(2, 11))),
    "cdlp": Case(
        "1 2 3 7, 2 1 3, 3 1 2, 4 5 6, 5 4 6 7, 6 5 7, 7 5 6 8, 8 6", votes(5),
        numbered("1 1 1 5 4 4 4 4")),
    "cdlp, undirected": Case(
        "1 2 3 7, 2 3, 4 5 6 8, 5 6 7 8, 6 7 8, 7 8", votes(5, directed=False),
        numbered("1 1 1 4 4 4 4 4")),
    "cdlp, example": Case(EXAMPLE, votes(2), numbered("1 2 3 4 1 1 2 3 2 1")),
    "cdlp, undirected example": Case(
        EXAMPLE_BOTH_WAYS, votes(2, directed=False),
        "2 2, 3 3, 4 2, 5 2, 6 6, 7 5, 8 2, 9 5, 10 5"),
    "lcc": Case(
        EXAMPLE + ", 11", clustering(),
        "1 0.6666666666666666, 2 0.1666666666666667, 3 0.15, 4 0.05, 5 0.25, 6 0, 7 0, "
        "8 0.8333333333333334, 9 0, 10 0, 11 0"),
    "lcc, undirected": Case(
        "1, 2 3 4, 3 4 5 8, 5 6 8, 6 7 8 9 10, 7 9", clustering(directed=False),
        "1 0, " + BOTH_WAYS_CLUSTERS),
    "lcc, undirected example": Case(
        EXAMPLE_BOTH_WAYS, clustering(directed=False), BOTH_WAYS_CLUSTERS),
    "pr": Case(RANKED, ranks(14), numbered(RANKS)),
    "pr, undirected": Case(RANKED_BOTH_WAYS, ranks(26), numbered(RANKS_BOTH_WAYS)),
    "pr, example": Case(
        EXAMPLE, ranks(2), numbered(
            "0.1477629166666667 0.04753375 0.1550469444444444 0.1597573611111111 0.14624 "
            "0.04753375 0.04753375 0.1135740277777778 0.04753375 0.08748375")),
    "pr, undirected example": Case(
        EXAMPLE_BOTH_WAYS, ranks(2, directed=False),
        "2 0.09084490740740739, 3 0.1424089506172839, 4 0.09084490740740739, "
        "5 0.1249891975308642, 6 0.1686172839506173, 7 0.09749537037037037, "
        "8 0.1249891975308642, 9 0.09749537037037037, 10 0.06231481481481481"),
}


@pytest.mark.parametrize("name", CASES)
def test_published_outputs(spark, name):
    case, choice = CASES[name], random.Random(name)
    ends = [vertex for vertex, in case.vertices]
    others = [
        (choice.choice(ends), choice.choice(ends), choice.choice([0.0, 0.25, 7.0]))
        for _ in range(5)
    ]
    late = choice.sample(case.edges, len(case.edges) // 3)
    early = [edge for edge in case.edges if edge not in late]
    with Dataflow(spark, runner="local") as flow:
        vertices, vertices_in = flow.input("vertices", "id long")
        edges, edges_in = flow.input("edges", "src long, dst long, weight double")
        graph = SimpleNamespace(vertices=vertices, edges=edges)
        answer = case.program(graph).keep("answer")

        def check(time: int) -> None:
            flow.advance_to(time + 1)
            actual = {row[0]: float(row[1]) for row in answer.at(time).collect()}
            assert actual == pytest.approx(case.expected(), rel=1e-4, abs=1e-9), time

        vertices_in.insert(case.vertices)
        edges_in.insert(early + others)
        flow.advance_to(1)
        edges_in.insert(late)
        edges_in.remove(others)
        check(1)
        edges_in.remove(late)
        flow.advance_to(3)
        edges_in.insert(late)
        check(3)
