"""The plans of the examples: the program of each, in a dataflow of its own, on a session.

tests/docs/test_example_plans.py builds them on the session of the tests, and ci/databricks over
Connect, with the clients of Databricks.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from snippets import run_notebook

from pyspark_diff import Dataflow, DiffFrame

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
#: Builds the plan of an example on a session; its files go into a folder.
Plan = Callable[[Any, Path], None]


def load(path: str) -> ModuleType:
    """The module of an example, which finds its neighbours as in its own process."""
    file = EXAMPLES / path
    with import_path(EXAMPLES, file.parent):
        name = "example_" + re.sub(r"\W", "_", path.removesuffix(".py"))
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


@contextmanager
def import_path(*folders: Path):
    """Let imports look into some folders first."""
    before = list(sys.path)
    sys.path[:0] = map(str, folders)
    try:
        yield
    finally:
        sys.path[:] = before


def build(spark: Any, folder: Path, program: Callable[[Dataflow], Any]) -> None:
    """Define a program, keep its answers, explain the plan, and run a step without a row."""
    with Dataflow(spark, root=str(folder), buckets=2) as flow:
        answers = program(flow)
        frames: Iterable[DiffFrame] = answers if isinstance(answers, tuple) else (answers,)
        for number, frame in enumerate(frames):
            frame.keep(f"answer {number}")
        assert len(str(flow.explain()).splitlines()) > 1
        flow.advance_to(1)
        # An aggregate without groups has a row.
        assert len(flow[f"answer {number}"].at().take(2)) < 2


def plan(path: str, name: str = "program") -> Plan:
    """The plan of a function of an example that defines inputs and returns its answers."""
    return lambda spark, folder: build(spark, folder, getattr(load(path), name))


def skip_level(spark: Any, folder: Path) -> None:
    module = load("skip_level.py")
    build(spark, folder, lambda flow: module.questions(flow, module.program(flow)))


def pipeline(spark: Any, folder: Path) -> None:
    module = load("pipelines/night.py")
    store = str(folder / "store")
    with Dataflow.open(store, lambda flow: module.program(flow, store), spark=spark) as flow:
        assert "clicks" in str(flow.explain())


def main(path: str, *runs: tuple[str, ...]) -> Plan:
    """A run of the whole example for each list of arguments; it compares its own answers."""
    def run(spark: Any, folder: Path) -> None:
        module = load(path)
        for arguments in runs:
            module.main([*arguments, "--folder", str(folder)])

    return run


def schemas(text: str) -> dict[str, str]:
    """The columns of each CREATE TABLE."""
    return {
        name: " ".join(columns.split())
        for name, columns in re.findall(r"CREATE TABLE (\w+) \(\n(.*?)\n\);", text, re.DOTALL)
    }


def tpch(number: int) -> Plan:
    """The plan of a query of TPC-H."""
    def run(spark: Any, folder: Path) -> None:
        there = schemas((ROOT / "tests" / "sql" / "tpch.sql").read_text(encoding="utf-8"))
        query = load(f"tpch/q{number:02}.py").query
        tables = query.__code__.co_varnames[:query.__code__.co_argcount]
        build(spark, folder, lambda flow: query(
            *(flow.input(name, there[name])[0] for name in tables)))

    return run


#: The views of examples/medallion that other views read, each before its readers.
SHARED = ("order_lines", "weekly", "sold", "current_stock")


def medallion(spark: Any, folder: Path) -> None:
    with import_path(ROOT / "benchmarks"):
        tables = importlib.import_module("medallion").TABLES
    paths = {path.name.split(".")[1]: path for path in EXAMPLES.glob("medallion/views/*.sql")}

    def program(flow: Dataflow) -> tuple[DiffFrame, ...]:
        frames = {"hours": flow.input("hours", "hour timestamp, is_recent boolean", key="hour")[0]}
        for name, (schema, key, *_) in tables.items():
            columns = schema.replace("timestamp_ntz", "timestamp")
            frames[name] = flow.input(name, columns, key=key)[0]
        for name in (*SHARED, *sorted(paths.keys() - set(SHARED))):
            query = re.sub(r"\b(bronze|gold)\.", "", paths[name].read_text(encoding="utf-8"))
            frames[name] = flow.sql(query).keep(name)
        return tuple(frames[name] for name in paths)

    build(spark, folder, program)


def notebook(name: str) -> Plan:
    """A run of all cells of a notebook."""
    return lambda spark, folder: assert_shown(run_notebook(name))


def assert_shown(frames: list[list[tuple]]) -> None:
    assert frames and all(frames)


#: By file: the plan of the example.
PLANS: dict[str, Plan] = {
    "bfs.py": plan("bfs.py"),
    "components.py": plan("components.py"),
    "degrees.py": plan("degrees.py"),
    "degrees.py --flights": plan("degrees.py", "flights_program"),
    "k_core.py": plan("k_core.py"),
    "org_chart.py": plan("org_chart.py"),
    "reachability.py": plan("reachability.py"),
    "skip_level.py": plan("skip_level.py"),
    "skip_level.py --interactive": skip_level,
    "pipelines/night.py": pipeline,
    "medallion/views": medallion,
    **{f"tpch/q{number:02}.py": tpch(number) for number in range(1, 23)},
}

#: Examples that run as a whole on a session without a JVM, without and with Delta.
RUNS: dict[str, Plan] = {
    "nightly_graph.py": main("nightly_graph.py", ("--night", "0"), ("--night", "1")),
    "entity_resolution/resolve.py": main("entity_resolution/resolve.py", ()),
    "notebooks/first_steps.py": notebook("first_steps"),
    "notebooks/graphs_and_loops.py": notebook("graphs_and_loops"),
}
DELTA_RUNS: dict[str, Plan] = {
    "nightly_view.py": main("nightly_view.py", *(
        ("--night", str(night), "--sales", "500") for night in range(2))),
    "notebooks/nightly_delta.py": notebook("nightly_delta"),
}

#: Files of the examples that have no plan over Connect, each with the reason.
WITHOUT: dict[str, str] = {
    "medallion/run.py": "a folder of views orders its queries with the parser of the JVM; "
                        "medallion/views has their plans",
    "pipelines/definitions/clicks.py": "defines no dataflow: spark-pipelines runs it with the "
                                       "data source",
    "entity_resolution/identifiers.py": "defines no dataflow: a sink of resolve.py",
    "tpch/run.py": "feeds the queries, whose plans are those of their files",
    "tpch/tpch_stream.py": "defines no dataflow: the stream of the tables",
}
