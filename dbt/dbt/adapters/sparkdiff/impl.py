"""Models with ``materialized='materialized_view'`` are views of pyspark_diff.

    the table of a model after dbt run  =  the rows of its query at the versions that the run read

The session method of dbt-spark runs in the process of dbt, so the adapter has the SparkSession.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dbt.adapters.base.meta import available
from dbt.adapters.spark import SparkAdapter
from dbt.adapters.spark.connections import (
    SparkConnectionManager,
    SparkConnectionMethod,
    SparkCredentials,
)
from dbt_common.exceptions import DbtRuntimeError
from pyspark.sql import SparkSession

import pyspark_diff


@dataclass
class DiffCredentials(SparkCredentials):
    """Credentials of dbt-spark, and the stores of all views.

    Parameters
    ----------
    store : str, optional
        The parent of the stores: a directory, or ``s3://bucket/name``. The store of a model is
        ``store/schema.table``, if its configuration names none.
    """

    store: str | None = None

    @property
    def type(self) -> str:
        return "sparkdiff"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.method != SparkConnectionMethod.SESSION:
            raise DbtRuntimeError(
                "The adapter sparkdiff refreshes views in the Spark session of dbt's process. The "
                f"profile has the method {self.method}. Set method: session."
            )


class DiffConnectionManager(SparkConnectionManager):
    """Connections of dbt-spark under the name of this adapter."""

    TYPE = "sparkdiff"


class SparkDiffAdapter(SparkAdapter):
    """The adapter of dbt-spark with `refresh_view`."""

    ConnectionManager = DiffConnectionManager

    @available.parse(lambda *_, **__: {"message": "", "rows": 0})
    def refresh_view(
        self, target: Any, query: str, store: str | None, policy: str, history: str | None,
        log: str | None, comment: str | None, rebuilds: bool,
    ) -> dict[str, Any]:
        """Refresh the table of a model, or rebuild it.

        Returns
        -------
        dict
            ``message``, a line for dbt's log, and ``rows``, the number of changed rows.

        Raises
        ------
        DbtRuntimeError
            If the refresh fails. It has the message of the library.
        """
        if not (store or self.config.credentials.store):
            raise DbtRuntimeError(
                f"The view {target} has no store for its state. Set store in the profile or in the "
                "model's configuration."
            )
        spark = SparkSession.builder.getOrCreate()
        path = store or f"{self.config.credentials.store.rstrip('/')}/{target}"
        try:
            with pyspark_diff.materialized_view(
                spark, str(target), query, store=path, policy=policy, history=history, log=log,
                comment=comment or None,
            ) as view:
                done = view.rebuild() if rebuilds else view.refresh()
        except pyspark_diff.DiffError as error:
            raise DbtRuntimeError(f"{target}: {error}") from error
        return {"message": str(done), "rows": sum(done.rows_out.values())}
