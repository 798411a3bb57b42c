"""The plot of a collection's history: its lines are the answers at each time."""

from __future__ import annotations

import sys
from collections import Counter
from datetime import date
from decimal import Decimal
from unittest.mock import patch

import matplotlib
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_law import examples

from pyspark_diff import Dataflow, DiffFrame, NotReadableError, SchemaError

matplotlib.use("agg")

SCHEMA = "word string, n int, time int, diff int"
UPDATES = st.lists(
    st.tuples(
        st.sampled_from(["a", "_b", None, "2 others"]), st.sampled_from([None, 1, 2, 5]),
        st.integers(0, 5), st.sampled_from([1, 1, 2, -1]),
    ),
    max_size=12,
)


@pytest.fixture(autouse=True)
def no_figures_left():
    yield
    from matplotlib import pyplot

    pyplot.close("all")


def drawn(axes):
    return {
        # The last point is the end of the last step.
        line.get_label().strip(): dict(zip(line.get_xdata()[:-1], map(float, line.get_ydata())))
        for line in axes.get_lines()
    }


def legend(axes):
    return axes.get_legend().get_texts() if axes.get_legend() else ()


@examples(1)
@given(UPDATES, st.sampled_from([None, "n"]), st.integers(1, 4))
def test_lines_are_what_the_answers_were(spark, updates, value, most):
    frame = DiffFrame(spark.createDataFrame(updates, SCHEMA))
    sums = Counter()
    for word, n, time, diff in updates:
        sums[word, n, time] += diff
    updates = [(*update, diff) for update, diff in sums.items() if diff]
    axes = frame.plot_history(value, by="word", most=most)
    lines = drawn(axes)
    names = {word or "null" for word, *_ in updates}
    assert len(lines) == min(len(names), most) + (len(names) > most)
    times = sorted({time for _, _, time, _ in updates})
    assert {text.get_text().strip() for text in legend(axes)} == set(lines)
    # The last line is the sum of the others, if there are more; a record may have its name.
    rest = list(lines)[-1] if len(names) > most else None
    for name, line in lines.items():
        assert list(line) == times
        shown = names - (set(lines) - {rest}) if name == rest else {name}
        for time, height in line.items():
            assert height == sum(
                diff * ((n or 0) if value else 1) for word, n, at, diff in updates
                if at <= time and (word or "null") in shown
            )
    moved = Counter()
    for word, n, _, diff in updates:
        moved[word or "null"] += abs(diff) * (1 if value is None else n or 0)
    own = set(lines) - {rest}
    left = [moved[name] for name in names - own]
    assert not left or max(left) <= min(moved[name] for name in own)


def test_what_is_kept_of_a_dataflow_is_drawn(spark):
    with Dataflow(spark, buckets=1) as flow:
        sales, sales_in = flow.input("sales", "shop string, amount decimal(9,2)")
        totals = sales.groupBy("shop").sum("amount").keep("totals")
        with totals.hold():
            for time, amount in enumerate(("2.50", "4.00")):
                sales_in.insert([("x", Decimal(amount))])
                flow.advance_to(time + 1)
            axes = flow["totals"].plot_history("sum(amount)", by=["shop"])
    assert drawn(axes) == {"x": {0: 2.5, 1: 6.5}}
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("time", "sum(amount)")
    assert axes.get_legend().get_title().get_text() == "shop"


def test_axes_dates_and_names_in_another_case(spark):
    rows = [("a", 1, date(2026, 1, 1), 1), ("a", 2, date(2026, 2, 1), 1)]
    frame = DiffFrame(spark.createDataFrame(rows, "Word string, N int, time date, diff int"))
    from matplotlib import pyplot

    ax = pyplot.subplots()[1]
    assert frame.plot_history("n", by="word", ax=ax) is ax
    assert drawn(ax) == {"a": {date(2026, 1, 1): 1.0, date(2026, 2, 1): 3.0}}
    assert len(pyplot.get_fignums()) == 1


def test_nothing_is_an_empty_picture(spark):
    frame = DiffFrame(spark.createDataFrame([], SCHEMA))
    assert drawn(frame.plot_history()) == {"rows": {}}
    assert drawn(frame.plot_history("n", by="word")) == {}


@pytest.mark.parametrize("asked, error, said", [
    (dict(value="word"), SchemaError, "word is string"),
    (dict(value="nn"), SchemaError, "nn"),
    (dict(by="nn"), SchemaError, "nn"),
    (dict(by=["word", "WORD"]), SchemaError, "twice"),
    (dict(most=0), ValueError, "not 0"),
    (dict(most=True), ValueError, "not True"),
])
def test_what_cannot_be_drawn(spark, asked, error, said):
    frame = DiffFrame(spark.createDataFrame([("a", 1, 0, 1)], SCHEMA))
    with pytest.raises(error, match=said):
        frame.plot_history(**asked)
    from matplotlib import pyplot

    assert not pyplot.get_fignums()


def test_what_is_not_kept_is_said(spark):
    with Dataflow(spark, buckets=1) as flow:
        sales, _ = flow.input("sales", "shop string")
        sales.keep()
        with pytest.raises(NotReadableError):
            sales.groupBy("shop").count().plot_history()


def test_without_matplotlib(spark):
    frame = DiffFrame(spark.createDataFrame([("a", 1, 0, 1)], SCHEMA))
    with patch.dict(sys.modules, {"matplotlib": None}):
        with pytest.raises(ImportError, match=r'pip install "pyspark_diff\[plot\]"'):
            frame.plot_history()
