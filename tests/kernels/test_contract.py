"""Every kernel and every stage of the package, held to `pyspark_diff.operators.contract`.

Each promise of that page is a function here, and is asked of each class on random updates. A class
without an example fails, and so do the broken toys at the end.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice, product
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import total
from pyspark import cloudpickle
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff import DiffFrame, operators
from pyspark_diff.kernels import ipc
from pyspark_diff.kernels.accumulators import Accumulator, Integers, RowCount, Valid
from pyspark_diff.kernels.consolidate import Grouped, consolidate
from pyspark_diff.kernels.coordinates import Limit, pack, unpack
from pyspark_diff.kernels.into_diff import into_diff
from pyspark_diff.kernels.layout import Layout
from pyspark_diff.kernels.results import CountResult, IntegerSum, WeightSum
from pyspark_diff.kernels.updates import UpdateChunk, advanced, empty
from pyspark_diff.kernels.window_functions import Offset, Picked, PlaceFunction, Summed
from pyspark_diff.kernels.window_reach import WindowFrame
from pyspark_diff.operators.aggregate import AggregateKernel
from pyspark_diff.operators.checked import CheckedKernel, CompleteKernel, NothingThere
from pyspark_diff.operators.collate import CollateKernel, First, Kept, Sums
from pyspark_diff.operators.consolidate import ConsolidateKernel
from pyspark_diff.operators.contract import BilinearKernel, Kernel, ReplayKernel, Side, Stage
from pyspark_diff.operators.count import CountKernel
from pyspark_diff.operators.blocks import OfInterval, OfValue
from pyspark_diff.operators.codes import Codes
from pyspark_diff.operators.cross import SALTS, Replicate, Salt
from pyspark_diff.operators.due import Due, DueKernel, Later
from pyspark_diff.operators.join import JoinKernel, Pad, SemijoinKernel
from pyspark_diff.operators.linear import (
    DropNull,
    Expression,
    FlatMap,
    MapInArrow,
    MapInPandas,
    MultiplyDiff,
    Negate,
    NormalForm,
    Pick,
)
from pyspark_diff.operators.loop import Completing, Entering, Moving, Revealing
from pyspark_diff.operators.projection import Compute, Filter
from pyspark_diff.operators.ranges import Beyond, Near, Within
from pyspark_diff.operators.reduce import ReduceKernel
from pyspark_diff.operators.threshold import ThresholdKernel
from pyspark_diff.operators.top_k import TopKKernel
from pyspark_diff.operators.upsert import UpsertKernel, VersionKernel
from pyspark_diff.operators.window import WindowKernel
from pyspark_diff.spark.schema import DIFF, TIME, TimeType
from pyspark_diff.times import Antichain

Record = tuple[Any, ...]
#: A record, its time, its diff, and where in a loop it is.
Row = tuple[Record, int, int, int]

#: Frontiers of three steps, and iterations of a loop.
FRONTIERS = (0, 2, 4, 6)
ITERATIONS = 3


@dataclass(frozen=True)
class Input:
    """One arrangement: columns, of which the first ones are the key, and records to choose from."""

    key: int
    names: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    domain: tuple[Record, ...]
    ordering: tuple[tuple[bool, bool], ...] | None = None
    sums: tuple[Accumulator, ...] = ()
    #: No more than one record of a key is there at any time.
    one: bool = False
    #: No record is there less than no times. Without some columns others would be made of several.
    positive: bool = False
    #: The kernel sees whole records, of whatever columns the key is.
    whole: bool = False

    def only(self, needed: Sequence[str]) -> tuple[int, ...]:
        """Positions of the key, of the columns of the order, and of those that are needed."""
        if self.whole:
            return tuple(range(len(self.names)))
        there = self.key + (0 if self.ordering is None else 1)
        return tuple(i for i, n in enumerate(self.names) if i < there or n in needed)

    def layout(self, columns: Sequence[int]) -> Layout:
        key = Layout(self.types[: self.key])
        value = tuple(self.types[i] for i in columns if i >= self.key)
        if self.sums or len(self.names) == self.key:
            return key
        ordering = None if self.ordering is None else self.ordering[: len(value)]
        return replace(key, value=Layout(value, ordering=ordering))

    def updates(self, rows: Sequence[Row], columns: Sequence[int]) -> UpdateChunk:
        """Rows as they come."""
        if not rows:
            return empty()
        columns = columns if not self.sums else range(len(self.names))
        arrays = [pa.array([r[0][i] for r in rows], self.types[i]) for i in columns]
        time, diff, at = (np.array([r[i] for r in rows], np.int64) for i in (1, 2, 3))
        made = self.layout(columns).encode(arrays[: self.key] if self.sums else arrays, time, diff)
        if self.sums:  # at each coordinate for itself: a sum is at one
            return into_diff(made, arrays[self.key:], self.sums).placed(int(at[0]))
        return made.placed(at)

    def grouped(self, rows: Sequence[Row], columns: Sequence[int]) -> Grouped:
        """Rows as an arrangement holds them."""
        return consolidate(self.updates(rows, columns))

    def batches(self, parts: Sequence[Sequence[Row]], columns: Sequence[int]) -> list[UpdateChunk]:
        found = []
        for rows in parts:
            places = sorted({row[3] for row in rows}) if self.sums else [None]
            for place in places:
                chosen = [row for row in rows if place in (None, row[3])]
                found.append(self.grouped(chosen, columns).updates)
        return found


@dataclass(frozen=True)
class Example:
    """A kernel, what it reads, and what it is to make of the input as it stands at one time."""

    kernel: Kernel
    inputs: tuple[Input, ...]
    types: tuple[pa.DataType, ...]
    function: Callable[..., Counter[Record]]
    #: Columns of the output's key, where the output is arranged.
    key: int = 0

    @property
    def own(self) -> Layout:
        return Layout(self.types[: self.key], value=Layout(self.types[self.key:]))

    @property
    def every(self) -> tuple[int, ...]:
        return tuple(range(len(self.types)))


LONG, TEXT, INT = pa.int64(), pa.string(), pa.int32()
NUMBERS = Input(1, ("n",), (LONG,), ((0,), (1,), (2,), (None,), (-7,)))
WORDS = Input(2, ("n", "s"), (LONG, TEXT), tuple(product((0, 1, None), ("a", "", None))))
PAIRS = Input(
    1, ("k", "v", "w"), (LONG, LONG, TEXT), tuple(product((0, 1, None), (1, 5, None), ("a", None)))
)
OTHERS = Input(1, ("k", "x"), (LONG, INT), tuple(product((0, 1, 2, None), (3, None))))
KEYS = Input(1, ("k",), (LONG,), ((0,), (1,), (None,)))
IN_ORDER = replace(PAIRS, positive=True, ordering=((True, False), (False, True)))
SUMS = Input(1, ("k", "v"), (LONG, LONG), tuple(product((0, 1, None), (1, -5, None))), sums=(
    RowCount(), Integers(0), Valid(0)
))
PART = replace(PAIRS, one=True)
OTHER_PART = replace(OTHERS, one=True)


def counted(a):
    return total(((*record, n), 1) for record, n in a.items())


def with_function(function):
    return lambda a: total((record, function(n)) for record, n in a.items())


def cap(n):
    return max(-1, min(n, 2))


def met(a, b, null_safe=False):
    return [
        (x, y, n * m) for x, n in a.items() for y, m in b.items()
        if x[0] == y[0] and (null_safe or x[0] is not None)
    ]


def joined(a, b):
    return total(((x[1], y[1], x[0]), n) for x, y, n in met(a, b))


def joined_with_nulls(a, b):
    return total(((x[2], y[1]), n) for x, y, n in met(a, b, null_safe=True))


def semijoined(a, b):
    return total((x, n) for x, _, n in met(a, b))


def antijoined(a, b):
    return total([*a.items(), *((x, -n) for x, _, n in met(a, b, null_safe=True))])


def by_key(a):
    found: dict[Any, list[tuple[Record, int]]] = {}
    for (key, *values), n in a.items():
        found.setdefault(key, []).append((tuple(values), n))
    return found


def rank(value):
    """The order of `IN_ORDER`: the largest first and nulls before them; then text, nulls last."""
    (v, w) = value
    return (v is not None, -(v or 0)), (w is None, w or "")


def first(a):
    found = []
    for key, values in by_key(a).items():
        places = [v for v, n in sorted(values, key=lambda r: rank(r[0])) for _ in range(max(n, 0))]
        found += [((key, *v), 1) for v in places[:2]]
    return total(found)


def numbered(a):
    found = []
    for key, values in by_key(a).items():
        places = [v for v, n in sorted(values, key=lambda r: rank(r[0])) for _ in range(max(n, 0))]
        found += [((key, *v, i + 1), 1) for i, v in enumerate(places[:3])]
    return total(found)


def in_windows(a):
    """For `WINDOWS`."""
    found = []
    for key, values in by_key(a).items():
        places = [v for v, n in sorted(values, key=lambda r: rank(r[0])) for _ in range(n)]
        for i, (v, w) in enumerate(places):
            before = [other for other in places if rank((other[0], "")) < rank((v, ""))]
            upto = [x for x, _ in places[:i + 1]]
            near = [x or 0 for x, _ in places[max(i - 1, 0):i + 2]]
            valid = [x for x in upto if x is not None]
            peers = [x for x, _ in places if rank((x, "")) <= rank((v, ""))]
            found.append(((
                key, v, w, i + 1, len(before) + 1, places[i - 1][1] if i else "none",
                sum(near) if any(x is not None for x, _ in places[max(i - 1, 0):i + 2]) else None,
                valid[-1] if valid else None, len(peers),
            ), 1))
    return total(found)


#: Three whose rows are told by ties, and three of rows near by.
WINDOWS = (
    PlaceFunction(LONG, "row_number"), PlaceFunction(LONG, "rank"), Offset(TEXT, "w", -1, "none"),
    Summed(LONG, "v", IntegerSum(LONG, 0), WindowFrame(True, -1, 1)),
    Picked(LONG, "last", "v", WindowFrame(True, None, 0), "v"),
    Summed(LONG, None, CountResult(LONG, RowCount()), WindowFrame(False, None, 0)),
)


def of_windows(*numbers):
    """The example of some of the windows."""
    kernel = WindowKernel(
        PAIRS.names, (("v", True),), tuple(WINDOWS[i] for i in numbers), TimeType(T.LongType())
    )
    kinds = tuple(WINDOWS[i].kind for i in numbers)
    return Example(kernel, (IN_ORDER,), (*PAIRS.types, *kinds), lambda a: total(
        ((*row[:3], *(row[3 + i] for i in numbers)), n) for row, n in in_windows(a).items()
    ))


def summed(a):
    found = {}
    for (key, v), n in a.items():
        rows, amount, valid = found.get(key, (0, 0, 0))
        found[key] = rows + n, amount + n * (v or 0), valid + n * (v is not None)
    return total(((k, s, c), 1) for k, (rows, s, c) in found.items() if rows)


def side_by_side(a, b):
    others = {key: values[0][0] for key, values in by_key(b).items()}
    return total(
        ((k, v, *others.get(k, (-1,)), w), 1) for (k, v, w), n in a.items() if n
    )


def aggregated(sums, values, others):
    """Sums, the first value and the last one, and another record: as `summed` has a group."""
    found = {key: [r[0] for r in sorted(held, key=lambda r: rank(r[0])) if r[1] > 0]
             for key, held in by_key(values).items()}
    other = {key: held[0][0][0] for key, held in by_key(others).items()}
    rows = []
    for key, total_, valid in summed(sums):
        (v, w), (last, _) = (found.get(key) or [(0, "")])[0], (found.get(key) or [(0, "")])[-1]
        rows.append(((key, total_, v, w, valid, last, other.get(key, -1)), 1))
    return total(rows)


def sizes(key, values):
    return [(len(values), sum(n for _, n in values))]


def sized(a):
    return total(
        ((key, len(values), sum(n for _, n in values)), 1) for key, values in by_key(a).items()
    )


REDUCED = pa.schema([("kinds", LONG), ("total", LONG)])
TOTALS = (WeightSum(LONG, 0), CountResult(LONG, Valid(0)))

KERNELS: dict[type[Kernel], list[Example]] = {
    CheckedKernel: [
        Example(
            CheckedKernel(TimeType(T.LongType())), (replace(WORDS, one=True),), WORDS.types,
            lambda a: a,
        )
    ],
    CompleteKernel: [
        Example(
            CompleteKernel(TimeType(T.LongType()), 1, NothingThere(("w",), None)),
            (replace(WORDS, one=True),), WORDS.types, lambda a: total([]),
        )
    ],
    ConsolidateKernel: [Example(ConsolidateKernel(), (WORDS,), WORDS.types, lambda a: a)],
    CountKernel: [
        Example(CountKernel(), (NUMBERS,), (LONG, LONG), counted),
        Example(CountKernel(), (WORDS,), (LONG, TEXT, LONG), counted),
    ],
    ThresholdKernel: [
        Example(ThresholdKernel(None), (NUMBERS,), (LONG,), with_function(lambda n: int(n > 0))),
        Example(ThresholdKernel(cap), (WORDS,), (LONG, TEXT), with_function(cap)),
        Example(
            ThresholdKernel(cap), (replace(PAIRS, whole=True),), PAIRS.types, with_function(cap)
        ),
        Example(
            ThresholdKernel(cap), (replace(OTHERS, whole=True),), OTHERS.types, with_function(cap)
        ),
    ],
    AggregateKernel: [
        Example(
            AggregateKernel(1, SUMS.sums, TOTALS, 0, arranges_output=arranged), (SUMS,),
            (LONG, LONG, LONG), summed, key=1,
        )
        for arranged in (False, True)
    ],
    TopKKernel: [
        Example(TopKKernel(2, PAIRS.names, 1, "rows", False, ()), (IN_ORDER,), PAIRS.types, first),
        Example(
            TopKKernel(3, PAIRS.names, 1, "row_number", False, ()), (IN_ORDER,),
            (*PAIRS.types, INT), numbered,
        ),
    ],
    WindowKernel: [
        of_windows(*range(6)), of_windows(2), of_windows(2, 3), of_windows(1, 5), of_windows(4),
        of_windows(0),
    ],
    ReduceKernel: [
        Example(
            ReduceKernel(
                sizes, "rows", ("v", "w"), REDUCED, TimeType(T.LongType()), "diff", True,
                arranges_output=True,
            ),
            (PAIRS,), (LONG, LONG, LONG), sized, key=1,
        )
    ],
    CollateKernel: [
        Example(
            CollateKernel(
                ("k",), (Kept(0), Kept(1)), ((0, "v", 0), (1, "x", -1), (0, "w", ""))
            ),
            (PART, OTHER_PART), (LONG, LONG, INT, TEXT), side_by_side,
        ),
        Example(
            CollateKernel(
                ("k",),
                (Sums(0, SUMS.sums, tuple(zip("st", TOTALS))), First(1, False), First(1, True),
                 Kept(2)),
                ((0, "s", None), (1, "v", 0), (1, "w", ""), (0, "t", None), (2, "v", 0),
                 (3, "x", -1)),
            ),
            (SUMS, IN_ORDER, OTHER_PART), (LONG, LONG, LONG, TEXT, LONG, LONG, INT), aggregated,
        ),
    ],
    JoinKernel: [
        Example(
            JoinKernel(((0, "v"), (1, "x"), (0, "k"))), (PAIRS, OTHERS), (LONG, INT, LONG), joined
        ),
        Example(
            JoinKernel(((0, "w"), (1, "x")), null_safe=True), (PAIRS, OTHERS), (TEXT, INT),
            joined_with_nulls,
        ),
    ],
    SemijoinKernel: [
        Example(SemijoinKernel(PAIRS.names, False), (PAIRS, KEYS), PAIRS.types, semijoined),
        Example(
            SemijoinKernel(PAIRS.names, True, null_safe=True), (PAIRS, KEYS), PAIRS.types,
            antijoined,
        ),
    ],
}


def with_text_keys(example: Example) -> Example:
    """The same with keys of which only hashes are numbers."""
    inputs = tuple(
        replace(
            told, types=(TEXT, *told.types[1:]),
            domain=tuple((r[0] if r[0] is None else f"k{r[0]}", *r[1:]) for r in told.domain),
        )
        for told in example.inputs
    )
    position = 2 if isinstance(example.kernel, JoinKernel) else 0
    types = tuple(TEXT if i == position else kind for i, kind in enumerate(example.types))
    return replace(example, inputs=inputs, types=types)


for kind in (AggregateKernel, TopKKernel, ReduceKernel, CollateKernel, JoinKernel, SemijoinKernel):
    KERNELS[kind].append(with_text_keys(KERNELS[kind][0]))


# What is found in the package.


def classes_in(package: ModuleType, base: type) -> set[type]:
    """The classes of a package that are no bases of others by their own word."""
    found = set()
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        for made in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(made) and issubclass(made, base) and not inspect.isabstract(made):
                found.add(made)
    return found


#: Kernels that are no function of what they read at a time: they fold it, in order of time, over
#: what they gave. `test_keyed_inputs` and `test_late_rows` hold them to that.
FOLDS = {UpsertKernel, VersionKernel}
#: Those that go by the time, and not only by what they read: `test_sliding` is about them.
BY_TIME = {DueKernel}


def test_every_kernel_and_every_stage_has_an_example():
    assert classes_in(operators, Kernel) - FOLDS - BY_TIME == set(KERNELS)
    assert classes_in(operators, Stage) == set(STAGES)


def test_what_looks_like_a_kernel_or_a_stage_says_so():
    for made in classes_in(operators, object):
        if not made.__module__.startswith(operators.__name__):
            continue
        call = vars(made).get("__call__")
        if call is not None and "wanted" in inspect.signature(call).parameters:
            assert issubclass(made, Kernel), made
        if {"on_table", "on_frame"} <= vars(made).keys():
            assert issubclass(made, Stage), made


# Turns of a kernel.


@dataclass(frozen=True)
class Turn:
    """What a kernel is told once, as rows, so that it can be told in several ways."""

    example: Example
    old: tuple[tuple[Row, ...], ...]
    earlier: tuple[tuple[Row, ...], ...]
    new: tuple[tuple[Row, ...], ...]
    lower: int
    upper: int
    at: tuple[int, ...] = ()
    own: tuple[Row, ...] = ()
    #: How batches are cut, and whether their times are advanced.
    cut: int = 0
    limited: bool = False

    def sides(self, wanted: Sequence[int]) -> list[Side]:
        sides = []
        for number, told in enumerate(self.example.inputs):
            columns = told.only(self.example.kernel.needs(wanted, number))
            depth = len(self.at) or int(self.limited)
            sides.append(Side(
                self.batches(told, self.old[number], columns),
                told.batches([self.earlier[number]] if self.earlier[number] else [], columns),
                told.grouped(self.new[number], columns), depth, told.layout(columns),
                told.names[: told.key] if told.sums else tuple(told.names[i] for i in columns),
                self.lower, Limit(1, 1) if self.limited else None,
            ))
        return sides

    def batches(
        self, told: Input, rows: Sequence[Row], columns: Sequence[int]
    ) -> list[UpdateChunk]:
        """Old rows, cut in some way."""
        choice = random.Random(self.cut)
        parts: list[list[Row]] = [[] for _ in range(1 + self.cut % 3)]
        for record, time, diff, at in rows:
            if self.cut > 2:  # as much more, and taken back by another batch
                choice.choice(parts).append((record, time, 5, at))
                choice.choice(parts).append((record, time, -5, at))
            choice.choice(parts).append((record, time, diff, at))
        found = told.batches(parts if self.cut else [rows] if rows else [], columns)
        if self.cut % 2:
            return [consolidate(advanced(batch, self.lower)).updates for batch in found]
        return found

    def own_side(self) -> Side | None:
        kernel, example = self.example.kernel, self.example
        if not isinstance(kernel, ReplayKernel) or not kernel.arranges_output:
            return None
        names = tuple(f"o{i}" for i in example.every)
        told = Input(example.key, names, example.types, ())
        nothing = Grouped(empty(), np.empty(0, np.int64))
        old = self.batches(told, self.own, example.every)
        limit = Limit(1, 1) if self.limited else None
        return Side(old, [], nothing, int(self.limited), example.own, names, self.lower, limit)


@dataclass
class Given:
    """What a kernel gave: rows of the wanted columns."""

    rows: list[Row]
    read: int = 0
    types: list[pa.DataType] = field(default_factory=list)

    def total(self) -> Counter[Any]:
        """Sums of the diffs."""
        return total(((record, time, at), diff) for record, time, diff, at in self.rows)


#: So many pairs at once.
MOST = 7


def told(turn: Turn, wanted: Sequence[int]) -> tuple[Any, ...]:
    """The arguments of a turn."""
    if isinstance(turn.example.kernel, BilinearKernel):
        return turn.sides(wanted), turn.at, list(wanted), MOST
    return turn.sides(wanted), turn.own_side(), list(wanted)


def given_by(kernel: Any, arguments: tuple[Any, ...]) -> Given:
    """A call, and what came of it as rows."""
    found = kernel(*arguments)
    if isinstance(found, tuple):
        return rows_of(found[0], 0, found[1])
    whole = Given([], found.read, [])
    named = found.coordinates()
    for part in found.parts:
        for changes, places in part():
            chunk = rows_of(changes, places)
            assert not whole.types or whole.types == chunk.types
            assert {at for *_, at in chunk.rows} <= set(named), "it names its coordinates"
            whole.rows, whole.types = whole.rows + chunk.rows, chunk.types
    assert len(whole.rows) <= found.rows, "it tells how many there may be"
    return whole


def rows_of(changes: Any, places: Any, read: int = 0) -> Given:
    """Changes as rows."""
    columns, times, diffs = changes
    assert isinstance(diffs, np.ndarray), "the diffs tell how many rows there are"
    assert all(len(column) == diffs.size for column in columns), "columns are of one length"
    for values in (times, places):
        assert isinstance(values, int) or values.size == diffs.size
    times, places = (np.broadcast_to(v, diffs.size).tolist() for v in (times, places))
    records = list(zip(*(c.to_pylist() for c in columns))) if columns else [()] * diffs.size
    rows = list(zip(records, times, diffs.tolist(), places))
    return Given(rows, read, [column.type for column in columns])


def turns(example: Example, rows: Sequence[Sequence[Row]]) -> Iterator[Turn]:
    """The turns of a kernel, and what it gives in each taken up, as runners do it."""
    kernel = example.kernel
    rows = rows if isinstance(kernel, BilinearKernel) else plain(rows)
    own: list[Row] = []
    for lower, upper in zip(FRONTIERS, FRONTIERS[1:]):
        old = tuple(tuple(r for r in side if r[1] < lower) for side in rows)
        now = [[r for r in side if lower <= r[1] < upper] for side in rows]
        if isinstance(kernel, BilinearKernel):
            for at in range(ITERATIONS):
                earlier = tuple(tuple(r for r in side if r[3] < at) for side in now)
                new = tuple(tuple(r for r in side if r[3] == at) for side in now)
                yield Turn(example, old, earlier, new, lower, upper, (at,))
            continue
        nothing = tuple(() for _ in rows)
        turn = Turn(example, old, nothing, tuple(map(tuple, now)), lower, upper, (), tuple(own))
        yield turn
        own += given_by(kernel, told(turn, example.every)).rows


def plain(rows: Sequence[Sequence[Row]]) -> list[list[Row]]:
    """The rows outside of loops."""
    return [[(record, time, diff, 0) for record, time, diff, _ in side] for side in rows]


def one_each(rows: Sequence[Row]) -> list[Row]:
    """Rows that put one record of a key in place of another, or none, at each time."""
    found: list[Row] = []
    there: dict[Any, Record] = {}
    last = {(r[0][0], r[1]): r for r in rows}
    for (key, time), (record, _, diff, _) in sorted(last.items(), key=lambda item: item[0][1]):
        if key in there:
            found.append((there.pop(key), time, -1, 0))
        if diff > 0:
            found.append((record, time, 1, 0))
            there[key] = record
    return [(r, t, d, 0) for (r, t), d in total(((r, t), d) for r, t, d, _ in found).items()]


def not_negative(rows: Sequence[Row]) -> list[Row]:
    """Rows without those that take away what is not there, at any time and coordinate."""
    found: list[Row] = []
    for row in sorted(rows, key=lambda row: row[1]):
        held = [other for other in (*found, row) if other[0] == row[0]]
        # Those at coordinates up to one are there at it.
        if all(sum(n for _, _, n, c in held if c <= at) >= 0 for at in range(ITERATIONS)):
            found.append(row)
    return found


@st.composite
def histories(draw: st.DrawFn, example: Example) -> list[list[Row]]:
    """Updates of each input."""
    found = []
    for told in example.inputs:
        row = st.tuples(
            st.sampled_from(told.domain), st.integers(0, FRONTIERS[-1] - 1),
            st.sampled_from((1, 1, 1, 2, -1)), st.integers(0, ITERATIONS - 1),
        )
        rows = draw(st.lists(row, max_size=25))
        found.append(
            one_each(rows) if told.one else not_negative(rows) if told.positive else rows
        )
    return found


# The promises of a kernel.


def accumulated(rows: Sequence[Row], time: int, at: int) -> Counter[Record]:
    return total((r, n) for r, t, n, c in rows if t <= time and c <= at)


def promise_function(example: Example, rows: Sequence[Sequence[Row]]) -> None:
    """What was given adds up to the function of the input, at every time and coordinate."""
    bilinear = isinstance(example.kernel, BilinearKernel)
    rows = rows if bilinear else plain(rows)
    given: list[Row] = []
    for turn in turns(example, rows):
        given += given_by(example.kernel, told(turn, example.every)).rows
        if bilinear and turn.at[0] < ITERATIONS - 1:
            continue
        for time, at in product(range(turn.lower, turn.upper), range(ITERATIONS)):
            expected = example.function(*(accumulated(side, time, at) for side in rows))
            assert accumulated(given, time, at) == expected


def promise_interval(example: Example, rows: Sequence[Sequence[Row]]) -> None:
    """Updates lie in the interval, and at coordinates from the one on whose turn it is."""
    for turn in turns(example, rows):
        for _, time, _, at in given_by(example.kernel, told(turn, example.every)).rows:
            assert turn.lower <= time < turn.upper
            assert not turn.at or unpack(at, 1) >= turn.at


def typed(example: Example, found: Given, wanted: Sequence[int]) -> bool:
    """Whether the columns have their types; where no part is given, there are none."""
    none = isinstance(example.kernel, BilinearKernel) and not found.types
    return none or found.types == [example.types[i] for i in wanted]


def promise_columns(example: Example, rows: Sequence[Sequence[Row]]) -> None:
    """Whatever columns are asked for, in any order, they are those of all columns."""
    every = example.every
    for turn in turns(example, rows):
        whole = given_by(example.kernel, told(turn, every))
        assert typed(example, whole, every)
        for wanted in ((), every[::-1], every[1:], *((i,) for i in every)):
            found = given_by(example.kernel, told(turn, wanted))
            assert typed(example, found, wanted)
            rest = [(tuple(r[i] for i in wanted), t, n, c) for r, t, n, c in whole.rows]
            assert found.total() == Given(rest).total()


def promise_nothing(example: Example, rows: Sequence[Sequence[Row]]) -> None:
    """Nothing new, nothing given: whatever is old."""
    nothing = tuple(() for _ in rows)
    for turn in [Turn(example, nothing, nothing, nothing, 0, 2), *turns(example, rows)]:
        found = given_by(example.kernel, told(replace(turn, new=nothing), example.every))
        assert not found.rows and typed(example, found, example.every)


def promise_cut(example: Example, rows: Sequence[Sequence[Row]]) -> None:
    """It does not matter how what is old is cut and how far its times are advanced."""
    for turn in turns(example, rows):
        expected = given_by(example.kernel, told(turn, example.every)).total()
        for cut in range(1, 6):
            cut_up = told(replace(turn, cut=cut), example.every)
            assert given_by(example.kernel, cut_up).total() == expected


def promise_parts(example: Example, rows: Sequence[Sequence[Row]]) -> None:
    """However many pairs are made at once, they are the same; and so are parts asked for later."""
    if not isinstance(example.kernel, BilinearKernel):
        return
    for turn in turns(example, rows):
        *arguments, _ = told(turn, example.every)
        expected = given_by(example.kernel, (*arguments, 10**6)).total()
        size = sum(len(updates) for side in arguments[0] for updates in all_of(side))
        cut = isinstance(example.kernel, JoinKernel)
        for most in (1, 2, 5):
            assert given_by(example.kernel, (*arguments, most)).total() == expected
            parts, again = (list(example.kernel(*arguments, most).parts) for _ in range(2))
            assert len(parts) == len(again)
            for part, other in reversed(list(zip(parts, again))):
                chunks = [rows_of(*chunk).rows for chunk in part()]
                assert chunks == [rows_of(*chunk).rows for chunk in other()]
                assert all(len(chunk) <= (most if cut else size) for chunk in chunks)


def all_of(side: Side) -> list[UpdateChunk]:
    return [*side.old, *side.earlier, side.new.updates]


def promise_limit(example: Example, rows: Sequence[Sequence[Row]]) -> None:
    """In a loop a replay sees what is at coordinates up to the one whose turn it is, as one."""
    if isinstance(example.kernel, BilinearKernel) or any(told.one for told in example.inputs):
        return
    for turn in turns(example, rows):
        if turn.lower != FRONTIERS[1]:
            continue
        old = tuple(tuple(r for r in side if r[1] < turn.lower) for side in rows)
        below, new = (
            tuple(tuple((*r[:3], 0) for r in side if r[3] <= 1 and lower <= r[1] < upper)
                  for side in rows)
            for lower, upper in ((0, turn.lower), (turn.lower, turn.upper))
        )
        # What is new is seen whole: none of it is of a later coordinate.
        turn = replace(turn, new=new)
        own = given_by(example.kernel, told(
            replace(turn, old=tuple(() for _ in old), new=below, lower=0), example.every
        )).rows
        beyond = [(record, 0, 3, 2) for record, *_ in own]
        expected = given_by(
            example.kernel, told(replace(turn, old=below, own=tuple(own)), example.every)
        )
        found = given_by(example.kernel, told(
            replace(turn, old=old, own=(*own, *beyond), limited=True), example.every
        ))
        assert found.total() == expected.total()


def promise_same(example: Example, rows: Sequence[Sequence[Row]]) -> None:
    """The same is given for the same, also by what has travelled."""
    travelled = cloudpickle.loads(cloudpickle.dumps(example.kernel))
    for turn in turns(example, rows):
        expected = given_by(example.kernel, told(turn, example.every)).rows
        assert given_by(example.kernel, told(turn, example.every)).rows == expected
        assert given_by(travelled, told(turn, example.every)).rows == expected


def promise_pure(example: Example, rows: Sequence[Sequence[Row]]) -> None:
    """Arguments stay as they are."""
    for turn in turns(example, rows):
        arguments = told(turn, example.every)
        before = [held(argument) for argument in arguments]
        given_by(example.kernel, arguments)
        assert [held(argument) for argument in arguments] == before


def held(argument: Any) -> Any:
    """All that is in an argument."""
    if isinstance(argument, UpdateChunk):
        return ipc.to_bytes(argument) if len(argument) else None
    if isinstance(argument, Side):
        return [held(part) for part in (*argument.old, None, *argument.earlier, argument.new)]
    if isinstance(argument, Grouped):
        return held(argument.updates), argument.starts.tolist()
    if isinstance(argument, list):
        return [held(part) for part in argument]
    return argument


PROMISES = [value for name, value in list(globals().items()) if name.startswith("promise_")]
CASES = [(kind, i) for kind, examples in KERNELS.items() for i in range(len(examples))]


@pytest.mark.parametrize(("kind", "number"), CASES, ids=lambda v: getattr(v, "__name__", v))
@given(data=st.data())
def test_kernels_keep_their_promises(kind, number, data):
    example = KERNELS[kind][number]
    assert type(example.kernel) is kind
    rows = data.draw(histories(example))
    for promise in PROMISES:
        promise(example, rows)


# The promises of a stage.

SCHEMA = pa.schema([("k", LONG), ("s", TEXT), ("w", LONG), (TIME, LONG), (DIFF, LONG)])
STRUCT = T.StructType([
    T.StructField("k", T.LongType()), T.StructField("s", T.StringType()),
    T.StructField("w", T.LongType()), T.StructField(TIME, T.LongType(), False),
    T.StructField(DIFF, T.LongType(), False),
])
DATA = pa.schema(list(SCHEMA)[:3])
OUT = pa.schema([("n", LONG), (TIME, LONG), (DIFF, LONG)])
OUT_STRUCT = T.StructType([T.StructField("n", T.LongType()), *STRUCT.fields[3:]])


def twice(row):
    return [(row.k,), (row.w,)] if row.k else []


def in_arrow(batches):
    for batch in batches:
        yield from pa.Table.from_pandas(
            next(in_pandas([batch.to_pandas()])), preserve_index=False
        ).to_batches()


def in_pandas(frames):
    for frame in frames:
        yield frame.assign(n=frame.k.fillna(-1).astype("int64"))[["n", "time", "diff"]]


def of_frame(make):
    """The stage that a method of a frame makes."""
    def stage(spark):
        frame = spark.createDataFrame([], "k long, s string, w long, time long, diff long")
        return make(DiffFrame(frame))._node.stage
    return stage


STAGES: dict[type[Stage], Callable[..., Stage]] = {
    Pick: lambda _: Pick((("s", "t"), ("k", "k"))),
    DropNull: lambda _: DropNull(("k", "s")),
    # The records have no maps, so that the stage returns them.
    NormalForm: lambda _: NormalForm(()),
    Entering: lambda _: Entering("w", 2),
    Moving: lambda _: Moving("w", 2, True),
    Completing: lambda _: Completing(("w",), Antichain([(1, 2), (3, -1)]), True),
    MultiplyDiff: lambda _: MultiplyDiff("w"),
    Negate: lambda _: Negate(),
    Expression: lambda _: Expression(
        lambda frame: frame.withColumn("k", F.upper("s")), STRUCT, True
    ),
    FlatMap: lambda _: FlatMap(twice, DATA, OUT_STRUCT, OUT),
    MapInPandas: lambda _: MapInPandas(in_pandas, "time", "diff", DATA, OUT_STRUCT, OUT),
    MapInArrow: lambda _: MapInArrow(in_arrow, "time", "diff", DATA, OUT_STRUCT, OUT),
    Compute: of_frame(lambda f: f.select((F.col("k") + F.col("w")).alias("n"), "s")),
    Filter: of_frame(lambda f: f.where(F.col("k") > F.col("w"))),
    Pad: lambda _: Pad(((None, "n"), ("s", "s")), (T.LongType(), T.StringType())),
    Salt: lambda _: Salt("n", ("k", "s")),
    Replicate: lambda _: Replicate("n"),
    Within: lambda _: Within("n", "w", None),
    Beyond: lambda _: Beyond("n", "w", None, True),
    Near: lambda _: Near("n", "w", None),
    Codes: lambda _: Codes("w"),
    OfValue: lambda _: OfValue("n", None, "w"),
    OfInterval: lambda _: OfInterval("n", 3, "w", "w"),
    Due: lambda _: Due("due", 3, None, TimeType(T.LongType())),
    Later: lambda _: Later((3, 0), None, (), TimeType(T.LongType())),
    Revealing: lambda _: Revealing("n", 4),
}


def update_rows(seed: int, size: int) -> pa.Table:
    choice = random.Random(seed)
    rows = [
        (choice.choice((None, 0, 1, 2, 70)), choice.choice((None, "", "a", "b")),
         choice.choice((None, -1, 0, 3)), choice.randrange(4), choice.choice((-2, 1, 1, 3)))
        for _ in range(size)
    ]
    return pa.table([pa.array(c, f.type) for c, f in zip(zip(*rows), SCHEMA)], schema=SCHEMA)


def rows_in(table: pa.Table) -> Counter[Record]:
    return Counter(zip(*(column.to_pylist() for column in table.columns)))


def collection(table: pa.Table) -> Counter[Record]:
    """The updates that a table of them sums up to."""
    last = table.select([*(name for name in table.column_names if name != DIFF), DIFF])
    return total((row[:-1], row[-1] * n) for row, n in rows_in(last).items())


def by_spark(stage: Stage, spark: Any, table: pa.Table) -> pa.Table:
    return stage.on_frame(spark.createDataFrame(table, STRUCT)).toArrow()


def stage_frame(stage: Stage, spark: Any, table: pa.Table) -> None:
    """Frames and tables are the same to it; where it is not portable it says what it takes."""
    expected = by_spark(stage, spark, table)
    if stage.portable:
        found = stage.on_table(table)
        assert found.column_names == expected.column_names
        assert [f.type for f in found.schema] == [f.type for f in expected.schema]
        assert rows_in(found) == rows_in(expected)
        assert stage.takes is None
    else:
        assert stage.takes == STRUCT
        with pytest.raises(TypeError):
            stage.on_table(table)


def evaluated(stage: Stage, spark: Any, table: pa.Table) -> pa.Table:
    return stage.on_table(table) if stage.portable else by_spark(stage, spark, table)


def stage_cut(stage: Stage, spark: Any, table: pa.Table) -> None:
    """It takes rows as they come, in any order, cut anywhere."""
    halves = [evaluated(stage, spark, t) for t in (table[:7], table[7:][::-1])]
    assert rows_in(evaluated(stage, spark, table)) == rows_in(halves[0]) + rows_in(halves[1])


def stage_linear(stage: Stage, spark: Any, table: pa.Table) -> None:
    """Sums of updates become sums of updates, so that equal ones may be added up before."""
    added = [(*row, n) for row, n in collection(table).items()]
    short = pa.table([pa.array(c, f.type) for c, f in zip(zip(*added), SCHEMA)], schema=SCHEMA)
    found, expected = (collection(evaluated(stage, spark, t)) for t in (short, table))
    assert found == expected


def stage_nothing(stage: Stage, spark: Any, table: pa.Table) -> None:
    """No rows, no rows: of the same columns."""
    found, some = (evaluated(stage, spark, t) for t in (table[:0], table))
    assert not found.num_rows
    assert [(f.name, f.type) for f in found.schema] == [(f.name, f.type) for f in some.schema]


def stage_times(stage: Stage, spark: Any, table: pa.Table) -> None:
    """Times and diffs are what they were, if it says so."""
    found = evaluated(stage, spark, table)
    if stage.keeps_time_and_diff:
        assert rows_in(found.select([TIME, DIFF])) <= rows_in(table.select([TIME, DIFF]))


def stage_travels(stage: Stage, spark: Any, table: pa.Table) -> None:
    """A portable one does the same on the executors."""
    if stage.portable:
        travelled = cloudpickle.loads(cloudpickle.dumps(stage))
        assert rows_in(travelled.on_table(table)) == rows_in(stage.on_table(table))


STAGE_PROMISES = [value for name, value in list(globals().items()) if name.startswith("stage_")]


@pytest.mark.parametrize("kind", STAGES, ids=lambda kind: kind.__name__)
def test_stages_keep_their_promises(spark, kind):
    stage = STAGES[kind](spark)
    assert type(stage) is kind
    for promise in STAGE_PROMISES:
        promise(stage, spark, update_rows(len(kind.__name__), 30))


def test_salts_meet_once():
    # What `Replicate` and `Salt` are for: each row of one has one partner among those of the other.
    table = update_rows(1, 20)
    salts = Salt("n", ("k", "s")).on_table(table)["n"].to_pylist()
    copies = Replicate("n").on_table(table[:1])["n"].to_pylist()
    assert sorted(copies) == list(range(SALTS)) and set(salts) <= set(copies)


# Toys that break a promise, each of which must be found out.


class ForgetsOldRow(CountKernel):
    def __call__(self, sides, own, wanted):
        (columns, time, diff), read = super().__call__(sides, own, wanted)
        return (columns, time, np.ones_like(diff)), read


class Late(CountKernel):
    def __call__(self, sides, own, wanted):
        (columns, time, diff), read = super().__call__(sides, own, wanted)
        return (columns, time + 2, diff), read


class InItsOwnOrder(CountKernel):
    def __call__(self, sides, own, wanted):
        return super().__call__(sides, own, sorted(wanted))


class SaysHowManyThereAreNone(CountKernel):
    def __call__(self, sides, own, wanted):
        if len(sides[0].new.updates):
            return super().__call__(sides, own, wanted)
        zero = np.zeros(1, np.int64)
        return ([pa.array(zero) for _ in wanted], zero + sides[0].lower, zero + 1), 0


class ReadsOneBatch(CountKernel):
    def __call__(self, sides, own, wanted):
        return super().__call__([replace(s, old=s.old[:1]) for s in sides], own, wanted)


class ReadsAllCoordinates(CountKernel):
    def __call__(self, sides, own, wanted):
        return super().__call__([replace(s, limit=None) for s in sides], own, wanted)


class TakesItOut(CountKernel):
    def __call__(self, sides, own, wanted):
        found = super().__call__(sides, own, wanted)
        sides[0].old.clear()
        return found


class WritesOnIt(CountKernel):
    def __call__(self, sides, own, wanted):
        found = super().__call__(sides, own, wanted)
        for batch in sides[0].old:
            batch.key64.setflags(write=True)
            batch.key64[:] = 0
        return found


CALLS = count()


class Whim(CountKernel):
    def __call__(self, sides, own, wanted):
        (columns, time, diff), read = super().__call__(sides, own, wanted)
        order = np.arange(diff.size)[:: 1 if next(CALLS) % 2 else -1]
        columns = [column.take(pa.array(order)) for column in columns]
        return (columns, np.broadcast_to(time, diff.size)[order], diff[order]), read


@dataclass(frozen=True)
class StaysAtHome(CountKernel):
    lock: Any = field(default_factory=threading.Lock)


class ForgetsWhatItNeeds(JoinKernel):
    def needs(self, wanted, number):
        return []


class MeetsAgain(JoinKernel):
    def __call__(self, sides, at, wanted, most):
        both = [replace(s, old=[*s.old, s.new.updates]) for s in sides]
        return super().__call__(both, at, wanted, most)


class NeverLooksBack(JoinKernel):
    def __call__(self, sides, at, wanted, most):
        return super().__call__([replace(s, earlier=[]) for s in sides], at, wanted, most)


class Elsewhere(JoinKernel):
    """Its updates belong somewhere else."""

    def place(self, where, at):
        raise NotImplementedError

    def __call__(self, sides, at, wanted, most):
        found = super().__call__(sides, at, wanted, most)

        def moved(part):
            return lambda: ((changes, self.place(where, at)) for changes, where in part())

        return replace(found, parts=map(moved, found.parts), coordinates=lambda: list(range(99)))


class HereAndNow(Elsewhere):
    def place(self, where, at):
        return pack(at)


class Backwards(Elsewhere):
    def place(self, where, at):
        return where * 0


class DropsParts(JoinKernel):
    def __call__(self, sides, at, wanted, most):
        found = super().__call__(sides, at, wanted, most)
        return replace(found, parts=islice(found.parts, 1))


class CutsAnew(JoinKernel):
    def __call__(self, sides, at, wanted, most):
        return super().__call__(sides, at, wanted, random.randint(1, most))


class AllAtOnce(JoinKernel):
    def __call__(self, sides, at, wanted, most):
        return super().__call__(sides, at, wanted, 10**6)


JOIN = KERNELS[JoinKernel][0].kernel
BROKEN = [
    (promise_function, ForgetsOldRow()),
    (promise_interval, Late()),
    (promise_columns, InItsOwnOrder()),
    (promise_nothing, SaysHowManyThereAreNone()),
    (promise_cut, ReadsOneBatch()),
    (promise_limit, ReadsAllCoordinates()),
    (promise_pure, TakesItOut()),
    (promise_pure, WritesOnIt()),
    (promise_same, Whim()),
    (promise_same, StaysAtHome()),
    (promise_columns, ForgetsWhatItNeeds(JOIN.columns)),
    (promise_function, MeetsAgain(JOIN.columns)),
    (promise_function, NeverLooksBack(JOIN.columns)),
    (promise_function, HereAndNow(JOIN.columns)),
    (promise_interval, Backwards(JOIN.columns)),
    (promise_parts, DropsParts(JOIN.columns)),
    (promise_parts, CutsAnew(JOIN.columns)),
    (promise_parts, AllAtOnce(JOIN.columns)),
]


@pytest.mark.parametrize(("promise", "kernel"), BROKEN, ids=lambda v: type(v).__name__)
def test_broken_kernels_are_found_out(promise, kernel):
    kind = JoinKernel if isinstance(kernel, JoinKernel) else CountKernel
    sound = KERNELS[kind][0]
    # One record is there all the time, and changes in each step and at each coordinate.
    rows = [
        [(r, time, 1, (time + number + i) % ITERATIONS)
         for time in range(FRONTIERS[-1]) for i, r in enumerate(told.domain)]
        for number, told in enumerate(sound.inputs)
    ]
    promise(sound, rows)
    with pytest.raises((AssertionError, TypeError, ValueError)):
        promise(replace(sound, kernel=kernel), rows)


class Everything(Stage):
    keeps_time_and_diff = True

    def on_frame(self, frame):
        return frame

    def on_table(self, table):
        return table


class OnlyTables(Everything):
    def on_table(self, table):
        return table[:1]


class Distinct(Everything):
    def on_table(self, table):
        return table.group_by(table.column_names).aggregate([])


class Ones(Everything):
    def on_table(self, table):
        return table.set_column(4, DIFF, pa.array(np.ones(table.num_rows, np.int64)))


class OneMore(Everything):
    def on_table(self, table):
        return pa.concat_tables([table, update_rows(1, 1)])


class Homely(Everything):
    def __init__(self):
        self.lock = threading.Lock()


@pytest.mark.parametrize(("promise", "stage"), [
    (stage_frame, OnlyTables()), (stage_cut, Distinct()), (stage_linear, Ones()),
    (stage_times, Ones()), (stage_nothing, OneMore()), (stage_travels, Homely()),
], ids=lambda v: type(v).__name__)
def test_broken_stages_are_found_out(spark, promise, stage):
    table = pa.concat_tables([update_rows(3, 30), update_rows(3, 30)])
    promise(Everything(), spark, table)
    with pytest.raises((AssertionError, TypeError)):
        promise(stage, spark, table)


def test_a_kernel_without_an_example_is_found(monkeypatch):
    from pyspark_diff.operators import count as module

    monkeypatch.setattr(module, "Another", Late, raising=False)
    with pytest.raises(AssertionError):
        test_every_kernel_and_every_stage_has_an_example()


@pytest.mark.parametrize("base", [Kernel, ReplayKernel, BilinearKernel, Stage])
def test_a_part_that_lacks_something_cannot_be_made(base):
    class Half(base):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Half()
