"""The laws of times and of frontiers, at one, two and three coordinates."""

from __future__ import annotations

import copy
import doctest
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from http import HTTPStatus
from itertools import product
from operator import itemgetter
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pyspark_diff import times as times_module
from pyspark_diff.errors import InvalidTimeError, TimeRegressionError
from pyspark_diff.kernels.updates import UpdateChunk, advanced
from pyspark_diff.times import (
    Antichain,
    Coordinate,
    Description,
    Time,
    as_time,
    enter,
    join,
    leave,
    less_equal,
    meet_all,
    step,
)


def coordinates(t: Time) -> list[int]:
    """The integers of a time, in order: the oracle compares these one by one."""
    return [t] if isinstance(t, int) else list(t)


# Each shape makes a time of three coordinates; the short ones ignore the last.
SHAPES: dict[str, Callable[[tuple[int, ...]], Time]] = {
    "int": itemgetter(0),
    "one": lambda c: (c[0],),
    "two": lambda c: (c[0], c[1]),
    "three": lambda c: c,
}
LEAST, MOST = -1, 2
GRIDS: dict[str, list[Time]] = {
    name: sorted(set(map(make, product(range(LEAST, MOST + 1), repeat=3))), key=coordinates)
    for name, make in SHAPES.items()
}
WRONG = [None, 1.0, True, "1", (1, None), (1, (2, 3)), {1}, [1, "a"]]

