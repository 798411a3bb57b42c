"""What all methods of `DiffFrame` stand on: its collection, and the one way to another frame.

The methods are written in one file for each kind, in classes that know this one and not each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from pyspark.sql import types as T

from pyspark_diff.errors import SchemaError
from pyspark_diff.expressions.names import Resolver
from pyspark_diff.frame.collection import Collection
from pyspark_diff.operators.node import Node

if TYPE_CHECKING:
    from typing_extensions import Self

#: The class of frames that a method takes and returns.
FrameT = TypeVar("FrameT", bound="Frame")


class Frame:
    """A collection, wrapped.

    Parameters
    ----------
    collection : Collection
    """

    def __init__(self, collection: Collection):
        self._collection = collection
        if collection.flow is not None:
            collection.flow._add_frame(self, collection.node)

    @classmethod
    def _wrap(cls, collection: Collection) -> Self:
        """The one way back into the wrapper."""
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

    def _peer(self, other: Self) -> Collection:
        """The collection of another frame, which an operator takes beside this one's."""
        if not isinstance(other, Frame):
            raise SchemaError(
                f"expected a DiffFrame, not a {type(other).__name__}; wrap a Spark frame that has "
                "time and diff columns with DiffFrame(df)"
            )
        self._collection.check_combines(other._collection)
        return other._collection
