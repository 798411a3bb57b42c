"""The commands of the library in a shell, ``python -m pyspark_diff COMMAND``, or in a task.

The wheel has `main` as its entry point ``pyspark_diff``, which a scheduler calls by that name.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_diff import StateReader


def main(arguments: list[str] | None = None) -> int:
    """Run one of the commands that ``--help`` lists."""
    parser = argparse.ArgumentParser(
        "pyspark_diff", description="Differential dataflow for Spark, from a shell."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    warm = commands.add_parser(
        "warm_up",
        help="compile all kernels, so that no program has to wait for them",
        description="Compile all kernels on all cores and keep them on disk, beside the package "
        "if it can be written to: once per installation, as in the script that sets a cluster's "
        "machines up.",
    )
    warm.add_argument("--processes", type=int, help="how many at once; by default one a core")
    run = commands.add_parser(
        "run",
        help="open a store with a program, and let it catch up with its sources",
        description="Open a store with a program, in the session that runs or in a new one. A "
        "store that is not there yet is made.",
    )
    run.add_argument("program", help="module:function of the function that gets the dataflow")
    run.add_argument("--store", required=True, help="path or URI")
    run.add_argument(
        "--catch-up", action="store_true", help="read what has come to the sources, as one commit"
    )
    run.add_argument("--token", help="name of that commit; one that is there is not made again")
    look = commands.add_parser(
        "inspect", help="say what a store keeps", description="Say what a store keeps, as of its "
        "latest commit. Nothing of it is changed, and its writer goes on.",
    )
    look.add_argument("store", help="path or URI")
    check = commands.add_parser(
        "doctor", help="report the capabilities of Spark and of this machine",
        description="Report the capabilities of the session and of this machine, their "
        "consequences, and the settings to change.",
    )
    check.add_argument("--root", help="the folder of a state; by default the temporary folder")
    refresh = commands.add_parser(
        "refresh",
        help="refresh the views of a folder of .sql files",
        description="Read the changes of all sources of the views in a folder, one view for each "
        ".sql file, and change the rows of their targets exactly once.",
    )
    explain = commands.add_parser(
        "explain",
        help="show what a refresh of the views of a folder would read and cost",
        description="Show the plan of the next refresh, and the cost of a change for each view "
        "and clause. No rows are read.",
    )
    for command in (refresh, explain):
        command.add_argument("folder", help="a folder of .sql files, named like their targets")
        command.add_argument(
            "--store", help="path or URI of the state; FOLDER/_state by default"
        )
        command.add_argument(
            "--policy", choices=("strict", "incremental", "auto"), default="strict",
            help="when whole sources may be read after the first refresh",
        )
    refresh.add_argument(
        "--rebuild", action="store_true", help="read all sources, and overwrite all targets"
    )
    refresh.add_argument(
        "--log", help="a Delta table to which a row for each view is appended"
    )
    options = parser.parse_args(arguments)
    if options.command in ("refresh", "explain"):
        return _views(options)
    if options.command == "doctor":
        return _doctor(options.root)
    if options.command == "run":
        return _run(_program(options.program, parser), options)
    if options.command == "inspect":
        return _inspect(options.store)
    if options.processes is not None and options.processes < 1:
        parser.error(f"--processes is {options.processes}; give 1 or more")
    return _warm_up(options.processes)


def _program(name: str, parser: argparse.ArgumentParser) -> Callable[[Any], object]:
    module, separator, function = name.partition(":")
    if not (module and separator and function):
        parser.error(f"the program is {name!r}; give module:function, as in nights.revenue:program")
    # A script's own folder is looked in by Python, but the one a shell is in is not.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        target = getattr(importlib.import_module(module), function, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the program's own mistake
        parser.error(f"there is no module {module!r}; install it, or run this in its folder")
    if not callable(target):
        parser.error(f"{module!r} has no function {function!r}")
    try:
        inspect.signature(target).bind(None)
    except TypeError as error:
        parser.error(f"{name} is called with the dataflow, as def {function}(flow): {error}")
    except ValueError:
        pass  # some functions that are written in C have no signature
    return target


def _run(program: Callable[[Any], object], options: argparse.Namespace) -> int:
    from pyspark_diff import Dataflow, session

    with Dataflow.open(options.store, program, spark=session()) as flow:
        if options.catch_up:
            done = flow.catch_up(token=options.token)
            print("caught up" if done else "there was nothing to do")
        print(f"{options.store} keeps {', '.join(flow) or 'nothing by a name'}")
    return 0


def _views(options: argparse.Namespace) -> int:
    from pyspark_diff import DiffError, session
    from pyspark_diff.views.folder import FolderOfViews

    try:
        views = FolderOfViews(
            session(), options.folder, store=options.store, policy=options.policy,
            log=getattr(options, "log", None),
        )
        try:
            if options.command == "explain":
                print(views.explain())
            else:
                print(views.rebuild() if options.rebuild else views.refresh())
        finally:
            views.close()
    except DiffError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _inspect(store: str) -> int:
    from pyspark_diff import DiffError, StateReader, session

    try:
        return _describe(StateReader(store, spark=session()))
    except DiffError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _describe(reader: StateReader) -> int:
    with reader:
        token = "" if reader.token is None else f", last token {reader.token!r}"
        print(f"commit {reader.commit}{token}")
        for name in reader:
            collection = reader[name]
            print(f"{name}: {collection.schema.simpleString()}")
            print(f"    readable from {collection.since()}, complete up to {collection.frontier()}")
    return 0


def _doctor(root: str | None) -> int:
    from pyspark_diff import doctor, session

    print(doctor(session(), root=root))
    return 0


def _warm_up(processes: int | None) -> int:
    from pyspark_diff.kernels.cache import folders
    from pyspark_diff.kernels.warm_up import __file__ as file
    from pyspark_diff.kernels.warm_up import warm_up

    print("compiling the kernels; the first time this takes half a minute", file=sys.stderr)
    started = time.perf_counter()
    there, compiled = warm_up(processes)
    seconds = time.perf_counter() - started
    print(f"{compiled} of {there} kernels compiled in {seconds:.1f} s; kept in {folders(file)[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
