"""Claims of collections: a step that breaks one fails, names the records, and changes nothing."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as F
from test_law import RUNNERS, every_runner

from pyspark_diff import AssertionFailedError, Dataflow, DiffFrame, NotReadableError, SchemaError


def emptied(spark, runner, updates, upper, buckets=2):
    """The first time, if any, at which a claim that there is nothing fails."""
    with Dataflow(spark, runner=runner, buckets=buckets) as flow:
        a, a_in = flow.input("a", "k int")
        a.assert_empty()
        a_in.update(updates)
        try:
            flow.advance_to(upper)
        except AssertionFailedError as error:
            return int(str(error).split("at time ")[1].split(":")[0])
    return None


@pytest.mark.parametrize("buckets", [1, 2, 7])
@every_runner
def test_the_first_time_of_all_buckets_is_named(spark, runner, buckets):
    """Each bucket reports its own first time, and the first bucket may have a late one."""
    for late in (0, 1, None):
        others = [k for k in (0, 1, None, 2, 3) if k != late]
        updates = [(late, 1, -1), *((k, 3, -1) for k in others[:2]), (others[2], 0, -1)]
        assert emptied(spark, runner, updates, 4, buckets) == 0


@given(
    updates=st.lists(st.tuples(st.sampled_from([0, 1, None]), st.integers(0, 3),
                               st.sampled_from([-1, 1])), max_size=6),
    runner=st.sampled_from(["local", "local", "spark"]),
)
def test_the_first_time_that_is_not_empty(spark, updates, runner):
    there = [
        t for t in range(4)
        if any(sum(d for k, s, d in updates if k == key and s <= t) for key in (0, 1, None))
    ]
    assert emptied(spark, runner, updates, 4) == (there[0] if there else None)


@every_runner
def test_a_step_that_fails_changes_nothing(spark, runner):
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        orders, orders_in = flow.input("orders", "id int, customer int")
        customers, customers_in = flow.input("customers", "Customer int")
        lost = orders.join(customers, "customer", "left_anti")
        assert lost.assert_empty("an order of nobody").columns == ["customer", "id"]
        counts = orders.groupBy("customer").count().keep()
        customers_in.insert([(1,), (2,)])
        orders_in.insert([(10, 1), (11, 1)])
        flow.advance_to(1)
        before = sorted(map(tuple, counts.at().collect()))
        orders_in.insert([(12, 2), (13, 3)])
        with pytest.raises(AssertionFailedError) as caught:
            flow.advance_to(2)
        message = str(caught.value)
        assert message.startswith("an order of nobody: ")
        for part in ("at time 1", "(3, 13)", "multiplicity 1", "'orders'", "assert_empty"):
            assert part in message
        assert "(2, 12)" not in message
        assert isinstance(caught.value, AssertionError)
        assert sorted(map(tuple, counts.at(0).collect())) == before
        # Dropped, the others go on; and a customer of the same time makes it right.
        assert sum(table.num_rows for table in orders_in.discard()) == 2
        orders_in.insert([(14, 4)])
        customers_in.insert([(4,)])
        flow.advance_to(3)
        assert (4, 1) in sorted(map(tuple, counts.at().collect()))
        customers_in.remove([(4,)])
        with pytest.raises(AssertionFailedError, match="at time 3"):
            flow.advance_to(4)


@pytest.mark.parametrize("runner", RUNNERS)
def test_two_that_are_to_be_equal(spark, runner):
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        a, a_in = flow.input("a", "k int, n int")
        b, b_in = flow.input("b", "k int, n bigint")
        same = a.groupBy("k").agg(F.sum("n").alias("n"))
        other = b.assert_eq(same.withColumn("k", F.col("k").cast("bigint")), "sums")
        assert other.columns == ["k", "n"]
        a_in.insert([(1, 2), (1, 3), (None, 4)])
        b_in.insert([(1, 5), (None, 4)])
        flow.advance_to(1)
        a_in.insert([(1, 1)])
        with pytest.raises(AssertionFailedError) as caught:
            flow.advance_to(2)
        message = str(caught.value)
        assert message.startswith("sums: a collection of (k, n) was to be equal to another one")
        assert "(1, 5) 1 times more here" in message
        assert "(1, 6) 1 times more in the other" in message
        flow.discard()
        a_in.insert([(1, 1)])
        b_in.remove([(1, 5)])
        b_in.insert([(1, 6)])
        flow.advance_to(3)
        with pytest.raises(SchemaError):
            a.assert_eq(a.select("k"))


def test_a_collection_given_as_a_whole(spark):
    columns = "k int, time int, diff int"
    a = DiffFrame(spark.createDataFrame([(1, 3, 1), (1, 5, -1), (2, 7, 1), (2, 7, -1)], columns))
    claimed = a.assert_empty()
    assert a.at(3).collect()
    with pytest.raises(AssertionFailedError, match="at time 3"):
        claimed.at(9)
    b = DiffFrame(spark.createDataFrame([(1, 3, 1), (1, 5, -1)], columns))
    assert a.assert_eq(b).at(4).collect() == a.at(4).collect()
    with pytest.raises(AssertionFailedError, match="times more here"):
        a.assert_eq(b.negate()).at(4)
    assert a.assert_eq(a.select(F.col("k").cast("bigint"))).schema == a.schema
    with pytest.raises(AssertionFailedError, match=r"\(\) with the multiplicity 1"):
        a.select().assert_empty().at(4)


def test_claims_are_for_outside_of_loops(spark):
    a = DiffFrame(spark.createDataFrame([(1, 0, 1)], "k int, time int, diff int"))
    with pytest.raises(NotReadableError, match="outside of loops"):
        a.iterate(lambda inner: inner.assert_empty())


def test_many_records_are_not_all_named(spark):
    rows = [(n, 0, 1) for n in range(100)]
    a = DiffFrame(spark.createDataFrame(rows, "k int, time int, diff int"))
    with pytest.raises(AssertionFailedError) as caught:
        a.assert_empty().at(0)
    assert str(caught.value).count("multiplicity") == 3 and "..." in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args


def test_a_pivot_without_values_says_why(spark):
    a = DiffFrame(spark.createDataFrame([], "k int, what string, time int, diff int"))
    with pytest.raises(SchemaError) as caught:
        a.groupBy("k").pivot("what")
    for part in ("its columns would depend on the records", "pivot('what', ['x', 'y'])"):
        assert part in str(caught.value)
