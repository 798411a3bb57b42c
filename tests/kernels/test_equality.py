"""`kernels.equality` against plain Python, for all types and any values under nulls."""

from __future__ import annotations

import doctest
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_diff.kernels import equality
from pyspark_diff.kernels.equality import normalise, rows_equal
from pyspark_diff.kernels.hashing import spark_hash, spark_xxhash64

NAN_WITH_PAYLOAD = np.array([0x7FF8000000000123], np.int64).view(np.float64)[0]
NEGATIVE_NAN = np.array([-0x0007FFFFFFFFFFFF], np.int64).view(np.float64)[0]

# Each type has few values, so that equal pairs are common. The values are close to each other, so
# that unequal pairs differ in one place only.
LEAVES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.null(), [None]),
    (pa.bool_(), [True, False]),
    (pa.int8(), [0, 1, -128]),
    (pa.int16(), [0, 256, -1]),
    (pa.int32(), [0, 2**31 - 1, -1]),
    (pa.int64(), [0, 2**32, -(2**63)]),
    (pa.float32(), [0.0, -0.0, math.nan, 1.5, -math.inf]),
    (pa.float64(), [0.0, -0.0, math.nan, NAN_WITH_PAYLOAD, NEGATIVE_NAN, 1.5, math.inf]),
    (pa.date32(), [0, 1, -719162]),
    (pa.timestamp("us"), [0, 1, -1]),
    (pa.timestamp("us", tz="Europe/Berlin"), [0, 1, -1]),
    (pa.duration("us"), [0, 1, -1]),
    (pa.time64("ns"), [0, 1000, 2000]),
    (pa.string(), ["", "a", "b", "aa", "é", "the same but its end 1", "the same but its end 2"]),
    (pa.large_string(), ["", "a", "😀"]),
    (pa.binary(), [b"", b"\0", b"\0\0", b"\xff"]),
    (pa.large_binary(), [b"", b"\0"]),
    (pa.decimal128(5, 2), [0, 1, -1]),
    (pa.decimal128(38, 0), [0, 2**64, -(2**64), 1]),
]


