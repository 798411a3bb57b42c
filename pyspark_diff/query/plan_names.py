"""The names of a plan that Spark has analysed, the classes of its nodes, and its refused parts.

An attribute has an id that is unique in the plan. The form calls it ``name_number``, by the order
in which the reader meets the used attributes of the name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pyspark.sql import SparkSession

from pyspark_diff.query.clock import QueryClock
from pyspark_diff.query.form import prefix_of
from pyspark_diff.query.refusals import Refusal
from pyspark_diff.spark.jvm import class_called, items_of, kind_of, loaded_class

_CATALYST = "catalyst."
_TRAITS = {
    trait.rpartition(".")[2]: f"org.apache.spark.sql.catalyst.expressions.{trait}"
    for trait in (
        "RuntimeReplaceable", "InheritAnalysisRules", "SubqueryExpression",
        "AggregateWindowFunction", "FrameLessOffsetWindowFunction",
        "aggregate.AggregateExpression", "CurrentTimestampLike", "LambdaFunction",
        "HigherOrderFunction", "Generator",
    )
}
_RULES = (
    "analysis.EliminateSubqueryAliases", "optimizer.BooleanSimplification",
)
#: The rules that move conditions to the tables that they are about.
_MOVES = ("optimizer.PushDownPredicates", "optimizer.PushExtraPredicateThroughJoin")
_ROUNDS = 3
#: The begin of the names of attributes that a query does not use; no column has it.
_UNUSED = "unused_"


class PlanNames:
    """The names and refusals of a plan."""

    def __init__(
        self, spark: SparkSession, providers: frozenset[str], clock: QueryClock | None
    ):
        self.spark, self.providers, self.clock = spark, providers, clock
        self.refusals: list[Refusal] = []
        self.notes: list[str] = []
        self.tables: set[str] = set()
        self.sources: dict[str, str] = {}
        #: The ids of attributes that the query does not use; they take no number from others.
        self.unused: frozenset[int] = frozenset()
        #: Columns of tables that have other names in the form, by the names of both.
        self.state_names: Mapping[str, Mapping[str, str]] = {}
        self._names: dict[int, str] = {}
        self._prefixes: Counter[str] = Counter()
        self._numbers = 0
        self._common: dict[str, Any] = {}
        self._traits: dict[str, frozenset[str]] = {}
        self._classes = {name: loaded_class(path) for name, path in _TRAITS.items()}
        self._rules, self._moves = (
            [scala_object(f"{_CATALYST}{rule}") for rule in rules] for rules in (_RULES, _MOVES)
        )
        #: Whether conditions move to the tables that they are about.
        self.moves_conditions = True

    def prepared(self, plan: Any) -> Any:
        """The plan after rules that keep the meaning of each node."""
        for _ in range(_ROUNDS):
            for rule in (*self._rules, *(self._moves if self.moves_conditions else ())):
                plan = rule.apply(plan)
        return plan

    def name(self, attribute: Any, called: str | None = None) -> str:
        """The name of an attribute in the form; ``called`` replaces its own name."""
        number = attribute.exprId().id()
        if number not in self._names:
            # Ids differ in each session, and the name of an expression has aliases of tables in
            # it: neither may change the identity of a program.
            prefix = _UNUSED if number in self.unused else prefix_of(
                called or str(attribute.name())
            )
            self._prefixes[prefix] += 1
            self._names[number] = f"{prefix}_{self._prefixes[prefix]}"
        return self._names[number]

    def disturbing(self, used: Collection[str]) -> frozenset[int]:
        """The unused attributes, if the numbers of used ones of the same prefix depend on them.

        Parameters
        ----------
        used : collection of str
            The names of the used attributes.
        """
        unused = {number: name for number, name in self._names.items() if name not in used}
        shared = {name.rpartition("_")[0] for name in unused.values()} & {
            name.rpartition("_")[0] for name in used
        }
        return frozenset(unused) if shared else frozenset()

    def fresh(self, prefix: str) -> str:
        self._numbers += 1
        return f"{prefix}{self._numbers}_"

    def is_a(self, node: Any, trait: str) -> bool:
        kind = node.getClass().getName()
        if kind not in self._traits:
            self._traits[kind] = frozenset(
                name for name, loaded in self._classes.items() if loaded.isInstance(node)
            )
        return trait in self._traits[kind]

    def refuse(self, code: str, construct: str, node: Any, detail: str = "") -> None:
        origin = node.origin()
        line, column = origin.line(), origin.startPosition()
        self.refusals.append(Refusal(
            code, construct, line.get() if line.isDefined() else None,
            column.get() + 1 if column.isDefined() else None, detail,
        ))


def scala_object(name: str, begin: str = "org.apache.spark.sql.") -> Any:
    """An object of Scala."""
    return getattr(class_called(f"{begin}{name}$"), "MODULE$")


def bare(node: Any) -> Any:
    return node.child() if kind_of(node) == "Alias" else node


def topmost(node: Any, test: Callable[[Any], bool]) -> list[Any]:
    """The topmost parts of an expression that pass a test."""
    if test(node):
        return [node]
    return [part for child in items_of(node.children()) for part in topmost(child, test)]


def conjuncts(node: Any) -> list[Any]:
    """The operands of a chain of AND."""
    if kind_of(node) != "And":
        return [node]
    return [part for child in items_of(node.children()) for part in conjuncts(child)]
