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

#: Seconds between two checks whether a waiting step was cancelled.
EVERY = 0.1


class RunningStep:
    """A step that runs in a thread of its own; `Dataflow.step_async` returns it.

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
        #: Raises if a function that a step of the same dataflow runs is the caller.
        self._outside = outside
        self._answer: Future[bool] = Future()
        self._reported = False

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
        """Whether the step has ended: committed, failed or cancelled. This method never raises."""
        return self._answer.done()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the step has ended.

        Ctrl-C ends the wait, and not the step. At any other point PySpark cancels all Spark jobs
        on Ctrl-C, and a step with a running job fails.

        Parameters
        ----------
        timeout : float, optional
            Seconds; by default the wait has no limit.

        Returns
        -------
        bool
            Whether the step had anything to process.

        Raises
        ------
        TimeoutError
            If the step still runs after the timeout. The step continues.
        StepCancelledError
            If the step was cancelled.
        StalledError
            If a function that a step of the same dataflow calls would wait for ever.
        StepError
            And every other error that `Dataflow.step` raises.
        """
        if not self.done():
            self._outside("wait")
        with cancelling_nothing():
            waiting = wait_for([self._answer], timeout).not_done
        if waiting:
            raise TimeoutError(f"the step is still running after {timeout} s; it goes on")
        self._reported = True
        return self._answer.result()

    def cancel(self) -> bool:
        """End the step if it has not committed, and wait for its end.

        The updates in the inputs stay there, and the next step processes them. A user's function on
        the driver is not interrupted: the step ends after the function returns. If such a function
        calls this method, the method returns at once, and the step ends after the function.

        Returns
        -------
        bool
            Whether the step has ended without any effect. False if it committed before, or failed
            with another error: `wait` reports which.
        """
        asked = self._stop.ask()
        here = threading.current_thread() is self._thread or self._stop.is_obeyed_here()
        if not asked or here:
            return asked
        wait_for([self._answer])
        self._reported = self._reported or isinstance(self._answer.exception(), StepCancelledError)
        return isinstance(self._answer.exception(), StepCancelledError)

    def _end(self) -> None:
        with cancelling_nothing():
            wait_for([self._answer])

    @property
    def _unreported(self) -> BaseException | None:
        """The error, if no call has reported it."""
        return self._answer.exception() if self._answer.done() and not self._reported else None


class RunningSteps:
    """The steps of a dataflow that still run or whose error was not reported; holds state."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: list[RunningStep] = []

    def begin(
        self, spark: SparkSession, step: Callable[[Stop], bool], outside: Callable[[str], None]
    ) -> RunningStep:
        """Start a further step."""
        with self._lock:
            running = RunningStep(spark, step, outside)
            unfinished = [r for r in self._running if not r.done()]
            self._running = [*self._last_failure(), *unfinished, running]
        return running

    def cancel(self) -> None:
        """Cancel all steps that have not ended."""
        # All are asked first, so that the end of one step does not let the next one begin.
        for running in self._running:
            running._stop.ask()
        for running in self._running:
            running.cancel()

    def wait(self) -> None:
        """Wait until all steps have ended; raises none of their errors."""
        for running in list(self._running):
            running._end()

    def close(self) -> None:
        """Warn of the last failure if no call has reported it."""
        for running in self._last_failure():
            warnings.warn(
                "a step in the background has failed, and nobody has waited for it: "
                f"{running._unreported}", RuntimeWarning, stacklevel=3,
            )
        self._running = []

    def _last_failure(self) -> list[RunningStep]:
        """The last failed step without a report, if any."""
        # Only the last: an error keeps the objects of its step alive.
        return [r for r in self._running if r._unreported is not None][-1:]
