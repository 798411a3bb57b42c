"""Objects are complete or absent, and each name is created once, in every kind of root."""

from __future__ import annotations

import errno
import gc
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import volumes
from stores import environment, root  # noqa: F401

from pyspark_diff.errors import StorageError, UnknownOutcomeError
from pyspark_diff.trace import local_objects
from pyspark_diff.trace.local_objects import LocalObjects
from pyspark_diff.trace.objects import redacted
from pyspark_diff.trace.roots import objects_at


@pytest.fixture
def objects(root):  # noqa: F811
    return objects_at(root)


@pytest.fixture
def local(tmp_path):
    return LocalObjects(tmp_path / "root")


def test_a_name_is_created_once(objects):
    assert objects.create("commits/a", [b"one ", memoryview(b"two"), b""])
    assert not objects.create("commits/a", [b"three"])
    assert objects.read("commits/a") == b"one two"
    assert objects.read_range("commits/a", 4, 3) == b"two"
    assert objects.read_range("commits/a", 4, 100) == b"two"
    assert objects.read_range("commits/a", 100, 5) == b""


def test_of_many_at_once_one_creates(objects):
    with ThreadPoolExecutor(8) as threads:
        created = list(threads.map(lambda i: objects.create("floor/x", [b"%d" % i]), range(8)))
    assert sum(created) == 1
    assert objects.read("floor/x") == b"%d" % created.index(True)


def test_replace_puts_a_new_object_in_the_place_of_the_old(objects):
    for lasting in (True, False):
        for data in (b"first", b"other", b"and a longer one"):
            objects.replace("head", data, lasting=lasting)
            assert objects.read("head") == data
    assert [item.name for item in objects.names("")] == ["head"]


def test_what_is_not_there_is_a_file_not_found(objects):
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            objects.read("commits/none")
        with pytest.raises(FileNotFoundError):
            objects.read_range("commits/none", 0, 1)
        assert objects.names("commits") == objects.names("") == objects.leftovers() == []
        objects.delete(["commits/none", "data/none/at-all"])
        objects.create("commits/other", [b""])
        objects.delete(["commits/other"])


def test_a_listing_has_what_is_below_a_folder(objects):
    before = time.time()
    objects.create("data/one/file", [b"123"])
    objects.create("data/two/file", [b""])
    objects.create("data2/file", [b""])
    items = {item.name: item for item in objects.names("data")}
    assert {name: item.size for name, item in items.items()} == {
        "data/one/file": 3, "data/two/file": 0,
    }
    assert all(abs(item.modified - before) < 10 for item in items.values())
    assert len(objects.names("")) == 3
    objects.delete(items)
    assert objects.names("data") == []


def test_parts_beyond_what_the_system_takes_at_once(objects):
    parts = [b"%d," % i for i in range(3000)]
    assert objects.create("commits/many", parts)
    assert objects.read("commits/many") == b"".join(parts)


@pytest.mark.parametrize("name", [
    "", "/etc/passwd", "../a", "a/../b", "a//b", "a/", ".", "a/.hidden", "a\0b", "a b", "a\nb",
    "é", "a" * 256, "/".join(["a" * 200] * 6), "a\\b", "C:\\x", "s3://bucket/a", "-rf",
])
def test_a_name_that_leads_elsewhere_is_refused(objects, name):
    for use in (
        objects.read, objects.locate, lambda n: objects.create(n, [b""]),
        lambda n: objects.replace(n, b""), lambda n: objects.delete([n]),
        lambda n: objects.read_range(n, 0, 1),
    ):
        with pytest.raises(StorageError, match="is no name of an object"):
            use(name)


def test_a_probe_leaves_nothing(objects):
    objects.probe()
    assert objects.names("") == objects.leftovers() == objects.foreign() == []


class Overwriting(LocalObjects):
    """A create that overwrites an existing object, as in some mounted object stores."""

    def create(self, name, parts):
        self.replace(name, b"".join(parts))
        return True


