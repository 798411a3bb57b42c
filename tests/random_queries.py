"""Random SQL queries over two tables, for comparison with plain Spark.

Each query is a tree of clauses with columns ``a``, ``b`` (int) and ``s`` (string). Each kind of
clause reads queries of the same shape, so that they nest in any order.
"""

from __future__ import annotations

from hypothesis import strategies as st

#: The tables that the queries read.
TABLES = {"t": "a int, b int, s string", "u": "a int, b int, s string"}

_COMPARED = st.sampled_from(["=", "<", ">", "<=", "<>", "<=>"])
_COLUMN = st.sampled_from(["a", "b"])
_NUMBER = st.integers(0, 6)


def _conditions(alias: str) -> st.SearchStrategy[str]:
    column = _COLUMN.map(lambda name: f"{alias}.{name}")
    return st.one_of(
        st.builds(lambda c, o, n: f"{c} {o} {n}", column, _COMPARED, _NUMBER),
        column.map(lambda c: f"{c} IS NOT NULL"),
        st.builds(lambda c, n: f"{c} BETWEEN {n} AND {n + 2}", column, _NUMBER),
        st.just(f"{alias}.s LIKE 'x%'"),
        st.just(f"{alias}.a + {alias}.b > 5 OR {alias}.s = 'y'"),
    )


#: Aggregates with a whole number, in any group.
_WHOLE = [
    "sum(b)", "count(*)", "min(b)", "max(b)", "count(DISTINCT b)", "try_sum(b)", "bit_and(b)",
    "bit_or(b)", "bit_xor(b)", "regr_count(a, b)",
    "length(listagg(s, '+') WITHIN GROUP (ORDER BY s))",
]
#: Aggregates over equal values of a, as any of several values would be right.
_ENDS = ["first(a)", "last(a)", "any_value(a)", "first_value(a) FILTER (WHERE b > 1)"]
#: Lists, which a correlated subquery has not.
_LISTS = ["size(array_agg(b))", "element_at(sort_array(array_agg(b)), 1)"]
#: Aggregates that are compared but for rounding, so that no other clause reads them.
_ROUNDED = [
    "corr(a, b)", "covar_pop(a, b)", "covar_samp(a, b)", "regr_avgx(a, b)", "regr_avgy(a, b)",
    "regr_intercept(a, b)", "regr_r2(a, b)", "regr_slope(a, b)", "regr_sxx(a, b)",
    "regr_sxy(a, b)", "regr_syy(a, b)", "skewness(b)", "kurtosis(b)", "try_avg(b)",
    "stddev_samp(b)", "try_sum(a * 0.5D)", "sort_array(array_agg(s))", "bit_xor(a + b)",
]

