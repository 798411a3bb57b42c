"""Names of columns, files and folders in sources and sinks other than Delta tables.

    rows of a source  =  rows of its files or table  =  rows of each sink
        with all names; or an error of the name
"""

from __future__ import annotations

import json
from collections import Counter

import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff import Dataflow, SchemaError, SinkError
from pyspark_diff.sinks import change_log, foreach, snapshot
from pyspark_diff.sinks.delta import _net_of, net_changes
from pyspark_diff.sources import (
    batches,
    debezium,
    delta,
    files,
    inbox,
    snapshots,
    updates,
    upserts,
    versioned,
)
from pyspark_diff.spark.delta_files import KIND, VERSION
from pyspark_diff.spark.schema import Schema
from pyspark_diff.trace.inbox import put_batch, put_file
from pyspark_diff.trace.roots import objects_at

#: Names that need quoting, that SQL reserves, and that sources use themselves.
NAMES = [
    "a.B", "c`d", "e f", "g'h", 'i"j', "Éf", "日本", "user", "order", "select", "Mixed", "%s",
    "x/y", "$1", "\\n", "k=V", "a,b", "(c)", "{d};", "*", "_metadata", "op2", "file_name", "row",
    "gone", "last", "path", "before", "after", "key0", "value", "count", "1", "_c",
]
FOLDERS = ["plain", "a b%20c=d", "it's \"é\" `日`", "x=1/y=%2C/#a+b", "{a}[b]*c?d\\e^f"]
FORMATS = ["json", "csv", "parquet", "orc"]


@pytest.fixture
def flow(spark):
    with Dataflow(spark, runner="local", buckets=2) as flow:
        yield flow


def schema_of(names):
    return T.StructType([T.StructField(name, T.StringType()) for name in names])


def names_of(format):
    """All names that a format can store."""
    return [name for name in NAMES if format != "orc" or "`" not in name]


def rows_of(frame):
    return Counter(map(tuple, frame.collect()))


def write(spark, folder, name, rows, schema, format):
    """Write one file of rows under a name with any characters."""
    if format == "json":
        lines = [json.dumps(dict(zip(schema.names, row))) for row in rows]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("\n".join(lines))
        return
    other = folder.parent / "written"
    spark.createDataFrame(rows, schema).coalesce(1).write.format(format).mode("overwrite").save(
        str(other))
    (file,) = other.glob("part-*")
    folder.mkdir(parents=True, exist_ok=True)
    file.rename(folder / name)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("keyed", [False, True])
def test_columns_of_files(spark, flow, tmp_path, format, keyed):
    names, op = names_of(format), "Is.it's \"Op\""
    schema = schema_of([*names, op])
    key = [names[0].swapcase(), "_METADATA"] if keyed else ()
    source = files(str(tmp_path / "in"), schema_of(names), format=format, key=key, op=op,
                   order=["A.b", "ORDER"])
    output = flow.source("rows", source).keep()
    rows = [tuple(f"{n}{i}" for i in range(len(names))) for n in range(3)]
    write(spark, tmp_path / "in", "1", [(*row, "c") for row in rows], schema, format)
    flow.catch_up()
    assert rows_of(output.at()) == Counter(rows) and output.at().columns == names
    write(spark, tmp_path / "in", "2", [(*rows[1], "d")], schema, format)
    flow.catch_up()
    assert rows_of(output.at()) == Counter([rows[0], rows[2]])


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("format", ["json", "parquet"])
def test_folders_and_names_of_files(spark, flow, tmp_path, folder, format):
    schema = schema_of(["v"])
    output = flow.source(
        "rows", files(str(tmp_path / folder), schema, format=format, op=None)).keep()
    # Each pattern would match the names after it, which are read only once.
    names = ["a*", "a?b", "a[bc]", "{ab,ac}", "ab", "ac", "axb", "a b%41+c", "é\\*", "a=b", "#1"]
    for number, name in enumerate(names):
        write(spark, tmp_path / folder, name, [(name,)], schema, format)
        if number % 3 == 2:
            flow.catch_up()
            assert rows_of(output.at()) == Counter((name,) for name in names[:number + 1])
    flow.catch_up()
    assert rows_of(output.at()) == Counter((name,) for name in names)


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("sink", [change_log, snapshot])
def test_folders_of_sinks(spark, tmp_path, folder, sink):
    path, other = str(tmp_path / folder), spark.createDataFrame([(1, 2)], "mine int, b int")
    with Dataflow(spark, runner="local") as flow:
        rows, feed = flow.input("rows", "a int")
        rows.sink("out", sink(path))
        feed.insert([(1,), (2,)])
        flow.advance_to(1)
        feed.remove([(1,)])
        flow.advance_to(2)
        escaped = "".join(f"\\{mark}" if mark in "{}[]*?\\" else mark for mark in path)
        stored = spark.read.parquet(escaped)
        if sink is change_log:
            stored = stored.groupBy("a").agg(F.sum("diff").alias("n")).where("n > 0").select("a")
        assert rows_of(stored) == {(2,): 1}
    other.write.mode("overwrite").parquet(path)
    with Dataflow(spark, runner="local") as flow:
        rows, feed = flow.input("rows", "a int")
        rows.sink("out", sink(path))
        feed.insert([(1,)])
        with pytest.raises(SinkError, match="holds a table of the columns mine, b"):
            flow.advance_to(1)


