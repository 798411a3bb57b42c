"""Consolidate: the same collection with the fewest update rows.

Within each step, no two output rows share ``(record, time)`` and no diff is zero; the accumulation
at every time is that of the input. No state is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from pyspark_diff.kernels.consolidate import Grouped
from pyspark_diff.kernels.layout import Layout
from pyspark_diff.kernels.updates import Int64
from pyspark_diff.operators.contract import Changes
from pyspark_diff.operators.node import Keyed, Node


@dataclass(frozen=True)
class ConsolidateKernel:
    """The rows as they come out of the arrange: consolidated."""

    stateful = False

    def __call__(
        self, grouped: Grouped, base: Int64, layout: Layout, wanted: Sequence[int]
    ) -> Changes:
        columns = layout.decode(grouped.updates)
        return [columns[i] for i in wanted], grouped.updates.time, grouped.updates.scalars()


def consolidate(source: Node) -> Keyed:
    """The node that consolidates ``source``.

    Source: differential-dataflow ``operators/consolidate.rs``.
    """
    return Keyed("consolidate", source, source.schema, ConsolidateKernel())
