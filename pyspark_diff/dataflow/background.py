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

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from pyspark_diff.errors import StepCancelledError
from pyspark_diff.runners.stop import Stop


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

    def __init__(self, spark: SparkSession, step: Callable[[Stop], bool]):
        self._stop = Stop()
        self._answer: Future[bool] = Future()
        self._seen = False

        def run() -> None:
            try:
                self._stop.check()
                self._answer.set_result(step(self._stop))
            except BaseException as error:
                self._answer.set_exception(error)

        # Not a daemon: a program that ends waits for it, as it waits for a step.
        self._thread = InheritableThread(run, session=spark, name="pyspark_diff step")
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

        Ctrl-C ends the wait, and not the step.

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
        StepError
            And all else that `Dataflow.step` raises.
        """
        if wait_for([self._answer], timeout).not_done:
            raise TimeoutError(f"the step is still running after {timeout} s; it goes on")
        self._seen = True
        return self._answer.result()

    def cancel(self) -> bool:
        """End the step, unless it is too late for that, and wait for its end.

        What was given to the inputs stays there, and the next step takes it.

        Returns
        -------
        bool
            Whether the step has ended without any effect. False if it was committed before, or has
            failed otherwise: `wait` tells.
        """
        asked = self._stop.ask()
        if not asked or threading.current_thread() is self._thread:
            return asked
        wait_for([self._answer])
        self._seen = self._seen or isinstance(self._answer.exception(), StepCancelledError)
        return isinstance(self._answer.exception(), StepCancelledError)

    @property
    def _unseen(self) -> BaseException | None:
        """Why it failed, if nobody has been told."""
        return self._answer.exception() if self._answer.done() and not self._seen else None


class RunningSteps:
    """The steps of a dataflow that are not over, or not looked at. It holds state: which they are.
    """

    def __init__(self) -> None:
        self._running: list[RunningStep] = []

    def begin(self, spark: SparkSession, step: Callable[[Stop], bool]) -> RunningStep:
        """Run one more."""
        running = RunningStep(spark, step)
        self._running = [r for r in self._running if not r.done() or r._unseen] + [running]
        return running

    def cancel(self) -> None:
        """End all that is not over."""
        for running in self._running:
            running.cancel()

    def close(self) -> None:
        """Warn whoever closes the dataflow of those that have failed, and nobody was told."""
        for running in self._running:
            if running._unseen is not None:
                warnings.warn(
                    "a step in the background has failed, and nobody has waited for it: "
                    f"{running._unseen}", RuntimeWarning, stacklevel=3,
                )
        self._running = []
