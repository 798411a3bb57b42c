"""Compilation of all kernels beforehand: ``python -m pyspark_diff.kernels.warm_up``.

A kernel is compiled when it is first called, for the types that it is called with, and kept on
disk. The first program of a fresh installation waits for one after the other; here all cores do
it, which takes half a minute of processor time::

    after warm_up(), a call with types that are told here compiles nothing

Types are written as numba writes them: ``int64[:]`` is an array, with ``-`` behind it one that is
only read (that of a mapped file), with ``!`` one whose values do not lie side by side.
"""

from __future__ import annotations

import os
import re
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from typing import Any

from numba.core import types

#: Kernels that Python calls, and the types of their arguments. Those that they call are compiled
#: with them.
CALLED: dict[str, tuple[str, ...]] = {
    "diff_vectors._add_at": (
        "int64[:]-, int64[:,:]-, float64[:,:]-, int64[:], int64[:,:], float64[:,:]",
    ),
    "diff_vectors._nonzero": (
        "int64[:,:]-, float64[:,:]-, int64[:], bool[:]",
    ),
    "diff_vectors._running": (
        "int64[:,:]-, float64[:,:]-, int64[:], int64[:]-, int64[:,:]-, int64[:,:], int64[:,:], "
        "float64[:,:]",
    ),
    "diff_vectors._sum": (
        "int64[:]-, int64[:], int64[:,:]-, float64[:,:]-, int64[:], int64[:], int64[:,:], "
        "float64[:,:]",
    ),
    "equality._equal_bytes": (
        "uint8[:]-, int32[:]-, int64[:]-, int64[:]-, bool[:]",
        "uint8[:]-, int64[:]-, int64[:]-, int64[:]-, bool[:]",
    ),
    "into_diff._place": (
        "int64[:], int64, int32[:], int64[:]",
    ),
    "join._meet": (
        "int64[:], int64[:], int64[:], int64[:], int64[:], int64[:], int64[:], int64[:], "
        "int64[:], int64[:], int64[:], int64[:], int64[:], int64[:,:]",
    ),
    "join._multiply_out": (
        "int64[:], int64[:], int64[:], int64[:], int64[:], int64[:]",
    ),
    "lookup._add_at": (
        "int64[:], int64[:], int64[:]",
    ),
    "lookup._ranges": (
        "int64[:], int64[:]",
        "int64[:], int64[:]-",
        "int64[:]-, int64[:]",
        "int64[:]-, int64[:]-",
    ),
    "merge_sort._sort": (
        "int64[:], int64[:], int64[:]",
    ),
    "murmur3.bucket_hash": (
        "int32[:]-, int64, int32[:]",
    ),
    "murmur3.bucket_int": (
        "int64[:]-, int64, uint32, int32[:]",
    ),
    "murmur3.bucket_long": (
        "int64[:]-, int64, uint32, int32[:]",
    ),
    "murmur3.fold_bytes": (
        "uint8[:]-, int64[:]-, int64[:]-, bool[:]-, int64[:]-, int64[:]-, uint32[:]",
    ),
    "murmur3.fold_int": (
        "int32[:]-, bool[:]-, int64[:]-, int64[:]-, uint32[:]",
    ),
    "murmur3.fold_long": (
        "int64[:]-, bool[:]-, int64[:]-, int64[:]-, uint32[:]",
    ),
    "quotients.float_quotients": (
        "float64[:,:]-, int64, int64[:]!-, float64[:]",
        "float64[:,:]-, int64, int64[:]-, float64[:]",
    ),
    "quotients.float_variances": (
        "float64[:,:]-, int64, int64, int64[:]!-, int64, float64[:]",
        "float64[:,:]-, int64, int64, int64[:]-, int64, float64[:]",
    ),
    "quotients.quotients": (
        "int64[:,:]-, int64, int64, int64[:]!-, int64, float64[:]",
        "int64[:,:]-, int64, int64, int64[:]-, int64, float64[:]",
    ),
    "quotients.rounded": (
        "int64[:,:]-, int64, int64, int64[:]!-, bool, int64, uint64, uint64, int64[:,:]",
        "int64[:,:]-, int64, int64, int64[:]-, bool, int64, uint64, uint64, int64[:,:]",
    ),
    "quotients.variances": (
        "int64[:,:]-, int64, int64, int64[:]!-, int64, float64[:]",
        "int64[:,:]-, int64, int64, int64[:]-, int64, float64[:]",
    ),
    "ranking.replay_first": (
        "int64[:], int64[:], int64[:], int64[:], int64[:], int64[:], int64[:], int64[:], int64, "
        "int64",
    ),
    "split._by_bucket": (
        "int32[:], int64",
    ),
    "sums._partition": (
        "int64[:], int64, int64, int64[:], int64, int64, int64[:], int64, int64, int64",
        "int64[:], int64, int64, int64[:]-, int64, int64, int64[:]-, int64, int64, int64",
        "int64[:]-, int64, int64, int64[:], int64, int64, int64[:], int64, int64, int64",
        "int64[:]-, int64, int64, int64[:]-, int64, int64, int64[:]-, int64, int64, int64",
    ),
    "sums._runs": (
        "int64[:], int64[:], int64, int64, int64, int64, int64, int64, int64[:], int64[:], "
        "int64[:]",
    ),
    "sums._sum_runs": (
        "int64[:], int64[:], int64, int64",
    ),
    "sums._tally": (
        "int64[:], int64, int32[:]",
        "int64[:]-, int64, int32[:]",
    ),
    "sums._tally_diffs": (
        "int64[:], int64, int64[:], int64[:]",
        "int64[:], int64, int64[:]-, int64[:]",
        "int64[:]-, int64, int64[:], int64[:]",
        "int64[:]-, int64, int64[:]-, int64[:]",
    ),
    "tallies.tally_decimal": (
        "int64[:,:]-, bool[:]-, int64[:]-, int64[:]-, int64, int64[:,:], float64[:,:], int64",
    ),
    "tallies.tally_exact": (
        "int64[:]-, bool[:]-, int64[:]-, int64[:]-, int64, int64[:,:], float64[:,:], int64",
    ),
    "tallies.tally_float": (
        "float64[:]-, bool[:]-, int64[:]-, int64[:]-, int64, int64[:,:], float64[:,:], int64",
    ),
    "tallies.tally_float_square": (
        "float64[:]-, bool[:]-, int64[:]-, int64[:]-, int64, int64[:,:], float64[:,:], int64",
    ),
    "tallies.tally_integer": (
        "int64[:]-, bool[:]-, int64[:]-, int64[:]-, int64, int64[:,:], float64[:,:], int64",
    ),
    "tallies.tally_rows": (
        "int64[:], bool[:]-, int64[:]-, int64[:]-, int64, int64[:,:], float64[:,:], int64",
        "int64[:]-, bool[:]-, int64[:]-, int64[:]-, int64, int64[:,:], float64[:,:], int64",
    ),
    "tallies.tally_square": (
        "int64[:]-, bool[:]-, int64[:]-, int64[:]-, int64, int64[:,:], float64[:,:], int64",
    ),
    "top_k._by_candidate": (
        "int64[:]!, int64",
        "int64[:], int64",
    ),
    "top_k._candidates": (
        "int64[:], int64[:], int64, int64[:]",
        "int64[:], int64[:], int64, int64[:]-",
    ),
    "top_k._ranges": (
        "int64[:]-, int64[:]-",
    ),
    "top_k._stops": (
        "int64[:], int64[:], bool[:], int64[:], bool[:], int64[:], int64",
    ),
    "xxhash64.fold_bytes": (
        "uint8[:]-, int64[:]-, int64[:]-, bool[:]-, int64[:]-, int64[:]-, uint64[:]",
    ),
    "xxhash64.fold_int": (
        "int32[:]-, bool[:]-, int64[:]-, int64[:]-, uint64[:]",
    ),
    "xxhash64.fold_long": (
        "int64[:]-, bool[:]-, int64[:]-, int64[:]-, uint64[:]",
    ),
}

