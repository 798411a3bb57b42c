"""Vacuum deletes only objects that no retained commit and no live reader needs."""

from __future__ import annotations

import json
import logging
import os
import time
import zlib
from pathlib import Path

import pytest
import volumes
from stores import root  # noqa: F401

from pyspark_diff.errors import NotReadableError
from pyspark_diff.thresholds import Thresholds
from pyspark_diff.trace.commits import Commits, FileInfo, segments_of
from pyspark_diff.trace.local_objects import LocalObjects
from pyspark_diff.trace.manifest import name_of
from pyspark_diff.trace.read_holds import GRACE, ReadHold, stored_holds
from pyspark_diff.trace.roots import objects_at
from pyspark_diff.trace.vacuum import vacuum, verify

#: The allowed difference of clocks, in seconds.
CLOCKS = Thresholds.clock_difference_seconds_max


def file_of(epoch, number):
    """A batch file of an epoch: its name, its bytes, and its entry in a commit."""
    data = b"%d rows" % number * (number + 1)
    name = (
        f"data/e{epoch:04d}-orders-{number:012x}.durable/"
        f"00000-crc{zlib.crc32(data):08x}-{len(data)}.arrow"
    )
    return name, data, FileInfo(len(data), number, number)


def write(commits, numbers, epoch=1):
    """Create batch files with these numbers; return their entries in a commit."""
    files = {}
    for number in numbers:
        name, data, info = file_of(epoch, number)
        commits.objects.create(name, [data])
        files[name] = info
    return files


@pytest.fixture
def commits(root):  # noqa: F811
    """Six commits; commit n uses the files n and n + 1, and the payload of commit n - 1."""
    chain = Commits(objects_at(root))
    chain.make(b"")
    files = write(chain, range(7))
    names = list(files)
    for n in range(1, 6):
        uses = [n - 1] if n > 1 else []
        chain.append(
            b"%d" % n, [b"rows of %d" % n], {name: files[name] for name in names[n:n + 2]}, uses
        )
    return chain


@pytest.fixture
def local(tmp_path):
    chain = Commits(LocalObjects(tmp_path))
    chain.make(b"")
    return chain


def there(commits):
    return {item.name for item in commits.objects.names("data")}


def numbered(commits, *numbers, epoch=1):
    return {file_of(epoch, n)[0] for n in numbers}


def test_a_dry_run_says_what_a_run_does(commits):
    objects = commits.objects
    before = {item.name: item.size for item in objects.names("")}
    planned = vacuum(objects, commits, 2, older_than=-60)
    assert {item.name: item.size for item in objects.names("")} == before
    assert planned.commits == (0, 1, 2, 3) and set(planned.files) == numbered(commits, 0, 1, 2, 3)
    assert planned.bytes == sum(before[name] for name in planned.files)
    assert vacuum(objects, commits, 2, dry_run=False, older_than=-60) == planned
    assert there(commits) == numbered(commits, 4, 5, 6)
    reader = Commits(objects_at(objects.root))
    assert reader.numbers() == [4, 5] and reader.latest() == commits.last
    assert verify(objects, reader.latest(), full=True) == []
    assert verify(objects, reader.read(4), full=True) == []
    assert vacuum(objects, commits, 2, dry_run=False, older_than=-60).files == ()
    commits.append(b"6", [], {}, ())


def test_young_files_and_files_of_later_epochs_stay(commits):
    objects = commits.objects
    write(commits, [100])
    write(commits, [101], epoch=9)
    assert vacuum(objects, commits, 100, dry_run=False).files == ()
    done = vacuum(objects, commits, 100, dry_run=False, older_than=-60)
    assert set(done.files) == numbered(commits, 0, 100) and done.commits == ()
    assert numbered(commits, 101, epoch=9) <= there(commits)


