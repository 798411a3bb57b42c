"""Random programs of loops equal their oracle, which computes from scratch.

They have one to three variables in each pattern of dependencies, and loops in loops, with and
without limits. Their columns have many types. Their steps are random, with updates that cancel out.
"""

from __future__ import annotations

import pytest
from loop_programs import check

#: The seeds of each default run, and the others.
#: Seeds 22 and 51 stall at a time that a later one of the same step makes up for.
FEW, MANY = (*range(5), 22, 51), (*range(5, 22), *range(23, 40))
FEW_IN_SPARK, MANY_IN_SPARK = range(100, 101), range(101, 106)


def seeds(few, many):
    return [*few, *(pytest.param(seed, marks=pytest.mark.slow) for seed in many)]


@pytest.mark.parametrize("seed", seeds(FEW, MANY))
def test_random_loops_on_the_driver(spark, seed):
    check(spark, seed, "local")


@pytest.mark.parametrize("seed", seeds(FEW_IN_SPARK, MANY_IN_SPARK))
def test_random_loops_in_spark(spark, seed):
    check(spark, seed, "spark")
