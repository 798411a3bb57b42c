"""Blueprints: the stored form of a graph that has run, for its continuation by another process.

For a graph ``g`` over written nodes with fingerprints ``p``, and a new copy ``w`` of the program::

    rebuilt(blueprint(g, p), w, fingerprints(w)).graph  =  g over the nodes of w

node by node, with equal forms, equal stored columns, and the same sharing. If the program has
changed, nodes with equal fingerprints are rebuilt, and all others are new:
`pyspark_diff.engine.growth` backfills them from kept collections.

A blueprint is JSON from a file, and is not trusted. It contains names of forms and numbers of
nodes, no classes and no code (`pyspark_diff.engine.plan`). A blueprint with parts that do not fit
together is refused.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Iterable, Mapping, Sequence

from pyspark_diff.engine.changes import Changes, called, is_plain
from pyspark_diff.engine.demand import wanted_of
from pyspark_diff.engine.description import PYTHON
from pyspark_diff.engine.fingerprint import Fingerprint
from pyspark_diff.engine.graph import Graph, graph_from
from pyspark_diff.engine.plan import (
    ARRANGED,
    ARRANGEMENT,
    ENTER,
    FORMAT,
    FROM_WRITTEN,
    IMPORT,
    OVER,
    OVER_ARRANGED,
    SHARED,
    UNFIT,
    WRITTEN,
    BlueprintContent,
    NodeRecord,
    damaged,
    plan_of,
)
from pyspark_diff.engine.program import Program
from pyspark_diff.errors import DiffError, StorageError
from pyspark_diff.operators.arrange import kept_by
from pyspark_diff.operators.by_self import over_arrangement
from pyspark_diff.operators.imported import Imported
from pyspark_diff.operators.inspect import Inspect
from pyspark_diff.operators.loop import Enter, EnterAt, Move, Variable
from pyspark_diff.operators.node import (
    Arranged,
    Constant,
    Input,
    Keyed,
    Linear,
    LoopScope,
    Node,
    Reader,
    Shared,
)


@dataclass(frozen=True)
class Rebuilt:
    """A graph that has run, over the nodes of a new copy of the program.

    Parameters
    ----------
    graph : Graph or None
        None if no node remains. Without `added` sinks it is complete; else
        `pyspark_diff.engine.growth.grown` adds the new nodes.
    nodes : mapping of int to Node
        The rebuilt nodes, by their numbers in the blueprint.
    continued, dropped : tuple of str
        Names of collections that continue, and of collections that the program no longer has.
    added : tuple of Node
        New written sinks.
    reasons : tuple of str
        The differences, as text.
    """

    graph: Graph | None
    nodes: Mapping[int, Node]
    continued: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    added: tuple[Node, ...] = ()
    reasons: tuple[str, ...] = ()


def blueprint(
    graph: Graph,
    prints: Mapping[Node, Fingerprint],
    names: Mapping[Node, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """The blueprint of a graph that has run, as JSON.

    Parameters
    ----------
    prints : mapping of Node to Fingerprint
        The fingerprints of all written nodes of the graph.
    names : mapping of Node to str, optional
        Names of written nodes in messages.
    """
    numbers = graph.program.numbers
    written = list(dict.fromkeys([
        *graph.lowered, *(node for nodes in graph.origins.values() for node in nodes)
    ]))
    places = {node: place for place, node in enumerate(written)}
    loops: dict[LoopScope, int] = {}
    for node in (*graph.program.nodes, *written):
        for depth in range(1, node.depth + 1):
            assert node.loop is not None  # it has a depth
            loops.setdefault(node.loop.enclosing(depth), len(loops))
    return {
        "format": FORMAT,
        "python": PYTHON,
        "loops": [{
            "parent": None if loop.parent is None else loops[loop.parent],
            "max_iterations": loop.max_iterations,
            "stops": loop.stops,
            "name": loop.name,
        } for loop in loops],
        "written": [{
            "fingerprint": prints[node].digest,
            "parts": dict(prints[node].parts),
            "loop": None if node.loop is None else loops[node.loop],
            "runs": numbers.get(graph.lowered[node]) if node in graph.lowered else None,
            "told": called(node),
            "name": names.get(node),
            "plain": is_plain(node),
        } for node in written],
        "nodes": [
            _record(graph, node, places, loops) for node in graph.program.nodes
        ],
        "results": [
            [numbers[variable], numbers[result]]
            for variable, result in graph.program.results.items()
        ],
        "sinks": [numbers[sink] for sink in graph.program.sinks],
    }


def _record(
    graph: Graph, node: Node, places: Mapping[Node, int], loops: Mapping[LoopScope, int]
) -> dict[str, Any]:
    form, origins = _form(node, graph.origins[node])
    wanted = graph.wanted[node]
    record = {
        "form": form,
        "from": [places[origin] for origin in origins],
        "inputs": [graph.program.numbers[source] for source in node.inputs],
        "loop": None if node.loop is None else loops[node.loop],
        "kind": node.kind,
        "columns": [[f.name, f.dataType.simpleString()] for f in node.schema.struct.fields],
        "time": node.time_type.name,
        "wanted": [name for name in node.schema.names if name in wanted],
        "key": None,
        "stored": None,
        # A plain arrangement can be rebuilt without its written node.
        "plain": isinstance(node, Keyed) and node.plain,
    }
    if isinstance(node, Arranged):
        record["key"] = list(node.key)
        record["stored"] = list(node.stored(wanted)) if node.keeps else None
    return record


def _form(node: Node, origins: Sequence[Node]) -> tuple[str, list[Node]]:
    """The form of a node that has run, and the written nodes with this form."""
    if isinstance(node, Enter):
        return ENTER, []
    if isinstance(node, Shared):
        return SHARED, []
    if isinstance(node, Imported):
        return IMPORT, []
    for form in FROM_WRITTEN:
        matching = [origin for origin in origins if _is_form(form, node, origin)]
        if matching:
            return form, matching
    if not (isinstance(node, Keyed) and node.plain):
        raise ValueError(f"{node!r} has no written node")
    return ARRANGEMENT, []


def _is_form(form: str, node: Node, origin: Node) -> bool:
    """Whether a node is a written node in some form."""
    if form in (OVER, OVER_ARRANGED):
        if not isinstance(node, Reader) or not isinstance(origin, Keyed) or origin.kernel is None:
            return False
        over = over_arrangement(origin, node.arranged[0], arranged=form == OVER_ARRANGED)
        return _is_equivalent(node, over)
    if form == ARRANGED:
        if not isinstance(origin, Reader):
            return False
        origin = origin.with_arranged_output()
    return _is_equivalent(node, origin)


def _is_equivalent(node: Node, other: Node) -> bool:
    """Whether two nodes have equal functions; their names and inputs may differ."""
    if type(node) is not type(other) or node.schema.struct != other.schema.struct:
        return False
    if node.loop is not other.loop:
        return False
    if isinstance(node, Linear) and isinstance(other, Linear):
        return node.stage == other.stage
    if isinstance(node, Keyed) and isinstance(other, Keyed):
        same = (node.kernel, node.key, node.ordering, node.diff_columns)
        return same == (other.kernel, other.key, other.ordering, other.diff_columns)
    if isinstance(node, Reader) and isinstance(other, Reader):
        return (node.kernel, node.key, node.keyed) == (other.kernel, other.key, other.keyed)
    if isinstance(node, Constant) and isinstance(other, Constant):
        return node is other or node.origin is not None and node.origin is other.origin
    if isinstance(node, Input):
        return node is other
    if isinstance(node, EnterAt) and isinstance(other, EnterAt):
        return node.at == other.at
    if isinstance(node, Move) and isinstance(other, Move):
        return (node.number, node.by, node.at) == (other.number, other.by, other.at)
    if isinstance(node, Inspect) and isinstance(other, Inspect):
        return node.show is other.show
    return True


def rebuilt(
    described: object,
    written: Program,
    prints: Mapping[Node, Fingerprint],
    names: Mapping[Node, str] = MappingProxyType({}),
) -> Rebuilt:
    """A graph that has run, over the nodes of a new copy of the program.

    Parameters
    ----------
    described : mapping
        The blueprint.
    written : Program
        The program before its lowering.
    prints : mapping of Node to Fingerprint
        The fingerprints of its nodes.
    names : mapping of Node to str, optional
        Names of written nodes in messages.

    Raises
    ------
    StorageError
        If the value is no blueprint, or its parts do not fit together.
    """
    plan = plan_of(described)
    pairs = _paired(plan, written, prints)
    nodes = _Builder(plan, pairs).nodes()
    sinks = _sinks(plan, pairs, nodes, written)
    run = _upstream(plan, nodes, sinks.values())
    lowered: dict[Node, Node] = {}
    for there in (run, nodes):  # among equal nodes, the node that runs comes first
        for place, node in pairs.items():
            number = plan.written[place].runs
            if number in there:
                lowered.setdefault(node, there[number])
    added = tuple(sink for sink in written.sinks if sink not in sinks)
    changes = Changes(plan, pairs, written, prints, names)
    continued = tuple(number for number in plan.sinks if number in sinks.values())
    summary = (
        tuple(map(changes.called, continued)),
        tuple(changes.called(number) for number in plan.sinks if number not in continued),
        added,
        changes.reasons(continued, added),
    )
    nodes = nodes if added else run
    if not nodes:
        return Rebuilt(None, {}, *summary)
    return Rebuilt(_graph(plan, pairs, nodes, continued, lowered), nodes, *summary)


def _sinks(
    plan: BlueprintContent, pairs: Mapping[int, Node], nodes: Mapping[int, Node], written: Program
) -> dict[Node, int]:
    """The number of the running node of each written sink that continues."""
    asked = frozenset(written.sinks)
    sinks: dict[Node, int] = {}
    for place, node in pairs.items():
        number = plan.written[place].runs
        if node in asked and number in plan.sinks and number in nodes:
            sinks.setdefault(node, number)
    return sinks


def _graph(
    plan: BlueprintContent,
    pairs: Mapping[int, Node],
    nodes: Mapping[int, Node],
    sinks: Sequence[int],
    lowered: Mapping[Node, Node],
) -> Graph:
    results: dict[Variable, Node] = {}
    for number, result in plan.results.items():
        if number in nodes:
            variable = nodes[number]
            assert isinstance(variable, Variable)  # its form was checked
            results[variable] = nodes[result]
    program = Program(
        tuple(nodes[number] for number in sinks), tuple(nodes.values()), results
    )
    wanted = {node: frozenset(plan.nodes[number].wanted) for number, node in nodes.items()}
    if wanted_of(program, wanted) != wanted:
        damaged("some nodes lack columns that their readers need")
    for number, node in nodes.items():
        stored = plan.nodes[number].stored
        if isinstance(node, Arranged) and node.keeps:
            if node.stored(wanted[node]) != stored:
                damaged(f"the stored columns of node {number} differ from its columns")
        elif stored is not None:
            damaged(f"node {number} stores columns without an arrangement")
    origins = {
        node: tuple(dict.fromkeys(
            pairs[place] for place in plan.nodes[number].origins if place in pairs
        ))
        for number, node in nodes.items()
    }
    there = {node: to for node, to in lowered.items() if to in origins}
    return graph_from(program, there, origins, wanted)


def _upstream(
    plan: BlueprintContent, nodes: Mapping[int, Node], sinks: Iterable[int]
) -> dict[int, Node]:
    """The nodes upstream of some sinks, with the sinks."""
    stack, visited = list(sinks), set[int]()
    while stack:
        number = stack.pop()
        if number not in visited:
            visited.add(number)
            stack.extend(plan.nodes[number].inputs)
            if number in plan.results:
                stack.append(plan.results[number])
    return {number: nodes[number] for number in sorted(visited)}


def _paired(
    plan: BlueprintContent, written: Program, prints: Mapping[Node, Fingerprint]
) -> dict[int, Node]:
    """The new node of each written node of the blueprint with an equal fingerprint.

    Equal nodes are paired in order, and all nodes of a loop with nodes of one loop.
    """
    candidates: dict[str, list[Node]] = {}
    for node in written.nodes:
        candidates.setdefault(prints[node].digest, []).append(node)
    loops: dict[int, LoopScope] = {}
    used: set[Node] = set()
    nodes: dict[int, Node] = {}
    for place, record in enumerate(plan.written):
        fits = []
        for node in candidates.get(record.fingerprint, ()):
            loops_around = _loops_around(plan, record.loop, node.loop)
            if loops_around is not None and all(
                loops[old] is new if old in loops else new not in loops.values()
                for old, new in loops_around
            ):
                fits.append((node, loops_around))
        if fits:
            node, loops_around = next((fit for fit in fits if fit[0] not in used), fits[0])
            used.add(node)
            loops.update(loops_around)
            nodes[place] = node
    return nodes


def _loops_around(
    plan: BlueprintContent, old: int | None, new: LoopScope | None
) -> list[tuple[int, LoopScope]] | None:
    """The loops around an old node, paired with the loops around a new node; None if they differ.
    """
    pairs = []
    while old is not None and new is not None:
        there = plan.loops[old]
        if (there.max_iterations, there.stops) != (new.max_iterations, new.stops):
            return None
        pairs.append((old, new))
        old, new = there.parent, new.parent
    return pairs if old is None and new is None else None


class _Builder:
    """Builds the nodes of a blueprint over the nodes of a program. It holds state: its nodes."""

    def __init__(self, plan: BlueprintContent, pairs: Mapping[int, Node]):
        self._plan, self._pairs = plan, pairs
        self._nodes: dict[int, Node] = {}
        self._loops: dict[int, LoopScope] = {}
        for place, node in pairs.items():
            pairs_around = _loops_around(plan, plan.written[place].loop, node.loop)
            self._loops.update(pairs_around or ())

    def nodes(self) -> dict[int, Node]:
        """All nodes that can be built, by their numbers."""
        used: set[Node] = set()
        for number, record in enumerate(self._plan.nodes):
            if all(source in self._nodes for source in record.inputs):
                node = self._node(number, record)
                if node is not None:
                    # One written node may run as several nodes, each with its own state.
                    node = copy(node) if node in used else node
                    used.add(node)
                    self._nodes[number] = node
        for number, node in self._nodes.items():
            self._check_round(number, node)
        return self._whole()

    def _check_round(self, number: int, node: Node) -> None:
        """Check that a variable, and no other node, has a feedback of its types."""
        result = self._nodes.get(self._plan.results.get(number, -1))
        if isinstance(node, Variable) != (number in self._plan.results):
            damaged(f"node {number} has no feedback, or is no variable")
        if result is not None and (result.loop is None or not node.schema.same_types(
                result.schema)):
            damaged(f"node {self._plan.results[number]} is no feedback of node {number}")

    def _whole(self) -> dict[int, Node]:
        """The nodes whose inputs and feedback are all built."""
        left = self._nodes
        while True:
            complete = {
                number: node for number, node in left.items()
                if all(source in left for source in self._plan.nodes[number].inputs)
                and (not isinstance(node, Variable) or self._plan.results.get(number) in left)
            }
            if len(complete) == len(left):
                return complete
            left = complete

    def _node(self, number: int, record: NodeRecord) -> Node | None:
        inputs = [self._nodes[source] for source in record.inputs]
        loop = None if record.loop is None else self._loops.get(record.loop)
        if record.loop is not None and loop is None:
            return None
        try:
            node = self._of_form(number, record, inputs, loop)
        except DiffError as error:
            raise StorageError(f"{UNFIT}: node {number}: {error}") from error
        if node is not None:
            columns = tuple((f.name, f.dataType.simpleString()) for f in node.schema.struct.fields)
            key = node.key if isinstance(node, Arranged) else None
            there = (columns, node.time_type.name, key)
            if there != (record.columns, record.time, record.key) or node.loop is not loop:
                damaged(f"node {number} is no {record.kind} of these columns")
        return node

    def _of_form(
        self, number: int, record: NodeRecord, inputs: list[Node], loop: LoopScope | None
    ) -> Node | None:
        form = record.form
        if form in FROM_WRITTEN:
            origin = next(
                (self._pairs[place] for place in record.origins if place in self._pairs), None
            )
            if origin is not None:
                return self._from_written(number, form, origin, inputs)
            if not record.plain:
                return None
        if len(inputs) != 1:
            damaged(f"node {number} has {len(inputs)} inputs")
        (source,) = inputs
        if form == ENTER:
            if loop is None or source.loop is not None:
                damaged(f"node {number} enters no loop")
            return Enter(loop, source)
        if form == SHARED:
            return Shared(source)
        if form == IMPORT:
            return Imported(source)
        if record.key is None or not set(record.key) <= set(source.schema.names):
            damaged(f"node {number} has no key")
        return kept_by(source, record.key)

    def _from_written(
        self, number: int, form: str, origin: Node, inputs: list[Node]
    ) -> Node:
        if len(inputs) != len(origin.inputs):
            damaged(f"node {number} has {len(inputs)} inputs")
        over = form in (OVER, OVER_ARRANGED)
        for source, expected in zip(inputs, origin.inputs):
            if not source.schema.same_types(expected.schema):
                damaged(f"the inputs of node {number} have other columns")
            if isinstance(origin, Reader) or over:
                key = expected.key if isinstance(expected, Arranged) and not over else None
                key = origin.key if isinstance(origin, Arranged) and over else key
                if not isinstance(source, Arranged) or not source.keeps and not isinstance(
                        source, Keyed) or source.key != key:
                    damaged(f"node {number} reads no arrangement by its key")
        if over:
            (source,) = inputs
            if not isinstance(origin, Keyed) or origin.kernel is None or not isinstance(
                    source, Arranged):
                damaged(f"node {number} is no operator on an arrangement")
            return over_arrangement(origin, source, arranged=form == OVER_ARRANGED)
        node = origin.over(inputs)
        if form == WRITTEN:
            return node
        if not isinstance(node, Reader):
            damaged(f"node {number} reads no arrangement")
        return node.with_arranged_output()
