"""The lowering: rewrites a written program into the running program.

For every node ``n``, every time ``t``, and all updates of the inputs::

    accumulate(lowered(n), t) = accumulate(n, t)

It happens once, by four rewritings. Each is a pure function of programs:

merged
    Arrangements of one collection by one key become one node, and so do constants from one table.

arranged
    Operators read existing arrangements: an operator on whole records reads the arrangement of its
    input. An output by the key that a reader needs becomes an arrangement itself. In a loop all
    operators read arrangements, and keep their outputs, which they need at other coordinates.

entered
    A stream from outside of all loops enters a loop through an `Enter`.

shared
    An expression that only Spark evaluates and several operators read is evaluated once.

A program that has run can grow. Its nodes, `Existing`, do not change, and only new nodes are
rewritten. The last rewriting, `imported`, connects them with the past of the existing nodes.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from typing import Callable, Hashable, Mapping, Sequence

from pyspark_diff.engine.demand import worth_sharing
from pyspark_diff.engine.program import Program, program_of
from pyspark_diff.errors import NotReadableError
from pyspark_diff.operators.arrange import Output, kept_by
from pyspark_diff.operators.by_self import over_arrangement
from pyspark_diff.operators.imported import Imported
from pyspark_diff.operators.inspect import Inspect
from pyspark_diff.operators.linear import DropNull, Pick
from pyspark_diff.operators.loop import Enter, Leave, Variable, time_scope
from pyspark_diff.operators.node import (
    Arranged,
    Constant,
    Keyed,
    Linear,
    LoopScope,
    Node,
    Reader,
    Shared,
)


@dataclass(frozen=True)
class Lowered:
    """A program in another form, with a map of its nodes.

    Parameters
    ----------
    nodes : mapping of Node to Node
        For each node of the first form, the new node with the same collection.
    """

    program: Program
    nodes: Mapping[Node, Node]


@dataclass(frozen=True)
class Existing:
    """The nodes that have run, which do not change.

    Parameters
    ----------
    program : Program
        The running program.
    nodes : mapping of Node to Node
        The running node of each written node.
    whole : frozenset of Node
        Arrangements with all records and all columns of their collections.
    gone : frozenset of Node
        Running nodes without their past: new operators need new copies of them.
    wanted : mapping of Node to frozenset of str
        The columns that nodes have had so far.
    origins : mapping of Node to tuple of Node
        The written nodes of each running node.
    bases : tuple of Node
        Nodes that continue without readers, since new operators are backfilled from them.
    """

    program: Program = field(default_factory=lambda: Program((), (), {}))
    nodes: Mapping[Node, Node] = field(default_factory=dict)
    whole: frozenset[Node] = frozenset()
    gone: frozenset[Node] = frozenset()
    wanted: Mapping[Node, frozenset[str]] = field(default_factory=dict)
    origins: Mapping[Node, tuple[Node, ...]] = field(default_factory=dict)
    bases: tuple[Node, ...] = ()

    def __contains__(self, node: Node) -> bool:
        return node in self.program.numbers

    def serves(self, node: Node) -> bool:
        """Whether new operators may read a node's arrangement."""
        return node not in self or node in self.whole


_Rewriting = Callable[[Program, Existing], "Lowered"]


def lowered(program: Program, existing: Existing = Existing()) -> Lowered:
    """The running program.

    Parameters
    ----------
    program : Program
        The written program, with all nodes that have run.

    Raises
    ------
    NotReadableError
        If a new operator reads a collection inside of a loop that has run.
    """
    unset = [node for node in program.nodes
             if isinstance(node, Variable) and node not in program.results]
    if unset:
        raise ValueError(f"{unset[0]!r} was never set")
    nodes: Mapping[Node, Node] = {node: node for node in program.nodes}
    rewritings: tuple[_Rewriting, ...] = (
        _with_existing, merged, arranged, entered, shared, imported
    )
    for rewriting in rewritings:
        rewritten = rewriting(program, existing)
        program = rewritten.program
        # An earlier program may have two equal nodes, and only one of them may remain.
        nodes = {node: rewritten.nodes[to] for node, to in nodes.items() if to in rewritten.nodes}
    return Lowered(program, nodes)


def _with_existing(program: Program, existing: Existing) -> Lowered:
    """The program with its existing nodes in their running form."""
    nodes: dict[Node, Node] = {}
    sources: dict[Node, Node] = {}
    for node in program.nodes:
        running = existing.nodes.get(node)
        if running is not None and running not in existing.gone:
            nodes[node] = sources[node] = running
        elif running is not None and isinstance(node, Inspect):
            # It has shown the past already, so new operators read its input.
            nodes[node], sources[node] = running, sources[node.inputs[0]]
        else:
            again = node if running is None else copy(node)
            nodes[node] = sources[node] = again.over([sources[n] for n in node.inputs])
    results = dict(existing.program.results)
    for node, result in program.results.items():
        variable = nodes[node]
        if isinstance(variable, Variable):
            results.setdefault(variable, nodes[result])
    sinks = [existing.nodes.get(sink, nodes[sink]) for sink in program.sinks]
    return Lowered(program_of([*sinks, *existing.bases], results), nodes)


def merged(program: Program, existing: Existing = Existing()) -> Lowered:
    """Merge equal arrangements, equal constants, and the projections before them."""
    known: dict[Hashable, Node] = {}
    for node in existing.program.nodes:
        if not isinstance(node, Arranged) or existing.serves(node):
            known.setdefault(_likeness(node), node)

    def merge(node: Node, inputs: Sequence[Node]) -> Node:
        new = node.over(inputs)
        likeness = _likeness(new)
        return new if likeness is None else known.setdefault(likeness, new)

    return _rewritten(program, existing, merge)


