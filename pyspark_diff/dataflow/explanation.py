"""The explanation of a dataflow: its operators, reasons, and costs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from pyspark_diff.engine.costs import OperatorCost
from pyspark_diff.engine.explanation import Operator
from pyspark_diff.fallbacks import Fallbacks
from pyspark_diff.reasons import Reason
from pyspark_diff.trace.arrangement import Arrangement
from pyspark_diff.trace.skew import loads

#: The columns of an explanation as a Spark frame.
SCHEMA = T.StructType([
    T.StructField("operator", T.StringType(), False),
    T.StructField("form", T.StringType(), False),
    T.StructField("loops", T.ArrayType(T.StringType(), False), False),
    T.StructField("inputs", T.ArrayType(T.StringType(), False), False),
    T.StructField("columns", T.ArrayType(T.StringType(), False), False),
    T.StructField("arranged_by", T.ArrayType(T.StringType(), False)),
    T.StructField("readers", T.ArrayType(T.StringType(), False), False),
    T.StructField("kept_rows", T.LongType(), False),
    T.StructField("kept_bytes", T.LongType(), False),
    T.StructField("reasons", T.ArrayType(T.StringType(), False), False),
    T.StructField("rows_in", T.LongType(), False),
    T.StructField("touched", T.LongType(), False),
    T.StructField("rows_out", T.LongType(), False),
    T.StructField("seconds", T.DoubleType(), False),
    T.StructField("ran", T.StringType(), False),
])
_HEAD = ("operator", "form", "arranged by", "read by", "reason", "kept", "in", "touched", "out",
         "ms", "ran")
_RIGHT = frozenset(_HEAD[5:10])
#: The greatest width of the printed table, in characters.
WIDTH_MAX = 120
#: The number of operators at the start of the printed text, those that took the most time.
EXPENSIVE = 10
#: The columns that are cut to fit, and the width that each keeps.
_CUT = {"operator": 20, "arranged by": 12, "read by": 12, "reason": 10}


#: The columns of an explanation of skew.
SKEW = T.StructType([
    T.StructField("operator", T.StringType(), False),
    T.StructField("arranged_by", T.ArrayType(T.StringType(), False), False),
    T.StructField("bucket", T.IntegerType(), False),
    T.StructField("rows", T.LongType(), False),
    T.StructField("bytes", T.LongType(), False),
    T.StructField("share", T.DoubleType(), False),
    T.StructField("rows_in", T.LongType()),
    T.StructField("touched", T.LongType()),
    T.StructField("seconds", T.DoubleType()),
    T.StructField("heaviest", T.ArrayType(T.StructType([
        T.StructField("key", T.StringType(), False), T.StructField("rows", T.LongType(), False),
    ]), False), False),
])


def skew_rows(
    arranged: Iterable[tuple[Operator, OperatorCost, Arrangement]], buckets: int
) -> list[tuple[Any, ...]]:
    """A row of `SKEW` for each bucket of each arrangement.

    Parameters
    ----------
    arranged : iterable of (Operator, OperatorCost, Arrangement)
        Arranged operators, each with its own and its readers' costs in the last step by bucket.
    """
    rows: list[tuple[Any, ...]] = []
    for operator, cost, arrangement in arranged:
        bucket_loads = loads(arrangement, buckets)
        mean = sum(load.rows for load in bucket_loads) / buckets
        for load in bucket_loads:
            share = load.rows / mean if mean else 1.0
            work = cost.buckets.get(load.bucket, (None, None, None))
            rows.append((
                operator.name, list(arrangement.key), load.bucket, load.rows, load.bytes, share,
                *work, [tuple(heavy) for heavy in load.heaviest],
            ))
    return rows


class Explanation:
    """The maintenance of each operator, and its cost in the last step.

    Print it, or leave it as the last line of a notebook's cell. The text starts with the ten
    operators that took the most time in the last step. Its table has at most 120 columns, and long
    lists end in the number of further entries, unless ``explain`` got ``full=True``.

    Attributes
    ----------
    operators : tuple of Operator
        The operators in execution order.
    step : int
        The number of the last step; 0 before the first.
    seconds : float
        The duration of the last step.
    fallbacks : Counter of Fallback
        The number of times that a fast path left its work to a slower one in the last step.
    """

    def __init__(
        self, operators: Sequence[Operator], step: int, seconds: float,
        spark: SparkSession | None = None, full: bool = False,
        fallbacks: Fallbacks = Fallbacks(),
    ):
        self.operators = tuple(operators)
        self.step, self.seconds = step, seconds
        self._spark, self._full = spark, full
        self.fallbacks = Fallbacks(fallbacks)

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Why work can exceed the size of a change, each reason once."""
        return tuple(dict.fromkeys(r for operator in self.operators for r in operator.reasons))

    def to_df(self) -> DataFrame:
        """A Spark frame with a row for each operator.

        The columns are ``operator``, ``form`` (source, linear, keyed, loop or sink), enclosing
        ``loops`` (the outermost first), ``inputs``, ``columns``, ``arranged_by`` (null without an
        arrangement), ``readers`` (of the arrangement), ``kept_rows``, ``kept_bytes`` and
        ``reasons``. The columns of the last step are ``rows_in``, ``touched`` (rows of older
        batches that were read), ``rows_out``, ``seconds`` and ``ran`` (the place).
        """
        names = {op.number: op.name for op in self.operators}
        rows = [
            (op.name, op.form, list(op.loops), [names.get(n, str(n)) for n in op.inputs],
             list(op.columns), None if op.arranged_by is None else list(op.arranged_by),
             list(op.readers), op.rows, op.bytes, [r.code for r in op.reasons],
             op.cost.rows_in, op.cost.rows_read, op.cost.rows_out, op.cost.seconds,
             op.cost.where)
            for op in self.operators
        ]
        return (self._spark or SparkSession.active()).createDataFrame(rows, SCHEMA)

    def _cells(self) -> list[list[str]]:
        lines = []
        for op in self.operators:
            cost, is_arranged = op.cost, op.arranged_by is not None
            lines.append([
                f"{'  ' * len(op.loops)}{op.name}",
                op.form,
                "" if op.arranged_by is None else f"({', '.join(op.arranged_by)})",
                ", ".join(op.readers),
                op.codes,
                f"{op.rows:,}" if is_arranged else "",
                f"{cost.rows_in:,}" if cost.where else "",
                f"{cost.rows_read:,}" if cost.where else "",
                f"{cost.rows_out:,}" if cost.where else "",
                f"{cost.seconds * 1e3:,.1f}" if cost.where or cost.seconds else "",
                cost.where,
            ])
        return lines

    def _last(self) -> str:
        if not self.step:
            return "no step has run yet"
        return f"step {self.step} took {self.seconds * 1e3:,.1f} ms"

    def _expensive(self) -> list[str]:
        """The operators that took the most time, a line each."""
        busy = [operator for operator in self.operators if operator.cost.seconds > 0]
        if not busy:
            return []
        busy.sort(key=lambda operator: -operator.cost.seconds)
        lines = [f"the most expensive operators of step {self.step}:"]
        for operator in busy[:EXPENSIVE]:
            name = operator.name if self._full else _cut(operator.name, 60)
            milliseconds = operator.cost.seconds * 1e3
            lines.append(f"{milliseconds:10,.1f} ms  {name}")
        if len(busy) > EXPENSIVE:
            rest = sum(operator.cost.seconds for operator in busy[EXPENSIVE:]) * 1e3
            lines.append(f"{rest:10,.1f} ms  {len(busy) - EXPENSIVE} others")
        return [*lines, ""]

    def _fallbacks(self) -> list[str]:
        """The kinds of fallbacks of the last step, the most frequent first, a line each."""
        kinds = self.fallbacks.most_common()
        if not kinds:
            return []
        shown = kinds if self._full else kinds[:EXPENSIVE]
        lines = ["", f"fallbacks of step {self.step}, in which a slower path did the work:"]
        lines += [f"{number:10,}  {kind}" for kind, number in shown]
        if len(kinds) > len(shown):
            rest = sum(number for _, number in kinds[len(shown):])
            lines.append(f"{rest:10,}  of {len(kinds) - len(shown)} other kinds")
        return lines if self._full else [_cut(line, WIDTH_MAX) for line in lines]

    def _widths(self, lines: list[list[str]]) -> list[int]:
        """The width of each column, so that a line fits."""
        widths = [max(len(line[i]) for line in lines) for i in range(len(_HEAD))]
        if self._full:
            return widths
        spare = WIDTH_MAX - 2 * (len(_HEAD) - 1)
        while sum(widths) > spare:
            wide = [(widths[_HEAD.index(name)], name) for name, least in _CUT.items()
                    if widths[_HEAD.index(name)] > least]
            if not wide:
                break
            widths[_HEAD.index(max(wide)[1])] -= 1
        return widths

    def __str__(self) -> str:
        lines = [list(_HEAD), *self._cells()]
        widths = self._widths(lines)
        lines = [[_cut(cell, width) for cell, width in zip(line, widths)] for line in lines]
        lines.insert(1, ["-" * width for width in widths])
        shown = [
            "  ".join(
                cell.rjust(width) if name in _RIGHT else cell.ljust(width)
                for name, cell, width in zip(_HEAD, line, widths)
            ).rstrip()
            for line in lines
        ]
        shown = [*self._expensive(), *shown, *self._fallbacks(), "", self._last()]
        for reason in self.reasons:
            text = f"{reason.code}: {reason.text}; {reason.advice}"
            shown += [text] if self._full else textwrap.wrap(text, WIDTH_MAX)
        return "\n".join(shown)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in _HEAD)
        rows = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
            for cells in ([c.replace("  ", "\u2003") for c in line] for line in self._cells())
        )
        notes = "".join(
            f"<p><b>{r.code}</b>: {escape(r.text)}; {escape(r.advice)}</p>" for r in self.reasons
        )
        notes += "".join(
            f"<p>{number:,} fallbacks: {escape(str(kind))}</p>"
            for kind, number in self.fallbacks.most_common()
        )
        return f"<table><caption>{self._last()}</caption><tr>{head}</tr>{rows}</table>{notes}"


def _cut(cell: str, width: int) -> str:
    """A cell that fits: a list keeps its first entries and the number of the others.

    Examples
    --------
    >>> _cut("(customer, region, day)", 20), _cut("join-4", 20), _cut("a_very_long_name", 10)
    ('(customer, +2)', 'join-4', 'a_very_lo…')
    """
    if len(cell) <= width:
        return cell
    close = ")" if cell.startswith("(") and cell.endswith(")") else ""
    entries = cell[:len(cell) - len(close)].split(", ")
    for count in range(len(entries) - 1, 0, -1):
        text = f"{', '.join(entries[:count])}, +{len(entries) - count}{close}"
        if len(text) <= width:
            return text
    rest = f", +{len(entries) - 1}{close}" if entries[1:] else ""
    return f"{cell[:max(width - 1 - len(rest), 1)]}…{rest}"
