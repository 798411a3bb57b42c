"""Random programs of loops, and their oracle.

Each program is drawn from a seed alone. Its collections have two columns, ``k`` and ``n``. Each
column has one of many types, and its values are the first few of that type in order. The oracle
computes with the places in that order, from scratch, at each time::

    variable at 0      =  start
    variable at i + 1  =  body of the variables at i
    result             =  collection at the first i after which no variable changes

``python tests/loop_programs.py RUNNER FIRST LAST SECONDS`` runs the seeds of a range.
"""

from __future__ import annotations

import sys
import time as clock
from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any, Sequence

from pyspark.sql import functions as F

from pyspark_diff import Dataflow, Loop, StalledError

#: Values of each type, as SQL text, in the order in which Spark sorts them.
TYPES: dict[str, tuple[str, ...]] = {
    "int": ("1", "2", "3", "4", "5"),
    "tinyint": ("null", "-128Y", "0Y", "5Y", "127Y"),
    "smallint": ("-32768S", "0S", "7S", "300S", "32767S"),
    "bigint": ("null", "-9223372036854775808L + 1", "0L", "5L", "9223372036854775807L"),
    "float": ("null", "float(-1.5)", "float(0)", "float(2)", "float('NaN')"),
    "double": ("double('-Infinity')", "-1.5D", "0D", "1D", "double('NaN')"),
    "decimal(20,2)": ("null", "-1.5", "0.0", "1.25", "123456789012345678.9"),
    "string": ("''", "'a'", "'a b'", "'b'", "'\u00e9'"),
    "binary": ("null", "X''", "X'00'", "X'0001'", "X'ff'"),
    "date": ("DATE '0001-01-01'", "DATE '1969-12-31'", "DATE '1970-01-01'", "DATE '2024-02-29'",
             "DATE '9999-12-31'"),
    "timestamp": ("null", "TIMESTAMP '1969-12-31 23:59:59.999999Z'",
                  "TIMESTAMP '1970-01-01 00:00:00Z'", "TIMESTAMP '2024-02-29 01:02:03.000004Z'",
                  "TIMESTAMP '2100-01-01 00:00:00Z'"),
    "timestamp_ntz": ("null", "TIMESTAMP_NTZ '1969-12-31 23:59:59.999999'",
                      "TIMESTAMP_NTZ '1970-01-01'", "TIMESTAMP_NTZ '2024-02-29 01:02:03.000004'",
                      "TIMESTAMP_NTZ '2100-01-01'"),
    "boolean": ("null", "false", "true"),
    "struct<a:int,b:string>": (
        "null", "struct(null, 'b')", "struct(1, null)", "struct(1, 'a')", "struct(2, 'a')"),
    "array<int>": ("array()", "array(null)", "array(null, 1)", "array(1)", "array(1, 2)"),
    "interval day to second": (
        "null", "INTERVAL '-1' DAY", "INTERVAL '0' DAY", "INTERVAL '1' HOUR", "INTERVAL '3' DAY"),
}
#: The columns of all collections.
COLUMNS = ("k", "n")
#: The operators of a body by how many collections they take. The last ones take the values down
#: and up again, so that only loops with a limit have them.
LINEAR = ("next", "less", "fixed", "distinct", "reversed")
PAIRS = ("union", "union", "union", "join", "compose", "semi")
GROUPED = ("min", "max", "top", "top2")
FALLING = ("count", "sum", "reduce", "anti", "minus")
#: A loop without a limit counts as endless after this number of iterations.
MOST = 40

Rows = Counter[tuple[int, int]]
#: Input, record, time and diff.
Update = tuple[str, tuple[int, int], int, int]


@dataclass(frozen=True)
class Call:
    """An operator, its arguments, and a number for its constants."""

    name: str
    parts: tuple[Any, ...]
    number: int = 0


@dataclass(frozen=True)
class Nest:
    """A loop: its variables' names, starts and results, its result and its limit."""

    names: tuple[str, ...]
    starts: tuple[Any, ...]
    bodies: tuple[Any, ...]
    result: Any
    limit: int | None


class Stalls(Exception):
    """A loop does not come to rest."""


