"""Threshold and distinct: records with a function of their multiplicity.

At every time ``t``, for each record ``r`` with accumulated diff ``n``::

    accumulate(threshold(A, f), t)[r] = f(n),   where f(0) = 0
    distinct = threshold with f(n) = 1 if n > 0, else 0
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Sequence

import numpy as np

from pyspark_diff.errors import DiffOverflowError, InvalidDiffError
from pyspark_diff.kernels.lookup import replay_on
from pyspark_diff.kernels.pauses import pause
from pyspark_diff.kernels.updates import Int64, pick
from pyspark_diff.operators.contract import Changes, RecordKernel, Side
from pyspark_diff.operators.node import Keyed, Node


@dataclass(frozen=True)
class ThresholdKernel(RecordKernel):
    """When ``f`` of a record's accumulation changes, the kernel emits the difference.

    Parameters
    ----------
    function : callable or None
        From one multiplicity to another; None is distinct.
    """

    function: Callable[[int], int] | None

    def __call__(
        self, sides: Sequence[Side], own: Side | None, wanted: Sequence[int]
    ) -> tuple[Changes, int]:
        (side,) = sides
        new = side.new.updates
        before, after, read = replay_on(side.old, side.new, side.limit)
        change = self.values_of(after) - self.values_of(before)
        rows = np.flatnonzero(change)
        columns = side.layout.decode(new.take(rows))
        return ([columns[i] for i in wanted], pick(new.time, rows), change[rows]), read

    def values_of(self, counts: Int64) -> Int64:
        """The function of an array of multiplicities."""
        if self.function is None:
            return (counts > 0).astype(np.int64)
        # The function runs once for each distinct multiplicity, not for each record.
        distinct, place = np.unique(counts, return_inverse=True)
        values = [self._checked(int(n)) for n in distinct]
        return np.array(values, dtype=np.int64)[place] if values else counts

    def _checked(self, count: int) -> int:
        pause()
        value = self.function(count)  # type: ignore[misc]
        if isinstance(value, bool):
            value = int(value)
        if not hasattr(value, "__index__"):
            raise InvalidDiffError(
                f"threshold's function returned {value!r} for the multiplicity {count}; it must "
                "return a whole number"
            )
        # The difference of two results must fit as well.
        if not -(2**62) <= int(value) < 2**62:
            raise DiffOverflowError(
                f"threshold's function returned {value!r} for the multiplicity {count}, which is "
                "too large for a diff"
            )
        return int(value)


def threshold(
    source: Node, function: Callable[[int], int] | None, by: Sequence[str] | None = None, *,
    by_bytes: bool = False,
) -> Keyed:
    """The node that changes each multiplicity to ``function(multiplicity)``.

    Parameters
    ----------
    function : callable or None
        None is distinct.
    by : sequence of str, optional
        First columns that are the key of the arrangement. The operator then shares an arrangement
        by these columns with other readers.
    by_bytes : bool
        Whether records of types that Spark cannot compare may be compared as bytes.

    Source: differential-dataflow ``operators/threshold.rs``.
    """
    if function is not None:
        zero = ThresholdKernel(function)._checked(0)
        if zero:
            raise InvalidDiffError(
                f"threshold's function returned {zero} for the multiplicity 0; it must return 0 "
                "there, since absent records are without number"
            )
    if not by_bytes:
        source.schema.check_compared()
    kind = "distinct" if function is None else "threshold"
    return Keyed(kind, source, source.schema, ThresholdKernel(function), by)
