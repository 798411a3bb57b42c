"""Idle operators: those that no update of a step reaches.

If all inputs advance together from ``L`` to ``U``, and no update reaches an operator, then::

    updates(operator, t) = 0        for  L <= t < U

so its arrangement stays the same and is brought forward to ``U`` when it is read next. A step
thereby costs the operators that its updates reach, and not those of the program.
"""

from __future__ import annotations

from functools import partial

from pyspark_diff.engine.compaction import Compaction
from pyspark_diff.engine.context import StepContext
from pyspark_diff.operators.checked import CompleteKernel
from pyspark_diff.operators.due import Waiting
from pyspark_diff.operators.node import Arranged, Constant, Keyed, Reader
from pyspark_diff.operators.upsert import UpsertKernel
from pyspark_diff.times import Antichain


class IdleNodes:
    """The arrangements and operators of a step that no update reaches. It holds state: those that
    the step has visited.

    Parameters
    ----------
    context : StepContext
        The context of the step, which has begun.
    """

    def __init__(self, context: StepContext):
        self._context = context
        self._nodes: set[Arranged] = set()
        self._after = _together(context)
        compaction = Compaction(context.graph, context.settings)  # no input lags
        self._forward = partial(compaction.forward, at=self._after)

    def __contains__(self, node: Arranged) -> bool:
        return node in self._nodes

    def reads_nothing(self, node: Reader) -> bool:
        """Whether an operator has no new updates to read, and none that fall due."""
        kernel = node.kernel
        if kernel.by_time or kernel.visits_all or isinstance(kernel, UpsertKernel):
            return False
        return self._nodes.issuperset(node.arranged)

    def add(self, node: Keyed | Reader, before: Antichain) -> bool:
        """Note a node without new updates; False if its arrangement may change nevertheless."""
        context, after = self._context, self._context.frontiers[node]
        if isinstance(node, Waiting) or isinstance(node.kernel, CompleteKernel):
            return False
        if self._after.is_empty or context.early:
            return False
        if node.keeps and node not in context.traces:
            return False  # its trace begins here
        if after == self._after:
            context.traces.rest((node,), self._forward)
        elif after != before:
            return False
        self._nodes.add(node)
        return True


def _together(context: StepContext) -> Antichain:
    """The frontier to which all inputs advance together; empty if they do not."""
    state, upper = context.state, context.upper
    nothing = Antichain()
    known = state.graph is context.graph and state.lagging is not None and not state.lagging
    if not known or context.settings.open or context.growth.late or context.unshown:
        return nothing
    inputs = [node for part in context.parts for node in part.inputs]
    fed = [node for node in inputs if not isinstance(node, Constant)]
    if not fed:
        return nothing
    before, after = state.frontiers[fed[0]], upper[fed[0]]
    if len(fed) < len(inputs) and before.less_equal(fed[0].time_type.start):
        return nothing  # rows of constants are updates that no earlier step has completed
    for node in inputs:
        moved = state.frontiers[node], upper[node]
        if moved != ((nothing, nothing) if isinstance(node, Constant) else (before, after)):
            return nothing
    return after
