"""Vector diffs and accumulators against plain Python: fractions, decimals, unlimited integers."""

from __future__ import annotations

import decimal
import math
import pickle
from collections import defaultdict
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pyspark_diff import DiffOverflowError
from pyspark_diff.kernels.accumulators import (
    Decimals,
    ExactFloats,
    Floats,
    FloatSquares,
    Integers,
    RowCount,
    Squares,
    Trues,
    Valid,
    layout_of,
    tally,
)
from pyspark_diff.kernels.diff_vectors import (
    DiffVectors,
    add_at,
    concat_vectors,
    running,
    sum_vectors,
)
from pyspark_diff.kernels.results import (
    CountResult,
    DecimalAverage,
    DecimalSum,
    ExactAverage,
    ExactSum,
    FloatAverage,
    FloatSum,
    FloatVariance,
    IntegerAverage,
    IntegerSum,
    IntegerVariance,
    GroupSums,
)

many = settings(max_examples=8 * settings().max_examples)

LEAST, MOST = -(2**63), 2**63 - 1
NAN, INF = math.nan, math.inf
TINY, HUGE = 5e-324, 1.7976931348623157e308

integers = st.sampled_from([None, LEAST, LEAST + 1, MOST, -(2**32), 2**32, -1, 0, 1]) | (
    st.integers(LEAST, MOST) | st.integers(-9, 9)
)
moderate = st.floats(-1e12, 1e12).filter(lambda x: x == 0 or abs(x) > 1e-12) | st.sampled_from(
    [0.1, -0.1, 1e12, -0.0, None]
)
floats = st.sampled_from([None, TINY, -TINY, HUGE, -HUGE, 1e308, NAN, INF, -INF, 0.0, -0.0]) | (
    st.floats()
)
decimals = st.none() | st.integers(-(10**38) + 1, 10**38 - 1) | st.integers(-99, 99)
#: A dozen of the largest diffs cannot overflow a component.
diffs = st.sampled_from([1, -1, 2, -2, 0, 2**27, -(2**27)]) | st.integers(-5, 5)
GROUPS = 3


def rows_of(values):
    return st.lists(st.tuples(st.integers(0, GROUPS - 1), values, diffs), max_size=12)


def arrow(values, kind):
    if pa.types.is_decimal(kind):
        values = [None if x is None else decimal.Decimal(x) for x in values]
    # A slice of a longer column, so that each buffer begins before the rows.
    return pa.array([None, *values[:1], None, *values], kind)[2 + len(values[:1]):]


def tallied(accumulators, rows, kind):
    """The vectors of (group, value, diff) rows."""
    group, values, diff = zip(*rows) if rows else ((), (), ())
    column = arrow(list(values), kind)
    where = np.array(group, np.int64)
    return tally(accumulators, [column], where, GROUPS, np.array(diff, np.int64))


def finish(result, vectors, accumulators):
    """A result of the vectors of some accumulators, as an Arrow column."""
    return result.evaluate(GroupSums(vectors, dict(zip(accumulators, layout_of(accumulators)[0]))))


def added(*parts):
    table = parts[0].zeros(len(parts[0]))
    for part in parts:
        add_at(table, np.arange(len(part)), part)
    return table


def whole(vectors, at, limbs):
    return [sum(int(x) << 32 * k for k, x in enumerate(row[at:at + limbs]))
            for row in vectors.values]


def pair(vectors, at):
    return [
        (Fraction(a) + Fraction(b)) * (1 if abs(a) >= abs(b) else 2**128)
        for a, b in vectors.reals[:, at:at + 2].tolist()
    ]


def groups_of(rows):
    """Values that are not null, and their diffs, of each group."""
    members = defaultdict(list)
    for group, x, d in rows:
        if x is not None:
            members[group].append((x, d))
    return [members[g] for g in range(GROUPS)]


def nearest(exact, by=1, unit=0):
    """The double nearest to a fraction."""
    exact = Fraction(exact) / by
    try:
        return exact.numerator / exact.denominator
    except OverflowError:
        return INF if exact > 0 else -INF


