"""Two collections grouped by the same key: the result of `GroupedDiff.cogroup`, as in PySpark.

    cogroup(A, B)  =  reduce of A + B, where a column marks the side of each record
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Callable, Generic, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.errors import SchemaError
from pyspark_diff.expressions.names import unused
from pyspark_diff.frame.base import FrameT
from pyspark_diff.frame.collection import Collection
from pyspark_diff.frame.keys import check_form
from pyspark_diff.frame.row_wise import with_keys
from pyspark_diff.operators.arrange import arrange_by_key
from pyspark_diff.operators.join import pad
from pyspark_diff.operators.linear import pick
from pyspark_diff.operators.node import Concat, Node
from pyspark_diff.operators.reduce import reduce
from pyspark_diff.operators.twice import Twice
from pyspark_diff.spark.data_types import without_nullability
from pyspark_diff.spark.pandas_frames import to_frame
from pyspark_diff.spark.schema import Schema, check_names, parse_schema


class CogroupedDiff(Generic[FrameT]):
    """Groups of two collections' records with equal keys. Made by `GroupedDiff.cogroup`.

    Every method is lazy and returns a `DiffFrame`. A step calls the function for the keys that it
    touches on either side, only at the times at which their records change. The operator keeps
    earlier results and retracts them without a call. For a key that one side lacks, the function
    receives no records of that side; a key that both sides lack has no call. Null is a key like any
    other.
    """

    def __init__(
        self, frame: FrameT, sides: tuple[Collection, Collection],
        keys: tuple[Sequence[str], Sequence[str]],
    ):
        self._frame, self._sides, self._keys = frame, sides, keys
        for side in sides:
            side.check_unambiguous("cogroup")
        kinds = [
            [without_nullability(side.node.schema.struct[name].dataType) for name in key]
            for side, key in zip(sides, keys)
        ]
        if kinds[0] != kinds[1]:
            shown = [", ".join(kind.simpleString() for kind in each) or "none" for each in kinds]
            raise SchemaError(
                "cogroup needs as many columns of the same types on both sides; here are "
                f"({shown[0]}) and ({shown[1]})"
            )

    def __repr__(self) -> str:
        return f"CogroupedDiff[by {', '.join(self._keys[0]) or 'nothing'}; {self._frame!r}]"

    def reduce(
        self,
        func: Callable[..., Any],
        schema: str | T.StructType,
        *,
        form: str = "rows",
        allow_negative: bool = False,
        check: bool = False,
    ) -> FrameT:
        """A Python function of each key's values on both sides, called again when they change.

        Parameters
        ----------
        func : callable
            Called as ``func(key, left, right)``; the values of either side and the results have the
            forms of `DiffFrame.reduce`. A side without the key is an empty list or table.
        schema, form, allow_negative, check
            As of `DiffFrame.reduce`.

        Raises
        ------
        FunctionError, NonDeterministicError, NegativeMultiplicityError
            As of `DiffFrame.reduce`.

        Examples
        --------
        >>> bought = DiffFrame(spark.createDataFrame(
        ...     [("a", 5, 0, 1), ("a", 3, 1, 1)], "who string, n int, time int, diff int"))
        >>> paid = DiffFrame(spark.createDataFrame(
        ...     [("a", 8, 2, 1)], "who string, n int, time int, diff int"))
        >>> def owes(key, bought, paid):
        ...     total = sum(n * count for (n,), count in bought)
        ...     return [(total - sum(n * count for (n,), count in paid),)]
        >>> both = bought.groupBy("who").cogroup(paid.groupBy("who"))
        >>> owed = both.reduce(owes, "owes int")
        >>> [owed.at(time).collect() for time in (0, 1, 2)]
        [[Row(who='a', owes=5)], [Row(who='a', owes=8)], [Row(who='a', owes=0)]]
        """
        check_form(form)
        parsed = parse_schema(schema)
        key = list(self._keys[0])
        check_names([*key, *parsed.names])
        function = _Apart(func, form, self._names(all_columns=False))
        node = self._reduced(function, parsed, key, allow_negative, check)
        return self._frame._wrap(self._sides[0].derived(node))

    def applyInPandas(  # noqa: N802
        self, func: Callable[..., Any], schema: str | T.StructType
    ) -> FrameT:
        """A function of two pandas tables for each key, as PySpark's `applyInPandas`.

        Parameters
        ----------
        func : callable
            Called as ``func(left, right)`` or ``func(key, left, right)`` with all columns of either
            side's records of the key, each as often as it occurs, and with the key as a tuple. It
            returns a table.
        schema : str or StructType
            The columns of that table, and of the result.

        Examples
        --------
        >>> import pandas as pd
        >>> a = DiffFrame(spark.createDataFrame([(1, 2, 0, 1)], "k int, x int, time int, diff int"))
        >>> b = DiffFrame(spark.createDataFrame([(1, 3, 1, 2)], "k int, y int, time int, diff int"))
        >>> def sizes(key, left, right):
        ...     return pd.DataFrame({"k": [key[0]], "rows": [len(left) * 10 + len(right)]})
        >>> found = a.groupBy("k").cogroup(b.groupBy("k")).applyInPandas(sizes, "k int, rows int")
        >>> found.at(0).collect(), found.at(1).collect()
        ([Row(k=1, rows=10)], [Row(k=1, rows=12)])
        """
        return self._applied(func, schema, "pandas")

    def applyInArrow(  # noqa: N802
        self, func: Callable[..., Any], schema: str | T.StructType
    ) -> FrameT:
        """A function of two Arrow tables for each key, as PySpark's `applyInArrow`.

        The function takes and returns tables as in `applyInPandas`; the key is a tuple of Python
        values.
        """
        return self._applied(func, schema, "arrow")

    def _applied(
        self, func: Callable[..., Any], schema: str | T.StructType, form: str
    ) -> FrameT:
        parsed = parse_schema(schema)
        key: list[str] = []
        for _ in self._keys[0]:
            key.append(unused("key", [*parsed.names, *key]))
        try:
            takes = len(inspect.signature(func).parameters)
        except (TypeError, ValueError):
            takes = 2
        if takes not in (2, 3):
            raise SchemaError(
                f"the function takes (left, right) or (key, left, right), and not {takes} arguments"
            )
        function = _Whole(
            func, form, self._names(all_columns=True), takes == 3,
            tuple(self._sides[0].node.schema.only(self._keys[0]).arrow_types()),
            (tuple(self._keys[0]), tuple(self._keys[1])),
        )
        node = self._reduced(function, parsed, key, False, False)
        node = pick("select", node, [(name, name) for name in parsed.names])
        return self._frame._wrap(self._sides[0].derived(node))

    def _names(self, *, all_columns: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The columns of either side that the function receives."""
        ours, theirs = (
            tuple(n for n in side.node.schema.names if all_columns or n not in key)
            for side, key in zip(self._sides, self._keys)
        )
        return ours, theirs

    def _reduced(
        self, function: _Apart | _Whole, schema: Schema, key: list[str], allow_negative: bool,
        check: bool,
    ) -> Node:
        occupied = [*key, *schema.names]
        first = unused("left", occupied)
        # The column is true in records of the left side, and null in those of the right side.
        tagged, (tag,) = with_keys(self._sides[0], [F.lit(True)])
        fields = [T.StructField(first, T.BooleanType())]
        sources: list[list[str | None]] = [[tag], [None]]
        for side, names in enumerate(self._names(all_columns=False)):
            for name in names:
                kind = without_nullability(self._sides[side].node.schema.struct[name].dataType)
                fields.append(T.StructField(
                    unused("value", [*occupied, *(field.name for field in fields)]), kind
                ))
                sources[side].append(name)
                sources[1 - side].append(None)
        keys = [
            T.StructField(name, without_nullability(self._sides[0].node.schema.struct[n].dataType))
            for name, n in zip(key, self._keys[0])
        ]
        parts = [
            pad(node, list(zip([*of_key, *columns], [*keys, *fields])))
            for node, of_key, columns in zip(
                (tagged, self._sides[1].node), self._keys, sources
            )
        ]
        return reduce(
            arrange_by_key(Concat(parts), key), Twice(function, "reduce") if check else function,
            schema, form="rows" if function.form == "rows" else "arrow",
            diff=self._sides[0].diff_name, allow_negative=allow_negative,
        )


