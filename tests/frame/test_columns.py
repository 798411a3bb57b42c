"""The library and PySpark parse columns in the same way.

    names and types of parse_aggregates  ==  names and types of the columns of groupBy().agg()
    conjunction of parse_condition       ==  the condition
"""

from __future__ import annotations

import logging
from functools import reduce
from operator import and_

import connect_server
import pytest
from connect_server import in_sql_text
from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.window import Window

from pyspark_diff.errors import NonDeterministicError, SchemaError
from pyspark_diff.expressions.aggregates import parse_aggregates
from pyspark_diff.expressions.conditions import parse_condition
from pyspark_diff.spark.calls import call_of, with_calls_replaced

SCHEMA = "k string, x int, y long, d decimal(10,2), b boolean, `a.b` double, arr array<int>"


@pytest.fixture(scope="module")
def template(spark):
    return spark.createDataFrame([], SCHEMA)


@pytest.fixture(scope="module")
def left(spark):
    struct = "id int, x int, s string, day date, p decimal(10,2)"
    return spark.createDataFrame([], struct).alias("l")


@pytest.fixture(scope="module")
def right(spark):
    struct = "id int, y long, t string, at timestamp, q decimal(12,4), z double"
    return spark.createDataFrame([], struct).alias("r")


def shown(columns):
    return [str(column)[len("Column<'"):-len("'>")] for column in columns]


#: A column by a function of F, then name, arguments, distinct and alias of its call.
CALLS = [
    (lambda: F.sum("x"), ("sum", ["x"], False, None)),
    (lambda: F.sum(F.col("x") + 1).alias("a").alias("b"), ("sum", ["+(x, 1)"], False, "b")),
    (lambda: F.sum_distinct("x"), ("sum", ["x"], True, None)),
    (lambda: F.count("*"), ("count", [], False, None)),
    (lambda: F.count(F.lit(1)), ("count", [], False, None)),
    (lambda: F.count(F.lit("a")), ("count", [], False, None)),
    (lambda: F.count(F.lit(None)), ("count", ["NULL"], False, None)),
    (lambda: F.count(F.col("l.*")), ("count", ["l.*.*"], False, None)),
    (lambda: F.count_distinct("x", "y"), ("count", ["x", "y"], True, None)),
    (lambda: F.countDistinct(F.lit(1)), ("count", ["1"], True, None)),
    (lambda: F.mean("x"), ("avg", ["x"], False, None)),
    (lambda: F.call_function("SUM", "x"), ("sum", ["x"], False, None)),
    (lambda: F.col("x") == F.col("y"), ("==", ["x", "y"], False, None)),
    (lambda: F.col("x").eqNullSafe(F.col("y")), ("<=>", ["x", "y"], False, None)),
    (lambda: F.col("x") != 1, ("not", ["=(x, 1)"], False, None)),
    (lambda: F.col("x") & F.col("y"), ("and", ["x", "y"], False, None)),
    (lambda: F.col("x") | F.col("y"), ("or", ["x", "y"], False, None)),
    (lambda: ~F.col("x"), ("not", ["x"], False, None)),
    (lambda: F.expr("Sum(x) AS t"), ("sum", ["x"], False, "t")),
    (lambda: F.expr("sum(x) AS t").alias("u"), ("sum", ["x"], False, "u")),
    (lambda: F.expr("count(*)"), ("count", [], False, None)),
    (lambda: F.expr("count(DISTINCT x, y)"), ("count", ["x", "y"], True, None)),
    (lambda: F.expr("x = y"), ("==", ["x", "y"], False, None)),
    (lambda: F.expr("x <=> y"), ("<=>", ["x", "y"], False, None)),
    (lambda: F.expr("NOT x"), ("not", ["x"], False, None)),
]


def cases(listed):
    """The numbers of cases. A client of Connect cannot parse cases of SQL text."""
    return [
        pytest.param(case, marks=in_sql_text) if is_text(make) else case
        for case, (make, *_) in enumerate(listed)
    ]


def is_text(make):
    return "expr" in make.__code__.co_names


@pytest.mark.parametrize("case", cases(CALLS))
def test_call(spark, case):
    make, (name, arguments, distinct, alias) = CALLS[case]
    call = call_of(make())
    assert (call.name, call.distinct, call.alias) == (name, distinct, alias)
    assert shown(call.arguments) == arguments


