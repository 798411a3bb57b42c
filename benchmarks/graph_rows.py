"""Rows of the graph benchmarks: each loads a graph into a new dataflow, then changes it in batches.

The answer after some rounds does not depend on the batch size:

    rows of equally many rounds  ⟹  equal digests, and equal to the plain loop's over that graph
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import statistics
from collections import Counter
from typing import Any, Callable, Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from tqdm.auto import tqdm

from graph_data import Graph, write_graph
from measure import Memory, ratio, seconds, table
from plain_graphs import ROOT, Baseline, Digest, Failed, GraphX, recomputed, sums
from rust_original import WORKERS, NoOriginal, Original, named, ratios
from pyspark_diff import Dataflow, DiffFrame, InputSession

#: `verify` compares the answers of a small graph at every time. Its steps end at these rounds.
#: Even a small step of Spark jobs takes long.
CUTS = {"local": (1, 2, 3, 40, 41, 200), "spark": (20,)}


class Overrun(BaseException):
    """A row takes too long. It is no `Exception`, so that no handler treats it as a failure."""


@contextlib.contextmanager
def at_most(limit: float) -> Iterator[None]:
    """Raise `Overrun` in the main thread after a number of seconds."""

    def stop(*_: object) -> None:
        raise Overrun

    before = signal.signal(signal.SIGALRM, stop)
    # The signal repeats, because Python ignores an exception in a finalizer.
    signal.setitimer(signal.ITIMER_REAL, limit, 30)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Program:
    """A dataflow over the edges of a graph. State: the number of processed rounds.

    Subclasses define the answer.
    """

    #: Nodes and edges of the graph of `verify`, in which the answer changes often.
    small = (0, 0)

    def __init__(self, flow: Dataflow):
        self.flow = flow
        self.rounds = 0
        edges, self.edges_in = flow.input("edges", "src long, dst long")
        self.sessions: list[InputSession] = [self.edges_in]
        # An ignored output runs the operators, but stores no rows.
        self.answer = self.define(edges).inspect(lambda updates: None, by_table=True)
        self.probes = [self.answer.probe()]

    def define(self, edges: DiffFrame) -> DiffFrame:
        """Return the answer. Add the sessions of further inputs, with their rows."""
        raise NotImplementedError

    def root(self) -> DiffFrame:
        """Add an input with the node at which a search begins."""
        roots, roots_in = self.flow.input("roots", "node long")
        roots_in.insert([(ROOT,)])
        self.sessions.append(roots_in)
        return roots

    def keep(self) -> None:
        """Keep the answer for a read at the end. Subclasses add further outputs."""
        self.answer = self.answer.keep()

    def counted(self, answer: DataFrame) -> bool:
        """Return whether the further outputs agree with the last answer."""
        return True

    @staticmethod
    def expected(edges: list[tuple[int, int]]) -> Counter[tuple[int, int]]:
        """Compute the answer in plain Python."""
        raise NotImplementedError

    def load(self, edges: DataFrame | pa.Table) -> None:
        """Load a graph at time 0."""
        self.edges_in.insert(edges)
        self._step(1)

    def change(self, graph: Graph, end: int) -> None:
        """Process the remaining rounds before ``end`` in one step."""
        self.edges_in.update(graph.updates(self.rounds, end))
        self._step(end + 1)
        self.rounds = end

    def _step(self, then: int) -> None:
        for session in self.sessions:
            session.advance_to(then)
            session.flush()
        self.flow.step_while(lambda: any(probe.less_than(then) for probe in self.probes))

    def now(self) -> DataFrame:
        """Return the answer after the processed rounds."""
        return self.answer.at(self.rounds)


class Truth:
    """Digests of the plain loop's answers. State: the computed digests by round.

    Parameters
    ----------
    spark : SparkSession
    graph : Graph
    baseline : Baseline
    """

    def __init__(self, spark: SparkSession, graph: Graph, baseline: Baseline):
        self._spark, self._graph, self._baseline = spark, graph, baseline
        self.known: dict[int, Digest] = {}

    def after(self, rounds: int) -> Digest:
        """Return the digest after some rounds."""
        if rounds not in self.known:
            path = self._graph.write_after(rounds)
            edges = self._spark.read.parquet(path)
            self.known[rounds] = Digest.of_frame(self._baseline.answer(edges))
            if path != self._graph.path:
                shutil.rmtree(path)
        return self.known[rounds]


def run_row(
    spark: SparkSession,
    make: Callable[[Dataflow], Program],
    graph: Graph,
    batch: int,
    changes: int,
    limit: float,
) -> tuple[dict[str, Any], int, Digest | None]:
    """Measure a row: load the graph, then process batches until the rounds or the time end.

    Returns
    -------
    row : dict
    rounds : int
        The number of processed rounds.
    digest : Digest or None
        The digest of the answer then, or None if the load did not end in time.
    """
    frame = spark.read.parquet(graph.path)
    load_seconds, took, read, digest, counted = None, [], [], None, True
    steps = range(0, changes, batch)
    with Memory() as memory, Dataflow(spark) as flow:
        program = make(flow)
        program.keep()
        with _until(spark, limit):
            load_seconds, _ = seconds(lambda: program.load(frame))
        if load_seconds is not None:
            with _until(spark, limit), tqdm(total=changes, disable=None, leave=False) as bar:
                for first in steps:
                    end = min(first + batch, changes)
                    duration, _ = seconds(lambda: program.change(graph, end))
                    took.append(duration)
                    read.append(flow.last_report.rows_in + flow.last_report.rows_read)
                    bar.update(end - first)
            answer = program.now()
            digest, counted = Digest.of_frame(answer), program.counted(answer)
        state = sum(trace.size for trace in flow._state.traces.values())
    rounds, all_seconds = program.rounds, sum(took)
    row = {
        "rounds_per_batch": batch,
        "batches": f"{len(took):,} of {len(steps):,}",
        "rounds": rounds,
        "complete": rounds == changes,
        "load_seconds": None if load_seconds is None else round(load_seconds, 2),
        "seconds": round(all_seconds, 3),
        "median_ms": round(statistics.median(took) * 1e3, 3) if took else None,
        "max_ms": round(max(took) * 1e3, 3) if took else None,
        "us_per_round": round(all_seconds / rounds * 1e6, 2) if rounds else None,
        "rows_read": int(statistics.median(read)) if read else None,
        "state_bytes": state,
        "peak_gib": memory.gigabytes(),
        "records": digest.records if digest else None,
        "digest": str(digest.hashes) if digest else None,
        "outputs_agree": counted,
    }
    return row, rounds, digest


@contextlib.contextmanager
def _until(spark: SparkSession, limit: float) -> Iterator[None]:
    """Leave the block after a number of seconds, and cancel its Spark jobs."""
    try:
        with at_most(limit):
            yield
    except Overrun:
        spark.sparkContext.cancelAllJobs()


def run_rows(
    spark: SparkSession,
    make: Callable[[Dataflow], Program],
    graph: Graph,
    truth: Truth,
    shapes: list[tuple[int, int]],
    limit: float,
) -> list[dict[str, Any]]:
    """Measure rows of shapes (rounds in a batch, all rounds), and compare with the plain loop."""
    rows = []
    for batch, changes in shapes:
        row, rounds, digest = run_row(spark, make, graph, batch, changes, limit)
        agrees = digest is not None and digest == truth.after(rounds) and row["outputs_agree"]
        rows.append({**row, "agrees_with_plain": agrees if digest is not None else None})
        verdict = "not checked" if digest is None else "right" if agrees else "WRONG"
        print(
            f"  {batch:>9,} x {row['batches']}: load {row['load_seconds']} s, then "
            f"{row['seconds']} s, {row['median_ms']} ms a batch; {verdict}",
            flush=True,
        )
    return rows


def run_graph(
    spark: SparkSession,
    make: Callable[[Dataflow], Program],
    baseline: Baseline,
    graph: Graph,
    shapes: list[tuple[int, int]],
    limit: float,
    plain_limit: float = 0,
) -> dict[str, Any]:
    """Measure all rows over a graph between two runs of the plain loop, then the loop's own rows.

    Returns
    -------
    dict
        The saved result. Its ``sums`` are the expected answer of GraphX.
    """
    truth = Truth(spark, graph, baseline)
    cached: list[float] = []
    looped: list[float] = []

    def plain() -> DataFrame:
        with memory:
            cache, loop, answer = baseline.measure(spark, graph.path)
        cached.append(round(cache, 2))
        looped.append(round(loop, 2))
        print(f"  plain Spark {loop:.2f} s, after {cache:.2f} s to read and cache", flush=True)
        return answer

    memory = Memory()
    answer = plain()
    truth.known[0], graphx_sums = Digest.of_frame(answer), sums(answer)
    del answer
    rows = run_rows(spark, make, graph, truth, shapes, limit)
    if looped[0] < limit / 4:
        plain()
    plain_rows = run_plain(spark, baseline, graph, shapes, plain_limit)
    return {
        "nodes": graph.nodes,
        "edges": graph.edges,
        "plain_seconds": looped,
        "plain_mean_seconds": round(statistics.mean(looped), 3),
        "plain_cache_seconds": cached,
        "plain_peak_gib": memory.gigabytes(),
        "sums": graphx_sums,
        "rows": rows,
        "plain_rows": plain_rows,
    }


def shapes(changes: int, batches: list[int], singles: int) -> list[tuple[int, int]]:
    """Return the shapes of rows: single changes first, then all changes in each batch size."""
    single = [(1, singles)] if singles else []
    return single + [(batch, changes) for batch in sorted({min(b, changes) for b in batches})]


def run_plain(
    spark: SparkSession, baseline: Baseline, graph: Graph, shapes: list[tuple[int, int]],
    limit: float,
) -> list[dict[str, Any]]:
    """Measure the same rows for the plain loop, which starts from scratch after each batch."""

    def measured(path: str) -> tuple[float, float]:
        before, took, _ = baseline.measure(spark, path)
        return before, took

    return recomputed("plain Spark", measured, graph, shapes, limit)


def run_graphx(
    graphx: GraphX, baseline: Baseline, graph: Graph, warm: Graph, result: dict[str, Any],
    shapes: list[tuple[int, int]], limit: float,
) -> dict[str, Any]:
    """Measure GraphX, compare its answer, and measure the same rows, each computed from scratch."""
    with graphx.started(baseline, warm.path) as run:
        try:
            measures = run(graph.path)
            same = all(measures[name] == value for name, value in result["sums"].items())
            measures["agrees_with_plain"] = same
            print(f"  GraphX: {measures}", flush=True)

            def measured(path: str) -> tuple[float, float]:
                build_and_run = run(path)
                return build_and_run["build_seconds"], build_and_run["seconds"]

            measures["rows"] = recomputed("GraphX", measured, graph, shapes, limit)
        except Failed as failed:
            measures = {"failed": str(failed)}
            print(f"  GraphX: {failed}", flush=True)
    return measures


def run_original(
    original: Original, program: str, graph: Graph, result: dict[str, Any],
    shapes: list[tuple[int, int]], limit: float,
) -> list[dict[str, Any]]:
    """Measure the same rows for the original with one and two workers, and compare with ours."""
    rows = []
    for (batch, changes), ours in zip(shapes, result["rows"]):
        for workers in WORKERS:
            row: dict[str, Any] = {"workers": workers, "rounds_per_batch": batch}
            steps = [(batch, -(-changes // batch))]
            try:
                run = original.run(
                    program, graph.path, workers, graph.write_changes(changes), steps, limit
                )
            except NoOriginal as failed:
                rows.append({**row, "failed": str(failed)})
                print(f"  original, {named(workers)}: {failed}", flush=True)
                continue
            step = run["steps"][0]
            same = ours["digest"] == str(run["hashes"]) and ours["records"] == run["records"]
            row |= {name: run[name] for name in ("rounds", "read_seconds", "load_seconds")}
            row |= {name: step[name] for name in ("seconds", "median_ms", "max_ms")}
            row["us_per_round"] = round(step["seconds"] / changes * 1e6, 2)
            row["peak_gib"] = run["peak_gib"]
            row["agrees_with_ours"] = same if ours["rounds"] == run["rounds"] else None
            print(f"  original, {named(workers)}: {row}", flush=True)
            rows.append(row)
    return rows


def original_ratios(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return our seconds over the original's: of the load, and of a round in each batch size."""
    rounds = {row["rounds_per_batch"]: row["us_per_round"] for row in result["rows"]}
    theirs = [
        (row["workers"], row["load_seconds"], {row["rounds_per_batch"]: row["us_per_round"]})
        for row in result["original"] if "failed" not in row
    ]
    return ratios(load_seconds(result), rounds, theirs)


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """Return the printed columns of a row."""
    names = ("rounds_per_batch", "batches", "load_seconds", "seconds", "median_ms", "max_ms",
             "us_per_round", "rows_read", "state_bytes", "agrees_with_plain")
    return {**{name: row[name] for name in names}, "peak_gib": row["peak_gib"].get("total")}


