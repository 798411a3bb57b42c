"""The order of values as integers, and the first k records of each key, against plain Python."""

from __future__ import annotations

import math
from collections import Counter
from datetime import timedelta
from functools import cmp_to_key

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_diff.errors import DiffOverflowError, UnsupportedTypeError
from pyspark_diff.kernels.consolidate import Grouped, consolidate, runs_of
from pyspark_diff.kernels.coordinates import Limit
from pyspark_diff.kernels.equality import normalise
from pyspark_diff.kernels.ranking import codes, float_codes, from_float_codes, pack
from pyspark_diff.kernels.top_k import FirstValues, top_k
from pyspark_diff.kernels.updates import UpdateChunk, concat, empty

many = settings(max_examples=150)
UP = (False, False)
LEAST, MOST = -(2**63), 2**63 - 1


def compare(a, b, descending=False, nulls_last=False):
    """-1, 0 or 1: the order of two values in Spark."""
    if a is None or b is None:
        return ((b is None) - (a is None)) * (-1 if nulls_last else 1)
    sign = -1 if descending else 1
    if isinstance(a, dict):
        a, b = list(a.values()), list(b.values())
    if isinstance(a, list):
        for x, y in zip(a, b):
            if compare(x, y):
                return sign * compare(x, y)
        a, b = len(a), len(b)
    if isinstance(a, str):
        a, b = a.encode(), b.encode()
    if isinstance(a, float):
        a, b = ((True, 0.0) if math.isnan(x) else (False, x) for x in (a, b))
    return sign * ((a > b) - (a < b))


def compare_rows(a, b, ordering):
    for x, y, (descending, nulls_last) in zip(a, b, ordering):
        if compare(x, y, descending, nulls_last):
            return compare(x, y, descending, nulls_last)
    return 0


def whole(bits):
    edges = [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1]
    return st.sampled_from([*edges, edges[0] + 1, edges[1] - 1, 0]) | st.integers(-3, 3)


floats = st.sampled_from([0.0, -0.0, 1.5, -1.5, 5e-324, math.inf, -math.inf, math.nan])
words = st.text("ab\0é\U0001f600", max_size=3)
PLAIN = [
    (pa.int8(), whole(8)),
    (pa.int32(), whole(32)),
    (pa.int64(), whole(64)),
    (pa.bool_(), st.booleans()),
    (pa.float64(), floats),
    (pa.float32(), floats.filter(lambda x: abs(x) != 5e-324)),
    (pa.string(), words),
    (pa.large_string(), words),
    (pa.binary(), st.binary(max_size=2)),
    (pa.decimal128(38, 2), st.decimals(-3, 3, places=2) | st.decimals(-10**35, 10**35, places=2)),
    (pa.decimal128(10, 2), st.decimals(-3, 3, places=2)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.duration("us"), st.timedeltas(timedelta(-10**8), timedelta(10**8))),
    (pa.null(), st.none()),
]


@st.composite
def kinds(draw, depth=2):
    """A type, and a strategy of its values and null."""
    shape = draw(st.sampled_from(["plain", "plain", "struct", "list"])) if depth else "plain"
    if shape == "plain":
        kind, values = draw(st.sampled_from(PLAIN))
    elif shape == "list":
        inner, values = draw(kinds(depth - 1))
        kind, values = pa.list_(inner), st.lists(values, max_size=3)
    else:
        fields = {name: draw(kinds(depth - 1)) for name in draw(st.sampled_from(["a", "ab"]))}
        kind = pa.struct([(name, inner) for name, (inner, _) in fields.items()])
        values = st.fixed_dictionaries({name: inner for name, (_, inner) in fields.items()})
    return kind, st.none() | values if draw(st.booleans()) else values


orders = st.tuples(st.booleans(), st.booleans())


@many
@given(data=st.data(), width=st.integers(1, 3))
def test_codes_are_in_the_order_of_values(data, width):
    rows = data.draw(st.integers(0, 12))
    columns = []
    for _ in range(width):
        kind, values = data.draw(kinds())
        pool = data.draw(st.lists(values, min_size=1, max_size=6))
        columns.append(pa.array(data.draw(st.lists(st.sampled_from(pool), min_size=rows + 1,
                                                   max_size=rows + 1)), kind).slice(1))
    ordering = tuple(data.draw(orders) for _ in columns)
    check_codes(columns, ordering)


