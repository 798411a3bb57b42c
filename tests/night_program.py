"""Run by ci/nights: jobs with sources and sinks are killed, or fail, at each of their operations.

After each of them the job is opened again and catches up. Then:

    the sum of the target's updates  =  the view, computed anew from the whole source
    an epoch that comes twice is the same both times
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import crashes
from crashes import operations
from durability_program import Options, Tally, demand, small_batches
from pyspark.sql import functions as F
from pyspark.sql import types as T

import pyspark_diff
from pyspark_diff import Dataflow, DiffError, SinkError, SourceError
from pyspark_diff.sinks import Sink, change_log, snapshot
from pyspark_diff.sources import Deletes, Inserts, Reading, Removes, Source, Upserts, files

ORDERS = "id long, customer long, amount long"
CUSTOMERS = "customer long, region string"
REGIONS = ("north", "south", "east")
#: Nights of one run, three for each process.
NIGHTS, PROCESSES = 6, 3

Row = tuple[Any, ...]


# A shop whose tables change, and the view of them.


class Feed:
    """Changes of two tables, as lines of a file each.

    The newest line of a customer replaces older ones. Orders come and go, and an order line
    that is read twice changes the result.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.jsonl"

    def lines(self, name: str) -> list[list[Any]]:
        try:
            text = self.path(name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines()]

    def add(self, name: str, *changes: list[Any]) -> None:
        # As one write, so that no end leaves a part of a line.
        with open(self.path(name), "ab", buffering=0) as file:
            file.write("".join(json.dumps(change) + "\n" for change in changes).encode())

    def night(self, number: int, seed: int = 0) -> None:
        """The changes between two nights: new, changed, same and deleted rows, some twice."""
        chance = random.Random(100 * seed + number)
        orders, customers = [], []
        there = self.orders()
        for _ in range(chance.choice([0, 3, 7])):
            rows = sorted(there.elements())
            if rows and chance.random() < 0.3:
                row = chance.choice(rows)
                orders.append(["d", *row])
                there[row] -= 1
            else:
                orders.append(["u", *(chance.randrange(most) for most in (12, 4, 5))])
            key = chance.randrange(4)
            customers.append(
                ["d", key] if chance.random() < 0.25 else ["u", key, chance.choice(REGIONS)]
            )
            customers += customers[-1:] * chance.randrange(2)
        self.add("orders", *orders)
        self.add("customers", *customers)

    def orders(self) -> Counter[Row]:
        counts: Counter[Row] = Counter()
        for op, *row in self.lines("orders"):
            counts[tuple(row)] += -1 if op == "d" else 1
        return counts

    def customers(self) -> dict[int, str]:
        regions: dict[int, str] = {}
        for op, key, *region in self.lines("customers"):
            if op == "d":
                regions.pop(key, None)
            else:
                (regions[key],) = region
        return regions


def view(feed: Feed) -> Counter[Row]:
    """The orders and amounts of each region, computed from the whole source."""
    customers, amounts, count = feed.customers(), Counter[str](), Counter[str]()
    for (_, customer, amount), orders in feed.orders().items():
        if customer in customers and orders:
            amounts[customers[customer]] += amount * orders
            count[customers[customer]] += orders
    return Counter({(region, count[region], amounts[region]): 1 for region in count})


class Lines(Source):
    """The lines of one table; the offset is how many were read."""

    def __init__(self, feed: Feed, name: str, schema: str, check: Callable[[], None]):
        self._feed, self._name, self._check = feed, name, check
        self._struct = T.StructType.fromDDL(schema)
        self.key = ("customer",) if name == "customers" else ()

    def columns(self, spark: Any) -> T.StructType:
        return self._struct

    def read(self, spark: Any, offset: Any) -> Reading | None:
        self._check()
        lines = self._feed.lines(self._name)
        begin = offset or 0
        demand(begin <= len(lines), f"{begin} lines were read of {len(lines)}")
        if begin == len(lines):
            return None
        if not self.key:
            rows = [[tuple(row) for op, *row in lines[begin:] if (op == "d") == d] for d in (0, 1)]
            return Reading(len(lines), [Inserts(rows[0]), Removes(rows[1])])
        last = {line[1]: line for line in lines[begin:]}
        gone = [(key,) for key, line in last.items() if line[0] == "d"]
        came = [tuple(line[1:]) for line in last.values() if line[0] != "d"]
        return Reading(len(lines), [Deletes(gone), Upserts(came)])


