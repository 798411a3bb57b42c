"""The lowering of immutable nodes to the program that runs, in one pass."""

from __future__ import annotations

import dataclasses
import gc
import weakref

import pytest
from pyspark.sql import types as T

from pyspark_diff import SchemaError, UnsupportedTypeError
from pyspark_diff.engine.lowering import lowered
from pyspark_diff.engine.program import Program, written
from pyspark_diff.operators.arrange import Output, arrange_by_key, arrange_by_self
from pyspark_diff.operators.inspect import Inspect
from pyspark_diff.operators.join import join
from pyspark_diff.operators.linear import Expression, pick
from pyspark_diff.operators.loop import Leave, Variable
from pyspark_diff.operators.node import Concat, Input, Linear, LoopScope, Node
from pyspark_diff.operators.reduce import reduce
from pyspark_diff.operators.threshold import threshold
from pyspark_diff.spark.schema import Schema, TimeType

LONG = TimeType(T.LongType())


def schema_of(*names: str) -> Schema:
    return Schema(T.StructType([T.StructField(name, T.LongType()) for name in names]))


def renamed(node: Node, *names: str) -> Node:
    return pick("select", node, list(zip(node.schema.names, names)))


def edges_of() -> Input:
    return Input(schema_of("src", "dst"), LONG, "edges")


def most(source: Node) -> Node:
    """The greatest value of each key."""
    return reduce(
        arrange_by_key(source, source.schema.names[:1]), lambda key, values: [max(values)[0]],
        schema_of("most"), form="rows", diff="diff", allow_negative=False,
    )


def reached() -> Program:
    """The nodes that are reachable from node 0, as a program with a loop."""
    edges = edges_of()
    start = pick("where", edges, [("src", "node")])
    loop = LoopScope("reach", None, 9, stops=False)
    x = Variable(loop, start)
    beyond = join(
        arrange_by_key(renamed(x, "src"), ["src"]), arrange_by_key(edges, ["src"]),
        [(1, "dst", "node")],
    )
    reachable = threshold(Concat([beyond, start]), None)
    x.define(reachable)
    return written([Output(Leave(reachable)), Inspect(edges, print, False, ("src", "dst"))])


WRITTEN = """\
0 input() edges: src, dst
1 where(0): node
  2 variable(1): node; goes on as 8
  3 select(2): src
  4 arrange_by_key(3): src; kept by (src)
5 arrange_by_key(0): src, dst; kept by (src)
  6 join(4, 5): node
  7 concat(6, 1): node
  8 distinct(7): node; kept by (node)
9 leave(8): node
10 output(9): node
11 inspect(0): src, dst
run: 10, 11"""

LOWERED = """\
0 input() edges: src, dst
1 where(0): node
  2 enter(1): node
  3 variable(2): node; goes on as 10
  4 select(3): src
  5 arrange_by_key(4): src; kept by (src)
6 arrange_by_key(0): src, dst; kept by (src)
  7 join(5, 6): node
  8 concat(7, 2): node
  9 arrange_by_key(8): node; kept by (node)
  10 distinct(9): node; kept by (node)
11 leave(10): node
12 arrange_by_key(11): node; kept by (node)
13 inspect(0): src, dst
run: 12, 13"""


def test_a_loop_as_it_is_written_and_as_it_runs():
    program = reached()
    assert str(program) == WRITTEN
    assert str(lowered(program).program) == LOWERED


def test_nothing_changes_what_is_written():
    program = reached()
    before = [dict(vars(node)) for node in program.nodes]
    first, second = lowered(program), lowered(program)
    assert str(first.program) == str(second.program) == str(lowered(reached()).program)
    assert [dict(vars(node)) for node in program.nodes] == before
    assert str(program) == str(reached())
    for node in (*program.nodes, *first.program.nodes):
        for name in ("kind", "inputs", "loop", "novelty"):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(node, name, None)


def test_a_variable_is_defined_once():
    program = reached()
    (variable,) = program.results
    with pytest.raises(SchemaError, match="set once"):
        variable.define(variable)
    undefined = Variable(LoopScope("reach", None, 9, stops=False), edges_of())
    with pytest.raises(ValueError, match="never set"):
        lowered(written([undefined]))