class Lying(LocalObjects):
    """A create that refuses a taken name and still overwrites the object."""

    def create(self, name, parts):
        there = any(item.name == name for item in self.names(""))
        self.replace(name, b"".join(parts))
        return not there


def test_a_probe_that_meets_its_own_request_again_passes(local):
    """The client lost the first answer and sent the request again."""
    real = local.create
    local.create = lambda name, parts: real(name, parts) and parts[0] != b"first"
    local.probe()


@pytest.mark.parametrize("kind", [Overwriting, Lying])
def test_a_root_that_overwrites_is_refused_and_left_as_it_was(tmp_path, kind):
    objects = kind(tmp_path)
    with pytest.raises(StorageError, match="a second create of one key is not refused") as error:
        objects.probe()
    assert str(tmp_path) in str(error.value)
    assert os.listdir(tmp_path) == []


def test_what_locates_an_object_opens_it(objects, root):  # noqa: F811
    objects.create("data/f/x.arrow", [b"123"])
    place = objects.locate("data/f/x.arrow")
    assert place == f"{objects.root}/data/f/x.arrow"
    if "://" not in place:
        with open(place, "rb") as file:
            assert file.read() == b"123"


# In a folder.


def test_a_create_syncs_the_file_before_its_name_and_the_folders_after(local, monkeypatch):
    done = []
    for name in ("fsync", "link", "mkdir"):
        real = getattr(os, name)

        def noted(*args, _name=name, _real=real, **kwargs):
            done.append(_name)
            return _real(*args, **kwargs)

        monkeypatch.setattr(os, name, noted)
    local.create("commits/a", [b"x"])
    assert done == ["mkdir", "fsync", "mkdir", "fsync", "fsync", "link", "fsync"]
    done.clear()
    local.create("commits/b", [b"x"])
    assert done == ["fsync", "link", "fsync"]
    done.clear()
    local.replace("commits/b", b"y")
    assert done == ["fsync", "fsync"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_file_that_cannot_be_written_leaves_nothing(local, monkeypatch, code):
    local.create("commits/a", [b"x"])

    def failing(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(local_objects, "_write", failing)
    with pytest.raises(StorageError, match=os.strerror(code)) as error:
        local.create("commits/b", [b"y"])
    assert ("bytes are free" in str(error.value)) == (code == errno.ENOSPC)
    assert not isinstance(error.value, UnknownOutcomeError)
    assert os.listdir(f"{local.root}/commits") == ["a"]


def test_where_the_folder_cannot_be_synced_the_outcome_is_unknown(local, monkeypatch):
    local.create("commits/a", [b"x"])
    real = os.fsync

    def failing(file):
        if os.path.isdir(f"/proc/self/fd/{file}"):
            raise OSError(errno.EIO, "no")
        real(file)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(UnknownOutcomeError):
        local.create("commits/b", [b"y"])
    with pytest.raises(StorageError):
        local.secure("commits/b")
    monkeypatch.undo()
    local.secure("commits/b")


def test_a_file_written_where_it_is_located_is_made_durable(local, monkeypatch):
    local.create("commits/a", [b""])
    path = local.locate("data/f/x.arrow")
    os.makedirs(os.path.dirname(path))
    with open(path, "wb") as file:
        file.write(b"rows")
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(
        os.path.relpath(os.readlink(f"/proc/self/fd/{file}"), local.root)
    ))
    local.secure("data/f/x.arrow")
    assert synced == ["data/f/x.arrow", "data/f", "data", "."]


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_links_is_refused(local, monkeypatch, code):
    def failing(*_, **__):
        raise OSError(code, "no")

    monkeypatch.setattr(os, "link", failing)
    with pytest.raises(StorageError, match="without hard links"):
        local.probe()
    assert os.listdir(local.root) == []


@pytest.mark.parametrize("code", volumes.CODES.values(), ids=volumes.CODES)
def test_a_file_system_without_renames_is_refused_when_a_store_is_opened(local, code):
    local.create("commits/a", [b"x"])
    with volumes.refusing(local.root, code, ["rename"]) as refused:
        with pytest.raises(StorageError, match="without renames"):
            local.probe()
        with pytest.raises(StorageError, match="without renames"):
            local.replace("commits/a", b"y")
    assert refused and local.read("commits/a") == b"x"
    assert [item.name for item in local.names("")] == ["commits/a"] and not local.leftovers()


@pytest.mark.parametrize("code", volumes.CODES.values(), ids=volumes.CODES)
def test_a_hint_is_replaced_if_a_file_takes_no_random_writes(local, code):
    local.replace("head", b"12345", lasting=False)
    with volumes.refusing(local.root, code, ["append", "mmap", "lock"]) as refused:
        local.replace("head", b"54321", lasting=False)
    assert refused and local.read("head") == b"54321"


def test_a_scratch_file_that_cannot_be_removed_is_no_failure(local, monkeypatch):
    """The object already has its name if a vacuum was quicker or the disk fails."""
    def failing(*_, **__):
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(os, "unlink", failing)
    assert local.create("commits/a", [b"x"])
    assert not local.create("commits/a", [b"y"])
    monkeypatch.undo()
    assert local.read("commits/a") == b"x" and len(local.leftovers()) == 2


def test_no_link_below_the_root_is_followed(local, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    local.create("commits/a", [b"x"])
    os.symlink(outside, f"{local.root}/data")
    os.symlink(outside / "secret", f"{local.root}/commits/b")
    for use in (local.read, lambda n: local.read_range(n, 0, 9), local.locate):
        for name in ("data/secret", "commits/b"):
            with pytest.raises(StorageError):
                use(name)
    for write in (
        lambda: local.create("data/new", [b""]), lambda: local.replace("data/secret", b""),
        lambda: local.delete(["data/secret"]),
    ):
        with pytest.raises(StorageError, match="symbolic link"):
            write()
    assert [item.name for item in local.names("commits")] == ["commits/a"]
    with pytest.raises(StorageError):
        local.names("data")
    local.replace("commits/b", b"mine")
    assert (outside / "secret").read_text() == "secret"
    assert os.listdir(outside) == ["secret"]


def test_a_root_may_be_a_link_itself(tmp_path):
    (tmp_path / "real").mkdir()
    os.symlink(tmp_path / "real", tmp_path / "root")
    objects = objects_at(tmp_path / "root")
    assert objects.create("data/f/a", [b"x"])
    assert objects.locate("data/f/a") == str(tmp_path / "root/data/f/a")


def test_a_pipe_does_not_make_a_reader_wait(local):
    local.create("commits/a", [b"x"])
    os.mkfifo(f"{local.root}/commits/b")
    with pytest.raises(StorageError, match="is no file"):
        local.read("commits/b")


def test_a_folder_that_is_replaced_under_a_writer_is_an_error(local):
    local.create("commits/a", [b"x"])
    os.rename(f"{local.root}/commits", f"{local.root}/commits.old")
    os.mkdir(f"{local.root}/commits")
    with pytest.raises(StorageError, match="was removed, or replaced"):
        local.create("commits/b", [b"x"])


def test_leftovers_are_found_and_not_listed(local):
    local.create("commits/a", [b"x"])
    os.mkdir(f"{local.root}/data")
    for name in ("commits/b.0011.tmp", "data/c.tmp", "probe-12", "head.01.tmp", "notes.tmp"):
        with open(f"{local.root}/{name}", "w"):
            pass
    assert [item.name for item in local.names("commits")] == ["commits/a"]
    assert sorted(item.name for item in local.leftovers()) == [
        "commits/b.0011.tmp", "data/c.tmp", "head.01.tmp", "probe-12",
    ]
    assert local.foreign() == ["notes.tmp"]


def test_a_killed_create_leaves_the_name_free(tmp_path):
    code = (
        "import os, sys; from pyspark_diff.trace.local_objects import LocalObjects\n"
        "os.link = lambda *a, **k: os._exit(137)\n"
        "LocalObjects(sys.argv[1]).create('commits/a', [b'x'])"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)]).returncode == 137
    objects = LocalObjects(tmp_path)
    assert objects.names("") == [] and len(objects.leftovers()) == 1
    assert objects.create("commits/a", [b"y"])