class Written(Sink):
    """A folder with a file for each epoch."""

    def __init__(self, folder: Path, check: Callable[[], None], behind: Callable[[], None]):
        self._folder, self._check, self._behind = folder, check, behind
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, epoch: Any) -> None:
        self._check()
        rows = sorted(map(list, epoch.changes.collect()))
        path = self._folder / f"{epoch.number:06d}.json"
        if path.exists():
            demand(json.loads(path.read_text()) == rows, f"epoch {epoch.number} is another one")
        others = [int(file.stem) for file in self._folder.glob("*.json") if file != path]
        demand(not (epoch.is_first and others), f"epochs {others} before the first one")
        demand(max(others, default=0) < epoch.number, f"epoch {epoch.number} after {others}")
        new = path.with_suffix(".new")
        new.write_text(json.dumps(rows))
        os.replace(new, path)
        self._behind()


def contents(folder: Path) -> Counter[Row]:
    """The sum of the files of a target."""
    counts: Counter[Row] = Counter()
    for path in sorted(folder.glob("*.json")):
        for *row, _, diff in json.loads(path.read_text()):
            counts[tuple(row)] += diff
    return Counter({row: n for row, n in counts.items() if n})


def nothing() -> None:
    """Where nothing happens."""


class Job:
    """One process of the nightly job, in a folder that has its source, its store and its target."""

    def __init__(
        self, spark: Any, base: Path, reads: Callable[[], None] = nothing,
        writes: Callable[[], None] = nothing, wrote: Callable[[], None] = nothing,
    ):
        self.base, self.feed = base, Feed(base / "source")

        def program(flow: Dataflow) -> None:
            orders = flow.source("orders", Lines(self.feed, "orders", ORDERS, reads))
            customers = flow.source("customers", Lines(self.feed, "customers", CUSTOMERS, reads))
            totals = orders.join(customers, "customer").groupBy("region").agg(
                F.count("*").alias("orders"), F.sum("amount").alias("amount")
            )
            totals.sink("view", Written(base / "target", writes, wrote))

        self.flow = Dataflow.open(
            base / "store", program, spark=spark, runner="local", retain=3, buckets=2
        )

    def catch_up(self) -> None:
        self.flow.catch_up()

    def check(self) -> None:
        actual, wanted = contents(self.base / "target"), view(self.feed)
        demand(actual == wanted, f"the target holds {actual}, not {wanted}")
        wrong = self.flow.verify()
        demand(not wrong, f"files are wrong: {wrong}")


def recovered(spark: Any, base: Path, night: int, seed: int) -> None:
    """Go on after an end, for some nights."""
    job = Job(spark, base)
    try:
        job.catch_up()
        job.check()
        job.feed.night(night + 50, seed)
        job.catch_up()
        job.check()
    finally:
        job.flow.close()
    demand(not (base / "store" / "lock").exists(), "a lock is left")


# The gates.


