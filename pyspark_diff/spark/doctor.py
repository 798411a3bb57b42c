"""The capabilities of a session and a machine, their consequences, and the settings to change."""

from __future__ import annotations

import errno
import fcntl
import importlib
import mmap
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, is_remote

from pyspark_diff.kernels.cache import folders
from pyspark_diff.kernels.machine_memory import all_memory
from pyspark_diff.spark.bridge import bridge_of
from pyspark_diff.spark.session import driver_rows, parallelism
from pyspark_diff.spark.version import METHODS, check_session, missing_in

#: The packages whose versions are reported: those that the library needs, and its extras.
PACKAGES = ("pyspark", "pyarrow", "pandas", "numpy", "numba", "deltalake", "obstore")
#: The packages of an extra: its name, and the consequence of its absence.
EXTRAS = {
    "deltalake": ("delta", "Spark reads and merges Delta tables, in two jobs and more"),
    "obstore": ("remote", "stores in s3://, gs:// and az:// are refused"),
}


class Finding(NamedTuple):
    """One capability.

    Parameters
    ----------
    subject : str
    state : str
        The value on this machine or in this session.
    consequence : str
        The effect on programs; empty if there is none.
    remedy : str
        The setting or the command that changes it; empty if nothing needs a change.
    """

    subject: str
    state: str
    consequence: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Findings:
    """The findings of `doctor`. Print them, or read ``findings``.

    Parameters
    ----------
    findings : tuple of Finding
    """

    findings: tuple[Finding, ...]

    @property
    def advice(self) -> tuple[Finding, ...]:
        """The findings that have a remedy."""
        return tuple(finding for finding in self.findings if finding.remedy)

    def __str__(self) -> str:
        width = max(len(finding.subject) for finding in self.findings)
        lines = []
        for finding in self.findings:
            lines.append(f"{finding.subject:{width}}  {finding.state}")
            indent = " " * (width + 2)
            lines += [f"{indent}- {finding.consequence}"] if finding.consequence else []
            lines += [f"{indent}- {finding.remedy}"] if finding.remedy else []
        return "\n".join(lines)

    __repr__ = __str__


def doctor(
    spark: SparkSession, *, root: str | os.PathLike[str] | None = None
) -> Findings:
    """Report the capabilities of a session, of this machine, and of the folder for a state.

    No job runs. A small file is written into the folder and removed.

    Parameters
    ----------
    spark : SparkSession
        A classic session, or one of Spark Connect.
    root : path, optional
        The folder of a state, as for ``Dataflow(root=...)``. By default the temporary folder.

    Returns
    -------
    Findings
        The state of each capability, its consequence, and the setting or command that changes it.

    Raises
    ------
    RuntimeError
        If the session lacks a capability that each program needs.

    Examples
    --------
    >>> from pyspark_diff import doctor
    >>> findings = doctor(spark)
    >>> [finding.state for finding in findings.findings if finding.subject == "session"]
    ['classic']
    """
    check_session(spark)
    folder = Path(tempfile.gettempdir() if root is None else root)
    return Findings((
        *_of_python(), *_of_packages(), *_of_session(spark), *_of_machine(spark),
        *_of_folder(folder),
    ))


def _of_python() -> Iterator[Finding]:
    yield Finding("Python", f"{platform.python_version()} at {sys.executable}")
    worker = os.environ.get("PYSPARK_PYTHON", "")
    if worker and os.path.realpath(worker) != os.path.realpath(sys.executable):
        yield Finding(
            "PYSPARK_PYTHON", worker, "tasks run another Python than this process",
            "set PYSPARK_PYTHON to the Python of this process before the session starts",
        )


def _of_packages() -> Iterator[Finding]:
    for name in PACKAGES:
        try:
            yield Finding(name, str(importlib.import_module(name).__version__))
        except ImportError:
            if name in EXTRAS:
                extra, consequence = EXTRAS[name]
                yield Finding(
                    name, "not installed", consequence, f'pip install "pyspark_diff[{extra}]"'
                )
            else:
                yield Finding(name, "not installed", "no program runs", f"pip install {name}")


