"""The inbox of a store has each batch of a stream once, and a dataflow inserts it once."""

from __future__ import annotations

import glob
import os
import shutil

import pyarrow as pa
import pytest
from pyspark.sql import types as T
from stores import root  # noqa: F401 - a fixture

from pyspark_diff import DamagedStateError, Dataflow, FormatError, SchemaError
from pyspark_diff.sources import inbox
from pyspark_diff.trace.inbox import (
    inbox_batches,
    offset_after,
    put_batch,
    put_file,
    remove_batches,
)
from pyspark_diff.trace.roots import objects_at

NUMBERS = T.StructType().add("n", "long")


def batch(root, query, number, *values, name="numbers", attempt="0" * 12):  # noqa: F811
    objects = objects_at(root)
    rows = pa.RecordBatch.from_pydict({"n": list(values)})
    file = put_file(objects, name, query, number, attempt, 0, [rows])
    return put_batch(objects, name, query, number, NUMBERS, [file])


def values(batches):
    return [n for item in batches for rows in item.batches() for n in rows["n"].to_pylist()]


def test_a_batch_is_there_once(root):  # noqa: F811
    assert inbox_batches(root, "numbers") == []
    assert batch(root, "q", 0, 1, 2)
    assert not batch(root, "q", 0, 7, attempt="1" * 12)  # the first attempt wins
    assert batch(root, "q", 1, 3) and batch(root, "p", 0, 4)
    assert batch(root, "q", 0, 9, name="others")
    batches = inbox_batches(root, "numbers")
    assert [(item.query, item.number) for item in batches] == [("p", 0), ("q", 0), ("q", 1)]
    assert values(batches) == [4, 1, 2, 3]
    offset = offset_after(batches[:2])
    assert offset == {"p": 0, "q": 0}
    assert values(inbox_batches(root, "numbers", offset)) == [3]
    assert remove_batches(root, "numbers", offset) == 2
    assert values(inbox_batches(root, "numbers")) == [3]
    assert values(inbox_batches(root, "others")) == [9]
    assert batch(root, "q", 0, 1, 2)  # a second delivery is below the offset
    assert values(inbox_batches(root, "numbers", offset)) == [3]


@pytest.mark.parametrize("name", ["a.b", "`x`", "a b/../c", "~", "é" * 100, "=", "n=", "%41"])
def test_any_name(name, tmp_path):
    assert batch(tmp_path, name[:20], 0, 1, name=name)
    assert batch(tmp_path, "other", 0, 2, name=name)
    batches = inbox_batches(tmp_path, name)
    assert sorted(values(batches)) == [1, 2]
    assert inbox_batches(tmp_path, name, offset_after(batches)) == []
    assert os.listdir(tmp_path) == ["inbox"]
    with pytest.raises(ValueError, match="too long"):
        batch(tmp_path, "é" * 100, 0, 1)
    with pytest.raises(ValueError, match="have names"):
        inbox_batches(tmp_path, "")


def test_what_is_damaged_is_refused(tmp_path):
    batch(tmp_path, "q", 0, 1, 2)
    (manifest,) = glob.glob(f"{tmp_path}/inbox/*/*/*.json")
    (file,) = glob.glob(f"{tmp_path}/inbox/*/*/*/*.arrow")
    whole = open(manifest, "rb").read()
    for wrong in (
        b"", b"[]", b"{", whole[:-9], whole.replace(b'"batch":0', b'"batch":1'),
        whole.replace(b"/00000-", b"/../../00000-"), whole.replace(b'"long"', b'"udt"'),
        whole.replace(b'"rows"', b'"x"')[:-1],
    ):
        with open(manifest, "wb") as out:
            out.write(wrong)
        with pytest.raises(DamagedStateError):
            inbox_batches(tmp_path, "numbers")
    with open(manifest, "wb") as out:
        out.write(whole.replace(b'"format":1', b'"format":2'))
    with pytest.raises(FormatError, match="format 2"):
        inbox_batches(tmp_path, "numbers")
    with open(manifest, "wb") as out:
        out.write(whole)
    assert values(inbox_batches(tmp_path, "numbers")) == [1, 2]
    with open(file, "r+b") as out:
        out.seek(100)
        out.write(b"x")
    with pytest.raises(DamagedStateError, match="its bytes have changed"):
        values(inbox_batches(tmp_path, "numbers"))
    os.unlink(file)
    with pytest.raises(DamagedStateError, match="missing"):
        values(inbox_batches(tmp_path, "numbers"))


