"""The number of nodes at each distance from a root, in a graph whose edges come and go.

Without a graph this is a worked example. It has an edge from 0 to 3, and later a way from 0 over 2
to 3. Then the edge goes, so that 3 is farther away. At time 10 no distance and no number changes.

    python examples/bfs.py                      # the worked example, all changes in one step
    python examples/bfs.py --batch 1            # and a step for each: the same updates
    python examples/bfs.py --nodes 100000 --edges-count 500000 --changes 1000 --batch 100
    spark-submit examples/bfs.py --edges edges.txt --root 3 --picture distances.png

A file has lines "src dst"; a line that begins with # is a comment. In a graph of a file, or a
random one, each change replaces one edge by a random one at a logical time of its own. One physical
step processes ``--batch`` changes. The batch size changes the cost and never the answer.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby

import pyspark_diff
from pyspark_diff import Dataflow, DiffFrame
from pyspark_diff.graphs import bfs
from reachability import changing_graph, draw, graph_parser, make_changes, show_iterations, step

#: Changes of the worked example, each a list of update rows: src, dst, time, diff.
WORKED = [[(0, 3, 0, 1)], [(0, 2, 5, 1)], [(2, 3, 10, 1)], [(0, 3, 11, -1)]]


def program(flow: Dataflow) -> DiffFrame:
    """Define the inputs ``edges`` and ``roots``; return a record for each reached node."""
    edges, _ = flow.input("edges", "src long, dst long")
    roots, _ = flow.input("roots", "node long")
    # The record is the distance only: the sum of diffs counts equal records.
    return bfs(edges, roots).select("distance").consolidate()


def show_updates(updates: Counter) -> None:
    """Print the changes of the number of nodes at each distance, with their times."""
    there = sorted(key for key in updates if updates[key])
    for distance, keys in groupby(there, lambda key: key[0]):
        changes = (f"{updates[key]:+d} at {key[1]}" for key in keys)
        print(f"  distance {distance}: " + ", ".join(changes))


def show_numbers(updates: Counter) -> None:
    """Print the number of nodes at each distance after all updates."""
    numbers: Counter = Counter()
    for (distance, _), diff in updates.items():
        numbers[distance] += diff
    for distance in sorted(+numbers):
        print(f"  {numbers[distance]:>8,} at distance {distance}")


def main(arguments: list[str] | None = None) -> None:
    """Run the example from the command line."""
    parser = graph_parser(__doc__.splitlines()[0])
    parser.add_argument("--history", choices=["worked", "random"], help="worked without a graph")
    parser.add_argument("--root", type=int, default=0, help="where to start")
    parser.set_defaults(nodes=None)
    options = parser.parse_args(arguments)
    has_graph = options.edges or options.nodes is not None
    worked = (options.history or ("random" if has_graph else "worked")) == "worked"
    options.nodes = 50 if options.nodes is None else options.nodes
    spark = pyspark_diff.session("bfs")
    spark.sparkContext.setLogLevel("ERROR")
    loaded, changes = (None, WORKED) if worked else changing_graph(spark, options)
    updates: Counter = Counter()  # from distance and time to the change of the number of nodes
    with Dataflow(spark) as flow:
        program(flow).inspect(lambda record, at, diff: updates.update({(*record, at): diff}))
        edges_in, roots_in = flow.session("edges"), flow.session("roots")
        roots_in.insert([(options.root,)])
        roots_in.close()
        if loaded is not None:
            edges_in.insert(loaded)
            print(f"loaded in {step(flow, edges_in, 1):.2f} s; nodes:")
            show_numbers(updates)
            show_iterations(flow)
        make_changes(flow, edges_in, changes, options.batch)
    if worked:
        print("updates of the number of nodes at each distance:")
        show_updates(updates)
    else:
        print("nodes at the end:")
        show_numbers(updates)
    if options.picture:
        draw(updates, "Nodes at each distance from the root", options.picture)


if __name__ == "__main__":
    main()
