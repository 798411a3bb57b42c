"""The order of values as integers, and the first records while counts of values change.

For records ``r`` with columns and an ordering of them, and ``c = codes(columns, ordering)``::

    c[i] <  c[j]   iff   record i comes before record j
    c[i] == c[j]   iff   rows_equal(columns, i, j)

Numbers are ordered by value, with -0.0 = 0.0 and NaN = NaN above all others; strings and binary by
their bytes. Structs are ordered field by field and lists element by element, a shorter list first,
with nulls inside of either first. Spark sorts in this order. With ``n[c]`` the count of ``c``::

    places before c  =  sum(max(n[b], 0) for b < c);   c is among the first k iff these are < k
"""

from __future__ import annotations

from typing import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_diff.kernels import buffers
from pyspark_diff.kernels.jit import jit, kernel
from pyspark_diff.kernels.order import ranked
from pyspark_diff.kernels.overflow import sum_leaves
from pyspark_diff.kernels.updates import Int64

#: For each column whether it is descending, and whether its nulls are last.
Ordering = tuple[tuple[bool, bool], ...]

#: Size of the sample that decides whether the same values repeat.
_SAMPLE = 4096

#: The output of `replay_first` for a value: the number of its places among the first k; each place
#: itself; or its count and its rank, which all tied values share.
_ROWS, _ROW_NUMBER, RANK, DENSE_RANK = range(4)
MODES = {"rows": _ROWS, "row_number": _ROW_NUMBER, "rank": RANK, "dense_rank": DENSE_RANK}
#: Modes in which tied records share a place.
TIED = (RANK, DENSE_RANK)

_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def codes(columns: Sequence[pa.Array], ordering: Ordering, rows: int = 0) -> Int64:
    """A number for each record that encodes its place in the order.

    Codes of different calls are comparable only if a single column of numbers, dates or times is
    ordered: it is its own code if it has no nulls.

    Parameters
    ----------
    columns : sequence of pyarrow.Array
        Columns of one table, the most significant one first.
    ordering : Ordering
        One ``(descending, nulls_last)`` for each column.
    rows : int
        Number of records; needed if there is no column. Then all records are equal.

    Raises
    ------
    UnsupportedTypeError
        A `TypeError`: a column is, or contains, a type that Spark's Arrow conversion does not
        produce.

    Examples
    --------
    >>> words, numbers = pa.array(["b", None, "a", "b"]), pa.array([1, 2, 3, -5])
    >>> numbers = codes([words, numbers], ((True, True), (False, False)))
    >>> np.argsort(numbers).tolist()
    [3, 0, 2, 1]
    """
    if len(columns) != len(ordering):
        raise ValueError(f"{len(columns)} columns have an ordering of {len(ordering)}")
    for column in columns:
        buffers.check_type(column.type)
    if not columns:
        return np.zeros(rows, np.int64)
    return pack([
        _column(column, descending, nulls_last)
        for column, (descending, nulls_last) in zip(columns, ordering)
    ])


def float_codes(array: pa.Array) -> Int64:
    """Integers in the order of a column of float32 or float64; those of nulls are arbitrary.

    Examples
    --------
    >>> numbers = float_codes(pa.array([-1.5, -0.0, 0.0, 2.0, float("inf"), float("nan")]))
    >>> (numbers[1:] > numbers[:-1]).tolist()
    [True, False, True, True, True]
    """
    values = buffers.fixed(array)
    values = values + values.dtype.type(0)  # -0.0 + 0.0 is 0.0
    values[np.isnan(values)] = np.nan
    bits = values.view(np.int64 if values.dtype == np.float64 else np.int32)
    return _flipped(bits).astype(np.int64, copy=False)


def from_float_codes(codes: Int64, kind: pa.DataType) -> pa.Array:
    """Undo `float_codes`, up to the sign of zero and the bits of NaN.

    Examples
    --------
    >>> from_float_codes(float_codes(pa.array([-1.5, 2.0])), pa.float64()).to_pylist()
    [-1.5, 2.0]
    """
    wide = pa.types.is_float64(kind)
    bits = _flipped(codes if wide else codes.astype(np.int32))
    return pa.array(bits.view(np.float64 if wide else np.float32), kind)


