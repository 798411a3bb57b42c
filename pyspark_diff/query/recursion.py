"""Recursive queries beyond those that Spark analyses: UNION, and mutual recursion.

``WITH RECURSIVE r AS (anchor UNION step)`` is the least set that contains the anchor and the step.
Spark's analyser knows UNION ALL only, so `analysed` marks the recursion before it analyses it.

``WITH MUTUALLY RECURSIVE a (columns) AS (...), b (columns) AS (...) SELECT ...``, in the syntax of
Materialize, is the fixed point of all definitions together, from empty relations. The bodies may
have aggregates and differences, which SQL forbids in a recursion.

Source: https://materialize.com/docs/sql/select/recursive-ctes/
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pyspark_diff.errors import SchemaError
from pyspark_diff.query.plan_reader import DISTINCT_ROUNDS
from pyspark_diff.spark.jvm import (
    class_called,
    frame_of_plan,
    items_of,
    kind_of,
    parsed_plan,
    scala_sequence,
)

_RECURSIVE = re.compile(r"\bwith\s+recursive\b", re.IGNORECASE)
_MUTUALLY = re.compile(r"\s*with\s+mutually\s+recursive\b", re.IGNORECASE)
_LIMIT = re.compile(
    r"(?:(error|return)\s+at\s+)?recursion\s+limit\s*=?\s*(\d+)", re.IGNORECASE
)
_NAME = re.compile(r"\s*(`(?:[^`]|``)+`|[A-Za-z_]\w*)\s*")
_AS = re.compile(r"\s*as\s*(?=\()", re.IGNORECASE)
_COMMA = re.compile(r"\s*,")
#: Text in which parentheses do not count.
_QUOTED = re.compile(
    r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`(?:[^`]|``)*`|--[^\n]*|/\*.*?\*/", re.DOTALL
)


@dataclass(frozen=True)
class Binding:
    """One definition of a mutual recursion: a name, its columns in DDL, and its query."""

    name: str
    columns: str
    query: str


@dataclass(frozen=True)
class MutualRecursion:
    """A query over definitions that refer to each other.

    Parameters
    ----------
    query : str
        The text after the definitions.
    limit : int or None
        The greatest number of iterations.
    on_limit : {"error", "return"}
    """

    bindings: tuple[Binding, ...]
    query: str
    limit: int | None
    on_limit: str


def mutual_recursion(text: str) -> MutualRecursion | None:
    """The parts of a query that begins WITH MUTUALLY RECURSIVE; None for another query.

    Raises
    ------
    SchemaError
        If the definitions do not have the form ``name (column type, ...) AS (query)``.

    Examples
    --------
    >>> found = mutual_recursion(
    ...     "WITH MUTUALLY RECURSIVE r (n int) AS (SELECT 1 UNION SELECT n FROM r) SELECT * FROM r")
    >>> found.bindings[0].name, found.bindings[0].columns, found.query
    ('r', 'n int', 'SELECT * FROM r')
    """
    opened = _MUTUALLY.match(text)
    if opened is None:
        return None
    at, limit, on_limit = opened.end(), None, "error"
    options = re.compile(r"\s*\(").match(text, at)
    if options is not None:
        end = _closed(text, options.end() - 1)
        setting = _LIMIT.fullmatch(text[options.end():end - 1].strip())
        if setting is None:
            raise _malformed(text, at, "(RETURN AT RECURSION LIMIT 100) or no options")
        limit, on_limit, at = int(setting.group(2)), (setting.group(1) or "error").lower(), end
    bindings = []
    while True:
        name = _NAME.match(text, at)
        if name is None or text[name.end():name.end() + 1] != "(":
            raise _malformed(text, at, "name (column type, ...)")
        end = _closed(text, name.end())
        body = _AS.match(text, end)
        if body is None:
            raise _malformed(text, end, "AS (query)")
        stop = _closed(text, body.end())
        word = name.group(1)
        word = word[1:-1].replace("``", "`") if word[0] == "`" else word
        bindings.append(Binding(
            word, text[name.end() + 1:end - 1].strip(), text[body.end() + 1:stop - 1].strip()
        ))
        at = stop
        comma = _COMMA.match(text, at)
        if comma is None:
            break
        at = comma.end()
    return MutualRecursion(tuple(bindings), text[at:].strip(), limit, on_limit)


def _closed(text: str, at: int) -> int:
    """The place after the parenthesis that closes the one at a place."""
    depth, position = 0, at
    while position < len(text):
        quoted = _QUOTED.match(text, position)
        if quoted is not None:
            position = quoted.end()
            continue
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        position += 1
        if depth == 0:
            return position
    raise _malformed(text, at, "a closing parenthesis")


def _malformed(text: str, at: int, wanted: str) -> SchemaError:
    line = text.count("\n", 0, at) + 1
    return SchemaError(
        f"WITH MUTUALLY RECURSIVE: line {line} has {text[at:at + 30].strip()!r}, and needs "
        f"{wanted}. Write name (column type, ...) AS (query), ... SELECT ..."
    )


def with_distinct_recursion(text: str, session: SparkSession) -> DataFrame | None:
    """The analysed frame of a query with a recursion of UNION; None for another query.

    Parameters
    ----------
    text : str
        Without parameters.
    session : SparkSession
        A classic one.
    """
    if not _RECURSIVE.search(text) or not re.search(r"\bunion\b(?!\s+all)", text, re.IGNORECASE):
        return None
    plan = parsed_plan(text, session)
    marked = _marked(plan)
    return None if marked is plan else frame_of_plan(marked, session)


def _marked(plan: Any) -> Any:
    """A parsed plan in which the rounds of each distinct recursion say that it is one."""
    below = items_of(plan.children())
    changed = [_marked(child) for child in below]
    if any(new is not old for new, old in zip(changed, below)):
        plan = plan.withNewChildren(scala_sequence(changed))
    if kind_of(plan) != "UnresolvedWith" or not plan.allowRecursion():
        return plan
    bindings = items_of(plan.cteRelations())
    marked = [_marked_binding(item) for item in bindings]
    if all(new is old for new, old in zip(marked, bindings)):
        return plan
    return class_called("org.apache.spark.sql.catalyst.plans.logical.UnresolvedWith")(
        plan.child(), scala_sequence(marked), plan.allowRecursion()
    )


def _marked_binding(binding: Any) -> Any:
    name, alias, rounds = binding._1(), binding._2(), binding._3()
    body, above = alias.child(), [alias]
    while kind_of(body) in ("UnresolvedSubqueryColumnAliases", "SubqueryAlias", "UnresolvedWith"):
        above.append(body)
        body = body.child()
    if kind_of(body) != "Distinct" or kind_of(body.child()) != "Union":
        return binding
    if not any(name.lower() == item.lower() for item in _relations(body)):
        return binding
    body = body.child()
    for node in reversed(above):
        body = node.withNewChildren(scala_sequence([body]))
    count = DISTINCT_ROUNDS + (int(rounds.get()) if rounds.isDefined() else 0)
    return class_called("scala.Tuple3")(name, body, class_called("scala.Some")(count))


def _relations(plan: Any) -> Iterator[str]:
    """The tables that a parsed plan names."""
    for leaf in items_of(plan.collectLeaves()):
        if kind_of(leaf) == "UnresolvedRelation":
            yield str(items_of(leaf.multipartIdentifier())[-1])
