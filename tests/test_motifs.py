"""Motifs against all assignments of nodes and edges to a pattern's names, tried one by one.

    accumulate(find(updates, pattern), t) = the matches in the graph as it stands at t
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from types import SimpleNamespace
from typing import Any, Iterator

import networkx as nx
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from pyspark_diff import Dataflow, DiffFrame, SchemaError, graphs

#: Terms: negated, from, edge, to.
Term = tuple[bool, str, str, str]
Edge = tuple[int, int, str]

PATTERNS = [
    "(a)",
    "(a)-[e]->(b)",
    "(a)<-[e]-(b)",
    "(a)-[]->(b); (b)-[]->(a)",
    "(a)-[e]->(b); (b)-[f]->(a); !(b)-[]->(c)",
    "(a)-[e]->(a)",
    "()-[e]->(b); (b)-[]->()",
    "()-[e]->()",
    "(a)-[]->(b); (b)-[]->(c); (c)-[]->(a)",
    "(a)-[]->(b); (c)-[e]->(d); !(d)-[]->()",
    "(a)-[x]->(b); (c)-[]->(d); (b)-[]->(c); (a)",
    "!(a)-[]->(); !()-[]->(a)",
    " ( a ) - [ ] -> ( b ) ;\n! ( b ) - [ ] -> ( a ) ; !(a)-[]->(a)",
]


def terms_of(pattern: str) -> list[Term | str]:
    """The oracle's own reading of a pattern."""
    found: list[Term | str] = []
    for text in "".join(pattern.split()).split(";"):
        parts = text.strip("!").replace("<", "").replace(">", "").split("-")
        names = [part.strip("()[]") for part in parts]
        if len(names) == 1:
            found.append(names[0])
        else:
            first, edge, last = names[::-1] if "<" in text else names
            found.append((text.startswith("!"), first, edge, last))
    return found


def names_of(pattern: str) -> tuple[list[str], list[str]]:
    """All names as they come, and those of edges."""
    every: list[str] = []
    named: list[str] = []
    for text in "".join(pattern.split()).split(";"):
        for part in text.strip("!").replace("<", "").replace(">", "").split("-"):
            name = part.strip("()[]")
            if name and name not in every:
                every.append(name)
            if name and part.startswith("["):
                named.append(name)
    return every, named


def matches(pattern: str, edges: Counter[Edge], nodes: dict[int, str | None]) -> Counter[Any]:
    terms = terms_of(pattern)
    every, named = names_of(pattern)
    wanted = [term for term in terms if isinstance(term, tuple) and not term[0]]
    unwanted = [term for term in terms if isinstance(term, tuple) and term[0]]
    ways = {(src, dst) for src, dst, _ in edges}

    def bound(known: dict[str, Any], rest: list[Term]) -> Iterator[dict[str, Any]]:
        if not rest:
            yield known
            return
        _, first, edge, last = rest[0]
        for one in edges.elements():
            more = dict(known)
            if all(more.setdefault(name, end) == end
                   for name, end in ((first, one[0]), (last, one[1])) if name):
                if edge:
                    more[edge] = one
                yield from bound(more, rest[1:])

    found: Counter[Any] = Counter()
    for known in bound({}, wanted):
        free = [name for name in every if name not in known and name not in named]
        for values in itertools.product(nodes, repeat=len(free)):
            here = {**known, **dict(zip(free, values))}
            if not any(
                here.get(first, src) == src and here.get(last, dst) == dst
                for _, first, _, last in unwanted for src, dst in ways
            ):
                found[tuple(
                    here[name] if name in named else (here[name], nodes[here[name]])
                    for name in every
                )] += 1
    return found


def plain(row: Any) -> Any:
    return tuple(tuple(one.values()) if isinstance(one, dict) else tuple(one) for one in row)


