"""A few of the ends and faults of ci/durability, and tests of the errors that they revealed.

    after any end of an application, its store has each completed step and can be opened again
"""

from __future__ import annotations

import errno
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import crashes
import durability_program
import pyarrow as pa
import pytest
from crashes import At, Synced, operations
from durability_program import BUGS, GATES, PHASE_KILLS, Options, Scenario, small_batches

from pyspark_diff.errors import StorageError
from pyspark_diff.trace import storage
from pyspark_diff.trace.local_objects import LocalObjects
from pyspark_diff.trace.storage import StoreFiles


#: A store in a volume needs the client of a workspace.
NEEDS_SDK = pytest.mark.skipif(
    importlib.util.find_spec("databricks") is None, reason="databricks-sdk is not installed")
#: Seconds after which a command hangs.
HANGS = 1800


def run(spark, folder, gate, **options):
    """The messages of the failed runs of a gate."""
    with small_batches():
        tallies = list(GATES[gate](spark, Path(folder), Options(**options)))
    assert sum(tally.runs for tally in tallies) > 1
    return [message for tally in tallies for message in tally.wrong]


@pytest.mark.parametrize(
    ("gate", "options"),
    [
        ("T1", {"stride": 53}),
        ("T1-real", {"real": 3}),
        ("loss", {"stride": 131}),
        ("writers", {}),
        pytest.param("T2-volume", {"phases": 5}, marks=[NEEDS_SDK, pytest.mark.slow]),
        pytest.param("late", {}, marks=[NEEDS_SDK, pytest.mark.slow]),
        pytest.param("mounts", {"stride": 17}, marks=[NEEDS_SDK, pytest.mark.slow]),
        pytest.param("T1", {"seeds": 3}, marks=pytest.mark.slow),
        pytest.param("T1-real", {"real": 60}, marks=pytest.mark.slow),
        pytest.param("loss", {"seeds": 2}, marks=pytest.mark.slow),
        pytest.param("T4", {}, marks=pytest.mark.slow),
        pytest.param("T13", {}, marks=pytest.mark.slow),
    ],
)
def test_a_gate(spark, tmp_path, gate, options):
    assert not run(spark, tmp_path, gate, **options)


@pytest.mark.parametrize(
    ("stage", "steps", "number", "code", "after"),
    [
        # The file already has its final name, so that the failed operation cannot be undone.
        ("step", 2, 6, errno.EIO, False),
        ("step", 4, 3, errno.ENOSPC, False),
        ("step", 4, 14, errno.EIO, True),
        ("reopen", 4, 9, errno.ENOSPC, False),
        ("vacuum", 4, 2, errno.EIO, False),
    ],
)
def test_an_operation_fails(spark, tmp_path, stage, steps, number, code, after):
    tally = durability_program.Tally("a fault")
    with small_batches():
        templates = durability_program.templates_of(spark, tmp_path / "templates", 0, steps)
        at = At(crashes.fails(code), number, after=after)
        durability_program.one_fault(spark, tmp_path, templates, 0, stage, steps, at, tally)
    assert at.struck


def test_the_parts_of_a_gate_are_the_whole(tmp_path, monkeypatch):
    """All first places of a stride together visit each operation once."""
    visited = []

    def one_fault(spark, folder, templates, seed, stage, steps, at, tally, *more):
        at.count = 9  # operations of each stage; a fault at a later one is a run without a fault
        visited.append((tally.name, stage, steps, at.number))

    monkeypatch.setattr(durability_program, "templates_of", lambda *_: {})
    monkeypatch.setattr(durability_program, "one_fault", one_fault)
    counts = []
    for parts in 1, 4:
        for first in range(parts):
            for _ in GATES["T4"](None, tmp_path, Options(stride=parts, first=first)):
                pass
        counts.append(sorted(place for place in visited if place[-1] <= 9))
        visited.clear()
    whole, of_parts = counts
    assert whole == of_parts and len(whole) == len(set(whole)) > 100


def test_each_operation_is_met(spark, tmp_path):
    """A run without a fault has operations of all kinds, also on batch files."""
    met = []
    with small_batches(), operations(str(tmp_path), lambda *call: met.append(call)):
        Scenario(spark, str(tmp_path / "store"), 0).run()
    done = {what for what, _, after in met if after}
    assert done >= {"open", "write", "writev", "fsync", "link", "replace", "unlink", "mkdir"}
    assert any(path.endswith(".arrow") for what, path, _ in met if what == "replace")


