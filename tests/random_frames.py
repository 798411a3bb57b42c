"""Random DataFrames over two frames, for comparison with plain Spark.

Each frame has columns ``a``, ``b`` (int) and ``s`` (string), so that the methods nest in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from pyspark.sql import Window
from pyspark.sql import functions as F

#: A frame of the two frames ``t`` and ``u``.
Build = Callable[[Any, Any], Any]

_CONDITIONS: list[Callable[[Any], Any]] = [
    lambda f: F.col("a") > 1, lambda f: "b BETWEEN 1 AND 4 OR s = 'y'",
    lambda f: f["s"].isNotNull(),
    lambda f: ~F.col("s").isin("x", "n"), lambda f: (f.a + f.b > 4) | F.col("s").startswith("y"),
    lambda f: F.col("a").eqNullSafe(F.col("b")),
]
_AGGREGATES: list[Callable[[], Any]] = [
    lambda: F.sum("b"), lambda: F.count("*"), lambda: F.min("b"), lambda: F.count_distinct("b"),
    lambda: F.max(F.col("a") + F.col("b")), lambda: F.expr("count(b) FILTER (WHERE s = 'x')"),
]
_WINDOWS: list[Callable[[], Any]] = [
    F.rank, lambda: F.sum("b"), lambda: F.lag("b"), lambda: F.count("*"),
]


def _whole(frame: Any) -> Any:
    """The frame with its columns in their order and types."""
    return frame.select(F.col("a").cast("int").alias("a"), F.col("b").cast("int").alias("b"), "s")


#: Frames of one frame, and a number that chooses among some.
ONE: list[Callable[[Any, int], Any]] = [
    lambda f, n: f.filter(_CONDITIONS[n % len(_CONDITIONS)](f)),
    lambda f, n: f.select((F.col("a") + n).alias("a"), F.when(f.b > 2, f.a).otherwise(f.b).alias(
        "b"), F.coalesce("s", F.lit("n")).alias("s")),
    lambda f, n: f.withColumn("b", F.col("a") * 2).withColumnRenamed("a", "c").withColumn(
        "a", F.col("c") - 1).drop("c").select("a", "b", "s"),
    lambda f, n: f.groupBy("a").agg(
        _AGGREGATES[n % len(_AGGREGATES)]().alias("b"), F.max("s").alias("s")),
    lambda f, n: f.groupBy("s", (F.col("a") % 2).alias("a")).agg(
        _AGGREGATES[n % len(_AGGREGATES)]().alias("b")).where("b > 0"),
    lambda f, n: f.agg(F.count("*").alias("a"), F.sum("b").alias("b"), F.min("s").alias("s")),
    lambda f, n: f.rollup("a", "s").agg(F.sum("b").alias("b")),
    lambda f, n: f.distinct(),
    lambda f, n: f.orderBy(F.desc("a"), "b", "s").limit(n + 1),
    lambda f, n: f.select("a", _WINDOWS[n % len(_WINDOWS)]().over(
        Window.partitionBy("a").orderBy("b", "s")).alias("b"), "s"),
    lambda f, n: f.select("a", F.explode(F.array("a", "b")).alias("b"), "s"),
    lambda f, n: f.unpivot("s", ["a", "b"], "k", "a").select("a", F.length("k").alias("b"), "s"),
    lambda f, n: f.fillna(n, ["b"]).fillna("f").replace(1, 5, ["a"]),
    lambda f, n: f.dropna(thresh=2),
    lambda f, n: f.alias("q").selectExpr("q.a", "q.b + 1 AS b", "upper(s) AS s"),
    lambda f, n: f.groupBy("a").pivot("s", ["x", "y"]).agg(F.sum("b")).select(
        "a", F.col("x").alias("b"), F.lit("p").alias("s")),
]
#: Frames of two frames.
TWO: list[Callable[[Any, Any, str], Any]] = [
    lambda f, g, how: f.alias("l").join(
        g.alias("r"), (F.col("l.a") == F.col("r.a")) & (F.col("l.b") >= F.col("r.b")), how
    ).select("l.a", "r.b", F.coalesce("l.s", "r.s").alias("s")),
    lambda f, g, how: f.join(g.select("a", F.col("b").alias("c")), "a", how).select(
        "a", F.coalesce("b", "c").alias("b"), "s"),
    lambda f, g, how: f.join(g.select("b"), "b", "semi" if how < "l" else "anti"),
    lambda f, g, how: f.union(g), lambda f, g, how: f.unionByName(g.select("s", "b", "a")),
    lambda f, g, how: f.exceptAll(g), lambda f, g, how: f.intersect(g),
    lambda f, g, how: f.alias("o").where(g.alias("i").where(
        F.col("i.a") == F.col("o.b").outer()).select(F.lit(1)).exists()),
    lambda f, g, how: f.where(F.col("a").isin(g.where("b IS NOT NULL").select("b"))),
]
_HOW = st.sampled_from(["inner", "left", "right", "full"])


def _unary(inner: Build, number: int, choice: int) -> Build:
    return lambda t, u: _whole(ONE[number](inner(t, u), choice))


def _binary(inner: Build, other: Build, number: int, how: str) -> Build:
    return lambda t, u: _whole(TWO[number](inner(t, u), other(t, u), how))


def frames(leaves: int = 4) -> st.SearchStrategy[Build]:
    """Frames of up to so many scans."""
    scan: st.SearchStrategy[Build] = st.sampled_from([lambda t, u: t, lambda t, u: u])
    return st.recursive(scan, lambda inner: st.one_of(
        st.builds(_unary, inner, st.integers(0, len(ONE) - 1), st.integers(0, 6)),
        st.builds(_binary, inner, inner, st.integers(0, len(TWO) - 1), _HOW),
    ), max_leaves=leaves)
