"""The chain of commits holds each acknowledged commit once, for any writers and lost answers."""

from __future__ import annotations

import json
import logging
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
import volumes
from stores import root  # noqa: F401

from pyspark_diff import thresholds
from pyspark_diff.errors import (
    ConcurrentWriteError,
    DamagedStateError,
    FormatError,
    NotReadableError,
    StorageError,
    UnknownOutcomeError,
)
from pyspark_diff.trace import local_objects, manifest
from pyspark_diff.trace.commits import Commits, FileInfo, Segment, segments_of
from pyspark_diff.trace.local_objects import LocalObjects
from pyspark_diff.trace.manifest import Retired, decode, encode, name_of
from pyspark_diff.trace.objects import Objects
from pyspark_diff.trace.roots import objects_at

ROOT = Path(__file__).parents[2]
FILE = "data/e0001-orders-0123456789ab.durable/00000-crc0a1b2c3d-128.arrow"


@pytest.fixture(autouse=True)
def quick(use_thresholds):
    use_thresholds(commit_pause_seconds=0.0005)


@pytest.fixture
def commits(root):  # noqa: F811
    chain = Commits(objects_at(root))
    chain.make(b"0")
    return chain


@pytest.fixture
def local(tmp_path):
    chain = Commits(LocalObjects(tmp_path))
    chain.make(b"0")
    return chain


def again(commits):
    """The same store, opened as by another process."""
    return Commits(objects_at(commits.objects.root))


def fill(commits, count):
    for _ in range(count):
        commits.append(b"%d" % commits.next_number, [], {}, ())


class Between(Objects):
    """Objects that call hooks before and after each create of a commit, and before each read."""

    def __init__(self, inner):
        self.inner = inner
        self.root = inner.root
        self.before = self.after = lambda name: None
        self.reading = lambda name: None

    def create(self, name, parts):
        if not name.startswith("commits/"):
            return self.inner.create(name, parts)
        self.before(name)
        created = self.inner.create(name, parts)
        self.after(name)
        return created

    def read(self, name):
        self.reading(name)
        return self.inner.read(name)

    def replace(self, name, data, *, lasting=True):
        self.inner.replace(name, data, lasting=lasting)

    def read_range(self, name, offset, length):
        return self.inner.read_range(name, offset, length)

    def names(self, folder):
        return self.inner.names(folder)

    def leftovers(self):
        return self.inner.leftovers()

    def delete(self, names):
        self.inner.delete(names)

    def locate(self, name):
        return self.inner.locate(name)

    def upload(self, name, path):
        self.inner.upload(name, path)

    def foreign(self):
        return self.inner.foreign()

    def secure(self, name):
        self.inner.secure(name)


def raising(error, times=1):
    """A hook that raises the error in its first calls."""
    left = [times]

    def hook(name):
        if left[0] > 0:
            left[0] -= 1
            raise error

    return hook


# A store and its chain.


def test_a_new_store_has_one_commit(root):  # noqa: F811
    commits = Commits(objects_at(root))
    assert not commits.exists() and commits.last is None
    with pytest.raises(StorageError, match="there is no store"):
        commits.latest()
    first = commits.make(b"state", payload=[b"rows"], token="a token")
    assert (first.number, first.epoch, first.previous, first.state) == (0, 1, "", b"state")
    assert commits.exists() and commits.last is first and commits.next_number == 1
    assert again(commits).latest() == first
    with pytest.raises(StorageError, match="already"):
        again(commits).make(b"other")
    with pytest.raises(StorageError, match="not open for writing"):
        again(commits).append(b"", [], {}, ())


def test_a_commit_is_read_as_it_was_made(commits):
    payload = [b"abc", b"", memoryview(bytes(range(200))), pa.py_buffer(b"of Arrow")]
    segments = segments_of(payload)
    files = {FILE: FileInfo(128, 7, -3)}
    commit = commits.append(b"state \0\xff", payload, files, [0], token="ü")
    other = again(commits)
    assert other.latest() == commit == other.read(1)
    assert commit.segments == segments and commit.files == files and commit.uses == (0,)
    assert (commit.token, commit.epoch, commit.previous) == ("ü", 1, other.read(0).nonce)
    read = [bytes(other.segment_bytes(1, segment)) for segment in segments]
    assert read == [bytes(memoryview(part)) for part in payload]
    assert other.numbers() == [0, 1]
    assert commit.written.utcoffset().total_seconds() == 0


def test_segments_are_aligned_and_lie_where_it_was_said(commits):
    payload = [os.urandom(n) for n in (0, 1, 63, 64, 65, 5000)]
    commits.append(b"", payload, {}, ())
    data = commits.objects.read(name_of(1))
    for segment, part in zip(segments_of(payload), payload, strict=True):
        assert segment.offset % 64 == 0
        assert data[segment.offset:segment.offset + segment.length] == part


def test_what_cannot_be_read_again_is_not_written(commits):
    for change in (
        {"files": {"../x": FileInfo(1, 1, 1)}}, {"files": {FILE: FileInfo(127, 1, 1)}},
        {"uses": [1]}, {"token": "x" * 5000}, {"token": 3},
    ):
        with pytest.raises(StorageError, match="could not be read again"):
            commits.append(**{"state": b"", "payload": [], "files": {}, "uses": (), **change})
    fill(commits, 1)
    assert again(commits).latest().number == 1


