"""The operators of random programs that group, join and order: their calls and their strategies."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from oracle import (
    COGROUPS,
    HALVES,
    REDUCES,
    SETS,
    THRESHOLDS,
    WINDOWS,
    Columns,
    Op,
    Program,
    columns_of,
    free,
    guard,
)
from pyspark.sql import Column, Window
from pyspark.sql import functions as F

from pyspark_diff import DiffFrame

#: The operators that are drawn.
ENABLED = frozenset({
    "join", "join_on", "crossJoin", "groupBy", "top_k", "reduce", "dropDuplicates", "subtract",
    "exceptAll", "intersect", "intersectAll", "weighted", "arrange_by_key", "window", "asof",
    "cogroup",
})
#: The aggregates that are drawn; those whose last digits may differ are tested elsewhere.
AGGREGATES = (
    "avg", "bool_and", "bool_or", "collect_list", "collect_set", "count", "countDistinct",
    "count_if", "max", "max_by", "min", "min_by", "sum", "sum_distinct",
)
_FIRST, _LAST = Window.unboundedPreceding, Window.unboundedFollowing
HOWS = ("inner", "left", "right", "full", "left_semi", "left_anti")


def quoted(name: str) -> str:
    return f"`{name}`"


def ddl(columns: Columns) -> str:
    return ", ".join(f"{quoted(name)} {kind}" for name, kind in columns)


def col(name: str, alias: str = "") -> Column:
    return F.col(f"{alias}.{quoted(name)}" if alias else quoted(name))


# In terms of the library.


def apply_op(op: Op, frames: list[DiffFrame], schema: Columns) -> DiffFrame | None:
    """Apply an operator of this module to its inputs. Returns None for any other operator."""
    name, args = op.name, op.args
    if guard(op):
        frames = [frame.threshold(THRESHOLDS[str(guard(op))]) for frame in frames]
    first = frames[0]
    if name == "join":
        return _join(first, frames[1], *args)
    if name == "join_on":
        return _join_on(first, frames[1], *args)
    if name == "crossJoin":
        return first.crossJoin(_renamed(first, frames[1], ()).hint("broadcast"))
    if name == "groupBy":
        keys, aggregates, empty = args
        columns = [aggregate(f, *map(col, cs)).alias(as_name) for f, cs, as_name in aggregates]
        if keys:
            return first.groupBy(*map(quoted, keys)).agg(*columns)
        return first.agg(*columns, empty=True) if empty else first.agg(*columns)
    if name == "top_k":
        k, by, per, number = args
        return first.top_k(k, [ordering(*b) for b in by], per=list(per) or None, number=number)
    if name == "window":
        function, column, by, per, made_as, most = args
        over = window(function, col(column), [ordering(*b) for b in by], [col(n) for n in per])
        windowed = first.withColumn(made_as, over)
        return windowed if most is None else windowed.where(col(made_as) <= most)
    if name == "reduce":
        function, key = args
        return first.reduce(REDUCES[function], ddl(schema[len(key):]), list(key))
    if name == "asof":
        here, there, key, *_ = args
        return _asof(first, frames[1], here, there, key, *args[3:])
    if name == "cogroup":
        function, key = args
        groups = [frame.groupBy(*map(quoted, key)) for frame in frames]
        return groups[0].cogroup(groups[1]).reduce(COGROUPS[function], ddl(schema[len(key):]))
    if name == "dropDuplicates":
        subset, order = args
        by = [ordering(*b) for b in order]
        return first.dropDuplicates(list(subset) or None, order=by or None)
    if name in (*SETS, "weighted", "arrange_by_key"):
        return getattr(first, name)(*frames[1:], *args)
    return None


def aggregate(function: str, *columns: Column) -> Column:
    """A call of an aggregate function; a count of no columns is of the rows."""
    if function == "count" and len(columns) != 1:
        return F.count("*")
    return getattr(F, function)(*columns)


def window(function: str, column: Column, by: list[Column], per: list[Column]) -> Column:
    """A function over a window; that of a count has no order."""
    parts = Window.partitionBy(*per)
    over = parts.orderBy(*by)
    return {
        "row_number": lambda: F.row_number().over(over),
        "rank": lambda: F.rank().over(over),
        "dense_rank": lambda: F.dense_rank().over(over),
        "lag": lambda: F.lag(column).over(over),
        "after": lambda: F.lead(column, 2).over(over),
        "last": lambda: F.last(column, True).over(over.rowsBetween(_FIRST, 0)),
        "next": lambda: F.first(column, True).over(over.rowsBetween(0, _LAST)),
        "sum": lambda: F.sum(column).over(over),
        "count": lambda: F.count(column).over(parts),
        "least": lambda: F.min(column).over(over.rowsBetween(-1, 1)),
        "nth": lambda: F.nth_value(column, 2, True).over(over.rowsBetween(-1, 1)),
        "list": lambda: F.collect_list(column).over(over.rowsBetween(-1, 0)),
        "places": lambda: F.max(F.row_number().over(over)).over(parts),
    }[function]()


def ordering(name: str, ascending: bool) -> Column:
    return col(name).asc() if ascending else col(name).desc()


def _renamed(left: DiffFrame, right: DiffFrame, using: tuple[str, ...]) -> DiffFrame:
    """The right side without names of the left one."""
    used, names = list(left.columns), []
    for name in right.columns:
        if name not in using:
            used.append(free(name, used))
        names.append(name if name in using else used[-1])
    # All at once: a new name may be that of another one of its columns.
    return right if names == right.columns else right.toDF(*names)


def _join(left: DiffFrame, right: DiffFrame, using: tuple[str, ...], how: str) -> DiffFrame:
    if how in ("semijoin", "antijoin"):
        all_columns = set(using) == set(right.columns)
        return getattr(left, how)(right, None if all_columns else list(using))
    return left.join(_renamed(left, right, using), list(using), how)


def _asof(
    left: DiffFrame, right: DiffFrame, here: str, there: str, key: tuple[str, ...],
    direction: str, exact: bool, tolerance: int | None, how: str,
) -> DiffFrame:
    place = right.columns.index(there)
    right = _renamed(left, right, (*key, here) if here == there else key)
    on = here if here == there else (here, right.columns[place])
    return left.join_asof(
        right, on, list(key), direction=direction, exact=exact,
        tolerance=tolerance, how=how,
    )


def _join_on(
    left: DiffFrame,
    right: DiffFrame,
    pairs: tuple[tuple[str, str], ...],
    null_safe: bool,
    residual: tuple[str, str, str] | None,
    how: str,
) -> DiffFrame:
    on = [
        col(a, "l").eqNullSafe(col(b, "r")) if null_safe else col(a, "l") == col(b, "r")
        for a, b in pairs
    ]
    if residual:
        what, a, b = residual
        on.append({
            "less": lambda: col(a, "l") < col(b, "r"),
            "near": lambda: col(b, "r").between(col(a, "l") - 1, 1 + col(a, "l")),
            "around": lambda: (col(a, "l") - F.abs(col(a, "l")) <= col(b, "r"))
            & (col(b, "r") <= col(a, "l") + F.abs(col(a, "l"))),
            "apart": lambda: F.abs(col(b, "r") - col(a, "l")) <= 1,
            "overlap": lambda: (col(a, "l") <= col(b, "r") + 1)
            & (col(b, "r") <= col(a, "l") + F.abs(col(a, "l"))),
            "differ": lambda: col(b, "r") != col(a, "l"),
            "not null": lambda: col(a, "l").isNotNull(),
        }[what]())
    assert on
    condition = on[0]
    for more in on[1:]:
        condition = condition & more
    joined = left.alias("l").join(right.alias("r"), condition, how)
    if how in HALVES:
        return joined
    assert joined.columns == [*left.columns, *right.columns]
    names = list(left.columns)
    columns = [col(name, "l") for name in names]
    for name in right.columns:
        names.append(free(name, names))
        columns.append(col(name, "r").alias(names[-1]))
    return joined.select(*columns)


# Random ones.


def multiplies(program: Program) -> int:
    """How many operators of a program make large multiplicities of small ones."""
    large = ("join", "join_on", "crossJoin", "weighted")
    halves = [(how,) for how in HALVES]
    return sum(op.name in large and op.args[-1:] not in halves for op in program.ops)


@st.composite
def relational(draw: st.DrawFn, program: Program, node: int, whole: bool) -> Op | None:
    """Draw an operator of this module on a node of a program; None if none fits."""
    columns = columns_of(program)
    there, names = columns[node], [name for name, _ in columns[node]]
    few = multiplies(program) < 2
    kinds = ["groupBy"] * 3 + ["top_k", "top_k", *SETS]
    if names:
        kinds += ["join"] * 3 + ["join_on"] * 4 + ["reduce"] * 2 + ["dropDuplicates"] * 2
        kinds += ["arrange_by_key", "window", "window", "cogroup", "asof"]
    if few:
        kinds += ["crossJoin"]
        kinds += ["weighted"] * 2 if any(kind == "int" for _, kind in there) else []
    kinds = [kind for kind in kinds if kind in ENABLED]
    if not kinds:
        return None
    name = draw(st.sampled_from(kinds))
    if name == "groupBy":
        return draw(_group_by(node, there, whole))
    if name in ("top_k", "dropDuplicates"):
        some = st.sets(st.sampled_from(names), max_size=2) if names else st.just(set())
        by = [(n, draw(st.booleans())) for n in draw(st.permutations(sorted(draw(some))))]
        key = tuple(sorted(draw(some)))
        if name == "dropDuplicates":
            return Op(name, (node,), (key, tuple(by)))
        number = draw(st.sampled_from([None, None, "row_number", "rank", "dense_rank"]))
        if not by and names:
            by = [(names[0], False)]
        number = None if number in names or not by else number
        return Op(name, (node,), (draw(st.integers(1, 3)), tuple(by), key, number)) if by else None
    if name == "window":
        column = draw(st.sampled_from(names))
        whole_numbers = dict(there)[column] == "int"
        functions = [f for f in WINDOWS if f != "sum" or whole_numbers]
        if "array" in dict(there)[column]:
            functions.remove("list")
        order = draw(st.permutations(names))[:draw(st.integers(1, 2))]
        by = tuple((n, draw(st.booleans())) for n in order)
        per = tuple(sorted(draw(st.sets(st.sampled_from(names), max_size=2))))
        function = draw(st.sampled_from(functions))
        # A rank may be limited to the first places.
        first = function in ("row_number", "rank", "dense_rank") and draw(st.booleans())
        most = draw(st.integers(1, 3)) if first else None
        return Op(name, (node,), (function, column, by, per, free("w", names), most))
    if name == "reduce":
        key = tuple(n for n in names if draw(st.booleans()))
        functions = sorted(REDUCES) if len(key) < len(names) else sorted({*REDUCES} - {"ends"})
        return Op(name, (node,), (draw(st.sampled_from(functions)), key)) if key else None
    if name == "arrange_by_key":
        return Op(name, (node,), tuple(draw(st.permutations(names)))[: draw(st.integers(1, 2))])
    if name == "weighted":
        return Op(name, (node,), (draw(st.sampled_from([n for n, k in there if k == "int"])),))
    others = [i for i in range(len(columns)) if i != node] + [node]
    if name in SETS:
        kinds = [kind for _, kind in there]
        candidates = [i for i in others if [kind for _, kind in columns[i]] == kinds]
        return Op(name, (node, draw(st.sampled_from(candidates)))) if names else None
    if name == "crossJoin":
        return Op(name, (node, draw(st.sampled_from(others))))
    if name in ("asof", "cogroup"):
        return draw(_side_by_side(name, node, columns, others))
    hows = st.sampled_from(HOWS if few else ("left_semi", "left_anti"))
    if name == "join":
        common = [i for i in others if set(columns[i]) & set(there)]
        other = draw(st.sampled_from(common))
        using = sorted(name for name, _ in set(columns[other]) & set(there))
        key = tuple(draw(st.permutations(using)))[: draw(st.integers(1, 2))]
        how = draw(hows)
        if how in ("left_semi", "left_anti") and draw(st.booleans()):
            how = {"left_semi": "semijoin", "left_anti": "antijoin"}[how]
        return Op(name, (node, other), (key, how))
    pairs = {
        i: [(a, b) for a, k in there for b, m in columns[i] if comparable(k, m)] for i in others
    }
    other = draw(st.sampled_from([i for i in others if pairs[i]]))
    on = draw(st.lists(st.sampled_from(pairs[other]), min_size=1, max_size=2, unique=True))
    residual: Any = None
    if draw(st.booleans()):
        a, b = draw(st.sampled_from(pairs[other]))
        kinds = dict(there)[a], dict(columns[other])[b]
        what = ["less", "differ"]
        what += ["near", "around", "apart"] * 2 if kinds[0] == "int" else []  # no sum is too large
        what += ["overlap"] * 3 if kinds == ("int", "int") else []
        residual = (draw(st.sampled_from(what)), a, b)
        # Compared columns need no equality of keys, unless they are lists.
        if residual[0] != "differ" and "array" not in kinds[0] and draw(st.booleans()):
            on = []
        residual = draw(st.sampled_from([residual, residual, ("not null", names[-1], "")]))
        on = on or ([(a, b)] if residual[0] == "not null" else [])
    null_safe = draw(st.sampled_from([False, False, True]))
    return Op("join_on", (node, other), (tuple(on), null_safe, residual, draw(hows)))


@st.composite
def _side_by_side(
    draw: st.DrawFn, name: str, node: int, columns: list[Columns], others: list[int]
) -> Op | None:
    """An as-of join or a cogroup with one of the others, by columns that both have."""
    there = columns[node]
    if name == "cogroup":
        candidates = [i for i in others if set(columns[i]) & set(there)]
        other = draw(st.sampled_from(candidates))
        both = sorted(n for n, _ in set(columns[other]) & set(there))
        key = tuple(draw(st.permutations(both)))[: draw(st.integers(1, 2))]
        return Op(name, (node, other), (draw(st.sampled_from(sorted(COGROUPS))), key))
    places = [
        (i, a, b) for i in others for a, kind in there for b, k in columns[i]
        if kind == k and kind in ("int", "bigint")
    ]
    if not places:
        return None
    other, here, place = draw(st.sampled_from(places))
    both = sorted(
        n for n, _ in set(columns[other]) & set(there) if n not in (here, place)
    )
    key = tuple(draw(st.permutations(both)))[: draw(st.integers(0, 2))]
    return Op(name, (node, other), (
        here, place, key, draw(st.sampled_from(["backward", "forward", "nearest"])),
        draw(st.booleans()), draw(st.sampled_from([None, None, 0, 2])),
        draw(st.sampled_from(["left", "inner"])),
    ))


def comparable(kind: str, other: str) -> bool:
    return kind == other or {kind, other} == {"int", "bigint"}


@st.composite
def _group_by(draw: st.DrawFn, node: int, there: Columns, whole: bool) -> Op:
    kinds = dict(there)
    names = list(kinds)
    keys = tuple(sorted(draw(st.sets(st.sampled_from(names), max_size=2)))) if names else ()
    aggregates: list[tuple[str, tuple[str, ...], str]] = []
    for number in range(draw(st.integers(1, 3))):
        choices = ["count"]
        column = draw(st.sampled_from(names)) if names else ""
        if names:
            choices += ["count", "countDistinct", "collect_set", "collect_list"]
            choices += ["min", "max", "min_by", "max_by", "min", "max"]
        if kinds.get(column) == "int":
            choices += ["sum", "avg", "sum_distinct", "sum", "avg"]
        if kinds.get(column) == "boolean":
            choices += ["bool_and", "bool_or", "count_if"] * 2
        function = draw(st.sampled_from([c for c in choices if c in AGGREGATES]))
        columns = (column,) if names else ()
        if function in ("min_by", "max_by") or function == "countDistinct" and draw(st.booleans()):
            columns = (column, draw(st.sampled_from(names)))
        if function == "count" and draw(st.booleans()):
            columns = ()
        used = [*keys, *(n for _, _, n in aggregates)]
        aggregates.append((function, columns, free("efg"[number], used)))
    empty = not keys and not whole and draw(st.booleans())
    return Op("groupBy", (node,), (keys, tuple(aggregates), empty))
