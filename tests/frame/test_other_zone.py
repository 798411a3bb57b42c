"""A store is opened under other settings only if no expression of its program depends on them."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from pyspark.sql import functions as F

from pyspark_diff import Dataflow, ProgramChangedError
from pyspark_diff.spark.settings import ANSI

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


def in_tokyo(spark, zone, root):
    """Writes a store of days in UTC, and then changes the zone of the session."""
    zone("UTC")
    with Dataflow.open(root, days, spark=spark, buckets=2) as flow:
        flow.session("clicks").upsert([(1, night(1)), (2, night(2))])
        flow.advance_to(1)
    zone("Asia/Tokyo")


def counts(flow):
    return sorted((str(row["day"]), row["count"]) for row in flow["out"].at().collect())


def test_a_program_with_days_refuses_another_zone(spark, zone, tmp_path):
    in_tokyo(spark, zone, tmp_path / "store")
    with pytest.raises(ProgramChangedError) as error:
        Dataflow.open(tmp_path / "store", days, spark=spark)
    assert f"{ZONE} was UTC and is Asia/Tokyo" in str(error.value)
    assert f"spark.conf.set('{ZONE}', 'UTC') sets it back" in str(error.value)
    zone("UTC")
    with Dataflow.open(tmp_path / "store", days, spark=spark) as flow:
        flow.session("clicks").upsert([(3, night(1))])
        flow.advance_to(2)
        assert counts(flow) == [("2026-01-01", 2), ("2026-01-02", 1)]


@pytest.mark.parametrize("on_change", ["extend", "rebuild"])
def test_days_are_filled_anew_in_another_zone(spark, zone, tmp_path, on_change):
    in_tokyo(spark, zone, tmp_path / "store")
    for name, expected in ("Asia/Tokyo", ["2026-01-02", "2026-01-03"]), (
        "UTC", ["2026-01-01", "2026-01-02"]
    ):
        zone(name)
        with pytest.raises(ProgramChangedError, match=f"and is {name}"):
            Dataflow.open(tmp_path / "store", days, spark=spark)
        with Dataflow.open(tmp_path / "store", days, spark=spark, on_change=on_change) as flow:
            flow.step()
            assert counts(flow) == [(day, 1) for day in expected]
        # The store has the new setting now.
        with Dataflow.open(tmp_path / "store", days, spark=spark) as flow:
            assert counts(flow) == [(day, 1) for day in expected]


def epochs(flow):
    clicks, _ = flow.input("clicks", "id int, seconds long", key="id")
    clicks.groupBy(F.from_unixtime("seconds", "yyyy-MM-dd").alias("day")).count().keep("out")


def texts(flow):
    clicks, _ = flow.input("clicks", "id int, at string", key="id")
    clicks.groupBy(F.hour(F.col("at").cast("timestamp")).alias("day")).count().keep("out")


@pytest.mark.parametrize("program", [epochs, texts])
def test_a_program_with_times_that_no_column_has_refuses_another_zone(
    spark, zone, tmp_path, program
):
    zone("UTC")
    Dataflow.open(tmp_path / "store", program, spark=spark, buckets=2).close()
    with Dataflow.open(tmp_path / "store", program, spark=spark) as flow:
        flow.advance_to(1)
    zone("Asia/Tokyo")
    with pytest.raises(ProgramChangedError, match="UTC and is Asia/Tokyo"):
        Dataflow.open(tmp_path / "store", program, spark=spark)


def casts(flow):
    clicks, _ = flow.input("clicks", "id int, word string", key="id")
    clicks.select("id", F.col("word").cast("int").alias("n")).keep("out")


def test_a_store_refuses_another_ansi_mode(another, tmp_path):
    another.conf.set(ANSI, "true")
    with Dataflow.open(tmp_path / "store", casts, spark=another, buckets=2) as flow:
        flow.session("clicks").upsert([(1, "7")])
        flow.advance_to(1)
    another.conf.set(ANSI, "false")
    with pytest.raises(ProgramChangedError, match="ansi.enabled was true and is false"):
        Dataflow.open(tmp_path / "store", casts, spark=another)
    with Dataflow.open(tmp_path / "store", casts, spark=another, on_change="extend") as flow:
        flow.session("clicks").upsert([(2, "x")])
        flow.advance_to(2)
        assert sorted(map(tuple, flow["out"].at().collect())) == [(1, 7), (2, None)]


def objects(flow):
    clicks, _ = flow.input("clicks", "id int, word string", key="id")
    fields = F.struct(F.lit(None).cast("int").alias("n"), "word")
    clicks.select("id", F.to_json(fields).alias("text")).keep("out")


@pytest.mark.parametrize("on_change", ["extend", "rebuild"])
def test_values_that_spark_computes_are_filled_anew(another, tmp_path, on_change):
    """The store has no value of the old setting after the change."""
    setting = "spark.sql.jsonGenerator.ignoreNullFields"
    another.conf.set(setting, "true")
    with Dataflow.open(tmp_path / "store", objects, spark=another, buckets=2) as flow:
        flow.session("clicks").upsert([(1, "a")])
        flow.advance_to(1)
        assert [row["text"] for row in flow["out"].at().collect()] == ['{"word":"a"}']
    another.conf.set(setting, "false")
    with pytest.raises(ProgramChangedError, match="ignoreNullFields was true and is false"):
        Dataflow.open(tmp_path / "store", objects, spark=another)
    with Dataflow.open(tmp_path / "store", objects, spark=another, on_change=on_change) as flow:
        flow.session("clicks").upsert([(2, "b")])
        flow.advance_to(2)
        assert sorted(row["text"] for row in flow["out"].at().collect()) == [
            '{"n":null,"word":"a"}', '{"n":null,"word":"b"}']


def without_settings(monkeypatch):
    """Makes the package write stores as an old version, which recorded only the time zone."""
    whole = Dataflow._settings

    def zone_alone(self, state):
        settings = whole(self, state)
        del settings["settings"], settings["other_settings"]
        return {**settings, "zone": self.spark.conf.get(ZONE)}

    monkeypatch.setattr(Dataflow, "_settings", zone_alone)


def test_a_store_of_a_version_without_a_record_of_settings_opens(
    spark, zone, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        without_settings(patch)
        in_tokyo(spark, zone, tmp_path / "store")
    with pytest.raises(ProgramChangedError, match="UTC and is Asia/Tokyo"):
        Dataflow.open(tmp_path / "store", days, spark=spark)
    zone("UTC")
    with Dataflow.open(tmp_path / "store", days, spark=spark) as flow:
        flow.session("clicks").upsert([(3, night(1))])
        flow.advance_to(2)
        assert counts(flow) == [("2026-01-01", 2), ("2026-01-02", 1)]


@pytest.mark.classic_only("a client does not know whether a plan of the server reads the zone")
def test_a_program_without_times_goes_on_in_another_zone(spark, zone, tmp_path):
    for number, name in enumerate(("UTC", "Asia/Tokyo"), 1):
        zone(name)
        with Dataflow.open(tmp_path / "store", words, spark=spark, buckets=2) as flow:
            flow.session("clicks").upsert([(number, "a")])
            flow.advance_to(number)
            assert len(flow["out"].at().collect()) == number
