"""The notebooks of the examples run, cell by cell, in one session, and show what is so.

tests/delta_cases.py runs the one that needs a Spark that knows Delta.
"""

from __future__ import annotations

from snippets import run_notebook


def test_first_steps(spark):
    first, corrected, changed = run_notebook("first_steps")
    assert first == [("north", 5), ("south", 7)]
    assert corrected == [("north", 8), ("south", 7)]
    assert changed == [("north", 5, 1, -1), ("north", 8, 1, 1)]


def test_graphs_and_loops(spark):
    hops, cut, parts = run_notebook("graphs_and_loops")
    assert hops == [(node, node - 1) for node in range(1, 7)]
    assert cut == [(node, node - 1, 1, -1) for node in (4, 5, 6)]
    assert parts == [(1, 3), (4, 3), (10, 3)]