def test_what_was_not_synced_is_lost(tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    synced = Synced(str(base), str(tmp_path / "beside"))
    with operations(str(base), lambda what, path, done: (
        synced.synced(path) if what == "fsync" and done else None
    )):
        file = os.open(base / "first", os.O_CREAT | os.O_WRONLY)
        os.write(file, b"synced")
        os.fsync(file)
        os.write(file, b" or not")
        os.close(file)
        folder = os.open(base, os.O_RDONLY)
        os.fsync(folder)
        os.replace(base / "first", base / "second")
        os.close(os.open(base / "third", os.O_CREAT | os.O_WRONLY))
    for kind in "all", "torn":
        synced.lost(str(tmp_path / kind), kind)
    os.close(folder)
    synced.close()

    def there(kind):
        return {path.name: path.read_bytes() for path in (tmp_path / kind).iterdir()}

    assert there("all") == {"first": b"synced"}
    assert there("torn") == {"second": b"synced" + bytes(7), "third": b""}


def test_an_object_is_created_whatever_comes_of_clearing_up(tmp_path):
    objects = LocalObjects(tmp_path)
    with operations(str(tmp_path), At(crashes.fails(errno.EIO), 1, only=("unlink",))):
        assert objects.create("commits/first", [b"first"])
    assert objects.read("commits/first") == b"first"
    # A link whose answer was lost also counts as created.
    with operations(str(tmp_path), At(crashes.fails(errno.EIO), 1, after=True, only=("link",))):
        assert objects.create("commits/second", [b"second"])
    with operations(str(tmp_path), At(crashes.fails(errno.EIO), 1, only=("link",))):
        with pytest.raises(StorageError):
            objects.create("commits/third", [b"third"])
    assert sorted(item.name for item in objects.names("commits")) == [
        "commits/first", "commits/second"
    ]
    assert [item.name[:14] for item in objects.leftovers()] == ["commits/first."]


@pytest.mark.parametrize("lasting", [True, False])
def test_the_first_file_of_a_store_lasts(tmp_path, lasting):
    """The folder of all files is new as well."""
    base = tmp_path / "base"
    base.mkdir()
    synced = Synced(str(base), str(tmp_path / "beside"))
    with operations(str(base), lambda what, path, done: (
        synced.synced(path) if what == "fsync" and done else None
    )):
        objects = LocalObjects(base / "store")
        objects.create("commits/first", [b"first"])
        files = StoreFiles(objects.root, 1)
        path = f"{files.directory('rows')}/00000.arrow"
        path, _ = storage.write_lasting(path, pa.record_batch({"n": [1]}))
        if lasting:
            files.make_lasting([files.name(path)])
    synced.lost(str(tmp_path / "all"), "all")
    synced.close()
    restored = tmp_path / "all" / "store" / os.path.relpath(path, objects.root)
    assert restored.exists() == lasting
    assert not lasting or restored.read_bytes() == Path(path).read_bytes()


def test_a_sync_that_fails_is_told_as_an_error_of_files(tmp_path):
    files = StoreFiles(str(tmp_path), 1)
    path = f"{files.directory('rows')}/00000.arrow"
    path, _ = storage.write_lasting(path, pa.record_batch({"n": [1]}))
    with operations(str(tmp_path), At(crashes.fails(errno.EIO), 1, only=("fsync",))):
        with pytest.raises(StorageError, match="Input/output error"):
            files.make_lasting([files.name(path)])
    files.make_lasting([files.name(path)])


QUICK = ("a_name_that_is_taken_is_overwritten",)


@pytest.mark.parametrize(
    ("bug", "gate", "stride"),
    [
        pytest.param(
            bug, gate, stride, id=bug.__name__,
            marks=[
                *([NEEDS_SDK] if gate == "T2-volume" else []),
                *([] if bug.__name__ in QUICK else [pytest.mark.slow]),
            ],
        )
        for bug, gate, stride in BUGS
        if gate != "T2-objects"
    ],
)
def test_a_seeded_bug_is_found(spark, tmp_path, bug, gate, stride):
    with bug():
        assert run(spark, tmp_path, gate, stride=stride, phases=PHASE_KILLS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "last"),
    [("--quick", "18 runs: 18 right, 0 wrong"),
     ("--self-check", "1 bugs were seeded, 1 were found")],
)
def test_kills_in_object_stores(tmp_path, form, last):
    """A command of its own: this process may have used a client that a fork cannot use."""
    pytest.importorskip("moto")
    pytest.importorskip("obstore")
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, durability_program.__file__, "--only", "T2-objects", form],
        cwd=tmp_path, capture_output=True, text=True, timeout=HANGS,
        env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'tests'}"},
    )
    assert done.stdout.splitlines()[-1:] == [last], done.stdout + done.stderr[-3000:]
    assert done.returncode == 0
