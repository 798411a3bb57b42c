"""Queries that are read from their text equal plain Spark's, or are refused by name.

    the reader's form, kept while rows come and go  =  the rows that plain Spark returns

The reader needs no JVM, so that the tests run it on classic sessions too.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from pathlib import Path

import function_registry as registry
import pyspark
import pytest
import random_queries
import sql_coverage
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as F

from pyspark_diff import Dataflow, SchemaError, UnsupportedQueryError
from pyspark_diff.query.form import Aggregate, ConstantRelation, Generate, Project, Scan, Window

pytest.importorskip("sqlglot")

from pyspark_diff.query.text_columns import call_column, condition_of  # noqa: E402
from pyspark_diff.query.text_reader import read_text  # noqa: E402

ROOT = Path(__file__).parents[2]
#: The number of cases that share the functions.
PARTS = 8
SCHEMAS = {"t": "a int, b int, s string", "u": "a int, b int, c double"}
classic_only = pytest.mark.classic_only("is as on a classic session, which is faster")

QUERIES = [
    # Expressions.
    "SELECT a, b + 1 AS c, upper(s), t.* FROM t WHERE a > 1 AND b IS NOT NULL",
    "SELECT T.A, `b` FROM t WHERE b = 1 OR a IN (1, 2) OR s LIKE 'a%' OR b BETWEEN 1 AND 3",
    "SELECT CASE WHEN a > 2 THEN 'x' ELSE s END AS k, CAST(a AS string) c, b::bigint FROM t",
    "SELECT to_json(struct(a, s, a + 1)) j, (a, b) AS r, (a, b) IN ((1, 2)) AS i FROM t",
    "SELECT q.st.a, q.st.b.a AS x, st.b FROM (SELECT struct(a, struct(a) AS b) AS st FROM t) q",
    "SELECT transform(array(a, b), a -> a + 1) z, date_add(DAY, a, DATE '2024-01-01') FROM t",
    "SELECT timestampdiff(HOUR, TIMESTAMP '2024-01-01 00:00:00', timestamp_seconds(a)) AS d, "
    "timestampadd(DAY, b, DATE '2024-01-01') FROM t",
    "SELECT a, -- a comment\n b /* another */ + 1 AS c FROM t -- the end\n WHERE a > 0",
    "SELECT 1 AS one, 'it''s', interval 3 day, 10L, 1.5BD, r'\\n'",
    "SELECT a, 'ä€😀' AS c, upper(s) FROM t WHERE s <> 'é';",
    "SELECT * EXCEPT (t.a) FROM t JOIN u USING (a)",
    "SELECT * EXCEPT (c) FROM t FULL JOIN u USING (a)",
    "SELECT * EXCEPT (x.a, y.s) FROM t x, t y WHERE x.b = y.b",
    "SELECT * EXCEPT (s), sum(a) FROM t GROUP BY ALL",
    "SELECT * EXCEPT (a, b, s) FROM t",
    "SELECT * EXCEPT (A), t.* EXCEPT (b, t.s) FROM t",
    "SELECT * EXCEPT (t.b, c), t.* EXCEPT (a) FROM t JOIN u ON t.a = u.a",
    "SELECT * EXCEPT (a) FROM t LEFT JOIN u USING (a)",
    "SELECT * EXCEPT (a), count(*) FROM t GROUP BY b, s",
    "SELECT * EXCEPT (a, A) FROM t",
    # Joins.
    "SELECT t.a, u.c FROM t, u WHERE t.a = u.a AND u.b > 2",
    "SELECT x.a, y.b, z.c FROM t x, t y, u z WHERE x.a = z.a AND z.b = y.b AND y.a > 1",
    "SELECT t.a, u.c FROM t JOIN u ON t.a = u.a AND t.b < u.b",
    "SELECT t.a, u.c FROM t, u WHERE t.a = u.a AND t.b = 1 OR t.a = u.a AND u.b = 2",
    "SELECT t.a, u.c FROM t LEFT JOIN u ON t.a + 1 = u.a AND t.b < u.b WHERE t.b > 1",
    "SELECT * FROM t LEFT JOIN u USING (a)",
    "SELECT *, u.a, t.a FROM t FULL JOIN u USING (a, b)",
    "SELECT a, u.*, t.* FROM t RIGHT JOIN u USING (a)",
    "SELECT x.c, t.s, y.b FROM u x, t RIGHT JOIN u y ON t.a = y.a AND x.b = y.b",
    "SELECT * FROM t x, t LEFT JOIN u ON x.b = u.b, u y WHERE y.b = x.a AND x.s = t.s",
    "SELECT * FROM t LEFT SEMI JOIN u ON t.a = u.b",
    "SELECT * FROM t LEFT ANTI JOIN u USING (a)",
    "SELECT t.a, u.b FROM t CROSS JOIN u",
    # Groups.
    "SELECT a, sum(b), count(*), count(DISTINCT s) FROM t GROUP BY a HAVING count(*) > 1",
    "SELECT a + 1 AS k, sum(b) FILTER (WHERE b > 2) + 1 AS x FROM t GROUP BY k HAVING x > 3",
    "SELECT b AS a, count(*) FROM t GROUP BY 1",
    "SELECT b AS a, count(*) AS n FROM t GROUP BY a, b",
    "SELECT to_json(struct(a, max(b))) FROM t GROUP BY a",
    "SELECT sum(b), max(s) FROM t WHERE a > 100",
    "SELECT upper( s ), count(*) FROM t GROUP BY UPPER(s) HAVING upper(s) > 'A'",
    "SELECT DISTINCT a, b FROM t",
    # Subqueries in FROM, and common table expressions.
    "SELECT q.a, q.n FROM (SELECT a, count(*) AS n FROM t GROUP BY a) q WHERE q.n > 1",
    "WITH c AS (SELECT a, b FROM t), d(x) AS (SELECT a FROM c) SELECT c.a, d.x FROM c JOIN d "
    "ON c.a = d.x",
    "WITH t AS (SELECT a FROM t WHERE b > 1) SELECT * FROM t",
    # Sets.
    "SELECT a FROM t UNION SELECT b FROM u",
    "SELECT a, s FROM t UNION ALL SELECT c, 'x' FROM u",
    "SELECT a FROM t EXCEPT ALL SELECT b FROM u",
    "SELECT a FROM t MINUS SELECT b FROM u",
    "(SELECT a FROM t INTERSECT SELECT a FROM u) EXCEPT SELECT b FROM u",
    "SELECT a FROM t UNION ALL SELECT a FROM u INTERSECT SELECT b FROM t",
    # Subqueries in expressions.
    "SELECT * FROM t WHERE a IN (SELECT b FROM u)",
    "SELECT * FROM t WHERE a NOT IN (SELECT b FROM u WHERE b IS NOT NULL) OR b = 1",
    "SELECT * FROM t WHERE NOT (a IN (SELECT b FROM u WHERE u.a = t.b))",
    "SELECT * FROM t WHERE (a, b) IN (SELECT b, a FROM u)",
    "SELECT * FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a AND u.b > 1) AND NOT  EXISTS "
    "(SELECT 1 FROM u WHERE u.b = t.b)",
    "SELECT a, (SELECT max(b) FROM u WHERE u.a = t.a) m, (SELECT count(*) FROM u WHERE a = t.b) "
    "FROM t",
    "SELECT a FROM t WHERE b > (SELECT avg(b) FROM u)",
    "SELECT a, sum(b) AS n FROM t GROUP BY a HAVING sum(b) > (SELECT max(b) FROM u WHERE u.a = "
    "t.a)",
    "SELECT a, CASE WHEN b IN (SELECT b FROM u) THEN 'x' ELSE s END AS c FROM t",
    # First rows.
    "SELECT a, b, s FROM t ORDER BY b DESC, s, a LIMIT 5",
    "SELECT a, sum(b) AS n FROM t GROUP BY a ORDER BY sum(b) DESC, a LIMIT 3 OFFSET 1",
    "SELECT a AS b, b AS a FROM t GROUP BY a, b ORDER BY a DESC, b LIMIT 3",
    "SELECT a AS b, -a AS a FROM t ORDER BY a, b LIMIT 4",
    "SELECT a FROM t ORDER BY b DESC NULLS LAST, 1 LIMIT 4",
    "SELECT a FROM t UNION SELECT b FROM u ORDER BY a DESC LIMIT 2",
    "SELECT DISTINCT a FROM t ORDER BY a LIMIT 2",
    # Windows.
    "SELECT a, b, rank() OVER (PARTITION BY a ORDER BY b), sum(b) OVER (PARTITION BY a ORDER BY b, "
    "s ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) x FROM t",
    "SELECT a, sum(count(*)) OVER (PARTITION BY s) AS n FROM t GROUP BY a, s",
    "SELECT a, sum(b) OVER w AS x, rank() OVER(w2) AS r FROM t WINDOW w AS (PARTITION BY a), w2 AS "
    "(PARTITION BY s ORDER BY b DESC), q AS w",
    "SELECT a, sum(sum(b)) OVER z AS x FROM t GROUP BY a HAVING sum(b) > 1 WINDOW z AS w, w AS "
    "(ORDER BY a ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)",
    # Intervals of time.
    "SELECT window.start, window.end, count(*) AS n, sum(b) FROM t WHERE b > 0 GROUP BY "
    "window(timestamp_seconds(a * 3000), '2 hours')",
    "SELECT s, window, max(b) FROM t GROUP BY s, window(timestamp_seconds(a * 3000), '2 hours', "
    "'1 hour', '5 minutes') HAVING count(*) > 1",
    "SELECT *, window(timestamp_seconds(a * 3000), '2 hours').start AS x FROM t",
    # Grouping sets.
    "SELECT a, b, count(*), sum(a), grouping(a), grouping_id() FROM t GROUP BY ROLLUP(a, b)",
    "SELECT a, b, count(*) AS n FROM t GROUP BY a, b WITH CUBE HAVING grouping(a) = 0 AND count(*) "
    "> 1",
    "SELECT a, b, s, count(*), grouping_id(b, a, s) FROM t GROUP BY GROUPING SETS ((b), (a, s), (),"
    " (b))",
    "SELECT a, b, s, sum(b), grouping_id() FROM t GROUP BY s, ROLLUP(a, b), GROUPING SETS ((b), "
    "())",
    "SELECT b, a, max(s), grouping_id() FROM t GROUP BY a, b GROUPING SETS ((b), (a))",
    "SELECT a + 1 AS k, b, rank() OVER (PARTITION BY grouping(b) ORDER BY sum(a)) AS r FROM t "
    "GROUP BY CUBE(k, (b, s))",
    "SELECT a, count(*) FROM t WHERE a > 100 GROUP BY ROLLUP(a)",
    "SELECT a, sum(b) FROM t GROUP BY ROLLUP(1) ORDER BY 2 DESC, 1 LIMIT 3",
    "SELECT a, s, count(*) FROM t GROUP BY ALL HAVING count(*) > 1",
    # Generators and LATERAL.
    "SELECT a, z, w, p FROM t LATERAL VIEW OUTER explode(array(a, b)) AS z LATERAL VIEW posexplode("
    "array(z, 7)) q AS p, w WHERE w > 2",
    "SELECT s, posexplode(array(a, b)) AS (i, j), a FROM t WHERE a > 1",
    "SELECT explode(map(a, b)) FROM t WHERE a IS NOT NULL",
    "SELECT *, inline(array(struct(a, b), struct(a, b))) FROM t",
    "SELECT a, stack(2, a, s, b, 'x'), s FROM t",
    "SELECT explode_outer(filter(array(a), x -> x > 2)) FROM t",
    "SELECT a, explode(collect_list(b)) AS e FROM t GROUP BY a",
    "SELECT DISTINCT explode(array(a, b)) AS c FROM t ORDER BY c LIMIT 3",
    "SELECT a, (SELECT max(x) FROM (SELECT explode(array(u.a, u.b)) AS x FROM u WHERE u.a = t.a) "
    "q) AS m FROM t",
    "SELECT t.a, q.x FROM t, LATERAL explode(array(a, b)) AS q(x)",
    "SELECT t.a, l.m FROM t, LATERAL (SELECT max(b) AS m FROM u WHERE u.a = t.a) l",
    "SELECT t.a, l.m FROM t LEFT JOIN LATERAL (SELECT b AS m FROM u WHERE u.a = t.a) l ON l.m > "
    "t.b",
    "SELECT r.id, t.a, c FROM range(3) r JOIN t ON t.a = r.id JOIN explode(array(1, 2)) AS q(c)",
    "SELECT json_tuple('{\"a\":1}', s, 'a') FROM t",
    "SELECT * FROM t NATURAL LEFT JOIN u",
    # Pivots.
    "SELECT * FROM t PIVOT (sum(b) AS x, count(*) FOR a IN (1 AS one, 2))",
    "SELECT * FROM (SELECT a, b, c FROM u) PIVOT (max(c) FOR (a, b) IN ((1, 2) AS q, (2, 3))) AS p "
    "WHERE p.q > 1",
    "SELECT * FROM t PIVOT (max(s) FOR a IN (1, 2, NULL))",
    "SELECT * FROM t UNPIVOT (v FOR side IN (a AS x, b))",
    "SELECT * FROM u UNPIVOT INCLUDE NULLS (v FOR side IN (a, c)) AS q WHERE q.v > 1",
    # Recursion.
    "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT n, t.b "
    "FROM r JOIN t ON t.a = n",
    "WITH RECURSIVE r (a, b, d) AS (SELECT a, b, 1 FROM t WHERE a < 3 UNION ALL SELECT r.a, u.b, d "
    "+ 1 FROM r JOIN u ON r.b = u.a WHERE d < 3) SELECT * FROM r",
    "WITH RECURSIVE r (a, b) MAX RECURSION LEVEL 3 AS (SELECT a, b FROM t WHERE a = 1 UNION ALL "
    "SELECT r.b, r.b FROM r WHERE r.a <> r.b) SELECT * FROM r",
    "WITH RECURSIVE r (n, m) AS (SELECT 1, 1 UNION ALL SELECT r.n + 1, q.m + 1 FROM r JOIN r q ON "
    "r.n = q.m WHERE r.n < 4), c AS (SELECT max(n) x FROM r) SELECT x, a FROM c JOIN t ON a = x",
    "SELECT q.a FROM (WITH RECURSIVE r AS (SELECT a FROM t UNION ALL SELECT a + 1 FROM r WHERE a < "
    "4) SELECT * FROM r) q WHERE q.a > 2",
    "SELECT s, count(*) FROM (SELECT s, b FROM t DISTRIBUTE BY s SORT BY b) GROUP BY s CLUSTER BY "
    "s",
    "SELECT a FROM t ORDER BY a LIMIT ALL",
    # Aliases in the items after them; a column of FROM goes before an alias.
    "SELECT a + 1 AS d, d * 2 AS e, d + e AS f, struct(d).d AS g, b + 1 AS a, a * 2 AS h FROM t "
    "WHERE a > 1",
    "FROM t |> EXTEND a + 1 AS d, d * 2 AS e |> WHERE e > 4",
    # Pipes; tests/sql/test_pipes.py has more.
    "FROM t AS x |> JOIN u ON x.a = u.a |> WHERE x.b > 1 |> SET c = c + 1 |> AGGREGATE sum(c) AS n,"
    " count(*) GROUP BY x.s |> ORDER BY n DESC, s |> LIMIT 3",
    # Rows in the text.
    "SELECT t.a, v.y FROM t JOIN (VALUES (1, 'p'), (2, 'q')) AS v(x, y) ON t.a = v.x",
    "SELECT * FROM t WHERE a IN (SELECT x FROM VALUES (1), (3) AS v(x))",
]

#: More queries; the default run draws a few.
MORE = [
    # Aliases of aggregates, window functions and subqueries in the items after them.
    "SELECT a + 1 AS k, k * 2 AS m, count(*) AS n, n + k AS z FROM t GROUP BY k HAVING z > 3",
    "SELECT a, sum(b) AS q, q + a AS r, sum(sum(b)) OVER (PARTITION BY a) AS w, w / q AS share "
    "FROM t GROUP BY a ORDER BY r DESC, a LIMIT 3",
    "SELECT a, row_number() OVER (PARTITION BY a ORDER BY b) AS r, r + 1 AS x, r = x AS y FROM t",
    "SELECT (SELECT max(b) FROM u) AS m, m + a AS x, EXISTS (SELECT 1 FROM u WHERE u.a = t.a) AS "
    "f, NOT f AS g FROM t",
    "SELECT sum(a) AS x, x + 1 AS y FROM t",
    "SELECT x.a FROM u x WHERE x.b > (SELECT min(q) FROM (SELECT a + 1 AS c, c AS q FROM t WHERE "
    "t.b = x.b) z)",
    # Names in texts, and patterns.
    "SELECT IDENTIFIER('a'), IDENTIFIER(\"x.b\"), IDENTIFIER('upper')(s) FROM IDENTIFIER('t') AS x",
    "SELECT a FROM t WHERE s LIKE ANY ('a%', 'x%') OR s NOT LIKE ALL ('b', '%c') OR s ILIKE SOME "
    "('AB')",
    # Stars in calls, and fields that columns name.
    "SELECT hash(*) AS h, xxhash64(t.*) AS x, struct(*, 1, b + 1, a AS z) AS r, "
    "to_json(struct(t.*)) AS j, concat_ws('|', * EXCEPT (s)) AS c FROM t WHERE coalesce(*) > 1",
    "SELECT x.r.a, struct(t.*, u.c).c AS z FROM (SELECT struct(*) AS r FROM t) x JOIN t ON x.r.a = "
    "t.a JOIN u USING (a)",
    "SELECT a, b, s, md5(concat_ws('|', *)) AS k, count(*) FROM t GROUP BY a, b, s",
    "SELECT count(*) AS n, struct(*) AS r FROM (SELECT a, s FROM t) GROUP BY ALL",
    "SELECT count(DISTINCT *) AS n, max(struct(*)) AS m FROM t",
    "SELECT arrays_zip(array(a), array(b)) AS z, arrays_zip(q, array(a)).q AS y FROM (SELECT *, "
    "array(a, b) AS q FROM t) x",
    "SELECT a, z.p, z.`1` AS r FROM (SELECT a, array(a, b) AS p FROM t) x LATERAL VIEW explode("
    "arrays_zip(x.p, array(1, 2, 3))) AS z",
    "SELECT struct(max(a), max(b)) AS st, st.col1 + 1 AS x, s FROM t GROUP BY s",
    # Subqueries in GROUP BY.
    "SELECT CASE WHEN a IN (SELECT a FROM u) THEN 'x' ELSE 'y' END AS k, count(*) AS n FROM t "
    "GROUP BY k HAVING k = 'x'",
    "SELECT EXISTS (SELECT 1 FROM u WHERE u.a = t.a), sum(b) AS n FROM t GROUP BY ALL",
    "SELECT (SELECT max(b) FROM u WHERE u.a = t.a) AS k, count(*) AS n FROM t GROUP BY (SELECT "
    "max(b) FROM u WHERE u.a = t.a)",
    "SELECT a IN (SELECT a FROM u), count(*) FROM t GROUP BY a IN (select a from U) ORDER BY a IN "
    "(SELECT a FROM u) LIMIT 1",
    "SELECT a, (SELECT max(b) FROM u WHERE u.a = t.a) AS k, count(*) AS n FROM t GROUP BY ROLLUP("
    "a, (SELECT max(b) FROM u WHERE u.a = t.a))",
    "SELECT s, NOT EXISTS (SELECT 1 FROM u WHERE u.a = t.a) AS k, count(*) AS n FROM t GROUP BY s,"
    " EXISTS (SELECT 1 FROM u WHERE u.a = t.a)",
]

REFUSED = {
    "SELECT rand() FROM t": "NON_DETERMINISTIC: rand",
    "SELECT * FROM VALUES (now()) AS v(x)":
        "NON_DETERMINISTIC: (now|current_timestamp)",
    "SELECT current_date FROM t": "CURRENT_TIME: current_date at line 1, column 8",
    "SELECT a FROM t TABLESAMPLE (10 PERCENT)": "SAMPLE: TABLESAMPLE at line 1, column 15",
    "SELECT * EXCEPT (st.a) FROM (SELECT struct(a, b) AS st FROM t)": "NODE: EXCEPT of st.a",
    "SELECT a + * FROM t": "NODE: a star in an expression|sqlglot",
    "SELECT a, hash(*) FROM t GROUP BY a": "NODE: a star with GROUP BY",
    "SELECT transform(array(array(a)), x -> arrays_zip(x, x)) FROM t": "NODE: arrays_zip.* lambda",
    "SELECT arrays_zip(array(struct(array(b) AS x))[0].x) FROM t": "EXPRESSION: .*name of the fi",
    "SELECT a FROM nope": "TABLE: nope at line 1, column 15",
    "SELECT a FROM default.t": "TABLE: default.t at line 1, column 15",
    "SELECT id FROM read_files('x')": r"NODE: read_files\(...\), a function that makes",
    "SELECT a + explode(array(b)) FROM t": r"NODE: explode\(...\)",
    "SELECT explode(array(a)), explode(array(b)) FROM t": "NODE: several generators",
    "SELECT a FROM t WHERE session_window(timestamp_seconds(a), '5 hours').start < now()":
        r"NODE: session_window\(...\)",
    "SELECT rank() OVER (ORDER BY a), explode(array(b)) FROM t": "NODE: a window next to a gen",
    "SELECT a FROM t LEFT JOIN LATERAL explode(array(a)) AS q(x)": "NODE: LEFT JOIN LATERAL of a",
    "SELECT a FROM t JOIN u USING (a) PIVOT (sum(c) FOR s IN ('x'))":
        "NODE: JOIN with pivots",
    "SELECT * FROM t PIVOT (collect_list(b) FOR a IN (1))": "NODE: PIVOT of array<int>",
    "SELECT * FROM t UNPIVOT ((v, w) FOR side IN ((a, b)))": "NODE: UNPIVOT of several values",
    "WITH RECURSIVE r AS (SELECT a FROM t UNION ALL SELECT a + 1L FROM r WHERE a < 4) SELECT * "
    "FROM r": "NODE: the recursion r at line 1, column 48: the step has a of bigint, and the anch",
    "WITH RECURSIVE r AS (SELECT a FROM t UNION ALL SELECT a FROM r UNION ALL SELECT b FROM r) "
    "SELECT * FROM r": "NODE: the recursion r .* an anchor, UNION or UNION ALL, and one step",
    "SELECT (a IN (SELECT a FROM u)) IS NULL AS x FROM t": "NODE: IN with a subquery in an op",
    "SELECT a FROM t WHERE NOT (a IN (SELECT a FROM u) OR b = 1)": "NODE: IN with a subquery",
    "SELECT a FROM t WHERE s IN (SELECT a FROM u)": "NODE: IN of string and int",
    "SELECT a FROM t WHERE a IN ((SELECT max(b) FROM u), 1)": "NODE: IN with a subquery in its",
    "SELECT * FROM u x, t JOIN u USING (a)": "EXPRESSION: a at line 1, column 36: USING needs one",
    "SELECT localtime() FROM t": "CURRENT_TIME: localtime",
    "SELECT unix_timestamp() FROM t": "CURRENT_TIME: unix_timestamp",
    "SELECT a FROM t ORDER BY a LIMIT 1 + 1": "NODE: LIMIT of an expression",
    "SELECT a, (SELECT collect_list(b) FROM u WHERE u.a = t.a) FROM t": "NODE: collect_list",
    "SELECT a, sum(b) FROM t GROUP BY (a, b)": "NODE: GROUP BY",
    "INSERT INTO t SELECT 1": "NO_QUERY: INSERT INTO",
    "DROP TABLE t": "NO_QUERY: DROP TABLE",
}

#: Queries with QUALIFY, which Spark 4.1 does not know.
QUALIFIED = [
    "SELECT a, b FROM t QUALIFY row_number() OVER w = 1 WINDOW w AS (PARTITION BY a ORDER BY b, s)",
    "SELECT a + 1 AS k, s FROM t WHERE b > 0 QUALIFY rank() OVER (PARTITION BY k ORDER BY b) = 1 "
    "AND s IN (SELECT 'a' UNION SELECT s FROM t) ORDER BY k, s LIMIT 4",
    "SELECT a, sum(b) AS n FROM t GROUP BY a QUALIFY rank() OVER (ORDER BY n, a) < 3",
    "SELECT DISTINCT a FROM t QUALIFY rank() OVER (ORDER BY b) < 3",
    "SELECT t.a, u.c FROM t JOIN u USING (a) QUALIFY rank() OVER (ORDER BY t.b, u.b) < 4",
    "SELECT a, b + 1 AS r, count(*) OVER () AS q FROM t QUALIFY max(r) OVER (PARTITION BY a) > 2 "
    "AND q > 1",
]
UNQUALIFIED = {
    "SELECT -b AS b FROM t QUALIFY rank() OVER (ORDER BY b) = 1":
        "EXPRESSION: b in QUALIFY at line 1, column 53",
    "SELECT a, sum(b) OVER () AS n FROM t QUALIFY n = (SELECT max(b) FROM u WHERE u.a = t.a)":
        "NODE: a correlated subquery in QUALIFY",
    "SELECT a, explode(array(b)) FROM t QUALIFY rank() OVER (ORDER BY a) = 1":
        "NODE: a window next to a gen",
}
#: Queries that Spark refuses, and a part of the message.
WRONG = {
    "SELECT * EXCEPT (nope) FROM t": "`nope` cannot be resolved",
    "SELECT * EXCEPT (a) FROM t JOIN u ON t.b = u.b": "`a` is ambiguous",
    "SELECT * EXCEPT (st.x) FROM (SELECT struct(a, b) AS st FROM t)": "No such struct field `x`",
    "SELECT * EXCEPT (a + 1) FROM t": "Syntax error",
    "SELECT a, count(*) FROM t GROUP BY a, ()": "Syntax error",
    "SELECT a, (SELECT max(u.b) FROM u WHERE u.a = a2) AS m, a AS a2 FROM t":
        "`a2` cannot be resolved",
    "SELECT nope FROM t": "`nope` cannot be resolved",
    "SELECT sum(b) OVER W FROM t WINDOW w AS (PARTITION BY a)": "WINDOW defines w",
    "SELECT sum(b) OVER w FROM t WINDOW w AS v, v AS w": "refers to the window w",
    "SELECT sum(b) OVER (w ORDER BY b) FROM t WINDOW w AS (PARTITION BY a)": "clauses of its own",
}


@pytest.fixture(autouse=True)
def from_text(monkeypatch):
    """Queries are read from their texts, on a classic session too."""
    monkeypatch.setattr(Dataflow, "_is_classic", lambda self: False)


@pytest.mark.parametrize("text", [
    pytest.param(text, id=str(number), marks=() if number % 4 == 0 else classic_only)
    for number, text in enumerate(QUERIES)
])
def test_a_query_equals_plain_spark(spark, text):
    outcome = sql_coverage.run(spark, SCHEMAS, text, batches=2, rows=15)
    assert outcome.kind == "equal", outcome


@classic_only
@pytest.mark.parametrize("text", [
    pytest.param(text, id=str(number), marks=() if number % 8 == 0 else pytest.mark.slow)
    for number, text in enumerate(MORE)
])
def test_more_queries_equal_plain_spark(spark, text):
    outcome = sql_coverage.run(spark, SCHEMAS, text, batches=2, rows=15)
    assert outcome.kind == "equal", outcome


@classic_only
@pytest.mark.parametrize("text", QUALIFIED, ids=range(len(QUALIFIED)))
def test_qualify_equals_plain_spark(spark, text):
    if pyspark.__version__.startswith("4.1."):
        pytest.skip("Spark 4.1 has no QUALIFY")
    outcome = sql_coverage.run(spark, SCHEMAS, text, batches=1, rows=15)
    assert outcome.kind == "equal", outcome


@pytest.mark.parametrize("text", UNQUALIFIED)
def test_names_and_subqueries_that_qualify_may_not_have(spark, text):
    with Dataflow(spark) as flow:
        for name, schema in SCHEMAS.items():
            flow.input(name, schema)
        with pytest.raises(UnsupportedQueryError, match=UNQUALIFIED[text]):
            flow.sql(text)


@pytest.mark.parametrize("text", WRONG)
def test_a_query_that_spark_refuses_is_an_error_of_the_schema(spark, text):
    with Dataflow(spark) as flow:
        for name, schema in SCHEMAS.items():
            flow.input(name, schema)
        with pytest.raises(SchemaError, match=WRONG[text]):
            flow.sql(text)


@pytest.mark.parametrize("text", REFUSED)
def test_other_parts_are_refused_by_name(spark, text):
    with Dataflow(spark) as flow:
        for name, schema in SCHEMAS.items():
            flow.input(name, schema)
        with pytest.raises(UnsupportedQueryError, match=REFUSED[text]):
            flow.sql(text)


def test_all_refused_parts_are_listed_with_their_places(spark):
    with Dataflow(spark) as flow:
        for name, schema in SCHEMAS.items():
            flow.input(name, schema)
        with pytest.raises(UnsupportedQueryError) as raised:
            flow.sql(
                "WITH c AS (SELECT uuid() AS x FROM t)\nSELECT rand() + greatest(a, randn()), "
                "now(),\n x, nope.z, x + 1 FROM t TABLESAMPLE (10 PERCENT)\nJOIN gone ON gone.a = "
                "t.a AND t.b = randn(1), c\nWHERE a = (SELECT max(version_x(b)) FROM u) AND q > "
                "shuffle(array(a))[0]\nGROUP BY 1, 2, java_method('x')\nHAVING sum(rand(3)) > 1\n"
                "ORDER BY random(), a LIMIT 1 + 1"
            )
    text = str(raised.value)
    parts = [
        "NON_DETERMINISTIC: uuid() at line 1, column 19",
        "NON_DETERMINISTIC: rand() at line 2, column 8",
        "NON_DETERMINISTIC: randn() at line 2, column 29",
        "CURRENT_TIME: now() at line 2, column 39",
        "SAMPLE: TABLESAMPLE at line 3, column 24",
        "TABLE: gone at line 4, column 6",
        "NON_DETERMINISTIC: randn() at line 4, column 37",
        "PYTHON_FUNCTION: version_x(...) at line 5, column 23",
        "NON_DETERMINISTIC: shuffle() at line 5, column 53",
        "NON_DETERMINISTIC: java_method() at line 6, column 16",
        "NON_DETERMINISTIC: rand() at line 7, column 12",
        "NON_DETERMINISTIC: random() at line 8, column 10",
        "NODE: LIMIT of an expression at line 8, column 28",
    ]
    lines = [line.strip() for line in text.splitlines()[1:]]
    assert [line[:len(part)] for line, part in zip(lines, parts)] == parts, text
    assert len(lines) == len(parts), text


def test_recursions_beyond_those_of_spark(spark):
    with Dataflow(spark, buckets=2) as flow:
        _, edges = flow.input("edges", "src long, dst long")
        reached = flow.sql(
            "WITH RECURSIVE r (a, b) AS (SELECT src, dst FROM edges UNION SELECT DISTINCT r.a, "
            "e.dst FROM r JOIN edges e ON r.b = e.src) SELECT * FROM r"
        ).keep("reached")
        sides = flow.sql(
            "WITH MUTUALLY RECURSIVE\n"
            "  even (n bigint) AS (SELECT 1 UNION SELECT dst FROM odd JOIN edges ON n = src),\n"
            "  odd (n bigint) AS (SELECT dst FROM even JOIN edges ON n = src GROUP BY dst)\n"
            "SELECT 'even' AS side, n FROM even UNION ALL SELECT 'odd', n FROM odd WHERE n < :m",
            args={"m": 9},
        ).keep("sides")
        edges.insert([(1, 2), (2, 3), (3, 1)])
        flow.advance_to(1)
        assert sorted(map(tuple, reached.at().collect())) == [
            (a, b) for a in (1, 2, 3) for b in (1, 2, 3)
        ]
        assert sorted(map(tuple, sides.at().collect())) == [
            (side, n) for side in ("even", "odd") for n in (1, 2, 3)
        ]
        edges.remove([(3, 1)])
        flow.advance_to(2)
        assert sorted(map(tuple, reached.at().collect())) == [(1, 2), (1, 3), (2, 3)]
        assert sorted(map(tuple, sides.at().collect())) == [("even", 1), ("even", 3), ("odd", 2)]
        with pytest.raises(SchemaError, match="a list of args has no order"):
            flow.sql("WITH MUTUALLY RECURSIVE r (n int) AS (SELECT ?) SELECT * FROM r", args=[1])


def test_a_table_of_the_catalog_becomes_a_source(spark):
    names = ("sql_read", "sql_json")
    for name in names:
        spark.sql(f"DROP TABLE IF EXISTS {name}")
    spark.sql("DROP VIEW IF EXISTS sql_view")
    spark.sql("CREATE TABLE sql_read (item string, price int) USING parquet")
    spark.sql("INSERT INTO sql_read VALUES ('tea', 3), ('milk', 2)")
    spark.sql("CREATE TABLE sql_json (item string) USING json")
    spark.sql("CREATE VIEW sql_view AS SELECT * FROM sql_read")
    with Dataflow(spark, buckets=2) as flow:
        flow.input("t", SCHEMAS["t"])
        assert flow.explain_sql("SELECT item FROM sql_read r").startswith(
            "supported; reads spark_catalog.default.sql_read"
        )
        output = flow.sql("SELECT sum(price) AS total FROM default.sql_read").keep("total")
        flow.catch_up()
        assert output.at().collect() == [(5,)]
        spark.sql("INSERT INTO sql_read VALUES ('salt', 1)")
        flow.catch_up()
        assert output.at().collect() == [(6,)]
        with pytest.raises(UnsupportedQueryError) as raised:
            flow.sql("SELECT * FROM sql_json, sql_view")
        assert "TABLE: spark_catalog.default.sql_json at line 1, column 15: no source reads" in str(
            raised.value)
        assert "TABLE: sql_view at line 1, column 25: the plan of a view" in str(raised.value)
    spark.sql("DROP VIEW sql_view")
    for name in names:
        spark.sql(f"DROP TABLE {name}")


def test_a_wrong_query_is_spark_s_error(spark):
    with Dataflow(spark) as flow:
        flow.input("t", SCHEMAS["t"])
        with pytest.raises(SchemaError, match="refuses"):
            flow.sql("SELECT a FROM t WHERE")
        with pytest.raises(SchemaError, match="Spark refuses the query"):
            flow.sql("SELECT a + array(1) FROM t")
        with pytest.raises(SchemaError, match="the parameter :x has no value"):
            flow.sql("SELECT a FROM t WHERE a = :x", args={"y": 1})
        with pytest.raises(UnsupportedQueryError, match="PYTHON_FUNCTION: no_such"):
            flow.sql("SELECT no_such(a) FROM t")


def test_without_sqlglot_the_error_says_what_to_install(spark, monkeypatch):
    for name in [item for item in sys.modules if item.startswith("pyspark_diff.query.text_")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sqlglot", None)
    with Dataflow(spark) as flow:
        flow.input("t", SCHEMAS["t"])
        with pytest.raises(UnsupportedQueryError, match=r"pip install .pyspark_diff\[connect\]"):
            flow.sql("SELECT a FROM t")


def test_a_setting_that_changes_the_meaning_is_refused(spark):
    with Dataflow(spark) as flow:
        flow.input("t", SCHEMAS["t"])
        spark.conf.set("spark.sql.groupByOrdinal", "false")
        try:
            with pytest.raises(UnsupportedQueryError, match="groupByOrdinal=false"):
                flow.sql("SELECT a FROM t")
        finally:
            spark.conf.unset("spark.sql.groupByOrdinal")


def test_values_and_collections_in_the_text(spark):
    with Dataflow(spark) as flow:
        t, rows = flow.input("t", SCHEMAS["t"])
        few = t.where("a < 3")
        named = flow.sql("SELECT a, s FROM {few} f WHERE s <> {s}", few=few, s="it's").keep("named")
        value = flow.sql("SELECT a FROM t WHERE a = :n OR b > ?".replace("?", ":m"),
                         args={"n": 2, "m": 8}).keep("value")
        place = flow.sql("SELECT a FROM t WHERE a = ? OR s = ?", args=[-1, "x"]).keep("place")
        rows.insert([(1, 9, "it's"), (2, 1, "x"), (3, 1, "y"), (-1, 0, "z")])
        flow.advance_to(1)
        assert sorted(map(tuple, named.at().collect())) == [(-1, "z"), (2, "x")]
        assert sorted(map(tuple, value.at().collect())) == [(1,), (2,)]
        assert sorted(map(tuple, place.at().collect())) == [(-1,), (2,)]
        remarks = flow.explain_sql("SELECT a FROM t ORDER BY a")
        assert remarks.startswith("supported; reads t\nORDER BY")


def test_columns_of_one_name_get_numbers(spark):
    with Dataflow(spark) as flow:
        flow.input("t", SCHEMAS["t"])
        assert flow.sql("SELECT a, A, count(*) FROM t GROUP BY a").columns == [
            "a", "A_2", "count(1)"
        ]


def test_spark_checks_the_columns(spark, monkeypatch):
    """If the reader resolves other columns than Spark, the query is refused."""
    from pyspark_diff.query import text_reader

    monkeypatch.setattr(text_reader.TextReader, "expanded", lambda self, node, scope: iter(
        [(node.name, node), (node.name, node)]
    ))
    with Dataflow(spark) as flow:
        flow.input("t", SCHEMAS["t"])
        with pytest.raises(UnsupportedQueryError, match="the reader understands the columns as"):
            flow.sql("SELECT a FROM t")


def plain(relation, frame, spark):
    """The frame of plain Spark for a relation over one table."""
    if isinstance(relation, Scan):
        return frame.select(*[F.col(f"`{old}`").alias(new) for old, new in relation.renamed])
    if isinstance(relation, ConstantRelation):
        return relation.frame
    below = plain(relation.child, frame, spark)
    if isinstance(relation, Project):
        return below.selectExpr(*[f"{item.expression} AS {item.name}" for item in relation.named])
    if isinstance(relation, Aggregate):
        assert not relation.keys
        return below.selectExpr(
            *[f"{item.expression} AS {item.name}" for item in relation.aggregates]
        )
    if isinstance(relation, Generate):
        outer = "_outer" if relation.outer else ""
        name, arguments = str(relation.generator).split("(", 1)
        names = ", ".join(relation.names)
        return below.selectExpr("*", f"{name}{outer}({arguments} AS ({names})")
    assert isinstance(relation, Window)
    texts = []
    for item in relation.functions:
        by = f"PARTITION BY {', '.join(map(str, item.partition))} " if item.partition else ""
        order = ", ".join(str(part.expression) for part in item.order)
        by += f"ORDER BY {order} " if order else ""
        texts.append(f"{item.function} OVER ({by}{item.frame}) AS {item.name}")
    return below.selectExpr("*", *texts)


def collected(frame):
    """The rows of a frame, or the condition of its error."""
    try:
        return list(map(tuple, frame.collect()))
    except PySparkException as error:
        return error.getCondition()


def optimised(frame):
    return frame._jdf.queryExecution().optimizedPlan().canonicalized()


@pytest.mark.classic_only("compares plans in the JVM")
@pytest.mark.parametrize("part", [
    pytest.param(part, marks=() if part < 2 else pytest.mark.slow) for part in range(PARTS)
])
def test_each_function_keeps_its_meaning(spark, part):
    """The text that the reader makes of a call has the plan of the query's own text."""
    # A function that fails on the rows fails during Spark's optimisation.
    known = registry.classified()
    names = sorted(
        name for name in (known.keys() - registry.APART) & set(registry.names(spark))
        if registry.FAILS not in known[name][0]
    )[part::PARTS]
    read, differ = 0, []
    for name in names:
        for call in registry.calls(spark, name):
            frame = spark.sql(call.rows).selectExpr("*", "1 AS k_", "'a' AS n_")
            frame = spark.createDataFrame(frame.collect(), frame.schema)
            try:
                original = frame.selectExpr(f"{call.text} AS x")
            except AnalysisException as error:
                # A generator of several columns takes no single name.
                assert error.getCondition() == "UDTF_ALIAS_NUMBER_MISMATCH", (name, error)
                continue
            try:
                text = f"SELECT {call.text} AS x FROM rows"
                match = read_text(text, {"rows": frame.schema}, spark)
            except UnsupportedQueryError:
                continue
            read += 1
            ours = plain(match.relation, frame, spark)
            if not optimised(ours).equals(optimised(original)):
                results = collected(ours), collected(original)
                if results[0] != results[1]:
                    differ.append((name, call.text, *results))
    assert not differ, differ
    assert read > 0.6 * len(names), read