_SCAN = st.sampled_from(["SELECT a, b, s FROM t", "SELECT a, b, s FROM u"])


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Queries of one more clause."""
    aggregate = st.sampled_from(_WHOLE)
    where = st.builds(
        lambda q, c: f"SELECT * FROM ({q}) q WHERE {c}", inner, _conditions("q")
    )
    project = inner.map(
        lambda q: "SELECT a + 1 AS a, CASE WHEN b > 2 THEN a ELSE b END AS b, "
        f"coalesce(s, 'n') AS s FROM ({q}) q"
    )
    group = st.builds(
        lambda q, f: f"SELECT a, CAST({f} AS int) AS b, max(s) AS s FROM ({q}) q GROUP BY a",
        inner, st.sampled_from([*_WHOLE, *_ENDS, *_LISTS]),
    )
    whole = st.builds(
        lambda q, f: f"SELECT count(*) AS a, CAST({f} AS int) AS b, min(s) AS s FROM ({q}) q",
        inner, aggregate,
    ).map(lambda q: f"SELECT CAST(a AS int) AS a, b, s FROM ({q}) w")
    having = st.builds(
        lambda q, n: f"SELECT a, max(b) AS b, s FROM ({q}) q GROUP BY a, s HAVING count(*) > {n}",
        inner, st.integers(0, 2),
    )
    sets = inner.map(
        lambda q: f"SELECT a, CAST(sum(b) AS int) AS b, s FROM ({q}) q GROUP BY "
        "GROUPING SETS ((a, s), (a), ())"
    )
    distinct = inner.map(lambda q: f"SELECT DISTINCT a, b, s FROM ({q}) q")
    both = st.builds(
        lambda q, kind, r: f"({q}) {kind} ({r})", inner,
        st.sampled_from(["UNION ALL", "UNION", "EXCEPT", "EXCEPT ALL", "INTERSECT"]), inner,
    ).map(lambda q: f"SELECT a, b, s FROM ({q}) q")
    join = st.builds(
        lambda q, kind, r, c: f"SELECT q.a, r.b, coalesce(q.s, r.s) AS s FROM ({q}) q {kind} JOIN "
        f"({r}) r ON q.{c} = r.{c} AND q.b >= r.b", inner,
        st.sampled_from(["INNER", "LEFT", "RIGHT", "FULL"]), inner, _COLUMN,
    )
    semi = st.builds(
        lambda q, kind, r: f"SELECT q.a, q.b, q.s FROM ({q}) q LEFT {kind} JOIN ({r}) r "
        "ON q.a = r.b", inner, st.sampled_from(["SEMI", "ANTI"]), inner,
    )
    exists = st.builds(
        lambda q, no, r, c: f"SELECT * FROM ({q}) q WHERE {no}EXISTS "
        f"(SELECT 1 FROM ({r}) r WHERE r.a = q.a AND {c})", inner,
        st.sampled_from(["", "NOT "]), inner, _conditions("r"),
    )
    member = st.builds(
        lambda q, no, r: f"SELECT * FROM ({q}) q WHERE q.a {no}IN (SELECT r.b FROM ({r}) r)",
        inner, st.sampled_from(["", "NOT "]), inner,
    )
    value = st.builds(
        lambda q, r, f: f"SELECT q.a, (SELECT CAST({f} AS int) FROM ({r}) r WHERE r.a = q.a) AS b, "
        f"q.s FROM ({q}) q", inner, inner, st.sampled_from([*_WHOLE, *_ENDS]),
    )
    case = st.builds(
        lambda q, r: f"SELECT q.a, q.b, CASE WHEN q.b IN (SELECT a FROM ({r}) r) THEN 'x' "
        f"ELSE q.s END AS s FROM ({q}) q", inner, inner,
    )
    window = st.builds(
        lambda q, f: f"SELECT a, CAST({f} OVER (PARTITION BY a ORDER BY b, s) AS int) AS b, s "
        f"FROM ({q}) q", inner, st.sampled_from(["rank()", "sum(b)", "count(*)", "lag(b)"]),
    )
    explode = inner.map(lambda q: f"SELECT a, explode(array(a, b)) AS b, s FROM ({q}) q")
    lateral = st.builds(
        lambda q, r: f"SELECT q.a, l.b, q.s FROM ({q}) q, LATERAL (SELECT max(b) AS b FROM ({r}) r "
        "WHERE r.a = q.b) l", inner, inner,
    )
    common = inner.map(
        lambda q: f"WITH c AS ({q}) SELECT c.a, d.b, c.s FROM c JOIN c d ON c.a = d.a"
    )
    first = st.builds(
        lambda q, n: f"SELECT * FROM (SELECT * FROM ({q}) q ORDER BY a, b, s LIMIT {n}) f",
        inner, st.integers(1, 5),
    )
    return st.one_of(
        where, project, group, whole, having, sets, distinct, both, join, semi, exists, member,
        value, case, window, explode, lateral, common, first,
    )


def queries(leaves: int = 5) -> st.SearchStrategy[str]:
    """Queries of up to so many scans; half of them are summed up at last."""
    inner = st.recursive(_SCAN, _larger, max_leaves=leaves)
    summary = st.builds(
        lambda q, f, g, by: f"SELECT {by}{f} AS x, {g} AS y FROM ({q}) q"
        + (" GROUP BY s" if by else ""),
        inner, st.sampled_from(_ROUNDED), st.sampled_from(_ROUNDED),
        st.sampled_from(["s, ", ""]),
    )
    return st.one_of(inner, summary)
