"""Costs: the rows, seconds and runs of each operator in a step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pyspark_diff.operators.node import Node
from pyspark_diff.runners.work import BucketResult

#: Seconds from which on a report contains an operator without input rows.
NOTED = 1e-3


@dataclass
class OperatorCost:
    """The cost of one operator in one step. It holds state while the step runs.

    Parameters
    ----------
    rows_in : int
        Number of input update rows.
    rows_read : int
        Number of rows that were read of older batches.
    rows_out : int
        Number of output update rows.
    seconds : float
        Wall time, including Spark's evaluation of the input.
    driver_runs, spark_runs : int
        Numbers of runs on the driver, and as a Spark job or a part of a job.
    buckets : dict of int to (int, int, float)
        For Spark tasks: rows in, rows read, and the task's seconds, by bucket.
    """

    rows_in: int = 0
    rows_read: int = 0
    rows_out: int = 0
    seconds: float = 0.0
    driver_runs: int = 0
    spark_runs: int = 0
    buckets: dict[int, tuple[int, int, float]] = field(default_factory=dict)

    def took(self, results: Iterable[BucketResult], on_spark: bool) -> None:
        """Add the results of a run."""
        for result in results:
            self.rows_in += result.rows_in
            self.rows_read += result.rows_read
            self.rows_out += result.output.rows
            if on_spark:
                rows, read, seconds = self.buckets.get(result.bucket, (0, 0, 0.0))
                self.buckets[result.bucket] = (
                    rows + result.rows_in, read + result.rows_read, seconds + result.seconds
                )
        self.ran(on_spark)

    def ran(self, on_spark: bool) -> None:
        """Count a run."""
        if on_spark:
            self.spark_runs += 1
        else:
            self.driver_runs += 1

    @property
    def where(self) -> str:
        """The places of its runs: ``driver``, ``spark``, or both."""
        places = [("driver", self.driver_runs), ("spark", self.spark_runs)]
        return ", ".join(name for name, runs in places if runs)


class Costs(dict[Node, OperatorCost]):
    """The costs of a step by operator, for operators that ran."""

    def cost_of(self, node: Node) -> OperatorCost:
        """The mutable cost of an operator."""
        cost = self.get(node)
        if cost is None:
            cost = self[node] = OperatorCost()
        return cost
