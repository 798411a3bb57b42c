"""Level 15, views: a query, its sources and its target table, refreshed by changes.

What lives here: one file a concept. A query has a unique key (`keys`). The target table is checked
for writes of others (`target`), by a record next to the store (`record`). A forecast comes before
each refresh (`forecast`), and reports come after it (`reports`). The views form one program
(`program`), which a group refreshes (`group`): one view (`materialized`), or a folder of queries
(`folder`).
May import: errors, spark, trace, dataflow, frame, query, sources and sinks.
The law: after a refresh each target has the rows that plain Spark returns for its query over the
source versions that the refresh recorded.
"""
