"""Level 3, expressions: the columns that a user writes.

What lives here: an expression as a tree, its compiled form, the check that it is deterministic and
row-wise, the parts of aggregates and join conditions, and the resolution of column names.
May import: levels 0 to 2. Acyclic.

The law: a compiled expression has, bit for bit, the value of Spark. An expression without a certain
proof of that has no compiled form, and Spark evaluates it.
"""
