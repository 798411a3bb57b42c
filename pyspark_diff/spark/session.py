"""Spark sessions with the settings that the library runs best with.

Nothing here is needed for a right answer: any session that a user brings works too. So

    a setting that anyone gave  ⟹  it is kept
    a session that runs         ⟹  it is returned as it is

where anyone is the program, the environment, ``spark-submit`` or ``spark-defaults.conf``.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import is_remote
from pyspark.util import is_remote_only

from pyspark_diff.kernels.machine_memory import all_memory
from pyspark_diff.kernels.memory import share_memory
from pyspark_diff.spark import jvm
from pyspark_diff.spark.version import check_installed, check_session

#: Rows in one Arrow batch between Spark and Python. Spark's own 10,000 means a call into the
#: kernels for every 10,000 rows; a far larger batch no longer fits the caches of a processor.
ARROW_BATCH_ROWS = 65_536

_GIB = 2**30


def session(
    app_name: str | None = None,
    *,
    master: str | None = None,
    cores: int | None = None,
    memory: str | None = None,
    conf: Mapping[str, str | int | float | bool] | None = None,
) -> SparkSession:
    """Return the Spark session that runs, unchanged, or start one that suits the library.

    With a session running no argument has an effect: how it is set is its owner's business. A
    script that ``spark-submit`` launches keeps the master and the settings given there, so one
    script runs on a laptop and on a cluster.

    Parameters
    ----------
    app_name : str, optional
        Name of the application; ``pyspark_diff`` if nothing else names it.
    master : str, optional
        Where to run, as in ``SparkSession.builder.master``; ``local[*]`` if nothing else says.
    cores, memory, conf
        As `cores`, `memory` and `extra` of `configure`.

    Returns
    -------
    SparkSession

    Raises
    ------
    RuntimeError
        If Spark is older than what the library runs on.

    Examples
    --------
    >>> spark = session("degrees", master="local[2]")
    >>> session() is spark
    True
    """
    check_installed()
    running = _running()
    if running is not None:
        check_session(running)
        return running
    builder = SparkSession.builder
    if app_name is not None:
        builder.appName(app_name)
    if master is not None:
        builder.master(master)
    return configure(builder, memory=memory, cores=cores, extra=conf).getOrCreate()


def configure(
    builder: SparkSession.Builder,
    *,
    memory: str | None = None,
    cores: int | None = None,
    extra: Mapping[str, str | int | float | bool] | None = None,
) -> SparkSession.Builder:
    """Complete the builder of a session with what the library wants, and return it.

    The builder is changed, as by its own methods, but what it was given before stays. While a
    session runs only `extra` is set, because ``getOrCreate`` would change that session. For a
    local session the variable ``PYSPARK_PYTHON`` of this process is set if it is not, since that
    is where Spark looks for the Python of its workers; a cluster's is left to the cluster.

    Parameters
    ----------
    builder : SparkSession.Builder
        The builder, before ``getOrCreate``.
    memory : str, optional
        Heap of the driver, such as ``"2g"``. By default Spark's own on a cluster, and in local
        mode, where the driver does all the work, a quarter of the machine's memory, from 1 to
        3 GiB. Without effect on a driver that runs already, as under ``spark-submit``.
    cores : int, optional
        Cores of a local session, by default all. Without effect if a master is named outside the
        program.
    extra : mapping, optional
        Further settings of Spark. They win over all others.

    Returns
    -------
    SparkSession.Builder

    Raises
    ------
    ValueError
        If `memory` is not a size, `cores` is less than one, or `cores` is given to a builder that
        names a master.

    Examples
    --------
    >>> from pyspark.sql import SparkSession
    >>> builder = SparkSession.builder.appName("degrees").master("local[2]")
    >>> configure(builder, memory="2g") is builder
    True
    """
    _check_memory(memory)
    _check_cores(cores, builder)
    running = _running() is not None
    if memory is not None and not running:
        builder.config("spark.driver.memory", memory)
    for key, value in (extra or {}).items():
        builder.config(key, value)
    if running:
        return builder
    share_memory()
    given = {**_given_outside(), **builder._options}
    for key, wanted in _wanted(given, cores).items():
        if key not in given:
            builder.config(key, wanted)
    return builder


def _check_memory(memory: str | None) -> None:
    # Spark would fail much later, and only say that the JVM did not start.
    if memory is not None and not re.fullmatch(r"\d+[kmgt]b?", memory.lower()):
        raise ValueError(f"memory is {memory!r}; give a number and a unit, such as '2g' or '800m'")


def _check_cores(cores: int | None, builder: SparkSession.Builder) -> None:
    if cores is None:
        return
    if cores < 1:
        raise ValueError(f"cores is {cores}; give 1 or more, or leave it out to use them all")
    master = builder._options.get("spark.master")
    if master is not None:
        raise ValueError(
            f"cores is {cores}, and the master is {master!r}; give one of the two, "
            f"such as master='local[{cores}]'"
        )


def _running() -> SparkSession | None:
    """The active or the default session, if its Spark has not been stopped."""
    # A session outlives a context that was stopped under it.
    if not is_remote() and not jvm.has_context():
        return None
    try:
        return SparkSession.active()
    except Exception as error:
        condition = getattr(error, "getCondition", lambda: None)()
        if condition == "NO_ACTIVE_OR_DEFAULT_SESSION":
            return None
        raise


def _wanted(given: Mapping[str, str], cores: int | None) -> dict[str, str]:
    """All settings that the library would choose, given those that are chosen already."""
    wanted = {
        # Larger batches, fewer calls: see the constant.
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_BATCH_ROWS),
        # Small steps run in the driver and move rows by toPandas and createDataFrame, which are
        # many times slower without Arrow.
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    remote = given.get("spark.remote") or os.environ.get("SPARK_REMOTE", "")
    if remote.startswith("sc://"):
        # A server's processes are not ours to set; only the session is.
        return wanted
    # MASTER is the variable that Spark reads itself.
    local = "local[*]" if cores is None else f"local[{cores}]"
    master = remote or given.get("spark.master") or os.environ.get("MASTER") or local
    if not remote:
        wanted["spark.master"] = master
    wanted["spark.app.name"] = "pyspark_diff"
    # The bar of Spark is drawn over whatever the program prints.
    wanted["spark.ui.showConsoleProgress"] = "false"
    # Workers are reached over a file instead of the loopback network: measured, a job with two
    # stages in Python takes half to two thirds of the time (180 to 230 ms for 310 to 440). The name
    # of that file has at most 107 bytes, and the working directory of a YARN container, where it
    # would be, is often longer. A worker that is let go, after a minute without work say, prints a
    # traceback of a BrokenPipeError then, which nobody wants to see below a cell of a notebook or
    # on a terminal.
    if hasattr(socket, "AF_UNIX") and not master.startswith("yarn") and not _watched():
        wanted["spark.python.unix.domain.socket.enabled"] = "true"
    if master.startswith("local"):
        wanted.update(_wanted_locally(master, given))
    return wanted


def _watched() -> bool:
    """Whether somebody sits before a prompt, a notebook or a terminal."""
    asked = hasattr(sys, "ps1") or bool(sys.flags.interactive) or "ipykernel" in sys.modules
    return asked or (sys.stderr is not None and sys.stderr.isatty())


def _wanted_locally(master: str, given: Mapping[str, str]) -> dict[str, str]:
    python = given.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON", sys.executable)
    # Without it the workers run the first python3 of PATH, which may lack numpy and this package.
    os.environ.setdefault("PYSPARK_PYTHON", python)
    return {
        # The same, for the processes that Spark starts itself.
        "spark.pyspark.python": python,
        "spark.executorEnv.PYSPARK_PYTHON": python,
        # A web server that nobody looks at, on a port that another session may want.
        "spark.ui.enabled": "false",
        # Spark's own 200 are made for a cluster; here each is a task, and most would be empty.
        "spark.sql.shuffle.partitions": str(_cores_of(master)),
        # One process is driver and executors at once, and Spark's own 1 GiB is little for both. The
        # greater part of the machine stays free for the Python workers and for mapped batches.
        "spark.driver.memory": f"{_heap_bytes(all_memory() or 4 * _GIB) >> 20}m",
    }


def _cores_of(master: str) -> int:
    """Tasks that run at once: ``local[2]`` has two, ``local-cluster[3,2,1024]`` six."""
    cluster = re.match(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)", master)
    if cluster:
        return int(cluster[1]) * int(cluster[2])
    threads = re.match(r"local\[\s*(\d+|\*)", master)
    if threads is None:
        return 1
    if threads[1] != "*":
        return int(threads[1])
    # As Spark counts: the cores that this process may use, not those that the machine has.
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _heap_bytes(machine: int) -> int:
    return min(max(machine // 4, _GIB), 3 * _GIB)


def _given_outside() -> dict[str, str]:
    """What was set outside the program, and what its builder would therefore override.

    Spark merges these only when it starts, too late to ask what the user chose.
    """
    if is_remote_only():
        return {}
    merged = jvm.settings_given()
    if merged is not None:
        return merged
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    options.add_argument("--conf", "-c", action="append", default=[])
    options.add_argument("--driver-memory", dest="spark.driver.memory")
    options.add_argument("--master", dest="spark.master")
    options.add_argument("--name", dest="spark.app.name")
    options.add_argument("--remote", dest="spark.remote")
    options.add_argument("--properties-file")
    arguments = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    named = vars(options.parse_known_args(arguments)[0])
    settings = _properties(named.pop("properties_file"))
    settings.update(setting.partition("=")[::2] for setting in named.pop("conf"))
    settings.update({key: value for key, value in named.items() if value is not None})
    return settings


def _properties(name: str | None) -> dict[str, str]:
    """Read a file of Spark properties, ``spark-defaults.conf`` by default."""
    if name is None:
        from pyspark.find_spark_home import _find_spark_home

        folder = os.environ.get("SPARK_CONF_DIR") or os.path.join(_find_spark_home(), "conf")
        name = os.path.join(folder, "spark-defaults.conf")
    try:
        lines = Path(name).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    stripped = (line.strip() for line in lines)
    pairs = (re.split(r"\s*[=:\s]\s*", line, maxsplit=1) for line in stripped if line)
    return {pair[0]: pair[-1] for pair in pairs if not pair[0].startswith(("#", "!"))}


#: Up to this many update rows an operator runs on the driver unless told otherwise. Measured on two
#: cores, three counts over 650,000 updates in all: 0.9 s on the driver, 5 s as Spark jobs. What
#: speaks against more is the driver's memory, and clusters with many cores.
DRIVER_ROWS = 2_000_000
#: The same where the cluster has no more cores than the driver: ten million edges are loaded in a
#: third of the time that two executors of one core take. And where Spark runs in the driver's own
#: process: its cores and memory are all there is, and what is too much to hold is worked through in
#: pieces either way; there it is more where memory has room.
ALONE_ROWS = 20_000_000
#: A row takes about half as many bytes while a kernel works on it: half of the memory is left.
_ROW_BYTES = 200


def driver_rows(spark: SparkSession) -> int:
    """Up to how many update rows an operator is better run on the driver."""
    if is_alone(spark):
        return max(ALONE_ROWS, _room())
    return ALONE_ROWS if _is_small(spark) else DRIVER_ROWS


def _is_small(spark: SparkSession) -> bool:
    """Whether a cluster is told to have no more cores than the driver: those that it has by now
    would not tell, as executors may come later."""
    if is_remote():  # the driver's cores are those of another machine than the client's
        return False
    told = spark.conf.get("spark.cores.max", "") or ""
    executors, cores = (
        spark.conf.get(f"spark.executor.{name}", "") or "" for name in ("instances", "cores")
    )
    if (spark.conf.get("spark.master") or "").startswith("local-cluster["):
        most = _cores_of(spark.conf.get("spark.master") or "")
    elif told.isdecimal():
        most = int(told)
    elif executors.isdecimal() and cores.isdecimal():
        most = int(executors) * int(cores)
    else:
        return False
    grows = (spark.conf.get("spark.dynamicAllocation.enabled", "") or "").lower() == "true"
    return not grows and most <= (os.cpu_count() or 1)


def is_alone(spark: SparkSession) -> bool:
    """Whether Spark runs in the driver's own process."""
    try:
        master = spark.conf.get("spark.master") or ""
    except Exception:  # Connect servers need not tell
        return False
    return master == "local" or master.startswith("local[")


