"""Degree distribution under changes, against plain Spark in the same session.

    python benchmarks/degrees.py                       # 10k nodes / 50k edges, then 10M / 50M
    python benchmarks/degrees.py --sizes 1000000:5000000 --json results.json

The benchmark loads a random graph from Parquet, then replaces edges. Each round is one removal and
one insertion at a separate logical time, and one physical step processes a batch of rounds. Seconds
of ours and of plain Spark come from one run, so quote their ratios: absolute times depend on the
machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from typing import Any, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import pyspark_diff
from measure import Memory, save, seconds, table
from plain_graphs import Digest
from pyspark_diff import Dataflow, DiffFrame
from rust_original import Original, add_options, ratios, run_workers, timings

#: Rounds in one physical step, and the number of measured steps.
BATCHES = {1: 200, 10: 100, 100: 50, 1_000: 30, 10_000: 10, 100_000: 5}
FILES = 8


def write_graph(folder: str, nodes: int, edges: int) -> str:
    """Write a random graph as Parquet files."""
    random = np.random.default_rng(7)
    path = os.path.join(folder, f"edges-{nodes}-{edges}")
    os.makedirs(path)
    for number in range(FILES):
        count = edges // FILES + (number < edges % FILES)
        columns = {name: random.integers(0, nodes, count) for name in ("src", "dst")}
        pq.write_table(
            pa.table(columns), f"{path}/{number}.parquet", use_dictionary=False, compression="none"
        )
    return path


def write_changes(path: str, updates: pa.Table) -> str:
    """Write the updates as a Parquet file, and return its folder."""
    os.makedirs(path)
    pq.write_table(updates, f"{path}/0.parquet", use_dictionary=False, compression="none")
    return path


def plain(edges: DataFrame) -> dict[int, int]:
    """Compute the distribution from scratch with plain Spark."""
    degrees = edges.groupBy("src").count().withColumnRenamed("count", "degree")
    return {row[0]: row[1] for row in degrees.groupBy("degree").count().collect()}


def distribution(edges: DiffFrame, total: bool) -> DiffFrame:
    """Return the maintained distribution."""
    degrees = edges.select("src")
    degrees = degrees.count_total() if total else degrees.count()
    degrees = degrees.select("count").withColumnRenamed("count", "degree")
    return degrees.count_total() if total else degrees.count()


class Changes:
    """Rounds: each removes the oldest remaining edge and inserts a random edge."""

    def __init__(self, path: str, nodes: int):
        self._random = np.random.default_rng(11)
        self._nodes = nodes
        self._old = _edges(path)
        self._chunk = next(self._old)
        self.time = 1

    def take(self, rounds: int) -> pa.Table:
        """Return the updates of the next rounds."""
        while self._chunk.num_rows < rounds:
            self._chunk = pa.concat_tables([self._chunk, next(self._old)])
        gone, self._chunk = self._chunk.slice(0, rounds), self._chunk.slice(rounds)
        times = np.arange(self.time, self.time + rounds)
        self.time += rounds
        new = self._random.integers(0, self._nodes, (rounds, 2))
        return pa.table(
            {
                "src": np.concatenate((gone["src"].to_numpy(), new[:, 0])),
                "dst": np.concatenate((gone["dst"].to_numpy(), new[:, 1])),
                "time": np.concatenate((times, times)),
                "diff": np.repeat([-1, 1], rounds),
            }
        )


def _edges(path: str) -> Iterator[pa.Table]:
    for number in range(FILES):
        for batch in pq.ParquetFile(f"{path}/{number}.parquet").iter_batches(200_000):
            yield pa.Table.from_batches([batch])
    while True:  # small graphs run out of old edges: then rounds only insert
        yield pa.table({"src": np.zeros(200_000, np.int64), "dst": np.zeros(200_000, np.int64)})


def digest(nodes_by_degree: dict[int, int]) -> Digest:
    """Return the digest of a distribution."""
    degrees = [degree for degree, nodes in nodes_by_degree.items() if nodes]
    columns = [degrees, [nodes_by_degree[degree] for degree in degrees], [0] * len(degrees)]
    updates = [pa.array(column, pa.int64()) for column in [*columns, [1] * len(degrees)]]
    return Digest.of_updates(pa.table(updates, ["degree", "nodes", "time", "diff"]))


def run(
    spark: SparkSession, original: Original, path: str, nodes: int, edges: int, total: bool
) -> dict[str, Any]:
    """Measure the load and all batch sizes of an operator, then of the original."""
    frame = spark.read.parquet(path)
    nodes_by_degree: dict[int, int] = {}

    def follow(updates: pa.Table) -> None:
        degree, count, _, diff = (column.to_numpy() for column in updates.columns)
        change = np.unique(degree, return_inverse=True)
        for key, value in zip(change[0], np.bincount(change[1], count * diff)):
            nodes_by_degree[int(key)] = nodes_by_degree.get(int(key), 0) + int(value)

    with Memory() as memory, Dataflow(spark) as flow:
        collection, session = flow.input("edges", "src long, dst long")
        answer = distribution(collection, total).inspect(follow, by_table=True)
        probe = answer.probe()
        before, expected = seconds(lambda: plain(frame))

        def load() -> None:
            session.insert(frame)
            session.advance_to(1)
            session.flush()
            flow.step_while(lambda: probe.less_than(session.time()))

        load_seconds, _ = seconds(load)
        right = {k: v for k, v in nodes_by_degree.items() if v} == expected
        state = sum(trace.size for trace in flow._state.traces.values())
        after, _ = seconds(lambda: plain(frame))
        plain_seconds = statistics.median([before, after])
        changes = Changes(path, nodes)
        rows, handed = [], []
        shapes = [(rounds, steps) for rounds, steps in BATCHES.items() if rounds * 2 <= edges]
        for rounds, repeats in shapes:
            times, read = [], []
            for _ in range(repeats):
                # The original also reads all changes before its clock starts.
                handed.append(changes.take(rounds))

                def step() -> None:
                    session.update(handed[-1])
                    session.advance_to(changes.time)
                    session.flush()
                    flow.step_while(lambda: probe.less_than(session.time()))

                took, _ = seconds(step)
                times.append(took)
                read.append(flow.last_report.rows_in + flow.last_report.rows_read)
            middle = statistics.median(times)
            rows.append(
                {
                    "rounds": rounds,
                    "median_ms": round(middle * 1e3, 3),
                    "max_ms": round(max(times) * 1e3, 3),
                    "us_per_round": round(middle / rounds * 1e6, 2),
                    "rows_read": int(statistics.median(read)),
                    "plain_over_ours": round(plain_seconds / middle, 1),
                }
            )
            print(f"  {rounds:>7} rounds: {middle * 1e3:9.2f} ms", flush=True)
    theirs = run_workers(
        original, "degrees_total" if total else "degrees", path,
        write_changes(f"{path}-changes-{total}", pa.concat_tables(handed)), shapes,
        (digest(expected), digest(nodes_by_degree)),
    )
    return {
        "operator": "count_total" if total else "count",
        "nodes": nodes,
        "edges": edges,
        "plain_seconds": [round(before, 2), round(after, 2)],
        "load_seconds": round(load_seconds, 2),
        "load_over_plain": round(load_seconds / plain_seconds, 2),
        "agrees_with_plain": right,
        "state_bytes": state,
        "state_over_raw_columns": round(state / (16 * edges), 3),
        "peak_gib": memory.gigabytes(),
        "rounds": rows,
        "original": theirs,
        "ratios": ratios(
            load_seconds, {row["rounds"]: row["median_ms"] for row in rows}, timings(theirs)
        ),
    }


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="*", default=["10000:50000", "10000000:50000000"])
    add_options(parser)
    parser.add_argument("--json", default="benchmarks/results/degrees.json")
    parser.add_argument("--folder", help="where generated graphs go; a temporary one if not given")
    options = parser.parse_args()
    original = Original.built(options.original)
    spark = pyspark_diff.session("benchmark degrees")
    spark.sparkContext.setLogLevel("ERROR")
    results = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        warm = write_graph(folder, 100, 1000)
        run(spark, Original(), warm, 100, 1000, total=False)  # compiles kernels and warms the JVM
        for size in options.sizes:
            nodes, edges = (int(part) for part in size.split(":"))
            path = write_graph(folder, nodes, edges)
            for total in (False, True):
                name = "count_total" if total else "count"
                print(f"{name}, {nodes:,} nodes, {edges:,} edges", flush=True)
                result = run(spark, original, path, nodes, edges, total)
                results.append(result)
                print(
                    f"  load {result['load_seconds']} s = {result['load_over_plain']} x plain "
                    f"Spark {result['plain_seconds']} s; peak GiB {result['peak_gib']}; state "
                    f"{result['state_bytes']:,} bytes",
                    flush=True,
                )
                if not result["agrees_with_plain"]:
                    raise SystemExit("the distribution differs from plain Spark's")
    for result in results:
        print(f"\n{result['operator']}, {result['nodes']:,} nodes, {result['edges']:,} edges")
        print(table(result["rounds"]))
        if result["ratios"]:
            print(f"\n{table(result['ratios'])}")
    save(options.json, {"runs": results})
    if any(row.get("agrees_with_ours") is False for run in results for row in run["original"]):
        raise SystemExit("the distribution differs from the original's")


if __name__ == "__main__":
    main()
