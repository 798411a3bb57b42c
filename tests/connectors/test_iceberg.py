"""Iceberg tables as sources.

Each runtime of Iceberg needs one version of Spark, and the Spark of the tests has no runtime yet.
Here a session answers from a list of snapshots instead. The command ``ci/iceberg`` runs the tests
of tests/iceberg_*cases.py with Iceberg itself, in an environment with Spark 4.1. It sets
``ICEBERG_JAR`` and ``ICEBERG_PYTHON``.
"""

from __future__ import annotations

import os
import random
import re
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from own_spark import names_of, outcomes_of
from pyspark.errors import UnsupportedOperationException

from pyspark_diff import SourceError
from pyspark_diff.sources import Deletes, Inserts, Removes, Upserts, Whole, iceberg
from pyspark_diff.spark.iceberg import IcebergTable

FILES = [
    Path(__file__).parents[1] / f"iceberg_{name}.py"
    for name in ("cases", "change_cases", "property_cases")
]
CASES = {
    getattr(name, "values", (name,))[0]: file for file in FILES for name in names_of(file)
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory, request):
    if not os.environ.get("ICEBERG_JAR"):
        pytest.skip("ICEBERG_JAR names no jar of Iceberg's runtime")
    names = [item.callspec.params["name"] for item in request.session.items
             if item.path == request.path and "callspec" in vars(item)
             and "name" in item.callspec.params]
    python = os.environ.get("ICEBERG_PYTHON") or sys.executable
    results: dict[str, str] = {}
    for file in FILES:  # each file has its own process
        cases = {name: file for name in names if CASES[name] == file}
        if cases:
            results |= outcomes_of(
                cases, tmp_path_factory.mktemp(file.stem),
                {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}, python,
            )
    return results


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_case(outcomes, name):
    assert outcomes[name] == "", outcomes[name]


class Lake:
    """A session with the table ``lake.db.t``; another session answers all other calls."""

    def __init__(self, spark):
        self._spark, self.asked = spark, []
        self.columns = "id int, v string"
        self.last, self.snapshots, self.deletes = None, {}, "0"
        self.ids, self.file_names = {"id": 1, "v": 2, "w": 3}, None

    def __getattr__(self, name):
        return getattr(self._spark, name)

    def write(self, *rows):
        """Replace the rows of the table in a new snapshot."""
        number = len(self.asked) * 1000 + len(self.snapshots) + 1
        self.snapshots[number] = self.last, Counter(rows), self.columns, dict(self.ids)
        self.last = number

    def table(self, name):
        if name == "lake.db.t.refs":
            return self._frame([], "snapshot_id long")
        return self._frame([], self.columns) if name == "lake.db.t" else self._spark.table(name)

    def sql(self, text):
        self.asked.append(text)
        if text == "REFRESH TABLE lake.db.t":
            return None
        if text == "SELECT * FROM lake.db.t WHERE false":
            return self._frame([], self.columns)
        if match := re.fullmatch(r"SELECT \* FROM lake.db.t VERSION AS OF (\d+)", text):
            _, rows, columns, _ = self.snapshots[int(match[1])]
            return self._frame(list(rows.elements()), columns)
        raise AssertionError(text)

    @property
    def read(self):
        return self

    def options(self, **interval):
        lake = Lake(self._spark)
        vars(lake).update(vars(self))
        lake.table = lambda name: self._changes(name, *map(int, interval.values()))
        return lake

    def state(self):
        parents = {number: snapshot[0] for number, snapshot in self.snapshots.items()}
        then = self.snapshots[self.last][3] if self.last in self.snapshots else self.ids
        return IcebergTable(
            parents, self.last, self.deletes != "0", dict(self.ids), then, self.file_names
        )

    def _changes(self, name, begin, end):
        assert name == "lake.db.t.changes"
        if self.deletes != "0":
            raise RuntimeError("delete files are not supported")
        path = [end]
        while path[-1] != begin:
            path.append(self.snapshots[path[-1]][0])
        path.reverse()
        rows = [
            (*row, kind, place, after)
            for place, (before, after) in enumerate(zip(path, path[1:]))
            for kind, own, other in (("DELETE", before, after), ("INSERT", after, before))
            # A rewritten file also has unchanged rows.
            for row in (self._rows(own) if place % 2 else self._rows(own) - self._rows(other)
                        ).elements()
        ]
        random.Random(5).shuffle(rows)
        return self._frame(
            rows, f"{self.columns}, _change_type string, _change_ordinal int, "
            "_commit_snapshot_id long"
        )

    def _rows(self, number):
        return self.snapshots[number][1] if number in self.snapshots else Counter()

    def _frame(self, rows, columns):
        return self._spark.createDataFrame(rows, columns)


