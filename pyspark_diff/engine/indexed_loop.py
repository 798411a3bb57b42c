"""One loop in one step on the driver, all buckets at once, its state of the step at hand.

It gives what `pyspark_diff.engine.loop` gives, for loops of operators on plain numbers whose steps
are few rows: between operators rows are arrays and no tables, what an operator has to know of a key
is found once in a step, and each of the loop's arrangements gets one batch in the end instead of
one for each iteration. Where something does not fit, nothing has been done: `Unfit` is raised, and
the loop is run by the operators that take anything.
"""

from __future__ import annotations

import heapq
import os
import time
from typing import Callable, Iterable, Iterator, Mapping, Protocol, Sequence, TypeVar

import numpy as np

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
from pyspark_diff.kernels.updates import Int64, Updates, concat
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
from pyspark_diff.runners.view import View, opened
from pyspark_diff.runners.work import opened_by, opened_together, write_files
from pyspark_diff.spark.schema import DIFF, TIME
from pyspark_diff.times import Antichain, Coordinate
from pyspark_diff.trace import storage
from pyspark_diff.trace.batch import BatchFile
from pyspark_diff.trace.spine import Trace

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")

#: At most so many threads are at work in one loop.
MOST_SHARDS = 8
#: From so many new rows on a loop is done in parts, a range of keys each: its indices are. Several
#: threads work on these where an operator has so many rows at a coordinate.
SHARDED, THREADED = 2_000, 1_000
#: What an event takes in an index.
EVENT_BYTES = 40


class Around(Protocol):
    """What a loop is a part of: it knows what stands outside, and tells of iterations."""

    step: StepContext
    lower: Antichain
    upper: Antichain
    stalls: Stalls

    def outer(self, node: Arranged) -> View:
        """An arrangement outside of all loops."""

    def present_view(self, node: Arranged) -> View:
        """An arrangement outside of all loops, or one of the loop as it was before the step."""

    def log_progress(self, loop: LoopScope, at: Coordinate, changes: int) -> None:
        """Say how far a loop is that takes long."""

    def reported(self, iteration: IterationReport) -> None:
        """Tell that an iteration is over."""


#: The reason if the indices of a loop exceed the rows that the driver keeps in memory.
_TOO_MUCH = "the indices exceed the memory of a step"


