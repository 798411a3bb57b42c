"""What all methods of `DiffFrame` stand on: a node, the names a user finds its columns by, and the
one way to another frame.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Callable, Mapping, Sequence, Union

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.dataflow.dataflow import Dataflow
from pyspark_diff.errors import SchemaError
from pyspark_diff.expressions.check import check_row_wise, data_schema
from pyspark_diff.expressions.compiled import CompiledExpression, compiled
from pyspark_diff.expressions.names import Resolver, unused
from pyspark_diff.expressions.tree import Attribute, tree_of
from pyspark_diff.operators.linear import Expression, pick
from pyspark_diff.operators.node import Linear, Node
from pyspark_diff.operators.projection import compute, keep_where
from pyspark_diff.spark.frames import column, template, update_struct
from pyspark_diff.spark.schema import DIFF, TIME, Schema, without_nullability

if TYPE_CHECKING:
    from pyspark_diff.frame.diffframe import DiffFrame


#: Columns of an operator's output: some by name, where the node's columns of other names stay; or
#: all in order, a text being the name of one.
Made = Union[Mapping[str, Column], Sequence[Union[str, Column]]]


class Frame:
    """What `DiffFrame` inherits; it supplies the attributes and the way back into the wrapper."""

    _node: Node
    _flow: Dataflow | None
    _spark: SparkSession
    _names: tuple[str, str]
    _resolver: Resolver
    _small: bool
    _key: tuple[str, ...] | None

    @property
    def columns(self) -> list[str]:
        """Names of the data columns."""
        return self._resolver.visible

    @property
    def schema(self) -> T.StructType:
        """Spark schema of the data columns."""
        if not self._resolver.ambiguous:
            return self._node.schema.struct
        fields = self._node.schema.struct
        return T.StructType([
            T.StructField(e.visible, fields[e.internal].dataType, fields[e.internal].nullable)
            for e in self._resolver.entries
        ])

    def _with(self, node: Node, *, resolver: Resolver | None = None) -> "DiffFrame":
        raise TypeError("DiffFrame supplies this")

    def _pick(self, kind: str, names: Sequence[tuple[str, str]]) -> "DiffFrame":
        internal = [(self._column_name(old, f"for {kind}"), new) for old, new in names]
        resolver = Resolver.plain([new for _, new in names])
        return self._with(pick(kind, self._node, internal), resolver=resolver)

    def _express(
        self,
        kind: str,
        apply: Callable[[DataFrame], DataFrame],
        *,
        keeps: bool = True,
        resolver: Resolver | None = None,
        made: Made | None = None,
        condition: str | Column | None = None,
    ) -> "DiffFrame":
        """A linear operator that Spark knows.

        What is ``made``, or the ``condition`` that records are kept by, tells again what ``apply``
        does, so that it may be done without Spark.
        """
        ours = self._resolver

        def run(frame: DataFrame) -> DataFrame:
            result = apply(ours.template(frame))
            return result if resolver is None else ours.strip(result)

        # Tried on no rows, so that a wrong name or type is refused here and not in a job.
        result = run(template(self._spark, self._node.schema, self._node.time_type))
        found = resolver
        if found is None:
            # As in PySpark, what is selected may have a name twice.
            found = Resolver.of([name for name in result.columns if name not in (TIME, DIFF)])
            if found.ambiguous:
                names = [entry.internal for entry in found.entries]
                return self._express(
                    kind, lambda frame: apply(ours.template(frame)).toDF(*names, TIME, DIFF),
                    keeps=keeps, resolver=found, made=made,
                )
        schema = data_schema(result, self._node.time_type, kind)
        check_row_wise(result, kind)
        node = self._linear(kind, schema, run, ours, made=made, condition=condition, keeps=keeps)
        return self._with(node, resolver=found)

    def _linear(
        self,
        kind: str,
        schema: Schema,
        apply: Callable[[DataFrame], DataFrame],
        resolver: Resolver,
        *,
        made: Made | None = None,
        condition: str | Column | None = None,
        keeps: bool = True,
    ) -> Linear:
        """The node of an operator that Spark has analysed: one without Spark where that can be."""
        node = None
        if condition is not None:
            wanted = F.expr(condition) if isinstance(condition, str) else condition
            kept = self._compiled([wanted], resolver)
            node = kept and keep_where(kind, self._node, kept[0], apply)
        elif isinstance(made, Mapping):
            columns = self._compiled([made.get(n, Attribute(n)) for n in schema.names], resolver)
            node = columns and compute(kind, self._node, schema, columns, apply)
        elif made is not None:
            columns = self._compiled(made, resolver)
            node = columns and compute(kind, self._node, schema, columns, apply)
        if node:
            return node
        takes = without_nullability(update_struct(self._node.schema, self._node.time_type))
        return Linear(kind, self._node, schema, Expression(apply, takes, keeps))

    def _compiled(
        self, columns: Sequence[str | Column | Attribute], resolver: Resolver
    ) -> list[CompiledExpression] | None:
        """Formulas of expressions that Spark has accepted; None if one of them has none.

        An `Attribute` is a column of the node, whatever the user calls it.
        """
        names, aliased = _names_in(resolver)
        struct = self._node.schema.struct
        qualified = {name: struct[internal] for name, internal in aliased.items()}
        if any(", " in name for name in struct.names):
            qualified = {}  # a tree has two parts for such a name
        visible = T.StructType([field for field in struct.fields if field.name in names])
        ansi = str(self._spark.conf.get("spark.sql.ansi.enabled")).lower() == "true"
        found: list[CompiledExpression] = []
        for wanted in columns:
            formula: CompiledExpression | None = None
            if isinstance(wanted, Attribute):
                formula = compiled(wanted, struct, ansi=ansi)
            elif isinstance(wanted, str) and wanted in names:
                formula = compiled(Attribute(wanted), visible, ansi=ansi)
            else:
                tree = tree_of(F.col(wanted) if isinstance(wanted, str) else wanted)
                if tree is not None:
                    formula = compiled(tree, visible, ansi=ansi, qualified=qualified)
            if formula is None:
                return None
            found.append(formula)
        return found

    def _template(self, resolver: Resolver | None = None) -> DataFrame:
        """A frame without rows in which the user's expressions find this collection's columns."""
        frame = template(self._spark, self._node.schema, self._node.time_type).drop(TIME, DIFF)
        return (resolver or self._resolver).template(frame)

    def _keyed(self, resolver: Resolver, expressions: Sequence[Column]) -> tuple[Node, list[str]]:
        """The node with expressions as columns, and their names; plain columns stay as they are."""
        names = list(self._node.schema.names)
        keys: list[str] = []
        made: list[tuple[str, Column]] = []
        for expression in expressions:
            plain = self._plain_column(expression, resolver)
            if plain is not None and plain not in keys:
                keys.append(plain)
                continue
            name = unused("key", [*names, *(name for name, _ in made)])
            made.append((name, expression))
            keys.append(name)
        if not made:
            return self._node, keys
        kept = [(name, column(name)) for name in names]
        return self._computed("key", [*kept, *made], resolver, made=dict(made)), keys

    def _replaced(
        self, resolver: Resolver, names: Sequence[str], expressions: Sequence[Column]
    ) -> "DiffFrame":
        """This frame with expressions in the place of some columns."""
        made = dict(zip(names, expressions))
        wanted = [(n, made.get(n, column(n))) for n in self._node.schema.names]
        node = self._computed("join", wanted, resolver, made=made)
        return self._with(node, resolver=self._resolver)

    def _computed(
        self,
        kind: str,
        columns: Sequence[tuple[str, Column]],
        resolver: Resolver,
        *,
        made: Made | None = None,
    ) -> Linear:
        """The node of columns that are given by name and expression: checked as in `_express`."""

        def apply(frame: DataFrame) -> DataFrame:
            wanted = [expression.alias(name) for name, expression in columns]
            return resolver.template(frame).select(*wanted, TIME, DIFF)

        result = apply(template(self._spark, self._node.schema, self._node.time_type))
        check_row_wise(result, kind)
        schema = data_schema(result, self._node.time_type, kind)
        if made is None:
            made = [expression for _, expression in columns]
        return self._linear(kind, schema, apply, resolver, made=made)

    def _plain_column(
        self, expression: Column, resolver: Resolver | None = None
    ) -> str | None:
        """The node's column that an expression is, or None if it has to be evaluated."""
        tree = tree_of(expression)
        if not isinstance(tree, Attribute):
            return None  # also where it has the name of a column, as after alias
        names, aliased = _names_in(resolver or self._resolver)
        if tree.qualifier is None:
            return tree.name if tree.name in names else None
        if any(", " in name for name in self._node.schema.names):
            return None  # a tree has two parts for such a name
        return aliased.get((tree.qualifier, tree.name))

    def _column_name(self, name: str, where: str) -> str:
        """The node's column that a user calls by a name."""
        found = self._resolver.internal(name)
        if found is None:
            if name in self._resolver.ambiguous:
                self._unambiguous(where)
            raise SchemaError(
                f"there is no column {name!r} {where}; the columns are {', '.join(self.columns)}"
            )
        return found

    def _unambiguous(self, kind: str) -> "Frame":
        """This frame, if each of its names is that of one column."""
        if self._resolver.ambiguous:
            raise SchemaError(
                f"{kind}: more than one column is called {', '.join(self._resolver.ambiguous)}; "
                "tell them apart by alias, as in a.alias(\"l\").join(b.alias(\"r\"), ...)"
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


def _names_in(resolver: Resolver) -> tuple[frozenset[str], dict[tuple[str, str], str]]:
    """Columns that expressions find by their own name, and those that they find by an alias.

    A name that Spark could take for more than one column, or for none of these, is left out.
    """
    aliases = {entry.alias.lower() for entry in resolver.entries if entry.alias is not None}
    names = frozenset(
        entry.internal for entry in resolver.entries
        if resolver.internal(entry.visible) == entry.visible
        and entry.visible.lower() not in aliases
    )
    counts = Counter((str(e.alias).lower(), e.visible.lower()) for e in resolver.entries)
    qualified = {
        (entry.alias, entry.visible): entry.internal for entry in resolver.entries
        if entry.alias and counts[entry.alias.lower(), entry.visible.lower()] == 1
    }
    return names, qualified
