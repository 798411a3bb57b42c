"""Run by test_cluster in its own process: two executors, and in two steps one of them is killed."""

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
from pyspark_diff import Dataflow, graphs

NODES, EDGES, CAP = 2_000, 200_000, 45
#: The longest wait in seconds, also on a slow machine.
WAIT = 600


def executor_above(pid):
    """The process of the Spark executor that this worker process belongs to."""
    while pid > 1:
        if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    raise RuntimeError("this does not run in an executor")


def once(folder, name):
    """If armed, the first task that comes here names its executor, and waits for its end.
    """
    marker = Path(folder) / name
    if Path(folder, f"{name}, armed").exists() and not marker.exists():
        scratch = Path(folder) / f"{name}.{os.getpid()}"
        scratch.write_text(str(executor_above(os.getpid())))
        scratch.rename(marker)
        time.sleep(WAIT)


def kill(folder, name, killed):
    """Kill the executor that is named."""
    marker = Path(folder) / name
    while not marker.exists():
        time.sleep(0.05)
    victim = int(marker.read_text())
    os.kill(victim, signal.SIGKILL)
    killed.append(name)


def two_executors(conf=()):
    """A session with two executors."""
    spark = pyspark_diff.session(
        "cluster",
        master="local-cluster[2,1,1400]",
        conf={
            # Less than the workers have, or no executor would ever start.
            "spark.executor.memory": "1g",
            "spark.driver.memory": "1g",
            "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
            "spark.ui.enabled": "false",
            **dict(conf),
        },
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def main(folder):
    spark = two_executors()
    random = np.random.default_rng(3)
    edges = random.integers(0, NODES, (EDGES, 2))
    killed = []

    def mapped(frames):
        for frame in frames:
            once(folder, "while rows are split")
            yield frame

    def capped(count):
        if count:
            once(folder, "while a kernel runs")
        return min(count, CAP)

    def step(session, name):
        session.flush()
        Path(folder, f"{name}, armed").touch()
        killer = threading.Thread(target=kill, args=(folder, name, killed), daemon=True)
        killer.start()
        flow.step()
        killer.join(WAIT)
        assert killed[-1:] == [name], "no executor was killed while the step ran"

    with Dataflow(spark, runner="spark", root=folder) as flow:
        root = flow._storage.root
        edge_rows, session = flow.input("edges", "src long, dst long")
        wide = edge_rows.map_in_pandas(mapped, "src long, dst long")
        degrees = wide.select("src").count().keep()
        answer = degrees.select("count").count().keep()
        few = edge_rows.select("dst").where("dst < 1000000").threshold(capped).keep()

        session.insert(table(edges))
        session.advance_to(1)
        step(session, "while rows are split")
        check(degrees, answer, few, edges)
        session.remove(table(edges[: EDGES // 2]))
        session.advance_to(2)
        step(session, "while a kernel runs")
        check(degrees, answer, few, edges[EDGES // 2:])
        left = [path.name for path in Path(root).rglob("*.tmp")]
        assert len(left) <= 2, f"more scratch files than killed tasks: {left}"
    assert not os.path.exists(root), "the state was left behind"
    loop(spark, folder, edges[:400])
    print("right after the loss of two executors")
    spark.stop()


def loop(spark, folder, edges):
    """A loop whose every iteration runs on the executors."""
    with Dataflow(spark, runner="spark", root=folder) as flow:
        edge_rows, session = flow.input("edges", "src long, dst long")
        roots, roots_in = flow.input("roots", "node long")
        levels = graphs.bfs(edge_rows, roots).keep()
        roots_in.insert([(int(edges[0, 0]),)])
        roots_in.close()
        for change, left in ((session.insert, edges), (session.remove, edges[100:])):
            change(table(edges if left is edges else edges[:100]))
            session.advance_to(session.time() + 1)
            session.flush()
            flow.step()
            assert {tuple(row) for row in levels.at().collect()} == distances(left, edges[0, 0])


def distances(edges, root):
    known, near, distance = {int(root): 0}, {int(root)}, 0
    while near:
        distance += 1
        near = {int(b) for a, b in edges if int(a) in near and int(b) not in known}
        known.update(dict.fromkeys(near, distance))
    return set(known.items())


def table(edges):
    return pa.table({"src": edges[:, 0], "dst": edges[:, 1]})


def check(degrees, answer, few, edges):
    sources, targets = Counter(edges[:, 0].tolist()), Counter(edges[:, 1].tolist())
    assert {row[0]: row[1] for row in degrees.at().collect()} == dict(sources)
    assert {row[0]: row[1] for row in answer.at().collect()} == Counter(sources.values())
    counts = Counter(row[0] for row in few.at().collect())
    assert counts == {node: min(n, CAP) for node, n in targets.items()}


if __name__ == "__main__":
    main(sys.argv[1])
