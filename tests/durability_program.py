"""Run by ci/durability: kill or fault programs at each of their operations on a store.

After each end the store is opened again, and always:

    the store has each acknowledged step once, and has the step under way wholly or not at all

    further steps keep and emit the answers of an oracle

    consumers received each update at least once, in order

    after a vacuum the store has only files that a commit lists
"""

from __future__ import annotations

import argparse
import errno
import faulthandler
import hashlib
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO
from unittest import mock

import crashes
import faults
import volumes
from crashes import At, Synced, operations
from fault_program import (
    CLUSTER,
    INPUTS,
    LOCAL,
    STEPS,
    Oracle,
    Update,
    collections,
    reached_from,
    small_disk,
    spark_on,
    totals_of,
)
from faults import Fault
from oracle import Collection, accumulate

from pyspark_diff import Dataflow, DiffError, StorageError, set_credentials, thresholds
from pyspark_diff.dataflow import durable, opening
from pyspark_diff.dataflow.dataflow import BaseDataflow
from pyspark_diff.engine.context import StepContext
from pyspark_diff.errors import ConcurrentWriteError, UnknownOutcomeError
from pyspark_diff.trace import commits as commits_module
from pyspark_diff.trace import storage
from pyspark_diff.trace import vacuum as vacuum_module
from pyspark_diff.trace.commits import Commits
from pyspark_diff.trace.local_objects import LocalObjects
from pyspark_diff.trace.objects import Objects
from pyspark_diff.trace.remote_objects import RemoteObjects
from pyspark_diff.trace.roots import objects_at
from pyspark_diff.trace.storage import StoreFiles
from pyspark_diff.trace.volume_objects import VolumeObjects

#: A batch with more rows is a file, so that a small program has files.
IN_MEMORY_ROWS = 3
#: The number of commits that a vacuum keeps.
RETAIN = 2
#: The command ends if one run takes more seconds.
HANGS = 300.0
ORACLES: tuple[Oracle, ...] = (totals_of, reached_from)

Steps = Sequence[dict[str, list[Update]]]


class Wrong(Exception):
    """A guarantee that a kill or a fault broke."""


def demand(right: object, message: str) -> None:
    if not right:
        raise Wrong(message)


# The inputs of a program, and its expected outputs.


@lru_cache(maxsize=None)
def steps_of(seed: int, count: int = 7) -> Steps:
    """The updates of each step: seed 0 begins with the steps of ci/faults, the rest is random.

    Step n has the times 2n and 2n + 1; a few random updates belong to the next step already.
    """
    chance = random.Random(seed)
    steps = [] if seed else list(STEPS)
    there: dict[str, Collection] = {name: Counter() for name in INPUTS}
    #: Updates of the next step that arrive one step early.
    later: dict[str, Collection] = {name: Counter() for name in INPUTS}
    for step in steps:
        for name, updates in step.items():
            for record, _, diff in updates:
                there[name][record] += diff
    while len(steps) < count:
        begin, updates_of_inputs = 2 * len(steps), {}
        for name, width in ("edges", 2), ("prices", 2), ("roots", 1):
            updates: list[Update] = []
            for _ in range(chance.choice([3, 9, 14]) if begin else 14):
                present = sorted(there[name].elements())
                if present and chance.random() < 0.4:
                    record, moment, diff = chance.choice(present), begin + 1, -1
                else:
                    record = tuple(chance.randrange(9) for _ in range(width))
                    moment, diff = begin + chance.choice([0, 0, 1, 1, 2]), 1
                (later if moment > begin + 1 else there)[name][record] += diff
                updates.append((record, moment, diff))
            updates_of_inputs[name] = updates
            there[name] += later[name]
            later[name].clear()
        steps.append(updates_of_inputs)
    return steps


@lru_cache(maxsize=None)
def answer(seed: int, oracle: Oracle, moment: int) -> Collection:
    """The output of an oracle at a time, from all inputs so far."""
    steps = steps_of(seed)
    now = {
        name: accumulate([u for step in steps for u in step[name]], moment) for name in INPUTS
    }
    return oracle(now) if moment >= 0 else Counter()


def change(seed: int, oracle: Oracle, step: int) -> Collection:
    """The updates that a step emits to a consumer."""
    updates: Collection = Counter()
    for moment in 2 * step, 2 * step + 1:
        after, before = answer(seed, oracle, moment), answer(seed, oracle, moment - 1)
        for record in {*after, *before}:
            if after[record] != before[record]:
                updates[(record, moment)] = after[record] - before[record]
    return updates


# An application.

#: The updates that each consumer received from one application.
Delivered = dict[Oracle, list[Update]]


class Application:
    """An application that opens a store and continues its program.

    With `holds`, all kept times of the outputs stay readable.
    """

    def __init__(
        self, spark: Any, root: str | Path, seed: int = 0,
        on_update: Callable[..., None] | None = None, holds: bool = False, **options: Any,
    ):
        self.seed, self.holds = seed, holds
        self.delivered: Delivered = {oracle: [] for oracle in ORACLES}
        self._nodes: dict[Oracle, Any] = {}
        frames: list[Any] = []

        def program(flow: Dataflow) -> None:
            for oracle, frame in collections(flow).items():
                def show(*update: Any, oracle: Oracle = oracle) -> None:
                    self.delivered[oracle].append(update)
                    if on_update is not None:
                        on_update(oracle, *update)

                frame.inspect(show)
                frames.append(frame.keep(oracle.__name__))
                self._nodes[oracle] = frame._node

        options = {"runner": "local", "retain": RETAIN, "buckets": 2, **options}
        self.flow = Dataflow.open(str(root), program, spark=spark, **options)
        for frame in frames if holds else ():
            frame.hold()
        times = {name: self.flow.session(name).time() for name in INPUTS}
        demand(len(set(times.values())) == 1, f"inputs are at different times: {times}")
        self.done = self.at()
        demand(times["edges"] == 2 * self.done, f"inputs are at {times}, and not processed so far")
        token = f"step {self.done - 1}" if self.done else None
        demand(self.flow.token == token, f"{self.done} steps are done, and {self.flow.token!r}")

    def at(self) -> int:
        """The number of steps done, from the frontiers of the inputs."""
        state = self.flow._state
        moments = {self.flow._inputs.frontier(state).bound}
        moments |= {state.frontiers[node].bound for node in self.flow._inputs.nodes()}
        moment = moments.pop()
        demand(not moments, f"inputs are processed up to {moment} and up to {moments}")
        demand(moment is not None and moment % 2 == 0, f"a step is done by half, up to {moment}")
        return (moment or 0) // 2

    def feed(self) -> None:
        """Push the updates of the next step."""
        for name, updates in steps_of(self.seed)[self.done].items():
            session = self.flow.session(name)
            session.update([(*record, moment, diff) for record, moment, diff in updates])
            session.advance_to(2 * self.done + 2)

    def step(self) -> None:
        self.feed()
        demand(self.flow.step(token=f"step {self.done}"), "a step has nothing to do")
        self.done += 1

    def check(self) -> None:
        """Check the kept outputs at each kept time, and their files."""
        if self.flow._state.graph is None:
            demand(self.done == 0, f"{self.done} steps are done, and nothing is kept")
            return
        moment = 2 * self.done - 1
        for oracle in ORACLES:
            arrangement = self.flow._arrangement(self._nodes[oracle])
            upper = arrangement.trace.upper.bound
            demand(upper == moment + 1, f"{oracle.__name__} is at {upper}, not {moment + 1}")
            rows = [
                (tuple(row.values())[:-2], row["time"], row["diff"])
                for row in arrangement.table().to_pylist()
            ]
            since = arrangement.trace.since.bound
            demand(
                since == 0 if self.holds else since is not None and since <= moment,
                f"{oracle.__name__} is kept from {since} on, and is at {moment}",
            )
            for instant in range(since, moment + 1):
                actual = accumulate(rows, instant)
                wanted = answer(self.seed, oracle, instant)
                demand(
                    actual == wanted,
                    f"{oracle.__name__} is kept wrong at {instant}: {actual}, not {wanted}",
                )
        wrong = self.flow.verify()
        demand(not wrong, f"files are wrong: {wrong}")

    def check_clean(self, root: str | Path) -> None:
        """Check that after a vacuum the store has exactly the files that commits list."""
        self.flow.vacuum(dry_run=False, older_than=-60)
        objects = objects_at(str(root))
        commits = Commits(objects)
        numbers = commits.numbers()
        demand(len(numbers) <= RETAIN, f"{len(numbers)} commits are there after a vacuum")
        listed = {name for number in numbers for name in commits.read(number).files}
        data = {file.name for file in objects.names("data")}
        # The last commit lists each file that the state in memory needs.
        demand(data >= listed, f"files that are missing: {sorted(listed - data)}")
        demand(data <= listed, f"files that nobody lists: {sorted(data - listed)}")
        left = [file.name for file in objects.leftovers()]
        demand(not left, f"files that were being written are left: {left}")

    def close(self) -> None:
        self.flow.close()


