"""The law where there are many rows, whose keys and texts are anything, with DuckDB as the oracle.

    at every step:  the output at its end  =  the query over the inputs at its end, as multisets

Kernels treat many rows in other ways than few: in tables, partitions and threads. What the random
programs of other files show of these with few rows is shown here with as many as it takes.
"""

from __future__ import annotations

from typing import Callable

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from pyspark_diff import Dataflow, DiffFrame, graphs

#: Rows of a step, of which some go again in the next, and how many keys and texts they have.
ROWS, KEYS, TEXTS = 120_000, 30_000, 5_000
STEPS = 3

Query = Callable[[DiffFrame, DiffFrame], DiffFrame]
#: Few numbers that lie far apart.
FAR = "{} % 20000 * 400000000000000"
EDGES = "select distinct k % 4000 a, x % 4000 b from one"
QUERIES: dict[str, tuple[Query, str]] = {
    "count": (lambda one, two: one.select("k").count(), "select k, count(*) from one group by k"),
    "count of pairs": (
        lambda one, two: one.select("k", "x").count(),
        "select k, x, count(*) from one group by k, x",
    ),
    "count of texts": (
        lambda one, two: one.select("s").count(), "select s, count(*) from one group by s"
    ),
    "distinct": (lambda one, two: one.distinct(), "select distinct k, x, s from one"),
    "difference": (
        lambda one, two: one.select("k").exceptAll(two.select("k")),
        "select k from one except all select k from two",
    ),
    "groups": (
        lambda one, two: one.groupBy("k").agg(
            F.sum("x"), F.min("x"), F.max("s"), F.countDistinct("x"), F.count("*")
        ),
        "select k, sum(x)::bigint, min(x), max(s), count(distinct x), count(*) from one group by k",
    ),
    "groups by text": (
        lambda one, two: one.groupBy("s").agg(F.sum("x"), F.max("k")),
        "select s, sum(x)::bigint, max(k) from one group by s",
    ),
    "first": (
        lambda one, two: one.top_k(2, [F.col("x").desc(), "s"], per="k"),
        "select k, x, s from (select *, row_number() over (partition by k order by x desc, s) n "
        "from one) where n <= 2",
    ),
    "join": (
        lambda one, two: one.join(two, "k"), "select k, x, s, y from one join two using (k)"
    ),
    "left join": (
        lambda one, two: one.join(two, "k", "left"),
        "select k, x, s, y from one left join two using (k)",
    ),
    "without": (
        lambda one, two: one.join(two, "k", "left_anti"),
        "select k, x, s from one where k not in (select k from two)",
    ),
    "reached": (
        lambda one, two: graphs.reachability(
            one.select(F.expr("k % 4000 src"), F.expr("x % 4000 dst")),
            one.select(F.expr("k % 4000 node")).where("node = 77"),
        ),
        f"with recursive e as ({EDGES}), reached as (select distinct k % 4000 node from one where "
        "k % 4000 = 77 union select b from e join reached on a = node) select * from reached",
    ),
    "distances": (
        lambda one, two: graphs.bfs(
            one.select(F.expr(f"{FAR.format('k')} src"), F.expr(f"{FAR.format('x')} dst")),
            two.where("k % 999 = 0").select(F.expr(f"{FAR.format('k')} node")),
        ),
        f"with recursive far as (select distinct {FAR.format('k')} node, 0::bigint d from two "
        f"where k % 999 = 0 union select {FAR.format('x')}, d + 1 from one join far "
        f"on {FAR.format('k')} = node where d < 60) select node, min(d) from far group by node",
    ),
}


class History:
    """Update rows step by step, and the inputs as they stand. It holds state: both."""

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
        """The updates of one time, for each of the inputs."""
        found = []
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
            found.append(both.append_column("diff", pa.array(diffs)))
        return found


@pytest.mark.parametrize("name", QUERIES)
def test_against_duckdb(spark, name):
    query, sql = QUERIES[name]
    history, shown = History(), []
    with Dataflow(spark, runner="local", buckets=2) as flow:
        one, one_in = flow.input("one", "k long, x long, s string")
        two, two_in = flow.input("two", "k long, y long")
        probe = query(one, two).inspect(shown.append, by_table=True).probe()
        for at in range(STEPS):
            for session, updates in zip((one_in, two_in), history.step(at)):
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
    found = database.sql(
        f"with u({shown_as}) as (from updates), e({names}) as ({sql}), both_of as ("
        f"select {names}, diff from u union all select {names}, -1 from e) "
        f"select {names}, sum(diff) from both_of group by {names} having sum(diff) <> 0 limit 5"
    ).fetchall()
    assert not found
    assert database.sql(f"select count(*) > 100 from ({sql})").fetchall() == [(True,)]
