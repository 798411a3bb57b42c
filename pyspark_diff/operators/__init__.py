"""Level 5, operators: nodes of a program, and the computation of each.

What lives here: `contract` (the obligations of stages and kernels), `node` (nodes as values), and a
file for each operator. May import: levels 0 to 4; an operator imports `contract`, `node` and no
other operator. Acyclic.

The law, for every operator and every time ``t``::

    accumulate(op(A), t) = the batch operator of accumulate(A, t)
"""