def check_seen(
    seed: int, segments: Sequence[Delivered], ended: Sequence[bool], steps: int, begins: int = 0
) -> None:
    """Check the updates that consumers received from successive applications; some were killed.

    Earlier applications emitted the first steps, and perhaps a part of the last such step.
    """
    for oracle in ORACLES:
        wanted = [change(seed, oracle, step) for step in range(steps)]
        whole = begins - 1  # the last step that was emitted as a whole
        newest = begins - 1
        for number, delivered in enumerate(segments):
            groups: dict[int, Collection] = {}
            before = -1
            for record, moment, diff in delivered[oracle]:
                step = moment // 2
                prefix = f"{oracle.__name__}: application {number} was given step {step}"
                demand(step >= before, f"{prefix} after step {before}")
                demand(step >= newest, f"{prefix}, although step {newest} had been given")
                before = step
                groups.setdefault(step, Counter())[(record, moment)] += diff
            for step, updates in groups.items():
                updates = Counter({update: n for update, n in updates.items() if n})
                gap = any(wanted[missed] for missed in range(whole + 1, step))
                demand(not gap, f"{oracle.__name__}: step {whole + 1} was never given as a whole")
                if updates == wanted[step]:
                    whole = step
                elif not (ended[number] and step == max(groups)):
                    raise Wrong(
                        f"{oracle.__name__}: step {step} was given as {updates}, not {wanted[step]}"
                    )
            newest = max([newest, *groups])
        demand(
            not any(wanted[step] for step in range(whole + 1, steps)),
            f"{oracle.__name__}: step {whole + 1} was never given as a whole",
        )


def recovered(
    spark: Any, root: str | Path, seed: int, acknowledged: int, under_way: bool,
    segments: Sequence[Delivered], more: int = 2, begins: int = 0, holds: bool = False,
) -> int:
    """Open a store after an end and continue; returns its number of steps or raises `Wrong`."""
    try:
        application = Application(spark, root, seed, holds=holds)
    except DiffError as error:
        raise Wrong(f"it cannot be opened: {error!r}") from error
    try:
        steps = application.done
        demand(steps >= acknowledged, f"{acknowledged} steps were done, and {steps} are there")
        demand(
            steps <= acknowledged + under_way,
            f"{acknowledged} steps were done, and {steps} are there",
        )
        application.check()
        for _ in range(min(more, len(steps_of(seed)) - steps)):
            application.step()
            application.check()
        # If no input is left, an empty step emits the updates that the outbox still has.
        application.flow.step()
        application.check_clean(root)
        application.check()
    except DiffError as error:
        raise Wrong(f"going on fails: {error!r}") from error
    finally:
        application.close()
    ended = [*[True] * len(segments), False]
    check_seen(seed, [*segments, application.delivered], ended, application.done, begins)
    return steps


@contextmanager
def small_batches() -> Iterator[None]:
    """Write small batches to files, without warnings and logs: the gates check the results."""
    logger = logging.getLogger("pyspark_diff")
    level = logger.level
    with thresholds.using(in_memory_rows_max=IN_MEMORY_ROWS), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            logger.setLevel(level)


# The runs.


@dataclass
class Tally:
    """The results of the runs of one gate."""

    name: str
    runs: int = 0
    right: int = 0
    notes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @contextmanager
    def run(self, what: str) -> Iterator[None]:
        """One run, which is right if it raises nothing."""
        faulthandler.dump_traceback_later(HANGS, exit=True)
        started = time.monotonic()
        self.runs += 1
        try:
            yield
            self.right += 1
        except Exception as error:
            message = str(error) if isinstance(error, Wrong) else traceback.format_exc()
            self.wrong.append(f"{what}: {message}")
            if os.environ.get("DURABILITY_VERBOSE"):
                print(f"WRONG: {self.name}, {what}: {message}", flush=True)
        finally:
            self.seconds += time.monotonic() - started
            faulthandler.cancel_dump_traceback_later()

    def line(self) -> str:
        notes = "".join(f", {count} {what}" for what, count in sorted(self.notes.items()))
        return f"{self.name}: {self.runs} runs, {self.right} right{notes} ({self.seconds:.0f} s)"


class Scenario:
    """A run of all stages on a new store: steps, closes, a second opening and a vacuum.

    It records the number of acknowledged steps and whether a step is under way.
    """

    STAGES = (
        "make", "step", "step", "step", "close", "reopen", "step", "step", "vacuum", "step",
        "close",
    )

    def __init__(self, spark: Any, root: str, seed: int, **options: Any):
        self.spark, self.root, self.seed, self.options = spark, root, seed, options
        self.application: Application | None = None
        self.segments: list[Delivered] = []
        self.acknowledged, self.under_way = 0, False
        self.stage = ""

    def run(self) -> None:
        for number, stage in enumerate(self.STAGES):
            self.stage = f"{stage} {number}"
            self.take(stage)
        self.stage = "end"

    def take(self, stage: str) -> None:
        here = self.application
        if stage in ("make", "reopen"):
            self.application = Application(self.spark, self.root, self.seed, **self.options)
            self.segments.append(self.application.delivered)
            return
        assert here is not None
        if stage == "step":
            self.under_way = True
            here.step()
            # One assignment each, and nothing is recorded between them.
            self.acknowledged, self.under_way = here.done, False
        elif stage == "vacuum":
            here.flow.vacuum(dry_run=False, older_than=-60)
        else:
            here.close()

    def delivered(self) -> list[Delivered]:
        """A copy of the updates that consumers received so far."""
        return [
            {oracle: list(updates) for oracle, updates in delivered.items()}
            for delivered in self.segments
        ]


@dataclass
class Ended:
    """The store that an end leaves, and the progress at that moment."""

    what: str
    root: str
    acknowledged: int
    under_way: bool
    segments: list[Delivered]


