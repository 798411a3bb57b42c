"""Reduce: a user's own function of the values of each key.

At every time ``t``, for each key ``k`` with values at ``t``::

    accumulate(reduce(A, f), t)[(k, *)] = f(k, the values of k in A accumulated at t)

The kernel calls ``f`` for the keys that a step touches, and only at the times at which their
accumulated values change. The earlier output is stored, so the kernel retracts it exactly.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Sequence

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import types as T

from pyspark_diff.errors import (
    DiffError,
    FunctionError,
    NegativeMultiplicityError,
    NonDeterministicError,
    SchemaError,
)
from pyspark_diff.kernels import ranking
from pyspark_diff.kernels.consolidate import consolidate
from pyspark_diff.kernels.history import distinct_keys, history, key_lengths
from pyspark_diff.kernels.jit import interrupted
from pyspark_diff.kernels.pauses import pause
from pyspark_diff.kernels.updates import Int64, UpdateChunk, concat, joined
from pyspark_diff.operators.contract import Changes, ReplayKernel, Side
from pyspark_diff.operators.node import Arranged, Reader
from pyspark_diff.reasons import GROUP_FUNCTION, Reason
from pyspark_diff.spark.pandas_frames import check_zones, from_series, to_frame
from pyspark_diff.spark.schema import Schema, TimeType
from pyspark_diff.spark.values import python_values, to_array

#: The forms in which a function receives values.
FORMS = ("rows", "pandas", "arrow")


@dataclass(frozen=True)
class ReduceKernel(ReplayKernel):
    """A user's function on the replayed history of each touched key.

    Parameters
    ----------
    form : {"rows", "pandas", "arrow"}
    values : tuple of str
        Columns that are not part of the key.
    schema : pyarrow.Schema
        Columns of the function's result.
    diff : str
        Name of the column of multiplicities in the tables that the function receives.
    allow_negative : bool
        Whether the function takes values with negative multiplicities.
    """

    function: Callable[..., Any]
    form: str
    values: tuple[str, ...]
    schema: pa.Schema
    time_type: TimeType
    diff: str
    allow_negative: bool
    recalls = True

    @property
    def reason(self) -> Reason:
        return GROUP_FUNCTION

    def needs(self, wanted: Sequence[int], number: int) -> Sequence[str]:
        return self.values

    def __call__(
        self, sides: Sequence[Side], own: Side | None, wanted: Sequence[int]
    ) -> tuple[Changes, int]:
        side = sides[0]
        if own is None:
            raise ValueError("a reduce arranges its output")
        if not len(side.new.updates):
            none = np.empty(0, np.int64)
            columns = own.layout.decode(own.new.updates)
            return ([columns[i] for i in wanted], none, none), 0
        replay = _ReduceReplay(self, side)
        keys = distinct_keys(side.new)
        results = replay.run()
        group, read, recorded = history(side.new, own.old, side.lower, limit=own.limit)
        parts = []
        if recorded is not None:
            # The first change of a key retracts all its rows; equal new rows cancel with them.
            parts.append(recorded.at(replay.first[group], -recorded.diffs()))
        encoded = self._encoded(own, side, keys, results)
        if encoded is not None:
            parts.append(encoded)
        self._check_returns(replay, results, encoded, recorded, group)
        rows = consolidate(concat(parts)).updates
        columns = own.layout.decode(rows)  # the key first, as in the output
        return ([columns[i] for i in wanted], rows.times(), rows.diffs()), read + replay.read

    def _encoded(
        self, own: Side, side: Side, keys: UpdateChunk, results: "_Results"
    ) -> UpdateChunk | None:
        if not results.group:
            return None
        index = np.array(results.group, dtype=np.int64)
        columns = side.layout.decode_key(keys.take(index))
        if self.form == "rows":
            for i, field in enumerate(self.schema):
                try:
                    values = [row[i] for row in results.rows]
                    columns.append(to_array(values, field.type, zoned=True))
                except TypeError as wrong:
                    raise SchemaError(
                        f"reduce's function returned a value for column {field.name!r} that is "
                        f"not a {field.type}: {wrong}"
                    ) from wrong
        else:
            table = pa.concat_tables(results.tables)
            columns += [joined([column]) for column in table.columns]
        return own.layout.encode(
            columns, np.array(results.time, np.int64), np.array(results.diff, np.int64)
        )

    def _check_returns(
        self,
        replay: "_ReduceReplay",
        results: "_Results",
        encoded: UpdateChunk | None,
        recorded: UpdateChunk | None,
        group: Int64,
    ) -> None:
        """Check that a key whose values return to those before the step has the result before."""
        if not results.returned:
            return
        groups = np.array(results.group, dtype=np.int64)
        times = np.array(results.time, dtype=np.int64)
        for key, time in results.returned:  # few keys return to their values within one step
            parts = []
            if encoded is not None:
                current = (groups == key) & (times == time) & (np.array(results.diff) > 0)
                parts.append(encoded.take(current).at(0, 1))
            if recorded is not None:
                before = recorded.take(group == key)
                parts.append(before.at(0, -before.diffs()))
            if len(consolidate(concat(parts)).updates):
                replay.refuse(key, time)


@dataclass
class _Results:
    """The function's results: rows, or tables, with the key, time and diff of each row."""

    rows: list[tuple[Any, ...]]
    tables: list[pa.Table]
    group: list[int]
    time: list[int]
    diff: list[int]
    #: Keys and times at which the values equal the values before the step.
    returned: list[tuple[int, int]]


