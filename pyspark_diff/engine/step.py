"""One step: updates between two frontiers pass through the graph, and the result is a new state.

A step is atomic: it reads one immutable `State` and returns another. After an error the old state
remains valid, and the step can run again. The context lists the files that the step wrote.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace
from operator import itemgetter
from typing import Container, Literal, Mapping, Sequence, cast

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_diff import thresholds
from pyspark_diff.engine.context import StepContext
from pyspark_diff.engine.fusion import Fusion, Visits, unknown
from pyspark_diff.engine.idle import IdleNodes
from pyspark_diff.engine.loop import Iteration
from pyspark_diff.engine.past import past_of
from pyspark_diff.engine.pending import consolidated
from pyspark_diff.engine.progress import progress
from pyspark_diff.engine.rewind import difference
from pyspark_diff.engine.state import Arrival, Delivery, Shown, State, Watch
from pyspark_diff.engine.subgraph import Item, Subgraph
from pyspark_diff.kernels.layout import as_int64
from pyspark_diff.kernels.memory import large_work
from pyspark_diff.operators.checked import CompleteKernel
from pyspark_diff.operators.imported import Imported
from pyspark_diff.operators.inspect import Inspect, in_order
from pyspark_diff.operators.loop import Completing, beyond
from pyspark_diff.operators.node import Arranged, Input, Keyed, Node, Reader, Shared
from pyspark_diff.operators.upsert import CLEAR, ChangesInput, UpsertKernel
from pyspark_diff.runners.feed import Feed, UpdateRows
from pyspark_diff.runners.read import Read
from pyspark_diff.runners.work import BucketResult, Work
from pyspark_diff.spark.schema import TIME
from pyspark_diff.times import Antichain, Coordinate, meet_all
from pyspark_diff.trace.arrangement import pieces
from pyspark_diff.trace.spine import Trace


class Step:
    """The execution of one step over a graph.

    Parameters
    ----------
    context : StepContext
        The context of this step only.
    on_iteration : callable, optional
        Receives each `IterationReport` after the iteration.
    consolidates : {"times", "all"}, optional
        Consolidate the pending updates first: the updates of each time, or all updates at the last
        complete time. Raises `Unchanged` if they are consolidated already.
    """

    def __init__(
        self, context: StepContext, on_iteration: Watch | None = None,
        consolidates: Literal["times", "all"] | None = None,
    ):
        self._context = context
        self._on_iteration = on_iteration
        self._consolidates = consolidates
        self._waiting: dict[Node, tuple[Arrival, ...]] = {}
        self._recent: dict[Node, tuple[Arrival, ...]] = {}
        self._idle: IdleNodes
        #: Earlier outputs for consumers that remain, and new outputs.
        self._before: Sequence[Shown] = ()
        self._shown: list[Shown] = []

    def run(
        self, arrivals: Mapping[Node, Sequence[Arrival]], upper: Mapping[Node, Antichain]
    ) -> State:
        """Process all updates up to frontiers of the inputs.

        Parameters
        ----------
        arrivals : mapping of Node to sequence of Arrival
            The arrivals since the last step.
        upper : mapping of Node to Antichain
            New frontiers of inputs; other inputs keep their frontiers.

        Returns
        -------
        State
            The state after the step.
        """
        context = self._context
        started = time.perf_counter()
        outbox = [delivery for delivery in context.state.outbox if not delivery.done]
        rows = sum(arrival.source.rows or 0 for new in arrivals.values() for arrival in new)
        large = large_work() if rows >= thresholds.current.large_step_rows_min else nullcontext()
        with progress(context, bars=self._on_iteration is None), large:
            outbox.extend(self.process(arrivals, upper))
        context.merge({
            node: self._settled(node, context.traces[node])
            for part in context.parts for node in part.arranged
            if node in context.traces and node not in self._idle
        })
        old = context.state
        new = {node: old.arrival_counts.get(node, 0) + len(new) for node, new in arrivals.items()}
        counts = {**old.arrival_counts, **new}
        context.report.seconds = time.perf_counter() - started
        return State(
            context.frontiers, context.traces, context.pending, self._waiting, counts,
            tuple(outbox), old.epoch + 1, context.report, frozenset(context.fed),
            context.graph, context.rewindable.floors, self._recent,
            context.rewindable.shown(self._before, self._shown), lagging=context.rewindable.nodes,
        )

    def process(
        self, arrivals: Mapping[Node, Sequence[Arrival]], upper: Mapping[Node, Antichain]
    ) -> list[Delivery]:
        """Run without compaction; returns the deliveries to consumers."""
        context = self._context
        context.begin(arrivals, upper)
        context.settle()
        if self._consolidates:
            least = consolidated(context, arrivals, self._consolidates == "all")
            arrivals = {**arrivals, **least}
            waiting = {**context.state.waiting, **dict.fromkeys(arrivals, ())}
            context.state = replace(context.state, waiting=waiting)
        self._waiting = dict(context.state.waiting)
        self._recent = dict(context.state.recent)
        self._idle = IdleNodes(context)
        frontiers, passive = context.frontiers, context.graph.passive
        work: list[tuple[int, Item]] = []
        for part in context.parts:
            work += part.items
        for done, item in sorted(work, key=itemgetter(0)):
            if item in passive:
                frontiers[item] = meet_all([frontiers[node] for node in item.inputs])
                continue
            context.stop.check()
            context.doing, context.inside, context.done = item, None, done
            if isinstance(item, Subgraph):
                self._loop(item)
                continue
            began = time.perf_counter()
            if isinstance(item, Input):
                self._release(item, arrivals.get(item, ()), context.upper[item])
            else:
                before = frontiers[item]
                frontiers[item] = meet_all([frontiers[node] for node in item.inputs])
                self._visit(item, before)
            context.spent(item, began)
        context.inside, context.done = None, len(context.graph.order)
        return self._deliveries()

    def _deliveries(self) -> list[Delivery]:
        context = self._context
        unshown: dict[tuple[Inspect, Coordinate], list[pa.Table]] = {}
        for output in context.unshown:
            unshown.setdefault((output.node, output.at), []).append(output.table)
        self._before, self._shown = context.state.shown, []
        if unshown:
            self._before = [old for old in self._before if (old.node, old.at) not in unshown]
        shown = []
        present = {(inspect, at) for inspect, _, at in context.shows}
        shows = [*context.shows]
        shows += [(inspect, (), at) for inspect, at in unshown if (inspect, at) not in present]
        # Outputs have no further readers, and their memory is freed after their sort.
        context.shows, context.emitted = [], {}
        shows.reverse()
        while shows:
            inspect, feeds, at = shows.pop()
            context.doing = inspect
            began = time.perf_counter()
            tables = context.evaluation.tables(inspect, feeds)
            feeds = ()
            if inspect in context.rewindable.nodes:
                self._shown += [Shown(inspect, at, table) for table in tables]
            if (inspect, at) in unshown:
                tables = difference(inspect.schema, [*tables, *unshown.pop((inspect, at))])
            if sum(table.num_rows for table in tables) >= thresholds.current.large_step_rows_min:
                tables = in_order(tables)  # here, while the step keeps memory
            context.spent(inspect, began)
            shown.append(Delivery(inspect, tables, at, context.state.epoch + 1))
        return shown

    def _release(self, node: Input, arrivals: Sequence[Arrival], upper: Antichain) -> None:
        """Emit the updates before the input's new frontier; later updates wait."""
        context = self._context
        feeds: list[Feed] = []
        rest: list[Arrival] = []
        released: list[Arrival] = []
        context.frontiers[node] = upper
        floor = context.rewindable.nodes.get(node)
        ahead = floor is not None and not upper.precedes(floor)
        for arrival in (*self._waiting.get(node, ()), *arrivals):
            source = arrival.source.as_listed()
            whole = not upper.less_equal(arrival.last)
            if not whole and source.time is not None:
                if context.settings.lasting:
                    source = context.evaluation.materialised(source)
                rest.append(replace(arrival, source=source))  # one time, not complete yet
                continue
            if not whole and isinstance(arrival.last, tuple):
                arrival, left = self._parted(arrival, source, upper)
                source, whole = arrival.source, True
                rest += [left] if left.source.rows else []
                if not source.rows:
                    continue
            again = not whole or ahead
            # If the files of a scan change, the step fails.
            again |= context.graph.readings[node] > 1 and source.scan is None
            if source.frame is not None and again:
                # Several reads need one evaluation: two evaluations may differ.
                source = context.evaluation.materialised(source)
            bound = arrival.until if whole else upper.bound
            read = source.only(context.graph.wanted[node])
            feeds.append(Feed(read, (), arrival.start, bound, until=upper))
            last = arrival.last if whole or bound is None else bound - 1
            released.append(Arrival(source, last, arrival.start, bound))
            if not whole:
                rest.append(Arrival(source, arrival.last, start=upper.bound))
        if isinstance(node, ChangesInput):
            feeds = self._cleared(node, feeds)
        context.emitted[node] = tuple(feeds)
        if feeds:
            context.fed.add(node)
        self._waiting[node] = tuple(rest)
        self._recent[node] = context.rewindable.recent(
            node, self._recent.get(node, ()), tuple(released), upper
        )

    def _parted(
        self, arrival: Arrival, source: UpdateRows, upper: Antichain
    ) -> tuple[Arrival, Arrival]:
        """The complete part of an arrival with struct times at a frontier, and the other part."""
        evaluation = self._context.evaluation
        if source.passing:
            source = evaluation.materialised(source)  # several reads need one evaluation
        names = source.schema.names[1 - len(cast(Coordinate, arrival.last)):]
        parts = []
        for complete in (True, False):
            stage = Completing(tuple(names), upper, complete)
            if source.table is None:
                part = evaluation.written_out(Feed(source, (stage,)), source.schema)
            else:
                table = stage.on_table(source.table)
                part = replace(source, table=table, rows=table.num_rows)
            parts.append(replace(arrival, source=part))
        return parts[0], parts[1]

    def _cleared(self, node: ChangesInput, feeds: Sequence[Feed]) -> list[Feed]:
        """The changes of single keys; changes of all keys go to the operator directly."""
        rest: list[Feed] = []
        moments: list[tuple[int, int]] = []
        for feed in feeds:
            table = feed.source.table
            if table is not None:
                clears = pc.equal(table[node.change], CLEAR)
                # Few: one for each call of `KeyedSession.replace`.
                updates = feed.in_interval(table.filter(clears))
                times = as_int64(updates[TIME].combine_chunks()).to_pylist()
                moments += zip(times, updates[node.number].to_pylist())
                table = table.filter(pc.invert(clears))
                source = replace(feed.source, table=table, rows=table.num_rows)
                feed = replace(feed, source=source)
            rest.append(feed)
        self._context.clears[node] = tuple(sorted(moments))
        return rest

    def _visit(self, node: Node, before: Antichain) -> None:
        context = self._context
        if isinstance(node, Keyed):
            self._keyed(node, before)
        elif isinstance(node, Reader):
            self._reader(node, before)
        elif isinstance(node, Imported):
            new = context.graph.feeds(node.inputs[0], context.emitted)
            context.emitted[node] = (*past_of(context, node), *new)
        elif isinstance(node, Shared):
            context.share(node)
        elif isinstance(node, Inspect):
            context.shows.append((node, context.graph.feeds(node, context.emitted), ()))

    def _loop(self, subgraph: Subgraph) -> None:
        context = self._context
        nodes = subgraph.nodes()
        before = {node: context.frontiers[node] for node in nodes}
        after = meet_all(context.frontiers[node] for node in subgraph.outside)
        context.frontiers.update(dict.fromkeys(nodes, after))
        Iteration(context, subgraph, before, after, self._on_iteration).run()

    def _keyed(self, node: Keyed, lower: Antichain) -> None:
        context = self._context
        upper = context.frontiers[node]
        reached = context.graph.feeds(node.inputs[0], context.emitted)
        if not reached and not context.pending.get(node) and self._idle.add(node, lower):
            return
        now = context.gated(node, reached, upper)
        trace = context.trace(node, lower)
        results: list[BucketResult] = []
        if now:
            results = context.run_node(
                node, trace, lower, upper, now, lambda: self._fusion(node)
            )
            pending = context.pending.get(node)
            if not (pending or any(map(_has_updates, results))) and (
                self._idle.add(node, lower)
            ):
                return
        context.emit(node, results, upper)
        if node.keeps:
            context.traces[node] = context.extended(node, trace, results, upper)
        if isinstance(node.kernel, CompleteKernel) and (now or upper != lower):
            layout = context.graph.form(node).layout
            updates = pieces(context.traces[node])
            node.kernel.check(updates, layout, lambda parts: ~beyond(upper, parts))

    def _fusion(self, node: Keyed) -> Fusion:
        """The operators that run in the tasks of a node's job."""
        context = self._context
        graph, places = context.graph, context.graph.places
        place = places[node]
        after = graph.nodes[place + 1:]
        uppers: dict[Node, Antichain] = {}

        def upper_of(other: Node) -> Antichain:
            if places[other] <= place:
                return context.frontiers[other]
            if other not in uppers:
                uppers[other] = meet_all(map(upper_of, other.inputs))
            return uppers[other]

        def read_of(reader: Reader, writers: Container[Node]) -> Read | None:
            lower, upper = context.frontiers[reader], upper_of(reader)
            for source in reader.arranged:
                begin = context.trace(source, context.frontiers[source]).upper
                # Else some or all of the job's updates belong to another interval of the reader.
                if source in writers and not (
                    lower.precedes(begin) and upper_of(source).precedes(upper)
                ):
                    return None
            return self._read(reader, lower, upper)

        def work_of(other: Keyed) -> Work:
            lower = context.frontiers[other]
            return context.work_of(other, context.trace(other, lower), lower, upper_of(other))

        visits = Visits(
            0, 0, {**context.emitted, **unknown(after)},
            lambda source: places[source] < place, read_of, work_of,
        )
        fusion = Fusion(graph, node, visits)
        fusion.follow(visits, [other for other in after if other.loop is None])
        return fusion

    def _read(self, node: Reader, lower: Antichain, upper: Antichain) -> Read:
        """The work of a reader on present views of its arrangements."""
        context = self._context
        views = tuple(
            context.compaction.view(
                source, context.trace(source, context.frontiers[source]), lower, upper
            )
            for source in node.arranged
        )
        read = context.read_of(node, views, lower, upper)
        if isinstance(node.kernel, UpsertKernel):
            (changes,) = node.arranged[0].inputs
            read = replace(read, kernel=replace(node.kernel, clears=context.clears[changes]))
        return read

    def _reader(self, node: Reader, lower: Antichain) -> None:
        context = self._context
        if self._idle.reads_nothing(node) and self._idle.add(node, lower):
            return
        upper = context.frontiers[node]
        read = self._read(node, lower, upper)
        rows = sum(view.rows for view in read.views)
        if read.kernel.visits_all:
            rows += context.trace(node, lower).rows
        rows += sum(read.due_rows.values())
        results, rest = context.read(node, read, rows)
        if not (rest or any(map(_has_updates, results))) and self._idle.add(node, lower):
            return
        context.emit(node, results, upper, rest.get(0, ()))
        if node.keeps:
            trace = context.trace(node, lower)
            context.traces[node] = context.extended(node, trace, results, upper)

    def _settled(self, node: Arranged, trace: Trace) -> tuple[Trace, Sequence[Antichain]]:
        """The trace after all readers have read it, and the frontiers that no merge may cross."""
        context = self._context
        upper = context.frontiers[node]
        if not context.compaction.needed(node, context.frontiers, upper):
            return Trace(trace.lower, trace.upper, trace.upper), ()
        since = context.compaction.since(node, trace, context.frontiers, upper)
        brought = replace(trace, since=since)
        return brought, context.compaction.fences(node, context.frontiers)


def _has_updates(result: BucketResult) -> bool:
    """Whether an operator has new updates in its arrangement or its output."""
    return bool(
        result.files or result.together or result.output.rows or result.rest or result.later
        or result.due
    )