def check_codes(columns, ordering):
    order_codes = codes(columns, ordering)
    assert order_codes.dtype == np.int64 and order_codes.shape == (len(columns[0]),)
    records = list(zip(*(column.to_pylist() for column in columns)))
    for a, x in zip(order_codes.tolist(), records):
        for b, y in zip(order_codes.tolist(), records):
            assert (a > b) - (a < b) == compare_rows(x, y, ordering)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("nulls_last", [False, True])
def test_null_has_a_place_beside_all_integers(descending, nulls_last):
    for values in ([LEAST, None, MOST, 0], [None, LEAST], [MOST, None], [None, None]):
        column = pa.array(values, pa.int64())
        check_codes([column], ((descending, nulls_last),))
        check_codes([column, column], ((descending, nulls_last), UP))
        check_codes([pa.array([{"a": v} for v in values])], ((descending, nulls_last),))


@pytest.mark.parametrize("distinct", [50, 20_000])
def test_codes_of_many_strings(distinct):
    random = np.random.default_rng(distinct)
    words = pa.array([f"{x:b}" if x % 7 else None for x in random.integers(0, distinct, 20_000)])
    order_codes = codes([words], ((True, False),))
    ordered = words.take(pa.array(np.argsort(order_codes, kind="stable"))).to_pylist()
    nulls = words.null_count
    assert ordered[:nulls] == [None] * nulls
    assert ordered[nulls:] == sorted(words.drop_null().to_pylist(), reverse=True)
    assert np.unique(order_codes).size == len(words.unique())
    assert (codes([pa.nulls(20_000, pa.string())], (UP,)) == 0).all()


def test_codes_without_columns_or_rows():
    assert codes([], (), 3).tolist() == [0, 0, 0]
    assert codes([], ()).tolist() == []
    for kind in (pa.int64(), pa.string(), pa.list_(pa.float64()), pa.struct([])):
        assert codes([pa.array([], kind)] * 2, (UP, UP)).tolist() == []
    assert codes([pa.array([{}, None, {}], pa.struct([]))], (UP,)).tolist() == [0, -1, 0]


def test_codes_refuse_what_has_no_order():
    kind = pa.dictionary(pa.int32(), pa.string())
    with pytest.raises(UnsupportedTypeError, match="dictionary"):
        codes([pa.nulls(1, pa.list_(kind))], (UP,))
    with pytest.raises(ValueError, match="1 columns have an ordering of 2"):
        codes([pa.array([1])], (UP, UP))


@many
@given(values=st.lists(floats | st.floats(), min_size=1), kind=st.sampled_from(["f4", "f8"]))
def test_float_codes(values, kind):
    with np.errstate(over="ignore"):
        column = pa.array(np.array(values).astype(kind))
    back = from_float_codes(float_codes(column), column.type)
    assert back.type == column.type
    assert np.array_equal(back.to_numpy(), column.to_numpy(), equal_nan=True)
    assert back.equals(normalise(column)) or pc.any(pc.is_nan(column)).as_py()
    check_codes([column], (UP,))


@many
@given(rows=st.lists(st.tuples(whole(64), whole(64), whole(8)), min_size=1))
def test_pack(rows):
    packed = pack([np.array(part) for part in zip(*rows)]).tolist()
    assert [rows[i] for i in np.argsort(packed)] == sorted(rows)
    assert len(set(packed)) == len(set(rows))


# Top k. Values are tuples; a row is (key, value, time, diff).


