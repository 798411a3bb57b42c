"""Level 1, kernels: arrays in, arrays out.

What lives here: updates by column, and the functions on them - consolidate, merge, look up, join,
replay, first records, sums, coordinates of loops. May import: numpy, numba and pyarrow, and level
0; never pyspark. Acyclic.

The law: a kernel is a pure function of its arrays, deterministic, without I/O, correct on zero
rows, and never loops over rows in Python.
"""