@pytest.mark.parametrize(
    "make",
    [
        lambda: F.col("x"),
        lambda: F.lit(1),
        lambda: F.sum("x").cast("int"),
        lambda: F.sum("x").over(Window.partitionBy("k")),
        lambda: F.when(F.col("x") > 1, 2),
        lambda: F.udf(lambda x: x)("x"),
        lambda: F.col("x").asc(),
        lambda: F.expr("x"),
        lambda: F.expr("sum(x) / count(*)"),
        lambda: F.expr("sum(x) FILTER (WHERE b)"),
    ],
)
def test_no_call(spark, make):
    assert call_of(make()) is None


def test_arguments_can_be_used_again(template):
    (product,) = call_of(F.sum(F.col("x") * F.col("y"))).arguments
    (lowered,) = call_of(F.max(F.lower("k"))).arguments
    assert template.select(product.alias("p"), lowered.alias("l")).schema == template.select(
        (F.col("x") * F.col("y")).alias("p"), F.lower("k").alias("l")
    ).schema


#: An aggregate, its function, and whether it is distinct.
AGGREGATES = [
    (lambda: F.count("*"), "count", False),
    (lambda: F.count("x"), "count", False),
    (lambda: F.count(F.lit(1)).alias("n"), "count", False),
    (lambda: F.count_distinct("x", "y"), "count", True),
    (lambda: F.countDistinct("x"), "count", True),
    (lambda: F.sum("x"), "sum", False),
    (lambda: F.sum("d"), "sum", False),
    (lambda: F.sum("`a.b`"), "sum", False),
    (lambda: F.sum(F.col("x") * 2).alias("twice"), "sum", False),
    (lambda: F.sum_distinct("x"), "sum", True),
    (lambda: F.avg("d"), "avg", False),
    (lambda: F.mean("x"), "avg", False),
    (lambda: F.call_function("mean", "x"), "avg", False),
    (lambda: F.variance("x"), "var_samp", False),
    (lambda: F.var_samp("x"), "var_samp", False),
    (lambda: F.var_pop("x"), "var_pop", False),
    (lambda: F.std("x"), "stddev_samp", False),
    (lambda: F.stddev("x"), "stddev_samp", False),
    (lambda: F.stddev_samp("x"), "stddev_samp", False),
    (lambda: F.stddev_pop("x"), "stddev_pop", False),
    (lambda: F.min("k"), "min", False),
    (lambda: F.max("arr"), "max", False),
    (lambda: F.expr("max(DISTINCT x)"), "max", False),
    (lambda: F.bool_and("b"), "bool_and", False),
    (lambda: F.every("b"), "bool_and", False),
    (lambda: F.bool_or("b"), "bool_or", False),
    (lambda: F.some("b"), "bool_or", False),
    (lambda: F.expr("any(b)"), "bool_or", False),
    (lambda: F.min_by("k", "x"), "min_by", False),
    (lambda: F.max_by("k", F.col("x") + F.col("y")), "max_by", False),
    (lambda: F.collect_set("k"), "collect_set", False),
    (lambda: F.collect_list("d"), "collect_list", False),
    (lambda: F.array_agg("x"), "collect_list", False),
    (lambda: F.expr("collect_list(DISTINCT x)"), "collect_list", True),
    (lambda: F.count_if(F.col("x") > 1), "count_if", False),
    (lambda: F.expr("avg(x) AS `the mean`"), "avg", False),
    (lambda: F.median("x"), "median", False),
    (lambda: F.mode("x"), "mode", False),
    (lambda: F.percentile("d", [0.5, 0.75]), "percentile", False),
    (lambda: F.expr("percentile(DISTINCT x, 0.5)"), "percentile", True),
    (lambda: F.percentile_approx("x", 0.5), "percentile_approx", False),
]


def replaced(call, whole):
    return F.col("s") if call.name == "sum" else None


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: F.sum("x"), "s"),
        (lambda: F.sum("x") / F.count("y"), "(s, count(y))"),
        pytest.param(
            lambda: F.expr("1 + sum(x) FILTER (WHERE b)"), "(1 + s)", marks=in_sql_text
        ),
        (lambda: F.when(F.sum("x") > 1, F.sum("y")).otherwise(0).alias("z"), "s"),
        (lambda: F.count("x") + 1, "+(count(x), 1)"),
        (lambda: F.sum("x").cast("string"), "s"),
    ],
)
def test_calls_are_replaced(spark, make, expected):
    text = shown([with_calls_replaced(make(), replaced)])[0]
    assert expected in text and "sum(" not in text


def same_as_spark(aggregates, frame, n_keys):
    fields = frame.schema.fields[n_keys:]
    return [(a.name, a.type) for a in aggregates] == [(f.name, f.dataType) for f in fields]