def ends_of(
    spark: Any, folder: Path, seed: int, *, stride: int = 1, first: int = 0,
    kind: str = "kill", notes: Counter[str] | None = None,
    named: Callable[[str], str] = str,
) -> list[Ended]:
    """Copies of the store of a scenario, one for an end at each operation.

    `named` returns the root of a store for its folder.

    An end is a ``kill``, or a crash of the machine. A crash loses ``all`` unsynced writes, or keeps
    names without their bytes (``torn``), or does ``some`` of both.
    """
    store = str(folder / "base" / "store")
    scenario = Scenario(spark, named(store), seed)
    ends: list[Ended] = []
    count = 0
    changed = True
    last: object = None

    def end(what: str) -> None:
        nonlocal count, changed, last
        now = (
            scenario.acknowledged, scenario.under_way,
            [len(updates) for delivered in scenario.segments for updates in delivered.values()],
        )
        if not changed and now == last:
            return  # it would leave the same store as the previous end
        changed, last = False, now
        count += 1
        if count % stride != first % stride:
            return
        to = str(folder / f"{len(ends)}" / "store")
        if synced is not None:
            synced.lost(os.path.dirname(to), kind, seed * 10_000 + count)
        elif os.path.exists(store):
            shutil.copytree(store, to)
        ends.append(Ended(
            f"{scenario.stage}, {what}", named(to), scenario.acknowledged, scenario.under_way,
            scenario.delivered(),
        ))

    def handler(what: str, path: str, done: bool) -> None:
        nonlocal changed
        if done:
            # A sync makes a file safe from a crash, and makes no difference to a kill.
            changed = changed or (what == "fsync") == (kind == "all") or kind in ("torn", "some")
            if what == "fsync" and synced is not None:
                synced.synced(path)
        else:
            if notes is not None:
                notes["operations"] += 1
            end(f"before {what} {crashes.short(path)}")

    base = folder / "base"
    os.makedirs(base)
    synced = None if kind == "kill" else Synced(str(base), str(folder / "beside"))
    try:
        # The parent folder counts too: the store is created there.
        with operations(str(base), handler):
            scenario.run()
        end("at the end")
    finally:
        if synced is not None:
            synced.close()
    return ends


@dataclass(frozen=True)
class Options:
    """How much is run."""

    seeds: int = 1
    stride: int = 1
    first: int = 0
    real: int = 20
    random: int = 100
    phases: int = 100
    executors: int = 20
    rows: int = 1_000_000


# The gates.


def kills(spark: Any, folder: Path, options: Options) -> Iterator[Tally]:
    """T1: a kill of the process at each primitive operation, as a copy of the store."""
    tally = Tally("T1 white-box kills")
    for seed in range(options.seeds):
        here = folder / f"kills-{seed}"
        with tally.run(f"seed {seed}, without an end"):
            ends = ends_of(spark, here, seed, stride=options.stride,
                           first=options.first, notes=tally.notes)
            for number, end in enumerate(ends):
                with tally.run(f"seed {seed}, {end.what}"):
                    steps = recovered(
                        spark, end.root, seed, end.acknowledged, end.under_way, end.segments,
                        more=9 if number % 5 == 0 else 2,
                    )
                    if end.under_way:
                        there = "there" if steps > end.acknowledged else "not there"
                        tally.notes[f"steps under way that were {there}"] += 1
        shutil.rmtree(here)
    yield tally


def crashes_of_the_machine(spark: Any, folder: Path, options: Options) -> Iterator[Tally]:
    """A crash of the machine at each sync or operation loses unsynced writes."""
    for kind in "all", "torn", "some":
        tally = Tally(f"loss of unsynced writes ({kind})")
        for seed in range(options.seeds):
            here = folder / f"{kind}-{seed}"
            with tally.run(f"seed {seed}, without an end"):
                ends = ends_of(
                    spark, here, seed, stride=options.stride, first=options.first, kind=kind,
                    notes=tally.notes
                )
                for end in ends:
                    with tally.run(f"seed {seed}, {end.what}"):
                        recovered(
                            spark, end.root, seed, end.acknowledged, end.under_way, end.segments,
                            more=1,
                        )
            shutil.rmtree(here)
        yield tally


def real_kills(spark: Any, folder: Path, options: Options) -> Iterator[Tally]:
    """The same for a sample of the operations, with processes that really end there."""
    tally = Tally("T1 real ends of a process")
    seed = 0
    places = At(lambda what, path: None)
    with operations(str(folder / "counted"), places):
        Scenario(spark, str(folder / "counted"), seed).run()
    for number in sorted({round(n * places.count / options.real) for n in range(options.real)}):
        root = folder / f"ended-{number}" / "store"
        with tally.run(f"operation {number + 1} of {places.count}"):
            lines, code = forked(spark, str(root), seed, number + 1)
            demand(code == 137, f"the process ended with {code}: {lines}")
            acknowledged, under_way, segments = read_lines(lines)
            recovered(spark, root, seed, acknowledged, under_way, segments)
        shutil.rmtree(root.parent, ignore_errors=True)
    yield tally


def start(work: Callable[[Callable[..., None]], None]) -> tuple[int, TextIO]:
    """Run a function in another process, which gets a function that reports a line.

    Returns the id of the process, and its lines. The exit code is 0 after the function, else 98.
    """
    reads, writes = os.pipe()
    process = os.fork()
    if process:
        os.close(writes)
        return process, open(reads)
    try:
        os.close(reads)
        # This thread has a connection of its own to the JVM.
        thread = threading.Thread(target=run_apart, args=(work, writes))
        thread.start()
        thread.join()
    finally:
        os._exit(99)


def run_apart(work: Callable[[Callable[..., None]], None], writes: int) -> None:
    """Run a function in a process of its own, and end the process."""
    from py4j import java_gateway

    # The parent's objects in the JVM stay.
    java_gateway._garbage_collect_object = lambda *_: None
    write = os.write

    def report(*what: Any) -> None:
        write(writes, json.dumps(what).encode() + b"\n")

    try:
        work(report)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    os._exit(98)


