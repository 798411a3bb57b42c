"""Level 8, dataflows: the objects that keep state between steps.

What lives here: `Dataflow`, the sessions that feed its inputs, probes, holds, its outputs and their
catalogue. May import: levels 0 to 7. Acyclic.

The law: however the same updates are cut into steps, the accumulation at a time is the same.
"""
