"""`configure` and `session` add settings, and never change a setting of the user."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark import SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

import pyspark_diff
from pyspark_diff.spark import version
from pyspark_diff.spark.session import ARROW_BATCH_ROWS, configure, session

GIB = 2**30

#: The module. In the package, its name is that of its function.
module = importlib.import_module("pyspark_diff.spark.session")


@pytest.fixture
def no_session(monkeypatch, tmp_path):
    """As in a new process: without Spark, and without settings outside the program."""
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    for name in (
        "MASTER",
        "PYSPARK_GATEWAY_PORT",
        "PYSPARK_SUBMIT_ARGS",
        "SPARK_CONNECT_MODE_ENABLED",
        "SPARK_REMOTE",
    ):
        monkeypatch.delenv(name, raising=False)
    # `configure` sets the variable. monkeypatch restores it only if it is set here first.
    monkeypatch.setenv("PYSPARK_PYTHON", "")
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    return monkeypatch


def options(*pairs, **arguments):
    """The settings of a builder with these pairs after `configure`."""
    builder = SparkSession.builder
    for key, value in pairs:
        builder.config(key, value)
    assert configure(builder, **arguments) is builder
    return builder._options


@pytest.mark.parametrize("shell", ["ps1", "ipykernel", "terminal"])
def test_where_somebody_looks_on_no_worker_complains_of_being_let_go(no_session, shell):
    wanted = "spark.python.unix.domain.socket.enabled"
    assert wanted in options()
    if shell == "ps1":
        no_session.setattr(sys, "ps1", ">>> ", raising=False)
    elif shell == "terminal":
        no_session.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: True))
    else:
        no_session.setitem(sys.modules, "ipykernel", module)
    assert wanted not in options()
    assert options((wanted, "true"))[wanted] == "true"


def test_versions_of_spark_are_checked_at_once(spark, monkeypatch, caplog):
    edges = spark.createDataFrame([], "a int, time int, diff int")
    calls = (
        session, lambda: pyspark_diff.Dataflow(spark), lambda: pyspark_diff.DiffFrame(edges)
    )

    def meet(number):
        monkeypatch.setattr(version.pyspark, "__version__", number)
        version._checked.clear()
        version.check.cache_clear()

    with monkeypatch.context() as old:
        old.delattr(type(edges).__mro__[1], "repartitionById")
        old.delattr(type(edges), "repartitionById", raising=False)
        for number in ("3.5.4", "4.0.2"):
            for call in calls:
                meet(number)
                with pytest.raises(
                    RuntimeError,
                    match=f"this is Spark {number}, .* no repartitionById.* 4.1 to 4.3",
                ):
                    call()
    for number, said in (("4.1.0", 0), ("4.3.7", 0), ("17.3.x-vendor", 1), ("4.4.0", 1),
                         ("4.0.0", 1)):  # the client of Databricks 17.3
        meet(number)
        caplog.clear()
        for call in calls:
            result = call()
            if isinstance(result, pyspark_diff.Dataflow):
                result.close()
        assert len(caplog.records) == said
    version._checked.clear()
    asked = []
    monkeypatch.setattr(version, "check", lambda *about: asked.append(about))
    for _ in range(3):
        pyspark_diff.DiffFrame(edges)
    assert len(asked) == 2  # this process, and the session


def test_without_pyspark_the_package_says_what_to_install(tmp_path):
    program = '''
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "pyspark":
            raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")
sys.meta_path.insert(0, Missing())
import pyspark_diff
assert pyspark_diff.SchemaError.__module__ == "pyspark_diff.errors"
assert not hasattr(pyspark_diff, "DefaultSource")
try:
    from pyspark_diff import Dataflow
except ImportError as error:
    print(error)
'''
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert 'pip install "pyspark_diff[spark]"' in ran.stdout, ran.stderr


def test_the_package_shows_its_names_and_not_its_rooms():
    import pyspark_diff.engine.graph  # noqa: F401 - it has been used

    assert dir(pyspark_diff) == sorted([*pyspark_diff.__all__, "__version__"])


def test_local_session_is_completed(no_session):
    got = options(("spark.master", "local[3]"))
    assert got["spark.sql.execution.arrow.maxRecordsPerBatch"] == str(ARROW_BATCH_ROWS)
    assert got["spark.sql.execution.arrow.pyspark.enabled"] == "true"
    assert got["spark.python.unix.domain.socket.enabled"] == "true"
    assert got["spark.ui.showConsoleProgress"] == "false"
    assert got["spark.ui.enabled"] == "false"
    assert got["spark.sql.shuffle.partitions"] == "3"
    assert got["spark.app.name"] == "pyspark_diff"
    assert 1024 <= int(got["spark.driver.memory"].removesuffix("m")) <= 3072
    assert got["spark.pyspark.python"] == sys.executable
    assert got["spark.executorEnv.PYSPARK_PYTHON"] == sys.executable
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert "spark.sql.session.timeZone" not in got


def test_master_is_local_unless_named(no_session):
    assert options()["spark.master"] == "local[*]"
    assert options(cores=2)["spark.master"] == "local[2]"
    assert options(cores=2)["spark.sql.shuffle.partitions"] == "2"
    no_session.setenv("MASTER", "spark://host:7077")
    assert options(cores=2)["spark.master"] == "spark://host:7077"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.app.name", "mine"),
        ("spark.driver.memory", "7g"),
        ("spark.executorEnv.PYSPARK_PYTHON", "/opt/python"),
        ("spark.pyspark.python", "/opt/python"),
        ("spark.python.unix.domain.socket.enabled", "false"),
        ("spark.sql.execution.arrow.maxRecordsPerBatch", "17"),
        ("spark.sql.execution.arrow.pyspark.enabled", "false"),
        ("spark.sql.shuffle.partitions", "99"),
        ("spark.ui.enabled", "true"),
        ("spark.ui.showConsoleProgress", "true"),
    ],
)
@pytest.mark.parametrize("place", ["builder", "file", "arguments"])
def test_what_the_user_set_is_kept(no_session, tmp_path, place, key, value):
    if place == "builder":
        assert options((key, value))[key] == value
        return
    if place == "file":
        Path(tmp_path, "spark-defaults.conf").write_text(f"# mine\n\n  {key}   {value}\n")
    else:
        no_session.setenv("PYSPARK_SUBMIT_ARGS", f"--conf {key}={value} pyspark-shell")
    got = options()
    # The builder omits the key, as Spark reads the same place.
    assert key not in got
    assert "spark.master" in got


def test_arguments_of_submit_are_read(no_session, tmp_path):
    Path(tmp_path, "other.conf").write_text("spark.ui.enabled=true\nspark.app.name: theirs\n")
    no_session.setenv(
        "PYSPARK_SUBMIT_ARGS",
        f"--master local[5] --driver-memory 5g --properties-file {tmp_path / 'other.conf'} "
        "--packages a:b:1 -c spark.sql.shuffle.partitions=8 pyspark-shell",
    )
    got = options()
    for key in (
        "spark.app.name",
        "spark.driver.memory",
        "spark.master",
        "spark.sql.shuffle.partitions",
        "spark.ui.enabled",
    ):
        assert key not in got
    # `configure` reads the arguments, too: the session is still local.
    assert got["spark.pyspark.python"] == sys.executable


def test_python_of_the_user_reaches_the_workers(no_session):
    no_session.setenv("PYSPARK_PYTHON", "/opt/python")
    assert options()["spark.pyspark.python"] == "/opt/python"
    assert os.environ["PYSPARK_PYTHON"] == "/opt/python"


def test_arguments_override_settings(no_session):
    assert options(("spark.driver.memory", "7g"), memory="2g")["spark.driver.memory"] == "2g"
    extra = {"spark.ui.enabled": True, "spark.driver.memory": "4g", "spark.task.cpus": 1}
    got = options(("spark.ui.enabled", "false"), memory="2g", extra=extra)
    assert got["spark.ui.enabled"] == "true"
    assert got["spark.driver.memory"] == "4g"
    assert got["spark.task.cpus"] == "1"
    assert extra == {"spark.ui.enabled": True, "spark.driver.memory": "4g", "spark.task.cpus": 1}


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://host"])
def test_cluster_keeps_its_own(no_session, master):
    got = options(("spark.master", master))
    for key in (
        "spark.driver.memory",
        "spark.executorEnv.PYSPARK_PYTHON",
        "spark.pyspark.python",
        "spark.sql.shuffle.partitions",
        "spark.ui.enabled",
    ):
        assert key not in got
    assert ("spark.python.unix.domain.socket.enabled" in got) == (master != "yarn")
    assert "PYSPARK_PYTHON" not in os.environ


def test_remote_server_keeps_its_own(no_session):
    remote = ("spark.remote", "sc://host")
    assert {key for key, _ in set(options(remote).items()) - {remote}} == {
        "spark.sql.execution.arrow.maxRecordsPerBatch",
        "spark.sql.execution.arrow.pyspark.enabled",
    }


def test_local_server_is_completed(no_session):
    got = options(("spark.remote", "local[2]"))
    assert got["spark.sql.shuffle.partitions"] == "2"
    # Spark refuses a master together with a remote.
    assert "spark.master" not in got


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"memory": "2 gigs"}, "'2 gigs'; give a number and a unit"),
        ({"memory": "2"}, "give a number and a unit"),
        ({"cores": 0}, "cores is 0; give 1 or more"),
        ({"cores": 2}, r"the master is 'local\[4\]'; give one of the two"),
    ],
)
def test_wrong_arguments_are_refused(no_session, arguments, message):
    with pytest.raises(ValueError, match=message):
        options(("spark.master", "local[4]"), **arguments)


@pytest.mark.parametrize(
    ("master", "cores"),
    [("local", 1), ("local[4]", 4), ("local[4,2]", 4), ("local-cluster[3,2,1024]", 6)],
)
def test_cores_of_a_master(master, cores):
    assert module._cores_of(master) == cores


def test_cores_of_all(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 2, 5}, raising=False)
    assert module._cores_of("local[*]") == 3


@pytest.mark.parametrize(
    ("machine", "heap"), [(2 * GIB, GIB), (8 * GIB, 2 * GIB), (24 * GIB, 3 * GIB)]
)
def test_heap_follows_the_machine(machine, heap):
    assert module._heap_bytes(machine) == heap


@pytest.mark.classic_only("a builder without the address of a server finds no session of it")
def test_running_session_is_returned_unchanged(spark):
    before = spark.conf.getAll
    assert session() is spark
    assert session("other", master="local[7]", conf={"spark.sql.shuffle.partitions": 9}) is spark
    assert configure(SparkSession.builder, memory="3g").getOrCreate() is spark
    assert spark.conf.getAll == before


def test_running_session_is_found_from_another_thread(spark, monkeypatch):
    # Another thread knows only the default session, and `getOrCreate` would change it.
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    assert session() is spark


def test_workers_run_this_python(spark):
    def python(batches):
        import sys

        import pandas

        for _ in batches:
            yield pandas.DataFrame({"python": [sys.executable]})

    rows = spark.range(1, numPartitions=1).mapInPandas(python, "python string").collect()
    assert Path(rows[0].python).resolve() == Path(sys.executable).resolve()


SCRIPT = """
import importlib
import json
from pyspark_diff.spark.session import session

