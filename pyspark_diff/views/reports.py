"""The reports of a refresh for each view: a line, a row of a log table, and metrics.

    rows_in of a view  =  the changed rows of the sources that it reads, also through other views

A log table and metrics are written after the record of the refresh, so each has a refresh at most
once. A failure of one of them is a warning in the log, since the targets are already written.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any

from pyspark.sql import SparkSession

from pyspark_diff.errors import SchemaError
from pyspark_diff.spark.delta import delta_table

_logger = logging.getLogger("pyspark_diff")

#: The columns of a log table.
LOG_SCHEMA = (
    "refreshed_at TIMESTAMP, view STRING, rows_in BIGINT, rows_out BIGINT, seconds DOUBLE, "
    "write_seconds DOUBLE, recomputed ARRAY<STRING>"
)


@dataclass(frozen=True)
class ViewReport:
    """One view in one refresh.

    Parameters
    ----------
    view : str
        The target.
    rows_in : int
        Changed rows of the sources that the view reads, also through other views.
    rows_out : int
        Changed rows of the target, an update counting twice.
    seconds : float
        Of the refresh, which computes all views in one step.
    write_seconds : float
        Of the write of the target.
    recomputed : tuple of str
        The parts of the view that were read or computed as a whole, each with its reason.
    """

    view: str
    rows_in: int
    rows_out: int
    seconds: float
    write_seconds: float
    recomputed: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.view}: {self.rows_in} rows in, {self.rows_out} rows out, "
            f"{self.write_seconds:.1f} s to write"
        )


@dataclass(frozen=True)
class Refreshed:
    """The rows, seconds and recomputed parts of a refresh.

    Parameters
    ----------
    changed : bool
        Whether a source had changed.
    rows_in : int
        Rows that came from sources, as the forecast counts them.
    rows_out : mapping of str to int
        Changed rows of each target, an update counting twice; targets that did not change are left
        out.
    seconds : float
    recomputed : tuple of str
        The parts that were read or computed as a whole, each with its reason.
    versions : mapping of str to object
        The version up to which each source was read.
    views : tuple of ViewReport
        The report of each view; empty if nothing changed.
    """

    changed: bool
    rows_in: int
    rows_out: Mapping[str, int]
    seconds: float
    recomputed: tuple[str, ...]
    versions: Mapping[str, Any]
    views: tuple[ViewReport, ...] = ()

    def __str__(self) -> str:
        if not self.changed:
            return f"no source has changed ({self.seconds:.1f} s)"
        outs = ", ".join(f"{name}: {rows}" for name, rows in self.rows_out.items()) or "none"
        lines = [f"{self.rows_in} rows in, rows out {outs}, {self.seconds:.1f} s"]
        if len(self.views) > 1:
            lines += [f"  {report}" for report in self.views]
        return "\n".join([*lines, *(f"  recomputed {part}" for part in self.recomputed)])


def check_log(spark: SparkSession, table: str) -> None:
    """Create a log table if there is none.

    Raises
    ------
    SchemaError
        If a table of that name has other columns, or is no Delta table.
    """
    if delta_table(spark, table) is None:
        spark.sql(f"CREATE TABLE {table} ({LOG_SCHEMA}) USING delta")
    names = [field.name for field in fields(ViewReport)]
    there = spark.read.table(table).columns
    missing = [name for name in ("refreshed_at", *names) if name not in there]
    if missing:
        raise SchemaError(
            f"log table {table} has the columns {', '.join(there)} and lacks {', '.join(missing)}. "
            "Name a table that is not there yet, and it is created"
        )


def append_log(
    spark: SparkSession, table: str, moment: datetime, reports: Sequence[ViewReport]
) -> None:
    """Append a row for each view to a log table, in one commit."""
    try:
        rows = [{"refreshed_at": moment, **asdict(report)} for report in reports]
        frame = spark.createDataFrame(rows, LOG_SCHEMA)
        frame.write.format("delta").mode("append").saveAsTable(table)
    except Exception as error:
        _logger.warning("the refresh is complete, but log table %s has no row of it: %s",
                        table, error)


def emit_metrics(reports: Sequence[ViewReport]) -> None:
    """Add a refresh to the metrics of OpenTelemetry, if its API is installed."""
    try:
        from opentelemetry import metrics
    except ImportError:
        return
    try:
        meter = metrics.get_meter("pyspark_diff")
        for report in reports:
            _measure(meter, report)
    except Exception as error:
        _logger.warning("the refresh is complete, but its metrics were not recorded: %s", error)


def _measure(meter: Any, report: ViewReport) -> None:
    attributes = {"view": report.view}
    for name, value in (
        ("refreshes", 1), ("rows_in", report.rows_in), ("rows_out", report.rows_out),
        ("recomputed", len(report.recomputed)),
    ):
        meter.create_counter(f"pyspark_diff.view.{name}").add(value, attributes)
    for name, seconds in (("refresh", report.seconds), ("write", report.write_seconds)):
        meter.create_histogram(f"pyspark_diff.view.{name}.duration", unit="s").record(
            seconds, attributes)
