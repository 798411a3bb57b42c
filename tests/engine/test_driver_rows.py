"""What comes to the driver from Spark's tasks: descriptions of files, and no rows but a few."""

import pickle

import numpy as np
import pyarrow as pa
import pytest

from pyspark_diff import Dataflow, graphs, thresholds
from pyspark_diff.runners import spark as spark_runner

NODES, EDGES, BUCKETS = 2_000, 60_000, 4
#: What may be said of one bucket: its files, and how many rows went through.
DESCRIPTION = 4096


@pytest.fixture
def came(monkeypatch):
    """The bytes that came to the driver with each job."""
    sizes = []
    run_job = spark_runner.run_job

    def watched(*arguments):
        answer = run_job(*arguments)
        sizes.append(len(pickle.dumps(answer)))
        return answer

    monkeypatch.setattr(spark_runner, "run_job", watched)
    return sizes


@pytest.mark.parametrize("how", ["by Spark", "Parquet"])
def test_nothing_of_the_size_of_the_data_comes_to_the_driver(spark, tmp_path, came, how):
    """A loop and a count over a frame, and a step after that, each operator as Spark jobs."""
    random = np.random.default_rng(5)
    edges = pa.table({name: random.integers(0, NODES, EDGES) for name in ("src", "dst")})
    frame = spark.createDataFrame(edges)
    if how == "Parquet":
        frame.write.parquet(f"{tmp_path}/edges")
        frame = spark.read.parquet(f"{tmp_path}/edges")
    with Dataflow(spark, runner="spark", buckets=BUCKETS) as flow:
        given, edges_in = flow.input("edges", "src long, dst long")
        roots, roots_in = flow.input("roots", "node long")
        found = graphs.bfs(given, roots).keep()
        degrees = given.select("src").count().keep()
        roots_in.insert([(0,)])
        roots_in.close()
        edges_in.insert(frame)
        flow.advance_to(1)
        # In a loop each arrangement takes updates in once, and there are two in this one.
        assert flow.last_report.rows_out > EDGES and len(flow.last_report.iterations) > 2
        edges_in.remove(edges.slice(0, EDGES // 2))
        flow.advance_to(2)
        assert flow.last_report.rows_out > EDGES // 2
        most = thresholds.current.inline_output_bytes_max + BUCKETS * DESCRIPTION
        assert came and max(came) <= most, sorted(came)[-5:]
        assert found.at().count() > NODES // 2 and degrees.at().count() > NODES // 2
