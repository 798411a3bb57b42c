"""Files of Delta tables that deltalake reads otherwise than Spark: Spark reads and merges them.

    changes by deltalake  =  rows of the files          or the reason of a fallback
"""

from __future__ import annotations

import datetime
import json
import random
import re
from collections import Counter
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from pyspark_diff.spark import delta_files
from pyspark_diff.spark.delta_files import DeltaFiles

FEED = {"delta.enableChangeDataFeed": "true"}


def files_of(folder):
    return DeltaFiles(Path(folder), DeltaTable(str(folder)))


def rewrite_files(folder, write):
    """Rewrite each file of a table, and its size in the log."""
    for log in folder.glob("_delta_log/*.json"):
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        for add in (action["add"] for action in actions if "add" in action):
            path = folder / add["path"]
            write(pq.read_table(path), path)
            add["size"] = path.stat().st_size
        log.write_text("\n".join(map(json.dumps, actions)))


def write_int96(rows, path):
    pq.write_table(rows, path, use_deprecated_int96_timestamps=True)


def by_spark(version, *keys, **options):
    """A function that writes a file with the keys of a version of Spark."""
    footer = {"org.apache.spark.version": version}
    footer |= {f"org.apache.spark.{key}": "" for key in keys}
    return lambda rows, path: pq.write_table(rows.replace_schema_metadata(footer), path, **options)


write_legacy = by_spark("4.2.0", "legacyDateTime")
INT96 = {"use_deprecated_int96_timestamps": True}


def write_local(rows, path):
    pq.write_table(rows.set_column(1, "v", rows["v"].cast(pa.timestamp("us"))), path)


def write_other_case(rows, path):
    pq.write_table(rows.rename_columns([name.upper() for name in rows.column_names]), path)


UTC = datetime.timezone.utc
NEAR = [datetime.datetime(1678, 1, 1, tzinfo=UTC), datetime.datetime(2262, 1, 1, tzinfo=UTC), None]
FAR = [datetime.datetime(9999, 12, 31, tzinfo=UTC), datetime.datetime(1600, 1, 1, tzinfo=UTC)]
DAY = [datetime.date(9999, 12, 31), datetime.date(1, 1, 1), None]
INSTANT, MILLIS = pa.timestamp("us", "UTC"), pa.timestamp("ms", "UTC")
#: Values of a column, how its file is written, and the reason of the fallback to Spark.
FILES = {
    "near INT96": (NEAR, INSTANT, write_int96, None),
    "first INT96": (FAR[1:], INSTANT, write_int96, "outside the years"),
    "last INT96": ([*NEAR, FAR[0]], INSTANT, write_int96, "outside the years"),
    "INT96 without values": ([None], INSTANT, write_int96, None),
    "microseconds": ([*NEAR, *FAR], INSTANT, pq.write_table, None),
    "milliseconds": (FAR, INSTANT, lambda rows, path: pq.write_table(
        rows, path, coerce_timestamps="ms"), r"timestamp\[ms"),
    "local INT96": ([None], pa.timestamp("us"), write_int96, "96 bits"),
    "local microseconds": (NEAR, INSTANT, write_local, r"timestamp\[us\] in the file"),
    "INT96 of Spark 3.0": (NEAR, INSTANT, by_spark("3.0.3", **INT96), "calendar"),
    "INT96 of Spark 3.1": (NEAR, INSTANT, by_spark("3.1.0", **INT96), None),
    "INT96 in the calendar of Spark 2": (
        NEAR, INSTANT, by_spark("4.2.0", "legacyINT96", **INT96), "calendar"),
    "nested INT96": ([[NEAR[0]]], pa.list_(INSTANT), write_int96,
                     "nested timestamps of 96 bits|of type array<timestamp>"),
    "dates": (DAY, pa.date32(), pq.write_table, None),
    "dates of Spark 2": (DAY, pa.date32(), write_legacy, "calendar"),
    "dates of Spark 2.4": (DAY, pa.date32(), by_spark("2.4.8"), "calendar"),
    "dates of Spark 3.0": (DAY, pa.date32(), by_spark("3.0.0"), None),
    "numbers of Spark 2": ([1], pa.int64(), write_legacy, None),
    "another case": (["a"], pa.string(), write_other_case, "case"),
    "large text": (["a", "", None], pa.string(), lambda rows, path: pq.write_table(
        rows.set_column(1, "v", rows["v"].cast(pa.large_string())), path), None),
    "narrow numbers": ([1], pa.int64(), lambda rows, path: pq.write_table(
        rows.set_column(1, "v", rows["v"].cast(pa.int32())), path), "int32 in the file"),
}


