"""The text of each expression of a query means the expression.

Catalyst leaves parameters out of some texts: the options of a format, the type of a cast to an
array, the null result of `try_add`, IGNORE NULLS of an offset.
"""

from __future__ import annotations

import function_registry as registry
import pytest
from pyspark.errors import PySparkException

from pyspark_diff import Dataflow, UnsupportedQueryError

pytestmark = pytest.mark.classic_only("reads plans of the JVM")

SCHEMA = (
    "id int, a int, s string, t timestamp, arr array<int>, brr array<int>, m map<string,int>, "
    "j string"
)
ROWS = """
    (1, 1, 'a%b', TIMESTAMP'2024-03-10 01:30:01', array(1, null), array(5), map('k', 1),
     '{"a":1,"ts":"18/10/1993"}'),
    (2, null, 'a_b', TIMESTAMP'2024-03-11 01:30:02', array(2), array(6), map('l', null), '7,8'),
    (3, 2147483647, 'AxB', null, null, array(null), null, null)
"""
EXPRESSIONS = (
    "to_csv(named_struct('t', t, 'a', a), map('timestampFormat', 'dd/MM/yyyy'))",
    "to_json(named_struct('t', t, 'a', a), map('timestampFormat', 'dd''/''MM'))",
    "to_xml(named_struct('t', t, 'a', a), map('timestampFormat', 'dd/MM/yyyy'))",
    "from_json(j, 'a int, ts timestamp', map('timestampFormat', 'dd/MM/yyyy'))",
    "from_json(j, 'a int').a", "from_csv(j, 'x int, `y z` string', map('sep', ','))",
    "CAST(arr AS array<string>)", "CAST(m AS map<string,double>)",
    "TRY_CAST(arr AS array<tinyint>)",
    "try_add(a, 1)", "try_multiply(a, a)", "try_divide(a, a - a)", "arrays_zip(arr, brr)",
    "arrays_zip(arr, brr)[0].brr", "array_compact(arr)", "extract(SECOND FROM t)",
    "to_timestamp(s, 'yyyy')", "s LIKE ANY ('a!%', '%b', null)", "s NOT LIKE ALL ('a%', '%B')",
    "s LIKE 'a!%b' ESCAPE '!'", "s COLLATE UTF8_LCASE = 'AXB'", "try_to_binary(s, 'hex')",
    "decode(encode(s, 'UTF-16'), 'UTF-16')", "json_array_length(j)", "base64(encode(s, 'UTF-8'))",
    "try_variant_get(try_parse_json(j), '$.a', 'int')", "t + INTERVAL 1 DAY", "url_encode(s)",
    "transform(arr, x -> CAST(array(x) AS array<string>))", "sequence(t, t + INTERVAL 2 DAY)",
)


def texts(frame, width):
    names = [f"_{i}" for i in range(width)]
    return sorted(str([repr(value) for value in row]) for row in frame.toDF(*names).collect())


def check(spark, query, width):
    rows = spark.sql(f"SELECT * FROM VALUES {ROWS}").toDF(
        *(part.split()[0] for part in SCHEMA.split(", "))
    )
    rows = spark.createDataFrame(rows.collect(), SCHEMA)
    rows.createOrReplaceTempView("rows_of_expressions")
    plain = spark.sql(query.format("rows_of_expressions"))
    with Dataflow(spark, runner="local", buckets=2) as flow:
        _, session = flow.input("t0", SCHEMA)
        output = flow.sql(query.format("t0")).keep("kept")
        session.insert(rows)
        flow.advance_to(1)
        assert texts(output.at(), width) == texts(plain, width)
        assert output.at().schema.simpleString() == plain.schema.simpleString()


def test_the_text_of_an_expression_has_all_its_parameters(spark):
    columns = ", ".join(f"{text} AS x{i}" for i, text in enumerate(EXPRESSIONS))
    with_settings = {"spark.sql.ansi.enabled": "false"}
    before = {name: spark.conf.get(name) for name in with_settings}
    try:
        for name, value in with_settings.items():
            spark.conf.set(name, value)
        check(spark, f"SELECT {columns} FROM {{}}", len(EXPRESSIONS))
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


@pytest.mark.parametrize("call", [
    "lag(a) IGNORE NULLS OVER (ORDER BY id)", "lead(a, 1, -1) IGNORE NULLS OVER (ORDER BY id DESC)",
    "nth_value(a, 2) IGNORE NULLS OVER (ORDER BY id)",
    "first_value(a) IGNORE NULLS OVER (ORDER BY id DESC)",
])
def test_a_function_of_a_window_keeps_ignore_nulls(spark, call):
    check(spark, f"SELECT id, {call} AS x FROM {{}}", 2)


def test_an_expression_without_exact_text_is_refused_by_name(spark):
    with Dataflow(spark, buckets=2) as flow:
        flow.input("t0", SCHEMA)
        with pytest.raises(UnsupportedQueryError, match="schema_of_csv at line 1, column 8"):
            flow.sql("SELECT schema_of_csv('1|a', map('delimiter', '|')) AS x FROM t0")


PARTS = 24


@pytest.mark.parametrize("part", [
    pytest.param(part, marks=() if part < 1 else pytest.mark.slow) for part in range(PARTS)
])
def test_each_function_is_read_or_refused_by_name(spark, part):
    """No function ends in an error of Spark, and most are read."""
    known = registry.classified()
    names = sorted(known.keys() & set(registry.names(spark)))[part::PARTS]
    read = refused = 0
    for name in names:
        for call in registry.calls(spark, name):
            frame = spark.sql(call.rows).selectExpr("*", "1 AS k_")
            frame = spark.createDataFrame(frame.collect(), frame.schema)
            frame.createOrReplaceTempView("rows")
            query = f"SELECT {call.text} AS x FROM rows"
            try:
                spark.sql(query).schema
            except PySparkException:
                continue
            with Dataflow(spark, buckets=2) as flow:
                flow.input("rows", frame.schema)
                try:
                    flow.sql(query)
                    read += 1
                except UnsupportedQueryError:
                    refused += 1
    assert read > 2 * refused, (read, refused)
