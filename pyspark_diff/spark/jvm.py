"""The only door to the JVM. Everything here has an answer on Spark Connect too."""

from __future__ import annotations

import json
import re
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.utils import get_active_spark_context

from pyspark_diff.spark.schema import quoted

#: Functions that give another value on each evaluation, or on each day, as plans show them.
_UNSTABLE = re.compile(
    r"\b(rand|randn|random|uuid|shuffle|randstr|uniform|monotonically_increasing_id|"
    r"spark_partition_id|input_file_name|current_timestamp|current_date|now|localtimestamp|"
    r"current_time)\("
)
_NODE = re.compile(r"^[\s:|+\-]*(?:\(\d+\) )?'?([A-Z]\w+)")

#: A plan whose root gives the frame a name.
_ALIAS = re.compile(r"^SubqueryAlias ([^\s.]+)$", re.MULTILINE)

_MOST_CASES = 8

#: What an operator of a classic frame asks its other side for.
JVM_FRAME = "_jdf"

#: How a classic column shows that a part of it is Spark's own expression, as of ``df["x"]``.
_EXPRESSION_NODE = "ExpressionColumnNode("

#: What is taken of a column in ``df["column.part"]``, by the class that Spark has for it.
_PARTS: dict[str, Callable[[Any], Any]] = {
    "GetStructField": lambda node: _expression(F.lit(node.extractFieldName())),
    "GetArrayStructFields": lambda node: _expression(F.lit(node.field().name())),
    "GetMapValue": lambda node: node.key(),
}

#: An object of the JVM that has nothing to show but its address.
_OBJECT = re.compile(r"@[0-9a-f]{5,8}\b")
#: A variable of a function in an expression.
_VARIABLE = re.compile(r"\bx_\d+\b")

#: Operators that classic columns, and those that the SQL parser, spell in another way.
_CLASSIC_OPERATORS = {"=": "==", "!": "not"}
_SQL_OPERATORS = {"And": "and", "Or": "or", "Not": "not", "EqualTo": "==", "EqualNullSafe": "<=>"}

#: What follows the name of an aggregate over values in an order that it has no other name for.
WITHIN_GROUP = "within group"

#: Aggregates that SQL has with WITHIN GROUP (ORDER BY x), by those of x that are the same.
_ORDERED = {"percentile_cont": "percentile", "percentile_disc": "percentile_disc", "mode": "mode"}


@dataclass(frozen=True)
class Plan:
    """What the library asks of an analysed plan.

    Parameters
    ----------
    nodes : tuple of str
        Names of the logical operators, from the root down.
    unstable : tuple of str
        Expressions whose value is not a function of the row.
    alias : str or None
        What the frame was called with `alias`.
    """

    nodes: tuple[str, ...]
    unstable: tuple[str, ...]
    alias: str | None = None

    @property
    def hinted(self) -> bool:
        """Whether the frame was declared small, with ``hint("broadcast")``."""
        return "ResolvedHint" in self.nodes[:2]


def analysed_plan(frame: DataFrame) -> Plan:
    """Logical operators and non-deterministic expressions of a frame.

    Parameters
    ----------
    frame : DataFrame
        Classic or Connect; nothing is run.

    Returns
    -------
    Plan
    """
    if hasattr(frame, "_jdf"):
        analysed = frame._jdf.queryExecution().analyzed()
        text = analysed.toString()
        # The clock counts as deterministic in Spark, which reads it once a query.
        clock = analysed.containsPattern(_sql("catalyst.trees.TreePattern").CURRENT_LIKE())
        # A plan is deterministic if its expressions are and the plans below it.
        marked = clock or not analysed.deterministic()
    else:
        extended = frame._explain_string(extended=True)  # type: ignore[operator]
        text = extended.split("== Analyzed Logical Plan ==")[-1].split("== Optimized")[0]
        # The section opens with a line of column names and types.
        text = "\n".join(text.strip().splitlines()[1:])
        marked = _UNSTABLE.search(text) is not None
    nodes = tuple(m.group(1) for m in map(_NODE.match, text.splitlines()) if m)
    named = _ALIAS.match(text)
    alias = None if named is None else named.group(1)
    if not marked:
        return Plan(nodes, (), alias)
    # The text only serves to name them: long plans are cut, and column names may look like calls.
    found = tuple(dict.fromkeys(_UNSTABLE.findall(text)))
    found = found or ("an expression that Spark marks as non-deterministic",)
    return Plan(nodes, found, alias)


