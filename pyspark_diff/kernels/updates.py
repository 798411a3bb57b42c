"""Columns of update rows, as the kernels see them.

For a set of updates ``U`` every function here keeps the law::

    accumulate(U, t)[record] = sum(diff for (record, s, diff) in U if s <= t)

``take`` and ``concat`` move rows; only `pyspark_diff.kernels.consolidate` may merge them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Iterable, Sequence

import numpy as np
import pyarrow as pa

from pyspark_diff.errors import TooManyRowsError
from pyspark_diff.kernels.diff_vectors import DiffVectors, concat_vectors

Int64 = np.ndarray
#: One value for each row, or one value that all rows share: constants are never stored per row.
PerRow = np.ndarray | int
#: Of the columns of a value: whether it is descending, and whether nulls come last.
Ordering = tuple[tuple[bool, bool], ...]
_NUMBER = pa.int64()
#: Of so few values numpy's calls cost more than what they do.
_LISTED = 32


class OffsetOverflow(TooManyRowsError):
    """A column of one piece has more bytes than Arrow's offsets reach."""


@dataclass(frozen=True)
class Updates:
    """Update rows held by column.

    Parameters
    ----------
    key64 : ndarray of int64, shape (n,)
        The record itself when it is one integral column without nulls, else a hash of it.
    columns : tuple of pyarrow.Array or None
        The record's columns where ``key64`` is only a hash; None where it is the record.
    time : ndarray of int64, shape (n,), or int
        Logical times; a plain int when all rows share it.
    diff : ndarray of int64, shape (n,), or int, or DiffVectors
        Signed multiplicities; a plain int when all rows share it; vectors where the diff is one.
    val64 : ndarray of int64, shape (n,), or None
        Where records are pairs of a key and a value: the value, or a hash of it, as ``key64`` and
        ``columns`` are for the key. None where records have no value beside their key.
    values : tuple of pyarrow.Array or None
        The value's columns where ``val64`` is only a hash.
    ordering : Ordering or None
        Where rows of a key are in the order of their values: the order of each column. Otherwise
        any order that is the same in all batches will do.
    coordinate : ndarray of int64, shape (n,), or int
        Where in a loop the update happens: see `pyspark_diff.kernels.coordinates`. Zero outside.

    Examples
    --------
    >>> u = Updates(np.array([3, 5]), None, 0, np.array([1, -1]))
    >>> len(u), u.times().tolist(), u.diffs().tolist()
    (2, [0, 0], [1, -1])
    """

    key64: Int64
    columns: tuple[pa.Array, ...] | None
    time: PerRow
    diff: PerRow | DiffVectors
    val64: Int64 | None = None
    values: tuple[pa.Array, ...] | None = None
    ordering: Ordering | None = None
    coordinate: PerRow = 0

    def __len__(self) -> int:
        return int(self.key64.size)

    @property
    def nbytes(self) -> int:
        """Bytes of the columns; those of 64 bits beside them are left out."""
        return 0 if self.columns is None and self.values is None else self._column_bytes

    @cached_property  # asked for at each step of files that stay open
    def _column_bytes(self) -> int:
        return sum(
            8 * len(column) if column.type == _NUMBER else column.nbytes
            for column in (*(self.columns or ()), *(self.values or ()))
        )

    @property
    def size(self) -> int:
        """Bytes of all that is held, as those of a batch of it."""
        diff = self.diff.values if isinstance(self.diff, DiffVectors) else self.diff
        held = (self.key64, self.val64, self.time, self.coordinate, diff)
        return self.nbytes + sum(part.nbytes for part in held if isinstance(part, np.ndarray))

    @cached_property
    def words(self) -> tuple[int, ...] | None:
        """Addresses of the columns, for `pyspark_diff.kernels.key_index`, and the number of rows;
        None where they are not all plain numbers side by side."""
        if self.columns is not None or self.values is not None:
            return None
        if isinstance(self.diff, DiffVectors):
            return None
        found: list[int] = []
        for held in (self.key64, self.val64):
            if held is None:
                found.append(0)
            elif held.dtype == np.int64 and held.flags.c_contiguous:
                found.append(held.__array_interface__["data"][0])
            else:
                return None
        for value in (self.time, self.coordinate, self.diff):
            if not isinstance(value, np.ndarray):
                found += [0, int(value)]
            elif value.dtype == np.int64 and value.flags.c_contiguous:
                found += [value.__array_interface__["data"][0], 0]
            else:
                return None
        return (*found, len(self))

    def times(self) -> Int64:
        """Times as one array, whether or not they are all the same."""
        return spread(self.time, len(self))

    def diffs(self) -> Int64:
        """Diffs as one array, whether or not they are all the same."""
        return spread(self.scalars(), len(self))

    def scalars(self) -> PerRow:
        """The diffs, where they are numbers and not vectors."""
        if isinstance(self.diff, DiffVectors):
            raise TypeError("these diffs are vectors")
        return self.diff

    def take(self, rows: np.ndarray) -> "Updates":
        """Rows at the given indices (or where a mask is true), in that order."""
        if rows.dtype == np.bool_:
            rows = np.flatnonzero(rows)
        return self._moved(rows, taken(self.columns, rows), taken(self.values, rows))

    def between(self, start: int, stop: int) -> "Updates":
        """Rows ``start`` to ``stop``, without copying."""
        columns, values = (
            None if held is None else tuple(c.slice(start, stop - start) for c in held)
            for held in (self.columns, self.values)
        )
        return self._moved(slice(start, stop), columns, values)

    def keys(self) -> "Updates":
        """The same rows without their values."""
        return Updates(self.key64, self.columns, self.time, self.diff)

    def at(self, time: PerRow, diff: PerRow | DiffVectors) -> "Updates":
        """The same records at other times, with other diffs."""
        return Updates(
            self.key64, self.columns, time, diff, self.val64, self.values, self.ordering,
            self.coordinate,
        )

    def placed(self, coordinate: PerRow) -> "Updates":
        """The same updates at other coordinates of a loop."""
        if coordinate is self.coordinate:
            return self
        return Updates(
            self.key64, self.columns, self.time, self.diff, self.val64, self.values,
            self.ordering, coordinate,
        )

    def _moved(
        self,
        rows: np.ndarray | slice,
        columns: tuple[pa.Array, ...] | None,
        values: tuple[pa.Array, ...] | None,
    ) -> "Updates":
        val64, time, diff, coordinate = self.val64, self.time, self.diff, self.coordinate
        if val64 is not None:
            val64 = val64[rows]
        if isinstance(time, np.ndarray):
            time = time[rows]
        if isinstance(coordinate, np.ndarray):
            coordinate = coordinate[rows]
        if isinstance(diff, np.ndarray):
            diff = diff[rows]
        elif isinstance(diff, DiffVectors):
            diff = diff.take(rows)
        return Updates(
            self.key64[rows], columns, time, diff, val64, values, self.ordering, coordinate
        )

    def with_columns(self) -> tuple[pa.Array, ...]:
        """The record's columns, made from ``key64`` where that is the record."""
        return self.columns if self.columns is not None else (pa.array(self.key64),)

    def with_values(self) -> tuple[pa.Array, ...]:
        """The value's columns, made from ``val64`` where that is the value."""
        if self.values is not None:
            return self.values
        return () if self.val64 is None else (pa.array(self.val64),)


