"""A kept collection read as a stream: the changes from one commit to a later one.

For commits ``m < n``, with frontiers ``u`` and ``v`` of the collection::

    sum of the batches up to commit n  =  the collection at commit n
    the batch from m to n              =  its changes at times from u on, before v

An offset has the commit, the frontier, and a hash of the program. If the arrangement at ``n`` still
distinguishes times from ``u`` on, the batch is read from it without ``m``. Else the batch is the
arrangement at ``n`` minus the one at ``m``, without the files that both have. Changes keep their
exact times as far as ``n`` distinguishes them; earlier times are advanced to the first such time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyspark_diff.data_source.changes import changes_in
from pyspark_diff.data_source.opened import READ, Held, OpenedCollection, Rows, shape_of
from pyspark_diff.data_source.options import Options
from pyspark_diff.errors import NotReadableError
from pyspark_diff.trace.batch import Batch
from pyspark_diff.trace.commits import Commits
from pyspark_diff.trace.read_holds import ReadHold
from pyspark_diff.trace.roots import objects_at

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # Spark 4.1, where availableNow takes one batch

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """The base class that later versions of Spark have."""


#: The bounds of encoded times.
_FIRST, _LAST = -(2**63), 2**63 - 1
_NOTHING = {"commit": -1, "upper": _FIRST, "program": "", "store": ""}


@dataclass(frozen=True)
class BucketInterval(InputPartition):
    """The parts of a bucket at the later and at the earlier commit."""

    rows: Rows
    new: tuple[Held, ...]
    old: tuple[Held, ...]
    since: int
    until: int
    floor: int | None


class Stream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the changes of a kept collection. It holds state: holds on the commits it may need.

    Parameters
    ----------
    given : mapping of str to str
        Options of the user.
    """

    def __init__(self, given: Mapping[str, str], schema: T.StructType):
        known = [
            name for name in READ
            if name not in ("time", "commit", "since", "until", "allowNegative")
        ]
        self._options = Options(given, known, "a stream")
        self._shape = shape_of(self._options)
        self._schema = schema
        self._start = self._started()
        self._holds: dict[int, ReadHold] = {}
        #: The last offset that `latestOffset` returned.
        self._last: dict[str, Any] | None = None
        #: The end of the stream with the trigger ``availableNow``.
        self._end: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:
        """The offset at which a new stream begins."""
        if self._start == "earliest":
            return dict(_NOTHING)
        return self._offset(None if self._start == "latest" else int(self._start))

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        """The offset of the last commit."""
        if self._end is not None:
            return self._end
        self._renew()
        last = self._last
        # Spark calls this many times a second, so a hold is written only for a new commit.
        if last is None or last["commit"] not in self._holds or (
            self._commits.latest().number != last["commit"]
        ):
            self._last = last = self._offset(None)
        return last

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the present commit as the end of the stream."""
        self._end = self._offset(None)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """A partition with the changes of each bucket."""
        if start["commit"] == end["commit"]:
            return []
        new = self._collection(end["commit"])
        new.checked(self._schema, self._shape)
        offset = _offset_of(new)
        if start["store"] not in ("", offset["store"]) or end["store"] != offset["store"]:
            raise NotReadableError(
                f"the store at {new.objects.root!r} is another one than the stream has read. Begin "
                "the stream anew, with another checkpoint"
            )
        lower, upper = start["upper"], offset["upper"]
        arrangement = new.kept.arrangement
        since = arrangement.trace.since.bound
        known = _LAST if since is None else since
        batches = arrangement.trace.batches
        if start["commit"] < 0:
            return _intervals(new, self._shape, batches, None, (), (_FIRST, upper), None)
        if start["program"] == offset["program"] and known < lower <= upper:
            late = arrangement.trace.reaching(lower, None).batches
            return _intervals(new, self._shape, late, None, (), (lower - 1, upper), None)
        try:
            old = self._collection(start["commit"])
        except NotReadableError as error:
            raise NotReadableError(
                f"the stream has read up to commit {start['commit']}, which is not retained any "
                f"more, and commit {end['commit']} no longer has the changes since: {error}. Begin "
                "the stream anew with another checkpoint; its first batch is the whole collection. "
                "To avoid this, let the dataflow retain more commits (retain=...), keep its "
                "history, or give the stream a longer .option('holdSeconds', ...)"
            ) from error
        if upper < lower or old.struct(self._shape) != new.struct(self._shape):
            raise NotReadableError(
                f"the collection was begun anew between commits {start['commit']} and "
                f"{end['commit']}. Begin the stream anew, with another checkpoint"
            )
        # At the arrangement's since all earlier times are equal.
        floor = max(lower, min(known, max(upper - 1, lower)))
        return _intervals(
            new, self._shape, batches, old, old.kept.arrangement.trace.batches,
            (lower - 1, max(upper, floor + 1)), floor,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes in a bucket."""
        assert isinstance(partition, BucketInterval)
        rows = partition.rows
        with rows.opened([*partition.new, *partition.old]) as batches:
            new, old = batches[:len(partition.new)], batches[len(partition.new):]
            yield from changes_in(
                rows, new, old, partition.since, partition.until, partition.floor
            )

    def commit(self, end: dict[str, Any]) -> None:
        """Release the holds on commits before an offset that was processed."""
        for number in [number for number in self._holds if number < end["commit"]]:
            self._holds.pop(number).release()

    def stop(self) -> None:
        """Release no hold: a restarted stream may need the commits soon, and holds expire."""

    def _started(self) -> str:
        start = (self._options.get("start") or "earliest").lower()
        if start not in ("earliest", "latest") and not (start.isascii() and start.isdecimal()):
            raise ValueError(
                f"option 'start' is {start!r}; give earliest, latest or the number of a commit"
            )
        return start

    @cached_property  # Spark sends the reader to tasks before this value exists
    def _commits(self) -> Commits:
        return Commits(objects_at(self._options.store()))

    def _renew(self) -> None:
        """Renew holds after half of their duration, and forget expired ones."""
        for number, hold in list(self._holds.items()):
            if hold.until - time.time() < hold.seconds / 2:
                try:
                    hold.renew()
                except NotReadableError:
                    del self._holds[number]

    def _collection(self, number: int | None) -> OpenedCollection:
        collection = OpenedCollection(self._options, number)
        number = collection.commit.number
        before = self._holds.get(number)
        self._holds[number] = collection.hold
        if before is not None:
            before.release()
        return collection

    def _offset(self, number: int | None) -> dict[str, Any]:
        return _offset_of(self._collection(number))


def _offset_of(collection: OpenedCollection) -> dict[str, Any]:
    upper = collection.kept.arrangement.trace.upper.bound
    return {
        "commit": collection.commit.number,
        "upper": _LAST if upper is None else upper,
        "program": blake2b(collection.program, digest_size=8).hexdigest(),
        "store": collection.commit.store,
    }


def _intervals(
    new: OpenedCollection, shape: str, batches: Sequence[Batch], old: OpenedCollection | None,
    before: Sequence[Batch],
    times: tuple[int, int], floor: int | None,
) -> list[InputPartition]:
    """A partition for each bucket that may have changes, without the files of both commits."""
    now = new.parts(batches)
    then: dict[int, list[Held]] = {} if old is None else old.parts(before)
    rows = new.rows(shape)
    partitions: list[InputPartition] = []
    for bucket in sorted(now.keys() | then.keys()):
        both = set(now.get(bucket, ())) & set(then.get(bucket, ()))
        new_parts, old_parts = (
            tuple(part for part in side.get(bucket, ()) if part not in both)
            for side in (now, then)
        )
        if new_parts or old_parts:
            partitions.append(
                BucketInterval(rows, new_parts, old_parts, times[0], times[1] - 1, floor)
            )
    return partitions