def same(got, expected):
    assert len(got) == len(expected)
    for a, b in zip(got, expected):
        assert a == b or (a != a and b != b), (got, expected)


def close(got, expected, size, tolerance=Fraction(1, 10**25)):
    assert abs(Fraction(got) - Fraction(expected)) <= tolerance * Fraction(size)


# DiffVectors.

counters = st.integers(-4, 4)
mixed_rows = st.lists(
    st.tuples(st.integers(-2, 2), counters, st.integers(-8, 8).map(float), counters), max_size=20
)


def mixed(rows):
    """DiffVectors of a counter, a pair and another counter."""
    values = np.zeros((len(rows), 4), np.int64)
    values[:, 0] = [row[1] for row in rows]
    values[:, 3] = [row[3] for row in rows]
    vectors = DiffVectors(values, (1,))
    vectors.reals[:, 1] = [row[2] for row in rows]
    return vectors


@given(mixed_rows, st.booleans())
def test_sum_vectors(rows, ordered):
    if ordered:
        rows = sorted(rows, key=lambda row: row[0])
    codes, sums = sum_vectors(np.array([row[0] for row in rows], np.int64), mixed(rows))
    expected = {}
    for code, *vectors in rows:
        expected[code] = [a + b for a, b in zip(expected.get(code, [0, 0, 0]), vectors)]
    expected = {code: vectors for code, vectors in sorted(expected.items()) if any(vectors)}
    assert codes.tolist() == list(expected)
    assert sums.nonzero().all() and len(sums) == len(codes)
    got = [[int(v[0]), float(r[1]), int(v[3])] for v, r in zip(sums.values, sums.reals)]
    assert got == list(expected.values())


@given(st.lists(mixed_rows.filter(len), max_size=4))
def test_running(parts):
    starts = np.cumsum([0, *map(len, parts)])[:-1].astype(np.int64)
    vectors = mixed([row for part in parts for row in part])
    base = mixed([(0, g, -g, 7) for g in range(len(parts))])
    before, after = running(vectors, starts, base)
    i = 0
    for g, part in enumerate(parts):
        state = base.take(slice(g, g + 1))
        for row in part:
            assert before.values[i].tolist() == state.values[0].tolist()
            add_at(state, np.zeros(1, np.int64), mixed([row]))
            assert after.values[i].tolist() == state.values[0].tolist()
            i += 1


def test_moves_and_zeros():
    vectors = mixed([(0, 1, 0.0, 0), (0, 0, -0.0, 0), (0, 0, 2.0, 0)])
    assert vectors.nonzero().tolist() == [True, False, True]
    assert vectors.take(np.array([2, 0])).values.tolist() == vectors.values[[2, 0]].tolist()
    selected = vectors.take(np.array([True, False, True]))
    assert selected.values.tolist() == vectors.values[::2].tolist()
    assert vectors.take(slice(1, 3)).values.flags.c_contiguous
    assert vectors.zeros(2).pairs == (1,) and not vectors.zeros(2).nonzero().any()
    assert concat_vectors([vectors, vectors.zeros(1)]).values.shape == (4, 4)
    codes, sums = sum_vectors(np.empty(0, np.int64), vectors.zeros(0))
    assert len(codes) == len(sums) == 0


@given(st.lists(st.sampled_from([LEAST, MOST, -1, 0, 1, 2**62]), min_size=1, max_size=5))
def test_counter_overflow(values):
    steps = np.cumsum(np.array(values, object))
    vectors = DiffVectors(np.array(values, np.int64)[:, None])
    zero = np.zeros(len(values), np.int64)
    calls = [
        lambda: sum_vectors(zero, vectors)[1].values.ravel().tolist(),
        lambda: running(vectors, zero[:1], vectors.zeros(1))[1].values[-1].tolist(),
    ]
    for call in calls:
        if all(LEAST <= step <= MOST for step in steps):
            assert call() == [steps[-1]] or (steps[-1] == 0 and call() == [])
        else:
            with pytest.raises(DiffOverflowError, match="64-bit integers"):
                call()


words = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(
    [HUGE, -HUGE, 2.0**1000, -(2.0**1000), math.nextafter(2.0**1000, 0), TINY, 0.0, -0.0]
)


@many
@given(st.lists(words, min_size=1, max_size=12), st.data())
def test_pairs_leave_the_range_of_doubles_and_come_back(values, data):
    """In any order and any cut; a value and its retraction leave nothing."""
    vectors = DiffVectors(np.zeros((2 * len(values), 2), np.int64), (0,))
    vectors.reals[:, 0] = values + [-x for x in values]
    size = sum(abs(Fraction(x)) for x in values)
    cut = data.draw(st.integers(0, len(values)))
    table = vectors.zeros(1)
    for rows in (slice(0, cut), slice(cut, len(values))):
        _, sums = sum_vectors(np.zeros(rows.stop - rows.start, np.int64), vectors.take(rows))
        add_at(table, np.zeros(len(sums), np.int64), sums)
    total = sum(map(Fraction, values))
    close(pair(table, 0)[0], total, size)
    (a, b), = table.reals.tolist()
    assert math.isfinite(a) and math.isfinite(b)
    assert abs(a) >= abs(b) or abs(b) * 2.0**128 >= 2.0**1000
    order = data.draw(st.permutations(range(len(values))))
    _, after = running(vectors.take(len(values) + np.array(order)), np.zeros(1, np.int64), table)
    close(pair(after, 0)[-1], 0, size)
    opposites = vectors.take(np.array([0, len(values)]))
    assert len(sum_vectors(np.zeros(2, np.int64), opposites)[0]) == 0


# Accumulators.


def test_layout():
    accumulators = [RowCount(), *(
        kind(0) for kind in (Floats, Trues, FloatSquares, ExactFloats, Integers, Decimals, Squares)
    )]
    offsets, width, pairs = layout_of(accumulators)
    assert offsets == (0, 1, 6, 7, 10, 79, 81, 85) and width == 89 and pairs == (1, 7)


@given(rows_of(st.sampled_from([True, False, None])), st.integers(-2, 2))
def test_counts(rows, diff):
    accumulators = [RowCount(), Valid(0), Trues(0)]
    expected = [[0, 0, 0] for _ in range(GROUPS)]
    for group, x, d in rows:
        adds = (1, x is not None, x is True)
        expected[group] = [a + b * d for a, b in zip(expected[group], adds)]
    assert tallied(accumulators, rows, pa.bool_()).values.tolist() == expected
    vectors = tallied(accumulators, [(group, x, diff) for group, x, _ in rows], pa.bool_())
    where = np.array([row[0] for row in rows], np.int64)
    column = arrow([row[1] for row in rows], pa.bool_())
    counted = tally(accumulators, [column], where, GROUPS, diff)
    assert counted.values.tolist() == vectors.values.tolist()


INTEGERS = [Valid(0), Integers(0), Squares(0)]
DOUBLE = pa.float64()


@many
@given(rows_of(integers), st.sampled_from([0, 1]))
def test_integers(rows, ddof):
    vectors = tallied(INTEGERS, rows, pa.int64())
    groups = groups_of(rows)
    n = [sum(d for _, d in group) for group in groups]
    total = [sum(x * d for x, d in group) for group in groups]
    squares = [sum(x * x * d for x, d in group) for group in groups]
    assert whole(vectors, 1, 2) == total and whole(vectors, 3, 4) == squares

    def ask(result):
        return finish(result, vectors, INTEGERS).to_pylist()

    assert ask(CountResult(pa.int64(), Valid(0))) == n
    same(ask(IntegerAverage(DOUBLE, 0)), [nearest(t, c) if c else None for t, c in zip(total, n)])
    variances = [
        nearest(c * q - t * t, c * (c - ddof)) if c * (c - ddof) else None
        for t, q, c in zip(total, squares, n)
    ]
    same(ask(IntegerVariance(DOUBLE, 0, ddof)), variances)
    roots = [None if v is None else math.sqrt(v) if v >= 0 else NAN for v in variances]
    same(ask(IntegerVariance(DOUBLE, 0, ddof, root=True)), roots)
    if all(LEAST <= t <= MOST or not c for t, c in zip(total, n)):
        assert ask(IntegerSum(pa.int64(), 0)) == [t if c else None for t, c in zip(total, n)]
    else:
        with pytest.raises(DiffOverflowError, match="does not fit"):
            ask(IntegerSum(pa.int64(), 0))


