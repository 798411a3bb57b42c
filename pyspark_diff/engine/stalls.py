"""Loops that never come to rest, and what is said of them.

A loop is refused where its collections are again what they were (`engine/oscillation.py`); where
it takes more iterations than there are keys and its program says that this tells
(`LoopScope.endless`), of sums of doubles if they fall by more than rounding explains
(`engine/descent.py`); and where something still goes round after the most iterations.
"""

from __future__ import annotations

from typing import Callable, Sequence

import numpy as np
import pyarrow as pa

from pyspark_diff.engine.context import StepContext
from pyspark_diff.engine.descent import Descent, largest_of
from pyspark_diff.engine.oscillation import WATCHED, Oscillation, consolidated
from pyspark_diff.engine.subgraph import Subgraph, arranged_in
from pyspark_diff.errors import StalledError
from pyspark_diff.kernels.consolidate import consolidate
from pyspark_diff.kernels.coordinates import unpack
from pyspark_diff.kernels.key_ranges import keys_at_least
from pyspark_diff.kernels.updates import Updates, concat, empty, spread
from pyspark_diff.operators.loop import Variable
from pyspark_diff.operators.node import Arranged, LoopScope, Reader
from pyspark_diff.runners.view import View, opened
from pyspark_diff.times import Coordinate
from pyspark_diff.trace import storage

#: How many of the rows that still change are shown when a loop does not come to rest.
SHOWN = 5
#: What a loop that does not come to rest may need.
_ADVICE = (
    "If it would with more of them, give a larger max_iterations; to take what it has reached by "
    "then, on_limit=\"return\"; else its body makes new records in each iteration, or brings old "
    "ones back"
)


