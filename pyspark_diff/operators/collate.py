"""Collate: several results for each key, side by side in one row.

Each part has at most one record for a key at any time. At every time ``t``, for each key that is in
the first part::

    collate(P0, P1, ...)[k] = (k, the values of k in P0, in P1, ...)

with defaults if another part has no record. The kernel computes the records of a part for the
touched keys from an arrangement, before the interval and at its times. So no part is stored::

    Kept      the accumulated record of a key in the arrangement
    Sums      the results of the vector of a key:  (f1(v), f2(v), ...)
    First     the first value of a key in order, or the last value
    Places    functions of the values of a key at some ranks in order

All arrangements have the same key. Several parts may read one arrangement.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Callable, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from pyspark_diff.kernels.accumulators import Accumulator, layout_of
from pyspark_diff.kernels.consolidate import Grouped, consolidate
from pyspark_diff.kernels.diff_vectors import DiffVectors, concat_vectors, running
from pyspark_diff.kernels.equality import rows_equal
from pyspark_diff.kernels.history import distinct_keys, history, key_lengths
from pyspark_diff.kernels.lookup import accumulated_vectors, matching_rows
from pyspark_diff.kernels.order import among, distinct, order_of
from pyspark_diff.kernels.quantiles import Quantiles, at_places
from pyspark_diff.kernels.results import Result
from pyspark_diff.kernels.results import GroupSums as Vectors
from pyspark_diff.kernels.top_k import FirstValues
from pyspark_diff.kernels.updates import Int64, UpdateChunk, concat
from pyspark_diff.operators.contract import Changes, ReplayKernel, Side
from pyspark_diff.operators.node import Arranged, Reader
from pyspark_diff.spark.schema import Schema


@dataclass(frozen=True, eq=False)
class Touched:
    """The visited keys, and the updates of an arrangement with these keys.

    An *event* is a key and a time at which its record may change, or the key before the interval.
    The code of the latter is ``key * width``; the codes of the times of the key follow it.

    Parameters
    ----------
    keys : UpdateChunk
        Each key once, in order.
    place : ndarray of int64
        Number of the visited key for each key of the side's new updates.
    times : ndarray of int64
        Distinct times of the new updates of all sides, in order.
    """

    side: Side
    keys: UpdateChunk
    place: Int64
    times: Int64

    @property
    def width(self) -> int:
        """Number of events that a key may have."""
        return self.times.size + 1

    @property
    def begins(self) -> Int64:
        """The first event of each key."""
        return np.arange(len(self.keys)) * self.width

    def events(self) -> Int64:
        """The event of each new update."""
        new = self.side.new
        key = np.repeat(self.place, key_lengths(new))
        return self.at(key, new.updates.times())

    def at(self, key: Int64, time: Int64) -> Int64:
        """The event of keys at times of the interval."""
        return key * self.width + 1 + np.searchsorted(self.times, time)

    @cached_property
    def firsts(self) -> FirstValues:
        """The look-up that the parts of first values and of last values share."""
        side, value = self.side, self.side.layout.value
        if value is None or (value.ordering is None and not value.exact):
            raise ValueError("a look-up of first values needs an arrangement in order")
        ordering = value.ordering or ((False, False),)  # exact numbers always have this order
        return FirstValues(self.keys, self.place, side.old, side.new, ordering, side.limit)


class States:
    """The record that is valid from each event on: the number of a row, -1 for none.

    Parameters
    ----------
    events : ndarray of int64
        In any order, with the first event of each key. The last of several equal events counts.
    column : callable
        Returns a column of some rows for its name.
    read : int
        Number of old rows that were read.
    """

    def __init__(
        self, events: Int64, rows: Int64, column: Callable[[str, Int64], pa.Array], read: int
    ):
        order = order_of(events)
        self.events, self._rows = events[order], rows[order]
        self._column, self.read = column, read

    @classmethod
    def changed(
        cls, touched: Touched, before: Int64, events: Int64, diffs: Int64, rows: Int64,
        column: Callable[[str, Int64], pa.Array], read: int,
    ) -> States:
        """The states after updates: an event with a retraction and no insertion has no record."""
        inserted = diffs > 0
        emptied = events[~inserted]
        if emptied.size:
            emptied = emptied[~among(emptied, events[inserted])]
        all_events = np.concatenate((touched.begins, events[inserted], emptied))
        all_rows = np.concatenate((before, rows[inserted], np.full(emptied.size, -1)))
        return cls(all_events, all_rows, column, read)

    def at(self, events: Int64) -> Int64:
        """The row that is valid at each event."""
        return self._rows[np.searchsorted(self.events, events, side="right") - 1]

    def column(self, name: str, rows: Int64, default: Any) -> pa.Array:
        """A column of some rows, with the default for each -1."""
        present = rows >= 0
        values = self._column(name, rows[present])
        if present.all():
            return values
        # The default is the last value, so that one take fills all missing rows.
        both = pa.concat_arrays([values, pa.array([default], values.type)])
        return both.take(pa.array(np.where(present, np.cumsum(present) - 1, len(values))))


@dataclass(frozen=True)
class Part(ABC):
    """A source of output columns.

    Parameters
    ----------
    side : int
        Number of the arrangement.
    """

    side: int

    def needs(self, names: Sequence[str]) -> Sequence[str]:
        """Columns of the arrangement from which some columns are computed."""
        return names

    @abstractmethod
    def states(self, touched: Touched, names: Sequence[str]) -> States:
        """The records of the touched keys, with some columns."""


@dataclass(frozen=True)
class Kept(Part):
    """The records of an arrangement with one record for each key."""

    def states(self, touched: Touched, names: Sequence[str]) -> States:
        side, keys = touched.side, touched.keys
        new = side.new.updates
        owner, read, old = history(
            Grouped(keys, np.arange(len(keys))), side.old, side.lower, limit=side.limit
        )
        records = new if old is None else concat([old, new])
        before = np.full(len(keys), -1)
        before[owner] = np.arange(owner.size)

        def column(name: str, rows: Int64) -> pa.Array:
            return side.layout.column(records, side.names.index(name), rows)

        return States.changed(
            touched, before, touched.events(), new.diffs(), np.arange(len(new)) + owner.size,
            column, read,
        )


@dataclass(frozen=True)
class Sums(Part):
    """The results of sums in the diff.

    Parameters
    ----------
    accumulators : tuple of Accumulator
        The components of the vectors. The first counts records; a key without records has no row.
    """

    accumulators: tuple[Accumulator, ...]
    results: tuple[tuple[str, Result], ...]

    def needs(self, names: Sequence[str]) -> Sequence[str]:
        return []  # the key, and vectors

    def states(self, touched: Touched, names: Sequence[str]) -> States:
        side, keys = touched.side, touched.keys
        offsets, width, pairs = layout_of(self.accumulators)
        base, read = accumulated_vectors(
            keys, side.old, DiffVectors(np.empty((0, width), np.int64), pairs), side.limit
        )
        events, vectors = touched.begins, base
        new = side.new.updates
        if isinstance(new.diff, DiffVectors):  # an empty batch has no vectors
            _, after = running(new.diff, side.new.starts, base.take(touched.place))
            events = np.concatenate((events, touched.events()))
            vectors = concat_vectors([base, after])
        present = vectors.values[:, 0] != 0
        # One call computes the results of all vectors that have a row.
        nonempty = vectors if present.all() else vectors.take(present)
        sums = Vectors(nonempty, dict(zip(self.accumulators, offsets)))
        values = {name: result.evaluate(sums) for name, result in self.results if name in names}

        def column(name: str, rows: Int64) -> pa.Array:
            if rows.size == len(nonempty) and (rows == np.arange(rows.size)).all():
                return values[name]
            return values[name].take(pa.array(rows))

        return States(events, np.where(present, np.cumsum(present) - 1, -1), column, read)


@dataclass(frozen=True)
class First(Part):
    """The first value of each key in the order of the arrangement.

    Parameters
    ----------
    from_back : bool
        Whether the part returns the last value instead.
    """

    from_back: bool

    def states(self, touched: Touched, names: Sequence[str]) -> States:
        side = touched.side
        changes = touched.firsts.changes(from_back=self.from_back)
        values, before, key, time, diff, row, read = changes
        # The layout decodes columns of the value, so that keys, times and diffs are fillers.
        records = UpdateChunk(values.key64, None, 0, 1, values.key64, values.columns)

        def column(name: str, rows: Int64) -> pa.Array:
            return side.layout.column(records, side.names.index(name), rows)

        return States.changed(touched, before, touched.at(key, time), diff, row, column, read)


@dataclass(frozen=True)
class Places(Part):
    """Functions of each key's values at some ranks, in an arrangement of numbers.

    Parameters
    ----------
    value : str
        The column of the numbers.
    """

    value: str
    results: tuple[tuple[str, Quantiles], ...]

    def needs(self, names: Sequence[str]) -> Sequence[str]:
        return [self.value]

    def states(self, touched: Touched, names: Sequence[str]) -> States:
        side, read = touched.side, 0
        events = touched.events() if len(side.new.updates) else np.empty(0, np.int64)
        results: dict[str, pa.Array] = {}
        for name, quantiles in self.results:
            if name in names:
                all_events, totals, values, read = at_places(
                    touched.keys, touched.place, side.old, side.new, events, touched.width,
                    quantiles, side.limit,
                )
                present = totals > 0
                results[name] = quantiles.evaluate(totals[present], values[present])

        def column(name: str, rows: Int64) -> pa.Array:
            return results[name].take(pa.array(rows))

        return States(all_events, np.where(present, np.cumsum(present) - 1, -1), column, read)


@dataclass(frozen=True)
class CollateKernel(ReplayKernel):
    """The records of all parts, carried forward.

    Parameters
    ----------
    key : tuple of str
        Columns of the key, which come first in the output.
    parts : tuple of Part
        A key is in the output while it is in the first.
    columns : tuple of (int, str, object)
        For each other output column its part, its name in the part, and its value if the part has
        no record.
    """

    key: tuple[str, ...]
    parts: tuple[Part, ...]
    columns: tuple[tuple[int, str, Any], ...]

    def needs(self, wanted: Sequence[int], number: int) -> Sequence[str]:
        names = self._names(wanted)
        return [n for p, part in enumerate(self.parts) if part.side == number
                for n in part.needs(names.get(p, []))]

    def _names(self, wanted: Sequence[int]) -> dict[int, list[str]]:
        """The wanted columns by part, always with the first part, which decides the keys."""
        names: dict[int, list[str]] = {0: []}
        for i in wanted:
            if i >= len(self.key):
                part, name, _ = self.columns[i - len(self.key)]
                names.setdefault(part, []).append(name)
        return names

    def __call__(
        self, sides: Sequence[Side], own: Side | None, wanted: Sequence[int]
    ) -> tuple[Changes, int]:
        keys, places = _keys(sides)
        times = distinct(np.concatenate([side.new.updates.times() for side in sides]))
        touched = [Touched(side, keys, place, times) for side, place in zip(sides, places)]
        parts = {
            number: self.parts[number].states(touched[self.parts[number].side], names)
            for number, names in self._names(wanted).items()
        }
        width = times.size + 1
        events = distinct(np.concatenate([part.events for part in parts.values()]))
        states = {number: part.at(events) for number, part in parts.items()}
        rows = np.stack(list(states.values()))
        changed = np.flatnonzero(events % width)
        changed = changed[(rows[:, changed] != rows[:, changed - 1]).any(axis=0)]
        present = states[0] >= 0
        retracted, inserted = changed[present[changed - 1]], changed[present[changed]]
        source = np.concatenate((retracted - 1, inserted))
        columns = []
        for i in wanted:
            if i < len(self.key):
                columns.append(sides[0].layout.column(keys, i, events[source] // width))
                continue
            number, name, default = self.columns[i - len(self.key)]
            columns.append(parts[number].column(name, states[number][source], default))
        when = np.concatenate((retracted, inserted))
        time = times[events[when] % width - 1] if when.size else np.empty(0, np.int64)
        diff = np.concatenate((np.full(retracted.size, -1), np.ones(inserted.size, np.int64)))
        values = [n for n, i in enumerate(wanted) if i >= len(self.key)]
        changes = _differing(columns, values, when, time, diff)
        return changes, sum(part.read for part in parts.values())


def _keys(sides: Sequence[Side]) -> tuple[UpdateChunk, list[Int64]]:
    """The distinct keys of all new updates, and the places of each side's keys among them."""
    by_side = [distinct_keys(side.new).at(0, 1) for side in sides]
    keys = max(by_side, key=len)
    if len(keys) and all(own.columns is None for own in by_side):
        # Usually one side has all keys, and then no consolidation is needed.
        places = [np.searchsorted(keys.key64, own.key64) for own in by_side]
        if all(
            (keys.key64[np.minimum(place, len(keys) - 1)] == own.key64).all()
            for place, own in zip(places, by_side)
        ):
            return keys, places
    keys = consolidate(concat(by_side)).updates
    return keys, [matching_rows(own, keys)[1] for own in by_side]