@given(rows_of(st.integers(-100, 100)), st.sampled_from([pa.int8(), pa.int16(), pa.int32()]))
def test_narrow_integers(rows, kind):
    vectors, wide = (tallied(INTEGERS, rows, k) for k in (kind, pa.int64()))
    assert vectors.values.tolist() == wide.values.tolist()


def test_booleans_and_nulls_as_integers():
    rows = [(0, True, 3), (1, False, 2), (2, None, 1)]
    assert whole(tallied(INTEGERS, rows, pa.bool_()), 1, 2) == [3, 0, 0]
    nulls = tallied(INTEGERS, [(0, None, 1)], pa.null())
    assert not nulls.nonzero().any()
    assert finish(IntegerSum(pa.int64(), 0), nulls, INTEGERS).to_pylist() == [None] * GROUPS


@pytest.mark.parametrize("n", [2**31, 2**40 + 1, -(2**35)])
def test_variance_of_large_counts(n):
    """The vectors of a group with more rows than a test can have."""
    values = np.array([[n, 3 * n + 1, 0, 10 * n, 0, 0, 0]])
    vectors = DiffVectors(values)
    expected = nearest(n * 10 * n - (3 * n + 1) ** 2, n * (n - 1))
    assert finish(IntegerVariance(DOUBLE, 0, 1), vectors, INTEGERS).to_pylist() == [expected]


DECIMALS = [Valid(0), Decimals(0)]


@many
@given(rows_of(decimals))
def test_decimals(rows):
    vectors = tallied(DECIMALS, rows, pa.decimal128(38, 0))
    groups = groups_of(rows)
    n = [sum(d for _, d in group) for group in groups]
    total = [sum(x * d for x, d in group) for group in groups]
    assert whole(vectors, 1, 4) == total
    with decimal.localcontext(prec=200):
        for result in [
            DecimalSum(pa.decimal128(38, 2), 0),
            DecimalSum(pa.decimal128(10, 2), 0),
            DecimalAverage(pa.decimal128(38, 6), 0, 2),
        ]:
            kind = result.kind
            unit = decimal.Decimal(1).scaleb(-kind.scale)
            expected = []
            for t, c in zip(total, n):
                by = c if isinstance(result, DecimalAverage) else 1
                exact = decimal.Decimal(t).scaleb(-2) / by if c else None
                expected.append(exact and exact.quantize(unit, decimal.ROUND_HALF_UP))
            limit = decimal.Decimal(10) ** (kind.precision - kind.scale)
            if all(x is None or abs(x) < limit for x in expected):
                got = finish(result, vectors, DECIMALS)
                got.validate(full=True)
                assert got.to_pylist() == expected
            else:
                with pytest.raises(DiffOverflowError, match="does not fit"):
                    finish(result, vectors, DECIMALS)


def test_avg_decimal_rounds_ties_away_from_zero():
    kind = pa.decimal128(38, 0)
    vectors = tallied(DECIMALS, [(0, 1, 1), (0, 0, 1), (1, -1, 1), (1, 0, 1)], kind)
    averages = finish(DecimalAverage(kind, 0, 0), vectors, DECIMALS)
    assert averages.to_pylist() == [1, -1, None]


FLOATS = [Valid(0), Floats(0), FloatSquares(0)]
EXACT = [Valid(0), ExactFloats(0)]
SUM, AVERAGE, VARIANCE = FloatSum(DOUBLE, 0), FloatAverage(DOUBLE, 0), FloatVariance(DOUBLE, 0)
EXACT_SUM, EXACT_AVERAGE = ExactSum(DOUBLE, 0), ExactAverage(DOUBLE, 0)


