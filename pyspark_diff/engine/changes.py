"""The differences between a program that has run and a new version of it, as text.

Fingerprints of nodes are compared part by part. A node with equal parts and other inputs has not
changed: the changed node is upstream, and is reported instead.
"""

from __future__ import annotations

from collections import Counter
from typing import Mapping, Sequence

from pyspark_diff.engine.description import PYTHON
from pyspark_diff.engine.fingerprint import Fingerprint
from pyspark_diff.engine.plan import BlueprintContent
from pyspark_diff.engine.program import Program
from pyspark_diff.operators.arrange import Output
from pyspark_diff.operators.node import Constant, Input, Keyed, Node

#: Names of parts in the plural.
_PLURAL = frozenset({"aggregates", "columns", "expressions", "names", "rows", "settings", "sums"})
#: The first words of the label of a collection that a user keeps.
_KEPT = "kept collection"


class Changes:
    """The differences between a blueprint and a program, as text."""

    def __init__(
        self, plan: BlueprintContent, pairs: Mapping[int, Node], written: Program,
        prints: Mapping[Node, Fingerprint], names: Mapping[Node, str],
    ):
        self._plan, self._pairs, self._written = plan, pairs, written
        self._prints, self._names = prints, names

    def called(self, number: int) -> str:
        """The name of a sink for users."""
        records = [record for record in self._plan.written if record.runs == number]
        for record in records:
            if record.name is not None:
                return _named(record.name)
        return next((record.label for record in records if record.label.startswith(_KEPT)),
                    records[0].label if records else self._plan.nodes[number].kind)

    def reasons(self, sinks: Sequence[int], added: Sequence[Node]) -> tuple[str, ...]:
        """All differences."""
        gone = [self.called(number) for number in self._plan.sinks if number not in sinks]
        new = [
            _named(self._names[sink]) if sink in self._names else called(sink) for sink in added
        ]
        reasons, function = self._nodes(bool(set(new) & set(gone)))
        if function and self._plan.python != PYTHON:
            reasons.append(
                "functions are compared by their compiled code, and the version changed from "
                f"Python {self._plan.python} to {PYTHON}: they may not differ otherwise"
            )
        for text in dict.fromkeys(new):
            reasons.append(f"{text} is rebuilt" if text in gone else f"{text} is new")
        reasons += [f"{text} is no longer in the program" for text in dict.fromkeys(gone)
                    if text not in new]
        return tuple(dict.fromkeys(reasons))

    def _nodes(self, all_nodes: bool) -> tuple[list[str], bool]:
        """The differences node by node, and whether a function differs.

        With ``all_nodes``, new and removed nodes are included: a sink is rebuilt because of them.
        """
        # If two old nodes are equal to one new node, the second old node has no partner.
        again = {node: place for place, node in reversed(list(self._pairs.items()))}
        stay = set(again.values())
        new = [node for node in self._written.nodes if node not in again and not is_plain(node)]
        old = [
            record for place, record in enumerate(self._plan.written)
            if place not in stay and not record.plain
        ]
        # Nodes with equal parts differ only in their inputs.
        ours = Counter(_parts(self._prints[node].parts) for node in new)
        theirs = Counter(_parts(record.parts) for record in old)
        here, there = ours - theirs, theirs - ours
        left = []
        for record in old:
            if there[_parts(record.parts)] > 0:
                there[_parts(record.parts)] -= 1
                left.append(record)
        reasons: list[str] = []
        function = False
        for node in new:
            parts = self._prints[node].parts
            if here[_parts(parts)] <= 0:
                continue
            here[_parts(parts)] -= 1
            like = [record for record in left if record.parts.get("kind") == parts["kind"]]
            if not like:
                if all_nodes:
                    reasons.append(f"{called(node)} is new")
                continue
            record = min(like, key=lambda other: len(_differing(other.parts, parts)))
            left.remove(record)
            differs = _differing(record.parts, parts)
            function |= bool({"function", "expression"} & set(differs))
            verb = "differs" if differs[1:] == [] and differs[0] not in _PLURAL else "differ"
            reasons.append(f"{called(node)} changed: its {' and '.join(differs)} {verb}")
        if all_nodes:
            reasons += [f"{record.label} is no longer in the program" for record in left]
        if all_nodes and not reasons:
            reasons = [
                f"the inputs of {called(node)} changed" for node in new
                if all(source in again for source in node.inputs)
            ]
        return reasons, function


def _parts(parts: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(parts.items()))


def _differing(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return [part for part in sorted({*old, *new}) if old.get(part) != new.get(part)]


def _named(name: str) -> str:
    return f"{_KEPT} {name!r}"


def called(node: Node) -> str:
    """The name of a written node in messages."""
    if isinstance(node, Input) and not isinstance(node, Constant):
        return f"input {node.name!r}"
    if isinstance(node, Output):
        return f"{_KEPT} ({node.schema.describe()})"
    return f"{node!r}"


def is_plain(node: Node) -> bool:
    """Whether a node only supports other nodes, or has another name for users."""
    return isinstance(node, Output) or isinstance(node, Keyed) and node.kernel is None
