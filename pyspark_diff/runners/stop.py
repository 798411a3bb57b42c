"""Cancellation of a step by another thread.

    asked before the commit  ==>  the step raises, and nothing has changed
    asked after it           ==>  the answer is no, and the step succeeds

The working thread checks for it between two pieces of work, between two calls of a user's function,
and while it waits for Spark.
"""

from __future__ import annotations

import threading

from pyspark_diff.errors import StepCancelledError
from pyspark_diff.kernels.pauses import looking, who_looks


class Stop:
    """A request of one thread for the end of a step in another thread.

    Examples
    --------
    >>> stop = Stop()
    >>> stop.check()
    >>> stop.pass_by()
    >>> stop.ask()
    False
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked = self._passed = False

    def ask(self) -> bool:
        """Ask for the end of the step; returns whether the step will end early."""
        with self._lock:
            self._asked = self._asked or not self._passed
            return self._asked

    def check(self) -> None:
        """Raise an error if the end was asked for."""
        if self._asked:
            raise StepCancelledError(
                "the step was cancelled; it changed nothing, and step() does all of it again"
            )

    def pass_by(self) -> None:
        """Raise an error if the end was asked for; refuse later requests."""
        with self._lock:
            self.check()
            self._passed = True

    def obeyed(self) -> looking:
        """A context for work of this thread that calls users' functions."""
        return looking(self.check)

    def is_obeyed_here(self) -> bool:
        """Whether this thread does such work, and so cannot wait for the end."""
        return who_looks() == self.check