def spread(value: PerRow, rows: int) -> Int64:
    """One value for each row, from a shared one or as it is."""
    return value if isinstance(value, np.ndarray) else np.full(rows, value, dtype=np.int64)


def one_or_all(values: Int64) -> PerRow:
    """Values of rows, or the one that all of them have."""
    alike = values.size > 0 and values[0] == values[-1] and bool((values == values[0]).all())
    return int(values[0]) if alike else values


def bounds_of(values: PerRow) -> tuple[int, int] | None:
    """The least and the greatest of some values; None where there are none."""
    if not isinstance(values, np.ndarray):
        return values, values
    if not values.size:
        return None
    if values.size > _LISTED:
        return int(values.min()), int(values.max())
    listed = values.tolist()
    return min(listed), max(listed)


def pick(value: PerRow, rows: np.ndarray | slice) -> PerRow:
    """The values of some rows; a shared value stays shared."""
    return value[rows] if isinstance(value, np.ndarray) else value


def taken(
    columns: tuple[pa.Array, ...] | None, rows: np.ndarray
) -> tuple[pa.Array, ...] | None:
    """Some rows of columns."""
    if not columns:
        return columns
    if all(column.type == _NUMBER and not column.null_count for column in columns):
        # Of few rows most of what Arrow needs is for the call.
        return tuple(pa.array(column.to_numpy()[rows]) for column in columns)
    index = pa.array(rows)
    try:
        return tuple(column.take(index) for column in columns)
    except pa.ArrowInvalid as error:
        raise overflow_or(error) from error


def empty() -> Updates:
    """No updates at all."""
    return Updates(np.empty(0, np.int64), None, 0, 1)


