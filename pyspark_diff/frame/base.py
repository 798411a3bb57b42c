"""The base of all method classes of `DiffFrame`: its collection, and the only constructor of the
next frame.

Each kind of methods has its own file and class. The classes know the base and not each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from pyspark.sql import types as T

from pyspark_diff.expressions.names import Resolver
from pyspark_diff.frame.collection import Collection
from pyspark_diff.frame.constants import Plain, lifted
from pyspark_diff.operators.node import Node

if TYPE_CHECKING:
    from typing_extensions import Self

#: The class of frames that a method takes and returns.
FrameT = TypeVar("FrameT", bound="Frame")


class Frame:
    """A collection, wrapped."""

    def __init__(self, collection: Collection):
        self._collection = collection

    @classmethod
    def _wrap(cls, collection: Collection) -> Self:
        """Wrap a collection: every method ends here."""
        frame = cls.__new__(cls)
        Frame.__init__(frame, collection)
        return frame

    def _derived(
        self, node: Node, *, resolver: Resolver | None = None, same: bool = False
    ) -> Self:
        """The frame of a node that an operator made of this one: see `Collection.derived`."""
        return self._wrap(self._collection.derived(node, resolver=resolver, same=same))

    @property
    def columns(self) -> list[str]:
        """Names of the data columns."""
        return self._collection.columns

    @property
    def schema(self) -> T.StructType:
        """Spark schema of the data columns."""
        return self._collection.schema

    @property
    def _node(self) -> Node:
        return self._collection.node

    def _lifted(self, other: Self | Plain) -> Self:
        """Another frame; a plain table becomes a constant."""
        if isinstance(other, Frame):
            return other  # type: ignore[return-value]
        return self._wrap(lifted(self._collection, other))

    def _peer(self, other: Self | Plain) -> Collection:
        """The collection of another frame, checked to combine with this one."""
        collection = self._lifted(other)._collection
        self._collection.check_combines(collection)
        return collection
