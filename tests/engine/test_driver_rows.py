"""The results that Spark's tasks send to the driver: descriptions of files, and few rows."""

import pickle

import numpy as np
import pyarrow as pa
import pytest

from pyspark_diff import Dataflow, graphs, thresholds
from pyspark_diff.runners import spark as spark_runner

NODES, EDGES, BUCKETS = 2_000, 60_000, 4
#: The most bytes that describe one bucket: its files and its numbers of rows.
DESCRIPTION = 4096


@pytest.fixture
def came(monkeypatch):
    """The bytes that each job sends to the driver."""
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
    """A loop and a count over a frame, and a second step, with each operator in Spark jobs."""
    random = np.random.default_rng(5)
    edges = pa.table({name: random.integers(0, NODES, EDGES) for name in ("src", "dst")})
    frame = spark.createDataFrame(edges)
    if how == "Parquet":
        frame.write.parquet(f"{tmp_path}/edges")
        frame = spark.read.parquet(f"{tmp_path}/edges")
    with Dataflow(spark, runner="spark", buckets=BUCKETS) as flow:
        graph_edges, edges_in = flow.input("edges", "src long, dst long")
        roots, roots_in = flow.input("roots", "node long")
        distances = graphs.bfs(graph_edges, roots).keep()
        degrees = graph_edges.select("src").count().keep()
        roots_in.insert([(0,)])
        roots_in.close()
        edges_in.insert(frame)
        flow.advance_to(1)
        # Each of the two arrangements in the loop reads the updates once.
        assert flow.last_report.rows_out > EDGES and len(flow.last_report.iterations) > 2
        edges_in.remove(edges.slice(0, EDGES // 2))
        flow.advance_to(2)
        assert flow.last_report.rows_out > EDGES // 2
        most = thresholds.current.inline_output_bytes_max + BUCKETS * DESCRIPTION
        assert came and max(came) <= most, sorted(came)[-5:]
        assert distances.at().count() > NODES // 2 and degrees.at().count() > NODES // 2
