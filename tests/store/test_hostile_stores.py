"""Hostile stores with valid digests.

    for any commit: no file outside of the root is read, written or deleted,
    no stored code runs, and the opening raises an error of the library
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from damaged_stores import rows_of

import pyspark_diff
from pyspark_diff import DamagedStateError, Dataflow, DiffError, StorageError, thresholds
from pyspark_diff.dataflow.stored import StateReader
from pyspark_diff.trace import storage
from pyspark_diff.trace.commits import Commits, FileInfo
from pyspark_diff.trace.roots import objects_at

#: The allowed uses of the suspect words, also in comments. Spark sends classes and functions to its
#: tasks. The package imports its own modules late, and a command line names a program. Graphviz's
#: `dot`, the compiler of kernels and the functions of a session are the rest.
ALLOWED = {
    ("__init__.py", "import_module"): 2,
    ("__main__.py", "import_module"): 1,
    ("dataflow/plot.py", "subprocess"): 3,
    ("kernels/jit.py", "compile("): 1,
    ("kernels/warm_up.py", "import_module"): 3,
    ("spark/doctor.py", "import_module"): 2,
    ("spark/user_functions.py", "pickled"): 2,
    ("errors.py", "unpickled"): 1,
    ("operators/contract.py", "pickle"): 1,
    ("operators/projection.py", "__reduce__"): 1,
    ("trace/batch.py", "__reduce__"): 1,
}
SUSPECT = re.compile(
    r"\w*pickle\w*|\bmarshal\b|\bdill\b|(?<![.\w])(?:eval|exec|compile)\s*\(|yaml\.load|"
    r"__reduce\w*|"
    r"__setstate__|\bshelve\b|\bimport_module\b|\b__import__\b|\bos\.system\b|\bsubprocess\b"
)


def test_nothing_is_unpickled_or_evaluated():
    root = Path(pyspark_diff.__file__).parent
    places: dict[tuple[str, str], int] = {}
    for path in root.rglob("*.py"):
        for word in SUSPECT.findall(path.read_text()):
            place = str(path.relative_to(root)), word
            places[place] = places.get(place, 0) + 1
    assert places == ALLOWED


def program(flow):
    words, _ = flow.input("words", "word string, n long")
    words.select("word").count().keep("counts")
    late, _ = flow.input("late", "word string")
    words.join(late, "word").keep("joined")


def open_store(spark, root):
    return Dataflow.open(str(root), program, spark=spark, runner="local", buckets=2)


@pytest.fixture(scope="module")
def whole(spark, tmp_path_factory):
    """A store with a file, small batches, and a table whose rows wait for their time."""
    root = tmp_path_factory.mktemp("whole") / "store"
    with thresholds.using(in_memory_rows_max=3), open_store(spark, root) as flow:
        flow.session("words").insert([(f"w{n}", n) for n in range(9)])
        flow.session("late").insert([("w1",)])
        flow.advance_to(1)
        flow.session("words").insert([("waits", 1)])
        flow.session("words").advance_to(9)
        flow.session("words").insert([("waits", 2)])
        flow.step()
    return root


@pytest.fixture
def store(whole, tmp_path):
    import shutil

    shutil.copytree(whole, tmp_path / "store")
    return tmp_path / "store"


def forge(store, change, files=None):
    """Append a commit whose state is `change` of the last plan and body."""
    commits = Commits(objects_at(str(store)))
    last = commits.open_for_writing()
    plan, body = last.state.split(b"\n")
    state = change(json.loads(plan), json.loads(body))
    text = state if isinstance(state, bytes) else b"\n".join(
        json.dumps(part).encode() for part in state)
    commits.append(text, [], {**last.files, **(files or {})}, last.uses)


def at(path, value):
    """Set one place in the body; None in the path means the first key or index."""

    def change(plan, body):
        there = body
        for part in path[:-1]:
            there = there[next(iter(there)) if part is None else part]
        last = path[-1]
        if last is None:
            last = 0 if isinstance(there, list) else next(iter(there))
        there[last] = value
        return plan, body

    return change


FOREIGN = {"type": "struct", "fields": [{
    "name": "x", "nullable": True, "metadata": {},
    "type": {"type": "udt", "class": "a", "pyClass": "os.system", "sqlType": "long"},
}]}
#: Unexpected values for many places.
ODD = [
    None, -1, 2**63, 10**400, 1e308, "", "../../etc/passwd", "/etc/passwd", [], {}, [[]], "a\0b",
    "x" * 100_000, True, float("inf"),
]
PLACES = [
    ("step",), ("buckets",), ("time_type",), ("frontiers", None), ("traces", None),
    ("traces", None, 3), ("traces", None, 3, 0), ("traces", None, 3, 0, 3),
    ("traces", None, 3, 0, 3, None), ("traces", None, 3, 0, 3, None, None), ("small",),
    ("small", 0), ("small", 0, 0), ("small", 0, 1), ("small", 0, 2), ("small", 0, 4),
    ("sources",), ("sources", 0), ("sources", 0, "schema"), ("sources", 0, "place"),
    ("sources", 0, "rows"), ("waiting",), ("waiting", None), ("waiting", None, 0),
    ("waiting", None, 0, 0), ("waiting", None, 0, 1), ("floors",), ("given",), ("numbers",),
    ("shown",), ("outbox",), ("kept",), ("kept", "counts"), ("kept", "counts", "schema"),
    ("kept", "counts", "trace"), ("kept", "counts", "stored"), ("kept", "counts", "columns"),
]
WHOLE = {
    "a type of users": at(("kept", "counts", "schema"), FOREIGN),
    "a type of users that waits": at(("sources", 0, "schema"), FOREIGN),
    "deep": lambda plan, body: b"null\n" + b"[" * 200_000 + b"]" * 200_000,
    "deep plan": lambda plan, body: b"[" * 200_000 + b"]" * 200_000 + b"\n{}",
    "no JSON": lambda plan, body: b"null\n{",
    "no plan": lambda plan, body: b"{}",
    "not UTF-8": lambda plan, body: b"null\n\xff",
    "buckets below zero": lambda plan, body: (plan, {
        **body, "traces": json.loads(json.dumps(body["traces"]).replace('"0":', '"-1":'))}),
    "an unknown form": lambda plan, body: (
        json.loads(json.dumps(plan).replace('"written"', '"eval"')), body),
    "a newer plan": lambda plan, body: ({**plan, "format": 99}, body),
    "many sinks": lambda plan, body: ({**plan, "sinks": plan["sinks"] * 100_000}, body),
}


def use(spark, store):
    """Read and change a store in all ways; ignore errors of the library."""
    with suppress(DiffError), StateReader(str(store), spark=spark) as reader:
        for name in reader:
            with suppress(DiffError):
                rows_of(reader[name])
    with suppress(DiffError), open_store(spark, store) as flow:
        for name in "counts", "joined":
            with suppress(DiffError):
                rows_of(flow[name])
        with suppress(DiffError):
            flow.verify()
        with suppress(DiffError):
            flow.vacuum(dry_run=False, older_than=-60)
        with suppress(DiffError):
            flow.session("late").insert([("w2",)])
            flow.advance_to(20)


def outside(store):
    return {
        path: path.read_bytes() for path in store.parent.rglob("*")
        if path.is_file() and store not in path.parents
    }


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_a_hostile_commit_ends_in_an_error_of_ours(spark, store, name):
    (store.parent / "precious.arrow").write_text("x")
    before = outside(store)
    forge(store, WHOLE[name])
    with pytest.raises(DiffError):
        with StateReader(str(store), spark=spark) as reader:
            for output in reader:
                rows_of(reader[output])
        open_store(spark, store).close()
    use(spark, store)
    assert outside(store) == before


def odd_ones():
    for number, place in enumerate(PLACES):
        few = ODD if place[-1] is not None else ODD[::2]
        for value in few[number % 3::3]:
            yield place, value


@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_odd_values_in_all_places(spark, store, tmp_path, part, caplog):
    import shutil

    caplog.set_level("CRITICAL", "pyspark_diff")
    wrong = []
    for number, (place, value) in list(enumerate(odd_ones()))[part::3]:
        here = tmp_path / f"{number}"
        shutil.copytree(store, here)
        try:
            forge(here, at(place, value))
            use(spark, here)
        except (KeyError, IndexError) as error:
            wrong.append((place, "is not there", error))
        except Exception as error:
            wrong.append((place, str(value)[:30], f"{type(error).__name__}: {error}"[:200]))
        shutil.rmtree(here)
    assert not wrong


def test_a_file_that_is_no_batch_is_refused(spark, store, tmp_path):
    """The name of a file certifies any bytes."""
    folder = store / "data/e0001-x-0123456789ab.durable"
    folder.mkdir()
    for number, content in enumerate([b"no Arrow", b"ARROW1\0\0", b""]):
        path = folder / f"{number:05d}"
        path.write_bytes(content)
        name = f"{path}-crc{storage.checksum_of(str(path)):08x}-{len(content)}.arrow"
        path.rename(name)
        with pytest.raises(DamagedStateError, match=os.path.basename(name)):
            storage.open_updates(name)
        with pytest.raises(DamagedStateError, match=os.path.basename(name)):
            storage.read_table(name)
    table = pa.table({"x": [1]})
    path, _ = storage.write_lasting(str(folder / "00009.arrow"), table)
    with pytest.raises(DamagedStateError):
        storage.open_updates(path)
    forge(store, lambda plan, body: (plan, body), {
        str(Path(path).relative_to(store)): FileInfo(os.path.getsize(path), 1, 1)})
    use(spark, store)


@pytest.mark.parametrize("what", ["file", "folder", "data"])
def test_no_link_is_followed(spark, store, tmp_path, what):
    path = sorted(store.glob("data/*/*.arrow"))[0]
    place = {"file": path, "folder": path.parent, "data": store / "data"}[what]
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    before = sorted(tmp_path.joinpath("elsewhere").rglob("*"))
    with pytest.raises(StorageError, match="link"):
        with open_store(spark, store) as flow:
            for name in "counts", "joined":
                rows_of(flow[name])
            flow.session("late").insert([("w2",)])
            flow.advance_to(20)
    use(spark, store)
    assert sorted(tmp_path.joinpath("elsewhere").rglob("*")) == before


def test_no_credentials_are_told(another, tmp_path, caplog, monkeypatch):
    secret = "very-secret-0123456789"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    another.conf.set("spark.hadoop.fs.s3a.secret.key", secret)
    caplog.set_level("DEBUG", "pyspark_diff")
    with open_store(another, tmp_path / "store") as flow:
        flow.session("words").insert([("a", 1)])
        flow.advance_to(1)
        flow.vacuum(dry_run=False)
    texts = [path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()]
    with pytest.raises(DiffError) as caught:
        open_store(another, f"s3://me:{secret}@bucket/folder?key={secret}")
    assert not any(secret.encode() in text for text in texts)
    assert secret not in caplog.text and secret not in str(caught.value)
