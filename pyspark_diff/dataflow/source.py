"""Sources: tables and feeds that fill inputs, each from an offset on.

    rows of an input  =  rows of its source up to the offset in the last commit

An offset is JSON that only its source understands. The state contains the offset, so a step commits
the rows and the offset together. A process that ends before the commit reads the same rows again.
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
from pyspark_diff.expressions.names import unused
from pyspark_diff.operators.node import Node
from pyspark_diff.spark.causes import in_words
from pyspark_diff.spark.data_types import contains
from pyspark_diff.spark.frames import column, few, frame_of_table
from pyspark_diff.spark.schema import Schema, TimeType, meant_by
from pyspark_diff.times import Antichain

#: The position of a source's last reading as JSON: None, numbers, texts, lists and objects.
Offset: TypeAlias = Any


class Inserts(NamedTuple):
    """Inserted rows, for an input without a key."""

    rows: Data


class Removes(NamedTuple):
    """Removed rows, for an input without a key."""

    rows: Data


class Updates(NamedTuple):
    """Rows with diffs, for an input without a key. An additional read checks them.

    Parameters
    ----------
    rows : DataFrame
        The source's columns, the diff, and optionally the time.
    diff : str
        The column of the diff.
    time : str, optional
        The column of the time. By default rows enter at the time of the epoch.
    """

    rows: DataFrame
    diff: str = "diff"
    time: str | None = None


class Upserts(NamedTuple):
    """Rows that replace the rows of their keys, for an input with a key."""

    rows: Data


class Deletes(NamedTuple):
    """Keys whose rows are deleted, for an input with a key; a key without a row changes nothing."""

    keys: Data


class Whole(NamedTuple):
    """The whole present table: rows of the input that it lacks are removed.

    For an input without a key, each row gets its multiplicity in ``rows``.
    """

    rows: DataFrame


class Forget(NamedTuple):
    """Tombstones that the state no longer keeps, for an input with `Versions` that forget.

    Each one costs a read of all rows of the input.

    Parameters
    ----------
    where : Column
        A condition on the columns of `Upserts`.
    """

    where: Column


Change: TypeAlias = "Inserts | Removes | Updates | Upserts | Deletes | Whole | Forget"


@dataclass(frozen=True)
class Reading:
    """The changes of a source since an offset.

    Parameters
    ----------
    offset : object
        The position after the changes, as JSON.
    changes : sequence of Inserts, Removes, Updates, Upserts, Deletes, Whole or Forget
        The changes in order. A step may read the frames later, so their files must not change.
    """

    offset: Offset
    changes: Sequence[Change]


class Versions(NamedTuple):
    """The columns by which an input compares the rows of a key. `Upserts` have them all.

    Parameters
    ----------
    sequence : tuple of str
        Columns of the order, the most significant one first; nulls are smallest.
    hidden : tuple of StructField
        Further columns of `Upserts`. The input stores them, and its rows do not have them.
    tombstone : str, optional
        The hidden boolean column that marks a row as a deletion of its key.
    forgets : bool
        Whether readings may have `Forget`.
    """

    sequence: tuple[str, ...]
    hidden: tuple[T.StructField, ...] = ()
    tombstone: str | None = None
    forgets: bool = False


def hidden_names(labels: Iterable[str], columns: Iterable[str]) -> tuple[str, ...]:
    """Names for hidden columns, which differ from all columns in any case.

    Examples
    --------
    >>> hidden_names(["written", "deleted"], ["id", "Deleted"])
    ('written', 'deleted_1')
    """
    names = list(columns)
    hidden = []
    for label in labels:
        hidden.append(unused(label, names))
        names.append(hidden[-1])
    return tuple(hidden)


class Source(ABC):
    """A table or feed that fills an input: see `Dataflow.source`.

    A subclass reports its columns, and reads the changes since an offset. A read changes no data.
    Repeated reads from an offset return the same changes, followed by later ones.
    """

    #: Columns of the key, if each key has one row.
    key: tuple[str, ...] = ()
    #: Whether it may return `Whole` without a key; then the input's rows are kept for comparison.
    is_whole = False

    @abstractmethod
    def columns(self, spark: SparkSession) -> T.StructType:
        """The columns of the rows."""

    def versions(self, columns: T.StructType) -> Versions | None:
        """The order of a key's rows, if rows may come in any order. A key then has the row with the
        greatest sequence of all readings. None: it has the row that was read last.

        Parameters
        ----------
        columns : StructType
            The columns of the rows.
        """
        return None

    def narrowed(self, columns: T.StructType, spark: SparkSession) -> Source | None:
        """The source with the columns that a store has; None if the program declares them.

        The dataflow calls it if `columns` returns other columns, because the table has changed.

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

    def after(self, offset: Offset) -> Source:
        """The source that continues from the offset in a store, before `columns` is called."""
        return self

    def renamed(self) -> Mapping[str, str]:
        """The present names of the columns that the table has renamed since, by the names here."""
        return {}

    @abstractmethod
    def read(self, spark: SparkSession, offset: Offset) -> Reading | None:
        """The changes since an offset; None if there are none.

        Parameters
        ----------
        spark : SparkSession
        offset : object
            The offset of an earlier reading; None for the beginning.
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class _Feed(NamedTuple):
    """An input with its source, and optionally the input of late rows and the rows before."""

    source: Source
    session: BaseSession
    #: The columns of the rows.
    names: Sequence[str]
    aside: tuple[Node, InputSession] | None
    before: Callable[[], DataFrame | None] | None

    def columns(self) -> T.StructType:
        """The columns of the rows, without hidden ones."""
        return T.StructType([self.session.schema[name] for name in self.names])


class Sources:
    """The sources of a dataflow and their offsets. It holds state.

    Parameters
    ----------
    time, diff : str
        The user's names of these columns.
    """

    def __init__(self, spark: SparkSession, time_type: TimeType, time: str, diff: str):
        self._spark, self._time_type = spark, time_type
        self._time, self._diff = time, diff
        #: The time and diff columns of late rows.
        self._late = f"late_{time}", f"late_{diff}"
        self._feeds: dict[str, _Feed] = {}
        #: The offset of the rows that each input has received.
        self.offsets: dict[str, Offset] = {}
        #: The columns that the store of the dataflow has for its inputs.
        self.stored: Mapping[str, T.StructType] = {}
        #: The offsets that the store has for its inputs.
        self.stored_offsets: Mapping[str, Offset] = {}
        #: Whether a source is read again if its table lacks columns of the store.
        self.rereads = False
        #: The inputs that are read again.
        self.read_again: set[str] = set()
        #: The present name of each renamed column of an input, and its name in the store.
        self.renamed: dict[str, dict[str, str]] = {}
        #: The columns of each input that are not read because the store lacks them.
        self.left_out: dict[str, list[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._feeds)

    def columns_of(self, name: str, source: Source) -> tuple[Source, T.StructType]:
        """The source of an input, and the columns that it reads. If the table has gained columns,
        these are the columns of the store.

        Raises
        ------
        SourceError
            If the table has lost a column of the store, and is not to be read again.
        """
        if name in self.stored_offsets:
            source = source.after(self.stored_offsets[name])
        now, then = source.columns(self._spark), self.stored.get(name)
        if then is None or Schema(now).same_types(Schema(then)):
            return source, now
        try:
            narrowed = source.narrowed(then, self._spark)
        except SourceError:
            if not self.rereads:
                raise
            self.read_again.add(name)
            return source, now
        if narrowed is None:
            return source, now
        renamed = {new: old for old, new in narrowed.renamed().items()}
        self.renamed[name] = renamed
        self.left_out[name] = [
            column for column in now.names if column not in then.names and column not in renamed
        ]
        return narrowed, then

    def columns(self) -> dict[str, T.StructType]:
        """The columns of each input with a source, if a store can record their types."""
        schemas = {name: feed.columns() for name, feed in self._feeds.items()}
        return {name: struct for name, struct in schemas.items()
                if not contains(struct, T.UserDefinedType)}

    def add(
        self, name: str, source: Source, session: BaseSession, names: Sequence[str],
        aside: tuple[Node, InputSession] | None = None,
        before: Callable[[], DataFrame | None] | None = None,
    ) -> None:
        """Register the source of an input.

        Parameters
        ----------
        name : str
            The name of the input.
        names : sequence of str
            The columns of the rows.
        aside : pair of Node and InputSession, optional
            The input of late rows.
        before : callable, optional
            Returns the input's rows, if any, for the comparison with whole tables.
        """
        self._feeds[name] = _Feed(source, session, names, aside, before)

    def go_on(self, offsets: Mapping[str, Offset], inputs: Iterable[str]) -> None:
        """Continue from the offsets of another process.

        Parameters
        ----------
        offsets : mapping of str to object
        inputs : iterable of str
            Names of the inputs. An input without a source in this program keeps its offset, so
            that a later program with the source continues from there.
        """
        self.offsets = {name: offsets[name] for name in inputs if name in offsets}

    def name_of(self, source: Source) -> str | None:
        """The name of the input that a source fills."""
        return next((name for name, feed in self._feeds.items() if feed.source is source), None)

    @contextmanager
    def or_undone(self, name: str, taken: Callable[[], Mapping[str, Offset]]) -> Iterator[None]:
        """Guard a reading and a step. If they raise and no state has the reading, the reading is
        rolled back.

        Parameters
        ----------
        name : str
            The name of the input.
        taken : callable
            Returns the offsets of the state.
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
        """Whether a source was read beyond the offsets of a state."""
        return any(offsets.get(name) != offset for name, offset in self.offsets.items())

    def late(self, name: str) -> Node:
        """The input of the late rows of another input.

        Raises
        ------
        NotReadableError
            If the input keeps no late rows or does not exist.
        """
        feed = self._feeds.get(name)
        if feed is None or feed.aside is None:
            raise NotReadableError(
                f"no input {name!r} keeps late rows: flow.source({name!r}, ..., late='aside') does"
            )
        return feed.aside[0]

    def late_columns(self, columns: T.StructType) -> T.StructType:
        """The columns of late rows: those of the input, time and diff."""
        time, diff = self._late
        return T.StructType([
            *columns.fields, T.StructField(time, self._time_type.kind),
            T.StructField(diff, T.LongType()),
        ])

    def read(self, now: int | None, taken: Mapping[str, Offset]) -> int | None:
        """Read all sources and feed their changes to the inputs.

        Parameters
        ----------
        now : int or None
            The encoded time at which rows without times enter; None if all inputs are closed.
        taken : mapping of str to object
            The offsets of the state. A whole table is compared with the rows of the state, so it
            is not read again as long as its last reading is pending.

        Returns
        -------
        int or None
            The greatest encoded time of the changes; None if there are none.

        Raises
        ------
        SourceError
            If a source cannot be read, or its input refuses the rows. The inputs of other sources
            keep their rows, and these are not read again.
        """
        last_times = [
            self._read(name, feed, now) for name, feed in self._feeds.items()
            if now is not None and feed.session._at() is not None
            and (feed.before is None or taken.get(name) == self.offsets.get(name))
        ]
        return max((last for last in last_times if last is not None), default=None)

    def _read(self, name: str, feed: _Feed, now: int) -> int | None:
        before = self.offsets.get(name)
        sessions = [feed.session, *(() if feed.aside is None else (feed.aside[1],))]
        contents = [session._saved_content() for session in sessions]
        try:
            reading = feed.source.read(self._spark, before)
            if reading is None:
                return None
            offset = json.loads(json.dumps(reading.offset))
            for session in sessions:
                session._advance_at_least(Antichain([now]))
            for change in reading.changes:
                self._feed(feed, change)
            for session in sessions:
                session._hand_over()
            self.offsets[name] = offset
            return max([now, *(arrival.last for arrival in _new(feed.session, contents[0]))])
        except BaseException as error:
            # Roll back the changes that the inputs have received in part.
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

    def _feed(self, feed: _Feed, change: Change) -> None:
        session = feed.session
        if isinstance(session, KeyedSession):
            if isinstance(change, Upserts):
                session.upsert(_few(change.rows))
            elif isinstance(change, Deletes):
                session.delete(_few(change.keys))
            elif isinstance(change, Whole):
                session.replace(_few(change.rows))
            elif isinstance(change, Forget):
                assert feed.before is not None  # a source that forgets is added with it
                rows = feed.before()
                if rows is not None:
                    session._forget(_few(rows.where(change.where)))
            else:
                raise SchemaError(
                    f"source {feed.source!r} has a key and gives updates without one: give Upserts "
                    "and Deletes, or leave its key out"
                )
            return
        assert isinstance(session, InputSession)  # there are no others
        if isinstance(change, Whole):
            assert feed.before is not None  # a source of whole tables is added with it
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
        """Feed rows without times at the session's time."""
        session.update(_few(rows.withColumn(self._time, self._now(session))))

    def _now(self, session: BaseSession) -> Column:
        return F.lit(session.time()).cast(self._time_type.kind)


def _renamed(frame: DataFrame, names: Mapping[str, str]) -> DataFrame:
    """A frame with renamed columns. All are renamed at once, so that names can be swapped."""
    new = {
        match: name for old, name in names.items()
        for match in meant_by(old, frame.columns, frame.sparkSession)
    }
    return frame.toDF(*(new.get(name, name) for name in frame.columns))


def difference(before: DataFrame, after: DataFrame, diff: str) -> DataFrame:
    """The updates from one table to another, with multiplicities.

    Parameters
    ----------
    before, after : DataFrame
        Frames with the same columns.
    diff : str
        The name of the diff column.

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
    """Few rows of a frame as a table, so that the step need not read them again and an error can
    name them."""
    table = few(rows) if isinstance(rows, DataFrame) else None
    return rows if table is None else table


def _new(session: BaseSession, before: Any) -> Sequence[Any]:
    """The arrivals that a session has flushed since an earlier content."""
    return session._content.flushed[len(before.flushed):]
