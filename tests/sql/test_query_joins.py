"""Joins come in an order of small results, conditions at their places, and a repeated part once."""

from __future__ import annotations

from collections import Counter

import pytest

from pyspark_diff import Dataflow
from pyspark_diff.query.form import (
    OUTER,
    Aggregate,
    Distinct,
    Join,
    Named,
    Recursion,
    RecursionReference,
    Relation,
    Scan,
    Selection,
    SqlExpression,
    Subquery,
    column_of,
)
from pyspark_diff.query.joins import placed
from pyspark_diff.query.shapes import shape_of

EDGES = "src int, dst int"
A, B, C, D = (Scan(name, (("k", f"{name}_1"), ("v", f"{name}_2"))) for name in "abcd")


def condition(text: str, *columns: str, outers: tuple[str, ...] = ()) -> SqlExpression:
    return SqlExpression(text, columns=frozenset(columns), outers=frozenset(outers))


def inner(*sides: Relation) -> Relation:
    relation, *rest = sides
    for side in rest:
        relation = Join(relation, side, "inner", ())
    return relation


def order(relation: Relation) -> list[str]:
    """The tables of a tree of joins, in their order."""
    if isinstance(relation, Scan):
        return [relation.table]
    if isinstance(relation, Selection):
        return order(relation.child)
    return [*order(relation.left), *order(relation.right)]


def exists(column: str, kind: str = "exists") -> SqlExpression:
    """A condition with a subquery: all rows of D for IN, else the rows that equal a column."""
    outer = condition(f"d_1 = {column}{OUTER}", "d_1", outers=(column,))
    relation = D if kind == "in" else Selection(D, (outer,))
    values = (column_of(column),) if kind == "in" else ()
    return SqlExpression("s_1", subqueries=(Subquery("s_1", kind, relation, values),))


AB, BC, AC = (condition(f"{x}_1 = {y}_1", f"{x}_1", f"{y}_1") for x, y in ("ab", "bc", "ac"))


def test_a_side_with_a_condition_comes_before_the_others():
    few = condition("c_2 = 3", "c_2")
    relation = placed(Selection(inner(A, B, C), (AB, AC, few)))
    assert order(relation) == ["a", "c", "b"]
    assert relation.left.right == Selection(C, (few,)) and relation.conditions == (AB,)


def test_an_equality_reduces_more_than_a_comparison():
    many, few = condition("b_2 > 3", "b_2"), condition("c_2 = 3", "c_2")
    assert order(placed(Selection(inner(A, B, C), (AB, AC, many, few)))) == ["a", "c", "b"]
    assert order(placed(Selection(inner(A, B, C), (AB, AC, many)))) == ["a", "b", "c"]


def test_each_join_has_a_condition_if_there_is_one():
    assert order(placed(Selection(inner(A, C, B), (AB, BC)))) == ["a", "b", "c"]


def test_a_negated_equality_does_not_reduce():
    most, few = condition("(NOT (b_2 = 3))", "b_2"), condition("c_2 = 3", "c_2")
    assert order(placed(Selection(inner(A, B, C), (AB, AC, most, few)))) == ["a", "c", "b"]


def test_a_subquery_waits_for_joins_that_reduce():
    few, some = condition("b_2 = 3", "b_2"), exists("a_1")
    relation = placed(Selection(inner(A, B), (AB, few, some)))
    assert relation.conditions == (some,) and order(relation) == ["a", "b"]
    # Spark has already moved the condition to its table.
    assert placed(Selection(inner(Selection(A, (some,)), B), (AB, few))) == relation


def test_a_subquery_does_not_wait_for_joins_that_multiply():
    some = exists("a_1")
    relation = placed(Selection(inner(A, B), (AB, some)))
    assert isinstance(relation, Join) and relation.left == Selection(A, (some,))


def test_an_in_of_all_rows_goes_to_its_table():
    few, some = condition("b_2 = 3", "b_2"), exists("a_1", "in")
    relation = placed(Selection(inner(A, B), (AB, few, some)))
    assert isinstance(relation, Join) and relation.left == Selection(A, (some,))


