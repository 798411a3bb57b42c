"""Delta tables that other writers change, or of all types, each test in a Spark of its own.

The default run has a few of them in tests/connectors/test_delta.py.
"""

from __future__ import annotations

import pytest
from own_spark import names_of, outcomes_of
from test_delta import HERE, JARS

GROUPS = "rows", "maintained", "altered", "replaced"
CHANGES = "test_a_table_that_others_change"
FILES = {
    name: HERE / f"{file}.py"
    for file in (
        "delta_change_cases", "delta_type_cases", "delta_feature_cases", "delta_property_cases")
    for param in names_of(HERE / f"{file}.py") for name in getattr(param, "values", [])
}
NAMES = [*(f"{CHANGES}[{group}]" for group in GROUPS), *(name for name in FILES if name != CHANGES)]
pytestmark = [
    pytest.mark.classic_only("starts a Spark of its own that knows Delta"), pytest.mark.slow
]


@pytest.mark.parametrize("name", NAMES)
def test_case(tmp_path, name):
    test = name.partition("[")[0]
    outcome = outcomes_of({name: FILES[test]}, tmp_path, {"DELTA_JARS": str(JARS)})[test]
    assert outcome == "", outcome
