"""Programs that are written anew: their fingerprints, and the graph that has run rebuilt over them.

    a program runs for some steps; it is written anew, rebuilt, and given the state of the first
    ⟹  both graphs are the same, and what the second gives is what the first would have given
"""

from __future__ import annotations

import copy
import json
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import FLAT_MAPS
from programs import Run, programs, schedules
from pyspark.sql import functions as F

from pyspark_diff import Dataflow, NotReadableError, StorageError
from pyspark_diff.engine.blueprint import Rebuilt, blueprint, rebuilt
from pyspark_diff.engine.fingerprint import fingerprints
from pyspark_diff.engine.graph import Graph
from pyspark_diff.engine.growth import Growth
from pyspark_diff.engine.program import Program, written
from pyspark_diff.engine.state import State
from pyspark_diff.engine.subgraph import Subgraph

EXAMPLES = settings().max_examples


def examples(share: float) -> settings:
    """A share of the run's examples."""
    return settings(max_examples=max(1, round(EXAMPLES * share)))


def program_of(flow: Dataflow) -> Program:
    """What a dataflow's program is, as it is written."""
    return written([*flow._sinks, *flow._inputs.nodes()])


def shape(graph: Graph) -> Any:
    """A graph without its nodes."""
    numbers = graph.program.numbers

    def order(items: Any) -> Any:
        return [
            (order(item.items), [numbers[n] for n in item.leaves],
             [numbers[n] for n in item.outside])
            if isinstance(item, Subgraph) else numbers[item] for item in items
        ]

    return (
        str(graph.program), order(graph.order),
        [sorted(graph.wanted[node]) for node in graph.program.nodes],
        [graph.readings[node] for node in graph.program.nodes],
        [[numbers[reader] for reader in graph.readers[node]] for node in graph.program.nodes],
        sorted(numbers[node] for node in graph.sinks),
        [(type(node), node.kind, node.depth) for node in graph.program.nodes],
    )


def moved(state: State, found: Rebuilt) -> State:
    """A state over the nodes of another program."""
    assert state.graph is not None
    to = {
        state.graph.program.nodes[number]: node for number, node in found.nodes.items()
    }

    def over(held):
        return {to[node]: value for node, value in held.items() if node in to}

    return replace(
        state, frontiers=over(state.frontiers), traces=over(state.traces),
        pending=over(state.pending), waiting=over(state.waiting), taken=over(state.taken),
        outbox=(), given=frozenset(to[node] for node in state.given if node in to),
        graph=found.graph, floors=over(state.floors), recent=over(state.recent),
        shown=tuple(replace(one, node=to[one.node]) for one in state.shown if one.node in to),
    )


def again(run: Run, made: Run, schedule, grows: bool) -> Run:
    """A run that was written anew, where another one stands."""
    for step, actions in enumerate(schedule):
        made._steps = step
        if step:
            made._add_outputs()
        for number, what, data in actions:
            if not made.closed[number]:
                made._act(number, what, data)
        made.flow._inputs.hand_over()
    made._steps = run._steps
    assert made.history == run.history
    old, new = run.flow, made.flow
    now, then = program_of(new), program_of(old)
    prints = fingerprints(now)
    before = blueprint(old._state.graph, fingerprints(then))
    found = rebuilt(json.loads(json.dumps(before)), now, prints)
    assert found.added == found.dropped == found.reasons == ()
    assert shape(found.graph) == shape(old._state.graph)
    assert blueprint(found.graph, prints) == before
    new._state = moved(old._state, found)
    new._growth = None if grows else Growth(found.graph)
    if grows:
        assert not new._build().late
        assert shape(new._growth.graph) == shape(old._state.graph)
    assert len(made.outputs) == len(run.outputs)
    for output, last in zip(made.outputs, run.outputs):
        output.seen[:], output.first = last.seen, last.first
    made._discarded = run._discarded
    made.shares_files = True
    return made


def check_rewritten(spark, data, **options):
    """A random program that grows, and is written anew between two steps of its schedule."""
    program = data.draw(programs())
    schedule = data.draw(schedules(program.inputs))
    steps, outputs = st.integers(0, len(schedule)), len(program.outputs)
    late = data.draw(st.lists(steps, min_size=outputs, max_size=outputs))
    late[0] = 0
    keeps = {*range(len(program.inputs)), *data.draw(
        st.sets(st.integers(0, len(program.inputs) + len(program.ops) - 1)))}
    stops = data.draw(st.integers(1, len(schedule)))
    grows = data.draw(st.booleans())
    keyed = data.draw(st.sampled_from([(), (), (0,)]))
    if program.inputs[0][0][1] not in ("int", "bigint", "string"):
        keyed = ()
    options = {**options, "late": late, "keeps": keeps, "keyed": keyed}
    with ExitStack() as stack:
        run = stack.enter_context(Run(spark, program, **options))
        try:
            for actions in schedule[:stops]:
                run.step(actions)
        except NotReadableError:
            return
        run = again(
            run, stack.enter_context(Run(spark, program, **options)), schedule[:stops], grows
        )
        run.take(schedule[stops:], ("may look at the times", "loop", "leave"))


@examples(6)
@given(data=st.data(), buckets=st.integers(1, 3), held=st.sampled_from([0, 4096]))
def test_programs_that_are_written_anew_go_on(spark, data, buckets, held):
    check_rewritten(spark, data, runner="local", buckets=buckets, held=held)


@examples(0.3)
@given(data=st.data())
def test_programs_that_are_written_anew_go_on_in_spark(spark, data):
    check_rewritten(spark, data, runner="spark", buckets=2)
