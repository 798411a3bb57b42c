"""Run by ci/faults: a step on Spark meets a fault at each of its places, one after another.

For each kind of fault, each place and each k up to the number of places in a step without a fault:

    The step succeeds, or raises an error of the expected kind and changes nothing.
    Run again it succeeds, and so does the step after it.
    At every time the answers are those of an oracle, and the state names every file.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence
from unittest import mock

import faults
from faults import Fault
from oracle import Collection, Record, accumulate, total
from programs import files_of
from pyspark.sql import functions as F
from pyspark.sql import is_remote

import pyspark_diff
from pyspark_diff import Dataflow, DiffError, StorageError
from pyspark_diff.dataflow.dataflow import BaseDataflow
from pyspark_diff.runners import spark as runners
from pyspark_diff.trace import storage

#: Seconds within which Ctrl-C ends a step, and its jobs are over.
SOON = 10.0
#: Seconds after which a run hangs, and the command ends.
HANGS = 300.0
LOCAL, CLUSTER = "local[2,4]", "local-cluster[2,1,1400]"

Update = tuple[Record, int, int]
#: From the present inputs to the expected output.
Oracle = Callable[[dict[str, Collection]], Collection]


# The program, and an oracle that computes its outputs from the inputs alone.


INPUTS = {"edges": "src long, dst long", "prices": "src long, price long", "roots": "node long"}
#: The updates of each input by step: record, time and diff. Each step has two times.
STEPS: list[dict[str, list[Update]]] = [
    {
        "edges": [
            ((0, 1), 0, 1), ((0, 2), 0, 2), ((1, 2), 0, 1), ((2, 3), 1, 1), ((4, 5), 1, 1),
            ((5, 6), 1, 1),
        ],
        "prices": [((0, 3), 0, 1), ((1, 4), 0, 1), ((2, 5), 0, 2), ((4, 2), 1, 1)],
        "roots": [((0,), 0, 1), ((4,), 1, 2)],
    },
    {
        "edges": [((3, 7), 2, 1), ((1, 2), 3, -1)],
        "prices": [((2, 5), 2, -1), ((5, 9), 3, 1)],
        "roots": [((4,), 3, -1)],
    },
    # The faults come here. One update waits for the time of the next step.
    {
        "edges": [((0, 1), 4, -1), ((0, 8), 4, 1), ((0, 2), 5, -1), ((8, 9), 6, 1)],
        "prices": [((0, 3), 4, -1), ((0, 8), 5, 1)],
        "roots": [],
    },
    {
        "edges": [((0, 8), 6, -1), ((4, 2), 7, 1)],
        "prices": [((2, 5), 6, -1)],
        "roots": [((4,), 6, -1), ((2,), 7, 1)],
    },
]
#: The step that meets the fault.
FAULTY = 2


def totals_of(now: dict[str, Collection]) -> Collection:
    """The join and the aggregate: the total price of the edges of each source."""
    sums = Counter[int](), Counter[int]()
    for (source, _), edges in now["edges"].items():
        for (priced, price), prices in now["prices"].items():
            if priced == source:
                sums[0][source] += edges * prices
                sums[1][source] += edges * prices * price
    return total(((source, rows, sums[1][source]), 1) for source, rows in sums[0].items())


def reached_from(now: dict[str, Collection]) -> Collection:
    """The loop: nodes that paths from the roots lead to."""
    near = {node for (node,) in now["roots"]}
    while True:
        more = near | {end for (source, end) in now["edges"] if source in near}
        if more == near:
            return Counter({(node,): 1 for node in near})
        near = more


def collections(flow: Dataflow) -> dict[Oracle, Any]:
    """The program: a join with an aggregate, and a loop, by their oracles."""
    edges, prices, roots = (flow.input(name, schema)[0] for name, schema in INPUTS.items())
    edges = edges.arrange_by_key("src")
    totals = edges.join(prices, "src").groupBy("src").agg(
        F.count("price").alias("times"), F.sum("price").alias("cost")
    )
    starts = roots.distinct()
    reached = starts.iterate(
        lambda near: near.toDF("src").join(edges, "src").select(F.col("dst").alias("node"))
        .union(starts).distinct()
    )
    return {totals_of: totals, reached_from: reached}


class Subject:
    """A dataflow that meets faults, the updates of its inputs, and its emitted updates.

    Steps before the one that meets the fault run on the driver, which is fast. So does the next
    step, which reads the files of the tasks.
    """

    def __init__(self, spark: Any, root: Path):
        self.spark = spark
        self.flow = Dataflow(spark, runner="local", buckets=2, root=str(root))
        self.updates: dict[Oracle, list[Update]] = {}
        for oracle, frame in collections(self.flow).items():
            updates = self.updates[oracle] = []
            frame.inspect(lambda *update, to=updates: to.append(update))
        self.sessions: dict[str, Any] = {name: self.flow.session(name) for name in INPUTS}
        self.history: dict[str, list[Update]] = {name: [] for name in INPUTS}
        self.steps = 0

    def feed(self) -> None:
        """Hand in the updates of the next step, some of them as a frame."""
        for name, updates in STEPS[self.steps].items():
            session = self.sessions[name]
            self.history[name] += updates
            rows = [(*record, moment, diff) for record, moment, diff in updates]
            if name == "edges" and self.steps == FAULTY:
                struct = f"{INPUTS[name]}, time long, diff long"
                session.update(self.spark.createDataFrame(rows, struct).repartition(2))
            else:
                session.update(rows)
            session.advance_to(2 * self.steps + 2)
            session.flush()
        self.steps += 1

    def prepare(self) -> None:
        """Go to the step that meets the fault."""
        for _ in range(FAULTY):
            self.feed()
            self.flow.step()
        self.feed()
        self.flow.runner = "spark"

    def go_on(self) -> None:
        """Take the next step."""
        self.flow.runner = "local"
        self.feed()
        assert self.flow.step(), "the next step has nothing to do"

    def check(self) -> None:
        """The answers at every time, and the files."""
        for oracle, emitted in self.updates.items():
            for moment in range(2 * self.steps):
                now = {n: accumulate(updates, moment) for n, updates in self.history.items()}
                wanted, actual = oracle(now), accumulate(emitted, moment)
                assert actual == wanted, f"{oracle.__name__} was shown wrong at {moment}: {actual}"
        self.check_files()

    def check_files(self) -> None:
        """Check that the store has exactly the files of its state, and no empty directory."""
        named = self.flow._state.paths() | self.flow._outputs.pinned
        present = files_of(self.flow)
        assert present <= named, f"files that nobody needs: {short(present - named)}"
        assert present >= named, f"files that are missing: {short(named - present)}"
        root = Path(self.flow._storage.root)
        empty = [str(path) for path in root.iterdir() if path.is_dir() and not any(path.iterdir())]
        assert not empty, f"directories with nothing in them: {short(empty)}"


def short(paths: Any) -> str:
    """Paths by their last two names."""
    return ", ".join("/".join(Path(path).parts[-2:]) for path in sorted(paths))


# The kinds of faults.


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Parameters
    ----------
    name : str
    act : str
    masters : tuple of str
    places : tuple of str
    right, fails : bool
        Whether the step may succeed in spite of it, and whether it may fail.
    error : type
        What it raises if it fails.
    forever : bool
    """

    name: str
    act: str
    masters: tuple[str, ...]
    places: tuple[str, ...]
    right: bool = False
    fails: bool = False
    error: type[BaseException] = DiffError
    forever: bool = False


