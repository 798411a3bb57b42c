"""Whether the values of a plan may depend on the time zone of the session.

    not reads_zone(f)  ⟹  f has the same rows in each time zone

Spark marks each expression that has a zone. Every cast has one, and most casts convert numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from pyspark_diff.spark.jvm import analysed_json

#: Types for which a cast from or to another of them, or from or to text, needs the zone.
_TIMES = ("date", "timestamp")
#: Functions of users, whose values may depend on the zone.
_FUNCTIONS = ("PythonUDF", "PythonUDAF", "ScalaUDF", "HiveSimpleUDF", "HiveGenericUDF")
#: Expressions whose type is in the plan.
_TYPED = ("AttributeReference", "Literal")


def reads_zone(frame: DataFrame) -> bool:
    """Whether rows of a frame may depend on the time zone; over Connect the answer is yes.

    Examples
    --------
    >>> frame = spark.range(1)
    >>> reads_zone(frame.select(F.col("id").cast("int"), F.bin("id")))
    False
    >>> reads_zone(frame.select(F.from_unixtime("id")))
    True
    """
    text = analysed_json(frame)
    if text is None:
        return True
    nodes = list(_nodes(json.loads(text)))
    return any(map(_reads_zone, nodes, [*nodes[1:], {}]))


def _reads_zone(node: dict[str, Any], child: dict[str, Any]) -> bool:
    """Whether a node depends on the zone. The next node is its first child, if it has children."""
    kind = _class_of(node)
    if kind in _FUNCTIONS or kind == "Literal" and _has(node, ("timestamp",)):
        return True
    if "timeZoneId" not in node:
        return False
    if kind not in ("Cast", "AnsiCast"):
        return True
    if _has(node, _TIMES):
        return True
    # A cast to text, or to a type with text in it.
    return _has(node, ("string",)) and (
        _class_of(child) not in _TYPED or _has(child, _TIMES)
    )


def _has(node: dict[str, Any], kinds: tuple[str, ...]) -> bool:
    text = json.dumps(node.get("dataType"))
    return any(kind in text for kind in kinds)


def _class_of(node: dict[str, Any]) -> str:
    return str(node.get("class", "")).rpartition(".")[2]


def _nodes(part: Any) -> Iterator[dict[str, Any]]:
    """All nodes of a plan and of its expressions, each before its children."""
    if isinstance(part, dict):
        if "class" in part:
            yield part
        for value in part.values():
            yield from _nodes(value)
    elif isinstance(part, list):
        for item in part:
            yield from _nodes(item)
