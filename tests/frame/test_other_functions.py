"""The functions of Spark's registry other than expressions of a row, aggregates and windows.

`function_registry.APART` names the test of each. Each function is right or refused by name.
"""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from pyspark_diff import Dataflow, UnsupportedQueryError
from pyspark_diff.spark import one_row

SCHEMA = "a int, b int, j string"
ROWS = [(1, 1, '["x", null]'), (1, 2, '{"k": 2, "g": []}'), (2, None, None), (2, 4, "7")]
#: The readers of queries: of the plan, and of the text as over Connect.
READERS = [
    pytest.param(True, id="plan", marks=pytest.mark.classic_only("it reads plans")),
    pytest.param(False, id="text"),
]
#: Table functions of constants, which are rows that never change.
CONSTANT = [
    "SELECT id + 1 AS x FROM range(3)", "SELECT * FROM range(1, 8, 3)",
    "SELECT a, id FROM {t} JOIN range(0, 2) r ON a = r.id",
    "SELECT a, b FROM {t} WHERE b IN (SELECT id * 2 FROM range(3))",
    "SELECT name, pad_attribute FROM collations()",
    "SELECT a, name FROM {t} JOIN collations() ON name = concat('UTF8_BINARY', repeat('x', a - 1))",
    "SELECT keyword, reserved FROM sql_keywords()",
    "SELECT a FROM {t} WHERE 'SELECT' IN (SELECT keyword FROM sql_keywords())",
    "SELECT pos, key, CAST(value AS STRING) FROM variant_explode(parse_json('[true, null]'))",
    "SELECT a, key FROM {t} CROSS JOIN variant_explode_outer(parse_json('null'))",
]
#: Explosions of variants, and the query that the message advises.
EXPLOSIONS = [
    "SELECT a, pos FROM t, LATERAL {}(parse_json(j))",
    "SELECT a, v.pos FROM t JOIN LATERAL {}(parse_json(j)) v",
    "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM {}(parse_json(t.j)))",
]
GROUPED = {
    "rollup": lambda t: t.rollup("a", "b"),
    "cube": lambda t: t.cube("a", "b"),
    "sets": lambda t: t.groupingSets([["b"], ["a", "b"], []], "a", "b"),
}
CLAUSES = {
    "rollup": "ROLLUP(a, b)", "cube": "CUBE(a, b)", "sets": "GROUPING SETS ((a, b), (b), ())",
}


@pytest.fixture
def reader(monkeypatch, request):
    if not request.param:
        monkeypatch.setattr(Dataflow, "_is_classic", lambda self: False)


def answers(spark, write):
    """The rows of a program after an insertion, and after a removal."""
    with Dataflow(spark, runner="local", buckets=2) as flow:
        table, table_in = flow.input("t", SCHEMA)
        output = write(flow, table).keep("output")
        table_in.insert(ROWS)
        flow.advance_to(1)
        first = rows_of(output.at())
        table_in.remove(ROWS[:1])
        flow.advance_to(2)
        return first, rows_of(output.at())


def rows_of(frame):
    return sorted(map(repr, map(tuple, frame.collect())))


def wanted(spark, write):
    return tuple(
        rows_of(write(spark.createDataFrame(rows, SCHEMA))) for rows in (ROWS, ROWS[1:])
    )


@pytest.mark.parametrize("reader", READERS, indirect=True)
@pytest.mark.parametrize("text", CONSTANT, ids=range(len(CONSTANT)))
def test_constant_table_functions(spark, reader, text):
    fields = "{t}" in text
    ours = answers(spark, lambda flow, t: flow.sql(text, **({"t": t} if fields else {})))
    assert ours == wanted(spark, lambda t: spark.sql(text, **({"t": t} if fields else {})))


@pytest.mark.parametrize("reader", READERS, indirect=True)
@pytest.mark.parametrize("name", ["variant_explode", "variant_explode_outer"])
def test_variants_of_columns(spark, reader, name):
    with Dataflow(spark, runner="local") as flow:
        flow.input("t", SCHEMA)
        for text in EXPLOSIONS:
            with pytest.raises(UnsupportedQueryError, match=rf"NODE: {name}\(.*posexplode"):
                flow.sql(text.format(name))


