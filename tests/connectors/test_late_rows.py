"""Rows of logs in any order, against a plain dict: the greatest sequence of each key wins.

    state at t  =  for each key the row with the greatest sequence among all rows read up to t,
                   without keys whose row is a deletion
"""

from __future__ import annotations

import json
import math
from collections import Counter
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff import Dataflow, DuplicateKeyError, SchemaError, SourceError
from pyspark_diff.dataflow.source import Forget, Reading, Source, Upserts, Versions
from pyspark_diff.sources import debezium, upserts

NAN = math.nan


class Event(NamedTuple):
    """A version of a row, with the number of its key and of its sequence."""

    key: int
    sequence: int
    value: str | None
    deleted: bool


def event(key: int, sequence: int) -> Event:
    """The version of a key that has a sequence: a third of all are deletions."""
    deleted = (key + sequence) % 3 == 0
    return Event(key, sequence, None if deleted else f"{key} {sequence}", deleted)


#: Readings of any events in any order; a repeated pair is an event that is delivered again.
READINGS = st.lists(
    st.lists(st.builds(event, st.integers(0, 3), st.integers(0, 5)), max_size=5),
    min_size=1, max_size=4,
)
#: A deletion before its row, an empty reading, only deletions, and an unknown key.
EXAMPLE = [
    [event(0, 3)], [event(0, 2), event(1, 1), event(1, 1)], [], [event(1, 2), event(2, 4)],
    [event(1, 0), event(2, 1), event(0, 4), event(0, 1)],
]


def rows_after(events: list[Event]) -> dict[int, str | None]:
    """The law from scratch."""
    last: dict[int, Event] = {}
    for change in events:
        if change.key not in last or change.sequence >= last[change.key].sequence:
            last[change.key] = change
    return {key: change.value for key, change in last.items() if not change.deleted}


#: The values of the numbers of keys, and their columns.
KEYS: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    "int": ("`a.b` int", [(0,), (1,), (2,), (3,)]),
    "several": ("Id double, `key` string",
                [(0.0, "x"), (NAN, "x"), (NAN, "y"), (-math.inf, "")]),
    "struct": ("k struct<a: int, b: double>",
               [({"a": None, "b": NAN},), ({"a": 1, "b": NAN},), ({"a": 1, "b": None},),
                ({"a": 1, "b": 0.0},)]),
}
START = datetime(2024, 10, 27, 0, 30, tzinfo=timezone.utc)
#: The values of the numbers of sequences, in their order.
SEQUENCES: dict[str, tuple[str, list[Any]]] = {
    "long": ("long", [-(2**63), -1, 0, 1, 2**62, 2**63 - 1]),
    "double": ("double", [-math.inf, -1.5, 0.0, 1e-300, math.inf, NAN]),
    "decimal": ("decimal(38,9)", [Decimal(n) * Decimal("1.000000001") for n in range(-2, 4)]),
    "string": ("string", ["", "1", "10", "2", "a", "ä"]),
    "timestamp": ("timestamp", [START + timedelta(minutes=30 * n) for n in range(6)]),
    "null": ("int", [None, -3, -2, 0, 1, 2]),
}


class Log(Source):
    """Readings of versions, which need no job of Spark."""

    def __init__(self, keys: str, sequence: str):
        columns, self.keys = KEYS[keys]
        kind, self.sequences = SEQUENCES[sequence]
        self.struct = T.StructType.fromDDL(f"value string, {columns}")
        self.stored = T.StructType.fromDDL(f"value string, {columns}, seq {kind}, gone boolean")
        self.key = tuple(self.struct.names[1:])
        self.readings: list[list[Event]] = []
        #: The tombstones to forget in the next reading.
        self.forget: str | None = None

    def columns(self, spark):
        return self.struct

    def versions(self, columns):
        return Versions(("SEQ",), tuple(self.stored.fields[-2:]), "gone", True)

    def read(self, spark, offset):
        start = 0 if offset is None else offset
        if start == len(self.readings):
            return None
        changes = [
            Upserts([
                (change.value, *self.keys[change.key], self.sequences[change.sequence],
                 change.deleted)
                for change in reading
            ])
            for reading in self.readings[start:]
        ]
        if self.forget is not None:
            changes.append(Forget(F.expr(f"gone and {self.forget}")))
            self.forget = None
        return Reading(len(self.readings), changes)

    def rows(self) -> Counter[str]:
        table = rows_after([change for reading in self.readings for change in reading])
        return Counter(repr((value, *self.keys[key])) for key, value in table.items())


