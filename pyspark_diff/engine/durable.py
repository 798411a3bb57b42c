"""The stored form of a dataflow's state: text, small batches, and the names of files.

    decoded(encoded(state), nodes) = state      where `nodes` are the program's nodes by number

A commit contains small batches and small waiting tables itself, and the names of larger files.
Nodes have their numbers in the program that ran; its description is stored with the state
(`pyspark_diff.engine.blueprint`). All values are checked when they are read, as they come from a
file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from pyspark_diff import thresholds
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
from pyspark_diff.trace.stored_traces import PayloadPlace, StoredTraces, antichain_told, understood

_T = TypeVar("_T")


@dataclass(frozen=True)
class Encoded:
    """The parts of a state for a commit.

    Parameters
    ----------
    payload : sequence of pyarrow.Buffer
    files : mapping of str to FileInfo
        Files by their names within the store.
    uses : tuple of int
        Numbers of older commits with payloads that the state uses.
    places : mapping of str to PayloadPlace
        The places of small batches by their paths.
    """

    text: bytes
    payload: Sequence[pa.Buffer]
    files: Mapping[str, FileInfo]
    uses: tuple[int, ...]
    places: Mapping[str, PayloadPlace]


def sealed(state: State, directory: Callable[[str], str]) -> State:
    """The state with all waiting rows in small tables and lasting files.

    Parameters
    ----------
    directory : callable
        Returns a new directory of the store.
    """
    known: dict[int, UpdateRows] = {}

    def at_rest(source: UpdateRows) -> UpdateRows:
        if id(source) not in known:
            known[id(source)] = _at_rest(source, directory)
        return known[id(source)]

    def arrivals(waiting: Mapping[Node, tuple[Arrival, ...]]) -> dict[Node, tuple[Arrival, ...]]:
        return {
            node: tuple(replace(arrival, source=at_rest(arrival.source)) for arrival in arrivals_of)
            for node, arrivals_of in waiting.items()
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
        raise TypeError("a stored state has no lazy rows; materialise the rows first")
    if source.table is not None and source.table.nbytes > thresholds.current.commit_table_bytes_max:
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
    """Encodes one state as text, and collects its payload and files."""

    def __init__(
        self, name: Callable[[str], str], number: int, places: Mapping[str, PayloadPlace]
    ):
        self._name, self._number = name, number
        self._known = places
        #: Small batches in the order of the text; new batches have no place yet.
        self._small: dict[str, PayloadPlace | tuple[int, int, int]] = {}
        self._index: dict[str, int] = {}
        self._payload: list[pa.Buffer] = []
        self._files: dict[str, FileInfo] = {}
        self._sources: dict[int, int] = {}
        self._tables: list[dict[str, Any]] = []

    def encoded(self, state: State, program: bytes, settings: Mapping[str, Any]) -> Encoded:
        numbers = {} if state.graph is None else state.graph.program.numbers

        def by_number(
            values: Mapping[Node, _T], encode: Callable[[_T], object]
        ) -> dict[int, object]:
            return {
                numbers[node]: encode(value) for node, value in values.items() if node in numbers
            }

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
                [numbers[shown.node], list(shown.at), self._table(shown.table)]
                for shown in state.shown
            ],
            "outbox": [
                [numbers[delivery.node], list(delivery.at), delivery.epoch, delivery.calls_done,
                 [self._table(table) for table in delivery.tables]]
                for delivery in state.outbox if not delivery.done
            ],
            "offsets": dict(state.offsets),
            "given_to": {
                name: [numbers[changes.node], changes.epoch,
                       None if changes.lower is None else _times(changes.lower),
                       _times(changes.upper), changes.done]
                for name, changes in state.given_to.items() if changes.node in numbers
            },
        }
        # Places in the payload are known only after the whole payload.
        segments = segments_of(self._payload)
        places: dict[str, PayloadPlace] = {}
        for path, place in self._small.items():
            if not isinstance(place, PayloadPlace):
                index, rows, diffs = place
                at = segments[index]
                place = PayloadPlace(self._number, at.offset, at.length, at.checksum, rows, diffs)
            places[path] = place
        for record in self._tables:
            if "index" in record:
                at = segments[record.pop("index")]
                record["place"] = [self._number, at.offset, at.length, at.checksum]
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
            raise TypeError("a stored state has no lazy rows; evaluate the feed first")
        return [self._source(feed.source), feed.lower, feed.upper, _times(feed.until)]

    def _arrivals(self, arrivals: Iterable[Arrival]) -> object:
        return [
            [self._source(arrival.source), arrival.last, arrival.start, arrival.until]
            for arrival in arrivals
        ]

    def _source(self, source: UpdateRows) -> int:
        if id(source) not in self._sources:
            record: dict[str, Any] = {
                "schema": schema_to_json(source.schema.struct), "rows": source.rows
            }
            if source.table is not None:
                record["index"] = self._packed(source.table)
            else:
                record["files"] = [self._table_file(path) for path in source.paths]
            self._sources[id(source)] = len(self._tables)
            self._tables.append(record)
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
    state: State, name: Callable[[str], str], number: int, places: Mapping[str, PayloadPlace],
    program: bytes, settings: Mapping[str, Any],
) -> Encoded:
    """The parts of a state for a commit.

    Parameters
    ----------
    state : State
        The sealed state.
    name : callable
        Returns the name of a file in the store for its path.
    number : int
        The number of the new commit.
    places : mapping of str to PayloadPlace
        Places of small batches in older commits, by their paths.
    program : bytes
        The description of the running program, in one line; empty if nothing has run.
    settings : mapping
        Further values, as JSON.
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
    certificate = storage.certified(path)
    assert certificate is not None  # it is a file of the store
    return certificate[1]


