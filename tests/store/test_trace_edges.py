"""Edge cases of the parts of a store: no memory, no reason, the last number, no folder."""

from __future__ import annotations

import errno
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pyspark_diff.errors import DamagedStateError, StorageError
from pyspark_diff.kernels.updates import UpdateChunk
from pyspark_diff.trace import cache, held_batches, manifest, storage
from pyspark_diff.trace.batch import Batch, BatchFile, Paths
from pyspark_diff.trace.roots import objects_at


def batch(*buckets: int) -> Batch:
    files = {bucket: (BatchFile(f"/data/{bucket}", 1, 8),) for bucket in buckets}
    return Batch(None, files)  # type: ignore[arg-type]


@pytest.mark.parametrize("several", [[], [(3, 1)], [(1,), (2, 1)], [(1,), (2,), (5, 1)]])
def test_paths_have_each_bucket_once(several):
    paths = Paths([batch(*buckets) for buckets in several])
    wanted = list(dict.fromkeys(bucket for buckets in several for bucket in buckets))
    assert list(paths) == wanted and len(paths) == len(wanted)
    for bucket in wanted:
        assert len(paths[bucket]) == sum(bucket in buckets for buckets in several)
    with pytest.raises(KeyError):
        paths[7]


@pytest.mark.parametrize("error, reason", [
    (OSError(errno.ENOSPC, "?"), "No space left on device"),
    (OSError(errno.EACCES, "?"), "Permission denied"),
    (OSError("the lock is gone"), "the lock is gone"),
])
def test_a_copy_that_fails_names_the_reason_of_the_system(error, reason):
    with pytest.raises(StorageError, match=reason):
        with cache._explained("s3://bucket/a"):
            raise error


@pytest.mark.parametrize("most, free, in_memory", [
    (None, 1 << 40, False), (1 << 40, None, False), (1 << 40, 100, False), (100, 1 << 40, False),
    (1 << 40, 1 << 40, True),
])
def test_a_large_batch_is_kept_in_memory_only_if_there_is_room(monkeypatch, most, free, in_memory):
    monkeypatch.setattr(held_batches, "_all_memory", lambda: most)
    monkeypatch.setattr(held_batches, "free_memory", lambda: free)
    path, rows = f"/data/{uuid.uuid4().hex}", UpdateChunk(np.arange(100), None, 0, 1)
    try:
        assert held_batches.keep_large(path, rows) is in_memory
        assert (path in held_batches._batches) is in_memory
    finally:
        held_batches._batches.pop(path, None)
        held_batches._large.pop(path, None)


def test_the_last_number_of_a_commit_is_as_long_as_the_first():
    last = manifest._MOST_NUMBER
    assert len(manifest.name_of(last)) == len(manifest.name_of(1))
    assert len(manifest.name_of(last + 1)) > len(manifest.name_of(1))


def test_folders_of_a_store_in_memory_are_apart():
    pytest.importorskip("obstore")
    place = f"memory://{uuid.uuid4().hex}"
    whole, first, second = (objects_at(place + folder) for folder in ("", "/a", "/b/c/"))
    first.create("commits/1", [b"one"])
    second.create("commits/1", [b"two"])
    whole.create("commits/1", [b"three"])
    read = [objects.read("commits/1") for objects in (first, second, whole)]
    assert read == [b"one", b"two", b"three"]
    assert whole.read("a/commits/1") == b"one"


@pytest.mark.parametrize("part", [None, "data", "data/folder", "file"])
def test_a_file_is_opened_in_another_process_unless_a_link_leads_to_it(
    tmp_path, monkeypatch, part
):
    monkeypatch.setattr(storage, "_checked", set())  # as in a new process
    (tmp_path / "data/folder").mkdir(parents=True)
    table = pa.table({"x": [1, 2]})
    path, _ = storage.write_lasting(str(tmp_path / "data/folder/00000.arrow"), table)
    storage._checked.clear()
    if part is None:
        assert storage.read_table(path) == table
        return
    place = Path(path) if part == "file" else tmp_path / part
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DamagedStateError, match="is a symbolic link, and is not followed"):
        storage.read_table(path)
