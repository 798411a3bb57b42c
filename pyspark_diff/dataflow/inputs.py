"""Inputs: the sessions that feed a dataflow, constants, and their first times.

A later input begins at the frontier that the others have reached. A constant enters before the
first update of any input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from pyspark_diff.dataflow.clock import ClockSession
from pyspark_diff.dataflow.input_session import BaseSession, Discard, InputSession, check_name
from pyspark_diff.dataflow.keyed_session import KeyedSession
from pyspark_diff.dataflow.product_session import ProductSession, StructSession
from pyspark_diff.dataflow.times import frontier_of, time_columns
from pyspark_diff.engine.graph import Graph
from pyspark_diff.engine.program import written
from pyspark_diff.engine.state import Arrival, State
from pyspark_diff.errors import SchemaError, TimeRegressionError
from pyspark_diff.fallbacks import Fallbacks
from pyspark_diff.expressions.names import unused
from pyspark_diff.kernels.layout import from_int64
from pyspark_diff.operators.due import Clock
from pyspark_diff.operators.loop import time_scope
from pyspark_diff.operators.node import Constant, Input, Node
from pyspark_diff.operators.upsert import changes_input
from pyspark_diff.runners.feed import UpdateRows
from pyspark_diff.runners.parquet import parquet_scan
from pyspark_diff.spark.schema import (
    DIFF,
    TIME,
    Schema,
    TimeType,
    check_data_names,
    parse_schema,
)
from pyspark_diff.times import Antichain, meet_all

if TYPE_CHECKING:
    from collections.abc import Mapping, ValuesView


class Inputs:
    """The inputs of a dataflow that sessions feed. It holds state: the sessions.

    Parameters
    ----------
    time, diff : str
        The user's names of these columns.
    discard : callable
        Drops updates that have entered an input.
    times : StructType, optional
        The type of times, if times are structs.
    """

    def __init__(
        self, spark: SparkSession, time_type: TimeType, time: str, diff: str, discard: Discard,
        times: T.StructType | None = None,
    ):
        self._spark = spark
        self._time_type, self._times = time_type, times
        self._time_and_diff = (time, diff)
        self._discard = discard
        self._sessions: dict[Node, BaseSession] = {}
        #: The first frontier of each input.
        self.begins: dict[Node, Antichain] = {}
        #: Inputs that begin again at their first frontiers, regardless of the others.
        self._anew: set[Node] = set()
        #: Sessions with news for a step, usually few of many. A session adds itself.
        self._changed: dict[BaseSession, None] = {}
        #: Fallbacks that no step has reported: of feeding, of sources, and of the running step.
        self.fallbacks = Fallbacks()

    def new(
        self, name: str, schema: str | T.StructType, start: Any, state: State
    ) -> InputSession:
        """A session for a new input of updates; `add` registers it."""
        parsed, begin = self._columns(name, schema, start, state)
        node = Input(parsed, self._time_type, name)
        return InputSession(node, self._spark, *self._time_and_diff, begin, self._discard)

    def new_keyed(
        self, name: str, schema: str | T.StructType, start: Any, key: Sequence[str], state: State,
        sequence: Sequence[str] = (),
    ) -> KeyedSession:
        """A session for a new input of changes by key; `add` registers it. Rows with a sequence are
        versions of the records."""
        parsed, begin = self._columns(name, schema, start, state)
        used = [*parsed.names, *self._time_and_diff]
        node = changes_input(
            parsed, parsed.resolved(key, f"the key of input {name!r}", self._spark),
            self._time_type, name, unused("change", used), unused("number", used),
            parsed.resolved(sequence, f"the sequence of input {name!r}", self._spark)
            if sequence else (),
        )
        return KeyedSession(node, self._spark, *self._time_and_diff, begin, self._discard)

    def new_clock(
        self, name: str, column: str, every: int, start: Any, state: State
    ) -> ClockSession:
        """A session for a new clock; `add` registers it."""
        struct = T.StructType([T.StructField(column, self._time_type.kind)])
        parsed, begin = self._columns(name, struct, start, state)
        node = Clock(parsed, self._time_type, name, interval=every)
        return ClockSession(node, self._spark, *self._time_and_diff, begin, self._discard)

    def new_of_structs(
        self, name: str, schema: str | T.StructType, start: Any, state: State
    ) -> ProductSession:
        """A session for a new input with struct times; `add` registers it."""
        times = self._times
        assert times is not None
        self._check_new(name)
        parsed = parse_schema(schema)
        parsed.arrow_types()  # refuses unsupported types here rather than at the first row
        check_data_names(parsed.names, *self._time_and_diff, f"input {name!r}")
        begin = self._begin() if start is None else frontier_of(start, times)
        self._check_together(name, start, begin, _processed(state))
        if start is None:
            begin = begin.join(_processed(state) or begin)
        fields = time_columns(times, [*parsed.names, *self._time_and_diff])
        struct = T.StructType([
            *parsed.struct.fields, *(T.StructField(field, T.LongType()) for field in fields)
        ])
        node = Input(Schema(struct), self._time_type, name)
        session = StructSession(
            node, self._spark, *self._time_and_diff, begin, self._discard, times
        )
        return ProductSession(session, parsed, times, fields)

    def _check_together(
        self, name: str, start: Any, begin: Antichain, now: Antichain | None
    ) -> None:
        """Refuse a new input that begins before the processed frontier of the others."""
        if now is not None and now.is_empty:
            raise TimeRegressionError(
                f"input {name!r} cannot be added: all others are closed, and inputs with struct "
                "times advance together. Add it before they are, or make a new dataflow"
            )
        if start is not None and now is not None and not now.precedes(begin):
            raise TimeRegressionError(
                f"input {name!r} cannot start at {start!r}: inputs with struct times advance "
                f"together, and the others are processed up to {list(now)!r}. Leave start out, or "
                "give one that is beyond that"
            )

    def _begin(self) -> Antichain:
        """The default first frontier of an input."""
        if self._times is None:
            return Antichain([self._time_type.start])
        return Antichain([(self._time_type.start, *[0] * (len(self._times.fields) - 1))])

    def _columns(
        self, name: str, schema: str | T.StructType, start: Any, state: State
    ) -> tuple[Schema, int]:
        """The columns of a new input, and its first time."""
        self._check_new(name)
        parsed = parse_schema(schema)
        parsed.arrow_types()  # refuses unsupported types here rather than at the first row
        check_data_names(parsed.names, *self._time_and_diff, f"input {name!r}")
        begin = self._time_type.start if start is None else self._time_type.encode(start)
        if start is None and state.graph is not None and self._sessions:
            # A later input begins at the frontier of the others.
            now = meet_all(state.frontiers[n] for n in self._sessions).bound
            begin = begin if now is None else max(begin, now)
        return parsed, begin

    def _check_new(self, name: str) -> None:
        check_name(name, "an input", "edges")
        if any(session.name == name for session in self._sessions.values()):
            raise SchemaError(f"this dataflow has an input {name!r} already; give it another name")

    def add(self, session: BaseSession) -> None:
        """Register the session of an input."""
        self._sessions[session._node] = session
        session._changed, session._fallbacks = self._changed, self.fallbacks
        self._changed[session] = None
        self.begins[session._node] = session._content.frontier

    def nodes(self) -> list[Node]:
        """The nodes of the inputs, in the order of `add`."""
        return list(self._sessions)

    def fed(self) -> list[Node]:
        """The nodes of inputs that receive rows from outside: all but clocks."""
        return [n for n, s in self._sessions.items() if not isinstance(s, ClockSession)]

    def sessions(self) -> ValuesView[BaseSession]:
        """All sessions, in the order of `add`."""
        return self._sessions.values()

    def session(self, node: Node) -> BaseSession:
        """The session of an input."""
        return self._sessions[node]

    def names(self) -> dict[Node, str]:
        """The name of each input."""
        return {node: session.name for node, session in self._sessions.items()}

    def upstream(self, node: Node, graph: Graph | None) -> list[BaseSession]:
        """The sessions of the inputs that a node depends on. With struct times, also those of the
        inputs that advance together with these."""
        inputs = set(written([node]).nodes)
        if self._times is not None and graph is not None:
            parts = {id(part): part for n, part in graph.part_of.items() if n in inputs}
            inputs.update(*(part.inputs for part in parts.values()))
        return [session for n, session in self._sessions.items() if n in inputs]

    def start(self) -> Antichain:
        """The first frontier of the earliest input, and of constants."""
        if not self.begins:
            return self._begin()
        return meet_all(self.begins.values())

    def frontier(self, state: State) -> Antichain:
        """The frontier up to which steps have processed all inputs."""
        begins = list(self.begins.items())  # others may be added meanwhile
        return meet_all(state.frontiers.get(node, begin) for node, begin in begins)

    def advance_to(self, time: Any) -> None:
        """Advance the open inputs that are before a time, and flush all.

        Raises
        ------
        TimeRegressionError
            If all open inputs are at later times.
        """
        if self._times is not None:
            self._advance_structs(time, frontier_of(time, self._times))
            return
        to = self._time_type.encode(time)
        times = (at for s in self.sessions() if (at := s._at()) is not None)
        if next(times, to) > to and all(at > to for at in times):
            shown = ", ".join(
                f"input {s.name!r} at {self._time_type.decode(at)!r}" for s in self.sessions()
                if (at := s._at()) is not None
            )
            raise TimeRegressionError(
                f"a dataflow cannot go back to {time!r}: {shown}. Give a later time"
            )
        frontier = Antichain([to])
        for session in self.sessions():
            session._hand_over(frontier)

    def _advance_structs(self, time: Any, to: Antichain) -> None:
        """Advance inputs with struct times, each to the join of ``to`` and its own frontier."""
        # The join keeps the promise that the session's frontier has made.
        still = [s for s in self.sessions() if not s._content.capability.is_empty]
        least = meet_all(s._content.capability for s in still)
        # If the frontiers of inputs differ, possibly no input is at their meet.
        if still and to.precedes(least) and to != least:
            shown = ", ".join(f"input {s.name!r} {s._describe_time()}" for s in still)
            raise TimeRegressionError(
                f"a dataflow cannot go back to {time!r}: {shown}. Give a later time"
            )
        for session in still:
            session._hand_over(to.join(session._content.capability))

    def _tick(self) -> None:
        """Advance clocks to the meet of the frontiers of all other open inputs."""
        clocks = [s for s in self._sessions.values() if isinstance(s, ClockSession)]
        if not clocks:
            return
        others = [s for s in self._sessions.values() if not isinstance(s, ClockSession)]
        frontiers = (session._content.frontier for session in others)
        now = meet_all(frontier for frontier in frontiers if not frontier.is_empty)
        for clock in clocks if not now.is_empty else ():
            clock._hand_over(now)

    def latest(self) -> int | None:
        """The latest time of an open input; None if all are closed."""
        return max((at for s in self.sessions() if (at := s._at()) is not None), default=None)

    def has_more(self, state: State) -> bool:
        """Whether an input has updates that no step has taken in."""
        return any(
            session._has_more(state.arrival_counts.get(node, 0))
            for node, session in self._sessions.items()
        )

    def hand_over(self) -> None:
        """Flush all open inputs."""
        for session in tuple(self._changed):  # others may be added meanwhile
            content = session._content
            if content.capability is not content.frontier or content.waiting or content.rows:
                session._hand_over()
        self._tick()

    def flushed_since(
        self, graph: Graph, state: State
    ) -> tuple[Mapping[Node, tuple[Arrival, ...]], Mapping[Node, Antichain]]:
        """The arrivals flushed since a state, and the new frontiers of inputs. An input without a
        new frontier keeps its old one."""
        arrivals: dict[Node, tuple[Arrival, ...]] = {}
        upper: dict[Node, Antichain] = {}
        if self._times is not None:
            upper = self._together(graph, _processed(state))
        for session in tuple(self._changed):
            content = session._content  # read once: another thread's flush replaces it
            node = session._node
            upper.setdefault(node, content.frontier)
            if content.flushed:
                arrivals[node] = content.beyond(state.arrival_counts.get(node, 0))
        for node in graph.constants:
            upper[node] = Antichain()
            start = state.frontiers[node].bound
            # The constant's rows, until a step has taken them in.
            if start is not None:
                arrivals[node] = (constant_arrival(node, start),)
        return arrivals, upper

    def _together(self, graph: Graph, now: Antichain | None) -> dict[Node, Antichain]:
        """The frontiers up to which a step processes inputs with struct times.

        All inputs of one part of the program share a frontier: every two times have others beyond
        both, so an input that lags may still change any result of the others.
        """
        upper: dict[Node, Antichain] = {}
        for part in graph.connected:
            fed = [node for node in part.inputs if node in self._sessions]
            if fed:
                least = meet_all(self._sessions[node]._content.frontier for node in fed)
                upper.update(dict.fromkeys(fed, least))
            if now is not None and fed and any(node.loop is not None for node in part.nodes):
                for node in fed:
                    self._check_caught_up(self._sessions[node], now)
        return upper

    def _check_caught_up(self, session: BaseSession, now: Antichain) -> None:
        """Refuse an input whose frontier is before the one that its part has processed."""
        if not now.precedes(session._content.frontier):
            raise TimeRegressionError(
                f"input {session.name!r} is {session._describe_time()}, and the inputs that it is "
                f"now combined with are processed up to {list(now)!r}. Inputs with struct times "
                f"advance together: call flow.session({session.name!r}).advance_to(...), and step "
                "again"
            )

    def drop(self, state: State) -> None:
        """Forget the arrivals that a state has taken in, and sessions without further ones."""
        for session in tuple(self._changed):
            node = session._node
            session._drop(state.arrival_counts.get(node, 0), state.frontiers.get(node))

    def numbers(self) -> dict[str, int]:
        """The next number of a change, for each keyed input by name."""
        return {
            session.name: session._next for session in self._sessions.values()
            if isinstance(session, KeyedSession)
        }

    def descriptions(self) -> dict[str, str]:
        """The columns and the key of each input by name, as a store records them."""
        columns = {}
        for session in self._sessions.values():
            key = f", key {', '.join(session.key)}" if isinstance(session, KeyedSession) else ""
            columns[session.name] = Schema(session.schema).describe() + key
        return columns

    def begin_anew(self, nodes: Sequence[Node]) -> None:
        """Let some inputs begin again at their first frontiers."""
        self._anew.update(nodes)

    def go_on(self, state: State, numbers: Mapping[str, int]) -> dict[Node, Antichain]:
        """Continue from a state; returns its frontiers, with those of new inputs.

        New inputs begin at the frontier of the others.
        """
        frontiers = dict(state.frontiers)
        reached = {
            node: frontiers[state.graph.lowered[node]] for node in self._sessions
            if state.graph is not None and node in state.graph.lowered
        }
        now = _processed(state) or meet_all(reached.values())
        for node, session in self._sessions.items():
            at = reached.get(node)
            if at is None:
                at = self.begins[node]
                if node not in self._anew and not now.is_empty:
                    at = at.join(now)
                self.begins[node] = frontiers[node] = at
            session._go_on(at)
            if isinstance(session, ClockSession):
                runs = None if state.graph is None else state.graph.lowered.get(node)
                session._go_on_after(runs in state.fed)
            if isinstance(session, KeyedSession):
                session._next = max(session._next, numbers.get(session.name, 0))
        return frontiers

    def close(self) -> None:
        """Let every session refuse further updates."""
        for session in self.sessions():
            session._flow_closed = True


def _processed(state: State) -> Antichain | None:
    """The processed frontier that all inputs with struct times share; None before the first
    step, and if times are no structs."""
    for node in () if state.graph is None else state.graph.nodes:
        if time_scope(node) is not None:
            return state.frontiers[node]
    return None


def constant_arrival(node: Constant, start: int) -> Arrival:
    """The rows of a constant, at the first time of the dataflow."""
    rows = node.rows
    if isinstance(rows, DataFrame):
        kind = node.time_type.arrow
        entered = UpdateRows.of_frame(node.schema, rows, parquet_scan(rows), kind, start, 1)
        return Arrival(entered, last=start)
    times = from_int64(pa.array(np.full(rows.num_rows, start)), node.time_type.arrow)
    diffs = pa.array(np.ones(rows.num_rows, np.int64))
    table = pa.table([*rows.columns, times, diffs], names=[*node.schema.names, TIME, DIFF])
    return Arrival(UpdateRows(node.schema, table=table, rows=rows.num_rows), last=start)
