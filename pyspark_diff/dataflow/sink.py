"""Sinks: where the changes of collections go, a step at a time, each exactly once.

For the epochs ``e1 < e2 < ...`` in which a sink was given changes, and their times ``[l, u)``::

    l1 = the beginning     l(i+1) = u(i)     the same epoch  =>  the same changes

A step is committed with what its sinks are to be given, as an interval of times of collections that
are kept; so what a sink is given does not hang on what its process had in memory, and one that has
failed, or whose process was ended, is given the same again, under the same epoch. Nothing later is
done before it has that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.dataflow.input_session import check_name
from pyspark_diff.engine.compaction import last_before
from pyspark_diff.engine.graph import Graph
from pyspark_diff.engine.state import Given, State
from pyspark_diff.errors import NotReadableError, SchemaError, SinkError
from pyspark_diff.kernels.jit import interrupted
from pyspark_diff.kernels.layout import as_int64
from pyspark_diff.kernels.updates import joined
from pyspark_diff.operators.loop import beyond
from pyspark_diff.operators.node import Arranged, Input, Node
from pyspark_diff.spark.frames import column
from pyspark_diff.times import Antichain, meet_all
from pyspark_diff.trace.arrangement import Arrangement


@dataclass(frozen=True)
class Epoch:
    """What a sink is given: the changes that one step made in a collection.

    Its frames read what is kept, and are for as long as `Sink.write` runs.

    Parameters
    ----------
    number : int
        Of the step; the numbers of one store grow, and no two steps have one.
    store : str
        Of the dataflow, the same in each process that goes on with it, and no other's.
    name : str
        Of the sink.
    is_first : bool
        Whether the changes are the whole collection: what the sink has written before, of a program
        that has changed since, is to be replaced by them.
    spark : SparkSession
    schema : StructType
        Of the records.
    time, diff : str
        Names of these columns in ``changes``.
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
    _snapshot: Callable[[], DataFrame]

    @property
    def changes(self) -> DataFrame:
        """Update rows: the columns of the records, then time and diff; consolidated."""
        return self._changes()

    def snapshot(self) -> DataFrame:
        """The collection as it is after the step, each record as often as it stands.

        Raises
        ------
        NegativeMultiplicityError
        NotReadableError
            If times are structs: none of those that are complete is the latest.
        """
        return self._snapshot()


class Sink(ABC):
    """Where the changes of a collection are written: see `DiffFrame.sink`.

    What `write` was given and did not return from is given to it again, in this process or in
    another one, with the same number and the same changes. To give exactly once it makes what it
    does the second time do nothing.
    """

    #: Whether it writes the collection as it is after a step, `Epoch.snapshot`: where times are
    #: structs there is no latest one, so that it is refused.
    writes_snapshots: ClassVar[bool] = False

    def check(self, schema: T.StructType, spark: SparkSession) -> None:
        """Refuse a collection that cannot be written, when the program is written."""

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
    """A sink, the collection that it is given, and the names of its columns."""

    sink: Sink
    node: Node
    columns: tuple[str, ...]


