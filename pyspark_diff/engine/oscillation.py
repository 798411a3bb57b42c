"""Loops that swing: what goes round comes back, so they can never come to rest.

With ``d_i`` what goes round after iteration ``i`` of a loop, the collection is their sum. Its body
gives the same for the same, so::

    d_(i+1) + ... + d_(i+p) = 0,  not all of them 0   ⟹   the collection swings with period p

as long as nothing from before this run happens beyond iteration ``i``. The sum of the hashes of
all that went round tells where that may be so; the updates of one more period tell that it is.
"""

from __future__ import annotations

from typing import Sequence

import numpy as np
import pyarrow as pa

from pyspark_diff.errors import UnsupportedTypeError
from pyspark_diff.kernels.consolidate import consolidate
from pyspark_diff.kernels.layout import as_int64, from_int64
from pyspark_diff.kernels.updates import Updates, concat, joined
from pyspark_diff.operators.loop import Variable
from pyspark_diff.spark.schema import DIFF, TIME, Schema

#: From this iteration on a loop is watched: those that come to rest mostly did so before.
WATCHED = 64
#: Updates of one period that are held at most, to see whether they add up to nothing.
HELD_ROWS = 100_000

#: What went round after an iteration: for each variable update rows, all on the driver.
Round = Sequence[tuple[Variable, pa.Table]]


def consolidated(schema: Schema, table: pa.Table) -> Updates:
    """Update rows in their smallest form."""
    records = [joined([table[name]]) for name in schema.names]
    times = as_int64(joined([table[TIME]])).to_numpy()
    return consolidate(schema.layout().encode(records, times, table[DIFF].to_numpy())).updates


def added_up(schema: Schema, table: pa.Table) -> pa.Table:
    """Update rows, those that are equal added up if they can be compared."""
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
    """Looks for a period in what goes round in one run of a loop. It holds state.

    Notes
    -----
    Source: Brent, "An improved Monte Carlo factorization algorithm", BIT 20, 1980: the digest of
    one iteration is kept, a later one after each power of two.
    """

    def __init__(self) -> None:
        self._digest = self._kept = 0
        #: Odd, so that what one variable loses another one does not make up for.
        self._factors: dict[Variable, int] = {}
        self._since, self._power = 0, 1
        self._period = 0
        self._rounds: list[Round] = []

    def takes(self, went: Round) -> tuple[int, Variable, Updates] | None:
        """Take in what went round after one more iteration.

        Parameters
        ----------
        went : sequence of (Variable, pyarrow.Table)

        Returns
        -------
        tuple of int, Variable and Updates, or None
            A period that has just ended, and something of what swings.
        """
        try:
            for variable, table in went:
                factor = self._factors.setdefault(variable, 2 * len(self._factors) + 1)
                self._digest += factor * _digest(variable.schema, table)
        except UnsupportedTypeError:  # these cannot be compared
            return None
        self._digest %= 1 << 64
        self._since += 1
        if self._period:
            self._rounds.append(went)
            if sum(table.num_rows for past in self._rounds for _, table in past) > HELD_ROWS:
                self._period, self._rounds = 0, []
            elif len(self._rounds) == self._period:
                period, rounds = self._period, self._rounds
                self._period, self._rounds = 0, []
                if found := _swings(rounds):
                    return (period, *found)
        elif self._digest == self._kept:
            self._period = self._since
        if self._since >= self._power and not self._period:
            self._kept, self._since, self._power = self._digest, 0, 2 * self._power
        return None


def _digest(schema: Schema, table: pa.Table) -> int:
    """A sum over the updates, whatever their order, which is zero for those that cancel."""
    records = [joined([table[name]]) for name in schema.names]
    times = as_int64(joined([table[TIME]])).to_numpy()
    diffs = table[DIFF].to_numpy()
    key = schema.layout().encode(records, times, diffs).key64.view(np.uint64)
    mixed = key ^ (times.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return int((mixed * diffs.view(np.uint64)).sum(dtype=np.uint64))


def _swings(rounds: Sequence[Round]) -> tuple[Variable, Updates] | None:
    """One of the variables and some of its updates, if those of all rounds add up to nothing."""
    found: tuple[Variable, Updates] | None = None
    parts: dict[Variable, list[Updates]] = {}
    for went in rounds:
        for variable, table in went:
            updates = consolidated(variable.schema, table)
            if len(updates):
                parts.setdefault(variable, []).append(updates)
                found = (variable, updates)
    if any(len(consolidate(concat(held)).updates) for held in parts.values()):
        return None
    return found
