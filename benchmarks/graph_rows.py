"""Rows of the graph benchmarks: a fresh dataflow each, loaded, and then changed batch by batch.

Whatever the batch size, the answer after some rounds is the same:

    rows that made as many rounds  ⟹  equal digests, and equal to the plain loop's over that graph
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

#: In a small graph the answers are compared one by one, at every time, cut into steps at these
#: rounds. A step of Spark jobs takes long however small it is.
CUTS = {"local": (1, 2, 3, 40, 41, 200), "spark": (20,)}


class Overrun(BaseException):
    """A row takes too long. No `Exception`: nothing between may take it for a failure."""


@contextlib.contextmanager
def at_most(limit: float) -> Iterator[None]:
    """Raise `Overrun` in the main thread after a number of seconds."""

    def stop(*_: object) -> None:
        raise Overrun

    before = signal.signal(signal.SIGALRM, stop)
    # Once more if it was raised where Python ignores exceptions, as in a finalizer.
    signal.setitimer(signal.ITIMER_REAL, limit, 30)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Program:
    """A dataflow over the edges of a graph. It holds state: how many rounds were processed.

    Subclasses say what is computed.
    """

    #: Seen by `verify`: nodes and edges of a graph in which the answer changes often.
    small = (0, 0)

    def __init__(self, flow: Dataflow):
        self.flow = flow
        self.rounds = 0
        edges, self.edges_in = flow.input("edges", "src long, dst long")
        self.sessions: list[InputSession] = [self.edges_in]
        # Shown to nobody, so that it is run and not kept.
        self.answer = self.define(edges).inspect(lambda updates: None, by_table=True)
        self.probes = [self.answer.probe()]

    def define(self, edges: DiffFrame) -> DiffFrame:
        """The answer; adds the sessions of further inputs, with what they hold."""
        raise NotImplementedError

    def root(self) -> DiffFrame:
        """One more input, of the node where a search begins."""
        roots, roots_in = self.flow.input("roots", "node long")
        roots_in.insert([(ROOT,)])
        self.sessions.append(roots_in)
        return roots

    def keep(self) -> None:
        """Keep the answer, to be read at the end, and add what else a benchmark wants."""
        self.answer = self.answer.keep()

    def counted(self, answer: DataFrame) -> bool:
        """Whether the further outputs agree with the answer at the end."""
        return True

    @staticmethod
    def expected(edges: list[tuple[int, int]]) -> Counter[tuple[int, int]]:
        """The answer by a few lines of Python."""
        raise NotImplementedError

    def load(self, edges: DataFrame | pa.Table) -> None:
        """Take a graph in at time 0."""
        self.edges_in.insert(edges)
        self._step(1)

    def change(self, graph: Graph, end: int) -> None:
        """Process the rounds before ``end`` that are left, in one step."""
        self.edges_in.update(graph.updates(self.rounds, end))
        self._step(end + 1)
        self.rounds = end

    def _step(self, then: int) -> None:
        for session in self.sessions:
            session.advance_to(then)
            session.flush()
        self.flow.step_while(lambda: any(probe.less_than(then) for probe in self.probes))

    def now(self) -> DataFrame:
        """The answer after the rounds so far."""
        return self.answer.at(self.rounds)


class Truth:
    """Digests of the plain loop's answers. It holds state: those that it has computed.

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
        """The digest after some rounds."""
        if rounds not in self.known:
            path = self._graph.write_after(rounds)
            self.known[rounds] = Digest.of(self._baseline.answer(self._spark.read.parquet(path)))
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
    """One row: load, then batches of changes until all are made or time is up.

    Returns
    -------
    row : dict
    rounds : int
        How many rounds were processed.
    digest : Digest or None
        That of the answer then; None if not even the load came to an end.
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
                    one, _ = seconds(lambda: program.change(graph, end))
                    took.append(one)
                    read.append(flow.last_report.rows_in + flow.last_report.rows_read)
                    bar.update(end - first)
            answer = program.now()
            digest, counted = Digest.of(answer), program.counted(answer)
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
    """Leave the block after a number of seconds, and stop what Spark does for it."""
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
    """Rows of some shapes (rounds in a batch, rounds in all), compared with the plain loop."""
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
    """All rows over one graph, between two runs of the plain loop, and then the loop's own rows.

    Returns
    -------
    dict
        What is saved; ``sums`` is what GraphX has to find.
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
    truth.known[0], found = Digest.of(answer), sums(answer)
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
        "sums": found,
        "rows": rows,
        "plain_rows": plain_rows,
    }


def shapes(changes: int, batches: list[int], singles: int) -> list[tuple[int, int]]:
    """Rows: single changes first, then each batch size until all changes are made."""
    found = [(1, singles)] if singles else []
    return found + [(batch, changes) for batch in sorted({min(b, changes) for b in batches})]


def run_plain(
    spark: SparkSession, baseline: Baseline, graph: Graph, shapes: list[tuple[int, int]],
    limit: float,
) -> list[dict[str, Any]]:
    """The same rows for the plain loop, which computes everything anew after each batch."""

    def measured(path: str) -> tuple[float, float]:
        before, took, _ = baseline.measure(spark, path)
        return before, took

    return recomputed("plain Spark", measured, graph, shapes, limit)


