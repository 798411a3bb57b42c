"""Each kind of source reads all new changes, or refuses them with an error."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from test_types import VALUES

from pyspark_diff import Dataflow, DiffError, NotReadableError, SchemaError, SourceError
from pyspark_diff.fallbacks import ADDED
from pyspark_diff.sinks import foreach
from pyspark_diff.sources import (
    batches,
    debezium,
    files,
    snapshots,
    updates,
    upserts,
)


def rows_of(frame):
    return sorted((tuple(row) for row in frame.at().collect()), key=repr)


class Table:
    """A table whose rows can change between readings."""

    def __init__(self, spark, columns, rows=()):
        self.spark, self.columns, self.rows = spark, columns, list(rows)

    def __call__(self):
        return self.spark.createDataFrame(self.rows, self.columns)


@pytest.fixture
def flow(spark):
    with Dataflow(spark, runner="local", buckets=2) as flow:
        yield flow


# Snapshots.


def test_snapshots_without_a_key_count_each_row(spark, flow):
    table = Table(spark, "a int, b array<int>", [(None, [1]), (None, [1]), (1, None)])
    output = flow.source("rows", snapshots(table)).keep()
    for rows in ([], [(None, [1])], [(None, [1])] * 3 + [(2, [])], [(2, [None])], []):
        flow.catch_up()
        assert rows_of(output) == sorted(table.rows, key=repr)
        table.rows = rows
    flow.catch_up()
    assert rows_of(output) == []


#: A column of each type, and an `id`.
TYPED = ", ".join(["id int", *(f"c{i} {kind}" for i, kind in enumerate(VALUES))])
TYPED_ROWS = [
    (number, *(values[number % len(values)] for values in VALUES.values())) for number in range(3)
]


#: The columns without a null in these rows.
FILLED = [f"c{i}" for i, values in enumerate(VALUES.values()) if None not in values[:3]]


@pytest.mark.parametrize("key", [(), "id", FILLED], ids=["row", "id", "types"])
def test_a_snapshot_of_every_type_is_empty_then_has_rows_and_is_empty_again(spark, key):
    table = Table(spark, TYPED)
    with Dataflow(spark, buckets=3) as flow:
        output = flow.source("rows", snapshots(table, key=key)).keep()
        counts = output.count().keep()
        for rows in ([], TYPED_ROWS, [], TYPED_ROWS[1:], []):
            table.rows = rows
            flow.catch_up()
            assert rows_of(output) == sorted(map(tuple, table().collect()), key=repr)
            assert counts.at().count() == len(rows)


def test_snapshots_with_a_key_are_refused_where_it_comes_twice(spark, flow):
    table = Table(spark, "a int, b int", [(1, 1), (2, 2)])
    output = flow.source("rows", snapshots(table, key="A")).keep()
    flow.catch_up()
    table.rows = [(2, 3), (3, 3)]
    flow.catch_up()
    assert rows_of(output) == [(2, 3), (3, 3)]


def test_a_table_whose_columns_change_is_refused(spark, flow):
    table = Table(spark, "a int, b int", [(1, 1)])
    flow.source("rows", snapshots(table)).keep()
    flow.catch_up()
    table.columns, table.rows = "a int, c int", [(1, 1)]
    with pytest.raises(SourceError, match="c was added, b was dropped"):
        flow.catch_up()
    table.columns = "a int, b string"
    table.rows = [(1, "x")]
    with pytest.raises(SourceError, match="b was int and is string"):
        flow.catch_up()


def test_columns_of_a_table_may_be_called_in_another_case(spark, flow, tmp_path):
    cities = Table(spark, "Id int, City string", [(1, "a"), (2, "b")])
    versions = Table(spark, "Id int, V long, Gone boolean", [(1, 1, False), (2, 2, False)])
    counts = Table(spark, "Id int, Time long, Diff long", [(1, 0, 1), (2, 0, 2)])
    outputs = [flow.source(name, source).keep() for name, source in [
        ("by row", snapshots(cities)),
        ("by key", snapshots(cities, key="iD")),
        ("upserts", upserts(versions, key="iD", order="v", deleted="gONE")),
        ("updates", updates(counts)),
        ("files", files(str(tmp_path), "Id int, City string", key="iD", op="oP", order="cITY",
                        format="parquet")),
    ]]

    def write_parquet(name, *rows):
        frame = spark.createDataFrame(rows, "OP string, ID int, cITY string")
        pq.write_table(frame.toArrow(), tmp_path / f"{name}.parquet")

    write_parquet("1", ("c", 1, "a"), ("c", 2, "b"))
    flow.catch_up()
    both = [(1, "a"), (2, "b")]
    assert list(map(rows_of, outputs)) == [both, both, [(1, 1), (2, 2)], [(1,), (2,), (2,)], both]
    # The next reading has the names in yet another case.
    cities.columns, cities.rows = "ID int, cITY string", [(2, "c")]
    versions.columns, versions.rows = "iD int, v long, gone boolean", [
        *versions.rows, (2, 3, False), (1, 4, True)]
    counts.columns, counts.rows = "ID int, TIME long, diff int", [*counts.rows, (2, 5, -2)]
    write_parquet("2", ("u", 2, "c"), ("d", 1, None))
    flow.catch_up()
    assert list(map(rows_of, outputs)) == [[(2, "c")], [(2, "c")], [(2, 3)], [(1,)], [(2, "c")]]


# Logs.


def test_updates_are_read_on_and_none_is_left_out(spark, flow):
    table = Table(spark, "a string, Time long, d long", [("x", 0, 1), ("y", 4, 2)])
    output = flow.source("rows", updates(table, diff="D", time="time")).keep()
    flow.catch_up()
    assert not flow.catch_up()
    table.rows += [("x", 5, -1)]
    flow.catch_up()
    assert rows_of(output) == [("y",), ("y",)]
    table.rows += [("z", 4, 1)]
    with pytest.raises(SourceError, match="has 3 rows up to Time = 5|had 3 when they were read"):
        flow.catch_up()
    table.rows[-1:] = [("z", None, 1)]
    with pytest.raises(SourceError, match="1 rows .* null in time"):
        flow.catch_up()
    table.rows = table.rows[1:-1]
    with pytest.raises(SourceError, match="taken away"):
        flow.catch_up()
    assert rows_of(output) == [("y",), ("y",)]


def test_updates_may_have_an_order_of_their_own(spark, flow):
    table = Table(spark, "a string, n date, diff long")
    day = __import__("datetime").date
    output = flow.source("rows", updates(table, time=None, order="n")).select("a").keep()
    assert not flow.catch_up()
    for number in range(1, 4):
        table.rows.append(("x", day(2024, 1, number), number))
        flow.catch_up()
    assert len(rows_of(output)) == 6
    with pytest.raises(SchemaError, match="order="):
        updates(table, time=None)
    with pytest.raises(SchemaError, match="no column 'nosuch'.*a, n, diff"):
        flow.source("others", updates(table, time=None, order="nosuch"))


def test_upserts_leave_the_latest_of_each_key(spark, flow):
    table = Table(spark, "id int, `a b` string, v long, gone boolean")
    source = upserts(table, key="ID", order="v", deleted="gone")
    output = flow.source("rows", source).select("id", "a b").keep()
    table.rows = [(1, "x", 1, None), (1, "y", 2, False), (2, "x", 3, False), (3, None, 4, False)]
    flow.catch_up()
    assert rows_of(output) == [(1, "y"), (2, "x"), (3, None)]
    table.rows += [(2, None, 5, True), (1, None, 6, True), (1, "z", 7, None), (9, None, 8, True)]
    flow.catch_up()
    assert rows_of(output) == [(1, "z"), (3, None)]
    table.rows += [(1, "p", 9, None), (1, "q", 9, None)]
    with pytest.raises(SourceError, match=r"same order.*\(1,\)"):
        flow.catch_up()


def test_upserts_take_late_rows(spark, flow):
    """A deletion may also come before its row."""
    table = Table(spark, "id int, s string, v long, gone boolean")
    output = flow.source("rows", upserts(table, key="id", order="v", deleted="gone")).keep()
    table.rows = [(1, "x", 10, None), (2, "x", 11, None), (3, None, 20, True)]
    flow.catch_up()
    table.rows += [(1, "late", 5, None), (2, "y", 12, None), (3, "z", 15, None), (4, "w", 7, None)]
    flow.catch_up()
    assert [row[:2] for row in rows_of(output)] == [(1, "x"), (2, "y"), (4, "w")]
    assert any(kind.path == ADDED for kind in flow.last_report.fallbacks)
    table.rows += [(4, None, 21, True)]
    flow.catch_up()
    assert [row[:2] for row in rows_of(output)] == [(1, "x"), (2, "y")]
    assert not flow.last_report.fallbacks
    # The state knows the rows that the table loses.
    table.rows = [(3, "late", 16, None), (2, "late", 11, None), (2, "z", 22, None)]
    flow.catch_up()
    assert [row[:2] for row in rows_of(output)] == [(1, "x"), (2, "z")]


# Files.


def write(folder: Path, name: str, *rows: object) -> None:
    (folder / name).write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def test_files_are_read_once_in_their_order(spark, flow, tmp_path):
    output = flow.source("rows", files(str(tmp_path), "id int, city string", key="id")).keep()
    assert not flow.catch_up()
    write(tmp_path, "b %41+c.json", {"op": "c", "id": 1, "city": "Rome"})
    write(tmp_path, "a é.json", {"op": "U", "id": 1, "city": "Oslo"}, {"op": "insert", "id": 2})
    for age, name in enumerate(["a é.json", "b %41+c.json"]):
        os.utime(tmp_path / name, (1e9 - age * 100, 1e9 - age * 100))
    write(tmp_path, "_unfinished.json", {"op": "c", "id": 7})
    write(tmp_path, ".hidden.json", {"op": "c", "id": 8})
    flow.catch_up()
    assert rows_of(output) == [(1, "Oslo"), (2, None)]
    assert not flow.catch_up()
    write(tmp_path, "earlier.json", {"op": "d", "id": 2})
    os.utime(tmp_path / "earlier.json", (1e8, 1e8))
    flow.catch_up()
    assert rows_of(output) == [(1, "Oslo")]
    write(tmp_path, "earlier.json", {"op": "d", "id": 1}, {"op": "d", "id": 1})
    with pytest.raises(SourceError, match="have changed since they were read: earlier.json"):
        flow.catch_up()
    (tmp_path / "earlier.json").unlink()
    assert not flow.catch_up()


@pytest.mark.parametrize("rows, part", [
    ([{"op": "x", "id": 1}], "op 'x'"),
    ([{"id": 1}], "op None"),
    ([{"op": "u", "id": 1}], "without a key"),
    (["no object"], "id|JSON|json|MALFORMED"),
])
def test_files_that_cannot_be_understood_are_refused(spark, flow, tmp_path, rows, part):
    output = flow.source("rows", files(str(tmp_path), "id int")).keep()
    write(tmp_path, "1.json", *rows)
    for _ in range(2):
        with pytest.raises((SourceError, PySparkException), match=part):
            flow.catch_up()
    write(tmp_path, "1.json", {"op": "i", "id": 1}, {"op": "i", "id": 1}, {"op": "d", "id": 1})
    flow.catch_up()
    assert rows_of(output) == [(1,)]


def test_changes_of_a_key_in_one_file_need_an_order(spark, flow, tmp_path):
    write(tmp_path, "1.json", {"op": "c", "id": 1, "n": 1}, {"op": "d", "id": 1, "n": 2})
    flow.source("a", files(str(tmp_path), "id int, n int", key="id")).keep()
    with pytest.raises(SourceError, match=r"same order.*\(1,\)"):
        flow.catch_up()
    with Dataflow(spark, runner="local") as other:
        ordered = files(str(tmp_path), "id int, n int", key="id", order="n")
        output = other.source("a", ordered).keep()
        other.catch_up()
        assert rows_of(output) == []


def test_other_formats(spark, flow, tmp_path):
    spark.createDataFrame([(1, "a"), (2, None)], "id int, s string").coalesce(1).write.mode(
        "append"
    ).parquet(str(tmp_path / "p"))
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "1.csv").write_text("id,s,op\n1,a,i\n1,a,i\n2,,d\n")
    parquet = files(str(tmp_path / "p"), "id int, s string", format="parquet", op=None)
    csv = files(str(tmp_path / "c"), "id int, s string", format="csv", options={"header": True})
    output = flow.source("p", parquet).concat(flow.source("c", csv)).keep()
    flow.catch_up()
    assert rows_of(output) == [(1, "a")] * 3
    with pytest.raises(SchemaError, match="is the op of a row"):
        files(str(tmp_path), "id int, op string")


def test_an_order_outside_of_the_schema_is_refused(tmp_path):
    with pytest.raises(SchemaError, match="no column 'no' to order changes by.*id, v, op"):
        files(str(tmp_path), "id int, v int", key="id", order=["v", "no"])
    files(str(tmp_path), "id int, No int", key="id", order="nO")


@pytest.mark.parametrize("names", [{"order": "no"}, {"op": "no"}])
def test_a_batch_without_its_op_or_order_is_refused(spark, flow, names):
    source = batches("id int", key="id", **names)
    flow.source("rows", source).keep()
    frame = spark.createDataFrame([(1,)], "id int")
    with pytest.raises(SchemaError, match="'batch 0' has no column 'no'; its columns are id"):
        source.into(flow, query="mine")(frame, 0)
    assert not flow._sources.offsets


@pytest.mark.parametrize("enveloped", [False, True])
@pytest.mark.parametrize("keyed", [False, True])
def test_events_of_debezium(spark, flow, tmp_path, keyed, enveloped):
    key = {"key": "id"} if keyed else {}
    source = debezium(str(tmp_path), "id int, s string", order="source.lsn", **key)
    output = flow.source("rows", source).keep()

    def events(name, *changes):
        lines = [
            {"op": op, "before": before and {"id": before[0], "s": before[1]},
             "after": after and {"id": after[0], "s": after[1]}, "source": {"lsn": lsn}}
            for lsn, op, before, after in changes
        ]
        lines = [{"payload": line} for line in lines] if enveloped else lines
        write(tmp_path, name, *lines, {})

    a, b, c = (1, "a"), (1, "b"), (2, "c")
    events("1.json", (1, "r", None, a), (2, "u", a, b), (3, "c", None, c))
    flow.catch_up()
    assert rows_of(output) == [b, c]
    events("2.json", (4, "d", c, None), (5, "u", b, a))
    flow.catch_up()
    assert rows_of(output) == [a]
    events("3.json", (6, "u", None, b))
    if keyed:
        flow.catch_up()
        assert rows_of(output) == [b]
    else:
        with pytest.raises(SourceError, match="REPLICA IDENTITY FULL"):
            flow.catch_up()
        (tmp_path / "3.json").unlink()
    events("4.json", (7, "t", None, None))
    with pytest.raises(SourceError, match="truncated"):
        flow.catch_up()


def test_zeros_of_debezium_have_no_sign(spark, flow, tmp_path):
    by_key = flow.source("keyed", debezium(str(tmp_path), "x double, v int", key="x")).keep()
    whole = flow.source("whole", debezium(str(tmp_path), "x double, v int")).keep()

    def read(number, op, before, after):
        images = [row and {"x": row[0], "v": row[1]} for row in (before, after)]
        write(tmp_path, f"{number}.json",
              {"op": op, "before": images[0], "after": images[1], "ts_ms": number})
        flow.catch_up()
        return rows_of(by_key), rows_of(whole)

    assert read(1, "c", None, (-0.0, 1)) == ([(0.0, 1)], [(0.0, 1)])
    assert read(2, "u", (0.0, 1), (-0.0, 2)) == ([(0.0, 2)], [(0.0, 2)])
    assert read(3, "d", (0.0, 2), None) == ([], [])


def event(op, key, text, order):
    row = {"id": key, "s": text}
    images = {"before": row, "after": None} if op == "d" else {"before": None, "after": row}
    return {"op": op, **images, "ts_ms": order}


def test_late_events_of_debezium(spark, flow, tmp_path):
    """The event of a key with the greatest order wins, in any file, also if it is a deletion."""
    output = flow.source("rows", debezium(str(tmp_path), "id int, s string", key="id")).keep()
    write(tmp_path, "1.json", event("c", 1, "x", 10), event("d", 2, None, 20))
    flow.catch_up()
    # If two orders are equal, the later file wins, and nothing is late.
    write(tmp_path, "2.json", event("u", 1, "y", 20))
    flow.catch_up()
    assert rows_of(output) == [(1, "y")] and not flow.last_report.fallbacks
    write(tmp_path, "3.json", event("c", 2, "late", 15), event("u", 1, "old", 19),
          event("c", 0, "low", 3), event("c", 3, "new", 30))
    flow.catch_up()
    assert rows_of(output) == [(0, "low"), (1, "y"), (3, "new")]
    assert not flow.last_report.fallbacks
    write(tmp_path, "4.json", event("d", 0, None, 2), event("d", 3, None, 31))
    flow.catch_up()
    assert rows_of(output) == [(0, "low"), (1, "y")]
    # An order that is null comes before all others.
    write(tmp_path, "5.json", event("u", 1, "no order", None))
    flow.catch_up()
    assert rows_of(output) == [(0, "low"), (1, "y")]
    (tmp_path / "1.json").unlink()
    write(tmp_path, "6.json", event("u", 1, "z", 40))
    flow.catch_up()
    write(tmp_path, "7.json", event("c", 2, "late", 15), event("c", 0, "low", 4))
    flow.catch_up()
    assert rows_of(output) == [(0, "low"), (1, "z")]


def test_an_update_of_debezium_that_moves_a_row(spark, flow, tmp_path):
    """An update with another key in `before` deletes the row of that key."""
    output = flow.source("rows", debezium(str(tmp_path), "id int, s string", key="id")).keep()

    def moved(old, new, order, **before):
        return {**event("u", new, "moved", order), "before": {"id": old, **before}}

    write(tmp_path, "1.json", event("c", 1, "a", 1), event("c", 5, "e", 2), moved(5, 5, 3),
          {**event("u", 6, "partial", 4), "before": {"s": "x"}})
    flow.catch_up()
    assert rows_of(output) == [(1, "a"), (5, "moved"), (6, "partial")]
    write(tmp_path, "2.json", moved(1, 2, 10, s="a"), moved(5, 1, 11))
    flow.catch_up()
    assert rows_of(output) == [(1, "moved"), (2, "moved"), (6, "partial")]
    # A late event is older than the move away from its key.
    write(tmp_path, "3.json", event("u", 5, "late", 9))
    flow.catch_up()
    assert rows_of(output) == [(1, "moved"), (2, "moved"), (6, "partial")]
    with pytest.raises(ValueError, match="names no number"):
        debezium(str(tmp_path), "id int", order=())


# Streams.


class Stream:
    """A folder that a streaming query reads, and its checkpoint."""

    def __init__(self, spark, folder):
        self.spark, self.folder = spark, folder
        (folder / "rows").mkdir()

    def write(self, name, *words):
        write(self.folder / "rows", name, *({"word": word} for word in words))

    def run(self, function, checkpoint="checkpoint"):
        stream = self.spark.readStream.schema("word string").option("maxFilesPerTrigger", 1)
        query = stream.json(str(self.folder / "rows")).writeStream.foreachBatch(function)
        query = query.option("checkpointLocation", str(self.folder / checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.classic_only("foreachBatch runs in a process of the server, which has no dataflow")
def test_a_batch_is_taken_in_once(spark, tmp_path):
    stream, source = Stream(spark, tmp_path), batches("word string")

    def program(flow):
        flow.source("words", source).count().keep("counts")

    with Dataflow.open(tmp_path / "store", program, spark=spark) as flow:
        stream.write("1.json", "a", "a")
        stream.write("2.json", "b")
        stream.run(source.into(flow))
        assert rows_of(flow["counts"]) == [("a", 2), ("b", 1)]
        # The batch fails after its commit, so that Spark runs it again.
        stream.write("3.json", "a")

        def failing(frame, batch):
            source.into(flow)(frame, batch)
            raise OSError("behind")

        with pytest.raises(PySparkException, match="behind"):
            stream.run(failing)
        assert rows_of(flow["counts"]) == [("a", 3), ("b", 1)]
    with Dataflow.open(tmp_path / "store", program, spark=spark) as flow:
        stream.run(source.into(flow))
        assert rows_of(flow["counts"]) == [("a", 3), ("b", 1)]
        # The query has lost its checkpoint.
        with pytest.raises(PySparkException, match="checkpoint was deleted"):
            stream.run(source.into(flow), "other")
        stream.write("4.json", "c")
        stream.run(source.into(flow))
        assert rows_of(flow["counts"]) == [("a", 3), ("b", 1), ("c", 1)]
        stream.run(source.into(flow, on_new_query="append"), "third")
        assert rows_of(flow["counts"]) == [("a", 6), ("b", 2), ("c", 2)]
    # Spark's checkpoint is ahead of the state of a new dataflow.
    with Dataflow(spark) as flow:
        program(flow)
        stream.write("5.json", "d")
        with pytest.raises(PySparkException, match="Spark's checkpoint is ahead.*batch 4"):
            stream.run(source.into(flow))


@pytest.mark.classic_only("foreachBatch runs in a process of the server, which has no dataflow")
def test_a_batch_on_which_a_step_fails_is_given_again(spark, tmp_path):
    stream, source, fails = Stream(spark, tmp_path), batches("word string"), [True]

    def length(row):
        if fails[0]:
            raise ArithmeticError("no")
        return [(len(row.word),)]

    with Dataflow(spark, runner="local") as flow:
        output = flow.source("words", source).flat_map(length, "n int").keep()
        stream.write("1.json", "a", "bb")
        for _ in range(2):
            with pytest.raises(PySparkException, match="ArithmeticError: no"):
                stream.run(source.into(flow))
        fails[0] = False
        stream.run(source.into(flow))
        assert rows_of(output) == [(1,), (2,)]


def test_what_is_no_batch_is_refused(spark, flow):
    source = batches("word string")
    with pytest.raises(NotReadableError, match="no input that is filled"):
        source.into(flow)
    flow.source("words", source).keep()
    with pytest.raises(ValueError, match="'refuse' or 'append'"):
        source.into(flow, on_new_query="maybe")
    frame = spark.createDataFrame([("a",)], "word string")
    with pytest.raises(SourceError, match="no batch"):
        source.into(flow)(frame, 0)
    source.into(flow, query="mine")(frame, 0)
    source.into(flow, query="mine")(frame, 0)
    assert flow._sources.offsets == {"words": {"query": "mine", "batch": 0}}


def test_a_store_that_is_opened_without_its_source_keeps_how_far_it_was_read(spark, tmp_path):
    table = Table(spark, "n long, k long, diff long", [(1, 7, 1), (2, 8, 1)])

    def read(flow):
        rows = flow.source("rows", updates(table, time=None, order="n"))
        rows.select("k").keep("kept")

    def fed(flow):
        rows, _ = flow.input("rows", "n long, k long")
        rows.select("k").keep("kept")

    def opened(program):
        return Dataflow.open(str(tmp_path), program, spark=spark, runner="local")

    with opened(read) as flow:
        assert flow.catch_up()
    with opened(fed) as flow:
        flow.session("rows").insert([(0, 9)])
        flow.advance_to(flow.session("rows").time() + 1)
        flow.step()
    with opened(read) as flow:
        assert not flow.catch_up()
        assert rows_of(flow["kept"]) == [(7,), (8,), (9,)]


@pytest.mark.parametrize("runner", ["local", "spark"])
def test_a_source_brings_the_correction_of_a_row_that_a_step_refused(spark, runner):
    table = Table(spark, "id int, n int", [(1, 2)])
    changed = []
    with Dataflow(spark, buckets=2, runner=runner) as flow:
        rows = flow.source("rows", snapshots(table, key="id"))
        shares = rows.selectExpr("id", "6 div n AS share").keep()
        shares.sink("shares", foreach(lambda changes, epoch: changed.extend(changes.collect())))
        flow.catch_up()
        table.rows = [(1, 3), (2, 0)]
        for _ in range(2):
            with pytest.raises(DiffError, match="Feed the correction"):
                flow.catch_up()
        table.rows = [(1, 3), (2, 6)]
        assert flow.catch_up()
        assert rows_of(shares) == [(1, 2), (2, 1)]
        changes = Counter()
        for row in changed:
            changes[row["id"], row["share"]] += row["diff"]
        assert +changes == {(1, 2): 1, (2, 1): 1}


def test_a_whole_table_that_a_step_refused_is_read_again_when_it_was_dropped(spark, flow):
    """The source compares a reading with the present rows, so two readings do not add up."""
    table = Table(spark, "id int, n int", [(1, 2)])
    rows = flow.source("rows", snapshots(table))
    shares = rows.selectExpr("id", "6 div n AS share").keep()
    flow.catch_up()
    table.rows = [(1, 3), (2, 0)]
    with pytest.raises(DiffError):
        flow.catch_up()
    table.rows = [(1, 3), (2, 6)]
    with pytest.raises(DiffError, match="discard"):
        flow.catch_up()
    flow.discard()
    flow.catch_up()
    assert rows_of(shares) == [(1, 2), (2, 1)]
