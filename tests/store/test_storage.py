"""State on disk: removed after every end, and never half-written."""

import errno
import fcntl
import gc
import mmap
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from pyspark_diff import Dataflow, DiffOverflowError, StorageError, thresholds
from pyspark_diff.kernels.updates import UpdateChunk
from pyspark_diff.trace import held_batches, locked_folders, storage
from pyspark_diff.trace.storage import Storage

ROOT = Path(__file__).parents[2]
HOLD = """
import os, sys, time
from pyspark_diff.trace.storage import Storage
storage = Storage(sys.argv[1])
os.mkdir(os.path.join(storage.root, "batch"))
print(storage.root, flush=True)
{end}
"""


def held_by_a_process(folder, end="time.sleep(600)"):
    """A process with a directory of its own, and that directory; `end` is its last statement."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(end=end), str(folder)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )
    return process, process.stdout.readline().strip()


#: No memory for large batches.
NO_SHARE = 1 << 60


@pytest.fixture(autouse=True)
def files_for_thousands(use_thresholds):
    """Store batches of a few thousand rows in files, not in memory."""
    use_thresholds(in_memory_rows_max=4096, large_memory_divisor=NO_SHARE)


def fill(flow):
    words, session = flow.input("words", "word string")
    counts = words.count().keep()
    session.insert(pa.table({"word": [f"w{i}" for i in range(20_000)]}))
    session.advance_to(1)
    session.flush()
    flow.step()
    return counts, session


def files_below(root):
    return [path for path in Path(root).rglob("*.arrow")]


def test_removed_at_close(spark, tmp_path):
    with Dataflow(spark, root=str(tmp_path)) as flow:
        fill(flow)
        assert files_below(tmp_path)
    assert not list(tmp_path.iterdir())
    flow.close()  # a second time is fine


def test_removed_after_an_exception(spark, tmp_path):
    with pytest.raises(ZeroDivisionError):
        with Dataflow(spark, root=str(tmp_path)) as flow:
            fill(flow)
            1 / 0
    assert not list(tmp_path.iterdir())


def test_removed_when_collected(spark, tmp_path):
    flow = Dataflow(spark, root=str(tmp_path))
    fill(flow)
    assert files_below(tmp_path)
    del flow
    gc.collect()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("end", "code"),
    [("pass", 0), ("sys.exit(3)", 3), ("1 / 0", 1), ("del storage; os._exit(4)", 4)],
)
def test_removed_at_the_end_of_the_process(tmp_path, end, code):
    process, root = held_by_a_process(tmp_path, end)
    assert process.wait(60) == code
    assert Path(root).parent == tmp_path and not os.path.exists(root)


def test_the_end_of_a_fork_is_not_that_of_its_owner(tmp_path):
    end = """
if os.fork() == 0:
    del storage
    sys.exit()
