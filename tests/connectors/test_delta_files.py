"""Delta tables in local files, read and merged into by deltalake and not by Spark.

    contents(v)  +  changes(v + 1 .. w)  =  contents(w)          or Spark reads the table
    contents, merged with rows           =  the same updates of a dictionary

The tests of tests/delta_cases.py write and read with Spark.
"""

from __future__ import annotations

import datetime
import decimal
import json
import random
import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from pyspark_diff.spark.delta_commits import METADATA
from pyspark_diff.spark.delta_files import KIND, DeltaFiles

FEED = {"delta.enableChangeDataFeed": "true"}
D = decimal.Decimal


def files_of(folder, version=None):
    return DeltaFiles(Path(folder), DeltaTable(str(folder), version=version))


def contents(folder, version=None):
    table = pa.table(DeltaTable(str(folder), version=version).scan())
    return Counter(tuple(row[name] for name in ("K", "p", "a.b")) for row in table.to_pylist())


def rows_of(numbers, choose):
    return pa.table({
        "K": pa.array(numbers, pa.int64()),
        "p": pa.array([choose.choice([None, "x", "y"]) for _ in numbers], pa.string()),
        "a.b": pa.array([choose.randrange(5) for _ in numbers], pa.int32()),
    })


def changed(folder, choose):
    """Make one random change of a table."""
    table = DeltaTable(str(folder))
    number = choose.randrange(9)
    what = choose.choice(["append"] * 3 + ["delete", "update", "overwrite", "compact", "restore"])
    if what == "append":
        write_deltalake(table, rows_of([choose.randrange(9) for _ in range(4)], choose),
                        mode="append")
    elif what == "delete":
        table.delete(f"`K` = {number}")
    elif what == "update":
        table.update({"`a.b`": "7"}, predicate=f"`K` > {number}")
    elif what == "overwrite":
        write_deltalake(table, rows_of(range(number), choose), mode="overwrite")
    elif what == "compact":
        table.optimize.compact()
    elif table.version() > 1:
        table.restore(table.version() - 1)


@pytest.mark.parametrize("partitioned", [None, ["p"]])
@pytest.mark.parametrize("seed", range(3))
def test_changes_add_up_to_what_is_there(tmp_path, seed, partitioned):
    choose, folder = random.Random(seed), tmp_path / "t"
    write_deltalake(folder, rows_of([1, 2, 2], choose), partition_by=partitioned,
                    configuration=FEED)
    for _ in range(10):
        changed(folder, choose)
    last, answered = DeltaTable(str(folder)).version(), 0
    at = {version: contents(folder, version) for version in range(last + 1)}
    for end in range(1, last + 1):
        for begin in range(end):
            changes = files_of(folder, end).changes(["K", "p", "a.b"], begin + 1, 1000)
            if changes is None:
                continue
            answered += 1
            total = Counter(at[begin])
            for row in changes.to_pylist():
                comes = row[KIND] in ("insert", "update_postimage")
                total[row["K"], row["p"], row["a.b"]] += 1 if comes else -1
            assert {row: n for row, n in total.items() if n} == at[end], (begin, end)
    assert answered > last
    assert files_of(folder).changes(["K"], 1, 1) is None  # more than one row