def show_rows(result: dict[str, Any]) -> None:
    """Print the tables of all rows over a graph."""
    ours = [shown(row) for row in result["rows"]]
    tables = {
        "": ours, "plain Spark": result["plain_rows"],
        "GraphX": result.get("graphx", {}).get("rows"),
        "original": result["original"],
    }
    for name, rows in tables.items():
        if rows:
            print(f"{name}\n{table(rows)}\n")


def load_seconds(result: dict[str, Any]) -> float | None:
    """Return the median of all loads of a graph."""
    loads = [row["load_seconds"] for row in result["rows"] if row["load_seconds"] is not None]
    return statistics.median(loads) if loads else None


def complete(result: dict[str, Any], batch: int) -> dict[str, Any] | None:
    """Return the row with batches of a size, if it processed all its changes."""
    rows = [row for row in result["rows"] if row["rounds_per_batch"] == batch and row["complete"]]
    return rows[0] if rows and rows[0]["rounds"] else None


def load_and_batches(result: dict[str, Any], changes: int) -> list[dict[str, Any]]:
    """Return the default ratios of the runs over a graph."""
    plain, load = result["plain_mean_seconds"], load_seconds(result)
    rows = [ratio("load / plain", load, plain)]
    for row in result["rows"]:
        if row["median_ms"] is None:
            continue
        batch = row["rounds_per_batch"]
        if batch > 1:
            rows.append(ratio(f"a batch of {batch:,} / load", row["median_ms"] / 1e3, load))
    single = complete(result, 1)
    if single is not None:
        rows.append(ratio("plain / one replacement", plain, single["median_ms"] / 1e3))
    graphx = result.get("graphx", {}).get("seconds")
    if graphx:
        rows.append(ratio("load / GraphX", load, graphx))
    return rows


