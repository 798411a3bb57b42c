"""Steps of a dataflow: what was given is processed, all or nothing, and handed on.

    after a step the state is a new one, or what it raised has changed nothing

The one assignment of the state is the commit; what is left to do behind it follows from the state.
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
from pyspark_diff.dataflow.parts import Parts
from pyspark_diff.engine.context import StepContext
from pyspark_diff.engine.graph import Graph
from pyspark_diff.engine.growth import Growth
from pyspark_diff.engine.pending import Unchanged
from pyspark_diff.engine.progress import Progress, progress_after, progress_of
from pyspark_diff.engine.state import Arrival, Report, Settings, State, Watch
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


class SteppingMethods(Parts):
    """Stepping, and taking back what has entered."""

    @property
    def last_report(self) -> Report:
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
        ...     # Until then ``running.done()``, the probe and `progress` tell how far it is.
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
        """Take all that was given so far as all there is before a time, and process it.

        The usual day: feed the inputs, and call this. It advances every input that is not there
        yet, and steps; then all collections are complete up to, and not including, ``time``.

        Parameters
        ----------
        time : int, date or datetime
            Where times are structs a tuple, or a list of some. All is complete then at times that
            are before each of them in some field.
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
            found = self._take_back(self._inputs.fed(), None, waiting)
            names = self._inputs.names()
            return {names[node]: dropped for node, dropped in found.items()}

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
            # Before the next commit, so that this one does not owe it too. One that fails is
            # tried again after it, and is told then.
            self._owes = False
            try:
                self._deliver()
            except Exception as error:
                if interrupted(error):
                    raise
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
        """Run a failed step again with its pending updates consolidated: if the last one was
        refused too, across times, as later updates may be corrections of earlier ones. If that
        does not help, raise with the updates that are to blame."""
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
        if self._sources.offsets or self._given:
            after = replace(
                after, offsets=dict(self._sources.offsets),
                given_to=self._given.due(old, after, self._outputs.arranged),
            )
        stop.pass_by()
        # One assignment: before it nothing has changed, and what is left to be done after it
        # follows from the state, however often it is cut short.
        self._state = self._lasting(after)
        self._last_steps.append((after.epoch, growth.graph, after.report))

    def _lasting(self, state: State) -> State:
        """A state that a crash does not take back, where there is a store: as it is then held."""
        if self._store is None:
            return state
        token, self._token = self._token, None
        return self._store.commit(
            state, self._settings(state), self._outputs.called(), token
        )

    def _check_zone(self, graph: Graph) -> None:
        """Refuse a step under another time zone than that of a formula. Spark checks the others.

        Raises
        ------
        SettingsChangedError
        """
        if self._zoned is None or self._zoned[0] is not graph:
            stages = [node.stage for node in graph.nodes if isinstance(node, Linear)]
            # Most formulas share one record, and each is compared by a call of the JVM.
            self._zoned = graph, list(dict.fromkeys(
                stage.by_spark.written for stage in stages
                if isinstance(stage, (Compute, Filter)) and stage.by_spark.reads_zone
            ))
        for written in self._zoned[1]:
            if written is not None:
                written.check(self.spark, lambda: True)

    def _context(self, growth: Growth, state: State, runner: str, stop: Stop) -> StepContext:
        self._check_zone(growth.graph)
        held = self._outputs.holds(growth.graph)
        holds = dict(held)
        sinks = self._given.holds(
            state, self._inputs.start(), lambda node: self._outputs.arranged(node, growth.graph)
        )
        for node, hold in sinks.items():
            holds[node] = holds.get(node, hold).meet(hold)
        settings = Settings(
            self._buckets, runner, self.local_rows, self._piece_rows, self._keep_history,
            holds, self._store is not None, self.times is not None, held,
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

    def _deliver(self) -> None:
        """Give consumers what they have not been given, each in order; none waits for another."""
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
        """Give sinks what they have not been given."""
        state = self._state
        if not state.handed_over:
            start = self._inputs.start()
            self._given.give(
                state, self._identity if self._store is None else self._store.identity,
                lambda node: self._outputs.arrangement(node, state, start, handed_out=False),
            )

    def _tidy(self) -> None:
        """Drop what a step has taken in or superseded, or if it failed, what it wrote."""
        if self._store is not None:
            self._state = self._store.committed(self._state)
        self._inputs.drop(self._state)
        begun, old, beside = self._begun, set(self._superseded), None
        if begun is not None and self._state.epoch == begun.state.epoch:
            # Whole directories: buckets that were done before another one failed left files too.
            storage.remove_directories(begun.directories)
        elif begun is not None:
            # Most steps merge nothing, and need all that there was before.
            superseded = begun.before.paths(begun.touched, self._state)
            if not superseded and not old:
                beside = begun.before
            old |= superseded | set(begun.written)
        if old:
            touched = None if begun is None or self._superseded else begun.touched
            gone = old - self._state.paths(touched, beside) - self._outputs.pinned
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