@pytest.mark.parametrize("name", ["notes.txt", "commits/readme", "data/table/part-0.parquet"])
def test_a_folder_of_others_is_refused_and_left_alone(root, name):  # noqa: F811
    objects = objects_at(root)
    objects.create(name, [b"precious"])
    with pytest.raises(StorageError, match="Nothing was changed there") as error:
        Commits(objects).make(b"")
    assert name.partition("/")[0] in str(error.value)
    assert [item.name for item in objects.names("")] == [name]


@pytest.mark.parametrize("point", ["link", "fsync", "mkdir"])
def test_a_half_made_store_is_taken_over(tmp_path, point):
    for skip in range(8):
        folder = tmp_path / str(skip)
        code = in_a_fork(lambda: dying_at(point, skip, folder))
        commits = Commits(LocalObjects(folder))
        if commits.exists():
            assert commits.open_for_writing().state == b"first"
        else:
            assert code == 137
            assert commits.make(b"second").number == 0
        fill(commits, 1)
        if code == 0:
            break
    assert skip


def in_a_fork(act):
    child = os.fork()
    if not child:
        try:
            act()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def dying_at(point, skip, folder):
    """Make a store, and end the process at the call of a function after `skip` calls."""
    real, left = getattr(os, point), [skip]

    def dying(*args, **kwargs):
        if not left[0]:
            os._exit(137)
        left[0] -= 1
        return real(*args, **kwargs)

    setattr(os, point, dying)
    Commits(LocalObjects(folder)).make(b"first")


def environ():
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}


def test_two_that_make_a_store_at_once(root):  # noqa: F811
    between = Between(objects_at(root))
    late, early = Commits(between), Commits(objects_at(root))
    between.before = lambda name: early.make(b"early") if early.last is None else None
    with pytest.raises(ConcurrentWriteError):
        late.make(b"late")
    assert again(late).latest() == early.last
    fill(early, 1)


# Writers.


def test_who_opens_fences_who_wrote_before(commits):
    commits.append(b"1", [b"rows"], {FILE: FileInfo(128, 1, 1)}, (), token="t")
    other = again(commits)
    opened = other.open_for_writing()
    assert (opened.number, opened.epoch, opened.state, opened.token) == (2, 2, b"1", None)
    # The state may refer to segments of the commit that first stored it.
    assert opened.uses == (1,) and opened.segments == () and set(opened.files) == {FILE}
    for _ in range(2):
        with pytest.raises(ConcurrentWriteError, match="epoch 2 .* epoch 1"):
            commits.append(b"x", [], {}, ())
    fill(other, 3)
    assert again(other).latest().number == 5
    assert commits.open_for_writing().epoch == 3
    with pytest.raises(ConcurrentWriteError):
        fill(other, 1)


def test_opening_wins_over_who_opened_before(commits):
    """Three writers open at once; each loser tries again with a higher epoch."""
    between = Between(objects_at(commits.objects.root))
    third = Commits(between)
    rivals = [again(commits), again(commits)]

    def overtaken(name):
        if rivals:
            rivals.pop().open_for_writing()

    between.before = overtaken
    assert third.open_for_writing().epoch == 4
    fill(third, 1)
    with pytest.raises(ConcurrentWriteError):
        fill(commits, 1)


PHASES = ["begin", "before create", "after create", "committed", "vacuum"]


@pytest.mark.parametrize(("first", "second"), list(product(PHASES, PHASES)))
def test_phases_of_two_writers_interleaved(commits, first, second):
    """All pairs of phases; over S3 only the equal ones.

    A runs to one phase and B to another, then A to its end and B to its own: one line of commits.

    B opens for writing after A has opened, so A is fenced from then on.
    """
    if commits.objects.root.startswith("s3:") and first != second:
        return
    log = []

    def writer(name, stop):
        between = Between(objects_at(commits.objects.root))
        mine = Commits(between)
        reached, go = threading.Event(), threading.Event()

        def at(phase):
            if phase == stop and not reached.is_set():
                reached.set()
                assert go.wait(20)

        def run():
            try:
                mine.open_for_writing()
                between.before = lambda _: at("before create")
                between.after = lambda _: at("after create")
                at("begin")
                log.append((name, mine.append(name.encode(), [b"x"], {}, ()).number))
                at("committed")
                mine.retire(mine.last.number)
                at("vacuum")
                log.append((name, mine.append(name.encode() * 2, [], {}, ()).number))
            except ConcurrentWriteError:
                log.append((name, None))
            finally:
                reached.set()

        thread = threading.Thread(target=run)
        thread.start()
        assert reached.wait(20)
        return thread, go

    a, go_a = writer("a", first)
    b, go_b = writer("b", second)
    go_a.set()
    a.join(20)
    go_b.set()
    b.join(20)
    acknowledged = [number for _, number in log if number is not None]
    assert len(acknowledged) == len(set(acknowledged))
    # A is fenced by B in its second commit at the latest; B is never.
    assert ("a", None) in log and ("b", None) not in log
    assert len([entry for entry in log if entry[0] == "b"]) == 2
    reader = again(commits)
    last = reader.latest()
    assert last.state == b"bb" and last.number == max(acknowledged)
    # The chain is the first commit, both openings and the acknowledged commits.
    assert last.number == len(acknowledged) + 2
    for number in reader.numbers():
        if number in acknowledged:
            assert reader.read(number).state[:1].decode() in "ab"