def table(rows, layout):
    """Rows as unordered updates. If keys collide, each has the hash 0 or 1."""
    keys, values, times, diffs = ([row[i] for row in rows] for i in range(4))
    key64, columns = np.array(keys, np.int64), None
    if layout["collide"]:
        key64, columns = key64 & 1, (pa.array([f"key {key}" for key in keys], pa.string()),)
    if layout["exact"]:
        val64, parts = np.array([value[0] for value in values], np.int64), None
    else:
        parts = (
            pa.array([value[0] for value in values], pa.int64()),
            pa.array([value[1] for value in values], pa.string()),
        )
        val64 = np.array([hash(value) % 3 for value in values], np.int64)
    time = np.array(times, np.int64)
    if len(set(times)) == 1 and layout["shared"]:
        time = times[0]
    return UpdateChunk(key64, columns, time, np.array(diffs, np.int64), val64, parts)


def batch_of(rows, layout):
    """A sorted batch; columns of values are in the order of the layout."""
    if not rows:
        return empty()
    updates = consolidate(table(rows, layout)).updates
    if layout["exact"] or not len(updates):
        return updates
    grouped = runs_of(updates)
    key = np.repeat(np.arange(grouped.key_starts.size),
                    np.diff(grouped.key_starts, append=len(updates)))
    return updates.take(np.lexsort((
        updates.times(), codes(updates.values, layout["ordering"]), key
    )))


def top_of(counts, k, by, mode, ordering, from_back):
    """The result for accumulated counts, as {(key, value, number): diff}."""
    result = Counter()
    for key in {key for key, _ in counts}:
        there = [value for (other, value), count in counts.items() if other == key and count > 0]
        there.sort(key=cmp_to_key(lambda a, b: compare_rows(a, b, ordering)), reverse=from_back)
        places = rank = 0
        for i, value in enumerate(there):
            count = counts[key, value]
            if mode in ("rank", "dense_rank"):
                tied = i and not compare_rows(value[:by], there[i - 1][:by], ordering)
                rank = rank if tied else places + 1 if mode == "rank" else rank + 1
                if rank <= k:
                    result[key, value, rank] += count
            else:
                for number in range(places + 1, min(places + count, k) + 1):
                    result[key, value, number if mode == "row_number" else None] += 1
            places += count
    return result


def expected_of(old, new, *args):
    """{(key, value, number, time): diff}"""
    counts = Counter()
    for key, value, _, diff in old:
        counts[key, value] += diff
    changes = {}
    before = top_of(counts, *args)
    for time in sorted({row[2] for row in new}):
        for key, value, _, diff in (row for row in new if row[2] == time):
            counts[key, value] += diff
        after = top_of(counts, *args)
        for record in before.keys() | after.keys():
            if after[record] != before[record]:
                changes[(*record, time)] = after[record] - before[record]
        before = after
    return changes


def rows_of(updates, numbers, layout):
    """The result as {(key, value, number, time): diff}, after checks of its order."""
    if not len(updates):
        assert numbers is None or not len(numbers)
        return {}
    keys = updates.key64.tolist()
    if layout["collide"]:
        keys = [int(key.split()[1]) for key in updates.columns[0].to_pylist()]
    values = list(zip(*(column.to_pylist() for column in updates.with_values())))
    if layout["exact"]:
        assert updates.values is None
    numbers = [None] * len(keys) if numbers is None else numbers.tolist()
    records = list(zip(keys, values, numbers, updates.times().tolist()))
    # Equal keys are adjacent, in the order of hashes; values and times of a key are in order.
    assert (np.diff(updates.key64) >= 0).all()
    runs = runs_of(updates)
    assert runs.key_starts.size == len(set(keys)) and runs.starts.size == len(
        {(key, value) for key, value, _, _ in records}
    )
    assert len(set(records)) == len(records) and all(updates.diffs())
    return dict(zip(records, updates.diffs().tolist()))


