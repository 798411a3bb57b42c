"""Run by test_cluster in its own process: graphs and loops on two executors in other time zones.

Each graph algorithm, Pregel included, runs with ids of a type, and each type has an algorithm. The
JVM and the workers of an executor have different time zones, and the driver has a third one.
"""

import sys

import loop_programs
import test_graph_ids
from cluster_program import two_executors

ZONES = {
    "spark.sql.session.timeZone": "America/New_York",
    "spark.executor.extraJavaOptions": "-Duser.timezone=Asia/Tokyo",
    "spark.executorEnv.TZ": "Pacific/Chatham",
}
#: Types that a time zone, a sign or an encoding may change, before the others.
KINDS = [
    "timestamp", "date", "decimal(38,4)", "string", "struct<a:int,b:string>", "timestamp_ntz",
    *sorted(test_graph_ids.IDS),
]


def main(seeds):
    spark = two_executors(ZONES)
    for place, name in enumerate(test_graph_ids.NAMES):
        kind = KINDS[place % len(KINDS)]
        test_graph_ids.check(spark, kind, "spark", [name], (2, 5))
    for seed in seeds:
        loop_programs.check(spark, seed, "spark")
    print(f"{len(test_graph_ids.NAMES)} algorithms and {len(seeds)} loops are right")
    spark.stop()


if __name__ == "__main__":
    main(range(*map(int, sys.argv[1:])))
