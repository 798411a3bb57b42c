"""Keeps the view that is the sink and the source of examples/pipelines/definitions.

    python examples/pipelines/night.py --store /data/clicks/store
    spark-pipelines run --spec examples/pipelines/spark-pipeline.yml
    python examples/pipelines/night.py --store /data/clicks/store
    spark-pipelines run --spec examples/pipelines/spark-pipeline.yml

The first night makes the store. Each run of the pipeline puts new clicks into the inbox of the view
and reads the view of the start of the run. Each later night takes in the clicks of the inbox.
"""

from __future__ import annotations

import argparse

from pyspark.sql import functions as F

import pyspark_diff
from pyspark_diff import Dataflow
from pyspark_diff.sources import inbox


def program(flow: Dataflow, store: str) -> None:
    """Keep the view of the clicks in the inbox of a store."""
    clicks = flow.source(
        "clicks", inbox(store, "clicks", schema="id long, page string, seconds int", key="id")
    )
    counts = F.count("*").alias("clicks"), F.sum("seconds").alias("seconds")
    clicks.groupBy("page").agg(*counts).keep("pages")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", required=True, help="a folder that the pipeline reaches, too")
    store = parser.parse_args().store

    spark = pyspark_diff.session("night")
    # History, so that a reader of changes can come late.
    with Dataflow.open(
        store, lambda flow: program(flow, store), spark=spark, keep_history=True
    ) as flow:
        if not flow.catch_up() and flow.session("clicks").time() == 0:
            flow.advance_to(1)  # an empty view, so that the pipeline can read one
        for page, clicks, seconds in sorted(flow["pages"].at().collect()):
            print(page, clicks, seconds)


if __name__ == "__main__":
    main()
