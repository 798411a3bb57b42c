"""What flows along an edge within one step: update rows, and expressions to apply to them.

A feed stands for the updates ``{f(u) : u in source, lower <= time(f(u)) < upper}`` where ``f`` is
the chain of linear operators between the arrangement (or input) that made these rows and the one
that reads them. Nothing is evaluated until a runner needs it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import AbstractSet

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from pyspark_diff.errors import SourceError
from pyspark_diff.kernels.arrow_expression import Constant
from pyspark_diff.kernels.layout import as_int64
from pyspark_diff.operators.contract import Stage
from pyspark_diff.runners.parquet import ParquetScan
from pyspark_diff.runners.read import Rest
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
        Number of rows where known, or about where they are a rest; of a scan no less than that.
    rest : tuple of Rest
        Rows that are not at rest, since they are too many: they are made when they are read, and
        only within the step.
    scan : ParquetScan or None
        The rows of ``frame`` as they can be read without Spark, time and diff among their columns.
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
        schema : Schema
        frame : DataFrame
        scan : ParquetScan or None
            The same rows, if they can be read without Spark.
        kind : pyarrow.DataType
            Of times.
        time, diff : int or None
        """
        frame = without_signed_zeros(frame)
        if scan is None:
            return cls(schema, frame=frame, time=time, diff=diff)
        if time is not None:
            scan = scan.with_columns(**{TIME: Constant(time, kind)})
        if diff is not None:
            scan = scan.with_columns(**{DIFF: Constant(diff, pa.int64())})
        return cls(schema, frame=frame, time=time, diff=diff, rows=scan.rows, scan=scan)

    def only(self, names: AbstractSet[str]) -> "UpdateRows":
        """A scan with some of the data columns; all else as it is."""
        if self.scan is None:
            return self
        schema = self.schema.only(name for name in self.schema.names if name in names)
        scan = self.scan.only([*schema.names, TIME, DIFF])
        return replace(self, schema=schema, scan=scan)

    def as_listed(self) -> "UpdateRows":
        """The same, to be read by Spark if the files of its scan have changed since then."""
        try:
            self.check()
        except SourceError:
            return replace(self, scan=None)
        return self

    def check(self) -> None:
        """See that the files of a scan have not changed since then.

        Raises
        ------
        SourceError
        """
        if self.scan is not None:
            self.scan.check()

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

    @property
    def is_constant(self) -> bool:
        """Whether times and diffs that rows of a frame share are those of what is made of them."""
        return self.source.frame is not None and all(s.keeps_time_and_diff for s in self.chain)

    @property
    def portable(self) -> bool:
        """Whether nothing of its chain needs Spark."""
        return all(stage.portable for stage in self.chain)

    def bare(self) -> "Feed":
        """The feed without the times and diffs that all rows of a scan share, as `split` has them.
        """
        scan, source = self.source.scan, self.source
        if scan is None or not self.is_constant:
            return self
        shared = {TIME: source.time, DIFF: source.diff}
        none = Constant(None, pa.null())
        scan = scan.with_columns(**{n: none for n, value in shared.items() if value is not None})
        return replace(self, source=replace(source, scan=scan))

    def split(self, work: Work, schema: Schema) -> Split:
        """How its rows become updates of some columns, for an operator."""
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
        return replace(self, chain=(*self.chain, stage))
