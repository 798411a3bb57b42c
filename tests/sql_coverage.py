"""Runs SQL queries on small random tables and compares the kept answer with plain Spark's.

    after the load, and after each of some random batches of insertions, updates and deletions:
        the kept answer  =  the rows that plain Spark returns for the same tables

Each query has one outcome:

* ``equal``: all batches are equal. Two failures with the same cause are equal too.

* ``wrong``, or ``failed`` when it is written or during a step.
* ``refused``, with its codes.

* ``spark fails``: only plain Spark fails on the rows.
* ``spark refuses``: Spark does not accept the query.

All batches are compared, also after a failure. `ci/sql_coverage` runs a folder of queries and
prints the counts.
"""

from __future__ import annotations

import argparse
import datetime
import decimal
import math
import random
import re
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from pyspark_diff import (
    Dataflow,
    DiffError,
    DiffOverflowError,
    SchemaError,
    UnsupportedQueryError,
    session,
)

ROWS, CHANGES, BATCHES = 40, 12, 5
NULLS, ROUNDED = 0.08, 9
_TABLE = re.compile(r"CREATE TABLE\s+`?(\w+)`?\s*\((.*?)\)\s*;", re.IGNORECASE | re.DOTALL)
_TEXT = re.compile(r"'((?:[^']|'')*)'")
_NUMBER = re.compile(r"(?<![\w.'])(\d{1,6})(?![\w.'])")
_DATE = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})")
_CONSTANT = r"(?:'(?:[^']|'')*'|-?\d+(?:\.\d+)?)"
#: A column and the constants that it is compared with.
_COMPARED = re.compile(
    rf"\b(\w+)\s*(?:=|<>|!=|<=|>=|<|>|\blike\b)\s*({_CONSTANT})(?![\w.])"
    rf"|\b(\w+)\s+(?:not\s+)?in\s*\(((?:\s*{_CONSTANT}\s*,?)+)\)"
    rf"|\b(\w+)\s+between\s+({_CONSTANT}\s+and\s+{_CONSTANT})", re.IGNORECASE,
)
_CONDITION = re.compile(r"\b[A-Z]{3,}(?:_[A-Z]+)+\b")
#: Outcomes after which the tool exits with 1, the worst one first.
FAULTS = ("wrong", "failed", "spark fails")
#: Conditions of Spark for which the library has its own error.
_OVERFLOWS = {"ARITHMETIC_OVERFLOW", "NUMERIC_VALUE_OUT_OF_RANGE"}

Tables = dict[str, list[tuple[Any, ...]]]


@dataclass(frozen=True)
class Outcome:
    """The end of one query: its kind, and an explanation."""

    kind: str
    detail: str = ""
    rows: int = 0


def read_schema(text: str) -> dict[str, str]:
    """The columns of each table, of statements ``CREATE TABLE name (columns);``."""
    # A frame of local rows has no columns of a length.
    text = re.sub(r"\b(var)?char\(\d+\)", "string", text, flags=re.IGNORECASE)
    return {name: " ".join(columns.split()) for name, columns in _TABLE.findall(text)}


