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

from pyspark_diff import Dataflow, storage
from pyspark_diff.kernels.updates import Updates
from pyspark_diff.storage import Storage

ROOT = Path(__file__).parent.parent
HOLD = """
import sys, time
from pyspark_diff.storage import Storage, write_batch
storage = Storage(sys.argv[1])
import os; os.mkdir(os.path.join(storage.root, "batch"))
print(storage.root, flush=True)
time.sleep(float(sys.argv[2]))
"""


def held_by_a_process(folder, seconds):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), str(seconds)],
        env=environment, stdout=subprocess.PIPE, text=True,
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


def test_removed_at_the_end_of_the_process(tmp_path):
    process, root = held_by_a_process(tmp_path, 0)
    assert process.wait(60) == 0
    assert root and not os.path.exists(root)


def test_what_a_killed_process_leaves_is_removed_by_the_next(tmp_path):
    process, root = held_by_a_process(tmp_path, 60)
    other, alive = held_by_a_process(tmp_path, 60)
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


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(storage.os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        storage.write_batch(str(tmp_path / "b" / "00000.arrow"), pa.table({"x": [1]}))
    assert not list((tmp_path / "b").iterdir())


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


def test_frames_stay_readable_until_close(spark, tmp_path):
    with Dataflow(spark, root=str(tmp_path), keep_history=True) as flow:
        counts, session = fill(flow)
        early = counts.at(0)
        updates = counts.to_df()
        for step in range(1, 6):
            session.insert(pa.table({"word": [f"w{i}" for i in range(20_000)]}))
            session.advance_to(step + 1)
            session.flush()
            flow.step()
        assert early.count() == 20_000
        assert updates.count() == 20_000
        assert early.agg({"count": "max"}).first()[0] == 1


def test_held_batches_are_written_when_others_need_them(spark, tmp_path):
    path = str(tmp_path / "b" / "00000.arrow")
    updates = Updates(np.arange(5), None, 0, 1)
    storage.hold(path, updates)
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
