"""The size of the k-core of a graph whose edges come and go.

The k-core is the rest of a graph after all nodes with fewer than k neighbours are removed, again
and again. One edge more or less can bring back or take away much of it.

    python examples/k_core.py                       # a small random graph
    python examples/k_core.py --nodes 100000 --edges-count 300000 --k 4 --changes 1000 --batch 100
    spark-submit examples/k_core.py --edges edges.txt --k 5 --picture core.png

A file has lines "src dst"; a line that begins with # is a comment. Each change replaces one edge by
a random one at a logical time of its own. One physical step processes ``--batch`` changes. The
batch size changes the cost and never the answer.
"""

from __future__ import annotations

from collections import Counter

from pyspark.sql import functions as F

import pyspark_diff
from pyspark_diff import Dataflow, DiffFrame
from pyspark_diff.graphs import k_core
from reachability import changing_graph, draw, graph_parser, make_changes, show_iterations, step


def sizes(core: DiffFrame) -> DiffFrame:
    """A record ``edges`` for each edge of a graph, and a record ``nodes`` for each node."""
    nodes = core.select("src").union(core.select("dst")).distinct()
    kinds = [(core, "edges"), (nodes, "nodes")]
    ones = [frame.select(F.lit(kind).alias("kind")) for frame, kind in kinds]
    return ones[0].union(ones[1]).consolidate()


def program(flow: Dataflow, k: int = 3) -> DiffFrame:
    """Define the input ``edges``; return the records of its k-core."""
    return sizes(k_core(flow.input("edges", "src long, dst long")[0], k))


def show(updates: Counter, most: int = 20) -> None:
    """Print the size at each time of a change, or at the last ones if there are many."""
    size: Counter = Counter()
    times = sorted({at for _, at in updates})
    print("    edges      nodes  from time")
    for at in times:
        size.update({kind: updates[kind, at] for kind in ("edges", "nodes")})
        if at in times[-most:]:
            print(f"{size['edges']:>9,}  {size['nodes']:>9,}  {at:>9,}")


def main(arguments: list[str] | None = None) -> None:
    """Run the example from the command line."""
    parser = graph_parser(__doc__.splitlines()[0])
    parser.add_argument("--k", type=int, default=3, help="neighbours that each node has at least")
    options = parser.parse_args(arguments)
    if options.k < 1:
        parser.error("--k must be at least 1")
    spark = pyspark_diff.session("k-core")
    spark.sparkContext.setLogLevel("ERROR")
    loaded, changes = changing_graph(spark, options)
    updates: Counter = Counter()  # from kind and time to the change of a number
    with Dataflow(spark) as flow:
        core_sizes, edges_in = program(flow, options.k), flow.session("edges")
        core_sizes.inspect(lambda kind, at, diff: updates.update({(*kind, at): diff}))
        edges_in.insert(loaded)
        print(f"loaded in {step(flow, edges_in, 1):.2f} s")
        show_iterations(flow)
        make_changes(flow, edges_in, changes, options.batch)
    print(f"size of the {options.k}-core:")
    show(updates)
    if options.picture and updates:
        draw(updates, f"Size of the {options.k}-core", options.picture)


if __name__ == "__main__":
    main()
