"""Import: a collection that a dataflow has kept, brought into an operator that was added later.

For a collection ``A`` whose past is kept from ``since`` on, at every time ``t`` beyond ``since``::

    accumulate(imported(A), t) = accumulate(A, t)

The node emits the kept updates once, and then passes new updates on. So its readers need no
backfill of their own. If times are structs, it emits each kept update at the coordinate of its
time.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass

from pyspark_diff.operators.node import Node, Passing


@dataclass(frozen=True, eq=False, repr=False)
class Imported(Passing):
    """A collection of a program that has run, for operators added later.

    Source: differential-dataflow ``operators/arrange/agent.rs``, ``import``.
    """

    kind = "import"
    source: InitVar[Node]

    def __post_init__(self, source: Node) -> None:
        self._settle((source,), schema=source.schema)