def _flipped(bits: np.ndarray) -> np.ndarray:
    """The bits of floats as ordered integers, and back: below zero a larger size is less.
    """
    info = np.iinfo(bits.dtype)
    return bits ^ ((bits >> (info.bits - 1)) & info.max)


def pack(parts: Sequence[Int64]) -> Int64:
    """Tuples of integers as one integer that orders them by the first, then by the second, ...

    Parameters
    ----------
    parts : sequence of ndarray of int64
        At least one, all of one length.

    Returns
    -------
    ndarray of int64
        The part itself if there is only one.

    Examples
    --------
    >>> pack([np.array([5, 5, -7]), np.array([2**62, -(2**62), 0])]).argsort().tolist()
    [2, 1, 0]
    """
    code = parts[0]
    if not code.size:
        return code
    for part in parts[1:]:
        pair, spans = [code, part], [_span(code), _span(part)]
        while sum(high.bit_length() for _, high in spans) > 62:
            # Ranks of both always fit: one kernel call has fewer than 2^31 rows.
            wide = max(range(2), key=lambda i: spans[i][1])
            distinct, rank = ranked(pair[wide])
            pair[wide], spans[wide] = rank, (0, distinct.size - 1)
        left, right = (each - low for each, (low, _) in zip(pair, spans))
        code = (left << spans[1][1].bit_length()) | right
    return code


def _span(code: Int64) -> tuple[int, int]:
    """The least code, and the distance of the greatest code from it."""
    low = int(code.min())
    return low, int(code.max()) - low


def _column(column: pa.Array, descending: bool, nulls_last: bool) -> Int64:
    """Codes of one column, including its nulls."""
    code = _values(column)
    if descending:
        code = ~code
    valid = buffers.validity(column)
    if not valid.size:
        return code
    present = code[valid]
    if not present.size:
        return np.zeros(valid.size, np.int64)
    if present.max() == _MOST if nulls_last else present.min() == _LEAST:
        # No integer is free for null; there is one among ranks.
        present = ranked(present)[1]
    code = np.full(valid.size, present.max() + 1 if nulls_last else present.min() - 1)
    code[valid] = present
    return code


def _values(column: pa.Array) -> Int64:
    """Ascending codes of one column; those of nulls are arbitrary."""
    kind = column.type
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.int64)
    if pa.types.is_struct(kind):
        children = [_column(child, False, False) for child in buffers.fields(column)]
        return pack(children) if children else np.zeros(len(column), np.int64)
    if buffers.is_list(kind):
        return _lists(column)
    if buffers.is_bytes(kind):
        return _rank(column)
    if pa.types.is_decimal(kind):
        low, high = buffers.decimal_words(column).T
        if (high == low >> 63).all():
            return low.copy()
        # The low half has no sign of its own.
        return pack([high, low ^ _LEAST])
    if pa.types.is_floating(kind):
        return float_codes(column)
    return buffers.fixed(column).astype(np.int64)


def _lists(column: pa.Array) -> Int64:
    """Codes of lists: elements as big-endian numbers have the order of their bytes."""
    elements, bounds = buffers.elements(column)
    code = _column(elements, False, False)
    data = (code.view(np.uint64) ^ np.uint64(1 << 63)).astype(">u8")
    layout = [None, pa.py_buffer(bounds.astype(np.int64) * 8), pa.py_buffer(data)]
    return _rank(pa.Array.from_buffers(pa.large_binary(), len(column), layout))


def _rank(column: pa.Array) -> Int64:
    """Rank of each value of a column of bytes among its distinct values."""
    spread = np.arange(_SAMPLE) * (len(column) // _SAMPLE)
    if not spread[1] or 2 * len(column.take(pa.array(spread)).unique()) > _SAMPLE:
        rank = pc.rank(column, tiebreaker="dense")
        return rank.to_numpy(zero_copy_only=False).astype(np.int64)
    # Hashing is far cheaper than sorting if it leaves few values to sort (measured: 2 million
    # strings of 1000 kinds in 0.04 s, while ranking them all takes 0.5 s).
    encoded = column.dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy(zero_copy_only=False)
    place = np.empty(order.size + 1, np.int64)  # one more, for a column of nulls only
    place[order] = np.arange(order.size)
    place[-1] = -1
    return place[encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)]