_TYPE = re.compile(r"(\w+)(?:\[([:,]+)\])?(!?)(-?)")


def warm_up(processes: int | None = None) -> None:
    """Compile every kernel for the types that it is called with; quick where that was done before.

    Parameters
    ----------
    processes : int, optional
        How many compile at the same time; as many as there are cores if not given.
    """
    with ProcessPoolExecutor(processes or os.cpu_count()) as pool:
        list(pool.map(compile_kernel, CALLED))


def compile_kernel(name: str) -> int:
    """Compile one kernel; gives for how many lists of types it was not kept on disk yet."""
    module, function = name.split(".")
    kernel: Any = getattr(import_module(f"{__package__}.{module}"), function)
    for arguments in CALLED[name]:
        kernel.compile(signature(arguments))
    return sum(kernel.stats.cache_misses.values())


def signature(arguments: str) -> tuple[types.Type, ...]:
    """The types of arguments, from text.

    Examples
    --------
    >>> signature("int64, bool[:]-")
    (int64, Array(bool, 1, 'C', True, aligned=True))
    """
    found: list[types.Type] = []
    for text in arguments.split(", "):
        matched = _TYPE.fullmatch(text)
        if matched is None:
            raise ValueError(f"{text!r} is no type of an argument")
        name, dimensions, loose, read = matched.groups()
        kind = types.boolean if name == "bool" else getattr(types, name)
        if dimensions:
            kind = types.Array(
                kind, dimensions.count(":"), "A" if loose else "C", readonly=bool(read)
            )
        found.append(kind)
    return tuple(found)


if __name__ == "__main__":
    warm_up()
