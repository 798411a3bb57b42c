"""Expressions over the columns of a collection, evaluated row by row.

Spark analyses every expression, on no rows, so that an error is raised where the expression is
written. A formula of the library evaluates it if one has exactly the same results; otherwise Spark
does::

    a formula f of an expression e  ⟹  f(row) = e(row), in value, type and error

If the session's setting `COMPILE` is ``false``, Spark evaluates all expressions.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Callable, Mapping, Sequence, Union

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.expressions.analysis import suggesting
from pyspark_diff.expressions.check import (
    check_no_variables,
    check_row_wise,
    check_same_columns,
    data_schema,
)
from pyspark_diff.expressions.compiled import CompiledExpression, compiled
from pyspark_diff.expressions.conditions import conjuncts
from pyspark_diff.expressions.names import Resolver, unused
from pyspark_diff.expressions.tree import Attribute, tree_of
from pyspark_diff.frame.collection import Collection
from pyspark_diff.frame.comparisons import compared, may_be_compared
from pyspark_diff.frame.places import may_have_places, with_first_places
from pyspark_diff.kernels.arrow_expression import Field
from pyspark_diff.operators.linear import Expression, with_normal_form
from pyspark_diff.operators.node import Concat, Linear, Node
from pyspark_diff.operators.projection import compute, keep_where
from pyspark_diff.spark.data_types import without_nullability
from pyspark_diff.spark.frames import column, template, update_struct
from pyspark_diff.spark.jvm import frame_of_no_rows
from pyspark_diff.spark.normal_form import without_signed_zeros
from pyspark_diff.spark.schema import DIFF, TIME, Schema
from pyspark_diff.spark.settings import ANSI, CASE, ZONE, recorded
from pyspark_diff.spark.user_functions import user_functions

#: The setting of a Spark session that disables formulas if it is ``false``.
COMPILE = "spark.pyspark_diff.compileExpressions"
#: Settings under which decimals of Spark have other digits than those of formulas.
_OTHER_DIGITS = {
    "spark.sql.legacy.literal.pickMinimumPrecision": "false",
    "spark.sql.legacy.decimal.retainFractionDigitsOnTruncate": "true",
}

#: Columns of an operator's output: a mapping of the changed columns by name, or a sequence of all
#: columns in order, in which a text is a column's name.
Outputs = Union[Mapping[str, Column], Sequence[Union[str, Column]]]


def row_wise(
    source: Collection,
    kind: str,
    apply: Callable[[DataFrame], DataFrame],
    *,
    resolver: Resolver | None = None,
    outputs: Outputs | None = None,
    condition: str | Column | None = None,
    unchanged: Sequence[str | None] = (),
    keeps_time_and_diff: bool = True,
) -> Collection:
    """A linear operator that Spark can run.

    Parameters
    ----------
    kind : str
        The operator's name, for messages.
    apply : callable
        From a frame of update rows to a frame of update rows.
    resolver : Resolver, optional
        The user's names in the result. The default is the names from ``apply``.
    outputs, condition : optional
        The columns that ``apply`` computes, or the condition by which it filters, so that a formula
        can replace it.
    unchanged : sequence of (str or None), optional
        For each column of the result the node's column with the same values, or None.
    keeps_time_and_diff : bool
        Whether ``apply`` leaves these two columns unchanged.
    """
    ours = source.resolver

    def named(applied: DataFrame) -> DataFrame:
        if resolver is not None:
            return ours.strip(applied)
        return applied if renamed is None else applied.toDF(*renamed, TIME, DIFF)

    def run(frame: DataFrame) -> DataFrame:
        return named(apply(ours.template(frame)))

    renamed: list[str] | None = None
    with suggesting(source.columns):
        empty = ours.template(_no_rows(source))
        applied = apply(empty)
        result = named(applied)
        result.schema  # Connect analyses the frame only here
    if condition is not None:
        check_same_columns(empty.columns, applied, kind)
    names = resolver
    if names is None:
        # As in PySpark, two selected columns may have one name, and names follow the plain columns.
        data = [name for name in result.columns if name not in (TIME, DIFF)]
        shown = [ours.as_named(name) for name in data]
        if isinstance(outputs, Sequence) and len(outputs) == len(data):
            shown = [ours.as_shown(name, output) for name, output in zip(data, outputs)]
        names = Resolver.with_repeats(shown)
        internal = [entry.internal for entry in names.entries]
        if internal != data:
            renamed = internal
            result = run(_no_rows(source))
        if len(unchanged) == len(internal):
            names = Resolver(tuple(
                entry if old is None else entry._replace(lineage=ours.lineage(old))
                for entry, old in zip(names.entries, unchanged)
            ))
    schema = data_schema(result, source.node.time_type, kind)
    check_row_wise(result, kind)
    node = _linear(
        source, kind, schema, run, result, outputs=outputs, condition=condition,
        keeps_time_and_diff=keeps_time_and_diff,
    )
    return source.derived(node, resolver=names)


def filtered(source: Collection, condition: str | Column) -> Collection:
    """The records for which a condition is true; see `Collection.seeing`."""
    wanted = F.expr(condition) if isinstance(condition, str) else condition
    parts: tuple[Node, Node] | None = None
    # A kept collection stays available, while the history of its inputs may be gone.
    if source.flow is None or not source.flow._keeps(source.node):
        if may_be_compared(source.node):
            formulas = _formulas(source, [wanted])
            parts = compared(source.node, formulas[0].formula) if formulas else None
        elif may_have_places(source.node):
            known = [_formulas(source, [part]) or () for part in conjuncts(wanted)]
            first = with_first_places(source.node, [part.formula for few in known for part in few])
            source = source if first is None else replace(source, node=first)
    kept_rows = row_wise(
        replace(source, node=parts[1]) if parts else source, "where",
        lambda frame: frame.where(condition), resolver=source.resolver, condition=condition,
    )
    return replace(kept_rows, node=Concat([parts[0], kept_rows.node])) if parts else kept_rows


def with_keys(source: Collection, expressions: Sequence[Column]) -> tuple[Node, list[str]]:
    """The node with expressions as columns, and their names; plain columns stay unchanged."""
    names = list(source.node.schema.names)
    keys: list[str] = []
    new: dict[str, Column] = {}
    for expression in expressions:
        plain = plain_column(source, expression)
        if plain is not None and plain not in keys:
            keys.append(plain)
            continue
        name = unused("key", [*names, *new])
        new[name] = expression
        keys.append(name)
    if not new:
        return source.node, keys
    unchanged = [(name, column(name)) for name in names]
    return computed(source, "key", [*unchanged, *new.items()], outputs=new), keys


def with_replaced(
    source: Collection, names: Sequence[str], expressions: Sequence[Column]
) -> Node:
    """The node in which expressions replace some columns."""
    replacements = dict(zip(names, expressions))
    columns = [(name, replacements.get(name, column(name))) for name in source.node.schema.names]
    return computed(source, "join", columns, outputs=replacements)


def computed(
    source: Collection,
    kind: str,
    columns: Sequence[tuple[str, Column]],
    *,
    outputs: Outputs | None = None,
    intervals: bool = False,
) -> Node:
    """The node of columns from names and expressions, checked as in `row_wise`.

    Parameters
    ----------
    outputs : optional
        See `row_wise`. The default is the expressions.
    intervals : bool
        See `check_row_wise`.
    """
    resolver = source.resolver

    def apply(frame: DataFrame) -> DataFrame:
        wanted = [expression.alias(name) for name, expression in columns]
        return resolver.template(frame).select(*wanted, TIME, DIFF)

    with suggesting(source.columns):
        result = apply(_no_rows(source))
        result.schema
    check_row_wise(result, kind, intervals=intervals)
    schema = data_schema(result, source.node.time_type, kind)
    if outputs is None:
        outputs = [expression for _, expression in columns]
    return _linear(source, kind, schema, apply, result, outputs=outputs)


def plain_column(source: Collection, expression: Column) -> str | None:
    """The node's column that an expression refers to, or None if it has to be evaluated."""
    tree = tree_of(expression)
    if not isinstance(tree, Attribute):
        return None  # also if it has the name of a column, as after alias
    names, aliased = _names_in(source.resolver)
    if tree.qualifier is None:
        matches = [tree.name] if tree.name in names else source.named(tree.name)
        plain = matches[0] if len(matches) == 1 and matches[0] in names else None
        return source.resolver.bound_to(tree.name) or plain
    if any(", " in name for name in source.node.schema.names):
        return None  # a tree has two parts for such a name
    return aliased.get((tree.qualifier, tree.name))


