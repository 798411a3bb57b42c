"""The calls in a query's text: functions by name, aggregates, and kinds of functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sqlglot import exp

from pyspark_diff.query.clock import KINDS

AGGREGATES = frozenset("""
    any any_value approx_count_distinct approx_percentile array_agg avg bit_and bit_or bit_xor
    bitmap_and_agg bitmap_construct_agg bitmap_or_agg bool_and bool_or collect_list collect_set
    corr count count_if count_min_sketch covar_pop covar_samp every first first_value
    histogram_numeric hll_sketch_agg hll_union_agg kurtosis last last_value listagg max max_by
    mean median min min_by mode percentile percentile_approx percentile_cont percentile_disc
    regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy
    skewness some std stddev stddev_pop stddev_samp string_agg sum try_avg try_sum var_pop
    var_samp variance
""".split())
#: Aggregates whose value over no rows is 0.
ZEROS = frozenset({"approx_count_distinct", "count", "count_if", "regr_count"})
#: Aggregates whose value over no rows is neither 0 nor NULL.
OTHERS = frozenset({"array_agg", "collect_list", "collect_set"})
OFFSETS = frozenset(
    "row_number rank dense_rank percent_rank cume_dist ntile lag lead nth_value".split()
)
#: Functions that make several rows of one.
GENERATORS = frozenset("""
    explode explode_outer posexplode posexplode_outer inline inline_outer stack json_tuple
    variant_explode variant_explode_outer
""".split())
#: Functions that Spark accepts only in FROM.
FROM_ONLY = frozenset("range collations sql_keywords variant_explode variant_explode_outer".split())
#: Functions whose calls compute the interval of time of a row.
INTERVALS = frozenset({"window", "session_window"})
#: Functions that make windows, or read a name from a text.
REFUSED = GENERATORS | frozenset("""
    window session_window window_time identifier grouping grouping_id
""".split())
CLOCK = frozenset("""
    curdate current_date current_time current_timestamp localtime localtimestamp now
""".split())
CLOCK_NODES = (exp.CurrentDate, exp.CurrentTimestamp, exp.CurrentDatetime)
RANDOM = frozenset("""
    input_file_block_length input_file_block_start input_file_name java_method
    monotonically_increasing_id rand randn random randstr reflect shuffle spark_partition_id
    try_reflect uniform uuid
""".split())
#: Functions of Spark's syntax, which its list of functions lacks.
SYNTAX = frozenset("if cast timestampadd timestampdiff".split())
#: Functions whose first argument may be a unit of time.
UNITS = frozenset("timestampadd timestampdiff dateadd date_add datediff date_diff".split())
UNIT = frozenset("""
    year quarter month week day dayofyear hour minute second millisecond microsecond
""".split())


def function_name(node: exp.Expr) -> str | None:
    """The name of the function that a node calls, in small letters."""
    if not isinstance(node, exp.Anonymous):
        return None
    name = node.this.name if isinstance(node.this, exp.Expr) else node.this
    return str(name).lower()


def clock_kind(node: exp.Expr) -> str | None:
    """The type of the current date or time that a node calls."""
    if isinstance(node, CLOCK_NODES):
        # The words of the parser's kinds: CurrentDate, CurrentTimestamp, CurrentDatetime.
        return "DATE" if isinstance(node, exp.CurrentDate) else "TIMESTAMP"
    return None if node.args.get("expressions") else KINDS.get(function_name(node) or "")


def aggregate_of(node: exp.Expr) -> str | None:
    """The name of the aggregate that a node calls, with its FILTER and order."""
    while isinstance(node, (exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)):
        node = node.this
    name = function_name(node)
    return name if name in AGGREGATES else None


def aggregates_in(node: exp.Expr) -> Iterator[exp.Expr]:
    """The aggregates of an expression: not those of subqueries, nor window functions."""
    if isinstance(node, (exp.Query, exp.Exists)):
        return
    if aggregate_of(node) is not None:
        yield node
        return
    below: Iterable[exp.Expr] = node.iter_expressions()
    if isinstance(node, exp.Window):
        function = node.this
        below = [item for item in below if item is not function]
        while not isinstance(function, exp.Anonymous) and isinstance(function.this, exp.Expr):
            below = [*below, *(item for item in function.iter_expressions()
                               if item is not function.this)]
            function = function.this
        below = [*below, *function.iter_expressions()]
    for item in below:
        yield from aggregates_in(item)
