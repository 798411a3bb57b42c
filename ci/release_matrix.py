"""The wheel with each extra on each Python: run by ci/release --matrix.

    each extra and Python of setup.cfg  =>  the wheel is installed, and the README's program runs

Prints a table. A Python that this machine lacks has a dash, and any failure ends the command with
an error after the table is complete.
"""

from __future__ import annotations

import argparse
import configparser
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Where pyenv keeps its Pythons.
PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
#: The answer of the program, as rows of a table.
ANSWER = {("north", "25"), ("south", "7")}


def settings() -> configparser.ConfigParser:
    read = configparser.ConfigParser()
    read.read(ROOT / "setup.cfg")
    return read


def extras() -> list[str]:
    """The extras of setup.cfg."""
    return list(settings()["options.extras_require"])


def versions() -> list[str]:
    """The versions of Python that setup.cfg names."""
    return re.findall(r":: Python :: (3\.\d+)$", settings()["metadata"]["classifiers"], re.M)


def program() -> str:
    """The first program of the README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]


def requirement(wheel: Path, extra: str) -> str:
    """The wheel with an extra, and with Spark, which the program needs."""
    return f"{wheel}[{','.join(dict.fromkeys(('spark', extra)))}]"


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The options of ci/release.

    Examples
    --------
    >>> chosen = arguments(["--matrix", "--extra", "spark", "--python", "3.10"])
    >>> chosen.matrix, chosen.extra, chosen.python
    (True, ['spark'], ['3.10'])
    """
    parser = argparse.ArgumentParser("ci/release")
    parser.add_argument(
        "--matrix", action="store_true", help="also install each extra on each Python",
    )
    parser.add_argument("--extra", nargs="+", choices=extras(), default=extras(), metavar="NAME")
    parser.add_argument("--python", nargs="+", choices=versions(), default=versions(),
                        metavar="VERSION")
    return parser.parse_args(argv)


def _candidates(version: str) -> Iterator[str]:
    yield from filter(None, [shutil.which(f"python{version}")])
    yield from map(str, sorted(PYENV.glob(f"{version}.*/bin/python")))


def python_of(version: str) -> str | None:
    """A Python of a version, if this machine has one. A name on PATH may be a shim without it."""
    show = "import sys; print('%d.%d' % sys.version_info[:2])"
    for path in _candidates(version):
        done = subprocess.run([path, "-c", show], capture_output=True, text=True)
        if done.stdout.strip() == version:
            return path
    return None


def outcome(uv: Path, python: str, wanted: str, folder: Path) -> str:
    """Installs the wheel, runs the program, and returns the seconds of both, or the failed step."""
    inside, began = folder / "bin/python", time.monotonic()
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables.update(
        PYSPARK_PYTHON=str(inside), PYSPARK_DRIVER_PYTHON=str(inside), UV_PYTHON_DOWNLOADS="never",
        # As all environments are in one place, each Python compiles the kernels only once.
        NUMBA_CACHE_DIR=str(folder.parent / "kernels"),
    )
    for step, *command in (
        ("environment", uv, "venv", "--quiet", "--python", python, folder),
        ("install", uv, "pip", "install", "--quiet", "--python", inside, wanted),
        ("conflicts", uv, "pip", "check", "--python", inside),
        ("program", inside, "-c", program()),
    ):
        done = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, cwd=folder.parent,
            env=variables,
        )
        if done.returncode:
            return f"{step}: {' '.join((done.stdout + done.stderr).split())[-300:]}"
    rows = set(re.findall(r"(\w+) *\| *(\d+)\|", done.stdout))
    return f"{time.monotonic() - began:.0f} s" if rows == ANSWER else f"program: {done.stdout}"


def check(wheel: Path, uv: Path, chosen: argparse.Namespace) -> list[str]:
    """Prints the table of the outcomes, and returns the failures."""
    pythons = {version: python_of(version) for version in chosen.python}
    failures = []
    print(f"| extra | {' | '.join(pythons)} |\n|{'---|' * (len(pythons) + 1)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="release-") as name:
        folder = Path(name) / "environment"
        for extra in chosen.extra:
            print(f"| {extra} |", end="", flush=True)
            for version, python in pythons.items():
                cell = "–" if python is None else outcome(
                    uv, python, requirement(wheel, extra), folder
                )
                if python is not None and not cell.endswith(" s"):
                    failures.append(f"{extra} on Python {version}: {cell}")
                    cell = "failed"
                print(f" {cell} |", end="", flush=True)
                shutil.rmtree(folder, ignore_errors=True)
            print(flush=True)
    return failures
