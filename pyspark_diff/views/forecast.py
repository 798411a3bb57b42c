"""The forecast of a refresh: the rows that it reads and the seconds that it takes.

The log of a Delta table reports the changed rows of each commit, so a forecast reads no data. The
seconds follow a model with one correction::

    change  =  correction * (fixed + 2 * rows * seconds per row of the first load)

A changed row costs a look-up and a write, hence the 2. The correction is the median of actual
divided by forecast seconds over the last refreshes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import median
from typing import Any

from pyspark.sql import SparkSession

from pyspark_diff.spark.delta_commits import DeltaCommit, commits_by_spark
from pyspark_diff.spark.delta_files import delta_files
from pyspark_diff.views.record import Cost

#: Seconds of a refresh that changes nothing but one row, before anything was measured.
FIXED_SECONDS = 1.0
#: Seconds per row of a first load, before anything was measured.
ROW_SECONDS = 2e-6


@dataclass(frozen=True)
class SourceForecast:
    """The rows of one source that a refresh reads.

    Parameters
    ----------
    name : str
    rows : int or None
        Changed rows; None if the log does not report them.
    whole : int or None
        All rows of the table; None if the table was not asked.
    first, last : object
        The version that was read last, None for none, and the present one.
    reason : str
        Why the whole table is read; empty if only its changes are.
    by_files : str
        Why the changed files are compared, so that also their unchanged rows are read; empty if the
        table records its changes.
    """

    name: str
    rows: int | None
    whole: int | None
    first: Any
    last: Any
    reason: str = ""
    by_files: str = ""

    @property
    def reads(self) -> int | None:
        """The rows that are read."""
        return self.whole if self.reason or self.rows is None else self.rows

    def __str__(self) -> str:
        versions = f"version {self.last}" if self.first is None else (
            f"versions {self.first} to {self.last}"
        )
        rows = "an unknown number of rows" if self.reads is None else f"{self.reads} rows"
        remarks = f"; the whole table: {self.reason}" if self.reason else ""
        remarks += f"; by its changed files: {self.by_files}" if self.by_files else ""
        return f"{self.name}: {rows} of {versions}{remarks}"


@dataclass(frozen=True)
class Plan:
    """The action, rows and seconds of the next refresh; nothing has been done.

    Parameters
    ----------
    action : {"load", "nothing", "change", "rebuild"}
    sources : tuple of SourceForecast
    seconds : float
        The forecast of the refresh by this action.
    rebuilt : tuple of str
        The targets that are filled from whole sources.
    reasons : tuple of str
        Why they are.
    """

    action: str
    sources: tuple[SourceForecast, ...]
    seconds: float
    rebuilt: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """The rows that are read; a table of unknown size counts as none."""
        return sum(source.reads or 0 for source in self.sources)

    def __str__(self) -> str:
        words = {
            "load": "first load", "nothing": "nothing to do", "change": "read changes",
            "rebuild": "rebuild",
        }
        lines = [f"{words[self.action]}: {self.rows} rows, about {self.seconds:.1f} s"]
        lines += [f"  rebuilds {target}" for target in self.rebuilt]
        lines += [f"  because {reason}" for reason in self.reasons]
        lines += [f"  {source}" for source in self.sources]
        return "\n".join(lines)


def load_seconds(rows: int, costs: Sequence[Cost]) -> float:
    """The forecast seconds of reading all rows of the sources into an empty state."""
    loads = [cost for cost in costs if cost.first]
    if not loads:
        return FIXED_SECONDS + rows * ROW_SECONDS
    last = loads[-1]
    return max(FIXED_SECONDS, last.seconds * rows / max(last.rows, 1))


def change_seconds(rows: int, costs: Sequence[Cost]) -> float:
    """The forecast seconds of a refresh that reads changed rows."""
    if not rows:
        return 0.0
    loads = [cost for cost in costs if cost.first]
    per_row = loads[-1].seconds / max(loads[-1].rows, 1) if loads else ROW_SECONDS
    # A small load takes its fixed seconds, which say nothing about a row.
    per_row = min(per_row, 1e-4)
    model = FIXED_SECONDS + 2 * rows * per_row
    measured = [
        cost.seconds / cost.forecast for cost in costs if not cost.first and cost.forecast
    ][-5:]
    return model * (median(measured) if measured else 1.0)


def source_forecast(
    spark: SparkSession, name: str, table: str, offset: Mapping[str, Any] | None, reason: str,
    by_files: str = "",
) -> SourceForecast:
    """The rows of a Delta table that a refresh reads.

    Parameters
    ----------
    name : str
        Of the source.
    table : str
        As SQL names it.
    offset : mapping or None
        Up to where it was read.
    reason : str
        Why each refresh reads all of it; empty if it reads the changes.
    by_files : str
        As of `SourceForecast`.
    """
    files = delta_files(spark, table)
    whole = None if files is None else files.row_count()
    if whole is None:
        whole = spark.read.table(table).count()
    newest = commits_by_spark(spark, table) if files is None else files.commits()
    if offset is None:
        last = next(newest).version if files is None else files.version
        return SourceForecast(name, whole, whole, None, last)
    first = int(offset["version"])
    commits = list(takewhile(lambda commit: commit.version > first, newest))
    last = max((commit.version for commit in commits), default=first)
    changed = [_changed_rows(commit, whole) for commit in commits]
    unknown = any(count is None for count in changed)
    total = None if unknown else sum(count for count in changed if count is not None)
    return SourceForecast(
        name, total, whole, first, last, *(text if last > first else "" for text in (
            reason, by_files,
        ))
    )


def _changed_rows(commit: DeltaCommit, whole: int) -> int | None:
    """The changed rows of a commit; an update counts twice, as a row goes and a row comes."""
    metrics = {name: int(value) for name, value in commit.metrics.items()
               if str(value).isdigit()}

    def total(*names: str) -> int | None:
        known = [metrics[name] for name in names if name in metrics]
        return sum(known) if known else None

    if commit.operation == "MERGE":
        updated = metrics.get("numTargetRowsUpdated", 0)
        others = total("numTargetRowsInserted", "numTargetRowsDeleted", "numTargetRowsUpdated")
        # deltalake has names of its own for the same numbers.
        if others is None:
            updated = metrics.get("num_target_rows_updated", 0)
            others = total(
                "num_target_rows_inserted", "num_target_rows_deleted", "num_target_rows_updated"
            )
        return None if others is None else others + updated
    if commit.operation == "UPDATE":
        count = total("numUpdatedRows")
        return None if count is None else 2 * count
    if commit.operation == "DELETE":
        return total("numDeletedRows")
    writes = commit.operation in ("WRITE", "STREAMING UPDATE", "COPY INTO")
    if writes or "CREATE" in commit.operation:
        count = total("numOutputRows")
        if count is None:
            return None
        overwrites = commit.parameters.get("mode") == "Overwrite"
        return count + whole if overwrites else count
    if commit.operation in ("RESTORE", "REPLACE TABLE", "TRUNCATE"):
        return None
    return 0
