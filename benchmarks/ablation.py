"""The cost of doing without one fast path, for each fast path and each of seven workloads.

    python benchmarks/ablation.py
    python benchmarks/ablation.py --only medallion bfs --paths "integer loop" --repeats 5

A workload loads its data, and then takes its changes step by step. It runs with all fast paths, and
once with each of them disabled alone, in turns within one process. A slower path gives the same
answer: the benchmark compares it. Quote the ratios: absolute times depend on the machine. Each
figure is the least of the repeats. On a busy machine the ratio of processor times is the reliable
figure: it includes the JVM, the load, all steps and the comparison of the answer.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
from pyspark.sql import SparkSession

import medallion
from bfs import Distances
from degrees import distribution
from graph_data import Graph, write_graph
from graph_rows import Program
from k_core import Core
from measure import cpu_seconds, save, seconds, table
from nightly_view import Night, delta_session
from plain_graphs import Digest
from pyspark_diff import Dataflow, DiffFrame, thresholds
from pyspark_diff.fallbacks import COMPILED, DELTALAKE, FUSED, INTEGERS, MEMORY, PYARROW
from pyspark_diff.thresholds import Thresholds
from skip_level import Company, moves, write_people

#: Seconds of the load and the median of the steps, and a value that is the same on each path.
Outcome = tuple[float, float, Any]
#: An outcome and the processor time of its run.
Run = tuple[float, Outcome]
#: Attributes of the library by their module, or thresholds, and their values without a fast path.
Patches = tuple[tuple[str, Any], ...]


def _none(*_: object, **__: object) -> None:
    """Decline the work, so that the slower path does it."""


def _no(*_: object, **__: object) -> bool:
    return False


_SCANS = ("dataflow.inputs", "dataflow.input_session", "dataflow.whole_history")
#: The patches that disable each fast path. Fallbacks have these names too, but for threads.
PATHS: dict[str, Patches] = {
    INTEGERS: (("engine.loop.Iteration._indexed", _no),),
    COMPILED: (("frame.row_wise.compiled", _none),),
    PYARROW: tuple((f"{module}.parquet_scan", _none) for module in _SCANS),
    DELTALAKE: (("sources.delta.delta_files", _none), ("sinks.delta.delta_files", _none)),
    FUSED: (("engine.fusion.Fusion.follow", _none),),
    MEMORY: (("in_memory_rows_max", 0),),
    "threads": (("runners.local._threads", lambda *_: 1),),
}


@contextmanager
def without(path: str | None) -> Iterator[None]:
    """Disable a fast path. The module attribute is replaced in this process only.

    Raises
    ------
    AttributeError
        If the library has no such attribute: the table of paths is out of date.
    """
    with ExitStack() as stack:
        for name, value in PATHS[path] if path else ():
            if name in Thresholds.__dataclass_fields__:
                stack.enter_context(thresholds.using(**{name: value}))
            else:
                stack.enter_context(mock.patch.object(*_owner(name), value))
        yield


def _owner(name: str) -> tuple[Any, str]:
    """The module or class that has an attribute, and the attribute's name."""
    module, *rest = name.rsplit(".", 2 if name.split(".")[-2][0].isupper() else 1)
    place: Any = importlib.import_module(f"pyspark_diff.{module}")
    for part in rest[:-1]:
        place = getattr(place, part)
    return place, rest[-1]


class Workload:
    """A workload on data that is written once.

    Parameters
    ----------
    spark : SparkSession
    folder : str
        For the data.
    scale : float
        Multiplies the number of rows.
    """

    def __init__(self, spark: SparkSession, folder: str, scale: float):
        self.spark, self.folder, self.scale = spark, folder, scale
        self.make()

    def make(self) -> None:
        """Write the data."""

    def run(self) -> Outcome:
        """Load, and take all changes, in a fresh dataflow."""
        raise NotImplementedError

    def rows(self, count: int) -> int:
        """A number of rows at this scale."""
        return max(int(count * self.scale), 100)


class GraphWorkload(Workload):
    """A graph program: ten steps of 1,000 replaced edges each.

    Subclasses name the program, and the numbers of nodes and edges.
    """

    program: type[Program]
    nodes, edges = 100_000, 500_000

    def make(self) -> None:
        self.graph: Graph = write_graph(
            f"{self.folder}/{type(self).__name__}", self.rows(self.nodes), self.rows(self.edges),
            10_000)

    def run(self) -> Outcome:
        with Dataflow(self.spark, runner="local") as flow:
            program = self.program(flow)
            program.keep()
            frame = self.spark.read.parquet(self.graph.path)
            load, _ = seconds(lambda: program.load(frame))
            steps = [seconds(lambda: program.change(self.graph, 1_000 * n))[0]
                     for n in range(1, 11)]
            return load, statistics.median(steps), Digest.of_frame(program.now())


class Degrees(Program):
    """How many nodes have each number of edges."""

    def define(self, edges: DiffFrame) -> DiffFrame:
        """The distribution."""
        return distribution(edges, total=False)


class DegreesWorkload(GraphWorkload):
    """`degrees.py`: counts of counts."""

    nodes, edges = 500_000, 5_000_000
    program = Degrees


class BfsWorkload(GraphWorkload):
    """`bfs.py`: distances."""

    program = Distances


