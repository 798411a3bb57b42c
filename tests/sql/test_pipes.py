"""Queries with pipes, and limits apart from their sorts, equal plain Spark's on both readers.

    FROM t |> operator |> operator, kept while rows come and go  =  the rows that Spark returns

The text reader refuses a limit apart from its sort, as its form has no order of rows.
"""

import pytest
import sql_coverage
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as F

from pyspark_diff import Dataflow, SchemaError, UnsupportedQueryError

pytest.importorskip("sqlglot")

SCHEMAS = {"t": "a int, b int, s string", "u": "a int, b int, c double"}
SORTED = "SELECT * FROM t ORDER BY a DESC, b DESC, s DESC"
SORT = "ORDER BY a DESC, b DESC, s DESC"
PIPES = [
    "FROM t |> SELECT a, b |> WHERE t.a > 1 |> EXTEND t.b * 2 AS d |> WHERE d > 2",
    "FROM t AS x |> JOIN u ON x.a = u.a |> WHERE u.c > 1 |> SELECT x.s, u.c, x.a",
    "FROM t |> JOIN u USING (a) |> WHERE c > 1 |> SELECT s, c, a",
    "FROM t |> LEFT SEMI JOIN u ON t.a = u.a |> WHERE t.b > 0 |> DROP B, s",
    "FROM t |> CROSS JOIN (SELECT max(c) AS m FROM u) AS l |> WHERE l.m > a |> SELECT s, m",
    "FROM t |> JOIN LATERAL (SELECT max(c) AS m FROM u WHERE u.a = t.a) AS l |> SELECT s, m",
    "FROM t, u |> WHERE t.a = u.a |> SELECT t.s, u.c",
    "FROM t JOIN u ON t.a = u.a SELECT t.s, u.c",
    "FROM t LATERAL VIEW explode(array(a, b)) AS z |> WHERE z > 1 |> DROP b",
    "FROM t |> AGGREGATE sum(b) AS n, count(*) GROUP BY a |> AGGREGATE count(*) AS m GROUP BY n",
    "FROM t |> AGGREGATE GROUP BY a, b |> AGGREGATE sum(b) AS n, count(*) AS m",
    "FROM t |> AGGREGATE max(b) AS m GROUP BY t.a |> WHERE t.a > 1",
    f"FROM t |> AGGREGATE sum(b) AS b GROUP BY a + 1 AS a, s |> WHERE a > 2 |> {SORT} |> LIMIT 3",
    "FROM t |> SET b = b + 1, a = a + b, S = upper(s) |> WHERE a > 2",
    "FROM t |> JOIN u ON t.a = u.a |> SET c = c + 1 |> WHERE t.b > 1",
    "FROM t |> AS q |> WHERE q.a > 1 |> JOIN u AS w ON q.a = w.a |> SELECT q.s, w.c",
    f"FROM t |> {SORT} |> LIMIT 6 |> OFFSET 2",
    f"FROM t |> {SORT} |> OFFSET 2 |> LIMIT 3",
    f"FROM t |> {SORT} |> LIMIT 6 |> WHERE b > 1 |> LIMIT 2",
    "FROM t |> WHERE a > 1 ORDER BY a, b, s LIMIT 3",
    "FROM t |> SELECT a, b |> UNION (SELECT a, b FROM u) |> WHERE a > 1",
    "FROM t |> SELECT a, b |> EXCEPT ALL (FROM u |> SELECT a, b)",
    "SELECT a, b FROM t UNION ALL SELECT a, b FROM u |> WHERE b > 1",
    "(TABLE t) |> DROP s |> INTERSECT (SELECT a, b FROM u)",
    "WITH q AS (TABLE t |> WHERE a > 1) FROM q |> AGGREGATE count(*) AS n GROUP BY a",
    "SELECT a, (FROM u |> WHERE u.a = t.a |> AGGREGATE max(b) AS m) AS x FROM t",
    "SELECT a FROM t WHERE a IN (FROM u |> WHERE b > 1 |> SELECT a)",
    "FROM t |> SELECT a, b |> PIVOT (sum(b) AS x, count(*) AS n FOR a IN (1 AS one, 2 AS two))",
    "FROM t |> SELECT a, b |> UNPIVOT (v FOR side IN (a, b)) |> WHERE v > 1",
    "FROM t |> SELECT a, sum(b) OVER w AS x WINDOW w AS (PARTITION BY a) |> EXTEND x + 1 AS y",
    "FROM t |> AS `a.b` |> WHERE `a.b`.a > 1 |> EXTEND a AS `x y` |> SET `x y` = `x y` + 1",
    "FROM t |> SELECT struct(a, b) AS t, a |> WHERE t.a > 2",
    "VALUES (1, 2), (3, 4) AS v(x, y) |> JOIN t ON t.a = v.x |> WHERE v.y > 2 |> EXTEND x + 1 AS z",
    "FROM t |> SELECT a, b |> UNION ALL (SELECT b, c FROM u) |> EXCEPT (TABLE t |> DROP s) |> "
    "WHERE t.a > 1",
]
#: Spark returns the first rows of a sorted frame, also by keys that the result does not have.
APART = [
    f"FROM t |> {SORT} |> SELECT b, s |> LIMIT 2",
    f"FROM t |> {SORT} |> SELECT b AS a, s |> WHERE a > 1 |> SELECT s AS b |> LIMIT 5 |> OFFSET 2",
    "FROM t |> ORDER BY a + b DESC, a DESC, s DESC |> EXTEND a + 1 AS c |> AS q |> LIMIT 3",
    f"SELECT * FROM ({SORTED}) LIMIT 3",
    f"SELECT a FROM (SELECT * FROM ({SORTED}) q WHERE b > 0) z LIMIT 3",
    f"WITH q AS ({SORTED}) SELECT s, a FROM q WHERE b > 0 LIMIT 3",
    f"WITH q AS ({SORTED} LIMIT 10) SELECT x.s FROM q x LIMIT 3 OFFSET 1",
    f"({SORTED}) LIMIT 3",
    "SELECT (SELECT a FROM (SELECT a FROM u ORDER BY a DESC) LIMIT 1) AS x, b FROM t",
    f"SELECT b, b FROM ({SORTED}) LIMIT 3",
    f"SELECT s FROM (SELECT /*+ COALESCE(1) */ * FROM ({SORTED})) LIMIT 3",
]
GENERATED = [
    f"SELECT explode(array(a, b)) AS x FROM ({SORTED}) LIMIT 3",
    f"SELECT a, x FROM ({SORTED}) LATERAL VIEW explode(array(a, b)) AS x LIMIT 3",
]
WRONG = {
    "FROM t |> AGGREGATE max(b) AS m GROUP BY 1": "GROUP BY after |> has names",
    "FROM t |> SET t.b = b + 1": "SET after |> has the form",
    "FROM t |> CALL f()": "no operator CALL of a pipe",
    "FROM t |> SELECT a FROM u": "SELECT after |> has no FROM",
    "FROM t |> SELECT a AS b, b AS a |> WHERE t.a > 1": "`a` cannot be resolved",
    "FROM t |> SELECT a, b |> UNION ALL (SELECT b, c FROM u) |> WHERE t.b > 1":
        "`t`.`b` cannot be resolved",
    "FROM t |> AGGREGATE a": "does not contain any aggregate function",
}


