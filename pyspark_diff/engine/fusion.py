"""What is done in the tasks of one Spark job besides taking updates into a node.

The tasks of a job go on, bucket by bucket, with all that is known to take no more than what they
have made: readers of what they wrote, whose other arrangements stand, and operators to which
nothing comes but what one of them gave, by the key that it gave it by. In a loop that goes on into
the next iteration. What comes of it waits until the operator has its turn, and is used iff it is
what would be done then::

    done before its turn = done in its turn,    if what was taken is what there is to take
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Container, Iterable, Mapping, Sequence

from pyspark_diff.engine.graph import SOURCES, Graph
from pyspark_diff.operators.node import Arranged, Keyed, Node, Reader
from pyspark_diff.runners.feed import Feed, UpdateRows
from pyspark_diff.runners.fused import Fused, Reading, Taking
from pyspark_diff.runners.pieces import Given
from pyspark_diff.runners.read import Read
from pyspark_diff.runners.work import BucketResult, Work

#: A node, and the coordinate at which it is visited, packed.
Turn = tuple[Arranged, int]


@dataclass
class Visits:
    """The visits of one coordinate, as far as they are known when a job begins.

    Parameters
    ----------
    code : int
        The coordinate, packed.
    seen : int
        As of `Graph.feeds`.
    emitted : dict of Node to tuple of Feed
        What nodes have given, or will give.
    stands : callable
        Whether nothing comes to an arrangement any more before its readers have their turn.
    read_of : callable
        From a reader, and the arrangements that get updates in the job, to what it reads, without
        these updates; None if that is not known.
    work_of : callable
        From a node to what it does.
    """

    code: int
    seen: int
    emitted: dict[Node, tuple[Feed, ...]]
    stands: Callable[[Arranged], bool]
    read_of: Callable[[Reader, Container[Node]], Read | None]
    work_of: Callable[[Keyed], Work]
    #: Who writes arrangements in the job.
    made: dict[Node, int] = field(default_factory=dict)


def unknown(nodes: Iterable[Node]) -> dict[Node, tuple[Feed, ...]]:
    """Of nodes that have not been visited: something, of which nothing is known. What others only
    pass on follows from it."""
    return {
        node: (Feed(UpdateRows(node.schema)),) for node in nodes if isinstance(node, SOURCES)
    }


class Fusion:
    """The choice of what is done in the tasks of one job.

    Parameters
    ----------
    graph : Graph
    node : Keyed
        What takes updates in.
    visits : Visits
        Those of the coordinate at which it does.
    """

    def __init__(self, graph: Graph, node: Keyed, visits: Visits):
        self._graph = graph
        #: What is done, in order, and when it would be.
        self.turns: dict[Turn, Fused] = {}
        #: What stands for the rows that are given in the job, and who gives them.
        self._given: list[tuple[UpdateRows, Arranged, int]] = []
        self._note(visits, node, 0)

    def follow(self, visits: Visits, nodes: Iterable[Node]) -> None:
        """Add what can be done of some nodes, each behind those that it takes from."""
        for node in nodes:
            found: Fused | None = None
            if isinstance(node, Reader):
                found = self._reading(visits, node)
            elif isinstance(node, Keyed):
                found = self._taking(visits, node)
            if found is not None and isinstance(node, Arranged):
                self.turns[node, visits.code] = found
                self._note(visits, node, len(self.turns))

    def _note(self, visits: Visits, node: Arranged, number: int) -> None:
        visits.made[node] = number
        visits.emitted[node] = ()
        if not (isinstance(node, Keyed) and node.kernel is None):
            rows = UpdateRows(self._graph.form(node).output_schema)
            self._given.append((rows, node, number))
            visits.emitted[node] = (Feed(rows),)

    def _reading(self, visits: Visits, node: Reader) -> Reading | None:
        if node.kernel.by_time:
            return None  # what falls due is in other buckets too
        made = visits.made
        places = {place: made[s] for place, s in enumerate(node.arranged) if s in made}
        if not places or not all(s in made or visits.stands(s) for s in node.arranged):
            return None
        read = visits.read_of(node, made)
        return None if read is None else Reading(read, places)

    def _taking(self, visits: Visits, node: Keyed) -> Taking | None:
        feeds = self._graph.feeds(node.inputs[0], visits.emitted, visits.seen)
        if len(feeds) != 1 or not feeds[0].portable:
            return None
        (feed,) = feeds
        for rows, giver, number in self._given:
            # By other keys it may be in the same buckets all the same, but seldom is.
            if feed.source is rows and giver.key == node.key:
                work = visits.work_of(node)
                split = feed.split(work, self._graph.form(node).input_schema)
                return Taking(work, split, feed.chain, number)
        return None


class Job:
    """What was done in the tasks of one job. It holds state: what was given in turn since then.

    Parameters
    ----------
    node : Keyed
        What took updates in.
    turns : mapping of Turn to Fused
    results : sequence of BucketResult
    """

    def __init__(
        self, node: Keyed, turns: Mapping[Turn, Fused], results: Sequence[BucketResult]
    ):
        self._nodes = [node, *(done for done, _ in turns)]
        self._fused = list(turns.values())
        self._results: list[dict[int, BucketResult]] = [{} for _ in self._nodes]
        for result in results:
            self._results[result.operator][result.bucket] = result
        #: Whose results are what was done in their turn, and whose are not.
        self._used, self._refused = {0}, set[int]()
        #: By whose it is: what was given in its turn, and in which buckets.
        self._given: dict[int, tuple[list[UpdateRows], set[int]]] = {}

    def results(self, number: int) -> list[BucketResult]:
        """What was given by one of them, to be used in its turn."""
        self._used.add(number)
        return list(self._results[number].values())

    def emitted(
        self, node: Arranged, results: Sequence[BucketResult], feeds: Sequence[Feed]
    ) -> None:
        """A node has had its turn."""
        buckets = {result.bucket for result in results if result.output.rows or result.rest}
        for number, one in enumerate(self._nodes):
            if one is node and number not in self._given:
                self._given[number] = [feed.source for feed in feeds], buckets
                break

    def holds(self, number: int) -> bool:
        """Whether all that one of them is made of was what there was."""
        return all(map(self._stands, self._fused[number - 1].needs))

    def _stands(self, number: int) -> bool:
        # What has had no turn, as what came to it was cancelled on the way, must have done nothing.
        done = number in self._refused or bool(self._results[number])
        return number in self._used or not done and self.holds(number)

    def took(self, number: int, feeds: Sequence[Feed]) -> bool:
        """Whether one of them took what comes to it in its turn, and all of that."""
        taking = self._fused[number - 1]
        if not isinstance(taking, Taking) or not self.holds(number):
            return False
        sources, buckets = self._given.get(taking.source, ([], set()))
        whole = len(feeds) == len(sources) and buckets <= self._results[number].keys()
        same = whole and all(
            feed.source is source and (feed.lower, feed.upper) == (None, None)
            and len(feed.chain) == len(taking.chain)
            and all(a is b for a, b in zip(feed.chain, taking.chain))
            for feed, source in zip(feeds, sources)
        )
        if not same:
            self._refused.add(number)
        return same

    def read(self, number: int, bucket: int) -> Read:
        """What a reader of them read in a bucket."""
        reading = self._fused[number - 1]
        if not isinstance(reading, Reading):
            raise TypeError(f"{reading!r} reads nothing")
        nothing = BucketResult(bucket, (), Given(), 0, 0)
        found = [results.get(bucket, nothing) for results in self._results]
        return reading.within(bucket, dict(enumerate(found)))
