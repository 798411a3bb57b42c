"""Fingerprints: what each node of a program does to what, the same in every process.

    fingerprint(m) == fingerprint(n)  ⟹  m and n do the same to the same, as far as it is compared

Two nodes that do the same to the same have one fingerprint. It is made of what the node is by
itself, part by part, and of the fingerprints of its inputs. In a loop everything is made of
everything, so there it is found round by round: at first variables differ in what they start with,
then in what goes round to them, for as many rounds as there are variables; and all of the loop that
goes round is in the fingerprint of each of its nodes, so that a loop is the same whole or not at
all. What a loop is called is not compared.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Iterable, Mapping

import pyarrow as pa

from pyspark_diff.engine.description import ValueDigest, described, digest_of, rows_of
from pyspark_diff.engine.program import Program
from pyspark_diff.engine.subgraph import Subgraph, order_of
from pyspark_diff.operators.due import Clock
from pyspark_diff.operators.inspect import Inspect
from pyspark_diff.operators.linear import Expression
from pyspark_diff.operators.loop import EnterAt, Move, Variable
from pyspark_diff.operators.node import Arranged, Constant, Input, Keyed, Linear, Node, Reader
from pyspark_diff.operators.projection import Compute, Filter
from pyspark_diff.operators.upsert import ChangesInput
from pyspark_diff.spark.frames import frame_digest
from pyspark_diff.spark.user_functions import code_of

#: Parts of stages and kernels, as messages call them.
_CALLED = {
    "accumulators": "aggregates",
    "anti": "kind",
    "apply": "expression",
    "by": "order",
    "columns": "columns",
    "k": "number of rows",
    "names": "columns",
    "outputs": "expressions",
    "results": "aggregates",
}


@dataclass(frozen=True)
class Fingerprint:
    """What a node is.

    Parameters
    ----------
    digest : str
        Of all that is compared, inputs included.
    parts : mapping of str to str
        What it is by itself: a digest of each part, by what messages call it.
    unseen : tuple of str
        What of it was not compared, in words.
    """

    digest: str
    parts: Mapping[str, str]
    unseen: tuple[str, ...] = ()


def fingerprints(
    program: Program,
    known: Mapping[Node, Fingerprint] | None = None,
    *,
    rows: bool = False,
    base: Mapping[str, str] = MappingProxyType({}),
) -> dict[Node, Fingerprint]:
    """The fingerprint of each node of a program as it is written.

    Parameters
    ----------
    program : Program
    known : mapping of Node to Fingerprint, optional
        Those that were found before, and stay what they are, whatever has become of the values
        that functions hold.
    rows : bool
        Whether the rows of constants that are Spark frames are looked at, which takes a job for
        each; else they are told by their schema.
    base : mapping of str to str
        Settings of a session. The fingerprint of an expression has the settings that differ from
        these.
    """
    found = dict(known or {})
    own: dict[Node, tuple[Mapping[str, str], tuple[str, ...]]] = {}
    for node in program.nodes:
        if node not in found:
            own[node] = _own(node, rows, base)

    def settle(node: Node, digest: str) -> None:
        if node not in found:
            found[node] = Fingerprint(digest, *own[node])

    for item in order_of(program):
        if not isinstance(item, Subgraph):
            if item not in found:
                settle(item, _combined(own[item][0], (found[n].digest for n in item.inputs)))
            continue
        nodes = item.nodes()
        if all(node in found for node in nodes):
            continue
        parts = {node: found[node].parts if node in found else own[node][0] for node in nodes}
        outside = {node: found[node].digest for node in item.outside}
        for node, digest in _in_loop(program, nodes, parts, outside).items():
            settle(node, digest)
    return found


def _in_loop(
    program: Program,
    nodes: list[Node],
    parts: Mapping[Node, Mapping[str, str]],
    outside: Mapping[Node, str],
) -> dict[Node, str]:
    """The digests of all nodes of an outermost loop."""
    variables = [node for node in nodes if isinstance(node, Variable)]
    round_: dict[Node, str] = {node: "" for node in variables}
    now: dict[Node, str] = {}
    for _ in range(len(variables) + 1):
        now = dict(outside)
        for node in nodes:
            made = [now[source] for source in node.inputs]
            now[node] = _combined(parts[node], [*made, round_.get(node, "")])
        round_ = {node: now[program.results[node]] for node in variables}
    whole = digest_of(*sorted(
        digest_of(now[node], now[program.results[node]]) for node in variables
    ))
    return {node: digest_of(now[node], whole) for node in nodes}


def _combined(parts: Mapping[str, str], inputs: Iterable[str]) -> str:
    return digest_of(*(text for part in sorted(parts.items()) for text in part), "", *inputs)


def _own(
    node: Node, rows: bool, base: Mapping[str, str]
) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """What a node is by itself, part by part, and what of it cannot be seen."""
    found: dict[str, object] = {
        "kind": (type(node), node.kind),
        "columns": node.schema.struct,
        "time type": node.time_type,
        "depth": node.depth,
    }
    unseen: list[str] = []
    if isinstance(node, ChangesInput):
        found["key"] = (node.record, node.key, node.change, node.number)
    if isinstance(node, Constant):
        told = _rows(node, rows)
        found["rows"], unseen = told.digest, [*told.unseen]
    elif isinstance(node, Input):
        found["name"] = node.name
        found["frame"] = node.frame is not None
    if isinstance(node, Clock):
        found["interval"] = node.every
    if isinstance(node, Linear):
        found.update(_parameters(node.stage))
        stage = node.stage
        other = stage.other_than(base) if isinstance(stage, (Compute, Expression, Filter)) else {}
        if isinstance(stage, Expression) and stage.functions:
            found["functions"] = list(map(code_of, stage.functions))
        if other:
            found["settings"] = {name: value for name, (value, _) in sorted(other.items())}
    if isinstance(node, Arranged):
        found["key"] = node.key
    if isinstance(node, Keyed):
        found["order"] = node.ordering
        found["sums"] = node.diff_columns
        found.update(_parameters(node.kernel))
    if isinstance(node, Reader):
        found["output key"] = node.keyed
        found.update(_parameters(node.kernel))
    if isinstance(node, Variable):
        found["max_iterations"] = (node.loop.max_iterations, node.loop.depth)
        found["on_limit"] = node.loop.stops
    if isinstance(node, EnterAt):
        found["iteration"] = node.at
    if isinstance(node, Move):
        found["interval"] = (node.number, node.by, node.at)
    if isinstance(node, Inspect):
        found["names"] = (node.by_table, node.names)
        unseen.append("the function that is shown the updates")
    parts: dict[str, str] = {}
    for name, value in found.items():
        description = described(value)
        parts[name] = description.digest
        unseen += description.unseen
    return parts, tuple(dict.fromkeys(unseen))


def _parameters(value: Any) -> dict[str, object]:
    """The parameters of a stage or a kernel, by what messages call them."""
    if value is None:
        return {}
    found: dict[str, object] = {"class": type(value)}
    for part in dataclasses.fields(value):
        if part.compare:
            called = _CALLED.get(part.name, part.name.replace("_", " "))
            held: list[object] = found.setdefault(called, [])  # type: ignore[assignment]
            held.append(getattr(value, part.name))
    return found


def _rows(node: Constant, wanted: bool) -> ValueDigest:
    """The rows of a constant."""
    if isinstance(node.rows, pa.Table):
        return rows_of(node.schema, node.rows)
    if not wanted:
        return ValueDigest("", ("the rows of a Spark frame",))
    digest, left = frame_digest(node.rows)
    return ValueDigest(digest, tuple(f"the column {name!r} of a Spark frame" for name in left))
