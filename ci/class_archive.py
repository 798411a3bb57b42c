"""Run by ci/test: starts Spark and runs a little of each kind of job, so that Java can archive the
loaded classes. A JVM that maps the archive starts in half of the processor time."""

from __future__ import annotations

import sys
import tempfile

from pyspark.sql import functions as F

import pyspark_diff
from pyspark_diff import Dataflow


def main() -> int:
    folder = tempfile.mkdtemp()
    spark = pyspark_diff.session("classes", conf={
        "spark.ui.enabled": False, "spark.local.dir": folder, "spark.sql.shuffle.partitions": 2,
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
    })
    jvm = spark.sparkContext._gateway.proc
    people = spark.createDataFrame([(1, "a"), (2, "b"), (2, None)], "id int, name string")
    for form in "parquet", "json", "csv":
        people.write.format(form).save(f"{folder}/{form}")
        spark.read.schema("id int, name string").format(form).load(f"{folder}/{form}").toArrow()
    names = people.select("id", F.col("name").alias("other"))
    people.join(names, "id").groupBy("id").agg(F.count("*"), F.max("name")).orderBy("id").collect()
    people.mapInArrow(lambda batches: batches, "id int, name string").count()
    for runner in "spark", "local":
        with Dataflow(spark, runner=runner, buckets=2) as flow:
            edges, edges_in = flow.input("edges", "src long, dst long")
            starts = edges.select("src").distinct()
            starts.iterate(
                lambda now: now.join(edges, "src").selectExpr("dst AS src").union(starts).distinct()
            ).keep("reached")
            edges.groupBy("src").agg(F.count("*").alias("n"), F.sum("dst").alias("total")).keep("n")
            edges.where(F.upper(F.col("src").cast("string")) != "x").keep("some")
            edges_in.insert(spark.range(20).selectExpr("id src", "id + 1 dst"))
            flow.advance_to(1)
            for name in flow:
                flow[name].at().toPandas()
    spark.stop()
    spark.sparkContext._gateway.shutdown()
    # The JVM ends at the end of its input, and then writes the archive.
    jvm.stdin.close()
    return int(jvm.wait(300) != 0)


if __name__ == "__main__":
    sys.exit(main())