@many
@given(rows_of(moderate), st.sampled_from([0, 1]))
def test_floats(rows, ddof):
    vectors = tallied(FLOATS, rows, pa.float64())
    for g, group in enumerate(groups_of(rows)):
        exact = [(Fraction(x), d) for x, d in group]
        size = sum(abs(x * d) for x, d in exact)
        square_size = sum(x * x * abs(d) for x, d in exact)
        total, squares = (sum(x**k * d for x, d in exact) for k in (1, 2))
        close(pair(vectors, 1)[g], total, size)
        close(pair(vectors, 6)[g], squares, square_size)
        n = sum(d for _, d in group)

        def ask(result):
            return finish(result, vectors, FLOATS)[g].as_py()

        if n == 0:
            assert ask(SUM) is ask(AVERAGE) is ask(VARIANCE) is None
            continue
        ulps = Fraction(1, 2**51)
        close(ask(SUM), total, abs(total) + size / 10**14, ulps)
        close(ask(AVERAGE), total / n, (abs(total) + size / 10**14) / abs(n), ulps)
        if n == ddof:
            assert ask(FloatVariance(DOUBLE, 0, ddof)) is None
            continue
        expected = (squares - total * total / n) / (n - ddof)
        got = ask(FloatVariance(DOUBLE, 0, ddof))
        slack = (square_size + size * size / abs(n)) / abs(n - ddof) / 10**20
        assert abs(Fraction(got) - expected) <= abs(expected) / 10**14 + slack
        if n > 1 and all(d >= 0 for _, d in group):
            assert got >= 0


@many
@given(rows_of(floats))
def test_special_floats(rows):
    vectors = tallied(EXACT, rows, pa.float64())
    sums, averages = [], []
    for group in groups_of(rows):
        n = sum(d for _, d in group)
        exact = sum(Fraction(x) * d for x, d in group if math.isfinite(x))
        nan, plus, minus = (
            sum(d for x, d in group if is_(x)) != 0
            for is_ in (math.isnan, lambda x: x == INF, lambda x: x == -INF)
        )
        special = NAN if nan or (plus and minus) else INF if plus else -INF if minus else None
        for results, by in ((sums, 1), (averages, n)):
            if n == 0:
                results.append(None)
            else:
                results.append(nearest(exact, by) if special is None else special / by)
    same(finish(EXACT_SUM, vectors, EXACT).to_pylist(), sums)
    same(finish(EXACT_AVERAGE, vectors, EXACT).to_pylist(), averages)
    paired = tallied(FLOATS, rows, pa.float64())
    # Equal counts follow the same rules; only finite sums differ, by rounding.
    for result, exactly in ((SUM, sums), (AVERAGE, averages)):
        actual = finish(result, paired, FLOATS).to_pylist()
        for got, expected in zip(actual, exactly):
            if expected is None or not math.isfinite(expected):
                assert got == expected or (got != got and expected != expected)
    for got, group in zip(finish(VARIANCE, paired, FLOATS).to_pylist(), groups_of(rows)):
        special = sum(d for x, d in group if math.isnan(x))
        if special and sum(d for _, d in group):
            assert math.isnan(got)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=30))
def test_exact_sum_is_fsum(values):
    try:
        expected = math.fsum(values)
    except OverflowError:
        assume(False)
    vectors = tallied(EXACT, [(0, x, 1) for x in values], pa.float64())
    got = finish(EXACT_SUM, vectors, EXACT)[0].as_py()
    assert got == (expected if values else None)


