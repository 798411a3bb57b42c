"""Level 2, Spark: all uses of PySpark outside of operators.

What lives here: the session, types and schemas, Python values as Arrow columns, frames of update
rows, the parts of column expressions, jobs that Ctrl-C ends, the bridge to Spark's progress, and
`jvm`, the only door to the JVM. May import: PySpark, and levels 0 and 1. Acyclic.

The law: each function here has the same result on classic Spark and over Connect.
"""
