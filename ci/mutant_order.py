"""A plugin of pytest for ci/mutants: the order of the command, but tests without Spark first."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import Phase, settings


def pytest_configure() -> None:
    # The smallest example that fails with a mutant has no reader.
    settings.register_profile("mutants", settings.default, phases=[
        phase for phase in Phase if phase is not Phase.shrink])
    settings.load_profile("mutants")
    from pyspark_diff import thresholds

    # A changed kernel is compiled again, which a test of logged lines must not meet.
    thresholds.current = replace(thresholds.current, compile_log_seconds=1e6)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    place = {name: number for number, name in enumerate(config.args)}
    items.sort(key=lambda item: (
        "spark" in getattr(item, "fixturenames", ()), place.get(item.nodeid, -1)))