@kernel(
    "int64[:], int64[:], int64[:], int64[:], int64[:], int64[:], int64[:], int64[:], int64, "
    "int64"
)
def replay_first(  # type: ignore[no-untyped-def]
    bounds, stops, base, tie, starts, cand, time, diff, k, mode
):
    """Replay of the first k places of each key while the counts of its candidates change.

    Candidates ``bounds[g]`` to ``stops[g]`` of key ``g`` are in order, with initial counts
    ``base``, and tie if ``tie`` is equal; ``stops[g] < 0`` omits a key. Its updates ``starts[g]``
    to ``starts[g + 1]`` are ordered by time, then candidate.

    Returns the changes as rows of (candidate, time, diff, number), by key, time and candidate, and
    whether no count overflowed.

    The candidates of a key form groups; candidates that do not tie are groups of one. A tree of
    sums over the places of the groups (Fenwick, *A new data structure for cumulative frequency
    tables*, 1994) finds the first present groups, at the same cost for any number of others that
    have come and gone. For dense ranks a group takes one place, for any number of records.
    """
    out = np.empty((cand.size + 16, 4), np.int64)
    n = 0
    now = base.copy()  # counts at this time, and just before it
    was = base.copy()
    most = 0
    for g in range(stops.size):
        most = max(most, stops[g] - bounds[g])
    group = np.empty(base.size, np.int64)
    heads = np.empty(most + 1, np.int64)
    places = np.empty(most, np.int64)  # of a group: no count adds more than k, so none overflows
    there = np.empty(most, np.int64)  # of a group: the number of candidates with a count
    tree = np.empty(most + 1, np.int64)
    top = np.empty((min(k, most), 3), np.int64)
    old_top = np.empty((min(k, most), 3), np.int64)
    for g in range(stops.size):
        if stops[g] < 0:
            continue
        groups = 0
        for c in range(bounds[g], stops[g]):
            if c == bounds[g] or tie[c] != tie[c - 1]:
                heads[groups] = c
                places[groups] = there[groups] = 0
                groups += 1
            group[c] = groups - 1
            there[groups - 1] += 1 if base[c] > 0 else 0
            places[groups - 1] += min(max(base[c], 0), k)
        heads[groups] = stops[g]
        if mode == DENSE_RANK:
            for i in range(groups):
                places[i] = min(there[i], 1)
        for i in range(groups):
            tree[i + 1] = places[i]
        for i in range(1, groups + 1):
            if i + (i & -i) <= groups:
                tree[i + (i & -i)] += tree[i]
        top_count = _walk(tree, groups, places, 0, k, top, 0)
        e = starts[g]
        while e < starts[g + 1]:
            begin = e
            lowest = groups
            while e < starts[g + 1] and time[e] == time[begin]:
                c = cand[e]
                if c < stops[g]:
                    total = now[c] + diff[e]
                    if sum_leaves(now[c], diff[e]):
                        return out[:0], False
                    change = min(max(total, 0), k) - min(max(now[c], 0), k)
                    there[group[c]] += (1 if total > 0 else 0) - (1 if now[c] > 0 else 0)
                    if mode == DENSE_RANK:
                        change = min(there[group[c]], 1) - places[group[c]]
                    now[c] = total
                    places[group[c]] += change
                    lowest = min(lowest, group[c])
                    i = group[c] + 1
                    while change != 0 and i <= groups:
                        tree[i] += change
                        i += i & -i
                e += 1
            before = 0
            i = lowest
            while i > 0:
                before += tree[i]
                i -= i & -i
            if lowest < groups and before < k:
                # The groups before the lowest touched group do not change.
                stay = top_count
                while stay > 0 and top[stay - 1, 0] >= lowest:
                    stay -= 1
                for i in range(stay, top_count):
                    for part in range(3):
                        old_top[i, part] = top[i, part]
                old_count = top_count
                top_count = _walk(tree, groups, places, before, k, top, stay)
                out, n = _compare(
                    old_top[stay:old_count], top[stay:top_count], heads, was, now, cand[begin:e],
                    time[begin], mode, out, n,
                )
            for i in range(begin, e):
                was[cand[i]] = now[cand[i]]
    return out[:n], True