@pytest.mark.parametrize("format", ["parquet", "json", "orc"])
def test_columns_of_sinks(spark, tmp_path, format):
    columns = []
    with Dataflow(spark, runner="local") as flow:
        names = names_of(format)
        rows, feed = flow.input("rows", schema_of(names))
        rows.sink("log", change_log(str(tmp_path / "log"), format=format))
        rows.sink("all", snapshot(str(tmp_path / "all"), format=format))
        rows.sink("each", foreach(lambda frame, _: columns.append(frame.columns)))
        row = tuple(f"{i}" for i in range(len(names)))
        feed.insert([row])
        flow.advance_to(1)
    assert columns == [[*names, "time", "diff"]]
    for name in "log", "all":
        stored = spark.read.schema(schema_of(names)).format(format).load(str(tmp_path / name))
        assert rows_of(stored.drop("epoch")) == {row: 1}


@pytest.mark.parametrize("enveloped", [False, True])
@pytest.mark.parametrize("keyed", [False, True])
def test_columns_of_events(spark, flow, tmp_path, enveloped, keyed):
    key = [NAMES[0].swapcase(), "_METADATA"] if keyed else ()
    output = flow.source("rows", debezium(str(tmp_path), schema_of(NAMES), key=key)).keep()
    first, second = ({name: f"{n}{i}" for i, name in enumerate(NAMES)} for n in range(2))
    new = {**first, "gone": "new"}
    events = [{"op": "c", "before": None, "after": first, "ts_ms": 1},
              {"op": "c", "before": None, "after": second, "ts_ms": 2},
              {"op": "u", "before": first, "after": new, "ts_ms": 3},
              {"op": "d", "before": second, "after": None, "ts_ms": 4}]
    (tmp_path / "e.json").write_text("\n".join(
        json.dumps({"payload": event} if enveloped else event) for event in events))
    flow.catch_up()
    assert rows_of(output.at()) == {tuple(new.values()): 1}
    # A late event: with a key, all events of its key are looked up.
    late = {name: f"{name}2" for name in NAMES}
    event = {"op": "c", "before": None, "after": late, "ts_ms": 1}
    (tmp_path / "f.json").write_text(json.dumps({"payload": event} if enveloped else event))
    flow.catch_up()
    assert rows_of(output.at()) == {tuple(new.values()): 1, tuple(late.values()): 1}


