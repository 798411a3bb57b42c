"""Steps of a dataflow: each processes the entered updates, atomically, and delivers the changes.

    after a step either the state is a new one, or the step raised and changed nothing

A single assignment of the state is the commit. The state determines the work that remains after it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Callable, Literal, Mapping, Sequence

from pyspark.sql import Column

from pyspark_diff.dataflow import discarding, staleness
from pyspark_diff.dataflow.background import EVERY, RunningStep
from pyspark_diff.dataflow.blame import Blame, Watched
from pyspark_diff.dataflow.input_session import Discarded
from pyspark_diff.dataflow.inputs import constant_arrival
from pyspark_diff.dataflow.parts import DataflowState
from pyspark_diff.engine.context import StepContext
from pyspark_diff.engine.graph import Graph
from pyspark_diff.engine.growth import Growth
from pyspark_diff.engine.pending import Unchanged
from pyspark_diff.engine.progress import Progress, progress_after, progress_of
from pyspark_diff.engine.state import Arrival, Report, State, StepSettings, Watch
from pyspark_diff.engine.step import Step
from pyspark_diff.errors import (
    ConcurrentWriteError,
    FallbackError,
    RepeatedTokenError,
    SettingsChangedError,
    StalledError,
    StepCancelledError,
    StorageError,
    UnknownOutcomeError,
)
from pyspark_diff.fallbacks import counting, move
from pyspark_diff.kernels.jit import interrupted, interruptible
from pyspark_diff.operators.node import Input, Linear, Node
from pyspark_diff.operators.projection import Compute, Filter
from pyspark_diff.runners.spark import SparkRunner
from pyspark_diff.runners.stop import Stop
from pyspark_diff.times import Antichain
from pyspark_diff.trace import storage


#: Errors of a step that do not come from its updates, so that no correction helps.
UNRELATED = (
    StepCancelledError, ConcurrentWriteError, UnknownOutcomeError, StorageError, FallbackError,
    SettingsChangedError,
)


class SteppingMethods(DataflowState):
    """Steps, and discarding of updates."""

    @property
    def last_report(self) -> Report:
        """The report of the last step."""
        return self._state.report

    def step(self, on_iteration: Watch | None = None, *, token: str | None = None) -> bool:
        """Process all entered updates, up to the times that the inputs have advanced to.

        If updates wait because their input was not advanced, a step with nothing else to do warns
        with a StaleWarning.

        A step is atomic: if it raises, nothing has changed and it can be called again. Functions of
        `DiffFrame.inspect` run after the step: if one of them raises, the step remains committed,
        all others receive their updates, and the next call of `step` continues the delivery.

        During a step other threads may feed the inputs. A thread that steps, reads, closes or adds
        operators waits for the end. A function that a step calls cannot step itself.

        Parameters
        ----------
        on_iteration : callable, optional
            This thread calls it after each iteration of a loop, during the step, with the ``loop``,
            ``iteration``, ``changes`` and ``seconds`` that `iterations` shows after the step. An
            error that it raises undoes the step.
        token : str, optional
            The name of the commit, such as the day, in a dataflow with a store. A job that runs
            again reads in `token` the last one that it committed. A step with further updates for
            the same token is refused.

        Returns
        -------
        bool
            Whether there was anything to process.

        Raises
        ------
        StepError
            If an expression or a function of the user, or Spark, has failed; the cause is its
            error. Errors of the library keep their class. The message names the input, the time and
            some of the updates that are to blame, if trials with fewer updates find them. Drop
            these updates with `discard`.
        """
        self._check_outside("step")
        with self._lock:
            self._check_token(token)
            self._inputs.hand_over()
            return self._step(on_iteration, token=token)

    def step_async(self, on_iteration: Watch | None = None) -> RunningStep:
        """Start a `step` in a thread of its own and return.

        The step processes all updates that entered before this call. Probes and `progress` report
        how far it is. As with any step of another thread, a read returns the state before the
        step or waits for its end. The functions of `DiffFrame.inspect` run in the step's thread.

        Parameters
        ----------
        on_iteration : callable, optional
            See `step`; the thread of the step calls it.

        Returns
        -------
        RunningStep
            Waits for the step or cancels it; its `wait` raises the error of the step.

        Examples
        --------
        >>> from pyspark_diff import Dataflow
        >>> with Dataflow(spark) as flow:
        ...     words, words_in = flow.input("words", "word string")
        ...     probe = words.count().keep().probe()
        ...     words_in.insert([("a",)])
        ...     words_in.advance_to(1)
        ...     running = flow.step_async()
        ...     # Until then ``running.done()``, the probe and `progress` report how far it is.
        ...     running.wait(timeout=60), probe.less_than(1), flow.progress().frontier
        (True, False, Antichain([1]))
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

    def advance_to(
        self, time: Any, on_iteration: Watch | None = None, *, token: str | None = None
    ) -> bool:
        """Declare all inputs complete before a time, and process their updates.

        A daily job feeds the inputs and calls this method. It advances every input that is before
        ``time``, and steps. Afterwards all collections are complete up to, and not including,
        ``time``.

        Parameters
        ----------
        time : int, date or datetime
            If times are structs, a tuple or a list of tuples. Afterwards all collections are
            complete at times that are before each tuple in some field.
        on_iteration : callable, optional
        token : str, optional
            See `step`.

        Returns
        -------
        bool
            Whether there was anything to process.

        Raises
        ------
        TimeRegressionError
            If all open inputs are beyond ``time``. If only some are, these keep their times.
        StepError
            See `step`. The inputs have advanced then, and a further `step` tries again.

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

    def step_while(
        self, condition: Callable[[], bool], on_iteration: Watch | None = None
    ) -> None:
        """Step while a condition holds, usually that a probe lags behind an input.

        Parameters
        ----------
        condition : callable
            For example ``lambda: probe.less_than(session.time())``.
        on_iteration : callable, optional
            See `step`.

        Raises
        ------
        StalledError
            If the condition holds and a step has nothing to process.
        """
        self._check_open()
        while condition():
            if not self.step(on_iteration):
                reached = staleness.frontiers(self._inputs.sessions(), self._state)
                raise StalledError(
                    f"the condition still holds, but there is nothing left to do: {reached}. "
                    "Advance these inputs"
                )

    def discard(self, *, waiting: bool = False) -> dict[str, Discarded]:
        """Drop the updates of all inputs that no step has processed: see `InputSession.discard`.

        Parameters
        ----------
        waiting : bool
            Also drop updates that earlier steps took in and that wait for lagging inputs.

        Returns
        -------
        dict
            The dropped updates of each input, by its name.
        """
        self._check_outside("discard")
        with self._lock:
            discarded = self._take_back(self._inputs.fed(), None, waiting)
            names = self._inputs.names()
            return {names[node]: dropped for node, dropped in discarded.items()}

    def progress(self) -> Progress:
        """The progress of the running step, or the last one if none runs. Any thread may call this.

        Returns
        -------
        Progress
            Its ``frontier`` is the meet of the frontiers of all collections.

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
        # A committed step owns its jobs until its files are cleaned up.
        jobs = self._live.before if begun is None else begun.jobs
        return progress_after(shown, jobs.counts(), frontier)

    def _check_token(self, token: str | None) -> None:
        self._check_open()
        if token is not None:
            store = self._store_of("a token")
            if not isinstance(token, str) or not token:
                raise TypeError(f"a token is a text, not {token!r}")
            number = store.tokens.get(token)
            if number is not None and self._inputs.has_more(self._state):
                raise RepeatedTokenError(
                    f"the token {token!r} is that of commit {number}, and inputs have updates that "
                    "are not in it. If this is the same job again, drop them, discard(); else give "
                    "the step a token of its own"
                )

    @interruptible()
    def _step(
        self, on_iteration: Watch | None, stop: Stop | None = None, token: str | None = None
    ) -> bool:
        with counting(self._inputs.fallbacks):
            return self._step_counted(on_iteration, stop, token)

    def _step_counted(
        self, on_iteration: Watch | None, stop: Stop | None, token: str | None
    ) -> bool:
        self._check_open()
        self._token = token
        if self._owes:
            # Before the next commit, so that the commit does not record these deliveries again. A
            # failed delivery is repeated after the commit, and its error is raised then.
            self._owes = False
            try:
                self._deliver()
            except Exception as error:
                if interrupted(error):
                    raise
        # Sinks receive the steps in order, so a pending one is first.
        self._give()
        growth = self._build()
        graph = growth.graph
        if self._begun is not None or self._superseded:
            self._tidy()
        old = self._state
        if graph is not old.graph:
            old = growth.extended(old, self._inputs.begins, self._inputs.start())
        arrivals, upper = self._inputs.flushed_since(graph, old)
        moved = any(upper[node] != old.frontiers.get(node) for node in upper)
        if moved or any(arrivals.values()) or growth.late or old.rewinds:
            self._advance(growth, old, arrivals, upper, on_iteration, stop, explain=True)
        elif self._state.handed_over:
            waiting = staleness.left(self._inputs.sessions(), self._state)
            if waiting:
                staleness.warn(f"step() had nothing to do, but {waiting}")
            return False
        else:
            if stop is not None:
                stop.pass_by()
            self._deliver()
            self._give()
        return True

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
        self._shown, before = self._complete(), self._state
        self._live.begin(partial(self._inputs.frontier, self._shown))
        try:
            try:
                self._commit(growth, old, arrivals, upper, watch, stop)
            except Exception as error:
                self._check_of_data(error, watch)
                if not explain or self._begun is None:  # no operator ran
                    raise
                refused, self._refused = self._refused, True
                self._retry(error, growth, old, arrivals, upper, watch, stop, refused)
            self._refused = False
            if self._state.outbox:
                self._deliver()
            self._give()
        finally:
            self._live.end(self._frontier)
            if self._state is not before:
                move(self._inputs.fallbacks, self._state.report.fallbacks)
            self._tidy()

    def _check_of_data(self, error: Exception, watch: Watched | None) -> None:
        """Raise an error of a step again if the updates are not to blame for it."""
        if self._store is not None and not isinstance(error, UNRELATED[:3]):
            self._store.check_own(error)
        unrelated = isinstance(error, (*UNRELATED, MemoryError)) or interrupted(error)
        if unrelated or watch is not None and watch.raised:
            raise error

    def _retry(
        self,
        error: Exception,
        growth: Growth,
        old: State,
        arrivals: Mapping[Node, tuple[Arrival, ...]],
        upper: Mapping[Node, Antichain],
        watch: Watched | None,
        stop: Stop,
        refused: bool,
    ) -> None:
        """Run a failed step again with its pending updates consolidated.

        If the last step was refused too, updates of all times are consolidated together: later ones
        may correct earlier ones. If the second run fails, the error names the updates to blame.
        """
        first, again = self._begun, bool(self._state.rewinds)
        assert first is not None  # it has failed
        # Also the updates that earlier steps released and that wait for another input.
        waits = frozenset(node for node, recent in old.recent.items() if recent)
        tried = [first]
        try:
            self._commit(
                growth, replace(old, rewinds=old.rewinds | waits), arrivals, upper, watch, stop,
                consolidates="all" if refused else "times",
            )
            return
        except Exception as other:
            if not isinstance(other, Unchanged):
                self._check_of_data(other, watch)
            second = self._begun
            assert second is not None
            tried.append(second)
            if second.left is None:
                self._begun = first
            else:  # the cause of the first failure is corrected
                error, arrivals, again = other, second.left, again or bool(waits)
            raise self._blame(stop).error(error, arrivals, again) from error
        finally:
            for context in tried:
                if context is not self._begun:
                    storage.remove_directories(context.directories)

    def _commit(
        self,
        growth: Growth,
        old: State,
        arrivals: Mapping[Node, tuple[Arrival, ...]],
        upper: Mapping[Node, Antichain],
        on_iteration: Watch | None,
        stop: Stop,
        consolidates: Literal["times", "all"] | None = None,
    ) -> None:
        self._begun = context = self._context(growth, old, self.runner, stop)
        after = Step(context, on_iteration, consolidates).run(arrivals, upper)
        if self._sources.offsets or self._consumers:
            after = replace(
                after, offsets=dict(self._sources.offsets),
                given_to=self._consumers.due(old, after, self._outputs.arranged),
            )
        stop.pass_by()
        # A single assignment: before it nothing has changed. The state determines the remaining
        # work, so an interrupted step is completed by the next one.
        self._state = self._lasting(after)
        self._last_steps.append((after.epoch, growth.graph, after.report))

    def _lasting(self, state: State) -> State:
        """A state after its commit to the store, if there is one."""
        if self._store is None:
            return state
        token, self._token = self._token, None
        return self._store.commit(
            state, self._settings(state), self._outputs.called(), token
        )

    def _check_zone(self, graph: Graph) -> None:
        """Refuse a step if the session's time zone differs from a formula's. Spark checks the
        other settings.

        Raises
        ------
        SettingsChangedError
        """
        if self._zoned is None or self._zoned[0] is not graph:
            stages = [node.stage for node in graph.nodes if isinstance(node, Linear)]
            # Most formulas share a record of settings, and each comparison calls the JVM.
            self._zoned = graph, list(dict.fromkeys(
                stage.by_spark.written for stage in stages
                if isinstance(stage, (Compute, Filter)) and stage.by_spark.reads_zone
            ))
        for written in self._zoned[1]:
            if written is not None:
                written.check(self.spark, lambda: True)

    def _context(self, growth: Growth, state: State, runner: str, stop: Stop) -> StepContext:
        self._check_zone(growth.graph)
        user_holds = self._outputs.holds(growth.graph)
        holds = dict(user_holds)
        sinks = self._consumers.holds(
            state, self._inputs.start(), lambda node: self._outputs.arranged(node, growth.graph)
        )
        for node, hold in sinks.items():
            holds[node] = holds.get(node, hold).meet(hold)
        settings = StepSettings(
            self._buckets, runner, self.local_rows, self._piece_rows, self._keep_history,
            holds, self._store is not None, self.times is not None, user_holds,
        )
        again: dict[Node, tuple[Arrival, ...]] = {}
        for node in growth.constants:
            begin = self._inputs.start()
            start = (begin.join(growth.since) if growth.bases else begin).bound
            assert start is not None  # constants have a beginning
            again[node] = (constant_arrival(node, start),)
        runs = SparkRunner(self.spark, self.time_type, stop)
        return StepContext(growth, state, settings, self._storage, runs, self._live, again, stop)

    def _blame(self, stop: Stop) -> Blame:
        """The search for the updates on which the begun step has failed."""
        begun = self._begun
        assert begun is not None  # it has failed
        # Trials of few updates run on the driver, even if steps run on Spark.
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
        """Drop updates that have entered some inputs, and return them."""
        self._check_open()
        old = self._state
        sessions = map(self._inputs.session, nodes)
        after, discarded = discarding.without(old, sessions, where, waiting)
        if after is not old and self._sources:
            # Sources do not read the dropped rows again.
            names = {self._inputs.session(node).name for node in nodes}
            read = {name: at for name, at in self._sources.offsets.items() if name in names}
            after = replace(after, offsets={**old.offsets, **read})
        self._superseded |= old.paths()
        # A single assignment, as for a step. Before it nothing is dropped, and only the next step
        # does the remaining work, so this call surely returns the dropped updates.
        self._state = after if after is old else self._lasting(after)
        return discarded

    def _deliver(self) -> None:
        """Call consumers with their pending updates, in order. A failed one delays no other."""
        failed: dict[Node, Exception] = {}
        for delivery in self._state.outbox:
            if not delivery.done and delivery.node not in failed:
                try:
                    delivery.give(self.time_name, self.diff_name)
                except Exception as error:
                    if interrupted(error):
                        raise
                    failed[delivery.node] = error
        for first in failed.values():
            raise first

    def _give(self) -> None:
        """Write the pending epoch of each sink."""
        state = self._state
        if not state.handed_over:
            start = self._inputs.start()
            self._consumers.give(
                state, self._identity if self._store is None else self._store.identity,
                lambda node: self._outputs.arrangement(node, state, start, handed_out=False),
            )

    def _tidy(self) -> None:
        """Remove the updates and files that a step has superseded, or the files of a failed step.
        """
        if self._store is not None:
            self._state = self._store.committed(self._state)
        self._inputs.drop(self._state)
        begun, old, previous = self._begun, set(self._superseded), None
        if begun is not None and self._state.epoch == begun.state.epoch:
            # Whole directories: buckets that finished before another one failed left files too.
            storage.remove_directories(begun.directories)
        elif begun is not None:
            # Most steps merge no batches, and need all files of the state before.
            superseded = begun.before.paths(begun.touched, self._state)
            if not superseded and not old:
                previous = begun.before
            old |= superseded | set(begun.written)
        if old:
            touched = None if begun is None or self._superseded else begun.touched
            unused = old - self._state.paths(touched, previous) - self._outputs.pinned
            if self._store is not None:
                # Older commits need the files that they name, and a vacuum removes them later. A
                # file that the step wrote and the state lacks is in no commit.
                uncommitted = unused & set(begun.written) if begun is not None else set()
                self._store.files.remove(unused - uncommitted)
                storage.remove_files(sorted(uncommitted))
            else:
                storage.remove_files(sorted(unused))
        self._begun, self._superseded = None, set()
        if self._store is not None:
            self._store.tidy(self._in_use())
