"""Plain tables next to collections: constants, against plain Spark on the tables of each time."""

from __future__ import annotations

from collections import Counter
from functools import reduce
from typing import Any

import connect_server
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from test_bad_input import Streamed, near

from pyspark_diff import Dataflow, DiffFrame, NonDeterministicError, SchemaError, graphs

EDGES = "src long, dst long"


def rows_of(frame: Any) -> Counter[Any]:
    return Counter(map(tuple, frame.collect()))


def of_kind(spark, kind: str, rows, schema: str) -> Any:
    frame = near(spark, rows, schema)
    if kind == "far":
        return frame.repartition(2)
    table = frame.toArrow()
    return {
        "arrow": lambda: table,
        "batch": lambda: table.combine_chunks().to_batches()[0],
        "stream": lambda: Streamed(table),
        "pandas": lambda: table.to_pandas(),
    }[kind]()


def all_rows(frames: dict[str, Any]) -> Counter[Any]:
    """Rows of several frames, in one job."""
    named = []
    for name, frame in frames.items():
        frame = frame.toDF(*[f"c{i}" for i in range(len(frame.columns))])
        row = F.to_json(F.struct("*"), {"ignoreNullFields": "false"})
        named.append(frame.select(F.lit(name), row))
    return rows_of(reduce(DataFrame.union, named).coalesce(1))


#: Methods that take another collection, each applied to two tables.
METHODS = {
    "left": lambda a, b: a.join(b, "dst", "left"),
    "antijoin": lambda a, b: a.join(b, ["src", "dst"], "left_anti"),
    "by alias": lambda a, b: a.alias("l").join(
        b.alias("r"), F.col("l.dst") == F.col("r.src")).select("l.src", "r.dst"),
    "cross": lambda a, b: a.crossJoin(F.broadcast(b)),
    "union": lambda a, b: a.union(b),
    "unionByName": lambda a, b: a.unionByName(b.select("dst", "src")),
    "subtract": lambda a, b: a.subtract(b),
    "exceptAll": lambda a, b: a.exceptAll(b),
    "intersectAll": lambda a, b: a.intersectAll(b),
}
PLAIN = [(1, 2), (2, 3), (2, 3), (None, 5)]
HISTORY = [[((1, 2), 1), ((2, 3), 1), ((7, 8), 2)], [((2, 3), 2), ((7, 8), -1), ((None, 5), 1)]]


def table_at(time: int) -> list[Any]:
    rows: Counter[Any] = Counter()
    for part in HISTORY[: time + 1]:
        for row, diff in part:
            rows[row] += diff
    return list(rows.elements())


def test_every_operator_takes_a_spark_frame_as_spark_does(spark):
    plain = near(spark, PLAIN, EDGES)
    with Dataflow(spark, runner="local", buckets=2) as flow:
        frame, session = flow.input("edges", EDGES)
        outputs = {name: method(frame, plain).keep(name) for name, method in METHODS.items()}
        for time, part in enumerate(HISTORY):
            session.update([(*row, time, diff) for row, diff in part])
            session.advance_to(time + 1)
            session.flush()
            flow.step()
            table = near(spark, table_at(time), EDGES)
            expected = {name: method(table, plain) for name, method in METHODS.items()}
            actual = all_rows({name: output.at(time) for name, output in outputs.items()})
            assert actual == all_rows(expected)


@pytest.mark.parametrize("kind", ["far", "arrow", "batch", "stream", "pandas"])
def test_every_kind_of_table(spark, kind):
    plain = of_kind(spark, kind, [(2, "b"), (3, "c")], "dst long, name string")
    others = of_kind(spark, kind, [(5, 6), (1, 2)], EDGES)
    with Dataflow(spark, runner="local", buckets=2) as flow:
        frame, session = flow.input("edges", EDGES)
        named = frame.join(plain, "dst").keep()
        rest = frame.concat(others).antijoin(plain, "dst").keep()
        known = frame.semijoin(others).keep()
        session.insert([(1, 2), (1, 3), (1, 9)])
        session.advance_to(1)
        session.flush()
        flow.step()
        assert rows_of(named.at()) == Counter([(2, 1, "b"), (3, 1, "c")])
        assert rows_of(rest.at()) == Counter([(1, 9), (5, 6)])
        assert rows_of(known.at()) == Counter([(1, 2)])
        session.remove([(1, 2)])
        session.close()
        flow.step()
        assert rows_of(named.at()) == Counter([(3, 1, "c")])


@pytest.mark.classic_only("counts with an accumulator of Spark's context")
def test_one_table_is_evaluated_and_arranged_once(spark):
    counted = spark.sparkContext.accumulator(0)

    def counting(batches):
        for batch in batches:
            counted.add(batch.num_rows)
            yield batch

    plain = spark.range(5).mapInArrow(counting, "id long").toDF("dst")
    with Dataflow(spark, runner="spark", buckets=2) as flow:
        frame, session = flow.input("edges", EDGES)
        outputs = [frame.join(plain, "dst").keep(), frame.semijoin(plain).keep(),
                   plain_again(frame, plain).keep()]
        for time in range(2):
            session.insert([(time, 3)])
            session.advance_to(time + 1)
            session.flush()
            flow.step()
        assert counted.value == 5
        assert rows_of(outputs[0].at()) == Counter([(3, 0), (3, 1)])
        assert rows_of(outputs[1].at()) == Counter([(0, 3), (1, 3)])
        names = [row.name for row in flow.arrangements().collect()]
        assert sum("(constant)" in name and "by_key" in name for name in names) <= 2, names


def plain_again(frame: DiffFrame, plain: Any) -> DiffFrame:
    return frame.select("dst").union(plain)