RACER = """
import random, sys, time
from pyspark_diff.errors import ConcurrentWriteError
from pyspark_diff.trace.commits import Commits
from pyspark_diff.trace.local_objects import LocalObjects
root, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
commits = Commits(LocalObjects(root))
done = 0
lost = 0
losses = 0
# All processes open before the first commit, so that under any schedule all but one lose once.
commits.open_for_writing()
print("ready", flush=True)
sys.stdin.readline()
while done < count:
    try:
        if lost:
            commits.open_for_writing()
            lost = 0
        while done < count:
            commit = commits.append(f"{name}-{done}".encode(), [b"x" * 100], {}, (),
                                    token=f"{name}-{done}")
            print(commit.number, commit.token, flush=True)
            done += 1
            time.sleep(random.random() / 500)
        if done % 7 == 0:
            commits.retire(max(commits.last.number - 1000, 0))
    except ConcurrentWriteError:
        lost = 1
        losses += 1
print(losses, "lost")
"""


@pytest.mark.parametrize(
    ("writers", "count"), [(4, 25), pytest.param(8, 100, marks=pytest.mark.slow)]
)
def test_processes_that_commit_at_once(tmp_path, writers, count):
    commits = Commits(LocalObjects(tmp_path))
    commits.make(b"")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(tmp_path), f"w{i}", str(count)],
            env=environ(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(writers)
    ]
    acknowledged = {}
    losses = 0
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
        for line in out.splitlines():
            number, token = line.split()
            if token == "lost":
                losses += int(number)
                continue
            assert int(number) not in acknowledged
            acknowledged[int(number)] = token
    assert len(acknowledged) == writers * count and losses
    reader = Commits(LocalObjects(tmp_path))
    last = reader.latest()
    there = {n: reader.read(n).token for n in range(last.number + 1)}
    assert {n: token for n, token in there.items() if token is not None} == acknowledged


def test_writers_that_are_killed_lose_nothing_that_they_told(tmp_path):
    Commits(LocalObjects(tmp_path)).make(b"")
    acknowledged = []
    for life in range(12):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            try:
                commits = Commits(LocalObjects(tmp_path))
                commits.open_for_writing()
                for number in range(100_000):
                    token = f"{life}-{number} "
                    commits.append(commits.last.state + token.encode(), [b"x" * 999], {}, ())
                    os.write(writing, token.encode())
            finally:
                os._exit(1)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            first = pipe.read(4)
            time.sleep(Random(life).random() / 50)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            acknowledged += (first + pipe.read()).split()
    commits = Commits(LocalObjects(tmp_path))
    there = commits.latest().state.decode().split()
    # The last commit of each process may be in the chain without an acknowledgement.
    assert set(acknowledged) <= set(there) and len(there) <= len(acknowledged) + 12
    assert len(there) == len(set(there)) and len(acknowledged) >= 12
    commits.open_for_writing()
    fill(commits, 1)


# Unknown outcomes.

OUTCOMES = {
    "done, and told": (False, False, None),
    "done, and the answer lost": (False, True, UnknownOutcomeError("timeout")),
    "not done, and the answer lost": (True, False, UnknownOutcomeError("timeout")),
    "not done, and told": (True, False, StorageError("no")),
}


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("what", ["append", "open"])
def test_each_outcome_of_a_create_is_told_right(commits, outcome, what):
    before, after, error = OUTCOMES[outcome]
    between = Between(objects_at(commits.objects.root))
    writer = Commits(between)
    if what == "append":
        writer.open_for_writing()
    number = writer.last.number if writer.last else 0
    if before:
        between.before = raising(error)
    if after:
        between.after = raising(error)

    def act():
        if what == "append":
            return writer.append(b"new", [b"rows"], {}, (), token="new")
        return writer.open_for_writing()

    if isinstance(error, UnknownOutcomeError) or error is None:
        commit = act()
        assert commit.number == number + 1 and again(commits).latest() == commit
    else:
        with pytest.raises(StorageError, match="no"):
            act()
        assert again(commits).latest().number == number
        assert act().number == number + 1
    fill(writer, 2)
    assert again(commits).latest().number == number + 3


@pytest.mark.parametrize("done", [False, True])
def test_a_store_that_is_cut_off_takes_nothing_until_it_is_settled(commits, done):
    between = Between(objects_at(commits.objects.root))
    writer = Commits(between)
    writer.open_for_writing()
    writer.append(b"older", [b"rows"], {}, ())
    older = writer.last
    cut = UnknownOutcomeError("timeout")
    between.before = between.after = raising(cut, 100)
    if done:
        between.before = lambda name: None
    between.reading = raising(StorageError("unreachable"), 1000)
    with pytest.raises(UnknownOutcomeError, match="it is not known whether commit 3"):
        writer.append(b"new", [], {}, ())
    assert writer.last is older
    for _ in range(2):
        with pytest.raises(UnknownOutcomeError, match="Settle that first"):
            writer.append(b"newer", [], {}, ())
    with pytest.raises(StorageError):
        writer.settle()
    # The outcome of the commit that takes the number may be unknown as well.
    between.before = between.after = between.reading = lambda name: None
    if not done:
        between.after = raising(cut, 100)
        between.reading = raising(StorageError("unreachable"), 100)
        with pytest.raises(UnknownOutcomeError):
            writer.settle()
        assert again(commits).latest().number == 3
        between.reading = between.after = lambda name: None
    settled = writer.settle()
    assert writer.settle() is None
    latest = again(commits).latest()
    assert latest.number == 3 == writer.last.number
    if done:
        assert settled == latest and latest.state == b"new"
    else:
        # Another commit has its number, so that a late request has no effect.
        assert settled is None and latest.state == b"older" and latest.uses == (2,)
    fill(writer, 2)