def end_of(process: int) -> int:
    """Wait for the end of a process; returns its exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def forked(spark: Any, root: str, seed: int, number: int) -> tuple[list[list[Any]], int]:
    """Run a scenario in a process that ends at an operation; returns its report and exit code."""

    def work(report: Callable[..., None]) -> None:
        scenario = Scenario(spark, root, seed, on_update=lambda oracle, *update: report(
            "given", ORACLES.index(oracle), *update
        ))
        with operations(root, At(crashes.ends, number)):
            for stage in scenario.STAGES:
                report("begins", stage)
                scenario.take(stage)
                report("done", stage)

    process, lines = start(work)
    with lines:
        return [json.loads(line) for line in lines], end_of(process)


def read_lines(lines: Sequence[Sequence[Any]]) -> tuple[int, bool, list[Delivered]]:
    """The steps that a process did, whether one was under way, and the updates of consumers."""
    acknowledged, under_way = 0, False
    segments: list[Delivered] = []
    for kind, *what in lines:
        if kind == "begins":
            under_way = what[0] == "step"
            if what[0] in ("make", "reopen"):
                segments.append({oracle: [] for oracle in ORACLES})
        elif kind == "done":
            acknowledged += what[0] == "step"
            under_way = False
        else:
            index, record, moment, diff = what
            segments[-1][ORACLES[index]].append((tuple(record), moment, diff))
    return acknowledged, under_way, segments


# Kills at random moments, with the store at a server.

#: The phases of an application that are killed in turn.
PHASES = ("load", "step", "commit", "compaction", "vacuum")


@dataclass(frozen=True)
class Server:
    """Stores at a server in this process, which outlives the processes that are killed.

    Attributes
    ----------
    url : str
        The stores are below it.

    connect : callable
        Takes a seed. Each process calls it, as two processes cannot share a connection.

    under_way : callable
        Returns the number of requests that write and have no answer yet.
    """

    url: str
    connect: Callable[[int], None]
    under_way: Callable[[], int] = lambda: 0


@contextmanager
def volume_server() -> Iterator[Server]:
    """A volume, whose mount lacks calls."""
    workspace = volumes.workspace()

    def connect(seed: int) -> None:
        set_credentials(volumes.VOLUME, lambda: workspace.client(), mount=str(workspace.folder))

    with volumes.refusing(workspace.folder, errno.ENOSYS):
        yield Server(f"{volumes.VOLUME}/random", connect)
    shutil.rmtree(workspace.volume / "random")


@contextmanager
def bucket_server() -> Iterator[Server]:
    """A bucket. With odd seeds the machines exchange all files through it, as on a cluster.

    The server lets some requests wait, so that a request of a killed process may write after
    another process has opened the store.

    A process that has used obstore cannot be forked: its client hangs in the other process. So this
    process never uses it.
    """
    from stores import Late, environment, s3_server

    settings = environment()

    def connect(seed: int) -> None:
        set_credentials(
            "s3://bucket", lambda: {
                "access_key_id": settings["AWS_ACCESS_KEY_ID"],
                "secret_access_key": settings["AWS_SECRET_ACCESS_KEY"], "expires_at": None,
            },
            endpoint=settings["AWS_ENDPOINT_URL"], region=settings["AWS_DEFAULT_REGION"],
        )
        if seed % 2:
            opening.is_alone = lambda spark: False  # type: ignore[assignment]

    # A step takes longer than a request waits, or the last vacuum may come before an upload.
    with Late(s3_server(), share=0.08, seconds=0.3, seed=48) as late:
        yield Server(f"s3://bucket/{uuid.uuid4().hex}", connect, lambda: late.under_way)


class Phased:
    """A process that runs a scenario on a store at a server, and reports its phases."""

    def __init__(self, spark: Any, server: Server, root: str, folder: Path, seed: int):
        self.process, self._pipe = start_on_a_machine(
            server, folder, seed, lambda report: run_phased(spark, root, seed, report))
        self.lines: list[list[Any]] = []
        self.times: list[float] = []

    def read(self) -> bool:
        """Wait for a line; whether there was one."""
        line = self._pipe.readline()
        if line:
            self.lines.append(json.loads(line))
            self.times.append(time.monotonic())
        return bool(line)

    def wait_for(self, phase: str, occurrence: int) -> bool:
        """Wait for the begin of a phase, so many times; whether it came."""
        while occurrence:
            if not self.read():
                return False
            occurrence -= self.lines[-1] == ["enters", phase]
        return True

    def kill(self) -> int:
        """Kill it, and read the rest of its report; returns its exit code."""
        os.kill(self.process, signal.SIGKILL)
        return self.end()

    def end(self) -> int:
        """Wait for its end; returns its exit code."""
        while self.read():
            pass
        self._pipe.close()
        return end_of(self.process)

    def is_inside(self, phase: str) -> bool:
        """Whether it ended in a phase."""
        events = [line[0] for line in self.lines if line[1:] == [phase]]
        return events.count("enters") > events.count("leaves")

    def durations(self) -> dict[str, list[float]]:
        """The seconds of each occurrence of each phase."""
        seconds: dict[str, list[float]] = {phase: [] for phase in PHASES}
        entered: dict[str, float] = {}
        for (event, *what), moment in zip(self.lines, self.times):
            if event == "enters":
                entered[what[0]] = moment
            elif event == "leaves":
                seconds[what[0]].append(moment - entered[what[0]])
        return seconds

    def report(self) -> tuple[int, bool, list[Delivered]]:
        """The number of its steps, whether one was under way, and the rows of consumers."""
        return read_lines([line for line in self.lines if line[0] not in ("enters", "leaves")])


def start_on_a_machine(
    server: Server, folder: Path, seed: int, work: Callable[[Callable[..., None]], None]
) -> tuple[int, TextIO]:
    """Run a function in another process with a folder for temporary files of its own.

    So no process has the local files of a killed one, such as copies of batch files.
    """

    def connected(report: Callable[..., None]) -> None:
        folder.mkdir()
        tempfile.tempdir = str(folder)
        server.connect(seed)
        work(report)

    return start(connected)


def run_phased(spark: Any, root: str, seed: int, report: Callable[..., None]) -> None:
    """Run a scenario, and report its phases."""

    @contextmanager
    def inside(phase: str) -> Iterator[None]:
        report("enters", phase)
        yield
        report("leaves", phase)

    def phased(phase: str, call: Any) -> Any:
        def run(owner: Any, work: Any, *args: Any, **options: Any) -> Any:
            # A merge of no batches is no phase.
            with inside(phase) if work else nullcontext():
                return call(owner, work, *args, **options)

        return run

    scenario = Scenario(spark, root, seed, holds=True, on_update=lambda oracle, *update: report(
        "given", ORACLES.index(oracle), *update
    ))
    with mock.patch.object(Commits, "append", phased("commit", Commits.append)), \
            mock.patch.object(StepContext, "_merged", phased("compaction", StepContext._merged)):
        for number, stage in enumerate(scenario.STAGES):
            report("begins", stage)
            # A load opens the store, or is the first step.
            phase = "load" if number < 2 or stage == "reopen" else stage
            with inside(phase) if phase in PHASES else nullcontext():
                scenario.take(stage)
            report("done", stage)


def recovered_apart(
    spark: Any, server: Server, root: str, folder: Path, seed: int, child: Phased
) -> None:
    """Open the store of a killed process in another process, as on another machine."""

    def work(report: Callable[..., None]) -> None:
        try:
            recovered(spark, root, seed, *child.report(), holds=True)
        except Exception as error:
            report(str(error) if isinstance(error, Wrong) else traceback.format_exc())

    process, lines = start_on_a_machine(server, folder, seed, work)
    with lines:
        messages = [message for line in lines for message in json.loads(line)]
    code = end_of(process)
    demand(not messages, "".join(messages))
    demand(code == 0, f"the process that opens the store ended with {code}")


def random_kills_of_phases(
    spark: Any, folder: Path, options: Options, tally: Tally, server: Server
) -> Tally:
    """Each phase in turn is killed at a random moment."""
    chance = random.Random(48)
    seeds = max(1, options.phases // len(PHASES))
    lasted: dict[int, dict[str, list[float]]] = {}
    # Batches of a few rows are merged, or a short run has no compaction.
    with thresholds.using(spine_merge_batches_min=2, spine_merge_rows_min=2):
        for number in range(options.phases):
            seed, phase = number // len(PHASES) % seeds, PHASES[number % len(PHASES)]
            if seed not in lasted:
                with tally.run(f"seed {seed}, without a kill"):
                    root, here = f"{server.url}/whole-{seed}/store", folder / f"whole-{seed}"
                    child = Phased(spark, server, root, here, seed)
                    demand(child.end() == 0, f"it failed: {child.lines}")
                    lasted[seed] = child.durations()
                    demand(all(lasted[seed].values()), f"a phase did not come: {lasted[seed]}")
                    recovered_apart(spark, server, root, folder / f"after-{seed}", seed, child)
            with tally.run(f"seed {seed}, {phase}, kill {number}"):
                occurrence = chance.randrange(len(lasted[seed][phase]))
                root, here = f"{server.url}/{number}/store", folder / f"kill-{number}"
                child = Phased(spark, server, root, here, seed)
                demand(child.wait_for(phase, occurrence + 1), f"{phase} did not come")
                time.sleep(chance.random() * lasted[seed][phase][occurrence])
                code = child.kill()
                tally.notes["killed while requests were under way"] += server.under_way() > 0
                demand(code in (-signal.SIGKILL, 0), f"it ended with {code}: {child.lines}")
                there = "in" if child.is_inside(phase) else "after"
                tally.notes[f"killed {there} {phase}"] += 1
                recovered_apart(
                    spark, server, root, folder / f"recovered-{number}", seed, child)
    return tally


def kills_in_volumes(spark: Any, folder: Path, options: Options) -> Iterator[Tally]:
    """T2 in a volume: each phase in turn is killed at a random moment, whose mount lacks calls."""
    with volume_server() as server:
        yield random_kills_of_phases(
            spark, folder, options, Tally("T2 random kills in volumes"), server)


def kills_in_objects(spark: Any, folder: Path, options: Options) -> Iterator[Tally]:
    """T2 in an object store: each phase in turn is killed at a random moment."""
    with bucket_server() as server:
        yield random_kills_of_phases(
            spark, folder, options, Tally("T2 random kills in object stores"), server)


# Faults of files.

#: The stages that meet a fault, each with the number of steps before it.
PLACES = (("make", 0), ("step", 1), ("step", 2), ("step", 4), ("reopen", 4), ("vacuum", 4),
          ("close", 4))
FAULTS: tuple[tuple[str, int, bool], ...] = (
    ("EIO", errno.EIO, False), ("ENOSPC", errno.ENOSPC, False), ("done, and EIO", errno.EIO, True),
)


def faults_of_files(spark: Any, folder: Path, options: Options) -> Iterator[Tally]:
    """T4: the k-th operation on files fails, or succeeds and reports a failure."""
    for seed in range(options.seeds):
        templates = templates_of(spark, folder / f"templates-{seed}", seed)
        for name, code, after in FAULTS:
            tally = Tally(f"T4 failing operations ({name})" + (f", seed {seed}" if seed else ""))
            for stage, steps in PLACES:
                for number in range(1 + options.first, 10_000, options.stride):
                    at = At(crashes.fails(code), number, after=after)
                    with tally.run(f"{stage} after {steps} steps, operation {number}"):
                        one_fault(spark, folder, templates, seed, stage, steps, at, tally)
                    if at.count < number:
                        break  # that was the run without a fault
            yield tally


def templates_of(spark: Any, folder: Path, seed: int, most: int = 5) -> dict[int, Path]:
    """A store for each number of steps up to `most`."""
    stores = {0: folder / "0"}
    application = Application(spark, folder / "store", seed)
    while application.done < most:
        application.step()
        stores[application.done] = folder / f"{application.done}"
        shutil.copytree(folder / "store", stores[application.done])
    application.close()
    return stores


def one_fault(
    spark: Any, folder: Path, templates: dict[int, Path], seed: int, stage: str, steps: int,
    at: At, tally: Tally, make_room: Callable[[], None] = lambda: None,
) -> None:
    """One operation of a stage meets a fault. Another application continues with a copy.

    Then the same application continues, and after it a third one opens the store.
    """
    root, copy = folder / "fault" / "store", folder / "copy" / "store"
    for path in root.parent, copy.parent:
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
    if templates[steps].exists():
        shutil.copytree(templates[steps], root)
    segments: list[Delivered] = []
    here: Application | None = None
    error: Exception | None = None

    def opens() -> Application:
        application = Application(spark, root, seed)
        segments.append(application.delivered)
        return application

    done = steps
    try:
        if stage not in ("make", "reopen"):
            here = opens()
        if stage == "close" and here is not None:
            here.step()
            done += 1
        before = None if here is None else here.flow._state
        try:
            with operations(str(root.parent), at):
                if here is None:
                    here = opens()
                elif stage == "step":
                    here.step()
                    done += 1
                elif stage == "vacuum":
                    here.flow.vacuum(dry_run=False, older_than=-60)
                else:
                    here.close()
        except (DiffError, OSError) as caught:
            error = caught
        make_room()
        if root.exists():
            shutil.copytree(root, copy)
        delivered = [{o: list(u) for o, u in updates_of.items()} for updates_of in segments]
        if error is not None:
            tally.notes["failed, and went on"] += 1
            demand(isinstance(error, StorageError), f"{at.struck}: the error is {error!r}")
        undone = stage == "step" and error is not None
        recovered(spark, copy, seed, done, undone, delivered, more=1, begins=steps)
        if here is not None and stage != "close":
            if before is not None and error is not None:
                steps_made = here.flow._state.epoch - before.epoch
                demand(steps_made in (0, stage == "step"), "the state is neither before nor after")
            if undone:
                here.done = go_on_after(here, at, error, done)
                if here.done > done:
                    # The step is acknowledged now, so the store must keep it.
                    done = here.done
                    shutil.rmtree(copy.parent)
                    shutil.copytree(root, copy)
                    delivered = [
                        {o: list(u) for o, u in updates_of.items()} for updates_of in segments
                    ]
                    recovered(spark, copy, seed, done, False, delivered, more=0, begins=steps)
            if here.done == done:
                here.step()
                here.check()
                done += 1
            here.close()
        recovered(spark, root, seed, done, undone, segments, more=1, begins=steps)
    finally:
        if here is not None:
            here.close()


def go_on_after(here: Application, at: At, error: Exception | None, done: int) -> int:
    """The same application runs a step again; returns its number of steps."""
    try:
        here.flow.step(token=f"step {done}")
    except (UnknownOutcomeError, ConcurrentWriteError) as second_error:
        # The next application that opens the store finds whether the step was committed.
        message = f"{at.struck}, {error!r}: run again it fails: {second_error!r}"
        demand(isinstance(error, UnknownOutcomeError), message)
        return done
    steps = here.at()
    demand(steps == done + 1, f"{at.struck}, {error!r}: run again, {steps} steps are done")
    here.done = steps
    here.check()
    return steps


def full_disks(spark: Any, folder: Path, options: Options) -> Iterator[Tally]:
    """T13: the disk is full from the k-th operation on, until there is room again."""
    tally = Tally("T13 full disks")
    with small_disk(folder) as small:
        if small == folder:
            tally.notes["left out, as no disk can be made here"] = 1
            yield tally
            return
        templates = templates_of(spark, folder / "templates-full", 0)
        root = str(small / "fault" / "store")
        filler = crashes.filler(root)
        for stage, steps in PLACES:
            for number in range(1 + options.first, 10_000, options.stride):
                at = At(crashes.full(root), number, only=("open", "write", "writev", "mkdir"))
                with tally.run(f"{stage} after {steps} steps, operation {number}"):
                    one_fault(
                        spark, small, templates, 0, stage, steps, at, tally,
                        lambda: filler.unlink(missing_ok=True),
                    )
                if at.count < number:
                    break
        yield tally


# Writers that come between each other.


def writers(spark: Any, folder: Path, options: Options) -> Iterator[Tally]:
    """A writer commits nothing after another writer opened the store, however long it slept."""
    tally = Tally("writers that were overtaken")
    for slept in False, True:
        root = folder / f"writers-{slept}"
        # All batches are in memory, so that no deleted file stops the writer that slept.
        with tally.run("one that slept" if slept else "two that are awake"), \
                thresholds.using(in_memory_rows_max=4096):
            first = Application(spark, root)
            first.step()
            second = Application(spark, root)
            try:
                with thresholds.using(tombstones_max=0):
                    for _ in range(3 if slept else 0):
                        second.step()
                    if slept:
                        second.flow.vacuum(dry_run=False, older_than=-60)
                        demand(not objects_at(root).names("commits")[0].name.endswith(
                            f"{2:016d}.commit"), "the vacuum has left all tombstones")
                try:
                    first.step()
                    raise Wrong("a writer that was overtaken could commit")
                except ConcurrentWriteError:
                    pass
                second.check()
                second.step()
                second.check()
            finally:
                first.close()
                second.close()
            recovered(spark, root, 0, second.done, False, [second.delivered], begins=1)
    yield tally


# Mounts of object stores.


def mounts(spark: Any, folder: Path, options: Options) -> Iterator[Tally]:
    """A mount lacks a call: a store in a volume does without all, another one without some.

    A store in a folder is refused by name if the folder has no links or no renames.
    """
    for code_name, code in volumes.CODES.items():
        tally = Tally(f"stores in folders, a call answers {code_name}")
        for call in volumes.CALLS:
            root = folder / f"without-{call}-{code}" / "store"
            with tally.run(f"without {call}"):
                calls: list[str] = []
                try:
                    with volumes.refusing(folder, code, [call]) as calls:
                        Scenario(spark, str(root), 0).run()
                    demand(call not in ("link", "rename"), f"a store works without {call}")
                    tally.notes["are right without the call"] += 1
                except StorageError as error:
                    demand(f"without {'hard ' * (call == 'link')}{call}s" in str(error), f"{error}")
                    left = [path for path in root.rglob("*") if path.is_file()]
                    demand(not left, f"files are left: {left}")
                    tally.notes["are refused"] += 1
                # A store takes no lock, and appends nothing.
                demand(calls or call in ("append", "lock"), f"{call} was never called")
        yield tally
        tally = Tally(f"kills in volumes, each call answers {code_name}")
        workspace = volumes.workspace()
        set_credentials(volumes.VOLUME, workspace.client, mount=str(workspace.folder))
        here = workspace.volume / f"kills-{code}"

        def named(path: str) -> str:
            return f"/Volumes/{os.path.relpath(path, workspace.folder)}"

        with tally.run("without an end"), volumes.refusing(workspace.folder, code):
            ends = ends_of(spark, here, 0, stride=options.stride, first=options.first,
                           notes=tally.notes, named=named)
            for end in ends:
                with tally.run(end.what):
                    recovered(
                        spark, end.root, 0, end.acknowledged, end.under_way, end.segments)
        shutil.rmtree(here)
        set_credentials(volumes.VOLUME)
        yield tally


def late_listings(spark: Any, folder: Path, options: Options) -> Iterator[Tally]:
    """The listing of each folder lacks the newest files: no step is lost, and none is redone."""
    workspace = volumes.workspace()
    set_credentials(volumes.VOLUME, workspace.client, mount=str(workspace.folder))
    for kind in "folder", "volume":
        tally = Tally(f"late listings in a {kind}")
        here = folder / "late" if kind == "folder" else workspace.volume / "late"

        def root(stage: str, kind: str = kind, here: Path = here) -> str:
            path = here / stage / "store"
            if kind == "folder":
                return str(path)
            return f"/Volumes/{path.relative_to(workspace.folder)}"

        scenario = Scenario(spark, root("base"), 0)
        hidden: list[str] = []
        for number, stage in enumerate(scenario.STAGES):
            with tally.run(f"{stage} {number}"):
                with volumes.late(here) as hidden:
                    scenario.take(stage)
                    if stage in ("step", "reopen", "vacuum"):
                        scenario.application.check()  # type: ignore[union-attr]
                    demand(
                        hidden or stage not in ("reopen", "vacuum"),
                        "no file was left out of a listing")
                shutil.copytree(here / "base", here / f"{number}")
                if scenario.acknowledged:
                    with volumes.late(here):
                        other = Application(spark, root(f"{number}"))
                        demand(other.done == scenario.acknowledged, f"{other.done} steps are there")
                        other.check()
                        other.close()
                recovered(
                    spark, root(f"{number}"), 0, scenario.acknowledged, False, scenario.delivered(),
                    more=1)
        shutil.rmtree(here)
        yield tally
    set_credentials(volumes.VOLUME)


# Ends at random moments, with many rows.

#: The number of steps, the steps that run in Spark whatever their size, and the changes of each.
LARGE_STEPS, IN_SPARK, CHANGES = 6, (3,), 400
#: Edges from each node, so that a loop takes few iterations.
DEGREE = 20


def large_program(flow: Dataflow) -> None:
    for oracle, frame in collections(flow).items():
        frame.keep(oracle.__name__)


def feed_large(spark: Any, flow: Dataflow, step: int, rows: int) -> None:
    """Many rows, and then a few that come and go."""
    edges, prices, roots = (flow.session(name) for name in INPUTS)
    nodes = rows // DEGREE

    def edge(number: int) -> tuple[int, int]:
        return number % nodes, (number * 7919 + number // nodes) % nodes

    if step == 0:
        edges.update(spark.range(rows).selectExpr(
            f"id % {nodes} AS src", f"(id * 7919 + id div {nodes}) % {nodes} AS dst",
            "0L AS time", "1L AS diff",
        ))
        prices.update([(src, src % 17, 0, 1) for src in range(0, nodes, 50)])
        roots.update([(0, 0, 1)])
    else:
        gone = range((step - 1) * CHANGES, step * CHANGES)
        edges.update([(*edge(number), step, -1) for number in gone])
        edges.update([(*edge(number + rows), step, 1) for number in gone])
        prices.update([(50 * number, number % 17, step, 1) for number in range(step * 10)])


def large_child(root: str, rows: int) -> None:
    """Run an application to its last step, and print a line after each action."""
    def report(*what: object) -> None:
        print(*what, flush=True)

    with tempfile.TemporaryDirectory() as folder, spark_on(LOCAL, Path(folder)) as spark:
        report("jvm", spark.sparkContext._gateway.proc.pid)
        with Dataflow.open(root, large_program, spark=spark, buckets=2, retain=RETAIN) as flow:
            done = flow.session("edges").time()
            report("opened", done)
            for step in range(done, LARGE_STEPS):
                feed_large(spark, flow, step, rows)
                flow.runner = "spark" if step in IN_SPARK else "auto"
                report("begins", step)
                flow.advance_to(step + 1)
                report("done", step + 1)
            wrong = flow.verify()
            digest = hashlib.sha256()
            for oracle in ORACLES:
                node = flow._outputs._nodes[oracle.__name__][0]
                table = flow._arrangement(node).table(LARGE_STEPS - 1)
                digest.update(repr(sorted(map(str, table.to_pylist()))).encode())
                report("rows", oracle.__name__, table.num_rows)
            report("wrong" if wrong else "answer", wrong or digest.hexdigest())


class Child:
    """A process that runs `large_child`, and the lines that it printed."""

    def __init__(self, root: Path, rows: int):
        self.lines: list[list[str]] = []
        self.errors = open(f"{root}.errors", "ab")
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--child", str(root), str(rows)],
            stdout=subprocess.PIPE, stderr=self.errors, text=True, start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.split())

    def last_line(self, what: str) -> list[str] | None:
        """The words of the last line of a kind."""
        return next((line[1:] for line in reversed(self.lines) if line[0] == what), None)

    def wait_for(self, *what: str) -> None:
        while not any(map(self.last_line, what)) and self.process.poll() is None:
            time.sleep(0.01)

    def kill(self, whom: str) -> None:
        jvm = self.last_line("jvm")
        if whom == "driver and JVM" or jvm is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        else:
            os.kill(int(jvm[0]) if whom == "JVM" else self.process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Wait until the process ends, and kill the processes that it started."""
        try:
            self.process.wait(HANGS / 3)
        except subprocess.TimeoutExpired:
            raise Wrong("the driver hangs after its end") from None
        finally:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.process.wait()
            self._reader.join()
            self.errors.close()


