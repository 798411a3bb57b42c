"""Every kernel and every stage of the package keeps `pyspark_diff.operators.contract`.

Each promise of that page is a function here. The tests call it with an example of each class and
random updates. A class without an example fails. The broken toys at the end fail, too.
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
#: A record, its time, its diff, and its coordinate in a loop.
Row = tuple[Record, int, int, int]

#: Frontiers of three steps, and iterations of a loop.
FRONTIERS = (0, 2, 4, 6)
ITERATIONS = 3


@dataclass(frozen=True)
class Input:
    """One arrangement: its columns, beginning with the key, and the records of random updates."""

    key: int
    names: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    domain: tuple[Record, ...]
    ordering: tuple[tuple[bool, bool], ...] | None = None
    sums: tuple[Accumulator, ...] = ()
    #: A key has at most one record at each time.
    single: bool = False
    #: No multiplicity is negative.
    positive: bool = False
    #: The kernel reads all columns.
    whole: bool = False

    def only(self, needed: Sequence[str]) -> tuple[int, ...]:
        """Positions of the key, of the column of the order, and of the needed columns."""
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
        """Encode the rows in the same order."""
        if not rows:
            return empty()
        columns = columns if not self.sums else range(len(self.names))
        arrays = [pa.array([r[0][i] for r in rows], self.types[i]) for i in columns]
        time, diff, at = (np.array([r[i] for r in rows], np.int64) for i in (1, 2, 3))
        chunk = self.layout(columns).encode(arrays[: self.key] if self.sums else arrays, time, diff)
        if self.sums:  # the rows have one coordinate
            return into_diff(chunk, arrays[self.key:], self.sums).placed(int(at[0]))
        return chunk.placed(at)

    def grouped(self, rows: Sequence[Row], columns: Sequence[int]) -> Grouped:
        """Encode and consolidate the rows, as in an arrangement."""
        return consolidate(self.updates(rows, columns))

    def batches(self, parts: Sequence[Sequence[Row]], columns: Sequence[int]) -> list[UpdateChunk]:
        chunks = []
        for rows in parts:
            places = sorted({row[3] for row in rows}) if self.sums else [None]
            for place in places:
                chosen = [row for row in rows if place in (None, row[3])]
                chunks.append(self.grouped(chosen, columns).updates)
        return chunks


@dataclass(frozen=True)
class Example:
    """A kernel, its inputs, and its expected output as a function of the inputs at one time."""

    kernel: Kernel
    inputs: tuple[Input, ...]
    types: tuple[pa.DataType, ...]
    function: Callable[..., Counter[Record]]
    #: Columns of the output's key, if the output is arranged.
    key: int = 0

    @property
    def own(self) -> Layout:
        return Layout(self.types[: self.key], value=Layout(self.types[self.key:]))

    @property
    def positions(self) -> tuple[int, ...]:
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
PART = replace(PAIRS, single=True)
OTHER_PART = replace(OTHERS, single=True)


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
    groups: dict[Any, list[tuple[Record, int]]] = {}
    for (key, *values), n in a.items():
        groups.setdefault(key, []).append((tuple(values), n))
    return groups


def rank(value):
    """The order of `IN_ORDER`: numbers descending, nulls first; then text ascending, nulls last."""
    (v, w) = value
    return (v is not None, -(v or 0)), (w is None, w or "")


def first(a):
    rows = []
    for key, values in by_key(a).items():
        places = [v for v, n in sorted(values, key=lambda r: rank(r[0])) for _ in range(max(n, 0))]
        rows += [((key, *v), 1) for v in places[:2]]
    return total(rows)


def numbered(a):
    rows = []
    for key, values in by_key(a).items():
        places = [v for v, n in sorted(values, key=lambda r: rank(r[0])) for _ in range(max(n, 0))]
        rows += [((key, *v, i + 1), 1) for i, v in enumerate(places[:3])]
    return total(rows)


def in_windows(a):
    """Rows with the values of all `WINDOWS`."""
    rows = []
    for key, values in by_key(a).items():
        places = [v for v, n in sorted(values, key=lambda r: rank(r[0])) for _ in range(n)]
        for i, (v, w) in enumerate(places):
            before = [other for other in places if rank((other[0], "")) < rank((v, ""))]
            upto = [x for x, _ in places[:i + 1]]
            near = [x or 0 for x, _ in places[max(i - 1, 0):i + 2]]
            valid = [x for x in upto if x is not None]
            peers = [x for x, _ in places if rank((x, "")) <= rank((v, ""))]
            rows.append(((
                key, v, w, i + 1, len(before) + 1, places[i - 1][1] if i else "none",
                sum(near) if any(x is not None for x, _ in places[max(i - 1, 0):i + 2]) else None,
                valid[-1] if valid else None, len(peers),
            ), 1))
    return total(rows)


#: The first three number or look up rows, and the others aggregate a frame of rows.
WINDOWS = (
    PlaceFunction(LONG, "row_number"), PlaceFunction(LONG, "rank"), Offset(TEXT, "w", -1, "none"),
    Summed(LONG, "v", IntegerSum(LONG, 0), WindowFrame(True, -1, 1)),
    Picked(LONG, "last", "v", WindowFrame(True, None, 0), "v"),
    Summed(LONG, None, CountResult(LONG, RowCount()), WindowFrame(False, None, 0)),
)


def of_windows(*numbers):
    """An example with some of the window functions."""
    kernel = WindowKernel(
        PAIRS.names, (("v", True),), tuple(WINDOWS[i] for i in numbers), TimeType(T.LongType())
    )
    kinds = tuple(WINDOWS[i].kind for i in numbers)
    return Example(kernel, (IN_ORDER,), (*PAIRS.types, *kinds), lambda a: total(
        ((*row[:3], *(row[3 + i] for i in numbers)), n) for row, n in in_windows(a).items()
    ))


def summed(a):
    groups = {}
    for (key, v), n in a.items():
        rows, amount, valid = groups.get(key, (0, 0, 0))
        groups[key] = rows + n, amount + n * (v or 0), valid + n * (v is not None)
    return total(((k, s, c), 1) for k, (rows, s, c) in groups.items() if rows)


def side_by_side(a, b):
    others = {key: values[0][0] for key, values in by_key(b).items()}
    return total(
        ((k, v, *others.get(k, (-1,)), w), 1) for (k, v, w), n in a.items() if n
    )


def aggregated(sums, values, others):
    """For each key of `summed`: the sums, the first and the last value, and the other record."""
    ranked = {key: [r[0] for r in sorted(records, key=lambda r: rank(r[0])) if r[1] > 0]
              for key, records in by_key(values).items()}
    other = {key: records[0][0][0] for key, records in by_key(others).items()}
    rows = []
    for key, total_, valid in summed(sums):
        (v, w), (last, _) = (ranked.get(key) or [(0, "")])[0], (ranked.get(key) or [(0, "")])[-1]
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
            CheckedKernel(TimeType(T.LongType())), (replace(WORDS, single=True),), WORDS.types,
            lambda a: a,
        )
    ],
    CompleteKernel: [
        Example(
            CompleteKernel(TimeType(T.LongType()), 1, NothingThere(("w",), None)),
            (replace(WORDS, single=True),), WORDS.types, lambda a: total([]),
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
    """The same example with keys of text, so that the kernel compares hashes."""
    inputs = tuple(
        replace(
            source, types=(TEXT, *source.types[1:]),
            domain=tuple((r[0] if r[0] is None else f"k{r[0]}", *r[1:]) for r in source.domain),
        )
        for source in example.inputs
    )
    position = 2 if isinstance(example.kernel, JoinKernel) else 0
    types = tuple(TEXT if i == position else kind for i, kind in enumerate(example.types))
    return replace(example, inputs=inputs, types=types)


for kind in (AggregateKernel, TopKKernel, ReduceKernel, CollateKernel, JoinKernel, SemijoinKernel):
    KERNELS[kind].append(with_text_keys(KERNELS[kind][0]))


# The classes of the package.


def classes_in(package: ModuleType, base: type) -> set[type]:
    """The concrete classes of a package that derive from the base."""
    classes = set()
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        for value in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(value) and issubclass(value, base) and not inspect.isabstract(value):
                classes.add(value)
    return classes


#: Kernels that fold their input, in order of time, over their earlier output. So their output is
#: no function of their input at a time. `test_keyed_inputs` and `test_late_rows` test them.
FOLDS = {UpsertKernel, VersionKernel}
#: Kernels with an output that depends on the time as well as on the input: see `test_sliding`.
BY_TIME = {DueKernel}


def test_every_kernel_and_every_stage_has_an_example():
    assert classes_in(operators, Kernel) - FOLDS - BY_TIME == set(KERNELS)
    assert classes_in(operators, Stage) == set(STAGES)


def test_what_looks_like_a_kernel_or_a_stage_says_so():
    for cls in classes_in(operators, object):
        if not cls.__module__.startswith(operators.__name__):
            continue
        call = vars(cls).get("__call__")
        if call is not None and "wanted" in inspect.signature(call).parameters:
            assert issubclass(cls, Kernel), cls
        if {"on_table", "on_frame"} <= vars(cls).keys():
            assert issubclass(cls, Stage), cls


# Turns of a kernel.


@dataclass(frozen=True)
class Turn:
    """The input of one call of a kernel, as rows, so that a test can cut them in several ways."""

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
        for number, source in enumerate(self.example.inputs):
            columns = source.only(self.example.kernel.needs(wanted, number))
            depth = len(self.at) or int(self.limited)
            sides.append(Side(
                self.batches(source, self.old[number], columns),
                source.batches([self.earlier[number]] if self.earlier[number] else [], columns),
                source.grouped(self.new[number], columns), depth, source.layout(columns),
                source.names[: source.key] if source.sums
                else tuple(source.names[i] for i in columns),
                self.lower, Limit(1, 1) if self.limited else None,
            ))
        return sides

    def batches(
        self, source: Input, rows: Sequence[Row], columns: Sequence[int]
    ) -> list[UpdateChunk]:
        """Old rows as batches, cut as `cut` says."""
        choice = random.Random(self.cut)
        parts: list[list[Row]] = [[] for _ in range(1 + self.cut % 3)]
        for record, time, diff, at in rows:
            if self.cut > 2:  # an insertion and a retraction that cancel, maybe in two batches
                choice.choice(parts).append((record, time, 5, at))
                choice.choice(parts).append((record, time, -5, at))
            choice.choice(parts).append((record, time, diff, at))
        batches = source.batches(parts if self.cut else [rows] if rows else [], columns)
        if self.cut % 2:
            return [consolidate(advanced(batch, self.lower)).updates for batch in batches]
        return batches

    def own_side(self) -> Side | None:
        kernel, example = self.example.kernel, self.example
        if not isinstance(kernel, ReplayKernel) or not kernel.arranges_output:
            return None
        names = tuple(f"o{i}" for i in example.positions)
        source = Input(example.key, names, example.types, ())
        nothing = Grouped(empty(), np.empty(0, np.int64))
        old = self.batches(source, self.own, example.positions)
        limit = Limit(1, 1) if self.limited else None
        return Side(old, [], nothing, int(self.limited), example.own, names, self.lower, limit)


@dataclass
class Output:
    """The output of a kernel: rows of the wanted columns."""

    rows: list[Row]
    read: int = 0
    types: list[pa.DataType] = field(default_factory=list)

    def total(self) -> Counter[Any]:
        """Sums of the diffs by record, time and coordinate."""
        return total(((record, time, at), diff) for record, time, diff, at in self.rows)


#: The most pairs of a chunk.
MOST = 7


def args(turn: Turn, wanted: Sequence[int]) -> tuple[Any, ...]:
    """The arguments of the kernel's call."""
    if isinstance(turn.example.kernel, BilinearKernel):
        return turn.sides(wanted), turn.at, list(wanted), MOST
    return turn.sides(wanted), turn.own_side(), list(wanted)


