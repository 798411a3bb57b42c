"""Loops without a fixed point, and their errors.

A loop is refused in three cases. Its collections repeat an earlier value (`engine/oscillation.py`).
It takes more iterations than there are keys, and its program says that this proves an endless loop
(`LoopScope.endless`); sums of doubles must also fall further than by rounding
(`engine/descent.py`). Or some collection still changes after the largest number of iterations.
"""

from __future__ import annotations

from typing import Callable, Sequence

import numpy as np
import pyarrow as pa

from pyspark_diff import thresholds
from pyspark_diff.engine.context import StepContext
from pyspark_diff.engine.descent import Descent, largest_of
from pyspark_diff.engine.oscillation import Oscillation, consolidated
from pyspark_diff.engine.subgraph import Subgraph, arranged_in
from pyspark_diff.errors import StalledError
from pyspark_diff.kernels.consolidate import consolidate
from pyspark_diff.kernels.coordinates import unpack
from pyspark_diff.kernels.key_ranges import keys_at_least
from pyspark_diff.kernels.updates import UpdateChunk, concat, empty, spread
from pyspark_diff.operators.loop import Variable
from pyspark_diff.operators.node import Arranged, LoopScope, Reader
from pyspark_diff.runners.view import ArrangementView, opened
from pyspark_diff.times import Coordinate
from pyspark_diff.trace import storage

#: The number of changing rows in the error of a loop without a fixed point.
SHOWN = 5
#: The advice for a loop without a fixed point.
_ADVICE = (
    "If more iterations would suffice, give a larger max_iterations. To take the last value, give "
    "on_limit=\"return\". Else the body creates new records in each iteration, or brings old "
    "records back"
)