def run_graphx(
    graphx: GraphX, baseline: Baseline, graph: Graph, warm: Graph, result: dict[str, Any],
    shapes: list[tuple[int, int]], limit: float,
) -> dict[str, Any]:
    """What GraphX takes, whether it agrees, and the same rows, everything computed anew."""
    with graphx.started(baseline, warm.path) as run:
        try:
            found = run(graph.path)
            same = all(found[name] == value for name, value in result["sums"].items())
            found["agrees_with_plain"] = same
            print(f"  GraphX: {found}", flush=True)

            def measured(path: str) -> tuple[float, float]:
                one = run(path)
                return one["build_seconds"], one["seconds"]

            found["rows"] = recomputed("GraphX", measured, graph, shapes, limit)
        except Failed as failed:
            found = {"failed": str(failed)}
            print(f"  GraphX: {failed}", flush=True)
    return found


def run_original(
    original: Original, program: str, graph: Graph, result: dict[str, Any],
    shapes: list[tuple[int, int]], limit: float,
) -> list[dict[str, Any]]:
    """The same rows for the original, with one worker and with two, compared with ours."""
    rows = []
    for (batch, changes), ours in zip(shapes, result["rows"]):
        for workers in WORKERS:
            row: dict[str, Any] = {"workers": workers, "rounds_per_batch": batch}
            steps = [(batch, -(-changes // batch))]
            try:
                found = original.run(
                    program, graph.path, workers, graph.write_changes(changes), steps, limit
                )
            except NoOriginal as failed:
                rows.append({**row, "failed": str(failed)})
                print(f"  original, {named(workers)}: {failed}", flush=True)
                continue
            step = found["steps"][0]
            same = ours["digest"] == str(found["hashes"]) and ours["records"] == found["records"]
            row |= {name: found[name] for name in ("rounds", "read_seconds", "load_seconds")}
            row |= {name: step[name] for name in ("seconds", "median_ms", "max_ms")}
            row["us_per_round"] = round(step["seconds"] / changes * 1e6, 2)
            row["peak_gib"] = found["peak_gib"]
            row["agrees_with_ours"] = same if ours["rounds"] == found["rounds"] else None
            print(f"  original, {named(workers)}: {row}", flush=True)
            rows.append(row)
    return rows


def original_ratios(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Ours over the original's: the load, and a round in batches of each size."""
    rounds = {row["rounds_per_batch"]: row["us_per_round"] for row in result["rows"]}
    theirs = [
        (row["workers"], row["load_seconds"], {row["rounds_per_batch"]: row["us_per_round"]})
        for row in result["original"] if "failed" not in row
    ]
    return ratios(load_seconds(result), rounds, theirs)


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """The columns of a row that are printed as a table."""
    names = ("rounds_per_batch", "batches", "load_seconds", "seconds", "median_ms", "max_ms",
             "us_per_round", "rows_read", "state_bytes", "agrees_with_plain")
    return {**{name: row[name] for name in names}, "peak_gib": row["peak_gib"].get("total")}


def show_rows(result: dict[str, Any]) -> None:
    """Tables of all rows over a graph."""
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
    """The median of all loads of a graph."""
    loads = [row["load_seconds"] for row in result["rows"] if row["load_seconds"] is not None]
    return statistics.median(loads) if loads else None


def complete(result: dict[str, Any], batch: int) -> dict[str, Any] | None:
    """The row with batches of a size, if it made all its changes."""
    rows = [row for row in result["rows"] if row["rounds_per_batch"] == batch and row["complete"]]
    return rows[0] if rows and rows[0]["rounds"] else None


def load_and_batches(result: dict[str, Any], changes: int) -> list[dict[str, Any]]:
    """What the runs over one graph are judged by, if nothing else is asked of it."""
    plain, load = result["plain_mean_seconds"], load_seconds(result)
    rows = [ratio("load / plain", load, plain)]
    for row in result["rows"]:
        if row["median_ms"] is None:
            continue
        batch = row["rounds_per_batch"]
        if batch > 1:
            rows.append(ratio(f"a batch of {batch:,} / load", row["median_ms"] / 1e3, load))
    one = complete(result, 1)
    if one is not None:
        rows.append(ratio("plain / one replacement", plain, one["median_ms"] / 1e3))
    graphx = result.get("graphx", {}).get("seconds")
    if graphx:
        rows.append(ratio("load / GraphX", load, graphx))
    return rows


def all_right(results: list[dict[str, Any]]) -> bool:
    """Whether every row that has an answer has the right one."""
    rows = [row for result in results for row in result["rows"] + result["original"]]
    compared = ("agrees_with_plain", "agrees_with_ours")
    return all(row.get(name) is not False for row in rows for name in compared)


def verify(spark: SparkSession, make: type[Program], folder: str, runner: str) -> None:
    """Compare the answers one by one, at every time, in a small graph."""
    graph = write_graph(os.path.join(folder, f"verify-{runner}"), *make.small, CUTS[runner][-1])
    kept: list[pa.Table] = []
    with Dataflow(spark, runner=runner) as flow:
        program = make(flow)
        program.answer.inspect(kept.append, by_table=True)
        program.load(graph.after(0))
        for end in CUTS[runner]:
            program.change(graph, end)
    updates = pa.concat_tables(kept)
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
        raise SystemExit(f"updates at time {row[2]}, which never was (runner {runner!r})")
