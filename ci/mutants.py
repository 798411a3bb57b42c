"""Change single places of the library and run the tests that cover them: see ci/mutants.

    score  =  (killed + explained) / mutants that ran

A mutant is killed when a test fails with it, or when the tests do not end with it, and pass in a
third of the time without it. Other tests that do not end prove nothing: the machine may have been
busy. tests/mutants_explained.tsv has the mutants that no test can kill, each with its reason.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import functools
import hashlib
import importlib
import inspect
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import cosmic_ray.plugins
import parso.python.tree
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("kernels", "operators", "engine", "trace")
WORK = ROOT / "build" / "mutants"
TREE = WORK / "tree"
RESULTS = WORK / "results.jsonl"
SUMMARY = ROOT / "benchmarks" / "results" / "mutants.json"
EXPLAINED = ROOT / "tests" / "mutants_explained.tsv"
#: Seconds of tests, as the map measured them, that a mutant runs against.
TEST_SECONDS = 20.0
#: Seconds after which a mutant does not end; one of a kernel is compiled meanwhile.
LIMIT = 75.0
COMPILE_LIMIT = 120.0

#: An annotation is no code, a decorator is no answer, and these operators need arguments.
NO_OPERATORS = re.compile(r"no-op|Decorator|Variable")
#: Numbers and strings of one value are often the same object, so these change nothing for sure.
SAME = {"Eq_Is", "NotEq_IsNot", "Is_Eq", "IsNot_NotEq"}
LOGGERS = {"_logger", "logger", "logging", "warnings"}


@dataclass(frozen=True)
class Mutant:
    """A change of one place: `occurrence` counts the places of an operator in its file."""

    module: str
    line: int
    column: int
    operator: str
    occurrence: int
    before: str
    after: str

    @property
    def name(self) -> str:
        return f"{self.module}:{self.line}:{self.column} {self.operator} {self.occurrence}"


Site = tuple[str, int, int]
Span = tuple[tuple[int, int], tuple[int, int]]


def operators() -> dict[str, Any]:
    names = [name for name in cosmic_ray.plugins.operator_names() if not NO_OPERATORS.search(name)]
    return {
        name: cosmic_ray.plugins.get_operator(name)() for name in sorted(names)
        if not any(name.endswith(f"_{pair}") for pair in SAME)}


def span(node: Any) -> Span:
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def equivalent_spans(source: str) -> Iterator[Span]:
    """The lines whose changes alter no answer: annotations, texts of errors, logging."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if node.name == "__repr__":
                yield span(node)
            arguments = node.args
            for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs,
                             arguments.vararg, arguments.kwarg]:
                if argument is not None and argument.annotation is not None:
                    yield span(argument.annotation)
            yield from map(span, [*filter(None, [node.returns]), *node.decorator_list])
        elif isinstance(node, ast.ClassDef):
            yield from map(span, node.decorator_list)
        elif isinstance(node, ast.AnnAssign):
            yield span(node.annotation)
        elif isinstance(node, ast.Assign):
            if isinstance(node.targets[0], ast.Name) and re.match("[A-Z][a-z]", node.targets[0].id):
                yield span(node)  # an alias of a type
        elif isinstance(node, ast.Raise):
            yield span(node)
        elif isinstance(node, ast.If):
            if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
                yield span(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if isinstance(owner, ast.Name) and owner.id in LOGGERS:
                yield span(node)


def sites(module: str, source: str, known: dict[str, Any]) -> dict[Site, list[tuple[str, int]]]:
    """The places of a module that can be changed, each with the operators that change it."""
    left_out = list(equivalent_spans(source))
    operators_at: dict[Site, list[tuple[str, int]]] = {}
    nodes = [node for node in ast_nodes(get_ast(source))
             if not isinstance(node, (parso.python.tree.Name, parso.python.tree.String))]
    for name, operator in known.items():
        places = itertools.chain.from_iterable(map(operator.mutation_positions, nodes))
        for occurrence, (start, end) in enumerate(places):
            if not any(first <= start and end <= last for first, last in left_out):
                operators_at.setdefault((module, *start), []).append((name, occurrence))
    return operators_at


def all_sites() -> dict[Site, list[tuple[str, int]]]:
    """As `sites`, of all modules; kept, as it takes a minute."""
    files = [path for room in ROOMS
             for path in sorted((ROOT / "pyspark_diff" / room).rglob("*.py"))]
    rules = "".join(inspect.getsource(rule) for rule in (operators, equivalent_spans, sites))
    digest = hashlib.sha256(rules.encode())
    for path in files:
        digest.update(path.read_bytes())
    cache = WORK / f"sites-{digest.hexdigest()[:16]}.json"
    if not cache.exists():
        known = operators()
        operators_at: dict[Site, list[tuple[str, int]]] = {}
        for path in files:
            module = str(path.relative_to(ROOT / "pyspark_diff"))
            operators_at.update(sites(module, path.read_text(encoding="utf-8"), known))
        cache.write_text(json.dumps(sorted(operators_at.items())), encoding="utf-8")
    return {(site[0], site[1], site[2]): [(name, number) for name, number in ways]
            for site, ways in json.loads(cache.read_text(encoding="utf-8"))}


def mutate(module: str, operator: str, occurrence: int) -> tuple[str, str]:
    """The source of a module and the changed one; both are the same if the change is no Python."""
    source = (ROOT / "pyspark_diff" / module).read_text(encoding="utf-8")
    try:
        changed = mutate_code(source, cosmic_ray.plugins.get_operator(operator)(), occurrence)
    except AttributeError:  # an `except` of the name of a module's class
        return source, source
    try:
        if changed is None or ast.dump(ast.parse(changed)) == ast.dump(ast.parse(source)):
            return source, source
    except SyntaxError:
        return source, source
    return source, changed


def changed_lines(source: str, changed: str) -> tuple[str, str]:
    lines = list(difflib.ndiff(source.splitlines(), changed.splitlines()))
    return tuple(" ".join(line[2:].strip() for line in lines if line.startswith(sign))
                 for sign in "-+")  # type: ignore[return-value]


@functools.cache
def published(count: int, seed: int) -> list[tuple[Mutant, dict[str, Any]]]:
    """The mutants of an earlier run with the same seed, at their present lines, with results."""
    before = json.loads(SUMMARY.read_text(encoding="utf-8")) if SUMMARY.exists() else {}
    if before.get("seed") != seed or len(before.get("mutants", ())) < count:
        return []
    present = []
    for result in before["mutants"]:
        mutant = Mutant(**{key: result[key] for key in Mutant.__dataclass_fields__})
        here = moved(mutant)
        if here is None:
            print(f"gone: {mutant.name}\n    - {mutant.before}", file=sys.stderr)
        else:
            present.append((here, result))
    return present


def moved(mutant: Mutant) -> Mutant | None:
    """The same change of a source that has changed elsewhere; None if its line is gone."""
    source, changed = mutate(mutant.module, mutant.operator, mutant.occurrence)
    lines = (mutant.before, mutant.after)
    if changed_lines(source, changed) == lines:
        return mutant
    known = {mutant.operator: cosmic_ray.plugins.get_operator(mutant.operator)()}
    places = [
        (abs(line - mutant.line), line, column, number)
        for (_, line, column), ways in sites(mutant.module, source, known).items()
        for _, number in ways
    ]
    for _, line, column, number in sorted(places):
        if changed_lines(source, mutate(mutant.module, mutant.operator, number)[1]) == lines:
            return replace(mutant, line=line, column=column, occurrence=number)
    return None


def sample(count: int, seed: int) -> list[Mutant]:
    """Every so-and-so-many-th place of all in the order of rooms, modules and lines.

    So each room and module has its part. The order of the runs is random: those that ran so far
    are a sample, too. A published sample stays the same.
    """
    if published(count, seed):
        return [mutant for mutant, _ in published(count, seed)]
    chance = random.Random(seed)
    places = all_sites()
    ordered = sorted(places, key=lambda site: (ROOMS.index(site[0].split("/")[0]), site))
    step = len(ordered) / count
    start = chance.random() * step
    mutants = []
    for number in range(count):
        first = int(start + number * step)
        # A place whose changes are all no Python leaves its turn to the next one.
        for site in itertools.islice(itertools.cycle(ordered), first, first + len(ordered)):
            mutant = change(site, chance.sample(places[site], len(places[site])))
            if mutant is not None:
                mutants.append(mutant)
                break
    chance.shuffle(mutants)
    return mutants


def change(site: Site, ways: list[tuple[str, int]]) -> Mutant | None:
    for operator, occurrence in ways:
        source, changed = mutate(site[0], operator, occurrence)
        if changed != source:
            return Mutant(*site, operator, occurrence, *changed_lines(source, changed))
    return None


class Tests:
    """The tests of each line, from the map that ci/mutant_map.py makes."""

    def __init__(self, path: Path):
        content = json.loads(path.read_text(encoding="utf-8"))
        self.names: list[str] = content["tests"]
        self.seconds: list[float] = content["seconds"]
        self._lines: dict[str, dict[int, set[int]]] = {
            module: {int(line): set(tests) for line, tests in lines.items()}
            for module, lines in content["lines"].items()}

    def select(self, mutant: Mutant) -> list[str]:
        """The tests that run a mutant's line, the cheapest first, of all files in turn.

        A changed kernel and the kernels that call it are compiled once, for all tests together.
        """
        source = (ROOT / "pyspark_diff" / mutant.module).read_text(encoding="utf-8")
        lines = self._lines.get(mutant.module, {})
        tests: set[int] = set()
        for candidates in relevant_lines(ast.parse(source), mutant.line):
            tests = set().union(*(lines.get(line, set()) for line in candidates))
            if tests:
                break
        costs = {number: self.seconds[number] for number in tests}
        return [self.names[number] for number in self._affordable(costs)]

    def _affordable(self, costs: dict[int, float]) -> list[int]:
        by_file: dict[str, list[int]] = {}
        for number in sorted(costs, key=lambda number: costs[number]):
            by_file.setdefault(self.names[number].partition("::")[0], []).append(number)
        selected: list[int] = []
        spent = 0.0
        for turn in itertools.zip_longest(*by_file.values()):
            for number in sorted(filter(lambda test: test is not None, turn),
                                 key=lambda test: costs[test]):
                if selected and spent + costs[number] > TEST_SECONDS:
                    continue
                selected.append(number)
                spent += costs[number]
        return sorted(selected, key=lambda number: costs[number])


def relevant_lines(tree: ast.Module, line: int) -> Iterator[range | list[int]]:
    """Lines that run with a line: of its statement, else those that use it, else the module's."""
    inside = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)
              and node.lineno <= line <= (node.end_lineno or 0)]
    inside.sort(key=lambda node: (node.end_lineno or 0) - node.lineno)
    for node in inside:
        body = getattr(node, "body", None)
        last = body[0].lineno - 1 if body and line < body[0].lineno else node.end_lineno or 0
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield range(node.body[0].lineno, (node.end_lineno or 0) + 1)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            yield range(node.lineno, last + 1)
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {target.id for target in targets if isinstance(target, ast.Name)}
            yield [use.lineno for use in ast.walk(tree) if isinstance(use, ast.Name)
                   and use.id in names and isinstance(use.ctx, ast.Load)]
        elif not isinstance(node, ast.ClassDef):
            yield range(node.lineno, last + 1)
    yield range(1, 100_000)


