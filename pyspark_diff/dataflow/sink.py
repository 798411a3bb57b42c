"""Sinks: consumers of a collection's changes, each step exactly once.

For the epochs ``e1 < e2 < ...`` of a sink, and their times ``[l, u)``::

    l1 = the beginning     l(i+1) = u(i)     the same epoch  =>  the same changes

The commit of a step records the interval of times that each sink is due, and the collections are
kept. The changes therefore do not depend on the memory of a process. A sink that has failed, or
whose process has ended, receives the same changes again under the same epoch. No later step runs
before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff import thresholds
from pyspark_diff.dataflow.input_session import check_name
from pyspark_diff.engine.compaction import last_before
from pyspark_diff.engine.graph import Graph
from pyspark_diff.engine.state import SinkChanges, State
from pyspark_diff.errors import NotReadableError, SchemaError, SinkError
from pyspark_diff.kernels.jit import interrupted
from pyspark_diff.kernels.layout import as_int64
from pyspark_diff.kernels.updates import joined
from pyspark_diff.operators.loop import beyond
from pyspark_diff.operators.node import Arranged, Input, Node
from pyspark_diff.spark.frames import column, few
from pyspark_diff.times import Antichain, meet_all
from pyspark_diff.trace.arrangement import Arrangement


@dataclass(frozen=True)
class Epoch:
    """The changes of a step in a collection, for a sink.

    The frames read kept collections and are valid while `Sink.write` runs.

    Parameters
    ----------
    number : int
        The number of the step; numbers are unique in a store and grow.
    store : str
        The unique identity of the store, equal in all processes that continue the dataflow.
    name : str
        The name of the sink.
    is_first : bool
        Whether the changes are the whole collection, and replace earlier output of the sink from a
        program that has changed since.
    spark : SparkSession
    schema : StructType
        The schema of the records.
    time, diff : str
        The names of time and diff in ``changes``.
    offsets : mapping of str to object
        The offset of each source up to which the collection contains its rows.
    """

    number: int
    store: str
    name: str
    is_first: bool
    spark: SparkSession
    schema: T.StructType
    time: str
    diff: str
    offsets: Mapping[str, Any]
    _changes: Callable[[], DataFrame]
    _few_changes: Callable[[], pa.Table | None]
    _snapshot: Callable[[], DataFrame]

    @property
    def changes(self) -> DataFrame:
        """Update rows: the columns of the records, then time and diff; consolidated."""
        return self._changes()

    def few_changes(self) -> pa.Table | None:
        """The rows of `changes` in any order if they are few, for work without a Spark job.

        Returns
        -------
        pyarrow.Table or None
            None if the epoch has more than 200,000 changes.
        """
        return self._few_changes()

    def snapshot(self) -> DataFrame:
        """The collection after the step, with each record as often as its multiplicity.

        Raises
        ------
        NegativeMultiplicityError
        NotReadableError
            If times are structs: no complete time is the latest.
        """
        return self._snapshot()


class Sink(ABC):
    """A consumer that writes the changes of a collection: see `DiffFrame.sink`.

    If `write` does not return, it is called again, in this process or in another one, with the same
    number and the same changes. For exactly-once output a repeated `write` must be idempotent.
    """

    #: Whether it writes `Epoch.snapshot`. With struct times such a sink is refused, because no time
    #: is the latest.
    writes_snapshots: ClassVar[bool] = False

    def check(self, schema: T.StructType, spark: SparkSession) -> None:
        """Refuse a collection that cannot be written, while the program is built."""

    @abstractmethod
    def write(self, epoch: Epoch) -> None:
        """Write the changes of one step.

        Parameters
        ----------
        epoch : Epoch
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class _Output(NamedTuple):
    """A sink, its collection, and the user's names of the columns."""

    sink: Sink
    node: Node
    columns: tuple[str, ...]