def history(seed: int) -> list[tuple[Counter[Edge], dict[int, str]]]:
    """Edges and vertices with attributes, some of them late, some of them gone again."""
    choice = random.Random(seed)
    edges: Counter[Edge] = Counter()
    vertices: dict[int, str] = {}
    found = []
    for _ in range(4):
        for edge in choice.sample(sorted(edges.elements()), edges.total() // 3):
            edges[edge] -= 1
        for _ in range(choice.randint(1, 5)):
            edges[choice.randrange(5), choice.randrange(5), choice.choice("xy")] += 1
        vertices = {
            node: choice.choice("pq") if choice.random() < 0.3 else vertices.get(node, "r")
            for node in range(6) if choice.random() < 0.7
        }
        edges = +edges
        found.append((Counter(edges), dict(vertices)))
    return found


def known(edges: Counter[Edge], vertices: dict[int, str]) -> dict[int, str | None]:
    ends = {node for edge in edges for node in edge[:2]}
    return {node: vertices.get(node) for node in ends | set(vertices)}


def at_random(choice: random.Random) -> str:
    """A pattern of few terms, the first of them not negated, so that there is not too much."""
    terms = []
    for number in range(choice.randint(1, 3)):
        while True:
            first, last = (choice.choice(["", "a", "b", "c"]) for _ in range(2))
            negated = number > 0 and choice.random() < 0.4
            edge = f"e{number}" if not negated and choice.random() < 0.4 else ""
            if first or edge or last:
                break
        terms.append("!" * negated + f"({first})-[{edge}]->({last})")
    return ";".join(terms)


@pytest.mark.parametrize("part", range(4))
def test_matches_of_a_history_step_by_step(spark, part):
    """Under names of columns in another case, with vertices that edges do not have."""
    choice = random.Random(part)
    patterns = [*PATTERNS[part::4], *(at_random(choice) for _ in range(3))]
    there = history(part)
    results: list[Counter[Any]] = [Counter() for _ in patterns]

    def follower(found: Counter[Any]) -> Any:
        def follow(updates: pa.Table) -> None:
            for *row, _, diff in zip(*(column.to_pylist() for column in updates.columns)):
                found[plain(row)] += diff
        return follow

    with Dataflow(spark, runner="local") as flow:
        edges, edges_in = flow.input("edges", "SRC long, Dst long, kind string")
        vertices, vertices_in = flow.input("vertices", "kind string, ID long")
        graph = SimpleNamespace(edges=edges, vertices=vertices)
        for pattern, found in zip(patterns, results):
            graphs.find(graph, pattern).inspect(follower(found), by_table=True)
        before: tuple[Any, Any] = Counter(), Counter()
        for at, (there_edges, there_vertices) in enumerate(there):
            now = there_edges, Counter((kind, node) for node, kind in there_vertices.items())
            for session, new, old in zip((edges_in, vertices_in), now, before):
                change = Counter(new)
                change.subtract(old)
                session.update([(*row, at, diff) for row, diff in change.items() if diff])
            before = now
            if at % 2 == 0:
                continue  # steps of several times
            flow.advance_to(at + 1)
            nodes = known(there_edges, there_vertices)
            for pattern, found in zip(patterns, results):
                expected = matches(pattern, there_edges, nodes)
                assert Counter({row: n for row, n in found.items() if n}) == expected, pattern


def test_at_every_time_of_a_history(spark):
    """As a whole, with nodes beside edges alone."""
    there = history(9)
    rows: dict[str, list[Any]] = {"edges": [], "nodes": []}
    before: dict[str, Counter[Any]] = {"edges": Counter(), "nodes": Counter()}
    for at, (edges, vertices) in enumerate(there):
        now = {"edges": edges, "nodes": Counter(vertices.items())}
        for part in rows:
            change = Counter(now[part])
            change.subtract(before[part])
            rows[part] += [(*row, at, diff) for row, diff in change.items() if diff]
        before = now
    edges_frame = spark.createDataFrame(
        rows["edges"], "src long, dst long, kind string, time int, diff int")
    nodes_frame = spark.createDataFrame(rows["nodes"], "node long, kind string, time int, diff int")
    found = graphs.find(edges_frame, PATTERNS[4], nodes_frame)
    updates = [tuple(row) for row in found.to_df().collect()]
    for at, (edges, vertices) in enumerate(there):
        sums: Counter[Any] = Counter()
        for *row, time, diff in updates:
            sums[plain(row)] += diff if time <= at else 0
        expected = matches(PATTERNS[4], edges, known(edges, vertices))
        assert Counter({row: n for row, n in sums.items() if n}) == expected, at


def test_circles_of_three_are_networkxs(spark):
    graph = nx.gnp_random_graph(12, 0.3, seed=3, directed=True)
    edges = spark.createDataFrame(list(graph.edges), "src long, dst long")
    found = graphs.find(edges, "(a)-[]->(b); (b)-[]->(c); (c)-[]->(a)").where(
        "a.id < b.id and a.id < c.id")
    circles = {tuple(row.id for row in match) for match in found.at(0).collect()}

    def turned(circle: list[int]) -> tuple[int, ...]:
        first = circle.index(min(circle))
        return tuple(circle[first:] + circle[:first])

    assert circles == {turned(one) for one in nx.simple_cycles(graph, 3) if len(one) == 3}


def test_columns(spark):
    roads = DiffFrame(spark.createDataFrame(
        [("a", 3, "b", "x", 0, 1)],
        "`from.city` string, km long, to string, `time` string, at int, n int",
    ), time="at", diff="n")
    names = {"src": "from.city", "dst": "to"}
    found = graphs.find(roads, "(x)-[e]->(y)", ["z"], **names)
    assert found.schema.simpleString() == (
        "struct<x:struct<id:string>,e:struct<src:string,dst:string,km:bigint,time:string>,"
        "y:struct<id:string>>"
    )
    assert found.select("E.KM", F.col("e.dst")).at(0).collect() == [(3, "b")]
    alone = graphs.find(roads, "(x)", ["z"], **names).select("x.id").at(0).collect()
    assert sorted(row.id for row in alone) == ["a", "b", "z"]


WRONG = {
    "": (1, "expected"),
    "(a)-[e]>(b)": (8, "'->'"),
    "(a)-[e]->(b); (b)-[e]->(c)": (20, "another edge"),
    "(a)-[a]->(b)": (6, "a node and of an edge"),
    "(a)-[]->(A)": (10, "case"),
    "!(a)-[e]->(b)": (7, "no name"),
    "!(a)": (5, "only edges can be negated"),
    "(a); ()-[]->()": (6, "has no name: name a node"),
    "(a);\n()": (6, "alone"),
    "(a);": (5, r"expected '\('"),
    "(a) (b)": (5, "';' or the end"),
    "(a)-[]-(b)": (7, "'->'"),
    "(a)-[e*2]->(b)": (7, r"'\]'"),
    "(__a)": (2, "are reserved"),
    "(ä)": (2, r"'\)'"),
}


@pytest.mark.parametrize("pattern", WRONG)
def test_what_is_no_pattern_is_told_with_the_place(spark, pattern):
    edges = spark.createDataFrame([(1, 2)], "src long, dst long")
    at, why = WRONG[pattern]
    with pytest.raises(SchemaError, match=rf"at character {at}, [\s\S]*{why}") as told:
        graphs.find(edges, pattern)
    shown, caret = str(told.value).split("\n")[1:3]
    assert caret.index("^") == at + 3 and len(shown) == len(pattern) + 4


def test_what_has_no_place_in_the_result_is_told(spark):
    edges = spark.createDataFrame([(1, 2, 3)], "a long, b long, src long")
    with pytest.raises(SchemaError, match="'src', and the result has 'a', 'b'"):
        graphs.find(edges, "(x)-[e]->(y)", src="a", dst="b")
    nodes = spark.createDataFrame([(1, 2)], "node long, id long")
    with pytest.raises(SchemaError, match="nodes have a column 'id', and the result has 'node'"):
        graphs.find(edges.select("a", "b"), "(x)", nodes, src="a", dst="b")
    with pytest.raises(SchemaError, match="this is a int"):
        graphs.find(edges, 7)
