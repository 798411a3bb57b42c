"""A process that refreshes chained views and is ended at a phase of its refresh.

    python tests/view_program.py FOLDER PHASE COUNT before|after kill|kill-all|interrupt

At the COUNT-th arrival at PHASE it ends itself with SIGKILL, or itself and its JVM at once, or
interrupts itself as Ctrl-C does and refreshes once more.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from pyspark_diff.dataflow.dataflow import BaseDataflow
from pyspark_diff.dataflow.durable import Store
from pyspark_diff.dataflow.source import Sources
from pyspark_diff.sinks.delta import MergedTable
from pyspark_diff.spark.delta_files import DeltaFiles
from pyspark_diff.spark.session import session
from pyspark_diff.views.group import ViewGroup
from pyspark_diff.views.program import View
from pyspark_diff.views.record import RecordFile

#: The methods of a refresh before and after which the process may end.
PHASES = {
    "open": (BaseDataflow, "_write"),
    "read": (Sources, "read"),
    "commit": (Store, "commit"),
    "write": (MergedTable, "write"),
    "merge": (DeltaFiles, "merge"),
    "record": (RecordFile, "write"),
}
VIEWS = [
    View("shop.big", "SELECT customer, sum(amount) AS total FROM shop.orders GROUP BY customer"),
    View("shop.regions", "SELECT region, sum(total) AS total FROM shop.big JOIN shop.customers "
                         "USING (customer) GROUP BY region"),
]


def spark_in(folder: Path):
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


def tables_in(spark, folder: Path) -> None:
    """Name the tables of a folder, which the catalog of another process named."""
    spark.sql("CREATE DATABASE IF NOT EXISTS shop")
    for name in ("orders", "customers", "big", "regions"):
        place = folder / "warehouse" / "shop.db" / name
        if (place / "_delta_log").exists():
            spark.sql(f"CREATE TABLE IF NOT EXISTS shop.{name} USING delta LOCATION '{place}'")


def group_in(spark, folder: Path) -> ViewGroup:
    return ViewGroup(spark, VIEWS, folder / "store", "strict", None)


def kill(_: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_all(_: str) -> None:
    os.killpg(os.getpgid(0), signal.SIGKILL)


def interrupt(phase: str) -> None:
    print("interrupted", phase, flush=True)
    raise KeyboardInterrupt


ENDS = {"kill": kill, "kill-all": kill_all, "interrupt": interrupt}


def end_at(phase: str, count: int, after: bool, end: str) -> None:
    """End this process at a phase."""
    owner, name = PHASES[phase]
    real, calls = getattr(owner, name), [0]

    def wrapped(*args, **options):
        calls[0] += 1
        here = calls[0] == count
        if here and not after:
            ENDS[end](phase)
        answer = real(*args, **options)
        if here and after:
            ENDS[end](phase)
        return answer

    setattr(owner, name, wrapped)


if __name__ == "__main__":
    here, phase, count, after, end = sys.argv[1:]
    end_at(phase, int(count), after == "after", end)
    running = spark_in(Path(here))
    tables_in(running, Path(here))
    try:
        print(group_in(running, Path(here)).refresh())
    except KeyboardInterrupt:
        print(group_in(running, Path(here)).refresh())
