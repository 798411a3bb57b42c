"""Level 14, queries that a user has already: SQL text and DataFrames, kept up to date.

What lives here: the relational form, a tree of frozen nodes (`form`); the reader of the plan that
Spark has analysed (`plan_reader`); the translation of the form into the operators of a `DiffFrame`
(`translation`); and `Dataflow` with `sql` and `query`. May import: errors, spark, dataflow, frame
and sources. It is above the sources, as a table of the catalog becomes one.

The law: at each time, the kept answer is the rows that plain Spark returns for the tables as they
are at that time.
"""
