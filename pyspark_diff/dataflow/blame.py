"""What a step fails on: found by trying it on fewer of the updates that it was to process.

    an update is blamed  ⟺  with the updates before it a step succeeds, with it as well it fails

Updates are taken in order of time. A trial is a step whose state is thrown away. There are only so
many trials, so of many updates a few are found, or a range that they lie in.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_diff.engine.context import StepContext
from pyspark_diff.engine.pending import last_told_apart
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

#: No more trials than this, no more after so many seconds, and none with more updates than this.
TRIALS, SECONDS, ROWS = 24, 30.0, 100_000
#: So many updates are named.
NAMED = 3
#: A message shows so many characters of a record.
SHOWN_CHARACTERS = 1000

#: What Spark says where a task's process ended: a trial on the driver might end this one.
ENDED = ("exited unexpectedly", "ExecutorLostFailure", "executor loss", "OutOfMemoryError")

Given = Mapping[Node, tuple[Arrival, ...]]


class Watched:
    """A function that is told of iterations, and whether it is what has raised."""

    def __init__(self, watch: Watch):
        self._watch = watch
        self.raised = False

    def __call__(self, report: IterationReport) -> None:
        self.raised = True
        self._watch(report)
        self.raised = False


class Blame:
    """Tells what a step has failed on, with the updates that are to blame.

    Parameters
    ----------
    failed : StepContext
        That of the step.
    names : mapping of Node to str
        The names of inputs that are fed; of others nothing can be dropped.
    time_type : TimeType
    trial : callable
        Makes the context of a trial that begins with a state.
    """

    def __init__(
        self, failed: StepContext, names: Mapping[Node, str], time_type: TimeType,
        trial: Callable[[State], StepContext],
    ):
        self._failed = failed
        self._names, self._time_type = names, time_type
        self._trial = trial

    def error(self, error: Exception, arrivals: Given, again: bool) -> DiffError:
        """The error to be raised.

        Parameters
        ----------
        error : Exception
            What the step has raised.
        arrivals : mapping of Node to tuple of Arrival
            What the step was given.
        again : bool
            Whether it was to process updates again: they are among those that it was given.
        """
        doing, program = self._failed.doing, self._failed.graph.program
        old = self._failed.state
        # Of all inputs: where one is taken back it has another frontier to go on from.
        # And of none that a function of the step has added.
        upper = {n: old.frontiers[n] for n in self._names if n in old.frontiers}
        upper.update(self._failed.upper)
        tried = not any(told in str(error) for told in ENDED)
        found = self._blamed(old, arrivals, upper, tried)
        drop = "discard(waiting=True)" if again else "discard()"
        late = found is None and self._failed.settings.open
        if late:
            found = "updates that earlier steps took in, at times that are complete only now"
        elif found is None:
            found = "updates that earlier steps took in and that waited for another input"
            base = self._trial(old)
            try:
                if any(old.recent.values()):
                    before = rewound(old, frozenset(self._names), base.cut)
                    waited = self._blamed(before, arrivals, upper)
                    if waited is not None:
                        found = f"{waited}; it was taken in earlier, and waited for another input"
                        drop = "discard(waiting=True)"
            finally:
                storage.remove_directories(base.directories)
        if not tried:
            found += " (which of them was not looked for, as a task's process ended on them)"
        where = ""
        if isinstance(doing, Subgraph):
            where = " in a loop"
        elif doing is not None:
            where = f" at {program.name(doing)}"
        kind, told = "StepError", f"{type(error).__name__}: {str(error).strip()}"
        if isinstance(error, DiffError):
            kind, told = to_payload(error)
        advice = (
            f"{self._correction(doing)}If it fails for ever, {drop} of the input or of the "
            "dataflow drops what entered, and returns it to be mended; that of the input takes a "
            "condition"
        ) if not late else (
            "What was taken in where times are structs cannot be dropped: open the store again, "
            "and feed what makes up for it before inputs go on, as they are where they were in the "
            "last commit; without a store, give all to a new dataflow"
        )
        return from_payload(
            kind,
            f"{told}\nThe step failed{where} on {found}. It changed nothing and can be run again. "
            + advice,
        )

    def _correction(self, doing: Node | Subgraph | None) -> str:
        """The advice to feed a correction; empty if each time stays readable."""
        nodes = {doing} if not isinstance(doing, Subgraph) else set(doing.nodes())
        for part in self._failed.parts:
            if doing is None or not nodes.isdisjoint(part.nodes):
                if last_told_apart(self._failed, part) is None:
                    return ""
        return "Feed the correction, such as the removal of a wrong row, and step again. "

    def _blamed(
        self, before: State, arrivals: Given, upper: Mapping[Node, Antichain], tried: bool = True
    ) -> str | None:
        """Who is to blame, where a step begins with a state; without a trial, all of them."""
        others = {node: new for node, new in arrivals.items() if node not in self._names}
        waiting = {n: rest for n, rest in before.waiting.items() if n not in self._names}

        def fails(given: Given) -> type[Exception] | None:
            trial = self._trial(replace(before, waiting=waiting))
            try:
                with interruptible():
                    Step(trial).process({**others, **given}, upper)
            except StepCancelledError:
                raise
            except Exception as found:
                return type(found)
            finally:
                storage.remove_directories(trial.directories)
            return None

        given = {n: (*before.waiting.get(n, ()), *arrivals.get(n, ())) for n in self._names}
        return Suspects(given, self._names, self._time_type).told(fails if tried else None)


class Suspects:
    """The updates that a step was to process, in order of time; a frame counts as one.

    Parameters
    ----------
    given : mapping of Node to tuple of Arrival
    names : mapping of Node to str
        The inputs' names.
    time_type : TimeType
    """

    def __init__(self, given: Given, names: Mapping[Node, str], time_type: TimeType):
        self._names, self._time_type = names, time_type
        self._arrivals = [(node, _at_hand(arrival)) for node in given for arrival in given[node]]
        places, rows, times = [], [], []
        for place, (_, arrival) in enumerate(self._arrivals):
            # Also what lies beyond the frontier: an expression sees it before it is left out.
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

    def told(self, fails: Callable[[Given], type[Exception] | None] | None) -> str | None:
        """Who is to blame, in words; None if it is none of them.

        Parameters
        ----------
        fails : callable, optional
            Tries a step on some of the updates, and gives the class of what it raised. Without it
            all are to blame.
        """
        whole = np.arange(self._times.size)
        if not whole.size:
            return None
        if fails is None or whole.size > ROWS:
            return self._range(whole)
        error = fails(self._some(whole))
        if error is None:
            return f"{self._range(whole)}; it did not fail when it was tried again"
        if fails(self._some(whole[:0])) is error:
            return None
        found: list[int] = []
        left, low, began = whole, 0, time.perf_counter()
        high: int | None = left.size
        for _ in range(TRIALS):
            if time.perf_counter() - began > SECONDS:
                break
            if high is None:
                # Whether there is more to find, without what was found.
                if len(found) == NAMED or fails(self._some(left)) is not error:
                    break
                high = left.size
            elif high - low > 1:
                middle = (low + high) // 2
                if fails(self._some(left[:middle])) is error:
                    high = middle
                else:
                    low = middle
            if high - low == 1:
                found.append(int(left[low]))
                left, high = np.delete(left, low), None
        if not found:
            return f"some of {self._range(left[low:high])}"
        return "; ".join(map(self._update, found))

    def _some(self, chosen: npt.NDArray[np.int64]) -> Given:
        """These updates as arrivals."""
        given: dict[Node, tuple[Arrival, ...]] = {}
        for place in np.unique(self._places[chosen]).tolist():
            node, arrival = self._arrivals[place]
            source = arrival.source
            if source.table is not None:
                rows = np.sort(self._rows[chosen][self._places[chosen] == place])
                source = replace(source, table=source.table.take(pa.array(rows)), rows=rows.size)
            given[node] = (*given.get(node, ()), replace(arrival, source=source))
        return given

    def _update(self, one: int) -> str:
        """One of the `NAMED` updates of a message: its row becomes Python's own."""
        node, arrival = self._arrivals[self._places[one]]
        name, when = self._names[node], self._time_type.decode(int(self._times[one]))
        table = arrival.source.table
        if table is None:
            return f"input {name!r} at time {when!r}: a Spark frame"
        row = table.slice(int(self._rows[one]), 1).to_pylist()[0]
        diff = row.pop(DIFF)
        del row[TIME]
        if isinstance(node, ChangesInput):
            kind = KINDS[row[node.change]]
            names = node.key if kind == "delete" else () if kind == "clear" else node.record.names
            told = tuple(row[name] for name in names)
            return f"input {name!r} at time {when!r}: {kind} {_short(told)}"
        values = tuple(row.values())
        if isinstance(arrival.last, tuple):  # the last columns are the other fields of its time
            count = len(values) + 1 - len(arrival.last)
            values, when = values[:count], (when, *values[count:])
        return f"input {name!r} at time {when!r}: {_short(values)} with diff {diff}"

    def _range(self, some: Sequence[int] | npt.NDArray[np.int64]) -> str:
        told = []
        places, times = self._places[some], self._times[some]
        for node, name in self._names.items():
            of = [place for place, (owner, _) in enumerate(self._arrivals) if owner is node]
            inside = times[np.isin(places, of)]
            if inside.size:
                first, last = map(self._time_type.decode, (int(inside.min()), int(inside.max())))
                when = f"time {first!r}" if first == last else f"times {first!r} to {last!r}"
                told.append(f"input {name!r} at {when}: {inside.size} updates or frames")
        return "; ".join(told)


def _at_hand(arrival: Arrival) -> Arrival:
    """An arrival with its updates on the driver, if they are in files and not too many."""
    source = arrival.source
    if not source.paths or source.rows is None or source.rows > ROWS:
        return arrival
    table = pa.concat_tables(map(storage.read_table, source.paths))
    return replace(arrival, source=UpdateRows(source.schema, table=table, rows=table.num_rows))


def _short(record: tuple[object, ...]) -> str:
    """A record as a message shows it, without the end of one that is long."""
    text = repr(record)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