@pytest.fixture(params=["text", "plan"])
def reader(request, monkeypatch):
    if request.param == "text":
        monkeypatch.setattr(Dataflow, "_is_classic", lambda self: False)
    elif request.config.getoption("-m") is None:
        pytest.skip("the plan is that of a classic session")
    return request.param


def check(spark, text, *, batches=2):
    outcome = sql_coverage.run(spark, SCHEMAS, text, batches=batches, rows=15)
    assert outcome.kind == "equal", (text, outcome)


@pytest.mark.parametrize("reader", ["text"], indirect=True)
@pytest.mark.parametrize("text", PIPES, ids=range(len(PIPES)))
def test_pipes_equal_plain_spark(spark, reader, text):
    check(spark, text)


@pytest.mark.classic_only("reads the plan")
@pytest.mark.parametrize("reader", ["plan"], indirect=True)
@pytest.mark.parametrize("text", APART, ids=range(len(APART)))
def test_limits_apart_from_their_sorts_equal_plain_spark(spark, reader, text):
    check(spark, text)


@pytest.mark.parametrize("reader", ["text"], indirect=True)
@pytest.mark.parametrize("text", APART, ids=range(len(APART)))
def test_the_text_reader_refuses_limits_apart_from_their_sorts(spark, reader, text):
    refused(spark, text, UnsupportedQueryError, "NODE: LIMIT apart from its ORDER BY")


@pytest.mark.parametrize("text", GENERATED)
def test_a_generator_between_a_sort_and_its_limit_is_refused(spark, reader, text):
    refused(spark, text, UnsupportedQueryError, "between ORDER BY and LIMIT|LIMIT apart from its")


@pytest.mark.parametrize("reader", ["text"], indirect=True)
@pytest.mark.parametrize("text", WRONG)
def test_wrong_pipes_are_errors_of_the_schema(spark, reader, text):
    refused(spark, text, SchemaError, WRONG[text].replace("|", r"\|"))


