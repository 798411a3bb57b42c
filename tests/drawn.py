"""The tests that `ci/prove` draws, their budget, and the examples that failed once.

    the cases of slice 0, …, slice 19  =  all slow and left-out cases but campaigns, each once
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

SLICES = 20
#: Files whose slow tests take more than five minutes: only `ci/prove --all` runs them.
CAMPAIGNS = {"test_damage", "test_durability", "test_nightly_jobs", "test_faults"}
#: Lines of a node id, a seed and a number of examples, with tabs. Each default run has them.
FAILED = Path(__file__).with_name("failed_examples.txt")
PLAN = os.environ.get("PYSPARK_DIFF_PROVE", "")
DEADLINE = float(os.environ.get("PYSPARK_DIFF_DEADLINE", "inf"))
SEED = int(os.environ.get("PYSPARK_DIFF_SEED", "0"))


def slice_of(nodeid: str) -> int:
    return zlib.crc32(nodeid.encode()) % SLICES


def failed_examples(path: Path = FAILED) -> dict[str, tuple[int, int]]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    parts = (line.split("\t") for line in lines if line.strip() and not line.startswith("#"))
    return {name: (int(seed), int(examples)) for name, seed, examples in parts}


def note_failure(name: str, seed: int, examples: int, path: Path = FAILED) -> None:
    if name not in failed_examples(path):
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{name}\t{seed}\t{examples}\n")


def is_property(item: Any) -> bool:
    return hasattr(getattr(item, "obj", None), "hypothesis")


def is_drawn(item: pytest.Item, plan: str) -> bool:
    slow = item.get_closest_marker("slow") is not None
    if plan == "all":
        return slow or is_property(item)
    if slow and item.path.stem in CAMPAIGNS and not item.get_closest_marker("left_out"):
        return False
    return slice_of(item.nodeid) == int(plan) if slow else is_property(item)


def draw(items: list[pytest.Item], config: pytest.Config, plan: str = PLAN) -> None:
    """Keep the drawn items."""
    if plan:
        config.hook.pytest_deselected(items=[item for item in items if not is_drawn(item, plan)])
        items[:] = [item for item in items if is_drawn(item, plan)]


def keep_failed(items: Iterable[Any]) -> set[str]:
    """The node ids that every default run has."""
    return {item.nodeid for item in items} & set(failed_examples())


class Budget:
    """Skips at the deadline, and notes failures.

    A test that runs goes on past the deadline: an exception from outside, within a call of the JVM,
    would leave a broken connection to all tests after it.
    """

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Any:
        if time.time() > DEADLINE:
            item.add_marker(pytest.mark.skip(reason="budget"))
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: Any) -> Any:
        try:
            return (yield)
        except (Exception, pytest.fail.Exception):
            examples = getattr(item.obj, "_hypothesis_internal_use_settings", settings())
            note_failure(item.nodeid, SEED, examples.max_examples)
            raise


class Repeat:
    """Gives a test that failed once its seed again."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: Any) -> Any:
        known = failed_examples().get(item.nodeid)
        if known and is_property(item):
            function = getattr(item.obj, "__func__", item.obj)
            function._hypothesis_internal_use_seed = known[0]
            function._hypothesis_internal_use_settings = settings(
                function._hypothesis_internal_use_settings, max_examples=known[1])
        return (yield)


def register(config: pytest.Config) -> None:
    config.pluginmanager.register(Budget() if PLAN else Repeat())
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        # The runs of pytest that tests start are no part of the draw.
        os.environ.pop("PYSPARK_DIFF_PROVE", None)