@pytest.mark.parametrize("outer", ["", "_outer"])
def test_the_advice_for_variants_of_columns(spark, outer):
    def write(kind):
        return (
            f"SELECT a, b, pos, {'NULL' if kind.startswith('array') else 'key'} AS key, "
            f"CAST(value AS STRING) AS value FROM t LATERAL VIEW posexplode{outer}(try_variant_get("
            f"parse_json(j), '$', '{kind}')) v AS pos, " + ("value" if "array" in kind else
                                                            "key, value"))

    arrays, objects = (
        answers(spark, lambda flow, t: flow.sql(write(kind)))
        for kind in ("array<variant>", "map<string, variant>")
    )
    spark.createDataFrame(ROWS, SCHEMA).createOrReplaceTempView("apart_t")
    try:
        exploded = rows_of(spark.sql(
            "SELECT a, b, pos, key, CAST(value AS STRING) AS value FROM apart_t, "
            f"LATERAL variant_explode{outer}(parse_json(j))"
        ))
    finally:
        spark.catalog.dropTempView("apart_t")
    own = [row for row in arrays[0] + objects[0] if "None, None, None" not in row]
    assert sorted(own) == [row for row in exploded if "None, None, None" not in row]


@pytest.mark.parametrize("reader", READERS, indirect=True)
def test_logs_of_workers_are_refused(spark, reader):
    setting = "spark.sql.pyspark.worker.logging.enabled"
    before = spark.conf.get(setting, "false")
    spark.conf.set(setting, "true")
    try:
        with Dataflow(spark, runner="local") as flow:
            flow.input("t", SCHEMA)
            for text in (
                "SELECT * FROM python_worker_logs()",
                "SELECT a FROM t WHERE j IN (SELECT msg FROM python_worker_logs())",
            ):
                with pytest.raises(UnsupportedQueryError, match=r"NODE: python_worker_logs\(\)"):
                    flow.sql(text)
    finally:
        spark.conf.set(setting, before)


@pytest.mark.parametrize("kind", GROUPED)
def test_groupings(spark, kind):
    def write(table):
        return GROUPED[kind](table).agg(
            F.count("*").alias("n"), F.grouping("a").alias("g"), F.grouping_id().alias("i"),
            F.grouping_id("a", "b").alias("j"),
        )

    assert answers(spark, lambda flow, t: write(t)) == wanted(spark, write)


@pytest.mark.parametrize("reader", READERS, indirect=True)
@pytest.mark.parametrize("kind", CLAUSES)
def test_groupings_in_a_query(spark, reader, kind):
    text = (
        "SELECT a, b, count(*) AS n, grouping(b) AS g, grouping_id() AS i, grouping_id(a, b) AS j "
        f"FROM {{t}} GROUP BY {CLAUSES[kind]} HAVING grouping(a) + count(*) > 1"
    )
    ours = answers(spark, lambda flow, t: flow.sql(text, t=t))
    assert ours == wanted(spark, lambda t: spark.sql(text, t=t))


@pytest.mark.parametrize("call", [
    "from_avro(j, '\"int\"', map())", "to_avro(a)", "schema_of_avro('\"int\"', map())",
    "from_protobuf(j, 'P', x'00', map())", "to_protobuf(struct(a), 'P', x'00', map())",
])
def test_formats_without_their_jars(spark, call):
    """Spark refuses the functions by name, in a program as in a frame."""
    name = call.partition("(")[0]
    with Dataflow(spark, runner="local") as flow:
        table, _ = flow.input("t", SCHEMA)
        with pytest.raises(PySparkException, match=name.upper()):
            _ = table.select(F.expr(call)).schema
    listed = one_row.is_one_row(f"org.apache.spark.sql.catalyst.expressions.{_class_of(name)}")
    assert listed == (name in one_row.FUNCTIONS) == ("avro" in name)


def _class_of(name):
    return "".join(word.capitalize() for word in name.split("_"))
