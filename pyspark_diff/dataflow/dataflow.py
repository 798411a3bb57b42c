"""Dataflows: a program over collections, its inputs, and the state that steps carry forward.

The one law: for every operator, every time ``t``, and every way of cutting the same updates into
steps, the output accumulated at ``t`` equals the batch operator applied to the input accumulated
at ``t``.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, ClassVar, Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from pyspark_diff.dataflow import catalog
from pyspark_diff.dataflow.hold import Hold
from pyspark_diff.dataflow.input_session import (
    InputSession,
    check_input_name,
    constant_arrival,
)
from pyspark_diff.dataflow.outputs import Outputs
from pyspark_diff.dataflow.probe import Probe
from pyspark_diff.engine.graph import Graph, graph_of, starts_of
from pyspark_diff.engine.state import Arrival, Frontier, Report, Settings, State, Watch
from pyspark_diff.engine.step import Step
from pyspark_diff.errors import ClosedError, NotReadableError, SchemaError, StalledError
from pyspark_diff.kernels.jit import interruptible
from pyspark_diff.operators.node import Arranged, Constant, Input, Node
from pyspark_diff.runners.feed import Source
from pyspark_diff.runners.spark import SparkRunner
from pyspark_diff.spark.schema import check_data_names, check_names, parse_schema, parse_time_type
from pyspark_diff.spark.session import driver_rows, parallelism
from pyspark_diff.trace import storage
from pyspark_diff.trace.arrangement import Arrangement
from pyspark_diff.trace.storage import Storage

#: Where the history of a collection begins that is given as a whole.
BEGINNING = -(2**63)


class Dataflow:
    """A program over collections that is kept up to date, step by step.

    It holds state: arrangements on disk, and the frontiers of its inputs. Use it as a context
    manager; what it wrote is removed at the end, also after an exception.

    Parameters
    ----------
    spark : SparkSession
        Any session; none of its settings is changed.
    time_type : str or DataType
        Type of the logical times of all inputs: an integer, date or timestamp.
    time, diff : str
        Names of these two columns wherever updates are shown as a table.
    buckets : int, optional
        Buckets of every arrangement; the cluster's default parallelism if not given.
    runner : {"auto", "spark", "local"}
        Where operators run. Automatic: on the driver when few updates reach them, else as Spark
        jobs. The answer is the same.
    local_rows : int, optional
        Up to this many update rows an operator runs on the driver under ``"auto"``: 2 million if
        not given, and 20 million where there is no other machine than the driver's.
    keep_history : bool
        Keep collections that are read (`DiffFrame.at`, `DiffFrame.to_df`) at all times. Otherwise
        only the latest complete time can be read, and state stays bounded however long the stream
        of changes is.
    root : str, optional
        Directory for state. On a cluster of several machines it must be shared by all of them.

    Raises
    ------
    ClosedError
        On any use after `close`.

    Notes
    -----
    Source: McSherry, Murray, Isaacs, Isard, "Differential dataflow", CIDR 2013.

    Examples
    --------
    >>> from pyspark_diff import Dataflow
    >>> with Dataflow(spark) as flow:
    ...     edges, edges_in = flow.input("edges", "src long, dst long")
    ...     degrees = edges.select("src").count()
    ...     edges_in.insert([(1, 2), (1, 3), (2, 3)])
    ...     edges_in.advance_to(1)
    ...     edges_in.flush()
    ...     _ = flow.step()
    ...     sorted(tuple(row) for row in degrees.at(0).collect())
    [(1, 2), (2, 1)]
    """

    #: Makes the frame that a user sees from a node; set by the layer above, which knows the class.
    _wrap: ClassVar[Callable[["Dataflow", Node], Any]]
    _make_loop: ClassVar[Callable[..., Any]]

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
    ):
        if runner not in ("auto", "spark", "local"):
            raise ValueError(f"runner must be 'auto', 'spark' or 'local', not {runner!r}")
        if buckets is not None and buckets < 1:
            raise ValueError(f"a dataflow has at least one bucket, not {buckets}")
        check_names([time, diff])
        self.spark = spark
        self.time_type = parse_time_type(time_type)
        self.time_name, self.diff_name = time, diff
        self.runner = runner
        self.local_rows = driver_rows(spark) if local_rows is None else local_rows
        self._buckets = buckets or parallelism(spark)
        self._keep_history = keep_history
        self._storage = Storage(root)
        self._spark_runner = SparkRunner(spark, self.time_type)
        self._sessions: dict[Node, InputSession] = {}
        self._frames: weakref.WeakSet[Any] = weakref.WeakSet()
        self._sinks: dict[Node, None] = {}
        self._outputs = Outputs(self.time_type, time, diff)
        self._graph: Graph | None = None
        self._state = State({}, {}, {}, {})
        #: What to drop from the sessions once this state stands: a single assignment lets it.
        self._taken: tuple[State | None, Mapping[Node, Sequence[Arrival]]] = (None, {})
        self._open = True
        self.report = Report()

    def input(
        self, name: str, schema: str | T.StructType, *, start: Any = None
    ) -> tuple[Any, InputSession]:
        """A new input: its collection, and the session that feeds it.

        Parameters
        ----------
        name : str
        schema : str or StructType
            Data columns, for example ``"src long, dst long"``.
        start : int, date or datetime, optional
            First time of the input; zero or the epoch if not given.

        Returns
        -------
        frame : DiffFrame
        session : InputSession

        Examples
        --------
        >>> from pyspark_diff import Dataflow
        >>> with Dataflow(spark) as flow:
        ...     words, words_in = flow.input("words", "word string")
        ...     words.columns, words_in.time()
        (['word'], 0)
        """
        self._check_open()
        self._check_building(f"input {name!r}")
        check_input_name(name)
        if any(session.name == name for session in self._sessions.values()):
            raise SchemaError(f"this dataflow has an input {name!r} already; give it another name")
        parsed = parse_schema(schema)
        check_data_names(parsed.names, self.time_name, self.diff_name, f"input {name!r}")
        begin = self.time_type.start if start is None else self.time_type.encode(start)
        node = Input(parsed, self.time_type, name)
        session = InputSession(node, self.time_name, self.diff_name, begin)
        self._sessions[node] = session
        self._state = State({**self._state.frontiers, node: begin}, {}, {}, {})
        return Dataflow._wrap(self, node), session

    def step(self, on_iteration: Watch | None = None) -> bool:
        """Process everything that was flushed, up to the frontiers of the inputs.

        All or nothing: if it raises, nothing has changed and it can be called again.

        Parameters
        ----------
        on_iteration : callable, optional
            Called in this thread after each iteration of a loop, while the step runs, with its
            ``loop``, ``iteration``, ``changes`` and ``seconds`` as `iterations` has them after the
            step. What it raises undoes the step.

        Returns
        -------
        bool
            Whether there was anything to do.
        """
        self._check_open()
        graph = self._build()
        self._drop_taken()
        upper = {node: session._frontier for node, session in self._sessions.items()}
        arrivals = {node: tuple(session._flushed) for node, session in self._sessions.items()}
        for node in graph.nodes:
            if isinstance(node, Constant):
                upper[node] = None
                arrivals[node] = self._constant(node)
        moved = any(upper[node] != self._state.frontiers.get(node) for node in upper)
        if not moved and not any(arrivals.values()):
            return False
        self._advance(graph, arrivals, upper, on_iteration)
        return True

    def step_while(
        self, condition: Callable[[], bool], on_iteration: Watch | None = None
    ) -> None:
        """Step while a condition holds, usually that a probe lags behind an input.

        Parameters
        ----------
        condition : callable
            For example ``lambda: probe.less_than(session.time())``.
        on_iteration : callable, optional
            As of `step`.

        Raises
        ------
        StalledError
            If it holds and there is nothing left to do.
        """
        self._check_open()
        while condition():
            if not self.step(on_iteration):
                raise StalledError(
                    "the condition still holds, but there is nothing left to do: "
                    f"{self._frontiers_in_words()}. Advance these inputs, then flush() them"
                )

    def arrangements(self) -> DataFrame:
        """What is kept: an arrangement a row, as a Spark frame. `describe` gives it to read.

        The columns are ``name`` (operator, number and inputs), ``key``, ``rows`` (updates),
        ``batches``, ``bytes``, ``lower``, ``upper`` and ``since`` (null for a complete one), and
        the names of its ``readers``.

        Examples
        --------
        >>> from pyspark_diff import Dataflow
        >>> with Dataflow(spark) as flow:
        ...     edges, edges_in = flow.input("edges", "src long, dst long")
        ...     two_steps = edges.toDF("src", "mid").join(edges.toDF("mid", "dst"), "mid")
        ...     edges_in.insert([(1, 2), (2, 3)])
        ...     edges_in.advance_to(1)
        ...     edges_in.flush()
        ...     _ = flow.step()
        ...     flow.arrangements().select("key", "rows", "upper").where("key = 'mid'").collect()
        [Row(key='mid', rows=2, upper=1), Row(key='mid', rows=2, upper=1)]
        """
        self._check_open()
        found = catalog.entries(self._build(), self._state, self.time_type)
        return self.spark.createDataFrame(found, catalog.schema(self.time_type))

    def describe(self) -> str:
        """What is kept, as a table to read: see `arrangements`."""
        self._check_open()
        return catalog.as_text(catalog.entries(self._build(), self._state, self.time_type))

    def loop(
        self, max_iterations: int | None = None, on_limit: str = "error", name: str | None = None
    ) -> Any:
        """A loop of several variables: see `Loop`."""
        self._check_open()
        return Dataflow._make_loop(max_iterations, on_limit, name)

    def iterations(self) -> DataFrame:
        """The iterations of loops in the last step, in the order in which they ran.

        The columns are the ``loop``'s name, the ``iteration`` (of the loops around it too, the
        outermost first), ``changes`` (updates that went round) and ``seconds``.
        """
        self._check_open()
        return self.spark.createDataFrame(catalog.iterations(self.report.iterations))

    def close(self) -> None:
        """Remove everything that the dataflow wrote. A second call does nothing."""
        self._open = False
        for session in self._sessions.values():
            session._flow_closed = True
        self._storage.close()

    def __enter__(self) -> "Dataflow":
        self._check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What follows is for the layer above.

    def _add_sink(self, node: Node) -> None:
        self._check_open()
        self._check_building(node.kind)
        self._sinks[node] = None

    def _probe(self, node: Node) -> Probe:
        self._add_sink(node)

        def read() -> Frontier:
            if node in self._state.frontiers:
                return self._state.frontiers[node]
            starts = [s for n in graph_of([node]).nodes
                      if (s := self._state.frontiers.get(n)) is not None]
            return min(starts) if starts else None

        return Probe(self.time_type, read)

    def _keep(self, node: Node, arranged: Arranged | None = None) -> None:
        if arranged is not None or node not in self._outputs:
            self._check_building(f"keeping {node.kind}")
            self._sinks[self._outputs.add(node, arranged)] = None

    def _arrangement(self, node: Node) -> tuple[Arrangement, Frontier]:
        """The kept collection of a node, and its frontier."""
        self._check_open()
        if node not in self._outputs and self._graph is None:
            self._keep(node)
        starts = [self._state.frontiers[n] for n in self._sessions]
        return self._outputs.arrangement(node, self._graph, self._state, starts)

    def _hold(self, node: Node, time: int | None) -> Hold:
        arrangement, _ = self._arrangement(node)
        return self._outputs.hold(node, arrangement, time)

    def _run_whole(self, node: Node) -> None:
        """Run the whole history of inputs that are given as frames, and keep ``node``."""
        self._keep(node)
        self._graph = graph_of(self._sinks)
        inputs = [n for n in self._graph.nodes if isinstance(n, Input)]
        frontiers: dict[Node, Frontier] = {n: BEGINNING for n in self._graph.nodes}
        self._state = State(frontiers, {}, {}, {})
        arrivals: dict[Node, tuple[Arrival, ...]] = {}
        for n in inputs:
            if isinstance(n, Constant):
                arrivals[n] = self._constant(n)
                continue
            source = Source(n.schema, frame=n.frame)
            if n.frame is not None and n.local:
                # Rows that are on the driver already need no job to get there.
                table = n.frame.toArrow()
                source = Source(n.schema, table=table, rows=table.num_rows)
            arrivals[n] = (Arrival(source, last=2**63 - 1),)
        self._advance(self._graph, arrivals, {n: None for n in inputs})

    def _constant(self, node: Constant) -> tuple[Arrival, ...]:
        """A constant's rows, as long as they have not been taken in."""
        start = self._state.frontiers.get(node)
        if start is None:
            return ()
        begin = node.time_type.start if start == BEGINNING else start
        return (constant_arrival(node, begin),)

    @interruptible()
    def _advance(
        self, graph: Graph, arrivals: Any, upper: Any, on_iteration: Watch | None = None
    ) -> None:
        settings = Settings(
            self._buckets, self.runner, self.local_rows, self._keep_history, self._outputs.holds()
        )
        step = Step(graph, self._state, settings, self._storage, self._spark_runner, on_iteration)
        state = step.run(arrivals, upper)
        self._taken = (state, arrivals)
        old, self._state = self._state, state
        self._drop_taken()
        needed = state.paths() | self._outputs.pinned
        storage.remove_files(sorted((old.paths() | set(step.written())) - needed))
        self.report = step.report
        for node, tables, at in step.shown:
            node.show_updates(tables, self.time_name, self.diff_name, at)

    def _drop_taken(self) -> None:
        """Drop what the state has taken in from the sessions; again, if that was interrupted."""
        state, arrivals = self._taken
        if state is self._state:
            for node, taken in arrivals.items():
                flushed = self._sessions[node]._flushed if node in self._sessions else []
                if taken and flushed and flushed[0] is taken[0]:
                    del flushed[: len(taken)]
        self._taken = (None, {})

    def _build(self) -> Graph:
        if self._graph is None:
            read = {source for frame in self._frames for n in graph_of([frame._node]).nodes
                    for source in n.inputs}
            read.update(source for sink in self._sinks for n in graph_of([sink]).nodes
                        for source in n.inputs)
            for frame in list(self._frames):
                # Nothing consumes it, so to be read is the only use that it can have.
                unread = frame._node not in read and frame._node not in self._sinks
                if unread and frame._node.loop is None:
                    self._keep(frame._node)
            graph = graph_of([*self._sinks, *self._sessions])
            begins = {node: self._state.frontiers[node] for node in self._sessions}
            starts = starts_of(graph, begins, self.time_type.start)
            self._state = State(starts, {}, {}, {})
            self._graph = graph
        return self._graph

    def _check_open(self) -> None:
        if not self._open:
            raise ClosedError("this dataflow was closed, and its state removed; make a new one")

    def _check_building(self, what: str) -> None:
        if self._graph is not None:
            raise NotReadableError(
                f"{what} cannot be added: the dataflow has run, and what it processed is gone. "
                "Define all operators before the first step"
            )

    def _frontiers_in_words(self) -> str:
        told = []
        for session in self._sessions.values():
            at = session._frontier
            shown = "complete" if at is None else f"at {self.time_type.decode(at)!r}"
            told.append(f"input {session.name!r} was flushed {shown}")
        return ", ".join(told)
