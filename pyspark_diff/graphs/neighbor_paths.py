"""Values that are accumulated along paths from some vertices: GraphFrames' aggregate_neighbors."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F

from pyspark_diff.frame.diffframe import DiffFrame
from pyspark_diff.spark.frames import column


def accumulated(
    starts: DiffFrame, steps: DiffFrame, initial: Mapping[str, Column],
    update: Mapping[str, Column], most: int, stop: Column | None, target: Column | None,
    edge_filter: Column | None,
) -> DiffFrame:
    """``id``, ``hop`` and the accumulators of each path that ends at a target, or that stops.

    Parameters
    ----------
    starts : DiffFrame
        The columns of the first vertices, and ``src_attributes``, a struct of them.
    steps : DiffFrame
        ``src``, ``dst``, and the structs ``edge_attributes`` and ``dst_attributes``.
    initial, update : mapping of str to Column
        The value of each accumulator at a first vertex, and after an edge.
    most : int
        The largest number of edges of a path.
    stop, target : Column, optional
        A path ends if one of them is true.
    edge_filter : Column, optional
        A condition for a step.

    Notes
    -----
    Paths are records, and equal values on several paths are as many records. Their number may grow
    exponentially with the number of hops.
    """
    no = F.lit(False)
    first = starts.select(
        *(value.alias(name) for name, value in initial.items()),
        F.col("id").alias("src_id"), F.lit(0).alias("hop"), "src_attributes",
        no.alias("stopped_"), no.alias("target_"),
    )
    is_target = no if target is None else target
    is_end = is_target if stop is None else stop | is_target

    def further(paths: DiffFrame) -> DiffFrame:
        going = paths.where(~F.col("stopped_")).where(F.col("hop") < most)
        moved = going.join(steps.withColumnRenamed("src", "src_id"), "src_id").withColumn(
            "src", F.col("src_id"))
        if edge_filter is not None:
            moved = moved.where(edge_filter)
        return first.concat(moved.select(
            *(value.alias(name) for name, value in update.items()),
            F.col("dst").alias("src_id"), (F.col("hop") + 1).alias("hop"),
            F.col("dst_attributes").alias("src_attributes"),
            is_end.alias("stopped_"), is_target.alias("target_"),
        ))

    paths = first.iterate(further, name="aggregate_neighbors")
    ended = paths.where("stopped_" if target is None else "target_")
    return ended.select(F.col("src_id").alias("id"), "hop", *map(column, initial))
