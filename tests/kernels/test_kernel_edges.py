"""Kernels at the edges of their input: one row, the largest number, a time without rows."""

import datetime
import decimal
import importlib.util
import statistics
from fractions import Fraction
from types import SimpleNamespace
from unittest import mock

import numba
import numpy as np
import pyarrow as pa
import pytest

from pyspark_diff.errors import DiffOverflowError
from pyspark_diff.kernels import blocks, calendar, jit, tallies
from pyspark_diff.kernels import updates as updates_kernel
from pyspark_diff.kernels.accumulators import layout_of, tally
from pyspark_diff.kernels.blocks import spare_bits
from pyspark_diff.kernels.consolidate import runs_of
from pyspark_diff.kernels.diff_vectors import MULTIPLICITY
from pyspark_diff.kernels.quotients import quotients
from pyspark_diff.kernels.ranking import pack
from pyspark_diff.kernels.results import FloatVariance, GroupSums, IntegerSum, _rounded
from pyspark_diff.kernels.standing import snapshot
from pyspark_diff.kernels.updates import OffsetOverflow, UpdateChunk, concat
from pyspark_diff.kernels.windows import _none_owed


def keys(*numbers, columns=True, time=0):
    key64 = np.array(numbers, np.int64)
    return UpdateChunk(key64, (pa.array(numbers, pa.int64()),) if columns else None, time, 1)


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("numbers", [(), (5,), (5, 7), (5, 7, 9)])
def test_each_of_few_keys_is_a_run(numbers, columns):
    runs = runs_of(keys(*numbers, columns=columns))
    assert runs.starts.tolist() == list(range(len(numbers)))


@pytest.mark.parametrize("columns", [False, True])
def test_nothing_of_a_batch_of_one_time_stands_before_it(columns):
    batch = keys(5, 7, columns=columns, time=3)
    assert [len(part) for part in snapshot([batch], 2) if len(part)] == []
    assert [len(part) for part in snapshot([batch], 3)] == [2]


def sums(*numbers):
    rows = [[abs(n) >> 32 * k & (2**32 - 1) for k in range(5)] for n in numbers]
    signs = np.where(np.array(numbers, object) < 0, -1, 1).astype(np.int64)
    return SimpleNamespace(values=np.array(rows, np.int64) * signs[:, None])


@pytest.mark.parametrize("kind, limit", [
    (pa.decimal128(38), 10**38), (pa.decimal128(25), 10**25), (pa.decimal128(20), 10**20),
    (pa.decimal128(5), 10**5), (pa.int64(), 2**127),
])
def test_the_last_sum_that_a_type_has_room_for(kind, limit):
    counts = np.ones(2, np.int64)

    def rounded(*numbers):
        return _rounded(sums(*numbers), 0, 5, counts, kind, divide=False, tens=0)

    words, fit = rounded(limit - 1, 1 - limit)
    assert [(b << 64) + (a % 2**64) for a, b in words.tolist()] == [limit - 1, 1 - limit]
    assert fit.tolist() == [True, True]
    for number in (limit, -limit):
        assert rounded(0, number)[1].tolist() == [True, False]