def shown(frame) -> Counter[str]:
    return Counter(
        repr(tuple(value.asDict() if isinstance(value, T.Row) else value for value in row))
        for row in frame.collect()
    )


def program(source: Log):
    def build(flow: Dataflow) -> None:
        rows = flow.source("rows", source)
        rows.keep("rows")
        rows.count().select("count").count().keep("counts")
        rows.join(rows.select(*source_key(source)), list(source.key)).keep("pairs")

    return build


def source_key(source: Log) -> list[str]:
    return [f"`{name}`" for name in source.key]


def check(flow: Dataflow, source: Log) -> None:
    expected = source.rows()
    assert shown(flow["rows"].at()) == expected
    key = ["value", *source_key(source)]
    assert shown(flow["pairs"].at().select(*key)) == expected
    counts = {(1, expected.total())} if expected else set()
    assert {tuple(row) for row in flow["counts"].at().collect()} == counts


@pytest.mark.parametrize(("keys", "sequence"), [
    ("int", "long"), ("several", "double"), ("struct", "decimal"), ("int", "string"),
    ("int", "timestamp"), ("several", "null"),
])
@example(EXAMPLE, [1, 2, 1, 1], 1)
@given(READINGS, st.lists(st.integers(1, 3), min_size=4, max_size=4), st.sampled_from([1, 3]))
@settings(max_examples=6)
def test_any_order_in_any_steps(spark, keys, sequence, readings, cuts, buckets):
    source = Log(keys, sequence)
    with Dataflow(spark, runner="local", buckets=buckets) as flow:
        program(source)(flow)
        waiting = list(readings)
        for cut in cuts:
            source.readings += waiting[:cut]
            del waiting[:cut]
            flow.catch_up()
            check(flow, source)


@pytest.mark.parametrize("runner", ["local", "spark"])
def test_each_step_in_a_process_of_its_own(spark, tmp_path, runner):
    source = Log("several", "double")
    for reading in EXAMPLE:
        source.readings.append(reading)
        with Dataflow.open(
            tmp_path / "store", program(source), spark=spark, runner=runner, buckets=2
        ) as flow:
            flow.catch_up()
            check(flow, source)


def test_all_times_are_exact(spark):
    source = Log("int", "long")
    with Dataflow(spark, runner="local", keep_history=True) as flow:
        program(source)(flow)
        expected = []
        for reading in EXAMPLE:
            source.readings.append(reading)
            flow.catch_up()
            expected.append(source.rows())
        for time, rows in enumerate(expected):
            assert shown(flow["rows"].at(time)) == rows


def test_other_changes_have_no_version(spark):
    source = Log("int", "long")
    with Dataflow(spark, runner="local") as flow:
        program(source)(flow)
        for change, rows in [("insert", []), ("delete", [1]), ("replace", [])]:
            with pytest.raises(SchemaError, match=f"versions of rows by seq, and {change} has"):
                getattr(flow.session("rows"), change)(rows)


def test_two_rows_of_the_greatest_sequence_are_refused(spark):
    """If a later version is read in the same step, they are harmless."""
    source = Log("int", "long")
    with Dataflow(spark, runner="local") as flow:
        program(source)(flow)
        inserted, deleted = Event(0, 3, "x", False), Event(0, 3, None, True)
        source.readings += [[inserted], [deleted, Event(0, 4, "y", False)], [inserted]]
        flow.catch_up()
        check(flow, source)
        source.readings += [[Event(1, 3, "x", False)], [Event(1, 3, "z", False)]]
        with pytest.raises(DuplicateKeyError, match="'z', 1, 1, False.*'x', 1, 1.*one seq"):
            flow.catch_up()


