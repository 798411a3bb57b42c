"""The methods of a frame that read it: as it stands at a time, as updates, step by step.

A collection of a `Dataflow` is read from what its steps have kept. One that is given as a whole is
read from a dataflow that runs the whole history, when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from pyspark_diff.dataflow.dataflow import BaseDataflow
from pyspark_diff.dataflow.explanation import Explanation
from pyspark_diff.dataflow.hold import Hold
from pyspark_diff.dataflow.probe import Probe
from pyspark_diff.dataflow.sink import Sink
from pyspark_diff.dataflow.struct_columns import StructColumns
from pyspark_diff.dataflow.times import coordinate, readable, time_columns, time_kind
from pyspark_diff.engine.costs import Costs
from pyspark_diff.engine.explanation import operators
from pyspark_diff.engine.graph import graph_of
from pyspark_diff.errors import NotReadableError, SchemaError
from pyspark_diff.expressions.names import Resolver
from pyspark_diff.frame.base import Frame
from pyspark_diff.frame.history import check_most, check_plottable, draw, history, plotting
from pyspark_diff.frame.keys import key_columns
from pyspark_diff.operators.arrange import Output
from pyspark_diff.operators.inspect import Inspect
from pyspark_diff.operators.loop import time_scope, without_times
from pyspark_diff.operators.node import Input
from pyspark_diff.spark.schema import DIFF, TIME
from pyspark_diff.times import Coordinate

if TYPE_CHECKING:
    from typing_extensions import Self

#: Frames that `to_df` and `at` handed out may be read as long as the process lives, so their
#: dataflows live that long too; their files go when it ends.
_ran: list[BaseDataflow] = []


class ReadMethods(Frame):
    """Snapshots, updates, probes and holds."""

    #: The dataflow that has run a collection that is given as a whole.
    _whole: BaseDataflow | None = None
    #: The same collection as `_in_fields` has it.
    _told: Self | None = None

    def explain(self) -> Explanation:
        """How each operator of this collection would be maintained, and why a change of it may
        cost more than itself. Nothing is run.

        What steps have cost, and what is kept, `Dataflow.explain` tells.

        Returns
        -------
        Explanation

        Raises
        ------
        SchemaError
            If the collection is inside of a loop: explain what comes out of it.

        Examples
        --------
        >>> words = DiffFrame(spark.createDataFrame(
        ...     [("a", 0, 1)], "word string, time int, diff int"))
        >>> ones = words.reduce(lambda word, rows: [(1,)], "one long", key="word")
        >>> [reason.code for reason in ones.explain().reasons]
        ['GROUP_FUNCTION']
        """
        self._collection.check_open()
        if self._node.loop is not None:
            raise SchemaError(
                f"this collection is inside of {self._node.loop.name}, which is no program yet; "
                "explain what comes out of it"
            )
        graph = graph_of([Output(self._node)])
        return Explanation(operators(graph, {}, Costs(), {}), 0, 0.0)

    def keep(self, name: str | None = None) -> Self:
        """This collection, kept up to date by every step, so that `at` and `to_df` can read it.

        Parameters
        ----------
        name : str, optional
            What ``flow[name]`` finds it by.

        Raises
        ------
        SchemaError
            If the name is that of another collection, or no text.
        NotReadableError
            If the collection is given as a whole, or inside of a loop.

        Examples
        --------
        >>> from pyspark_diff import Dataflow
        >>> with Dataflow(spark) as flow:
        ...     words, words_in = flow.input("words", "word string")
        ...     counts = words.count().keep("counts")
        ...     words_in.insert([("a",), ("a",)])
        ...     _ = flow.advance_to(1)
        ...     flow["counts"].at(0).collect()
        [Row(word='a', count=2)]
        """
        source = self._collection
        if source.flow is None:
            if name is not None:
                raise NotReadableError(
                    "this collection is given as a whole, and can be read as it is; names are for "
                    "the collections of a Dataflow"
                )
        elif (loop := source.node.loop) is not None and loop is time_scope(source.node):
            told = self._in_fields()._node
            fields = told.schema.names[len(self.columns):]
            source.flow._keep(told, name, self, columns=(*self.columns, *fields))
        elif loop is not None:
            raise NotReadableError(
                f"this collection is in {loop.name} and changes in each iteration; keep what comes "
                "out of it: leave()"
            )
        else:
            source.flow._keep(source.node, name, self, columns=self.columns)
        return self

    def arrange_by_self(self) -> Self:
        """The same as `keep` without a name."""
        return self.keep()

    def hold(self, time: Any = None) -> Hold:
        """Keep this collection readable from a time on, until the hold is released.

        Parameters
        ----------
        time : int, date, datetime or tuple of int, optional
            The earliest time that can still be read if not given. Where times are structs, it may
            be a list of them: what is beyond one of them can be read.

        Raises
        ------
        NotReadableError
            If the collection was not kept, or that time was compacted away; or if it is given as a
            whole, whose history is kept anyway.
        """
        flow = self._collection.flow
        if flow is None:
            raise NotReadableError(
                "this collection is given as a whole, and all its history can be read; holds are "
                "for the collections of a Dataflow"
            )
        kept = self if time_scope(self._node) is None else self._in_fields()
        return flow._hold(kept._node, time)

    def inspect(self, func: Callable[..., object], *, by_table: bool | str = False) -> Self:
        """The same collection; each step shows its new updates to a function, once it is complete.

        Parameters
        ----------
        func : callable
            Called as ``func(record, time, diff)`` for each update, in order of time, with the
            record as a Row; or once a step with a table of all of them: the data columns, time and
            diff.
        by_table : bool or {"arrow", "pandas", "spark"}
            Whether the function takes a table, and of which kind; True is a pyarrow table.

        Raises
        ------
        TypeError
            If ``func`` cannot be called.

        Examples
        --------
        >>> from pyspark_diff import Dataflow
        >>> with Dataflow(spark) as flow:
        ...     words, words_in = flow.input("words", "word string")
        ...     counts = words.count().inspect(print)
        ...     words_in.insert([("a",), ("a",)])
        ...     _ = flow.advance_to(1)
        Row(word='a', count=2) 0 1
        """
        source = self._collection
        if source.flow is None:
            raise NotReadableError(
                "inspect shows the updates of each step, and this collection is given as a whole; "
                "read it with to_df(), or feed it to a Dataflow"
            )
        if not callable(func):
            raise TypeError(
                f"inspect takes a function of record, time and diff, such as print, not {func!r}"
            )
        show = _shown_as(by_table, func, source.spark)
        node = Inspect(self._node, show, bool(by_table), tuple(self.columns))
        source.flow._add_sink(node)
        return self._derived(node, resolver=source.resolver)

    def sink(self, name: str, sink: Sink) -> Self:
        """The same collection, whose changes each step gives to a sink.

        It is kept for that. The sink is given the changes when the step is committed, and the next
        step waits for that: see `Sink`.

        Parameters
        ----------
        name : str
            A store keeps by it what the sink was given.
        sink : Sink
            One of `pyspark_diff.sinks`, or your own.

        Raises
        ------
        SchemaError
            If the name is that of another sink, or the collection cannot be written there.
        NotReadableError
            If the collection is given as a whole, or inside of a loop.

        Examples
        --------
        >>> from pyspark_diff import Dataflow
        >>> from pyspark_diff.sinks import foreach
        >>> def show(changes, epoch):
        ...     print(epoch, sorted(tuple(row) for row in changes.collect()))
        >>> with Dataflow(spark) as flow:
        ...     words, words_in = flow.input("words", "word string")
        ...     counts = words.count().sink("counts", foreach(show))
        ...     words_in.insert([("a",)])
        ...     _ = flow.advance_to(1)
        ...     words_in.insert([("a",)])
        ...     _ = flow.advance_to(2)
        1 [('a', 1, 0, 1)]
        2 [('a', 1, 1, -1), ('a', 2, 1, 1)]
        """
        source = self._collection
        if source.flow is not None:
            source.flow._given.check_name(name, sink)
        self.keep()
        if source.flow is None:
            raise NotReadableError(
                "a sink is given the changes of each step, and this collection is given as a whole;"
                " write its to_df(), or feed it to a Dataflow"
            )
        node = source.node if time_scope(source.node) is None else self._in_fields()._node
        source.flow._add_output(name, sink, node, self.columns, self.schema)
        return self

    def probe(self) -> Probe:
        """A handle that tells up to which time this collection is complete.

        Raises
        ------
        NotReadableError
            If the collection is given as a whole: it is complete then.
        """
        flow = self._collection.flow
        if flow is None:
            raise NotReadableError(
                "this collection is given as a whole and has no frontier to follow; feed it to a "
                "Dataflow to probe it"
            )
        return flow._probe(self._node)

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
        kind = time_kind(self._node)
        if isinstance(kind, T.StructType):
            return self._with_user_names(self._columns(kind).whole(self._complete_updates(kind)))
        flow = self._running()
        with flow._reading():
            updates = flow._arrangement(self._node).updates(self._collection.spark)
        return self._with_user_names(updates)

    def at(self, time: Any = None, *, allow_negative: bool = False) -> DataFrame:
        """The collection as it stood at a time: a plain Spark frame, each record as often as it
        occurs.

        Parameters
        ----------
        time : int, date, datetime or tuple of int, optional
            The latest complete time if not given. Where times are structs, one of them as a tuple;
            the collection is what came at times that are no later in any field.
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
        if time_scope(self._node) is not None:
            return self._at_fields(time, allow_negative)
        flow = self._running()
        with flow._reading():
            arrangement = flow._arrangement(self._node)
            if time is None:
                flow._check_fresh(self._node)
            at = arrangement.readable(time, lambda: flow._next_to_do(self._node))
            found = arrangement.snapshot(
                self._collection.spark, at, allow_negative=allow_negative,
                remedy=lambda: flow._remedy_of_negatives(self._node),
            )
        return self._with_user_names(found)

    def changes(self, since: Any, until: Any = None) -> DataFrame:
        """What made the collection at one time the collection at a later one: a plain Spark frame
        of the data columns, time and diff, consolidated.

        Parameters
        ----------
        since, until : int, date, datetime or tuple of int
            Both as of `at`: updates at times after the first, up to and with the second. If that
            is not given, it is the latest complete time. Where times are structs, updates that are
            no later than the second in any field, and later than the first in one.

        Raises
        ------
        NotReadableError
            If the collection cannot be read at both: see `at`, and `hold` or ``keep_history`` for
            how far back that is.
        TimeRegressionError
            If ``until`` lies before ``since``.

        Examples
        --------
        >>> rows = [(7, 0, 2), (7, 1, -1), (8, 2, 1)]
        >>> n = DiffFrame(spark.createDataFrame(rows, "n int, time int, diff int"))
        >>> n.changes(0, 1).collect()
        [Row(n=7, time=1, diff=-1)]
        """
        if time_scope(self._node) is not None:
            return self._changes_of_fields(since, until)
        flow = self._running()
        with flow._reading():
            found = flow._arrangement(self._node).changed(
                self._collection.spark, since, until, lambda: flow._next_to_do(self._node)
            )
        return self._with_user_names(found)

    def plot_history(
        self, value: str | None = None, *, by: str | Sequence[str] | None = None, most: int = 10,
        ax: Any = None,
    ) -> Any:
        """Draw how the collection moves in time: as matplotlib steps, one at each time at which
        something changed.

        Runs the program as `to_df` does, sums the updates by line and time in Spark, and fetches
        these sums. Of a `Dataflow` without ``keep_history`` that is what is still kept: what came
        before stands as one step at the earliest time that can be read.

        Parameters
        ----------
        value : str, optional
            The column of numbers that is summed, nulls left out; how many rows there are if not
            given.
        by : str or sequence of str, optional
            Columns of which each value has a line of its own.
        most : int
            How many lines: those that changed most, by the sum of what came and went. All others
            are drawn as one.
        ax : matplotlib.axes.Axes, optional
            Where to draw; axes of a new figure if not given.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        ImportError
            If matplotlib is not installed: ``pip install "pyspark_diff[plot]"``.
        SchemaError
            If a column is not there, or the value is no number.
        ValueError
            If ``most`` is not 1 or more.
        NotReadableError
            If the collection was not kept, or its times are structs.

        Examples
        --------
        >>> import matplotlib; matplotlib.use("agg")
        >>> rows = [("a", 0, 2), ("b", 1, 1), ("a", 2, -1)]
        >>> words = DiffFrame(spark.createDataFrame(rows, "word string, time int, diff int"))
        >>> axes = words.plot_history(by="word")
        >>> [(line.get_label(), [*map(float, line.get_ydata())]) for line in axes.get_lines()]
        [('a', [2.0, 2.0, 1.0, 1.0]), ('b', [0.0, 1.0, 1.0, 1.0])]
        """
        self._check_plain_times("plot_history")
        source = self._collection
        check_most(most)
        summed = None
        if value is not None:
            summed = source.column_name(value, "for plot_history")
            check_plottable(value, source.node.schema.struct[summed].dataType)
        lines = [] if by is None else key_columns(source, by, "plot_history")
        # Before the program runs, which may take long.
        pyplot = plotting() if ax is None else None
        flow = self._running()
        with flow._reading():
            updates = flow._arrangement(self._node).updates(source.spark)
        table = history(updates, source.time_name, source.diff_name, summed, lines, most)
        axes = ax if pyplot is None else pyplot.subplots(figsize=(8, 4))[1]
        return draw(
            table, axes, source.time_name, value or "rows",
            ", ".join([by] if isinstance(by, str) else by or ()),
        )

    def _with_user_names(self, frame: DataFrame) -> DataFrame:
        """A frame with the names that the user sees, of which some may be there twice."""
        if not self._collection.resolver.ambiguous:
            return frame
        return frame.toDF(*self.columns, *frame.columns[len(self.columns):])

    def _check_plain_times(self, what: str) -> None:
        if time_scope(self._node) is not None:
            raise NotReadableError(
                f"{what} is of times that come one after the other, and here they are structs: "
                "take the updates that you want from to_df(), or a collection at(time)"
            )

    def _fields(self) -> list[str]:
        """The columns that fields of times become, but for the first."""
        source = self._collection
        kind = time_kind(self._node)
        assert isinstance(kind, T.StructType)
        return time_columns(kind, [*self._node.schema.names, source.time_name, source.diff_name])

    def _in_fields(self) -> Self:
        """This collection with only the first field of each time as its time, the others being
        columns: made once, so that it runs once."""
        if self._told is None:
            scope = time_scope(self._node)
            if self._node.loop is not scope:
                self._running()  # says why not
            self._told = self._wrap(replace(
                self._collection, node=without_times(self._node, self._fields()),
                resolver=Resolver.plain([*self._node.schema.names, *self._fields()]),
            ))
        return self._told

    def _complete_updates(self, kind: T.StructType) -> DataFrame:
        """All updates with the fields of their times as columns, in a dataflow those at times that
        are complete: where two that are meet, it may be at one that is not."""
        told, flow = self._in_fields(), self._collection.flow
        if flow is None:
            return told.to_df()
        with flow._reading():
            frontier = flow._arrangement(told._node).trace.upper
            updates = told.to_df()
        return self._columns(kind).complete(updates, frontier)

    def _columns(self, kind: T.StructType) -> StructColumns:
        """The columns of the updates with the fields of their times as columns."""
        source, records = self._collection, self._node.schema.names
        fields = (source.time_name, *self._fields())
        return StructColumns(kind, records, fields, source.time_name, source.diff_name)

    def _at_fields(self, time: Any, allow_negative: bool) -> DataFrame:
        """`at`, where times are structs."""
        source, kind = self._collection, time_kind(self._node)
        assert isinstance(kind, T.StructType)
        told = self._in_fields()
        with nullcontext() if source.flow is None else source.flow._reading():
            last = self._readable(time, kind)
            updates = told.to_df()
        first = None if last[0] == 2**63 - 1 else source.node.time_type.decode(last[0])
        # What is left is in order of the first field.
        left = self._columns(kind).until(updates, last).withColumnsRenamed({
            source.time_name: TIME, source.diff_name: DIFF
        })
        schema, of_first = self._node.schema, self._node.time_type
        node = Input(schema, of_first, "updates", left, local=left.isLocal())
        plain = Resolver.plain(schema.names)
        whole = self._wrap(replace(source, flow=None, node=node, resolver=plain))
        return self._with_user_names(whole.at(first, allow_negative=allow_negative))

    def _readable(self, time: Any, kind: T.StructType) -> Coordinate:
        """A time that is a struct, at which the collection can be read."""
        at = None if time is None else coordinate(time, kind)
        told, flow = self._in_fields(), self._collection.flow
        if flow is None:
            return at or (2**63 - 1,) * len(kind.fields)
        trace = flow._arrangement(told._node).trace
        if at is None:
            flow._check_fresh(self._node)
        return readable(
            at, trace.upper, trace.since, kind, lambda: flow._next_to_do(told._node)
        )

    def _changes_of_fields(self, since: Any, until: Any) -> DataFrame:
        """`changes`, where times are structs."""
        kind, flow = time_kind(self._node), self._collection.flow
        assert isinstance(kind, T.StructType)
        with nullcontext() if flow is None else flow._reading():
            last, first = self._readable(until, kind), self._readable(since, kind)
            updates = self._in_fields().to_df()
        return self._with_user_names(self._columns(kind).changed(updates, first, last))

    def _running(self) -> BaseDataflow:
        """The dataflow that holds this collection; for a whole history, one that has run it."""
        if self._node.loop is not None:
            raise NotReadableError(
                f"this collection is in {self._node.loop.name} and changes in each iteration; read "
                "what it is at the end, leave(), or watch it with inspect"
            )
        source = self._collection
        if source.flow is not None:
            return source.flow
        if self._whole is None:
            flow = BaseDataflow(
                source.spark,
                time_type=source.node.time_type.kind,
                time=source.time_name,
                diff=source.diff_name,
                keep_history=True,
            )
            flow._run_whole(self._node)
            self._whole = flow
            _ran.append(flow)
        return self._whole


def _shown_as(
    by_table: bool | str, func: Callable[..., object], spark: SparkSession
) -> Callable[..., object]:
    """A function that takes what `Inspect` shows, where one wants tables of another kind."""
    if by_table in (False, True, "arrow"):
        return func
    if by_table == "pandas":
        return lambda table: func(table.to_pandas())
    if by_table == "spark":
        return lambda table: func(spark.createDataFrame(table))
    raise ValueError(
        f"by_table is True, False, 'arrow', 'pandas' or 'spark', not {by_table!r}"
    )
