"""The law with DuckDB as the oracle.

    at every complete time t:  the output at t  =  the query over the inputs at t, as multisets

Queries are put together at random from joins, groups, sets and row numbers. A query is given to
the library as methods and to DuckDB as SQL; floats are compared by their first digits.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Callable

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Window
from pyspark.sql import functions as F
from test_law import examples

from pyspark_diff import Dataflow, DiffFrame

Rows = list[tuple[Any, ...]]
COLUMNS = "k int, x bigint, s string"
RECORDS = st.tuples(
    st.sampled_from([1, 2, 3, None]),
    st.sampled_from([0, 1, 2, 5, -4, None]),
    st.sampled_from(["a", "b", "Z", None]),
)


@dataclass(frozen=True)
class Query:
    """A collection with columns k, x and s, as SQL, and as a function of the two inputs."""

    sql: str
    program: Callable[[DiffFrame, DiffFrame], DiffFrame]


def leaf(number: int) -> Query:
    return Query(f"select k, x, s from in{number}", lambda *frames: frames[number])


#: The steps of a query: SQL with a place for one or two queries, and the same by the library.
ONE: dict[str, tuple[str, Callable[[DiffFrame], DiffFrame]]] = {
    "where": ("select * from ({0}) where x > 0 or s is null",
              lambda f: f.where("x > 0 or s is null")),
    "distinct": ("select distinct * from ({0})", lambda f: f.distinct()),
    "sum": (
        "select k, sum(x)::bigint x, max(s) s from ({0}) group by k",
        lambda f: f.groupBy("k").agg(F.sum("x").alias("x"), F.max("s").alias("s")),
    ),
    "count": (
        "select k, count(x) + count(*) x, s from ({0}) group by k, s",
        lambda f: f.groupBy("k", "s").agg(
            F.count("x").alias("n"), F.count("*").alias("m")
        ).select("k", (F.col("n") + F.col("m")).alias("x"), "s"),
    ),
    "least": (
        "select k, min(x) x, min(s) s from ({0}) group by k",
        lambda f: f.groupBy("k").agg(F.min("x").alias("x"), F.min("s").alias("s")),
    ),
    "distinct count": (
        "select k, count(distinct x) x, s from ({0}) group by k, s",
        lambda f: f.groupBy("k", "s").agg(F.countDistinct("x").alias("x")).select("k", "x", "s"),
    ),
    "first": (
        "select k, x, s from (select *, row_number() over (partition by k order by "
        "x desc nulls last, s asc nulls first) n from ({0})) where n <= 2",
        lambda f: f.top_k(2, [F.col("x").desc(), F.col("s").asc()], per="k"),
    ),
    "numbered": (
        "select k, n x, s from (select *, row_number() over (partition by s order by "
        "x asc nulls first, k asc nulls first) n from ({0})) where n <= 3",
        lambda f: f.top_k(3, ["x"], per="s", number="row_number").select(
            "k", F.col("row_number").cast("bigint").alias("x"), "s"
        ),
    ),
    "ranked": (
        "select k, r x, s from (select *, rank() over (partition by k order by "
        "s desc nulls last) r from ({0})) where r <= 2",
        lambda f: f.top_k(2, F.col("s").desc(), per="k", number="rank").select(
            "k", F.col("rank").cast("bigint").alias("x"), "s"
        ),
    ),
    "before": (
        "select k, lag(x) over (partition by s order by k asc nulls first, x asc nulls first) x, s "
        "from ({0})",
        lambda f: f.select("k", F.lag("x").over(
            Window.partitionBy("s").orderBy("k", "x")).alias("x"), "s"),
    ),
    "running": (
        "select k, (sum(x) over (partition by k order by s desc nulls last))::bigint x, s "
        "from ({0})",
        lambda f: f.withColumn(
            "x", F.sum("x").over(Window.partitionBy("k").orderBy(F.desc("s")))
        ),
    ),
    "placed": (
        "select rank() over (order by x asc nulls first)::int k, "
        "count(*) over (partition by s) x, s from ({0})",
        lambda f: f.select(
            F.rank().over(Window.orderBy("x")).alias("k"),
            F.count("*").over(Window.partitionBy("s")).alias("x"), "s",
        ),
    ),
    "whole": (
        "select max(k) k, count(*) x, min(s) s from ({0})",
        lambda f: f.agg(
            F.max("k").alias("k"), F.count("*").alias("x"), F.min("s").alias("s"), empty=True
        ),
    ),
}


def joined(how: str) -> Callable[[DiffFrame, DiffFrame], DiffFrame]:
    """A join on k and a comparison of x, with columns of both sides."""
    def join(a: DiffFrame, b: DiffFrame) -> DiffFrame:
        on = (F.col("a.k") == F.col("b.k")) & (F.col("a.x") <= F.col("b.x"))
        pairs = a.alias("a").join(b.alias("b"), on, how)
        if how in ("left_semi", "left_anti"):
            return pairs
        return pairs.select("a.k", "b.x", "a.s")
    return join


def using(how: str) -> Callable[[DiffFrame, DiffFrame], DiffFrame]:
    return lambda a, b: a.drop("s").join(b.drop("x"), "k", how)


_ON = "a.k = b.k and a.x <= b.x"
_USING = (
    "select k, x, s from (select k, x from ({{0}})) a {} join (select k, s from ({{1}})) b "
    "using (k)"
)
_PICKED = "select a.k, b.x, a.s from ({{0}}) a {} join ({{1}}) b on " + _ON
TWO: dict[str, tuple[str, Callable[[DiffFrame, DiffFrame], DiffFrame]]] = {
    **{f"join {how}": (_PICKED.format(how), joined(how))
       for how in ("inner", "left", "right", "full")},
    **{f"using {how}": (_USING.format(how), using(how))
       for how in ("inner", "left", "right", "full")},
    "semi": (f"select * from ({{0}}) a where exists (from ({{1}}) b where {_ON})",
             joined("left_semi")),
    "anti": (f"select * from ({{0}}) a where not exists (from ({{1}}) b where {_ON})",
             joined("left_anti")),
    "union all": ("select * from ({0}) union all select * from ({1})", lambda a, b: a.union(b)),
    "except": ("select * from ({0}) except select * from ({1})", lambda a, b: a.subtract(b)),
    "except all": ("select * from ({0}) except all select * from ({1})",
                   lambda a, b: a.exceptAll(b)),
    "intersect": ("select * from ({0}) intersect select * from ({1})",
                  lambda a, b: a.intersect(b)),
    "intersect all": ("select * from ({0}) intersect all select * from ({1})",
                      lambda a, b: a.intersectAll(b)),
}
#: The last step of some queries: aggregates that are no whole numbers, and those of many kinds.
LAST: dict[str, tuple[str, Callable[[DiffFrame], DiffFrame]]] = {
    "moments": (
        "select k, avg(x), var_samp(x), var_pop(x), stddev_samp(x), stddev_pop(x) from ({0}) "
        "group by k",
        lambda f: f.groupBy("k").agg(
            F.avg("x"), F.var_samp("x"), F.var_pop("x"), F.stddev("x"), F.stddev_pop("x")
        ),
    ),
    "truth": (
        "select s, bool_and(x > 0), bool_or(x > 0), count(*) filter (x > 0), sum(distinct x) "
        "from ({0}) group by s",
        lambda f: f.groupBy("s").agg(
            F.bool_and(F.col("x") > 0), F.bool_or(F.col("x") > 0), F.count_if(F.col("x") > 0),
            F.sum_distinct("x"),
        ),
    ),
    "lists": (
        "select k, list_sort(coalesce(list(x) filter (x is not null), [])), "
        "list_sort(coalesce(list(distinct s) filter (s is not null), [])) from ({0}) group by k",
        lambda f: f.groupBy("k").agg(F.collect_list("x"), F.collect_set("s")),
    ),
    "everything": (
        "select sum(x), min(x), avg(x), count(distinct s), count(*) from ({0})",
        lambda f: f.agg(
            F.sum("x"), F.min("x"), F.avg("x"), F.countDistinct("s"), F.count("*"), empty=True
        ),
    ),
}


@st.composite
def queries(draw: st.DrawFn) -> Query:
    """Two to four steps, more often on the last one's result."""
    steps = [leaf(0), leaf(1)]
    for _ in range(draw(st.integers(1, 3))):
        source = steps[-1] if len(steps) > 2 else steps[0]
        if draw(st.booleans()):
            sql, program = ONE[draw(st.sampled_from(sorted(ONE)))]
            steps.append(unary(sql, program, source))
        else:
            sql, pair_program = TWO[draw(st.sampled_from(sorted(TWO)))]
            steps.append(binary(sql, pair_program, source, draw(st.sampled_from(steps[:2]))))
    if draw(st.booleans()):
        sql, program = LAST[draw(st.sampled_from(sorted(LAST)))]
        steps.append(unary(sql, program, steps[-1]))
    return steps[-1]


