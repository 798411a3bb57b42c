"""Breadth-first search as Spark jobs: in one process, and on a cluster of two executors.

    python benchmarks/cluster.py                          # 100k / 1M, then 1M / 10M
    python benchmarks/cluster.py --sizes 10000:50000 --times 1

The same load and the same step, of 10,000 replacements, on ``local[2]`` and on
``local-cluster[2,1,1400]``: two executors of one core each, which reach their Python workers, their
shuffles and the driver as those on other machines do. Both are there all the time and take turns,
so quote their ratio. Spark tells of each job how many tasks it had, how long they ran, what was
shuffled, and how much came to the driver; what is left of the time is the driver's own.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from datetime import datetime
from typing import Any, Callable, Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

import pyspark_diff
from bfs import Distances
from graph_data import Graph, size, write_graph
from measure import save, seconds, table
from plain_graphs import Digest
from pyspark_diff import Dataflow

#: Two tasks at a time, each.
MASTERS = ("local[2]", "local-cluster[2,1,1400]")
RUNNERS = ("spark", "auto")
CORES = BUCKETS = 2
#: Nodes, edges and replacements of the graph that comes first, so that workers run and have their
#: kernels.
WARM = (2_000, 10_000, 100)
SIZES = [(100_000, 1_000_000), (1_000_000, 10_000_000)]
#: Replacements in the step after the load, each at a time of its own.
ROUNDS = 10_000
#: Changes below which an iteration has next to nothing to do.
QUIET = 1_000
#: Seconds in which the driver starts a task. It is not measured: with two buckets it is within what
#: a job costs, and on machines of their own it is what many buckets cost.
START = 0.002
#: Machines, cores of each, and buckets, one a core or less, of the clusters that are derived.
CLUSTERS = ((1, 2, 2), (1, 16, 16), (16, 16, 64), (16, 16, 256))
#: Bytes that a machine sends in a second, where there are several: 10 Gbit/s.
NETWORK = 1.25e9
#: What is said of jobs: in the results, and in a stage as Spark's REST interface has it.
SUMS = {
    "tasks": "numCompleteTasks",
    "shuffle_bytes": "shuffleWriteBytes",
    "driver_bytes": "resultSize",
    "task_seconds": "executorRunTime",
}


class Jobs:
    """What Spark knows of its jobs. It holds state: up to which of them it has looked.

    Parameters
    ----------
    spark : SparkSession
        Its UI is on.
    """

    def __init__(self, spark: SparkSession):
        context = spark.sparkContext
        self._url = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}"
        self._seen = -1

    def take(self) -> list[dict[str, Any]]:
        """Those since the last look: what each was for, when it ran, and the sums of its stages."""
        time.sleep(1)  # listeners are told a little later
        stages = {stage["stageId"]: stage for stage in self._get("stages")}
        new = [job for job in self._get("jobs") if job["jobId"] > self._seen]
        self._seen = max((job["jobId"] for job in new), default=self._seen)
        return [_job(job, [stages[n] for n in job["stageIds"] if n in stages]) for job in new]

    def _get(self, what: str) -> Any:
        with urllib.request.urlopen(f"{self._url}/{what}") as answer:
            return json.load(answer)


def _job(job: dict[str, Any], stages: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: sum(stage[known] for stage in stages) for name, known in SUMS.items()
    }
    found["task_seconds"] /= 1e3
    at = re.search(r" at iteration (\d+)", job.get("description") or "")
    found["iteration"] = None if at is None else int(at[1])
    found["span"] = [_moment(job["submissionTime"]), _moment(job["completionTime"])]
    return found


def _moment(text: str) -> float:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fGMT").timestamp()


def account(wall: float, jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """The sums over some jobs, and how long none of them ran."""
    busy = end = 0.0
    for begin, stop in sorted(job["span"] for job in jobs):
        busy += max(0.0, stop - max(begin, end))
        end = max(end, stop)
    sums = {name: sum(job[name] for job in jobs) for name in SUMS}
    return {
        "seconds": round(wall, 3), "jobs": len(jobs), **sums,
        "task_seconds": round(sums["task_seconds"], 3),
        "driver_seconds": round(max(0.0, wall - busy), 3),
    }


def measured(flow: Dataflow, jobs: Jobs, action: Callable[[], None]) -> dict[str, Any]:
    """One step: its account, and that of each of its iterations."""
    jobs.take()
    cpu = time.process_time()
    wall, _ = seconds(action)
    cpu = time.process_time() - cpu
    found, report = jobs.take(), flow.last_report
    iterations = []
    for one in report.iterations:
        own = [job for job in found if job["iteration"] == one.iteration[0]]
        iterations.append({"changes": one.changes, **account(one.seconds, own)})
    return {
        **account(wall, found), "driver_cpu_seconds": round(cpu, 3), "rows_in": report.rows_in,
        "rows_out": report.rows_out, "spark_runs": report.spark_runs,
        "local_runs": report.local_runs, "iterations": iterations,
    }


def serve(master: str) -> None:
    """The process of one master: does what it is told on its input, one run a line."""
    spark = pyspark_diff.session("benchmark cluster", master=master, conf={
        # Less than the workers have, or no executor would ever start.
        "spark.executor.memory": "1g",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "spark.ui.enabled": "true", "spark.ui.port": "0",
        "spark.ui.retainedJobs": "100000", "spark.ui.retainedStages": "100000",
    })
    spark.sparkContext.setLogLevel("OFF")
    jobs = Jobs(spark)
    for line in sys.stdin:
        told = json.loads(line)
        with pa.ipc.open_file(told["changes"]) as reader:
            changes = reader.read_all()
        with Dataflow(spark, runner=told["runner"], buckets=BUCKETS) as flow:
            program = Distances(flow)
            program.keep()
            load = measured(flow, jobs, lambda: program.load(spark.read.parquet(told["path"])))

            def change() -> None:
                program.edges_in.update(changes)
                program._step(told["rounds"] + 1)
                program.rounds = told["rounds"]

            step = measured(flow, jobs, change)
            digest = Digest.of(program.now())
        print(json.dumps({"load": load, "step": step, "digest": str(digest)}), flush=True)
    spark.stop()


class Served:
    """The process of one master.

    Parameters
    ----------
    master : str
    """

    def __init__(self, master: str):
        self.master = master
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", master], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )

    def run(self, runner: str, graph: Graph, changes: str) -> dict[str, Any]:
        """A load and a step."""
        told = {"runner": runner, "path": graph.path, "changes": changes, "rounds": graph.rounds}
        sent, got = self._process.stdin, self._process.stdout
        assert sent is not None and got is not None
        print(json.dumps(told), file=sent, flush=True)
        line = got.readline()
        if not line:
            raise SystemExit(f"{self.master} has ended")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def changes_of(graph: Graph) -> str:
    """A file with the update rows of all rounds."""
    path, rows = f"{graph.path}-changes.arrow", graph.updates(0, graph.rounds)
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write(rows)
    return path


def in_turns(
    served: list[Served], graph: Graph, times: int
) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
    """The runs of each runner on each master, in turns."""
    changes = changes_of(graph)
    for runner in RUNNERS:
        found: dict[str, list[dict[str, Any]]] = {one.master: [] for one in served}
        for _ in range(times):
            for one in served:
                found[one.master].append(one.run(runner, graph, changes))
        for master, runs in found.items():
            yield master, runner, runs


def summary(master: str, runner: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """What is saved of some runs: the account of the fastest, and the seconds of all."""
    row: dict[str, Any] = {"master": master, "runner": runner}
    for what in ("load", "step"):
        every = sorted((run[what] for run in runs), key=lambda one: one["seconds"])
        row[what] = {
            **every[0], "all_seconds": [one["seconds"] for one in every],
            "median_seconds": round(statistics.median(one["seconds"] for one in every), 3),
        }
    return row


def ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The cluster over one process, of the fastest runs and of the medians."""
    found = {}
    for runner in RUNNERS:
        one, many = (
            next(row for row in rows if row["master"] == m and row["runner"] == runner)
            for m in MASTERS
        )
        for what in ("load", "step"):
            for kind in ("seconds", "median_seconds"):
                name = f"{runner} {what} {'fastest' if kind == 'seconds' else 'median'}"
                found[name] = round(many[what][kind] / one[what][kind], 2)
    return found


