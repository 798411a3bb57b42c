"""Faults at chosen places of a step, on the driver and in the Python workers of Spark's tasks.

A place is a call that can fail: of a file, of a kernel, of Spark. The places that a step comes to
are counted across all processes, each in a file of its own that only one of them can make:

    the k-th time that any process comes to the place  ⟺  it makes the file of this number

so for k from 1 to the count of a step without a fault, a fault meets each of them. The library is
unaware of this: the module patches its callers from outside, and a task through its function.
"""

from __future__ import annotations

import errno
import itertools
import os
import signal
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator
from unittest import mock

import pyarrow as pa
from cluster_program import executor_above
from pyspark.sql.classic.dataframe import DataFrame
from pyspark.sql import is_remote

from pyspark_diff.operators.contract import BilinearKernel, Kernel, ReplayKernel
from pyspark_diff.runners import spark as runner
from pyspark_diff.runners import tasks, work
from pyspark_diff.spark import task_jobs

#: Seconds for which a task holds still, unless it is killed.
WAIT = 60.0
#: The places of a step in its tasks, in their order in a task, and on the driver.
IN_TASKS = ("start", "read", "kernel", "open", "write", "rename", "end")
ON_DRIVER = ("make", "open", "write", "rename", "read", "job", "answer")


@dataclass(frozen=True)
class Fault:
    """An act at a place of a step, and the folder that counts the places.

    Parameters
    ----------
    folder : str
        The folder with the counts, which all processes share.
    root : str
        Calls for files outside of this folder do not count.
    place : str
        ``task`` or ``driver``, a space, and one of `IN_TASKS` or `ON_DRIVER`.
    act : str
        One of `ACTS`.
    number : int
        At which of them, from 1 on.
    forever : bool
        At all later ones too.
    """

    folder: str
    root: str
    place: str = ""
    act: str = ""
    number: int = 0
    forever: bool = False

    def reached(self, place: str) -> None:
        """Count that a process came to a place, and act if the fault is due."""
        number = self._claimed(place)
        if place != self.place or number < self.number:
            return
        if number == self.number or self.forever:
            Path(self.folder, f"struck {os.getpid()}").touch()
            ACTS[self.act](self)

    def places(self) -> Counter[str]:
        """How often a step came to each place."""
        counts: Counter[str] = Counter()
        for path in Path(self.folder).glob("* *.number"):
            counts[path.name.rpartition(" ")[0]] += 1
        return counts

    def struck(self) -> bool:
        """Whether the fault happened."""
        return any(Path(self.folder).glob("struck *"))

    def _claimed(self, place: str) -> int:
        for number in itertools.count(1):
            path = os.path.join(self.folder, f"{place} {number}.number")
            try:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL))
                return number
            except FileExistsError:
                pass
        raise AssertionError


# What happens.


def _error(fault: Fault) -> None:
    raise OSError(errno.EIO, "an error that was made on purpose")


def _full(fault: Fault) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def _fill(fault: Fault) -> None:
    """Fill the file system to the last byte, so that the next write fails."""
    with open(filler(fault.root), "ab", buffering=0) as file:
        for size in 1 << 20, 1 << 12, 1:
            try:
                while True:
                    file.write(bytes(size))
            except OSError as full:
                assert full.errno == errno.ENOSPC


def filler(root: str) -> Path:
    """The file that fills the file system of a dataflow's directory."""
    return Path(root).parent / "filler"


def _kill(fault: Fault) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_executor(fault: Fault) -> None:
    _lose_executor(fault)
    _kill(fault)


def _lose_executor(fault: Fault) -> None:
    """Kill the executor; the task continues, but the driver no longer waits for it."""
    os.kill(executor_above(os.getpid()), signal.SIGKILL)


def _wait(fault: Fault) -> None:
    Path(fault.folder, "waiting").touch()
    time.sleep(WAIT)


def _interrupt(fault: Fault) -> None:
    os.kill(os.getpid(), signal.SIGINT)