def test_a_request_that_arrives_after_all_is_the_same_commit(commits):
    """A create is lost and sent again, and then both requests arrive."""
    between = Between(objects_at(commits.objects.root))
    writer = Commits(between)
    writer.open_for_writing()
    sent = []

    class Late(Exception):
        pass

    real = between.inner.create

    def create(name, parts):
        if name.startswith("commits/") and not sent:
            sent.append([bytes(part) for part in parts])
            raise UnknownOutcomeError("timeout")
        if sent and name.startswith("commits/"):
            real(name, sent[0])
        return real(name, parts)

    between.inner.create = create
    commit = writer.append(b"new", [b"rows"], {}, ())
    between.inner.create = real
    assert again(commits).latest() == commit
    fill(writer, 1)


def test_a_request_that_arrives_while_it_is_settled(commits):
    between = Between(objects_at(commits.objects.root))
    writer = Commits(between)
    writer.open_for_writing()
    sent = []

    def lost(name):
        raise UnknownOutcomeError("timeout")

    between.before = lost
    real = between.create
    between.create = lambda name, parts: (sent.append([bytes(p) for p in parts]), real(name, parts))
    with pytest.raises(UnknownOutcomeError):
        writer.append(b"new", [], {}, ())
    between.create = real
    between.before = lambda name: between.inner.create(name, sent[0])
    settled = writer.settle()
    assert settled is writer.last and settled.state == b"new"
    assert again(commits).latest() == settled
    between.before = lambda name: None
    fill(writer, 1)


def test_what_is_found_after_a_doubt_is_synced_before_it_counts(local):
    """The name exists, but would be gone after a crash."""
    between = Between(local.objects)
    writer = Commits(between)
    writer.open_for_writing()
    between.after = raising(UnknownOutcomeError("the folder could not be synced"))
    synced = []
    between.secure = lambda name: synced.append((name, writer.last.state))
    writer.append(b"new", [], {}, ())
    assert synced == [(name_of(2), b"0")]
    between.after = raising(UnknownOutcomeError("the folder could not be synced"), 100)
    between.secure = raising(StorageError("the disk is failing"), 100)
    with pytest.raises(UnknownOutcomeError, match="the disk is failing"):
        writer.append(b"newer", [], {}, ())


