"""The run of one loop in one step on the driver, on indices in memory, for all buckets at once.

Its result equals that of `pyspark_diff.engine.loop`, for loops of operators on plain numbers with
few rows per step. Rows between operators are arrays instead of tables. Each operator looks up a key
once per step, and each arrangement of the loop gets one batch instead of one per iteration. If a
value does not fit, the loop raises `Unfit` without any effect, and general operators run it.
"""

from __future__ import annotations

import heapq
import os
import time
from typing import Callable, Iterable, Iterator, Mapping, Protocol, Sequence, TypeVar

import numpy as np

from pyspark_diff import thresholds
from pyspark_diff.engine.context import StepContext
from pyspark_diff.engine.costs import NOTED
from pyspark_diff.engine.loop_batches import Parted, Sorted, batches_of, sealed
from pyspark_diff.engine.loop_plan import Planned
from pyspark_diff.engine.stalls import Stalls
from pyspark_diff.engine.state import IterationReport
from pyspark_diff.engine.subgraph import Subgraph
from pyspark_diff.kernels.indexed_join import OURS, OURS_KEY, PRODUCT, THEIRS, WHEN, WHERE, join_new
from pyspark_diff.kernels.indexed_replay import replay_new, visits
from pyspark_diff.kernels.key_index import MOST, PAST, READ, TOP, KeyIndex
from pyspark_diff.kernels.key_ranges import shards_of
from pyspark_diff.kernels.key_replay import BOTH
from pyspark_diff.kernels.updates import Int64, UpdateChunk, concat
from pyspark_diff.operators.join import JoinKernel
from pyspark_diff.operators.linear import Negate
from pyspark_diff.operators.loop import Enter, EnterAt, Leave, Variable
from pyspark_diff.operators.node import (
    Arranged,
    Concat,
    Keyed,
    Linear,
    LoopScope,
    Node,
    Reader,
)
from pyspark_diff.operators.threshold import ThresholdKernel
from pyspark_diff.runners.feed import Feed, UpdateRows
from pyspark_diff.runners.local import rows_of
from pyspark_diff.runners.numbers import (
    Columns,
    Numbers,
    Unfit,
    added_up,
    is_table,
    numbers_of,
    on_numbers,
    together,
    whole,
)
from pyspark_diff.runners.pieces import ROW_BYTES
from pyspark_diff.runners.threads import Team
from pyspark_diff.runners.view import ArrangementView, opened
from pyspark_diff.runners.work import opened_by, opened_together, write_files
from pyspark_diff.spark.schema import DIFF, TIME
from pyspark_diff.times import Antichain, Coordinate
from pyspark_diff.trace import storage
from pyspark_diff.trace.batch import BatchFile
from pyspark_diff.trace.spine import Trace

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

#: The size of an event in an index.
EVENT_BYTES = 40


class LoopOwner(Protocol):
    """The general run of a loop: it knows outside arrangements, and reports iterations."""

    step: StepContext
    lower: Antichain
    upper: Antichain
    stalls: Stalls

    def outer(self, node: Arranged) -> ArrangementView:
        """The view of an arrangement outside of all loops."""

    def present_view(self, node: Arranged) -> ArrangementView:
        """The view of an arrangement outside of all loops, or of the loop before the step."""

    def log_progress(self, loop: LoopScope, at: Coordinate, changes: int) -> None:
        """Write the progress of a long loop to the log."""

    def reported(self, iteration: IterationReport) -> None:
        """Report a finished iteration."""


#: The reason if the indices of a loop exceed the rows that the driver keeps in memory.
_TOO_MUCH = "the indices exceed the memory of a step"


