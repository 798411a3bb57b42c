"""Level 10, graphs: algorithms whose results stay up to date as edges are inserted and removed.

What lives here: a short program of public operators for each algorithm. May import: level 9, and
column checks of lower levels. A user could write every program here.

The law, at every time ``t``::

    at(algorithm(edges), t) = the algorithm, from scratch, on the graph accumulated at t

Edges are a collection with columns ``src`` and ``dst``, or an object with ``vertices`` and
``edges`` (see `pyspark_diff.graphs.edges`).
"""

from pyspark_diff.graphs.bfs import bfs
from pyspark_diff.graphs.clustering import local_clustering
from pyspark_diff.graphs.connected_components import connected_components
from pyspark_diff.graphs.degrees import degrees
from pyspark_diff.graphs.edges import edges_of, nodes_of
from pyspark_diff.graphs.find import find
from pyspark_diff.graphs.graph_diff import GraphDiff
from pyspark_diff.graphs.independent_set import maximal_independent_set
from pyspark_diff.graphs.k_core import k_core, k_core_nodes
from pyspark_diff.graphs.label_propagation import label_propagation
from pyspark_diff.graphs.pagerank import pagerank
from pyspark_diff.graphs.pregel import pregel
from pyspark_diff.graphs.reachability import reachability
from pyspark_diff.graphs.shortest_paths import shortest_paths
from pyspark_diff.graphs.strongly_connected_components import strongly_connected_components
from pyspark_diff.graphs.transitive_closure import transitive_closure
from pyspark_diff.graphs.triangles import triangles
from pyspark_diff.graphs.vertex_program import Pregel

__all__ = [
    "GraphDiff",
    "Pregel",
    "bfs",
    "connected_components",
    "degrees",
    "edges_of",
    "find",
    "k_core",
    "k_core_nodes",
    "label_propagation",
    "local_clustering",
    "maximal_independent_set",
    "nodes_of",
    "pagerank",
    "pregel",
    "reachability",
    "shortest_paths",
    "strongly_connected_components",
    "transitive_closure",
    "triangles",
]
