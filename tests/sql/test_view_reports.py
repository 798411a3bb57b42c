"""The reports of a refresh, without a Spark of their own."""

from __future__ import annotations

import logging
import sys
from types import ModuleType, SimpleNamespace

import pytest

from pyspark_diff.views.reports import Refreshed, ViewReport, append_log, emit_metrics

REPORTS = (
    ViewReport("gold.a", 3, 2, 1.5, 0.25, ()),
    ViewReport("gold.b", 4, 0, 1.5, 0.0, ("gold.b: first load",)),
)


class Meter:
    """The part of a meter of OpenTelemetry that the library calls; it keeps the values."""

    def __init__(self):
        self.values = {}

    def _instrument(self, name, unit=""):
        def record(value, attributes):
            self.values[name, unit, attributes["view"]] = value

        return SimpleNamespace(add=record, record=record)

    create_counter = create_histogram = _instrument


@pytest.fixture
def opentelemetry(monkeypatch):
    """A stand-in for the API of OpenTelemetry, with a list of the names of its meters."""
    api, metrics = ModuleType("opentelemetry"), ModuleType("opentelemetry.metrics")
    api.metrics, metrics.meters = metrics, {}
    metrics.get_meter = lambda name: metrics.meters.setdefault(name, Meter())
    monkeypatch.setitem(sys.modules, "opentelemetry", api)
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", metrics)
    return metrics


def test_metrics(opentelemetry):
    emit_metrics(REPORTS)
    (meter,) = opentelemetry.meters.values()
    assert list(opentelemetry.meters) == ["pyspark_diff"]
    prefix = "pyspark_diff.view."
    emitted = {
        (name.removeprefix(prefix), unit): value
        for (name, unit, view), value in meter.values.items() if view == "gold.b"
    }
    assert emitted == {
        ("refreshes", ""): 1, ("rows_in", ""): 4, ("rows_out", ""): 0, ("recomputed", ""): 1,
        ("refresh.duration", "s"): 1.5, ("write.duration", "s"): 0.0,
    }


def test_no_metrics_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    emit_metrics(REPORTS)


def test_a_failure_after_a_refresh_is_a_warning(opentelemetry, caplog):
    opentelemetry.get_meter = None
    with caplog.at_level(logging.WARNING, "pyspark_diff"):
        emit_metrics(REPORTS)
        append_log(None, "ops.log", None, REPORTS)
    assert "its metrics were not recorded" in caplog.text
    assert "log table ops.log has no row of it" in caplog.text


def test_each_view_has_a_line():
    text = str(Refreshed(True, 5, {"gold.a": 2}, 1.5, (), {}, REPORTS))
    assert text.splitlines()[1:] == [
        "  gold.a: 3 rows in, 2 rows out, 0.2 s to write",
        "  gold.b: 4 rows in, 0 rows out, 0.0 s to write",
    ]
