"""Level 4, traces: collections indexed by key, in immutable sorted batches.

What lives here: batches, the spine that keeps their number small, arrangements with their reads as
tables, the storage of batch files, and the commits of a store that outlives the process.
May import: levels 0 to 2. Acyclic.

The law, of batch, trace and arrangement alike, for every ``t`` beyond ``since``::

    sum of its updates at times <= t  =  sum of the collection's updates at times <= t that lie
                                         beyond lower and not beyond upper
"""