@pytest.mark.parametrize("case", cases(AGGREGATES))
def test_aggregate(template, case):
    make, function, distinct = AGGREGATES[case]
    aggregates = parse_aggregates(template, ["k"], [make()])
    assert [(a.function.name, a.distinct) for a in aggregates] == [(function, distinct)]
    assert same_as_spark(aggregates, template.groupBy("k").agg(make()), 1)


@pytest.mark.parametrize("keys", [[], ["k"], ["k", (F.col, "x")]])
def test_many_aggregates(template, keys):
    keys = [key[0](key[1]).alias("other") if isinstance(key, tuple) else key for key in keys]
    some = [case for case in AGGREGATES if not (connect_server.WANTED and is_text(case[0]))]
    columns = [make() for make, _, _ in some]
    aggregates = parse_aggregates(template, keys, columns)
    assert [a.function.name for a in aggregates] == [function for _, function, _ in some]
    assert same_as_spark(aggregates, template.groupBy(*keys).agg(*columns), len(keys))


def test_keys_need_not_be_kept(spark, template):
    spark.conf.set("spark.sql.retainGroupColumns", False)
    try:
        (aggregate,) = parse_aggregates(template, ["k"], [F.sum("x")])
    finally:
        spark.conf.unset("spark.sql.retainGroupColumns")
    assert aggregate.name == "sum(x)"


DICTS = [
    {"*": "count"},
    {"x": "sum"},
    {"x": "SUM", "y": "mean", "b": "every", "*": "count", "k": "size", "d": "std"},
    {"x": "average"},
    {"`a.b`": "max"},
]


@pytest.mark.parametrize("exprs", DICTS)
def test_dict(template, exprs):
    aggregates = parse_aggregates(template, ["k"], exprs)
    # A server of Connect does not know these two names.
    known = {"average": "avg", "size": "count"} if connect_server.WANTED else {}
    plain = {name: known.get(function, function) for name, function in exprs.items()}
    assert same_as_spark(aggregates, template.groupBy("k").agg(plain), 1)
    again = parse_aggregates(template, ["k"], (exprs,))
    assert [(a.function, a.name) for a in again] == [(a.function, a.name) for a in aggregates]


def test_dict_has_functions_and_arguments(template):
    exprs = {"x": "average", "*": "count", "d": "stddev", "k": "size"}
    actual = {a.name: (a.function.name, shown(a.arguments)) for a in parse_aggregates(
        template, [], exprs
    )}
    assert actual == {
        "avg(x)": ("avg", ["x"]),
        "count(1)": ("count", []),
        "stddev(d)": ("stddev_samp", ["d"]),
        "count(k)": ("count", ["k"]),
    }


#: An expression that agg refuses, and a part of the message.
REFUSED = [
    (lambda: F.histogram_numeric("x", F.lit(3)), "order in which Spark reads .*aggregates are an"),
    (lambda: F.product("x"), "product.*not supported; the aggregates are any_value, approx_count"),
    (lambda: F.lower("k"), "lower.*not supported"),
    (lambda: F.expr("listagg(k) WITHIN GROUP (ORDER BY array(k))"), "order of type array"),
    (lambda: F.col("x"), "not a plain call"),
    (lambda: F.call_function("min_by", F.col("k"), F.col("x"), F.lit(2)), "min_by with 3 arg"),
    (lambda: F.count_distinct("*"), "name the columns one by one"),
    (lambda: "x", "it got str"),
    (lambda: {"x": "product"}, "product.*not supported"),
]


@pytest.mark.parametrize("case", cases(REFUSED))
def test_refused(template, case):
    make, message = REFUSED[case]
    with pytest.raises(SchemaError, match=f"(?s){message}"):
        parse_aggregates(template, ["k"], [make()])


def test_no_aggregates(template):
    with pytest.raises(SchemaError, match="it got none"):
        parse_aggregates(template, ["k"], [])


@pytest.mark.parametrize(
    "make",
    [
        lambda: F.sum(F.rand()),
        lambda: F.max(F.current_timestamp()),
        lambda: F.min_by("x", F.uuid()),
        lambda: F.count_if(F.col("x") > F.randn()),
    ],
)
def test_arguments_are_deterministic(template, make):
    with pytest.raises(NonDeterministicError, match="a retracted row another value"):
        parse_aggregates(template, ["k"], [F.sum("x"), make()])


