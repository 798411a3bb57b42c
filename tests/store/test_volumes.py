"""Stores in volumes of Unity Catalog, with a stand-in for the workspace and for the mount."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import sys
import uuid
from collections import Counter

import pyarrow as pa
import pytest
import volumes
from pyspark.sql import functions as F
from volumes import CALLS, CODES, VOLUME, refusing

from pyspark_diff import Dataflow, StateReader, set_credentials
from pyspark_diff.dataflow import opening
from pyspark_diff.errors import (
    ConcurrentWriteError,
    DamagedStateError,
    StorageError,
    UnknownOutcomeError,
)
from pyspark_diff.trace import cache, credentials, storage, volume_objects
from pyspark_diff.trace.commits import Commits
from pyspark_diff.trace.local_objects import LocalObjects
from pyspark_diff.trace.objects import volume_url
from pyspark_diff.trace.roots import objects_at
from pyspark_diff.trace.volume_objects import VolumeObjects

sdk = pytest.importorskip("databricks.sdk")


@pytest.fixture
def there(monkeypatch):
    """The workspace, with its client registered."""
    monkeypatch.setattr(credentials, "_registered", {})
    workspace = volumes.workspace()
    set_credentials(VOLUME, workspace.client, mount=str(workspace.folder))
    yield workspace
    workspace.page, workspace.racy = 1000, False
    cache._client.cache_clear()


@pytest.fixture
def root():
    return f"{VOLUME}/{uuid.uuid4().hex}"


@pytest.fixture
def nowhere(there):
    """The workspace on a machine without the mount."""
    set_credentials(VOLUME, there.client, mount="/nowhere")
    return there


@pytest.mark.parametrize("path, url", [
    ("/Volumes/c/s/v", "dbfs:///Volumes/c/s/v"),
    ("/Volumes/c/s/v/a/b/", "dbfs:///Volumes/c/s/v/a/b"),
    ("dbfs:/Volumes/c/s/v/a", "dbfs:///Volumes/c/s/v/a"),
    ("dbfs:///Volumes/c/s/v/a", "dbfs:///Volumes/c/s/v/a"),
    ("/Volumes/c/s", None), ("/Volumes/c//v/a", None), ("/data/Volumes/c/s/v", None),
    ("/Volumes/c/s/v/../../d", None), ("dbfs:/mnt/c", None), ("//Volumes/c/s/v", None),
])
def test_the_paths_of_volumes(path, url):
    assert volume_url(path) == url


def test_on_macos_a_path_is_one_of_a_disk(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert volume_url("/Volumes/Backup/a/b/c") is None
    assert volume_url("dbfs:/Volumes/c/s/v") == "dbfs:///Volumes/c/s/v"


def test_a_file_url_is_a_folder_all_the_same(tmp_path):
    assert isinstance(objects_at("file:///Volumes/c/s/v"), LocalObjects)
    assert isinstance(objects_at("/Volumes/c/s/v/x"), VolumeObjects)


def test_commits_go_by_request_and_data_by_path(there, root, tmp_path):
    objects = objects_at(root)
    there.requests.clear()
    name = "data/e0001-x-000000000000.durable/00000.arrow"
    (tmp_path / "file").write_bytes(b"rows")
    objects.upload(name, str(tmp_path / "file"))
    assert objects.read(name) == b"rows" and objects.read_range(name, 1, 2) == b"ow"
    assert [item.name for item in objects.names("data")] == [name]
    objects.delete([name])
    assert objects.names("data") == [] and not there.requests
    assert objects.create("commits/a", [b"x"])
    assert any(request.startswith("PUT /api/2.0/fs/files/") for request in there.requests)


@pytest.mark.parametrize("page", [1, 3])
def test_long_listings_come_in_pages(nowhere, root, page):
    nowhere.page = page
    objects = objects_at(root)
    names = {f"commits/{number:02d}" for number in range(7)}
    for name in names:
        objects.create(name, [b"x"])
    nowhere.requests.clear()
    assert {item.name for item in objects.names("commits")} == names
    assert len(nowhere.requests) == -(-7 // page)


def test_a_machine_without_the_mount_uses_requests(nowhere, root, tmp_path):
    objects = objects_at(root)
    data = os.urandom(100_000)
    (tmp_path / "file").write_bytes(data)
    objects.upload("data/f/00000.arrow", str(tmp_path / "file"))
    assert objects.read_range("data/f/00000.arrow", 50_000, 9) == data[50_000:50_009]
    assert objects.read_range("data/f/00000.arrow", 100_000, 9) == b""
    assert objects.read("data/f/00000.arrow") == data
    objects.delete(["data/f/00000.arrow"])
    assert objects.names("") == []
    assert not (nowhere.volume / root.rpartition("/")[2] / "data" / "f").exists()


def test_a_file_that_the_mount_does_not_show_yet_is_read_by_request(there, root, monkeypatch):
    objects = objects_at(root)
    objects.create("data/f/00000.arrow", [b"rows"])

    def hidden(path, *_):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    monkeypatch.setattr(volume_objects, "_read", hidden)
    assert objects.read_range("data/f/00000.arrow", 0, 9) == b"rows"
    assert objects.read("data/f/00000.arrow") == b"rows"
    with pytest.raises(FileNotFoundError):
        objects.read("data/f/00001.arrow")


def test_without_a_client_a_store_is_read_by_path_and_not_written(there, root, monkeypatch):
    writes = Commits(objects_at(root))
    writes.make(b"state")
    set_credentials(VOLUME, mount=str(there.folder))
    monkeypatch.delenv("DATABRICKS_HOST", raising=False)
    monkeypatch.setenv("DATABRICKS_CONFIG_FILE", "/nowhere")
    volume_objects._client_by.cache_clear()
    objects = objects_at(root)
    assert Commits(objects).latest().state == b"state"
    with pytest.raises(StorageError, match="no client of the workspace.*set_credentials"):
        objects.create("commits/x", [b"x"])


def test_without_the_package_the_error_has_its_command(there, root, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "databricks"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(StorageError, match=r'pip install "pyspark_diff\[databricks\]"'):
        objects_at(root).create("commits/x", [b"x"])


def test_a_task_gets_the_mount_and_no_client(there):
    task = credentials.sent(lambda: lambda: credentials.access_of(volume_url(VOLUME)))()
    assert credentials.access_of(volume_url(VOLUME)).provider is not None
    access = task()
    assert access.provider is not None  # the driver keeps the client
    credentials._registered.clear()
    access = task()
    assert access.provider is None and access.options == {"mount": str(there.folder)}
    assert pickle.dumps(access)


def test_an_option_of_a_bucket_is_refused(there, root):
    set_credentials(VOLUME, there.client, region="eu-central-1")
    with pytest.raises(StorageError, match="'region', and a volume has only the option mount"):
        objects_at(root)


def test_a_service_that_looks_first_and_writes_then_is_refused(there, root):
    objects = objects_at(root)
    there.racy = True
    with pytest.raises(StorageError, match="concurrent requests have created one file"):
        objects.probe()
    there.racy = False
    objects.probe()
    assert objects.names("") == objects.leftovers() == []


@pytest.mark.parametrize("code, kind", [
    (400, StorageError), (401, StorageError), (403, StorageError),
    (409, UnknownOutcomeError), (500, UnknownOutcomeError),
])
@pytest.mark.parametrize("done", [False, True])
def test_an_answer_that_is_an_error(there, root, monkeypatch, code, kind, done):
    original = volumes.Handler.put_file
    objects = objects_at(root)
    objects.create("commits/before", [b""])

    def failing(self, local, place, sent, query):
        if done:
            self._answer = lambda *how: None
            original(self, local, place, sent, query)
            del self._answer
        self._error(code, "ABORTED" if code == 409 else "X", "no")

    monkeypatch.setattr(volumes.Handler, "put_file", failing)
    with pytest.raises(StorageError, match="commits/a") as caught:
        objects.create("commits/a", [b"x"])
    assert isinstance(caught.value, UnknownOutcomeError) == (kind is UnknownOutcomeError)
    assert volumes.TOKEN not in str(caught.value)


def test_a_volume_that_is_not_there(there):
    set_credentials("/Volumes/cat/schema/other", there.client)
    with pytest.raises(StorageError, match="Check that the volume exists") as caught:
        objects_at("/Volumes/cat/schema/other/x").create("commits/a", [b"x"])
    assert not isinstance(caught.value, UnknownOutcomeError)
    assert objects_at("/Volumes/cat/schema/other/x").names("") == []


def test_a_file_that_is_cut_short_on_the_way_is_an_error_and_gone(there, root, monkeypatch):
    objects = objects_at(root)
    copy = shutil.copyfileobj
    monkeypatch.setattr(
        shutil, "copyfileobj", lambda source, file, size: file.write(source.read()[:-1]))
    with pytest.raises(StorageError, match="Input/output error"):
        objects.upload("data/f/00000.arrow", __file__)
    assert objects.names("data") == []
    monkeypatch.setattr(shutil, "copyfileobj", copy)
    objects.upload("data/f/00000.arrow", __file__)


# Dataflows.


def program(flow):
    people = flow.input("people", "name string, town int", key="name")[0]
    towns = flow.input("towns", "town int, region string", key="town")[0]
    joined = people.join(towns, "town")
    joined.groupBy("region").agg(F.count("*").alias("n")).keep("n")
    joined.select("name", "region").keep("rows")


def answers(people, towns):
    rows = Counter((name, towns[town]) for name, town in people.items() if town in towns)
    return rows, dict(Counter(region for _, region in rows))


def read(flow):
    return (Counter(map(tuple, flow["rows"].at().select("name", "region").collect())),
            dict(map(tuple, flow["n"].at().select("region", "n").collect())))


@pytest.mark.parametrize("name, alone, runner", [
    ("ENOSYS", True, "local"), ("Illegal seek", False, "local"),
    pytest.param("EPERM", False, "spark", marks=pytest.mark.slow),
])
def test_a_store_on_a_volume(
    spark, there, root, monkeypatch, use_thresholds, tmp_path, name, alone, runner,
):
    monkeypatch.setattr(opening, "is_alone", lambda spark: alone)
    use_thresholds(in_memory_rows_max=3)
    copies = tmp_path / "copies"
    copies.mkdir(mode=0o700)
    monkeypatch.setattr(cache, "_folder", lambda: str(copies))
    people, towns = {f"n{i}": i % 7 for i in range(60)}, {i: f"r{i % 3}" for i in range(5)}

    def opened():
        return Dataflow.open(root, program, spark=spark, buckets=2, runner=runner)

    with refusing(there.folder, CODES[name], CALLS):
        with opened() as flow:
            flow.session("people").upsert(list(people.items()))
            flow.session("towns").upsert(list(towns.items()))
            flow.advance_to(1)
            people["n3"] = 4
            flow.session("people").upsert([("n3", 4)])
            flow.advance_to(2)
            assert read(flow) == answers(people, towns)
        with opened() as flow:
            people["n4"] = 1
            flow.session("people").upsert([("n4", 1)])
            flow.advance_to(3)
            assert read(flow) == answers(people, towns)
            assert flow.verify() == []
            flow.vacuum(dry_run=False, older_than=-60)
            assert read(flow) == answers(people, towns)
        with StateReader(root, spark=spark) as reader:
            assert dict(map(tuple, reader["n"].at().select("region", "n").collect())) == \
                answers(people, towns)[1]
    folder = there.volume / root.rpartition("/")[2]
    texts = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert texts and not any(volumes.TOKEN.encode() in text for text in texts)


def test_a_second_writer_fences_the_first(spark, there, root):
    first = Dataflow.open(root, program, spark=spark, buckets=2, runner="local")
    second = Dataflow.open(root, program, spark=spark, buckets=2, runner="local")
    first.session("people").upsert([("a", 1)])
    with pytest.raises(ConcurrentWriteError, match="has taken the store over"):
        first.advance_to(1)
    second.session("people").upsert([("b", 1)])
    second.advance_to(1)
    first.close()
    second.close()


def test_a_file_that_is_gone_is_told(there, root):
    objects = objects_at(root)
    rows = pa.record_batch({"n": [1]})
    path, _ = storage.write_lasting(
        f"{objects.root}/data/e0001-x-0123456789ab.durable/0.arrow", rows)
    os.unlink(there.folder / path.partition("/Volumes/")[2])
    cache._drop(path)
    with pytest.raises(DamagedStateError, match="is missing"):
        storage.read_table(path)
