"""DiffFrame: a collection that changes over time, written as if it were a static table."""

from __future__ import annotations

from typing import Any, Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from pyspark_diff.dataflow.dataflow import Dataflow
from pyspark_diff.dataflow.hold import Hold
from pyspark_diff.dataflow.probe import Probe
from pyspark_diff.engine.state import only
from pyspark_diff.errors import NotReadableError, SchemaError
from pyspark_diff.expressions.check import check_deterministic
from pyspark_diff.expressions.names import Resolver, unused
from pyspark_diff.frame.keyed_methods import KeyedMethods
from pyspark_diff.frame.loop_methods import Loop, LoopMethods
from pyspark_diff.operators.by_self import over_arrangement
from pyspark_diff.operators.consolidate import consolidate
from pyspark_diff.operators.count import count
from pyspark_diff.operators.inspect import Inspect
from pyspark_diff.operators.node import Input, Keyed, Node
from pyspark_diff.operators.threshold import threshold
from pyspark_diff.spark.frames import column
from pyspark_diff.spark.schema import DIFF, TIME, Schema, TimeType, check_data_names, check_names


class DiffFrame(KeyedMethods, LoopMethods):
    """A multiset of records that changes over time, held as updates ``(record, time, diff)``.

    Wrap a Spark frame that has a time and a diff column to compute over its whole history, or take
    one from `Dataflow.input` to keep an answer up to date step by step. Both give the same answer.

    Every method is lazy and returns a `DiffFrame`, except: `to_df` and `at` compute and return a
    Spark frame, `probe` returns a `Probe`, and the properties `columns` and `schema`.

    Parameters
    ----------
    frame : DataFrame
        Update rows: data columns, a time and a diff.
    time : str
        Name of the time column: an integer, date or timestamp, never null.
    diff : str
        Name of the diff column: an integer, never null.

    Raises
    ------
    SchemaError
        If the time or diff column is missing or has a type that cannot serve.
    NonDeterministicError
        If the frame gives other rows at each evaluation.

    Examples
    --------
    >>> from pyspark_diff import DiffFrame
    >>> edges = spark.createDataFrame(
    ...     [(1, 2, 0, 1), (1, 3, 0, 1), (1, 2, 5, -1)], "src long, dst long, time long, diff long")
    >>> degrees = DiffFrame(edges).select("src").count()
    >>> degrees.to_df().orderBy("time", "diff").show()
    +---+-----+----+----+
    |src|count|time|diff|
    +---+-----+----+----+
    |  1|    2|   0|   1|
    |  1|    2|   5|  -1|
    |  1|    1|   5|   1|
    +---+-----+----+----+
    <BLANKLINE>
    >>> degrees.at(4).collect()
    [Row(src=1, count=2)]
    """

    def __init__(self, frame: DataFrame, time: str = "time", diff: str = "diff"):
        if not isinstance(frame, DataFrame):
            raise SchemaError(
                f"DiffFrame wraps a Spark DataFrame, not a {type(frame).__name__}; make one with "
                "spark.createDataFrame(...)"
            )
        check_names(frame.columns)
        check_names([time, diff])
        types = {field.name: field.dataType for field in frame.schema.fields}
        for name, what in ((time, "time"), (diff, "diff")):
            if name not in types:
                raise SchemaError(
                    f"there is no {what} column {name!r}; the columns are "
                    f"{', '.join(frame.columns)}. Name it: DiffFrame(df, {what}=...)"
                )
        if not isinstance(types[diff], (T.ByteType, T.ShortType, T.IntegerType, T.LongType)):
            raise SchemaError(
                f"the diff column {diff!r} must be an integer, not {types[diff].simpleString()}; "
                "cast it"
            )
        check_deterministic(frame)
        kind = TimeType(types[time])
        fields = [f for f in frame.schema.fields if f.name not in (time, diff)]
        schema = Schema(T.StructType(fields))
        updates = frame.select(
            *[column(f.name) for f in fields],
            column(time).alias(TIME),
            column(diff).cast("long").alias(DIFF),
        )
        node = Input(schema, kind, "frame", updates, local=frame.isLocal())
        self._set(node, None, frame.sparkSession, (time, diff))

    def _set(
        self, node: Node, flow: Dataflow | None, spark: SparkSession, names: tuple[str, str]
    ) -> None:
        self._node = node
        self._flow = flow
        self._spark = spark
        self._names = names
        self._resolver = Resolver.plain(node.schema.names)
        self._small = False
        self._key: tuple[str, ...] | None = None
        self._whole: Dataflow | None = None
        if flow is not None:
            flow._frames.add(self)

    @classmethod
    def _of_flow(cls, flow: Dataflow, node: Node) -> "DiffFrame":
        frame = cls.__new__(cls)
        frame._set(node, flow, flow.spark, (flow.time_name, flow.diff_name))
        return frame

    def _with(self, node: Node, *, resolver: Resolver | None = None) -> "DiffFrame":
        """The one way back into the wrapper."""
        if resolver is None:
            self._unambiguous(node.kind)
        check_data_names(node.schema.names, *self._names, node.kind)
        if self._flow is not None:
            self._flow._check_open()
            self._flow._check_building(node.kind)
        frame = DiffFrame.__new__(DiffFrame)
        frame._set(node, self._flow, self._spark, self._names)
        frame._resolver = resolver or frame._resolver
        return frame

    # Operators on arranged records.

    def count(self) -> "DiffFrame":
        """Each distinct record with its multiplicity in a column ``count``: an operator, not an
        action.

        PySpark's `DataFrame.count()` runs a job and returns a number; this is lazy and returns a
        `DiffFrame`, like PySpark's ``df.groupBy(*df.columns).count()``. For a number, use
        ``at(t).count()``. Where the record has a column ``count`` already, the new one is
        ``count_1``, and so on. A record whose multiplicity is zero has no row.

        Examples
        --------
        >>> rows = [(7, 0, 2), (7, 1, -2)]
        >>> n = DiffFrame(spark.createDataFrame(rows, "n int, time int, diff int"))
        >>> n.count().to_df().orderBy("time").collect()
        [Row(n=7, count=2, time=0, diff=1), Row(n=7, count=2, time=1, diff=-1)]
        """
        name = unused("count", [*self.columns, *self._names])
        return self._records(count(self._node, name))

    def count_total(self) -> "DiffFrame":
        """`count` for totally ordered times.

        Differential dataflow has a separate, faster operator for these. Outside loops all times
        here are totally ordered, and `count` always uses what that allows, so the two are one.
        """
        return self.count()

    def distinct(self) -> "DiffFrame":
        """Each record with positive multiplicity once, as PySpark's `distinct`.

        Examples
        --------
        >>> rows = [(7, 0, 2), (7, 1, -2)]
        >>> n = DiffFrame(spark.createDataFrame(rows, "n int, time int, diff int"))
        >>> n.distinct().to_df().orderBy("time").collect()
        [Row(n=7, time=0, diff=1), Row(n=7, time=1, diff=-1)]
        """
        return self._records(threshold(self._node, None))

    def threshold(self, func: Callable[[int], int]) -> "DiffFrame":
        """Each record with a function of its multiplicity as its multiplicity.

        Parameters
        ----------
        func : callable
            From one integer to another, zero to zero. It is called once for each multiplicity
            that occurs in a bucket, not for each record.

        Examples
        --------
        >>> n = DiffFrame(spark.createDataFrame([(7, 0, 5)], "n int, time int, diff int"))
        >>> n.threshold(lambda count: min(count, 2)).at(0).collect()
        [Row(n=7), Row(n=7)]
        """
        return self._records(threshold(self._node, func))

    def consolidate(self) -> "DiffFrame":
        """The same collection with the fewest update rows: equal ones add up, zeros vanish."""
        return self._with(consolidate(self._node))

    def _records(self, node: Keyed) -> "DiffFrame":
        """An operator on whole records: over their arrangement, if there is one that is shared."""
        arranged = self._node.arrangements.get(self._node.schema.names)
        return self._with(node if arranged is None else over_arrangement(node, arranged))

    # Reading.

    def arrange_by_self(self) -> "DiffFrame":
        """The same collection, kept so that `at` and `to_df` can read it after steps.

        Collections that no operator reads are kept without asking.
        """
        frame = self._with(self._node, resolver=self._resolver)
        if self._flow is not None and self._node.loop is None:
            self._flow._keep(self._node)
        return frame

    def hold(self, time: Any = None) -> Hold:
        """Keep this collection readable from a time on, until the hold is released.

        Parameters
        ----------
        time : int, date or datetime, optional
            The earliest time that can still be read if not given.

        Raises
        ------
        NotReadableError
            If the collection was not kept, or that time was compacted away; or if it is given as a
            whole, whose history is kept anyway.
        """
        if self._flow is None:
            raise NotReadableError(
                "this collection is given as a whole, and all its history can be read; holds are "
                "for the collections of a Dataflow"
            )
        kind = self._node.time_type
        return self._flow._hold(self._node, None if time is None else kind.encode(time))

    def inspect(self, func: Callable[..., object], *, by_table: bool = False) -> "DiffFrame":
        """The same collection; each step shows its new updates to a function, once it is complete.

        Parameters
        ----------
        func : callable
            Called as ``func(record, time, diff)`` for each update, in order of time, with the
            record as a Row; or once a step with a pyarrow table of all of them.
        by_table : bool
            Whether the function takes a table.

        Examples
        --------
        >>> from pyspark_diff import Dataflow
        >>> with Dataflow(spark) as flow:
        ...     words, words_in = flow.input("words", "word string")
        ...     counts = words.count().inspect(print)
        ...     words_in.insert([("a",), ("a",)])
        ...     words_in.advance_to(1)
        ...     words_in.flush()
        ...     _ = flow.step()
        Row(word='a', count=2) 0 1
        """
        node = Inspect(self._node, func, by_table, self.columns)
        if self._flow is None:
            raise NotReadableError(
                "inspect shows the updates of each step, and this collection is given as a whole; "
                "read it with to_df(), or feed it to a Dataflow"
            )
        self._flow._add_sink(node)
        return self._with(node, resolver=self._resolver)

    def probe(self) -> Probe:
        """A handle that tells up to which time this collection is complete.

        Raises
        ------
        NotReadableError
            If the collection is given as a whole: it is complete then.
        """
        if self._flow is None:
            raise NotReadableError(
                "this collection is given as a whole and has no frontier to follow; feed it to a "
                "Dataflow to probe it"
            )
        return self._flow._probe(self._node)

    def to_df(self) -> DataFrame:
        """All updates of the collection as a Spark frame: data columns, time and diff,
        consolidated.

        For a collection given as a whole this runs the whole program. In a `Dataflow` it gives
        what is kept: see `Dataflow`'s ``keep_history``; such a frame can be read until the
        dataflow is closed.

        Raises
        ------
        NotReadableError
            If the collection was not kept.
        """
        flow = self._running()
        arrangement, _ = flow._arrangement(self._node)
        return self._shown(arrangement.updates(self._spark))

    def at(self, time: Any = None, *, allow_negative: bool = False) -> DataFrame:
        """The collection as it stood at a time: a plain Spark frame, each record as often as it
        occurs.

        Parameters
        ----------
        time : int, date or datetime, optional
            The latest complete time if not given.
        allow_negative : bool
            Leave out records with a negative multiplicity instead of refusing.

        Raises
        ------
        NotReadableError
            If the time is not complete yet, was compacted away, or the collection was not kept.
        NegativeMultiplicityError
            If more of a record was removed than inserted.

        Examples
        --------
        >>> rows = [(7, 0, 2), (7, 1, -1)]
        >>> n = DiffFrame(spark.createDataFrame(rows, "n int, time int, diff int"))
        >>> n.at(0).collect(), n.at(1).collect()
        ([Row(n=7), Row(n=7)], [Row(n=7)])
        """
        flow = self._running()
        kind = self._node.time_type
        arrangement, frontier = flow._arrangement(self._node)
        since = only(arrangement.trace.since)
        if time is None:
            at = 2**63 - 1 if frontier is None else frontier - 1
        else:
            at = kind.encode(time)
        if frontier is not None and at >= frontier:
            raise NotReadableError(
                f"time {kind.decode(at)!r} is not complete: the collection is processed up to, and "
                f"not including, {kind.decode(frontier)!r}. Advance its inputs, flush, and step"
            )
        if since is not None and at < since and since == frontier:
            raise NotReadableError(
                f"no time is complete yet: the collection is processed up to, and not including, "
                f"{kind.decode(since)!r}. Advance its inputs, flush, and step"
            )
        if since is not None and at < since:
            raise NotReadableError(
                f"time {kind.decode(at)!r} was compacted away: the collection can be read from "
                f"{kind.decode(since)!r} on. Use Dataflow(keep_history=True) to read older times"
            )
        return self._shown(
            arrangement.snapshot(self._spark, at, allow_negative=allow_negative)
        )

    def _shown(self, frame: DataFrame) -> DataFrame:
        """A frame with the names that the user sees, of which some may be there twice."""
        if not self._resolver.ambiguous:
            return frame
        return frame.toDF(*self.columns, *frame.columns[len(self.columns):])

    def __repr__(self) -> str:
        columns = self._node.schema.describe()
        return f"DiffFrame[{columns}; {self._names[0]} {self._node.time_type.name}]"

    def _running(self) -> Dataflow:
        """The dataflow that holds this collection; for a whole history, one that has run it."""
        if self._node.loop is not None:
            raise NotReadableError(
                f"this collection is in {self._node.loop.name} and changes in each iteration; read "
                "what it is at the end, leave(), or watch it with inspect"
            )
        if self._flow is not None:
            return self._flow
        if self._whole is None:
            flow = Dataflow(
                self._spark,
                time_type=self._node.time_type.kind,
                time=self._names[0],
                diff=self._names[1],
                keep_history=True,
            )
            flow._run_whole(self._node)
            self._whole = flow
            _ran.append(flow)
        return self._whole


#: Frames that `to_df` and `at` handed out may be read as long as the process lives, so their
#: dataflows live that long too; their files go when it ends.
_ran: list[Dataflow] = []

Dataflow._wrap = DiffFrame._of_flow
Dataflow._make_loop = Loop
