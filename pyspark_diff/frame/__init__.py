"""Level 9, frames: the classes in which a user writes a program.

What lives here: `Dataflow` and `DiffFrame`. The methods of `DiffFrame` are in one class for each
kind; all these classes derive from one base, and none from another. Frames wrap values,
`Collection`, that know of no frame.
May import: levels 0 to 8. Acyclic.

The law: a method is lazy and returns another frame, except for the methods that the class names. An
error that needs no job to be detected is raised where the operator is written.
"""
