"""Random programs and random ways of feeding them, and a run that is compared with the oracle.

    at every time t before the frontier:
        accumulate(emitted updates, t) == evaluate(program, inputs at t)
"""

from __future__ import annotations

import datetime
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Collection, Iterator, Mapping, Sequence

import pandas as pd
import pyarrow as pa
from hypothesis import strategies as st
from oracle import (
    FLAT_MAPS,
    THRESHOLDS,
    Columns,
    Op,
    Program,
    accumulate,
    columns_of,
    evaluate,
    normal,
)
from program_ops import apply_op, ddl, quoted, relational
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from pyspark_diff import Dataflow, DiffFrame, Loop, NotReadableError, thresholds
from pyspark_diff.spark.data_types import arrow_type
from pyspark_diff.thresholds import Thresholds
from pyspark_diff.trace import held_batches

#: Thresholds with which few rows go where many go, and no large batch stays in memory.
MANY = {
    "partition_rows_min": 0, "dense_slots_per_row_max": 0, "multiply_pairs_max": 0,
    "threaded_rows_min": 0, "large_memory_divisor": 1 << 60,
}
#: Few values of each type, so that updates meet; those at the edges of the type among them.
DOMAINS: dict[str, list[Any]] = {
    "array<int>": [[], [1], [None], [1, 2], None],
    "bigint": [0, 1, 2**62, -(2**63), None],
    "boolean": [True, False, None],
    "date": [datetime.date(1970, 1, 1), datetime.date(2024, 2, 29), None],
    "double": [0.0, -0.0, float("nan"), 1.5, None],
    "int": [0, 1, -7, None],
    "string": ["", "a", "é", None],
}
SHAPES: list[Columns] = [
    (("k", "bigint"),),
    (("k", "int"),),
    (("s", "string"),),
    (("x", "double"),),
    (("k", "int"), ("s", "string")),
    (("a b", "boolean"), ("day", "date")),
    (("k", "bigint"), ("list", "array<int>"), ("s", "string")),
]
KEYED = frozenset({"consolidate", "count", "count_total", "distinct", "threshold"})


# Programs in terms of the library.


def build(program: Program, frames: list[DiffFrame]) -> list[DiffFrame]:
    """The frame of each node, checked to have the columns that the oracle says."""
    columns = columns_of(program)
    nodes = list(frames)
    for op in program.ops:
        nodes.append(apply(op, [nodes[i] for i in op.reads], columns[len(nodes)]))
    for node, expected in zip(nodes, columns):
        actual = tuple((f.name, f.dataType.simpleString()) for f in node.schema.fields)
        assert actual == expected
    return nodes


def apply(op: Op, frames: list[DiffFrame], schema: Columns) -> DiffFrame:
    """One operator of the library."""
    first, args = frames[0], op.args
    if op.name == "pick":
        return first.select(*args)
    if op.name == "rename":
        return first.withColumnRenamed(*args)
    if op.name == "where":
        condition, column, than = args
        operand = F.col(quoted(column))
        return first.where({
            "null": operand.isNull(),
            "not null": f"{quoted(column)} is not null",
            "equal": operand == F.lit(than),
            "less": operand < F.lit(than),
        }[condition])
    if op.name in ("withColumn", "select"):
        name, expression, column = args
        operand = F.col(quoted(column))
        value = {
            "copy": lambda: operand,
            "seven": lambda: F.lit(7),
            "is null": lambda: operand.isNull(),
            "low bit": lambda: operand.bitwiseAND(1),
            "suffix": lambda: F.concat(operand, F.lit("x")),
        }[expression]()
        if op.name == "withColumn":
            return first.withColumn(name, value)
        return first.select("*", value.alias(name))
    if op.name == "flat_map":
        return first.flat_map(FLAT_MAPS[args[0]], ddl(schema))
    if op.name == "map_in_pandas":
        return first.map_in_pandas(IN_PANDAS[args[0]], ddl(schema))
    if op.name == "transform":
        return first.transform({
            "twice": lambda frame: frame.withColumn("diff", F.col("diff") * 2),
            "negated": lambda frame: frame.selectExpr(
                *map(quoted, first.columns), "time", "-diff as diff"
            ),
            "explode": lambda frame: frame.withColumn(
                "part", F.explode(F.array(F.lit(1), F.lit(2)))
            ),
        }[args[0]])
    if op.name == "threshold":
        return first.threshold(THRESHOLDS[args[0]])
    if op.name == "iterate":
        return iterated(op, frames)
    if op.name == "inspect":
        return first.inspect(lambda *_: None)
    if op.name == "plain":
        kinds = [(field.name, arrow_type(field.dataType)) for field in first.schema]
        table = pa.table([pa.nulls(args[0], kind) for _, kind in kinds], schema=pa.schema(kinds))
        return first.union(table)
    output = apply_op(op, frames, schema)
    if output is not None:
        return output
    # All other operators have the library's names, and collections or column names as arguments.
    return getattr(first, op.name)(*frames[1:], *args)


