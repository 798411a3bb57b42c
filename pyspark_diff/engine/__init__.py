"""Level 7, the engine: one step of a dataflow, and one loop within it.

What lives here: programs, their lowering, the graph of running nodes, and subgraphs of loops. Also
the schedulers of a step and of a loop with their common context, the evaluation of feeds,
compaction, and the state before and after a step. May import: levels 0 to 6. Acyclic.

The law: a step is a function from one immutable state to another. If it raises an error, the old
state remains valid, and no file of the step remains.
"""
