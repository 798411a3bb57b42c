"""The methods of `DiffFrame` that look at all records of a key: groups, first records, sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Sequence

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import types as T

from pyspark_diff.errors import SchemaError
from pyspark_diff.expressions.check import check_row_wise
from pyspark_diff.frame.grouped import GroupedDiff
from pyspark_diff.frame.join_methods import JoinMethods
from pyspark_diff.kernels.results import WeightSum
from pyspark_diff.operators.aggregate import aggregate
from pyspark_diff.operators.arrange import arrange_by_key, arrange_in_order
from pyspark_diff.operators.linear import Negate, multiply_diff, pick
from pyspark_diff.operators.node import Concat, Linear, Node
from pyspark_diff.operators.reduce import FORMS, reduce
from pyspark_diff.operators.threshold import threshold
from pyspark_diff.operators.top_k import top_k
from pyspark_diff.spark.jvm import order_of
from pyspark_diff.spark.schema import check_names, parse_schema

if TYPE_CHECKING:
    from pyspark_diff.frame.diffframe import DiffFrame

Names = str | Sequence[str]
Order = str | Column | Sequence[str | Column]


def _positive(count: int) -> int:
    return max(count, 0)


def _both(count: int) -> int:
    return 1 if count == 2 else 0


class KeyedMethods(JoinMethods):
    """What `DiffFrame` inherits."""

    def groupBy(self, *cols: str | Column) -> GroupedDiff:  # noqa: N802
        """Groups of equal records in some columns, as PySpark's `groupBy`; see `GroupedDiff`.

        Examples
        --------
        >>> rows = [("a", 1, 0, 1), ("a", 5, 0, 1), ("a", 5, 2, -1)]
        >>> sales = DiffFrame(
        ...     spark.createDataFrame(rows, "shop string, price int, time int, diff int"))
        >>> totals = sales.groupBy("shop").agg(F.sum("price").alias("total"), F.max("price"))
        >>> totals.at(0).collect(), totals.at(2).collect()
        ([Row(shop='a', total=6, max(price)=5)], [Row(shop='a', total=1, max(price)=1)])
        """
        if len(cols) == 1 and isinstance(cols[0], (list, tuple)):
            cols = tuple(cols[0])
        return GroupedDiff(self, cols)

    groupby = groupBy

    def agg(self, *exprs: Any, empty: bool = False, exact: bool = False) -> "DiffFrame":
        """Aggregates over all records, as PySpark's `agg`, kept up to date.

        Parameters
        ----------
        *exprs : Column or dict
            See `GroupedDiff.agg`.
        empty : bool
            Whether an empty collection has a row, with counts of zero, as in SQL. Else it has none.
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
    ) -> "DiffFrame":
        """A Python function of each key's values, called again where they change.

        Parameters
        ----------
        func : callable
            Called as ``func(key, values)`` with the key as a tuple. The values are the other
            columns of its records, each distinct one once, in ascending order with nulls first:
            a list of ``(tuple, count)``, or a table with one more column for the count, which is
            called as the diff is. It returns rows, or a table: the new columns of each output
            record, beside those of the key. It is not called for a key without records.
        schema : str or StructType
            The new columns.
        key : str or list of str, optional
            Columns of the key. Not needed after `arrange_by_key`.
        form : {"rows", "pandas", "arrow"}
            How values come and results go.
        allow_negative : bool
            Call the function also where more of a value was removed than inserted.

        Raises
        ------
        FunctionError
            If the function raises; the message names the key and the time.
        NonDeterministicError
            If it gives two results for the same values.
        NegativeMultiplicityError
            If a value stands with a negative multiplicity.

        Notes
        -----
        It is called for the keys that a step touches only, and only for the times at which their
        values change: once for each of these. The results are kept, so that what was given is taken
        back without a call. Source: differential-dataflow ``operators/reduce.rs``.

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
        if form not in FORMS:
            raise SchemaError(f"form must be one of {', '.join(FORMS)}, not {form!r}")
        names = self._key_names(key, "reduce")
        parsed = parse_schema(schema)
        source = arrange_by_key(self._node, names)
        node = reduce(
            source, func, parsed, form=form, diff=self._names[1], allow_negative=allow_negative
        )
        return self._with(node)

    def top_k(
        self, k: int, by: Order, per: Names | None = None, *, number: str | None = None
    ) -> "DiffFrame":
        """The first k records in an order, of all or of each key, kept up to date.

        Parameters
        ----------
        k : int
            How many. A record that occurs twice takes two places.
        by : str, Column, or list of them
            The order: names, or columns with ``.asc()``, ``.desc_nulls_first()`` and so on. Ties
            are broken by the other columns in their order, ascending, nulls first.
        per : str or list of str, optional
            Columns of the key.
        number : {"row_number", "rank"}, optional
            Add a column of this name with the place of each record. With ``rank`` equal records in
            the order have equal places, and all with a place of at most k are there.

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
        if number not in (None, "row_number", "rank"):
            raise SchemaError(f"number must be 'row_number' or 'rank', not {number!r}")
        if number is not None:
            check_names([*self.columns, number])
        names = self._key_names(per if per is not None else [], "top_k")
        order = self._order(by, names)
        source = arrange_in_order(self._unambiguous("top_k")._node, names, order)
        return self._with(
            top_k(source, k, len(order), number=number, mode=number or "rows")
        )

    def dropDuplicates(  # noqa: N802
        self, subset: Names | None = None, *, order: Order | None = None
    ) -> "DiffFrame":
        """One record for each value of some columns, as PySpark's `dropDuplicates`.

        Parameters
        ----------
        subset : str or list of str, optional
            All columns if not given.
        order : str, Column, or list of them, optional
            Which record is kept: the first in this order (see `top_k`). PySpark keeps any; here
            ties, and all without an order, are decided by the columns in their order.

        Examples
        --------
        >>> rows = [("a", 2, 0, 1), ("a", 1, 0, 1)]
        >>> n = DiffFrame(spark.createDataFrame(rows, "k string, n int, time int, diff int"))
        >>> n.dropDuplicates(["k"]).at(0).collect()
        [Row(k='a', n=1)]
        """
        if subset is None:
            return self._with(threshold(self._unambiguous("dropDuplicates")._node, None))
        names = self._key_names(subset, "dropDuplicates")
        rest = [name for name in self._node.schema.names if name not in names]
        if not rest:
            return self._with(threshold(self._unambiguous("dropDuplicates")._node, None))
        ordering = self._order(order if order is not None else rest, names)
        source = arrange_in_order(self._unambiguous("dropDuplicates")._node, names, ordering)
        return self._with(top_k(source, 1, len(ordering)))

    drop_duplicates = dropDuplicates

    def exceptAll(self, other: "DiffFrame") -> "DiffFrame":  # noqa: N802
        """Each record as many times more as it is here than there, as PySpark's `exceptAll`."""
        theirs = self._like(other, "exceptAll")
        return self._with(threshold(Concat([self._node, _negated(theirs)]), _positive))

    def intersectAll(self, other: "DiffFrame") -> "DiffFrame":  # noqa: N802
        """Each record as often as it is on both sides, as PySpark's `intersectAll`."""
        more = self.exceptAll(other)._node
        return self._with(Concat([self._node, _negated(more)]))

    def subtract(self, other: "DiffFrame") -> "DiffFrame":
        """The distinct records that the other does not have, as PySpark's `subtract`."""
        ours = threshold(self._node, None)
        theirs = threshold(self._like(other, "subtract"), None)
        return self._with(threshold(Concat([ours, ours, _negated(theirs)]), _both))

    def intersect(self, other: "DiffFrame") -> "DiffFrame":
        """The distinct records that both have, as PySpark's `intersect`.

        Examples
        --------
        >>> columns = "k int, time int, diff int"
        >>> a = DiffFrame(spark.createDataFrame([(1, 0, 1), (2, 0, 3)], columns))
        >>> b = DiffFrame(spark.createDataFrame([(2, 0, 1)], columns))
        >>> a.intersect(b).at(0).collect(), a.subtract(b).at(0).collect()
        ([Row(k=2)], [Row(k=1)])
        >>> a.exceptAll(b).count().at(0).orderBy("k").collect()
        [Row(k=1, count=1), Row(k=2, count=2)]
        """
        ours = threshold(self._node, None)
        theirs = threshold(self._like(other, "intersect"), None)
        return self._with(threshold(Concat([ours, theirs]), _both))

    def weighted(self, *cols: str) -> "DiffFrame":
        """The records with whole-number columns moved into the diff, which is multiplied by them.

        With one column the diff stays a number, and all operators go on as ever: `count` brings the
        sums back as data. With several the diff is a vector for as long as it takes, and the sums
        come back at once, in columns of the same names, for each distinct record of the others;
        records whose sums are all zero are not there.

        Parameters
        ----------
        *cols : str
            Columns of whole numbers; a null counts as zero.

        Examples
        --------
        >>> rows = [("a", 3, 10, 0, 1), ("a", 4, 1, 0, 2)]
        >>> sales = DiffFrame(spark.createDataFrame(
        ...     rows, "shop string, items long, price long, time int, diff int"))
        >>> sales.select("shop", "items").weighted("items").count().at(0).collect()
        [Row(shop='a', count=11)]
        >>> sales.weighted("items", "price").at(0).collect()
        [Row(shop='a', items=11, price=12)]
        """
        names = self._key_names(list(cols), "weighted")
        if not names:
            raise SchemaError("weighted takes at least one column")
        for name in names:
            kind = self._node.schema.struct[name].dataType
            if not isinstance(kind, (T.ByteType, T.ShortType, T.IntegerType, T.LongType)):
                raise SchemaError(
                    f"the weight {name!r} must be a whole number, not {kind.simpleString()}; sums "
                    "of others are aggregates: groupBy(...).agg(F.sum(...))"
                )
        if len(names) == 1:
            node: Node = multiply_diff(self._node, names[0])
            return self._with(node)
        rest = [name for name in self._node.schema.names if name not in names]
        sums = [
            (T.StructField(name, T.LongType(), False), WeightSum(pa.int64(), i))
            for i, name in enumerate(names)
        ]
        return self._with(aggregate(self._node, rest, names, sums, by_rows=False))

    def arrange_by_key(self, *cols: str) -> "DiffFrame":
        """The same collection, indexed by some columns and kept, for any number of readers.

        Joins, reduces and reads of it share the one arrangement. They would also without this, if
        they want it by the same key; said here, it can be read with `at` and `to_df` as well, and
        `reduce` needs no key.

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
        if len(cols) == 1 and isinstance(cols[0], (list, tuple)):
            cols = tuple(cols[0])
        names = self._key_names(list(cols), "arrange_by_key")
        node = arrange_by_key(self._node, names)
        frame = self._with(self._node, resolver=self._resolver)
        frame._key = tuple(names)
        if self._flow is not None and self._node.loop is None:
            self._flow._keep(self._node, node)
        return frame

    def _key_names(self, key: Names | None, kind: str) -> list[str]:
        if key is None:
            if self._key is None:
                raise SchemaError(
                    f"{kind} needs the columns of the key: give key=..., or arrange_by_key(...) "
                    "first"
                )
            return list(self._key)
        names = [key] if isinstance(key, str) else list(key)
        found = [self._column_name(name, f"for {kind}") for name in names]
        if len(set(found)) < len(found):
            raise SchemaError(f"{kind} was given a column twice: {', '.join(names)}")
        return found

    def _order(self, by: Order, key: Sequence[str]) -> list[tuple[str, bool, bool]]:
        """Name, whether descending, and whether nulls come last, of each column of an order."""
        listed = list(by) if isinstance(by, (list, tuple)) else [by]
        if not listed:
            raise SchemaError("an order needs at least one column")
        found: list[tuple[str, bool, bool]] = []
        for column in listed:
            name, down, last = column, False, False
            if isinstance(column, Column):
                ordered = order_of(column)
                if ordered is not None:
                    column, down, last = ordered
                plain = self._plain_column(column)
                if plain is None:
                    check_row_wise(self._template().select(column), "an order")
                    raise SchemaError(
                        f"an order is made of columns, not of expressions such as {column}; add "
                        "it as a column with withColumn first"
                    )
                name = next(e.visible for e in self._resolver.entries if e.internal == plain)
            internal = self._column_name(str(name), "for the order")
            if internal in key or internal in [n for n, _, _ in found]:
                continue  # it decides nothing more
            found.append((internal, down, last))
        rest = [name for name in self._node.schema.names if name not in key]
        if not found and rest:
            found.append((rest[0], False, False))
        return found

    def _like(self, other: "DiffFrame", kind: str) -> Node:
        """The other collection with columns of the same names, matched by position."""
        self._check_alike(other)
        self._unambiguous(kind)
        other._unambiguous(kind)
        if len(other.columns) != len(self.columns):
            raise SchemaError(self._differ(kind, other))
        renamed = pick(kind, other._node, list(zip(other._node.schema.names, self.columns)))
        if not self._node.schema.same_types(renamed.schema):
            raise SchemaError(self._differ(kind, other))
        return renamed


def _negated(source: Node) -> Linear:
    return Linear("negate", source, source.schema, Negate(), lambda wanted: wanted)