def in_tasks(*places: str) -> tuple[str, ...]:
    return tuple(f"task {place}" for place in places)


def on_driver(*places: str) -> tuple[str, ...]:
    return tuple(f"driver {place}" for place in places)


KINDS = [
    Kind(
        "an error, once", "error", (LOCAL,), in_tasks("kernel", "write", "rename", "end"),
        right=True,
    ),
    Kind(
        "an error, for ever", "error", (LOCAL,),
        in_tasks("kernel", "rename"), fails=True, forever=True,
    ),
    Kind(
        "worker killed", "kill", (LOCAL,), in_tasks("write", "rename", "end"), right=True,
    ),
    Kind("disk full", "fill", (LOCAL,), in_tasks("write"), fails=True, error=StorageError),
    Kind(
        "no space, once", "full", (LOCAL,), in_tasks("open"), right=True, fails=True,
        error=StorageError,
    ),
    Kind(
        "no space", "full", (LOCAL,), in_tasks("open"), fails=True, error=StorageError,
        forever=True,
    ),
    Kind(
        "Ctrl-C in a job", "wait", (LOCAL,), in_tasks("kernel"), fails=True,
        error=KeyboardInterrupt,
    ),
    Kind(
        "an error on the driver", "error", (LOCAL,), on_driver("write", "rename", "job", "answer"),
        fails=True,
    ),
    Kind("disk full, driver", "fill", (LOCAL,), on_driver("write"), fails=True, error=StorageError),
    Kind(
        "Ctrl-C on the driver", "interrupt", (LOCAL,),
        on_driver("write", "rename", "job", "answer"), fails=True, error=KeyboardInterrupt,
    ),
    Kind(
        "executor killed", "kill executor", (CLUSTER,), in_tasks("kernel", "end"),
        right=True, fails=True,
    ),
    Kind(
        "executor lost, its worker not", "lose executor", (CLUSTER,), in_tasks("rename"),
        right=True, fails=True,
    ),
]


