"""Level 2, Spark: all that touches PySpark and is no operator.

What lives here: the session, types and schemas, Python values as Arrow columns, frames of update
rows, what is in column expressions, jobs that Ctrl-C ends, the bridge to what Spark tells of them,
and `jvm`, the only door to the JVM. May import: PySpark, and levels 0 and 1. Acyclic.

The law: whatever is asked of Spark here has the same answer on classic Spark and over Connect.
"""
