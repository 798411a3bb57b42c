"""The measured tables as a page: ``python benchmarks/tables.py`` writes docs/performance.md.

The program shows the files of benchmarks/results unchanged, and measures nothing. After a new run
of a benchmark has written its file, run this program to write the page.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results"
PAGE = ROOT / "docs/performance.md"

_HEAD = """# Performance

The programs of `benchmarks/` wrote these measurements into `benchmarks/results`, and
`python benchmarks/tables.py` makes this page from the files. *Plain Spark* computes the same answer
again on the same machine. The *original* is differential dataflow in Rust (`benchmarks/original`)
with the same changes; both returned the same answers.

Cores were shared with other work, so figures of a few milliseconds may differ by half from one run
to the next. They compare costs on one machine, and do not predict those of your machine.

"""

_TAIL = """## Where this does not pay

* A question that is asked once: plain Spark has no state to write.
* A change of much of the data: the tables show how the time of a step grows with its changes. From
  some number of changes on, the plain computation is faster.
* An answer at each of very many times, if few are wanted: the queries of TPC-H that took several
  times as long as plain Spark have millions of times.
* The lowest latency for single changes: with steps of one change the original with two workers was
  13 to 40 times as fast. With steps of a hundred thousand changes and more it took 0.6 to 1.4 times
  as long as this library. The original loads small graphs far faster.
* A step on a cluster's executors: at least a tenth of a second for each job, see
  [scaling](scaling.md).
