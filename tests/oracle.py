"""The oracle: what a program gives at one time, worked out from nothing on plain Counters.

    accumulate(updates, t)[r] = sum(diff of the updates of r whose time is at most t)
    evaluate(program, inputs)[i] = what node i gives for the inputs as they stand at one time

It shares no code with the library. A collection is a Counter from a record (a tuple) to its
multiplicity, which is never zero and may be negative. Records are normalised, so that they are
equal in Python where Spark groups them: null with null, NaN with NaN, ``-0.0`` with ``0.0``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Callable, Iterable

Record = tuple[Any, ...]
Collection = Counter[Record]
Columns = tuple[tuple[str, str], ...]

#: Stands for every NaN; a NaN of Python does not even equal itself.
NAN = "NaN"


@dataclass(frozen=True)
class Op:
    """An operator, the nodes it reads, and its arguments."""

    name: str
    of: tuple[int, ...]
    args: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Program:
    """Node i is the i-th input, or behind them the operators in order; they may share nodes."""

    inputs: tuple[Columns, ...]
    ops: tuple[Op, ...]
    outputs: tuple[int, ...]


def normal(value: Any) -> Any:
    """The value that stands for all that Spark groups with this one."""
    if isinstance(value, (tuple, list)):
        return tuple(normal(part) for part in value)
    if isinstance(value, float):
        return NAN if value != value else value + 0.0
    return value


def total(updates: Iterable[tuple[Record, int]]) -> Collection:
    """The sum of some (record, diff), without zeros."""
    found: Collection = Counter()
    for record, diff in updates:
        found[record] += diff
    return Counter({record: n for record, n in found.items() if n})


def accumulate(updates: Iterable[tuple[Record, int, int]], time: int) -> Collection:
    """The collection that some (record, time, diff) make at a time."""
    return total((normal(record), diff) for record, at, diff in updates if at <= time)


# Functions that a user might write: the library is given the same ones.

FLAT_MAPS: dict[str, Callable[[Record], list[Record]]] = {
    "twice": lambda row: [tuple(row), tuple(row)],
    "first": lambda row: [] if row[0] is None else [(row[0],)],
    "tags": lambda row: [(row[0], tag) for tag in ("p", "q")],
}
THRESHOLDS: dict[str, Callable[[int], int]] = {
    "cap": lambda n: max(-2, min(n, 2)),
    "negative": lambda n: -n,
    "owed": lambda n: 1 if n < 0 else 0,
    "parity": lambda n: n % 2,
    "square": lambda n: min(n * n, 9),
}

# Expressions: a value of one column makes a value.

CONDITIONS: dict[str, Callable[[Any, Any], bool]] = {
    "null": lambda value, _: value is None,
    "not null": lambda value, _: value is not None,
    # Of an unknown value nothing is true; NaN equals NaN and is larger than all numbers.
    "equal": lambda value, than: value is not None and value == normal(than),
    "less": lambda value, than: value is not None and value != NAN and value < than,
}
EXPRESSIONS: dict[str, Callable[[Any], Any]] = {
    "copy": lambda value: value,
    "seven": lambda _: 7,
    "is null": lambda value: value is None,
    "low bit": lambda value: None if value is None else value & 1,
    "suffix": lambda value: None if value is None else value + "x",
}


def expression_type(name: str, kind: str) -> str:
    """The type of an expression over a column of type ``kind``."""
    return {"seven": "int", "is null": "boolean"}.get(name, kind)


def columns_of(program: Program) -> list[Columns]:
    """Names and types of the columns of each node."""
    nodes = list(program.inputs)
    for op in program.ops:
        nodes.append(_columns(op, [nodes[i] for i in op.of]))
    return nodes


def _columns(op: Op, of: list[Columns]) -> Columns:
    there, kinds = of[0], dict(of[0])
    if op.name == "pick":
        return tuple((name, kinds[name]) for name in op.args)
    if op.name == "rename":
        return tuple((op.args[1] if n == op.args[0] else n, kind) for n, kind in there)
    if op.name == "drop":
        return tuple((n, kind) for n, kind in there if n not in op.args)
    if op.name in ("withColumn", "select"):
        name, expression, column = op.args
        made = (name, expression_type(expression, kinds[column]))
        if op.name == "withColumn" and name in kinds:
            return tuple(made if n == name else (n, kind) for n, kind in there)
        return (*there, made)
    if op.name == "flat_map" and op.args[0] != "twice":
        return there[:1] if op.args[0] == "first" else (*there[:1], ("tag", "string"))
    if op.name == "map_in_pandas" and op.args[0] == "tagged":
        return (*there, ("mark", "string"))
    if op.name == "transform" and op.args[0] == "explode":
        return (*there, ("part", "int"))
    if op.name in ("count", "count_total"):
        number, name = 0, "count"
        while name in kinds:
            number += 1
            name = f"count_{number}"
        return (*there, (name, "bigint"))
    return there


def evaluate(program: Program, inputs: list[Collection]) -> list[Collection]:
    """Each node's collection at the time at which the inputs stand as given."""
    columns = columns_of(program)
    nodes = list(inputs)
    for op in program.ops:
        names = [[name for name, _ in columns[i]] for i in (*op.of, len(nodes))]
        nodes.append(_evaluate(op, [nodes[i] for i in op.of], names[:-1], names[-1]))
    return nodes


