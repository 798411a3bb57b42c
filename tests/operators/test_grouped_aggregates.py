"""Every supported aggregate, alone and in expressions, in every kind of groups.

    groups(collection).agg(e)  ==  groups(table).agg(e)

after a load, a change and a removal of all rows, for input that may be null and for input that may
not be null. The tests draw each aggregate that tests/functions.tsv has as right in `agg`. So they
draw a new aggregate once that file classifies it.
"""

from __future__ import annotations

import datetime
import logging
import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from connect_server import in_sql_text
from function_registry import ANY, UNORDERED, classified
from plain import local_frame
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff import Dataflow, UnsupportedTypeError
from pyspark_diff.expressions.aggregate_functions import FUNCTIONS

pytestmark = in_sql_text

INNER = "struct<a int, b string>"
#: The types of the argument, and some values of each. Numbers differ in each group of two, as a
#: correlation of equal values divides by zero.
TYPES: dict[str, tuple[str, list[Any]]] = {
    "boolean": ("boolean", [True, False]),
    "int": ("int", [3, -1, 7, -1, 9]),
    "long": ("bigint", [2**40, -5, 12, -5, 7]),
    "double": ("double", [0.5, -2.25, 8.0, -2.25, 3.0]),
    "decimal": ("decimal(10,2)", [Decimal(n) / 100 for n in (125, -50, 900, -50, 300)]),
    "string": ("string", ["3", "-1", "7", "-1", "9"]),
    "binary": ("binary", [b"x", b"", b"yz"]),
    "date": ("date", [datetime.date(2024, 2, 29), datetime.date(1969, 7, 20)]),
    "timestamp": ("timestamp", [datetime.datetime(2024, 1, 2, 3), datetime.datetime(1960, 1, 1)]),
    "interval": ("interval day to second", [datetime.timedelta(seconds=s) for s in (90, -5, 90)]),
    "array": ("array<int>", [[1, 2], [], [3], [1, 2]]),
    "arrays": (f"array<{INNER}>", [[(1, "q")], [(0, "r"), (2, "s")]]),
    "struct": (INNER, [(1, "q"), (0, "r"), (1, "q")]),
    "map": ("map<string,int>", [{"z": 1}, {"y": 2, "z": 0}, {}]),
    "structs by key": (f"map<string,{INNER}>", [{"z": (1, "q")}, {}, {"y": (2, "s")}]),
}
#: Values that hold a null inside, for input that may be null.
WITH_NULLS: dict[str, list[Any]] = {
    "array": [[None, 1]], "arrays": [[None], [(None, "q"), (1, None)]], "struct": [(None, "q")],
    "map": [{"z": None}], "structs by key": [{"z": None, "y": (None, None)}],
}
GROUPS = {
    "groupBy": lambda t: t.groupBy("k"),
    "rollup": lambda t: t.rollup("k", "p"),
    "cube": lambda t: t.cube("k", "p"),
    "groupingSets": lambda t: t.groupingSets([("k",), ("p", "k"), ()], "k", "p"),
    "pivot": lambda t: t.groupBy("k").pivot("p", ["u", "w"]),
    "no keys": lambda t: t.groupBy(),
    "empty": lambda t: t.groupBy(),
}
#: Other forms of calls than those of tests/functions.tsv. A mode without an order has ties.
FORMS = {
    "count": ["count(*)", "count(col)"], "mode": ["mode(col, true)"],
    "min_by": ["min_by(y, x)"], "max_by": ["max_by(y, x)"],
    "count_if": ["count_if(col IS NOT NULL)"],
}
#: Calls that Spark accepts and the library refuses by name.
REFUSED = {
    *((name, kind) for name in ("avg", "mean", "sum", "try_avg", "try_sum")
      for kind in ("string", "timestamp")),
    ("regr_avgy", "string"),
    *((name, "interval") for name in ("median", "percentile", "percentile_cont",
                                      "percentile_disc")),
}
#: Calls without an answer of plain Spark: the texts are no truth values, and Spark counts equal
#: binary values apart in a mode.
NOT_COMPARED = {
    *((name, "string") for name in ("any", "some", "every", "bool_and", "bool_or")),
    ("mode", "binary"),
}
#: Types of values without an order: Spark does not sort a list of them.
UNSORTED = ("map", "structs by key")
#: Places of arguments in the examples of Spark's descriptions.
_FIRST, _SECOND = re.compile(r"\b(?:col1?|c1|y)\b"), re.compile(r"\b(?:c2|x)\b")


