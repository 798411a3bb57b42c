"""Both readers of queries agree: on costs, notes, clocks, and the identity of a program.

    a spelling of a query  =  the same program, for each reader
"""

from __future__ import annotations

from datetime import date, datetime

import pytest

from pyspark_diff import Dataflow, ProgramChangedError, SchemaError, UnsupportedQueryError

pytest.importorskip("sqlglot")

SCHEMAS = {"t": "a int, b int, s string", "u": "a int, b int, c double"}
ORDER = "ORDER BY: a collection has no order; sort the frame that at() returns"
LIMIT = "LIMIT without ORDER BY: any rows are right, and these are the least ones by their columns"
CHANGE = "the changed rows"
KEYS = f"{CHANGE}, and the stored rows of their keys"
MATCHES = f"{CHANGE}, and a row for each match on the other side (FAN_OUT)"


@pytest.fixture(params=["plan", "text"])
def reader(request, spark, monkeypatch):
    """The reader of a classic session, or that of Connect."""
    if request.param == "text":
        monkeypatch.setattr(Dataflow, "_is_classic", lambda self: False)
    elif not hasattr(spark, "_jsparkSession"):
        pytest.skip("a client of Connect sees no plan")
    return request.param


@pytest.fixture
def flow(spark, reader):
    with Dataflow(spark, buckets=2) as flow:
        for name, schema in SCHEMAS.items():
            flow.input(name, schema)
        yield flow


#: Queries, and the lines of their clauses.
COSTS = {
    "SELECT a + 1 AS x FROM t WHERE b > 2": [
        f"FROM t: {CHANGE}", f"WHERE b > 2: {CHANGE}",
    ],
    "SELECT t.a, sum(c) AS x FROM t JOIN u ON t.b = u.b GROUP BY t.a ORDER BY x LIMIT 3": [
        f"FROM t: {CHANGE}", f"FROM u: {CHANGE}", f"JOIN ON b = b: {MATCHES}",
        f"GROUP BY a: {KEYS}", f"ORDER BY sum(c) LIMIT 3: {KEYS}",
    ],
    "SELECT DISTINCT a FROM t EXCEPT SELECT b FROM u": [
        f"FROM t: {CHANGE}", f"DISTINCT: {KEYS}", f"FROM u: {CHANGE}", f"EXCEPT: {KEYS}",
    ],
    "SELECT a, rank() OVER (PARTITION BY s ORDER BY b) AS r FROM t": [
        f"FROM t: {CHANGE}",
        "WINDOW RANK() OVER (PARTITION BY s): all rows of the changed groups or partitions "
        "(PARTITION_READ)",
    ],
    "SELECT t.a FROM t CROSS JOIN u": [
        f"FROM t: {CHANGE}", f"FROM u: {CHANGE}", "JOIN: all stored rows (WHOLE_SIDE)",
    ],
    "SELECT collect_list(b) AS l FROM t": [
        f"FROM t: {CHANGE}", "SELECT collect_list(b): all stored rows (WHOLE_COLLECTION)",
    ],
}


@pytest.mark.parametrize("text", COSTS)
def test_explain_sql_has_the_cost_of_each_clause(flow, text):
    lines = flow.explain_sql(text).splitlines()
    begin = lines.index("a change costs, clause by clause:") + 1
    clauses = [line.strip() for line in lines[begin:] if line.startswith("  ")]
    assert [clause.replace("rank()", "RANK()") for clause in clauses] == COSTS[text]


def test_a_recursion_has_the_cost_of_its_iterations(flow):
    text = flow.explain_sql(
        "WITH RECURSIVE r (a, b) AS (SELECT a, b FROM t UNION ALL SELECT r.a, u.b FROM r JOIN u ON "
        "r.b = u.a WHERE u.b > r.b) SELECT * FROM r"
    )
    assert "WITH RECURSIVE: the rows of each iteration that the change alters (FAN_OUT" in text


@pytest.mark.parametrize("text, notes", [
    ("SELECT a FROM t ORDER BY a", [ORDER]),
    ("SELECT a, count(*) FROM t GROUP BY a ORDER BY count(*)", [ORDER]),
    ("SELECT a FROM t UNION SELECT b FROM u ORDER BY a", [ORDER]),
    ("SELECT a FROM t LIMIT 3", [LIMIT]),
    ("SELECT a FROM (SELECT a FROM t LIMIT 3) ORDER BY a", [LIMIT, ORDER]),
    ("SELECT a FROM t ORDER BY a LIMIT 3", []),
    ("SELECT a FROM (SELECT a FROM t LIMIT 3) LIMIT 2", [LIMIT, LIMIT]),
])
def test_notes_on_order_and_limit(flow, text, notes):
    lines = flow.explain_sql(text).splitlines()
    assert sorted(lines[1:lines.index("a change costs, clause by clause:")]) == sorted(notes)


def test_a_left_join_of_a_generator_is_refused(flow):
    """Plain Spark loses rows in this join."""
    text = "SELECT a FROM t LEFT JOIN LATERAL explode(filter(array(a), y -> y > 2)) AS q(x)"
    with pytest.raises(UnsupportedQueryError, match="LEFT JOIN LATERAL of a generator"):
        flow.sql(text)