class IndexedLoop:
    """The run of one loop in one step."""

    def __init__(self, owner: LoopOwner, subgraph: Subgraph, plan: Planned):
        self._owner, self._subgraph, self._plan = owner, subgraph, plan
        self._step, self._graph = owner.step, owner.step.graph
        self._most = self._step.settings.piece_rows
        self._agenda: list[int] = []
        #: The output of each node at the present coordinate, in parts.
        self._output: dict[Node, list[Numbers]] = {}
        self._fresh: dict[Node, Parted] = {}
        #: Output or input of arrangements at each coordinate.
        self._parts: dict[Arranged, list[tuple[int, Parted]]] = {}
        self._back: dict[tuple[Node, int], list[Numbers]] = {}
        self._later: dict[tuple[Node, int], list[Numbers]] = {}
        #: Keys for another visit, by shard.
        self._due: dict[tuple[Node, int], list[list[Int64]]] = {}
        #: Indices of the sides of joins, and of the inputs of replays, by shard.
        self._indices: dict[tuple[Reader, int], Sequence[KeyIndex]] = {}
        self._left: dict[Leave, list[Numbers]] = {leave: [] for leave in subgraph.leaves}
        #: The least and the greatest key of each shard.
        self._shards: list[tuple[int, int]] = [(PAST, MOST)]
        self._team = Team(1)
        #: The seconds of each node.
        self._seconds: dict[Node, float] = {}

    def run(self) -> None:
        """Run the loop to its fixed point.

        Raises
        ------
        Unfit
            Without any effect, if the loop needs general operators.
        """
        self._check_fit()
        self._team = Team(len(self._shards))
        try:
            self._note(0)
            while self._agenda:
                self._iterate(heapq.heappop(self._agenda))
            self._finish()
            self._count_all()
        finally:
            self._team.close()

    def _count_all(self) -> None:
        """Add the times, and the rows of older batches that the indices read, to the report."""
        report = self._step.report
        for (reader, _), shards in self._indices.items():
            read = sum(int(index.counts[READ]) for index in shards)
            report.costs.cost_of(reader).rows_read += read
            report.rows_read += read
        for node, seconds in self._seconds.items():
            if node in report.costs or seconds >= NOTED:
                report.costs.cost_of(node).seconds += seconds

    def _check_fit(self) -> None:
        """Raise `Unfit` if an input has other values than integers, or has many new rows."""
        step = self._step
        rows: float = 0
        largest_keys: list[Int64] = []
        for node in self._subgraph.items:
            if isinstance(node, Enter):
                feeds = [
                    *step.pending.get(node, ()), *self._graph.feeds(node.inputs[0], step.emitted)
                ]
                if any(
                    feed.source.passing
                    or not all(s.keeps_time_and_diff or isinstance(s, Negate) for s in feed.chain)
                    for feed in feeds
                ):
                    raise Unfit("an operator outside the loop emits rows that are read later")
                rows += rows_of(feeds)
        for source in self._plan.columns:
            view = self._owner.present_view(source)
            if view.both or (source.loop is not None and view.new):
                raise Unfit("an arrangement outside the loop has new rows of two kinds")
            if source.loop is None:
                rows += view.rows
            largest = np.empty(0, np.int64)
            for files in (view.old, view.new):
                for updates in opened(opened_together(files)):
                    if updates.words is None:
                        raise Unfit("the rows of a file are not integers")
                    if updates.key64.size > largest.size:
                        largest = updates.key64
            largest_keys.append(largest)
        if rows >= thresholds.current.loop_shard_rows_min:
            shards = min(os.cpu_count() or 1, thresholds.current.loop_shards_max)
            self._shards = shards_of(largest_keys, shards)
        if not step.settings.few(rows):
            raise Unfit("the rows are more than the driver takes")

    def _note(self, at: int) -> None:
        if at not in self._agenda:
            heapq.heappush(self._agenda, at)

    def _iterate(self, at: int) -> None:
        started = began = time.perf_counter()
        self._output, self._fresh = {}, {}
        items: Sequence[Node] = self._subgraph.items  # type: ignore[assignment]
        for node in items:
            self._step.stop.check()
            self._step.inside = node, (at,)
            if isinstance(node, Enter):
                self._output[node] = self._enter(node) if at == 0 else []
            elif isinstance(node, EnterAt):
                self._output[node] = self._enter_at(node, at)
            elif isinstance(node, Variable):
                self._output[node] = self._variable(node, at)
            elif isinstance(node, Keyed):
                self._arrange(node, at)
            elif isinstance(node, Reader):
                is_replay = node in self._plan.modes
                rows = self._replay(node, at) if is_replay else self._join(node, at)
                later = self._later.pop((node, at), [])
                self._output[node] = together([*rows, *later])
            now = time.perf_counter()
            self._seconds[node] = self._seconds.get(node, 0.0) + now - began
            began = now
        for leave, parts in self._left.items():
            parts += self._rows(leave.inputs[0])
        self._owner.stalls.began(self._subgraph.loop)
        changes = sum(
            self._feed_back(node, at) for node in items if isinstance(node, Variable)
        )
        self._owner.stalls.check(self._subgraph, (at,), self._owner.present_view)
        self._owner.log_progress(self._subgraph.loop, (at,), changes)
        self._owner.reported(
            IterationReport(self._subgraph.loop.name, (at,), changes, time.perf_counter() - started)
        )

    def _rows(self, node: Node) -> list[Numbers]:
        """The output of a node at the present coordinate."""
        if node not in self._output:
            rows: list[Numbers] = []
            if isinstance(node, Concat):
                rows = together(part for source in node.inputs for part in self._rows(source))
            elif isinstance(node, Linear):
                stage = self._plan.stages[node]
                rows = together(map(stage, self._rows(node.inputs[0])))
            self._output[node] = rows
        return self._output[node]

    def _enter(self, node: Enter) -> list[Numbers]:
        step = self._step
        reached = self._graph.feeds(node.inputs[0], step.emitted)
        feeds = step.gated(node, reached, self._owner.upper)
        tables = [feed.in_interval(t) for feed in feeds for t in step.local.tables(feed)]
        wanted = self._graph.wanted[node]
        numbers = []
        for table in tables:
            names = [name for name in table.column_names if name in wanted]
            if table.num_rows:
                numbers.append(numbers_of(table.select([*names, TIME, DIFF])))
        return together(numbers)

    def _enter_at(self, node: EnterAt, at: int) -> list[Numbers]:
        for rows in self._rows(node.inputs[0]) if at == 0 else ():
            numbers = rows.columns[node.at]
            for number in node.iterations(numbers)[0]:
                entering = rows.where(numbers == number)
                self._later.setdefault((node, number), []).append(entering)
                self._owner.stalls.enters(node.loop, number)
                if number:
                    self._note(number)
        return together(self._later.pop((node, at), []))

    def _variable(self, node: Variable, at: int) -> list[Numbers]:
        parts = self._back.pop((node, at), [])
        if at == 0:
            start = self._rows(node.inputs[0])
            parts = [*start, *parts]
            if start and node.loop.max_iterations > 1:
                less = on_numbers(Negate())
                assert less is not None
                self._back.setdefault((node, 1), []).extend(map(less, start))
                self._note(1)
        return together(parts)

    def _feed_back(self, node: Variable, at: int) -> int:
        """Feed a variable's result back, and return the number of updates."""
        feedback = self._rows(self._graph.program.results[node])
        if not feedback:
            return 0
        loop = node.loop
        if at + 1 >= loop.max_iterations:
            if not loop.stops:
                raise Unfit("the loop reached its limit of iterations")
            return 0
        if self._owner.stalls.watched(loop, at):
            rows = whole(feedback)
            schema = node.schema.only(n for n in node.schema.names if n in rows.columns)
            self._owner.stalls.goes(node, rows.table(schema, node.time_type.arrow))
        self._back.setdefault((node, at + 1), []).extend(feedback)
        self._note(at + 1)
        return sum(map(len, feedback))

    def _arrange(self, node: Keyed, at: int) -> None:
        rows = self._rows(node.inputs[0])
        if rows:
            names = self._plan.columns[node]
            self._take(node, at, self._parted([_columns_of(part, names) for part in rows]))

    def _parted(self, parts: Sequence[Columns]) -> Parted:
        """Consolidated updates in order, by shard."""
        def part_of(shard: tuple[int, int]) -> Sorted:
            return Sorted(*added_up(parts, *shard))

        rows = sum(keys.size for keys, *_ in parts)
        threaded = rows >= thresholds.current.loop_threaded_rows_min
        if threaded and len(self._shards) > 1 and not is_table(parts):
            return self._team.each(part_of, self._shards)
        whole_part = Sorted(*added_up(parts))
        stops = np.searchsorted(whole_part.keys, [least for least, _ in self._shards[1:]]).tolist()
        return [whole_part.between(*ends) for ends in zip([0, *stops], [*stops, len(whole_part)])]

    def _take(self, node: Arranged, at: int, rows: Parted) -> None:
        """Add the input of an arrangement of the loop at a coordinate."""
        if any(map(len, rows)):
            self._fresh[node] = rows
            self._parts.setdefault(node, []).append((at, rows))

    def _new(self, node: Arranged, at: int) -> Parted | None:
        """The new updates of an arrangement at a coordinate."""
        if node.loop is None and at == 0 and node not in self._fresh:
            view = self._owner.outer(node)
            updates = opened(opened_together(view.new))
            if updates:
                self._fresh[node] = self._parted(
                    [(u.key64, u.val64, u.times(), u.diffs()) for u in updates]
                )
        return self._fresh.get(node)

    def _is_empty(self, node: Arranged) -> bool:
        """Whether an arrangement has no updates from before the step or from outside of the loop.
        """
        view = self._owner.present_view(node)
        return not (view.old or view.new)

    def _index(self, node: Reader, number: int) -> Sequence[KeyIndex]:
        if (node, number) not in self._indices:
            view = self._owner.present_view(node.arranged[number])
            batches = [
                (bucket, storage.open_updates(path), files is view.old)
                for files in (view.old, view.new) for bucket, path in opened_by(files)
            ]
            buckets, narrow = self._step.settings.buckets, view.layout.narrow
            self._indices[node, number] = [
                KeyIndex(batches, buckets, narrow) for _ in self._shards
            ]
        return self._indices[node, number]

    def _join(self, node: Reader, at: int) -> list[Numbers]:
        left, right = node.arranged
        # The index of an outside arrangement has all its updates of the step, so it is read last.
        order = ((0, 1), (1, 0)) if right.loop is not None else ((1, 0), (0, 1))
        # An outside arrangement has no updates at later coordinates, so new rows need no index.
        both = left.loop is not None and right.loop is not None
        pairs: list[Numbers] = []
        ran = False
        for ours, theirs in order:
            alone = (node, theirs) not in self._indices and self._is_empty(node.arranged[theirs])
            rows = None if alone and not both else self._new(node.arranged[ours], at)
            if rows is None:
                continue
            ran = True
            self._count(node, rows_in=sum(map(len, rows)))
            if not alone:
                pairs += self._pairs(node, ours, rows, at)
            if both:
                for index, part in zip(self._index(node, ours), rows):
                    index.add(part.keys, part.values, part.times, part.diffs, at)
        self._count(node, runs=ran)
        return pairs

    def _count(self, node: Node, rows_in: int = 0, rows_out: int = 0, runs: int = 0) -> None:
        """Add the work of an operator to the report."""
        report = self._step.report
        cost = report.costs.cost_of(node)
        for counted in (report, cost):
            counted.rows_in += rows_in
            counted.rows_out += rows_out
        report.local_runs += runs
        cost.driver_runs += runs

    def _each(
        self, do: Callable[[_Item], _Result], parts: Iterable[_Item], rows: int
    ) -> Iterable[_Result]:
        """The results of a function for each shard, in parallel if the rows are worth it."""
        threaded = rows >= thresholds.current.loop_threaded_rows_min
        return self._team.each(do, parts) if threaded else map(do, parts)

    def _is_too_much(self) -> bool:
        """Whether all indices together exceed the memory for an operator's rows."""
        indices = [index for shards in self._indices.values() for index in shards]
        events = sum(int(index.counts[TOP]) for index in indices)
        return events * EVENT_BYTES > self._most * ROW_BYTES

    def _pairs(self, node: Reader, ours: int, rows: Parted, at: int) -> Iterator[Numbers]:
        """Pairs of one side's new rows with all rows of the other side, at the coordinate."""
        keyed = OURS_KEY in self._parts_of(node, ours).values()
        placed = node.arranged[1 - ours].loop is not None

        def pairs_of(part: tuple[KeyIndex, Sorted]) -> Int64 | None:
            index, new = part
            return join_new(
                new.keys, new.values, new.times, new.diffs, index, at, self._most, keyed, placed
            )

        count = sum(map(len, rows))
        for pairs in self._each(pairs_of, zip(self._index(node, 1 - ours), rows), count):
            if pairs is None or self._is_too_much():
                raise Unfit(_TOO_MUCH)
            if pairs.shape[1]:
                columns = {
                    name: pairs[which] for name, which in self._parts_of(node, ours).items()
                }
                joined = Numbers(columns, pairs[WHEN], pairs[PRODUCT])
                self._count(node, rows_out=len(joined))
                if placed:
                    yield from self._placed(node, joined, pairs[WHERE], at)
                else:
                    yield joined

    def _parts_of(self, node: Reader, ours: int) -> dict[str, int]:
        """The part of a pair for each column of a join's result."""
        kernel = node.kernel
        assert isinstance(kernel, JoinKernel)
        parts = {}
        for name, (side, old) in zip(node.schema.names, kernel.columns):
            if name in self._graph.wanted[node]:
                key = self._plan.columns[node.arranged[side]][0]
                value = OURS if side == ours else THEIRS
                parts[name] = OURS_KEY if old == key else value
        return parts

    def _placed(self, node: Reader, rows: Numbers, where: Int64, at: int) -> Iterator[Numbers]:
        """The pairs of the coordinate; pairs of other coordinates wait."""
        if where.min() == where.max() == at:
            yield rows
            return
        for code in _distinct(where):
            part = rows.where(np.flatnonzero(where == code))
            if code == at:
                yield part
            else:
                self._later.setdefault((node, code), []).append(part)
                self._note(code)

    def _replay(self, node: Reader, at: int) -> list[Numbers]:
        source = node.arranged[0]
        shards = self._index(node, 0)
        due = self._due.pop((node, at), [[] for _ in shards])
        new = self._new(source, at)
        if new is None:
            if not any(due):
                return []
            none = np.empty(0, np.int64)
            new = [Sorted(none, none, none, none)] * len(shards)
        mode = self._plan.modes[node]

        def replayed(
            part: tuple[KeyIndex, Sorted, list[Int64]]
        ) -> tuple[Sorted, dict[int, Int64]] | None:
            index, rows, due = part
            visited = np.sort(np.concatenate(due)) if due else rows.keys[:0]
            keys, starts = visits(rows.keys, visited)
            result = replay_new(
                keys, starts, rows.values, rows.times, rows.diffs, index, at, mode
            )
            if result is None:
                return None
            output, again, when = result
            later = {code: again[when == code] for code in _distinct(when)} if again.size else {}
            return _by_function(node, output) if mode == BOTH else Sorted(*output), later

        count = sum(map(len, new)) + sum(keys.size for shard in due for keys in shard)
        rows: list[Sorted] = []
        for number, shard in enumerate(self._each(replayed, zip(shards, new, due), count)):
            if shard is None or self._is_too_much():
                raise Unfit(_TOO_MUCH)
            output, later = shard
            for code, keys in later.items():
                self._due.setdefault((node, code), [[] for _ in shards])[number].append(keys)
                self._note(code)
            rows.append(output)
        self._count(
            node, rows_in=sum(map(len, new)), rows_out=sum(map(len, rows)), runs=1
        )
        self._take(node, at, rows)
        names = self._plan.columns[node]
        return together([
            Numbers(dict(zip(names, (part.keys, part.values))), part.times, part.diffs)
            for part in rows
        ])

    def _finish(self) -> None:
        """Write a batch of each arrangement, and emit the output of the loop."""
        step, owner = self._step, self._owner
        batches = [
            (node, parts) for node, parts_of in self._parts.items() if node.keeps
            for parts in batches_of(parts_of)
        ]
        shards = range(len(self._shards))

        def sealed_part(part: tuple[int, int]) -> UpdateChunk:
            number, shard = part
            node, parts = batches[number]
            layout = self._graph.form(node).layout
            return sealed([(at, rows[shard]) for at, rows in parts], layout)

        def written(number: int) -> Mapping[int, tuple[BatchFile, ...]]:
            rows = concat([sealed_parts[number, shard] for shard in shards])
            layout = self._graph.form(batches[number][0]).layout
            return write_files(places[number], rows, layout, step.settings.buckets)

        numbers = range(len(batches))
        parts = [(number, shard) for number in numbers for shard in shards]
        count = sum(len(rows) for _, parts_of in batches for _, part in parts_of for rows in part)
        sealed_parts = dict(zip(parts, self._each(sealed_part, parts, count)))
        places = [step.directory_of(node) for node, _ in batches]
        traces: dict[Arranged, Trace] = {}
        for (node, _), files in zip(batches, self._each(written, numbers, count)):
            step.written.extend(file.path for group in files.values() for file in group)
            if files:
                trace = traces.get(node) or step.trace(node, owner.lower)
                traces[node] = trace.joined(owner.lower, owner.upper, files)
        step.merge({node: (trace, [owner.lower]) for node, trace in traces.items()})
        for leave, outputs in self._left.items():
            step.emitted[leave] = self._feed(leave, outputs)

    def _feed(self, leave: Leave, parts: list[Numbers]) -> tuple[Feed, ...]:
        if not parts:
            return ()
        names = [n for n in leave.schema.names if all(n in part.columns for part in parts)]
        schema = leave.schema.only(names)
        if 1 <= len(names) <= 2:
            # A retraction often follows its insertion by one iteration, and both cancel out here.
            keys, values, times, diffs = added_up([_columns_of(part, names) for part in parts])
            rows = Numbers(dict(zip(names, (keys, values))), times, diffs)
        else:
            rows = whole(parts)
        table = rows.table(schema, leave.time_type.arrow)
        source = UpdateRows(schema, table=table, rows=table.num_rows)
        return (Feed(source, until=self._owner.upper),)


