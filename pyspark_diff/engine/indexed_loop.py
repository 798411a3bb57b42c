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
from dataclasses import dataclass
from typing import Callable, Iterator, Protocol, Sequence, TypeVar

import numpy as np
import pyarrow as pa

from pyspark_diff.engine.context import StepContext
from pyspark_diff.engine.loop_plan import Planned
from pyspark_diff.engine.state import IterationReport
from pyspark_diff.engine.subgraph import Subgraph
from pyspark_diff.kernels.consolidate import consolidate
from pyspark_diff.kernels.indexed_join import OURS, OURS_KEY, PRODUCT, THEIRS, WHEN, WHERE, join_new
from pyspark_diff.kernels.indexed_replay import BOTH, replay_new, visits
from pyspark_diff.kernels.key_index import PAST, TOP, KeyIndex
from pyspark_diff.kernels.layout import Layout
from pyspark_diff.kernels.updates import Int64, Updates
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
from pyspark_diff.runners.local import THREADED, rows_of
from pyspark_diff.runners.numbers import (
    Numbers,
    Unfit,
    added_up,
    numbers_of,
    on_numbers,
    together,
)
from pyspark_diff.runners.pieces import ROW_BYTES
from pyspark_diff.runners.threads import side_by_side
from pyspark_diff.runners.view import View, opened
from pyspark_diff.runners.work import opened_by, opened_together, write_files
from pyspark_diff.spark.schema import DIFF, TIME
from pyspark_diff.times import Antichain, Coordinate
from pyspark_diff.trace import storage

Made = TypeVar("Made")

#: At most so many threads are at work in one loop.
MOST_SHARDS = 8
#: What an event takes in an index.
EVENT_BYTES = 40


@dataclass(frozen=True)
class Sorted:
    """Updates of one arrangement at one coordinate: consolidated, by key, value and time."""

    keys: Int64
    values: Int64
    times: Int64
    diffs: Int64

    def __len__(self) -> int:
        return int(self.keys.size)


@dataclass(frozen=True)
class Shards:
    """An index in parts, a range of keys each, which several threads read and change.

    Parameters
    ----------
    indices : sequence of KeyIndex
    bounds : ndarray of int64
        The first key of each but the first.
    """

    indices: Sequence[KeyIndex]
    bounds: Int64

    @property
    def rows(self) -> int:
        """How many updates it holds, or has held and not let go yet."""
        return sum(int(index.counts[TOP]) for index in self.indices)

    def parts(self, rows: Sorted) -> Iterator[tuple[KeyIndex, Sorted]]:
        """Updates by the shard that their keys are in."""
        if len(self.indices) == 1:
            yield self.indices[0], rows
            return
        stops = [0, *np.searchsorted(rows.keys, self.bounds).tolist(), len(rows)]
        for index, begin, end in zip(self.indices, stops, stops[1:]):
            one = slice(begin, end)
            yield index, Sorted(rows.keys[one], rows.values[one], rows.times[one], rows.diffs[one])

    def within(self, index: KeyIndex, keys: Int64) -> Int64:
        """Those of some keys, which are in order, that are in a shard."""
        number = self.indices.index(index)
        stops = [0, *np.searchsorted(keys, self.bounds).tolist(), keys.size]
        return keys[stops[number]:stops[number + 1]]

    def each(
        self, do: Callable[[tuple[KeyIndex, Sorted]], Made],
        parts: Iterator[tuple[KeyIndex, Sorted]], rows: int,
    ) -> Iterator[Made]:
        """What a function gives for each shard; side by side where that is worth it."""
        return side_by_side(do, parts, len(self.indices) if rows >= THREADED else 1)


