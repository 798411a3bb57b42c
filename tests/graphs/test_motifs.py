"""Motifs against all assignments of nodes and edges to a pattern's names, tried one by one.

    accumulate(find(updates, pattern), t) = matches(accumulate(updates, t), pattern)
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
    terms: list[Term | str] = []
    for text in "".join(pattern.split()).split(";"):
        parts = text.strip("!").replace("<", "").replace(">", "").split("-")
        names = [part.strip("()[]") for part in parts]
        if len(names) == 1:
            terms.append(names[0])
        else:
            first, edge, last = names[::-1] if "<" in text else names
            terms.append((text.startswith("!"), first, edge, last))
    return terms


def names_of(pattern: str) -> tuple[list[str], list[str]]:
    """All names in order, and the names of edges."""
    names: list[str] = []
    named: list[str] = []
    for text in "".join(pattern.split()).split(";"):
        for part in text.strip("!").replace("<", "").replace(">", "").split("-"):
            name = part.strip("()[]")
            if name and name not in names:
                names.append(name)
            if name and part.startswith("["):
                named.append(name)
    return names, named


def matches(pattern: str, edges: Counter[Edge], nodes: dict[int, str | None]) -> Counter[Any]:
    terms = terms_of(pattern)
    names, named = names_of(pattern)
    wanted = [term for term in terms if isinstance(term, tuple) and not term[0]]
    unwanted = [term for term in terms if isinstance(term, tuple) and term[0]]
    ways = {(src, dst) for src, dst, _ in edges}

    def bound(known: dict[str, Any], rest: list[Term]) -> Iterator[dict[str, Any]]:
        if not rest:
            yield known
            return
        _, first, edge, last = rest[0]
        for row in edges.elements():
            more = dict(known)
            if all(more.setdefault(name, end) == end
                   for name, end in ((first, row[0]), (last, row[1])) if name):
                if edge:
                    more[edge] = row
                yield from bound(more, rest[1:])

    counts: Counter[Any] = Counter()
    for known in bound({}, wanted):
        free = [name for name in names if name not in known and name not in named]
        for values in itertools.product(nodes, repeat=len(free)):
            here = {**known, **dict(zip(free, values))}
            if not any(
                here.get(first, src) == src and here.get(last, dst) == dst
                for _, first, _, last in unwanted for src, dst in ways
            ):
                counts[tuple(
                    here[name] if name in named else (here[name], nodes[here[name]])
                    for name in names
                )] += 1
    return counts


def plain(row: Any) -> Any:
    return tuple(tuple(x.values()) if isinstance(x, dict) else tuple(x) for x in row)


def history(seed: int) -> list[tuple[Counter[Edge], dict[int, str]]]:
    """Random changes of edges and of vertices with attributes."""
    choice = random.Random(seed)
    edges: Counter[Edge] = Counter()
    vertices: dict[int, str] = {}
    states = []
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
        states.append((Counter(edges), dict(vertices)))
    return states


def known(edges: Counter[Edge], vertices: dict[int, str]) -> dict[int, str | None]:
    ends = {node for edge in edges for node in edge[:2]}
    return {node: vertices.get(node) for node in ends | set(vertices)}


def at_random(choice: random.Random) -> str:
    """A pattern of few terms. The first one is not negated, which bounds the matches."""
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
    """With columns in another case, and with vertices without edges."""
    choice = random.Random(part)
    patterns = [*PATTERNS[part::4], *(at_random(choice) for _ in range(3))]
    there = history(part)
    results: list[Counter[Any]] = [Counter() for _ in patterns]

    def follower(counts: Counter[Any]) -> Any:
        def follow(updates: pa.Table) -> None:
            for *row, _, diff in zip(*(column.to_pylist() for column in updates.columns)):
                counts[plain(row)] += diff
        return follow

    with Dataflow(spark, runner="local") as flow:
        edges, edges_in = flow.input("edges", "SRC long, Dst long, kind string")
        vertices, vertices_in = flow.input("vertices", "kind string, ID long")
        graph = SimpleNamespace(edges=edges, vertices=vertices)
        for pattern, counts in zip(patterns, results):
            graphs.find(graph, pattern).inspect(follower(counts), by_table=True)
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
            for pattern, counts in zip(patterns, results):
                expected = matches(pattern, there_edges, nodes)
                assert Counter({row: n for row, n in counts.items() if n}) == expected, pattern


def test_at_every_time_of_a_history(spark):
    """All updates at once, with nodes next to edges."""
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
    result = graphs.find(edges_frame, PATTERNS[4], nodes_frame)
    updates = [tuple(row) for row in result.to_df().collect()]
    for at, (edges, vertices) in enumerate(there):
        sums: Counter[Any] = Counter()
        for *row, time, diff in updates:
            sums[plain(row)] += diff if time <= at else 0
        expected = matches(PATTERNS[4], edges, known(edges, vertices))
        assert Counter({row: n for row, n in sums.items() if n}) == expected, at


#: Patterns with alternatives or several edges in a term, and the directed patterns of each.
LONGER = {
    "(a)-[e]-(b)": ["(a)-[e]->(b)", "(b)-[e]->(a)"],
    "(a)-[]-(b); (b)-[f]->(c)": [
        "(a)-[]->(b); (b)-[f]->(c)", "(b)-[]->(a); (b)-[f]->(c)"],
    "(a)-[e]-()": ["(a)-[e]->()", "()-[e]->(a)"],
    "(a)<-[e]->(b)": ["(a)-[e1]->(b); (b)-[e2]->(a)"],
    "(a)<-[]->(b); !(b)-[]->(b)": ["(a)-[]->(b); (b)-[]->(a); !(b)-[]->(b)"],
    "(a)-[*2]->(b)": ["(a)-[]->(_ab1); (_ab1)-[]->(b)"],
    "(a)<-[e*2]-(b)": ["(b)-[_e1]->(_ba1); (_ba1)-[_e2]->(a)"],
    "(a)-[e*1..3]->(b)": [
        "(a)-[_e1]->(_ab1); (_ab1)-[_e2]->(_ab2); (_ab2)-[_e3]->(b)",
        "(a)-[_e1]->(_ab1); (_ab1)-[_e2]->(b)", "(a)-[_e1]->(b)"],
    "(u)-[e*1..2]-(v)": [
        "(u)-[_e1]->(_uv1); (_uv1)-[_e2]->(v)", "(u)-[_e1]->(v)",
        "(v)-[_e1]->(_vu1); (_vu1)-[_e2]->(u)", "(v)-[_e1]->(u)"],
    "(a)-[x]->(b); (b)-[*1..2]->(a); !(a)-[]-(c)": [
        "(a)-[x]->(b); (b)-[]->(_ba1); (_ba1)-[]->(a); !(a)-[]->(c); !(c)-[]->(a)",
        "(a)-[x]->(b); (b)-[]->(a); !(a)-[]->(c); !(c)-[]->(a)"],
    "()-[*2]->(b)": ["()-[]->(_b1); (_b1)-[]->(b)"],
}


@pytest.mark.parametrize("runner", ["local", pytest.param("spark", marks=pytest.mark.slow)])
def test_paths_and_edges_without_a_direction_step_by_step(spark, runner):
    """Edges vanish and return in one step, and some edges exist twice."""
    states = history(11)[:3]
    edges_before: Counter[Any] = Counter()
    nodes_before: Counter[Any] = Counter()
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        edges, edges_in = flow.input("edges", "src long, dst long, `a.b` string")
        vertices, vertices_in = flow.input("vertices", "id long, Name string")
        graph = SimpleNamespace(vertices=vertices, edges=edges)
        few = list(LONGER) if runner == "local" else ["(u)-[e*1..2]-(v)", "(a)<-[e]->(b)"]
        outputs = {
            pattern: graphs.find(graph, pattern).keep(f"m{number}")
            for number, pattern in enumerate(few)
        }
        for step, (now, named) in enumerate(states):
            people = Counter(named.items())
            edges_in.insert(list((now - edges_before).elements()))
            edges_in.remove(list((edges_before - now).elements()))
            edges_in.remove(list(now)[:1])
            edges_in.insert(list(now)[:1])
            vertices_in.insert(list((people - nodes_before).elements()))
            vertices_in.remove(list((nodes_before - people).elements()))
            edges_before, nodes_before = Counter(now), people
            flow.advance_to(step + 1)
            for pattern, frame in outputs.items():
                expected: Counter[Any] = Counter()
                for part in LONGER[pattern]:
                    names, _ = names_of(part)
                    for row, times in matches(part, now, known(now, named)).items():
                        here = dict(zip(names, row))
                        expected[tuple(here.get(name) for name in frame.columns)] += times
                actual = Counter(
                    tuple(None if each is None else tuple(each) for each in row)
                    for row in frame.at().collect())
                assert actual == expected, (pattern, step)


def path_at_random(choice: random.Random) -> tuple[str, list[str] | None]:
    """A pattern of paths, and the directed patterns of its branches; None if names clash."""
    terms, ways, pairs = [], [], {}
    clash = False
    for number in range(choice.randint(1, 3)):
        first, last = (choice.choice(["", "a", "b"]) for _ in range(2))
        label, lengths = choice.choice([("*2", [2]), ("*1..2", [2, 1]), ("", [1]), ("*2", [2])])
        edge = choice.choice(["", f"e{number}"]) if first or last else f"e{number}"
        left, right = choice.choice([("-", "->"), ("-", "->"), ("<-", "-"), ("-", "-")])
        terms.append(f"({first}){left}[{edge}{label}]{right}({last})")
        directions = [(first, last)] if right == "->" else [(last, first)]
        if left == right:
            directions = [(first, last), (last, first)]
        alternatives = []
        for src, dst in directions:
            # Only the paths of one pair of names share the nodes between.
            own = (src, dst) if src and dst else (number, src, dst)
            if max(lengths) > 1:
                clash = clash or pairs.setdefault(src + dst, own) != own
            between = f"h{src}{dst}" if src and dst else f"h{number}"
            for length in lengths:
                names = [src, *([between] if length == 2 else []), dst]
                edges = [f"_{edge}{n + 1}" if label and edge else edge for n in range(length)]
                alternatives.append(";".join(
                    f"({a})-[{name}]->({b})" for a, name, b in zip(names, edges, names[1:])))
        ways.append(alternatives)
    return ";".join(terms), None if clash else [";".join(some) for some in itertools.product(*ways)]


@pytest.mark.parametrize("seed", range(3))
def test_drawn_paths_are_right_after_each_step_or_refused(spark, seed):
    """With anonymous ends, whose paths have nothing in common."""
    choice = random.Random(seed)
    patterns = [path_at_random(choice) for _ in range(8)]
    right = {pattern: some for pattern, some in patterns if some is not None and len(some) < 9}
    with Dataflow(spark, runner="local", buckets=2) as flow:
        edges, session = flow.input("edges", "src long, dst long, kind string")
        for pattern, some in patterns:
            if some is None:
                with pytest.raises(SchemaError, match="between two pairs"):
                    graphs.find(edges, pattern)
        outputs = {
            pattern: graphs.find(edges, pattern).keep(f"m{number}")
            for number, pattern in enumerate(right)
        }
        now: Counter[Edge] = Counter()
        for step in range(2):
            going = choice.sample(sorted(now.elements()), now.total() // 3)
            coming = [(choice.randrange(4), choice.randrange(4), "x") for _ in range(5 - step)]
            session.remove(going)
            session.insert(coming)
            now = now + Counter(coming) - Counter(going)
            flow.advance_to(step + 1)
            nodes = {node: None for edge in now for node in edge[:2]}
            for pattern, frame in outputs.items():
                names = [name for name in frame.columns if name in ("a", "b") or "e" in name]
                actual = Counter(
                    tuple(None if each is None else tuple(each) for each in row)
                    for row in frame.at().select(*names).collect())
                expected: Counter[Any] = Counter()
                for branch in right[pattern]:
                    columns, named = names_of(branch)
                    for row, times in matches(branch, now, nodes).items():
                        here = {
                            name: value if name in named else value[:1]
                            for name, value in zip(columns, row)}
                        expected[tuple(here.get(name) for name in names)] += times
                assert actual == expected, (pattern, step)


def test_the_columns_of_a_path(spark):
    edges = spark.createDataFrame([(1, 2, "x")], "src long, dst long, kind string")
    paths = graphs.find(edges, "(a)-[e*1..2]->(b)")
    assert paths.columns == ["a", "_e1", "_ab1", "_e2", "b"]
    assert paths.schema["_e2"].dataType == paths.schema["_e1"].dataType
    assert [tuple(row) for row in paths.select("a.id", "_e1.kind", "_ab1").at(0).collect()] == [
        (1, "x", None)]


def test_circles_of_three_are_networkxs(spark):
    graph = nx.gnp_random_graph(12, 0.3, seed=3, directed=True)
    edges = spark.createDataFrame(list(graph.edges), "src long, dst long")
    result = graphs.find(edges, "(a)-[]->(b); (b)-[]->(c); (c)-[]->(a)").where(
        "a.id < b.id and a.id < c.id")
    circles = {tuple(row.id for row in match) for match in result.at(0).collect()}

    def turned(circle: list[int]) -> tuple[int, ...]:
        first = circle.index(min(circle))
        return tuple(circle[first:] + circle[:first])

    assert circles == {turned(circle) for circle in nx.simple_cycles(graph, 3) if len(circle) == 3}


def test_columns(spark):
    roads = DiffFrame(spark.createDataFrame(
        [("a", 3, "b", "x", 0, 1)],
        "`from.city` string, km long, to string, `time` string, at int, n int",
    ), time="at", diff="n")
    names = {"src": "from.city", "dst": "to"}
    result = graphs.find(roads, "(x)-[e]->(y)", ["z"], **names)
    assert result.schema.simpleString() == (
        "struct<x:struct<id:string>,e:struct<src:string,dst:string,km:bigint,time:string>,"
        "y:struct<id:string>>"
    )
    assert result.select("E.KM", F.col("e.dst")).at(0).collect() == [(3, "b")]
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
    "(a)-[]=(b)": (7, "'->'"),
    "(a)-[e*]->(b)": (8, "number of hops"),
    "(a)-[e*0]->(b)": (7, "at least 1"),
    "(a)-[*3..2]->(b)": (6, "goes up"),
    "(a)-[*1..]->(b)": (10, "number of hops"),
    "(a)-[*33]->(b)": (6, "at most 32"),
    "!(a)-[*2]->(b)": (7, "one hop"),
    "!(a)<-[]->(b)": (2, "one direction"),
    "(a)<-[e*2]->(b)": (7, "no name: write"),
    "(a)-[*2]->(bc); (ab)-[*2]->(c)": (23, "'_abc1' is a node between two pairs"),
    "(a)-[*2]->(); (a)-[*2]->()": (20, "'_a1' is a node between two pairs: name their ends"),
    "()-[e*2]->(); ()-[f*1..2]->()": (19, "'_1' is a node between two pairs: name their ends"),
    "(a)-[*1..9]->(b); (c)-[*1..9]->(d)": (1, "81 combinations"),
    "(a)-[*2]->(b); (_ab1)": (17, "between others"),
    "(_ab1); (a)-[*2]->(b)": (14, "another node"),
    "(e1)-[x]->(b); (b)<-[e]->(c)": (22, "a node and of an edge"),
    "(b)-[_e1]->(c); (a)-[e*2]->(b)": (22, "'_e1' is the name of another edge"),
    "(_e2)-[]->(c); (a)-[e*1..2]->(b)": (21, "'_e2' is the name of a node and of an edge"),
    "(a)<-[_e]->(b); (a)-[e*2]->(b)": (22, "'_e1' is the name of another edge"),
    "(__a)": (2, "are reserved"),
    "(ä)": (2, r"'\)'"),
}


@pytest.mark.parametrize("pattern", WRONG)
def test_what_is_no_pattern_is_told_with_the_place(spark, pattern):
    edges = spark.createDataFrame([(1, 2)], "src long, dst long")
    at, why = WRONG[pattern]
    with pytest.raises(SchemaError, match=rf"at character {at}, [\s\S]*{why}") as error:
        graphs.find(edges, pattern)
    shown, caret = str(error.value).split("\n")[1:3]
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
