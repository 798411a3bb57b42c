"""Spark sessions with settings that suit the library.

Results do not depend on these settings: any session of the user works too. So

    a setting has a value   ⟹  its value stays
    a session is running    ⟹  it is returned unchanged

A value may come from the program, the environment, ``spark-submit`` or ``spark-defaults.conf``.
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

from pyspark_diff import thresholds
from pyspark_diff.kernels.machine_memory import all_memory
from pyspark_diff.kernels.memory import share_memory
from pyspark_diff.spark import jvm_context
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
    """Return the running Spark session, unchanged, or start one that suits the library.

    If a session is running, the arguments have no effect: its settings belong to its owner. A
    script under ``spark-submit`` keeps the master and the settings of that command, so one script
    runs on a laptop and on a cluster.

    Parameters
    ----------
    app_name : str, optional
        Name of the application. The default is ``pyspark_diff``.
    master : str, optional
        The master, as in ``SparkSession.builder.master``. The default is ``local[*]``.
    cores, memory, conf
        The arguments `cores`, `memory` and `extra` of `configure`.

    Returns
    -------
    SparkSession

    Raises
    ------
    RuntimeError
        If Spark is older than the oldest supported version.

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
    """Add the settings that suit the library to the builder of a session, and return it.

    The call changes the builder, as its own methods do, but keeps its earlier settings. While a
    session runs, the call sets only `extra`, because ``getOrCreate`` would change that session. For
    a local session it also sets the variable ``PYSPARK_PYTHON`` of this process, unless it has a
    value: Spark reads the Python of its workers there. For a cluster the variable stays unchanged.

    Parameters
    ----------
    builder : SparkSession.Builder
        The builder, before ``getOrCreate``.
    memory : str, optional
        Heap of the driver, such as ``"2g"``. The default on a cluster is Spark's own. In local mode
        the driver does all the work, and the default is a quarter of the machine's memory, from 1
        to 3 GiB. Without effect on a running driver, as under ``spark-submit``.
    cores : int, optional
        Cores of a local session. The default is all cores. Without effect if a setting outside of
        the program names a master.
    extra : mapping, optional
        Further settings of Spark. They override all others.

    Returns
    -------
    SparkSession.Builder

    Raises
    ------
    ValueError
        If `memory` is not a size, `cores` is less than one, or `cores` is set and the builder names
        a master.

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
    present = {**_given_outside(), **builder._options}
    for key, wanted in _wanted(present, cores).items():
        if key not in present:
            builder.config(key, wanted)
    return builder


def _check_memory(memory: str | None) -> None:
    # Spark would fail much later, and report only that the JVM did not start.
    if memory is not None and not re.fullmatch(r"\d+[kmgt]b?", memory.lower()):
        raise ValueError(f"memory is {memory!r}; give a number and a unit, such as '2g' or '800m'")


def _check_cores(cores: int | None, builder: SparkSession.Builder) -> None:
    if cores is None:
        return
    if cores < 1:
        raise ValueError(f"cores is {cores}; give 1 or more, or leave it out to use all cores")
    master = builder._options.get("spark.master")
    if master is not None:
        raise ValueError(
            f"cores is {cores}, and the master is {master!r}; give one of the two, "
            f"such as master='local[{cores}]'"
        )


def _running() -> SparkSession | None:
    """The active or the default session, if its Spark has not been stopped."""
    # A session object outlives its stopped context.
    if not is_remote() and not jvm_context.has_context():
        return None
    try:
        return SparkSession.active()
    except Exception as error:
        condition = getattr(error, "getCondition", lambda: None)()
        if condition == "NO_ACTIVE_OR_DEFAULT_SESSION":
            return None
        raise


def _wanted(given: Mapping[str, str], cores: int | None) -> dict[str, str]:
    """All settings that the library would choose, given the present ones."""
    wanted = {
        # Larger batches, fewer calls: see the constant.
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_BATCH_ROWS),
        # Small steps run in the driver and move rows by toPandas and createDataFrame, which are
        # many times slower without Arrow.
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    remote = given.get("spark.remote") or os.environ.get("SPARK_REMOTE", "")
    if remote.startswith("sc://"):
        # The processes of a server keep their settings; only the session is configured.
        return wanted
    # Spark itself reads the variable MASTER.
    local = "local[*]" if cores is None else f"local[{cores}]"
    master = remote or given.get("spark.master") or os.environ.get("MASTER") or local
    if not remote:
        wanted["spark.master"] = master
    wanted["spark.app.name"] = "pyspark_diff"
    # Spark's progress bar would overwrite the output of the program.
    wanted["spark.ui.showConsoleProgress"] = "false"
    # The connection to workers uses a file instead of the loopback network: a job with two stages
    # in Python takes half to two thirds of the time (measured: 180 to 230 ms instead of 310 to
    # 440). The name of that file has at most 107 bytes. On YARN it would be in the working
    # directory of a container, whose name is often longer. A worker without work ends after a
    # minute and then prints a traceback of a BrokenPipeError, which would disturb the user of a
    # notebook or a terminal.
    if hasattr(socket, "AF_UNIX") and not master.startswith("yarn") and not _watched():
        wanted["spark.python.unix.domain.socket.enabled"] = "true"
    if master.startswith("local"):
        wanted.update(_wanted_locally(master, given))
    return wanted


def _watched() -> bool:
    """Whether the process has a prompt, a notebook or a terminal."""
    asked = hasattr(sys, "ps1") or bool(sys.flags.interactive) or "ipykernel" in sys.modules
    return asked or (sys.stderr is not None and sys.stderr.isatty())


def _wanted_locally(master: str, given: Mapping[str, str]) -> dict[str, str]:
    python = given.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON", sys.executable)
    # Without this the workers run the first python3 of PATH, which may lack numpy and this package.
    os.environ.setdefault("PYSPARK_PYTHON", python)
    return {
        # The same Python for the processes that Spark starts itself.
        "spark.pyspark.python": python,
        "spark.executorEnv.PYSPARK_PYTHON": python,
        # A local session rarely needs the web server, and another session may need its port.
        "spark.ui.enabled": "false",
        # Spark's default of 200 suits a cluster; here each partition is a task, and most would be
        # empty.
        "spark.sql.shuffle.partitions": str(_cores_of(master)),
        # One process is driver and executors at once, and Spark's default of 1 GiB is little for
        # both. Most of the machine's memory stays free for the Python workers and for mapped
        # batches.
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
    # As in Spark: the cores that this process may use, not all cores of the machine.
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _heap_bytes(machine: int) -> int:
    return min(max(machine // 4, _GIB), 3 * _GIB)


def _given_outside() -> dict[str, str]:
    """The settings from outside of the program, which its builder would override.

    Spark merges these only when it starts, too late to read the choices of the user.
    """
    if is_remote_only():
        return {}
    merged = jvm_context.settings_given()
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


#: Bytes of memory per row. A kernel needs about half of that for a row, so half of the memory stays
#: free.
_ROW_BYTES = 200


def driver_rows(spark: SparkSession) -> int:
    """The largest number of update rows for which an operator should run on the driver."""
    limits = thresholds.current
    if is_alone(spark):
        return max(limits.driver_rows_alone_max, _room())
    return limits.driver_rows_alone_max if _is_small(spark) else limits.driver_rows_max


def _is_small(spark: SparkSession) -> bool:
    """Whether the settings of a cluster give it no more cores than the driver. The present
    executors do not decide that, as more may start later."""
    if is_remote():  # the driver runs on another machine than the client
        return False
    cores_max = spark.conf.get("spark.cores.max", "") or ""
    executors, cores = (
        spark.conf.get(f"spark.executor.{name}", "") or "" for name in ("instances", "cores")
    )
    if (spark.conf.get("spark.master") or "").startswith("local-cluster["):
        most = _cores_of(spark.conf.get("spark.master") or "")
    elif cores_max.isdecimal():
        most = int(cores_max)
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
    except Exception:  # a Connect server may hide it
        return False
    return master == "local" or master.startswith("local[")


def _room() -> int:
    """The number of rows that kernels of this machine may have in memory at once."""
    return min((all_memory() or 0) // _ROW_BYTES, 1 << 30)


#: The setting of a Spark session for the number of rows that an operator has in memory at once.
PIECE_ROWS = "spark.pyspark_diff.pieceRows"


def piece_rows(spark: SparkSession) -> int:
    """The number of rows that an operator has in memory at once. The default is 8 million, some
    gigabyte.

    The number applies to each task, and on the driver to all active buckets together. If Spark runs
    in the driver's own process, it is higher if all tasks together have the memory: an operator
    sorts further rows into files first, which takes three times as long.

    Raises
    ------
    ValueError
        If the setting is no positive whole number.
    """
    text = spark.conf.get(PIECE_ROWS, None)
    if text is None:
        return max(1 << 23, _room() // parallelism(spark) if is_alone(spark) else 0)
    text = str(text)
    if not text.isdecimal() or not int(text):
        raise ValueError(
            f"{PIECE_ROWS} is {text!r}, and has to be a whole number of rows, one or more, that an "
            "operator has in memory at once. Set it with spark.conf.set before the dataflow is made"
        )
    return int(text)


def parallelism(spark: SparkSession) -> int:
    """The cluster's default parallelism."""
    if is_remote():
        # Connect has no context; a range has this number of partitions by default.
        return spark.range(1 << 16).select(F.spark_partition_id()).distinct().count()
    return jvm_context.default_parallelism(spark)