def _likeness(node: Node) -> Hashable:
    """A value that is equal for nodes with equal output; None if a node has no equals."""
    if isinstance(node, Keyed) and node.kernel is None:
        return node.inputs, node.key, node.ordering, node.diff_columns
    if isinstance(node, Linear) and isinstance(node.stage, (Pick, DropNull)):
        return node.inputs, node.stage
    if isinstance(node, Constant) and node.origin is not None:
        return Constant, id(node.origin), node.schema.describe()
    return None


def arranged(program: Program, existing: Existing = Existing()) -> Lowered:
    """Read existing arrangements, and keep the outputs that operators in loops need."""
    asked = _asked(program)
    known: dict[tuple[Node, tuple[str, ...]], Arranged] = {}
    for there in existing.whole:
        if isinstance(there, Keyed) and there.plain:
            known[there.inputs[0], there.key] = there

    def read_itself(source: Node) -> bool:
        return isinstance(source, Reader) and source.keeps and existing.serves(source)

    def by_key(source: Node, key: tuple[str, ...], written: Arranged | None = None) -> Arranged:
        if isinstance(source, Reader) and read_itself(source) and source.keyed:
            if source.key == key:
                return source
        if (source, key) not in known:
            known[source, key] = written or kept_by(source, key)
        return known[source, key]

    def read(node: Node, inputs: Sequence[Node]) -> Node:
        new = node.over(inputs)
        if isinstance(new, Keyed) and new.plain:
            return by_key(inputs[0], new.key, new)
        if isinstance(new, Output):
            source = inputs[0]
            if read_itself(source):
                return source
            return by_key(source, source.schema.names)
        if isinstance(new, Keyed) and new.kernel is not None and new.kernel.stateful:
            if new.loop is not None or (node.inputs[0], new.key) in asked:
                new = over_arrangement(new, by_key(inputs[0], new.key))
        if isinstance(new, Reader) and new.keyed:
            if new.loop is not None or (node, new.key) in asked:
                return new.with_arranged_output()
        return new

    return _rewritten(program, existing, read)


def _asked(program: Program) -> set[tuple[Node, tuple[str, ...]]]:
    """The collections that operators need as arrangements, with their keys."""
    asked = {(node.inputs[0], node.key) for node in program.nodes
             if isinstance(node, Keyed) and node.plain}
    for node in program.nodes:
        if isinstance(node, Output):
            (source,) = node.inputs
            is_kept = isinstance(source, Reader) and (
                source.keeps or (source.keyed and (source, source.key) in asked)
            )
            if not is_kept:
                asked.add((source, source.schema.names))
    return asked


def entered(program: Program, existing: Existing = Existing()) -> Lowered:
    """Insert an `Enter` before each read of an outside stream in a loop."""
    known: dict[tuple[LoopScope, Node], Enter] = {}

    def enter_loop(loop: LoopScope | None, source: Node) -> Node:
        if loop is None or source.loop is not None:
            return source
        at = loop.enclosing(1), source
        if at not in known:
            known[at] = Enter(*at)
        return known[at]

    def enter(node: Node, inputs: Sequence[Node]) -> Node:
        if isinstance(node, (Enter, Leave, Reader)):
            return node.over(inputs)
        return node.over([enter_loop(node.loop, source) for source in inputs])

    return _rewritten(program, existing, enter, enter_loop)


def shared(program: Program, existing: Existing = Existing()) -> Lowered:
    """Evaluate expressions with several readers once."""
    expensive = worth_sharing(program)

    def once(node: Node, inputs: Sequence[Node]) -> Node:
        new = node.over(inputs)
        return Shared(new) if node in expensive else new

    return _rewritten(program, existing, once)


def imported(program: Program, existing: Existing = Existing()) -> Lowered:
    """Connect new operators with the past of existing nodes."""
    known: dict[Node, Imported] = {}

    def bring(node: Node, source: Node) -> Node:
        if source not in existing:
            return source
        if source.loop is not time_scope(source):
            assert source.loop is not None  # it is in a loop of the user
            raise NotReadableError(
                f"{node.kind} cannot be added inside of {source.loop.name}, which has run. Read "
                "an output of the loop, or write another loop"
            )
        if isinstance(node, Reader):
            return source  # an arrangement contains its past
        return known.setdefault(source, Imported(source))

    def late(node: Node, inputs: Sequence[Node]) -> Node:
        return node.over([bring(node, source) for source in inputs])

    return _rewritten(program, existing, late)


def _rewritten(
    program: Program,
    existing: Existing,
    rule: Callable[[Node, Sequence[Node]], Node],
    round_: Callable[[LoopScope, Node], Node] = lambda loop, result: result,
) -> Lowered:
    """A program with new nodes in place of others.

    Parameters
    ----------
    existing : Existing
        Nodes that do not change.
    rule : callable
        Returns the new node for a node and its new inputs. A variable remains a variable.
    round_ : callable
        Returns the feedback for a loop and a new result in it.
    """
    nodes: dict[Node, Node] = {}
    for node in program.nodes:
        if node in existing:
            nodes[node] = node
        else:
            nodes[node] = rule(node, [nodes[source] for source in node.inputs])
    results: dict[Variable, Node] = {}
    for node, result in program.results.items():
        variable = nodes[node]
        if isinstance(variable, Variable):
            there = variable in existing
            results[variable] = nodes[result] if there else round_(node.loop, nodes[result])
    return Lowered(program_of([nodes[sink] for sink in program.sinks], results), nodes)
