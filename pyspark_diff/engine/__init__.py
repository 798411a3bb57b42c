"""Level 7, the engine: one step of a dataflow, and one loop within it.

What lives here: programs and their lowering, the graph of what runs and who needs what of it, the
subgraphs of loops, the schedulers of a step and of a loop and the context that they share, the
evaluation of feeds, compaction, and the state that a step makes of another. May import: levels 0 to
6. Acyclic.

The law: a step is a function from one immutable state to another. If it raises, the old state
stands, and no file of it is left.
"""
