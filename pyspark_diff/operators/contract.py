"""The contract of an operator: what each of its parts may rely on, and what it has to leave behind.

With ``A_t`` for ``A`` accumulated at ``t``, an operator ``O = F(A, B, ...)`` is right iff at every
time and in every step ``[lower, upper)``, however its updates were cut into steps::

    O_t = F(A_t, B_t, ...)

Its parts are of three kinds. Each gets some updates, and gives updates.

``Stage``, linear: any updates ``U`` and ``V``, in any order, cut anywhere, and not consolidated::

    f(U + V) = f(U) + f(V)                                     (as sums of updates)
    on_frame = on_table                                        where it is portable

``ReplayKernel``: one bucket, all times of the interval at once. With ``A = old + new`` of each
side, as far as the keys of the new updates go, and any number of steps behind each other::

    sum(given, time <= t) = F(sum(old + new, time <= t)) - F(sum(old))     for every t >= lower

In a loop it is run at a coordinate ``c``, and the sums are over coordinates up to ``c``. What
was given at smaller ones is the runner's to take off. Outside of loops ``c`` is ``()``.

One that is not stateful makes no use of what is old, and so its arguments need not be kept. With
``F`` the fold of the new updates, in order of time, over what the operator gave before, and ``G``
that::

    sum(G + given, time <= t) = F(sum(G), updates of new up to t in order)

One whose keys are times gives something of each record at the time that is its key, whether or not
anything new has come. It is shown those before the end of the interval, of the old ones those in
it, and of them all it gives what it gives of each::

    given = f({ u in old + new : lower <= key(u) < upper })

``BilinearKernel``: one bucket, one coordinate ``c``. Each pair of updates of both
sides is met once, at the coordinate and in the step of the later one of the two::

    given = { (a x b, max(times), lub(coordinates)): diff * diff :  a, b not both met before }

so nothing has to be known of what was given before, and nothing is taken back. Outside of loops
all updates are at ``()``, and the new ones of the step are processed. As pairs can be many more
than updates, they are given in parts, each made when it is asked for: in the same order and cut at
the same places for the same arguments, so that who has some of them can ask for the others later.

All kernels may rely on this, for each `Side`:

* ``old`` are the updates before ``lower``, in any number of batches: each ordered by
  ``(key64, key, value, coordinate, time)`` and consolidated, and the value in the arrangement's
  ordering if it has one. Their times may have been advanced, to ``lower`` at most: only their sum
  counts. A record may be in several batches, and its rows may cancel.
* ``new`` are updates with ``lower <= time < upper``, all under consideration in one set: in that
  same order, consolidated.
* Equal keys of all sides are in the same bucket, so no other bucket matters.
* A hash is no proof: records are equal iff ``key64`` and ``columns`` are.

And all leave this behind:

* Updates of the interval only: ``lower <= time < upper``, those of a bilinear one at coordinates
  from ``c`` on that it names. Rows need not be consolidated, and come in any order.
* For each wanted position a column, in the order asked for and of the type of the output's schema;
  rows are what they would be with all columns, or as few of them as those columns can tell apart.
* Nothing for nothing: no rows where there is no new update, and columns of the same types.
* The same for the same: it depends on its arguments alone, and not on how ``old`` is cut.
* Nothing else: arguments stay as they are, mapped files among them; no I/O, no Spark.
* It travels to the executors: it can be pickled (as Spark does it), and does the same there.

`tests/test_contract.py` holds every kernel and every stage of the package to this page.
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

#: What a kernel gives: the wanted output columns, times and diffs. The diffs tell how many rows.
Changes = tuple[Sequence[pa.Array], PerRow, Int64]


class Stage(ABC):
    """A linear operator, as runners see it. Travels to the executors where it is portable."""

    #: Whether `on_table` works, so that no Spark is needed to evaluate the stage.
    portable: ClassVar[bool] = True
    #: Spark schema of the update rows it takes, where it is not portable.
    takes: T.StructType | None = None
    #: Whether time and diff of every row stay what they are.
    keeps_time_and_diff: bool
    #: Whether there are rows that it refuses.
    may_fail: ClassVar[bool] = True

    @abstractmethod
    def on_frame(self, frame: DataFrame) -> DataFrame:
        """The operator on Spark update rows."""

    @abstractmethod
    def on_table(self, table: pa.Table) -> pa.Table:
        """The operator on Arrow update rows."""

    def giving(self, wanted: frozenset[str]) -> Stage:
        """The stage where only some columns of what it gives are read; it may give more."""
        return self


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
class Side(Reached):
    """What a kernel sees of one arrangement, in one bucket.

    Parameters
    ----------
    old : list of Updates
        Batches of updates before the interval, each ordered by (key64, key, value, time).
    earlier : list of Updates
        For bilinear kernels in a loop: updates of the interval that have been processed, likewise.
    new : Grouped
        Updates of the interval, consolidated: those that are processed; for a replay all those
        under the keys that have to be visited, at coordinates up to the one that is processed.
    depth : int
        Number of loops around the arrangement.
    layout : Layout
    names : tuple of str
        Columns of the records, those of the key first.
    lower : int or None
        Where the interval begins; None where it has no beginning.
    limit : Limit or None
        For a replay in a loop, the coordinates of old updates that count.
    frontier : Antichain
        Where times are structs, that up to which the step goes: a replay is also shown times at
        which others meet, and that are not complete.
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
        """Whether nothing can come any more at a time of the interval, and at its coordinate."""
        since = self.open_from
        return since is None or time < since

    def is_value(self, name: str) -> bool:
        """Whether a column is one of the value, and not of the key."""
        return self.names.index(name) >= len(self.layout.types)