def frame_of_no_rows(spark: SparkSession, struct: T.StructType) -> DataFrame:
    """A frame without any row, in whose session names are looked up from now on.

    As `createDataFrame` makes it, which on classic takes three times as long: it moves the rows,
    of which there are none, to the JVM. Each operator of a program asks for such a frame when it
    is written.

    Examples
    --------
    >>> frame_of_no_rows(spark, spark.range(3).schema).columns
    ['id']
    """
    session = getattr(spark, "_jsparkSession", None)
    if session is None:
        return spark.createDataFrame([], struct)
    SparkSession._activeSession = spark
    _sql("classic.SparkSession").setActiveSession(session)
    rows = _class("java.util.ArrayList")()
    return DataFrame(session.createDataFrame(rows, session.parseDataType(struct.json())), spark)


@dataclass(frozen=True)
class ColumnCall:
    """A function call at the top of a column expression.

    Parameters
    ----------
    name : str
        The function in lower case, or the operator as Python writes it, save for ``and``, ``or``,
        ``not`` and ``<=>``, which is `eqNullSafe`.
    arguments : tuple of Column
        As columns that can be used again; none for ``count(*)`` and ``count(1)``.
    distinct : bool
        Whether the function sees each of its arguments once, as in ``count(DISTINCT x)``.
    alias : str or None
        The outermost name that was given to the result.
    filter : Column or None
        The condition of a FILTER clause.
    """

    name: str
    arguments: tuple[Column, ...]
    distinct: bool
    alias: str | None
    filter: Column | None = None


def call_of(column: Column) -> ColumnCall | None:
    """The function that a column expression calls last; nothing is analysed or run.

    Parameters
    ----------
    column : Column
        Classic or Connect. SQL text (`F.expr`) is understood on classic only: a Connect client has
        no parser.

    Returns
    -------
    ColumnCall or None
        None for everything that is not a plain call below its aliases: a column, a literal, a
        cast, a window, a Python function, an aggregate with a FILTER clause.

    Examples
    --------
    >>> call_of(F.sum("price").alias("total"))
    ColumnCall(name='sum', arguments=(Column<'price'>,), distinct=False, alias='total', filter=None)
    >>> call_of(F.count_distinct("src", "dst")).distinct
    True
    >>> call_of((F.col("a") > 1) & (F.col("b") == 2)).arguments
    (Column<'>(a, 1)'>, Column<'=(b, 2)'>)
    """
    if hasattr(column, "_jc"):
        return _classic_call(column._jc.node(), type(column))  # type: ignore[operator]
    return _connect_call(column._expr, type(column))


#: What is to stand in the place of a call, which is given as a column too; None to look inside.
Replacement = Callable[[ColumnCall, Column], Column | None]


def with_calls_replaced(column: Column, replacement: Replacement) -> Column:
    """A column expression in which others stand in the place of calls; nothing is analysed or run.

    Parameters
    ----------
    column : Column
        Classic or Connect. SQL text (`F.expr`) is understood on classic only.
    replacement : callable
        Asked for each call that is not in one that was replaced, also for those with a FILTER.

    Examples
    --------
    >>> with_calls_replaced(
    ...     F.abs(F.sum("x")), lambda call, _: F.col("s") if call.name == "sum" else None)
    Column<'abs(s)'>
    """
    make: Any = type(column)

    def classic(node: Any) -> Any:
        if _kind(node) != "UnresolvedFunction":
            return None
        call = _parsed_call(node, make, None, filtered=True)
        whole = make(_sql("classic.ExpressionUtils").column(node))
        found = None if call is None else replacement(call, whole)
        return None if found is None else _expression(found)

    def connect(node: Any) -> Any:
        if type(node).__name__ not in ("UnresolvedFunction", "CallFunction"):
            return None
        call = _connect_call(node, make)
        found = None if call is None else replacement(call, make(node))
        return None if found is None else found._expr

    return _replaced(column, classic, connect)


