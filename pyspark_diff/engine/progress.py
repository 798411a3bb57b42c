"""Progress of steps that take long, on a bar where somebody looks on, and in the log.

    a step of less than `PATIENCE` seconds shows nothing, and costs a note in a table

One thread looks at the steps that run, twice a second, and ends when there have been none for a
while. It only reads: which operator is being worked on, and how many are done.
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

from pyspark_diff.engine.context import StepContext
from pyspark_diff.engine.state import State
from pyspark_diff.engine.subgraph import Subgraph
from pyspark_diff.spark.bridge import JobCounts
from pyspark_diff.times import Antichain

#: After how many seconds a step shows how far it is, and how many there are between lines of log.
PATIENCE = 2.0
TOLD_EVERY = 10.0
#: Seconds between two looks, and after how many without a step nobody looks any more.
EVERY = 0.5
IDLE = 30.0
#: The setting of a Spark session that says whether there are bars.
PROGRESS = "spark.pyspark_diff.progress"

_logger = logging.getLogger("pyspark_diff")


class Progress(NamedTuple):
    """How far a dataflow is. While a step runs none of its numbers goes back.

    Parameters
    ----------
    step : int
        The number of the step, the first being 1.
    running : bool
        Whether it is under way. All else is of the last step if none is.
    frontier : Antichain
        Up to where all that is kept is complete and all that is shown was handed over, as `Probe`
        has it. It moves when a step is committed.
    operator : str
        What is being worked on: an operator, or a loop.
    operators_done, operators : int
        How many there are, a loop being one.
    iterations : int
        Iterations of loops that are over.
    rows : int
        Update rows that operators have taken in or looked up.
    jobs, jobs_done : int
        Spark jobs.
    tasks, tasks_done : int
        Tasks of the jobs so far. These and the next three are known where there is a bridge into
        Spark: not over Spark Connect.
    task_rows, task_bytes : int
        What tasks have moved, those that run included. On a cluster it comes with the heartbeats of
        its executors; while a task works on what it has been given, nothing is moved.
    task_seconds : float
        That tasks have run, those that run included, added up.
    seconds : float
        Since the step began.
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
    """How far a step is."""
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
    """How far the step was that led to a state, with what Spark has done for it."""
    report = state.report
    operators = 0 if state.graph is None else len(state.graph.order)
    return Progress(
        state.epoch, False, frontier, "", operators, operators, len(report.iterations),
        report.rows_in + report.rows_read, jobs.jobs, jobs.jobs_done, jobs.tasks,
        jobs.tasks_done, jobs.rows, jobs.bytes, jobs.seconds, report.seconds,
    )


@dataclass(eq=False)
class _Run:
    """A step that is being looked at."""

    context: StepContext
    bars: bool
    began: float
    told: float = 0.0
    bar: Any = None

    def look(self, now: float) -> None:
        if now - self.began < PATIENCE:
            return
        at = progress_of(self.context)
        done, doing = at.operators_done, at.operator
        order = self.context.graph.order
        if not self.told or now - self.told >= TOLD_EVERY:
            self.told = now
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
            self.bar.set_postfix_str(_beside(at), refresh=False)
            self.bar.refresh()

    def end(self) -> None:
        if self.bar is not None:
            self.bar.close()
        if self.told:
            _logger.info("step: over after %.0f s", time.monotonic() - self.began)


class _Watcher:
    """The thread, and the steps that it looks at."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: list[_Run] = []
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def begin(self, run: _Run) -> None:
        with self._lock:
            self._runs.append(run)
            # A process that was forked has the variable and not the thread. To ask the thread
            # itself costs a third of a millisecond.
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
            # Not woken by a step's beginning or end: steps of a millisecond must not pay for that.
            time.sleep(EVERY)
            with self._lock:
                now = time.monotonic()
                if self._runs:
                    idle = now
                elif now - idle >= IDLE:
                    self._thread = None
                    return
                self._each(now)

    def _each(self, now: float) -> None:
        # In a call of its own: a variable of the thread would hold a step that is long over.
        for run in self._runs:  # few: steps that run at once in this process
            try:
                run.look(now)
            except Exception:  # to look on must never harm the step
                run.bars = False
                _logger.debug("no progress is shown", exc_info=True)


_watcher = _Watcher()


@contextmanager
def progress(context: StepContext, bars: bool = True) -> Iterator[None]:
    """Show how far a step is, while it runs and if it takes long.

    Parameters
    ----------
    context : StepContext
    bars : bool
        Whether a bar may be shown; it is not where nobody would see it.
    """
    run = _Run(context, bars, time.monotonic())
    try:
        _watcher.begin(run)
        yield
    finally:
        _watcher.end(run)


def _beside(at: Progress) -> str:
    """What stands beside the bar: a step may take long within one loop."""
    parts = [f"{at.iterations:,} iterations"] if at.iterations else []
    parts.append(f"{at.rows:,} rows")
    if at.tasks:
        parts.append(f"{at.tasks_done}/{at.tasks} tasks")
    return ", ".join(parts)


def _bar(context: StepContext, operators: int) -> Any:
    """A bar of tqdm, if it is installed and wanted; it is silent but on a terminal or a page."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    spark = context.spark_runner.session
    if str(spark.conf.get(PROGRESS, "true")).lower() == "false":
        return None
    return tqdm(total=operators, unit=" operators", leave=False, disable=None)
