"""The state of a dataflow, and the checks that all its methods share."""

from __future__ import annotations

import secrets
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql import types as T

from pyspark_diff.dataflow.background import RunningSteps
from pyspark_diff.dataflow.durable import Store
from pyspark_diff.dataflow.input_session import Discarded
from pyspark_diff.dataflow.inputs import Inputs
from pyspark_diff.dataflow.outputs import Outputs
from pyspark_diff.dataflow.product_session import ProductSession
from pyspark_diff.dataflow.sink import Sinks
from pyspark_diff.dataflow.source import Sources
from pyspark_diff.dataflow.times import parse_times
from pyspark_diff.engine.context import StepContext
from pyspark_diff.engine.fingerprint import fingerprints
from pyspark_diff.engine.graph import Graph
from pyspark_diff.engine.growth import Growth, grown
from pyspark_diff.engine.live import Live
from pyspark_diff.engine.program import written
from pyspark_diff.engine.state import Report, State
from pyspark_diff.errors import (
    ClosedError,
    NotReadableError,
    SchemaError,
    StalledError,
)
from pyspark_diff.operators.node import Input, Node
from pyspark_diff.spark.schema import check_names
from pyspark_diff.spark.settings import Settings, recorded
from pyspark_diff.spark.session import driver_rows, parallelism, piece_rows
from pyspark_diff.spark.stored_schema import schema_to_json
from pyspark_diff.spark.version import check_session
from pyspark_diff.times import Antichain
from pyspark_diff.trace.arrangement import Arrangement
from pyspark_diff.trace.storage import Storage, StoreFiles

#: The number of steps whose costs are kept for reports.
STEPS = 50


