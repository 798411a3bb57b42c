"""The memory of this machine, or of the container on it.

    free_memory() <= all_memory()      in bytes; None where the system tells neither
"""

from __future__ import annotations

#: Where a container finds its own limits.
_GROUP = "/sys/fs/cgroup"


def all_memory() -> int | None:
    """Bytes that the processes here can have together."""
    machine = _figures("/proc/meminfo").get("MemTotal:")
    limit = _figures(f"{_GROUP}/memory.max").get("")
    known = [size for size in (machine and machine << 10, limit) if size is not None]
    return min(known, default=None)


def free_memory() -> int | None:
    """Bytes that can still be given."""
    machine = _figures("/proc/meminfo").get("MemAvailable:")
    limit = _figures(f"{_GROUP}/memory.max").get("")
    used = _figures(f"{_GROUP}/memory.current").get("")
    free = None if machine is None else machine << 10
    if limit is None or used is None:
        return free
    # Pages of files that nobody has used for long are given up when others are wanted.
    unused = _figures(f"{_GROUP}/memory.stat").get("inactive_file", 0)
    left = max(0, limit - used + unused)
    return left if free is None else min(free, left)


def _figures(path: str) -> dict[str, int]:
    """The whole numbers of a file that the system keeps, by the names that stand before them."""
    found = {}
    try:
        with open(path) as lines:
            for line in lines:
                *name, value = line.removesuffix("kB\n").split()
                if value.isdecimal():
                    found[" ".join(name)] = int(value)
    except (OSError, ValueError):
        pass  # this system keeps no such file
    return found