def test_an_interrupt_within_a_create_is_in_doubt(commits):
    between = Between(objects_at(commits.objects.root))
    writer = Commits(between)
    writer.open_for_writing()
    between.after = raising(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        writer.append(b"new", [], {}, ())
    with pytest.raises(UnknownOutcomeError):
        writer.append(b"newer", [], {}, ())
    assert writer.settle().state == b"new"
    fill(writer, 1)


def test_an_attempt_that_was_told_to_have_failed_and_is_there(commits):
    """A request is made again by the client, and the second of its answers is a refusal."""
    between = Between(objects_at(commits.objects.root))
    writer = Commits(between)
    writer.open_for_writing()
    between.after = raising(StorageError("forbidden"))
    with pytest.raises(StorageError, match="forbidden"):
        writer.append(b"first", [], {}, ())
    with pytest.raises(UnknownOutcomeError, match="reported as failed"):
        writer.append(b"second", [], {}, ())
    assert writer.open_for_writing().state == b"first"
    fill(writer, 1)


def test_a_fenced_writer_is_told_so_though_it_was_cut_off(commits):
    between = Between(objects_at(commits.objects.root))
    writer = Commits(between)
    writer.open_for_writing()
    between.before = raising(UnknownOutcomeError("timeout"), 100)
    with pytest.raises(UnknownOutcomeError):
        writer.append(b"new", [], {}, ())
    again(commits).open_for_writing()
    between.before = lambda name: None
    assert writer.settle() is None
    with pytest.raises(ConcurrentWriteError):
        writer.append(b"newer", [], {}, ())


class Unreliable(Between):
    """Objects that lose creates or their answers; other writers act before and after each."""

    def __init__(self, inner, random, others):
        super().__init__(inner)
        self.random = random
        self.others = others

    def create(self, name, parts):
        if name.startswith("commits/"):
            self.others()
            if self.random.random() < 0.1:
                raise self.random.choice([UnknownOutcomeError("lost"), StorageError("refused")])
        created = self.inner.create(name, parts)
        if name.startswith("commits/"):
            self.others()
            if self.random.random() < 0.1:
                raise UnknownOutcomeError("the answer is lost")
        return created

    def read(self, name):
        if self.random.random() < 0.02:
            raise StorageError("unreachable")
        return self.inner.read(name)

    def names(self, folder):
        if self.random.random() < 0.02:
            raise StorageError("unreachable")
        return self.inner.names(folder)


@pytest.mark.parametrize("seed", [*range(15), 261])
def test_random_writers_on_an_unreliable_store(seed, use_thresholds):
    """The final state lists the committed tokens, and agrees with each reported outcome."""
    use_thresholds(commit_pause_seconds=0, tombstones_max=4)
    random = Random(seed)
    root = f"memory://random-{seed}"  # noqa: F811
    inner = objects_at(root)
    Commits(inner).make(b"")
    depth = [0]
    tokens = {"done": [], "not done": [], "unknown": []}
    count = iter(range(100_000))

    def act():
        writer = random.choice(writers)
        if writer.busy:
            return
        writer.busy = True
        depth[0] += 1
        try:
            step(writer)
        finally:
            writer.busy = False
            depth[0] -= 1

    def others():
        while depth[0] < 4 and random.random() < 0.3:
            act()

    def step(writer):
        what = random.random()
        if writer.doubt is not None:
            try:
                settled = writer.settle() if what < 0.8 else None
            except StorageError:
                return
            if what >= 0.8:
                writer.doubt = None
                reopen(writer)
                return
            tokens["not done" if settled is None else "done"].append(writer.doubt)
            tokens["unknown"].remove(writer.doubt)
            writer.doubt = None
        elif writer.last is None or what < 0.1:
            reopen(writer)
        elif what < 0.2:
            try:
                writer.retire(writer.last.number - random.randrange(4))
            except StorageError:
                pass
        else:
            token = f"t{next(count)}"
            try:
                commit = writer.append(writer.last.state + token.encode() + b" ", [b"x"], {}, ())
                assert writer.last is commit
                tokens["done"].append(token)
            except UnknownOutcomeError:
                tokens["unknown"].append(token)
                writer.doubt = token
            except (ConcurrentWriteError, StorageError) as error:
                tokens["not done"].append(token)
                if isinstance(error, ConcurrentWriteError) and random.random() < 0.7:
                    reopen(writer)

    def reopen(writer):
        try:
            writer.open_for_writing()
        except (StorageError, ConcurrentWriteError):
            # It goes on as another process, and the doubtful token stays unknown.
            writer.__init__(Unreliable(inner, random, others))

    writers = [Commits(Unreliable(inner, random, others)) for _ in range(4)]
    for writer in writers:
        writer.busy, writer.doubt = False, None
    for _ in range(150):
        act()
    latest = Commits(inner).latest()
    there = latest.state.decode().split()
    assert len(there) == len(set(there))
    assert set(tokens["done"]) <= set(there) and len(tokens["done"]) > 20
    assert not set(tokens["not done"]) & set(there)
    assert set(there) <= set(tokens["done"]) | set(tokens["unknown"])


# The sleeper.


@pytest.mark.parametrize("collapse", [False, True], ids=["tombstone", "floor"])
@pytest.mark.parametrize("dies", [False, True])
def test_a_sleeper_cannot_create_an_old_number_anew(commits, use_thresholds, collapse, dies):
    use_thresholds(tombstones_max=3 if collapse else 1000)
    between = Between(objects_at(commits.objects.root))
    sleeper = Commits(between)
    sleeper.open_for_writing()
    other = again(commits)

    def sleep(name):
        between.before = lambda name: None
        other.open_for_writing()
        fill(other, 10)
        other.retire(other.last.number)
        assert any(f.name == name for f in other.objects.names("commits")) != collapse

    def die(name):
        raise KeyboardInterrupt  # as if it were killed between its create and its look at the floor

    between.before = sleep
    if dies:
        between.after = die
    with pytest.raises(KeyboardInterrupt if dies else ConcurrentWriteError):
        sleeper.append(b"from a dream", [b"x" * 1000], {}, ())
    reader = again(commits)
    assert reader.latest() == other.last
    assert reader.numbers() == [other.last.number]
    with pytest.raises(NotReadableError):
        reader.read(2)
    if collapse and not dies:
        assert [f.name for f in other.objects.names("commits")] == [name_of(other.last.number)]
    fill(other, 10)
    other.retire(other.last.number)
    assert again(commits).latest() == other.last
    assert again(commits).numbers() == [other.last.number]


@pytest.mark.parametrize("collapse", [False, True], ids=["tombstone", "floor"])
def test_who_committed_in_time_is_not_told_otherwise_after_a_sleep(
    commits, use_thresholds, collapse,
):
    """The same sleep, but after the create: the commit was in the chain, and was retired."""
    use_thresholds(tombstones_max=3 if collapse else 1000)
    between = Between(objects_at(commits.objects.root))
    sleeper = Commits(between)
    sleeper.open_for_writing()
    other = again(commits)

    def sleep(name):
        between.after = lambda name: None
        assert other.open_for_writing().state == b"in time"
        fill(other, 10)
        other.retire(other.last.number)

    between.after = sleep
    assert sleeper.append(b"in time", [], {}, ()).number == 2
    with pytest.raises(ConcurrentWriteError):
        sleeper.append(b"too late", [], {}, ())
    assert again(commits).latest() == other.last


@pytest.mark.parametrize("arrived", [False, True])
@pytest.mark.parametrize("cut", [False, True])
def test_what_a_floor_has_passed_while_it_was_in_doubt_stays_unknown(
    commits, use_thresholds, arrived, cut
):
    """No object shows any longer whether the first request created its commit."""
    use_thresholds(tombstones_max=3)
    between = Between(objects_at(commits.objects.root))
    sleeper = Commits(between)
    sleeper.open_for_writing()
    other = again(commits)

    def sleep(name):
        between.before = between.after = lambda name: None
        if cut:
            between.before = between.reading = raising(UnknownOutcomeError("timeout"), 100)
        other.open_for_writing()
        fill(other, 10)
        other.retire(other.last.number)
        raise UnknownOutcomeError("timeout")

    setattr(between, "after" if arrived else "before", sleep)
    with pytest.raises(UnknownOutcomeError) as error:
        sleeper.append(b"perhaps", [], {}, ())
    if cut:
        between.before = between.reading = lambda name: None
        with pytest.raises(UnknownOutcomeError) as error:
            sleeper.settle()
    assert "it will not be known whether" in str(error.value)
    with pytest.raises(UnknownOutcomeError):
        sleeper.settle()
    with pytest.raises(ConcurrentWriteError):
        sleeper.append(b"more", [], {}, ())
    assert again(commits).latest() == other.last
    assert len(other.objects.names("commits")) == 1


# Retirement.


def test_a_payload_that_is_used_outlives_its_commit(commits, use_thresholds):
    use_thresholds(tombstones_max=2)
    payload = [b"rows", b"more rows"]
    segments = segments_of(payload)
    commits.append(b"1", payload, {}, ())
    for _ in range(10):
        commits.append(b"later", [], {}, [1])
    assert commits.retire(commits.last.number) == list(range(11))
    reader = again(commits)
    assert reader.numbers() == [11]
    assert bytes(reader.segment_bytes(1, segments[1])) == b"more rows"
    with pytest.raises(NotReadableError, match="can be read are 11"):
        reader.read(1)
    assert isinstance(decode(commits.objects.read(name_of(1)), 1), Retired)
    assert len(commits.objects.names("commits")) == 2
    # The payload is deleted after the last commit that uses it.
    fill(commits, 1)
    commits.retire(commits.last.number)
    with pytest.raises(DamagedStateError):
        reader.segment_bytes(1, segments[1])
    fill(commits, 5)
    commits.retire(commits.last.number)
    assert len(commits.objects.names("commits")) <= 1 + 2
    assert again(commits).latest() == commits.last


def test_kept_commits_stay_whole_among_tombstones(commits):
    for i in range(8):
        commits.append(b"%d" % i, [b"p%d" % i], {}, [commits.last.number])
    commits.retire(7, keep={3})
    reader = again(commits)
    assert reader.numbers() == [3, 7, 8]
    assert reader.read(3).state == b"2" and reader.read(3).uses == (2,)
    assert bytes(reader.segment_bytes(2, segments_of([b"p1"])[0])) == b"p1"
    assert commits.retire(7) == [3]
    assert reader.numbers() == [7, 8]


def test_a_thousand_commits_leave_few_objects():
    commits = Commits(objects_at("memory://thousand"))
    commits.make(b"")
    most = 0
    for i in range(1000):
        fill(commits, 1)
        if i % 10 == 0:
            commits.retire(commits.last.number - 5)
            most = max(most, len(commits.objects.names("")))
    assert most < thresholds.current.tombstones_max + 50
    assert len(commits.objects.names("floor")) == 2
    assert again(commits).latest() == commits.last


def test_retirement_that_is_killed_anywhere_is_done_again(tmp_path, use_thresholds):
    use_thresholds(tombstones_max=2)

    class Killed(BaseException):
        pass

    for point in range(100):
        commits = Commits(LocalObjects(tmp_path / str(point)))
        commits.make(b"")
        commits.append(b"1", [b"rows"], {}, ())
        for _ in range(5):
            commits.append(b"", [], {}, [1])
        left = [point]

        def counted(name, left=left, commits=commits):
            real = getattr(commits.objects, name)

            def call(*args, **kwargs):
                if not left[0]:
                    raise Killed
                left[0] -= 1
                return real(*args, **kwargs)

            return call

        for name in ("replace", "create", "delete"):
            setattr(commits.objects, name, counted(name))
        try:
            commits.retire(5)
            done = True
        except Killed:
            done = False
        other = again(commits)
        assert other.latest() == commits.last
        other.open_for_writing()
        other.retire(5)
        assert set(other.numbers()) == {5, 6, 7}
        assert bytes(other.segment_bytes(1, segments_of([b"rows"])[0])) == b"rows"
        fill(other, 1)
        if done:
            break
    assert point > 5


# Damage.


def test_every_change_of_a_commit_is_found(local):
    payload = [b"some rows", b"others"]
    written = local.append(b"the state", payload, {FILE: FileInfo(128, 1, 1)}, [0], token="t")
    path = Path(local.objects.root) / name_of(1)
    data = path.read_bytes()
    reader = again(local)
    reader.latest()

    def whole():
        commit = reader.read(1)
        return commit, [reader.segment_bytes(1, segment) for segment in commit.segments]

    expected = whole()
    assert expected[0] == written
    unnoticed = []
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1:])
        try:
            assert whole() == expected
            unnoticed.append(at)
        except (DamagedStateError, FormatError):
            pass
    # Only changes of the zeros between the parts, which no reader reads, go unnoticed.
    assert all(data[at] == 0 for at in unnoticed)
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(DamagedStateError):
            whole()
    path.write_bytes(data + b"\0")
    with pytest.raises(DamagedStateError):
        whole()


