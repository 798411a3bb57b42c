"""The linear methods of `DiffFrame`: those that need no state.

``f(A + B) = f(A) + f(B)``: applied to updates as they are, keeping their time and diff.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator

import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.errors import SchemaError
from pyspark_diff.expressions.names import Resolver
from pyspark_diff.frame.base import Frame
from pyspark_diff.operators.linear import FlatMap, MapInPandas, Negate, pick
from pyspark_diff.operators.node import Concat, Linear
from pyspark_diff.spark.frames import column
from pyspark_diff.spark.schema import DIFF, TIME, check_names, parse_schema

if TYPE_CHECKING:
    from pyspark_diff.frame.diffframe import DiffFrame


class LinearMethods(Frame):
    """What `DiffFrame` inherits."""

    def select(self, *cols: str | Column) -> "DiffFrame":
        """Columns or expressions of each record, as PySpark's `select`.

        Time and diff stay beside the record and need not be named.

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
        known = [c for c in cols if isinstance(c, str) and self._resolver.internal(c)]
        if cols and len(set(known)) == len(cols):
            return self._pick("select", [(str(c), str(c)) for c in cols])
        wide: list[str | Column] = []
        given: list[str | Column] = []
        for c in cols:
            if isinstance(c, str) and c in self._resolver.ambiguous:
                self._unambiguous("select")
            if isinstance(c, str) and c == "*":
                wide.extend(map(column, self._unambiguous("select").columns))
                given.extend(self.columns)
            else:
                wide.append(column(c) if isinstance(c, str) and c in self.columns else c)
                given.append(c)
        return self._express("select", lambda frame: frame.select(*wide, TIME, DIFF), made=given)

    def selectExpr(self, *expr: str) -> "DiffFrame":  # noqa: N802
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
        names = {"*", *self._resolver.ambiguous}
        texts = [text.strip() for text in expr]
        return self.select(*(text if text in names else F.expr(text) for text in texts))

    def where(self, condition: str | Column) -> "DiffFrame":
        """The records for which a condition is true, as PySpark's `where`.

        Examples
        --------
        >>> rows = [(1, 0, 1), (5, 0, 1)]
        >>> n = DiffFrame(spark.createDataFrame(rows, "n int, time int, diff int"))
        >>> n.where("n > 2").at(0).collect()
        [Row(n=5)]
        """
        return self._express(
            "where",
            lambda frame: frame.where(condition),
            resolver=self._resolver,
            condition=condition,
        )

    filter = where

    def withColumn(self, colName: str, col: Column) -> "DiffFrame":  # noqa: N802, N803
        """One more column, or another in its place, as PySpark's `withColumn`.

        Examples
        --------
        >>> n = DiffFrame(spark.createDataFrame([(1, 0, 1)], "n int, time int, diff int"))
        >>> n.withColumn("m", F.col("n") + 1).at(0).collect()
        [Row(n=1, m=2)]
        """
        check_names([colName])
        if colName in self._resolver.ambiguous:
            self._unambiguous("withColumn")
        resolver = self._resolver.with_column(colName)
        return self._express(
            "withColumn",
            lambda frame: frame.withColumn(colName, col),
            resolver=resolver,
            made={colName: col},
        )

    def toDF(self, *cols: str) -> "DiffFrame":  # noqa: N802
        """Other names for all columns, in their order, as PySpark's `toDF`."""
        entries = self._resolver.entries
        if len(cols) != len(entries):
            raise SchemaError(
                f"toDF was given {len(cols)} names for {len(entries)} columns: "
                f"{', '.join(self.columns)}"
            )
        check_names(cols)
        names = [(entry.internal, new) for entry, new in zip(entries, cols)]
        return self._with(pick("toDF", self._node, names), resolver=Resolver.plain(cols))

    def withColumnRenamed(self, existing: str, new: str) -> "DiffFrame":  # noqa: N802
        """Another name for a column, as PySpark's `withColumnRenamed`; absent ones are let be."""
        pairs = [(name, new if name == existing else name) for name in self.columns]
        return self._pick("withColumnRenamed", pairs)

    def drop(self, *cols: str) -> "DiffFrame":
        """The records without some columns, as PySpark's `drop`; absent names are no error.

        Records that become equal add up: the result is a multiset.
        """
        entries = [entry for entry in self._resolver.entries if entry.visible not in cols]
        names = [(entry.internal, entry.internal) for entry in entries]
        resolver = self._resolver.restricted(entries)
        return self._with(pick("drop", self._node, names), resolver=resolver)

    def transform(self, func: Callable[..., DataFrame], *args: Any, **kwargs: Any) -> "DiffFrame":
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
        time, diff = self._names

        def apply(frame: DataFrame) -> DataFrame:
            named = frame.withColumnRenamed(TIME, time).withColumnRenamed(DIFF, diff)
            result = func(named, *args, **kwargs)
            if not isinstance(result, DataFrame):
                raise SchemaError(
                    f"transform's function must return a DataFrame, not {type(result).__name__}"
                )
            return result.withColumnRenamed(time, TIME).withColumnRenamed(diff, DIFF)

        return self._express("transform", apply, keeps=False)

    def flat_map(
        self, func: Callable[[T.Row], Iterable[Any]], schema: str | T.StructType
    ) -> "DiffFrame":
        """A Python function from each record to any number of records.

        It costs a Python call for each update row; `select` with `explode` costs none.

        Parameters
        ----------
        func : callable
            From a Row to an iterable of tuples. It must give the same rows whenever it is called
            with the same record.
        schema : str or StructType
            Columns of the result.

        Examples
        --------
        >>> lines = DiffFrame(
        ...     spark.createDataFrame([("a b a", 0, 1)], "line string, time int, diff int"))
        >>> words = lines.flat_map(lambda row: [(w,) for w in row.line.split()], "word string")
        >>> sorted(words.count().at(0).collect())
        [Row(word='a', count=2), Row(word='b', count=1)]
        """
        parsed = parse_schema(schema)
        struct, arrow = self._forms(parsed)
        stage = FlatMap(func, self._node.schema.arrow(), struct, arrow)
        return self._with(Linear("flat_map", self._node, parsed, stage))

    def map_in_pandas(
        self,
        func: Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]],
        schema: str | T.StructType,
    ) -> "DiffFrame":
        """A Python function over pandas frames of update rows, as PySpark's `mapInPandas`.

        Parameters
        ----------
        func : callable
            From an iterator of pandas frames to an iterator of pandas frames. The frames have the
            time and diff columns, and each output row carries those of the row it is made from.
        schema : str or StructType
            Data columns of the result.

        Examples
        --------
        >>> n = DiffFrame(spark.createDataFrame([(2, 0, 1)], "n long, time int, diff int"))
        >>> n.map_in_pandas(lambda it: (f.assign(n=f.n * 10) for f in it), "n long").at(0).collect()
        [Row(n=20)]
        """
        parsed = parse_schema(schema)
        struct, arrow = self._forms(parsed)
        stage = MapInPandas(func, *self._names, self._node.schema.arrow(), struct, arrow)
        return self._with(Linear("map_in_pandas", self._node, parsed, stage))

    def union(self, other: "DiffFrame") -> "DiffFrame":
        """The records of both, columns matched by position, as PySpark's `union`.

        A multiset union: multiplicities add up. See `concat` for columns matched by name.

        Raises
        ------
        SchemaError
            If numbers or types of columns differ, or the two belong to different dataflows.
        """
        self._check_alike(other)
        if len(other.columns) != len(self.columns):
            raise SchemaError(self._differ("union", other))
        renamed = other._pick("union", list(zip(other.columns, self.columns)))
        if not self._node.schema.same_types(renamed._node.schema):
            raise SchemaError(self._differ("union", other))
        return self._with(Concat([self._node, renamed._node]))

    def concat(self, *others: "DiffFrame") -> "DiffFrame":
        """The sum of several collections, columns matched by name.

        Raises
        ------
        SchemaError
            If names or types of columns differ, or some belong to another dataflow.
        """
        nodes = [self._node]
        for other in others:
            self._check_alike(other)
            if sorted(other.columns) != sorted(self.columns):
                raise SchemaError(self._differ("concat", other))
            ordered = other if other.columns == self.columns else other.select(*self.columns)
            if not self._node.schema.same_types(ordered._node.schema):
                raise SchemaError(self._differ("concat", other))
            nodes.append(ordered._node)
        return self._with(Concat(nodes))

    def negate(self) -> "DiffFrame":
        """The collection with every multiplicity negated: ``a.concat(a.negate())`` is empty."""
        return self._with(
            Linear("negate", self._node, self._node.schema, Negate(), lambda wanted: wanted)
        )
