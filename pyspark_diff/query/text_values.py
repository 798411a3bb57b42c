"""Writes the values of parameters and fields into the text of a query, as literals of SQL."""

from __future__ import annotations

import datetime
import decimal
import re
from collections.abc import Mapping
from string import Formatter
from typing import Any

from pyspark_diff.errors import SchemaError
from pyspark_diff.frame.diffframe import DiffFrame
from pyspark_diff.query.text_parser import words_of
from pyspark_diff.spark.frames import sql_text


_IDENTIFIER = re.compile(r"(\w+|`[^`]+`)(\.(\w+|`[^`]+`))*")


class _Fields(Formatter):
    """Writes ``{name}`` as a table, or as the literal of its value."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec:
            raise SchemaError(f"{{:{format_spec}}}: a field of a query has no format; leave it out")
        return str(value)


def with_values(
    text: str, args: Mapping[str, Any] | list[Any] | None, values: Mapping[str, Any]
) -> str:
    """The text with literals in place of its parameters, and names in place of its collections.

    Raises
    ------
    SchemaError
        If a parameter has no value, or a value has no literal.

    Examples
    --------
    >>> with_values("SELECT * FROM t WHERE a = :a AND b = {b}", {"a": 1}, {"b": "x"})
    "SELECT * FROM t WHERE a = 1 AND b = 'x'"
    """
    if values:
        text = _Fields().vformat(text, (), {
            key: f"`{{{key}}}`" if isinstance(item, DiffFrame) else literal(item)
            for key, item in values.items()
        })
    if not args:
        return with_identifiers(text)
    left = list(args) if isinstance(args, list) else []
    pieces, at, words = [], 0, words_of(text)
    for number, (word, start, end, _) in enumerate(words):
        if start < at:
            continue
        if word == "?" and isinstance(args, list):
            if not left:
                raise SchemaError("the query has more parameters ? than args has values")
            pieces += [text[at:start], literal(left.pop(0))]
            at = end
        elif word == ":" and isinstance(args, Mapping) and number + 1 < len(words):
            name, begin, stop, plain = words[number + 1]
            if begin != end or not plain:
                continue
            if name not in args:
                raise SchemaError(
                    f"the parameter :{name} has no value; pass args={{{name!r}: ...}}"
                )
            pieces += [text[at:start], literal(args[name])]
            at = stop
    return with_identifiers("".join([*pieces, text[at:]]))


def with_identifiers(text: str) -> str:
    """The text with names in place of calls of IDENTIFIER, each at the place of the call.

    Examples
    --------
    >>> with_identifiers("SELECT a FROM IDENTIFIER('db.t') AS x")
    'SELECT a FROM db.t               AS x'
    """
    words = words_of(text)
    pieces, at = [], 0
    for (word, start, _, plain), opened, name, closed in zip(
        words, words[1:], words[2:], words[3:]
    ):
        if plain and word.upper() == "IDENTIFIER" and (opened[0], closed[0]) == ("(", ")") and (
            text[name[1]] in "'\"" and _IDENTIFIER.fullmatch(name[0])
        ):
            pieces += [text[at:start], name[0].ljust(closed[2] - start)]
            at = closed[2]
    return "".join([*pieces, text[at:]])


def literal(value: Any) -> str:
    """A value as a literal of SQL.

    Examples
    --------
    >>> literal("it's"), literal(-2), literal(None)
    ("'it\\\\'s'", '(-2)', 'NULL')
    """
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return sql_text(value)
    if isinstance(value, int):
        return str(value) if value >= 0 else f"({value})"
    if isinstance(value, float):
        return f"CAST('{value!r}' AS DOUBLE)"
    if isinstance(value, decimal.Decimal) and value.is_finite():
        return f"({value:f}BD)"
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return f"DATE '{value.isoformat()}'"
    raise SchemaError(
        "a value of a query over Spark Connect is a number, text, truth value, date or None, not "
        f"a {type(value).__name__}. Write it into the text, as TIMESTAMP '...' for a time"
    )
