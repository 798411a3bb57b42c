"""The laws of the time algebra, at one, two and three coordinates, flat and nested."""

from __future__ import annotations

import copy
import doctest
import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from functools import reduce
from http import HTTPStatus
from itertools import combinations, product
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pyspark_diff import times as times_module
from pyspark_diff.errors import InvalidTimeError, TimeRegressionError
from pyspark_diff.times import (
    Antichain,
    Description,
    Time,
    advance,
    as_time,
    enter,
    join,
    join_closure,
    leave,
    less_equal,
    less_than,
    meet,
    sort_key,
    step,
)

# Each shape makes a time of three coordinates; the short ones ignore the last.
SHAPES: dict[str, Callable[[tuple[int, ...]], Time]] = {
    "int": itemgetter(0),
    "one": lambda c: (c[0],),
    "two": lambda c: (c[0], c[1]),
    "three": lambda c: c,
    "nested": lambda c: ((c[0], c[1]), c[2]),
}
LEAST, MOST = -1, 2
GRIDS: dict[str, list[Time]] = {
    name: sorted(set(map(make, product(range(LEAST, MOST + 1), repeat=3))), key=sort_key)
    for name, make in SHAPES.items()
}
WRONG = [None, 1.0, True, "1", (1, None), (1, (2, 1.5)), {1}, [1, "a"]]