@dataclass(frozen=True)
class TakenColumn:
    """A column that was taken of a Spark frame, as in ``df["x"]``, wherever it stands.

    Parameters
    ----------
    name : str
        As it was written there.
    column : Column
        It by itself.
    """

    name: str
    column: Column

    def found_in(self, frame: DataFrame) -> tuple[str, str] | None:
        """The column of a frame that it is, and what is taken of that, such as ``.field``.

        It may have been taken of an earlier frame, if it is the same column still.
        """
        if hasattr(frame, "_jdf"):
            place = _attributes(frame).indexOf(_expression(self.column).exprId())
            return None if place < 0 else (frame.columns[place], "")
        reference: Any = self.column._expr
        if reference._plan_id not in _plan_ids(frame._plan):
            return None
        first = re.match(r"`(?:[^`]|``)+`|[^`.]+", self.name)
        start = self.name if first is None else first.group(0)
        # A struct and its field, or a name under an alias.
        for name, rest in ((start, self.name[len(start):]), (self.name, "")):
            part = copy(reference)
            part._unparsed_identifier = name
            try:
                found = frame.select(type(self.column)(part)).columns[0]
            except AnalysisException:
                continue
            # It is called there as it was written, which may be in another case.
            return next((own for own in frame.columns if own.lower() == found.lower()), found), rest
        return None


def with_taken_replaced(
    column: Column, replacement: Callable[[TakenColumn], Column]
) -> Column:
    """A column expression in which others stand in the place of those taken of Spark frames.

    Parameters
    ----------
    column : Column
        Classic or Connect; nothing is analysed or run.
    replacement : callable

    Examples
    --------
    >>> df = spark.createDataFrame([], "x int")
    >>> with_taken_replaced(F.upper(df["x"]), lambda taken: F.col("z"))
    Column<'upper(z)'>
    """
    make: Any = type(column)

    def classic(node: Any) -> Any:
        kind = _kind(node)
        if kind in _PARTS:
            # A part by its place, which Spark cannot find in a column that it has yet to resolve.
            whole = _classic_replaced(node.child(), classic)
            part = _PARTS[kind](node)
            extract = _sql("catalyst.analysis.UnresolvedExtractValue")
            return None if whole is None else extract(whole, part)
        if kind != "AttributeReference":
            return None
        whole = make(_sql("classic.ExpressionUtils").column(node))
        return _expression(replacement(TakenColumn(node.name(), whole)))

    def connect(node: Any) -> Any:
        if type(node).__name__ != "ColumnReference" or node._plan_id is None:
            return None
        return replacement(TakenColumn(node._unparsed_identifier, make(node)))._expr

    # Asked of every expression that a program has, most of which have none.
    if hasattr(column, "_jc") and _EXPRESSION_NODE not in _shown(column):
        return column
    return _replaced(column, classic, connect)


def star_taken(column: Column) -> Callable[[DataFrame], list[str]] | None:
    """Of ``df["*"]``, which columns of another frame it is; None if it is no such star."""
    make: Any = type(column)
    if hasattr(column, "_jc"):
        if _EXPRESSION_NODE not in _shown(column):
            return None
        star = _expression(column)
        if _kind(star) != "ResolvedStar":
            return None
        to_column = _sql("classic.ExpressionUtils").column
        parts = [make(to_column(a)) for a in _items(star.expressions())]

        def classic(frame: DataFrame) -> list[str]:
            found = [TakenColumn("", part).found_in(frame) for part in parts]
            return [name for name, _ in filter(None, found)]

        return classic
    if type(column._expr).__name__ != "UnresolvedStar" or column._expr._plan_id is None:
        return None

    def connect(frame: DataFrame) -> list[str]:
        there = column._expr._plan_id in _plan_ids(frame._plan)
        return frame.select(column).columns if there else []

    return connect


