"""The contract of an operator: the guarantees that its parts receive, and their obligations.

``A_t`` is ``A`` accumulated at ``t``. An operator ``O = F(A, B, ...)`` is right iff this holds at
every time, in every step ``[lower, upper)``, and for every division of its updates into steps::

    O_t = F(A_t, B_t, ...)

An operator has parts of three kinds: stages, replay kernels and bilinear kernels. Each part
receives updates and emits updates.

``Stage``, linear: any updates ``U`` and ``V``, in any order, cut anywhere, and not consolidated::

    f(U + V) = f(U) + f(V)                                     (as sums of updates)
    on_frame = on_table                                        if it is portable

``ReplayKernel``: one bucket, all times of the interval at once. With ``A = old + new`` of each
side, restricted to the keys of the new updates, and after any number of steps::

    sum(emitted, time <= t) = F(sum(old + new, time <= t)) - F(sum(old))     for every t >= lower

In a loop a replay kernel runs at a coordinate ``c``, and the sums are over coordinates up to ``c``.
The runner subtracts the output of smaller coordinates. Outside of loops ``c`` is ``()``.

A kernel that is not stateful does not read old updates, so its input is not stored. ``G`` is the
kernel's previous output, and ``F`` folds the new updates over it in order of time::

    sum(G + emitted, time <= t) = F(sum(G), updates of new up to t in order)

A kernel whose keys are times emits updates for a record at the time that is its key, even in a step
without new updates. It receives new updates with ``key < upper`` and old updates with ``lower <=
key < upper``, and emits the sum of its per-record outputs::

    emitted = f({ u in old + new : lower <= key(u) < upper })

``BilinearKernel``: one bucket, one coordinate ``c``. It processes each pair of updates of both
sides once, at the coordinate and in the step of the later update::

    emitted = { (a x b, max(times), lub(coordinates)): diff * diff :  a or b is new }

So the kernel needs no previous output, and retracts nothing. Outside of loops all updates are at
``()``, and the kernel processes the new updates of the step. Pairs can be many more than updates.
So the kernel emits them in parts, and computes each part on request. Equal arguments lead to the
same parts in the same order: a caller that has some parts can request the others later.

All kernels may rely on this, for each `Side`:

* ``old`` has the updates before ``lower``, in any number of batches. Each batch is consolidated and
  ordered by ``(key64, key, value, coordinate, time)``. Values follow the arrangement's ordering if
  it has one. The engine may have advanced old times, to ``lower`` at most, so a kernel uses only
  the sum of old updates. A record may be in several batches, and its rows may cancel.
* ``new`` is the consolidated set of all updates under consideration with ``lower <= time < upper``,
  in the same order.
* Equal keys of all sides are in the same bucket, so no other bucket matters.
* A hash is no proof: records are equal iff ``key64`` and ``columns`` are.

All kernels have these obligations:

* Updates of the interval only: ``lower <= time < upper``. A bilinear kernel emits at coordinates
  from ``c`` on that it announces. Rows need not be consolidated, and may have any order.
* For each wanted position a column, in the requested order and of the type of the output's schema.
  The rows equal those with all columns, or omit rows that the wanted columns do not distinguish.
* No rows without a new update, and then columns of the same types.
* Determinism: the output depends on the arguments alone, and not on the cut of ``old``.
* No side effects: arguments do not change, mapped files among them; no I/O, no Spark.
* Kernels travel to the executors: Spark can pickle them, and they have the same output there.

`tests/kernels/test_contract.py` tests this page for every kernel and every stage of the package.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from operator import le
from typing import Callable, ClassVar, Iterator, Sequence, cast

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from pyspark_diff.kernels.accumulators import Accumulator
from pyspark_diff.kernels.coordinates import Limit, unpack
from pyspark_diff.kernels.join import Reached
from pyspark_diff.kernels.layout import Layout
from pyspark_diff.kernels.updates import Int64, PerRow
from pyspark_diff.reasons import Reason
from pyspark_diff.times import Antichain, Coordinate

#: The output of a kernel: the wanted columns, times and diffs. The diffs have the number of rows.
Changes = tuple[Sequence[pa.Array], PerRow, Int64]


class Stage(ABC):
    """A linear operator for runners. A portable stage travels to the executors."""

    #: Whether `on_table` works, so that no Spark is needed to evaluate the stage.
    portable: ClassVar[bool] = True
    #: Spark schema of the input's update rows if the stage is not portable.
    takes: T.StructType | None = None
    #: Whether the stage changes no time and no diff, so that it commutes with consolidation.
    keeps_time_and_diff: bool
    #: Whether the stage raises an error for some rows.
    may_fail: ClassVar[bool] = True

    @abstractmethod
    def on_frame(self, frame: DataFrame) -> DataFrame:
        """The operator on Spark update rows."""

    @abstractmethod
    def on_table(self, table: pa.Table) -> pa.Table:
        """The operator on Arrow update rows."""

    def giving(self, wanted: frozenset[str]) -> Stage:
        """The stage for readers of some output columns. It may emit further columns."""
        return self


@dataclass(frozen=True)
class DiffColumns:
    """Columns that move into the diff, which becomes a vector.

    Parameters
    ----------
    accumulators : tuple of Accumulator
        Components of the vector; each names a column by its number.
    """

    columns: tuple[str, ...]
    accumulators: tuple[Accumulator, ...]


@dataclass(frozen=True)
class Side(Reached):
    """The updates of one arrangement in one bucket, as a kernel receives them.

    Parameters
    ----------
    old : list of Updates
        Batches of updates before the interval, each ordered by (key64, key, value, time).
    earlier : list of Updates
        For bilinear kernels in a loop: processed updates of the interval, in the same order.
    new : Grouped
        Updates of the interval to process, consolidated. For a replay: all updates of the visited
        keys at coordinates up to the current one.
    depth : int
        Number of loops around the arrangement.
    names : tuple of str
        Columns of the records, first the key.
    lower : int or None
        Begin of the interval; None if the interval has no begin.
    limit : Limit or None
        For a replay in a loop, the coordinates of old updates that count.
    frontier : Antichain
        If times are structs, the upper frontier of the step. A replay then also receives joins of
        times, and some of these may be incomplete.
    """

    layout: Layout
    names: tuple[str, ...]
    lower: int | None
    limit: Limit | None = None
    frontier: Antichain = Antichain()

    @property
    def open_from(self) -> int | None:
        """The first time that is not complete at the coordinate of a replay; None if all are."""
        if self.frontier.is_empty or self.limit is None:
            return None
        elements = cast("tuple[tuple[int, ...], ...]", self.frontier.elements)
        at = unpack(self.limit.code, self.limit.depth)
        return min(
            (first for first, *rest in elements if all(map(le, rest, at))), default=None
        )

    def is_complete(self, time: int) -> bool:
        """Whether no update can arrive any more at a time of the interval, at this coordinate."""
        since = self.open_from
        return since is None or time < since

    def is_value(self, name: str) -> bool:
        """Whether a column belongs to the value, and not to the key."""
        return self.names.index(name) >= len(self.layout.types)


class Kernel(ABC):
    """The function of an operator on one bucket. Either a replay or bilinear, see above."""

    #: Whether the output is arranged too, so that a step can look up earlier output.
    arranges_output: bool
    #: Whether the kernel reads its output of earlier steps.
    recalls: ClassVar[bool] = False
    #: Whether keys are times. The kernel then visits only the keys within the interval.
    by_time: ClassVar[bool] = False

    @property
    def reason(self) -> Reason | None:
        """The reason why a change may cost more than its own size, if there is one."""
        return None

    @property
    def visits_all(self) -> bool:
        """Whether a step visits all keys with output, and not only the keys with updates."""
        return False

    @abstractmethod
    def needs(self, wanted: Sequence[int], number: int) -> Sequence[str]:
        """Columns of the arrangement ``number`` from which some output columns are computed.

        The result may omit the columns of the key, which a kernel always receives.
        """


@dataclass(frozen=True)
class ReplayKernel(Kernel):
    """A kernel that replays the history of the keys that have new updates.

    An operator that arranges its input itself has one side, arranged by the whole record.
    """

    arranges_output: bool = field(default=False, kw_only=True)
    #: Whether the kernel reads old updates. If not, the runner does not store its input.
    stateful: ClassVar[bool] = True
    #: Whether the kernel checks its input again when times become complete. Compaction keeps
    #: incomplete times distinct until then.
    looks_at_complete: ClassVar[bool] = False

    @abstractmethod
    def __call__(
        self, sides: Sequence[Side], own: Side | None, wanted: Sequence[int]
    ) -> tuple[Changes, int]:
        """Updates of the wanted output columns, and the number of old rows that were read.

        Parameters
        ----------
        own : Side or None
            The arrangement of the output, without new updates; None if the output is not arranged.
        wanted : sequence of int
            Positions among all output columns.
        """


class RecordKernel(ReplayKernel):
    """A replay kernel that receives whole records of one collection. The key is the whole record or
    its first columns."""

    def needs(self, wanted: Sequence[int], number: int) -> Sequence[str]:
        return []


#: A part of a bilinear kernel's output. A call computes chunks of updates and their packed
#: coordinates.
Part = Callable[[], Iterator[tuple[Changes, PerRow]]]


@dataclass(frozen=True)
class Parts:
    """The output of a bilinear kernel, before its computation.

    Parameters
    ----------
    rows : int
        Upper bound of the number of updates in all parts.
    read : int
        Number of rows that were read.
    coordinates : callable
        Returns the packed coordinates at which the parts may have updates.
    """

    parts: Iterator[Part]
    rows: int
    read: int
    coordinates: Callable[[], list[int]]


class BilinearKernel(Kernel):
    """A kernel that processes each pair of updates once, such as the kernel of a join."""

    arranges_output = False

    @abstractmethod
    def __call__(
        self, sides: Sequence[Side], at: Coordinate, wanted: Sequence[int], most: int
    ) -> Parts:
        """Updates of the wanted output columns, in parts.

        Parameters
        ----------
        sides : sequence of Side
            Two sides.
        at : tuple of int
            The current coordinate; updates belong to it or to greater coordinates.
        wanted : sequence of int
            Positions among all output columns.
        most : int
            A chunk should not have many more updates than this number and than its input.
        """
