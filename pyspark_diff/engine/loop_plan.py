"""Plans of loops on numbers: the check of a loop's operators, and their forms for numbers.

A loop has this form if every record is one number or a pair of numbers. Every operator must be a
join, an arrangement, a linear operator on numbers, or a replay that an index supports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Collection, Mapping

from pyspark_diff.engine.subgraph import Subgraph
from pyspark_diff.kernels.key_replay import BOTH, LEAST, NUMBER, PRESENT
from pyspark_diff.kernels.layout import Layout
from pyspark_diff.operators.count import CountKernel
from pyspark_diff.operators.join import JoinKernel
from pyspark_diff.operators.loop import Enter, EnterAt, TimeScope, Variable
from pyspark_diff.operators.node import Arranged, Concat, Keyed, Linear, Node, Reader
from pyspark_diff.operators.threshold import ThresholdKernel
from pyspark_diff.operators.top_k import TopKKernel
from pyspark_diff.runners.numbers import OnNumbers, on_numbers


@dataclass(frozen=True)
class Planned:
    """A loop whose operators all have a form for numbers.

    Parameters
    ----------
    stages : mapping of Node to callable
        Functions of linear operators.
    columns : mapping of Node to tuple of str
        Columns of arrangements: the key, and the value if there is one.
    modes : mapping of Node to int
        Modes of operators that replay a history.
    """

    stages: Mapping[Node, OnNumbers]
    columns: Mapping[Arranged, tuple[str, ...]]
    modes: Mapping[Node, int]


def planned(
    subgraph: Subgraph, wanted: Mapping[Node, frozenset[str]], sinks: Collection[Node]
) -> Planned | None:
    """The form of a loop on numbers; None if an operator has no such form."""
    if isinstance(subgraph.loop, TimeScope):
        return None
    if subgraph.loop.depth != 1 or any(node in sinks for node in subgraph.nodes()):
        return None
    stages: dict[Node, OnNumbers] = {}
    columns: dict[Arranged, tuple[str, ...]] = {}
    modes: dict[Node, int] = {}
    for node in subgraph.items:
        if isinstance(node, (Enter, EnterAt, Variable, Concat)):
            continue
        if isinstance(node, Linear):
            stage = on_numbers(node.stage)
            if stage is None:
                return None
            stages[node] = stage
            continue
        if not isinstance(node, Arranged):
            return None
        if isinstance(node, Keyed) and (node.kernel is not None or node.diff_columns is not None):
            return None
        if isinstance(node, Reader):
            mode = _mode(node, wanted)
            if mode is None and not isinstance(node.kernel, JoinKernel):
                return None
            if mode is not None:
                modes[node] = mode
        sources = node.arranged if isinstance(node, Reader) else ()
        for source in (*sources, node) if node.keeps else sources:
            if not _plain(source.layout(wanted[source])):
                return None
            columns[source] = source.stored(wanted[source])
    return Planned(stages, columns, modes)


def _plain(layout: Layout) -> bool:
    """Whether a record is one number, or a pair of numbers."""
    return layout.exact and (layout.value is None or layout.value.exact)


def _mode(node: Reader, wanted: Mapping[Node, frozenset[str]]) -> int | None:
    """The mode of a replay over an index for an operator; None if the index does not support it."""
    kernel = node.kernel
    if isinstance(kernel, TopKKernel):
        if kernel.k == 1 and kernel.mode == "rows" and not kernel.from_back:
            return LEAST if len(kernel.names) == 2 else None
    elif isinstance(kernel, (CountKernel, ThresholdKernel)):
        if node.arranged[0].layout(wanted[node.arranged[0]]).value is not None:
            return None
        if isinstance(kernel, CountKernel):
            return NUMBER
        return PRESENT if kernel.function is None else BOTH
    return None
