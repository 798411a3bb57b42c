"""Joins: every way of joining, against the oracle and against PySpark's own joins of snapshots."""

from __future__ import annotations

import datetime
from collections import Counter
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from oracle import Op, Program, accumulate, normal, total
from plain import local_frame
from program_ops import HOWS
from programs import Run
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from test_law import RUNNERS, every_runner, move, one_bit_hash

from pyspark_diff import Dataflow, DiffFrame, DiffOverflowError, SchemaError

INT = (("k", "int"),)
LEFT = (("k", "int"), ("x", "string"))
RIGHT = (("k", "int"), ("y", "string"))
OTHER = (("j", "bigint"), ("x", "string"))
PAIR = (("k", "int"), ("s", "string"), ("x", "string"))
HALVES = ("semijoin", "antijoin")


def by_name(*names):
    return tuple(Op("join", (0, 1), (names, how)) for how in (*HOWS, *HALVES))


def by_condition(*args, inputs=(0, 1)):
    return tuple(Op("join_on", inputs, (*args, how)) for how in HOWS)


def ending(inputs, ops):
    """All operators shown."""
    return Program(inputs, ops, tuple(range(len(inputs), len(inputs) + len(ops))))


PROGRAMS = {
    "name": ending((LEFT, RIGHT), by_name("k")),
    "list": ending((PAIR, PAIR), by_name("s", "k")),
    "all columns": ending((LEFT, INT), by_name("k")),
    "condition": ending((LEFT, OTHER), by_condition((("k", "j"),), False, None)),
    "residual": ending((LEFT, OTHER), by_condition((("k", "j"),), False, ("less", "x", "x"))),
    "one-sided residual": ending(
        (LEFT, OTHER), by_condition((("k", "j"),), False, ("not null", "x", ""))
    ),
    "two pairs": ending((LEFT, OTHER), by_condition((("k", "j"), ("x", "x")), False, None)),
    "near": ending(
        (LEFT, OTHER), (*by_condition((("x", "x"),), False, ("near", "k", "j")),
                        *by_condition((("x", "x"),), True, ("near", "k", "j"))),
    ),
    "near alone": ending((LEFT, OTHER), by_condition((), False, ("near", "k", "j"))),
    "around": ending((LEFT, OTHER), by_condition((), False, ("around", "k", "j"))),
    "less": ending((LEFT, OTHER), by_condition((), False, ("less", "k", "j"))),
    "less, of texts": ending((LEFT, OTHER), by_condition((), False, ("less", "x", "x"))),
    "null-safe": ending(
        (LEFT, OTHER), by_condition((("k", "j"), ("x", "x")), True, ("less", "k", "j"))
    ),
    "itself": ending(
        (LEFT,),
        (*by_condition((("k", "k"),), False, ("differ", "x", "x"), inputs=(0, 0)),
         Op("join", (0, 0), (("x",), "inner")), Op("join", (0, 0), (("k", "x"), "full"))),
    ),
    "cross": ending((LEFT, RIGHT), (Op("crossJoin", (0, 1)), Op("crossJoin", (0, 0)))),
    "chained": ending(
        (LEFT, RIGHT),
        (
            Op("join", (0, 1), (("k",), "left")),
            Op("join", (2, 1), (("k",), "right")),
            Op("drop", (3,), ("x",)),
            Op("join", (4, 2), (("k", "y"), "full")),
            Op("join", (5, 0), (("k",), "left_anti")),
            Op("join", (5, 6), (("k",), "semijoin")),
            Op("count", (7,)),
        ),
    ),
}
LAST = 6
#: Records by time: null keys, repeated records, more removals than insertions, and updates that
#: cancel in another step. Keys come and go on both sides.
HISTORY = [
    [((1, "a"), 0, 2), ((1, "b"), 0, 1), ((2, "a"), 0, 1), ((None, "n"), 1, 1), ((1, "a"), 2, -1),
     ((3, "c"), 3, -1), ((4, None), 3, 1), ((None, "n"), 4, 2), ((1, "a"), 5, -1),
     ((3, "c"), 6, 2), ((2, "a"), 6, -1), ((2, "b"), 6, 1), ((None, None), 6, 1)],
    [((1, "a"), 1, 1), ((2, "b"), 1, -1), ((None, "n"), 0, 1), ((1, "c"), 2, 2), ((2, "b"), 3, 2),
     ((1, "a"), 3, -1), ((1, "c"), 4, -2), ((3, "a"), 4, 1), ((1, "b"), 5, -2), ((4, None), 5, 1),
     ((5, "x"), 2, 1), ((1, "b"), 6, 3), ((5, "x"), 6, -1), ((3, "c"), 6, 1)],
]
#: How far each input has advanced before each step; None closes it.
CUTS = {
    "at once": [(7, 7)],
    "even": [(1, 1), (3, 3), (4, 4), (6, 6), (7, 7)],
    "the right side lags": [(1, 0), (3, 0), (5, 0), (7, 1), (7, 4), (7, 7)],
    "the left side lags": [(0, 2), (0, 5), (1, 6), (3, 7), (7, 7)],
    "taking turns": [(2, 0), (2, 3), (4, 3), (4, 6), (7, 6), (7, 7)],
    "the left side is closed": [(2, 1), (None, 2), (None, 4), (None, 7)],
    "the right side is closed": [(0, None), (1, None), (4, None), (7, None)],
}