os.wait()
sys.exit(5 if os.path.exists(storage.root) else 6)
"""
    process, root = held_by_a_process(tmp_path, end)
    assert process.wait(60) == 5 and not os.path.exists(root)


def test_what_a_killed_process_leaves_is_removed_by_the_next(tmp_path):
    process, root = held_by_a_process(tmp_path)
    other, alive = held_by_a_process(tmp_path)
    try:
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        assert os.path.exists(root)
        mine = Storage(str(tmp_path))
        assert not os.path.exists(root)
        assert os.path.exists(alive)  # its owner lives
        mine.close()
    finally:
        other.kill()
        other.wait(60)


def orphan(folder):
    """The directory that a killed process left in a folder."""
    process, root = held_by_a_process(folder)
    process.kill()
    process.wait(60)
    return Path(root)


def foreign(folder, text, name="pyspark_diff-mine"):
    """A directory with our prefix and an unlocked lock that holds some text."""
    root = folder / name
    root.mkdir()
    (root / "precious").write_text("data")
    (root / "lock").write_text(text)
    return root


@pytest.mark.parametrize(
    "marker",
    [
        "",
        "12345\n",
        "pyspark_diff storage 2\n{name}\n{uid}\n",
        "pyspark_diff storage 1\n{name}\n{uid}1\n",
        "pyspark_diff storage 1\npyspark_diff-other\n{uid}\n",
        "pyspark_diff storage 1\n{name}\n{uid}\nmore",
    ],
)
def test_a_directory_that_is_not_ours_is_left_alone(tmp_path, marker):
    (tmp_path / "pyspark_diff-without").mkdir()
    (tmp_path / "other").mkdir()
    root = foreign(tmp_path, marker.format(name="pyspark_diff-mine", uid=os.getuid()))
    Storage(str(tmp_path)).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "other", "pyspark_diff-mine", "pyspark_diff-without"
    ]
    assert sorted(path.name for path in root.iterdir()) == ["lock", "precious"]


def test_links_are_not_followed(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    root, elsewhere = orphan(here), orphan(there)
    # A link to an orphan, a directory whose lock links to another lock, and links in an orphan.
    (here / elsewhere.name).symlink_to(elsewhere)
    linked = foreign(here, "", "pyspark_diff-linked")
    (linked / "lock").unlink()
    (linked / "lock").symlink_to(elsewhere / "lock")
    (root / "folder").symlink_to(there)
    (root / "batch" / "file").symlink_to(elsewhere / "lock")
    os.mkfifo(foreign(here, "", "pyspark_diff-pipe") / "pipe")
    os.rename(here / "pyspark_diff-pipe" / "pipe", here / "pyspark_diff-pipe" / "lock")
    Storage(str(here)).close()
    assert sorted(path.name for path in here.iterdir()) == sorted(
        [elsewhere.name, "pyspark_diff-linked", "pyspark_diff-pipe"]
    )
    assert (linked / "precious").exists() and (elsewhere / "lock").exists()
    Storage(str(there)).close()
    assert not list(there.iterdir())


def test_a_removal_that_was_cut_short_is_completed(tmp_path, monkeypatch):
    root = orphan(tmp_path)
    (root / "another").mkdir()
    remove = shutil.rmtree

    def cut_short(path, **options):
        remove(path, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", cut_short)
    with pytest.raises(KeyboardInterrupt):
        Storage(str(tmp_path))
    monkeypatch.undo()
    assert root.exists()
    Storage(str(tmp_path)).close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "root", ["s3a://bucket/state", "hdfs://host:9000/state", "dbfs:/state", "file://host/state"]
)
def test_a_root_of_another_file_system_is_refused(spark, tmp_path, monkeypatch, root):
    monkeypatch.chdir(tmp_path)
    # `Path` merges the slashes, and the root is still refused; a file URI is valid as a path.
    for location in (root, root if root.startswith("file") else Path(root)):
        with pytest.raises(StorageError, match="on a cluster one that the driver and all"):
            Dataflow(spark, root=location)
    with pytest.raises(StorageError, match=re.escape(repr(root))):
        Storage(root)
    assert not list(tmp_path.iterdir())


def test_a_root_may_be_a_uri_of_a_file_or_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for root, there in {
        f"file://{tmp_path}/a%20b": "a b", f"file:{tmp_path}/c": "c", "d/e": "d/e", "f:g": "f:g"
    }.items():
        storage = Storage(root)
        assert Path(storage.root).parent == tmp_path / there
        storage.close()
        assert not list((tmp_path / there).iterdir())


def test_a_root_that_is_no_directory_is_refused(tmp_path):
    file = tmp_path / "file"
    file.write_text("data")
    for root in (file, file / "below", "", " ", 5, b"bytes", "/proc/none", "/proc"):
        with pytest.raises(StorageError, match="a directory") as caught:
            Storage(root)
        assert isinstance(caught.value, OSError)
        assert repr(root) in str(caught.value) or str(root) in str(caught.value)
    assert file.read_text() == "data"


def test_a_root_that_is_only_read_is_refused(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    with pytest.raises(StorageError, match=f"{tmp_path}.*Permission denied.*is writable"):
        Storage(str(tmp_path))


@pytest.mark.parametrize("place", ["write", "flock", "rename"])
def test_a_directory_that_cannot_be_locked_does_not_stay(tmp_path, monkeypatch, place):
    def refuse(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fcntl if place == "flock" else os, place, refuse)
    with pytest.raises(StorageError, match="bytes are free"):
        Storage(str(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("code", [errno.ENODEV, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS])
def test_a_root_without_maps_and_locks_gives_the_same(spark, tmp_path, monkeypatch, code):
    refused, memory_map = [], pa.memory_map

    def refuse(path, *_, **__):
        refused.append(path)
        raise OSError(code, os.strerror(code))

    def elsewhere(path, *rest):
        return refuse(path) if str(path).startswith(str(tmp_path)) else memory_map(path, *rest)

    def program(flow):
        words, _ = flow.input("words", "word STRING")
        words.groupBy("word").count().keep("counts")

    monkeypatch.setattr(pa, "memory_map", refuse if code == errno.ENOSYS else elsewhere)
    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(mmap, "mmap", refuse)
    for start in (0, 2):
        with Dataflow.open(
            tmp_path / "store", program, spark=spark, local_rows=1 << 20, buckets=2
        ) as flow:
            for time in (start, start + 1):
                insert_at(flow.session("words"), time, range(time + 3))
                flow.step()
            counts = {tuple(row) for row in flow["counts"].at(start + 1).collect()}
            assert counts == {
                (f"w{i}", sum(i < time + 3 for time in range(start + 2))) for i in range(start + 4)
            }
    path = str(tmp_path / "one.arrow")
    storage.write_batch(path, pa.record_batch({"x": [1, 2]}))
    assert storage.read_table(path).column("x").to_pylist() == [1, 2]
    assert path in refused
    other = Storage(str(tmp_path))
    locked_folders.remove_orphans(tmp_path)
    assert os.path.isdir(other.root)  # it has no lock, and is left alone
    other.close()
    assert not os.path.exists(other.root)


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM, errno.ENOTSUP, errno.ESPIPE])
def test_a_root_without_renames_and_links_gives_the_same(spark, tmp_path, monkeypatch, code):
    """Volumes of Databricks and other mounts of object stores raise these errors."""
    refused = []

    def refuse(path, *_, **__):
        refused.append(path)
        raise OSError(code, os.strerror(code), str(path))

    for name in ("rename", "replace", "link"):
        monkeypatch.setattr(os, name, refuse)
    root = tmp_path / "root"
    with Dataflow(spark, root=str(root), runner="local", buckets=2) as flow:
        words, session = flow.input("words", "word string")
        counts = words.groupBy("word").count().keep("counts")
        for time in range(3):
            insert_at(session, time, range(time + 3))
            flow.step()
        assert {tuple(row) for row in counts.at(2).collect()} == {
            (f"w{i}", sum(i < time + 3 for time in range(3))) for i in range(5)
        }
        flow.report(tmp_path / "page.html")
        path = f"{flow._storage.root}/one.arrow"
        storage.write_batch(path, pa.record_batch({"x": [1, 2]}))
        assert storage.read_table(path).column("x").to_pylist() == [1, 2]
    assert refused and not os.listdir(root)
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of four megabytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root can make a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def insert_at(session, time, words):
    session.insert(pa.table({"word": [f"w{i}" for i in words]}))
    session.advance_to(time + 1)
    session.flush()


@pytest.mark.parametrize("runner", ["local", "spark"])
@pytest.mark.parametrize("far", [False, True])
def test_a_full_disk_stops_a_step_and_nothing_else(spark, small_disk, runner, far):
    """Arrow rows are in memory; rows of a frame that is read twice are written by tasks."""
    with Dataflow(spark, root=str(small_disk), runner=runner, buckets=2) as flow:
        words, session = flow.input("words", "word string")
        counts, many = words.count().keep(), words.distinct().count().keep()
        insert_at(session, 0, range(1_000))
        flow.step()
        before = sorted(map(str, files_below(small_disk)))
        if far:
            session.insert(spark.range(200_000).selectExpr("concat('w', id) as word"))
            insert_at(session, 1, [])
        else:
            insert_at(session, 1, range(200_000))
        for _ in range(2):
            with pytest.raises(StorageError, match="bytes are free in .*Make room") as caught:
                flow.step()
            assert str(small_disk) in str(caught.value)
            paths = [str(path) for path in small_disk.rglob("*") if path.is_file()]
            assert sorted(path for path in paths if not path.endswith("lock")) == before
            assert counts.at().count() == 1_000
        subprocess.run(["mount", "-o", "remount,size=256m", str(small_disk)], check=True)
        flow.step()
        assert counts.at().count() == 200_000
        assert counts.at(1).where("count = 2").count() == 1_000
        assert many.at().count() == 200_000


@pytest.mark.parametrize("buckets", [1, 2])
def test_few_rows_of_many_bytes_are_not_held_in_memory(spark, buckets):
    with Dataflow(spark, runner="local", buckets=buckets) as flow:
        words, words_in = flow.input("words", "word string")
        output = words.keep()
        words_in.insert([(f"{k} " + 100_000 * "x",) for k in range(100)])
        flow.advance_to(1)
        root = flow._storage.root
        assert not any(path.startswith(root) for path in held_batches._batches)
        assert len(list(Path(root).rglob("*.arrow"))) == buckets
        assert output.at().count() == 100


@pytest.mark.parametrize("buckets", [1, 2])
def test_large_batches_are_held_while_there_is_room(spark, buckets, monkeypatch, use_thresholds):
    use_thresholds(large_memory_divisor=4)
    with Dataflow(spark, runner="local", buckets=buckets) as flow:
        counts, session = fill(flow)
        root = flow._storage.root
        assert not files_below(root)
        large = {path: size for path, size in held_batches._large.items() if path.startswith(root)}
        assert len(large) >= buckets
        monkeypatch.setattr(held_batches, "_all_memory", lambda: 4 * sum(large.values()))
        session.insert(pa.table({"word": [f"v{i}" for i in range(20_000)]}))
        flow.advance_to(2)
        assert files_below(root), "what has no room is a file"
        assert counts.at().count() == 40_000
        flow.runner = "spark"
        session.insert(pa.table({"word": [f"w{i}" for i in range(20_000)]}))
        flow.advance_to(3)
        assert counts.at().where("count = 2").count() == 20_000
    assert not any(path.startswith(root) for path in held_batches._large)


def test_what_is_held_is_not_what_a_user_may_change(spark, use_thresholds):
    use_thresholds(large_memory_divisor=4)
    with Dataflow(spark, runner="local", buckets=1) as flow:
        pairs, session = flow.input("pairs", "a long, b long, c double")
        output = pairs.keep()
        a, b, c = np.arange(9_000), np.arange(9_000), np.arange(9_000.0)
        session.insert(pa.table({"a": pa.array(a), "b": pa.array(b), "c": pa.array(c)}))
        frame = pd.DataFrame({"a": 9_000 + a, "b": b, "c": c})
        session.insert(frame)
        frame.loc[:, ["a", "b"]] = -1
        frame.loc[:, "c"] = -1.0
        flow.advance_to(1)
        for array in a, b, c:
            array[:] = -1
        assert any(path.startswith(flow._storage.root) for path in held_batches._large)
        assert output.at().where("a < 0 or b < 0 or c < 0").count() == 0
        session.remove([(1, 1, 1.0)])
        flow.advance_to(2)
        assert output.at().count() == 17_999


def test_a_full_disk_is_told_when_memory_is_written_out(tmp_path, monkeypatch):
    path = str(tmp_path / "b" / "00000.arrow")
    held_batches.keep_copy(path, UpdateChunk(np.arange(5), None, 0, 1))

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pa.ipc.RecordBatchFileWriter, "write", full)
        with pytest.raises(StorageError, match="No space left"):
            storage.settle([path])
    assert storage.open_updates(path).key64.tolist() == [0, 1, 2, 3, 4]
    storage.remove_files([path])


def test_a_file_that_is_not_there_is_told(tmp_path):
    for read in (storage.open_updates, storage.read_table):
        with pytest.raises(StorageError, match="No such file .* all executors share"):
            read(str(tmp_path / "gone.arrow"))


@pytest.mark.parametrize("error", [OSError("no space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("place", ["replace", "getsize", "write"])
def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch, place, error):
    path = tmp_path / "b" / "00000.arrow"

    def fail(*_):
        # The file is half written now, under a temporary name.
        assert [file.suffix for file in path.parent.iterdir()] == [".tmp"]
        raise error

    if place == "write":
        monkeypatch.setattr(pa.ipc.RecordBatchFileWriter, "write", fail)
    else:
        monkeypatch.setattr(os if place == "replace" else os.path, place, fail)
    with pytest.raises(type(error)):
        storage.write_batch(str(path), pa.table({"x": [1]}))
    assert not list(path.parent.iterdir())


def test_what_a_killed_task_was_writing_goes_with_its_job(tmp_path):
    folder = tmp_path / "batch"
    for written in ["00000.arrow"], []:
        with storage.job_directory(str(folder)):
            for name in written:
                storage.write_batch(str(folder / name), pa.table({"x": [1]}), make=False)
            (folder / "00001.arrow.0123abcd.tmp").write_text("half of it")
        left = [path.name for path in tmp_path.rglob("*")]
        assert left == (["batch", *written] if written else [])
        storage.remove_files([str(folder / name) for name in written])


@pytest.mark.parametrize("runner", ["local", "spark"])
def test_a_failed_step_leaves_nothing(spark, tmp_path, runner):
    with Dataflow(spark, root=str(tmp_path), runner=runner, buckets=4) as flow:
        words, session = flow.input("words", "n long")
        words.count().keep(), words.distinct().count().keep()
        session.insert(pa.table({"n": range(20_000)}))
        session.advance_to(1)
        session.flush()
        flow.step()
        before = sorted(map(str, files_below(tmp_path)))
        assert before
        # All other buckets have written their files when one bucket fails.
        session.insert(pa.table({"n": range(20_000)}))
        session.update([(7, 1, 2**63 - 2)])
        session.advance_to(2)
        session.flush()
        for _ in range(2):
            with pytest.raises(DiffOverflowError):
                flow.step()
            assert sorted(map(str, files_below(tmp_path))) == before
            assert flow._state.paths() >= set(before)


def test_closing_gives_the_space_back(spark, tmp_path):
    """A file that is still mapped holds its space, even when it is deleted."""
    flow = Dataflow(spark, root=str(tmp_path))
    counts, session = fill(flow)
    session.insert(pa.table({"word": [f"w{i}" for i in range(20_000)]}))
    session.advance_to(2)
    session.flush()
    flow.step()
    assert counts.at().count() == 20_000
    maps = Path("/proc/self/maps")
    assert str(tmp_path) in maps.read_text()
    flow.close()
    gc.collect()
    assert str(tmp_path) not in maps.read_text()


def test_merged_files_go(spark, tmp_path):
    with Dataflow(spark, root=str(tmp_path), buckets=2) as flow:
        counts, session = fill(flow)
        sizes = []
        for step in range(1, 25):
            session.update(
                pa.table({
                    "word": [f"w{i % 20_000}" for i in range(step * 6_000, step * 6_000 + 6_000)],
                    "time": np.full(6_000, step), "diff": np.full(6_000, (-1) ** step),
                })
            )
            session.advance_to(step + 1)
            session.flush()
            flow.step()
            needed = flow._state.paths()
            assert {str(path) for path in files_below(flow._storage.root)} <= needed
            sizes.append(len(needed))
        # Two arrangements, two buckets, a spine of few batches each.
        assert max(sizes) <= 2 * 2 * 8


@pytest.mark.parametrize("rows", [1_000, thresholds.current.driver_table_rows_max])
def test_frames_stay_readable_until_close(spark, tmp_path, use_thresholds, rows):
    """For frames built at once and frames that read the files when evaluated."""
    use_thresholds(driver_table_rows_max=rows)
    with Dataflow(spark, root=str(tmp_path), buckets=2) as flow:
        counts, session = fill(flow)
        early = counts.at(0)
        updates = counts.to_df()
        live = flow._state.paths()
        for step in range(1, 6):
            session.insert(pa.table({"word": [f"w{i}" for i in range(20_000)]}))
            session.advance_to(step + 1)
            session.flush()
            flow.step()
        assert not live & flow._state.paths()
        assert early.count() == 20_000
        assert updates.count() == 20_000
        assert early.agg({"count": "max"}).first()[0] == 1
    assert not list(tmp_path.iterdir())


def test_reading_at_every_step_keeps_no_files(spark, tmp_path):
    with Dataflow(spark, root=str(tmp_path), buckets=2) as flow:
        counts, session = fill(flow)
        for step in range(1, 8):
            session.insert(pa.table({"word": [f"w{i}" for i in range(20_000)]}))
            session.advance_to(step + 1)
            session.flush()
            flow.step()
            assert counts.at().first()["count"] == step + 1
            paths = {str(path) for path in files_below(tmp_path)}
            assert paths and paths <= flow._state.paths()


def test_held_batches_are_written_when_others_need_them(spark, tmp_path):
    path = str(tmp_path / "b" / "00000.arrow")
    updates = UpdateChunk(np.arange(5), None, 0, 1)
    held_batches.keep_copy(path, updates)
    assert storage.open_updates(path).key64.tolist() == [0, 1, 2, 3, 4]
    assert not os.path.exists(path)
    storage.settle([path, str(tmp_path / "unknown")])
    assert os.path.exists(path)
    assert storage.open_updates(path).key64.tolist() == [0, 1, 2, 3, 4]
    storage.remove_files([path])
    assert not os.path.exists(path)


def test_small_steps_on_the_driver_and_a_large_one_on_spark_see_each_other(spark, tmp_path):
    with Dataflow(spark, root=str(tmp_path), runner="local") as flow:
        words, session = flow.input("words", "word string")
        counts = words.count().keep()
        for step, runner in enumerate(["local", "local", "spark", "local"]):
            flow.runner = runner
            session.insert([("a",), ("b",)])
            session.advance_to(step + 1)
            session.flush()
            flow.step()
            assert sorted(counts.at().collect()) == [("a", step + 1), ("b", step + 1)]


def test_an_orphan_is_old_news_to_a_running_dataflow(spark, tmp_path):
    """A second dataflow that starts in the same place does not disturb the first."""
    with Dataflow(spark, root=str(tmp_path)) as first:
        counts, _ = fill(first)
        with Dataflow(spark, root=str(tmp_path)):
            pass
        assert counts.at().count() == 20_000


def mapped_without_name(folder):
    """Bytes of deleted files below a folder that any process of this machine still maps."""
    total = 0
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            lines = maps.read_text(errors="replace").splitlines()
        except OSError:
            continue  # it ended, or is another user's
        for line in lines:
            if str(folder) in line and line.endswith("(deleted)"):
                low, high = line.split()[0].split("-")
                total += int(high, 16) - int(low, 16)
    return total


@pytest.mark.parametrize("runner", ["spark", "auto"])
def test_no_process_holds_what_was_removed(spark, tmp_path, use_thresholds, runner):
    """Python workers live on from task to task, and no file is removed by them."""
    with Dataflow(spark, root=str(tmp_path), runner=runner, local_rows=9_000, buckets=2) as flow:
        words, session = flow.input("words", "word string")
        counts = words.count().keep()
        removed = set()
        for step in range(5):
            # The number of words is constant: each step replaces all words.
            came = [f"w{i}" for i in range(step * 6_000, step * 6_000 + 6_000)]
            went = [f"w{i}" for i in range(step * 6_000 - 6_000, step * 6_000)] if step else []
            session.insert(pa.table({"word": came}))
            session.remove(pa.table({"word": pa.array(went, pa.string())}))
            session.advance_to(step + 1)
            session.flush()
            before = flow._state.paths()
            flow.step()
            removed |= before - flow._state.paths()
            assert counts.at().count() == 6_000
            assert mapped_without_name(tmp_path) == 0
        assert removed
        # This frame reads the files in tasks when Spark evaluates it.
        use_thresholds(driver_table_rows_max=1_000)
        assert counts.at().count() == 6_000
    assert mapped_without_name(tmp_path) == 0
    assert not list(tmp_path.iterdir())


def test_files_of_a_commit_are_synced_before_it_names_them(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(storage, "sync", synced.append)
    monkeypatch.setattr(storage, "upload", lambda *paths: pytest.fail(f"upload of {paths}"))
    files = storage.StoreFiles(str(tmp_path), 1)
    files.make_lasting(["data/b/1.arrow", "data/a/2.arrow", "data/b/3.arrow"])
    files.make_lasting([])
    files.make_lasting(["data/c/1.arrow"])
    assert [os.path.relpath(path, tmp_path) for path in synced] == [
        "data/a", "data/b", "data", ".", "data/c", "data"
    ]
