"""Collections as the methods of a frame see them: a node, and the names that a user finds its
columns by.

A collection is a value. An operator makes another one of it, with `Collection.derived`, which is
where all that holds for every operator is checked::

    derived(c, node) = c with the node and its columns, not small, and without a key
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from pyspark_diff.dataflow.dataflow import BaseDataflow
from pyspark_diff.errors import SchemaError
from pyspark_diff.expressions.names import Resolver
from pyspark_diff.operators.linear import pick
from pyspark_diff.operators.node import Node
from pyspark_diff.spark.frames import template
from pyspark_diff.spark.schema import DIFF, TIME, check_data_names


@dataclass(frozen=True, eq=False)
class Collection:
    """A collection while a program is written.

    Parameters
    ----------
    node : Node
    flow : BaseDataflow or None
        The dataflow that it belongs to; None if its whole history is given.
    spark : SparkSession
    time_name, diff_name : str
        The user's names of these two columns.
    resolver : Resolver
        The user's names of the data columns.
    small : bool
        Whether it was declared small, so that it may be copied to all buckets.
    key : tuple of str, optional
        Columns of the node that it was arranged by last.
    """

    node: Node
    flow: BaseDataflow | None
    spark: SparkSession
    time_name: str
    diff_name: str
    resolver: Resolver
    small: bool = False
    key: tuple[str, ...] | None = None

    @property
    def columns(self) -> list[str]:
        """Names of the data columns, as the user sees them."""
        return self.resolver.visible

    @property
    def schema(self) -> T.StructType:
        """Spark schema of the data columns, as the user sees them."""
        fields = self.node.schema.struct
        if not self.resolver.ambiguous:
            return fields
        return T.StructType([
            T.StructField(e.visible, fields[e.internal].dataType, fields[e.internal].nullable)
            for e in self.resolver.entries
        ])

    def derived(self, node: Node, *, resolver: Resolver | None = None) -> Collection:
        """The collection of a node that an operator made of this one.

        Parameters
        ----------
        node : Node
        resolver : Resolver, optional
            If not given, the columns are what the node calls them.
        """
        if resolver is None:
            self.check_unambiguous(node.kind)
            resolver = Resolver.plain(node.schema.names)
        check_data_names(node.schema.names, self.time_name, self.diff_name, node.kind)
        self.check_open()
        return replace(self, node=node, resolver=resolver, small=False, key=None)

    def picked(self, kind: str, names: Sequence[tuple[str, str]]) -> Collection:
        """Some columns: pairs of what the user calls one, and its new name."""
        internal = [(self.column_name(old, f"for {kind}"), new) for old, new in names]
        resolver = Resolver.plain([new for _, new in names])
        return self.derived(pick(kind, self.node, internal), resolver=resolver)

    def template(self) -> DataFrame:
        """A frame without rows in which the user's expressions find this collection's columns."""
        frame = template(self.spark, self.node.schema, self.node.time_type).drop(TIME, DIFF)
        return self.resolver.template(frame)

    def column_name(self, name: str, where: str) -> str:
        """The node's column that the user calls by a name.

        Raises
        ------
        SchemaError
            If there is none, or more than one.
        """
        internal = self.resolver.internal(name)
        if internal is None:
            spelled = self.named(name)
            if len(spelled) == 1:
                internal = self.resolver.internal(spelled[0])
        if internal is None:
            if self.named(name):
                self.check_unambiguous(where)
            raise SchemaError(
                f"there is no column {name!r} {where}; the columns are {', '.join(self.columns)}"
            )
        return internal

    def named(self, name: str) -> list[str]:
        """The columns that a user means by a name: as ``spark.sql.caseSensitive`` says."""
        exact = [known for known in self.columns if known == name]
        alike = [known for known in self.columns if known.lower() == name.lower()]
        if len(alike) == len(exact):
            return exact  # without asking Spark
        sensitive = str(self.spark.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"
        return exact if sensitive else alike

    def check_unambiguous(self, kind: str) -> None:
        """Refuse a collection of which some columns are called the same."""
        if self.resolver.ambiguous:
            raise SchemaError(
                f"{kind}: more than one column is called {', '.join(self.resolver.ambiguous)}; "
                "tell them apart by alias, as in a.alias(\"l\").join(b.alias(\"r\"), ...)"
                ".select(\"l.x\", \"r.y\"), drop some, or rename all with toDF(...)"
            )

    def check_open(self) -> None:
        """Refuse an operator of a dataflow that was closed."""
        if self.flow is not None:
            self.flow._check_open()

    def check_combines(self, other: Collection) -> None:
        """Refuse another collection that no operator can take beside this one."""
        if other.flow is not self.flow:
            raise SchemaError(
                "the two collections belong to different dataflows; take both from one Dataflow, "
                "or give both as a whole. A table that does not change goes beside a collection as "
                "it is, without DiffFrame"
            )
        if other.node.time_type != self.node.time_type:
            raise SchemaError(
                f"the two collections have times of different types, {self.node.time_type.name} "
                f"and {other.node.time_type.name}; cast one"
            )

    def mismatch(self, kind: str, other: Collection) -> SchemaError:
        """The error of an operator that needs the same columns on both sides."""
        return SchemaError(
            f"{kind} needs the same columns on both sides; here ({self.node.schema.describe()}), "
            f"there ({other.node.schema.describe()})"
        )
