"""Programs that are built again: their fingerprints, and the stored graph rebuilt over them.

    rebuilt(blueprint(graph), program) = graph                for an equal program
    a store opened with another program  ⟹  its answers equal those over the whole history

`tests/store/test_reopening.py` has the law for a store that is opened with the same program.
"""

from __future__ import annotations

import copy
import datetime
import enum
import functools
import importlib
import json
import logging
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter, deque
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import accumulate
from program_ops import ddl
from programs import Run, build, programs, schedules
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff import (
    Dataflow, Loop, NotReadableError, ProgramChangedError, StorageError,
)
from pyspark_diff.engine.blueprint import blueprint, rebuilt
from pyspark_diff.engine.description import described
from pyspark_diff.engine.fingerprint import fingerprints
from pyspark_diff.engine.graph import Graph
from pyspark_diff.engine.program import Program, written
from pyspark_diff.engine.subgraph import Subgraph

EXAMPLES = settings().max_examples
#: A time after all times of the schedules.
LAST = 1_000_000


def examples(share: float) -> settings:
    """A share of the run's examples."""
    return settings(max_examples=max(1, round(EXAMPLES * share)))


def program_of(flow: Dataflow) -> Program:
    """The program of a dataflow before its lowering."""
    return written([*flow._sinks, *flow._inputs.nodes()])


def shape(graph: Graph) -> Any:
    """A graph without its nodes."""
    numbers = graph.program.numbers

    def order(items: Any) -> Any:
        return [
            (order(item.items), [numbers[n] for n in item.leaves],
             [numbers[n] for n in item.outside])
            if isinstance(item, Subgraph) else numbers[item] for item in items
        ]

    return (
        str(graph.program), order(graph.order),
        [sorted(graph.wanted[node]) for node in graph.program.nodes],
        [graph.readings[node] for node in graph.program.nodes],
        [[numbers[reader] for reader in graph.readers[node]] for node in graph.program.nodes],
        sorted(numbers[node] for node in graph.sinks),
        [(type(node), node.kind, node.depth) for node in graph.program.nodes],
    )


@examples(0.5)
@given(data=st.data())
def test_a_graph_is_rebuilt_over_the_program_written_anew(spark, data):
    program = data.draw(programs())
    schedule = data.draw(schedules(program.inputs))
    keeps = {*range(len(program.inputs)), *data.draw(
        st.sets(st.integers(0, len(program.inputs) + len(program.ops) - 1)))}
    keyed = data.draw(st.sampled_from([(), (), (0,)]))
    if program.inputs[0][0][1] not in ("int", "bigint", "string"):
        keyed = ()
    with ExitStack() as stack:
        old, new = (
            stack.enter_context(Run(spark, program, keeps=keeps, keyed=keyed, runner="local"))
            for _ in range(2)
        )
        old.step(schedule[0])
        graph = old.flow._state.graph
        if graph is None:
            return  # there was nothing to do
        before = blueprint(graph, fingerprints(program_of(old.flow)))
        now = program_of(new.flow)
        prints = fingerprints(now)
        again = rebuilt(json.loads(json.dumps(before)), now, prints)
        assert again.added == again.dropped == again.reasons == ()
        assert shape(again.graph) == shape(graph)
        assert blueprint(again.graph, prints) == before


@pytest.mark.slow
@examples(0.5)
@given(data=st.data(), buckets=st.integers(1, 3), memory_rows=st.sampled_from([0, 4096]))
def test_a_store_is_opened_with_other_outputs(spark, data, buckets, memory_rows):
    """The store of a random program is opened with the same operators and other outputs."""
    program = data.draw(programs())
    schedule = data.draw(schedules(program.inputs))
    nodes = st.integers(0, len(program.inputs) + len(program.ops) - 1)
    outputs = st.sets(nodes, min_size=1, max_size=3)
    first = replace(program, outputs=tuple(sorted(data.draw(outputs))))
    others = sorted(data.draw(outputs))
    stops = data.draw(st.integers(1, len(schedule)))
    keeps = {*range(len(program.inputs)), *data.draw(st.sets(nodes))}
    options = {"runner": "local", "buckets": buckets}

    def second(flow):
        frames = build(program, [
            flow.input(f"in{i}", ddl(columns))[0] for i, columns in enumerate(program.inputs)
        ])
        for number in others:
            if frames[number]._node.loop is None:
                frames[number].keep(f"out{number}")

    with tempfile.TemporaryDirectory() as store, Run(
        spark, first, keeps=keeps, store=store, memory_rows=memory_rows, **options
    ) as run:
        for actions in schedule[:stops]:
            run.step(actions)
        run.flow.close()
        try:
            run.flow = Dataflow.open(store, second, spark=spark, on_change="extend", **options)
        except (NotReadableError, ProgramChangedError) as error:
            assert re.search("may look at the times|loop|leave", str(error)), error
            return
        run.sessions = [run.flow.session(f"in{i}") for i in range(len(program.inputs))]
        for actions in schedule[stops:]:
            for number, action, content in actions:
                if not run.closed[number]:
                    run._act(number, action, content)
        for session in run.sessions:
            session.close()
        run.flow.step()
        run._expected = {}
        for number in others:
            if f"out{number}" in run.flow:
                rows = run.flow[f"out{number}"].to_df().collect()
                updates = [(tuple(row[:-2]), row[-2], row[-1]) for row in rows]
                assert accumulate(updates, LAST) == run.expected(number, LAST), number


