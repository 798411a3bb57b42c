"""Import: a collection that a dataflow has kept, brought into an operator that was added later.

For a collection ``A`` whose past is kept from ``since`` on, at every time ``t`` beyond ``since``::

    accumulate(imported(A), t) = accumulate(A, t)

It gives once what was there before, and then passes on what is new, so that what reads it needs not
know that it came late. Where times are structs it does so field by field: each update of the past
comes at the coordinate that its time has.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass

from pyspark_diff.operators.node import Node, Passing


@dataclass(frozen=True, eq=False, repr=False)
class Imported(Passing):
    """A collection of a program that has run, for operators that have not.

    Source: differential-dataflow ``operators/arrange/agent.rs``, ``import``.
    """

    kind = "import"
    source: InitVar[Node]

    def __post_init__(self, source: Node) -> None:
        self._settle((source,), schema=source.schema)
