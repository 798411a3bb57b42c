"""The remedies of messages succeed as the messages word them.

    an error names a call, an option or a value  ==>  it is in a table here, and the remedy succeeds
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from plain import local_frame
from pyspark.sql import functions as F

import pyspark_diff
from pyspark_diff import Dataflow, DiffError, DiffFrame, Loop, errors
from pyspark_diff.graphs import pagerank
from pyspark_diff.sinks import foreach
from pyspark_diff.sources import snapshots
from pyspark_diff.trace.roots import objects_at

PACKAGE = Path(pyspark_diff.__file__).parent
CLASSES = {
    name for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, DiffError)
}
#: Parts of a message that are code: a call, an option or a value in quotation marks.
CODE = re.compile(r"\w+\([^)]*\)|\w+=\S|'\w+'")


class Workspace(NamedTuple):
    """Collections and frames for the calls that provoke messages."""

    spark: Any
    #: Two collections of (k int, v int), each with its whole history.
    n: DiffFrame
    m: DiffFrame
    #: A plain frame of (k int, w int).
    df: Any
    path: str

    def flow(self, **options: Any) -> Dataflow:
        return Dataflow(self.spark, runner="local", **options)

    def fed(self, *removed: tuple[int, int], **options: Any) -> tuple[Dataflow, DiffFrame]:
        """A dataflow with a kept collection of two records, and removals."""
        flow = self.flow()
        rows, session = flow.input("rows", "k int, v int", **options)
        rows.keep("rows")
        session.insert([(1, 10), (2, 20)])
        flow.advance_to(1)
        if removed:
            session.remove(list(removed))
            flow.advance_to(2)
        return flow, rows


@pytest.fixture(scope="module")
def frames(spark):
    plain = local_frame(spark, [(1, 10), (1, 20), (2, 30)], "k int, v int")
    more = plain.withColumns({"time": F.lit(0), "diff": F.lit(1)})
    return DiffFrame(more), DiffFrame(more), local_frame(spark, [(1, 10)], "k int, w int")


@pytest.fixture
def workspace(spark, frames, tmp_path):
    return Workspace(spark, *frames, str(tmp_path / "store"))


def _lists(key, values):
    return [(len(values),)]


def _late(g, is_kept):
    flow = g.flow()
    rows, session = flow.input("rows", "k int")
    if is_kept:
        rows.keep()
    rows.count().keep()
    session.insert([(1,)])
    flow.advance_to(1)
    return rows.distinct().keep()


def _compacted(g, **options):
    flow = g.flow(**options)
    rows, session = flow.input("rows", "k int")
    rows.keep()
    for time in range(1, 6):
        session.insert([(time,)])
        flow.advance_to(time)
    return rows.at(0).collect()


def _opened(g, program):
    Dataflow.open(g.path, program, spark=g.spark, runner="local").close()


def _stepping(flow):
    flow.input("rows", "k int")[1].insert([(1,)])
    flow.step()


def _written(flow):
    flow.input("rows", "k int")[0].keep()


def _unset(g, set_it):
    with Loop() as loop:
        x = loop.variable(g.n)
        if set_it:
            x.set(x.distinct())
        out = x.leave()
    return out.at(0).collect()


def _ended(g, inside):
    with Loop(2, "return") as loop:
        x = loop.variable(g.n)
        inner = x.distinct()
        x.set(x.leave() if inside else inner)
    return inner.leave().at(0).collect()


def _marked(frame, *dropped):
    marked = frame.withColumn("mark", F.parse_json(F.lit("1")))
    return marked.drop(*dropped).distinct().at(0).collect()


def _in_sessions(g):
    return F.session_window(F.timestamp_seconds("v"), "5 minutes")


def _in_windows(g):
    return F.window(F.timestamp_seconds("v"), "5 minutes")


def _kept_as(g, name):
    flow = g.flow()
    flow.constant([(1,)], "k int").keep(name)
    return flow


def _negative(g, **options):
    return g.n.concat(g.n.negate(), g.n.negate()).groupBy("k").reduce(
        lambda key, values: [(0,)], "c int", **options
    ).at(0).collect()


Step = Callable[[Workspace], object]

#: A part of a message, the call that provokes it, and the call that it advises.
REMEDIES: dict[str, tuple[Step, Step]] = {
    "Compute a number from the interval first, with extract(": (
        lambda g: g.n.agg(F.expr("percentile(make_dt_interval(v), 0.5)")),
        lambda g: g.n.agg(
            F.expr("percentile(extract(DAY FROM make_dt_interval(v)), 0.5)")).at(0).collect(),
    ),
    "is neither true nor false": (lambda g: bool(g.n), lambda g: not g.n.at(0).isEmpty()),
    "cannot be gone through": (lambda g: list(g.n), lambda g: g.n.at(0).collect()),
    "and not a number": (lambda g: len(g.n), lambda g: g.n.at(0).count()),
    "as a collection was joined with itself": (
        lambda g: g.n.alias("a").join(g.n.alias("b"), F.col("a.k") == F.col("b.v"))
        .select(g.n["k"]),
        lambda g: (a := g.n.alias("a"), b := g.n.alias("b")) and a.join(b, a["k"] == b["v"]),
    ),
    "as the frame came in more than once": (
        lambda g: g.n.join(g.df, g.n["k"] == g.df["k"]).join(g.df, g.n["v"] == g.df["k"]),
        lambda g: g.n.join(g.df, g.n["k"] == g.df["k"]).join(
            g.df.alias("d"), g.n["v"] == F.col("d.k")
        ),
    ),
    "comes from a plain Spark frame, which is no part": (
        lambda g: g.n.select(g.df["w"]),
        lambda g: g.n.join(g.df, g.n["k"] == g.df["w"]).select(g.df["w"]),
    ),
    "more than one column is called": (
        lambda g: g.n.join(g.m, g.n["k"] == g.m["k"]).select("k"),
        lambda g: (
            g.n.alias("l").join(g.m.alias("r"), F.col("l.k") == F.col("r.k")).select("l.k", "r.v"),
            g.n.join(g.m, g.n["k"] == g.m["k"]).toDF("a", "b", "c", "d"),
        ),
    ),
    "expected a DiffFrame or a plain table": (
        lambda g: g.n.union([(1, 2)]),
        lambda g: g.n.union(g.spark.createDataFrame([(1, 2)], "k int, v int")),
    ),
    "rows without names and types need a schema": (
        lambda g: g.flow().constant([(1, 2)]),
        lambda g: g.flow().constant([(1, 2)], "src long, dst long"),
    ),
    "Pass a table with named columns": (
        lambda g: g.flow().constant(pa.chunked_array([[1]])),
        lambda g: g.flow().constant(pa.table({"id": pa.chunked_array([[1]])})),
    ),
    "Pass os.path.expanduser(": (
        lambda g: objects_at("~/store"), lambda g: objects_at(os.path.expanduser("~/store")),
    ),
    "open takes the program as a function": (
        lambda g: _opened(g, 3), lambda g: _opened(g, _written)
    ),
    "was called while the program is being written": (
        lambda g: _opened(g, _stepping), lambda g: _opened(g, _written)
    ),
    "DiffFrame wraps a Spark DataFrame": (
        lambda g: DiffFrame([(1, 0, 1)]),
        lambda g: DiffFrame(g.spark.createDataFrame([(1, 0, 1)], "k int, time int, diff int")),
    ),
    "Name it: DiffFrame(df, ": (
        lambda g: DiffFrame(g.df.withColumn("diff", F.lit(1))),
        lambda g: DiffFrame(g.df.withColumn("diff", F.lit(1)), time="w"),
    ),
    "empty=True is for all records as one group": (
        lambda g: g.n.groupBy("k").agg(F.count("v"), empty=True),
        lambda g: g.n.agg(F.count("v"), empty=True),
    ),
    "agg takes columns such as F.sum('x'), at least one": (
        lambda g: g.n.groupBy("k").agg("sum(v)"),
        lambda g: (g.n.groupBy("k").agg(F.sum("v")), g.n.groupBy("k").agg({"v": "sum"})),
    ),
    "agg takes columns such as F.sum('x') after pivot": (
        lambda g: g.n.groupBy("k").pivot("v", [10]).agg("sum(v)"),
        lambda g: g.n.groupBy("k").pivot("v", [10]).agg(F.sum("v")),
    ),
    "has no values, so its columns would depend": (
        lambda g: g.n.groupBy("k").pivot("v"),
        lambda g: (
            g.n.groupBy("k").pivot("v", [10, 20]).sum("v"),
            g.n.groupBy("k", "v").agg(F.sum("v").alias("s")).at(0).groupBy("k").pivot("v").sum("s"),
        ),
    ),
    "pivot is for groupBy(...), once": (
        lambda g: g.n.rollup("k").pivot("v", [10]), lambda g: g.n.groupBy("k").pivot("v", [10])
    ),
    "cogroup takes the groups of another collection": (
        lambda g: g.n.groupBy("k").cogroup(g.m),
        lambda g: g.n.groupBy("k").cogroup(g.m.groupBy("k")),
    ),
    "is for groupBy(...), without rollup": (
        lambda g: g.n.rollup("k").reduce(_lists, "c int"),
        lambda g: g.n.groupBy("k").reduce(_lists, "c int"),
    ),
    "a cross join pairs every record with every other one": (
        lambda g: g.n.crossJoin(g.m),
        lambda g: (g.n.crossJoin(g.m.hint("broadcast")), g.n.join(g.m, "k")),
    ),
    "groups are by names, numbers and columns": (
        lambda g: g.n.groupBy(1.5), lambda g: g.n.groupBy(F.lit(1.5)).count()
    ),
    "needs the columns of the key": (
        lambda g: g.n.reduce(_lists, "c int"),
        lambda g: (g.n.reduce(_lists, "c int", key="k"),
                   g.n.arrange_by_key("k").reduce(_lists, "c int")),
    ),
    "on_limit must be 'error' or 'return'": (
        lambda g: g.n.iterate(lambda x: x.distinct(), on_limit="stop"),
        lambda g: g.n.iterate(lambda x: x.distinct(), on_limit="error"),
    ),
    "on_limit='return' needs max_iterations": (
        lambda g: g.n.iterate(lambda x: x.distinct(), on_limit="return"),
        lambda g: g.n.iterate(lambda x: x.distinct(), on_limit="return", max_iterations=2),
    ),
    "a dict for agg has names of functions": (
        lambda g: g.n.groupBy("k").agg({"v": sum}), lambda g: g.n.groupBy("k").agg({"v": "sum"})
    ),
    "was never set; define its next iteration": (
        lambda g: _unset(g, False), lambda g: _unset(g, True)
    ),
    "Use the collection itself inside of the loop": (
        lambda g: _ended(g, True), lambda g: _ended(g, False)
    ),
    "inspect shows the updates of each step": (
        lambda g: g.n.inspect(print), lambda g: g.n.to_df().collect()
    ),
    "a sink receives the changes of each step": (
        lambda g: g.n.sink("out", foreach(print)), lambda g: g.n.to_df().collect()
    ),
    "is not kept, so there is nothing to be read": (
        lambda g: g.fed()[1].count().at(), lambda g: g.flow().input("a", "k int")[0].keep().to_df()
    ),
    "no collection is kept under the name": (
        lambda g: g.fed()[0]["counts"], lambda g: g.fed()[0]["rows"]
    ),
    "was compacted away: the collection can be read from": (
        lambda g: _compacted(g), lambda g: _compacted(g, keep_history=True)
    ),
    "these records have a negative multiplicity": (
        lambda g: g.fed((9, 9))[1].at(),
        lambda g: _mended(g),
    ),
    "pass allow_negative=True if the function supports it": (
        _negative, lambda g: _negative(g, allow_negative=True)
    ),
    "this cannot be added after the first step": (
        lambda g: _late(g, is_kept=False), lambda g: _late(g, is_kept=True)
    ),
    "no input of this dataflow has a source": (
        lambda g: g.flow().catch_up(), lambda g: _sourced(g).catch_up()
    ),
    "is filled from a Source, such as": (
        lambda g: g.flow().source("a", [(1,)]), lambda g: (_sourced(g), g.fed())
    ),
    "is written to by a Sink, such as": (
        lambda g: g.flow().input("a", "k int")[0].sink("out", print),
        lambda g: g.flow().input("a", "k int")[0].sink("out", foreach(print)),
    ),
    "is of a dataflow that is kept in a store": (
        lambda g: g.flow().step(token="a"), lambda g: _opened(g, _written)
    ),
    "name of the time or diff column": (
        lambda g: g.flow().input("a", "time int"),
        lambda g: g.flow(time="at", diff="by").input("a", "time int, diff int"),
    ),
    "a time type is a text such as 'long'": (
        lambda g: g.flow(time_type=3),
        lambda g: (g.flow(time_type="long"), g.flow(time_type="date")),
    ),
    "turn it into columns that can be compared": (
        lambda g: _marked(g.n), lambda g: _marked(g.n, "mark")
    ),
    "Give each field a name of its own": (
        lambda g: g.n.select(F.struct(F.col("v"), F.col("v")).alias("x")),
        lambda g: g.n.select(F.struct(F.col("v").alias("a"), F.col("v").alias("b")).alias("x"))
    ),
    "select session_window.start or .end": (
        lambda g: g.n.select(_in_sessions(g)),
        lambda g: g.n.groupBy(_in_sessions(g)).count().select("session_window.start")
    ),
    "Make the window a column first": (
        lambda g: g.n.where(_in_windows(g)["start"] > "1960-01-01"),
        lambda g: g.n.withColumn("w", _in_windows(g)).where("w.start > '1960-01-01'").at(0).count()
    ),
    "Write the value as a literal": (
        lambda g: g.n.where("v IN (SELECT 1)"), lambda g: g.n.where(F.col("v") == F.lit(1))
    ),
    "a text goes to flow.sql(...)": (
        lambda g: g.flow().query("SELECT 1 AS x"), lambda g: g.flow().sql("SELECT 1 AS x")
    ),
    "Keep the collection first": (
        lambda g: g.flow().table("x"), lambda g: _kept_as(g, "x").table("x")
    ),
    "leaves the range of": (
        lambda g: _computed(g, F.col("v") + 2147483647),
        lambda g: _computed(g, F.col("v").cast("long") + 2147483647),
    ),
    "Write drop(*names) for a list of names": (
        lambda g: g.n.drop(["k"]), lambda g: g.n.drop(*["k"])
    ),
    "a Spark session is needed": (
        lambda g: Dataflow("local"), lambda g: Dataflow(g.spark).close()
    ),
    "and a join by names keeps only": (
        lambda g: g.n.alias("l").join(g.df.alias("r"), "k").select("r.*"),
        lambda g: g.n.alias("l").join(g.df.alias("r"), "k").select("k", "r.w"),
    ),
    "personal=... needs reset_probability": (
        lambda g: pagerank(g.n.toDF("src", "dst"), personal=g.n.select(F.col("k").alias("node"))),
        lambda g: pagerank(
            g.n.toDF("src", "dst"), personal=g.n.select(F.col("k").alias("node")),
            reset_probability=0.15, rounds=2,
        ),
    ),
    "for sums of other types take aggregates": (
        lambda g: g.n.withColumn("x", F.lit(0.5)).weighted("x"),
        lambda g: g.n.withColumn("x", F.lit(0.5)).groupBy("k").agg(F.sum("x")),
    ),
}


def _computed(g, expression):
    flow = g.flow()
    rows, session = flow.input("rows", "k int, v int")
    rows.select(expression.alias("x")).keep()
    session.insert([(1, 10), (2, 20)])
    flow.advance_to(1)


def _mended(g):
    assert g.fed((9, 9))[1].at(allow_negative=True).count() == 2
    flow, rows = g.fed((9, 9))
    with pytest.raises(
        errors.NegativeMultiplicityError,
        match=r"came by input 'rows'; .* Insert .*flow\.session\('rows'\)\.insert\(rows\)",
    ):
        rows.at()
    flow.session("rows").insert([(9, 9)])
    flow.advance_to(3)
    assert rows.at().count() == 2
    with pytest.raises(errors.NegativeMultiplicityError, match="input 'rows' at time 1.*diff -1"):
        g.fed((9, 9), check=True)


def _sourced(g):
    flow = g.flow()
    flow.source("df", snapshots(lambda: g.df, key="k"), ).keep()
    return flow


#: Parts of messages with remedies that need more than a small program, and the area or the reason.
ELSEWHERE = {
    "are a DiffFrame or a Spark frame, not a {}. Make one with": "test_graph_diff",
    "the columns are {}. Rename one: withColumnRenamed(": "test_graph_diff",
    "List them: edge_types=": "test_graph_diff",
    "Leave algorithm= out, or pass": "test_graph_diff",
    "Pass GraphDiff(vertices, edges)": "test_graph_diff",
    "of the vertices is {}. Cast one of them": "test_graph_diff",
    "A step with both settings would mix": "test_settings",
    "an expression has ${name} in its text": "test_settings",
    "has been registered under that name since": "test_settings",
    "a pandas function takes a column that may be null": "test_pandas_functions",
    "has no Python object": "test_pandas_functions",
    "no longer has the rows of the view. Call rebuild()": "test_views",
    "no refresh of this store wrote them": "test_views",
    "policy='strict' refuses to read whole sources again": "test_views",
    "can be read only as a whole": "test_views",
    "this view was closed; make it again": "test_views",
    "pass 'scd2', or leave it out": "test_views",
    "names more than one column: {} (names are compared without case)": "test_handles: aliases",
    "divides by zero in some row": "test_computed",
    "a join condition is a column such as": "join refuses such a list before",
    "cannot express that: read the stream as": "test_data_source",
    "the times of this store are structs": "test_data_source",
    ".option('allowNegative', True)": "test_data_source",
    "is not retained any more": "test_data_source",
    "times from {} to {}. Use a longer interval": "test_sliding",
    "Inputs with struct times advance together": "test_product_times",
    "that never changes: leave buckets": "test_durable",
    "open it with on_change=": "test_durable",
    "Nothing has been done: on_change=": "test_durable",
    "is at several times, {}, and records enter at one": "test_product_times",
    "keeps late rows: flow.source": "test_catch_up",
    "the token {} is that of commit": "test_durable",
    "more was removed than was inserted. Correct the input, or pass": "test_product_times",
    "the frontier has several times": "test_product_times",
    "at times that are beyond {}. Hold earlier ones": "test_product_times",
    "is refused by strict=True": "test_explain",
    "delay, and expire_after without a column": "test_sliding",
    "transform, mapInPandas and mapInArrow may look": "test_growth",
    "its collections repeat": "test_iterate",
    "the frequency of percentile": "test_quantiles",
    "is not a plain call of an aggregate function": "test_connect",
    "each opening of this program would add table": "test_tables",
    "number must be 'row_number'": "test_windows",
    "a variable is made inside of its loop": "test_iterate",
    "enter_at is for loops": "test_iterate",
    "only a variable of a loop can be set": "test_iterate",
    "here they are structs. Filter the updates": "test_product_times",
    "read its final state, leave()": "test_iterate",
    "keep the collection that leaves it: leave()": "test_iterate",
    "must be a DiffFrame{}, not a": "test_graphs",
    "with reset_probability=... the number of rounds": "test_graphs",
    "there is no message: give to_dst": "test_graphs",
    "above 0 with ignore_direct_links": "test_graph_programs",
    "Pregel: a part is missing": "test_graph_programs",
    "the property graph has no group": "test_graph_programs",
    "neither is inside of the other": "test_iterate",
    "with form={} it returns a table": "test_reduce",
    "the step was cancelled": "test_background",
    "was not written by this sink. Name another table": "test_delta",
    "was written by others since this sink wrote to it": "test_delta_changes",
    "has an identity column that accepts no values": "test_delta_changes",
    "no longer has the last commit of this sink": "test_delta_changes",
    "ORC has no names with a backtick": "test_source_names",
    "which is the name of a time or diff here": "test_source_names",
    "which this sink has not written": "test_sinks",
    "does not record its changes, and this session": "test_delta",
    "is the op of a row, and no part of the record": "test_sources",
    "to order changes by; its columns are {}": "test_sources",
    "is an update, and without a key": "test_sources",
    "says that the table was truncated": "test_sources",
    "has no image of the row from before": "test_sources",
    "has no batch yet, so its columns are not known": "test_inbox",
    "updates without times are read on by an order": "test_sources",
    "have the same order, so none is the last one": "test_sources",
    "Name a column that grows with each": "test_sources",
    "this is no batch of a streaming query": "test_sources",
    "filled from these batches": "test_sources",
    "another query, or its checkpoint was deleted": "test_sources",
    "reads the whole present table, and compares it": "test_delta",
    "have changed: {}. Nothing was read": "test_source_columns",
    "was altered while it was read": "test_iceberg",
    "has a dot in a part of its name": "iceberg_change_cases",
    "has columns with names that Iceberg reserves": "iceberg_property_cases",
    "Drop the column of this type": "iceberg_property_cases",
    "cannot be compared with those that were read": "iceberg_change_cases",
    "is the diff or the time of an update": "test_source_names",
    "which Spark has no type for": "test_constants",
    "over Connect. Name the columns": "a client of Connect",
    "is no name of a table": "test_tables",
    "the table {} exists already": "test_tables",
    "which is the name of the column of buckets": "test_tables",
    "of a table that the catalog does not know": "test_tables",
    "the parameter :{} has no value": "test_text_reader",
    "is no name of an object": "names that the library makes itself",
    "the clock of a query has one column": "test_query_readers",
    "so a list of args has no order": "test_text_reader",
    "the clock of a query is a collection": "test_query_readers",
}


def _text(node: ast.AST) -> str:
    """The text of a message, with ``{}`` for its values."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else "{}"
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return _text(node.body) if isinstance(node, ast.IfExp) else "{}"


