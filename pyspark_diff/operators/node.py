"""Nodes of the dataflow graph: what an operator reads, and what it gives.

Nodes are values: descriptions that hold no state and never change, so that to ask one for something
changes nothing. A `Dataflow` holds the state of each that runs. An operator is correct iff at every
time the output accumulated there equals its batch function of the input accumulated there.
"""

from __future__ import annotations

from copy import copy
from dataclasses import InitVar, dataclass, field, replace
from typing import Callable, Sequence, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from pyspark_diff.errors import DiffError, SchemaError, StalledError
from pyspark_diff.kernels.layout import Layout
from pyspark_diff.operators.contract import (
    DiffColumns,
    Kernel,
    RecordKernel,
    ReplayKernel,
    Stage,
)
from pyspark_diff.spark.schema import Schema, TimeType, without_nullability

AnyNode = TypeVar("AnyNode", bound="Node")


@dataclass(frozen=True, eq=False)
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
    advice : str
        What a refusal says, instead of what is so of any loop.
    endless : str
        What it says where it goes on for more iterations than there are keys in the arrangements
        from outside that its operators read; nothing if that is no reason to refuse it.
    falls : str
        A column of doubles, if it is only a reason where that has fallen by more than rounding.
    """

    name: str
    parent: LoopScope | None
    max_iterations: int
    stops: bool = field(kw_only=True)
    advice: str = field(default="", kw_only=True)
    endless: str = field(default="", kw_only=True)
    falls: str = field(default="", kw_only=True)
    depth: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", 1 if self.parent is None else self.parent.depth + 1)

    def around(self, depth: int) -> "LoopScope":
        """The loop at a depth, of this one and those around it."""
        found = self
        while found.depth > depth and found.parent is not None:
            found = found.parent
        return found

    def time_type(self) -> T.StructType | None:
        """The type of times, where these are structs and it is a field of theirs, or in one."""
        return None if self.parent is None else self.parent.time_type()

    def no_entry(self, number: int | None) -> DiffError:
        """The error of a record that is to enter at an iteration that there is not."""
        if number is None:
            return SchemaError(
                f"enter_at: a record of {self.name} has no iteration to enter at: it is null"
            )
        if number < 0:
            return SchemaError(
                f"enter_at: a record of {self.name} is to enter at iteration {number}; iterations "
                "are counted from 0"
            )
        return StalledError(
            f"enter_at: a record of {self.name} is to enter at iteration {number}, and it has "
            f"{self.max_iterations} at most: give a larger max_iterations"
        )

    def __contains__(self, node: Node) -> bool:
        """Whether a node is in this loop, or in one inside of it."""
        return node.loop is not None and node.loop.around(self.depth) is self


class Node:
    """An operator's place in the graph. Two nodes are equal iff they are the same one.

    Attributes
    ----------
    kind : str
        The operator's name, for messages.
    inputs : tuple of Node
    schema : Schema
        Data columns of the output.
    time_type : TimeType
    loop : LoopScope or None
        The innermost loop around it; None outside of all.
    """

    kind: str
    inputs: tuple["Node", ...]
    schema: Schema
    time_type: TimeType
    loop: LoopScope | None

    def _settle(self, inputs: Sequence["Node"], **others: object) -> None:
        """Fill in, while the node is made, what follows from its inputs, and other attributes."""
        others = {"inputs": tuple(inputs), "loop": _innermost(self.kind, inputs), **others}
        if inputs:
            others["time_type"] = inputs[0].time_type
        for name, value in others.items():
            object.__setattr__(self, name, value)

    def over(self: AnyNode, inputs: Sequence["Node"]) -> AnyNode:
        """The same operator on other inputs, with the same columns and in the same loops."""
        inputs = tuple(inputs)
        return self if inputs == self.inputs else _changed(self, inputs=inputs)

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


def _changed(node: AnyNode, **changes: object) -> AnyNode:
    """A copy of a node with some attributes changed."""
    made = copy(node)
    for name, value in changes.items():
        object.__setattr__(made, name, value)
    return made


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


@dataclass(frozen=True, eq=False, repr=False)
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

    kind = "input"
    schema: Schema
    time_type: TimeType
    name: str
    frame: DataFrame | None = None
    local: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        self._settle(())


@dataclass(frozen=True, eq=False, repr=False)
class Constant(Input):
    """A collection that never changes: some records, there from the beginning.

    Parameters
    ----------
    schema : Schema
    time_type : TimeType
    rows : pyarrow.Table or DataFrame
        In the columns of the schema.
    origin : object, optional
        What they were made of, and never changes itself: the same gives the same.
    """

    name: str = field(default="constant", init=False)
    frame: None = field(default=None, init=False)
    rows: pa.Table | DataFrame = field(kw_only=True)
    origin: object = field(default=None, kw_only=True)


@dataclass(frozen=True, eq=False, repr=False)
class Linear(Node):
    """An operator without state: ``f(A + B) = f(A) + f(B)``, applied to updates as they are.

    Parameters
    ----------
    kind : str
    source : Node
    schema : Schema
    stage : Stage
    made_of : callable, optional
        From wanted columns of the output to those of the input; all of the input if not given.
    """

    kind: str
    source: InitVar[Node]
    schema: Schema
    stage: Stage
    made_of: Callable[[frozenset[str]], frozenset[str]] | None = None

    def __post_init__(self, source: Node) -> None:
        self._settle((source,))

    def needs(self, wanted: frozenset[str]) -> frozenset[str]:
        return super().needs(wanted) if self.made_of is None else self.made_of(wanted)


class Passing(Node):
    """A node whose output has the columns of its inputs, each as it is."""

    def needs(self, wanted: frozenset[str]) -> frozenset[str]:
        return wanted


@dataclass(frozen=True, eq=False, repr=False)
class Shared(Passing):
    """Expressions that several operators read, evaluated once a step for all of them."""

    kind = "shared"
    source: InitVar[Node]

    def __post_init__(self, source: Node) -> None:
        self._settle((source,), schema=source.schema)


@dataclass(frozen=True, eq=False, repr=False)
class Concat(Passing):
    """The sum of several collections with the same columns."""

    kind = "concat"
    sources: InitVar[Sequence[Node]]

    def __post_init__(self, sources: Sequence[Node]) -> None:
        schema = sources[0].schema
        if any(node.schema.struct != schema.struct for node in sources):
            # One of them may have nulls where the first has none.
            schema = Schema(without_nullability(schema.struct))
        self._settle(sources, schema=schema)


class Arranged(Node):
    """A node that keeps its collection as an arrangement, which any number of readers share.

    Attributes
    ----------
    key : tuple of str
        Columns of the key.
    """

    key: tuple[str, ...]

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
        return self.schema.layout_by(self.key, self.stored(wanted))


@dataclass(frozen=True, eq=False, repr=False)
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
    by : sequence of str, optional
        Columns of the key; the whole record if not given, as kernels want it.
    ordering : sequence of (str, bool, bool), optional
        Columns of the value that it is kept in the order of: name, whether it is descending, and
        whether nulls come last. Those that are not named come behind.
    diff_columns : DiffColumns, optional
        Columns that move into the diff, which is a vector then. There are no others but the key's.
    """

    kind: str
    source: InitVar[Node]
    schema: Schema
    kernel: ReplayKernel | None
    by: InitVar[Sequence[str] | None] = None
    ordering: Sequence[tuple[str, bool, bool]] | None = field(default=None, kw_only=True)
    diff_columns: DiffColumns | None = field(default=None, kw_only=True)
    _whole: Layout | None = field(init=False)

    def __post_init__(self, source: Node, by: Sequence[str] | None) -> None:
        # Refuses records that cannot be kept here, where the operator is written down.
        key = source.schema.names if by is None else tuple(by)
        whole = source.schema.layout()
        if self.kernel is not None and len(key) < len(source.schema.names):
            whole = source.schema.layout_by(key, source.schema.names)
        self._settle(
            (source,),
            key=key,
            ordering=None if self.ordering is None else tuple(self.ordering),
            _whole=whole if self.kernel is not None else None,
        )

    @property
    def plain(self) -> bool:
        """Whether it is an arrangement by key, and nothing more."""
        return self.kernel is None and self.ordering is None and self.diff_columns is None

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