class DataflowState(ABC):
    """The attributes of a dataflow; it holds state. Subclasses add the methods."""

    def __init__(
        self,
        spark: SparkSession,
        *,
        time_type: str | T.DataType = "long",
        time: str = "time",
        diff: str = "diff",
        buckets: int | None = None,
        runner: str = "auto",
        local_rows: int | None = None,
        keep_history: bool = False,
        root: str | None = None,
        strict: bool = False,
    ):
        if runner not in ("auto", "spark", "local"):
            raise ValueError(f"runner must be 'auto', 'spark' or 'local', not {runner!r}")
        if buckets is not None and buckets < 1:
            raise ValueError(f"a dataflow has at least one bucket, not {buckets}")
        check_names([time, diff])
        check_session(spark)
        self.spark = spark
        #: The type of times, if it is a struct. The engine's times are the first fields, and its
        #: frontiers consist of whole structs.
        self.times, self.time_type = parse_times(time_type)
        #: The last graph, and the settings of its formulas that read the time zone.
        self._zoned: tuple[Graph, list[Settings | None]] | None = None
        #: The sessions of inputs with struct times, by name.
        self._products: dict[str, ProductSession] = {}
        self.time_name, self.diff_name = time, diff
        self.runner = runner
        self.local_rows = driver_rows(spark) if local_rows is None else local_rows
        self._buckets = buckets or parallelism(spark)
        self._piece_rows = piece_rows(spark)
        self._keep_history = keep_history
        #: Whether an operator that scans all its state is refused.
        self._strict = strict
        #: The last steps: number, graph and report of each.
        self._last_steps: deque[tuple[int, Graph, Report]] = deque(maxlen=STEPS)
        self._storage: Storage | StoreFiles = Storage(root)
        #: The store of the commits, if the state is durable.
        self._store: Store | None = None
        #: Whether the function that builds the program runs now.
        self._writing = False
        #: The settings that fingerprints of expressions are compared with; a store keeps them.
        self._base: Mapping[str, str] = recorded(spark).values
        self._inputs = Inputs(spark, self.time_type, time, diff, self._discard, self.times)
        self._sinks: dict[Node, None] = {}
        self._outputs = Outputs(self.time_type, time, diff)
        self._sources = Sources(spark, self.time_type, time, diff)
        self._consumers = Sinks(spark, time, diff, self.times)
        #: The identity that sinks see if the dataflow has no store.
        self._identity = secrets.token_hex(16)
        #: The graph of the next step; None if it has to be built.
        self._growth: Growth | None = None
        self._state = State({}, {}, {}, {})
        #: Spark's jobs for steps.
        self._live = Live(spark)
        #: The last state before the running step whose consumers have received everything.
        self._shown = self._state
        self._running = RunningSteps()
        #: The last begun step, until its files are cleaned up.
        self._begun: StepContext | None = None
        #: Files of states before a discard; the next cleanup removes those without a reader.
        self._superseded: set[str] = set()
        self._open = True
        #: Whether consumers may lack updates of another application's last step.
        self._owes = False
        #: Whether the last step was refused, so that later updates may correct pending ones.
        self._refused = False
        #: The user's name of the next commit.
        self._token: str | None = None
        #: A step holds it, and so does each method that must not overlap with a step.
        self._lock = threading.RLock()

    def _check_open(self) -> None:
        if not self._open:
            raise ClosedError("this dataflow was closed, and its state removed; make a new one")

    def _check_outside(self, what: str) -> None:
        if self._writing:
            raise StalledError(
                f"{what}() was called while the program is being written: open(path, program) runs "
                "it when it is whole. Write inputs and operators there, and feed and step after it"
            )
        # An RLock knows its owner; an interrupt could leave a flag of our own set.
        if self._lock._is_owned():  # type: ignore[attr-defined]
            raise StalledError(
                f"{what}() was called by a function that a step of the same dataflow is calling, "
                "and the step waits for that function. Let the function only take a note or feed "
                f"an input, and call {what}() when the step has returned"
            )

    def _check_plain_times(self, what: str, why: str = "") -> None:
        if self.times is not None:
            raise SchemaError(
                f"{what} needs totally ordered times, and the times of this dataflow are structs, "
                f"{self.times.simpleString()}{why and f': {why}'}"
            )

    def _store_of(self, what: str) -> Store:
        self._check_open()
        if self._store is None:
            raise NotReadableError(
                f"{what} is of a dataflow that is kept in a store: Dataflow.open(path, program)"
            )
        return self._store

    def _settings(self, state: State) -> dict[str, Any]:
        """The settings and names that a commit records with the state, as JSON."""
        return {
            "time_type": (
                self.time_type.name if self.times is None else self.times.simpleString()
            ),
            "time": self.time_name,
            "diff": self.diff_name,
            "buckets": self._buckets,
            "settings": self._base,
            "other_settings": self._other_settings(),
            "inputs": self._inputs.descriptions(),
            "columns": {
                name: schema_to_json(struct) for name, struct in self._sources.columns().items()
            },
            "numbers": self._inputs.numbers(),
            "kept": self._outputs.metadata(state),
            "sinks": list(self._consumers),
        }

    def _other_settings(self) -> dict[str, str]:
        """Settings of the session that differ from the base."""
        other = recorded(self.spark).differing(self._base)
        return {name: value for name, (value, _) in other.items()}

    def _wanted(self) -> list[Node]:
        """The nodes that every step runs: sinks and inputs."""
        return [*self._sinks, *self._inputs.nodes()]

    def _digest(self, node: Node) -> str:
        """A text for a collection, which differs for different programs."""
        return fingerprints(written([node]), rows=True, base=self._base)[node].digest

    def _complete(self) -> State:
        """The last state whose consumers have received everything."""
        state = self._state
        return state if state.handed_over else self._shown

    def _frontier(self) -> Antichain:
        """The frontier up to which all collections are complete."""
        return self._inputs.frontier(self._complete())

    def _build(self) -> Growth:
        """The graph of the next step, and its new operators."""
        old = self._state.graph
        if self._growth is None:
            self._growth = grown(self._wanted(), old, self._state)
        elif self._growth.late and self._growth.graph is old:
            self._growth = Growth(old)  # it has run
        return self._growth

    def _in_use(self) -> list[str]:
        """Files that this process may still read."""
        return [*self._state.paths(), *self._outputs.pinned]

    def _reading(self) -> AbstractContextManager[object]:
        """Guards a read of files, so that a step of another thread does not remove them."""
        return self._lock

    def _arrangement(self, node: Node) -> Arrangement:
        with self._lock:
            self._check_open()
            return self._outputs.arrangement(node, self._state, self._inputs.start())

    @abstractmethod
    def _discard(self, node: Input, where: Column | str | None, waiting: bool) -> Discarded:
        """Drop updates that have entered an input; the class that steps implements it."""
