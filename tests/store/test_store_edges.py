"""Readers next to a writer, and the edge cases of stores."""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from pathlib import Path

import pytest
from damaged_stores import rows_of
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff import (
    ClosedError,
    ConcurrentWriteError,
    Dataflow,
    NotReadableError,
    SchemaError,
    StalledError,
    StorageError,
)
from pyspark_diff.data_source.inbox_writer import InboxWriter
from pyspark_diff.data_source.opened import READ, OpenedCollection
from pyspark_diff.data_source.options import Options
from pyspark_diff.dataflow.stored import StateReader
from pyspark_diff.errors import ProgramChangedError
from pyspark_diff.trace import read_holds
from pyspark_diff.trace.roots import objects_at


def program(flow):
    words, _ = flow.input("words", "word string")
    words.count().keep("counts")
    words.keep("words")


def open_store(spark, root, write=program, **options):
    return Dataflow.open(
        root, write, spark=spark, **{"runner": "local", "buckets": 2, **options}
    )


def step(flow, word="a", to=None):
    session = flow.session("words")
    session.insert([(word,)])
    flow.advance_to(session.time() + 1 if to is None else to)


def counts(collection, *at):
    return Counter(map(tuple, collection.at(*at).collect()))


# Readers.


def test_a_reader_stays_where_it_is_while_the_writer_goes_on(spark, tmp_path):
    with open_store(spark, tmp_path, retain=1) as flow:
        step(flow)
        reader, other = [StateReader(tmp_path, spark=spark) for _ in range(2)]
        for _ in range(5):
            step(flow)
            flow.vacuum(dry_run=False, older_than=0.0)
        # The first read is after the writer has retired the commit.
        assert counts(reader["counts"]) == {("a", 1): 1} and reader["counts"].frontier() == 1
        with pytest.raises(NotReadableError, match="refresh"):
            reader["counts"].at(3)
        assert reader.refresh() and not reader.refresh()
        assert counts(reader["counts"]) == {("a", 6): 1}
        other.close()
        reader.close()
        reader.close()
        with pytest.raises(ClosedError):
            reader["counts"]
        with pytest.raises(ClosedError):
            reader.refresh()
        # A reader that is never closed, as after a kill, keeps its hold until it expires.
        StateReader(tmp_path, spark=spark, seconds=1000)
        step(flow)
        step(flow)
        flow.vacuum(dry_run=False, older_than=0.0)
        assert len(flow.history().collect()) == 2
    assert len(list((tmp_path / "readers").iterdir())) == 1


def test_a_hold_that_expired_is_said(spark, tmp_path, use_thresholds, caplog):
    use_thresholds(clock_difference_seconds_max=0.0)
    with open_store(spark, tmp_path, retain=1) as flow:
        step(flow)
        reader = StateReader(tmp_path, spark=spark, seconds=0.0)
        step(flow)
        step(flow)
        with caplog.at_level("WARNING", "pyspark_diff"):
            report = flow.vacuum(dry_run=False, older_than=0.0)
        assert report.expired_holds or "expired" in caplog.text
        with pytest.raises(NotReadableError, match="expired"):
            reader["counts"]
        reader.close()


def test_older_commits_are_what_they_were(spark, tmp_path):
    with open_store(spark, tmp_path, keep_history=True) as flow:
        then = {}
        for word in "abcab":
            step(flow, word)
            then[flow._store.last.number] = rows_of(flow["counts"])
        for number, expected in then.items():
            with flow.at(number) as reader:
                assert rows_of(reader["counts"]) == expected
        with StateReader(tmp_path, spark=spark) as reader:
            collection = reader["counts"]
            for since in range(5):
                for until in range(since, 5):
                    actual = Counter()
                    for *record, _, diff in collection.changes(since, until).collect():
                        actual[tuple(record)] += diff
                    expected = counts(collection, until)
                    expected.subtract(counts(collection, since))
                    assert {r: n for r, n in actual.items() if n} == {
                        r: n for r, n in expected.items() if n}
        with pytest.raises(NotReadableError, match="no commit 99"):
            flow.at(99)
        with flow.at(0) as reader, pytest.raises(NotReadableError, match="The kept names: none"):
            reader["counts"]


def test_a_reader_outlives_a_dataflow_that_is_closed(spark, tmp_path):
    flow = open_store(spark, tmp_path)
    step(flow)
    reader = flow.at(flow._store.last.number)
    flow.close()
    assert counts(reader["counts"]) == {("a", 1): 1}
    reader.close()


# Edges.