def test_descriptors_stay_few_and_are_closed(tmp_path):
    def opened():
        links = []
        for number in os.listdir("/proc/self/fd"):
            try:
                links.append(os.readlink(f"/proc/self/fd/{number}"))
            except FileNotFoundError:
                pass  # the descriptor of the listing itself
        return sum(link.startswith(str(tmp_path)) for link in links)

    for i in range(20):
        objects = LocalObjects(tmp_path)
        for folder in ("commits", "floor", f"data/{i}", "readers"):
            objects.create(f"{folder}/x{i}", [b""])
            objects.read(f"{folder}/x{i}")
        objects.names("")
        objects.leftovers()
        gc.collect()
        assert opened() == 3
    del objects
    gc.collect()
    assert opened() == 0


def test_the_last_file_of_a_folder_takes_it_along(local):
    local.create("data/f/a", [b""])
    local.create("data/f/b", [b""])
    local.delete(["data/f/a"])
    assert os.listdir(f"{local.root}/data/f") == ["b"]
    local.delete(["data/f/b"])
    assert os.listdir(f"{local.root}/data") == []
    os.makedirs(f"{local.root}/data/empty")
    local.remove_empty("data", time.time() - 60)
    assert os.listdir(f"{local.root}/data") == ["empty"]
    local.remove_empty("data", time.time() + 60)
    assert os.listdir(f"{local.root}/data") == []


