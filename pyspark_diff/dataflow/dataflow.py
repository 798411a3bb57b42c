"""Dataflows: a program over collections, its inputs, and the state that steps carry forward.

The one law: for every operator, every time ``t``, and every way of cutting the same updates into
steps, the output accumulated at ``t`` equals the batch operator applied to the input accumulated
at ``t``.
"""

from __future__ import annotations

import threading
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.dataflow import catalog, staleness
from pyspark_diff.dataflow.background import EVERY, RunningStep
from pyspark_diff.dataflow.blame import Given, Suspects
from pyspark_diff.dataflow.hold import Hold
from pyspark_diff.dataflow.input_session import (
    BaseSession,
    Discarded,
    InputSession,
    check_name,
    constant_arrival,
)
from pyspark_diff.dataflow.keyed_session import KeyedSession
from pyspark_diff.dataflow.outputs import Outputs
from pyspark_diff.dataflow.probe import Probe
from pyspark_diff.engine.context import StepContext
from pyspark_diff.engine.growth import Growth, grown
from pyspark_diff.engine.live import Live
from pyspark_diff.engine.program import written
from pyspark_diff.engine.progress import Progress, progress_of
from pyspark_diff.engine.rewind import rewound
from pyspark_diff.engine.state import Arrival, IterationReport, Report, Settings, State, Watch
from pyspark_diff.engine.step import Step
from pyspark_diff.engine.subgraph import Subgraph
from pyspark_diff.errors import (
    ClosedError,
    DiffError,
    NotReadableError,
    SchemaError,
    StalledError,
    StepCancelledError,
    StorageError,
    TimeRegressionError,
    from_payload,
    to_payload,
)
from pyspark_diff.expressions.names import unused
from pyspark_diff.kernels.jit import interruptible
from pyspark_diff.operators.arrange import Output
from pyspark_diff.operators.checked import checked
from pyspark_diff.operators.node import Arranged, Constant, Input, Node, Reader
from pyspark_diff.operators.upsert import changes_input, upsert
from pyspark_diff.runners.feed import Feed, Source
from pyspark_diff.runners.spark import SparkRunner
from pyspark_diff.runners.stop import Stop
from pyspark_diff.spark.frames import column, update_struct
from pyspark_diff.spark.jobs import run_job
from pyspark_diff.spark.schema import (
    DIFF,
    TIME,
    Schema,
    check_data_names,
    check_names,
    parse_schema,
    parse_time_type,
    without_nullability,
)
from pyspark_diff.spark.session import driver_rows, parallelism, piece_rows
from pyspark_diff.spark.version import check_session
from pyspark_diff.times import Antichain, meet_all
from pyspark_diff.trace import storage
from pyspark_diff.trace.arrangement import Arrangement
from pyspark_diff.trace.storage import Storage

if TYPE_CHECKING:
    from typing_extensions import Self

#: Where the history of a collection begins that is given as a whole.
BEGINNING = -(2**63)
#: A column that says which update one is, beside those that the user knows.
WHOLE = "__whole"


class _Watch:
    """A function that is told of iterations, and whether it is what has raised."""

    def __init__(self, watch: Watch):
        self._watch = watch
        self.raised = False

    def __call__(self, report: IterationReport) -> None:
        self.raised = True
        self._watch(report)
        self.raised = False


