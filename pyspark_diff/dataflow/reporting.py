"""What a dataflow tells of itself: what it keeps, what steps did, and which commits there are."""

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
from pyspark_diff.engine.costs import Cost, Costs
from pyspark_diff.engine.explanation import Operator, operators
from pyspark_diff.engine.graph import Graph
from pyspark_diff.operators.node import Arranged, Keyed
from pyspark_diff.trace.arrangement import Arrangement
from pyspark_diff.trace.vacuum import Vacuumed


class ReportingMethods(SteppingMethods):
    """Arrangements, iterations, and the commits of a store."""

    def arrangements(self) -> DataFrame:
        """What is kept: an arrangement a row, as a Spark frame. `describe` gives it to read.

        The columns are ``name`` (operator, number and inputs), ``key``, ``rows`` (updates),
        ``batches``, ``bytes``, ``lower``, ``upper`` and ``since`` (null for a complete one), and
        the names of its ``readers``. Where times are structs these frontiers are lists of them.

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
            found = catalog.entries(self._build().graph, self._state, self.time_type)
        return self.spark.createDataFrame(found, catalog.schema(self.time_type, self.times))

    def describe(self) -> str:
        """What is kept, as a table to read: see `arrangements`."""
        self._check_open()
        with self._lock:
            found = catalog.entries(self._build().graph, self._state, self.time_type)
            return catalog.as_text(found)

    @overload
    def explain(self, *, skew: Literal[False] = False, full: bool = False) -> Explanation: ...

    @overload
    def explain(self, *, skew: Literal[True], full: bool = False) -> DataFrame: ...

    def explain(self, *, skew: bool = False, full: bool = False) -> Explanation | DataFrame:
        """Each operator: how it is maintained, what it keeps, and what the last step cost it.

        Where a change can cost more than itself there is a reason, with a code and what may be
        done about it (`pyspark_diff.REASONS`). Nothing is run for it.

        Parameters
        ----------
        skew : bool
            Instead a Spark frame with each bucket of each arrangement: ``operator``,
            ``arranged_by``, ``bucket``, ``rows`` and ``bytes`` that are kept, ``share`` (rows by
            those of the mean bucket), ``rows_in``, ``touched`` and ``seconds`` of the last step
            where it ran in tasks of Spark (null on the driver, which does all buckets at once), and
            the ``heaviest`` keys, as JSON with their rows. All hashes of keys are read for it.
        full : bool
            Print all entries of long lists. The text has at most 120 columns otherwise.

        Returns
        -------
        Explanation or DataFrame
            To print, to look at in a notebook, or to go through: its ``operators``, ``reasons`` and
            ``to_df()``.

        Examples
        --------
        >>> from pyspark_diff import Dataflow
        >>> with Dataflow(spark) as flow:
        ...     edges, edges_in = flow.input("edges", "src long, dst long")
        ...     two_steps = edges.toDF("src", "mid").join(edges.toDF("mid", "dst"), "mid").keep()
        ...     edges_in.insert([(1, 2), (2, 3)])
        ...     _ = flow.advance_to(1)
        ...     [(one.operator, one.form, one.codes) for one in flow.explain().operators
        ...      if one.reasons]
        [('join', 'keyed', 'FAN_OUT')]
        """
        self._check_open()
        with self._lock:
            graph, state = self._build().graph, self._state
            found = operators(graph, state.traces, state.report.costs, self._outputs.called())
            if not skew:
                return Explanation(
                    found, state.epoch, state.report.seconds, self.spark, full,
                    state.report.fallbacks,
                )
            rows = skew_rows(self._arranged_of(graph, found), self._buckets)
        return self.spark.createDataFrame(rows, SKEW)

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write the dataflow as a page: its graph, and what the last 50 steps cost.

        One file of HTML that needs no server and no network. Nodes are coloured by time, rows,
        blow-up (rows out by rows in) or memory, loops can be collapsed, and the ten dearest
        operators are listed. What is kept is told as it is now, whichever step is shown. Nothing
        is run for it.

        Parameters
        ----------
        path : str or path
            A file of the driver; one that exists is replaced at once.

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
        """The graph of the dataflow as a picture for a notebook. Nothing is run for it.

        Returns
        -------
        Plot
            Its ``str`` is a diagram of Mermaid; notebooks draw it.

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
        self, graph: Graph, found: Sequence[Operator]
    ) -> Iterator[tuple[Operator, Cost, Arrangement]]:
        """Operators that keep something, what was done in their buckets, and what they keep."""
        costs = self._state.report.costs
        for operator, node in zip(found, graph.nodes):
            trace = self._state.traces.get(node)
            if trace is None or not isinstance(node, Arranged):
                continue
            form = graph.form(node)
            together = Cost()
            for of in (node, *graph.readers[node]):
                for bucket, work in costs.of(of).buckets.items() if of in costs else ():
                    before = together.buckets.get(bucket, (0, 0, 0.0))
                    a, b, c = (x + y for x, y in zip(before, work))
                    together.buckets[bucket] = (int(a), int(b), c)
            yield operator, together, Arrangement(
                trace, form.taken if isinstance(node, Keyed) else node.schema, form.layout,
                form.stored, self.time_type, self.time_name, self.diff_name,
            )

    def iterations(self) -> DataFrame:
        """The iterations of loops in the last step, in the order in which they ran.

        The columns are the ``loop``'s name, the ``iteration`` (of the loops around it too, the
        outermost first), ``changes`` (updates that went round) and ``seconds``.
        """
        self._check_open()
        return self.spark.createDataFrame(catalog.iterations(self.last_report.iterations))

    def history(self) -> DataFrame:
        """The commits that can be read, the latest last, as a Spark frame.

        The columns are ``commit``, ``written`` (when), ``epoch`` (of the application that wrote it,
        counted), ``token``, ``step``, ``files``, ``bytes`` and ``sources`` (how far each was
        read, as JSON).

        Raises
        ------
        NotReadableError
            If the dataflow has no store: see `Dataflow.open`.
        """
        return self.spark.createDataFrame(*self._store_of("history").history())

    def at(self, commit: int) -> StateReader:
        """What was kept by name as of an older commit; close it when it is not needed any more.

        Parameters
        ----------
        commit : int
            One of `history`.

        Raises
        ------
        NotReadableError
            If the dataflow has no store, or that commit is not retained.
        """
        return StateReader(self._store_of("at").root, spark=self.spark, commit=commit)

    def vacuum(self, *, dry_run: bool = True, older_than: float = 3600.0) -> Vacuumed:
        """Remove what no commit needs that is retained, and no reader holds.

        What an application leaves that was killed goes by this. Commits that are not retained any
        more, and what only they need, go by themselves as new ones come.

        Parameters
        ----------
        dry_run : bool
            Remove nothing, and only tell what would go.
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
        """What is wrong with the files of the last commit, each of which is read: nothing, if all
        is as it was written."""
        return self._store_of("verify").verify()

    @property
    def token(self) -> str | None:
        """What the last step was called that was called anything: see the ``token`` of `step`."""
        return next(reversed(self._store_of("token").tokens), None)
