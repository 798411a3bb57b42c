"""Checked: a collection passed on unchanged, with a claim that must hold at every time.

At every time ``t``, for each record ``r`` with accumulated diff ``n``::

    n satisfies the claim   ⟹   accumulate(checked(A), t)[r] = n,   else an error

The claim that no more of a record is removed than was inserted is ``n >= 0``. The claim that a
collection is empty is ``n = 0``. Two collections are equal iff their difference is empty.

If times are structs, a step may contain updates at times that are not complete, and later updates
may cancel them. So the check considers only times that are complete at a frontier ``F``. All times
before a complete time are complete. Hence for consolidated updates::

    accumulate(A, t) = 0 for every t that is complete at F   ⟺   A has no update at such a t

From right to left this is plain. From left to right: at a minimal time of an update the
accumulation is its diff.
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
from pyspark_diff.kernels.updates import Int64, UpdateChunk, joined
from pyspark_diff.operators.contract import Changes, RecordKernel, Side
from pyspark_diff.operators.node import Keyed, Node
from pyspark_diff.spark.schema import TimeType
from pyspark_diff.times import Coordinate

#: Number of records that a message names.
NAMED = 3


class Claim(ABC):
    """A claim about a collection, at every time."""

    @abstractmethod
    def broken(self, counts: Int64) -> np.ndarray:
        """Whether each multiplicity breaks the claim."""

    @abstractmethod
    def error(self, when: str, records: Sequence[tuple[str, int]], more: bool) -> DiffError:
        """The error to be raised.

        Parameters
        ----------
        when : str
            The first time at which the claim is broken.
        records : sequence of (str, int)
            Some records that break the claim, with their multiplicities.
        more : bool
            Whether further records break the claim.
        """


@dataclass(frozen=True)
class NoneNegative(Claim):
    """No more of a record was removed than was inserted."""

    def broken(self, counts: Int64) -> np.ndarray:
        return counts < 0

    def error(self, when: str, records: Sequence[tuple[str, int]], more: bool) -> DiffError:
        rows = [f"{row} has the multiplicity {count}" for row, count in records]
        return NegativeMultiplicityError(
            f"at time {when} {', '.join(rows + ['...'] * more)}: more was removed than was "
            "inserted. Remove only records of the collection"
        )


@dataclass(frozen=True)
class NothingThere(Claim):
    """The collection is empty, or the difference of two collections is.

    Parameters
    ----------
    columns : tuple of str
        The user's names of the columns.
    message : str or None
        The user's description of the assertion.
    of_two : bool
        Whether the collection is the difference of two collections.
    """

    columns: tuple[str, ...]
    message: str | None
    of_two: bool = False

    def broken(self, counts: Int64) -> np.ndarray:
        return counts != 0

    def error(self, when: str, records: Sequence[tuple[str, int]], more: bool) -> DiffError:
        rows = [
            f"{row} {abs(count)} times more {'here' if count > 0 else 'in the other'}"
            if self.of_two else f"{row} with the multiplicity {count}" for row, count in records
        ]
        claim = "was to be equal to another one" if self.of_two else "was to be empty"
        prefix = f"{self.message}: " if self.message else ""
        return AssertionFailedError(
            f"{prefix}a collection of ({', '.join(self.columns)}) {claim}, and is not at time "
            f"{when}: there is {', '.join(rows + ['...'] * more)}"
        )


@dataclass(frozen=True)
class CheckedKernel(RecordKernel):
    """Passes updates on unchanged, and checks each accumulation."""

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
            records = [column.take(pa.array(first[:NAMED])).to_pylist() for column in columns]
            rows = map(repr, zip(*records) if records else [()])
            moment = self.time_type.decode(int(times[first[0]]))
            # The only loops around the operator are those of the fields of times.
            rest = () if side.limit is None else unpack(side.limit.code, side.limit.depth)
            when = repr((moment, *rest) if rest else moment)
            counts = after[first[:NAMED]].tolist()
            error = self.claim.error(when, list(zip(rows, counts)), first.size > NAMED)
            error.first_time = int(times[first[0]])
            raise error
        return ([columns[i] for i in wanted], new.times(), new.diffs()), read


@dataclass(frozen=True)
class CompleteKernel(RecordKernel):
    """Emits nothing: the runner stores the input, and checks it when its times are complete.

    Parameters
    ----------
    time_type : TimeType
        Type of the first field of times. The last columns are the other fields, innermost first.
    fields : int
        Number of the other fields.
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
        self, batches: Iterable[UpdateChunk], layout: Layout,
        complete: Callable[[Sequence[Int64]], np.ndarray],
    ) -> None:
        """Check the stored updates at the times that are complete.

        Parameters
        ----------
        batches : iterable of UpdateChunk
            Consolidated; each record has all its updates in one batch.
        complete : callable
            Reports for times, field by field, whether each is complete.

        Raises
        ------
        AssertionFailedError
        """
        first: Coordinate | None = None
        named: list[tuple[str, int]] = []
        for updates in batches:
            columns = layout.decode(updates)
            rest = [as_int64(joined([part])).to_numpy() for part in columns[-self.fields:][::-1]]
            parts = [updates.times(), *rest]
            wrong = np.flatnonzero(complete(parts))
            if not wrong.size:
                continue
            # The first time in the order of fields: no other time precedes it in every field.
            least = wrong[np.lexsort([part[wrong] for part in reversed(parts)])[0]]
            time = tuple(int(part[least]) for part in parts)
            if first is not None and first < time:
                continue
            if first != time:
                first, named = time, []
            at_time = np.logical_and.reduce([part[wrong] == at for part, at in zip(parts, time)])
            # The message names NAMED records; a further record shows that there are more.
            some = wrong[at_time][:NAMED + 1]
            records = [column.take(pa.array(some)).to_pylist() for column in columns[:-self.fields]]
            rows = map(repr, zip(*records) if records else [()] * some.size)
            named += zip(rows, updates.diffs()[some].tolist())
        if first is not None:
            when = repr((self.time_type.decode(first[0]), *first[1:]))
            raise self.claim.error(when, named[:NAMED], len(named) > NAMED)


def checked_when_complete(source: Node, fields: int, claim: NothingThere, kind: str) -> Keyed:
    """The node that raises an error if a claim is broken at a complete time of struct type.

    Parameters
    ----------
    source : Node
        Its last columns are the fields of times except the first, innermost first.
    """
    return Keyed(kind, source, source.schema, CompleteKernel(source.time_type, fields, claim))


def checked(source: Node, claim: Claim = NoneNegative(), kind: str = "checked") -> Keyed:
    """The node that passes its input on, and raises an error if a claim is broken."""
    return Keyed(kind, source, source.schema, CheckedKernel(source.time_type, claim))