def _room() -> int:
    """How many rows kernels of this machine may hold at once."""
    return min((all_memory() or 0) // _ROW_BYTES, 1 << 30)


#: The setting of a Spark session that says how many rows an operator holds at once.
PIECE_ROWS = "spark.pyspark_diff.pieceRows"


def piece_rows(spark: SparkSession) -> int:
    """So many rows an operator holds at once, if the session is silent 8 million, some gigabyte.

    In each task that is so, and on the driver of all buckets together that are at work at once.
    Where Spark runs in the driver's own process it is more if its tasks together have room for it:
    what does not fit is sorted into files first, which takes three times as long.

    Raises
    ------
    ValueError
        If the session says something that is not a positive number.
    """
    told = spark.conf.get(PIECE_ROWS, None)
    if told is None:
        return max(1 << 23, _room() // parallelism(spark) if is_alone(spark) else 0)
    told = str(told)
    if not told.isdecimal() or not int(told):
        raise ValueError(
            f"{PIECE_ROWS} is {told!r}, and has to be a whole number of rows, one or more: so many "
            "an operator holds at once. Set it with spark.conf.set before the dataflow is made"
        )
    return int(told)


def parallelism(spark: SparkSession) -> int:
    """The cluster's default parallelism."""
    if is_remote():
        # Connect has no context to ask; a range without a number of partitions gets that many.
        return spark.range(1 << 16).select(F.spark_partition_id()).distinct().count()
    return jvm.default_parallelism(spark)
