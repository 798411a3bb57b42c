"""A kept collection read as a table: a partition for each bucket.

For the collection ``A`` at the commit, and a readable time ``t``::

    rows at t                =  each record as often as  accumulate(A, t)  says
    changes since s until t  =  the updates of A at times after s, up to and with t

Filters that name keys leave out buckets, and of the others all rows with other keys: what is left
holds every row that they let pass, and Spark looks at each of these again.
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

from pyspark_diff.data_source.changes import changes_in
from pyspark_diff.data_source.opened import (
    BATCH_ROWS,
    READ,
    Collection,
    Held,
    Pin,
    Rows,
    shape_of,
)
from pyspark_diff.data_source.options import Options
from pyspark_diff.errors import NegativeMultiplicityError, TimeRegressionError
from pyspark_diff.kernels.layout import Layout
from pyspark_diff.kernels.standing import each_as_often, standing
from pyspark_diff.kernels.updates import Int64, Updates

#: So many keys are looked for one by one.
MOST_KEYS = 1 << 12


@dataclass(frozen=True)
class Bucket(InputPartition):
    """The parts of a bucket."""

    number: int
    parts: tuple[Held, ...]


@dataclass(frozen=True)
class Keys:
    """Keys that filters name: by the bucket, their ``key64`` in order."""

    by_bucket: Mapping[int, Int64]

    def of(self, bucket: int, updates: Updates) -> Updates:
        """The updates of a bucket that may have one of them."""
        keys = self.by_bucket[bucket]
        first = np.searchsorted(updates.key64, keys, side="left")
        last = np.searchsorted(updates.key64, keys, side="right")
        # `MOST_KEYS` at most, of all buckets together.
        rows = [np.arange(a, b) for a, b in zip(first, last) if a < b]
        return updates.take(np.concatenate(rows)) if rows else updates.between(0, 0)


class Scan(DataSourceReader):
    """Reads a kept collection, bucket by bucket.

    Parameters
    ----------
    rows : Rows
    time : int or None
        At which records stand; None for changes.
    since, until : int
        Of changes.
    parts : mapping of int to tuple of Held
    buckets : int
    allow_negative : bool
    keys : Keys, optional
        The only ones that are wanted.
    """

    def __init__(
        self, rows: Rows, time: int | None, since: int, until: int,
        parts: Mapping[int, Sequence[Held]], buckets: int, allow_negative: bool,
    ):
        self._rows, self._time, self._since, self._until = rows, time, since, until
        self._parts, self._buckets, self._allow_negative = parts, buckets, allow_negative
        self._keys: Keys | None = None

    @classmethod
    def planned(cls, given: Mapping[str, str], pin: Pin | None, schema: T.StructType) -> Scan:
        """What is to be read, by the options of the user."""
        options = Options(given, [name for name in READ if name != "start"], "a read of a table")
        shape = shape_of(options)
        collection = Collection(options, pin or options.whole("commit"))
        collection.checked(schema, shape)
        arrangement = collection.kept.arrangement
        kind = arrangement.time_type
        time, since, until = None, -(2**63), 2**63 - 1
        for name in ("since", "until") if shape == "rows" else ("time", "allowNegative"):
            if options.get(name) is not None:
                raise ValueError(f"option {name!r} has no meaning where the shape is {shape!r}")
        told = collection.next_to_do
        if shape == "rows":
            until = time = arrangement.readable(options.time("time", kind), told)
        else:
            if options.get("until") is not None or options.get("since") is not None:
                until = arrangement.readable(options.time("until", kind), told)
            if options.get("since") is not None:
                since = arrangement.readable(options.time("since", kind), told)
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
        """Takes filters, and gives back those that Spark has to look at, which are all."""
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
            return  # nothing is there
        with self._rows.opened(partition.parts) as batches:
            if self._keys is not None:
                batches = [self._keys.of(partition.number, updates) for updates in batches]
            if self._time is None:
                yield from changes_in(self._rows, batches, [], self._since, self._until)
            else:
                yield from self._standing(batches, self._time)

    def _standing(self, batches: Sequence[Updates], time: int) -> Iterator[pa.RecordBatch]:
        for records in standing(batches, time):
            times = records.scalars()
            if not isinstance(times, np.ndarray):
                times = np.full(1, times)
            if (times < 0).any():
                self._check(records)
                records = records.take(records.diffs() > 0)
                times = records.diffs()
            if not (times == 1).all():
                for places in each_as_often(records.diffs(), BATCH_ROWS):
                    yield from self._rows.batches(records.take(places))
            else:
                yield from self._rows.batches(records)

    def _check(self, records: Updates) -> None:
        if self._allow_negative:
            return
        wrong = records.take(np.flatnonzero(records.diffs() < 0)[:5])
        # Five of them, for the message.
        rows = zip(*(column.to_pylist() for column in self._rows.layout.decode(wrong)))
        shown = "; ".join(f"{row!r}: {n}" for row, n in zip(rows, wrong.diffs().tolist()))
        raise NegativeMultiplicityError(
            f"these records stand with a negative multiplicity: {shown}; more was removed than was "
            "inserted. Correct the input, or give .option('allowNegative', True) to leave such "
            "records out"
        )


class _Pushing:
    """Takes filters for a scan.

    Spark refuses a reader that can take filters where that is switched off, and tells by this
    attribute whether it can. Ours reads right without them.
    """

    __func__ = staticmethod(getattr(DataSourceReader, "pushFilters", len))

    def __init__(self, scan: Scan):
        self._scan = scan

    def __call__(self, filters: list[object]) -> Iterable[object]:
        self._scan._keys = keys_of(filters, self._scan._rows, self._scan._buckets)
        return filters


def keys_of(filters: Iterable[object], rows: Rows, buckets: int) -> Keys | None:
    """The keys that all of some filters let pass, if they are few."""
    names = rows.stored[:rows.width]
    values: dict[str, list[object]] = {}
    for one in filters:
        path: tuple[str, ...] = getattr(one, "attribute", ())
        if len(path) != 1 or path[0] not in names:
            continue
        if isinstance(one, (datasource.EqualTo, datasource.EqualNullSafe)):
            values.setdefault(path[0], [one.value])
        elif isinstance(one, datasource.In):
            values.setdefault(path[0], list(one.value))
        elif isinstance(one, datasource.IsNull):
            values.setdefault(path[0], [None])
    if not names or len(values) < len(names) or prod(map(len, values.values())) > MOST_KEYS:
        return None
    layout = Layout(rows.layout.types, rows.layout.hash_mask)
    combined = list(product(*(values[name] for name in names)))
    try:
        columns = [
            pa.array([key[i] for key in combined], kind) for i, kind in enumerate(layout.types)
        ]
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None  # Spark looks at them itself
    keys = layout.encode(columns, 0, 1)
    of = layout.buckets(keys, buckets)
    return Keys({int(b): np.unique(keys.key64[of == b]) for b in np.unique(of)})