def test_extreme_floats():
    def ask(result, *values):
        rows = [(0, x, d) for x, d in values]
        accumulators = result.accumulators
        return finish(result, tallied(accumulators, rows, DOUBLE), accumulators)[0].as_py()

    assert ask(EXACT_SUM, (HUGE, 2)) == INF
    assert ask(EXACT_SUM, (HUGE, 2), (HUGE, -1)) == HUGE
    assert ask(EXACT_AVERAGE, (HUGE, 3)) == HUGE
    assert ask(EXACT_SUM, (TINY, 3), (1e308, 1), (1e308, -1)) == 3 * TINY
    assert ask(SUM, (1e307, 17)) == nearest(Fraction(1e307) * 17)
    assert ask(SUM, (0.1, 2**60 + 1)) == nearest(Fraction(0.1) * (2**60 + 1))
    assert ask(SUM, (0.1, LEAST)) == 0.1 * float(LEAST)
    assert ask(SUM, (TINY, 3), (TINY, -1)) == 2 * TINY
    assert ask(VARIANCE, (0.1, 1)) == 0
    assert math.isnan(ask(VARIANCE, (1e200, 1), (0.0, 1)))
    # A sum beyond the range of doubles is infinite, but its vector stays exact.
    assert ask(SUM, (HUGE, 2)) == ask(SUM, (HUGE, MOST)) == ask(SUM, (1e308, 1), (1e308, 1)) == INF
    assert ask(SUM, (HUGE, LEAST)) == ask(SUM, (-HUGE, 2), (1.0, 1)) == -INF
    assert ask(SUM, (HUGE, 2), (HUGE, -1)) == ask(SUM, (HUGE, MOST), (HUGE, 1 - MOST)) == HUGE
    assert ask(SUM, (HUGE, 2), (HUGE, -2), (TINY, 1)) == TINY
    assert ask(AVERAGE, (HUGE, 3)) == HUGE and ask(AVERAGE, (HUGE, 2), (-HUGE, 1)) == HUGE / 3
    assert ask(VARIANCE, (1e154, 1), (-1e154, 1)) == nearest(Fraction(1e154) ** 2)
    assert ask(FloatVariance(DOUBLE, 0, 1), (1e154, 1), (-1e154, 1)) == INF
    root = ask(FloatVariance(DOUBLE, 0, 0, True), (1e154, 5), (-1e154, 5))
    assert math.isclose(root, 1e154, rel_tol=1e-15)


def test_float32():
    vectors, wide = (
        tallied([*FLOATS, ExactFloats(0)], [(0, 1.5, 3), (1, NAN, 1), (2, None, 1)], kind)
        for kind in (pa.float32(), pa.float64())
    )
    assert vectors.values.tolist() == wide.values.tolist()


@pytest.mark.parametrize("accumulator, column", [
    (Integers(0), pa.int64()), (Squares(0), pa.int64()), (Decimals(0), pa.decimal128(38, 0)),
    (ExactFloats(0), pa.float64()),
])
@pytest.mark.parametrize("diff", [2**31, -(2**31), LEAST, MOST])
def test_multiplicity_too_large(accumulator, column, diff):
    with pytest.raises(DiffOverflowError, match="too large for an exact sum"):
        tallied([accumulator], [(0, 1, diff)], column)
    # A null is not multiplied.
    assert not tallied([accumulator], [(0, None, diff)], column).nonzero().any()


@pytest.mark.parametrize("accumulator", [RowCount(), Valid(0), Trues(0)])
def test_count_overflow(accumulator):
    with pytest.raises(DiffOverflowError, match="64-bit integers"):
        tallied([accumulator], [(0, True, MOST), (0, True, 1)], pa.bool_())
    vectors = tallied([accumulator], [(0, True, MOST), (0, True, LEAST)], pa.bool_())
    assert vectors.values[0].tolist() == [-1]


@pytest.mark.parametrize("x", [LEAST, MOST, -1])
@pytest.mark.parametrize("diff", [2**31 - 1, 1 - 2**31])
def test_largest_multiplicity(x, diff):
    vectors = tallied(INTEGERS, [(0, x, diff)], pa.int64())
    assert whole(vectors, 1, 2)[0] == x * diff and whole(vectors, 3, 4)[0] == x * x * diff


def test_limb_overflow():
    rows = [(0, 2**32 - 1, 2**31 - 1)] * 3
    with pytest.raises(DiffOverflowError, match="64-bit integers"):
        tallied([Integers(0)], rows, pa.int64())