"""


@dataclass(frozen=True)
class Table:
    """A table of the page.

    Parameters
    ----------
    title : str
    source : str
        The file in benchmarks/results, and after each slash the key of a list, the outer first.
        Each row of an inner list also has the other values of the outer list.
    columns : mapping of str to str
        The key of each column by its name. A point separates nested keys. A list becomes its mean.
    note : str
        The text above the table.
    """

    title: str
    source: str
    columns: Mapping[str, str]
    note: str = ""


_GRAPH = {
    "nodes": "nodes", "edges": "edges", "load, s": "load_seconds",
    "changes a step": "rounds_per_batch", "ms a step (median)": "median_ms",
    "µs a change": "us_per_round", "rows read": "rows_read", "memory, GiB": "peak_gib.total",
    "plain Spark, s": "plain_seconds",
}
_ORIGINAL = {
    "nodes": "nodes", "edges": "edges", "workers": "workers", "load, s": "load_seconds",
    "changes a step": "rounds_per_batch", "ms a step (median)": "median_ms",
    "µs a change": "us_per_round", "memory, GiB": "peak_gib",
}

TABLES = (
    Table("Degrees", "degrees/runs/rounds", {
        "operator": "operator", "edges": "edges", "load, s": "load_seconds",
        "changes a step": "rounds", "ms a step (median)": "median_ms",
        "µs a change": "us_per_round", "rows read": "rows_read", "plain Spark, s": "plain_seconds",
        "plain over a step": "plain_over_ours",
    }, "The number of nodes of each degree: `examples/degrees.py`. A change replaces an edge."),
    Table("Degrees in the original", "degrees/runs/original/steps", {
        "program": "program", "edges": "edges", "workers": "workers", "load, s": "load_seconds",
        "changes a step": "rounds", "ms a step (median)": "median_ms",
    }),
    Table("Breadth-first search", "bfs/runs/rows", _GRAPH,
          "The distance of each node from one: `examples/bfs.py`."),
    Table("Breadth-first search in the original", "bfs/runs/original", _ORIGINAL),
    Table("Reachability in a skewed graph", "reachability/runs/rows", _GRAPH,
          "The nodes that can be reached from one, in an R-MAT graph whose hubs have most edges."),
    Table("Reachability in the original", "reachability/runs/original", _ORIGINAL),
    Table("The 5-core", "k_core/runs/rows", _GRAPH,
          "The graph after all nodes with fewer than five edges are removed, again and again."),
    Table("The 5-core in the original", "k_core/runs/original", _ORIGINAL),
    Table("Graph algorithms, an edge a step", "graph_steps/algorithms", {
        "algorithm": "algorithm", "nodes": "nodes", "edges": "edges", "load, s": "load_seconds",
        "from scratch, s": "scratch_seconds", "ms a step (median)": "median_ms", "most": "max_ms",
        "scratch over a step": "scratch_over_step",
    }, "From scratch: the same program of this library on the graph at that time. The rows of "
        "components are of an earlier method, whose memory grew with the square of a path. Now a "
        "load costs 1.35 times as much of a core, and a step 1.0 to 1.4 times."),
    Table("Graph algorithms against GraphX", "graph_comparison/algorithms", {
        "algorithm": "algorithm", "nodes": "nodes", "edges": "edges", "load, s": "load_seconds",
        "GraphX, s": "graphx_seconds", "load over GraphX": "load_over_graphx",
        "ms a step (median)": "step_ms", "GraphX over a step": "graphx_over_step",
    }, "The methods of `GraphDiff`, and GraphX on the same edges: the time to build its graph and "
        "to run once. A step replaces an edge. All answers are equal but for labels, whose ties "
        "GraphX breaks at random. An edge changes the rank of nearly all nodes."),
    Table("The manager's manager", "skip_level/runs/changes", {
        "people": "people", "load, s": "load_seconds", "changes a step": "changes",
        "ms a step (median)": "median_ms", "µs a change": "us_per_change",
        "plain Spark, s": "plain_seconds", "plain over a step": "plain_over_ours",
    }, "A join of a table with itself: `examples/skip_level.py`; all pairs come to the driver."),
    Table("The manager's manager in the original", "skip_level/runs/original/steps", {
        "people": "people", "workers": "workers", "load, s": "load_seconds",
        "changes a step": "rounds", "ms a step (median)": "median_ms",
    }),
    Table("TPC-H", "tpch/runs/rows", {
        "query": "queries", "records": "rounds", "records a step": "physical", "times": "times",
        "plain Spark, s": "plain_seconds",
        "all, s": "seconds", "over plain": "over_plain", "records a second": "tuples_per_second",
        "rows shown": "shown", "a changed order, ms": "changed_order_ms", "memory, GiB": "peak_gib",
    }, "The queries as views, `examples/tpch`. *One a step*: all records at one time. *Of each "
       "round*: each record at a time of its own, so that the answer has the time of each record."),
    Table("TPC-H, all queries in one dataflow", "tpch/together/rows", {
        "records": "rounds", "times": "times", "all, s": "seconds",
        "over the sum of the single ones": "over_sum", "rows shown": "shown",
        "a changed order, ms": "changed_order_ms", "memory, GiB": "peak_gib",
    }, "Each table is arranged once for a key, however many queries read it."),
    Table("Eight aggregates", "aggregates/mixed.changes", {
        "rows": "rows", "groups": "groups", "changes a step": "changes",
        "ms a step (median)": "median_ms", "rows read": "rows_read",
        "plain over a step": "plain_over_ours",
    }),
    Table("A maximum that goes and comes", "aggregates/maximum", {
        "rows": "rows", "groups": "groups", "load, s": "load_seconds",
        "it goes, ms": "remove_maximum_ms", "it comes, ms": "insert_maximum_ms",
    }),
    Table("A view in Delta, night by night", "nightly_view/nights", {
        "night": "night", "all, s": "catch_up_s", "read": "read_s",
        "step and commit": "step_and_commit_s", "merge": "merge_s", "plain Spark, s": "plain_s",
        "plain over ours": "ratio",
    }, "Ten million sales, a million customers; a thousandth changed each night."),
    Table("Commits", "durable/pairs", {
        "edges": "edges", "state, MB": "state_mb", "a step, ms": "step_ms",
        "with a commit": "with_commit_ms", "load, s": "load_s", "with a commit, s":
        "load_with_commit_s", "open, s": "open_s", "open and step, s": "open_and_step_s",
    }, "Degrees with a store."),
    Table("Reading a store as a table", "data_source/reads", {
        "collection": "collection", "rows": "rows", "state": "state", "store, s": "noop_store_s",
        "Parquet, s": "noop_parquet_s", "one column, s": "max_store_s",
        "of Parquet, s": "max_parquet_s",
    }),
    Table("A dimension that changes under hot keys", "skew/dimension", {
        "answer": "answer", "hint": "hint", "rows held": "piece_rows", "rows changed":
        "rows_changed", "load, s": "load_seconds", "the change, s": "change_seconds",
        "memory, GiB": "peak_gib.total", "plain Spark, s": "plain_seconds",
    }),
    Table("Without a fast path", "ablation/runs/rows", {
        "workload": "workload", "without": "without", "processor, s": "cpu_seconds",
        "processor ratio": "cpu_ratio", "load, s": "load_seconds",
        "ms a step (median)": "step_ms", "step ratio": "step_ratio",
    }, "`benchmarks/ablation.py --scale 0.1` disables each fast path alone. Figures are the "
       "least of three repeats, of `medallion` of two. The ratio of processor times compares "
       "whole runs with the JVM: load, steps and the reading of the answer. The load average "
       "of the two cores was 20, so read that ratio: it differs by a tenth for no reason, and "
       "the times of steps by more than half. These workloads use neither `deltalake` nor "
       "`fused task`; `nightly_view` was cut after two of its five runs, and `skip_level` and "
       "`degrees` did not run."),
)


def rows_of(data: Any, keys: list[str]) -> Iterator[dict[str, Any]]:
    """Return the rows of a nested list, each with the values of the outer lists."""
    if not keys:
        yield data
        return
    inner: Any = data
    for key in keys[0].split("."):
        inner = inner[key]
    for item in inner:
        for row in rows_of(item, keys[1:]):
            yield {**data, **row}


def shown(value: Any) -> str:
    """Format a value as a cell."""
    if isinstance(value, list):
        numbers = [item for item in value if isinstance(item, (int, float))]
        value = sum(numbers) / len(numbers) if numbers else ""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int) or value == int(value) and abs(value) >= 100:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def cell(row: Mapping[str, Any], path: str) -> str:
    """Format the value of a row at a path of keys, or return an empty cell."""
    value: Any = row
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return "" if value is None else shown(value)


def section(table: Table) -> str:
    """Format a table with its title and its file."""
    name, *keys = table.source.split("/")
    data = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    lines = [" | ".join(table.columns), "|".join("---" for _ in table.columns)]
    for row in rows_of(data, keys):
        lines.append(" | ".join(cell(row, path) for path in table.columns.values()))
    above = " ".join(filter(None, [table.note, f"From `{name}.json`."]))
    return f"## {table.title}\n\n{above}\n\n" + _framed(lines)


def _framed(lines: list[str]) -> str:
    head, rule, *rows = lines
    return "\n".join([f"| {head} |", f"|{rule}|", *(f"| {row} |" for row in rows)]) + "\n"


def machines() -> str:
    """Format the table of machines and versions of the results."""
    files: dict[str, list[str]] = {}
    for name in dict.fromkeys(table.source.split("/")[0] for table in TABLES):
        data = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        said = data["machine"]
        row = (
            f"{said['cores']} | {said['processor']} | {said['memory_gib']} GiB | "
            f"{said['python']} | {said['pyspark']}"
        )
        files.setdefault(row, []).append(name)
    head = ["cores | processor | memory | Python | PySpark | results", "---|---|---|---|---|---"]
    return _framed([*head, *(f"{row} | {', '.join(names)}" for row, names in files.items())])


def page() -> str:
    """Return the whole text of docs/performance.md."""
    return "\n".join([_HEAD + machines(), *map(section, TABLES), _TAIL])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(page())
