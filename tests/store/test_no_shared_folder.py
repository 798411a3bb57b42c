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
from pyspark_diff.errors import DiffError, FunctionError, StorageError, UnknownOutcomeError
from pyspark_diff.trace import cache
from pyspark_diff.trace import storage as files
from pyspark_diff.trace.remote_objects import RemoteObjects
from pyspark_diff.trace.roots import objects_at

pytest.importorskip("obstore")
ROOT = Path(__file__).parents[2]
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
    """The URL of a new store, as on the machines of a cluster; the test has a folder of copies."""
    settings = environment()
    pyspark_diff.set_credentials(
        "s3://bucket", Keys(settings["AWS_ACCESS_KEY_ID"], settings["AWS_SECRET_ACCESS_KEY"]),
        endpoint=settings["AWS_ENDPOINT_URL"], region=settings["AWS_DEFAULT_REGION"],
        allow_http="true",
    )
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
        assert flow.verify() == []
    with StateReader(bucket, spark=spark) as reader:
        assert Counter(map(tuple, reader["rows"].at().select("name", "region").collect())) == \
            answers(people, towns)[0]
    assert not written  # this machine stores no file


def test_many_directories_are_listed_by_one_request(bucket, monkeypatch):
    """`close` sends one request for any number of steps.

    A store that does not answer is no error there, as a vacuum removes the files.
    """
    store, requests = files.StoreFiles(bucket, 1), []
    batch = pa.record_batch({"x": [1]})
    paths = [files.write_batch(f"{store.directory('rows')}/out.arrow", batch)[0] for _ in range(9)]
    lasting, _ = files.write_lasting(f"{store.directory('rows')}/00000.arrow", batch)
    kind = type(objects_at(bucket))
    names = kind.names
    monkeypatch.setattr(
        kind, "names", lambda self, folder: requests.append(folder) or names(self, folder))
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


@pytest.fixture
def memory(monkeypatch, use_thresholds, tmp_path):
    """The URL of a new store in memory that the library treats as a bucket, with small files."""
    monkeypatch.setattr(opening, "_needs_folder", lambda *_: False)
    use_thresholds(in_memory_rows_max=3)
    copies = tmp_path / "copies"
    copies.mkdir(mode=0o700)
    monkeypatch.setattr(cache, "_folder", lambda: str(copies))
    return f"memory://{uuid.uuid4().hex}/store"


class Faults:
    """Let the n-th request of a store, or of a kind, fail before or after its effect."""

    WRITES = "upload", "create", "replace", "delete"

    def __init__(self, monkeypatch, done):
        self.left, self.hit, self.kind, self._done = None, None, None, done
        for name in (*self.WRITES, "names", "read", "read_range"):
            request = getattr(RemoteObjects, name)
            monkeypatch.setattr(RemoteObjects, name, self._failing(name, request))

    def _failing(self, name, request):
        def call(objects, *arguments, **options):
            if self.left is None or self.kind not in (None, name):
                return request(objects, *arguments, **options)
            self.left -= 1
            if self.left >= 0:
                return request(objects, *arguments, **options)
            self.left, self.hit = None, name
            if name not in self.WRITES:
                raise StorageError("no answer")
            if self._done:
                request(objects, *arguments, **options)
            raise UnknownOutcomeError("no answer")

        return call


@pytest.mark.parametrize("done", [False, True])
def test_each_request_of_a_step_may_fail(spark, memory, monkeypatch, done):
    people, towns = {f"n{i}": i % 7 for i in range(60)}, {i: f"r{i % 3}" for i in range(5)}
    faults, hit = Faults(monkeypatch, done), Counter()
    with Dataflow.open(memory, program, spark=spark, buckets=2, runner="local") as flow:
        flow.session("people").upsert(list(people.items()))
        flow.session("towns").upsert(list(towns.items()))
        flow.advance_to(1)
        for at in range(24):
            changed = {f"n{i}": (at + i) % 7 for i in range(at % 9, 60, 9)}
            people.update(changed)
            flow.session("people").upsert(list(changed.items()))
            faults.left, faults.hit, faults.kind = at // 2, None, None
            if at % 2:  # the number of uploads before the commit varies
                faults.left, faults.kind = 0, ("create", "replace", "delete")[at % 3]
            try:
                flow.advance_to(at + 2)
            except DiffError:
                faults.left = None
                flow.step()
            faults.left = None
            assert read(flow) == answers(people, towns), (at, faults.hit)
            hit[faults.hit] += 1
        assert hit.keys() >= {"upload", "create", "replace", "delete"}, hit
    faults.left = None
    assert not passing(memory)
    with Dataflow.open(memory, program, spark=spark, buckets=2, runner="local") as flow:
        assert read(flow) == answers(people, towns)
        assert flow.verify() == []


@pytest.mark.parametrize("rows", [[], [(None, None)], [("x", 1)] * 20])
def test_tables_of_no_rows_and_of_nulls(spark, memory, rows):
    def copied(flow):
        frame = flow.input("rows", "s string, n int, l array<string>, m map<string, int>")[0]
        frame.groupBy("s", "n").count().keep("counts")
        frame.keep("all")

    with Dataflow.open(memory, copied, spark=spark, buckets=2) as flow:
        for time in 1, 2:
            flow.session("rows").insert([(*row, None, {"a": 1}) for row in rows])
            flow.advance_to(time)
            counts = dict(Counter(rows * time))
            assert {(s, n): c for s, n, c in flow["counts"].at().collect()} == counts
            assert flow["all"].at().count() == len(rows) * time
    with Dataflow.open(memory, copied, spark=spark, buckets=2) as flow:
        assert flow["all"].at().count() == len(rows) * 2


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