def run(kernel: Any, arguments: tuple[Any, ...]) -> Output:
    """Call a kernel and return its output as rows."""
    result = kernel(*arguments)
    if isinstance(result, tuple):
        return rows_of(result[0], 0, result[1])
    whole = Output([], result.read, [])
    named = result.coordinates()
    for part in result.parts:
        for changes, places in part():
            chunk = rows_of(changes, places)
            assert not whole.types or whole.types == chunk.types
            assert {at for *_, at in chunk.rows} <= set(named), "it names its coordinates"
            whole.rows, whole.types = whole.rows + chunk.rows, chunk.types
    assert len(whole.rows) <= result.rows, "it reports an upper bound of its rows"
    return whole


def rows_of(changes: Any, places: Any, read: int = 0) -> Output:
    """Convert the changes to rows."""
    columns, times, diffs = changes
    assert isinstance(diffs, np.ndarray), "the diffs have the number of rows"
    assert all(len(column) == diffs.size for column in columns), "columns have one length"
    for values in (times, places):
        assert isinstance(values, int) or values.size == diffs.size
    times, places = (np.broadcast_to(v, diffs.size).tolist() for v in (times, places))
    records = list(zip(*(c.to_pylist() for c in columns))) if columns else [()] * diffs.size
    rows = list(zip(records, times, diffs.tolist(), places))
    return Output(rows, read, [column.type for column in columns])