class Values:
    """Random values that a query is likely to select: the constants in its text among them."""

    def __init__(self, text: str, seed: int):
        self.random = random.Random(seed)
        texts = {item.replace("''", "'") for item in _TEXT.findall(text)}
        self.dates = [
            datetime.date(int(y), int(m), int(d)) for y, m, d in _DATE.findall(text)
            if 1 <= int(m) <= 12 and 1 <= int(d) <= 28
        ]
        self.texts = sorted(item.replace("%", "x") for item in texts if not _DATE.fullmatch(item))
        numbers = [int(item) for item in _NUMBER.findall(text)]
        self.years = [item for item in numbers if 1900 <= item <= 2100]
        self.numbers = [item for item in numbers if not 1900 <= item <= 2100]
        self.compared: dict[str, list[str]] = {}
        for match in _COMPARED.findall(text):
            name = next(part for part in match[::2] if part)
            constants = next(part for part in match[1::2] if part)
            self.compared.setdefault(name.lower(), []).extend(re.findall(_CONSTANT, constants))

    def near(self, name: str, kind: T.DataType) -> Any:
        """A value at or near a constant that the column is compared with; None if there is none."""
        if name.lower() not in self.compared or self.random.random() < 0.25:
            return None
        constant = self.random.choice(self.compared[name.lower()]).strip("'").replace("''", "'")
        if isinstance(kind, T.StringType):
            return constant.replace("%", "x")
        try:
            number = decimal.Decimal(constant)
        except decimal.InvalidOperation:
            return None
        number += self.random.choice([0, 0, 0, -1, 1])
        if isinstance(kind, T.DecimalType):
            room = decimal.Decimal(10) ** (kind.precision - kind.scale)
            return round(number, kind.scale) if abs(number) < room else None
        if isinstance(kind, (T.DoubleType, T.FloatType)):
            return float(number)
        return int(number) if isinstance(kind, (T.IntegerType, T.LongType)) else None

    def row(self, fields: list[T.StructField]) -> tuple[Any, ...]:
        return tuple(self.value(item.name, item.dataType) for item in fields)

    def value(self, name: str, kind: T.DataType) -> Any:
        draw = self.random
        if draw.random() < NULLS:
            return None
        near = self.near(name, kind)
        if near is not None:
            return near
        if isinstance(kind, T.DateType):
            day = draw.choice(self.dates or [datetime.date(2000, 2, 1)])
            return day + datetime.timedelta(days=draw.randrange(-3, 40))
        if isinstance(kind, (T.TimestampType, T.TimestampNTZType)):
            return datetime.datetime(2024, 1, 1) + datetime.timedelta(hours=draw.randrange(96))
        if isinstance(kind, T.BooleanType):
            return draw.random() < 0.5
        if isinstance(kind, T.DecimalType):
            whole = min(kind.precision - kind.scale, 3)
            number = draw.randrange(10 ** whole)
            if self.numbers and draw.random() < 0.3:
                number = draw.choice(self.numbers) % 10 ** (kind.precision - kind.scale)
            return decimal.Decimal(number) + decimal.Decimal(draw.randrange(4)).scaleb(-kind.scale)
        if isinstance(kind, (T.DoubleType, T.FloatType)):
            return draw.randrange(400) / 4
        if isinstance(kind, T.StringType) or kind.typeName() in ("char", "varchar"):
            if self.texts and draw.random() < 0.7:
                return draw.choice(self.texts)
            return draw.choice(["a", "b", "ab", "c", ""])
        if not name.endswith(("_sk", "key", "_id")):
            if "year" in name and self.years:
                return draw.choice(self.years) + draw.randrange(-1, 2)
            if self.numbers and draw.random() < 0.5:
                return draw.choice(self.numbers) % 100
        return draw.randrange(1, 7)


def without_ties(spark: SparkSession, structs: dict[str, T.StructType], text: str) -> str:
    """The query with all its columns at the end of a last ORDER BY that a LIMIT follows."""
    limit = re.search(r"\blimit\s+\d+\s*$", text, re.IGNORECASE)
    order = re.search(r"(?s)\border\s+by\b(?!.*\border\s+by\b)(.*)$", text, re.IGNORECASE)
    # An order in a subquery, or in another operator of a pipe, is not that of the limit.
    if limit is None or order is None or "|>" in order[1] or (
        order[1].count(")") > order[1].count("(")
    ):
        return text
    try:
        columns = plain(spark, structs, {name: [] for name in structs}, text, columns=True)
    except PySparkException:
        return text
    ordinals = ", ".join(str(number + 1) for number in range(len(columns)))
    return f"{text[:limit.start()]}, {ordinals} {limit.group()}"


