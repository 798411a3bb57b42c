"""Times, frontiers, and descriptions: the order in which everything happens.

    (a1, …, an) ≤ (b1, …, bn)  ⟺  ai ≤ bi for every i                the partial order, `less_equal`
    a ≤ c and b ≤ c            ⟺  join(a, b) ≤ c                     least upper bound
    t is beyond F              ⟺  f ≤ t for some f in F              F a frontier, an antichain
    F ≤ G                      ⟺  every g in G is beyond F           `Antichain.precedes`
    H ≤ F and H ≤ G            ⟺  H ≤ F.meet(G)                      greatest lower bound
    F ≤ H and G ≤ H            ⟺  F.join(G) ≤ H                      least upper bound

A time is an `int`, as a dataflow's logical times are, or a tuple of them, as the coordinates in
nested loops are. Times of different shapes do not compare. Two times may be incomparable, so `<` is
never defined to mean the partial order, and on tuples Python's own `<` is the lexicographic order.

The notions are those of timely-dataflow order.rs and progress/frontier.rs, and of
differential-dataflow lattice.rs and trace/description.rs. The rules that are applied to many times
at once are in the kernels: coordinates.py, and history.py for the join closure; those that Spark's
own progress follows are in Scala, scala-bridge/. All run the cases of tests/algebra_cases.json.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import index
from typing import SupportsIndex, TypeAlias, TypeVar, cast

from pyspark_diff.errors import InvalidTimeError, TimeRegressionError

#: Which iteration of each of the loops around it, the outermost first.
Coordinate: TypeAlias = tuple[int, ...]
Time: TypeAlias = int | Coordinate
_T = TypeVar("_T", bound=Time)


def as_time(value: object) -> Time:
    """Return `value` as a plain time: an `int`, or a tuple of them.

    Integers of other libraries become `int`, lists (as JSON has them) and Spark rows become tuples;
    the names of a row's fields are lost. Everything else is refused, `bool` and `float` as well.

    Examples
    --------
    >>> as_time([3, 0])
    (3, 0)
    """
    if type(value) is int:
        return value
    if isinstance(value, (tuple, list)):
        return tuple(map(_as_int, value))
    return _as_int(value)


def _as_int(value: object) -> int:
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
    return join(a, b) == b


def join(a: _T, b: _T) -> _T:
    """Least upper bound: the smallest time that is at least both; the maximum by coordinate.

    Examples
    --------
    >>> join((3, 0), (1, 4))
    (3, 4)
    """
    if isinstance(a, int) and isinstance(b, int):
        return cast(_T, max(a, b))
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return cast(_T, tuple(map(max, a, b)))
    raise InvalidTimeError(
        f"cannot compare the times {a} and {b}: their shapes differ; "
        "give all times of a dataflow as ints, or as tuples of one shape"
    )


def enter(t: Coordinate, loops: int = 1) -> Coordinate:
    """The coordinate `t` inside of more loops: it is there from their first iteration, 0, on.

    Examples
    --------
    >>> enter((7,)), enter((7,), 2), enter(())
    ((7, 0), (7, 0, 0), (0,))
    """
    return t + (0,) * loops


def leave(t: Coordinate) -> Coordinate:
    """The coordinate `t` outside of its innermost loop: ``leave(enter(t)) == t``.

    Examples
    --------
    >>> leave((7, 2))
    (7,)
    """
    return t[:-1]


def step(t: Coordinate) -> Coordinate:
    """The coordinate `t` after the feedback edge of its innermost loop: one iteration on.

    Examples
    --------
    >>> step((7, 0))
    (7, 1)
    """
    return (*t[:-1], t[-1] + 1)


@dataclass(frozen=True, init=False, repr=False, slots=True)
class Antichain:
    """A frontier: the minimal ones of some times, mutually incomparable. Empty means complete.

    A time is *beyond* the frontier when some element is at most that time. A frontier keeps the
    minimal times only, so it forgets the other times, and has the same times beyond it. Equal
    antichains have equal elements, so they compare, hash and print alike. Nothing is ever changed;
    methods return a new antichain. (timely-dataflow progress/frontier.rs.)

    Parameters
    ----------
    times
        Any times of one shape, in any order, with or without repetition.

    Attributes
    ----------
    elements : tuple of times
        The minimal times, in lexicographic order.

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
        plain = tuple(map(as_time, times))
        object.__setattr__(self, "elements", plain if len(plain) < 2 else _minimal(plain))

    def __iter__(self) -> Iterator[Time]:
        return iter(self.elements)

    def __repr__(self) -> str:
        return f"Antichain({list(self.elements)})"

    @property
    def is_empty(self) -> bool:
        """Whether nothing is beyond this frontier: the collection is complete."""
        return not self.elements

    @property
    def bound(self) -> int | None:
        """The only time of a frontier of totally ordered times; None when complete.

        Kernels, runners and a user's time column take integers. For tuples it is the least of
        their first fields: no time beyond the frontier is before it in that field.

        Examples
        --------
        >>> Antichain([5, 3]).bound, Antichain([(2, 0), (0, 2)]).bound, Antichain().bound
        (3, 0, None)
        """
        if not self.elements:
            return None
        least = self.elements[0]  # they are in lexicographic order
        return least if isinstance(least, int) else least[0]

    @property
    def end(self) -> int | None:
        """The time before which all times lie that are not beyond the frontier; None if there is
        no such time.

        Tuples have none: a time may be late in its first field, and early in another one.

        Examples
        --------
        >>> Antichain([5]).end, Antichain([(2, 0), (0, 2)]).end, Antichain().end
        (5, None, None)
        """
        least = self.elements[0] if self.elements else None
        return least if isinstance(least, int) else None

    def less_equal(self, t: Time) -> bool:
        """Whether `t` is beyond this frontier: some element is at most `t`."""
        t = as_time(t)
        for f in self.elements:
            if less_equal(f, t):
                return True
        return False

    def less_than(self, t: Time) -> bool:
        """Whether some element is strictly less than `t`."""
        t = as_time(t)
        return any(less_equal(f, t) and f != t for f in self.elements)

    def precedes(self, other: Antichain) -> bool:
        """Whether `self` ≤ `other`: every element of `other` is beyond `self`.

        Equal frontiers precede each other, and every frontier precedes the empty one.

        Examples
        --------
        >>> Antichain([3]).precedes(Antichain([5])), Antichain([3]).precedes(Antichain())
        (True, True)
        """
        if self is other:
            return True
        mine, others = self.elements, other.elements
        if len(mine) == len(others) == 1 and type(mine[0]) is type(others[0]) is int:
            return mine[0] <= others[0]
        for g in others:
            if not self.less_equal(g):
                return False
        return True

    def meet(self, other: Antichain) -> Antichain:
        """The greatest frontier that precedes both: a time is beyond it if it is beyond either.

        Examples
        --------
        >>> Antichain([(3, 7), (5, 6)]).meet(Antichain([(4, 6)]))
        Antichain([(3, 7), (4, 6)])
        """
        if self.precedes(other):
            return self
        if other.precedes(self):
            return other
        return Antichain((*self.elements, *other.elements))

    def join(self, other: Antichain) -> Antichain:
        """The least frontier that both precede: the times beyond it are beyond both.

        Examples
        --------
        >>> Antichain([(3, 7), (5, 6)]).join(Antichain([(4, 6)]))
        Antichain([(4, 7), (5, 6)])
        """
        if self.precedes(other):
            return other
        if other.precedes(self):
            return self
        return Antichain(join(f, g) for f in self.elements for g in other.elements)


