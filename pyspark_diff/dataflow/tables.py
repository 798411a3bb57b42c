"""Collections saved as Spark tables, in the buckets of their arrangements.

For a saved collection ``A``, and the tables of two that were saved by the same key::

    table(A as of t)      =  accumulate(A, t)
    table(A, all updates) =  A
    a join of the two tables by that key moves no row
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame

from pyspark_diff.errors import SchemaError
from pyspark_diff.spark.schema import meant_by
from pyspark_diff.spark.tables import save_table
from pyspark_diff.trace.arrangement import Arrangement


def save(
    frame: DataFrame, name: str, arrangement: Arrangement | None, columns: Sequence[str],
    kept: int, *,
    by: str | Sequence[str] | None, buckets: int | None, mode: str, format: str, path: str | None,
    bucket_column: str | None,
) -> None:
    """Save a frame of an arrangement's rows.

    Parameters
    ----------
    arrangement : Arrangement or None
        None if the rows are in no arrangement's buckets; then the key is all columns.
    columns : sequence of str
        The user's names of its columns.
    kept : int
        Buckets of the arrangement.
    by : str or list of str, optional
        Columns of the key; by default the key of the arrangement.
    buckets : int, optional
        By default the number of the arrangement's buckets.
    mode, format, path, bucket_column
        See `save_table`.
    """
    if buckets is not None and (type(buckets) is not int or not 1 <= buckets <= 100_000):
        raise ValueError(f"a table has from 1 to 100000 buckets, not {buckets!r}")
    own, placed = list(columns), None
    if arrangement is not None:
        names = dict(zip(arrangement.schema.names, columns))
        own = [names[column] for column in arrangement.key]
    key = own if by is None else _meant(frame, by, columns)
    if arrangement is not None:
        placed = kept if key == own else None
        placed = placed if arrangement.reads_later else 0
    save_table(
        frame, name, key, kept if buckets is None else buckets, placed=placed, mode=mode,
        format=format, path=path, bucket_column=bucket_column,
    )


def _meant(frame: DataFrame, by: str | Sequence[str], columns: Sequence[str]) -> list[str]:
    resolved: list[str] = []
    for name in [by] if isinstance(by, str) else list(by):
        like = meant_by(name, columns, frame.sparkSession)
        if len(like) != 1:
            raise SchemaError(
                f"there is {'no' if not like else 'more than one'} column {name!r} to save the "
                f"table by; the columns are {', '.join(columns)}"
            )
        resolved += like
    if len(set(resolved)) < len(resolved):
        raise SchemaError(f"by names a column more than once: {', '.join(resolved)}")
    return resolved
