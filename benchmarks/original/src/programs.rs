//! The programs: what is computed of pairs, and nothing else.
//!
//! Each answers with pairs, too. They are written as its own examples and its book write them.

use differential_dataflow::algorithms::graphs::{bfs, propagate};
use differential_dataflow::input::Input;
use differential_dataflow::operators::{CountTotal, Iterate};
use differential_dataflow::VecCollection;
use timely::dataflow::Scope;

/// As wide as the columns of the files.
pub type Id = i64;
pub type Pair = (Id, Id);
pub type Time = u64;
pub type Pairs<'scope> = VecCollection<'scope, Time, Pair, isize>;

const ROOT: Id = 0;
const K: isize = 5;

/// A program by its name; None if there is none.
pub fn program<'scope>(
    name: &str,
    scope: Scope<'scope, Time>,
    edges: Pairs<'scope>,
) -> Option<Pairs<'scope>> {
    Some(match name {
        "degrees" => degrees(edges),
        "degrees_total" => degrees_total(edges),
        "skip_level" => skip_level(edges),
        "bfs" => distances(scope, edges),
        "k_core" => k_core(edges),
        "components" => components(edges),
        "reachability" => reachability(scope, edges),
        _ => return None,
    })
}

/// How many nodes have each degree.
fn degrees(edges: Pairs) -> Pairs {
    edges
        .map(|(src, _)| src)
        .count()
        .map(|(_, degree)| degree as Id)
        .count()
        .map(|(degree, nodes)| (degree, nodes as Id))
}

/// The same, for times in a row.
fn degrees_total(edges: Pairs) -> Pairs {
    edges
        .map(|(src, _)| src)
        .count_total()
        .map(|(_, degree)| degree as Id)
        .count_total()
        .map(|(degree, nodes)| (degree, nodes as Id))
}

/// Everyone's manager's manager, of pairs (manager, person).
fn skip_level(manages: Pairs) -> Pairs {
    manages
        .clone()
        .map(|(boss, manager)| (manager, boss))
        .join_map(manages, |_, boss, person| (*boss, *person))
}

/// Distances from the root, while the number of nodes at each is followed.
fn distances<'scope>(scope: Scope<'scope, Time>, edges: Pairs<'scope>) -> Pairs<'scope> {
    let (_, roots) = scope.new_collection_from([ROOT]);
    let distances = bfs::bfs(edges, roots).map(|(node, distance)| (node, distance as Id));
    let nodes = distances.clone().map(|(_, distance)| distance).count();
    // Nothing is added to the answer: it is complete once the numbers are.
    distances.concat(nodes.filter(|_| false).map(|(distance, _)| (distance, distance)))
}

/// The edges of the k-core of the graph taken as undirected and simple, the smaller end first.
fn k_core(edges: Pairs) -> Pairs {
    let simple = edges
        .filter(|(a, b)| a != b)
        .map(|(a, b)| (a.min(b), a.max(b)))
        .distinct();
    simple.clone().iterate(|scope, kept| {
        let active = kept
            .flat_map(|(a, b)| [a, b])
            .threshold(|_, degree| if *degree >= K { 1 } else { 0 });
        simple
            .enter(scope)
            .semijoin(active.clone())
            .map(|(a, b)| (b, a))
            .semijoin(active)
            .map(|(b, a)| (a, b))
    })
}

/// The smallest node that each node is connected with.
///
/// Small labels go first, so that most of the others never set out: with all at once, as in
/// `propagate`, the load of a graph of 1M nodes and 5M edges takes nine times as long.
fn components(edges: Pairs) -> Pairs {
    let arcs = edges.clone().concat(edges.map(|(a, b)| (b, a)));
    let labels = arcs
        .clone()
        .map(|(node, _)| node)
        .distinct()
        .map(|node| (node, node));
    propagate::propagate_at(arcs, labels, |label| *label as u64)
}

/// The nodes that can be reached from the root, and the root.
fn reachability<'scope>(scope: Scope<'scope, Time>, edges: Pairs<'scope>) -> Pairs<'scope> {
    let (_, roots) = scope.new_collection_from([ROOT]);
    roots
        .clone()
        .iterate(|scope, reached| {
            edges
                .enter(scope)
                .semijoin(reached)
                .map(|(_, node)| node)
                .concat(roots.enter(scope))
                .distinct()
        })
        .map(|node| (node, ROOT))
}