def test_columns_of_tables(spark, flow):
    struct = schema_of(NAMES)
    rows = [tuple(f"{n}{i}" for i in range(len(NAMES))) for n in range(3)]
    counts = T.StructType([*struct, *(T.StructField(n, T.LongType()) for n in ("t.`x", "d d"))])
    versions = T.StructType([*struct, T.StructField("Q.r", T.LongType()),
                             T.StructField("is`gone", T.BooleanType())])
    key = [NAMES[0].swapcase(), "_METADATA"]
    frames = {
        "rows": spark.createDataFrame(rows, struct),
        "counts": spark.createDataFrame([(*row, n, n) for n, row in enumerate(rows)], counts),
        "versions": spark.createDataFrame(
            [(*row, n, n == 1) for n, row in enumerate(rows)], versions),
    }
    outputs = {name: flow.source(name, source).keep() for name, source in {
        "whole": snapshots(lambda: frames["rows"]),
        "keyed": snapshots(lambda: frames["rows"], key=key),
        "updates": updates(lambda: frames["counts"], time="T.`X", diff="D D"),
        "upserts": upserts(lambda: frames["versions"], key=key, order="q.R", deleted="IS`GONE"),
    }.items()}
    flow.catch_up()
    actual = {name: rows_of(output.at()) for name, output in outputs.items()}
    assert actual["whole"] == actual["keyed"] == Counter(rows)
    assert actual["updates"] == {rows[1]: 1, rows[2]: 2}
    assert actual["upserts"] == {(*row, n): 1 for n, row in enumerate(rows) if n != 1}


def test_columns_of_large_feeds(spark, monkeypatch):
    """Spark finds the last change of each key if the driver does not collect the rows."""
    monkeypatch.setattr(versioned, "few", lambda rows: None)
    kinds = ["insert", "update_preimage", "update_postimage", "delete"]
    struct = schema_of(NAMES)
    feed = T.StructType([*struct, T.StructField(KIND, T.StringType()),
                         T.StructField(VERSION, T.LongType())])
    rows = [tuple(f"{n}{i}" for i in range(len(NAMES))) for n in range(3)]
    new = (*rows[1][:-1], "new")
    changes = [(*rows[0], kinds[0], 1), (*rows[1], kinds[0], 1), (*rows[1], kinds[1], 2),
               (*new, kinds[2], 2), (*rows[2], kinds[0], 1), (*rows[2], kinds[3], 3)]
    source = delta("t", key=NAMES[:2])
    source._columns = struct
    deletes, upserts = source._changes_in(spark.createDataFrame(changes, feed), versions=True)
    assert rows_of(deletes.keys) == {rows[2][:2]: 1}
    assert rows_of(upserts.rows) == {rows[0]: 1, new: 1}


def test_net_changes_are_the_same_on_the_driver_and_in_spark(spark):
    key, values, struct = NAMES[:2], NAMES[2:], schema_of(NAMES)
    old = [tuple(f"{n}{i}" for i in range(len(NAMES))) for n in range(5)]
    new = [(*row[:-1], "new") for row in old]
    changes = [(old[0], 1), (old[1], -1), (new[1], 1), (old[2], -1), (old[3], 1), (old[3], -1),
               (old[4], 1), (new[4], 1)]
    frame = spark.createDataFrame(
        [(*row, n) for row, n in changes], T.StructType([*struct, T.StructField("d", T.LongType())])
    )
    net = [tuple(row) for row in net_changes(frame, "d", key, values).collect()]
    rows, twice = _net_of(frame.toArrow(), "d", Schema(struct), key, values)
    assert [tuple(row.values()) for row in twice.to_pylist()] == [old[4][:2]]
    assert [row[:2] for row in net if row[-1]] == [old[4][:2]]

    def known(row):
        return (*row[: 2 if row[len(NAMES)] == "delete" else len(NAMES)], row[len(NAMES)])

    results = [Counter(known(row) for row in some if row[:2] != old[4][:2])
               for some in (net, zip(*(column.to_pylist() for column in rows.columns)))]
    assert results[0] == results[1] == Counter(
        [(*old[0], "insert"), (*new[1], "update"), (*old[2][:2], "delete")])


