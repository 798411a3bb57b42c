"""What the arrangements of a loop on numbers take in during a step, and the batches that become of
it: one for all iterations, but for those that gave many, or most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Sequence

import numpy as np

from pyspark_diff.kernels.consolidate import PairCodes
from pyspark_diff.kernels.layout import Layout
from pyspark_diff.kernels.updates import Int64, PerRow, Updates, empty, one_or_all
from pyspark_diff.runners.numbers import added_up

#: So many updates of an arrangement at one coordinate are a batch of their own: to put those of all
#: coordinates in order takes longer than to look into a batch more. Fewer are if they are most.
MANY, MOST_OF = 1 << 20, 1 << 16


@dataclass(frozen=True)
class Sorted:
    """Updates of one arrangement at one coordinate: consolidated, by key, value and time."""

    keys: Int64
    values: Int64
    times: Int64
    diffs: Int64

    def __len__(self) -> int:
        return int(self.keys.size)

    def within(self, begin: int, end: int) -> "Sorted":
        """Some of the rows that lie side by side."""
        one = slice(begin, end)
        return Sorted(self.keys[one], self.values[one], self.times[one], self.diffs[one])


#: The same by shards.
Parted = Sequence[Sorted]


def batches_of(parts: list[tuple[int, Parted]]) -> list[list[tuple[int, Parted]]]:
    """The updates of an arrangement by the batches that they become, the largest first: those of
    one coordinate stay as they are if they are many or, as in a load, most of many."""
    sizes = [sum(map(len, rows)) for _, rows in parts]
    every = sum(sizes)
    alone = [size >= MANY or size >= MOST_OF and 4 * size >= 3 * every for size in sizes]
    found = [[part] for part, own in zip(parts, alone) if own]
    rest = [part for part, own in zip(parts, alone) if not own]
    if rest:
        found.append(rest)
    found.sort(key=lambda batch: -sum(len(part) for _, rows in batch for part in rows))
    return found


def sealed(parts: Sequence[tuple[int, Sorted]], layout: Layout) -> Updates:
    """The updates of an arrangement at some coordinates, in order."""
    if len(parts) == 1:
        at, one = parts[0]
        keys, values, times, diffs = one.keys, one.values, one.times, one.diffs
        codes: PerRow = at
        if ((values[1:] < values[:-1]) & (keys[1:] == keys[:-1])).any():
            # What an operator gives comes in order of time: what goes may be less than what comes.
            keys, values, times, diffs = added_up([(keys, values, times, diffs)])
    else:
        rows = [one for _, one in parts]
        codes = np.repeat([at for at, _ in parts], [len(one) for one in rows])
        keys, values, times, diffs = (
            np.concatenate([getattr(one, name) for one in rows])
            for name in ("keys", "values", "times", "diffs")
        )
        if codes.size:
            when = PairCodes(codes, times)
            keys, values, places, diffs = added_up([(keys, values, when.code, diffs)])
            codes, times = when.parts(places)
            codes = one_or_all(codes)
    if not keys.size:
        return empty()
    found = Updates(keys, None, one_or_all(times), one_or_all(diffs), coordinate=codes)
    if layout.value is None:
        return found
    return replace(found, val64=values, ordering=layout.value.ordering)