def history(program):
    """The updates of each input, with as many columns as it has."""
    steps = []
    for columns, updates in zip(program.inputs, HISTORY):
        fit = {1: lambda r: r[:1], 2: lambda r: r, 3: lambda r: (r[0], r[1], r[1])}[len(columns)]
        steps.append([(fit(record), time, diff) for record, time, diff in updates])
    return steps


def fed(spark, program, cuts, updates=None, **options):
    """Feed a history in steps, check the law after each, and give the consolidated output."""
    updates = updates or history(program)
    with Run(spark, program, **options) as run:
        for cut in cuts:
            actions = []
            for number, (rows, to) in enumerate(zip(updates, cut)):
                if run.closed[number]:
                    continue
                now = run.sessions[number].time()
                there = [
                    (r, time - now, diff)
                    for r, time, diff in rows if now <= time and (to is None or time < to)
                ]
                actions.append((number, "update", ("rows", there)))
                actions += [(number, "close", None)] if to is None else [
                    (number, "advance", to - now), (number, "flush", None)
                ]
            run.step(tuple(actions))
        run.finish()
        return [
            total(((normal(record), time), diff) for record, time, diff in output.updates)
            for output in run.outputs
        ]


@pytest.mark.parametrize(
    ("name", "cut"),
    [(name, cut) for name in PROGRAMS for cut in CUTS
     if name == "name" or cut == "taking turns" or (name == "residual" and "closed" in cut)],
)
def test_every_way_and_every_cut(spark, name, cut):
    fed(spark, PROGRAMS[name], CUTS[cut], runner="local", buckets=2)


@pytest.mark.parametrize(
    ("name", "cut"),
    [("name", "the right side lags"), ("residual", "the left side is closed"),
     pytest.param("chained", "taking turns", marks=pytest.mark.slow),
     pytest.param("cross", "the left side lags", marks=pytest.mark.slow),
     pytest.param("null-safe", "even", marks=pytest.mark.slow)],
)
def test_every_way_in_spark(spark, name, cut):
    # Fewer ways, since each is some jobs a step.
    whole = PROGRAMS[name]
    ops = whole.ops if name in ("chained", "cross") else (whole.ops[3], whole.ops[5])
    fed(spark, ending(whole.inputs, ops), CUTS[cut][-2:], runner="spark", buckets=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["list", "residual", "chained", "null-safe"])
def test_colliding_hashes(spark, name):
    expected = fed(spark, PROGRAMS[name], CUTS["even"], runner="local", buckets=1)
    with one_bit_hash():
        actual = fed(
            spark, PROGRAMS[name], CUTS["taking turns"], runner="local", buckets=1, memory_rows=0
        )
    assert actual == expected


