"""A store is gone on from under another time zone only if no expression depends on it."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from pyspark.sql import functions as F

from pyspark_diff import Dataflow, ProgramChangedError

ZONE = "spark.sql.session.timeZone"


@pytest.fixture
def zone(spark):
    before = spark.conf.get(ZONE)
    yield lambda name: spark.conf.set(ZONE, name)
    spark.conf.set(ZONE, before)


def days(flow):
    clicks, _ = flow.input("clicks", "id int, at timestamp", key="id")
    clicks.groupBy(F.to_date("at").alias("day")).count().keep("out")


def words(flow):
    clicks, _ = flow.input("clicks", "id int, word string", key="id")
    clicks.select(F.upper("word").alias("word")).keep("out")


def night(number):
    return datetime(2026, 1, number, 20, tzinfo=timezone.utc)


@pytest.mark.parametrize("on_change", ["refuse", "extend", "rebuild"])
def test_a_program_with_days_refuses_another_zone(spark, zone, tmp_path, on_change):
    zone("UTC")
    with Dataflow.open(tmp_path / "store", days, spark=spark, buckets=2) as flow:
        flow.session("clicks").upsert([(1, night(1))])
        flow.advance_to(1)
    zone("Asia/Tokyo")
    with pytest.raises(ProgramChangedError, match="UTC, and now it is Asia/Tokyo"):
        Dataflow.open(tmp_path / "store", days, spark=spark, on_change=on_change)
    zone("UTC")
    with Dataflow.open(tmp_path / "store", days, spark=spark) as flow:
        flow.session("clicks").upsert([(2, night(1))])
        flow.advance_to(2)
        assert [row["count"] for row in flow["out"].at().collect()] == [2]


def test_a_program_without_times_goes_on_in_another_zone(spark, zone, tmp_path):
    for number, name in enumerate(("UTC", "Asia/Tokyo"), 1):
        zone(name)
        with Dataflow.open(tmp_path / "store", words, spark=spark, buckets=2) as flow:
            flow.session("clicks").upsert([(number, "a")])
            flow.advance_to(number)
            assert len(flow["out"].at().collect()) == number