@pytest.mark.parametrize("reader", ["text"], indirect=True)
def test_a_sample_of_a_pipe_is_refused_with_its_place(spark, reader):
    refused(spark, "FROM t |> TABLESAMPLE (10 PERCENT)", UnsupportedQueryError,
            "SAMPLE: TABLESAMPLE at line 1")


def refused(spark, text, kind, message):
    with Dataflow(spark) as flow:
        for name, schema in SCHEMAS.items():
            flow.input(name, schema)
        with pytest.raises(kind, match=message):
            flow.sql(text)


@pytest.mark.classic_only("over Connect the reader refuses limits apart from their sorts")
def test_frames_with_limits_apart_from_their_sorts(spark):
    rows = [(1, 5, "x"), (2, 4, "y"), (3, 3, "z"), (4, 2, None), (5, 1, "v"), (None, 0, "w")]

    def programs(frame):
        ordered = frame.orderBy(F.desc("a"))
        return {
            "columns": ordered.withColumn("c", F.col("a") + 1).drop("a").withColumn("d", F.lit(1))
            .limit(2),
            "rows": ordered.where("b <> 2").select("s").where("s IS NOT NULL").limit(3),
            "limits": ordered.limit(4).select("b").limit(3).offset(1).alias("q").select("q.b"),
            "any": frame.sortWithinPartitions(F.desc("a")).limit(100),
        }

    for name, wanted in programs(spark.createDataFrame(rows, SCHEMAS["t"])).items():
        with Dataflow(spark) as flow:
            table, session = flow.input("t", SCHEMAS["t"])
            answers = flow.query(programs(flow.table("t"))[name]).keep("kept")
            session.insert(rows)
            flow.advance_to(1)
            ours = answers.at().collect()
        assert sorted(map(repr, ours)) == sorted(map(repr, wanted.collect())), name


@st.composite
def pipes(draw):
    """A query of the columns a, b and s, through operators that keep these columns."""
    number = st.integers(0, 5)
    column = st.sampled_from("ab")
    other = st.sampled_from(["t", "q", "u"])
    text, alias = "FROM t", "t"
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from([
            "where", "select", "extend", "set", "as", "join", "semi", "aggregate", "union", "limit",
        ]))
        first, second, n = draw(column), draw(column), draw(number)
        if kind == "where":
            text += f" |> WHERE {draw(st.sampled_from([f'{alias}.', '']))}{first} > {n} - {second}"
        elif kind == "select":
            distinct = draw(st.sampled_from(["", "DISTINCT "]))
            text += f" |> SELECT {distinct}{alias}.a, {alias}.b, s"
        elif kind == "extend":
            text += f" |> EXTEND {first} + {n} AS c |> DROP {first} |> SELECT c AS {first}, "
            text += f"{'b' if first == 'a' else 'a'}, s |> SELECT a, b, s"
            text, alias = f"{text} |> AS q", "q"
        elif kind == "set":
            text += f" |> SET {first} = {second} + {n}, s = concat(s, 'x') |> AS q"
            alias = "q"
        elif kind == "as":
            alias = draw(other)
            text += f" |> AS {alias}"
        elif kind == "join":
            how = draw(st.sampled_from(["JOIN", "LEFT JOIN", "FULL JOIN"]))
            text += f" |> {how} u AS w ON {alias}.{first} = w.{second} AND w.b < {n}"
            text += f" |> SELECT coalesce({alias}.a, w.a) AS a, {alias}.b, s |> AS q"
            alias = "q"
        elif kind == "semi":
            how = draw(st.sampled_from(["SEMI", "ANTI"]))
            text += f" |> LEFT {how} JOIN u AS w ON {alias}.{first} = w.{second}"
        elif kind == "aggregate":
            call = draw(st.sampled_from(["max(b)", "min(a)", "sum(b)", "count(*)"]))
            text += f" |> AGGREGATE CAST({call} AS int) AS b GROUP BY {first} AS a, s"
            text, alias = f"{text} |> SELECT a, b, s |> AS q", "q"
        elif kind == "union":
            how = draw(st.sampled_from(["UNION ALL", "UNION", "EXCEPT ALL", "INTERSECT"]))
            text += f" |> {how} (SELECT a, b, s FROM t WHERE {first} > {n}) |> AS q"
            alias = "q"
        else:
            text += f" |> {SORT} |> LIMIT {n + 1}"
            text += draw(st.sampled_from(["", f" |> OFFSET {n // 2}", f" |> LIMIT {n // 2 + 1}"]))
    return text


@pytest.mark.parametrize("reader", [
    "text", pytest.param("plan", marks=pytest.mark.classic_only("reads the plan")),
], indirect=True)
def test_random_pipes_equal_plain_spark(spark, reader):
    @given(pipes())
    def run(text):
        check(spark, text, batches=1)

    run()