def test_conditions_of_the_left_side_pass_an_outer_join():
    left, right = condition("a_2 = 3", "a_2"), condition("b_2 = 3", "b_2")
    relation = placed(Selection(Join(A, B, "left", (AB,)), (left, right)))
    assert relation == Selection(Join(Selection(A, (left,)), B, "left", (AB,)), (right,))


def test_conditions_of_a_join_come_before_those_above_it():
    guard, risky = condition("b_2 + 1 <> 1", "b_2"), condition("1 / b_2 > 1", "b_2")
    relation = placed(Selection(Join(A, B, "inner", (AB, guard)), (risky,)))
    assert relation.right == Selection(B, (guard, risky))
    assert placed(Selection(inner(A, Selection(B, (guard,))), (risky, AB))) == relation


def test_a_relation_that_is_read_twice_stays_one():
    both = Selection(inner(A, B), (AB,))
    twice = tuple(Named(f"{x}_3", column_of(f"{x}_1")) for x in "ab")
    relation = placed(Join(both, Distinct(both), "left", twice and ()))
    assert relation.left is relation.right.child


@pytest.mark.parametrize("text", [
    "SELECT src, dst FROM edges WHERE dst <> 0 AND src / dst > 1",
    "SELECT src, dst FROM (SELECT * FROM edges WHERE dst <> 0) WHERE src / dst > 1",
    "SELECT e.src, e.dst FROM edges e JOIN nodes n ON e.src = n.node AND e.dst <> 0 AND "
    "n.node / e.dst > 1",
    "SELECT src, dst FROM edges, nodes WHERE src = node AND src <> dst + 4 AND name IS NULL AND "
    "1 / (src - dst - 4) < 1",
    "SELECT src FROM edges WHERE dst = (SELECT avg(dst) FROM edges)",
    "SELECT src, dst FROM edges LEFT JOIN nodes ON src = node WHERE dst > 0 AND src % dst = 0",
    "SELECT src, dst FROM edges GROUP BY src, dst HAVING dst > 0 AND count(*) / dst >= 0.5",
])
@pytest.mark.parametrize("reader", ["plan", "text"])
def test_a_condition_guards_those_after_it(spark, monkeypatch, text, reader):
    """Spark computes no quotient for a row that an earlier condition leaves out."""
    if reader == "text":
        monkeypatch.setattr(Dataflow, "_is_classic", lambda self: False)
    rows = [(4, 0), (4, 2), (1, 1), (9, 5)]
    with Dataflow(spark) as flow:
        edges = flow.input("edges", EDGES)[1]
        nodes = flow.input("nodes", "node int, name string")[1]
        flow.sql(text).keep("answer")
        edges.insert(rows)
        nodes.insert([(4, None), (9, None)])
        flow.advance_to(1)
        spark.createDataFrame(rows, EDGES).createOrReplaceTempView("edges")
        spark.createDataFrame([(4, None), (9, None)], "node int, name string"
                              ).createOrReplaceTempView("nodes")
        assert sorted(flow["answer"].at().collect()) == sorted(spark.sql(text).collect())


@pytest.mark.parametrize("text, other, same", [
    ("x_1 > 2", "x_2 > 2", True),
    ("x_1 > 2", "x_2 > 3", False),
    ("x_1 = 'x_1'", "x_2 = 'x_2'", False),
    ("x_1 = 'it\\'s x_1'", "x_2 = 'it\\'s x_2'", False),
    ("x_1 = \"x_1\"", "x_2 = \"x_2\"", False),
    ("x_1.x_1 = 1", "x_2.x_2 = 1", False),
    ("x_1.`x_1` = 1", "x_2.`x_2` = 1", False),
    ("x_1 = 1.5", "x_2 = 1.5", True),
])
def test_shapes_differ_in_all_but_names(text, other, same):
    shapes = [
        shape_of(Selection(Scan("t", (("x", f"x_{n}"),)), (condition(part, f"x_{n}"),)))
        for n, part in ((1, text), (2, other))
    ]
    assert (shapes[0] == shapes[1]) is same


