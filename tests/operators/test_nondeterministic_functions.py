"""A function of the user that gives another result for the same input is found by `check`."""

from __future__ import annotations

import itertools

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from pyspark_diff import Dataflow, NonDeterministicError


def counting():
    """A function that gives the next number each time, made anew wherever it travels."""
    return itertools.count(1).__next__


def chance(check):
    """Operators whose functions give something else at each call, and what their error names."""
    number = counting()
    return {
        "flat_map": lambda f: f.flat_map(lambda row: [(number(),)], "y int", check=check),
        "generator": lambda f: f.flat_map(
            lambda row: ((number(),) for _ in range(2)), "y int", check=check),
        "threshold": lambda f: f.threshold(lambda n: n and n + number(), check=check),
        "map_in_pandas": lambda f: f.map_in_pandas(
            lambda frames: (frame.assign(y=number()) for frame in frames), "y int", check=check),
        "reduce": lambda f: f.reduce(
            lambda key, values: [(number(),)], "y int", key="k", check=check),
        "reduce pandas": lambda f: f.reduce(
            lambda key, table: pd.DataFrame({"y": [number()]}), "y int", key="k", form="pandas",
            check=check),
        "reduce arrow": lambda f: f.groupBy("k").reduce(
            lambda key, table: table.slice(number() % 2, 1).select(["x"]), "x int", form="arrow",
            check=check),
    }


NAMED = {
    "flat_map": r"Row\(k=7, x=1\)", "generator": r"Row\(k=7, x=1\)", "threshold": "input, 1:",
    "map_in_pandas": "rows that begin with .*7, 1", "reduce": r"\(7,\)",
    "reduce pandas": r"\(7,\)", "reduce arrow": r"\(7,\)",
}


def run(spark, make, runner):
    with Dataflow(spark, runner=runner) as flow:
        rows, session = flow.input("in", "k int, x int")
        output = make(rows).keep()
        session.insert([(7, 1), (7, 2)])
        session.advance_to(1)
        session.flush()
        flow.step()
        return sorted(map(tuple, output.at(0).collect()))


#: All on the driver, and one of each kind in tasks.
RUNS = [(name, "local") for name in NAMED] + [
    (name, "spark") for name in ("flat_map", "threshold", "map_in_pandas", "reduce")
]


@pytest.mark.parametrize(("name", "runner"), RUNS)
def test_what_differs_is_refused_and_named(spark: SparkSession, name: str, runner: str) -> None:
    with pytest.raises(NonDeterministicError, match=NAMED[name]) as refused:
        run(spark, chance(True)[name], runner)
    assert f"{name.split()[0].replace('generator', 'flat_map')}'s function" in str(refused.value)


def test_without_check_it_is_not_looked_for(spark: SparkSession) -> None:
    assert run(spark, chance(False)["flat_map"], "local") == [(1,), (2,)]


def test_the_same_in_another_order_is_the_same(spark: SparkSession) -> None:
    """And a function may change its argument."""
    swings = itertools.cycle([1, -1])

    def pops(key, values):
        return [values.pop()[0] for _ in range(len(values))][::next(swings)]

    def doubled(frames):
        for frame in frames:
            frame["x"] *= 2
            yield frame.iloc[::next(swings)]

    assert run(spark, lambda f: f.reduce(pops, "y int", key="k", check=True), "local") == [
        (7, 1), (7, 2)
    ]
    assert run(spark, lambda f: f.map_in_pandas(doubled, "x int", check=True), "local") == [
        (2,), (4,)
    ]
    assert run(spark, lambda f: f.flat_map(
        lambda row: iter([(row.x,), (0,)][::next(swings)]), "y int", check=True), "local"
    ) == [(0,), (0,), (1,), (2,)]
    assert run(spark, lambda f: f.threshold(lambda n: 2 * n, check=True), "local") == [
        (7, 1), (7, 1), (7, 2), (7, 2)
    ]