def same_columns(made: DataFrame, source: DataFrame) -> list[str]:
    """The columns of a frame that has been made of another one that are the same there.

    Examples
    --------
    >>> df = spark.createDataFrame([], "x int, s string")
    >>> same_columns(df.fillna("none"), df)
    ['x']
    """
    if hasattr(source, "_jdf"):
        there = _attributes(made)
        ours = _items(source._jdf.queryExecution().analyzed().output())
        places = {attribute.name(): there.indexOf(attribute.exprId()) for attribute in ours}
        return [name for name, at in places.items() if at >= 0 and made.columns[at] == name]
    names = [name for name in source.columns if name in made.columns]
    taken = {name: TakenColumn(quoted(name), source[quoted(name)]) for name in names}
    return [name for name, column in taken.items() if column.found_in(made) == (name, "")]


def _attributes(frame: DataFrame) -> Any:
    """The columns of a classic frame, found by their ids."""
    output = frame._jdf.queryExecution().analyzed().output()  # type: ignore[operator]
    return _sql("catalyst.expressions.package$AttributeSeq")(output)


def _shown(column: Column) -> str:
    return column._jc.node().toString()  # type: ignore[operator]


def _plan_ids(plan: Any) -> set[int]:
    """The numbers that columns on Connect tell a frame by: its own, and of all it is made of."""
    found = {plan._root_plan_id, plan._plan_id}
    for value in vars(plan).values():
        for one in value if isinstance(value, (list, tuple)) else [value]:
            # Columns have every attribute that they are asked for.
            if any(kind.__name__ == "LogicalPlan" for kind in type(one).__mro__):
                found |= _plan_ids(one)
    return found


def _replaced(
    column: Column, classic: Callable[[Any], Any], connect: Callable[[Any], Any]
) -> Column:
    """A column expression in which some nodes are others; either function says None of the rest."""
    make: Any = type(column)
    if hasattr(column, "_jc"):
        found = _classic_replaced(_expression(column), classic)
        return column if found is None else make(_sql("classic.ExpressionUtils").column(found))
    found = _connect_replaced(column._expr, connect)
    return column if found is None else make(found)


def _classic_replaced(node: Any, visited: Callable[[Any], Any]) -> Any:
    """The expression with nodes replaced; None if there was none."""
    found = visited(node)
    if found is not None:
        return found
    children = _items(node.children())
    made = [_classic_replaced(child, visited) for child in children]
    if all(child is None for child in made):
        return None
    both = [old if new is None else new for old, new in zip(children, made)]
    return node.withNewChildren(_class("org.apache.spark.api.python.PythonUtils").toSeq(both))