KEYS = {
    "boolean": (pa.bool_(), [None, True, False]),
    "number": (pa.int64(), [None, 0, -1, 2**63 - 1]),
    "money": (pa.decimal128(15, 2), [None, D("0.01"), D("-9999999999999.99"), D("1.00")]),
    # The library rounds the bounds of the next columns.
    "cents": (pa.decimal128(18, 2), [
        None, D("1234567890123456.78"), D("1234567890123456.79"), D(0)]),
    "wide": (pa.decimal128(38, 0), [None, D(10**37 + 1), D(10**37 + 2), D(-(10**37)), D(0)]),
    "product": (pa.decimal128(27, 4), [None, D("1e22"), D("1e22") + D("0.0001"), D("-0.5")]),
    "double": (pa.float64(), [None, float("nan"), 0.1, 0.0, float("inf"), -1e300, 2.0**60]),
    "float": (pa.float32(), [None, float("nan"), 0.5, 0.0, float("-inf"), 16777216.0]),
    "text": (pa.string(), [None, "", "a", "\U0010ffff" * 30, "z" * 200]),
    "bytes": (pa.binary(), [None, b"", b"\xff", b"a"]),
    "day": (pa.date32(), [None, datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
    "instant": (pa.timestamp("us", "UTC"), [
        None, datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, datetime.timezone.utc),
        datetime.datetime(2026, 3, 29, 1, 30, tzinfo=datetime.timezone.utc)]),
}


@pytest.mark.parametrize("name", KEYS)
def test_merged_is_what_a_dictionary_makes_of_it(tmp_path, name):
    kind, values = KEYS[name]
    choose, folder = random.Random(name), tmp_path / "t é"
    fields = pa.schema([("s", kind), ("Kind", pa.int32()), ("v `", pa.float64())])

    def table(rows):
        columns = zip(*rows) if rows else ([], [], [])
        return pa.table([pa.array(c, f.type) for c, f in zip(columns, fields)], schema=fields)

    write_deltalake(folder, table([]), configuration=FEED)
    there, fresh = {}, iter(range(10**6))
    for number in range(12):
        rows, kinds = [], []
        for value in choose.sample(values, choose.randrange(1, len(values) + 1)):
            key = value, choose.choice([None, 1])
            row = *key, choose.choice([float("nan"), -0.5, float(next(fresh))])
            kinds.append(choose.choice(["update", "delete"]) if key in there else "insert")
            rows.append(row)
            there.pop(key, None)
            if kinds[-1] != "delete":
                there[key] = row
        files, behind = files_of(folder), files_of(folder)
        changes = table(rows).append_column("__kind", pa.array(kinds, pa.string()))
        assert files.can_be_merged_into()
        new = changes.filter(pc.equal(changes["__kind"], "insert"))
        assert not files.among(new, ["s", "Kind"]).num_rows
        assert files.among(changes, ["s", "Kind"]).num_rows == len(kinds) - new.num_rows
        assert files.merge(changes, ["s", "Kind"], "__kind", "me", number)
        stored = pa.table(DeltaTable(str(folder)).scan()).cast(fields)
        assert sorted(map(repr, stored.to_pylist())) == sorted(
            map(repr, table(list(there.values())).to_pylist()))
        assert files_of(folder).last_number("me") == number
        assert not behind.merge(changes, ["s", "Kind"], "__kind", "me", number)
    # A bound does not cover NaN, so that the files have no bounds.
    for file in sorted(folder.glob("_delta_log/*.json"))[1:]:
        for action in map(json.loads, file.read_text().splitlines()):
            if "add" in action:
                assert not json.loads(action["add"]["stats"]).get("minValues")


@pytest.mark.parametrize("properties", [
    {"delta.isolationLevel": "Serializable"}, {"delta.appendOnly": "true"},
    {"delta.setTransactionRetentionDuration": "interval 1 day"}, {"delta.dataSkippingStats": "x"},
])
def test_tables_with_other_rules_are_left_to_spark(tmp_path, properties):
    rows = pa.table({"k": [1], "v": ["a"]})
    write_deltalake(tmp_path / "t", rows)
    folder = tmp_path / "t" / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in folder.read_text().splitlines()]
    for action in actions:
        if "metaData" in action:
            action["metaData"]["configuration"].update(properties)
    folder.write_text("\n".join(map(json.dumps, actions)))
    assert not files_of(tmp_path / "t").can_be_merged_into()


def add_to_column(**rules):
    """A function that adds metadata to the last column of a table."""
    def change(actions):
        for metadata in (action["metaData"] for action in actions if "metaData" in action):
            schema = json.loads(metadata["schemaString"])
            schema["fields"][-1]["metadata"] |= rules
            metadata["schemaString"] = json.dumps(schema)

    return change


def add_to_files(**fields):
    """A function that adds fields to each file of the last commit."""
    def change(actions):
        last = max(number for number, action in enumerate(actions) if "commitInfo" in action)
        for add in (action["add"] for action in actions[last - 2:] if "add" in action):
            add |= {name: value(add) if callable(value) else value
                    for name, value in fields.items()}

    return change


def set_property(name, value):
    def change(actions):
        for action in actions:
            action.get("metaData", {"configuration": {}})["configuration"][name] = value

    return change


class OtherProtocol:
    """A table of deltalake with some changed entries of its protocol."""

    def __init__(self, table, **protocol):
        self._table, self._protocol = table, protocol

    def __getattr__(self, name):
        return getattr(self._table, name)

    def protocol(self):
        return self._table.protocol()._replace(**self._protocol)


VECTOR = {"storageType": "u", "pathOrInlineDv": "x", "offset": 1, "sizeInBytes": 1,
          "cardinality": 1}