def test_constants_of_each_form(spark):
    with Dataflow(spark, runner="local", time_type="date", buckets=2) as flow:
        rows = flow.constant([(1, "a"), (1, "a"), {"n": 2}], "n int, s string").keep()
        none = flow.constant([], "n int").keep()
        frame = flow.constant(spark.range(3)).keep("numbers")
        narrow = flow.constant(pd.DataFrame({"n": [1]}), "n int").keep()
        flow.step()
        assert rows_of(rows.at()) == Counter({(1, "a"): 2, (2, None): 1})
        assert rows_of(none.at()) == Counter()
        assert rows_of(flow["numbers"].at()) == rows_of(frame.at()) == Counter([(0,), (1,), (2,)])
        assert narrow.schema.simpleString() == "struct<n:int>"
        late = frame.join(flow.constant([(1,), (7,)], "id int"), "id").keep()
        flow.step()
        assert rows_of(late.at()) == Counter([(1,)])


def test_beside_a_whole_history_it_is_there_from_its_first_time_on(spark):
    for far in (False, True):
        updates = spark.createDataFrame([(1, -7, 1), (2, 3, 1)], "n long, time int, diff int")
        numbers = DiffFrame(updates.repartition(2) if far else updates)
        joined = numbers.join(pa.table({"n": [1, 2], "s": ["a", "b"]}), "n")
        assert rows_of(joined.at(-7)) == Counter([(1, "a")])
        assert rows_of(joined.at(3)) == Counter([(1, "a"), (2, "b")])
        assert rows_of(numbers.union(spark.range(1)).at(-7)) == Counter([(1,), (0,)])


def test_graph_algorithms_take_plain_tables_beside_collections(spark):
    plain_edges = spark.createDataFrame([(1, 2), (2, 3), (5, 6)], EDGES)
    with Dataflow(spark, runner="local", buckets=2) as flow:
        edges, edges_in = flow.input("edges", EDGES)
        roots, roots_in = flow.input("roots", "node long")
        near = graphs.bfs(edges, spark.createDataFrame([(1,)], "node long")).keep()
        other = graphs.bfs(plain_edges, roots).keep()
        edges_in.insert([(1, 2), (2, 3)])
        roots_in.insert([(5,)])
        edges_in.advance_to(1)
        roots_in.advance_to(1)
        edges_in.flush()
        roots_in.flush()
        flow.step()
        assert rows_of(near.at()) == Counter([(1, 0), (2, 1), (3, 2)])
        assert rows_of(other.at()) == Counter([(5, 0), (6, 1)])
        edges_in.remove([(1, 2)])
        roots_in.insert([(2,)])
        edges_in.close()
        roots_in.close()
        flow.step()
        assert rows_of(near.at()) == Counter([(1, 0)])
        assert rows_of(other.at()) == Counter([(5, 0), (6, 1), (2, 0), (3, 1)])


def test_what_is_no_constant_is_refused(spark):
    history = spark.createDataFrame([(1, 2, 0, 1)], EDGES + ", time long, diff long")
    with Dataflow(spark, runner="local") as flow:
        frame, _ = flow.input("edges", EDGES)
        for call, error, *parts in [
            (lambda: frame.join(history, "src"), SchemaError, "time, diff", "update(df)", "rename"),
            (lambda: frame.union(history.drop("diff", "dst")), SchemaError, "time", "rename"),
            (lambda: frame.union(DiffFrame(history)), SchemaError, "without DiffFrame"),
            (lambda: frame.join(spark.range(3).select("id", F.rand(5).alias("src")), "src"),
             NonDeterministicError, "rand"),
            (lambda: frame.union([(1, 2)]), SchemaError, "list", "flow.constant(rows, schema)"),
            (lambda: frame.join(None, "src"), SchemaError, "NoneType"),
            (lambda: frame.union(spark.range(3)), SchemaError, "union", "id bigint"),
            (lambda: frame.crossJoin(spark.range(3)), SchemaError, "hint"),
            (lambda: flow.constant([(1,)]), SchemaError, "schema", "list"),
            (lambda: flow.constant([("x",)], "n int"), SchemaError, "'n'", "int"),
            (lambda: flow.constant([(1, 2)], "n int, N int"), SchemaError, "more than once"),
            (lambda: flow.constant(pa.table({"__n": [1]})), Exception, "__n"),
        ]:
            with pytest.raises(error) as caught:
                call()
            for text in parts:
                assert text in str(caught.value), caught.value
    whole = DiffFrame(history)
    with pytest.raises(SchemaError, match="DiffFrame\\(df\\) wraps them"):
        whole.union(history)


def test_a_plain_frame_takes_no_collection(spark):
    plain = spark.createDataFrame([(2, 5), (3, 6)], "y long, z long")
    with Dataflow(spark, runner="local") as flow:
        frame, frame_in = flow.input("frame", "x long")
        for call in (plain.join, plain.union, plain.crossJoin):
            # PySpark's client raises its own error first.
            with pytest.raises(PySparkException if connect_server.WANTED else AttributeError,
                               match=r"collection.join\(df, ...\)|same SparkSession"):
                call(frame)
        # The remedies of the message, and other ways.
        ways = [
            frame.join(plain, frame.x == plain.y).drop("y").keep(),
            frame.join(plain.toDF("x", "z"), "x").keep(),
            frame.join(plain.alias("d"), frame["x"] == F.col("d.y")).drop("y").keep(),
            frame.join(lifted := flow.constant(plain), frame["x"] == lifted["y"]).drop("y").keep(),
        ]
        frame_in.insert([(2,)])
        flow.advance_to(1)
        assert [way.at().collect() for way in ways] == [[(2, 5)]] * 4