def _connect_replaced(node: Any, visited: Callable[[Any], Any]) -> Any:
    found = visited(node)
    if found is not None:
        return found

    def changed(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            made = [changed(one) for one in value]
            kept = [old if new is None else new for old, new in zip(value, made)]
            return None if all(one is None for one in made) else type(value)(kept)
        # The classes themselves cannot be imported where Connect is not installed.
        known = any(kind.__name__ == "Expression" for kind in type(value).__mro__)
        return _connect_replaced(value, visited) if known else None

    made = {name: changed(value) for name, value in vars(node).items()}
    if all(value is None for value in made.values()):
        return None
    result = copy(node)
    for name, value in made.items():
        if value is not None:
            setattr(result, name, value)
    return result


def order_of(column: Column) -> tuple[Column, bool, bool] | None:
    """What a column such as ``F.col("x").desc()`` orders by; nothing is analysed or run.

    Returns
    -------
    tuple of (Column, bool, bool), or None
        The column, whether it is descending, and whether nulls come last; None if no order is
        given.

    Examples
    --------
    >>> order_of(F.col("price").desc())
    (Column<'price'>, True, True)
    """
    make: Any = type(column)
    if hasattr(column, "_jc"):
        node = column._jc.node()  # type: ignore[operator]
        if _kind(node) != "SortOrder":
            return None
        down, last = node.sortDirection().toString(), node.nullOrdering().toString()
        child = make(_sql("Column")(node.child()))
        return child, "Descending" in down, "NullsLast" in last
    expression = column._expr
    if type(expression).__name__ != "SortOrder":
        return None
    return make(expression._child), not expression._ascending, not expression._nullsFirst


def expression_json(column: Column) -> str | None:
    """A classic column as Spark's own JSON of its expression tree; nothing is analysed or run.

    SQL text is parsed, so that it looks as a column that was written in Python does.

    Returns
    -------
    str or None
        A list of nodes, each in front of its children; None on Connect, or if Spark cannot tell.

    Examples
    --------
    >>> expression_json(F.col("n")).count("UnresolvedAttribute")
    1
    """
    if not hasattr(column, "_jc"):
        return None
    # The JSON of a CASE has each of its branches twice, so that nested ones would double it.
    if column._jc.toString().upper().count("CASE") > _MOST_CASES:  # type: ignore[operator]
        return None
    try:
        return _expression(column).toJSON()
    except (Py4JError, TypeError):
        # An object of this name is no part of Spark's public interface.
        return None


def expression_parts(
    column: Column, named: Callable[[str], str] = str
) -> tuple[object, tuple[str, ...]]:
    """A column expression as plain values that another process finds again; nothing is run.

    Without the places where it was written, and with the numbers of columns and of variables of
    functions in the order in which they come.

    Parameters
    ----------
    column : Column
        Classic or Connect.
    named : callable
        What is told of the name of a column that Spark has yet to look up.

    Returns
    -------
    tuple of (object, tuple of str)
        The values, and the names of Python functions of which nothing but their types is known.

    Examples
    --------
    >>> def same(one, other):
    ...     return expression_parts(one) == expression_parts(other)
    >>> same(F.col("n") + 1, F.col("n") + 1), same(F.lit(1), F.lit("1"))
    (True, False)
    """
    found = _Parts(named)
    if not hasattr(column, "_jc"):
        return found.connect(column._expr), tuple(found.functions)
    text = expression_json(column)
    if text is None:
        return found.sql(column), tuple(found.functions)
    parts = found.classic(json.loads(text))
    if found.hidden:
        parts = [parts, found.sql(column)]
    return parts, tuple(found.functions)


class _Parts:
    """What is found in one expression. It holds state: which numbers have come."""

    def __init__(self, named: Callable[[str], str]):
        self.functions: list[str] = []
        #: Whether there are values that are shown by their address.
        self.hidden = False
        self._named = named
        self._numbers: dict[object, int] = {}

    def _number(self, name: object) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    def classic(self, part: Any) -> object:
        """A part of the JSON that Spark has for an expression."""
        if isinstance(part, list):
            return [self.classic(one) for one in part]
        if isinstance(part, str):
            self.hidden |= _OBJECT.search(part) is not None
            return _OBJECT.sub("", part)
        if not isinstance(part, dict):
            return part
        if "jvmId" in part:
            return self._number((part["id"], part["jvmId"]))
        kind = str(part.get("class", "")).rpartition(".")[2]
        found = {name: self.classic(value) for name, value in part.items()}
        if kind == "PythonUDF":
            self.functions.append(str(part.get("name")))
        if kind == "UnresolvedNamedLambdaVariable":
            found["nameParts"] = self._number(part["nameParts"])
        if kind == "UnresolvedAttribute":
            found["nameParts"] = self._attribute(str(part["nameParts"]))
        return found

    def _attribute(self, parts: str) -> str:
        first, comma, rest = parts[1:-1].partition(", ")
        return f"[{self._named(first)}{comma}{rest}]"

    def sql(self, column: Column) -> object:
        """The expression as SQL, for those that Spark has no other text for."""
        try:
            text = str(_expression(column).sql())
        except Py4JError:
            text = column._jc.node().normalized().toString()  # type: ignore[operator]
        for name in re.findall(r"`((?:[^`]|``)+#\d+)`", text):
            text = text.replace(f"`{name}`", f"`{self._named(name)}`")
        return _VARIABLE.sub(lambda found: f"x_{self._number(found.group(0))}", text)

    def connect(self, part: Any) -> object:
        """A part of an expression on Connect."""
        if isinstance(part, (list, tuple)):
            return [self.connect(one) for one in part]
        # The classes themselves cannot be imported where Connect is not installed.
        kinds = {kind.__name__ for kind in type(part).__mro__}
        kind = type(part).__name__
        if not kinds & {"Expression", "PythonUDF", "JavaUDF"}:
            return part
        found = {
            name: self.connect(value) for name, value in vars(part).items() if name != "origin"
        }
        if found.get("_plan_id") is not None:
            found["_plan_id"] = self._number(("plan", part._plan_id))
        if kind == "ColumnReference":
            found["_unparsed_identifier"] = self._reference(part._unparsed_identifier)
        if kind == "UnresolvedNamedLambdaVariable":
            found["_name_parts"] = self._number(tuple(part._name_parts))
        return [kind, found]

    def _reference(self, name: str) -> str:
        if not name.startswith("`"):
            return name
        first = re.match(r"`((?:[^`]|``)+)`", name)
        if first is None:
            return name
        return f"`{self._named(first.group(1).replace('``', '`'))}`{name[first.end():]}"


def _expression(column: Column) -> Any:
    """A classic column as Spark's own expression, not yet analysed; SQL text is parsed."""
    converter = _sql("classic.ColumnNodeToExpressionConverter$")
    return getattr(converter, "MODULE$").apply(column._jc.node())  # type: ignore[operator]


def _connect_call(top: Any, make: Callable[[Any], Column]) -> ColumnCall | None:
    def kind(node: Any) -> str:
        # The classes themselves cannot be imported where Connect is not installed.
        return type(node).__name__

    alias = None
    while kind(top) == "ColumnAlias":
        alias = alias or _only(top._alias)
        top = top._child
    if kind(top) not in ("UnresolvedFunction", "CallFunction"):
        return None
    name, arguments = top._name.lower(), list(top._args)
    distinct = getattr(top, "_is_distinct", False)
    if name == "count" and not distinct and len(arguments) == 1:
        counted = arguments[0]
        star = kind(counted) == "UnresolvedStar" and counted._unparsed_target is None
        if star or kind(counted) == "LiteralExpression" and counted._value is not None:
            arguments = []
    return ColumnCall(name, tuple(make(node) for node in arguments), distinct, alias)


def _classic_call(top: Any, make: Callable[[Any], Column]) -> ColumnCall | None:
    alias = None
    while _kind(top) == "Alias":
        alias = alias or _only(_items(top.name()))
        top = top.child()
    if _kind(top) == "SqlExpression":
        parser = _sql("classic.SparkSession").active().sessionState().sqlParser()
        return _parsed_call(parser.parseExpression(top.expression()), make, alias)
    if _kind(top) == "ExpressionColumnNode":
        # Such as the arguments of a call in SQL text.
        return _parsed_call(top.expression(), make, alias)
    if _kind(top) != "UnresolvedFunction":
        return None
    name, arguments = top.functionName().lower(), _items(top.arguments())
    distinct = top.isDistinct()
    if name == "count" and not distinct and len(arguments) == 1:
        counted = arguments[0]
        star = _kind(counted) == "UnresolvedStar" and counted.unparsedTarget().isEmpty()
        if star or _kind(counted) == "Literal" and counted.value() is not None:
            arguments = []
    columns = tuple(make(_sql("Column")(node)) for node in arguments)
    return ColumnCall(_CLASSIC_OPERATORS.get(name, name), columns, distinct, alias)


def _parsed_call(
    top: Any, make: Callable[[Any], Column], alias: str | None, *, filtered: bool = False
) -> ColumnCall | None:
    """The same for an expression of the SQL parser, which has classes of its own."""
    condition = None
    while _kind(top) == "Alias":
        alias = alias or top.name()
        top = top.child()
    name = _SQL_OPERATORS.get(_kind(top))
    arguments, distinct = _items(top.children()), False
    if _kind(top) == "UnresolvedFunction":
        # Nulls are a flag in Spark 4.1 and an option later.
        nulls_as_usual = str(top.ignoreNulls()) in ("False", "None")
        plain = nulls_as_usual and (filtered or top.filter().isEmpty())
        condition = None if top.filter().isEmpty() else top.filter().get()
        name = ".".join(_items(top.nameParts())).lower() if plain else None
        arguments, distinct = _items(top.arguments()), top.isDistinct()
        order = _items(top.orderingWithinGroup())
        if order:
            upwards = len(order) == 1 and "Ascending" in order[0].direction().toString()
            known = _ORDERED.get(name or "") if upwards else None
            name = known or name and f"{name} {WITHIN_GROUP}"
            arguments = [order[0].child(), *arguments]
    if name is None:
        return None
    if name == "count" and not distinct and len(arguments) == 1:
        # The parser has made a 1 of a star.
        counted = arguments[0]
        star = _kind(counted) == "UnresolvedStar" and counted.target().isEmpty()
        if star or _kind(counted) == "Literal" and counted.value() is not None:
            arguments = []
    column = _sql("classic.ExpressionUtils").column
    return ColumnCall(
        _CLASSIC_OPERATORS.get(name, name),
        tuple(make(column(node)) for node in arguments),
        distinct,
        alias,
        None if condition is None else make(column(condition)),
    )


def needs_job(frame: DataFrame) -> bool:
    """Whether Spark runs a job for the rows of a frame, and does not know them when it has planned.

    Over Connect, where nobody knows, it is taken to run one.
    """
    if not hasattr(frame, "_jdf"):
        return True
    return _kind(frame._jdf.queryExecution().optimizedPlan()) != "LocalRelation"


def is_running(context: SparkContext) -> bool:
    """Whether a context was not stopped."""
    return context._jsc is not None  # type: ignore[attr-defined]


def scala_version(context: SparkContext) -> str:
    """The version of Scala that Spark runs on, such as ``2.13.18``."""
    return context._jvm.scala.util.Properties.versionNumberString()  # type: ignore[union-attr]


#: By gateway, classes that were loaded. Py4J finds methods by the name of a class, so that a second
#: class of one name, from another loader, would be mistaken for the first.
_loaded: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()


def instance(context: SparkContext, name: str, jar: Path) -> Any:
    """A new object of a class that takes a SparkContext; None if the class is nowhere.

    Parameters
    ----------
    context : SparkContext
    name : str
        Of the class. One on the class path is taken; else the one in the jar.
    jar : Path
        Need not exist. It stays open from then on.
    """
    java: Any = context._jvm
    gateway: Any = context._gateway
    loaded = _loaded.setdefault(gateway, {})
    if name not in loaded:
        loader = java.java.lang.Thread.currentThread().getContextClassLoader()
        try:
            loaded[name] = loader.loadClass(name)
        except Py4JJavaError:
            if not jar.is_file():
                return None
            urls = gateway.new_array(java.java.net.URL, 1)
            urls[0] = java.java.io.File(str(jar)).toURI().toURL()
            loaded[name] = java.java.net.URLClassLoader(urls, loader).loadClass(name)
    given = gateway.new_array(java.java.lang.Object, 1)
    given[0] = context._jsc.sc()  # type: ignore[attr-defined]
    return loaded[name].getConstructors()[0].newInstance(given)


def _sql(name: str) -> Any:
    """A class of Spark SQL, by its name in there."""
    return _class(f"org.apache.spark.sql.{name}")


def _class(name: str) -> Any:
    """A class of the JVM, by its full name.

    In one piece: of ``jvm.org.apache.spark`` the JVM is asked dot by dot what it is, and looks for
    a class of that name in each of Spark's 300 jars before it calls it a package.
    """
    context: Any = get_active_spark_context()
    return getattr(context._jvm, name)


def _kind(node: Any) -> str:
    """The class of an object of the JVM, without its package."""
    return node.getClass().getName().rpartition(".")[2]


def _items(sequence: Any) -> list[Any]:
    """A Scala sequence as a list."""
    return [sequence.apply(i) for i in range(sequence.size())]


def _only(names: Any) -> str | None:
    """The name of a column; generators give several."""
    return names[0] if len(names) == 1 else None
