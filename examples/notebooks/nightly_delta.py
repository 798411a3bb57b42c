# Databricks notebook source
# MAGIC %md
# MAGIC # A nightly view of Delta tables
# MAGIC Each run of the last cells is a night. It reads the changes of two tables since the night
# MAGIC before, and merges the changes of the view into a third one.
# MAGIC
# MAGIC Two widgets set the places: `schema` of the tables, and `store`, the folder of the state in
# MAGIC a volume or an object store. Outside of Databricks the environment variables
# MAGIC `PYSPARK_DIFF_SCHEMA` and `PYSPARK_DIFF_STORE` set them.

# COMMAND ----------

import os

from pyspark.sql import functions as F

import pyspark_diff
from pyspark_diff import Dataflow
from pyspark_diff.sinks import delta_merge
from pyspark_diff.sources import delta

spark = pyspark_diff.session()
display = globals().get("display", lambda frame: frame.show())

# COMMAND ----------

# MAGIC %md
# MAGIC A store in a volume needs `pip install "pyspark_diff[databricks]"`. `doctor` lists the
# MAGIC settings to change; `print(findings)` lists all capabilities.

# COMMAND ----------


def setting(name, on_databricks, elsewhere):
    """Return the value of a widget; outside of Databricks that of the environment."""
    utilities = globals().get("dbutils")
    if utilities is None:
        return os.environ.get(f"PYSPARK_DIFF_{name.upper()}", elsewhere)
    utilities.widgets.text(name, on_databricks)
    return utilities.widgets.get(name)


schema = setting("schema", "main.default", "default")
store = setting("store", "/Volumes/main/default/pyspark_diff/revenue", "revenue-store")
findings = pyspark_diff.doctor(spark, root=None if "://" in store else store)
print(*[f"{item.subject}: {item.remedy}" for item in findings.advice] or ["nothing to change"])

# COMMAND ----------

# MAGIC %md
# MAGIC Tables that record their changes.

# COMMAND ----------

recorded = "USING delta TBLPROPERTIES (delta.enableChangeDataFeed = true)"
spark.sql(f"CREATE TABLE {schema}.sales (id LONG, shop STRING, cents LONG) {recorded}")
spark.sql(f"CREATE TABLE {schema}.shops (shop STRING, region STRING) {recorded}")
spark.sql(f"INSERT INTO {schema}.sales VALUES (1, 'web', 500), (2, 'web', 700), (3, 'mill', 900)")
spark.sql(f"INSERT INTO {schema}.shops VALUES ('web', 'online'), ('mill', 'north')")

# COMMAND ----------

# MAGIC %md
# MAGIC The program is a function, and every night defines the same program.

# COMMAND ----------


def program(flow):
    sales = flow.source("sales", delta(f"{schema}.sales", key="id"))
    shops = flow.source("shops", delta(f"{schema}.shops", key="shop"))
    revenue = sales.join(shops, "shop").groupBy("region").agg(F.sum("cents").alias("cents"))
    revenue.sink("revenue", delta_merge(f"{schema}.revenue", key="region"))


def night(token):
    with Dataflow.open(store, program, spark=spark) as flow:
        return flow.catch_up(token=token)


# COMMAND ----------

night("2026-11-01")
display(spark.table(f"{schema}.revenue").orderBy("region"))

# COMMAND ----------

# MAGIC %md
# MAGIC A day later a sale is deleted, and a shop has moved.

# COMMAND ----------

spark.sql(f"DELETE FROM {schema}.sales WHERE id = 2")
spark.sql(f"UPDATE {schema}.shops SET region = 'south' WHERE shop = 'mill'")
night("2026-11-02")
display(spark.table(f"{schema}.revenue").orderBy("region"))

# COMMAND ----------

# MAGIC %md
# MAGIC The same night again does nothing more, so a task may run twice.

# COMMAND ----------

night("2026-11-02")