@pytest.mark.parametrize("keyed", [False, True])
def test_columns_of_batches(spark, flow, keyed):
    key = [NAMES[0].swapcase(), "_METADATA"] if keyed else ()
    source = batches(schema_of(NAMES), key=key, op="Is`Op", order=["G.one", "ORDER"])
    output, query = flow.source("it's `a.b`", source).keep(), "`q` {x}*'/"
    rows = [tuple(f"{n}{i}" for i in range(len(NAMES))) for n in range(3)]
    # The second batch has its columns in another case, and in another order.
    first = schema_of([*NAMES, "is`OP", "g.One"])
    second = schema_of(["IS`op", "G.ONE", *(name.swapcase() for name in NAMES)])
    take = source.into(flow, query=query)
    take(spark.createDataFrame([(*row, "c", "1") for row in rows], first), 0)
    assert rows_of(output.at()) == Counter(rows) and output.at().columns == NAMES
    changes = [("d", "1", *rows[1]), ("c", "2", *rows[1]), ("d", "3", *rows[1])]
    take(spark.createDataFrame(changes, second), 1)
    take(spark.createDataFrame(changes, second), 1)  # Spark repeats the batch
    assert rows_of(output.at()) == Counter([rows[0], rows[2]])


def put_rows(spark, store, name, query, number, rows, struct):
    """Write one batch of an inbox, as a stream does."""
    objects = objects_at(store)
    arrow = pa.RecordBatch.from_arrays(
        [pa.array(column) for column in zip(*rows)], names=struct.names)
    put_batch(objects, name, query, number, struct,
              [put_file(objects, name, query, number, "0" * 12, 0, [arrow])])


@pytest.mark.parametrize("folder, declared", zip(FOLDERS, [True, False, True, False, True]))
def test_columns_and_folders_of_inboxes(spark, flow, tmp_path, folder, declared):
    store, name, query = str(tmp_path / folder), "we`ird '{x}*' é%41/..", "`q`?"
    key = [NAMES[0].swapcase(), "_METADATA"]
    rows = [tuple(f"{n}{i}" for i in range(len(NAMES))) for n in range(3)]
    new = tuple(old if column in (NAMES[0], "_metadata") else "new"
                for column, old in zip(NAMES, rows[1]))
    other = [column.swapcase() for column in reversed(NAMES)]
    put_rows(spark, store, name, query, 0, rows, schema_of(NAMES))
    schema = schema_of(NAMES) if declared else None
    outputs = {
        "rows": flow.source("rows", inbox(store, name, schema=schema)).keep(),
        "keyed": flow.source("keyed", inbox(store, name, schema=schema, key=key)).keep(),
    }
    flow.catch_up()
    put_rows(spark, store, name, query, 1, [tuple(reversed(new))], schema_of(other))
    flow.catch_up()
    assert outputs["rows"].at().columns == outputs["keyed"].at().columns == NAMES
    assert rows_of(outputs["rows"].at()) == Counter([*rows, new])
    assert rows_of(outputs["keyed"].at()) == Counter([rows[0], new, rows[2]])


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_names_of_a_stream_into_an_inbox(spark, flow, tmp_path, folder):
    store, name = str(tmp_path / folder), "it's {x}* `é`/%41"
    rows = [tuple(f"{n}{i}" for i in range(len(NAMES))) for n in range(3)]
    spark.createDataFrame(rows, schema_of(NAMES)).write.parquet(f"{tmp_path}/in")
    stream = spark.readStream.schema(schema_of(NAMES)).parquet(f"{tmp_path}/in").writeStream
    stream.format("diff").options(path=store, name=name).option(
        "checkpointLocation", f"{tmp_path}/checkpoint"
    ).trigger(availableNow=True).start().awaitTermination()
    output = flow.source("rows", inbox(store, name)).keep()
    flow.catch_up()
    assert rows_of(output.at()) == Counter(rows) and output.at().columns == NAMES