@pytest.mark.parametrize(
    ("keys", "make"),
    [
        (["k"], lambda: F.sum("nope")),
        (["nope"], lambda: F.sum("x")),
        (["k"], lambda: F.sum("arr")),
        (["k"], lambda: F.sum(F.sum("x"))),
        (["k"], lambda: F.sum(F.explode("arr"))),
        (["k"], lambda: F.sum(F.row_number().over(Window.orderBy("x")))),
        (["k"], lambda: F.call_function("sum", F.col("x"), F.col("y"))),
        ([], lambda: {"nope": "sum"}),
    ],
)
def test_errors_of_spark_get_through(template, keys, make):
    # The library itself reports a wrong number of arguments.
    with pytest.raises((AnalysisException, SchemaError)) as error:
        parse_aggregates(template, keys, [make()])
    assert isinstance(error.value, AnalysisException) or "2 arguments" in str(error.value)


def l(name):  # noqa: E743
    return F.col(f"l.{name}")


def r(name):
    return F.col(f"r.{name}")


#: A condition, its pairs (left, right, null safe), and its residual.
CONDITIONS = [
    (lambda: l("id") == r("id"), [("l.id", "r.id", False)], []),
    (lambda: r("id") == l("id"), [("l.id", "r.id", False)], []),
    (lambda: l("id").eqNullSafe(r("id")), [("l.id", "r.id", True)], []),
    (lambda: F.col("s") == F.col("t"), [("s", "t", False)], []),
    (lambda: F.lower("s") == F.col("t"), [("lower(s)", "t", False)], []),
    (lambda: F.col("x") == F.col("y"), [("CAST(x AS BIGINT)", "y", False)], []),
    (lambda: F.col("y") == F.col("x"), [("CAST(x AS BIGINT)", "y", False)], []),
    (lambda: F.col("x") == F.col("z"), [("CAST(x AS DOUBLE)", "z", False)], []),
    (lambda: F.col("p") == F.col("q"), [("CAST(p AS DECIMAL(12,4))", "q", False)], []),
    (lambda: F.col("day") == F.col("at"), [("CAST(day AS TIMESTAMP)", "at", False)], []),
    (lambda: F.col("x") == F.col("t"), [("CAST(x AS BIGINT)", "CAST(t AS BIGINT)", False)], []),
    (
        lambda: (l("id") == r("id")) & (F.col("s") == F.col("t")) & (F.col("x") < F.col("y")),
        [("l.id", "r.id", False), ("s", "t", False)],
        ["<(x, y)"],
    ),
    (
        lambda: [l("id") == r("id"), F.col("x").eqNullSafe(r("id")) & (F.col("x") > 1)],
        [("l.id", "r.id", False), ("x", "r.id", True)],
        [">(x, 1)"],
    ),
    (lambda: (l("id") == r("id")) | (F.col("s") == F.col("t")), [], ["or"]),
    (lambda: F.col("x") == 1, [], ["=(x, 1)"]),
    (lambda: F.lit(1) == F.col("y"), [], ["=("]),
    (lambda: F.lit(1) == F.lit(1), [], ["=(1, 1)"]),
    (lambda: F.col("x") == l("id"), [], ["=(x, l.id)"]),
    (lambda: F.col("x") + F.col("y") == r("id"), [], ["=("]),
    (lambda: l("id") != r("id"), [], ["!("]),
    (lambda: l("id").between(r("id"), F.col("y")), [], [">=(", "<=("]),
    (lambda: F.expr("l.id = r.id AND s <=> t AND x > 1"),
     [("l.id", "r.id", False), ("s", "t", True)], ["(x > 1)"]),
]


@pytest.mark.parametrize("case", range(len(CONDITIONS)))
def test_condition(left, right, case):
    make, pairs, residual = CONDITIONS[case]
    on = make()
    condition = parse_condition(left, right, on)
    assert list(zip(shown(condition.left), shown(condition.right), condition.null_safe)) == pairs
    assert len(condition.residual) == len(residual)
    assert all(part in text for part, text in zip(residual, shown(condition.residual)))
    # Each column of a pair resolves on its own side, and both have the same type.
    types = [
        [field.dataType for field in frame.select(*columns).schema] if columns else []
        for frame, columns in ((left, condition.left), (right, condition.right))
    ]
    assert types[0] == types[1]


