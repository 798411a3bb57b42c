"""Steps that run while the thread that asked for them goes on.

    wait() of a step in the background  ≡  step()             the same answer, or the same error
    cancel() before the commit          ⟹  nothing has changed, and no file is left
"""

from __future__ import annotations

import threading
import warnings
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import Callable

from pyspark.sql import SparkSession

from pyspark_diff.errors import StepCancelledError
from pyspark_diff.runners.stop import Stop
from pyspark_diff.spark.jobs import cancelling_nothing, inheriting_thread

#: Seconds between two looks at whether a step is still wanted that waits for another one.
EVERY = 0.1


class RunningStep:
    """A step that runs in a thread of its own, made by `Dataflow.step_async`.

    Examples
    --------
    >>> from pyspark_diff import Dataflow
    >>> with Dataflow(spark) as flow:
    ...     words, words_in = flow.input("words", "word string")
    ...     counts = words.count().keep()
    ...     words_in.insert([("a",), ("a",)])
    ...     words_in.advance_to(1)
    ...     running = flow.step_async()
    ...     words_in.insert([("b",)])
    ...     print(running.wait())
    ...     counts.at().collect()
    True
    [Row(word='a', count=2)]
    """

    def __init__(
        self, spark: SparkSession, step: Callable[[Stop], bool], outside: Callable[[str], None]
    ):
        self._stop = Stop()
        #: Raises where a step of the dataflow calls what asks.
        self._outside = outside
        self._answer: Future[bool] = Future()
        self._seen = False

        def run() -> bool:
            self._stop.check()
            return step(self._stop)

        # Not a daemon: a program that ends waits for it, as it waits for a step.
        self._thread = inheriting_thread(spark, run, self._answer, name="pyspark_diff step")
        self._thread.start()

    def __repr__(self) -> str:
        if not self._answer.done():
            return "RunningStep(running)"
        error = self._answer.exception()
        if error is None:
            return "RunningStep(done)"
        how = "cancelled" if isinstance(error, StepCancelledError) else "failed"
        return f"RunningStep({how})"

    def done(self) -> bool:
        """Whether it is over: committed, failed or cancelled. Nothing is raised here."""
        return self._answer.done()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is over.

        Ctrl-C ends the wait, and not the step. Anywhere else PySpark itself takes Ctrl-C for the
        end of all Spark jobs, and a step that has one fails.

        Parameters
        ----------
        timeout : float, optional
            Seconds; for ever if not given.

        Returns
        -------
        bool
            Whether there was anything to do.

        Raises
        ------
        TimeoutError
            If it is not over by then. It goes on.
        StepCancelledError
            If it was cancelled.
        StalledError
            If a function that a step of the same dataflow calls would wait for ever.
        StepError
            And all else that `Dataflow.step` raises.
        """
        if not self.done():
            self._outside("wait")
        with cancelling_nothing():
            waiting = wait_for([self._answer], timeout).not_done
        if waiting:
            raise TimeoutError(f"the step is still running after {timeout} s; it goes on")
        self._seen = True
        return self._answer.result()

    def cancel(self) -> bool:
        """End the step, unless it is too late for that, and wait for its end.

        What was given to the inputs stays there, and the next step takes it. A function of the user
        that runs on the driver is not cut short: the step ends when it returns. If it is such a
        function that calls this, nobody waits, and the step ends when that returns.

        Returns
        -------
        bool
            Whether the step has ended without any effect. False if it was committed before, or has
            failed otherwise: `wait` tells.
        """
        asked = self._stop.ask()
        here = threading.current_thread() is self._thread or self._stop.is_obeyed_here()
        if not asked or here:
            return asked
        wait_for([self._answer])
        self._seen = self._seen or isinstance(self._answer.exception(), StepCancelledError)
        return isinstance(self._answer.exception(), StepCancelledError)

    def _end(self) -> None:
        """Wait until it is over, whatever its answer."""
        with cancelling_nothing():
            wait_for([self._answer])

    @property
    def _unseen(self) -> BaseException | None:
        """Why it failed, if nobody has been told."""
        return self._answer.exception() if self._answer.done() and not self._seen else None


class RunningSteps:
    """The steps of a dataflow that are not over, or not looked at. It holds state: which they are.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: list[RunningStep] = []

    def begin(
        self, spark: SparkSession, step: Callable[[Stop], bool], outside: Callable[[str], None]
    ) -> RunningStep:
        """Run one more."""
        with self._lock:
            running = RunningStep(spark, step, outside)
            going = [r for r in self._running if not r.done()]
            self._running = [*self._untold(), *going, running]
        return running

    def cancel(self) -> None:
        """End all that is not over: none of them begins when another one ends."""
        for running in self._running:
            running._stop.ask()
        for running in self._running:
            running.cancel()

    def wait(self) -> None:
        """Wait until all are over, whatever their answers."""
        for running in list(self._running):
            running._end()

    def close(self) -> None:
        """Warn whoever closes the dataflow of the last failure, if nobody was told."""
        for running in self._untold():
            warnings.warn(
                "a step in the background has failed, and nobody has waited for it: "
                f"{running._unseen}", RuntimeWarning, stacklevel=3,
            )
        self._running = []

    def _untold(self) -> list[RunningStep]:
        """The last that has failed, if nobody was told: an error holds on to what its step held."""
        return [r for r in self._running if r._unseen is not None][-1:]
