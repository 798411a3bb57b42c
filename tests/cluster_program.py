"""Run by test_cluster in its own process: two executors, one of which is killed."""

import os
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa

import pyspark_diff
from pyspark_diff import Dataflow

NODES, EDGES = 2_000, 100_000


def executors():
    """Processes of Spark executors below this one."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and b"CoarseGrainedExecutorBackend" in (
                entry / "cmdline"
            ).read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if os.environ["CLUSTER_TEST"].encode() in _environment(pid)]


def _environment(pid):
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def slow(folder):
    """A linear function that tells when it runs, and gives the killer time the first time."""

    def run(frames):
        marker = Path(folder) / "running"
        for frame in frames:
            if not marker.exists():
                marker.touch()
                time.sleep(6)
            yield frame

    return run


def main(folder):
    spark = pyspark_diff.session(
        "cluster",
        master="local-cluster[2,1,1400]",
        conf={
            "spark.executor.memory": "1g",
            "spark.driver.memory": "1g",
            "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
            "spark.executorEnv.CLUSTER_TEST": os.environ["CLUSTER_TEST"],
            "spark.ui.enabled": "false",
        },
    )
    spark.sparkContext.setLogLevel("OFF")
    random = np.random.default_rng(3)
    edges = random.integers(0, NODES, (EDGES, 2))
    expected = Counter(edges[:, 0].tolist())
    with Dataflow(spark, runner="spark", root=folder) as flow:
        root = flow._storage.root
        collection, session = flow.input("edges", "src long, dst long")
        degrees = collection.map_in_pandas(slow(folder), "src long, dst long").select("src").count()
        answer = degrees.select("count").count()
        degrees.arrange_by_self()

        session.insert(table(edges))
        session.advance_to(1)
        session.flush()
        killed = []
        killer = threading.Thread(target=kill_when_running, args=(folder, killed), daemon=True)
        killer.start()
        flow.step()
        assert len(killed) == 1, "no executor was killed while the step ran"
        check(degrees, answer, expected)

        gone = edges[: EDGES // 2]
        session.remove(table(gone))
        session.advance_to(2)
        session.flush()
        flow.step()
        expected.subtract(gone[:, 0].tolist())
        check(degrees, answer, +expected)
    assert not os.path.exists(root), "the state was left behind"
    print("right after the loss of an executor")
    spark.stop()


def table(edges):
    return pa.table({"src": edges[:, 0], "dst": edges[:, 1]})


def check(degrees, answer, expected):
    assert {row[0]: row[1] for row in degrees.at().collect()} == dict(expected)
    found = {row[0]: row[1] for row in answer.at().collect()}
    assert found == dict(Counter(expected.values()))


def kill_when_running(folder, killed):
    """Kill one of the two executors once a task runs."""
    while not (Path(folder) / "running").exists():
        time.sleep(0.05)
    victims = executors()
    if len(victims) == 2:
        os.kill(victims[0], signal.SIGKILL)
        killed.append(victims[0])


if __name__ == "__main__":
    main(sys.argv[1])
