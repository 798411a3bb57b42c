"""The state of a dataflow as a commit holds it: text, small batches, and the names of files.

    decoded(encoded(state), nodes) = state        where `nodes` are those of the program by number

Small batches and tables that wait travel in the commit itself, large ones are files that it names.
Nodes are known by their numbers in the program that ran, of which a description comes with it
(`pyspark_diff.engine.blueprint`). What is read is checked like any other input: it is a file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from pyspark_diff.engine.graph import Graph
from pyspark_diff.engine.state import Arrival, Delivery, Shown, SinkChanges, State
from pyspark_diff.kernels import ipc
from pyspark_diff.kernels.layout import as_int64
from pyspark_diff.kernels.updates import sum_of
from pyspark_diff.operators.inspect import Inspect
from pyspark_diff.operators.node import Node
from pyspark_diff.runners.feed import Feed, UpdateRows
from pyspark_diff.spark.schema import DIFF, Schema
from pyspark_diff.spark.stored_schema import schema_from_json, schema_to_json
from pyspark_diff.times import Antichain, as_time
from pyspark_diff.trace import storage
from pyspark_diff.trace.batch import Batch, BatchFile
from pyspark_diff.trace.manifest import FileInfo, segments_of
from pyspark_diff.trace.spine import Trace
from pyspark_diff.trace.stored_traces import Place, StoredTraces, antichain_told, understood

#: Tables of more bytes are files of their own.
TABLE_BYTES = 1 << 22

_T = TypeVar("_T")


@dataclass(frozen=True)
class Encoded:
    """What is to be committed of a state.

    Parameters
    ----------
    text : bytes
    payload : sequence of pyarrow.Buffer
    files : mapping of str to FileInfo
        By their names within the store.
    uses : tuple of int
        Older commits in whose payloads some of it lies.
    places : mapping of str to Place
        Of the paths of small batches.
    """

    text: bytes
    payload: Sequence[pa.Buffer]
    files: Mapping[str, FileInfo]
    uses: tuple[int, ...]
    places: Mapping[str, Place]


def sealed(state: State, directory: Callable[[str], str]) -> State:
    """The state with everything that waits at rest: small tables, and files that last.

    Parameters
    ----------
    state : State
    directory : callable
        Gives a new directory of the store.
    """
    known: dict[int, UpdateRows] = {}

    def at_rest(source: UpdateRows) -> UpdateRows:
        if id(source) not in known:
            known[id(source)] = _at_rest(source, directory)
        return known[id(source)]

    def arrivals(of: Mapping[Node, tuple[Arrival, ...]]) -> dict[Node, tuple[Arrival, ...]]:
        return {
            node: tuple(replace(one, source=at_rest(one.source)) for one in held)
            for node, held in of.items()
        }

    if not (
        any(state.pending.values()) or any(state.waiting.values()) or any(state.recent.values())
    ):
        return state
    pending = {
        node: tuple(replace(feed, source=at_rest(feed.source)) for feed in feeds)
        for node, feeds in state.pending.items()
    }
    return replace(
        state, pending=pending, waiting=arrivals(state.waiting), recent=arrivals(state.recent)
    )


def _at_rest(source: UpdateRows, directory: Callable[[str], str]) -> UpdateRows:
    if source.passing:
        raise TypeError("a state holds nothing that has to be evaluated")
    if source.table is not None and source.table.nbytes > TABLE_BYTES:
        path = f"{directory('waiting')}/rows.arrow"
        path, _ = storage.write_lasting(path, source.table.combine_chunks())
        return replace(source, table=None, paths=(path,))
    if all(storage.certified(path) for path in source.paths):
        return source
    paths = []
    for path in source.paths:
        if storage.certified(path) is None:
            table = storage.read_table(path)
            path, _ = storage.write_lasting(path, table.combine_chunks())
        paths.append(path)
    return replace(source, paths=tuple(paths))


class _Encoder:
    """Makes the text of one state; gathers what lies beside it."""

    def __init__(
        self, name: Callable[[str], str], number: int, places: Mapping[str, Place]
    ):
        self._name, self._number = name, number
        self._known = places
        #: Of small batches in the order of the text; those that are new have no place yet.
        self._small: dict[str, Place | tuple[int, int, int]] = {}
        self._index: dict[str, int] = {}
        self._payload: list[pa.Buffer] = []
        self._files: dict[str, FileInfo] = {}
        self._sources: dict[int, int] = {}
        self._tables: list[dict[str, Any]] = []

    def encoded(self, state: State, program: bytes, settings: Mapping[str, Any]) -> Encoded:
        numbers = {} if state.graph is None else state.graph.program.numbers

        def by_number(values: Mapping[Node, _T], told: Callable[[_T], object]) -> dict[int, object]:
            return {numbers[node]: told(one) for node, one in values.items() if node in numbers}

        body = {
            **settings,
            "step": state.epoch,
            "frontiers": by_number(state.frontiers, _times),
            "traces": by_number(state.traces, self._trace),
            "pending": by_number(state.pending, lambda feeds: [self._feed(f) for f in feeds]),
            "waiting": by_number(state.waiting, self._arrivals),
            "recent": by_number(state.recent, self._arrivals),
            "floors": by_number(state.floors, _times),
            "given": sorted(numbers[node] for node in state.fed if node in numbers),
            "rewinds": sorted(numbers[node] for node in state.rewinds),
            "shown": [
                [numbers[one.node], list(one.at), self._table(one.table)] for one in state.shown
            ],
            "outbox": [
                [numbers[one.node], list(one.at), one.epoch, one.calls_done,
                 [self._table(table) for table in one.tables]]
                for one in state.outbox if not one.done
            ],
            "offsets": dict(state.offsets),
            "given_to": {
                name: [numbers[one.node], one.epoch,
                       None if one.lower is None else _times(one.lower), _times(one.upper),
                       one.done]
                for name, one in state.given_to.items() if one.node in numbers
            },
        }
        # Where things lie in the payload is known when all of it is.
        segments = segments_of(self._payload)
        places: dict[str, Place] = {}
        for path, place in self._small.items():
            if not isinstance(place, Place):
                index, rows, diffs = place
                at = segments[index]
                place = Place(self._number, at.offset, at.length, at.checksum, rows, diffs)
            places[path] = place
        for told in self._tables:
            if "index" in told:
                at = segments[told.pop("index")]
                told["place"] = [self._number, at.offset, at.length, at.checksum]
        body["small"] = [
            [p.commit, p.offset, p.length, p.checksum, p.rows, p.diffs] for p in places.values()
        ]
        body["sources"] = self._tables
        text = json.dumps(body, separators=(",", ":")).encode()
        uses = {place.commit for place in places.values()} - {self._number}
        return Encoded(
            program + b"\n" + text, self._payload, self._files, tuple(sorted(uses)), places
        )

    def _trace(self, trace: Trace) -> object:
        return [
            _times(trace.lower), _times(trace.upper), _times(trace.since),
            [self._batch(batch) for batch in trace.batches],
        ]

    def _batch(self, batch: Batch) -> object:
        at = batch.description
        return [
            _times(at.lower), _times(at.upper), _times(at.since),
            {bucket: [self._file(file) for file in files] for bucket, files in batch.files.items()},
        ]

    def _file(self, file: BatchFile) -> object:
        if storage.certified(file.path) is not None:
            name = self._name(file.path)
            self._files[name] = FileInfo(file.size, file.rows, file.diffs)
            return name
        if file.path not in self._index:
            self._index[file.path] = len(self._index)
            place = self._known.get(file.path)
            if place is not None:
                self._small[file.path] = place
            else:
                updates = storage.open_updates(file.path)
                self._small[file.path] = (len(self._payload), len(updates), sum_of(updates))
                self._payload.append(_ipc(ipc.to_batch(updates)))
        return self._index[file.path]

    def _feed(self, feed: Feed) -> object:
        if feed.chain:
            raise TypeError("a state holds nothing that has to be evaluated")
        return [self._source(feed.source), feed.lower, feed.upper, _times(feed.until)]

    def _arrivals(self, arrivals: Iterable[Arrival]) -> object:
        return [
            [self._source(one.source), one.last, one.start, one.until] for one in arrivals
        ]

    def _source(self, source: UpdateRows) -> int:
        if id(source) not in self._sources:
            told: dict[str, Any] = {"schema": schema_to_json(source.schema.struct),
                                    "rows": source.rows}
            if source.table is not None:
                told["index"] = self._packed(source.table)
            else:
                told["files"] = [self._table_file(path) for path in source.paths]
            self._sources[id(source)] = len(self._tables)
            self._tables.append(told)
        return self._sources[id(source)]

    def _table(self, table: pa.Table) -> int:
        self._tables.append({"index": self._packed(table), "rows": table.num_rows})
        return len(self._tables) - 1

    def _packed(self, table: pa.Table) -> int:
        self._payload.append(_ipc(table))
        return len(self._payload) - 1

    def _table_file(self, path: str) -> str:
        name = self._name(path)
        table = storage.read_table(path)
        diffs = as_int64(table[DIFF].combine_chunks()).to_numpy().sum(dtype=np.int64)
        self._files[name] = FileInfo(_length(path), table.num_rows, int(diffs))
        return name


def encoded(
    state: State, name: Callable[[str], str], number: int, places: Mapping[str, Place],
    program: bytes, settings: Mapping[str, Any],
) -> Encoded:
    """What is to be committed of a state.

    Parameters
    ----------
    state : State
        Sealed.
    name : callable
        What the store calls a file, given its path.
    number : int
        Of the commit that it will be.
    places : mapping of str to Place
        Small batches that older commits hold, by their paths.
    program : bytes
        The description of what runs, in one line; of nothing if nothing has run.
    settings : mapping
        What else is to be known, as JSON has it.
    """
    return _Encoder(name, number, places).encoded(state, program, settings)


def _times(frontier: Antichain) -> list[Any]:
    return list(frontier.elements)


def _ipc(batch: pa.RecordBatch | pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write(batch)
    return sink.getvalue()


def _length(path: str) -> int:
    told = storage.certified(path)
    assert told is not None  # it is one of the store
    return told[1]


class Decoder(StoredTraces):
    """Reads the text of a state, over the nodes of a program. Its parameters are as of
    `StoredTraces`, and `pyspark_diff.trace.stored_traces.stored_traces` makes it.
    """

    @cached_property
    def _sources(self) -> dict[int, UpdateRows]:
        return {}

    def state(self, nodes: Mapping[int, Node], graph: Graph | None) -> State:
        """The state, over the nodes of a program by their numbers; those that are not in it are
        left out.

        Raises
        ------
        DamagedStateError
        """
        body = self.body

        def by_node(told: Mapping[str, Any], read: Callable[[Any], _T]) -> dict[Node, _T]:
            return {
                nodes[int(number)]: read(one) for number, one in told.items()
                if int(number) in nodes
            }

        with understood():
            shown = [
                Shown(node, tuple(at), self._table(table)) for number, at, table in body["shown"]
                if isinstance(node := nodes.get(number), Inspect)
            ]
            outbox = []
            for number, at, epoch, given, tables in body["outbox"]:
                node = nodes.get(number)
                if isinstance(node, Inspect):
                    found = Delivery(node, [self._table(t) for t in tables], tuple(at), epoch)
                    found.calls_done = int(given)
                    outbox.append(found)
            return State(
                by_node(body["frontiers"], antichain_told),
                by_node(body["traces"], self._trace),
                by_node(body["pending"], lambda feeds: tuple(map(self._feed, feeds))),
                by_node(body["waiting"], lambda held: tuple(map(self._arrival, held))),
                {},
                tuple(outbox),
                int(body["step"]),
                fed=frozenset(nodes[n] for n in body["given"] if n in nodes),
                graph=graph,
                floors=by_node(body["floors"], antichain_told),
                recent=by_node(body["recent"], lambda held: tuple(map(self._arrival, held))),
                shown=tuple(shown),
                rewinds=frozenset(nodes[n] for n in body["rewinds"] if n in nodes),
                # Those of before there were sources and sinks have neither.
                offsets=dict(body.get("offsets", {})),
                given_to={
                    str(name): SinkChanges(
                        nodes[number], int(epoch), None if lower is None else antichain_told(lower),
                        antichain_told(upper), done is True,
                    )
                    for name, (number, epoch, lower, upper, done)
                    in body.get("given_to", {}).items() if number in nodes
                },
            )

    def _feed(self, told: Any) -> Feed:
        source, lower, upper, until = told
        return Feed(self._source(source), (), lower, upper, antichain_told(until))

    def _arrival(self, told: Any) -> Arrival:
        source, last, taken, until = told
        return Arrival(self._source(source), as_time(last), taken, until)

    def _source(self, number: int) -> UpdateRows:
        if number not in self._sources:
            told = self.body["sources"][number]
            schema = Schema(schema_from_json(told["schema"]))
            if "place" in told:
                self._sources[number] = UpdateRows(
                    schema, table=self._table(number), rows=told["rows"]
                )
            else:
                for name in told["files"]:
                    self._files[name]  # it is one of those that the commit names
                paths = tuple(f"{self._root}/{name}" for name in told["files"])
                self._sources[number] = UpdateRows(schema, paths=paths, rows=told["rows"])
        return self._sources[number]

    def _table(self, number: int) -> pa.Table:
        place = self.body["sources"][number]["place"]
        return pa.ipc.open_file(self._read(*map(int, place))).read_all()
