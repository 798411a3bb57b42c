"""What ends a step from another thread.

    asked before the commit  ==>  the step raises, and nothing has changed
    asked after it           ==>  the answer is no, and the step stands

Whoever works looks here between two pieces of work, between two calls of a function of the user,
and while it waits for Spark.
"""

from __future__ import annotations

import threading

from pyspark_diff.errors import StepCancelledError
from pyspark_diff.kernels.pauses import looking, who_looks


class Stop:
    """Asked for by one thread, and obeyed by the one that works.

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
        """Ask for the end; returns whether it will come."""
        with self._lock:
            self._asked = self._asked or not self._passed
            return self._asked

    def check(self) -> None:
        """Raise if it was asked for."""
        if self._asked:
            raise StepCancelledError(
                "the step was cancelled; it changed nothing, and step() does all of it again"
            )

    def pass_by(self) -> None:
        """Raise if it was asked for; from now on it is too late."""
        with self._lock:
            self.check()
            self._passed = True

    def obeyed(self) -> looking:
        """Around work of this thread that calls functions of the user."""
        return looking(self.check)

    def is_obeyed_here(self) -> bool:
        """Whether this thread does such work: it cannot wait for the end."""
        return who_looks() == self.check
