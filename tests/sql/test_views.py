"""Views over tables: the cases of tests/view_cases.py, in a Spark of their own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from own_spark import names_of, outcomes_of

CASES = Path(__file__).parents[1] / "view_cases.py"
#: The folder of ci/delta_jars.
JARS = Path(os.environ.get("DELTA_JARS") or Path(sys.prefix) / "delta")
pytestmark = pytest.mark.classic_only("starts a Spark of its own that knows Delta")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory, request):
    names = [item.callspec.params["name"] for item in request.session.items
             if item.path == request.path]
    assert list(JARS.glob("delta-spark_*.jar")), f"no jars in {JARS}: run ci/delta_jars"
    return outcomes_of(
        dict.fromkeys(names, CASES), tmp_path_factory.mktemp("views"), {"DELTA_JARS": str(JARS)}
    )


@pytest.mark.parametrize("name", names_of(CASES))
def test_case(outcomes, name):
    assert outcomes[name] == "", outcomes[name]
