"""Delta tables that other writers change, each kind of change in a Spark of its own.

The default run has a few of them in tests/test_delta.py.
"""

from __future__ import annotations

import pytest
from own_spark import names_of, outcomes_of
from test_delta import HERE, JARS

FILE = HERE / "delta_change_cases.py"
GROUPS = "rows", "maintained", "altered", "replaced"
CHANGES = "test_a_table_that_others_change"
NAMES = [
    *(f"{CHANGES}[{group}]" for group in GROUPS),
    *(name for param in names_of(FILE) for name in getattr(param, "values", []) if name != CHANGES),
]
pytestmark = [
    pytest.mark.classic_only("starts a Spark of its own that knows Delta"), pytest.mark.slow
]


@pytest.mark.parametrize("name", NAMES)
def test_case(tmp_path, name):
    outcomes = outcomes_of({name: FILE}, tmp_path, {"DELTA_JARS": str(JARS)})
    outcome = outcomes[name.partition("[")[0]]
    assert outcome == "", outcome
