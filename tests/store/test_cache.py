"""Copies of batch files match the checksums in their names, are shared, and stay below a limit."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from stores import root  # noqa: F401

from pyspark_diff.errors import DamagedStateError, StorageError
from pyspark_diff.trace import cache
from pyspark_diff.trace.cache import local_copy, upload
from pyspark_diff.trace.local_objects import LocalObjects
from pyspark_diff.trace.roots import objects_at

pytest.importorskip("obstore")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder of copies for each test."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    cache._client.cache_clear()
    return place / f"pyspark_diff_cache-{os.getuid()}"


def name_for(data, number=0):
    return (
        f"data/e0001-x-{number:012x}.durable/00000-crc{zlib.crc32(data):08x}-{len(data)}.arrow"
    )


def stored(root, data, number=0):  # noqa: F811
    """Create a batch file in the store and return its URL."""
    name = name_for(data, number)
    objects_at(root).create(name, [data])
    return f"{root}/{name}"


def copies(folder):
    return sorted(path for path in folder.iterdir() if path.suffix == ".arrow")


def test_a_copy_is_fetched_once(root, folder, use_thresholds):  # noqa: F811
    data = os.urandom(100_000)
    use_thresholds(download_piece_bytes=1 << 14)
    url = stored(root, data)
    path = local_copy(url)
    assert Path(path).read_bytes() == data
    if isinstance(objects_at(root), LocalObjects):
        assert path == url and not folder.exists()
        return
    assert folder.stat().st_mode & 0o777 == 0o700
    objects_at(root).delete([name_for(data)])
    assert local_copy(url) == path


def test_an_upload_is_what_is_fetched(root, tmp_path, use_thresholds):  # noqa: F811
    use_thresholds(download_piece_bytes=1 << 14)
    data = os.urandom(100_000)
    (tmp_path / "file").write_bytes(data)
    url = f"{root}/{name_for(data)}"
    for _ in range(2):
        upload(str(tmp_path / "file"), url)
    assert Path(local_copy(url)).read_bytes() == data
    (tmp_path / "file").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(DamagedStateError, match="was not uploaded"):
        upload(str(tmp_path / "file"), f"{root}/{name_for(data, 1)}")
    with pytest.raises(StorageError, match=f": {os.strerror(errno.ENOENT)}. Copies are kept in"):
        upload(str(tmp_path / "none"), url)
    assert len(objects_at(root).names("data")) == 1


def test_what_is_not_as_its_name_says_is_not_kept(folder):
    root = "memory://damaged"  # noqa: F811
    data = b"some rows"
    for number, there in enumerate((b"some r0ws", b"some row", b"some rows!", b"")):
        name = name_for(data, number)
        objects_at(root).create(name, [there])
        if there.startswith(data):
            continue  # the download stops at the stated size
        with pytest.raises(DamagedStateError, match="is damaged: its"):
            local_copy(f"{root}/{name}")
    with pytest.raises(DamagedStateError, match="is missing"):
        local_copy(f"{root}/{name_for(data, 99)}")
    assert copies(folder) == [] and not list(folder.glob("*.tmp"))


@pytest.mark.parametrize("url", [
    "memory://x/data/../../etc/passwd", "memory://x/commits/0000000000000001.commit",
    "data/e0001-x-0123456789ab.durable/00000-crc00000000-0.arrow", "",
    "memory://x/data/a?sig=hunter2",
])
def test_what_is_no_batch_file_is_refused(url):
    with pytest.raises(StorageError, match="not the URL of a batch file") as error:
        local_copy(url)
    assert "hunter2" not in str(error.value)


def test_those_used_longest_ago_go_first(folder, monkeypatch):
    monkeypatch.setenv(cache.LIMIT, "3000")
    urls = [stored("memory://lru", b"%d" % n * 1000, n) for n in range(5)]
    paths = [local_copy(url) for url in urls[:3]]
    now = time.time()
    for age, path in enumerate(paths):
        os.utime(path, (now - 100 + age, now - 100 + age))
    local_copy(urls[0])
    paths.append(local_copy(urls[3]))
    assert [os.path.exists(path) for path in paths] == [True, False, True, True]
    assert local_copy(urls[1]) == paths[1]
    assert not os.path.exists(paths[2])
    # A copy larger than the limit evicts all others.
    big = stored("memory://lru", b"x" * 5000, 9)
    assert [str(path) for path in copies(folder)] != [local_copy(big)] != []
    assert copies(folder) == [Path(local_copy(big))]


def test_a_mapped_copy_stays_with_who_has_mapped_it(monkeypatch):
    monkeypatch.setenv(cache.LIMIT, "1000")
    first = stored("memory://mapped", b"a" * 1000, 1)
    with open(local_copy(first), "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    path = local_copy(first)
    local_copy(stored("memory://mapped", b"b" * 1000, 2))
    assert not os.path.exists(path)
    assert mapped[:] == b"a" * 1000


def test_many_at_once_get_the_same(folder):
    data = os.urandom(50_000)
    url = stored("memory://many", data)
    with ThreadPoolExecutor(8) as threads:
        paths = set(threads.map(lambda _: local_copy(url), range(32)))
    assert len(paths) == 1 == len(copies(folder))
    assert Path(paths.pop()).read_bytes() == data


def test_what_a_killed_process_was_fetching_goes(folder):
    url = stored("memory://killed", b"rows")
    local_copy(url)
    for name, age in (("old.arrow.00.tmp", 2 * cache._ABANDONED), ("new.arrow.00.tmp", 0)):
        (folder / name).write_bytes(b"half")
        os.utime(folder / name, (time.time() - age, time.time() - age))
    local_copy(stored("memory://killed", b"other rows", 1))
    assert [path.name for path in folder.glob("*.tmp")] == ["new.arrow.00.tmp"]


def test_a_copy_that_was_cut_short_is_fetched_again():
    url = stored("memory://cut", b"rows")
    path = local_copy(url)
    os.truncate(path, 2)
    assert Path(local_copy(url)).read_bytes() == b"rows"


@pytest.mark.parametrize("how", ["link", "open", "file"])
def test_a_folder_that_others_may_have_made_is_refused(folder, how, tmp_path):
    if how == "link":
        (tmp_path / "theirs").mkdir()
        os.symlink(tmp_path / "theirs", folder)
    elif how == "open":
        folder.mkdir()
        folder.chmod(0o777)
    else:
        folder.write_text("")
    with pytest.raises(StorageError, match="no other user can write to"):
        local_copy(stored("memory://open", b"rows"))


def test_a_limit_that_is_no_number_is_refused(monkeypatch):
    monkeypatch.setenv(cache.LIMIT, "ten")
    with pytest.raises(StorageError, match=f"{cache.LIMIT} is 'ten'"):
        local_copy(stored("memory://limit", b"rows"))
