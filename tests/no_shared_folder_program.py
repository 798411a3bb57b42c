"""Run by test_no_shared_folder: a dataflow on two workers that see no folder of the driver.

    python tests/no_shared_folder_program.py FOLDER

A worker has a mount namespace of its own, with an empty file system over the folders of the driver
and of the other worker. The store is in a bucket of a server that speaks S3.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from pathlib import Path

import pyspark
from pyspark.sql import functions as F
from stores import environment

import pyspark_diff
from pyspark_diff import Dataflow
from pyspark_diff.trace import storage
from pyspark_diff.trace.roots import objects_at

HOME = Path(os.environ.get("SPARK_HOME", Path(pyspark.__file__).parent))
ROWS, EDGES = 20_000, 1_000
#: Seconds after which a process of Spark does not come up any more.
WAIT = 300


class Keys:
    """Credentials as a provider of obstore returns them."""

    def __init__(self, name, secret):
        self._answer = {"access_key_id": name, "secret_access_key": secret, "expires_at": None}

    def __call__(self):
        return self._answer


def line_in(log, pattern):
    """The match of a pattern in a log that a process writes."""
    for _ in range(10 * WAIT):
        match = re.search(pattern, log.read_text()) if log.exists() else None
        if match:
            return match[1]
        time.sleep(0.1)
    raise RuntimeError(f"{log} does not say {pattern}: {log.read_text()[-2000:]}")


def start(folder, name, command, hidden=(), **more):
    """A process of Spark; folders that it shall not see are empty for it."""
    log = folder / f"{name}.log"
    if hidden:
        mounts = "; ".join(f"mount -t tmpfs tmpfs {path}" for path in hidden)
        command = ["unshare", "-m", "sh", "-c", f'{mounts}; exec "$@"', "sh", *command]
    process = subprocess.Popen(
        command, stdout=log.open("w"), stderr=subprocess.STDOUT, env={**os.environ, **more})
    return process, log


def program(flow):
    rows = flow.input("rows", "k long, v long")[0]
    names = flow.input("names", "k long, name string", key="k")[0]
    edges = flow.input("edges", "src long, dst long")[0]
    rows.join(names, "k").groupBy("name").agg(F.sum("v").alias("v")).keep("sums")
    rows.select("v").distinct().keep("values")
    pyspark_diff.graphs.connected_components(edges).keep("parts")


def main(folder):
    folder = Path(folder)
    mine, theirs = folder / "driver", [folder / "worker 0", folder / "worker 1"]
    for path in (mine, *theirs):
        path.mkdir(exist_ok=True)
    server = environment()
    spark_class = str(HOME / "bin" / "spark-class")
    master, log = start(folder, "master", [
        spark_class, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0",
        "--webui-port", "0"])
    processes = [master]
    try:
        url = line_in(log, r"(spark://[0-9.]+:[0-9]+)")
        for number, own in enumerate(theirs):
            others = [f"'{path}'" for path in (mine, theirs[1 - number])]
            process, _ = start(folder, f"log of {number}", [
                spark_class, "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1",
                "--cores", "1", "--memory", "1400M", "--webui-port", "0", "--work-dir", str(own),
                url], others, TMPDIR=str(own), SPARK_LOCAL_DIRS=str(own))
            processes.append(process)
        store = f"s3://bucket/{uuid.uuid4().hex}"
        for part, ends in ("load and die", -signal.SIGKILL), ("go on", 0):
            done = subprocess.run(
                [sys.executable, __file__, str(mine), part, url, store, json.dumps(server)])
            assert done.returncode == ends, (part, done.returncode)
    finally:
        for process in reversed(processes):
            process.kill()


def session(mine, url, server):
    spark = pyspark_diff.session("no shared folder", master=url, conf={
        "spark.executor.memory": "1g", "spark.driver.memory": "1g", "spark.ui.enabled": "false",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.sql.shuffle.partitions": "4", "spark.cores.max": "2",
        # Else an executor would look into the folder of another one of the same host.
        "spark.shuffle.readHostLocalDisk": "false",
    })
    spark.sparkContext.setLogLevel("OFF")
    (mine / "proof").write_text("here")
    reports = set(spark.sparkContext.parallelize(range(8), 8).map(
        lambda _, proof=str(mine / "proof"): (os.environ["TMPDIR"], os.path.exists(proof))
    ).collect())
    assert len(reports) == 2 and not any(there for _, there in reports), reports
    pyspark_diff.set_credentials(
        "s3://bucket", Keys(server["AWS_ACCESS_KEY_ID"], server["AWS_SECRET_ACCESS_KEY"]),
        endpoint=server["AWS_ENDPOINT_URL"], region=server["AWS_DEFAULT_REGION"])
    return spark


class Model:
    """The inputs, and the answers from scratch."""

    def __init__(self):
        self.rows = Counter((i % 500, i % 1_000) for i in range(ROWS))
        self.names = {k: f"name {k % 40}" for k in range(450)}
        self.edges = {(i, i + 1) for i in range(EDGES) if i % 50}

    def load(self, flow):
        flow.session("rows").insert(list(self.rows.elements()))
        flow.session("names").upsert(list(self.names.items()))
        flow.session("edges").insert(sorted(self.edges))

    def change(self, step, flow=None):
        """The changes of a step, also to a dataflow."""
        edge = (step * 50 + 7, step * 50 + 8)
        self.names[step] = "new"
        self.rows[step, 5_000 + step] += 3
        self.edges.discard(edge)
        if flow is not None:
            flow.session("names").upsert([(step, "new")])
            flow.session("rows").insert([(step, 5_000 + step)] * 3)
            flow.session("edges").remove([edge])

    def answers(self):
        sums, parts = Counter(), {}
        for (k, v), n in self.rows.items():
            if k in self.names:
                sums[self.names[k]] += v * n
        for src, dst in sorted(self.edges):
            parts[dst] = parts[src] = parts.get(src, src)
        return dict(sums), {v for _, v in self.rows}, parts


def answers(flow):
    return (dict(map(tuple, flow["sums"].at().select("name", "v").collect())),
            {v for v, in flow["values"].at().collect()},
            dict(map(tuple, flow["parts"].at().collect())))


def part_of(mine, part, url, store, server):
    """Load and die in the middle of step 4, or continue from there."""
    spark, model = session(mine, url, server), Model()
    with Dataflow.open(store, program, spark=spark, buckets=4, runner="spark") as flow:
        if part == "load and die":
            model.load(flow)
            flow.advance_to(1)
            assert answers(flow) == model.answers()
        for step in 2, 3:
            model.change(step, flow if part == "load and die" else None)
            if part == "load and die":
                flow.advance_to(step)
                assert answers(flow) == model.answers()
        if part == "load and die":
            left = passing(store)
            assert not left, left
            threading.Timer(1, os.kill, (os.getpid(), signal.SIGKILL)).start()
            model.change(4, flow)
            flow.advance_to(4)
            time.sleep(WAIT)
        before = answers(flow) == model.answers()
        model.change(4, flow if before else None)
        if before:
            flow.advance_to(4)
        assert answers(flow) == model.answers()
        model.change(5, flow)
        flow.advance_to(5)
        assert answers(flow) == model.answers()
        assert flow.verify() == []
        flow.vacuum(older_than=0, dry_run=False)
        assert answers(flow) == model.answers()
    assert not passing(store), passing(store)
    arrows = [path for path in mine.rglob("*.arrow") if "pyspark_diff_cache" not in str(path)]
    assert not arrows, arrows
    spark.stop()
    print("right on machines without a common folder", flush=True)


def passing(store):
    """The files in a store that no commit can name."""
    return [item.name for item in objects_at(store).names("data")
            if storage.certified(item.name) is None]


if __name__ == "__main__":
    if len(sys.argv) == 2:
        main(sys.argv[1])
    else:
        folder, part, url, store, server = sys.argv[1:]
        part_of(Path(folder), part, url, store, json.loads(server))
