"""A query over tables with its used columns alone has the answer of Spark over whole tables."""

from __future__ import annotations

from collections import Counter

import pytest

from pyspark_diff import Dataflow
from pyspark_diff.query.dataflow import Dataflow as QueryDataflow
from pyspark_diff.query.pruning import pruned, used_columns

ROWS = {
    "orders": ("id int, customer int, amount int, note string", [
        (1, 1, 10, "a"), (2, 2, 20, "b"), (3, 1, 5, "c"), (3, 1, 5, "c"), (4, 9, 7, None),
    ]),
    "customers": ("customer int, region string, phone string", [
        (1, "north", "1"), (2, "south", "2"), (3, "south", "3"),
    ]),
}
#: Queries with the columns that each of them uses.
QUERIES = {
    "SELECT count(*) AS n FROM orders": {"orders": ""},
    "WITH x AS (SELECT * FROM orders) SELECT customer, sum(amount) FROM x GROUP BY customer":
        {"orders": "customer amount"},
    "SELECT amount FROM (SELECT *, id + customer AS both FROM orders) WHERE both > 3":
        {"orders": "id customer amount"},
    "SELECT o.id, region FROM orders o LEFT JOIN customers c ON o.customer = c.customer":
        {"orders": "id customer", "customers": "customer region"},
    "SELECT id FROM orders o WHERE EXISTS (SELECT * FROM customers c WHERE "
    "c.customer = o.customer AND o.amount > 5)":
        {"orders": "id customer amount", "customers": "customer"},
    "SELECT id, (SELECT max(region) FROM customers c WHERE c.customer = o.customer) FROM orders o":
        {"orders": "id customer", "customers": "customer region"},
    "SELECT id FROM orders WHERE customer IN (SELECT customer FROM (SELECT * FROM customers))":
        {"orders": "id customer", "customers": "customer"},
    "WITH x AS (SELECT * FROM orders) SELECT a.id FROM x a JOIN x b ON a.id = b.amount":
        {"orders": "id amount"},
    "SELECT id FROM (SELECT * FROM orders UNION ALL SELECT * FROM orders)":
        {"orders": "id customer amount note"},
    "SELECT customer FROM (SELECT DISTINCT customer, note FROM orders)":
        {"orders": "customer note"},
    "SELECT id, rank() OVER (PARTITION BY customer ORDER BY amount) AS r FROM orders":
        {"orders": "id customer amount"},
    "SELECT x, id FROM orders LATERAL VIEW explode(array(customer, amount)) AS x":
        {"orders": "id customer amount"},
    "SELECT id, s FROM orders o, LATERAL (SELECT sum(length(phone)) AS s FROM customers c "
    "WHERE c.customer <= o.customer)":
        {"orders": "id customer", "customers": "customer phone"},
}


@pytest.mark.classic_only("reads analysed plans")
@pytest.mark.parametrize("text", QUERIES)
def test_used_columns_are_enough(spark, text):
    with QueryDataflow(spark) as whole:
        for name, (ddl, _) in ROWS.items():
            whole.input(name, ddl)
        read = whole._read_query(text, None, {})[0]
    used = used_columns(read.relation, [old for old, _ in read.columns])
    assert {name: " ".join(
        column.split()[0] for column in ROWS[name][0].split(", ") if column.split()[0] in columns
    ) for name, columns in used.items()} == QUERIES[text]
    session = spark.newSession()
    with Dataflow(spark, runner="local") as flow:
        for name, (ddl, rows) in ROWS.items():
            session.createDataFrame(rows, ddl).createOrReplaceTempView(name)
            frame = spark.createDataFrame(rows, ddl)
            # A source reads the first column if a query uses none.
            columns = [column for column in frame.columns if column in used.get(name, ())]
            frame = frame.select(columns or frame.columns[:1])
            flow.input(name, frame.schema)[1].insert(frame)
        output = flow._built(read, {}).keep()
        flow.advance_to(1)
        rows = Counter(map(tuple, output.at().collect()))
    assert rows == Counter(map(tuple, session.sql(text).collect()))


@pytest.mark.classic_only("reads analysed plans")
def test_columns_that_tables_gain_rename_nothing(spark):
    """The fingerprint of a program includes names, so a store needs unchanged names."""
    text = (
        "WITH c AS (SELECT * FROM customers), o AS (SELECT * FROM orders) "
        "SELECT c.region, sum(o.amount) AS s, max(o.`due date`) AS d "
        "FROM c JOIN o ON c.customer = o.customer GROUP BY c.region"
    )
    tables = {
        "customers": "customer int, region string", "orders": "customer int, amount int, "
        "`due date` date",
    }
    gained = {
        "customers": "`e f` int, amount int, customer int, region string, Region_1 int",
        "orders": "region string, customer int, amount int, `due date` date",
    }
    queries = []
    for columns in tables, gained:
        with QueryDataflow(spark) as flow:
            for name, ddl in columns.items():
                flow.input(name, ddl)
            read = flow._read_query(text, None, {})[0]
        wanted = [old for old, _ in read.columns]
        used = used_columns(read.relation, wanted)
        queries.append((read.columns, pruned(read.relation, wanted, used)))
    assert queries[0] == queries[1]
