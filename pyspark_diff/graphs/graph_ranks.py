"""GraphX's PageRank: ranks that start at 1, with one scaling after the last round.

With r the reset probability and d(u) the number of edges from u::

    rank(v) := r + (1 - r) * sum over edges (u, v) of rank(u) / d(u)

Ranks are whole numbers of units, so that sums do not depend on their order.
"""

from __future__ import annotations

from typing import Any, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F

from pyspark_diff.frame.diffframe import DiffFrame

#: The number of units in rank 1.
RANK_UNIT = 1 << 40
#: The sum of all ranks consists of multiples of this number, and of the rest.
_LOW = 1 << 20
#: The least relative change of the sum of ranks that a vertex without an edge from it causes.
_LOST = 1e-7


def ranks_of(
    nodes: DiffFrame, arcs: DiffFrame, starts: DiffFrame, reset: float, rounds: int
) -> DiffFrame:
    """``node`` and ``rank`` after some rounds; all ranks add up to the number of starts."""
    nothing = nodes.withColumn("share", F.lit(0).cast("long"))
    ranks = _rounds(starts, arcs, reset, rounds, nothing)
    # The sum of all ranks is that of the starts, unless vertices without an edge from them lose
    # some.
    # It is in two parts, as the sum for 2**23 vertices would not fit into a long.
    halves = ranks.select(
        F.call_function("div", F.col("rank"), F.lit(_LOW)).alias("high"),
        (F.col("rank") % _LOW).alias("low"))
    sums = halves.agg(F.sum("high").alias("high"), F.sum("low").alias("low"))
    total = F.col("high") * F.lit(float(_LOW)) + F.col("low")
    wanted = starts.agg(F.count("*").alias("wanted"))
    scales = sums.crossJoin(wanted.hint("broadcast")).select(
        _scale(F.col("wanted"), total).alias("scale"))
    return ranks.crossJoin(scales.hint("broadcast")).select(
        "node", (F.col("rank") / F.lit(float(RANK_UNIT)) * F.col("scale")).alias("rank"))


def ranks_by_source(
    nodes: DiffFrame, arcs: DiffFrame, sources: Sequence[Any], reset: float, rounds: int
) -> DiffFrame:
    """``node`` and ``ranks``: the ranks of surfers who start at each source, in their order."""
    starts = nodes.where(F.col("node").isin(list(sources))).withColumn("source", F.col("node"))
    moved = _rounds(starts, arcs, reset, rounds)
    names = [f"rank{number}" for number in range(len(sources))]
    sums = [
        F.sum(F.when(F.col("source") == F.lit(source), F.col("rank")).otherwise(0)).alias(name)
        for source, name in zip(sources, names)
    ]
    ranks = moved.groupBy("node").agg(*sums)
    totals = ranks.agg(*(F.sum(name).alias(f"total_{name}") for name in names))
    scaled = [
        F.coalesce(F.col(name), F.lit(0)) / F.lit(float(RANK_UNIT))
        * _scale(F.lit(1), F.col(f"total_{name}"))
        for name in names
    ]
    return ranks.crossJoin(totals.hint("broadcast")).select(
        "node", F.array(*scaled).alias("ranks"))


def _rounds(
    starts: DiffFrame, arcs: DiffFrame, reset: float, rounds: int, *more: DiffFrame
) -> DiffFrame:
    """The columns of the starts and ``rank`` in units, after some rounds."""
    key = starts.columns
    degrees = arcs.select("node").count().toDF("node", "degree")
    jumps = starts.withColumn("share", F.lit(round(RANK_UNIT * reset)).cast("long"))
    first = starts.withColumn("rank", F.lit(RANK_UNIT).cast("long"))
    share = F.floor(F.col("rank") * F.lit(1 - reset) / F.col("degree"))

    def round_of(ranks: DiffFrame) -> DiffFrame:
        leaving = ranks.join(degrees, "node").select(*key, share.alias("share"))
        arriving = leaving.join(arcs, "node").select("other", *key[1:], "share")
        shares = jumps.concat(arriving.toDF(*key, "share"), *more)
        return shares.groupBy(*key).agg(F.sum("share").alias("rank"))

    return first.iterate(round_of, max_iterations=rounds, on_limit="return", name="pagerank")


def _scale(wanted: Column, total: Column) -> Column:
    scale = F.when(total != 0, wanted * F.lit(float(RANK_UNIT)) / total)
    return F.when(F.abs(scale - 1) < _LOST, F.lit(1.0)).otherwise(scale)