@pytest.mark.parametrize("kind", FILES)
def test_files_that_deltalake_reads_otherwise_are_left_to_spark(tmp_path, kind, caplog):
    values, dtype, write, reason = FILES[kind]
    caplog.set_level("DEBUG", "pyspark_diff")
    rows = pa.table({"k": pa.array(range(len(values)), pa.int64()), "v": pa.array(values, dtype)})
    folder = tmp_path / "t"
    write_deltalake(folder, rows.slice(0, 0), configuration=FEED)
    write_deltalake(folder, rows, mode="append")
    rewrite_files(folder, write)
    changes = files_of(folder).changes(["k", "v"], 1, 1000)
    can_be_merged_into = files_of(folder).can_be_merged_into()
    assert can_be_merged_into == (changes is not None) == (reason is None), caplog.text
    if reason is not None:
        assert {record.args[0].operator for record in caplog.records} == {"delta", "delta_merge"}
        for record in caplog.records:
            assert re.search(reason, record.args[0].reason), record.args
        # Both readers read the same values of the other column.
        assert files_of(folder).changes(["k"], 1, 1000) is not None or "case" in reason
        return
    assert changes.select(["k", "v"]).sort_by("k").equals(rows)
    new = pa.table({"k": pa.array([-1], pa.int64()), "v": pa.array([None], dtype),
                    "kind": ["insert"]})
    assert files_of(folder).merge(new, ["k"], "kind", "me", 0)
    merged = pa.table(DeltaTable(str(folder)).scan()).cast(rows.schema).sort_by("k")
    assert merged.slice(1).equals(rows)


@pytest.mark.parametrize("rows, files, updates", [(8193, 1, 8193), (30_000, 3, 9000)])
def test_a_merge_of_more_rows_than_a_batch_is_exact(tmp_path, rows, files, updates):
    """Each key is in the table once; deltalake reads batches of 8,192 rows."""
    choose, folder = random.Random(rows), tmp_path / "t"
    keys = choose.sample(range(rows), rows)
    for first in range(files):
        part = keys[first::files]
        write_deltalake(folder, pa.table({"k": part, "v": part}), mode="append")
    there = {key: key for key in keys}
    changed, new = choose.sample(keys, updates), range(rows, rows + 10_000)
    kinds = ["delete" if key % 5 == 0 else "update" for key in changed] + ["insert"] * len(new)
    for key, kind in zip([*changed, *new], kinds):
        there[key] = -key
        if kind == "delete":
            del there[key]
    changes = pa.table({
        "k": [*changed, *new], "v": [-key for key in (*changed, *new)], "kind": kinds})
    assert files_of(folder).can_be_merged_into()
    assert files_of(folder).merge(changes, ["k"], "kind", "me", 0)
    merged = pa.table(DeltaTable(str(folder)).scan()).to_pydict()
    assert Counter(zip(merged["k"], merged["v"])) == Counter(there.items())


@pytest.mark.parametrize("version, is_used", [
    ("1.6.6", True), ("1.10.0", True), ("2.0.0rc1", True), ("1.6.5", False), ("0.25.5", False),
])
def test_an_old_deltalake_is_not_used_and_a_warning_names_it(
    monkeypatch, caplog, version, is_used
):
    monkeypatch.setattr(deltalake, "__version__", version)
    delta_files._library_reason.cache_clear()
    try:
        for _ in range(2):
            assert (delta_files._library_reason() is None) == is_used
    finally:
        delta_files._library_reason.cache_clear()
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == (not is_used) and all(version in text for text in warned)


@pytest.mark.parametrize("sql_type, is_read", [
    ("char(4)", False), ("array<char(4)>", False), ("varchar(4)", True), ("CHAR", True),
])
def test_columns_that_spark_pads_are_left_to_spark(tmp_path, sql_type, is_read):
    rows = pa.schema([
        pa.field("v", pa.string(), metadata={"__CHAR_VARCHAR_TYPE_STRING": sql_type}),
        pa.field("k", pa.int64())])
    write_deltalake(tmp_path / "t", pa.table([["a"], [1]], schema=rows), configuration=FEED)
    write_deltalake(tmp_path / "t", pa.table([["b"], [2]], schema=rows), mode="append")
    assert (files_of(tmp_path / "t").changes(["v", "k"], 1, 9) is not None) == is_read
    assert files_of(tmp_path / "t").changes(["k"], 1, 9).num_rows == 1


@pytest.mark.parametrize("kind, is_read", [
    (pa.int64(), True), (pa.string(), True), (pa.date32(), True), (pa.float64(), False),
    (pa.timestamp("us", "UTC"), False), (pa.timestamp("us"), False), (pa.decimal128(9, 2), False),
])
def test_partitions_whose_text_is_ambiguous_are_left_to_spark(tmp_path, kind, is_read):
    rows = pa.table({"v": pa.array([None], kind), "k": [1]})
    for _ in range(2):
        write_deltalake(tmp_path / "t", rows, partition_by=["v"], mode="append",
                        configuration=FEED)
    assert (files_of(tmp_path / "t").changes(["v", "k"], 1, 9) is not None) == is_read
    assert files_of(tmp_path / "t").changes(["k"], 1, 9).num_rows == 1
