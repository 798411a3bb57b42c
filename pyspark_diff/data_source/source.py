"""The class of the data source ``diff``. The module is quick to import, because every session of
Spark imports it when it looks for any data source.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
)
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark_diff.data_source.opened import Pin


class DefaultSource(DataSource):
    """The data source of ``spark.read.format("diff")``: the collections and inboxes of a store.

    Spark finds the class if the package is installed, except by ``pip install -e``. Over Spark
    Connect the server needs the package. To register the class in a session, call
    ``spark.dataSource.register(pyspark_diff.DefaultSource)``.

    **A table**: ``spark.read.format("diff").option(...).load()`` is a collection at a time. Its
    options are ``path`` of the store; ``name`` of the kept collection; ``time``, by default the
    latest complete one; ``commit``, by default the latest one. A record with a negative
    multiplicity is refused; ``allowNegative`` leaves such records out. Equality and ``IN`` on all
    columns of the key skip the other keys' buckets, if
    ``spark.sql.python.filterPushdown.enabled`` is true (Spark 4.1 and later).

    ``shape`` is ``rows``, ``changes`` or ``cdc``. Shape ``changes`` has columns for time and diff,
    and the changes after ``since``, up to and with ``until``, or all kept updates. Shape ``cdc``
    has the same changes as rows with ``_change_type`` and ``_commit_version``, the number of the
    commit. Change types are ``insert``, ``delete``, ``update_preimage`` and ``update_postimage``.

    **A stream**: ``spark.readStream.format("diff")``, with ``path``, ``name`` and ``shape``. The
    first micro batch is the whole collection, each later one the changes from one commit to a later
    one; ``start`` is ``earliest``, ``latest`` or a commit. Shape ``rows`` is for collections that
    only grow, and fails at a retraction. With the trigger ``availableNow`` of Spark 4.1 a query
    whose last run failed repeats the failed batch; the next run reads the changes since.

    **A sink**: ``frame.writeStream.format("diff")``, with ``path`` and ``name``, puts each micro
    batch into the inbox of that name exactly once, with any number of attempts.

    A read holds its commit for ``holdSeconds``, by default an hour, so that no vacuum removes it.

    Notes
    -----
    The creation of a frame chooses the commit, so each evaluation reads the same rows. Over Connect
    each evaluation plans the frame and chooses the latest commit; to fix it, give a ``commit``.

    A frame has no end that the library could detect. Its hold therefore expires an hour after the
    frame was created or last evaluated. Until then its commit with all files takes space, so many
    frames over a store with frequent commits hold many commits. Give a shorter ``holdSeconds`` for
    short reads, and a longer one for a query that runs longer.

    A vacuum removes an expired hold and warns that its reader has died or has not renewed it. For
    frames this is the usual end, and harmless. A later evaluation reads the same commit if it still
    exists, and else raises an error with this reason.
    """

    def __init__(self, options: MutableMapping[str, str]):
        super().__init__(options)
        self._pin: Pin | None = None

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "diff"

    def schema(self) -> StructType:
        """The columns of the rows."""
        from pyspark_diff.data_source.opened import planned

        struct, self._pin = planned(self.options)
        return struct

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a collection as a table."""
        from pyspark_diff.data_source.scan import CollectionScan

        return CollectionScan.planned(self.options, self._pin, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader of a collection's changes as a stream."""
        from pyspark_diff.data_source.stream import Stream

        return Stream(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """The writer of micro batches to an inbox."""
        from pyspark_diff.data_source.inbox_writer import InboxWriter

        return InboxWriter(self.options, schema, overwrite)
