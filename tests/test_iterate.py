"""Loops: the law for random programs with loops in them, nested ones too, and the rules one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from oracle import Op, Program, accumulate, columns_of, evaluate
from program_ops import multiplies
from programs import Run, build, operators, programs, schedules, whole_histories
from pyspark_diff import Dataflow, DiffFrame, Loop, NotReadableError, SchemaError, StalledError

EXAMPLES = settings().max_examples
RUNNERS = ["local", "spark"]
buckets = st.integers(1, 3)
held = st.sampled_from([0, 1, 4096])


def examples(share: float) -> settings:
    return settings(max_examples=max(1, round(EXAMPLES * share)))


@st.composite
def bodies(draw: st.DrawFn, inputs, most: int, loops: int) -> Program:
    """A program that gives a collection with the columns of its first input."""
    program = Program(inputs, (), ())
    for _ in range(draw(st.integers(1, most))):
        if loops and draw(st.booleans()):
            op = draw(loop_ops(program, len(columns_of(program)) - 1, loops - 1))
        else:
            op = draw(operators(program, True))
        program = Program(inputs, (*program.ops, op), ())
    columns = columns_of(program)
    last = len(columns) - 1
    alike = [i for i, found in enumerate(columns) if found == inputs[0] and i >= len(inputs)]
    result = alike[-1] if alike else 0
    ops = list(program.ops)
    shared = tuple(n for n in dict(columns[last]) if n in dict(inputs[0])
                   and dict(columns[last])[n] == dict(inputs[0])[n])
    if shared and (result != last or draw(st.booleans())):
        how = draw(st.sampled_from(["left_semi", "left_anti"]))
        ops.append(Op("pick", (last,), shared[:1]))
        ops.append(Op("join", (result, len(inputs) + len(ops) - 1), (shared[:1], how)))
        result = len(inputs) + len(ops) - 1
    if result < len(inputs) or draw(st.booleans()):
        ops.append(Op("concat", (result, 0)))
        result = len(inputs) + len(ops) - 1
    made = Program(inputs, tuple(ops), ())
    if multiplies(made) or draw(st.booleans()):
        ops.append(Op("threshold", (result,), ("cap",)))
        result = len(inputs) + len(ops) - 1
    return Program(inputs, tuple(ops), (result,))


@st.composite
def loop_ops(draw: st.DrawFn, program: Program, of: int, loops: int) -> Op:
    """A loop that starts with a node of a program, and may read others."""
    columns = columns_of(program)
    others = draw(st.lists(st.integers(0, len(columns) - 1), max_size=2))
    inputs = tuple(columns[i] for i in (of, *others))
    body = draw(bodies(inputs, 3 if loops else 2, loops))
    times = draw(st.integers(1, 4 if not loops else 3))
    style = draw(st.sampled_from(["iterate", "iterate", "variables"]))
    return Op("iterate", (of, *others), (times, style, body))


@st.composite
def looping(draw: st.DrawFn, loops: int) -> Program:
    """A random program with a loop in it, and others inside of that."""
    program = draw(programs(most=2, whole=True))
    of = len(columns_of(program)) - 1
    op = draw(loop_ops(program, of, loops))
    program = Program(program.inputs, (*program.ops, op), ())
    if draw(st.booleans()):
        program = Program(program.inputs, (*program.ops, draw(operators(program, True))), ())
    return Program(program.inputs, program.ops, (len(columns_of(program)) - 1,))


@examples(2)
@given(data=st.data(), buckets=buckets, held=held)
def test_random_loops_on_the_driver(spark, data, buckets, held):
    program = data.draw(looping(0))
    schedule = data.draw(schedules(program.inputs))
    with Run(spark, program, runner="local", buckets=buckets, held=held) as run:
        for actions in schedule:
            run.step(actions)
        run.finish()


@examples(2)
@given(data=st.data(), buckets=buckets, held=held)
def test_random_nested_loops_on_the_driver(spark, data, buckets, held):
    program = data.draw(looping(data.draw(st.sampled_from([1, 1, 2]))))
    schedule = data.draw(schedules(program.inputs, most=4))
    with Run(spark, program, runner="local", buckets=buckets, held=held) as run:
        for actions in schedule:
            run.step(actions)
        run.finish()
