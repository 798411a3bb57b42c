"""Dataflows: a program over collections, its inputs, and the state that steps carry forward.

The one law: for every operator, every time ``t``, and every way of cutting the same updates into
steps, the output accumulated at ``t`` equals the batch operator applied to the input accumulated
at ``t``.
"""

from __future__ import annotations

import logging
import secrets
import threading
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import types as T

from pyspark_diff.dataflow import catalog, discarding, staleness
from pyspark_diff.dataflow.background import EVERY, RunningStep, RunningSteps
from pyspark_diff.dataflow.blame import Blame, Watched
from pyspark_diff.dataflow.durable import Store
from pyspark_diff.dataflow.hold import Hold
from pyspark_diff.dataflow.input_session import BaseSession, Discarded, InputSession
from pyspark_diff.dataflow.inputs import Inputs, constant_arrival
from pyspark_diff.dataflow.keyed_session import KeyedSession
from pyspark_diff.dataflow.outputs import Outputs
from pyspark_diff.dataflow.probe import Probe
from pyspark_diff.dataflow.sink import Sink, Sinks
from pyspark_diff.dataflow.source import Source, Sources
from pyspark_diff.dataflow.stored import StateReader
from pyspark_diff.dataflow.whole_history import whole_history
from pyspark_diff.engine.context import StepContext
from pyspark_diff.engine.growth import Growth, grown
from pyspark_diff.engine.live import Live
from pyspark_diff.engine.program import written
from pyspark_diff.engine.progress import Progress, progress_after, progress_of
from pyspark_diff.engine.state import Arrival, Report, Settings, State, Watch
from pyspark_diff.engine.step import Step
from pyspark_diff.errors import (
    ClosedError,
    ConcurrentWriteError,
    NotReadableError,
    RepeatedTokenError,
    SchemaError,
    StalledError,
    StepCancelledError,
    StorageError,
    UnknownOutcomeError,
)
from pyspark_diff.kernels.jit import interruptible
from pyspark_diff.operators.arrange import Output
from pyspark_diff.operators.checked import checked
from pyspark_diff.operators.node import Arranged, Input, Node, Reader
from pyspark_diff.operators.upsert import upsert
from pyspark_diff.runners.spark import SparkRunner
from pyspark_diff.runners.stop import Stop
from pyspark_diff.spark.schema import check_names, parse_time_type
from pyspark_diff.spark.session import driver_rows, parallelism, piece_rows
from pyspark_diff.spark.version import check_session
from pyspark_diff.times import Antichain, meet_all
from pyspark_diff.trace import storage
from pyspark_diff.trace.arrangement import Arrangement
from pyspark_diff.trace.storage import Storage, StoreFiles
from pyspark_diff.trace.vacuum import Vacuumed

if TYPE_CHECKING:
    from typing_extensions import Self

