"""A declarative pipeline that has a maintained view as its sink and as its source.

New JSON files go to the view, as into any sink. The contents of the view are a materialized view of
the pipeline, and its changes are a table, as from any source. The format is `diff` for both.
"""

from pyspark import pipelines
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()
STORE = spark.conf.get("clicks.store")


def pages(reader, **options):
    """The view that examples/pipelines/night.py keeps."""
    return reader.format("diff").options(path=STORE, name="pages", **options).load()


pipelines.create_sink("inbox", "diff", {"path": STORE, "name": "clicks"})


@pipelines.append_flow(target="inbox")
def into_the_view():
    landing = spark.conf.get("clicks.landing")
    return spark.readStream.schema("id long, page string, seconds int").json(landing)


@pipelines.materialized_view
def busy_pages():
    return pages(spark.read).where(F.col("clicks") > 1)


@pipelines.table
def changes_of_pages():
    return pages(spark.readStream, shape="changes")
