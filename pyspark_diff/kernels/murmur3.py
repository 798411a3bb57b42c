"""Murmur3_x86_32 as Spark SQL's `hash` computes it, folded over the values of a column.

    fold(running, v1, v2, …) = … h(v2, h(v1, running))        h(null, running) = running

The algorithm is MurmurHash3 by Austin Appleby (public domain). Spark's `Murmur3Hash` expression
differs in two points. The hash so far is the seed of the next value. The last one to three bytes of
a byte string are each mixed in as a whole word, sign-extended.

Every `fold_*` kernel has one contract: for each row `i`, `running[i]` takes in the values at
`starts[i] <= p < stops[i]`, in order. A flat column is the case of one value a row, a list column
has a range of its element column, and a null parent is an empty range. The array `valid` has a flag
for each value, or length zero if no value is null.
"""

from __future__ import annotations

import numpy as np

from pyspark_diff.kernels.jit import jit, kernel

_C1 = np.uint32(0xCC9E2D51)
_C2 = np.uint32(0x1B873593)
_ADD = np.uint32(0xE6546B64)
_FINAL_1 = np.uint32(0x85EBCA6B)
_FINAL_2 = np.uint32(0xC2B2AE35)
_FIVE = np.uint32(5)
#: Spark's initial seed.
_SEED = np.uint32(42)


# numba widens 32-bit arithmetic to 64 bits, hence a cut back to uint32 after every step; the
# compiler turns the pair into one 32-bit instruction.
@jit
def _rotate(x, by):  # type: ignore[no-untyped-def]
    return np.uint32((x << by) | (x >> (32 - by)))


@jit
def _mix(state, word):  # type: ignore[no-untyped-def]
    word = np.uint32(_rotate(np.uint32(word * _C1), 15) * _C2)
    return np.uint32(_rotate(np.uint32(state ^ word), 13) * _FIVE + _ADD)


@jit
def _finish(state, length):  # type: ignore[no-untyped-def]
    x = np.uint32(state ^ length)
    x = np.uint32(np.uint32(x ^ (x >> 16)) * _FINAL_1)
    x = np.uint32(np.uint32(x ^ (x >> 13)) * _FINAL_2)
    return np.uint32(x ^ (x >> 16))


@jit
def _hash_int(value, seed):  # type: ignore[no-untyped-def]
    return _finish(_mix(seed, np.uint32(value)), np.uint32(4))


@jit
def _hash_long(value, seed):  # type: ignore[no-untyped-def]
    state = _mix(seed, np.uint32(value))
    return _finish(_mix(state, np.uint32(value >> 32)), np.uint32(8))


@jit
def _hash_bytes(data, begin, end, seed):  # type: ignore[no-untyped-def]
    state = seed
    words_end = begin + ((end - begin) & ~3)
    for k in range(begin, words_end, 4):
        low = np.uint32(data[k]) | np.uint32(data[k + 1]) << 8
        high = np.uint32(data[k + 2]) << 16 | np.uint32(data[k + 3]) << 24
        state = _mix(state, np.uint32(low | high))
    for k in range(words_end, end):
        state = _mix(state, np.uint32(np.int8(data[k])))
    return _finish(state, np.uint32(end - begin))


@kernel("int32[:]-, bool[:]-, int64[:]-, int64[:]-, uint32[:]")
def fold_int(values, valid, starts, stops, running):  # type: ignore[no-untyped-def]
    """Fold int32 `values` into the uint32 `running`, in place."""
    for i in range(running.size):
        state = running[i]
        for p in range(starts[i], stops[i]):
            if valid.size == 0 or valid[p]:
                state = _hash_int(values[p], state)
        running[i] = state


@kernel("int64[:]-, bool[:]-, int64[:]-, int64[:]-, uint32[:]")
def fold_long(values, valid, starts, stops, running):  # type: ignore[no-untyped-def]
    """Fold int64 `values` into the uint32 `running`, in place."""
    for i in range(running.size):
        state = running[i]
        for p in range(starts[i], stops[i]):
            if valid.size == 0 or valid[p]:
                state = _hash_long(values[p], state)
        running[i] = state


@kernel("uint8[:]-, int64[:]-, int64[:]-, bool[:]-, int64[:]-, int64[:]-, uint32[:]")
def fold_bytes(data, begins, ends, valid, starts, stops, running):  # type: ignore[no-untyped-def]
    """Fold the byte strings `data[begins[p]:ends[p]]` into the uint32 `running`, in place."""
    for i in range(running.size):
        state = running[i]
        for p in range(starts[i], stops[i]):
            if valid.size == 0 or valid[p]:
                state = _hash_bytes(data, begins[p], ends[p], state)
        running[i] = state


@jit
def _pmod(value, divisor, inverse):  # type: ignore[no-untyped-def]
    # Division by multiplication: a double represents any 32-bit integer exactly, so the truncated
    # quotient is off by at most one, and a loop without a divide instruction can be vectorised.
    rest = value - np.int64(value * inverse) * divisor
    if rest < 0:
        rest += divisor
    if rest >= divisor:
        rest -= divisor
    return np.int32(rest)


@jit
def bucket_of_int(key, divisor):  # type: ignore[no-untyped-def]
    """`pmod(hash(key), divisor)` of one key that Spark stores in 32 bits or less, with its seed."""
    return _pmod(np.int32(_hash_int(key, _SEED)), divisor, 1.0 / divisor)


@jit
def bucket_of_long(key, divisor):  # type: ignore[no-untyped-def]
    """`pmod(hash(key), divisor)` of one key that Spark stores in 64 bits, with its seed."""
    return _pmod(np.int32(_hash_long(key, _SEED)), divisor, 1.0 / divisor)


@kernel("int64[:]-, int64, uint32, int32[:]")
def bucket_int(keys, divisor, seed, buckets):  # type: ignore[no-untyped-def]
    """Write `pmod(hash(key), divisor)` of each int64 key that Spark stores in 32 bits or less."""
    inverse = 1.0 / divisor
    for i in range(keys.size):
        buckets[i] = _pmod(np.int32(_hash_int(keys[i], seed)), divisor, inverse)


@kernel("int64[:]-, int64, uint32, int32[:]")
def bucket_long(keys, divisor, seed, buckets):  # type: ignore[no-untyped-def]
    """Write `pmod(hash(key), divisor)` of each int64 key that Spark stores in 64 bits."""
    inverse = 1.0 / divisor
    for i in range(keys.size):
        buckets[i] = _pmod(np.int32(_hash_long(keys[i], seed)), divisor, inverse)


@kernel("int32[:]-, int64, int32[:]")
def bucket_hash(hashes, divisor, buckets):  # type: ignore[no-untyped-def]
    """Write `pmod(hash, divisor)` of each int32 hash."""
    inverse = 1.0 / divisor
    for i in range(hashes.size):
        buckets[i] = _pmod(hashes[i], divisor, inverse)
