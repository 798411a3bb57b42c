"""Reads GROUP BY in the text of a query, grouping sets included.

    rows of GROUPING SETS (s, ...)  =  the sum of the rows of GROUP BY s, the other keys NULL

Each row of the tables counts once for each set: without the keys that the set lacks, and with a
number that has a bit for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from pyspark.sql import types as T
from sqlglot import exp

from pyspark_diff.query import refusals
from pyspark_diff.query.form import Named, Project, Relation, SqlExpression, UnionAll, column_of
from pyspark_diff.query.refusals import RefusedPart
from pyspark_diff.query.text_calls import aggregates_in
from pyspark_diff.query.text_fields import Item
from pyspark_diff.query.text_names import Context, Groupings, ScopeColumn, through
from pyspark_diff.query.text_parser import canonical
from pyspark_diff.query.text_subqueries import TextSubqueries

_SETS = (exp.Rollup, exp.Cube, exp.GroupingSets)

#: The number of a key.
Key = Callable[["exp.Expr | ScopeColumn"], int]


@dataclass(frozen=True)
class Groups:
    """The keys of GROUP BY.

    Parameters
    ----------
    keys : tuple of Named
        The columns of the keys above the groups, and their expressions below.
    tokens : tuple of tuple of str
        The tokens of each key.
    sets : tuple of tuple of int, optional
        The numbers of the keys in each grouping set; None for one set of all keys.
    number : str
        The column that says which keys a set lacks.
    """

    keys: tuple[Named, ...] = ()
    tokens: tuple[tuple[str, ...], ...] = ()
    sets: tuple[tuple[int, ...], ...] | None = None
    number: str = ""

    def columns(self) -> dict[tuple[str, ...], str]:
        """The columns of the keys by their tokens."""
        return {tokens: item.name for tokens, item in zip(self.tokens, self.keys)}

    def groupings(self) -> Groupings | None:
        if self.sets is None:
            return None
        last = len(self.keys) - 1
        return Groupings(self.number, {
            tokens: last - place for place, tokens in enumerate(self.tokens)
        })


class TextGroups(TextSubqueries):
    """The groups of a query."""

    def groups(
        self, node: exp.Expr | None, items: Sequence[Item], aliases: Mapping[str, exp.Expr],
        context: Context,
    ) -> Groups:
        """The keys and sets of GROUP BY."""
        if node is None:
            return Groups()
        self.known(node, "expressions", "all", "rollup", "cube", "grouping_sets")
        keys: dict[tuple[str, ...], Named] = {}

        def key(item: exp.Expr | ScopeColumn) -> int:
            """The number of a key, which is added if it is new."""
            value, tokens = self.key_expression(item, items, aliases, context)
            if tokens not in keys:
                keys[tokens] = Named(self.fresh("g"), value)
            return list(keys).index(tokens)

        if node.args.get("all"):
            self.all_keys(node, items, key, context)
            parts = []
        else:
            parts = through(node.expressions, lambda item: self.sets_of(item, key))
        sets = [tuple(dict.fromkeys(sum(part, ()))) for part in product(*parts)]
        several = any(isinstance(item, _SETS) for item in node.expressions)
        for name, kind in (("rollup", exp.Rollup), ("cube", exp.Cube)):
            for item in node.args.get(name) or ():
                if several or item.expressions:
                    self.refuse(refusals.NODE, f"GROUP BY ... WITH {name.upper()}", node)
                several, sets = True, _subsets(kind, [(place,) for place in range(len(keys))])
        for item in node.args.get("grouping_sets") or ():
            if several:
                self.refuse(refusals.NODE, "GROUPING SETS after other grouping sets", node)
            several, sets = True, list(self.sets_of(item, key))
        self.typed((item.name, item.expression) for item in keys.values())
        if not several:
            return Groups(tuple(keys.values()), tuple(keys))
        if any(item.expression.text in self.intervals for item in keys.values()):
            self.refuse(
                refusals.NODE, "grouping sets of session_window(...)", node, refusals.SESSION_SETS
            )
        number = self.fresh("grouping")
        self.types[number] = T.LongType()
        return Groups(tuple(keys.values()), tuple(keys), tuple(sets), number)

    def all_keys(
        self, node: exp.Expr, items: Sequence[Item], key: Key, context: Context
    ) -> None:
        """The keys of GROUP BY ALL: the expressions of SELECT without an aggregate."""
        if context.scope.partial:
            raise RefusedPart
        if node.expressions or self.matches(["all"], context.scope):
            self.refuse(refusals.NODE, "GROUP BY ALL", node)
        for _, item in items:
            if isinstance(item, ScopeColumn) or not any(True for _ in aggregates_in(item)):
                key(item)

    def sets_of(self, item: exp.Expr, key: Key) -> list[tuple[int, ...]]:
        """The grouping sets of an item of GROUP BY."""
        if isinstance(item, exp.GroupingSets):
            self.known(item, "expressions")
            return [part for sets in through(
                item.expressions, lambda part: (
                    self.sets_of(part, key) if isinstance(part, _SETS)
                    else [self.set_of(part, key)]
                )
            ) for part in sets]
        if isinstance(item, (exp.Rollup, exp.Cube)):
            self.known(item, "expressions")
            parts = through(item.expressions, lambda part: self.set_of(part, key))
            return _subsets(type(item), parts)
        if isinstance(item, (exp.Tuple, exp.Var)):
            self.refuse(refusals.NODE, f"GROUP BY {item.sql('spark')}", item)
        return [(key(item),)]

    def set_of(self, item: exp.Expr, key: Key) -> tuple[int, ...]:
        """The keys of one set: an expression, or expressions in brackets."""
        parts = item.expressions if isinstance(item, exp.Tuple) else [
            item.this if isinstance(item, exp.Paren) else item
        ]
        return tuple(dict.fromkeys(through(parts, key)))

    def key_expression(
        self, item: exp.Expr | ScopeColumn, items: Sequence[Item], aliases: Mapping[str, exp.Expr],
        context: Context,
    ) -> tuple[SqlExpression, tuple[str, ...]]:
        """An expression of GROUP BY and its tokens: of the tables, a number or alias of SELECT."""
        target: exp.Expr | ScopeColumn = item
        if isinstance(item, exp.Literal) and not item.is_string:
            number = int(item.name) if item.name.isdigit() else 0
            if not 1 <= number <= len(items):
                if context.scope.partial:
                    raise RefusedPart
                self.refuse(refusals.NODE, f"GROUP BY {item.name}", item)
            target = items[number - 1][1]
        elif isinstance(item, exp.Column) and len(item.parts) == 1:
            if not self.matches([item.name], context.scope):
                target = aliases.get(self.folded(item.name), item)
        if isinstance(target, ScopeColumn):
            return column_of(target.column), canonical(target.column)
        target = target.this if isinstance(target, exp.Alias) else target
        value = self.expression(target, context)
        if not value.subqueries:
            return value, canonical(value.text)
        # Each reading of a subquery has columns of its own.
        tokens = self.own_tokens(target)
        self.repeated[tokens] = target
        return value, tokens

    def once_for_each_set(
        self, relation: Relation, groups: Groups
    ) -> tuple[Relation, tuple[Named, ...]]:
        """The rows below an aggregate, and its keys."""
        if groups.sets is None:
            return relation, groups.keys
        whole = {item.name: self.fresh("k") for item in groups.keys}
        base = Project(relation, (
            *(Named(name, column_of(name)) for name in relation.columns),
            *(Named(whole[item.name], item.expression) for item in groups.keys),
        ))
        below = {item.name: self.fresh("k") for item in groups.keys}
        number, place = self.fresh("k"), self.fresh("k")
        last, sides = len(groups.keys) - 1, []
        for position, chosen in enumerate(groups.sets):
            lacks = sum(1 << (last - key) for key in range(last + 1) if key not in chosen)
            sides.append(Project(base, (
                *(Named(name, column_of(name)) for name in relation.columns),
                *(Named(below[item.name], column_of(whole[item.name]) if key in chosen else
                        SqlExpression(f"CAST(NULL AS {self.types[item.name].simpleString()})"))
                  for key, item in enumerate(groups.keys)),
                Named(number, SqlExpression(f"{lacks}L")),
                # A set that the query has twice has its rows twice.
                Named(place, SqlExpression(f"{position}")),
            )))
        keys = tuple(Named(item.name, column_of(below[item.name])) for item in groups.keys)
        return UnionAll(tuple(sides), sides[0].columns), (
            *keys, Named(groups.number, column_of(number)),
            Named(self.fresh("g"), column_of(place)),
        )


def _subsets(kind: type[exp.Expr], parts: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The grouping sets of a ROLLUP or CUBE over sets of keys.

    Examples
    --------
    >>> _subsets(exp.Rollup, [(0,), (1, 2)])
    [(0, 1, 2), (0,), ()]
    """
    sizes = range(len(parts), -1, -1)
    chosen = [parts[:size] for size in sizes] if kind is exp.Rollup else [
        choice for size in sizes for choice in combinations(parts, size)
    ]
    return [tuple(dict.fromkeys(sum(choice, ()))) for choice in chosen]