def _minimal(times: Iterable[Time]) -> tuple[Time, ...]:
    """The times that are not beyond another one, each once, in order; all have one shape."""
    minimal: list[Time] = []
    for t in times:
        if not any(less_equal(other, t) for other in minimal):
            minimal = [other for other in minimal if not less_equal(t, other)]
            minimal.append(t)
    return tuple(sorted(cast("list[Coordinate]", minimal)))  # of one shape, so they can be sorted


def meet_all(frontiers: Iterable[Antichain]) -> Antichain:
    """The greatest frontier that precedes all of some; of none, the empty one.

    Examples
    --------
    >>> meet_all([Antichain([5]), Antichain(), Antichain([3])]), meet_all([])
    (Antichain([3]), Antichain([]))
    """
    least: Antichain | None = None
    for frontier in frontiers:
        if least is None:
            least = frontier
        elif frontier is not least:
            least = least.meet(frontier)
    return Antichain() if least is None else least


class OutstandingTimes:
    """How often each time is outstanding, and the frontier of the outstanding times. It has state.

        net(t)    =  Σ changes of t                        of either sign, and in any order
        frontier  =  the minimal t with net(t) > 0
        frontier before, and what `update` returns  =  frontier after

    A net that is negative for a while, as when a release comes before its hold, holds nothing.
    (timely-dataflow progress/frontier.rs, `MutableAntichain`.)

    Examples
    --------
    >>> outstanding = OutstandingTimes()
    >>> outstanding.update([(5, 1), (3, 1)])
    [(3, 1)]
    >>> outstanding.update([(3, -1)]), outstanding.frontier
    ([(3, -1), (5, 1)], Antichain([5]))
    """

    def __init__(self) -> None:
        self._net: dict[Time, int] = {}
        self._frontier = Antichain()

    @property
    def frontier(self) -> Antichain:
        """The minimal times that are outstanding."""
        return self._frontier

    def update(self, changes: Iterable[tuple[Time, int]]) -> list[tuple[Time, int]]:
        """Apply changes, and return those of the frontier: times that went, then that came."""
        for t, change in changes:
            t = as_time(t)
            net = self._net.get(t, 0) + change
            if net:
                self._net[t] = net
            else:
                self._net.pop(t, None)
        before = self._frontier
        self._frontier = Antichain(t for t, net in self._net.items() if net > 0)
        gone = [(t, -1) for t in before if t not in self._frontier.elements]
        return gone + [(t, 1) for t in self._frontier if t not in before.elements]


@dataclass(frozen=True)
class Description:
    """The interval of a batch, and the times at which its sums are right.

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
        All times are advanced to it. Some files may have times that are advanced further, up to
        the `since` of the trace.

    Examples
    --------
    >>> Description(Antichain([0]), Antichain([10]), since=Antichain([4])).upper
    Antichain([10])
    """

    lower: Antichain
    upper: Antichain
    since: Antichain

    def __post_init__(self) -> None:
        if not self.lower.precedes(self.upper):
            raise TimeRegressionError(
                f"the interval from {self.lower} to {self.upper} runs backwards; "
                "give an upper whose elements are all beyond the lower"
            )