# Differences that change a fingerprint.


@pytest.fixture(scope="module")
def flows(spark):
    """A function that makes a new dataflow for a program."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(Dataflow(spark, runner="local"))


LIMIT = 3


def above(bound, step=1):
    return lambda row: [(row.k,)] * step if row.v > bound else []


def limited(row):
    return [(row.k,)] * LIMIT


def helped(row):
    return [(value(row),)]


def value(row):
    return row.v + 1


def other_value(row):
    return row.v + 2


class Rule:
    def __init__(self, least):
        self.least = least

    def __call__(self, row):
        return [(row.k,)] if row.v > self.least else []


def constant_one(value):
    return 1


#: Uses of each operator. No two do the same.
WAYS = {
    "input": [
        lambda f, p: f.input("a", "k int")[0], lambda f, p: f.input("b", "k int")[0],
        lambda f, p: f.input("a", "k long")[0], lambda f, p: f.input("a", "j int")[0],
        lambda f, p: f.input("a", "k int", key="k")[0],
    ],
    "keyed input": [
        lambda f, p: f.input("a", "k int, v int", key="k")[0],
        lambda f, p: f.input("a", "k int, v int", key="v")[0],
    ],
    "where": [
        lambda f, p: p.where("k > 1"), lambda f, p: p.where("k > 2"),
        lambda f, p: p.where("v > 1"), lambda f, p: p.where("k >= 1"),
        lambda f, p: p.where("k > 1.0"), lambda f, p: p.where("k > 1").where("k > 1"),
    ],
    "select": [
        lambda f, p: p.select("k"), lambda f, p: p.select("v"),
        lambda f, p: p.select(F.col("k").alias("v")), lambda f, p: p.select("k", "v"),
        lambda f, p: p.select(F.lit(1).alias("k")), lambda f, p: p.select(F.lit("k").alias("k")),
        lambda f, p: p.select(F.lit("1").alias("k")),
        lambda f, p: p.select((p["k"] + 1).alias("k")),
        lambda f, p: p.select(F.lit(b"ab").alias("k")),
        lambda f, p: p.select(F.lit(b"ac").alias("k")),
    ],
    "expressions of Spark": [
        lambda f, p: p.withColumn("x", F.col("k") * 1.5),
        lambda f, p: p.withColumn("x", F.col("v") * 1.5),
        lambda f, p: p.withColumn("x", p["k"] * 1.25),
        lambda f, p: p.withColumn("x", p["v"] * 1.25),
        lambda f, p: p.withColumn("y", F.col("k") * 1.5),
        lambda f, p: p.withColumn("x", F.col("k").cast("string")),
        lambda f, p: p.withColumn("x", F.col("k").cast("float")),
        lambda f, p: p.withColumn("x", F.when(p["k"] > 1, 1.5).otherwise(2.5)),
        lambda f, p: p.withColumn("x", F.when(p["k"] > 1, 2.5).otherwise(1.5)),
        lambda f, p: p.withColumn("x", F.transform(F.array("k"), lambda x: x + 1)),
        lambda f, p: p.withColumn("x", F.transform(F.array("k"), lambda x: x + 2)),
        lambda f, p: p.withColumn("x", F.expr("k * 1.5")),
        lambda f, p: p.withColumn("x", F.udf(constant_one, "int")("k")),
        lambda f, p: p.withColumn("x", F.udf(constant_one, "int")("v")),
        lambda f, p: p.fillna(1), lambda f, p: p.fillna(2), lambda f, p: p.fillna(1, ["k"]),
        lambda f, p: p.replace(1, 2), lambda f, p: p.replace(2, 1),
    ],
    "cases": [
        lambda f, p, n=n: p.withColumn("x", functools.reduce(
            lambda cases, i: cases.when(F.col("k") == i, i + n), range(12), F.when(p["v"] == 9, 0.5)
        )) for n in (0, 1)
    ],
    "flat_map": [
        lambda f, p: p.flat_map(lambda row: [(row.k,)], "k int"),
        lambda f, p: p.flat_map(lambda row: [(row.v,)], "k int"),
        lambda f, p: p.flat_map(lambda row: [(row.k, )], "k long"),
        lambda f, p: p.flat_map(above(1), "k int"), lambda f, p: p.flat_map(above(2), "k int"),
        lambda f, p: p.flat_map(above(1.0), "k int"), lambda f, p: p.flat_map(above(1, 2), "k int"),
        lambda f, p: p.flat_map(above(True), "k int"),
        lambda f, p: p.flat_map(lambda row, n=1: [(row.k,)] * n, "k int"),
        lambda f, p: p.flat_map(lambda row, n=2: [(row.k,)] * n, "k int"),
        lambda f, p: p.flat_map(lambda row: [(row.k,)] if row.k in {"a", "b"} else [], "k int"),
        lambda f, p: p.flat_map(lambda row: [(row.k,)] if row.k in {"a", "c"} else [], "k int"),
        lambda f, p: p.flat_map(Rule(1), "k int"), lambda f, p: p.flat_map(Rule(2), "k int"),
        lambda f, p: p.flat_map(functools.partial(above, 1), "k int"),
        lambda f, p: p.flat_map(functools.partial(above, 2), "k int"),
        lambda f, p: p.flat_map(limited, "k int"),
    ],
    "other functions": [
        lambda f, p: p.map_in_pandas(lambda it: it, "k int"),
        lambda f, p: p.map_in_pandas(lambda it: iter(it), "k int"),
        lambda f, p: p.mapInArrow(lambda it: it, "k int"),
        lambda f, p: p.transform(lambda df: df.where("k > 1")),
        lambda f, p: p.transform(lambda df: df.where("k > 2")),
        lambda f, p: p.threshold(lambda n: min(n, 1)),
        lambda f, p: p.threshold(lambda n: min(n, 2)),
        lambda f, p: p.arrange_by_key("k").reduce(lambda key, rows: [(1,)], "c int"),
        lambda f, p: p.arrange_by_key("k").reduce(lambda key, rows: [(2,)], "c int"),
        lambda f, p: p.arrange_by_key("v").reduce(lambda key, rows: [(1,)], "c int"),
    ],
    "aggregates": [
        lambda f, p: p.groupBy("k").agg(F.sum("v").alias("s")),
        lambda f, p: p.groupBy("v").agg(F.sum("v").alias("s")),
        lambda f, p: p.groupBy("k").agg(F.min("v").alias("s")),
        lambda f, p: p.groupBy("k").agg(F.max("v").alias("s")),
        lambda f, p: p.groupBy("k").agg(F.avg("v").alias("s")),
        lambda f, p: p.groupBy("k").agg(F.sum("v").alias("t")),
        lambda f, p: p.groupBy("k").agg(F.sum("v").alias("s"), F.count("v").alias("t")),
        lambda f, p: p.count(), lambda f, p: p.distinct(), lambda f, p: p.negate(),
        lambda f, p: p.consolidate(), lambda f, p: p.groupBy("k").count(),
    ],
    "joins": [
        lambda f, p, how=how: p.join(p.toDF("k", "w"), "k", how)
        for how in ("inner", "left", "right", "outer", "semi", "anti")
    ] + [
        lambda f, p: p.join(p.toDF("k", "w"), F.col("v") == F.col("w")),
        lambda f, p: p.join(p.toDF("k", "w").where("w > 1"), "k"),
        lambda f, p: p.toDF("k", "w").join(p, "k"),
    ],
    "constants": [
        lambda f, p, rows=rows, schema=schema: f.constant(rows, schema)
        for rows, schema in [
            ([(1, "a")], "k int, s string"), ([(1, "b")], "k int, s string"),
            ([(1, None)], "k int, s string"), ([(None, "a")], "k int, s string"),
            ([(1, "a")], "k long, s string"), ([(1, "a")], "k int, t string"),
            ([(1, "a"), (1, "a")], "k int, s string"), ([], "k int, s string"),
            ([([1, None],)], "k array<int>"), ([([None, 1],)], "k array<int>"),
        ]
    ],
    "loops": [
        lambda f, p: turned(p), lambda f, p: turned(p, most=4),
        lambda f, p: turned(p, on_limit="error"), lambda f, p: turned(p, bound=4),
        lambda f, p: turned(p.where("k > 1")), lambda f, p: turned(turned(p)),
        lambda f, p: both(p, 1, 2), lambda f, p: both(p, 1, 3), lambda f, p: both(p, 3, 1),
    ],
}


def turned(pairs, most=5, on_limit="return", bound=3):
    return pairs.iterate(
        lambda x: x.where(F.col("k") < bound).union(pairs).distinct(), most, on_limit
    )


def both(pairs, first_bound, second_bound):
    """The output of a loop with two variables."""
    with Loop(5, "return") as loop:
        first, second = loop.variable(pairs), loop.variable(pairs.where("v > 7"))
        after = first.set(second.where(F.col("k") > first_bound).union(pairs).distinct())
        second.set(first.where(F.col("k") > second_bound).distinct())
    return loop.leave(after)


def digest(flow, way):
    """The fingerprint of the node that a way builds in a new dataflow."""
    pairs, _ = flow.input("pairs", "k int, v int")
    node = way(flow, pairs)._node
    return fingerprints(written([node]))[node].digest


@pytest.mark.parametrize("operator", WAYS)
def test_whatever_differs_has_another_fingerprint(flows, operator):
    digests = [digest(flows(), way) for way in WAYS[operator]]
    assert len(set(digests)) == len(digests)
    assert [digest(flows(), way) for way in WAYS[operator]] == digests


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True)
class Bound:
    least: int
    most: int = field(default=9, compare=False)


def recursive(n):
    return n and other_recursive(n - 1)


def other_recursive(n):
    return n and recursive(n - 1)


#: Makers of values that are all different.
VALUES = [
    lambda: 1, lambda: True, lambda: 1.0, lambda: "1", lambda: b"1", lambda: None, lambda: -0.0,
    lambda: 0.0, lambda: (1,), lambda: [1], lambda: {1}, lambda: frozenset({1}), lambda: {1: 2},
    lambda: [1, [2]], lambda: [[1], 2], lambda: ("ab", "c"), lambda: ("a", "bc"),
    lambda: {"a": 1, "b": 2}, lambda: {"b": 2, "a": 1}, lambda: {"a", "b", "c"}, lambda: "\ud800",
    lambda: Colour.RED, lambda: Colour.BLUE, lambda: Bound(1), lambda: Bound(2),
    lambda: Bound(1, 2), lambda: Rule(1), lambda: Rule(2), lambda: Rule, lambda: Bound,
    lambda: datetime.date(2024, 1, 1), lambda: datetime.timedelta(1), lambda: Decimal("1.0"),
    lambda: Decimal("1.00"), lambda: re.compile("a" * 300), lambda: re.compile("a" * 301),
    lambda: re.compile("a", re.I), lambda: deque([1]), lambda: deque([2]), lambda: Counter("ab"),
    lambda: logging.getLogger("a"), lambda: logging.getLogger("b"), lambda: Path("/a/b"),
    lambda: np.array([1, 2]), lambda: np.array([1, 3]), lambda: np.array([1, 2], np.int8),
    lambda: np.array(["a", None], object), lambda: np.float64(1), lambda: pd.Series([1, 2]),
    lambda: pd.DataFrame({"a": [1, 2]}), lambda: pd.DataFrame({"b": [1, 2]}),
    lambda: pa.array([1, None]), lambda: pa.array([1, 0]), lambda: pa.table({"a": [1]}),
    lambda: pa.array([1, 2, 3])[:2], lambda: pa.array([1, 2, 3])[1:], lambda: pa.int32(),
    lambda: pa.schema([("a", pa.int32())]), lambda: T.IntegerType(), lambda: T.LongType(),
    lambda: T.Row(a=1), lambda: T.Row(b=1), lambda: len, lambda: "".join, lambda: math.sqrt,
    lambda: functools.partial(min, 1), lambda: functools.partial(min, 2), lambda: above(1),
    lambda: above(2), lambda: limited, lambda: recursive, lambda: Rule(1).__call__,
    lambda: Rule(2).__call__, lambda: F.col("a"), lambda: F.lit("a"), lambda: F.col("a").desc(),
    lambda: functools.lru_cache(value), lambda: functools.lru_cache(other_value), lambda: math,
    lambda: lambda n: n + 1, lambda: lambda n: n + 2, lambda: lambda n: n + 1.0,
    lambda: lambda n: [m for m in n if m], lambda: lambda n: [m for m in n if not m],
]


def test_values_are_told_apart_and_found_again(spark):
    descriptions = [described(make()) for make in VALUES]
    assert [described(make()) for make in VALUES] == descriptions
    counts = Counter(description.digest for description in descriptions)
    # The description of functions that call each other starts at the described function.
    assert all(count == 1 for count in counts.values()), [
        make() for make, description in zip(VALUES, descriptions) if counts[description.digest] > 1]
    assert not [description.unseen for description in descriptions if description.unseen]


def test_what_is_said_of_functions_makes_no_difference():
    def plain(row):
        """A text."""
        return row

    def commented(row):
        """Another text."""
        # And a line.
        return row

    assert described(plain) == described(commented)


@pytest.mark.parametrize("text", [
    "class one:\n    x: {0} = 1\n    def f(self, y: {0}) -> {0}:\n        return y + self.x",
    "@dataclass\nclass one:\n    x: {0} = 1",
    "class one(NamedTuple):\n    x: {0} = 1",
    "def one(row: {0}) -> {0}:\n    n: {0} = row\n    return n",
])
def test_annotations_make_no_difference(text):
    def described_with(kind):
        # Without the future of this module, as in a notebook.
        scope = {"__name__": "__main__", "dataclass": dataclass, "NamedTuple": NamedTuple}
        exec(compile(text.format(kind), "cell", "exec", dont_inherit=True), scope)
        return described(scope["one"])

    assert described_with("int") == described_with("str")


def test_many_names_of_one_function_take_no_time(tmp_path, monkeypatch):
    lines = ["def step_0(n): return n"]
    lines += [f"def step_{n}(n): return step_{n - 1}(n), step_{n - 1}(n)" for n in range(1, 60)]
    (tmp_path / "steps_of_a_test.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    steps = importlib.import_module("steps_of_a_test")
    assert described(steps.step_59) != described(steps.step_58)


def test_what_functions_name_is_a_part_of_them(flows, monkeypatch):
    ways = [lambda f, p: p.flat_map(limited, "k int"), lambda f, p: p.flat_map(helped, "k int")]
    before = [digest(flows(), way) for way in ways]
    monkeypatch.setitem(globals(), "LIMIT", 4)
    assert [a == b for a, b in zip(before, [digest(flows(), way) for way in ways])] == [
        False, True]
    monkeypatch.setitem(globals(), "value", other_value)
    assert digest(flows(), ways[1]) != before[1]


def test_names_of_loops_and_what_is_written_beside_make_no_difference(flows):
    plain = digest(flows(), lambda f, p: both(p, 1, 2))

    def with_loop(flow, pairs):
        turned(pairs).keep()
        return both(pairs, 1, 2)

    assert digest(flows(), with_loop) == plain
    flow = flows()
    pairs, _ = flow.input("pairs", "k int, v int")
    first, second = both(pairs, 1, 2)._node, both(pairs, 1, 2)._node
    prints = fingerprints(written([second, first]))
    assert prints[first] == prints[second] and prints[first].digest == plain


def test_rows_of_frames_are_compared_where_it_is_asked_for(flows, spark):
    def fingerprint(values, rows):
        # After a shuffle the rows are not local. Fingerprints always include local rows.
        frame = spark.createDataFrame(values, "k int, s string").repartition(1)
        node = flows().constant(frame)._node
        return fingerprints(written([node]), rows=rows)[node]

    rows, others = [(1, "a"), (2, None)], [(1, None), (2, "a")]
    assert fingerprint(rows, True) == fingerprint(rows[::-1], True) != fingerprint(others, True)
    assert fingerprint(rows, False) == fingerprint(others, False)
    assert "rows of a Spark frame" in fingerprint(rows, False).unseen[0]
    assert not fingerprint(rows, True).unseen


@pytest.mark.parametrize("captured, text", [
    (threading.Lock(), "class _thread.lock"), (object(), "class object"),
])
def test_what_is_not_compared_is_said(flows, captured, text):
    pairs, _ = flows().input("pairs", "k int")
    node = pairs.flat_map(lambda row: [(row.k,)] if captured else [], "k int")._node
    fingerprint = fingerprints(written([node]))[node]
    assert any(text in reason for reason in fingerprint.unseen), fingerprint.unseen
    shown = pairs.inspect(print)._node
    assert fingerprints(written([shown]))[shown].unseen


SCRIPT = '''
import sys
from pyspark.sql import functions as F
from pyspark_diff import Dataflow
from pyspark_diff.engine.fingerprint import fingerprints
from pyspark_diff.engine.program import written
from pyspark_diff.spark.session import session
LIMITS = {"a", "b", "c", "d"}
def known(row):
    """Keep the rows with a known string."""
    return [(row.k,)] if row.s in LIMITS and row.s in {"x", "y", "a"} else []
with Dataflow(session()) as flow:
    pairs, _ = flow.input("pairs", "k int, s string")
    flow.input("others", "k int, v string", key="k")[0].keep()
    mapped = pairs.flat_map(known, "k int").withColumn("x", F.col("k") * 1.5)
    more = pairs.select((pairs["k"] / 2).alias("h"), F.transform(F.array("k"), lambda x: x + 1))
    loop = pairs.select("k").iterate(lambda x: x.where("k < 3").union(pairs.select("k")).distinct())
    mapped.keep(), more.keep(), loop.keep()
    names = flow.constant([(1, "a"), (2, None)], "k int, t string")
    mapped.groupBy("k").agg(F.sum("x")).join(names, "k").keep()
    program = written([*flow._sinks, *flow._inputs.nodes()])
    prints = fingerprints(program)
    print([prints[node].digest for node in program.nodes])
'''


@pytest.mark.slow
def test_another_process_finds_the_same(tmp_path):
    shown = []
    for seed, shift in (("1", ""), ("2", "# a line\nPLACE = 1\n\n")):
        path = tmp_path / f"program{seed}.py"
        path.write_text(shift + SCRIPT)
        done = subprocess.run(
            [sys.executable, str(path)], env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, timeout=300,
        )
        assert done.returncode == 0, done.stderr
        shown.append(done.stdout)
    assert shown[0] == shown[1] and shown[0].count(",") > 20


# Programs that have changed.

BEFORE = [(k, v, w) for k in range(4) for v in range(3) for w in range(1, 3)]
BEFORE += [(time, 0, 0) for time in range(3)]
AFTER = [(1, 1, 1), (5, 2, 0), (2, 0, 7)]


def feed(flow, steps):
    """Insert and remove the rows of some steps, and take these steps."""
    for time in steps:
        flow.session("rows").insert(BEFORE if time == 0 else AFTER)
        flow.session("rows").remove([(time, 0, 0)])
        flow.session("others").insert([(time, time)])
        flow.advance_to(time + 1)


class Case:
    """A program that has run with a store, and a second program that continues the store."""

    def __init__(self, spark, first, second):
        self._stack = ExitStack()
        self._spark, self._second = spark, second
        self._store = self._stack.enter_context(tempfile.TemporaryDirectory())
        with self.opened(first) as old:
            feed(old, [0, 1])
            self.before = old._state.graph
            content = blueprint(self.before, fingerprints(program_of(old)), named(old))
        self.blueprint = json.loads(json.dumps(content))
        self.new = self.flow(second)
        now = program_of(self.new)
        self.result = rebuilt(self.blueprint, now, fingerprints(now), named(self.new))

    def flow(self, program):
        flow = self._stack.enter_context(Dataflow(self._spark, runner="local", buckets=2))
        written_in(flow, program)
        return flow

    def opened(self, program):
        return Dataflow.open(
            self._store, lambda flow: written_in(flow, program), spark=self._spark,
            on_change="extend", runner="local", buckets=2,
        )

    def check_continuation(self):
        """The kept collections equal those of the second program with the whole history."""
        feed(self.new, [0, 1, 2])
        with self.opened(self._second) as flow:
            feed(flow, [2])
            for name in self.new._kept_names():
                ours, theirs = (
                    sorted(each[name].at().collect(), key=repr) for each in (flow, self.new)
                )
                assert ours == theirs and ours, name
            nodes = set(flow._state.graph.program.nodes)
            assert set(flow._state.traces) <= nodes and set(flow._state.frontiers) <= nodes

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()


def written_in(flow, program):
    rows, _ = flow.input("rows", "k int, v int, w int")
    others, _ = flow.input("others", "k int, o int")
    program(flow, rows, others)


def named(flow):
    return {
        flow._outputs._sinks[frame._node]: name for name, frame in flow._outputs._named.items()
    }


def summed(by="k", column="v"):
    return lambda flow, rows, others: rows.groupBy(by).agg(F.sum(column).alias("s")).keep("sums")


def all_of(*programs):
    def program(flow, rows, others):
        for part in programs:
            part(flow, rows, others)

    return program


def keep_rows(flow, rows, others):
    rows.keep("rows")


def other_rows(flow, rows, others):
    others.keep("others")


def joined(flow, rows, others):
    rows.join(others, "k").keep("joined")


def joined_less(flow, rows, others):
    rows.join(others, "k").select("k", "o").keep("joined less")


def first_value(least, name="reduced"):
    def program(flow, rows, others):
        rows.arrange_by_key("k").reduce(
            lambda key, values: [(min(v[0] for v, _ in values) + least,)], "m int"
        ).keep(name)

    return program


def looped(bound, most=5):
    def program(flow, rows, others):
        rows.select("k").iterate(
            lambda x: x.where(F.col("k") < bound).select((F.col("k") + 1).alias("k")).union(
                rows.select("k")).distinct(),
            most, "return",
        ).keep("reached")

    return program


def shared(flow, rows, others):
    halves = rows.select((F.col("v") * 1.5).alias("h"))
    halves.count().keep("counts")
    halves.distinct().keep("halves")


#: First program, second program, number of new sinks, number of dropped sinks, and reasons.
CHANGES = {
    "nothing": (all_of(keep_rows, summed()), all_of(keep_rows, summed()), 0, 0, []),
    "shared": (shared, shared, 0, 0, []),
    "shared, and less": (all_of(shared, keep_rows), shared, 0, 1, None),
    "order": (all_of(keep_rows, summed()), all_of(summed(), keep_rows), 0, 0, []),
    "fewer": (all_of(keep_rows, summed()), summed(), 0, 1, ["'rows' is no longer in the program"]),
    "fewer columns": (
        all_of(joined, joined_less), joined_less, 0, 1, ["'joined' is no longer in the program"],
    ),
    "more": (keep_rows, all_of(keep_rows, summed()), 1, 0, ["'sums' is new"]),
    "more of what is arranged": (
        all_of(keep_rows, joined_less), all_of(keep_rows, joined_less, first_value(1)), 2, 0,
        ["arrange_by_key(k int, v int, w int) is new", "'reduced' is new"],
    ),
    "others": (keep_rows, summed(), 1, 1, ["'sums' is new", "'rows' is no longer in the program"]),
    "function": (
        all_of(keep_rows, first_value(1)), all_of(keep_rows, first_value(2)), 1, 1,
        ["reduce(k int, m int) changed: its function differs", "'reduced' is rebuilt"],
    ),
    "function of one of two": (
        all_of(keep_rows, first_value(1), first_value(1, "again")),
        all_of(keep_rows, first_value(1), first_value(2, "again")), 1, 1,
        ["reduce(k int, m int) changed: its function differs", "'again' is rebuilt"],
    ),
    "one of two": (
        all_of(first_value(1), first_value(1, "again")), first_value(1, "again"), 0, 1, None,
    ),
    "aggregate": (
        all_of(keep_rows, summed()), all_of(keep_rows, summed(column="w")), 1, 1,
        ["changed: its", "'sums' is rebuilt"],
    ),
    "loop": (
        all_of(keep_rows, looped(3)), all_of(keep_rows, looped(4)), 1, 1,
        ["where(k int) changed: its condition differs", "'reached' is rebuilt"],
    ),
    "limit": (
        all_of(keep_rows, looped(3)), all_of(keep_rows, looped(3, 6)), 1, 1,
        ["variable(k int) changed: its max_iterations differs", "'reached' is rebuilt"],
    ),
    "same loop": (all_of(looped(3), keep_rows), all_of(keep_rows, looped(3)), 0, 0, []),
    "unlike": (
        all_of(keep_rows, other_rows, summed()), all_of(keep_rows, looped(3), joined), 2, 2, None,
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_programs_that_changed_keep_what_did_not(spark, change):
    first, second, added, dropped, reasons = CHANGES[change]
    with Case(spark, first, second) as case:
        result = case.result
        assert (len(result.added), len(result.dropped)) == (added, dropped), result
        if reasons is not None:
            assert len(result.reasons) == len(reasons), result.reasons
            assert all(text in said for text, said in zip(reasons, result.reasons)), result.reasons
        stored = {
            number: node.stored(result.graph.wanted[node])
            for number, node in result.nodes.items() if hasattr(node, "stored")
        }
        assert stored == {
            number: case.before.program.nodes[number].stored(
                case.before.wanted[case.before.program.nodes[number]])
            for number in stored
        }
        case.check_continuation()


# A blueprint comes from a file, so its reader checks all fields.


def places_in(value: Any, path: tuple[Any, ...] = ()) -> Any:
    """The paths to all parts of a JSON value, and the empty path."""
    yield path
    if isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places_in(item, (*path, key))


def changed(value: Any, path: tuple[Any, ...], to: Any) -> Any:
    """A copy of a JSON value with another value at a path."""
    if not path:
        return to
    result = copy.copy(value)
    result[path[0]] = changed(value[path[0]], path[1:], to)
    return result


@pytest.fixture(scope="module")
def case(spark):
    with Case(spark, *[all_of(keep_rows, joined, summed(), looped(3))] * 2) as open_case:
        yield open_case


@pytest.mark.parametrize("new", [None, -1, 0, 3, 10**20, True, "enter", "x", [], [[1, 1]], {}])
def test_a_blueprint_that_is_damaged_is_refused_or_fits(case, new):
    program = program_of(case.new)
    prints = fingerprints(program)
    refused = 0
    for path in places_in(case.blueprint):
        try:
            result = rebuilt(changed(case.blueprint, path, new), program, prints)
        except StorageError as error:
            assert "is damaged" in str(error)
            refused += 1
            continue
        if result.graph is not None:
            str(result.graph.program)
    assert refused


@pytest.mark.parametrize("path, new, message", [
    (("format",), 2, "'format' of the blueprint is '2'"),
    (("nodes", 1, "form"), "os.system", "'form' of node 1"),
    (("nodes", 0, "inputs"), [3], "'inputs' of node 0"),
    (("sinks",), [0, 0], "occurs twice"),
    (("written", 0, "fingerprint"), "x" * 32, "'fingerprint' of written node 0"),
])
def test_what_is_wrong_with_a_blueprint_is_told(case, path, new, message):
    program = program_of(case.new)
    with pytest.raises(StorageError, match=message):
        rebuilt(changed(case.blueprint, path, new), program, fingerprints(program))


def test_fields_that_are_missing_are_told(case):
    program = program_of(case.new)
    prints = fingerprints(program)
    for path in places_in(case.blueprint):
        if path and isinstance(path[-1], str) and "parts" not in path[:-1]:
            damaged = copy.deepcopy(case.blueprint)
            holder = damaged
            for key in path[:-1]:
                holder = holder[key]
            del holder[path[-1]]
            if path[-1] == "name" and path[0] == "loops":
                rebuilt(damaged, program, prints)  # a name only serves readers
                continue
            with pytest.raises(StorageError, match=f"has no '{path[-1]}'"):
                rebuilt(damaged, program, prints)


def test_columns_that_were_kept_are_kept(case):
    """The stored columns are exactly those that the graph needs now."""
    program = program_of(case.new)
    prints = fingerprints(program)
    for number, node in enumerate(case.blueprint["nodes"]):
        if node["stored"] and len(node["stored"]) > len(node["key"]):
            path = ("nodes", number, "stored")
            with pytest.raises(StorageError, match="is damaged"):
                rebuilt(changed(case.blueprint, path, node["key"]), program, prints)


def test_functions_of_another_python_are_told(case):
    with Case(case._spark, *[all_of(keep_rows, first_value(n)) for n in (1, 2)]) as other:
        program = program_of(other.new)
        result = rebuilt(
            {**other.blueprint, "python": "3.9"}, program, fingerprints(program), named(other.new)
        )
        assert any("Python 3.9" in reason for reason in result.reasons), result.reasons
        assert not any("Python 3.9" in reason for reason in other.result.reasons)


def test_fingerprints_stay_what_they_were_when_functions_learn(flows):
    known: list[int] = []
    pairs, _ = flows().input("pairs", "k int")
    node = pairs.flat_map(lambda row: [(row.k,)] * len(known), "k int")._node
    before = fingerprints(written([node]))
    known.append(1)
    assert fingerprints(written([node]), before) == before
    assert fingerprints(written([node]))[node] != before[node]
