"""Windows against DuckDB, which is given the same text, at each time of random histories."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyspark
import pytest
from connect_server import in_sql_text
from hypothesis import given
from hypothesis import strategies as st
from oracle import normal, total
from pyspark.errors import AnalysisException
from pyspark.sql import Window as SparkWindow
from pyspark.sql import functions as F
from pyspark.sql import types as T
from test_law import examples
from test_law_sql import CHANGES, Query, histories, run

from pyspark_diff import thresholds
from pyspark_diff import (
    Dataflow,
    DiffError,
    DiffFrame,
    NegativeMultiplicityError,
    ProgramChangedError,
)
from pyspark_diff.kernels.consolidate import consolidate
from pyspark_diff.kernels.layout import Layout
from pyspark_diff.kernels.results import FloatSum, IntegerSum
from pyspark_diff.kernels.window_functions import (
    Listed, Nth, Offset, Picked, PlaceFunction, Summed,
)
from pyspark_diff.kernels.window_reach import FROM_HERE, UP_TO_HERE
from pyspark_diff.kernels.window_reach import WindowFrame as Frame
from pyspark_diff.operators.contract import Side
from pyspark_diff.operators.node import Keyed, Reader
from pyspark_diff.operators.top_k import TopKKernel
from pyspark_diff.operators.window import WindowKernel
from pyspark_diff.spark.schema import TimeType
from pyspark_diff.spark.window_text import WindowText, with_windows_replaced

#: Functions with nothing but a place, which differ where rows tie, and which do not.
NUMBERS = ("row_number()", "ntile(3)")
RANKS = ("rank()", "dense_rank()", "percent_rank()", "cume_dist()")
OFFSETS = (
    "lag(x)", "lead(x)", "lag(x, 2)", "lead(s, 1, 'none')", "lag(x, 3, -1)", "lag(x, -1)",
    "lead(x, 0)",
)
#: Functions that pass over nulls, in the SQL of Spark and of DuckDB.
PASSING = {
    "lag(x) ignore nulls": "lag(x ignore nulls) {}",
    "lag(x, 2) ignore nulls": "lag(x, 2 ignore nulls) {}",
    "lead(s, 1, 'none') ignore nulls": "lead(s, 1, 'none' ignore nulls) {}",
    "lead(x, 2, -1) ignore nulls": "lead(x, 2, -1 ignore nulls) {}",
}
#: Aggregates.
SUMS = {
    "sum(x)": "(sum(x) {})::bigint", "count(*)": "count(*) {}", "count(s)": "count(s) {}",
    "avg(x)": "avg(x) {}", "min(s)": "min(s) {}", "max(x)": "max(x) {}", "min(x)": "min(x) {}",
    "sum(x * 0.5D)": "sum(x * 0.5::double) {}",
    "count(x) filter (where x > 0)": "count(x) filter (where x > 0) {}",
    "stddev_pop(x)": "stddev_pop(x) {}",
}
if pyspark.__version__.startswith("4.1."):
    # Spark itself has no filters over windows there.
    del SUMS["count(x) filter (where x > 0)"]
ENDS = {
    "first(x)": "first_value(x) {}", "last(s)": "last_value(s) {}",
    "first_value(x) ignore nulls": "first_value(x ignore nulls) {}",
    "last(x) ignore nulls": "last_value(x ignore nulls) {}",
    "nth_value(x, 2)": "nth_value(x, 2) {}",
    "nth_value(s, 1)": "nth_value(s, 1) {}",
    "nth_value(x, 3) ignore nulls": "nth_value(x, 3 ignore nulls) {}",
    "collect_list(x)": "coalesce(list(x) filter (where x is not null) {}, [])",
}
ROWS = (
    "unbounded preceding and current row", "1 preceding and 1 following",
    "2 preceding and current row", "current row and unbounded following",
    "unbounded preceding and 1 preceding", "unbounded preceding and 2 following",
    "1 following and 2 following", "3 preceding and 2 preceding",
    "unbounded preceding and unbounded following", "2 preceding and unbounded following",
)
WAYS = ("asc nulls first", "asc nulls last", "desc nulls first", "desc nulls last")


@dataclass(frozen=True)
class Window:
    """One expression, in the SQL of Spark and of DuckDB."""

    spark: str
    duckdb: str


@st.composite
def windows(draw: st.DrawFn) -> list[Window]:
    """Windows whose results are the same however rows are ordered that tie.

    Equal rows may have different results, and then all windows share one order. The first of
    two equal rows in one order may be the second in another.
    """
    shared = draw(st.sampled_from([(), ("k",), ("k",), ("s",), ("k", "s")]))
    rest = draw(st.permutations([name for name in ("k", "x", "s") if name not in shared]))
    by = tuple(f"{name} {draw(st.sampled_from(WAYS))}" for name in rest)
    return draw(st.lists(window(shared, by), min_size=1, max_size=4))


@st.composite
def window(draw: st.DrawFn, partition: tuple[str, ...], by: tuple[str, ...]) -> Window:
    """A window with a partition, and with an order that may have ties."""
    names: dict[str, str | None]
    what = draw(st.sampled_from(["number", "offset", "rows", "rank", "range", "distance", "none"]))
    frame = ""
    if what == "number":
        names = dict.fromkeys(NUMBERS)
    elif what == "offset":
        names = {**dict.fromkeys(OFFSETS), **PASSING}
    elif what == "rows":
        names = {**SUMS, **ENDS}
        frame = f"rows between {draw(st.sampled_from(ROWS))}"
    else:
        names = dict(SUMS)
        partition = draw(st.sampled_from([(), ("k",), ("k",), ("s",), ("k", "s")]))
        rest = draw(st.permutations([name for name in ("k", "x", "s") if name not in partition]))
        if what == "distance":
            partition, rest = tuple(n for n in partition if n != "x"), ["x"]
            frame = f"range between {draw(st.sampled_from(ROWS))}"
        elif what == "rank":
            names = dict.fromkeys(RANKS)
        elif what == "range":
            limits = draw(st.sampled_from([None, ROWS[0], ROWS[3], ROWS[8]]))
            frame = f"range between {limits}" if limits else ""
        by = tuple(f"{name} {draw(st.sampled_from(WAYS))}" for name in rest)
        if what == "none":
            by = ()
        elif what == "range" and len(by) == len(rest) == 3 - len(partition):
            if draw(st.booleans()):
                names |= ENDS
            else:
                by = by[:draw(st.integers(1, len(by)))]
        elif what == "rank":
            by = by[:draw(st.integers(1, len(by)))]
    function = draw(st.sampled_from(sorted(names)))
    parts = [
        f"partition by {', '.join(partition)}" if partition else "",
        f"order by {', '.join(by)}" if by else "", frame,
    ]
    over = f"over ({' '.join(part for part in parts if part)})"
    text = names[function] or function + " {}"
    if function.startswith(("row", "rank", "dense", "ntile")):
        text = f"({text})::int"
    return Window(f"{function} {over}", text.format(over))


@contextmanager
def small() -> Iterator[None]:
    """Read only near rows, and few at once."""
    with thresholds.using(window_whole_rows_max=0, window_spare_rows=1, window_entries_max=5):
        yield


def query(several: list[Window]) -> Query:
    sql = ", ".join(f"{window.duckdb} w{i}" for i, window in enumerate(several))
    columns = [F.expr(f"{window.spark} as w{i}") for i, window in enumerate(several)]
    return Query(f"select k, x, s, {sql} from in0", lambda f, _: f.select("k", "x", "s", *columns))


@examples(2)
@given(
    several=windows(), history=histories(), step_times=st.integers(1, 4), near=st.booleans(),
)
def test_random_windows(spark, several, history, step_times, near):
    with small() if near else nullcontext():
        run(spark, query(several), history, step_times)


OVER = "over (partition by k order by x desc nulls last, s asc nulls first)"
EACH = [
    *(Window(f"{name} {OVER}", f"{name} {OVER}") for name in (*NUMBERS, *RANKS, *OFFSETS)),
    *(
        Window(f"{name} {OVER}", text.format(OVER))
        for name, text in {**SUMS, **ENDS, **PASSING}.items()
    ),
]


@pytest.mark.parametrize("window", EACH, ids=lambda window: window.spark.partition(" over")[0])
def test_each_function(spark, window):
    run(spark, query([window]), CHANGES, 2)


# The first places, which are found without the others.

PLACES = [
    ("row_number", "r = 1", 1), ("row_number", "r <= 2", 2), ("rank", "r < 3", 2),
    ("dense_rank", "2 >= r", 2), ("dense_rank", "r = 2", 2), ("rank", "r between 2 and 3", 3),
    ("row_number", "r in (3, 1)", 3), ("rank", "r < 2.5 and x > 0", 2), ("row_number", "r < 1", 1),
    ("dense_rank", "r <= 2 and r <= 1", 1), ("row_number", "cast(r as bigint) <= 2", 2),
    ("rank", "r <= null", 1), ("row_number", "r <=> 2", 2),
]


def kernels_of(node: Any) -> list[Any]:
    """The kernels of a node and of its inputs."""
    own = [node.kernel] if isinstance(node, (Keyed, Reader)) and node.kernel else []
    return [*own, *(kernel for source in node.inputs for kernel in kernels_of(source))]


@in_sql_text
@pytest.mark.parametrize(
    ("function", "condition", "most"), PLACES, ids=lambda value: str(value).replace(" ", "_")
)
@examples(1)
@given(
    history=histories(), step_times=st.integers(1, 4), ties=st.booleans(), descending=st.booleans()
)
def test_first_places(spark, function, condition, most, history, step_times, ties, descending):
    by = f"x {'desc nulls last' if descending else 'asc nulls first'}"
    by += "" if ties and function != "row_number" else ", s asc nulls first"
    over = f"over (partition by k order by {by})"
    duckdb = condition.replace("<=>", "is not distinct from")

    def program(f: DiffFrame, _: Any) -> DiffFrame:
        frame = f.withColumn("r", F.expr(f"{function}() {over}")).where(condition)
        (kernel,) = kernels_of(frame._node)
        assert isinstance(kernel, TopKKernel) and (kernel.k, kernel.mode) == (most, function)
        return frame.select("k", "r", "x", "s")

    sql = f"select k, ({function}() {over})::int as r, x, s from in0"
    run(spark, Query(f"select * from ({sql}) where {duckdb}", program), history, step_times)


@in_sql_text
def test_where_the_first_places_are_looked_for(spark):
    """The first places are found after operators of single records, and nowhere else."""
    frame = sales(spark)
    by = by_v()

    def first(frame: DiffFrame) -> int | None:
        (*_, kernel) = kernels_of(frame._node)
        return kernel.k if isinstance(kernel, TopKKernel) else None

    ranked = frame.select("k", F.upper("k").alias("up"), F.row_number().over(by).alias("r"))
    assert first(ranked.where("r <= 2")) == 2
    assert first(ranked.where(ranked["r"] <= 2)) == 2
    assert first(ranked.drop("k").withColumnRenamed("r", "place").where(F.col("place") == 1)) == 1
    assert first(ranked.where("up = 'A'").where("r < 2")) == 1
    assert first(ranked.where("R <= 2")) == first(ranked.alias("a").where(F.col("A.R") < 3)) == 2
    assert first(ranked.select("R", "UP").where("r <= 2")) == 2
    # One of the conditions is none that is compiled.
    assert first(ranked.where(F.col("r").isin(1, 4) & F.col("up").rlike("A"))) == 4
    for none in (
        ranked.where("r >= 2"), ranked.where("r <= 2 or up = 'A'"), ranked.where("up = 'A'"),
        ranked.withColumn("r", F.col("r") + 1).where("r <= 2"), ranked.where(f"r <= {2**31}"),
        ranked.where("not r <= 2"), ranked.where("cast(r as tinyint) <= 3"),
        ranked.groupBy("up").agg(F.max("r").alias("r")).where("r <= 2"),
        frame.withColumns({"r": F.row_number().over(by), "l": F.lead("v").over(by)}).where("r = 1"),
        frame.withColumn("r", F.ntile(2).over(by)).where("r = 1"),
        frame.withColumn("r", F.row_number().over(by)).withColumn(
            "next", F.lead("v").over(SparkWindow.orderBy("v"))).where("r = 1"),
    ):
        assert first(none) is None
    with Dataflow(spark) as flow:
        rows, _ = flow.input("in", "k string, v int")
        numbered = rows.withColumn("r", F.row_number().over(by)).keep("kept")
        assert first(numbered.where("r = 1")) is None


def test_what_is_read_of_the_first_ones_breaks_no_ties_otherwise(spark):
    """Which records come first is not up to the columns that are looked at afterwards."""
    rows = [("k", 1, 9, 5, 0, 1), ("k", 2, 1, 6, 0, 1)]
    frame = DiffFrame(spark.createDataFrame(
        rows, "k string, a int, b int, c int, time int, diff int"
    ))
    by_k = SparkWindow.orderBy("k")
    for first in (
        frame.top_k(1, "k"), frame.dropDuplicates(["k"]), frame.top_k(1, "k", number="row_number"),
        frame.withColumn("r", F.row_number().over(by_k)).where("r = 1"),
    ):
        assert first.select("b").at(0).collect() == [(9,)]
        assert first.select("c").at(0).collect() == [(5,)]


# Windows in text, for a client that has no parser.

TEXTS = {
    "x - lag(x, 2) OVER (PARTITION BY k ORDER BY t DESC)": (
        "x - {0}", [("lag", ("x", "2"), False, False, None, ("k",), (("t", True, True),), None)]),
    "sum(DISTINCT f(y, ')')) filter (where x > 0) over() -- over (x)": (
        "{0}", [("sum", ("f(y, ')')",), True, False, "x > 0", (), (), None)]),
    "lag(v) ignore nulls over (order by v nulls last, `a,b` asc)/2": (
        "{0}/2", [("lag", ("v",), False, True, None, (),
                   (("v", False, True), ("`a,b`", False, False)), None)]),
    "first(x ignore nulls) over (partition by upper(k), 'a,b' rows 1 preceding) as s": (
        "{0} as s", [("first", ("x",), False, True, None, ("upper(k)", "'a,b'"), (),
                      (True, "-(1)", "0"))]),
    "nth_value(x, 2) respect nulls over (order by t desc nulls first range between interval 1 "
    "second preceding and unbounded following)": (
        "{0}", [("nth_value", ("x", "2"), False, False, None, (), (("t", True, False),),
                 (False, "-(interval 1 second)", None))]),
    "case when max(lag(v) over (order by v)) over (order by rank() over (order by x)) > 1 then "
    "count(*) over () end": (
        "case when {0} > 1 then {1} end", [
            ("max", ("lag(v) over (order by v)",), False, False, None, (),
             (("rank() over (order by x)", False, False),), None),
            ("count", ("*",), False, False, None, (), (), None)]),
    "x over y": ("x over y", []),
    "sum(x) over w": ("sum(x) over w", []),
    "'sum(x) over (order by y)' || over(x)": ("'sum(x) over (order by y)' || over(x)", []),
    "sum(x) over (order by y": ("sum(x) over (order by y", []),
    "sum(x) over (order by y groups 1 preceding)": (
        "{0}", [("sum", ("x",), False, False, None, (), (("y groups 1 preceding", False, False),),
                 None)]),
}


@pytest.mark.parametrize("text", TEXTS)
def test_windows_in_text(text):
    calls: list[WindowText] = []

    def replacement(call: WindowText, whole: str) -> str:
        assert whole in text
        calls.append(call)
        return f"{{{len(calls) - 1}}}"

    actual, expected = with_windows_replaced(text, replacement), TEXTS[text]
    assert " ".join(actual.replace("} /", "}/").split("--")[0].split()) == expected[0]
    assert calls == [WindowText(*parts) for parts in expected[1]]


# Near rows, against all rows of a key.

LONG = pa.int64()
FUNCTIONS = (
    Offset(LONG, "w", -1, 7), Offset(LONG, "w", 2, None),
    Picked(LONG, "max", "w", Frame(True, -2, 1), "w"),
    Summed(LONG, "w", IntegerSum(LONG, 0), Frame(True, 1, 2)),
    Picked(LONG, "last", "w", UP_TO_HERE[0], "w"), Picked(LONG, "first", "w", Frame(True, -1, -1)),
    Picked(LONG, "last", "w", UP_TO_HERE[1], "w"),
    Summed(LONG, "w", IntegerSum(LONG, 0), Frame(False, 0, 0)),
    Summed(LONG, "w", IntegerSum(LONG, 0), Frame(False, -3, 2)),
    Picked(LONG, "max", "w", Frame(False, 1, 4), "w"), Nth(LONG, "w", 2, Frame(True, -2, 1), "w"),
    Nth(LONG, "v", 3, Frame(False, -3, 2), None, 7), Nth(LONG, "w", -1, Frame(True, None, -1), "w"),
    Nth(LONG, "w", -2, Frame(True, None, -1), "w"), Nth(LONG, "w", 3, Frame(True, 1, None), "w", 7),
    Picked(LONG, "first", "w", FROM_HERE[0], "w"), Picked(LONG, "first", "w", FROM_HERE[1], "w"),
    Nth(LONG, "w", 2, UP_TO_HERE[1], "w"), Nth(LONG, "v", -2, Frame(True, None, -1), "v"),
)
#: By function, if near rows suffice for it, also together: the most rows that one change affects.
NEAR = (4, 6, 8, 8, 12, 4, 12, 2, 14, 12, 8, 14, 12, 12, 12, 12, 12)
RECORD = st.tuples(
    st.integers(0, 1), st.integers(0, 40), st.sampled_from([None, None, None, 1, 2])
)


@dataclass(frozen=True)
class Histories:
    """Old batches and new updates of records whose counts are never negative."""

    old: list[list[tuple[tuple, int, int]]]
    new: list[tuple[tuple, int, int]]


@st.composite
def batches(draw: st.DrawFn) -> Histories:
    counts: Counter = Counter()
    parts: list[list[tuple[tuple, int, int]]] = [[], [], [], []]
    for part, most in zip(parts, (40, 8, 4, 4)):
        changes = draw(st.lists(st.tuples(RECORD, st.integers(-2, 2)), max_size=most))
        for time, (record, diff) in enumerate(changes):
            count = max(counts[record] + diff, 0)
            part.append((record, time // 2, count - counts[record]))
            counts[record] = count
    return Histories(parts[:3], parts[3])


def updates(layout: Layout, rows: list, start: int):
    columns = [pa.array([r[0][i] for r in rows], LONG) for i in range(3)]
    times, diffs = (np.array([r[i] for r in rows], np.int64) for i in (1, 2))
    return consolidate(layout.encode(columns, times + start, diffs))


@examples(50)
@given(case=batches(), down=st.booleans(), last=st.booleans(), which=st.sets(
    st.sampled_from(range(len(FUNCTIONS))), min_size=1, max_size=3
))
def test_what_is_near_is_enough(case, down, last, which):
    layout = Layout((LONG,), value=Layout((LONG, LONG), ordering=((down, last), (False, False))))
    old = [updates(layout, rows, 100 * i).updates for i, rows in enumerate(case.old)]
    side = Side(old, [], updates(layout, case.new, 300), 0, layout, ("k", "v", "w"), 300)
    kernel = WindowKernel(
        ("k", "v", "w"), (("v", down),), tuple(FUNCTIONS[i] for i in sorted(which)),
        TimeType(T.LongType()),
    )
    wanted = range(3 + len(which))
    given_by = []
    for few in (0, 10**6):
        with small(), thresholds.using(window_whole_rows_max=few):
            (columns, times, diffs), read = kernel([side], None, wanted)
        total: Counter = Counter()
        for row in zip(*(c.to_pylist() for c in columns), times.tolist(), diffs.tolist()):
            total[row[:-1]] += row[-1]
        given_by.append(({row: n for row, n in total.items() if n}, read))
    assert given_by[0][0] == given_by[1][0]
    assert given_by[0][1] <= given_by[1][1]


def test_what_is_near_is_all_that_is_read():
    layout = Layout((LONG,), value=Layout((LONG, LONG), ordering=((True, True), (False, False))))
    rows = [((0, i, i % 5), 0, 1) for i in range(10_000)]
    old = [updates(layout, rows, 0).updates]
    new = [((0, 5_000, 0), 1, -1), ((0, 20_000, 0), 1, 1), ((0, 70, 9), 1, 1)]
    side = Side(old, [], updates(layout, new, 300), 0, layout, ("k", "v", "w"), 300)
    for number, most in enumerate(NEAR):
        # Each by itself, and with those before it.
        for functions in (FUNCTIONS[number:number + 1], FUNCTIONS[max(number - 3, 0):number + 1]):
            kernel = WindowKernel(
                ("k", "v", "w"), (("v", True),), functions, TimeType(T.LongType())
            )
            (_, _, diffs), read = kernel([side], None, range(3 + len(functions)))
            assert read < 200 and diffs.size <= 3 * (most if len(functions) == 1 else 50), functions


def test_what_is_looked_at_from_what_a_change_matters_to():
    """Rows after the next one with a value, as far as another function looks from there."""
    layout = Layout((LONG,), value=Layout((LONG, LONG), ordering=((False, True), (False, False))))
    for place in range(5_001, 5_030):
        rows = [((0, i, i if i == place or i % 50 > 30 else None), 0, 1) for i in range(10_000)]
        side = Side(
            [updates(layout, rows, 0).updates], [], updates(layout, [((0, 5_000, 1), 1, 1)], 300),
            0, layout, ("k", "v", "w"), 300,
        )
        kernel = WindowKernel(("k", "v", "w"), (("v", False),), (
            Picked(LONG, "last", "w", UP_TO_HERE[0], "w"), Offset(LONG, "v", 3, None),
        ), TimeType(T.LongType()))
        (columns, _, diffs), read = kernel([side], None, range(5))
        changed = list(zip(columns[1].to_pylist(), columns[4].to_pylist(), diffs.tolist()))
        assert read < 200 and len(changed) > 2 * (place - 5_000) - 2
        for value, lead, _ in changed:
            assert lead == value + 3 or 4_997 <= value <= 5_000


def test_what_a_change_with_a_value_matters_to_before_others():
    """A row comes after another one without a value, both at once."""
    layout = Layout((LONG,), value=Layout((LONG, LONG), ordering=((False, True), (False, False))))
    old = updates(layout, [((0, 1, 5), 0, 1), ((0, 4, 6), 0, 1)], 0).updates
    new = updates(layout, [((0, 2, None), 0, 1), ((0, 3, 7), 0, 1)], 300)
    side = Side([old], [], new, 0, layout, ("k", "v", "w"), 300)
    kernel = WindowKernel(("k", "v", "w"), (("v", False),), (
        Nth(LONG, "w", 2, Frame(True, 1, None), "w"),
    ), TimeType(T.LongType()))
    (columns, _, diffs), _ = kernel([side], None, range(4))
    changed = sorted(zip(columns[1].to_pylist(), columns[3].to_pylist(), diffs.tolist()), key=str)
    assert changed == [(1, 6, 1), (1, None, -1), (2, 6, 1), (3, None, 1)]


#: Also those that look at a whole partition.
ALL_FUNCTIONS = (
    *FUNCTIONS, *(PlaceFunction(LONG, name) for name in ("row_number", "rank", "dense_rank")),
    PlaceFunction(pa.float64(), "percent_rank"), PlaceFunction(pa.float64(), "cume_dist"),
    PlaceFunction(LONG, "ntile", 3),
    Picked(LONG, "min", "w", Frame(True, None, None), "w"),
    Picked(LONG, "max", "w", UP_TO_HERE[1], "w"), Picked(LONG, "min", "w", FROM_HERE[0], "w"),
    Picked(LONG, "last", "w", Frame(True, None, 2)), Picked(LONG, "last", "w", Frame(True, 1, 3)),
    Summed(LONG, "w", IntegerSum(LONG, 0), UP_TO_HERE[0]),
    Summed(LONG, "w", IntegerSum(LONG, 0), Frame(False, None, 1)),
    Nth(LONG, "v", 2, Frame(True, None, 1)), Nth(LONG, "v", -2, UP_TO_HERE[0]),
    Nth(LONG, "v", -2, Frame(True, None, None), "w", 7),
    Nth(LONG, "v", -1, UP_TO_HERE[0], "w"), Listed(pa.list_(LONG), "w", Frame(True, -1, 2)),
    Listed(pa.list_(LONG), "w", UP_TO_HERE[0]),
)


def result_of(function, rows: list[tuple], place: int, down: bool):
    """The result of a function of the row at a place, from its definition."""
    number = {"k": 0, "v": 1, "w": 2}
    values = [-row[1] if down else row[1] for row in rows]
    if isinstance(function, PlaceFunction):
        before = sum(value < values[place] for value in values)
        if function.name == "ntile":
            size, more = divmod(len(rows), function.parts)
            sizes = [size + (part < more) for part in range(function.parts)]
            return next(p + 1 for p in range(len(sizes)) if place < sum(sizes[:p + 1]))
        return {
            "row_number": place + 1, "rank": before + 1,
            "dense_rank": len({value for value in values if value <= values[place]}),
            "percent_rank": before / max(len(rows) - 1, 1),
            "cume_dist": sum(value <= values[place] for value in values) / len(rows),
        }[function.name]
    if isinstance(function, Offset):
        there = place + function.rows
        inside = 0 <= there < len(rows)
        return rows[there][number[function.column]] if inside else function.default
    low, high = function.frame.low, function.frame.high
    distances = [
        j - place if function.frame.rows else value - values[place]
        for j, value in enumerate(values)
    ]
    frame = [
        row for row, distance in zip(rows, distances)
        if (low is None or low <= distance) and (high is None or distance <= high)
    ]
    if getattr(function, "valid", None):
        frame = [row for row in frame if row[number[function.valid]] is not None]
    picked = [row[number[function.column]] for row in frame]
    there = [value for value in picked if value is not None]
    if isinstance(function, Nth):
        at = function.number - 1 if function.number > 0 else len(picked) + function.number
        return picked[at] if 0 <= at < len(picked) else function.default
    if isinstance(function, Listed):
        return tuple(there)
    if isinstance(function, Summed):
        return sum(there) if there else None
    if function.name in ("min", "max"):
        return {"min": min, "max": max}[function.name](there, default=None)
    return picked[0 if function.name == "first" else -1] if picked else None


def results_of(functions, records: Counter, down: bool, last: bool) -> Counter:
    """The rows of the window over records, each with how often it is there."""
    total: Counter = Counter()
    for key in {record[0] for record in records}:
        rows = sorted(
            (record for record in records.elements() if record[0] == key),
            key=lambda record: (-record[1] if down else record[1], record[2] or 0),
        )
        for place, row in enumerate(rows):
            total[(*row, *(result_of(function, rows, place, down) for function in functions))] += 1
    return total


def random_batches(chance: random.Random) -> Histories:
    """As `batches`, with some rows in each frame."""
    counts: Counter = Counter()
    parts: list[list[tuple[tuple, int, int]]] = [[], [], [], []]
    values = chance.choice([6, 20])
    for part, most in zip(parts, (chance.choice([5, 25]), 5, 3, 6)):
        for time in range(most):
            w = chance.choice([None, 1, 2, 3, 4])
            record = (chance.choice([0, 0, 1]), chance.randrange(values), w)
            count = max(counts[record] + chance.choice([-1, 1, 1, 2]), 0)
            part.append((record, time // 2, count - counts[record]))
            counts[record] = count
    return Histories(parts[:3], parts[3])


@examples(15)
@given(seed=st.integers(0, 2**32 - 1))
def test_results_are_those_of_the_definition(seed):
    chance = random.Random(seed)
    few, down, last = chance.choice([0, 10**6]), chance.random() < 0.5, chance.random() < 0.5
    case = random_batches(chance)
    which = chance.sample(range(len(ALL_FUNCTIONS)), chance.choice([1, 3, 9]))
    layout = Layout((LONG,), value=Layout((LONG, LONG), ordering=((down, last), (False, False))))
    old = [updates(layout, rows, 100 * i).updates for i, rows in enumerate(case.old)]
    side = Side(old, [], updates(layout, case.new, 300), 0, layout, ("k", "v", "w"), 300)
    functions = tuple(ALL_FUNCTIONS[i] for i in which)
    kernel = WindowKernel(("k", "v", "w"), (("v", down),), functions, TimeType(T.LongType()))
    with small(), thresholds.using(window_whole_rows_max=few):
        (columns, times, diffs), _ = kernel([side], None, range(3 + len(functions)))
    records: Counter = Counter()
    for record, _, diff in chain(*case.old):
        records[record] += diff
    before = results_of(functions, +records, down, last)
    lists = [i + 3 for i, function in enumerate(functions) if isinstance(function, Listed)]
    changes = [
        tuple(tuple(value) if i in lists else value for i, value in enumerate(row))
        for row in zip(*(column.to_pylist() for column in columns))
    ]
    for until in sorted({time for _, time, _ in case.new}):
        for record, time, diff in case.new:
            records[record] += diff if time == until else 0
        now = results_of(functions, +records, down, last)
        actual: Counter = Counter()
        for row, time, diff in zip(changes, times.tolist(), diffs.tolist()):
            actual[row] += diff if time <= 300 + until else 0
        now.subtract(before)
        assert {row: n for row, n in actual.items() if n} == {row: n for row, n in now.items() if n}


def test_a_sum_of_doubles_is_that_of_its_frame_alone():
    """Nothing is left of large numbers that were in the frames before."""
    layout = Layout((LONG,), value=Layout((LONG, pa.float64()), ordering=((False, False),) * 2))
    values = [1e200, 1e100, 1.0, 2.0, 3.0]
    rows = len(values)
    columns = [pa.array([0] * rows), pa.array(range(rows)), pa.array(values)]
    new = consolidate(layout.encode(columns, np.zeros(rows, np.int64), np.ones(rows, np.int64)))
    side = Side([], [], new, 0, layout, ("k", "v", "w"), 0)
    total = Summed(pa.float64(), "w", FloatSum(pa.float64(), 0), Frame(True, 0, 1))
    kernel = WindowKernel(("k", "v", "w"), (("v", False),), (total,), TimeType(T.LongType()))
    (outputs, _, _), _ = kernel([side], None, range(4))
    sums = dict(zip(outputs[1].to_pylist(), outputs[3].to_pylist()))
    assert sums == {0: 1e200, 1: 1e100, 2: 3.0, 3: 5.0, 4: 3.0}


# The window functions of a user.


def sales(spark) -> DiffFrame:
    rows = [("a", 1, 2.5, 0, 1), ("a", 3, 1.0, 0, 2), ("b", 2, None, 0, 1), ("a", 2, 0.5, 1, 1),
            ("a", 3, 1.0, 2, -1)]
    return DiffFrame(spark.createDataFrame(rows, "k string, v int, x double, time int, diff int"))


def as_spark(spark, frame: DiffFrame, make: Callable[[Any], Any]) -> None:
    """A function of a collection equals, at each time, the function of its accumulation."""
    result = make(frame)
    updates = [tuple(row) for row in result.to_df().collect()]
    input_updates = [tuple(row) for row in frame.to_df().collect()]
    for time in range(3):
        now, actual = (
            total((normal(row[:-2]), row[-1]) for row in rows if row[-2] <= time)
            for rows in (input_updates, updates)
        )
        plain = make(spark.createDataFrame(list(now.elements()), frame.schema))
        if not time:
            assert result.columns == plain.columns
            assert [f.dataType for f in result.schema] == [f.dataType for f in plain.schema]
        assert actual == total((normal(row), 1) for row in plain.collect()), time


def by_v() -> Any:
    return SparkWindow.partitionBy("k").orderBy(F.desc("v"))


IN_TEXT = [
    lambda f: f.select("v", F.expr("sum(v) over (order by date_add(date'2024-01-01', v) "
                                   "range between interval 1 day preceding and current row)")),
    lambda f: f.select("v", F.expr("count(*) over (order by timestamp_seconds(v) range between "
                                   "interval 1 second preceding and interval 2 second following)")),
    lambda f: f.select("v", F.expr("sum(v) over (order by x range between 1.5D preceding and 0.5D "
                                   "following)")),
    lambda f: f.select("v", F.expr("count(*) over (order by cast(v as decimal(6, 2)) desc range "
                                   "between 1.25 preceding and current row)")),
]


@pytest.mark.parametrize("make", [
    lambda f: f.withColumn("r", F.row_number().over(by_v())),
    lambda f: f.withColumn("V", F.lag("v", 1, 0).over(by_v())),
    lambda f: f.withColumns({
        "r": F.rank().over(by_v()), "x": F.sum("x").over(SparkWindow.orderBy("v", "x")),
        "k": F.lit(1),
    }),
    lambda f: f.select("*", F.row_number().over(by_v())),
    lambda f: f.select(F.col("v") - F.lag("v").over(by_v()), "k"),
    lambda f: f.select("k", F.sum("v").over(by_v()) / F.sum("v").over(
        SparkWindow.partitionBy("k"))),
    lambda f: f.selectExpr("k", "sum(V) over (partition by K order by V) as s"),
    lambda f: f.selectExpr(
        "1 + sum(lag(v, 1, 0) over (partition by k order by v, x)) over (partition by upper(k)) "
        "- max(v) OVER () AS `over`", "k"),
    lambda f: f.select(f["v"], F.max(f["x"]).over(SparkWindow.partitionBy(f["k"]))),
    lambda f: f.select("v", F.count("*").over(
        SparkWindow.partitionBy(F.upper("k"), F.col("v") % 2))),
    lambda f: f.select("v", F.avg("v").over(SparkWindow.orderBy(F.col("x") * 2, "v"))),
    lambda f: f.select("v", F.rank().over(SparkWindow.partitionBy("k").orderBy("k"))),
    lambda f: f.select("k", "v", F.row_number().over(by_v()).alias("r")).where("r <= 2").drop("r"),
    lambda f: f.select("v", F.sum("v").over(
        SparkWindow.partitionBy("v").orderBy("v").rangeBetween(-1, 0))),
    lambda f: f.select("v", F.sum(F.lag("v").over(by_v())).over(by_v())),
    lambda f: f.select("k", F.rank().over(SparkWindow.orderBy(
        F.sum("v").over(SparkWindow.partitionBy("x")), F.col("v") * 2)) + 1),
    lambda f: f.withColumn("d", F.col("v") - F.max(
        F.col("v") + F.row_number().over(by_v())).over(SparkWindow.partitionBy("k"))),
    lambda f: f.withColumns({
        "r": F.row_number().over(by_v()),
        "R2": F.count("*").over(SparkWindow.partitionBy(F.rank().over(by_v()), "k")),
    }),
    lambda f: f.select("v", F.nth_value("x", 2, True).over(by_v())),
    lambda f: f.select("v", F.array_sort(
        F.collect_list("x").over(SparkWindow.partitionBy("k"))).alias("l")),
    lambda f: f.select("v", F.array_agg("v").over(by_v().rowsBetween(-1, 0)).alias("l")),
    lambda f: f.alias("s").select(F.max("s.v").over(SparkWindow.partitionBy("s.k")).alias("m")),
    *IN_TEXT,
])
def test_windows_equal_those_of_spark(spark, make):
    as_spark(spark, sales(spark), make)


def test_over_a_join(spark):
    rows = [(1, 5, 0, 1), (1, 7, 0, 1), (2, 6, 0, 1), (1, 6, 1, 1)]
    frame = DiffFrame(spark.createDataFrame(rows, "k int, v int, time int, diff int"))
    a, b = frame.alias("a"), frame.alias("b")
    pairs = a.join(b, a["k"] == b["k"])
    by_name = SparkWindow.partitionBy("a.k", "a.v").orderBy(F.desc("b.v"))
    by_handle = SparkWindow.partitionBy(a["k"], a["v"]).orderBy(b["v"].desc())
    wanted = [(5, 7, None), (5, 5, 7), (7, 7, None), (7, 5, 7), (6, 6, None)]
    for over, columns in ((by_name, ("a.v", "b.v")), (by_handle, (a["v"], b["v"]))):
        lag = F.lag(columns[1]).over(over)
        selected = pairs.select(*columns, lag)
        assert sorted(map(tuple, selected.at(0).collect()), key=str) == sorted(wanted, key=str)
        more = pairs.withColumn("before", lag)
        assert more.columns == ["k", "v", "k", "v", "before"]
        named = more.select(*columns, "before")
        assert sorted(map(tuple, named.at(0).collect()), key=str) == sorted(wanted, key=str)


def test_records_that_are_equal_are_rows_of_their_own(spark):
    frame = DiffFrame(spark.createDataFrame([(7, 0, 3), (7, 1, -2)], "n int, time int, diff int"))
    over = SparkWindow.orderBy("n")
    result = frame.select("n", F.row_number().over(over).alias("r"), F.lag("n").over(over))
    assert sorted(result.at(0).collect(), key=str) == [(7, 1, None), (7, 2, 7), (7, 3, 7)]
    assert result.at(1).collect() == [(7, 1, None)]


def test_the_other_columns_break_ties(spark):
    rows = [("k", 1, "b", 0, 1), ("k", 1, None, 0, 1), ("k", 1, "a", 1, 1)]
    frame = DiffFrame(spark.createDataFrame(rows, "k string, v int, s string, time int, diff int"))
    result = frame.withColumn("r", F.row_number().over(SparkWindow.partitionBy("k").orderBy("v")))
    places = {row.s: row.r for row in result.at(1).collect()}
    assert places == {None: 1, "a": 2, "b": 3}


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: F.collect_set("v").over(by_v()), ("collect_set", "not maintained", "rank")),
        (
            lambda: F.approx_count_distinct("v").over(by_v()),
            ("approx_count_distinct", "not maintained", "count_if"),
        ),
        (lambda: F.expr("first(v) filter (where v > 1) over ()"), ("first", "FILTER")),
        (lambda: F.lead("v", 1).over(SparkWindow.orderBy("v")) + F.rand(), ("retracted",)),
        (
            lambda: F.count("v").over(SparkWindow.orderBy(F.expr("cast(v as decimal(38, 0))"))
                                      .rangeBetween(-1, 1)),
            ("decimal(38,0)", "64 bits"),
        ),
    ],
)
def test_what_is_refused(spark, make, parts):
    with pytest.raises(DiffError) as error:
        sales(spark).select(make())
    assert all(part in str(error.value) for part in parts), error.value


@pytest.mark.parametrize("make", [
    lambda: F.row_number().over(SparkWindow.partitionBy("k")),
    lambda: F.sum("nope").over(by_v()),
    lambda: F.sum("v").over(SparkWindow.partitionBy("nope")),
])
def test_errors_of_spark_get_through(spark, make):
    with pytest.raises(AnalysisException):
        sales(spark).withColumn("r", make())


def test_more_removed_than_there_was_is_refused(spark):
    rows = [("a", 1, 0, 1), ("a", 2, 3, -1)]
    frame = DiffFrame(spark.createDataFrame(rows, "k string, v int, time int, diff int"))
    result = frame.withColumn("r", F.row_number().over(by_v()))
    with pytest.raises(NegativeMultiplicityError, match=r"k='a', v=2.*time 3.*multiplicity -1"):
        result.at(3).collect()


@pytest.mark.parametrize("runner", ["local", "spark"])
def test_in_a_loop_and_across_applications(spark, runner, tmp_path):
    """Each record takes the place of the one before it, until all have the least."""

    def least(rows: list[tuple[str, int]]) -> list[tuple[str, int]]:
        return sorted((k, min(v for key, v in rows if key == k)) for k, _ in rows)

    def program(flow: Dataflow) -> None:
        frame, _ = flow.input("in", "k string, v int")
        by = SparkWindow.partitionBy("k").orderBy("v")

        def body(x: DiffFrame) -> DiffFrame:
            return x.select("k", F.lag(F.col("v"), 1).over(by).alias("l"), "v").select(
                "k", F.coalesce("l", "v").alias("v")
            )

        frame.iterate(body).keep("least")
        frame.withColumn("r", F.sum("v").over(by)).keep("sums")

    changes = [
        [("a", 3, 1), ("a", 1, 1), ("a", 2, 1), ("b", 5, 1)], [("a", 1, -1), ("b", 4, 2)],
        [("a", 2, -1), ("b", 4, -1)], [("a", 1, 1)],
    ]
    counts: Counter = Counter()
    for time, rows in enumerate(changes):
        with Dataflow.open(tmp_path, program, spark=spark, runner=runner, buckets=2) as flow:
            session = flow.session("in")
            session.update([(*row[:2], time, row[2]) for row in rows])
            flow.advance_to(time + 1)
            flow.step()
            for k, v, diff in rows:
                counts[k, v] += diff
            there = list(counts.elements())
            assert sorted(map(tuple, flow["least"].at(time).collect())) == least(there)
            sums = [(k, v, sum(w for key, w in there if key == k and w <= v)) for k, v in there]
            assert sorted(map(tuple, flow["sums"].at(time).collect())) == sorted(sums)

    def other(flow: Dataflow) -> None:
        frame, _ = flow.input("in", "k string, v int")
        frame.iterate(lambda x: x).keep("least")
        over = SparkWindow.partitionBy("k").orderBy("v").rowsBetween(-1, 0)
        frame.withColumn("r", F.sum("v").over(over)).keep("sums")

    with pytest.raises(ProgramChangedError, match="window"):
        Dataflow.open(tmp_path, other, spark=spark, runner=runner, buckets=2)
