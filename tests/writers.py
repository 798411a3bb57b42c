"""Several writers of one store: processes that open it, are fenced, and open it again.

    records of the store at the end  =  records of the reported steps, each once

Writers of other processes have a Python of their own and share the JVM: the JVM has no state that
these cases test, and it takes long to start.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from damaged_stores import Wrong, rows_of
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from pyspark_diff import ConcurrentWriteError, Dataflow, thresholds
from pyspark_diff.dataflow import durable

HANGS = 120.0
#: Where a writer is stopped in the middle of a step.
PHASES = ("files written", "before the commit", "after the commit")
#: More commits than any run makes, each opening being one as well: all are counted at its end.
RETAIN = 100_000


def program(flow: Dataflow) -> None:
    log, _ = flow.input("log", "writer long, number long")
    log.keep("log")
    log.select("writer").count().keep("counts")


def open_store(spark: Any, root: str, retain: int = RETAIN) -> Dataflow:
    return Dataflow.open(root, program, spark=spark, runner="local", buckets=2, retain=retain)


def step(flow: Dataflow, writer: int, number: int, rows: int = 1) -> None:
    session = flow.session("log")
    session.insert([(writer, number)] * rows)
    flow.advance_to(session.time() + 1, token=f"{writer}-{number}")


def write(
    spark: Any, root: str, writer: int, steps: int, report: Callable[[dict[str, Any]], None]
) -> None:
    """Take some steps, however often others take the store over, and report each."""
    chance = random.Random(writer)
    done = fenced = 0
    while done < steps:
        try:
            with open_store(spark, root) as flow:
                for _ in range(chance.randint(1, 6)):
                    if done == steps:
                        break
                    step(flow, writer, done)
                    report({"done": f"{writer}-{done}"})
                    done += 1
        except ConcurrentWriteError:
            fenced += 1
            time.sleep(chance.random() * 0.2)
    report({"fenced": fenced})


def zombie(spark: Any, root: str, phase: str, report: Callable[[dict[str, Any]], None]) -> None:
    """Be stopped in the middle of a step, and report the result."""

    def stop() -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    flow = open_store(spark, root)
    step(flow, 1, 0)
    report({"done": "1-0"})
    assert flow._store is not None
    place: tuple[object, str] = {
        "files written": (durable, "sealed"), "before the commit": (flow._store.commits, "append"),
        "after the commit": (flow._store.commits, "append"),
    }[phase]
    true = getattr(*place)

    def stopped(*args: Any) -> Any:
        if phase == "after the commit":
            result = true(*args)
            stop()
            return result
        stop()
        return true(*args)

    with thresholds.using(in_memory_rows_max=0):
        for number in 1, 2:
            with mock.patch.object(*place, stopped if number == 1 else true):
                try:
                    step(flow, 1, number)
                    report({"done": f"1-{number}"})
                except Exception as error:
                    report({"error": type(error).__name__, "text": str(error)})
        flow.close()
    report({"closed": True})


# Other processes.


@contextmanager
def started(spark: Any, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process that follows commands on the same JVM, and reports each result on a line."""
    gateway = spark.sparkContext._gateway.gateway_parameters
    here = Path(__file__).parent
    process = subprocess.Popen(
        [sys.executable, __file__, *map(str, arguments)],
        env={
            **os.environ, "PYTHONPATH": f"{here.parent}:{here}",
            "PYSPARK_GATEWAY_PORT": str(gateway.port),
            "PYSPARK_GATEWAY_SECRET": gateway.auth_token,
        },
        stdout=subprocess.PIPE, text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def told_by(process: subprocess.Popen[str], hangs: float = HANGS) -> list[dict[str, Any]]:
    text, _ = process.communicate(timeout=hangs)
    if process.returncode:
        raise Wrong(f"a writer ended with {process.returncode}: {text}")
    return [json.loads(line) for line in text.splitlines()]


def attached() -> SparkSession:
    """A session on the JVM of the process that has started this one."""
    gateway = launch_gateway()
    jvm = gateway.jvm
    context = jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(
        jvm.org.apache.spark.SparkContext.getOrCreate()
    )
    conf = SparkConf(_jconf=context.getConf())
    return SparkSession(SparkContext(gateway=gateway, jsc=context, conf=conf))


def main(arguments: list[str]) -> None:
    def report(entry: dict[str, Any]) -> None:
        print(json.dumps(entry), flush=True)

    what, root, *rest = arguments
    spark = attached()
    try:
        if what == "write":
            write(spark, root, int(rest[0]), int(rest[1]), report)
        else:
            zombie(spark, root, rest[0], report)
    except BaseException as error:
        report({"failed": repr(error)})
        os._exit(1)
    os._exit(0)  # the JVM is not ours


# The law.


def check(spark: Any, root: str, entries: list[dict[str, Any]]) -> Counter[str]:
    """Check that the store has exactly the reported records."""
    reported = [entry["done"] for entry in entries if "done" in entry]
    with open_store(spark, root) as flow:
        stored = Counter({f"{w}-{n}": diff for w, n, _, diff in map(tuple, rows_of(flow["log"]))})
        if stored != Counter(reported):
            lost, more = Counter(reported) - stored, stored - Counter(reported)
            raise Wrong(f"lost: {dict(lost)}, not reported: {dict(more)}")
        tokens = [row.token for row in flow.history().collect() if row.token is not None]
        if flow.verify():
            raise Wrong(str(flow.verify()))
    if Counter(tokens) - Counter(reported):
        raise Wrong(f"commits {tokens} of steps {reported}")
    return Counter(
        steps=len(reported), commits=len(tokens),
        fenced=sum(entry.get("fenced", 0) for entry in entries),
    )


def processes(spark: Any, root: str, count: int, steps: int) -> Counter[str]:
    """Processes that write at once."""
    entries = []
    runs = [started(spark, "write", root, writer, steps) for writer in range(count)]
    with runs[0] as first:
        others = [run.__enter__() for run in runs[1:]]
        try:
            for process in first, *others:
                # Each opening takes the store from another writer, so most
                # openings of many are in vain.
                entries += told_by(process, HANGS + 2.0 * count * steps)
        finally:
            for run in runs[1:]:
                run.__exit__(None, None, None)
    counts = check(spark, root, entries)
    if counts["commits"] != count * steps:
        raise Wrong(f"{counts['commits']} commits of {count * steps} steps")
    return counts


def threads(spark: Any, root: str, count: int, steps: int) -> Counter[str]:
    """Threads of one process that write at once."""
    entries: list[dict[str, Any]] = []
    failed: list[BaseException] = []

    def run(writer: int) -> None:
        try:
            write(spark, root, writer, steps, entries.append)
        except BaseException as error:
            failed.append(error)

    workers = [threading.Thread(target=run, args=(writer,)) for writer in range(count)]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join(HANGS)
    if failed:
        raise Wrong(repr(failed[0])) from failed[0]
    return check(spark, root, entries)


def paused(spark: Any, root: str, phase: str) -> Counter[str]:
    """Stop a writer within a step, let another writer step and vacuum, and wake the first one."""
    with started(spark, "zombie", root, phase) as process:
        _await_stop(process.pid)
        with open_store(spark, root, retain=1) as flow:
            for number in range(3):
                step(flow, 2, number)
            flow.vacuum(dry_run=False, older_than=0.0)
        process.send_signal(signal.SIGCONT)
        entries = told_by(process)
    errors = [entry for entry in entries if "error" in entry]
    if [entry["error"] for entry in errors] != ["ConcurrentWriteError"] * (
            1 if phase == "after the commit" else 2):
        raise Wrong(f"{phase}: {entries}")
    entries += [{"done": f"2-{number}"} for number in range(3)]
    return check(spark, root, entries)


def _await_stop(pid: int) -> None:
    until = time.monotonic() + HANGS
    while time.monotonic() < until:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]
        if state == "T":
            return
        if state == "Z":
            break
        time.sleep(0.02)
    raise Wrong("the writer has not come to where it stops")


if __name__ == "__main__":
    main(sys.argv[1:])
