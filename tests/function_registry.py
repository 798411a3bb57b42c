"""Each function of Spark in each place of a program, from the examples in its description.

    outcome(function, place) = right (r) | refused (x) | not in Spark (-)
                               | fails on the rows, in Spark too (f)

An example such as ``SELECT lpad('hi', 5, '?')`` becomes an expression over columns with the values
of its literals, so that Spark cannot fold it. A literal stays if Spark wants a constant there.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F

from pyspark_diff import Dataflow, DiffError

#: Lines of a function, its outcomes in the order of `PLACES`, and the expression.
CLASSIFIED = Path(__file__).with_name("functions.tsv")
PLACES = ("select", "where", "group", "agg", "join", "window", "loop")
RIGHT, REFUSED, FAILS, SPARK = "r", "x", "f", "-"
#: Expressions for functions whose description has no example.
EXAMPLES = {
    "!=": "1 != 2", "<>": "1 <> 2", "||": "'a' || 'b'", "case": "case when true then 1 end",
    **{name: f"{name}('1')" for name in ("bigint", "decimal", "double", "float", "int", "smallint",
                                         "string", "tinyint", "binary", "boolean")},
    "date": "date('2024-01-02')", "timestamp": "timestamp('2024-01-02 03:04:05')",
    "time": "time('03:04:05')",
    "make_time": "make_time(6, 30, 45.887)", "to_time": "to_time('00:12:00')",
    "try_to_time": "try_to_time('00:12:00')", "time_trunc": "time_trunc('HOUR', time'09:32:05')",
    "time_diff": "time_diff('HOUR', time'20:30:29', time'21:30:28')",
    **{f"time_from_{unit}": f"time_from_{unit}(52200)" for unit in ("seconds", "millis", "micros")},
    **{f"time_to_{unit}": f"time_to_{unit}(time'14:30:00')"
       for unit in ("seconds", "millis", "micros")},
    "randstr": "randstr(3, 0)", "uniform": "uniform(0, 10, 0)",
    "percentile_cont": "percentile_cont(0.25) WITHIN GROUP (ORDER BY 10)",
    "percentile_disc": "percentile_disc(0.25) WITHIN GROUP (ORDER BY 10)",
    "window": "window(timestamp'2024-01-02 03:04:05', '1 day')",
    "window_time": "window_time(window(timestamp'2024-01-02 03:04:05', '1 day'))",
    **{name: f"{name}(array(struct(1, 'a')))" for name in ("inline", "inline_outer")},
    "collate": "collate('Spark', 'UTF8_LCASE')", "measure": "measure(1)",
    "session_window": "session_window(timestamp'2024-01-02 03:04:05', '5 minutes')",
    # A type with nanoseconds has no class in Python.
    **dict.fromkeys(("timestamp_nanos", "unix_nanos"), "unix_nanos(timestamp_nanos(1234567890))"),
    "json_tuple": "json_tuple('{\"a\": 1, \"b\": 2}', 'a', 'b')", "stack": "stack(1, 2, 3)",
    **{name: f"{name}(array(10, 20))" for name in ("posexplode", "posexplode_outer")},
}
#: Functions that Spark accepts in none of the places: calls, and the test of
#: tests/frame/test_other_functions.py that has their outcome. Avro and Protobuf need jars that
#: Spark's package lacks.
APART = {
    "collations": ("collations()", "test_constant_table_functions"),
    "from_avro": ("from_avro(x'00', '\"int\"', map())", "test_formats_without_their_jars"),
    "from_protobuf": ("from_protobuf(x'00', 'P', x'00', map())", "test_formats_without_their_jars"),
    "grouping": ("grouping(1)", "test_groupings"),
    "grouping_id": ("grouping_id()", "test_groupings"),
    "python_worker_logs": ("python_worker_logs()", "test_logs_of_workers_are_refused"),
    "range": ("range(3)", "test_constant_table_functions"),
    "schema_of_avro": ("schema_of_avro('\"int\"', map())", "test_formats_without_their_jars"),
    "sql_keywords": ("sql_keywords()", "test_constant_table_functions"),
    "to_avro": ("to_avro(1)", "test_formats_without_their_jars"),
    "to_protobuf": ("to_protobuf(struct(1), 'P', x'00', map())", "test_formats_without_their_jars"),
    "variant_explode": ("variant_explode(parse_json('[1]'))", "test_variants_of_columns"),
    "variant_explode_outer": (
        "variant_explode_outer(parse_json('[1]'))", "test_variants_of_columns"),
}
#: The columns of generators that have several.
GENERATED = dict.fromkeys(("inline", "json_tuple", "stack", "posexplode"), ("x", "y"))
#: Settings of the session without which Spark refuses functions.
SETTINGS = {"spark.sql.timeType.enabled": "true"}
#: Aggregates that return lists, or texts made of values, without an order.
UNORDERED = {"collect_list", "collect_set", "array_agg", "listagg", "string_agg"}
#: Aggregates that return the value of any record.
ANY = {"any_value", "first", "first_value", "last", "last_value"}
_LITERAL = re.compile(
    r"(?:\b(?:date|timestamp|timestamp_ntz|timestamp_ltz|time|x)\s*)?'(?:[^'\\]|\\.|'')*'"
    r"|(?<![\w.`])\d+(?:\.\d+)?(?:e-?\d+)?(?:bd|[lsdyf])?(?![\w.`])", re.IGNORECASE)
_EXAMPLE = re.compile(r"> SELECT (.*?);\s*\n", re.DOTALL | re.IGNORECASE)
_FROM = re.compile(r"^(.*?)\bFROM\s+(VALUES\b.*|\(.*)$", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True)
class Call:
    """A call of a function over the columns of some rows.

    Parameters
    ----------
    text : str
        SQL of the expression.
    rows : str
        SQL of the rows.
    """

    text: str
    rows: str


def names(spark) -> list[str]:
    """The functions of the session's registry."""
    return sorted(function.name for function in spark.catalog.listFunctions())


