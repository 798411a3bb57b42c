"""The joins of a frame, and the aliases and hints of their sides."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Sequence

from pyspark.sql import Column

from pyspark_diff.errors import SchemaError
from pyspark_diff.expressions.analysis import suggesting
from pyspark_diff.frame.base import Frame
from pyspark_diff.frame.constants import Plain
from pyspark_diff.frame.interval_join import Bound, IntervalBounds
from pyspark_diff.frame.join_plan import JoinPlan, cross_joined, hot_keys, seeing_both

if TYPE_CHECKING:
    from typing_extensions import Self

    from pyspark_diff.frame.collection import Collection

_HOW = {
    "inner": "inner", "cross": "cross",
    "outer": "full", "full": "full", "fullouter": "full",
    "left": "left", "leftouter": "left",
    "right": "right", "rightouter": "right",
    "semi": "semi", "leftsemi": "semi",
    "anti": "anti", "leftanti": "anti",
}


def _kind_of(how: str) -> str:
    kind = _HOW.get(str(how).lower().replace("_", ""))
    if kind is None:
        raise SchemaError(
            f"{how!r} is not a kind of join. The kinds are inner, left, right, full, left_semi, "
            "left_anti and cross"
        )
    return kind


class JoinMethods(Frame):
    """Joins with another frame."""

    def join(
        self,
        other: Self | Plain,
        on: str | Column | Sequence[str] | Sequence[Column] | None = None,
        how: str = "inner",
    ) -> Self:
        """Pairs of matching records, as PySpark's `join`, kept up to date.

        Parameters
        ----------
        other : DiffFrame, or a plain table
            A frame of Spark, pandas, Arrow or Polars is a collection that never changes, evaluated
            once.
        on : str, list of str, Column, or list of Column
            Names of columns of both sides, which the result has once, or a condition. A condition
            must have at least one equality between the two sides, or a comparison, as in
            ``F.col("y").between(F.col("x") - 5, F.col("x") + 5)``, in which no expression has
            columns of both. The join checks all other parts of the condition on the pairs of these.
            If both sides have a name, take the columns from their frames, ``a.join(b, a["x"] ==
            b["y"])``, or name the sides with `alias`: ``a.alias("l").join(b.alias("r"),
            F.col("l.x") == F.col("r.y"))``. A plain Spark frame has its own columns, ``a.join(df,
            a["x"] == df["y"])``. A self-join needs `alias` for both sides.
        how : str
            ``inner``, ``left``, ``right``, ``full``, ``left_semi``, ``left_anti``, ``cross``, and
            PySpark's other names for these.

        Raises
        ------
        SchemaError
            If columns are missing, or the condition cannot find matches.

        Notes
        -----
        Both sides become arrangements, shared with other operators that need the same collection by
        the same key. A null key matches nothing. ``left_semi`` and ``left_anti`` test whether the
        other side has a match, however many.

        SQL's ``a.x NOT IN (SELECT y FROM b)`` is no single anti join, as a null is neither equal
        nor unequal: with a null in ``b`` it keeps no record, and with an empty ``b`` all. It is ::

            one = F.lit(1).alias("one")
            empty = a.withColumn("one", F.lit(1)).join(b.select(one), "one", "left_anti")
            rest = a.where("x IS NOT NULL").join(b, a["x"] == b["y"], "left_anti")
            nulls = b.where("y IS NULL").select(one)
            rest = rest.withColumn("one", F.lit(1)).join(nulls, "one", "left_anti")
            not_in = rest.drop("one").union(empty.where("x IS NULL").drop("one"))

        A condition finds pairs by its equalities. It also finds them, with or without equalities,
        by a band: a value of one side between two expressions of the other that differ by
        constants, or ``F.abs(F.col("x") - F.col("y")) <= 5``. The operator then reads about two
        pairs for each pair of the result, at any number of records of a key.

        Without equalities, three more forms find pairs. A value between any two expressions costs
        about ten rows for each record. Overlapping intervals of both sides, ``(F.col("lo") <=
        F.col("high")) & (F.col("low") <= F.col("hi"))``, cost about thirty. A single comparison
        costs up to 250 for each record of the right side, or of the left side if it has the hint
        ``broadcast``. In a band of whole numbers, a difference that overflows their type is no
        match and no error.

        Examples
        --------
        >>> a = spark.createDataFrame([(1, "a", 0, 1)], "k int, x string, time int, diff int")
        >>> b = spark.createDataFrame([(1, "b", 3, 1)], "k int, y string, time int, diff int")
        >>> a, b = DiffFrame(a), DiffFrame(b)
        >>> a.join(b, "k").to_df().collect()
        [Row(k=1, x='a', y='b', time=3, diff=1)]
        >>> for row in a.join(b, "k", "left").to_df().orderBy("time", "diff").collect():
        ...     print(*row)
        1 a None 0 1
        1 a None 3 -1
        1 a b 3 1
        >>> a.join(spark.createDataFrame([(1, "plain")], "k int, z string"), "k").at(0).collect()
        [Row(k=1, x='a', z='plain')]
        >>> a.join(b, F.col("x") < F.col("y")).select("x", "y").at(3).collect()
        [Row(x='a', y='b')]
        """
        other = self._lifted(other)
        theirs = self._peer(other)
        kind = _kind_of(how)
        if kind == "cross" or on is None:
            if on is not None:
                raise SchemaError("a cross join has no condition; leave out `on`")
            if kind not in ("cross", "inner"):
                raise SchemaError(f"a join of kind {how!r} needs `on`: column names or a condition")
            return self.crossJoin(other)
        return self._joined(theirs, on, kind)

    def _joined(
        self, theirs: Collection, on: Any, kind: str, *, in_place: bool = False
    ) -> Self:
        ours, theirs, on = seeing_both(self._collection, theirs, on)
        with suggesting([*ours.columns, *theirs.columns]):
            return self._wrap(JoinPlan(ours, theirs, on, kind).joined(in_place=in_place))

    def join_interval(
        self,
        other: Self | Plain,
        left_on: str,
        right_on: str | None = None,
        *,
        lower: Bound = None,
        upper: Bound = None,
        by: str | Sequence[str] = (),
        how: str = "inner",
    ) -> Self:
        """Pairs of records whose values are near each other, kept up to date.

        A pair satisfies ``left + lower <= right <= left + upper``.

        Parameters
        ----------
        other : DiffFrame, or a plain table
        left_on, right_on : str
            The compared columns: numbers, dates or timestamps. Without `right_on` both sides have
            the same name.
        lower, upper : number, timedelta, str or Column
            The offset from the left value: a number, of days for dates; a duration; SQL text of an
            interval, such as ``"-5 minutes"``; or a column of a constant. Without an offset, that
            side has no bound.
        by : str or list of str
            Columns of both sides that have to be equal. The result has them once.
        how : str
            As in `join`.

        Raises
        ------
        SchemaError
            If a column is missing, both bounds are missing, or a bound cannot be added.

        Notes
        -----
        With both bounds the operator reads about two pairs for each pair of the result, at any
        number of records with equal ``by``. With one bound and ``by`` it reads all pairs with equal
        ``by``; see `join`. A null matches nothing. For the last record before another one see
        `join_asof`.

        Examples
        --------
        >>> clicks = DiffFrame(spark.createDataFrame(
        ...     [("a", 10, 0, 1), ("a", 90, 0, 1), ("b", 10, 1, 1)],
        ...     "user string, at int, time int, diff int"))
        >>> buys = DiffFrame(spark.createDataFrame(
        ...     [("a", 12, 2, 1)], "user string, bought int, time int, diff int"))
        >>> clicks.join_interval(
        ...     buys, "at", "bought", lower=0, upper=30, by="user").to_df().collect()
        [Row(user='a', at=10, bought=12, time=2, diff=1)]
        """
        other = self._lifted(other)
        kind = _kind_of(how)
        if kind == "cross":
            raise SchemaError("join_interval has bounds, and a cross join has none")
        names = [by] if isinstance(by, str) else list(by)
        near = IntervalBounds(left_on, left_on if right_on is None else right_on, lower, upper)
        plan = JoinPlan(self._collection, self._peer(other), names, kind, near)
        return self._wrap(plan.joined())

    def crossJoin(self, other: Self | Plain) -> Self:  # noqa: N802
        """All pairs of records, as PySpark's `crossJoin`, with a small collection.

        Parameters
        ----------
        other : DiffFrame, or a plain table
            Declared small with ``other.hint("broadcast")``: each bucket gets a copy. A table of
            pandas, Arrow or Polars is small.

        Raises
        ------
        SchemaError
            If ``other`` was not declared small: each change of either side reads all of the other.

        Examples
        --------
        >>> n = DiffFrame(spark.createDataFrame([(1, 0, 1)], "n int, time int, diff int"))
        >>> m = DiffFrame(spark.createDataFrame([(2, 0, 1)], "m int, time int, diff int"))
        >>> n.crossJoin(m.hint("broadcast")).at(0).collect()
        [Row(n=1, m=2)]
        """
        return self._wrap(cross_joined(self._collection, self._peer(other)))

    def semijoin(self, other: Self | Plain, on: str | Sequence[str] | None = None) -> Self:
        """The records whose key occurs in another collection, with the columns in their order.

        ``join(other, on, "left_semi")`` returns the same records; as in PySpark, its columns of
        the key come first.

        Parameters
        ----------
        other : DiffFrame, or a plain table
        on : str or list of str, optional
            The default is all columns of ``other``.

        Examples
        --------
        >>> columns = "k int, time int, diff int"
        >>> a = DiffFrame(spark.createDataFrame([(1, 0, 1), (2, 0, 1)], columns))
        >>> b = DiffFrame(spark.createDataFrame([(1, 0, 5)], columns))
        >>> a.semijoin(b).at(0).collect(), a.antijoin(b).at(0).collect()
        ([Row(k=1)], [Row(k=2)])
        """
        other = self._lifted(other)
        names = other.columns if on is None else on
        return self._joined(self._peer(other), names, "semi", in_place=True)

    def antijoin(self, other: Self | Plain, on: str | Sequence[str] | None = None) -> Self:
        """The records whose key does not occur in another collection, with the columns in their
        order.

        The records of the other side need not be distinct.
        """
        other = self._lifted(other)
        names = other.columns if on is None else on
        return self._joined(self._peer(other), names, "anti", in_place=True)

    def alias(self, alias: str) -> Self:
        """The same collection under a name that conditions and `select` can use.

        Examples
        --------
        >>> e = DiffFrame(spark.createDataFrame(
        ...     [(1, 2, 0, 1), (2, 3, 0, 1)], "src int, dst int, time int, diff int"))
        >>> pairs = e.alias("a").join(e.alias("b"), F.col("a.dst") == F.col("b.src"))
        >>> pairs.select("a.src", "b.dst").at(0).collect()
        [Row(src=1, dst=3)]
        """
        source = self._collection
        same = source.derived(source.node, resolver=source.resolver.named(alias))
        return self._wrap(replace(same, small=source.small, hot=source.hot))  # hints stay

    def hint(self, name: str, *parameters: Any) -> Self:
        """The same collection, with a hint for joins.

        Parameters
        ----------
        name : str
            ``broadcast``: the collection is small, and buckets may have copies of it. ``skew``:
            some keys have many records, which a join spreads over the buckets. Other hints do
            nothing.
        *parameters
            For ``skew``: a column of the join's key, or a list of them, and a hot value, or a list
            of hot values; for several columns a value is a tuple. Without values the join spreads
            all keys.

        Raises
        ------
        SchemaError
            If the column is missing, or cannot have these values.

        Notes
        -----
        Equal keys lie in one bucket, and a bucket is the work of one task: a key with half of the
        records is half of the work, for any number of buckets. A spread key lies in up to 64 parts,
        and each part has a copy of the other side's records with that key. So the other side should
        have few records of a hot key, and few records in all if the hint has no values. The result
        of the join is the same.

        The join arranges both sides for itself. It can spread columns of whole numbers, texts,
        booleans, dates and timestamps that are in its key. ``inner`` joins spread the side with the
        hint, the left one if both have it. ``left_semi``, ``left_anti`` and outer joins spread
        their look-ups of the side with the hint. A join with an overlap of intervals, or with a
        value between two ends, does not spread keys: it uses ranges within all keys, so that each
        record reads only near records of its key.
        Source: Databricks, hint ``SKEW``; salting as in DeWitt et al., "Practical skew handling in
        parallel joins", VLDB 1992.

        Examples
        --------
        >>> sales = DiffFrame(spark.createDataFrame(
        ...     [("web", 5, 0, 1), ("web", 7, 0, 1), ("B12", 9, 0, 1)],
        ...     "shop string, price int, time int, diff int"))
        >>> shops = DiffFrame(spark.createDataFrame(
        ...     [("web", "Oslo", 0, 1)], "shop string, town string, time int, diff int"))
        >>> joined = sales.hint("skew", "shop", "web").join(shops, "shop")
        >>> sorted(tuple(row) for row in joined.at(0).collect())
        [('web', 5, 'Oslo'), ('web', 7, 'Oslo')]
        """
        source = self._collection
        small, hot = source.small, source.hot
        if name.lower() in ("broadcast", "broadcastjoin", "mapjoin"):
            small = True
        elif name.lower() == "skew" and parameters:
            hot = hot_keys(source, *parameters)
        same = source.derived(source.node, resolver=source.resolver)
        return self._wrap(replace(same, small=small, hot=hot))
