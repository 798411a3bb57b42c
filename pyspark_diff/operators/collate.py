"""Collate: several results for each key, side by side in one row.

Each part has at most one record for a key at any time. At every time ``t``, for each key that is in
the first part::

    collate(P0, P1, ...)[k] = (k, the values of k in P0, in P1, ...)

with defaults where another part has none. What a part has under the touched keys is found in an
arrangement, as it stood before the interval and at its times, and need not be kept itself::

    Kept      the record of a key that stands in the arrangement
    Sums      the results of the vector of a key:  (f1(v), f2(v), ...)
    First     the first of the values of a key in order, or the last
    Places    what is made of the values of a key at some places in order

All arrangements are by the same key. Any number of parts may be found in one.
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
from pyspark_diff.kernels.results import Sums as Vectors
from pyspark_diff.kernels.top_k import Firsts
from pyspark_diff.kernels.updates import Int64, Updates, concat
from pyspark_diff.operators.contract import Changes, ReplayKernel, Side
from pyspark_diff.operators.node import Arranged, Reader
from pyspark_diff.spark.schema import Schema


@dataclass(frozen=True, eq=False)
class Touched:
    """The keys that are visited, and what of an arrangement is under them.

    An *event* is a key and a time at which something may come to stand, or the key and what stood
    before: ``key * width`` and from there on the number of the time.

    Parameters
    ----------
    side : Side
    keys : Updates
        Each once, in order.
    place : ndarray of int64
        For each key of the side's new updates which one of them it is.
    times : ndarray of int64
        Those of the new updates of all sides, each once, in order.
    """

    side: Side
    keys: Updates
    place: Int64
    times: Int64

    @property
    def width(self) -> int:
        """How many events a key may have."""
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
    def firsts(self) -> Firsts:
        """What is looked up once for the first and the last values."""
        side, value = self.side, self.side.layout.value
        if value is None or (value.ordering is None and not value.exact):
            raise ValueError("what comes first is found in an arrangement in order")
        ordering = value.ordering or ((False, False),)  # so numbers are in any case
        return Firsts(self.keys, self.place, side.old, side.new, ordering, side.limit)


class States:
    """What stands from each of some events on: the number of a row, -1 for none.

    Parameters
    ----------
    events : ndarray of int64
        In any order; the first one of each key is among them. Of equal ones the last one counts.
    rows : ndarray of int64
    column : callable
        A column of some rows by its name, and its type.
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
        """The states where records come and go: where one goes and none comes, there is none."""
        come = diffs > 0
        gone = events[~come]
        if gone.size:
            gone = gone[~among(gone, events[come])]
        every = np.concatenate((touched.begins, events[come], gone))
        found = np.concatenate((before, rows[come], np.full(gone.size, -1)))
        return cls(every, found, column, read)

    def at(self, events: Int64) -> Int64:
        """The row that stands at each event."""
        return self._rows[np.searchsorted(self.events, events, side="right") - 1]

    def column(self, name: str, rows: Int64, default: Any) -> pa.Array:
        """A column of the given rows, with the default for those that are not there."""
        there = rows >= 0
        found = self._column(name, rows[there])
        if there.all():
            return found
        # The default stands behind all others, to be picked where it is wanted.
        both = pa.concat_arrays([found, pa.array([default], found.type)])
        return both.take(pa.array(np.where(there, np.cumsum(there) - 1, len(found))))


@dataclass(frozen=True)
class Part(ABC):
    """What some columns come from.

    Parameters
    ----------
    side : int
        Number of the arrangement.
    """

    side: int

    def needs(self, names: Sequence[str]) -> Sequence[str]:
        """Columns of the arrangement that some columns are made of."""
        return names

    @abstractmethod
    def states(self, touched: Touched, names: Sequence[str]) -> States:
        """What stands under the touched keys, and some columns of it."""


@dataclass(frozen=True)
class Kept(Part):
    """The record of an arrangement that has one for each key."""

    def states(self, touched: Touched, names: Sequence[str]) -> States:
        side, keys = touched.side, touched.keys
        new = side.new.updates
        of, read, old = history(
            Grouped(keys, np.arange(len(keys))), side.old, side.lower, limit=side.limit
        )
        rows = new if old is None else concat([old, new])
        before = np.full(len(keys), -1)
        before[of] = np.arange(of.size)

        def column(name: str, found: Int64) -> pa.Array:
            return side.layout.column(rows, side.names.index(name), found)

        return States.changed(
            touched, before, touched.events(), new.diffs(), np.arange(len(new)) + of.size,
            column, read,
        )