def test_forgotten_tombstones(spark):
    """Only versions that are still the last ones of their keys are removed."""
    source = Log("int", "long")
    with Dataflow(spark, runner="local", buckets=2) as flow:
        program(source)(flow)
        source.readings += [[event(0, 3), event(1, 2), event(2, 1), event(3, 1)]]
        flow.catch_up()
        versions = flow._sources._feeds["rows"].before
        assert versions().count() == 4
        # Key 0 gets a later version in the same step.
        source.readings += [[event(0, 4)]]
        source.forget = "seq <= 1 and `a.b` <> 1"
        flow.catch_up()
        check(flow, source)
        assert {tuple(row) for row in versions().where("gone").select("`a.b`").collect()} == {(1,)}
        source.readings += [[event(1, 4), event(1, 3)]]
        source.forget = "seq <= 1"
        flow.catch_up()
        check(flow, source)
        assert versions().count() == 3


# The sources, whose tables and files are read by Spark.


@pytest.mark.parametrize("deleted", [True, False])
@example(EXAMPLE, "int", "long")
@given(READINGS, st.sampled_from(list(KEYS)), st.sampled_from([*SEQUENCES][:-1]))
@settings(max_examples=1)
def test_upserts(spark, deleted, readings, keys, sequence):
    """Rows of a table in any order, while the table loses rows that were read."""
    columns, values = KEYS[keys]
    kind, sequences = SEQUENCES[sequence]
    ddl = f"value string, {columns}, Seq {kind}, `is.gone` boolean"
    struct = T.StructType.fromDDL(ddl if deleted else ddl.rsplit(",", 1)[0])
    table: list[tuple[Any, ...]] = []
    source = upserts(
        lambda: spark.createDataFrame(table, struct).coalesce(1),
        key=[field.name.upper() for field in struct.fields[1:-2 if deleted else -1]],
        order="sEQ", deleted="IS.Gone" if deleted else None,
    )
    events: list[Event] = []
    with Dataflow(spark, runner="local", buckets=2) as flow:
        latest = flow.source("rows", source).keep()
        for number, reading in enumerate(readings):
            if not deleted:
                reading = [change._replace(deleted=False) for change in reading]
            events += reading
            table[:] = table[number % 2 * 2:] + [
                (change.value, *values[change.key], sequences[change.sequence], change.deleted)[
                    :len(struct)]
                for change in reading
            ]
            if not flow.catch_up() and not events:
                continue
            rows = rows_after(events)
            answer = latest.at().select("value", *(f"`{name}`" for name in source.key))
            assert shown(answer) == Counter(
                repr((value, *values[key])) for key, value in rows.items())
        table.append((None, *values[0], None, False)[:len(struct)])
        with pytest.raises(SourceError, match="1 rows .* null in sEQ"):
            flow.catch_up()


@example(EXAMPLE)
@given(READINGS)
@settings(max_examples=1)
def test_debezium(spark, tmp_path_factory, readings):
    """Events in any order, in files that leave the folder once they were read."""
    folder = tmp_path_factory.mktemp("events")
    source = debezium(str(folder), "`a.b` int, value string", key="A.B", order="source.lsn")
    events: list[Event] = []
    with Dataflow(spark, runner="local", buckets=2) as flow:
        latest = flow.source("rows", source).keep()
        for number, reading in enumerate(readings):
            lines = []
            for change in reading:
                row = {"a.b": change.key, "value": change.value}
                images = [row, None] if change.deleted else [None, row]
                lines.append(json.dumps({
                    "op": "d" if change.deleted else "c", "before": images[0], "after": images[1],
                    "source": {"lsn": change.sequence},
                }))
            (folder / f"{number}.json").write_text("\n".join(lines), encoding="utf-8")
            read = flow.catch_up()
            (folder / f"{number}.json").unlink()
            events += reading
            if not read and not events:
                continue
            answer = {row["a.b"]: row.value for row in latest.at().collect()}
            assert answer == rows_after(events)
        assert not flow.last_report or not flow.last_report.fallbacks


