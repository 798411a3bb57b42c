"""The linear methods of `DiffFrame`: those that need no state.

``f(A + B) = f(A) + f(B)``: applied to updates as they are, keeping their time and diff.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Sequence

import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import types as T

from pyspark_diff.bridge import call_of
from pyspark_diff.dataflow import Dataflow
from pyspark_diff.errors import SchemaError
from pyspark_diff.expressions import (
    check_row_wise,
    column,
    data_schema,
    template,
    update_struct,
)
from pyspark_diff.operators.linear import Expression, FlatMap, MapInPandas, Negate, pick
from pyspark_diff.operators.node import Concat, Linear, Node
from pyspark_diff.runners.feed import Stage
from pyspark_diff.schema import (
    DIFF,
    TIME,
    Schema,
    check_names,
    parse_schema,
    without_nullability,
)
from pyspark_diff.scope import Scope, unused

if TYPE_CHECKING:
    from pyspark_diff.diffframe import DiffFrame


class LinearMethods:
    """What `DiffFrame` inherits; it supplies the attributes and the way back into the wrapper."""

    _node: Node
    _flow: Dataflow | None
    _spark: SparkSession
    _names: tuple[str, str]
    _scope: Scope
    _small: bool
    _key: tuple[str, ...] | None

    @property
    def columns(self) -> list[str]:
        """Names of the data columns."""
        return self._scope.visible

    @property
    def schema(self) -> T.StructType:
        """Spark schema of the data columns."""
        if not self._scope.ambiguous:
            return self._node.schema.struct
        fields = self._node.schema.struct
        return T.StructType([
            T.StructField(e.visible, fields[e.internal].dataType, fields[e.internal].nullable)
            for e in self._scope.entries
        ])

    def _with(self, node: Node, *, scope: Scope | None = None) -> "DiffFrame":
        raise TypeError("DiffFrame supplies this")

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
        if cols and all(isinstance(c, str) and self._scope.internal(c) for c in cols):
            return self._pick("select", [(str(c), str(c)) for c in cols])
        wide: list[str | Column] = []
        for c in cols:
            if isinstance(c, str) and c == "*":
                wide.extend(map(column, self._unambiguous("select").columns))
            else:
                wide.append(column(c) if isinstance(c, str) and c in self.columns else c)
        return self._express("select", lambda frame: frame.select(*wide, TIME, DIFF))

    def where(self, condition: str | Column) -> "DiffFrame":
        """The records for which a condition is true, as PySpark's `where`.

        Examples
        --------
        >>> rows = [(1, 0, 1), (5, 0, 1)]
        >>> n = DiffFrame(spark.createDataFrame(rows, "n int, time int, diff int"))
        >>> n.where("n > 2").at(0).collect()
        [Row(n=5)]
        """
        return self._express("where", lambda frame: frame.where(condition), scope=self._scope)

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
        if colName in self._scope.ambiguous:
            self._unambiguous("withColumn")
        scope = self._scope.with_column(colName)
        return self._express(
            "withColumn", lambda frame: frame.withColumn(colName, col), scope=scope
        )

    def toDF(self, *cols: str) -> "DiffFrame":  # noqa: N802
        """Other names for all columns, in their order, as PySpark's `toDF`."""
        entries = self._scope.entries
        if len(cols) != len(entries):
            raise SchemaError(
                f"toDF was given {len(cols)} names for {len(entries)} columns: "
                f"{', '.join(self.columns)}"
            )
        check_names(cols)
        names = [(entry.internal, new) for entry, new in zip(entries, cols)]
        return self._with(pick("toDF", self._node, names), scope=Scope.plain(cols))

    def withColumnRenamed(self, existing: str, new: str) -> "DiffFrame":  # noqa: N802
        """Another name for a column, as PySpark's `withColumnRenamed`; absent ones are let be."""
        pairs = [(name, new if name == existing else name) for name in self.columns]
        return self._pick("withColumnRenamed", pairs)

    def drop(self, *cols: str) -> "DiffFrame":
        """The records without some columns, as PySpark's `drop`; absent names are no error.

        Records that become equal add up: the result is a multiset.
        """
        kept = [entry for entry in self._scope.entries if entry.visible not in cols]
        names = [(entry.internal, entry.internal) for entry in kept]
        return self._with(pick("drop", self._node, names), scope=self._scope.kept(kept))

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

    def _pick(self, kind: str, names: Sequence[tuple[str, str]]) -> "DiffFrame":
        internal = [(self._column_name(old, f"for {kind}"), new) for old, new in names]
        scope = Scope.plain([new for _, new in names])
        return self._with(pick(kind, self._node, internal), scope=scope)

    def _express(
        self,
        kind: str,
        apply: Callable[[DataFrame], DataFrame],
        *,
        keeps: bool = True,
        scope: Scope | None = None,
    ) -> "DiffFrame":
        ours = self._scope

        def run(frame: DataFrame) -> DataFrame:
            result = apply(ours.template(frame))
            return result if scope is None else ours.strip(result)

        # Tried on no rows, so that a wrong name or type is refused here and not in a job.
        result = run(template(self._spark, self._node.schema, self._node.time_type))
        schema = data_schema(result, self._node.time_type, kind)
        check_row_wise(result, kind)
        takes = without_nullability(update_struct(self._node.schema, self._node.time_type))
        stage: Stage = Expression(run, takes, keeps)
        node = Linear(kind, self._node, schema, stage)
        return self._with(node, scope=scope or Scope.plain(schema.names))

    def _template(self, scope: Scope | None = None) -> DataFrame:
        """A frame without rows in which the user's expressions find this collection's columns."""
        frame = template(self._spark, self._node.schema, self._node.time_type).drop(TIME, DIFF)
        return (scope or self._scope).template(frame)

    def _keyed(self, scope: Scope, expressions: Sequence[Column]) -> tuple[Node, list[str]]:
        """The node with expressions as columns, and their names; plain columns stay as they are."""
        frame = self._template(scope)
        names = list(self._node.schema.names)
        keys: list[str] = []
        made: list[tuple[str, Column]] = []
        for expression in expressions:
            plain = self._plain_column(frame, expression, scope)
            if plain is not None:
                keys.append(plain)
                continue
            name = unused("key", [*names, *(name for name, _ in made)])
            made.append((name, expression))
            keys.append(name)
        if not made:
            return self._node, keys

        def apply(frame: DataFrame) -> DataFrame:
            extra = [expression.alias(name) for name, expression in made]
            return scope.template(frame).select(*map(column, names), *extra, TIME, DIFF)

        result = apply(template(self._spark, self._node.schema, self._node.time_type))
        check_row_wise(result, "the key")
        takes = without_nullability(update_struct(self._node.schema, self._node.time_type))
        schema = data_schema(result, self._node.time_type, "the key")
        return Linear("key", self._node, schema, Expression(apply, takes, True)), keys

    def _plain_column(
        self, frame: DataFrame, expression: Column, scope: Scope | None = None
    ) -> str | None:
        """The node's column that an expression is, or None if it has to be evaluated."""
        if call_of(expression) is not None:
            return None
        found = frame.select(expression).schema.fields[0]
        plain = (scope or self._scope).internal(found.name)
        if plain is None or self._node.schema.struct[plain].dataType != found.dataType:
            return None
        return plain

    def _column_name(self, name: str, where: str) -> str:
        """The node's column that a user calls by a name."""
        found = self._scope.internal(name)
        if found is None:
            if name in self._scope.ambiguous:
                self._unambiguous(where)
            raise SchemaError(
                f"there is no column {name!r} {where}; the columns are {', '.join(self.columns)}"
            )
        return found

    def _unambiguous(self, kind: str) -> "LinearMethods":
        """This frame, if each of its names is that of one column."""
        if self._scope.ambiguous:
            raise SchemaError(
                f"{kind}: more than one column is called {', '.join(self._scope.ambiguous)}; tell "
                "them apart by alias, as in a.alias(\"l\").join(b.alias(\"r\"), ...)"
                ".select(\"l.x\", \"r.y\"), drop some, or rename all with toDF(...)"
            )
        return self

    def _forms(self, schema: Schema) -> tuple[T.StructType, pa.Schema]:
        fields = [
            *schema.arrow(),
            pa.field(TIME, self._node.time_type.arrow),
            pa.field(DIFF, pa.int64()),
        ]
        return update_struct(schema, self._node.time_type), pa.schema(fields)

    def _check_alike(self, other: "DiffFrame") -> None:
        if not isinstance(other, LinearMethods):
            raise SchemaError(
                f"expected a DiffFrame, not a {type(other).__name__}; wrap a Spark frame that has "
                "time and diff columns with DiffFrame(df)"
            )
        if other._flow is not self._flow:
            raise SchemaError(
                "the two collections belong to different dataflows; take both from one Dataflow, "
                "or give both as a whole"
            )
        if other._node.time_type != self._node.time_type:
            raise SchemaError(
                f"the two collections have times of different types, {self._node.time_type.name} "
                f"and {other._node.time_type.name}; cast one"
            )

    def _differ(self, kind: str, other: "DiffFrame") -> str:
        return (
            f"{kind} needs the same columns on both sides; here ({self._node.schema.describe()}), "
            f"there ({other._node.schema.describe()})"
        )
