"""Inspect: a collection passed on unchanged, whose new updates a function is shown.

For the updates ``U`` of a step, in order of time::

    inspect(A, f) = A,   and f(record, time, diff) for each of U
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from typing import Callable, Sequence

import pyarrow as pa

from pyspark_diff.operators.node import Node
from pyspark_diff.spark.schema import DIFF, TIME


@dataclass(frozen=True, eq=False, repr=False)
class Inspect(Node):
    """Passes a collection on unchanged, and shows its updates to a function."""

    kind = "inspect"
    source: InitVar[Node]
    show: Callable[..., object]
    by_table: bool

    def __post_init__(self, source: Node) -> None:
        self._settle((source,), schema=source.schema)

    def show_updates(
        self, tables: Sequence[pa.Table], time: str, diff: str, at: tuple[int, ...] = ()
    ) -> None:
        """Call the function on the updates of one step, under the user's names of the columns.

        In a loop the iteration is a part of the time.
        """
        tables = [table for table in tables if table.num_rows or not at]
        if not tables:
            return
        table = pa.concat_tables(tables).sort_by(TIME)
        if self.by_table:
            table = table.rename_columns([*self.schema.names, time, diff])
            if at:
                turn = pa.array([list(at)] * table.num_rows, pa.list_(pa.int64()))
                table = table.append_column("iteration", turn)
            self.show(table)
            return
        # A function that wants one update at a time is called for each; inspect is for few.
        columns = [table.column(name).to_pylist() for name in self.schema.names]
        rows = zip(*columns) if columns else iter([()] * table.num_rows)
        for row, moment, count in zip(rows, table[TIME].to_pylist(), table[DIFF].to_pylist()):
            self.show(row, (moment, *at) if at else moment, count)
