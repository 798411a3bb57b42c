"""Delta tables as sources and sinks: the cases of tests/delta_*.py, in a Spark of their own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from own_spark import names_of, outcomes_of

HERE = Path(__file__).parents[1]
CASES = {
    str(getattr(case, "values", [case])[0]): (case, HERE / f"{file}.py")
    for file in (
        "delta_cases", "delta_names_cases", "delta_change_cases", "delta_unrecorded_cases",
        "delta_history_cases", "delta_property_cases",
    )
    for case in names_of(HERE / f"{file}.py")
    # tests/connectors/test_delta_changes.py has the slow cases.
    if file not in ("delta_change_cases", "delta_property_cases") or isinstance(case, str)
}
#: The folder of ci/delta_jars.
JARS = Path(os.environ.get("DELTA_JARS") or Path(sys.prefix) / "delta")
pytestmark = pytest.mark.classic_only("starts a Spark of its own that knows Delta")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory, request):
    names = [item.callspec.params["name"] for item in request.session.items
             if item.path == request.path]
    assert list(JARS.glob("delta-spark_*.jar")), f"no jars in {JARS}: run ci/delta_jars"
    return outcomes_of(
        {name: CASES[name][1] for name in names}, tmp_path_factory.mktemp("delta"),
        {"DELTA_JARS": str(JARS)},
    )


@pytest.mark.parametrize("name", [case for case, _ in CASES.values()])
def test_case(outcomes, name):
    assert outcomes[name] == "", outcomes[name]
