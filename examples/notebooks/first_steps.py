# Databricks notebook source
# MAGIC %md
# MAGIC # First steps
# MAGIC A view that follows its inputs: a join, an aggregate, and a correction that comes late.

# COMMAND ----------

from pyspark.sql import functions as F

import pyspark_diff
from pyspark_diff import Dataflow

spark = pyspark_diff.session()
display = globals().get("display", lambda frame: frame.show())

# COMMAND ----------

# MAGIC %md
# MAGIC The view is written once. On a cluster of several machines give `Dataflow` a `root` that all
# MAGIC of them share, such as a folder under `/Volumes`.

# COMMAND ----------

flow = Dataflow(spark, keep_history=True)
orders, orders_in = flow.input("orders", "id int, customer int, amount int", key="id")
customers, customers_in = flow.input("customers", "customer int, region string", key="customer")
revenue = (
    orders.join(customers, "customer")
    .groupBy("region").agg(F.sum("amount").alias("revenue")).keep("revenue")
)

# COMMAND ----------

customers_in.upsert([(1, "north"), (2, "south")])
orders_in.upsert([(10, 1, 5), (11, 2, 7)])
flow.advance_to(1)
display(revenue.at(0))

# COMMAND ----------

# MAGIC %md
# MAGIC An order turns out to have been larger. What it was before can still be read.

# COMMAND ----------

orders_in.upsert([(10, 1, 8)])
flow.advance_to(2)
display(revenue.at(1))
display(revenue.changes(0, 1))

# COMMAND ----------

flow.close()
