"""Level 9, frames: what a user writes.

What lives here: `DiffFrame` and its kin. May import: levels 0 to 8. Acyclic.

The law: a method is lazy and returns another frame, except for those that the class names; what can
be found wrong without a job is refused where it is written.
"""