def concat(parts: Iterable[Updates]) -> Updates:
    """All rows of several sets of updates, one set behind the other.

    Examples
    --------
    >>> a = Updates(np.array([1]), None, 0, 1)
    >>> len(concat([a, a, empty()]))
    2
    """
    kept = [part for part in parts if len(part)]
    if not kept:
        return empty()
    if len(kept) == 1:
        return kept[0]
    columns = values = val64 = None
    if any(part.columns is not None for part in kept):
        columns = tuple(joined(pieces) for pieces in zip(*(p.with_columns() for p in kept)))
    if kept[0].val64 is not None:
        val64 = np.concatenate([part.val64 for part in kept if part.val64 is not None])
        if any(part.values is not None for part in kept):
            values = tuple(joined(pieces) for pieces in zip(*(p.with_values() for p in kept)))
    return Updates(
        np.concatenate([part.key64 for part in kept]),
        columns,
        _gathered(kept, [part.time for part in kept]),
        _diffs(kept),
        val64,
        values,
        kept[0].ordering,
        _gathered(kept, [part.coordinate for part in kept]),
    )


def _diffs(parts: Sequence[Updates]) -> PerRow | DiffVectors:
    vectors = [part.diff for part in parts if isinstance(part.diff, DiffVectors)]
    if vectors:
        return concat_vectors(vectors)
    return _gathered(parts, [part.scalars() for part in parts])


def advanced(updates: Updates, since: int | None) -> Updates:
    """The same updates with times before ``since`` moved up to it; None moves nothing.

    Examples
    --------
    >>> advanced(Updates(np.array([4, 4]), None, np.array([0, 3]), 1), 5).time
    5
    """
    if since is None or not len(updates):
        return updates
    time: PerRow = updates.time
    if isinstance(time, np.ndarray):
        time = since if int(time.max()) <= since else np.maximum(time, since)
    else:
        time = max(time, since)
    return updates.at(time, updates.diff)


def sum_of(updates: Updates) -> int:
    """The sum of diffs, or of all that stands in their vectors, within 64 bits."""
    diff = updates.diff
    if isinstance(diff, DiffVectors):
        return int(diff.values.sum(dtype=np.int64))
    return int(updates.diffs().sum(dtype=np.int64))


def unshared(updates: Updates) -> Updates:
    """The same in arrays that are parts of no larger ones, and that nobody else may change.

    Those that are so already are not copied.

    Examples
    --------
    >>> many = np.arange(1_000)
    >>> few = unshared(Updates(many[:3], None, 0, 1))
    >>> few.key64.base is None, unshared(few).key64 is few.key64
    (True, True)
    """
    diff = updates.diff
    return Updates(
        _own(updates.key64), _own_columns(updates.columns), _own_value(updates.time),
        DiffVectors(_own(diff.values), diff.pairs) if isinstance(diff, DiffVectors)
        else _own_value(diff),
        None if updates.val64 is None else _own(updates.val64), _own_columns(updates.values),
        updates.ordering, _own_value(updates.coordinate),
    )


def _own(array: np.ndarray) -> np.ndarray:
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    # Beneath others, such as a buffer of Arrow, there may be what a user has.
    alone = owner.base is None and not _wasteful(owner.nbytes, array.nbytes)
    return array if alone else array.copy()


def _own_value(value: PerRow) -> PerRow:
    return _own(value) if isinstance(value, np.ndarray) else value


def _own_columns(columns: tuple[pa.Array, ...] | None) -> tuple[pa.Array, ...] | None:
    if columns is None:
        return None
    return tuple(
        pa.concat_arrays([one]) if _wasteful(one.get_total_buffer_size(), one.nbytes) else one
        for one in columns
    )


def _wasteful(held: int, used: int) -> bool:
    """Whether much more is held than is used."""
    return held > used + used // 4 + 64


def joined(pieces: Sequence[pa.Array | pa.ChunkedArray]) -> pa.Array:
    """Several arrays of one type as a single contiguous one."""
    if len(pieces) == 1:
        (piece,) = pieces
        if not isinstance(piece, pa.ChunkedArray):
            return piece
        if piece.num_chunks == 1:
            return piece.chunk(0)
    chunks: list[pa.Array] = []
    for piece in pieces:
        chunks.extend(piece.chunks if isinstance(piece, pa.ChunkedArray) else [piece])
    if len(chunks) == 1:
        return chunks[0]
    if not chunks:
        return pa.array([], type=pieces[0].type)
    try:
        return pa.concat_arrays(chunks)
    except pa.ArrowInvalid as error:
        raise overflow_or(error) from error


def overflow_or(error: pa.ArrowInvalid) -> Exception:
    """The library's error of a column that is too large for Arrow's offsets, or the given error."""
    if "overflow" not in str(error):
        return error
    return OffsetOverflow(
        "a column has more than 2 GiB of text or binary in one piece, and the offsets of Arrow "
        "have 31 bits. All records of one key are one piece: make the key finer, or keep large "
        "values in files and their paths or hashes in the collection"
    )


def _gathered(parts: Sequence[Updates], values: Sequence[PerRow]) -> PerRow:
    first = values[0]
    if all(not isinstance(v, np.ndarray) and v == first for v in values):
        return first
    return np.concatenate([spread(v, len(part)) for part, v in zip(parts, values)])
