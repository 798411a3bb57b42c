"""Graph algorithms with nodes of each type, while edges and nodes come and go.

    algorithm(edges with ids) at t  =  ids of (oracle on edges between the places of ids, at t)

Ids of each type are numbered in the order of Spark, and the oracles of `test_graphs` compute with
these numbers. Some edges have a null at an end, and a null is among the nodes and the roots. No
null is a part of the graph.
"""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import functions as F
from test_graphs import ALGORITHMS, LONG, PARTS, Snapshot, updates_of

from pyspark_diff import Dataflow

#: Ids of each type, as SQL text, in the order in which Spark sorts them.
IDS: dict[str, tuple[str, ...]] = {
    "boolean": ("false", "true"),
    "tinyint": ("-128Y", "-1Y", "0Y", "1Y", "5Y", "127Y"),
    "smallint": ("-32768S", "-1S", "0S", "7S", "300S", "32767S"),
    "int": ("-2147483648", "-1", "0", "1", "7", "2147483647"),
    "bigint": ("-9223372036854775807L", "-1L", "0L", "1L", "4294967296L", "9223372036854775807L"),
    "float": ("float('-Infinity')", "-1.5F", "0F", "1.5F", "float('Infinity')", "float('NaN')"),
    "double": ("double('-Infinity')", "-1.5D", "0D", "5e-324D", "1.5D", "double('NaN')"),
    "decimal(4,2)": ("-99.99", "-1.50", "0.00", "0.01", "1.50", "99.99"),
    "decimal(38,4)": ("-1234567890123456789012.5", "-1.5", "0", "0.0001", "18446744073709551616",
                      "1234567890123456789012.5"),
    "string": ("''", "'a'", "'a b'", "'b'", "'\u00e9'", "'\U0001f600'"),
    "binary": ("X''", "X'00'", "X'0001'", "X'01'", "X'80'", "X'ff'"),
    "date": ("DATE '0001-01-01'", "DATE '1969-12-31'", "DATE '1970-01-01'", "DATE '1970-01-02'",
             "DATE '2024-02-29'", "DATE '9999-12-31'"),
    "timestamp": ("TIMESTAMP '1900-01-01 00:00:00Z'", "TIMESTAMP '1969-12-31 23:59:59.999999Z'",
                  "TIMESTAMP '1970-01-01 00:00:00Z'", "TIMESTAMP '2024-02-29 01:02:03.000004Z'",
                  "TIMESTAMP '2026-11-01 05:30:00Z'", "TIMESTAMP '2026-11-01 06:30:00Z'"),
    "timestamp_ntz": ("TIMESTAMP_NTZ '0001-01-01'", "TIMESTAMP_NTZ '1969-12-31 23:59:59.999999'",
                      "TIMESTAMP_NTZ '1970-01-01'", "TIMESTAMP_NTZ '2024-02-29 01:02:03.000004'",
                      "TIMESTAMP_NTZ '2026-03-08 02:30:00'", "TIMESTAMP_NTZ '2100-01-01'"),
    "interval day to second": ("INTERVAL '-3' DAY", "INTERVAL '-1' HOUR", "INTERVAL '0' DAY",
                               "INTERVAL '0.000001' SECOND", "INTERVAL '1' HOUR",
                               "INTERVAL '3' DAY"),
    "struct<a:int,b:string>": ("struct(null, null)", "struct(null, 'b')", "struct(1, null)",
                               "struct(1, 'a')", "struct(1, 'b')", "struct(2, '')"),
    "array<int>": ("array()", "array(null)", "array(1)", "array(1, null)", "array(1, 2)",
                   "array(2)"),
}
#: All algorithms except `LONG`, which needs hundreds of rounds.
NAMES = sorted(set(ALGORITHMS) - LONG)
#: The columns of results with numbers that are not ids.
NUMBERS = {
    "distance", "in_degree", "out_degree", "degree", "triangles", "edges", "coefficient", "rank",
}


def history(size: int, seed: int = 5) -> list[Snapshot]:
    """Random changes of edges and nodes. The last state has one edge."""
    choice = random.Random(seed)
    places = [None, *range(size)]
    ends = [(a, b) for a in places for b in places]
    edges: Counter[Any] = Counter()
    states = []
    for _ in range(4):
        for edge in choice.sample(sorted(edges, key=repr), len(edges) // 2):
            del edges[edge]
        for a, b in choice.choices(ends, k=size + 3):
            edges[a, b, choice.randint(0, 3)] += 1
        some = [frozenset(choice.sample(places, 2)) for _ in range(2)]
        states.append(Snapshot(+edges, *some))
    last = next(edge for edge in edges if None not in edge)
    return [*states, Snapshot(Counter([last]), frozenset({last[0]}), frozenset({None}))]


def without_nulls(now: Snapshot) -> Snapshot:
    edges = Counter({edge: n for edge, n in now.edges.items() if None not in edge})
    return Snapshot(edges, now.roots - {None}, now.alone - {None})


def form(value: Any) -> Any:
    """A value that can be a key and equals itself."""
    return repr(value)


def check(spark: Any, kind: str, runner: str, names: list[str], ends: tuple[int, ...]) -> None:
    values = IDS[kind]
    texts = " ".join(f"WHEN {n} THEN CAST({value} AS {kind})" for n, value in enumerate(values))
    in_order = spark.range(len(values)).selectExpr(f"CASE id {texts} END AS v").sort("v")
    places = {form(row.v): n for n, row in enumerate(in_order.collect())}
    assert len(places) == len(values)
    states = history(len(values))
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        parts, sessions = {}, {}
        for part, columns in PARTS.items():
            numbered, sessions[part] = flow.input(part, columns)
            parts[part] = numbered.withColumns({
                name: F.expr(f"CASE {name} {texts} END")
                for name in numbered.columns if name != "weight"
            })
        graph = SimpleNamespace(**parts)
        outputs = {name: ALGORITHMS[name][0](graph).keep(name) for name in names}
        rows = {part: updates_of(states, part) for part in PARTS}
        first = 0
        for end in ends:
            for part, session in sessions.items():
                session.update([row for row in rows[part] if first <= row[-2] < end])
            flow.advance_to(end)
            now = without_nulls(states[end - 1])
            for name, output in outputs.items():
                shown = Counter(
                    tuple(value if column in NUMBERS or value is None else places[form(value)]
                          for column, value in zip(output.columns, row))
                    for row in output.at().collect())
                assert shown == Counter(map(tuple, ALGORITHMS[name][1](now))), (name, end)
            first = end


@pytest.mark.parametrize("kind", [
    kind if kind in ("boolean", "struct<a:int,b:string>")
    else pytest.param(kind, marks=pytest.mark.slow) for kind in IDS
])
def test_nodes_of_each_type(spark, kind):
    check(spark, kind, "local", NAMES, (1, 2, 3, 5))
