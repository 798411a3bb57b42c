"""Times, antichains of times, and descriptions: the order in which everything happens.

    (a1, …, an) ≤ (b1, …, bn)  ⟺  ai ≤ bi for every i                the partial order, `less_equal`
    a ≤ b                      ⟹  sort_key(a) <= sort_key(b)         the sort order, `sort_key`
    a ≤ c and b ≤ c            ⟺  join(a, b) ≤ c                     least upper bound
    c ≤ a and c ≤ b            ⟺  c ≤ meet(a, b)                     greatest lower bound
    t is beyond F              ⟺  f ≤ t for some f in F              F a frontier, an antichain
    F ≤ G                      ⟺  every g in G is beyond F           `Antichain.precedes`
    u beyond F                 ⟹  (t ≤ u ⟺ advance(t, F) ≤ u)        what compaction may do to t

A time is an `int`, or a tuple of times; nested tuples are compared coordinate by coordinate too.
All times of one dataflow have one shape, and times of different shapes do not compare. Two times
may be incomparable, so `<` is never defined to mean the partial order, and on tuples Python's own
`<` is only the sort order.

The notions are those of timely-dataflow order.rs and progress/frontier.rs, and of
differential-dataflow lattice.rs and trace/description.rs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import index
from typing import SupportsIndex, TypeAlias, cast

from pyspark_diff.errors import InvalidTimeError, TimeRegressionError

Time: TypeAlias = "int | tuple[Time, ...]"


def as_time(value: object) -> Time:
    """Return `value` as a plain time: an `int`, or a tuple of plain times.

    Integers of other libraries become `int`, lists (as JSON has them) and Spark rows become tuples;
    the names of a row's fields are lost. Everything else is refused, `bool` and `float` as well.

    Examples
    --------
    >>> as_time([3, [0, 1]])
    (3, (0, 1))
    """
    if type(value) is int:
        return value
    if isinstance(value, (tuple, list)):
        return tuple(map(as_time, value))
    if value is None:
        raise InvalidTimeError("a time or a coordinate of it is null; give every row a time")
    try:
        if not isinstance(value, bool):
            return int(index(cast(SupportsIndex, value)))
    except TypeError:
        pass
    raise InvalidTimeError(
        f"{value!r} of type {type(value).__name__} is not a time; give an int or a tuple of ints"
    )


def less_equal(a: Time, b: Time) -> bool:
    """Whether `a` is at most `b` in the partial order. False also when they are incomparable.

    Examples
    --------
    >>> less_equal((1, 2), (1, 3)), less_equal((1, 3), (2, 2)), less_equal((2, 2), (1, 3))
    (True, False, False)
    """
    if type(a) is int and type(b) is int:
        return a <= b
    return join(a, b) == as_time(b)


def less_than(a: Time, b: Time) -> bool:
    """Whether `a` is at most `b` and not equal to it.

    Examples
    --------
    >>> less_than((1, 2), (1, 3)), less_than((1, 2), (1, 2))
    (True, False)
    """
    return less_equal(a, b) and as_time(a) != as_time(b)


def join(a: Time, b: Time) -> Time:
    """Least upper bound: the smallest time that is at least both; the maximum by coordinate.

    Examples
    --------
    >>> join((3, 0), (1, 4))
    (3, 4)
    """
    return _by_coordinate(max, as_time(a), as_time(b))


def meet(a: Time, b: Time) -> Time:
    """Greatest lower bound: the largest time that is at most both; the minimum by coordinate.

    Examples
    --------
    >>> meet((3, 0), (1, 4))
    (1, 0)
    """
    return _by_coordinate(min, as_time(a), as_time(b))


def _by_coordinate(
    pick: Callable[[int, int], int], a: Time, b: Time, whole: tuple[Time, ...] = ()
) -> Time:
    if isinstance(a, int) and isinstance(b, int):
        return pick(a, b)
    whole = whole or (a, b)
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return tuple([_by_coordinate(pick, x, y, whole) for x, y in zip(a, b)])
    raise InvalidTimeError(
        f"cannot compare the times {whole[0]} and {whole[1]}: their shapes differ; "
        "give all times of a dataflow as ints, or as tuples of one shape"
    )


def sort_key(t: Time) -> Time:
    """A key for `sorted` that respects `less_equal`: earlier coordinates decide first.

    It orders incomparable times too, so never read a comparison of two keys as one of two times.

    Examples
    --------
    >>> sorted([(1, 0), (0, 2), (0, 1)], key=sort_key)
    [(0, 1), (0, 2), (1, 0)]
    >>> sort_key((0, 2)) < sort_key((1, 0)), less_equal((0, 2), (1, 0))
    (True, False)
    """
    return as_time(t)  # Python compares tuples by their first difference: a linear extension


def advance(t: Time, frontier: Iterable[Time]) -> Time:
    """The largest time that compares like `t` with every time beyond `frontier`.

    It is the meet over `f` in `frontier` of `join(t, f)`, and at least `t`. Two times that no time
    beyond the frontier can tell apart are advanced to the same one: this is what lets compaction
    add up their diffs. What is lost is every distinction at times not beyond the frontier.
    The empty frontier is the exception: nothing is beyond it, and `t` itself is returned.

    Examples
    --------
    >>> advance((3, 7), [(4, 8), (5, 3)])
    (4, 7)
    >>> advance((0, 0), [(0, 2), (2, 0)])  # need not be beyond the frontier
    (0, 0)
    >>> advance(3, [5]), advance(3, [])
    (5, 3)
    """
    advanced = None
    for f in frontier:
        joined = join(t, f)
        advanced = joined if advanced is None else meet(advanced, joined)
    return as_time(t) if advanced is None else advanced


def enter(t: Time) -> Time:
    """The time `t` inside a loop: a last coordinate 0 is appended.

    `leave(enter(t)) == t` for every time. For that a tuple of one coordinate is kept whole.

    Examples
    --------
    >>> enter(7), enter((7, 0)), enter((7,))
    ((7, 0), (7, 0, 0), ((7,), 0))
    """
    t = as_time(t)
    return (t, 0) if isinstance(t, int) or len(t) == 1 else (*t, 0)


def leave(t: Time) -> Time:
    """The time `t` outside of the loop: its last coordinate is dropped.

    Examples
    --------
    >>> leave((7, 2)), leave((7, 0, 2))
    (7, (7, 0))
    """
    outer, _ = _split_loop(t)
    return outer[0] if len(outer) == 1 else outer


def step(t: Time) -> Time:
    """The time `t` after the feedback edge of the loop: its last coordinate grows by one.

    Examples
    --------
    >>> step((7, 0))
    (7, 1)
    """
    outer, iteration = _split_loop(t)
    return (*outer, iteration + 1)


def _split_loop(t: Time) -> tuple[tuple[Time, ...], int]:
    t = as_time(t)
    if isinstance(t, tuple) and t and isinstance(t[-1], int):
        return t[:-1], t[-1]
    raise InvalidTimeError(
        f"the time {t} has no loop coordinate; give a time made by enter, such as {enter(t)}"
    )


def join_closure(times: Iterable[Time], new: Iterable[Time]) -> frozenset[Time]:
    """The interesting times: joins of finite subsets of `times ∪ new` that hold a time of `new`.

    Subsets of any size, not pairs: from three coordinates up, joins of pairs miss some. The result
    can be as large as the product of the numbers of distinct values by coordinate; for plain
    integers it is no larger than the two inputs, and is found in linear time.
    (differential-dataflow operators/reduce.rs.)

    Examples
    --------
    >>> sorted(join_closure([(3, 0), (0, 3)], new=[(1, 1)]), key=sort_key)
    [(1, 1), (1, 3), (3, 1), (3, 3)]
    >>> (1, 1, 1) in join_closure([(1, 0, 0), (0, 1, 0)], new=[(0, 0, 1)])
    True
    >>> sorted(join_closure([2, 5, 8], new=[4]))
    [4, 5, 8]
    """
    found = set(map(as_time, new))
    known = found.union(map(as_time, times))
    if all(isinstance(t, int) for t in known):  # a total order: the join of a subset is in it
        least = min(cast("set[int]", found), default=None)
        return frozenset(t for t in known if least is not None and less_equal(least, t))
    todo = list(found)
    while todo:
        t = todo.pop()
        # Joining with one known time after the other reaches every subset that holds a new one.
        reached = {_by_coordinate(max, t, s) for s in known} - found
        found |= reached
        todo.extend(reached)
    return frozenset(found)


@dataclass(frozen=True, init=False, repr=False)
class Antichain:
    """A frontier: the minimal ones of some times, mutually incomparable. Empty means complete.

    A time is *beyond* the frontier when some element is at most that time. Of the times given, only
    the minimal ones are kept: which times were given is lost, which times are beyond is not. Equal
    antichains have equal elements, so they compare, hash and print alike. Nothing is ever changed;
    methods return a new antichain. (timely-dataflow progress/frontier.rs.)

    Parameters
    ----------
    times
        Any times of one shape, in any order, with or without repetition.

    Attributes
    ----------
    elements : tuple of times
        The minimal times, in the order of `sort_key`.

    Examples
    --------
    >>> frontier = Antichain([(2, 0), (0, 2), (2, 3)])
    >>> frontier
    Antichain([(0, 2), (2, 0)])
    >>> frontier.less_equal((1, 1)), frontier.less_equal((1, 2))
    (False, True)
    """

    elements: tuple[Time, ...]

    def __init__(self, times: Iterable[Time] = ()) -> None:
        plain = list(map(as_time, times))
        for t in plain:
            less_equal(plain[0], t)  # refuses a mixture of shapes, which could not be sorted
        minimal: list[Time] = []
        # In sort order nothing precedes a time that is less, so what is kept is never evicted.
        for t in sorted(plain, key=sort_key):
            if not any(less_equal(kept, t) for kept in minimal):
                minimal.append(t)
        object.__setattr__(self, "elements", tuple(minimal))

    def __iter__(self) -> Iterator[Time]:
        return iter(self.elements)

    def __repr__(self) -> str:
        return f"Antichain({list(self.elements)})"

    @property
    def is_empty(self) -> bool:
        """Whether nothing is beyond this frontier: the collection is complete."""
        return not self.elements

    def less_equal(self, t: Time) -> bool:
        """Whether `t` is beyond this frontier: some element is at most `t`."""
        return any(less_equal(f, t) for f in self.elements)

    def less_than(self, t: Time) -> bool:
        """Whether some element is strictly less than `t`."""
        return any(less_than(f, t) for f in self.elements)

    def insert(self, t: Time) -> Antichain:
        """The antichain with `t` added: `t` is left out if beyond, and evicts what is larger.

        Examples
        --------
        >>> Antichain([(2, 3), (0, 4)]).insert((1, 1))
        Antichain([(0, 4), (1, 1)])
        """
        return Antichain((*self.elements, t))

    def precedes(self, other: Antichain) -> bool:
        """Whether `self` ≤ `other`: every element of `other` is beyond `self`.

        Equal frontiers precede each other, and every frontier precedes the empty one.

        Examples
        --------
        >>> Antichain([3]).precedes(Antichain([5])), Antichain([3]).precedes(Antichain())
        (True, True)
        """
        return all(self.less_equal(g) for g in other.elements)

    def meet(self, other: Antichain) -> Antichain:
        """The greatest frontier that precedes both: beyond it is what is beyond either.

        Examples
        --------
        >>> Antichain([(3, 7), (5, 6)]).meet(Antichain([(4, 6)]))
        Antichain([(3, 7), (4, 6)])
        """
        return Antichain((*self.elements, *other.elements))

    def join(self, other: Antichain) -> Antichain:
        """The least frontier that both precede: beyond it is what is beyond both.

        Examples
        --------
        >>> Antichain([(3, 7), (5, 6)]).join(Antichain([(4, 6)]))
        Antichain([(4, 7), (5, 6)])
        """
        return Antichain(join(f, g) for f in self.elements for g in other.elements)

    def advance(self, t: Time) -> Time:
        """The largest time that compares like `t` with every time beyond this frontier."""
        return advance(t, self.elements)


@dataclass(frozen=True)
class Description:
    """What a batch holds and where its sums are right: `lower`, `upper`, `since`.

        holds t         ⟺  t beyond lower and not beyond upper         its interval [lower, upper)
        readable at t   ⟺  t beyond since and not beyond upper
        t beyond since  ⟹  Σ held updates at times ≤ t  =  Σ updates of the collection at times ≤ t
                            that lie in the interval

    The first line speaks of the times that updates had when they came; compaction may since have
    advanced them to `since`, past `upper` even. (differential-dataflow trace/description.rs.)

    Parameters
    ----------
    lower, upper
        The interval; `lower` must precede `upper`. Equal ones hold nothing.
    since
        Times may have been advanced to it.

    Examples
    --------
    >>> batch = Description(Antichain([0]), Antichain([10]), since=Antichain([4]))
    >>> batch.contains(2), batch.readable(2), batch.readable(4), batch.contains(10)
    (True, False, True, False)
    """

    lower: Antichain
    upper: Antichain
    since: Antichain

    def __post_init__(self) -> None:
        if not self.lower.precedes(self.upper):
            raise TimeRegressionError(
                f"the interval from {self.lower} to {self.upper} runs backwards; "
                "give an upper of which every element is beyond the lower"
            )

    def contains(self, t: Time) -> bool:
        """Whether an update that came at `t` belongs to the batch."""
        return self.lower.less_equal(t) and not self.upper.less_equal(t)

    def readable(self, t: Time) -> bool:
        """Whether the accumulation at `t` is right: not compacted away, and complete."""
        return self.since.less_equal(t) and not self.upper.less_equal(t)