def turns(example: Example, rows: Sequence[Sequence[Row]]) -> Iterator[Turn]:
    """The calls of a kernel in each step, as runners make them, with its earlier output."""
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
        own += run(kernel, args(turn, example.positions)).rows


def plain(rows: Sequence[Sequence[Row]]) -> list[list[Row]]:
    """The rows without coordinates of loops."""
    return [[(record, time, diff, 0) for record, time, diff, _ in side] for side in rows]


def one_each(rows: Sequence[Row]) -> list[Row]:
    """Rows that leave at most one record of a key at each time: each new one replaces the last."""
    changes: list[Row] = []
    there: dict[Any, Record] = {}
    last = {(r[0][0], r[1]): r for r in rows}
    for (key, time), (record, _, diff, _) in sorted(last.items(), key=lambda item: item[0][1]):
        if key in there:
            changes.append((there.pop(key), time, -1, 0))
        if diff > 0:
            changes.append((record, time, 1, 0))
            there[key] = record
    return [(r, t, d, 0) for (r, t), d in total(((r, t), d) for r, t, d, _ in changes).items()]


def not_negative(rows: Sequence[Row]) -> list[Row]:
    """Rows without retractions that would make a multiplicity negative at some coordinate."""
    remaining: list[Row] = []
    for row in sorted(rows, key=lambda row: row[1]):
        updates = [other for other in (*remaining, row) if other[0] == row[0]]
        # A coordinate accumulates the rows at coordinates up to it.
        if all(sum(n for _, _, n, c in updates if c <= at) >= 0 for at in range(ITERATIONS)):
            remaining.append(row)
    return remaining