@pytest.fixture
def lake(spark, monkeypatch):
    spark.conf.set("spark.sql.catalog.lake", "some.Catalog")
    module = sys.modules["pyspark_diff.sources.iceberg"]
    monkeypatch.setattr(module, "iceberg_table", lambda lake, _: lake.state())
    yield Lake(spark)
    spark.conf.unset("spark.sql.catalog.lake")


def applied(content, reading):
    """The rows after a reading, in any order."""
    content = Counter(content)
    for change in reading.changes:
        rows = change[0]
        rows = [tuple(row.values()) for row in rows.to_pylist()] if isinstance(
            rows, pa.Table
        ) else list(map(tuple, rows.collect()))
        if isinstance(change, (Upserts, Deletes)):
            keys = {row[0] for row in rows}
            content = Counter(row for row in content.elements() if row[0] not in keys)
        elif isinstance(change, Whole):
            content.clear()
        if isinstance(change, Removes):
            content.subtract(rows)
        elif not isinstance(change, Deletes):
            content.update(rows)
    assert min(content.values(), default=0) >= 0
    return +content


@pytest.mark.parametrize("key", [(), "id"])
def test_changes_add_up_to_the_table(lake, key):
    source, chance = iceberg("lake.db.t", key=key), random.Random(7)
    source.columns(lake)
    reading = source.read(lake, None)
    assert reading.offset["snapshot"] is None and not applied({}, reading)
    assert source.read(lake, reading.offset) is None
    content = Counter()
    for _ in range(6):
        for _ in range(chance.randint(1, 3)):
            rows = [(number, chance.choice("ab")) for number in range(9) if chance.random() < 0.6]
            lake.write(*rows, *(() if key else rows[:3]))
        reading = source.read(lake, reading.offset)
        content = applied(content, reading)
        assert content == lake.snapshots[lake.last][1]
        assert reading.offset == {
            "snapshot": lake.last, "columns": {"id": 1, "v": 2}, "names": None,
        }
        assert source.read(lake, reading.offset) is None


def test_gaps_are_told_or_bridged(lake):
    lake.write((1, "a"))
    strict, lenient = iceberg("lake.db.t"), iceberg("lake.db.t", on_gap="snapshot")
    assert not strict.is_whole and lenient.is_whole
    assert not iceberg("lake.db.t", on_gap="snapshot", key="id").is_whole
    for source in strict, lenient:
        source.columns(lake)
    first = lake.last
    lake.write((1, "a"), (2, "b"))
    offset = strict.read(lake, None).offset

    def gap(match):
        nonlocal offset
        with pytest.raises(SourceError, match=f"{match}.*on_gap='snapshot'"):
            strict.read(lake, offset)
        reading = lenient.read(lake, offset)
        assert [type(change) for change in reading.changes] == [Whole]
        assert applied({(9, "z"): 1}, reading) == lake._rows(lake.last)
        offset = reading.offset

    lake.last = first
    gap("set back")
    lake.write((3, "c"))
    offset = strict.read(lake, offset).offset
    # The last read snapshot has expired, and all later ones are present.
    lake.write((4, "d"))
    (_, came) = strict.read(lake, offset).changes
    assert isinstance(came, Inserts) and came.rows.to_pylist() == [{"id": 4, "v": "d"}]
    expired = [number for number in lake.snapshots if number != lake.last]
    lake.write()
    for number in [*expired, offset["snapshot"]]:
        lake.snapshots.pop(number, None)
    del lake.snapshots[lake.snapshots[lake.last][0]]
    gap("have expired")
    lake.last = None
    gap("has no snapshot.*replaced")
    lake.write((5, "e"))
    assert applied({}, strict.read(lake, offset)) == {(5, "e"): 1}
    offset = {"snapshot": 77}
    gap("replaced")
    lake.write((5, "f"))
    lake.deletes = "3"
    gap("delete files are not supported.*copy-on-write.*rewrite_data_files")


