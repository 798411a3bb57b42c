"""Breadth-first search as Spark jobs: in one process, and on a cluster of two executors.

    python benchmarks/cluster.py                          # 100k / 1M, then 1M / 10M
    python benchmarks/cluster.py --sizes 10000:50000 --times 1

The benchmark runs the same load and the same step of 10,000 replacements on ``local[2]`` and on
``local-cluster[2,1,1400]``. The cluster has two executors of one core each. They exchange shuffles
and results with the driver as executors on other machines do. Both masters run throughout and take
turns, so quote their ratio. Spark reports the tasks, task seconds, shuffled bytes and result bytes
of each job. The driver's own time is the time in which no job ran.
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

#: Each master runs two tasks at a time.
MASTERS = ("local[2]", "local-cluster[2,1,1400]")
RUNNERS = ("spark", "auto")
CORES = BUCKETS = 2
#: Nodes, edges and replacements of the first graph. It starts the workers and compiles kernels.
WARM = (2_000, 10_000, 100)
SIZES = [(100_000, 1_000_000), (1_000_000, 10_000_000)]
#: Replacements in the step after the load, one per logical time.
ROUNDS = 10_000
#: An iteration with fewer changes has next to no work.
QUIET = 1_000
#: Assumed seconds in which the driver starts a task. Two buckets are too few to measure it apart
#: from the cost of a job. On separate machines it is the cost of many buckets.
START = 0.002
#: Machines, cores per machine, and buckets of each derived cluster: at most one bucket per core.
CLUSTERS = ((1, 2, 2), (1, 16, 16), (16, 16, 64), (16, 16, 256))
#: Bytes per second that a machine of several sends: 10 Gbit/s.
NETWORK = 1.25e9
#: Sums over the stages of a job: the key of the results and the key of Spark's REST interface.
SUMS = {
    "tasks": "numCompleteTasks",
    "shuffle_bytes": "shuffleWriteBytes",
    "driver_bytes": "resultSize",
    "task_seconds": "executorRunTime",
}


class Jobs:
    """Jobs that Spark's REST interface reports. State: the last job that `take` returned.

    Parameters
    ----------
    spark : SparkSession
        A session with the UI enabled.
    """

    def __init__(self, spark: SparkSession):
        context = spark.sparkContext
        self._url = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}"
        self._last_job = -1

    def take(self) -> list[dict[str, Any]]:
        """Return the iteration, span and stage sums of each job since the last call."""
        time.sleep(1)  # listeners receive events a little later
        stages = {stage["stageId"]: stage for stage in self._get("stages")}
        new = [job for job in self._get("jobs") if job["jobId"] > self._last_job]
        self._last_job = max((job["jobId"] for job in new), default=self._last_job)
        return [_job(job, [stages[n] for n in job["stageIds"] if n in stages]) for job in new]

    def _get(self, what: str) -> Any:
        with urllib.request.urlopen(f"{self._url}/{what}") as answer:
            return json.load(answer)


def _job(job: dict[str, Any], stages: list[dict[str, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {
        name: sum(stage[known] for stage in stages) for name, known in SUMS.items()
    }
    row["task_seconds"] /= 1e3
    at = re.search(r" at iteration (\d+)", job.get("description") or "")
    row["iteration"] = None if at is None else int(at[1])
    row["span"] = [_moment(job["submissionTime"]), _moment(job["completionTime"])]
    return row


def _moment(text: str) -> float:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fGMT").timestamp()


def account(wall: float, jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the sums over jobs, and the seconds in which none of them ran."""
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
    """Run a step, and return its account and the account of each iteration."""
    jobs.take()
    cpu = time.process_time()
    wall, _ = seconds(action)
    cpu = time.process_time() - cpu
    ran, report = jobs.take(), flow.last_report
    iterations = []
    for iteration in report.iterations:
        own = [job for job in ran if job["iteration"] == iteration.iteration[0]]
        iterations.append({"changes": iteration.changes, **account(iteration.seconds, own)})
    return {
        **account(wall, ran), "driver_cpu_seconds": round(cpu, 3), "rows_in": report.rows_in,
        "rows_out": report.rows_out, "spark_runs": report.spark_runs,
        "local_runs": report.local_runs, "iterations": iterations,
    }


