"""What a dataflow knows between two steps, and what one step reports.

States are values: a step makes a new one, and until it has, the old one stands. To put the new one
in the place of the old is all there is to a commit, since everything that belongs to it is in it:
also how much of the inputs it has taken in, and what is to be shown of it.
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

_Held = TypeVar("_Held")


@dataclass(frozen=True)
class Arrival:
    """Update rows that entered, and the greatest time in them.

    Parameters
    ----------
    source : UpdateRows
    last : int or tuple of int
        Where times are structs, the least one that is no earlier than any of them.
    taken : int or None
        Rows before this time were released already.
    until : int or None
        Rows from this time on are not part of it.
    """

    source: UpdateRows
    last: Time
    taken: int | None = None
    until: int | None = None

    def inside(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which rows at some times are part of it."""
        found = np.full(times.size, True)
        if self.taken is not None:
            found &= times >= self.taken
        if self.until is not None:
            found &= times < self.until
        return found


@dataclass(eq=False)
class Delivery:
    """The updates of one step for one consumer, until it has been given them.

    Parameters
    ----------
    node : Inspect
    tables : sequence of pyarrow.Table
    at : Coordinate
        In a loop the iteration.
    epoch : int
        The number of the step.
    """

    node: Inspect
    tables: Sequence[pa.Table]
    at: Coordinate
    epoch: int
    #: Calls that have returned, and whether all have.
    given: int = 0
    done: bool = False

    def give(self, time: str, diff: str) -> None:
        """Make the calls that have not been made; one that raised is made again."""
        calls = self.node.calls(self.tables, time, diff, self.at)
        for arguments in islice(calls, self.given, None):
            self.node.show(*arguments)
            self.given += 1
        self.done = True
        self.tables = ()


@dataclass(frozen=True)
class Shown:
    """Updates that a consumer has been given at times that are not complete everywhere.

    Parameters
    ----------
    node : Inspect
    at : Coordinate
    table : pyarrow.Table
    """

    node: Inspect
    at: Coordinate
    table: pa.Table


@dataclass(eq=False)
class SinkChanges:
    """The changes of a collection that one sink is given together.

    Parameters
    ----------
    node : Node
        The arrangement that holds them.
    epoch : int
        The number of the step.
    lower : Antichain or None
        Where they begin; None if with the collection.
    upper : Antichain
        Up to where they go.
    done : bool
        Whether the sink has them.
    """

    node: Node
    epoch: int
    lower: Antichain | None
    upper: Antichain
    done: bool = False


