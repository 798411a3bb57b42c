"""Reasons: why a change can cost an operator more than the change itself.

The cost of an operator without a reason follows its change: the new rows, the rows of older batches
under the same keys, and the output. A reason names other work of an operator, and its amount.
"""

from __future__ import annotations

from dataclasses import dataclass

#: The quantities to which the cost of a change may be proportional, from the least to the most.
SCOPES = ("step", "output", "iterations", "group", "state")


@dataclass(frozen=True)
class Reason:
    """One reason. Users see its code.

    Parameters
    ----------
    code : str
    scope : {"step", "output", "iterations", "group", "state"}
        What a change costs in proportion to: a constant of each step, the rows that it gives, the
        iterations that it alters, all records of the groups that it touches, or all that is kept.
    text : str
        What happens.
    advice : str
        What may be done about it.
    """

    code: str
    scope: str
    text: str
    advice: str

    def __str__(self) -> str:
        return self.code


#: All reasons that there are, by their codes.
REASONS: dict[str, Reason] = {}


def _reason(code: str, scope: str, text: str, advice: str) -> Reason:
    REASONS[code] = Reason(code, scope, text, advice)
    return REASONS[code]


SPARK_EVALUATION = _reason(
    "SPARK_EVALUATION", "step",
    "its expression is evaluated by Spark, some 15 ms in each step that brings it rows",
    "use functions that are compiled (arithmetic, comparisons, casts of numbers, parts and starts "
    "of dates) if steps are small and many",
)
FAN_OUT = _reason(
    "FAN_OUT", "output",
    "a changed record meets all records of the other side that have its key, and gives a row for "
    "each pair",
    "reduce the other side first (groupBy, distinct, top_k), or select few columns, so that equal "
    "rows add up",
)
LOOP = _reason(
    "LOOP", "iterations",
    "a change is followed through all iterations that it alters",
    "flow.iterations() tells how many these were",
)
LOOP_OF_RECORDS = _reason(
    "LOOP_OF_RECORDS", "iterations",
    "as LOOP; and as records are more than two integers, or operators others than joins, minima, "
    "counts and distinct, each iteration takes some milliseconds",
    "number the nodes, and let the loop carry pairs of integers",
)
GROUP_FUNCTION = _reason(
    "GROUP_FUNCTION", "group",
    "a function in Python is given all values of each group that changes, at each time at which "
    "it does",
    "use groupBy().agg() with Spark's functions where they will do, or smaller groups",
)
PARTITION_READ = _reason(
    "PARTITION_READ", "group",
    "a function over a window looks at all rows of the partition that a change is in",
    "use a frame of some rows (rowsBetween), top_k for the first ones, or smaller partitions",
)
WHOLE_SIDE = _reason(
    "WHOLE_SIDE", "state",
    "there is no key: a changed record meets all records of the other side",
    "join by an equality or by a comparison, or keep the other side to a few records",
)
WHOLE_COLLECTION = _reason(
    "WHOLE_COLLECTION", "state",
    "there is no key: the group that changes is the whole collection, and all of it is read",
    "group by something, or use aggregates that are kept as sums",
)


def table() -> str:
    """All reasons as a table in Markdown, as the documentation has it.

    Examples
    --------
    >>> print(table().splitlines()[2][:40])
    | `SPARK_EVALUATION` | step | its expres
    """
    lines = ["| code | a change costs in proportion to | what happens | what may be done |",
             "|---|---|---|---|"]
    lines += [f"| `{r.code}` | {r.scope} | {r.text} | {r.advice} |" for r in REASONS.values()]
    return "\n".join(lines)