@jit
def _walk(tree, groups, places, before, k, top, top_count):  # type: ignore[no-untyped-def]
    """Append the groups with places from ``before`` on and below k to the top groups.

    Rows are (group, places before it, its places in the top k).
    """
    high = 1
    while 2 * high <= groups:
        high *= 2
    while before < k:
        group = 0
        left = before
        step = high
        while step > 0:
            if group + step <= groups and tree[group + step] <= left:
                group += step
                left -= tree[group]
            step //= 2
        if group >= groups:
            break
        top[top_count, 0] = group
        top[top_count, 1] = before
        top[top_count, 2] = min(places[group], k - before)
        before += places[group]
        top_count += 1
    return top_count


@jit
def _compare(old, new, heads, was, now, cand, time, mode, out, n):  # type: ignore[no-untyped-def]
    """Append the differences between two tops."""
    i = j = e = 0
    while i < old.shape[0] or j < new.shape[0]:
        group = _MOST
        if i < old.shape[0]:
            group = old[i, 0]
        if j < new.shape[0]:
            group = min(group, new[j, 0])
        a = size_a = b = size_b = 0  # places before the group, and its own, then and now
        if i < old.shape[0] and old[i, 0] == group:
            a, size_a = old[i, 1], old[i, 2]
            i += 1
        if j < new.shape[0] and new[j, 0] == group:
            b, size_b = new[j, 1], new[j, 2]
            j += 1
        c = heads[group]
        # Room is checked before any row is written: one check takes less to compile than six.
        if mode == _ROWS:
            most = 1
        elif mode == _ROW_NUMBER:
            both = max(0, min(a + size_a, b + size_b) - max(a, b))
            most = size_a + size_b - 2 * both
        else:
            most = cand.size - e + 2 * (heads[group + 1] - heads[group])
        if n + most > out.shape[0]:
            out = _grown(out, n, n + most)
        if mode == _ROWS:
            if size_a != size_b:
                n = _write(out, n, c, time, size_b - size_a, 0)
        elif mode == _ROW_NUMBER:
            for place in range(a, a + size_a):
                if place < b or place >= b + size_b:
                    n = _write(out, n, c, time, -1, place + 1)
            for place in range(b, b + size_b):
                if place < a or place >= a + size_a:
                    n = _write(out, n, c, time, 1, place + 1)
        elif a == b and size_a > 0 and size_b > 0:
            # Among many tied candidates, only those that change are read.
            while e < cand.size and cand[e] < c:
                e += 1
            while e < cand.size and cand[e] < heads[group + 1]:
                change = max(now[cand[e]], 0) - max(was[cand[e]], 0)
                if change != 0:
                    n = _write(out, n, cand[e], time, change, a + 1)
                e += 1
        else:
            for c in range(heads[group], heads[group + 1]):
                if size_a > 0 and was[c] > 0:
                    n = _write(out, n, c, time, -was[c], a + 1)
                if size_b > 0 and now[c] > 0:
                    n = _write(out, n, c, time, now[c], b + 1)
    return out, n


@jit
def _grown(out, n, least):  # type: ignore[no-untyped-def]
    more = np.empty((max(2 * out.shape[0], least), 4), np.int64)
    for i in range(n):
        for part in range(4):
            more[i, part] = out[i, part]
    return more


@jit
def _write(out, n, cand, time, diff, number):  # type: ignore[no-untyped-def]
    out[n, 0] = cand
    out[n, 1] = time
    out[n, 2] = diff
    out[n, 3] = number
    return n + 1