def _evaluate(
    op: Op, of: list[Collection], names_of: list[list[str]], made: list[str]
) -> Collection:
    first, names = of[0], names_of[0]

    def mapped(function: Callable[[Record], Iterable[Record]], factor: int = 1) -> Collection:
        """What a function from one record to several gives; each counts as often as its origin."""
        return total((new, n * factor) for old, n in first.items() for new in function(old))

    def value(record: Record, column: str) -> Any:
        return record[names.index(column)]

    if op.name in ("pick", "drop"):
        return mapped(lambda r: [tuple(value(r, name) for name in made)])
    if op.name in ("rename", "consolidate", "inspect", "arrange_by_self"):
        return first
    if op.name == "where":
        condition, column, than = op.args
        return mapped(lambda r: [r] if CONDITIONS[condition](value(r, column), than) else [])
    if op.name in ("withColumn", "select"):
        name, expression, column = op.args

        def widened(record: Record) -> Record:
            new = EXPRESSIONS[expression](value(record, column))
            if op.name == "withColumn" and name in names:
                return tuple(new if n == name else v for n, v in zip(names, record))
            return (*record, new)

        return mapped(lambda r: [widened(r)])
    if op.name == "flat_map":
        return mapped(FLAT_MAPS[op.args[0]])
    if op.name in ("map_in_pandas", "transform"):
        return {
            "twice": lambda: mapped(lambda r: [r], 2),
            "negated": lambda: mapped(lambda r: [r], -1),
            "tagged": lambda: mapped(lambda r: [(*r, "z")]),
            "explode": lambda: mapped(lambda r: [(*r, 1), (*r, 2)]),
        }[op.args[0]]()
    if op.name == "union":
        return total(pair for collection in of for pair in collection.items())
    if op.name == "concat":
        return total(
            (tuple(record[theirs.index(name)] for name in names), n)
            for collection, theirs in zip(of, names_of)
            for record, n in collection.items()
        )
    if op.name == "negate":
        return mapped(lambda r: [r], -1)
    if op.name in ("count", "count_total"):
        return Counter({(*record, n): 1 for record, n in first.items()})
    if op.name == "distinct":
        return Counter({record: 1 for record, n in first.items() if n > 0})
    if op.name == "threshold":
        function = THRESHOLDS[op.args[0]]
        return total((record, function(n)) for record, n in first.items())
    raise ValueError(f"the oracle knows no operator {op.name!r}")
