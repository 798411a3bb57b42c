"""The common context of the schedulers of a step and of a loop: the new state, and a node's work.

A context is created for one step and dropped after it. It never changes the old state.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Callable, Iterable, Mapping, Sequence
from weakref import proxy

import pyarrow as pa

from pyspark_diff.engine.compaction import Compaction
from pyspark_diff.engine.costs import NOTED
from pyspark_diff.engine.evaluation import Evaluation
from pyspark_diff.engine.fusion import Fusion, Job, Turn
from pyspark_diff.engine.graph import Component, Graph
from pyspark_diff.engine.growth import Growth
from pyspark_diff.engine.live import Live
from pyspark_diff.engine.rewind import rewindable_after, rewound, shown_retractions
from pyspark_diff.engine.state import Arrival, Report, Shown, State, StepSettings
from pyspark_diff.engine.subgraph import Subgraph
from pyspark_diff.engine.traces import Forward, Traces
from pyspark_diff.fallbacks import MEMORY, count
from pyspark_diff.kernels.coordinates import pack
from pyspark_diff.operators.due import Waiting
from pyspark_diff.operators.inspect import Inspect
from pyspark_diff.operators.node import Arranged, Keyed, Node, Reader, Shared
from pyspark_diff.runners.bilinear import Rest
from pyspark_diff.runners.feed import Feed, UpdateRows
from pyspark_diff.runners.local import LocalRunner, rows_of, worth_per_bucket
from pyspark_diff.runners.pieces import Given
from pyspark_diff.runners.read import Read
from pyspark_diff.runners.spark import SparkRunner
from pyspark_diff.runners.stop import Stop
from pyspark_diff.runners.view import ArrangementView
from pyspark_diff.runners.work import (
    BucketResult,
    Merge,
    Work,
    files_of,
    merge_together,
    still_due,
    write_file,
)
from pyspark_diff.spark.bridge import JobLabel
from pyspark_diff.times import Antichain, Coordinate, meet_all
from pyspark_diff.trace import storage
from pyspark_diff.trace.batch import Batch, BatchFile, Paths
from pyspark_diff.trace.spine import Trace
from pyspark_diff.trace.storage import Storage, StoreFiles

_logger = logging.getLogger("pyspark_diff")


@dataclass
class StepContext:
    """One step in progress.

    Parameters
    ----------
    growth : Growth
        The graph, and its new nodes.
    state : State
        The state before the step, which does not change.
    spark_runner : SparkRunner
        The runner of this step only.
    constants : mapping of Node to sequence of Arrival
        Constants that new operators read again.
    live : Live
        Reports the Spark jobs of the step.
    stop : Stop
        Cancellation of the step.
    """

    growth: Growth
    state: State
    settings: StepSettings
    storage: Storage | StoreFiles
    spark_runner: SparkRunner
    live: Live
    constants: Mapping[Node, Sequence[Arrival]] = field(default_factory=dict)
    stop: Stop = field(default_factory=Stop)
    report: Report = field(default_factory=Report)

    @property
    def graph(self) -> Graph:
        """The running graph."""
        return self.growth.graph

    def __post_init__(self) -> None:
        # A reference cycle would keep all data of the step until a run of Python's garbage
        # collector, which each step would then need.
        this = proxy(self)
        self.spark_runner.around = lambda: this.live.job(this._label)
        self.local = LocalRunner(self.spark_runner.evaluate, self.stop)
        #: Files that the step wrote, whether or not the new state needs them.
        self.written: list[str] = []
        #: The present item, for errors and progress, and the number of finished items. In a loop
        #: also the present node and iteration.
        self.doing: Node | Subgraph | None = None
        self.inside: tuple[Node, Coordinate] | None = None
        self.done = 0
        #: The new frontiers of inputs, for all parts that may have work.
        self.upper: dict[Node, Antichain] = {}
        self.parts: Sequence[Component] = ()
        self.began = time.monotonic()
        #: Its Spark jobs, for progress.
        self.jobs = self.live.step
        self.directories: list[str] = []
        self.evaluation = Evaluation(
            self.graph, self.settings, self.spark_runner, self.local,
            lambda name: this._directory(name), self.written,
        )
        #: Nodes of the parts with work; None for all nodes. Other nodes do not change.
        self.touched: list[Node] | None = None
        #: The state before the step, with the updates that the step rolls back.
        self.before = self.state
        self.emitted: dict[Node, tuple[Feed, ...]] = {}
        #: Times and numbers of the changes of all keys, by inputs of keyed changes.
        self.clears: dict[Node, tuple[tuple[int, int], ...]] = {}
        self.shows: list[tuple[Inspect, tuple[Feed, ...], Coordinate]] = []
        #: Results before their turn, as a job and the number of an operator in it.
        self.early: dict[Turn, tuple[Job, int]] = {}
        #: Inputs with processed updates.
        self.fed = set(self.state.fed)
        #: Retractions of outputs that consumers have received.
        self.unshown: list[Shown] = []
        #: If pending updates have cancelled out, the other updates with their original times.
        self.left: dict[Node, tuple[Arrival, ...]] | None = None

    def begin(
        self, arrivals: Mapping[Node, Sequence[Arrival]], upper: Mapping[Node, Antichain]
    ) -> None:
        """Begin a step to some frontiers of inputs, after the rollback of discarded updates. Other
        inputs keep their frontiers."""
        before = self.state
        self.parts, resting = self._parts(arrivals, upper)
        others = len(self.parts) < len(self.graph.connected)
        if others:
            self.touched = [node for part in self.parts for node in part.nodes]
        if before.rewinds:
            self.state = rewound(before, before.rewinds, self.cut)
            self.unshown = shown_retractions(before)
        self.rewindable = rewindable_after(self.parts, self.state, self.upper, others)
        self.compaction = Compaction(self.graph, self.settings, self.rewindable)
        self.frontiers = dict(self.state.frontiers)
        traces = self.state.traces
        self.traces = traces.copy() if isinstance(traces, Traces) else Traces(dict(traces))
        self.pending = dict(self.state.pending)
        compaction = Compaction(self.graph, self.settings)  # resting parts have nothing to rewind
        forward: dict[Antichain, Forward] = {}
        for part in resting:
            at = self.upper[part.inputs[0]]
            self.frontiers.update(dict.fromkeys(part.nodes, at))
            self.rewindable.floors.update(dict.fromkeys(part.inputs, at))
            if at not in forward:
                forward[at] = partial(compaction.forward, at=at)
            self.traces.rest(part.arranged, forward[at])

    def _parts(
        self, arrivals: Mapping[Node, Sequence[Arrival]], upper: Mapping[Node, Antichain]
    ) -> tuple[Sequence[Component], list[Component]]:
        """The parts of the graph with work, and the parts in which only frontiers move."""
        before, graph = self.state, self.graph
        known = before.graph is graph and before.lagging is not None
        at, parts_moved = before.frontiers, graph.connected
        all_parts = not known or bool(before.rewinds or self.growth.late)
        if not all_parts:
            moved = [node for node, to in upper.items() if to is not at[node] and to != at[node]]
            moved += [node for node, new in arrivals.items() if new]
            parts_moved = tuple({id(p): p for p in map(graph.part_of.__getitem__, moved)}.values())
        self.upper = {
            n: upper[n] if n in upper else at[n] for part in parts_moved for n in part.inputs
        }
        if all_parts:
            return parts_moved, []
        parts: list[Component] = []
        resting: list[Component] = []
        for part in parts_moved:
            (resting if self._rests(part, arrivals) else parts).append(part)
        return parts, resting

    def _rests(self, part: Component, arrivals: Mapping[Node, Sequence[Arrival]]) -> bool:
        """Whether a part has no new and no waiting updates, so that only its frontiers move."""
        before, upper = self.state, self.upper
        at, to = before.frontiers[part.inputs[0]], upper[part.inputs[0]]
        if not part.plain or to.is_empty:
            return False
        for node in part.inputs:
            if arrivals.get(node) or before.waiting.get(node) or before.recent.get(node) or (
                before.frontiers[node] != at or upper[node] != to
            ):
                return False
        return not before.pending or not any(map(before.pending.get, part.nodes))

    def cut(self, file: BatchFile, node: Node, bucket: int, at: int) -> BatchFile | None:
        """The updates of a file before a time, as another file."""
        updates = storage.open_updates(file.path)
        inside = updates.times() < at
        if inside.all():
            return file
        directory = self._directory(f"{self.graph.program.name(node)} before")
        name = f"{bucket:05d}"
        files = write_file(directory, name, updates.take(inside), in_memory=True)
        self.written.extend(file_before.path for file_before in files)
        return files[0] if files else None

    def _label(self, dataflow: str) -> JobLabel:
        frontiers = self.state.frontiers
        node, at = self.inside or (self.doing, ())
        if node is None or isinstance(node, Subgraph):
            return JobLabel(dataflow, "start")
        lower = frontiers[node].bound if node in frontiers else None
        return JobLabel(
            dataflow, self.graph.program.name(node), at, lower, self.frontiers[node].bound
        )

    def share(self, node: Shared, min_depth: int = 0) -> None:
        """Evaluate an expression once for all its readers."""
        feeds = self.graph.feeds(node.inputs[0], self.emitted, min_depth)
        wanted = self.graph.wanted[node]
        self.emitted[node] = tuple(self.evaluation.evaluated(node, feed, wanted) for feed in feeds)

    def settle(self) -> None:
        """Compact the arrangements that new operators read to `since`: at earlier times a
        retraction may precede its insertion."""
        for node in self.growth.bases:
            trace = self.traces[node]
            early = [b for b in trace.batches if not trace.since.precedes(b.description.lower)]
            if not early or len(early) == 1 and early[0].description.since == trace.since:
                continue
            until = _advanced_to(trace, trace.since, trace.upper)
            (files,) = self._merged([(node, early, until)], rewrite=True)
            self.traces[node] = trace.merged(0, len(early), trace.since, files)
        self.settled = {node: self.traces[node] for node in self.growth.bases}

    def gated(self, node: Node, reached: Sequence[Feed], upper: Antichain) -> list[Feed]:
        """The feeds that a node processes now; later updates wait."""
        now: list[Feed] = []
        later: list[Feed] = []
        for feed in (*self.pending.get(node, ()), *reached):
            if self.settings.open or feed.until.precedes(upper):
                now.append(feed)
                continue
            # A later step reads this feed again, since the other input lags.
            feed = self.evaluation.put_off(node, feed)
            end = upper.end
            if feed.upper is not None and end is not None and feed.upper <= end:
                # Rolled back and released again: the source has later rows, of another feed.
                now.append(feed)
                continue
            if feed.lower is None or not upper.less_equal(feed.lower):
                now.append(replace(feed, upper=end))
                feed = replace(feed, lower=end)
            # An earlier step has read the source up to the feed's own lower bound.
            later.append(feed)
        self.pending[node] = tuple(later)
        return now

    def trace(self, node: Arranged, lower: Antichain) -> Trace:
        """The trace of a node."""
        return self.traces.get(node) or Trace(lower, lower, lower)

    def read_of(
        self, node: Reader, views: tuple[ArrangementView, ...], lower: Antichain, upper: Antichain
    ) -> Read:
        """The work of a reader on some views of its arrangements."""
        names = node.schema.names
        trace = self.trace(node, lower)
        own, form = None, self.graph.form(node)
        stored: tuple[int, ...] = ()
        if node.keeps:
            # Its output in this step at other coordinates of a loop has been processed.
            own = self.compaction.view(node, trace, lower, upper).at_coordinate({}, False)
            stored = tuple(names.index(name) for name in own.names)
        return Read(
            self.graph.program.name(node),
            node.kernel,
            views,
            own,
            form.output if self.graph.readings[node] or node in self.graph.sinks else None,
            stored,
            self.directory_of(node),
            self.compaction.needed(node, self.frontiers, upper),
            self._settled(node, trace, lower),
            lower.bound,
            upper.end,
            self.settings.piece_rows,
            all_buckets=self.settings.buckets,
            frontier=upper if self.settings.open else Antichain(),
        )

    def _settled(self, node: Arranged, trace: Trace, upper: Antichain) -> int | None:
        """The time to which old updates are advanced."""
        since = self.compaction.since(node, trace, self.state.frontiers, upper)
        return _advanced_to(trace, since, upper)

    def read(
        self, node: Reader, read: Read, rows: float
    ) -> tuple[list[BucketResult], dict[int, list[Rest]]]:
        """Run a reader's kernel in all buckets without an early result. The number of rows decides
        on the runner. The second result has the rows that later reads compute, by coordinate."""
        results: list[BucketResult] = []
        reads: dict[int, Read] = {}
        job, number = self.early.pop((node, pack(read.at)), (None, 0))
        if job is not None and job.is_valid(number):
            results = job.results(number)
            reads = {r.bucket: job.read(number, r.bucket) for r in results if r.rest}
            self._count(node, self.spark_runner, results)
        done = {result.bucket for result in results}
        left = [bucket for bucket in read.buckets() if bucket not in done]
        if left:
            runner = self.local if self.settings.few(rows) else self.spark_runner
            more = runner.read(replace(read, chosen=tuple(left)) if done else read, rows)
            self._count(node, runner, more)
            results = [*results, *more]
        return results, self._rest(read, reads, results)

    def forget(self, nodes: Iterable[Node], coordinate: int) -> None:
        """Drop early results of a loop's nodes, except those of one coordinate: other coordinates
        had no turn, and will have none."""
        loop_nodes = set(nodes)
        self.early = {
            turn: early for turn, early in self.early.items()
            if turn[0] not in loop_nodes or turn[1] == coordinate
        }

    def _rest(
        self, read: Read, reads: Mapping[int, Read], results: Sequence[BucketResult]
    ) -> dict[int, list[Rest]]:
        """The rows that later reads compute; buckets may have different reads."""
        rests: dict[int, list[Rest]] = {}
        for result in results:
            for code, first, rows, most in result.rest:
                # Another `most` would cut the output into other pieces.
                as_made = replace(reads.get(result.bucket, read), most=most)
                rest = Rest(as_made, result.bucket, code, first, rows)
                rests.setdefault(code, []).append(rest)
        for rests_at in rests.values():
            rows = sum(part.rows for part in rests_at)
            _logger.info("%s: %d more update rows are computed at each read", read.name, rows)
        return rests

    def work_of(
        self, node: Keyed, trace: Trace, lower: Antichain, upper: Antichain, coordinate: int = 0
    ) -> Work:
        """The work of a keyed operator."""
        form = self.graph.form(node)
        output = None if node.kernel is None else form.output
        # A complete collection is needed again only by a reader or by a rollback.
        used = not upper.is_empty or node in self.rewindable.nodes
        used |= node.kernel is None or node.kernel.looks_at_complete
        keeps = node.keeps and used
        return Work(
            self.graph.program.name(node),
            form.layout,
            form.input_schema.names,
            self.settings.buckets,
            node.kernel,
            output,
            Paths(trace.batches),
            self.directory_of(node),
            keeps,
            self._settled(node, trace, upper),
            lower.bound,
            upper.end,
            self.settings.piece_rows,
            node.diff_columns,
            coordinate,
        )

    def run_node(
        self, node: Keyed, trace: Trace, lower: Antichain, upper: Antichain, feeds: list[Feed],
        fusion: Callable[[], Fusion], coordinate: int = 0,
    ) -> list[BucketResult]:
        """Arrange updates in a keyed operator; a Spark job also runs fused operators."""
        job, number = self.early.pop((node, coordinate), (None, 0))
        if job is not None and job.took(number, feeds):
            results = job.results(number)
            self._count(node, self.spark_runner, results)
            return results
        schema = self.graph.form(node).input_schema
        work = self.work_of(node, trace, lower, upper, coordinate)
        runner, feeds = self._choose(feeds)
        if isinstance(runner, LocalRunner):
            results = runner.run(work, schema, feeds)
        else:
            turns = fusion().turns
            all_results = runner.run(work, schema, feeds, list(turns.values()))
            self.written.extend(path for result in all_results for path in result.paths())
            job = Job(node, turns, all_results)
            self.early.update((turn, (job, n)) for n, turn in enumerate(turns, 1))
            results = job.results(0)
        self._count(node, runner, results)
        return results

    def _count(
        self, node: Node, runner: SparkRunner | LocalRunner, results: Sequence[BucketResult]
    ) -> None:
        """Add results to the report, and their files to the written files."""
        for result in results:
            self.written.extend(result.paths())
            self.report.rows_in += result.rows_in
            self.report.rows_read += result.rows_read
            self.report.rows_out += result.output.rows
            if result.rest:
                reason = "its output exceeds the memory of a step and is computed at each read"
                count(self.graph.program.name(node), MEMORY, reason)
        self.report.costs.cost_of(node).took(results, runner is not self.local)
        if runner is self.local:
            self.report.local_runs += 1
        else:
            self.report.spark_runs += 1

    def spent(self, node: Node, began: float) -> None:
        """Add an operator's time since it began, if it did work."""
        seconds = time.perf_counter() - began
        if node in self.report.costs or seconds >= NOTED or isinstance(node, Inspect):
            self.report.costs.cost_of(node).seconds += seconds

    def _choose(self, feeds: list[Feed]) -> tuple[SparkRunner | LocalRunner, list[Feed]]:
        """The runner for some feeds, and the feeds in a form for the runner."""
        mode = self.settings.runner
        if mode == "auto":
            small = rows_of(feeds) <= self.settings.local_rows
            local = small and all(
                feed.source.frame is None or feed.source.scan is not None and feed.portable
                for feed in feeds
            )
            return (self.local if local else self.spark_runner), feeds
        if mode == "spark":
            return self.spark_runner, feeds
        fetched = []
        for feed in feeds:
            if feed.source.frame is not None and feed.source.scan is None:
                table = self.spark_runner.fetch(feed.source)
                source = UpdateRows(feed.source.schema, table=table, rows=table.num_rows)
                feed = replace(feed, source=source)
            fetched.append(feed)
        return self.local, fetched

    def emit(
        self, node: Arranged, results: Sequence[BucketResult], upper: Antichain,
        rest: Sequence[Rest] = (),
    ) -> None:
        """Emit the output of a node."""
        feeds = self.output_feeds(node, [r.output for r in results], upper, rest)
        self.emitted[node] = feeds
        for job in {id(job): job for job, _ in self.early.values()}.values():
            job.emitted(node, results, feeds)

    def output_feeds(
        self, node: Arranged, outputs: Sequence[Given], upper: Antichain, rest: Sequence[Rest] = ()
    ) -> tuple[Feed, ...]:
        """The output of a node, with the rows that later reads compute, as feeds."""
        if not outputs and not rest:
            return ()
        schema = self.graph.form(node).output_schema
        sources = []
        tables = [o.table for o in outputs if o.table is not None and o.table.num_rows]
        table_rows = sum(table.num_rows for table in tables)
        if tables:
            sources.append(UpdateRows(schema, table=pa.concat_tables(tables), rows=table_rows))
        paths = tuple(path for output in outputs for path in output.paths)
        if paths:
            rows = sum(output.rows for output in outputs) - table_rows
            sources.append(UpdateRows(schema, paths=paths, rows=rows))
        if rest:
            rows = sum(part.rows for part in rest)
            sources.append(UpdateRows(schema, rows=rows, rest=tuple(rest)))
        return tuple(Feed(source, until=upper) for source in sources)

    def extended(
        self, node: Arranged, trace: Trace, results: Sequence[BucketResult], upper: Antichain
    ) -> Trace:
        """The trace with the new batch."""
        since = self.compaction.since(node, trace, self.state.frontiers, upper)
        # A reader advances its output at most to the begin of the interval: see `read_of`.
        advanced = since.meet(trace.upper) if isinstance(node, Reader) else since
        return trace.extended(upper, since, files_of(results), advanced)

    def merge(
        self, traces: Mapping[Arranged, tuple[Trace, Sequence[Antichain]]], least: int = 0
    ) -> None:
        """Merge the batches of traces that are due.

        Parameters
        ----------
        traces : mapping of Arranged to (Trace, sequence of Antichain)
            Traces with the frontiers that no merge may cross.
        least : int
            The least number of batches of a merge by Spark.
        """
        due: list[tuple[Arranged, int, int]] = []
        wanted: list[tuple[Arranged, Sequence[Batch], int | None]] = []
        for node, (trace, fences) in traces.items():
            self.traces[node] = trace
            due_now = trace.due(fences)
            if isinstance(node, Waiting):
                due_now = trace.due(fences, partial(_still_due, since=trace.since.bound))
            for first, stop in reversed(due_now):
                batches = trace.batches[first:stop]
                if len(batches) < least and not self.settings.few(sum(b.rows for b in batches)):
                    continue
                # Beyond a reader's frontier, times distinguish old updates from new updates.
                settled = all(batches[-1].description.upper.precedes(fence) for fence in fences)
                until = _advanced_to(trace, trace.since, trace.upper) if settled else None
                due.append((node, first, stop))
                wanted.append((node, batches, until))
        for (node, first, stop), (_, merged, until), files in zip(
            due, wanted, self._merged(wanted)
        ):
            trace = self.traces[node]
            old = {path for batch in merged for path in batch.paths}
            # A file that is not rewritten has the times of its batch.
            advanced = until is not None and not any(
                file.path in old for of_bucket in files.values() for file in of_bucket
            )
            reached = trace.since if advanced else meet_all(b.description.since for b in merged)
            self.traces[node] = trace.merged(first, stop, reached, files)

    def _merged(
        self, wanted: Sequence[tuple[Arranged, Sequence[Batch], int | None]], rewrite: bool = False
    ) -> list[Mapping[int, tuple[BatchFile, ...]]]:
        """The files of merged batches by bucket. A large merge keeps the files of a bucket with one
        batch only, unless all files are to be rewritten."""
        merged_files: list[Mapping[int, tuple[BatchFile, ...]]] = []
        by_spark: list[tuple[int, Merge]] = []
        for node, batches, since in wanted:
            rows = sum(batch.rows for batch in batches)
            self.report.rows_merged += rows
            few, directory = self.settings.few(rows), self.directory_of(node)
            buckets, by_time = self.settings.buckets, isinstance(node, Waiting)
            together = rows < self.settings.piece_rows and not worth_per_bucket(rows, buckets)
            if few and buckets > 1 and together:
                layout = self.graph.form(node).layout
                whole = merge_together(batches, directory, since, layout, buckets, by_time)
                self.written.extend(file.path for files in whole.values() for file in files)
                merged_files.append(whole)
                continue
            several: dict[int, list[str]] = {}
            merged = {bucket: files for batch in batches for bucket, files in batch.files.items()}
            for bucket, files in merged.items():
                all_ = [file.path for batch in batches for file in batch.files.get(bucket, ())]
                if rewrite or len(all_) > len(files):
                    several[bucket] = all_
            merge = Merge(several, directory, since, self.settings.piece_rows, by_time)
            if several and not few:
                by_spark.append((len(merged_files), merge))
            new = self.local.merge(merge) if several and few else {}
            merged_files.append(self._over(merged, new))
        if by_spark:  # all in one job
            written_files = self.spark_runner.merge([merge for _, merge in by_spark])
            for (place, _), written in zip(by_spark, written_files):
                merged_files[place] = self._over(merged_files[place], written)
        return merged_files

    def _over(
        self, merged: Mapping[int, tuple[BatchFile, ...]],
        new: Mapping[int, tuple[BatchFile, ...]],
    ) -> Mapping[int, tuple[BatchFile, ...]]:
        """The files of a batch, with the new files in place of old files."""
        self.written.extend(file.path for files in new.values() for file in files)
        return {bucket: files for bucket, files in {**merged, **new}.items() if files}

    def directory_of(self, node: Node) -> str:
        """A new directory for a node's files."""
        return self._directory(self.graph.program.name(node))

    def _directory(self, name: str) -> str:
        path = self.storage.directory(name)
        self.directories.append(path)
        return path


def _advanced_to(trace: Trace, since: Antichain, upper: Antichain) -> int | None:
    """The time to which a trace's updates are advanced, if it is processed up to a frontier.

    A new operator may know its past only from a time beyond its own frontier. Its updates stay
    before the frontier: within a step none may lie beyond it, and later readers expect them before
    it.
    """
    at, until, begin = since.bound, upper.bound, trace.lower.bound
    if at is None or until is None or begin is None:
        return at
    return min(at, max(until - 1, begin))


def _still_due(batch: Batch, since: int | None) -> int:
    """The number of rows of a batch that fall due at later times."""
    return sum(len(still_due(storage.open_updates(path), since)) for _, path in batch.opened())