@pytest.mark.parametrize("name", ["with spaces", "größe 日本", "a'b`c;d", "%41%2f", "x" * 200])
def test_odd_paths(spark, tmp_path, name):
    for _ in range(2):
        with open_store(spark, str(tmp_path / name / "store")) as flow:
            step(flow)
    with StateReader(tmp_path / name / "store", spark=spark) as reader:
        assert counts(reader["counts"]) == {("a", 2): 1}
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_other_forms_of_a_path(spark, tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    monkeypatch.chdir(tmp_path)
    forms = ["there/store", "./link/../there/store", str(tmp_path / "link/store"),
             (tmp_path / "there/store").as_uri(), tmp_path / "there" / "store"]
    for number, form in enumerate(forms):
        with open_store(spark, form) as flow:
            os.chdir("/")  # the store stays in its place
            step(flow)
            assert counts(flow["counts"]) == {("a", number + 1): 1}
        os.chdir(tmp_path)
    with open_store(spark, "there/Store") as flow:  # another name
        assert flow.session("words").time() == 0


def test_unusual_characters_in_a_path(spark, tmp_path):
    """Each form is a folder of its own, for a store and for the files of a dataflow."""
    names = ["a b", "a%20b", "ü→木", "a#b", "a?b", "k=v", "{*}", "a:b", "new\nline", "~"]
    forms = {f"{tmp_path}/{name}/": name for name in names}
    forms |= {(tmp_path / f"uri {name}").as_uri(): f"uri {name}" for name in ("a%20b", "#?", "ü")}
    forms[f"FILE://localhost{tmp_path}/%FF"] = os.fsdecode(b"\xff")
    forms[tmp_path / " in " / "k=v"] = " in /k=v"
    for root, name in forms.items():
        with open_store(spark, root, buckets=None) as flow:
            step(flow)
        with open_store(spark, root, buckets=None) as flow:
            step(flow)
        with StateReader(root, spark=spark) as reader:
            assert counts(reader["counts"]) == {("a", 2): 1}
        assert (tmp_path / name / "commits").is_dir()
        with Dataflow(spark, root=root, runner="local") as flow:
            assert Path(flow._storage.root).parent == tmp_path / name
    assert len(list(tmp_path.iterdir())) == len(forms)


@pytest.mark.parametrize(("root", "part"), [
    ("~", "os.path.expanduser('~')"), ("~/store", "only a shell"), (Path("~me/store"), "~me"),
    ("file:{}/a#b", "Write %3F or %23"), ("file://{}/a?b", "Write %3F or %23"),
    ("file:store", "'file:/folder'"), ("file:{}/a%00", "null character"),
    ("{}/a\0b", "null character"), (Path("memory://host/x"), "names no bucket"),
    ("memory:x", "'memory://bucket/folder'"), ("s3:///x", "names no bucket"), (None, "is None"),
], ids=str)
def test_a_path_with_two_meanings_is_refused(spark, tmp_path, monkeypatch, root, part):
    monkeypatch.chdir(tmp_path)
    if isinstance(root, str):
        root = root.format(tmp_path)
    with pytest.raises(StorageError, match=re.escape(part)):
        open_store(spark, root)
    with pytest.raises(StorageError, match=re.escape(part)):
        StateReader(root, spark=spark)
    if root is not None:
        with pytest.raises(StorageError, match="Pass |pass the path"):
            Dataflow(spark, root=root)
    assert not list(tmp_path.iterdir())


def test_a_relative_path_of_the_data_source_is_refused():
    options = Options({"path": "a/store", "name": "counts"}, READ, "a read")
    with pytest.raises(ValueError, match="'a/store', a relative path.*Pass os.path.abspath"):
        OpenedCollection(options)
    with pytest.raises(ValueError, match="'a/store', a relative path"):
        InboxWriter({"path": "a/store", "name": "words"}, T.StructType(), False)


def test_a_folder_that_cannot_be_written_to(spark, tmp_path):
    folder = tmp_path / "file"
    folder.write_text("x")
    for root in folder, folder / "below", "/proc/store":
        with pytest.raises(StorageError, match="file|proc"):
            open_store(spark, root)
    assert folder.read_text() == "x"


def test_a_store_that_is_opened_twice_in_one_process(spark, tmp_path):
    first = open_store(spark, tmp_path)
    step(first)
    with open_store(spark, tmp_path) as second:
        step(second)
        with pytest.raises(ConcurrentWriteError, match="epoch"):
            step(first)
        first.close()
        step(second)
        assert counts(second["counts"]) == {("a", 3): 1}


def test_programs_that_do_what_they_should_not(spark, tmp_path):
    def steps(flow):
        program(flow)
        flow.step()

    def opens(flow):
        program(flow)
        open_store(spark, tmp_path / "inner").close()

    def fails(flow):
        program(flow)
        raise ZeroDivisionError("mine")

    with pytest.raises(StalledError, match="while the program is being written"):
        open_store(spark, tmp_path / "store", steps)
    with pytest.raises(ZeroDivisionError, match="mine"):
        open_store(spark, tmp_path / "store", fails)
    assert not (tmp_path / "store" / "commits").exists()
    with open_store(spark, tmp_path / "store", opens) as flow:
        step(flow)
    with open_store(spark, tmp_path / "store", lambda flow: None, on_change="extend") as flow:
        assert not flow.step() and list(flow) == []


def test_an_empty_program(spark, tmp_path):
    for _ in range(2):
        with open_store(spark, tmp_path, lambda flow: None) as flow:
            assert not flow.step() and flow.verify() == []
    with StateReader(tmp_path, spark=spark) as reader:
        assert list(reader) == []


def test_a_step_in_the_background_is_done_before_it_is_closed(spark, tmp_path):
    with open_store(spark, tmp_path) as flow:
        flow.session("words").insert([("a",)])
        flow.session("words").advance_to(1)
        flow.step_async()
    with StateReader(tmp_path, spark=spark) as reader:
        assert counts(reader["counts"]) == {("a", 1): 1}


def test_a_dataflow_that_is_closed_while_others_read(spark, tmp_path):
    flow = open_store(spark, tmp_path)
    step(flow)
    failed = []

    def read():
        try:
            while True:
                flow["counts"].at()
        except ClosedError:
            pass
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    flow.close()
    for thread in threads:
        thread.join(60)
    assert not failed


def test_a_fork_harms_nothing(spark, tmp_path):
    with open_store(spark, tmp_path) as flow:
        step(flow)
        before = sorted(Path(tmp_path).rglob("*"))
        child = os.fork()
        if not child:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert sorted(Path(tmp_path).rglob("*")) == before
        step(flow)
        assert counts(flow["counts"]) == {("a", 2): 1}


def test_changes_of_a_program(spark, tmp_path):
    with open_store(spark, tmp_path) as flow:
        step(flow)
        before = flow._store.last.number

    def renamed(flow):
        words, _ = flow.input("texts", "word string")
        words.count().keep("counts")

    def keyed(flow):
        words, _ = flow.input("words", "word string", key="word")
        words.count().keep("counts")

    def constant(flow):
        program(flow)
        flow.constant([(1,)], "x long").keep("more")

    for write in renamed, keyed, constant:
        with pytest.raises(ProgramChangedError, match="on_change"):
            open_store(spark, tmp_path, write)
    for options in {"time_type": "int"}, {"time": "t"}, {"diff": "d"}, {"buckets": 3}:
        with pytest.raises(SchemaError, match="store"):
            open_store(spark, tmp_path, **options)
    for wrong in {"on_change": "merge"}, {"retain": 0}:
        with pytest.raises(ValueError):
            open_store(spark, tmp_path, **wrong)
    # All these attempts leave the store unchanged.
    assert StateReader(tmp_path, spark=spark).commit == before
    with open_store(spark, tmp_path, constant, on_change="extend") as flow:
        flow.step()
        assert counts(flow["more"]) == {(1,): 1} and counts(flow["counts"]) == {("a", 1): 1}

    def other(flow):
        program(flow)
        flow.constant([(2,)], "x long").keep("more")

    with pytest.raises(ProgramChangedError, match="constant|rows"):
        open_store(spark, tmp_path, other)
    with open_store(spark, tmp_path, other, on_change="extend") as flow:
        flow.step()
        assert counts(flow["more"]) == {(2,): 1}

    def grown(flow):
        words, _ = flow.input("words", "word string")
        words.count().keep("counts")
        words.keep("words")
        words.where(F.col("word") > "b").count().keep("few")

    with open_store(spark, tmp_path, grown, on_change="extend") as flow:
        step(flow, "c")
        assert counts(flow["few"]) == {("c", 1): 1}
        assert counts(flow["counts"]) == {("a", 1): 1, ("c", 1): 1}


def test_a_hold_of_another_process_is_seen(spark, tmp_path):
    """The file of a hold is enough, as from another process."""
    with open_store(spark, tmp_path, retain=1) as flow:
        step(flow)
        number = flow._store.last.number
        hold = read_holds.ReadHold.take(objects_at(str(tmp_path)), number, 600)
        for _ in range(3):
            step(flow)
        assert number in [row.commit for row in flow.history().collect()]
        hold.release()
        step(flow)
        step(flow)
        assert number not in [row.commit for row in flow.history().collect()]
