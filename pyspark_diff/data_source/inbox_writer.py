"""Micro batches of a stream in an inbox of a store: each exactly once, with any number of attempts.

Spark passes the ids of the query and of the batch to a task. The query's checkpoint has both, so a
repeated batch has the same ids.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from pyspark_diff import thresholds
from pyspark_diff.data_source.options import Options
from pyspark_diff.errors import StorageError
from pyspark_diff.spark.stored_schema import schema_to_json
from pyspark_diff.trace.inbox import InboxFile, put_batch, put_file
from pyspark_diff.trace.roots import objects_at

if TYPE_CHECKING:
    from pyarrow import RecordBatch

#: The job properties with the ids of the query and of the batch.
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass(frozen=True)
class TaskFiles(WriterCommitMessage):
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
    overwrite : bool
        Whether each batch should replace all rows, which is refused.
    """

    def __init__(self, given: Mapping[str, str], schema: T.StructType, overwrite: bool):
        options = Options(given, ("path", "name"), "a stream that is written")
        self._path = options.store()
        self._name = options.needed("name", "of the inbox")
        if overwrite:
            raise ValueError(
                "format 'diff' reads each batch of a stream as new rows, and output mode complete "
                "repeats all rows. Write in output mode append or update"
            )
        schema_to_json(schema)  # refuses a type that a store cannot record, before a job runs
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
                "Spark does not report the query and the batch of this task, so a repeated batch "
                "could not be recognised. Write the stream with foreachBatch"
            )
        objects = objects_at(self._path)
        files: list[InboxFile] = []
        buffer: list[RecordBatch] = []

        def flush() -> None:
            if buffer:
                part = context.partitionId() * 1000 + len(files)
                files.append(put_file(
                    objects, self._name, query, int(batch), self._attempt, part, buffer
                ))
                buffer.clear()

        size = 0
        for rows in iterator:
            if not rows.num_rows:
                continue
            buffer.append(rows)
            size += rows.nbytes
            if size >= thresholds.current.inbox_file_bytes_min:
                flush()
                size = 0
        flush()
        return TaskFiles(query, int(batch), tuple(files))

    def commit(
        self, messages: list[WriterCommitMessage | None], batchId: int  # noqa: N803
    ) -> None:
        """Create a batch, unless it exists."""
        written = [message for message in messages if isinstance(message, TaskFiles)]
        files = [file for message in written for file in message.files]
        if not files:
            return  # an empty batch needs no record
        objects = objects_at(self._path)
        if not put_batch(objects, self._name, written[0].query, batchId, self._schema, files):
            objects.delete([file.name for file in files])

    def abort(
        self, messages: list[WriterCommitMessage | None], batchId: int  # noqa: N803
    ) -> None:
        """Leave the files of tasks.

        Without a batch no reader reads them. If only the answer to `commit` was lost, the batch
        exists and needs them.
        """