#: A query, its other spellings, and another query.
SPELLINGS = {
    "join": (
        "SELECT s, sum(t.b) AS n FROM t JOIN u ON t.a = u.a AND t.b > 1 WHERE u.b < 9 AND s <> 'x' "
        "AND (c > 1 OR t.b = 2) GROUP BY s",
        [
            "-- a comment\nSELECT s,\n  sum( x.b ) /* all */ AS n FROM t x JOIN u AS y ON x.b > 1 "
            "AND x.a = y.a WHERE (c > 1 OR x.b = 2) AND s<>'x' AND y.b  <  9\nGROUP BY s",
        ],
        "SELECT s, sum(t.b) AS n FROM t JOIN u ON t.a = u.a AND t.b > 2 WHERE u.b < 9 AND s <> 'x' "
        "AND (c > 1 OR t.b = 2) GROUP BY s",
    ),
    "having": (
        "SELECT a, count(*) AS n FROM t GROUP BY a HAVING sum(b) > 2 AND max(b) < 9",
        ["SELECT q.a, count(*) AS n FROM t q GROUP BY q.a HAVING max(q.b) < 9 AND sum(q.b) > 2"],
        "SELECT a, count(*) AS n FROM t GROUP BY a HAVING sum(b) > 2 AND max(b) < 8",
    ),
    "subqueries": (
        "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a AND u.b > 1) AND b IN "
        "(SELECT b FROM u) AND a > 1",
        [
            "SELECT p.a FROM t p WHERE a > 1 AND p.b IN (SELECT z.b FROM u z) AND EXISTS (SELECT 1 "
            "FROM u v WHERE v.b > 1 AND v.a = p.a)",
        ],
        "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a AND u.b > 2) AND b IN "
        "(SELECT b FROM u) AND a > 1",
    ),
    "windows": (
        "SELECT a, sum(b) OVER (PARTITION BY s ORDER BY b, a) AS n FROM t",
        ["SELECT x.a, SUM(x.b) OVER ( PARTITION BY x.s\nORDER BY x.b , x.a ) AS n FROM t AS x"],
        "SELECT a, sum(b) OVER (PARTITION BY s ORDER BY b) AS n FROM t",
    ),
    "names": (
        "WITH c AS (SELECT a AS a_1, b FROM t WHERE a + 1 > 2) SELECT a_1 AS z FROM c",
        ["WITH d AS (SELECT a_4.a AS a_1, a_4.b FROM t a_4 WHERE a+1>2) SELECT a_1 AS z FROM d"],
        "WITH c AS (SELECT a AS a_1, b FROM t WHERE a + 1 > 3) SELECT a_1 AS z FROM c",
    ),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_spelling_is_no_change_of_a_program(spark, reader, tmp_path, name):
    first, others, changed = SPELLINGS[name]

    def program(text):
        def write(flow):
            for table, schema in SCHEMAS.items():
                flow.input(table, schema)
            flow.sql(text).keep("kept")
        return write

    for number, text in enumerate((first, *others)):
        with Dataflow.open(tmp_path / "store", program(text), spark=spark, buckets=2) as flow:
            flow.advance_to(number + 1)
    with pytest.raises(ProgramChangedError):
        Dataflow.open(tmp_path / "store", program(changed), spark=spark, buckets=2)


def test_the_current_date_is_that_of_the_clock(spark, reader):
    with Dataflow(spark, time_type="date", buckets=2) as flow:
        begin = date(2026, 3, 1)
        bills, rows = flow.input("bills", "id int, due date, paid int", start=begin)
        today = flow.clock("1 day", start=begin)
        late = flow.sql(
            "SELECT id, datediff(current_date(), due) AS days FROM bills WHERE due < current_date "
            "AND paid = :p", args={"p": 0}, clock=today,
        ).keep("late")
        total = flow.sql(
            "SELECT CASE WHEN due < curdate() THEN 'late' ELSE 'open' END AS k, count(*) AS n, "
            "max(now()) AS m FROM bills b JOIN (SELECT 1 AS one) ON b.due < current_date() + 90 "
            "GROUP BY ALL", clock=today,
        ).keep("total") if reader == "plan" else None
        rows.insert([(1, date(2026, 3, 2), 0), (2, date(2026, 3, 9), 0), (3, date(2026, 3, 2), 1)])
        answers = []
        for day in (2, 3, 6, 20):
            flow.advance_to(date(2026, 3, day))
            answers.append(sorted(map(tuple, late.at().collect())))
        assert answers == [[], [], [(1, 3)], [(1, 17), (2, 10)]]
        if total is not None:
            assert sorted(map(tuple, total.at().collect())) == [
                ("late", 3, datetime(2026, 3, 19))
            ]
        explained = flow.explain_sql("SELECT id FROM bills WHERE due < now()", clock=today)
        assert "current date or time: it is that of the clock" in explained
        assert "CURRENT_TIME: " in flow.explain_sql("SELECT id FROM bills WHERE due < now()")


def test_other_clocks_are_refused(spark, reader):
    with Dataflow(spark, buckets=2) as flow:
        flow.input("t", SCHEMAS["t"])
        clock = flow.clock(5)
        with pytest.raises(SchemaError, match="one column, a date or timestamp"):
            flow.sql("SELECT now() FROM t", clock=clock)
        with pytest.raises(SchemaError, match="not of type int"):
            flow.sql("SELECT now() FROM t", clock=5)
        with pytest.raises(UnsupportedQueryError, match="CURRENT_TIME"):
            flow.sql("SELECT now(), x.now FROM t, {clock} x", clock=clock)
        assert flow.sql("SELECT a, now FROM t, {clock}", clock=clock).columns == ["a", "now"]
