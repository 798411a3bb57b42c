"""The names of a query: the columns that an expression may name, and their names in the form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from sqlglot import exp

from pyspark_diff.errors import SchemaError
from pyspark_diff.query import refusals
from pyspark_diff.query.clock import QueryClock
from pyspark_diff.query.form import (
    OUTER,
    Named,
    Relation,
    SqlExpression,
    Subquery,
    WindowFunction,
    prefix_of,
)
from pyspark_diff.query.refusals import Refusal, RefusedPart
from pyspark_diff.query.text_parser import place_of, tables_as_queries, words_of
from pyspark_diff.spark.jvm import frame_of_no_rows

_T = TypeVar("_T")
_R = TypeVar("_R")
#: Settings that change the meaning of names and numbers, and the values that the reader knows.
_SETTINGS = {
    "spark.sql.groupByOrdinal": "true", "spark.sql.orderByOrdinal": "true",
    "spark.sql.groupByAliases": "true", "spark.sql.ansi.relationPrecedence": "false",
    "spark.sql.legacy.setopsPrecedence.enabled": "false",
}

#: The conditions of Spark for a name that means no column or field, or several, and for a syntax
#: that sqlglot accepts.
_NAME_ERRORS = frozenset({
    "AMBIGUOUS_REFERENCE", "EXCEPT_OVERLAPPING_COLUMNS", "FIELD_NOT_FOUND", "PARSE_SYNTAX_ERROR",
    "UNRESOLVED_COLUMN",
})


class Attempts:
    """Reads parts of a query one after another, and knows whether any of them was refused.

    A reader thereby notes all refused parts, and not the first one alone.

    Examples
    --------
    >>> attempts = Attempts()
    >>> attempts(lambda: 1, 0), attempts.stopped
    (1, False)
    """

    def __init__(self) -> None:
        self.stopped = False

    def __call__(self, read: Callable[[], _R], otherwise: Any) -> _R:
        """The reading of a part, or another value of its type for a refused part."""
        try:
            return read()
        except RefusedPart:
            self.stopped = True
            value: _R = otherwise
            return value

    def end(self) -> None:
        """Leaves the whole if a part of it was refused."""
        if self.stopped:
            raise RefusedPart


def through(items: Iterable[_T], read: Callable[[_T], _R]) -> list[_R]:
    """The readings of all items; leaves after the last item if any of them was refused."""
    attempts, results = Attempts(), []
    for item in items:
        attempts(lambda item=item: results.append(read(item)), None)  # type: ignore[misc]
    attempts.end()
    return results


@dataclass(frozen=True)
class ScopeColumn:
    """A column of a scope: its names in the query, and its name in the form.

    A hidden one, the second key of USING, is only visible with its qualifier. A star leaves a
    computed one out: the interval of a call of ``window`` or ``session_window``.
    """

    name: str | None
    qualifier: str | None
    column: str
    hidden: bool = False
    computed: bool = False


@dataclass(frozen=True)
class Scope:
    """The columns that expressions may name, and those of the enclosing query.

    A partial one lacks the columns of a refused part, so that an unknown name is no refusal. An
    interval is the column of the calls of ``window``, which all have the same tokens.
    """

    entries: tuple[ScopeColumn, ...]
    outer: "Scope | None" = None
    partial: bool = False
    interval: tuple[tuple[str, ...], str] | None = None

    def visible(self) -> list[ScopeColumn]:
        return [entry for entry in self.entries if not entry.hidden and not entry.computed]


@dataclass
class TextReferences:
    """The columns, outer columns and subqueries of an expression."""

    columns: set[str] = field(default_factory=set)
    outers: set[str] = field(default_factory=set)
    subqueries: list[Subquery] = field(default_factory=list)

    def expression(self, text: str) -> SqlExpression:
        return SqlExpression(
            text, frozenset(self.outers), tuple(self.subqueries), frozenset(self.columns)
        )


@dataclass
class Context:
    """The things that an expression may have at its place.

    Parameters
    ----------
    keys : mapping, optional
        The columns of the keys, by their tokens: the expression is above an aggregate.
    calls : list, optional
        The aggregates gathered so far.
    windows : list, optional
        The window functions gathered so far.
    definitions : mapping
        The windows that the clause WINDOW names.
    aliases : mapping
        The nodes of the select list that HAVING may name.
    child : Scope or None
        The scope below the aggregate.
    outputs : mapping
        The columns of the select list, which ORDER BY prefers to those of the scope.
    later : frozenset of str
        The names that the select list gives: within it they are refused.
    earlier : mapping
        The nodes of the select list before an item, which it may name, each with its own ones.
    ctes : mapping
        The common table expressions that subqueries may read; None for a refused one.
    groupings : Groupings, optional
        The numbers of grouping sets, if GROUP BY has several.
    """

    scope: Scope
    keys: dict[tuple[str, ...], str] | None = None
    calls: list[tuple[tuple[str, ...], Named, bool]] = field(default_factory=list)
    windows: list[WindowFunction] | None = None
    definitions: Mapping[str, exp.Window] = field(default_factory=dict)
    aliases: Mapping[str, exp.Expr] = field(default_factory=dict)
    child: Scope | None = None
    outputs: Mapping[str, str] = field(default_factory=dict)
    later: frozenset[str] = frozenset()
    earlier: Mapping[str, tuple[exp.Expr, Any]] = field(default_factory=dict)
    ctes: "Tables" = field(default_factory=dict)
    groupings: "Groupings | None" = None


@dataclass(frozen=True)
class Groupings:
    """The column that says which keys a grouping set lacks: a bit for each key.

    Parameters
    ----------
    bits : mapping
        The place of the bit of each key, by its tokens.
    """

    column: str
    bits: Mapping[tuple[str, ...], int]


@dataclass(frozen=True)
class Query:
    """A relation, and pairs of the name of a column in the query and in the form.

    Qualifiers are those that the columns keep in the operators of a pipe, by their names in the
    form. The rows of an ordered query have the order of an ORDER BY in Spark.
    """

    relation: Relation
    outputs: tuple[tuple[str | None, str], ...]
    qualifiers: Mapping[str, str] = field(default_factory=dict)
    ordered: bool = False


#: Common table expressions by name; None for a refused one.
Tables = Mapping[str, "Query | None"]


class TextNames:
    """Names, places, types and refusals of a text."""

    def __init__(
        self, text: str, tables: Mapping[str, T.StructType], spark: SparkSession,
        providers: frozenset[str], clock: QueryClock | None,
    ):
        self.source_text, self.spark = text, spark
        self.providers, self.clock = providers, clock
        #: The tables of the catalog that the text reads, each with its provider.
        self.sources: dict[str, str] = {}
        self.recursions = 0
        self.sensitive = str(spark.conf.get("spark.sql.caseSensitive")).lower() == "true"
        self.tables = {self.folded(name): (name, struct) for name, struct in tables.items()}
        #: Frames that the text reads as tables which never change.
        self.constants: Mapping[str, DataFrame] = {}
        #: Common table expressions that the text reads once, under their own columns.
        self.once: frozenset[str] = frozenset()
        self.types: dict[str, T.DataType] = {}
        #: The columns that a call of ``session_window`` computes.
        self.intervals: set[str] = set()
        self.notes: list[str] = []
        self.refusals: list[Refusal] = []
        self.words = words_of(text)
        #: Texts by their places: changes of the text that Spark analyses as a whole.
        self.changes = tables_as_queries(text)
        self._taken = {word.lower() for word, *_ in self.words}
        #: The tables in the text, each with its place and whether it has an alias.
        self.read: dict[tuple[int, int], tuple[str, bool]] = {}
        #: The keys of groups that have subqueries, by their words.
        self.repeated: dict[tuple[str, ...], exp.Expr] = {}
        self._prefixes: Counter[str] = Counter()
        self._functions: frozenset[str] | None = None

    def check_session(self) -> None:
        """Refuses settings that the reader does not know."""
        for name, usual in _SETTINGS.items():
            value = str(self.spark.conf.get(name)).lower()
            if value != usual:
                self.note(refusals.NODE, f"the setting {name}={value}", None, (
                    f"the reader knows the rules of {usual} alone. Remedy: set it so"
                ))

    # Names, texts and refusals

    def folded(self, name: str) -> str:
        return name if self.sensitive else name.lower()

    def fresh(self, name: str | None) -> str:
        """A name of the form that no word of the query has."""
        prefix = prefix_of(name or "c")
        while True:
            self._prefixes[prefix] += 1
            column = f"{prefix}_{self._prefixes[prefix]}"
            if column not in self._taken and column + OUTER not in self._taken:
                return column

    def place(self, node: exp.Expr) -> tuple[int, int]:
        place = place_of(node)
        if place is None:
            self.refuse(refusals.EXPRESSION, node.sql("spark"), node, (
                "the reader does not know its place in the text. Remedy: write it in brackets"
            ))
        return place

    def refuse(
        self, code: str, construct: str, node: exp.Expr | None, detail: str = ""
    ) -> NoReturn:
        """Notes a refusal, and leaves the part."""
        self.note(code, construct, node, detail)
        raise RefusedPart

    def note(
        self, code: str, construct: str, node: exp.Expr | None, detail: str = ""
    ) -> None:
        """Notes a refusal."""
        place = None
        for part in node.walk() if node is not None else ():
            place = place_of(part)
            if place is not None:
                break
        line = column = None
        if place is not None:
            line = self.source_text.count("\n", 0, place[0]) + 1
            column = place[0] - self.source_text.rfind("\n", 0, place[0])
        self.refusals.append(Refusal(code, construct, line, column, detail))

    def known(self, node: exp.Expr, *names: str) -> None:
        """Refuses a node with a part that the reader does not read."""
        for name, value in node.args.items():
            if name not in names and value not in (None, False, [], ""):
                self.refuse(refusals.NODE, f"{node.key.upper()} with {name.rstrip('_')}", node)

    def check_names(self) -> None:
        """Raises the error of Spark for a name that means no column, or several.

        Spark is only asked if the reader refuses names and clauses alone: other refusals are about
        queries that Spark accepts.
        """
        if not self.refusals or any(
            item.code not in (refusals.EXPRESSION, refusals.NODE) for item in self.refusals
        ):
            return
        try:
            self.whole_schema()
        except Exception as error:  # some errors of the JVM are not PySpark's: without a condition
            named = isinstance(error, PySparkException) and error.getCondition()
            if str(named).partition(".")[0] in _NAME_ERRORS:
                raise SchemaError(f"Spark refuses the query: {error}") from error

    def whole_schema(self) -> T.StructType:
        """The schema that Spark finds for the whole text over tables without rows."""
        pieces, at = [], 0
        frames: dict[str, Any] = {}
        names: dict[str, str] = {}
        structs = {name: struct for name, struct in self.tables.values()}
        changes = dict(self.changes)

        def plain(text: str) -> str:
            return text.replace("{", "{{").replace("}", "}}") if frames else text

        for (start, end), (table, aliased) in self.read.items():
            # Spark compares subqueries by their tables.
            name = names.setdefault(table, f"t{len(names)}_")
            if name not in frames:
                frames[name] = frame_of_no_rows(self.spark, structs[table])
            alias = "" if aliased else f" AS {plain(self.source_text[start:end])}"
            changes[start, end] = f"{{{name}}}{alias}"
        for (start, end), change in sorted(changes.items()):
            pieces += [plain(self.source_text[at:start]), change]
            at = end
        pieces.append(plain(self.source_text[at:]))
        return self.spark.sql("".join(pieces), **frames).schema

    # Types

    def typed(self, named: Iterable[tuple[str, SqlExpression]], aggregates: bool = False) -> None:
        """Asks Spark for the types of expressions, which become those of their names."""
        named = [item for item in named if item[0] not in self.types]
        if not named:
            return
        plain = self.fresh("plain")
        frame = self.frame_for((item for _, item in named), {plain: T.IntegerType()})
        texts = [f"{expression} AS {name}" for name, expression in named]
        # Next to a plain column Spark refuses an aggregate, which the reader does not know.
        try:
            schema = frame.selectExpr(*texts, *([] if aggregates else [plain])).schema
        except PySparkException as error:
            if str(error.getCondition()).startswith("MISSING_GROUP_BY"):
                self.refuse(refusals.EXPRESSION, ", ".join(
                    str(expression) for _, expression in named
                ), None, "the reader does not know the aggregate in it")
            raise SchemaError(f"Spark refuses the query: {error}") from error
        for item in schema.fields:
            if item.name != plain:
                self.types[item.name] = item.dataType

    def frame_for(
        self, expressions: Iterable[SqlExpression], more: Mapping[str, T.DataType]
    ) -> DataFrame:
        """A frame without rows that has the columns of expressions."""
        used = dict(more)
        for expression in expressions:
            for name in (*expression.columns, *(item.name for item in expression.subqueries)):
                used[name] = self.types[name]
            for name in expression.outers:
                used[name + OUTER] = self.types[name]
        return frame_of_no_rows(
            self.spark, T.StructType([T.StructField(name, kind) for name, kind in used.items()])
        )

    def matches(self, names: Sequence[str], scope: Scope) -> list[tuple[ScopeColumn, int]]:
        """The columns that a name means, and how many of its parts are those of the column."""
        folded = [self.folded(name) for name in names]
        if len(names) > 1:
            qualified = [
                (entry, 2) for entry in scope.entries
                if entry.name is not None and entry.qualifier is not None
                and self.folded(entry.qualifier) == folded[0]
                and self.folded(entry.name) == folded[1]
            ]
            if qualified:
                return _once(qualified)
        plain = [entry for entry in scope.entries
                 if entry.name is not None and self.folded(entry.name) == folded[0]]
        return _once([(entry, 1) for entry in plain if not entry.hidden])


def _once(matches: list[tuple[ScopeColumn, int]]) -> list[tuple[ScopeColumn, int]]:
    """Matches of different columns."""
    return list({entry.column: (entry, count) for entry, count in matches}.values())