def serve(master: str) -> None:
    """Run the process of one master: each line of the input requests a run."""
    spark = pyspark_diff.session("benchmark cluster", master=master, conf={
        # An executor starts only if its worker has more memory than this.
        "spark.executor.memory": "1g",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "spark.ui.enabled": "true", "spark.ui.port": "0",
        "spark.ui.retainedJobs": "100000", "spark.ui.retainedStages": "100000",
    })
    spark.sparkContext.setLogLevel("OFF")
    jobs = Jobs(spark)
    for line in sys.stdin:
        request = json.loads(line)
        with pa.ipc.open_file(request["changes"]) as reader:
            changes = reader.read_all()
        with Dataflow(spark, runner=request["runner"], buckets=BUCKETS) as flow:
            program = Distances(flow)
            program.keep()
            load = measured(flow, jobs, lambda: program.load(spark.read.parquet(request["path"])))

            def change() -> None:
                program.edges_in.update(changes)
                program._step(request["rounds"] + 1)
                program.rounds = request["rounds"]

            step = measured(flow, jobs, change)
            digest = Digest.of_frame(program.now())
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
        """Return the accounts of a load and of a step, and the digest of the answer."""
        request = {"runner": runner, "path": graph.path, "changes": changes, "rounds": graph.rounds}
        sent, got = self._process.stdin, self._process.stdout
        assert sent is not None and got is not None
        print(json.dumps(request), file=sent, flush=True)
        line = got.readline()
        if not line:
            raise SystemExit(f"{self.master} has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def changes_of(graph: Graph) -> str:
    """Write the updates of all rounds to a file, and return its path."""
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
        runs_of: dict[str, list[dict[str, Any]]] = {process.master: [] for process in served}
        for _ in range(times):
            for process in served:
                runs_of[process.master].append(process.run(runner, graph, changes))
        for master, runs in runs_of.items():
            yield master, runner, runs


def summary(master: str, runner: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the result row of some runs: the account of the fastest and the seconds of all."""
    row: dict[str, Any] = {"master": master, "runner": runner}
    for what in ("load", "step"):
        accounts = sorted((run[what] for run in runs), key=lambda item: item["seconds"])
        row[what] = {
            **accounts[0], "all_seconds": [item["seconds"] for item in accounts],
            "median_seconds": round(statistics.median(item["seconds"] for item in accounts), 3),
        }
    return row


def ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The cluster over one process, of the fastest runs and of the medians."""
    quotients = {}
    for runner in RUNNERS:
        local, cluster = (
            next(row for row in rows if row["master"] == m and row["runner"] == runner)
            for m in MASTERS
        )
        for what in ("load", "step"):
            for kind in ("seconds", "median_seconds"):
                name = f"{runner} {what} {'fastest' if kind == 'seconds' else 'median'}"
                quotients[name] = round(cluster[what][kind] / local[what][kind], 2)
    return quotients


def model(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Fit the seconds of a load on the cluster, and derive the seconds on other clusters::

        seconds = jobs * job + tasks * (start + run / cores) + rows * row / cores + bytes / network

    Iterations of few changes measure the jobs and tasks. The remaining seconds measure the rows.
    """
    loads = [
        next(row["load"] for row in result["rows"]
             if row["master"] == MASTERS[1] and row["runner"] == "spark")
        for result in results
    ]
    quiet = [item for load in loads for item in load["iterations"] if item["changes"] < QUIET]
    run = statistics.median(item["task_seconds"] / item["tasks"] for item in quiet)
    job = statistics.median(
        (item["seconds"] - item["tasks"] * (START + run / CORES)) / item["jobs"] for item in quiet
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
        result: dict[str, Any] = {"buckets": BUCKETS, "runs": results}
        result["model"] = model(results)
        print(table(result["model"]["derived"]))
        save(options.json, result)
    for process in served:
        process.close()
    if not right:
        raise SystemExit("two runs gave different answers")


if __name__ == "__main__":
    main()