def test_condition_finds_the_same_rows(spark):
    left_rows = [(1, 1, "a"), (2, None, "B"), (3, 3, None), (None, 4, "x"), (5, 5, "2")]
    right_rows = [(1, 1.0, "a"), (2, None, "b"), (3, 4.0, None), (None, 4.0, "x"), (5, 2.0, "2")]
    a = spark.createDataFrame(left_rows, "id int, x int, s string").alias("l")
    b = spark.createDataFrame(right_rows, "id long, y double, t string").alias("r")
    for on in (
        l("id") == r("id"),
        l("id").eqNullSafe(r("id")) & (F.lower("s") == F.col("t")),
        (F.col("y") == F.col("x")) & (l("id") <= r("id")),
        F.col("x").eqNullSafe(F.col("y")) & F.col("s").eqNullSafe(F.col("t")),
        F.try_to_number("s", F.lit("9")) == r("id"),
    ):
        condition = parse_condition(a.limit(0), b.limit(0), on)
        parts = [
            x.eqNullSafe(y) if null_safe else x == y
            for x, y, null_safe in zip(condition.left, condition.right, condition.null_safe)
        ]
        again = a.join(b, reduce(and_, [*parts, *condition.residual]))
        assert condition.left
        assert sorted(map(str, again.collect())) == sorted(map(str, a.join(b, on).collect()))


@pytest.mark.parametrize("ansi", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_types_of_a_pair_are_those_of_spark(spark, ansi):
    kinds = ["int", "bigint", "float", "double", "decimal(10,2)", "decimal(20,0)", "string",
             "date", "timestamp", "timestamp_ntz", "boolean", "array<int>", "array<bigint>"]
    a = spark.createDataFrame([], ", ".join(f"a{i} {kind}" for i, kind in enumerate(kinds)))
    b = spark.createDataFrame([], ", ".join(f"b{i} {kind}" for i, kind in enumerate(kinds)))
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    left_over = []
    try:
        for i, kind in enumerate(kinds):
            # Each pair in both orders: one with ANSI, and one without.
            for j, other in enumerate(kinds):
                if (i < j) if ansi else (i > j):
                    continue
                on = F.col(f"a{i}") == F.col(f"b{j}")
                try:
                    spark_says = a.join(b, on)
                    spark_says.schema
                except AnalysisException:
                    with pytest.raises(AnalysisException):
                        parse_condition(a, b, on)
                    continue
                condition = parse_condition(a, b, on)
                if condition.residual:
                    left_over.append((kind, other))
                    continue
                again = a.join(b, condition.left[0] == condition.right[0])
                assert again.sameSemantics(spark_says)
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    assert left_over == []


def test_self_join(spark):
    a = spark.createDataFrame([], "id int, boss int").alias("a")
    b = spark.createDataFrame([], "id int, boss int").alias("b")
    condition = parse_condition(a, b, F.col("b.id") == F.col("a.boss"))
    assert (shown(condition.left), shown(condition.right)) == (["a.boss"], ["b.id"])
    with pytest.raises(AnalysisException, match="AMBIGUOUS"):
        parse_condition(a, b, F.col("id") == F.col("boss"))


@pytest.mark.parametrize(
    "make",
    [
        lambda: F.col("nope") == r("id"),
        lambda: F.col("id") == 1,
        lambda: F.col("x"),
        lambda: F.sum("x") == F.col("y"),
        lambda: F.rand() == F.col("y"),
        lambda: F.col("day") == F.col("z"),
        lambda: F.expr("l.id = "),
    ],
)
def test_conditions_that_spark_refuses(left, right, make):
    with pytest.raises(AnalysisException):
        parse_condition(left, right, make())


def test_condition_must_not_read_the_clock(left, right):
    with pytest.raises(NonDeterministicError, match="current_date"):
        parse_condition(left, right, (l("id") == r("id")) & (F.col("day") < F.current_date()))


@pytest.mark.parametrize("on", [[], "id", ["id"]])
def test_condition_is_made_of_columns(left, right, on):
    with pytest.raises(SchemaError, match="a join condition is a column"):
        parse_condition(left, right, on)


def test_struct_types_are_kept(template):
    (aggregate,) = parse_aggregates(template, [], [F.max(F.struct("x", "k"))])
    assert isinstance(aggregate.type, T.StructType) and aggregate.type.names == ["x", "k"]


def test_errors_of_spark_are_whole_after_a_condition(left, right, monkeypatch):
    # As before the first error of Spark in a process: the logger does not exist yet.
    name = "DataFrameQueryContextLogger"
    monkeypatch.delitem(logging.Logger.manager.loggerDict, name, raising=False)
    parse_condition(left, right, l("id") == r("id"))
    logger = logging.getLogger(name)
    assert isinstance(logger, PySparkLogger) and not logger.disabled
    with pytest.raises(AnalysisException):
        left.select(F.col("nope")).columns