def _columns_of(rows: Numbers, names: Sequence[str]) -> Columns:
    """Rows as columns for consolidation: the key, and the value if there is one."""
    key, *value = (rows.columns[name] for name in names)
    return key, value[0] if value else None, rows.time, rows.diff


def _distinct(codes: Int64) -> list[int]:
    """The distinct coordinates, which are few and most often small."""
    low, high = int(codes.min()), int(codes.max())
    if high - low < codes.size:
        return [low + code for code in np.flatnonzero(np.bincount(codes - low)).tolist()]
    return np.unique(codes).tolist()


def _by_function(node: Reader, counts: Int64) -> Sorted:
    """The changes of a user's function of the number of equal records."""
    kernel = node.kernel
    assert isinstance(kernel, ThresholdKernel)
    keys, old, times, new = counts
    after, earlier = kernel.values_of(new), kernel.values_of(old)
    if any(part.size and np.abs(part.astype(float)).max() >= 2.0**61 for part in (after, earlier)):
        raise Unfit("the differences of a threshold may exceed 64 bits")
    change = after - earlier
    before = np.zeros_like(change)
    before[1:] = np.where(keys[1:] == keys[:-1], change[:-1], 0)
    change = change - before
    rows = np.flatnonzero((times != PAST) & (change != 0))
    return Sorted(keys[rows], np.zeros(rows.size, np.int64), times[rows], change[rows])
