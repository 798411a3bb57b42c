"""Run by ci/views: kills of processes that refresh three chained views, in each phase.

    each version of a target  =  the batch answer at the source versions in its commit
    after the next refresh    =  the batch answer at the present source versions

Each commit of a target has the epoch of its sink, and no epoch has two commits.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from view_program import (
    ENDS,
    FAULTS,
    PHASES,
    QUERIES,
    SOURCES,
    Aim,
    Job,
    address_of,
    refresh_in,
    spark_in,
    table_folder,
)

PROGRAM = Path(__file__).parent / "view_program.py"
#: The number of columns of each source.
COLUMNS = {"orders": 3, "customers": 2}
NAMES = {name: name for name in (*SOURCES, *QUERIES)}
FEED = "delta.enableChangeDataFeed = true"
#: Seconds after which a process that has not ended is reported.
SECONDS_MAX = 120
#: The rounds with one store, before the next begins with a first load.
ROUNDS_OF_A_STORE = 12
#: The refreshes of a round after its kills; Delta may refuse a commit next to that of a statement
#: which the killed process left in the JVM.
REFRESHES_MAX = 3
#: The ends of a campaign, by their shares: a JVM takes half a minute to its first refresh.
ALL = [*["driver"] * 10, "JVM", "both", "Ctrl-C"]
#: The kills within which a seeded fault must be reported.
KILLS_OF_A_FAULT = 30


class Wrong(Exception):
    """A wrong answer, or an error after which the views do not continue."""


class Host:
    """A process with a JVM, to which the processes of a campaign connect. It holds state."""

    def __init__(self, folder: Path):
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(folder)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        self._address: tuple[str, str, int] | None = None

    def address(self) -> tuple[str, str, int]:
        """The port, the secret and the process of the JVM."""
        if self._address is None:
            assert self._process.stdout is not None
            port, secret, pid = self._process.stdout.readline().split()
            self._address = port, secret, int(pid)
        return self._address

    def close(self) -> None:
        try:
            os.kill(self.address()[2], signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.kill()
        self._process.wait()


@dataclass(frozen=True)
class Outcome:
    """The result of a process.

    Parameters
    ----------
    ended : bool
        Whether the process came to its aim.
    inside : bool
        Whether the end was inside the phase.
    versions : mapping or None
        The source versions after a refresh that succeeded.
    """

    ended: bool
    inside: bool
    versions: Mapping[str, Any] | None
    error: str


class Campaign:
    """Kills of processes, and their counts. It holds state."""

    def __init__(self, folder: Path, seed: int, ends: Sequence[str]):
        self._folder, self._draw, self._ends = folder, random.Random(seed), ends
        self._fault = ""
        #: The JVM of the next kill of a JVM; the other processes share that of this process.
        self._spare = Host(folder) if {"JVM", "both"} & set(ends) else None
        self._spark = spark_in(folder)
        self._shared = address_of(self._spark)
        self._processes = multiprocessing.get_context("forkserver")
        self._processes.set_forkserver_preload(["view_program"])
        #: The seconds and calls of the last visit of each phase.
        self._sizes = dict.fromkeys(PHASES, (0.01, 10))
        self._seen: dict[str, int] = {}
        self._epochs: set[tuple[str, str, int]] = set()
        self._rounds, self._database = 0, ""
        self.kills: Counter[tuple[str, str, bool]] = Counter()
        self.counts: Counter[str] = Counter()

    def close(self) -> None:
        if self._spare is not None:
            self._spare.close()
        self._spark.stop()

    def begin(self, fault: str) -> None:
        """Begin a store with a seeded fault of the library."""
        self._fault, self._rounds = fault, -(-self._rounds // ROUNDS_OF_A_STORE) * ROUNDS_OF_A_STORE
        self.kills.clear()

    def round(self) -> None:
        """Change a source, kill one to three processes, refresh, and compare the targets."""
        first = self._rounds % ROUNDS_OF_A_STORE == 0
        if first:
            self._new_database()
        self._rounds += 1
        self._change()
        rebuild = not first and self._draw.random() < 0.15
        aims = [self._aim() for _ in range(self._draw.choice([1, 2, 3, 3]))]
        for number, aim in enumerate(aims):
            if number and self._draw.random() < 0.5:
                self._change()
            outcome = self._run(rebuild=rebuild and number == 0, aim=aim)
            if outcome.error and "JVM" not in ENDS[aim.end]:
                self._count_error("a refresh next to an aborted one failed", outcome.error)
            if outcome.ended:
                self.kills[aim.phase, aim.end, outcome.inside] += 1
        if self._draw.random() < 0.5:
            self._change()
        self._finish(aims)

    def _finish(self, aims: list[Aim]) -> None:
        """Refresh in a new process, and compare the targets."""
        for number in range(REFRESHES_MAX):
            outcome = self._run()
            if outcome.versions is not None:
                break
            if number + 1 == REFRESHES_MAX:
                raise Wrong(f"no refresh succeeds after {aims}: {outcome.error}")
            self._count_error("a refresh failed, and was repeated", outcome.error)
        present = {f"spark_catalog.{self._database}.{name}": self._last(name) for name in SOURCES}
        if outcome.versions != present:
            raise Wrong(f"the record has the sources {outcome.versions}, not {present}, {aims}")
        self._compare(present, aims)
        self.counts["rounds"] += 1

    def _count_error(self, words: str, error: str) -> None:
        self.counts[f"{words}: {error.strip().splitlines()[-1][:400]}"] += 1

    def _new_database(self) -> None:
        if self._database:
            shutil.rmtree(table_folder(self._folder, self._database, "").parent)
        self._database = f"shop_{self._rounds}"
        self._seen = dict.fromkeys(QUERIES, -1)
        name, spark = self._database, self._spark
        spark.sql(f"CREATE DATABASE {name}")
        spark.sql(f"CREATE TABLE {name}.orders (id INT, customer INT, amount INT) USING delta "
                  f"TBLPROPERTIES ({FEED}, delta.enableDeletionVectors = false)")
        spark.sql(f"CREATE TABLE {name}.customers (customer INT, region STRING) USING delta "
                  f"TBLPROPERTIES ({FEED})")
        spark.sql(f"INSERT INTO {name}.customers VALUES (0, 'a'), (1, 'b'), (2, 'a'), (3, 'c')")
        spark.sql(f"INSERT INTO {name}.orders VALUES (0, 0, 3), (1, 1, 5), (2, 2, 4), (3, 3, 1)")
        # Spark merges into a table with deletion vectors.
        spark.sql(f"CREATE TABLE {name}.bands (band BIGINT, n BIGINT, total BIGINT) USING delta "
                  f"TBLPROPERTIES ({FEED}, delta.enableDeletionVectors = true)")

    def _change(self) -> None:
        draw, name = self._draw, self._database
        new, third, last = draw.randrange(50), draw.randrange(3), 1 + draw.randrange(5)
        insert = f"INSERT INTO {name}.orders VALUES ({new}, {new % 4}, {last}), ({new}, 1, 1)"
        self._spark.sql(draw.choice([
            insert, insert,
            f"UPDATE {name}.orders SET amount = amount + 1 WHERE id % 3 = {third}",
            f"DELETE FROM {name}.orders WHERE id % 4 = {draw.randrange(4)} AND amount > 2",
            f"UPDATE {name}.customers SET region = '{'abc'[third]}' WHERE customer = {new % 4}",
        ]))

    def _aim(self) -> Aim:
        """A moment of one of the phases with the fewest kills."""
        sums = {phase: sum(number for kind, number in self.kills.items() if kind[0] == phase)
                for phase in PHASES}
        phase = self._draw.choice([
            phase for phase in PHASES if sums[phase] <= min(sums.values()) + 1
        ])
        _, calls = self._sizes[phase]
        visit = self._draw.choice([1, 2, 3, 4]) if phase in ("between", "record") else 1
        call = self._draw.randrange(calls + 2) if self._draw.random() < 0.6 else None
        return Aim(phase, visit, call, self._draw.choice(self._ends))

    def _run(self, rebuild: bool = False, aim: Aim | None = None) -> Outcome:
        """Run a process to its end, and start the next JVM after a kill of one."""
        notes, other = self._processes.Pipe()
        counts = aim is None and self._rounds % 4 == 1
        job = Job(self._folder, self._database, rebuild, aim, self._fault, counts)
        spare = self._spare if aim is not None and "JVM" in ENDS[aim.end] else None
        address = self._shared if spare is None else spare.address()
        process = self._processes.Process(target=refresh_in, args=(job, address, other))
        process.start()
        other.close()
        try:
            outcome = self._follow(process, notes, aim, address[2])
        finally:
            process.kill()
            process.join()
        if outcome.ended and spare is not None:
            spare.close()
            self._spare = Host(self._folder)
        return outcome

    def _follow(self, process: Any, notes: Any, aim: Aim | None, jvm: int) -> Outcome:
        """Read the notes of a process, and end it at an aim that has no number of a call."""
        outcome, began = Outcome(False, True, None, ""), time.monotonic()
        while True:
            if not notes.poll(SECONDS_MAX):
                raise Wrong(f"a process did not end in {SECONDS_MAX} s, {aim}, {outcome}, "
                            f"after {time.monotonic() - began:.0f} s")
            try:
                note, *values = notes.recv()
            except EOFError:
                return outcome
            if note == "took":
                phase, seconds, calls = values
                self._sizes[phase] = seconds, calls or self._sizes[phase][1]
            elif note == "ended":
                outcome = replace(outcome, ended=True)
            elif note == "aimed" and aim is not None and aim.call is None:
                left = notes.poll(self._draw.random() * self._sizes[aim.phase][0])
                outcome = replace(outcome, ended=_signal(process.pid, jvm, aim), inside=not left)
            elif note == "done":
                outcome = replace(outcome, versions=values[0])
            elif note == "failed":
                outcome = replace(outcome, error=values[0])

    def _log(self, name: str) -> Path:
        return table_folder(self._folder, self._database, name) / "_delta_log"

    def _last(self, name: str) -> int:
        return max((int(file.stem) for file in self._log(name).glob("*.json")
                    if file.stem.isdigit()), default=-1)

    def _compare(self, present: Mapping[str, int], aims: list[Aim]) -> None:
        """Compare each new version of each target with the batch answer at its source versions."""
        for target in QUERIES:
            first, last = self._seen[target], self._last(target)
            before = self._rows(target, first) if first >= 0 else Counter()
            for version in range(first + 1, last + 1):
                sources, rows = self._sources_of(target, version), self._rows(target, version)
                # A commit of properties has no source versions.
                expected = before if sources is None else self._answer(target, sources)
                if rows != expected:
                    raise Wrong(f"a reader of {target} at version {version} sees {rows}, and the "
                                f"answer at {sources} is {expected}, {aims}")
                before = rows
                self.counts["versions of targets compared"] += 1
            expected = self._answer(target, tuple(present.values()))
            if before != expected:
                raise Wrong(f"{target} has {before}, and the answer at {present} is {expected}, "
                            f"{aims}")
            self._seen[target] = last

    def _sources_of(self, target: str, version: int) -> tuple[int, ...] | None:
        """The source versions in a commit; None if a commit has none."""
        for line in (self._log(target) / f"{version:020d}.json").read_text().splitlines():
            text = json.loads(line).get("commitInfo", {}).get("userMetadata")
            if text is not None:
                entries = json.loads(text)
                epoch = target, entries["sink"], entries["epoch"]
                if epoch in self._epochs:
                    raise Wrong(f"{target} has two commits of {epoch}")
                self._epochs.add(epoch)
                versions = {name.split(".")[-1]: offset["version"]
                            for name, offset in entries["sources"].items()}
                return tuple(versions[name] for name in SOURCES)
        return None

    def _table(self, name: str, version: int) -> list[tuple[Any, ...]]:
        """The rows of a version of a table, as a reader that is not Spark sees them."""
        table = DeltaTable(str(self._log(name).parent), version=version)
        columns = pa.table(table.scan()).select([field.name for field in table.schema().fields])
        return list(zip(*(column.to_pylist() for column in columns.columns)))

    def _rows(self, name: str, version: int) -> Counter[tuple[Any, ...]]:
        return Counter(self._table(name, version))

    def _answer(self, target: str, sources: tuple[int, ...]) -> Counter[tuple[Any, ...]]:
        """The answer of SQLite to the query of a target at some source versions."""
        with closing(sqlite3.connect(":memory:")) as batch:
            batch.execute("CREATE TABLE orders (id, customer, amount)")
            batch.execute("CREATE TABLE customers (customer, region)")
            for name, version in zip(SOURCES, sources):
                rows = self._table(name, version)
                marks = ", ".join("?" * COLUMNS[name])
                batch.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
            for name, query in QUERIES.items():
                batch.execute(f"CREATE VIEW {name} AS {query.format(**NAMES)}")
            return Counter(batch.execute(f"SELECT * FROM {target}").fetchall())


def _signal(driver: int, jvm: int, aim: Aim) -> bool:
    """End a process, its JVM or both; returns whether they were running."""
    try:
        if aim.end == "Ctrl-C":
            os.kill(driver, signal.SIGINT)
        for name in ENDS[aim.end]:
            os.kill({"JVM": jvm, "driver": driver}[name], signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def report(campaign: Campaign) -> None:
    """Print the kills by phase and kind."""
    print(f"{'phase':16}" + "".join(f"{end:>8}" for end in ENDS) + "  just after")
    for phase in PHASES:
        numbers = [sum(campaign.kills[phase, end, inside] for inside in (True, False))
                   for end in ENDS]
        late = sum(campaign.kills[phase, end, False] for end in ENDS)
        print(f"{phase:16}" + "".join(f"{number:8}" for number in numbers) + f"{late:12}")
    for words, number in campaign.counts.items():
        print(f"{number:6} {words}")


def killed(campaign: Campaign) -> int:
    return sum(number for kind, number in campaign.kills.items() if kind[1] != "Ctrl-C")


def run(kills: int, seed: int, minutes: float) -> int:
    """Kill that many processes; returns the number of wrong answers."""
    subprocess.run([sys.executable, "-m", "pyspark_diff", "warm_up"], check=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        campaign = Campaign(Path(folder), seed, ALL)
        try:
            while killed(campaign) < kills and time.monotonic() - began < 60 * minutes:
                campaign.round()
                print(f"{killed(campaign)} kills, {time.monotonic() - began:.0f} s", flush=True)
        except Wrong as error:
            print("WRONG", error)
            return 1
        finally:
            report(campaign)
            campaign.close()
    return 0


def self_check(seed: int) -> int:
    """Seed faults; returns the number of faults that no kill reports."""
    missed = 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        campaign = Campaign(Path(folder), seed, ["driver"])
        for fault, (_, words) in FAULTS.items():
            campaign.begin(fault)
            try:
                while killed(campaign) < KILLS_OF_A_FAULT:
                    campaign.round()
                outcome = "MISSED"
            except Wrong as error:
                outcome = "reported" if words in str(error) else "MISSED, another error"
                print(str(error)[-800:])
            print(f"{fault}: {outcome} after {killed(campaign)} kills", flush=True)
            missed += outcome != "reported"
        campaign.close()
    return missed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kills", type=int, nargs="?", default=200)
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("--minutes", type=float, default=1e9, help="end after that time")
    parser.add_argument(
        "--self-check", action="store_true", help="show that seeded faults are reported"
    )
    options = parser.parse_args()
    if options.self_check:
        sys.exit(self_check(options.seed))
    sys.exit(run(options.kills, options.seed, options.minutes))