ACTS: dict[str, Callable[[Fault], None]] = {
    "": lambda fault: None,
    "error": _error,
    "full": _full,
    "fill": _fill,
    "kill": _kill,
    "kill executor": _kill_executor,
    "lose executor": _lose_executor,
    "wait": _wait,
    "interrupt": _interrupt,
}


# The places.

#: The active fault of this process, and whether the process is the driver or a task.
_about: tuple[Fault, str] | None = None


def _reached(what: str, path: object = None) -> None:
    if _about is not None:
        fault, who = _about
        if path is None or str(path).startswith(fault.root):
            fault.reached(f"{who} {what}")


def _before(what: str, call: Callable[..., Any], file: int | None = None) -> Callable[..., Any]:
    """A function that comes to a place before its call; `file` is the position of a path."""

    def run(*args: Any, **options: Any) -> Any:
        _reached(what, None if file is None else args[file])
        return call(*args, **options)

    return run


def _kernels(base: type[Kernel]) -> Iterator[type[Kernel]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _kernels(kind)


@contextmanager
def _patched(who: str) -> Iterator[None]:
    writer = pa.ipc.RecordBatchFileWriter
    patches: list[tuple[Any, str, Callable[..., Any]]] = [
        (pa, "OSFile", _before("open", pa.OSFile, 0)),
        (pa, "memory_map", _before("read", pa.memory_map, 0)),
        (writer, "write", _before("write", writer.write)),
        (os, "replace", _before("rename", os.replace, 0)),
    ]
    if who == "driver":
        frame: Any = DataFrame
        if is_remote():
            from pyspark.sql.connect.dataframe import DataFrame as frame
        patches += [
            (os, "makedirs", _before("make", os.makedirs, 0)),
            (frame, "mapInArrow", _with_fault(frame.mapInArrow)),
            (frame, "collect", _as_job(frame.collect)),
            (frame, "toArrow", _as_job(frame.toArrow)),
            (runner, "run_tasks", _as_job(_tasks_with_fault)),
            (runner, "run_moved", _as_job(_moved_with_fault)),
        ]
    else:
        patches += [
            (tasks, "split", _before("kernel", tasks.split)),
            (work, "merge", _before("kernel", work.merge)),
        ]
        for kind in (*_kernels(ReplayKernel), *_kernels(BilinearKernel)):
            if "__call__" in vars(kind):
                patches.append((kind, "__call__", _before("kernel", kind.__call__)))
    with ExitStack() as stack:
        for holder, name, function in patches:
            stack.enter_context(mock.patch.object(holder, name, function))
        yield


def _as_job(call: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        _reached("job")
        answer = call(*args)
        _reached("answer")
        return answer

    return run


def _with_fault(map_in_arrow: Callable[..., Any]) -> Callable[..., Any]:
    def run(frame: Any, function: Any, *args: Any, **options: Any) -> Any:
        if _about is not None:
            function = _in_task(_about[0], function)
        return map_in_arrow(frame, function, *args, **options)

    return run


def _tasks_with_fault(spark: Any, count: int, do: Callable[..., Any]) -> Any:
    if _about is not None:
        do = _in_task(_about[0], do)
    return task_jobs.run_tasks(spark, count, do)


def _moved_with_fault(spark: Any, makers: Any, buckets: int, do: Callable[..., Any]) -> Any:
    if _about is not None:
        fault = _about[0]
        makers = [(count, _in_task(fault, make)) for count, make in makers]
        do = _in_task(fault, do)
    return task_jobs.run_moved(spark, makers, buckets, do)


def _in_task(fault: Fault, function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        with about(fault, "task"):
            _reached("start")
            yield from function(*args)
            _reached("end")

    return run


@contextmanager
def about(fault: Fault, who: str = "driver") -> Iterator[None]:
    """The fault is about: in this process, and in the tasks of jobs that are planned meanwhile."""
    global _about
    with _patched(who):
        _about = fault, who
        try:
            yield
        finally:
            _about = None
