"""The expressions of a Spark Connect frame, from the message that its client sends to the server.

    the message calls a function  =>  the result has its name, at any number of columns

The server's own text of a plan omits columns if there are many, and shows literals and names of
columns as if they were calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from pyspark.sql import DataFrame

#: Relations whose plan only the server knows.
_HIDING = frozenset({"Read", "SQL", "CachedRemoteRelation", "Any", "Extension"})
#: Parts of SQL text that are no calls: literals and quoted names.
_QUOTED = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`")


class Sent(NamedTuple):
    """The functions and texts of an expression.

    Parameters
    ----------
    functions : frozenset of str
        Names of the called functions, in lower case.
    bare : frozenset of str
        Names of the functions that are called without an argument, in lower case.
    random : frozenset of str
        Names of Python functions that are declared non-deterministic.
    texts : tuple of str
        Expressions in SQL text, without literals and quoted names.
    whole : bool
        Whether the message has the whole plan, without relations that only the server knows.
    """

    functions: frozenset[str]
    bare: frozenset[str]
    random: frozenset[str]
    texts: tuple[str, ...]
    whole: bool


def sent(frame: DataFrame) -> Sent:
    """The calls in a frame of Connect, without a request to the server."""
    plan: Any = frame
    functions, bare, random, texts, whole = set(), set(), set(), [], True
    for message in messages_in(plan._plan.plan(plan._session.client)):
        kind = message.DESCRIPTOR.name
        if kind in ("UnresolvedFunction", "CallFunction"):
            functions.add(message.function_name.lower())
            if not message.arguments:
                bare.add(message.function_name.lower())
        elif kind == "CommonInlineUserDefinedFunction" and not message.deterministic:
            random.add(message.function_name)
        elif kind == "ExpressionString":
            texts.append(_QUOTED.sub(" ", message.expression))
        whole = whole and kind not in _HIDING
    return Sent(frozenset(functions), frozenset(bare), frozenset(random), tuple(texts), whole)


def messages_in(message: Any) -> Iterator[Any]:
    """A message and all messages in it."""
    stack = [message]
    while stack:  # without recursion: plans may be deeper than Python's stack
        current = stack.pop()
        yield current
        for field, value in current.ListFields():
            if field.message_type is None:
                continue
            if hasattr(value, "DESCRIPTOR"):
                stack.append(value)
            else:
                several = value.values() if hasattr(value, "values") else value
                stack.extend(part for part in several if hasattr(part, "DESCRIPTOR"))