def streamed(spark, folder, store, name="numbers", schema="n long", **options):
    """Write the new rows of a folder to an inbox."""
    query = (
        spark.readStream.schema(schema).parquet(f"{folder}/in").writeStream.format("diff")
        .options(path=store, name=name, **options)
        .option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    )
    query.awaitTermination()


def program(store, **settings):
    def write(flow):
        flow.source("numbers", inbox(store, "numbers", schema="n long", **settings)).keep("numbers")

    return write


@pytest.mark.slow
def test_a_stream_is_taken_in_once(spark, tmp_path):
    store = str(tmp_path / "store")
    spark.createDataFrame([(1,), (2,)], "n long").write.mode("append").parquet(f"{tmp_path}/in")
    streamed(spark, tmp_path, store)
    assert os.listdir(store) == ["inbox"]

    def there():
        with Dataflow.open(store, program(store), spark=spark) as flow:
            flow.catch_up()
            return sorted(row.n for row in flow["numbers"].at().collect())

    assert there() == [1, 2] == there()
    spark.createDataFrame([(2,), (3,)], "n long").write.mode("append").parquet(f"{tmp_path}/in")
    streamed(spark, tmp_path, store)
    # Without the commit entry of the batch Spark writes it again.
    for entry in glob.glob(f"{tmp_path}/checkpoint/commits/1") + glob.glob(
            f"{tmp_path}/checkpoint/commits/.1.crc"):
        os.unlink(entry)
    before = len(glob.glob(f"{store}/inbox/*/*/*/*.arrow"))
    streamed(spark, tmp_path, store)
    assert len(glob.glob(f"{store}/inbox/*/*/*/*.arrow")) == before
    assert there() == [1, 2, 2, 3] == there()
    (query,) = {b.query for b in inbox_batches(store, "numbers")}
    assert remove_batches(store, "numbers", {query: 1}) == 2
    assert there() == [1, 2, 2, 3]
    # Without its checkpoint the stream is a new query, which writes all rows again.
    shutil.rmtree(f"{tmp_path}/checkpoint")
    streamed(spark, tmp_path, store)
    assert there() == [1, 1, 2, 2, 2, 2, 3, 3]


def test_updates_and_keys_from_an_inbox(spark, tmp_path):
    store = str(tmp_path)
    struct = T.StructType().add("K", "string").add("v", "long").add("d", "long")
    objects = objects_at(store)
    first = [("a", 1, 1), ("b", 2, 1)]
    for name, number, rows in [
        ("x", 0, first), ("x", 1, [("a", 1, -1), ("a", 3, 1)]),
        ("y", 0, first), ("y", 1, [("a", 3, 1)]),
    ]:
        columns = pa.RecordBatch.from_pydict(dict(zip(struct.names, map(list, zip(*rows)))))
        file = put_file(objects, name, "q", number, "0" * 12, 0, [columns])
        put_batch(objects, name, "q", number, struct, [file])
    with Dataflow(spark) as flow:
        changed = flow.source("changed", inbox(store, "x", diff="d")).keep()
        source = inbox(store, "y", key="k", schema="k string, v long")
        keyed = flow.source("keyed", source).keep()
        flow.catch_up()
        assert {tuple(row) for row in changed.at().collect()} == {("a", 3), ("b", 2)}
        assert {tuple(row) for row in keyed.at().collect()} == {("a", 3), ("b", 2)}
    with Dataflow(spark) as flow:
        flow.source("wrong", inbox(store, "x", schema="nosuch long")).keep()
        with pytest.raises(SchemaError, match="has no column 'nosuch'; its columns are K, v, d"):
            flow.catch_up()
        with pytest.raises(LookupError, match="no batch yet"):
            flow.source("none", inbox(store, "z"))
    with pytest.raises(SchemaError, match="no key"):
        inbox(store, "x", key="k", diff="d")


@pytest.mark.parametrize(("options", "said"), [
    ({"name": ""}, "needs .option.'name'"), ({"odd": "1"}, "no option 'odd'"),
])
def test_bad_options_of_a_stream_that_is_written(spark, tmp_path, options, said):
    spark.createDataFrame([(1,)], "n long").write.parquet(f"{tmp_path}/in")
    with pytest.raises(Exception, match=said):
        streamed(spark, tmp_path, str(tmp_path / "store"), **{"name": "numbers", **options})
    assert not os.path.exists(tmp_path / "store")