def unary(sql: str, program: Callable[[DiffFrame], DiffFrame], source: Query) -> Query:
    return Query(sql.format(source.sql), lambda *frames: program(source.program(*frames)))


def binary(
    sql: str, program: Callable[[DiffFrame, DiffFrame], DiffFrame], source: Query, other: Query
) -> Query:
    return Query(
        sql.format(source.sql, other.sql),
        lambda *frames: program(source.program(*frames), other.program(*frames)),
    )


@st.composite
def histories(draw: st.DrawFn) -> list[list[tuple[Any, ...]]]:
    """The changes of both inputs at each time. Only present records are removed."""
    present: tuple[Rows, Rows] = ([], [])
    times = []
    for _ in range(draw(st.integers(2, 4))):
        changes: list[tuple[Any, ...]] = []
        for side in (0, 1):
            for record in draw(st.lists(RECORDS, max_size=5)):
                present[side].append(record)
                changes.append((side, record, 1))
            for _ in range(draw(st.integers(0, min(3, len(present[side]))))):
                at = draw(st.integers(0, len(present[side]) - 1))
                changes.append((side, present[side].pop(at), -1))
        times.append(changes)
    return times


def comparable(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.9g}")
    return tuple(map(comparable, value)) if isinstance(value, (list, tuple)) else value


