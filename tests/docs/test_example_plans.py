"""Each example has a plan that is built without its data, or a reason to have none."""

import pytest
from example_plans import DELTA_RUNS, EXAMPLES, PLANS, RUNS, WITHOUT


def test_each_example_has_a_plan_or_a_reason():
    files = {str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.py")}
    plans = {name.split()[0] for name in {**PLANS, **RUNS, **DELTA_RUNS}}
    assert files == plans - {"medallion/views"} | set(WITHOUT)
    assert not plans & set(WITHOUT)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_the_plan_is_built(spark, tmp_path, name):
    PLANS[name](spark, tmp_path)