class Wrong(Exception):
    """A law that a fault has broken."""


@dataclass
class Tally:
    """The outcomes of the runs of one kind at one place."""

    master: str
    kind: str
    place: str
    places: int
    runs: int = 0
    right: int = 0
    failed: int = 0
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0


def run_with(spark: Any, kind: Kind, place: str, number: int, root: Path) -> str:
    """Run one step with one fault; returns "right" or "failed", or raises `Wrong`."""
    subject = Subject(spark, root)
    with subject.flow:
        subject.prepare()
        with tempfile.TemporaryDirectory() as folder:
            fault = Fault(folder, subject.flow._storage.root, place, kind.act, number, kind.forever)
            error = met(subject, fault)
            if not fault.struck():
                raise Wrong("the step did not come to this place")
        judge(subject, kind, error)
        try:
            subject.check()
            subject.go_on()
            subject.check()
        except Exception as second_error:
            raise Wrong(f"after {error!r}: {second_error}") from second_error
    if os.path.exists(subject.flow._storage.root):
        raise Wrong("the dataflow's directory is still there")
    return "right" if error is None else "failed"


def met(subject: Subject, fault: Fault) -> BaseException | None:
    """The error of a step that may meet the fault."""
    state = subject.flow._state
    files = files_of(subject.flow)
    interrupted = []

    def interrupt() -> None:
        while not Path(fault.folder, "waiting").exists():
            if over.wait(0.02):
                return
        interrupted.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    over = threading.Event()
    watch = threading.Thread(target=interrupt)
    watch.start()
    error: BaseException | None = None
    try:
        with faults.about(fault):
            subject.flow.step()
    except (Exception, KeyboardInterrupt) as caught:
        error = caught
    finally:
        ended = time.monotonic()
        over.set()
        watch.join()
    faults.filler(fault.root).unlink(missing_ok=True)
    if error is None:
        return None
    if isinstance(error, KeyboardInterrupt):
        if interrupted and ended - interrupted[0] > SOON:
            raise Wrong(f"Ctrl-C ended the step after {ended - interrupted[0]:.0f} s")
        no_job(subject.spark, ended)
    if subject.flow._state is not state:
        raise Wrong(f"the step failed, and the state is another: {error!r}")
    if files_of(subject.flow) != files:
        left = files_of(subject.flow) ^ files
        raise Wrong(f"the step failed, and files came or went: {short(left)}; {error!r}")
    return error


def no_job(spark: Any, since: float) -> None:
    """Jobs of a step that was interrupted come to an end."""
    if is_remote():
        # A server lists no jobs, but interruptAll returns the operations that it has ended.
        if spark.interruptAll():
            raise Wrong("an interrupted job still runs")
        return
    status = spark.sparkContext.statusTracker()
    while status.getActiveJobsIds():
        if time.monotonic() - since > SOON:
            raise Wrong("jobs of the interrupted step still run")
        time.sleep(0.02)


def judge(subject: Subject, kind: Kind, error: BaseException | None) -> None:
    """Check the outcome of a step, and run the step again if it failed."""
    if error is None and not kind.right:
        raise Wrong("the step succeeded")
    if error is None:
        return
    if not kind.fails:
        raise Wrong(f"the step failed: {error!r}") from error
    if not isinstance(error, kind.error):
        raise Wrong(f"the step raised {error!r}") from error
    if kind.act in ("full", "fill"):
        message = str(error)
        if "Make room" not in message or subject.flow._storage.root not in message:
            raise Wrong(f"the message has no path or no remedy: {message}")
    try:
        if not subject.flow.step():
            raise Wrong("there is nothing to do when the step is run again")
    except Exception as second_error:
        raise Wrong(f"run again the step fails: {second_error!r}") from second_error


def places_of(spark: Any, root: Path) -> Counter[str]:
    """The places of a step without a fault."""
    subject = Subject(spark, root)
    with subject.flow, tempfile.TemporaryDirectory() as folder:
        subject.prepare()
        fault = Fault(folder, subject.flow._storage.root)
        with faults.about(fault):
            subject.flow.step()
        subject.check()
        return fault.places()