class BaseDataflow:
    """The inputs, outputs and state of a program of nodes; it holds state.

    What users have is `pyspark_diff.Dataflow`, which gives frames for nodes and tells what the
    parameters are.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        time_type: str | T.DataType = "long",
        time: str = "time",
        diff: str = "diff",
        buckets: int | None = None,
        runner: str = "auto",
        local_rows: int | None = None,
        keep_history: bool = False,
        root: str | None = None,
    ):
        if runner not in ("auto", "spark", "local"):
            raise ValueError(f"runner must be 'auto', 'spark' or 'local', not {runner!r}")
        if buckets is not None and buckets < 1:
            raise ValueError(f"a dataflow has at least one bucket, not {buckets}")
        check_names([time, diff])
        check_session(spark)
        self.spark = spark
        self.time_type = parse_time_type(time_type)
        self.time_name, self.diff_name = time, diff
        self.runner = runner
        self.local_rows = driver_rows(spark) if local_rows is None else local_rows
        self._buckets = buckets or parallelism(spark)
        self._piece_rows = piece_rows(spark)
        self._keep_history = keep_history
        self._storage = Storage(root)
        self._spark_runner = SparkRunner(spark, self.time_type)
        self._sessions: dict[Node, BaseSession] = {}
        self._sinks: dict[Node, None] = {}
        #: Frames of kept collections that have a name.
        self._named: dict[str, object] = {}
        self._outputs = Outputs(self.time_type, time, diff)
        #: What the next step runs; None where that has to be found.
        self._growth: Growth | None = None
        #: The first frontiers of inputs.
        self._begins: dict[Node, Antichain] = {}
        self._state = State({}, {}, {}, {})
        #: What Spark does for steps.
        self._live = Live(spark)
        #: Up to where everything is done, also by consumers, before the step that runs.
        self._shown = self._state
        #: Steps in the background that are not over, or not looked at.
        self._running: list[RunningStep] = []
        #: The last step that was begun, until its files are in order.
        self._begun: StepContext | None = None
        #: Files that stood before something was discarded; those that nobody needs go.
        self._superseded: set[str] = set()
        self._open = True
        #: Held by a step, and by whoever needs that none runs.
        self._lock = threading.RLock()

    @property
    def report(self) -> Report:
        """What the last step did."""
        return self._state.report

    def step(self, on_iteration: Watch | None = None) -> bool:
        """Process everything that was given, up to the times that the inputs have advanced to.

        What is left, because nobody has advanced its input, is said: a StaleWarning, if there was
        nothing else to do.

        All or nothing: if it raises, nothing has changed and it can be called again. Only what
        `DiffFrame.inspect` is given comes after the step: if such a function raises, the step
        stands, all others are given their updates, and the next call of `step` goes on where this
        one stopped.

        While it runs, other threads may feed the inputs; whoever steps, reads, closes or adds
        operators waits until it is over. A function that a step calls cannot step itself.

        Parameters
        ----------
        on_iteration : callable, optional
            Called in this thread after each iteration of a loop, while the step runs, with its
            ``loop``, ``iteration``, ``changes`` and ``seconds`` as `iterations` has them after the
            step. What it raises undoes the step.

        Returns
        -------
        bool
            Whether there was anything to do.

        Raises
        ------
        StepError
            If an expression or a function of the user, or Spark, has failed; the cause is what it
            raised. Errors of the library keep their class. Either names the input, the time and
            some of the updates that are to blame, where trying again with fewer of them finds them.
            Drop them with `discard`.
        """
        self._check_outside("step")
        with self._lock:
            self._check_open()
            for session in self._sessions.values():
                session._hand_over()
            return self._step(on_iteration)

    def step_async(self, on_iteration: Watch | None = None) -> RunningStep:
        """As `step`, in a thread of its own, while this one goes on.

        Everything that was given up to this call is processed. Probes and `progress` tell how far
        it is, and what is read is the state before it, or waits for it, as for any step of another
        thread. Consumers of `DiffFrame.inspect` are called in its thread.

        Parameters
        ----------
        on_iteration : callable, optional
            As of `step`; called in the thread of the step.

        Returns
        -------
        RunningStep
            To wait for it, or to cancel it. Its errors come when it is waited for.

        Examples
        --------
        >>> from pyspark_diff import Dataflow
        >>> with Dataflow(spark) as flow:
        ...     words, words_in = flow.input("words", "word string")
        ...     probe = words.count().keep().probe()
        ...     words_in.insert([("a",)])
        ...     words_in.advance_to(1)
        ...     running = flow.step_async()
        ...     while probe.less_than(1):
        ...         if running.wait(timeout=60):
        ...             print(flow.progress().frontier)
        Antichain([1])
        """
        self._check_outside("step_async")
        self._check_open()
        for session in list(self._sessions.values()):  # others may be added meanwhile
            session._hand_over()

        def step(stop: Stop) -> bool:
            while not self._lock.acquire(timeout=EVERY):
                stop.check()
            try:
                stop.check()
                return self._step(on_iteration, stop)
            finally:
                self._lock.release()

        running = RunningStep(self.spark, step, self._check_outside)
        self._running = [r for r in self._running if not r.done() or r._unseen] + [running]
        return running

    def progress(self) -> Progress:
        """How far the step that runs is, or the last one if none does. Any thread may ask.

        Returns
        -------
        Progress
            Its ``frontier`` is that of all collections together, as a probe has it.

        Examples
        --------
        >>> from pyspark_diff import Dataflow
        >>> with Dataflow(spark) as flow:
        ...     words, words_in = flow.input("words", "word string")
        ...     _ = words.count().keep()
        ...     words_in.insert([("a",), ("a",)])
        ...     _ = flow.advance_to(1)
        ...     flow.progress().running, flow.progress().frontier, flow.progress().rows
        (False, Antichain([1]), 2)
        """
        self._check_open()
        begun, shown = self._begun, self._complete()
        frontier = self._frontier()
        if begun is not None and shown.epoch <= begun.state.epoch:
            return progress_of(begun, frontier)
        report, jobs = shown.report, self._live.before.counts()
        operators = 0 if shown.graph is None else len(shown.graph.order)
        return Progress(
            shown.epoch, False, frontier, "", operators, operators, len(report.iterations),
            report.rows_in + report.rows_read, jobs.jobs, jobs.jobs_done, jobs.tasks,
            jobs.tasks_done, jobs.rows, jobs.bytes, jobs.seconds, report.seconds,
        )

    def _frontier(self) -> Antichain:
        """Up to where everything is complete."""
        shown = self._complete()
        return meet_all(shown.frontiers.get(n, begin) for n, begin in list(self._begins.items()))

    def _complete(self) -> State:
        """The last state of which everything has been handed over."""
        state = self._state
        return state if all(delivery.done for delivery in state.outbox) else self._shown

    def _step(self, on_iteration: Watch | None, stop: Stop | None = None) -> bool:
        self._check_open()
        growth = self._build()
        graph = growth.graph
        if self._begun is not None or self._superseded:
            self._tidy()
        old = self._state
        if graph is not old.graph:
            old = growth.extended(old, self._begins, self._start())
        upper: dict[Node, Antichain] = {}
        arrivals: dict[Node, tuple[Arrival, ...]] = {}
        for node, session in self._sessions.items():
            arrivals[node], upper[node] = session._beyond(self._state.taken.get(node, 0))
        for node in graph.nodes:
            if isinstance(node, Constant):
                upper[node] = Antichain()
                arrivals[node] = self._constant(node, old)
        moved = any(upper[node] != old.frontiers.get(node) for node in upper)
        if moved or any(arrivals.values()) or growth.late or old.rewinds:
            self._advance(growth, old, arrivals, upper, on_iteration, stop, explain=True)
        elif all(delivery.done for delivery in self._state.outbox):
            found = staleness.left(self._sessions.values(), self._state)
            if found:
                staleness.warn(f"step() had nothing to do, but {found}")
            return False
        else:
            if stop is not None:
                stop.pass_by()
            self._deliver()
        return True

    def advance_to(self, time: Any, on_iteration: Watch | None = None) -> bool:
        """Take all that was given so far as all there is before a time, and process it.

        The usual day: feed the inputs, and call this. It advances every input that is not there
        yet, and steps; then all collections are complete up to, and not including, ``time``.

        Parameters
        ----------
        time : int, date or datetime
        on_iteration : callable, optional
            As of `step`.

        Returns
        -------
        bool
            Whether there was anything to do.

        Raises
        ------
        TimeRegressionError
            If all inputs that are open are beyond ``time``. Those that are stay where they are.
        StepError
            As `step` does. The inputs have advanced then, and `step` goes on.

        Examples
        --------
        >>> from pyspark_diff import Dataflow
        >>> with Dataflow(spark) as flow:
        ...     words, words_in = flow.input("words", "word string")
        ...     counts = words.count().keep()
        ...     words_in.insert([("a",), ("a",)])
        ...     _ = flow.advance_to(1)
        ...     words_in.remove([("a",)])
        ...     _ = flow.advance_to(2)
        ...     counts.at().collect()
        [Row(word='a', count=1)]
        """
        self._check_outside("advance_to")
        with self._lock:
            self._check_open()
            to = self.time_type.encode(time)
            times = {s.name: at for s in self._sessions.values() if (at := s._at()) is not None}
            if times and min(times.values()) > to:
                shown = ", ".join(
                    f"input {name!r} at {self.time_type.decode(at)!r}"
                    for name, at in times.items()
                )
                raise TimeRegressionError(
                    f"a dataflow cannot go back to {time!r}: {shown}. Give a later time"
                )
            for session in self._sessions.values():
                session._advance_at_least(to)
            for session in self._sessions.values():
                session._hand_over()
            return self._step(on_iteration)

    def step_while(
        self, condition: Callable[[], bool], on_iteration: Watch | None = None
    ) -> None:
        """Step while a condition holds, usually that a probe lags behind an input.

        Parameters
        ----------
        condition : callable
            For example ``lambda: probe.less_than(session.time())``.
        on_iteration : callable, optional
            As of `step`.

        Raises
        ------
        StalledError
            If it holds and there is nothing left to do.
        """
        self._check_open()
        while condition():
            if not self.step(on_iteration):
                told = staleness.frontiers(self._sessions.values(), self._state)
                raise StalledError(
                    f"the condition still holds, but there is nothing left to do: {told}. Advance "
                    "these inputs"
                )

    def discard(self, *, waiting: bool = False) -> dict[str, Discarded]:
        """Drop what has entered any input and no step has processed: see `InputSession.discard`.

        Parameters
        ----------
        waiting : bool
            Also what earlier steps took in, and what waits because inputs lag behind others.

        Returns
        -------
        dict
            By the inputs' names what was dropped.
        """
        self._check_outside("discard")
        with self._lock:
            found = self._take_back(list(self._sessions), None, waiting)
            return {session.name: found[node] for node, session in self._sessions.items()}

    def arrangements(self) -> DataFrame:
        """What is kept: an arrangement a row, as a Spark frame. `describe` gives it to read.

        The columns are ``name`` (operator, number and inputs), ``key``, ``rows`` (updates),
        ``batches``, ``bytes``, ``lower``, ``upper`` and ``since`` (null for a complete one), and
        the names of its ``readers``.

        Examples
        --------
        >>> from pyspark_diff import Dataflow
        >>> with Dataflow(spark) as flow:
        ...     edges, edges_in = flow.input("edges", "src long, dst long")
        ...     two_steps = edges.toDF("src", "mid").join(edges.toDF("mid", "dst"), "mid").keep()
        ...     edges_in.insert([(1, 2), (2, 3)])
        ...     _ = flow.advance_to(1)
        ...     flow.arrangements().select("key", "rows", "upper").where("key = 'mid'").collect()
        [Row(key='mid', rows=2, upper=1), Row(key='mid', rows=2, upper=1)]
        """
        self._check_open()
        with self._lock:
            found = catalog.entries(self._build().graph, self._state, self.time_type)
        return self.spark.createDataFrame(found, catalog.schema(self.time_type))

    def describe(self) -> str:
        """What is kept, as a table to read: see `arrangements`."""
        self._check_open()
        with self._lock:
            found = catalog.entries(self._build().graph, self._state, self.time_type)
            return catalog.as_text(found)

    def iterations(self) -> DataFrame:
        """The iterations of loops in the last step, in the order in which they ran.

        The columns are the ``loop``'s name, the ``iteration`` (of the loops around it too, the
        outermost first), ``changes`` (updates that went round) and ``seconds``.
        """
        self._check_open()
        return self.spark.createDataFrame(catalog.iterations(self.report.iterations))

    def close(self) -> None:
        """Remove everything that the dataflow wrote. A second call does nothing.

        It waits for steps in the background, and for one of another thread. Where an exception ends
        a ``with`` block, those in the background are cancelled.
        """
        if not self._lock._is_owned():  # type: ignore[attr-defined]
            for running in list(self._running):
                running._end()
        with self._lock:
            self._open = False
            for session in self._sessions.values():
                session._flow_closed = True
            self._live.close()
            self._storage.close()
        for running in self._running:
            if running._unseen is not None:
                warnings.warn(
                    "a step in the background has failed, and nobody has waited for it: "
                    f"{running._unseen}", RuntimeWarning, stacklevel=2,
                )
        self._running = []

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is not None:
                RunningStep._cancel_all(self._running)
        finally:
            self.close()

    # What follows is for the layer above.

    def _add_input(
        self, name: str, schema: str | T.StructType, start: Any, check: bool
    ) -> tuple[Node, InputSession]:
        with self._lock:
            parsed, begin = self._input_columns(name, schema, start)
            node = Input(parsed, self.time_type, name)
            found = checked(node) if check else node
            names = self.time_name, self.diff_name
            session = InputSession(node, self.spark, *names, begin, self._discard)
            self._add_session(node, session)
        return found, session

    def _add_keyed_input(
        self, name: str, schema: str | T.StructType, start: Any, key: Sequence[str]
    ) -> tuple[Reader, KeyedSession]:
        with self._lock:
            parsed, begin = self._input_columns(name, schema, start)
            names = self.time_name, self.diff_name
            taken = [*parsed.names, *names]
            node = changes_input(
                parsed, parsed.resolved(key, f"the key of input {name!r}", self.spark),
                self.time_type, name, unused("change", taken), unused("number", taken),
            )
            found = upsert(node)
            session = KeyedSession(node, self.spark, *names, begin, self._discard)
            self._add_session(node, session)
            # Its records are there in any case, for changes to be compared with.
            self._grow(Output(found))
        return found, session

    def _input_columns(
        self, name: str, schema: str | T.StructType, start: Any
    ) -> tuple[Schema, int]:
        """Columns of a new input, and where it starts."""
        self._check_open()
        check_name(name, "an input", "edges")
        if any(session.name == name for session in self._sessions.values()):
            raise SchemaError(f"this dataflow has an input {name!r} already; give it another name")
        parsed = parse_schema(schema)
        check_data_names(parsed.names, self.time_name, self.diff_name, f"input {name!r}")
        begin = self.time_type.start if start is None else self.time_type.encode(start)
        if start is None and self._state.graph is not None and self._sessions:
            # One that comes later begins where the others are.
            now = meet_all(self._state.frontiers[n] for n in self._sessions).bound
            begin = begin if now is None else max(begin, now)
        return parsed, begin

    def _add_session(self, node: Input, session: BaseSession) -> None:
        self._sessions[node] = session
        self._begins[node] = session._content.frontier
        frontiers = {**self._state.frontiers, node: session._content.frontier}
        self._state = replace(self._state, frontiers=frontiers)
        self._growth = None

    def _add_sink(self, node: Node) -> None:
        with self._lock:
            self._check_open()
            self._grow(node)

    def _grow(self, sink: Node) -> None:
        """Add a sink. If the program has run and cannot grow by it, it stays what it was."""
        if sink not in self._sinks:
            sinks = {**self._sinks, sink: None}
            old = self._state
            # What has not run may still change its form, so that is found when it runs.
            self._growth = None if old.graph is None else grown(
                [*sinks, *self._sessions], old.graph, old
            )
            self._sinks = sinks

    def _probe(self, node: Node) -> Probe:
        self._check_open()
        inputs = [n for n in written([node]).nodes if isinstance(n, Input)]
        fed = [n for n in inputs if n in self._begins]

        def read() -> Antichain:
            state, growth = self._complete(), self._growth
            if state.graph is not None:
                runs = state.graph.lowered.get(node)
                if runs is not None and runs in state.frontiers:
                    return state.frontiers[runs]
                if growth is not None and node in growth.graph.lowered:
                    return meet_all(self._begins[n] for n in fed)  # it has not run yet
            return meet_all(state.frontiers.get(n, self._begins[n]) for n in fed)

        return Probe(self.time_type, read)

    def _keep(
        self, node: Node, name: str | None = None, frame: object = None,
        arranged: Arranged | None = None,
    ) -> None:
        """Keep a collection, by an arrangement if one is given, and under a name."""
        with self._lock:
            self._check_open()
            if name is not None:
                check_name(name, "a kept collection", "counts")
                if self._named.get(name, frame) is not frame:
                    raise SchemaError(
                        f"this dataflow keeps a collection {name!r} already; give it another name"
                    )
            if arranged is not None or node not in self._outputs:
                sink = self._outputs.sink(node, arranged)
                self._grow(sink)
                self._outputs.add(node, sink)
            if name is not None:
                self._named[name] = frame

    def _kept_names(self) -> list[str]:
        """The names under which collections are kept."""
        with self._lock:
            self._check_open()
            return list(self._named)

    def _kept(self, name: str) -> object:
        """The frame of a collection that is kept under a name."""
        with self._lock:
            self._check_open()
            if name not in self._named:
                names = ", ".join(map(repr, self._named)) or "none"
                raise NotReadableError(
                    f"no collection is kept under the name {name!r}, of these: {names}. "
                    f"Name one with .keep({name!r})"
                )
            return self._named[name]

    def _check_fresh(self, node: Node) -> None:
        """Say if there is news for a collection that it does not show."""
        with self._lock:
            found = staleness.behind(self._upstream(node), self._state)
        if found:
            staleness.warn(f"this is the latest complete state, but {found}")

    def _next_to_do(self, node: Node) -> str:
        """What brings a collection further, as a sentence."""
        if self._state.graph is not None and not self._outputs.has_run(node, self._state):
            return "It was added since the last step(): the next one fills it from what is kept"
        found = staleness.behind(self._upstream(node), self._state)
        return f"But {found}" if found else "Advance its inputs, and step"

    def _upstream(self, node: Node) -> list[BaseSession]:
        inputs = set(written([node]).nodes)
        return [session for n, session in self._sessions.items() if n in inputs]

    def _arrangement(self, node: Node) -> Arrangement:
        """The kept collection of a node."""
        with self._lock:
            self._check_open()
            return self._outputs.arrangement(node, self._state, self._start())

    def _hold(self, node: Node, time: int | None) -> Hold:
        with self._lock:
            return self._outputs.hold(node, self._arrangement(node), time)

    def _run_whole(self, node: Node) -> None:
        """Run the whole history of inputs that are given as frames, and keep ``node``."""
        self._keep(node)
        growth = self._build()
        inputs = [n for n in growth.graph.nodes if isinstance(n, Input)]
        beginning = Antichain([BEGINNING])
        state = State(dict.fromkeys(growth.graph.nodes, beginning), {}, {}, {})
        arrivals: dict[Node, tuple[Arrival, ...]] = {}
        for n in inputs:
            if isinstance(n, Constant):
                continue
            source = Source(n.schema, frame=n.frame)
            if n.frame is not None and n.local:
                # Rows that are on the driver already need no job to get there.
                table = n.frame.toArrow()
                source = Source(n.schema, table=table, rows=table.num_rows)
            arrivals[n] = (Arrival(source, last=2**63 - 1),)
        constants = [n for n in inputs if isinstance(n, Constant)]
        if constants:
            # There before anything happens.
            begin = min([self.time_type.start, *map(self._first, arrivals.values())])
            arrivals.update({n: (constant_arrival(n, begin),) for n in constants})
        self._advance(growth, state, arrivals, dict.fromkeys(inputs, Antichain()))

    def _start(self) -> Antichain:
        """Where the first of the inputs began, and constants do."""
        if not self._begins:
            return Antichain([self.time_type.start])
        return meet_all(self._begins.values())

    def _constant(self, node: Constant, state: State) -> tuple[Arrival, ...]:
        """A constant's rows, as long as they have not been taken in."""
        start = state.frontiers[node].bound
        return () if start is None else (constant_arrival(node, start),)

    def _first(self, arrivals: Sequence[Arrival]) -> int:
        """The first time of a whole history."""
        (arrival,) = arrivals
        table, frame = arrival.source.table, arrival.source.frame
        first = None
        if table is not None:
            first = pc.min(table[TIME]).as_py() if table.num_rows else None
        elif frame is not None:
            row = frame.agg(F.min(column(TIME)).alias("first")).first()
            first = None if row is None else row["first"]
        return self.time_type.start if first is None else self.time_type.encode(first)

    def _advance(
        self,
        growth: Growth,
        old: State,
        arrivals: Mapping[Node, tuple[Arrival, ...]],
        upper: Mapping[Node, Antichain],
        on_iteration: Watch | None = None,
        stop: Stop | None = None,
        explain: bool = False,
    ) -> None:
        watch = None if on_iteration is None else _Watch(on_iteration)
        stop = stop or Stop()
        self._shown = self._complete()
        self._live.begin(self._frontier())
        try:
            try:
                self._commit(growth, old, arrivals, upper, watch, stop)
            except (StorageError, MemoryError, StepCancelledError):
                raise
            except Exception as error:
                if not explain or watch is not None and watch.raised:
                    raise
                raise self._explained(error, arrivals, upper, stop) from error
            self._deliver()
        finally:
            self._live.end(self._frontier())
            self._tidy()

    @interruptible()
    def _commit(
        self,
        growth: Growth,
        old: State,
        arrivals: Mapping[Node, tuple[Arrival, ...]],
        upper: Mapping[Node, Antichain],
        on_iteration: Watch | None,
        stop: Stop,
    ) -> None:
        self._begun = context = self._context(growth, old, self.runner, stop)
        after = Step(context, on_iteration).run(arrivals, upper)
        stop.pass_by()
        # One assignment: before it nothing has changed, and what is left to be done after it
        # follows from the state, however often it is cut short.
        self._state = after

    def _context(self, growth: Growth, state: State, runner: str, stop: Stop) -> StepContext:
        settings = Settings(
            self._buckets, runner, self.local_rows, self._piece_rows, self._keep_history,
            self._outputs.holds(growth.graph),
        )
        again: dict[Node, tuple[Arrival, ...]] = {}
        for node in growth.constants:
            start = self._start().join(growth.since).bound
            assert start is not None  # constants have a beginning
            again[node] = (constant_arrival(node, start),)
        runs = SparkRunner(self.spark, self.time_type, stop)
        return StepContext(growth, state, settings, self._storage, runs, self._live, again, stop)

    def _explained(
        self, error: Exception, arrivals: Given, upper: Mapping[Node, Antichain], stop: Stop
    ) -> DiffError:
        """The error of a step, with the updates that are to blame."""
        begun = self._begun
        assert begun is not None  # it has failed
        old = begun.state
        doing, program = begun.doing, begun.graph.program
        others = {node: new for node, new in arrivals.items() if node not in self._sessions}
        # Few updates are tried on the driver, whatever runs steps otherwise.
        runner = "local" if self.runner == "local" else "auto"

        def blamed(before: State) -> str | None:
            waiting = {n: rest for n, rest in before.waiting.items() if n not in self._sessions}

            def fails(given: Given) -> type[Exception] | None:
                before_them = replace(before, waiting=waiting)
                trial = self._context(begun.growth, before_them, runner, stop)
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

            given = {n: (*before.waiting.get(n, ()), *arrivals[n]) for n in self._sessions}
            names = {node: session.name for node, session in self._sessions.items()}
            return Suspects(given, names, self.time_type).told(fails)

        # Where updates are processed again, they are among those that this step was given.
        found, drop = blamed(old), f"discard({'waiting=True' if self._state.rewinds else ''})"
        if found is None:
            found = "updates that earlier steps took in and that waited for another input"
            base = self._context(begun.growth, old, runner, stop)
            try:
                if any(old.recent.values()):
                    waited = blamed(rewound(old, frozenset(self._sessions), base.cut))
                    if waited is not None:
                        found = f"{waited}; it was taken in earlier, and waited for another input"
                        drop = "discard(waiting=True)"
            finally:
                storage.remove_directories(base.directories)
        where = ""
        if isinstance(doing, Subgraph):
            where = " in a loop"
        elif doing is not None:
            where = f" at {program.name(doing)}"
        kind, told = "StepError", f"{type(error).__name__}: {str(error).strip()}"
        if isinstance(error, DiffError):
            kind, told = to_payload(error)
        return from_payload(
            kind,
            f"{told}\nThe step failed{where} on {found}. It changed nothing and can be run again. "
            f"If it fails for ever, {drop} of the input or of the dataflow drops what entered, "
            "and returns it to be mended; that of the input takes a condition",
        )

    def _discard(self, node: Input, where: Column | str | None, waiting: bool) -> Discarded:
        self._check_outside("discard")
        if where is not None and not isinstance(where, (Column, str)):
            raise SchemaError(
                f"discard takes a condition as a Column or as SQL text, not {where!r}"
            )
        with self._lock:
            return self._take_back([node], where, waiting)[node]

    def _take_back(
        self, nodes: Sequence[Node], where: Column | str | None, again: bool
    ) -> dict[Node, Discarded]:
        """Drop what is waiting to be processed of some inputs, by all operators or again by those
        that can; returns it."""
        self._check_open()
        old = self._state
        waiting, taken, recent = dict(old.waiting), dict(old.taken), dict(old.recent)
        rewinds = old.rewinds
        found: dict[Node, Discarded] = {}
        for node in nodes:
            entered = self._sessions[node]._entered(taken.get(node, 0))
            left, dropped = self._split(node, (*waiting.get(node, ()), *entered), where)
            if again:
                recent[node], more = self._split(node, recent.get(node, ()), where)
                rewinds |= {node} if more else frozenset()
                dropped = (*more, *dropped)
            found[node] = self._given(node, dropped)
            waiting[node], taken[node] = left, taken.get(node, 0) + len(entered)
        self._superseded |= old.paths()
        # One assignment, as for a step. Before it nothing is dropped, and what is left to be done
        # after it is done by the next step, so that what was dropped is surely returned.
        self._state = replace(old, waiting=waiting, taken=taken, recent=recent, rewinds=rewinds)
        return found

    def _split(
        self, node: Node, arrivals: tuple[Arrival, ...], where: Column | str | None
    ) -> tuple[tuple[Arrival, ...], tuple[Arrival, ...]]:
        """Arrivals without the updates for which a condition holds, and those updates."""
        if where is None:
            return (), arrivals
        named = self._sessions[node]._named
        condition = F.expr(where) if isinstance(where, str) else where
        holds = F.coalesce(condition, F.lit(False))
        left: list[Arrival] = []
        dropped: list[Arrival] = []

        def put(held: list[Arrival], arrival: Arrival, **changes: Any) -> None:
            schema = arrival.source.schema
            held.append(replace(arrival, source=Source(schema, **changes)))

        for arrival in arrivals:
            source = arrival.source
            if source.frame is not None:
                whole = self._spark_runner.frame(source)
                whole = whole.withColumn(WHOLE, F.struct(*map(column, whole.columns)))
                for held, which in (dropped, holds), (left, ~holds):
                    frame = named(whole).where(which).select(f"{WHOLE}.*")
                    put(held, arrival, frame=frame)
                continue
            kept = []
            for table in self._updates(arrival):
                if not table.num_rows:
                    continue
                rows = np.arange(table.num_rows)
                struct = without_nullability(update_struct(source.schema, self.time_type))
                frame = self.spark.createDataFrame(
                    table.append_column(WHOLE, pa.array(rows)), struct.add(WHOLE, "long")
                )
                job = named(frame).where(holds).select(WHOLE).toArrow
                chosen = np.isin(rows, run_job(self.spark, job)[WHOLE].to_numpy())
                kept.append(table.filter(pa.array(~chosen)))
                if chosen.any():
                    part = table.filter(pa.array(chosen))
                    put(dropped, arrival, table=part, rows=part.num_rows)
            if kept:
                rest = pa.concat_tables(kept)
                put(left, arrival, table=rest, rows=rest.num_rows)
        return tuple(left), tuple(dropped)

    def _given(self, node: Node, arrivals: Sequence[Arrival]) -> Discarded:
        """The updates of arrivals as users have them."""
        tables = [table for arrival in arrivals for table in self._updates(arrival)]
        names = [*node.schema.names, self.time_name, self.diff_name]
        given: Discarded = []
        if tables:
            given.append(pa.concat_tables(tables).combine_chunks().rename_columns(names))
        for arrival in arrivals:
            if arrival.source.frame is not None:
                frame = self._spark_runner.frame(arrival.source)
                frame = frame.select(*map(column, [*node.schema.names, TIME, DIFF]))
                given.append(frame.toDF(*names))
        return self._sessions[node]._shown(given)

    def _updates(self, arrival: Arrival) -> list[pa.Table]:
        """The updates of an arrival that no step has released, but those of a frame."""
        source = arrival.source
        tables = [] if source.table is None else [source.table]
        tables += [storage.read_table(path) for path in source.paths]
        names = [*source.schema.names, TIME, DIFF]
        feed = Feed(source, lower=arrival.taken, upper=arrival.until)
        kinds = [*source.schema.arrow(), (TIME, self.time_type.arrow), (DIFF, pa.int64())]
        return [feed.within(table).select(names).cast(pa.schema(kinds)) for table in tables]

    @interruptible()
    def _deliver(self) -> None:
        """Give consumers what they have not been given, each in order; none waits for another."""
        failed: dict[Node, Exception] = {}
        for delivery in self._state.outbox:
            if not delivery.done and delivery.node not in failed:
                try:
                    delivery.give(self.time_name, self.diff_name)
                except Exception as error:
                    failed[delivery.node] = error
        for first in failed.values():
            raise first

    def _tidy(self) -> None:
        """Drop what a step has taken in or superseded, or if it failed, what it wrote."""
        for node, session in self._sessions.items():
            session._drop(self._state.taken.get(node, 0))
        begun, old = self._begun, set(self._superseded)
        if begun is not None and self._state.epoch == begun.state.epoch:
            # Whole directories: buckets that were done before another one failed left files too.
            storage.remove_directories(begun.directories)
        elif begun is not None:
            old |= begun.superseded | set(begun.written)
        if old:
            storage.remove_files(sorted(old - self._state.paths() - self._outputs.pinned))
        self._begun, self._superseded = None, set()

    def _build(self) -> Growth:
        """What the next step runs."""
        old = self._state.graph
        if self._growth is None:
            self._growth = grown([*self._sinks, *self._sessions], old, self._state)
        elif self._growth.late and self._growth.graph is old:
            self._growth = Growth(old)  # it has run
        return self._growth

    def _check_open(self) -> None:
        if not self._open:
            raise ClosedError("this dataflow was closed, and its state removed; make a new one")

    def _check_outside(self, what: str) -> None:
        # An RLock knows its owner; a note of our own could be left behind by an interrupt.
        if self._lock._is_owned():  # type: ignore[attr-defined]
            raise StalledError(
                f"{what}() was called by a function that a step of the same dataflow is calling, "
                "and the step cannot go on before that returns. Let the function only take a note "
                f"or feed an input, and call {what}() when the step has returned"
            )
