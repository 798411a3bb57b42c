"""Output collections: those that a user reads, the holds on their history, and frames handed out.

A collection that is kept can be read at every complete time that is not compacted away; a hold, or
``keep_history``, decides how far back that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import types as T

from pyspark_diff.dataflow.hold import Hold
from pyspark_diff.dataflow.input_session import check_name
from pyspark_diff.dataflow.times import told
from pyspark_diff.engine.graph import Graph
from pyspark_diff.engine.state import State
from pyspark_diff.errors import NotReadableError, SchemaError
from pyspark_diff.operators.arrange import Output, arrange_by_self
from pyspark_diff.operators.node import Arranged, Node
from pyspark_diff.spark.schema import TimeType
from pyspark_diff.spark.stored_schema import schema_to_json
from pyspark_diff.times import Antichain
from pyspark_diff.trace.arrangement import Arrangement
from pyspark_diff.trace.spine import Trace


class Outputs:
    """The kept collections of a dataflow. It holds state: what is kept, held and handed out.

    Parameters
    ----------
    time_type : TimeType
    time, diff : str
        The user's names of these columns.
    """

    def __init__(self, time_type: TimeType, time: str, diff: str):
        self._time_type = time_type
        self._names = (time, diff)
        #: The sinks that keep collections: a certain arrangement of one, or any.
        self._sinks: dict[Node, Node] = {}
        #: Frames of those that have a name.
        self._named: dict[str, object] = {}
        #: What these have of the program, and what users call their columns.
        self._nodes: dict[str, tuple[Node, tuple[str, ...]]] = {}
        self._holds: list[tuple[Node, Hold]] = []
        #: Files of frames that were handed out and may be read until the dataflow is closed.
        self.pinned: set[str] = set()

    def __contains__(self, node: Node) -> bool:
        return node in self._sinks

    def sink(self, node: Node, arranged: Arranged | None = None) -> Node:
        """What keeps a collection: the given arrangement, or one that there is."""
        return arranged or self._sinks.get(node) or Output(node)

    def add(self, node: Node, sink: Node) -> None:
        """A collection is kept, by a sink."""
        self._sinks.setdefault(node, sink)

    def check_name(self, name: str | None, frame: object) -> None:
        """Refuse a name for the frame of a collection, if it cannot have it."""
        if name is None:
            return
        check_name(name, "a kept collection", "counts")
        if self._named.get(name, frame) is not frame:
            raise SchemaError(
                f"this dataflow keeps a collection {name!r} already; give it another name"
            )

    def call(
        self, name: str | None, frame: object, node: Node, columns: Sequence[str]
    ) -> None:
        """The frame of a collection has a name, and columns."""
        if name is not None:
            self._named[name] = frame
            self._nodes[name] = node, tuple(columns)

    def called(self) -> dict[Node, str]:
        """The sinks that keep collections that have a name."""
        return {self._sinks[node]: name for name, (node, _) in self._nodes.items()}

    def told(self, state: State) -> dict[str, Any]:
        """By their names what is to be known of those that have run, as JSON has it, so that they
        can be read without the program."""
        found = {}
        for name, (node, columns) in self._nodes.items():
            if state.graph is not None and self.has_run(node, state):
                kept = state.graph.arrangement(self._sinks[node])
                every = frozenset(node.schema.names)
                found[name] = {
                    "trace": state.graph.program.numbers[kept],
                    "schema": schema_to_json(node.schema.struct),
                    "columns": list(columns),
                    "key": list(kept.key),
                    "stored": list(kept.stored(every)),
                }
        return found

    def names(self) -> list[str]:
        """The names under which collections are kept."""
        return list(self._named)

    def named(self, name: str) -> object:
        """The frame of a collection that is kept under a name."""
        if name not in self._named:
            names = ", ".join(map(repr, self._named)) or "none"
            raise NotReadableError(
                f"no collection is kept under the name {name!r}, of these: {names}. "
                f"Name one with .keep({name!r})"
            )
        return self._named[name]

    def has_run(self, node: Node, state: State) -> bool:
        """Whether a kept collection was a part of the last step."""
        return state.graph is not None and self._sinks[node] in state.graph.lowered

    def arranged(self, node: Node, graph: Graph) -> Arranged:
        """What runs for a kept collection."""
        return graph.arrangement(self._sinks[node])

    def arrangement(
        self, node: Node, state: State, start: Antichain, handed_out: bool = True
    ) -> Arrangement:
        """A kept collection; one that no step has reached is empty, and begins at ``start``.

        What is not handed out to users is for as long as no step takes its files away.
        """
        if node not in self._sinks:
            raise NotReadableError(
                f"this collection ({node!r}) is not kept, so there is nothing to be read. Say "
                "which ones are, where they are written: counts = words.count().keep(). What is "
                "written a second time in the same way is another collection: read the frame that "
                "was kept, or keep both before the first step"
            )
        kept = arrange_by_self(node)
        if state.graph is not None and self.has_run(node, state):
            kept = state.graph.arrangement(self._sinks[node])
        trace = state.traces.get(kept)
        if trace is None:
            trace = Trace(start, start, start)
        every = frozenset(node.schema.names)
        arrangement = Arrangement(
            trace, node.schema, kept.layout(every), kept.stored(every), self._time_type,
            *self._names,
        )
        if handed_out and arrangement.reads_later:
            self.pinned.update(trace.paths())
        return arrangement

    def hold(
        self, node: Node, arrangement: Arrangement, start: Antichain, at: Antichain | None,
        times: T.StructType | None,
    ) -> Hold:
        """A hold on a kept collection, from a frontier on or from the first that can be read, which
        is the start of all where it is complete."""
        since = arrangement.trace.since
        if at is None:
            at = start if since.is_empty else since
        elif not since.is_empty and not since.precedes(at):
            raise NotReadableError(
                f"time {told(at, self._time_type)} was compacted away: the collection can be held "
                f"from {told(since, self._time_type)} on"
            )
        hold = Hold(self._time_type, at, times)
        self._holds.append((node, hold))
        return hold

    def holds(self, graph: Graph) -> dict[Node, Antichain]:
        """From when on each arrangement's history is held, where it is."""
        self._holds = [held for held in self._holds if not held[1]._frontier.is_empty]
        found: dict[Node, Antichain] = {}
        for node, hold in self._holds:
            kept = graph.arrangement(self._sinks[node])
            found[kept] = found.get(kept, hold._frontier).meet(hold._frontier)
        return found
