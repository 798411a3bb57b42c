"""Run by ci/support_matrix: the state of each operator and its cost of a change, measured.

Each operator is a program over two collections. It is run outside and inside of a loop, with
structs as times, and in a store that is closed and opened again; if one is refused the page says
so, and

    all answers of a program are the same, wherever it runs

The program writes docs/support-matrix.md. No line of it is written by hand.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

import pyspark_diff
from pyspark_diff import Dataflow, DiffError, DiffFrame, Loop, graphs
from pyspark_diff.dataflow.times import time_kind
from pyspark_diff.reasons import SCOPES

PAGE = Path(__file__).parent.parent / "docs/support-matrix.md"

Program = Callable[[DiffFrame, DiffFrame], DiffFrame]


def _single_record(key: tuple[Any, ...], values: Any) -> list[tuple[int]]:
    return [(len(values),)]


def _both(key: tuple[Any, ...], left: Any, right: Any) -> list[tuple[int]]:
    return [(len(left) - len(right),)]


def _rows(batches: Any) -> Any:
    yield from batches


def _interval(frame: DiffFrame, length: int) -> int | tuple[int, int]:
    """An interval of the times of a frame, in their first field if they are structs."""
    return (length, 0) if isinstance(time_kind(frame._node), T.StructType) else length


def _agg(*columns: Any) -> Program:
    return lambda p, q: p.groupBy("k").agg(*columns)


def _windowed(column: Any) -> Program:
    return lambda p, q: p.select("k", "v", column.alias("found"))


def _joined(how: str) -> Program:
    return lambda p, q: p.join(q, "k", how)


def _graph(algorithm: Any, *arguments: Any) -> Program:
    return lambda p, q: algorithm(p.toDF("src", "dst"), *arguments)


def _least(p: DiffFrame, q: DiffFrame) -> DiffFrame:
    return p.iterate(lambda x: p.union(x.toDF("k", "x").join(q, "k").select(
        F.col("w").alias("k"), F.col("x").alias("v"))).top_k(1, "v", per="k"))


@lru_cache
def programs() -> dict[str, dict[str, Program]]:
    """By groups and names the operators. ``p`` has columns k and v, ``q`` has k and w."""
    by, ordered = Window.partitionBy("k").orderBy("v"), Window.orderBy("v", "k")
    return {
        "Without state": {
            "`select`, `withColumn`, `drop`": lambda p, q: p.select((F.col("v") + 1).alias("v")),
            "the same with an expression that is not compiled":
                lambda p, q: p.select(F.soundex(F.col("v").cast("string")).alias("s")),
            "`where`": lambda p, q: p.where(F.col("v") > 3),
            "`flat_map`, `mapInPandas`": lambda p, q: p.mapInPandas(_rows, "k long, v long"),
            "`union`, `concat`": lambda p, q: p.union(q),
            "`negate`": lambda p, q: p.negate().negate(),
            "`weighted` by one column": lambda p, q: p.weighted("v"),
        },
        "Records": {
            "`consolidate`": lambda p, q: p.consolidate(),
            "`count`": lambda p, q: p.count(),
            "`distinct`": lambda p, q: p.distinct(),
            "`threshold`": lambda p, q: p.threshold(lambda n: min(n, 2)),
            "`exceptAll`": lambda p, q: p.exceptAll(q),
            "`intersectAll`": lambda p, q: p.intersectAll(q),
            "`subtract`": lambda p, q: p.subtract(q),
            "`intersect`": lambda p, q: p.intersect(q),
            "`assert_empty`, `assert_eq`": lambda p, q: p.where(F.col("v") < 0).assert_empty(),
        },
        "Joins": {
            **{f"`join`, {how}": _joined(how) for how in (
                "inner", "left", "right", "full", "left_semi", "left_anti")},
            "`join` by an equality and more":
                lambda p, q: p.join(q.toDF("o", "w"), (F.col("k") == F.col("o")) & (
                    F.col("v") < F.col("w"))),
            "`join` by a comparison":
                lambda p, q: p.join(q.toDF("o", "w"), F.col("v") < F.col("w")),
            "`join_interval`":
                lambda p, q: p.join_interval(q.toDF("o", "w"), "v", "w", lower=-1, upper=1),
            "`join_asof`": lambda p, q: p.join_asof(q, ("v", "w"), by="k"),
            "`join` with `hint(\"skew\")`": lambda p, q: p.hint("skew", "k", 1).join(q, "k"),
            "`crossJoin`": lambda p, q: p.crossJoin(q.toDF("o", "w").hint("broadcast")),
        },
        "Groups": {
            "sums, counts, averages, variances":
                _agg(F.sum("v"), F.count("*"), F.avg("v"), F.variance("v")),
            "covariances, regressions, `bit_xor`, `skewness`":
                _agg(F.covar_pop("v", "v"), F.regr_sxx("v", "v"), F.bit_xor("v"), F.skewness("v")),
            "`min`, `max`, `min_by`": _agg(F.min("v"), F.max("v")),
            "`median`, `percentile`": _agg(F.median("v")),
            "`count_distinct`": _agg(F.count_distinct("v")),
            "`collect_list`, `collect_set`": _agg(F.collect_list("v")),
            "`mode`": _agg(F.mode("v")),
            "`listagg`": _agg(F.listagg(F.col("v").cast("string"))),
            "`first`, `last`, `any_value`": _agg(F.first("v"), F.any_value("v")),
            "`rollup`, `cube`": lambda p, q: p.rollup("k").agg(F.sum("v").alias("v")),
            "`pivot` with values": lambda p, q: p.groupBy("k").pivot("v", [1, 2]).agg(F.count("v")),
            "`agg` of all, sums": lambda p, q: p.agg(F.sum("v").alias("v")),
            "`agg` of all, extremes": lambda p, q: p.agg(F.max("v").alias("v")),
            "`agg` of all, lists": lambda p, q: p.agg(F.collect_list("v").alias("v")),
            "`top_k` per key": lambda p, q: p.top_k(2, "v", per="k"),
            "`top_k` of all": lambda p, q: p.top_k(2, "v"),
            "`dropDuplicates(columns)`": lambda p, q: p.dropDuplicates(["k"]),
            "`reduce`": lambda p, q: p.reduce(_single_record, "n long", key="k"),
            "`cogroup`":
                lambda p, q: p.groupBy("k").cogroup(q.groupBy("k")).reduce(_both, "n long"),
        },
        "Windows": {
            "`lag`, `lead`": _windowed(F.lag("v").over(by)),
            "`lag`, `lead` ignoring nulls":
                _windowed(F.expr("lag(v, 2) ignore nulls over (partition by k order by v)")),
            "sums over some rows": _windowed(F.sum("v").over(by.rowsBetween(-2, 0))),
            "sums from the beginning": _windowed(
                F.sum("v").over(by.rowsBetween(Window.unboundedPreceding, 0))),
            "sums over a range": _windowed(F.sum("v").over(by.rangeBetween(-2, 0))),
            "`row_number`, `rank`, `ntile`": _windowed(F.rank().over(by)),
            "`row_number`, `rank` of the first":
                lambda p, q: p.withColumn("r", F.rank().over(by)).where("r <= 2"),
            "`first`, `last`": _windowed(F.first("v").over(by)),
            "any of them without `partitionBy`": _windowed(F.rank().over(ordered)),
        },
        "Times": {
            "`expire_after`": lambda p, q: p.expire_after(_interval(p, 100)),
            "`delay`": lambda p, q: p.delay(_interval(p, 1)),
        },
        "Loops": {
            "`iterate` over pairs of integers": _least,
            "`iterate` over other records":
                lambda p, q: p.select(F.col("k").cast("string").alias("k"), "v").iterate(
                    lambda x: x.union(x.select(
                        "k", F.least(F.col("v") + 1, F.lit(3)).alias("v"))).distinct()),
        },
        "Graphs": {
            "`degrees`": _graph(graphs.degrees),
            "`reachability`": _graph(graphs.reachability, [1]),
            "`bfs`": _graph(graphs.bfs, [1]),
            "`connected_components`": _graph(graphs.connected_components),
            "`strongly_connected_components`": _graph(graphs.strongly_connected_components),
            "`k_core`": _graph(graphs.k_core, 2),
            "`transitive_closure`": _graph(graphs.transitive_closure),
            "`triangles`": _graph(graphs.triangles),
            "`label_propagation`":
                lambda p, q: graphs.label_propagation(p.toDF("src", "dst"), rounds=2),
            "`pagerank`": lambda p, q: graphs.pagerank(p.toDF("src", "dst"), rounds=2),
        },
    }


def names() -> list[tuple[str, str]]:
    """All groups and names."""
    return [(group, name) for group, inner in programs().items() for name in inner]


#: The first records, and the later changes.
P = [(n % 4, n % 6) for n in range(24)]
Q = [(n % 5, n % 3 + 1) for n in range(10)]
COMES, GOES = (2, 5), (3, 1)

Answer = Counter[str]


@dataclass(frozen=True)
class Row:
    """A line of the page."""

    group: str
    name: str
    form: str
    keeps: str
    cost: str
    reasons: str
    loops: str
    structs: str
    stores: str


def build(
    p: DiffFrame, q: DiffFrame, place_in: Callable[[Program, DiffFrame, DiffFrame], DiffFrame]
) -> tuple[dict[str, DiffFrame], dict[str, str]]:
    """The kept frames of all accepted operators, and the error type of each refused one."""
    frames, refused = {}, {}
    for group, name in names():
        try:
            frames[name] = place_in(programs()[group][name], p, q)
            frames[name].keep(f"{group}: {name}")
        except DiffError as error:
            refused[name] = type(error).__name__
            frames.pop(name, None)
    return frames, refused


def _plainly(program: Program, p: DiffFrame, q: DiffFrame) -> DiffFrame:
    return program(p, q)


def _in_a_loop(program: Program, p: DiffFrame, q: DiffFrame) -> DiffFrame:
    with Loop() as loop:
        x = loop.variable(p)
        result = program(x, q)
        x.set(x)
    return loop.leave(result)


def answers_after_change(
    flow: Any, frames: dict[str, DiffFrame], times: Sequence[Any] = (1, 2)
) -> dict[str, Answer]:
    """The answers of operators after the first records and a change."""
    load(flow, times[0])
    change(flow, times[1])
    return answers(frames)


def load(flow: Any, time: Any) -> None:
    flow.session("p").insert(P)
    flow.session("q").insert(Q)
    flow.advance_to(time)


def change(flow: Any, time: Any) -> None:
    flow.session("p").insert([COMES])
    flow.session("p").remove([GOES])
    flow.advance_to(time)


def answers(frames: dict[str, DiffFrame]) -> dict[str, Answer]:
    """The present answers of operators."""
    return {
        # Lists and the like can be counted as texts only.
        name: Counter(map(str, frame.at().collect())) for name, frame in frames.items()
    }


def inputs(flow: Any) -> tuple[DiffFrame, DiffFrame]:
    """The two collections of a new or reopened dataflow."""
    return flow.input("p", "k long, v long")[0], flow.input("q", "k long, w long")[0]


def _places(
    spark: Any, folder: str, runner: str, *, run: bool
) -> tuple[dict[str, tuple[dict[str, Answer], Any]], dict[str, Any]]:
    """The answers and refusals of operators by place, and the explanation of each operator."""
    places: dict[str, Any] = {}
    explanations: dict[str, Any] = {}
    for place, place_in in (("plain", _plainly), ("loop", _in_a_loop)):
        with Dataflow(spark, runner=runner, buckets=2) as flow:
            frames, refused = build(*inputs(flow), place_in)
            if place == "plain":
                explanations = {name: frame.explain() for name, frame in frames.items()}
            places[place] = answers_after_change(flow, frames) if run else {}, refused
    with Dataflow(spark, runner=runner, buckets=2, time_type="struct<a: int, b: int>") as flow:
        frames, refused = build(*inputs(flow), _plainly)
        times = [(1, 0), (2, 0)]
        places["structs"] = answers_after_change(flow, frames, times) if run else {}, refused
    known: dict[str, Any] = {}

    def program(flow: Any) -> None:
        known["frames"], known["refused"] = build(*inputs(flow), _plainly)

    def opened() -> Any:
        return Dataflow.open(f"{folder}/store", program, spark=spark, runner=runner, buckets=2)

    with opened() as flow:
        if run:
            load(flow, 1)
    if run:
        with opened() as flow:
            change(flow, 2)
            places["store"] = answers(known["frames"]), known["refused"]
    return {**places, "store": places.get("store", ({}, known["refused"]))}, explanations


def _form(operators: Iterable[Any]) -> str:
    forms = {operator.form for operator in operators}
    if "loop" in forms:
        return "looped"
    return "keyed" if "keyed" in forms else "linear"


def rows(
    spark: Any, folder: str, runner: str = "local", *, run: bool = True,
    like: dict[str, Answer] | None = None,
) -> list[Row]:
    """All lines of the page; without `run` nothing is fed, and answers are not compared.

    Parameters
    ----------
    like : dict of str to Counter, optional
        What the answers are, or where it is empty, where they go.

    Raises
    ------
    AssertionError
        If an operator is refused in no loop, or gives something else in another place.
    """
    places, explained = _places(spark, folder, runner, run=run)
    plain, refused = places.pop("plain")
    assert not refused, refused
    if like is not None:
        assert like in ({}, plain), "answers differ between the runners"
        like.update(plain)
    for place, (other, _) in places.items():
        for name, answer in other.items():
            assert answer == plain[name], f"{name} differs in {place}"
    table = []
    for group, name in names():
        explanation = explained[name]
        # An arrangement that only reads use is no part of the operator.
        parts = [
            operator for operator in explanation.operators if operator.readers != ("at, to_df",)
        ]
        keeps = sum(operator.arranged_by is not None for operator in parts)
        scopes = {reason.scope for reason in explanation.reasons}
        worst = next((scope for scope in reversed(SCOPES) if scope in scopes), "change")
        codes = ", ".join(sorted(f"`{reason}`" for reason in set(explanation.reasons)))
        where = [
            "no" if name in places[place][1] else "yes" for place in ("loop", "structs", "store")
        ]
        table.append(Row(
            group, name, _form(parts), str(keeps or ""), worst, codes, *where,
        ))
    return table


_HEAD = """# Support matrix