def types(leaves: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    def wrap(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
        return st.one_of(
            inner.map(pa.list_),
            inner.map(pa.large_list),
            inner.map(lambda kind: pa.list_(kind, 2)),
            st.lists(inner, min_size=1, max_size=2).map(
                lambda kinds: pa.struct([(f"f{i}", kind) for i, kind in enumerate(kinds)])
            ),
        )

    return st.recursive(leaves, wrap, max_leaves=4)


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_struct(kind):
        members = {kind.field(i).name: values(kind.field(i).type) for i in range(kind.num_fields)}
        whole: st.SearchStrategy[Any] = st.fixed_dictionaries(members)
    elif pa.types.is_fixed_size_list(kind):
        whole = st.lists(values(kind.value_type), min_size=2, max_size=2)
    elif pa.types.is_nested(kind):
        whole = st.lists(values(kind.value_type), max_size=3)
    else:
        whole = st.sampled_from(dict(LEAVES)[kind])
    return st.one_of(whole, whole, whole, st.none())


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.Array, list[Any]]:
    """A sliced column, possibly with values under its nulls, and its rows in Python."""
    kind = draw(types(st.sampled_from([kind for kind, _ in LEAVES])))
    rows = draw(st.lists(values(kind), min_size=1, max_size=12))
    column = pa.array(rows, kind)
    if draw(st.booleans()):
        column = hide(column, rows)
    cut = draw(st.integers(0, len(rows) - 1))
    return column.slice(cut), rows[cut:]


def hide(column: pa.Array, rows: list[Any]) -> pa.Array:
    """The same rows, with the value of the first row in the slot of each null."""
    filled = pa.array([rows[0] if row is None else row for row in rows], column.type)
    if pa.types.is_null(column.type) or filled.null_count:
        return column
    flags = pa.py_buffer(np.packbits([row is not None for row in rows], bitorder="little"))
    own = filled.buffers()[: column.type.num_buffers]
    children = []
    if pa.types.is_struct(column.type):
        children = [filled.field(i) for i in range(column.type.num_fields)]
    elif pa.types.is_nested(column.type):
        children = [filled.values]
    hidden = pa.Array.from_buffers(column.type, len(rows), [flags, *own[1:]], children=children)
    assert hidden.is_null().to_pylist() == column.is_null().to_pylist()
    return hidden


def canonical(value: Any) -> Any:
    """A value that Python compares as Spark groups: `-0.0 == 0.0` already holds in Python."""
    if isinstance(value, dict):
        return {name: canonical(part) for name, part in value.items()}
    if isinstance(value, list):
        return [canonical(part) for part in value]
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return value


def every_pair(count: int) -> tuple[Any, Any]:
    return np.repeat(np.arange(count), count), np.tile(np.arange(count), count)


@given(columns())
@settings(deadline=None, max_examples=300, derandomize=True)
def test_pairs_are_equal_as_in_python(drawn):
    column, rows = drawn
    left, right = every_pair(len(rows))
    wanted = [canonical(rows[i]) == canonical(rows[j]) for i, j in zip(left, right)]
    assert rows_equal([column], left, right).tolist() == wanted
    # The laws of the module: normalising changes nothing, and equal rows have equal hashes.
    normal = normalise(column)
    normal.validate(full=True)
    assert normal.type == column.type
    assert rows_equal([normal], left, right).tolist() == wanted
    for hashes in (spark_hash([column]), spark_xxhash64([column])):
        assert (hashes[left] == hashes[right])[wanted].all()


@given(columns())
@settings(deadline=None, max_examples=300, derandomize=True)
def test_normalised_values_have_the_same_bits(drawn):
    column, rows = drawn
    normal = normalise(column)
    shown = [canonical(row) for row in normal.to_pylist()]
    assert shown == [canonical(row) for row in column.to_pylist()]
    bits: dict[str, set[bytes]] = {}
    for value in floats_in(normal.to_pylist()):
        bits.setdefault(str(canonical(value)), set()).add(np.float64(value).tobytes())
    assert all(len(forms) == 1 for forms in bits.values())
    assert np.float64(-0.0).tobytes() not in bits.get("-0.0", set())


def floats_in(value: Any) -> list[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for part in value for number in floats_in(part)]
    return [value] if isinstance(value, float) else []


def test_rows_are_equal_only_in_all_columns():
    numbers, words = pa.array([1, 1, 2, 2]), pa.array(["a", "b", "a", None])
    left, right = every_pair(4)
    wanted = [i == j for i, j in zip(left, right)]
    assert rows_equal([numbers, words], left, right).tolist() == wanted
    assert rows_equal([], left, right).all()


def test_no_pairs_and_no_rows():
    none = np.empty(0, np.int64)
    for kind in [pa.int64(), pa.string(), pa.list_(pa.float64()), pa.struct([("a", pa.bool_())])]:
        for column in (pa.array([], kind), pa.nulls(3, kind)):
            equal = rows_equal([column], none, none)
            assert equal.dtype == np.bool_ and equal.size == 0
            assert normalise(column).to_pylist() == column.to_pylist()


@pytest.mark.parametrize("seed", range(3))
def test_many_rows(seed):
    rng = np.random.default_rng(seed)
    rows = [
        None if rng.random() < 0.1 else [f"{x}" * 9 for x in rng.integers(0, 2, rng.integers(0, 4))]
        for _ in range(2000)
    ]
    column = pa.array(rows)[7:]
    left, right = rng.integers(0, len(column), (2, 5000))
    wanted = [rows[i + 7] == rows[j + 7] for i, j in zip(left, right)]
    assert rows_equal([column], left, right).tolist() == wanted
    narrow = rows_equal([column], left.astype(np.int32), right.astype(np.int32))
    assert narrow.tolist() == wanted


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, None]),
        pa.array(["a"]),
        pa.array([[1], None]),
        pa.array([{"a": [1]}]),
    ],
    ids=lambda column: str(column.type),
)
def test_without_floats_the_column_itself_comes_back(column):
    assert normalise(column) is column


def test_maps_are_equal_by_their_entries_in_any_order():
    kind = pa.list_(pa.map_(pa.string(), pa.float64()))
    column = pa.array([
        [[("b", 1.0), ("a", -0.0)], None], [[("a", 0.0), ("b", 1.0)], None], [[("a", 0.0)], None],
        [[], None], None, [[("b", 1.0), ("a", None)], None],
    ], kind)
    for part in (column, column.slice(1)):
        normal = normalise(part)
        normal.validate(full=True)
        assert normal.type == kind and len(normal) == len(part)
    rows = np.arange(6)
    same = [rows_equal([normalise(column)], np.full(6, i), rows).tolist() for i in range(6)]
    assert same == [[i == j or {i, j} == {0, 1} for j in range(6)] for i in range(6)]


def test_types_that_no_kernel_knows_are_refused_by_name():
    kind, rows = pa.dictionary(pa.int32(), pa.string()), np.zeros(1, np.int64)
    with pytest.raises(TypeError, match="dictionary"):
        rows_equal([pa.nulls(1, kind)], rows, rows)


def test_equality_is_that_of_group_by(spark):
    rows = [{"a": a, "b": [a, None]} for a in (0.0, -0.0, math.nan, NAN_WITH_PAYLOAD, None, 1.0)]
    kind = pa.struct([("a", pa.float64()), ("b", pa.list_(pa.float64()))])
    column = pa.array(rows + [None], kind)
    ddl = "c struct<a: double, b: array<double>>"
    frame = spark.createDataFrame(pa.table({"c": column}), schema=ddl)
    left, right = every_pair(len(column))
    numbers = np.arange(len(column))
    equal = rows_equal([column], left, right).reshape(len(column), -1)
    groups = len({int(np.argmax(equal[i])) for i in numbers})
    assert frame.groupBy("c").count().count() == groups == 5


def test_examples():
    result = doctest.testmod(equality)
    assert result.attempted and not result.failed