every_shape = pytest.mark.parametrize("shape", SHAPES)
# Five shapes share the examples of a test, and a busy machine is no failure.
examples = settings(max_examples=settings().max_examples // 3, deadline=None)


def law(test: Callable[..., None]) -> Callable[..., None]:
    """Check a test on drawn data, for every shape of time."""
    checked: Callable[..., None] = every_shape(examples(given(data=st.data())(test)))
    return checked


def a_time(shape: str) -> st.SearchStrategy[Time]:
    return st.sampled_from(GRIDS[shape])


def some_times(shape: str, least: int = 0, most: int = 5) -> st.SearchStrategy[list[Time]]:
    return st.lists(a_time(shape), min_size=least, max_size=most)


def coordinates(t: Time) -> list[int]:
    """The integers of a time, in order: the oracle compares these one by one."""
    return [t] if isinstance(t, int) else [c for part in t for c in coordinates(part)]


def beyond(frontier: list[Time], shape: str) -> set[Time]:
    """The times of the grid beyond a frontier, from the definition."""
    return {u for u in GRIDS[shape] if any(less_equal(f, u) for f in frontier)}


# The partial order and the lattice


@law
def test_order_is_coordinate_by_coordinate(shape: str, data: st.DataObject) -> None:
    a, b = data.draw(a_time(shape)), data.draw(a_time(shape))
    pairs = list(zip(coordinates(a), coordinates(b)))
    assert less_equal(a, b) == all(x <= y for x, y in pairs)
    assert less_than(a, b) == (less_equal(a, b) and a != b)
    assert coordinates(join(a, b)) == [max(pair) for pair in pairs]
    assert coordinates(meet(a, b)) == [min(pair) for pair in pairs]


@law
def test_less_equal_is_a_partial_order(shape: str, data: st.DataObject) -> None:
    a, b, c = (data.draw(a_time(shape)) for _ in range(3))
    assert less_equal(a, a) and not less_than(a, a)
    assert not (less_equal(a, b) and less_equal(b, a)) or a == b
    assert not (less_equal(a, b) and less_equal(b, c)) or less_equal(a, c)


@law
def test_join_and_meet_are_the_bounds(shape: str, data: st.DataObject) -> None:
    a, b, c = (data.draw(a_time(shape)) for _ in range(3))
    assert less_equal(join(a, b), c) == (less_equal(a, c) and less_equal(b, c))
    assert less_equal(c, meet(a, b)) == (less_equal(c, a) and less_equal(c, b))


@law
def test_join_and_meet_make_a_distributive_lattice(shape: str, data: st.DataObject) -> None:
    a, b, c = (data.draw(a_time(shape)) for _ in range(3))
    for f, g in ((join, meet), (meet, join)):
        assert f(a, a) == a
        assert f(a, b) == f(b, a)
        assert f(a, f(b, c)) == f(f(a, b), c)
        assert f(a, g(a, b)) == a
        assert f(a, g(b, c)) == g(f(a, b), f(a, c))
    assert less_equal(a, b) == (join(a, b) == b) == (meet(a, b) == a)


@law
def test_sort_key_is_a_total_order_that_respects_less_equal(
    shape: str, data: st.DataObject
) -> None:
    a, b = data.draw(a_time(shape)), data.draw(a_time(shape))
    ka: Any = sort_key(a)
    kb: Any = sort_key(b)
    assert not less_equal(a, b) or ka <= kb
    assert not less_than(a, b) or ka < kb
    assert (ka == kb) == (a == b)
    assert ka <= kb or kb <= ka


def test_incomparable_times() -> None:
    assert not less_equal((0, 2), (1, 0)) and not less_equal((1, 0), (0, 2))


def test_the_time_without_coordinates_is_a_time() -> None:
    assert less_equal((), ()) and join((), ()) == () and advance((), [()]) == ()
    assert join_closure([], [()]) == {()}


# What is not a time, and what does not compare


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_what_is_not_a_time_is_refused(wrong: Any) -> None:
    uses: list[Callable[[], object]] = [
        lambda: as_time(wrong),
        lambda: sort_key(wrong),
        lambda: less_equal(wrong, wrong),
        lambda: less_than(1, wrong),
        lambda: join(wrong, 1),
        lambda: meet(1, wrong),
        lambda: advance(wrong, []),
        lambda: advance(1, [wrong]),
        lambda: enter(wrong),
        lambda: leave(wrong),
        lambda: join_closure([wrong], [1]),
        lambda: join_closure([1], [wrong]),
        lambda: Antichain([wrong]),
        lambda: Antichain([1]).insert(wrong),
        lambda: Antichain([1]).less_equal(wrong),
    ]
    for use in uses:
        with pytest.raises(InvalidTimeError):
            use()


@pytest.mark.parametrize(
    ("a", "b"),
    [(1, (1,)), ((1, 2), (1, 2, 3)), ((5, 1), (0, (1, 2))), ((), 0), ((), (0,))],
    ids=repr,
)
def test_mixed_shapes_are_refused_and_named(a: Time, b: Time) -> None:
    uses: list[Callable[[Time, Time], object]] = [
        less_equal,
        less_than,
        join,
        meet,
        lambda a, b: advance(a, [b]),
        lambda a, b: join_closure([a], [b]),
        lambda a, b: Antichain([a, b]),
        lambda a, b: Antichain([a]).insert(b),
        lambda a, b: Antichain([a]).less_equal(b),
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
    assert as_time([Index(), Row((1, 2))]) == (7, (1, 2))
    assert type(as_time(Row((1, 2)))) is type(join(Row((1, 2)), (0, 0))) is tuple
    assert less_equal(Row((1, 2)), [1, 3])  # type: ignore[arg-type]
    from_json: Any = [[1, 2], [0, 3]]
    assert Antichain(from_json) == Antichain([(0, 3), (1, 2)])


# Loops


@law
def test_loops_append_step_and_drop_a_coordinate(shape: str, data: st.DataObject) -> None:
    a, b = data.draw(a_time(shape)), data.draw(a_time(shape))
    inside = enter(a)
    assert coordinates(inside) == [*coordinates(a), 0]
    assert coordinates(step(step(inside))) == [*coordinates(a), 2]
    assert leave(inside) == leave(step(inside)) == a
    assert leave(leave(step(enter(step(inside))))) == a
    assert less_equal(enter(a), enter(b)) == less_equal(a, b)
    assert less_than(inside, step(inside))


def test_an_integer_enters_as_a_pair() -> None:
    assert enter(7) == (7, 0) and enter((7, 0)) == (7, 0, 0) and step((7, 0)) == (7, 1)
    assert enter(()) == (0,) and leave((0,)) == ()


@pytest.mark.parametrize("t", [7, (), (1, (2, 3))], ids=repr)
@pytest.mark.parametrize("move", [leave, step])
def test_a_time_without_loop_coordinate_cannot_leave_or_step(
    move: Callable[[Time], Time], t: Time
) -> None:
    with pytest.raises(InvalidTimeError, match="no loop coordinate"):
        move(t)


# Antichains and frontiers


@law
def test_an_antichain_is_the_minimal_times_in_sort_order(shape: str, data: st.DataObject) -> None:
    given_times = data.draw(some_times(shape, most=8))
    frontier = Antichain(given_times)
    minimal = {t for t in given_times if not any(less_than(s, t) for s in given_times)}
    assert list(frontier) == list(frontier.elements) == sorted(minimal, key=sort_key)
    assert not any(less_equal(a, b) for a in frontier for b in frontier if a != b)
    assert frontier.is_empty == (not given_times)


@law
def test_an_antichain_does_not_depend_on_the_order_of_insertion(
    shape: str, data: st.DataObject
) -> None:
    given_times = data.draw(some_times(shape))
    frontier = Antichain(given_times)
    inserted = Antichain()
    for t in data.draw(st.permutations(given_times)):
        inserted = inserted.insert(t)
    for same in (inserted, Antichain(frontier), eval(repr(frontier), {"Antichain": Antichain})):
        assert same == frontier and hash(same) == hash(frontier)
    assert pickle.loads(pickle.dumps(frontier)) == copy.deepcopy(frontier) == frontier


@law
def test_beyond_a_frontier(shape: str, data: st.DataObject) -> None:
    given_times, t = data.draw(some_times(shape)), data.draw(a_time(shape))
    frontier = Antichain(given_times)
    assert frontier.less_equal(t) == any(less_equal(f, t) for f in given_times)
    assert frontier.less_than(t) == any(less_than(f, t) for f in given_times)


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
    frontier.insert(1)
    assert frontier == Antichain([3]) != Antichain([1])
    for value in (frontier, description):
        with pytest.raises(TypeError):
            value < value  # type: ignore[operator]
    assert not [name for name in ("__lt__", "__le__") if name in vars(Antichain)]


# Advance


@law
def test_an_advanced_time_compares_alike_beyond_the_frontier(
    shape: str, data: st.DataObject
) -> None:
    t, frontier = data.draw(a_time(shape)), data.draw(some_times(shape))
    advanced = advance(t, frontier)
    assert all(less_equal(t, u) == less_equal(advanced, u) for u in beyond(frontier, shape))
    assert less_equal(t, advanced)
    assert advance(advanced, frontier) == advanced
    assert Antichain(frontier).advance(t) == advance(t, Antichain(frontier)) == advanced


@law
def test_an_advanced_time_is_the_largest_that_compares_alike(
    shape: str, data: st.DataObject
) -> None:
    t, frontier = data.draw(a_time(shape)), data.draw(some_times(shape, least=1))
    readers = beyond(frontier, shape)  # the grid is closed under join, so it can tell times apart
    view = [less_equal(t, u) for u in readers]
    alike = [s for s in GRIDS[shape] if [less_equal(s, u) for u in readers] == view]
    assert all(less_equal(s, advance(t, frontier)) for s in alike)
    assert {advance(s, frontier) for s in alike} == {advance(t, frontier)}


@law
def test_advance_keeps_the_order_and_passes_a_single_time(shape: str, data: st.DataObject) -> None:
    s, t, f = (data.draw(a_time(shape)) for _ in range(3))
    frontier = data.draw(some_times(shape))
    assert not less_equal(s, t) or less_equal(advance(s, frontier), advance(t, frontier))
    assert advance(t, [f]) == join(t, f)
    assert not Antichain(frontier).less_equal(t) or advance(t, frontier) == t


@law
def test_advance_by_stages_is_advance_by_the_last(shape: str, data: st.DataObject) -> None:
    t = data.draw(a_time(shape))
    early = Antichain(data.draw(some_times(shape, least=1)))
    late = early.join(Antichain(data.draw(some_times(shape, least=1))))
    assert early.precedes(late)
    assert late.advance(early.advance(t)) == late.advance(t)


@law
def test_compaction_changes_no_accumulation_beyond_the_frontier(
    shape: str, data: st.DataObject
) -> None:
    updates = data.draw(st.lists(st.tuples(a_time(shape), st.sampled_from([-1, 1, 2])), max_size=8))
    frontier = data.draw(some_times(shape))
    compacted: Counter[Time] = Counter()
    for t, diff in updates:
        compacted[advance(t, frontier)] += diff
    for u in beyond(frontier, shape):
        before = sum(diff for t, diff in updates if less_equal(t, u))
        assert before == sum(diff for t, diff in compacted.items() if less_equal(t, u))


@every_shape
def test_advance_by_the_empty_frontier_is_no_advance(shape: str) -> None:
    # Nothing is beyond it, so every time compares alike and there is no largest: t is returned.
    assert [advance(t, []) for t in GRIDS[shape]] == GRIDS[shape]


def test_an_advanced_time_need_not_be_beyond_the_frontier() -> None:
    frontier = Antichain([(0, 2), (2, 0)])
    assert frontier.advance((0, 0)) == (0, 0) and not frontier.less_equal((0, 0))
    assert Antichain([(4, 8), (5, 3)]).advance((3, 7)) == (4, 7)


# Interesting times


def closure_from_subsets(old: list[Time], new: list[Time]) -> set[Time]:
    known = list(dict.fromkeys(old + new))
    subsets = (s for n in range(1, len(known) + 1) for s in combinations(known, n))
    return {reduce(join, subset) for subset in subsets if not set(subset).isdisjoint(new)}


@law
def test_join_closure_is_the_joins_of_all_subsets_with_a_new_time(
    shape: str, data: st.DataObject
) -> None:
    old, new = data.draw(some_times(shape, most=4)), data.draw(some_times(shape, most=3))
    assert join_closure(old, new) == closure_from_subsets(old, new)


@law
def test_join_closure_can_be_found_in_steps(shape: str, data: st.DataObject) -> None:
    old, first, second = (data.draw(some_times(shape, most=3)) for _ in range(3))
    stepwise = join_closure(old, first) | join_closure(old + first, second)
    assert stepwise == join_closure(old, first + second)


def test_three_coordinates_need_more_than_pairs() -> None:
    old: list[Time] = [(1, 0, 0), (0, 1, 0)]
    new: list[Time] = [(0, 0, 1)]
    pairs = {join(a, b) for a, b in product(old + new, repeat=2)}
    assert (1, 1, 1) not in pairs
    assert join_closure(old, new) == {(0, 0, 1), (1, 0, 1), (0, 1, 1), (1, 1, 1)}


def test_an_old_pair_above_a_new_time_is_due() -> None:
    old: list[Time] = [(3, 0), (0, 3)]
    with_new = {join((1, 1), t) for t in old}
    assert (3, 3) not in with_new
    assert join_closure(old, [(1, 1)]) == {(1, 1), (3, 1), (1, 3), (3, 3)}


def test_nothing_is_due_without_a_new_time() -> None:
    assert join_closure([(1, 2), (2, 1)], []) == join_closure([1, 2], []) == frozenset()


@pytest.mark.parametrize("side", [1, 2, 5])
def test_join_closure_of_the_axes_is_the_cube(side: int) -> None:
    axes: list[Time] = [t for n in range(side) for t in ((n, 0, 0), (0, n, 0), (0, 0, n))]
    assert join_closure(axes, [(0, 0, 0)]) == set(product(range(side), repeat=3))


def test_a_long_total_order_takes_linear_time() -> None:
    assert len(join_closure(range(200_000), [100_000, 7])) == 200_000 - 7


# Descriptions


@law
def test_contiguous_descriptions_part_the_times(shape: str, data: st.DataObject) -> None:
    first, second, third = (Antichain(data.draw(some_times(shape, most=3))) for _ in range(3))
    lower, middle, upper = first, first.join(second), first.join(second).join(third)
    older = Description(lower, middle, since=lower)
    newer = Description(middle, upper, since=lower)
    merged = Description(lower, upper, since=lower)
    for t in GRIDS[shape]:
        assert older.contains(t) + newer.contains(t) == merged.contains(t)
        assert merged.contains(t) == (lower.less_equal(t) and not upper.less_equal(t))


@law
def test_readable_from_since_to_upper(shape: str, data: st.DataObject) -> None:
    since, upper = (Antichain(data.draw(some_times(shape, most=3))) for _ in range(2))
    t = data.draw(a_time(shape))
    description = Description(since.meet(upper), upper, since)
    assert description.readable(t) == (since.less_equal(t) and not upper.less_equal(t))


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


def test_a_complete_collection_is_readable_for_ever() -> None:
    description = Description(Antichain([0]), Antichain(), since=Antichain([5]))
    assert description.contains(10**18) and description.readable(10**18)
    assert not description.readable(4)


def test_examples_run() -> None:
    result = doctest.testmod(times_module)
    assert result.attempted and not result.failed
