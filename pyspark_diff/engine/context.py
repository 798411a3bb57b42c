"""What the schedulers of a step and of a loop share: the state in the making, and one node's work.

It is made for one step and dropped after it; nothing of the state before is changed.
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
from pyspark_diff.runners.feed import Feed, UpdateRows
from pyspark_diff.runners.local import LocalRunner, apart, rows_of
from pyspark_diff.runners.pieces import Given
from pyspark_diff.runners.read import Read, Rest
from pyspark_diff.runners.spark import SparkRunner
from pyspark_diff.runners.stop import Stop
from pyspark_diff.runners.view import View
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
    """One step under way.

    Parameters
    ----------
    growth : Growth
        What runs, and what of it for the first time.
    state : State
        What was there before; it is not changed.
    settings : StepSettings
    storage : Storage or StoreFiles
    spark_runner : SparkRunner
        Made for this step, as well.
    constants : mapping of Node to sequence of Arrival
        Constants that new operators are to be given again.
    live : Live
        Tells of its Spark jobs.
    stop : Stop
        What ends the step.
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
        """What runs."""
        return self.growth.graph

    def __post_init__(self) -> None:
        # It must not hold itself: all that it has read and made would stay until Python looks for
        # cycles, and to look for them would be work of each step.
        this = proxy(self)
        self.spark_runner.around = lambda: this.live.job(this._label)
        self.local = LocalRunner(self.spark_runner.evaluate, self.stop)
        #: Files that the step wrote, whether or not the new state needs them.
        self.written: list[str] = []
        #: What is being done, for errors and for who looks on, and how many are done. In a loop
        #: also the node and the iteration.
        self.doing: Node | Subgraph | None = None
        self.inside: tuple[Node, Coordinate] | None = None
        self.done = 0
        #: Up to where the inputs go of all parts that may have to do anything.
        self.upper: dict[Node, Antichain] = {}
        self.parts: Sequence[Component] = ()
        self.began = time.monotonic()
        #: What it has of Spark, for who looks on.
        self.jobs = self.live.step
        self.directories: list[str] = []
        self.evaluation = Evaluation(
            self.graph, self.settings, self.spark_runner, self.local,
            lambda name: this._directory(name), self.written,
        )
        #: Nodes of the parts in which anything happens; None are all. The others stay as they are.
        self.touched: list[Node] | None = None
        #: The state that it began with, with what is to be processed again.
        self.before = self.state
        self.emitted: dict[Node, tuple[Feed, ...]] = {}
        #: Of inputs of changes by key: times and numbers of those that are of all keys.
        self.clears: dict[Node, tuple[tuple[int, int], ...]] = {}
        self.shows: list[tuple[Inspect, tuple[Feed, ...], Coordinate]] = []
        #: What was done before its turn, and its number in the job in which it was.
        self._before: dict[Turn, tuple[Job, int]] = {}
        #: Inputs of which updates have been processed.
        self.fed = set(self.state.fed)
        #: What was shown and is taken back.
        self.unshown: list[Shown] = []
        #: If pending updates have cancelled out, the others as they came.
        self.left: dict[Node, tuple[Arrival, ...]] | None = None

    def begin(
        self, arrivals: Mapping[Node, Sequence[Arrival]], upper: Mapping[Node, Antichain]
    ) -> None:
        """Begin a step that goes up to some frontiers of inputs, and stays where it is with others:
        with what is to be processed again taken back."""
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
        compaction = Compaction(self.graph, self.settings)  # nothing of these can be taken back
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
        """The parts of the graph in which the step does anything, and those that only go on."""
        before, graph = self.state, self.graph
        known = before.graph is graph and before.lagging is not None
        at, found = before.frontiers, graph.connected
        every = not known or bool(before.rewinds or self.growth.late)
        if not every:
            moved = [node for node, to in upper.items() if to is not at[node] and to != at[node]]
            moved += [node for node, new in arrivals.items() if new]
            found = tuple({id(p): p for p in map(graph.part_of.__getitem__, moved)}.values())
        self.upper = {n: upper[n] if n in upper else at[n] for part in found for n in part.inputs}
        if every:
            return found, []
        parts: list[Component] = []
        resting: list[Component] = []
        for part in found:
            (resting if self._rests(part, arrivals) else parts).append(part)
        return parts, resting

    def _rests(self, part: Component, arrivals: Mapping[Node, Sequence[Arrival]]) -> bool:
        """Whether nothing comes to a part and nothing waits there: only its frontiers move."""
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
        found = write_file(directory, name, updates.take(inside), in_memory=True)
        self.written.extend(made.path for made in found)
        return found[0] if found else None

    def _label(self, dataflow: str) -> JobLabel:
        """What a Spark job of the step is for."""
        frontiers = self.state.frontiers
        node, at = self.inside or (self.doing, ())
        if node is None or isinstance(node, Subgraph):
            return JobLabel(dataflow, "start")
        lower = frontiers[node].bound if node in frontiers else None
        return JobLabel(
            dataflow, self.graph.program.name(node), at, lower, self.frontiers[node].bound
        )

    def share(self, node: Shared, min_depth: int = 0) -> None:
        """Evaluate expressions once for all that read them."""
        feeds = self.graph.feeds(node.inputs[0], self.emitted, min_depth)
        wanted = self.graph.wanted[node]
        self.emitted[node] = tuple(self.evaluation.evaluated(node, feed, wanted) for feed in feeds)

    def settle(self) -> None:
        """Advance the times of what operators that are new will read, so that all of it lies
        where it is known: between them, what was removed may come before what was inserted."""
        for node in self.growth.bases:
            trace = self.traces[node]
            early = [b for b in trace.batches if not trace.since.precedes(b.description.lower)]
            if not early or len(early) == 1 and early[0].description.since == trace.since:
                continue
            until = _within(trace, trace.since, trace.upper)
            (files,) = self._merged([(node, early, until)], every=True)
            self.traces[node] = trace.merged(0, len(early), trace.since, files)
        self.settled = {node: self.traces[node] for node in self.growth.bases}

    def gated(self, node: Node, reached: Sequence[Feed], upper: Antichain) -> list[Feed]:
        """The feeds that a node takes in now; what lies beyond its frontier waits."""
        now: list[Feed] = []
        later: list[Feed] = []
        for feed in (*self.pending.get(node, ()), *reached):
            if self.settings.open or feed.until.precedes(upper):
                now.append(feed)
                continue
            # The other input lags, so this one is read again later.
            feed = self.evaluation.put_off(node, feed)
            if feed.lower is None or not upper.less_equal(feed.lower):
                now.append(replace(feed, upper=upper.end))
                feed = replace(feed, lower=upper.end)
            # What lies before its own lower bound was taken from the source in an earlier step.
            later.append(feed)
        self.pending[node] = tuple(later)
        return now

    def trace(self, node: Arranged, lower: Antichain) -> Trace:
        """What a node keeps."""
        return self.traces.get(node) or Trace(lower, lower, lower)

    def read_of(
        self, node: Reader, views: tuple[View, ...], lower: Antichain, upper: Antichain
    ) -> Read:
        """What a reader does with some views of its arrangements."""
        names = node.schema.names
        trace = self.trace(node, lower)
        own, form = None, self.graph.form(node)
        stored: tuple[int, ...] = ()
        if node.keeps:
            # What it gave in this step itself, at other coordinates of a loop, has been processed.
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
        """The time that old updates are advanced to."""
        since = self.compaction.since(node, trace, self.state.frontiers, upper)
        return _within(trace, since, upper)

    def read(
        self, node: Reader, read: Read, rows: float
    ) -> tuple[list[BucketResult], dict[int, list[Rest]]]:
        """Run a reader's kernel, where so many rows are best read, in all buckets in which it has
        not been done before its turn. Gives what it leaves to be made, too, by coordinate."""
        results: list[BucketResult] = []
        reads: dict[int, Read] = {}
        job, number = self._before.pop((node, pack(read.at)), (None, 0))
        if job is not None and job.holds(number):
            results = job.results(number)
            reads = {one.bucket: job.read(number, one.bucket) for one in results if one.rest}
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
        """Drop what was done of nodes of a loop before its turn, but for one coordinate: others had
        no turn, and have none any more."""
        of = set(nodes)
        self._before = {
            turn: found for turn, found in self._before.items()
            if turn[0] not in of or turn[1] == coordinate
        }

    def _rest(
        self, read: Read, reads: Mapping[int, Read], results: Sequence[BucketResult]
    ) -> dict[int, list[Rest]]:
        """What is left to be made of what was read, in some buckets otherwise than in others."""
        found: dict[int, list[Rest]] = {}
        for result in results:
            for code, first, rows, most in result.rest:
                # With another `most` its parts would be cut elsewhere.
                as_made = replace(reads.get(result.bucket, read), most=most)
                rest = Rest(as_made, result.bucket, code, first, rows)
                found.setdefault(code, []).append(rest)
        for every in found.values():
            rows = sum(one.rows for one in every)
            _logger.info("%s: %d more update rows are made when they are read", read.name, rows)
        return found

    def work_of(
        self, node: Keyed, trace: Trace, lower: Antichain, upper: Antichain, coordinate: int = 0
    ) -> Work:
        """What a keyed operator does with updates."""
        form = self.graph.form(node)
        output = None if node.kernel is None else form.output
        # A complete collection is never looked up again, unless somebody reads it or takes it back.
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
        """Take updates into a keyed operator. If that is a Spark job, others are done with it."""
        job, number = self._before.pop((node, coordinate), (None, 0))
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
            every = runner.run(work, schema, feeds, list(turns.values()))
            self.written.extend(path for result in every for path in result.paths())
            job = Job(node, turns, every)
            self._before.update((turn, (job, n)) for n, turn in enumerate(turns, 1))
            results = job.results(0)
        self._count(node, runner, results)
        return results

    def _count(
        self, node: Node, runner: SparkRunner | LocalRunner, results: Sequence[BucketResult]
    ) -> None:
        """Take what was done into the report, and the files into those that were written."""
        for result in results:
            self.written.extend(result.paths())
            self.report.rows_in += result.rows_in
            self.report.rows_read += result.rows_read
            self.report.rows_out += result.output.rows
            if result.rest:
                reason = "its output exceeds the memory of a step and is computed at each reading"
                count(self.graph.program.name(node), MEMORY, reason)
        self.report.costs.cost_of(node).took(results, runner is not self.local)
        if runner is self.local:
            self.report.local_runs += 1
        else:
            self.report.spark_runs += 1

    def spent(self, node: Node, began: float) -> None:
        """An operator has taken the time since then, if it had anything to do."""
        seconds = time.perf_counter() - began
        if node in self.report.costs or seconds >= NOTED or isinstance(node, Inspect):
            self.report.costs.cost_of(node).seconds += seconds

    def _choose(self, feeds: list[Feed]) -> tuple[SparkRunner | LocalRunner, list[Feed]]:
        """The runner for some feeds, and the feeds in a form that it takes."""
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
        """Hand on what a node gave."""
        feeds = self.given(node, [r.output for r in results], upper, rest)
        self.emitted[node] = feeds
        for job in {id(job): job for job, _ in self._before.values()}.values():
            job.emitted(node, results, feeds)

    def given(
        self, node: Arranged, outputs: Sequence[Given], upper: Antichain, rest: Sequence[Rest] = ()
    ) -> tuple[Feed, ...]:
        """What a node gave, and what it leaves to be made, as feeds."""
        if not outputs and not rest:
            return ()
        schema = self.graph.form(node).output_schema
        sources = []
        tables = [o.table for o in outputs if o.table is not None and o.table.num_rows]
        held = sum(table.num_rows for table in tables)
        if tables:
            sources.append(UpdateRows(schema, table=pa.concat_tables(tables), rows=held))
        paths = tuple(path for output in outputs for path in output.paths)
        if paths:
            rows = sum(output.rows for output in outputs) - held
            sources.append(UpdateRows(schema, paths=paths, rows=rows))
        if rest:
            sources.append(UpdateRows(schema, rows=sum(one.rows for one in rest), rest=tuple(rest)))
        return tuple(Feed(source, until=upper) for source in sources)

    def extended(
        self, node: Arranged, trace: Trace, results: Sequence[BucketResult], upper: Antichain
    ) -> Trace:
        """The trace with the new batch."""
        since = self.compaction.since(node, trace, self.state.frontiers, upper)
        # A reader does not advance its output beyond the begin of the interval: see `read_of`.
        advanced = since.meet(trace.upper) if isinstance(node, Reader) else since
        return trace.extended(upper, since, files_of(results), advanced)

    def merge(
        self, traces: Mapping[Arranged, tuple[Trace, Sequence[Antichain]]], least: int = 0
    ) -> None:
        """Merge those batches of traces for which it is due; by Spark only so many at once.

        Parameters
        ----------
        traces : mapping of Arranged to (Trace, sequence of Antichain)
            With the frontiers that no merge may cross.
        least : int
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
                # Beyond a reader's frontier times still tell old updates from new ones.
                settled = all(batches[-1].description.upper.precedes(fence) for fence in fences)
                until = _within(trace, trace.since, trace.upper) if settled else None
                due.append((node, first, stop))
                wanted.append((node, batches, until))
        for (node, first, stop), (_, merged, until), files in zip(
            due, wanted, self._merged(wanted)
        ):
            trace = self.traces[node]
            old = {path for batch in merged for path in batch.paths}
            # A file that is not written again has the times of its batch.
            advanced = until is not None and not any(
                file.path in old for of_bucket in files.values() for file in of_bucket
            )
            reached = trace.since if advanced else meet_all(b.description.since for b in merged)
            self.traces[node] = trace.merged(first, stop, reached, files)

    def _merged(
        self, wanted: Sequence[tuple[Arranged, Sequence[Batch], int | None]], every: bool = False
    ) -> list[Mapping[int, tuple[BatchFile, ...]]]:
        """One batch of several, each time: by bucket its files. Of many rows those of a bucket that
        is in one of them only stay as they are, if not every one is to be written."""
        found: list[Mapping[int, tuple[BatchFile, ...]]] = []
        by_spark: list[tuple[int, Merge]] = []
        for node, batches, since in wanted:
            rows = sum(batch.rows for batch in batches)
            self.report.rows_merged += rows
            few, directory = self.settings.few(rows), self.directory_of(node)
            buckets, by_time = self.settings.buckets, isinstance(node, Waiting)
            if few and rows < self.settings.piece_rows and buckets > 1 and not apart(rows, buckets):
                layout = self.graph.form(node).layout
                whole = merge_together(batches, directory, since, layout, buckets, by_time)
                self.written.extend(file.path for files in whole.values() for file in files)
                found.append(whole)
                continue
            several: dict[int, list[str]] = {}
            merged = {bucket: files for batch in batches for bucket, files in batch.files.items()}
            for bucket, files in merged.items():
                all_ = [file.path for batch in batches for file in batch.files.get(bucket, ())]
                if every or len(all_) > len(files):
                    several[bucket] = all_
            merge = Merge(several, directory, since, self.settings.piece_rows, by_time)
            if several and not few:
                by_spark.append((len(found), merge))
            found.append(self._over(merged, self.local.merge(merge) if several and few else {}))
        if by_spark:  # all in one job
            made = self.spark_runner.merge([merge for _, merge in by_spark])
            for (place, _), written in zip(by_spark, made):
                found[place] = self._over(found[place], written)
        return found

    def _over(
        self, merged: Mapping[int, tuple[BatchFile, ...]],
        made: Mapping[int, tuple[BatchFile, ...]],
    ) -> Mapping[int, tuple[BatchFile, ...]]:
        """The files of a batch, with those that were written in the place of others."""
        self.written.extend(file.path for files in made.values() for file in files)
        return {bucket: files for bucket, files in {**merged, **made}.items() if files}

    def directory_of(self, node: Node) -> str:
        """A new directory for a node's files."""
        return self._directory(self.graph.program.name(node))

    def _directory(self, name: str) -> str:
        path = self.storage.directory(name)
        self.directories.append(path)
        return path


def _within(trace: Trace, since: Antichain, upper: Antichain) -> int | None:
    """The time that a trace's updates are advanced to, when it is processed up to a frontier.

    What was added late may know its past only from beyond its own frontier. Updates stay before
    that: within a step nothing may come to lie there, and readers that come later expect them.
    """
    at, until, begin = since.bound, upper.bound, trace.lower.bound
    if at is None or until is None or begin is None:
        return at
    return min(at, max(until - 1, begin))


def _still_due(batch: Batch, since: int | None) -> int:
    """How many rows of a batch are under times that have not passed."""
    return sum(len(still_due(storage.open_updates(path), since)) for _, path in batch.opened())