def test_every_change_of_a_tombstone_is_found(local):
    fill(local, 3)
    local.retire(3)
    path = Path(local.objects.root) / name_of(2)
    data = path.read_bytes()
    assert len(data) == manifest.TOMBSTONE_BYTES
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1:])
        with pytest.raises((DamagedStateError, FormatError)):
            again(local).latest()


def harm(local, number, how):
    path = Path(local.objects.root) / name_of(number)
    other = Path(local.objects.root) / name_of(number - 1)
    if how == "missing":
        path.unlink()
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "swapped":
        path.write_bytes(other.read_bytes())
    elif how == "of another store":
        store = Commits(LocalObjects(Path(local.objects.root) / "data/other"))
        store.make(b"")
        fill(store, number)
        path.write_bytes((Path(store.objects.root) / name_of(number)).read_bytes())
    elif how == "tombstone":
        path.write_bytes(manifest.tombstone_of(local.read(number)))
    elif how == "payload":
        path.write_bytes(manifest.payload_of(local.read(number), path.read_bytes()))


@pytest.mark.parametrize("how", [
    "missing", "empty", "swapped", "of another store", "tombstone", "payload",
])
def test_a_last_commit_that_is_not_as_it_was_is_damage(local, how):
    fill(local, 4)
    harm(local, 4, how)
    with pytest.raises(DamagedStateError):
        again(local).latest()
    with pytest.raises(DamagedStateError):
        again(local).open_for_writing()


