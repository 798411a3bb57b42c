"""Runs the cases and examples that a commit draws: see ci/prove."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def git(*words: str) -> str:
    try:
        return subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="ci/prove", description=__doc__)
    parser.add_argument("--all", action="store_true", help="all slow cases, without a budget")
    parser.add_argument("--seed", type=int, help="default: from the commit hash")
    parser.add_argument("--slice", type=int, choices=range(20), help="default: from the commit")
    parser.add_argument("--minutes", type=float, default=25)
    parser.add_argument("--examples", type=int, default=5)
    asked, more = parser.parse_known_args()
    seed = int(git("rev-parse", "HEAD")[:8] or "0", 16) if asked.seed is None else asked.seed
    part = int(git("rev-list", "--count", "HEAD") or 0) % 20 if asked.slice is None else asked.slice
    environment = {
        **os.environ, "PYSPARK_DIFF_PROVE": "all" if asked.all else str(part),
        "PYSPARK_DIFF_SEED": str(seed), "PYSPARK_DIFF_EXAMPLES": str(asked.examples),
    }
    if not asked.all:
        environment["PYSPARK_DIFF_DEADLINE"] = str(time.time() + 60 * asked.minutes)
    status = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "", f"--hypothesis-seed={seed}", "--numprocesses",
         os.environ.get("PROCESSES", "3"), "--dist", "loadfile", "--no-loadscope-reorder", *more],
        cwd=ROOT, env=environment).returncode
    which = "--all" if asked.all else f"--slice {part} --minutes {asked.minutes:g}"
    print(f"repeat: ci/prove --seed {seed} {which} --examples {asked.examples}")
    return status


if __name__ == "__main__":
    sys.exit(main())
