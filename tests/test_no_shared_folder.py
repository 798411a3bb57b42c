"""Stores in a bucket on a cluster whose machines share no folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from stores import environment

import pyspark_diff
from pyspark_diff import Dataflow, StateReader
from pyspark_diff.dataflow import opening
from pyspark_diff.errors import FunctionError, StorageError
from pyspark_diff.trace import cache
from pyspark_diff.trace import storage as files
from pyspark_diff.trace.roots import objects_at

pytest.importorskip("obstore")
ROOT = Path(__file__).parent.parent
#: Seconds after which a program hangs.
HANGS = 1800


class Keys:
    """Credentials as a provider of obstore returns them."""

    def __init__(self, name, secret):
        self._told = {"access_key_id": name, "secret_access_key": secret, "expires_at": None}

    def __call__(self):
        return self._told


@pytest.fixture
def bucket(monkeypatch, tmp_path):
    """The URL of a new store, as machines of a cluster see it; copies go to a folder of the test.
    """
    told = environment()
    pyspark_diff.set_credentials(
        "s3://bucket", Keys(told["AWS_ACCESS_KEY_ID"], told["AWS_SECRET_ACCESS_KEY"]),
        endpoint=told["AWS_ENDPOINT_URL"], region=told["AWS_DEFAULT_REGION"], allow_http="true")
    monkeypatch.setattr(opening, "is_alone", lambda spark: False)
    copies = tmp_path / "copies"
    copies.mkdir(mode=0o700)
    monkeypatch.setattr(cache, "_folder", lambda: str(copies))
    yield f"s3://bucket/{uuid.uuid4().hex}"
    pyspark_diff.set_credentials("s3://bucket")


def program(flow):
    people = flow.input("people", "name string, town int", key="name")[0]
    towns = flow.input("towns", "town int, region string", key="town")[0]
    joined = people.join(towns, "town")
    joined.groupBy("region").agg(F.count("*").alias("n"), F.max("name").alias("last")).keep("n")
    joined.select("name", "region").keep("rows")


def answers(people, towns):
    rows = Counter((name, towns[town]) for name, town in people.items() if town in towns)
    regions = {region for _, region in rows}
    return rows, Counter(
        (region, sum(1 for _, r in rows if r == region), max(n for n, r in rows if r == region))
        for region in regions)


def read(flow):
    return (Counter(map(tuple, flow["rows"].at().select("name", "region").collect())),
            Counter(map(tuple, flow["n"].at().select("region", "n", "last").collect())))


def passing(url):
    """The files in a store that no commit can name."""
    return [item.name for item in objects_at(url).names("data")
            if files.certified(item.name) is None]


@pytest.mark.parametrize("runner", ["local", "spark"])
def test_all_files_go_through_the_store(spark, bucket, runner, monkeypatch):
    written = []
    write = files._written
    monkeypatch.setattr(
        files, "_written", lambda path, *how, **more: written.append(path) or write(
            path, *how, **more))
    people = {f"n{i}": i % 7 for i in range(400)}
    towns = {i: f"r{i % 3}" for i in range(5)}

    def opened():
        return Dataflow.open(bucket, program, spark=spark, buckets=3, runner=runner)

    with opened() as flow:
        flow.session("people").upsert(list(people.items()))
        flow.session("towns").upsert(list(towns.items()))
        flow.advance_to(1)
        assert read(flow) == answers(people, towns)
        for step in range(2, 5):
            people[f"n{step}"] = step + 1
            del people[f"n{step + 20}"]
            towns[step] = "east"
            flow.session("people").upsert([(f"n{step}", step + 1)])
            flow.session("people").delete([(f"n{step + 20}",)])
            flow.session("towns").upsert([(step, "east")])
            flow.advance_to(step)
            assert read(flow) == answers(people, towns)
    assert not passing(bucket)
    with opened() as flow:
        assert read(flow) == answers(people, towns)
        towns[6] = "north"
        flow.session("towns").upsert([(6, "north")])
        flow.advance_to(9)
        assert read(flow) == answers(people, towns)
        flow.verify()
    with StateReader(bucket, spark=spark) as reader:
        assert Counter(map(tuple, reader["rows"].at().select("name", "region").collect())) == \
            answers(people, towns)[0]
    assert not written  # nothing lies in a folder of this machine


def test_many_directories_are_listed_by_one_request(bucket, monkeypatch):
    """`close` asks once, however many steps there were; and a store that does not answer is no
    error there, as a vacuum removes the files."""
    store, requests = files.StoreFiles(bucket, 1), []
    batch = pa.record_batch({"x": [1]})
    paths = [files.write_batch(f"{store.directory('rows')}/out.arrow", batch)[0] for _ in range(9)]
    lasting, _ = files.write_lasting(f"{store.directory('rows')}/00000.arrow", batch)
    kind = type(objects_at(bucket))
    names = kind.names
    monkeypatch.setattr(kind, "names", lambda self, of: requests.append(of) or names(self, of))
    files.remove_directories([os.path.dirname(path) for path in paths[:4]])
    assert sorted(passing(bucket)) == sorted(store.name(path) for path in paths[4:])
    assert requests == ["data", "data"]
    with monkeypatch.context() as patch:
        patch.setattr(kind, "names", mock.Mock(side_effect=StorageError("no answer")))
        again = files.StoreFiles(bucket, 1)
        again.directory("rows")
        again.close()
    requests.clear()
    store.close()
    assert requests == ["data"]
    assert [item.name for item in names(objects_at(bucket), "data")] == [store.name(lasting)]


def may_mount():
    """Whether a process may have file systems of its own here."""
    command = ["unshare", "-m", "sh", "-c", "mount -t tmpfs tmpfs /mnt"]
    there = shutil.which("unshare") is not None
    return there and subprocess.run(command, capture_output=True).returncode == 0


def test_a_step_that_fails_leaves_no_file(spark, bucket):
    def failing(flow):
        rows = flow.input("rows", "k int, v int")[0]
        rows.groupBy("k").agg(F.sum("v").alias("v")).keep("sums")
        rows.groupBy("k").reduce(lambda k, values: [(1 // k[0],)], "v int").keep("inverse")

    with Dataflow.open(bucket, failing, spark=spark, buckets=2, runner="spark") as flow:
        flow.session("rows").insert([(k, k) for k in range(1, 200)])
        flow.advance_to(1)
        before = {item.name for item in objects_at(bucket).names("data")}
        flow.session("rows").insert([(k, k) for k in range(200)])
        with pytest.raises(FunctionError):
            flow.advance_to(2)
        flow.discard()
        assert {item.name for item in objects_at(bucket).names("data")} == before
        flow.session("rows").insert([(300, 5)])
        flow.advance_to(3)
        assert (300, 5) in set(map(tuple, flow["sums"].at().collect()))


@pytest.mark.slow
def test_workers_that_see_no_folder_of_the_driver(tmp_path):
    if not may_mount():
        pytest.skip("a worker needs a mount namespace of its own")
    pytest.importorskip("moto")
    scratch = tmp_path / "driver"
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "no_shared_folder_program.py"), str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, timeout=HANGS, env={
            **os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
            "PYSPARK_PYTHON": sys.executable, "TMPDIR": str(scratch),
        })
    assert "right on machines without a common folder" in done.stdout, \
        done.stdout + done.stderr[-3000:]
