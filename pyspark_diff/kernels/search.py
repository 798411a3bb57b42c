"""Search in sorted keys: in an array, or in memory from an address on.

    bounds(keys, x)  =  the first row whose key is not less than x

A binary search in millions of rows waits for memory about twenty times. If keys are evenly
distributed, as ids and hashes are, the first guess is some thousand rows off. A second guess from
there is a few dozen rows off, and a third one a few. So it waits three times, and it shares the
waits among many keys.
Perl, Itai and Avni, "Interpolation search: a log log N search", CACM 1978.
"""

from __future__ import annotations

import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic

from pyspark_diff.kernels.jit import inlined, jit

#: Number of keys that are searched at once, and number of improvements of each guess.
BLOCK, NEARER = 32, 2
#: From this number of rows per key on, the next key is not close.
FAR = 64


@intrinsic  # type: ignore[misc]
def _word(context, address):  # type: ignore[no-untyped-def]
    def load(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        pointer = context.get_value_type(types.CPointer(types.int64))
        return builder.load(builder.inttoptr(arguments[0], pointer))

    return types.int64(types.int64), load


@jit
def word(address):  # type: ignore[no-untyped-def]
    """The 64-bit number at an address."""
    return _word(address)  # type: ignore[call-arg]


@intrinsic  # type: ignore[misc]
def _fetch(context, address):  # type: ignore[no-untyped-def]
    def fetch(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        ir, byte, number = cgutils.ir, cgutils.voidptr_t, cgutils.int32_t
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        called = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        # The prefetch is for reading, with the highest locality, and of data.
        how = [number(0), number(3), number(1)]
        builder.call(called, [builder.inttoptr(arguments[0], byte), *how])
        return context.get_dummy_value()

    return types.void(types.int64), fetch


@jit
def fetch(address):  # type: ignore[no-untyped-def]
    """Prefetch the memory at an address, without waiting for it."""
    _fetch(address)  # type: ignore[call-arg]


@jit
def _evenly(address, length, left, x, row):  # type: ignore[no-untyped-def]
    """The place of ``x``, extrapolated from a row as if keys were evenly distributed from
    ``left``."""
    right = length - 1
    low, high = np.float64(word(address + 8 * left)), np.float64(word(address + 8 * right))
    if low >= high:
        return left
    off = (np.float64(x) - np.float64(word(address + 8 * row))) / (high - low)
    off = max(-1.0, min(1.0, off)) * (right - left)
    place = max(left, min(right, row + np.int64(off)))
    fetch(address + 8 * place)
    return place


@jit
def guess_of(address, length, left, x):  # type: ignore[no-untyped-def]
    """About the first row at or after ``left`` whose key is not less than ``x``; its memory is
    prefetched."""
    return _evenly(address, length, left, x, left) if left < length else left


@jit
def nearer(address, length, left, x, guess):  # type: ignore[no-untyped-def]
    """A better guess, extrapolated from the key at a guess; its memory is prefetched."""
    return _evenly(address, length, left, x, guess) if left < length else left


@inlined
def seek(address, length, left, x, guess):  # type: ignore[no-untyped-def]
    """First row at or after ``left`` whose key is not less than ``x``; the guess is close to it."""
    if left >= length or word(address + 8 * left) >= x:
        return left
    if word(address + 8 * (length - 1)) < x:
        return length
    guess = max(guess, left)
    step = 1
    if word(address + 8 * guess) < x:
        left = guess + 1
        right = left
        while right < length and word(address + 8 * right) < x:
            left = right + 1
            right += step
            step *= 2
        right = min(right, length)
    else:
        right = guess
        while right - step > left and word(address + 8 * (right - step)) >= x:
            right -= step
            step *= 2
        left = max(left, right - step)
    while left < right:
        middle = (left + right) // 2
        if word(address + 8 * middle) < x:
            left = middle + 1
        else:
            right = middle
    return left


@inlined
def gallop(keys, at, key, beyond):  # type: ignore[no-untyped-def]
    """The first row at or after ``at`` whose key is not less than ``key``, or greater than it if
    ``beyond``. Close rows take few steps."""
    step = 1
    low = high = at
    while high < keys.size and (keys[high] < key or (beyond and keys[high] == key)):
        low = high + 1
        high += step
        step *= 2
    high = min(high, keys.size)
    while low < high:
        middle = (low + high) // 2
        if keys[middle] < key or (beyond and keys[middle] == key):
            low = middle + 1
        else:
            high = middle
    return low


@jit
def bounds(needles, hay):  # type: ignore[no-untyped-def]
    """For each needle (ordered) the first row of ``hay`` (ordered) that is not less than it."""
    low = np.empty(needles.size, np.int64)
    n, at = hay.size, 0
    if n < FAR * needles.size:
        for i in range(needles.size):
            at = low[i] = gallop(hay, at, needles[i], False)
        return low
    address = hay.ctypes.data
    for begin in range(0, needles.size, BLOCK):
        end = min(begin + BLOCK, needles.size)
        for i in range(begin, end):
            low[i] = guess_of(address, n, at, needles[i])
        for _ in range(NEARER):
            for i in range(begin, end):
                low[i] = nearer(address, n, at, needles[i], low[i])
        for i in range(begin, end):
            at = low[i] = seek(address, n, at, needles[i], low[i])
    return low