@st.composite
def histories(draw: st.DrawFn, example: Example) -> list[list[Row]]:
    """Random updates of each input."""
    inputs = []
    for source in example.inputs:
        row = st.tuples(
            st.sampled_from(source.domain), st.integers(0, FRONTIERS[-1] - 1),
            st.sampled_from((1, 1, 1, 2, -1)), st.integers(0, ITERATIONS - 1),
        )
        rows = draw(st.lists(row, max_size=25))
        inputs.append(
            one_each(rows) if source.single else not_negative(rows) if source.positive else rows
        )
    return inputs


# The promises of a kernel.


def accumulated(rows: Sequence[Row], time: int, at: int) -> Counter[Record]:
    return total((r, n) for r, t, n, c in rows if t <= time and c <= at)


def promise_function(example: Example, rows: Sequence[Sequence[Row]]) -> None:
    """The output accumulates to the function of the input, at each time and coordinate."""
    bilinear = isinstance(example.kernel, BilinearKernel)
    rows = rows if bilinear else plain(rows)
    outputs: list[Row] = []
    for turn in turns(example, rows):
        outputs += run(example.kernel, args(turn, example.positions)).rows
        if bilinear and turn.at[0] < ITERATIONS - 1:
            continue
        for time, at in product(range(turn.lower, turn.upper), range(ITERATIONS)):
            expected = example.function(*(accumulated(side, time, at) for side in rows))
            assert accumulated(outputs, time, at) == expected


def promise_interval(example: Example, rows: Sequence[Sequence[Row]]) -> None:
    """No update lies outside of the interval, or at a coordinate before that of the turn."""
    for turn in turns(example, rows):
        for _, time, _, at in run(example.kernel, args(turn, example.positions)).rows:
            assert turn.lower <= time < turn.upper
            assert not turn.at or unpack(at, 1) >= turn.at


def typed(example: Example, output: Output, wanted: Sequence[int]) -> bool:
    """Whether the columns have their types. A bilinear kernel without output returns none."""
    none = isinstance(example.kernel, BilinearKernel) and not output.types
    return none or output.types == [example.types[i] for i in wanted]


def promise_columns(example: Example, rows: Sequence[Sequence[Row]]) -> None:
    """A call for some columns, in any order, returns the same values as a call for all of them."""
    positions = example.positions
    for turn in turns(example, rows):
        whole = run(example.kernel, args(turn, positions))
        assert typed(example, whole, positions)
        for wanted in ((), positions[::-1], positions[1:], *((i,) for i in positions)):
            output = run(example.kernel, args(turn, wanted))
            assert typed(example, output, wanted)
            rest = [(tuple(r[i] for i in wanted), t, n, c) for r, t, n, c in whole.rows]
            assert output.total() == Output(rest).total()


