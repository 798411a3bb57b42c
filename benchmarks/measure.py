"""Measurements: seconds, and the memory of all processes of a Spark application."""

from __future__ import annotations

import json
import os
import platform
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable


@dataclass
class Memory:
    """Peak resident memory, by kind of process, sampled in the background.

    Processes may share pages, mostly of mapped batch files. Each kind of process counts its shared
    pages, and the total counts them once.
    """

    interval: float = 0.5
    peaks: dict[str, int] = field(default_factory=dict)

    def __enter__(self) -> "Memory":
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self.interval):
            own: dict[str, int] = {}
            shared: dict[str, int] = {}
            for pid in family(os.getpid()):
                kind = _kind(pid)
                resident, common = _resident(pid)
                own[kind] = own.get(kind, 0) + resident - common
                shared[kind] = max(shared.get(kind, 0), common)
            sizes = {kind: own[kind] + shared[kind] for kind in own}
            sizes["total"] = sum(own.values()) + max(shared.values(), default=0)
            for kind, size in sizes.items():
                self.peaks[kind] = max(self.peaks.get(kind, 0), size)

    def gigabytes(self) -> dict[str, float]:
        """Peaks in GiB."""
        return {kind: round(size / 2**30, 2) for kind, size in sorted(self.peaks.items())}


def cpu_seconds(root: int) -> float:
    """Return the processor time of a process and its running and ended descendants.

    Other programs change the processor time far less than the wall time.
    """
    ticks = 0
    for pid in family(root):
        try:
            # The program name in parentheses may have spaces.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # the process ended
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def family(root: int) -> list[int]:
    """Return the ids of a process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            children.setdefault(int(stat.rsplit(")", 1)[1].split()[1]), []).append(int(entry))
    pids, stack = [], [root]
    while stack:
        pid = stack.pop()
        pids.append(pid)
        stack.extend(children.get(pid, []))
    return pids


def _kind(pid: int) -> str:
    if pid == os.getpid():
        return "driver"
    try:
        return "jvm" if b"java" in Path(f"/proc/{pid}/cmdline").read_bytes()[:200] else "workers"
    except OSError:
        return "workers"


def _resident(pid: int) -> tuple[int, int]:
    """Return the resident bytes of a process, and how many it may share with others."""
    try:
        _, resident, common, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
    except OSError:
        return 0, 0
    page = os.sysconf("SC_PAGE_SIZE")
    return resident * page, common * page


def seconds(action: Callable[[], Any]) -> tuple[float, Any]:
    """Return the wall time of an action, and its result."""
    started = time.perf_counter()
    result = action()
    return time.perf_counter() - started, result


def machine() -> dict[str, Any]:
    """Return the processor, memory and versions of this machine."""
    import pyspark

    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "processor": model,
        "memory_gib": round(pages / 2**30, 1),
        "python": platform.python_version(),
        "pyspark": pyspark.__version__,
    }


def save(path: str, results: dict[str, Any]) -> None:
    """Write results and the machine as JSON."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps({"machine": machine(), **results}, indent=1) + "\n")
    print(f"written: {path}")


def table(rows: list[dict[str, Any]]) -> str:
    """Format rows as a Markdown table."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(str(row.get(name, "")) for name in names) + " |" for row in rows]
    return "\n".join(lines)


def ratio(what: str, value: float | None, base: float | None) -> dict[str, Any]:
    """Return a line of the table of ratios."""
    measured = None if value is None or not base else float(f"{value / base:.4g}")
    return {"ratio": what, "measured": "not measured" if measured is None else measured}
