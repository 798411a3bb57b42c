"""The oracle: the collections of a program at one time, computed on plain Counters.

    accumulate(updates, t)[r] = sum(diff of the updates of r whose time is at most t)
    evaluate(program, inputs)[i] = the collection of node i for the inputs at one time

It shares no code with the library. A collection is a Counter from a record (a tuple) to its
multiplicity, which is never zero and may be negative. Records are normalised, so that they are
equal in Python where Spark groups them: null with null, NaN with NaN, ``-0.0`` with ``0.0``.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Callable, Iterable

Record = tuple[Any, ...]
Collection = Counter[Record]
Columns = tuple[tuple[str, str], ...]
#: A length of time, or one length for each field of struct times.
Interval = Any

#: Replaces every NaN; a NaN of Python does not even equal itself.
NAN = "NaN"


@dataclass(frozen=True)
class Op:
    """An operator, the nodes it reads, and its arguments."""

    name: str
    reads: tuple[int, ...]
    args: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Program:
    """Node i is the i-th input, or after them the operators in order; they may share nodes."""

    inputs: tuple[Columns, ...]
    ops: tuple[Op, ...]
    outputs: tuple[int, ...]


def normal(value: Any) -> Any:
    """The representative of all values that Spark groups with this one."""
    if isinstance(value, (tuple, list)):
        return tuple(normal(part) for part in value)
    if isinstance(value, float):
        return NAN if value != value else value + 0.0
    return value


def rank(value: Any) -> Any:
    """A key by which Spark sorts a normal value: nulls first, NaN last, strings by their bytes."""
    if value is None:
        return (0,)
    if value == NAN:
        return (2,)
    if isinstance(value, tuple):
        return (1, tuple(map(rank, value)))
    return (1, value.encode() if isinstance(value, str) else value)


def total(updates: Iterable[tuple[Record, int]]) -> Collection:
    """The sum of some (record, diff), without zeros."""
    counts: Collection = Counter()
    for record, diff in updates:
        counts[record] += diff
    return Counter({record: n for record, n in counts.items() if n})


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
    "positive": lambda n: max(n, 0),
    "square": lambda n: min(n * n, 9),
}
#: Functions of a cogroup: of a key and the values of both sides with their counts.
COGROUPS: dict[str, Callable[..., list[Record]]] = {
    "sizes": lambda key, ours, theirs: [(len(ours), sum(n for _, n in theirs))],
    "in both": lambda key, ours, theirs: (
        [(sum(n for _, n in ours), len(theirs))] if ours and theirs else []
    ),
}
REDUCES: dict[str, Callable[[Record, list[tuple[Record, int]]], list[Record]]] = {
    "ends": lambda key, values: [(values[0][0][0], values[-1][0][0])],
    "each": lambda key, values: [(n,) for _, n in values],
    "sizes": lambda key, values: [(len(values), sum(n for _, n in values))],
    "several": lambda key, values: [(len(values),)] if sum(n for _, n in values) > 1 else [],
}

# Expressions: a value of one column makes a value.

CONDITIONS: dict[str, Callable[[Any, Any], bool]] = {
    "null": lambda value, _: value is None,
    "not null": lambda value, _: value is not None,
    # No condition holds for a null. NaN equals NaN and is larger than all numbers.
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


def free(name: str, used: Iterable[str]) -> str:
    """The name, with letters appended until it differs from all others."""
    while name in set(used):
        name += "x"
    return name


def reduced(name: str, key: tuple[str, ...], rest: Columns) -> Columns:
    """The columns that a function of `REDUCES` makes."""
    kind = rest[0][1] if rest else ""
    columns = {
        "ends": (("lo", kind), ("hi", kind)),
        "each": (("n", "bigint"),),
        "sizes": (("kinds", "bigint"), ("total", "bigint")),
        "several": (("n", "bigint"),),
    }[name]
    return tuple((free(column, key), kind) for column, kind in columns)


def guard(op: Op) -> str | None:
    """The threshold that bounds the counts in the inputs of an operator, or None."""
    if op.name == "groupBy" and any(a[0] == "collect_list" for a in op.args[1]):
        return "cap"
    if op.name == "groupBy":
        # Averages and truths are undefined for records with negative counts.
        truth = any(a[0] in ("avg", "bool_and", "bool_or") for a in op.args[1])
        return "positive" if truth or op.args[2] else None
    if op.name == "window":
        # Each of many equal rows is a row of its own.
        return "square"
    guarded = (
        "top_k", "reduce", "dropDuplicates", "exceptAll", "intersectAll", "asof", "cogroup"
    )
    return "positive" if op.name in guarded else None


def columns_of(program: Program) -> list[Columns]:
    """Names and types of the columns of each node."""
    nodes = list(program.inputs)
    for op in program.ops:
        nodes.append(_columns(op, [nodes[i] for i in op.reads]))
    return nodes


def _columns(op: Op, inputs: list[Columns]) -> Columns:
    there, kinds = inputs[0], dict(inputs[0])
    if op.name == "iterate":
        return there
    if op.name == "pick":
        return tuple((name, kinds[name]) for name in op.args)
    if op.name == "rename":
        return tuple((op.args[1] if n == op.args[0] else n, kind) for n, kind in there)
    if op.name == "drop":
        return tuple((n, kind) for n, kind in there if n not in op.args)
    if op.name in ("withColumn", "select"):
        name, expression, column = op.args
        new = (name, expression_type(expression, kinds[column]))
        if op.name == "withColumn" and name in kinds:
            return tuple(new if n == name else (n, kind) for n, kind in there)
        return (*there, new)
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
    if op.name in ("join", "join_on", "crossJoin"):
        return _joined_columns(op, *inputs)
    if op.name == "groupBy":
        keys, aggregates, _ = op.args
        return (
            *((name, kinds[name]) for name in keys),
            *((name, aggregate_type(f, [kinds[c] for c in cs])) for f, cs, name in aggregates),
        )
    if op.name == "top_k" and op.args[3]:
        return (*there, (op.args[3], "int"))
    if op.name == "window":
        function, column, _, _, name, _ = op.args
        kind = f"array<{kinds[column]}>" if function == "list" else kinds[column]
        return (*there, (name, WINDOW_TYPES.get(function) or kind))
    if op.name == "reduce":
        name, key = op.args
        rest = tuple((n, kind) for n, kind in there if n not in key)
        return (*((n, kinds[n]) for n in key), *reduced(name, key, rest))
    if op.name == "cogroup":
        key = op.args[1]
        sizes = ((free(name, key), "bigint") for name in ("l", "r"))
        return (*((n, kinds[n]) for n in key), *sizes)
    if op.name == "asof":
        columns = list(there)
        for n, kind in inputs[1]:
            if n not in _shared(op):
                columns.append((free(n, [m for m, _ in columns]), kind))
        return tuple(columns)
    if op.name == "weighted":
        return tuple((n, kind) for n, kind in there if n not in op.args)
    return there


def _shared(op: Op) -> tuple[str, ...]:
    """The columns that an as-of join shows once."""
    here, there, key, *_ = op.args
    return (*key, here) if here == there else key


def _joined_columns(op: Op, left: Columns, right: Columns) -> Columns:
    """A column of the right side gets another name if the left side has its name."""
    using = op.args[0] if op.name == "join" else ()
    columns = [(n, dict(left)[n]) for n in using] + [(n, k) for n, k in left if n not in using]
    if op.name != "crossJoin" and op.args[-1] in HALVES:
        return left if op.args[-1] in ("semijoin", "antijoin") else tuple(columns)
    for n, kind in right:
        if n not in using:
            columns.append((free(n, [m for m, _ in (*columns, *left)]), kind))
    return tuple(columns)


def aggregate_type(function: str, kinds: list[str]) -> str:
    """The type of an aggregate of columns of some types."""
    if function in ("count", "countDistinct", "count_if"):
        return "bigint"
    if function in ("sum", "sum_distinct"):
        return "double" if kinds[0] == "double" else "bigint"
    if function == "avg" or function[:3] in ("var", "std"):
        return "double"
    return f"array<{kinds[0]}>" if function[:7] == "collect" else kinds[0]


def evaluate(
    program: Program, inputs: list[Collection],
    earlier: Callable[[Interval], list[Collection]] | None = None,
) -> list[Collection]:
    """Each node's collection for these inputs. ``earlier`` returns the collections some time
    before, for operators that need them."""
    columns = columns_of(program)
    nodes = list(inputs)
    for op in program.ops:
        if op.name in ("delay", "expire_after"):
            assert earlier is not None
            (node,), (interval,) = op.reads, op.args
            before = Program(program.inputs, program.ops[:len(nodes) - len(inputs)], ())
            then = evaluate(before, *_at(earlier, interval))[node]
            gone = ((record, -n) for record, n in then.items())
            left = total([*nodes[node].items(), *gone])
            nodes.append(then if op.name == "delay" else left)
            continue
        names = [[name for name, _ in columns[i]] for i in (*op.reads, len(nodes))]
        nodes.append(_evaluate(op, [nodes[i] for i in op.reads], names[:-1], names[-1]))
    return nodes


def _at(
    earlier: Callable[[Interval], list[Collection]], interval: Interval
) -> tuple[list[Collection], Callable[[Interval], list[Collection]]]:
    """The inputs some time before, and before that."""
    return earlier(interval), lambda more: earlier(_plus(interval, more))


def _plus(interval: Interval, more: Interval) -> Interval:
    if isinstance(interval, tuple):
        return tuple(map(sum, zip(interval, more)))
    return interval + more


def enters(record: Record) -> int:
    """The iteration in which a record enters a loop, by its first value."""
    if not record:
        return 3
    return 0 if record[0] is None else 1 if record[0] in (0, "a") else 3


def iterated(times: int, style: str, body: Program, collections: list[Collection]) -> Collection:
    """The first collection after ``times`` applications of a body to all collections."""
    now, *others = collections
    for i in range(times):
        there = [
            total((r, n) for r, n in other.items() if style != "entering" or enters(r) <= i)
            for other in others
        ]
        now = evaluate(body, [now, *there])[body.outputs[-1]]
    return now


def _evaluate(
    op: Op, inputs: list[Collection], names_of: list[list[str]], output_names: list[str]
) -> Collection:
    if guard(op):
        function = THRESHOLDS[str(guard(op))]
        inputs = [total((r, function(n)) for r, n in collection.items()) for collection in inputs]
    first, names = inputs[0], names_of[0]

    def mapped(function: Callable[[Record], Iterable[Record]], factor: int = 1) -> Collection:
        """The results of a function from one record to several; each has the count of its
        origin."""
        return total((new, n * factor) for old, n in first.items() for new in function(old))

    def value(record: Record, column: str) -> Any:
        return record[names.index(column)]

    if op.name == "iterate":
        return iterated(*op.args, inputs)
    if op.name in ("pick", "drop"):
        return mapped(lambda r: [tuple(value(r, name) for name in output_names)])
    if op.name in ("rename", "consolidate", "inspect", "arrange_by_self", "arrange_by_key"):
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
    if op.name == "plain":
        return total([*first.items(), ((None,) * len(names), op.args[0])])
    if op.name == "union":
        return total(pair for collection in inputs for pair in collection.items())
    if op.name == "concat":
        return total(
            (tuple(record[theirs.index(name)] for name in names), n)
            for collection, theirs in zip(inputs, names_of)
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
    if op.name in ("join", "join_on", "crossJoin"):
        return _join(op, inputs, names_of)
    if op.name == "weighted":
        at = names.index(op.args[0])
        return total((r[:at] + r[at + 1:], n * (r[at] or 0)) for r, n in first.items())
    if op.name in SETS:
        return total(
            (r, SETS[op.name](first.get(r, 0), inputs[1].get(r, 0))) for r in (*first,)
        )
    if op.name == "groupBy":
        keys, aggregates, empty = op.args
        groups = _groups(first, names, keys)
        if empty and not keys and not sum(first.values()):
            groups = {(): Counter()}
        return Counter({
            (*key, *(
                aggregate(function, total(
                    (tuple(value(r, c) for c in columns), n) for r, n in group.items()
                ))
                for function, columns, _ in aggregates
            )): 1
            for key, group in groups.items()
            if sum(group.values()) or empty
        })
    if op.name == "top_k":
        return _top(first, names, *op.args)
    if op.name == "window":
        windowed, most = _windows(first, names, *op.args[:4]), op.args[5]
        return windowed if most is None else Counter({
            r: n for r, n in windowed.items() if r[-1] <= most
        })
    if op.name == "asof":
        return _asof(op, *inputs, *names_of)
    if op.name == "cogroup":
        function, key = COGROUPS[op.args[0]], op.args[1]
        sides = [_groups(collection, n, key) for collection, n in zip(inputs, names_of)]
        return Counter(
            (*key_of, *new) for key_of in {**sides[0], **sides[1]} for new in function(
                key_of, *(list(side.get(key_of, Counter()).items()) for side in sides)
            )
        )
    if op.name == "dropDuplicates":
        keys, order = op.args
        return _top(first, names, 1, order or (), keys or names, None)
    if op.name == "reduce":
        function, keys = REDUCES[op.args[0]], op.args[1]
        rest = [i for i, name in enumerate(names) if name not in keys]
        results: Collection = Counter()
        for key, group in _groups(first, names, keys).items():
            values = [(tuple(r[i] for i in rest), n) for r, n in group.items()]
            for new in function(key, sorted(values, key=lambda pair: rank(pair[0]))):
                results[(*key, *new)] += 1
        return results
    raise ValueError(f"the oracle knows no operator {op.name!r}")


def _asof(
    op: Op, left: Collection, right: Collection, ours: list[str], theirs: list[str]
) -> Collection:
    here, there, key, direction, exact, tolerance, how = op.args
    shown = [i for i, name in enumerate(theirs) if name not in _shared(op)]
    # The place column breaks no ties.
    rest = [i for i, name in enumerate(theirs) if name not in (*key, there)]

    def pick(record: Record, names: list[str], wanted: Iterable[str]) -> Record:
        return tuple(record[names.index(name)] for name in wanted)

    matched: Collection = Counter()
    for record, n in left.items():
        (place,), group = pick(record, ours, [here]), pick(record, ours, key)
        best: Any = None
        for other in right:
            (their,) = pick(other, theirs, [there])
            if None in (place, their, *group) or pick(other, theirs, key) != group:
                continue
            before, away = their <= place, abs(place - their)
            if away and direction != "nearest" and before != (direction == "backward"):
                continue
            if not (exact or away) or tolerance is not None and away > tolerance:
                continue
            order = (-away, before, tuple(rank(other[i]) for i in rest))
            if best is None or order > best[0]:
                best = order, other
        if best is not None or how == "left":
            matched[(*record, *(None if best is None else best[1][i] for i in shown))] += n
    return matched


#: Operators of two collections that compute each record's count from its two counts.
SETS: dict[str, Callable[[int, int], int]] = {
    "exceptAll": lambda a, b: max(a - b, 0),
    "intersect": lambda a, b: int(a > 0 and b > 0),
    "intersectAll": lambda a, b: min(a, b),
    "subtract": lambda a, b: int(a > 0 and not b > 0),
}


def _groups(
    collection: Collection, names: list[str], keys: Iterable[str]
) -> dict[Record, Collection]:
    groups: dict[Record, Collection] = defaultdict(Counter)
    for record, n in collection.items():
        groups[tuple(record[names.index(name)] for name in keys)][record] = n
    return groups


def in_order(
    records: Iterable[Record], names: list[str], by: Iterable[tuple[str, bool]]
) -> list[Record]:
    """Records by (column, ascending), then by all columns."""
    ordered = sorted(records, key=rank)
    for name, ascending in reversed(tuple(by)):
        ordered.sort(key=lambda r: rank(r[names.index(name)]), reverse=not ascending)
    return ordered


def _top(
    collection: Collection,
    names: list[str],
    k: int,
    by: tuple[tuple[str, bool], ...],
    per: Iterable[str] | None,
    number: str | None,
) -> Collection:
    top: Collection = Counter()
    for group in _groups(collection, names, per or ()).values():
        place, last, ranked, dense = 0, None, 1, 0
        for record in in_order(group, names, by):
            criterion = [record[names.index(name)] for name, _ in by]
            if criterion != last:
                last, ranked, dense = criterion, place + 1, dense + 1
            if number in ("rank", "dense_rank"):
                at = ranked if number == "rank" else dense
                top.update({(*record, at): group[record]} if at <= k else {})
            elif number:
                places = range(place + 1, min(place + group[record], k) + 1)
                top.update({(*record, p): 1 for p in places})
            else:
                top[record] += max(0, min(group[record], k - place))
            place += group[record]
    return +top


#: The types of windows, if they differ from the column's type.
WINDOW_TYPES = {
    "row_number": "int", "rank": "int", "dense_rank": "int", "sum": "bigint", "count": "bigint",
    "places": "int",
}
#: Functions of a window.
WINDOWS = (
    "row_number", "rank", "dense_rank", "lag", "after", "last", "next", "sum", "count", "least",
    "nth", "list", "places",
)


def _windows(
    collection: Collection,
    names: list[str],
    function: str,
    column: str,
    by: tuple[tuple[str, bool], ...],
    per: Iterable[str],
) -> Collection:
    results: Collection = Counter()
    for group in _groups(collection, names, per).values():
        rows = [r for r in in_order(group, names, by) for _ in range(group[r])]
        values = [row[names.index(column)] for row in rows]
        place = [[row[names.index(name)] for name, _ in by] for row in rows]
        for i, row in enumerate(rows):
            upto = [value for value in values[:i + 1] if value is not None]
            peers = [v for v, p in zip(values, place) if p == place[i]]
            first = place.index(place[i])
            there = [v for v in values[:first] + peers if v is not None]
            near = [value for value in values[max(i - 1, 0):i + 2] if value is not None]
            result = {
                "row_number": i + 1,
                "rank": first + 1,
                "dense_rank": sum(p != q for p, q in zip(place[:first + 1], [None, *place])),
                "lag": values[i - 1] if i else None,
                "after": values[i + 2] if i + 2 < len(values) else None,
                "last": upto[-1] if upto else None,
                "next": next((value for value in values[i:] if value is not None), None),
                "sum": sum(there) if function == "sum" and there else None,
                "count": sum(value is not None for value in values),
                "least": min(near, key=rank) if near else None,
                "nth": near[1] if len(near) > 1 else None,
                "list": tuple(v for v in values[max(i - 1, 0):i + 1] if v is not None),
                "places": len(values),
            }[function]
            results[(*row, result)] += 1
    return results


# Joins.

#: Ways to join that give records of the left side alone.
HALVES = ("left_semi", "left_anti", "semijoin", "antijoin")


def _join(op: Op, inputs: list[Collection], names_of: list[list[str]]) -> Collection:
    """The inner join, or also each side's records that have no match, or only the left one's."""
    pairs: list[tuple[str, str]]
    using, residual, null_safe, how = [], None, False, "inner"
    if op.name == "join":
        using, how = op.args
        pairs = [(name, name) for name in using]
    elif op.name == "join_on":
        pairs, null_safe, residual, how = op.args
    else:
        pairs = []
    ours, theirs = names_of

    def key(record: Record, names: list[str], side: int) -> Record:
        return tuple(record[names.index(pair[side])] for pair in pairs)

    def put_together(left: Record | None, right: Record | None) -> Record:
        left_values = left or (None,) * len(ours)
        right_values = right or (None,) * len(theirs)
        keys = [
            left_values[ours.index(n)] if left is not None else right_values[theirs.index(n)]
            for n in using
        ]
        rest = [v for n, v in zip(ours, left_values) if n not in using]
        return (*keys, *rest, *(v for n, v in zip(theirs, right_values) if n not in using))

    there = _groups(inputs[1], theirs, [pair[1] for pair in pairs])
    inner: Collection = Counter()
    #: The number of matches of each record on the other side.
    matches: tuple[Collection, Collection] = (Counter(), Counter())
    for left, n in inputs[0].items():
        common = key(left, ours, 0)
        if None in common and not null_safe:
            continue
        for right, m in there.get(common, Counter()).items():
            if residual and not _holds(residual, left, right, ours, theirs):
                continue
            inner[put_together(left, right)] += n * m
            matches[0][left] += m
            matches[1][right] += n
    if how in HALVES:
        anti = how in ("left_anti", "antijoin")
        order = range(len(ours))
        if op.name == "join" and how in ("left_semi", "left_anti"):
            # As PySpark's, with the key's columns first.
            order = [ours.index(n) for n in (*using, *(n for n in ours if n not in using))]
        return Counter({
            tuple(r[i] for i in order): n for r, n in inputs[0].items()
            if (matches[0][r] > 0) != anti
        })
    if how in ("left", "full"):
        inner.update({put_together(r, None): n for r, n in inputs[0].items() if matches[0][r] <= 0})
    if how in ("right", "full"):
        for right, m in inputs[1].items():
            inner[put_together(None, right)] += m if matches[1][right] <= 0 else 0
    return total(inner.items())


def _holds(
    residual: tuple[str, str, str], left: Record, right: Record, ours: list[str], theirs: list[str]
) -> bool:
    what, name, other = residual
    ours_value = left[ours.index(name)]
    if what == "not null":
        return ours_value is not None
    theirs_value = right[theirs.index(other)]
    if ours_value is None or theirs_value is None:
        return False
    if what in ("near", "around", "apart"):
        return abs(ours_value - theirs_value) <= (abs(ours_value) if what == "around" else 1)
    if what == "overlap":
        return ours_value <= theirs_value + 1 and theirs_value <= ours_value + abs(ours_value)
    return rank(ours_value) < rank(theirs_value) if what == "less" else ours_value != theirs_value


# Aggregates.


def aggregate(function: str, rows: Collection) -> Any:
    """An aggregate of rows of its arguments, each with its multiplicity."""
    if function == "count":
        return sum(n for row, n in rows.items() if None not in row)
    if function == "count_if":
        return sum(n for row, n in rows.items() if row[0])
    if function in ("min_by", "max_by"):
        ordered = in_order(
            [r for r, n in rows.items() if n > 0 and r[1] is not None], ["x", "by"],
            [("by", function == "min_by"), ("x", True)],
        )
        return ordered[0][0] if ordered else None
    known = total((row, n) for row, n in rows.items() if None not in row)
    there = sorted((row for row, n in known.items() if n > 0), key=rank)
    if function == "countDistinct":
        return len(there)
    values = [row[0] for row in there]
    if function in ("min", "bool_and"):
        return values[0] if values else None
    if function in ("max", "bool_or"):
        return values[-1] if values else None
    if function == "collect_set":
        return tuple(values)
    if function == "collect_list":
        return tuple(v for v in values for _ in range(known[v,]))
    if function == "sum_distinct":
        known = Counter(there)
    count = sum(known.values())
    if not count:
        return None
    numbers = {v: n for (v,), n in known.items()}
    if function in ("sum", "sum_distinct"):
        return _sum(numbers)
    return _moment(function, numbers, count)


def _sum(numbers: dict[Any, int]) -> Any:
    """The sum, exact but for a rounding at the end."""
    odd = {v for v in numbers if v == NAN or math.isinf(v)}
    if odd:
        return odd.pop() if len(odd) == 1 else NAN
    if all(isinstance(v, int) for v in numbers):
        return sum(v * n for v, n in numbers.items())
    return float(sum(Fraction(v) * n for v, n in numbers.items()))


def _moment(function: str, numbers: dict[Any, int], count: int) -> Any:
    """Average, variance or standard deviation, exact but for roundings at the end."""
    if any(v == NAN or math.isinf(v) for v in numbers):
        result = _sum(numbers) if function == "avg" else NAN
        return None if function.endswith("samp") and count == 1 else result
    mean = sum(Fraction(v) * n for v, n in numbers.items()) / count
    if function == "avg":
        return float(mean)
    square = sum((v - mean) ** 2 * n for v, n in numbers.items())
    below = count - function.endswith("samp")
    if not below:
        return None
    variance = float(square / below)
    return math.sqrt(variance) if function.startswith("stddev") else variance
