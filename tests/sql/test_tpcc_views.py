"""Views over the tables of TPC-C: each equals plain Spark's answer while rows come and go."""

from __future__ import annotations

from pathlib import Path

import pytest
import sql_coverage

FOLDER = Path(__file__).parents[1] / "sql" / "tpcc"
SCHEMAS = sql_coverage.read_schema((FOLDER.parent / "tpcc.sql").read_text(encoding="utf-8"))
VIEWS = sorted(FOLDER.glob("*.sql"))


def test_there_are_views_of_all_tables():
    texts = " ".join(view.read_text(encoding="utf-8") for view in VIEWS)
    assert len(VIEWS) >= 60 and len(SCHEMAS) == 9
    assert all(name in texts for name in SCHEMAS)


@pytest.mark.parametrize("view", [
    pytest.param(view, id=view.stem, marks=() if number % 6 == 0 else pytest.mark.slow)
    for number, view in enumerate(VIEWS)
])
def test_a_view_equals_plain_spark(spark, view):
    text = view.read_text(encoding="utf-8")
    outcome = sql_coverage.run(spark, SCHEMAS, text, batches=2, rows=20)
    assert outcome.kind == "equal", outcome
