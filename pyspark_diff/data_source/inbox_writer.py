"""Micro batches of a stream, put into an inbox of a store: each once, however often it is tried.

Which query and which batch it is, a task is told by Spark; it stands in the checkpoint of the
query, and is the same when a batch is done again.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from pyspark_diff.data_source.options import Options
from pyspark_diff.errors import StorageError
from pyspark_diff.spark.stored_schema import schema_to_json
from pyspark_diff.trace.inbox import InboxFile, put, put_file
from pyspark_diff.trace.roots import objects_at

if TYPE_CHECKING:
    from pyarrow import RecordBatch

#: What Spark calls the query, and the number of the batch, in the properties of a job.
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
#: So many bytes of rows are one file.
FILE_BYTES = 1 << 27


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The files of a task."""

    query: str
    batch: int
    files: tuple[InboxFile, ...]


class InboxWriter(DataSourceStreamArrowWriter):
    """Puts micro batches into an inbox.

    Parameters
    ----------
    given : mapping of str to str
        Options of the user.
    schema : StructType
    overwrite : bool
        Whether each batch is meant to replace what is there, which is refused.
    """

    def __init__(self, given: Mapping[str, str], schema: T.StructType, overwrite: bool):
        options = Options(given, ("path", "name"), "a stream that is written")
        self._path = options.needed("path", "where the store is")
        self._name = options.needed("name", "of the inbox")
        if overwrite:
            raise ValueError(
                "format 'diff' takes each batch of a stream as new rows, and output mode complete "
                "gives all rows again: write in output mode append or update"
            )
        schema_to_json(schema)  # a type that a store cannot hold is refused before anything runs
        self._schema = schema
        self._attempt = secrets.token_hex(6)
        objects_at(self._path)

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task."""
        context = TaskContext.get()
        query, batch = (
            None if context is None else context.getLocalProperty(name)
            for name in (_QUERY, _BATCH)
        )
        if context is None or not query or not batch:
            raise StorageError(
                "Spark does not tell which query and which batch this is, so that it could not be "
                "told from others: write it with foreachBatch"
            )
        objects = objects_at(self._path)
        files: list[InboxFile] = []
        held: list[RecordBatch] = []

        def flush() -> None:
            if held:
                part = context.partitionId() * 1000 + len(files)
                files.append(put_file(
                    objects, self._name, query, int(batch), self._attempt, part, held
                ))
                held.clear()

        size = 0
        for rows in iterator:
            if not rows.num_rows:
                continue
            held.append(rows)
            size += rows.nbytes
            if size >= FILE_BYTES:
                flush()
                size = 0
        flush()
        return Written(query, int(batch), tuple(files))

    def commit(
        self, messages: list[WriterCommitMessage | None], batchId: int  # noqa: N803
    ) -> None:
        """Make a batch, unless it is there."""
        found = [message for message in messages if isinstance(message, Written)]
        files = [file for message in found for file in message.files]
        if not files:
            return  # there is nothing to be known of it
        objects = objects_at(self._path)
        if not put(objects, self._name, found[0].query, batchId, self._schema, files):
            objects.delete([file.name for file in files])

    def abort(
        self, messages: list[WriterCommitMessage | None], batchId: int  # noqa: N803
    ) -> None:
        """Leave what tasks have written: nobody reads it, and if the answer to `commit` was only
        lost, the batch is there.
        """
