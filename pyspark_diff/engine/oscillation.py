"""Loops that oscillate: a collection repeats an earlier value, so the loop has no fixed point.

With ``d_i`` the feedback after iteration ``i`` of a loop, the collection is their sum. The body
returns equal output for equal input, so::

    d_(i+1) + ... + d_(i+p) = 0,  not all of them 0   ⟹   the collection oscillates with period p

if no update from before this run has an iteration after ``i``. The sum of the hashes of all
feedback shows a possible period; the updates of one more period confirm it.
"""

from __future__ import annotations

from typing import Sequence

import numpy as np
import pyarrow as pa

from pyspark_diff import thresholds
from pyspark_diff.errors import UnsupportedTypeError
from pyspark_diff.kernels.consolidate import consolidate
from pyspark_diff.kernels.layout import as_int64, from_int64
from pyspark_diff.kernels.updates import UpdateChunk, concat, joined
from pyspark_diff.operators.loop import Variable
from pyspark_diff.spark.schema import DIFF, TIME, Schema

#: The feedback after an iteration: update rows of each variable, all on the driver.
Round = Sequence[tuple[Variable, pa.Table]]


def consolidated(schema: Schema, table: pa.Table) -> UpdateChunk:
    """The consolidated updates of a table."""
    records = [joined([table[name]]) for name in schema.names]
    times = as_int64(joined([table[TIME]])).to_numpy()
    return consolidate(schema.layout().encode(records, times, table[DIFF].to_numpy())).updates


def added_up(schema: Schema, table: pa.Table) -> pa.Table:
    """Consolidated update rows; the same rows if their type has no equality."""
    try:
        schema.layout()
    except UnsupportedTypeError:
        return table
    if not table.num_rows:
        return table
    left = consolidated(schema, table)
    times = from_int64(pa.array(left.times()), table[TIME].type)
    return pa.table(
        [*schema.layout().decode(left), times, pa.array(left.diffs())],
        names=[*schema.names, TIME, DIFF],
    )


class Oscillation:
    """Searches for a period in the feedback of one run of a loop. It holds state.

    Notes
    -----
    Source: Brent, "An improved Monte Carlo factorization algorithm", BIT 20, 1980: the digest of
    one iteration is kept, and replaced by a later digest after each power of two.
    """

    def __init__(self) -> None:
        self._digest = self._kept = 0
        #: Odd and different, so that changes of two variables do not cancel out.
        self._factors: dict[Variable, int] = {}
        self._since, self._power = 0, 1
        self._period = 0
        self._rounds: list[Round] = []

    def takes(self, went: Round) -> tuple[int, Variable, UpdateChunk] | None:
        """Add the feedback after one more iteration.

        Returns
        -------
        tuple of int, Variable and UpdateChunk, or None
            A period that has just ended, and updates of a variable that oscillates.
        """
        try:
            for variable, table in went:
                factor = self._factors.setdefault(variable, 2 * len(self._factors) + 1)
                self._digest += factor * _digest(variable.schema, table)
        except UnsupportedTypeError:  # a type without equality
            return None
        self._digest %= 1 << 64
        self._since += 1
        if self._period:
            self._rounds.append(went)
            rows = sum(table.num_rows for past in self._rounds for _, table in past)
            if rows > thresholds.current.watch_rows_max:
                self._period, self._rounds = 0, []
            elif len(self._rounds) == self._period:
                period, rounds = self._period, self._rounds
                self._period, self._rounds = 0, []
                if swing := _swings(rounds):
                    return (period, *swing)
        elif self._digest == self._kept:
            self._period = self._since
        if self._since >= self._power and not self._period:
            self._kept, self._since, self._power = self._digest, 0, 2 * self._power
        return None


def _digest(schema: Schema, table: pa.Table) -> int:
    """A sum over the updates that does not depend on their order; zero if they cancel out."""
    records = [joined([table[name]]) for name in schema.names]
    times = as_int64(joined([table[TIME]])).to_numpy()
    diffs = table[DIFF].to_numpy()
    key = schema.layout().encode(records, times, diffs).key64.view(np.uint64)
    mixed = key ^ (times.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return int((mixed * diffs.view(np.uint64)).sum(dtype=np.uint64))


def _swings(rounds: Sequence[Round]) -> tuple[Variable, UpdateChunk] | None:
    """A variable and some of its updates, if the updates of all rounds cancel out."""
    swing: tuple[Variable, UpdateChunk] | None = None
    parts: dict[Variable, list[UpdateChunk]] = {}
    for went in rounds:
        for variable, table in went:
            updates = consolidated(variable.schema, table)
            if len(updates):
                parts.setdefault(variable, []).append(updates)
                swing = (variable, updates)
    if any(len(consolidate(concat(updates_of)).updates) for updates_of in parts.values()):
        return None
    return swing
