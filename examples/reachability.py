"""The number of nodes that can be reached from some roots, while edges come and go.

The number is exact at every logical time. A deleted edge takes along all nodes that could only be
reached over it, also if the remaining edges form a cycle.

    python examples/reachability.py                             # a small random graph
    python examples/reachability.py --nodes 100000 --edges-count 200000 --changes 1000 --batch 100
    spark-submit examples/reachability.py --edges edges.txt --roots 3 8 --picture reachable.png

A file has lines "src dst"; a line that begins with # is a comment. Each change replaces one edge by
a random one at a logical time of its own. One physical step processes ``--batch`` changes. The
batch size changes the cost and never the answer. Other graph examples use functions of this one.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from itertools import accumulate
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tqdm.auto import tqdm

import pyspark_diff
from pyspark_diff import Dataflow, DiffFrame, InputSession
from pyspark_diff.graphs import reachability


def graph_parser(title: str) -> argparse.ArgumentParser:
    """Options for the graph and its changes."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--edges", help='edge list: a text file with lines "src dst"')
    parser.add_argument("--nodes", type=int, default=50, help="nodes of a random graph")
    parser.add_argument("--edges-count", type=int, default=120, help="edges of a random graph")
    parser.add_argument("--seed", type=int, default=2, help="of all random edges")
    parser.add_argument("--changes", type=int, default=20, help="how many edges are replaced")
    parser.add_argument("--batch", type=int, help="changes in one physical step; all if not given")
    parser.add_argument("--picture", help="where a picture goes, such as picture.png")
    return parser


def read_edges(spark: SparkSession, path: str) -> DataFrame:
    """An edge list from a text file: columns ``src`` and ``dst``."""
    lines = spark.read.text(path).selectExpr(r"split(ltrim(' \t', value), '[ \t]+') ends")
    edges = lines.where("ends[0] != '' AND NOT startswith(ends[0], '#')")
    return edges.selectExpr("bigint(ends[0]) src", "bigint(ends[1]) dst")


def random_edges(spark: SparkSession, nodes: int, first: int, end: int, seed: int) -> DataFrame:
    """A part of an endless list of random edges."""
    ends = (f"pmod(xxhash64(id, {seed}, '{name}'), {nodes}) {name}" for name in ("src", "dst"))
    return spark.range(first, end).selectExpr(*ends)


def changing_graph(spark: SparkSession, options: argparse.Namespace) -> tuple[DataFrame, list]:
    """The edges at time 0, and for each change its update rows, at a time of its own from 1 on."""
    total, nodes, seed = options.edges_count, options.nodes, options.seed
    edges = random_edges(spark, nodes, 0, total, seed)
    if options.edges:
        edges = read_edges(spark, options.edges)
        highest = edges.agg(F.max(F.greatest("src", "dst"))).first()[0]
        nodes = 1 if highest is None else highest + 1
    if min(nodes, options.batch or 1) < 1 or min(total, options.changes) < 0:
        raise SystemExit("--nodes and --batch are at least 1, --edges-count and --changes 0")
    gone = edges.limit(options.changes).collect()
    come = random_edges(spark, nodes, total, total + len(gone), seed).collect()
    both = enumerate(zip(gone, come), start=1)
    return edges, [[(*old, at, -1), (*new, at, 1)] for at, (old, new) in both]


def program(flow: Dataflow) -> DiffFrame:
    """Define the inputs ``edges`` and ``roots``; return a record for each reachable node."""
    edges, _ = flow.input("edges", "src long, dst long")
    roots, _ = flow.input("roots", "node long")
    # All records are equal: the sum of their diffs is their number.
    return reachability(edges, roots).select(F.lit("reachable").alias("kind")).consolidate()


def step(flow: Dataflow, session: InputSession, then: int) -> float:
    """Process everything before a time and show iterations; return the seconds."""
    started = time.perf_counter()
    session.advance_to(then)
    session.flush()
    with tqdm(unit=" iterations", leave=False, disable=None) as bar:

        def show(turn: Any) -> None:
            bar.set_postfix(changes=turn.changes, refresh=False)
            bar.update()

        flow.step(show)
    return time.perf_counter() - started


def make_changes(flow: Dataflow, session: InputSession, changes: list, batch: int | None) -> None:
    """Make changes, a batch of them in each step, and print the time."""
    took = []
    batch = batch or max(len(changes), 1)
    with tqdm(total=len(changes), unit=" changes", disable=None) as bar:
        for first in range(0, len(changes), batch):
            some = changes[first : first + batch]
            session.update([row for rows in some for row in rows])
            took.append(step(flow, session, some[-1][-1][-2] + 1))
            bar.update(len(some))
    if took:
        print(f"{len(changes):,} changes in {sum(took):.2f} s; "
              f"{statistics.median(took) * 1e3:,.1f} ms a step (median of {len(took):,}); last:")
        show_iterations(flow)


def show_iterations(flow: Dataflow) -> None:
    """Print the iterations of the loop in the last step."""
    print(flow.iterations().toPandas().round(3).to_string(index=False, max_rows=12))


def draw(updates: Counter, title: str, path: str) -> None:
    """A picture of numbers over time, from the changes of each at its times."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.5), layout="constrained")
    axes = figure.subplots()
    times = sorted({at for _, at in updates})
    for kind in sorted({kind for kind, _ in updates}):
        numbers = [*accumulate(updates[kind, at] for at in times)]
        axes.step([*times, times[-1] + 1], [*numbers, numbers[-1]], where="post", label=kind)
    axes.legend()
    axes.set(xlabel="time", ylabel="number", title=title)
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")


def main(arguments: list[str] | None = None) -> None:
    """Run the example from the command line."""
    parser = graph_parser(__doc__.splitlines()[0])
    parser.add_argument("--roots", type=int, nargs="+", default=[0], help="where to start")
    options = parser.parse_args(arguments)
    spark = pyspark_diff.session("reachability")
    spark.sparkContext.setLogLevel("ERROR")
    loaded, changes = changing_graph(spark, options)
    updates: Counter = Counter()  # the change of the number at each time
    with Dataflow(spark) as flow:
        program(flow).inspect(lambda kind, at, diff: updates.update({(*kind, at): diff}))
        edges_in, roots_in = flow.session("edges"), flow.session("roots")
        roots_in.insert([(root,) for root in options.roots])
        roots_in.close()
        edges_in.insert(loaded)
        print(f"loaded in {step(flow, edges_in, 1):.2f} s")
        show_iterations(flow)
        make_changes(flow, edges_in, changes, options.batch)
    print("reachable  from time")
    for (_, at), number in [*zip(updates, accumulate(updates.values()))][-20:]:
        print(f"{number:>9,}  {at:>9,}")
    if options.picture:
        draw(updates, "Nodes that can be reached", options.picture)


if __name__ == "__main__":
    main()
