"""The run of one loop in one step: it processes coordinates until no coordinate has work.

The agenda of a loop is the set of its iterations with work: feedback updates, pairs of a join at
that coordinate, or keys that must be visited again. The smallest iteration is next, for all times
of the step at once; an inner loop runs to its fixed point meanwhile. Iterations without updates
cost nothing.
"""

from __future__ import annotations

import heapq
import logging
import time
from dataclasses import replace
from typing import Callable, Container, Mapping, Sequence

import numpy as np
import pyarrow as pa

from pyspark_diff import thresholds, times
from pyspark_diff.engine.context import StepContext
from pyspark_diff.engine.fusion import Fusion, Visits, unknown
from pyspark_diff.engine.indexed_loop import IndexedLoop
from pyspark_diff.engine.oscillation import added_up
from pyspark_diff.engine.past import past_in
from pyspark_diff.engine.stalls import Stalls, inside
from pyspark_diff.engine.state import IterationReport, Watch
from pyspark_diff.engine.subgraph import Subgraph, arranged_in
from pyspark_diff.kernels.coordinates import pack, unpack
from pyspark_diff.kernels.layout import as_int64
from pyspark_diff.kernels.updates import joined
from pyspark_diff.operators.imported import Imported
from pyspark_diff.operators.inspect import Inspect
from pyspark_diff.operators.linear import Negate
from pyspark_diff.operators.loop import (
    Enter,
    EnterAt,
    Entering,
    Leave,
    Move,
    Moving,
    Variable,
)
from pyspark_diff.operators.node import Arranged, Keyed, LoopScope, Node, Reader, Shared
from pyspark_diff.runners.bilinear import Rest
from pyspark_diff.runners.feed import Feed, UpdateRows
from pyspark_diff.runners.local import rows_of
from pyspark_diff.fallbacks import INTEGERS, fall_back
from pyspark_diff.runners.numbers import Unfit
from pyspark_diff.runners.pieces import Given
from pyspark_diff.runners.read import Read
from pyspark_diff.runners.view import ArrangementView
from pyspark_diff.runners.work import BucketResult, files_of
from pyspark_diff.times import Antichain, Coordinate

_logger = logging.getLogger("pyspark_diff")


