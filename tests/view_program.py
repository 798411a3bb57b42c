"""A process that refreshes three chained views, and is ended at a moment of a phase.

    python tests/view_program.py LOCAL_FOLDER      a JVM to which such processes connect

The caller forks each process with `refresh_in` and connects it to the JVM of a `host`. The end is
at a call of a function inside the phase, or the caller ends the process some time after its begin.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from pyspark_diff.dataflow.dataflow import BaseDataflow
from pyspark_diff.dataflow.durable import Store
from pyspark_diff.dataflow.source import Sources
from pyspark_diff.sinks.delta import MergedTable
from pyspark_diff.spark.delta_files import DeltaFiles
from pyspark_diff.spark.session import session
from pyspark_diff.views.group import ViewGroup
from pyspark_diff.views.program import View
from pyspark_diff.views.record import RecordFile

SOURCES = ("orders", "customers")
#: The query of each target over the tables of a database, each view after the views that it reads.
QUERIES = {
    "big": "SELECT customer, sum(amount) AS total FROM {orders} GROUP BY customer",
    "regions": "SELECT region, sum(total) AS total FROM {big} JOIN {customers} USING (customer) "
               "GROUP BY region",
    "bands": "SELECT total % 3 AS band, count(*) AS n, sum(total) AS total FROM {regions} "
             "GROUP BY total % 3",
}
#: "between" is the time after the commit that is in no other phase: before, between and after the
#: writes of the targets.
PHASES = ("open", "read", "step", "commit", *(f"write {name}" for name in QUERIES), "between",
          "record")
#: The processes that an end hits; Ctrl-C is a signal of its own.
ENDS = {"driver": ("driver",), "JVM": ("JVM",), "both": ("JVM", "driver"), "Ctrl-C": ()}


@dataclass(frozen=True)
class Aim:
    """The moment of an end.

    Parameters
    ----------
    visit : int
        The number of the visit of the phase, from 1 on.
    call : int or None
        The number of the call of a function inside the phase; None if the caller ends the process
        some time after the begin of the phase.
    """

    phase: str
    visit: int
    call: int | None
    end: str


@dataclass(frozen=True)
class Job:
    """A refresh of the views of a database in a folder, with a seeded fault of the library.

    Parameters
    ----------
    counts : bool
        Whether to count the calls in each phase, which makes the refresh slower.
    """

    folder: Path
    database: str
    rebuild: bool = False
    aim: Aim | None = None
    fault: str = ""
    counts: bool = False


def views_of(database: str) -> list[View]:
    names = {name: f"{database}.{name}" for name in (*SOURCES, *QUERIES)}
    return [View(names[name], query.format(**names)) for name, query in QUERIES.items()]


def spark_in(folder: Path) -> SparkSession:
    """A session that knows Delta and keeps its tables in a folder."""
    jars = sorted(map(str, Path(os.environ["DELTA_JARS"]).glob("*.jar")))
    spark = session("views", master="local[1]", memory="1g", conf={
        "spark.jars": ",".join(jars),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": 1,
        "spark.sql.shuffle.partitions": 1,
        "spark.sql.codegen.wholeStage": False,
        "spark.ui.enabled": False,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
    })
    spark.sparkContext.setLogLevel("OFF")
    return spark


def host(folder: Path) -> None:
    """Start a JVM, print its address and process, and wait for the end of the input."""
    print(*address_of(spark_in(folder)), flush=True)
    sys.stdin.read()


def address_of(spark: SparkSession) -> tuple[str, str, int]:
    """The port, the secret and the process of the JVM that this process started."""
    gateway = spark.sparkContext._gateway
    parameters = gateway.java_parameters
    return str(parameters.port), parameters.auth_token, gateway.proc.pid


def connected(port: str, secret: str) -> SparkSession:
    """The session of a running JVM."""
    os.environ.update(PYSPARK_GATEWAY_PORT=port, PYSPARK_GATEWAY_SECRET=secret)
    gateway = launch_gateway()
    jvm = gateway.jvm
    context = jvm.JavaSparkContext.fromSparkContext(jvm.org.apache.spark.SparkContext.getOrCreate())
    conf = SparkConf(loadDefaults=False, _jconf=context.getConf())
    return SparkSession(SparkContext(conf=conf, gateway=gateway, jsc=context))


def table_folder(folder: Path, database: str, name: str) -> Path:
    return folder / "warehouse" / f"{database}.db" / name


def tables_in(spark: SparkSession, folder: Path, database: str) -> None:
    """Name the tables of a folder, which the catalog of another process named."""
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {database}")
    for name in (*SOURCES, *QUERIES):
        place = table_folder(folder, database, name)
        if (place / "_delta_log").exists():
            spark.sql(
                f"CREATE TABLE IF NOT EXISTS {database}.{name} USING delta LOCATION '{place}'"
            )


class Phases:
    """The present phase of this process, and its end at the moment of an aim. It holds state."""

    def __init__(self, aim: Aim | None, counts: bool, notes: Connection, jvm: int):
        self._aim, self._counts, self._notes, self._jvm = aim, counts, notes, jvm
        self._phase, self._began, self._calls = "", 0.0, 0
        self._visits = dict.fromkeys(PHASES, 0)

    def switch(self, phase: str) -> str:
        """End a phase and begin the next one; returns the phase that has ended."""
        before, aimed = self._phase, self._is_aimed()
        if aimed:
            sys.setprofile(None)
            self._notes.send(("left", before))
            if self._aim.call is not None and self._aim.call > self._calls:
                self._end()
        if before:
            self._notes.send(("took", before, time.perf_counter() - self._began, self._calls))
        self._phase, self._began, self._calls = phase, time.perf_counter(), 0
        if phase:
            self._visits[phase] += 1
        if self._is_aimed():
            self._notes.send(("aimed", phase))
            if self._aim.call == 0:
                self._end()
        if self._counts or (self._is_aimed() and self._aim.call is not None):
            sys.setprofile(self._count)
        return before

    def _is_aimed(self) -> bool:
        aim = self._aim
        return aim is not None and (aim.phase, aim.visit) == (
            self._phase, self._visits.get(self._phase)
        )

    def _count(self, frame: Any, event: str, _: Any) -> None:
        if event in ("call", "c_call") and frame.f_code.co_filename != __file__:
            self._calls += 1
            if self._aim is not None and self._calls == self._aim.call:
                sys.setprofile(None)
                self._end()

    def _end(self) -> None:
        aim, self._aim = self._aim, None
        self._notes.send(("ended", aim.phase))
        if aim.end == "Ctrl-C":
            os.kill(os.getpid(), signal.SIGINT)
        pids = {"JVM": self._jvm, "driver": os.getpid()}
        for process in ENDS[aim.end]:
            os.kill(pids[process], signal.SIGKILL)

    def watch(self) -> None:
        """Let the methods of the library begin and end phases."""
        self._wrap(BaseDataflow, "_write", lambda _: "open", "")
        self._wrap(Sources, "read", lambda _: "read", "step")
        self._wrap(Store, "commit", lambda _: "commit", "between")
        self._wrap(
            MergedTable, "write", lambda sink: f"write {sink._name.split('.')[-1]}", "between"
        )
        self._wrap(RecordFile, "write", lambda _: "record", None)

    def _wrap(
        self, owner: type, name: str, phase: Callable[[Any], str], after: str | None
    ) -> None:
        """Switch to a phase at a call of a method, and after it to the next, or back for None."""
        real = getattr(owner, name)

        def wrapped(this: Any, *args: Any, **options: Any) -> Any:
            before = self.switch(phase(this))
            answer = real(this, *args, **options)
            self.switch(before if after is None else after)
            return answer

        setattr(owner, name, wrapped)


# Faults of the library that the campaign has to report.

def merge_in_two_commits() -> None:
    """Delete the rows of updated keys in a commit before that of their new rows."""
    real = DeltaFiles.merge

    def merge(self: Any, rows: pa.Table, key: Any, kind: str, owner: str, *rest: Any) -> bool:
        updates = rows.filter(pc.equal(rows[kind], "update"))
        if updates.num_rows:
            index = rows.column_names.index(kind)
            gone = updates.set_column(index, kind, pa.array(["delete"] * updates.num_rows))
            real(self, gone, key, kind, f"{owner}/first", *rest)
        return real(self, rows, key, kind, owner, *rest)

    DeltaFiles.merge = merge  # type: ignore[method-assign]


def forget_due_epochs() -> None:
    """Open a store as if the sinks had received its last epoch."""
    real = BaseDataflow._go_on

    def go_on(self: Any, state: Any, numbers: Any) -> None:
        for due in state.given_to.values():
            due.done = True
        real(self, state, numbers)

    BaseDataflow._go_on = go_on  # type: ignore[method-assign]


def feed_twice() -> None:
    """Feed each change of a source twice."""
    real = Sources._feed

    def feed(self: Any, *args: Any) -> None:
        real(self, *args)
        real(self, *args)

    Sources._feed = feed  # type: ignore[method-assign]


#: Each fault with the words of a report of it.
FAULTS: dict[str, tuple[Callable[[], None], str]] = {
    "a merge in two commits": (merge_in_two_commits, "a reader of"),
    "a lost epoch": (forget_due_epochs, "the answer at"),
    "changes that are read twice": (feed_twice, "the answer at"),
}


def refresh_in(job: Job, address: tuple[str, str, int], notes: Connection) -> None:
    """Refresh the views of a job in this process, and report phases and the result."""
    port, secret, jvm = address
    try:
        if job.fault:
            FAULTS[job.fault][0]()
        spark = connected(port, secret)
        tables_in(spark, job.folder, job.database)
        phases = Phases(job.aim, job.counts, notes, jvm)
        phases.watch()
        try:
            versions = _refresh(spark, job, job.rebuild)
        except KeyboardInterrupt:
            phases.switch("")
            versions = _refresh(spark, job, False)
        phases.switch("")
        notes.send(("done", versions))
    except BaseException:
        sys.setprofile(None)
        notes.send(("failed", traceback.format_exc()))


def _refresh(spark: SparkSession, job: Job, rebuild: bool) -> dict[str, Any]:
    """Refresh the views; returns the source versions in the record."""
    store = table_folder(job.folder, job.database, "_store")
    group = ViewGroup(spark, views_of(job.database), store, "strict", None)
    try:
        return dict((group.rebuild if rebuild else group.refresh)().versions)
    finally:
        group.close()


if __name__ == "__main__":
    host(Path(sys.argv[1]))