class CoreWorkload(GraphWorkload):
    """`k_core.py`: the 5-core."""

    program = Core


class SkipLevelWorkload(Workload):
    """`skip_level.py` with ``runner="spark"``: three steps of a tenth of the people each."""

    def make(self) -> None:
        self.people = self.rows(1_000_000)
        self.path, _ = write_people(self.folder, self.people)

    def run(self) -> Outcome:
        with Dataflow(self.spark, runner="spark") as flow:
            company = Company(flow, "pairs")
            frame = self.spark.read.parquet(self.path)
            load, _ = seconds(lambda: company.load(frame))
            steps, tenth = [], self.people // 10
            for n in range(3):
                changes = moves(1 + n * tenth, 1 + (n + 1) * tenth)
                then = 1 + (n + 1) * tenth
                steps.append(seconds(lambda: company.change(changes, then))[0])
            return load, statistics.median(steps), company.pairs()


class MedallionWorkload(Workload):
    """`medallion.py`: five hours of 1,300 changes over 200,000 rows."""

    def run(self) -> Outcome:
        shop = medallion.Shop(self.rows(200_000), self.rows(1_300))
        keys = {name: key for name, (_, key, _, _) in medallion.TABLES.items()}
        with Dataflow(self.spark, time_type="timestamp_ntz", runner="local") as flow:
            names = medallion.program(flow)
            first = {name: (rows, pa.table({keys[name]: pa.array([], pa.int64())}))
                     for name, rows in shop.tables.items()}
            load, _ = seconds(lambda: medallion.feed(flow, first, shop.now))
            steps = []
            for _ in range(5):
                hour = shop.hour()
                steps.append(seconds(lambda: medallion.feed(flow, hour, shop.now))[0])
            answers = {name: sorted(map(repr, flow[name].at().collect())) for name in names}
        return load, statistics.median(steps), answers


class NightWorkload(Workload):
    """`nightly_view.py`: a view in Delta over Delta tables, three nights."""

    number = 0

    def run(self) -> Outcome:
        sales = self.rows(100_000)
        self.number += 1
        night = Night(self.spark, f"{self.folder}/nights{self.number}", {
            "sales": sales, "customers": sales // 10, "products": max(sales // 100, 10)})
        Path(night.folder).mkdir()
        night.make()
        with Dataflow.open(f"{night.folder}/store", night.program, spark=self.spark) as flow:
            load, _ = seconds(flow.catch_up)
            steps = []
            for number in range(1, 4):
                night.changes(number)
                steps.append(seconds(flow.catch_up)[0])
        night.plain()
        return load, statistics.median(steps), night.check()


WORKLOADS: dict[str, type[Workload]] = {
    "degrees": DegreesWorkload, "bfs": BfsWorkload, "k_core": CoreWorkload,
    "skip_level": SkipLevelWorkload, "medallion": MedallionWorkload, "nightly_view": NightWorkload,
}


def ablated(workload: Workload, paths: list[str], repeats: int) -> Iterator[dict[str, Any]]:
    """The rows of a workload: with all paths, and without each of them, in turns.

    Raises
    ------
    SystemExit
        If an answer depends on the path.
    """
    runs_of: dict[str | None, list[Run]] = {path: [] for path in (None, *paths)}
    workload.run()  # compiles kernels and warms up the JVM
    for _ in range(repeats):
        for path, runs in runs_of.items():
            with without(path):
                begin = cpu_seconds(os.getpid())
                outcome = workload.run()
                runs.append((cpu_seconds(os.getpid()) - begin, outcome))
    answers = {path: runs[0][1][2] for path, runs in runs_of.items()}
    for path, answer in answers.items():
        if answer != answers[None]:
            raise SystemExit(f"without {path!r} the answer is another one")
    load, step, cpu = _least(runs_of[None])
    for path, runs in runs_of.items():
        slow_load, slow_step, slow_cpu = _least(runs)
        yield {
            "without": path or "nothing", "load_seconds": round(slow_load, 3),
            "load_ratio": round(slow_load / load, 2), "step_ms": round(slow_step * 1e3, 2),
            "step_ratio": round(slow_step / step, 2), "cpu_seconds": round(slow_cpu, 2),
            "cpu_ratio": round(slow_cpu / cpu, 2) if cpu else None,
        }


def _least(runs: list[Run]) -> tuple[float, float, float]:
    """The least load, step and processor time of the runs: other programs only add to them."""
    return (
        min(outcome[0] for _, outcome in runs), min(outcome[1] for _, outcome in runs),
        min(cpu for cpu, _ in runs),
    )


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--paths", nargs="+", choices=PATHS, default=list(PATHS))
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of rows")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--jars", default=str(Path(medallion.__file__).parents[1] / ".venv/delta"))
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    spark = delta_session(options.jars, "2g")
    spark.sparkContext.setLogLevel("ERROR")
    runs = []
    for name in options.only:
        with tempfile.TemporaryDirectory() as folder:
            workload = WORKLOADS[name](spark, folder, options.scale)
            rows = list(ablated(workload, options.paths, options.repeats))
        print(name, table(rows), sep="\n", flush=True)
        runs.append({"workload": name, "rows": rows})
    if options.json:
        save(options.json, {"scale": options.scale, "runs": runs})


if __name__ == "__main__":
    main()
