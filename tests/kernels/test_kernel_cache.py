"""Compiled kernels are cached, also if the package folder is read-only, and are never stale."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pyspark_diff.kernels import cache, jit

#: A kernel, and another file whose kernel calls it. Tests run them in a partial package.
INNER = """
from pyspark_diff.kernels.jit import jit

@jit
def plus(x):
    return x + 1
"""
OUTER = """
from pyspark_diff.kernels.inner import plus
from pyspark_diff.kernels.jit import kernel

@kernel("int64")
def twice(x):
    return 2 * plus(x)

if __name__ == "__main__":
    from pyspark_diff.kernels import outer
    answer = outer.twice(3)
    print(answer, sum(outer.twice.stats.cache_misses.values()))
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with a partial copy of the package and two kernels."""
    ours = Path(cache.__file__).parent.parent
    copy = tmp_path / "installed/pyspark_diff"
    (copy / "kernels").mkdir(parents=True)
    for name in (
        "__init__.py", "thresholds.py", "kernels/__init__.py", "kernels/jit.py", "kernels/cache.py",
    ):
        shutil.copy(ours / name, copy / name)
    (copy / "kernels/inner.py").write_text(INNER)
    (copy / "kernels/outer.py").write_text(OUTER)
    return copy


def run(package: Path, home: Path, **more: str) -> list[str]:
    """The answer of the kernel, and the number of compiled forms."""
    variables = {k: v for k, v in os.environ.items() if k not in ("NUMBA_CACHE_DIR", "PYTHONPATH")}
    variables.pop("XDG_CACHE_HOME", None)
    ran = subprocess.run(
        [sys.executable, "-m", "pyspark_diff.kernels.outer"],
        env={**variables, "PYTHONPATH": str(package.parent), "HOME": str(home), **more},
        cwd=home.parent, capture_output=True, text=True, timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()


def test_a_changed_file_leaves_no_stale_caller(package, tmp_path):
    home = tmp_path / "home"
    assert run(package, home) == ["8", "1"]
    assert run(package, home) == ["8", "0"]
    # Only the file of the callee changes.
    (package / "kernels/inner.py").write_text(INNER.replace("x + 1", "x + 2"))
    assert run(package, home) == ["10", "1"]


def test_what_an_installation_compiled_serves_those_who_cannot_write_there(package, tmp_path):
    """A file blocks the user's folder of caches, as permissions would not stop root."""
    home = tmp_path / "home"
    assert run(package, home) == ["8", "1"]
    assert list((package / "kernels/__pycache__").glob("*.nbi"))
    home.write_text("")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    assert run(package, home, TMPDIR=str(temporary)) == ["8", "0"]
    assert not list(temporary.rglob("*.nbi"))


def test_a_home_or_a_folder_for_temporary_files_takes_what_the_package_cannot(package, tmp_path):
    shutil.rmtree(package / "kernels/__pycache__", ignore_errors=True)
    (package / "kernels/__pycache__").write_text("")
    home, temporary = tmp_path / "home", tmp_path / "temporary"
    temporary.mkdir()
    variables = {"TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"}
    home.write_text("")
    assert [run(package, home, **variables) for _ in range(2)] == [["8", "1"], ["8", "0"]]
    (folder,) = temporary.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    # A folder that others can write to is not trusted.
    folder.chmod(0o777)
    assert run(package, home, **variables) == ["8", "1"]
    home.unlink()
    assert [run(package, home, **variables) for _ in range(2)] == [["8", "1"], ["8", "0"]]


def test_a_kernel_is_compiled_in_each_process_where_nothing_can_be_written(package, tmp_path):
    shutil.rmtree(package / "kernels/__pycache__", ignore_errors=True)
    (package / "kernels/__pycache__").write_text("")
    home, temporary = tmp_path / "home", tmp_path / "temporary"
    home.write_text("")
    temporary.mkdir()
    (temporary / f"pyspark_diff-{os.getuid()}").write_text("")
    variables = {"TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"}
    assert [run(package, home, **variables) for _ in range(2)] == [["8", "1"], ["8", "1"]]


def test_compiling_is_told_of_once_when_it_takes_long(use_thresholds, caplog):
    use_thresholds(compile_log_seconds=0.1)
    compiling = jit._Compiling()
    with compiling:
        time.sleep(0.3)  # all forms were loaded from disk
    assert not caplog.records
    with compiling:
        compiling.begin()
        with compiling:  # a callee
            compiling.begin()
        time.sleep(0.3)
    # Short compilations add up to one warning.
    again = jit._Compiling()
    again._spent = 60.0
    for _ in range(2):
        with again:
            again.begin()
            time.sleep(0.1)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert "python -m pyspark_diff warm_up" in caplog.text
    assert compiling._timer is None and again._timer is None


def test_warm_up_says_what_it_did():
    def warm() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pyspark_diff", "warm_up", "--processes", "2"],
            capture_output=True, text=True, timeout=600,
        )

    assert warm().returncode == 0
    again = warm()
    assert again.stdout.startswith("0 of ") and "kept in" in again.stdout
    assert again.stderr.startswith("compiling")


def test_workers_end_with_who_began_them(tmp_path):
    """Else a reader of their output never reaches its end."""
    begin = (
        "from concurrent.futures import ProcessPoolExecutor as Pool\n"
        "import os, time\n"
        "from pyspark_diff.kernels import warm_up\n"
        "pool = Pool(1, initializer=warm_up._begin)\n"
        "print(pool.submit(os.getpid).result(), flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", begin], stdout=subprocess.PIPE) as began:
        assert began.stdout is not None
        assert int(began.stdout.readline()) > 0
        began.kill()
        assert began.stdout.read() == b""  # the pipe ends after the worker


def test_commands_are_checked():
    from pyspark_diff.__main__ import main

    for wrong in ([], ["nosuch"], ["warm_up", "--processes", "0"]):
        with pytest.raises(SystemExit):
            main(wrong)


def test_another_numba_compiles_without_a_place(monkeypatch, caplog):
    """The classes of numba's cache are private, and may lose a member in any release."""
    assert cache.is_supported()
    monkeypatch.setattr(cache, "FunctionCache", type("FunctionCache", (), {}))
    monkeypatch.setattr(cache, "_USED", {cache.FunctionCache: ("load_overload",)})
    cache.is_supported.cache_clear()
    try:
        twice = jit.kernel("int64")(lambda x: x * 2)
        assert twice(4) == 8
        assert list(cache._caches_of(test_another_numba_compiles_without_a_place)) == []
        assert "lacks FunctionCache.load_overload" in caplog.text
    finally:
        cache.is_supported.cache_clear()