class Drawn:
    """A program of a seed, and the updates that its inputs are fed."""

    def __init__(self, seed: int):
        self.random = Random(seed)
        random = self.random
        names = sorted(TYPES)
        simple = random.random() < 0.4
        first = "int" if simple else random.choice(names)
        second = first if random.random() < 0.6 else random.choice(names)
        self.types = (first, second)
        self.sizes = tuple(len(TYPES[name]) for name in self.types)
        self.names = 0
        self.depth = random.choice([1, 1, 2, 2, 3])
        self.program = self.loop(["a", "b"], self.depth)
        self.history = random.random() < 0.5
        self.steps = self.updates()

    def loop(self, outer: list[str], depth: int) -> Nest:
        random = self.random
        count = random.choice([1, 2, 2, 3])
        names = tuple(f"v{self.names + i}" for i in range(count))
        self.names += count
        limit = random.choice([None, None, 1, 2, 3, 4])
        starts = tuple(self.tree(outer, 1, True) for _ in names)
        pattern = random.choice(["none", "self", "chain", "cycle", "invariant", "any", "any"])
        bodies = []
        for place, name in enumerate(names):
            sources = {
                "none": outer, "self": [name], "invariant": [outer[-1]],
                "chain": [names[max(place - 1, 0)], *outer[-1:]],
                "cycle": [names[place - 1]], "any": [*names, *outer],
            }[pattern]
            body = self.tree(sources, random.choice([0, 1, 2, 3]), limit is None)
            if depth > 1 and (place == 0 or random.random() < 0.2):
                inner = self.loop([*outer, *names], depth - 1)
                body = random.choice([inner, Call("union", (inner, body))])
            if random.random() < 0.4 and pattern != "none":
                body = Call("union", (body, name))
            if limit is None or random.random() < 0.8:
                body = Call("distinct", (body,))
            bodies.append(body)
        result = self.tree([*names, *names, *outer], random.choice([0, 0, 1]), True)
        if isinstance(result, str) and result not in names:
            result = names[0]
        elif not isinstance(result, str):
            result = Call("union", (result, random.choice(names)))
        return Nest(names, starts, tuple(bodies), result, limit)

    def tree(self, sources: list[str], depth: int, rising: bool) -> Any:
        random = self.random
        if not depth:
            return random.choice(sources)
        kinds = [LINEAR, PAIRS, PAIRS, GROUPED, *([] if rising and random.random() < 0.9
                                                  else [FALLING])]
        name = random.choice(random.choice(kinds))
        if name in ("compose", "reversed") and self.types[0] != self.types[1]:
            name = "join" if name == "compose" else "next"
        takes = 2 if name in (*PAIRS, "anti", "minus") else 1
        parts = tuple(self.tree(sources, random.randint(0, depth - 1), rising)
                      for _ in range(takes))
        call = Call(name, parts, random.randrange(5))
        # Multiplicities multiply in joins, and may be negative after a difference.
        return Call("distinct", (call,)) if name in ("join", "compose", "minus") else call

    def updates(self) -> list[tuple[list[Update], int]]:
        """The updates of each step, and the time that it goes to."""
        random, now = self.random, 0
        there: dict[str, Rows] = {"a": Counter(), "b": Counter()}
        steps = []
        for _ in range(random.randint(2, 5)):
            changes = []
            for _ in range(random.choice([1, 1, 2, 3])):
                for name, rows in there.items():
                    for _ in range(random.randint(0, 3)):
                        record = tuple(random.randrange(size) for size in self.sizes)
                        present = [row for row, number in rows.items() if number > 0]
                        if present and random.random() < 0.5:
                            record = random.choice(present)
                            diff = -rows[record] if random.random() < 0.7 else -1
                        else:
                            diff = random.choice([1, 1, 2])
                        rows[record] += diff
                        changes.append((name, record, now, diff))
                    if random.random() < 0.2:  # two updates that cancel out
                        record = tuple(random.randrange(size) for size in self.sizes)
                        diffs = random.choice([(1, -1), (-2, 2)])
                        changes += [(name, record, now, diff) for diff in diffs]
                now += 1
            steps.append((changes, now))
        return steps