def test_a_fenced_writer_deletes_nothing_of_who_came_after(commits):
    other = Commits(objects_at(commits.objects.root))
    other.open_for_writing()
    write(other, [50], epoch=2)
    vacuum(commits.objects, commits, 100, dry_run=False, older_than=-60)
    assert numbered(other, 50, epoch=2) <= there(other)
    vacuum(other.objects, other, 100, dry_run=False, older_than=-60)
    assert not numbered(other, 50, epoch=2) & there(other)


def test_strange_files_in_the_folder_of_data_stay(commits):
    for name in ("data/readme", "data/e0001-x.durable/y.arrow", "data/table/part-0.parquet"):
        commits.objects.create(name, [b"precious"])
    vacuum(commits.objects, commits, 1, dry_run=False, older_than=-60)
    assert {"data/readme", "data/e0001-x.durable/y.arrow", "data/table/part-0.parquet"} <= there(
        commits
    )


@pytest.mark.parametrize("retain", [0, -1])
def test_the_last_commit_always_stays(commits, retain):
    with pytest.raises(ValueError, match="Pass 1 or more"):
        vacuum(commits.objects, commits, retain)
    assert vacuum(commits.objects, commits, 1, dry_run=False).commits == (0, 1, 2, 3, 4)
    assert commits.numbers() == [5]


# Readers.


def test_what_is_held_stays_and_can_be_read(commits):
    objects = commits.objects
    commit = commits.read(2)
    hold = ReadHold.take(objects, 2, 600)
    done = vacuum(objects, commits, 1, dry_run=False, older_than=-60)
    assert done.commits == (0, 1, 3, 4) and done.expired_holds == ()
    reader = Commits(objects_at(objects.root))
    assert reader.read(2) == commit and verify(objects, commit, full=True) == []
    assert reader.segment_bytes(1, segments_of([b"rows of 1"])[0]) == b"rows of 1"
    hold.renew()
    assert vacuum(objects, commits, 1, dry_run=False, older_than=-60).commits == ()
    hold.release()
    hold.release()
    assert vacuum(objects, commits, 1, dry_run=False, older_than=-60).commits == (2,)
    assert there(commits) == numbered(commits, 5, 6)
    assert objects.names("readers") == []


def test_a_hold_of_a_dead_reader_expires_and_is_said(commits, caplog, monkeypatch):
    hold = ReadHold.take(commits.objects, 2, 5)
    now = time.time()
    assert not hold.expired and "s left" in repr(hold)
    live, expired = stored_holds(commits.objects, now + 5 + CLOCKS / 2)
    assert [item.commit for item in live] == [2] and expired == []
    live, expired = stored_holds(commits.objects, now + 6 + CLOCKS)
    assert live == [] and [item.name for item in expired] == [hold.name]
    monkeypatch.setattr(time, "time", lambda: now + 6 + CLOCKS)
    assert hold.expired and "expired" in repr(hold)
    with pytest.raises(NotReadableError, match="has expired"):
        hold.renew()
    planned = vacuum(commits.objects, commits, 1)
    assert planned.expired_holds == (hold.name,) and not caplog.records
    with caplog.at_level(logging.WARNING, "pyspark_diff"):
        done = vacuum(commits.objects, commits, 1, dry_run=False)
    assert done == planned and hold.name in caplog.text
    assert commits.objects.names("readers") == []


def test_a_hold_that_was_removed_cannot_be_renewed(commits):
    hold = ReadHold.take(commits.objects, 2, 600)
    commits.objects.delete([hold.name])
    with pytest.raises(NotReadableError):
        hold.renew()
    assert commits.objects.names("readers") == []


def test_a_commit_that_is_gone_cannot_be_held(commits):
    vacuum(commits.objects, commits, 1, dry_run=False)
    for number in (2, 99):
        with pytest.raises(NotReadableError, match="can be read are 5"):
            ReadHold.take(commits.objects, number, 600)
    assert commits.objects.names("readers") == []


