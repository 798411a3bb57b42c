"""The methods of a frame that move updates in time: records that expire, and delays.

A collection at a time is a function of its updates up to that time, and never of the time of a
read: the clock is the frontier.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as T

from pyspark_diff.dataflow.times import interval_of, time_kind
from pyspark_diff.errors import SchemaError
from pyspark_diff.frame.base import Frame
from pyspark_diff.operators.due import due, falls_due, later
from pyspark_diff.operators.linear import negate, pick
from pyspark_diff.operators.loop import TimeScope, moved, time_scope
from pyspark_diff.operators.node import Concat, Node

if TYPE_CHECKING:
    from typing_extensions import Self

#: A length of time: in the unit of integer times, or in days and hours; for structs one per field.
Interval = int | str | datetime.timedelta | tuple[int, ...]


class SlidingMethods(Frame):
    """Windows that slide, and delays."""

    def expire_after(self, interval: Interval, column: str | None = None) -> Self:
        """The records of the last ``interval``: each leaves that long after its insertion.

        Parameters
        ----------
        interval : int, timedelta, str or tuple of int
            An integer for integer times. For structs an integer for each field, at least one of
            them positive. Otherwise a timedelta or a text such as ``"7 days"``.
        column : str, optional
            The column with the own time of a record, in the type of the times: the record leaves
            that long after its own time. A record whose update is later than that never appears.

        Returns
        -------
        DiffFrame

        Raises
        ------
        InvalidTimeError
            If the interval is no interval of these times, or not positive. In a step, if a record
            has no time in its column, or would leave after the last possible time.
        SchemaError
            If the column is missing, or has another type; or in a loop.

        Notes
        -----
        With a column it is the filter ``WHERE column + interval > current_timestamp``, and removed
        records are absent. Without a column, each update is negated after the interval, also the
        removal of a record. So the result is the collection minus itself one interval earlier. If
        the collection has removals, name a column with the time of the records.

        The operator keeps records by the time at which they leave, and a step reads only those that
        come or leave in it. If its input is complete, all records leave. With structs as times, a
        record is absent at times that are no earlier in any field than its leaving time. Its
        retraction then is output at once, at that time, and the operator keeps no records.

        Examples
        --------
        >>> from datetime import datetime
        >>> from pyspark_diff import Dataflow
        >>> with Dataflow(spark, time_type="timestamp_ntz") as flow:
        ...     clicks, clicks_in = flow.input("clicks", "page string, at timestamp_ntz")
        ...     week = clicks.expire_after("7 days", "at").select("page").count().keep()
        ...     clicks_in.insert([("a", datetime(2026, 3, 1)), ("a", datetime(2026, 3, 5))])
        ...     for day in (6, 9, 13):
        ...         _ = flow.advance_to(datetime(2026, 3, day))
        ...         print(day, week.at().collect())
        6 [Row(page='a', count=2)]
        9 [Row(page='a', count=1)]
        13 []
        """
        source = self._collection
        scope = self._scope("expire_after")
        internal = None
        if column is not None:
            if not isinstance(column, str):
                raise SchemaError(f"expire_after takes the name of a column, not {column!r}")
            internal = source.column_name(column, "for expire_after")
            kind, wanted = source.node.schema.field(internal).dataType, source.node.time_type
            if scope is None:
                fits, name = wanted.measures(kind), wanted.name
            else:
                name = scope.times.simpleString()
                fits = kind.simpleString() == name
            if not fits:
                raise SchemaError(
                    f"expire_after: the column {column!r} is of type {kind.simpleString()} and the "
                    f"times of type {name}; cast it"
                )
        if scope is not None:
            gone = negate(self._later(interval, "expire_after", internal))
            return self._derived(Concat((source.node, gone)), same=True)
        length = source.node.time_type.interval(interval, "expire_after")
        there = due(source.node, length, internal, (source.time_name, source.diff_name))
        left = falls_due("expire_after", there, -1)
        came: Node = source.node
        if internal is not None:
            # The stage drops updates that are later than their leaving time.
            names = [(name, name) for name in source.node.schema.names]
            came = pick("unexpired", there, names)
        return self._derived(Concat((came, left)), same=True)

    def delay(self, interval: Interval) -> Self:
        """The collection ``interval`` earlier: each update comes that much later.

        Parameters
        ----------
        interval : int, timedelta, str or tuple of int
            As of `expire_after`.

        Returns
        -------
        DiffFrame

        Raises
        ------
        InvalidTimeError
            As of `expire_after`.
        SchemaError
            In a loop.

        Examples
        --------
        >>> rows = [("a", 0, 1), ("b", 2, 1), ("a", 4, -1)]
        >>> stock = DiffFrame(spark.createDataFrame(rows, "item string, time int, diff int"))
        >>> gone = stock.delay(3).subtract(stock)
        >>> gone.to_df().orderBy("time").collect()
        [Row(item='a', time=4, diff=1), Row(item='a', time=7, diff=-1)]

        With structs as times, field by field:

        >>> rows = [("ann", (1, 1), 1), ("ann", (3, 2), -1)]
        >>> columns = "name string, time struct<day: int, known: int>, diff int"
        >>> hired = DiffFrame(spark.createDataFrame(rows, columns))
        >>> later = hired.delay((2, 0))
        >>> [later.at(t).collect() for t in [(2, 9), (3, 1), (5, 2)]]
        [[], [Row(name='ann')], []]
        """
        source = self._collection
        if self._scope("delay") is not None:
            return self._derived(self._later(interval, "delay", None), same=True)
        length = source.node.time_type.interval(interval, "delay")
        there = due(source.node, length, None, (source.time_name, source.diff_name))
        return self._derived(falls_due("delay", there, 1), same=True)

    def _scope(self, what: str) -> TimeScope | None:
        """The scope of the times' last field, if times are structs, outside of all loops."""
        node, scope = self._node, time_scope(self._node)
        if node.loop is not None and node.loop is not scope:
            raise SchemaError(
                f"{what} cannot be used in {node.loop.name}: its later updates would have to enter "
                "finished iterations. Use it on a collection that enters the loop, or on one that "
                "leaves it"
            )
        return scope

    def _later(self, interval: Any, what: str, column: str | None) -> Node:
        """The collection at later times, for structs as times."""
        source, kind = self._collection, time_kind(self._node)
        assert isinstance(kind, T.StructType)
        length = interval_of(interval, kind, what)
        there, names = later(
            source.node, length, column, (source.time_name, source.diff_name)
        )
        return moved(there, length[1:], names)
