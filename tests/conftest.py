"""One Spark session for the whole run, and the profile of the property tests.

With PYSPARK_DIFF_CONNECT=1 the session is one of Spark Connect, with a server of its own, and tests
marked ``classic_only("why")`` are left out.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import connect_server
import drawn
import pytest
from hypothesis import Phase, settings
from py4j.java_gateway import JavaClass, JVMView
from pyspark.sql import SparkSession

from pyspark_diff import thresholds
from pyspark_diff.spark.session import session
from pyspark_diff.thresholds import Thresholds

settings.register_profile(
    "ci",
    # The first example of a test may have to compile a kernel or to start a worker.
    deadline=None,
    # The same examples in every run, so that a failure is a change and never luck.
    derandomize=not drawn.PLAN,
    max_examples=int(os.environ.get("PYSPARK_DIFF_EXAMPLES", "3")),
    # How to repeat a failure, also from a log.
    print_blob=True,
    # Each call to a server takes so long that shrinking a failure would never end.
    phases=[phase for phase in Phase if not (connect_server.WANTED and phase is Phase.shrink)],
)
settings.load_profile("ci")

#: The folder of the shared programs and oracles, and those of the tests, one for each subject.
FOLDERS = [
    Path(__file__).parent,
    *sorted({path.parent for path in Path(__file__).parent.glob("*/test_*.py")}),
]
# A test may use the program of another subject.
sys.path.extend(str(folder) for folder in FOLDERS if str(folder) not in sys.path)
# A function of a test module reaches the workers by its name, so they must find the module.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [*map(str, FOLDERS), *filter(None, [os.environ.get("PYTHONPATH")])]
)
# Tests plan thousands of small queries. An optimising compiler of the JVM would cost one third to
# one half of the processor time of a test, for code that runs a few times.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
# A machine whose own name does not resolve could otherwise not start Spark.
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

if connect_server.WANTED:
    _start = subprocess.Popen.__init__

    def _start_no_client(process: Any, *how: Any, env: Any = None, **more: Any) -> None:
        _start(process, *how, env=connect_server.no_client(env or os.environ), **more)

    # A process that a test starts chooses its own kind of session.
    subprocess.Popen.__init__ = _start_no_client  # type: ignore[method-assign]

_look_up = JVMView.__getattr__


def _look_up_once(jvm: JVMView, name: str) -> object:
    result = _look_up(jvm, name)
    if isinstance(result, JavaClass):
        # As an attribute of the view: later look-ups do not ask the JVM.
        setattr(jvm, name, result)
    return result


# The meaning of a name in the JVM never changes, but PySpark asks at each call of a function. The
# JVM searches 300 jars for a short name such as `PythonUtils`, package by package: a third of the
# processor time of all tests.
JVMView.__getattr__ = _look_up_once

#: The files that take more than ten seconds of a processor or of waiting, the longest first.
LONGEST = [
    "test_sql", "test_interval_joins", "test_delta", "test_views", "test_data_source",
    "test_support_matrix", "test_tables", "test_joins", "test_growth", "test_types", "test_windows",
    "test_product_times", "test_sliding", "test_aggregates", "test_quantiles", "test_cogroup",
    "test_assertions", "test_asof", "test_motifs", "test_bad_input", "test_graphx",
    "test_memory_bounds", "test_combined_aggregates", "test_discard", "test_cluster", "test_tpch",
    "test_live", "test_bridge", "test_plain_columns", "test_name_case", "test_background",
    "test_nightly_jobs", "test_sources", "test_catch_up", "test_examples", "test_iterate",
    "test_graphs", "test_fused", "test_parquet", "test_logging", "test_empty_collections",
    "test_handles",
    "test_interrupts", "test_many_rows", "test_damage", "test_durability", "test_blueprint",
    "test_stored_cases", "test_store_edges", "test_durable", "test_sliding_structs",
    "test_reopening", "test_law", "test_pyspark_names", "test_computed", "test_commit",
    "test_doctests", "test_step", "test_storage", "test_columns", "test_session",
    "test_contract", "test_faults", "test_law_sql", "test_keyed_inputs", "test_constants",
    "test_kernel_cache", "test_arrangements", "test_typing", "test_commits", "test_vacuum",
    "test_changed_inputs", "test_float_keys", "test_graph_ids", "test_stars",
]


#: Long files with many similar cases: by default one in this many cases of a parametrized test
#: runs, and the other ones run with ``-m slow``.
SAMPLED = {
    "test_aggregate_functions": 6, "test_aggregates": 24, "test_arrangements": 2, "test_asof": 2,
    "test_assertions": 2, "test_background": 6, "test_bad_input": 12, "test_blueprint": 3,
    "test_catch_up": 4, "test_cogroup": 3, "test_columns": 6, "test_combined_aggregates": 8,
    "test_commit": 3, "test_commits": 3, "test_computed": 5, "test_constants": 2,
    "test_contract": 3, "test_damage": 4, "test_data_source": 20, "test_delta": 18,
    "test_delta_files": 2, "test_discard": 8, "test_docs": 4, "test_doctests": 8,
    "test_driver_rows": 2, "test_durability": 2, "test_empty_collections": 4, "test_explain": 2,
    "test_faults": 2, "test_float_keys": 4, "test_function_names": 90, "test_function_registry": 24,
    "test_fused": 2, "test_graph_ids": 6, "test_graphs": 18, "test_graphx": 4, "test_growth": 5,
    "test_handles": 10, "test_idle": 3, "test_indexed_loop": 3, "test_interval_joins": 10,
    "test_iterate": 8, "test_joins": 30, "test_kernel_cache": 4, "test_loop_programs": 4,
    "test_many_rows": 3, "test_memory_bounds": 8, "test_motifs": 3, "test_nightly_jobs": 2,
    "test_other_functions": 8, "test_pandas_functions": 3, "test_parquet": 5, "test_pipes": 4,
    "test_plain_columns": 2, "test_product_times": 4, "test_pruning": 13, "test_pyspark_names": 6,
    "test_quantiles": 4, "test_query_frames": 30, "test_query_joins": 4, "test_query_readers": 3,
    "test_ranges": 4, "test_recovery": 4, "test_remedies": 3, "test_session_queries": 6,
    "test_session_windows": 20, "test_settings": 4, "test_sinks": 3, "test_skew": 60,
    "test_sliding": 3, "test_sliding_structs": 2, "test_source_columns": 4, "test_source_names": 10,
    "test_sources": 14, "test_sql": 30, "test_step": 6, "test_storage": 3, "test_store_edges": 2,
    "test_tables": 18, "test_text_reader": 16, "test_tpcc_views": 4, "test_tpch": 4,
    "test_types": 20, "test_user_programs": 4, "test_views": 12, "test_windows": 12,
}


#: Lines of a file and a test, without their cases, that the default run leaves out.
LONG_TESTS = Path(__file__).with_name("long_tests.txt")


def long_tests() -> frozenset[str]:
    """The names in `LONG_TESTS`."""
    lines = LONG_TESTS.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def leave_out_cases(items: list[pytest.Item]) -> None:
    """Mark most cases of sampled files, and all long tests, as slow.

    The name of a test decides which of its cases run: of a pair such as two runners one test runs
    the first and another one the second.
    """
    failed = drawn.keep_failed(items)
    too_long = long_tests()
    for item in items:
        if item.nodeid in failed:  # each default run repeats it, also a slow one
            item.own_markers = [mark for mark in item.own_markers if mark.name != "slow"]
        elif f"{item.path.stem}::{item.name.partition('[')[0]}" in too_long:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.left_out)
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.path.stem in SAMPLED and not item.get_closest_marker("slow"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, named in cases.items():
        stride = min(SAMPLED[named[0].path.stem], len(named))
        for number, item in enumerate(named):
            if item.nodeid in failed:
                continue
            if number % stride != zlib.crc32(name.encode()) % stride:
                item.add_marker(pytest.mark.slow)
                item.add_marker(pytest.mark.left_out)


#: The prefix of the reason if a test is skipped over Connect.
CLASSIC_ONLY = "classic only: "


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "classic_only(reason): cannot be so over Spark Connect, and why; left out there"
    )
    drawn.register(config)


def leave_out_classic_ones(items: list[pytest.Item]) -> None:
    """Skip tests that need a classic session over Connect; each marker has a reason."""
    for item in items:
        for marker in item.iter_markers("classic_only"):
            (reason,) = marker.args if len(marker.args) == 1 else ("",)
            if not isinstance(reason, str) or not reason.strip():
                raise pytest.UsageError(f"{item.nodeid}: classic_only needs a reason")
            if connect_server.WANTED:
                item.add_marker(pytest.mark.skip(reason=CLASSIC_ONLY + reason))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Which tests were left out over Connect, and why."""
    reasons: dict[str, list[str]] = {}
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        _, prefix, why = reason.partition(CLASSIC_ONLY)
        if prefix:
            reasons.setdefault(why, []).append(report.nodeid)
    for why, tests in reasons.items():
        terminalreporter.section(f"{CLASSIC_ONLY}{why} ({len(tests)})", sep="-")
        for name in sorted({test.partition("[")[0] for test in tests}):
            terminalreporter.line(name)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    """The longest files come first, so that the processes of a run end at about the same time."""
    leave_out_cases(items)
    leave_out_classic_ones(items)
    drawn.draw(items, config)
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONGEST)))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session. A start takes seconds, so all tests share it and undo their changes."""
    folder = tmp_path_factory.mktemp("spark")
    if connect_server.WANTED:
        with connect_server.server(folder) as (address, _):
            spark = SparkSession.builder.remote(address).getOrCreate()
            yield spark
            spark.stop()
        return
    spark = session(
        "pyspark_diff tests",
        # Two, so that partitions can go wrong; not more, so that every machine runs the same plans.
        master="local[2]",
        memory="2g",
        conf={
            "spark.sql.shuffle.partitions": 2,
            "spark.ui.enabled": False,
            # Nothing is left in the working directory.
            "spark.local.dir": str(folder / "local"),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        },
    )
    # Tests provoke failures on purpose; the warnings about them would bury a real one.
    spark.sparkContext.setLogLevel("ERROR")
    yield spark
    spark.stop()


@pytest.fixture
def use_thresholds() -> Iterator[Callable[..., Thresholds]]:
    """Use other thresholds until the test ends: ``use_thresholds(merge_rows_min=0)``."""
    with ExitStack() as stack:
        yield lambda **values: stack.enter_context(thresholds.using(**values))


@pytest.fixture
def another(spark: SparkSession) -> Iterator[SparkSession]:
    """A second session of the same Spark, with settings of its own."""
    yield connect_server.session_beside(spark)
    # A new frame makes its session the active one, and other tests ask for the active session.
    spark.createDataFrame([], "a int")