_logger = logging.getLogger("pyspark_diff")


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
        self._storage: Storage | StoreFiles = Storage(root)
        #: Where steps are committed, if the state is to outlive the application.
        self._store: Store | None = None
        #: The program is being written, which does not run yet.
        self._writing = False
        self._zone = str(spark.conf.get("spark.sql.session.timeZone"))
        self._inputs = Inputs(spark, self.time_type, time, diff, self._discard)
        self._sinks: dict[Node, None] = {}
        self._outputs = Outputs(self.time_type, time, diff)
        #: Where inputs are filled from, and where changes go.
        self._sources = Sources(spark, self.time_type, time, diff)
        self._given = Sinks(spark, time, diff)
        #: What sinks know this dataflow by, as long as it has no store.
        self._identity = secrets.token_hex(16)
        #: What the next step runs; None where that has to be found.
        self._growth: Growth | None = None
        self._state = State({}, {}, {}, {})
        #: What Spark does for steps.
        self._live = Live(spark)
        #: Up to where everything is done, also by consumers, before the step that runs.
        self._shown = self._state
        self._running = RunningSteps()
        #: The last step that was begun, until its files are in order.
        self._begun: StepContext | None = None
        #: Files that stood before something was discarded; those that nobody needs go.
        self._superseded: set[str] = set()
        self._open = True
        #: Whether consumers may not have been given all that another application made.
        self._owes = False
        #: What the user calls the next commit.
        self._token: str | None = None
        #: Held by a step, and by whoever needs that none runs.
        self._lock = threading.RLock()

    @property
    def report(self) -> Report:
        """What the last step did."""
        return self._state.report

    def step(self, on_iteration: Watch | None = None, *, token: str | None = None) -> bool:
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
        token : str, optional
            What the commit is called, in a dataflow that has a store: the day, say. A job that is
            run again finds in `token` what it had done, and is refused if it gives more for it.

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
            self._check_token(token)
            self._inputs.hand_over()
            return self._step(on_iteration, token=token)

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
        self._inputs.hand_over()

        def step(stop: Stop) -> bool:
            while not self._lock.acquire(timeout=EVERY):
                stop.check()
            try:
                stop.check()
                return self._step(on_iteration, stop)
            finally:
                self._lock.release()

        return self._running.begin(self.spark, step, self._check_outside)

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
        (False, Antichain([1]), 3)
        """
        self._check_open()
        begun, shown = self._begun, self._complete()
        frontier = self._frontier()
        if begun is not None and shown.epoch <= begun.state.epoch:
            return progress_of(begun, frontier)
        # Until the files of a step that was committed are in order, its jobs are still its own.
        jobs = self._live.before if begun is None else begun.jobs
        return progress_after(shown, jobs.counts(), frontier)

    def _frontier(self) -> Antichain:
        """Up to where everything is complete."""
        return self._inputs.frontier(self._complete())

    def _complete(self) -> State:
        """The last state of which everything has been handed over."""
        state = self._state
        return state if state.handed_over else self._shown

    def _check_token(self, token: str | None) -> None:
        self._check_open()
        if token is not None:
            store = self._store_of("a token")
            if not isinstance(token, str) or not token:
                raise TypeError(f"a token is a text, not {token!r}")
            number = store.tokens.get(token)
            if number is not None and self._inputs.has_more(self._state):
                raise RepeatedTokenError(
                    f"the token {token!r} is that of commit {number}, and updates have been given "
                    "that are not in it. If this is the same job again, drop them, discard(); else "
                    "give the step a token of its own"
                )

    def _step(
        self, on_iteration: Watch | None, stop: Stop | None = None, token: str | None = None
    ) -> bool:
        self._check_open()
        self._token = token
        if self._owes:
            # Before the next commit, so that this one does not owe it too. One that fails is
            # tried again after it, and is told then.
            self._owes = False
            with suppress(Exception):
                self._deliver()
        # They are given all steps in order, so this comes before anything else.
        self._give()
        growth = self._build()
        graph = growth.graph
        if self._begun is not None or self._superseded:
            self._tidy()
        old = self._state
        if graph is not old.graph:
            old = growth.extended(old, self._inputs.begins, self._inputs.start())
        arrivals, upper = self._inputs.given(graph, old)
        moved = any(upper[node] != old.frontiers.get(node) for node in upper)
        if moved or any(arrivals.values()) or growth.late or old.rewinds:
            self._advance(growth, old, arrivals, upper, on_iteration, stop, explain=True)
        elif self._state.handed_over:
            found = staleness.left(self._inputs.sessions(), self._state)
            if found:
                staleness.warn(f"step() had nothing to do, but {found}")
            return False
        else:
            if stop is not None:
                stop.pass_by()
            self._deliver()
            self._give()
        return True

    def advance_to(
        self, time: Any, on_iteration: Watch | None = None, *, token: str | None = None
    ) -> bool:
        """Take all that was given so far as all there is before a time, and process it.

        The usual day: feed the inputs, and call this. It advances every input that is not there
        yet, and steps; then all collections are complete up to, and not including, ``time``.

        Parameters
        ----------
        time : int, date or datetime
        on_iteration : callable, optional
        token : str, optional
            Both as of `step`.

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
            self._check_token(token)
            self._inputs.advance_to(time)
            self._inputs.hand_over()
            return self._step(on_iteration, token=token)

    def catch_up(
        self, on_iteration: Watch | None = None, *, token: str | None = None
    ) -> bool:
        """Read what has come to the sources, process it as one epoch, and give sinks the changes.

        The usual night of a job whose inputs have sources. What they have now is taken in at the
        time that the inputs have reached, or at times of its own where it brings some, and all
        inputs advance beyond it. With a store all of it is one commit: the state, how far each
        source was read, and what sinks are given.

        Parameters
        ----------
        on_iteration : callable, optional
        token : str, optional
            Both as of `step`. Nothing is read for a token that the last steps had.

        Returns
        -------
        bool
            Whether there was anything to do.

        Raises
        ------
        SourceError
            If a source cannot be read. What was read of others is processed by the next call.
        SinkError
            If a sink fails. The next call begins with giving it the same.
        StepError
            As of `step`. What was read is kept, and the next call tries again, before it reads on.

        Examples
        --------
        >>> from pyspark_diff import Dataflow
        >>> from pyspark_diff.sinks import foreach
        >>> from pyspark_diff.sources import snapshots
        >>> prices = spark.createDataFrame([("tea", 3), ("milk", 2)], "item string, price int")
        >>> with Dataflow(spark) as flow:
        ...     items = flow.source("items", snapshots(lambda: prices, key="item"))
        ...     dear = items.where("price > 2").select("item")
        ...     _ = dear.sink("dear", foreach(lambda changes, epoch: changes.show()))
        ...     _ = flow.catch_up()
        +----+----+----+
        |item|time|diff|
        +----+----+----+
        | tea|   0|   1|
        +----+----+----+
        <BLANKLINE>
        """
        self._check_outside("catch_up")
        with self._lock:
            return self._catch_up(on_iteration, token)

    def _catch_up(self, on_iteration: Watch | None = None, token: str | None = None) -> bool:
        self._check_open()
        if not self._sources:
            raise NotReadableError(
                "no input of this dataflow has a source to be read: make one with "
                "flow.source(name, source), or feed its sessions and step"
            )
        if token is not None and token in self._store_of("a token").tokens:
            self._give()
            return False
        self._check_token(token)
        # What was read and came to no commit.
        done = self._sources.is_ahead(self._state.offsets) and self._step(on_iteration)
        self._give()
        last = self._sources.read(self._inputs.latest())
        if last is not None:
            self._inputs.advance_to(self.time_type.decode(last + 1))
        self._inputs.hand_over()
        return self._step(on_iteration, token=token) or done

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
                told = staleness.frontiers(self._inputs.sessions(), self._state)
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
            found = self._take_back(self._inputs.nodes(), None, waiting)
            return {name: found[node] for node, name in self._inputs.names().items()}

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

    def history(self) -> DataFrame:
        """The commits that can be read, the latest last, as a Spark frame.

        The columns are ``commit``, ``written`` (when), ``epoch`` (of the application that wrote it,
        counted), ``token``, ``step``, ``files``, ``bytes`` and ``sources`` (how far each was
        read, as JSON).

        Raises
        ------
        NotReadableError
            If the dataflow has no store: see `Dataflow.open`.
        """
        return self.spark.createDataFrame(*self._store_of("history").history())

    def at(self, commit: int) -> StateReader:
        """What was kept by name as of an older commit; close it when it is not needed any more.

        Parameters
        ----------
        commit : int
            One of `history`.

        Raises
        ------
        NotReadableError
            If the dataflow has no store, or that commit is not retained.
        """
        return StateReader(self._store_of("at").root, spark=self.spark, commit=commit)

    def vacuum(self, *, dry_run: bool = True, older_than: float = 3600.0) -> Vacuumed:
        """Remove what no commit needs that is retained, and no reader holds.

        What an application leaves that was killed goes by this. Commits that are not retained any
        more, and what only they need, go by themselves as new ones come.

        Parameters
        ----------
        dry_run : bool
            Remove nothing, and only tell what would go.
        older_than : float
            Seconds; younger files stay.

        Returns
        -------
        Vacuumed
            Names of the ``files``, their ``bytes``, numbers of the ``commits``, and the readers
            whose holds had expired, ``expired_holds``.
        """
        self._check_outside("vacuum")
        with self._lock:
            store = self._store_of("vacuum")
            self._tidy()
            return store.vacuum(self._in_use(), dry_run=dry_run, older_than=older_than)

    def verify(self) -> list[str]:
        """What is wrong with the files of the last commit, each of which is read: nothing, if all
        is as it was written."""
        return self._store_of("verify").verify()

    @property
    def token(self) -> str | None:
        """What the last step was called that was called anything: see the ``token`` of `step`."""
        return next(reversed(self._store_of("token").tokens), None)

    def close(self) -> None:
        """Remove everything that the dataflow wrote, but for what is committed to a store. A second
        call does nothing.

        It waits for steps in the background, and for one of another thread. Where an exception ends
        a ``with`` block, those in the background are cancelled.
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
        """Note that consumers have been given what they were owed: whoever goes on gives it again
        otherwise."""
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

    # What follows is for the layer above, and for stores.

    def _write(self, program: Callable[[Self], object]) -> None:
        """Write a program down."""
        self._writing = True
        try:
            program(self)
        finally:
            self._writing = False

    def _settings(self, state: State) -> dict[str, Any]:
        """What a commit tells beside the state, as JSON has it."""
        return {
            "time_type": self.time_type.name,
            "time": self.time_name,
            "diff": self.diff_name,
            "buckets": self._buckets,
            "zone": self._zone,
            "inputs": self._inputs.told(),
            "numbers": self._inputs.numbers(),
            "kept": self._outputs.told(state),
            "sinks": list(self._given),
        }

    def _wanted(self) -> list[Node]:
        """What is run for its own sake."""
        return [*self._sinks, *self._inputs.nodes()]

    def _go_on(self, state: State, numbers: Mapping[str, int]) -> None:
        """Go on with a state of this program from another process, and with the numbers that
        inputs of changes have given."""
        self._state = replace(state, frontiers=self._inputs.go_on(state, numbers))
        self._shown, self._growth = self._state, None
        self._sources.go_on(self._state.offsets)
        self._owes = not self._state.handed_over

    def _add_input(
        self, name: str, schema: str | T.StructType, start: Any, check: bool
    ) -> tuple[Node, InputSession]:
        with self._lock:
            self._check_open()
            session = self._inputs.new(name, schema, start, self._state)
            found = checked(session._node) if check else session._node
            self._add_session(session)
        return found, session

    def _add_source(
        self, name: str, source: Source, start: Any, late: str
    ) -> Reader | Node:
        """An input that a source fills."""
        if not isinstance(source, Source):
            raise SchemaError(
                f"input {name!r} is filled from a Source, such as pyspark_diff.sources.delta(table)"
                f" or pyspark_diff.sources.snapshots(table, key=...), not from {source!r}; rows "
                "themselves are given to the session of an input, flow.input(name, schema)"
            )
        if late not in ("refuse", "aside"):
            raise ValueError(f"late is 'refuse' or 'aside', not {late!r}")
        if late == "aside" and source.key:
            raise ValueError(
                f"rows of {source!r} take the places of others and have no times of their own, so "
                "none comes too late: leave late='aside' out"
            )
        columns = source.columns(self.spark)
        with self._lock:
            if source.key:
                keyed, keyed_session = self._add_keyed_input(name, columns, start, source.key)
                self._sources.add(name, source, keyed_session)
                return keyed
            node, session = self._add_input(name, columns, start, False)
            aside, before = None, None
            if late == "aside":
                aside = self._add_input(
                    f"{name}.late", self._sources.late_columns(columns), start, False
                )
            if source.is_whole:
                self._keep(node)
                before = partial(self._there, node)
            self._sources.add(name, source, session, aside, before)
            return node

    def _there(self, node: Node) -> DataFrame | None:
        """The rows of a kept collection, for as long as the next step; None if it is empty."""
        start = self._inputs.start()
        found = self._outputs.arrangement(node, self._state, start, handed_out=False)
        if not found.trace.rows:
            return None
        upper = found.trace.upper.bound
        at = 2**63 - 1 if upper is None else upper - 1
        return found.snapshot(self.spark, at, allow_negative=False)

    def _add_output(
        self, name: str, sink: Sink, node: Node, columns: Sequence[str], schema: T.StructType
    ) -> None:
        """Give the changes of a collection to a sink."""
        with self._lock:
            self._check_open()
            self._given.check_name(name, sink)
            sink.check(schema, self.spark)
            self._keep(node)
            self._given.add(name, sink, node, tuple(columns))

    def _add_keyed_input(
        self, name: str, schema: str | T.StructType, start: Any, key: Sequence[str]
    ) -> tuple[Reader, KeyedSession]:
        with self._lock:
            self._check_open()
            session = self._inputs.new_keyed(name, schema, start, key, self._state)
            found = upsert(session._node)
            self._add_session(session)
            # Its records are there in any case, for changes to be compared with.
            self._grow(Output(found))
        return found, session

    def _add_session(self, session: BaseSession) -> None:
        self._inputs.add(session)
        frontiers = {**self._state.frontiers, session._node: session._content.frontier}
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
                [*sinks, *self._inputs.nodes()], old.graph, old
            )
            self._sinks = sinks

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
                    return meet_all(begins[n] for n in fed)  # it has not run yet
            return meet_all(state.frontiers.get(n, begins[n]) for n in fed)

        return Probe(self.time_type, read)

    def _keep(
        self, node: Node, name: str | None = None, frame: object = None,
        arranged: Arranged | None = None, columns: Sequence[str] = (),
    ) -> None:
        """Keep a collection, by an arrangement if one is given, and under a name; users see its
        columns by some names."""
        with self._lock:
            self._check_open()
            self._outputs.check_name(name, frame)
            if arranged is not None or node not in self._outputs:
                sink = self._outputs.sink(node, arranged)
                self._grow(sink)
                self._outputs.add(node, sink)
            self._outputs.call(name, frame, node, columns)

    def _kept_names(self) -> list[str]:
        """The names under which collections are kept."""
        with self._lock:
            self._check_open()
            return self._outputs.names()

    def _kept(self, name: str) -> object:
        """The frame of a collection that is kept under a name."""
        with self._lock:
            self._check_open()
            return self._outputs.named(name)

    def _check_fresh(self, node: Node) -> None:
        """Say if there is news for a collection that it does not show."""
        with self._lock:
            found = staleness.behind(self._inputs.upstream(node), self._state)
        if found:
            staleness.warn(f"this is the latest complete state, but {found}")

    def _next_to_do(self, node: Node) -> str:
        """What brings a collection further, as a sentence."""
        if self._state.graph is not None and not self._outputs.has_run(node, self._state):
            return "It was added since the last step(): the next one fills it from what is kept"
        found = staleness.behind(self._inputs.upstream(node), self._state)
        return f"But {found}" if found else "Advance its inputs, and step"

    def _arrangement(self, node: Node) -> Arrangement:
        """The kept collection of a node."""
        with self._lock:
            self._check_open()
            return self._outputs.arrangement(node, self._state, self._inputs.start())

    def _hold(self, node: Node, time: int | None) -> Hold:
        with self._lock:
            return self._outputs.hold(node, self._arrangement(node), time)

    def _run_whole(self, node: Node) -> None:
        """Run the whole history of inputs that are given as frames, and keep ``node``."""
        self._keep(node)
        growth = self._build()
        self._advance(growth, *whole_history(growth.graph, self.time_type))

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
        watch = None if on_iteration is None else Watched(on_iteration)
        stop = stop or Stop()
        self._shown = self._complete()
        self._live.begin(self._frontier())
        try:
            try:
                self._commit(growth, old, arrivals, upper, watch, stop)
            except (StepCancelledError, ConcurrentWriteError, UnknownOutcomeError):
                raise
            except Exception as error:
                if self._store is not None:
                    self._store.check_own(error)
                if isinstance(error, (StorageError, MemoryError)):
                    raise
                if not explain or watch is not None and watch.raised:
                    raise
                raise self._blame(stop).error(
                    error, arrivals, upper, bool(self._state.rewinds)
                ) from error
            self._deliver()
            self._give()
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
        after = replace(
            after, offsets=dict(self._sources.offsets),
            given_to=self._given.due(old, after, self._outputs.arranged),
        )
        stop.pass_by()
        # One assignment: before it nothing has changed, and what is left to be done after it
        # follows from the state, however often it is cut short.
        self._state = self._lasting(after)

    def _lasting(self, state: State) -> State:
        """A state that a crash does not take back, where there is a store: as it is then held."""
        if self._store is None:
            return state
        token, self._token = self._token, None
        return self._store.commit(
            state, self._settings(state), self._outputs.called(), token
        )

    def _context(self, growth: Growth, state: State, runner: str, stop: Stop) -> StepContext:
        holds = self._outputs.holds(growth.graph)
        for node, hold in self._given.holds(state).items():
            holds[node] = holds.get(node, hold).meet(hold)
        settings = Settings(
            self._buckets, runner, self.local_rows, self._piece_rows, self._keep_history,
            holds, self._store is not None,
        )
        again: dict[Node, tuple[Arrival, ...]] = {}
        for node in growth.constants:
            start = self._inputs.start().join(growth.since).bound
            assert start is not None  # constants have a beginning
            again[node] = (constant_arrival(node, start),)
        runs = SparkRunner(self.spark, self.time_type, stop)
        return StepContext(growth, state, settings, self._storage, runs, self._live, again, stop)

    def _blame(self, stop: Stop) -> Blame:
        """Who finds what the step that was begun has failed on."""
        begun = self._begun
        assert begun is not None  # it has failed
        # Few updates are tried on the driver, whatever runs steps otherwise.
        runner = "local" if self.runner == "local" else "auto"
        return Blame(
            begun, self._inputs.names(), self.time_type,
            lambda state: self._context(begun.growth, state, runner, stop),
        )

    def _discard(self, node: Input, where: Column | str | None, waiting: bool) -> Discarded:
        self._check_outside("discard")
        discarding.check_condition(where)
        with self._lock:
            return self._take_back([node], where, waiting)[node]

    def _take_back(
        self, nodes: Sequence[Node], where: Column | str | None, waiting: bool
    ) -> dict[Node, Discarded]:
        """Drop what has entered some inputs; returns it."""
        self._check_open()
        old = self._state
        sessions = map(self._inputs.session, nodes)
        after, found = discarding.without(old, sessions, where, waiting)
        if after is not old and self._sources:
            # What was read and is dropped now is not read again.
            names = {self._inputs.session(node).name for node in nodes}
            read = {name: at for name, at in self._sources.offsets.items() if name in names}
            after = replace(after, offsets={**old.offsets, **read})
        self._superseded |= old.paths()
        # One assignment, as for a step. Before it nothing is dropped, and what is left to be done
        # after it is done by the next step, so that what was dropped is surely returned.
        self._state = after if after is old else self._lasting(after)
        return found

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

    def _give(self) -> None:
        """Give sinks what they have not been given."""
        state, start = self._state, self._inputs.start()
        if not state.handed_over:
            self._given.give(
                state, self._identity if self._store is None else self._store.identity,
                lambda node: self._outputs.arrangement(node, state, start, handed_out=False),
            )

    def _tidy(self) -> None:
        """Drop what a step has taken in or superseded, or if it failed, what it wrote."""
        if self._store is not None:
            self._state = self._store.committed(self._state)
        self._inputs.drop(self._state)
        begun, old = self._begun, set(self._superseded)
        if begun is not None and self._state.epoch == begun.state.epoch:
            # Whole directories: buckets that were done before another one failed left files too.
            storage.remove_directories(begun.directories)
        elif begun is not None:
            old |= begun.superseded | set(begun.written)
        if old:
            gone = old - self._state.paths() - self._outputs.pinned
            if self._store is not None:
                # Older commits need what they name; when none does, a vacuum takes it away. What
                # was written and is not in the state was in none.
                never = gone & set(begun.written) if begun is not None else set()
                self._store.files.remove(gone - never)
                storage.remove_files(sorted(never))
            else:
                storage.remove_files(sorted(gone))
        self._begun, self._superseded = None, set()
        if self._store is not None:
            self._store.tidy(self._in_use())

    def _in_use(self) -> list[str]:
        """Files that this process may still read."""
        return [*self._state.paths(), *self._outputs.pinned]

    def _store_of(self, what: str) -> Store:
        self._check_open()
        if self._store is None:
            raise NotReadableError(
                f"{what} is of a dataflow that is kept in a store: Dataflow.open(path, program)"
            )
        return self._store

    def _build(self) -> Growth:
        """What the next step runs."""
        old = self._state.graph
        if self._growth is None:
            self._growth = grown(self._wanted(), old, self._state)
        elif self._growth.late and self._growth.graph is old:
            self._growth = Growth(old)  # it has run
        return self._growth

    def _check_open(self) -> None:
        if not self._open:
            raise ClosedError("this dataflow was closed, and its state removed; make a new one")

    def _check_outside(self, what: str) -> None:
        if self._writing:
            raise StalledError(
                f"{what}() was called while the program is being written: open(path, program) runs "
                "it when it is whole. Write inputs and operators there, and feed and step after it"
            )
        # An RLock knows its owner; a note of our own could be left behind by an interrupt.
        if self._lock._is_owned():  # type: ignore[attr-defined]
            raise StalledError(
                f"{what}() was called by a function that a step of the same dataflow is calling, "
                "and the step cannot go on before that returns. Let the function only take a note "
                f"or feed an input, and call {what}() when the step has returned"
            )