@dataclass(frozen=True)
class Sums(Part):
    """What is made of sums that live in the diff.

    Parameters
    ----------
    accumulators : tuple of Accumulator
        What the vectors hold; the first counts records, and where it is zero there is nothing.
    results : tuple of (str, Result)
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
        events, every = touched.begins, base
        new = side.new.updates
        if isinstance(new.diff, DiffVectors):  # else there is none
            _, after = running(new.diff, side.new.starts, base.take(touched.place))
            events = np.concatenate((events, touched.events()))
            every = concat_vectors([base, after])
        there = every.values[:, 0] != 0
        # The results of all vectors that make a row: one call for all.
        standing = every if there.all() else every.take(there)
        sums = Vectors(standing, dict(zip(self.accumulators, offsets)))
        made = {name: result.of(sums) for name, result in self.results if name in names}

        def column(name: str, found: Int64) -> pa.Array:
            if found.size == len(standing) and (found == np.arange(found.size)).all():
                return made[name]
            return made[name].take(pa.array(found))

        return States(events, np.where(there, np.cumsum(there) - 1, -1), column, read)


@dataclass(frozen=True)
class First(Part):
    """The first of each key's values in the order of the arrangement.

    Parameters
    ----------
    from_back : bool
        Whether it is the last.
    """

    from_back: bool

    def states(self, touched: Touched, names: Sequence[str]) -> States:
        side = touched.side
        values, before, key, time, diff, row, read = touched.firsts.of(from_back=self.from_back)
        # Only the value is looked at.
        rows = Updates(values.key64, None, 0, 1, values.key64, values.columns)

        def column(name: str, found: Int64) -> pa.Array:
            return side.layout.column(rows, side.names.index(name), found)

        return States.changed(touched, before, touched.at(key, time), diff, row, column, read)


@dataclass(frozen=True)
class Places(Part):
    """What is made of each key's values at some places, in an arrangement of numbers.

    Parameters
    ----------
    value : str
        The column of the numbers.
    results : tuple of (str, Quantiles)
    """

    value: str
    results: tuple[tuple[str, Quantiles], ...]

    def needs(self, names: Sequence[str]) -> Sequence[str]:
        return [self.value]

    def states(self, touched: Touched, names: Sequence[str]) -> States:
        side, read = touched.side, 0
        events = touched.events() if len(side.new.updates) else np.empty(0, np.int64)
        made: dict[str, pa.Array] = {}
        for name, wanted in self.results:
            if name in names:
                every, totals, found, read = at_places(
                    touched.keys, touched.place, side.old, side.new, events, touched.width,
                    wanted, side.limit,
                )
                there = totals > 0
                made[name] = wanted.of(totals[there], found[there])

        def column(name: str, rows: Int64) -> pa.Array:
            return made[name].take(pa.array(rows))

        return States(every, np.where(there, np.cumsum(there) - 1, -1), column, read)


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
        For each other output column the part it comes from, its name there, and what stands for it
        where that part has no record.
    """

    key: tuple[str, ...]
    parts: tuple[Part, ...]
    columns: tuple[tuple[int, str, Any], ...]

    def needs(self, wanted: Sequence[int], number: int) -> Sequence[str]:
        found = self._names(wanted)
        return [n for p, part in enumerate(self.parts) if part.side == number
                for n in part.needs(found.get(p, []))]

    def _names(self, wanted: Sequence[int]) -> dict[int, list[str]]:
        """The columns that are taken of the parts; of the first one maybe none."""
        found: dict[int, list[str]] = {0: []}
        for i in wanted:
            if i >= len(self.key):
                part, name, _ = self.columns[i - len(self.key)]
                found.setdefault(part, []).append(name)
        return found

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
        every = np.stack(list(states.values()))
        later = np.flatnonzero(events % width)
        later = later[(every[:, later] != every[:, later - 1]).any(axis=0)]
        there = states[0] >= 0
        gone, come = later[there[later - 1]], later[there[later]]
        at = np.concatenate((gone - 1, come))
        columns = []
        for i in wanted:
            if i < len(self.key):
                columns.append(sides[0].layout.column(keys, i, events[at] // width))
                continue
            number, name, default = self.columns[i - len(self.key)]
            columns.append(parts[number].column(name, states[number][at], default))
        when = np.concatenate((gone, come))
        time = times[events[when] % width - 1] if when.size else np.empty(0, np.int64)
        diff = np.concatenate((np.full(gone.size, -1), np.ones(come.size, np.int64)))
        told = [n for n, i in enumerate(wanted) if i >= len(self.key)]
        changes = _differing(columns, told, when, time, diff)
        return changes, sum(part.read for part in parts.values())


def _keys(sides: Sequence[Side]) -> tuple[Updates, list[Int64]]:
    """The keys under which there is anything new, each once, and which of them each side has."""
    found = [distinct_keys(side.new).at(0, 1) for side in sides]
    keys = max(found, key=len)
    if len(keys) and all(one.columns is None for one in found):
        # Mostly one of them has all.
        places = [np.searchsorted(keys.key64, one.key64) for one in found]
        if all(
            (keys.key64[np.minimum(place, len(keys) - 1)] == one.key64).all()
            for place, one in zip(places, found)
        ):
            return keys, places
    keys = consolidate(concat(found)).updates
    return keys, [matching_rows(one, keys)[1] for one in found]


def _differing(
    columns: list[pa.Array], told: Sequence[int], when: Int64, time: Int64, diff: Int64
) -> Changes:
    """The changes without those that replace a row by an equal one.

    Parameters
    ----------
    columns : list of pyarrow.Array
    told : sequence of int
        Those of them in which rows of one key may differ.
    when : ndarray of int64
        The event of each row; first those that go, then those that come.
    time, diff : ndarray of int64
    """
    _, gone, come = np.intersect1d(when[diff < 0], when[diff > 0], True, return_indices=True)
    come += np.count_nonzero(diff < 0)
    for number in told:
        if not gone.size:
            break
        equal = rows_equal([columns[number]], gone, come)
        gone, come = gone[equal], come[equal]
    if not gone.size:
        return columns, time, diff
    kept = np.ones(diff.size, np.bool_)
    kept[gone] = kept[come] = False
    rows = np.flatnonzero(kept)
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
        For each column behind the key: its part, its name there, the value where there is none,
        and the field of the output.
    """
    first = arranged[0]
    fields = [first.schema.struct[name] for name in first.key]
    schema = Schema(T.StructType([*fields, *(field for *_, field in columns)]))
    kernel = CollateKernel(first.key, tuple(parts), tuple((p, n, d) for p, n, d, _ in columns))
    return Reader("collate", arranged, schema, kernel, first.key)
