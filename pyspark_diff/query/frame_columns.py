"""Writes the expressions of a frame of Spark Connect as SQL text, each column under a unique name.

    the text over the columns of the form  =  the expression over the columns that the frame names
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from pyspark.sql import types as T
from sqlglot import exp

from pyspark_diff.query import refusals
from pyspark_diff.query.form import prefix_of
from pyspark_diff.query.refusals import Refusal, RefusedPart
from pyspark_diff.query.text_calls import GENERATORS, UNIT, UNITS, function_name
from pyspark_diff.query.text_expressions import quoted
from pyspark_diff.query.text_names import Scope, ScopeColumn, TextNames
from pyspark_diff.query.text_parser import parsed, place_of
from pyspark_diff.spark.frames import sql_text
from pyspark_diff.spark.remote_plans import type_of_message

_INFIX = {
    "+": "+", "-": "-", "*": "*", "/": "/", "%": "%", "==": "=", "<=>": "<=>", "<": "<", ">": ">",
    "<=": "<=", ">=": ">=", "and": "AND", "or": "OR", "&": "&", "|": "|", "^": "^",
    "like": "LIKE", "rlike": "RLIKE", "ilike": "ILIKE",
}
#: Functions of columns whose name is a keyword with a syntax of its own in SQL.
_RENAMED = {"extract": "date_part", "datepart": "date_part"}
_NAME = re.compile(r"`(?:[^`]|``)*`|[^.`]+")
_BEFORE = "SELECT "
#: Remedy for a name that the reader does not find.
_UNKNOWN = (
    "the reader does not find one column of this name in the frames below. Remedy: select the "
    "column first, give columns of equal names different ones with alias, and refer to these"
)


@dataclass(frozen=True)
class RelationText:
    """The text of a relation: ``SELECT entries FROM body WHERE conditions``.

    Parameters
    ----------
    entries : tuple of ScopeColumn
        Its columns; hidden ones are the second keys of a join by names.
    below : tuple of ScopeColumn
        Columns below a select list, which a filter or sort above it may name.
    frames : tuple of (int, tuple of ScopeColumn)
        The numbers of the frames in it, each with its columns.
    """

    body: str
    entries: tuple[ScopeColumn, ...]
    below: tuple[ScopeColumn, ...] = ()
    conditions: tuple[str, ...] = ()
    frames: tuple[tuple[int, tuple[ScopeColumn, ...]], ...] = ()

    def visible(self) -> list[ScopeColumn]:
        return [entry for entry in self.entries if not entry.hidden]

    def columns(self) -> list[str]:
        """The names of all its columns, each once."""
        return list(dict.fromkeys(entry.column for entry in (*self.entries, *self.below)))


@dataclass(frozen=True)
class Item:
    """An expression of a select list.

    Parameters
    ----------
    names : tuple of str
        The names that an alias gives.
    entry : ScopeColumn, optional
        The column that it is, under a name that does not change.
    generates : bool
        Whether it makes several rows of one.
    """

    text: str
    names: tuple[str, ...] = ()
    entry: ScopeColumn | None = None
    generates: bool = False


@dataclass
class Surroundings:
    """The relations that an expression may name: its own, and those of enclosing queries."""

    own: RelationText
    outer: tuple[RelationText, ...] = field(default=())


class FrameColumns:
    """Names, texts and refusals of a frame."""

    def __init__(self, names: TextNames, taken: frozenset[str]):
        self.names = names
        self.refusals: list[Refusal] = []
        #: The columns of enclosing queries that texts refer to.
        self.outers: set[str] = set()
        self._taken = taken
        self._prefixes: Counter[str] = Counter()

    def fresh(self, name: str | None) -> str:
        """A name that no text or column of the frame has."""
        prefix = prefix_of(name or "c")
        while True:
            self._prefixes[prefix] += 1
            column = f"{prefix}_{self._prefixes[prefix]}"
            if column not in self._taken:
                return column

    def refuse(self, code: str, construct: str, detail: str = "") -> NoReturn:
        """Notes a refusal, and leaves the part."""
        self.refusals.append(Refusal(code, construct, detail=detail))
        raise RefusedPart

    # Names

    def resolved(self, names: Sequence[str], number: int | None, places: Surroundings) -> tuple[
        ScopeColumn, int
    ]:
        """The column that a name means, and how many parts of the name are those of the column."""
        for level, written in enumerate((places.own, *places.outer)):
            if number is None:
                matches = self.names.matches(names, Scope(written.entries)) or (
                    self.names.matches(names, Scope(written.below))
                )
            else:
                present = set(written.columns())
                both = [
                    match for owner, entries in written.frames if owner == number
                    for match in self.names.matches(names, Scope(entries))
                ]
                matches = list({
                    entry.column: (entry, count) for entry, count in both
                    if entry.column in present
                }.values())
            if len(matches) == 1:
                if level:
                    self.outers.add(matches[0][0].column)
                return matches[0]
            if matches:
                break
        self.refuse(refusals.EXPRESSION, ".".join(names), _UNKNOWN)

    def column(self, names: Sequence[str], number: int | None, places: Surroundings) -> str:
        entry, count = self.resolved(names, number, places)
        return entry.column + "".join(f".{quoted(part)}" for part in names[count:])

    # Select lists

    def items(self, message: Any, places: Surroundings) -> list[Item]:
        """The columns of an item of a select list."""
        kind = message.WhichOneof("expr_type")
        if kind == "unresolved_star":
            return [Item(entry.column, entry=entry) for entry in self.star(message, places)]
        if kind == "unresolved_regex":
            pattern = re.compile(
                message.unresolved_regex.col_name.strip("`"),
                0 if self.names.sensitive else re.IGNORECASE,
            )
            return [
                Item(entry.column, entry=entry) for entry in places.own.visible()
                if pattern.fullmatch(entry.name or "")
            ]
        if kind == "expression_string":
            return self.text_items(message.expression_string.expression, places)
        if kind == "unresolved_attribute":
            self.plain(message.unresolved_attribute)
            parts, number = _attribute(message.unresolved_attribute)
            return [self.column_item(parts, number, places, (parts[-1],))]
        names: tuple[str, ...] = ()
        while message.WhichOneof("expr_type") == "alias":
            names = names or tuple(message.alias.name)
            message = message.alias.expr
        if names and message.WhichOneof("expr_type") == "expression_string":
            (item, *more) = self.text_items(message.expression_string.expression, places)
            if more:
                self.refuse(refusals.NODE, "an alias of several columns")
            return [Item(item.text, names, None, item.generates)]
        return [Item(self.text(message, places), names, None, _generates(message))]

    def column_item(
        self, parts: Sequence[str], number: int | None, places: Surroundings, names: tuple[str, ...]
    ) -> Item:
        """A column in a select list."""
        entry, count = self.resolved(parts, number, places)
        own = count == len(parts) and entry.column not in self.outers
        return Item(self.column(parts, number, places), names, entry if own else None)

    def star(self, message: Any, places: Surroundings) -> list[ScopeColumn]:
        star = message.unresolved_star
        if star.HasField("plan_id"):
            self.refuse(refusals.NODE, "the star of a frame", "Remedy: name its columns")
        if not star.HasField("unparsed_target"):
            return places.own.visible()
        (name, *more) = parts_of(star.unparsed_target.removesuffix(".*"))
        entries = [
            entry for entry in places.own.entries if entry.qualifier is not None
            and self.names.folded(entry.qualifier) == self.names.folded(name)
        ]
        if more or not entries:
            self.refuse(refusals.NODE, star.unparsed_target, "Remedy: name its columns")
        return entries

    def text_items(self, text: str, places: Surroundings) -> list[Item]:
        """The columns of an item that is SQL text."""
        source = _BEFORE + text
        tree = parsed(source)
        if not isinstance(tree, exp.Select) or len(tree.expressions) != 1 or [
            name for name, value in tree.args.items() if value and name not in ("expressions",)
        ]:
            self.refuse(refusals.EXPRESSION, text)
        node = tree.expressions[0]
        if isinstance(node, exp.Star):
            if any(node.args.values()):
                self.refuse(refusals.NODE, text)
            return [Item(entry.column, entry=entry) for entry in places.own.visible()]
        if isinstance(node, exp.Column) and isinstance(node.this, exp.Star):
            self.refuse(refusals.NODE, text, "Remedy: name its columns")
        names: tuple[str, ...] = ()
        inner = node
        if isinstance(node, exp.Aliases):
            names, inner = tuple(part.name for part in node.expressions), node.this
        elif isinstance(node, exp.Alias):
            names, inner = (node.alias,), node.this
        if isinstance(inner, exp.Column):
            parts = [part.name for part in inner.parts]
            return [self.column_item(parts, None, places, names or (parts[-1],))]
        return [Item(
            self.node_text(inner, source, places), names, None, function_name(inner) in GENERATORS
        )]

    def node_text(self, node: exp.Expr, source: str, places: Surroundings) -> str:
        """The text of a node with its columns under their unique names."""
        place = place_of(node)
        if place is None or any(True for _ in node.find_all(exp.Query, exp.Exists)):
            self.refuse(refusals.EXPRESSION, node.sql("spark"), (
                "a subquery in a text, or a text that the reader does not take apart. Remedy: "
                "write it with the functions of columns, or pass the whole query to flow.sql"
            ))
        edits: dict[tuple[int, int], str] = {}
        for item in node.find_all(exp.Tuple):
            if not isinstance(item.parent, exp.In):
                self.refuse(refusals.EXPRESSION, item.sql("spark"), (
                    "the reader does not name the fields. Remedy: write named_struct"
                ))
        for column in node.find_all(exp.Column):
            above = column.parent
            call = function_name(above) if above is not None else None
            if call in UNITS and above is not None and len(above.expressions) == 3 and (
                above.expressions[0] is column and column.name.lower() in UNIT
            ):
                continue
            at = place_of(column)
            if at is None or isinstance(column.this, exp.Star):
                self.refuse(refusals.EXPRESSION, column.sql("spark"))
            names = [part.name for part in column.parts]
            edits[at] = self.column(names, None, places)
            if call == "struct":
                edits[at] += f" AS {quoted(names[-1])}"
        pieces, start = [], place[0]
        for (begin, end), text in sorted(edits.items()):
            pieces += [source[start:begin], text]
            start = end
        return f"({''.join([*pieces, source[start:place[1]]])}\n)" if _is_operator(node) else (
            "".join([*pieces, source[start:place[1]]])
        )

    # Expressions

    def text(self, message: Any, places: Surroundings) -> str:
        """The SQL text of an expression."""
        kind = message.WhichOneof("expr_type")
        method = getattr(self, f"_of_{kind}", None)
        if kind == "common_inline_user_defined_function":
            self.refuse(refusals.PYTHON_FUNCTION, getattr(message, kind).function_name)
        if method is None:
            self.refuse(refusals.EXPRESSION, str(kind))
        text: str = method(getattr(message, kind), places)
        return text

    def texts(self, messages: Sequence[Any], places: Surroundings) -> list[str]:
        """Arguments of a function: stars have several columns."""
        texts = []
        for item in messages:
            if item.WhichOneof("expr_type") == "unresolved_star":
                texts += [entry.column for entry in self.star(item, places)]
            else:
                texts.append(self.text(item, places))
        return texts

    def plain(self, attribute: Any) -> None:
        if attribute.is_metadata_column:
            self.refuse(refusals.EXPRESSION, attribute.unparsed_identifier)

    def _of_unresolved_attribute(self, message: Any, places: Surroundings) -> str:
        self.plain(message)
        return self.column(*_attribute(message), places)

    def _of_expression_string(self, message: Any, places: Surroundings) -> str:
        (item, *more) = self.text_items(message.expression, places)
        if more:
            self.refuse(refusals.NODE, message.expression)
        return item.text

    def _of_alias(self, message: Any, places: Surroundings) -> str:
        return self.text(message.expr, places)

    def _of_literal(self, message: Any, _: Surroundings) -> str:
        text = literal_text(message)
        if text is None:
            self.refuse(refusals.EXPRESSION, f"a literal {message.WhichOneof('literal_type')}")
        return text

    def _of_cast(self, message: Any, places: Surroundings) -> str:
        if message.eval_mode in (1, 2):
            self.refuse(refusals.EXPRESSION, "a cast with a mode of its own")
        kind = message.type_str or type_of_message(message.type).simpleString()
        call = "TRY_CAST" if message.eval_mode == 3 else "CAST"
        return f"{call}({self.text(message.expr, places)} AS {kind})"

    def _of_unresolved_extract_value(self, message: Any, places: Surroundings) -> str:
        child = self.text(message.child, places)
        return f"({child})[{self.text(message.extraction, places)}]"

    def _of_lambda_function(self, message: Any, places: Surroundings) -> str:
        names = ", ".join(".".join(item.name_parts) for item in message.arguments)
        names = f"({names})" if len(message.arguments) > 1 else names
        return f"{names} -> {self.text(message.function, places)}"

    def _of_unresolved_named_lambda_variable(self, message: Any, _: Surroundings) -> str:
        return ".".join(message.name_parts)

    def _of_call_function(self, message: Any, places: Surroundings) -> str:
        return f"{message.function_name}({', '.join(self.texts(message.arguments, places))})"

    def _of_unresolved_function(self, message: Any, places: Surroundings) -> str:
        name, arguments = message.function_name.lower(), message.arguments
        if message.is_internal:
            self.refuse(refusals.EXPRESSION, f"{name}(...)")
        if message.is_user_defined_function:
            self.refuse(refusals.PYTHON_FUNCTION, f"{name}(...)")
        if name == "count" and not message.is_distinct and len(arguments) == 1 and (
            arguments[0].WhichOneof("expr_type") == "unresolved_star"
        ):
            return "count(*)"
        if name == "struct":
            return self.struct(arguments, places)
        texts = self.texts(arguments, places)
        if name in _INFIX and len(texts) == 2:
            return f"({texts[0]} {_INFIX[name]} {texts[1]})"
        if name in ("not", "~") and len(texts) == 1:
            return f"({'NOT' if name == 'not' else name} {texts[0]})"
        if name in ("isnull", "isnotnull"):
            return f"({texts[0]} IS {'NOT ' if name == 'isnotnull' else ''}NULL)"
        if name == "in":
            return f"({texts[0]} IN ({', '.join(texts[1:])}))"
        if name == "when":
            cases = "".join(
                f" WHEN {test} THEN {value}" for test, value in zip(texts[::2], texts[1::2])
            )
            last = f" ELSE {texts[-1]}" if len(texts) % 2 else ""
            return f"(CASE{cases}{last} END)"
        if name in ("timestampdiff", "timestampadd") and arguments:
            texts[0] = arguments[0].literal.string
        distinct = "DISTINCT " if message.is_distinct else ""
        return f"{_RENAMED.get(name, name)}({distinct}{', '.join(texts)})"

    def struct(self, arguments: Sequence[Any], places: Surroundings) -> str:
        """A struct whose fields have the names that Spark takes from the frame."""
        fields: list[str] = []
        for item in arguments:
            for part in self.items(item, places):
                name = (part.entry.name or "") if part.entry is not None and not part.names else (
                    part.names[-1] if part.names else f"col{len(fields) + 1}"
                )
                fields.append(f"{part.text} AS {quoted(name)}")
        return f"struct({', '.join(fields)})"

    def _of_window(self, message: Any, places: Surroundings) -> str:
        parts = []
        if message.partition_spec:
            by = [self.text(item, places) for item in message.partition_spec]
            parts.append(f"PARTITION BY {', '.join(by)}")
        if message.order_spec:
            parts.append(f"ORDER BY {', '.join(self.order(message.order_spec, places))}")
        if message.HasField("frame_spec"):
            spec = message.frame_spec
            kind = {1: "ROWS", 2: "RANGE"}.get(spec.frame_type)
            if kind is None:
                self.refuse(refusals.WINDOW_EXPRESSION, "a window without a kind of frame")
            lower, upper = self.bound(spec.lower, -1), self.bound(spec.upper, 1)
            parts.append(f"{kind} BETWEEN {lower} AND {upper}")
        return f"{self.text(message.window_function, places)} OVER ({' '.join(parts)})"

    def bound(self, message: Any, side: int) -> str:
        """A bound of the frame of a window."""
        if message.current_row:
            return "CURRENT ROW"
        if message.unbounded:
            return f"UNBOUNDED {'PRECEDING' if side < 0 else 'FOLLOWING'}"
        value = message.value.literal
        kind = value.WhichOneof("literal_type")
        if kind not in ("byte", "short", "integer", "long"):
            self.refuse(refusals.WINDOW_EXPRESSION, "a window with a frame of an expression")
        number = getattr(value, kind)
        return f"{abs(number)} {'PRECEDING' if number < 0 else 'FOLLOWING'}"

    def order(self, messages: Sequence[Any], places: Surroundings) -> list[str]:
        """The texts of sort keys."""
        keys = []
        for item in messages:
            text = self.text(item.child, places)
            if item.child.WhichOneof("expr_type") == "literal":
                text = f"coalesce({text})"
            keys.append(
                f"{text} {'DESC' if item.direction == 2 else 'ASC'}"
                f"{ {1: ' NULLS FIRST', 2: ' NULLS LAST'}.get(item.null_ordering, '')}"
            )
        return keys

    def _of_subquery_expression(self, message: Any, places: Surroundings) -> str:
        relation = self.subquery(message.plan_id, places)
        if message.subquery_type == 1:
            return f"({relation})"
        if message.subquery_type == 2:
            return f"EXISTS ({relation})"
        if message.subquery_type != 4:
            self.refuse(refusals.NODE, "a table as an argument")
        values = [self.text(item, places) for item in message.in_subquery_values]
        left = values[0] if len(values) == 1 else f"({', '.join(values)})"
        return f"({left} IN ({relation}))"

    def subquery(self, number: int, places: Surroundings) -> str:
        """The text of the query of a frame."""
        raise NotImplementedError


def parts_of(name: str) -> list[str]:
    """The parts of a name with dots.

    Examples
    --------
    >>> parts_of("t.`a.b`.c")
    ['t', 'a.b', 'c']
    """
    return [
        part[1:-1].replace("``", "`") if part.startswith("`") else part
        for part in _NAME.findall(name)
    ]


def _attribute(message: Any) -> tuple[list[str], int | None]:
    number = message.plan_id if message.HasField("plan_id") else None
    return parts_of(message.unparsed_identifier), number


def _generates(message: Any) -> bool:
    kind = message.WhichOneof("expr_type")
    return kind in ("unresolved_function", "call_function") and (
        getattr(message, kind).function_name.lower() in GENERATORS
    )


def _is_operator(node: exp.Expr) -> bool:
    """Whether the text of a node needs brackets within another expression."""
    return not isinstance(node, (exp.Column, exp.Literal, exp.Anonymous, exp.Paren, exp.Filter,
                                 exp.Window, exp.WithinGroup, exp.IgnoreNulls))


_TYPED: Mapping[str, str] = {"byte": "Y", "short": "S", "integer": "", "long": "L"}


def literal_text(message: Any) -> str | None:
    """A literal of Connect's protocol in SQL; None if SQL has none of its kind."""
    kind = message.WhichOneof("literal_type")
    value = getattr(message, kind)
    if kind == "null":
        return f"CAST(NULL AS {type_of_message(value).simpleString()})" if (
            not isinstance(type_of_message(value), T.NullType)) else "NULL"
    if kind == "boolean":
        return "true" if value else "false"
    if kind in _TYPED:
        if value < 0:
            names = {"byte": "TINYINT", "short": "SMALLINT", "integer": "INT", "long": "BIGINT"}
            return f"CAST('{value}' AS {names[kind]})"
        return f"{value}{_TYPED[kind]}"
    if kind in ("float", "double"):
        return f"CAST('{value!r}' AS {kind.upper()})"
    if kind == "decimal":
        digits = value.value.lstrip("-").replace(".", "").lstrip("0")
        scale = max(value.scale, len(value.value.partition(".")[2]))
        precision = max(value.precision, len(digits), scale, 1)
        return f"CAST('{value.value}' AS DECIMAL({precision}, {scale}))"
    if kind == "string":
        return sql_text(value)
    if kind == "binary":
        return f"X'{value.hex()}'"
    if kind == "date":
        return f"date_from_unix_date({_number(value)})"
    if kind == "timestamp":
        return f"timestamp_micros({_number(value)})"
    if kind == "timestamp_ntz":
        return f"TIMESTAMP_NTZ '{T.TimestampNTZType().fromInternal(value).isoformat(' ')}'"
    if kind == "array":
        items = [literal_text(item) for item in value.elements]
        if None in items or not items:
            return None
        return f"array({', '.join(item for item in items if item is not None)})"
    return None


def _number(value: int) -> str:
    return str(value) if value >= 0 else f"CAST('{value}' AS BIGINT)"
