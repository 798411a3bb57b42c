"""The law for many rows with random keys and texts, with DuckDB as the oracle.

    at every step:  the output at its end  =  the query over the inputs at its end, as multisets

Kernels process many rows in tables, partitions and threads. The random programs of other files have
few rows, and these queries have enough for all three.
"""

from __future__ import annotations

from typing import Callable

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from pyspark_diff import Dataflow, DiffFrame, graphs

#: The rows of a step (the next one removes some), and the numbers of their keys and texts.
ROWS, KEYS, TEXTS = 120_000, 30_000, 5_000
STEPS = 3

Query = Callable[[DiffFrame, DiffFrame], DiffFrame]
#: Few numbers that lie far apart.
FAR = "{} % 20000 * 400000000000000"
EDGES = "select distinct k % 4000 a, x % 4000 b from one"
QUERIES: dict[str, tuple[Query, str]] = {
    "count": (
        lambda left, right: left.select("k").count(), "select k, count(*) from one group by k"
    ),
    "count of pairs": (
        lambda left, right: left.select("k", "x").count(),
        "select k, x, count(*) from one group by k, x",
    ),
    "count of texts": (
        lambda left, right: left.select("s").count(), "select s, count(*) from one group by s"
    ),
    "distinct": (lambda left, right: left.distinct(), "select distinct k, x, s from one"),
    "difference": (
        lambda left, right: left.select("k").exceptAll(right.select("k")),
        "select k from one except all select k from two",
    ),
    "groups": (
        lambda left, right: left.groupBy("k").agg(
            F.sum("x"), F.min("x"), F.max("s"), F.countDistinct("x"), F.count("*")
        ),
        "select k, sum(x)::bigint, min(x), max(s), count(distinct x), count(*) from one group by k",
    ),
    "groups by text": (
        lambda left, right: left.groupBy("s").agg(F.sum("x"), F.max("k")),
        "select s, sum(x)::bigint, max(k) from one group by s",
    ),
    "first": (
        lambda left, right: left.top_k(2, [F.col("x").desc(), "s"], per="k"),
        "select k, x, s from (select *, row_number() over (partition by k order by x desc, s) n "
        "from one) where n <= 2",
    ),
    "join": (
        lambda left, right: left.join(right, "k"), "select k, x, s, y from one join two using (k)"
    ),
    "left join": (
        lambda left, right: left.join(right, "k", "left"),
        "select k, x, s, y from one left join two using (k)",
    ),
    "without": (
        lambda left, right: left.join(right, "k", "left_anti"),
        "select k, x, s from one where k not in (select k from two)",
    ),
    "reached": (
        lambda left, right: graphs.reachability(
            left.select(F.expr("k % 4000 src"), F.expr("x % 4000 dst")),
            left.select(F.expr("k % 4000 node")).where("node = 77"),
        ),
        f"with recursive e as ({EDGES}), reached as (select distinct k % 4000 node from one where "
        "k % 4000 = 77 union select b from e join reached on a = node) select * from reached",
    ),
    "distances": (
        lambda left, right: graphs.bfs(
            left.select(F.expr(f"{FAR.format('k')} src"), F.expr(f"{FAR.format('x')} dst")),
            right.where("k % 999 = 0").select(F.expr(f"{FAR.format('k')} node")),
        ),
        f"with recursive far as (select distinct {FAR.format('k')} node, 0::bigint d from two "
        f"where k % 999 = 0 union select {FAR.format('x')}, d + 1 from one join far "
        f"on {FAR.format('k')} = node where d < 60) select node, min(d) from far group by node",
    ),
}


class History:
    """The updates of each step, and the current rows of both inputs as state."""

    def __init__(self) -> None:
        random = np.random.default_rng(4)
        self._random = random
        self._keys = random.integers(-(2**62) - 2**61, 2**62 + 2**61, KEYS)
        self._texts = np.array([f"text {n * 2654435761 % 2**32:x}" for n in range(TEXTS)])
        self.one, self.two = self._some_of_one(0), self._some_of_two(0)

    def _some_of_one(self, rows: int) -> pa.Table:
        key, x, s = (self._random.integers(0, n, rows) for n in (KEYS, KEYS, TEXTS))
        # Some rows are there more than once.
        again = np.where(self._random.random(rows) < 0.5, 0, x)
        return pa.table({
            "k": self._keys[key], "x": self._keys[again] >> 20, "s": self._texts[s]
        })

    def _some_of_two(self, rows: int) -> pa.Table:
        key, y = self._random.integers(0, KEYS, rows), self._random.integers(0, 3, rows)
        return pa.table({"k": self._keys[key], "y": y * self._random.integers(0, 2, rows)})

    def step(self, at: int) -> list[pa.Table]:
        """The updates of one step, for each input."""
        tables = []
        for name, come in (("one", self._some_of_one(ROWS)), ("two", self._some_of_two(KEYS // 2))):
            there = getattr(self, name)
            goes = self._random.random(there.num_rows) < 0.3
            gone, stays = there.filter(pa.array(goes)), there.filter(pa.array(~goes))
            setattr(self, name, pa.concat_tables([stays, come]).combine_chunks())
            both = pa.concat_tables([gone, come])
            # Not all at one time: some are a little later than the others.
            times = np.where(self._random.random(both.num_rows) < 0.7, 2 * at, 2 * at + 1)
            diffs = np.repeat([-1, 1], [gone.num_rows, come.num_rows])
            both = both.append_column("time", pa.array(times))
            tables.append(both.append_column("diff", pa.array(diffs)))
        return tables


@pytest.mark.parametrize("name", QUERIES)
def test_against_duckdb(spark, name):
    query, sql = QUERIES[name]
    history, shown = History(), []
    with Dataflow(spark, runner="local", buckets=2) as flow:
        left, left_in = flow.input("one", "k long, x long, s string")
        right, right_in = flow.input("two", "k long, y long")
        probe = query(left, right).inspect(shown.append, by_table=True).probe()
        for at in range(STEPS):
            for session, updates in zip((left_in, right_in), history.step(at)):
                session.update(updates)
                session.advance_to(2 * at + 2)
                session.flush()
            flow.step_while(lambda: probe.less_than(2 * at + 2))
            check(history, shown, sql)


def check(history: History, shown: list[pa.Table], sql: str) -> None:
    database = duckdb.connect()
    database.execute("set threads = 2")
    for table, rows in (("one", history.one), ("two", history.two)):
        database.register(table, rows)
    database.register("updates", pa.concat_tables(shown))
    expected = database.sql(sql)
    count = len(expected.columns)
    columns = [f"c{n}" for n in range(count)]
    names = ", ".join(columns)
    shown_as = ", ".join([*columns, "time", "diff"])
    differences = database.sql(
        f"with u({shown_as}) as (from updates), e({names}) as ({sql}), both_of as ("
        f"select {names}, diff from u union all select {names}, -1 from e) "
        f"select {names}, sum(diff) from both_of group by {names} having sum(diff) <> 0 limit 5"
    ).fetchall()
    assert not differences
    assert database.sql(f"select count(*) > 100 from ({sql})").fetchall() == [(True,)]
