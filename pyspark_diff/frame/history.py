"""A chart of a collection over time, drawn by matplotlib.

    a line at time t  =  sum of value * diff over the updates of the line at times <= t

Spark sums the records, and the driver fetches one number for each line and time.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.errors import SchemaError
from pyspark_diff.spark.frames import column

#: Names of the fetched columns.
LINE, AT, CHANGE = "line", "at", "change"


def check_plottable(name: str, kind: T.DataType) -> None:
    """Refuse a column that has no sums.

    Raises
    ------
    SchemaError
    """
    if not isinstance(kind, T.NumericType):
        raise SchemaError(
            f"plot_history draws sums of numbers, and {name} is {kind.simpleString()}; take a "
            "column of numbers, or none to count rows"
        )


def check_most(most: Any) -> None:
    """Refuse a number of lines that is not positive.

    Raises
    ------
    ValueError
    """
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        raise ValueError(f"most is the largest number of lines, 1 or more, and not {most!r}")


def plotting() -> Any:
    """The module that makes figures.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    """
    try:
        from matplotlib import pyplot
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "matplotlib":
            raise
        raise ImportError(
            "plot_history needs matplotlib, which is not installed here: "
            'pip install "pyspark_diff[plot]"',
            name="matplotlib",
        ) from error
    return pyplot


def history(
    updates: DataFrame, time: str, diff: str, value: str | None, by: Sequence[str], most: int
) -> pd.DataFrame:
    """The value of each line from each time on. The columns are the lines that changed most, then
    one line for all others; the index is the times in order.

    Parameters
    ----------
    time, diff, value : str
        Names of its columns; without a value, rows are counted.
    by : sequence of str
        Columns that have a line for each of their values.
    most : int
        The largest number of lines, without the line of the others.
    """
    change = column(diff).cast("double")
    if value is not None:
        change = F.coalesce(column(value).cast("double"), F.lit(0.0)) * change
    names = [F.coalesce(column(name).cast("string"), F.lit("null")) for name in by]
    parts = updates.select(
        F.concat_ws(", ", *names).alias(LINE), column(time).alias(AT), change.alias(CHANGE)
    )
    others = 0
    if by:
        moved = parts.groupBy(LINE).agg(F.sum(F.abs(CHANGE)).alias(CHANGE))
        shown = [row[0] for row in moved.orderBy(F.desc(CHANGE), LINE).limit(most).collect()]
        if len(shown) == most:
            others = moved.count() - most
        if others:
            # Not a name that a line can have: text is never null.
            parts = parts.withColumn(LINE, F.when(F.col(LINE).isin(shown), F.col(LINE)))
    else:
        shown = [""]
    summed = pd.DataFrame(parts.groupBy(LINE, AT).agg(F.sum(CHANGE).alias(CHANGE)).toPandas())
    rest = f"{others} others"
    while rest in shown:
        rest = f"({rest})"
    table = summed.fillna({LINE: rest}).pivot(index=AT, columns=LINE, values=CHANGE)
    lines = [*shown, rest] if others else shown
    return table.reindex(columns=lines).sort_index().fillna(0.0).cumsum()


def draw(table: pd.DataFrame, ax: Any, time: str, value: str, legend: str) -> Any:
    """Draw steps: a value is constant until the next time that changes it. The last one
    continues."""
    times = list(table.index)
    if times:
        times.append(_after(times[0], times[-1]))
    for place, line in enumerate(table.columns):
        heights = table.iloc[:, place].tolist()
        ax.step(
            times, heights + heights[-1:], where="post",
            # Matplotlib leaves names that start with an underscore out of legends.
            label=(" " + line if line.startswith("_") else line) or value,
        )
    from matplotlib.ticker import MaxNLocator

    locator = ax.xaxis.get_major_locator()
    if times and not isinstance(times[0], date) and isinstance(locator, MaxNLocator):
        locator.set_params(integer=True)  # there is nothing between two times
    ax.set_xlabel(time)
    ax.set_ylabel(value)
    if legend and len(table.columns):
        ax.legend(title=legend)
    return ax


def _after(first: Any, last: Any) -> Any:
    """The end of the last step: the last time plus a twentieth of the whole range."""
    if isinstance(first, date):  # or a timestamp, which is one too
        return last + max((last - first) / 20, timedelta(days=1))
    return last + max((last - first) // 20, 1)
