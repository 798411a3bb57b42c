"""Run by ci/damage: damage stores, let several writers compete for one, and use one for long.

    T5   a damage is detected before a read uses it, or makes no difference

    T6   one writer at a time owns a store, and the store has each acknowledged step once

    T7   a random program has the outputs of an oracle, also if its store is closed and reopened

    T10  after any actions and any number of restarts, a dataflow has the contents of a model
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from pyspark_diff import StaleWarning
from pyspark_diff.dataflow import durable
from pyspark_diff.engine import compaction
from pyspark_diff.engine.compaction import Compaction
from pyspark_diff.spark.session import session
from pyspark_diff.trace import manifest, read_holds, storage
from pyspark_diff.trace.commits import Commits
from pyspark_diff.trace.listing import Hint, Listing
from pyspark_diff.trace.manifest import Commit, Segment, name_of

#: The number of blocks of T7, of a hundred programs each.
T7_BLOCKS = 20
#: A proof takes a session, a folder, whether to be quick, and a seed. It returns the number of
#: runs, the number of right runs, and a text about them.
Proof = Callable[[Any, str, bool, int], tuple[int, int, str]]


def corruption(spark: Any, folder: str, quick: bool, seed: int) -> tuple[int, int, str]:
    import damaged_stores

    outcomes = damaged_stores.sweep(spark, folder, 60 if quick else 1000, seed)
    runs = sum(outcomes.values())
    return runs, runs - outcomes["wrong"], str(dict(outcomes))


def fights(spark: Any, folder: str, quick: bool, seed: int) -> tuple[int, int, str]:
    import writers

    runs: list[tuple[Callable[..., Counter[str]], tuple[object, ...]]] = [
        (writers.paused, (phase,)) for phase in writers.PHASES
    ]
    runs += [(writers.threads, (2, 5 if quick else 25))]
    runs += [
        (writers.processes, arguments)
        for arguments in ([(3, 6)] if quick else [(2, 25), (4, 25), (8, 100)])
    ]
    right, total = 0, Counter[str]()
    for number, (run, arguments) in enumerate(runs):
        try:
            total += run(spark, f"{folder}/{number}", *arguments)
            right += 1
        except writers.Wrong as error:
            print(f"WRONG: {run.__name__}{arguments}: {error}", flush=True)
    return len(runs), right, str(dict(total))


def long(spark: Any, folder: str, quick: bool, seed: int) -> tuple[int, int, str]:
    import long_run

    actions = 300 if quick else 10_000
    try:
        counts = long_run.run(spark, f"{folder}/store", actions, seed)
    except long_run.Wrong as error:
        print(f"WRONG: {error}", flush=True)
        return actions, 0, ""
    return actions, actions, str(dict(counts))


def forms(
    spark: Any, folder: str, quick: bool, seed: int, blocks: Sequence[int] = range(T7_BLOCKS)
) -> tuple[int, int, str]:
    import random_forms

    counts, wrong = Counter[str](), 0
    blocks = blocks[:1] if quick else blocks
    for block in blocks:
        try:
            counts += random_forms.run(spark, folder, 100, seed * T7_BLOCKS + block)
        except random_forms.Wrong as error:
            print(f"WRONG: {error}", flush=True)
            wrong += 100
        print(f"T7 {counts['programs']} of {100 * len(blocks)} programs, {wrong} wrong", flush=True)
    return 100 * len(blocks), 100 * len(blocks) - wrong, str(dict(counts))


PROOFS: dict[str, tuple[str, Proof]] = {
    "T5": ("corruption sweep", corruption),
    "T6": ("writers", fights),
    "T7": ("random programs", forms),
    "T10": ("long run", long),
}


@dataclass
class Fault:
    """A seeded fault of the library that a proof must detect.

    Parameters
    ----------
    where : object
    what : str
        An attribute of that object.
    instead : callable
        The faulty function: takes the true one and its arguments.
    by : str
        The proof that must detect it.
    met : int
        The number of its calls.
    """

    where: object
    what: str
    instead: Callable[..., Any]
    by: str = "T5"
    met: int = 0

    @contextmanager
    def there(self) -> Iterator[None]:
        """Seed the fault; an `AttributeError` if the library has no such attribute."""
        true = getattr(self.where, self.what)

        # A function, so that it becomes a method if it replaces one.
        def instead(*arguments: Any, **named: Any) -> Any:
            self.met += 1
            return self.instead(true, *arguments, **named)

        with mock.patch.object(self.where, self.what, instead):
            yield


def _read_unseen(true: Any, commits: Commits, number: int, segment: Segment) -> bytes:
    return commits.objects.read_range(name_of(number), segment.offset, segment.length)


def _any_store(true: Any, commits: Commits, number: int) -> Any:
    return manifest.decode(commits.objects.read(name_of(number)), number)


def _mine(true: Any, commits: Commits, commit: Commit, *arguments: Any) -> None:
    if not commit.previous:
        return true(commits, commit, *arguments)
    commits.last, commits._in_doubt = commit, None


def _without_holds(true: Any, compaction: Compaction, *arguments: Any) -> Any:
    return true(replace(compaction, settings=replace(compaction.settings, holds={})), *arguments)


FAULTS: dict[str, Fault] = {
    "files are not compared with their names": Fault(
        storage, "_checked_path", lambda true, path: path),
    "headers are not compared with their digests": Fault(
        manifest, "_digest", lambda true, data: bytes(16)),
    "nobody looks at the hint": Fault(Listing, "hint", lambda true, listing: Hint(-1, "")),
    "what lies in the place of a segment is taken for it": Fault(
        Commits, "segment_bytes", _read_unseen),
    "any store will do": Fault(Commits, "_decoded", _any_store),
    "verify looks at nothing": Fault(durable, "verify", lambda true, *_, **__: []),
    "whoever's commit is there is taken for one's own": Fault(Commits, "_judge", _mine, "T6"),
    "times are forgotten one too early": Fault(
        compaction, "last_before", lambda true, frontier: frontier, "T10"),
    "holds of users are not looked at": Fault(Compaction, "hold", _without_holds, "T10"),
    "holds of readers are not looked at": Fault(
        read_holds, "stored_holds", lambda true, *_: ([], []), "T10"),
    "payloads that others use are retired": Fault(
        manifest, "payload_of", lambda true, commit, data: manifest.tombstone_of(commit), "T10"),
}


def found_by(proof: str, spark: Any, folder: str) -> str:
    """The first failure of a small form of a proof, or an empty text."""
    import damaged_stores
    import long_run
    import writers

    def stop(text: str) -> None:
        raise damaged_stores.Wrong(text)

    try:
        if proof == "T5":
            damaged_stores.sweep(spark, folder, 120, 0, stop)
        elif proof == "T6":
            writers.threads(spark, folder, 2, 5)
        else:
            long_run.run(spark, folder, 300, 0)
    except damaged_stores.Wrong as error:
        return str(error)
    return ""


def self_check(spark: Any, folder: str) -> int:
    """Check that a proof detects each fault; returns the number of undetected ones."""
    missed = 0
    for number, (name, fault) in enumerate(FAULTS.items()):
        started = time.monotonic()
        with fault.there():
            message = found_by(fault.by, spark, f"{folder}/{number}")
        is_detected = bool(message and fault.met)
        missed += not is_detected
        print(
            f"{'found' if is_detected else 'MISSED'} by {fault.by}: {name}, met {fault.met} times, "
            f"{time.monotonic() - started:.0f} s; {message[:300]}", flush=True,
        )
    print(f"{len(FAULTS)} faults, {len(FAULTS) - missed} found")
    return missed


def spark_in(folder: str) -> Any:
    """A session with all its files in a folder."""
    spark = session(
        "ci/damage", master="local[2]", memory="2g",
        conf={
            "spark.sql.shuffle.partitions": 2,
            "spark.ui.enabled": False,
            "spark.local.dir": f"{folder}/local",
            "spark.sql.warehouse.dir": f"{folder}/warehouse",
        },
    )
    spark.sparkContext.setLogLevel("OFF")
    logging.getLogger("pyspark_diff").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore", StaleWarning)
    return spark


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="ci/damage", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="the small forms")
    parser.add_argument(
        "--self-check", action="store_true", help="faults of the library, which have to be found"
    )
    parser.add_argument("--only", action="append", choices=sorted(PROOFS), default=[])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--blocks", type=int, nargs=2, default=(0, T7_BLOCKS), metavar=("FIRST", "END"),
        help=f"only these hundreds of the programs of T7, of {T7_BLOCKS}",
    )
    options = parser.parse_args(arguments)
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="damage-") as folder:
        spark = spark_in(folder)
        try:
            if options.self_check:
                return 1 if self_check(spark, folder) else 0
            for name in options.only or PROOFS:
                what, proof = PROOFS[name]
                if proof is forms:
                    proof = partial(forms, blocks=range(*options.blocks))
                started = time.monotonic()
                Path(folder, name).mkdir()
                runs, right, more = proof(spark, f"{folder}/{name}", options.quick, options.seed)
                wrong += runs - right
                print(
                    f"{name} {what}: {runs} runs, {right} right, "
                    f"{time.monotonic() - started:.0f} s; {more}", flush=True,
                )
        finally:
            spark.stop()
    print("all right" if not wrong else f"{wrong} WRONG")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
