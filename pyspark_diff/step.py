"""One step: the updates between two frontiers flow through the graph, and a new state comes out.

All or nothing: a step reads one immutable `State` and returns another. If anything raises, the
files it wrote are removed, the state stays what it was, and the step can be run again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Mapping, Sequence

import pyarrow as pa

from pyspark_diff import storage
from pyspark_diff.arrange.batch import BatchFile
from pyspark_diff.arrange.spine import Trace
from pyspark_diff.graph import Graph
from pyspark_diff.operators.node import Input, Inspect, Keyed, Node
from pyspark_diff.runners.feed import Feed, Source
from pyspark_diff.runners.local import LocalRunner, rows_of
from pyspark_diff.runners.spark import SparkRunner
from pyspark_diff.runners.work import BucketResult, Output, Work
from pyspark_diff.schema import DIFF, TIME
from pyspark_diff.state import Arrival, Frontier, Report, Settings, State, below, least, only
from pyspark_diff.storage import Storage
from pyspark_diff.times import Antichain


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
    """

    graph: Graph
    state: State
    settings: Settings
    storage: Storage
    spark_runner: SparkRunner
    report: Report = field(default_factory=Report)

    def __post_init__(self) -> None:
        self._local = LocalRunner(self.spark_runner.evaluate)
        self._frontiers = dict(self.state.frontiers)
        self._traces = dict(self.state.traces)
        self._pending = dict(self.state.pending)
        self._waiting = dict(self.state.waiting)
        self._emitted: dict[Node, tuple[Feed, ...]] = {}
        self._written: list[str] = []
        self._directories: list[str] = []
        self._shows: list[tuple[Inspect, tuple[Feed, ...]]] = []
        #: For each inspect the update rows that it is to show, once the step has been taken over.
        self.shown: list[tuple[Inspect, list[pa.Table]]] = []

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
            for node in self.graph.nodes:
                if isinstance(node, Input):
                    self._release(node, arrivals.get(node, ()), upper[node])
                    continue
                before = self._frontiers.get(node)
                self._frontiers[node] = least([self._frontiers[n] for n in node.inputs])
                if isinstance(node, Keyed):
                    self._keyed(node, before)
                elif isinstance(node, Inspect):
                    self._shows.append((node, self.graph.feeds(node, self._emitted)))
            state = State(self._frontiers, self._traces, self._pending, self._waiting)
            self.shown = [(node, self._tables(node, feeds)) for node, feeds in self._shows]
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
                source = self._materialised(source)
            bound = None if whole else upper
            feeds.append(Feed(source, (), arrival.taken, bound, until=upper))
            if not whole:
                rest.append(Arrival(source, arrival.last, taken=upper))
        self._emitted[node] = tuple(feeds)
        self._waiting[node] = tuple(rest)

    def _keyed(self, node: Keyed, lower: Frontier) -> None:
        upper = self._frontiers[node]
        reached = self.graph.feeds(node.inputs[0], self._emitted)
        now: list[Feed] = []
        later: list[Feed] = []
        for feed in (*self._pending.get(node, ()), *reached):
            if not below(upper, feed.until):
                now.append(feed)
                continue
            if feed.source.frame is not None:
                # The other input lags, so this one is read again later.
                feed = replace(feed, source=self._materialised(feed.source))
            if feed.lower is None or below(feed.lower, upper):
                now.append(replace(feed, upper=upper))
                feed = replace(feed, lower=upper)
            # What lies before its own lower bound was taken from the source in an earlier step.
            later.append(feed)
        self._pending[node] = tuple(later)
        trace = self._traces.get(node)
        if trace is None:
            start = Antichain([] if lower is None else [lower])
            trace = Trace(start, start, start)
        results = self._run_node(node, trace, lower, upper, now) if now else []
        self._emit(node, results, upper)
        if node.keeps:
            self._traces[node] = self._extend(node, trace, results, upper)

    def _run_node(
        self, node: Keyed, trace: Trace, lower: Frontier, upper: Frontier, feeds: list[Feed]
    ) -> list[BucketResult]:
        schema = node.inputs[0].schema
        wanted = self.graph.wanted[node]
        positions = tuple(i for i, name in enumerate(node.schema.names) if name in wanted)
        output = None
        if node.kernel is not None:
            names = [node.schema.names[i] for i in positions]
            output = Output(
                node.schema.arrow(names),
                positions,
                node.time_type.arrow,
                pruned=len(names) < len(node.schema.names),
            )
        # A complete collection is never looked up again, unless somebody reads it.
        keeps = node.keeps and (upper is not None or node.kernel is None)
        work = Work(
            node.layout,
            self.settings.buckets,
            node.kernel,
            output,
            {b: files for b in range(self.settings.buckets) if (files := trace.files(b))},
            self._directory(f"{node.kind}-{node.serial}"),
            keeps,
            self._since(node, trace, upper),
            lower,
            upper,
        )
        runner, feeds = self._choose(feeds)
        results = runner.run(work, schema, feeds)
        for result in results:
            if result.file is not None:
                self._written.append(result.file.path)
            if result.output_path is not None:
                self._written.append(result.output_path)
            self.report.rows_in += result.rows_in
            self.report.rows_read += result.rows_read
            self.report.rows_out += result.rows_out
        if runner is self._local:
            self.report.local_runs += 1
        else:
            self.report.spark_runs += 1
        return results

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

    def _emit(self, node: Keyed, results: Sequence[BucketResult], upper: Frontier) -> None:
        wanted = self.graph.wanted[node]
        schema = node.schema.only(n for n in node.schema.names if n in wanted)
        feeds = []
        tables = [r.output for r in results if r.output is not None and r.output.num_rows]
        if tables:
            table = pa.concat_tables(tables)
            feeds.append(Feed(Source(schema, table=table, rows=table.num_rows), until=upper))
        written = [r for r in results if r.output_path is not None]
        if written:
            paths = tuple(r.output_path for r in written if r.output_path is not None)
            source = Source(schema, paths=paths, rows=sum(r.rows_out for r in written))
            feeds.append(Feed(source, until=upper))
        self._emitted[node] = tuple(feeds)

    def _extend(
        self, node: Keyed, trace: Trace, results: Sequence[BucketResult], upper: Frontier
    ) -> Trace:
        """The trace with the new batch, merged where that is due."""
        to = Antichain([] if upper is None else [upper])
        if upper is None and node.kernel is not None:
            return Trace(trace.lower, to, to)
        since = self._since(node, trace, upper)
        files = {r.bucket: r.file for r in results if r.file is not None}
        trace = trace.extended(to, Antichain([] if since is None else [since]), files)
        count = trace.due()
        if not count:
            return trace
        return trace.merged(count, self._merge(node, trace, count, since))

    def _merge(
        self, node: Keyed, trace: Trace, count: int, since: Frontier
    ) -> dict[int, BatchFile]:
        merged: dict[int, BatchFile] = {}
        several: dict[int, list[str]] = {}
        rows = 0
        for batch in trace.batches[-count:]:
            for bucket, file in batch.files.items():
                several.setdefault(bucket, []).append(file.path)
                merged[bucket] = file
        for bucket in several:
            if len(several[bucket]) > 1:
                del merged[bucket]
        several = {bucket: paths for bucket, paths in several.items() if len(paths) > 1}
        rows = sum(batch.rows for batch in trace.batches[-count:])
        self.report.rows_merged += rows
        local = self.settings.runner == "local" or (
            self.settings.runner == "auto" and rows <= self.settings.local_rows
        )
        if several:
            runner = self._local if local else self.spark_runner
            directory = self._directory(f"{node.kind}-{node.serial}")
            made = runner.merge(several, directory, since)
            self._written.extend(file.path for file in made.values())
            merged.update(made)
        return merged

    def _since(self, node: Keyed, trace: Trace, upper: Frontier) -> Frontier:
        """How far times may be advanced: as far as nobody reads behind it."""
        since = only(trace.since)
        if node.kernel is not None:
            return upper if upper is not None else since
        if self.settings.keep_history or upper is None:
            return since
        # The latest complete time stays readable. Where the first step completes nothing, none is.
        return upper - 1 if since is None else max(since, upper - 1)

    def _directory(self, name: str) -> str:
        path = self.storage.directory(name)
        self._directories.append(path)
        return path

    def _materialised(self, source: Source) -> Source:
        made = self.spark_runner.materialise(source, self._directory("rows"))
        self._written.extend(made.paths)
        return made

    def _tables(self, node: Inspect, feeds: Sequence[Feed]) -> list[pa.Table]:
        """What an inspect is to show, all in one schema: Spark and Arrow differ in nullability."""
        fields = [*node.schema.arrow(), (TIME, node.time_type.arrow), (DIFF, pa.int64())]
        schema = pa.schema(fields)
        tables: list[pa.Table] = []
        for feed in feeds:
            if feed.source.frame is not None:
                feed = replace(feed, source=self._materialised(feed.source))
            tables.extend(feed.within(table) for table in self._local.tables(feed))
        return [table.select(schema.names).cast(schema) for table in tables]
