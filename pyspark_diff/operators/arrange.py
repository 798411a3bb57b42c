"""Arrange: a collection indexed by a key and kept, for any number of readers.

Each reader requests its arrangement separately. The engine builds and keeps one arrangement for
each collection and key, however many readers request it. See `pyspark_diff.engine.lowering`.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from typing import Sequence

from pyspark_diff.operators.node import Arranged, Keyed, Node, Passing


def arrange_by_key(source: Node, key: Sequence[str]) -> Arranged:
    """The node that keeps ``source``, indexed by some of its columns.

    Source: differential-dataflow ``operators/arrange``.

    Raises
    ------
    UnsupportedTypeError
        If columns of the key cannot be compared.
    """
    source.schema.check_compared(key)
    return kept_by(source, key)


def kept_by(source: Node, key: Sequence[str]) -> Arranged:
    """`arrange_by_key` for readers that compare bytes of whole records and no keys."""
    return Keyed("arrange_by_key", source, source.schema, None, key)


def arrange_in_order(
    source: Node, key: Sequence[str], ordering: Sequence[tuple[str, bool, bool]], *,
    any_order: bool = False,
) -> Keyed:
    """The node that keeps ``source`` by a key, and the records of a key in an order.

    Parameters
    ----------
    ordering : sequence of (str, bool, bool)
        Columns of the order: name, whether descending, whether nulls come last.
    any_order : bool
        Whether any order that is the same in each step suffices. Otherwise it is Spark's order.

    Raises
    ------
    UnsupportedTypeError
        If columns of the key cannot be compared, or columns of ``ordering`` have no order.
    """
    source.schema.check_compared(key)
    if not any_order:
        source.schema.check_compared([name for name, _, _ in ordering], "order")
    return Keyed("arrange_in_order", source, source.schema, None, key, ordering=ordering)


def arrange_by_self(source: Node) -> Arranged:
    """The node that keeps ``source``, indexed by the whole record."""
    return kept_by(source, source.schema.names)


@dataclass(frozen=True, eq=False, repr=False)
class Output(Passing):
    """A collection that users read. Any existing arrangement of the collection stores it."""

    kind = "output"
    source: InitVar[Node]

    def __post_init__(self, source: Node) -> None:
        source.schema.layout()  # refuses columns that cannot be stored, before any step
        self._settle((source,), schema=source.schema)