class Iteration:
    """The run of an outermost loop, and of the loops inside of it, in one step.

    Parameters
    ----------
    lowers : mapping of Node to Antichain
        The first frontier of the step's interval, for each node. They are equal, unless times are
        structs and some nodes are new, which begin with the past.
    upper : Antichain
        The last frontier of the interval.
    on_iteration : callable, optional
        Receives each `IterationReport` after the iteration.
    """

    def __init__(
        self, step: StepContext, subgraph: Subgraph, lowers: Mapping[Node, Antichain],
        upper: Antichain, on_iteration: Watch | None = None,
    ):
        self.step, self._graph = step, step.graph
        self._subgraph = subgraph
        self._lowers, self.upper = lowers, upper
        #: The first frontier of nodes that read arrangements outside of all loops.
        self.lower = lowers[subgraph.nodes()[0]]
        self._on_iteration = on_iteration
        #: Iterations with work, by the loop and the coordinate around it.
        self._agenda: dict[tuple[LoopScope, Coordinate], list[int]] = {}
        #: The present coordinate of each running loop.
        self._now: dict[LoopScope, Coordinate] = {}
        self._back: dict[tuple[Variable, Coordinate], list[Feed]] = {}
        self._later: dict[tuple[Node, Coordinate], list[Feed]] = {}
        #: Files of keys that are due, with numbers of their rows, by bucket.
        self._due: dict[tuple[Reader, Coordinate], dict[int, tuple[list[str], int]]] = {}
        #: Files with the updates of the present coordinate, and numbers of their rows.
        self._fresh: dict[Node, dict[int, tuple[str, ...]]] = {}
        self._rows: dict[Node, int] = {}
        self.stalls = Stalls(step)
        #: The times when the outermost loop began, and of its last line of log.
        self._began = self._logged = time.monotonic()
        #: Views of arrangements outside of all loops, in this step.
        self._outside: dict[Node, ArrangementView] = {}

    def run(self) -> None:
        """Run the loop to its fixed point."""
        for node in self._subgraph.nodes():
            if isinstance(node, Imported):
                for at, feed in past_in(self.step, node):
                    self._later.setdefault((node, at), []).append(feed)
                    self._note(node.loop, at)
        self._loop(self._subgraph, ())
        for node in arranged_in(self._subgraph):
            if node.keeps:
                trace = self.step.trace(node, self._lowers[node])
                since = self.step.compaction.since(
                    node, trace, self.step.state.frontiers, self.upper
                )
                self.step.traces[node] = replace(trace, upper=self.upper, since=since)

    def _loop(self, subgraph: Subgraph, base: Coordinate) -> None:
        """Run one loop to its fixed point, inside of one iteration of the loops around it."""
        loop = subgraph.loop
        left: dict[Leave, list[Feed]] = {leave: [] for leave in subgraph.leaves}
        if any(self._reached(node, base) for node in subgraph.outside):
            if self._indexed(subgraph):
                return
            self._note(loop, times.enter(base))
        agenda = self._agenda.get((loop, base), [])
        while agenda:
            at = (*base, heapq.heappop(agenda))
            self._iterate(subgraph, at)
            for leave in subgraph.leaves:
                output = self._feeds(leave.inputs[0], at)
                for stage in leave.stages(at[-1]):
                    output = tuple(feed.then(stage) for feed in output)
                left[leave].extend(output)
            agenda = self._agenda.get((loop, base), [])
        self._now.pop(loop, None)
        self._agenda.pop((loop, base), None)
        self.stalls.forget(loop)
        for leave, feeds in left.items():
            self.step.emitted[leave] = _together(feeds)

    def _indexed(self, subgraph: Subgraph) -> bool:
        """Run the loop on integers, and return whether that was possible."""
        step, plan = self.step, self._graph.on_numbers(subgraph)
        if plan is None or step.settings.runner == "spark" or step.settings.open:
            return False  # by the program or the settings, which `explain` shows
        pending, report, traces = dict(step.pending), replace(step.report), step.traces.copy()
        iterations = len(step.report.iterations)
        try:
            IndexedLoop(self, subgraph, plan).run()
            return True
        except Unfit as unfit:
            fall_back(subgraph.loop.name, INTEGERS, str(unfit))
            step.pending, step.report, step.traces = pending, report, traces
            del step.report.iterations[iterations:]
            return False
        finally:
            self.stalls.forget(subgraph.loop)

    def _note(self, loop: LoopScope | None, coordinate: Coordinate) -> None:
        """Put a coordinate on the agendas of its loop and of outer loops."""
        while loop is not None and self._now.get(loop) != coordinate:
            agenda = self._agenda.setdefault((loop, times.leave(coordinate)), [])
            if coordinate[-1] not in agenda:
                heapq.heappush(agenda, coordinate[-1])
            loop, coordinate = loop.parent, times.leave(coordinate)

    def _iterate(self, subgraph: Subgraph, at: Coordinate) -> None:
        started = time.perf_counter()
        self._now[subgraph.loop] = at
        own = [item for item in subgraph.items if not isinstance(item, Subgraph)]
        for node in own:
            self.step.emitted.pop(node, None)
            self._fresh.pop(node, None)
            self._rows.pop(node, None)
        self.step.forget(own, pack(at))
        for item in subgraph.items:
            if isinstance(item, Subgraph):
                self._loop(item, at)
            else:
                began = time.perf_counter()
                self._visit(item, at)
                self.step.spent(item, began)
        # No merge crosses the begin of the step: readers distinguish old from new updates.
        self.step.merge({
            node: (self.step.traces[node], [self._lowers[node]]) for node in own
            if node in self._fresh and isinstance(node, Arranged)
        }, thresholds.current.loop_merge_batches_min)
        self.stalls.began(subgraph.loop)
        changes = sum(
            self._feed_back(node, at) for node in own if isinstance(node, Variable)
        )
        self.stalls.check(subgraph, at, self.present_view)
        seconds = time.perf_counter() - started
        self.log_progress(subgraph.loop, at, changes)
        iteration = IterationReport(subgraph.loop.name, at, changes, seconds)
        self.reported(iteration)

    def reported(self, iteration: IterationReport) -> None:
        """Report a finished iteration."""
        self.step.report.iterations.append(iteration)
        if self._on_iteration is not None:
            self._on_iteration(iteration)

    def _visit(self, node: Node, at: Coordinate) -> None:
        step = self.step
        step.stop.check()
        step.inside = node, at
        if isinstance(node, Enter):
            if not any(at):
                reached = self._graph.feeds(node.inputs[0], step.emitted)
                step.emitted[node] = tuple(step.gated(node, reached, self.upper))
        elif isinstance(node, EnterAt):
            self._enter_at(node, at)
        elif isinstance(node, Imported):
            new = self._feeds(node.inputs[0], at)
            step.emitted[node] = (*self._later.pop((node, at), ()), *new)
        elif isinstance(node, Move):
            self._move(node, at)
        elif isinstance(node, Variable):
            self._variable(node, at)
        elif isinstance(node, Keyed):
            feeds = list(self._feeds(node.inputs[0], at))
            if feeds:
                lower = self._lowers[node]
                results = step.run_node(
                    node, step.trace(node, lower), lower, self.upper, feeds,
                    lambda: self._fusion(node, at), pack(at),
                )
                self._take(node, results)
        elif isinstance(node, Reader):
            self._reader(node, at)
        elif isinstance(node, Shared):
            step.share(node, _min_depth(at))
        elif isinstance(node, Inspect):
            step.shows.append((node, self._feeds(node, at), at))

    def _feeds(self, node: Node, at: Coordinate) -> tuple[Feed, ...]:
        """The output of a node of the loop at a coordinate."""
        return self._graph.feeds(node, self.step.emitted, _min_depth(at))

    def _enter_at(self, node: EnterAt, at: Coordinate) -> None:
        source = node.inputs[0]
        for feed in self._feeds(source, at) if at[-1] == 0 else ():
            stored = self.step.evaluation.evaluated(source, feed, self._graph.wanted[source])
            columns = [stored.in_interval(t)[node.at] for t in self.step.local.tables(stored)]
            if any(column.null_count for column in columns):
                raise node.loop.no_entry(None)
            numbers = [np.empty(0, np.int64), *(as_int64(joined([c])).to_numpy() for c in columns)]
            for number, rows in zip(*node.iterations(np.concatenate(numbers))):
                # The estimate of rows, since the feed reads all rows and selects these.
                part = replace(stored, source=replace(stored.source, rows=rows))
                then = (*at[:-1], number)
                self._put_later(node, then, part.then(Entering(node.at, number)))
                self.stalls.enters(node.loop, number)
        self.step.emitted[node] = tuple(self._later.pop((node, at), ()))

    def _move(self, node: Move, at: Coordinate) -> None:
        source, now = node.inputs[0], at[node.number]
        for feed in self._feeds(source, at):
            if node.at is None:
                if feed.source.rows != 0:
                    self._put_later(node, node.moved(at, now + node.by), feed)
                continue
            stored = self.step.evaluation.evaluated(source, feed, self._graph.wanted[source])
            columns = [stored.in_interval(t)[node.at] for t in self.step.local.tables(stored)]
            numbers = [np.empty(0, np.int64), *(as_int64(joined([c])).to_numpy() for c in columns)]
            to, counts = np.unique(np.maximum(np.concatenate(numbers), now), return_counts=True)
            for number, rows in zip(to.tolist(), counts.tolist()):
                part = replace(stored, source=replace(stored.source, rows=rows))
                stage = Moving(node.at, number, number == now)
                self._put_later(node, node.moved(at, number), part.then(stage))
        self.step.emitted[node] = tuple(self._later.pop((node, at), ()))

    def _put_later(self, node: Node, at: Coordinate, feed: Feed) -> None:
        """Keep a feed of a node until its coordinate is processed."""
        self._later.setdefault((node, at), []).append(feed)
        self._note(node.loop, at)

    def _variable(self, node: Variable, at: Coordinate) -> None:
        feeds = self._back.pop((node, at), [])
        if at[-1] == 0:
            start = self._start(node, at)
            if start and node.loop.max_iterations > 1:
                back = times.step(at)
                retractions = [feed.then(Negate()) for feed in start]
                self._back.setdefault((node, back), []).extend(retractions)
                self._note(node.loop, back)
            feeds = [*start, *feeds]
        elif at[-1] == 1 and feeds:
            feeds = self._settled(node, feeds)
        self.step.emitted[node] = tuple(feeds)

    def _settled(self, node: Variable, feeds: list[Feed]) -> list[Feed]:
        """The first feedback minus the initial value; often most of it cancels out."""
        rows = rows_of(feeds)
        evaluated = not any(feed.source.passing for feed in feeds)
        if not self.step.settings.few(rows) or not evaluated:
            return feeds  # the arrangement of the variable consolidates them
        tables = self.step.evaluation.tables(node, feeds)
        if not tables:
            return []
        table = pa.concat_tables(tables)
        return [_added_up(Feed(UpdateRows(node.schema, table=table), until=self.upper), table)]

    def _start(self, node: Variable, at: Coordinate) -> tuple[Feed, ...]:
        return self._feeds(node.inputs[0], at)

    def _feed_back(self, node: Variable, at: Coordinate) -> int:
        """Feed a variable's result back, and return the number of updates."""
        result = self._graph.program.results[node]
        feeds = [feed for feed in self._feeds(result, at) if feed.source.rows != 0]
        if not feeds:
            return 0
        following = times.step(at)
        if following[-1] >= node.loop.max_iterations:
            if not node.loop.stops:
                left = [*feeds, *self._back.get((node, following), ())]
                self.stalls.refuse(node, self.step.evaluation.tables(node, left), following)
            return 0
        if self.stalls.watched(node.loop, at[-1]):
            feeds = [feed for feed in self._settled(node, feeds) if feed.source.rows != 0]
            if not feeds:
                return 0
            on_driver = len(feeds) == 1 and not feeds[0].chain
            self.stalls.goes(node, feeds[0].source.table if on_driver else None)
        self._back.setdefault((node, following), []).extend(feeds)
        self._note(node.loop, following)
        return sum(feed.source.rows or 0 for feed in feeds)

    def log_progress(self, loop: LoopScope, at: Coordinate, changes: int) -> None:
        """Write the progress of a long loop to the log, from time to time."""
        now = time.monotonic()
        if now - self._logged >= thresholds.current.loop_log_seconds:
            self._logged = now
            _logger.info(
                "%s: iteration %d%s, %d changes, %.0f s", loop.name, at[-1], inside(at), changes,
                now - self._began,
            )

    def _reached(self, node: Node, at: Coordinate) -> bool:
        """Whether a node outside of a loop that begins has new output."""
        if isinstance(node, Arranged) and node.loop is None and node in self.step.traces:
            view = self.outer(node)
            if view.new or view.both:
                return True
        elif node in self._fresh:
            return True
        if node.loop is None:
            # Streams enter through a gate, and earlier updates may wait before it.
            return bool(self._graph.feeds(node, self.step.emitted)) or any(
                self.step.state.pending.get(enter)
                for enter in self._subgraph.items if isinstance(enter, Enter)
            )
        return bool(self._feeds(node, at))

    def outer(self, node: Arranged) -> ArrangementView:
        """The view of an arrangement outside of all loops, which does not change while they run."""
        if node not in self._outside:
            trace = self.step.traces[node]
            self._outside[node] = self.step.compaction.view(node, trace, self.lower, self.upper)
        return self._outside[node]

    def inner(self, node: Arranged) -> ArrangementView:
        """The present view of an arrangement of the loop."""
        lower = self._lowers[node]
        return self.step.compaction.view(node, self.step.trace(node, lower), lower, self.upper)

    def present_view(self, node: Arranged) -> ArrangementView:
        """The present view of an arrangement, inside or outside of the loop."""
        return self.outer(node) if node.loop is None else self.inner(node)

    def _view(self, node: Arranged, at: Coordinate, visited: bool = True) -> ArrangementView:
        """The view of an arrangement for its readers at a coordinate, or before its visit there."""
        first = not any(at[node.depth:])
        if node.loop is None:
            view = self.outer(node)
            return view.at_coordinate(view.new if first else {}, first)
        view = self.inner(node)
        return view.at_coordinate(self._fresh.get(node, {}) if first and visited else {}, False)

    def _reader(self, node: Reader, at: Coordinate) -> None:
        step = self.step
        first = {source: not any(at[source.depth:]) for source in node.arranged}
        due = self._due.pop((node, at), {})
        later = self._later.pop((node, at), [])
        fresh = any(
            first[source] and (source in self._fresh or source.loop is None)
            for source in node.arranged
        )
        if not (due or fresh):
            step.emitted[node] = tuple(later)
            return
        read = self._read(node, at, due)
        rows = sum(count for _, count in due.values())
        for source, view in zip(node.arranged, read.views):
            if first[source]:
                rows += view.rows if source.loop is None else self._rows.get(source, 0)
        results, rest = step.read(node, read, rows)
        self._take(node, results, later, rest)

    def _read(
        self, node: Reader, at: Coordinate, due: Mapping[int, tuple[list[str], int]],
        unvisited: Container[Node] = (),
    ) -> Read:
        """The work of a reader on present views of its arrangements at a coordinate; some of them
        may not have been visited there."""
        views = tuple(self._view(source, at, source not in unvisited) for source in node.arranged)
        return replace(
            self.step.read_of(node, views, self._lowers[node], self.upper),
            at=at, due={bucket: tuple(paths) for bucket, (paths, _) in due.items()},
            # At other coordinates the reader needs its output at this coordinate.
            keeps=node.keeps, since=None,
        )

    def _fusion(self, node: Keyed, at: Coordinate) -> Fusion:
        """The operators that run in the tasks of a node's job, in this and the next iteration."""
        loop, places = node.loop, self._graph.places
        assert loop is not None
        place = places[node]
        own = [other for other in self._graph.nodes if other.loop is loop]
        before = [other for other in own if places[other] < place]
        after = [other for other in own if places[other] > place]
        now = self._visits(
            at, {**self.step.emitted, **unknown(after)}, lambda n: places[n] < place
        )
        fusion = Fusion(self._graph, node, now)
        fusion.follow(now, after)
        then = times.step(at)
        if then[-1] < loop.max_iterations:
            reached = unknown(own)
            for other in own:
                if isinstance(other, Variable) and (other, then) not in self._back:
                    result = self._graph.program.results[other]
                    reached[other] = self._graph.feeds(result, now.emitted, now.min_depth)
                elif isinstance(other, Enter):
                    reached[other] = ()
                elif isinstance(other, EnterAt):
                    reached[other] = tuple(self._later.get((other, then), ()))
            # Arrangements of outer loops are not visited between this iteration and the next one.
            following = self._visits(then, reached, lambda n: n.depth < node.depth)
            fusion.follow(following, before)
        return fusion

    def _visits(
        self, at: Coordinate, emitted: dict[Node, tuple[Feed, ...]],
        is_final: Callable[[Arranged], bool],
    ) -> Visits:
        step = self.step
        return Visits(
            pack(at), _min_depth(at), emitted, is_final,
            lambda node, writers: self._read(node, at, self._due.get((node, at), {}), writers),
            lambda node: step.work_of(
                node, step.trace(node, self._lowers[node]), self._lowers[node], self.upper,
                pack(at),
            ),
        )

    def _take(
        self, node: Arranged, results: Sequence[BucketResult], more: Sequence[Feed] = (),
        rest: Mapping[int, list[Rest]] | None = None,
    ) -> None:
        """Add the results of a node at this coordinate, and its updates for later coordinates."""
        step, rest = self.step, dict(rest or {})
        now = pack(self._now[node.loop]) if node.loop is not None else 0
        step.emit(node, results, self.upper, rest.pop(now, ()))
        step.emitted[node] = (*step.emitted[node], *more)
        files = files_of(results)
        if files:
            lower = self._lowers[node]
            step.traces[node] = step.trace(node, lower).joined(lower, self.upper, files)
            self._fresh[node] = {b: tuple(f.path for f in parts) for b, parts in files.items()}
            self._rows[node] = sum(file.rows for parts in files.values() for file in parts)
        if not isinstance(node, Reader):
            return
        later: dict[int, list[Given]] = {code: [] for code in rest}
        for result in results:
            for code, output in result.later.items():
                later.setdefault(code, []).append(output)
            for code, due in result.due.items():
                at = unpack(code, node.depth)
                buckets = self._due.setdefault((node, at), {})
                paths, count = buckets.get(result.bucket, ([], 0))
                buckets[result.bucket] = (
                    [*paths, *(file.path for file in due)], count + sum(file.rows for file in due)
                )
                self._note(node.loop, at)
        for code, outputs in later.items():
            at = unpack(code, node.depth)
            feeds = step.output_feeds(node, outputs, self.upper, rest.get(code, ()))
            self._later.setdefault((node, at), []).extend(feeds)
            self._note(node.loop, at)