@dataclass(frozen=True)
class _Apart:
    """A function of two sides' values, as a function of the values of their sum.

    Parameters
    ----------
    form : {"rows", "pandas", "arrow"}
    names : tuple of tuple of str
        The columns of either side: after the column that marks the side, first those of the left
        side.
    """

    function: Callable[..., Any]
    form: str
    names: tuple[tuple[str, ...], tuple[str, ...]]

    def __call__(self, key: tuple[Any, ...], values: Any) -> Any:
        split = 1 + len(self.names[0])
        if self.form == "rows":
            left = [(value[1:split], count) for value, count in values if value[0]]
            right = [(value[split:], count) for value, count in values if not value[0]]
            return self.function(key, left, right)
        left, right = _sides(values, self.names)
        if self.form == "pandas":
            left, right = to_frame(left), to_frame(right)
        return self.function(key, left, right)


@dataclass(frozen=True)
class _Whole:
    """A function of all columns of both sides, with every record as often as it occurs.

    Parameters
    ----------
    function, form, names
        As in `_Apart`; the names include all columns.
    kinds : tuple of DataType
        Arrow types of the key.
    keys : tuple of tuple of str
        The columns of the key on either side.
    """

    function: Callable[..., Any]
    form: str
    names: tuple[tuple[str, ...], tuple[str, ...]]
    takes_key: bool
    kinds: tuple[pa.DataType, ...]
    keys: tuple[tuple[str, ...], tuple[str, ...]]

    def __call__(self, key: tuple[Any, ...], values: pa.Table) -> Any:
        rest = tuple(
            tuple(n for n in names if n not in of_key)
            for names, of_key in zip(self.names, self.keys)
        )
        tables = []
        for table, names, of_key in zip(
            _sides(values, (rest[0], rest[1])), self.names, self.keys
        ):
            counts = table.column(table.num_columns - 1).to_numpy()
            rows = np.repeat(np.arange(counts.size), counts)
            columns = dict(zip(table.column_names, table.take(pa.array(rows)).columns))
            for name, value, kind in zip(of_key, key, self.kinds):
                columns[name] = pa.repeat(pa.scalar(value, kind), rows.size)
            tables.append(pa.table([columns[name] for name in names], list(names)))
        if self.form == "pandas":
            tables = [to_frame(table) for table in tables]
        return self.function(*([key] if self.takes_key else []), *tables)


def _sides(
    values: pa.Table, names: tuple[tuple[str, ...], tuple[str, ...]]
) -> tuple[pa.Table, pa.Table]:
    """The records of either side, with their own columns and multiplicities."""
    tag, split = values.column(0), 1 + len(names[0])
    count = values.num_columns - 1
    diff = values.column_names[count]
    parts = []
    for side, (first, rows) in enumerate(((1, pc.is_valid(tag)), (split, pc.is_null(tag)))):
        columns = [*range(first, first + len(names[side])), count]
        parts.append(values.filter(rows).select(columns).rename_columns([*names[side], diff]))
    return parts[0], parts[1]