@dataclass(frozen=True, eq=False, repr=False)
class Reader(Arranged):
    """An operator that reads arrangements, by way of a kernel that sees a bucket at a time.

    Where the kernel has to know what it gave before, its output is an arrangement too.

    Parameters
    ----------
    kind : str
    sources : sequence of Arranged
        All with keys of the same types.
    schema : Schema
        Output columns.
    kernel : Kernel
    by : sequence of str, optional
        The output's columns that are the arrangements' key, if they are all there: by them the
        output can be an arrangement without moving.
    """

    kind: str
    sources: InitVar[Sequence[Arranged]]
    schema: Schema
    kernel: Kernel
    by: InitVar[Sequence[str] | None] = None
    #: Whether the output comes out by its key.
    keyed: bool = field(init=False)

    def __post_init__(self, sources: Sequence[Arranged], by: Sequence[str] | None) -> None:
        self._settle(sources, key=tuple(by or ()), keyed=by is not None)
        if self.keeps or (self.keyed and self.loop is not None):
            self.schema.layout()  # as of `Keyed`: in a loop its output will be arranged

    @property
    def arranged(self) -> tuple[Arranged, ...]:
        """The arrangements that it reads."""
        return self.inputs  # type: ignore[return-value]

    def with_arranged_output(self) -> Reader:
        """This operator with its output arranged by its key; nothing is recalled of a join."""
        if self.keeps or not isinstance(self.kernel, ReplayKernel):
            return self
        return _changed(self, kernel=replace(self.kernel, arranges_output=True))

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
        if isinstance(self.kernel, RecordKernel):
            return frozenset(source.schema.names)
        if self.keeps:
            wanted = frozenset(self.schema.names)
        positions = [i for i, name in enumerate(self.schema.names) if name in wanted]
        return frozenset(self.kernel.needs(positions, number)) | set(source.key)