class Around(Protocol):
    """What a loop is a part of: it knows what stands outside, and tells of iterations."""

    step: StepContext
    lower: Antichain
    upper: Antichain
    #: What went round after the last iteration of each loop.
    went: dict[LoopScope, list[tuple[Variable, pa.Table]] | None]

    def outer(self, node: Arranged) -> View:
        """An arrangement outside of all loops."""

    def inner(self, node: Arranged) -> View:
        """An arrangement of the loop as it was before the step."""

    def enters(self, loop: LoopScope, iteration: int) -> None:
        """Note an iteration in which something enters."""

    def watched(self, loop: LoopScope, iteration: int) -> bool:
        """Whether what goes round after an iteration is looked at."""

    def watch(self, subgraph: Subgraph, at: Coordinate) -> None:
        """Refuse a loop that swings."""

    def tell(self, loop: LoopScope, at: Coordinate, changes: int) -> None:
        """Say how far a loop is that takes long."""

    def reported(self, iteration: IterationReport) -> None:
        """Tell that an iteration is over."""


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
        #: What each node gives at the coordinate that is processed.
        self._given: dict[Node, Numbers | None] = {}
        self._fresh: dict[Node, Sorted] = {}
        #: What was given, or taken in, at each coordinate.
        self._parts: dict[Arranged, list[tuple[int, Sorted]]] = {}
        self._back: dict[tuple[Node, int], list[Numbers]] = {}
        self._later: dict[tuple[Node, int], list[Numbers]] = {}
        self._due: dict[tuple[Node, int], list[Int64]] = {}
        #: Of each side of a join, and of the input of a replay.
        self._indices: dict[tuple[Reader, int], Shards] = {}
        self._left: dict[Leave, list[Numbers]] = {leave: [] for leave in subgraph.leaves}
        #: Where the keys of a shard end, if there are several.
        self._bounds = np.empty(0, np.int64)

    def run(self) -> None:
        """Run the loop to rest.

        Raises
        ------
        Unfit
            Then nothing has been done.
        """
        if not self._fits():
            raise Unfit
        self._note(0)
        while self._agenda:
            self._iterate(heapq.heappop(self._agenda))
        self._finish()

    def _fits(self) -> bool:
        """Whether all that is read is numbers, and what is new of it few rows."""
        step = self._step
        rows: float = 0
        largest = np.empty(0, np.int64)
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
                    return False
                rows += rows_of(feeds)
        for source in self._plan.columns:
            view = self._view(source)
            if view.both or (source.loop is not None and view.new):
                return False
            if source.loop is None:
                rows += view.rows
            for files in (view.old, view.new):
                for updates in opened(opened_together(files)):
                    if updates.words is None:
                        return False
                    if updates.key64.size > largest.size:
                        largest = updates.key64
        cores = min(os.cpu_count() or 1, MOST_SHARDS)
        if rows >= THREADED and largest.size > cores:
            # Its keys lie as those of others do, more or less: they are of the same kind.
            self._bounds = largest[[largest.size * part // cores for part in range(1, cores)]]
        return step.settings.few(rows)

    def _view(self, node: Arranged) -> View:
        if node.loop is None:
            return self._around.outer(node)
        return self._around.inner(node)

    def _note(self, at: int) -> None:
        if at not in self._agenda:
            heapq.heappush(self._agenda, at)

    def _iterate(self, at: int) -> None:
        started = time.perf_counter()
        self._given, self._fresh = {}, {}
        items: Sequence[Node] = self._subgraph.items  # type: ignore[assignment]
        for node in items:
            self._step.stop.check()
            self._step.inside = node, (at,)
            if isinstance(node, Enter):
                self._given[node] = self._enter(node) if at == 0 else None
            elif isinstance(node, EnterAt):
                self._given[node] = self._enter_at(node, at)
            elif isinstance(node, Variable):
                self._given[node] = self._variable(node, at)
            elif isinstance(node, Keyed):
                self._arrange(node, at)
            elif isinstance(node, Reader):
                given = self._replay(node, at) if node in self._plan.modes else self._join(node, at)
                later = self._later.pop((node, at), [])
                self._given[node] = together([given, *later])
        for leave, parts in self._left.items():
            found = self._rows(leave.inputs[0])
            if found is not None:
                parts.append(found)
        self._around.went[self._subgraph.loop] = []
        changes = sum(
            self._feed_back(node, at) for node in items if isinstance(node, Variable)
        )
        self._around.watch(self._subgraph, (at,))
        self._around.tell(self._subgraph.loop, (at,), changes)
        self._around.reported(
            IterationReport(self._subgraph.loop.name, (at,), changes, time.perf_counter() - started)
        )

    def _rows(self, node: Node) -> Numbers | None:
        """What a node gives at the coordinate that is processed."""
        if node not in self._given:
            found = None
            if isinstance(node, Concat):
                found = together([self._rows(source) for source in node.inputs])
            elif isinstance(node, Linear):
                found = self._rows(node.inputs[0])
                if found is not None:
                    found = self._plan.stages[node](found)
            self._given[node] = found
        return self._given[node]

    def _enter(self, node: Enter) -> Numbers | None:
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

    def _enter_at(self, node: EnterAt, at: int) -> Numbers | None:
        rows = self._rows(node.inputs[0]) if at == 0 else None
        if rows is not None:
            numbers = rows.columns[node.at]
            for number in node.iterations(numbers)[0]:
                self._later[node, number] = [rows.where(numbers == number)]
                self._around.enters(node.loop, number)
                if number:
                    self._note(number)
        return together(self._later.pop((node, at), []))

    def _variable(self, node: Variable, at: int) -> Numbers | None:
        parts = self._back.pop((node, at), [])
        if at == 0:
            start = self._rows(node.inputs[0])
            if start is not None:
                parts = [start, *parts]
                if node.loop.max_iterations > 1:
                    less = on_numbers(Negate())
                    assert less is not None
                    self._back.setdefault((node, 1), []).append(less(start))
                    self._note(1)
        return together(parts)

    def _feed_back(self, node: Variable, at: int) -> int:
        """Send a variable's result round; gives the number of updates that go."""
        found = self._rows(self._graph.program.results[node])
        if found is None:
            return 0
        loop = node.loop
        if at + 1 >= loop.max_iterations:
            if not loop.stops:
                raise Unfit  # the error tells of updates that still go round, if there are any
            return 0
        if self._around.watched(loop, at):
            schema = node.schema.only(n for n in node.schema.names if n in found.columns)
            went = self._around.went[loop]
            assert went is not None
            went.append((node, found.table(schema, node.time_type.arrow)))
        self._back.setdefault((node, at + 1), []).append(found)
        self._note(at + 1)
        return len(found)

    def _arrange(self, node: Keyed, at: int) -> None:
        found = self._rows(node.inputs[0])
        if found is not None:
            key, *value = (found.columns[name] for name in self._plan.columns[node])
            values = value[0] if value else np.zeros(len(found), np.int64)
            self._take(node, at, Sorted(*added_up(key, values, found.time, found.diff)))

    def _take(self, node: Arranged, at: int, rows: Sorted) -> None:
        """What an arrangement of the loop takes in at a coordinate."""
        if len(rows):
            self._fresh[node] = rows
            self._parts.setdefault(node, []).append((at, rows))

    def _new(self, node: Arranged, at: int) -> Sorted | None:
        """What is new of an arrangement at a coordinate."""
        if node.loop is None and at == 0 and node not in self._fresh:
            view = self._around.outer(node)
            held = opened(opened_together(view.new))
            if held:
                values = [np.zeros(len(u), np.int64) if u.val64 is None else u.val64 for u in held]
                self._fresh[node] = Sorted(*added_up(
                    np.concatenate([u.key64 for u in held]), np.concatenate(values),
                    np.concatenate([u.times() for u in held]),
                    np.concatenate([u.diffs() for u in held]),
                ))
        return self._fresh.get(node)

    def _is_empty(self, node: Arranged) -> bool:
        """Whether an arrangement has nothing from before the step, nor from outside of the loop."""
        view = self._view(node)
        return not (view.old or view.new)

    def _index(self, node: Reader, number: int) -> Shards:
        """What one side of an operator has, by key."""
        if (node, number) not in self._indices:
            view = self._view(node.arranged[number])
            batches = [
                (bucket, storage.open_updates(path), files is view.old)
                for files in (view.old, view.new) for bucket, path in opened_by(files)
            ]
            buckets, narrow = self._step.settings.buckets, view.layout.narrow
            shards = [
                KeyIndex(batches, buckets, narrow) for _ in range(self._bounds.size + 1)
            ]
            self._indices[node, number] = Shards(shards, self._bounds)
        return self._indices[node, number]

    def _join(self, node: Reader, at: int) -> Numbers | None:
        left, right = node.arranged
        # What is outside of the loop has all of the step in its index already: it is met last.
        order = ((0, 1), (1, 0)) if right.loop is not None else ((1, 0), (0, 1))
        # What is outside has nothing new at later coordinates, that would meet what is new now.
        both = left.loop is not None and right.loop is not None
        found: list[Numbers] = []
        for ours, theirs in order:
            alone = (node, theirs) not in self._indices and self._is_empty(node.arranged[theirs])
            rows = None if alone and not both else self._new(node.arranged[ours], at)
            if rows is None:
                continue
            self._step.report.rows_in += len(rows)
            if not alone:
                found += self._pairs(node, ours, rows, at)
            if both:
                for index, part in self._index(node, ours).parts(rows):
                    index.add(part.keys, part.values, part.times, part.diffs, at)
        self._step.report.local_runs += bool(found)
        return together(found)

    def _is_too_much(self) -> bool:
        """Whether all indices together take more than the rows that are held at once may take."""
        events = sum(shards.rows for shards in self._indices.values())
        return events * EVENT_BYTES > self._most * ROW_BYTES

    def _pairs(self, node: Reader, ours: int, rows: Sorted, at: int) -> Iterator[Numbers]:
        """What is new of one side, with all that the other side has: what belongs to now."""
        shards = self._index(node, 1 - ours)
        keyed = OURS_KEY in self._parts_of(node, ours).values()
        placed = node.arranged[1 - ours].loop is not None

        def pairs_of(part: tuple[KeyIndex, Sorted]) -> Int64 | None:
            index, new = part
            return join_new(
                new.keys, new.values, new.times, new.diffs, index, at, self._most, keyed, placed
            )

        for pairs in shards.each(pairs_of, shards.parts(rows), len(rows)):
            if pairs is None or self._is_too_much():
                raise Unfit
            if pairs.shape[1]:
                columns = {
                    name: pairs[which] for name, which in self._parts_of(node, ours).items()
                }
                made = Numbers(columns, pairs[WHEN], pairs[PRODUCT])
                self._step.report.rows_out += len(made)
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

    def _replay(self, node: Reader, at: int) -> Numbers | None:
        source = node.arranged[0]
        due = self._due.pop((node, at), [])
        new = self._new(source, at)
        if new is None:
            if not due:
                return None
            none = np.empty(0, np.int64)
            new = Sorted(none, none, none, none)
        mode, shards = self._plan.modes[node], self._index(node, 0)
        every = np.sort(np.concatenate(due)) if due else new.keys[:0]

        def given_of(part: tuple[KeyIndex, Sorted]) -> tuple[Int64, Int64, Int64] | None:
            index, rows = part
            keys, starts = visits(rows.keys, shards.within(index, every))
            return replay_new(
                keys, starts, rows.values, rows.times, rows.diffs, index, at, mode
            )

        found: list[Sorted] = []
        for made in shards.each(given_of, shards.parts(new), len(new) + every.size):
            if made is None or self._is_too_much():
                raise Unfit
            given, again, when = made
            if again.size:
                for code in _distinct(when):
                    self._due.setdefault((node, code), []).append(again[when == code])
                    self._note(code)
            found.append(_by_function(node, given) if mode == BOTH else Sorted(*given))
        rows = found[0] if len(found) == 1 else Sorted(*(
            np.concatenate([getattr(one, name) for one in found])
            for name in ("keys", "values", "times", "diffs")
        ))
        self._step.report.rows_in += len(new)
        self._step.report.local_runs += 1
        if not len(rows):
            return None
        self._step.report.rows_out += len(rows)
        self._take(node, at, rows)
        names = self._plan.columns[node]
        columns = dict(zip(names, (rows.keys, rows.values)))
        return Numbers(columns, rows.times, rows.diffs)

    def _finish(self) -> None:
        """Seal a batch of each arrangement, and hand on what leaves the loop."""
        step, around = self._step, self._around
        for node, parts in self._parts.items():
            if not node.keeps:
                continue
            layout = self._graph.form(node).layout
            grouped = consolidate(_whole(parts, layout)).updates
            files = write_files(
                step.directory_of(node), grouped, layout, step.settings.buckets
            )
            step.written.extend(file.path for made in files.values() for file in made)
            if files:
                trace = step.trace(node, around.lower).joined(around.lower, around.upper, files)
                step.merge({node: (trace, [around.lower])})
        for leave, held in self._left.items():
            step.emitted[leave] = self._feed(leave, together(held))

    def _feed(self, leave: Leave, rows: Numbers | None) -> tuple[Feed, ...]:
        if rows is None:
            return ()
        schema = leave.schema.only(n for n in leave.schema.names if n in rows.columns)
        if 1 <= len(schema.names) <= 2:
            # What came in one iteration often goes in the next, and is not worth telling anybody.
            first, *other = (rows.columns[name] for name in schema.names)
            second = other[0] if other else np.zeros(len(rows), np.int64)
            keys, values, times, diffs = added_up(first, second, rows.time, rows.diff)
            rows = Numbers(dict(zip(schema.names, (keys, values))), times, diffs)
        table = rows.table(schema, leave.time_type.arrow)
        source = UpdateRows(schema, table=table, rows=table.num_rows)
        return (Feed(source, until=self._around.upper),)


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
    change = kernel.of(new) - kernel.of(old)
    before = np.zeros_like(change)
    before[1:] = np.where(keys[1:] == keys[:-1], change[:-1], 0)
    change = change - before
    rows = np.flatnonzero((times != PAST) & (change != 0))
    return Sorted(keys[rows], np.zeros(rows.size, np.int64), times[rows], change[rows])


def _whole(parts: Sequence[tuple[int, Sorted]], layout: Layout) -> Updates:
    """The updates of an arrangement at all coordinates."""
    rows = [one for _, one in parts]
    codes = np.repeat([at for at, _ in parts], [len(one) for one in rows])
    keys, times, diffs = (
        np.concatenate([getattr(one, name) for one in rows]) for name in ("keys", "times", "diffs")
    )
    if layout.value is None:
        return Updates(keys, None, times, diffs, coordinate=codes)
    values = np.concatenate([one.values for one in rows])
    return Updates(
        keys, None, times, diffs, values, ordering=layout.value.ordering, coordinate=codes
    )