class Sinks:
    """The sinks of a dataflow. It holds state: the sinks.

    Parameters
    ----------
    time, diff : str
        The user's names of these columns.
    times : StructType, optional
        The type of times, if times are structs.
    """

    def __init__(
        self, spark: SparkSession, time: str, diff: str, times: T.StructType | None = None
    ):
        self._spark, self._names, self._times = spark, (time, diff), times
        self._outputs: dict[str, _Output] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._outputs)

    def __bool__(self) -> bool:
        return bool(self._outputs)

    def add(self, name: str, sink: Sink, node: Node, columns: tuple[str, ...]) -> None:
        """Register the sink of a kept collection's changes."""
        self._outputs[name] = _Output(sink, node, columns)

    def check_name(self, name: str, sink: object) -> None:
        """Refuse an invalid or used name, and an object that is no sink."""
        check_name(name, "a sink", "revenue")
        if name in self._outputs:
            raise SchemaError(f"this dataflow has a sink {name!r} already; give it another name")
        if not isinstance(sink, Sink):
            raise SchemaError(
                f"sink {name!r} is written to by a Sink, such as pyspark_diff.sinks.parquet(path) "
                f"or pyspark_diff.sinks.foreach(function), not by {sink!r}"
            )
        if self._times is not None and sink.writes_snapshots:
            raise NotReadableError(
                f"{sink!r} writes the latest state of a collection, and no struct time "
                f"{self._times.simpleString()} is the latest: write its changes, as "
                "change_log, delta_append and foreach do"
            )

    def holds(
        self, state: State, start: Antichain, arranged: Callable[[Node], Arranged]
    ) -> dict[Node, Antichain]:
        """The read hold of the sinks on each collection, so that their next changes stay exact.

        Parameters
        ----------
        start : Antichain
            The first frontier; the hold of a sink without an epoch begins there.
        arranged : callable
            Returns the arrangement that keeps a collection.
        """
        meets: dict[Node, Antichain] = {}
        for name, output in self._outputs.items():
            node, last = arranged(output.node), state.given_to.get(name)
            at: Antichain | None = start
            if last is not None and last.node is node:
                at = last.upper if last.done else last.lower
            at = start if at is None else at
            if not at.is_empty:
                hold = last_before(at)
                meets[node] = meets.get(node, hold).meet(hold)
        return meets

    def due(
        self, before: State, after: State, arranged: Callable[[Node, Graph], Arranged]
    ) -> Mapping[str, SinkChanges]:
        """The interval that each sink is due after a step.

        Parameters
        ----------
        arranged : callable
            Returns the arrangement that keeps a collection.
        """
        due: dict[str, SinkChanges] = {}
        graph = after.graph
        assert graph is not None  # a step has run
        for name, output in self._outputs.items():
            node = arranged(output.node, graph)
            last, upper = before.given_to.get(name), _settled(node, graph, after)
            if last is None or last.node is not node:
                due[name] = SinkChanges(node, after.epoch, None, upper)
            elif last.upper == upper or not last.done:
                due[name] = last
            else:
                due[name] = SinkChanges(node, after.epoch, last.upper, upper)
        return due

    def give(
        self, state: State, store: str, arrangement: Callable[[Node], Arrangement]
    ) -> None:
        """Write the due changes to each sink. A failed sink delays no other.

        Raises
        ------
        SinkError
            If a sink has failed; the others have received their changes.
        """
        failed: dict[str, Exception] = {}
        for name, due in state.given_to.items():
            output = self._outputs.get(name)
            if due.done or output is None:
                due.done = True
                continue
            try:
                self._give(name, output, due, store, arrangement(output.node), state.offsets)
            except Exception as error:
                if interrupted(error):
                    raise
                failed[name] = error
        for name, cause in failed.items():
            epoch = state.given_to[name].epoch
            raise SinkError(
                f"sink {name!r}, {self._outputs[name].sink!r}, has failed on epoch {epoch} "
                f"({type(cause).__name__}: {cause}). The step is done, and is kept. The next step "
                "gives this epoch to the sink again first: repair the sink, and step"
            ) from cause

    def _give(
        self, name: str, output: _Output, due: SinkChanges, store: str, arrangement: Arrangement,
        offsets: Mapping[str, Any],
    ) -> None:
        if self._times is not None:
            self._give_of_structs(name, output, due, store, arrangement, self._times)
            return
        lower = None if due.lower is None else due.lower.bound
        upper = due.upper.bound
        is_first = due.lower is None
        if not is_first and not arrangement.has_between(lower, upper):
            due.done = True
            return

        def named(frame: DataFrame) -> DataFrame:
            return frame.toDF(*output.columns, *frame.columns[len(output.columns):])

        def snapshot() -> DataFrame:
            at = 2**63 - 1 if upper is None else upper - 1
            return named(arrangement.snapshot(self._spark, at, allow_negative=False))

        def changes() -> DataFrame:
            return named(arrangement.between(self._spark, lower, upper))

        @cache
        def few_changes() -> pa.Table | None:
            table = arrangement.table_between(lower, upper)
            if table is None:
                return few(changes())
            names = *output.columns, *table.column_names[len(output.columns):]
            if table.num_rows > thresholds.current.collect_frame_rows_max:
                return None
            return table.rename_columns(names)

        fields = arrangement.schema.struct.fields
        schema = T.StructType([
            T.StructField(column, field.dataType, field.nullable)
            for column, field in zip(output.columns, fields)
        ])
        output.sink.write(Epoch(
            due.epoch, store, name, is_first, self._spark, schema, *self._names,
            offsets, changes, few_changes, snapshot,
        ))
        due.done = True

    def _give_of_structs(
        self, name: str, output: _Output, due: SinkChanges, store: str, arrangement: Arrangement,
        times: T.StructType,
    ) -> None:
        """Write the updates with struct times that have become complete."""
        lower, upper = due.lower, due.upper
        columns, (time, diff) = arrangement.schema.struct.fields, self._names
        # The columns of fields of times are in the order of loops, from the innermost one on.
        records, fields = columns[:len(output.columns)], columns[len(output.columns):][::-1]
        names = (time, *(field.name for field in fields))

        def inside(table: pa.Table) -> np.ndarray:
            parts = [as_int64(joined([table[name]])).to_numpy() for name in names]
            complete = ~beyond(upper, parts)
            return complete if lower is None else complete & beyond(lower, parts)

        def changes() -> DataFrame:
            pairs = zip(map(column, names), times.fields)
            whole = F.struct(*(part.cast(f.dataType).alias(f.name) for part, f in pairs))
            return arrangement.only(self._spark, inside).select(
                *(column(field.name) for field in records), whole.alias(time), column(diff)
            ).toDF(*output.columns, time, diff)

        def snapshot() -> DataFrame:
            raise NotReadableError(
                f"no struct time {times.simpleString()} is the latest, so there is no snapshot: "
                "write the changes"
            )

        if lower is not None and not arrangement.has_any(self._spark, inside):
            due.done = True
            return
        schema = T.StructType([
            T.StructField(column, field.dataType, field.nullable)
            for column, field in zip(output.columns, records)
        ])
        output.sink.write(Epoch(
            due.epoch, store, name, lower is None, self._spark, schema, *self._names, {},
            changes, lambda: few(changes()), snapshot,
        ))
        due.done = True


def _settled(node: Node, graph: Graph, state: State) -> Antichain:
    """The frontier up to which a collection is complete and no step can be taken back."""
    (part,) = (part.nodes for part in graph.connected if node in part.nodes)
    floors = [state.floors[n] for n in part if isinstance(n, Input) and n in state.floors]
    return meet_all([state.frontiers[node], *floors])
