"""The queries of TPC-H over a stream with deletes equal DuckDB's answers after any prefix.

    the view after r rounds = the SQL of its docstring over the records that are there then
"""

from __future__ import annotations

import importlib
import random
from collections import Counter
from pathlib import Path

import pytest

from pyspark_diff import Dataflow
from pyspark_diff.operators.node import Input, Keyed

pytest.importorskip("duckdb")

SCALE = 0.01
#: The number of rounds of one time, if a time has several.
LOGICAL = 500


@pytest.fixture(scope="module")
def run():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "examples" / "tpch"))
        yield importlib.import_module("run")


@pytest.fixture(scope="module")
def stream_of(run):
    """The stream of the tables that some queries read."""
    whole: dict = {}

    def make(numbers):
        if not whole:
            columns = run.columns_of(list(run.QUERIES), run.generated(SCALE))
            whole["stream"] = run.Stream(SCALE, columns, deletes=True)
        return whole["stream"].only(run.columns_of(numbers, run.generated(SCALE)))

    return make


def agree(run, flow, numbers, stream, stop, logical):
    """Whether all answers are right at the last complete time."""
    rounds = run.complete(stream, stop, logical) * logical
    return [
        number for number in numbers
        if not run.agrees(number, stream, rounds, flow[f"q{number:02}"].at().collect())
    ] == []


def cuts(stream, seed, logical):
    """Ranges of rounds: steps end at three random rounds and at the end, some inside a time."""
    choice = random.Random(seed)
    inner = sorted(choice.sample(range(logical, stream.rounds), 3))
    inner[0] -= inner[0] % logical
    return zip([0, *inner], [*inner, stream.rounds])


@pytest.mark.parametrize("number", range(1, 23))
def test_query(spark, run, stream_of, number):
    stream = stream_of([number])
    logical = 1 if number % 2 else LOGICAL
    with Dataflow(spark, runner="local") as flow:
        run.program([number], run.schema_of(stream, spark))(flow)
        for first, stop in cuts(stream, number, logical):
            run.feed(flow, stream, first, stop, logical)
            assert agree(run, flow, [number], stream, stop, logical), f"after {stop} rounds"


def test_all_in_one_dataflow_that_is_reopened(spark, run, stream_of, tmp_path):
    """If several queries arrange a whole table by one key, the dataflow does it once."""
    numbers = list(run.QUERIES)
    stream = stream_of(numbers)
    write = run.program(numbers, run.schema_of(stream, spark))
    half = stream.rounds // 2
    for stop in (half - half % LOGICAL, stream.rounds):
        with Dataflow.open(str(tmp_path), write, spark=spark, runner="local") as flow:
            begun = min(flow.session(name).time() for name in stream.changes) * LOGICAL
            run.feed(flow, stream, begun, stop, LOGICAL)
            assert agree(run, flow, numbers, stream, stop, LOGICAL), f"after {stop} rounds"
            whole = Counter(
                (node.inputs[0].name, *node.key) for node in flow._state.graph.nodes
                if isinstance(node, Keyed) and node.plain and isinstance(node.inputs[0], Input)
                and node.inputs[0].name in stream.changes
            )
            assert set(whole.values()) == {1}
            # Queries 7, 9 and 12 share the first; queries 5, 7, 9 and others share the second.
            assert {("orders", "o_orderkey"), ("nation", "n_nationkey")} <= set(whole)


def test_answers_do_not_depend_on_steps(spark, run, stream_of):
    """The updates at each time do not depend on the number of rounds in a step."""
    stream = stream_of([3])
    updates = []
    for size in (stream.rounds, 7_001):
        with Dataflow(spark, runner="local") as flow:
            run.program([3], run.schema_of(stream, spark))(flow)
            shown: dict = {}

            def count(row, time, diff, shown=shown):
                shown[row, time] = shown.get((row, time), 0) + diff

            flow["q03"].inspect(count)
            for first, stop in run.steps(0, stream.rounds, size):
                run.feed(flow, stream, first, stop, 100)
            updates.append({key: diff for key, diff in shown.items() if diff})
    assert updates[0] == updates[1] and len(updates[0]) > 20


@pytest.mark.slow
def test_queries_with_the_spark_runner(spark, run, stream_of):
    numbers = [2, 13, 15, 16, 18, 21]
    stream = stream_of(numbers)
    with Dataflow(spark, runner="spark", buckets=2) as flow:
        run.program(numbers, run.schema_of(stream, spark))(flow)
        for first, stop in cuts(stream, 1, LOGICAL):
            run.feed(flow, stream, first, stop, LOGICAL)
            assert agree(run, flow, numbers, stream, stop, LOGICAL), f"after {stop} rounds"


def test_from_the_command_line(spark, run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = ["--physical", "20000", "--logical", "500", "--deletes", "--check", "1"]
    run.main(["6", *options, "--until", "40000", "--store", "state"])
    run.main(["6", *options, "--store", "state", "--table", "tpch"])
    assert "q06: 1 rows after 66,155 rounds" in capsys.readouterr().out
    assert spark.table("tpch_q06").count() == 1
    spark.sql("DROP TABLE tpch_q06")
    few = ["--logical", "500", "--physical", "500", "--until", "500"]
    run.main(["6", *few, "--check", "9"])  # more looks than times
    run.main(["6", *few, "--check", "--store", "state"])  # another stream, without deletes
    assert "after 500 rounds" in capsys.readouterr().out
    for wrong in (["23"], ["6", "--physical", "0"], ["6", "--scale", "0"],
                  ["6", *few, "--deletes", "--store", "state"],  # the store is at a later round
                  ["6", "--store", "state", "--until", "700", "--logical", "500"],
                  ["6", "--store", "state", "--physical", "5", "--logical", "2"]):
        with pytest.raises(SystemExit):
            run.main(wrong)
    # The command also compares a store that has read the whole stream.
    monkeypatch.setattr(run, "agrees", lambda *_: False)
    with pytest.raises(SystemExit, match="q06 differs"):
        run.main(["6", *options, "--store", "state"])
