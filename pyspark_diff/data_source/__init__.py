"""Level 13, the data source ``diff``: stores as Spark itself reads and writes them.

What lives here: the class that Spark finds by ``format("diff")``, how it reads what a store keeps,
as a table and as a stream, and how it writes a stream into a store. May import: errors, times,
kernels, spark and trace. It runs in Python workers, where there is no session.

The law: what ``spark.read.format("diff")`` gives is what a `StateReader` at the same commit gives.
"""
