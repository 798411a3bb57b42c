# Databricks notebook source
# MAGIC %md
# MAGIC # Graphs and loops
# MAGIC The connected parts of a network, and the distance of each station from the depot. Both
# MAGIC answers stay up to date while edges come and go.

# COMMAND ----------

import os
import tempfile

from pyspark.sql import functions as F

import pyspark_diff
from pyspark_diff import Dataflow, graphs

spark = pyspark_diff.session()
display = globals().get("display", lambda frame: frame.show())

# COMMAND ----------

# MAGIC %md
# MAGIC On Databricks a widget names the folder of the state, in a volume. Elsewhere the state is in
# MAGIC a temporary folder. `doctor` lists the settings to change; `print(findings)` lists all
# MAGIC capabilities.

# COMMAND ----------


def setting(name, on_databricks, elsewhere):
    """Return the value of a widget; outside of Databricks that of the environment."""
    utilities = globals().get("dbutils")
    if utilities is None:
        return os.environ.get(f"PYSPARK_DIFF_{name.upper()}", elsewhere)
    utilities.widgets.text(name, on_databricks)
    return utilities.widgets.get(name)


root = setting("root", "/Volumes/main/default/pyspark_diff/graphs_and_loops", tempfile.gettempdir())
findings = pyspark_diff.doctor(spark, root=root)
print(*[f"{item.subject}: {item.remedy}" for item in findings.advice] or ["nothing to change"])

# COMMAND ----------

# MAGIC %md
# MAGIC A loop applies a function to its last result. It ends when nothing changes any more, after
# MAGIC any number of rounds.

# COMMAND ----------

flow = Dataflow(spark, root=root, keep_history=True)
edges, edges_in = flow.input("edges", "src long, dst long")
depots, depots_in = flow.input("depots", "node long")

both_ways = edges.union(edges.selectExpr("dst AS src", "src AS dst"))
start = depots.withColumn("hops", F.lit(0))


def one_further(hops):
    along = hops.join(both_ways, hops.node == both_ways.src)
    reached = along.select(F.col("dst").alias("node"), (F.col("hops") + 1).alias("hops"))
    return reached.union(start).groupBy("node").agg(F.min("hops").alias("hops"))


hops = start.iterate(one_further).keep("hops")
parts = graphs.connected_components(edges).keep("parts")

# COMMAND ----------

# MAGIC %md
# MAGIC A line of six stations, and a separate triangle.

# COMMAND ----------

edges_in.insert([(1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (10, 11), (11, 12), (12, 10)])
depots_in.insert([(1,)])
flow.advance_to(1)
display(hops.at().orderBy("node"))

# COMMAND ----------

# MAGIC %md
# MAGIC One edge is gone. The step finds the affected stations without reading the rest.

# COMMAND ----------

edges_in.remove([(3, 4)])
flow.advance_to(2)
display(hops.changes(0, 1))
display(parts.at().groupBy("component").count().orderBy("component"))

# COMMAND ----------

# MAGIC %md
# MAGIC A bridge to the triangle, and the repaired line: the number of reachable stations over time.

# COMMAND ----------

edges_in.insert([(2, 10)])
flow.advance_to(3)
edges_in.insert([(3, 4)])
flow.advance_to(4)
axes = hops.plot_history()

# COMMAND ----------

# MAGIC %md
# MAGIC The program as a graph. `flow.report("/Volumes/...")` writes a page of it, with the cost of
# MAGIC each step.

# COMMAND ----------

flow.plot()

# COMMAND ----------

flow.close()