@st.composite
def problems(draw):
    exact = draw(st.booleans())
    layout = {
        "exact": exact,
        "collide": draw(st.booleans()),
        "shared": draw(st.booleans()),
        "ordering": (UP,) if exact else (draw(orders), draw(orders)),
    }
    number = st.integers(0, 7)
    value = st.tuples(number) if exact else st.tuples(
        st.none() | st.integers(0, 2), st.none() | st.sampled_from("abc")
    )
    key = st.integers(0, draw(st.sampled_from([0, 5])))
    diff = st.sampled_from([1, 1, 1, 2, -1])

    def rows(times, most):
        return draw(st.lists(st.tuples(key, value, times, diff), min_size=most // 2, max_size=most))

    batches = []
    for i in range(draw(st.integers(0, 3))):
        batch = rows(st.integers(0, 3), 20)
        if batches and draw(st.booleans()):  # retract much of an earlier batch
            batch += [(k, v, 4, -d) for k, v, _, d in batches[0] if v[0] is None or v[0] < 5]
        batches.append(batch)
    new = rows(st.integers(5, draw(st.sampled_from([5, 8]))), draw(st.sampled_from([2, 8, 20])))
    return layout, batches, new


@settings(max_examples=200)
@given(
    problem=problems(),
    k=st.integers(1, 3),
    mode=st.sampled_from(["rows", "row_number", "rank", "dense_rank"]),
    by=st.integers(0, 2),
    from_back=st.booleans(),
    window=st.sampled_from([0, 0, 1, 16]),
)
def test_top_k(problem, k, mode, by, from_back, window):
    layout, batches, new = problem
    by = min(by, len(layout["ordering"]))
    chunks = [batch_of(rows, layout) for rows in batches]
    grouped = consolidate(table(new, layout)) if new else consolidate(empty())
    output, numbers, read = top_k(
        chunks, grouped, k, layout["ordering"], by=by, mode=mode, from_back=from_back, window=window
    )
    old = [row for rows in batches for row in rows]
    expected = expected_of(old, new, k, by, mode, layout["ordering"], from_back)
    assert rows_of(output, numbers, layout) == expected
    assert (numbers is None) == (mode == "rows")
    # The last round may read all rows, and the round before it a quarter.
    assert 0 <= read <= 4 * sum(map(len, chunks))


@settings(max_examples=30)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_top_k_of_many(data, seed):
    """Longer histories: more rounds of reading, more times, larger groups of ties."""
    random = np.random.default_rng(seed)
    keys, values = data.draw(st.sampled_from([1, 4])), data.draw(st.sampled_from([10, 200]))

    def rows(count, times):
        return [
            (int(a), (int(b), "abc"[c]), int(t), int(d)) for a, b, c, t, d in zip(
                random.integers(0, keys, count), random.integers(0, values, count),
                random.integers(0, 3, count), random.integers(*times, count),
                random.choice([1, 1, 3], count),
            )
        ]

    layout = {"exact": False, "collide": data.draw(st.booleans()), "shared": True,
              "ordering": ((data.draw(st.booleans()), False), UP)}
    batches = [rows(300, (0, 3)), rows(100, (0, 3))]
    gone = sorted(batches[0], key=lambda row: row[1])
    gone = gone[:250] if data.draw(st.booleans()) else gone[50:]
    batches.append([(k, v, 4, -d) for k, v, _, d in gone])
    new = rows(data.draw(st.sampled_from([1, 5, 60])), (5, 9))
    new += [(k, v, 6, -d) for k, v, _, d in batches[1][:20]]
    mode = data.draw(st.sampled_from(["rows", "row_number", "rank", "dense_rank"]))
    k, by = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 2))
    from_back = data.draw(st.booleans())
    output, numbers, _ = top_k(
        [batch_of(rows, layout) for rows in batches], consolidate(table(new, layout)), k,
        layout["ordering"], by=by, mode=mode, from_back=from_back, window=1,
    )
    old = [row for rows in batches for row in rows]
    expected = expected_of(old, new, k, by, mode, layout["ordering"], from_back)
    assert rows_of(output, numbers, layout) == expected


def plain(values, time, diff, key=1):
    values = np.asarray(values, np.int64)
    return UpdateChunk(np.full(values.size, key), None, time, diff, values)


def in_three_batches(values, tombstones):
    random = np.random.default_rng(5)
    part = random.integers(0, 3, values.size)
    batches = [consolidate(plain(values[part == i], i, 1)).updates for i in range(3)]
    return [*batches, consolidate(plain(tombstones, 3, -1)).updates] if len(tombstones) else batches


