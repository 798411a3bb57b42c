"""The adapter ``sparkdiff``: that of Spark, and models that are refreshed by changes."""

from dbt.adapters.base import AdapterPlugin
from dbt.adapters.sparkdiff.impl import DiffCredentials, SparkDiffAdapter
from dbt.include import sparkdiff

Plugin = AdapterPlugin(
    adapter=SparkDiffAdapter, credentials=DiffCredentials, include_path=sparkdiff.PACKAGE_PATH,
    dependencies=["spark"],
)