def _of_session(spark: SparkSession) -> Iterator[Finding]:
    remote = is_remote()
    yield Finding("Spark", spark.version)
    yield Finding(
        "session", "Spark Connect" if remote else "classic",
        "there is no JVM here: flow.query, the bridge and tasks without a plan are missing"
        if remote else "",
    )
    missing = missing_in(spark)
    yield Finding("methods", f"{', '.join(set(METHODS) - set(missing))}")
    if not remote:
        bridge = bridge_of(spark)
        yield Finding(
            "Scala bridge", "missing" if bridge is None else "loaded",
            "progress counts no tasks" if bridge is None else "",
            "ci/build_bridge, or install a wheel" if bridge is None else "",
        )
    yield _of_cache(spark)
    yield Finding("time zone", _setting(spark, "spark.sql.session.timeZone"))
    ansi = _setting(spark, "spark.sql.ansi.enabled")
    yield Finding(
        "ANSI mode", ansi,
        "" if ansi == "true" else "checked arithmetic is evaluated by Spark, 15 ms in each step",
    )
    compiled = _setting(spark, "spark.pyspark_diff.compileExpressions", "true")
    if compiled == "false":
        yield Finding(
            "compiled expressions", "off", "Spark evaluates each expression, 15 ms in each step",
            "spark.conf.unset('spark.pyspark_diff.compileExpressions')",
        )


def _of_cache(spark: SparkSession) -> Finding:
    try:
        spark.range(1).persist().unpersist()
    except PySparkException as error:
        return Finding(
            "cache", "refused", f"frames that are read twice are evaluated twice ({error})"
        )
    return Finding("cache", "available")


def _setting(spark: SparkSession, name: str, default: str = "unknown") -> str:
    try:
        return str(spark.conf.get(name, default)).lower()
    except PySparkException:
        return default


def _of_machine(spark: SparkSession) -> Iterator[Finding]:
    memory = all_memory()
    yield Finding("memory", "unknown" if memory is None else f"{memory / 2**30:,.1f} GiB")
    yield Finding("buckets", f"{parallelism(spark)} by default")
    yield Finding("rows on the driver", f"up to {driver_rows(spark):,} in one operator")
    from pyspark_diff.kernels import warm_up

    places = [Path(place) for place in folders(warm_up.__file__)]
    compiled = sum(len(list(place.glob("*.nbi"))) for place in places if place.is_dir())
    yield Finding(
        "compiled kernels", f"{compiled:,} in {places[0]}",
        "" if compiled else "the first step waits half a minute for the compiler",
        "" if compiled else "python -m pyspark_diff warm_up",
    )


def _of_volume(subject: str, lacks: list[str]) -> Finding:
    """The finding on a folder of a volume, in which the Files API of the workspace commits."""
    try:
        importlib.import_module("databricks.sdk")
    except ImportError:
        return Finding(
            subject, ", ".join(lacks),
            "a dataflow may use it as root, and a store cannot commit there",
            'pip install "pyspark_diff[databricks]"',
        )
    return Finding(
        subject, ", ".join(lacks), "a store commits there by the Files API, and copies files"
    )


def _of_folder(folder: Path) -> Iterator[Finding]:
    subject = f"folder {folder}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix="pyspark_diff-doctor-", dir=folder)
    except OSError as error:
        yield Finding(
            subject, f"not writable: {os.strerror(error.errno or 0)}", "no state can be kept there",
            "give another folder: Dataflow(root=...)",
        )
        return
    other = f"{name}.moved"
    lacks = []
    try:
        os.write(handle, b"probe")
        for what, probe in (
            ("lock", lambda: fcntl.flock(handle, fcntl.LOCK_EX)),
            ("map", lambda: mmap.mmap(handle, 0, access=mmap.ACCESS_READ).close()),
            ("link", lambda: os.link(name, other)),
            ("rename", lambda: os.replace(name, other)),
        ):
            try:
                probe()
            except OSError as error:
                lacks.append(f"no {what} ({errno.errorcode.get(error.errno or 0, error)})")
    finally:
        os.close(handle)
        for path in (name, other):
            Path(path).unlink(missing_ok=True)
    if not lacks:
        yield Finding(subject, "lock, map, link and rename are available")
        return
    if str(folder).startswith("/Volumes/") and sys.platform != "darwin":
        yield _of_volume(subject, lacks)
        return
    yield Finding(
        subject, ", ".join(lacks),
        "files are copied, and a killed process leaves its folder; a store needs links",
        "keep a store in s3://, gs:// or az://, or in another folder",
    )