class _ReduceReplay:
    """The function's calls in one bucket, one for each key and time at which values change."""

    def __init__(self, kernel: ReduceKernel, side: Side):
        self.kernel, self.side = kernel, side
        new = side.new.updates
        self._old_group, self.read, old = history(
            side.new, side.old, side.lower, limit=side.limit
        )
        parts = [new] if old is None else [old, new]
        self._offset = 0 if old is None else len(old)
        pieces = [side.layout.decode_value(part) for part in parts]
        columns = [joined(list(column)) for column in zip(*pieces)]
        rows = self._offset + len(new)
        code = np.zeros(rows, np.int64)
        if columns:
            code = ranking.codes(columns, ((False, False),) * len(columns))
        _, first, self._value = np.unique(code, return_index=True, return_inverse=True)
        #: Each value once, in order.
        self._values = pa.Table.from_arrays(
            [column.take(pa.array(first)) for column in columns], names=list(kernel.values)
        )
        # A function of rows receives Python values; each distinct value is converted once.
        self._tuples: list[tuple[Any, ...]] = []
        if kernel.form == "rows":
            plain = [python_values(column) for column in self._values.columns]
            self._tuples = list(zip(*plain)) if plain else [()] * first.size
        self._old_diff = [] if old is None else old.diffs().tolist()
        keys = [python_values(column) for column in side.layout.decode_key(distinct_keys(side.new))]
        lengths = key_lengths(side.new)
        self._keys = list(zip(*keys)) if keys else [()] * lengths.size
        self._group = np.repeat(np.arange(lengths.size), lengths)
        self._times = new.times()
        #: When each key first changes.
        self.first = np.full(lengths.size, np.iinfo(np.int64).max)
        np.minimum.at(self.first, self._group, self._times)

    def run(self) -> _Results:
        """Call the function for each change of a key's values."""
        results = _Results([], [], [], [], [], [])
        counts: list[dict[int, int]] = [{} for _ in self._keys]
        for group, value, diff in zip(
            self._old_group.tolist(), self._value[: self._offset].tolist(), self._old_diff
        ):
            counts[group][value] = diff
        order = np.lexsort((self._times, self._group))
        diffs = self.side.new.updates.diffs()
        before = [dict(count) for count in counts]
        known: list[dict[Any, Any]] = [{} for _ in self._keys]
        last: list[Any] = [None] * len(self._keys)
        # Each iteration calls the user's function, which costs far more than the rest of it.
        for group, time, changes in self._events(order, diffs):
            count = counts[group]
            for value, diff in changes:
                count[value] = count.get(value, 0) + diff
                if not count[value]:
                    del count[value]
            result = self._call(group, time, count) if count else None
            state = frozenset(count.items())
            if state in known[group] and known[group][state] != _comparable(result):
                self.refuse(group, time)
            known[group][state] = _comparable(result)
            if count == before[group]:
                results.returned.append((group, time))
            self._append(results, last[group], group, time, -1)
            self._append(results, result, group, time, 1)
            last[group] = result
        return results

    def _events(
        self, order: Int64, diffs: Int64
    ) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
        """Key, time, and the changes at that time, in order of both."""
        current: tuple[int, int] | None = None
        changes: list[tuple[int, int]] = []
        value = self._value[self._offset:]
        for group, time, changed, diff in zip(
            self._group[order].tolist(), self._times[order].tolist(), value[order].tolist(),
            diffs[order].tolist(),
        ):
            if current != (group, time):
                if current is not None:
                    yield (*current, changes)
                current, changes = (group, time), []
            changes.append((changed, diff))
        if current is not None:
            yield (*current, changes)

    def _call(self, group: int, time: int, count: dict[int, int]) -> Any:
        kernel = self.kernel
        values = sorted(count)
        if not kernel.allow_negative and min(count.values()) < 0:
            if not self.side.is_complete(time):
                return None  # a later update may cancel the removal
            wrong = next(v for v in values if count[v] < 0)
            shown = tuple(
                python_values(column.slice(wrong, 1))[0] for column in self._values.columns)
            raise NegativeMultiplicityError(
                f"{self._where(group, time)} the value {shown!r} has the "
                f"multiplicity {count[wrong]}: more was removed than was inserted. Correct the "
                "input, or pass allow_negative=True if the function supports it"
            )
        key = self._keys[group]
        pause()
        try:
            if kernel.form == "rows":
                rows = kernel.function(key, [(self._tuples[v], count[v]) for v in values])
                return [self._row(row) for row in rows]
            table = self._values.take(pa.array(values))
            table = table.append_column(kernel.diff, pa.array([count[v] for v in values]))
            if kernel.form == "arrow":
                return self._table(kernel.function(key, table))
            return self._table(kernel.function(key, to_frame(table)))
        except DiffError:
            raise
        except Exception as error:
            if interrupted(error):
                raise
            raise FunctionError(
                f"reduce's function failed {self._where(group, time)}: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _row(self, row: Any) -> tuple[Any, ...]:
        row = tuple(row) if isinstance(row, (tuple, list)) else (row,)
        width = len(self.kernel.schema)
        if len(row) != width:
            raise SchemaError(
                f"reduce's function returned a row of {len(row)} values, {row!r}; its schema has "
                f"{width} columns: {', '.join(self.kernel.schema.names)}"
            )
        return row

    def _table(self, result: Any) -> pa.Table:
        schema = self.kernel.schema
        if isinstance(result, pd.DataFrame):
            missing = [name for name in schema.names if name not in result.columns]
            if not missing:
                return pa.table([_column(result[f.name], f) for f in schema], schema=schema)
        elif isinstance(result, pa.Table):
            missing = [name for name in schema.names if name not in result.column_names]
            if not missing:
                return pa.table([_column(result[f.name], f) for f in schema], schema=schema)
        else:
            raise SchemaError(
                f"reduce's function returned a {type(result).__name__}; with form="
                f"{self.kernel.form!r} it returns a table of the kind that it receives"
            )
        raise SchemaError(f"reduce's function returned a table without {', '.join(missing)}")

    def _append(self, results: _Results, result: Any, group: int, time: int, diff: int) -> None:
        if result is None:
            return
        if self.kernel.form == "rows":
            results.rows.extend(result)
            count = len(result)
        else:
            results.tables.append(result)
            count = result.num_rows
        results.group.extend([group] * count)
        results.time.extend([time] * count)
        results.diff.extend([diff] * count)

    def refuse(self, group: int, time: int) -> None:
        """Raise the error of a function with two results for the same values."""
        raise NonDeterministicError(
            f"reduce's function gave another result {self._where(group, time)} than it gave for "
            "the same values before, so the two do not cancel. It must depend on its arguments "
            "alone"
        )

    def _where(self, group: int, time: int) -> str:
        return f"for the key {self._keys[group]!r} at time {self.kernel.time_type.decode(time)!r}"


def _column(column: pd.Series | pa.ChunkedArray, field: pa.Field) -> pa.Array | pa.ChunkedArray:
    """A column of a table that a function returned.

    Raises
    ------
    SchemaError
    """
    try:
        if isinstance(column, pd.Series):
            return from_series(column, field.type)
        check_zones(column.type, field.type)
        return column.cast(field.type)
    except (pa.ArrowException, TypeError) as wrong:
        raise SchemaError(
            f"reduce's function returned a column {field.name!r} that is not of type "
            f"{field.type}: {wrong}"
        ) from wrong


def _comparable(result: Any) -> Any:
    """A result as a multiset, so that the order of its rows does not matter."""
    if isinstance(result, pa.Table):
        try:
            result = list(zip(*(column.to_pylist() for column in result.columns)))
        except (OverflowError, ValueError):  # a date that Python lacks
            rows = [result.slice(row, 1).combine_chunks() for row in range(result.num_rows)]
            result = [row.to_batches()[0].serialize().to_pybytes() for row in rows]
    return Counter(map(repr, result or ()))


def reduce(
    source: Arranged,
    function: Callable[..., Any],
    schema: Schema,
    *,
    form: str,
    diff: str,
    allow_negative: bool,
) -> Reader:
    """The node that applies a function to the values of each key.

    Parameters
    ----------
    schema : Schema
        Columns of the function's result, without the key.
    form : {"rows", "pandas", "arrow"}
    diff : str
        Name of the column of multiplicities in the tables that the function receives.

    Notes
    -----
    Source: differential-dataflow ``operators/reduce.rs``.
    """
    values = tuple(n for n in source.schema.names if n not in source.key)
    kernel = ReduceKernel(
        function, form, values, schema.arrow(), source.time_type, diff, allow_negative,
        arranges_output=True,
    )
    fields = [source.schema.struct[name] for name in source.key]
    out = Schema(T.StructType([*fields, *schema.struct.fields]))
    return Reader("reduce", (source,), out, kernel, source.key)
