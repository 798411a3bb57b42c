"""Arrange: a collection indexed by a key and kept, for any number of readers.

Each reader may ask for it by itself: the arrangement of a collection by a key is one, which is made
and kept once, however often it was asked for. See `pyspark_diff.engine.lowering`.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from typing import Sequence

from pyspark_diff.operators.node import Arranged, Keyed, Node, Passing


def arrange_by_key(source: Node, key: Sequence[str]) -> Arranged:
    """The node that keeps ``source``, indexed by some of its columns.

    Source: differential-dataflow ``operators/arrange``.
    """
    return Keyed("arrange_by_key", source, source.schema, None, key)


def arrange_in_order(
    source: Node, key: Sequence[str], ordering: Sequence[tuple[str, bool, bool]]
) -> Keyed:
    """The node that keeps ``source`` by a key, and the records of a key in an order.

    Parameters
    ----------
    source : Node
    key : sequence of str
    ordering : sequence of (str, bool, bool)
        Columns of the order: name, whether descending, whether nulls come last.
    """
    return Keyed("arrange_in_order", source, source.schema, None, key, ordering=ordering)


def arrange_by_self(source: Node) -> Arranged:
    """The node that keeps ``source``, indexed by the whole record."""
    return arrange_by_key(source, source.schema.names)


@dataclass(frozen=True, eq=False, repr=False)
class Output(Passing):
    """A collection that users read: kept, in whichever arrangement of it there is."""

    kind = "output"
    source: InitVar[Node]

    def __post_init__(self, source: Node) -> None:
        self._settle((source,), schema=source.schema)