def messages() -> list[tuple[str, str]]:
    """The file and the text of each error of the package."""
    return [
        (str(file.relative_to(PACKAGE)), _text(node.args[0]))
        for file in sorted(PACKAGE.rglob("*.py")) for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        and node.func.id in CLASSES and node.args
    ]


def test_each_message_that_names_a_remedy_is_in_a_table():
    known, pairs = {*REMEDIES, *ELSEWHERE}, messages()
    assert len(pairs) > 400
    for file, text in pairs:
        if CODE.search(text):
            assert any(part in text for part in known), f"{file}: {text}"
    texts = [text for _, text in pairs]
    gone = [part for part in known if not any(part in text for text in texts)]
    assert not gone, "no error says that any more"


@pytest.mark.parametrize("part", REMEDIES)
def test_a_remedy_works_as_the_message_words_it(workspace, part):
    provoke, remedy = REMEDIES[part]
    with pytest.raises(DiffError) as error:
        provoke(workspace)
    assert part in str(error.value)
    remedy(workspace)


def test_reading_too_early_names_the_call_that_helps(workspace):
    with workspace.flow() as flow:
        orders, session = flow.input("orders", "id int, customer int")
        orders.keep("orders")
        session.insert([(1, 1)])
        for _ in range(2):
            with pytest.raises(errors.NotReadableError, match=r"flow\.advance_to\(time\)"):
                with pytest.warns(pyspark_diff.StaleWarning) as warned:
                    orders.at()
            assert warned[0].filename == __file__
            flow.step()
        flow.advance_to(1)
        assert orders.at().collect() == [(1, 1)]


