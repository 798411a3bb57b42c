"""Checked: a collection as it is, which refuses that more of a record is removed than was inserted.

At every time ``t``, for each record ``r`` with accumulated diff ``n``::

    n >= 0   ⟹   accumulate(checked(A), t)[r] = n
    n < 0    ⟹   an error
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import numpy as np
import pyarrow as pa

from pyspark_diff.errors import NegativeMultiplicityError
from pyspark_diff.kernels.lookup import replay_on
from pyspark_diff.operators.contract import Changes, RecordKernel, Side
from pyspark_diff.operators.node import Keyed, Node
from pyspark_diff.spark.schema import TimeType

#: So many records are named.
NAMED = 3


@dataclass(frozen=True)
class CheckedKernel(RecordKernel):
    """The updates as they come, each accumulation being looked at.

    Parameters
    ----------
    time_type : TimeType
    """

    time_type: TimeType

    def __call__(
        self, sides: Sequence[Side], own: Side | None, wanted: Sequence[int]
    ) -> tuple[Changes, int]:
        (side,) = sides
        new = side.new.updates
        _, after, read = replay_on(side.old, side.new, side.limit)
        columns = side.layout.decode(new)
        wrong = np.flatnonzero(after < 0)
        if wrong.size:
            times = new.times()
            first = wrong[times[wrong] == times[wrong].min()]
            # NAMED of them at most, for the message.
            records = [column.take(pa.array(first[:NAMED])).to_pylist() for column in columns]
            when = self.time_type.decode(int(times[first[0]]))
            named = [f"{row!r} stands with the multiplicity {count}"
                     for row, count in zip(zip(*records), after[first[:NAMED]].tolist())]
            named += ["..."] if first.size > NAMED else []
            raise NegativeMultiplicityError(
                f"at time {when!r} {', '.join(named)}: more of it was removed than was inserted. "
                "Remove only what is there"
            )
        return ([columns[i] for i in wanted], new.times(), new.diffs()), read


def checked(source: Node) -> Keyed:
    """The node that gives its input, and refuses negative multiplicities."""
    return Keyed("checked", source, source.schema, CheckedKernel(source.time_type))