def answers(sql: str, present: tuple[Counter, Counter]) -> Counter:
    """The rows that DuckDB returns."""
    with duckdb.connect() as db:
        for side in (0, 1):
            db.execute(f"create table in{side} (k int, x bigint, s varchar)")
            rows = list(present[side].elements())
            if rows:
                db.executemany(f"insert into in{side} values (?, ?, ?)", rows)
        return Counter(map(comparable, db.execute(sql).fetchall()))


def run(spark: Any, query: Query, history: list[list[tuple[Any, ...]]], step_times: int) -> None:
    """Step after every ``step_times`` times, and compare the output at each time."""
    with Dataflow(spark, runner="local", buckets=2) as flow:
        inputs = [flow.input(f"in{side}", COLUMNS) for side in (0, 1)]
        updates: list[tuple[Any, int, int]] = []
        query.program(inputs[0][0], inputs[1][0]).inspect(lambda r, t, d: updates.append((r, t, d)))
        present = (Counter(), Counter())
        expected = []
        for time, changes in enumerate(history):
            for side, record, diff in changes:
                inputs[side][1].update([(*record, time, diff)])
                present[side][record] += diff
            expected.append(answers(query.sql, present))
            for _, session in inputs:
                session.advance_to(time + 1)
                session.flush()
            if (time + 1) % step_times == 0 or time + 1 == len(history):
                flow.step()
        for time, wanted in enumerate(expected):
            actual: Counter = Counter()
            for record, at, diff in updates:
                actual[comparable(record)] += diff if at <= time else 0
            assert {r: n for r, n in actual.items() if n} == wanted, f"{query.sql} at {time}"


@examples(1.5)
@given(query=queries(), history=histories(), step_times=st.integers(1, 2))
def test_random_queries(spark, query, history, step_times):
    run(spark, query, history, step_times)


CHANGES = [
    [(0, (1, 5, "a"), 1), (0, (1, 5, "a"), 1), (0, (2, None, "b"), 1), (1, (1, 5, "b"), 1),
     (0, (None, 1, None), 1), (1, (None, 2, "a"), 1), (0, (1, 0, None), 1)],
    [(1, (2, 1, None), 1), (1, (1, 5, "b"), -1), (0, (1, 5, "a"), -1), (0, (2, 2, "Z"), 1)],
    [(0, (1, 0, None), -1), (0, (2, None, "b"), -1), (1, (1, 7, "a"), 1), (1, (1, 5, "a"), 2)],
    [(0, (1, 5, "a"), -1), (0, (2, 2, "Z"), -1), (0, (None, 1, None), -1)],
]


@pytest.mark.parametrize("name", [*ONE, *TWO, *LAST])
def test_each_kind(spark, name):
    if name in TWO:
        query = binary(*TWO[name], leaf(0), leaf(1))
    else:
        query = unary(*{**ONE, **LAST}[name], leaf(0))
    run(spark, query, CHANGES, 2)