#: Accumulators whose vectors have only counters: the order of additions has no effect.
COUNTERS = {
    Integers: (pa.int64(), integers),
    Squares: (pa.int64(), integers),
    Decimals: (pa.decimal128(38, 0), decimals),
    ExactFloats: (pa.float64(), floats),
}


@pytest.mark.parametrize("kind", COUNTERS)
@given(data=st.data())
def test_exact_vectors_are_additive(kind, data):
    column, values = COUNTERS[kind]
    accumulators = [RowCount(), Valid(0), kind(0)]
    # Few rows and small diffs, so that no order of additions overflows.
    row = st.tuples(st.integers(0, GROUPS - 1), values, st.integers(-3, 3))
    rows = data.draw(st.lists(row, max_size=12))
    vectors = tallied(accumulators, rows, column)
    shuffled = data.draw(st.permutations(rows))
    cut = data.draw(st.integers(0, len(rows)))
    parts = [tallied(accumulators, part, column) for part in (shuffled[:cut], shuffled[cut:])]
    assert added(*parts).values.tolist() == vectors.values.tolist()
    codes = np.tile(np.arange(GROUPS), 2)
    _, sums = sum_vectors(codes, concat_vectors(parts))
    assert sums.values.tolist() == vectors.values[vectors.nonzero()].tolist()
    retracted = tallied(accumulators, [(group, x, -d) for group, x, d in shuffled], column)
    assert not added(vectors, retracted).nonzero().any()


@given(rows_of(moderate), st.data())
def test_float_vectors_are_additive(rows, data):
    rows = [(group, x, d % 7 - 3) for group, x, d in rows]
    vectors = tallied(FLOATS, rows, pa.float64())
    shuffled = data.draw(st.permutations(rows))
    cut = data.draw(st.integers(0, len(rows)))
    parts = [tallied(FLOATS, part, pa.float64()) for part in (shuffled[:cut], shuffled[cut:])]
    retracted = tallied(FLOATS, [(group, x, -d) for group, x, d in shuffled], pa.float64())
    for at, power in ((1, 1), (6, 2)):
        sizes = [sum(abs(Fraction(x) ** power * d) for x, d in group) for group in groups_of(rows)]
        for got, expected, left, size in zip(
            pair(added(*parts), at), pair(vectors, at), pair(added(vectors, retracted), at), sizes
        ):
            close(got, expected, size)
            close(left, 0, size)
    counters = [0, 3, 4, 5, 8]
    assert added(*parts).values[:, counters].tolist() == vectors.values[:, counters].tolist()
    # The retraction of a single row leaves nothing at all.
    if len(rows) == 1:
        assert not added(vectors, retracted).nonzero().any()


def test_slices_do_not_show(use_thresholds):
    rows = [(i % GROUPS, None if i % 5 == 0 else i, i % 7 - 3) for i in range(100)]
    expected = tallied(INTEGERS, rows, pa.int64()).values.tolist()
    use_thresholds(accumulate_slice_rows=7)
    assert tallied(INTEGERS, rows, pa.int64()).values.tolist() == expected


def test_accumulators_and_results_are_values():
    """They are sent to other processes, and stay distinct there."""
    values = [RowCount(), Valid(0), Valid(1), *INTEGERS[1:], *DECIMALS[1:], *FLOATS[1:], *EXACT[1:]]
    values += [SUM, AVERAGE, VARIANCE, EXACT_SUM, IntegerSum(pa.int64(), 0), Trues(0)]
    values += [DecimalAverage(pa.decimal128(9, 2), 0, 2), FloatVariance(DOUBLE, 0, 1)]
    assert len(set(values)) == len(values)
    assert pickle.loads(pickle.dumps(values)) == values


def test_no_rows():
    vectors = tally(INTEGERS, [pa.array([], pa.int64())], np.empty(0, np.int64), 0, 1)
    assert len(vectors) == 0
    for result in (IntegerSum, IntegerAverage, IntegerVariance):
        assert len(finish(result(pa.int64(), 0), vectors, INTEGERS)) == 0