class Stalls:
    """Looks whether the loops of a step come to rest. It holds state, of each loop that runs.

    Parameters
    ----------
    step : StepContext
    """

    def __init__(self, step: StepContext):
        self._step = step
        #: What swings, and what falls.
        self._swings: dict[LoopScope, Oscillation] = {}
        self._falls: dict[LoopScope, Descent] = {}
        #: What goes round after the iteration that is processed: None where that is not all on the
        #: driver.
        self._goes: dict[LoopScope, list[tuple[Variable, pa.Table]] | None] = {}
        #: How many keys there are in what the loop reads from outside.
        self._keys: dict[LoopScope, int] = {}
        #: The last iteration in which something enters.
        self._entered: dict[LoopScope, int] = {}

    def forget(self, loop: LoopScope) -> None:
        """A loop has come to rest."""
        for held in (self._swings, self._falls, self._goes, self._keys, self._entered):
            held.pop(loop, None)  # type: ignore[attr-defined]

    def enters(self, loop: LoopScope, iteration: int) -> None:
        """Something enters a loop that runs, in an iteration that is still to come."""
        self._entered[loop] = max(iteration, self._entered.get(loop, 0))

    def watched(self, loop: LoopScope, iteration: int) -> bool:
        """Whether it is looked at what goes round after an iteration."""
        return not loop.stops and iteration >= max(WATCHED, self._entered.get(loop, 0) + 1)

    def began(self, loop: LoopScope) -> None:
        """An iteration's results are about to go round."""
        self._goes[loop] = []

    def goes(self, node: Variable, table: pa.Table | None) -> None:
        """What goes round of a variable, as update rows; None where they are not on the driver."""
        held = self._goes[node.loop]
        if table is None:
            self._goes[node.loop] = None
        elif held is not None:
            held.append((node, table))

    def check(
        self, subgraph: Subgraph, at: Coordinate, view_of: Callable[[Arranged], View]
    ) -> None:
        """Look at what goes round after an iteration.

        Parameters
        ----------
        subgraph : Subgraph
            The loop.
        at : Coordinate
            The iteration.
        view_of : callable
            From an arrangement to what it holds now. It is not kept: what runs the loop holds
            this, and a cycle of the two would hold the step's state until Python looks for cycles.

        Raises
        ------
        StalledError
            If the loop never comes to rest.
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
                        f"{loop.name} never comes to rest: in iteration {at[-1]}{inside(at)} "
                        f"{len(updates)} updates still go round, such as {_shown(node, updates)}, "
                        f"though what it goes along has {self._keys[loop]} keys. {loop.endless}"
                    )
        found = self._swings.setdefault(loop, Oscillation()).takes(went)
        if found is None or self._older_beyond(subgraph, at, at[-1] - 2 * found[0]):
            return
        period, node, updates = found
        raise StalledError(
            f"{loop.name} never comes to rest: every {period} iterations, here at {at[-1]}"
            f"{inside(at)}, its collections are again what they were, and {len(updates)} updates "
            f"go round, such as {_shown(node, updates)}. Its body brings old records back: keep "
            "those that were there (start.union(...).distinct()), or give max_iterations and "
            "on_limit=\"return\" to take what it has reached by then"
        )

    def refuse(self, node: Variable, left: Sequence[pa.Table], at: Coordinate) -> None:
        """Refuse a loop that should have come to rest, if something is left that goes round.

        Raises
        ------
        StalledError
        """
        updates = consolidated(node.schema, pa.concat_tables(left)) if left else empty()
        if not len(updates):
            return
        raise StalledError(
            f"{node.loop.name} has not come to rest after {node.loop.max_iterations} iterations"
            f"{inside(at)}: {len(updates)} updates still go round, such as "
            f"{_shown(node, updates)}. {node.loop.advice or _ADVICE}"
        )

    def _is_endless(
        self, subgraph: Subgraph, at: Coordinate, node: Variable, updates: Updates,
        view_of: Callable[[Arranged], View],
    ) -> bool:
        """Whether a loop that takes more iterations than there are keys never comes to rest."""
        loop = subgraph.loop
        if not loop.falls:
            return True
        if len(at) > 1:
            return False  # what goes round there is a difference to other iterations too
        if loop not in self._falls:
            columns = (
                view.layout.column(part, position, None)
                for view in _from_outside(subgraph, view_of)
                for position, kind in enumerate(view.layout.all_types)
                if pa.types.is_floating(kind)
                for bucket in _buckets(view) for part in opened(view.of(bucket))
            )
            self._falls[loop] = Descent(loop.falls, largest_of(columns), at[-1])
        falls = self._falls[loop]
        return falls.takes(at[-1], node.schema, updates) and not self._older_beyond(
            subgraph, at, falls.since
        )

    def _keys_of(self, subgraph: Subgraph, view_of: Callable[[Arranged], View]) -> int:
        """How many keys there are, at any time, in what a loop reads from outside: the iterations
        that it has at most are as good where there are more, and then few rows are looked at."""
        loop = subgraph.loop
        if loop not in self._keys:
            buckets = [
                opened(view.of(bucket)) for view in _from_outside(subgraph, view_of)
                for bucket in _buckets(view)
            ]
            most = found = loop.max_iterations
            fewest = (max((keys_at_least(p.key64, most) for p in b), default=0) for b in buckets)
            if sum(fewest) < most:
                keys = ([Updates(p.key64, p.columns, 0, 1) for p in held] for held in buckets)
                found = sum(len(consolidate(concat(parts)).updates) for parts in keys)
            self._keys[loop] = found
        return self._keys[loop]

    def _older_beyond(self, subgraph: Subgraph, at: Coordinate, iteration: int) -> bool:
        """Whether updates of other runs of the loop, or of earlier steps, are that late in it.

        What goes round is the difference to these, so that it may come back though the
        collections do not.
        """
        before = self._step.state.traces
        for node in arranged_in(subgraph):
            old = set(before[node].paths()) if node in before else set()
            for path in self._step.traces[node].paths() if node in self._step.traces else ():
                updates = storage.open_updates(path)
                codes = np.unique(spread(updates.coordinate, len(updates)))
                for code in codes.tolist():  # few: the iterations that something is at
                    part = unpack(code, node.depth)
                    other = path in old or part[: len(at) - 1] != at[:-1]
                    if other and part[len(at) - 1] >= iteration:
                        return True
        return False


def inside(at: Coordinate) -> str:
    """Where a loop runs that is in others."""
    return f" of iteration {at[:-1]} around it" if len(at) > 1 else ""


def _from_outside(subgraph: Subgraph, view_of: Callable[[Arranged], View]) -> list[View]:
    """What a loop reads from outside."""
    sources = dict.fromkeys(
        source for node in subgraph.items if isinstance(node, Reader)
        for source in node.arranged if source not in subgraph.loop
    )
    return [view_of(source) for source in sources]


def _buckets(view: View) -> list[int]:
    return sorted({*view.old, *view.new, *view.both, *view.earlier})


def _shown(node: Variable, updates: Updates) -> str:
    """A handful of updates, for a message."""
    few = updates.between(0, min(len(updates), SHOWN))
    # SHOWN of them at most.
    rows = list(zip(*(c.to_pylist() for c in node.schema.layout().decode(few))))
    return ", ".join(
        f"{row!r} at time {node.time_type.decode(int(moment))!r} ({diff:+d})"
        for row, moment, diff in zip(rows, few.times(), few.diffs())
    )
