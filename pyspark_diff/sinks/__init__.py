"""Level 12, sinks: targets of `DiffFrame.sink` for the changes of each step.

What lives here: a file for each kind of target, which takes the changes of an epoch exactly once.
The contract of a sink is in `pyspark_diff.dataflow.sink`.
May import: errors, spark and dataflow, and the imports of level 2.
The law: a repeated epoch has the effect of a single one.

    from pyspark_diff.sinks import change_log, foreach

A subclass of `Sink` writes to any other target.
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
