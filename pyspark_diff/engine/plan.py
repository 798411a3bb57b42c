"""What is in a blueprint: the form, the inputs and the columns of each node that has run.

    plan_of(found) = plan  =>  every number in the plan names something in it,
                               and inputs come before what is made of them

A blueprint comes from a file, and nothing in it is believed: what is not there, of another type or
out of bounds is refused. What it says of a program is looked at by whoever rebuilds that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Mapping, NoReturn, TypeVar

from pyspark_diff.engine.description import DIGITS
from pyspark_diff.errors import StorageError

#: The version of what is written.
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

#: How refusals begin.
UNFIT = "what was kept of the program cannot be right"

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class LoopRecord:
    """A loop around nodes."""

    parent: int | None
    max_iterations: int
    stops: bool


@dataclass(frozen=True)
class WrittenRecord:
    """A node as it was written."""

    fingerprint: str
    parts: Mapping[str, str]
    loop: int | None
    runs: int | None
    told: str
    name: str | None
    plain: bool


@dataclass(frozen=True)
class NodeRecord:
    """A node that has run."""

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
class BlueprintContent:
    """All of a blueprint."""

    python: str
    loops: tuple[LoopRecord, ...]
    written: tuple[WrittenRecord, ...]
    nodes: tuple[NodeRecord, ...]
    results: Mapping[int, int]
    sinks: tuple[int, ...]


def damaged(what: str) -> NoReturn:
    """Refuse a blueprint, and say what is wrong with it."""
    raise StorageError(f"{UNFIT}: {what}. Open an earlier commit")


class _RecordFields:
    """The fields of one object of a blueprint, each of which has to be there and of its type."""

    def __init__(self, value: object, where: str):
        if not isinstance(value, dict):
            damaged(f"{where} is no object")
        self._value, self._where = value, where

    def get(self, name: str) -> object:
        if name not in self._value:
            damaged(f"{self._where} has no {name!r}")
        return self._value[name]

    def wrong(self, name: str) -> NoReturn:
        damaged(f"{name!r} of {self._where} is {str(self._value.get(name))[:40]!r}")

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


def plan_of(found: object) -> BlueprintContent:
    """The content of a blueprint, checked by itself."""
    top = _RecordFields(found, "the blueprint")
    top.number("format", FORMAT + 1, FORMAT)
    loops: list[LoopRecord] = []
    for number, value in enumerate(top.items("loops")):
        one = _RecordFields(value, f"loop {number}")
        loops.append(LoopRecord(
            one.optional_number("parent", number),
            one.number("max_iterations", 2**63, 1),
            one.flag("stops"),
        ))
    records = top.items("nodes")
    written = [
        _written_of(_RecordFields(value, f"written node {place}"), len(loops), len(records))
        for place, value in enumerate(top.items("written"))
    ]
    nodes = [
        _record_of(_RecordFields(value, f"node {number}"), number, len(loops), len(written))
        for number, value in enumerate(records)
    ]
    results: dict[int, int] = {}
    for variable, result in top.pairs("results", int):
        if variable in results or not (0 <= variable < len(nodes) and 0 <= result < len(nodes)):
            damaged(f"node {variable} cannot go round as {result}")
        results[variable] = result
    sinks = top.numbers("sinks", len(nodes))
    if len(set(sinks)) < len(sinks):
        damaged("it runs a node twice")
    return BlueprintContent(
        top.text("python"), tuple(loops), tuple(written), tuple(nodes), results, sinks
    )


def _written_of(one: _RecordFields, loops: int, nodes: int) -> WrittenRecord:
    digest = one.text("fingerprint")
    if not re.fullmatch(f"[0-9a-f]{{{DIGITS}}}", digest):
        one.wrong("fingerprint")
    parts = one.get("parts")
    if not isinstance(parts, dict) or not all(isinstance(p, str) for p in parts.values()):
        one.wrong("parts")
    return WrittenRecord(
        digest, parts, one.optional_number("loop", loops), one.optional_number("runs", nodes),
        one.text("told"), one.optional_text("name"), one.flag("plain"),
    )


def _record_of(one: _RecordFields, number: int, loops: int, written: int) -> NodeRecord:
    form = one.text("form")
    if form not in FORMS:
        one.wrong("form")
    columns = tuple(one.pairs("columns", str))
    wanted, stored = one.texts("wanted"), one.optional_texts("stored")
    if not {name for name, _ in columns} >= {*wanted, *(stored or ())}:
        one.wrong("wanted")
    return NodeRecord(
        form, one.numbers("from", written), one.numbers("inputs", number),
        one.optional_number("loop", loops), one.text("kind"), columns, one.text("time"), wanted,
        one.optional_texts("key"), stored, one.flag("plain"),
    )