class IndexedLoop:
    """The run of one loop in one step.

    Parameters
    ----------
    around : Around
    subgraph : Subgraph
    plan : Planned
    """

    def __init__(self, around: Around, subgraph: Subgraph, plan: Planned):
        self._around, self._subgraph, self._plan = around, subgraph, plan
        self._step, self._graph = around.step, around.step.graph
        self._most = self._step.settings.piece_rows
        self._agenda: list[int] = []
        #: What each node gives at the coordinate that is processed, in parts.
        self._given: dict[Node, list[Numbers]] = {}
        self._fresh: dict[Node, Parted] = {}
        #: What was given, or taken in, at each coordinate.
        self._parts: dict[Arranged, list[tuple[int, Parted]]] = {}
        self._back: dict[tuple[Node, int], list[Numbers]] = {}
        self._later: dict[tuple[Node, int], list[Numbers]] = {}
        #: Keys to be visited again, by shard.
        self._due: dict[tuple[Node, int], list[list[Int64]]] = {}
        #: Of each side of a join, and of the input of a replay; by shard.
        self._indices: dict[tuple[Reader, int], Sequence[KeyIndex]] = {}
        self._left: dict[Leave, list[Numbers]] = {leave: [] for leave in subgraph.leaves}
        #: The least and the greatest key of each shard.
        self._shards: list[tuple[int, int]] = [(PAST, MOST)]
        self._team = Team(1)
        #: That each node has taken.
        self._seconds: dict[Node, float] = {}

    def run(self) -> None:
        """Run the loop to rest.

        Raises
        ------
        Unfit
            Then nothing has been done.
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
        every: list[Int64] = []
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
            view = self._around.present_view(source)
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
            every.append(largest)
        if rows >= SHARDED:
            self._shards = shards_of(every, min(os.cpu_count() or 1, MOST_SHARDS))
        if not step.settings.few(rows):
            raise Unfit("the rows are more than the driver takes")

    def _note(self, at: int) -> None:
        if at not in self._agenda:
            heapq.heappush(self._agenda, at)

    def _iterate(self, at: int) -> None:
        started = began = time.perf_counter()
        self._given, self._fresh = {}, {}
        items: Sequence[Node] = self._subgraph.items  # type: ignore[assignment]
        for node in items:
            self._step.stop.check()
            self._step.inside = node, (at,)
            if isinstance(node, Enter):
                self._given[node] = self._enter(node) if at == 0 else []
            elif isinstance(node, EnterAt):
                self._given[node] = self._enter_at(node, at)
            elif isinstance(node, Variable):
                self._given[node] = self._variable(node, at)
            elif isinstance(node, Keyed):
                self._arrange(node, at)
            elif isinstance(node, Reader):
                given = self._replay(node, at) if node in self._plan.modes else self._join(node, at)
                later = self._later.pop((node, at), [])
                self._given[node] = together([*given, *later])
            now = time.perf_counter()
            self._seconds[node] = self._seconds.get(node, 0.0) + now - began
            began = now
        for leave, parts in self._left.items():
            parts += self._rows(leave.inputs[0])
        self._around.stalls.began(self._subgraph.loop)
        changes = sum(
            self._feed_back(node, at) for node in items if isinstance(node, Variable)
        )
        self._around.stalls.check(self._subgraph, (at,), self._around.present_view)
        self._around.log_progress(self._subgraph.loop, (at,), changes)
        self._around.reported(
            IterationReport(self._subgraph.loop.name, (at,), changes, time.perf_counter() - started)
        )

    def _rows(self, node: Node) -> list[Numbers]:
        """What a node gives at the coordinate that is processed."""
        if node not in self._given:
            found: list[Numbers] = []
            if isinstance(node, Concat):
                found = together(part for source in node.inputs for part in self._rows(source))
            elif isinstance(node, Linear):
                stage = self._plan.stages[node]
                found = together(map(stage, self._rows(node.inputs[0])))
            self._given[node] = found
        return self._given[node]

    def _enter(self, node: Enter) -> list[Numbers]:
        step = self._step
        reached = self._graph.feeds(node.inputs[0], step.emitted)
        feeds = step.gated(node, reached, self._around.upper)
        tables = [feed.within(t) for feed in feeds for t in step.local.tables(feed)]
        wanted = self._graph.wanted[node]
        found = []
        for table in tables:
            names = [name for name in table.column_names if name in wanted]
            if table.num_rows:
                found.append(numbers_of(table.select([*names, TIME, DIFF])))
        return together(found)

    def _enter_at(self, node: EnterAt, at: int) -> list[Numbers]:
        for rows in self._rows(node.inputs[0]) if at == 0 else ():
            numbers = rows.columns[node.at]
            for number in node.iterations(numbers)[0]:
                entering = rows.where(numbers == number)
                self._later.setdefault((node, number), []).append(entering)
                self._around.stalls.enters(node.loop, number)
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
        """Send a variable's result round; gives the number of updates that go."""
        found = self._rows(self._graph.program.results[node])
        if not found:
            return 0
        loop = node.loop
        if at + 1 >= loop.max_iterations:
            if not loop.stops:
                raise Unfit("the loop reached its limit of iterations")
            return 0
        if self._around.stalls.watched(loop, at):
            rows = whole(found)
            schema = node.schema.only(n for n in node.schema.names if n in rows.columns)
            self._around.stalls.goes(node, rows.table(schema, node.time_type.arrow))
        self._back.setdefault((node, at + 1), []).extend(found)
        self._note(at + 1)
        return sum(map(len, found))

    def _arrange(self, node: Keyed, at: int) -> None:
        found = self._rows(node.inputs[0])
        if found:
            names = self._plan.columns[node]
            self._take(node, at, self._parted([_columns_of(part, names) for part in found]))

    def _parted(self, parts: Sequence[Columns]) -> Parted:
        """Updates in order, equal ones as one, by shard."""
        def part_of(shard: tuple[int, int]) -> Sorted:
            return Sorted(*added_up(parts, *shard))

        rows = sum(keys.size for keys, *_ in parts)
        if rows >= THREADED and len(self._shards) > 1 and not is_table(parts):
            return self._team.each(part_of, self._shards)
        every = Sorted(*added_up(parts))
        stops = np.searchsorted(every.keys, [least for least, _ in self._shards[1:]]).tolist()
        return [every.between(*ends) for ends in zip([0, *stops], [*stops, len(every)])]

    def _take(self, node: Arranged, at: int, rows: Parted) -> None:
        """What an arrangement of the loop takes in at a coordinate."""
        if any(map(len, rows)):
            self._fresh[node] = rows
            self._parts.setdefault(node, []).append((at, rows))

    def _new(self, node: Arranged, at: int) -> Parted | None:
        """What is new of an arrangement at a coordinate."""
        if node.loop is None and at == 0 and node not in self._fresh:
            view = self._around.outer(node)
            held = opened(opened_together(view.new))
            if held:
                self._fresh[node] = self._parted(
                    [(u.key64, u.val64, u.times(), u.diffs()) for u in held]
                )
        return self._fresh.get(node)

    def _is_empty(self, node: Arranged) -> bool:
        """Whether an arrangement has nothing from before the step, nor from outside of the loop."""
        view = self._around.present_view(node)
        return not (view.old or view.new)

    def _index(self, node: Reader, number: int) -> Sequence[KeyIndex]:
        """What one side of an operator has, by key."""
        if (node, number) not in self._indices:
            view = self._around.present_view(node.arranged[number])
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
        # What is outside of the loop has all of the step in its index already: it is met last.
        order = ((0, 1), (1, 0)) if right.loop is not None else ((1, 0), (0, 1))
        # What is outside has nothing new at later coordinates, that would meet what is new now.
        both = left.loop is not None and right.loop is not None
        found: list[Numbers] = []
        ran = False
        for ours, theirs in order:
            alone = (node, theirs) not in self._indices and self._is_empty(node.arranged[theirs])
            rows = None if alone and not both else self._new(node.arranged[ours], at)
            if rows is None:
                continue
            ran = True
            self._count(node, rows_in=sum(map(len, rows)))
            if not alone:
                found += self._pairs(node, ours, rows, at)
            if both:
                for index, part in zip(self._index(node, ours), rows):
                    index.add(part.keys, part.values, part.times, part.diffs, at)
        self._count(node, runs=ran)
        return found

    def _count(self, node: Node, rows_in: int = 0, rows_out: int = 0, runs: int = 0) -> None:
        """What an operator did goes into the report."""
        report = self._step.report
        cost = report.costs.cost_of(node)
        for counted in (report, cost):
            counted.rows_in += rows_in
            counted.rows_out += rows_out
        report.local_runs += runs
        cost.driver_runs += runs

    def _each(
        self, do: Callable[[_Item], _Made], parts: Iterable[_Item], rows: int
    ) -> Iterable[_Made]:
        """What a function gives for each shard; side by side where that is worth it."""
        return self._team.each(do, parts) if rows >= THREADED else map(do, parts)

    def _is_too_much(self) -> bool:
        """Whether all indices together take more than the rows that are held at once may take."""
        every = [index for shards in self._indices.values() for index in shards]
        events = sum(int(index.counts[TOP]) for index in every)
        return events * EVENT_BYTES > self._most * ROW_BYTES

    def _pairs(self, node: Reader, ours: int, rows: Parted, at: int) -> Iterator[Numbers]:
        """What is new of one side, with all that the other side has: what belongs to now."""
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
                made = Numbers(columns, pairs[WHEN], pairs[PRODUCT])
                self._count(node, rows_out=len(made))
                if placed:
                    yield from self._placed(node, made, pairs[WHERE], at)
                else:
                    yield made

    def _parts_of(self, node: Reader, ours: int) -> dict[str, int]:
        """The part of a pair that each column of a join's result is."""
        kernel = node.kernel
        assert isinstance(kernel, JoinKernel)
        found = {}
        for name, (side, old) in zip(node.schema.names, kernel.columns):
            if name in self._graph.wanted[node]:
                key = self._plan.columns[node.arranged[side]][0]
                value = OURS if side == ours else THEIRS
                found[name] = OURS_KEY if old == key else value
        return found

    def _placed(self, node: Reader, rows: Numbers, where: Int64, at: int) -> Iterator[Numbers]:
        """The pairs that belong to the coordinate; the others are put off."""
        if where.min() == where.max() == at:
            yield rows
            return
        for code in _distinct(where):
            one = rows.where(np.flatnonzero(where == code))
            if code == at:
                yield one
            else:
                self._later.setdefault((node, code), []).append(one)
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

        def given_of(
            part: tuple[KeyIndex, Sorted, list[Int64]]
        ) -> tuple[Sorted, dict[int, Int64]] | None:
            index, rows, due = part
            every = np.sort(np.concatenate(due)) if due else rows.keys[:0]
            keys, starts = visits(rows.keys, every)
            made = replay_new(
                keys, starts, rows.values, rows.times, rows.diffs, index, at, mode
            )
            if made is None:
                return None
            given, again, when = made
            later = {code: again[when == code] for code in _distinct(when)} if again.size else {}
            return _by_function(node, given) if mode == BOTH else Sorted(*given), later

        count = sum(map(len, new)) + sum(keys.size for shard in due for keys in shard)
        rows: list[Sorted] = []
        for number, made in enumerate(self._each(given_of, zip(shards, new, due), count)):
            if made is None or self._is_too_much():
                raise Unfit(_TOO_MUCH)
            given, later = made
            for code, keys in later.items():
                self._due.setdefault((node, code), [[] for _ in shards])[number].append(keys)
                self._note(code)
            rows.append(given)
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
        """Seal a batch of each arrangement, and hand on what leaves the loop."""
        step, around = self._step, self._around
        batches = [
            (node, parts) for node, every in self._parts.items() if node.keeps
            for parts in batches_of(every)
        ]
        shards = range(len(self._shards))

        def made_of(part: tuple[int, int]) -> Updates:
            number, shard = part
            node, parts = batches[number]
            layout = self._graph.form(node).layout
            return sealed([(at, rows[shard]) for at, rows in parts], layout)

        def written(number: int) -> Mapping[int, tuple[BatchFile, ...]]:
            rows = concat([made[number, shard] for shard in shards])
            layout = self._graph.form(batches[number][0]).layout
            return write_files(places[number], rows, layout, step.settings.buckets)

        numbers = range(len(batches))
        parts = [(number, shard) for number in numbers for shard in shards]
        count = sum(len(rows) for _, every in batches for _, part in every for rows in part)
        made = dict(zip(parts, self._each(made_of, parts, count)))
        places = [step.directory_of(node) for node, _ in batches]
        traces: dict[Arranged, Trace] = {}
        for (node, _), files in zip(batches, self._each(written, numbers, count)):
            step.written.extend(file.path for made in files.values() for file in made)
            if files:
                trace = traces.get(node) or step.trace(node, around.lower)
                traces[node] = trace.joined(around.lower, around.upper, files)
        step.merge({node: (trace, [around.lower]) for node, trace in traces.items()})
        for leave, held in self._left.items():
            step.emitted[leave] = self._feed(leave, held)

    def _feed(self, leave: Leave, parts: list[Numbers]) -> tuple[Feed, ...]:
        if not parts:
            return ()
        names = [n for n in leave.schema.names if all(n in part.columns for part in parts)]
        schema = leave.schema.only(names)
        if 1 <= len(names) <= 2:
            # What came in one iteration often goes in the next, and is not worth telling anybody.
            keys, values, times, diffs = added_up([_columns_of(part, names) for part in parts])
            rows = Numbers(dict(zip(names, (keys, values))), times, diffs)
        else:
            rows = whole(parts)
        table = rows.table(schema, leave.time_type.arrow)
        source = UpdateRows(schema, table=table, rows=table.num_rows)
        return (Feed(source, until=self._around.upper),)