@pytest.mark.parametrize("content", [
    b"", b"{", b"[]", b"null", b'{"format": 1}', b"\xff", b"[" * 4000, b"x" * 10000,
    json.dumps({"format": 1, "commit": -1, "until": 1}).encode(),
    json.dumps({"format": 1, "commit": "2", "until": 1}).encode(),
    json.dumps({"format": 1, "commit": 2, "until": 1e300}).encode(),
    json.dumps({"format": 2, "commit": 2, "until": 1}).encode(),
    b'{"format": 1, "commit": 2, "until": NaN}',
])
def test_a_damaged_hold_counts_for_a_while(local, caplog, content):
    local.append(b"", [], {}, ())
    local.objects.create("readers/0123456789abcdef.json", [content])
    with caplog.at_level(logging.WARNING, "pyspark_diff"):
        assert vacuum(local.objects, local, 1).commits == ()
        assert vacuum(local.objects, local, 1, dry_run=False).commits == ()
    assert "0123456789abcdef" in caplog.text
    path = Path(local.objects.root) / "readers/0123456789abcdef.json"
    old = time.time() - GRACE - CLOCKS - 10
    os.utime(path, (old, old))
    done = vacuum(local.objects, local, 1, dry_run=False)
    assert done.commits == (0,) and len(done.expired_holds) == 1 and not path.exists()


def test_a_hold_that_is_taken_meanwhile_is_seen(commits, use_thresholds):
    """Vacuum restores a commit and its payloads if a hold appears just before the retirement."""
    objects = commits.objects
    use_thresholds(tombstones_max=0)
    commit, real = commits.read(3), commits.retire
    holds = []

    def retire(*args, **kwargs):
        if not holds:
            holds.append(ReadHold.take(objects, 3, 600))
        return real(*args, **kwargs)

    commits.retire = retire
    done = vacuum(objects, commits, 1, dry_run=False, older_than=-60)
    assert done.commits == (0, 1, 2, 4)
    reader = Commits(objects_at(objects.root))
    assert reader.read(3) == commit and verify(objects, commit, full=True) == []
    assert reader.latest() == commits.last
    holds[0].release()
    assert vacuum(objects, commits, 1, dry_run=False, older_than=-60).commits == (3,)
    assert there(commits) == numbered(commits, 5, 6)


# Killed anywhere.


class Killed(BaseException):
    pass


def test_a_vacuum_that_is_killed_anywhere_is_run_again(tmp_path, use_thresholds):
    use_thresholds(tombstones_max=1)
    points = 0
    for point in range(200):
        commits = Commits(LocalObjects(tmp_path / str(point)))
        commits.make(b"")
        files = write(commits, range(5))
        names = list(files)
        for n in range(1, 5):
            commits.append(
                b"", [b"rows"], {names[n]: files[names[n]]}, [1] if n > 1 else []
            )
        ReadHold.take(commits.objects, 0, -1000.0)
        left = [point]

        def counted(name, left=left, objects=commits.objects):
            real = getattr(objects, name)

            def call(*args, **kwargs):
                if name != "delete":
                    if not left[0]:
                        raise Killed
                    left[0] -= 1
                    return real(*args, **kwargs)
                for item in list(args[0]):
                    if not left[0]:
                        raise Killed
                    left[0] -= 1
                    real([item])

            return call

        for name in ("replace", "create", "delete"):
            setattr(commits.objects, name, counted(name))
        try:
            vacuum(commits.objects, commits, 2, dry_run=False, older_than=-60)
            done = True
        except Killed:
            done = False
            points += 1
        other = Commits(LocalObjects(tmp_path / str(point)))
        assert other.latest() == commits.last
        for number in other.numbers()[-2:]:
            assert verify(other.objects, other.read(number), full=True) == []
        vacuum(other.objects, other, 2, dry_run=False, older_than=-60)
        assert other.numbers() == [3, 4]
        assert there(other) == {names[3], names[4]}
        assert other.objects.names("readers") == [] == other.objects.leftovers()
        other.open_for_writing()
        if done:
            break
    assert points >= 10


