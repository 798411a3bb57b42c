"""Progress of long steps: on a bar in a terminal or notebook, and in the log.

    a step of less than `progress_after_seconds` shows nothing, and costs an entry in a list

One thread reads the running steps twice a second, and ends after some time without any step. It
reads the present operator of a step, and the number of finished operators.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark_diff import thresholds
from pyspark_diff.engine.context import StepContext
from pyspark_diff.engine.state import State
from pyspark_diff.engine.subgraph import Subgraph
from pyspark_diff.spark.bridge import JobCounts
from pyspark_diff.times import Antichain

#: The setting of a Spark session that permits bars.
PROGRESS = "spark.pyspark_diff.progress"

_logger = logging.getLogger("pyspark_diff")


class Progress(NamedTuple):
    """The progress of a dataflow. While a step runs, no number decreases.

    Parameters
    ----------
    step : int
        The number of the step, the first being 1.
    running : bool
        Whether a step is in progress; otherwise all values belong to the last step.
    frontier : Antichain
        The frontier of complete collections and of received outputs, as in `Probe`. It moves at
        the commit of a step.
    operator : str
        The present operator or loop.
    operators_done, operators : int
        Numbers of operators; a loop is one.
    iterations : int
        The number of finished iterations of loops.
    rows : int
        The number of update rows that operators have arranged or looked up.
    jobs, jobs_done : int
        Numbers of Spark jobs.
    tasks, tasks_done : int
        Numbers of tasks of the jobs so far. These numbers and the next three need a bridge into
        Spark, so they are unknown over Spark Connect.
    task_rows, task_bytes : int
        Rows and bytes that tasks have moved, with those of running tasks. A cluster reports them
        with the heartbeats of its executors. A task that computes moves nothing.
    task_seconds : float
        The sum of the tasks' run times, with those of running tasks.
    seconds : float
        Seconds since the begin of the step.
    """

    step: int
    running: bool
    frontier: Antichain
    operator: str = ""
    operators_done: int = 0
    operators: int = 0
    iterations: int = 0
    rows: int = 0
    jobs: int = 0
    jobs_done: int = 0
    tasks: int = 0
    tasks_done: int = 0
    task_rows: int = 0
    task_bytes: int = 0
    task_seconds: float = 0.0
    seconds: float = 0.0


def progress_of(context: StepContext, frontier: Antichain = Antichain()) -> Progress:
    """The progress of a running step."""
    jobs = context.jobs.counts()
    graph, report, doing = context.graph, context.report, context.doing
    name = "start"
    if isinstance(doing, Subgraph):
        name = doing.loop.name
    elif doing is not None:
        name = graph.program.name(doing)
    return Progress(
        context.state.epoch + 1, True, frontier, name, context.done, len(graph.order),
        len(report.iterations), report.rows_in + report.rows_read, jobs.jobs, jobs.jobs_done,
        jobs.tasks, jobs.tasks_done, jobs.rows, jobs.bytes, jobs.seconds,
        time.monotonic() - context.began,
    )


def progress_after(state: State, jobs: JobCounts, frontier: Antichain) -> Progress:
    """The progress of the step before a state, with the counts of its Spark jobs."""
    report = state.report
    operators = 0 if state.graph is None else len(state.graph.order)
    return Progress(
        state.epoch, False, frontier, "", operators, operators, len(report.iterations),
        report.rows_in + report.rows_read, jobs.jobs, jobs.jobs_done, jobs.tasks,
        jobs.tasks_done, jobs.rows, jobs.bytes, jobs.seconds, report.seconds,
    )


@dataclass(eq=False)
class _Run:
    """A running step, with its bar."""

    context: StepContext
    bars: bool
    began: float
    logged: float = 0.0
    bar: Any = None

    def look(self, now: float) -> None:
        if now - self.began < thresholds.current.progress_after_seconds:
            return
        at = progress_of(self.context)
        done, doing = at.operators_done, at.operator
        order = self.context.graph.order
        if not self.logged or now - self.logged >= thresholds.current.progress_log_seconds:
            self.logged = now
            _logger.info(
                "step: %s, %d of %d operators done, %d of %d tasks of Spark, %.0f s", doing, done,
                len(order), at.tasks_done, at.tasks, now - self.began,
            )
        if self.bars and self.bar is None:
            self.bar = _bar(self.context, len(order))
            self.bars = self.bar is not None
        if self.bar is not None:
            self.bar.set_description_str(doing, refresh=False)
            self.bar.n = done
            self.bar.set_postfix_str(_postfix(at), refresh=False)
            self.bar.refresh()

    def end(self) -> None:
        if self.bar is not None:
            self.bar.close()
        if self.logged:
            _logger.info("step: over after %.0f s", time.monotonic() - self.began)


class _Watcher:
    """The thread, with the running steps."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: list[_Run] = []
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def begin(self, run: _Run) -> None:
        with self._lock:
            self._runs.append(run)
            # A forked process has the variable, but not the thread. A question to the thread costs
            # a third of a millisecond.
            if self._thread is None or self._process != os.getpid():
                self._process = os.getpid()
                self._thread = threading.Thread(
                    target=self._look, name="pyspark_diff progress", daemon=True
                )
                self._thread.start()

    def end(self, run: _Run) -> None:
        with self._lock:
            self._runs = [other for other in self._runs if other is not run]
            run.end()

    def _look(self) -> None:
        idle = time.monotonic()
        while True:
            # No step wakes the thread, since steps of a millisecond must not pay for that.
            time.sleep(thresholds.current.progress_read_seconds)
            with self._lock:
                now = time.monotonic()
                if self._runs:
                    idle = now
                elif now - idle >= thresholds.current.progress_idle_seconds:
                    self._thread = None
                    return
                self._each(now)

    def _each(self, now: float) -> None:
        # A separate call, since a variable of the thread would keep a finished step in memory.
        for run in self._runs:  # few: steps that run at once in this process
            try:
                run.look(now)
            except Exception:  # progress must never harm the step
                run.bars = False
                _logger.debug("no progress is shown", exc_info=True)


_watcher = _Watcher()


@contextmanager
def progress(context: StepContext, bars: bool = True) -> Iterator[None]:
    """Show the progress of a step while it runs, if it takes long.

    Parameters
    ----------
    bars : bool
        Whether to permit a bar; it appears only in a terminal or a notebook.
    """
    run = _Run(context, bars, time.monotonic())
    try:
        _watcher.begin(run)
        yield
    finally:
        _watcher.end(run)


def _postfix(at: Progress) -> str:
    """The text after the bar: a step may take long within one loop."""
    parts = [f"{at.iterations:,} iterations"] if at.iterations else []
    parts.append(f"{at.rows:,} rows")
    if at.tasks:
        parts.append(f"{at.tasks_done}/{at.tasks} tasks")
    return ", ".join(parts)


def _bar(context: StepContext, operators: int) -> Any:
    """A bar of tqdm, if tqdm is installed and bars are on; it shows only in a terminal or notebook.
    """
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    spark = context.spark_runner.session
    if str(spark.conf.get(PROGRESS, "true")).lower() == "false":
        return None
    return tqdm(total=operators, unit=" operators", leave=False, disable=None)
