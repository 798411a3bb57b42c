"""The Scala bridge: Spark's progress in the jobs of a dataflow while they run.

    count at time s  ≤  count at time t                         for s before t, by Spark's events
    frontier  ≤  the frontier of the last `begin` or `end`      never ahead of the last commit
    no bridge, or a broken one  ⟹  None                         callers use the driver's progress

``ci/build_bridge`` makes the jar from ``scala-bridge/``, and the package contains it. The bridge
loads it into the running JVM, outside of the class path, so that no setting has to name it. If
``spark-submit`` names it (``--jars``, ``spark.jars``), the bridge uses the class that is loaded
already. There is no bridge over Spark Connect, with another version of Scala than that of the jar,
or if the session's setting `BRIDGE` is ``false``.

A fault of the bridge must not harm a step: it is logged once, and all later answers are None.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote
from weakref import WeakKeyDictionary, ref

from pyspark import SparkContext
from pyspark.sql import SparkSession, is_remote

from pyspark_diff.spark import jvm_context
from pyspark_diff.spark.causes import in_words
from pyspark_diff.times import Antichain, Coordinate, Time

#: A setting of the session: ``false`` for no bridge.
BRIDGE = "spark.pyspark_diff.bridge"

#: The version of the protocol between this module and the class in the jar.
PROTOCOL = 1

CLASS = "pysparkdiff.Bridge"
#: Local properties of jobs: the label, and Spark's own description.
LABEL, DESCRIPTION = "spark.pyspark_diff.job", "spark.job.description"
JARS = Path(__file__).parent.parent / "jars"

#: The counts in the order of the bridge's answer; the time in milliseconds comes last.
_NUMBERS = (
    "jobs", "jobs_done", "stages", "stages_done", "tasks", "tasks_started", "tasks_done", "rows",
    "bytes",
)

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True)
class JobLabel:
    """The purpose of a Spark job of this library.

    Parameters
    ----------
    dataflow : str
        Its name among all dataflows of this Spark.
    iteration : tuple of int
        The iterations of the loops around the operator, the outermost first.
    lower, upper : int or None
        The interval of the step, ``[lower, upper)``; None for an absent interval or end.

    Examples
    --------
    >>> label = JobLabel("flow-1", "count of edges", (0, 3), 5, None)
    >>> label.text()
    'flow-1|count%20of%20edges|0,3|5|'
    >>> JobLabel.from_text(label.text()) == label
    True
    """

    dataflow: str
    operator: str
    iteration: Coordinate = ()
    lower: int | None = None
    upper: int | None = None

    def text(self) -> str:
        """The label as a property of jobs."""
        names = (quote(name, safe="") for name in (self.dataflow, self.operator))
        ends = ("" if t is None else str(t) for t in (self.lower, self.upper))
        return "|".join((*names, _text_of_time(self.iteration), *ends))

    @classmethod
    def from_text(cls, text: str) -> JobLabel:
        """Undo `text`."""
        dataflow, operator, iteration, *ends = text.split("|")
        lower, upper = (int(t) if t else None for t in ends)
        return cls(unquote(dataflow), unquote(operator), _time_of_text(iteration), lower, upper)


@dataclass(frozen=True)
class JobCounts:
    """The work of Spark for a dataflow. The counts never decrease.

    Parameters
    ----------
    stages, stages_done : int
        Stages that a finished job has skipped count as done.
    tasks, tasks_started, tasks_done : int
        A task counts once, with all its attempts.
    rows, bytes : int
        Input and output of tasks so far, by Spark's metrics: rows of sources and shuffles, and
        bytes of these and of the exchange with Python. Metrics of running tasks come with the
        heartbeats of their executors.
    seconds : float
        Run time of tasks, including the running ones, so that it grows whenever a task runs.
    running : tuple of (JobLabel, int, int)
        Each running job: its label, the number of its finished tasks, and the number of its tasks.
    """

    jobs: int
    jobs_done: int
    stages: int
    stages_done: int
    tasks: int
    tasks_started: int
    tasks_done: int
    rows: int
    bytes: int
    seconds: float
    running: tuple[tuple[JobLabel, int, int], ...] = ()


class Bridge:
    """The bridge of one SparkContext. All methods may be called by any thread, and none raises.

    Parameters
    ----------
    remote : object
        The instance in the JVM.
    """

    def __init__(self, context: SparkContext, remote: Any) -> None:
        self._context = ref(context)
        self._remote = remote
        self._broken = False
        #: The dataflows whose times are plain integers, and not tuples of one.
        self._plain: set[str] = set()

    def register(self, dataflow: str) -> None:
        """Begin to listen for the jobs of a dataflow; earlier jobs do not count."""
        self._ask(lambda: self._remote.register(dataflow))

    def forget(self, dataflow: str) -> None:
        """Stop to listen for a dataflow, and forget its counts."""
        self._plain.discard(dataflow)
        self._ask(lambda: self._remote.forget(dataflow))

    def begin(self, dataflow: str, lower: Antichain) -> None:
        """Report the begin of a step, which may output updates at times beyond a frontier."""
        self._ask(lambda: self._remote.begin(dataflow, self._text(dataflow, lower)))

    def end(self, dataflow: str, frontier: Antichain) -> None:
        """Report the end of a step, with or without a commit, and the frontier of later updates."""
        self._ask(lambda: self._remote.end(dataflow, self._text(dataflow, frontier)))

    def frontier(self, dataflow: str) -> Antichain | None:
        """The frontier of later updates; None before the first step."""
        text = self._answer(lambda: self._remote.frontier(dataflow))
        if text is None:
            return None
        times = map(_time_of_text, text.split(";") if text else ())
        return Antichain(t[0] if dataflow in self._plain else t for t in times)

    def counts(self, dataflow: str) -> JobCounts | None:
        """The work so far, and the running jobs."""
        return self._ask(lambda: _counts(self._json(self._remote.counts, dataflow)))

    def operators(self, dataflow: str) -> dict[str, JobCounts] | None:
        """The work so far for each operator."""
        return self._ask(lambda: _accounts(self._json(self._remote.snapshot, dataflow)))

    def label(self, text: str | None) -> str | None:
        """Set or remove the label of this thread's jobs, and return the previous one."""
        return self._ask(lambda: self._remote.label(text))

    @property
    def broken(self) -> bool:
        """Whether a fault has stopped the bridge."""
        return self._broken

    def _text(self, dataflow: str, frontier: Antichain) -> str:
        if any(isinstance(t, int) for t in frontier):
            self._plain.add(dataflow)
        return ";".join(map(_text_of_time, frontier))

    def _json(self, ask: Callable[[str], str | None], dataflow: str) -> Any:
        text = self._answer(lambda: ask(dataflow))
        return None if text is None else json.loads(text)

    def _answer(self, ask: Callable[[], str | None]) -> str | None:
        text = self._ask(ask)
        if text is None and not self._broken and self._ask(self._remote.healthy) is False:
            # The listener has logged why.
            self._broken = True
            self._close()
        return text

    def _ask(self, call: Callable[[], _T]) -> _T | None:
        context = self._context()
        if self._broken or context is None or not jvm_context.is_running(context):
            return None
        try:
            return call()
        except Exception as error:
            if not self._broken and jvm_context.is_running(context):
                self._broken = True
                _logger.warning(
                    "the Scala bridge does not work here (%s): the driver reports progress from "
                    "now on, and answers are the same; %s=false turns the bridge off",
                    in_words(error), BRIDGE,
                )
                _logger.debug("the fault that stopped the bridge", exc_info=True)
                self._close()
            return None

    def _close(self) -> None:
        try:
            self._remote.close()
        except Exception:
            _logger.debug("the bridge could not be closed", exc_info=True)