class Sinks:
    """The sinks of a dataflow. It holds state: which there are.

    Parameters
    ----------
    spark : SparkSession
    time, diff : str
        The user's names of these columns.
    times : StructType, optional
        The type of times, if these are structs.
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
        """The changes of a kept collection go to a sink."""
        self._outputs[name] = _Output(sink, node, columns)

    def check_name(self, name: str, sink: object) -> None:
        """Refuse a name that a sink cannot have, or what is none."""
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
                f"{sink!r} writes a collection as it is at the latest time, and of times that are "
                f"structs, {self._times.simpleString()}, none is the latest: write its changes, as "
                "change_log, delta_append and foreach do"
            )

    def holds(
        self, state: State, start: Antichain, arranged: Callable[[Node], Arranged]
    ) -> dict[Node, Antichain]:
        """From when on each collection is held, so that what comes next can be told apart.

        Parameters
        ----------
        state : State
        start : Antichain
            Where times begin: what a sink is given first is held from there on.
        arranged : callable
            The arrangement that keeps a collection.
        """
        found: dict[Node, Antichain] = {}
        for name, output in self._outputs.items():
            node, given = arranged(output.node), state.given_to.get(name)
            at: Antichain | None = start
            if given is not None and given.node is node:
                at = given.upper if given.done else given.lower
            at = start if at is None else at
            if not at.is_empty:
                hold = last_before(at)
                found[node] = found.get(node, hold).meet(hold)
        return found

    def due(
        self, before: State, after: State, arranged: Callable[[Node, Graph], Arranged]
    ) -> Mapping[str, Given]:
        """What sinks are to be given after a step.

        Parameters
        ----------
        before, after : State
        arranged : callable
            The arrangement that keeps a collection.
        """
        found: dict[str, Given] = {}
        graph = after.graph
        assert graph is not None  # a step has run
        for name, output in self._outputs.items():
            node = arranged(output.node, graph)
            last, upper = before.given_to.get(name), _settled(node, graph, after)
            if last is None or last.node is not node:
                found[name] = Given(node, after.epoch, None, upper)
            elif last.upper == upper or not last.done:
                found[name] = last
            else:
                found[name] = Given(node, after.epoch, last.upper, upper)
        return found

    def give(
        self, state: State, store: str, arrangement: Callable[[Node], Arrangement]
    ) -> None:
        """Give sinks what they have not been given; none waits for another.

        Raises
        ------
        SinkError
            If any has failed; the others have theirs.
        """
        failed: dict[str, Exception] = {}
        for name, given in state.given_to.items():
            output = self._outputs.get(name)
            if given.done or output is None:
                given.done = True
                continue
            try:
                self._give(
                    name, output, given, store, arrangement(output.node), state.offsets
                )
            except Exception as error:
                if interrupted(error):
                    raise
                failed[name] = error
        for name, cause in failed.items():
            epoch = state.given_to[name].epoch
            raise SinkError(
                f"sink {name!r}, {self._outputs[name].sink!r}, has failed on epoch {epoch} "
                f"({type(cause).__name__}: {cause}). The step is done, and is kept; this epoch is "
                "given to it again before anything else: mend the sink, and step"
            ) from cause

    def _give(
        self, name: str, output: _Output, given: Given, store: str, arrangement: Arrangement,
        offsets: Mapping[str, Any],
    ) -> None:
        if self._times is not None:
            self._give_of_structs(name, output, given, store, arrangement, self._times)
            return
        lower = None if given.lower is None else given.lower.bound
        upper = given.upper.bound
        is_first = given.lower is None
        if not is_first and not arrangement.has_between(lower, upper):
            given.done = True
            return

        def named(frame: DataFrame) -> DataFrame:
            return frame.toDF(*output.columns, *frame.columns[len(output.columns):])

        def snapshot() -> DataFrame:
            at = 2**63 - 1 if upper is None else upper - 1
            return named(arrangement.snapshot(self._spark, at, allow_negative=False))

        fields = arrangement.schema.struct.fields
        schema = T.StructType([
            T.StructField(column, field.dataType, field.nullable)
            for column, field in zip(output.columns, fields)
        ])
        output.sink.write(Epoch(
            given.epoch, store, name, is_first, self._spark, schema, *self._names,
            offsets, lambda: named(arrangement.between(self._spark, lower, upper)), snapshot,
        ))
        given.done = True

    def _give_of_structs(
        self, name: str, output: _Output, given: Given, store: str, arrangement: Arrangement,
        times: T.StructType,
    ) -> None:
        """The same where times are structs: the updates at times that have become complete."""
        lower, upper = given.lower, given.upper
        every, (time, diff) = arrangement.schema.struct.fields, self._names
        # Fields of times are columns as they were revealed, from the innermost loop on.
        records, fields = every[:len(output.columns)], every[len(output.columns):][::-1]
        names = (time, *(field.name for field in fields))

        def inside(table: pa.Table) -> np.ndarray:
            parts = [as_int64(joined([table[name]])).to_numpy() for name in names]
            complete = ~beyond(upper, parts)
            return complete if lower is None else complete & beyond(lower, parts)

        def changes() -> DataFrame:
            pairs = zip(map(column, names), times.fields)
            whole = F.struct(*(part.cast(one.dataType).alias(one.name) for part, one in pairs))
            return arrangement.only(self._spark, inside).select(
                *(column(field.name) for field in records), whole.alias(time), column(diff)
            ).toDF(*output.columns, time, diff)

        def snapshot() -> DataFrame:
            raise NotReadableError(
                f"of times that are structs, {times.simpleString()}, none is the latest, so there "
                "is no snapshot: write the changes"
            )

        if lower is not None and not arrangement.has_any(self._spark, inside):
            given.done = True
            return
        schema = T.StructType([
            T.StructField(told, field.dataType, field.nullable)
            for told, field in zip(output.columns, records)
        ])
        output.sink.write(Epoch(
            given.epoch, store, name, lower is None, self._spark, schema, *self._names, {},
            changes, snapshot,
        ))
        given.done = True


def _settled(node: Node, graph: Graph, state: State) -> Antichain:
    """Up to where a collection is complete and nothing of it can be taken back."""
    (part,) = (part.nodes for part in graph.connected if node in part.nodes)
    floors = [state.floors[n] for n in part if isinstance(n, Input) and n in state.floors]
    return meet_all([state.frontiers[node], *floors])
