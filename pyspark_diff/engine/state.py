"""The state of a dataflow between two steps, and the report of one step.

States are values: a step computes a new state, and the old state remains valid until then. The
new state contains everything, also how much of the inputs it has processed, and the updates that
consumers are to receive. So a commit only replaces the old state by the new one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Sequence, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_diff.engine.costs import Costs
from pyspark_diff.engine.graph import Graph
from pyspark_diff.engine.traces import Traces
from pyspark_diff.fallbacks import Fallbacks
from pyspark_diff.operators.inspect import Inspect
from pyspark_diff.operators.node import Node
from pyspark_diff.runners.feed import Feed, UpdateRows
from pyspark_diff.times import Antichain, Coordinate, Time
from pyspark_diff.trace.spine import Trace

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Arrival:
    """Update rows that arrived, and the greatest of their times.

    Parameters
    ----------
    last : int or tuple of int
        If times are structs, the least time that is greater than or equal to all of them.
    start : int or None
        Earlier steps released the rows before this time.
    until : int or None
        Rows from this time on are not part of it.
    """

    source: UpdateRows
    last: Time
    start: int | None = None
    until: int | None = None

    def inside(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """A mask of the rows that are part of it, by their times."""
        inside = np.full(times.size, True)
        if self.start is not None:
            inside &= times >= self.start
        if self.until is not None:
            inside &= times < self.until
        return inside


@dataclass(eq=False)
class Delivery:
    """The updates of one step for one consumer, until the consumer has received them.

    Parameters
    ----------
    tables : sequence of pyarrow.Table
    at : Coordinate
        The iterations, in a loop.
    epoch : int
        The number of the step.
    """

    node: Inspect
    tables: Sequence[pa.Table]
    at: Coordinate
    epoch: int
    #: The number of calls that have returned, and whether all calls have.
    calls_done: int = 0
    done: bool = False

    def give(self, time: str, diff: str) -> None:
        """Make the remaining calls; a call that raised an error is repeated."""
        calls = self.node.calls(self.tables, time, diff, self.at)
        for arguments in islice(calls, self.calls_done, None):
            self.node.show(*arguments)
            self.calls_done += 1
        self.done = True
        self.tables = ()


@dataclass(frozen=True)
class Shown:
    """Updates that a consumer received at times that are not complete everywhere."""

    node: Inspect
    at: Coordinate
    table: pa.Table


@dataclass(eq=False)
class SinkChanges:
    """The changes of a collection that one sink receives together.

    Parameters
    ----------
    node : Node
        The arrangement with the changes.
    epoch : int
        The number of the step.
    lower : Antichain or None
        The first frontier of the changes; None for the whole collection.
    upper : Antichain
        The last frontier of the changes.
    done : bool
        Whether the sink has received them.
    """

    node: Node
    epoch: int
    lower: Antichain | None
    upper: Antichain
    done: bool = False


@dataclass(frozen=True)
class State:
    """The state of a dataflow between two steps.

    Parameters
    ----------
    frontiers : mapping of Node to Antichain
        The frontier up to which each node is processed.
    traces : mapping of Node to Trace
        Arrangements of keyed nodes.
    pending : mapping of Node to tuple of Feed
        Updates that reached a keyed node before its frontier could pass them.
    waiting : mapping of Node to tuple of Arrival
        Flushed updates of inputs that are not released completely.
    arrival_counts : mapping of Node to int
        The number of arrivals of each input since the beginning.
    outbox : tuple of Delivery
        Deliveries to consumers, in order. Finished deliveries have no meaning.
    epoch : int
        The number of steps before this state.
    report : Report
        The report of the last step.
    fed : frozenset of Node
        Inputs with processed updates.
    graph : Graph or None
        The graph of the last step; None before the first step.
    floors : mapping of Node to Antichain
        The frontier from which on the updates of each input can be rolled back: see
        `pyspark_diff.engine.rewind`.
    recent : mapping of Node to tuple of Arrival
        Released arrivals that wait at some operator for another input.
    lagging : mapping of Node to Antichain, or None
        The floor of each node that is connected to inputs at different frontiers; None if it is
        not known.
    shown : tuple of Shown
        Outputs of recent arrivals that consumers have received.
    rewinds : frozenset of Node
        Inputs with discarded updates, which the next step rolls back.
    offsets : mapping of str to object
        The position of each source, by the name of its input.
    given_to : mapping of str to SinkChanges
        The last or next changes of each sink, by its name.
    """

    frontiers: Mapping[Node, Antichain]
    traces: Mapping[Node, Trace]
    pending: Mapping[Node, tuple[Feed, ...]]
    waiting: Mapping[Node, tuple[Arrival, ...]]
    arrival_counts: Mapping[Node, int] = field(default_factory=dict)
    outbox: tuple[Delivery, ...] = ()
    epoch: int = 0
    report: Report = field(default_factory=lambda: Report())
    fed: frozenset[Node] = frozenset()
    graph: Graph | None = None
    floors: Mapping[Node, Antichain] = field(default_factory=dict)
    recent: Mapping[Node, tuple[Arrival, ...]] = field(default_factory=dict)
    shown: tuple[Shown, ...] = ()
    rewinds: frozenset[Node] = frozenset()
    offsets: Mapping[str, Any] = field(default_factory=dict)
    given_to: Mapping[str, SinkChanges] = field(default_factory=dict)
    lagging: Mapping[Node, Antichain] | None = None

    def paths(
        self, nodes: Iterable[Node] | None = None, other: State | None = None
    ) -> set[str]:
        """Files that the state needs, or that some nodes need.

        With another state, the files of batches that both states have at a node are left out.
        """

        def chosen(values: Mapping[Node, _Value]) -> Iterable[_Value]:
            return values.values() if nodes is None else [values[n] for n in nodes if n in values]

        paths: set[str] = set()
        if other is None:
            for trace in chosen(self._traces):
                paths.update(*[batch.paths for batch in trace.batches])
        else:
            others = other._traces
            for node in self._traces if nodes is None else nodes:
                ours, theirs = self._traces.get(node), others.get(node)
                known = () if theirs is None else set(map(id, theirs.batches))
                for batch in () if ours is None else ours.batches:
                    if id(batch) not in known:
                        paths.update(batch.paths)
        for feeds in chosen(self.pending):
            paths.update(path for feed in feeds for path in feed.source.paths)
        for arrivals in (*chosen(self.waiting), *chosen(self.recent)):
            paths.update(path for arrival in arrivals for path in arrival.source.paths)
        return paths

    @property
    def _traces(self) -> Mapping[Node, Trace]:
        """The traces by node; moving a trace forward changes none of its files."""
        return self.traces.stored if isinstance(self.traces, Traces) else self.traces

    @property
    def handed_over(self) -> bool:
        """Whether consumers and sinks have received everything."""
        return all(delivery.done for delivery in self.outbox) and all(
            changes.done for changes in self.given_to.values()
        )


class IterationReport(NamedTuple):
    """One iteration of a loop in a step: its coordinate, its feedback updates, and its seconds."""

    loop: str
    iteration: Coordinate
    changes: int
    seconds: float


#: Receives a report after each iteration.
Watch = Callable[[IterationReport], object]


@dataclass
class Report:
    """The work of a step.

    Parameters
    ----------
    rows_in : int
        Update rows that reached keyed operators.
    rows_read : int
        Rows of older batches that operators read for these.
    rows_out : int
        Update rows that keyed operators emitted.
    rows_merged : int
        Rows of batches that were merged.
    spark_runs, local_runs : int
        Numbers of operators that ran as Spark jobs, and on the driver.
    seconds : float
        Wall time.
    iterations : list of IterationReport
        The iterations of loops, in the order in which they ran.
    fallbacks : Counter of Fallback
        The number of times that a fast path fell back to a slower one, by operator, path and
        reason: in the step, and in the reads and feeds before it.
    costs : Costs
        The same by operator. If a loop began on numbers and fell back, both runs count.
    """

    rows_in: int = 0
    rows_read: int = 0
    rows_out: int = 0
    rows_merged: int = 0
    spark_runs: int = 0
    local_runs: int = 0
    seconds: float = 0.0
    iterations: list[IterationReport] = field(default_factory=list)
    fallbacks: Fallbacks = field(default_factory=Fallbacks)
    costs: Costs = field(default_factory=Costs, repr=False)


@dataclass(frozen=True)
class StepSettings:
    """The parameters of steps.

    Parameters
    ----------
    buckets : int
        Number of buckets of every arrangement.
    runner : str
        ``"auto"``, ``"spark"`` or ``"local"``.
    local_rows : int
        Under ``"auto"``, operators with at most this many update rows run on the driver.
    piece_rows : int
        The number of rows that an operator keeps in memory, in a task or on the driver.
    keep_history : bool
        Whether arrangements that are read keep all times, or only the latest complete one.
    holds : mapping of Node to Antichain
        Arrangements with a read hold on their history, and the frontier of the hold.
    lasting : bool
        Whether a state must outlive the process, so that it may contain no lazy rows.
    open : bool
        Whether times are structs, and frontiers antichains of structs. Updates may then still
        arrive at first fields that earlier steps have processed.
    user_holds : mapping of Node to Antichain
        The holds that belong to users.
    """

    buckets: int
    runner: str
    local_rows: int
    piece_rows: int
    keep_history: bool
    holds: Mapping[Node, Antichain] = field(default_factory=dict)
    lasting: bool = False
    open: bool = False
    user_holds: Mapping[Node, Antichain] = field(default_factory=dict)

    def few(self, rows: float) -> bool:
        """Whether the driver processes this number of rows."""
        return self.runner == "local" or (self.runner == "auto" and rows <= self.local_rows)