def test_shapes_of_several_columns():
    def side(n: int) -> Scan:
        return Scan("t", (("k", f"k_{n}"), ("v", f"v_{n}")))

    def total(n: int, *by: str) -> Aggregate:
        keys = tuple(Named(f"g{i}{n}_", column_of(name)) for i, name in enumerate(by))
        value = Named(f"a{n}_", SqlExpression(f"sum(v_{n})"))
        return Aggregate(side(n), keys, (value,), frozenset())

    assert shape_of(total(1, "k_1")) == shape_of(total(2, "k_2"))
    assert shape_of(total(1, "k_1")) != shape_of(total(2, "v_2"))
    assert shape_of(total(1)) != shape_of(total(2, "k_2"))
    assert shape_of(Join(side(1), side(2), "inner", (condition("k_1 = v_2"),))) != shape_of(
        Join(side(3), side(4), "inner", (condition("v_3 = k_4"),)))
    # A column of an enclosing query is part of the shape.
    assert shape_of(Selection(side(1), (condition("k_1 = z_1o", outers=("z_1",)),))) != shape_of(
        Selection(side(2), (condition("k_2 = z_2o", outers=("z_2",)),)))
    loop = Recursion(1, side(1), RecursionReference(1, ("k_1", "v_1")), ("k_1", "v_1"), True)
    assert shape_of(Distinct(loop)) is None


@pytest.fixture
def flow(spark):
    with Dataflow(spark) as flow:
        flow.input("edges", EDGES)
        flow.input("nodes", "node int, name string")
        yield flow


def operators(flow: Dataflow) -> Counter:
    return Counter(item.name.rpartition("-")[0] for item in flow.explain().operators)


pytestmark = pytest.mark.classic_only("counts the operators of an analysed plan")


def test_a_repeated_join_has_one_state(flow):
    flow.sql(
        "SELECT name, count(*) AS n FROM edges, nodes WHERE dst = node GROUP BY name UNION ALL "
        "SELECT 'all', count(*) FROM edges e, nodes m WHERE e.dst = m.node"
    ).keep("answer")
    assert operators(flow)["join"] == 1, flow.explain(full=True)


def test_a_common_part_of_a_loop_is_not_that_outside(spark):
    """A frame in the body of a loop is not valid outside."""
    with Dataflow(spark) as flow:
        edges = flow.input("edges", EDGES)[1]
        flow.sql(
            "WITH RECURSIVE r AS (SELECT 1 AS node UNION SELECT e.dst FROM r JOIN (SELECT DISTINCT "
            "src, dst FROM edges) e ON e.src = r.node) SELECT node, n FROM r JOIN (SELECT src, "
            "count(*) AS n FROM (SELECT DISTINCT src, dst FROM edges) GROUP BY src) ON src = node"
        ).keep("answer")
        edges.insert([(1, 2), (2, 3), (2, 4), (7, 8), (2, 3)])
        flow.advance_to(1)
        assert sorted(map(tuple, flow["answer"].at().collect())) == [(1, 1), (2, 2)]


def test_an_equality_with_a_total_is_a_join_by_it(flow):
    flow.sql("SELECT src FROM edges WHERE dst = (SELECT max(dst) FROM edges)").keep("answer")
    assert "WHOLE_SIDE" not in {item.code for item in flow.explain().reasons}


def test_an_or_over_two_tables_reduces_each(flow):
    flow.sql(
        "SELECT src, n.name, m.name AS other FROM edges, nodes n, nodes m WHERE src = n.node AND "
        "dst = m.node AND (n.name = 'a' AND m.name = 'b' OR n.name = 'b' AND m.name = 'a')"
    ).keep("answer")
    # One condition of the pair, and one of each side.
    assert operators(flow)["where"] >= 3, flow.explain(full=True)


def test_conditions_come_before_the_join_with_outer_values(flow):
    flow.sql(
        "SELECT * FROM nodes WHERE node > (SELECT avg(src) FROM edges WHERE dst = node AND src > 5)"
    ).keep("answer")
    names = [item.name.rpartition("-")[0] for item in flow.explain().operators]
    assert names.index("where") < names.index("join"), names
