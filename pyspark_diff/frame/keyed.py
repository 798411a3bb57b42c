"""The methods of a frame that read all records of a key: groups, reductions, first records."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, Callable, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.errors import SchemaError
from pyspark_diff.frame.base import Frame
from pyspark_diff.frame.grouped import GroupedDiff
from pyspark_diff.frame.keys import Names, Order, key_columns, ordering, reduced
from pyspark_diff.frame.row_wise import plain_column
from pyspark_diff.operators.arrange import arrange_by_key, arrange_in_order
from pyspark_diff.operators.threshold import threshold
from pyspark_diff.operators.top_k import top_k
from pyspark_diff.spark.schema import check_names

if TYPE_CHECKING:
    from typing_extensions import Self


class KeyedMethods(Frame):
    """Groups, and operators on the records of each key."""

    def groupBy(self, *cols: str | Column) -> GroupedDiff[Self]:  # noqa: N802
        """Groups of equal records in some columns, as PySpark's `groupBy`; see `GroupedDiff`.

        Examples
        --------
        >>> rows = [("a", 1, 0, 1), ("a", 5, 0, 1), ("a", 5, 2, -1)]
        >>> sales = DiffFrame(
        ...     spark.createDataFrame(rows, "shop string, price int, time int, diff int"))
        >>> totals = sales.groupBy("shop").agg(F.sum("price").alias("total"), F.max("price"))
        >>> totals.at(0).collect(), totals.at(2).collect()
        ([Row(shop='a', total=6, max(price)=5)], [Row(shop='a', total=1, max(price)=1)])

        A key may be a session: ``F.session_window(time, gap)``, with a fixed gap or a gap of each
        record. Sessions merge when a record closes a gap, and split when the record is removed. As
        in Spark, intervals that touch are one session, and records without a time or a positive gap
        drop out. The result has a plain struct: a further `groupBy` of it takes equal sessions
        together, and Spark would merge overlapping ones.

        >>> rows = [("a", 15, 0, 1), ("a", 23, 0, 1), ("a", 19, 1, 1)]
        >>> clicks = DiffFrame(
        ...     spark.createDataFrame(rows, "user string, m int, time int, diff int"))
        >>> clicks = clicks.select("user", F.make_timestamp_ntz(*map(F.lit, (2021, 1, 1, 10)),
        ...                                                     F.col("m"), F.lit(0)).alias("ts"))
        >>> visits = clicks.groupBy("user", F.session_window("ts", "5 minutes")).count()
        >>> ends = visits.select(F.minute("session_window.end").alias("end"), "count")
        >>> sorted(ends.at(0).collect()), ends.at(1).collect()
        ([Row(end=20, count=1), Row(end=28, count=1)], [Row(end=28, count=3)])
        """
        return GroupedDiff(self, self._keys(cols))

    groupby = groupBy

    def _keys(self, cols: tuple[Any, ...]) -> tuple[str | Column, ...]:
        """The columns of a group: names, columns, or as in PySpark numbers, starting at 1."""
        keys: list[str | Column] = []
        for key in _listed(cols):
            if isinstance(key, int) and not isinstance(key, bool):
                if not 1 <= key <= len(self.columns):
                    raise SchemaError(
                        f"groups are by a column's number from 1 to {len(self.columns)}, and this "
                        f"is {key}; the columns are {', '.join(self.columns)}"
                    )
                entry = self._collection.resolver.entries[key - 1]
                key = entry.visible if entry.lineage is None else entry.lineage.handle.column()
            if not isinstance(key, (str, Column)):
                raise SchemaError(
                    f"groups are by names, numbers and columns, not by a {type(key).__name__}: "
                    f"{key!r}. Write F.lit(...) for a constant"
                )
            keys.append(key)
        return tuple(keys)

    def rollup(self, *cols: str | Column) -> GroupedDiff[Self]:
        """Groups by all columns, by all but the last, and so on to none, as PySpark's `rollup`.

        Examples
        --------
        >>> rows = [("a", "x", 1, 0, 1), ("a", "y", 2, 0, 1)]
        >>> sales = DiffFrame(spark.createDataFrame(
        ...     rows, "shop string, what string, n int, time int, diff int"))
        >>> for row in sorted(sales.rollup("shop", "what").sum("n").at(0).collect(), key=str):
        ...     print(*row)
        a x 1
        a y 2
        a None 3
        None None 3
        """
        cols = self._keys(cols)
        sets = [tuple(range(n)) for n in range(len(cols), -1, -1)]
        return GroupedDiff(self, cols, sets)

    def cube(self, *cols: str | Column) -> GroupedDiff[Self]:
        """Groups by each choice of columns, as PySpark's `cube`."""
        cols = self._keys(cols)
        sets = [
            chosen for n in range(len(cols), -1, -1) for chosen in combinations(range(len(cols)), n)
        ]
        return GroupedDiff(self, cols, sets)

    def groupingSets(  # noqa: N802
        self, groupingSets: Sequence[Sequence[str | Column]], *cols: str | Column  # noqa: N803
    ) -> GroupedDiff[Self]:
        """Groups by each of some choices of columns, as PySpark's `groupingSets`."""
        cols = self._keys(cols)

        def identified(c: str | Column) -> str:
            """The column that a name means, in any case, or the text of an expression."""
            expression = F.col(c) if isinstance(c, str) else c
            return plain_column(self._collection, expression) or str(expression)

        known = [identified(c) for c in cols]
        sets: list[tuple[int, ...]] = []
        for chosen in groupingSets:
            numbers = [known.index(i) if (i := identified(c)) in known else None for c in chosen]
            missing = [str(c) for c, number in zip(chosen, numbers) if number is None]
            if missing:
                raise SchemaError(
                    f"groupingSets has {', '.join(missing)}, which is not in its columns: "
                    f"{', '.join(map(str, cols))}"
                )
            sets.append(tuple(sorted(number for number in numbers if number is not None)))
        if not sets:
            raise SchemaError("groupingSets takes at least one set of columns")
        return GroupedDiff(self, cols, sets)

    def agg(self, *exprs: Any, empty: bool = False, exact: bool = False) -> Self:
        """Aggregates over all records, as PySpark's `agg`, kept up to date.

        Parameters
        ----------
        *exprs : Column or dict
            See `GroupedDiff.agg`.
        empty : bool
            Whether an empty collection has a row, with counts of zero, as in SQL. The default is no
            row.
        exact : bool
            See `GroupedDiff.agg`.

        Examples
        --------
        >>> n = DiffFrame(spark.createDataFrame([(4, 1, 1)], "n int, time int, diff int"))
        >>> n.agg(F.count("*").alias("rows"), F.max("n").alias("most")).at(1).collect()
        [Row(rows=1, most=4)]
        >>> n.agg(F.count("*").alias("rows"), empty=True).at(0).collect()
        [Row(rows=0)]
        """
        return GroupedDiff(self, ()).agg(*exprs, empty=empty, exact=exact)

    def reduce(
        self,
        func: Callable[..., Any],
        schema: str | T.StructType,
        key: Names | None = None,
        *,
        form: str = "rows",
        allow_negative: bool = False,
        check: bool = False,
    ) -> Self:
        """A Python function of each key's values, called again when they change.

        Parameters
        ----------
        func : callable
            Called as ``func(key, values)`` with the key as a tuple. The values are the other
            columns of the key's records, each distinct value once, in ascending order with nulls
            first: a list of ``(tuple, count)``, or a table with one more column for the count,
            which has the name of the diff. The function returns rows, or a table: the new columns
            of each output record; the operator adds the columns of the key. A key without records
            has no call.
        schema : str or StructType
            The new columns.
        key : str or list of str, optional
            Columns of the key. The default is the key of a preceding `arrange_by_key`.
        form : {"rows", "pandas", "arrow"}
            The form of the values and the results. In pandas, whole numbers and truth values have
            the types ``Int64``, ``boolean`` and so on.
        allow_negative : bool
            Call the function also if the removals of a value exceed its insertions.
        check : bool
            Call it twice on the same input, and refuse if the results differ. For tests: it costs
            twice the time.

        Raises
        ------
        FunctionError
            If the function raises; the message names the key and the time.
        NonDeterministicError
            If the function has two results for the same values. With `check` every call is checked,
            otherwise only values for which a step calls it more than once.
        NegativeMultiplicityError
            If a value has a negative multiplicity.

        Notes
        -----
        A step calls the function only for the keys that it touches, once for each time at which
        their values change. The operator keeps the results, so it retracts them without a call.
        Source: differential-dataflow ``operators/reduce.rs``.

        Examples
        --------
        >>> rows = [("a", 3, 0, 2), ("a", 8, 1, 1)]
        >>> n = DiffFrame(spark.createDataFrame(rows, "k string, n long, time int, diff int"))
        >>> def middle(key, values):
        ...     ordered = [n for (n,), count in values for _ in range(count)]
        ...     return [(ordered[len(ordered) // 2],)]
        >>> n.reduce(middle, "median long", key="k").at(1).collect()
        [Row(k='a', median=3)]
        """
        return self._wrap(reduced(
            self._collection, func, schema, key, form=form,
            allow_negative=allow_negative, check=check,
        ))

    def top_k(
        self, k: int, by: Order, per: Names | None = None, *, number: str | None = None
    ) -> Self:
        """The first k records in an order, over all records or for each key, kept up to date.

        Parameters
        ----------
        k : int
            The number of records. A record that occurs twice takes two places.
        by : str, Column, or list of them
            The order: names, or columns with ``.asc()``, ``.desc_nulls_first()`` and so on. The
            other columns break ties, in their order, ascending, nulls first.
        per : str or list of str, optional
            Columns of the key.
        number : {"row_number", "rank", "dense_rank"}, optional
            Add a column of this name with the place of each record. With ``rank`` equal records in
            the order have equal places, and the result has all records with a place of at most k;
            with ``dense_rank`` places have no gaps.

        Examples
        --------
        >>> rows = [("a", 1, 0, 1), ("a", 5, 0, 1), ("a", 7, 2, 1)]
        >>> sales = DiffFrame(
        ...     spark.createDataFrame(rows, "shop string, price int, time int, diff int"))
        >>> best = sales.top_k(1, F.col("price").desc(), per="shop")
        >>> best.at(0).collect(), best.at(2).collect()
        ([Row(shop='a', price=5)], [Row(shop='a', price=7)])
        """
        if not isinstance(k, int) or isinstance(k, bool) or k < 1:
            raise SchemaError(f"top_k takes a positive whole number of records, not {k!r}")
        if number not in (None, "row_number", "rank", "dense_rank"):
            raise SchemaError(
                f"number must be 'row_number', 'rank' or 'dense_rank', not {number!r}"
            )
        if number is not None:
            check_names([*self.columns, number])
        source = self._collection
        names = key_columns(source, per if per is not None else [], "top_k")
        order = ordering(source, by, names)
        source.check_unambiguous("top_k")
        arranged = arrange_in_order(source.node, names, order)
        return self._derived(
            top_k(arranged, k, len(order), number=number, mode=number or "rows"), same=True
        )

    def dropDuplicates(  # noqa: N802
        self, subset: Names | None = None, *, order: Order | None = None
    ) -> Self:
        """One record for each value of some columns, as PySpark's `dropDuplicates`.

        Parameters
        ----------
        subset : str or list of str, optional
            The default is all columns.
        order : str, Column, or list of them, optional
            The record to keep: the first in this order (see `top_k`). PySpark keeps any record;
            here the columns in their order decide ties, and all choices without an order.

        Examples
        --------
        >>> rows = [("a", 2, 0, 1), ("a", 1, 0, 1)]
        >>> n = DiffFrame(spark.createDataFrame(rows, "k string, n int, time int, diff int"))
        >>> n.dropDuplicates(["k"]).at(0).collect()
        [Row(k='a', n=1)]
        """
        source, kind = self._collection, "dropDuplicates"
        names = None if subset is None else key_columns(source, subset, kind)
        rest = [] if names is None else [n for n in source.node.schema.names if n not in names]
        if names is None or not rest:
            source.check_unambiguous(kind)
            return self._derived(threshold(source.node, None), same=True)
        by = ordering(source, order if order is not None else rest, names)
        source.check_unambiguous(kind)
        arranged = arrange_in_order(source.node, names, by, any_order=order is None)
        return self._derived(top_k(arranged, 1, len(by)), same=True)

    drop_duplicates = dropDuplicates

    def arrange_by_key(self, *cols: str) -> Self:
        """The same collection, kept as an arrangement by some columns, for any number of readers.

        Joins, reduces and reads share the one arrangement. Operators that need the same key share
        it also without this call; the call makes it readable with `at` and `to_df`, and `reduce`
        needs no key after it.

        Parameters
        ----------
        *cols : str
            Columns of the key.

        Examples
        --------
        >>> n = DiffFrame(spark.createDataFrame([(1, 2, 0, 1)], "k int, n int, time int, diff int"))
        >>> kept = n.arrange_by_key("k")
        >>> kept.reduce(lambda key, values: [(len(values),)], "many int").at(0).collect()
        [Row(k=1, many=1)]
        """
        source = self._collection
        names = key_columns(source, list(_listed(cols)), "arrange_by_key")
        arranged = arrange_by_key(source.node, names)
        same = source.derived(source.node, resolver=source.resolver)
        if source.flow is not None and source.node.loop is None:
            source.flow._keep(source.node, arranged=arranged)
        return self._wrap(replace(same, key=tuple(names)))


def _listed(cols: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(cols) == 1 and isinstance(cols[0], (list, tuple)):
        return tuple(cols[0])
    return cols
