"""Linear aggregates: sums that live in the diff.

The diff of a key is a vector of sums (counts, sums, sums of squares), so a group's state is one
row, however many records it has. At every time ``t``, for each key with records then::

    accumulate(aggregate(A), t)[k] = (k, f1(v), f2(v), ...)      v = sum of the records' vectors

Vectors add up like numbers, in any order and any cut, and are taken back like numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from pyspark_diff.errors import DiffOverflowError
from pyspark_diff.kernels.accumulators import Accumulator, layout_of
from pyspark_diff.kernels.diff_vectors import DiffVectors, running
from pyspark_diff.kernels.equality import rows_equal
from pyspark_diff.kernels.lookup import accumulated_vectors
from pyspark_diff.kernels.results import result
from pyspark_diff.operators.contract import Changes, DiffColumns, ReplayKernel, Side
from pyspark_diff.operators.node import Arranged, Keyed, Node, Reader
from pyspark_diff.spark.schema import Schema, arrow_type


@dataclass(frozen=True)
class Formula:
    """One aggregate over the vectors.

    Parameters
    ----------
    name : str
        See `pyspark_diff.kernels.results.result`; or ``"all"`` and ``"any"``,
        of booleans, ``"count true"``, and ``"total"``, a sum in which null is zero.
    accumulators : tuple of Accumulator
        What it is computed from.
    kind : pyarrow.DataType
    scale : int
        Scale of the decimals that are summed.
    ddof : int
    root : bool
    """

    name: str
    accumulators: tuple[Accumulator, ...]
    kind: pa.DataType
    scale: int = 0
    ddof: int = 0
    root: bool = False

    def of(self, vectors: DiffVectors, starts: dict[Accumulator, int]) -> pa.Array:
        """The result for each row of vectors."""
        at = {held.kind: starts[held] for held in self.accumulators}
        if self.name in ("all", "any"):
            true, valid = vectors.values[:, at["true"]], vectors.values[:, at["valid"]]
            found = true == valid if self.name == "all" else true > 0
            return pa.array(found, mask=valid == 0)
        if self.name == "total":
            return pa.array(_totals(vectors.values[:, at["integer"]:at["integer"] + 2]))
        if self.name == "count true":
            return pa.array(vectors.values[:, at["true"]]).cast(self.kind)
        return result(
            self.name, vectors, at, self.kind, scale=self.scale, ddof=self.ddof, root=self.root
        )


def _totals(limbs: np.ndarray) -> np.ndarray:
    """Sums of whole numbers from their two limbs, also where no value is left that is not null."""
    high = limbs[:, 1] + (limbs[:, 0] >> 32)
    if ((high >= 2**31) | (high < -(2**31))).any():
        raise DiffOverflowError(
            "the weights of a record add up to more than 9223372036854775807 in size: check the "
            "weights and diffs that go in"
        )
    return (high << 32) | (limbs[:, 0] & 0xFFFFFFFF)


def total(column: int) -> Formula:
    """The formula of a sum of whole numbers in which null is zero."""
    return Formula("total", (Accumulator("integer", column),), pa.int64())


@dataclass(frozen=True)
class AggregateKernel(ReplayKernel):
    """Where the vector of a key changes, its old row goes and its new row comes.

    Parameters
    ----------
    width : int
        Number of the key's columns, which come first in the output.
    accumulators : tuple of Accumulator
        What the vectors hold.
    formulas : tuple of Formula
        The other columns.
    rows : int or None
        The component that counts records: there is a row where it is not zero. None where any
        component will do.
    """

    width: int
    accumulators: tuple[Accumulator, ...]
    formulas: tuple[Formula, ...]
    rows: int | None

    def needs(self, wanted: Sequence[int], number: int) -> Sequence[str]:
        return []  # the key, and vectors

    def __call__(
        self, sides: Sequence[Side], own: Side | None, wanted: Sequence[int]
    ) -> tuple[Changes, int]:
        side = sides[0]
        new, layout = side.new.updates, side.layout
        vectors = new.diff
        if not isinstance(vectors, DiffVectors):  # no rows: none that could have vectors
            vectors = DiffVectors(np.empty((0, layout_of(self.accumulators)[1]), np.int64))
        base, read = accumulated_vectors(
            side.new.records(), side.old, vectors, side.limit
        )
        before, after = running(vectors, side.new.starts, base)
        chosen = [i - self.width for i in wanted if i >= self.width]
        there, now = self._present(before), self._present(after)
        old, come = self._results(before, chosen), self._results(after, chosen)
        changed = there != now
        both = np.flatnonzero(there & now)
        if chosen and both.size:
            columns = [pa.concat_arrays([a, b]) for a, b in zip(old, come)]
            changed[both] = ~rows_equal(columns, both, both + len(vectors))
        gone, rises = np.flatnonzero(changed & there), np.flatnonzero(changed & now)
        rows = np.concatenate((gone, rises))
        found = []
        for i in wanted:
            if i < self.width:
                found.append(layout.column(new, i, rows))
            else:
                a, b = old[chosen.index(i - self.width)], come[chosen.index(i - self.width)]
                found.append(pa.concat_arrays([a.take(pa.array(gone)), b.take(pa.array(rises))]))
        diff = np.concatenate((np.full(gone.size, -1), np.ones(rises.size, np.int64)))
        return (found, new.times()[rows], diff), read

    def _present(self, vectors: DiffVectors) -> np.ndarray:
        return vectors.nonzero() if self.rows is None else vectors.values[:, self.rows] != 0

    def _results(self, vectors: DiffVectors, chosen: Sequence[int]) -> list[pa.Array]:
        offsets, _, _ = layout_of(self.accumulators)
        starts = dict(zip(self.accumulators, offsets))
        return [self.formulas[i].of(vectors, starts) for i in chosen]


def arrange_sums(
    source: Node, key: Sequence[str], columns: Sequence[str], accumulators: Sequence[Accumulator]
) -> Arranged:
    """The node that keeps, for each key of ``source``, a vector of sums over some columns."""
    diff_columns = DiffColumns(tuple(columns), tuple(accumulators))
    known = (tuple(key), diff_columns)
    if known not in source.arrangements:
        schema = source.schema.only(key)
        node = Keyed("arrange", source, schema, None, key, diff_columns=diff_columns)
        source.arrangements[known] = node
    return source.arrangements[known]


def aggregate(
    source: Node,
    key: Sequence[str],
    columns: Sequence[str],
    formulas: Sequence[tuple[T.StructField, Formula]],
    *,
    arranged: bool = False,
    by_rows: bool = True,
) -> Reader:
    """The node with one row for each key of ``source``: the key, and the formulas' results.

    Parameters
    ----------
    source : Node
    key : sequence of str
    columns : sequence of str
        Columns that accumulators name by their number.
    formulas : sequence of (StructField, Formula)
    arranged : bool
        Whether the output is arranged by the key.
    by_rows : bool
        A key has a row while its records do not add up to none; else while any sum is not zero.
    """
    held: list[Accumulator] = [Accumulator("rows", -1)] if by_rows else []
    for _, formula in formulas:
        held += [a for a in formula.accumulators if a not in held]
    kernel = AggregateKernel(
        len(key), tuple(held), tuple(f for _, f in formulas), 0 if by_rows else None,
        arranges_output=arranged,
    )
    fields = [source.schema.struct[name] for name in key]
    schema = Schema(T.StructType([*fields, *(field for field, _ in formulas)]))
    node = arrange_sums(source, key, columns, held)
    return Reader("aggregate", (node,), schema, kernel, key)


def formula(function: str, argument: T.DataType | None, column: int, kind: T.DataType,
            *, exact: bool = False) -> Formula:
    """The formula of a linear aggregate function.

    Parameters
    ----------
    function : str
        ``count``, ``count_if``, ``sum``, ``avg``, ``bool_and``, ``bool_or``, ``var_samp``,
        ``var_pop``, ``stddev_samp`` or ``stddev_pop``.
    argument : DataType or None
        Type of its column; None for ``count(*)``.
    column : int
        Number of its column.
    kind : DataType
        Type of the result.
    exact : bool
        Sum floats exactly, and round once.
    """
    made = arrow_type(kind)
    valid, true = (Accumulator(name, column) for name in ("valid", "true"))
    if function == "count":
        return Formula("count", (Accumulator("rows", -1) if argument is None else valid,), made)
    if function == "count_if":
        return Formula("count true", (true,), made)
    if function in ("bool_and", "bool_or"):
        return Formula("all" if function == "bool_and" else "any", (valid, true), made)
    if isinstance(argument, T.DecimalType):
        held = (valid, Accumulator("decimal", column))
        return Formula(f"{function} decimal", held, made, scale=argument.scale)
    floating = isinstance(argument, (T.FloatType, T.DoubleType))
    sums = Accumulator(("exact" if exact else "float") if floating else "integer", column)
    if function in ("sum", "avg"):
        suffix = (" exact" if exact else " float") if floating else ""
        return Formula(function + suffix, (valid, sums), made)
    squares = Accumulator("float square" if floating else "square", column)
    if floating:
        sums = Accumulator("float", column)
    return Formula(
        "variance float" if floating else "variance",
        (valid, sums, squares),
        made,
        ddof=1 if function.endswith("_samp") else 0,
        root=function.startswith("stddev"),
    )
