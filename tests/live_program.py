"""A program that is killed while it steps: its reported frontiers, and its emitted updates.

    python live_program.py FOLDER

A thread writes down the frontier that `progress` and the bridge report, again and again; each line
goes out before the next look. Consumers write down the updates that they receive, before the
frontier.
"""

import os
import sys
import threading

from pyspark.sql import functions as F

from pyspark_diff import Dataflow, session


def main(folder: str) -> None:
    spark = session("killed", master="local[2]", conf={"spark.ui.enabled": False})
    said = os.open(os.path.join(folder, "said"), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    emitted = os.open(os.path.join(folder, "given"), os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def consume(row, time, diff):
        os.write(emitted, f"{time} {row['n']} {diff}\n".encode())

    with Dataflow(spark, runner="spark", root=folder) as flow:
        rows, rows_in = flow.input("rows", "n long")
        sums = rows.groupBy((F.col("n") % 2).alias("r")).agg(F.count("*").alias("n"))
        probe = sums.inspect(consume).probe()

        def look() -> None:
            while True:
                # The frontiers, and last that of the probe.
                at, bridge = flow.progress().frontier, flow._live.frontier()
                ends = [f.bound for f in (at, bridge, probe.frontier()) if f is not None]
                os.write(said, f"{max(ends)}\n".encode())

        threading.Thread(target=look, daemon=True).start()
        for time in range(1, 100):
            rows_in.insert([(n,) for n in range(4)])
            rows_in.advance_to(time)
            flow.step_async().wait()
            if time == 2:
                print("ready", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