def _no_rows(source: Collection) -> DataFrame:
    return template(source.spark, source.node.schema, source.node.time_type)


def _linear(
    source: Collection,
    kind: str,
    schema: Schema,
    apply: Callable[[DataFrame], DataFrame],
    result: DataFrame,
    *,
    outputs: Outputs | None = None,
    condition: str | Column | None = None,
    keeps_time_and_diff: bool = True,
) -> Node:
    """The node of an operator that Spark has analysed: with formulas if possible, otherwise with
    Spark."""
    expressions = outputs.values() if isinstance(outputs, Mapping) else outputs or ()
    check_no_variables([output for output in expressions if isinstance(output, Column)])
    check_no_variables([] if condition is None else [condition])
    node = None
    written = recorded(source.spark)
    same: list[tuple[str, str]] = []
    if condition is not None:
        wanted = F.expr(condition) if isinstance(condition, str) else condition
        formulas = _formulas(source, [wanted])
        node = formulas and keep_where(kind, source.node, formulas[0], apply, written)
        same = [(name, name) for name in schema.names]
    elif outputs is not None:
        columns = (
            [outputs.get(name, Attribute(name)) for name in schema.names]
            if isinstance(outputs, Mapping) else outputs
        )
        formulas = _formulas(source, columns)
        node = formulas and compute(kind, source.node, schema, formulas, apply, written)
        if not node and may_have_places(source.node):
            for name, output in zip(schema.names, columns):
                for expression in _formulas(source, [output]) or ():
                    if isinstance(expression.formula, Field):
                        same.append((expression.formula.name, name))
    if node:
        return node
    takes = without_nullability(update_struct(source.node.schema, source.node.time_type))
    label = "the condition" if condition is not None else f"({', '.join(schema.names)})"
    computed = frozenset(schema.names)
    if condition is not None:
        computed = frozenset()  # a condition changes no value
    elif isinstance(outputs, Mapping):
        computed = frozenset(outputs)

    def applied(frame: DataFrame) -> DataFrame:
        return without_signed_zeros(apply(frame), computed)

    functions = user_functions(result)
    if functions:  # those of the frames that steps evaluate: a function may take a frame's schema
        functions = user_functions(apply(frame_of_no_rows(source.spark, takes)))
    stage = Expression(
        applied, takes, keeps_time_and_diff, tuple(same), f"{kind} {label}", written, functions,
    )
    node = Linear(kind, source.node, schema, stage)
    return node if condition is not None else with_normal_form(node)