@pytest.mark.parametrize("mode", ["rows", "row_number", "rank", "dense_rank"])
@pytest.mark.parametrize("from_back", [False, True])
def test_a_removal_reads_few_rows(mode, from_back):
    values = np.arange(1_000_000)
    best, next_best = (999_999, 999_998) if from_back else (0, 1)
    new = consolidate(plain([best], 7, -1))
    output, numbers, read = top_k(
        in_three_batches(values, []), new, 1, (UP,), by=1, mode=mode, from_back=from_back
    )
    assert 0 < read < 200
    assert output.val64.tolist() == [best, next_best] and output.diffs().tolist() == [-1, 1]
    assert output.time == 7
    assert numbers is None if mode == "rows" else numbers.tolist() == [1, 1]


def test_reading_goes_on_behind_tombstones_only_where_there_are_some():
    batches = in_three_batches(np.arange(100_000), np.arange(99_000, 100_000))
    others = [UpdateChunk(np.full(len(b), 2), None, b.time, b.diff, b.val64) for b in batches[:3]]
    both = [concat([b, c]) for b, c in zip(batches, others)] + [batches[3]]
    new = consolidate(concat([plain([98_999], 7, -1), plain([99_999], 7, -1, key=2)]))
    output, _, read = top_k(both, new, 1, (UP,), by=1, mode="rows", from_back=True)
    assert output.key64.tolist() == [1, 1, 2, 2]
    assert output.val64.tolist() == [98_999, 98_998, 99_999, 99_998]
    assert 2_000 < read < 20_000


@pytest.mark.parametrize("mode", ["rows", "rank", "dense_rank"])
def test_a_value_that_is_read_in_part_is_not_known(mode):
    """The first round reads two rows. The second one is an insertion that was retracted."""
    old = UpdateChunk(
        np.array([1, 1, 1, 1]), None, np.array([0, 0, 1, 0]), np.array([1, 1, -1, 1]),
        np.array([1, 2, 2, 3]),
    )
    new = consolidate(plain([1], 7, -1))
    batches = [old, plain([9], 0, 1)]
    output, _, read = top_k(batches, new, 1, (UP,), by=1, mode=mode, window=0)
    assert output.val64.tolist() == [1, 3] and output.diffs().tolist() == [-1, 1]
    assert read == (2 + 1) + (4 + 1)


def test_ties_are_read_to_their_end():
    numbers, words = pa.array([1, 2, 2, 2, 3]), pa.array(["a", "a", "b", "c", "a"])
    rows = UpdateChunk(np.full(5, 1), None, 0, 1, np.zeros(5, np.int64), (numbers, words), (UP, UP))
    new = runs_of(rows.take(np.array([0])).at(7, -1))
    batches = [rows, rows.take(np.array([4]))]
    output, ranks, read = top_k(batches, new, 1, (UP, UP), by=1, mode="rank", window=0)
    assert output.values[1].to_pylist() == ["a", "a", "b", "c"]
    assert ranks.tolist() == [1] * 4 and output.diffs().tolist() == [-1, 1, 1, 1]
    assert read == (2 + 1) + (5 + 1)


@pytest.mark.parametrize("mode", ["row_number", "rank", "dense_rank"])
def test_changes_behind_the_first_k_give_nothing(mode):
    batches = in_three_batches(np.arange(100_000), [])
    new = consolidate(plain(np.arange(50_000, 50_010), np.arange(10) + 7, 1))
    output, numbers, read = top_k(batches, new, 3, (UP,), by=1, mode=mode)
    assert len(output) == 0 and numbers.size == 0 and read < 200


def test_keys_that_share_a_hash_are_told_apart_without_reading_them():
    """As 0 and null do. The rows of a key are adjacent; the keys have no order."""
    rows = 300_000
    keys = pa.array([7] * rows + [None] * rows + [0] * rows, pa.int64())
    old = UpdateChunk(np.zeros(3 * rows, np.int64), (keys,), 0, 1, np.tile(np.arange(rows), 3))
    for key in (7, None, 0, 9):
        column = pa.array([key], pa.int64())
        change = UpdateChunk(np.array([0]), (column,), 5, -1, np.array([rows - 1]))
        output, _, read = top_k(
            [old], runs_of(change), 1, (UP,), by=1, mode="rows", from_back=True
        )
        if key == 9:
            assert len(output) == 0
            continue
        assert output.val64.tolist() == [rows - 1, rows - 2]
        assert output.columns[0].to_pylist() == [key] * 2
        assert read < 50