#: Changes of a log, and parts of the reasons why Spark reads and merges the table. None: deltalake
#: does.
LOGS = {
    "plain": (lambda actions: None, None, None),
    "column mapping": (set_property("delta.columnMapping.mode", "name"), "mapping", "mapping"),
    "a check constraint": (
        set_property("delta.constraints.small", "v < 9"), None, "delta.constraints.small"),
    "a generated column": (
        add_to_column(**{"delta.generationExpression": "k * 2"}), None, "generationExpression"),
    "an identity column": (add_to_column(**{"delta.identity.start": 1}), None, "identity.start"),
    "a default": (add_to_column(CURRENT_DEFAULT="7"), None, "CURRENT_DEFAULT"),
    "an invariant": (add_to_column(**{"delta.invariants": "{}"}), None, "delta.invariants"),
    "a widened column": (add_to_column(**{"delta.typeChanges": []}), None, "delta.typeChanges"),
    "a file elsewhere": (
        add_to_files(path=lambda add: f"file:///other/{add['path']}"), "outside the folder",
        "outside the folder"),
}
#: Entries of a protocol, and the same reasons.
PROTOCOLS = {
    "a reader's feature": (dict(reader_features=["typeWidening"]), "unknown", "unknown"),
    "a writer's feature": (
        dict(min_writer_version=7, writer_features=["rowTracking"]), None, "unknown"),
    "an earlier writer": (dict(min_writer_version=6, writer_features=None), None, "unknown"),
    "known features": (
        dict(min_writer_version=7, reader_features=["deletionVectors"],
             writer_features=["deletionVectors", "invariants"]), None, None),
}


@pytest.mark.parametrize("name", [*LOGS, *PROTOCOLS])
def test_logs_that_spark_reads_name_the_reason(tmp_path, caplog, name):
    """No commit may change rules of a table, or lose rows that only Spark sees."""
    caplog.set_level("DEBUG", "pyspark_diff")
    rows = pa.table({"k": pa.array([1], pa.int64()), "v": pa.array([2], pa.int64())})
    for _ in range(2):
        write_deltalake(tmp_path / "t", rows, mode="append", configuration=FEED)
    if name in LOGS:
        change, source, sink = LOGS[name]
        logs = sorted((tmp_path / "t" / "_delta_log").glob("*.json"))
        parts = [[json.loads(line) for line in log.read_text().splitlines()] for log in logs]
        change([action for part in parts for action in part])
        for log, part in zip(logs, parts):
            log.write_text("\n".join(map(json.dumps, part)))
        files = files_of(tmp_path / "t")
    else:
        protocol, source, sink = PROTOCOLS[name]
        table = OtherProtocol(DeltaTable(str(tmp_path / "t")), **protocol)
        files = DeltaFiles(tmp_path / "t", table)
    for answer, reason in (
        (files.changes(["k", "v"], 1, 9), source), (files.can_be_merged_into() or None, sink),
    ):
        assert (answer is None) == (reason is not None), caplog.text
    reasons = [record.args[0].reason for record in caplog.records]
    wanted = [reason for reason in (source, sink) if reason is not None]
    assert len(reasons) == len(wanted)
    assert all(part in reason for part, reason in zip(wanted, reasons)), reasons


def test_changes_of_schemas_and_of_deletion_vectors_are_read_by_spark(tmp_path, caplog):
    caplog.set_level("DEBUG", "pyspark_diff")
    for number in range(2):
        write_deltalake(tmp_path / "t", pa.table({"k": [number]}), mode="append",
                        configuration=FEED)
    DeltaTable(str(tmp_path / "t")).alter.set_table_properties({"delta.appendOnly": "true"})
    files = files_of(tmp_path / "t")
    assert files.changes(["k"], 1, 9) is None
    assert "version 2 changed the schema, the properties" in caplog.records[-1].args[0].reason
    log = tmp_path / "t" / "_delta_log" / f"{2:020d}.json"
    add = {"path": "a.parquet", "size": 1, "dataChange": True, "deletionVector": VECTOR}
    for reason, actions in (
        ("version 2 has deletion vectors", [{"add": add}]),
        ("version 2 has deletion vectors", [{"remove": add}]),
        ("a.parquet", [{"add": {**add, "deletionVector": None}}]),
    ):
        log.write_text("\n".join(map(json.dumps, actions)))
        assert files.changes(["k"], 1, 9) is None
        assert reason in caplog.records[-1].args[0].reason


def test_more_changes_than_the_limit_are_left_to_spark(tmp_path, caplog):
    caplog.set_level("DEBUG", "pyspark_diff")
    for _ in range(4):
        write_deltalake(tmp_path / "t", pa.table({"k": [*range(5)]}), mode="append",
                        configuration=FEED)
    files = files_of(tmp_path / "t")
    assert files.changes(["k"], 1, 15).num_rows == 15
    for most in 1, 14:
        assert files.changes(["k"], 1, most) is None
        assert f"more than {most} rows changed" in caplog.records[-1].args[0].reason


def test_types_that_both_write_differently_are_left_to_spark(tmp_path, caplog):
    caplog.set_level("DEBUG", "pyspark_diff")
    kinds = pa.list_(pa.int64()), pa.struct({"a": pa.int64()}), pa.map_(pa.string(), pa.int64())
    for number, kind in enumerate(kinds):
        folder = tmp_path / f"t{number}"
        write_deltalake(folder, pa.table({"k": [1], "v": pa.array([None], kind)}))
        assert not files_of(folder).can_be_merged_into()
        assert "column 'v' is of type" in caplog.records[-1].args[0].reason


