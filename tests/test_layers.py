"""The layers of the package: every module imports only from its own level or a lower one.

    module at level n imports module at level m  ⟹  m <= n

Every module has to be in the table, so that the table stays true.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Set
from pathlib import Path

import pytest

import pyspark_diff

PACKAGE = Path(pyspark_diff.__file__).parent

#: The level of each module; a folder stands for all modules in it.
LEVELS = {
    "errors": 0,
    "times": 0,
    "kernels": 1,
    "bridge": 2,
    "computed": 2,
    "expressions": 2,
    "schema": 2,
    "session": 2,
    "storage": 2,
    "trees": 2,
    "values": 2,
    "arrange": 3,
    "runners": 3,
    "operators": 4,
    "aggregation": 6,
    "catalog": 5,
    "columns": 5,
    "coerce": 5,
    "dataflow": 5,
    "evaluation": 5,
    "graph": 5,
    "hold": 5,
    "inputs": 5,
    "kept": 5,
    "probe": 5,
    "scope": 5,
    "state": 5,
    "step": 5,
    "compaction": 5,
    "diffframe": 6,
    "frame": 6,
    "grouped": 6,
    "join_methods": 6,
    "keyed_methods": 6,
    "linear_methods": 6,
    "sinks": 6,
    "sources": 6,
    "testing": 6,
    "graphs": 6,
    "iteration": 5,
    "loop_methods": 6,
    "regions": 5,
    "__init__": 7,
}

#: What a level may use besides the standard library.
LIBRARIES = {
    0: frozenset(),
    1: frozenset({"numba", "numpy", "pyarrow"}),
    2: frozenset({"numba", "numpy", "pandas", "pyarrow", "pyspark", "tqdm"}),
}

#: The only module that talks to the JVM, and the names by which it does.
BRIDGE = "bridge"
JVM_NAMES = frozenset({"_gateway", "_jc", "_jdf", "_jsc", "_jsparkSession", "_jvm"})

#: The one module that all operators share.
OPERATOR_BASE = "operators.node"

#: Reading any of these formats can run code, and state must never do so.
UNSAFE_MODULES = frozenset({"cloudpickle", "dill", "marshal", "pickle", "shelve"})
UNSAFE_CALLS = frozenset({"eval", "exec"})


def modules_of(package: Path) -> dict[str, str]:
    """The source of every module, by its name within the package; a folder by its own name."""
    sources = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        if len(parts) > 1 and parts[-1] == "__init__":
            parts = parts[:-1]
        sources[".".join(parts)] = path.read_text(encoding="utf-8")
    return sources


def imports_of(name: str, tree: ast.AST, modules: Set[str]) -> Iterator[tuple[int, str]]:
    """Line and full name of each imported module, wherever in the file the import stands."""
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
                # What is imported from a folder may be a module of it.
                full = f"{base}.{alias.name}"
                is_module = full.removeprefix("pyspark_diff.") in modules
                is_module = is_module or alias.name in UNSAFE_MODULES
                yield node.lineno, full if is_module else base


def wrong_import(name: str, imported: str) -> str | None:
    """Why a module may not import another, or None if it may."""
    level = LEVELS[name.partition(".")[0]]
    top = imported.partition(".")[0]
    if UNSAFE_MODULES & set(imported.split(".")):
        return "can run code that it reads"
    if top == "py4j":
        return None if name == BRIDGE else f"only {BRIDGE} talks to the JVM"
    if top != "pyspark_diff":
        known = sys.stdlib_module_names | LIBRARIES[min(level, max(LIBRARIES))]
        return None if top in known else f"is not for level {level}"
    inner = imported.partition(".")[2] or "__init__"
    if inner.partition(".")[0] not in LEVELS:
        return "is not in the table"
    if LEVELS[inner.partition(".")[0]] > level:
        return f"is above level {level}"
    if name.startswith("operators.") and inner.startswith("operators") and inner != OPERATOR_BASE:
        return f"operators share only {OPERATOR_BASE}"
    return None


def violations(name: str, source: str, modules: Set[str]) -> list[str]:
    """Everything in a module that breaks a rule of this page, one line each."""
    if name.partition(".")[0] not in LEVELS:
        return [f"{name}: not in the table of levels"]
    tree = ast.parse(source)
    found = []
    for line, imported in imports_of(name, tree, modules):
        reason = wrong_import(name, imported)
        if reason is not None:
            found.append(f"{name}:{line}: imports {imported}, which {reason}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in UNSAFE_CALLS:
                found.append(f"{name}:{node.lineno}: calls {node.func.id}")
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            if not (isinstance(node.value, ast.Constant) and node.value.value is False):
                found.append(f"{name}:{node.value.lineno}: allows pickle")
        # A name in quotes counts as well, as in getattr(frame, "_jdf").
        used = node.attr if isinstance(node, ast.Attribute) else getattr(node, "value", None)
        if isinstance(node, (ast.Attribute, ast.Constant)) and isinstance(used, str):
            if used in JVM_NAMES and name != BRIDGE:
                found.append(f"{name}:{node.lineno}: uses {used}, which only {BRIDGE} may")
    return found


SOURCES = modules_of(PACKAGE)


@pytest.mark.parametrize("name", SOURCES)
def test_module_keeps_to_its_layer(name):
    assert violations(name, SOURCES[name], SOURCES.keys()) == []


#: A module, a source, and a part of the complaint; None if the source is fine.
CASES = [
    ("times", "import math, collections.abc", None),
    ("times", "import numpy", "not for level 0"),
    ("times", "from pyspark_diff.errors import DiffError", None),
    ("times", "from .errors import DiffError", None),
    ("times", "from . import errors", None),
    ("times", "from . import schema", "above level 0"),
    ("times", "from pyspark_diff import schema", "above level 0"),
    ("times", "from pyspark_diff import DiffFrame", "above level 0"),
    ("times", "def f():\n    import pyspark_diff", "above level 0"),
    ("kernels.merge", "import numpy as np, pyarrow.compute, numba", None),
    ("kernels.merge", "import pandas", "not for level 1"),
    ("kernels.merge", "from pyspark.sql import functions", "not for level 1"),
    ("kernels.merge", "from .split import split\nfrom ..errors import DiffError", None),
    ("kernels.merge", "from ..schema import Schema", "above level 1"),
    ("kernels", "from .merge import merge", None),
    ("schema", "import pyspark.sql.types as T, pandas", None),
    ("schema", "import requests", "not for level 2"),
    ("schema", "from pyspark_diff.trace.batch import Batch", "above level 2"),
    ("schema", "if TYPE_CHECKING:\n    from .dataflow import Dataflow", "above level 2"),
    ("schema", "from py4j.java_gateway import JavaObject", "only bridge"),
    ("schema", "frame._jdf.queryExecution()", "uses _jdf"),
    ("schema", "getattr(frame, '_jdf')", "uses _jdf"),
    ("dataflow", "spark.sparkContext._jsc.sc()", "uses _jsc"),
    ("bridge", "from py4j.java_gateway import JavaObject\nspark._jvm", None),
    ("runners.local", "from ..arrange.spine import Spine", None),
    ("operators.join", "from .node import Node\nfrom ..arrange import batch", None),
    ("operators.join", "from .count import count", "operators share only"),
    ("operators.join", "from . import count", "operators share only"),
    ("operators.join", "from pyspark_diff.operators import count", "operators share only"),
    ("operators", "from .join import join\nfrom .count import count", None),
    ("graph", "from .dataflow import Dataflow\nfrom .operators.join import join", None),
    ("graph", "from .diffframe import DiffFrame", "above level 5"),
    ("__init__", "from .diffframe import DiffFrame\nfrom .dataflow import Dataflow", None),
    ("novelty", "", "not in the table"),
    ("graph", "from .novelty import thing", "not in the table"),
    ("storage", "import pickle", "can run code"),
    ("storage", "from pyspark import cloudpickle", "can run code"),
    ("storage", "from pyspark.cloudpickle import dumps", "can run code"),
    ("storage", "eval('1')", "calls eval"),
    ("storage", "np.load(path, allow_pickle=True)", "allows pickle"),
    ("storage", "np.load(path, allow_pickle=False)", None),
]


@pytest.mark.parametrize(("name", "source", "complaint"), CASES)
def test_checker_tells_good_from_bad(name, source, complaint):
    modules = {
        "__init__", "arrange", "arrange.batch", "arrange.spine", "bridge", "dataflow", "diffframe",
        "errors", "graph", "kernels", "kernels.merge", "kernels.split", "operators",
        "operators.count", "operators.join", "operators.node", "runners", "runners.local",
        "schema", "storage", "times",
    }
    found = violations(name, source, modules)
    assert len(found) == (complaint is not None)
    assert complaint is None or complaint in found[0]
