"""Parses SQL text of Spark without a JVM: a tree of sqlglot whose nodes know their place in it.

sqlglot rewrites many functions while it parses. Here the tree says only where the clauses, columns,
calls and subqueries are: an expression is read from the text itself, by the place of its node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokens import TokenType

from pyspark_diff.errors import SchemaError
from pyspark_diff.query.text_pipes import PLACE, PipeParser, table_queries

#: Functions whose arguments have words between them.
_WORDED = ("CAST", "TRY_CAST", "EXTRACT", "OVERLAY", "POSITION", "SUBSTR", "SUBSTRING", "TRIM")
#: The methods of the parser that return a node with all of its text.
_PARSED = (
    "_parse_assignment", "_parse_disjunction", "_parse_conjunction", "_parse_equality",
    "_parse_comparison", "_parse_range", "_parse_bitwise", "_parse_term", "_parse_factor",
    "_parse_unary", "_parse_type", "_parse_column", "_parse_primary", "_parse_paren",
    "_parse_function", "_parse_function_call", "_parse_lambda", "_parse_table", "_parse_select",
)


def _placed(name: str) -> Callable[..., Any]:
    """A method of the parser that notes the place of the node that it returns."""
    parse = getattr(PipeParser, name)

    def placed(self: Any, *args: Any, **kwargs: Any) -> Any:
        start = self._curr.start if self._curr else 0
        parts = (*args, *kwargs.values())
        begun = next((item for item in parts if isinstance(item, exp.Expr)), None)
        if begun is not None:
            before = place_of(begun)
            start = -1 if before is None else before[0]
        node = parse(self, *args, **kwargs)
        if isinstance(node, exp.Expr) and start >= 0 and self._prev is not None:
            node.meta.setdefault(PLACE, (start, self._prev.end + 1))
        return node

    return placed


class _QueryParser(PipeParser):
    """No call of a function is rewritten."""

    FUNCTIONS: ClassVar[dict[str, Any]] = {}
    FUNCTION_PARSERS = {
        name: SparkParser.FUNCTION_PARSERS[name]
        for name in _WORDED if name in SparkParser.FUNCTION_PARSERS
    }


for _name in _PARSED:
    setattr(_QueryParser, _name, _placed(_name))


def parsed(text: str) -> exp.Expr:
    """The tree of a query.

    Raises
    ------
    SchemaError
        If the text is not one statement that the parser reads.

    Examples
    --------
    >>> tree = parsed("SELECT upper(a) AS b FROM t")
    >>> place_of(tree.selects[0].this)
    (7, 15)
    """
    dialect = Spark()
    try:
        tokens, levels = _without_levels(_functions(dialect.tokenize(text)))
        trees = _QueryParser(dialect=dialect).parse(tokens, text)
    except SqlglotError as error:
        raise SchemaError(f"sqlglot, which reads the query's text, refuses it: {error}") from error
    if len(trees) != 1 or trees[0] is None:
        raise SchemaError(f"sql takes one query; the text has {len(trees)} statements")
    for place, level in levels.items():
        before = [
            cte for cte in trees[0].find_all(exp.CTE)
            if cte.args["alias"].this.meta.get("start", place) < place
        ]
        if not before:
            raise SchemaError(
                "MAX RECURSION LEVEL follows no name of a recursion. Write it after the name and "
                "its columns: WITH RECURSIVE name (columns) MAX RECURSION LEVEL 9 AS (...)"
            )
        last = max(before, key=lambda cte: int(cte.args["alias"].this.meta["start"]))
        last.set("levels", level)
    return trees[0]


def _functions(tokens: list[Any]) -> list[Any]:
    """Tokens in which WINDOW before a bracket is the name of a function, and TABLE begins FROM."""
    for token in table_queries(tokens):
        token.token_type = TokenType.FROM
    for token, after in zip(tokens, tokens[1:]):
        if token.token_type == TokenType.WINDOW and after.token_type == TokenType.L_PAREN:
            token.token_type = TokenType.VAR
    return tokens


def _without_levels(tokens: list[Any]) -> tuple[list[Any], dict[int, int]]:
    """Tokens without MAX RECURSION LEVEL, and its numbers by their places."""
    rest: list[Any] = []
    levels: dict[int, int] = {}
    while tokens:
        words = [item.text for item in tokens[:4]]
        if [word.upper() for word in words[:3]] == ["MAX", "RECURSION", "LEVEL"] and (
            words[3:] and words[3].isdigit()
        ):
            levels[tokens[0].start] = int(words[3])
            tokens = tokens[4:]
        else:
            rest.append(tokens[0])
            tokens = tokens[1:]
    return rest, levels


def place_of(node: exp.Expr) -> tuple[int, int] | None:
    """Where the text of a node starts and ends; None if the parser does not say."""
    place: tuple[int, int] | None = node.meta.get(PLACE)
    if isinstance(node, exp.Column):
        places = [part.meta for part in node.parts]
        if all("start" in item for item in places):
            return (places[0]["start"], places[-1]["end"] + 1)
    if place is None and isinstance(node, exp.Binary):
        left, right = place_of(node.this), place_of(node.expression)
        return None if left is None or right is None else (left[0], right[1])
    if place is None and isinstance(node, exp.Identifier) and "start" in node.meta:
        return (node.meta["start"], node.meta["end"] + 1)
    return place


def words_of(text: str) -> list[tuple[str, int, int, bool]]:
    """The tokens of a text: each with its place, and whether it is a word without quotes."""
    return [
        (item.text, item.start, item.end + 1, text[item.start].isalpha() or text[item.start] == "_")
        for item in Spark().tokenize(text)
    ]


def tables_as_queries(text: str) -> dict[tuple[int, int], str]:
    """The places of TABLE where it begins a query, and its text as a query."""
    return {
        (item.start, item.end + 1): "SELECT * FROM"
        for item in table_queries(Spark().tokenize(text))
    }


def canonical(text: str) -> tuple[str, ...]:
    """The tokens of an expression, equal for texts that differ in spaces and in case.

    Examples
    --------
    >>> canonical("sum( a_1 )") == canonical("SUM(a_1)")
    True
    """
    return tuple(
        word.upper() if plain else text[start:end] for word, start, end, plain in words_of(text)
    )