def make_tree() -> None:
    """A copy of the project, in which the library is changed and tested."""
    shutil.rmtree(TREE, ignore_errors=True)
    files = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                           cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    jars = [str(path.relative_to(ROOT)) for path in (ROOT / "pyspark_diff" / "jars").glob("*")]
    for name in filter(None, [*files, *jars]):
        if (ROOT / name).is_file():
            (TREE / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, TREE / name)
    restore_kernels()


def restore_kernels() -> None:
    """Link the compiled kernels of the tree: numba replaces files and never changes one."""
    for folder in {path.parent for path in (ROOT / "pyspark_diff").rglob("*.nbi")}:
        there = TREE / folder.relative_to(ROOT)
        shutil.rmtree(there, ignore_errors=True)
        there.mkdir(parents=True)
        for path in folder.glob("*.nb[ic]"):
            os.link(path, there / path.name)


#: Imported once, as each mutant has a process of its own: three seconds of a core.
LIBRARIES = (
    "duckdb", "hypothesis.strategies", "numba.core.registry", "pandas", "pyarrow.compute",
    "pyarrow.parquet", "pyspark.sql.functions", "pytest")


def prepare() -> None:
    """Set the environment of all mutants, and import the modules that they need."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(TREE), str(TREE / "tests"), str(ROOT / "ci")])
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(WORK / "pycache")
    # Machine code for a single run need not be fast.
    os.environ.update(NUMBA_OPT="1", NUMBA_LOOP_VECTORIZE="0", NUMBA_SLP_VECTORIZE="0")
    sys.dont_write_bytecode = False
    for name in LIBRARIES:
        importlib.import_module(name)
    here = {str(ROOT), str(ROOT / "tests"), str(ROOT / "ci")}
    sys.path[:] = [*os.environ["PYTHONPATH"].split(os.pathsep),
                   *(path for path in sys.path if path not in here)]


def run_pytest(arguments: list[str], seconds: float) -> tuple[int | None, str]:
    """The status of pytest in the copy, None if it took longer; and the end of its output."""
    log = WORK / "pytest.log"
    process = os.fork()
    if not process:
        os.setsid()
        os.chdir(TREE)
        with log.open("w", encoding="utf-8") as output:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        status = 70
        try:
            import pytest

            status = int(pytest.main([
                "-x", "-q", "-m", "", "-p", "no:cacheprovider", "-p", "mutant_order",
                f"--basetemp={WORK / 'temporary'}", *arguments]))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    end = time.monotonic() + seconds
    ended, state = os.waitpid(process, os.WNOHANG)
    while not ended and time.monotonic() < end:
        time.sleep(0.1)
        ended, state = os.waitpid(process, os.WNOHANG)
    try:
        os.killpg(process, signal.SIGKILL)  # and the processes of its tests
    except ProcessLookupError:
        pass
    if not ended:
        os.waitpid(process, 0)
    text = log.read_text(encoding="utf-8", errors="replace")[-20_000:]
    return os.waitstatus_to_exitcode(state) if ended else None, text


def run(mutant: Mutant, tests: list[str]) -> dict[str, Any]:
    """Run a mutant, and return its result."""
    result: dict[str, Any] = {**asdict(mutant), "tests": len(tests), "seconds": 0.0, "killer": ""}
    if not tests:
        return {**result, "status": "untested"}
    source, changed = mutate(mutant.module, mutant.operator, mutant.occurrence)
    limit = COMPILE_LIMIT if mutant.module.startswith("kernels/") else LIMIT
    begin = time.monotonic()
    status, output = run_changed(mutant.module, changed, tests, limit)
    named = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", output, re.MULTILINE)
    killer = named.group(1) if named else "" if status in (None, 0) else output[-300:]
    if named:  # even if the process does not end then
        status = 1
    if status is None and run_changed(mutant.module, source, tests, limit / 3)[0] == 0:
        status, killer = 1, "the tests end without the change only"
    return {
        **result, "seconds": round(time.monotonic() - begin, 1),
        "status": {None: "timeout", 0: "survived"}.get(status, "killed"),
        "killer": killer}


def run_changed(
    module: str, text: str, tests: list[str], seconds: float
) -> tuple[int | None, str]:
    """As `run_pytest`, with this text of a module. Even the same text is compiled again."""
    file = TREE / "pyspark_diff" / module
    try:
        file.write_text(text, encoding="utf-8")
        return run_pytest(tests, seconds)
    finally:
        shutil.copy2(ROOT / "pyspark_diff" / module, file)
        if module.startswith("kernels/"):
            restore_kernels()


def explanations() -> dict[tuple[str, str, str], str]:
    lines = EXPLAINED.read_text(encoding="utf-8").splitlines() if EXPLAINED.exists() else []
    parts = [line.split("\t") for line in lines if line and not line.startswith("#")]
    return {(module, before, after): reason for module, before, after, reason in parts}


def results(count: int, seed: int) -> dict[str, list[dict[str, Any]]]:
    """All runs of each mutant in order. A published run is the first."""
    runs: dict[str, list[dict[str, Any]]] = {
        mutant.name: [{**result, "status": result["first"]}, result]
        for mutant, result in published(count, seed)
        if result["status"] != "not run"}
    for line in RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []:
        result = json.loads(line)
        name = Mutant(**{key: result[key] for key in Mutant.__dataclass_fields__}).name
        runs.setdefault(name, []).append(result)
    return runs


def summary(mutants: list[Mutant], seed: int) -> dict[str, Any]:
    """The counts of each room; prints the survivors."""
    explained, ran = explanations(), results(len(mutants), seed)
    keys = ("sampled", "run", "killed_at_first", "killed", "timeout", "explained", "survived")
    each: list[dict[str, Any]] = []
    rooms: dict[str, Counter[str]] = {room: Counter() for room in ROOMS}
    for mutant in mutants:
        counts = rooms[mutant.module.split("/")[0]]
        counts["sampled"] += 1
        runs = ran.get(mutant.name, [])
        first, last = runs[0]["status"] if runs else "", runs[-1]["status"] if runs else "not run"
        status = last
        if status != "killed" and (mutant.module, mutant.before, mutant.after) in explained:
            status = "explained"  # it need not have run
        if status not in ("killed", "explained"):
            print(f"{status}: {mutant.name}\n    - {mutant.before}\n    + {mutant.after}")
        counts["run"] += status != "not run"
        counts["killed_at_first"] += first == "killed"
        counts[status if status in keys or status == "not run" else "survived"] += 1
        each.append({**asdict(mutant), "first": first, "status": last,
                     "killer": runs[-1]["killer"] if runs else ""})
    total = sum(rooms.values(), Counter())
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return {"commit": commit.stdout.strip(), "seed": seed,
            "rooms": {room: {key: counts[key] for key in keys}
                      for room, counts in [*rooms.items(), ("all", total)]},
            "mutants": each}


def make_map(path: Path, minutes: float) -> None:
    print("measuring which tests run a line", file=sys.stderr)
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "mutant_map", "-p", "no:cacheprovider"],
        cwd=ROOT, env={
            **os.environ, "PYSPARK_DIFF_MAP": str(path),
            "PYSPARK_DIFF_MAP_DEADLINE": str(time.time() + 60 * minutes),
            "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("", "tests", "ci"))})
    if not path.exists():
        raise SystemExit("the tests made no map; run ci/test first")


def main() -> int:
    parser = argparse.ArgumentParser(prog="ci/mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200, help="of mutants in the sample")
    parser.add_argument("--seed", type=int, default=45)
    parser.add_argument("--minutes", type=float, default=90, help="no mutant starts after them")
    parser.add_argument("--map-minutes", type=float, default=40)
    parser.add_argument("--room", choices=ROOMS, action="append", help="only mutants of this room")
    parser.add_argument("--again", action="store_true", help="run unexplained survivors once more")
    parser.add_argument("--only", help="run mutants whose name starts so once more")
    parser.add_argument("--list", action="store_true", help="print the sample and run nothing")
    parser.add_argument("tests", nargs="*", help="run before those that the map has")
    asked = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    mutants = sample(asked.count, asked.seed)
    if asked.list:
        for mutant in mutants:
            print(f"{mutant.name}\n    - {mutant.before}\n    + {mutant.after}")
        return 0
    path = WORK / "map.json"
    if not path.exists():
        make_map(path, asked.map_minutes)
    tests = Tests(path)
    make_tree()
    prepare()
    end = time.time() + 60 * asked.minutes
    for mutant in chosen(mutants, asked):
        if time.time() > end:
            break
        result = run(mutant, [*asked.tests, *tests.select(mutant)])
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
        print(f"{result['status']:9}{result['seconds']:6.1f} s  {mutant.name}",
              result["killer"][:90], flush=True)
    counts = summary(mutants, asked.seed)
    SUMMARY.write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")
    for room, counts_of_room in counts["rooms"].items():
        print(f"{room:10}", *(f"{key} {number:4}" for key, number in counts_of_room.items()))
    last = counts["rooms"]["all"]
    return 1 if last["survived"] or last["timeout"] else 0


def chosen(mutants: list[Mutant], asked: argparse.Namespace) -> list[Mutant]:
    """The mutants to run: those without a result, unless the arguments name others."""
    ran, explained = results(asked.count, asked.seed), explanations()
    candidates = [
        mutant for mutant in mutants
        if not asked.room or mutant.module.split("/")[0] in asked.room
    ]
    if asked.only:
        return [mutant for mutant in candidates if mutant.name.startswith(asked.only)]
    if asked.again:
        return [mutant for mutant in candidates if mutant.name in ran
                and ran[mutant.name][-1]["status"] != "killed"
                and (mutant.module, mutant.before, mutant.after) not in explained]
    return [mutant for mutant in candidates if mutant.name not in ran]


if __name__ == "__main__":
    sys.exit(main())
