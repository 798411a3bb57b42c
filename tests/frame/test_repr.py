"""A `repr` describes its object, without a job, a change or a wait."""

from __future__ import annotations

import re
import threading

import pytest
from pyspark.sql import functions as F

import pyspark_diff
from pyspark_diff import (
    Antichain,
    Dataflow,
    DiffFrame,
    Explanation,
    GroupedDiff,
    Hold,
    InputSession,
    Loop,
    MaterializedView,
    Plan,
    Plot,
    Probe,
    ProductSession,
    Progress,
    Reason,
    Refreshed,
    RunningStep,
    StateReader,
    UnityCredentials,
)
from pyspark_diff.engine.state import IterationReport, Report
from pyspark_diff.frame.as_pyspark import NaMethods
from pyspark_diff.runners.spark import SparkRunner


@pytest.fixture
def objects(spark):
    """An object of each class and its `repr`, in a dataflow without a step."""
    with Dataflow(spark, runner="local") as flow:
        edges, edges_in = flow.input("edges", "src long, `<b>` string")
        _, done_in = flow.input("done", "a int")
        done_in.close()
        _, people_in = flow.input("people", "id int", key="id")
        people_in.close()
        loop = flow.loop(name="two")
        with loop as inside:
            nodes = inside.variable(edges.select("src"))
            nodes.set(nodes.distinct())
        groups = edges.groupBy("src")
        degrees = groups.agg(F.count("*").alias("degree"))
        history = spark.createDataFrame([], "a int, at date, change int")
        yield flow, edges_in, {
            flow: "Dataflow[edges (src bigint, <b> string) at 0; done (a int) closed; "
                  "people (id int) closed; 0 steps]",
            edges: "DiffFrame[src bigint, <b> string; time bigint]",
            degrees: "DiffFrame[src bigint, degree bigint; time bigint]",
            nodes: "DiffFrame[src bigint; time bigint]",
            DiffFrame(history, "at", "change"): "DiffFrame[a int; at date]",
            edges_in: "InputSession('edges', at 0)",
            done_in: "InputSession('done', closed)",
            people_in: "KeyedSession('people', closed)",
            degrees.keep().probe(): "Probe(at 0)",
            groups: "GroupedDiff[by src; DiffFrame[src bigint, <b> string; time bigint]]",
            groups.cogroup(groups):
                "CogroupedDiff[by src; DiffFrame[src bigint, <b> string; time bigint]]",
            edges.na: "NaMethods[DiffFrame[src bigint, <b> string; time bigint]]",
            edges.select("src").keep().hold(): "Hold(0)",
            loop: "Loop('two', 1 variable)",
            Loop(): "Loop(None, 0 variables)",
            Antichain([3]): "Antichain([3])",
        }


def test_every_public_class_has_one(objects):
    classes = {type(thing) for thing in objects[2]} | {Report, IterationReport}
    # Other tests cover these classes.
    classes |= {
        Explanation, MaterializedView, Plan, Plot, Progress, ProductSession, Reason, Refreshed,
        RunningStep, StateReader, UnityCredentials,
    }
    public = {
        value for name in pyspark_diff.__all__
        if isinstance(value := getattr(pyspark_diff, name), type)
        and not issubclass(value, Exception)
    }
    assert public <= classes and NaMethods in classes
    assert {Dataflow, GroupedDiff, Hold, InputSession, Probe} <= public
    for cls in classes:
        assert cls.__repr__ is not object.__repr__, cls


def test_looking_runs_nothing_and_changes_nothing(spark, objects, monkeypatch):
    flow, session, wanted = objects

    def fail(*_, **__):
        raise AssertionError("a job")

    def look():
        return [repr(thing) for thing in wanted]

    shown = [thing for thing in (*wanted, flow.explain(), flow.plot())
             if hasattr(thing, "_repr_html_")]
    assert {Dataflow, DiffFrame, Explanation, Plot} == set(map(type, shown))
    before = flow._state, dict(flow._sinks), dict(flow._outputs.__dict__)
    with monkeypatch.context() as patch:
        for name in ("collect", "toArrow", "toPandas", "count", "show"):
            patch.setattr(type(spark.range(1)), name, fail)
        patch.setattr(SparkRunner, "run", fail)
        assert look() == list(wanted.values())
        assert all(thing._repr_html_() for thing in shown)
        page = flow._repr_html_()
        assert "<td>edges</td>" in page and "&lt;b&gt;" in page and "<b>" not in page
        assert re.findall("<td>(.*?)</td>", list(wanted)[1]._repr_html_()) == [
            "src", "bigint", "&lt;b&gt;", "string", "time", "time, bigint"
        ]
    after = flow._state, dict(flow._sinks), dict(flow._outputs.__dict__)
    assert before == after
    # The program accepts operators after a `repr`.
    list(wanted)[1].distinct().keep()
    session.insert([(1, "a")])
    session.close()
    flow.step()
    assert repr(flow).endswith("1 step]") and repr(session) == "InputSession('edges', closed)"
    assert "Probe(complete)" in look()
    # A `repr` works during a step of another thread, and after close.
    with flow._lock:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
    flow.close()
    assert len(look()) == len(wanted)
    assert repr(flow).endswith("; closed]") and "closed" in flow._repr_html_()
