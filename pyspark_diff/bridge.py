"""The only door to the JVM. Everything here has an answer on Spark Connect too."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyspark.sql import DataFrame

#: Functions that give another value on each evaluation, or on each day, as plans show them.
_UNSTABLE = re.compile(
    r"\b(rand|randn|random|uuid|shuffle|randstr|uniform|monotonically_increasing_id|"
    r"spark_partition_id|input_file_name|current_timestamp|current_date|now|localtimestamp|"
    r"current_time)\("
)
_NODE = re.compile(r"^[\s:|+\-]*(?:\(\d+\) )?'?([A-Z]\w+)")


@dataclass(frozen=True)
class Plan:
    """What the library asks of an analysed plan.

    Parameters
    ----------
    nodes : tuple of str
        Names of the logical operators, from the root down.
    unstable : tuple of str
        Expressions whose value is not a function of the row.
    """

    nodes: tuple[str, ...]
    unstable: tuple[str, ...]


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
        catalyst = frame.sparkSession._jvm.org.apache.spark.sql.catalyst  # type: ignore[union-attr]
        clock = analysed.containsPattern(catalyst.trees.TreePattern.CURRENT_LIKE())
        marked = clock or not _deterministic(analysed)
    else:
        extended = frame._explain_string(extended=True)  # type: ignore[operator]
        text = extended.split("== Analyzed Logical Plan ==")[-1].split("== Optimized")[0]
        # The section opens with a line of column names and types.
        text = "\n".join(text.strip().splitlines()[1:])
        marked = _UNSTABLE.search(text) is not None
    nodes = tuple(m.group(1) for m in map(_NODE.match, text.splitlines()) if m)
    if not marked:
        return Plan(nodes, ())
    # The text only serves to name them: long plans are cut, and column names may look like calls.
    found = tuple(dict.fromkeys(_UNSTABLE.findall(text)))
    return Plan(nodes, found or ("an expression that Spark marks as non-deterministic",))


def _deterministic(plan) -> bool:  # type: ignore[no-untyped-def]
    if not plan.deterministic():
        return False
    children = plan.children()
    return all(_deterministic(children.apply(i)) for i in range(children.size()))
