"""The share of nodes whose Louvain community changes with one edge, as a bound for maintaining it.

    python benchmarks/louvain.py

Modularity divides by the weight of all edges, so each edge changes the gain of each move. The
script computes communities with networkx before and after one replaced edge. A maintained answer
would have to write at least the changed nodes. The name of a community is its smallest node.
"""

from __future__ import annotations

import random
import statistics

import networkx as nx

#: The seed of Louvain's order of nodes, the same before and after a change.
SEED = 1
CHANGES = 8
GRAPHS = {
    "random": nx.gnm_random_graph(5_000, 25_000, seed=3),
    "preferential attachment": nx.barabasi_albert_graph(5_000, 5, seed=3),
    "50 planted communities": nx.planted_partition_graph(50, 100, 0.1, 0.001, seed=3),
    "250 planted communities": nx.random_partition_graph([20] * 250, 0.3, 0.0008, seed=3),
}


def communities(graph: nx.Graph) -> dict[int, int]:
    """Return the smallest node of each node's community."""
    parts = nx.community.louvain_communities(graph, seed=SEED)
    return {node: min(part) for part in parts for node in part}


def changed_shares(graph: nx.Graph) -> list[float]:
    """Return the share of nodes with another community, for each of some replaced edges."""
    before, shares = communities(graph), []
    for seed in range(CHANGES):
        choice, other = random.Random(seed), graph.copy()
        other.remove_edge(*choice.choice(sorted(graph.edges)))
        other.add_edge(*choice.sample(sorted(graph.nodes), 2))
        after = communities(other)
        shares.append(sum(before[node] != after[node] for node in graph) / len(graph))
    return shares


def main() -> None:
    for name, graph in GRAPHS.items():
        shares = changed_shares(graph)
        print(
            f"{name}: {graph.number_of_edges()} edges, "
            f"median {statistics.median(shares):.2f}, most {max(shares):.2f}"
        )


if __name__ == "__main__":
    main()
