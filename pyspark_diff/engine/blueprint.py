"""Blueprints: a graph that has run, written down so that another process can run it on.

For a graph ``g`` over written nodes with fingerprints ``p``, and a program ``w`` written anew::

    rebuilt(blueprint(g, p), w, fingerprints(w)).graph  =  g over the nodes of w

node by node: in the form in which it ran, with the columns that it kept, shared by whoever shared
it. Of a program that has changed, all is rebuilt that does the same to the same; the rest is new,
and `pyspark_diff.engine.growth` gives it its past from what is kept.

A blueprint is JSON, and comes from a file: nothing in it is believed. It names forms out of a table
and nodes by number, no classes and no code, and what does not fit together is refused.
"""

from __future__ import annotations

import re
from collections import Counter
from copy import copy
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Iterable, Mapping, NoReturn, Sequence, TypeVar

from pyspark_diff.engine.demand import wanted_of
from pyspark_diff.engine.description import DIGITS, PYTHON
from pyspark_diff.engine.fingerprint import Fingerprint
from pyspark_diff.engine.graph import Graph, graph_from
from pyspark_diff.engine.program import Program
from pyspark_diff.errors import DiffError, StorageError
from pyspark_diff.operators.arrange import Output, arrange_by_key
from pyspark_diff.operators.by_self import over_arrangement
from pyspark_diff.operators.imported import Imported
from pyspark_diff.operators.inspect import Inspect
from pyspark_diff.operators.loop import Enter, Variable
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

#: The version of what is written here.
FORMAT = 1

#: As it was written, over other inputs.
WRITTEN = "written"
#: The same, its output being an arrangement.
ARRANGED = "arranged"
#: An operator that would take its input in by itself, on an arrangement of it.
OVER = "over arrangement"
#: The same, its output being an arrangement.
OVER_ARRANGED = "over arrangement, arranged"
#: Forms of nodes that come from a written one.
FROM_WRITTEN = (WRITTEN, ARRANGED, OVER, OVER_ARRANGED)
#: Forms of nodes that the lowering makes.
ARRANGEMENT, ENTER, SHARED, IMPORT = "arrangement", "enter", "shared", "import"
FORMS = frozenset({*FROM_WRITTEN, ARRANGEMENT, ENTER, SHARED, IMPORT})

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Rebuilt:
    """A graph that has run, over the nodes of a program that was written anew.

    Parameters
    ----------
    graph : Graph or None
        None if nothing is left of it. Where `added` is empty it is what runs; else it is what has
        run, and `pyspark_diff.engine.growth.grown` makes of it what runs.
    nodes : mapping of int to Node
        What is rebuilt, by its number in the blueprint.
    kept, dropped : tuple of str
        Collections that go on, and those that the program has no more, in words.
    added : tuple of Node
        Written sinks that are new.
    reasons : tuple of str
        What differs, in words.
    """

    graph: Graph | None
    nodes: Mapping[int, Node]
    kept: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    added: tuple[Node, ...] = ()
    reasons: tuple[str, ...] = ()


