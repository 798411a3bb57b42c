"""Checked: a collection as it is, of which something is claimed at every time.

At every time ``t``, for each record ``r`` with accumulated diff ``n``::

    the claim holds of n   ⟹   accumulate(checked(A), t)[r] = n,   else an error

That no more of a record is removed than was inserted is ``n >= 0``; that there is none, ``n = 0``;
and that two collections are equal, that there is none in their difference.

In steps, where times are structs, updates come at times that are not complete yet, and others may
make up for them, so that there it is looked at what is complete at a frontier ``F``. No time before
one that is complete is incomplete, so of consolidated updates::

    accumulate(A, t) = 0 for every t that is complete at F   ⟺   A has no update at such a t

From right to left that is plain; and at a least time of an update the accumulation is its diff.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa

from pyspark_diff.errors import AssertionFailedError, DiffError, NegativeMultiplicityError
from pyspark_diff.kernels.coordinates import unpack
from pyspark_diff.kernels.layout import Layout, as_int64
from pyspark_diff.kernels.lookup import replay_on
from pyspark_diff.kernels.updates import Int64, Updates, joined
from pyspark_diff.operators.contract import Changes, RecordKernel, Side
from pyspark_diff.operators.node import Keyed, Node
from pyspark_diff.spark.schema import TimeType
from pyspark_diff.times import Coordinate

#: So many records are named.
NAMED = 3


class Claim(ABC):
    """What is claimed of a collection, at every time."""

    @abstractmethod
    def broken(self, counts: Int64) -> np.ndarray:
        """Whether each of some multiplicities must not be."""

    @abstractmethod
    def error(self, when: str, records: Sequence[tuple[str, int]], more: bool) -> DiffError:
        """The error to be raised.

        Parameters
        ----------
        when : str
            The first time at which there is any.
        records : sequence of (str, int)
            Some that must not be, with their multiplicities.
        more : bool
            Whether there are more of them.
        """


@dataclass(frozen=True)
class NoneNegative(Claim):
    """No more of a record was removed than was inserted."""

    def broken(self, counts: Int64) -> np.ndarray:
        return counts < 0

    def error(self, when: str, records: Sequence[tuple[str, int]], more: bool) -> DiffError:
        named = [f"{row} stands with the multiplicity {count}" for row, count in records]
        return NegativeMultiplicityError(
            f"at time {when} {', '.join(named + ['...'] * more)}: more of it was removed than was "
            "inserted. Remove only what is there"
        )


@dataclass(frozen=True)
class NothingThere(Claim):
    """There is no record, or none that one of two collections has and the other has not.

    Parameters
    ----------
    columns : tuple of str
        As the user calls them.
    message : str or None
        What the user says of it.
    of_two : bool
        Whether it is the difference of two collections.
    """

    columns: tuple[str, ...]
    message: str | None
    of_two: bool = False

    def broken(self, counts: Int64) -> np.ndarray:
        return counts != 0

    def error(self, when: str, records: Sequence[tuple[str, int]], more: bool) -> DiffError:
        named = [
            f"{row} {abs(count)} times more {'here' if count > 0 else 'in the other'}"
            if self.of_two else f"{row} with the multiplicity {count}" for row, count in records
        ]
        what = "was to be equal to another one" if self.of_two else "was to be empty"
        said = f"{self.message}: " if self.message else ""
        return AssertionFailedError(
            f"{said}a collection of ({', '.join(self.columns)}) {what}, and is not at time {when}: "
            f"there is {', '.join(named + ['...'] * more)}"
        )


@dataclass(frozen=True)
class CheckedKernel(RecordKernel):
    """The updates as they come, each accumulation being looked at.

    Parameters
    ----------
    time_type : TimeType
    claim : Claim
    """

    time_type: TimeType
    claim: Claim = NoneNegative()

    def __call__(
        self, sides: Sequence[Side], own: Side | None, wanted: Sequence[int]
    ) -> tuple[Changes, int]:
        (side,) = sides
        new = side.new.updates
        _, after, read = replay_on(side.old, side.new, side.limit)
        columns = side.layout.decode(new)
        wrong = np.flatnonzero(self.claim.broken(after))
        if wrong.size:
            times = new.times()
            first = wrong[times[wrong] == times[wrong].min()]
            # NAMED of them at most, for the message.
            records = [column.take(pa.array(first[:NAMED])).to_pylist() for column in columns]
            rows = map(repr, zip(*records) if records else [()])
            moment = self.time_type.decode(int(times[first[0]]))
            # It is in no loop but those that fields of times are.
            rest = () if side.limit is None else unpack(side.limit.code, side.limit.depth)
            when = repr((moment, *rest) if rest else moment)
            counts = after[first[:NAMED]].tolist()
            error = self.claim.error(when, list(zip(rows, counts)), first.size > NAMED)
            error.first_time = int(times[first[0]])
            raise error
        return ([columns[i] for i in wanted], new.times(), new.diffs()), read


@dataclass(frozen=True)
class CompleteKernel(RecordKernel):
    """Nothing: what is taken in is kept, and looked at when its times are complete.

    Parameters
    ----------
    time_type : TimeType
        Of the first field of times. The others are the last columns, the innermost one first.
    fields : int
        How many these are.
    claim : NothingThere
    """

    time_type: TimeType
    fields: int
    claim: NothingThere
    looks_at_complete = True

    def __call__(
        self, sides: Sequence[Side], own: Side | None, wanted: Sequence[int]
    ) -> tuple[Changes, int]:
        none = np.empty(0, np.int64)
        columns = sides[0].layout.decode(sides[0].new.updates.between(0, 0))
        return ([columns[i] for i in wanted], none, none), 0

    def check(
        self, kept: Iterable[Updates], layout: Layout,
        complete: Callable[[Sequence[Int64]], np.ndarray],
    ) -> None:
        """Look at what was taken in at the times that are complete.

        Parameters
        ----------
        kept : iterable of Updates
            Consolidated: all of a record in one of them.
        layout : Layout
        complete : callable
            Tells of times, field by field, which are complete.

        Raises
        ------
        AssertionFailedError
        """
        first: Coordinate | None = None
        named: list[tuple[str, int]] = []
        for updates in kept:
            columns = layout.decode(updates)
            rest = [as_int64(joined([part])).to_numpy() for part in columns[-self.fields:][::-1]]
            parts = [updates.times(), *rest]
            wrong = np.flatnonzero(complete(parts))
            if not wrong.size:
                continue
            # The first one in the order of fields: none is before it in all of them.
            least = wrong[np.lexsort([part[wrong] for part in reversed(parts)])[0]]
            time = tuple(int(part[least]) for part in parts)
            if first is not None and first < time:
                continue
            if first != time:
                first, named = time, []
            there = np.logical_and.reduce([part[wrong] == at for part, at in zip(parts, time)])
            # NAMED of them at most, for the message, and one to tell that there are more.
            some = wrong[there][:NAMED + 1]
            records = [column.take(pa.array(some)).to_pylist() for column in columns[:-self.fields]]
            rows = map(repr, zip(*records) if records else [()] * some.size)
            named += zip(rows, updates.diffs()[some].tolist())
        if first is not None:
            when = repr((self.time_type.decode(first[0]), *first[1:]))
            raise self.claim.error(when, named[:NAMED], len(named) > NAMED)


def checked_when_complete(source: Node, fields: int, claim: NothingThere, kind: str) -> Keyed:
    """The node that refuses what is not as claimed at a complete time, where times are structs.

    Parameters
    ----------
    source : Node
        With the fields of times but for the first as so many last columns, the innermost one first.
    fields : int
    claim : NothingThere
    kind : str
    """
    return Keyed(kind, source, source.schema, CompleteKernel(source.time_type, fields, claim))


def checked(source: Node, claim: Claim = NoneNegative(), kind: str = "checked") -> Keyed:
    """The node that gives its input, and refuses what is not as claimed."""
    return Keyed(kind, source, source.schema, CheckedKernel(source.time_type, claim))
