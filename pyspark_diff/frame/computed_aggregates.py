"""Columns of `agg` that are computed from aggregates, such as ``F.sum("a") / F.count("b")``."""

from __future__ import annotations

from typing import Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame

from pyspark_diff.errors import SchemaError
from pyspark_diff.expressions.aggregates import check_known, known
from pyspark_diff.expressions.analysis import unlogged
from pyspark_diff.expressions.names import ColumnEntry, Resolver
from pyspark_diff.frame.collection import Collection
from pyspark_diff.frame.row_wise import computed
from pyspark_diff.spark.frames import column
from pyspark_diff.spark.mentions import mentions, names_there


def computed_from_aggregates(
    rows: DataFrame, groups: Collection, keys: Sequence[ColumnEntry],
    outputs: Sequence[tuple[str, Column]],
) -> Collection:
    """The columns of the group, and columns that are computed from aggregates."""

    def refused(reason: str, wrong: Sequence[str]) -> SchemaError:
        return SchemaError(
            "agg computes columns from aggregates and from columns of the group; "
            f"{', '.join(wrong)} has something else: {reason}; {known()}"
        )

    source, _ = groups.seeing([expression for _, expression in outputs])
    key_columns_ = [(key.internal, column(key.internal)) for key in keys]
    gone = names_there(rows) - names_there(groups.template())
    others = [name for name, expression in outputs if mentions(expression, gone)]
    try:
        if others:
            raise refused("it takes other columns", others)
        node = computed(source, "agg", [*key_columns_, *outputs])
    except (AnalysisException, SchemaError) as error:
        for name, expression in outputs:
            check_known(rows, name, expression)
        if isinstance(error, SchemaError):
            raise
        # Spark's suggestions are internal names of aggregates.
        reason = str(error).partition(" Did you mean")[0]
        raise refused(reason, _not_computed(groups.template(), outputs)) from error
    names = Resolver.plain([name for name, _ in outputs]).entries
    entries = groups.resolver.entries[:len(keys)]
    return groups.derived(node, resolver=Resolver((*entries, *names)))


def _not_computed(groups: DataFrame, outputs: Sequence[tuple[str, Column]]) -> list[str]:
    """Names of the columns that Spark cannot compute from columns of the groups."""
    wrong = []
    for name, expression in outputs:
        try:
            with unlogged():
                groups.select(expression).schema
        except AnalysisException:
            wrong.append(name)
    return wrong or [name for name, _ in outputs]