@pytest.mark.classic_only("compares columns with texts that are taken apart")
@pytest.mark.parametrize("text", [
    "count(*)", "count(DISTINCT a, b)", "sum(DISTINCT b)", "sum(b + 1)", "max(DISTINCT b)",
    "count(*) FILTER (WHERE b > 1)", "avg(b) FILTER (WHERE a > 1)", "percentile(b, 0.5)",
    "count(DISTINCT b) FILTER (WHERE a > 1)", "count_if(b > 1) FILTER (WHERE a > 1)",
    "min_by(s, b)",
])
def test_a_call_as_columns_equals_its_text(spark, text):
    rows = [(1, 2, "x"), (2, None, "y"), (2, 3, None), (None, 1, "z"), (3, 3, "y")]
    frame = spark.createDataFrame(rows, SCHEMAS["t"])
    assert frame.agg(call_column(text, remote=True)).collect() == frame.selectExpr(text).collect()


@pytest.mark.classic_only("compares columns with texts that are taken apart")
def test_a_condition_as_columns_equals_its_text(spark):
    rows = [(a, b, s) for a in (1, 2, None) for b in (1, 2, None) for s in ("x", None)]
    frame = spark.createDataFrame(rows, SCHEMAS["t"])
    for text in ("a = b", "(a <=> b) AND (s = 'x' OR a < b)", "a + 1 = b AND NOT (s = 'x')",
                 "a >= b OR b BETWEEN a AND 2", "a > b", "a <= b AND s IS NULL"):
        assert frame.where(condition_of(text, remote=True)).collect() == (
            frame.where(text).collect()
        ), text
    with pytest.raises(UnsupportedQueryError, match="no function of columns"):
        call_column("first(a) IGNORE NULLS", remote=True)