def iterated(op: Op, frames: list[DiffFrame]) -> DiffFrame:
    """A loop whose body is a program; its other inputs do not change."""
    times, style, body = op.args

    def turn(now: DiffFrame) -> DiffFrame:
        others = [entering(other) for other in frames[1:]] if style == "entering" else frames[1:]
        return build(body, [now, *others])[body.outputs[-1]]

    if style != "variables":
        return frames[0].iterate(turn, max_iterations=times, on_limit="return")
    with Loop(times, "return") as loop:
        # Two variables with equal contents, each computed from the other.
        first, second = loop.variable(frames[0]), loop.variable(frames[0])
        after = second.set(turn(first))
        first.set(turn(second))
    return loop.leave(after)


def entering(frame: DiffFrame) -> DiffFrame:
    """A collection in a loop, each record as the oracle has it enter."""
    if not frame.columns:
        return frame.enter_at(F.lit(3))
    name, kind = frame.columns[0], frame.schema[0].dataType.simpleString()
    first = F.col(quoted(name))
    number = F.when(first.isNull(), 0)
    if kind in ("bigint", "int", "double", "string"):
        number = number.when(first == F.lit("a" if kind == "string" else 0), 1)
    elif kind == "boolean":
        number = number.when(~first, 1)  # to Python false is zero
    return frame.enter_at(number.otherwise(3))


