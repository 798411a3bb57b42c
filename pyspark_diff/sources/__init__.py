"""Level 11, sources: tables, folders and streams that `Dataflow.catch_up` reads on.

What lives here: how each kind of table or feed tells what has come since an offset, a file a kind;
what a source owes is in `pyspark_diff.dataflow.source`.
May import: errors, spark, trace and dataflow, and what level 2 may.
The law: reading on from an offset gives what has come since, whoever reads, however often; what can
not be given any more is an error, and never left out.

    from pyspark_diff.sources import delta, snapshots

What reads something else is a subclass of `Source`.
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
