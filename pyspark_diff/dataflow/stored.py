"""Collections in a store, read without the program that wrote them.

A reader stands at one commit, and sees what its writer had kept by name there::

    reader[name].at(t)  =  flow[name].at(t)  of the dataflow when it had made that commit

However the writer goes on, that stays readable while the reader holds the commit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from pyspark_diff.dataflow.durable import decoder_of
from pyspark_diff.engine.durable import understood
from pyspark_diff.errors import ClosedError, NotReadableError
from pyspark_diff.spark.schema import Schema, TimeType, parse_time_type
from pyspark_diff.spark.stored_schema import schema_from_json
from pyspark_diff.spark.version import check_session
from pyspark_diff.trace.arrangement import Arrangement
from pyspark_diff.trace.commits import Commits
from pyspark_diff.trace.objects import objects_at
from pyspark_diff.trace.read_holds import ReadHold
from pyspark_diff.trace.storage import Storage

if TYPE_CHECKING:
    from typing_extensions import Self


class StoredCollection:
    """A collection that a dataflow kept by a name, as of a commit. Made by `StateReader`."""

    def __init__(
        self, name: str, reader: StateReader, arrangement: Arrangement, columns: list[str]
    ):
        self.name = name
        self._reader, self._arrangement = reader, arrangement
        self._columns = columns

    def __repr__(self) -> str:
        columns = self._arrangement.schema.describe()
        return f"StoredCollection({self.name!r}, {columns}, commit {self._reader.commit})"

    @property
    def schema(self) -> T.StructType:
        """Spark schema of the records."""
        fields = self._arrangement.schema.struct.fields
        return T.StructType([
            T.StructField(name, field.dataType, field.nullable)
            for name, field in zip(self._columns, fields)
        ])

    def frontier(self) -> Any:
        """The time up to which, and not including, it is complete; None if for ever."""
        return self._told(self._arrangement.trace.upper.bound)

    def since(self) -> Any:
        """The earliest time at which it can be read; None if nothing was ever given."""
        return self._told(self._arrangement.trace.since.bound)

    def at(self, time: Any = None, *, allow_negative: bool = False) -> DataFrame:
        """The collection as it stood at a time: see `DiffFrame.at`."""
        spark = self._reader._spark_of()
        at = self._arrangement.readable(time, self._next)
        return self._named(self._arrangement.snapshot(spark, at, allow_negative=allow_negative))

    def changes(self, since: Any, until: Any = None) -> DataFrame:
        """What made the collection at one time the collection at a later one: see
        `DiffFrame.changes`."""
        spark = self._reader._spark_of()
        return self._named(self._arrangement.changed(spark, since, until, self._next))

    def to_df(self) -> DataFrame:
        """All updates that are kept: see `DiffFrame.to_df`."""
        return self._named(self._arrangement.updates(self._reader._spark_of()))

    def _named(self, frame: DataFrame) -> DataFrame:
        return frame.toDF(*self._columns, *frame.columns[len(self._columns):])

    def _next(self) -> str:
        return (
            f"That is how it was at commit {self._reader.commit}; refresh() goes to the latest one"
        )

    def _told(self, at: int | None) -> Any:
        return None if at is None else self._arrangement.time_type.decode(at)


class StateReader:
    """Reads what another application keeps in a store. It holds state: which commit it is at.

    While it is open, the writer goes on, and what this reader sees stays as it is until `refresh`.
    Its hold on the commit is renewed with each use; one that was not used for ``seconds`` loses it,
    so that a reader that has died holds nothing for ever.

    Parameters
    ----------
    path : str
        Of the store.
    spark : SparkSession
    commit : int, optional
        The latest one if not given.
    seconds : float
        How long the hold stands without being used.
    root : str, optional
        Directory for small batches that Spark's tasks have to read; on a cluster one that all
        machines share.

    Raises
    ------
    StorageError
        If there is no store.
    NotReadableError
        If that commit is not retained.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, spark: SparkSession, commit: int | None = None,
        seconds: float = 3600.0, root: str | None = None,
    ):
        check_session(spark)
        self._spark, self._seconds = spark, seconds
        self._objects = objects_at(os.fspath(path))
        self._commits = Commits(self._objects)
        self._hold: ReadHold | None = None
        self._scratch = Storage(root)
        self._open = True
        self._go_to(commit)

    @property
    def commit(self) -> int:
        """The number of the commit that is read."""
        return self._at.number

    @property
    def token(self) -> str | None:
        """What the writer called the commit."""
        return self._at.token

    def refresh(self) -> bool:
        """Go to the latest commit; gives whether there was a later one."""
        self._spark_of()
        before = self.commit
        self._go_to(None)
        return self.commit > before

    def __getitem__(self, name: str) -> StoredCollection:
        """The collection that was kept under a name.

        Raises
        ------
        NotReadableError
            If there is none of that name.
        """
        self._spark_of()
        if name not in self._kept:
            names = ", ".join(map(repr, self._kept)) or "none"
            raise NotReadableError(
                f"no collection was kept under the name {name!r} at commit {self.commit} of "
                f"{self._objects.root}, of these: {names}"
            )
        with understood():
            told = self._kept[name]
            schema = Schema(schema_from_json(told["schema"]))
            key, stored = [tuple(map(str, told[part])) for part in ("key", "stored")]
            columns = list(map(str, told["columns"]))
            if sorted(stored) != sorted(schema.names) or len(columns) != len(stored):
                raise ValueError(f"{name!r} has other columns than are kept of it")
            trace = self._decoder.trace(int(told["trace"]))
            if trace is None:
                raise ValueError(f"nothing is kept of {name!r}")
            body = self._decoder.body
            arrangement = Arrangement(
                trace, schema, schema.layout_by(key, stored), stored, self._time_type,
                str(body["time"]), str(body["diff"]),
            )
        return StoredCollection(name, self, arrangement, columns)

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
        """Let the commit go. A second call does nothing."""
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
        """The session, of a reader that is open and holds its commit."""
        if not self._open:
            raise ClosedError("this reader was closed; make a new one")
        if self._hold is not None:
            self._hold.renew()
        return self._spark

    def _go_to(self, number: int | None) -> None:
        before = self._hold
        while True:
            at = self._commits.latest() if number is None else self._commits.read(number)
            hold = ReadHold.take(self._objects, at.number, self._seconds)
            try:
                # A vacuum may have been under way that has not seen the hold.
                self._commits.read(at.number)
                break
            except NotReadableError:
                hold.release()
                if number is not None:
                    raise
        self._at, self._hold = at, hold
        self._decoder = decoder_of(
            self._objects, self._commits, at, self._scratch.directory("small")
        )
        with understood():
            self._kept: dict[str, Any] = dict(self._decoder.body["kept"])
            self._time_type: TimeType = parse_time_type(str(self._decoder.body["time_type"]))
        if before is not None:
            before.release()
