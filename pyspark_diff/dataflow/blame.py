"""Blame: the updates that make a step fail. Trials of the step on fewer updates find them.

    an update is blamed  ⟺  with the updates before it a step succeeds, with it as well it fails

A trial takes updates in order of time, and its state is thrown away. The number of trials is
limited, so a message names a few of many updates, or a range of times that contains them.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_diff import thresholds
from pyspark_diff.engine.context import StepContext
from pyspark_diff.engine.pending import last_distinct_time
from pyspark_diff.engine.rewind import rewound
from pyspark_diff.engine.state import Arrival, IterationReport, State, Watch
from pyspark_diff.engine.step import Step
from pyspark_diff.engine.subgraph import Subgraph
from pyspark_diff.errors import DiffError, StepCancelledError, from_payload, to_payload
from pyspark_diff.kernels.jit import interruptible
from pyspark_diff.kernels.layout import as_int64
from pyspark_diff.operators.node import Node
from pyspark_diff.operators.upsert import KINDS, ChangesInput
from pyspark_diff.runners.feed import UpdateRows
from pyspark_diff.spark.schema import DIFF, TIME, TimeType
from pyspark_diff.times import Antichain
from pyspark_diff.trace import storage

#: The greatest number of updates that a message names.
NAMED = 3
#: The greatest number of characters of a record in a message.
SHOWN_CHARACTERS = 1000

#: Spark's words for the end of a task's process. A trial on the driver might end the driver.
ENDED = ("exited unexpectedly", "ExecutorLostFailure", "executor loss", "OutOfMemoryError")

Arrivals = Mapping[Node, tuple[Arrival, ...]]


class Watched:
    """A function that receives iteration reports, and whether it raised the last error."""

    def __init__(self, watch: Watch):
        self._watch = watch
        self.raised = False

    def __call__(self, report: IterationReport) -> None:
        self.raised = True
        self._watch(report)
        self.raised = False


class Blame:
    """Writes the error of a failed step, with the updates that are to blame.

    Parameters
    ----------
    failed : StepContext
        The context of the failed step.
    names : mapping of Node to str
        The names of inputs that sessions feed; no update of another input can be dropped.
    trial : callable
        Returns the context of a trial that begins with a state.
    """

    def __init__(
        self, failed: StepContext, names: Mapping[Node, str], time_type: TimeType,
        trial: Callable[[State], StepContext],
    ):
        self._failed = failed
        self._names, self._time_type = names, time_type
        self._trial = trial

    def error(self, error: Exception, arrivals: Arrivals, again: bool) -> DiffError:
        """The error to be raised.

        Parameters
        ----------
        error : Exception
            The error that the step raised.
        arrivals : mapping of Node to tuple of Arrival
            The arrivals that the step was to process.
        again : bool
            Whether some of the arrivals were processed before and taken back.
        """
        doing, program = self._failed.doing, self._failed.graph.program
        old = self._failed.state
        # All inputs: one that is taken back continues from another frontier.
        # No input that a function of the step has added.
        upper = {n: old.frontiers[n] for n in self._names if n in old.frontiers}
        upper.update(self._failed.upper)
        tried = not any(text in str(error) for text in ENDED)
        suspects = self._blamed(old, arrivals, upper, tried)
        drop = "discard(waiting=True)" if again else "discard()"
        late = suspects is None and self._failed.settings.open
        if late:
            suspects = "updates that earlier steps took in, at times that are complete only now"
        elif suspects is None:
            suspects = "updates that earlier steps took in and that waited for another input"
            base = self._trial(old)
            try:
                if any(old.recent.values()):
                    before = rewound(old, frozenset(self._names), base.cut)
                    waited = self._blamed(before, arrivals, upper)
                    if waited is not None:
                        suspects = (
                            f"{waited}; an earlier step took it in, and it waited for another input"
                        )
                        drop = "discard(waiting=True)"
            finally:
                storage.remove_directories(base.directories)
        if not tried:
            suspects += " (no trial looked for the exact one, as a task's process ended)"
        where = ""
        if isinstance(doing, Subgraph):
            where = " in a loop"
        elif doing is not None:
            where = f" at {program.name(doing)}"
        kind, text = "StepError", f"{type(error).__name__}: {str(error).strip()}"
        if isinstance(error, DiffError):
            kind, text = to_payload(error)
        advice = (
            f"{self._correction(doing)}If it fails for ever, {drop} of the input or of the "
            "dataflow drops and returns the updates that entered; the input's takes a condition"
        ) if not late else (
            "Processed updates with struct times cannot be dropped. Open the store again, where "
            "inputs are at the last commit, and feed a correction before they advance; without a "
            "store, feed all updates to a new dataflow"
        )
        return from_payload(
            kind,
            f"{text}\nThe step failed{where} on {suspects}. It changed nothing and can be run "
            "again. " + advice,
        )

    def _correction(self, doing: Node | Subgraph | None) -> str:
        """The advice to feed a correction; empty if each time stays readable."""
        nodes = {doing} if not isinstance(doing, Subgraph) else set(doing.nodes())
        for part in self._failed.parts:
            if doing is None or not nodes.isdisjoint(part.nodes):
                if last_distinct_time(self._failed, part) is None:
                    return ""
        return "Feed the correction, such as the removal of a wrong row, and step again. "

    def _blamed(
        self, before: State, arrivals: Arrivals, upper: Mapping[Node, Antichain], tried: bool = True
    ) -> str | None:
        """The updates to blame if a step begins with a state; without trials, all updates."""
        others = {node: new for node, new in arrivals.items() if node not in self._names}
        waiting = {n: rest for n, rest in before.waiting.items() if n not in self._names}

        def fails(chosen: Arrivals) -> type[Exception] | None:
            trial = self._trial(replace(before, waiting=waiting))
            try:
                with interruptible():
                    Step(trial).process({**others, **chosen}, upper)
            except StepCancelledError:
                raise
            except Exception as error:
                return type(error)
            finally:
                storage.remove_directories(trial.directories)
            return None

        fed = {n: (*before.waiting.get(n, ()), *arrivals.get(n, ())) for n in self._names}
        return Suspects(fed, self._names, self._time_type).describe(fails if tried else None)


class Suspects:
    """The updates that a step was to process, in order of time; a frame counts as one.

    Parameters
    ----------
    arrivals : mapping of Node to tuple of Arrival
    names : mapping of Node to str
        The inputs' names.
    """

    def __init__(self, arrivals: Arrivals, names: Mapping[Node, str], time_type: TimeType):
        self._names, self._time_type = names, time_type
        self._arrivals = [
            (node, _on_driver(arrival)) for node in arrivals for arrival in arrivals[node]
        ]
        places, rows, times = [], [], []
        for place, (_, arrival) in enumerate(self._arrivals):
            # Updates beyond the frontier count too: an expression reads them before the step
            # leaves them out.
            table = arrival.source.table
            if table is None:
                last = arrival.last if isinstance(arrival.last, int) else arrival.last[0]
                at, row = np.array([last]), np.array([-1])
            else:
                at = as_int64(table[TIME].combine_chunks()).to_numpy()
                row = np.arange(at.size)
            inside = np.full(at.size, True)
            if table is not None:
                inside = arrival.inside(at)
            times.append(at[inside])
            rows.append(row[inside])
            places.append(np.full(rows[-1].size, place))
        none = np.empty(0, np.int64)
        self._times = np.concatenate([none, *times])
        order = np.argsort(self._times, kind="stable")
        self._times = self._times[order]
        self._rows = np.concatenate([none, *rows])[order]
        self._places = np.concatenate([none, *places])[order]

    def describe(self, fails: Callable[[Arrivals], type[Exception] | None] | None) -> str | None:
        """The updates to blame, in words; None if no update is.

        Parameters
        ----------
        fails : callable, optional
            Tries a step on some of the updates, and returns the class of its error. Without it
            all updates are to blame.
        """
        whole = np.arange(self._times.size)
        if not whole.size:
            return None
        if fails is None or whole.size > thresholds.current.blame_rows_max:
            return self._range(whole)
        error = fails(self._some(whole))
        if error is None:
            return f"{self._range(whole)}; it did not fail when it was tried again"
        if fails(self._some(whole[:0])) is error:
            return None
        blamed: list[int] = []
        left, low, began = whole, 0, time.perf_counter()
        high: int | None = left.size
        for _ in range(thresholds.current.blame_trials_max):
            if time.perf_counter() - began > thresholds.current.blame_seconds_max:
                break
            if high is None:
                # Whether the other updates fail without the blamed ones.
                if len(blamed) == NAMED or fails(self._some(left)) is not error:
                    break
                high = left.size
            elif high - low > 1:
                middle = (low + high) // 2
                if fails(self._some(left[:middle])) is error:
                    high = middle
                else:
                    low = middle
            if high - low == 1:
                blamed.append(int(left[low]))
                left, high = np.delete(left, low), None
        if not blamed:
            return f"some of {self._range(left[low:high])}"
        return "; ".join(map(self._update, blamed))

    def _some(self, chosen: npt.NDArray[np.int64]) -> Arrivals:
        arrivals: dict[Node, tuple[Arrival, ...]] = {}
        for place in np.unique(self._places[chosen]).tolist():
            node, arrival = self._arrivals[place]
            source = arrival.source
            if source.table is not None:
                rows = np.sort(self._rows[chosen][self._places[chosen] == place])
                source = replace(source, table=source.table.take(pa.array(rows)), rows=rows.size)
            arrivals[node] = (*arrivals.get(node, ()), replace(arrival, source=source))
        return arrivals

    def _update(self, index: int) -> str:
        """The text of an update in a message."""
        node, arrival = self._arrivals[self._places[index]]
        name, when = self._names[node], self._time_type.decode(int(self._times[index]))
        table = arrival.source.table
        if table is None:
            return f"input {name!r} at time {when!r}: a Spark frame"
        row = table.slice(int(self._rows[index]), 1).to_pylist()[0]
        diff = row.pop(DIFF)
        del row[TIME]
        if isinstance(node, ChangesInput):
            kind = KINDS[row[node.change]]
            names = node.key if kind == "delete" else () if kind == "clear" else node.record.names
            record = tuple(row[name] for name in names)
            return f"input {name!r} at time {when!r}: {kind} {_short(record)}"
        values = tuple(row.values())
        if isinstance(arrival.last, tuple):  # the last columns are the other fields of its time
            count = len(values) + 1 - len(arrival.last)
            values, when = values[:count], (when, *values[count:])
        return f"input {name!r} at time {when!r}: {_short(values)} with diff {diff}"

    def _range(self, some: Sequence[int] | npt.NDArray[np.int64]) -> str:
        ranges = []
        places, times = self._places[some], self._times[some]
        for node, name in self._names.items():
            own = [place for place, (owner, _) in enumerate(self._arrivals) if owner is node]
            inside = times[np.isin(places, own)]
            if inside.size:
                first, last = map(self._time_type.decode, (int(inside.min()), int(inside.max())))
                when = f"time {first!r}" if first == last else f"times {first!r} to {last!r}"
                ranges.append(f"input {name!r} at {when}: {inside.size} updates or frames")
        return "; ".join(ranges)


def _on_driver(arrival: Arrival) -> Arrival:
    """An arrival whose updates are on the driver, if they are at most `blame_rows_max`."""
    source = arrival.source
    if not source.paths or source.rows is None or source.rows > thresholds.current.blame_rows_max:
        return arrival
    table = pa.concat_tables(map(storage.read_table, source.paths))
    return replace(arrival, source=UpdateRows(source.schema, table=table, rows=table.num_rows))


def _short(record: tuple[object, ...]) -> str:
    """The text of a record, at most `SHOWN_CHARACTERS` long."""
    text = repr(record)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
