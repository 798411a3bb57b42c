"""Compilation of all kernels in advance, in parallel: ``python -m pyspark_diff warm_up``.

    after warm_up(), a call with types that a kernel declares compiles nothing
"""

from __future__ import annotations

import logging
import os
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from pkgutil import iter_modules

from pyspark_diff import kernels
from pyspark_diff.kernels.jit import CompiledKernel

#: Kernels that take longest to compile: they are first, so that no core has one left at the end.
_LONGEST = ("ranking.replay_first", "join._meet", "quotients.variances", "xxhash64.fold_bytes")


def warm_up(processes: int | None = None) -> tuple[int, int]:
    """Compile every kernel for the types that it declares; quick if that was done before.

    Parameters
    ----------
    processes : int, optional
        Number of parallel processes; by default the number of cores.

    Returns
    -------
    there : int
        Number of kernels.
    compiled : int
        Number of kernels that were compiled now, or call one that was.
    """
    names = sorted(called(), key=lambda name: name not in _LONGEST)
    with ProcessPoolExecutor(processes or os.cpu_count(), initializer=_begin) as pool:
        compiled = list(pool.map(compile_kernel, names))
    return len(names), sum(map(bool, compiled))


def called() -> dict[str, CompiledKernel]:
    """The kernels that Python calls, by ``module.function``."""
    result = {}
    for module in iter_modules(kernels.__path__):
        for name, kernel in vars(import_module(f"{kernels.__name__}.{module.name}")).items():
            if isinstance(kernel, CompiledKernel) and kernel.declared:
                if kernel.__module__.endswith(f".{module.name}"):
                    result[f"{module.name}.{name}"] = kernel
    return result


def compile_kernel(name: str) -> int:
    """Compile one kernel; returns the number of lists of types that were not stored on disk."""
    module, function = name.split(".")
    kernel: CompiledKernel = getattr(import_module(f"{kernels.__name__}.{module}"), function)
    return kernel.compile_declared()


def _begin() -> None:
    # A user who warms up knows that it takes time.
    logging.getLogger("pyspark_diff").setLevel(logging.ERROR)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process when its parent is gone: otherwise it would wait for ever."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