def names_in(part: Any) -> set[str]:
    """The collections that a part of a program reads."""
    if isinstance(part, str):
        return {part}
    if isinstance(part, Nest):
        needed = needed_of(part)
        parts = [part.result]
        for i in needed:
            parts += [part.starts[i], part.bodies[i]]
        return set().union(*map(names_in, parts)) - set(part.names)
    return set().union(*map(names_in, part.parts))


def needed_of(nest: Nest) -> dict[int, str]:
    """The variables that the result of a loop is made of, by their numbers."""
    needed: set[str] = set()
    reached = names_in(nest.result)
    while reached - needed:
        needed |= reached
        reached = set().union(*(
            names_in(body) for name, body in zip(nest.names, nest.bodies) if name in needed))
    return {i: name for i, name in enumerate(nest.names) if name in needed}


class Oracle:
    """Computes with the places of values, from scratch."""

    def __init__(self, drawn: Drawn, inputs: dict[str, Rows]):
        self.sizes = drawn.sizes
        self.null = tuple(0 if TYPES[name][0] == "null" else None for name in drawn.types)
        self.inputs = inputs

    def evaluate(self, part: Any, known: dict[str, Rows]) -> Rows:
        if isinstance(part, str):
            return known[part]
        if isinstance(part, Nest):
            return self.loop(part, known)
        inputs = [self.evaluate(child, known) for child in part.parts]
        counts = getattr(self, part.name)(part.number, *inputs)
        return Counter({row: count for row, count in counts.items() if count})

    def loop(self, nest: Nest, known: dict[str, Rows]) -> Rows:
        needed = needed_of(nest)  # nothing runs that the result does not need
        now = {name: self.evaluate(nest.starts[i], known) for i, name in needed.items()}

        def turn() -> dict[str, Rows]:
            scope = {**known, **now}
            return {name: self.evaluate(nest.bodies[i], scope) for i, name in needed.items()}

        for _ in range((nest.limit or MOST) - 1):
            then = turn()
            if then == now:
                break
            now = then
        # In the last iteration, too, a loop inside may not come to rest.
        if turn() != now and nest.limit is None:
            raise Stalls
        return self.evaluate(nest.result, {**known, **now})

    def map(self, rows: Rows, function: Any) -> Rows:
        counts: Rows = Counter()
        for row, count in rows.items():
            counts[function(*row)] += count
        return counts

    def next(self, number, a):
        return self.map(a, lambda k, n: (k, min(n + 1, self.sizes[1] - 1)))

    def less(self, number, a):
        return {row: c for row, c in a.items() if row[1] <= number}

    def fixed(self, number, a):
        return self.map(a, lambda k, n: (min(number, self.sizes[0] - 1), n))

    def reversed(self, number, a):
        return self.map(a, lambda k, n: (n, k))

    def distinct(self, number, a):
        return {row: 1 for row, c in a.items() if c > 0}

    def union(self, number, a, b):
        counts = Counter(a)
        counts.update(b)
        return counts

    def minus(self, number, a, b):
        counts = Counter(a)
        counts.subtract(b)
        return counts

    def join(self, number, a, b):
        counts: Rows = Counter()
        for (k, _), c in a.items():
            for (other, m), d in b.items():
                if k == other and k != self.null[0]:
                    counts[k, m] += c * d
        return counts

    def compose(self, number, a, b):
        counts: Rows = Counter()
        for (k, n), c in a.items():
            for (other, m), d in b.items():
                if n == other and n != self.null[1]:
                    counts[k, m] += c * d
        return counts

    def semi(self, number, a, b):
        keys = {k for (k, _), c in b.items() if c > 0} - {self.null[0]}
        return {row: c for row, c in a.items() if row[0] in keys}

    def anti(self, number, a, b):
        keys = {k for (k, _), c in b.items() if c > 0} - {self.null[0]}
        return {row: c for row, c in a.items() if row[0] not in keys}

    def grouped(self, a):
        groups: dict[int, Rows] = {}
        for (k, n), c in a.items():
            groups.setdefault(k, Counter())[n] += c
        return groups.items()

    def extreme(self, a, function):
        extremes = {}
        for k, values in self.grouped(a):
            known = [n for n in values if n != self.null[1]]
            extremes[k, function(known) if known else 0] = 1
        return extremes

    def min(self, number, a):
        return self.extreme(a, min)

    def max(self, number, a):
        return self.extreme(a, max)

    def top(self, number, a, most=1):
        counts: Rows = Counter()
        for k, values in self.grouped(a):
            left = most
            for n in sorted(values):
                copies = min(left, values[n])
                counts[k, n] += copies
                left -= copies
        return counts

    def top2(self, number, a):
        return self.top(number, a, 2)

    def count(self, number, a):
        return {(k, sum(v.values()) % self.sizes[1]): 1 for k, v in self.grouped(a)}

    def sum(self, number, a):
        return {(k, sum(n * c for n, c in v.items()) % self.sizes[1]): 1
                for k, v in self.grouped(a)}

    def reduce(self, number, a):
        return {(k, n): 1 for k, v in self.grouped(a) if len(v) > 1 for n in v}