def model(results: list[dict[str, Any]]) -> dict[str, Any]:
    """What a load on the cluster is made of, and what that gives for other clusters::

        seconds = jobs * job + tasks * (start + run / cores) + rows * row / cores + bytes / network

    Jobs and tasks are measured by iterations that have next to nothing to do, rows by what is left.
    """
    loads = [
        next(row["load"] for row in result["rows"]
             if row["master"] == MASTERS[1] and row["runner"] == "spark")
        for result in results
    ]
    quiet = [one for load in loads for one in load["iterations"] if one["changes"] < QUIET]
    run = statistics.median(one["task_seconds"] / one["tasks"] for one in quiet)
    job = statistics.median(
        (one["seconds"] - one["tasks"] * (START + run / CORES)) / one["jobs"] for one in quiet
    )
    large = loads[-1]
    left = large["seconds"] - large["jobs"] * job - large["tasks"] * (START + run / CORES)
    row = left * CORES / large["rows_in"]
    rows = []
    for machines, cores, buckets in CLUSTERS:
        for times in (1, 10, 100):
            parts = {
                "jobs": large["jobs"] * job,
                "tasks": large["tasks"] * buckets / BUCKETS * (START + run / buckets),
                "rows": large["rows_in"] * times * row / buckets,
                "network": 0.0 if machines == 1 else (
                    large["shuffle_bytes"] * times / machines / NETWORK
                ),
            }
            rows.append({
                "machines": machines, "cores": cores, "buckets": buckets,
                "edges": results[-1]["edges"] * times,
                **{name: round(value, 2) for name, value in parts.items()},
                "seconds": round(sum(parts.values()), 1),
            })
    return {
        "seconds_per_job": round(job, 4), "start_of_task_seconds": START,
        "run_of_task_seconds": round(run, 4), "microseconds_per_row": round(row * 1e6, 3),
        "network_bytes_per_second": NETWORK, "derived": rows,
    }


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", nargs="*", type=size, metavar="NODES:EDGES", default=SIZES)
    parser.add_argument("--times", type=int, default=3, help="runs of each kind")
    parser.add_argument("--json", default="benchmarks/results/cluster.json")
    parser.add_argument("--serve", metavar="MASTER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    served = [Served(master) for master in MASTERS]
    results: list[dict[str, Any]] = []
    right = True
    with tempfile.TemporaryDirectory() as folder:
        list(in_turns(served, write_graph(folder, *WARM), 1))
        for nodes, edges in options.sizes:
            graph = write_graph(folder, nodes, edges, ROUNDS)
            rows, digests = [], set()
            print(f"{nodes:,} nodes, {edges:,} edges", flush=True)
            for master, runner, runs in in_turns(served, graph, options.times):
                rows.append(summary(master, runner, runs))
                digests.update(run["digest"] for run in runs)
            right &= len(digests) == 1
            results.append({
                "nodes": nodes, "edges": edges, "replacements": ROUNDS, "rows": rows,
                "answers_agree": len(digests) == 1, "cluster_over_local": ratios(rows),
            })
            print(table([
                {"master": row["master"], "runner": row["runner"], "what": what, **{
                    name: value for name, value in row[what].items()
                    if not isinstance(value, list)
                }, "iterations": len(row[what]["iterations"])}
                for row in rows for what in ("load", "step")
            ]))
            print(json.dumps(results[-1]["cluster_over_local"], indent=1), flush=True)
        found: dict[str, Any] = {"buckets": BUCKETS, "runs": results}
        found["model"] = model(results)
        print(table(found["model"]["derived"]))
        save(options.json, found)
    for one in served:
        one.close()
    if not right:
        raise SystemExit("two runs gave different answers")


if __name__ == "__main__":
    main()
