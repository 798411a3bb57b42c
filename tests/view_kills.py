"""Run by ci/views: ends of a process that refreshes chained views, at every phase.

    ci/views 200 SEED

After each kill the targets are compared with plain Spark, once the next process has refreshed.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from view_program import ENDS, PHASES, VIEWS, group_in, spark_in, tables_in

PROGRAM = Path(__file__).parent / "view_program.py"
FEED = "USING delta TBLPROPERTIES (delta.enableChangeDataFeed = true)"


def create(spark) -> None:
    spark.sql("CREATE DATABASE IF NOT EXISTS shop")
    spark.sql(f"CREATE TABLE shop.orders (id INT, customer INT, amount INT) {FEED}")
    spark.sql(f"CREATE TABLE shop.customers (customer INT, region STRING) {FEED}")
    spark.sql("INSERT INTO shop.customers VALUES (0, 'a'), (1, 'b'), (2, 'a'), (3, 'c')")


def rows(spark, table: str) -> Counter:
    return Counter(map(tuple, spark.read.table(table).collect()))


def end_and_check(spark, folder: Path, draw: random.Random) -> str | None:
    """Change a source, end a refresh at a drawn phase, refresh, and compare the targets.

    Returns the kind of the end, and None if the refresh never came to it.
    """
    spark.sql(f"INSERT INTO shop.orders VALUES ({draw.randrange(50)}, {draw.randrange(4)}, 1)")
    spark.sql(f"UPDATE shop.orders SET amount = amount + 1 WHERE id % 3 = {draw.randrange(3)}")
    phase, after = draw.choice(sorted(PHASES)), draw.choice(["before", "after"])
    count, end = draw.choice([1, 1, 2]), draw.choice(sorted(ENDS))
    # A group of processes of its own, so that one signal ends the driver and its JVM.
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder), phase, str(count), after, end],
        capture_output=True, text=True, timeout=600, start_new_session=True,
    )
    assert done.returncode in (0, -9), done.stderr[-3000:]
    ended = done.returncode == -9 or "interrupted" in done.stdout
    tables_in(spark, folder)
    group = group_in(spark, folder)
    try:
        group.refresh()
    finally:
        group.close()
    for view in VIEWS:
        spark.sql(f"REFRESH TABLE {view.target}")
        expected = Counter(map(tuple, spark.sql(view.query).collect()))
        assert rows(spark, view.target) == expected, (view.target, phase, count, after, end)
    return f"{end} {after} {phase}" if ended else None


def campaign(ends: int, seed: int, folder: Path) -> Counter:
    """End processes, and count them by the kind of their end."""
    spark, draw, counts = spark_in(folder), random.Random(seed), Counter()
    create(spark)
    while sum(counts.values()) < ends:
        kind = end_and_check(spark, folder, draw)
        if kind is not None:
            counts[kind] += 1
            print(sum(counts.values()), kind, flush=True)
    return counts


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    begin = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    with tempfile.TemporaryDirectory() as here:
        print(campaign(number, begin, Path(here)))