@every_runner
def test_an_input_that_lags_for_long_and_catches_up(spark, runner):
    steps = 3 if runner == "spark" else 12
    updates = [
        [((t % 3, "a"), t, 1 if t % 2 else 2) for t in range(steps)],
        [((t % 2, "b"), t, -1 if t % 5 == 4 else 1) for t in range(steps)],
    ]
    program = ending((LEFT, RIGHT), by_name("k")[3:6])
    cuts = [(t, 1) for t in range(1, steps)] + [(steps, steps - 1), (steps, steps)]
    fed(spark, program, cuts, updates, runner=runner, buckets=2)


# PySpark's own joins.

NAN = float("nan")
DAY = datetime.date(2024, 2, 29)
MOMENT = datetime.datetime(2024, 2, 29, 12, 0, 0, 1)
#: By type of the left and right key: values.
KEYS = {
    ("int", "bigint"): [0, 1, -1, 2**31 - 1, None],
    ("tinyint", "int"): [0, -128, 127, None],
    ("double", "double"): [0.0, -0.0, NAN, float("inf"), 1.5, None],
    ("float", "double"): [0.0, -0.0, NAN, 0.5, 0.1, None],
    ("int", "double"): [0, 1, -7, None],
    ("decimal(10,2)", "decimal(12,3)"): [Decimal("1.50"), Decimal("-0.01"), None],
    ("decimal(10,2)", "int"): [Decimal("1.00"), Decimal("2.00"), None],
    ("date", "timestamp"): [DAY, None],
    ("timestamp", "timestamp"): [MOMENT, None],
    ("boolean", "boolean"): [True, False, None],
    ("binary", "binary"): [b"", b"a", b"a\0", None],
    ("string", "string"): ["", "a", "a\0", "A", None],
    ("array<double>", "array<double>"): [[0.0], [-0.0], [NAN], [], [None], None],
    ("struct<a:int,b:string>", "struct<a:int,b:string>"): [(1, "a"), (1, None), None],
}


def converted(value, kind):
    if value is not None and kind == "double" and isinstance(value, int):
        return float(value)
    if value is not None and kind == "timestamp" and type(value) is datetime.date:
        return datetime.datetime(value.year, value.month, value.day)
    return int(value) if isinstance(value, Decimal) and kind == "int" else value


def rows_of_keys(kinds, values):
    """The updates of each side, which has a key and one more column."""
    return [
        [(converted(v, kind), i, t, 1 + (i + t) % 2)
         for t in (0, 1) for i, v in enumerate(values) if (i + t + (side == "y")) % 4]
        for side, kind in zip("xy", kinds)
    ]


def multiset(frame):
    return Counter(normal(tuple(row)) for row in frame.collect())


def types(frame):
    return [(f.name, f.dataType.simpleString()) for f in frame.schema.fields]


def rows_at(updates, at):
    """The rows at a time, by sums of Python; unlike `oracle.accumulate` with the very values."""
    values, sums = {}, Counter()
    for *row, time, diff in updates:
        if time <= at:
            values[repr(row)] = row
            sums[repr(row)] += diff
    return [values[key] for key, n in sums.items() for _ in range(n)]


def check_against_pyspark(spark, schemas, updates, makers, in_spark=(), at=1):
    """Compare collections in one dataflow on the driver, and some of them also in Spark, with
    PySpark's frames.

    By name: a function of as many collections or frames as there are schemas.
    """
    plain = [
        local_frame(spark, rows_at(rows, at), schema)
        for rows, schema in zip(updates, schemas)
    ]
    lazy = [
        DiffFrame(spark.createDataFrame(rows, f"{schema}, time int, diff int"))
        for rows, schema in zip(updates, schemas)
    ]
    with Dataflow(spark, runner="local", buckets=2) as flow:
        sides, sessions = zip(*(flow.input(f"in{i}", schema) for i, schema in enumerate(schemas)))
        outputs = {name: make(*sides).arrange_by_self() for name, make in makers.items()}
        for session, rows in zip(sessions, updates):
            session.update([row for row in rows if row[-2] <= at])
            session.close()
        flow.step()
        for name, make in makers.items():
            expected = make(*plain)
            wanted = multiset(expected)
            assert types(outputs[name]) == types(expected), name
            assert multiset(outputs[name].at()) == wanted, name
            if name in in_spark:
                again = make(*lazy)
                assert types(again) == types(expected), name
                assert multiset(again.at(at)) == wanted, name


