"""What is done with the library from a shell: ``python -m pyspark_diff warm_up``."""

from __future__ import annotations

import argparse
import sys
import time


def main(arguments: list[str] | None = None) -> int:
    """Run one command, of those that ``--help`` lists."""
    parser = argparse.ArgumentParser("python -m pyspark_diff", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    warm = commands.add_parser(
        "warm_up",
        help="compile all kernels, so that no program has to wait for them",
        description="Compile all kernels on all cores and keep them on disk, beside the package "
        "if it can be written to: once per installation, as in the script that sets a cluster's "
        "machines up.",
    )
    warm.add_argument("--processes", type=int, help="how many at once; by default one a core")
    given = parser.parse_args(arguments)
    if given.processes is not None and given.processes < 1:
        parser.error(f"--processes is {given.processes}; give 1 or more")

    from pyspark_diff.kernels.cache import folders
    from pyspark_diff.kernels.warm_up import __file__ as file
    from pyspark_diff.kernels.warm_up import warm_up

    print("compiling the kernels; the first time this takes half a minute", file=sys.stderr)
    started = time.perf_counter()
    there, compiled = warm_up(given.processes)
    seconds = time.perf_counter() - started
    print(f"{compiled} of {there} kernels compiled in {seconds:.1f} s; kept in {folders(file)[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
