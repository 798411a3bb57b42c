"""One file of cases for all implementations of the algebra of times; test_scala.py runs them too.

In Python, the implementations are `times.py` and the kernels. A kernel packs loop coordinates into
one integer, and many of them into a column.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import algebra_cases
import numpy as np
import pytest

from pyspark_diff.kernels.coordinates import Limit, bits, lub, pack, unpack
from pyspark_diff.kernels.history import due_after
from pyspark_diff.kernels.updates import UpdateChunk, concat
from pyspark_diff.times import (
    Antichain,
    Coordinate,
    OutstandingTimes,
    Time,
    enter,
    join,
    leave,
    less_equal,
    step,
)

CASES = json.loads(algebra_cases.FILE.read_text(encoding="utf-8"))


def shapes(value: Any) -> Iterator[Any]:
    """All lists of integers in a case as tuples; times of one coordinate as integers as well."""
    def shaped(value: Any, plain: bool) -> Any:
        if isinstance(value, dict):
            return {name: shaped(part, plain) for name, part in value.items()}
        if not isinstance(value, list):
            return value
        if value and all(type(part) is int for part in value):
            return value[0] if plain else tuple(value)
        if len(value) == 2 and type(value[1]) is int:  # a time and its change
            return shaped(value[0], plain), value[1]
        return [shaped(part, plain) for part in value]

    yield shaped(value, False)
    if width(value) == 1:
        yield shaped(value, True)


def width(value: Any) -> int:
    """How many coordinates the times of a case have; 0 if there are none."""
    if isinstance(value, dict):
        return max(map(width, value.values()), default=0)
    if not isinstance(value, list):
        return 0
    if value and all(type(part) is int for part in value):
        return len(value)
    return max(map(width, value), default=0)


def all_of(name: str) -> list[Any]:
    return [shape for case in CASES[name] for shape in shapes(case)]


def test_the_file_is_what_its_script_writes():
    assert CASES == json.loads(json.dumps(algebra_cases.cases(random.Random(15))))


def test_times():
    for case in all_of("times"):
        a, b = case["a"], case["b"]
        assert less_equal(a, b) == case["less_equal"]
        assert join(a, b) == join(b, a) == case["join"]
        # Only Scala has a meet of two times; Python has a meet of frontiers.
        for t in (a, b):
            assert less_equal(case["meet"], t)


def test_moves():
    for case in CASES["moves"]:
        t = tuple(case["t"])
        assert enter(t) == tuple(case["enter"])
        assert leave(t) == tuple(case["leave"])
        assert step(t) == tuple(case["step"])


def test_antichains():
    for case in all_of("antichains"):
        frontier = Antichain(case["times"])
        assert list(frontier) == case["elements"]
        assert frontier.less_equal(case["t"]) == case["less_equal"]
        assert frontier.less_than(case["t"]) == case["less_than"]


def test_frontiers():
    for case in all_of("frontiers"):
        f, g = Antichain(case["f"]), Antichain(case["g"])
        assert f.precedes(g) == case["precedes"]
        assert list(f.meet(g)) == list(g.meet(f)) == case["meet"]
        assert list(f.join(g)) == list(g.join(f)) == case["join"]


def test_outstanding_times():
    for case in all_of("outstanding"):
        outstanding = OutstandingTimes()
        for change in case:
            moves = outstanding.update(change["changes"])
            assert list(outstanding.frontier) == change["frontier"]
            assert moves == [(t, -1) for t in change["gone"]] + [(t, 1) for t in change["come"]]


def visited(recorded: list[Coordinate], new: list[Coordinate]) -> set[Time]:
    """All joins of the join closure that have a new time among them, by `times.join`."""
    joins: set[Time] = set(new)
    while True:
        more = {join(a, b) for a in joins for b in (*recorded, *new)} - joins
        if not more:
            return joins
        joins |= more


def test_closures():
    for case in CASES["closures"]:
        recorded, new = ([tuple(t) for t in case[side]] for side in ("recorded", "new"))
        assert sorted(visited(recorded, new)) == [tuple(t) for t in case["due"]]


# In columns: coordinates of loops, which are not negative and have a few bits each.

def packable(*times: list[int]) -> bool:
    return all(0 <= part < 1 << bits(len(t)) for t in times for part in t)


def test_columns_compare_and_join():
    cases = [case for case in CASES["times"] if packable(case["a"], case["b"])]
    assert {len(case["a"]) for case in cases} == {1, 2, 3, 4}
    for case in cases:
        a, b = tuple(case["a"]), tuple(case["b"])
        column = np.array([pack(a)])
        assert unpack(pack(a), len(a)) == a
        assert Limit(len(b), pack(b)).mask(column).tolist() == [case["less_equal"]]
        assert lub(column, len(a), b).tolist() == [pack(tuple(case["join"]))]
        assert lub(pack(a), len(a), b) == pack(tuple(case["join"]))


def test_columns_enter():
    for case in CASES["moves"]:
        inside = tuple(case["enter"])
        assert lub(pack(tuple(case["t"])), len(inside) - 1, (0,) * len(inside)) == pack(inside)


def at(times: list[Coordinate]) -> UpdateChunk:
    """Updates of the one key 7 at some coordinates, in order."""
    return concat([
        UpdateChunk(np.array([7]), None, 0, 1, coordinate=pack(t)) for t in sorted(times)
    ])


def test_columns_close():
    for case in CASES["closures"]:
        recorded, agenda = ([tuple(t) for t in case[side]] for side in ("recorded", "new"))
        new, done = set(agenda), set()
        keys = UpdateChunk(np.array([7]), None, 0, 1)
        while agenda:
            now = min(agenda)
            agenda.remove(now)
            if now in done:
                continue
            done.add(now)
            recorded += [now] if now in new else []
            due = due_after(keys, [([at(recorded)], len(now))], now)
            agenda += [unpack(code, len(now)) for code in due]
        assert sorted(done) == [tuple(t) for t in case["due"]]


@pytest.mark.parametrize("name", CASES)
def test_there_are_cases_of_each_width(name):
    assert {2, 3} <= {width(case) for case in CASES[name]}
