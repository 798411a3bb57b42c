"""Costs: what each operator did in a step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pyspark_diff.operators.node import Node
from pyspark_diff.runners.work import BucketResult

#: Seconds from which on the time of an operator is told that took nothing in.
NOTED = 1e-3


@dataclass
class Cost:
    """What one operator did in one step. It holds state while the step runs.

    Parameters
    ----------
    rows_in : int
        Update rows that it took in.
    rows_read : int
        Rows of older batches that it looked at for them.
    rows_out : int
        Update rows that it gave.
    seconds : float
        Wall time, with what Spark evaluated for it.
    driver_runs, spark_runs : int
        How often it ran on the driver, and as a Spark job or a part of one.
    buckets : dict of int to (int, int, float)
        Of what ran in tasks of Spark: by bucket rows in, rows read, and the task's seconds.
    """

    rows_in: int = 0
    rows_read: int = 0
    rows_out: int = 0
    seconds: float = 0.0
    driver_runs: int = 0
    spark_runs: int = 0
    buckets: dict[int, tuple[int, int, float]] = field(default_factory=dict)

    def took(self, results: Iterable[BucketResult], on_spark: bool) -> None:
        """Results of a run count."""
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
        """It was run once more."""
        if on_spark:
            self.spark_runs += 1
        else:
            self.driver_runs += 1

    @property
    def where(self) -> str:
        """Where it ran: ``driver``, ``spark``, or both."""
        places = [("driver", self.driver_runs), ("spark", self.spark_runs)]
        return ", ".join(name for name, runs in places if runs)


class Costs(dict[Node, Cost]):
    """The costs of a step by operator; one that did nothing has none."""

    def of(self, node: Node) -> Cost:
        """An operator's cost, to which more is added."""
        found = self.get(node)
        if found is None:
            found = self[node] = Cost()
        return found
