"""Rows in the order of numbers, and decimals in 64 bits, against numpy and Arrow."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyspark_diff.kernels import decimals, order
from pyspark_diff.kernels.arrow_expression import Apply, ArrowConstant, Field

LEAST, MOST = -(2**63), 2**63 - 1

#: Numbers of wide and narrow ranges, with few values, and with equal upper bits.
KINDS = {
    "hashes": lambda choose, n: choose.integers(LEAST, MOST, n, endpoint=True),
    "dense": lambda choose, n: choose.integers(-5, n, n),
    "few": lambda choose, n: choose.integers(LEAST, MOST, 7, endpoint=True)[
        choose.integers(0, 7, n)],
    "one": lambda choose, n: np.full(n, LEAST),
    "one far off": lambda choose, n: np.append(choose.integers(0, 10**9, n - 1), MOST),
    "ends": lambda choose, n: choose.choice(np.array([LEAST, LEAST + 1, -1, 0, 1, MOST]), n),
    "alike but for the lowest bits": lambda choose, n: (
        choose.integers(0, 40, n) << 56) + choose.integers(0, 30, n),
    "in order": lambda choose, n: np.sort(choose.integers(LEAST, MOST, n, endpoint=True)),
    "backwards": lambda choose, n: np.arange(n)[::-1] * 3,
}


@given(st.sampled_from(sorted(KINDS)), st.sampled_from([1, 2, 4095, 4096, 5000, 70_000]),
       st.integers(0, 2**32 - 1))
@example("one far off", 5000, 0)
@example("alike but for the lowest bits", 70_000, 1)
@example("hashes", 70_000, 2)
@example("ends", 5000, 3)
@example("in order", 70_000, 4)
@example("backwards", 5000, 5)
def test_rows_are_in_order(kind, rows, seed):
    values = KINDS[kind](np.random.default_rng(seed), rows).astype(np.int64)
    before = values.copy()
    assert (order.order_of(values) == np.argsort(values, kind="stable")).all()
    distinct, rank = np.unique(values, return_inverse=True)
    assert (order.distinct(values) == distinct).all()
    ours, ranks = order.ranked(values)
    assert (ours == distinct).all() and (ranks == rank).all() and ranks.dtype == np.int64
    assert (values == before).all()
    assert (order.order_of(values[::-1]) == np.argsort(values[::-1], kind="stable")).all()
    assert (order.ranked(values[::2])[1] == np.unique(values[::2], return_inverse=True)[1]).all()
    assert (order.among(values, values[1::3]) == np.isin(values, values[1::3])).all()


def test_no_rows_are_in_order():
    none = np.empty(0, np.int64)
    assert not order.order_of(none).size and not order.distinct(none).size
    assert not order.starts_of(none).size and not order.ranked(none)[1].size
    assert not order.among(none, none).size and not order.among(np.arange(3), none).any()


def test_rows_that_upper_bits_do_not_tell_are_left_to_a_sort(monkeypatch):
    """Moves of a million rows, each past a thousand others, would take minutes."""
    values = np.append(np.arange(100_000)[::-1], MOST)
    asked = []
    monkeypatch.setattr(order.np, "argsort", lambda *a, **k: asked.append(1) or _argsort(*a, **k))
    assert (order.order_of(values) == _argsort(values, kind="stable")).all() and asked


def test_hashes_are_told_apart_by_upper_bits(monkeypatch):
    values = KINDS["hashes"](np.random.default_rng(1), 100_000)
    right = np.argsort(values, kind="stable")

    def refuse(*_, **__):
        raise AssertionError("these rows are in order of their upper bits")

    monkeypatch.setattr(order.np, "argsort", refuse)
    assert (order.order_of(values) == right).all()


_argsort = np.argsort


@st.composite
def columns(draw, rows):
    digits = draw(st.integers(1, 18))
    scale = draw(st.integers(0, digits))
    most = 10**digits - 1
    numbers = st.integers(-most, most) | st.sampled_from([0, 1, -1, most, -most])
    values = draw(st.sampled_from([numbers, st.none() | numbers]))
    few = draw(st.lists(values, min_size=1, max_size=9))
    unscaled = (few * rows)[:rows]
    kind = pa.decimal128(digits, scale)
    return pa.array([None if n is None else Decimal(n).scaleb(-scale) for n in unscaled], kind)


ARROW = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}


@given(st.data(), st.sampled_from("+-*"), st.booleans())
def test_decimals_are_arrows(data, name, shared):
    first = data.draw(columns(300)).slice(7)
    second = data.draw(columns(300)).slice(7)
    expected = ARROW[name](first, second[0] if shared else second)
    actual = decimals.computed(name, first, second[0] if shared else second, expected.type)
    if actual is None:
        # Arrow computes sums whose digits may not fit into 64 bits.
        assert name != "*" and max(
            side.type.precision + expected.type.scale - side.type.scale
            for side in (first, second)
        ) > 18
        return
    actual.validate(full=True)
    assert actual.equals(expected)


@pytest.mark.parametrize("name", "+-*")
@pytest.mark.parametrize("pieces", [[], [300], [200, 100]], ids=["none", "one", "two"])
def test_decimals_of_a_column_in_pieces(name, pieces):
    kind = pa.decimal128(9, 2)
    column = pa.chunked_array(
        [pa.array([Decimal(i)] * rows, kind) for i, rows in enumerate(pieces, 2)], kind)
    expected = ARROW[name](column, column)
    actual = decimals.computed(name, column, column, expected.type)
    if pieces:
        assert actual.equals(expected.combine_chunks())
    else:
        assert actual is None  # Arrow computes few rows


@pytest.mark.parametrize("first", [
    pa.array([Decimal(1)] * 10, pa.decimal128(3, 0)),  # few
    pa.array([Decimal(10**20)] * 300, pa.decimal128(21, 0)),
    pa.array([Decimal(1)] * 300, pa.decimal256(3, 0)),
    pa.array([1] * 300),
], ids=["few", "large", "wide", "integers"])
def test_what_does_not_fit_is_left_to_arrow(first):
    assert decimals.computed("*", first, first, pa.decimal128(38, 0)) is None
    assert decimals.computed("+", first, first, pa.decimal128(38, 0)) is None


def test_what_stands_in_the_place_of_a_null_is_not_looked_at():
    words = np.array([[2, 0], [-1, MOST]] * 300)
    there = pa.py_buffer(np.packbits([True, False] * 300, bitorder="little"))
    kind = pa.decimal128(3, 0)
    first = pa.Array.from_buffers(kind, 600, [there, pa.py_buffer(words)])
    formula = Apply("*", (Field("a", kind), Field("a", kind)), pa.decimal128(7, 0))
    assert formula.value(pa.table({"a": first})).to_pylist() == [Decimal(4), None] * 300


@pytest.mark.parametrize("digits", [1, 15, 30])
@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("branch", [False, True])
def test_decimals_of_many_digits_are_computed_once(monkeypatch, digits, nulls, branch):
    """Also if each level of a formula has to check that its result fits."""
    reads = []
    value = Field.value
    monkeypatch.setattr(
        Field, "value", lambda self, *rest: reads.append(self) or value(self, *rest))
    kind, levels = pa.decimal128(38, 0), 8
    formula = field = Field("a", kind)
    for _ in range(levels):
        sides = tuple(Apply("cast", (side,), pa.decimal256(38, 0)) for side in (formula, field))
        formula = Apply("fit", (Apply("+", sides, pa.decimal256(39, 0)),), kind)
    numbers = [Decimal(n * 10**(digits - 1)) for n in range(300)]
    if nulls:
        numbers[3] = None
    asked = 0
    if branch:
        some = Apply(">", (field, ArrowConstant(Decimal(0), kind)), pa.bool_())
        formula = Apply("case", (some, formula, ArrowConstant(Decimal(0), kind)), kind)
        asked = 1
    actual = formula.value(pa.table({"a": pa.array(numbers, kind)}))
    wanted = [None if n is None else n * (levels + 1) for n in numbers]
    if branch and nulls:
        wanted[3] = Decimal(0)
    assert actual.to_pylist() == wanted
    assert len(reads) == levels + 1 + asked


def test_values_decide_and_not_the_type():
    wide = pa.array([Decimal(10**17)] * 300, pa.decimal128(30, 0))
    products = decimals.computed("*", wide, wide, pa.decimal128(38, 0))
    assert products[5].as_py() == 10**34