@pytest.mark.parametrize("message, kind", [
    ("offset overflow while concatenating arrays", OffsetOverflow), ("no memory", pa.ArrowInvalid),
])
def test_a_column_of_more_than_offsets_can_count_is_refused_by_name(monkeypatch, message, kind):
    def refuse(chunks):
        raise pa.ArrowInvalid(message)

    monkeypatch.setattr(updates_kernel.pa, "concat_arrays", refuse)
    with pytest.raises(kind):
        concat([keys(1), keys(2)])


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 1000, -7])
def test_a_quotient_is_rounded_half_away_from_zero(divisor):
    numbers = [0, 1, -1, 5, -5, 10**30 + 1, -(10**30), 2**96, 2**64 - 1, 3 * 10**36]
    words, _ = _rounded(
        sums(*numbers), 0, 5, np.full(len(numbers), divisor, np.int64), pa.decimal128(38),
        divide=True, tens=1)
    quotients = [(b << 64) + a % 2**64 for a, b in words.tolist()]
    signs = [1 if number * divisor >= 0 else -1 for number in numbers]
    assert quotients == [
        sign * ((20 * abs(number) + abs(divisor)) // (2 * abs(divisor)))
        for sign, number in zip(signs, numbers)]


def test_parts_of_dates_are_those_of_python():
    days = [datetime.date(1899, 1, 1) + datetime.timedelta(n) for n in range(0, 80_000, 3)]
    dates = pa.array(days, pa.date32())
    assert calendar.year(dates).to_pylist() == [day.year for day in days]
    assert calendar.quarter(dates).to_pylist() == [(day.month + 2) // 3 for day in days]
    assert calendar.month(dates).to_pylist() == [day.month for day in days]
    assert calendar.day(dates).to_pylist() == [day.day for day in days]


@pytest.mark.parametrize("divisor", [1, 3, 7, 10**9 + 7, 2**62 + 1, -3])
def test_an_average_is_the_nearest_double(divisor):
    numbers = [0, 3, 2**53 + 1, -(2**53) - 3, 2**64 - 1, 10**30 + 1, -(2**96) - 1, 3 * 10**36]
    averages = np.zeros(len(numbers))
    quotients(
        sums(*numbers).values, 0, 5, np.full(len(numbers), divisor, np.int64), 0, averages)
    assert averages.tolist() == [float(Fraction(number, divisor)) for number in numbers]


def test_open_times_have_no_count_below_zero():
    """Two candidates have several events each; the first events lie before the open times."""
    rows = SimpleNamespace(
        cand=np.array([0, 1, 0, 1, 0, 1]), time=np.array([1, 1, 2, 2, 3, 3]),
        base=np.array([1, 2]), diff=np.array([-2, 1, -1, -5, 3, 4]))
    # The counts are -1, -2, 1 and 3, -2, 2.
    assert _none_owed(rows, 2).tolist() == [-2, 1, 1, -3, 1, 2]
    assert _none_owed(rows, 9).tolist() == rows.diff.tolist()


def with_bounds(name):
    """Compile a module of kernels again, so that an index out of bounds is an error."""
    spec = importlib.util.find_spec(f"pyspark_diff.kernels.{name}")
    module = importlib.util.module_from_spec(spec)

    def compiled(function, declared=(), *, inline=False):
        return numba.njit(boundscheck=True)(function)

    with mock.patch.object(jit, "_compiled", compiled):
        spec.loader.exec_module(module)
    return module


def test_variances_stay_within_their_arrays():
    lists = [[1, 2, 4], [2**62, -(2**62), 2**62, 7], [-5], [3, 3], [-(2**63), 2**63 - 1] * 5]
    values = np.array([
        [*sums(*numbers).values.sum(0), *sums(*(x * x for x in numbers)).values.sum(0)]
        for numbers in lists])
    counts, variances = np.array([len(numbers) for numbers in lists]), np.zeros(len(lists))
    with_bounds("quotients").variances(values, 0, 5, counts, 1, variances)
    assert variances.tolist() == [
        float(Fraction(len(numbers) * sum(x * x for x in numbers) - sum(numbers) ** 2,
                       len(numbers) * (len(numbers) - 1))) if len(numbers) > 1 else 0
        for numbers in lists]


def test_visits_stay_within_their_arrays():
    visits = with_bounds("indexed_replay").visits
    for keys, due in [([1, 1, 4], [0, 4, 6]), ([7, 8], [3]), ([], [2]), ([5, 5], []), ([], [])]:
        visited, starts = visits(np.array(keys, np.int64), np.array(due, np.int64))
        assert visited.tolist() == sorted({*keys, *due})
        assert starts.tolist() == [*(sum(k < key for k in keys) for key in visited), len(keys)]


@pytest.mark.parametrize("digits", [3, 18, 19, 25, 38])
def test_numbers_of_decimals_are_as_many_of_their_bits_as_fit(digits):
    spare = spare_bits(digits)
    wanted = [-(10**digits - 1), -5, 0, 7, 10**digits - 1]
    with decimal.localcontext(prec=40):
        column = pa.array([decimal.Decimal(n) for n in wanted], pa.decimal128(digits))
    assert blocks.numbers(column, None).tolist() == [n >> spare for n in wanted]
    assert (spare == 0) == (digits <= 18)


@pytest.mark.parametrize("numbers", [
    [2**62], [2**62, 2**62 - 1], [-(2**62), -(2**62)], [-(2**63)], [2**63 - 1, -1], [-(2**62) - 1],
])
def test_a_sum_of_integers_may_have_all_of_64_bits(numbers):
    result = IntegerSum(pa.int64(), 0)
    accumulators = result.accumulators

    def sum_of(values):
        column = pa.array(values, pa.int64())
        table = tally(accumulators, [column], np.zeros(len(values), np.int64), 1, 1)
        offsets = dict(zip(accumulators, layout_of(accumulators)[0]))
        return result.evaluate(GroupSums(table, offsets)).to_pylist()

    assert sum_of(numbers) == [sum(numbers)]
    for beyond in ([2**63 - 1, 1], [-(2**63), -1], [2**62, 2**62]):
        with pytest.raises(DiffOverflowError):
            sum_of(beyond)


@pytest.mark.parametrize("kernel, value", [
    (tallies.tally_square, np.array([3])), (tallies.tally_exact, np.array([3.0]).view(np.int64)),
])
def test_a_multiplicity_of_more_than_31_bits_is_told(kernel, value):
    for diff, expected in [
        (tallies.LIMIT, MULTIPLICITY), (-tallies.LIMIT, MULTIPLICITY),
        (tallies.LIMIT - 1, 0), (1 - tallies.LIMIT, 0),
    ]:
        table = np.zeros((1, 80), np.int64)
        group, none = np.zeros(1, np.int64), np.empty(0, np.bool_)
        status = kernel(
            value, none, group, np.array([diff]), 1, table, table.view(np.float64), 0)
        assert status == expected


@pytest.mark.parametrize("wide", [2**62, 2**40, 5])
def test_numbers_of_any_width_are_packed_in_their_order(wide):
    rows = [(a, b) for a in (-wide, 3, wide) for b in (-wide, 0, wide - 1)]
    code = pack([np.array(part) for part in zip(*rows[::-1])])
    assert code.argsort().tolist() == list(range(len(rows)))[::-1]
    assert len({*code.tolist()}) == len(rows)


@pytest.mark.parametrize("numbers", [[1.0, 2.0, 4.0], [3.0, None, 5.0], [7.0, 7.0], [0.1] * 9])
def test_variances_of_doubles_without_nulls_and_with_some(numbers):
    result = FloatVariance(pa.float64(), 0, ddof=1)
    accumulators, column = result.accumulators, pa.array(numbers, pa.float64())
    table = tally(accumulators, [column], np.zeros(len(numbers), np.int64), 1, 1)
    offsets = dict(zip(accumulators, layout_of(accumulators)[0]))
    actual = result.evaluate(GroupSums(table, offsets)).to_pylist()
    there = [number for number in numbers if number is not None]
    assert actual == [pytest.approx(float(statistics.variance(map(Fraction, there))), abs=1e-30)]