def run(
    spark: SparkSession, schemas: dict[str, str], text: str, *, seed: int = 0,
    batches: int = BATCHES, runner: str = "auto", rows: int = ROWS,
) -> Outcome:
    """The end of one query."""
    used = {
        name: schema for name, schema in schemas.items()
        if re.search(rf"\b{name}\b", text, re.IGNORECASE)
    }
    structs = {name: T.StructType.fromDDL(schema) for name, schema in used.items()}
    text = without_ties(spark, structs, text)
    values = Values(text, seed ^ zlib.crc32(text.encode()))
    tables: Tables = {name: [] for name in used}
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        inputs = {name: flow.input(name, structs[name])[1] for name in used}
        try:
            collection = flow.sql(text).keep("answer")
        except UnsupportedQueryError as error:
            codes = sorted(set(re.findall(r"^  (\w+):", str(error), re.MULTILINE)))
            return Outcome("refused", ", ".join(codes) + "\n" + str(error))
        except SchemaError as error:
            if "Spark refuses the query" in str(error):
                return Outcome("spark refuses", str(error).splitlines()[0])
            return Outcome("failed", f"{type(error).__name__}: {error}")
        except Exception as error:
            return Outcome("failed", f"when written: {type(error).__name__}: {error}")
        largest, faults = 0, []
        for batch in range(batches + 1):
            for name, struct in structs.items():
                count = rows if batch == 0 else max(1, CHANGES // len(structs))
                gone, new = change(values, tables[name], struct, count, first=batch == 0)
                if gone:
                    inputs[name].remove(gone)
                inputs[name].insert(new)
            got, ours = attempt(lambda: (flow.advance_to(batch + 1), collection.at().collect())[1])
            want, theirs = attempt(lambda: plain(spark, structs, tables, text))
            largest = max(largest, len(want or ()))
            end = compared(got, ours, want, theirs)
            if end is not None:
                faults.append(Outcome(end.kind, f"batch {batch}: {end.detail}"))
    for kind in FAULTS:
        if any(item.kind == kind for item in faults):
            return Outcome(kind, "\n".join(item.detail for item in faults), largest)
    return Outcome("equal", rows=largest)


def change(
    values: Values, table: list[tuple[Any, ...]], struct: T.StructType, count: int, first: bool
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """The removed and the inserted rows; some removed rows return with one changed column."""
    gone: list[tuple[Any, ...]] = []
    new = [values.row(struct.fields) for _ in range(count)]
    if not first:
        values.random.shuffle(table)
        gone = table[:count]
        del table[:count]
        for old in gone[::2]:
            at = values.random.randrange(len(old))
            changed = values.value(struct.names[at], struct.fields[at].dataType)
            new.append((*old[:at], changed, *old[at + 1:]))
        values.random.shuffle(new)
        new = new[: values.random.randrange(1, len(new) + 1)]
    table += new
    return gone, new


def attempt(call: Callable[[], list[Any]]) -> tuple[list[Any] | None, Exception | None]:
    """The rows that a call returns, or the error that it raises."""
    try:
        return call(), None
    except (DiffError, PySparkException, Py4JError) as error:
        return None, error


def compared(
    got: list[Any] | None, ours: Exception | None, want: list[Any] | None, theirs: Exception | None
) -> Outcome | None:
    """The fault of one batch; None if both have equal rows, or fail of one cause."""
    if ours is not None and theirs is not None:
        if causes(ours) & causes(theirs):
            return None
        return Outcome("failed", f"for another cause than Spark: {short(ours)}; {short(theirs)}")
    if ours is not None:
        return Outcome("failed", short(ours))
    if theirs is not None:
        return Outcome("spark fails", short(theirs))
    difference = differs(got or [], want or [])
    return Outcome("wrong", difference) if difference else None


def causes(error: BaseException) -> set[str]:
    """The conditions that an error and its causes name."""
    named: set[str] = set()
    while error is not None:
        named |= set(_CONDITION.findall(str(error)))
        if isinstance(error, PySparkException) and error.getCondition():
            named.add(str(error.getCondition()).partition(".")[0])
        if isinstance(error, DiffOverflowError):
            named |= {"DIVIDE_BY_ZERO"} if "divides by zero" in str(error) else _OVERFLOWS
        error = error.__cause__  # type: ignore[assignment]
    return named


def short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def plain(
    spark: SparkSession, structs: dict[str, T.StructType], tables: Tables, text: str,
    columns: bool = False,
) -> list[Any]:
    """The rows that plain Spark returns, or only the names of its columns."""
    for name, struct in structs.items():
        spark.createDataFrame(tables[name], struct).createOrReplaceTempView(name)
    try:
        answer = spark.sql(text)
        return answer.columns if columns else answer.collect()
    finally:
        for name in structs:
            spark.catalog.dropTempView(name)


def differs(got: list[Any], want: list[Any]) -> str:
    """How two multisets of rows differ; nothing if they are equal but for rounding of doubles."""
    ours, theirs = Counter(map(comparable, got)), Counter(map(comparable, want))
    if ours == theirs:
        return ""
    more, less = list((ours - theirs).elements()), list((theirs - ours).elements())
    if len(more) == len(less) and matched(more, less):
        return ""
    return f"{len(got)} rows, not {len(want)}; only here {more[:3]}; only in Spark {less[:3]}"


def matched(more: list[Any], less: list[Any]) -> bool:
    """Whether the rows form pairs that are close, each row in one pair."""
    partner: dict[int, int] = {}

    def finds(row: int, tried: set[int]) -> bool:
        for place, other in enumerate(less):
            if place not in tried and close(more[row], other):
                tried.add(place)
                if place not in partner or finds(partner[place], tried):
                    partner[place] = row
                    return True
        return False

    return all(finds(row, set()) for row in range(len(more)))


def comparable(value: Any) -> Any:
    """A value whose equality is that of Spark's grouping, doubles rounded."""
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        return float(f"{value:.{ROUNDED}g}") + 0.0
    if isinstance(value, dict):
        return tuple(sorted((comparable(k), comparable(v)) for k, v in value.items()))
    if isinstance(value, (list, tuple)):
        return tuple(map(comparable, value))
    return value


def close(item: Any, other: Any) -> bool:
    if isinstance(item, float) and isinstance(other, float):
        return math.isclose(item, other, rel_tol=1e-6, abs_tol=1e-9)
    if isinstance(item, tuple) and isinstance(other, tuple):
        return len(item) == len(other) and all(map(close, item, other))
    return item == other


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of files with one query each, *.sql")
    parser.add_argument("schema", type=Path, help="CREATE TABLE statements")
    parser.add_argument("--only", default="", help="a part of the names of files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batches", type=int, default=BATCHES)
    parser.add_argument("--part", default="0/1", help="k/n: each n-th file, from the k-th on")
    parser.add_argument(
        "--reader", choices=("plan", "text"), default="plan",
        help="the reader of classic sessions, or that of Spark Connect",
    )
    options = parser.parse_args()
    if options.reader == "text":
        Dataflow._is_classic = lambda self: False  # type: ignore[method-assign]
    spark = session("sql coverage", conf={
        "spark.sql.shuffle.partitions": 2, "spark.ui.enabled": False,
    })
    spark.sparkContext.setLogLevel("OFF")
    schemas = read_schema(options.schema.read_text(encoding="utf-8"))
    files = sorted(
        (path for path in options.folder.glob("*.sql") if options.only in path.stem),
        key=lambda path: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", path.stem)],
    )
    part, parts = map(int, options.part.split("/"))
    ends: dict[str, list[str]] = {}
    sizes: list[int] = []
    for path in files[part::parts]:
        began = time.monotonic()
        text = path.read_text(encoding="utf-8").strip().rstrip(";")
        try:
            outcome = run(spark, schemas, text, seed=options.seed, batches=options.batches)
        except Exception as error:
            outcome = Outcome("failed", f"{type(error).__name__}: {error}")
        first = outcome.detail.splitlines()[0] if outcome.detail else ""
        print(
            f"{path.stem:12} {outcome.kind:8} {time.monotonic() - began:6.1f} s "
            f"{outcome.rows:5} rows  {outcome.detail[:600] if outcome.kind != 'equal' else first}",
            flush=True,
        )
        ends.setdefault(outcome.kind, []).append(path.stem)
        sizes += [outcome.rows] if outcome.kind == "equal" else []
    total = sum(map(len, ends.values()))
    print(f"{total} queries: " + ", ".join(f"{len(names)} {kind}" for kind, names in ends.items()))
    empty = sum(rows == 0 for rows in sizes)
    print(f"{empty} of them had no row in any batch")
    for kind in ("refused", *FAULTS, "spark refuses"):
        if kind in ends:
            print(f"{kind}: {' '.join(ends[kind])}")
    return exit_code(ends)


def exit_code(ends: Iterable[str]) -> int:
    """1 if any query ended with a fault, or if none was run."""
    kinds = set(ends)
    return int(not kinds or not kinds.isdisjoint(FAULTS))


if __name__ == "__main__":
    sys.exit(main())
