"""The methods of a frame that read whole records and their multiplicities.

A collection is a multiset: a sum of two adds multiplicities, a negation changes their sign, and a
threshold is any function of the multiplicity that maps zero to zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Sequence

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import types as T

from pyspark_diff.dataflow.times import time_columns
from pyspark_diff.errors import NotReadableError, SchemaError
from pyspark_diff.expressions.names import Resolver, unused
from pyspark_diff.frame.base import Frame
from pyspark_diff.frame.collection import Collection
from pyspark_diff.frame.constants import Plain
from pyspark_diff.frame.keys import key_columns
from pyspark_diff.frame.row_wise import computed
from pyspark_diff.kernels.results import WeightSum
from pyspark_diff.operators.aggregate import aggregate
from pyspark_diff.operators.checked import NothingThere, checked, checked_when_complete
from pyspark_diff.operators.consolidate import consolidate
from pyspark_diff.operators.count import count
from pyspark_diff.operators.join import pad
from pyspark_diff.operators.linear import multiply_diff, negate, pick
from pyspark_diff.operators.loop import time_scope, without_times
from pyspark_diff.operators.node import Concat, Node
from pyspark_diff.operators.threshold import threshold
from pyspark_diff.operators.twice import Twice
from pyspark_diff.spark.data_types import lack_common_type, without_nullability
from pyspark_diff.spark.frames import column

if TYPE_CHECKING:
    from typing_extensions import Self


class MultisetMethods(Frame):
    """Multiplicities, sums and differences of collections."""

    def count(self) -> Self:
        """Each distinct record with its multiplicity in a column ``count``: an operator, not an
        action.

        PySpark's `DataFrame.count()` runs a job and returns a number; this is lazy and returns a
        `DiffFrame`, like PySpark's ``df.groupBy(*df.columns).count()``. For a number, use
        ``at(t).count()``. If the record has a column ``count`` already, the new one is ``count_1``,
        and so on. A record whose multiplicity is zero has no row.

        Examples
        --------
        >>> rows = [(7, 0, 2), (7, 1, -2)]
        >>> n = DiffFrame(spark.createDataFrame(rows, "n int, time int, diff int"))
        >>> n.count().to_df().orderBy("time").collect()
        [Row(n=7, count=2, time=0, diff=1), Row(n=7, count=2, time=1, diff=-1)]
        """
        source = self._collection
        name = unused("count", [*self.columns, source.time_name, source.diff_name])
        return self._derived(count(source.node, name), same=True)

    def count_total(self) -> Self:
        """`count` for totally ordered times.

        Differential dataflow has a separate, faster operator for these. Here `count` uses the order
        of times outside of loops whenever it is total, so the two methods are the same.
        """
        return self.count()

    def distinct(self) -> Self:
        """Each record with positive multiplicity once, as PySpark's `distinct`.

        Examples
        --------
        >>> rows = [(7, 0, 2), (7, 1, -2)]
        >>> n = DiffFrame(spark.createDataFrame(rows, "n int, time int, diff int"))
        >>> n.distinct().to_df().orderBy("time").collect()
        [Row(n=7, time=0, diff=1), Row(n=7, time=1, diff=-1)]
        """
        return self._derived(threshold(self._node, None), same=True)

    def threshold(self, func: Callable[[int], int], *, check: bool = False) -> Self:
        """Each record with a function of its multiplicity as its multiplicity.

        Parameters
        ----------
        func : callable
            From one integer to another, zero to zero. The operator calls it once for each
            multiplicity in a bucket, not for each record. It must return the same value for the
            same multiplicity: the operator computes earlier values again, and a difference would
            stay for ever.
        check : bool
            Call it twice on the same input, and refuse if the results differ. For tests: it costs
            twice the time.

        Raises
        ------
        NonDeterministicError
            With `check`, if two calls differ.

        Examples
        --------
        >>> n = DiffFrame(spark.createDataFrame([(7, 0, 5)], "n int, time int, diff int"))
        >>> n.threshold(lambda count: min(count, 2)).at(0).collect()
        [Row(n=7), Row(n=7)]
        """
        function = Twice(func, "threshold") if check else func
        return self._derived(threshold(self._node, function), same=True)

    def consolidate(self) -> Self:
        """The same collection with the fewest update rows: equal ones add up, zeros vanish."""
        return self._derived(consolidate(self._node), same=True)

    def union(self, other: Self | Plain) -> Self:
        """The records of both, columns matched by position, as PySpark's `union`.

        A multiset union: multiplicities add up. Columns of two types get the type of Spark's union,
        such as long for int and long. See `concat` for columns matched by name.

        Raises
        ------
        SchemaError
            If the numbers of columns differ, or two types have no common type, or the two belong to
            different dataflows.

        Examples
        --------
        >>> a = DiffFrame(spark.createDataFrame([(1, 0, 1)], "n int, time int, diff int"))
        >>> b = DiffFrame(spark.createDataFrame([(2**40, 0, 1)], "m long, time int, diff int"))
        >>> a.union(b).dtypes
        [('n', 'bigint')]
        """
        ours, theirs = self._widened(self._peer(other), "union")
        return self._derived(Concat([ours, theirs]), same=True)

    unionAll = union  # noqa: N815

    def unionByName(  # noqa: N802
        self, other: Self | Plain, allowMissingColumns: bool = False  # noqa: N803
    ) -> Self:
        """The records of both, columns matched by name, as PySpark's `unionByName`.

        Parameters
        ----------
        other : DiffFrame
        allowMissingColumns : bool
            Add nulls for a column that one side lacks; columns of the other side only come last.

        Raises
        ------
        SchemaError
            If the names of columns differ, or two types have no common type, or the two belong to
            different dataflows.

        Examples
        --------
        >>> times = "time int, diff int"
        >>> a = DiffFrame(spark.createDataFrame([(1, 2, 0, 1)], f"x int, y int, {times}"))
        >>> b = DiffFrame(spark.createDataFrame([(3, 4, 0, 1)], f"y int, x int, {times}"))
        >>> sorted(a.unionByName(b).at(0).collect())
        [Row(x=1, y=2), Row(x=4, y=3)]
        >>> sorted(a.unionByName(b.drop("y"), allowMissingColumns=True).at(0).collect())[1]
        Row(x=4, y=None)
        """
        ours, theirs = self._collection, self._peer(other)
        for collection in (ours, theirs):
            collection.check_unambiguous("unionByName")
        if not allowMissingColumns:
            return self.union(self._wrap(ours.matched(theirs, "unionByName")))
        mine = [(name, theirs.named(name)) for name in ours.columns]
        rest = [name for name in theirs.columns if not ours.named(name)]
        left = self._padded(ours, [(name, name) for name, _ in mine], rest, theirs)
        right = self._padded(theirs, [
            (matches[0] if matches else None, name) for name, matches in mine
        ] + [(name, name) for name in rest], [], ours)
        return self._wrap(left).union(self._wrap(right))

    def _padded(
        self, source: Collection, names: Sequence[tuple[str | None, str]], rest: Sequence[str],
        other: Collection,
    ) -> Collection:
        """Columns by their new names, with nulls of the other side's type for absent ones."""
        struct, others = source.node.schema.struct, other.node.schema.struct
        fields: list[tuple[str | None, T.StructField]] = []
        for old, new in [*names, *((None, name) for name in rest)]:
            field = struct[old] if old is not None else others[other.named(new)[0]]
            nulls = old is None or field.nullable
            fields.append((old, T.StructField(new, field.dataType, nulls)))
        return source.derived(pad(source.node, fields), same=True)

    def concat(self, *others: Self | Plain) -> Self:
        """The sum of several collections, columns matched by name.

        Raises
        ------
        SchemaError
            If names or types of columns differ, or some belong to another dataflow.
        """
        source = self._collection
        nodes = [source.node]
        for other in others:
            theirs = self._peer(other)
            ordered = theirs
            if theirs.columns != source.columns:
                theirs.check_unambiguous("concat")
                ordered = source.matched(theirs, "concat")
            if not source.node.schema.same_types(ordered.node.schema):
                raise source.mismatch("concat", theirs)
            nodes.append(ordered.node)
        return self._derived(Concat(nodes), same=True)

    def negate(self) -> Self:
        """The collection with every multiplicity negated: ``a.concat(a.negate())`` is empty."""
        return self._derived(negate(self._node), same=True)

    def exceptAll(self, other: Self | Plain) -> Self:  # noqa: N802
        """Each record with the excess of its multiplicity over the other side's, as PySpark's
        `exceptAll`."""
        ours, theirs = self._widened(self._peer(other), "exceptAll")
        more = threshold(Concat([ours, negate(theirs)]), _positive)
        return self._derived(more, same=True)

    def intersectAll(self, other: Self | Plain) -> Self:  # noqa: N802
        """Each record with the smaller one of its two multiplicities, as PySpark's
        `intersectAll`."""
        ours, theirs = self._widened(self._peer(other), "intersectAll")
        more = threshold(Concat([ours, negate(theirs)]), _positive)
        return self._derived(Concat([ours, negate(more)]), same=True)

    def subtract(self, other: Self | Plain) -> Self:
        """The distinct records that the other side lacks, as PySpark's `subtract`."""
        both = self._widened(self._peer(other), "subtract")
        ours, theirs = (threshold(node, None) for node in both)
        return self._derived(threshold(Concat([ours, ours, negate(theirs)]), _both), same=True)

    def intersect(self, other: Self | Plain) -> Self:
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
        both = self._widened(self._peer(other), "intersect")
        ours, theirs = (threshold(node, None) for node in both)
        return self._derived(threshold(Concat([ours, theirs]), _both), same=True)

    def assert_empty(self, message: str | None = None) -> Self:
        """The same collection, with the claim that it is empty at every time.

        Parameters
        ----------
        message : str, optional
            The beginning of the error.

        Raises
        ------
        AssertionFailedError
            In the step that completes a time at which a record has a positive or a negative
            multiplicity. The step changes nothing. The error names the time, some of the records,
            and the updates that are to blame. For a whole history, the error comes from reading the
            returned collection.

        Notes
        -----
        The check reads complete times: a record that is removed at the time of its insertion was
        never there. With structs as times, the joins of the times of updates count too, and the
        error names the first time in the order of fields.
        Source: differential-dataflow ``Collection::assert_empty``.

        Examples
        --------
        >>> from pyspark_diff import AssertionFailedError, Dataflow
        >>> with Dataflow(spark) as flow:
        ...     sales, sales_in = flow.input("sales", "id int, price int")
        ...     _ = sales.where("price < 0").assert_empty("a price below zero")
        ...     sales_in.insert([(1, 5), (2, -3)])
        ...     try:
        ...         flow.advance_to(1)
        ...     except AssertionFailedError as error:
        ...         print(str(error).splitlines()[0])
        a price below zero: a collection of (id, price) was to be empty, and is not at time 0: \
there is (2, -3) with the multiplicity 1
        """
        source = self._collection
        claim = NothingThere(tuple(self.columns), message)
        node = self._claimed(source.node, claim, "assert_empty")
        if node.loop is not source.node.loop:
            return self  # the check reads the collection at its complete times
        return self._derived(node, resolver=source.resolver)

    def assert_eq(self, other: Self | Plain, message: str | None = None) -> Self:
        """The same collection, with the claim that it has the same records as another at every
        time.

        Parameters
        ----------
        other : DiffFrame, or a plain table
            Columns are matched by position, as in `exceptAll`.
        message : str, optional
            The beginning of the error.

        Raises
        ------
        SchemaError
            If the columns differ.
        AssertionFailedError
            As in `assert_empty`, for a record with different multiplicities on the two sides.

        Examples
        --------
        >>> columns = "k int, time int, diff int"
        >>> a = DiffFrame(spark.createDataFrame([(1, 0, 2)], columns))
        >>> b = DiffFrame(spark.createDataFrame([(1, 0, 1), (1, 0, 1)], columns))
        >>> a.assert_eq(b).at(0).collect()
        [Row(k=1), Row(k=1)]
        """
        ours, theirs = self._widened(self._peer(other), "assert_eq")
        claim = NothingThere(tuple(self.columns), message, of_two=True)
        node = self._claimed(Concat([ours, negate(theirs)]), claim, "assert_eq")
        if self._collection.flow is not None:
            return self
        # The sum adds an empty collection, whose evaluation makes the check.
        nothing = _cast(self._collection.derived(node), "assert_eq", self._node.schema.struct)
        return self._derived(Concat([self._node, nothing]), same=True)

    def _claimed(self, source: Node, claim: NothingThere, kind: str) -> Node:
        """The node that checks a claim, which is also a sink of the dataflow, if there is one."""
        flow, scope = self._collection.flow, time_scope(source)
        if source.loop is not scope:
            raise NotReadableError(
                f"{kind} is for collections outside of loops: a collection in a loop changes until "
                "the loop has its fixed point. Claim it of the collection that leaves the loop"
            )
        if flow is None:
            return checked(source, claim, kind)
        if scope is None:
            node = checked(source, claim, kind)
        else:
            names = (flow.time_name, flow.diff_name)
            fields = time_columns(scope.times, [*source.schema.names, *names])
            in_fields = without_times(source, fields)
            node = checked_when_complete(in_fields, len(fields), claim, kind)
        flow._add_sink(node)
        return node

    def weighted(self, *cols: str) -> Self:
        """The records without some whole-number columns, their diff being multiplied by these
        columns.

        With one column the diff stays a number, which all operators accept: `count` returns the
        sums as data. With several columns the diff becomes a vector within the operator. The result
        has the sums in columns of the same names, for each distinct record of the other columns. It
        lacks records whose sums are all zero.

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
        names = key_columns(self._collection, list(cols), "weighted")
        if not names:
            raise SchemaError("weighted takes at least one column")
        for name in names:
            kind = self._node.schema.struct[name].dataType
            if not isinstance(kind, (T.ByteType, T.ShortType, T.IntegerType, T.LongType)):
                raise SchemaError(
                    f"the weight {name!r} must be a whole number, not {kind.simpleString()}; for "
                    "sums of other types take aggregates: groupBy(...).agg(F.sum(...))"
                )
        if len(names) == 1:
            return self._derived(multiply_diff(self._node, names[0]))
        rest = [name for name in self._node.schema.names if name not in names]
        sums = [
            (T.StructField(name, T.LongType(), False), WeightSum(pa.int64(), i))
            for i, name in enumerate(names)
        ]
        return self._derived(aggregate(self._node, rest, names, sums, by_rows=False))

    def _widened(self, theirs: Collection, kind: str) -> tuple[Node, Node]:
        """Both collections with this collection's names, matched by position, and the types of
        Spark's union."""
        ours = self._collection
        for collection in (ours, theirs):
            collection.check_unambiguous(kind)
        if len(theirs.columns) != len(ours.columns):
            raise ours.mismatch(kind, theirs)
        names = list(zip(theirs.node.schema.names, ours.columns))
        renamed = theirs.derived(
            pick(kind, theirs.node, names), resolver=Resolver.plain(ours.columns)
        )
        if ours.node.schema.same_types(renamed.node.schema):
            return ours.node, renamed.node
        if any(
            lack_common_type(a.dataType, b.dataType)
            for a, b in zip(ours.node.schema.struct, renamed.node.schema.struct)
        ):
            raise ours.mismatch(kind, theirs)
        try:
            kinds = ours.template().union(renamed.template()).schema
        except AnalysisException as error:
            raise ours.mismatch(kind, theirs) from error
        left, right = (_cast(collection, kind, kinds) for collection in (ours, renamed))
        return left, right


def _cast(source: Collection, kind: str, wanted: T.StructType) -> Node:
    """The node with its columns cast to other types."""
    casts = {
        new.name: column(new.name).cast(without_nullability(new.dataType))
        for new, old in zip(wanted, source.node.schema.struct)
        if without_nullability(new.dataType) != without_nullability(old.dataType)
    }
    columns = [(name, casts.get(name, column(name))) for name in source.node.schema.names]
    return computed(source, kind, columns, outputs=casts) if casts else source.node


def _positive(count: int) -> int:
    return max(count, 0)


def _both(count: int) -> int:
    return 1 if count == 2 else 0
