"""Level 11, sources: tables, folders and streams that `Dataflow.catch_up` reads on.

What lives here: a file for each kind of table or feed, with a reader of the changes since an
offset. The contract of a source is in `pyspark_diff.dataflow.source`.
May import: errors, spark, trace and dataflow, and the imports of level 2.
The law: every reader, at any number of attempts, gets the same changes since an offset. A change
that is no longer readable is an error, and never left out.

    from pyspark_diff.sources import delta, snapshots

A subclass of `Source` reads any other feed.
"""

from pyspark_diff.dataflow.source import (
    Deletes,
    Inserts,
    Reading,
    Removes,
    Source,
    Updates,
    Upserts,
    Whole,
)
from pyspark_diff.sources.delta import delta
from pyspark_diff.sources.files import debezium, files
from pyspark_diff.sources.iceberg import iceberg
from pyspark_diff.sources.inbox import inbox
from pyspark_diff.sources.logs import updates, upserts
from pyspark_diff.sources.snapshots import snapshots
from pyspark_diff.sources.streams import Batches, batches

__all__ = [
    "Batches", "Deletes", "Inserts", "Reading", "Removes", "Source", "Updates", "Upserts", "Whole",
    "batches", "debezium", "delta", "files", "iceberg", "inbox", "snapshots", "updates", "upserts",
]
