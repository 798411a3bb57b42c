"""The tool that compares a folder of queries with plain Spark: its own verdicts."""

from __future__ import annotations

import pytest
import sql_coverage
from pyspark.errors import PySparkException
from sql_coverage import Outcome, Values, causes, compared, differs, exit_code

from pyspark_diff import DiffOverflowError, StepError


class SparkError(PySparkException):
    def __init__(self, condition):
        super().__init__(f"[{condition}] text")
        self.condition = condition

    def getCondition(self):
        return self.condition


def test_two_failures_are_equal_only_of_one_cause():
    division, cast = SparkError("DIVIDE_BY_ZERO"), SparkError("CAST_INVALID_INPUT")
    ours = StepError("the step failed")
    ours.__cause__ = division
    assert compared(None, ours, None, SparkError("DIVIDE_BY_ZERO")) is None
    assert compared(None, ours, None, cast).kind == "failed"
    assert compared(None, DiffOverflowError("too large"), None, cast).kind == "failed"
    overflow = SparkError("ARITHMETIC_OVERFLOW")
    assert compared(None, DiffOverflowError("a sum is too large"), None, overflow) is None
    assert "DIVIDE_BY_ZERO" in causes(DiffOverflowError("corr divides by zero"))


def test_one_failure_is_a_fault():
    assert compared(None, StepError("x"), [(1,)], None).kind == "failed"
    assert compared([(1,)], None, None, SparkError("DIVIDE_BY_ZERO")).kind == "spark fails"
    assert compared([(1,)], None, [(2,)], None).kind == "wrong"
    assert compared([(1,)], None, [(1,)], None) is None


def test_rows_that_are_near_form_pairs():
    assert not differs([(1.0,), (1.0000004,)], [(1.0000004,), (1.0,)])
    # Both rows are near one row of Spark, and the other row of Spark is near neither.
    assert differs([(1.0,), (1.0000002,)], [(1.0000001,), (5.0,)])
    assert differs([(5.0,), (1.0,)], [(1.0000001,), (1.0000002,)])
    assert differs([(1.0,)], [(1.0,), (1.0,)]) and differs([(None,)], [(0.0,)])
    # The first row is near both rows of Spark, and the second row is near one.
    assert not differs([(1.0,), (1.0000016,)], [(1.0000008,), (0.9999992,)])


@pytest.mark.parametrize(("ends", "code"), [
    (["equal", "refused"], 0), (["equal", "failed"], 1), (["wrong"], 1), (["spark fails"], 1),
    ([], 1), (["equal", "spark refuses"], 0),
])
def test_faults_are_told_by_the_exit_code(ends, code):
    assert exit_code(ends) == code


def test_values_are_drawn_from_the_constants_of_a_column():
    text = "SELECT * FROM t WHERE a = 77 AND b IN ('x', 'y') AND c BETWEEN 5 AND 7 AND d LIKE 'q%'"
    values = Values(text, 1)
    assert values.compared == {
        "a": ["77"], "b": ["'x'", "'y'"], "c": ["5", "7"], "d": ["'q%'"],
    }


def test_the_batches_after_a_failure_are_compared(spark, monkeypatch):
    """Both sides fail on the first rows, and this does not hide the fault of a later batch."""
    schemas = sql_coverage.read_schema("CREATE TABLE t (k int, x int);")
    batches = iter([[(1, 0)], [(1, 2)], [(1, 4)]])

    def change(values, table, struct, count, first):
        gone, new = list(table), next(batches)
        table[:] = new
        return gone, new

    monkeypatch.setattr(sql_coverage, "change", change)
    query = "SELECT k, sum(1 / x) AS y FROM t GROUP BY k"
    assert sql_coverage.run(spark, schemas, query, batches=2) == Outcome("equal", rows=1)
    batches = iter([[(1, 0)], [(1, 2)], [(1, 4)]])
    monkeypatch.setattr(sql_coverage, "differs", lambda got, want: "other rows")
    outcome = sql_coverage.run(spark, schemas, query, batches=2)
    assert outcome.kind == "wrong" and "batch 1" in outcome.detail and "batch 2" in outcome.detail