def test_a_row_is_removed_while_another_comes_late(spark):
    """The number of rows is the same, so the orders are compared by a sum."""
    rows = [(1, "x", 1), (2, "y", 3)]
    source = upserts(
        lambda: spark.createDataFrame(rows, "id int, s string, v long"), key="id", order="v")
    with Dataflow(spark, runner="local") as flow:
        latest = flow.source("rows", source).keep()
        flow.catch_up()
        rows[:] = [(3, "z", 2), (2, "y", 3)]
        flow.catch_up()
        assert sorted(row.s for row in latest.at().collect()) == ["x", "y", "z"]


#: Readings of (key, order, whether it is a deletion), and the rows after each; the retention is 10.
RETAINED: list[tuple[list[tuple[int, int, bool]], set[tuple[int, int]]]] = [
    ([(1, 100, True), (2, 100, False)], {(2, 100)}),
    # Within the retention a late row is compared with the tombstone; beyond it, it is left out.
    ([(1, 95, False), (3, 95, False), (4, 89, False), (5, 130, False)],
     {(2, 100), (3, 95), (5, 130)}),
    # Tombstones before 120 are forgotten, and rows from before 120 are left out.
    ([(1, 99, False), (6, 119, False), (7, 120, False), (2, 110, True)],
     {(2, 100), (3, 95), (5, 130), (7, 120)}),
    ([(1, 125, False), (7, 131, True)], {(1, 125), (2, 100), (3, 95), (5, 130)}),
    ([(7, 130, False)], {(1, 125), (2, 100), (3, 95), (5, 130)}),
]


@pytest.mark.parametrize("kind", ["upserts", "dated upserts", "debezium"])
def test_retention(spark, tmp_path, kind):
    table: list[tuple[Any, ...]] = []
    ddl = f"id int, v {'timestamp' if 'dated' in kind else 'long'}, gone boolean"
    if kind == "debezium":
        source = debezium(str(tmp_path), "id int, v long", key="id", order="v", retention=10)
    else:
        retention = timedelta(seconds=10) if "dated" in kind else 10
        source = upserts(lambda: spark.createDataFrame(table, ddl), key="id", order="v",
                         deleted="gone", retention=retention)
    with Dataflow(spark, runner="local", buckets=2) as flow:
        latest = flow.source("rows", source).keep()
        for number, (changes, expected) in enumerate(RETAINED):
            for key, order, gone in changes:
                when = START + timedelta(seconds=order) if "dated" in kind else order
                table.append((key, when, gone))
            (tmp_path / f"{number}.json").write_text("\n".join(json.dumps({
                "op": "d" if gone else "u", "v": order,
                "before" if gone else "after": {"id": key, "v": order},
            }) for key, order, gone in changes), encoding="utf-8")
            flow.catch_up()
            rows = latest.at().selectExpr(
                "id", f"unix_seconds(v) - {int(START.timestamp())} AS v" if "dated" in kind
                else "v")
            assert {tuple(row) for row in rows.collect()} == expected
            if number == 2:
                versions = flow._sources._feeds["rows"].before()
                assert not versions.where("deleted").count()


def test_a_retention_that_fits_no_order_is_refused(spark):
    table = spark.createDataFrame([], "id int, v string")
    with pytest.raises(ValueError, match="positive length, not 0"):
        upserts(table, key="id", order="v", retention=0)
    with pytest.raises(TypeError, match="whole number, Decimal or timedelta, not 'x'"):
        debezium("folder", "id int", key="id", retention="x")
    with Dataflow(spark, runner="local") as flow:
        with pytest.raises(SchemaError, match="retention 5 cannot be subtracted from v.*string"):
            flow.source("rows", upserts(table, key="id", order="v", retention=5))


def test_null_keys_are_refused_by_name(spark):
    source = Log("int", "long")
    source.keys = [(None,)]
    source.readings = [[event(0, 1)]]
    with Dataflow(spark, runner="local") as flow:
        program(source)(flow)
        with pytest.raises(SchemaError, match="null in the key column a.b"):
            flow.catch_up()
