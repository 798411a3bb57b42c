"""Small stores as each version of the format has written them: tests/golden/<format>/.

    python tests/golden_stores.py     makes those of this version, if there are none yet

Once a version is released its stores are never made again: every later version must open them.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark_diff import Dataflow, thresholds
from pyspark_diff.trace.manifest import FORMAT

GOLDEN = Path(__file__).parent / "golden"


def program(flow: Dataflow) -> None:
    """No Python functions: their byte code differs from one Python to the next."""
    people, _ = flow.input("people", "k long, name string")
    visits, _ = flow.input("visits", "k long, place string, at timestamp")
    prices, _ = flow.input("prices", "item string, price decimal(10,2)", key="item")
    people.join(visits.select("k", "place"), "k").keep("joined")
    visits.select("place").count().keep("places")
    prices.keep("prices")


def open_store(spark: Any, root: str) -> Dataflow:
    return Dataflow.open(
        root, program, spark=spark, runner="local", buckets=2, retain=3, keep_history=True
    )


#: The collections of the store at the last time.
EXPECTED: dict[str, Counter[tuple[Any, ...]]] = {
    "joined": Counter({
        (n, f"name {n}", f"place {n % 3}"): 1 for n in range(10) if n != 4
    }),
    "places": Counter({("place 0", 4): 1, ("place 1", 3): 1, ("place 2", 3): 1}),
}


def make(spark: Any, root: str) -> None:
    """A store with files, small batches, updates that wait, and retired commits."""
    from datetime import datetime, timezone
    from decimal import Decimal

    with thresholds.using(in_memory_rows_max=4):
        for time in range(10):
            with open_store(spark, root) as flow:
                flow.session("people").insert([(time, f"name {time}")])
                flow.session("visits").insert([
                    (time, f"place {time % 3}", datetime(2024, 1, 1, time, tzinfo=timezone.utc))
                ])
                flow.session("prices").upsert([("tea", Decimal(time)), (f"item {time}", None)])
                if time == 6:
                    flow.session("people").remove([(4, "name 4")])
                flow.advance_to(time + 1)
        with open_store(spark, root) as flow:
            flow.session("people").insert([(3, "waits")])
            flow.session("people").advance_to(20)
            flow.step(token="the last")


def main() -> None:
    from damage_program import spark_in

    root = GOLDEN / str(FORMAT) / "store"
    if root.exists():
        sys.exit(f"{root} is there already")
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        make(spark_in(folder), str(root))
    print(f"made {root}: {sum(path.is_file() for path in root.rglob('*'))} files")


if __name__ == "__main__":
    main()
