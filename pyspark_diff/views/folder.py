"""A folder of queries: one view for each ``.sql`` file, ordered by the views that they read.

The name of a file is the target: ``gold.revenue.sql`` defines ``gold.revenue``. Comments at its
start may set options::

    -- target: gold.revenue
    -- comment: Revenue by region
    -- history: scd2
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from pyspark_diff.errors import SchemaError
from pyspark_diff.spark.jvm import items_of, kind_of, parsed_plan
from pyspark_diff.views.forecast import Plan
from pyspark_diff.views.group import Approve, Policy, ViewGroup
from pyspark_diff.views.program import View, check_views
from pyspark_diff.views.reports import Refreshed

_OPTION = re.compile(r"--\s*(\w+)\s*:\s*(.*?)\s*$")
_OPTIONS = ("comment", "history", "target")


def view_of_file(path: Path) -> View:
    """The view that a file defines.

    Raises
    ------
    SchemaError
        If the file has an option that is not known, or no query.
    """
    text = path.read_text(encoding="utf-8")
    options: dict[str, str] = {}
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("--"):
            break
        match = _OPTION.fullmatch(line.strip())
        if match is None:
            continue
        name = match[1].lower()
        if name not in _OPTIONS:
            raise SchemaError(
                f"{path.name} has the option {name!r}, which no view has. The options are "
                f"{', '.join(_OPTIONS)}. Correct it, or write the comment without a colon"
            )
        options[name] = match[2]
    query = "\n".join(
        line for line in text.splitlines() if not _OPTION.fullmatch(line.strip())
    ).strip()
    return View(options.get("target", path.stem), query, options.get("comment"),
                options.get("history"))


def views_of_folder(folder: str | os.PathLike[str]) -> list[View]:
    """The views of a folder, by the names of its files."""
    paths = sorted(Path(folder).glob("*.sql"))
    if not paths:
        raise SchemaError(
            f"{folder} has no .sql file, so it defines no view. Write one query in each file"
        )
    views = [view_of_file(path) for path in paths]
    check_views(views)
    return views


def ordered(views: Sequence[View], spark: SparkSession) -> list[View]:
    """The views, each after the views that it reads.

    Raises
    ------
    SchemaError
        If views read each other in a cycle.
    """
    targets = {_normal(view.target): view for view in views}
    needs = {
        name: sorted(names & targets.keys())
        for name, view in targets.items()
        for names in [tables_in(parsed_plan(view.query.rstrip().rstrip(";"), spark))]
    }
    for name, others in needs.items():
        for other in others:
            if targets[other].history:
                raise SchemaError(
                    f"view {name} reads {other}, which is a history, and its rows change only "
                    "after the step. Write the query of that view as a view without a history, "
                    "which both read"
                )
    done: dict[str, View] = {}

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in done:
            return
        if name in path:
            cycle = " -> ".join([*path[path.index(name):], name])
            raise SchemaError(
                f"views read each other in a cycle: {cycle}. Write the recursion in one query, "
                "WITH RECURSIVE or WITH MUTUALLY RECURSIVE"
            )
        for other in needs[name]:
            visit(other, (*path, name))
        done[name] = targets[name]

    for name in targets:
        visit(name, ())
    return list(done.values())


def _normal(name: str) -> str:
    """A name as two queries may write it: without backticks, case and the default catalog."""
    return name.replace("`", "").lower().removeprefix("spark_catalog.")


def tables_in(plan: Any) -> set[str]:
    """The names of tables in a parsed plan, also in subqueries and common table expressions."""
    names: set[str] = set()
    if kind_of(plan) == "UnresolvedRelation":
        names.add(_normal(".".join(map(str, items_of(plan.multipartIdentifier())))))
    for child in items_of(plan.children()):
        names |= tables_in(child)
    # Subqueries of expressions and common table expressions are inner children.
    for inner in items_of(plan.innerChildren().toSeq()):
        if hasattr(inner, "innerChildren"):
            names |= tables_in(inner)
    return names


class FolderOfViews:
    """The views of a folder, refreshed by one dataflow. It holds state until `close`.

    Parameters
    ----------
    store : str or path, optional
        Of the state; the folder ``_state`` within the folder if it is left out.
    policy, approve, log
        As of `materialized_view`.
    """

    def __init__(
        self, spark: SparkSession, folder: str | os.PathLike[str], *,
        store: str | os.PathLike[str] | None = None, policy: Policy = "strict",
        approve: Approve | None = None, log: str | None = None,
    ):
        views = ordered(views_of_folder(folder), spark)
        place = Path(folder) / "_state" if store is None else store
        self._group = ViewGroup(spark, views, place, policy, approve, log)

    @property
    def views(self) -> tuple[View, ...]:
        """The views, each after the views that it reads."""
        return self._group.views

    def plan(self) -> Plan:
        """As of `MaterializedView.plan`."""
        return self._group.plan()

    def refresh(self) -> Refreshed:
        """As of `MaterializedView.refresh`, for all views in one step."""
        return self._group.refresh()

    def rebuild(self) -> Refreshed:
        """As of `MaterializedView.rebuild`."""
        return self._group.rebuild()

    def explain(self) -> str:
        """The plan, and the cost of a change for each view and clause. It reads no rows."""
        return self._group.explain()

    def close(self) -> None:
        """As of `MaterializedView.close`."""
        self._group.close()