def random_kills(spark: Any, folder: Path, options: Options) -> Iterator[Tally]:
    """T2: driver, JVM or both are killed at a random moment of running steps, again and again."""
    tally = Tally(f"T2 random kills, {options.rows:,} rows")
    chance = random.Random(2)
    plain = Child(folder / "plain", options.rows)
    plain.wait_for("opened")
    started = time.monotonic()
    plain.wait_for("answer", "wrong")
    seconds = time.monotonic() - started
    plain.end()
    wanted = plain.last_line("answer")
    with tally.run("without a kill"):
        demand(wanted, f"no answer: {plain.lines}")
    number = stores = 0
    while number < options.random:
        root = folder / f"store-{stores}"
        stores += 1
        acknowledged = 0
        ended = False
        while not ended:
            with tally.run(f"kill {number}, store {stores - 1}"):
                child = Child(root, options.rows)
                try:
                    if number < options.random:
                        number += 1
                        print(f"{tally.name}: kill {number}", file=sys.stderr, flush=True)
                        child.wait_for("jvm")
                        # Some while it opens; most while it steps.
                        if chance.random() < 0.8:
                            child.wait_for("opened")
                        whom = chance.choice(["driver and JVM", "driver and JVM", "driver", "JVM"])
                        time.sleep(chance.random() * seconds * chance.choice([0.1, 0.3, 0.9]))
                        over = child.process.poll() is not None
                        child.kill(whom) if not over else None
                        tally.notes["over before" if over else f"of {whom}"] += 1
                finally:
                    child.end()
                opened, done = child.last_line("opened"), child.last_line("done")
                if opened is not None:
                    demand(
                        acknowledged <= int(opened[0]) <= acknowledged + 1,
                        f"{acknowledged} steps were done, and {opened[0]} are there",
                    )
                    acknowledged = int((done or opened)[0])
                answer = child.last_line("answer")
                demand(
                    child.last_line("wrong") is None,
                    f"files are wrong: {child.last_line('wrong')}",
                )
                ended = answer is not None
                demand(answer in (None, wanted), "the answer is another one")
                killed = child.process.returncode or child.last_line("jvm") is None
                demand(ended or killed, f"it ended without an answer: {child.lines}")
            if tally.wrong and not ended:
                break
        shutil.rmtree(root, ignore_errors=True)
    yield tally


