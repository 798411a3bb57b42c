"""Consolidate: the same collection with the fewest update rows.

Within each step, no two output rows share ``(record, time)`` and no diff is zero; the accumulation
at every time is that of the input. No state is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from pyspark_diff.operators.contract import Changes, RecordKernel, Side
from pyspark_diff.operators.node import Keyed, Node


@dataclass(frozen=True)
class ConsolidateKernel(RecordKernel):
    """Passes the new updates on; the runner has consolidated them."""

    stateful = False

    def __call__(
        self, sides: Sequence[Side], own: Side | None, wanted: Sequence[int]
    ) -> tuple[Changes, int]:
        (side,) = sides
        new = side.new.updates
        columns = side.layout.decode(new)
        return ([columns[i] for i in wanted], new.times(), new.diffs()), 0


def consolidate(source: Node) -> Keyed:
    """The node that consolidates ``source``.

    Source: differential-dataflow ``operators/consolidate.rs``.
    """
    return Keyed("consolidate", source, source.schema, ConsolidateKernel())
