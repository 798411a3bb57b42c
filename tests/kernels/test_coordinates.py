"""Packed loop coordinates and arrays of them, against the definitions of their operations."""

from __future__ import annotations

import heapq
from functools import reduce
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_diff.errors import StalledError
from pyspark_diff.kernels.coordinates import Limit, bits, lub, pack, unpack
from pyspark_diff.kernels.history import due_after
from pyspark_diff.kernels.updates import UpdateChunk
from pyspark_diff.times import Coordinate, enter, join, less_equal

MOST = 3
KEYS = 3
depths = st.integers(1, 3)


def coordinates(depth: int) -> st.SearchStrategy[Coordinate]:
    return st.tuples(*[st.integers(0, MOST)] * depth)


def packed(points: list[Coordinate]) -> np.ndarray:
    return np.array([pack(c) for c in points], np.int64)


@given(st.data(), depths)
def test_packed_coordinates_come_in_an_order_that_respects_theirs(
    data: st.DataObject, depth: int
) -> None:
    a, b = data.draw(coordinates(depth)), data.draw(coordinates(depth))
    assert unpack(pack(a), depth) == a
    assert (pack(a) <= pack(b)) == (a <= b)
    assert not less_equal(a, b) or pack(a) <= pack(b)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_what_is_too_large_to_be_packed_is_refused(depth: int) -> None:
    most = (1 << bits(depth)) - 1
    assert unpack(pack((most,) * depth), depth) == (most,) * depth
    with pytest.raises(StalledError, match=str(most)):
        pack((0,) * (depth - 1) + (most + 1,))


@given(st.data(), depths)
def test_a_limit_is_the_partial_order(data: st.DataObject, depth: int) -> None:
    limit = data.draw(coordinates(depth))
    points = data.draw(st.lists(coordinates(depth)))
    mask = Limit(depth, pack(limit)).mask(packed(points))
    assert mask.tolist() == [less_equal(c, limit) for c in points]


@given(st.data(), depths)
def test_least_upper_bounds(data: st.DataObject, deep: int) -> None:
    at = data.draw(coordinates(deep))
    depth = data.draw(st.integers(1, deep))
    points = data.draw(st.lists(coordinates(depth), min_size=1))
    expected = [pack(join(enter(c, deep - depth), at)) for c in points]
    assert lub(packed(points), depth, at).tolist() == expected
    assert [lub(pack(c), depth, at) for c in points] == expected
    assert lub(0, 0, at) == pack(at)


# Interesting times: the join closure


Known = list[tuple[int, Coordinate]]


def closure(old: Known, new: Known, depth: int) -> set[tuple[int, Coordinate]]:
    """Per key, the joins of all sets of coordinates with at least one new coordinate."""
    joins = set()
    for key in range(KEYS):
        fresh = {enter(c, depth - len(c)) for k, c in new if k == key}
        known = sorted({enter(c, depth - len(c)) for k, c in old if k == key} | fresh)
        for size in range(1, len(known) + 1):
            for some in combinations(known, size):
                if not fresh.isdisjoint(some):
                    joins.add((key, reduce(join, some)))
    return joins


def visits(old: Known, new: Known, depth: int, shallow: Known) -> set[tuple[int, Coordinate]]:
    """The visits of a loop that follows `due_after`, the smallest coordinate first.

    As in the engine, a visit reads the new updates up to its own coordinate. ``shallow`` has the
    updates of another arrangement, which is outside of the innermost loop.
    """
    agenda: dict[int, set[int]] = {}
    for key, c in new:
        agenda.setdefault(pack(c), set()).add(key)
    heap = list(agenda)
    heapq.heapify(heap)
    visited = set()
    while heap:
        code = heapq.heappop(heap)
        at = unpack(code, depth)
        keys = sorted(agenda[code])
        visited.update((key, at) for key in keys)
        known = old + [(key, c) for key, c in new if pack(c) <= code]
        sides = [(batches(known), depth), (batches(shallow), depth - 1)]
        distinct = UpdateChunk(np.array(keys, np.int64), None, 0, 1)
        for later, touched in due_after(distinct, sides, at).items():
            assert later > code, "a loop never goes back"
            if later not in agenda:
                agenda[later] = set()
                heapq.heappush(heap, later)
            agenda[later].update(touched.key64.tolist())
    return visited


def batches(known: Known) -> list[UpdateChunk]:
    """Sorted batches: the first update with a scalar coordinate, and all others with an array."""
    last, first = known[:1], sorted(known[1:])
    chunks = [UpdateChunk(np.array([key]), None, 0, 1, coordinate=pack(c)) for key, c in last]
    if first:
        keys = np.array([key for key, _ in first], np.int64)
        chunks.append(UpdateChunk(keys, None, 0, 1, coordinate=packed([c for _, c in first])))
    return chunks


@given(st.data(), depths)
def test_visits_are_the_join_closure(data: st.DataObject, depth: int) -> None:
    some = st.lists(st.tuples(st.integers(0, KEYS - 1), coordinates(depth)), max_size=6)
    old, new = data.draw(some), data.draw(some)
    shallow: Known = []
    if depth > 1:
        outer = st.tuples(st.integers(0, KEYS - 1), coordinates(depth - 1))
        shallow = data.draw(st.lists(outer, max_size=2))
    assert visits(old, new, depth, shallow) == closure(old + shallow, new, depth)


def test_three_coordinates_need_more_than_pairs() -> None:
    old: Known = [(0, (1, 0, 0)), (0, (0, 1, 0))]
    visited = visits(old, [(0, (0, 0, 1))], 3, [])
    assert visited == {(0, c) for c in ((0, 0, 1), (1, 0, 1), (0, 1, 1), (1, 1, 1))}


def test_an_old_pair_above_a_new_time_is_due() -> None:
    visited = visits([(0, (3, 0)), (0, (0, 3))], [(0, (1, 1))], 2, [])
    assert visited == {(0, c) for c in ((1, 1), (3, 1), (1, 3), (3, 3))}


def test_nothing_is_due_without_a_new_time_of_the_key() -> None:
    old: Known = [(0, (1, 2)), (0, (2, 1))]
    assert visits(old, [], 2, []) == set()
    assert visits(old, [(1, (0, 0))], 2, []) == {(1, (0, 0))}


@pytest.mark.parametrize("side", [1, 2, 5])
def test_the_closure_of_the_axes_is_the_cube(side: int) -> None:
    old = [(0, t) for n in range(side) for t in ((n, 0, 0), (0, n, 0), (0, 0, n))]
    visited = visits(old, [(0, (0, 0, 0))], 3, [])
    assert visited == {(0, c) for c in product(range(side), repeat=3)}


def test_in_one_loop_each_visit_tells_the_next() -> None:
    old: Known = [(0, (n,)) for n in range(0, 200, 2)]
    assert visits(old, [(0, (100,))], 1, []) == {(0, (n,)) for n in range(100, 200, 2)}
