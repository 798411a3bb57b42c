"""The Scala bridge: what Spark knows of the work of a dataflow while it runs.

    every count only grows, and says no more than Spark has told
    frontier  ≤  what the last `begin` or `end` said            never ahead of what was committed
    no bridge, or one that broke  ⟹  None                       whoever asks goes by what it knows

The jar is made by ``ci/build_bridge`` from ``scala-bridge/`` and lies in the package. It is loaded
into the JVM that runs, beside its class path, so nobody has to name it. Where ``spark-submit`` has
named it (``--jars``, ``spark.jars``), the class that is there already is taken. There is none over
Spark Connect, with another Scala than the jar was made for, or where the session's setting
`BRIDGE` is ``false``.

Nothing of this may harm a step: a fault is logged once, and all answers are None from then on.
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

from pyspark_diff.spark import jvm
from pyspark_diff.spark.causes import in_words
from pyspark_diff.times import Antichain, Coordinate, Time

#: A setting of the session: ``false`` for no bridge.
BRIDGE = "spark.pyspark_diff.bridge"

#: Of what is said between this module and the class in the jar.
PROTOCOL = 1

CLASS = "pysparkdiff.Bridge"
#: What jobs carry: the label, and Spark's own description of them.
LABEL, DESCRIPTION = "spark.pyspark_diff.job", "spark.job.description"
JARS = Path(__file__).parent.parent / "jars"

#: The counts in the order in which the bridge tells them; the time in milliseconds comes last.
_NUMBERS = (
    "jobs", "jobs_done", "stages", "stages_done", "tasks", "tasks_started", "tasks_done", "rows",
    "bytes",
)

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True)
class JobLabel:
    """What a Spark job of ours is for.

    Parameters
    ----------
    dataflow : str
        Names it among all that use this Spark.
    operator : str
    iteration : tuple of int
        Of the loops around the operator, the outermost first.
    lower, upper : int or None
        The interval of the step, ``[lower, upper)``; None where there is none, or no end.

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
        """The label as jobs carry it."""
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
    """How much Spark has done for a dataflow. Every count only grows.

    Parameters
    ----------
    jobs, jobs_done : int
    stages, stages_done : int
        What a job that is over has skipped counts as done.
    tasks, tasks_started, tasks_done : int
        A task counts once, however often it is tried.
    rows, bytes : int
        That tasks have taken in and given out so far, as Spark counts them: rows from sources, and
        what goes through shuffles; of bytes also what goes to Python and back. Those of tasks that
        run come with the heartbeats of their executors.
    seconds : float
        That tasks have run, those that run now included: it grows whenever anything runs.
    running : tuple of (JobLabel, int, int)
        Each job that runs: its label, how many of its tasks are done, and how many it has.
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
    context : SparkContext
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
        """Begin to listen for the jobs of a dataflow; those before are not counted."""
        self._ask(lambda: self._remote.register(dataflow))

    def forget(self, dataflow: str) -> None:
        """Stop, and forget its counts."""
        self._plain.discard(dataflow)
        self._ask(lambda: self._remote.forget(dataflow))

    def begin(self, dataflow: str, lower: Antichain) -> None:
        """Say that a step begins, which may give updates at the times beyond a frontier."""
        self._ask(lambda: self._remote.begin(dataflow, self._text(dataflow, lower)))

    def end(self, dataflow: str, frontier: Antichain) -> None:
        """Say that it ended, in a commit or not, and at which times updates may yet come."""
        self._ask(lambda: self._remote.end(dataflow, self._text(dataflow, frontier)))

    def frontier(self, dataflow: str) -> Antichain | None:
        """The times at which updates may yet come; None while no step has begun."""
        text = self._told(lambda: self._remote.frontier(dataflow))
        if text is None:
            return None
        times = map(_time_of_text, text.split(";") if text else ())
        return Antichain(t[0] if dataflow in self._plain else t for t in times)

    def counts(self, dataflow: str) -> JobCounts | None:
        """What was done so far, and what runs."""
        return self._ask(lambda: _counts(self._json(self._remote.counts, dataflow)))

    def operators(self, dataflow: str) -> dict[str, JobCounts] | None:
        """What was done so far for each operator."""
        return self._ask(lambda: _accounts(self._json(self._remote.snapshot, dataflow)))

    def label(self, text: str | None) -> str | None:
        """Give the jobs of this thread a label, or none; the one before."""
        return self._ask(lambda: self._remote.label(text))

    @property
    def broken(self) -> bool:
        """Whether there was a fault, so that nothing is told any more."""
        return self._broken

    def _text(self, dataflow: str, frontier: Antichain) -> str:
        if any(isinstance(t, int) for t in frontier):
            self._plain.add(dataflow)
        return ";".join(map(_text_of_time, frontier))

    def _json(self, ask: Callable[[str], str | None], dataflow: str) -> Any:
        text = self._told(lambda: ask(dataflow))
        return None if text is None else json.loads(text)

    def _told(self, ask: Callable[[], str | None]) -> str | None:
        text = self._ask(ask)
        if text is None and not self._broken and self._ask(self._remote.healthy) is False:
            # The listener has logged why.
            self._broken = True
            self._close()
        return text

    def _ask(self, call: Callable[[], _T]) -> _T | None:
        context = self._context()
        if self._broken or context is None or not jvm.is_running(context):
            return None
        try:
            return call()
        except Exception as error:
            if not self._broken and jvm.is_running(context):
                self._broken = True
                _logger.warning(
                    "the Scala bridge does not work here (%s): progress is told by the driver from "
                    "now on, and answers are the same; %s=false turns the bridge off",
                    in_words(error), BRIDGE,
                )
                _logger.debug("why the bridge is not asked any more", exc_info=True)
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


def _counts(told: Any) -> JobCounts | None:
    if told is None:
        return None
    running = ((JobLabel.from_text(text), done, tasks) for text, done, tasks in told["running"])
    return _account(told["counts"], tuple(running))


def _accounts(told: Any) -> dict[str, JobCounts] | None:
    if told is None:
        return None
    return {unquote(name): _account(counts) for name, counts in told["operators"].items()}


def _account(
    counts: list[int], running: tuple[tuple[JobLabel, int, int], ...] = ()
) -> JobCounts:
    numbers = dict(zip(_NUMBERS, counts[:-1], strict=True))
    return JobCounts(**numbers, seconds=counts[-1] / 1000, running=running)


_bridges: WeakKeyDictionary[SparkContext, Bridge | None] = WeakKeyDictionary()
_lock = threading.Lock()


def bridge_of(spark: SparkSession) -> Bridge | None:
    """The bridge of a session's SparkContext; None where there is none.

    It is looked for once. Afterwards a call asks for the setting `BRIDGE` only.

    Parameters
    ----------
    spark : SparkSession

    Returns
    -------
    Bridge or None
    """
    if is_remote():
        return None
    try:
        context = spark.sparkContext
        if not jvm.is_running(context):
            return None
        if str(spark.conf.get(BRIDGE, "true")).lower() == "false":
            return None
        with _lock:
            if context not in _bridges:
                _bridges[context] = _loaded(context)
            return _bridges[context]
    except Exception:
        # A session that is not Spark's own.
        _logger.debug("no bridge", exc_info=True)
        return None


def _loaded(context: SparkContext) -> Bridge | None:
    """The bridge in the JVM of a context, if one that fits is found."""
    try:
        scala = jvm.scala_version(context)
        # Scala's classes fit together within the first two numbers of its version.
        jar = JARS / f"pyspark_diff-bridge_{'.'.join(scala.split('.')[:2])}.jar"
        remote = jvm.instance(context, CLASS, jar)
        if remote is None:
            others = sorted(path.name for path in JARS.glob("*.jar"))
            if others:
                _logger.warning(
                    "no bridge for Scala %s, only %s; progress is told by the driver",
                    scala, ", ".join(others),
                )
            return None
        version = remote.version()
        if version != PROTOCOL:
            _logger.warning(
                "the bridge has version %s and not %s, as when --jars names the jar of another "
                "version; progress is told by the driver", version, PROTOCOL,
            )
            return None
        return Bridge(context, remote)
    except Exception:
        _logger.warning("no bridge; progress is told by the driver", exc_info=True)
        return None


@contextmanager
def labelled(spark: SparkSession, label: JobLabel) -> Iterator[None]:
    """Say what the jobs are for that this thread runs within, and threads that it starts.

    Without a bridge, or before one was asked for, nothing is done. Jobs that have no description
    are given one, for Spark's UI.

    Parameters
    ----------
    spark : SparkSession
    label : JobLabel
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
    """Take a label away that a bridge has left: the thread may be the user's, and his jobs are not
    ours."""
    none: Any = None
    context.setLocalProperty(LABEL, none)
    if (context.getLocalProperty(DESCRIPTION) or "").startswith("pyspark_diff: "):
        context.setLocalProperty(DESCRIPTION, none)
