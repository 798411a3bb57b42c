"""The methods that read a frame: a snapshot at a time, updates, or the changes of each step.

Reads of a collection of a `Dataflow` use the state of its steps. The first read of a whole history
runs a dataflow over all of it.
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
from pyspark_diff.spark.pandas_frames import to_frame
from pyspark_diff.spark.schema import DIFF, TIME
from pyspark_diff.times import Coordinate

if TYPE_CHECKING:
    from typing_extensions import Self

#: Frames from `to_df` and `at` are readable until the process ends, so their dataflows live as
#: long; their files are removed at the end of the process.
_ran: list[BaseDataflow] = []


class ReadMethods(Frame):
    """Snapshots, updates, probes and holds."""

    #: The dataflow that has run a whole history.
    _whole: BaseDataflow | None = None
    #: The same collection in the form of `_in_fields`.
    _as_fields: Self | None = None

    def explain(self) -> Explanation:
        """Report how steps would maintain each operator of this collection, and why a change may
        cost more than its own size. Nothing runs.

        `Dataflow.explain` reports the costs of steps and the state.

        Returns
        -------
        Explanation

        Raises
        ------
        SchemaError
            If the collection is inside of a loop: explain the collection that leaves it.

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
                "explain the collection that leaves it"
            )
        graph = graph_of([Output(self._node)])
        return Explanation(operators(graph, {}, Costs(), {}), 0, 0.0)

    def keep(self, name: str | None = None) -> Self:
        """This collection, kept up to date by every step, so that `at` and `to_df` can read it.

        Parameters
        ----------
        name : str, optional
            The name for ``flow[name]``.

        Raises
        ------
        SchemaError
            If another collection has the name, or the name is no text.
        NotReadableError
            If the collection is a whole history and has a name, or is inside of a loop.

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
                    "this collection has its whole history and is readable without keep; names are "
                    "for the collections of a Dataflow"
                )
        elif (loop := source.node.loop) is not None and loop is time_scope(source.node):
            in_fields = self._in_fields()._node
            fields = in_fields.schema.names[len(self.columns):]
            source.flow._keep(in_fields, name, self, columns=(*self.columns, *fields))
        elif loop is not None:
            raise NotReadableError(
                f"this collection is in {loop.name} and changes in each iteration; keep the "
                "collection that leaves it: leave()"
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
            The default is the earliest readable time. With structs as times, it may be a list of
            times: times beyond one of them stay readable.

        Raises
        ------
        NotReadableError
            If the collection was not kept, or its compaction has passed that time; or if it is a
            whole history, which needs no hold.
        """
        flow = self._collection.flow
        if flow is None:
            raise NotReadableError(
                "this collection has its whole history, which is readable; holds are for the "
                "collections of a Dataflow"
            )
        frame = self if time_scope(self._node) is None else self._in_fields()
        return flow._hold(frame._node, time)

    def inspect(self, func: Callable[..., object], *, by_table: bool | str = False) -> Self:
        """The same collection; each step passes its new updates to a function, after the step is
        complete.

        Parameters
        ----------
        func : callable
            Called as ``func(record, time, diff)`` for each update, in order of time, with the
            record as a Row; or once a step with a table of all updates: the data columns, time and
            diff.
        by_table : bool or {"arrow", "pandas", "spark"}
            Whether the function takes a table, and its kind; True is a pyarrow table.

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
                "inspect shows the updates of each step, and this collection has its whole "
                "history. Read it with to_df(), or feed it to a Dataflow"
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
        """The same collection; each step writes its changes to a sink.

        The dataflow keeps the collection for that. The sink receives the changes when the step is
        committed, and the next step waits until it has: see `Sink`.

        Parameters
        ----------
        name : str
            The name under which a store records the progress of the sink.
        sink : Sink
            One of `pyspark_diff.sinks`, or your own.

        Raises
        ------
        SchemaError
            If another sink has the name, or the sink cannot write the collection.
        NotReadableError
            If the collection is a whole history, or inside of a loop.

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
            source.flow._consumers.check_name(name, sink)
        self.keep()
        if source.flow is None:
            raise NotReadableError(
                "a sink receives the changes of each step, and this collection has its whole "
                "history. Write its to_df(), or feed it to a Dataflow"
            )
        node = source.node if time_scope(source.node) is None else self._in_fields()._node
        source.flow._add_output(name, sink, node, self.columns, self.schema)
        return self

    def probe(self) -> Probe:
        """A handle that reports the frontier up to which this collection is complete.

        Raises
        ------
        NotReadableError
            If the collection is a whole history, which is complete.
        """
        flow = self._collection.flow
        if flow is None:
            raise NotReadableError(
                "this collection has its whole history and no frontier to follow; feed it to a "
                "Dataflow to probe it"
            )
        return flow._probe(self._node)

    def to_df(self) -> DataFrame:
        """All updates of the collection as a Spark frame: data columns, time and diff,
        consolidated.

        For a whole history the call runs the whole program. In a `Dataflow` it returns the kept
        updates: see ``keep_history`` of `Dataflow`; that frame is readable until the dataflow is
        closed.

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
        """The collection accumulated at a time: a plain Spark frame, each record as often as it
        occurs.

        Parameters
        ----------
        time : int, date, datetime or tuple of int, optional
            The default is the latest complete time. With structs as times, a tuple; the collection
            accumulates updates at times that are no later in any field.
        allow_negative : bool
            Leave out records with a negative multiplicity instead of refusing.

        Raises
        ------
        NotReadableError
            If the time is not complete yet, compaction has passed it, or the collection was not
            kept.
        NegativeMultiplicityError
            If the removals of a record exceed its insertions.

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
            snapshot = arrangement.snapshot(
                self._collection.spark, at, allow_negative=allow_negative,
                remedy=lambda: flow._remedy_of_negatives(self._node),
            )
        return self._with_user_names(snapshot)

    def changes(self, since: Any, until: Any = None) -> DataFrame:
        """The updates between two times: a plain Spark frame of the data columns, time and diff,
        consolidated.

        Parameters
        ----------
        since, until : int, date, datetime or tuple of int
            Times as in `at`: the result has updates at times after `since`, up to and including
            `until`. The default of `until` is the latest complete time. With structs as times, it
            has updates that are no later than `until` in any field, and later than `since` in one.

        Raises
        ------
        NotReadableError
            If the collection is not readable at both times: see `at`. `hold` and ``keep_history``
            keep earlier times readable.
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
            updates = flow._arrangement(self._node).changed(
                self._collection.spark, since, until, lambda: flow._next_to_do(self._node)
            )
        return self._with_user_names(updates)

    def plot_history(
        self, value: str | None = None, *, by: str | Sequence[str] | None = None, most: int = 10,
        ax: Any = None,
    ) -> Any:
        """Draw the collection over time, as matplotlib steps, with one step at each time of a
        change.

        Runs the program as `to_df` does, sums the updates by line and time in Spark, and fetches
        these sums. For a `Dataflow` without ``keep_history`` it draws the kept updates: all earlier
        ones are one step at the earliest readable time.

        Parameters
        ----------
        value : str, optional
            The column of numbers to sum, without nulls. The default counts rows.
        by : str or sequence of str, optional
            Columns that have a line for each of their values.
        most : int
            The largest number of lines: the lines with the largest sum of absolute changes. All
            others are drawn as one line.
        ax : matplotlib.axes.Axes, optional
            The axes to draw on. The default is the axes of a new figure.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        ImportError
            If matplotlib is not installed: ``pip install "pyspark_diff[plot]"``.
        SchemaError
            If a column is missing, or the value is no number.
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
        # A missing matplotlib must fail before the program runs, which may take long.
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
        """A frame with the user's names, in which a name may occur twice."""
        if not self._collection.resolver.ambiguous:
            return frame
        return frame.toDF(*self.columns, *frame.columns[len(self.columns):])

    def _check_plain_times(self, what: str) -> None:
        if time_scope(self._node) is not None:
            raise NotReadableError(
                f"{what} is for times that come one after the other, and here they are structs. "
                "Filter the updates of to_df(), or read the collection at(time)"
            )

    def _fields(self) -> list[str]:
        """The columns for the fields of times after the first."""
        source = self._collection
        kind = time_kind(self._node)
        assert isinstance(kind, T.StructType)
        return time_columns(kind, [*self._node.schema.names, source.time_name, source.diff_name])

    def _in_fields(self) -> Self:
        """This collection with the first field of each time as its time, and the other fields as
        columns. It is cached, so that it runs once."""
        if self._as_fields is None:
            scope = time_scope(self._node)
            if self._node.loop is not scope:
                self._running()  # raises the error for a collection of a loop
            self._as_fields = self._wrap(replace(
                self._collection, node=without_times(self._node, self._fields()),
                resolver=Resolver.plain([*self._node.schema.names, *self._fields()]),
            ))
        return self._as_fields

    def _complete_updates(self, kind: T.StructType) -> DataFrame:
        """All updates with the fields of their times as columns. A dataflow returns only those at
        complete times, as the join of two complete times may be incomplete."""
        in_fields, flow = self._in_fields(), self._collection.flow
        if flow is None:
            return in_fields.to_df()
        with flow._reading():
            frontier = flow._arrangement(in_fields._node).trace.upper
            updates = in_fields.to_df()
        return self._columns(kind).complete(updates, frontier)

    def _columns(self, kind: T.StructType) -> StructColumns:
        """The columns of updates that have the fields of their times as columns."""
        source, records = self._collection, self._node.schema.names
        fields = (source.time_name, *self._fields())
        return StructColumns(kind, records, fields, source.time_name, source.diff_name)

    def _at_fields(self, time: Any, allow_negative: bool) -> DataFrame:
        """`at`, if times are structs."""
        source, kind = self._collection, time_kind(self._node)
        assert isinstance(kind, T.StructType)
        in_fields = self._in_fields()
        with nullcontext() if source.flow is None else source.flow._reading():
            last = self._readable(time, kind)
            updates = in_fields.to_df()
        first = None if last[0] == 2**63 - 1 else source.node.time_type.decode(last[0])
        # The first field totally orders the remaining updates, so it can be their time.
        left = self._columns(kind).until(updates, last).withColumnsRenamed({
            source.time_name: TIME, source.diff_name: DIFF
        })
        schema, of_first = self._node.schema, self._node.time_type
        node = Input(schema, of_first, "updates", left, local=left.isLocal())
        plain = Resolver.plain(schema.names)
        whole = self._wrap(replace(source, flow=None, node=node, resolver=plain))
        return self._with_user_names(whole.at(first, allow_negative=allow_negative))

    def _readable(self, time: Any, kind: T.StructType) -> Coordinate:
        """A struct at which the collection is readable."""
        at = None if time is None else coordinate(time, kind)
        in_fields, flow = self._in_fields(), self._collection.flow
        if flow is None:
            return at or (2**63 - 1,) * len(kind.fields)
        trace = flow._arrangement(in_fields._node).trace
        if at is None:
            flow._check_fresh(self._node)
        return readable(
            at, trace.upper, trace.since, kind, lambda: flow._next_to_do(in_fields._node)
        )

    def _changes_of_fields(self, since: Any, until: Any) -> DataFrame:
        """`changes`, if times are structs."""
        kind, flow = time_kind(self._node), self._collection.flow
        assert isinstance(kind, T.StructType)
        with nullcontext() if flow is None else flow._reading():
            last, first = self._readable(until, kind), self._readable(since, kind)
            updates = self._in_fields().to_df()
        return self._with_user_names(self._columns(kind).changed(updates, first, last))

    def _running(self) -> BaseDataflow:
        """The dataflow of this collection; for a whole history, the dataflow that has run it."""
        if self._node.loop is not None:
            raise NotReadableError(
                f"this collection is in {self._node.loop.name} and changes in each iteration; read "
                "its final state, leave(), or watch it with inspect"
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
    """A function of the Arrow tables of `Inspect`, for a function of another kind of tables."""
    if by_table in (False, True, "arrow"):
        return func
    if by_table == "pandas":
        return lambda table: func(to_frame(table))
    if by_table == "spark":
        return lambda table: func(spark.createDataFrame(table))
    raise ValueError(
        f"by_table is True, False, 'arrow', 'pandas' or 'spark', not {by_table!r}"
    )