def all_right(results: list[dict[str, Any]]) -> bool:
    """Return whether no row has a wrong answer."""
    rows = [row for result in results for row in result["rows"] + result["original"]]
    compared = ("agrees_with_plain", "agrees_with_ours")
    return all(row.get(name) is not False for row in rows for name in compared)


def verify(spark: SparkSession, make: type[Program], folder: str, runner: str) -> None:
    """Compare all answers of a small graph at every time."""
    graph = write_graph(os.path.join(folder, f"verify-{runner}"), *make.small, CUTS[runner][-1])
    tables: list[pa.Table] = []
    with Dataflow(spark, runner=runner) as flow:
        program = make(flow)
        program.answer.inspect(tables.append, by_table=True)
        program.load(graph.after(0))
        for end in CUTS[runner]:
            program.change(graph, end)
    updates = pa.concat_tables(tables)
    columns = [column.to_numpy() for column in updates.columns]
    order = np.argsort(columns[2], kind="stable")
    rows = zip(*(column[order].tolist() for column in columns))
    now: Counter[tuple[int, int]] = Counter()
    row = next(rows, None)
    for at in range(graph.rounds + 1):
        while row is not None and row[2] == at:
            now[row[:2]] += row[3]
            row = next(rows, None)
        edges = graph.after(at)
        expected = make.expected(list(zip(*(edges[name].to_pylist() for name in ("src", "dst")))))
        if {key: count for key, count in now.items() if count} != dict(expected):
            raise SystemExit(f"the answer at time {at} is wrong (runner {runner!r})")
    if row is not None:
        raise SystemExit(f"updates at time {row[2]}, after the last round (runner {runner!r})")