class Decoder(StoredTraces):
    """Decodes the text of a state over the nodes of a program. It has the parameters of
    `StoredTraces`, and is created by `pyspark_diff.trace.stored_traces.stored_traces`.
    """

    @cached_property
    def _sources(self) -> dict[int, UpdateRows]:
        return {}

    def state(self, nodes: Mapping[int, Node], graph: Graph | None) -> State:
        """The state over the nodes of a program by their numbers, without other nodes.

        Raises
        ------
        DamagedStateError
        """
        body = self.body

        def by_node(values: Mapping[str, Any], read: Callable[[Any], _T]) -> dict[Node, _T]:
            return {
                nodes[int(number)]: read(value) for number, value in values.items()
                if int(number) in nodes
            }

        with understood():
            shown = [
                Shown(node, tuple(at), self._table(table)) for number, at, table in body["shown"]
                if isinstance(node := nodes.get(number), Inspect)
            ]
            outbox = []
            for number, at, epoch, calls_done, tables in body["outbox"]:
                node = nodes.get(number)
                if isinstance(node, Inspect):
                    delivery = Delivery(node, [self._table(t) for t in tables], tuple(at), epoch)
                    delivery.calls_done = int(calls_done)
                    outbox.append(delivery)
            return State(
                by_node(body["frontiers"], antichain_told),
                by_node(body["traces"], self._trace),
                by_node(body["pending"], lambda feeds: tuple(map(self._feed, feeds))),
                by_node(body["waiting"], lambda records: tuple(map(self._arrival, records))),
                {},
                tuple(outbox),
                int(body["step"]),
                fed=frozenset(nodes[n] for n in body["given"] if n in nodes),
                graph=graph,
                floors=by_node(body["floors"], antichain_told),
                recent=by_node(body["recent"], lambda records: tuple(map(self._arrival, records))),
                shown=tuple(shown),
                rewinds=frozenset(nodes[n] for n in body["rewinds"] if n in nodes),
                # Commits from before there were sources and sinks have neither.
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

    def _feed(self, record: Any) -> Feed:
        source, lower, upper, until = record
        return Feed(self._source(source), (), lower, upper, antichain_told(until))

    def _arrival(self, record: Any) -> Arrival:
        source, last, start, until = record
        return Arrival(self._source(source), as_time(last), start, until)

    def _source(self, number: int) -> UpdateRows:
        if number not in self._sources:
            record = self.body["sources"][number]
            schema = Schema(schema_from_json(record["schema"]))
            if "place" in record:
                self._sources[number] = UpdateRows(
                    schema, table=self._table(number), rows=record["rows"]
                )
            else:
                for name in record["files"]:
                    self._files[name]  # raises an error unless the commit has this file
                paths = tuple(f"{self._root}/{name}" for name in record["files"])
                self._sources[number] = UpdateRows(schema, paths=paths, rows=record["rows"])
        return self._sources[number]

    def _table(self, number: int) -> pa.Table:
        place = self.body["sources"][number]["place"]
        return pa.ipc.open_file(self._read(*map(int, place))).read_all()