def by(on, how):
    """A join by a condition, or by a list of them, that calls the sides a and b."""
    return lambda left, right: left.alias("a").join(right.alias("b"), on, how)


@pytest.mark.parametrize("kinds", KEYS, ids=" = ".join)
def test_types_of_keys(spark, kinds):
    hows = HOWS if kinds == ("int", "bigint") else ("right", "full", "left_anti")
    joins = {how: lambda left, right, how=how: left.join(right, "k", how) for how in hows}
    joins["condition"] = by(F.col("a.k") == F.col("b.k"), "full")
    schemas = [f"k {kind}, {side} int" for side, kind in zip("xy", kinds)]
    check_against_pyspark(spark, schemas, rows_of_keys(kinds, KEYS[kinds]), joins, ["condition"])


PAIRS = [
    [(1, "a", 0, 1), (1, "b", 0, 2), (2, "a", 1, 1), (None, "a", 0, 1), (1, "a", 1, -1)],
    [(1, "a", 0, 1), (3, "c", 0, 1), (1, "c", 1, 2), (None, "b", 0, 2), (3, "c", 1, -1)],
]


def pairs(spark):
    """Two frames that have another column in common."""
    schema = "k int, x string, time int, diff int"
    first, second = (DiffFrame(spark.createDataFrame(rows, schema)) for rows in PAIRS)
    return first, second


def in_turn(names, number):
    """Every sixth of them: with the six ways to join, each name and each way has its turn."""
    return [name for i, name in enumerate(names) if i % len(HOWS) == number]


@pytest.mark.slow
@pytest.mark.parametrize("how", HOWS)
def test_conditions_are_pysparks(spark, how):
    x, y, j, k = F.col("a.x"), F.col("b.x"), F.col("a.k"), F.col("b.k")
    conditions = [
        j == k,
        k == j,
        [j == k, x < y],
        (x == y) & (j.isNull() | (k > 1)),
        (j + 1 == k) & (F.upper(x) != y),
        (F.coalesce(j, F.lit(0)) == F.coalesce(k, F.lit(0))) & (F.lit(1) == 1),
        j.eqNullSafe(k) & (x <= y),
    ]
    joins = {str(on): by(on, how) for on in conditions}
    assert len(joins) == len(conditions)
    check_against_pyspark(
        spark, ["k int, x string"] * 2, PAIRS, joins, in_turn(joins, HOWS.index(how))
    )


@pytest.mark.parametrize("how", HOWS)
def test_equalities_with_and_without_nulls_in_one_condition(spark, how):
    left_rows = [
        (1, 0.0, 0, 1), (1, None, 0, 2), (None, -0.0, 0, 1), (None, None, 0, 1), (2, 1.0, 1, 1)
    ]
    right_rows = [(1, -0.0, 0, 2), (1, None, 0, 1), (None, 0.0, 0, 3), (None, None, 1, 1)]
    x, y, j, k = F.col("a.x"), F.col("b.x"), F.col("a.k"), F.col("b.k")
    joins = {
        "safe, then plain": by(j.eqNullSafe(k) & (x == y), how),
        "plain, then safe": by([k == j, x.eqNullSafe(y), x.isNull() | (j > 0)], how),
    }
    in_spark = {"full": joins, "left": ["safe, then plain"], "left_anti": ["plain, then safe"]}
    schemas = ["k int, x double", "k long, x double"]
    check_against_pyspark(spark, schemas, [left_rows, right_rows], joins, in_spark.get(how, ()))


