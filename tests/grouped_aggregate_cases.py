"""Each aggregate in each kind of groups, over each type: an hour on two cores.

    ci/test tests/grouped_aggregate_cases.py

tests/operators/test_grouped_aggregates.py has the programs, and runs a few cases.
"""

import pytest
from test_grouped_aggregates import GROUPS, TYPES, check


@pytest.mark.parametrize("nullable", [False, True], ids=["no nulls", "nulls"])
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("kind", TYPES)
def test_every_aggregate_in_every_kind_of_groups(spark, kind, groups, nullable):
    check(spark, kind, groups, nullable)
