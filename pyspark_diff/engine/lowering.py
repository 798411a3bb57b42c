"""The lowering: from a program as it is written to the one that runs.

For every node ``n``, every time ``t``, and all updates of the inputs::

    accumulate(lowered(n), t) = accumulate(n, t)

It is done once, by four rewritings, each a pure function of programs:

merged
    What was asked for twice, an arrangement of one collection by one key, is one, and so is a
    constant that was made of one table.
arranged
    What is arranged already is read from there: a collection that comes out by the key that
    somebody wants it by becomes an arrangement itself, an operator on whole records finds them in
    the arrangement that there is. In a loop all operators are readers of arrangements, and keep
    what they gave, since they have to know it at other coordinates.
entered
    A stream from outside of all loops goes up to where a loop does by way of an `Enter`.
shared
    An expression that only Spark evaluates and several operators read is evaluated once.

A program that has run can grow. What has run stays what it is, `Standing`, and only what is new is
rewritten; the last rewriting, `imported`, brings the past of the one into the other.
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
    """A program in another form, and where its nodes went.

    Parameters
    ----------
    program : Program
    nodes : mapping of Node to Node
        For each node of the first form the one that gives the same collection.
    """

    program: Program
    nodes: Mapping[Node, Node]


@dataclass(frozen=True)
class Standing:
    """What has run already, and stays as it is.

    Parameters
    ----------
    program : Program
        What runs.
    nodes : mapping of Node to Node
        For each node as it was written the one that runs.
    whole : frozenset of Node
        Arrangements that hold all of their collections, all columns of it.
    gone : frozenset of Node
        Nodes that run and whose past is gone: for what is new they are made again.
    wanted : mapping of Node to frozenset of str
        Columns that nodes have given so far.
    origins : mapping of Node to tuple of Node
        For each node that runs those as they were written that it comes from.
    bases : tuple of Node
        Nodes that go on whatever reads them, as something new is given its past from there.
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


_Rewriting = Callable[[Program, Standing], "Lowered"]


def lowered(program: Program, standing: Standing = Standing()) -> Lowered:
    """The program that runs.

    Parameters
    ----------
    program : Program
        As it is written, with all that has run.
    standing : Standing, optional

    Raises
    ------
    NotReadableError
        If something new is made of what is inside of a loop that has run.
    """
    unset = [node for node in program.nodes
             if isinstance(node, Variable) and node not in program.results]
    if unset:
        raise ValueError(f"{unset[0]!r} was never set")
    nodes: Mapping[Node, Node] = {node: node for node in program.nodes}
    rewritings: tuple[_Rewriting, ...] = (
        _standing, merged, arranged, entered, shared, imported
    )
    for rewriting in rewritings:
        found = rewriting(program, standing)
        program = found.program
        # Of two that do the same, of a program of before, only one may be left.
        nodes = {node: found.nodes[to] for node, to in nodes.items() if to in found.nodes}
    return Lowered(program, nodes)


def _standing(program: Program, standing: Standing) -> Lowered:
    """What has run in the form in which it runs."""
    made: dict[Node, Node] = {}
    for node in program.nodes:
        found = standing.nodes.get(node)
        if found is not None and found not in standing.gone:
            made[node] = found
        elif found is not None and isinstance(node, Inspect):
            made[node] = made[node.inputs[0]]  # it has been shown what is past
        else:
            again = node if found is None else copy(node)
            made[node] = again.over([made[n] for n in node.inputs])
    results = dict(standing.program.results)
    for node, result in program.results.items():
        variable = made[node]
        if isinstance(variable, Variable):
            results.setdefault(variable, made[result])
    sinks = [standing.nodes.get(sink, made[sink]) for sink in program.sinks]
    return Lowered(program_of([*sinks, *standing.bases], results), made)


def merged(program: Program, standing: Standing = Standing()) -> Lowered:
    """Arrangements that are alike are one, and so are the picks that they are made of."""
    known: dict[Hashable, Node] = {}
    for node in standing.program.nodes:
        if not isinstance(node, Arranged) or standing.serves(node):
            known.setdefault(_likeness(node), node)

    def one(node: Node, inputs: Sequence[Node]) -> Node:
        made = node.over(inputs)
        likeness = _likeness(made)
        return made if likeness is None else known.setdefault(likeness, made)

    return _rewritten(program, standing, one)


def _likeness(node: Node) -> Hashable:
    """What a node has in common with those that give the same; None if there are none."""
    if isinstance(node, Keyed) and node.kernel is None:
        return node.inputs, node.key, node.ordering, node.diff_columns
    if isinstance(node, Linear) and isinstance(node.stage, (Pick, DropNull)):
        return node.inputs, node.stage
    if isinstance(node, Constant) and node.origin is not None:
        return Constant, id(node.origin), node.schema.describe()
    return None