def test_each_node_has_one_that_gives_the_same():
    program = reached()
    lowering = lowered(program)
    assert set(lowering.nodes) == set(program.nodes)
    assert set(lowering.nodes.values()) <= set(lowering.program.nodes)
    for node, result in lowering.nodes.items():
        assert (result.schema, result.loop) == (node.schema, node.loop)
    # Inputs stay unchanged.
    assert all(lowering.nodes[node] is node for node in program.nodes if isinstance(node, Input))


def kinds(*sinks: Node) -> list[str]:
    return [node.kind for node in lowered(written(sinks)).program.nodes]


def test_what_is_asked_for_twice_is_one():
    edges = edges_of()
    sinks = [arrange_by_key(renamed(edges, "a", "b"), ["a"]) for _ in range(2)]
    assert kinds(*sinks) == ["input", "select", "arrange_by_key"]
    assert len(kinds(*sinks, arrange_by_key(renamed(edges, "a", "b"), ["b"]))) == 4
    assert len(kinds(*sinks, arrange_by_key(renamed(edges, "a", "c"), ["a"]))) == 5


def test_what_was_asked_for_is_not_remembered():
    edges = edges_of()
    asked = weakref.ref(arrange_by_key(renamed(edges, "a", "b"), ["a"]))
    gc.collect()
    assert asked() is None


@pytest.mark.parametrize("asked_first", [False, True])
def test_operators_on_records_find_them_where_they_are_kept(asked_first):
    """The order of the two operators does not matter."""
    edges = edges_of()
    sinks = [arrange_by_self(edges), threshold(edges, None)]
    assert kinds(threshold(edges, None)) == ["input", "distinct"]
    program = lowered(written(sinks if asked_first else sinks[::-1])).program
    assert [node.kind for node in program.nodes] == ["input", "arrange_by_key", "distinct"]
    assert program.nodes[2].inputs == (program.nodes[1],)


def test_outputs_are_arranged_where_somebody_wants_them_by_their_key():
    edges = edges_of()
    greatest = most(edges)
    names = pick("select", edges, [("src", "src")])
    joined = join(arrange_by_key(names, ["src"]), arrange_by_key(greatest, ["src"]),
                  [(1, "most", "most")])
    by_most = arrange_by_key(greatest, ["most"])
    assert kinds(joined).count("arrange_by_key") == 2
    assert kinds(joined, by_most).count("arrange_by_key") == 3
    assert kinds(Output(threshold(edges, None))) == ["input", "distinct", "arrange_by_key"]
    once = lowered(written([Output(greatest)]))
    assert once.nodes[once.program.sinks[0]].kind == "reduce"


def test_what_cannot_be_arranged_is_refused_where_it_is_written():
    field = T.StructField("m", T.YearMonthIntervalType())
    source = Input(Schema(T.StructType([field])), LONG, "intervals")
    with pytest.raises(UnsupportedTypeError, match="'m'.*interval"):
        arrange_by_self(source)


@pytest.mark.parametrize("portable", [False, True])
def test_what_only_spark_evaluates_is_evaluated_once(portable):
    edges = edges_of()
    names = [("src", "src"), ("dst", "dst")]
    if portable:
        selected = pick("select", edges, names)
    else:
        struct = edges.schema.struct
        selected = Linear("select", edges, edges.schema, Expression(lambda frame: frame, struct))
    distinct = threshold(selected, None)
    shown = Inspect(selected, print, False, selected.schema.names)
    assert "shared" not in kinds(distinct)
    assert kinds(distinct, shown).count("shared") == (not portable)
    for sink in (distinct, shown):
        (source,) = lowered(written([distinct, shown])).nodes[sink].inputs
        assert (source.kind == "shared") is not portable


def test_a_stream_enters_the_outermost_loop_once():
    edges = edges_of()
    outer = LoopScope("outer", None, 9, stops=False)
    x = Variable(outer, edges)
    inner = LoopScope("inner", outer, 9, stops=False)
    y = Variable(inner, x)
    z = Concat([y, edges])
    y.define(z)
    x.define(edges)
    program = lowered(written([Leave(Leave(z)), Leave(x)])).program
    entered = [node for node in program.nodes if node.kind == "enter"]
    assert [(node.loop, node.inputs) for node in entered] == [(outer, (edges,))]
    by_kind = {(node.kind, node.depth): node for node in program.nodes}
    assert program.results[by_kind["variable", 1]] is entered[0]
    assert by_kind["variable", 2].inputs == (by_kind["variable", 1],)
    assert by_kind["concat", 2].inputs[1] is entered[0]
