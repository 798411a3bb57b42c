"""Operators on whole records, over an arrangement that others may read too.

`count`, `distinct` and `threshold` usually take their input in by themselves. Where the collection
is arranged already, or where their output is to be an arrangement, they read it from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import numpy as np

from pyspark_diff.kernels.lookup import accumulated
from pyspark_diff.operators.contract import Changes, Kernel, Side
from pyspark_diff.operators.node import Arranged, Keyed, Reader


@dataclass(frozen=True)
class RecordsKernel:
    """A kernel of whole records that finds what was before in a shared arrangement.

    Parameters
    ----------
    kernel : Kernel
    records : bool
        Whether the output is an arrangement.
    """

    kernel: Kernel
    records: bool

    def needs(self, wanted: Sequence[int], number: int) -> Sequence[str]:
        return []  # the key is the record

    def __call__(
        self, sides: Sequence[Side], own: Side | None, wanted: Sequence[int]
    ) -> tuple[Changes, int]:
        side = sides[0]
        base, read = np.zeros(side.new.starts.size, dtype=np.int64), 0
        if self.kernel.stateful and side.old:
            base, read = accumulated(side.new.records(), side.old, side.limit)
        return self.kernel(side.new, base, side.layout, wanted), read


def over_arrangement(node: Keyed, source: Arranged, *, arranged: bool = False) -> Reader:
    """The operator ``node`` on the arrangement of its input by the whole record.

    Parameters
    ----------
    node : Keyed
        An operator with a kernel.
    source : Arranged
        The arrangement of its input.
    arranged : bool
        Whether its output is to be an arrangement too, by the same key.
    """
    if node.kernel is None:
        raise ValueError("only an operator with a kernel computes anything")
    kernel = RecordsKernel(node.kernel, arranged)
    return Reader(node.kind, (source,), node.schema, kernel, source.key)
