"""Changes by key into a collection with one record for each key.

A change has a key, a time and a number. Numbers follow the order of the requests. At every time
``t``, for each key ``k``::

    accumulate(upsert(C), t)[k] = the record after the last change of k up to t,
                                  last in order of (time, number); none if it removes the record

With a sequence, changes are versions of records, which come in any order. A deletion is a version
like others, with a mark in a column, so that later steps compare it with late ones::

    accumulate(upsert(C), t)[k] = the version of k with the greatest sequence among all up to t

Sequences order as Spark sorts them: by the columns in turn, nulls first.

A change contains its new record, so the kernel looks up only the record before it, in the
arrangement of the output by its key. Joins by this key read the same arrangement. No later step
needs the changes, so they are not stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from pyspark_diff.errors import DuplicateKeyError, NegativeMultiplicityError, SchemaError
from pyspark_diff.kernels.consolidate import Grouped, consolidate
from pyspark_diff.kernels.equality import rows_equal
from pyspark_diff.kernels.history import distinct_keys, history, key_lengths
from pyspark_diff.kernels.layout import as_int64
from pyspark_diff.kernels.lookup import matching_rows
from pyspark_diff.kernels.order import ranked
from pyspark_diff.kernels.ranking import codes
from pyspark_diff.kernels.updates import Int64, concat, joined
from pyspark_diff.operators.contract import Changes, ReplayKernel, Side
from pyspark_diff.operators.node import Input, Keyed, Reader
from pyspark_diff.spark.schema import Schema, TimeType

#: Names of the kinds of changes, by their codes.
KINDS = ("insert", "upsert", "remove", "delete", "clear")
INSERT, UPSERT, REMOVE, DELETE, CLEAR = range(len(KINDS))

#: No record.
_NONE = -1


@dataclass(frozen=True, eq=False, repr=False)
class ChangesInput(Input):
    """A source of changes by key of a dataflow.

    A change of kind ``clear`` concerns all present keys, and has no key itself: steps remove it
    from the stream, and pass it to the operator as a parameter.

    Parameters
    ----------
    record : Schema
        Columns of the records.
    change, number : str
        Further columns: the code of the change, and its number.
    """

    kind = "changes"
    record: Schema = field(kw_only=True)
    key: tuple[str, ...] = field(kw_only=True)
    change: str = field(kw_only=True)
    number: str = field(kw_only=True)
    #: Columns that order the versions of a key's record, the most significant one first.
    sequence: tuple[str, ...] = field(default=(), kw_only=True)


def changes_input(
    record: Schema, key: Sequence[str], time_type: TimeType, name: str, change: str, number: str,
    sequence: Sequence[str] = (),
) -> ChangesInput:
    """The source node of changes by key of some records: see `ChangesInput`."""
    record.check_compared(key)
    fields = [
        *record.struct.fields,
        T.StructField(change, T.ByteType()),
        T.StructField(number, T.LongType()),
    ]
    return ChangesInput(
        Schema(T.StructType(fields)), time_type, name,
        record=record, key=tuple(key), change=change, number=number, sequence=tuple(sequence),
    )


@dataclass(frozen=True)
class UpsertKernel(ReplayKernel):
    """Applies the changes of each key in order to the present record of the key.

    Parameters
    ----------
    names : tuple of str
        Columns of the records.
    change, number : str
        Further columns of the changes.
    clears : tuple of (int, int)
        Time and number of each change that removes all records, in order.
    """

    names: tuple[str, ...]
    key: tuple[str, ...]
    change: str
    number: str
    time_type: TimeType
    clears: tuple[tuple[int, int], ...] = ()
    recalls = True
    stateful = False

    @property
    def visits_all(self) -> bool:
        return bool(self.clears)

    def needs(self, wanted: Sequence[int], number: int) -> Sequence[str]:
        return [n for n in (*self.names, self.change, self.number) if n not in self.key]

    def __call__(
        self, sides: Sequence[Side], own: Side | None, wanted: Sequence[int]
    ) -> tuple[Changes, int]:
        (side,) = sides
        if own is None:
            raise ValueError("an upsert arranges its output")
        new = side.new.updates
        decoded = dict(zip(side.names, side.layout.decode(new)))
        self._check_keys([decoded[name] for name in self.key])
        keys, group = _visited(side, own) if self.clears else (side.new, _groups(side.new))
        of_group, read, present = history(keys, own.old, own.lower)
        records = [decoded[name] for name in own.names]
        offset = 0
        if present is not None:
            offset = len(present)
            records = [joined(pair) for pair in zip(own.layout.decode(present), records)]
        pool = dict(zip(own.names, records))
        before = np.full(keys.starts.size if keys.key_starts is None else keys.key_starts.size,
                         _NONE)
        before[of_group] = np.arange(offset)
        rows, times, diffs = self._replay(pool, before).run(_Events(
            group,
            new.times(),
            as_int64(decoded[self.number]).to_numpy(),
            as_int64(decoded[self.change]).to_numpy(),
            offset + np.arange(len(new)),
            new.diffs(),
        ))
        index = pa.array(rows)
        return ([pool[self.names[i]].take(index) for i in wanted], times, diffs), read

    def _replay(self, pool: dict[str, pa.Array], before: Int64) -> _UpsertReplay:
        return _UpsertReplay(self, pool, before)

    def _check_keys(self, columns: Sequence[pa.Array]) -> None:
        for name, column in zip(self.key, columns):
            if column.null_count:
                raise SchemaError(
                    f"{column.null_count} rows have a null in the key column {name}; fill it, or "
                    "filter these rows out"
                )


@dataclass(frozen=True)
class _Events:
    """Changes as columns: key, time, number, kind and record (the number of a row)."""

    group: Int64
    time: Int64
    number: Int64
    change: Int64
    record: Int64
    #: Multiplicity of the change under its number.
    count: Int64

    def __len__(self) -> int:
        return int(self.group.size)

    def take(self, rows: Int64) -> _Events:
        return _Events(*(column[rows] for column in self._columns()))

    def ordered(self) -> _Events:
        return self.take(np.lexsort((self.number, self.time, self.group)))

    def and_(self, others: _Events) -> _Events:
        pairs = zip(self._columns(), others._columns())
        return _Events(*(np.concatenate(pair) for pair in pairs))

    def _columns(self) -> tuple[Int64, ...]:
        return self.group, self.time, self.number, self.change, self.record, self.count


class _UpsertReplay:
    """Applies the changes of one bucket to the present records of its keys."""

    def __init__(self, kernel: UpsertKernel, pool: dict[str, pa.Array], before: Int64):
        self._kernel, self._pool, self._before = kernel, pool, before
        self._values = [column for name, column in pool.items() if name not in kernel.key]

    def run(self, changes: _Events) -> tuple[Int64, Int64, Int64]:
        """Rows of the pool, with the times and the diffs of their updates."""
        events = changes.ordered()
        if self._kernel.clears:
            events = events.and_(self._clears(events)).ordered()
        if not len(events):
            none = np.empty(0, np.int64)
            return none, none, none
        first = np.append(True, events.group[1:] != events.group[:-1])
        # The output has only the record after the last change of a time.
        starts = np.flatnonzero(first | np.append(True, events.time[1:] != events.time[:-1]))
        stops = np.append(starts[1:], len(events)) - 1
        before, after = self._applied(events, first, starts)
        old, new, time = before[starts], after[stops], events.time[starts]
        changed = np.flatnonzero(~self._same(old, new))
        old, new, time = old[changed], new[changed], time[changed]
        retracted, inserted = old != _NONE, new != _NONE
        diffs = np.repeat([-1, 1], [retracted.sum(), inserted.sum()])
        return (
            np.concatenate([old[retracted], new[inserted]]),
            np.concatenate([time[retracted], time[inserted]]),
            diffs,
        )

    def _applied(
        self, events: _Events, first: np.ndarray, starts: Int64
    ) -> tuple[Int64, Int64]:
        """The record of its key before and after each change.

        Parameters
        ----------
        events : _Events
            In order of key, time and number.
        first : ndarray of bool
            Whether a change is the first of its key.
        starts : ndarray of int64
            The first changes of a key at each time.
        """
        leaves = np.isin(events.change, (INSERT, UPSERT))
        after = np.where(leaves, events.record, _NONE)
        before = np.append(_NONE, after[:-1])
        before[first] = self._before[events.group[first]]
        self._check(events, before)
        return before, after

    def _same(self, left: Int64, right: Int64) -> np.ndarray:
        """Whether pairs of records are equal; either may be absent."""
        same = left == right
        both = np.flatnonzero(~same & (left != _NONE) & (right != _NONE))
        same[both] = rows_equal(self._values, left[both], right[both])
        return same

    def _clears(self, events: _Events) -> _Events:
        """The clears as changes of each key: the first clear between two changes suffices."""
        times, numbers = np.array(self._kernel.clears).T
        # The number of clears before each event.
        order = np.lexsort((
            np.concatenate([numbers, events.number]), np.concatenate([times, events.time])
        ))
        passed = np.empty(order.size, np.int64)
        passed[order] = np.cumsum(order < times.size)
        passed = passed[times.size:]
        # Present records precede all clears.
        present = np.flatnonzero(self._before != _NONE)
        group = np.concatenate([present, events.group])
        passed = np.concatenate([np.zeros(present.size, np.int64), passed])
        order = np.argsort(group, kind="stable")  # events of a group stay in order
        group, passed = group[order], passed[order]
        until = np.append(passed[1:], times.size)
        until[np.append(group[1:] != group[:-1], True)] = times.size
        cleared = np.flatnonzero(until > passed)
        clear = passed[cleared]
        return _Events(
            group[cleared], times[clear], numbers[clear], np.full(cleared.size, CLEAR),
            np.full(cleared.size, _NONE), np.ones(cleared.size, np.int64),
        )

    def _check(self, events: _Events, before: Int64) -> None:
        again = np.flatnonzero(
            (events.change == INSERT) & ((before != _NONE) | (events.count > 1))
        )
        if again.size:
            first = self._first(events, again)
            finding = "the row is inserted more than once"
            if before[first] != _NONE:
                finding = f"{self._row(before[first])!r} is there"
            raise DuplicateKeyError(
                f"insert: {self._describe(events, first)} has a key that is there already: "
                f"{finding}. Use upsert for a row that may replace another row"
            )
        absent = (events.change == REMOVE) & (events.count > 1)
        removed = np.flatnonzero(events.change == REMOVE)
        absent[removed] |= ~self._same(before[removed], events.record[removed])
        if absent.any():
            first = self._first(events, np.flatnonzero(absent))
            finding = "its key has no row"
            if before[first] != _NONE:
                finding = f"its key has {self._row(before[first])!r}"
            raise NegativeMultiplicityError(
                f"remove: {self._describe(events, first)} is not there: {finding}. Use delete to "
                "remove any row of a key"
            )
        tied = np.append(False, (
            (events.group[1:] == events.group[:-1]) & (events.time[1:] == events.time[:-1])
            & (events.number[1:] == events.number[:-1])
        ))
        if tied.any():
            last = self._first(events, np.flatnonzero(tied))
            raise DuplicateKeyError(
                f"{self._describe(events, last)} and {self._row(events.record[last - 1])!r} have "
                "one key and come from one Spark frame, whose rows have no order: leave one row "
                "for each key"
            )

    def _first(self, events: _Events, some: Int64) -> int:
        return int(some[np.lexsort((events.number[some], events.time[some]))[0]])

    def _describe(self, events: _Events, event: int) -> str:
        when = self._kernel.time_type.decode(int(events.time[event]))
        return f"{self._row(events.record[event])!r} at time {when!r}"

    def _row(self, row: int) -> tuple[object, ...]:
        return tuple(self._pool[name][int(row)].as_py() for name in self._kernel.names)


@dataclass(frozen=True)
class VersionKernel(UpsertKernel):
    """Compares the upserts of each key with its present version.

    A change of kind ``remove`` removes a version that no later version has replaced.

    Parameters
    ----------
    sequence : tuple of str
        Columns of the records, the most significant one first.
    """

    sequence: tuple[str, ...] = ()

    def _replay(self, pool: dict[str, pa.Array], before: Int64) -> _UpsertReplay:
        return _VersionReplay(self, pool, before)


class _VersionReplay(_UpsertReplay):
    _kernel: VersionKernel

    def _applied(
        self, events: _Events, first: np.ndarray, starts: Int64
    ) -> tuple[Int64, Int64]:
        columns = [self._pool[name] for name in self._kernel.sequence]
        code = codes(columns, ((False, False),) * len(columns))
        rank = np.append(ranked(code)[1] + 1, 0)  # the last place is that of _NONE
        # A key's sequences are above those of the keys before, so maxima of all events suffice.
        base = events.group * (rank.max() + 1)
        present = self._before[events.group]
        own, floor = base + rank[events.record], base + rank[present]
        greatest = np.maximum.accumulate(np.where(first, np.maximum(own, floor), own))
        known = np.where(first, floor, np.append(0, greatest[:-1]))
        # The version after each event is that of the last event that wins; before, the present one.
        removes = events.change == REMOVE
        wins = (own > known) & ~removes | (own == known) & removes
        place = np.arange(len(events))
        start = np.maximum.accumulate(np.where(first, place, 0))
        last = np.maximum.accumulate(np.where(wins, place, -1))
        after = np.where(last >= start, np.where(removes, _NONE, events.record)[last], present)
        before = np.append(_NONE, after[:-1])
        before[first] = present[first]
        # Equal sequences are harmless if a greater one has the same time.
        stops = np.append(starts[1:], len(events))
        at_end = np.repeat(greatest[stops - 1], stops - starts)
        tied = np.flatnonzero((own == known) & (own == at_end) & ~removes)
        tied = tied[(before[tied] != _NONE) & ~self._same(events.record[tied], before[tied])]
        if tied.size:
            event = self._first(events, tied)
            raise DuplicateKeyError(
                f"{self._describe(events, event)} and {self._row(before[event])!r} have one key "
                f"and one {', '.join(self._kernel.sequence)}, so neither is the later one. Leave "
                "one of them, or give them different orders"
            )
        return before, after


def _groups(grouped: Grouped) -> Int64:
    """For each row the number of its key."""
    lengths = key_lengths(grouped)
    return np.repeat(np.arange(lengths.size), lengths)


def _visited(side: Side, own: Side) -> tuple[Grouped, Int64]:
    """All keys with a change or with output, and for each change the number of its key."""
    new = side.new.updates
    parts = [distinct_keys(side.new), *(batch.keys() for batch in own.old)]
    keys = consolidate(concat([part.at(0, 1) for part in parts]))
    places, rows = matching_rows(keys.updates, new)
    group = np.empty(len(new), np.int64)
    group[rows] = places
    return keys, group


def upsert(source: ChangesInput) -> Reader:
    """The node with the collection that results from changes by key.

    Source: Materialize's ``upsert``, and differential-dataflow ``operators/arrange/upsert.rs``.
    """
    arranged = Keyed("changes", source, source.schema, None, source.key)
    names = source.record.names
    parts = names, source.key, source.change, source.number, source.time_type
    kernel = UpsertKernel(*parts, arranges_output=True) if not source.sequence else VersionKernel(
        *parts, sequence=source.sequence, arranges_output=True
    )
    return Reader("upsert", (arranged,), source.record, kernel, source.key)
