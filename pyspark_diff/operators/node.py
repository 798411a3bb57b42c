"""Nodes of the dataflow graph: the inputs of an operator, and its output columns.

Nodes are values: descriptions without state that never change. A `Dataflow` keeps the state of each
running operator. An operator is correct iff at every time the accumulated output equals its batch
function of the accumulated input.
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
from pyspark_diff.spark.data_types import without_nullability
from pyspark_diff.spark.schema import Schema, TimeType

AnyNode = TypeVar("AnyNode", bound="Node")


@dataclass(frozen=True, eq=False)
class LoopScope:
    """A loop around nodes.

    Parameters
    ----------
    parent : LoopScope or None
        The loop around it.
    max_iterations : int
        The maximal number of iterations.
    stops : bool
        Whether the loop returns its result after the last iteration, instead of an error.
    advice : str
        Advice of the error message, instead of the general advice.
    endless : str
        Message if the loop needs more iterations than the outer arrangements of its operators have
        keys. Empty if the number of keys is no limit.
    falls : str
        A column of doubles that must fall by more than rounding before that limit applies, or "".
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

    def enclosing(self, depth: int) -> "LoopScope":
        """This loop or the loop around it with a depth."""
        loop = self
        while loop.depth > depth and loop.parent is not None:
            loop = loop.parent
        return loop

    def time_type(self) -> T.StructType | None:
        """The type of struct times if this loop or a loop around it is a field of times."""
        return None if self.parent is None else self.parent.time_type()

    def no_entry(self, number: int | None) -> DiffError:
        """The error of a record that is to enter at an invalid iteration."""
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
        """Whether a node is in this loop, or in a loop inside of it."""
        return node.loop is not None and node.loop.enclosing(self.depth) is self


class Node:
    """An operator's place in the graph. Two nodes are equal iff they are identical.

    Attributes
    ----------
    kind : str
        The operator's name, for messages.
    schema : Schema
        Data columns of the output.
    loop : LoopScope or None
        The innermost loop around it; None outside of all loops.
    """

    kind: str
    inputs: tuple["Node", ...]
    schema: Schema
    time_type: TimeType
    loop: LoopScope | None

    def _settle(self, inputs: Sequence["Node"], **others: object) -> None:
        """Set, during construction, the attributes that follow from the inputs, and others."""
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
        """Columns of the input from which the wanted output columns are computed."""
        return frozenset(name for node in self.inputs for name in node.schema.names)

    def needs_of(self, wanted: frozenset[str], number: int) -> frozenset[str]:
        """`needs` for one of several inputs."""
        return self.needs(wanted)

    @property
    def depth(self) -> int:
        """Number of loops around the node."""
        return 0 if self.loop is None else self.loop.depth

    def __repr__(self) -> str:
        return f"{self.kind}({self.schema.describe()})"


def _changed(node: AnyNode, **changes: object) -> AnyNode:
    changed = copy(node)
    for name, value in changes.items():
        object.__setattr__(changed, name, value)
    return changed


def _innermost(kind: str, inputs: Sequence[Node]) -> LoopScope | None:
    """The loop of an operator: the innermost loop of its inputs."""
    loops = [node.loop for node in inputs if node.loop is not None]
    innermost = max(loops, key=lambda loop: loop.depth, default=None)
    for loop in loops:
        if innermost is not None and innermost.enclosing(loop.depth) is not loop:
            raise SchemaError(
                f"{kind} has inputs from two loops, {loop.name} and {innermost.name}, and neither "
                "is inside of the other; take the result of a loop: leave()"
            )
    return innermost


@dataclass(frozen=True, eq=False, repr=False)
class Input(Node):
    """A source of updates of a dataflow.

    Parameters
    ----------
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
    """A collection that never changes: some records, present from the beginning.

    Parameters
    ----------
    schema : Schema
    time_type : TimeType
    rows : pyarrow.Table or DataFrame
        Records with the columns of the schema.
    origin : object, optional
        The immutable source of the records. Equal sources have equal records.
    """

    name: str = field(default="constant", init=False)
    frame: None = field(default=None, init=False)
    rows: pa.Table | DataFrame = field(kw_only=True)
    origin: object = field(default=None, kw_only=True)


@dataclass(frozen=True, eq=False, repr=False)
class Linear(Node):
    """An operator without state, applied to updates: ``f(A + B) = f(A) + f(B)``.

    Parameters
    ----------
    made_of : callable, optional
        From wanted columns of the output to columns of the input. By default all input columns.
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
    """A node whose output has the columns of its inputs, unchanged."""

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
            # Another source may have nulls in columns whose first source has none.
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
        """Whether it keeps an arrangement from one step to the next."""
        return True

    def stored(self, wanted: frozenset[str]) -> tuple[str, ...]:
        """Stored columns if some are wanted, the key first."""
        values = (n for n in self.schema.names if n in wanted and n not in self.key)
        return (*self.key, *values)

    def layout(self, wanted: frozenset[str]) -> Layout:
        """The layout of the stored records."""
        return self.schema.layout_by(self.key, self.stored(wanted))