def arranged(program: Program, standing: Standing = Standing()) -> Lowered:
    """Arrangements are read where they are, and kept where operators in loops need them."""
    asked = _asked(program)
    known: dict[tuple[Node, tuple[str, ...]], Arranged] = {}
    for there in standing.whole:
        if isinstance(there, Keyed) and there.plain:
            known[there.inputs[0], there.key] = there

    def read_itself(source: Node) -> bool:
        return isinstance(source, Reader) and source.keeps and standing.serves(source)

    def by_key(source: Node, key: tuple[str, ...], written: Arranged | None = None) -> Arranged:
        if isinstance(source, Reader) and read_itself(source) and source.keyed:
            if source.key == key:
                return source
        if (source, key) not in known:
            known[source, key] = written or kept_by(source, key)
        return known[source, key]

    def read(node: Node, inputs: Sequence[Node]) -> Node:
        made = node.over(inputs)
        if isinstance(made, Keyed) and made.plain:
            return by_key(inputs[0], made.key, made)
        if isinstance(made, Output):
            source = inputs[0]
            if read_itself(source):
                return source
            return by_key(source, source.schema.names)
        if isinstance(made, Keyed) and made.kernel is not None and made.kernel.stateful:
            if made.loop is not None or (node.inputs[0], made.key) in asked:
                made = over_arrangement(made, by_key(inputs[0], made.key))
        if isinstance(made, Reader) and made.keyed:
            if made.loop is not None or (node, made.key) in asked:
                return made.with_arranged_output()
        return made

    return _rewritten(program, standing, read)


def _asked(program: Program) -> set[tuple[Node, tuple[str, ...]]]:
    """Which collections somebody wants arranged, and by which keys."""
    asked = {(node.inputs[0], node.key) for node in program.nodes
             if isinstance(node, Keyed) and node.plain}
    for node in program.nodes:
        if isinstance(node, Output):
            (source,) = node.inputs
            kept = isinstance(source, Reader) and (
                source.keeps or (source.keyed and (source, source.key) in asked)
            )
            if not kept:
                asked.add((source, source.schema.names))
    return asked


def entered(program: Program, standing: Standing = Standing()) -> Lowered:
    """Streams from outside of all loops are entered where a loop reads them."""
    known: dict[tuple[LoopScope, Node], Enter] = {}

    def within(loop: LoopScope | None, source: Node) -> Node:
        if loop is None or source.loop is not None:
            return source
        at = loop.around(1), source
        if at not in known:
            known[at] = Enter(*at)
        return known[at]

    def enter(node: Node, inputs: Sequence[Node]) -> Node:
        if isinstance(node, (Enter, Leave, Reader)):
            return node.over(inputs)
        return node.over([within(node.loop, source) for source in inputs])

    return _rewritten(program, standing, enter, within)


def shared(program: Program, standing: Standing = Standing()) -> Lowered:
    """Expressions that are evaluated for several readers are evaluated once for all."""
    found = worth_sharing(program)

    def once(node: Node, inputs: Sequence[Node]) -> Node:
        made = node.over(inputs)
        return Shared(made) if node in found else made

    return _rewritten(program, standing, once)


def imported(program: Program, standing: Standing = Standing()) -> Lowered:
    """What has run brings its past along, where something new is made of it."""
    known: dict[Node, Imported] = {}

    def bring(node: Node, source: Node) -> Node:
        if source not in standing:
            return source
        if source.loop is not time_scope(source):
            assert source.loop is not None  # it is in one of the user's
            raise NotReadableError(
                f"{node.kind} cannot be added inside of {source.loop.name}, which has run. Take "
                "what comes out of the loop, or write another one"
            )
        if isinstance(node, Reader):
            return source  # an arrangement, that holds its past
        return known.setdefault(source, Imported(source))

    def late(node: Node, inputs: Sequence[Node]) -> Node:
        return node.over([bring(node, source) for source in inputs])

    return _rewritten(program, standing, late)


def _rewritten(
    program: Program,
    standing: Standing,
    rule: Callable[[Node, Sequence[Node]], Node],
    round_: Callable[[LoopScope, Node], Node] = lambda loop, result: result,
) -> Lowered:
    """A program with other nodes.

    Parameters
    ----------
    program : Program
    standing : Standing
        What stays as it is.
    rule : callable
        From a node, and what its inputs became, to what it becomes. A variable stays one.
    round_ : callable
        From a loop, and what a result in it became, to what goes round.
    """
    made: dict[Node, Node] = {}
    for node in program.nodes:
        if node in standing:
            made[node] = node
        else:
            made[node] = rule(node, [made[source] for source in node.inputs])
    results: dict[Variable, Node] = {}
    for node, result in program.results.items():
        variable = made[node]
        if isinstance(variable, Variable):
            there = variable in standing
            results[variable] = made[result] if there else round_(node.loop, made[result])
    return Lowered(program_of([made[sink] for sink in program.sinks], results), made)
