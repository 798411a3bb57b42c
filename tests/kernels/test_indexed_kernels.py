"""Kernels over an index by key, against their definitions, computed record by record."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_diff import thresholds
from pyspark_diff.errors import DiffOverflowError
from pyspark_diff.kernels.consolidate import consolidate
from pyspark_diff.kernels.indexed_join import PRODUCT, THEIRS, join_new
from pyspark_diff.kernels.indexed_replay import replay_new
from pyspark_diff.kernels.key_index import LARGE, KeyIndex, _place_of
from pyspark_diff.kernels.key_replay import BOTH, LEAST, NEAR, NUMBER, PRESENT
from pyspark_diff.kernels.layout import Layout
from pyspark_diff.kernels.split import partition
from pyspark_diff.kernels.updates import UpdateChunk
from pyspark_diff.runners.numbers import added_up, is_table

#: An example takes milliseconds.
many = settings(max_examples=20 * settings().max_examples)
LOWER = 5
LAYOUT = Layout((pa.int64(),), value=Layout((pa.int64(),)))

#: Rows of (key, value, time, coordinate, diff).
key, value = st.integers(0, 3), st.integers(-2, 2)
diff = st.sampled_from([-2, -1, 1, 1, 2])
past = st.lists(
    st.tuples(key, value, st.integers(0, LOWER - 1), st.integers(0, 4), diff), max_size=25
)
fresh = st.lists(st.tuples(key, value, st.integers(LOWER, LOWER + 6), diff), max_size=15)


def updates(rows, coordinates=True):
    if not rows:
        return UpdateChunk(np.empty(0, np.int64), None, 0, 1, np.empty(0, np.int64))
    k, v, t, c, d = (np.array(column, np.int64) for column in zip(*rows))
    chunk = UpdateChunk(k, None, t, d, v, coordinate=c if coordinates else 0)
    return consolidate(chunk).updates


def index_of(batches, buckets):
    """An index of batches, which are pairs of rows and whether the rows are past."""
    parts = [
        (bucket, part, old) for rows, old in batches
        for bucket, part in partition(updates(rows), LAYOUT, buckets)
    ]
    return KeyIndex(parts, buckets, narrow=False)


def in_order(rows):
    """Consolidated (key, value, time, diff) rows as columns, the input of a kernel."""
    chunk = updates([(k, v, t, 0, d) for k, v, t, d in rows], False)
    if not len(chunk):
        return (np.empty(0, np.int64),) * 4
    return chunk.key64, chunk.val64, chunk.times(), chunk.diffs()


@many
@given(
    batches=st.lists(past, max_size=3), rounds=st.lists(fresh, min_size=1, max_size=4),
    mode=st.sampled_from([LEAST, NUMBER, PRESENT, BOTH]), buckets=st.integers(1, 3),
    far=st.booleans(), at_once=st.booleans(),
)
def test_replay(batches, rounds, mode, buckets, far, at_once):
    if at_once:
        rounds = [[(k, v, LOWER, d) for k, v, _, d in rows] for rows in rounds]
    if mode in (NUMBER, PRESENT, BOTH):
        batches = [[(k, 0, t, c, d) for k, _, t, c, d in batch] for batch in batches]
        rounds = [[(k, 0, t, d) for k, _, t, d in rows] for rows in rounds]
    elif far:
        batches = [[(k, v * NEAR, t, c, d) for k, v, t, c, d in batch] for batch in batches]
        rounds = [[(k, v * NEAR, t, d) for k, v, t, d in rows] for rows in rounds]
        if len(batches) % 2:  # and too many values to search one by one
            batches.append([(1, v, 0, v % 3, 1) for v in range(2 * NEAR, 4 * NEAR)])
    index = index_of([(batch, True) for batch in batches], buckets)
    history = [(k, v, t, c, d) for batch in batches for k, v, t, c, d in batch]
    due: dict[int, set[int]] = {}
    for at in range(6):
        rows = rounds[at] if at < len(rounds) else []
        keys, values, times, diffs = in_order(rows)
        visited = np.array(sorted({*keys.tolist(), *due.pop(at, ())}), np.int64)
        starts = np.append(np.searchsorted(keys, visited), keys.size)
        output, again, when = replay_new(
            visited, starts, values, times, diffs, index, at, mode
        )
        for k, c in zip(again.tolist(), when.tolist()):
            due.setdefault(c, set()).add(k)
        history += [(k, v, t, at, d) for k, v, t, d in rows]
        assert Counter(counts_of(output, mode)) == expected(history, at, mode)


@pytest.mark.parametrize("base", [2**62, -2**62 - NEAR, 2**63 - 1 - NEAR, -2**63])
def test_large_values_that_lie_just_not_close_together(base):
    """As floats, the values are equal or nearly equal."""
    rows = [(1, base, LOWER, 1), (1, base + NEAR, LOWER, 1)]
    keys, values, times, diffs = in_order(rows)
    index, starts = KeyIndex([], 1, narrow=False), np.array([0, 2])
    output, _, _ = replay_new(keys[:1], starts, values, times, diffs, index, 0, LEAST)
    assert output.T.tolist() == [[1, base, LOWER, 1]]
    keys, values, times, diffs = in_order([(1, base, LOWER + 1, -1)])
    output, _, _ = replay_new(keys, np.array([0, 1]), values, times, diffs, index, 1, LEAST)
    assert sorted(output.T.tolist()) == [
        [1, base, LOWER + 1, -1], [1, base + NEAR, LOWER + 1, 1]
    ]


def counts_of(output, mode):
    """The output of a kernel as multiplicities; `_function` applies to the counts of `BOTH`."""
    counts: Counter = Counter()
    before: dict = {}
    for k, v, t, d in output.T.tolist():
        if mode != BOTH:
            counts[k, v, t] += d
            continue
        change = _function(d) - _function(v)
        if t >= LOWER:
            counts[k, 0, t] += change - before.get(k, 0)
        before[k] = change
    return {record: d for record, d in counts.items() if d}


def _function(count):
    return count * count


def expected(history, at, mode):
    changes: Counter = Counter()
    for k in {row[0] for row in history}:
        last: Counter = Counter()
        for t in range(LOWER - 1, LOWER + 7):
            now = result(history, k, t, at, mode)
            now.subtract(result(history, k, t, at - 1, mode))
            if t >= LOWER:
                for v in {*now, *last}:
                    changes[k, v, t] += now[v] - last[v]
            last = now
    return {record: d for record, d in changes.items() if d}


def result(history, k, t, at, mode):
    counts: Counter = Counter()
    for key, v, time, c, d in history:
        if key == k and time <= t and c <= at:
            counts[v] += d
    present = [v for v, n in counts.items() if n > 0]
    if mode == LEAST:
        return Counter([min(present)] if present else [])
    number = counts[0]
    if mode == NUMBER:
        return Counter([number] if number else [])
    return Counter({0: _function(number) if mode == BOTH else int(number > 0)})


@many
@given(
    batches=st.lists(st.tuples(past, st.just(True)), max_size=3),
    new=fresh | fresh.map(lambda rows: [(k, v, LOWER + 2, d) for k, v, _, d in rows]),
    rounds=st.lists(st.tuples(fresh, fresh), min_size=1, max_size=4), buckets=st.integers(1, 3),
    most=st.sampled_from([1, 4, 100]),
)
def test_join(batches, new, rounds, buckets, most):
    check_join(batches, new, rounds, buckets, most)


@pytest.mark.parametrize("seed", range(4))
def test_join_of_many_events_of_each_key(seed):
    """The kernel merges sorted runs, as one insertion sort cannot take so many events."""
    chance = random.Random(seed)

    def drawn(count, first, last):
        return [(chance.randrange(2), chance.randrange(-9, 9), chance.randint(first, last),
                 chance.choice([-2, -1, 1, 2])) for _ in range(count)]

    batches = [
        ([(k, v, t, chance.randrange(3), d) for k, v, t, d in drawn(40, 0, LOWER - 1)], True)
        for _ in range(3)
    ]
    rounds = [(drawn(40, LOWER, LOWER + 20), drawn(40, LOWER, LOWER + 20)) for _ in range(3)]
    check_join(batches, drawn(60, LOWER, LOWER + 20), rounds, 2, 4)


def check_join(batches, new, rounds, buckets, most):
    """Join rounds of our updates with an index that grows after each round."""
    outside = [(k, v, t, 0, d) for k, v, t, d in new]
    index = index_of([*batches, (outside, False)], buckets)
    theirs = [row for batch, _ in batches for row in batch] + outside
    for at, (ours, added) in enumerate(rounds):
        pairs = join_new(*in_order(ours), index, at, 1 << 20)
        actual: Counter = Counter()
        for k, a, b, t, d, c in pairs.T.tolist():
            actual[k, a, b, t, c] += d
        wanted: Counter = Counter()
        for k, a, t, d in ours:
            for key, b, time, c, e in theirs:
                if k == key:
                    when = t if time < LOWER else max(t, time)
                    wanted[k, a, b, when, max(c, at)] += d * e
        assert +actual == +wanted and -actual == -wanted
        keys, values, times, diffs = in_order(added)
        with thresholds.using(index_batch_rows_min=most):
            index.add(keys, values, times, diffs, at)
        theirs += [(k, v, t, at, d) for k, v, t, d in added]


def test_a_key_that_was_added_and_not_looked_up_is_in_a_batch_once(use_thresholds):
    use_thresholds(index_batch_rows_min=2)
    index = index_of([], 1)
    index.add(*in_order([(1, 5, LOWER, 1)]), 0)  # by its key
    index.add(*in_order([(1, 6, LOWER, 1), (2, 6, LOWER, 1)]), 1)  # as a batch
    for _ in range(2):
        pairs = join_new(*in_order([(1, 9, LOWER, 1)]), index, 2, 100)
        assert sorted(zip(pairs[THEIRS], pairs[PRODUCT])) == [(5, 1), (6, 1)]


def test_what_comes_and_goes_makes_no_pairs():
    rows = [(1, v, LOWER + v + gone, -1 if gone else 1) for v in range(200) for gone in (0, 1)]
    index = index_of([([(k, v, t, 0, d) for k, v, t, d in rows], False)], 1)
    pairs = join_new(*in_order(rows), index, 0, 1 << 20)
    assert pairs.shape[1] < 1000


def test_more_pairs_than_may_be_are_refused():
    index = index_of([([(1, v, 0, 0, 1) for v in range(100)], True)], 1)
    rows = [(1, v, LOWER, 1) for v in range(100)]
    assert join_new(*in_order(rows), index, 0, 9999) is None


@pytest.mark.parametrize("mode", [LEAST, NUMBER])
@pytest.mark.parametrize("diff", [LARGE + 1, -2**63])
def test_large_diffs_are_left_to_others(mode, diff):
    index = index_of([([(1, 0, 0, 0, diff)], True)], 1)
    keys, values, times, diffs = in_order([(1, 0, LOWER, 1)])
    assert replay_new(keys, np.array([0, 1]), values, times, diffs, index, 0, mode) is None


def test_large_diffs_that_meet_what_changes_are_left_to_others():
    index = index_of([([(1, 0, t, 0, 1) for t in (LOWER, LOWER + 3)], False)], 1)
    rows = [(1, 0, LOWER + t, 2**62) for t in (0, 1)]
    assert join_new(*in_order(rows), index, 0, 100) is None


#: Numbers of a narrow range, and numbers too large to share a word with others.
number = st.integers(-3, 3) | st.sampled_from([-2**63, -2**40, 2**40, 2**63 - 1])


@many
@given(
    rows=st.lists(st.tuples(number, number, number, st.sampled_from([-1, 1, 1, 7])), max_size=40),
    times=st.integers(1, 6), ends=st.tuples(number, number) | st.just((-2**63, 2**63 - 1)),
    cuts=st.lists(st.integers(0, 240), max_size=3), valued=st.booleans(), table=st.booleans(),
)
def test_equal_updates_are_added_up(rows, times, ends, cuts, valued, table):
    """For few and many keys of a range, in several parts, with and without values."""
    rows = [(k, v if valued else 0, t, d) for k, v, t, d in rows] * times
    columns = np.array(rows, np.int64).reshape(len(rows), 4).T
    parts = [
        (key, value if valued else None, time, diff)
        for key, value, time, diff in np.split(columns, sorted(cuts), axis=1)
    ]
    with thresholds.using(partition_rows_min=0 if table else 1 << 60):
        actual = np.array(added_up(parts, *ends)).T.tolist()
    wanted: Counter = Counter()
    for k, v, t, d in rows:
        wanted[k, v, t] += d * (ends[0] <= k <= ends[1])
    assert actual == sorted([*row, d] for row, d in wanted.items() if d)


@pytest.mark.parametrize("times, values, table", [
    ([4, 4, 4], None, True), ([4, 4, 5], None, False), ([4, 4, 4], [0, 0, 0], False),
    ([], None, True),
])
def test_keys_without_values_at_one_time_are_a_table(use_thresholds, times, values, table):
    """Each part may have its own time. Parts with several times, or with values, are sorted."""
    whole = np.full(3, 7, np.int64)
    times = np.array(times, np.int64)
    values = None if values is None else np.array(values, np.int64)
    parts = [(whole, None, whole, whole), (whole[:times.size], values, times, whole[:times.size])]
    use_thresholds(partition_rows_min=3)
    assert is_table(parts) is table
    use_thresholds(partition_rows_min=7)
    assert not is_table(parts)  # too few rows for a table


def test_many_updates_are_added_up():
    random = np.random.default_rng(5)
    columns = [random.integers(-n, n, 30_000) for n in (1 << 20, 3, 1 << 9, 2)]
    actual = np.array(added_up([columns]))
    wanted = consolidate(UpdateChunk(columns[0], None, columns[2], columns[3], columns[1])).updates
    parts = wanted.key64, wanted.val64, wanted.times(), wanted.diffs()
    assert actual.tolist() == [part.tolist() for part in parts]


def test_sums_that_leave_64_bits_are_told():
    ones = np.ones(2, np.int64)
    with pytest.raises(DiffOverflowError):
        added_up([(ones, ones, ones, np.array([-2**63, -1]))])


@pytest.mark.parametrize("distance", [1, 64, 1000, 4096, 1 << 22])
def test_keys_of_any_distance_have_places_of_their_own(distance):
    """Ids are multiples of a power of two if their last bits encode something else."""
    size = 1 << 14
    places = {_place_of(key) & (size - 1) for key in range(0, size // 4 * distance, distance)}
    assert len(places) > size // 8