def _added_up(feed: Feed, table: pa.Table) -> Feed:
    """A feed with the consolidated rows of a table; rows of a type without equality do not change.
    """
    schema = feed.source.schema
    table = added_up(schema, table)
    return replace(feed, source=UpdateRows(schema, table=table, rows=table.num_rows))


def _min_depth(at: Coordinate) -> int:
    """The least number of loops around a node that emits at a coordinate: later fields are zero."""
    depth = len(at)
    while depth and at[depth - 1] == 0:
        depth -= 1
    return depth


def _together(feeds: Sequence[Feed]) -> tuple[Feed, ...]:
    """Feeds of many iterations, with one feed for feeds that differ only in their tables.

    A retraction often follows its insertion by one iteration, and both cancel out here.
    """
    chains: list[list[Feed]] = []
    for feed in feeds:
        for known in chains:
            same = len(known[0].chain) == len(feed.chain) and all(
                a is b for a, b in zip(known[0].chain, feed.chain)
            )
            same = same and (known[0].lower, known[0].upper) == (feed.lower, feed.upper)
            if same and known[0].source.table is not None and feed.source.table is not None:
                if known[0].source.table.schema.equals(feed.source.table.schema):
                    known.append(feed)
                    break
        else:
            chains.append([feed])
    combined = []
    for known in chains:
        if len(known) > 1:
            tables = [feed.source.table for feed in known if feed.source.table is not None]
            known = [_added_up(known[0], pa.concat_tables(tables))]
        combined.append(known[0])
    return tuple(combined)