class Kernel(ABC):
    """The function of an operator on one bucket. Either a replay or bilinear, see above."""

    #: Whether the output is arranged too, so that what was given before can be found again.
    arranges_output: bool
    #: Whether it looks up in a step what it gave in those before.
    recalls: ClassVar[bool] = False
    #: Whether its keys are times, so that it visits those of the interval, and is shown nothing
    #: else.
    by_time: ClassVar[bool] = False

    @property
    def reason(self) -> Reason | None:
        """Why a change may cost more than itself, if it may."""
        return None

    @property
    def visits_all(self) -> bool:
        """Whether it visits all keys that it gave anything for, and not only those with updates."""
        return False

    @abstractmethod
    def needs(self, wanted: Sequence[int], number: int) -> Sequence[str]:
        """Columns of the arrangement with this number that some output columns are made of.

        The columns of its key need not be named: they are always there.
        """


@dataclass(frozen=True)
class ReplayKernel(Kernel):
    """A kernel that replays the history of the keys that have new updates.

    An operator that takes its input in by itself has one side, arranged by the whole record.

    Parameters
    ----------
    arranges_output : bool
    """

    arranges_output: bool = field(default=False, kw_only=True)
    #: Whether it looks at what is old; if not, its input need not be kept.
    stateful: ClassVar[bool] = True
    #: Whether what it has taken in is looked at again when its times have become complete: until
    #: then they are told apart.
    looks_at_complete: ClassVar[bool] = False

    @abstractmethod
    def __call__(
        self, sides: Sequence[Side], own: Side | None, wanted: Sequence[int]
    ) -> tuple[Changes, int]:
        """Updates of the wanted output columns, and how many old rows were read.

        Parameters
        ----------
        sides : sequence of Side
        own : Side or None
            The arrangement of its output, without new updates; None where that is not arranged.
        wanted : sequence of int
            Positions among all output columns.
        """


class RecordKernel(ReplayKernel):
    """A replay kernel of one collection, of which it sees whole records: the key is all of one, or
    begins it."""

    def needs(self, wanted: Sequence[int], number: int) -> Sequence[str]:
        return []


#: A part of what a bilinear kernel gives, made when it is called: chunks of updates, and where they
#: belong, packed.
Part = Callable[[], Iterator[tuple[Changes, PerRow]]]


@dataclass(frozen=True)
class Parts:
    """What a bilinear kernel gives, before it is made.

    Parameters
    ----------
    parts : iterator of Part
    rows : int
        So many updates they have, or less.
    read : int
        How many rows were read.
    coordinates : callable
        Gives the coordinates, packed, at which there may be any.
    """

    parts: Iterator[Part]
    rows: int
    read: int
    coordinates: Callable[[], list[int]]


class BilinearKernel(Kernel):
    """A kernel to which each pair of updates is new once, like that of a join."""

    arranges_output = False

    @abstractmethod
    def __call__(
        self, sides: Sequence[Side], at: Coordinate, wanted: Sequence[int], most: int
    ) -> Parts:
        """Updates of the wanted output columns, in parts.

        Parameters
        ----------
        sides : sequence of Side
            Two of them.
        at : tuple of int
            The coordinate that is processed; what is given belongs there or behind it.
        wanted : sequence of int
            Positions among all output columns.
        most : int
            No chunk is to have many more updates than this, nor than its input has.
        """
