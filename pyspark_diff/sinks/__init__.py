"""Level 12, sinks: where `DiffFrame.sink` gives the changes of each step.

What lives here: how each kind of target takes the changes of an epoch once, one file a kind; what a
sink owes is in `pyspark_diff.dataflow.sink`.
May import: errors, spark and dataflow, and what level 2 may.
The law: an epoch that is given twice leaves what it leaves when it is given once.

    from pyspark_diff.sinks import change_log, foreach

What writes something else is a subclass of `Sink`.
"""

from pyspark_diff.dataflow.sink import Epoch, Sink
from pyspark_diff.sinks.delta import delta_append, delta_merge, delta_snapshot
from pyspark_diff.sinks.delta_history import delta_history
from pyspark_diff.sinks.folders import change_log, snapshot
from pyspark_diff.sinks.foreach import foreach

__all__ = [
    "Epoch", "Sink", "change_log", "delta_append", "delta_history", "delta_merge", "delta_snapshot",
    "foreach", "snapshot",
]
