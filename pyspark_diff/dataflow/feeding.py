"""The growth of a dataflow: inputs and their sources, kept collections, and sinks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Callable, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from pyspark_diff.dataflow.input_session import BaseSession, InputSession
from pyspark_diff.dataflow.keyed_session import KeyedSession
from pyspark_diff.dataflow.product_session import ProductSession
from pyspark_diff.dataflow.sink import Sink
from pyspark_diff.dataflow.source import Source, Versions
from pyspark_diff.dataflow.stepping import UNRELATED, SteppingMethods
from pyspark_diff.engine.explanation import refuse_scans
from pyspark_diff.engine.graph import graph_of
from pyspark_diff.engine.growth import grown
from pyspark_diff.engine.state import Watch
from pyspark_diff.errors import DiffError, NotReadableError, SchemaError
from pyspark_diff.fallbacks import counting
from pyspark_diff.operators.arrange import Output
from pyspark_diff.operators.checked import checked
from pyspark_diff.operators.node import Arranged, Node, Reader
from pyspark_diff.operators.upsert import upsert


class FeedingMethods(SteppingMethods):
    """Inputs, sources and sinks."""

    def catch_up(
        self, on_iteration: Watch | None = None, *, token: str | None = None
    ) -> bool:
        """Read the changes of the sources, process them as one epoch, and write changes to sinks.

        A job whose inputs have sources calls this method each night. The changes enter at the time
        that the inputs have reached, or at their own times, and all inputs advance beyond them.
        With a store one commit has the state, the offset of each source, and the changes for each
        sink.

        Parameters
        ----------
        on_iteration : callable, optional
        token : str, optional
            See `step`. If one of the last steps had the token, no source is read.

        Returns
        -------
        bool
            Whether there was anything to process.

        Raises
        ------
        SourceError
            If a source cannot be read. The next call processes the rows of the other sources.
        SinkError
            If a sink fails. The next call first gives it the same changes again.
        StepError
            See `step`. The rows that were read are kept. The next call tries again, and then once
            more with the rows that it reads, which may include the correction.

        Examples
        --------
        >>> from pyspark_diff import Dataflow
        >>> from pyspark_diff.sinks import foreach
        >>> from pyspark_diff.sources import snapshots
        >>> prices = spark.createDataFrame([("tea", 3), ("milk", 2)], "item string, price int")
        >>> with Dataflow(spark) as flow:
        ...     items = flow.source("items", snapshots(lambda: prices, key="item"))
        ...     dear = items.where("price > 2").select("item")
        ...     _ = dear.sink("dear", foreach(lambda changes, epoch: changes.show()))
        ...     _ = flow.catch_up()
        +----+----+----+
        |item|time|diff|
        +----+----+----+
        | tea|   0|   1|
        +----+----+----+
        <BLANKLINE>
        """
        self._check_outside("catch_up")
        with self._lock, counting(self._inputs.fallbacks):
            return self._catch_up(on_iteration, token)

    def _catch_up(self, on_iteration: Watch | None = None, token: str | None = None) -> bool:
        self._check_open()
        if not self._sources:
            raise NotReadableError(
                "no input of this dataflow has a source to be read: make one with "
                "flow.source(name, source), or feed its sessions and step"
            )
        if token is not None and token in self._store_of("a token").tokens:
            self._give()
            return False
        self._check_token(token)
        # Rows that an earlier call read without a commit.
        done, refused = False, None
        if self._sources.is_ahead(self._state.offsets):
            try:
                done = self._step(on_iteration)
            except DiffError as error:
                if isinstance(error, UNRELATED):
                    raise
                refused = error  # the sources may have a correction by now
        self._give()
        last = self._sources.read(self._inputs.latest(), self._state.offsets)
        if refused is not None and last is None:
            raise refused
        if last is not None:
            self._inputs.advance_to(self.time_type.decode(last + 1))
        self._inputs.hand_over()
        return self._step(on_iteration, token=token) or done

    def _add_source(
        self, name: str, source: Source, start: Any, late: str, check: bool
    ) -> tuple[Reader | Node, Sequence[str], str | None]:
        """An input that a source fills, the columns of its rows, and that of tombstones."""
        if not isinstance(source, Source):
            raise SchemaError(
                f"input {name!r} is filled from a Source, such as pyspark_diff.sources.delta(table)"
                f" or pyspark_diff.sources.snapshots(table, key=...), not from {source!r}. Insert "
                "rows with the session of an input, flow.input(name, schema)"
            )
        if late not in ("refuse", "aside"):
            raise ValueError(f"late is 'refuse' or 'aside', not {late!r}")
        if late == "aside" and source.key:
            raise ValueError(
                f"rows of {source!r} replace others by key and have no times of their own, so none "
                "comes too late: leave late='aside' out"
            )
        source, columns = self._sources.columns_of(name, source)
        with self._lock:
            if source.key:
                versions = source.versions(columns) or Versions(())
                stored = T.StructType([*columns.fields, *versions.hidden])
                keyed, keyed_session = self._add_keyed_input(
                    name, stored, start, source.key, versions.sequence
                )
                before = None
                if versions.forgets:
                    self._keep(keyed)
                    before = partial(self._kept_rows, keyed)
                self._sources.add(
                    name, source, keyed_session, columns.names, before=before
                )
                return keyed, columns.names, versions.tombstone
            node, session = self._add_input(name, columns, start, check)
            aside, before = None, None
            if late == "aside":
                aside = self._add_input(
                    f"{name}.late", self._sources.late_columns(columns), start, False
                )
            if source.is_whole:
                self._keep(node)
                before = partial(self._kept_rows, node)
            self._sources.add(name, source, session, columns.names, aside, before)
            return node, columns.names, None

    def _kept_rows(self, node: Node) -> DataFrame | None:
        """The rows of a kept collection, readable until the next step; None if it is empty."""
        start = self._inputs.start()
        arrangement = self._outputs.arrangement(node, self._state, start, handed_out=False)
        if not arrangement.trace.rows:
            return None
        upper = arrangement.trace.upper.bound
        at = 2**63 - 1 if upper is None else upper - 1
        return arrangement.snapshot(self.spark, at, allow_negative=False)

    def _add_output(
        self, name: str, sink: Sink, node: Node, columns: Sequence[str], schema: T.StructType
    ) -> None:
        """Register a sink for the changes of a collection."""
        with self._lock:
            self._check_open()
            self._consumers.check_name(name, sink)
            sink.check(schema, self.spark)
            self._keep(node)
            self._consumers.add(name, sink, node, tuple(columns))

    def _add_input(
        self, name: str, schema: str | T.StructType, start: Any, check: bool,
        fill: Callable[[InputSession], None] | None = None,
    ) -> tuple[Node, InputSession]:
        """A new input. If ``fill`` raises, no input is added."""
        with self._lock:
            self._check_open()
            session = self._inputs.new(name, schema, start, self._state)
            if fill is not None:
                fill(session)
            node = checked(session._node) if check else session._node
            self._add_session(session)
        return node, session

    def _add_product_input(
        self, name: str, schema: str | T.StructType, start: Any, keyed: bool, check: bool
    ) -> ProductSession:
        """A new input with struct times."""
        if keyed:
            self._check_plain_times(
                "an input with a key",
                "if neither of two replacements of a record precedes the other, none is the later "
                "one. Feed an input without a key, and insert and remove"
            )
        if check:
            self._check_plain_times(
                "an input that is checked",
                "two removals of a record, each right at its own time, may be one too many at the "
                "join of these times. No update has that time, and the check reads only times of "
                "updates. Claim it: count().where('count < 0').assert_empty()"
            )
        with self._lock:
            self._check_open()
            product = self._inputs.new_of_structs(name, schema, start, self._state)
            self._add_session(product._session)
            self._products[name] = product
        return product

    def _add_clock(self, name: str, column: str, every: Any, start: Any) -> Node:
        length = self.time_type.interval(every, "clock")
        with self._lock:
            self._check_open()
            session = self._inputs.new_clock(name, column, length, start, self._state)
            self._add_session(session)
            self._keep(session._node)  # a single record, to fill operators that are added later
            return session._node

    def _add_keyed_input(
        self, name: str, schema: str | T.StructType, start: Any, key: Sequence[str],
        sequence: Sequence[str] = (),
    ) -> tuple[Reader, KeyedSession]:
        with self._lock:
            self._check_open()
            session = self._inputs.new_keyed(name, schema, start, key, self._state, sequence)
            records = upsert(session._node)
            self._add_session(session)
            # The upsert keeps its records anyway, to compare changes with.
            self._grow(Output(records))
        return records, session

    def _add_session(self, session: BaseSession) -> None:
        self._inputs.add(session)
        frontiers = {**self._state.frontiers, session._node: session._content.frontier}
        self._state = replace(self._state, frontiers=frontiers)
        self._growth = None

    def _add_sink(self, node: Node) -> None:
        with self._lock:
            self._check_open()
            self._grow(node)

    def _grow(self, sink: Node) -> None:
        """Add a sink. If a program that has run cannot grow by it, the program is unchanged."""
        if sink not in self._sinks:
            if self._strict:
                refuse_scans(graph_of([sink]))
            sinks = {**self._sinks, sink: None}
            old = self._state
            # Operators that have not run may still change their form; the step builds them.
            self._growth = None if old.graph is None else grown(
                [*sinks, *self._inputs.nodes()], old.graph, old
            )
            self._sinks = sinks

    def _keep(
        self, node: Node, name: str | None = None, frame: object = None,
        arranged: Arranged | None = None, columns: Sequence[str] = (),
    ) -> None:
        """Keep a collection, optionally by a certain arrangement, under a name, and with the user's
        names of its columns."""
        with self._lock:
            self._check_open()
            self._outputs.check_name(name, frame)
            if arranged is not None or node not in self._outputs:
                sink = self._outputs.sink(node, arranged)
                self._grow(sink)
                self._outputs.add(node, sink)
            self._outputs.call(name, frame, node, columns)
