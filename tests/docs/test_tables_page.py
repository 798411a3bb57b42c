"""The page of performance equals the output of benchmarks/tables.py for the measured files."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "benchmarks/tables.py"


def test_page_is_made_of_the_results():
    spec = importlib.util.spec_from_file_location("performance_tables", PROGRAM)
    tables = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = tables
    spec.loader.exec_module(tables)
    text = tables.PAGE.read_text(encoding="utf-8")
    assert text == tables.page(), "run  python benchmarks/tables.py"
    # A wrong path of keys would make an empty column.
    for table in tables.TABLES:
        rows = [line.split("|")[1:-1] for line in tables.section(table).splitlines()
                if line.startswith("|")][2:]
        assert rows and all(any(cell.strip() for cell in column) for column in zip(*rows))
