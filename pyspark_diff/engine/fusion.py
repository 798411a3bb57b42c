"""Fusion: the operators that run in the tasks of one Spark job, after the job's own operator.

After a task has arranged the updates of a bucket, it runs further operators in the bucket, if they
are known to need no other updates than those of the task. A reader needs arrangements that the task
wrote, or that no longer change. An arranging operator needs only the output of one operator of the
task, by the same key. In a loop this continues into the next iteration. The result of an operator
waits for the operator's turn, and is used iff it equals the result of a run then::

    result before the turn = result in the turn,    if the early input is the whole input
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Container, Iterable, Mapping, Sequence

from pyspark_diff.engine.graph import SOURCES, Graph
from pyspark_diff.operators.node import Arranged, Keyed, Node, Reader
from pyspark_diff.runners.feed import Feed, UpdateRows
from pyspark_diff.runners.fused import Fused, FusedReader, Taking
from pyspark_diff.runners.pieces import Given
from pyspark_diff.runners.read import Read
from pyspark_diff.runners.work import BucketResult, Work

#: A node, and the packed coordinate of a visit.
Turn = tuple[Arranged, int]


@dataclass
class Visits:
    """The visits at one coordinate, as far as a job knows them when it begins.

    Parameters
    ----------
    code : int
        The packed coordinate.
    min_depth : int
        As for `Graph.feeds`.
    emitted : dict of Node to tuple of Feed
        Present and expected outputs of nodes.
    is_final : callable
        Whether an arrangement gets no further updates before its readers have their turn.
    read_of : callable
        The work of a reader, for the reader and the arrangements that the job writes, without the
        updates of the job; None if it is not known.
    work_of : callable
        The work of an arranging node.
    """

    code: int
    min_depth: int
    emitted: dict[Node, tuple[Feed, ...]]
    is_final: Callable[[Arranged], bool]
    read_of: Callable[[Reader, Container[Node]], Read | None]
    work_of: Callable[[Keyed], Work]
    #: Numbers of the operators that write arrangements in the job.
    writers: dict[Node, int] = field(default_factory=dict)


def unknown(nodes: Iterable[Node]) -> dict[Node, tuple[Feed, ...]]:
    """A placeholder feed for each unvisited node that emits updates; the feeds of other nodes
    follow from these."""
    return {
        node: (Feed(UpdateRows(node.schema)),) for node in nodes if isinstance(node, SOURCES)
    }


class Fusion:
    """The choice of the operators that run in the tasks of one job.

    Parameters
    ----------
    node : Keyed
        The operator of the job.
    visits : Visits
        The visits at the coordinate of the job.
    """

    def __init__(self, graph: Graph, node: Keyed, visits: Visits):
        self._graph = graph
        #: The chosen operators in order, by their turns.
        self.turns: dict[Turn, Fused] = {}
        #: Placeholders of the job's outputs, with their nodes and numbers.
        self._outputs: list[tuple[UpdateRows, Arranged, int]] = []
        self._note(visits, node, 0)

    def follow(self, visits: Visits, nodes: Iterable[Node]) -> None:
        """Add some nodes as far as they can be fused; each node follows its inputs."""
        for node in nodes:
            operator: Fused | None = None
            if isinstance(node, Reader):
                operator = self._reading(visits, node)
            elif isinstance(node, Keyed):
                operator = self._taking(visits, node)
            if operator is not None and isinstance(node, Arranged):
                self.turns[node, visits.code] = operator
                self._note(visits, node, len(self.turns))

    def _note(self, visits: Visits, node: Arranged, number: int) -> None:
        visits.writers[node] = number
        visits.emitted[node] = ()
        if not (isinstance(node, Keyed) and node.kernel is None):
            rows = UpdateRows(self._graph.form(node).output_schema)
            self._outputs.append((rows, node, number))
            visits.emitted[node] = (Feed(rows),)

    def _reading(self, visits: Visits, node: Reader) -> FusedReader | None:
        if node.kernel.by_time:
            return None  # records that fall due are in other buckets too
        writers = visits.writers
        places = {place: writers[s] for place, s in enumerate(node.arranged) if s in writers}
        if not places or not all(s in writers or visits.is_final(s) for s in node.arranged):
            return None
        read = visits.read_of(node, writers)
        return None if read is None else FusedReader(read, places)

    def _taking(self, visits: Visits, node: Keyed) -> Taking | None:
        feeds = self._graph.feeds(node.inputs[0], visits.emitted, visits.min_depth)
        if len(feeds) != 1 or not feeds[0].portable:
            return None
        (feed,) = feeds
        for rows, source, number in self._outputs:
            # An equal bucket with another key is possible, but rare.
            if feed.source is rows and source.key == node.key:
                work = visits.work_of(node)
                split = feed.split(work, self._graph.form(node).input_schema)
                return Taking(work, split, feed.chain, number)
        return None


class Job:
    """The results of one job. It holds state: the outputs of its operators in their turns.

    Parameters
    ----------
    node : Keyed
        The operator of the job.
    """

    def __init__(
        self, node: Keyed, turns: Mapping[Turn, Fused], results: Sequence[BucketResult]
    ):
        self._nodes = [node, *(done for done, _ in turns)]
        self._fused = list(turns.values())
        self._results: list[dict[int, BucketResult]] = [{} for _ in self._nodes]
        for result in results:
            self._results[result.operator][result.bucket] = result
        #: Numbers of operators with used results, and with refused results.
        self._used, self._refused = {0}, set[int]()
        #: Outputs of operators in their turns, with the buckets that have them.
        self._outputs: dict[int, tuple[list[UpdateRows], set[int]]] = {}

    def results(self, number: int) -> list[BucketResult]:
        """The results of an operator, for use in its turn."""
        self._used.add(number)
        return list(self._results[number].values())

    def emitted(
        self, node: Arranged, results: Sequence[BucketResult], feeds: Sequence[Feed]
    ) -> None:
        """Note the output of a node in its turn."""
        buckets = {result.bucket for result in results if result.output.rows or result.rest}
        for number, fused in enumerate(self._nodes):
            if fused is node and number not in self._outputs:
                self._outputs[number] = [feed.source for feed in feeds], buckets
                break

    def is_valid(self, number: int) -> bool:
        """Whether an operator's early input was its whole input."""
        return all(map(self._is_final, self._fused[number - 1].needs))

    def _is_final(self, number: int) -> bool:
        # An operator without a turn, since its input cancelled out, must have had no result.
        done = number in self._refused or bool(self._results[number])
        return number in self._used or not done and self.is_valid(number)

    def took(self, number: int, feeds: Sequence[Feed]) -> bool:
        """Whether an operator's early input was exactly its input in its turn."""
        taking = self._fused[number - 1]
        if not isinstance(taking, Taking) or not self.is_valid(number):
            return False
        sources, buckets = self._outputs.get(taking.source, ([], set()))
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
        """The work of a reader in a bucket."""
        reading = self._fused[number - 1]
        if not isinstance(reading, FusedReader):
            raise TypeError(f"{reading!r} reads no arrangement")
        nothing = BucketResult(bucket, (), Given(), 0, 0)
        results_by_operator = [results.get(bucket, nothing) for results in self._results]
        return reading.for_bucket(bucket, dict(enumerate(results_by_operator)))
