"""Columns of update rows, the input of kernels.

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

from pyspark_diff import thresholds
from pyspark_diff.errors import TooManyRowsError
from pyspark_diff.kernels.diff_vectors import DiffVectors, concat_vectors

Int64 = np.ndarray
#: One value for each row, or one value that all rows share: constants are never stored per row.
PerRow = np.ndarray | int
#: For each column of a value: whether it is descending, and whether nulls are last.
Ordering = tuple[tuple[bool, bool], ...]
_NUMBER = pa.int64()


class OffsetOverflow(TooManyRowsError):
    """A column of one piece has more bytes than Arrow's offsets reach."""


@dataclass(frozen=True)
class UpdateChunk:
    """Update rows stored by column.

    Parameters
    ----------
    key64 : ndarray of int64, shape (n,)
        The record itself if it is one integral column without nulls, else a hash of it.
    columns : tuple of pyarrow.Array or None
        The record's columns if ``key64`` is only a hash; None if it is the record.
    time : ndarray of int64, shape (n,), or int
        Logical times; a plain int if all rows share it.
    diff : ndarray of int64, shape (n,), or int, or DiffVectors
        Signed multiplicities; a plain int if all rows share it; vectors for diffs of linear
        aggregates.
    val64 : ndarray of int64, shape (n,), or None
        If records are pairs of a key and a value: the value, or a hash of it, like
        ``key64`` for the key. None if records are keys only.
    values : tuple of pyarrow.Array or None
        The value's columns if ``val64`` is only a hash.
    ordering : Ordering or None
        If rows of a key are in the order of their values: the order of each column.
        Otherwise any order is allowed that is the same in all batches.
    coordinate : ndarray of int64, shape (n,), or int
        The coordinate of the update in a loop: see `pyspark_diff.kernels.coordinates`. Zero
        outside.

    Examples
    --------
    >>> u = UpdateChunk(np.array([3, 5]), None, 0, np.array([1, -1]))
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
        """Bytes of the Arrow columns, without the arrays of 64 bits."""
        return 0 if self.columns is None and self.values is None else self._column_bytes

    @cached_property  # read at each step for files that stay open
    def _column_bytes(self) -> int:
        return sum(
            8 * len(column) if column.type == _NUMBER else column.nbytes
            for column in (*(self.columns or ()), *(self.values or ()))
        )

    @property
    def size(self) -> int:
        """Bytes of all columns and arrays, as in a batch."""
        diff = self.diff.values if isinstance(self.diff, DiffVectors) else self.diff
        arrays = (self.key64, self.val64, self.time, self.coordinate, diff)
        return self.nbytes + sum(part.nbytes for part in arrays if isinstance(part, np.ndarray))

    @cached_property
    def words(self) -> tuple[int, ...] | None:
        """Addresses of the columns, for `pyspark_diff.kernels.key_index`, and the number of rows;
        None if they are not all contiguous plain numbers."""
        if self.columns is not None or self.values is not None:
            return None
        if isinstance(self.diff, DiffVectors):
            return None
        words: list[int] = []
        for values in (self.key64, self.val64):
            if values is None:
                words.append(0)
            elif values.dtype == np.int64 and values.flags.c_contiguous:
                words.append(values.__array_interface__["data"][0])
            else:
                return None
        for value in (self.time, self.coordinate, self.diff):
            if not isinstance(value, np.ndarray):
                words += [0, int(value)]
            elif value.dtype == np.int64 and value.flags.c_contiguous:
                words += [value.__array_interface__["data"][0], 0]
            else:
                return None
        return (*words, len(self))

    def times(self) -> Int64:
        """Times as one array, also if all are equal."""
        return spread(self.time, len(self))

    def diffs(self) -> Int64:
        """Diffs as one array, also if all are equal."""
        return spread(self.scalars(), len(self))

    def scalars(self) -> PerRow:
        """The diffs, if they are numbers and not vectors."""
        if isinstance(self.diff, DiffVectors):
            raise TypeError("these diffs are vectors")
        return self.diff

    def take(self, rows: np.ndarray) -> "UpdateChunk":
        """Rows at some indices (or of a mask), in that order."""
        if rows.dtype == np.bool_:
            rows = np.flatnonzero(rows)
        return self._moved(rows, take_columns(self.columns, rows), take_columns(self.values, rows))

    def between(self, start: int, stop: int) -> "UpdateChunk":
        """Rows ``start`` to ``stop``, without copying."""
        columns, values = (
            None if columns_of is None else tuple(c.slice(start, stop - start) for c in columns_of)
            for columns_of in (self.columns, self.values)
        )
        return self._moved(slice(start, stop), columns, values)

    def keys(self) -> "UpdateChunk":
        """The same rows without their values."""
        return UpdateChunk(self.key64, self.columns, self.time, self.diff)

    def at(self, time: PerRow, diff: PerRow | DiffVectors) -> "UpdateChunk":
        """The same records at other times, with other diffs."""
        return UpdateChunk(
            self.key64, self.columns, time, diff, self.val64, self.values, self.ordering,
            self.coordinate,
        )

    def placed(self, coordinate: PerRow) -> "UpdateChunk":
        """The same updates at other coordinates of a loop."""
        if coordinate is self.coordinate:
            return self
        return UpdateChunk(
            self.key64, self.columns, self.time, self.diff, self.val64, self.values,
            self.ordering, coordinate,
        )

    def _moved(
        self,
        rows: np.ndarray | slice,
        columns: tuple[pa.Array, ...] | None,
        values: tuple[pa.Array, ...] | None,
    ) -> "UpdateChunk":
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
        return UpdateChunk(
            self.key64[rows], columns, time, diff, val64, values, self.ordering, coordinate
        )

    def with_columns(self) -> tuple[pa.Array, ...]:
        """The record's columns; a column of ``key64`` if that is the record."""
        return self.columns if self.columns is not None else (pa.array(self.key64),)

    def with_values(self) -> tuple[pa.Array, ...]:
        """The value's columns; a column of ``val64`` if that is the value."""
        if self.values is not None:
            return self.values
        return () if self.val64 is None else (pa.array(self.val64),)


