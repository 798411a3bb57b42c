"""One view over tables: its query, its target, and the state by which it is refreshed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from pyspark.sql import SparkSession

from pyspark_diff.errors import SchemaError
from pyspark_diff.views.forecast import Plan
from pyspark_diff.views.group import Approve, Policy, ViewGroup
from pyspark_diff.views.program import View, check_views
from pyspark_diff.views.reports import Refreshed

if TYPE_CHECKING:
    from typing_extensions import Self


def materialized_view(
    spark: SparkSession, target: str | os.PathLike[str], query: str, *,
    store: str | os.PathLike[str], policy: Policy = "strict", comment: str | None = None,
    approve: Approve | None = None, history: Literal["scd2"] | None = None,
    log: str | None = None,
) -> MaterializedView:
    """A Delta table that is kept equal to a query by the changes of the query's tables.

    Nothing is read before `MaterializedView.refresh`. The sources are the tables that the query
    names.

    Parameters
    ----------
    spark : SparkSession
        A classic session that knows Delta.
    target : str or path
        A Delta table, by name or path. The first refresh creates it, with the columns of the query.
    query : str
        A SELECT; see `Dataflow.sql`.
    store : str or path
        Of the state: a directory, or ``s3://bucket/name``. One view has one store.
    policy : {"strict", "incremental", "auto"}
        After the first refresh, ``"strict"`` refuses to read a whole source; ``"incremental"`` does
        it when the changes of a source are not known, and reports it; ``"auto"`` also rebuilds
        when the forecast of a rebuild is cheaper than that of the changes.
    comment : str, optional
        Of the target, if it is created.
    approve : callable, optional
        Takes the `Plan` of a rebuild and returns whether to go on.
    history : {"scd2"}, optional
        The target then keeps the rows that the query no longer returns: it has the columns
        ``valid_from``, ``valid_to`` and ``is_current`` too, see `delta_history`. A rebuild
        continues it. Without a unique key, the history is that of each numbered copy.
    log : str, optional
        A Delta table to which each refresh that changed something appends a row: the view, rows in
        and out, seconds, and recomputed parts with their reasons. It is created if it is missing.

    Returns
    -------
    MaterializedView

    Notes
    -----
    The merge key of the target comes from the query: the columns of GROUP BY, or all columns of
    distinct rows. If neither is known, the target has one more column, ``_row_copy``, which numbers
    equal rows.

    Examples
    --------
    >>> import tempfile
    >>> query = "SELECT region, sum(amount) AS revenue FROM orders GROUP BY region"
    >>> materialized_view(spark, "gold.revenue", query, store=tempfile.mkdtemp())
    MaterializedView('gold.revenue', policy='strict')
    """
    return MaterializedView(spark, target, query, store, policy, comment, approve, history, log)


class MaterializedView:
    """A view made by `materialized_view`. It holds state until `close`."""

    def __init__(
        self, spark: SparkSession, target: str | os.PathLike[str], query: str,
        store: str | os.PathLike[str], policy: Policy, comment: str | None,
        approve: Approve | None, history: Literal["scd2"] | None = None,
        log: str | None = None,
    ):
        if not isinstance(query, str):
            raise SchemaError(
                f"the query of a view is a text, not a {type(query).__name__}; pass a SELECT"
            )
        view = View(os.fspath(target), query, comment, history)
        check_views([view])
        self._group = ViewGroup(spark, [view], store, policy, approve, log)

    def plan(self) -> Plan:
        """The forecast of the next refresh, with its rows and seconds.

        It reads the logs of the sources and no rows, and changes nothing.
        """
        return self._group.plan()

    def refresh(self) -> Refreshed:
        """Read the changes of all sources since the last refresh, and change the target once.

        The first refresh reads all rows of the sources. A refresh that ended in between is
        completed by the next one, in this process or another.

        Raises
        ------
        SinkError
            If others wrote to the target, replaced it or restored it. Nothing was read then.
        SourceError
            If the changes of a source are not known and the policy is ``"strict"``.
        ProgramChangedError
            If the query has changed and the rebuild is not allowed.
        """
        return self._group.refresh()

    def rebuild(self) -> Refreshed:
        """Read all sources, compute the query, and overwrite the target.

        It needs no approval, and works with every policy.
        """
        return self._group.rebuild()

    def close(self) -> None:
        """Release the state; the next refresh of another process continues."""
        self._group.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        (view,) = self._group.views
        return f"MaterializedView({view.target!r}, policy={self._group.policy!r})"