# The whole run.


@contextmanager
def spark_on(master: str, folder: Path) -> Iterator[Any]:
    """A session of its own for a master."""
    conf: dict[str, Any] = {
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": 2,
        "spark.ui.enabled": False,
    }
    if master == CLUSTER:
        # Less than the workers have, or no executor would ever start.
        conf["spark.executor.memory"] = "1g"
        conf["spark.executorEnv.PYTHONPATH"] = os.environ["PYTHONPATH"]
    spark = pyspark_diff.session("faults", master=master, memory="1g", conf=conf)
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of a few megabytes if a mount is allowed, else there is nothing to fill."""
    small = folder / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(small)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        yield folder
        return
    try:
        yield small
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def run_kinds(
    spark: Any, master: str, options: argparse.Namespace, folder: Path
) -> Iterator[Tally]:
    """The share of this process of the runs on one master."""
    counted = places_of(spark, folder)
    first, processes = options.part
    with small_disk(folder) as small:
        for kind in chosen(options, master):
            for place in kind.places:
                if options.place and place not in options.place:
                    continue
                tally = Tally(master, kind.name, place, counted[place])
                numbers = range(1, counted[place] + 1, options.stride)[first::processes]
                if kind.act == "fill" and small == folder:
                    print(f"{kind.name}: left out, as no disk can be made here", flush=True)
                    continue
                run_place(spark, kind, tally, numbers, small if kind.act == "fill" else folder)
                yield tally


def chosen(options: argparse.Namespace, master: str) -> list[Kind]:
    """The kinds of faults that are asked for."""
    kinds = [kind for kind in KINDS if not options.kind or kind.name in options.kind]
    return [kind for kind in kinds if master in kind.masters]


def run_place(
    spark: Any, kind: Kind, tally: Tally, numbers: Sequence[int], root: Path
) -> None:
    """A kind of fault at some of the places with one name."""
    started = time.monotonic()
    if not tally.places:
        tally.wrong.append("a step never comes to this place")
    for number in numbers:
        faulthandler.dump_traceback_later(HANGS, exit=True)
        tally.runs += 1
        try:
            if run_with(spark, kind, tally.place, number, root) == "right":
                tally.right += 1
            else:
                tally.failed += 1
        except Exception as error:
            message = str(error) if isinstance(error, Wrong) else repr(error)
            tally.wrong.append(f"{number}: {message}")
            print(f"WRONG: {tally.kind}, {tally.place} {number}: {message}", flush=True)
        finally:
            faulthandler.cancel_dump_traceback_later()
    tally.seconds = time.monotonic() - started


HEADER = (
    f"{'master':24}{'fault':31}{'place':15}{'places':>7}{'runs':>6}{'right':>7}{'failed':>8}"
    f"{'wrong':>7}{'s':>6}"
)


def line(tally: Tally) -> str:
    return (
        f"{tally.master:24}{tally.kind:31}{tally.place:15}{tally.places:7}{tally.runs:6}"
        f"{tally.right:7}{tally.failed:8}{len(tally.wrong):7}{tally.seconds:6.0f}"
    )


def run_part(options: argparse.Namespace) -> list[Tally]:
    """The share of this process."""
    tallies = []
    for master in options.master or [LOCAL, CLUSTER]:
        if chosen(options, master):
            with tempfile.TemporaryDirectory(prefix="faults-") as folder:
                with spark_on(master, Path(folder)) as spark:
                    for tally in run_kinds(spark, master, options, Path(folder)):
                        tallies.append(tally)
                        print(line(tally), flush=True)
    return tallies


def run_all(arguments: list[str], processes: int) -> int:
    """Share the runs among some processes, which wait for their Sparks half of the time each."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, f"{number}") for number in range(processes)]
        running = []
        for number, file in enumerate(files):
            part = ["--part", str(number), str(processes), "--to", str(file)]
            command = [sys.executable, __file__, *arguments, *part]
            running.append(subprocess.Popen(command, stdout=sys.stderr))
        try:
            failed = [process.wait() for process in running]
        finally:
            for process in running:
                process.terminate()
        if any(failed) or not all(file.exists() for file in files):
            print(f"a process has ended with {failed}, which is wrong")
            return 1
        parts = [[Tally(**values) for values in json.loads(file.read_text())] for file in files]
    tallies = [together(*tallies_of_run) for tallies_of_run in zip(*parts)]
    print(HEADER)
    for tally in tallies:
        print(line(tally))
    runs, wrong = sum(t.runs for t in tallies), sum(len(t.wrong) for t in tallies)
    print(
        f"{runs} runs: {sum(t.right for t in tallies)} right in spite of the fault, "
        f"{sum(t.failed for t in tallies)} failed, changed nothing and were right when run again, "
        f"{wrong} wrong"
    )
    for tally in tallies:
        for message in tally.wrong:
            print(f"WRONG: {tally.kind}, {tally.place} {message}")
    return wrong if runs else 1


