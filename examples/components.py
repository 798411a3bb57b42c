"""The number of connected components, and the largest one, while edges come and go.

Edges count in both directions. The deletion of the only edge between two parts makes two components
of one. Each node of the part without the smallest number then has a new label.

    python examples/components.py --picture components.png      # a small random graph, coloured
    python examples/components.py --nodes 100000 --edges-count 80000 --changes 1000 --batch 100
    spark-submit examples/components.py --edges edges.txt

A file has lines "src dst"; a line that begins with # is a comment. Each change replaces one edge by
a random one at a logical time of its own. One physical step processes ``--batch`` changes. The
batch size changes the cost and never the answer.
"""

from __future__ import annotations

import numpy as np
from pyspark.sql import functions as F

import pyspark_diff
from pyspark_diff import Dataflow, DiffFrame
from pyspark_diff.graphs import connected_components
from reachability import changing_graph, graph_parser, make_changes, show_iterations, step

#: Graphs with more edges are not drawn, because a viewer could not distinguish the edges.
DRAWN = 1_000


def sizes(labels: DiffFrame) -> DiffFrame:
    """One record: the number of components, and the number of nodes of the largest."""
    each = labels.groupBy("component").agg(F.count("*").alias("size"))
    return each.agg(F.count("*").alias("components"), F.max("size").alias("largest"))


def program(flow: Dataflow) -> tuple[DiffFrame, DiffFrame, DiffFrame]:
    """Define the input ``edges``; return it, the component of each node, and their sizes."""
    edges, _ = flow.input("edges", "src long, dst long")
    labels = connected_components(edges)
    return edges, labels, sizes(labels)


def layout(edges: np.ndarray, count: int, rounds: int = 200) -> np.ndarray:
    """Places of nodes: edges pull their ends together, and all nodes push each other away."""
    places = np.random.default_rng(0).uniform(-1, 1, (count, 2))
    near = 1.5 / np.sqrt(count)
    src, dst = edges.T
    for heat in np.linspace(0.1, 0.001, rounds):
        distance = places[:, None] - places
        square = np.maximum((distance**2).sum(2, keepdims=True), 1e-6)
        force = (distance * near**2 / square).sum(1) - places * near
        along = places[dst] - places[src]
        pull = along * np.linalg.norm(along, axis=1, keepdims=True) / near
        np.add.at(force, src, pull)
        np.add.at(force, dst, -pull)
        length = np.maximum(np.linalg.norm(force, axis=1, keepdims=True), 1e-9)
        places += force / length * np.minimum(length, heat)
    return places


def draw(edges: list[tuple[int, int]], labels: dict[int, int], path: str) -> None:
    """A picture of a graph, coloured by component."""
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

    number = {node: i for i, node in enumerate(labels)}
    ends = np.array([(number[src], number[dst]) for src, dst in edges]).reshape(-1, 2)
    places = layout(ends, len(number))
    color = {label: i for i, label in enumerate(sorted(set(labels.values())))}
    figure = Figure(figsize=(8, 8), layout="constrained")
    axes = figure.subplots()
    axes.add_collection(LineCollection(places[ends], colors="lightgray", zorder=0))
    axes.scatter(*places.T, c=[color[labels[node]] for node in number], cmap="turbo", s=120)
    for node, place in zip(number, places):
        axes.annotate(str(node), place, ha="center", va="center", fontsize=6, color="white")
    axes.set(title=f"{len(color):,} components", xticks=[], yticks=[], aspect="equal")
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")


def main(arguments: list[str] | None = None) -> None:
    """Run the example from the command line."""
    parser = graph_parser(__doc__.splitlines()[0])
    parser.set_defaults(edges_count=35)
    options = parser.parse_args(arguments)
    spark = pyspark_diff.session("components")
    spark.sparkContext.setLogLevel("ERROR")
    loaded, changes = changing_graph(spark, options)
    now: dict[int, tuple[int, int]] = {}  # from each time of a change to the record after it
    with Dataflow(spark) as flow:
        edges, labels, counted = program(flow)
        edges_in = flow.session("edges")
        counted.inspect(lambda size, at, diff: diff > 0 and now.update({at: size}))
        if options.picture:
            # Kept collections can be read.
            labels.keep(), edges.keep()
        edges_in.insert(loaded)
        print(f"loaded in {step(flow, edges_in, 1):.2f} s")
        show_iterations(flow)
        make_changes(flow, edges_in, changes, options.batch)
        print("components  nodes of the largest  from time")
        for at, (count, most) in [*now.items()][-20:]:
            print(f"{count:>10,}  {most:>20,}  {at:>9,}")
        if options.picture:
            rows = edges.at().limit(DRAWN + 1).collect()
            if len(rows) > DRAWN:
                print(f"no picture: the graph has more than {DRAWN:,} edges")
            elif rows:
                draw(rows, dict(labels.at().collect()), options.picture)


if __name__ == "__main__":
    main()
