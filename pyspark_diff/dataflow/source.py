"""Sources: tables and feeds from which inputs are filled, each from an offset on.

    what an input was given  =  what its source had up to the offset that is in the last commit

An offset is JSON that only its source understands. It is part of the state, so it moves with the
step that takes in what was read, and a process that ends in between reads the same again.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.dataflow.coercion import Data, coerce
from pyspark_diff.dataflow.input_session import BaseSession, InputSession
from pyspark_diff.dataflow.keyed_session import KeyedSession
from pyspark_diff.errors import DiffError, NotReadableError, SchemaError, SourceError
from pyspark_diff.operators.node import Node
from pyspark_diff.spark.causes import in_words
from pyspark_diff.spark.frames import column, few, frame_of_table
from pyspark_diff.spark.schema import Schema, TimeType, contains, meant_by
from pyspark_diff.times import Antichain

#: What a source knows about how far it was read: None, numbers, texts, lists and objects of them.
Offset: TypeAlias = Any


class Inserts(NamedTuple):
    """Rows that come, for an input without a key."""

    rows: Data


class Removes(NamedTuple):
    """Rows that go, for an input without a key."""

    rows: Data


class Updates(NamedTuple):
    """Rows that come and go, for an input without a key. They are read once more, to be checked.

    Parameters
    ----------
    rows : DataFrame
        The source's columns, one of the diff, and if they bring their times one of these.
    diff : str
        The column of the diff.
    time : str, optional
        The column of the time. Rows without enter at the time of the epoch.
    """

    rows: DataFrame
    diff: str = "diff"
    time: str | None = None


class Upserts(NamedTuple):
    """Rows that take the place of those with their keys, for an input with a key."""

    rows: Data


class Deletes(NamedTuple):
    """Keys whose rows go, for an input with a key; those that have none are let be."""

    keys: Data


class Whole(NamedTuple):
    """The table as it is now: what was there and is not in it goes.

    For an input without a key, each row is there as often as it is in ``rows``.
    """

    rows: DataFrame


Change: TypeAlias = "Inserts | Removes | Updates | Upserts | Deletes | Whole"


@dataclass(frozen=True)
class Reading:
    """What has come to a source since an offset.

    Parameters
    ----------
    offset : object
        Up to where it was read, as JSON has it.
    changes : sequence of Inserts, Removes, Updates, Upserts, Deletes or Whole
        In the order in which they are to be done. Frames may be read when the step needs them, so
        what they read must stay what it is.
    """

    offset: Offset
    changes: Sequence[Change]


class Source(ABC):
    """A table or feed from which an input is filled: see `Dataflow.source`.

    A subclass tells its columns, and reads what has come since an offset. Reading changes nothing,
    and the same offset gives the same, and what has come since.
    """

    #: Columns of the key, if there is one row for each.
    key: tuple[str, ...] = ()
    #: Whether it may give whole tables without a key; what is there is kept, to be compared.
    is_whole = False

    @abstractmethod
    def columns(self, spark: SparkSession) -> T.StructType:
        """The columns of the rows."""

    def narrowed(self, columns: T.StructType, spark: SparkSession) -> Source | None:
        """The source with the columns that a store has; None if the program declares them.

        Called after `columns` has returned other columns, because the table has changed.

        Parameters
        ----------
        columns : StructType
        spark : SparkSession

        Raises
        ------
        SourceError
            If the table lacks one of them.
        """
        return None

    @abstractmethod
    def read(self, spark: SparkSession, offset: Offset) -> Reading | None:
        """What has come since an offset; None if nothing has.

        Parameters
        ----------
        spark : SparkSession
        offset : object
            That of an earlier reading; None for the beginning.
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class _Feed(NamedTuple):
    """An input with its source, and the input of rows that came too late, if they are kept."""

    source: Source
    session: BaseSession
    aside: tuple[Node, InputSession] | None
    before: Callable[[], DataFrame | None] | None


