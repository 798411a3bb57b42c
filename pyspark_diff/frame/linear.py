"""The methods of a frame that look at one record at a time, and need no state.

``f(A + B) = f(A) + f(B)``: the operators apply to each update and keep its time and diff.
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

        Each record keeps its time and diff without naming them. Expressions may have windows: see
        `withColumn`.

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
        listed = [item for c in cols for item in self._without_star(c)]
        source, listed = with_windows(*source.spreading(listed))
        selected: list[str | Column] = []
        unchanged: list[str | None] = []
        for c in listed:
            if isinstance(c, str) and c in source.resolver.ambiguous:
                source.check_unambiguous("select")
            exact = isinstance(c, str) and c in self.columns
            selected.append(column(c) if isinstance(c, str) and exact else c)
            unchanged.append(
                source.resolver.internal(c) if isinstance(c, str) else plain_column(source, c)
            )
        return self._wrap(row_wise(
            source, "select", lambda frame: frame.select(*selected, TIME, DIFF), outputs=listed,
            unchanged=unchanged,
        ))

    def _without_star(self, item: str | Column) -> list[str | Column]:
        """The expressions of one argument of `select`; a star becomes all columns of this
        collection or of an earlier one."""
        if not isinstance(item, (str, Column)):
            raise SchemaError(
                f"select takes names and columns, not a {type(item).__name__}: {item!r}"
            )
        source = self._collection
        if isinstance(item, str):
            target = item[:-1].rstrip(".").strip("`") if item.endswith("*") else None
        else:
            target = star_of(item)
        if target == "" and not source.resolver.ambiguous:
            return list(self.columns)
        if target is not None:
            aliases = meant_by(target, source.resolver.aliases(merged=True), source.spark)
            entries = source.resolver.entries if not target else [
                entry for alias in aliases for entry in source.resolver.under(alias)
            ]
            if entries:
                return [entry.lineage.handle.column() for entry in entries if entry.lineage]
        if isinstance(item, str):
            return [item]
        members = columns_of_star(item, source.resolver)
        if members:
            return [*members]
        text = handle_text(item)
        stars = [h for h in handles_in([item]) if h.members and h.text == text]
        return [member.column() for member in stars[0].members] if stars else [item]

    def _without_nulls(self, *names: str) -> Self:
        """The records without a null in some columns; `dropna` drops NaN, too."""
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
        # All text is SQL, so a column with the name `1` or `upper(s)` needs backticks. `select`
        # gets names that several columns of a join have, as its error explains the remedy.
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
        # A text can have a star, as in hash(*).
        starred = isinstance(condition, str) and "*" in condition
        wanted = F.expr(str(condition)) if starred else condition
        return self._wrap(filtered(*self._collection.spreading(wanted)))

    filter = where

    def withColumn(self, colName: str, col: Column) -> Self:  # noqa: N802, N803
        """One column added or replaced, as PySpark's `withColumn`.

        Raises
        ------
        NonDeterministicError
            If the expression may give another value when the record is retracted.
        NegativeMultiplicityError
            In a step, if an expression has a window and the removals of a record exceed its
            insertions.

        Notes
        -----
        An expression may have *windows*, functions of a record among those of its partition:
        ``row_number``, ``rank``, ``dense_rank``, ``percent_rank``, ``cume_dist``, ``ntile``,
        ``lag``, ``lead``; ``sum``, ``count``, ``avg``, ``var_*``, ``stddev_*``, ``count_if``,
        ``bool_and``, ``bool_or``, ``min``, ``max``, ``first``, ``last``, ``nth_value`` and
        ``collect_list`` over any frame; and windows of windows. A record with multiplicity n is n
        rows. Spark has no order for tied rows; here the other columns decide, in their order,
        ascending with nulls first. Windows with different orders run one after another, and the
        results of the earlier ones break ties last.

        A change outputs the rows whose results it changes. For ``lag`` and ``lead``, for frames
        ``rowsBetween`` two numbers, and for ``last(..., ignorenulls=True)`` over ``rowsBetween``
        the first row and the current one, a search reads few rows of a partition of any size. Other
        windows read all rows of the partition, and evaluate the rows after the change until the
        results are equal again. Without ``partitionBy`` all records are one partition, in one
        bucket.

        A condition directly on the result can keep only the first places of a ``row_number``,
        ``rank`` or ``dense_rank``. If the window has no other function, the two become a `top_k`: a
        change costs the first rows and not the partition, and records with excess removals are
        skipped. Sums of doubles are sums of double-words, rounded once.

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
                f"toDF has {len(cols)} names for {len(entries)} columns: "
                f"{', '.join(self.columns)}"
            )
        check_names(cols)
        names = [(entry.internal, new) for entry, new in zip(entries, cols)]
        return self._derived(pick("toDF", self._node, names), resolver=Resolver.plain(cols))

    def withColumnRenamed(self, existing: str, new: str) -> Self:  # noqa: N802
        """Another name for a column, as PySpark's `withColumnRenamed`; an absent name changes
        nothing."""
        check_names([new])
        meant = self._collection.named(existing)
        pairs = [(name, new if name in meant else name) for name in self.columns]
        return self._wrap(self._collection.picked("withColumnRenamed", pairs))

    def drop(self, *cols: str | Column) -> Self:
        """The records without some columns, as PySpark's `drop`; absent names are no error.

        Multiplicities of records that become equal add up.

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
        for col in cols:
            if isinstance(col, Column):
                gone.add(plain_column(source, col))
                if None in gone and not isinstance(tree_of(col), Attribute):
                    raise SchemaError(f"drop takes columns, not expressions such as {col}")
            else:
                meant = source.named(col)
                gone.update(e.internal for e in source.resolver.entries if e.visible in meant)
        remaining = [entry for entry in source.resolver.entries if entry.internal not in gone]
        # A name that occurred twice may be unique now, and expressions then find it without an
        # alias.
        named = Resolver.with_repeats([entry.visible for entry in remaining]).entries
        names = [(old.internal, new.internal) for old, new in zip(remaining, named)]
        entries = [old._replace(internal=new.internal) for old, new in zip(remaining, named)]
        return self._derived(
            pick("drop", self._node, names), resolver=source.resolver.restricted(entries)
        )

    def transform(self, func: Callable[..., DataFrame], *args: Any, **kwargs: Any) -> Self:
        """Any row-by-row function of Spark frames, as PySpark's `transform`.

        Parameters
        ----------
        func : callable
            Takes a frame of update rows, which has time and diff under their names, and returns one
            that has both. The function may look at one row at a time only.

        Raises
        ------
        SchemaError
            If the result has no time or diff, or the plan looks at several rows.

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

        The cost is a Python call for each update row; `select` with `explode` has no such cost.

        Parameters
        ----------
        func : callable
            From a Row to an iterable of tuples. It must return the same rows for the same record.
            The operator calls it again to retract the rows of a removed record. So rows that depend
            on chance, the clock or a counter would stay for ever, some with negative
            multiplicities. Instants are datetimes in UTC, and a returned one needs a time zone:
            local time may differ between the machines that call the function.
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
            and diff columns. The rules of `map_in_pandas` apply.
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
            time and diff columns, and each output row must have the time and diff of its input row.
            As in `flat_map`, an output row must depend on its input row only. If it depends on the
            other rows of its frame, the removal of its record does not cancel it. Whole numbers and
            truth values have pandas' types ``Int64``, ``boolean`` and so on, not PySpark's floats
            and objects, which would depend on the other rows. Instants are in UTC,
            and a returned column of instants needs a time zone.
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
    """The schema of update rows with some data columns, for Spark and for Arrow."""
    fields = [*schema.arrow(), pa.field(TIME, time_type.arrow), pa.field(DIFF, pa.int64())]
    return update_struct(schema, time_type), pa.schema(fields)
