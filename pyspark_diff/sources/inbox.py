"""The inbox of a store: the batches that streaming queries write by ``writeStream.format("diff")``.

    rows up to an offset  =  the rows of all batches up to it, each batch once

The offset has the number of the last batch of each query. A step commits the rows and the offset
together, so a repeated batch has no effect, and a stream may be ahead of the dataflow or lag.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from pyspark_diff.dataflow.source import (
    Change,
    Inserts,
    Offset,
    Reading,
    Source,
    Updates,
    Upserts,
)
from pyspark_diff.errors import NotReadableError, SchemaError, errors_to_text
from pyspark_diff.spark.schema import as_keys, meant_by, parse_schema
from pyspark_diff.trace.inbox import InboxBatch, inbox_batches, offset_after, read_file


def inbox(
    path: str, name: str, *, schema: str | T.StructType | None = None,
    key: str | Sequence[str] = (), diff: str | None = None, time: str | None = None,
) -> Source:
    """The rows that streaming queries have put into an inbox: inserts, upserts by a key, or
    updates.

    Parameters
    ----------
    path : str
        The location of the store.
    name : str
        The name of the inbox: the option ``name`` of the streams.
    schema : str or StructType, optional
        Columns of the rows, without time and diff. By default the columns of the first batch.
    key : str or list of str
        Columns of a key: then a row replaces the row with its key.
    diff : str, optional
        The column of the diff, if rows are updates.
    time : str, optional
        The column of the time, if updates have times of their own.

    Notes
    -----
    Processed batches stay in the store, and each reading lists them all, until
    ``pyspark_diff.trace.inbox.remove_batches(path, name, until)`` removes them. There ``until`` has
    the number of the last batch to remove for each query. Keep every batch that some commit, to
    which a dataflow may still be reset, has not taken in.

    Examples
    --------
    >>> import tempfile
    >>> from pyspark_diff import Dataflow
    >>> path = tempfile.mkdtemp()
    >>> with Dataflow(spark) as flow:
    ...     words = flow.source("words", inbox(path, "words", schema="word string"))
    ...     counts = words.count().keep()
    ...     _ = flow.catch_up()
    """
    keys = as_keys(key)
    if keys and diff is not None or time is not None and diff is None:
        raise SchemaError(
            "updates of an inbox have a diff and may have a time, and no key; rows with a key have "
            "neither"
        )
    struct = None if schema is None else parse_schema(schema).struct
    names = [] if struct is None else struct.names
    lower = [column.lower() for column in (*names, diff, time) if column is not None]
    twice = next((c for c in (diff, time) if c and lower.count(c.lower()) > 1), None)
    if twice is not None:
        raise SchemaError(
            f"column {twice} is the diff or the time of an update, and nothing else: name another "
            "column, or leave it out of the schema"
        )
    return _Inbox(path, name, struct, keys, diff, time)


class _Inbox(Source):
    def __init__(
        self, path: str, name: str, schema: T.StructType | None, key: tuple[str, ...],
        diff: str | None, time: str | None,
    ):
        self._path, self._name, self._schema = path, name, schema
        self.key, self._diff, self._time = key, diff, time
        self._is_declared = schema is not None

    def columns(self, spark: SparkSession) -> T.StructType:
        if self._schema is None:
            batches = inbox_batches(self._path, self._name)
            if not batches:
                raise NotReadableError(
                    f"the inbox {self._name!r} of {self._path!r} has no batch yet, so its columns "
                    "are not known: name them with schema=..."
                )
            struct = batches[0].schema
            extra = {match for name in (self._diff, self._time) if name is not None
                     for match in meant_by(name, struct.names, spark)}
            fields = [field for field in struct.fields if field.name not in extra]
            self._schema = parse_schema(T.StructType(fields)).struct
        return self._schema

    def narrowed(self, columns: T.StructType, spark: SparkSession) -> Source | None:
        # The very first batch may be gone, and later batches may have other columns.
        return None if self._is_declared else inbox(
            self._path, self._name, schema=columns, key=self.key, diff=self._diff, time=self._time
        )

    def read(self, spark: SparkSession, offset: Offset) -> Reading | None:
        batches = inbox_batches(self._path, self._name, offset)
        if not batches:
            return None
        changes = [self._change(spark, batch) for batch in batches]
        return Reading(offset_after(batches, offset), changes)

    def _change(self, spark: SparkSession, batch: InboxBatch) -> Change:
        extra = [name for name in (self._time, self._diff) if name is not None]
        wanted = [*self.columns(spark).names, *extra]
        there = batch.schema.names
        meant = {name: _meant(name, there, spark) for name in wanted}
        missing = [name for name, match in meant.items() if match is None]
        if missing:
            raise SchemaError(
                f"batch {batch.number} of query {batch.query} has no column "
                f"{', '.join(map(repr, missing))}; its columns are {', '.join(there)}"
            )
        frame = _frame(spark, batch)
        positions = [there.index(match) for match in meant.values() if match is not None]
        rows = frame.select(*(frame.columns[i] for i in positions)).toDF(*meant)
        if self.key:
            return Upserts(rows)
        return Inserts(rows) if self._diff is None else Updates(rows, self._diff, self._time)

    def __repr__(self) -> str:
        return f"inbox({self._path!r}, {self._name!r})"


def _meant(name: str, there: Sequence[str], spark: SparkSession) -> str | None:
    """The column of a batch that a name means; an exact match before one in another case."""
    return name if name in there else next(iter(meant_by(name, there, spark)), None)


def _frame(spark: SparkSession, batch: InboxBatch) -> DataFrame:
    """The rows of a batch with numbers as names of columns; each task reads a file."""
    names = [f"c{i}" for i in range(len(batch.schema))]
    struct = T.StructType([
        T.StructField(name, field.dataType) for name, field in zip(names, batch.schema.fields)
    ])
    root, files = batch.root, batch.files

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with errors_to_text():
            for numbers in batches:
                for number in numbers.column(0).to_pylist():
                    for rows in read_file(root, files[number]):
                        yield rows.rename_columns(names)

    return spark.range(0, len(files), 1, len(files)).mapInArrow(run, struct)