spark = session()
names = (
    "spark.app.name",
    "spark.master",
    "spark.sql.execution.arrow.maxRecordsPerBatch",
    "spark.sql.execution.arrow.pyspark.enabled",
    "spark.sql.shuffle.partitions",
)
print(json.dumps({key: spark.conf.get(key) for key in names}))
"""


def test_submitted_script_keeps_what_was_submitted(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ran = subprocess.run(
        [
            str(Path(_find_spark_home(), "bin", "spark-submit")),
            *("--master", "local[1]", "--name", "submitted"),
            *("--conf", "spark.sql.execution.arrow.maxRecordsPerBatch=123"),
            str(script),
        ],
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONPATH": str(Path(pyspark_diff.__file__).parents[1]),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == {
        "spark.app.name": "submitted",
        "spark.master": "local[1]",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "123",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.shuffle.partitions": "1",
    }


def test_import_is_quick_and_imports_nothing_heavy():
    # In its search for data sources, Spark imports each installed package called pyspark_*.
    heavy = "numba", "numpy", "pandas", "pyarrow", "pyspark"
    program = f"import sys, pyspark_diff; print([m for m in {heavy!r} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (result.stdout.strip(), result.stderr) == ("[]", "")


def test_public_names_are_looked_up_when_used():
    assert set(pyspark_diff._HOMES) == set(pyspark_diff.__all__)
    for name in pyspark_diff.__all__:
        assert getattr(pyspark_diff, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nosuch'"):
        pyspark_diff.nosuch