def test_a_column_with_a_comment_is_merged_and_keeps_it(tmp_path):
    text = {"comment": "text"}
    fields = pa.schema([("k", pa.int64()), pa.field("v", pa.string(), metadata=text)])
    write_deltalake(tmp_path / "t", pa.table([[1], ["a"]], schema=fields))
    files = files_of(tmp_path / "t")
    assert files.struct["v"].metadata == {"comment": "text"} and files.can_be_merged_into()
    rows = pa.table({"k": [1], "v": ["b"], "__kind": ["update"]})
    assert files.merge(rows, ["k"], "__kind", "me", 0)
    after = files_of(tmp_path / "t")
    assert after.struct == files.struct and after.row_count() == 1
    assert pa.table(DeltaTable(str(tmp_path / "t")).scan())["v"].to_pylist() == ["b"]


def test_rows_are_counted_by_the_log_if_it_has_their_number(tmp_path):
    folder = tmp_path / "t"
    DeltaTable.create(folder, pa.schema([("k", pa.int64())]))
    assert files_of(folder).row_count() == 0
    write_deltalake(folder, pa.table({"k": [1, 2]}), mode="append")
    write_deltalake(folder, pa.table({"k": [3]}), mode="append")
    assert files_of(folder).row_count() == 3
    DeltaTable(str(folder)).delete("k = 1")
    assert files_of(folder).row_count() == 2
    DeltaTable(str(folder)).delete()
    assert files_of(folder).row_count() == 0
    write_deltalake(tmp_path / "u", pa.table({"k": [1]}))
    log = tmp_path / "u" / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        action.get("add", {}).pop("stats", None)
    log.write_text("\n".join(map(json.dumps, actions)))
    assert files_of(tmp_path / "u").row_count() is None


@pytest.mark.parametrize("name", ["cents", "wide", "product", "double", "float"])
def test_no_file_is_skipped_by_bounds_that_are_rounded(tmp_path, name):
    """An equality condition skips files by rounded bounds."""
    kind, values = KEYS[name]
    fields = pa.schema([("k", kind), ("n", pa.int32())])
    for first in range(0, len(values), 2):
        two = values[first : first + 2]
        write_deltalake(tmp_path, pa.table([pa.array(two, kind), [0] * len(two)], schema=fields),
                        mode="append")
    for number, value in enumerate(values, 1):
        files = files_of(tmp_path)
        assert files.can_be_merged_into()
        change = pa.table([pa.array([value], kind), [number]], schema=fields)
        change = change.append_column("__kind", pa.array(["update"]))
        assert files.merge(change, ["k"], "__kind", "me", number)
    rows = pa.table(DeltaTable(str(tmp_path)).scan()).cast(fields)
    assert sorted(map(repr, rows.to_pylist())) == sorted(
        repr({"k": value.as_py(), "n": number})
        for number, value in enumerate(pa.array(values, kind), 1))


def test_partitioned_tables_are_left_to_spark(tmp_path):
    rows = pa.table({"x": [1.0], "k": [1]})
    write_deltalake(tmp_path, rows, partition_by=["k"])
    assert not files_of(tmp_path).can_be_merged_into()


def test_what_fails_is_left_to_spark(tmp_path):
    """A panic of Rust, which is no `Exception`, also leaves the table to Spark."""
    write_deltalake(tmp_path / "made", pa.table({"k": [1]}), configuration=FEED)
    write_deltalake(tmp_path / "made", pa.table({"k": [2]}), mode="append")
    for name in "t", "a[b":
        folder = tmp_path / name
        shutil.copytree(tmp_path / "made", folder)
        files = files_of(folder)
        assert (files.changes(["k"], 1, 9) is None) == (name == "a[b")
        for file in folder.glob("*.parquet"):
            file.write_bytes(b"no such file")
        assert files_of(folder).changes(["k"], 0, 9) is None
        assert files_of(folder).among(pa.table({"k": [1]}), ["k"]) is None
        (folder / "_delta_log" / f"{1:020d}.json").write_text("{")
        assert files.changes(["k"], 1, 9) is None and files.mark(1) is None


def test_a_log_is_read_whose_texts_have_other_line_ends(tmp_path):
    text = "a\u2028b\u0085c\x1cd\r\ne"
    for number in range(2):
        write_deltalake(
            tmp_path / "t", pa.table({"k": [number]}), mode="append", configuration=FEED,
            commit_properties=CommitProperties(custom_metadata={METADATA: text}),
        )
    files = files_of(tmp_path / "t")
    assert [commit.metadata for commit in files.commits()] == [text, text]
    assert files.mark(1) is not None and files.changes(["k"], 1, 9).num_rows == 1