def _text_of_time(t: Time) -> str:
    return ",".join(map(str, (t,) if isinstance(t, int) else t))


def _time_of_text(text: str) -> Coordinate:
    return tuple(map(int, text.split(","))) if text else ()


def _counts(answer: Any) -> JobCounts | None:
    if answer is None:
        return None
    running = ((JobLabel.from_text(text), done, tasks) for text, done, tasks in answer["running"])
    return _account(answer["counts"], tuple(running))


def _accounts(answer: Any) -> dict[str, JobCounts] | None:
    if answer is None:
        return None
    return {unquote(name): _account(counts) for name, counts in answer["operators"].items()}


def _account(
    counts: list[int], running: tuple[tuple[JobLabel, int, int], ...] = ()
) -> JobCounts:
    numbers = dict(zip(_NUMBERS, counts[:-1], strict=True))
    return JobCounts(**numbers, seconds=counts[-1] / 1000, running=running)


_bridges: WeakKeyDictionary[SparkContext, Bridge | None] = WeakKeyDictionary()
_lock = threading.Lock()


def bridge_of(spark: SparkSession) -> Bridge | None:
    """The bridge of a session's SparkContext, or None.

    The first call looks for it. Later calls read the setting `BRIDGE` only.
    """
    if is_remote():
        return None
    try:
        context = spark.sparkContext
        if not jvm_context.is_running(context):
            return None
        if str(spark.conf.get(BRIDGE, "true")).lower() == "false":
            return None
        with _lock:
            if context not in _bridges:
                _bridges[context] = _loaded(context)
            return _bridges[context]
    except Exception:
        # The session is not Spark's own.
        _logger.debug("no bridge", exc_info=True)
        return None


def _loaded(context: SparkContext) -> Bridge | None:
    """The bridge in the JVM of a context, or None without a jar that fits."""
    try:
        scala = jvm_context.scala_version(context)
        # Versions of Scala with the same first two numbers are binary compatible.
        jar = JARS / f"pyspark_diff-bridge_{'.'.join(scala.split('.')[:2])}.jar"
        remote = jvm_context.instance(context, CLASS, jar)
        if remote is None:
            others = sorted(path.name for path in JARS.glob("*.jar"))
            if others:
                _logger.warning(
                    "no bridge for Scala %s, only %s; the driver reports progress",
                    scala, ", ".join(others),
                )
            return None
        version = remote.version()
        if version != PROTOCOL:
            _logger.warning(
                "the bridge has version %s and not %s, as when --jars names the jar of another "
                "version; the driver reports progress", version, PROTOCOL,
            )
            return None
        return Bridge(context, remote)
    except Exception:
        _logger.warning("no bridge; the driver reports progress", exc_info=True)
        return None


@contextmanager
def labelled(spark: SparkSession, label: JobLabel) -> Iterator[None]:
    """Label the jobs that this thread, and threads that it starts, run within the context.

    Without a bridge, or before the first use of one, this has no effect. Jobs without a description
    get one, for Spark's UI.
    """
    bridge = None if is_remote() else _bridges.get(spark.sparkContext)
    if bridge is None:
        yield
        return
    before = bridge.label(label.text())
    try:
        yield
    finally:
        bridge.label(before)
        if bridge.broken:
            with suppress(Exception):
                _unlabelled(spark.sparkContext)


def _unlabelled(context: SparkContext) -> None:
    """Remove a label that a bridge has left: the thread may belong to the user, whose jobs have no
    label."""
    none: Any = None
    context.setLocalProperty(LABEL, none)
    if (context.getLocalProperty(DESCRIPTION) or "").startswith("pyspark_diff: "):
        context.setLocalProperty(DESCRIPTION, none)
