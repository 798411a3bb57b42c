"""One step: the updates between two frontiers flow through the graph, and a new state comes out.

All or nothing: a step reads one immutable `State` and returns another. If anything raises, the
files it wrote are removed, the state stays what it was, and the step can be run again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Mapping, Sequence

import pyarrow as pa

from pyspark_diff.engine.compaction import Compaction, antichain
from pyspark_diff.engine.evaluation import Evaluation
from pyspark_diff.engine.graph import Graph
from pyspark_diff.engine.loop import Iteration
from pyspark_diff.engine.state import (
    Arrival,
    Frontier,
    Report,
    Settings,
    State,
    Watch,
    below,
    least,
    only,
)
from pyspark_diff.engine.subgraph import Subgraph
from pyspark_diff.kernels.coordinates import Coordinate
from pyspark_diff.operators.contract import BilinearKernel
from pyspark_diff.operators.inspect import Inspect
from pyspark_diff.operators.node import Arranged, Input, Keyed, Node, Reader
from pyspark_diff.runners.feed import Feed, Source
from pyspark_diff.runners.local import LocalRunner, rows_of
from pyspark_diff.runners.read import Read, View
from pyspark_diff.runners.spark import SparkRunner
from pyspark_diff.runners.work import BucketResult, Output, Work
from pyspark_diff.times import Antichain
from pyspark_diff.trace import storage
from pyspark_diff.trace.batch import Batch, BatchFile
from pyspark_diff.trace.spine import Trace
from pyspark_diff.trace.storage import Storage


@dataclass
class Step:
    """The execution of one step over a graph.

    Parameters
    ----------
    graph : Graph
    state : State
        What was there before; it is not changed.
    settings : Settings
    storage : Storage
    spark_runner : SparkRunner
    on_iteration : callable, optional
        Called with each `IterationReport` when it is over.
    """

    graph: Graph
    state: State
    settings: Settings
    storage: Storage
    spark_runner: SparkRunner
    on_iteration: Watch | None = None
    report: Report = field(default_factory=Report)

    def __post_init__(self) -> None:
        self._local = LocalRunner(self.spark_runner.evaluate)
        self._written: list[str] = []
        self._directories: list[str] = []
        self.evaluation = Evaluation(
            self.graph, self.settings, self.spark_runner, self._local, self._directory,
            self._written,
        )
        self.compaction = Compaction(self.graph, self.settings)
        self._frontiers = dict(self.state.frontiers)
        self.traces = dict(self.state.traces)
        self._pending = dict(self.state.pending)
        self._waiting = dict(self.state.waiting)
        self.emitted: dict[Node, tuple[Feed, ...]] = {}
        self.shows: list[tuple[Inspect, tuple[Feed, ...], Coordinate]] = []
        #: For each inspect the update rows that it is to show, once the step has been taken over.
        self.shown: list[tuple[Inspect, list[pa.Table], Coordinate]] = []

    def run(
        self, arrivals: Mapping[Node, Sequence[Arrival]], upper: Mapping[Node, Frontier]
    ) -> State:
        """Process everything up to the given frontiers of the inputs.

        Parameters
        ----------
        arrivals : mapping of Node to sequence of Arrival
            What was flushed since the last step.
        upper : mapping of Node to int or None
            Frontier of each input.

        Returns
        -------
        State
            The state after the step.
        """
        started = time.perf_counter()
        try:
            for item in self.graph.order:
                if isinstance(item, Subgraph):
                    self._loop(item)
                elif isinstance(item, Input):
                    self._release(item, arrivals.get(item, ()), upper[item])
                else:
                    before = self._frontiers.get(item)
                    self._frontiers[item] = least([self._frontiers[n] for n in item.inputs])
                    self._visit(item, before)
            for node in list(self.traces):
                if isinstance(node, Arranged):
                    self.traces[node] = self._compacted(node, self.traces[node])
            state = State(self._frontiers, self.traces, self._pending, self._waiting)
            show = self.evaluation.tables
            self.shown = [(node, show(node, feeds), at) for node, feeds, at in self.shows]
        except BaseException:
            # Whole directories: buckets that were done before another one failed left files too.
            storage.remove_directories(self._directories)
            raise
        self.report.seconds = time.perf_counter() - started
        return state

    def written(self) -> list[str]:
        """Files that the step wrote, whether or not the new state needs them."""
        return self._written

    def _release(self, node: Input, arrivals: Sequence[Arrival], upper: Frontier) -> None:
        """Emit what lies before the input's new frontier; the rest waits."""
        feeds: list[Feed] = []
        rest: list[Arrival] = []
        self._frontiers[node] = upper
        for arrival in (*self._waiting.get(node, ()), *arrivals):
            source = arrival.source
            whole = upper is None or arrival.last < upper
            if not whole and source.time is not None:
                rest.append(arrival)  # one time, not complete yet
                continue
            if source.frame is not None and (self.graph.readings[node] > 1 or not whole):
                # Read more than once, so evaluated once: two evaluations may differ.
                source = self.evaluation.materialised(source)
            bound = None if whole else upper
            feeds.append(Feed(source, (), arrival.taken, bound, until=upper))
            if not whole:
                rest.append(Arrival(source, arrival.last, taken=upper))
        self.emitted[node] = tuple(feeds)
        self._waiting[node] = tuple(rest)

    def _visit(self, node: Node, before: Frontier) -> None:
        if isinstance(node, Keyed):
            self._keyed(node, before)
        elif isinstance(node, Reader):
            self._reader(node, before)
        elif node in self.graph.shared:
            self.share(node)
        elif isinstance(node, Inspect):
            self.shows.append((node, self.graph.feeds(node, self.emitted), ()))

    def share(self, node: Node, seen: int = 0) -> None:
        """Evaluate expressions once for all that read them."""
        feeds = self.graph.feeds(node, self.emitted, seen)
        self.emitted[node] = tuple(self.evaluation.evaluated(node, feed) for feed in feeds)

    def _loop(self, subgraph: Subgraph) -> None:
        nodes = subgraph.nodes()
        before = self._frontiers.get(nodes[0])
        after = least([self._frontiers[node] for node in subgraph.outside])
        for node in nodes:
            self._frontiers[node] = after
        Iteration(self, subgraph, before, after).run()

    def gated(self, node: Node, reached: Sequence[Feed], upper: Frontier) -> list[Feed]:
        """The feeds that a node takes in now; what lies beyond its frontier waits."""
        now: list[Feed] = []
        later: list[Feed] = []
        for feed in (*self._pending.get(node, ()), *reached):
            if not below(upper, feed.until):
                now.append(feed)
                continue
            if feed.source.frame is not None:
                # The other input lags, so this one is read again later.
                feed = replace(feed, source=self.evaluation.materialised(feed.source))
            if feed.lower is None or below(feed.lower, upper):
                now.append(replace(feed, upper=upper))
                feed = replace(feed, lower=upper)
            # What lies before its own lower bound was taken from the source in an earlier step.
            later.append(feed)
        self._pending[node] = tuple(later)
        return now

    def _keyed(self, node: Keyed, lower: Frontier) -> None:
        upper = self._frontiers[node]
        now = self.gated(node, self.graph.feeds(node.inputs[0], self.emitted), upper)
        trace = self.trace(node, lower)
        results = self.run_node(node, trace, lower, upper, now) if now else []
        self.emit(node, results, upper)
        if node.keeps:
            self.traces[node] = self.extended(node, trace, results, upper)

    def trace(self, node: Arranged, lower: Frontier) -> Trace:
        """What a node keeps."""
        start = antichain(lower)
        return self.traces.get(node) or Trace(start, start, start)

    def _reader(self, node: Reader, lower: Frontier) -> None:
        upper = self._frontiers[node]
        views = tuple(
            self.compaction.view(source, self.traces[source], lower, upper)
            for source in node.arranged
        )
        read = self.read_of(node, views, lower, upper)
        results = self.read(read, sum(view.rows for view in views)) if read.buckets() else []
        self.emit(node, results, upper)
        if node.keeps:
            self.traces[node] = self.extended(node, self.trace(node, lower), results, upper)

    def read_of(
        self, node: Reader, views: tuple[View, ...], lower: Frontier, upper: Frontier
    ) -> Read:
        """What a reader does with some views of its arrangements."""
        names = node.schema.names
        trace = self.trace(node, lower)
        own = None
        stored: tuple[int, ...] = ()
        if node.keeps:
            # What it gave in this step itself, at other coordinates of a loop, has had its turn.
            own = self.compaction.view(node, trace, lower, upper).at_turn({}, False)
            stored = tuple(names.index(name) for name in own.names)
        return Read(
            node.kernel,
            views,
            own,
            self._output(node) if self.graph.readings[node] or node in self.graph.sinks else None,
            stored,
            self._directory(f"{node.kind}-{node.serial}"),
            self.compaction.needed(node, self._frontiers, upper),
            self.compaction.since(node, trace, self.state.frontiers, lower),
            lower,
            upper,
        )

    def read(self, read: Read, rows: float) -> list[BucketResult]:
        """Run a reader's kernel, where so many rows are best read."""
        runner = self._local if self.settings.few(rows) else self.spark_runner
        results = runner.read(read, rows)
        self._count(runner, results)
        return results

    def _output(self, node: Keyed | Reader) -> Output:
        """The form in which an operator gives its updates: the columns that somebody reads."""
        wanted = self.graph.wanted[node]
        positions = tuple(i for i, name in enumerate(node.schema.names) if name in wanted)
        names = [node.schema.names[i] for i in positions]
        # Pairs of a join are many, and what takes them in adds up equal ones anyway.
        pruned = len(names) < len(node.schema.names) and not isinstance(node.kernel, BilinearKernel)
        return Output(node.schema.arrow(names), positions, node.time_type.arrow, pruned=pruned)

    def run_node(
        self, node: Keyed, trace: Trace, lower: Frontier, upper: Frontier, feeds: list[Feed],
        coordinate: int = 0,
    ) -> list[BucketResult]:
        """Take updates into a keyed operator."""
        wanted = self.graph.wanted[node]
        layout = node.layout(wanted)
        schema = node.inputs[0].schema
        if node.kernel is None:
            schema = schema.only(node.stored(wanted))
        output = None if node.kernel is None else self._output(node)
        # A complete collection is never looked up again, unless somebody reads it.
        keeps = node.keeps and (upper is not None or node.kernel is None)
        work = Work(
            layout,
            schema.names,
            self.settings.buckets,
            node.kernel,
            output,
            {b: files for b in range(self.settings.buckets) if (files := trace.files(b))},
            self._directory(f"{node.kind}-{node.serial}"),
            keeps,
            self.compaction.since(node, trace, self.state.frontiers, upper),
            lower,
            upper,
            node.diff_columns,
            coordinate,
        )
        runner, feeds = self._choose(feeds)
        results = runner.run(work, schema, feeds)
        self._count(runner, results)
        return results

    def _count(
        self, runner: SparkRunner | LocalRunner, results: Sequence[BucketResult]
    ) -> None:
        """Take what was done into the report, and the files into those that were written."""
        for result in results:
            if result.file is not None:
                self._written.append(result.file.path)
            if result.output_path is not None:
                self._written.append(result.output_path)
            self._written.extend(path for _, path, _ in result.later.values() if path is not None)
            self._written.extend(file.path for file in result.due.values())
            self.report.rows_in += result.rows_in
            self.report.rows_read += result.rows_read
            self.report.rows_out += result.rows_out
        if runner is self._local:
            self.report.local_runs += 1
        else:
            self.report.spark_runs += 1

    def _choose(self, feeds: list[Feed]) -> tuple[SparkRunner | LocalRunner, list[Feed]]:
        """The runner for some feeds, and the feeds in a form that it takes."""
        mode = self.settings.runner
        if mode == "auto":
            small = rows_of(feeds) <= self.settings.local_rows
            local = small and all(feed.source.frame is None for feed in feeds)
            return (self._local if local else self.spark_runner), feeds
        if mode == "spark":
            return self.spark_runner, feeds
        fetched = []
        for feed in feeds:
            if feed.source.frame is not None:
                table = self.spark_runner.fetch(feed.source)
                source = Source(feed.source.schema, table=table, rows=table.num_rows)
                feed = replace(feed, source=source)
            fetched.append(feed)
        return self._local, fetched

    def emit(self, node: Arranged, results: Sequence[BucketResult], upper: Frontier) -> None:
        """Hand on what a node gave."""
        self.emitted[node] = self.given(
            node, [(r.output, r.output_path, r.rows_out) for r in results], upper
        )

    def given(
        self, node: Arranged, outputs: Sequence[tuple[pa.Table | None, str | None, int]],
        upper: Frontier,
    ) -> tuple[Feed, ...]:
        """Tables, and paths of tables with their rows, as feeds."""
        wanted = self.graph.wanted[node]
        schema = node.schema.only(n for n in node.schema.names if n in wanted)
        feeds = []
        tables = [table for table, _, _ in outputs if table is not None and table.num_rows]
        if tables:
            table = pa.concat_tables(tables)
            feeds.append(Feed(Source(schema, table=table, rows=table.num_rows), until=upper))
        paths = tuple(path for _, path, _ in outputs if path is not None)
        if paths:
            rows = sum(rows for _, path, rows in outputs if path is not None)
            feeds.append(Feed(Source(schema, paths=paths, rows=rows), until=upper))
        return tuple(feeds)

    def extended(
        self, node: Arranged, trace: Trace, results: Sequence[BucketResult], upper: Frontier
    ) -> Trace:
        """The trace with the new batch."""
        since = self.compaction.since(node, trace, self.state.frontiers, upper)
        files = {r.bucket: r.file for r in results if r.file is not None}
        return trace.extended(antichain(upper), antichain(since), files)

    def _compacted(self, node: Arranged, trace: Trace) -> Trace:
        """The trace when all readers have gone on: compacted, and merged where that is due."""
        upper = self._frontiers[node]
        if not self.compaction.needed(node, self._frontiers, upper):
            return Trace(trace.lower, trace.upper, trace.upper)
        since = antichain(self.compaction.since(node, trace, self._frontiers, upper))
        fences = self.compaction.fences(node, self._frontiers)
        return self.merged(node, replace(trace, since=since), fences)

    def merged(self, node: Arranged, trace: Trace, fences: Sequence[Antichain]) -> Trace:
        """The trace with those batches merged for which it is due."""
        for first, stop in reversed(trace.due(fences)):
            batches = trace.batches[first:stop]
            # Beyond a reader's frontier times still tell old updates from new ones.
            settled = all(batches[-1].description.upper.precedes(fence) for fence in fences)
            until = only(trace.since) if settled else None
            reached = trace.since if settled else batches[0].description.since
            trace = trace.merged(first, stop, reached, self._merge(node, batches, until))
        return trace

    def _merge(
        self, node: Arranged, batches: Sequence[Batch], since: Frontier
    ) -> dict[int, BatchFile]:
        merged: dict[int, BatchFile] = {}
        several: dict[int, list[str]] = {}
        for batch in batches:
            for bucket, file in batch.files.items():
                several.setdefault(bucket, []).append(file.path)
                merged[bucket] = file
        several = {bucket: paths for bucket, paths in several.items() if len(paths) > 1}
        rows = sum(batch.rows for batch in batches)
        self.report.rows_merged += rows
        if several:
            for bucket in several:
                del merged[bucket]
            runner = self._local if self.settings.few(rows) else self.spark_runner
            made = runner.merge(several, self._directory(f"{node.kind}-{node.serial}"), since)
            self._written.extend(file.path for file in made.values())
            merged.update(made)
        return merged

    def _directory(self, name: str) -> str:
        path = self.storage.directory(name)
        self._directories.append(path)
        return path
