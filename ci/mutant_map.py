"""A plugin of pytest for ci/mutants: which tests run a line, and how long each takes.

Compiled code is not traced. Instead each call of a kernel counts for all lines of the kernel and of
the compiled functions that it calls::

    tests of a line  =  tests that ran it  +  tests that called a kernel that contains it
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest

ROOMS = ("kernels", "operators", "engine", "trace")
#: Tests of the source's text or of a process of their own: they say nothing about an answer.
NO_PROOF = {
    "test_architecture", "test_docs", "test_examples", "test_layers", "test_messages",
    "test_notebooks", "test_prove", "test_readme", "test_scala", "test_tables_page", "test_typing",
}
PACKAGE = Path.cwd() / "pyspark_diff"

_measured = coverage.Coverage(
    data_file=None, config_file=False, include=[str(PACKAGE / room / "*") for room in ROOMS])
_measured.start()


class Map:
    def __init__(self, path: str, deadline: float):
        self._path = Path(path)
        self._deadline = deadline
        self._seconds: dict[str, float] = {}
        self._passed: set[str] = set()
        self._kernels: dict[str, set[Any]] = {}
        self._called: set[Any] = set()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.path.stem not in NO_PROOF]
        # Tests that name a room come first, for a map that the deadline cuts short.
        named: dict[Path, int] = {}
        for path in {item.path for item in items}:
            text = path.read_text(encoding="utf-8")
            named[path] = sum(text.count(f"pyspark_diff.{room}") for room in ROOMS)
        items.sort(key=lambda item: (-named[item.path], item.path.stem))

    def pytest_sessionstart(self) -> None:
        from pyspark_diff.kernels import jit

        call = jit._call

        def count_call(kernel: Any, *arguments: Any) -> Any:
            self._called.add(kernel)
            return call(kernel, *arguments)

        jit._call = count_call  # type: ignore[assignment]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        if time.time() > self._deadline:
            item.session.shouldstop = "the map ends at its deadline"
        _measured.switch_context(item.nodeid)
        self._called = set()
        try:
            return (yield)
        finally:
            self._kernels[item.nodeid] = self._called
            _measured.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self._seconds[report.nodeid] = report.duration
            if report.passed:
                self._passed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        _measured.stop()
        data = _measured.get_data()
        lines: dict[str, dict[int, set[str]]] = {}
        for file in data.measured_files():
            name = os.path.relpath(file, PACKAGE)
            for line, contexts in data.contexts_by_lineno(file).items():
                lines.setdefault(name, {})[line] = set(contexts) & self._passed
        for test in self._passed:
            for code in compiled_code(self._kernels[test]):
                name = os.path.relpath(code.co_filename, PACKAGE)
                for _, _, line in code.co_lines():
                    lines.setdefault(name, {}).setdefault(line or 0, set()).add(test)
        tests = sorted(self._passed)
        number = {test: index for index, test in enumerate(tests)}
        self._path.write_text(json.dumps({
            "tests": tests, "seconds": [round(self._seconds[test], 3) for test in tests],
            "lines": {
                name: {str(line): sorted(number[test] for test in tests_of_line)
                       for line, tests_of_line in sorted(of_file.items())}
                for name, of_file in sorted(lines.items())},
        }), encoding="utf-8")


def compiled_code(kernels: set[Any]) -> Iterator[Any]:
    """The code of kernels and of the compiled functions that they call, however indirectly."""
    waiting, visited = list(kernels), set()
    while waiting:
        function = waiting.pop().py_func
        if function in visited:
            continue
        visited.add(function)
        code = function.__code__
        yield code
        values = [function.__globals__.get(name) for name in code.co_names]
        values += [cell.cell_contents for cell in function.__closure__ or ()]
        waiting += [value for value in values if hasattr(value, "py_func")]


def pytest_configure(config: pytest.Config) -> None:
    path = os.environ["PYSPARK_DIFF_MAP"]
    deadline = float(os.environ.get("PYSPARK_DIFF_MAP_DEADLINE", "inf"))
    config.pluginmanager.register(Map(path, deadline), "mutant map")
