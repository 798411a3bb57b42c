"""Each function of Spark's registry is right or refused by name in each place of a program.

A function of a new version of Spark fails `test_each_function_is_classified` until a line of
tests/functions.tsv has its outcomes, which
`PYTHONPATH=.:tests python tests/frame/test_function_registry.py name ...` prints.
"""

from __future__ import annotations

import logging
import sys

import function_registry as registry
import pyspark
import pytest
import test_other_functions

#: The number of cases that share the functions.
PARTS = 24


def test_each_function_is_classified(spark):
    known = registry.classified()
    new = [name for name in registry.names(spark) if name not in known]
    assert not new, f"classify them: python tests/frame/test_function_registry.py {' '.join(new)}"
    unplaced = {name for name, (letters, _) in known.items() if not letters.strip("-")}
    assert unplaced == registry.APART.keys()
    tests = {test for _, test in registry.APART.values()}
    assert all(callable(getattr(test_other_functions, test)) for test in tests)
    accepted = [name for name, (letters, _) in known.items() if "r" in letters]
    assert len(accepted) > 350 and len(known) >= 574


@pytest.mark.parametrize("part", range(PARTS))
def test_each_function_has_its_outcomes(spark, part):
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    there = set(registry.names(spark))
    names = sorted(there & registry.classified().keys())[part::PARTS]
    outcomes = {name: registry.outcome(spark, name) for name in names}
    if not pyspark.__version__.startswith("4.2."):
        # Another version of Spark may describe a function without an example.
        outcomes = {name: outcome for name, outcome in outcomes.items() if outcome != ("", "")}
    assert outcomes == {name: registry.classified()[name] for name in outcomes}


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_outcomes_are_the_same_as_jobs_of_spark(spark, part):
    names = sorted(set(registry.names(spark)) & registry.classified().keys())[part::PARTS]
    for name in names[:4]:
        assert registry.outcome(spark, name, "spark") == registry.classified()[name], name


if __name__ == "__main__":
    from pyspark_diff import session

    own = session(master="local[2]")
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    for name in sys.argv[1:] or registry.names(own):
        try:
            print(name, *registry.outcome(own, name), sep="\t", flush=True)
        except Exception as error:
            print(f"# {name}: {type(error).__name__}: {str(error)[:500]!r}", flush=True)
