"""Keys and orders by the user's names, and the reduction of each key's records."""

from __future__ import annotations

from typing import Any, Callable, Sequence

from pyspark.sql import Column
from pyspark.sql import types as T

from pyspark_diff.errors import SchemaError
from pyspark_diff.expressions.analysis import suggesting
from pyspark_diff.expressions.check import check_row_wise
from pyspark_diff.frame.collection import Collection
from pyspark_diff.frame.row_wise import plain_column
from pyspark_diff.operators.arrange import arrange_by_key
from pyspark_diff.operators.reduce import FORMS, reduce
from pyspark_diff.operators.twice import Twice
from pyspark_diff.spark.calls import order_of
from pyspark_diff.spark.schema import parse_schema

Names = str | Sequence[str]
Order = str | Column | Sequence[str | Column]


def key_columns(source: Collection, key: Names | None, kind: str) -> list[str]:
    """The node's columns of a key; the default is the key of the last arrangement."""
    if key is None:
        if source.key is None:
            raise SchemaError(
                f"{kind} needs the columns of the key: give key=..., or arrange_by_key(...) first"
            )
        return list(source.key)
    names = [key] if isinstance(key, str) else list(key)
    columns = [source.column_name(name, f"for {kind}") for name in names]
    if len(set(columns)) < len(columns):
        raise SchemaError(f"{kind} has a column twice: {', '.join(names)}; name each once")
    return columns


def ordering(source: Collection, by: Order, key: Sequence[str]) -> list[tuple[str, bool, bool]]:
    """The columns of an order: name, whether descending, and whether nulls come last."""
    listed = list(by) if isinstance(by, (list, tuple)) else [by]
    if not listed:
        raise SchemaError("an order needs at least one column")
    source, listed = source.seeing(listed)
    order: list[tuple[str, bool, bool]] = []
    for column in listed:
        internal, down, last = None, False, False
        if isinstance(column, Column):
            ordered = order_of(column)
            if ordered is not None:
                column, down, last = ordered
            internal = plain_column(source, column)
            if internal is None:
                with suggesting(source.columns):
                    check_row_wise(source.template().select(column), "an order")
                raise SchemaError(
                    f"an order takes columns, not expressions such as {column}; add it as a "
                    "column with withColumn first"
                )
        else:
            internal = source.column_name(str(column), "for the order")
        if internal in key or internal in [n for n, _, _ in order]:
            continue  # it cannot break a tie
        order.append((internal, down, last))
    rest = [name for name in source.node.schema.names if name not in key]
    if not order and rest:
        order.append((rest[0], False, False))
    return order


def check_form(form: str) -> None:
    """Refuse a form of values that `reduce` does not have."""
    if form not in FORMS:
        raise SchemaError(f"form must be one of {', '.join(FORMS)}, not {form!r}")


def reduced(
    source: Collection,
    func: Callable[..., Any],
    schema: str | T.StructType,
    key: Names | None,
    *,
    form: str,
    allow_negative: bool,
    check: bool,
) -> Collection:
    """A Python function of each key's values: see `KeyedMethods.reduce`."""
    check_form(form)
    names = key_columns(source, key, "reduce")
    parsed = parse_schema(schema)
    node = reduce(
        arrange_by_key(source.node, names), Twice(func, "reduce") if check else func, parsed,
        form=form, diff=source.diff_name, allow_negative=allow_negative,
    )
    return source.derived(node)