def blueprint(
    graph: Graph,
    prints: Mapping[Node, Fingerprint],
    names: Mapping[Node, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """A graph that has run, as JSON.

    Parameters
    ----------
    graph : Graph
    prints : mapping of Node to Fingerprint
        Of all written nodes that it comes from.
    names : mapping of Node to str, optional
        What users call written nodes, for messages.
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
            loops.setdefault(node.loop.around(depth), len(loops))
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
            "told": _told(node),
            "name": names.get(node),
            "plain": _is_plain(node),
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
    """What is written down of a node that has run."""
    form, origins = _form(node, graph.origins[node])
    wanted = graph.wanted[node]
    found = {
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
        # Whoever misses the written node can make it all the same.
        "plain": isinstance(node, Keyed) and node.plain,
    }
    if isinstance(node, Arranged):
        found["key"] = list(node.key)
        found["stored"] = list(node.stored(wanted)) if node.keeps else None
    return found


def _form(node: Node, origins: Sequence[Node]) -> tuple[str, list[Node]]:
    """The form of a node that has run, and the written nodes that it has this form of."""
    if isinstance(node, Enter):
        return ENTER, []
    if isinstance(node, Shared):
        return SHARED, []
    if isinstance(node, Imported):
        return IMPORT, []
    for form in FROM_WRITTEN:
        found = [origin for origin in origins if _is_form(form, node, origin)]
        if found:
            return form, found
    if not (isinstance(node, Keyed) and node.plain):
        raise ValueError(f"{node!r} comes from nothing that was written")
    return ARRANGEMENT, []


def _is_form(form: str, node: Node, origin: Node) -> bool:
    """Whether a node is a written one in some form."""
    if form in (OVER, OVER_ARRANGED):
        if not isinstance(node, Reader) or not isinstance(origin, Keyed) or origin.kernel is None:
            return False
        over = over_arrangement(origin, node.arranged[0], arranged=form == OVER_ARRANGED)
        return _alike(node, over)
    if form == ARRANGED:
        if not isinstance(origin, Reader):
            return False
        origin = origin.with_arranged_output()
    return _alike(node, origin)


def _alike(node: Node, other: Node) -> bool:
    """Whether two nodes do the same, whatever they are called, and whatever to."""
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
    if isinstance(node, Inspect) and isinstance(other, Inspect):
        return node.show is other.show
    return True


def rebuilt(
    found: object,
    written: Program,
    prints: Mapping[Node, Fingerprint],
    names: Mapping[Node, str] = MappingProxyType({}),
) -> Rebuilt:
    """What has run, over the nodes of a program that was written anew.

    Parameters
    ----------
    found : mapping
        The blueprint.
    written : Program
        As it is written.
    prints : mapping of Node to Fingerprint
        Of its nodes.
    names : mapping of Node to str, optional
        What users call written nodes, for messages.

    Raises
    ------
    StorageError
        If the blueprint is none, or its parts do not fit together.
    """
    plan = _plan_of(found)
    pairs = _paired(plan, written, prints)
    nodes = _Builder(plan, pairs).nodes()
    sinks = _sinks(plan, pairs, nodes, written)
    run = _upstream(plan, nodes, sinks.values())
    lowered: dict[Node, Node] = {}
    for there in (run, nodes):  # where several do the same, the one that runs
        for place, node in pairs.items():
            number = plan.written[place].runs
            if number in there:
                lowered.setdefault(node, there[number])
    added = tuple(sink for sink in written.sinks if sink not in sinks)
    changes = _Changes(plan, pairs, written, prints, names)
    kept = tuple(number for number in plan.sinks if number in sinks.values())
    told = (
        tuple(map(changes.called, kept)),
        tuple(changes.called(number) for number in plan.sinks if number not in kept),
        added,
        changes.reasons(kept, added),
    )
    nodes = nodes if added else run
    if not nodes:
        return Rebuilt(None, {}, *told)
    return Rebuilt(_graph(plan, pairs, nodes, kept, lowered), nodes, *told)


def _sinks(
    plan: _Plan, pairs: Mapping[int, Node], nodes: Mapping[int, Node], written: Program
) -> dict[Node, int]:
    """For each written sink that goes on the number of the one that runs for it."""
    asked = frozenset(written.sinks)
    found: dict[Node, int] = {}
    for place, node in pairs.items():
        number = plan.written[place].runs
        if node in asked and number in plan.sinks and number in nodes:
            found.setdefault(node, number)
    return found


def _graph(
    plan: _Plan,
    pairs: Mapping[int, Node],
    nodes: Mapping[int, Node],
    sinks: Sequence[int],
    lowered: Mapping[Node, Node],
) -> Graph:
    """The graph of the nodes that were rebuilt."""
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
        _damaged("some nodes do not give the columns that others are made of")
    for number, node in nodes.items():
        stored = plan.nodes[number].stored
        if isinstance(node, Arranged) and node.keeps:
            if node.stored(wanted[node]) != stored:
                _damaged(f"node {number} keeps other columns than it has")
        elif stored is not None:
            _damaged(f"node {number} keeps nothing")
    origins = {
        node: tuple(dict.fromkeys(
            pairs[place] for place in plan.nodes[number].origins if place in pairs
        ))
        for number, node in nodes.items()
    }
    there = {node: to for node, to in lowered.items() if to in origins}
    return graph_from(program, there, origins, wanted)


def _upstream(
    plan: _Plan, nodes: Mapping[int, Node], sinks: Iterable[int]
) -> dict[int, Node]:
    """The nodes that some sinks are made of."""
    stack, seen = list(sinks), set[int]()
    while stack:
        number = stack.pop()
        if number not in seen:
            seen.add(number)
            stack.extend(plan.nodes[number].inputs)
            if number in plan.results:
                stack.append(plan.results[number])
    return {number: nodes[number] for number in sorted(seen)}


def _paired(
    plan: _Plan, written: Program, prints: Mapping[Node, Fingerprint]
) -> dict[int, Node]:
    """For each node as it was written that there is again the one that does the same.

    Where several do the same, they are taken in order; and all of a loop from one loop.
    """
    alike: dict[str, list[Node]] = {}
    for node in written.nodes:
        alike.setdefault(prints[node].digest, []).append(node)
    loops: dict[int, LoopScope] = {}
    used: set[Node] = set()
    found: dict[int, Node] = {}
    for place, one in enumerate(plan.written):
        fits = []
        for node in alike.get(one.fingerprint, ()):
            around = _around(plan, one.loop, node.loop)
            if around is not None and all(
                loops[old] is new if old in loops else new not in loops.values()
                for old, new in around
            ):
                fits.append((node, around))
        if fits:
            node, around = next((fit for fit in fits if fit[0] not in used), fits[0])
            used.add(node)
            loops.update(around)
            found[place] = node
    return found


def _around(
    plan: _Plan, old: int | None, new: LoopScope | None
) -> list[tuple[int, LoopScope]] | None:
    """The loops around a node of before, with those around one of now; None if they differ."""
    found = []
    while old is not None and new is not None:
        there = plan.loops[old]
        if (there.max_iterations, there.stops) != (new.max_iterations, new.stops):
            return None
        found.append((old, new))
        old, new = there.parent, new.parent
    return found if old is None and new is None else None


class _Builder:
    """Makes the nodes of a plan over others. It holds state: what it has made."""

    def __init__(self, plan: _Plan, pairs: Mapping[int, Node]):
        self._plan, self._pairs = plan, pairs
        self._made: dict[int, Node] = {}
        self._loops: dict[int, LoopScope] = {}
        for place, node in pairs.items():
            around = _around(plan, plan.written[place].loop, node.loop)
            self._loops.update(around or ())

    def nodes(self) -> dict[int, Node]:
        """All nodes that can be made, by their numbers."""
        used: set[Node] = set()
        for number, record in enumerate(self._plan.nodes):
            if all(source in self._made for source in record.inputs):
                node = self._node(number, record)
                if node is not None:
                    # What is written once may run more than once, in states of their own.
                    node = copy(node) if node in used else node
                    used.add(node)
                    self._made[number] = node
        for number, node in self._made.items():
            self._check_round(number, node)
        return self._whole()

    def _check_round(self, number: int, node: Node) -> None:
        """What goes round to a variable, and to nothing else."""
        result = self._made.get(self._plan.results.get(number, -1))
        if isinstance(node, Variable) != (number in self._plan.results):
            _damaged(f"node {number} does not go round")
        if result is not None and (result.loop is None or not node.schema.same_types(
                result.schema)):
            _damaged(f"node {number} cannot go round as {self._plan.results[number]}")

    def _whole(self) -> dict[int, Node]:
        """What was made, without what misses something that it is made of."""
        left = self._made
        while True:
            found = {
                number: node for number, node in left.items()
                if all(source in left for source in self._plan.nodes[number].inputs)
                and (not isinstance(node, Variable) or self._plan.results.get(number) in left)
            }
            if len(found) == len(left):
                return found
            left = found

    def _node(self, number: int, record: _Record) -> Node | None:
        inputs = [self._made[source] for source in record.inputs]
        loop = None if record.loop is None else self._loops.get(record.loop)
        if record.loop is not None and loop is None:
            return None
        try:
            node = self._of_form(number, record, inputs, loop)
        except DiffError as error:
            raise StorageError(f"{_UNFIT}: node {number}: {error}") from error
        if node is not None:
            columns = tuple((f.name, f.dataType.simpleString()) for f in node.schema.struct.fields)
            key = node.key if isinstance(node, Arranged) else None
            there = (columns, node.time_type.name, key)
            if there != (record.columns, record.time, record.key) or node.loop is not loop:
                _damaged(f"node {number} is no {record.kind} of these columns")
        return node

    def _of_form(
        self, number: int, record: _Record, inputs: list[Node], loop: LoopScope | None
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
            _damaged(f"node {number} has {len(inputs)} inputs")
        (source,) = inputs
        if form == ENTER:
            if loop is None or source.loop is not None:
                _damaged(f"node {number} enters no loop")
            return Enter(loop, source)
        if form == SHARED:
            return Shared(source)
        if form == IMPORT:
            return Imported(source)
        if record.key is None or not set(record.key) <= set(source.schema.names):
            _damaged(f"node {number} has no key")
        return arrange_by_key(source, record.key)

    def _from_written(
        self, number: int, form: str, origin: Node, inputs: list[Node]
    ) -> Node:
        if len(inputs) != len(origin.inputs):
            _damaged(f"node {number} has {len(inputs)} inputs")
        over = form in (OVER, OVER_ARRANGED)
        for source, expected in zip(inputs, origin.inputs):
            if not source.schema.same_types(expected.schema):
                _damaged(f"node {number} is made of other columns")
            if isinstance(origin, Reader) or over:
                key = expected.key if isinstance(expected, Arranged) and not over else None
                key = origin.key if isinstance(origin, Arranged) and over else key
                if not isinstance(source, Arranged) or not source.keeps and not isinstance(
                        source, Keyed) or source.key != key:
                    _damaged(f"node {number} reads no arrangement by its key")
        if over:
            (source,) = inputs
            if not isinstance(origin, Keyed) or origin.kernel is None or not isinstance(
                    source, Arranged):
                _damaged(f"node {number} is no operator on an arrangement")
            return over_arrangement(origin, source, arranged=form == OVER_ARRANGED)
        node = origin.over(inputs)
        if form == WRITTEN:
            return node
        if not isinstance(node, Reader):
            _damaged(f"node {number} reads no arrangement")
        return node.with_arranged_output()


class _Changes:
    """What differs between a plan and a program, in words."""

    def __init__(
        self, plan: _Plan, pairs: Mapping[int, Node], written: Program,
        prints: Mapping[Node, Fingerprint], names: Mapping[Node, str],
    ):
        self._plan, self._pairs, self._written = plan, pairs, written
        self._prints, self._names = prints, names

    def called(self, number: int) -> str:
        """What users know a node by that is run for its own sake."""
        of = [one for one in self._plan.written if one.runs == number]
        for one in of:
            if one.name is not None:
                return _named(one.name)
        return next((one.told for one in of if one.told.startswith(_KEPT)),
                    of[0].told if of else self._plan.nodes[number].kind)

    def reasons(self, sinks: Sequence[int], added: Sequence[Node]) -> tuple[str, ...]:
        """All of it."""
        gone = [self.called(number) for number in self._plan.sinks if number not in sinks]
        new = [
            _named(self._names[sink]) if sink in self._names else _told(sink) for sink in added
        ]
        found, function = self._nodes(bool(set(new) & set(gone)))
        if function and self._plan.python != PYTHON:
            found.append(
                f"functions are compared as Python has compiled them: that was Python "
                f"{self._plan.python} and is {PYTHON}, so that they may differ in nothing else"
            )
        for text in dict.fromkeys(new):
            found.append(f"{text} is made anew" if text in gone else f"{text} is new")
        found += [f"{text} is no longer in the program" for text in dict.fromkeys(gone)
                  if text not in new]
        return tuple(dict.fromkeys(found))

    def _nodes(self, every: bool) -> tuple[list[str], bool]:
        """What differs node by node, and whether that is a function.

        With ``every``, also those that have come or gone: something is made anew because of them.
        """
        # Two of before that are one now: the second has nobody left.
        again = {node: place for place, node in reversed(list(self._pairs.items()))}
        stay = set(again.values())
        new = [node for node in self._written.nodes if node not in again and not _is_plain(node)]
        old = [
            one for place, one in enumerate(self._plan.written)
            if place not in stay and not one.plain
        ]
        # What is the same by itself differs in what it is made of only.
        ours = Counter(_parts(self._prints[node].parts) for node in new)
        theirs = Counter(_parts(one.parts) for one in old)
        here, there = ours - theirs, theirs - ours
        left = []
        for one in old:
            if there[_parts(one.parts)] > 0:
                there[_parts(one.parts)] -= 1
                left.append(one)
        found: list[str] = []
        function = False
        for node in new:
            parts = self._prints[node].parts
            if here[_parts(parts)] <= 0:
                continue
            here[_parts(parts)] -= 1
            like = [one for one in left if one.parts.get("kind") == parts["kind"]]
            if not like:
                if every:
                    found.append(f"{_told(node)} is new")
                continue
            one = min(like, key=lambda other: len(_differing(other.parts, parts)))
            left.remove(one)
            differs = _differing(one.parts, parts)
            function |= bool({"function", "expression"} & set(differs))
            verb = "differs" if differs[1:] == [] and differs[0] not in _PLURAL else "differ"
            found.append(f"{_told(node)} changed: its {' and '.join(differs)} {verb}")
        if every:
            found += [f"{one.told} is no longer in the program" for one in left]
        if every and not found:
            found = [
                f"{_told(node)} is made of something else" for node in new
                if all(source in again for source in node.inputs)
            ]
        return found, function


def _parts(parts: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(parts.items()))


def _differing(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return [part for part in sorted({*old, *new}) if old.get(part) != new.get(part)]


#: Parts of nodes that are many.
_PLURAL = frozenset({"aggregates", "columns", "expressions", "names", "rows", "sums"})
#: How collections begin that users keep.
_KEPT = "kept collection"


def _named(name: str) -> str:
    return f"{_KEPT} {name!r}"


def _told(node: Node) -> str:
    """A written node, as messages call it."""
    if isinstance(node, Input) and not isinstance(node, Constant):
        return f"input {node.name!r}"
    if isinstance(node, Output):
        return f"{_KEPT} ({node.schema.describe()})"
    return f"{node!r}"


def _is_plain(node: Node) -> bool:
    """Whether a node only serves others, or users know it under another name."""
    return isinstance(node, Output) or isinstance(node, Keyed) and node.kernel is None


# What is in a blueprint.


@dataclass(frozen=True)
class _Loop:
    parent: int | None
    max_iterations: int
    stops: bool


@dataclass(frozen=True)
class _Written:
    fingerprint: str
    parts: Mapping[str, str]
    loop: int | None
    runs: int | None
    told: str
    name: str | None
    plain: bool


@dataclass(frozen=True)
class _Record:
    form: str
    origins: tuple[int, ...]
    inputs: tuple[int, ...]
    loop: int | None
    kind: str
    columns: tuple[tuple[str, str], ...]
    time: str
    wanted: tuple[str, ...]
    key: tuple[str, ...] | None
    stored: tuple[str, ...] | None
    plain: bool


@dataclass(frozen=True)
class _Plan:
    python: str
    loops: tuple[_Loop, ...]
    written: tuple[_Written, ...]
    nodes: tuple[_Record, ...]
    results: Mapping[int, int]
    sinks: tuple[int, ...]


_UNFIT = "what was kept of the program cannot be right"


def _damaged(what: str) -> NoReturn:
    raise StorageError(f"{_UNFIT}: {what}. Open an earlier commit")


class _Fields:
    """The fields of one object of a blueprint, each of which has to be there and of its type."""

    def __init__(self, value: object, where: str):
        if not isinstance(value, dict):
            _damaged(f"{where} is no object")
        self._value, self._where = value, where

    def get(self, name: str) -> object:
        if name not in self._value:
            _damaged(f"{self._where} has no {name!r}")
        return self._value[name]

    def wrong(self, name: str) -> NoReturn:
        _damaged(f"{name!r} of {self._where} is {str(self._value.get(name))[:40]!r}")

    def text(self, name: str) -> str:
        found = self.get(name)
        return found if isinstance(found, str) else self.wrong(name)

    def optional_text(self, name: str) -> str | None:
        return None if self.get(name) is None else self.text(name)

    def flag(self, name: str) -> bool:
        found = self.get(name)
        return found if isinstance(found, bool) else self.wrong(name)

    def number(self, name: str, below: int, least: int = 0) -> int:
        found = self.get(name)
        if not isinstance(found, int) or isinstance(found, bool) or not least <= found < below:
            self.wrong(name)
        return found

    def optional_number(self, name: str, below: int) -> int | None:
        return None if self.get(name) is None else self.number(name, below)

    def items(self, name: str) -> list[object]:
        found = self.get(name)
        return found if isinstance(found, list) else self.wrong(name)

    def numbers(self, name: str, below: int) -> tuple[int, ...]:
        found = []
        for one in self.items(name):
            if not isinstance(one, int) or isinstance(one, bool) or not 0 <= one < below:
                self.wrong(name)
            found.append(one)
        return tuple(found)

    def texts(self, name: str) -> tuple[str, ...]:
        found = []
        for one in self.items(name):
            found.append(one if isinstance(one, str) else self.wrong(name))
        return tuple(found)

    def optional_texts(self, name: str) -> tuple[str, ...] | None:
        return None if self.get(name) is None else self.texts(name)

    def pairs(self, name: str, kind: type[_Value]) -> list[tuple[_Value, _Value]]:
        found = []
        for one in self.items(name):
            if not isinstance(one, list) or [type(part) for part in one] != [kind, kind]:
                self.wrong(name)
            found.append((one[0], one[1]))
        return found


def _plan_of(found: object) -> _Plan:
    """The content of a blueprint, checked by itself."""
    top = _Fields(found, "the blueprint")
    top.number("format", FORMAT + 1, FORMAT)
    loops: list[_Loop] = []
    for number, value in enumerate(top.items("loops")):
        one = _Fields(value, f"loop {number}")
        loops.append(_Loop(
            one.optional_number("parent", number),
            one.number("max_iterations", 2**63, 1),
            one.flag("stops"),
        ))
    records = top.items("nodes")
    written = [
        _written_of(_Fields(value, f"written node {place}"), len(loops), len(records))
        for place, value in enumerate(top.items("written"))
    ]
    nodes = [
        _record_of(_Fields(value, f"node {number}"), number, len(loops), len(written))
        for number, value in enumerate(records)
    ]
    results: dict[int, int] = {}
    for variable, result in top.pairs("results", int):
        if variable in results or not (0 <= variable < len(nodes) and 0 <= result < len(nodes)):
            _damaged(f"node {variable} cannot go round as {result}")
        results[variable] = result
    sinks = top.numbers("sinks", len(nodes))
    if len(set(sinks)) < len(sinks):
        _damaged("it runs a node twice")
    return _Plan(
        top.text("python"), tuple(loops), tuple(written), tuple(nodes), results, sinks
    )


def _written_of(one: _Fields, loops: int, nodes: int) -> _Written:
    digest = one.text("fingerprint")
    if not re.fullmatch(f"[0-9a-f]{{{DIGITS}}}", digest):
        one.wrong("fingerprint")
    parts = one.get("parts")
    if not isinstance(parts, dict) or not all(isinstance(p, str) for p in parts.values()):
        one.wrong("parts")
    return _Written(
        digest, parts, one.optional_number("loop", loops), one.optional_number("runs", nodes),
        one.text("told"), one.optional_text("name"), one.flag("plain"),
    )


def _record_of(one: _Fields, number: int, loops: int, written: int) -> _Record:
    form = one.text("form")
    if form not in FORMS:
        one.wrong("form")
    columns = tuple(one.pairs("columns", str))
    wanted, stored = one.texts("wanted"), one.optional_texts("stored")
    if not {name for name, _ in columns} >= {*wanted, *(stored or ())}:
        one.wrong("wanted")
    return _Record(
        form, one.numbers("from", written), one.numbers("inputs", number),
        one.optional_number("loop", loops), one.text("kind"), columns, one.text("time"), wanted,
        one.optional_texts("key"), stored, one.flag("plain"),
    )
