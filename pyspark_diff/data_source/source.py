"""The data source ``diff``, as Spark finds it: quick to import, as Spark does so in every session
that looks for any data source.
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
    """What a dataflow keeps in a store, as ``spark.read.format("diff")`` reads it.

    Spark finds it by itself where the package is installed, but not where that was done to edit it
    (``pip install -e``); over Spark Connect the server does, if it is installed there.
    ``spark.dataSource.register(pyspark_diff.DefaultSource)`` tells a session of it, too.

    **A table**: ``spark.read.format("diff").option(...).load()`` is the collection at a time. Its
    options: ``path`` of the store; ``name`` by which it was kept; ``time``, the latest complete one
    if not given; ``commit``, the latest one if not given; ``allowNegative`` to leave records out
    that stand with a negative multiplicity, which are refused otherwise. Equality and ``IN`` on all
    columns of its key read only where these keys are, if
    ``spark.sql.python.filterPushdown.enabled`` is true (Spark 4.1 and later).

    ``shape`` is ``rows``; or ``changes``, with columns for time and diff: what has changed after
    ``since``, up to and with ``until``, or all that is kept; or ``cdc``, the same as rows with
    ``_change_type`` (``insert``, ``delete``, ``update_preimage``, ``update_postimage``) and
    ``_commit_version``, the number of the commit.

    **A stream**: ``spark.readStream.format("diff")``, with ``path``, ``name`` and ``shape``. Each
    micro batch is what has changed from one commit to a later one, first of all the whole
    collection; ``start`` is ``earliest``, ``latest`` or a commit. As ``rows`` it is for collections
    that only grow, and fails at a record that is taken back. With the trigger ``availableNow`` of
    Spark 4.1 a query whose last run failed gives the batch that failed, and only when it is started
    once more what has come since.

    **A sink**: ``frame.writeStream.format("diff")``, with ``path`` and ``name``, puts each micro
    batch into the inbox of that name, once, however often it is tried.

    A read holds its commit, so that it is not removed meanwhile, for ``holdSeconds``: an hour if
    not given.

    Notes
    -----
    The commit is chosen when the frame is made: it reads the same, however often it is evaluated.
    Over Connect a frame is planned, and the latest commit chosen, at each evaluation; give a
    ``commit`` where it has to be one.

    A frame cannot tell when nobody needs it any more. So its hold stands until it expires, an hour
    after the frame was made or last evaluated, and its commit with all files of it takes space that
    long: many frames over a store that commits often hold many commits. Give a shorter
    ``holdSeconds`` where reads are short, and a longer one where a query runs longer than that.

    The vacuum that finds an expired hold removes it and warns that its reader has died or has not
    renewed it. Of frames that is the usual end, and harmless: one that is evaluated later reads the
    same commit if it is still there, and raises an error that says so if it is not.
    """

    def __init__(self, options: MutableMapping[str, str]):
        super().__init__(options)
        self._pin: Pin | None = None

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "diff"

    def schema(self) -> StructType:
        """The columns of what is read."""
        from pyspark_diff.data_source.opened import planned

        struct, self._pin = planned(self.options)
        return struct

    def reader(self, schema: StructType) -> DataSourceReader:
        """What reads a collection as a table."""
        from pyspark_diff.data_source.scan import Scan

        return Scan.planned(self.options, self._pin, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """What reads the changes of a collection."""
        from pyspark_diff.data_source.stream import Stream

        return Stream(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """What puts micro batches into an inbox."""
        from pyspark_diff.data_source.inbox_writer import InboxWriter

        return InboxWriter(self.options, schema, overwrite)