def test_other_columns_are_refused(lake):
    lake.write((1, "a"))
    source = iceberg("lake.db.t", on_gap="snapshot")
    source.columns(lake)
    offset = source.read(lake, None).offset
    lake.columns, lake.ids = "id int, w string", {"id": 1, "w": 2}
    anew = iceberg("lake.db.t")
    anew.columns(lake)
    message = "v was renamed to w"
    with pytest.raises(SourceError, match=f"altered after its last snapshot .{message}"):
        anew.read(lake, None)
    lake.write((2, "b"))
    assert applied({}, anew.read(lake, None)) == {(2, "b"): 1}
    with pytest.raises(SourceError, match=f"{message}.*on_change='rebuild'"):
        source.read(lake, offset)


def test_a_column_that_was_dropped_and_added_again_is_told(lake):
    lake.write((1, "a"))
    strict, lenient = iceberg("lake.db.t"), iceberg("lake.db.t", on_gap="snapshot")
    for source in strict, lenient:
        source.columns(lake)
    offset = strict.read(lake, None).offset
    lake.ids["v"] = 9
    message = "v was dropped and added again"
    with pytest.raises(SourceError, match=f"{message}.*on_gap='snapshot'"):
        strict.read(lake, offset)
    with pytest.raises(SourceError, match=f"altered after its last snapshot .{message}"):
        lenient.read(lake, offset)
    lake.write((1, None))
    with pytest.raises(SourceError, match=f"{message}.*on_gap='snapshot'"):
        strict.read(lake, offset)
    reading = lenient.read(lake, offset)
    assert applied({(1, "a"): 1}, reading) == {(1, None): 1}
    assert strict.read(lake, reading.offset) is None
    # An offset of an earlier version of the library has no ids.
    assert strict.read(lake, {"snapshot": lake.last}) is None


def test_another_name_mapping_is_a_gap(lake):
    """The mapping assigns the columns of files without ids, so the rows may differ."""
    lake.write((1, "a"))
    strict, lenient = iceberg("lake.db.t"), iceberg("lake.db.t", on_gap="snapshot")
    for source in strict, lenient:
        source.columns(lake)
    offset = strict.read(lake, None).offset
    lake.write((1, "b"))
    lake.file_names = {}  # add_files sets a mapping with the names of the columns
    offset = strict.read(lake, offset).offset
    assert offset["names"] == {}
    for names, error in ({"w": ["x"]}, None), ({"v": ["x"]}, "gap"), (None, "gap"), ({}, "gap"):
        lake.file_names = names
        if error is None:
            assert strict.read(lake, offset) is None
            continue
        with pytest.raises(SourceError, match="name-mapping.default.*on_gap='snapshot'"):
            strict.read(lake, offset)
        reading = lenient.read(lake, offset)
        assert [type(change) for change in reading.changes] == [Whole]
        offset = reading.offset
        assert strict.read(lake, offset) is None
    del offset["names"]  # an offset of an earlier version
    assert strict.read(lake, offset) is None


def test_columns_of_reserved_names_are_refused(lake):
    lake.columns = "id int, _file string, _pos int"
    with pytest.raises(SourceError, match="reserves: _file, _pos.*RENAME COLUMN _file TO"):
        iceberg("lake.db.t").columns(lake)


def test_types_that_spark_cannot_read_are_told(lake, monkeypatch):
    def fails(_):
        raise UnsupportedOperationException("Spark does not support time fields")

    monkeypatch.setattr(lake, "table", fails, raising=False)
    with pytest.raises(SourceError, match="does not support time fields.*Drop the column"):
        iceberg("lake.db.t").columns(lake)


def test_a_table_that_is_altered_while_it_is_read_is_told(lake, monkeypatch):
    lake.write((1, "a"))
    source = iceberg("lake.db.t")
    source.columns(lake)
    offset = source.read(lake, None).offset
    lake.write((2, "b"))
    options = lake.options

    def altered(**interval):
        lake.ids["v"] = 9
        return options(**interval)

    monkeypatch.setattr(lake, "options", altered, raising=False)
    with pytest.raises(SourceError, match="altered while it was read.*Call catch_up"):
        source.read(lake, offset)


def test_what_is_no_table_is_told(spark):
    spark.createDataFrame([(1,)], "a int").write.saveAsTable("plain")
    try:
        for name, message in (
            ("nosuch", "no table `spark_catalog`.default.nosuch"),
            ("plain", "`spark_catalog`.default.plain is no Iceberg table"),
        ):
            with pytest.raises(SourceError, match=f"{message}.*iceberg-spark-runtime"):
                iceberg(name).columns(spark)
    finally:
        spark.sql("DROP TABLE plain")
    with pytest.raises(ValueError, match="'refuse' or 'snapshot'"):
        iceberg("t", on_gap="skip")
