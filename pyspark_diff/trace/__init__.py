"""Level 4, traces: collections indexed by key, in immutable sorted batches.

The package contains batches, the spine that keeps their number small, arrangements with their
reads as tables, and the storage of batch files. It also contains the commits of a store that
outlives the process. It may import levels 0 to 2, without cycles.

The law, of batch, trace and arrangement alike, for every ``t`` beyond ``since``::

    sum of its updates at times <= t  =  sum of the collection's updates at times <= t that lie
                                         beyond lower and not beyond upper
"""