def kills(spark: Any, folder: Path, options: Options) -> Iterator[Tally]:
    """A kill at each operation on files: of the source, the store and the target."""
    tally = Tally("kills of nights")
    for seed in range(options.seeds):
        base, ends = folder / f"base-{seed}" / "job", []
        base.mkdir(parents=True)
        count, place = 0, [0]

        def handler(what: str, path: str, done: bool, base: Path = base) -> None:
            nonlocal count
            if what in ("fsync", "open") or done:
                return  # a kill leaves the same
            count += 1
            tally.notes["operations"] += 1
            if count % options.stride == (seed + options.first) % options.stride:
                to = folder / f"end-{seed}-{count}" / "job"
                shutil.copytree(base, to)
                ends.append((f"night {place[0]}, before {what} {crashes.short(path)}", to,
                             place[0]))

        with tally.run(f"seed {seed}, without an end"):
            with operations(str(base.parent), handler):
                for process in range(PROCESSES):
                    job = Job(spark, base)
                    for night in range(NIGHTS // PROCESSES):
                        place[0] = process * NIGHTS // PROCESSES + night
                        job.feed.night(place[0], seed)
                        job.catch_up()
                        job.check()
                    job.flow.close()
        for what, to, night in ends:
            with tally.run(f"seed {seed}, {what}"):
                recovered(spark, to, night, seed)
            shutil.rmtree(to.parent)
    yield tally


def failing_calls(spark: Any, folder: Path, options: Options) -> Iterator[Tally]:
    """The k-th call of a source or a sink fails, before or after its work, once or often."""
    for where in "reads", "writes", "wrote":
        tally = Tally(f"calls that fail: {where}")
        for seed in range(options.seeds):
            for number in range(1 + options.first, 12, options.stride):
                for often in 1, 3:
                    calls = [0]

                    def act(number: int = number, often: int = often, calls: Any = calls) -> None:
                        calls[0] += 1
                        if number <= calls[0] < number + often:
                            raise OSError(f"call {calls[0]}")

                    base = folder / f"{where}-{seed}-{number}-{often}"
                    with tally.run(f"seed {seed}, {where}, call {number}, {often} times"):
                        job = Job(spark, base, **{where: act})
                        for night in range(NIGHTS):
                            job.feed.night(night, seed)
                            for _ in range(5):
                                try:
                                    job.catch_up()
                                    break
                                except (SourceError, SinkError) as error:
                                    demand("call " in str(error), str(error))
                                    tally.notes["errors"] += 1
                            job.check()
                        job.flow.close()
                    shutil.rmtree(base, ignore_errors=True)
        yield tally


def sources_that_change(spark: Any, folder: Path, options: Options) -> Iterator[Tally]:
    """A job reports a rewritten, truncated or changed source, and then reads none of its rows."""
    tally = Tally("sources that change under a job")

    def write_rows(name: str, *rows: object, at: Path) -> None:
        (at / name).write_text("\n".join(map(json.dumps, rows)))

    def rewritten(at: Path) -> str | None:
        write_rows("1.json", {"op": "c", "id": 7, "s": "x"}, at=at)
        return "have changed since they were read"

    def truncated(at: Path) -> str | None:
        text = (at / "1.json").read_text()
        (at / "1.json").write_text(text.splitlines()[0])
        return "have changed since they were read"

    def emptied(at: Path) -> str | None:
        (at / "1.json").write_text("")
        return None  # like a removed file: rows that were read from it stay

    def evolved(at: Path) -> str | None:
        write_rows("2.json", {"op": "c", "id": "text", "s": [1]}, at=at)
        return "FAILED_READ_FILE|MALFORMED|malformed|PARSE"

    def vacuumed(at: Path) -> str | None:
        (at / "1.json").unlink()
        return None

    def repeated(at: Path) -> str | None:
        shutil.copy(at / "1.json", at / "2.json")
        return None

    def unknown(at: Path) -> str | None:
        write_rows("2.json", {"op": "merge", "id": 1}, at=at)
        return "op 'merge'"

    for change in rewritten, truncated, emptied, evolved, vacuumed, repeated, unknown:
        at, target = folder / change.__name__ / "rows", folder / change.__name__ / "target"
        at.mkdir(parents=True)
        write_rows("1.json", {"op": "c", "id": 1, "s": "a"}, {"op": "c", "id": 2, "s": "b"}, at=at)

        def program(flow: Dataflow, at: Path = at, target: Path = target) -> None:
            rows = flow.source("rows", files(str(at), "id long, s string", key="id"))
            rows.sink("rows", Written(target, nothing, nothing))

        with tally.run(change.__name__):
            for again in range(2):
                store = folder / change.__name__ / "store"
                with Dataflow.open(store, program, spark=spark, runner="local") as flow:
                    if not again:
                        flow.catch_up()
                        before = (at / "1.json").read_bytes()
                        pattern = change(at)
                    wanted: Counter[Row] = Counter({(1, "a"): 1, (2, "b"): 1})
                    if pattern is None:
                        flow.catch_up()
                    else:
                        try:
                            flow.catch_up()
                        except DiffError as error:
                            matches = any(part in str(error) for part in pattern.split("|"))
                            demand(matches, f"{error} does not match {pattern}")
                        else:
                            demand(False, "nothing was said")
                    demand(contents(target) == wanted, f"{contents(target)}, not {wanted}")
            if pattern is not None:
                # After the repair of the source the job continues.
                (at / "2.json").unlink(missing_ok=True)
                stat = os.stat(at / "1.json")
                (at / "1.json").write_bytes(before)
                os.utime(at / "1.json", ns=(stat.st_atime_ns, stat.st_mtime_ns))
                write_rows("3.json", {"op": "d", "id": 1}, at=at)
                if change in (evolved, unknown):
                    with Dataflow.open(store, program, spark=spark, runner="local") as flow:
                        flow.catch_up()
                    demand(contents(target) == {(2, "b"): 1}, "it does not go on when mended")
    yield tally


def child(base: Path, nights: int) -> None:
    """A process whose sinks are written by Spark; it reports its end."""
    feed = Feed(base / "source")
    spark = pyspark_diff.session("nights", conf={
        "spark.ui.enabled": False, "spark.local.dir": str(base / "local"),
        "spark.sql.shuffle.partitions": 2,
    })
    print("jvm", flush=True)

    def program(flow: Dataflow) -> None:
        orders = flow.source("orders", Lines(feed, "orders", ORDERS, nothing))
        customers = flow.source("customers", Lines(feed, "customers", CUSTOMERS, nothing))
        totals = orders.join(customers, "customer").groupBy("region").agg(
            F.count("*").alias("orders"), F.sum("amount").alias("amount")
        )
        totals.sink("log", change_log(str(base / "log")))
        totals.sink("now", snapshot(str(base / "now")))

    with Dataflow.open(base / "store", program, spark=spark, runner="local") as flow:
        print("opened", flush=True)
        for night in range(nights):
            feed.night(int(time.time() * 1000) % 100_000)
            flow.catch_up()
            print("night", flush=True)
        flow.catch_up()
    log = spark.read.parquet(str(base / "log"))
    total = log.groupBy("region", "orders", "amount").agg(F.sum("diff").alias("n"))
    replayed = Counter({tuple(row)[:3]: row.n for row in total.where("n <> 0").collect()})
    now = Counter(tuple(row) for row in spark.read.parquet(str(base / "now")).collect())
    wanted = view(feed)
    is_right = replayed == wanted == now
    print("answer", "right" if is_right else f"{replayed}, {now}, {wanted}", flush=True)


def real_kills(spark: Any, folder: Path, options: Options) -> Iterator[Tally]:
    """A process and its JVM are killed at random moments while Spark writes its sinks."""
    tally = Tally("kills of processes whose sinks Spark writes")
    chance, base = random.Random(17), folder / "real"
    base.mkdir()
    kills = 0
    while True:
        last = kills >= options.random
        with tally.run(f"kill {kills}"):
            process = subprocess.Popen(
                [sys.executable, __file__, "--child", str(base), "1" if last else "30"],
                stdout=subprocess.PIPE, text=True, start_new_session=True,
                stderr=subprocess.DEVNULL if not last else None,
            )
            assert process.stdout is not None
            wait = chance.choice([1, 2, 3, 5])
            lines = []
            for line in process.stdout:
                lines.append(line.split(maxsplit=1))
                if not last and len(lines) > wait:
                    time.sleep(chance.random() * 2)
                    os.killpg(process.pid, signal.SIGKILL)
                    tally.notes[f"while {lines[-1][0].strip()}"] += 1
            process.wait()
            kills += 1
            if last:
                demand(lines[-1] == ["answer", "right\n"], f"it ends with {lines[-1]}")
        if last:
            break
    yield tally


GATES: dict[str, Callable[[Any, Path, Options], Iterator[Tally]]] = {
    "kills": kills, "calls": failing_calls, "sources": sources_that_change, "real": real_kills,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="ci/nights", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--only", choices=GATES, action="append")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--quick", action="store_true", help="every seventh place, three kills")
    parser.add_argument("--stride", type=int, default=1, help="only every so many-th place")
    parser.add_argument(
        "--first", type=int, default=0, metavar="K",
        help="the place to begin with, less than the stride: all of them together are a whole run",
    )
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(Path(arguments.child[0]), int(arguments.child[1]))
        return 0
    options = Options(
        seeds=1 if arguments.quick else arguments.seeds,
        stride=7 if arguments.quick else arguments.stride,
        first=arguments.first,
        random=3 if arguments.quick else arguments.kills,
    )
    failed = False
    with tempfile.TemporaryDirectory() as folder, small_batches():
        spark = pyspark_diff.session("nights", conf={
            "spark.ui.enabled": False, "spark.local.dir": f"{folder}/local",
            "spark.sql.shuffle.partitions": 2,
        })
        spark.sparkContext.setLogLevel("OFF")  # what fails here is meant to
        for name in arguments.only or GATES:
            place = Path(folder) / name
            place.mkdir()
            for tally in GATES[name](spark, place, options):
                print(tally.line(), flush=True)
                for message in tally.wrong[:10]:
                    print(f"  {message}", flush=True)
                failed = failed or bool(tally.wrong)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