@dataclass(frozen=True)
class State:
    """Everything a dataflow knows between two steps.

    Parameters
    ----------
    frontiers : mapping of Node to Antichain
        Up to where each node is processed.
    traces : mapping of Node to Trace
        Arrangements of keyed nodes.
    pending : mapping of Node to tuple of Feed
        Updates that reached a keyed node before its frontier may pass them.
    waiting : mapping of Node to tuple of Arrival
        Flushed updates of inputs that are not released completely.
    taken : mapping of Node to int
        How many arrivals of each input have been taken in since the beginning.
    outbox : tuple of Delivery
        What consumers are to be given, in order. Those that are done have no meaning.
    epoch : int
        How many steps led here.
    report : Report
        What the last of them did.
    given : frozenset of Node
        Inputs of which updates have been processed.
    graph : Graph or None
        What the last step ran; None before the first.
    floors : mapping of Node to Antichain
        From when on the updates of each input can be taken back: see `pyspark_diff.engine.rewind`.
    recent : mapping of Node to tuple of Arrival
        Those that were released, and wait somewhere for another input.
    lagging : mapping of Node to Antichain, or None
        The same of each node that has to do with inputs that lag behind each other; None where that
        is not known.
    shown : tuple of Shown
        What was made of them and shown.
    rewinds : frozenset of Node
        Inputs of which some were discarded, so that the next step does without them.
    offsets : mapping of str to object
        By the names of inputs how far their sources were read.
    given_to : mapping of str to SinkChanges
        By the names of sinks what they were given last, or are to be given.
    """

    frontiers: Mapping[Node, Antichain]
    traces: Mapping[Node, Trace]
    pending: Mapping[Node, tuple[Feed, ...]]
    waiting: Mapping[Node, tuple[Arrival, ...]]
    taken: Mapping[Node, int] = field(default_factory=dict)
    outbox: tuple[Delivery, ...] = ()
    epoch: int = 0
    report: Report = field(default_factory=lambda: Report())
    given: frozenset[Node] = frozenset()
    graph: Graph | None = None
    floors: Mapping[Node, Antichain] = field(default_factory=dict)
    recent: Mapping[Node, tuple[Arrival, ...]] = field(default_factory=dict)
    shown: tuple[Shown, ...] = ()
    rewinds: frozenset[Node] = frozenset()
    offsets: Mapping[str, Any] = field(default_factory=dict)
    given_to: Mapping[str, SinkChanges] = field(default_factory=dict)
    lagging: Mapping[Node, Antichain] | None = None

    def paths(
        self, nodes: Iterable[Node] | None = None, beside: State | None = None
    ) -> set[str]:
        """Files that the state needs, or that some nodes need; beside another state without those
        of batches of the same nodes that both have."""

        def of(held: Mapping[Node, _Held]) -> Iterable[_Held]:
            return held.values() if nodes is None else [held[n] for n in nodes if n in held]

        found: set[str] = set()
        if beside is None:
            for trace in of(self._traces):
                found.update(*[batch.paths for batch in trace.batches])
        else:
            others = beside._traces
            for node in self._traces if nodes is None else nodes:
                held, other = self._traces.get(node), others.get(node)
                known = () if other is None else set(map(id, other.batches))
                for batch in () if held is None else held.batches:
                    if id(batch) not in known:
                        found.update(batch.paths)
        for feeds in of(self.pending):
            found.update(path for feed in feeds for path in feed.source.paths)
        for arrivals in (*of(self.waiting), *of(self.recent)):
            found.update(path for arrival in arrivals for path in arrival.source.paths)
        return found

    @property
    def _traces(self) -> Mapping[Node, Trace]:
        """To bring a trace forward changes no file of it."""
        return self.traces.held if isinstance(self.traces, Traces) else self.traces

    @property
    def handed_over(self) -> bool:
        """Whether consumers and sinks have been given all that there is for them."""
        return all(delivery.done for delivery in self.outbox) and all(
            given.done for given in self.given_to.values()
        )


class IterationReport(NamedTuple):
    """One iteration of a loop in a step: which, how many updates went round, and its seconds."""

    loop: str
    iteration: Coordinate
    changes: int
    seconds: float


#: Told of each iteration when it is over.
Watch = Callable[[IterationReport], object]


@dataclass
class Report:
    """The work of a step.

    Parameters
    ----------
    rows_in : int
        Update rows that reached keyed operators.
    rows_read : int
        Rows of older batches that were read for them.
    rows_out : int
        Update rows that keyed operators gave.
    rows_merged : int
        Rows of batches that were merged.
    spark_runs, local_runs : int
        How many operators ran as Spark jobs, and how many on the driver.
    seconds : float
        Wall time.
    iterations : list of IterationReport
        The iterations of loops, in the order in which they ran.
    fallbacks : Counter of Fallback
        The number of times that a fast path left its work to a slower one, by operator, path and
        reason: in the step, and in the reading and feeding before it.
    costs : Costs
        The same by operator. Where a loop was begun on numbers alone and could not be finished so,
        both runs count.
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
    """How steps are run.

    Parameters
    ----------
    buckets : int
        Number of buckets of every arrangement.
    runner : str
        ``"auto"``, ``"spark"`` or ``"local"``.
    local_rows : int
        Up to this many update rows an operator runs on the driver, under ``"auto"``.
    piece_rows : int
        So many rows an operator holds at once, in a task or on the driver.
    keep_history : bool
        Whether arrangements that are read keep all times, or only the latest complete one.
    holds : mapping of Node to Antichain
        Arrangements whose history is held, and the frontier from which on.
    lasting : bool
        Whether a state is to outlive the process: then nothing in it is left to be evaluated.
    open : bool
        Whether times are structs, frontiers antichains of them, and so updates may still come at
        first fields that earlier steps have processed.
    held : mapping of Node to Antichain
        Of the holds, those of users.
    """

    buckets: int
    runner: str
    local_rows: int
    piece_rows: int
    keep_history: bool
    holds: Mapping[Node, Antichain] = field(default_factory=dict)
    lasting: bool = False
    open: bool = False
    held: Mapping[Node, Antichain] = field(default_factory=dict)

    def few(self, rows: float) -> bool:
        """Whether so many rows are for the driver."""
        return self.runner == "local" or (self.runner == "auto" and rows <= self.local_rows)
