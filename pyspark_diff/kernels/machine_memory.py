"""The memory of this machine, or of the container on it.

    free_memory() <= all_memory()      in bytes; None if the system reports neither
"""

from __future__ import annotations

#: The folder of a container's own limits.
_GROUP = "/sys/fs/cgroup"


def all_memory() -> int | None:
    """Bytes that all processes here can use together."""
    machine = _figures("/proc/meminfo").get("MemTotal:")
    limit = _figures(f"{_GROUP}/memory.max").get("")
    known = [size for size in (machine and machine << 10, limit) if size is not None]
    return min(known, default=None)


def free_memory() -> int | None:
    """Bytes that are still available."""
    machine = _figures("/proc/meminfo").get("MemAvailable:")
    limit = _figures(f"{_GROUP}/memory.max").get("")
    used = _figures(f"{_GROUP}/memory.current").get("")
    free = None if machine is None else machine << 10
    if limit is None or used is None:
        return free
    # The system reclaims pages of files that are not in use when a process needs memory.
    unused = _figures(f"{_GROUP}/memory.stat").get("inactive_file", 0)
    left = max(0, limit - used + unused)
    return left if free is None else min(free, left)


def _figures(path: str) -> dict[str, int]:
    """The whole numbers in a file of the system, by the names before them."""
    numbers = {}
    try:
        with open(path) as lines:
            for line in lines:
                *name, value = line.removesuffix("kB\n").split()
                if value.isdecimal():
                    numbers[" ".join(name)] = int(value)
    except (OSError, ValueError):
        pass  # this system has no such file
    return numbers
