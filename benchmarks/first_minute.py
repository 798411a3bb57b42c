"""The first minute: the cost of a first program in a new environment, next to Spark's own start.

Each program runs in a separate process, first with an empty cache of kernels and then with the
cache of the first run. The output is seconds of processor time of the driver's Python. It excludes
the Python workers, Spark's own start and the JVM::

    python benchmarks/first_minute.py
    python benchmarks/first_minute.py --program join
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: The query of each program over two tables of 20,000 rows.
PROGRAMS = {
    "join": 'a.join(b, "k")',
    "join and sum": 'a.join(b, "k").groupBy("s").agg(F.sum("v"), F.max("k"))',
    "reach": 'a.select("k").iterate(lambda n: n.join(b, "k").select("v").toDF("k")'
             '.union(a.select("k")).distinct())',
}

#: The program text. It prints the processor seconds of the library and of PySpark's start.
RUN = """
import json, resource, sys, time

def spent():
    return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])

begun = spent()
from pyspark.sql import functions as F
import pyspark_diff
spark = pyspark_diff.session(master="local[2]")
spark.range(1).collect()
started = spent()
from pyspark_diff import Dataflow
with Dataflow(spark, runner="{runner}") as flow:
    a, a_in = flow.input("a", "k long, s string")
    b, b_in = flow.input("b", "k long, v long")
    {program}.inspect(lambda *_: None)
    a_in.insert([(i, str(i)) for i in range(20_000)])
    b_in.insert([(i, i // 2) for i in range(20_000)])
    a_in.close()
    b_in.close()
    flow.step()
print(json.dumps([spent() - started, started - begun]))
"""


def seconds(program: str, runner: str, cache: str) -> tuple[float, float]:
    """Return the processor seconds of the library in the driver, and of PySpark's start."""
    code = RUN.format(program=PROGRAMS[program], runner=runner)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "NUMBA_CACHE_DIR": cache, "PYTHONPATH": str(ROOT)},
    )
    own, start = json.loads(done.stdout.splitlines()[-1])
    return own, start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", choices=PROGRAMS, action="append")
    parser.add_argument("--runner", choices=("auto", "local", "spark"), default="auto")
    options = parser.parse_args()
    for program in options.program or PROGRAMS:
        with tempfile.TemporaryDirectory() as cache:
            first, again = (seconds(program, options.runner, cache) for _ in range(2))
        print(f"{program}: {first[0]:.1f} s at first, {again[0]:.1f} s again (PySpark itself "
              f"{again[1]:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
