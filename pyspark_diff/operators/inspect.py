"""Inspect: a collection passed on unchanged, and a function that receives its new updates.

For the updates ``U`` of a step, in order of time::

    inspect(A, f) = A,   and f(record, time, diff) for each of U

where record and time have the Python values that ``collect`` returns.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from typing import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from pyspark_diff.kernels.layout import as_int64
from pyspark_diff.kernels.time_order import in_time_order, rearranged
from pyspark_diff.kernels.updates import joined
from pyspark_diff.operators.node import Node
from pyspark_diff.spark.data_types import arrow_type
from pyspark_diff.spark.schema import DIFF, TIME
from pyspark_diff.spark.values import to_rows


@dataclass(frozen=True, eq=False, repr=False)
class Inspect(Node):
    """Passes a collection on unchanged, and calls a function with its updates.

    Parameters
    ----------
    by_table : bool
        Whether the function takes a table.
    names : tuple of str
        Names of a record's columns for the user, who may have two columns of one name.
    """

    kind = "inspect"
    source: InitVar[Node]
    show: Callable[..., object]
    by_table: bool
    names: tuple[str, ...]

    def __post_init__(self, source: Node) -> None:
        self._settle((source,), schema=source.schema)

    def calls(
        self, tables: Sequence[pa.Table], time: str, diff: str, at: tuple[int, ...] = ()
    ) -> Iterable[tuple[object, ...]]:
        """The arguments of each call of the function for the updates of one step, always in the
        same order. The columns have the user's names.

        In a loop the iteration is a part of the time. If times are structs, the function receives
        tuples, and tables have structs.
        """
        tables = [table for table in tables if table.num_rows or not at]
        if not tables:
            return []
        (table,) = in_order(list(tables))
        if self.by_table:
            table = table.rename_columns([*self.schema.names, time, diff])
            kind = None if self.loop is None else self.loop.time_type()
            if kind is not None:
                # All fields but the first are the coordinates of the outermost loops.
                place, more = table.num_columns - 2, len(kind.fields) - 1
                parts = [joined([table.column(place)])]
                parts += [pa.array(np.full(table.num_rows, n, np.int64)) for n in at[:more]]
                whole = pa.StructArray.from_arrays(parts, kind.names).cast(arrow_type(kind))
                table, at = table.set_column(place, time, whole), at[more:]
            if at:
                turn = pa.array([list(at)] * table.num_rows, pa.list_(pa.int64()))
                table = table.append_column("iteration", turn)
            return [(table,)]
        # A call for each update is slow, but callers without by_table inspect few updates.
        fields = zip(self.names, self.schema.struct.fields)
        struct = T.StructType([T.StructField(name, field.dataType) for name, field in fields])
        records = to_rows(table.select(self.schema.names), struct)
        times = map(self.time_type.decode, as_int64(table[TIME].combine_chunks()).to_pylist())
        moments = ((time, *at) for time in times) if at else times
        return zip(records, moments, table[DIFF].to_pylist())


def in_order(tables: list[pa.Table]) -> list[pa.Table]:
    """Update rows in order of time, as one table.

    The function empties the list. If no other reference to its tables exists, each column is freed
    after its reordering, so that memory never contains all rows twice.
    """
    table = pa.concat_tables(tables)
    tables.clear()
    places = in_time_order(as_int64(joined([table[TIME]])).to_numpy())
    if places is None:
        return [table]
    schema, columns = table.schema, table.columns
    del table
    columns.reverse()
    ordered = []
    while columns:
        ordered.append(rearranged(columns.pop(), places))
    return [pa.Table.from_arrays(ordered, schema=schema)]