def together(*parts: Tally) -> Tally:
    """The tallies of several processes for one kind and place as one."""
    return replace(
        parts[0],
        runs=sum(part.runs for part in parts), right=sum(part.right for part in parts),
        failed=sum(part.failed for part in parts), wrong=sum((part.wrong for part in parts), []),
        seconds=sum(part.seconds for part in parts),
    )


# Bugs that are seeded, to show that they are found.


@contextmanager
def files_of_failed_steps_stay() -> Iterator[None]:
    with mock.patch.object(storage, "remove_directories", lambda paths: None):
        yield


@contextmanager
def scratch_of_killed_tasks_stays() -> Iterator[None]:
    with mock.patch.object(storage, "_SCRATCH", ".other"):
        yield


@contextmanager
def inputs_are_taken_over_before_the_step_is_over() -> Iterator[None]:
    commit: Any = BaseDataflow._commit

    def early(flow: Any, graph: Any, arrivals: Any, upper: Any, watch: Any) -> None:
        counts = flow._state.arrival_counts
        try:
            commit(flow, graph, arrivals, upper, watch)
        except BaseException:
            more = {node: counts.get(node, 0) + len(new) for node, new in arrivals.items()}
            flow._state = replace(flow._state, arrival_counts=more)
            raise

    with mock.patch.object(BaseDataflow, "_commit", early):
        yield


@contextmanager
def errors_of_tasks_are_swallowed() -> Iterator[None]:
    def some(runner: Any, results: Any) -> Any:
        rows = [row for row in results.collect() if row.error is None]
        return [runners._result(row.bucket, json.loads(row.result), row.output) for row in rows]

    with mock.patch.object(runners.SparkRunner, "_results", some):
        yield


@contextmanager
def interrupted_jobs_go_on() -> Iterator[None]:
    with mock.patch.object(runners, "run_job", lambda spark, job: job()):
        yield


#: Each with the kind of fault and the place that show it.
BUGS: list[tuple[Callable[[], Any], str, str]] = [
    (files_of_failed_steps_stay, "an error, for ever", "task rename"),
    (scratch_of_killed_tasks_stays, "worker killed", "task rename"),
    (inputs_are_taken_over_before_the_step_is_over, "an error, for ever", "task kernel"),
    (errors_of_tasks_are_swallowed, "no space, once", "task open"),
    (interrupted_jobs_go_on, "Ctrl-C in a job", "task kernel"),
]


def self_check() -> int:
    """Seed bugs one after another; return the number of undetected ones."""
    missed = 0
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        with spark_on(LOCAL, Path(folder)) as spark:
            for bug, name, place in BUGS:
                kind = next(kind for kind in KINDS if kind.name == name)
                with bug():
                    tally = Tally(LOCAL, name, place, 9)
                    run_place(spark, kind, tally, range(1, 10, 4), Path(folder))
                missed += not tally.wrong
                result = f"{len(tally.wrong)} of {tally.runs} runs found it"
                print(f"{bug.__name__}: {result}", flush=True)
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(prog="ci/faults", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--kind", action="append", choices=[kind.name for kind in KINDS],
        help="only this kind of fault; may be given several times",
    )
    parser.add_argument(
        "--place", action="append", metavar="PLACE",
        help='only this place, such as "task write"; may be given several times',
    )
    parser.add_argument(
        "--master", action="append", choices=[LOCAL, CLUSTER], help="only this master"
    )
    parser.add_argument("--stride", type=int, default=1, help="only every so many-th place")
    parser.add_argument("--quick", action="store_const", const=7, dest="stride", help="--stride 7")
    parser.add_argument("--processes", type=int, default=2, help="so many at a time; 2")
    parser.add_argument(
        "--self-check", action="store_true", help="show that seeded bugs of the library are found"
    )
    # The arguments that a parent process passes.
    parser.add_argument("--part", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--to", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    # A signal to end also ends the processes that this one started, and unmounts.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if options.self_check:
        return 1 if self_check() else 0
    if options.part is None:
        return 1 if run_all(sys.argv[1:], options.processes) else 0
    options.to.write_text(json.dumps([asdict(tally) for tally in run_part(options)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
