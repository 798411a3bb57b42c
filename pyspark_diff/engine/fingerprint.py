"""Fingerprints: digests of nodes with their inputs, equal in all processes.

    fingerprint(m) == fingerprint(n)  ⟹  m and n have equal functions and equal inputs,
                                          in all parts that are compared

A fingerprint consists of digests of the node's parts, and of the fingerprints of its inputs. In a
loop each node depends on each other node, so the fingerprints of a loop are computed in rounds. At
first variables differ in their initial values, then in their feedback; there are as many rounds as
variables. The fingerprint of each node contains all feedback of its loop, so a loop is equal as a
whole or not at all. Names of loops are not compared.
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

#: Names of parts of stages and kernels in messages.
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
    """The identity of a node across processes.

    Parameters
    ----------
    digest : str
        The digest of all compared parts and of the inputs.
    parts : mapping of str to str
        A digest of each part of the node itself, by the part's name in messages.
    unseen : tuple of str
        Descriptions of values that are not compared.
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
    """The fingerprint of each node of a program before its lowering.

    Parameters
    ----------
    known : mapping of Node to Fingerprint, optional
        Earlier fingerprints. They remain valid, also if values that functions refer to have changed
        since.
    rows : bool
        Whether to read the rows of constants that are Spark frames, with a job for each frame; else
        frames are compared by their schema.
    base : mapping of str to str
        Settings of a session. The fingerprint of an expression has the settings that differ from
        these.
    """
    prints = dict(known or {})
    own: dict[Node, tuple[Mapping[str, str], tuple[str, ...]]] = {}
    for node in program.nodes:
        if node not in prints:
            own[node] = _own(node, rows, base)

    def settle(node: Node, digest: str) -> None:
        if node not in prints:
            prints[node] = Fingerprint(digest, *own[node])

    for item in order_of(program):
        if not isinstance(item, Subgraph):
            if item not in prints:
                settle(item, _combined(own[item][0], (prints[n].digest for n in item.inputs)))
            continue
        nodes = item.nodes()
        if all(node in prints for node in nodes):
            continue
        parts = {node: prints[node].parts if node in prints else own[node][0] for node in nodes}
        outside = {node: prints[node].digest for node in item.outside}
        for node, digest in _in_loop(program, nodes, parts, outside).items():
            settle(node, digest)
    return prints


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
            inputs = [now[source] for source in node.inputs]
            now[node] = _combined(parts[node], [*inputs, round_.get(node, "")])
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
    """The parts of a node without its inputs, and descriptions of values that are not compared."""
    values: dict[str, object] = {
        "kind": (type(node), node.kind),
        "columns": node.schema.struct,
        "time type": node.time_type,
        "depth": node.depth,
    }
    unseen: list[str] = []
    if isinstance(node, ChangesInput):
        values["key"] = (node.record, node.key, node.change, node.number, *node.sequence)
    if isinstance(node, Constant):
        digest = _rows(node, rows)
        values["rows"], unseen = digest.digest, [*digest.unseen]
    elif isinstance(node, Input):
        values["name"] = node.name
        values["frame"] = node.frame is not None
    if isinstance(node, Clock):
        values["interval"] = node.interval
    if isinstance(node, Linear):
        values.update(_parameters(node.stage))
        stage = node.stage
        other = stage.other_than(base) if isinstance(stage, (Compute, Expression, Filter)) else {}
        if isinstance(stage, Expression) and stage.functions:
            values["functions"] = list(map(code_of, stage.functions))
        if other:
            values["settings"] = {name: value for name, (value, _) in sorted(other.items())}
    if isinstance(node, Arranged):
        values["key"] = node.key
    if isinstance(node, Keyed):
        values["order"] = node.ordering
        values["sums"] = node.diff_columns
        values.update(_parameters(node.kernel))
    if isinstance(node, Reader):
        values["output key"] = node.keyed
        values.update(_parameters(node.kernel))
    if isinstance(node, Variable):
        values["max_iterations"] = (node.loop.max_iterations, node.loop.depth)
        values["on_limit"] = node.loop.stops
    if isinstance(node, EnterAt):
        values["iteration"] = node.at
    if isinstance(node, Move):
        values["interval"] = (node.number, node.by, node.at)
    if isinstance(node, Inspect):
        values["names"] = (node.by_table, node.names)
        unseen.append("the function that is shown the updates")
    parts: dict[str, str] = {}
    for name, value in values.items():
        description = described(value)
        parts[name] = description.digest
        unseen += description.unseen
    return parts, tuple(dict.fromkeys(unseen))


def _parameters(value: Any) -> dict[str, object]:
    """The parameters of a stage or a kernel, by their names in messages."""
    if value is None:
        return {}
    parameters: dict[str, object] = {"class": type(value)}
    for part in dataclasses.fields(value):
        if part.compare:
            called = _CALLED.get(part.name, part.name.replace("_", " "))
            values: list[object] = parameters.setdefault(called, [])  # type: ignore[assignment]
            values.append(getattr(value, part.name))
    return parameters


def _rows(node: Constant, wanted: bool) -> ValueDigest:
    """The rows of a constant."""
    if isinstance(node.rows, pa.Table):
        return rows_of(node.schema, node.rows)
    if not wanted:
        return ValueDigest("", ("the rows of a Spark frame",))
    digest, left = frame_digest(node.rows)
    return ValueDigest(digest, tuple(f"the column {name!r} of a Spark frame" for name in left))