@dataclass(frozen=True, eq=False, repr=False)
class Keyed(Arranged):
    """An operator that arranges a stream of updates by key, and may apply a kernel.

    Without a kernel it is an arrangement of its input. With a kernel the arrangement is private
    state of the operator, and has no other reader.

    Parameters
    ----------
    schema : Schema
        Output columns.
    kernel : ReplayKernel or None
        None only arranges, and emits nothing.
    by : sequence of str, optional
        Columns of the key. By default the whole record, which record kernels require.
    ordering : sequence of (str, bool, bool), optional
        Columns of the value that define the stored order: name, whether it is descending, and
        whether nulls come last. Other columns follow.
    diff_columns : DiffColumns, optional
        Columns that move into the diff, which becomes a vector. Only the key's columns remain.
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
        # The layout raises an error for types that cannot be stored, before any step.
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
        """Whether it is an arrangement by key without an order, a kernel or sums."""
        return self.kernel is None and self.ordering is None and self.diff_columns is None

    @property
    def keeps(self) -> bool:
        """Whether it keeps its input as an arrangement from one step to the next."""
        return self.kernel is None or self.kernel.stateful

    def needs(self, wanted: frozenset[str]) -> frozenset[str]:
        if self.diff_columns is not None:
            return frozenset((*self.key, *self.diff_columns.columns))
        return super().needs(wanted) if self._whole is not None else frozenset(self.stored(wanted))

    def stored(self, wanted: frozenset[str]) -> tuple[str, ...]:
        if self.diff_columns is not None:
            return self.key
        first = [name for name, _, _ in self.ordering or ()]
        names = super().stored(wanted | set(first))
        values = [name for name in names[len(self.key):] if name not in first]
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
    """An operator that reads arrangements with a kernel, bucket by bucket.

    If the kernel needs its earlier output, the output is an arrangement too.

    Parameters
    ----------
    sources : sequence of Arranged
        Arrangements with keys of the same types.
    schema : Schema
        Output columns.
    by : sequence of str, optional
        The output's columns with the arrangements' key, if the output has all of them. An
        arrangement of the output by these columns needs no shuffle.
    """

    kind: str
    sources: InitVar[Sequence[Arranged]]
    schema: Schema
    kernel: Kernel
    by: InitVar[Sequence[str] | None] = None
    #: Whether the output is partitioned by its key.
    keyed: bool = field(init=False)

    def __post_init__(self, sources: Sequence[Arranged], by: Sequence[str] | None) -> None:
        self._settle(sources, key=tuple(by or ()), keyed=by is not None)
        if self.keeps or (self.keyed and self.loop is not None):
            self.schema.layout()  # see `Keyed`: a loop arranges this output

    @property
    def arranged(self) -> tuple[Arranged, ...]:
        """The arrangements that it reads."""
        return self.inputs  # type: ignore[return-value]

    def with_arranged_output(self) -> Reader:
        """This operator with its output arranged by its key. Joins never read earlier output."""
        if self.keeps or not isinstance(self.kernel, ReplayKernel):
            return self
        return _changed(self, kernel=replace(self.kernel, arranges_output=True))

    @property
    def keeps(self) -> bool:
        """Whether its output is an arrangement."""
        return self.kernel.arranges_output

    @property
    def recalls(self) -> bool:
        """Whether it reads its output of earlier steps."""
        return self.kernel.recalls

    def stored(self, wanted: frozenset[str]) -> tuple[str, ...]:
        # Later steps retract whole rows, so all columns are stored whichever are wanted.
        return super().stored(frozenset(self.schema.names))

    def needs_of(self, wanted: frozenset[str], number: int) -> frozenset[str]:
        source = self.arranged[number]
        if isinstance(self.kernel, RecordKernel):
            return frozenset(source.schema.names)
        if self.keeps:
            wanted = frozenset(self.schema.names)
        positions = [i for i, name in enumerate(self.schema.names) if name in wanted]
        return frozenset(self.kernel.needs(positions, number)) | set(source.key)