def _columns_of(rows: Numbers, names: Sequence[str]) -> Columns:
    """Rows as they are added up, where the key is the first of one or two columns."""
    key, *value = (rows.columns[name] for name in names)
    return key, value[0] if value else None, rows.time, rows.diff


def _distinct(codes: Int64) -> list[int]:
    """The coordinates at which something is: few, and most often small."""
    low, high = int(codes.min()), int(codes.max())
    if high - low < codes.size:
        return [low + code for code in np.flatnonzero(np.bincount(codes - low)).tolist()]
    return np.unique(codes).tolist()


def _by_function(node: Reader, given: Int64) -> Sorted:
    """What a user's function of how often a record stands makes of that."""
    kernel = node.kernel
    assert isinstance(kernel, ThresholdKernel)
    keys, old, times, new = given
    after, earlier = kernel.of(new), kernel.of(old)
    if any(part.size and np.abs(part.astype(float)).max() >= 2.0**61 for part in (after, earlier)):
        raise Unfit("the differences of a threshold may exceed 64 bits")
    change = after - earlier
    before = np.zeros_like(change)
    before[1:] = np.where(keys[1:] == keys[:-1], change[:-1], 0)
    change = change - before
    rows = np.flatnonzero((times != PAST) & (change != 0))
    return Sorted(keys[rows], np.zeros(rows.size, np.int64), times[rows], change[rows])
