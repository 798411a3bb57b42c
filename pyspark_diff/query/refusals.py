"""The constructs of a query that are refused, each with a code, and the error that lists them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark_diff.errors import UnsupportedQueryError


@dataclass(frozen=True)
class Code:
    """A kind of refusal.

    Parameters
    ----------
    cause : str
        The reason that the construct is refused.
    """

    name: str
    cause: str
    remedy: str


#: All kinds of refusals, by their codes.
CODES: dict[str, Code] = {}


def _code(name: str, cause: str, remedy: str) -> str:
    CODES[name] = Code(name, cause, remedy)
    return name


NO_QUERY = _code(
    "NO_QUERY", "the statement is a command and has no rows that could be kept up to date",
    "pass a SELECT, and run commands with spark.sql",
)
NON_DETERMINISTIC = _code(
    "NON_DETERMINISTIC", "the expression has another value at each evaluation",
    "store the value in a column when the row is written",
)
CURRENT_TIME = _code(
    "CURRENT_TIME", "the expression reads the clock of the machine",
    "pass a clock, flow.sql(text, clock=flow.clock(...)), whose record is the time of the data",
)
PYTHON_FUNCTION = _code(
    "PYTHON_FUNCTION", "a Python function is no SQL text",
    "apply it to a frame: flow[...].withColumn(...) or map_in_pandas",
)
SAMPLE = _code(
    "SAMPLE", "a sample is another one at each evaluation",
    "filter by a hash of a key: WHERE pmod(xxhash64(id), 100) < 10",
)
STREAM = _code(
    "STREAM", "the table is a stream",
    "feed an input of the dataflow from it: flow.source(name, sources.batches(...))",
)
TABLE = _code(
    "TABLE", "the table is neither an input nor a kept collection of the dataflow",
    "declare it first: flow.source(name, source, ...) or flow.input(name, schema)",
)
CORRELATED_EXPRESSION = _code(
    "CORRELATED_EXPRESSION",
    "the subquery refers to an expression of the enclosing query and not to a column",
    "give the expression a name in a subquery in FROM, and refer to the name",
)
CORRELATED_JOIN = _code(
    "CORRELATED_JOIN", "a right or full join reads columns of the enclosing query",
    "write the subquery with a left join",
)
CORRELATED_CTE = _code(
    "CORRELATED_CTE", "a common table expression reads columns of the enclosing query",
    "write its text as a subquery where it is used",
)
CORRELATED_RECURSION = _code(
    "CORRELATED_RECURSION", "a recursion reads columns of the enclosing query",
    "compute the recursion for all values in FROM, and filter it there",
)
WINDOW_EXPRESSION = _code(
    "WINDOW_EXPRESSION", "the window function is of a kind that no operator maintains",
    "use a window with ranks, offsets or aggregates",
)
EXPRESSION = _code(
    "EXPRESSION", "the expression has no SQL text",
    "write it with functions of SQL, or apply it to a frame with withColumn",
)
NODE = _code(
    "NODE", "no operator maintains this clause",
    "keep the part below it, and apply the clause to the frame that at() returns",
)
OPERATOR = _code(
    "OPERATOR", "the operators refuse the clause",
    "see the message of the operator",
)


#: The cause and the remedy for a left join with the rows of a generator.
LEFT_GENERATOR = (
    "Spark leaves out a row for which nothing is generated. Remedy: write LATERAL VIEW OUTER, or "
    "JOIN LATERAL"
)
#: The cause and the remedy for sessions in ROLLUP, CUBE or GROUPING SETS.
SESSION_SETS = "Spark has no such plan. Remedy: group by the session in a subquery"
#: The cause and the remedy for sessions in a pivot.
SESSION_PIVOT = (
    "Spark merges the sessions of each value apart. Remedy: aggregates with FILTER, and GROUP BY "
    "the session"
)


#: The name, and the cause and the remedy, of a pivot that has no values.
PIVOT = (
    "pivot without values",
    "Spark looks for the values in a frame that has no rows. Remedy: list the values",
)
#: The name, and the cause and the remedy, of a correlated LIMIT over a subquery with an order.
LOST_ORDER = (
    "LIMIT apart from its ORDER BY",
    "Spark joins the sorted subquery with the enclosing query, loses the order, and takes any "
    "rows. Remedy: write ORDER BY next to LIMIT",
)
#: The cause and the remedy for the logs of Python workers.
LOGS = (
    "the logs of Python workers grow outside of the dataflow. Remedy: read them with spark.sql, "
    "and insert the rows into an input"
)


def only_in_from(name: str) -> str:
    """The cause and the remedy for a function that Spark accepts only in FROM."""
    cause = f"Spark accepts {name} only in FROM, and no operator has it of columns. Remedy: "
    if not name.startswith("variant_explode"):
        return f"{cause}leave out LATERAL, and write constants"
    outer = "_outer" if name.endswith("_outer") else ""
    return (
        f"{cause}write LATERAL VIEW posexplode{outer}(try_variant_get(value, '$', "
        "'array<variant>')) for arrays, and 'map<string, variant>' for objects"
    )


class RefusedPart(Exception):
    """The reader leaves a refused part; the refusal is noted already."""


@dataclass(frozen=True)
class Refusal:
    """One refused part of a query.

    Parameters
    ----------
    code : str
        One of `CODES`.
    construct : str
        The clause or function, as the query has it.
    line, column : int or None
        Its place in the text of the query, counted from 1; None for a frame.
    detail : str
        In place of the cause and the remedy of the code, if it says more.
    """

    code: str
    construct: str
    line: int | None = None
    column: int | None = None
    detail: str = ""

    def __str__(self) -> str:
        place = "" if self.line is None else f" at line {self.line}, column {self.column}"
        code = CODES[self.code]
        reason = self.detail or f"{code.cause}. Remedy: {code.remedy}"
        return f"{self.code}: {self.construct}{place}: {reason}"


def without_source(name: str, provider: str) -> str:
    """The cause and the remedy for a table of the catalog that no source reads."""
    return (
        f"no source reads the changes of a {provider} table. Remedy: declare it first, "
        f"flow.source({name!r}, pyspark_diff.sources.snapshots({name!r})), which compares "
        "the whole table at each catch_up"
    )


def refused(refusals: Sequence[Refusal]) -> UnsupportedQueryError:
    """The error that lists all refused parts of a query.

    Examples
    --------
    >>> print(refused([Refusal("SAMPLE", "TABLESAMPLE", 1, 22)]))
    the query has 1 part that cannot be kept up to date:
      SAMPLE: TABLESAMPLE at line 1, column 22: a sample is another one at each evaluation. \
Remedy: filter by a hash of a key: WHERE pmod(xxhash64(id), 100) < 10
    """
    parts = list(dict.fromkeys(map(str, refusals)))
    count = f"{len(parts)} part{'' if len(parts) == 1 else 's'}"
    lines = "".join(f"\n  {part}" for part in parts)
    return UnsupportedQueryError(f"the query has {count} that cannot be kept up to date:{lines}")