def promise_nothing(example: Example, rows: Sequence[Sequence[Row]]) -> None:
    """Without new updates there is no output, with any old updates."""
    nothing = tuple(() for _ in rows)
    for turn in [Turn(example, nothing, nothing, nothing, 0, 2), *turns(example, rows)]:
        output = run(example.kernel, args(replace(turn, new=nothing), example.positions))
        assert not output.rows and typed(example, output, example.positions)


def promise_cut(example: Example, rows: Sequence[Sequence[Row]]) -> None:
    """The cuts and the compaction of old batches do not change the output."""
    for turn in turns(example, rows):
        expected = run(example.kernel, args(turn, example.positions)).total()
        for cut in range(1, 6):
            cut_up = args(replace(turn, cut=cut), example.positions)
            assert run(example.kernel, cut_up).total() == expected


def promise_parts(example: Example, rows: Sequence[Sequence[Row]]) -> None:
    """The size of chunks does not change the pairs, and parts may be evaluated in any order."""
    if not isinstance(example.kernel, BilinearKernel):
        return
    for turn in turns(example, rows):
        *arguments, _ = args(turn, example.positions)
        expected = run(example.kernel, (*arguments, 10**6)).total()
        size = sum(len(updates) for side in arguments[0] for updates in all_of(side))
        cut = isinstance(example.kernel, JoinKernel)
        for most in (1, 2, 5):
            assert run(example.kernel, (*arguments, most)).total() == expected
            parts, again = (list(example.kernel(*arguments, most).parts) for _ in range(2))
            assert len(parts) == len(again)
            for part, other in reversed(list(zip(parts, again))):
                chunks = [rows_of(*chunk).rows for chunk in part()]
                assert chunks == [rows_of(*chunk).rows for chunk in other()]
                assert all(len(chunk) <= (most if cut else size) for chunk in chunks)


def all_of(side: Side) -> list[UpdateChunk]:
    return [*side.old, *side.earlier, side.new.updates]


def promise_limit(example: Example, rows: Sequence[Sequence[Row]]) -> None:
    """In a loop a replay reads the updates at coordinates up to that of the turn, as if at one."""
    if isinstance(example.kernel, BilinearKernel) or any(s.single for s in example.inputs):
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
        # The replay reads all new updates: none has a later coordinate.
        turn = replace(turn, new=new)
        own = run(example.kernel, args(
            replace(turn, old=tuple(() for _ in old), new=below, lower=0), example.positions
        )).rows
        beyond = [(record, 0, 3, 2) for record, *_ in own]
        expected = run(
            example.kernel, args(replace(turn, old=below, own=tuple(own)), example.positions)
        )
        limited = run(example.kernel, args(
            replace(turn, old=old, own=(*own, *beyond), limited=True), example.positions
        ))
        assert limited.total() == expected.total()


def promise_same(example: Example, rows: Sequence[Sequence[Row]]) -> None:
    """Equal arguments have equal outputs, also after pickling of the kernel."""
    travelled = cloudpickle.loads(cloudpickle.dumps(example.kernel))
    for turn in turns(example, rows):
        expected = run(example.kernel, args(turn, example.positions)).rows
        assert run(example.kernel, args(turn, example.positions)).rows == expected
        assert run(travelled, args(turn, example.positions)).rows == expected


def promise_pure(example: Example, rows: Sequence[Sequence[Row]]) -> None:
    """A call does not change its arguments."""
    for turn in turns(example, rows):
        arguments = args(turn, example.positions)
        before = [contents(argument) for argument in arguments]
        run(example.kernel, arguments)
        assert [contents(argument) for argument in arguments] == before


def contents(argument: Any) -> Any:
    """The data of an argument, for comparison."""
    if isinstance(argument, UpdateChunk):
        return ipc.to_bytes(argument) if len(argument) else None
    if isinstance(argument, Side):
        return [contents(part) for part in (*argument.old, None, *argument.earlier, argument.new)]
    if isinstance(argument, Grouped):
        return contents(argument.updates), argument.starts.tolist()
    if isinstance(argument, list):
        return [contents(part) for part in argument]
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
    """A factory of the stage that a method of `DiffFrame` adds."""
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
    """The sums of the diffs by record and time."""
    last = table.select([*(name for name in table.column_names if name != DIFF), DIFF])
    return total((row[:-1], row[-1] * n) for row, n in rows_in(last).items())


