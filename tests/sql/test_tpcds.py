"""The queries of TPC-DS that are read from their texts equal plain Spark's.

    the kept answer  =  the rows that plain Spark returns, after the load and after each batch

`ci/prove` fetches the texts, and draws some of the queries.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import sql_coverage

from pyspark_diff import Dataflow

pytest.importorskip("sqlglot")

TEXTS = Path(sys.prefix) / "sql" / "tpcds"
SCHEMA = Path(__file__).parent / "tpcds.sql"
#: Queries for which plain Spark is slower than the limit of a case.
LONG = (64,)
#: Queries with two parts, which have two texts.
TWICE = (14, 23, 24, 39)
NAMES = [
    f"q{number}{part}" for number in range(1, 100) if number not in LONG
    for part in ("ab" if number in TWICE else ("",))
]


@pytest.mark.slow
@pytest.mark.classic_only("is as on a classic session, which is faster")
@pytest.mark.parametrize("name", NAMES)
def test_a_query_of_tpcds_equals_plain_spark(spark, monkeypatch, name):
    path = TEXTS / f"{name}.sql"
    if not path.is_file():
        pytest.skip("ci/sql_coverage tpcds and ci/prove fetch the texts")
    monkeypatch.setattr(Dataflow, "_is_classic", lambda self: False)
    schemas = sql_coverage.read_schema(SCHEMA.read_text(encoding="utf-8"))
    text = path.read_text(encoding="utf-8").strip().rstrip(";")
    outcome = sql_coverage.run(spark, schemas, text, batches=2)
    assert outcome.kind == "equal", outcome
