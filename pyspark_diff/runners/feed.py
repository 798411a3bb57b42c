"""Feeds: the update rows of an edge within one step, and the expressions to apply to them.

A feed has the updates ``{f(u) : u in source, lower <= time(f(u)) < upper}``. The function ``f`` is
the chain of linear operators between the arrangement (or input) with these rows and the reading
operator. A feed is lazy: a runner evaluates it on demand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import AbstractSet

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from pyspark_diff.errors import SourceError
from pyspark_diff.kernels.arrow_expression import ArrowConstant
from pyspark_diff.kernels.layout import as_int64
from pyspark_diff.operators.contract import Stage
from pyspark_diff.runners.bilinear import Rest
from pyspark_diff.runners.parquet import ParquetScan
from pyspark_diff.runners.work import Split, Work
from pyspark_diff.spark.normal_form import without_signed_zeros
from pyspark_diff.spark.schema import DIFF, TIME, Schema
from pyspark_diff.times import Antichain


@dataclass(frozen=True)
class UpdateRows:
    """Update rows at rest. Exactly one of table, paths, frame and rest is given.

    Parameters
    ----------
    schema : Schema
        The present data columns.
    table : pyarrow.Table or None
        Data columns, ``__time`` and ``__diff``, on the driver.
    paths : tuple of str
        Files of such tables.
    frame : DataFrame or None
        A user's frame: data columns, and ``__time`` and ``__diff`` unless all rows share them.
    time, diff : int or None
        The shared value of all rows of ``frame``.
    rows : int or None
        Number of rows, if it is known; an estimate for a rest, and an upper bound for a scan.
    rest : tuple of Rest
        Rows that are too many to be stored: each read computes them, within the step only.
    scan : ParquetScan or None
        A scan without Spark of the rows of ``frame``, with columns of time and diff.
    """

    schema: Schema
    table: pa.Table | None = None
    paths: tuple[str, ...] = ()
    frame: DataFrame | None = None
    time: int | None = None
    diff: int | None = None
    rows: int | None = None
    rest: tuple[Rest, ...] = ()
    scan: ParquetScan | None = None

    @classmethod
    def of_frame(
        cls, schema: Schema, frame: DataFrame, scan: ParquetScan | None, kind: pa.DataType,
        time: int | None = None, diff: int | None = None,
    ) -> "UpdateRows":
        """The rows of a user's frame.

        Parameters
        ----------
        scan : ParquetScan or None
            The same rows, if they can be read without Spark.
        kind : pyarrow.DataType
            Arrow type of times.
        """
        frame = without_signed_zeros(frame)
        if scan is None:
            return cls(schema, frame=frame, time=time, diff=diff)
        if time is not None:
            scan = scan.with_columns(**{TIME: ArrowConstant(time, kind)})
        if diff is not None:
            scan = scan.with_columns(**{DIFF: ArrowConstant(diff, pa.int64())})
        return cls(schema, frame=frame, time=time, diff=diff, rows=scan.rows, scan=scan)

    def only(self, names: AbstractSet[str]) -> "UpdateRows":
        """A scan with some of the data columns; other rows do not change."""
        if self.scan is None:
            return self
        schema = self.schema.only(name for name in self.schema.names if name in names)
        scan = self.scan.only([*schema.names, TIME, DIFF])
        return replace(self, schema=schema, scan=scan)

    def as_listed(self) -> "UpdateRows":
        """The rows without the scan if its files have changed, so that Spark reads them."""
        try:
            self.check()
        except SourceError:
            return replace(self, scan=None)
        return self

    def check(self) -> None:
        """Check that the files of a scan have not changed since Spark listed them.

        Raises
        ------
        SourceError
        """
        if self.scan is not None:
            self.scan.check()

    @property
    def passing(self) -> bool:
        """Whether each read of the rows evaluates them, so that another step cannot read them."""
        return self.frame is not None or bool(self.rest)


@dataclass(frozen=True)
class Feed:
    """Update rows, the linear operators to apply, and the interval of times that is wanted.

    Parameters
    ----------
    chain : tuple of Stage
        Stages in the order of their application.
    lower, upper : int or None
        Only rows with ``lower <= time < upper``; None is no bound.
    until : Antichain
        The frontier of the source at its construction: all its times lie before it.
    """

    source: UpdateRows
    chain: tuple[Stage, ...] = ()
    lower: int | None = None
    upper: int | None = None
    until: Antichain = Antichain()

    @property
    def is_constant(self) -> bool:
        """Whether the output rows of the chain have the shared time and diff of a frame."""
        return self.source.frame is not None and all(s.keeps_time_and_diff for s in self.chain)

    @property
    def portable(self) -> bool:
        """Whether no stage of its chain needs Spark."""
        return all(stage.portable for stage in self.chain)

    def bare(self) -> "Feed":
        """The feed without the times and diffs that all rows of a scan share, as `split` has them.
        """
        scan, source = self.source.scan, self.source
        if scan is None or not self.is_constant:
            return self
        shared = {TIME: source.time, DIFF: source.diff}
        none = ArrowConstant(None, pa.null())
        scan = scan.with_columns(**{n: none for n, value in shared.items() if value is not None})
        return replace(self, source=replace(source, scan=scan))

    def split(self, work: Work, schema: Schema) -> Split:
        """The conversion of its rows into updates of some columns, for an operator."""
        source, constant = self.source, self.is_constant
        return Split(
            work.layout,
            schema.names,
            work.buckets,
            source.time if constant else None,
            source.diff if constant else None,
            self.lower,
            self.upper,
            self.floor(work.lower),
            self.ceiling(work.upper),
            work.diff_columns,
        )

    def floor(self, lower: int | None) -> int | None:
        """The least time that its rows may have, for an operator that is at ``lower``.

        A source that is read again still has the rows of earlier steps, so it has no bound.
        """
        return lower if self.lower is None else None

    def ceiling(self, upper: int | None) -> int | None:
        """The time before which all its rows must lie, for an operator that goes to ``upper``.

        A source that is read again has no bound: a later step takes the rows at later times.
        """
        return upper if self.upper is None else None

    def in_interval(self, table: pa.Table) -> pa.Table:
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
        return replace(self, chain=(*self.chain, stage))