every_shape = pytest.mark.parametrize("shape", SHAPES)
# Four shapes share the examples of a test, and a busy machine is no failure.
examples = settings(max_examples=settings().max_examples // 3, deadline=None)


def law(test: Callable[..., None]) -> Callable[..., None]:
    """Check a test on drawn data, for every shape of time."""
    checked: Callable[..., None] = every_shape(examples(given(data=st.data())(test)))
    return checked


def a_time(shape: str) -> st.SearchStrategy[Time]:
    return st.sampled_from(GRIDS[shape])


#: A coordinate inside two loops.
a_coordinate = st.tuples(st.integers(0, 3), st.integers(0, 3))


def some_times(shape: str, least: int = 0, most: int = 5) -> st.SearchStrategy[list[Time]]:
    return st.lists(a_time(shape), min_size=least, max_size=most)


def below(s: Time, t: Time) -> bool:
    """Whether a time is strictly less than another."""
    return less_equal(s, t) and s != t


def beyond(frontier: list[Time], shape: str) -> set[Time]:
    """The times of the grid beyond a frontier, from the definition."""
    return {u for u in GRIDS[shape] if any(less_equal(f, u) for f in frontier)}


# The partial order and the lattice


@law
def test_order_is_coordinate_by_coordinate(shape: str, data: st.DataObject) -> None:
    a, b = data.draw(a_time(shape)), data.draw(a_time(shape))
    pairs = list(zip(coordinates(a), coordinates(b)))
    assert less_equal(a, b) == all(x <= y for x, y in pairs)
    assert coordinates(join(a, b)) == [max(pair) for pair in pairs]


@law
def test_less_equal_is_a_partial_order(shape: str, data: st.DataObject) -> None:
    a, b, c = (data.draw(a_time(shape)) for _ in range(3))
    assert less_equal(a, a)
    assert not (less_equal(a, b) and less_equal(b, a)) or a == b
    assert not (less_equal(a, b) and less_equal(b, c)) or less_equal(a, c)


@law
def test_join_is_the_least_upper_bound(shape: str, data: st.DataObject) -> None:
    a, b, c = (data.draw(a_time(shape)) for _ in range(3))
    assert less_equal(join(a, b), c) == (less_equal(a, c) and less_equal(b, c))


@law
def test_join_makes_a_semilattice(shape: str, data: st.DataObject) -> None:
    a, b, c = (data.draw(a_time(shape)) for _ in range(3))
    assert join(a, a) == a
    assert join(a, b) == join(b, a)
    assert join(a, join(b, c)) == join(join(a, b), c)
    assert less_equal(a, b) == (join(a, b) == b)


def test_incomparable_times() -> None:
    assert not less_equal((0, 2), (1, 0)) and not less_equal((1, 0), (0, 2))


def test_the_time_without_coordinates_is_a_time() -> None:
    assert less_equal((), ()) and join((), ()) == ()
    assert Antichain([(), ()]).elements == ((),)


# Values that are no times, and times that do not compare


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_what_is_not_a_time_is_refused(wrong: Any) -> None:
    uses: list[Callable[[], object]] = [
        lambda: as_time(wrong),
        lambda: Antichain([wrong]),
        lambda: Antichain([1, wrong]),
        lambda: Antichain([1]).less_equal(wrong),
        lambda: Antichain([1]).less_than(wrong),
    ]
    for use in uses:
        with pytest.raises(InvalidTimeError):
            use()


@pytest.mark.parametrize(
    ("a", "b"),
    [(1, (1,)), ((1, 2), (1, 2, 3)), ((), 0), ((), (0,))],
    ids=repr,
)
def test_mixed_shapes_are_refused_and_named(a: Time, b: Time) -> None:
    uses: list[Callable[[Time, Time], object]] = [
        less_equal,
        join,
        lambda a, b: Antichain([a, b]),
        lambda a, b: Antichain([a]).less_equal(b),
        lambda a, b: Antichain([a]).less_than(b),
        lambda a, b: Antichain([a]).precedes(Antichain([b])),
        lambda a, b: Antichain([a]).meet(Antichain([b])),
        lambda a, b: Antichain([a]).join(Antichain([b])),
    ]
    for use in uses:
        for x, y in ((a, b), (b, a)):
            with pytest.raises(InvalidTimeError) as caught:
                use(x, y)
            assert str(a) in str(caught.value) and str(b) in str(caught.value)


def test_integers_lists_and_rows_of_others_become_plain() -> None:
    class Index:
        def __index__(self) -> int:
            return 7

    class Row(tuple):  # type: ignore[type-arg]
        pass

    assert type(as_time(Index())) is type(as_time(HTTPStatus.OK)) is int
    assert as_time([Index(), 2]) == (7, 2)
    assert type(as_time(Row((1, 2)))) is tuple
    assert Antichain([Row((1, 2))]).less_equal([1, 3])  # type: ignore[arg-type]
    assert Antichain([np.int64(3)]).bound == 3 and type(Antichain([np.int64(3)]).bound) is int
    from_json: Any = [[1, 2], [0, 3]]
    assert Antichain(from_json) == Antichain([(0, 3), (1, 2)])


# Loops


@examples
@given(st.tuples(a_coordinate, a_coordinate), st.integers(1, 3))
def test_loops_append_step_and_drop_a_coordinate(
    pair: tuple[Coordinate, Coordinate], loops: int
) -> None:
    a, b = pair
    inside = enter(a)
    assert inside == (*a, 0) and step(step(inside)) == (*a, 2)
    assert leave(inside) == leave(step(inside)) == a
    assert leave(leave(step(enter(step(inside))))) == a
    assert less_equal(enter(a), enter(b)) == less_equal(a, b)
    assert less_equal(inside, step(inside)) and inside != step(inside)
    assert enter(a, loops) == (enter(a) if loops == 1 else enter(enter(a), loops - 1))


def test_outside_of_all_loops_is_a_coordinate() -> None:
    assert enter(()) == (0,) and leave((0,)) == () and step((0,)) == (1,)


# Antichains and frontiers


@law
def test_an_antichain_is_the_minimal_times_in_sort_order(shape: str, data: st.DataObject) -> None:
    given_times = data.draw(some_times(shape, most=8))
    frontier = Antichain(given_times)
    minimal = {t for t in given_times if not any(below(s, t) for s in given_times)}
    assert list(frontier) == list(frontier.elements) == sorted(minimal, key=coordinates)
    assert not any(less_equal(a, b) for a in frontier for b in frontier if a != b)
    assert frontier.is_empty == (not given_times)


@law
def test_an_antichain_does_not_depend_on_the_order_of_its_times(
    shape: str, data: st.DataObject
) -> None:
    given_times = data.draw(some_times(shape))
    frontier = Antichain(given_times)
    shuffled = data.draw(st.permutations(given_times))
    one_by_one = meet_all(Antichain([t]) for t in shuffled)
    again = eval(repr(frontier), {"Antichain": Antichain})
    for same in (Antichain(shuffled), one_by_one, Antichain(frontier), again):
        assert same == frontier and hash(same) == hash(frontier)
    assert pickle.loads(pickle.dumps(frontier)) == copy.deepcopy(frontier) == frontier


@examples
@given(st.lists(st.integers(LEAST, MOST)))
def test_the_bound_of_a_total_order_is_its_one_time(given_times: list[int]) -> None:
    frontier = Antichain(given_times)
    assert frontier.bound == min(given_times, default=None)
    assert frontier == Antichain([] if frontier.bound is None else [frontier.bound])


@law
def test_a_bound_is_in_the_first_field(shape: str, data: st.DataObject) -> None:
    frontier = Antichain(data.draw(some_times(shape)))
    firsts = [t if isinstance(t, int) else t[0] for t in frontier]
    assert frontier.bound == min(firsts, default=None)
    # Nothing but whole numbers has an end: a time may be beyond in one field, and not in another.
    assert frontier.end == (frontier.bound if all(isinstance(t, int) for t in frontier) else None)


@law
def test_beyond_a_frontier(shape: str, data: st.DataObject) -> None:
    given_times, t = data.draw(some_times(shape)), data.draw(a_time(shape))
    frontier = Antichain(given_times)
    assert frontier.less_equal(t) == any(less_equal(f, t) for f in given_times)
    assert frontier.less_than(t) == any(below(f, t) for f in given_times)


@law
def test_precedes_is_a_partial_order_of_frontiers(shape: str, data: st.DataObject) -> None:
    first, second, third = (data.draw(some_times(shape, most=3)) for _ in range(3))
    f, g, h = Antichain(first), Antichain(second), Antichain(third)
    assert f.precedes(g) == (beyond(second, shape) <= beyond(first, shape))
    assert f.precedes(f)
    assert not (f.precedes(g) and g.precedes(f)) or f == g
    assert not (f.precedes(g) and g.precedes(h)) or f.precedes(h)
    assert f.precedes(Antichain())
    assert Antichain().precedes(f) == f.is_empty


@law
def test_meet_and_join_of_frontiers_are_their_bounds(shape: str, data: st.DataObject) -> None:
    f, g, h = (Antichain(data.draw(some_times(shape, most=3))) for _ in range(3))
    u = data.draw(a_time(shape))
    assert f.meet(g).less_equal(u) == (f.less_equal(u) or g.less_equal(u))
    assert f.join(g).less_equal(u) == (f.less_equal(u) and g.less_equal(u))
    assert h.precedes(f.meet(g)) == (h.precedes(f) and h.precedes(g))
    assert f.join(g).precedes(h) == (f.precedes(h) and g.precedes(h))
    assert f.meet(Antichain()) == f and f.join(Antichain()).is_empty
    assert meet_all([f, g, h]) == f.meet(g).meet(h)


def test_the_meet_of_no_frontiers_is_empty() -> None:
    assert meet_all([]).is_empty and meet_all([Antichain()]).is_empty


def test_nothing_is_beyond_the_empty_antichain() -> None:
    complete = Antichain()
    assert complete.is_empty and repr(complete) == "Antichain([])"
    assert not complete.less_equal(0) and not complete.less_than((0, 0))


def test_values_are_frozen_and_have_no_order() -> None:
    frontier = Antichain([3])
    description = Description(frontier, frontier, frontier)
    with pytest.raises(FrozenInstanceError):
        frontier.elements = ()  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        description.upper = Antichain()  # type: ignore[misc]
    frontier.meet(Antichain([1]))
    assert frontier == Antichain([3]) != Antichain([1])
    for value in (frontier, description):
        with pytest.raises(TypeError):
            value < value  # type: ignore[operator]
    assert not [name for name in ("__lt__", "__le__") if name in vars(Antichain)]


# Advance, as the kernels do it: of many times at once, and to a frontier of a total order


a_moment = st.integers(LEAST, MOST)
some_updates = st.lists(st.tuples(a_moment, st.sampled_from([-1, 1, 2])), max_size=8)


def advance(times: list[int], frontier: Antichain) -> list[int]:
    """The times to which the kernels advance."""
    given_times = np.array(times, np.int64)
    updates = UpdateChunk(np.arange(len(times)), None, given_times, 1)
    return advanced(updates, frontier.bound).times().tolist()


@examples
@given(a_moment, a_moment)
def test_an_advanced_time_is_the_largest_that_compares_alike(t: int, f: int) -> None:
    readers = range(f, MOST + 1)  # the times beyond the frontier
    view = [t <= u for u in readers]
    same_view = [s for s in range(LEAST, MOST + 1) if [s <= u for u in readers] == view]
    assert advance([t], Antichain([f])) == [max(same_view)]
    assert set(advance(same_view, Antichain([f]))) == {max(same_view)}


@examples
@given(some_updates, a_moment, a_moment)
def test_compaction_changes_no_accumulation_beyond_the_frontier(
    updates: list[tuple[int, int]], early: int, late: int
) -> None:
    times, diffs = [t for t, _ in updates], [diff for _, diff in updates]
    since = Antichain([early]).join(Antichain([late]))
    by_stages = advance(advance(times, Antichain([early])), since)
    assert by_stages == advance(times, since)
    for u in range(max(early, late), MOST + 1):
        before = sum(diff for t, diff in updates if t <= u)
        assert before == sum(diff for t, diff in zip(by_stages, diffs) if t <= u)


def test_advance_by_the_empty_frontier_is_no_advance() -> None:
    # Nothing is beyond it, so every time compares alike and there is no largest.
    assert advance([LEAST, MOST], Antichain()) == [LEAST, MOST]


# Descriptions


@law
def test_a_description_that_runs_backwards_is_refused(shape: str, data: st.DataObject) -> None:
    lower, upper = (Antichain(data.draw(some_times(shape, most=3))) for _ in range(2))
    assume(not lower.precedes(upper))
    with pytest.raises(TimeRegressionError, match="backwards"):
        Description(lower, upper, since=lower)


def test_a_description_is_a_value() -> None:
    zero, ten = Antichain([0]), Antichain([10])
    description = Description(zero, ten, since=zero)
    assert description == Description(Antichain([0]), Antichain([10]), since=Antichain([0]))
    assert description != Description(zero, ten, since=ten)
    assert len({description, Description(zero, ten, since=zero)}) == 1
    assert repr(description) == (
        "Description(lower=Antichain([0]), upper=Antichain([10]), since=Antichain([0]))"
    )


def test_examples_run() -> None:
    result = doctest.testmod(times_module)
    assert result.attempted and not result.failed