def test_synonyms(spark):
    hows = ["leftouter", "left_outer", "LEFT", "rightouter", "right_outer", "outer", "fullouter",
            "full_outer", "semi", "leftsemi", "anti", "leftanti", "inner"]
    joins = {how: lambda left, right, how=how: left.join(right, ["k"], how) for how in hows}
    check_against_pyspark(spark, ["k int, x string"] * 2, PAIRS, joins, at=0)


def test_names_that_both_sides_have(spark):
    left, right = pairs(spark)
    a, b = left.alias("a"), right.alias("b")
    both = a.join(b, "k")
    assert both.columns == ["k", "x", "x"]
    assert [f.name for f in both.schema.fields] == ["k", "x", "x"]
    assert both.at(0).columns == ["k", "x", "x"]
    assert both.to_df().columns == ["k", "x", "x", "time", "diff"]
    renamed = both.select("k", F.col("a.x").alias("one"), F.col("b.x").alias("two"))
    assert multiset(renamed.at(0)) == {(1, "a", "a"): 1, (1, "b", "a"): 2}
    assert multiset(both.select("b.x").at(0)) == {("a",): 3}
    assert multiset(both.where(F.col("a.x") != F.col("b.x")).at(0)) == {(1, "b", "a"): 2}
    assert multiset(both.drop("x").at(0)) == {(1,): 3}
    # All three of a chain, and the key of each.
    on = F.col("a.k") == F.col("b.k")
    third = a.join(b, on).join(left.alias("c"), F.col("c.x") == F.col("b.x"))
    assert third.columns == ["k", "x"] * 3
    selected = third.select("a.x", "b.k", F.col("c.k").alias("other"))
    assert multiset(selected.at(0)) == {
        ("a", 1, 1): 1, ("b", 1, 1): 2, ("a", 1, None): 1, ("b", 1, None): 2,
    }


@pytest.mark.parametrize("use", [
    lambda f: f.count(), lambda f: f.distinct(), lambda f: f.select("x"),
    lambda f: f.where("x = 'a'"), lambda f: f.withColumnRenamed("x", "z"),
    lambda f: f.join(f.select("k"), "x"), lambda f: f.withColumn("x", F.lit(1)),
])
def test_a_name_that_both_sides_have_tells_nothing(spark, use):
    left, right = pairs(spark)
    with pytest.raises((SchemaError, AnalysisException)):
        use(left.alias("a").join(right.alias("b"), "k"))


def test_a_collection_joined_with_itself(spark):
    edges = [(1, 2), (2, 3), (3, 1), (2, 1), (3, 3)]
    frame = spark.createDataFrame(
        [(*edge, time, 1 + (time > 1)) for time, edge in enumerate(edges)],
        "src int, dst int, time int, diff int",
    )
    e = DiffFrame(frame)
    on = (F.col("a.dst") == F.col("b.src")) & (F.col("a.src") != F.col("b.dst"))
    paths = e.alias("a").join(e.alias("b"), on).select("a.src", F.col("b.dst").alias("to"))
    triangles = paths.alias("p").join(
        e.alias("c"), (F.col("p.to") == F.col("c.src")) & (F.col("p.src") == F.col("c.dst"))
    )
    for time in (1, 2, 4):
        there = [(*edge, 1 + (t > 1)) for t, edge in enumerate(edges) if t <= time]
        expected = total(
            ((a, d, d, a), n * m * o)
            for a, b, n in there for c, d, m in there for f, g, o in there
            if b == c and a != d and d == f and a == g
        )
        assert multiset(triangles.at(time)) == expected
        assert multiset(e.join(e, ["src", "dst"]).at(time)) == total(
            ((a, b), n * n) for a, b, n in there
        )


# Large and wrong ones.


