"""Level 13, the data source ``diff``: stores as Spark itself reads and writes them.

What lives here: the class of ``format("diff")``, which reads a store's collections as tables and as
streams, and writes a stream into a store. May import: errors, times, kernels, spark and trace. The
code runs in Python workers, which have no session.

The law: ``spark.read.format("diff")`` returns the rows of a `StateReader` at the same commit.
"""
