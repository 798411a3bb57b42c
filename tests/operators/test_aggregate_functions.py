"""The aggregate functions of Spark, each against plain Spark while rows come and go."""

from __future__ import annotations

import datetime
import math
import random
from decimal import Decimal
from fractions import Fraction

import pytest
from connect_server import in_sql_text
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from pyspark_diff import Dataflow, DiffError, SchemaError
from pyspark_diff.spark.settings import ANSI

COLUMNS = (
    "k int, n int, b tinyint, m decimal(10,2), l bigint, x double, y double, t string, "
    "i interval day to second"
)
PAIRS = [
    "corr(x, y)", "covar_pop(x, y)", "covar_samp(n, y)", "regr_avgx(x, n)", "regr_avgy(m, n)",
    "regr_count(x, n)", "regr_intercept(x, n)", "regr_r2(x, y)", "regr_slope(x, y)",
    "regr_sxx(x, n)", "regr_sxy(x, n)", "regr_syy(x, n)", "corr(DISTINCT x, y)", "covar_pop(x, x)",
    "covar_pop(x, y) FILTER (WHERE n > 0)", "regr_sxy(DISTINCT x, n)", "regr_avgx(DISTINCT x, n)",
    "regr_syy(x, n) FILTER (WHERE n < 5)", "covar_samp(x, y) / 2 + count(*)",
]
NUMBERS = [
    "skewness(x)", "kurtosis(x)", "skewness(m)", "kurtosis(n)", "skewness(DISTINCT n)",
    "bit_and(n)", "bit_or(b)", "bit_xor(n)", "bit_xor(l)", "bit_and(l)", "bit_or(l)", "bit_xor(b)",
    "bit_xor(DISTINCT n)", "bit_and(n) FILTER (WHERE n > 2)", "try_sum(l)", "try_avg(l)",
    "try_sum(m)", "try_avg(m)", "try_sum(x)", "try_avg(x)", "try_sum(DISTINCT n)", "sum(i)",
    "avg(i)", "try_sum(i)", "try_avg(i)", "every(n > 0)", "any(n > 1)", "count_if(n > 2)",
]
ORDERED = [
    "sort_array(array_agg(n))", "listagg(t, ',') WITHIN GROUP (ORDER BY n DESC, t)",
    "listagg(t) FILTER (WHERE t = 'a')",
    "string_agg(t, '') WITHIN GROUP (ORDER BY x NULLS LAST, t DESC)", "max_by(t, y)",
    "mode(n, true)", "mode() WITHIN GROUP (ORDER BY n)", "mode() WITHIN GROUP (ORDER BY n DESC)",
    "percentile_cont(0.3) WITHIN GROUP (ORDER BY x)",
    "percentile_cont(0.3) WITHIN GROUP (ORDER BY x DESC)",
    "percentile_disc(0.3) WITHIN GROUP (ORDER BY x)",
    "percentile_disc(0.3) WITHIN GROUP (ORDER BY x DESC)",
]
#: Spark cannot plan distinct lists next to other aggregates.
DISTINCT = ["listagg(DISTINCT t, '-') WITHIN GROUP (ORDER BY t DESC)"]
NUMBERED = ["listagg(DISTINCT n, ' ') WITHIN GROUP (ORDER BY n DESC NULLS LAST)"]


