"""The kernels against dictionaries: extreme ranges, nulls, collisions, overflow, no rows."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager, suppress
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numba.core.errors import TypingError
from oracle import accumulate, normal

from pyspark_diff import DiffOverflowError, thresholds
from pyspark_diff.kernels import consolidate as consolidation
from pyspark_diff.kernels import ipc, lookup, search, sums
from pyspark_diff.kernels.bucketed import rows_under
from pyspark_diff.kernels.consolidate import (
    Grouped,
    Runs,
    consolidate,
    consolidate_parts,
    runs_of,
)
from pyspark_diff.kernels.diff_vectors import DiffVectors
from pyspark_diff.kernels.grouping import group_records
from pyspark_diff.kernels.jit import jit, kernel, signature
from pyspark_diff.kernels.join import Reached, join
from pyspark_diff.kernels.layout import Layout, as_int64, from_int64
from pyspark_diff.kernels.lookup import accumulated
from pyspark_diff.kernels.merge import _merge_two, merge
from pyspark_diff.kernels.overflow import lie_near, product_leaves, sum_leaves
from pyspark_diff.kernels.replay import compact, replay
from pyspark_diff.kernels.split import split
from pyspark_diff.kernels.sums import sum_by_code
from pyspark_diff.kernels.updates import UpdateChunk, advanced, bounds_of, concat, empty, spread
from pyspark_diff.trace import storage

#: A hundred of the examples cost as much as one step of a dataflow.
many = settings(max_examples=8 * settings().max_examples)

LEAST, MOST = -(2**63), 2**63 - 1
EDGES = [LEAST, LEAST + 1, -(2**31), -1, 0, 1, 2, 3, 2**31, 2**62, MOST]

#: Values of each type, and the column types of records.
DATE, STAMP = datetime.date, datetime.datetime
VALUES = {
    pa.int64(): st.sampled_from([*EDGES, None]) | st.integers(0, 3),
    pa.int32(): st.sampled_from([-(2**31), -1, 0, 1, 2**31 - 1, None]),
    pa.bool_(): st.sampled_from([True, False, None]),
    pa.date32(): st.sampled_from([DATE(1, 1, 1), DATE(1970, 1, 1), DATE(9999, 12, 31), None]),
    pa.timestamp("us"): st.sampled_from([STAMP(1, 1, 1), STAMP(2024, 2, 29, 1, 2, 3, 4), None]),
    pa.string(): st.sampled_from(["", "a", "b", "ab", "é" * 40, None]),
    pa.float64(): st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf"), None]),
    pa.list_(pa.int32()): st.sampled_from([[], [1], [None], [1, None], None]),
}
SHAPES = [
    *((kind,) for kind in VALUES),
    (pa.int32(), pa.string()),
    (pa.bool_(), pa.float64(), pa.int64()),
    (),
]

layouts = st.builds(Layout, st.sampled_from(SHAPES), st.sampled_from([-1, 0, 1]))

#: Times and diffs of rows: one number, or one per row, from a narrow or from the widest range.
few, edges = st.integers(0, 3), st.sampled_from(EDGES)
times = st.sampled_from([few, few, edges, st.integers(2**62, 2**62 + 2**20), 0, 3, LEAST, MOST])
#: Small diffs, so that many updates cancel.
small = st.sampled_from([1, -1, 2, -2, 0])
diffs = st.sampled_from([small, small, small, small, edges, 1, -1, 0, 2**62, LEAST])


@st.composite
def batches(draw, layout, most=10, diffs=diffs):
    """An update chunk, and its rows as (record, time, diff)."""
    pool = draw(st.lists(st.tuples(*map(VALUES.get, layout.types)), min_size=1, max_size=4))
    least = draw(st.sampled_from([most // 2, 0]))
    records = draw(st.lists(st.sampled_from(pool), min_size=least, max_size=most))
    return encode_records(layout, records, draw(times), draw(diffs), draw)


def encode_records(layout, records, time, diff, draw=None):
    """`batches` of fixed records; time and diff are numbers, lists or strategies of numbers."""
    rows = len(records)
    values = []
    for value in (time, diff):
        if isinstance(value, st.SearchStrategy):
            value = draw(st.lists(value, min_size=rows, max_size=rows))
        values.append(value)
    if not layout.types and isinstance(values[0], int):
        values[0] = [values[0]] * rows  # only the times store the number of rows
    columns = [
        pa.array([record[i] for record in records], kind) for i, kind in enumerate(layout.types)
    ]
    packed = [v if isinstance(v, int) else np.array(v, dtype=np.int64) for v in values]
    updates = layout.encode(columns, *packed)
    spread = [[v] * rows if isinstance(v, int) else v for v in values]
    return updates, [(normal(r), t, d) for r, t, d in zip(records, *spread)]


def rows_of(layout, updates):
    """The rows as (record, time, diff)."""
    columns = [column.to_pylist() for column in layout.decode(updates)]
    records = list(zip(*columns)) if columns else [()] * len(updates)
    return [
        (normal(record), time, diff)
        for record, time, diff in zip(records, updates.times().tolist(), updates.diffs().tolist())
    ]


def summed(rows):
    """Sums of diffs by record and time, without zeros."""
    sums = Counter()
    for record, time, diff in rows:
        sums[record, time] += diff
    return {key: n for key, n in sums.items() if n}


def fits(numbers):
    return all(LEAST <= n <= MOST for n in numbers)


def check_grouped(layout, grouped):
    """Ordered by hash, record and time, without zeros, and with the right starts."""
    rows = rows_of(layout, grouped.updates)
    assert all(diff for _, _, diff in rows)
    keys = grouped.updates.key64.tolist()
    assert keys == sorted(keys)
    starts = grouped.starts.tolist()
    assert starts == [
        i for i, (record, _, _) in enumerate(rows) if i == 0 or record != rows[i - 1][0]
    ]
    assert len({rows[i][0] for i in starts}) == len(starts), "a record in two places"
    for start, length in zip(starts, grouped.lengths().tolist()):
        inside = [time for _, time, _ in rows[start : start + length]]
        assert inside == sorted(set(inside))
    assert rows_of(layout, grouped.records()) == [rows[i] for i in starts]
    return rows


# consolidate


@many
@given(data=st.data(), layout=layouts)
def test_consolidate(data, layout):
    updates, rows = data.draw(batches(layout))
    expected = summed(rows)
    if not fits(expected.values()):
        with pytest.raises(DiffOverflowError):
            consolidate(updates)
        return
    checked = check_grouped(layout, consolidate(updates))
    assert {(record, time): diff for record, time, diff in checked} == expected


@many
@given(
    codes=st.lists(st.sampled_from(EDGES) | st.integers(0, 9), min_size=1, max_size=20),
    diff=diffs,
    data=st.data(),
)
@example([LEAST, MOST, LEAST], 1, None)
@example([0, 1, 0], 0, None)
@example([5, 5, 2**62], 0, None)
@example([7, 7], 2**62, None)
@example([7, 7], -(2**62), None)
@example([7, 7], -(2**62) - 1, None)
def test_sums_by_code(codes, diff, data):
    if isinstance(diff, st.SearchStrategy):
        diff = np.array(data.draw(st.lists(diff, min_size=len(codes), max_size=len(codes))))
    each = diff.tolist() if isinstance(diff, np.ndarray) else [diff] * len(codes)
    expected = Counter()
    for code, n in zip(codes, each):
        expected[code] += n
    low, high = min(codes), max(codes)
    if not fits(expected.values()):
        with pytest.raises(DiffOverflowError):
            sum_by_code(np.array(codes), low, high - low, diff)
        return
    actual, sums = sum_by_code(np.array(codes), low, high - low, diff)
    assert actual.tolist() == sorted(code for code, n in expected.items() if n)
    assert sums.tolist() == [expected[code] for code in actual.tolist()]


#: The ranges of keys, times and diffs decide between tables, packed sorts and ranks.
RANGES = [(3, 1, 3), (2**13, 1, 1), (2**13, 50, 3), (2**40, 1, 2**30), (2**40, 2**30, 1),
          (2**63, 1, 1), (2**63, 50, 3), (3 * 2**61, 50, 3), (2**63, 2**63, 2**40),
          (2**20, 2**20, 2**20), (2**50, 5, 2**48)]


@pytest.mark.parametrize(("keys", "times", "diffs"), RANGES)
@pytest.mark.parametrize(("rows", "partitioned"), [(1, 2**60), (5_000, 2**60), (5_000, 1)])
def test_many_rows_are_consolidated(use_thresholds, rows, partitioned, keys, times, diffs):
    use_thresholds(partition_rows_min=partitioned)
    random = np.random.default_rng(rows)
    # Some rows occur again, and some repetitions cancel.
    key = random.integers(-keys, keys, rows)
    time = random.integers(0, times, rows)
    diff = random.integers(-diffs, diffs, rows) if diffs > 1 else np.full(rows, diffs)
    again = random.integers(0, rows, rows)
    key, time = np.concatenate((key, key[again])), np.concatenate((time, time[again]))
    diff = np.concatenate((diff, -diff[again] if diffs > 1 else diff[again]))
    layout = Layout((pa.int64(),))
    for each_time, each_diff in [(time, diff), (3, diff), (time, 2), (3, -1)]:
        updates = UpdateChunk(key, None, each_time, each_diff)
        grouped = consolidate(updates)
        checked = check_grouped(layout, grouped)
        assert {(r, t): d for r, t, d in checked} == summed(rows_of(layout, updates))


@many
@given(data=st.data(), layout=layouts.filter(lambda layout: not layout.exact))
def test_group_records(data, layout):
    updates, rows = data.draw(batches(layout, most=30))
    if not rows:
        return
    group, first = group_records(updates.key64, updates.columns)
    records = [record for record, _, _ in rows]
    assert [records[i] for i in first[group]] == records
    assert len({records[i] for i in first}) == len(first) == group.max() + 1
    keys = updates.key64[first].tolist()
    assert keys == sorted(keys)


# replay and compact


@many
@given(data=st.data(), layout=layouts)
def test_replay(data, layout):
    updates, rows = data.draw(batches(layout, diffs=st.sampled_from([
        st.integers(-2, 2), st.sampled_from([1, -1, 2**62, -(2**62), MOST]),
    ])))
    if not fits(summed(rows).values()):
        return
    grouped = consolidate(updates)
    records = grouped.starts.size
    base = data.draw(st.lists(
        st.integers(-2, 2) | st.sampled_from([2**62, LEAST, MOST]),
        min_size=records, max_size=records,
    ))
    counts = dict(zip((r for r, _, _ in rows_of(layout, grouped.records())), base))
    expected = []
    for record, _, diff in rows_of(layout, grouped.updates):
        expected.append((counts[record], counts[record] + diff))
        counts[record] += diff
    packed = np.array(base, dtype=np.int64)
    if not fits(after for _, after in expected):
        with pytest.raises(DiffOverflowError):
            replay(grouped, packed)
        return
    before, after = replay(grouped, packed)
    assert list(zip(before.tolist(), after.tolist())) == expected


def check_moved(layout, actual, rows, since):
    """At each time from ``since`` on, accumulations are unchanged; no update lies before it."""
    moved = rows if since is None else [(r, max(t, since), d) for r, t, d in rows]
    assert {(r, t): d for r, t, d in actual} == summed(moved)
    if since is not None:
        for time in {since, *(t for _, t, _ in rows if t >= since), MOST}:
            assert accumulate(actual, time) == accumulate(rows, time)


sinces = st.sampled_from([4, 2, None, 1, 0, LEAST, 2**62, MOST])


@many
@given(data=st.data(), layout=layouts, since=sinces)
def test_compact(data, layout, since):
    updates, rows = data.draw(batches(layout))
    moved = rows if since is None else [(r, max(t, since), d) for r, t, d in rows]
    if not fits(summed(rows).values()):
        return
    grouped = consolidate(updates)
    if not fits(summed(moved).values()):
        with pytest.raises(DiffOverflowError):
            compact(grouped, since)
        return
    compacted = compact(grouped, since)
    actual = check_grouped(layout, Grouped(compacted, starts_of(layout, compacted)))
    check_moved(layout, actual, rows, since)


def starts_of(layout, updates):
    records = [record for record, _, _ in rows_of(layout, updates)]
    starts = [i for i, r in enumerate(records) if i == 0 or r != records[i - 1]]
    return np.array(starts, dtype=np.int64)


@many
@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.sampled_from(["even", "clusters", "steep", "few"]),
    rows=st.sampled_from([0, 1, 64, 1000, 5000]),
    count=st.integers(0, 70),
)
def test_keys_are_found_wherever_they_lie(seed, shape, rows, count):
    random = np.random.default_rng(seed)
    least, most = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    if shape == "even":
        hay = random.integers(least, most, rows, endpoint=True)
    elif shape == "clusters":
        hay = random.choice(random.integers(least, most, 3), rows) + random.integers(0, 50, rows)
    elif shape == "steep":
        hay = np.clip(np.exp(random.random(rows) * 43), 0, 2**62).astype(np.int64)
    else:
        hay = random.choice([least, -1, 0, 1, most], rows)
    hay = np.sort(hay)
    near = random.choice(hay, count) if rows else np.empty(0, np.int64)
    needles = np.sort(np.concatenate([near, near + 1, random.integers(least, most, 2)]))
    low, high = np.searchsorted(hay, needles), np.searchsorted(hay, needles, "right")
    group, row = lookup._matches(needles, hay)
    assert group.tolist() == np.repeat(np.arange(needles.size), high - low).tolist()
    assert row.tolist() == [i for pair in zip(low, high) for i in range(*pair)]
    begins, ends = lookup._ranges(needles, hay)
    hits = high > low
    assert begins[hits].tolist() == low[hits].tolist()
    assert (ends - begins).tolist() == (high - low).tolist()


def hays():
    random = np.random.default_rng(0)
    yield np.array([5])
    yield np.array([LEAST, MOST])
    yield np.array([MOST - 1, MOST, MOST])
    yield np.full(100, 7)
    yield np.concatenate((np.arange(500), [2**62, MOST]))
    yield np.concatenate(([LEAST, -(2**62)], np.arange(500)))
    yield np.sort(random.integers(LEAST, MOST, 300))
    yield np.unique(np.exp(random.random(300) * 43).astype(np.int64))


@pytest.mark.parametrize("hay", list(hays()), ids=len)
def test_a_search_looks_at_no_row_that_is_not_there(hay, monkeypatch):
    """In Python: only the replaced ``word`` checks addresses."""
    def word(address):
        assert 0 <= address // 8 < hay.size
        return int(hay[address // 8])

    monkeypatch.setattr(search, "word", word)
    monkeypatch.setattr(search, "fetch", word)
    monkeypatch.setattr(search, "_evenly", search._evenly.py_func)
    needles = np.unique(np.concatenate((hay[::7], hay[-3:], np.array([LEAST, 0, MOST]))))
    for x in sorted({min(int(x) + more, MOST) for x in needles for more in (0, 1)}):
        for left in {0, 1, hay.size // 2, hay.size - 1, hay.size}:
            guess = search.guess_of.py_func(0, hay.size, left, x)
            expected = left + int(np.searchsorted(hay[left:], x))
            for near in range(search.NEARER + 3):
                assert search.seek.py_func(0, hay.size, left, x, guess) == expected
                guess = search.nearer.py_func(0, hay.size, left, x, guess)


@many
@given(data=st.data(), layout=layouts, since=sinces)
def test_merge(data, layout, since):
    parts, rows = several(data, layout)
    moved = rows if since is None else [(r, max(t, since), d) for r, t, d in rows]
    if not fits(summed(moved).values()):
        with pytest.raises(DiffOverflowError):
            merge(parts, since)
        return
    merged = merge(parts, since)
    actual = check_grouped(layout, Grouped(merged, starts_of(layout, merged)))
    check_moved(layout, actual, rows, since)


@contextmanager
def every_merge():
    """Merge batches of any size, in Python, which checks bounds."""
    with (
        thresholds.using(merge_rows_min=0), pytest.MonkeyPatch.context() as patch,
        np.errstate(over="ignore"),
    ):
        patch.setattr("pyspark_diff.kernels.merge._merge_two", _merge_two.py_func)
        yield


numbers = st.sampled_from(EDGES) | st.integers(0, 3)


@many
@given(
    parts=st.lists(
        st.tuples(
            st.lists(
                st.tuples(numbers, numbers, st.integers(0, 5), numbers, st.integers(0, 2)),
                min_size=1,
            ),
            st.tuples(*[st.none() | st.integers(0, 2)] * 3),
        ),
        min_size=1, max_size=4,
    ),
    pairs=st.booleans(),
    since=sinces,
)
def test_merge_of_numbers(parts, pairs, since):
    batches = []
    for rows, shared in parts:
        key, value, *own = np.array(rows, dtype=np.int64).T.copy()
        time, diff, place = (column if s is None else s for column, s in zip(own, shared))
        with suppress(DiffOverflowError):
            value = value if pairs else None
            updates = UpdateChunk(key, None, time, diff, value, coordinate=place)
            batches.append(consolidate(updates).updates)
    batches = [batch for batch in batches if len(batch)]
    try:
        expected = consolidate(advanced(concat(batches), since)).updates
    except DiffOverflowError:
        with every_merge(), pytest.raises(DiffOverflowError):
            merge(batches, since)
        return
    with every_merge():
        merged = merge(batches, since)
    with thresholds.using(merge_rows_min=0):
        compiled = merge(batches, since)
    assert compiled.key64.tolist() == merged.key64.tolist()
    assert compiled.diffs().tolist() == merged.diffs().tolist()
    assert isinstance(merged.time, int) or not isinstance(expected.time, int)
    names = ("key64", "val64") if pairs and len(expected) else ("key64",)
    for name in names:
        assert getattr(merged, name).tolist() == getattr(expected, name).tolist()
    assert merged.times().tolist() == expected.times().tolist()
    assert merged.diffs().tolist() == expected.diffs().tolist()
    if len(expected):
        places = [spread(chunk.coordinate, len(chunk)).tolist() for chunk in (merged, expected)]
        assert places[0] == places[1]
        assert (merged.val64 is None) == (not pairs)


@pytest.mark.parametrize("diffs, total", [
    ((MOST, 1), None), ((LEAST, -1), None), ((MOST, 1, -1), MOST), ((LEAST, MOST, 1), 0),
    ((LEAST, MOST, 2), 1),
])
def test_merge_looks_at_each_sum(diffs, total):
    batches = [UpdateChunk(np.array([7]), None, 0, diff) for diff in diffs]
    with every_merge():
        if total is None:
            with pytest.raises(DiffOverflowError):
                merge(batches, None)
        else:
            assert merge(batches, None).diffs().tolist() == ([total] if total else [])


@pytest.mark.parametrize("keys, left", [
    ([[1], [1]], []), ([[1], [1], [1]], [1]), ([[1, 2], [1, 2], [3]], [3]), ([[1, 9], [9]], [1]),
    ([[1], [1], [2], [2]], []),
])
def test_merge_of_what_cancels(keys, left):
    batches = [
        UpdateChunk(np.array(key), None, 4, -1 if n % 2 else 1, coordinate=6)
        for n, key in enumerate(keys)
    ]
    with every_merge():
        merged = merge(batches, None)
    assert merged.key64.tolist() == left
    assert (merged.time, merged.coordinate) == (4, 6) or not left


@pytest.mark.parametrize("since, times", [
    (None, [3, 5, 5]), (4, [4, 5, 5]), (5, [5, 5, 5]), (6, [6, 6, 6]),
])
def test_merge_of_batches_that_end_at_one_time(since, times):
    first = UpdateChunk(np.array([1, 2]), None, np.array([3, 5]), 1)
    batches = [first, UpdateChunk(np.array([3]), None, 5, 1)]
    with every_merge():
        merged = merge(batches, since)
    assert (merged.key64.tolist(), merged.times().tolist()) == ([1, 2, 3], times)


def several(data, layout):
    """Consolidated batches, and all their rows."""
    parts, rows = [], []
    for _ in range(data.draw(st.integers(0, 4))):
        updates, batch_rows = data.draw(batches(layout))
        if fits(summed(batch_rows).values()):
            part = consolidate(updates).updates
            # A batch from a file has no columns if its layout needs none.
            if data.draw(st.booleans()):
                part = ipc.from_bytes(ipc.to_bytes(part))
            parts.append(part)
            rows += batch_rows
    return parts, rows


# gather


@many
@given(data=st.data(), layout=layouts, pairs=st.booleans())
def test_few_rows_are_consolidated_as_many(data, layout, pairs):
    if pairs:
        layout = Layout(layout.types, layout.hash_mask, data.draw(layouts))
        rows = data.draw(st.sampled_from([1, 6]))
        columns = [
            st.lists(VALUES[kind], min_size=rows, max_size=rows) for kind in layout.all_types
        ]
        values = [data.draw(column) for column in columns]
        time, diff = (
            np.array(data.draw(st.lists(numbers, min_size=rows, max_size=rows)), np.int64)
            for numbers in (few, small)
        )
        updates = layout.encode(
            [pa.array(column, kind) for column, kind in zip(values, layout.all_types)], time, diff
        )
    else:
        updates, _ = data.draw(batches(layout, diffs=diffs.filter(lambda diff: diff != 2**62)))
    with suppress(DiffOverflowError):
        consolidated = consolidate(updates)
        with thresholds.using(consolidate_few_rows_max=0):
            right = consolidate(updates)
        assert rows_of(layout, consolidated.updates) == rows_of(layout, right.updates)
        assert consolidated.updates.key64.tolist() == right.updates.key64.tolist()
        assert consolidated.starts.tolist() == right.starts.tolist()
        if pairs and len(consolidated.updates):
            assert consolidated.key_starts.tolist() == right.key_starts.tolist()
        elif not pairs:
            assert consolidated.key_starts is None and right.key_starts is None


@many
@given(data=st.data(), layout=layouts, parts=st.integers(0, 4))
def test_counts_of_few_records_are_those_of_many(data, layout, parts):
    drawn = [data.draw(batches(layout))[0] for _ in range(parts + 1)]
    try:
        new, *old = [consolidate(updates) for updates in drawn]
    except DiffOverflowError:
        return
    counts, errors = [], []
    for most in thresholds.current.look_up_few_rows_max, -1:
        with thresholds.using(look_up_few_rows_max=most):
            try:
                *columns, read = lookup.counted_on([grouped.updates for grouped in old], new)
                counts.append(([column.tolist() for column in columns], read))
            except DiffOverflowError:
                errors.append(most)
    assert not errors or len(errors) == 2
    assert not counts or counts[0] == counts[1]


@pytest.mark.parametrize("rows", [0, 1, 5, 32, 33, 100])
def test_bounds_of_values(rows):
    values = np.random.default_rng(rows).integers(LEAST, MOST, rows)
    assert bounds_of(values) == ((values.min(), values.max()) if rows else None)
    assert bounds_of(7) == (7, 7)


@many
@given(data=st.data(), layout=layouts)
def test_accumulated(data, layout):
    parts, rows = several(data, layout)
    updates, _ = data.draw(batches(layout, diffs=st.just(1)))
    records = consolidate(updates).records()
    wanted = [record for record, _, _ in rows_of(layout, records)]
    there = [row for part in parts for row in rows_of(layout, part) if row[0] in wanted]
    sums = Counter()
    for record, _, diff in there:
        sums[record] += diff
        if not fits(sums.values()):
            with pytest.raises(DiffOverflowError):
                accumulated(records, parts)
            return
    counts, read = accumulated(records, parts)
    assert counts.tolist() == [sums[record] for record in wanted]
    assert read == len(there)


@pytest.mark.parametrize("mask", [-1, 63])
@pytest.mark.parametrize(("wanted", "there"), [(3, 5000), (3000, 5000), (5000, 3)])
def test_many_records_are_found(mask, wanted, there):
    random = np.random.default_rng(wanted)
    for layout in (Layout((pa.int64(),)), Layout((pa.string(),), mask)):
        def drawn(count):
            numbers = random.integers(0, 4000, count)
            column = pa.array(numbers) if layout.exact else pa.array(numbers.astype(str))
            return layout.encode([column], 0, random.integers(1, 5, count))

        records = consolidate(drawn(wanted)).records()
        batch = consolidate(drawn(there)).updates
        sums = {record: diff for record, _, diff in rows_of(layout, batch)}
        counts, read = accumulated(records, [batch, empty(), batch])
        expected = [2 * sums.get(record, 0) for record, _, _ in rows_of(layout, records)]
        assert counts.tolist() == expected
        assert read == 2 * sum(1 for n in expected if n)


@pytest.mark.parametrize("mask", [-1, 3])
@pytest.mark.parametrize("kinds", [
    (pa.int64(), pa.int64()), (pa.int64(), pa.string()), (pa.string(), pa.int32())
])
def test_records_are_found_among_those_of_their_key(mask, kinds):
    random = np.random.default_rng(5)
    layout = Layout((kinds[0],), mask, Layout((kinds[1],), mask))

    def drawn(count, keys):
        columns = []
        for kind, most in zip(kinds, (keys, 400)):
            numbers = random.integers(0, most, count)
            texts = numbers if kind != pa.string() else numbers.astype(str)
            columns.append(pa.array(texts, kind, mask=random.random(count) < 0.1))
        return consolidate(layout.encode(columns, random.integers(0, 2, count), 1))

    for keys in (1, 40):
        wanted = drawn(200, keys).records()
        batches = [drawn(300, keys).updates for _ in range(3)]
        sums: Counter = Counter()
        for batch in batches:
            for *record, diff in zip(*(c.to_pylist() for c in layout.decode(batch)),
                                     batch.diffs().tolist()):
                sums[tuple(record)] += diff
        counts, read = accumulated(wanted, [*batches, empty()])
        records = list(zip(*(c.to_pylist() for c in layout.decode(wanted))))
        assert counts.tolist() == [sums[record] for record in records]
        # Other records of the same key are not read.
        assert read <= 2 * len(batches) * len(records)


# split


@many
@given(data=st.data(), layout=layouts, buckets=st.integers(1, 5))
def test_split(data, layout, buckets):
    updates, rows = data.draw(batches(layout))
    expected = summed(rows)
    if not fits(expected.values()):
        with pytest.raises(DiffOverflowError):
            list(split(updates, layout, buckets))
        return
    parts = list(split(updates, layout, buckets))
    numbers = [number for number, _ in parts]
    assert numbers == sorted(set(numbers)) and set(numbers) <= set(range(buckets))
    diff_of, where = {}, {}
    for number, part in parts:
        assert len(part)
        for record, time, diff in check_grouped(layout, Grouped(part, starts_of(layout, part))):
            assert (record, time) not in diff_of
            diff_of[record, time] = diff
            assert where.setdefault(record, number) == number, "one record in two buckets"
        # The bucket is a function of the record alone, in any encoding.
        assert set(layout.buckets(part, buckets).tolist()) == {number}
        columns = layout.decode(part)
        again = layout.encode(columns, part.times(), 1)
        assert set(layout.buckets(again, buckets).tolist()) == {number}
    assert diff_of == expected


# layout


@many
@given(data=st.data(), layout=layouts)
def test_layout_gives_back_what_it_took(data, layout):
    updates, rows = data.draw(batches(layout))
    assert rows_of(layout, updates) == rows
    for column, kind in zip(layout.decode(updates), layout.types):
        assert column.type == kind
    if layout.exact and not any(record == (None,) for record, _, _ in rows):
        assert updates.columns is None
    elif layout.types:
        assert len(updates.columns) == len(layout.types)
    by_record = {}
    for (record, _, _), key in zip(rows, updates.key64.tolist()):
        assert by_record.setdefault(record, key) == key, "equal records, different hashes"


def test_layout_takes_chunks_and_slices():
    layout = Layout((pa.int32(), pa.string()))
    numbers = pa.chunked_array([pa.array([0, 1], pa.int32()), pa.array([2], pa.int32())])
    words = pa.array(["x", "a", None, "c"]).slice(1)
    updates = layout.encode([numbers, words], 0, 1)
    assert rows_of(layout, updates) == [((0, "a"), 0, 1), ((1, None), 0, 1), ((2, "c"), 0, 1)]


@pytest.mark.parametrize("keys", [(pa.int64(),), (pa.string(),), ()])
def test_each_row_has_a_key_and_a_value_that_may_have_no_columns(keys):
    """All rows share a time and a diff."""
    values = () if keys else (pa.int64(),)
    layout = Layout(keys, value=Layout(values))
    chunks = []
    for rows in 2, 200:
        column = pa.array([1, 2] * (rows // 2)).cast(layout.all_types[0])
        updates = layout.encode([column], 3, 1)
        assert updates.key64.size == updates.val64.size == len(updates) == rows
        grouped = consolidate(updates)
        assert grouped.updates.diffs().tolist() == [rows // 2] * 2
        chunks.append(grouped.updates)
    total = consolidate(concat([updates, *chunks])).updates
    assert len(total) == 2 and total.diffs().tolist() == [201, 201]


@many
@given(data=st.data(), kind=st.sampled_from([kind for kind in VALUES if Layout((kind,)).exact]))
def test_whole_numbers_and_back(data, kind):
    column = pa.array(data.draw(st.lists(VALUES[kind], max_size=5)), kind)
    assert from_int64(as_int64(column), kind).equals(column)
    values = column.drop_null()
    order = np.argsort(as_int64(values).to_numpy(), kind="stable")
    assert values.take(pa.array(order)).to_pylist() == sorted(values.to_pylist())


# ipc


@many
@given(data=st.data(), layout=layouts, narrow=st.booleans())
def test_ipc(data, layout, narrow):
    updates, rows = data.draw(batches(layout))
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    cut = updates.between(start, stop)
    for decoded in (
        ipc.from_batch(ipc.to_batch(cut, narrow=narrow)),
        ipc.from_bytes(ipc.to_bytes(cut)),
        ipc.from_bytes(pa.py_buffer(ipc.to_bytes(cut))),
    ):
        assert rows_of(layout, decoded) == rows[start:stop]
        assert decoded.key64.tolist() == cut.key64.tolist()
        assert isinstance(decoded.time, int) == isinstance(cut.time, int)
        assert isinstance(decoded.diff, int) == isinstance(cut.diff, int)


@many
@given(data=st.data(), layout=layouts)
def test_files(data, layout, tmp_path_factory):
    updates, rows = data.draw(batches(layout))
    path = str(tmp_path_factory.mktemp("batch") / "folder" / "00000.arrow")
    storage.write_batch(path, ipc.to_batch(updates))
    assert rows_of(layout, storage.open_updates(path)) == rows
    storage.remove_files([path])


@pytest.mark.parametrize(
    "reach", [0, 2**8 - 1, 2**8, 2**16 - 1, 2**16, 2**32 - 1, 2**32, 2**64 - 1]
)
def test_numbers_are_narrowed_without_loss(reach):
    low = LEAST if reach > MOST else -5
    numbers = np.array([low, low + reach // 2, low + reach], dtype=np.int64)
    read = ipc.from_bytes(ipc.to_bytes(UpdateChunk(numbers, None, numbers, numbers)))
    assert read.key64.tolist() == read.time.tolist() == read.diff.tolist() == numbers.tolist()


def test_vectors_are_read_back():
    keys, vectors = np.array([3, 5]), DiffVectors(np.array([[1, 2], [0, -1]]))
    for columns in (None, (pa.array(["a", "b"]),)):
        updates = UpdateChunk(keys, columns, 4, vectors)
        decoded = ipc.from_batch(ipc.to_batch(updates))
        assert decoded.diff.values.tolist() == vectors.values.tolist()
        assert (decoded.values, decoded.columns) == (None, columns)


def test_other_format_is_refused():
    batch = ipc.to_batch(empty())
    with pytest.raises(ValueError, match="format"):
        ipc.from_batch(batch.replace_schema_metadata({b"format": b"0"}))


# updates


@many
@given(data=st.data(), layout=layouts)
def test_concat(data, layout):
    drawn = [data.draw(batches(layout)) for _ in range(data.draw(st.integers(0, 4)))]
    joined = concat([updates for updates, _ in drawn])
    assert rows_of(layout, joined) == [row for _, rows in drawn for row in rows]


@many
@given(data=st.data(), layout=layouts)
def test_take(data, layout):
    updates, rows = data.draw(batches(layout))
    mask = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    indices = [i for i, is_taken in enumerate(mask) if is_taken]
    expected = [rows[i] for i in indices]
    assert rows_of(layout, updates.take(np.array(mask, dtype=bool))) == expected
    assert rows_of(layout, updates.take(np.array(indices, dtype=np.int64))) == expected


@many
@given(data=st.data(), layout=layouts, since=sinces)
def test_advanced(data, layout, since):
    updates, rows = data.draw(batches(layout))
    moved = [(r, t if since is None else max(t, since), d) for r, t, d in rows]
    assert rows_of(layout, advanced(updates, since)) == moved


@pytest.mark.parametrize("layout", [Layout(shape) for shape in SHAPES])
def test_kernels_accept_no_rows(layout):
    nothing = encode_records(layout, [], [], [])[0]
    for updates in (nothing, empty(), concat([]), concat([empty(), nothing])):
        grouped = consolidate(updates)
        assert len(grouped.updates) == grouped.starts.size == 0
        assert len(compact(grouped, 5)) == 0
        assert [a.size for a in replay(grouped, np.empty(0, np.int64))] == [0, 0]
        assert list(split(updates, layout, 3)) == []
        assert [column.type for column in layout.decode(updates)] == list(layout.types)
        assert accumulated(grouped.records(), [updates])[1] == 0
        assert len(merge([updates, updates], 3)) == 0
        assert len(ipc.from_bytes(ipc.to_bytes(updates))) == 0


def test_every_kernel_that_is_called_says_its_types():
    from importlib import import_module
    from pkgutil import iter_modules

    from numba.core.dispatcher import Dispatcher

    from pyspark_diff import kernels
    from pyspark_diff.kernels import warm_up

    callees: dict[str, set[str]] = {}
    for module in iter_modules(kernels.__path__):
        for name, value in vars(import_module(f"{kernels.__name__}.{module.name}")).items():
            if isinstance(value, Dispatcher) and value.__module__.endswith(f".{module.name}"):
                inner = value.py_func.__code__.co_names
                callees[f"{module.name}.{name}"] = {
                    f"{used.__module__.rpartition('.')[2]}.{used.__name__}"
                    for used in map(value.py_func.__globals__.get, inner)
                    if isinstance(used, Dispatcher)
                }
    declared = warm_up.called()
    assert set(callees) - set().union(*callees.values()) == set(declared)
    for name, dispatcher in declared.items():
        signatures = {signature(text) for text in dispatcher.declared}
        assert len(signatures) == len(dispatcher.declared) > 0, name


def test_one_form_of_a_kernel_serves_all_that_can_be_given_as_its_types():
    @kernel("int64[:]!-, int64[:], int64")
    def add_number(values, out, number):
        for i in range(out.size):
            out[i] = values[i] + number

    def array_of(**flags):
        values = np.arange(6)[::2] if flags.pop("strided", False) else np.arange(3)
        values.flags.writeable = not flags.get("read", False)
        return values

    for values in (
        array_of(), array_of(read=True), array_of(strided=True), array_of(strided=True, read=True)
    ):
        for number in (5, np.int64(5)):
            out = np.empty(3, np.int64)
            add_number(values, out, number)
            assert out.tolist() == [value + 5 for value in values]
    assert list(add_number.overloads) == [signature(*add_number.declared)]
    with pytest.MonkeyPatch.context() as patch:
        # The compiled form is cached: a search in Python takes fifty times as long as a short call.
        for name in ("_compile_for_args", "_search_new_conversions"):
            patch.setattr(type(add_number), name, None)
        add_number(array_of(strided=True, read=True), np.empty(3, np.int64), 5)
    # Types that are not declared are compiled at their first call.
    out = np.empty(3, np.float64)
    add_number(np.array([0.5, 1.5, 2.5]), out, 5)
    assert out.tolist() == [5.5, 6.5, 7.5] and len(add_number.overloads) == 2
    with pytest.raises(TypingError):
        add_number(array_of(), array_of(read=True), 5)


def test_a_number_in_a_call_is_no_type_of_its_own():
    @jit
    def inner(x, by):
        return x + by

    @kernel("int64")
    def outer(x):
        return inner(x, 1) + inner(x, 2) + inner(x, x)

    assert outer(3) == 15 and len(inner.overloads) == 1


def test_workers_keep_their_memory():
    """The setting is made once a process; C libraries other than glibc lack it and lose nothing."""
    from pyspark_diff.kernels.memory import keep_memory

    assert keep_memory() is keep_memory()


def test_large_work_leaves_the_process_as_it_was(monkeypatch):
    """Also after an error, in nested work, and if the user has configured the allocator."""
    import gc

    from pyspark_diff.kernels import memory

    class Library:
        def __init__(self):
            self.settings, self.trimmed = dict(memory._USUAL), 0

        def mallopt(self, name, value):
            self.settings[name] = value
            return 1

        def malloc_trim(self, pad):
            self.trimmed += 1

    library = Library()
    gc.unfreeze()  # other tests may have frozen objects
    monkeypatch.setattr(memory, "_malloc", lambda: library)
    for name in (*memory._SET_UP, memory._ARROW):
        monkeypatch.delenv(name, raising=False)
    pool = pa.default_memory_pool().backend_name
    changed = {**dict(memory._USUAL), **dict(memory._KEPT)}
    with pytest.raises(ZeroDivisionError):
        with memory.large_work():
            with memory.large_work():
                assert library.settings == changed and gc.get_freeze_count()
            assert library.settings == changed and gc.get_freeze_count() and not library.trimmed
            assert pa.default_memory_pool().backend_name == "system"
            1 / 0
    assert pa.default_memory_pool().backend_name == pool
    assert library.settings == dict(memory._USUAL)
    assert library.trimmed == 1 and not gc.get_freeze_count()
    # Settings of the user stay.
    gc.freeze()
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=1")
    library.settings.clear()
    try:
        with memory.large_work():
            assert not library.settings and pa.default_memory_pool().backend_name == pool
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()
    gc.disable()
    try:
        with memory.large_work():
            assert not gc.get_freeze_count() and not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize("call", ["mallopt", "set_memory_pool", "freeze"])
def test_large_work_that_is_interrupted_as_it_begins_leaves_the_process_as_it_was(
    monkeypatch, call
):
    """Python checks for signals after each call."""
    import gc
    from types import SimpleNamespace

    from pyspark_diff.kernels import memory

    settings = {}
    library = SimpleNamespace(mallopt=lambda *setting: settings.update([setting]) or 1,
                              malloc_trim=lambda pad: None)
    gc.unfreeze()
    monkeypatch.setattr(memory, "_malloc", lambda: library)
    for name in (*memory._SET_UP, memory._ARROW):
        monkeypatch.delenv(name, raising=False)
    owner = {"mallopt": library, "set_memory_pool": pa, "freeze": gc}[call]
    done, pool = getattr(owner, call), pa.default_memory_pool().backend_name

    interrupts = iter([KeyboardInterrupt()])

    def interrupted(*arguments):
        done(*arguments)
        for once in interrupts:
            raise once

    monkeypatch.setattr(owner, call, interrupted)
    with pytest.raises(KeyboardInterrupt):
        with memory.large_work():
            pass
    for _ in range(2):
        assert settings == dict(memory._USUAL) and not gc.get_freeze_count()
        assert pa.default_memory_pool().backend_name == pool
        with memory.large_work():
            assert gc.get_freeze_count() and pa.default_memory_pool().backend_name == "system"


def test_idle_workers_give_memory_back(monkeypatch, use_thresholds):
    """Workers do so after some idle time, and only if they have much."""
    from time import sleep
    from types import SimpleNamespace

    from pyspark_diff.kernels import memory

    trimmed = []
    use_thresholds(idle_memory_seconds=0.2)
    monkeypatch.setattr(memory, "_malloc", lambda: SimpleNamespace(malloc_trim=trimmed.append))
    for settled in "keep_memory", "spare_collector":
        monkeypatch.setattr(memory, settled, lambda: None)
    assert memory._resident() > 1 << 20
    use_thresholds(idle_memory_bytes_min=1 << 60)
    with memory.worker_task():
        pass
    assert memory._idle is None  # the process is small
    use_thresholds(idle_memory_bytes_min=0)
    with pytest.raises(ZeroDivisionError), memory.worker_task():
        1 / 0
    with memory.worker_task():
        sleep(0.4)  # the previous task ended longer ago than the idle time
        assert not trimmed
    memory._idle.join()
    assert trimmed == [0]


def test_threads_take_memory_from_one_place():
    """Else a thread cannot reuse memory that another one freed, and all pages fault again."""
    process = subprocess.run(
        [sys.executable, "-c", THREADS_AT_WORK], check=True, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    shared, pages = map(int, process.stdout.split())
    if not shared:
        pytest.skip("this C library has no such setting")
    assert pages < 400_000  # a block has 25,000 pages, and some blocks stay; else 4 million


THREADS_AT_WORK = """
import resource
from concurrent.futures import ThreadPoolExecutor