def _formulas(
    source: Collection, columns: Sequence[str | Column | Attribute]
) -> list[CompiledExpression] | None:
    """Formulas of expressions that Spark has accepted; None if one of them has none.

    An `Attribute` is a column of the node, under any name of the user.
    """
    if str(source.spark.conf.get(COMPILE, "true")).lower() == "false":
        return None
    names, aliased = _names_in(source.resolver)
    struct = source.node.schema.struct
    qualified: dict[tuple[str | None, str], T.StructField] = {}
    if not any(", " in name for name in struct.names):  # a tree has two parts for such a name
        qualified = {name: struct[internal] for name, internal in aliased.items()}
        qualified |= {(None, text): struct[there] for text, there in source.resolver.bound}
    visible = T.StructType([field for field in struct.fields if field.name in names])
    settings = recorded(source.spark).values
    ansi, any_case = settings[ANSI] == "true", settings[CASE] == "false"
    zone = settings[ZONE]
    formulas: list[CompiledExpression] = []
    for wanted in columns:
        formula: CompiledExpression | None = None
        if isinstance(wanted, Attribute):
            formula = compiled(wanted, struct, ansi=ansi)
        elif isinstance(wanted, str) and wanted in names:
            formula = compiled(Attribute(wanted), visible, ansi=ansi)
        else:
            tree = tree_of(F.col(wanted) if isinstance(wanted, str) else wanted)
            if tree is not None:
                formula = compiled(
                    tree, visible, ansi=ansi, qualified=qualified, any_case=any_case, zone=zone
                )
        if formula is None:
            return None
        formulas.append(formula)
    if any(formula.has_decimals for formula in formulas):
        for setting, other in _OTHER_DIGITS.items():
            if settings.get(setting) == other:
                return None
    return formulas


def _names_in(resolver: Resolver) -> tuple[frozenset[str], dict[tuple[str, str], str]]:
    """Columns that expressions find by the plain name, and columns that they find by an alias.

    The result lacks names that Spark could resolve to several columns, or to a field of a column.
    """
    aliases = {entry.alias.lower() for entry in resolver.entries if entry.alias is not None}
    names = frozenset(
        entry.internal for entry in resolver.entries
        if resolver.internal(entry.visible) == entry.visible
        and entry.visible.lower() not in aliases
    )
    counts = Counter((str(e.alias).lower(), e.visible.lower()) for e in resolver.entries)
    qualified = {
        (entry.alias, entry.visible): entry.internal for entry in resolver.entries
        if entry.alias and counts[entry.alias.lower(), entry.visible.lower()] == 1
    }
    return names, qualified
