"""State on disk: removed whatever happens, and never half-written."""

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pyspark_diff import Dataflow, DiffOverflowError
from pyspark_diff.kernels.updates import Updates
from pyspark_diff.trace import arrangement, storage
from pyspark_diff.trace.storage import Storage

ROOT = Path(__file__).parent.parent
HOLD = """
import os, sys, time
from pyspark_diff.trace.storage import Storage
storage = Storage(sys.argv[1])
os.mkdir(os.path.join(storage.root, "batch"))
print(storage.root, flush=True)
{end}
"""


def held_by_a_process(folder, end="time.sleep(600)"):
    """A process with a directory of its own, and that directory; it ends as it is told."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(end=end), str(folder)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )
    return process, process.stdout.readline().strip()


def fill(flow):
    words, session = flow.input("words", "word string")
    counts = words.count()
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


def test_a_directory_that_is_not_ours_is_left_alone(tmp_path):
    (tmp_path / "pyspark_diff-mine").mkdir()
    (tmp_path / "other").mkdir()
    Storage(str(tmp_path)).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "pyspark_diff-mine"]


@pytest.mark.parametrize("error", [OSError("no space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("place", ["replace", "getsize", "write"])
def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch, place, error):
    path = tmp_path / "b" / "00000.arrow"

    def fail(*_):
        # Half of it is written by now, under a name that nobody reads.
        assert [file.suffix for file in path.parent.iterdir()] == [".tmp"]
        raise error

    if place == "write":
        monkeypatch.setattr(pa.ipc.RecordBatchFileWriter, "write", fail)
    else:
        monkeypatch.setattr(os if place == "replace" else os.path, place, fail)
    with pytest.raises(type(error)):
        storage.write_batch(str(path), pa.table({"x": [1]}))
    assert not list(path.parent.iterdir())


@pytest.mark.parametrize("runner", ["local", "spark"])
def test_a_failed_step_leaves_nothing(spark, tmp_path, runner):
    with Dataflow(spark, root=str(tmp_path), runner=runner, buckets=4) as flow:
        words, session = flow.input("words", "n long")
        words.count(), words.distinct().count()
        session.insert(pa.table({"n": range(20_000)}))
        session.advance_to(1)
        session.flush()
        flow.step()
        before = sorted(map(str, files_below(tmp_path)))
        assert before
        # All buckets but one are done, and have written what they wanted, when that one fails.
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


@pytest.mark.parametrize("rows", [1_000, arrangement.DRIVER_ROWS])
def test_frames_stay_readable_until_close(spark, tmp_path, monkeypatch, rows):
    """Whether they were made at once, or read the files when they are evaluated."""
    monkeypatch.setattr(arrangement, "DRIVER_ROWS", rows)
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
            found = {str(path) for path in files_below(tmp_path)}
            assert found and found <= flow._state.paths()


def test_held_batches_are_written_when_others_need_them(spark, tmp_path):
    path = str(tmp_path / "b" / "00000.arrow")
    updates = Updates(np.arange(5), None, 0, 1)
    storage.put_in_memory(path, updates)
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
        counts = words.count()
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
