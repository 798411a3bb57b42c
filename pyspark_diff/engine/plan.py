"""The content of a blueprint: the form, the inputs and the columns of each node that has run.

    plan_of(blueprint) = plan  =>  every number in the plan is the number of a record in it,
                                   and each record follows its inputs

A blueprint comes from a file, and is not trusted. Values that are missing, out of bounds, or of
another type are refused. `pyspark_diff.engine.blueprint` checks that it fits the program.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Mapping, NoReturn, TypeVar

from pyspark_diff.engine.description import DIGITS
from pyspark_diff.errors import StorageError

#: The version of the format.
FORMAT = 1

#: A written node over other inputs.
WRITTEN = "written"
#: A written node over other inputs, with an arrangement as its output.
ARRANGED = "arranged"
#: A written operator that arranges its own input, over an existing arrangement of the input.
OVER = "over arrangement"
#: The same, with an arrangement as its output.
OVER_ARRANGED = "over arrangement, arranged"
#: Forms of nodes that come from a written one.
FROM_WRITTEN = (WRITTEN, ARRANGED, OVER, OVER_ARRANGED)
#: Forms of nodes that only the lowering creates.
ARRANGEMENT, ENTER, SHARED, IMPORT = "arrangement", "enter", "shared", "import"
FORMS = frozenset({*FROM_WRITTEN, ARRANGEMENT, ENTER, SHARED, IMPORT})

#: The first words of refusals.
UNFIT = "the stored program is damaged"

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class LoopRecord:
    """A loop around nodes: its outer loop, and its limit of iterations."""

    parent: int | None
    max_iterations: int
    stops: bool


@dataclass(frozen=True)
class WrittenRecord:
    """A node before its lowering. `runs` is the number of its node that has run."""

    fingerprint: str
    parts: Mapping[str, str]
    loop: int | None
    runs: int | None
    label: str
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
    """The records of a blueprint, by their numbers."""

    python: str
    loops: tuple[LoopRecord, ...]
    written: tuple[WrittenRecord, ...]
    nodes: tuple[NodeRecord, ...]
    results: Mapping[int, int]
    sinks: tuple[int, ...]


def damaged(fault: str) -> NoReturn:
    """Refuse a blueprint with a description of its fault."""
    raise StorageError(f"{UNFIT}: {fault}. Open an earlier commit")


class _RecordFields:
    """The fields of a record of a blueprint, with checks of their presence and types."""

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
        value = self.get(name)
        return value if isinstance(value, str) else self.wrong(name)

    def optional_text(self, name: str) -> str | None:
        return None if self.get(name) is None else self.text(name)

    def flag(self, name: str) -> bool:
        value = self.get(name)
        return value if isinstance(value, bool) else self.wrong(name)

    def number(self, name: str, below: int, least: int = 0) -> int:
        value = self.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < below:
            self.wrong(name)
        return value

    def optional_number(self, name: str, below: int) -> int | None:
        return None if self.get(name) is None else self.number(name, below)

    def items(self, name: str) -> list[object]:
        value = self.get(name)
        return value if isinstance(value, list) else self.wrong(name)

    def numbers(self, name: str, below: int) -> tuple[int, ...]:
        numbers = []
        for value in self.items(name):
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < below:
                self.wrong(name)
            numbers.append(value)
        return tuple(numbers)

    def texts(self, name: str) -> tuple[str, ...]:
        texts = []
        for value in self.items(name):
            texts.append(value if isinstance(value, str) else self.wrong(name))
        return tuple(texts)

    def optional_texts(self, name: str) -> tuple[str, ...] | None:
        return None if self.get(name) is None else self.texts(name)

    def pairs(self, name: str, kind: type[_Value]) -> list[tuple[_Value, _Value]]:
        pairs = []
        for value in self.items(name):
            if not isinstance(value, list) or [type(part) for part in value] != [kind, kind]:
                self.wrong(name)
            pairs.append((value[0], value[1]))
        return pairs


def plan_of(blueprint: object) -> BlueprintContent:
    """The content of a blueprint, checked without a program."""
    top = _RecordFields(blueprint, "the blueprint")
    top.number("format", FORMAT + 1, FORMAT)
    loops: list[LoopRecord] = []
    for number, value in enumerate(top.items("loops")):
        fields = _RecordFields(value, f"loop {number}")
        loops.append(LoopRecord(
            fields.optional_number("parent", number),
            fields.number("max_iterations", 2**63, 1),
            fields.flag("stops"),
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
            damaged(f"node {result} is no feedback of node {variable}")
        results[variable] = result
    sinks = top.numbers("sinks", len(nodes))
    if len(set(sinks)) < len(sinks):
        damaged("a sink occurs twice")
    return BlueprintContent(
        top.text("python"), tuple(loops), tuple(written), tuple(nodes), results, sinks
    )


def _written_of(fields: _RecordFields, loops: int, nodes: int) -> WrittenRecord:
    digest = fields.text("fingerprint")
    if not re.fullmatch(f"[0-9a-f]{{{DIGITS}}}", digest):
        fields.wrong("fingerprint")
    parts = fields.get("parts")
    if not isinstance(parts, dict) or not all(isinstance(p, str) for p in parts.values()):
        fields.wrong("parts")
    return WrittenRecord(
        digest, parts, fields.optional_number("loop", loops), fields.optional_number("runs", nodes),
        fields.text("told"), fields.optional_text("name"), fields.flag("plain"),
    )


def _record_of(fields: _RecordFields, number: int, loops: int, written: int) -> NodeRecord:
    form = fields.text("form")
    if form not in FORMS:
        fields.wrong("form")
    columns = tuple(fields.pairs("columns", str))
    wanted, stored = fields.texts("wanted"), fields.optional_texts("stored")
    if not {name for name, _ in columns} >= {*wanted, *(stored or ())}:
        fields.wrong("wanted")
    return NodeRecord(
        form, fields.numbers("from", written), fields.numbers("inputs", number),
        fields.optional_number("loop", loops), fields.text("kind"), columns, fields.text("time"),
        wanted, fields.optional_texts("key"), stored, fields.flag("plain"),
    )