@pytest.mark.parametrize("rows", [[], [(2,)], [(None,)], [(2,), (None,)], [(7,)]])
def test_not_in_is_as_the_notes_of_join_say(spark, rows):
    ours = local_frame(spark, [(1,), (2,), (2,), (None,)], "x int")
    theirs = local_frame(spark, rows, "y int")
    ours.createOrReplaceTempView("ours")
    theirs.createOrReplaceTempView("theirs")
    asked = spark.sql("SELECT * FROM ours WHERE x NOT IN (SELECT y FROM theirs)")
    expected = sorted(map(str, asked.collect()))
    a, b = (
        DiffFrame(frame.withColumns({"time": F.lit(0), "diff": F.lit(1)}))
        for frame in (ours, theirs)
    )
    notes = str(DiffFrame.join.__doc__).partition("It is ::")[2].partition("A condition finds")[0]
    recipe = "\n".join(line.strip() for line in notes.splitlines() if " = " in line)
    names: dict[str, Any] = {"a": a, "b": b, "F": F}
    exec(recipe, names)
    assert sorted(map(str, names["not_in"].at(0).collect())) == expected
    condition = (a["x"] == b["y"]) | (a["x"] == b["y"]).isNull()
    for how in ("left_anti", "left_semi", "left"):
        with pytest.raises(
            errors.SchemaError, match=r"nothing to find matches by\. Take pairs ="
        ) as caught:
            a.join(b, condition, how)
        assert ("for NOT IN see the notes of join" in str(caught.value)) == (how == "left_anti")
    pairs = a.crossJoin(b.hint("broadcast")).where(condition)
    pairs = pairs.select(*[a[n] for n in a.columns]).distinct()
    rest = a.join(pairs, [a[n].eqNullSafe(pairs[n]) for n in a.columns], "left_anti")
    assert sorted(map(str, rest.at(0).collect())) == expected
