"""The new batches of arrangements in a loop on numbers: one batch for all iterations of a step,
except for iterations with many updates, or with most of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Sequence

import numpy as np

from pyspark_diff import thresholds
from pyspark_diff.kernels.consolidate import PairCodes
from pyspark_diff.kernels.layout import Layout
from pyspark_diff.kernels.updates import Int64, PerRow, UpdateChunk, empty, one_or_all
from pyspark_diff.runners.numbers import added_up


@dataclass(frozen=True)
class Sorted:
    """Updates of one arrangement at one coordinate: consolidated, by key, value and time."""

    keys: Int64
    values: Int64
    times: Int64
    diffs: Int64

    def __len__(self) -> int:
        return int(self.keys.size)

    def between(self, begin: int, end: int) -> "Sorted":
        """A range of adjacent rows."""
        rows = slice(begin, end)
        return Sorted(self.keys[rows], self.values[rows], self.times[rows], self.diffs[rows])


#: Sorted updates by shards.
Parted = Sequence[Sorted]


def batches_of(parts: list[tuple[int, Parted]]) -> list[list[tuple[int, Parted]]]:
    """The updates of an arrangement by future batches, the largest first. The updates of a
    coordinate have their own batch if they are many or, like in a load, most of many."""
    sizes = [sum(map(len, rows)) for _, rows in parts]
    total = sum(sizes)
    many = thresholds.current.coordinate_batch_rows_min
    many_of_most = thresholds.current.main_coordinate_batch_rows_min
    alone = [size >= many or size >= many_of_most and 4 * size >= 3 * total for size in sizes]
    batches = [[part] for part, own in zip(parts, alone) if own]
    rest = [part for part, own in zip(parts, alone) if not own]
    if rest:
        batches.append(rest)
    batches.sort(key=lambda batch: -sum(len(part) for _, rows in batch for part in rows))
    return batches


def sealed(parts: Sequence[tuple[int, Sorted]], layout: Layout) -> UpdateChunk:
    """The updates of an arrangement at some coordinates, in order."""
    if len(parts) == 1:
        at, rows_at = parts[0]
        keys, values, times, diffs = rows_at.keys, rows_at.values, rows_at.times, rows_at.diffs
        codes: PerRow = at
        if ((values[1:] < values[:-1]) & (keys[1:] == keys[:-1])).any():
            # Output is in order of time, so a retraction may have a greater value than an
            # insertion before it.
            keys, values, times, diffs = added_up([(keys, values, times, diffs)])
    else:
        rows = [rows_at for _, rows_at in parts]
        codes = np.repeat([at for at, _ in parts], [len(rows_at) for rows_at in rows])
        keys, values, times, diffs = (
            np.concatenate([getattr(rows_at, name) for rows_at in rows])
            for name in ("keys", "values", "times", "diffs")
        )
        if codes.size:
            when = PairCodes(codes, times)
            keys, values, places, diffs = added_up([(keys, values, when.code, diffs)])
            codes, times = when.parts(places)
            codes = one_or_all(codes)
    if not keys.size:
        return empty()
    updates = UpdateChunk(keys, None, one_or_all(times), one_or_all(diffs), coordinate=codes)
    if layout.value is None:
        return updates
    return replace(updates, val64=values, ordering=layout.value.ordering)
