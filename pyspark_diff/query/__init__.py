"""Level 14, queries that a user has already: SQL text and DataFrames, kept up to date.

What lives here: the relational form, a tree of frozen nodes (`form`). A reader produces it from the
plan that Spark has analysed (`plan_reader`). A translation turns it into the operators of a
`DiffFrame` (`translation`). `Dataflow` has `sql` and `query`. May import: errors, spark, dataflow,
frame and sources. It is above the sources, because a table of the catalog becomes a source.

The law: at each time, the kept answer is the rows that plain Spark returns for the tables of that
time.
"""
