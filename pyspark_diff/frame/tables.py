"""Tables of Spark: the method of a frame that saves it as one, and the data columns of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from pyspark_diff.dataflow import tables
from pyspark_diff.errors import SchemaError
from pyspark_diff.frame.reading import ReadMethods
from pyspark_diff.operators.loop import time_scope
from pyspark_diff.spark.schema import meant_by


class TableMethods(ReadMethods):
    """Saving as a table."""

    def save_as_table(
        self, name: str, *, time: Any = None, updates: bool = False,
        by: str | Sequence[str] | None = None, buckets: int | None = None, mode: str = "error",
        format: str = "parquet", path: str | None = None, bucket_column: str | None = None,
        allow_negative: bool = False,
    ) -> None:
        """Save this collection as a table of Spark, in buckets and in order of its key, so that
        Spark joins it by that key without a shuffle.

        The table has the buckets of the arrangement, so that writing it needs no shuffle either.
        Spark writes the table: a reader during the write may see a part of it. Later steps do not
        change the table.

        Parameters
        ----------
        name : str
            Name of the table: parts of letters, digits and underscores, such as ``"shop.orders"``.
        time : int, date, datetime or tuple of int, optional
            The time of the saved snapshot; the default is the latest complete time.
        updates : bool
            Save all kept updates instead, with their columns for time and diff.
        by : str or list of str, optional
            Columns of the key. The default is the key of its arrangement; another key needs a
            shuffle.
        buckets : int, optional
            The number of buckets. The default is that of the dataflow.
        mode : {"error", "overwrite"}
            The action if the table exists.
        format : str
            ``parquet``, or another format of Spark. Delta, Iceberg and Hudi have no buckets: a
            column ``_bucket``, ``pmod(hash(key), buckets)``, partitions their tables.
        path : str, optional
            A folder for its files, instead of the warehouse.
        bucket_column : str, optional
            Partition by a column of this name, in any format, instead of Spark's buckets.
        allow_negative : bool
            As of `at`.

        Raises
        ------
        NotReadableError
            As in `at`.
        StorageError
            If the table exists already.
        SchemaError
            If the text is no name of a table, or a column is missing.

        Examples
        --------
        >>> from pyspark_diff import Dataflow
        >>> with Dataflow(spark) as flow:
        ...     prices, prices_in = flow.input("prices", "item string, price int", key="item")
        ...     kept = prices.keep()
        ...     prices_in.upsert([("tea", 3), ("milk", 2)])
        ...     _ = flow.advance_to(1)
        ...     kept.save_as_table("doctest_prices", mode="overwrite")
        >>> spark.table("doctest_prices").orderBy("item").collect()
        [Row(item='milk', price=2), Row(item='tea', price=3)]
        >>> _ = spark.sql("DROP TABLE doctest_prices")
        """
        frame = self.to_df() if updates else self.at(time, allow_negative=allow_negative)
        structs = time_scope(self._node) is not None
        flow = (self._in_fields() if structs else self)._running()
        arrangement = None if structs else flow._arrangement(self._node)
        tables.save(
            frame, name, arrangement, self.columns, flow._buckets, by=by,
            buckets=buckets, mode=mode, format=format, path=path, bucket_column=bucket_column,
        )


def data_fields(rows: DataFrame, table: str, time: str, diff: str) -> list[T.StructField]:
    """The columns of a table without its columns for time and diff, if it has these.

    Raises
    ------
    SchemaError
        If it has only one of them.
    """
    time_columns, diff_columns = (
        meant_by(name, rows.columns, rows.sparkSession) for name in (time, diff)
    )
    update_columns = [*time_columns, *diff_columns]
    if len(update_columns) == 1:
        raise SchemaError(
            f"table {table} has a column {update_columns[0]!r} for the "
            f"{'time' if time_columns else 'diff'}, and none for the other: updates have both, "
            f"{time!r} and {diff!r}, and rows have neither"
        )
    return [field for field in rows.schema.fields if field.name not in update_columns]
