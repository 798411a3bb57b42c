"""Collate: several results for each key, side by side in one row.

Each part has at most one record for a key at any time. At every time ``t``, for each key that is in
the first part::

    collate(P0, P1, ...)[k] = (k, the values of k in P0, in P1, ...)

with defaults where another part has none. All parts are arranged by the same key, and all that is
done is to carry each one's record forward in time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from pyspark_diff.kernels.consolidate import Grouped, consolidate
from pyspark_diff.kernels.history import distinct_keys, history
from pyspark_diff.kernels.lookup import matching_rows
from pyspark_diff.kernels.updates import Int64, concat
from pyspark_diff.operators.contract import Changes, ReplayKernel, Side
from pyspark_diff.operators.node import Arranged, Reader
from pyspark_diff.spark.schema import Schema


@dataclass(frozen=True)
class CollateKernel(ReplayKernel):
    """The records of all parts, carried forward.

    Parameters
    ----------
    key : tuple of str
        Columns of the key, which come first in the output.
    columns : tuple of (int, str, object)
        For each other output column the part it comes from, its name there, and what stands for it
        where that part has no record.
    """

    key: tuple[str, ...]
    columns: tuple[tuple[int, str, Any], ...]

    def needs(self, wanted: Sequence[int], number: int) -> Sequence[str]:
        width = len(self.key)
        chosen = [self.columns[i - width] for i in wanted if i >= width]
        return [name for part, name, _ in chosen if part == number]

    def __call__(
        self, sides: Sequence[Side], own: Side | None, wanted: Sequence[int]
    ) -> tuple[Changes, int]:
        keys = consolidate(concat([distinct_keys(side.new).at(0, 1) for side in sides]))
        times = np.unique(np.concatenate([side.new.updates.times() for side in sides]))
        parts = [_Part(side, keys, times) for side in sides]
        width = times.size + 1
        # Each key begins with what stands before the interval.
        begins = np.arange(len(keys.updates)) * width
        events = np.unique(np.concatenate([begins, *(part.codes for part in parts)]))
        states = np.stack([part.states(events, width) for part in parts])
        later = np.flatnonzero(events % width)
        later = later[(states[:, later] != states[:, later - 1]).any(axis=0)]
        gone = later[states[0, later - 1] >= 0]
        come = later[states[0, later] >= 0]
        at = np.concatenate((gone - 1, come))
        when = np.concatenate((gone, come))
        time = times[events[when] % width - 1] if when.size else np.empty(0, np.int64)
        diff = np.concatenate((np.full(gone.size, -1), np.ones(come.size, np.int64)))
        columns = []
        for i in wanted:
            if i < len(self.key):
                found = sides[0].layout.column(keys.updates, i, events[at] // width)
                columns.append(found)
                continue
            number, name, default = self.columns[i - len(self.key)]
            columns.append(parts[number].column(name, states[number, at], default))
        return (columns, time, diff), sum(part.read for part in parts)


class _Part:
    """One part's records under the touched keys."""

    def __init__(self, side: Side, keys: Grouped, times: Int64):
        self._side = side
        old_group, self.read, old = history(keys, side.old, side.lower, limit=side.limit)
        new = side.new.updates
        group, row = matching_rows(keys.updates, new)
        width = times.size + 1
        codes = group * width + 1 + np.searchsorted(times, new.times()[row])
        diffs = new.diffs()[row]
        offset = 0 if old is None else len(old)
        self._rows = new if old is None else concat([old, new])
        come = diffs > 0
        # Where one record goes and none comes, there is none from then on.
        gone = codes[~come]
        if gone.size:
            gone = np.setdiff1d(gone, codes[come])
        self.codes = np.concatenate((codes[come], gone))
        every = np.concatenate((old_group * width, self.codes))
        found = np.concatenate((
            np.arange(offset), row[come] + offset, np.full(gone.size, -1, np.int64)
        ))
        order = np.argsort(every, kind="stable")
        self._codes, self._found = every[order], found[order]

    def states(self, events: Int64, width: int) -> Int64:
        """The record that stands at each event, -1 where there is none."""
        if not self._codes.size:
            return np.full(events.size, -1, dtype=np.int64)
        last = np.searchsorted(self._codes, events, side="right") - 1
        same = (last >= 0) & (self._codes[last] // width == events // width)
        return np.where(same, self._found[last], -1)

    def column(self, name: str, rows: Int64, default: Any) -> pa.Array:
        """A column of the given records, with the default for those that are not there."""
        position = self._side.names.index(name)
        kind = self._side.layout.all_types[position]
        if not len(self._rows):
            return pa.array([default] * rows.size, kind)
        there = rows >= 0
        found = self._side.layout.column(self._rows, position, np.maximum(rows, 0))
        if there.all():
            return found
        # The default stands behind all others, to be picked where it is wanted.
        both = pa.concat_arrays([found, pa.array([default], kind)])
        return both.take(pa.array(np.where(there, np.arange(rows.size), rows.size)))


def collate(
    parts: Sequence[Arranged], columns: Sequence[tuple[int, str, Any, T.StructField]]
) -> Reader:
    """The node that puts the records of several parts into one.

    Parameters
    ----------
    parts : sequence of Arranged
        All by the same key; a key is in the result while it is in the first.
    columns : sequence of (int, str, object, StructField)
        For each column behind the key: its part, its name there, the value where there is none,
        and the field of the output.
    """
    first = parts[0]
    fields = [first.schema.struct[name] for name in first.key]
    schema = Schema(T.StructType([*fields, *(field for *_, field in columns)]))
    kernel = CollateKernel(first.key, tuple((p, n, d) for p, n, d, _ in columns))
    return Reader("collate", parts, schema, kernel, first.key)
