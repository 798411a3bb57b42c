"""What a dataflow says of itself when it is asked to explain: operators, reasons, and costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from pyspark_diff.engine.costs import Cost
from pyspark_diff.engine.explanation import Operator
from pyspark_diff.reasons import Reason
from pyspark_diff.trace.arrangement import Arrangement
from pyspark_diff.trace.skew import loads

#: What a row of an explanation as a Spark frame has.
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


#: What a row has of an explanation of skew.
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
    found: Iterable[tuple[Operator, Cost, Arrangement]], buckets: int
) -> list[tuple[Any, ...]]:
    """An arrangement's bucket a row, as `SKEW` has it.

    Parameters
    ----------
    found : iterable of (Operator, Cost, Arrangement)
        Operators that keep something, and what the last step did in each bucket: of who keeps it,
        and of who reads it.
    buckets : int
    """
    rows: list[tuple[Any, ...]] = []
    for operator, cost, arrangement in found:
        every = loads(arrangement, buckets)
        mean = sum(load.rows for load in every) / buckets
        for load in every:
            share = load.rows / mean if mean else 1.0
            work = cost.buckets.get(load.bucket, (None, None, None))
            rows.append((
                operator.name, list(arrangement.key), load.bucket, load.rows, load.bytes, share,
                *work, [tuple(heavy) for heavy in load.heaviest],
            ))
    return rows


class Explanation:
    """Each operator that runs: how it is maintained, and what the last step cost it.

    Print it, or leave it as the last line of a notebook's cell. Nothing is run for it.

    Attributes
    ----------
    operators : tuple of Operator
        In the order in which they run.
    step : int
        The number of the last step; 0 before the first.
    seconds : float
        That it took.
    """

    def __init__(
        self, operators: Sequence[Operator], step: int, seconds: float,
        spark: SparkSession | None = None,
    ):
        self.operators = tuple(operators)
        self.step, self.seconds = step, seconds
        self._spark = spark

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Why changes may cost more than themselves, each reason once."""
        return tuple(dict.fromkeys(r for one in self.operators for r in one.reasons))

    def to_df(self) -> DataFrame:
        """An operator a row, as a Spark frame.

        The columns are ``operator``, ``form`` (source, linear, keyed, loop or sink), ``loops`` (it
        is in, the outermost first), ``inputs``, ``columns``, ``arranged_by`` (null where nothing is
        kept), ``readers`` (of that arrangement), ``kept_rows``, ``kept_bytes``, ``reasons``, and of
        the last step ``rows_in``, ``touched`` (rows of older batches that were read), ``rows_out``,
        ``seconds`` and where it ``ran``.
        """
        names = {one.number: one.name for one in self.operators}
        rows = [
            (one.name, one.form, list(one.loops), [names.get(n, str(n)) for n in one.inputs],
             list(one.columns), None if one.arranged_by is None else list(one.arranged_by),
             list(one.readers), one.rows, one.bytes, [r.code for r in one.reasons],
             one.cost.rows_in, one.cost.rows_read, one.cost.rows_out, one.cost.seconds,
             one.cost.where)
            for one in self.operators
        ]
        return (self._spark or SparkSession.active()).createDataFrame(rows, SCHEMA)

    def _cells(self) -> list[list[str]]:
        found = []
        for one in self.operators:
            cost, kept = one.cost, one.arranged_by is not None
            found.append([
                f"{'  ' * len(one.loops)}{one.name}",
                one.form,
                "" if one.arranged_by is None else f"({', '.join(one.arranged_by)})",
                ", ".join(one.readers),
                one.codes,
                f"{one.rows:,}" if kept else "",
                f"{cost.rows_in:,}" if cost.where else "",
                f"{cost.rows_read:,}" if cost.where else "",
                f"{cost.rows_out:,}" if cost.where else "",
                f"{cost.seconds * 1e3:,.1f}" if cost.where or cost.seconds else "",
                cost.where,
            ])
        return found

    def _last(self) -> str:
        if not self.step:
            return "no step has run yet"
        return f"step {self.step} took {self.seconds * 1e3:,.1f} ms"

    def __str__(self) -> str:
        lines = [list(_HEAD), *self._cells()]
        widths = [max(len(line[i]) for line in lines) for i in range(len(_HEAD))]
        lines.insert(1, ["-" * width for width in widths])
        shown = [
            "  ".join(
                cell.rjust(width) if name in _RIGHT else cell.ljust(width)
                for name, cell, width in zip(_HEAD, line, widths)
            ).rstrip()
            for line in lines
        ]
        shown += ["", self._last()]
        shown += [f"{r.code}: {r.text}; {r.advice}" for r in self.reasons]
        return "\n".join(shown)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in _HEAD)
        rows = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
            for cells in ([c.replace("  ", "\u2003") for c in line] for line in self._cells())
        )
        told = "".join(
            f"<p><b>{r.code}</b>: {escape(r.text)}; {escape(r.advice)}</p>" for r in self.reasons
        )
        return f"<table><caption>{self._last()}</caption><tr>{head}</tr>{rows}</table>{told}"
