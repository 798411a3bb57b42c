"""What a dataflow has been given and does not show yet, and which input is the reason, in words.

Nothing is stale in silence::

    read(A) shows less than what was given  ⟹  whoever reads A is told why
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from typing import Collection

from pyspark_diff.dataflow.input_session import BaseSession
from pyspark_diff.dataflow.times import told
from pyspark_diff.engine.state import State
from pyspark_diff.times import Antichain, meet_all


class StaleWarning(UserWarning):
    """What is read or stepped does not show all that was given; the message says why.

    An input was not advanced beyond what it was given, holds others back, or no step was taken.
    Advance the inputs that it names, or say which time is meant: ``at(t)``.
    """


def left(sessions: Collection[BaseSession], state: State) -> str:
    """Updates that wait for their inputs to be advanced; nothing if there are none."""
    waiting = [session for session in sessions if state.waiting.get(session._node)]
    if not waiting:
        return ""
    return f"updates of {_told(waiting, state)} wait there: {_advance(waiting)}"


def behind(sessions: Collection[BaseSession], state: State) -> str:
    """Why what inputs were given is not all in what was made of them; nothing if it is."""
    back = [session for session in sessions if session._node in state.rewinds]
    if back:
        names = ", ".join(repr(session.name) for session in back)
        return f"updates of input {names} were discarded since the last step: call step()"
    new = [s for s in sessions if s._is_ahead(state.taken.get(s._node, 0))]
    if new:
        names = ", ".join(repr(session.name) for session in new)
        shown = f"input {names} was given updates, or advanced, since the last step"
        # A step completes the times that all inputs were advanced beyond, and no other one.
        if all(_reaches(session, state) for session in sessions):
            return f"{shown}: call step()"
        still = [session for session in sessions if not _reaches(session, state)]
        was = "was" if len(still) == 1 else "were"
        return f"{shown}, and {_told(still, state)} {was} not advanced: {_advance(still)}"
    waiting = []
    for session in sessions:
        at = state.frontiers[session._node].elements
        if any(arrival.last in at for arrival in state.waiting.get(session._node, ())):
            waiting.append(session)
    if waiting:
        return f"updates of {_told(waiting, state)} wait there: {_advance(waiting)}"
    return held_back(sessions, state)


def held_back(sessions: Collection[BaseSession], state: State) -> str:
    """Which open inputs others have gone ahead of; nothing if they are all at one time."""
    still = [s for s in sessions if not state.frontiers[s._node].is_empty]
    reached = {s: _reached(s, state) for s in still}
    first = meet_all(reached.values())
    late = [s for s in still if reached[s] == first]
    if still and not late:  # of structs none may come before all others
        return f"{_told(still, state)} hold each other back: {_advance(still)}"
    others = [s for s in still if s not in late]
    if not others:
        return ""
    holds = "holds" if len(late) == 1 else "hold"
    further = _told(others, state)
    return f"{_told(late, state)} {holds} it back, others are further ({further}): {_advance(late)}"


def _reaches(session: BaseSession, state: State) -> bool:
    """Whether a step completes more of an input than is complete."""
    at = state.frontiers[session._node]
    return at.is_empty or session._content.capability != at


def _reached(session: BaseSession, state: State) -> Antichain:
    """Up to where an input is processed, but for others of which it waits where times are structs.
    """
    at = state.frontiers[session._node]
    structs = bool(at.elements) and not isinstance(at.elements[0], int)
    return session._content.frontier if structs else at


def frontiers(sessions: Collection[BaseSession], state: State) -> str:
    """How far inputs are processed."""
    return _told(sessions, state)


def _told(sessions: Collection[BaseSession], state: State) -> str:
    found = []
    for session in sessions:
        at = _reached(session, state)
        shown = "complete" if at.is_empty else f"at {told(at, session._node.time_type)}"
        found.append(f"input {session.name!r} {shown}")
    return ", ".join(found)


def _advance(sessions: Collection[BaseSession]) -> str:
    which = "it" if len(sessions) == 1 else "them"
    return (
        f"advance {which}, with flow.advance_to(time), which steps too, or with advance_to of the "
        "input and step()"
    )


def warn(message: str) -> None:
    """Warn whoever called the library, and not a line of it."""
    # Not of `contextlib` either, whose decorators are around the methods.
    ours = (os.path.dirname(os.path.dirname(__file__)) + os.sep, contextlib.__file__)
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(ours):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, StaleWarning, stacklevel=level)
