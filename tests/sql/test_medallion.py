"""The benchmark medallion: each of its views is plain Spark's after the load and after an hour."""

import importlib.util
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_diff import Dataflow

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def medallion(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("medallion", FOLDER / "medallion.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_views_of_the_benchmark_are_exact(spark, medallion, tmp_path):
    shop = medallion.Shop(3_000, 130)
    loaded = {
        name: (rows, pa.table({rows.column_names[0]: pa.array([], pa.int64())}))
        for name, rows in shop.tables.items()
    }
    with Dataflow(spark, time_type="timestamp_ntz") as flow:
        medallion.program(flow)
        medallion.feed(flow, loaded, shop.now)
        for _ in range(2):
            medallion.feed(flow, shop.hour(), shop.now)
        frames = medallion.plain_views(spark, shop, str(tmp_path))
        rows = medallion.check(flow, frames)
    assert len(rows) == 15
    assert all(rows.values()), rows
