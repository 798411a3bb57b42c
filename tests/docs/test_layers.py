"""The rooms of the package: each file is in a layer, and imports only from the layers below.

    a module of room A imports a module of room B  ⟹  A = B, or level(A) > level(B)

No module imports itself through other modules. All imports in a file count, also those for type
checking. All files are in the table, so that the table stays true.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

import pytest

import pyspark_diff

PACKAGE = Path(pyspark_diff.__file__).parent

#: The files of each room. The rooms are in the order of the data flow.
ROOMS: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "times": frozenset(),
    "reasons": frozenset(),
    "fallbacks": frozenset(),
    "thresholds": frozenset(),
    "kernels": frozenset(
        "accumulators arrow_expression blocks bucketed buffers cache calendar candidates "
        "consolidate coordinates decimals diff_vectors double_word equality few grouping "
        "hashing history indexed_join indexed_replay into_diff ipc jit join key_index "
        "key_ranges key_replay layout lookup machine_memory memory merge merge_join merge_sort "
        "moments murmur3 order overflow pauses quantiles quotients ranking replay results "
        "search split standing sums tallies time_order top_k updates warm_up window_frames "
        "window_functions window_reach window_replay window_rows windows xxhash64".split()
    ),
    "spark": frozenset(
        "bridge calls causes data_types delta delta_changed_files delta_commits delta_files doctor "
        "expression_parts frames iceberg jobs jvm jvm_context jvm_tables mentions normal_form "
        "one_row own_session pandas_calls pandas_frames parquet_footer parquet_plan remote_plans "
        "replaced schema sent session settings stars stored_schema tables taken task_jobs "
        "user_functions values version window_calls window_text zone_use".split()
    ),
    "expressions": frozenset(
        "aggregate_forms aggregate_functions aggregates analysis bands check comparisons compiled "
        "conditions handles intervals moment_functions names record_functions tree".split()
    ),
    "trace": frozenset(
        "arrangement batch cache commits credentials held_batches inbox kept listing local_objects "
        "locked_folders manifest objects paths read_holds remote_objects roots skew spine storage "
        "stored_traces unity vacuum volume_objects".split()
    ),
    "operators": frozenset(
        "aggregate arrange blocks by_self checked codes collate consolidate contract count cross "
        "due imported inspect join linear loop node projection ranges reduce threshold top_k "
        "twice upsert window".split()
    ),
    "runners": frozenset(
        "bilinear bucket feed fused local numbers parquet pieces read replay spark stop tasks "
        "threads view work".split()
    ),
    "engine": frozenset(
        "blueprint changes compaction context costs demand descent description durable "
        "evaluation explanation fingerprint fusion graph growth idle indexed_loop live loop "
        "loop_batches loop_plan lowering oscillation past pending plan program progress rewind "
        "stalls state step subgraph traces".split()
    ),
    "dataflow": frozenset(
        "background blame catalog clock coercion dataflow discarding durable explanation "
        "feeding hold input_session inputs keyed_session opening outputs parts plot probe "
        "product_session report_page sink source staleness stepping stored struct_columns tables "
        "reporting times "
        "whole_history".split()
    ),
    "frame": frozenset(
        "aggregation as_pyspark asof base cogrouped collection comparisons computed_aggregates "
        "constants dataflow diffframe grouped history html interval_join join_plan joins keyed "
        "keys linear loops multiset places reading row_wise session_windows sliding tables "
        "windows".split()
    ),
    "graphs": frozenset(
        "bfs clustering connected_components degrees edges find graph_diff graph_ranks "
        "graph_tables independent_set k_core label_propagation neighbor_paths neighborhood_labels "
        "neighbours pagerank path_rows paths patterns pregel propagation reachability "
        "shortest_paths strongly_connected_components transitive_closure triangles "
        "vertex_program".split()
    ),
    "sources": frozenset(
        "delta files iceberg inbox logs snapshots streams tables versioned".split()
    ),
    "sinks": frozenset("delta delta_history folders foreach".split()),
    "data_source": frozenset("changes inbox_writer opened options scan source stream".split()),
    "query": frozenset((
        "clock costs dataflow form frame_columns frame_groups frame_reader frame_texts joins "
        "pairs placeholder plan_expressions plan_limits plan_names plan_reader pruning "
        "recursion refusals sessions shapes subqueries text_calls text_columns text_expressions "
        "text_fields text_groups text_intervals text_limits text_names text_parser text_pipes "
        "text_pivots text_reader text_subqueries text_tables text_values translation"
    ).split()),
    "views": frozenset(
        "columns forecast folder group keys materialized program record reports target".split()
    ),
    "__init__": frozenset(),
    "__main__": frozenset(),
}
#: The level of each room. The first five rooms share level 0.
LEVELS = {room: max(number - 4, 0) for number, room in enumerate(ROOMS)}

#: The rooms that import only some of the rooms below.
REACHES: dict[str, frozenset[str]] = {
    "trace": frozenset({"errors", "times", "fallbacks", "thresholds", "kernels", "spark"}),
    "graphs": frozenset({"errors", "thresholds", "spark", "expressions", "frame"}),
    "sources": frozenset({"errors", "fallbacks", "thresholds", "spark", "trace", "dataflow"}),
    "sinks": frozenset({"errors", "kernels", "spark", "dataflow"}),
    "data_source": frozenset({"errors", "times", "thresholds", "kernels", "spark", "trace"}),
    "query": frozenset({"errors", "spark", "dataflow", "frame", "sources"}),
    "views": frozenset({
        "errors", "spark", "trace", "dataflow", "frame", "query", "sources", "sinks",
    }),
}

#: The libraries that a level may import, next to the standard library.
LIBRARIES = {
    0: frozenset(),
    1: frozenset({"numba", "numpy", "pyarrow"}),
    2: frozenset({
        "databricks", "deltalake", "matplotlib", "numba", "numpy", "obstore", "opentelemetry",
        "pandas", "pyarrow", "pyspark", "sqlglot", "tqdm", "typing_extensions",
    }),
}

#: The only modules that call the JVM, and the names for its objects.
JVM = "spark.jvm", "spark.jvm_context", "spark.jvm_tables"
JVM_NAMES = frozenset({
    "_gateway", "_jc", "_jconf", "_jdf", "_jrdd", "_jsc", "_jsparkSession", "_jvm", "_jwrite",
})

#: The only modules that use Spark's context, its settings or RDDs, and the names for these.
#: Connect has no such objects.
CONTEXT_DOORS = frozenset({*JVM, "spark.bridge"})
CONTEXT_NAMES = frozenset({
    "RDD", "SparkConf", "SparkContext", "_active_spark_context", "_sc", "get_active_spark_context",
    "mapPartitionsWithIndex", "parallelize", "rdd", "sparkContext",
})

#: The modules that all operators share.
OPERATOR_BASES = frozenset({"operators.contract", "operators.node"})

#: Formats that can run code when they are read. State must never do so.
UNSAFE_MODULES = frozenset({"cloudpickle", "dill", "marshal", "pickle", "shelve"})
UNSAFE_CALLS = frozenset({"eval", "exec"})


def modules_of(package: Path) -> dict[str, str]:
    """Return the source of each module by its name in the package. A folder has its own name."""
    sources = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        if len(parts) > 1 and parts[-1] == "__init__":
            parts = parts[:-1]
        sources[".".join(parts)] = path.read_text(encoding="utf-8")
    return sources


def imports_of(name: str, tree: ast.AST, modules: Set[str]) -> Iterator[tuple[int, str]]:
    """Yield the line and the full name of each imported module, from all imports in the file."""
    is_folder = name == "__init__" or any(other.startswith(f"{name}.") for other in modules)
    parts = ["pyspark_diff", *(name.split(".") if name != "__init__" else [])]
    package = parts if is_folder else parts[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                # A name that a file imports from a folder may be a module of that folder.
                full = f"{base}.{alias.name}"
                is_module = full.removeprefix("pyspark_diff.") in modules
                is_module = is_module or alias.name in UNSAFE_MODULES
                yield node.lineno, full if is_module else base


def room_of(name: str) -> str | None:
    """Return the room of a module, or None if the table has no such module."""
    room, _, file = name.partition(".")
    return room if room in ROOMS and (not file or file in ROOMS[room]) else None


def wrong_import(name: str, imported: str) -> str | None:
    """Return the reason against an import, or None if the import is valid."""
    room = name.partition(".")[0]
    level = LEVELS[room]
    top = imported.partition(".")[0]
    if UNSAFE_MODULES & set(imported.split(".")):
        return "can run code that it reads"
    if top == "py4j":
        return None if name in JVM else f"only {', '.join(JVM)} talk to the JVM"
    if top != "pyspark_diff":
        known = sys.stdlib_module_names | LIBRARIES[min(level, max(LIBRARIES))]
        return None if top in known else f"is not for level {level}"
    inner = imported.partition(".")[2] or "__init__"
    there = room_of(inner)
    if there is None:
        return "is not in the table"
    if LEVELS[there] > level:
        return f"is above level {level}"
    if there != room and LEVELS[there] == level and level:
        return f"is beside it, on level {level}"
    if there != room and room in REACHES and there not in REACHES[room]:
        return f"is out of reach of {room}"
    if room == there == "operators" and name != room and inner not in OPERATOR_BASES:
        return f"operators share only {', '.join(sorted(OPERATOR_BASES))}"
    return None


def violations(name: str, source: str, modules: Set[str]) -> list[str]:
    """Return a line for each violation of this page's rules in a module."""
    if room_of(name) is None:
        return [f"{name}: not in the table of rooms"]
    tree = ast.parse(source)
    complaints = []
    for line, imported in imports_of(name, tree, modules):
        reason = wrong_import(name, imported)
        if reason is not None:
            complaints.append(f"{name}:{line}: imports {imported}, which {reason}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in UNSAFE_CALLS:
                complaints.append(f"{name}:{node.lineno}: calls {node.func.id}")
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            if not (isinstance(node.value, ast.Constant) and node.value.value is False):
                complaints.append(f"{name}:{node.value.lineno}: allows pickle")
        # A name in quotes also counts, for example in getattr(frame, "_jdf").
        used = next((
            value for field in ("attr", "id", "name", "value")
            if isinstance(value := getattr(node, field, None), str)
        ), None)
        line = getattr(node, "lineno", 0)
        if used in JVM_NAMES and name not in JVM:
            complaints.append(f"{name}:{line}: uses {used}, which only {', '.join(JVM)} may")
        if used in CONTEXT_NAMES and name not in CONTEXT_DOORS:
            complaints.append(
                f"{name}:{line}: uses {used}, which only {', '.join(sorted(CONTEXT_DOORS))} may"
            )
    return complaints


def circle_in(sources: Mapping[str, str]) -> list[str]:
    """Return a cycle of imports, or an empty list if there is none."""
    graph: dict[str, list[str]] = {}
    for name, source in sources.items():
        imported = (m.partition(".")[2] for _, m in
                    imports_of(name, ast.parse(source), sources.keys())
                    if m.startswith("pyspark_diff."))
        graph[name] = [m for m in dict.fromkeys(imported) if m in sources and m != name]
    done: set[str] = set()
    for start in graph:
        path: list[str] = []
        stack = [(start, False)]
        while stack:
            name, leaving = stack.pop()
            if leaving:
                done.add(path.pop())
            elif name in path:
                return path[path.index(name):]
            elif name not in done:
                path.append(name)
                stack.append((name, True))
                stack += [(other, False) for other in graph[name]]
    return []


SOURCES = modules_of(PACKAGE)


@pytest.mark.parametrize("name", SOURCES)
def test_module_keeps_to_its_layer(name):
    assert violations(name, SOURCES[name], SOURCES.keys()) == []


def test_every_file_of_the_table_is_there():
    files = {f"{room}.{file}" for room, names in ROOMS.items() for file in names}
    assert files | ROOMS.keys() == SOURCES.keys()


def test_nothing_imports_itself():
    assert circle_in(SOURCES) == []


@pytest.mark.parametrize("room", [room for room, files in ROOMS.items() if files])
def test_each_room_says_what_lives_there(room):
    text = ast.get_docstring(ast.parse(SOURCES[room])) or ""
    assert text.startswith(f"Level {LEVELS[room]}, ")
    for part in ("What lives here:", "May import:", "The law"):
        assert part in text


#: A module, a source, and a part of the complaint; None if the source is fine.
CASES = [
    ("times", "import math, collections.abc", None),
    ("times", "import numpy", "not for level 0"),
    ("times", "from pyspark_diff.errors import DiffError", None),
    ("times", "from .errors import DiffError", None),
    ("times", "from . import errors", None),
    ("times", "from .spark import schema", "above level 0"),
    ("times", "from pyspark_diff.spark import schema", "above level 0"),
    ("times", "from pyspark_diff import DiffFrame", "above level 0"),
    ("times", "def f():\n    import pyspark_diff", "above level 0"),
    ("kernels.merge", "import numpy as np, pyarrow.compute, numba", None),
    ("kernels.merge", "import pandas", "not for level 1"),
    ("kernels.merge", "from pyspark.sql import functions", "not for level 1"),
    ("kernels.merge", "from .split import split\nfrom ..errors import DiffError", None),
    ("kernels.merge", "from ..spark.schema import Schema", "above level 1"),
    ("kernels", "from .merge import merge", None),
    ("spark.schema", "import pyspark.sql.types as T, pandas", None),
    ("spark.schema", "import requests", "not for level 2"),
    ("spark.schema", "from pyspark_diff.trace.batch import Batch", "above level 2"),
    ("spark.schema", "if TYPE_CHECKING:\n    from ..dataflow.dataflow import Dataflow",
     "above level 2"),
    ("spark.schema", "from py4j.java_gateway import JavaObject", "only spark.jvm"),
    ("spark.schema", "frame._jdf.queryExecution()", "uses _jdf"),
    ("spark.schema", "getattr(frame, '_jdf')", "uses _jdf"),
    ("dataflow.probe", "context._jsc.sc()", "uses _jsc"),
    ("dataflow.probe", "spark.sparkContext", "uses sparkContext"),
    ("spark.session", "getattr(spark, 'sparkContext')", "uses sparkContext"),
    ("spark.session", "frame.rdd", "uses rdd"),
    ("spark.session", "from pyspark import SparkContext", "uses SparkContext"),
    ("spark.bridge", "context = spark.sparkContext", None),
    ("spark.bridge", "context._jvm", "uses _jvm"),
    ("spark.jvm", "from py4j.java_gateway import JavaObject\nspark.sparkContext._jvm", None),
    ("trace.batch", "from ..expressions.tree import Tree", "out of reach of trace"),
    ("trace.batch", "from ..spark.schema import Schema\nfrom ..times import Antichain", None),
    ("runners.local", "from ..trace.spine import Spine", None),
    ("operators.join", "from .node import Node\nfrom .contract import Kernel", None),
    ("operators.join", "from .count import count", "operators share only"),
    ("operators.join", "from . import count", "operators share only"),
    ("operators.join", "from pyspark_diff.operators import count", "operators share only"),
    ("engine.graph", "from ..operators.join import join", None),
    ("engine.graph", "from ..dataflow.dataflow import Dataflow", "above level 7"),
    ("engine.graph", "from ..frame.diffframe import DiffFrame", "above level 7"),
    ("graphs.bfs", "from ..frame.diffframe import DiffFrame", None),
    ("graphs.bfs", "from ..operators.join import join", "out of reach of graphs"),
    ("__init__", "from .frame.diffframe import DiffFrame", None),
    ("novelty", "", "not in the table"),
    ("engine.novelty", "", "not in the table"),
    ("engine.graph", "from .novelty import thing", "not in the table"),
    ("trace.storage", "import pickle", "can run code"),
    ("trace.storage", "from pyspark import cloudpickle", "can run code"),
    ("trace.storage", "from pyspark.cloudpickle import dumps", "can run code"),
    ("trace.storage", "eval('1')", "calls eval"),
    ("trace.storage", "np.load(path, allow_pickle=True)", "allows pickle"),
    ("trace.storage", "np.load(path, allow_pickle=False)", None),
]


@pytest.mark.parametrize(("name", "source", "complaint"), CASES)
def test_checker_tells_good_from_bad(name, source, complaint):
    complaints = violations(name, source, SOURCES.keys() | {"engine.novelty"})
    assert len(complaints) == (complaint is not None)
    assert complaint is None or complaint in complaints[0]


def test_checker_finds_circles():
    sources = {
        "engine": "",
        "engine.graph": "from .step import Step",
        "engine.step": "if TYPE_CHECKING:\n    from .loop import run",
        "engine.loop": "def f():\n    from pyspark_diff.engine import graph",
    }
    assert sorted(circle_in(sources)) == ["engine.graph", "engine.loop", "engine.step"]
    del sources["engine.loop"]
    assert circle_in(sources) == []
