"""A kept collection read as a table: a partition for each bucket.

For the collection ``A`` at the commit, and a readable time ``t``::

    rows at t                =  each record with its multiplicity in  accumulate(A, t)
    changes since s until t  =  the updates of A at times after s, up to and with t

Filters that name keys skip buckets, and other keys in the remaining buckets. The read still returns
every row that passes the filters, and Spark applies the filters to all returned rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_diff import thresholds
from pyspark_diff.data_source.changes import changes_in
from pyspark_diff.data_source.opened import (
    READ,
    Held,
    OpenedCollection,
    Pin,
    Rows,
    shape_of,
)
from pyspark_diff.data_source.options import Options
from pyspark_diff.errors import NegativeMultiplicityError, TimeRegressionError
from pyspark_diff.kernels.layout import Layout
from pyspark_diff.kernels.standing import repeated_places, snapshot
from pyspark_diff.kernels.updates import Int64, UpdateChunk


@dataclass(frozen=True)
class Bucket(InputPartition):
    """The parts of a bucket."""

    number: int
    parts: tuple[Held, ...]


@dataclass(frozen=True)
class Keys:
    """The keys in filters: the sorted ``key64`` of each bucket."""

    by_bucket: Mapping[int, Int64]

    def select(self, bucket: int, updates: UpdateChunk) -> UpdateChunk:
        """The updates of a bucket whose key may be among the keys."""
        keys = self.by_bucket[bucket]
        first = np.searchsorted(updates.key64, keys, side="left")
        last = np.searchsorted(updates.key64, keys, side="right")
        # All buckets together have at most `look_up_keys_max` keys.
        rows = [np.arange(a, b) for a, b in zip(first, last) if a < b]
        return updates.take(np.concatenate(rows)) if rows else updates.between(0, 0)


class CollectionScan(DataSourceReader):
    """Reads a kept collection, bucket by bucket.

    Parameters
    ----------
    time : int or None
        The time of the records; None for changes.
    since, until : int
        The interval of changes.
    keys : Keys, optional
        The only keys to read.
    """

    def __init__(
        self, rows: Rows, time: int | None, since: int, until: int,
        parts: Mapping[int, Sequence[Held]], buckets: int, allow_negative: bool,
    ):
        self._rows, self._time, self._since, self._until = rows, time, since, until
        self._parts, self._buckets, self._allow_negative = parts, buckets, allow_negative
        self._keys: Keys | None = None

    @classmethod
    def planned(
        cls, given: Mapping[str, str], pin: Pin | None, schema: T.StructType
    ) -> CollectionScan:
        """The scan for the user's options."""
        options = Options(given, [name for name in READ if name != "start"], "a read of a table")
        shape = shape_of(options)
        collection = OpenedCollection(options, pin or options.whole("commit"))
        collection.checked(schema, shape)
        arrangement = collection.kept.arrangement
        kind = arrangement.time_type
        time, since, until = None, -(2**63), 2**63 - 1
        for name in ("since", "until") if shape == "rows" else ("time", "allowNegative"):
            if options.get(name) is not None:
                raise ValueError(f"option {name!r} has no meaning if the shape is {shape!r}")
        hint = collection.next_to_do
        if shape == "rows":
            until = time = arrangement.readable(options.time("time", kind), hint)
        else:
            if options.get("until") is not None or options.get("since") is not None:
                until = arrangement.readable(options.time("until", kind), hint)
            if options.get("since") is not None:
                since = arrangement.readable(options.time("since", kind), hint)
            if since > until:
                raise TimeRegressionError(
                    f"changes since {kind.decode(since)!r} until {kind.decode(until)!r} run "
                    "backwards: give the earlier time first"
                )
        batches = arrangement.trace.reaching(since + 1, until + 1).batches
        return cls(
            collection.rows(shape), time, since, until, collection.parts(batches),
            collection.kept.buckets, options.flag("allowNegative"),
        )

    @property
    def pushFilters(self) -> Callable[[list[object]], Iterable[object]]:  # type: ignore[override]
        """Takes filters, and returns the filters that Spark must apply again: all of them."""
        return _Pushing(self)

    def partitions(self) -> list[InputPartition]:
        """The buckets that may have rows."""
        wanted = self._parts if self._keys is None else self._keys.by_bucket
        return [
            Bucket(number, tuple(parts)) for number, parts in sorted(self._parts.items())
            if number in wanted
        ] or [Bucket(-1, ())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a bucket."""
        assert isinstance(partition, Bucket)
        if partition.number < 0:
            return  # the collection is empty
        with self._rows.opened(partition.parts) as batches:
            if self._keys is not None:
                batches = [self._keys.select(partition.number, updates) for updates in batches]
            if self._time is None:
                yield from changes_in(self._rows, batches, [], self._since, self._until)
            else:
                yield from self._snapshot(batches, self._time)

    def _snapshot(self, batches: Sequence[UpdateChunk], time: int) -> Iterator[pa.RecordBatch]:
        for records in snapshot(batches, time):
            times = records.scalars()
            if not isinstance(times, np.ndarray):
                times = np.full(1, times)
            if (times < 0).any():
                self._check(records)
                records = records.take(records.diffs() > 0)
                times = records.diffs()
            if not (times == 1).all():
                for places in repeated_places(records.diffs(), thresholds.current.read_batch_rows):
                    yield from self._rows.batches(records.take(places))
            else:
                yield from self._rows.batches(records)

    def _check(self, records: UpdateChunk) -> None:
        if self._allow_negative:
            return
        wrong = records.take(np.flatnonzero(records.diffs() < 0)[:5])
        # The message shows five records.
        rows = zip(*(column.to_pylist() for column in self._rows.layout.decode(wrong)))
        shown = "; ".join(f"{row!r}: {n}" for row, n in zip(rows, wrong.diffs().tolist()))
        raise NegativeMultiplicityError(
            f"these records have a negative multiplicity: {shown}; more was removed than was "
            "inserted. Correct the input, or give .option('allowNegative', True) to leave such "
            "records out"
        )


class _Pushing:
    """Takes filters for a scan.

    If push-down is off, Spark refuses a reader with ``pushFilters`` of its own, and recognises one
    by the function of the method. The attribute here is Spark's own function, because a scan is
    right without filters.
    """

    __func__ = staticmethod(getattr(DataSourceReader, "pushFilters", len))

    def __init__(self, scan: CollectionScan):
        self._scan = scan

    def __call__(self, filters: list[object]) -> Iterable[object]:
        self._scan._keys = keys_of(filters, self._scan._rows, self._scan._buckets)
        return filters


def keys_of(filters: Iterable[object], rows: Rows, buckets: int) -> Keys | None:
    """The keys that pass the filters, if the filters fix all key columns to few values."""
    names = rows.stored[:rows.width]
    values: dict[str, list[object]] = {}
    for condition in filters:
        path: tuple[str, ...] = getattr(condition, "attribute", ())
        if len(path) != 1 or path[0] not in names:
            continue
        if isinstance(condition, (datasource.EqualTo, datasource.EqualNullSafe)):
            values.setdefault(path[0], [condition.value])
        elif isinstance(condition, datasource.In):
            values.setdefault(path[0], list(condition.value))
        elif isinstance(condition, datasource.IsNull):
            values.setdefault(path[0], [None])
    if not names or len(values) < len(names):
        return None
    if prod(map(len, values.values())) > thresholds.current.look_up_keys_max:
        return None
    layout = Layout(rows.layout.types, rows.layout.hash_mask)
    combined = list(product(*(values[name] for name in names)))
    try:
        columns = [
            pa.array([key[i] for key in combined], kind) for i, kind in enumerate(layout.types)
        ]
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None  # Spark applies the filters alone
    keys = layout.encode(columns, 0, 1)
    numbers = layout.buckets(keys, buckets)
    return Keys({int(b): np.unique(keys.key64[numbers == b]) for b in np.unique(numbers)})
