"""Operators on whole records, over an arrangement that others may read too.

`count`, `distinct` and `threshold` usually arrange their input themselves. If the collection is
arranged already, or if their output is to be an arrangement, the same kernel reads the shared
arrangement.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark_diff.operators.node import Arranged, Keyed, Reader


def over_arrangement(node: Keyed, source: Arranged, *, arranged: bool = False) -> Reader:
    """The operator ``node`` on the arrangement of its input by the whole record.

    Parameters
    ----------
    node : Keyed
        An operator with a kernel.
    source : Arranged
        The arrangement of its input.
    arranged : bool
        Whether the output is to be an arrangement too, by the same key.
    """
    if node.kernel is None:
        raise ValueError("only an operator with a kernel computes anything")
    kernel = replace(node.kernel, arranges_output=arranged)
    return Reader(node.kind, (source,), node.schema, kernel, source.key)