class Sources:
    """The sources of a dataflow, and how far each was read. It holds state.

    Parameters
    ----------
    spark : SparkSession
    time_type : TimeType
    time, diff : str
        The user's names of these columns.
    """

    def __init__(self, spark: SparkSession, time_type: TimeType, time: str, diff: str):
        self._spark, self._time_type = spark, time_type
        self._time, self._diff = time, diff
        #: What they are called beside the columns of a row that came too late.
        self._late = f"late_{time}", f"late_{diff}"
        self._feeds: dict[str, _Feed] = {}
        #: How far what was handed over to the inputs was read.
        self.offsets: dict[str, Offset] = {}
        #: The columns that the store of the dataflow has for its inputs.
        self.stored: Mapping[str, T.StructType] = {}
        #: By their inputs the columns that are not read because the store lacks them.
        self.left_out: dict[str, list[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._feeds)

    def columns_of(self, name: str, source: Source) -> tuple[Source, T.StructType]:
        """The source of an input, and the columns that it reads: those that the store has, if
        the table has gained others.

        Raises
        ------
        SourceError
            If the table has lost one of them.
        """
        now, then = source.columns(self._spark), self.stored.get(name)
        if then is None or Schema(now).same_types(Schema(then)):
            return source, now
        narrowed = source.narrowed(then, self._spark)
        if narrowed is None:
            return source, now
        self.left_out[name] = [one for one in now.names if one not in then.names]
        return narrowed, then

    def columns(self) -> dict[str, T.StructType]:
        """By their names the columns of the inputs that have sources, if a store can have them."""
        found = {name: feed.session.schema for name, feed in self._feeds.items()}
        return {name: struct for name, struct in found.items()
                if not contains(struct, T.UserDefinedType)}

    def add(
        self, name: str, source: Source, session: BaseSession,
        aside: tuple[Node, InputSession] | None = None,
        before: Callable[[], DataFrame | None] | None = None,
    ) -> None:
        """An input is filled from a source.

        Parameters
        ----------
        name : str
            Of the input.
        source : Source
        session : BaseSession
        aside : pair of Node and InputSession, optional
            The input where late rows are kept.
        before : callable, optional
            Gives the rows that are there, if any, where whole tables are compared with them.
        """
        self._feeds[name] = _Feed(source, session, aside, before)

    def go_on(self, offsets: Mapping[str, Offset], inputs: Iterable[str]) -> None:
        """Go on where another process has got to.

        Parameters
        ----------
        offsets : mapping of str to object
        inputs : iterable of str
            Names of the inputs that there are. One that has no source in this program has been
            read so far all the same, and goes on from there in a program that has it again.
        """
        self.offsets = {name: offsets[name] for name in inputs if name in offsets}

    def name_of(self, source: Source) -> str | None:
        """The input that a source fills."""
        return next((name for name, feed in self._feeds.items() if feed.source is source), None)

    @contextmanager
    def or_undone(self, name: str, taken: Callable[[], Mapping[str, Offset]]) -> Iterator[None]:
        """Around a reading and a step: where that raises, and the reading came to no state, it is
        as if it had not been, and can be given anew.

        Parameters
        ----------
        name : str
            Of the input.
        taken : callable
            Gives the offsets of what the state has taken in.
        """
        session, before = self._feeds[name].session, dict(self.offsets)
        content = session._saved_content()
        try:
            yield
        except BaseException:
            if taken().get(name) == before.get(name):
                session._go_back(content)
                self.offsets = before
            raise

    def is_ahead(self, offsets: Mapping[str, Offset]) -> bool:
        """Whether more was read than a state has taken in."""
        return any(offsets.get(name) != offset for name, offset in self.offsets.items())

    def late(self, name: str) -> Node:
        """The input of rows that came too late for another one.

        Raises
        ------
        NotReadableError
            If they are not kept, or there is no such input.
        """
        feed = self._feeds.get(name)
        if feed is None or feed.aside is None:
            raise NotReadableError(
                f"no input {name!r} keeps late rows: flow.source({name!r}, ..., late='aside') does"
            )
        return feed.aside[0]

    def late_columns(self, columns: T.StructType) -> T.StructType:
        """The columns of rows that came too late: beside their own their times and diffs."""
        time, diff = self._late
        return T.StructType([
            *columns.fields, T.StructField(time, self._time_type.kind),
            T.StructField(diff, T.LongType()),
        ])

    def read(self, now: int | None, taken: Mapping[str, Offset]) -> int | None:
        """Hand over to the inputs what has come to their sources.

        Parameters
        ----------
        now : int or None
            The time, encoded, at which it enters if it brings none; None if all are closed.
        taken : mapping of str to object
            The offsets of the state. A whole table is compared with the rows of the state, so it
            is not read again as long as its last reading is pending.

        Returns
        -------
        int or None
            The greatest time among it, encoded; None if nothing has come.

        Raises
        ------
        SourceError
            If a source cannot be read, or gives what its input cannot take. What was read of others
            is handed over, and is not read again.
        """
        found = [
            self._read(name, feed, now) for name, feed in self._feeds.items()
            if now is not None and feed.session._at() is not None
            and (feed.before is None or taken.get(name) == self.offsets.get(name))
        ]
        return max((last for last in found if last is not None), default=None)

    def _read(self, name: str, feed: _Feed, now: int) -> int | None:
        before = self.offsets.get(name)
        sessions = [feed.session, *(() if feed.aside is None else (feed.aside[1],))]
        contents = [one._saved_content() for one in sessions]
        try:
            reading = feed.source.read(self._spark, before)
            if reading is None:
                return None
            offset = json.loads(json.dumps(reading.offset))
            for session in sessions:
                session._advance_at_least(Antichain([now]))
            for change in reading.changes:
                self._put(feed, change)
            for session in sessions:
                session._hand_over()
            self.offsets[name] = offset
            return max([now, *(arrival.last for arrival in _new(feed.session, contents[0]))])
        except BaseException as error:
            # What was handed over in part is as if it had not been read.
            for session, content in zip(sessions, contents):
                session._go_back(content)
            if before is None:
                self.offsets.pop(name, None)
            else:
                self.offsets[name] = before
            if isinstance(error, DiffError) or not isinstance(error, Exception):
                raise
            raise SourceError(
                f"source {name!r}, {feed.source!r}, cannot be read on from "
                f"{'the beginning' if before is None else json.dumps(before)}: "
                f"{type(error).__name__}: {in_words(error)}. Nothing of it was taken"
            ) from error

    def _put(self, feed: _Feed, change: Change) -> None:
        session = feed.session
        if isinstance(session, KeyedSession):
            if isinstance(change, Upserts):
                session.upsert(_few(change.rows))
            elif isinstance(change, Deletes):
                session.delete(_few(change.keys))
            elif isinstance(change, Whole):
                session.replace(_few(change.rows))
            else:
                raise SchemaError(
                    f"source {feed.source!r} has a key and gives updates without one: give Upserts "
                    "and Deletes, or leave its key out"
                )
            return
        assert isinstance(session, InputSession)  # there are no others
        if isinstance(change, Whole):
            assert feed.before is not None  # whoever adds a source of whole tables gives it
            before = feed.before()
            if before is None:
                session.insert(_few(change.rows))
                return
            rows = coerce(change.rows, session.schema, session.name, self._spark)
            if not isinstance(rows, DataFrame):
                rows = frame_of_table(self._spark, rows, before.schema)
            self._update(session, difference(before, rows, self._diff))
        elif isinstance(change, Inserts):
            session.insert(_few(change.rows))
        elif isinstance(change, Removes):
            session.remove(_few(change.rows))
        elif not isinstance(change, Updates):
            raise SchemaError(
                f"source {feed.source!r} gives {type(change).__name__} and has no key: name the "
                "columns of one, or give Inserts, Removes or Updates"
            )
        elif change.time is None:
            self._update(session, _renamed(change.rows, {change.diff: self._diff}))
        else:
            rows = _renamed(change.rows, {change.diff: self._diff, change.time: self._time})
            if feed.aside is None:
                session.update(_few(rows))
                return
            late = column(self._time) < self._now(session)
            session.update(_few(rows.where(~late)))
            names = dict(zip((self._time, self._diff), self._late))
            feed.aside[1].insert(_few(rows.where(late).withColumnsRenamed(names)))

    def _update(self, session: InputSession, rows: DataFrame) -> None:
        """Updates without times, at the session's."""
        session.update(_few(rows.withColumn(self._time, self._now(session))))

    def _now(self, session: BaseSession) -> Column:
        return F.lit(session.time()).cast(self._time_type.kind)


def _renamed(frame: DataFrame, names: Mapping[str, str]) -> DataFrame:
    """A frame whose columns are renamed at once: the time may be called diff, and the diff time."""
    new = {
        there: name for old, name in names.items()
        for there in meant_by(old, frame.columns, frame.sparkSession)
    }
    return frame.toDF(*(new.get(name, name) for name in frame.columns))


def difference(before: DataFrame, after: DataFrame, diff: str) -> DataFrame:
    """The updates by which one table becomes another, each row as often as it is there.

    Parameters
    ----------
    before, after : DataFrame
        Of the same columns.
    diff : str
        What the column of the diff is called.

    Examples
    --------
    >>> before = spark.createDataFrame([(1,), (2,), (2,)], "a int")
    >>> after = spark.createDataFrame([(2,), (3,)], "a int")
    >>> sorted(tuple(row) for row in difference(before, after, "diff").collect())
    [(1, -1), (2, -1), (3, 1)]
    """
    after = after.select(*map(column, before.columns))
    signed = [frame.withColumn(diff, F.lit(sign).cast("long"))
              for frame, sign in ((before, -1), (after, 1))]
    records = list(map(column, before.columns))
    total = F.sum(column(diff)).alias(diff)
    return signed[0].unionByName(signed[1]).groupBy(*records).agg(total).where(column(diff) != 0)


def _few(rows: Data) -> Data:
    """Few rows of a frame as a table: the step does not read them again, and can name them."""
    table = few(rows) if isinstance(rows, DataFrame) else None
    return rows if table is None else table


def _new(session: BaseSession, before: Any) -> Sequence[Any]:
    """What a session was handed since it held something."""
    return session._content.flushed[len(before.flushed):]
