"""Nodes of the dataflow graph: what an operator reads, and what it gives.

Nodes are descriptions and hold no state; a `Dataflow` holds the state of each. An operator is
correct iff at every time the output accumulated there equals its batch function of the input
accumulated there.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, Callable, Sequence

from pyspark.sql import DataFrame

from pyspark_diff.errors import SchemaError
from pyspark_diff.kernels.layout import Layout
from pyspark_diff.operators.contract import DiffColumns, Kernel, ReplayKernel, Stage
from pyspark_diff.spark.schema import Schema, TimeType, without_nullability

_serial = itertools.count()


class LoopScope:
    """One loop, as nodes know it.

    Parameters
    ----------
    name : str
    parent : LoopScope or None
        The loop around it.
    max_iterations : int
        How many iterations there are at most.
    stops : bool
        Whether it returns what it has reached then, instead of refusing.
    """

    def __init__(
        self, name: str, parent: LoopScope | None, max_iterations: int, *, stops: bool
    ):
        self.name = name
        self.parent = parent
        self.depth: int = 1 if parent is None else parent.depth + 1
        self.max_iterations = max_iterations
        self.stops = stops
        self.variables: list[Any] = []
        #: Collections from outside of all loops that are read inside, by the node read.
        self.entered: dict[Node, Node] = {}

    def around(self, depth: int) -> "LoopScope":
        """The loop at a depth, of this one and those around it."""
        found = self
        while found.depth > depth and found.parent is not None:
            found = found.parent
        return found

    def __contains__(self, node: Node) -> bool:
        """Whether a node is in this loop, or in one inside of it."""
        return node.loop is not None and node.loop.around(self.depth) is self


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
        #: The innermost loop around it; None outside of all.
        self.loop: LoopScope | None = _innermost(kind, self.inputs)
        #: The nodes that keep this collection, by the key that it is indexed by, and its order.
        self.arrangements: dict[tuple[Any, ...], Arranged] = {}
        #: Nodes with some of its columns, so that asked for again they are the same ones.
        self.picks: dict[tuple[tuple[str, str], ...], Linear] = {}
        #: Nodes without the records in which one of some columns is null, likewise.
        self.drops: dict[tuple[str, ...], Linear] = {}

    def needs(self, wanted: frozenset[str]) -> frozenset[str]:
        """Columns of the input that the wanted output columns are made of."""
        return frozenset(name for node in self.inputs for name in node.schema.names)

    def needs_of(self, wanted: frozenset[str], number: int) -> frozenset[str]:
        """The same for one of several inputs."""
        return self.needs(wanted)

    @property
    def depth(self) -> int:
        """How many loops are around it."""
        return 0 if self.loop is None else self.loop.depth

    def __repr__(self) -> str:
        return f"{self.kind}({self.schema.describe()})"


def _innermost(kind: str, inputs: Sequence[Node]) -> LoopScope | None:
    """The loop that an operator is in: the innermost of those that its inputs are in."""
    loops = [node.loop for node in inputs if node.loop is not None]
    found = max(loops, key=lambda loop: loop.depth, default=None)
    for loop in loops:
        if found is not None and found.around(loop.depth) is not loop:
            raise SchemaError(
                f"{kind} has inputs from two loops, {loop.name} and {found.name}, and neither is "
                "inside of the other; take what comes out of one: leave()"
            )
    return found


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


class Constant(Input):
    """A collection that never changes: some records, there from the beginning.

    Parameters
    ----------
    schema : Schema
    time_type : TimeType
    rows : sequence of tuple
    """

    def __init__(self, schema: Schema, time_type: TimeType, rows: Sequence[tuple[Any, ...]]):
        super().__init__(schema, time_type, "constant")
        self.rows = tuple(rows)


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


class Arranged(Node):
    """A node that keeps its collection as an arrangement, which any number of readers share.

    Parameters
    ----------
    kind : str
    inputs : sequence of Node
    schema : Schema
        Columns of the collection.
    key : sequence of str
        Columns of the key.
    """

    def __init__(
        self, kind: str, inputs: Sequence[Node], schema: Schema, key: Sequence[str]
    ):
        super().__init__(kind, inputs, schema, inputs[0].time_type)
        self.key = tuple(key)

    @property
    def keeps(self) -> bool:
        """Whether it holds an arrangement from one step to the next."""
        return True

    def stored(self, wanted: frozenset[str]) -> tuple[str, ...]:
        """Columns that are kept, those of the key first, when some are wanted."""
        values = (n for n in self.schema.names if n in wanted and n not in self.key)
        return (*self.key, *values)

    def layout(self, wanted: frozenset[str]) -> Layout:
        """How its records are held."""
        stored = self.stored(wanted)
        key = self.schema.layout(self.key)
        if len(self.key) == len(self.schema.names):
            return key
        return replace(key, value=self.schema.layout(stored[len(self.key):]))


class Keyed(Arranged):
    """An operator that takes a stream of updates in, by key, and may apply a kernel on the way.

    Without a kernel it is an arrangement of its input. With one, the arrangement is its own: what
    it needs to know of the past, and no reader sees it.

    Parameters
    ----------
    kind : str
    source : Node
    schema : Schema
        Output columns.
    kernel : ReplayKernel or None
        None only arranges, and gives nothing.
    key : sequence of str, optional
        Columns of the key; the whole record if not given, as kernels want it.
    ordering : sequence of (str, bool, bool), optional
        Columns of the value that it is kept in the order of: name, whether it is descending, and
        whether nulls come last. Those that are not named come behind.
    diff_columns : DiffColumns, optional
        Columns that move into the diff, which is a vector then. There are no others but the key's.
    """

    def __init__(
        self,
        kind: str,
        source: Node,
        schema: Schema,
        kernel: ReplayKernel | None,
        key: Sequence[str] | None = None,
        *,
        ordering: Sequence[tuple[str, bool, bool]] | None = None,
        diff_columns: DiffColumns | None = None,
    ):
        key = source.schema.names if key is None else key
        super().__init__(kind, (source,), source.schema, key)
        self.schema = schema
        self.kernel = kernel
        self.ordering = None if ordering is None else tuple(ordering)
        self.diff_columns = diff_columns
        #: In a loop, the operator that takes its place: see `pyspark_diff.engine.graph`.
        self.stand_in: Reader | None = None
        # Refuses records that cannot be compared here, where the operator is written down.
        whole = source.schema.layout()
        self._whole = whole if kernel is not None else None

    @property
    def keeps(self) -> bool:
        """Whether it holds its input as an arrangement from one step to the next."""
        return self.kernel is None or self.kernel.stateful

    def needs(self, wanted: frozenset[str]) -> frozenset[str]:
        if self.diff_columns is not None:
            return frozenset((*self.key, *self.diff_columns.columns))
        return super().needs(wanted) if self._whole is not None else frozenset(self.stored(wanted))

    def stored(self, wanted: frozenset[str]) -> tuple[str, ...]:
        if self.diff_columns is not None:
            return self.key
        first = [name for name, _, _ in self.ordering or ()]
        found = super().stored(wanted | set(first))
        values = [name for name in found[len(self.key):] if name not in first]
        return (*self.key, *first, *values)

    def layout(self, wanted: frozenset[str]) -> Layout:
        if self._whole is not None:
            return self._whole
        if self.diff_columns is not None:
            return self.schema.layout(self.key)
        if self.ordering is None:
            return super().layout(wanted)
        value = self.schema.layout(self.stored(wanted)[len(self.key):])
        order = [(down, last) for _, down, last in self.ordering]
        order += [(False, False)] * (len(value.types) - len(order))
        key = self.schema.layout(self.key)
        return replace(key, value=replace(value, ordering=tuple(order)))


class Reader(Arranged):
    """An operator that reads arrangements, by way of a kernel that sees a bucket at a time.

    Where the kernel has to know what it gave before, its output is an arrangement too.

    Parameters
    ----------
    kind : str
    arranged : sequence of Arranged
        All with keys of the same types.
    schema : Schema
        Output columns.
    kernel : Kernel
    key : sequence of str, optional
        The output's columns that are the arrangements' key, if they are all there: by them the
        output can be an arrangement without moving.
    """

    def __init__(
        self,
        kind: str,
        arranged: Sequence[Arranged],
        schema: Schema,
        kernel: Kernel,
        key: Sequence[str] | None = None,
    ):
        super().__init__(kind, arranged, schema, key or ())
        self.arranged = tuple(arranged)
        self.kernel = kernel
        self._keyed = key is not None
        if self.loop is not None and self._keyed:
            self.output_by(self.key)  # it has to know what it gave at other coordinates
        if kernel.arranges_output:
            schema.layout()

    def output_by(self, key: Sequence[str]) -> Reader | None:
        """This node with its output arranged by a key, if it comes out that way; else None."""
        if not self._keyed or tuple(key) != self.key or not isinstance(self.kernel, ReplayKernel):
            return None
        if not self.kernel.arranges_output:
            self.schema.layout()
            self.kernel = replace(self.kernel, arranges_output=True)
        return self

    @property
    def keeps(self) -> bool:
        """Whether its output is an arrangement."""
        return self.kernel.arranges_output

    @property
    def recalls(self) -> bool:
        """Whether it looks up in a step what it gave in those before."""
        return self.kernel.recalls

    def stored(self, wanted: frozenset[str]) -> tuple[str, ...]:
        # What was given must be found again whole, whoever reads it.
        return super().stored(frozenset(self.schema.names))

    def needs_of(self, wanted: frozenset[str], number: int) -> frozenset[str]:
        source = self.arranged[number]
        if self.keeps:
            wanted = frozenset(self.schema.names)
        positions = [i for i, name in enumerate(self.schema.names) if name in wanted]
        return frozenset(self.kernel.needs(positions, number)) | set(source.key)