def test_an_older_commit_of_another_store_is_damage(local):
    fill(local, 4)
    reader = again(local)
    reader.latest()
    harm(local, 2, "of another store")
    with pytest.raises(DamagedStateError, match="of another store"):
        reader.read(2)
    path = Path(local.objects.root) / name_of(2)
    path.write_bytes(manifest.tombstone_of(local.last))
    with pytest.raises(DamagedStateError, match="tombstone of commit 4"):
        reader.read(2)


def test_a_gap_in_the_chain_is_damage(local):
    fill(local, 4)
    for number in (0, 2, 3):
        path = Path(local.objects.root) / name_of(number)
        data = path.read_bytes()
        path.unlink()
        with pytest.raises(DamagedStateError, match=f"commit {number} is missing"):
            again(local).latest()
        path.write_bytes(data)
    again(local).latest()


def test_a_store_whose_commits_are_gone_is_damage(local):
    for path in (Path(local.objects.root) / "commits").iterdir():
        path.unlink()
    other = again(local)
    assert other.exists()
    with pytest.raises(DamagedStateError):
        other.latest()
    with pytest.raises(StorageError):
        other.make(b"")


def test_a_hint_that_is_damaged_is_said_and_not_believed(local, caplog):
    fill(local, 2)
    head = Path(local.objects.root) / "head"
    good = head.read_bytes()
    for data in (b"", b"9" * 16, good.replace(b"2", b"3", 1), b"\xff" * 58):
        head.write_bytes(data)
        with caplog.at_level(logging.WARNING, "pyspark_diff"):
            assert again(local).latest().number == 2
        assert "hint" in caplog.text
        caplog.clear()
    head.unlink()
    assert again(local).latest().number == 2
    fill(local, 1)
    assert head.exists()


def test_a_floor_above_the_last_commit_is_damage(local):
    local.objects.create("floor/0000000000000009", [b""])
    with pytest.raises(DamagedStateError):
        again(local).latest()


def test_a_listing_that_is_torn_is_taken_again(local):
    fill(local, 3)
    reader = again(local)
    real = reader.objects.names
    torn = [True]

    def names(folder):
        listing = real(folder)
        if folder == "commits" and torn[0]:
            torn[0] = False
            return [item for item in listing if item.name != name_of(2)]
        return listing

    reader.objects.names = names
    assert reader.latest().number == 3


def test_a_strange_file_among_the_commits_is_ignored(local):
    fill(local, 1)
    for name in ("readme", "0000000000000009.commit.bak", "9.commit"):
        (Path(local.objects.root) / "commits" / name).write_text("x")
    assert again(local).latest().number == 1


# Formats, and hostile manifests.


def header_of(data):
    start, length, *_ = manifest._FOOTER.unpack(data[-manifest._FOOTER.size:])
    return json.loads(data[start:start + length]), start


def forged(data, change):
    """A commit with a changed header and valid digests."""
    header, start = header_of(data)
    header = change(header) or header
    if isinstance(header, bytes):
        text = header + b" " * (-(start + len(header) + manifest._FOOTER.size) % 64)
        return data[:start] + text + manifest._FOOTER.pack(
            start, len(text), manifest.FORMAT, manifest._digest(text), manifest._MAGIC
        )
    return data[:start] + b"".join(manifest._ending(json.dumps(header), start, 0))


def setting(**fields):
    return lambda header: {**header, **fields}


def file_named(name, length=128):
    return setting(files={name: [length, 1, 1]})


