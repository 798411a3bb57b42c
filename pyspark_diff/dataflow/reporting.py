"""Reports of a dataflow: its arrangements, the costs of its steps, and its commits."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Literal, overload

from pyspark.sql import DataFrame

from pyspark_diff.dataflow import catalog
from pyspark_diff.dataflow.explanation import SKEW, Explanation, skew_rows
from pyspark_diff.dataflow.plot import Plot
from pyspark_diff.dataflow.report_page import StepCosts, page, write_page
from pyspark_diff.dataflow.stepping import SteppingMethods
from pyspark_diff.dataflow.stored import StateReader
from pyspark_diff.engine.costs import Costs, OperatorCost
from pyspark_diff.engine.explanation import Operator, operators
from pyspark_diff.engine.graph import Graph
from pyspark_diff.operators.node import Arranged, Keyed
from pyspark_diff.spark.schema import Schema
from pyspark_diff.trace.arrangement import Arrangement
from pyspark_diff.trace.vacuum import Vacuumed


class ReportingMethods(SteppingMethods):
    """Reports of arrangements, operators, iterations, and the commits of a store."""

    def arrangements(self) -> DataFrame:
        """A Spark frame with a row for each arrangement. `describe` returns the same as text.

        The columns are ``name`` (operator, number and inputs), ``key``, ``rows`` (updates),
        ``batches``, ``bytes``, ``lower``, ``upper`` and ``since`` (null for a complete one), and
        the names of its ``readers``. If times are structs, the frontiers are lists of structs.

        Examples
        --------
        >>> from pyspark_diff import Dataflow
        >>> with Dataflow(spark) as flow:
        ...     edges, edges_in = flow.input("edges", "src long, dst long")
        ...     two_steps = edges.toDF("src", "mid").join(edges.toDF("mid", "dst"), "mid").keep()
        ...     edges_in.insert([(1, 2), (2, 3)])
        ...     _ = flow.advance_to(1)
        ...     flow.arrangements().select("key", "rows", "upper").where("key = 'mid'").collect()
        [Row(key='mid', rows=2, upper=1), Row(key='mid', rows=2, upper=1)]
        """
        self._check_open()
        with self._lock:
            listed = catalog.entries(self._build().graph, self._state, self.time_type)
        return self.spark.createDataFrame(listed, catalog.schema(self.time_type, self.times))

    def describe(self) -> str:
        """The table of `arrangements` as text."""
        self._check_open()
        with self._lock:
            listed = catalog.entries(self._build().graph, self._state, self.time_type)
            return catalog.as_text(listed)

    @overload
    def explain(self, *, skew: Literal[False] = False, full: bool = False) -> Explanation: ...

    @overload
    def explain(self, *, skew: Literal[True], full: bool = False) -> DataFrame: ...

    def explain(self, *, skew: bool = False, full: bool = False) -> Explanation | DataFrame:
        """The maintenance, state and last cost of each operator. This runs no operator.

        An operator whose work can exceed the size of a change has a reason, with a code and a
        remedy (`pyspark_diff.REASONS`).

        Parameters
        ----------
        skew : bool
            Return a Spark frame with each bucket of each arrangement instead. Its columns are
            ``operator``, ``arranged_by``, ``bucket``, kept ``rows`` and ``bytes``, ``share`` (rows
            by the mean rows of a bucket), ``rows_in``, ``touched`` and ``seconds`` of the last
            step, and the ``heaviest`` keys, as JSON with their rows. Costs are null if the driver
            ran the step, as it processes all buckets at once. The call reads all hashes of keys.
        full : bool
            Print all entries of long lists. By default the text has at most 120 columns.

        Returns
        -------
        Explanation or DataFrame
            An explanation prints as text and shows as a table in a notebook. It has ``operators``,
            ``reasons`` and ``to_df()``.

        Examples
        --------
        >>> from pyspark_diff import Dataflow
        >>> with Dataflow(spark) as flow:
        ...     edges, edges_in = flow.input("edges", "src long, dst long")
        ...     two_steps = edges.toDF("src", "mid").join(edges.toDF("mid", "dst"), "mid").keep()
        ...     edges_in.insert([(1, 2), (2, 3)])
        ...     _ = flow.advance_to(1)
        ...     [(each.operator, each.form, each.codes) for each in flow.explain().operators
        ...      if each.reasons]
        [('join', 'keyed', 'FAN_OUT')]
        """
        self._check_open()
        with self._lock:
            graph, state = self._build().graph, self._state
            listed = operators(graph, state.traces, state.report.costs, self._outputs.called())
            if not skew:
                return Explanation(
                    listed, state.epoch, state.report.seconds, self.spark, full,
                    state.report.fallbacks,
                )
            rows = skew_rows(self._arranged_of(graph, listed), self._buckets)
        return self.spark.createDataFrame(rows, SKEW)

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write a page with the dataflow's graph and the costs of the last 50 steps.

        The page is an HTML file without a server or network access. Colours of nodes show time,
        rows, blow-up (rows out by rows in) or memory, loops can be collapsed, and a table lists the
        ten most expensive operators. Sizes of state are the present ones for every step. This runs
        no operator.

        Parameters
        ----------
        path : str or path
            A file of the driver; an existing one is replaced atomically.

        Raises
        ------
        FileNotFoundError
            If its folder is missing.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> from pyspark_diff import Dataflow
        >>> path = pathlib.Path(tempfile.mkdtemp(), "x.html")
        >>> with Dataflow(spark) as flow:
        ...     edges, edges_in = flow.input("edges", "src long, dst long")
        ...     _ = edges.distinct().keep()
        ...     flow.report(path)
        >>> path.read_text().startswith("<!DOCTYPE html>")
        True
        """
        self._check_open()
        with self._lock:
            state, called = self._state, self._outputs.called()
            steps = [
                StepCosts(step, report.seconds,
                          operators(graph, state.traces, report.costs, called))
                for step, graph, report in self._last_steps
            ]
            if not steps:
                graph = self._build().graph
                steps = [StepCosts(0, 0.0, operators(graph, state.traces, Costs(), called))]
        write_page(path, page(steps))

    def plot(self) -> Plot:
        """The graph of the dataflow as a picture for a notebook. This runs no operator.

        Returns
        -------
        Plot
            Its ``str`` is a Mermaid diagram; notebooks draw it.

        Examples
        --------
        >>> from pyspark_diff import Dataflow
        >>> with Dataflow(spark) as flow:
        ...     edges, edges_in = flow.input("edges", "src long, dst long")
        ...     _ = edges.distinct().keep()
        ...     print(str(flow.plot()).splitlines()[0])
        flowchart TD
        """
        self._check_open()
        with self._lock:
            graph = self._build().graph
            return Plot(operators(graph, {}, Costs(), self._outputs.called()))

    def _arranged_of(
        self, graph: Graph, listed: Sequence[Operator]
    ) -> Iterator[tuple[Operator, OperatorCost, Arrangement]]:
        """The arranged operators, with the last costs of their buckets and their arrangements."""
        costs = self._state.report.costs
        for operator, node in zip(listed, graph.nodes):
            trace = self._state.traces.get(node)
            if trace is None or not isinstance(node, Arranged):
                continue
            form = graph.form(node)
            together = OperatorCost()
            for user in (node, *graph.readers[node]):
                for bucket, work in costs.cost_of(user).buckets.items() if user in costs else ():
                    before = together.buckets.get(bucket, (0, 0, 0.0))
                    a, b, c = (x + y for x, y in zip(before, work))
                    together.buckets[bucket] = (int(a), int(b), c)
            yield operator, together, Arrangement(
                trace, form.input_schema if isinstance(node, Keyed) else node.schema, form.layout,
                form.stored, self.time_type, self.time_name, self.diff_name,
            )

    def iterations(self) -> DataFrame:
        """The iterations of loops in the last step, in their order.

        The columns are the ``loop``'s name, the ``iteration`` (of the enclosing loops too, the
        outermost first), ``changes`` (updates on the feedback edge) and ``seconds``.
        """
        self._check_open()
        return self.spark.createDataFrame(catalog.iterations(self.last_report.iterations))

    def history(self) -> DataFrame:
        """The readable commits as a Spark frame, the latest last.

        The columns are ``commit``, ``written`` (a timestamp), ``epoch`` (the number of the writing
        application), ``token``, ``step``, ``files``, ``bytes`` and ``sources`` (the offset of each
        source, as JSON).

        Raises
        ------
        NotReadableError
            If the dataflow has no store: see `Dataflow.open`.
        """
        return self.spark.createDataFrame(*self._store_of("history").history())

    def at(self, commit: int) -> StateReader:
        """A reader of the named collections at an older commit; close it after use.

        Parameters
        ----------
        commit : int
            A number of `history`.

        Raises
        ------
        NotReadableError
            If the dataflow has no store, or that commit is not retained.
        """
        return StateReader(self._store_of("at").root, spark=self.spark, commit=commit)

    def vacuum(self, *, dry_run: bool = True, older_than: float = 3600.0) -> Vacuumed:
        """Remove files that no retained commit needs and no reader holds.

        A vacuum removes the files that a killed application has left. New commits remove old
        commits beyond the retained number, with their files, without a vacuum.

        Parameters
        ----------
        dry_run : bool
            Remove nothing, and only return the files that a vacuum would remove.
        older_than : float
            Seconds; younger files stay.

        Returns
        -------
        Vacuumed
            Names of the ``files``, their ``bytes``, numbers of the ``commits``, and the readers
            whose holds had expired, ``expired_holds``.
        """
        self._check_outside("vacuum")
        with self._lock:
            store = self._store_of("vacuum")
            self._tidy()
            return store.vacuum(self._in_use(), dry_run=dry_run, older_than=older_than)

    def verify(self) -> list[str]:
        """Read each file of the last commit and list the damaged ones; an empty list means that
        all files are intact."""
        return self._store_of("verify").verify()

    @property
    def token(self) -> str | None:
        """The last token of a step: see the ``token`` of `step`."""
        return next(reversed(self._store_of("token").tokens), None)

    def _input_rows(self) -> list[tuple[str, str, str]]:
        """The name, the columns and the time of each input."""
        # Without the lock: printing a dataflow must not wait for its step.
        return [
            (session.name, Schema(session.schema).describe(), session._describe_time())
            for session in list(self._inputs.sessions())
        ]

    def _progress(self) -> str:
        """The number of steps, as text."""
        if not self._open:
            return "closed"
        steps = self._state.epoch
        return f"{steps} step{'' if steps == 1 else 's'}"