def test_nothing_new_or_nothing_wanted():
    new = consolidate(plain([1], 0, 1))
    for some, k in ((Grouped(empty(), np.empty(0, np.int64)), 3), (new, 0)):
        output, numbers, read = top_k([], some, k, (UP,), by=1, mode="rank")
        assert len(output) == 0 and numbers.size == 0 and read == 0
    with pytest.raises(ValueError, match="top 3 of 'best'"):
        top_k([], new, 3, (UP,), by=1, mode="best")


def test_values_without_columns_are_all_equal():
    new = UpdateChunk(np.array([3]), None, 5, np.array([-1]), np.array([0]), ())
    old = UpdateChunk(np.array([3]), None, 0, np.array([4]), np.array([0]), ())
    output, numbers, _ = top_k([old], runs_of(new), 9, (), by=0, mode="row_number")
    assert output.diffs().tolist() == [-1] and numbers.tolist() == [4]


def test_keys_without_columns_are_one_group():
    def rows(values, time, diff):
        return UpdateChunk(np.zeros(len(values), np.int64), (), time, diff, np.array(values))

    output, _, _ = top_k(
        [rows([1, 2, 3], 0, 1)], runs_of(rows([1], 5, -1)), 1, (UP,), by=1, mode="rows"
    )
    assert output.columns == () and output.val64.tolist() == [1, 2]


def test_nulls_only_in_some_batches():
    """For one integer column, parts without nulls have only numbers, and others have columns."""
    column = pa.array([None, 7])
    old = UpdateChunk(np.array([1, 1]), None, 0, 1, np.array([0, 7]), (column,))
    new = consolidate(plain([5], 3, 1))
    output, _, _ = top_k([old, plain([9], 0, 1)], new, 2, (UP,), by=1, mode="rows")
    assert output.values[0].to_pylist() == [5, 7] and output.diffs().tolist() == [1, -1]


@pytest.mark.parametrize("counts", [(MOST, 1, 0), (MOST, 0, 1), (2**62, 2**62, 0)])
def test_counts_beyond_64_bits_are_refused(counts):
    old = [plain([1], 0, diff) for diff in counts[:2] if diff]
    new = consolidate(plain([1, 2], 3, np.array([counts[2], 1])))
    if not counts[2]:
        new = consolidate(plain([1], 3, 1))
    with pytest.raises(DiffOverflowError):
        top_k(old, new, 2, (UP,), by=1, mode="rows")


def test_large_counts_take_no_more_than_k_places():
    old = [plain([1, 2], 0, np.array([MOST, MOST]))]
    new = consolidate(plain([1], 3, -MOST))
    output, _, _ = top_k(old, new, 2**31 - 1, (UP,), by=1, mode="rows")
    assert output.diffs().tolist() == [-(2**31 - 1), 2**31 - 1]
    output, numbers, _ = top_k(old, new, 2, (UP,), by=1, mode="rank")
    assert output.diffs().tolist() == [-MOST, MOST] and numbers.tolist() == [1, 1]


@pytest.mark.parametrize("at, expected", [(4, -1), (5, 0)])
def test_what_all_rows_come_at_later_is_not_there_yet(at, expected):
    """Also without new updates, as if only other results of the same keys had changed."""
    keys, none = UpdateChunk(np.array([1]), None, 0, 1), np.empty(0, np.int64)
    old = UpdateChunk(np.array([1]), None, 0, 1, np.array([7]), coordinate=5)
    firsts = FirstValues(keys, none, [old], Grouped(empty(), none), (UP,), Limit(1, at))
    for from_back in (False, True):
        assert firsts.changes(from_back=from_back)[1].tolist() == [expected]
