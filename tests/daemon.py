"""PySpark's own daemon of Python workers, without the collection of garbage after each task.

With numba and pandas loaded that takes longer than most tasks of a test: some 75 ms of processor
time. Python still collects by itself, when enough was made.
"""

from types import SimpleNamespace

from pyspark import daemon

daemon.gc = SimpleNamespace(collect=lambda: 0)

if __name__ == "__main__":
    daemon.manager()