from pyspark_diff.kernels.memory import large_work, share_memory

def work(number):
    for _ in range(20):
        blocks = [bytearray(b"1") * 100_000_000, bytearray(b"1") * 100_000_000]

def pages():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

shared = share_memory()
with large_work():
    before = pages()
    for _ in range(2):
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(work, range(2)))
print(int(shared), pages() - before)
"""


def test_workers_do_not_search_what_is_loaded_for_garbage(monkeypatch):
    from pyspark_diff.kernels import memory

    called = []
    monkeypatch.setattr(memory, "_tasks", 0)
    monkeypatch.setattr(memory.gc, "collect", lambda: called.append("collect"))
    monkeypatch.setattr(memory.gc, "freeze", lambda: called.append(memory._tasks))
    for _ in range(40):
        memory.spare_collector()
    assert called == ["collect", 2, "collect", 4, "collect", 8, "collect", 16, "collect", 32]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 1, 7, 2**40, -(2**40)]), st.sampled_from([3, -5, 2**30]),
            st.sampled_from([0, 1, 5, 2**20]), st.integers(-2, 2),
        ),
        max_size=30,
    )
)
def test_pairs_are_consolidated_alike_with_and_without_partitions(rows):
    key, value, time, diff = (np.array(c, np.int64) for c in (zip(*rows) if rows else [()] * 4))
    updates = UpdateChunk(key, None, time, diff, value)
    expected = Counter()
    for *place, count in rows:
        expected[tuple(place)] += count
    expected = {place: count for place, count in expected.items() if count}
    for limit in (1, 2**60):
        with thresholds.using(partition_rows_min=limit):
            grouped = consolidate(updates)
        merged = grouped.updates
        if not expected:
            assert not len(merged)
            continue
        places = list(zip(merged.key64.tolist(), merged.val64.tolist(), merged.times().tolist()))
        assert dict(zip(places, merged.diffs().tolist())) == expected
        assert places == sorted(places)
        heads = [i for i, p in enumerate(places) if i == 0 or p[:2] != places[i - 1][:2]]
        assert grouped.starts.tolist() == heads
        keys = [i for i, p in enumerate(places) if i == 0 or p[0] != places[i - 1][0]]
        assert grouped.key_starts.tolist() == keys


# join

changes = st.lists(
    st.tuples(
        st.integers(0, 2), st.sampled_from("abc"), st.integers(0, 4), st.sampled_from((-2, -1, 1))
    ),
    max_size=12,
)


@many
@given(
    old=st.tuples(changes, changes), new=st.tuples(changes, changes),
    kind=st.sampled_from(("numbers", "text", "colliding")), cut=st.booleans(),
    most=st.integers(1, 20), replayed=st.sampled_from((-1, 4096)),
)
def test_join_of_histories(old, new, kind, cut, most, replayed):
    value = Layout((pa.string(),), hash_mask=1 if kind == "colliding" else -1)
    value = Layout((pa.int64(),)) if kind == "numbers" else value
    layout = Layout((pa.int64(),), value=value)

    def batch(rows):
        keys, values, times, diffs = zip(*rows)
        values = [ord(v) for v in values] if kind == "numbers" else list(values)
        columns = [pa.array(keys, pa.int64()), pa.array(values, value.types[0])]
        return consolidate(layout.encode(columns, np.array(times), np.array(diffs)))

    later = [[(k, v, t + 5, d) for k, v, t, d in rows] for rows in new]
    sides = []
    for before, rows in zip(old, later):
        half = len(before) // 2 if cut else 0
        old_parts = [batch(part).updates for part in (before[:half], before[half:]) if part]
        new_part = batch(rows) if rows else Grouped(empty(), np.empty(0))
        sides.append(Reached(old_parts, [], new_part, 0))
    actual, pieces = Counter(), []
    with thresholds.using(multiply_pairs_max=replayed):
        pairs = join(*sides, (), 5, most)
        for piece in pairs.pieces:
            chunks = list(piece())
            assert all(0 < len(part) <= most for part in chunks)
            pieces += chunks
    assert sum(map(len, pieces)) <= pairs.rows
    for part in pieces:
        left = [layout.column(part.left, i, part.left_rows).to_pylist() for i in range(2)]
        right = [layout.column(part.right, i, part.right_rows).to_pylist() for i in range(2)]
        times, diffs = (np.broadcast_to(x, len(part)).tolist() for x in (part.time, part.diff))
        for k, a, other, b, time, diff in zip(*left, *right, times, diffs):
            assert k == other
            actual[k, a, b, time] += diff
    expected = Counter()
    everything = [[(*row, False) for row in rows] for rows in old]
    for rows, more in zip(everything, later):
        rows += [(*row, True) for row in more]
    for k, a, s, c, recent in everything[0]:
        for other, b, t, d, also in everything[1]:
            if k == other and (recent or also):
                names = (ord(a), ord(b)) if kind == "numbers" else (a, b)
                expected[k, *names, max(s, t)] += c * d
    assert {k: d for k, d in actual.items() if d} == {k: d for k, d in expected.items() if d}


@given(
    rows=st.lists(st.tuples(
        st.integers(-9, 9), st.integers(0, 3), st.integers(-2, 2), st.integers(0, 2)
    )),
    keys=st.lists(st.integers(-12, 12)),
    buckets=st.integers(1, 6),
)
def test_rows_under_keys_are_those_of_all_files(rows, keys, buckets):
    """A look-up in the files of buckets returns the same rows as one in the whole batch."""
    layout = Layout((pa.int64(),), value=None)
    columns = [np.array(column, np.int64) for column in zip(*rows)] or [np.empty(0, np.int64)] * 4
    key64, time, diff, coordinate = columns
    batch = consolidate(UpdateChunk(key64, None, time, diff, coordinate=coordinate)).updates
    wanted = np.sort(np.array(keys, np.int64))
    files = list(split(batch, layout, buckets))
    expected = batch.take(np.isin(batch.key64, wanted)) if len(batch) else batch
    if not files:
        return
    actual = rows_under(
        wanted, layout.buckets(UpdateChunk(wanted, None, 0, 1), buckets), files
    )
    assert actual.key64.tolist() == expected.key64.tolist()
    for ours, theirs in (
        (actual.times(), expected.times()), (actual.diffs(), expected.diffs()),
        (np.broadcast_to(actual.coordinate, len(actual)),
         np.broadcast_to(expected.coordinate, len(expected))),
    ):
        assert ours.tolist() == theirs.tolist()


def test_what_has_gone_meets_nothing_in_a_join():
    """Each step replaces every record, so that each pair comes and goes once."""
    keys, steps = 50, 20
    step = np.tile(np.arange(1, steps), keys)
    first = consolidate(UpdateChunk(np.arange(keys), None, 0, 1, np.zeros(keys, np.int64))).updates
    key = np.repeat(np.arange(keys), steps - 1)
    rows = UpdateChunk(
        np.tile(key, 2), None, np.tile(step, 2), np.repeat([-1, 1], key.size),
        np.concatenate((step - 1, step)),
    )
    sides = [Reached([first], [], consolidate(rows), 0) for _ in range(2)]
    pairs = join(*sides, (), 1, 1000)
    assert pairs.read == 2 * keys
    sizes = [len(part) for piece in pairs.pieces for part in piece()]
    # At each step, both sides retract one record per key and insert one. Retractions also meet the
    # insertions of the other side, so that each step has four pairs per key.
    assert sum(sizes) == 4 * keys * (steps - 1)
    assert max(sizes) <= 1000


def test_joins_of_sums_beyond_64_bits_are_refused():
    new = consolidate(UpdateChunk(np.array([7]), None, 1, 2**62, np.array([1])))
    late = consolidate(UpdateChunk(np.array([7]), None, 3, 1, np.array([1])))
    old = UpdateChunk(np.array([7]), None, 0, 2**62, np.array([1]))
    sides = Reached([old], [], new, 0), Reached([], [], late, 0)
    with pytest.raises(DiffOverflowError):
        for piece in join(*sides, (), 1, 10).pieces:
            list(piece())


@pytest.mark.parametrize("a, b", [
    (2**62, 2**62), (-(2**62), -(2**62)), (2**63 - 1, 2**63 - 1), (2**62, 2), (-(2**63), -1),
    (2**62, -3), (2**40, 2**40), (3037000500, 3037000500), (2**33, 2**31),
    (-(2**63), 1), (2**62, -2), (3037000499, 3037000499), (2**63 - 1, -1),
])
def test_products_of_diffs_beyond_64_bits_are_refused(a, b):
    """Also if the product wraps to zero in 64 bits."""
    walked = [Reached([], [], runs_of(rows_with(7, 0, x)), 0) for x in (a, b)]
    consolidated = [
        Reached([], [], consolidate(concat([rows_with(7, 0, x), rows_with(8, 2, 1)])), 0)
        for x in (a, b)
    ]
    # Inside a loop, the join multiplies all pairs of updates.
    ways = [(walked, ()), (consolidated, ()), (walked, (0,)), (consolidated, (0,))]
    for sides, at in ways:
        pieces = join(*sides, at, None, 10).pieces
        if -(2**63) <= a * b < 2**63:
            met = [part for piece in pieces for part in piece()]
            assert np.broadcast_to(met[0].diff, len(met[0]))[0] == a * b
        else:
            with pytest.raises(DiffOverflowError):
                for piece in pieces:
                    list(piece())


@pytest.mark.parametrize("at", [(), (0,)])
@pytest.mark.parametrize("a, b", [(2**62, -2), (-(2**63), 1), (3, 5)])
def test_a_product_of_diffs_that_are_stored_once_is_stored_once(a, b, at):
    """A diff is one number, or an array with a number for each pair."""
    keys = np.arange(3)
    sides = [Reached([], [], runs_of(UpdateChunk(keys, None, 1, x, keys)), 0) for x in (a, b)]
    met = [part for piece in join(*sides, at, None, 10).pieces for part in piece()]
    assert all(np.shape(part.diff) in ((), (len(part),)) for part in met)
    diffs = [diff for part in met for diff in np.broadcast_to(part.diff, len(part)).tolist()]
    assert diffs == [a * b] * 3


@pytest.mark.parametrize("lead", [-1, 0, 1])
def test_products_beyond_64_bits_are_refused_where_histories_are_long(use_thresholds, lead):
    use_thresholds(multiply_pairs_max=1)
    sides = []
    for first in 1, 1 + lead:  # the later side meets the earlier one
        time = np.arange(80)
        diff = np.where(time % 2, -(2**62), 2**62)
        rows = UpdateChunk(np.full(80, 7), None, first + time, diff, time // 2)
        sides.append(Reached([], [], consolidate(rows), 0))
    with pytest.raises(DiffOverflowError):
        for piece in join(*sides, (), None, 10_000).pieces:
            list(piece())


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_long_histories_that_come_and_go_make_few_pairs(kind):
    """Each side has 200 values that exist at one time only: 400 events and not 160,000 pairs."""
    layout = Layout((pa.int64(),), value=Layout((kind,)))
    values = [str(n // 2) if kind == pa.string() else n // 2 for n in range(400)]
    columns = [pa.array([7] * 400), pa.array(values, kind)]
    time, diff = (np.arange(400) + 1) // 2, np.where(np.arange(400) % 2, -1, 1)
    sides = [Reached([], [], consolidate(layout.encode(columns, time, diff)), 0) for _ in range(2)]
    pieces = [part for piece in join(*sides, (), None, 10_000).pieces for part in piece()]
    assert sum(map(len, pieces)) < 2000


@many
@given(seed=st.integers(0, 2**32 - 1))
def test_parts_with_values_are_added_up(seed):
    """Times and diffs of a part are a column or one number."""
    random = np.random.default_rng(seed)
    wide = int(random.choice([1 << 8, 1 << 20]))
    parts, wanted = [], Counter()
    for _ in range(random.integers(1, 4)):
        size = int(random.integers(1, 40))
        key, value = (random.integers(-3, 4, size) * wide for _ in range(2))
        time = random.integers(5, 9, size) if random.random() < 0.5 else int(random.integers(5, 9))
        diff = random.integers(-2, 3, size) if random.random() < 0.5 else int(random.integers(1, 3))
        parts.append((key, value, time, diff))
        both = (np.broadcast_to(x, size).tolist() for x in (time, diff))
        for *row, d in zip(key.tolist(), value.tolist(), *both):
            wanted[tuple(row)] += d
    totals = sums.sum_parts(parts)
    if totals is None:  # too narrow
        return
    rows = len(totals[0])
    columns = [np.broadcast_to(x, rows).tolist() for x in totals]
    assert list(zip(*columns)) == sorted((*row, d) for row, d in wanted.items() if d)


def rows_with(key, time, diff):
    return UpdateChunk(np.array([key]), None, time, diff, np.array([1]))


@given(
    st.lists(
        st.lists(
            st.tuples(
                st.sampled_from([0, 1, 7, 2**20, -(2**20)]), st.sampled_from([3, -5, 2**20, 2**61]),
                st.sampled_from([0, 1, 5, 2**20]), st.integers(-2, 2),
            ),
            max_size=10,
        ),
        max_size=4,
    ),
    st.booleans(), st.booleans(), st.booleans(),
)
def test_parts_are_consolidated_as_what_they_are_together(parts, one_time, one_diff, valued):
    def batch(rows):
        key, value, time, diff = (np.array(c, np.int64) for c in (zip(*rows) if rows else [()] * 4))
        return UpdateChunk(
            key, None, 4 if one_time else time, 2 if one_diff else diff, value if valued else None
        )

    whole = consolidate(concat(map(batch, parts)))
    slots = 0 if valued else 1 << 22
    with thresholds.using(partition_rows_min=0, dense_slots_per_row_max=slots):
        inputs = [batch(rows) for rows in parts]
        consolidated = consolidate_parts(inputs)
    assert inputs == []
    for grouped in (consolidated, Runs(consolidated.updates)) if len(consolidated.updates) else ():
        for name in ("key64", "val64") if valued else ("key64",):
            ours, theirs = (getattr(side.updates, name) for side in (grouped, whole))
            assert ours.tolist() == theirs.tolist()
        assert grouped.updates.times().tolist() == whole.updates.times().tolist()
        assert grouped.updates.diffs().tolist() == whole.updates.diffs().tolist()
        assert grouped.starts.tolist() == whole.starts.tolist()
        if valued:
            assert grouped.key_starts.tolist() == whole.key_starts.tolist()
    assert len(consolidated.updates) == len(whole.updates)


_EDGES = st.sampled_from(
    [0, 1, -1, 2, 3, 2**31, 3 * 2**30, 2**32, 2**62, 2**63 - 1, -2**63, -2**62]
)
_any = _EDGES | st.integers(-2**63, 2**63 - 1)


@kernel("int64, int64")
def _leaves(a, b):
    return sum_leaves(a, b), product_leaves(a, b), lie_near(min(a, b), max(a, b), 256)


@given(_any, _any)
@settings(max_examples=500)
def test_what_leaves_64_bits_is_seen(a, b):
    """In compiled code, which may assume that signed numbers do not wrap."""
    leaves = [not -2**63 <= result < 2**63 for result in (a + b, a * b)]
    assert _leaves(a, b) == (*leaves, abs(a - b) < 256)


@settings(max_examples=200)
@given(
    rows=st.lists(st.tuples(st.sampled_from([-(2**63), 1, 1, 2, 2**63 - 1]),
                            st.sampled_from("abcdef"), st.integers(0, 9)), min_size=2),
    diff=st.sampled_from([1, -3, 2**60]), mask=st.sampled_from([-1, 1]), ordered=st.booleans(),
)
def test_values_behind_hashes_are_consolidated_as_they_are(rows, diff, mask, ordered):
    """As with numbered values, also if a key has many rows and if hashes of values collide."""
    rows = (sorted(rows) if ordered else rows) * 2
    layout = Layout((pa.int64(),), value=Layout((pa.string(), pa.int64()), mask))
    key, text, number = zip(*rows)
    updates = layout.encode(
        [pa.array(key, pa.int64()), pa.array(text), pa.array(number, pa.int64())], 4, diff)
    with thresholds.using(consolidate_few_rows_max=0):
        with patch.object(consolidation, "_consolidate_hashed", lambda updates: None):
            try:
                expected = consolidate(updates)
            except DiffOverflowError:
                with pytest.raises(DiffOverflowError):
                    consolidate(updates)
                return
        direct = consolidation._consolidate_hashed(updates)
        actual = consolidate(updates)
    different = len(set(zip(text, number)))
    collide = different > len(set(updates.val64.tolist()))
    assert direct is not None or collide or diff * len(rows) >= 2**63
    for ours, theirs in (actual, expected), (direct or actual, expected):
        assert np.array_equal(ours.updates.key64, theirs.updates.key64)
        assert np.array_equal(ours.updates.diffs(), theirs.updates.diffs())
        assert ours.updates.time == theirs.updates.time == 4
        assert np.array_equal(ours.starts, theirs.starts)
        assert np.array_equal(ours.key_starts, theirs.key_starts)
        if not collide:
            assert layout.decode(ours.updates) == layout.decode(theirs.updates)


@settings(max_examples=300)
@given(data=st.data(), pairs=st.booleans(), wide=st.booleans())
def test_a_few_rows_are_consolidated_as_many_are(data, pairs, wide):
    rows = data.draw(st.integers(2, 12))
    most = 2**63 - 1 if wide else 3

    def column(shared):
        drawn = st.lists(st.integers(-most - wide, most), min_size=rows, max_size=rows)
        values = np.array(data.draw(drawn), np.int64)
        return int(values[0]) if shared and data.draw(st.booleans()) else values

    key, value, time = column(False), column(False) if pairs else None, column(True)
    diff = np.clip(column(True), -(2**40), 2**40)
    diff = diff if isinstance(diff, np.ndarray) else int(diff)
    updates = UpdateChunk(key, None, time, diff, value)
    with thresholds.using(consolidate_few_rows_max=0):
        expected = consolidate(updates)
    actual = consolidate(updates)
    assert len(actual.updates) == len(expected.updates)
    for part in ("key64", "val64", "time", "diff"):
        ours, theirs = getattr(actual.updates, part), getattr(expected.updates, part)
        assert np.array_equal(ours, theirs) and isinstance(ours, np.ndarray) == isinstance(
            theirs, np.ndarray
        ), part
    assert np.array_equal(actual.starts, expected.starts)
    if pairs:
        assert np.array_equal(actual.key_starts, expected.key_starts)
