"""Output collections: kept collections, the holds on their history, and the frames of reads.

A kept collection can be read at every complete time that is not compacted away. A hold, or
``keep_history``, decides how far back that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import types as T

from pyspark_diff.dataflow.hold import Hold
from pyspark_diff.dataflow.input_session import check_name
from pyspark_diff.dataflow.times import frontier_text
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
    """The kept collections of a dataflow. It holds state: their sinks, names, holds and files.

    Parameters
    ----------
    time, diff : str
        The user's names of these columns.
    """

    def __init__(self, time_type: TimeType, time: str, diff: str):
        self._time_type = time_type
        self._names = (time, diff)
        #: The sink that keeps each collection: a certain arrangement, or `Output` for any.
        self._sinks: dict[Node, Node] = {}
        #: The user's frames of named collections.
        self._named: dict[str, object] = {}
        #: The nodes of named collections, and the user's names of their columns.
        self._nodes: dict[str, tuple[Node, tuple[str, ...]]] = {}
        self._holds: list[tuple[Node, Hold]] = []
        #: Files that frames of users may read until the dataflow is closed.
        self.pinned: set[str] = set()

    def __contains__(self, node: Node) -> bool:
        return node in self._sinks

    def sink(self, node: Node, arranged: Arranged | None = None) -> Node:
        """The sink to keep a collection by: ``arranged``, an existing sink, or a new one."""
        return arranged or self._sinks.get(node) or Output(node)

    def add(self, node: Node, sink: Node) -> None:
        """Register the sink of a kept collection."""
        self._sinks.setdefault(node, sink)

    def check_name(self, name: str | None, frame: object) -> None:
        """Refuse a name that is invalid or that another frame has."""
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
        """Register the name and the columns of a collection's frame."""
        if name is not None:
            self._named[name] = frame
            self._nodes[name] = node, tuple(columns)

    def called(self) -> dict[Node, str]:
        """The name of each sink of a named collection."""
        return {self._sinks[node]: name for name, (node, _) in self._nodes.items()}

    def metadata(self, state: State) -> dict[str, Any]:
        """The JSON by which a reader without the program reads each named collection that has
        run."""
        entries = {}
        for name, (node, columns) in self._nodes.items():
            if state.graph is not None and self.has_run(node, state):
                arranged = state.graph.arrangement(self._sinks[node])
                all_columns = frozenset(node.schema.names)
                entries[name] = {
                    "trace": state.graph.program.numbers[arranged],
                    "schema": schema_to_json(node.schema.struct),
                    "columns": list(columns),
                    "key": list(arranged.key),
                    "stored": list(arranged.stored(all_columns)),
                }
        return entries

    def names(self) -> list[str]:
        """The names under which collections are kept."""
        return list(self._named)

    def named(self, name: str) -> object:
        """The frame of a collection that is kept under a name."""
        if name not in self._named:
            names = ", ".join(map(repr, self._named)) or "none"
            raise NotReadableError(
                f"no collection is kept under the name {name!r}. The kept names: {names}. "
                f"Keep a collection under it with .keep({name!r})"
            )
        return self._named[name]

    def has_run(self, node: Node, state: State) -> bool:
        """Whether a step has run a kept collection."""
        return state.graph is not None and self._sinks[node] in state.graph.lowered

    def arranged(self, node: Node, graph: Graph) -> Arranged:
        """The arrangement that runs for a kept collection."""
        return graph.arrangement(self._sinks[node])

    def arrangement(
        self, node: Node, state: State, start: Antichain, handed_out: bool = True
    ) -> Arrangement:
        """A kept collection. If no step has run it, the result is empty and begins at ``start``.

        An arrangement that is not handed out to users is valid until a step removes its files.
        """
        if node not in self._sinks:
            raise NotReadableError(
                f"this collection ({node!r}) is not kept, so there is nothing to be read. Keep it "
                "in the program: counts = words.count().keep(). A second frame with the same "
                "operators is another collection: read the frame that was kept, or keep both "
                "before the first step"
            )
        arranged = arrange_by_self(node)
        if state.graph is not None and self.has_run(node, state):
            arranged = state.graph.arrangement(self._sinks[node])
        trace = state.traces.get(arranged)
        if trace is None:
            trace = Trace(start, start, start)
        columns = frozenset(node.schema.names)
        arrangement = Arrangement(
            trace, node.schema, arranged.layout(columns), arranged.stored(columns),
            self._time_type, *self._names,
        )
        if handed_out and arrangement.reads_later:
            self.pinned.update(trace.paths())
        return arrangement

    def hold(
        self, node: Node, arrangement: Arrangement, start: Antichain, at: Antichain | None,
        times: T.StructType | None,
    ) -> Hold:
        """A hold on a kept collection, from a frontier or from the first readable time on. In a
        complete collection the latter is the start of all times."""
        since = arrangement.trace.since
        if at is None:
            at = start if since.is_empty else since
        elif not since.is_empty and not since.precedes(at):
            raise NotReadableError(
                f"time {frontier_text(at, self._time_type)} was compacted away: the collection can "
                f"be held from {frontier_text(since, self._time_type)} on"
            )
        hold = Hold(self._time_type, at, times)
        self._holds.append((node, hold))
        return hold

    def holds(self, graph: Graph) -> dict[Node, Antichain]:
        """The meet of the holds on each arrangement that has any."""
        self._holds = [entry for entry in self._holds if not entry[1]._frontier.is_empty]
        meets: dict[Node, Antichain] = {}
        for node, hold in self._holds:
            arranged = graph.arrangement(self._sinks[node])
            meets[arranged] = meets.get(arranged, hold._frontier).meet(hold._frontier)
        return meets
