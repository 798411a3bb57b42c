"""XXH64 as Spark SQL's `xxhash64` computes it, folded over the values of a column.

    fold(running, v1, v2, …) = … h(v2, h(v1, running))        h(null, running) = running

The algorithm is XXH64 of xxHash by Yann Collet, written from its published specification. As in
Spark's `XxHash64` expression, the hash so far is the seed of the next value. A value of 32 or 64
bits is hashed as its four or eight little-endian bytes. The contract of the `fold_*` kernels is in
`murmur3`.
"""

from __future__ import annotations

import numpy as np

from pyspark_diff.kernels.jit import jit, kernel

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_ZERO = np.uint64(0)
_BITS = np.uint64(64)


# Every operand is a uint64: with a plain integer numba would make the result signed or a float.
@jit
def _rotate(x, by):  # type: ignore[no-untyped-def]
    by = np.uint64(by)
    return (x << by) | (x >> (_BITS - by))


@jit
def _shifted(x, by):  # type: ignore[no-untyped-def]
    return x ^ (x >> np.uint64(by))


@jit
def _round(component, word):  # type: ignore[no-untyped-def]
    return _rotate(component + word * _P2, 31) * _P1


@jit
def _mix_word(state, word):  # type: ignore[no-untyped-def]
    return _rotate(state ^ (word * _P1), 23) * _P2 + _P3


@jit
def _mix_long(state, word):  # type: ignore[no-untyped-def]
    return _rotate(state ^ _round(_ZERO, word), 27) * _P1 + _P4


@jit
def _finish(state):  # type: ignore[no-untyped-def]
    return _shifted(_shifted(_shifted(state, 33) * _P2, 29) * _P3, 32)


@jit
def _word_at(data, k):  # type: ignore[no-untyped-def]
    low = np.uint32(data[k]) | np.uint32(data[k + 1]) << 8
    return np.uint64(low | np.uint32(data[k + 2]) << 16 | np.uint32(data[k + 3]) << 24)


@jit
def _long_at(data, k):  # type: ignore[no-untyped-def]
    return _word_at(data, k) | (_word_at(data, k + 4) << np.uint64(32))


@jit
def _hash_bytes(data, begin, end, seed):  # type: ignore[no-untyped-def]
    k = begin
    if end - begin >= 32:
        a, b, c, d = seed + _P1 + _P2, seed + _P2, seed, seed - _P1
        while end - k >= 32:
            a = _round(a, _long_at(data, k))
            b = _round(b, _long_at(data, k + 8))
            c = _round(c, _long_at(data, k + 16))
            d = _round(d, _long_at(data, k + 24))
            k += 32
        state = _rotate(a, 1) + _rotate(b, 7) + _rotate(c, 12) + _rotate(d, 18)
        for component in (a, b, c, d):
            state = (state ^ _round(_ZERO, component)) * _P1 + _P4
    else:
        state = seed + _P5
    state += np.uint64(end - begin)
    while end - k >= 8:
        state = _mix_long(state, _long_at(data, k))
        k += 8
    if end - k >= 4:
        state = _mix_word(state, _word_at(data, k))
        k += 4
    while k < end:
        state = _rotate(state ^ (np.uint64(data[k]) * _P5), 11) * _P1
        k += 1
    return _finish(state)


@kernel("int32[:]-, bool[:]-, int64[:]-, int64[:]-, uint64[:]")
def fold_int(values, valid, starts, stops, running):  # type: ignore[no-untyped-def]
    """Fold int32 `values` into the uint64 `running`, in place."""
    for i in range(running.size):
        state = running[i]
        for p in range(starts[i], stops[i]):
            if valid.size == 0 or valid[p]:
                word = np.uint64(np.uint32(values[p]))
                state = _finish(_mix_word(state + _P5 + np.uint64(4), word))
        running[i] = state


@kernel("int64[:]-, bool[:]-, int64[:]-, int64[:]-, uint64[:]")
def fold_long(values, valid, starts, stops, running):  # type: ignore[no-untyped-def]
    """Fold int64 `values` into the uint64 `running`, in place."""
    for i in range(running.size):
        state = running[i]
        for p in range(starts[i], stops[i]):
            if valid.size == 0 or valid[p]:
                state = _finish(_mix_long(state + _P5 + np.uint64(8), np.uint64(values[p])))
        running[i] = state


@kernel("uint8[:]-, int64[:]-, int64[:]-, bool[:]-, int64[:]-, int64[:]-, uint64[:]")
def fold_bytes(data, begins, ends, valid, starts, stops, running):  # type: ignore[no-untyped-def]
    """Fold the byte strings `data[begins[p]:ends[p]]` into the uint64 `running`, in place."""
    for i in range(running.size):
        state = running[i]
        for p in range(starts[i], stops[i]):
            if valid.size == 0 or valid[p]:
                state = _hash_bytes(data, begins[p], ends[p], state)
        running[i] = state
