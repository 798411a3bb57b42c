# Databricks notebook source
# MAGIC %md
# MAGIC # First steps
# MAGIC A view follows its inputs: a join, an aggregate, and a late correction.

# COMMAND ----------

import os
import tempfile

from pyspark.sql import functions as F

import pyspark_diff
from pyspark_diff import Dataflow

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


root = setting("root", "/Volumes/main/default/pyspark_diff/first_steps", tempfile.gettempdir())
findings = pyspark_diff.doctor(spark, root=root)
print(*[f"{item.subject}: {item.remedy}" for item in findings.advice] or ["nothing to change"])

# COMMAND ----------

# MAGIC %md
# MAGIC Write the view once. All machines of a cluster share its `root`.

# COMMAND ----------

flow = Dataflow(spark, root=root, keep_history=True)
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