@dataclass(frozen=True)
class Call:
    """A call of an aggregate.

    Parameters
    ----------
    name : str
    text : str
        The call over the columns `v` and `u`.
    sorts : bool
        Whether Spark can sort the values.
    """

    name: str
    text: str
    sorts: bool

    @property
    def oracle(self) -> str:
        """A call with the same result in plain Spark, which leaves the order of records open.

        The library takes the least record, a null first, and the greatest one for `last`. Its lists
        are sorted.
        """
        if not self.sorts:
            return self.text
        if self.name in ANY:
            return f"{'max' if 'last' in self.name else 'min'}(struct(v)).v"
        if self.name == "approx_count_distinct":  # exact here
            return "CAST(size(collect_set(v)) AS BIGINT)"
        if self.name in ("listagg", "string_agg"):
            return f"{self.text} WITHIN GROUP (ORDER BY CAST(v AS STRING))"
        return f"sort_array({self.text})" if self.name in UNORDERED else self.text


def names() -> list[str]:
    """The aggregates that are right in `agg`, and no function of a row."""
    return [name for name, (letters, _) in classified().items()
            if letters[3:4] == "r" and letters[0] == "-"]


def calls(spark: Any, kind: str, schema: T.StructType, groups: str = "groupBy") -> list[Call]:
    """The calls of each aggregate that Spark accepts for the type of the argument.

    Spark's pivot of results that are no numbers refuses calls with constants, such as percentiles.
    """
    sorts = kind not in UNSORTED
    template = spark.createDataFrame([], schema)
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    calls_of_kind = []
    for name in names():
        for text in FORMS.get(name, [classified()[name][1]]):
            # Without an order a test cannot know the right record, unless all are equal.
            value = "v" if sorts or name not in (*ANY, "mode") else "map('c', u * 0)"
            call = Call(name, _SECOND.sub("u", _FIRST.sub(value, text)), sorts)
            try:
                GROUPS[groups](template).agg(F.expr(f"struct({call.text})")).schema
                calls_of_kind.append(call)
            except PySparkException:
                pass
    return calls_of_kind


def computed(text: str, kind: T.DataType, sorts: bool) -> str:
    """An expression over a call of an aggregate that has a result of a type."""
    parts = [f"array({text}, {text})", f"if(count(*) > 1, {text}, NULL)", "count(*)"]
    if isinstance(kind, T.NumericType):
        parts += [f"{text} + 1", f"map(1, {text})"]
    elif isinstance(kind, T.ArrayType):
        parts += [f"transform({text}, e -> named_struct('e', e))",
                  f"get({text}, 0)" if sorts else f"size({text})"]
    elif isinstance(kind, T.MapType):
        parts += [f"map_entries({text})", f"map_values({text})"]
    elif isinstance(kind, T.StructType):
        parts += [f"{text}.{kind.names[0]}"]
    return f"struct({', '.join(parts)})"


def with_nullability(kind: Any, nullable: bool) -> Any:
    """A type in which every part may be null, or none."""
    if isinstance(kind, T.StructType):
        return T.StructType([
            T.StructField(f.name, with_nullability(f.dataType, nullable), nullable) for f in kind
        ])
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(with_nullability(kind.elementType, nullable), nullable)
    if isinstance(kind, T.MapType):
        return T.MapType(kind.keyType, with_nullability(kind.valueType, nullable), nullable)
    return kind


def rows_of(name: str, nullable: bool) -> list[tuple[Any, ...]]:
    """Rows (k, p, u, v), in which `u` has no value twice."""
    values = [TYPES[name][1][n % len(TYPES[name][1])] for n in range(10)]
    if nullable:
        values[0] = values[4] = values[8] = None
        for n, value in zip((1, 5), WITH_NULLS.get(name, [])):
            values[n] = value
    keys = ["a", "b", "a", None if nullable else "c"]
    return [(keys[n % 4], "uvw"[n % 3], n, values[n]) for n in range(10)]


def matches(ours: Any, wanted: Any, loose: bool) -> bool:
    """Whether two values are equal, floats up to rounding, and lists in any order if `loose`."""
    if isinstance(wanted, float) and isinstance(ours, float):
        both_nan = math.isnan(ours) and math.isnan(wanted)
        return both_nan or math.isclose(ours, wanted, rel_tol=1e-9, abs_tol=1e-9)
    if isinstance(wanted, dict) and isinstance(ours, dict):
        same = ours.keys() == wanted.keys()
        return same and all(matches(ours[key], wanted[key], loose) for key in wanted)
    if isinstance(wanted, (list, tuple)) and isinstance(ours, (list, tuple)):
        if loose and isinstance(wanted, list):
            ours, wanted = sorted(ours, key=str), sorted(wanted, key=str)
        return len(ours) == len(wanted) and all(matches(*pair, loose) for pair in zip(ours, wanted))
    return type(ours) is type(wanted) and ours == wanted


