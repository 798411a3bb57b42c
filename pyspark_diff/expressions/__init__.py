"""Level 3, expressions: what a user writes as columns.

What lives here: an expression as a tree, its compiled form, the check that it is deterministic and
row-wise, what an aggregate or a join condition asks for, and the resolution of column names.
May import: levels 0 to 2. Acyclic.

The law: a compiled expression gives, bit for bit, what Spark gives; where that is not sure, there
is none, and Spark evaluates it.
"""
