"""Arrange: a collection indexed by a key and kept, for any number of readers.

Asked for again, the arrangement of a collection by a key is the same one: it is made and kept once,
whoever reads it.
"""

from __future__ import annotations

from typing import Sequence

from pyspark_diff.operators.node import Arranged, Keyed, Node, Reader


def arrange_by_key(source: Node, key: Sequence[str]) -> Arranged:
    """The node that keeps ``source``, indexed by some of its columns.

    Source: differential-dataflow ``operators/arrange``.
    """
    key = tuple(key)
    found = source.output_by(key) if isinstance(source, Reader) else None
    if found is not None:
        return found  # arranged as it comes out
    if key not in source.arrangements:
        source.arrangements[key] = Keyed("arrange_by_key", source, source.schema, None, key)
    return source.arrangements[key]


def arrange_in_order(
    source: Node, key: Sequence[str], ordering: Sequence[tuple[str, bool, bool]]
) -> Arranged:
    """The node that keeps ``source`` by a key, and the records of a key in an order.

    Parameters
    ----------
    source : Node
    key : sequence of str
    ordering : sequence of (str, bool, bool)
        Columns of the order: name, whether descending, whether nulls come last.
    """
    known = (tuple(key), *ordering)
    if known not in source.arrangements:
        source.arrangements[known] = Keyed(
            "arrange_in_order", source, source.schema, None, key, ordering=ordering
        )
    return source.arrangements[known]


def arrange_by_self(source: Node) -> Arranged:
    """The node that keeps ``source``, indexed by the whole record."""
    return arrange_by_key(source, source.schema.names)
