"""Parses the pipes of Spark's SQL: ``FROM t |> WHERE a > 1 |> AGGREGATE sum(b) GROUP BY c``.

Each operator becomes a query over the query before it, as if it were in brackets after FROM. The
brackets have no alias, and keep the qualifiers of the columns: `PIPED` in the metadata says so.
sqlglot itself merges operators into one SELECT, by other rules than Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlglot import exp
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokens import TokenType

#: The key in the metadata of a node that has its place.
PLACE = "place"
#: The key in the metadata of a subquery whose columns keep their qualifiers.
PIPED = "piped"
#: The clauses that begin an operator of their own.
_CLAUSES = frozenset({"WHERE", "ORDER BY", "LIMIT", "OFFSET"})
_JOINS = frozenset({
    "JOIN", "INNER", "CROSS", "LEFT", "RIGHT", "FULL", "SEMI", "ANTI", "NATURAL", "LATERAL",
})
_SETS = frozenset({"UNION", "EXCEPT", "INTERSECT", "MINUS"})


def table_queries(tokens: Sequence[Any]) -> list[Any]:
    """The tokens TABLE that begin a query: ``TABLE t`` is ``SELECT * FROM t``."""
    queries = []
    for before, token, after in zip([None, *tokens], tokens, tokens[1:]):
        begins = before is None or before.token_type == TokenType.L_PAREN or (
            before.text.upper() in {"ALL", "DISTINCT", ")", *_SETS}
        )
        if token.token_type == TokenType.TABLE and begins and (
            after.token_type != TokenType.L_PAREN
        ):
            queries.append(token)
    return queries


def over(query: exp.Expr, alias: Any = None) -> exp.Select:
    """``SELECT * FROM (query)``."""
    below = exp.Subquery(this=query, alias=alias)
    below.meta[PIPED] = alias is None
    return exp.Select(expressions=[exp.Star()], from_=exp.From(this=below))


class PipeParser(SparkParser):
    """A parser of Spark's SQL that reads each operator of a pipe."""

    def _parse_select(
        self, nested: bool = False, table: bool = False, parse_subquery_alias: bool = True,
        parse_set_operation: bool = True, consume_pipe: bool = True,
    ) -> Any:
        start = self._curr.start if self._curr else 0
        query: Any = self._parse_select_query(
            nested=nested, table=table, parse_subquery_alias=parse_subquery_alias,
            parse_set_operation=parse_set_operation,
        )
        if isinstance(query, exp.Values):
            query.meta.setdefault(PLACE, (start, self._prev.end + 1))
        # After a table in brackets the pipe belongs to the query around it.
        if consume_pipe and not table and isinstance(query, (exp.Query, exp.Values)) and (
            self._match(TokenType.PIPE_GT, advance=False)
        ):
            return self._parse_pipe_syntax_query(query)
        return query

    def _parse_select_query(self, *args: Any, **kwargs: Any) -> Any:
        query: Any = super()._parse_select_query(*args, **kwargs)
        clause = query.args.get("from_") if isinstance(query, exp.Select) else None
        if clause is not None and clause.this.args.get("joins"):
            # sqlglot gives the joins of a query that begins with FROM to its table.
            query.set("joins", [*clause.this.args["joins"], *query.args.get("joins", ())])
            clause.this.set("joins", None)
        return query

    def _parse_pipe_syntax_query(self, query: Any) -> Any:
        if isinstance(query, (exp.Subquery, exp.Values)):
            query = exp.Select(expressions=[exp.Star()], from_=exp.From(this=query))
        order: Any = None
        while self._match(TokenType.PIPE_GT):
            word = self._curr.text.upper()
            query = self._operator(word, query, order)
            if word == "ORDER BY":
                order = query.args.get("order")
            elif word not in _CLAUSES:
                # The names of the order may mean other columns now.
                order = None
                query = self._parse_query_modifiers(query)
        return query

    def _operator(self, word: str, query: exp.Expr, order: Any) -> exp.Expr:
        parsers: dict[str, Callable[[exp.Expr], exp.Expr]] = {
            "SELECT": self._pipe_select, "EXTEND": self._pipe_extend, "SET": self._pipe_set,
            "DROP": self._pipe_drop, "AS": self._pipe_as, "AGGREGATE": self._pipe_aggregate,
            "PIVOT": self._pipe_pivot, "UNPIVOT": self._pipe_pivot,
            "TABLESAMPLE": self._pipe_sample,
        }
        if word in parsers:
            return parsers[word](query)
        if word in _SETS:
            union = self.parse_set_operation(exp.Subquery(this=query))
            if union is not None:
                return union
        if word in _CLAUSES or word in _JOINS:
            read = self._parse_query_modifiers(over(query))
            if word in ("LIMIT", "OFFSET") and order is not None:
                read.set("order", order.copy())
            return read
        self.raise_error(f"there is no operator {word} of a pipe")
        return query

    def _pipe_select(self, query: exp.Expr) -> exp.Expr:
        read = self._parse_select_query(parse_set_operation=False)
        if not isinstance(read, exp.Select) or read.args.get("from_"):
            self.raise_error("SELECT after |> has no FROM")
            return query
        read.set("from_", over(query).args["from_"])
        return read

    def _pipe_extend(self, query: exp.Expr) -> exp.Expr:
        self._advance()
        read = over(query)
        read.set("expressions", [exp.Star(), *self._parse_expressions()])
        return read

    def _pipe_set(self, query: exp.Expr) -> exp.Expr:
        self._advance()
        for name, value in self._parse_csv(self._assigned):
            query = over(query)
            query.set("expressions", [
                exp.Star(replace=[exp.Alias(this=value, alias=name)])
            ])
        return query

    def _assigned(self) -> Any:
        name = self._parse_id_var(any_token=True)
        if name is None or not self._match(TokenType.EQ):
            self.raise_error("SET after |> has the form: name = expression")
        return name, self._parse_disjunction()

    def _pipe_drop(self, query: exp.Expr) -> exp.Expr:
        self._advance()
        read = over(query)
        names = self._parse_csv(lambda: self._parse_id_var(any_token=True))
        read.set("expressions", [exp.Star(except_=names)])
        return read

    def _pipe_as(self, query: exp.Expr) -> exp.Expr:
        self._advance()
        return over(query, exp.TableAlias(this=self._parse_id_var(any_token=True)))

    def _pipe_aggregate(self, query: exp.Expr) -> exp.Expr:
        self._advance()
        read = over(query)
        calls = [] if self._at_end() else self._parse_expressions()
        keys = self._parse_expressions() if self._match(TokenType.GROUP_BY) else []
        read.set("expressions", [*keys, *calls])
        if any(isinstance(_unnamed(key), exp.Literal) for key in keys):
            self.raise_error("GROUP BY after |> has names and expressions, and no numbers")
        if keys:
            read.set("group", exp.Group(expressions=list(map(_unnamed, keys))))
        return read

    def _at_end(self) -> bool:
        return self._curr is None or self._curr.token_type in (
            TokenType.GROUP_BY, TokenType.PIPE_GT, TokenType.R_PAREN,
        )

    def _pipe_pivot(self, query: exp.Expr) -> exp.Expr:
        start = self._curr.start
        read = over(query)
        below = read.args["from_"].this
        below.set("pivots", self._parse_pivots())
        # The reader looks for the clause from here.
        below.meta[PLACE] = (start, start)
        return read

    def _pipe_sample(self, query: exp.Expr) -> exp.Expr:
        read = over(query)
        read.args["from_"].this.set("sample", self._parse_table_sample())
        return read


def _unnamed(key: exp.Expr) -> exp.Expr:
    return (key.this if isinstance(key, exp.Alias) else key).copy()
