"""The cost of a change in each clause of a query, read from the operators that maintain it.

    operators of a clause  =  the operators of its frame, without those of the frames below

A clause has the largest cost of its operators: their new rows, the stored rows of the same keys,
or more, for a reason that `explain` has too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyspark_diff.frame.diffframe import DiffFrame
from pyspark_diff.query.form import (
    Aggregate,
    ConstantRelation,
    Distinct,
    Generate,
    Join,
    Named,
    Project,
    Recursion,
    RecursionReference,
    Relation,
    Scan,
    Selection,
    SetOperation,
    SqlExpression,
    TopK,
    UnionAll,
    Window,
    children,
    expressions,
)

_CHANGE = "the changed rows"
_KEYS = "the changed rows, and the stored rows of their keys"
#: The costs of a reason by its scope, the largest last.
_SCOPES = {
    "step": "the changed rows, and a constant of each step",
    "output": "the changed rows, and a row for each match on the other side",
    "iterations": "the rows of each iteration that the change alters",
    "group": "all rows of the changed groups or partitions",
    "state": "all stored rows",
}
_ORDER = [*_SCOPES]
_NAME = re.compile(r"\b[a-zA-Z_]\w*\b")
_NUMBER = re.compile(r"_\d+$")
#: The greatest length of the text of a clause, in characters.
_TEXT_MAX = 90


def costs(
    relation: Relation, frames: Mapping[int, tuple[Relation, DiffFrame]]
) -> list[str]:
    """A line for each clause, in the order in which a change passes them.

    Parameters
    ----------
    frames : mapping
        The frames of relations, by identity, as `translated` fills it.
    """
    names: dict[str, str] = {}
    lines: list[str] = []
    done: set[int] = set()

    def visit(node: Relation) -> None:
        if id(node) in done:
            return
        done.add(id(node))
        for child in _below(node):
            visit(child)
        text = _clause(node, names)
        if text and id(node) in frames:
            lines.append(f"{_short(text)}: {_cost(node, frames)}")

    visit(relation)
    return list(dict.fromkeys(lines))


def _below(node: Relation) -> Iterator[Relation]:
    """The relations whose changes a node reads: not the body of a loop, and no correlated one."""
    yield from (node.anchor,) if isinstance(node, Recursion) else children(node)
    for expression in expressions(node):
        for subquery in expression.subqueries:
            yield subquery.relation


def _cost(node: Relation, frames: Mapping[int, tuple[Relation, DiffFrame]]) -> str:
    if isinstance(node, (Scan, ConstantRelation, UnionAll, RecursionReference)):
        return _CHANGE
    mine = _operators(frames[id(node)][1])
    for child in _below(node):
        if id(child) in frames:
            mine -= _operators(frames[id(child)][1])
    reasons = {reason.code: reason for _, _, listed in mine for reason in listed}
    if reasons:
        worst = max(reasons.values(), key=lambda reason: _ORDER.index(reason.scope))
        return f"{_SCOPES[worst.scope]} ({', '.join(sorted(reasons))})"
    return _KEYS if any(key is not None for _, key, _ in mine) else _CHANGE


def _operators(frame: DiffFrame) -> Counter[tuple[str, Any, Any]]:
    """The operators of a frame, as far as costs depend on them."""
    return Counter(
        (item.operator, item.arranged_by, item.reasons) for item in frame.explain().operators
    )


def _clause(node: Relation, names: dict[str, str]) -> str:
    """The text of a clause; names gets the texts of the columns that it adds."""
    if isinstance(node, Scan):
        names.update({new: old for old, new in node.renamed})
        return f"FROM {node.table}"
    if isinstance(node, Selection):
        return f"WHERE {_list(node.conditions, names, ' AND ')}"
    if isinstance(node, Join):
        kind = node.kind.replace("_", " ").upper()
        kind = "" if kind == "INNER" else f"{kind} "
        on = _list(node.conditions, names, " AND ")
        return f"{kind}JOIN{' LATERAL' if node.lateral else ''}{f' ON {on}' if on else ''}"
    if isinstance(node, Aggregate):
        _define((*node.keys, *node.aggregates), names)
        by = ", ".join(names[item.name] for item in node.keys)
        if by:
            return f"GROUP BY {by}"
        return f"SELECT {', '.join(names[item.name] for item in node.aggregates)}"
    if isinstance(node, Window):
        for item in node.functions:
            by = _list(item.partition, names, ", ")
            over = f"PARTITION BY {by}" if by else ""
            names[item.name] = f"{_shown(item.function, names)} OVER ({over})"
        return f"WINDOW {', '.join(names[item.name] for item in node.functions)}"
    if isinstance(node, Generate):
        names.update({name: _NUMBER.sub("", name) for name in node.names})
        return f"GENERATE {_shown(node.generator, names)}"
    if isinstance(node, TopK):
        by = _list([item.expression for item in node.order], names, ", ")
        limit = "" if node.limit is None else f" LIMIT {node.limit}"
        skip = f" OFFSET {node.skip}" if node.skip else ""
        return f"{f'ORDER BY {by}' if by else ''}{limit}{skip}".strip()
    if isinstance(node, Project):
        subqueries = any(item.expression.subqueries for item in node.named)
        text = _list([item.expression for item in node.named], names, ", ")
        _define(node.named, names)
        return f"SELECT {text}" if subqueries else ""
    for name in node.columns:
        names.setdefault(name, _NUMBER.sub("", name))
    return {
        Distinct: "DISTINCT", Recursion: "WITH RECURSIVE", UnionAll: "UNION ALL",
    }.get(type(node), node.kind.replace("_", " ").upper() if isinstance(node, SetOperation) else "")


def _define(named: Iterable[Named], names: dict[str, str]) -> None:
    for item in named:
        names[item.name] = _shown(item.expression, names)


def _list(values: Iterable[SqlExpression], names: dict[str, str], between: str) -> str:
    return between.join(_bare(_shown(item, names)) for item in values)


def _bare(text: str) -> str:
    """A text without the brackets around the whole of it."""
    depth = 0
    for place, letter in enumerate(text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth == 0 and place < len(text) - 1:
            return text
    return text[1:-1] if text.startswith("(") else text


def _shown(expression: SqlExpression, names: dict[str, str]) -> str:
    """An expression with the names of the query."""
    own = {item.name: "(subquery)" for item in expression.subqueries}
    text = _NAME.sub(
        lambda match: own.get(match[0]) or names.get(match[0]) or names.get(
            match[0].removesuffix("o"), match[0]
        ), expression.text,
    )
    return text.replace("`", "")


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX - 3]}..."
