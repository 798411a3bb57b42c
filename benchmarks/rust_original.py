"""The original, differential-dataflow itself, over the files of our benchmarks.

    python benchmarks/rust_original.py bfs 1000:2000 1000000:10000000 --changes 1000000
    python benchmarks/rust_original.py degrees 10000000:50000000 --changes 0

Cargo builds the original (`benchmarks/original`). Without cargo its rows contain the reason. Its
workers do not sleep while they wait for each other, so it runs alone, after our benchmark. Its load
includes the read of the Parquet files, as ours does. It reads the changes before its clock starts,
as our changes are in memory.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterable, Iterator

from graph_data import size, write_graph
from measure import ratio, table
from plain_graphs import LIMIT, Digest

PROJECT = Path(__file__).parent / "original"
WORKERS = (1, 2)
PROGRAMS = (
    "bfs", "components", "degrees", "degrees_total", "k_core", "reachability", "skip_level"
)


class NoOriginal(Exception):
    """The original returned no answer. The message is the reason."""


@dataclass(frozen=True)
class Original:
    """The original, ready to run, or the reason why it is not.

    Parameters
    ----------
    binary : str
        Path of the program, or empty if there is none.
    reason : str
        The reason for an empty `binary`.
    """

    binary: str = ""
    reason: str = "not asked for"

    @classmethod
    def built(cls, wanted: bool = True) -> "Original":
        """Build the original. The first build takes a minute."""
        if not wanted:
            return cls()
        cargo = shutil.which("cargo")
        if cargo is None:
            return cls(reason="cargo is not there")
        print("building the original", flush=True)
        manifest = str(PROJECT / "Cargo.toml")
        build = [cargo, "build", "--release", "--locked", "--manifest-path", manifest]
        done = subprocess.run(build, capture_output=True, text=True)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("error")]
            return cls(reason=f"cargo build failed: {(errors or ['no message'])[0]}")
        return cls(str(PROJECT / "target" / "release" / "original"))

    def run(
        self,
        program: str,
        edges: str,
        workers: int,
        changes: str | None = None,
        shapes: Iterable[tuple[int, int]] = (),
        limit: float | None = None,
    ) -> dict[str, Any]:
        """Load a graph, then process changes.

        Parameters
        ----------
        program : str
            One of `PROGRAMS`.
        edges : str
            Folder of Parquet files with two columns.
        workers : int
        changes : str, optional
            Folder of Parquet files with updates, at times from 1 on.
        shapes : iterable of (int, int)
            Times per step, and the maximum of steps.
        limit : float, optional
            Time limit in seconds.

        Raises
        ------
        NoOriginal
            If the original is missing, exceeds the limit, or fails.
        """
        if not self.binary:
            raise NoOriginal(self.reason)
        command = [self.binary, program, edges, "--workers", str(workers)]
        if changes is not None:
            command += ["--changes", changes]
            command += ["--rounds", ",".join(f"{rounds}x{steps}" for rounds, steps in shapes)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
        except subprocess.TimeoutExpired:
            raise NoOriginal(f"stopped after {limit:g} s") from None
        if done.returncode:
            raise NoOriginal((done.stderr.strip().splitlines() or ["no message"])[0])
        result: dict[str, Any] = json.loads(done.stdout)
        return result


def run_workers(
    original: Original, program: str, edges: str, changes: str, shapes: list[tuple[int, int]],
    answers: tuple[Digest | None, Digest | None],
) -> list[dict[str, Any]]:
    """Measure the original with one and two workers. A row without an answer has the reason.

    Parameters
    ----------
    original, program, edges, changes, shapes
        As for `Original.run`.
    answers : (Digest or None, Digest or None)
        Our digests after the load and at the end, if known.
    """
    rows = []
    for workers in WORKERS:
        try:
            row = original.run(program, edges, workers, changes, shapes, LIMIT)
        except NoOriginal as failed:
            row = {"workers": workers, "failed": str(failed)}
        else:
            names = (("loaded_records", "loaded_hashes"), ("records", "hashes"))
            compared = [
                ours == Digest(row[records], row[hashes])
                for ours, (records, hashes) in zip(answers, names)
                if ours is not None
            ]
            row["agrees_with_ours"] = all(compared) if compared else None
        print(f"  original, {named(workers)}: {row}", flush=True)
        rows.append(row)
    return rows


def ratios(
    load: float | None, steps: dict[int, float | None],
    theirs: Iterable[tuple[int, float, dict[int, float]]],
) -> list[dict[str, Any]]:
    """Return ours over the original's for each number of workers: the load, and each step size.

    Parameters
    ----------
    load : float, optional
    steps : dict
        Time of a step, or of a round in it, by the number of rounds.
    theirs : iterable of (int, float, dict)
        Workers, load and steps of each run of the original.
    """
    rows = []
    for workers, runs in itertools.groupby(sorted(theirs, key=_workers), key=_workers):
        loads, step_times = [], {}
        for _, seconds, times in runs:
            loads.append(seconds)
            step_times.update(times)
        name = f"original ({named(workers)})"
        rows.append(ratio(f"load / {name}", load, statistics.median(loads)))
        for rounds, took in steps.items():
            rows.append(ratio(f"step of {rounds:,} / {name}", took, step_times.get(rounds)))
    return rows


def timings(rows: list[dict[str, Any]]) -> Iterator[tuple[int, float, dict[int, float]]]:
    """Yield the runs that `ratios` compares from the rows of `run_workers`, with median steps."""
    for row in rows:
        if "failed" not in row:
            steps = {step["rounds"]: step["median_ms"] for step in row["steps"]}
            yield row["workers"], row["load_seconds"], steps


def _workers(run: tuple[int, float, dict[int, float]]) -> int:
    return run[0]


def named(workers: int) -> str:
    """Return a number of workers in words."""
    return "1 worker" if workers == 1 else f"{workers} workers"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the option of the original to a benchmark's command line."""
    parser.add_argument("--original", action=argparse.BooleanOptionalAction, default=True,
                        help="run differential-dataflow itself as well, if cargo is there")


def main() -> None:
    """Run the original alone from the command line, in steps of 1, 10, 100, ... rounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", choices=[name for name in PROGRAMS if name != "skip_level"])
    parser.add_argument("sizes", nargs="+", type=size, metavar="NODES:EDGES")
    parser.add_argument("--changes", type=int, default=100_000, help="replacements in each row")
    parser.add_argument("--folder", help="where generated graphs go; a temporary one if not given")
    options = parser.parse_args()
    original = Original.built()
    rows = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for nodes, edges in options.sizes:
            graph = write_graph(folder, nodes, edges, options.changes)
            changes = graph.write_changes(options.changes) if options.changes else None
            batches = [10**power for power in range(3, 7) if 10**power <= options.changes] or [0]
            for batch in batches:
                for workers in WORKERS:
                    shapes = [(batch, options.changes // batch)] if batch else []
                    result = original.run(options.program, graph.path, workers, changes, shapes)
                    step = result["steps"][0] if batch else {}
                    row = {"nodes": nodes, "edges": edges, "workers": workers, "batch": batch}
                    row |= {name: result[name] for name in ("read_seconds", "load_seconds")}
                    row |= {name: step.get(name) for name in ("steps", "seconds", "median_ms")}
                    rows.append({**row, "peak_gib": result["peak_gib"]})
                    print(rows[-1], flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