def test_leftovers_and_empty_folders_go_when_they_are_old(local):
    base = Path(local.objects.root)
    left = ["commits/0000000000000001.commit.12.tmp", "probe-ab", "head.00.tmp",
            "data/e0001-x-0123456789ab.durable/y.tmp", "readers/z.tmp"]
    for name in left:
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_bytes(b"12")
    (base / "data/e0001-y-0123456789ab.durable").mkdir()
    (base / "notes.tmp").write_text("not ours")
    assert vacuum(local.objects, local, 1, dry_run=False).files == ()
    done = vacuum(local.objects, local, 1, dry_run=False, older_than=-60)
    assert sorted(done.files) == sorted(left) and done.bytes == 2 * len(left)
    assert os.listdir(base / "data") == [] and (base / "notes.tmp").exists()
    assert vacuum(local.objects, local, 1, dry_run=False, older_than=-60).files == ()


def test_no_link_is_followed(local, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    name, data, _ = file_of(1, 7)
    (outside / Path(name).name).write_bytes(data)
    (outside / "x.tmp").write_text("x")
    base = Path(local.objects.root)
    (base / "data").mkdir()
    os.symlink(outside, base / Path(name).parent)
    os.symlink(outside / "x.tmp", base / "commits/y.tmp")
    os.symlink(outside, base / "data/e0001-z-0123456789ab.durable")
    done = vacuum(local.objects, local, 1, dry_run=False, older_than=-60)
    assert done.files == ()
    assert sorted(os.listdir(outside)) == sorted([Path(name).name, "x.tmp"])


# Verification.


def test_what_is_wrong_with_a_commit_is_found(commits):
    objects = commits.objects
    last = commits.last
    (first, info), (second, _) = last.files.items()
    assert verify(objects, last, full=False) == verify(objects, last, full=True) == []
    good = objects.read(first)
    objects.replace(first, good[:-1] + b"?")
    assert verify(objects, last, full=False) == []
    assert verify(objects, last, full=True) == [f"{first}: its bytes have changed"]
    objects.replace(first, good + b"?")
    objects.delete([second])
    assert verify(objects, last, full=False) == [
        f"{first}: it has {info.length + 1} bytes, and had {info.length}",
        f"{second}: it is missing",
    ]


def test_what_is_wrong_with_payloads_is_found(commits):
    objects, last = commits.objects, commits.last
    files = {item.name: objects.read(item.name) for item in objects.names("data")}
    assert files
    for number in (4, 5):
        name = name_of(number)
        good = objects.read(name)
        objects.replace(name, good[:64] + b"R" + good[65:])
        assert verify(objects, last, full=False) == []
        assert len(verify(objects, last, full=True)) == 1
        objects.replace(name, good[:-3])
        assert name in "".join(verify(objects, last, full=False))
        objects.delete([name])
        assert verify(objects, last, full=False) == [f"{name}: it is missing"]
        objects.replace(name, good)
    objects.replace(name_of(4), objects.read(name_of(3)))
    assert len(verify(objects, last, full=False)) == 1


@pytest.mark.parametrize("count", [1, 3, 100])
def test_a_late_listing_makes_a_vacuum_delete_nothing_that_is_listed(tmp_path, count):
    objects = objects_at(tmp_path / "store")
    writes = Commits(objects)
    writes.make(b"")
    for number in range(1, 7):
        uses = [number - 1] if number > 1 else []
        writes.append(b"%d" % number, [b"rows"], write(writes, [number]), uses)
    with volumes.late(tmp_path, count) as hidden:
        assert verify(objects, writes.latest(), full=True) == []
        vacuum(objects, Commits(objects), 1, dry_run=False, older_than=-60)
        assert verify(objects, writes.latest(), full=True) == []
    assert hidden and verify(objects, Commits(objects).latest(), full=True) == []
    assert there(writes) >= numbered(writes, 6)