def examples(spark, name: str) -> list[str]:
    """The statements after SELECT in the description of a function."""
    if name in EXAMPLES:
        return [EXAMPLES[name]]
    rows = spark.sql(f"DESCRIBE FUNCTION EXTENDED `{name}`").collect()
    return [example.strip() for row in rows for example in _EXAMPLE.findall(row[0] + "\n")]


def calls(spark, name: str) -> list[Call]:
    """The first call in the examples of a function that Spark accepts, if there is one."""
    if name in APART:
        return [Call(APART[name][0], "SELECT 1 AS c")]
    accepted = []
    for text in examples(spark, name):
        over = _FROM.match(text)
        if over is None:
            accepted += _over_columns(spark, text)
        else:
            accepted += _over_values(spark, name, *over.groups())
        if accepted:
            break
    return accepted[:1]


def _over_columns(spark, text: str) -> list[Call]:
    """A call with columns in place of as many literals as Spark accepts."""
    places = list(_LITERAL.finditer(text))
    for chosen in ([*range(len(places))], *([n] for n in range(len(places))), []):
        call = _with_columns(text, places, chosen)
        if _is_accepted(spark, call):
            return [call]
    return []


def _with_columns(text: str, places: list[re.Match[str]], chosen: list[int]) -> Call:
    rewritten, at = "", 0
    for number, place in enumerate(places):
        rewritten += text[at:place.start()]
        rewritten += f"c{number}" if number in chosen else place[0]
        at = place.end()
    columns = ", ".join(f"{places[n][0]} AS c{n}" for n in chosen)
    row = f"SELECT {columns or '1 AS c'}"
    nulls = ", ".join(f"if(n_ = 0, {places[n][0]}, NULL) AS c{n}" for n in chosen)
    rows = f"SELECT {nulls} FROM (SELECT explode(array(0, 0, 1)) AS n_)" if chosen else row
    return Call(rewritten + text[at:], rows)


