"""Stores that are fed from pandas have the bytes of stores that are fed from plain Arrow tables.

pyarrow adds the version and the types of pandas to the schema of a frame's table. A store with them
would depend on the version that wrote it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from pyspark_diff import Dataflow, thresholds
from pyspark_diff.trace.manifest import DATA_FILE

SCHEMA = "k string, at timestamp_ntz, kind string, n long"


def frame() -> pd.DataFrame:
    """Columns of types that differ between versions of pandas: texts, moments, categories."""
    return pd.DataFrame({
        "k": ["a", "b", None],
        "at": pd.to_datetime(["2024-01-01", "2024-01-02", "2024-01-03"]),
        "kind": pd.Categorical(["x", "y", "x"]),
        "n": [1, 2, 3],
    }, index=pd.Index([7, 8, 9], name="i"))


def plain(data: pd.DataFrame) -> pa.Table:
    types = {"at": pa.timestamp("us"), "n": pa.int64(), "time": pa.int64(), "diff": pa.int64()}
    return pa.table({
        name: pa.array(
            [None if pd.isna(value) else value for value in data[name].astype(object)],
            types.get(name, pa.string()))
        for name in data.columns
    })


FORMS = {
    "frame": lambda data: data,
    "table": lambda data: pa.Table.from_pandas(data, preserve_index=False),
    "plain": plain,
}


def step(spark, root, form, time):
    """A step that writes batches, waiting updates, a constant and a join; returns the join."""
    make = FORMS[form]

    def program(flow):
        rows, _ = flow.input("rows", SCHEMA)
        rows.keep("rows")
        rows.count().keep("counts")
        rows.join(flow.constant(make(frame()[["k", "at"]])), ["k", "at"]).keep("joined")
        rows.groupBy("kind").reduce(largest, "k string", form="pandas").keep("largest")

    with Dataflow.open(root, program, spark=spark, runner="local", buckets=2) as flow:
        session = flow.session("rows")
        session.insert(make(frame()))
        session.update(make(frame().assign(time=9, diff=1)))
        flow.advance_to(time)
        return sorted(map(tuple, flow["joined"].at().collect()))


def largest(key: tuple[str], group: pd.DataFrame) -> pd.DataFrame:
    return group.sort_values("n").tail(1)[["k"]]


@pytest.mark.parametrize("rows_in_memory", [0, 1 << 20])
def test_a_store_does_not_depend_on_pandas(spark, tmp_path, rows_in_memory):
    checksums = {}
    with thresholds.using(in_memory_rows_max=rows_in_memory):
        for form in FORMS:
            root = tmp_path / form
            for time in (1, 2):
                answer = step(spark, root, form, time)
            assert [row[3] for row in answer] == [1, 1, 2, 2]
            files = [path for path in root.rglob("*") if path.is_file()]
            for path in files:
                assert not re.search(
                    rb"pandas_version|index_columns|numpy_type", path.read_bytes()), path
            checksums[form] = sorted(
                match[3] for path in files
                if (match := DATA_FILE.fullmatch(path.relative_to(root).as_posix())))
        # The program and its state are the same, so each store continues with another form.
        assert step(spark, tmp_path / "frame", "plain", 3) == sorted([*answer, *answer[::2]])
    assert checksums["frame"] == checksums["table"] == checksums["plain"]
    assert bool(checksums["plain"]) == (rows_in_memory == 0)


def test_the_marks_of_pandas_are_those_of_pyarrow():
    data = Path(__file__).name.encode() + FORMS["table"](frame()).schema.serialize().to_pybytes()
    assert all(mark in data for mark in (b"pandas_version", b"index_columns", b"numpy_type"))
