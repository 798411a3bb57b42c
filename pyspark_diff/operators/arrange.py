"""Arrange: a collection kept as an arrangement, to be read at any time that is complete."""

from __future__ import annotations

from pyspark_diff.operators.node import Keyed, Node


def arrange_by_self(source: Node) -> Keyed:
    """The node that keeps ``source``, indexed by the whole record.

    Source: differential-dataflow ``operators/arrange``.
    """
    return Keyed("arrange_by_self", source, source.schema, None)