@every_runner
def test_a_hot_key_with_many_changes_in_one_step(spark, runner):
    """Each side has one record at each time: all pairs of changes would be 10 ** 10."""
    count = 50_000
    times = np.arange(count)

    def changes(name, start):
        # Inserted when its time comes, removed when the next one comes.
        return pa.table({
            "k": np.zeros(2 * count, np.int32),
            name: np.concatenate([times, times]),
            "time": np.concatenate([times * 2 + start, times * 2 + start + 2]),
            "diff": np.repeat([1, -1], count),
        }).cast(pa.schema([("k", pa.int32()), (name, pa.int64()), ("time", pa.int64()),
                           ("diff", pa.int64())]))

    tables = []
    with Dataflow(spark, runner=runner) as flow:
        left, left_in = flow.input("left", "k int, x bigint")
        right, right_in = flow.input("right", "k int, y bigint")
        left.join(right, "k").inspect(tables.append, by_table=True)
        left_in.update(changes("x", 0))
        right_in.update(changes("y", 1))
        left_in.close()
        right_in.close()
        flow.step()
    frame = pa.concat_tables(tables).to_pandas()
    updates = [
        ((int(x), int(y)), int(t), int(d))
        for x, y, t, d in zip(frame["x"], frame["y"], frame["time"], frame["diff"])
    ]
    expected = Counter()
    for t in range(1, 2 * count):
        pair = (t // 2, (t - 1) // 2)
        expected[pair, t] += 1
        expected[pair, t + 1] -= 1
    assert total((((pair, time), diff)) for pair, time, diff in updates) == expected


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(
    ("one", "other"), [([2**40], [2**40]), ([2**62], [2]), ([2**62, 2**62], [1]), ([-2**63], [-1])]
)
def test_products_that_are_too_large(spark, runner, one, other):
    with Dataflow(spark, runner=runner) as flow:
        left, left_in = flow.input("left", "k int, x int")
        right, right_in = flow.input("right", "k int")
        joined = left.join(right, "k").drop("x").count().keep()
        right_in.update([(1, 0, other[0])])
        right_in.advance_to(1)
        right_in.flush()
        flow.step()
        left_in.update([(1, i, 0, diff) for i, diff in enumerate(one)])
        left_in.advance_to(1)
        left_in.flush()
        before = [path for path in flow._state.paths()]
        with pytest.raises(DiffOverflowError):
            flow.step()
        assert list(flow._state.paths()) == before
        assert joined.columns == ["k", "count"]


def test_a_product_that_just_fits(spark):
    frame = spark.createDataFrame([(1, 0, 2**31)], "k int, time int, diff long")
    other = spark.createDataFrame([(1, 0, -(2**32))], "k int, time int, diff long")
    rows = DiffFrame(frame).join(DiffFrame(other), "k").count().to_df().collect()
    assert [tuple(row) for row in rows] == [(1, -(2**63), 0, 1)]


def test_a_cross_join_by_its_other_names(spark):
    left, right = pairs(spark)
    few = right.alias("b").hint("broadcast")
    expected = multiset(left.at(1).crossJoin(right.at(1)))
    for joined in [
        left.crossJoin(few), left.join(few), left.join(few, how="cross"), left.join(few, None),
    ]:
        assert joined.columns == ["k", "x", "k", "x"]
        assert multiset(joined.at(1)) == expected


WRONG = {
    "a name that is not there": lambda a, b: a.join(b, "z"),
    "a name that only one side has": lambda a, b: a.withColumn("z", F.lit(1)).join(b, "z"),
    "names, one of which is not there": lambda a, b: a.join(b, ["k", "z"]),
    "a column that is not there": lambda a, b: a.join(b, F.col("a.z") == F.col("b.k")),
    "a column that both sides have": lambda a, b: a.join(b, F.col("k") == F.col("k")),
    "no way to join": lambda a, b: a.join(b, "k", "sideways"),
    "no equality": lambda a, b: a.join(b, F.col("a.k") != F.col("b.k")),
    "lists without an equality": lambda a, b: a.join(b, F.array("a.k") < F.array("b.k")),
    "an equality of one side": lambda a, b: a.join(b, F.col("a.k") == F.lit(1)),
    "a disjunction": lambda a, b: a.join(
        b, (F.col("a.k") == F.col("b.k")) | (F.col("a.x") == F.col("b.x"))
    ),
    "a cross join of large sides": lambda a, b: a.crossJoin(b),
    "nothing to join by": lambda a, b: a.join(b),
    "nothing to join by on the left": lambda a, b: a.join(b, how="left"),
    "an empty list": lambda a, b: a.join(b, []),
    "names and columns": lambda a, b: a.join(b, ["k", F.col("a.x") == F.col("b.x")]),
    "a number": lambda a, b: a.join(b, 1),
    "a cross join by a name": lambda a, b: a.join(b, "k", "cross"),
    "no collection": lambda a, b: a.join([(1,)], "k"),
    "types that do not compare": lambda a, b: a.join(
        b.withColumn("k", F.array(F.col("k"))), "k"
    ),
    "a map": lambda a, b: a.withColumn("k", F.create_map("x", "k")).join(
        b.withColumn("k", F.create_map("x", "k")), "k"
    ),
    "chance": lambda a, b: a.join(b, F.col("a.k") == F.col("b.k") + F.floor(F.rand())),
    "a semijoin by other columns": lambda a, b: a.semijoin(b.withColumnRenamed("x", "y")),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_joined(spark, what):
    left, right = pairs(spark)
    with pytest.raises((SchemaError, AnalysisException, TypeError, ValueError)) as caught:
        WRONG[what](left.alias("a"), right.alias("b"))
    assert str(caught.value)


def test_collections_of_different_dataflows(spark):
    with Dataflow(spark) as flow, Dataflow(spark) as another:
        frame, _ = flow.input("one", "k int")
        other, _ = another.input("one", "k int")
        for wrong in (other, pairs(spark)[0]):
            with pytest.raises(SchemaError):
                frame.join(wrong, "k")


@every_runner
def test_a_condition_may_use_a_column_twice(spark, runner):
    on = ((("k", "k"), ("x", "k")), False, None)
    program = ending(((*INT, ("x", "int")), INT), by_condition(*on))
    updates = [[((1, 1), 0, 1), ((1, 2), 0, 1), ((2, 2), 1, 1)], [((1,), 0, 1), ((2,), 1, 2)]]
    cuts = [(1, 1), (2, 2)] if runner == "local" else [(2, 2)]
    fed(spark, program, cuts, updates, runner=runner, buckets=2)


def test_nothing_is_left_of_what_was_removed(spark):
    """Steps that only retract leave an empty collection, and later steps emit nothing."""
    program = ending((LEFT, RIGHT), by_name("k"))
    with Run(spark, program, runner="local", buckets=1) as run:
        rows = {0: [(1, "a"), (2, "b")], 1: [(1, "c")]}
        for what in ("insert", "remove", "insert", "remove"):
            for side in (0, 1, 1, 0):
                run.step(((side, what, ("rows", rows[side])), *move(1, 1)))
        last = run.times(None)[-1]
        assert all(not accumulate(output.updates, last) for output in run.outputs)
        run.finish()


def test_lists_without_nulls_are_keys_like_others(spark):
    """Whether a list may hold null is said of a column, and is no part of its values."""
    with Dataflow(spark, runner="local", buckets=2) as flow:
        rows, feed = flow.input("rows", "k int, b boolean")
        lists = rows.groupBy("k").agg(F.collect_list("b").alias("f"))
        feed.insert([(1, True), (2, None), (2, False), (3, None)])
        others, others_in = flow.input("others", "f array<boolean>, n int")
        others_in.insert([([True], 1), ([None], 2), (None, 3)])
        left = others.join(lists, "f", "left_anti").keep("left")
        both = others.join(lists, "f", "full").keep("both")
        flow.advance_to(1)
        feed.remove([(1, True)])
        others_in.insert([([False], 4), ([], 5)])
        flow.advance_to(2)
        unmatched = [(row.n, row.f) for row in left.at().collect()]
        assert sorted(unmatched) == [(1, [True]), (2, [None]), (3, None)]
        full = {(row.n, row.k) for row in both.at().collect()}
        assert full == {(1, None), (2, None), (3, None), (4, 2), (5, 3)}