class Rows:
    """Random rows, with the rows that are present now."""

    def __init__(self, seed):
        self.random, self.there = random.Random(seed), []

    def row(self):
        draw = self.random

        def maybe(value):
            return None if draw.random() < 0.15 else value

        return (
            draw.randrange(3), maybe(draw.randrange(-3, 9)), maybe(draw.randrange(-128, 128)),
            maybe(Decimal(draw.randrange(-900, 900)) / 100),
            maybe(draw.choice([5, -7, 2**40, 9, -(2**50)])),
            maybe(draw.choice([1.5, -2.25, 1e3, 0.1, 0.3, 7.0])), maybe(draw.random()),
            maybe(draw.choice("abc")),
            maybe(datetime.timedelta(seconds=draw.randrange(-9, 9999))),
        )

    def change(self):
        """Rows that go and rows that come."""
        gone = self.random.sample(self.there, len(self.there) // 2)
        for row in gone:
            self.there.remove(row)
        new = [self.row() for _ in range(25)]
        self.there += new
        return gone, new


def shown(rows):
    def value(item):
        if isinstance(item, float):
            return "nan" if math.isnan(item) else float(f"{item:.6g}") + 0.0
        return item

    return sorted(([value(item) for item in row] for row in rows), key=str)


def near(ours, theirs):
    assert len(ours) == len(theirs)
    for row, other in zip(ours, theirs):
        for item, wanted in zip(row, other):
            if isinstance(item, float) and isinstance(wanted, float):
                assert math.isclose(item, wanted, rel_tol=1e-5, abs_tol=1e-9), (row, other)
            else:
                assert item == wanted, (row, other)


def follow(spark, flow, rows, rows_in, query, outputs, steps):
    """Change the rows in some steps, and compare kept collections with plain Spark after each."""
    for time in range(1, steps + 1):
        gone, new = rows.change()
        if gone:
            rows_in.remove(gone)
        rows_in.insert(new)
        flow.advance_to(time)
        spark.createDataFrame(rows.there, COLUMNS).createOrReplaceTempView("t")
        wanted = shown(spark.sql(query).collect())
        spark.catalog.dropTempView("t")
        for output in outputs:
            near(shown(output.at().collect()), wanted)


def check_changes(spark, calls, runner, seed, steps=3):
    """Both doors, after each of some steps, against plain Spark."""
    texts = [f"{call} AS z{n}" for n, call in enumerate(calls)]
    query = f"SELECT k, {', '.join(texts)} FROM t GROUP BY k"
    rows = Rows(seed)
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        frame, rows_in = flow.input("t", COLUMNS)
        columns = [F.expr(call).alias(f"z{n}") for n, call in enumerate(calls)]
        outputs = [
            frame.groupBy("k").agg(*columns).keep("frame"),
            flow.sql(query).keep("text"),
        ]
        follow(spark, flow, rows, rows_in, query, outputs, steps)


@pytest.mark.parametrize("runner", ["local", "spark"])
@pytest.mark.parametrize("calls", [
    pytest.param(PAIRS, id="pairs"), pytest.param(NUMBERS, id="numbers"),
    pytest.param(ORDERED, id="ordered"), pytest.param(DISTINCT, id="distinct lists"),
    pytest.param(NUMBERED, id="numbered lists"),
])
def test_functions_while_rows_come_and_go(spark, calls, runner):
    check_changes(spark, calls, runner, seed=len(calls), steps=3 if runner == "local" else 2)


#: One function of each kind, for windows.
WINDOWED = [
    "corr(x, y)", "covar_pop(x, y)", "covar_samp(n, y)", "regr_avgx(x, n)", "regr_count(x, n)",
    "regr_intercept(x, n)", "regr_r2(x, y)", "regr_sxx(x, n)", "bit_and(n)", "bit_xor(b)",
    "bit_or(l)", "try_sum(l)", "try_avg(m)", "sum(i)", "first_value(t) IGNORE NULLS",
    "last(t, true)", "any_value(t)",
]


def test_functions_over_windows(spark):
    over = "OVER (PARTITION BY k ORDER BY y, n, b, m, l, x, t, i {})"
    frames = ["", "ROWS BETWEEN 3 PRECEDING AND 1 FOLLOWING"]
    texts = [
        f"{call} {over.format(frames[n % 2])} AS z{n}" for n, call in enumerate(WINDOWED)
    ]
    query = f"SELECT k, y, {', '.join(texts)} FROM t"
    rows = Rows(5)
    with Dataflow(spark, runner="local", buckets=2) as flow:
        frame, rows_in = flow.input("t", COLUMNS)
        outputs = [
            frame.select("k", "y", *map(F.expr, texts)).keep("frame"),
            flow.sql(query).keep("text"),
        ]
        follow(spark, flow, rows, rows_in, query, outputs, 2)


def answers(spark, calls, steps, schema="k int, x double, y double", exact=False):
    """The row of group 1 after each of some steps of insertions, or of removals as tuples."""
    results = []
    with Dataflow(spark, runner="local", buckets=1) as flow:
        frame, rows_in = flow.input("t", schema)
        output = frame.groupBy("k").agg(
            *[F.expr(c).alias(f"z{i}") for i, c in enumerate(calls)], exact=exact
        ).keep("answer")
        for time, (new, gone) in enumerate(steps, 1):
            rows_in.insert([(1, *row) for row in new])
            if gone:
                rows_in.remove([(1, *row) for row in gone])
            flow.advance_to(time)
            rows = output.at().collect()
            results.append(tuple(rows[0])[1:] if rows else None)
    return results


INF, NAN = math.inf, math.nan


@in_sql_text
@pytest.mark.parametrize("rows", [
    [(1.0, 2.0)], [(1.0, 2.0), (1.0, 3.0)], [(1.0, 2.0), (2.0, 2.0)], [(1.0, 2.0)] * 2,
    [(None, 1.0)], [(1.0, 2.0), (NAN, 3.0)], [(1.0, 2.0), (INF, 3.0)], [(1.0, 2.0), (3.0, -INF)],
    [(0.1, 0.3)] * 3, [(1e200, 1e200)], [(1e200, 2.0), (-1e200, 3.0)],
    [(1.0, 2.0), (2.0, 5.0), (None, 7.0), (3.0, None)], [(1e-170, 1.0), (3e-170, 4.0)],
])
def test_pairs_at_the_edges(spark, rows):
    calls = [call for call in PAIRS if call.startswith(("covar", "regr")) and " n" not in call
             and "m," not in call and "(n" not in call]
    calls += ["regr_sxx(x, y)", "regr_sxy(x, y)", "regr_syy(x, y)", "regr_intercept(x, y)",
              "regr_avgx(x, y)", "regr_avgy(x, y)", "regr_count(x, y)", "skewness(x)",
              "kurtosis(y)"]
    sizes = [abs(value) for row in rows for value in row if value and math.isfinite(value)]
    if max(sizes) > 1e100 or min(sizes) < 1e-100:
        # The library is exact here, but in Spark the powers of the values overflow.
        calls = [call for call in calls if "ness" not in call and "kurt" not in call]
    schema = "k int, x double, y double"
    frame = spark.createDataFrame([(1, *row) for row in rows], schema)
    exprs = [F.expr(call).alias(f"z{n}") for n, call in enumerate(calls)]
    wanted = shown([tuple(frame.groupBy("k").agg(*exprs).collect()[0])[1:]])
    extra = [(NAN, 1.0), (-INF, 2.0), (5.0, 2.0)]
    results = answers(spark, calls, [(rows, []), (extra, []), ([], extra)])
    near(shown([results[0]]), wanted)
    near(shown([results[2]]), wanted)


@pytest.mark.parametrize("ansi", [True, False])
def test_a_correlation_with_equal_values(spark, ansi):
    """An error as in Spark in ANSI mode, and null without it."""
    steps = [([(1.0, 2.0)], []), ([(1.0, 3.0)], []), ([(2.0, 4.0)], [])]
    old = spark.conf.get(ANSI)
    spark.conf.set(ANSI, str(ansi).lower())
    try:
        if ansi:
            assert answers(spark, ["corr(x, y)"], steps[:1]) == [(None,)]
            with pytest.raises(DiffError, match="divides by zero"):
                answers(spark, ["corr(x, y)"], steps[:2])
        else:
            assert answers(spark, ["corr(x, y)"], steps)[:2] == [(None,), (None,)]
        together = [row for new, _ in steps for row in new]
        (row,) = answers(spark, ["corr(x, y)"], [(together, [])])
        assert math.isclose(row[0], 0.8660254037844387)
    finally:
        spark.conf.set(ANSI, old)


def test_moments_of_a_mean_that_is_large(spark):
    """Third and fourth powers keep all digits under insertions and removals."""
    values = [1e9 + v for v in (0.0, 1.0, 1.0, 5.0)]
    expected = answers(spark, ["skewness(x)", "kurtosis(x)"],
                       [([(v - 1e9, None) for v in values], [])])[0]
    noise = [(1e300, None), (1e-300, None), (-3.7e120, None)]
    results = answers(spark, ["skewness(x)", "kurtosis(x)"],
                      [([(v, None) for v in values], []), (noise, []), ([], noise)])
    assert results[0] == expected and results[2] == expected
    assert math.isclose(expected[0], 0.9929662701927244, rel_tol=1e-9)


STATISTICS = [
    "var_pop(x)", "var_samp(x)", "stddev_pop(x)", "stddev(y)", "covar_pop(x, y)",
    "covar_samp(x, y)", "corr(x, y)", "regr_sxx(x, y)", "regr_sxy(x, y)", "regr_syy(x, y)",
    "regr_slope(x, y)", "regr_intercept(x, y)", "regr_r2(x, y)",
]


def statistics_of(pairs):
    """The statistics by fractions, each rounded once and roots once more."""
    n = len(pairs)
    x, y = ([Fraction(pair[side]) for pair in pairs] for side in (0, 1))
    a, b = sum(x) / n, sum(y) / n
    v, w = sum((i - a) ** 2 for i in x), sum((i - b) ** 2 for i in y)
    c = sum((i - a) * (j - b) for i, j in zip(x, y))
    return (
        float(v / n), float(v / (n - 1)), math.sqrt(v / n), math.sqrt(w / (n - 1)), float(c / n),
        float(c / (n - 1)), math.copysign(math.sqrt(c * c / (v * w)), c), float(w), float(c),
        float(v), float(c / w), float(a - c / w * b), float(c * c / (v * w)),
    )


def test_nothing_is_left_of_statistics_with_exact(spark):
    """The nearest doubles, with a mean of 1e15 deviations and after values of all sizes."""
    pairs = [(1e15 + v, 0.1 * v * v - 3e14) for v in (0.0, 0.125, 0.5, 1.0, 7.25)]
    noise = [(1e150, -3e140), (1e-160, 7.0), (-3.7e120, 1e-300), (5.0, 1e80)]
    steps = [(pairs, []), (noise, []), ([], noise), ([(INF, 1.0)], []), ([], [(INF, 1.0)])]
    results = answers(spark, STATISTICS, steps, exact=True)
    assert results[0] == results[2] == results[4] == statistics_of(pairs)
    assert results[1] == statistics_of([*pairs, *noise])
    assert all(math.isnan(value) for name, value in zip(STATISTICS, results[3]) if "y)" not in name)
    # Sums of pairs of doubles lose the digits here.
    assert answers(spark, STATISTICS[:2], steps[:3])[2] != results[2][:2]


@pytest.mark.parametrize("rows", [
    [(1.0, 2.0)], [(1.0, 2.0), (2.0, 2.0)], [(1.0, 2.0), (1.0, 3.0)], [(None, 1.0)],
    [(1.0, 2.0), (NAN, 3.0)], [(1.0, 2.0), (3.0, -INF)],
    [(1.0, 2.0), (2.0, 5.0), (None, 7.0), (3.0, None)],
    [(1.0, 2.0), (INF, 2.0)], [(INF, 2.0)], [(1.0, NAN), (1.0, 3.0)], [(INF, 1.0), (INF, 2.0)],
])
def test_exact_statistics_at_the_edges(spark, rows):
    """Statistics of one pair, equal values, nulls, NaN and infinities equal those of Spark."""
    calls = [call for call in STATISTICS if "corr" not in call]
    frame = spark.createDataFrame([(1, *row) for row in rows], "k int, x double, y double")
    exprs = [F.expr(call).alias(f"z{n}") for n, call in enumerate(calls)]
    wanted = shown([tuple(frame.groupBy("k").agg(*exprs).collect()[0])[1:]])
    near(shown(answers(spark, calls, [(rows, [])], exact=True)), wanted)


def test_an_exact_correlation_with_equal_values(spark):
    steps = [([(0.1, 2.0)], []), ([(0.1, 3.0)], [])]
    assert answers(spark, ["corr(x, y)"], steps[:1], exact=True) == [(None,)]
    with pytest.raises(DiffError, match="divides by zero"):
        answers(spark, ["corr(x, y)"], steps, exact=True)


@in_sql_text
def test_attempts_are_null_beyond_the_range(spark):
    top, schema = 2**63 - 1, "k int, x bigint, y decimal(38,0)"
    most = Decimal(10**38 - 1)
    calls = ["try_sum(x)", "try_sum(y)", "try_avg(y)", "try_avg(x)"]
    steps = [([(top, most)], []), ([(1, Decimal(1))], []), ([], [(1, Decimal(1))])]
    results = answers(spark, calls, steps, schema)
    assert [row[0] for row in results] == [top, None, top]
    assert [row[1] for row in results] == [most, None, most]
    frame = spark.createDataFrame([(1, top, most), (1, 1, Decimal(1))], schema)
    plain = frame.groupBy("k").agg(*map(F.expr, calls)).collect()[0]
    assert results[1][:2] == tuple(plain)[1:3] and results[1][2] == plain[3]


@pytest.mark.parametrize("runner", ["local", "spark"])
def test_any_record_is_one_record(spark, runner):
    """The functions of one `agg` take one record each, the same however the records came."""
    rows = [(1, None, "z"), (1, 5, "a"), (1, 2, "b"), (1, 2, None), (2, None, None), (3, 7, "c")]
    calls = [F.first("n"), F.first("t"), F.last("n"), F.last("t"), F.any_value("n"),
             F.any_value("t"), F.first("n", True), F.last("t", ignorenulls=True),
             F.expr("first(n) FILTER (WHERE n > 2)"), F.expr("any_value(t IGNORE NULLS)")]
    calls = [call.alias(f"z{n}") for n, call in enumerate(calls)]
    text = (
        "first(n) AS z0, first(t) AS z1, last(n) AS z2, last(t) AS z3, any_value(n) AS z4, "
        "any_value(t) AS z5, first(n, true) AS z6, last(t) IGNORE NULLS AS z7, "
        "first(n) FILTER (WHERE n > 2) AS z8, any_value(t IGNORE NULLS) AS z9"
    )
    first = {1: (None, "z"), 2: (None, None), 3: (7, "c")}
    last = {1: (5, "a"), 2: (None, None), 3: (7, "c")}
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        frame, rows_in = flow.input("t", "k int, n int, t string")
        outputs = [
            frame.groupBy("k").agg(*calls).keep("frame"),
            flow.sql(f"SELECT k, {text} FROM t GROUP BY k").keep("text"),
        ]
        rows_in.insert([*rows[::-1], (3, 1, "gone"), (4, 1, "gone")])
        flow.advance_to(1)
        rows_in.remove([(3, 1, "gone"), (4, 1, "gone")])
        flow.advance_to(2)
        for output in outputs:
            actual = {row[0]: tuple(row)[1:] for row in output.at().collect()}
            assert actual.keys() == first.keys()
            for k, row in actual.items():
                there = [(n, t) for key, n, t in rows if key == k]
                assert row[:2] == first[k] and row[2:4] == last[k] and row[4:6] == first[k]
                known = [n for n, _ in there if n is not None]
                texts = [t for _, t in there if t is not None]
                assert row[6] in (known or [None]) and row[7] in (texts or [None])
                large = [n for n in known if n > 2]
                assert row[8] in (large or [None]) and row[9] in (texts or [None])


@pytest.mark.parametrize(("wrong", "why"), [
    ("histogram_numeric(x, 3)", "the order in which Spark reads the rows"),
    ("listagg(t) WITHIN GROUP (ORDER BY array(n))", "has an order of type array"),
    ("bit_count_agg(n)", "Spark does not know|not supported"),
])
def test_functions_that_are_refused(spark, wrong, why):
    with Dataflow(spark, runner="local") as flow:
        frame, _ = flow.input("t", COLUMNS)
        with pytest.raises(SchemaError, match=why):
            frame.groupBy("k").agg(F.expr(wrong))
        for call in ("skewness(x)", "listagg(t)"):
            with pytest.raises(SchemaError, match="is not maintained over a window"):
                frame.select(F.expr(f"{call} OVER (PARTITION BY k)"))


TYPES = [
    "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(5,2)",
    "decimal(38,10)", "string", "binary", "date", "timestamp", "timestamp_ntz",
    "interval day to second", "array<int>", "map<string,int>", "struct<a:int>", "void",
]
OF_ONE = [
    "first(v)", "last(v, true)", "any_value(v)", "bit_and(v)", "bit_xor(v)", "try_sum(v)",
    "try_avg(v)", "listagg(v)", "listagg(v, '-') WITHIN GROUP (ORDER BY v DESC)", "array_agg(v)",
    "skewness(v)", "kurtosis(v)", "corr(v, v)", "regr_slope(v, v)", "regr_count(v, v)",
    "covar_samp(v, v)", "mode(v)", "percentile_cont(0.5) WITHIN GROUP (ORDER BY v DESC)",
]


@pytest.mark.parametrize("kind", [
    kind if kind == "int" else pytest.param(kind, marks=pytest.mark.slow) for kind in TYPES])
@pytest.mark.parametrize("rows", [[], [(None, 1), (None, 1)]], ids=["no rows", "nulls"])
def test_functions_of_nothing_and_of_nulls(spark, kind, rows):
    """Each call that Spark accepts has its value, in groups and over all, or is refused by name."""
    plain = spark.createDataFrame(rows, spark.sql(f"SELECT CAST(NULL AS {kind}) V, 1 k").schema)
    with Dataflow(spark, runner="local", buckets=2) as flow:
        frame, rows_in = flow.input("t", plain.schema)
        outputs = []
        for call in OF_ONE:
            column = F.expr(call).alias("z")
            for ours, theirs in (
                (lambda: frame.groupBy("K").agg(column), lambda: plain.groupBy("K").agg(column)),
                (lambda: frame.agg(column, empty=True), lambda: plain.agg(column)),
            ):
                try:
                    wanted = theirs().collect()
                except AnalysisException:
                    continue
                try:
                    outputs.append((call, ours().keep(), wanted))
                except DiffError:
                    assert kind == "void" or call.startswith(("try_", "percentile_cont"))
        if rows:
            rows_in.insert(plain)
        flow.advance_to(1)
        assert outputs
        for call, output, wanted in outputs:
            assert output.at().collect() == wanted, call
