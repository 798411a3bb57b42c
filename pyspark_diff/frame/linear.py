"""The methods of a frame that look at one record at a time, and need no state.

``f(A + B) = f(A) + f(B)``: applied to updates as they are, keeping their time and diff.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator

import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.errors import SchemaError
from pyspark_diff.expressions.handles import handle_text, handles_in
from pyspark_diff.expressions.names import Resolver
from pyspark_diff.expressions.tree import Attribute, tree_of
from pyspark_diff.frame.base import Frame
from pyspark_diff.frame.collection import columns_of_star
from pyspark_diff.frame.row_wise import filtered, plain_column, row_wise
from pyspark_diff.frame.windows import with_columns, with_windows
from pyspark_diff.operators.linear import (
    FlatMap,
    MapInArrow,
    MapInPandas,
    drop_null,
    pick,
    with_normal_form,
)
from pyspark_diff.operators.node import Linear
from pyspark_diff.operators.twice import Twice, TwiceInPandas
from pyspark_diff.spark.frames import column, update_struct
from pyspark_diff.spark.schema import (
    DIFF,
    TIME,
    Schema,
    TimeType,
    check_names,
    meant_by,
    parse_schema,
)
from pyspark_diff.spark.stars import star_of

if TYPE_CHECKING:
    from typing_extensions import Self


class LinearMethods(Frame):
    """Columns, conditions and functions of each record."""

    def select(self, *cols: str | Column) -> Self:
        """Columns or expressions of each record, as PySpark's `select`.

        Time and diff stay beside the record and need not be named. Expressions may have windows:
        see `withColumn`.

        Raises
        ------
        NonDeterministicError
            If an expression may give another value when the record is retracted.

        Examples
        --------
        >>> words = DiffFrame(spark.createDataFrame([("a", 0, 1)], "w string, time int, diff int"))
        >>> words.select("w", F.upper("w").alias("u")).at(0).collect()
        [Row(w='a', u='A')]
        """
        if len(cols) == 1 and isinstance(cols[0], (list, tuple)):
            cols = tuple(cols[0])
        source = self._collection
        known = [c for c in cols if isinstance(c, str) and source.resolver.internal(c)]
        if cols and len(set(known)) == len(cols):
            return self._wrap(source.picked("select", [(str(c), str(c)) for c in cols]))
        given = [one for c in cols for one in self._without_star(c)]
        source, given = with_windows(*source.spreading(given))
        selected: list[str | Column] = []
        unchanged: list[str | None] = []
        for c in given:
            if isinstance(c, str) and c in source.resolver.ambiguous:
                source.check_unambiguous("select")
            exact = isinstance(c, str) and c in self.columns
            selected.append(column(c) if isinstance(c, str) and exact else c)
            unchanged.append(
                source.resolver.internal(c) if isinstance(c, str) else plain_column(source, c)
            )
        return self._wrap(row_wise(
            source, "select", lambda frame: frame.select(*selected, TIME, DIFF), outputs=given,
            unchanged=unchanged,
        ))

    def _without_star(self, given: str | Column) -> list[str | Column]:
        """What is selected, a star being all columns, of this collection or of an earlier one."""
        if not isinstance(given, (str, Column)):
            raise SchemaError(
                f"select takes names and columns, not a {type(given).__name__}: {given!r}"
            )
        source = self._collection
        if isinstance(given, str):
            target = given[:-1].rstrip(".").strip("`") if given.endswith("*") else None
        else:
            target = star_of(given)
        if target == "" and not source.resolver.ambiguous:
            return list(self.columns)
        if target is not None:
            aliases = meant_by(target, source.resolver.aliases(merged=True), source.spark)
            entries = source.resolver.entries if not target else [
                entry for alias in aliases for entry in source.resolver.under(alias)
            ]
            if entries:
                return [entry.lineage.handle.column() for entry in entries if entry.lineage]
        if isinstance(given, str):
            return [given]
        taken = columns_of_star(given, source.resolver)
        if taken:
            return [*taken]
        text = handle_text(given)
        stars = [h for h in handles_in([given]) if h.members and h.text == text]
        return [one.column() for one in stars[0].members] if stars else [given]

    def _without_nulls(self, *names: str) -> Self:
        """The records in which none of some columns is null; `dropna` drops NaN, too."""
        fields = [self._node.schema.field(name) for name in names]
        nullable = [field.name for field in fields if field.nullable]
        return self._derived(drop_null(self._node, nullable), same=True) if nullable else self

    def selectExpr(self, *expr: str) -> Self:  # noqa: N802
        """Expressions of SQL text, as PySpark's `selectExpr`.

        Raises
        ------
        NonDeterministicError
            If an expression may give another value when the record is retracted.

        Examples
        --------
        >>> words = DiffFrame(spark.createDataFrame([("a", 0, 1)], "w string, time int, diff int"))
        >>> words.selectExpr("w", "upper(w) AS u").at(0).collect()
        [Row(w='a', u='A')]
        """
        if len(expr) == 1 and isinstance(expr[0], (list, tuple)):
            expr = tuple(expr[0])
        # All is SQL, also what is a column's name: that of `1` or `upper(s)` needs backticks. Names
        # that a join has given twice are left to `select`, which tells how to tell them apart.
        names = {"*", *self._collection.resolver.ambiguous}
        texts = [text.strip() for text in expr]
        return self.select(*(text if text in names else F.expr(text) for text in texts))

    def where(self, condition: str | Column) -> Self:
        """The records for which a condition is true, as PySpark's `where`.

        Examples
        --------
        >>> rows = [(1, 0, 1), (5, 0, 1)]
        >>> n = DiffFrame(spark.createDataFrame(rows, "n int, time int, diff int"))
        >>> n.where("n > 2").at(0).collect()
        [Row(n=5)]
        """
        # A text can have a star too, as in hash(*).
        starred = isinstance(condition, str) and "*" in condition
        wanted = F.expr(str(condition)) if starred else condition
        return self._wrap(filtered(*self._collection.spreading(wanted)))

    filter = where

    def withColumn(self, colName: str, col: Column) -> Self:  # noqa: N802, N803
        """One more column, or another in its place, as PySpark's `withColumn`.

        Raises
        ------
        NonDeterministicError
            If the expression may give another value when the record is retracted.
        NegativeMultiplicityError
            In a step, if an expression has a window and a record of it was removed more often than
            it was inserted.

        Notes
        -----
        An expression may have *windows*, functions of a record among those of its partition:
        ``row_number``, ``rank``, ``dense_rank``, ``percent_rank``, ``cume_dist``, ``ntile``,
        ``lag``, ``lead``; ``sum``, ``count``, ``avg``, ``var_*``, ``stddev_*``, ``count_if``,
        ``bool_and``, ``bool_or``, ``min``, ``max``, ``first``, ``last``, ``nth_value`` and
        ``collect_list`` over any frame; and they may be over windows themselves. A record that is
        there n times is n rows. Where rows tie, Spark leaves open which comes first; here the other
        columns decide, in their order, ascending with nulls first. Windows over several orders are
        computed one behind the other, and what was computed before breaks ties last.

        A change is worth the rows whose results it changes. What ``lag`` and ``lead``, frames
        ``rowsBetween`` two numbers, and ``last(..., ignorenulls=True)`` of ``rowsBetween``
        the first one and the current one need is found by search, in few rows of a partition,
        however large; for others all rows of the partition are read, and of these evaluated what
        stands behind the change, as far as it matters. Without ``partitionBy`` all records are one
        partition, in one bucket. Where a condition right above keeps the first places of a
        ``row_number``, ``rank`` or ``dense_rank`` only, and the window has no other function, it is
        a `top_k`: a change costs the first rows and not the partition, and records that were
        removed too often are passed over. Sums of doubles are those of double-words, rounded once.

        Examples
        --------
        >>> n = DiffFrame(spark.createDataFrame([(1, 0, 1)], "n int, time int, diff int"))
        >>> n.withColumn("m", F.col("n") + 1).at(0).collect()
        [Row(n=1, m=2)]
        >>> from pyspark.sql import Window
        >>> rows = [("a", 1, 0, 1), ("a", 5, 0, 1), ("a", 3, 1, 1)]
        >>> sales = DiffFrame(
        ...     spark.createDataFrame(rows, "shop string, price int, time int, diff int"))
        >>> by_price = Window.partitionBy("shop").orderBy("price")
        >>> more = sales.withColumn("more", F.col("price") - F.lag("price").over(by_price))
        >>> sorted((row.price, row.more) for row in more.at(0).collect())
        [(1, None), (5, 4)]
        >>> sorted((row.price, row.more) for row in more.at(1).collect())
        [(1, None), (3, 2), (5, 2)]
        """
        check_names([colName])
        return self._wrap(with_columns(self._collection, "withColumn", {colName: col}))

    def toDF(self, *cols: str) -> Self:  # noqa: N802
        """Other names for all columns, in their order, as PySpark's `toDF`."""
        entries = self._collection.resolver.entries
        if len(cols) != len(entries):
            raise SchemaError(
                f"toDF was given {len(cols)} names for {len(entries)} columns: "
                f"{', '.join(self.columns)}"
            )
        check_names(cols)
        names = [(entry.internal, new) for entry, new in zip(entries, cols)]
        return self._derived(pick("toDF", self._node, names), resolver=Resolver.plain(cols))

    def withColumnRenamed(self, existing: str, new: str) -> Self:  # noqa: N802
        """Another name for a column, as PySpark's `withColumnRenamed`; absent ones are let be."""
        check_names([new])
        meant = self._collection.named(existing)
        pairs = [(name, new if name in meant else name) for name in self.columns]
        return self._wrap(self._collection.picked("withColumnRenamed", pairs))

    def drop(self, *cols: str | Column) -> Self:
        """The records without some columns, as PySpark's `drop`; absent names are no error.

        Records that become equal add up: the result is a multiset.

        Examples
        --------
        >>> e = DiffFrame(spark.createDataFrame([(1, 2, 0, 1)], "k int, v int, time int, diff int"))
        >>> f = e.withColumn("w", F.lit("x"))
        >>> e.join(f, e["k"] == f["k"]).drop(f["k"], f["v"]).columns
        ['k', 'v', 'w']
        """
        odd = [c for c in cols if not isinstance(c, (str, Column))]
        if odd:
            raise SchemaError(
                f"drop takes names and columns, not a {type(odd[0]).__name__}: {odd[0]!r}. Write "
                "drop(*names) for a list of names"
            )
        source, cols = self._collection.seeing(cols)
        gone: set[str | None] = set()
        for given in cols:
            if isinstance(given, Column):
                gone.add(plain_column(source, given))
                if None in gone and not isinstance(tree_of(given), Attribute):
                    raise SchemaError(f"drop takes columns, not expressions such as {given}")
            else:
                meant = source.named(given)
                gone.update(e.internal for e in source.resolver.entries if e.visible in meant)
        kept = [entry for entry in source.resolver.entries if entry.internal not in gone]
        # What was there twice may be there once now, and is found by its name.
        named = Resolver.of([entry.visible for entry in kept]).entries
        names = [(old.internal, new.internal) for old, new in zip(kept, named)]
        entries = [old._replace(internal=new.internal) for old, new in zip(kept, named)]
        return self._derived(
            pick("drop", self._node, names), resolver=source.resolver.restricted(entries)
        )

    def transform(self, func: Callable[..., DataFrame], *args: Any, **kwargs: Any) -> Self:
        """Any row-by-row function of Spark frames, as PySpark's `transform`.

        Parameters
        ----------
        func : callable
            Takes a frame of update rows, time and diff included under their names, and returns
            one in which both are still there. It may look at one row at a time only.

        Raises
        ------
        SchemaError
            If time or diff does not survive, or the plan looks at several rows.

        Examples
        --------
        >>> n = DiffFrame(spark.createDataFrame([(1, 0, 1)], "n int, time int, diff int"))
        >>> n.transform(lambda df: df.withColumn("even", F.col("n") % 2 == 0)).at(0).collect()
        [Row(n=1, even=False)]
        """
        source = self._collection
        time, diff = source.time_name, source.diff_name

        def apply(frame: DataFrame) -> DataFrame:
            named = frame.withColumnRenamed(TIME, time).withColumnRenamed(DIFF, diff)
            result = func(named, *args, **kwargs)
            if not isinstance(result, DataFrame):
                raise SchemaError(
                    f"transform's function must return a DataFrame, not {type(result).__name__}"
                )
            return result.withColumnRenamed(time, TIME).withColumnRenamed(diff, DIFF)

        return self._wrap(row_wise(source, "transform", apply, keeps_time_and_diff=False))

    def flat_map(
        self,
        func: Callable[[T.Row], Iterable[Any]],
        schema: str | T.StructType,
        *,
        check: bool = False,
    ) -> Self:
        """A Python function from each record to any number of records.

        It costs a Python call for each update row; `select` with `explode` costs none.

        Parameters
        ----------
        func : callable
            From a Row to an iterable of tuples. It must give the same rows whenever it is called
            with the same record: a record that is removed is taken back by calling it again, so
            that rows of chance, the clock or a counter would stay for ever, some of them with
            negative multiplicities.
        schema : str or StructType
            Columns of the result.
        check : bool
            Call it twice on the same input, and refuse if the results differ. For tests: it costs
            twice the time.

        Raises
        ------
        NonDeterministicError
            With `check`, if two calls differ.

        Examples
        --------
        >>> lines = DiffFrame(
        ...     spark.createDataFrame([("a b a", 0, 1)], "line string, time int, diff int"))
        >>> words = lines.flat_map(lambda row: [(w,) for w in row.line.split()], "word string")
        >>> sorted(words.count().at(0).collect())
        [Row(word='a', count=2), Row(word='b', count=1)]
        """
        source, parsed = self._collection, parse_schema(schema)
        types = _update_types(parsed, source.node.time_type)
        function = Twice(func, "flat_map") if check else func
        stage = FlatMap(function, source.node.schema.arrow(), *types)
        node = Linear("flat_map", source.node, parsed, stage)
        return self._derived(with_normal_form(node, floats=True))

    def mapInPandas(  # noqa: N802
        self,
        func: Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]],
        schema: str | T.StructType,
    ) -> Self:
        """`map_in_pandas`, by PySpark's name."""
        return self.map_in_pandas(func, schema)

    def mapInArrow(  # noqa: N802
        self,
        func: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
        schema: str | T.StructType,
    ) -> Self:
        """A Python function over Arrow batches of update rows, as PySpark's `mapInArrow`.

        Parameters
        ----------
        func : callable
            From an iterator of record batches to an iterator of record batches, which have the time
            and diff columns; what `map_in_pandas` says of them holds here too.
        schema : str or StructType
            Data columns of the result.

        Examples
        --------
        >>> n = DiffFrame(spark.createDataFrame([(2, 0, 1)], "n int, time int, diff int"))
        >>> n.mapInArrow(lambda batches: (b for b in batches), "n int").at(0).collect()
        [Row(n=2)]
        """
        source, parsed = self._collection, parse_schema(schema)
        types = _update_types(parsed, source.node.time_type)
        stage = MapInArrow(
            func, source.time_name, source.diff_name, source.node.schema.arrow(), *types
        )
        node = Linear("mapInArrow", source.node, parsed, stage)
        return self._derived(with_normal_form(node, floats=True))

    def map_in_pandas(
        self,
        func: Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]],
        schema: str | T.StructType,
        *,
        check: bool = False,
    ) -> Self:
        """A Python function over pandas frames of update rows, as PySpark's `mapInPandas`.

        Parameters
        ----------
        func : callable
            From an iterator of pandas frames to an iterator of pandas frames. The frames have the
            time and diff columns, and each output row carries those of the row it is made from.
            As of `flat_map`, rows that depend on anything else, such as on which other rows come
            in the same frame, do not cancel when their record is removed.
        schema : str or StructType
            Data columns of the result.
        check : bool
            Call it twice on each frame, and refuse if the results differ. For tests: it costs
            twice the time.

        Raises
        ------
        NonDeterministicError
            With `check`, if two calls differ.

        Examples
        --------
        >>> n = DiffFrame(spark.createDataFrame([(2, 0, 1)], "n long, time int, diff int"))
        >>> n.map_in_pandas(lambda it: (f.assign(n=f.n * 10) for f in it), "n long").at(0).collect()
        [Row(n=20)]
        """
        source, parsed = self._collection, parse_schema(schema)
        types = _update_types(parsed, source.node.time_type)
        function = TwiceInPandas(func) if check else func
        stage = MapInPandas(
            function, source.time_name, source.diff_name, source.node.schema.arrow(), *types
        )
        node = Linear("map_in_pandas", source.node, parsed, stage)
        return self._derived(with_normal_form(node, floats=True))


def _update_types(schema: Schema, time_type: TimeType) -> tuple[T.StructType, pa.Schema]:
    """Update rows with some data columns, as Spark and as Arrow have them."""
    fields = [*schema.arrow(), pa.field(TIME, time_type.arrow), pa.field(DIFF, pa.int64())]
    return update_struct(schema, time_type), pa.schema(fields)
