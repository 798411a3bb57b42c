"""Staleness: updates that a collection does not show yet, and the input that is the reason.

No read is stale in silence::

    read(A) lacks updates that an input has  ⟹  the reader of A gets a warning with the reason
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from typing import Collection

from pyspark_diff.dataflow.input_session import BaseSession
from pyspark_diff.dataflow.times import frontier_text
from pyspark_diff.engine.state import State
from pyspark_diff.times import Antichain, meet_all


class StaleWarning(UserWarning):
    """A read or a step lacks updates that entered inputs; the message has the reason.

    An input was not advanced beyond its updates, an input holds others back, or no step has run.
    Advance the inputs in the message, or read at a certain time: ``at(t)``.
    """


def left(sessions: Collection[BaseSession], state: State) -> str:
    """The inputs with updates that wait until they are advanced, in words; empty if none."""
    waiting = [session for session in sessions if state.waiting.get(session._node)]
    if not waiting:
        return ""
    return f"updates of {_positions(waiting, state)} wait there: {_advance(waiting)}"


def lag(sessions: Collection[BaseSession], state: State) -> str:
    """Why collections lack updates of their inputs, in words; empty if they lack none."""
    back = [session for session in sessions if session._node in state.rewinds]
    if back:
        names = ", ".join(repr(session.name) for session in back)
        return f"updates of input {names} were discarded since the last step: call step()"
    new = [s for s in sessions if s._is_ahead(state.arrival_counts.get(s._node, 0))]
    if new:
        names = ", ".join(repr(session.name) for session in new)
        shown = f"input {names} was given updates, or advanced, since the last step"
        # A step completes the times that all inputs were advanced beyond, and no other one.
        if all(_reaches(session, state) for session in sessions):
            return f"{shown}: call step()"
        still = [session for session in sessions if not _reaches(session, state)]
        was = "was" if len(still) == 1 else "were"
        return f"{shown}, and {_positions(still, state)} {was} not advanced: {_advance(still)}"
    waiting = []
    for session in sessions:
        at = state.frontiers[session._node].elements
        if any(arrival.last in at for arrival in state.waiting.get(session._node, ())):
            waiting.append(session)
    if waiting:
        return f"updates of {_positions(waiting, state)} wait there: {_advance(waiting)}"
    return held_back(sessions, state)


def held_back(sessions: Collection[BaseSession], state: State) -> str:
    """The open inputs that hold others back, in words; empty if all are at one time."""
    still = [s for s in sessions if not state.frontiers[s._node].is_empty]
    reached = {s: _reached(s, state) for s in still}
    first = meet_all(reached.values())
    late = [s for s in still if reached[s] == first]
    if still and not late:  # with struct times, possibly no input is before all others
        return f"{_positions(still, state)} hold each other back: {_advance(still)}"
    others = [s for s in still if s not in late]
    if not others:
        return ""
    holds = "holds" if len(late) == 1 else "hold"
    behind, further = _positions(late, state), _positions(others, state)
    return f"{behind} {holds} it back, others are further ({further}): {_advance(late)}"


def _reaches(session: BaseSession, state: State) -> bool:
    """Whether a step would advance the complete part of an input."""
    at = state.frontiers[session._node]
    return at.is_empty or session._content.capability != at


def _reached(session: BaseSession, state: State) -> Antichain:
    """The frontier up to which an input is processed; with struct times, up to which it is flushed,
    as the processed frontier depends on other inputs."""
    at = state.frontiers[session._node]
    structs = bool(at.elements) and not isinstance(at.elements[0], int)
    return session._content.frontier if structs else at


def frontiers(sessions: Collection[BaseSession], state: State) -> str:
    """The frontiers up to which inputs are processed, in words."""
    return _positions(sessions, state)


def _positions(sessions: Collection[BaseSession], state: State) -> str:
    texts = []
    for session in sessions:
        at = _reached(session, state)
        shown = "complete" if at.is_empty else f"at {frontier_text(at, session._node.time_type)}"
        texts.append(f"input {session.name!r} {shown}")
    return ", ".join(texts)


def _advance(sessions: Collection[BaseSession]) -> str:
    which = "it" if len(sessions) == 1 else "them"
    return (
        f"advance {which}, with flow.advance_to(time), which steps too, or with advance_to of the "
        "input and step()"
    )


def warn(message: str) -> None:
    """Warn at the line that called the library, and not at a line of it."""
    # Frames of `contextlib` are skipped too: its decorators wrap the methods.
    ours = (os.path.dirname(os.path.dirname(__file__)) + os.sep, contextlib.__file__)
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(ours):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, StaleWarning, stacklevel=level)