def several(key, values):
    """Each value of a key that has more than one."""
    return [value for value, _ in values] if len(values) > 1 else []


class Build:
    """Builds the frames of a program."""

    def __init__(self, drawn: Drawn):
        self.types = drawn.types

    def literal(self, column: int, place: int) -> str:
        name = self.types[column]
        return f"CAST({TYPES[name][place]} AS {name})"

    def place(self, column: int) -> str:
        """The place of a column's value."""
        name = COLUMNS[column]
        cases = " ".join(
            f"WHEN {name} <=> {self.literal(column, i)} THEN {i}"
            for i in range(len(TYPES[self.types[column]]))
        )
        return f"CASE {cases} END"

    def value(self, column: int, place: str) -> str:
        """The value of a place."""
        size = len(TYPES[self.types[column]])
        cases = " ".join(
            f"WHEN {place} = {i} THEN {self.literal(column, i)}" for i in range(size - 1)
        )
        return f"CASE {cases} ELSE {self.literal(column, size - 1)} END"

    def build(self, part: Any, known: dict[str, Any]) -> Any:
        if isinstance(part, str):
            return known[part]
        if isinstance(part, Nest):
            return self.loop(part, known)
        inputs = [self.build(child, known) for child in part.parts]
        return getattr(self, part.name)(part.number, *inputs)

    def loop(self, nest: Nest, known: dict[str, Any]) -> Any:
        limit = dict(max_iterations=nest.limit, on_limit="return") if nest.limit else dict(
            max_iterations=MOST)
        starts = [self.build(start, known) for start in nest.starts]
        with Loop(**limit) as loop:
            variables = [loop.variable(start) for start in starts]
            scope = {**known, **dict(zip(nest.names, variables))}
            for variable, body in zip(variables, nest.bodies):
                variable.set(self.build(body, scope))
            result = self.build(nest.result, scope)
        return loop.leave(result)

    def next(self, number, a):
        size = len(TYPES[self.types[1]])
        place = f"least({self.place(1)} + 1, {size - 1})"
        return a.selectExpr("k", f"{self.value(1, place)} AS n")

    def less(self, number, a):
        return a.where(f"{self.place(1)} <= {number}")

    def fixed(self, number, a):
        size = len(TYPES[self.types[0]])
        return a.selectExpr(f"{self.literal(0, min(number, size - 1))} AS k", "n")

    def reversed(self, number, a):
        return a.select(F.col("n").alias("k"), F.col("k").alias("n"))

    def distinct(self, number, a):
        return a.distinct()

    def union(self, number, a, b):
        return a.union(b)

    def minus(self, number, a, b):
        return a.union(b.negate())

    def join(self, number, a, b):
        return a.select("k").join(b, "k").select("k", "n")

    def compose(self, number, a, b):
        return a.toDF("x", "y").join(b.toDF("y", "n"), "y").select(F.col("x").alias("k"), "n")

    def semi(self, number, a, b):
        return a.join(b.select("k"), "k", "left_semi")

    def anti(self, number, a, b):
        return a.join(b.select("k"), "k", "left_anti")

    def min(self, number, a):
        return a.groupBy("k").agg(F.min("n").alias("n"))

    def max(self, number, a):
        return a.groupBy("k").agg(F.max("n").alias("n"))

    def top(self, number, a, most=1):
        return a.top_k(most, "n", per="k")

    def top2(self, number, a):
        return self.top(number, a, 2)

    def folded(self, a, aggregate):
        size = len(TYPES[self.types[1]])
        groups = a.groupBy("k").agg(aggregate.alias("made"))
        return groups.selectExpr("k", f"{self.value(1, f'made % {size}')} AS n")

    def count(self, number, a):
        return self.folded(a, F.count(F.lit(1)))

    def sum(self, number, a):
        return self.folded(a.selectExpr("k", f"{self.place(1)} AS n"), F.sum("n"))

    def reduce(self, number, a):
        return a.reduce(several, f"n {self.types[1]}", "k")