def executor_kills(spark: Any, folder: Path, options: Options) -> Iterator[Tally]:
    """T3: an executor is killed in a task of a join, a reduction or a loop."""
    tally = Tally("T3 kills of executors")
    with spark_on(CLUSTER, folder) as cluster:
        templates = templates_of(cluster, folder / "templates-cluster", 0)
        places = ("task kernel", "task rename", "task end")
        counted = executor_kill(cluster, folder, templates, Fault("", ""), tally)
        for number in range(options.executors):
            place = places[number % len(places)]
            count = counted[place]
            at = 1 + (number // len(places)) * 7919 % max(count, 1)
            with tally.run(f"{place} {at} of {count}"):
                fault = Fault("", "", place, "kill executor", at)
                executor_kill(cluster, folder, templates, fault, tally)
    yield tally


def executor_kill(
    spark: Any, folder: Path, templates: dict[int, Path], fault: Fault, tally: Tally
) -> Counter[str]:
    """Run a step on Spark that may lose an executor; returns the places of the step."""
    root = folder / "executor" / "store"
    shutil.rmtree(root.parent, ignore_errors=True)
    shutil.copytree(templates[4], root)
    here = Application(spark, root, runner="spark")
    with tempfile.TemporaryDirectory() as counts:
        fault = replace(fault, folder=counts, root=str(root))
        try:
            with faults.about(fault):
                here.step()
        except DiffError:
            tally.notes["failed, and went on"] += 1
            here.flow.step()
            here.done += 1
        places = fault.places()
        demand(not fault.act or fault.struck(), "the step did not come to this place")
    here.check()
    here.flow.runner = "local"
    here.close()
    recovered(spark, root, 0, here.done, False, [here.delivered], begins=4)
    return places


#: All gates by their names; the gates in `ALONE` start their own Spark sessions.
GATES: dict[str, Callable[[Any, Path, Options], Iterator[Tally]]] = {
    "T1": kills,
    "T1-real": real_kills,
    "loss": crashes_of_the_machine,
    "T4": faults_of_files,
    "T13": full_disks,
    "writers": writers,
    "mounts": mounts,
    "late": late_listings,
    "T2-volume": kills_in_volumes,
    "T2-objects": kills_in_objects,
}
ALONE: dict[str, Callable[[Any, Path, Options], Iterator[Tally]]] = {
    "T2": random_kills,
    "T3": executor_kills,
}


def run_gates(names: Sequence[str], options: Options) -> list[Tally]:
    """Run gates by their names, and print a line for each."""
    tallies = []

    def run(spark: Any, folder: Path, gates: dict[str, Any]) -> None:
        for name in names:
            if name in gates:
                for tally in gates[name](spark, folder, options):
                    print(tally.line(), flush=True)
                    for message in tally.wrong:
                        print(f"WRONG: {tally.name}, {message}", flush=True)
                    tallies.append(tally)

    with tempfile.TemporaryDirectory(prefix="durability-") as folder, small_batches():
        if any(name in GATES for name in names):
            with spark_on(LOCAL, Path(folder)) as spark:
                run(spark, Path(folder), GATES)
        run(None, Path(folder), ALONE)
    return tallies


# Seeded bugs, to show that the gates find them.


@contextmanager
def data_files_are_not_synced() -> Iterator[None]:
    real = storage.sync
    with mock.patch.object(
        storage, "sync", lambda path: real(path) if os.path.isdir(path) else None
    ):
        yield


@contextmanager
def folders_of_data_files_are_not_synced() -> Iterator[None]:
    with mock.patch.object(StoreFiles, "make_lasting", lambda files, names: None):
        yield


@contextmanager
def commits_are_not_synced() -> Iterator[None]:
    real: Any = LocalObjects._write_scratch

    def write(objects: Any, *args: Any, sync: bool) -> Any:
        return real(objects, *args, sync=False)

    with mock.patch.object(LocalObjects, "_write_scratch", write):
        yield


@contextmanager
def the_folder_of_commits_is_not_synced() -> Iterator[None]:
    with mock.patch.object(LocalObjects, "_sync_name", lambda objects, folder, name: None):
        yield


@contextmanager
def commits_come_before_their_files() -> Iterator[None]:
    waiting: list[tuple[str, str]] = []
    real_write, real_append = storage.write_lasting, Commits.append

    def write(path: str, batch: Any, **options: Any) -> Any:
        path_of_file, size = real_write(path, batch, **options)
        storage.open_updates(path_of_file)  # mapped, so that it can be read from here on
        aside = f"{path_of_file}.aside"
        os.rename(path_of_file, aside)
        waiting.append((aside, path_of_file))
        return path_of_file, size

    def append(*args: Any) -> Any:
        commit = real_append(*args)
        while waiting:
            os.rename(*waiting.pop())
        return commit

    with mock.patch.object(storage, "write_lasting", write), \
            mock.patch.object(Commits, "append", append):
        yield


@contextmanager
def _late_uploads(kind: type[Objects]) -> Iterator[None]:
    waiting: list[tuple[Objects, str, bytes]] = []
    real_append = Commits.append

    def upload(objects: Objects, name: str, path: str) -> None:
        waiting.append((objects, name, Path(path).read_bytes()))

    def append(*args: Any) -> Any:
        commit = real_append(*args)
        time.sleep(0.5 if waiting else 0)  # so that kills at random moments interrupt it
        while waiting:
            objects, name, data = waiting.pop()
            objects.replace(name, data)
        return commit

    with mock.patch.object(kind, "upload", upload), mock.patch.object(Commits, "append", append):
        yield


def commits_come_before_their_uploads() -> Any:
    return _late_uploads(VolumeObjects)


def commits_come_before_their_objects() -> Any:
    return _late_uploads(RemoteObjects)


@contextmanager
def _encoded_without(**parts: Any) -> Iterator[None]:
    real = durable.encoded

    def encoded(state: Any, *args: Any) -> Any:
        return real(replace(state, **parts), *args)

    with mock.patch.object(durable, "encoded", encoded):
        yield


def what_waits_is_not_committed() -> Any:
    return _encoded_without(pending={}, waiting={})


def the_outbox_is_not_committed() -> Any:
    return _encoded_without(outbox=())


@contextmanager
def a_vacuum_deletes_a_listed_file() -> Iterator[None]:
    real = vacuum_module._unlisted

    def unlisted(objects: Any, listed: set[str], *args: Any) -> Any:
        files = [name for name in listed if storage.certified(name)]  # others are in memory
        return real(objects, listed - {max(files, default="")}, *args)

    with mock.patch.object(vacuum_module, "_unlisted", unlisted):
        yield


@contextmanager
def files_go_before_the_commit_without_them() -> Iterator[None]:
    real: Any = Commits.append

    def append(commits: Any, state: Any, payload: Any, files: Any, *args: Any) -> Any:
        if commits.last is not None:
            commits.objects.delete([name for name in commits.last.files if name not in files])
        return real(commits, state, payload, files, *args)

    with mock.patch.object(Commits, "append", append):
        yield


@contextmanager
def a_vacuum_forgets_payloads_that_are_used() -> Iterator[None]:
    real: Any = Commits._replace
    with mock.patch.object(
        Commits, "_replace", lambda commits, number, *, used: real(commits, number, used=False)
    ):
        yield


@contextmanager
def the_state_is_taken_over_before_its_commit() -> Iterator[None]:
    real: Any = BaseDataflow._lasting

    def lasting(flow: Any, state: Any, *args: Any) -> Any:
        flow._state = state
        return real(flow, state, *args)

    with mock.patch.object(BaseDataflow, "_lasting", lasting):
        yield


@contextmanager
def errors_of_files_have_no_type() -> Iterator[None]:
    @contextmanager
    def explained(objects: Any, name: str, *, writes: bool = False) -> Iterator[None]:
        yield

    with mock.patch.object(LocalObjects, "_explained", explained):
        yield


@contextmanager
def a_name_that_is_taken_is_overwritten() -> Iterator[None]:
    def create(objects: Any, name: str, parts: Any) -> bool:
        objects.replace(name, b"".join(parts))
        return True

    with mock.patch.object(LocalObjects, "create", create), \
            mock.patch.object(LocalObjects, "probe", lambda objects: None):
        yield


@contextmanager
def any_commit_is_taken_for_ours() -> Iterator[None]:
    def judge(commits: Any, commit: Any, *args: Any) -> None:
        commits.last, commits._in_doubt = commit, None

    with mock.patch.object(Commits, "_judge", judge):
        yield


@contextmanager
def tombstones_are_deleted_without_a_floor() -> Iterator[None]:
    def collapse(commits: Any) -> None:
        sizes = commits._numbers()
        gone = [n for n, size in sizes.items() if commits_module.manifest.is_tombstone(size)]
        commits.objects.delete([commits_module.name_of(n) for n in gone])

    def last_of(commits: Any, hint: Any, sizes: Any, floor: int) -> Any:
        return commits._decoded(max(sizes))

    with mock.patch.object(Commits, "collapse", collapse), \
            mock.patch.object(Commits, "_last_of", last_of):
        yield


#: Each with the gate that shows it, and how often it is looked for.
BUGS: list[tuple[Callable[[], Any], str, int]] = [
    (data_files_are_not_synced, "loss", 6),
    (folders_of_data_files_are_not_synced, "loss", 6),
    (commits_are_not_synced, "loss", 6),
    (the_folder_of_commits_is_not_synced, "loss", 6),
    (commits_come_before_their_files, "T1", 3),
    (commits_come_before_their_uploads, "T2-volume", 1),
    (commits_come_before_their_objects, "T2-objects", 1),
    (files_go_before_the_commit_without_them, "T1", 3),
    (what_waits_is_not_committed, "T1", 9),
    (the_outbox_is_not_committed, "T1", 3),
    (a_vacuum_deletes_a_listed_file, "T1", 5),
    (a_vacuum_forgets_payloads_that_are_used, "T1", 9),
    (the_state_is_taken_over_before_its_commit, "T4", 3),
    (errors_of_files_have_no_type, "T4", 5),
    (a_name_that_is_taken_is_overwritten, "writers", 1),
    (any_commit_is_taken_for_ours, "writers", 1),
    (tombstones_are_deleted_without_a_floor, "writers", 1),
]

#: The kills of phases that look for a seeded bug, two of each phase.
PHASE_KILLS = 2 * len(PHASES)


def self_check(gates: Sequence[str]) -> int:
    """Seed the bugs of some gates one after another; returns the number that no run found."""
    missed = 0
    bugs = [bug for bug in BUGS if bug[1] in gates]
    with tempfile.TemporaryDirectory(prefix="durability-") as folder, small_batches():
        with spark_on(LOCAL, Path(folder)) as spark:
            for bug, name, stride in bugs:
                with bug(), tempfile.TemporaryDirectory(dir=folder) as inside:
                    tallies = list(GATES[name](
                        spark, Path(inside), Options(stride=stride, phases=PHASE_KILLS)))
                wrong, runs = sum(len(t.wrong) for t in tallies), sum(t.runs for t in tallies)
                missed += not wrong
                print(f"{bug.__name__}: {wrong} of {runs} runs of {name} found it", flush=True)
    print(f"{len(bugs)} bugs were seeded, {len(bugs) - missed} were found")
    return missed if bugs else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="ci/durability", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--only", action="append", choices=[*GATES, *ALONE], metavar="NAME",
        help=f"only this gate, of {', '.join([*GATES, *ALONE])}; may be given several times",
    )
    parser.add_argument("--seeds", type=int, default=1, help="so many programs of inputs; 1")
    parser.add_argument("--quick", action="store_true", help="every seventh place, and few kills")
    parser.add_argument("--stride", type=int, default=1, help="only every so many-th place")
    parser.add_argument(
        "--first", type=int, default=0, metavar="K",
        help="the place to begin with, less than the stride: all of them together are a whole run",
    )
    parser.add_argument(
        "--self-check", action="store_true", help="show that seeded bugs of the library are found"
    )
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    # A terminated run also ends its mounts and its processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if options.child:
        large_child(options.child[0], int(options.child[1]))
        return 0
    if options.self_check:
        return 1 if self_check(options.only or [*GATES]) else 0
    whole = Options(options.seeds, options.stride, options.first)
    quick = replace(whole, stride=7, real=4, random=12, phases=15, executors=3, rows=50_000)
    tallies = run_gates(options.only or [*GATES, *ALONE], quick if options.quick else whole)
    runs, right = sum(tally.runs for tally in tallies), sum(tally.right for tally in tallies)
    print(f"{runs} runs: {right} right, {runs - right} wrong")
    return 0 if runs and runs == right else 1


if __name__ == "__main__":
    sys.exit(main())
