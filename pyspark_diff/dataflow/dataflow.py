"""Dataflows: a program over collections, its inputs, and the state that steps carry forward.

The law holds for every operator, every time ``t``, and every cut of the same updates into steps::

    output accumulated at t  =  batch operator applied to the input accumulated at t
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Callable, Mapping

from pyspark_diff.dataflow import staleness
from pyspark_diff.dataflow.durable import Store
from pyspark_diff.dataflow.feeding import FeedingMethods
from pyspark_diff.dataflow.hold import Hold
from pyspark_diff.dataflow.keyed_session import KeyedSession
from pyspark_diff.dataflow.probe import Probe
from pyspark_diff.dataflow.reporting import ReportingMethods
from pyspark_diff.dataflow.times import frontier_of
from pyspark_diff.dataflow.whole_history import whole_history
from pyspark_diff.engine.program import written
from pyspark_diff.engine.state import State
from pyspark_diff.errors import ConcurrentWriteError, StorageError
from pyspark_diff.kernels.jit import interruptible
from pyspark_diff.operators.node import Node
from pyspark_diff.times import Antichain, meet_all

if TYPE_CHECKING:
    from typing_extensions import Self

_logger = logging.getLogger("pyspark_diff")


class BaseDataflow(FeedingMethods, ReportingMethods):
    """The inputs, outputs and state of a program of nodes; it holds state.

    The public class is `pyspark_diff.Dataflow`, which returns frames for nodes and documents the
    parameters.
    """

    def close(self) -> None:
        """Remove all files of the dataflow, except the commits of a store. A second call does
        nothing.

        The call waits for steps in the background and for a step of another thread. If an exception
        ends a ``with`` block, steps in the background are cancelled.
        """
        if not self._lock._is_owned():  # type: ignore[attr-defined]
            self._running.wait()
        with self._lock:
            try:
                if self._open and self._store is not None:
                    self._leave(self._store)
            finally:
                self._open = False
                self._inputs.close()
                self._live.close()
                self._storage.close()
        self._running.close()

    def _leave(self, store: Store) -> None:
        """Commit that consumers have received all updates, so that the next process does not
        deliver them again."""
        self._state = store.committed(self._state)
        if store.owes_nothing(self._state):
            try:
                self._lasting(replace(self._state, outbox=()))
            except (StorageError, ConcurrentWriteError):
                _logger.warning("consumers will be given the last step again", exc_info=True)

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is not None:
                self._running.cancel()
        finally:
            self.close()

    def _write(self, program: Callable[[Self], object]) -> None:
        """Run the function that builds the program."""
        self._writing = True
        try:
            program(self)
        finally:
            self._writing = False

    def _go_on(self, state: State, numbers: Mapping[str, int]) -> None:
        """Continue from a state of another process, with the next numbers of keyed inputs."""
        self._state = replace(state, frontiers=self._inputs.go_on(state, numbers))
        self._shown, self._growth = self._state, None
        self._sources.go_on(self._state.offsets, self._inputs.names().values())
        self._owes = not self._state.handed_over

    def _probe(self, node: Node) -> Probe:
        self._check_open()
        begins = self._inputs.begins
        fed = [n for n in written([node]).nodes if n in begins]

        def read() -> Antichain:
            state, growth = self._complete(), self._growth
            if state.graph is not None:
                runs = state.graph.lowered.get(node)
                if runs is not None and runs in state.frontiers:
                    return state.frontiers[runs]
                if growth is not None and node in growth.graph.lowered:
                    return meet_all(begins[n] for n in fed)  # no step has run it
            return meet_all(state.frontiers.get(n, begins[n]) for n in fed)

        return Probe(self.time_type, read, self.times)

    def _kept_names(self) -> list[str]:
        with self._lock:
            self._check_open()
            return self._outputs.names()

    def _keeps(self, node: Node) -> bool:
        """Whether the program so far keeps a collection."""
        return node in self._outputs

    def _kept_frame(self, name: str) -> object:
        with self._lock:
            self._check_open()
            return self._outputs.named(name)

    def _check_fresh(self, node: Node) -> None:
        """Warn if a collection lacks updates that its inputs have."""
        with self._lock:
            reason = staleness.lag(self._inputs.upstream(node, self._state.graph), self._state)
        if reason:
            staleness.warn(f"this is the latest complete state, but {reason}")

    def _next_to_do(self, node: Node) -> str:
        """A sentence with the call that advances a collection."""
        if self._state.graph is not None and not self._outputs.has_run(node, self._state):
            return "It was added since the last step(): the next one fills it from what is kept"
        reason = staleness.lag(self._inputs.upstream(node, self._state.graph), self._state)
        return f"But {reason}" if reason else "Advance its inputs, and step"

    def _remedy_of_negatives(self, node: Node) -> str:
        """The remedy for records of a collection with a negative multiplicity, in words."""
        sessions = self._inputs.upstream(node, self._state.graph)
        names = [repr(s.name) for s in sessions if not isinstance(s, KeyedSession)]
        if not names:
            return "Correct the input"
        return (
            f"The removals came by input {', '.join(names)}; made with check=True, it refuses them "
            f"in their step. Insert the missing records, flow.session({names[0]}).insert(rows), "
            "and advance"
        )

    def _hold(self, node: Node, time: Any) -> Hold:
        start, at = Antichain([self.time_type.start]), None
        if self.times is not None:
            start = self._inputs.start()
        if time is not None:
            at = Antichain([self.time_type.encode(time)]) if self.times is None else frontier_of(
                time, self.times
            )
        with self._lock:
            return self._outputs.hold(node, self._arrangement(node), start, at, self.times)

    @interruptible()
    def _run_whole(self, node: Node) -> None:
        """Run the whole history of inputs that are frames, and keep ``node``."""
        self._keep(node)
        growth = self._build()
        self._advance(growth, *whole_history(growth.graph, self.time_type))