def _over_values(spark, name: str, selected: str, rows: str) -> list[Call]:
    """The parts of a selection that call the function, over rows that an example has."""
    rows = re.split(r"\b(?:GROUP|ORDER|HAVING|WHERE|LIMIT)\b", rows, flags=re.IGNORECASE)[0]
    accepted = []
    for part in _parts(selected):
        # The order of an example has ties.
        part = re.sub(r"\bORDER BY (\w+)\)", r"ORDER BY \1, n_)", part)
        call = Call(part, f"SELECT * FROM {rows}")
        if re.search(rf"(?<!\w){re.escape(name)}\s*\(", part, re.IGNORECASE) and (
            _is_accepted(spark, call)
        ):
            accepted.append(call)
    return accepted


def _parts(text: str) -> list[str]:
    """The entries of a list in SQL."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:].strip()]


def column_of(text: str) -> Column:
    """A column or several of an expression."""
    names = GENERATED.get(text.partition("(")[0].removesuffix("_outer"), ("x",))
    return F.expr(text).alias(*names)


def _is_accepted(spark, call: Call) -> bool:
    try:
        frame = spark.sql(call.rows).selectExpr("*", "1 AS k_", "'a' AS n_")
        frame.select(column_of(call.text)).schema
        return True
    except PySparkException:
        return False


class Probe:
    """The outcomes of one call in all places.

    It holds state: a dataflow with the rows of the call, and the answers that it keeps.
    """

    def __init__(self, spark, name: str, call: Call, runner: str = "local"):
        self.spark, self.name, self.call = spark, name, call
        self.flow = Dataflow(spark, runner=runner, buckets=2)
        frame = spark.sql(call.rows).selectExpr("*", "1 AS k_", "uuid() AS n_")
        frame = spark.createDataFrame(frame.collect(), frame.schema)
        self.frame = frame
        self.rows, self.rows_in = self.flow.input("rows", frame.schema)
        self.collections: dict[str, Any] = {}
        self.outcomes: dict[str, str] = {}

    def close(self) -> None:
        self.flow.close()

    def build(self) -> None:
        """Write a program for each place."""
        for place in PLACES:
            try:
                getattr(self, f"{place}_in")(self.frame).schema
            except (PySparkException, Py4JError):  # such as an internal error of Spark
                self.outcomes[place] = SPARK
                continue
            try:
                self.collections[place] = self.ours(place).keep(place)
                self.outcomes[place] = RIGHT
            except DiffError:
                self.outcomes[place] = REFUSED

    def ours(self, place: str) -> Any:
        if place == "loop":
            text = self.call.text
            return self.rows.iterate(
                lambda rows: rows.where(F.expr(f"({text}) IS NOT NULL")), max_iterations=2,
                on_limit="return")
        return getattr(self, f"{place}_in")(self.rows)

    def select_in(self, rows: Any) -> Any:
        return rows.select("n_", column_of(self.call.text))

    def where_in(self, rows: Any) -> Any:
        return rows.where(F.expr(f"({self.call.text}) IS NOT NULL"))

    loop_in = where_in

    def group_in(self, rows: Any) -> Any:
        return rows.groupBy(F.expr(self.call.text).alias("x")).agg(F.count("*").alias("n"))

    def agg_in(self, rows: Any) -> Any:
        return rows.groupBy("k_").agg(F.expr(self.call.text).alias("x"))

    def join_in(self, rows: Any) -> Any:
        other = rows.select("k_", F.col("n_").alias("m_")).alias("o")
        on = F.expr(f"l_.k_ = o.k_ AND ({self.call.text}) IS NOT NULL")
        return rows.alias("l_").join(other, on).select("l_.n_", "o.m_")

    def window_in(self, rows: Any) -> Any:
        text = self.call.text
        if not re.search(r"\bover\s*\(", text, re.IGNORECASE):
            text = f"{text} OVER (PARTITION BY k_ ORDER BY n_)"
        return rows.select("n_", F.expr(text).alias("x"))

    def run(self) -> str:
        """Load the rows, remove the first one, and compare each answer with plain Spark's.

        Returns the outcomes, a letter for each place.
        """
        rows = self.frame.collect()
        fails = self._fails(rows)
        if fails:  # on nulls, say
            rows = [row for row in rows if None not in tuple(row)]
            fails = self._fails(rows)
        self.rows_in.insert(self.spark.createDataFrame(rows, self.frame.schema))
        self.rows_in.advance_to(1)
        self.rows_in.remove(self.spark.createDataFrame(rows[:1], self.frame.schema))
        if fails:
            with pytest.raises(DiffError):
                self.flow.advance_to(2)
            self.outcomes |= {place: FAILS for place in self.collections}
        else:
            self.flow.advance_to(2)
            self.check(rows[1:])
        return "".join(self.outcomes[place] for place in PLACES)

    def _fails(self, rows: list[Any]) -> bool:
        if self.outcomes["select"] != RIGHT:
            return False
        try:
            self.select_in(self.spark.createDataFrame(rows, self.frame.schema)).collect()
            return False
        except (PySparkException, Py4JError):
            return True

    def check(self, rows: list[Any]) -> None:
        frame = self.spark.createDataFrame(rows, self.frame.schema)
        loose = self.name in UNORDERED
        passing: list[str] = []
        if "where" in self.collections:
            passing = [row["n_"] for row in self.where_in(frame).select("n_").collect()]
        for place, collection in self.collections.items():
            ours = [tuple(row) for row in collection.at().collect()]
            if place in ("where", "loop"):
                wanted = [tuple(row) for row in rows if row["n_"] in passing]
            elif place == "join":
                wanted = [(n, row["n_"]) for n in passing for row in rows]
            elif place == "group" and self.name == "session_window":
                wanted = [tuple(row) for row in self.group_in(frame).collect()]
            elif place == "group":
                values = shown(self.select_in(frame).select("x").collect(), loose)
                wanted = list(Counter(values).items())
                ours = [(shown([row[:1]], loose)[0], row[1]) for row in ours]
            elif place == "agg" and self.name in ANY:
                values = {row["x"] for row in frame.selectExpr("col AS x").collect()}
                wanted = [(1, ours[0][1] if ours[0][1] in values else "another value")]
            else:
                wanted = [tuple(row) for row in getattr(self, f"{place}_in")(frame).collect()]
            both = shown(ours, loose), shown(wanted, loose)
            assert both[0] == both[1], (self.name, place, self.call, *both)


def shown(rows: list[Any], loose: bool) -> list[str]:
    """Rows in an order, as text; lists in an order too, if `loose`."""
    def text(value: Any) -> str:
        if isinstance(value, (list, str)) and loose:
            return str(sorted(map(repr, value)))
        if isinstance(value, dict):
            return str(sorted((text(key), text(item)) for key, item in value.items()))
        if isinstance(value, float):
            return f"{value:.9g}"
        return repr(value)

    return sorted(str([text(value) for value in row]) for row in rows)


def outcome(spark: Any, name: str, runner: str = "local") -> tuple[str, str]:
    """The outcomes of a function and its expression; empty if it has no example here."""
    before = {setting: spark.conf.get(setting, None) for setting in SETTINGS}
    try:
        for setting, value in SETTINGS.items():
            spark.conf.set(setting, value)
        for call in calls(spark, name):
            probe = Probe(spark, name, call, runner)
            try:
                probe.build()
                return probe.run(), call.text
            finally:
                probe.close()
        return "", ""
    finally:
        for setting, old in before.items():
            if old is None:
                spark.conf.unset(setting)
            else:
                spark.conf.set(setting, old)


def classified() -> dict[str, tuple[str, str]]:
    """The outcomes and expressions of the file."""
    lines = CLASSIFIED.read_text(encoding="utf-8").splitlines()
    parts = (line.split("\t") for line in lines if not line.startswith("#"))
    return {name: (letters, text) for name, letters, text in parts}