def tpch():
    """The queries of TPC-H in the examples' docstrings."""
    for path in sorted((ROOT / "examples" / "tpch").glob("q*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        text = textwrap.dedent(text.split("\n", 1)[1])
        yield path.stem, text[min(
            text.find(word) for word in ("WITH ", "SELECT ") if word in text
        ):]


@classic_only
@pytest.mark.parametrize("number,text", [
    pytest.param(number, text, id=name, marks=() if number % 5 == 0 else pytest.mark.slow)
    for number, (name, text) in enumerate(tpch())
])
def test_a_query_of_tpch_equals_plain_spark(spark, number, text):
    schemas = sql_coverage.read_schema(
        (ROOT / "tests" / "sql" / "tpch.sql").read_text(encoding="utf-8")
    )
    outcome = sql_coverage.run(spark, schemas, text, batches=2, rows=30)
    assert outcome.kind == "equal", outcome


@classic_only
@given(st.data())
def test_random_queries_equal_plain_spark_or_are_refused(spark, data):
    text = data.draw(random_queries.queries())
    outcome = sql_coverage.run(
        spark, random_queries.TABLES, text, seed=data.draw(st.integers(0, 99)), batches=1, rows=10,
    )
    assert outcome.kind in ("equal", "refused"), (text, outcome)
