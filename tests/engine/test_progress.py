"""Long steps report their progress. Short steps cost nothing, and failures end the report."""

from __future__ import annotations

import logging
import sys
import time
import types

import pytest

from pyspark_diff import Dataflow
from pyspark_diff.engine import progress


class Bar:
    bars: list[Bar] = []

    def __init__(self, **options):
        self.options, self.texts, self.n, self.closed = options, [], 0, False
        Bar.bars.append(self)

    def set_description_str(self, text, refresh):
        self.texts.append(text)

    def set_postfix_str(self, text, refresh):
        self.postfix = text

    def refresh(self):
        self.texts[-1] += f" {self.n}"

    def close(self):
        self.closed = True


@pytest.fixture
def quick(monkeypatch, use_thresholds, caplog):
    """A watcher that reads progress often, and a bar that records its texts."""
    use_thresholds(progress_after_seconds=0.05, progress_read_seconds=0.01)
    monkeypatch.setattr(progress, "_watcher", progress._Watcher())
    Bar.bars = []
    monkeypatch.setitem(sys.modules, "tqdm.auto", types.SimpleNamespace(tqdm=Bar))
    caplog.set_level(logging.INFO, "pyspark_diff")
    return monkeypatch


@pytest.fixture
def flow(spark):
    with Dataflow(spark, runner="local") as flow:
        numbers, numbers_in = flow.input("numbers", "a long")
        numbers_in.insert([(1,)])
        numbers_in.advance_to(1)
        numbers_in.flush()

        def slow(row):
            time.sleep(0.6)
            if row.a < 0:
                raise ValueError("negative")
            return [(row.a,)]

        numbers.flat_map(slow, "a long").distinct().inspect(lambda *_: None)
        yield flow, numbers_in


def test_a_long_step_shows_how_far_it_is(quick, flow, caplog):
    flow[0].step()
    (bar,) = Bar.bars
    assert bar.closed and bar.options["total"] > 1 and bar.options["disable"] is None
    assert bar.texts and all(text.rpartition(" ")[0] for text in bar.texts)
    assert "rows" in bar.postfix
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 2 and "operators done" in texts[0] and "over after" in texts[1]
    assert progress._watcher._runs == []


def test_a_long_loop_shows_how_many_iterations_are_over(quick, spark):
    with Dataflow(spark, runner="local") as flow:
        numbers, numbers_in = flow.input("numbers", "a long")

        def slow(row):
            time.sleep(0.1)
            return [(min(row.a + 1, 9),)]

        numbers.iterate(lambda x: x.flat_map(slow, "a long").concat(numbers).distinct()).keep()
        numbers_in.insert([(1,)])
        flow.advance_to(1)
    (bar,) = Bar.bars
    iterations, _, rest = bar.postfix.partition(" iterations, ")
    assert int(iterations) > 1 and "rows" in rest


def test_a_short_step_shows_nothing(quick, use_thresholds, flow, caplog):
    use_thresholds(progress_after_seconds=60.0)
    flow[0].step()
    assert Bar.bars == [] and caplog.records == []


def test_bars_can_be_left_out(quick, flow, caplog, spark):
    spark.conf.set(progress.PROGRESS, "false")
    try:
        flow[0].step()
    finally:
        spark.conf.unset(progress.PROGRESS)
    assert Bar.bars == [] and len(caplog.records) == 2
    # A callback for iterations replaces the bar.
    flow[1].insert([(2,)])
    flow[1].close()
    flow[0].step(on_iteration=print)
    assert Bar.bars == [] and len(caplog.records) == 4


def test_without_tqdm_there_is_the_log(quick, flow, caplog):
    quick.setitem(sys.modules, "tqdm.auto", None)
    flow[0].step()
    assert len(caplog.records) == 2


@pytest.mark.parametrize("broken", ["step", "bar"])
def test_failures_end_it_and_do_no_harm(quick, flow, broken):
    if broken == "bar":
        quick.setattr(Bar, "refresh", lambda self: 1 / 0)
        flow[0].step()
        assert Bar.bars[0].closed
    else:
        flow[1].insert([(-1,)])
        flow[1].advance_to(2)
        flow[1].flush()
        with pytest.raises(Exception, match="negative"):
            flow[0].step()
        assert all(bar.closed for bar in Bar.bars)
    assert progress._watcher._runs == []


def test_nobody_looks_when_there_is_nothing_to_see(quick, use_thresholds):
    use_thresholds(progress_idle_seconds=0.05)
    run = progress._Run(None, False, time.monotonic() + 1000)
    for _ in range(2):
        progress._watcher.begin(run)
        thread = progress._watcher._thread
        assert thread.daemon and thread.is_alive()
        progress._watcher.end(run)
        thread.join(30)
        assert not thread.is_alive() and progress._watcher._thread is None
