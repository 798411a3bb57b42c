"""What a frame of Spark Connect computes, as its client sends it to the server.

    a function is called in what is sent  =>  its name is found, however many columns there are

The server's own text of a plan leaves columns out where there are many, and shows literals and
names of columns as if they were calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from pyspark.sql import DataFrame

#: Relations behind which there is a plan that only the server knows.
_HIDING = frozenset({"Read", "SQL", "CachedRemoteRelation", "Any", "Extension"})
#: In a text of SQL what is no call: literals and quoted names.
_QUOTED = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`")


class Sent(NamedTuple):
    """The functions and texts of an expression.

    Parameters
    ----------
    functions : frozenset of str
        Names of the functions that are called, in small letters.
    bare : frozenset of str
        Names of the functions that are called without an argument, in small letters.
    random : frozenset of str
        Names of Python functions that are said not to be deterministic.
    texts : tuple of str
        Expressions that are SQL text, without literals and quoted names.
    whole : bool
        Whether there is nothing of which only the server knows what it is.
    """

    functions: frozenset[str]
    bare: frozenset[str]
    random: frozenset[str]
    texts: tuple[str, ...]
    whole: bool


def sent(frame: DataFrame) -> Sent:
    """What is called in a frame of Connect; nothing is asked of the server."""
    plan: Any = frame
    functions, bare, random, texts, whole = set(), set(), set(), [], True
    for message in _parts(plan._plan.to_proto(plan._session.client)):
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


def _parts(message: Any) -> Iterator[Any]:
    """A message and all messages in it."""
    stack = [message]
    while stack:  # without recursion: plans may be deeper than Python's stack
        one = stack.pop()
        yield one
        for field, value in one.ListFields():
            if field.message_type is None:
                continue
            if hasattr(value, "DESCRIPTOR"):
                stack.append(value)
            else:
                several = value.values() if hasattr(value, "values") else value
                stack.extend(part for part in several if hasattr(part, "DESCRIPTOR"))
