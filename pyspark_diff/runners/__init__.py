"""Level 6, runners: the same work on the driver and as Spark tasks.

What lives here: feeds of update rows, the work of one bucket, and its two runners.
May import: levels 0 to 5. Acyclic.

The law: both runners call the same functions for a bucket, so where work is done changes its cost
and never its answer.
"""