# URLs.


def test_a_file_url_is_a_path(tmp_path):
    assert objects_at(f"file://{tmp_path}/a%20b").root == f"{tmp_path}/a b"
    assert objects_at(f"file:{tmp_path}").root == str(tmp_path)


@pytest.mark.parametrize("root", [
    "", "  ", None, 3, "ftp://host/x", "http://host/x", "file://host/x", "hdfs://host/x",
])
def test_what_is_no_root_is_refused(root):  # noqa: F811
    with pytest.raises(StorageError, match="root of a store"):
        objects_at(root)


@pytest.mark.parametrize("url", [
    "s3://me:hunter2@bucket/x", "s3://bucket/x?X-Amz-Signature=hunter2", "az://c/x?sig=hunter2",
])
def test_credentials_in_a_url_are_refused_and_not_repeated(url):
    with pytest.raises(StorageError, match="credentials in the environment") as error:
        objects_at(url)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("text", [
    "PUT http://me:hunter2@host/x failed", "at https://host/x?sig=hunter2 and more",
    "'s3://u:hunter2@b/k?token=hunter2'",
])
def test_messages_are_redacted(text):
    assert "hunter2" not in redacted(text)


def test_without_obstore_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(StorageError, match=re.escape("pyspark_diff[remote]")):
        objects_at("s3://bucket/x")


def test_errors_of_an_object_store_name_the_object_and_no_keys(monkeypatch, use_thresholds):
    pytest.importorskip("obstore")
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    objects = objects_at("s3://no-such-bucket/x")
    with pytest.raises((StorageError, FileNotFoundError)) as error:
        objects.create("commits/a", [b"x"])
    assert "a-very-secret-key" not in str(error.value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    use_thresholds(request_retries_max=0)
    objects = objects_at("s3://bucket/x")
    with pytest.raises(UnknownOutcomeError, match="s3://bucket/x/commits/a") as error:
        objects.create("commits/a", [b"x"])
    with pytest.raises(StorageError, match="s3://bucket/x/commits/a"):
        objects.read("commits/a")
    assert "a-very-secret-key" not in str(error.value) and "an-id" not in str(error.value)