def answer(drawn: Drawn, past: Sequence[Update], time: int) -> Rows:
    """The answer at a time, from scratch."""
    inputs: dict[str, Rows] = {"a": Counter(), "b": Counter()}
    for name, record, then, diff in past:
        if then <= time:
            inputs[name][record] += diff
    inputs = {n: Counter({r: c for r, c in rows.items() if c}) for n, rows in inputs.items()}
    return Oracle(drawn, inputs).evaluate(drawn.program, inputs)


def check(spark: Any, seed: int, runner: str, **options: Any) -> str:
    """Run the program of a seed and compare it to the oracle after each step.

    Returns
    -------
    str
        ``stalled`` if a step was refused since a loop does not come to rest, else ``right``.
    """
    drawn = Drawn(seed)
    build = Build(drawn)
    # The kernels are tested with many buckets elsewhere, and a loop has many small tasks.
    with Dataflow(spark, runner=runner, keep_history=drawn.history,
                  **{"buckets": 2, **options}) as flow:
        sessions = {}
        frames = {}
        for name in "ab":
            places, sessions[name] = flow.input(name, "k int, n int")
            # PySpark cannot hand over values of each of the types.
            frames[name] = places.selectExpr(
                *(f"{build.value(i, column)} AS {column}" for i, column in enumerate(COLUMNS)))
        build.build(drawn.program, frames).selectExpr(
            *(f"{build.place(i)} AS {column}" for i, column in enumerate(COLUMNS))).keep("o")
        past: list[Update] = []
        done, ended, refused = 0, "right", False
        for changes, to in drawn.steps:
            past += changes
            for name, record, time, diff in changes:
                sessions[name].update([(*record, time, diff)])
            times = range(done, to) if drawn.history else [to - 1]
            # After a refused step updates move to the last time, as no other one can be read.
            met = times if refused else range(done, to)
            try:
                expected = {time: answer(drawn, past, time) for time in met}
            except Stalls:
                expected = None
            try:
                flow.advance_to(to)
            except StalledError:
                assert expected is None, (seed, runner, to, "refused")
                ended, refused = "stalled", True
                if drawn.history:
                    break
                continue
            assert expected is not None, (seed, runner, to, "not refused")
            for time in times:
                rows = Counter(map(tuple, flow["o"].at(time).collect()))
                assert rows == expected[time], (seed, runner, time, rows, expected[time])
            done, refused = to, False
    return ended


def main() -> None:
    """Run a range of seeds."""
    import traceback

    import pyspark_diff
    runner, first, last, seconds = sys.argv[1], *map(int, sys.argv[2:5])
    spark = pyspark_diff.session(master="local[2]", memory="2g")
    spark.sparkContext.setLogLevel("ERROR")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    began, ended, failed = clock.monotonic(), Counter(), []
    seed = first
    for seed in range(first, last):
        if clock.monotonic() - began > seconds:
            break
        try:
            ended[check(spark, seed, runner)] += 1
        except Exception as error:
            failed.append(seed)
            traceback.print_exc(limit=-3)
            print("FAILED", seed, type(error).__name__, str(error)[:1000], flush=True)
    print(f"{runner}: seeds {first} to {seed}: {dict(ended)}, failed: {failed}", flush=True)


if __name__ == "__main__":
    main()