def spread(value: PerRow, rows: int) -> Int64:
    """One value for each row, from a shared value or unchanged."""
    return value if isinstance(value, np.ndarray) else np.full(rows, value, dtype=np.int64)


def one_or_all(values: Int64) -> PerRow:
    """Values of rows, or the single value that all rows share."""
    same = values.size > 0 and values[0] == values[-1] and bool((values == values[0]).all())
    return int(values[0]) if same else values


def bounds_of(values: PerRow) -> tuple[int, int] | None:
    """The least and the greatest of some values; None if there are none."""
    if not isinstance(values, np.ndarray):
        return values, values
    if not values.size:
        return None
    if values.size > thresholds.current.list_values_max:
        return int(values.min()), int(values.max())
    listed = values.tolist()
    return min(listed), max(listed)


def pick(value: PerRow, rows: np.ndarray | slice) -> PerRow:
    """The values of some rows; a shared value stays shared."""
    return value[rows] if isinstance(value, np.ndarray) else value


def take_columns(
    columns: tuple[pa.Array, ...] | None, rows: np.ndarray
) -> tuple[pa.Array, ...] | None:
    """Some rows of columns."""
    if not columns:
        return columns
    if all(column.type == _NUMBER and not column.null_count for column in columns):
        # For few rows the call is most of Arrow's cost.
        return tuple(pa.array(column.to_numpy()[rows]) for column in columns)
    index = pa.array(rows)
    try:
        return tuple(column.take(index) for column in columns)
    except pa.ArrowInvalid as error:
        raise overflow_or(error) from error


def empty() -> UpdateChunk:
    """No updates at all."""
    return UpdateChunk(np.empty(0, np.int64), None, 0, 1)


