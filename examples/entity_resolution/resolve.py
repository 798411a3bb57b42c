"""Clusters of records from scored match pairs, with identifiers that persist, and a change log.

    python examples/entity_resolution/resolve.py                  # four days, each change shown
    python examples/entity_resolution/resolve.py --folder state --records r.parquet \\
        --pairs predictions.parquet

The pairs have the columns of Splink's predictions: ``match_probability``, ``unique_id_l``,
``unique_id_r``, and any others. The records have ``unique_id`` and any others. Each run reads both
tables, computes their changes since the last run, and catches up: new and deleted records, new
pairs, and scores that rose or fell. Records with a path of pairs above the threshold between them
are a cluster.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import pyspark_diff
from identifiers import Identifiers
from pyspark_diff import Dataflow
from pyspark_diff.graphs import GraphDiff
from pyspark_diff.sinks import Sink
from pyspark_diff.sources import snapshots

RECORDS = "unique_id string, first_name string, surname string"
PAIRS = (
    "match_weight double, match_probability double, unique_id_l string, unique_id_r string"
)
PEOPLE = [
    ("r1", "Ann", "Lee"), ("r2", "Anne", "Lee"), ("r3", "A.", "Lee"),
    ("r4", "Bob", "Ray"), ("r5", "Robert", "Ray"), ("r6", "Eve", "Fox"),
]
SCORES = {("r1", "r2"): 0.99, ("r2", "r3"): 0.97, ("r4", "r5"): 0.95, ("r3", "r4"): 0.4}
#: The records and the scores of each day.
DAYS = [
    (PEOPLE, SCORES),
    # A score rises: two clusters become one.
    (PEOPLE, {**SCORES, ("r3", "r4"): 0.93}),
    # It falls again, and a new record matches Eve's.
    ([*PEOPLE, ("r7", "Eva", "Fox")], {**SCORES, ("r6", "r7"): 0.96}),
    # The record that named a component is deleted; its score is still there.
    (PEOPLE[1:], {**SCORES, ("r1", "r2"): 0.99}),
]


def frames(spark: SparkSession, day: int) -> tuple[DataFrame, DataFrame]:
    """The records and the pairs of a day of the demonstration."""
    people, scores = DAYS[day]
    pairs = [(0.0, score, left, right) for (left, right), score in scores.items()]
    return spark.createDataFrame(people, RECORDS), spark.createDataFrame(pairs, PAIRS)


def program(
    flow: Dataflow, records: DataFrame, pairs: DataFrame, threshold: float, target: Sink
) -> None:
    """Keep the clusters of the tables in a target."""
    clusters(
        flow.source("records", snapshots(lambda: records.select("unique_id"))),
        flow.source("pairs", snapshots(lambda: pairs.select(
            "unique_id_l", "unique_id_r", "match_probability"))),
        threshold, target,
    )


def catch_up(records: DataFrame, pairs: DataFrame, folder: Path, threshold: float) -> Identifiers:
    """Bring the clusters in a folder up to date."""
    target = Identifiers(folder / "clusters.sqlite")
    folder.mkdir(exist_ok=True, parents=True)
    with Dataflow.open(
        str(folder / "state"), lambda flow: program(flow, records, pairs, threshold, target),
        spark=records.sparkSession,
    ) as flow:
        flow.catch_up()
    return target


def clusters(
    records: pyspark_diff.DiffFrame, pairs: pyspark_diff.DiffFrame, threshold: float, target: Sink
) -> None:
    """The components of the records, into a target."""
    matches = pairs.where(f"match_probability >= {threshold}").select(
        "unique_id_l", "unique_id_r").toDF("src", "dst")
    graph = GraphDiff(records.withColumnRenamed("unique_id", "id"), matches)
    # A pair with a deleted record joins nothing: only edges between vertices remain.
    between = graph.filterVertices("id IS NOT NULL")
    between.connectedComponents().select("id", "component").sink("clusters", target)


def show(target: Identifiers, day: int) -> None:
    """Print the changes of the last run, and all clusters."""
    db = target.connect()
    print(f"day {day}")
    for event, cluster, other, record in db.execute(
        "SELECT event, cluster, other, record FROM log "
        "WHERE epoch = (SELECT max(number) FROM epochs)"
    ):
        text = {
            "created": f"cluster {cluster} created",
            "deleted": f"cluster {cluster} deleted",
            "merged": f"cluster {cluster} merged into {other}",
            "split": f"cluster {cluster} split from {other}",
            "joined": f"record {record} joined {cluster}",
            "left": f"record {record} left {cluster}",
            "moved": f"record {record} moved from {other} to {cluster}",
        }
        print(f"  {text[event]}")
    for cluster, members in db.execute(
        "SELECT cluster, group_concat(record, ' ') FROM (SELECT * FROM clusters ORDER BY record) "
        "GROUP BY cluster ORDER BY cluster"
    ):
        print(f"    {cluster}: {members}")
    db.close()


def main(arguments: list[str] | None = None) -> None:
    """Run the example from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", help="the state and the target; by default a new folder")
    parser.add_argument("--records", help="Parquet with unique_id; by default a demonstration")
    parser.add_argument("--pairs", help="Parquet with Splink's predictions")
    parser.add_argument("--threshold", type=float, default=0.9)
    options = parser.parse_args(arguments)
    if (options.records is None) != (options.pairs is None):
        parser.error("pass both --records and --pairs, or none")
    spark = pyspark_diff.session("entity resolution")
    folder = Path(options.folder or tempfile.mkdtemp()).absolute()
    if options.records:
        records, pairs = spark.read.parquet(options.records), spark.read.parquet(options.pairs)
        show(catch_up(records, pairs, folder, options.threshold), 0)
        return
    for day in range(len(DAYS)):
        show(catch_up(*frames(spark, day), folder, options.threshold), day)


if __name__ == "__main__":
    main()