def pandas_twice(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame
        yield frame


def pandas_negated(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    return (frame.assign(diff=-frame["diff"]) for frame in frames)


def pandas_tagged(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    return (frame.assign(mark="z") for frame in frames)


IN_PANDAS = {"twice": pandas_twice, "negated": pandas_negated, "tagged": pandas_tagged}


# Random programs.


@st.composite
def programs(
    draw: st.DrawFn, most: int = 6, whole: bool = False, meet: bool = False
) -> Program:
    """A program of up to ``most`` operators; with ``whole``, one without sinks in the middle.

    With ``meet``, several inputs meet in it, and it has only outputs that depend on all of them.
    """
    shape = draw(st.sampled_from(SHAPES))
    same_shape = [shape] * len(SHAPES)
    count = draw(st.sampled_from([2, 3] if meet else [2, 1, 2, 3]))
    shapes = st.just(shape) if meet else st.sampled_from([*same_shape, *SHAPES])
    inputs = tuple(draw(shapes) for _ in range(count))
    program = Program(inputs, (), ())
    same = [i for i in range(count) if inputs[i] == inputs[0]]
    if meet or len(same) > 1 and draw(st.sampled_from([True, True, True, False])):
        # Inputs that advance by themselves meet before the operators with state.
        program = Program(inputs, (Op("concat", tuple(same)),), ())
    for _ in range(draw(st.integers(min(3, most), most))):
        op = draw(operators(program, whole))
        if meet and min(op.reads) < len(inputs):
            continue
        program = Program(inputs, (*program.ops, op), ())
    nodes = len(inputs) + len(program.ops)
    # The last node, and sometimes an earlier one.
    others = draw(st.sets(st.integers(0, nodes - 1), max_size=0 if meet else 1))
    return Program(inputs, program.ops, tuple(sorted(others | {nodes - 1})))


@st.composite
def operators(draw: st.DrawFn, program: Program, whole: bool) -> Op:
    """An operator on some nodes of a program, more often on the last one."""
    columns = columns_of(program)
    last = len(columns) - 1
    node = last if draw(st.sampled_from([True] * 5 + [False])) else draw(st.integers(0, last))
    there = columns[node]
    names = [name for name, _ in there]
    if draw(st.sampled_from([True, True, False])):
        op = draw(relational(program, node, whole))
        if op is not None:
            return op
    # The operators with state, those that make cancelling updates, and those that are cheap, often.
    keyed = ["count", "distinct", "threshold", "count", "distinct", "consolidate", "count_total"]
    sums = ["concat", "union", *(["plain"] if there and not whole else [])]
    linear = ["negate", "negate", "flat_map", "transform"]
    linear += [] if whole else ["inspect", "arrange_by_self"]
    if there:
        linear += ["drop", "drop", "pick", "pick", "rename", "select", "where", "withColumn"]
    if all(kind != "double" for _, kind in there):
        linear.append("map_in_pandas")  # doubles have no null of their own in pandas
    choices = draw(st.sampled_from([keyed, sums, keyed, linear, linear]))
    name = draw(st.sampled_from(choices))
    column, kind = draw(st.sampled_from(there)) if there else ("", "")
    unused = next(n for n in ("u", "v", "w", *"abcdefghij") if n not in names)
    if name == "pick":
        return Op(name, (node,), tuple(draw(st.permutations(names)))[: draw(st.integers(1, 3))])
    if name == "drop":
        return Op(name, (node,), tuple(sorted(draw(st.sets(st.sampled_from(names), min_size=1)))))
    if name == "rename":
        return Op(name, (node,), (column, unused))
    if name == "where":
        conditions = ["null", "not null"]
        if kind in ("bigint", "double", "int", "string"):
            conditions += ["equal", "less"]
        return Op(name, (node,), (draw(st.sampled_from(conditions)), column, {
            "double": 1.5, "string": "a",
        }.get(kind, 1)))
    if name in ("select", "withColumn"):
        expressions = ["copy", "seven", "is null"]
        expressions += ["low bit"] if kind in ("int", "bigint") else []
        expressions += ["suffix"] if kind == "string" else []
        as_name = column if name == "withColumn" and draw(st.booleans()) else unused
        return Op(name, (node,), (as_name, draw(st.sampled_from(expressions)), column))
    if name == "flat_map":
        kinds = ["twice", *(["first", "tags"] if there and names[0] != "tag" else [])]
        return Op(name, (node,), (draw(st.sampled_from(kinds)),))
    if name == "map_in_pandas":
        kinds = ["twice", "negated", *(["tagged"] if "mark" not in names else [])]
        return Op(name, (node,), (draw(st.sampled_from(kinds)),))
    if name == "transform":
        kinds = ["twice", "negated", *(["explode"] if "part" not in names else [])]
        return Op(name, (node,), (draw(st.sampled_from(kinds)),))
    if name == "plain":
        return Op(name, (node,), (draw(st.integers(1, 2)),))
    if name == "threshold":
        return Op(name, (node,), (draw(st.sampled_from(sorted(THRESHOLDS))),))
    if name == "union":
        kinds = [kind for _, kind in there]
        candidates = [i for i, other in enumerate(columns) if [kind for _, kind in other] == kinds]
        return Op(name, (node, draw(st.sampled_from(strangers(candidates, node)))))
    if name == "concat":
        candidates = [i for i, other in enumerate(columns) if sorted(other) == sorted(there)]
        others = draw(
            st.lists(st.sampled_from(strangers(candidates, node)), min_size=1, max_size=2)
        )
        return Op(name, (node, *others))
    return Op(name, (node,))


def strangers(candidates: list[int], node: int) -> list[int]:
    """Nodes to add to a node: rather others than itself, and rather those before it."""
    return [*(i for i in candidates if i != node), *(i for i in candidates if i < node), node]


# Random ways of feeding a program.

#: The actions before a step: (input, action, argument), in order.
Actions = tuple[tuple[int, str, Any], ...]


@st.composite
def schedules(
    draw: st.DrawFn, inputs: tuple[Columns, ...], most: int = 5, frames: bool = False,
    lags: bool = False, discards: bool = False,
) -> tuple[Actions, ...]:
    """The actions on the inputs before each step; with ``frames``, also with Spark frames.

    With ``lags``, some inputs do not advance for some steps. With ``discards``, some updates
    that have not been processed everywhere are dropped.
    """
    pools = {columns: draw(pool(columns)) for columns in dict.fromkeys(inputs)}
    forms = ["rows", "rows", "rows", "dicts", "arrow", *(["frame"] if frames else [])]
    often = st.sampled_from([True, True, True, True, False])
    seldom = st.sampled_from([False] * 15 + [True])
    steps = []
    count = draw(st.integers(min(3, most) if lags else 2, most))
    still: dict[int, range] = {}
    if lags:
        ahead = draw(st.integers(0, len(inputs) - 1))  # one that always goes on
        for number in range(len(inputs)):
            first = draw(st.integers(0, count - 1))
            last = draw(st.integers(first, count))
            still[number] = range(0) if number == ahead else range(first, last)
    for step in range(count):
        actions: list[tuple[int, str, Any]] = []
        for number in draw(st.permutations(range(len(inputs)))):
            if discards and step and draw(st.sampled_from([True, False])):
                where = st.sampled_from([None, "diff > 0", "time % 2 = 0", "false"])
                actions.append((number, "discard", draw(where)))
            records = st.sampled_from(pools[inputs[number]])
            updates = st.tuples(
                records, st.sampled_from([0, 1, 0, 2, 5]), st.sampled_from([1, -1, 2, -2, 0])
            )
            for _ in range(draw(st.sampled_from([1, 2, 1, 0]))):
                what = draw(st.sampled_from(["insert", "remove", "update", "update"]))
                rows = st.lists(
                    updates if what == "update" else records,
                    min_size=draw(st.sampled_from([1, 1, 1, 0])),
                    max_size=4,
                )
                actions.append((number, what, (draw(st.sampled_from(forms)), draw(rows))))
                actions.append((number, "advance", draw(st.sampled_from([0, 1, 2]))))
            if draw(often):
                actions.append((number, "advance", draw(st.sampled_from([1, 0, 3]))))
            actions += [(number, "flush", None)] * draw(often)
            if lags:
                actions.append((number, "advance", draw(st.sampled_from([1, 2, 3]))))
            actions += [(number, "close", None)] * draw(seldom)
        steps.append(tuple(
            (number, what, data) for number, what, data in actions
            if what not in ("advance", "close") or step not in still.get(number, ())
        ))
    return tuple(steps)


@st.composite
def whole_histories(
    draw: st.DrawFn, inputs: tuple[Columns, ...]
) -> list[list[tuple[Any, int, int]]]:
    """All updates of each input."""
    pools = {columns: draw(pool(columns)) for columns in dict.fromkeys(inputs)}
    return [
        draw(st.lists(
            st.tuples(st.sampled_from(pools[columns]), st.integers(0, 4), st.integers(-2, 2)),
            max_size=12,
        ))
        for columns in inputs
    ]


def pool(columns: Columns) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    """A few records: fewer distinct ones than updates."""
    record = st.tuples(*(st.sampled_from(DOMAINS[kind]) for _, kind in columns))
    return st.lists(record, min_size=1, max_size=4)


# Runs.


@dataclass
class Output:
    """The emitted updates of an output node, and its probe."""

    node: int
    frame: DiffFrame
    updates: list[tuple[Any, int, int]]
    probe: Any
    #: The first time at which it is known: one that is added late knows no more of its past.
    first: int = 0
    #: The updates that the last step emitted, and those that may be emitted again.
    last: list[tuple[Any, int, int]] = field(default_factory=list)
    again: list[tuple[Any, int, int]] = field(default_factory=list)


class Run:
    """A program in a dataflow, and everything that was handed in so far.

    Up to ``memory_rows`` rows of a batch stay in memory. With zero all are in files, and few rows
    take the paths of many. With a small number, operators work through few rows at once.

    Outputs may be added ``late``, each before its step; the nodes with numbers in
    ``keeps`` are kept from the beginning. Inputs that are ``keyed`` have their first column as key:
    insertions are upserts then, removals are deletions, and an update is a new snapshot. For
    others ``constants`` has the records.

    With a ``store`` each step is committed there, and before those steps that ``reopened`` has the
    dataflow is closed, or with ``killed`` only forgotten, and opened by another one.
    """

    def __init__(
        self,
        spark: Any,
        program: Program,
        *,
        kept: bool = False,
        memory_rows: int = Thresholds.in_memory_rows_max,
        late: Sequence[int] = (),
        keeps: Collection[int] = (),
        keyed: Collection[int] = (),
        constants: Mapping[int, list[tuple[Any, ...]]] = MappingProxyType({}),
        store: str | None = None,
        reopened: Collection[int] = (),
        killed: bool = False,
        **options: Any,
    ):
        self.spark, self.program = spark, program
        self._memory_rows = memory_rows
        self._limits = ExitStack()
        self._store, self._reopened, self._killed = store, set(reopened), killed
        self._keyed, self._constants, self._keeps = keyed, constants, keeps
        self._kept, self._late, self._steps = kept, late, 0
        self.history: list[list[tuple[Any, int, int]]] = [
            [(record, 0, 1) for record in constants.get(i, ())]
            for i in range(len(program.inputs))
        ]
        self.closed = [i in constants for i in range(len(program.inputs))]
        #: The record of each key, for each keyed input.
        self._records: dict[int, dict[Any, Any]] = {i: {} for i in keyed}
        #: Whether something was dropped since the last step.
        self._discarded = False
        #: Whether it goes on from what another one has written.
        self.shares_files = False
        self.outputs: list[Output] = []
        #: The oracle's answers by time, for the updates before the last step.
        self._expected: dict[int, list[Any]] = {}
        self._options = options
        self._begin()

    def _begin(self) -> None:
        """Make the dataflow, or open it."""
        if self._store is None:
            self.flow = Dataflow(self.spark, **self._options)
            self._write(self.flow)
            return
        self.flow = Dataflow.open(self._store, self._write, spark=self.spark, **self._options)
        for number, name in self._names.items():
            self.sessions[number] = self.flow.session(name)

    def _write(self, flow: Dataflow) -> None:
        """Write the program, with all outputs that there are by now."""
        self.flow = flow
        if self._memory_rows < Thresholds.in_memory_rows_max:
            flow._piece_rows = max(1, 4 * self._memory_rows)
        self.sessions: list[Any] = []
        self._names = {}
        frames = []
        for i, columns in enumerate(self.program.inputs):
            if i in self._constants:
                table = formed(self.spark, "frame", self._constants[i], columns)
                frame, session = flow.constant(table), None
            elif i in self._keyed:
                frame, session = flow.input(f"in{i}", ddl(columns), key=columns[0][0])
            else:
                frame, session = flow.input(f"in{i}", ddl(columns))
            if session is not None:
                self._names[i] = f"in{i}"
            frames.append(frame)
            self.sessions.append(session)
        self._nodes = build(self.program, frames)
        for node in sorted(self._keeps):
            if self._nodes[node]._node.loop is None:
                self._nodes[node].keep()
        before, self.outputs = self.outputs, []
        for steps in range(self._steps):
            self._add_outputs(steps)
        if not self._steps:
            self._add_outputs(0)
        for output, old in zip(self.outputs, before):
            output.updates.extend(old.updates)
            output.first = old.first
            output.again = old.last if self._killed else []

    def __enter__(self) -> "Run":
        # Without rows in memory all batches are files, also large ones.
        more = {} if self._memory_rows else MANY
        self._limits.enter_context(thresholds.using(in_memory_rows_max=self._memory_rows, **more))
        return self

    def __exit__(self, *_: object) -> None:
        self._limits.close()
        self.flow.close()

    def _add_outputs(self, steps: int) -> None:
        """Show the outputs that are due after ``steps`` steps."""
        new = []
        for number, node in enumerate(self.program.outputs):
            if (self._late[number] if number < len(self._late) else 0) == steps:
                updates: list[tuple[Any, int, int]] = []
                shown = self._nodes[node].inspect(lambda r, t, d, to=updates: to.append((r, t, d)))
                frame = self._nodes[node].keep() if self._kept else shown
                new.append(Output(node, frame, updates, shown.probe()))
        since = self.flow._build().since.bound
        for output in new:
            output.first = 0 if since is None else max(since, 0)
        self.outputs += new

    def step(self, actions: Actions) -> None:
        """Take the actions of a schedule, step, and check the law."""
        if self._steps:
            if self._steps in self._reopened:
                self._reopen()
            self._add_outputs(self._steps)
        self._steps += 1
        for number, what, data in actions:
            if what == "discard":
                self._discard(number, data)
            elif not self.closed[number]:
                self._act(number, what, data)
        self._expected = {}
        before = [output.probe.time() for output in self.outputs]
        counts = [len(output.updates) for output in self.outputs]
        epoch = self.flow._state.epoch
        self.flow.step()
        for output, frontier, count in zip(self.outputs, before, counts):
            again, output.again = output.again, []
            if again and normal(output.updates[count:][:len(again)]) == normal(again):
                # Whether these updates had been emitted before the end is unknown.
                del output.updates[count:count + len(again)]
            else:
                again = []
            new = output.updates[count:]
            # After a step with nothing to do, the last commit is still the one before.
            output.last = (
                new if self.flow._state.epoch > epoch else [*again, *output.last, *new]
            )
            self._check_new(output, frontier, new)
        self._discarded = False
        needed = self.flow._state.paths() | self.flow._outputs.pinned
        if self._store is None and not self.shares_files:
            assert files_of(self.flow) == needed
        elif self._store is not None:
            assert files_of(self.flow) >= needed
        self.check()

    def _reopen(self) -> None:
        """Go on as another application does."""
        if not self._killed:
            self.flow.close()
        self._begin()

    def take(
        self,
        schedule: Sequence[Actions],
        refused: Sequence[str] = ("may look at the times", "loop"),
    ) -> None:
        """Take all steps of a schedule and finish, up to an output that cannot be added
        late: one that reads times, or a loop that has run. The error has one of some texts
        then."""
        try:
            for actions in schedule:
                self.step(actions)
            self.finish()
        except NotReadableError as error:
            assert any(text in str(error) for text in refused), error

    def finish(self) -> None:
        """Close all inputs, take the last step, and check the law once more."""
        self.step(tuple((i, "close", None) for i, session in enumerate(self.sessions) if session))
        assert all(output.probe.done() for output in self.outputs)

    def _act(self, number: int, what: str, data: Any) -> None:
        session, now = self.sessions[number], self.sessions[number].time()
        if what == "advance":
            session.advance_to(now + data)
        elif what == "flush":
            session.flush()
        elif what == "close":
            session.close()
            self.closed[number] = True
        elif number in self._records:
            self._change(number, what, data, now)
        else:
            form, rows = data
            columns = self.program.inputs[number]
            if what == "update":
                rows = [(record, now + delay, diff) for record, delay, diff in rows]
                self.history[number] += rows
                rows = [(*record, time, diff) for record, time, diff in rows]
                columns = (*columns, ("time", "bigint"), ("diff", "bigint"))
            else:
                sign = 1 if what == "insert" else -1
                self.history[number] += [(record, now, sign) for record in rows]
            getattr(session, what)(formed(self.spark, form, rows, columns))

    def _discard(self, number: int, where: str | None) -> None:
        """Drop the waiting updates of a plain input, and forget them."""
        session = self.sessions[number]
        if session is None or number in self._records:
            return
        for table in session.discard(where, waiting=True):
            if not isinstance(table, pa.Table):
                table = table.toArrow()
            columns = [column.to_pylist() for column in table.columns[:-2]]
            records = list(zip(*columns)) if columns else [()] * table.num_rows
            times, diffs = (column.to_pylist() for column in table.columns[-2:])
            for discarded in zip(records, times, diffs):
                known = [normal(update) for update in self.history[number]]
                del self.history[number][known.index(normal(discarded))]
                self._discarded = True

    def _change(self, number: int, what: str, data: Any, now: int) -> None:
        """Apply an action to a keyed input."""
        form, rows = data
        columns, records = self.program.inputs[number], self._records[number]
        if what == "update":
            rows = [record for record, _, _ in rows]
        sent = {normal((row[0],)): row for row in rows if row[0] is not None}
        after = dict(records)
        if what == "insert":
            self.sessions[number].upsert(formed(self.spark, form, list(sent.values()), columns))
            after.update(sent)
        elif what == "remove":
            keys = [row[:1] for row in sent.values()]
            self.sessions[number].delete(formed(self.spark, form, keys, columns[:1]))
            after = {key: row for key, row in records.items() if key not in sent}
        else:
            self.sessions[number].replace(formed(self.spark, form, list(sent.values()), columns))
            after = sent
        self._records[number] = after
        self.history[number] += [(row, now, -1) for row in records.values()]
        self.history[number] += [(row, now, 1) for row in after.values()]

    def _check_new(self, output: Output, frontier: int | None, new: list[Any]) -> None:
        """Check the updates that one step emitted."""
        # A collection of constants alone is complete, and emits its updates, from the beginning.
        if frontier is None and self._constants and len(output.updates) == len(new):
            return
        assert self._discarded or frontier is not None or not new, "updates of what is complete"
        # Discarded updates are retracted at their own times.
        behind = bool(new) and (frontier is None or min(t for _, t, _ in new) < frontier)
        assert self._discarded or not behind, "updates behind the frontier"
        inputs = len(self.program.inputs)
        if output.node >= inputs and self.program.ops[output.node - inputs].name in KEYED:
            after = output.probe.time()
            assert after is None or all(time < after for _, time, _ in new)
            records = [(normal(record), time) for record, time, _ in new]
            assert len(records) == len(set(records)), "not consolidated"
            assert all(diff for _, _, diff in new), "a diff of zero"

    def times(self, frontier: int | None) -> list[int]:
        """All times below a frontier at which anything may change, and the last one."""
        emitted = [update for output in self.outputs for update in output.updates]
        times = {time for updates in (*self.history, emitted) for _, time, _ in updates}
        later = [op.args[0] for op in self.program.ops if op.name in ("delay", "expire_after")]
        times |= {time + interval for time in times for interval in later}
        times |= {0, max(times, default=0) + 1 if frontier is None else frontier - 1}
        return sorted(t for t in times if t >= 0 and (frontier is None or t < frontier))

    def expected(self, node: int, time: int) -> Any:
        """The oracle's answer."""
        if time not in self._expected:
            def before(interval: int) -> list[Any]:
                return [accumulate(updates, time - interval) for updates in self.history]

            self._expected[time] = evaluate(self.program, before(0), before)
        return self._expected[time][node]

    def check(self) -> None:
        """The law, at every time that is complete."""
        for output in self.outputs:
            for time in self.times(output.probe.time()):
                if time < output.first:
                    continue
                actual = accumulate(output.updates, time)
                assert actual == self.expected(output.node, time), f"node {output.node} at {time}"


def files_of(flow: Dataflow) -> set[str]:
    """The files of a dataflow except its lock, and the batches in memory instead of files."""
    root = flow._storage.root
    files = {str(path) for path in Path(root).rglob("*") if path.is_file()}
    files |= {path for path in held_batches._batches if path.startswith(root)}
    return files - {f"{root}/lock"}


def formed(spark: Any, form: str, rows: list[Any], columns: Columns) -> Any:
    """Rows in one of the forms that an input takes."""
    names = [name for name, _ in columns]
    if form == "dicts":
        return [dict(zip(names, row)) for row in rows]
    if form == "arrow":
        fields = StructType.fromDDL(ddl(columns)).fields
        arrays = [
            pa.array([row[i] for row in rows], to_arrow_type(field.dataType))
            for i, field in enumerate(fields)
        ]
        return pa.table(arrays, names=names)
    if form == "frame":
        # Not a frame over local rows any more, which would be read at once.
        return spark.createDataFrame(rows, ddl(columns)).repartition(2)
    return rows
