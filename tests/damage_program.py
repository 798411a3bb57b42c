"""Run by ci/damage: stores are damaged, fought over by writers, and used for long.

    T5   a damage is found before anything of it is used, or makes no difference
    T6   of several writers one at a time has the store; each step that was reported is there once
    T10  whatever is done to a dataflow, and however often it ends, a model tells what it holds
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from pyspark_diff.dataflow import durable
from pyspark_diff.spark.session import session
from pyspark_diff.trace import manifest, storage
from pyspark_diff.trace.commits import Commits

#: By their names what is proved: takes a session, a folder, whether to be quick, and a seed; gives
#: how many runs there were, how many were right, and more to be told.
Proof = Callable[[Any, str, bool, int], tuple[int, int, str]]


def corruption(spark: Any, folder: str, quick: bool, seed: int) -> tuple[int, int, str]:
    import damaged_stores

    found = damaged_stores.sweep(spark, folder, 60 if quick else 1000, seed)
    runs = sum(found.values())
    return runs, runs - found["wrong"], str(dict(found))


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
        found = long_run.run(spark, f"{folder}/store", actions, seed)
    except long_run.Wrong as error:
        print(f"WRONG: {error}", flush=True)
        return actions, 0, ""
    return actions, actions, str(dict(found))


PROOFS: dict[str, tuple[str, Proof]] = {
    "T5": ("corruption sweep", corruption),
    "T6": ("writers", fights),
    "T10": ("long run", long),
}


#: Faults of the library that have to be found: what is put in the place of what.
FAULTS: dict[str, tuple[object, str, Any]] = {
    "files are not compared with their names": (storage, "_check", lambda path: None),
    "headers are not compared with their digests": (manifest, "_digest", lambda data: bytes(16)),
    "nobody looks at the hint": (Commits, "_hint", lambda self: -1),
    "what lies in the place of a segment is taken for it": (
        Commits, "segment_bytes",
        lambda self, number, segment: self.objects.read_range(
            f"commits/{number:016d}.commit", segment.offset, segment.length),
    ),
    "any store will do": (
        Commits, "_decoded",
        lambda self, number: manifest.decode(
            self.objects.read(f"commits/{number:016d}.commit"), number),
    ),
    "verify looks at nothing": (durable, "verify", lambda *_, **__: ["all is wrong"]),
}


def self_check(spark: Any, folder: str) -> int:
    """See that each fault is found; gives how many are not."""
    import damaged_stores

    missed = 0
    for number, (name, place) in enumerate(FAULTS.items()):
        started, told = time.monotonic(), list[str]()
        with mock.patch.object(*place):
            try:
                damaged_stores.sweep(spark, f"{folder}/{number}", 120, 0, told.append)
            except Exception as error:
                told.append(f"WRONG: {error!r}")
        missed += not told
        print(
            f"{'found' if told else 'MISSED'}: {name}, {len(told)} of 120 runs, "
            f"{time.monotonic() - started:.0f} s", flush=True,
        )
    return missed


def spark_in(folder: str) -> Any:
    """A session that leaves nothing behind."""
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
    return spark


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="ci/damage", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="the small forms")
    parser.add_argument(
        "--self-check", action="store_true", help="faults of the library, which have to be found"
    )
    parser.add_argument("--only", action="append", choices=sorted(PROOFS), default=[])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="damage-") as folder:
        spark = spark_in(folder)
        try:
            if options.self_check:
                return 1 if self_check(spark, folder) else 0
            for name in options.only or PROOFS:
                what, proof = PROOFS[name]
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