@pytest.mark.parametrize("sensitive", [False, True])
def test_columns_of_an_inbox_that_differ_in_case(spark, flow, tmp_path, sensitive):
    """A stream of a session that distinguishes cases has written both."""
    struct = T.StructType([T.StructField(name, T.LongType()) for name in ("A", "a", "d")])
    put_rows(spark, str(tmp_path), "i", "q", 0, [(1, 2, 1)], struct)
    spark.conf.set("spark.sql.caseSensitive", sensitive)
    try:
        for name in "A", "a":
            output = flow.source(f"of {name}", inbox(str(tmp_path), "i", schema=f"{name} long"))
            output = output.keep()
            flow.catch_up()
            assert rows_of(output.at()) == {(1 if name == "A" else 2,): 1}
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_an_inbox_whose_diff_is_called_time(spark, flow, tmp_path):
    struct = T.StructType([T.StructField("v", T.StringType()), *(
        T.StructField(name, T.LongType()) for name in ("Diff", "Time"))])
    put_rows(spark, str(tmp_path), "i", "q", 0, [("a", 0, 2), ("b", 3, 1)], struct)
    output = flow.source("rows", inbox(str(tmp_path), "i", diff="time", time="diff")).keep()
    flow.catch_up()
    assert rows_of(output.at()) == {("a",): 2, ("b",): 1} and output.at().columns == ["v"]
    assert flow.session("rows").time() == 4


@pytest.mark.parametrize("diff, time, column", [
    ("d", None, "d"), ("d", None, "D"), ("x", "t", "T"), ("x", "X", "v"),
])
def test_a_diff_or_time_that_is_another_column_is_refused(tmp_path, diff, time, column):
    with pytest.raises(SchemaError, match="name .* or leave it out of the schema"):
        inbox(str(tmp_path), "i", schema=f"k string, {column} long", diff=diff, time=time)


def test_a_time_called_diff_and_a_diff_called_time(spark, flow):
    frame = spark.createDataFrame([("a", 0, 2), ("b", 3, 1)], "v string, diff long, time long")
    output = flow.source("rows", updates(lambda: frame, diff="time", time="diff")).keep()
    flow.catch_up()
    assert rows_of(output.at()) == {("a",): 2, ("b",): 1}
    assert flow.session("rows").time() == 4


@pytest.mark.parametrize("op, column", [("op", "OP"), ("OP", "op"), ("op", "op")])
def test_an_op_that_is_a_column_is_refused(op, column):
    with pytest.raises(SchemaError, match=f"column {op} .* Leave it out of the schema"):
        files("/nothing", f"id int, {column} string", op=op)


@pytest.mark.parametrize("name", ["epoch", "Epoch"])
@pytest.mark.parametrize("role", ["column", "time", "diff"])
def test_a_log_that_has_a_column_epoch_is_refused(spark, tmp_path, name, role):
    names = {"time": "time", "diff": "diff", "column": "a", role: name}
    with Dataflow(spark, runner="local", time=names["time"], diff=names["diff"]) as flow:
        rows, feed = flow.input("rows", f"{names['column']} int")
        feed.insert([(1,)])
        with pytest.raises((SchemaError, SinkError), match="epoch"):
            rows.sink("out", change_log(str(tmp_path / "log")))
            flow.advance_to(1)


@pytest.mark.parametrize("columns", ["`c``d` int", "s struct<a: array<struct<`c``d`: int>>>"])
def test_backticks_in_orc_are_refused(spark, tmp_path, columns):
    with pytest.raises(SchemaError, match="ORC has no names with a backtick"):
        files(str(tmp_path), columns, format="orc")
    with Dataflow(spark, runner="local") as flow:
        rows, _ = flow.input("rows", columns)
        for sink in change_log, snapshot:
            with pytest.raises(SchemaError, match="ORC has no names with a backtick"):
                rows.sink("out", sink(str(tmp_path / "out"), format="orc"))
