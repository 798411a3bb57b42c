"""Collections in a store, read without the program that wrote them.

A reader is at a commit, and reads the collections that the writer had kept by name there::

    reader[name].at(t)  =  flow[name].at(t)  of the dataflow after that commit

The commit stays readable while the reader holds it, also if the writer continues.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.dataflow import tables
from pyspark_diff.dataflow.struct_columns import StructColumns
from pyspark_diff.dataflow.times import coordinate, readable
from pyspark_diff.errors import ClosedError, NegativeMultiplicityError
from pyspark_diff.spark.frames import column
from pyspark_diff.spark.schema import DIFF, TIME, Schema
from pyspark_diff.spark.version import check_session
from pyspark_diff.times import Coordinate
from pyspark_diff.trace.arrangement import Arrangement
from pyspark_diff.trace.commits import Commits
from pyspark_diff.trace.kept import KeptCollection, kept_collection, kept_in
from pyspark_diff.trace.read_holds import ReadHold, read_with_hold
from pyspark_diff.trace.roots import objects_at
from pyspark_diff.trace.storage import Storage
from pyspark_diff.trace.stored_traces import StoredTraces, stored_traces, understood

if TYPE_CHECKING:
    from typing_extensions import Self


class StoredCollection:
    """A collection that a dataflow kept by a name, at a commit. `StateReader` returns it."""

    def __init__(self, name: str, reader: StateReader, stored: KeptCollection):
        self.name = name
        self._reader, self._stored = reader, stored
        self._arrangement, self._columns = stored.arrangement, stored.columns

    def __repr__(self) -> str:
        columns = Schema(self.schema).describe()
        return f"StoredCollection({self.name!r}, {columns}, commit {self._reader.commit})"

    @property
    def schema(self) -> T.StructType:
        """Spark schema of the records."""
        return self._stored.struct

    def frontier(self) -> Any:
        """The time up to which, and not including, the collection is complete; None if closed.

        If times are structs, this and `since` return an `Antichain`, empty if closed.
        """
        return self._decoded(self._arrangement.trace.upper.bound)

    def since(self) -> Any:
        """The earliest readable time; None if no update ever entered."""
        return self._decoded(self._arrangement.trace.since.bound)

    def at(self, time: Any = None, *, allow_negative: bool = False) -> DataFrame:
        """The collection accumulated at a time: see `DiffFrame.at`."""
        spark = self._reader._spark_of()
        at = self._arrangement.readable(time, self._next)
        return self._named(self._arrangement.snapshot(spark, at, allow_negative=allow_negative))

    def changes(self, since: Any, until: Any = None) -> DataFrame:
        """The changes between two times: see `DiffFrame.changes`."""
        spark = self._reader._spark_of()
        return self._named(self._arrangement.changed(spark, since, until, self._next))

    def to_df(self) -> DataFrame:
        """All kept updates: see `DiffFrame.to_df`."""
        return self._named(self._arrangement.updates(self._reader._spark_of()))

    def save_as_table(
        self, name: str, *, time: Any = None, updates: bool = False,
        by: str | Sequence[str] | None = None, buckets: int | None = None, mode: str = "error",
        format: str = "parquet", path: str | None = None, bucket_column: str | None = None,
        allow_negative: bool = False,
    ) -> None:
        """Save the collection as a Spark table: see `DiffFrame.save_as_table`."""
        frame = self.to_df() if updates else self.at(time, allow_negative=allow_negative)
        tables.save(
            frame, name, self._key, self.schema.names, self._stored.buckets, by=by,
            buckets=buckets, mode=mode, format=format, path=path, bucket_column=bucket_column,
        )

    def _named(self, frame: DataFrame) -> DataFrame:
        return frame.toDF(*self._columns, *frame.columns[len(self._columns):])

    @property
    def _key(self) -> Arrangement | None:
        """The arrangement whose buckets contain the rows, if any."""
        return self._arrangement

    def _next(self) -> str:
        return (
            f"This is the state at commit {self._reader.commit}; refresh() goes to the latest one"
        )

    def _decoded(self, at: int | None) -> Any:
        return None if at is None else self._arrangement.time_type.decode(at)


class StoredStructs(StoredCollection):
    """A stored collection with struct times."""

    def __init__(self, name: str, reader: StateReader, stored: KeptCollection):
        super().__init__(name, reader, stored)
        assert stored.times is not None
        self._times, arrangement = stored.times, self._arrangement
        names = arrangement.schema.names
        count = len(names) - len(stored.times.fields) + 1
        # The innermost field is revealed first.
        fields = (arrangement.time, *reversed(names[count:]))
        self._in = StructColumns(
            stored.times, names[:count], fields, arrangement.time, arrangement.diff
        )
        self._columns = stored.columns[:count]

    @property
    def schema(self) -> T.StructType:
        """Spark schema of the records."""
        return T.StructType(self._stored.struct.fields[:len(self._columns)])

    def frontier(self) -> Any:
        """The frontier up to which the collection is complete: an `Antichain`, empty if closed."""
        return self._arrangement.trace.upper

    def since(self) -> Any:
        """The frontier from which on the collection is readable: an `Antichain`."""
        return self._arrangement.trace.since

    def at(self, time: Any = None, *, allow_negative: bool = False) -> DataFrame:
        """The collection accumulated at a time: see `DiffFrame.at`."""
        spark, at = self._reader._spark_of(), self._readable(time)
        left = self._in.until(self._arrangement.updates(spark), at)
        left = left.where(column(self._in.time) <= at[0])
        number = F.coalesce(F.sum(column(self._in.diff)), F.lit(0)).alias(DIFF)
        counted = left.groupBy(*map(column, self._in.records)).agg(number)
        wrong = [] if allow_negative else counted.where(column(DIFF) < 0).take(5)
        if wrong:
            shown = "; ".join(f"{tuple(row)[:-1]!r}: {row[-1]}" for row in wrong)
            raise NegativeMultiplicityError(
                f"at time {at!r} these records have a negative multiplicity: {shown}; more "
                "was removed than was inserted. Correct the input, or pass allow_negative=True to "
                "leave such records out"
            )
        counted = counted.where(column(DIFF) > 0)
        each = F.explode(F.sequence(F.lit(1).cast("long"), column(DIFF))).alias(TIME)
        return self._named(counted.select(*map(column, self._in.records), each).drop(TIME))

    def changes(self, since: Any, until: Any = None) -> DataFrame:
        """The changes between two times: see `DiffFrame.changes`."""
        last, first = self._readable(until), self._readable(since)
        updates = self._arrangement.updates(self._reader._spark_of())
        return self._named(self._in.changed(updates, first, last))

    def to_df(self) -> DataFrame:
        """All kept updates at complete times: see `DiffFrame.to_df`."""
        updates = self._arrangement.updates(self._reader._spark_of())
        complete = self._in.complete(updates, self._arrangement.trace.upper)
        return self._named(self._in.whole(complete))

    @property
    def _key(self) -> Arrangement | None:
        return None

    def _readable(self, time: Any) -> Coordinate:
        trace = self._arrangement.trace
        at = None if time is None else coordinate(time, self._times)
        return readable(at, trace.upper, trace.since, self._times, self._next)


class StateReader:
    """Reads the collections of another application's store. It holds state: its commit.

    The writer may continue meanwhile; this reader stays at its commit until `refresh`. Each use
    renews its hold on the commit. A hold that was not renewed for ``seconds`` expires, so that a
    killed reader does not hold its commit for ever.

    Parameters
    ----------
    path : str
        The location of the store.
    spark : SparkSession
    commit : int, optional
        By default the latest commit.
    seconds : float
        The duration of the hold without a use.
    root : str, optional
        Directory for small batches that Spark's tasks read; on a cluster all machines share it.

    Raises
    ------
    StorageError
        If there is no store.
    NotReadableError
        If the commit is not retained.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, spark: SparkSession, commit: int | None = None,
        seconds: float = 3600.0, root: str | None = None,
    ):
        check_session(spark)
        self._spark, self._seconds = spark, seconds
        self._objects = objects_at(path)
        self._commits = Commits(self._objects)
        self._hold: ReadHold | None = None
        self._scratch = Storage(root)
        self._open = True
        self._go_to(commit)

    @property
    def commit(self) -> int:
        """The number of the reader's commit."""
        return self._at.number

    @property
    def token(self) -> str | None:
        """The last token of a step up to the commit: see the ``token`` of `Dataflow.step`."""
        with understood():
            return next(reversed(self._decoder.body.get("tokens", {})), self._at.token)

    def refresh(self) -> bool:
        """Go to the latest commit; returns whether it is a later one."""
        self._spark_of()
        before = self.commit
        self._go_to(None)
        return self.commit > before

    def __getitem__(self, name: str) -> StoredCollection:
        """The collection that was kept under a name.

        Raises
        ------
        NotReadableError
            If no collection has that name.
        """
        self._spark_of()
        where = f"commit {self.commit} of {self._objects.root}"
        stored = kept_collection(self._decoder, name, where)
        return (StoredCollection if stored.times is None else StoredStructs)(name, self, stored)

    def __contains__(self, name: object) -> bool:
        """Whether a collection was kept under a name."""
        return name in self._kept

    def __iter__(self) -> Iterator[str]:
        """The names under which collections were kept."""
        return iter(list(self._kept))

    def __repr__(self) -> str:
        what = f"commit {self.commit}" if self._open else "closed"
        return f"StateReader({self._objects.root!r}, {what})"

    def close(self) -> None:
        """Release the commit. A second call does nothing."""
        self._open = False
        self._scratch.close()
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.release()

    def __enter__(self) -> Self:
        self._spark_of()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _spark_of(self) -> SparkSession:
        """The session, after a check that the reader is open and a renewal of its hold."""
        if not self._open:
            raise ClosedError("this reader was closed; make a new one")
        if self._hold is not None:
            self._hold.renew()
        return self._spark

    def _go_to(self, number: int | None) -> None:
        before = self._hold
        self._at, self._hold = read_with_hold(self._objects, self._commits, number, self._seconds)
        self._decoder = stored_traces(
            self._objects, self._commits, self._at, self._scratch.directory("small"),
            StoredTraces,
        )
        self._kept = kept_in(self._decoder)
        if before is not None:
            before.release()