def _differing(
    columns: list[pa.Array], values: Sequence[int], when: Int64, time: Int64, diff: Int64
) -> Changes:
    """The changes without replacements of a row by an equal row.

    Parameters
    ----------
    columns : list of pyarrow.Array
    values : sequence of int
        Numbers of the columns in which rows of one key may differ.
    when : ndarray of int64
        The event of each row; first all retractions, then all insertions.
    """
    _, old, new = np.intersect1d(when[diff < 0], when[diff > 0], True, return_indices=True)
    new += np.count_nonzero(diff < 0)
    for number in values:
        if not old.size:
            break
        equal = rows_equal([columns[number]], old, new)
        old, new = old[equal], new[equal]
    if not old.size:
        return columns, time, diff
    differs = np.ones(diff.size, np.bool_)
    differs[old] = differs[new] = False
    rows = np.flatnonzero(differs)
    index = pa.array(rows)
    return [column.take(index) for column in columns], time[rows], diff[rows]


def collate(
    arranged: Sequence[Arranged],
    parts: Sequence[Part],
    columns: Sequence[tuple[int, str, Any, T.StructField]],
) -> Reader:
    """The node that puts the records of several parts into one.

    Parameters
    ----------
    arranged : sequence of Arranged
        All by the same key.
    parts : sequence of Part
        A key is in the result while it is in the first.
    columns : sequence of (int, str, object, StructField)
        For each column after the key: its part, its name in the part, its value if the part has no
        record, and the field of the output.
    """
    first = arranged[0]
    fields = [first.schema.struct[name] for name in first.key]
    schema = Schema(T.StructType([*fields, *(field for *_, field in columns)]))
    kernel = CollateKernel(first.key, tuple(parts), tuple((p, n, d) for p, n, d, _ in columns))
    return Reader("collate", arranged, schema, kernel, first.key)
