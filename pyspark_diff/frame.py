"""What all methods of `DiffFrame` stand on: a node, the names a user finds its columns by, and the
one way to another frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Sequence

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
from pyspark_diff.operators.linear import Expression, pick
from pyspark_diff.operators.node import Linear, Node
from pyspark_diff.runners.feed import Stage
from pyspark_diff.schema import DIFF, TIME, Schema, without_nullability
from pyspark_diff.scope import Scope, unused

if TYPE_CHECKING:
    from pyspark_diff.diffframe import DiffFrame


class Frame:
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
        found = scope
        if found is None:
            # As in PySpark, what is selected may have a name twice.
            found = Scope.of([name for name in result.columns if name not in (TIME, DIFF)])
            if found.ambiguous:
                names = [entry.internal for entry in found.entries]
                return self._express(
                    kind, lambda frame: apply(ours.template(frame)).toDF(*names, TIME, DIFF),
                    keeps=keeps, scope=found,
                )
        schema = data_schema(result, self._node.time_type, kind)
        check_row_wise(result, kind)
        takes = without_nullability(update_struct(self._node.schema, self._node.time_type))
        stage: Stage = Expression(run, takes, keeps)
        return self._with(Linear(kind, self._node, schema, stage), scope=found)

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
            if plain is not None and plain not in keys:
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

    def _replaced(
        self, scope: Scope, names: Sequence[str], expressions: Sequence[Column]
    ) -> "DiffFrame":
        """This frame with expressions in the place of some columns."""
        made = dict(zip(names, expressions))
        wanted = [made.get(n, column(n)).alias(n) for n in self._node.schema.names]

        def apply(frame: DataFrame) -> DataFrame:
            return scope.template(frame).select(*wanted, TIME, DIFF)

        result = apply(template(self._spark, self._node.schema, self._node.time_type))
        schema = data_schema(result, self._node.time_type, "join")
        takes = without_nullability(update_struct(self._node.schema, self._node.time_type))
        node = Linear("select", self._node, schema, Expression(apply, takes, True))
        return self._with(node, scope=self._scope)

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

    def _unambiguous(self, kind: str) -> "Frame":
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
        if not isinstance(other, Frame):
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
