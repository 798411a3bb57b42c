"""Windows against DuckDB, which is given the same text, at each time of random histories."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as F
from test_law import examples
from test_law_sql import CHANGES, Query, histories, run

#: Functions with nothing but a place, which differ where rows tie, and which do not.
NUMBERS = ("row_number()", "ntile(3)")
RANKS = ("rank()", "dense_rank()", "percent_rank()", "cume_dist()")
OFFSETS = (
    "lag(x)", "lead(x)", "lag(x, 2)", "lead(s, 1, 'none')", "lag(x, 3, -1)", "lag(x, -1)",
    "lead(x, 0)",
)
#: Aggregates: what Spark is told, and DuckDB.
SUMS = {
    "sum(x)": "(sum(x) {})::bigint", "count(*)": "count(*) {}", "count(s)": "count(s) {}",
    "avg(x)": "avg(x) {}", "min(s)": "min(s) {}", "max(x)": "max(x) {}", "min(x)": "min(x) {}",
    "sum(x * 0.5D)": "sum(x * 0.5::double) {}",
    "count(x) filter (where x > 0)": "count(x) filter (where x > 0) {}",
    "stddev_pop(x)": "stddev_pop(x) {}",
}
ENDS = {
    "first(x)": "first_value(x) {}", "last(s)": "last_value(s) {}",
    "first_value(x) ignore nulls": "first_value(x ignore nulls) {}",
    "last(x) ignore nulls": "last_value(x ignore nulls) {}",
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
    """One expression, as Spark is told it and as DuckDB is."""

    spark: str
    duckdb: str


@st.composite
def windows(draw: st.DrawFn) -> Window:
    """A window whose result is the same however rows are ordered that tie."""
    every = ["k", "x", "s"]
    kind = draw(st.sampled_from(["number", "rank", "offset", "sum", "sum", "end"]))
    partition = draw(st.sampled_from([(), ("k",), ("k",), ("s",), ("k", "s")]))
    order = draw(st.permutations([name for name in every if name not in partition]))
    frame, ordered = "", True
    if kind == "rank":
        order = order[:draw(st.integers(1, len(order)))]
    if kind in ("sum", "end"):
        what = draw(st.sampled_from(["default", "rows", "range", "distance", "none"]))
        if what == "rows":
            frame = f"rows between {draw(st.sampled_from(ROWS))}"
        if what == "range":
            frame = f"range between {draw(st.sampled_from(ROWS[:1] + ROWS[3:4] + ROWS[8:9]))}"
        if what == "distance":
            frame = f"range between {draw(st.sampled_from(ROWS))}"
            order, partition = ["x"], partition if "x" not in partition else ()
        if what == "none":
            ordered, kind = False, "sum"
        if what in ("default", "range") and kind == "sum":
            order = order[:draw(st.integers(1, len(order)))]
        if what == "distance":
            kind = "sum"
    names = {
        "number": dict.fromkeys(NUMBERS), "rank": dict.fromkeys(RANKS),
        "offset": dict.fromkeys(OFFSETS), "sum": SUMS, "end": ENDS,
    }[kind]
    function = draw(st.sampled_from(sorted(names)))
    by = ", ".join(f"{name} {draw(st.sampled_from(WAYS))}" for name in order)
    parts = [
        f"partition by {', '.join(partition)}" if partition else "",
        f"order by {by}" if ordered else "", frame,
    ]
    over = f"over ({' '.join(part for part in parts if part)})"
    told = names[function] or function + " {}"
    if function.startswith(("row", "rank", "dense", "ntile")):
        told = f"({told})::int"
    return Window(f"{function} {over}", told.format(over))


def query(several: list[Window]) -> Query:
    sql = ", ".join(f"{window.duckdb} w{i}" for i, window in enumerate(several))
    columns = [F.expr(f"{window.spark} as w{i}") for i, window in enumerate(several)]
    return Query(f"select k, x, s, {sql} from in0", lambda f, _: f.select("k", "x", "s", *columns))


@examples(2)
@given(
    several=st.lists(windows(), min_size=1, max_size=4), history=histories(),
    every=st.integers(1, 4),
)
def test_random_windows(spark, several, history, every):
    run(spark, query(several), history, every)


OVER = "over (partition by k order by x desc nulls last, s asc nulls first)"
EACH = [
    *(Window(f"{name} {OVER}", f"{name} {OVER}") for name in (*NUMBERS, *RANKS, *OFFSETS)),
    *(Window(f"{name} {OVER}", told.format(OVER)) for name, told in {**SUMS, **ENDS}.items()),
]


@pytest.mark.parametrize("window", EACH, ids=lambda window: window.spark.partition(" over")[0])
def test_each_function(spark, window):
    run(spark, query([window]), CHANGES, 2)