class Program:
    """All calls over one type of argument in one kind of groups.

    Its state is the dataflow and the present rows.
    """

    def __init__(
        self, spark: Any, kind: str, groups: str, nullable: bool, some: frozenset[str]
    ):
        self.spark, self.groups, self.loose = spark, groups, kind in UNSORTED
        parsed = T.StructType.fromDDL(f"k string, p string, u int, v {TYPES[kind][0]}")
        self.schema = with_nullability(parsed, nullable)
        template = spark.createDataFrame([], self.schema)
        #: Texts of aggregates, each with its equal in plain Spark.
        self.texts = [("count(*)", "count(*)"), ("sum(u)", "sum(u)")]
        for call in calls(spark, kind, self.schema, groups):
            if (call.name, kind) in REFUSED or (some and call.name not in some):
                continue
            if nullable and call.name == "corr":
                # Nulls leave groups of equal values, which have no correlation.
                continue
            if (nullable or groups == "pivot") and not call.sorts and call.name in ANY:
                # Each record is right where values have no order. In a pivot
                # Spark takes a null for each record of another pivot value.
                continue
            if (call.name, kind) in NOT_COMPARED:
                continue
            result = template.select(F.expr(call.text)).schema[0].dataType
            both = [[t, computed(t, result, call.sorts)] for t in (call.text, call.oracle)]
            self.texts += zip(*both)
        self.flow = Dataflow(spark, runner="local", buckets=2)
        rows, self.rows_in = self.flow.input("rows", self.schema)
        how = {"empty": True} if groups == "empty" else {}
        self.output = GROUPS[groups](rows).agg(*self.columns(0), **how).keep("all")
        self.there: list[Any] = []

    def columns(self, place: int) -> list[Any]:
        return [F.expr(both[place]).alias(f"c{n}") for n, both in enumerate(self.texts)]

    def change(self, removed: list[Any], inserted: list[Any], time: int) -> None:
        """A step with removed and inserted rows, and its comparison with plain Spark."""
        if removed:
            self.rows_in.remove(removed)
        if inserted:
            self.rows_in.insert(inserted)
        self.flow.advance_to(time)
        self.there = [row for row in self.there if row not in removed] + inserted
        table = local_frame(self.spark, self.there, self.schema)
        wanted = GROUPS[self.groups](table).agg(*self.columns(1))
        rows = wanted.collect() if self.there or self.groups != "no keys" else []
        ours = self.output.at()
        names = GROUPS[self.groups](table).agg(*self.columns(0)).dtypes
        assert ours.dtypes == names
        self.compare(ours.collect(), rows)

    def compare(self, ours: list[Any], wanted: list[Any]) -> None:
        assert len(ours) == len(wanted)
        # The keys, the number of rows and the sum of unique numbers come first.
        for row, other in zip(sorted(ours, key=str), sorted(wanted, key=str)):
            keys = len(row) - len(self.texts) if self.groups != "pivot" else 1
            for place, (value, right) in enumerate(zip(row, other)):
                text = self.texts[(place - keys) % len(self.texts)] if place >= keys else "key"
                assert matches(value, right, self.loose), (text, value, right)


def check(spark: Any, kind: str, groups: str, nullable: bool, *some: str) -> None:
    program = Program(spark, kind, groups, nullable, frozenset(some))
    try:
        rows = rows_of(kind, nullable)
        program.change([], rows[:7], 1)
        program.change([rows[1], rows[2], rows[6]], rows[7:], 2)
        program.change(list(program.there), [], 3)
        program.change([], rows[:1], 4)
    finally:
        program.flow.close()


@pytest.mark.slow
def test_aggregates_of_maps_in_a_rollup(spark):
    check(spark, "structs by key", "rollup", False, "collect_list", "max_by", "count")


def test_percentiles_of_texts_are_those_of_numbers(spark):
    check(spark, "string", "groupBy", False, "percentile_approx", "percentile_disc")


@pytest.mark.parametrize("name, kind", [
    pytest.param(*both, marks=[] if both == ("percentile_disc", "interval") else pytest.mark.slow)
    for both in sorted(REFUSED)
])
def test_refused_by_name(spark, name, kind):
    schema = T.StructType.fromDDL(f"k string, p string, u int, v {TYPES[kind][0]}")
    with Dataflow(spark, runner="local", buckets=1) as flow:
        rows, _ = flow.input("rows", schema)
        for call in calls(spark, kind, schema):
            if call.name == name:
                with pytest.raises(UnsupportedTypeError, match="is not supported"):
                    rows.groupBy("k").agg(F.expr(call.text))


def test_each_aggregate_of_the_library_is_classified():
    assert set(FUNCTIONS) <= set(names())
