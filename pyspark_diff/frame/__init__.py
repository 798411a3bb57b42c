"""Level 9, frames: what a user writes.

What lives here: `Dataflow` and `DiffFrame`, whose methods are in one class for each kind, all of
one base and none of another; what they wrap are values, `Collection`, that know of no frame.
May import: levels 0 to 8. Acyclic.

The law: a method is lazy and returns another frame, except for those that the class names; what can
be found wrong without a job is refused where it is written.
"""
