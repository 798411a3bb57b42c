"""A wheel and an sdist in dist/, checked: run by ci/release.

    files of the package in git, and the jar  =  files of the wheel  ⊆  files of the sdist

The build reads a copy of git's files, so the archives contain no other file.
"""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from email import message_from_string
from pathlib import Path

import release_matrix

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
JARS = "pyspark_diff/jars"
#: Files of the sdist outside the package.
SDIST_FILES = ("LICENSE", "README.md", "pyproject.toml", "setup.cfg", "PKG-INFO")

_PROGRAM = """
import pyspark_diff
with pyspark_diff.Dataflow(pyspark_diff.session(master="local[1]"), buckets=2) as flow:
    edges, edges_in = flow.input("edges", "src long, dst long")
    degrees = edges.select("src").count().keep("degrees")
    edges_in.insert([(1, 2), (1, 3), (2, 3)])
    flow.advance_to(1)
    edges_in.remove([(1, 3)])
    flow.advance_to(2)
    rows = sorted(tuple(row) for row in degrees.at().collect())
    assert rows == [(1, 1), (2, 1)], rows
print(pyspark_diff.__file__, pyspark_diff.__version__)
"""


def run(*command: object, **options: object) -> str:
    """Return the output of a command. If it fails, exit with its output."""
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, **options,  # type: ignore
    )
    if done.returncode:
        said = done.stdout[-3000:] + done.stderr[-3000:]
        sys.exit(f"failed: {' '.join(map(str, command))}\n{said}")
    return done.stdout


def demand(holds: object, otherwise: str) -> None:
    if not holds:
        sys.exit(f"not releasable: {otherwise}")


def environment(folder: Path) -> Path:
    """Create an empty environment, and return its Python. It uses the pip of this environment."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    return folder / "bin/python"


def install(python: Path, *wanted: object) -> None:
    run(
        sys.executable, "-m", "pip", "--python", python, "install", "--quiet",
        "--disable-pip-version-check", "--no-compile", *wanted,
    )


def tracked() -> list[str]:
    """Return the files of git, and the built jar."""
    names = run("git", "ls-files", cwd=ROOT).splitlines()
    jars = [str(jar.relative_to(ROOT)) for jar in (ROOT / JARS).glob("*.jar")]
    demand(len(jars) == 1, f"there is not one jar of the bridge in {JARS}: {jars}")
    return [name for name in names if (ROOT / name).is_file()] + jars


def built(names: list[str], folder: Path) -> tuple[Path, Path]:
    """Build the wheel and the sdist from a copy of the files, and return their paths."""
    copy = folder / "copy"
    for name in names:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name)
    python = environment(folder / "builder")
    install(python, "build")
    shutil.rmtree(DIST, ignore_errors=True)
    run(python, "-m", "build", "--outdir", DIST, copy)
    wheels, sdists = list(DIST.glob("*.whl")), list(DIST.glob("*.tar.gz"))
    demand(len(wheels) == len(sdists) == 1, f"dist/ has {sorted(DIST.iterdir())}")
    return wheels[0], sdists[0]


def check_contents(wheel: Path, sdist: Path, names: list[str]) -> None:
    package = {name for name in names if name.startswith("pyspark_diff/")}
    with zipfile.ZipFile(wheel) as archive:
        there = {name for name in archive.namelist() if ".dist-info/" not in name}
    demand(there == package, f"the wheel differs from the package in {sorted(there ^ package)}")
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    missing = (package | set(SDIST_FILES)) - inside
    demand(not missing, f"the sdist has no {sorted(missing)}")


def check_metadata(wheel: Path) -> str:
    """Check the metadata of the wheel, and return its version."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        said = message_from_string(archive.read(name).decode())
        licensed = any(n.endswith("LICENSE") for n in archive.namelist())
    wanted = configparser.ConfigParser()
    wanted.read(ROOT / "setup.cfg")
    meta = wanted["metadata"]
    version = meta["version"]
    demand(said["Name"] == meta["name"] and said["Version"] == version, "name or version is wrong")
    code = (ROOT / "pyspark_diff/__init__.py").read_text(encoding="utf-8")
    demand(f'__version__ = "{version}"' in code, f"pyspark_diff.__version__ is not {version}")
    demand(version in (ROOT / "CHANGELOG.md").read_text(), f"CHANGELOG.md has nothing of {version}")
    demand(said["Requires-Python"] == wanted["options"]["python_requires"], "Requires-Python")
    demand(licensed, "the wheel has no LICENSE")
    demand(said.get_payload().startswith("# pyspark_diff"), "the description is not the README")
    always = [need for need in said.get_all("Requires-Dist") if "extra ==" not in need]
    demand(not any("pyspark" in need for need in always), "Spark is required, and not an extra")
    return version


def check_working(wheel: Path, folder: Path, version: str) -> None:
    """Install the wheel in an empty environment, and run the program outside the clone."""
    python = environment(folder / "empty")
    install(python, "--constraint", ROOT / "ci/constraints.txt", f"{wheel}[spark]")
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables.update(PYSPARK_PYTHON=str(python), PYSPARK_DRIVER_PYTHON=str(python))
    output = run(python, "-c", _PROGRAM, cwd=elsewhere, env=variables).split()[-2:]
    demand(output[1] == version and str(folder) in output[0], f"what ran was {output}")


def main() -> None:
    chosen = release_matrix.arguments(sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="release-") as name:
        names, folder = tracked(), Path(name)
        wheel, sdist = built(names, folder)
        print(f"built {wheel.name} and {sdist.name}", flush=True)
        check_contents(wheel, sdist, names)
        version = check_metadata(wheel)
        print("contents and metadata are right", flush=True)
        check_working(wheel, folder, version)
        if chosen.matrix:
            install(folder / "builder/bin/python", "uv")
            failures = release_matrix.check(wheel, folder / "builder/bin/uv", chosen)
            demand(not failures, "\n".join(failures))
    print(f"dist/ has version {version}, which works in an empty environment")


if __name__ == "__main__":
    main()