HOSTILE = {
    "up": file_named("../../etc/passwd"),
    "up, within": file_named(FILE.replace("orders", "x/../../..")),
    "absolute": file_named("/etc/passwd"),
    "absolute, within": file_named("/" + FILE),
    "with a NUL": file_named(FILE.replace("orders", "a\0b")),
    "with a line break": file_named(FILE + "\n"),
    "a URL": file_named("s3://bucket/" + FILE),
    "hidden": file_named(FILE.replace("orders", ".orders")[:5] + "." + FILE[5:]),
    "very long": file_named(FILE.replace("orders", "x" * 5000)),
    "not of data": file_named(name_of(0)),
    "another length than its name": file_named(FILE, 127),
    "a later epoch": file_named(FILE.replace("e0001", "e0002")),
    "a negative length": setting(files={FILE: [-128, 1, 1]}),
    "a length that is text": setting(files={FILE: ["128", 1, 1]}),
    "rows that are true": setting(files={FILE: [128, True, 1]}),
    "files in a list": setting(files=[FILE]),
    "a huge sum": setting(files={FILE: [128, 1, 10**60]}),
    "a huge segment": setting(segments=[[64, 1 << 50, 0]]),
    "a segment outside": setting(segments=[[1 << 40, 3, 0]]),
    "a segment before": setting(segments=[[0, 3, 0]]),
    "a negative segment": setting(segments=[[64, -3, 0]]),
    "segments over each other": setting(segments=[[64, 9, 0], [64, 9, 0]]),
    "a segment of floats": setting(segments=[[64.0, 9, 0]]),
    "a huge state": setting(state=[64, 1 << 50, 0]),
    "a state outside": setting(state=[1 << 40, 0, 0]),
    "a state in the magic": setting(state=[0, 8, 0]),
    "another number": setting(number=7),
    "a number that is text": setting(number="1"),
    "a number that is a float": setting(number=1.0),
    "uses itself": setting(uses=[1]),
    "uses what comes": setting(uses=[5]),
    "uses twice": setting(uses=[0, 0]),
    "no epoch": lambda header: {k: v for k, v in header.items() if k != "epoch"},
    "a strange field": setting(code="import os"),
    "a negative epoch": setting(epoch=-1),
    "no nonce": setting(nonce=""),
    "a store with a path": setting(store="../" * 10 + "ab"),
    "no previous": setting(previous=""),
    "a time without a zone": setting(written="2026-01-01T00:00:00"),
    "no time": setting(written=7),
    "a token that is a list": setting(token=["x"]),
    "a long token": setting(token="x" * 10000),
    "another kind": setting(kind="payload"),
    "no kind": setting(kind=None),
    "a list": lambda header: b"[]",
    "no JSON": lambda header: b"{",
    "deeper than can be read": lambda header: b"[" * 100000,
    "not a number": lambda header: json.dumps({**header, "epoch": float("nan")}).encode(),
    "a field twice": lambda header: json.dumps(header)[:-1].encode() + b',"number":1}',
    "a number of many digits": lambda header: json.dumps(header)[:-1].encode()
    + b',"x":' + b"9" * 10000 + b"}",
    "no text": lambda header: b"\xff\xfe",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_manifest_is_refused(local, case):
    local.append(b"state", [b"some rows"], {FILE: FileInfo(128, 1, 1)}, [0])
    path = Path(local.objects.root) / name_of(1)
    data = path.read_bytes()
    assert decode(forged(data, lambda header: None), 1) == local.last
    path.write_bytes(forged(data, HOSTILE[case]))
    with pytest.raises(DamagedStateError, match="is damaged"):
        again(local).latest()


def test_a_footer_that_leads_outside_is_refused(local):
    fill(local, 1)
    data = local.objects.read(name_of(1))
    start, length, version, digest, magic = manifest._FOOTER.unpack(data[-manifest._FOOTER.size:])
    for place in ((1 << 60, length), (start, 1 << 60), ((1 << 64) - 1, length), (0, 1 << 29)):
        changed = data[:-manifest._FOOTER.size] + manifest._FOOTER.pack(
            *place, version, digest, magic
        )
        with pytest.raises(DamagedStateError):
            decode(changed, 1)


def test_a_newer_format_names_both(local):
    fill(local, 1)
    path = Path(local.objects.root) / name_of(1)
    data = path.read_bytes()
    at = len(data) - manifest._FOOTER.size + 16
    path.write_bytes(data[:at] + struct.pack("<Q", 2) + data[at + 8:])
    with pytest.raises(FormatError, match="format 2, .* up to 1"):
        again(local).latest()
    with pytest.raises(FormatError):
        again(local).open_for_writing()
    gone = bytearray(manifest.tombstone_of(local.read(0)))
    gone[8] = 2
    with pytest.raises(FormatError):
        decode(bytes(gone), 0)


def test_data_behind_a_symbolic_link_is_not_read(local, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    folder = FILE.split("/")[1]
    (outside / folder).mkdir()
    (outside / FILE.removeprefix("data/")).write_bytes(b"x" * 128)
    os.symlink(outside, Path(local.objects.root) / "data")
    local.append(b"", [], {FILE: FileInfo(128, 1, 1)}, ())
    with pytest.raises(StorageError, match="symbolic link"):
        local.objects.locate(FILE)
    os.unlink(Path(local.objects.root) / "data")
    (Path(local.objects.root) / "data").mkdir()
    os.symlink(outside / folder, Path(local.objects.root) / "data" / folder)
    with pytest.raises(StorageError, match="symbolic link"):
        local.objects.locate(FILE)


def test_an_encoded_commit_is_decoded(local):
    commit = replace(local.last, segments=segments_of([b"abc"]), state=b"xyz")
    data = b"".join(bytes(part) for part in encode(commit, [b"abc"]))
    assert decode(data, 0) == commit
    left = decode(manifest.payload_of(commit, data), 0)
    assert isinstance(left, Retired) and left.segments == commit.segments
    gone = decode(manifest.tombstone_of(left), 0)
    assert gone == Retired(0, commit.epoch, commit.nonce, commit.store)
    assert Segment(64, 3, 0x352441C2) in left.segments


def test_a_commit_syncs_as_often_as_one_new_object(local, monkeypatch):
    """For any number of segments: a sync takes as long as the rest of a commit."""
    synced = []
    sync = local_objects._sync
    monkeypatch.setattr(local_objects, "_sync", lambda file: (synced.append(file), sync(file)))

    def syncs(call):
        synced.clear()
        call()
        return len(synced)

    local.objects.create("readers/0", [b""])  # its folder is new, which takes another sync
    alone = syncs(lambda: local.objects.create("readers/1", [b"x" * 4000]))
    few = [syncs(lambda: local.append(b"s", [b"x" * 4000], {}, ())) for _ in range(30)]
    assert alone and few == [alone] * 30


@pytest.mark.parametrize("count", [1, 3, 100])
def test_a_late_listing_hides_no_commit(tmp_path, count):
    """The newest files of each folder are in no listing yet."""
    writes = Commits(objects_at(tmp_path / "store"))
    with volumes.late(tmp_path, count) as hidden:
        writes.make(b"state 0")
        for number in range(1, 5):
            writes.append(b"state %d" % number, [], {}, ())
            assert Commits(objects_at(tmp_path / "store")).latest().number == number
        os.unlink(tmp_path / "store" / "head")  # the hint may be lost as well
        reads = Commits(objects_at(tmp_path / "store"))
        assert reads.exists() and reads.latest().number == 4
        assert reads.numbers() == [0, 1, 2, 3, 4]
        assert reads.open_for_writing().number == 5
    assert hidden