def concat(parts: Iterable[UpdateChunk]) -> UpdateChunk:
    """All rows of several sets of updates, concatenated.

    Examples
    --------
    >>> a = UpdateChunk(np.array([1]), None, 0, 1)
    >>> len(concat([a, a, empty()]))
    2
    """
    nonempty = [part for part in parts if len(part)]
    if not nonempty:
        return empty()
    if len(nonempty) == 1:
        return nonempty[0]
    columns = values = val64 = None
    if any(part.columns is not None for part in nonempty):
        columns = tuple(joined(pieces) for pieces in zip(*(p.with_columns() for p in nonempty)))
    if nonempty[0].val64 is not None:
        val64 = np.concatenate([part.val64 for part in nonempty if part.val64 is not None])
        if any(part.values is not None for part in nonempty):
            values = tuple(joined(pieces) for pieces in zip(*(p.with_values() for p in nonempty)))
    return UpdateChunk(
        np.concatenate([part.key64 for part in nonempty]),
        columns,
        _gathered(nonempty, [part.time for part in nonempty]),
        _diffs(nonempty),
        val64,
        values,
        nonempty[0].ordering,
        _gathered(nonempty, [part.coordinate for part in nonempty]),
    )


def _diffs(parts: Sequence[UpdateChunk]) -> PerRow | DiffVectors:
    vectors = [part.diff for part in parts if isinstance(part.diff, DiffVectors)]
    if vectors:
        return concat_vectors(vectors)
    return _gathered(parts, [part.scalars() for part in parts])


def advanced(updates: UpdateChunk, since: int | None) -> UpdateChunk:
    """The same updates with times before ``since`` moved up to it; None moves nothing.

    Examples
    --------
    >>> advanced(UpdateChunk(np.array([4, 4]), None, np.array([0, 3]), 1), 5).time
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


def sum_of(updates: UpdateChunk) -> int:
    """The sum of diffs, or of all components of their vectors, modulo 2**64."""
    diff = updates.diff
    if isinstance(diff, DiffVectors):
        return int(diff.values.sum(dtype=np.int64))
    return int(updates.diffs().sum(dtype=np.int64))


def unshared(updates: UpdateChunk) -> UpdateChunk:
    """The same updates in arrays of their own: not a part of larger arrays, and not shared.

    Arrays for which that is already true are not copied.

    Examples
    --------
    >>> many = np.arange(1_000)
    >>> few = unshared(UpdateChunk(many[:3], None, 0, 1))
    >>> few.key64.base is None, unshared(few).key64 is few.key64
    (True, True)
    """
    diff = updates.diff
    return UpdateChunk(
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
    # The base of an array, such as a buffer of Arrow, may be memory of a user.
    alone = owner.base is None and not _wasteful(owner.nbytes, array.nbytes)
    return array if alone else array.copy()


def _own_value(value: PerRow) -> PerRow:
    return _own(value) if isinstance(value, np.ndarray) else value


def _own_columns(columns: tuple[pa.Array, ...] | None) -> tuple[pa.Array, ...] | None:
    if columns is None:
        return None
    return tuple(
        pa.concat_arrays([column])
        if _wasteful(column.get_total_buffer_size(), column.nbytes) else column
        for column in columns
    )


def _wasteful(allocated: int, used: int) -> bool:
    """Whether the buffer is much larger than its used part."""
    return allocated > used + used // 4 + 64


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
    """The library's error for a column that is too large for Arrow's offsets, or the same error."""
    if "overflow" not in str(error):
        return error
    return OffsetOverflow(
        "a column has more than 2 GiB of text or binary in one piece, and the offsets of Arrow "
        "have 31 bits. All records of one key are one piece: make the key finer, or keep large "
        "values in files and their paths or hashes in the collection"
    )


def _gathered(parts: Sequence[UpdateChunk], values: Sequence[PerRow]) -> PerRow:
    first = values[0]
    if all(not isinstance(v, np.ndarray) and v == first for v in values):
        return first
    return np.concatenate([spread(v, len(part)) for part, v in zip(parts, values)])