def by_spark(stage: Stage, spark: Any, table: pa.Table) -> pa.Table:
    return stage.on_frame(spark.createDataFrame(table, STRUCT)).toArrow()


def stage_frame(stage: Stage, spark: Any, table: pa.Table) -> None:
    """Frames and tables have the same output. A stage that is not portable names its schema."""
    expected = by_spark(stage, spark, table)
    if stage.portable:
        actual = stage.on_table(table)
        assert actual.column_names == expected.column_names
        assert [f.type for f in actual.schema] == [f.type for f in expected.schema]
        assert rows_in(actual) == rows_in(expected)
        assert stage.takes is None
    else:
        assert stage.takes == STRUCT
        with pytest.raises(TypeError):
            stage.on_table(table)


def evaluated(stage: Stage, spark: Any, table: pa.Table) -> pa.Table:
    return stage.on_table(table) if stage.portable else by_spark(stage, spark, table)


def stage_cut(stage: Stage, spark: Any, table: pa.Table) -> None:
    """The order and the cuts of rows do not change the output."""
    halves = [evaluated(stage, spark, t) for t in (table[:7], table[7:][::-1])]
    assert rows_in(evaluated(stage, spark, table)) == rows_in(halves[0]) + rows_in(halves[1])


def stage_linear(stage: Stage, spark: Any, table: pa.Table) -> None:
    """Consolidation of the input does not change the consolidated output."""
    added = [(*row, n) for row, n in collection(table).items()]
    short = pa.table([pa.array(c, f.type) for c, f in zip(zip(*added), SCHEMA)], schema=SCHEMA)
    actual, expected = (collection(evaluated(stage, spark, t)) for t in (short, table))
    assert actual == expected


def stage_nothing(stage: Stage, spark: Any, table: pa.Table) -> None:
    """Without input there is no output, and its columns are the same."""
    outputs, some = (evaluated(stage, spark, t) for t in (table[:0], table))
    assert not outputs.num_rows
    assert [(f.name, f.type) for f in outputs.schema] == [(f.name, f.type) for f in some.schema]


def stage_times(stage: Stage, spark: Any, table: pa.Table) -> None:
    """A stage with `keeps_time_and_diff` changes no time and no diff."""
    output = evaluated(stage, spark, table)
    if stage.keeps_time_and_diff:
        assert rows_in(output.select([TIME, DIFF])) <= rows_in(table.select([TIME, DIFF]))


def stage_travels(stage: Stage, spark: Any, table: pa.Table) -> None:
    """A portable stage has the same output after pickling."""
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
    # Each salted row meets exactly one of the copies of each replicated row.
    table = update_rows(1, 20)
    salts = Salt("n", ("k", "s")).on_table(table)["n"].to_pylist()
    copies = Replicate("n").on_table(table[:1])["n"].to_pylist()
    assert sorted(copies) == list(range(SALTS)) and set(salts) <= set(copies)


# Toys that break a promise: the test of the promise must fail.


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
        result = super().__call__(sides, own, wanted)
        sides[0].old.clear()
        return result


class WritesOnIt(CountKernel):
    def __call__(self, sides, own, wanted):
        result = super().__call__(sides, own, wanted)
        for batch in sides[0].old:
            batch.key64.setflags(write=True)
            batch.key64[:] = 0
        return result


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
    """Emits its updates at wrong coordinates."""

    def place(self, where, at):
        raise NotImplementedError

    def __call__(self, sides, at, wanted, most):
        pairs = super().__call__(sides, at, wanted, most)

        def moved(part):
            return lambda: ((changes, self.place(where, at)) for changes, where in part())

        return replace(pairs, parts=map(moved, pairs.parts), coordinates=lambda: list(range(99)))


class HereAndNow(Elsewhere):
    def place(self, where, at):
        return pack(at)


class Backwards(Elsewhere):
    def place(self, where, at):
        return where * 0


class DropsParts(JoinKernel):
    def __call__(self, sides, at, wanted, most):
        pairs = super().__call__(sides, at, wanted, most)
        return replace(pairs, parts=islice(pairs.parts, 1))


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
    # Each record changes at each time and each coordinate.
    rows = [
        [(r, time, 1, (time + number + i) % ITERATIONS)
         for time in range(FRONTIERS[-1]) for i, r in enumerate(source.domain)]
        for number, source in enumerate(sound.inputs)
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
