"""Nodes of the dataflow graph: what an operator reads, and what it gives.

Nodes are descriptions and hold no state; a `Dataflow` holds the state of each. An operator is
correct iff at every time the output accumulated there equals its batch function of the input
accumulated there.
"""

from __future__ import annotations

import itertools
from typing import Callable, Sequence

from pyspark.sql import DataFrame

from pyspark_diff.kernels.layout import Layout
from pyspark_diff.runners.feed import Stage
from pyspark_diff.runners.work import Kernel
from pyspark_diff.schema import Schema, TimeType, without_nullability

_serial = itertools.count()


class Node:
    """An operator's place in the graph.

    Parameters
    ----------
    kind : str
        The operator's name, for messages.
    inputs : sequence of Node
    schema : Schema
        Data columns of the output.
    time_type : TimeType
    """

    def __init__(
        self, kind: str, inputs: Sequence["Node"], schema: Schema, time_type: TimeType
    ):
        self.kind = kind
        self.inputs = tuple(inputs)
        self.schema = schema
        self.time_type = time_type
        self.serial = next(_serial)

    def needs(self, wanted: frozenset[str]) -> frozenset[str]:
        """Columns of the input that the wanted output columns are made of."""
        return frozenset(name for node in self.inputs for name in node.schema.names)

    def __repr__(self) -> str:
        return f"{self.kind}({self.schema.describe()})"


class Input(Node):
    """Where updates enter a dataflow.

    Parameters
    ----------
    schema : Schema
    time_type : TimeType
    name : str
    frame : DataFrame or None
        Update rows with ``__time`` and ``__diff`` that are the whole history of the collection;
        None for an input that an `InputSession` feeds.
    local : bool
        The frame's rows are on the driver already.
    """

    def __init__(
        self,
        schema: Schema,
        time_type: TimeType,
        name: str,
        frame: DataFrame | None = None,
        *,
        local: bool = False,
    ):
        super().__init__("input", (), schema, time_type)
        self.name = name
        self.frame = frame
        self.local = local


class Linear(Node):
    """An operator without state: ``f(A + B) = f(A) + f(B)``, applied to updates as they are."""

    def __init__(
        self,
        kind: str,
        source: Node,
        schema: Schema,
        stage: Stage,
        needs: Callable[[frozenset[str]], frozenset[str]] | None = None,
    ):
        super().__init__(kind, (source,), schema, source.time_type)
        self.stage = stage
        self._needs = needs

    def needs(self, wanted: frozenset[str]) -> frozenset[str]:
        return super().needs(wanted) if self._needs is None else self._needs(wanted)


class Concat(Node):
    """The sum of several collections with the same columns."""

    def __init__(self, inputs: Sequence[Node]):
        schema = inputs[0].schema
        if any(node.schema.struct != schema.struct for node in inputs):
            # One of them may have nulls where the first has none.
            schema = Schema(without_nullability(schema.struct))
        super().__init__("concat", inputs, schema, inputs[0].time_type)

    def needs(self, wanted: frozenset[str]) -> frozenset[str]:
        return wanted


class Inspect(Node):
    """Passes a collection on unchanged, and shows its updates to a function."""

    def __init__(self, source: Node, show: Callable[..., object], by_table: bool):
        super().__init__("inspect", (source,), source.schema, source.time_type)
        self.show = show
        self.by_table = by_table


class Keyed(Node):
    """An operator that works on arranged records, by way of a kernel.

    Parameters
    ----------
    kind : str
    source : Node
        All its columns together are the record.
    schema : Schema
        Output columns.
    kernel : Kernel or None
        None only arranges, and gives nothing.
    """

    def __init__(self, kind: str, source: Node, schema: Schema, kernel: Kernel | None):
        super().__init__(kind, (source,), schema, source.time_type)
        self.kernel = kernel
        # Refuses records that cannot be compared here, where the operator is written down.
        self.layout: Layout = source.schema.layout()

    @property
    def keeps(self) -> bool:
        """Whether it holds its input as an arrangement from one step to the next."""
        return self.kernel is None or self.kernel.stateful
