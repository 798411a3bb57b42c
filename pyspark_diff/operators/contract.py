"""The contract of an operator: what its parts may rely on, and what each has to leave behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from pyspark_diff.kernels.accumulators import Accumulator
from pyspark_diff.kernels.consolidate import Grouped
from pyspark_diff.kernels.coordinates import Limit
from pyspark_diff.kernels.join import Reached
from pyspark_diff.kernels.layout import Layout
from pyspark_diff.kernels.updates import Int64, PerRow, Updates


class Stage(Protocol):
    """A linear operator, as runners see it. Travels to the executors where it is portable."""

    @property
    def portable(self) -> bool:
        """Whether `on_table` works, so that no Spark is needed to evaluate the stage."""

    @property
    def takes(self) -> T.StructType | None:
        """Spark schema of the update rows it takes, where it is not portable."""

    @property
    def keeps_time_and_diff(self) -> bool:
        """Whether time and diff of every row stay what they are."""

    def on_frame(self, frame: DataFrame) -> DataFrame:
        """The operator on Spark update rows."""

    def on_table(self, table: pa.Table) -> pa.Table:
        """The operator on Arrow update rows."""


#: What a kernel returns: the wanted output columns, times and diffs.
Changes = tuple[Sequence[pa.Array], PerRow, PerRow]


class Kernel(Protocol):
    """A keyed operator's function on one bucket."""

    @property
    def stateful(self) -> bool:
        """Whether it needs the accumulation of each record below the interval."""

    def __call__(
        self, grouped: Grouped, base: Int64, layout: Layout, wanted: Sequence[int]
    ) -> Changes:
        """Updates of the output columns at the wanted positions."""


@dataclass(frozen=True)
class DiffColumns:
    """Columns that move into the diff, which is a vector then.

    Parameters
    ----------
    columns : tuple of str
    accumulators : tuple of Accumulator
        What becomes of them; each names a column by its number.
    """

    columns: tuple[str, ...]
    accumulators: tuple[Accumulator, ...]


@dataclass(frozen=True)
class Side:
    """What a kernel sees of one arrangement.

    Parameters
    ----------
    old : list of Updates
        Batches of updates before the interval, each ordered by (key64, key, value, time).
    new : Grouped
        Updates of the interval, consolidated.
    layout : Layout
    names : tuple of str
        Columns of the records, those of the key first.
    lower : int or None
        Where the interval begins; None where it has no beginning.
    limit : Limit or None
        In a loop, the coordinates of old updates that count.
    reached : Reached or None
        In a loop, what it has reached of the arrangement, for kernels that are bilinear.
    """

    old: list[Updates]
    new: Grouped
    layout: Layout
    names: tuple[str, ...]
    lower: int | None
    limit: Limit | None = None
    reached: Reached | None = None


class ReadKernel(Protocol):
    """The function of an operator on one bucket: pure, without I/O, right on zero rows."""

    @property
    def records(self) -> bool:
        """Whether the output is arranged too, so that the kernel knows what it gave before."""

    def needs(self, wanted: Sequence[int], number: int) -> Sequence[str]:
        """Columns of the arrangement with this number that some output columns are made of."""

    def __call__(
        self, sides: Sequence[Side], own: Side | None, wanted: Sequence[int]
    ) -> tuple[Changes, int]:
        """Updates of the wanted output columns, and how many old rows were read."""
