"""What flows along an edge within one step: update rows, and expressions to apply to them.

A feed stands for the updates ``{f(u) : u in source, lower <= time(f(u)) < upper}`` where ``f`` is
the chain of linear operators between the arrangement (or input) that made these rows and the one
that reads them. Nothing is evaluated until a runner needs it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from pyspark_diff.kernels.layout import as_int64
from pyspark_diff.operators.contract import Stage
from pyspark_diff.runners.read import Rest
from pyspark_diff.spark.schema import TIME, Schema
from pyspark_diff.times import Antichain


@dataclass(frozen=True)
class UpdateRows:
    """Update rows at rest. Exactly one of table, paths, frame and rest is given.

    Parameters
    ----------
    schema : Schema
        The data columns that are there.
    table : pyarrow.Table or None
        Data columns, ``__time`` and ``__diff``, on the driver.
    paths : tuple of str
        Files of such tables.
    frame : DataFrame or None
        A user's frame: data columns, and ``__time`` and ``__diff`` where these are not shared.
    time, diff : int or None
        Shared by all rows of ``frame``.
    rows : int or None
        Number of rows where known, or about where they are a rest.
    rest : tuple of Rest
        Rows that are not at rest, since they are too many: they are made when they are read, and
        only within the step.
    """

    schema: Schema
    table: pa.Table | None = None
    paths: tuple[str, ...] = ()
    frame: DataFrame | None = None
    time: int | None = None
    diff: int | None = None
    rows: int | None = None
    rest: tuple[Rest, ...] = ()

    @property
    def passing(self) -> bool:
        """Whether the rows have to be evaluated to be read again, or in another step."""
        return self.frame is not None or bool(self.rest)


@dataclass(frozen=True)
class Feed:
    """Update rows, the linear operators to apply, and the interval of times that is wanted.

    Parameters
    ----------
    source : UpdateRows
    chain : tuple of Stage
        Applied in order.
    lower, upper : int or None
        Only rows with ``lower <= time < upper``; None is no bound.
    until : Antichain
        The frontier of the source when it was made: all its times lie before it.
    """

    source: UpdateRows
    chain: tuple[Stage, ...] = ()
    lower: int | None = None
    upper: int | None = None
    until: Antichain = Antichain()

    def floor(self, lower: int | None) -> int | None:
        """The least time that may be among its rows, at an operator that is at ``lower``.

        A source that is read again still has the rows that were taken the first time.
        """
        return lower if self.lower is None else None

    def ceiling(self, upper: int | None) -> int | None:
        """The time before which all its rows must be, at an operator that goes to ``upper``.

        Rows of a source that is read again are left out now, and taken when their time has come.
        """
        return upper if self.upper is None else None

    def within(self, table: pa.Table) -> pa.Table:
        """The rows of a table that lie in the interval."""
        if self.lower is None and self.upper is None:
            return table
        time = as_int64(table[TIME].combine_chunks()).to_numpy()
        inside = np.ones(time.size, dtype=bool)
        if self.lower is not None:
            inside &= time >= self.lower
        if self.upper is not None:
            inside &= time < self.upper
        return table.filter(pa.array(inside))

    def then(self, stage: Stage) -> "Feed":
        """The feed with one more linear operator."""
        return replace(self, chain=self.chain + (stage,))
