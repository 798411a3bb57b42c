"""What a dataflow holds, and what all its methods ask: whether it is open, and how far it is."""

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
from pyspark_diff.engine.graph import Graph
from pyspark_diff.engine.growth import Growth, grown
from pyspark_diff.engine.live import Live
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

#: So many steps are remembered for reports.
STEPS = 50


class Parts(ABC):
    """What a dataflow is made of; it holds state. Its methods are in the classes on top of it."""

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
        #: The type of its times, if it is a struct. The engine's are their first fields, and its
        #: frontiers are of all.
        self.times, self.time_type = parse_times(time_type)
        #: The last graph, and the settings of its formulas that read the time zone.
        self._zoned: tuple[Graph, list[Settings | None]] | None = None
        #: By their names the sessions of its inputs then.
        self._products: dict[str, ProductSession] = {}
        self.time_name, self.diff_name = time, diff
        self.runner = runner
        self.local_rows = driver_rows(spark) if local_rows is None else local_rows
        self._buckets = buckets or parallelism(spark)
        self._piece_rows = piece_rows(spark)
        self._keep_history = keep_history
        #: Whether what reads all that is kept is refused.
        self._strict = strict
        #: The last steps: their numbers, what ran, and what it did.
        self._last_steps: deque[tuple[int, Graph, Report]] = deque(maxlen=STEPS)
        self._storage: Storage | StoreFiles = Storage(root)
        #: Where steps are committed, if the state is to outlive the application.
        self._store: Store | None = None
        #: The program is being written, which does not run yet.
        self._writing = False
        #: The settings that fingerprints of expressions are compared with; a store keeps them.
        self._base: Mapping[str, str] = recorded(spark).values
        self._inputs = Inputs(spark, self.time_type, time, diff, self._discard, self.times)
        self._sinks: dict[Node, None] = {}
        self._outputs = Outputs(self.time_type, time, diff)
        #: Where inputs are filled from, and where changes go.
        self._sources = Sources(spark, self.time_type, time, diff)
        self._given = Sinks(spark, time, diff, self.times)
        #: What sinks know this dataflow by, as long as it has no store.
        self._identity = secrets.token_hex(16)
        #: What the next step runs; None where that has to be found.
        self._growth: Growth | None = None
        self._state = State({}, {}, {}, {})
        #: What Spark does for steps.
        self._live = Live(spark)
        #: Up to where everything is done, also by consumers, before the step that runs.
        self._shown = self._state
        self._running = RunningSteps()
        #: The last step that was begun, until its files are in order.
        self._begun: StepContext | None = None
        #: Files that stood before something was discarded; those that nobody needs go.
        self._superseded: set[str] = set()
        self._open = True
        #: Whether consumers may not have been given all that another application made.
        self._owes = False
        #: Whether the last step was refused, so that later updates may correct pending ones.
        self._refused = False
        #: What the user calls the next commit.
        self._token: str | None = None
        #: Held by a step, and by whoever needs that none runs.
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
        # An RLock knows its owner; a note of our own could be left behind by an interrupt.
        if self._lock._is_owned():  # type: ignore[attr-defined]
            raise StalledError(
                f"{what}() was called by a function that a step of the same dataflow is calling, "
                "and the step cannot go on before that returns. Let the function only take a note "
                f"or feed an input, and call {what}() when the step has returned"
            )

    def _check_plain_times(self, what: str, why: str = "") -> None:
        if self.times is not None:
            raise SchemaError(
                f"{what} goes by times that come one after the other, and those of this dataflow "
                f"are structs, {self.times.simpleString()}{why and f': {why}'}"
            )

    def _store_of(self, what: str) -> Store:
        self._check_open()
        if self._store is None:
            raise NotReadableError(
                f"{what} is of a dataflow that is kept in a store: Dataflow.open(path, program)"
            )
        return self._store

    def _settings(self, state: State) -> dict[str, Any]:
        """What a commit tells beside the state, as JSON has it."""
        return {
            "time_type": (
                self.time_type.name if self.times is None else self.times.simpleString()
            ),
            "time": self.time_name,
            "diff": self.diff_name,
            "buckets": self._buckets,
            "settings": self._base,
            "other_settings": self._other_settings(),
            "inputs": self._inputs.told(),
            "columns": {
                name: schema_to_json(struct) for name, struct in self._sources.columns().items()
            },
            "numbers": self._inputs.numbers(),
            "kept": self._outputs.told(state),
            "sinks": list(self._given),
        }

    def _other_settings(self) -> dict[str, str]:
        """Settings of the session that differ from the base."""
        other = recorded(self.spark).differing(self._base)
        return {name: value for name, (value, _) in other.items()}

    def _wanted(self) -> list[Node]:
        """What is run for its own sake."""
        return [*self._sinks, *self._inputs.nodes()]

    def _complete(self) -> State:
        """The last state of which everything has been handed over."""
        state = self._state
        return state if state.handed_over else self._shown

    def _frontier(self) -> Antichain:
        """Up to where everything is complete."""
        return self._inputs.frontier(self._complete())

    def _build(self) -> Growth:
        """What the next step runs."""
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
        """Around a reading: else a step of another thread removes files that are looked into."""
        return self._lock

    def _arrangement(self, node: Node) -> Arrangement:
        """The kept collection of a node."""
        with self._lock:
            self._check_open()
            return self._outputs.arrangement(node, self._state, self._inputs.start())

    @abstractmethod
    def _discard(self, node: Input, where: Column | str | None, waiting: bool) -> Discarded:
        """Drop what has entered an input; whoever steps knows how."""