class Stalls:
    """Checks that the loops of a step reach a fixed point. It holds state for each running loop."""

    def __init__(self, step: StepContext):
        self._step = step
        #: Searches for oscillation, and for values that fall.
        self._swings: dict[LoopScope, Oscillation] = {}
        self._falls: dict[LoopScope, Descent] = {}
        #: The feedback after the present iteration; None unless all of it is on the driver.
        self._goes: dict[LoopScope, list[tuple[Variable, pa.Table]] | None] = {}
        #: The number of keys in the collections that the loop reads from outside.
        self._keys: dict[LoopScope, int] = {}
        #: The last iteration with a record that enters.
        self._entered: dict[LoopScope, int] = {}

    def forget(self, loop: LoopScope) -> None:
        """Drop the state of a loop that has reached its fixed point."""
        for records in (self._swings, self._falls, self._goes, self._keys, self._entered):
            records.pop(loop, None)  # type: ignore[attr-defined]

    def enters(self, loop: LoopScope, iteration: int) -> None:
        """Note that a record enters a running loop in a later iteration."""
        self._entered[loop] = max(iteration, self._entered.get(loop, 0))

    def watched(self, loop: LoopScope, iteration: int) -> bool:
        """Whether the feedback after an iteration is checked."""
        first = max(thresholds.current.watch_iterations_min, self._entered.get(loop, 0) + 1)
        return not loop.stops and iteration >= first

    def began(self, loop: LoopScope) -> None:
        """Note that the feedback of an iteration begins."""
        self._goes[loop] = []

    def goes(self, node: Variable, table: pa.Table | None) -> None:
        """Note the feedback of a variable as update rows; None if they are not on the driver."""
        feedback = self._goes[node.loop]
        if table is None:
            self._goes[node.loop] = None
        elif feedback is not None:
            feedback.append((node, table))

    def check(
        self, subgraph: Subgraph, at: Coordinate, view_of: Callable[[Arranged], ArrangementView]
    ) -> None:
        """Check the feedback after an iteration.

        Parameters
        ----------
        subgraph : Subgraph
            The loop.
        at : Coordinate
            The iteration.
        view_of : callable
            Returns the present view of an arrangement. It is not stored: a reference cycle with
            the loop's runner would keep the step's state until a garbage collection.

        Raises
        ------
        StalledError
            If the loop has no fixed point.
        """
        loop = subgraph.loop
        went = self._goes.pop(loop, None)
        if not went:
            self._swings.pop(loop, None)
            return
        if loop.endless and at[-1] > self._keys_of(subgraph, view_of):
            for node, table in went:
                updates = consolidated(node.schema, table)
                if len(updates) and self._is_endless(subgraph, at, node, updates, view_of):
                    raise StalledError(
                        f"{loop.name} has no fixed point: in iteration {at[-1]}{inside(at)} "
                        f"{len(updates)} updates still change, such as {_shown(node, updates)}, "
                        f"though its outside input has {self._keys[loop]} keys. {loop.endless}"
                    )
        swing = self._swings.setdefault(loop, Oscillation()).takes(went)
        if swing is None or self._older_beyond(subgraph, at, at[-1] - 2 * swing[0]):
            return
        period, node, updates = swing
        raise StalledError(
            f"{loop.name} has no fixed point: every {period} iterations, here at {at[-1]}"
            f"{inside(at)}, its collections repeat, and {len(updates)} updates change, such as "
            f"{_shown(node, updates)}. Its body brings old records back: keep the earlier records "
            "(start.union(...).distinct()), or give max_iterations and on_limit=\"return\" to take "
            "the last value"
        )

    def refuse(self, node: Variable, left: Sequence[pa.Table], at: Coordinate) -> None:
        """Refuse a loop at its limit of iterations, if it still has feedback.

        Raises
        ------
        StalledError
        """
        updates = consolidated(node.schema, pa.concat_tables(left)) if left else empty()
        if not len(updates):
            return
        raise StalledError(
            f"{node.loop.name} has no fixed point after {node.loop.max_iterations} iterations"
            f"{inside(at)}: {len(updates)} updates still change, such as "
            f"{_shown(node, updates)}. {node.loop.advice or _ADVICE}"
        )

    def _is_endless(
        self, subgraph: Subgraph, at: Coordinate, node: Variable, updates: UpdateChunk,
        view_of: Callable[[Arranged], ArrangementView],
    ) -> bool:
        """Whether a loop with more iterations than keys has no fixed point."""
        loop = subgraph.loop
        if not loop.falls:
            return True
        if len(at) > 1:
            return False  # this feedback is also a difference to other outer iterations
        if loop not in self._falls:
            columns = (
                view.layout.column(part, position, None)
                for view in _from_outside(subgraph, view_of)
                for position, kind in enumerate(view.layout.all_types)
                if pa.types.is_floating(kind)
                for bucket in _buckets(view) for part in opened(view.files_of(bucket))
            )
            self._falls[loop] = Descent(loop.falls, largest_of(columns), at[-1])
        falls = self._falls[loop]
        return falls.takes(at[-1], node.schema, updates) and not self._older_beyond(
            subgraph, at, falls.since
        )

    def _keys_of(self, subgraph: Subgraph, view_of: Callable[[Arranged], ArrangementView]) -> int:
        """The number of keys, at any time, in the collections that a loop reads from outside. Above
        the limit of iterations this limit suffices, and the count reads few rows."""
        loop = subgraph.loop
        if loop not in self._keys:
            buckets = [
                opened(view.files_of(bucket)) for view in _from_outside(subgraph, view_of)
                for bucket in _buckets(view)
            ]
            most = count = loop.max_iterations
            fewest = (max((keys_at_least(p.key64, most) for p in b), default=0) for b in buckets)
            if sum(fewest) < most:
                keys = ([UpdateChunk(p.key64, p.columns, 0, 1) for p in files] for files in buckets)
                count = sum(len(consolidate(concat(parts)).updates) for parts in keys)
            self._keys[loop] = count
        return self._keys[loop]

    def _older_beyond(self, subgraph: Subgraph, at: Coordinate, iteration: int) -> bool:
        """Whether updates of other runs of the loop, or of earlier steps, have such a late
        iteration.

        The feedback is the difference to these updates, so it may repeat when the collections do
        not.
        """
        before = self._step.state.traces
        for node in arranged_in(subgraph):
            old = set(before[node].paths()) if node in before else set()
            for path in self._step.traces[node].paths() if node in self._step.traces else ():
                updates = storage.open_updates(path)
                codes = np.unique(spread(updates.coordinate, len(updates)))
                for code in codes.tolist():  # few: the iterations with updates
                    part = unpack(code, node.depth)
                    other = path in old or part[: len(at) - 1] != at[:-1]
                    if other and part[len(at) - 1] >= iteration:
                        return True
        return False


def inside(at: Coordinate) -> str:
    """The outer iterations of a nested loop, for a message."""
    return f" of iteration {at[:-1]} around it" if len(at) > 1 else ""


def _from_outside(
    subgraph: Subgraph, view_of: Callable[[Arranged], ArrangementView]
) -> list[ArrangementView]:
    """The collections that a loop reads from outside."""
    sources = dict.fromkeys(
        source for node in subgraph.items if isinstance(node, Reader)
        for source in node.arranged if source not in subgraph.loop
    )
    return [view_of(source) for source in sources]


def _buckets(view: ArrangementView) -> list[int]:
    return sorted({*view.old, *view.new, *view.both, *view.earlier})


def _shown(node: Variable, updates: UpdateChunk) -> str:
    """The first updates, for a message."""
    few = updates.between(0, min(len(updates), SHOWN))
    # At most SHOWN rows.
    rows = list(zip(*(c.to_pylist() for c in node.schema.layout().decode(few))))
    return ", ".join(
        f"{row!r} at time {node.time_type.decode(int(moment))!r} ({diff:+d})"
        for row, moment, diff in zip(rows, few.times(), few.diffs())
    )