`ci/support_matrix` runs each operator and writes this page, and a test compares the two. The
answers of an operator are the same on the driver and as jobs of Spark (`runner=`), in loops, with
structs as times, in stores, and over [Spark Connect](connect.md).

The columns are:

* *form*: a *linear* operator has no state. A *keyed* one looks up its state by keys. A *looped* one
  has iterations.
* *arrangements*: the number of indexed collections that only this operator needs.
* *a change costs as*: the rows that a changed row makes the operator process.
    * *change*: the changed rows of input and output, and the rows of their keys
    * *step*: as *change*, and a constant for each step
    * *output*: all rows that it emits
    * *iterations*: the iterations that the change alters
    * *group*: all records of a group
    * *state*: all stored records
* *reasons*: the codes of [explain](how-to/explain.md#reasons) for a cost above *change*.
* *loops*, *structs*, *stores*: whether the operator is allowed in a loop, with structs as times,
  and in a store that is closed and opened again.

The law of all operators is tested in `tests/law/test_law.py`. The command compares the answers of
the driver and of jobs, and `ci/connect` runs the test of this page over Spark Connect.
"""


def page(table: Iterable[Row]) -> str:
    """The page as Markdown."""
    lines, group = [_HEAD], ""
    for row in table:
        if row.group != group:
            group = row.group
            lines += [
                f"## {group}\n",
                "| operator | form | arrangements | a change costs as | reasons | loops | structs "
                "| stores |\n|---|---|---|---|---|---|---|---|",
            ]
        lines.append(
            f"| {row.name} | {row.form} | {row.keeps} | {row.cost} | {row.reasons} | {row.loops} | "
            f"{row.structs} | {row.stores} |"
        )
    return "\n".join(lines).replace("|\n## ", "|\n\n## ") + "\n"


def main() -> int:
    warnings.simplefilter("ignore", pyspark_diff.StaleWarning)
    spark = pyspark_diff.session("ci/support_matrix", master="local[2]", memory="1g")
    with tempfile.TemporaryDirectory(prefix="matrix-") as folder:
        standing_at: dict[str, Answer] = {}
        table = rows(spark, f"{folder}/local", like=standing_at)
        # The explanations and the answers do not depend on the runner.
        assert rows(spark, f"{folder}/spark", "spark", like=standing_at) == table
    spark.stop()
    PAGE.write_text(page(table), encoding="utf-8")
    print(page(table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
