# Databricks notebook source
# MAGIC %md
# MAGIC # First steps
# MAGIC A view follows its inputs: a join, an aggregate, and a late correction.

# COMMAND ----------

from pyspark.sql import functions as F

import pyspark_diff
from pyspark_diff import Dataflow

spark = pyspark_diff.session()
display = globals().get("display", lambda frame: frame.show())

# COMMAND ----------

# MAGIC %md
# MAGIC Write the view once. On a cluster of several machines pass `Dataflow` a `root` that all
# MAGIC machines share, such as a folder under `/Volumes`.

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
# MAGIC An order turns out to be larger. Its earlier value can still be read.

# COMMAND ----------

orders_in.upsert([(10, 1, 8)])
flow.advance_to(2)
display(revenue.at(1))
display(revenue.changes(0, 1))

# COMMAND ----------

flow.close()
