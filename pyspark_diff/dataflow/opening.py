"""Opening a store: a dataflow continues from the last commit of another application.

    open(path, program)   has the state of the last commit, and no uncommitted update

A store describes its program operator by operator. The same program continues, and a changed one
keeps the state of unchanged operators (`pyspark_diff.engine.blueprint`).
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from pyspark_diff.dataflow import staleness
from pyspark_diff.dataflow.dataflow import BaseDataflow
from pyspark_diff.dataflow.durable import NOTHING, Store
from pyspark_diff.engine.blueprint import Rebuilt, rebuilt
from pyspark_diff.engine.durable import Decoder, encoded
from pyspark_diff.engine.fingerprint import Fingerprint, fingerprints
from pyspark_diff.engine.growth import grown
from pyspark_diff.engine.program import written
from pyspark_diff.engine.state import State
from pyspark_diff.errors import (
    ConcurrentWriteError,
    DiffError,
    NotReadableError,
    ProgramChangedError,
    SchemaError,
    StorageError,
    UnknownOutcomeError,
)
from pyspark_diff.operators.linear import Expression
from pyspark_diff.operators.loop import Variable
from pyspark_diff.operators.node import Linear, Node
from pyspark_diff.operators.projection import Compute, Filter
from pyspark_diff.spark.causes import in_words
from pyspark_diff.spark.session import is_alone
from pyspark_diff.spark.settings import ZONE, Settings, recorded
from pyspark_diff.spark.stored_schema import schema_from_json
from pyspark_diff.trace import storage
from pyspark_diff.trace.commits import Commit, Commits
from pyspark_diff.trace.objects import Objects
from pyspark_diff.trace.roots import objects_at
from pyspark_diff.trace.storage import Storage
from pyspark_diff.trace.stored_traces import stored_traces, understood

_logger = logging.getLogger("pyspark_diff")

OnChange = Literal["refuse", "extend", "rebuild"]
_AnyDataflow = TypeVar("_AnyDataflow", bound=BaseDataflow)


def opened(
    make: Callable[..., _AnyDataflow],
    path: str | os.PathLike[str],
    program: Callable[[_AnyDataflow], object],
    *,
    spark: SparkSession,
    on_change: OnChange,
    retain: int,
    buckets: int | None,
    root: str | None,
    **settings: Any,
) -> _AnyDataflow:
    """The dataflow of a store: see `pyspark_diff.Dataflow.open`.

    Parameters
    ----------
    make : callable
        Returns a dataflow that is private to the process.
    """
    _check_arguments(program, on_change, retain)
    objects = objects_at(path)
    objects.probe()
    commits = Commits(objects)
    last = commits.latest() if commits.exists() else None
    working = Storage(root) if _needs_folder(objects, root, spark) else None
    epoch = 1 if last is None else last.epoch + 1
    files = storage.StoreFiles(objects.root, epoch, working)
    decoder = None
    if last is not None:
        decoder = stored_traces(objects, commits, last, files.directory("small"), Decoder)
    if decoder is not None:
        buckets = _same_buckets(objects, decoder, buckets)
    flow = make(spark, buckets=buckets, **settings)
    prints: Mapping[Node, Fingerprint] = {}
    try:
        if decoder is not None and on_change != "rebuild":
            flow._sources.stored = _columns(decoder)
            flow._sources.stored_offsets = dict(decoder.body.get("offsets", {}))
            flow._sources.rereads = on_change == "extend"
        _write(flow, program)
        while True:
            if last is None or decoder is None:
                state, places = flow._state, {}
                created = _create(flow, commits, files)
                if created is not None:
                    commit = created
                    break
                commits = Commits(objects)
                # Another application has created the store, so this one continues from it.
                last = commits.latest()
                files = storage.StoreFiles(objects.root, last.epoch + 1, working)
                decoder = stored_traces(objects, commits, last, files.directory("small"), Decoder)
                _same_buckets(objects, decoder, flow._buckets)
            state, prints = _restored(flow, objects, decoder, on_change)
            commit, places = commits.open_for_writing(), decoder.places
            if commit.number == last.number + 1:
                break
            # Another application has committed meanwhile, and is fenced now.
            last = commit
            files = storage.StoreFiles(objects.root, last.epoch + 1, working)
            decoder = stored_traces(objects, commits, last, files.directory("small"), Decoder)
        with understood():
            body = {} if decoder is None else decoder.body
            numbers, tokens = [
                {str(name): int(number) for name, number in body.get(part, {}).items()}
                for part in ("numbers", "tokens")
            ]
        flow._storage.close()
        flow._storage = files
        flow._store = Store(objects, commits, commit, files, places, prints, tokens, retain,
                            flow._base)
        flow._go_on(state, numbers)
    except BaseException:
        flow.close()
        files.close()
        raise
    return flow


def _check_arguments(program: object, on_change: str, retain: int) -> None:
    if not callable(program):
        raise SchemaError(
            "open takes the program as a function of the dataflow, def program(flow), and "
            f"not {program!r}"
        )
    if on_change not in ("refuse", "extend", "rebuild"):
        raise ValueError(f"on_change is 'refuse', 'extend' or 'rebuild', not {on_change!r}")
    if retain < 1:
        raise ValueError(f"at least one commit is retained, not {retain}")


def _create(
    flow: BaseDataflow, commits: Commits, files: storage.StoreFiles
) -> Commit | None:
    """The first commit of a new store; None if another application has created the store."""
    nothing = State({}, {}, {}, {})
    text = encoded(nothing, files.name, 0, {}, NOTHING, flow._settings(nothing)).text
    try:
        return commits.make(text)
    except (StorageError, ConcurrentWriteError) as error:
        if isinstance(error, UnknownOutcomeError) or not Commits(commits.objects).exists():
            raise
        return None


def _needs_folder(objects: Objects, root: str | None, spark: SparkSession) -> bool:
    """Whether a step writes the files of a store to a folder, and the commit uploads them.

    Machines without a common folder exchange them through the store instead. An object store in
    memory belongs to one process.
    """
    if not storage.is_remote(objects.root):
        return False
    return root is not None or is_alone(spark) or objects.root.startswith("memory:")


def _columns(decoder: Decoder) -> dict[str, T.StructType]:
    """The columns that a store has for inputs with sources; older stores have none."""
    with understood():
        return {
            str(name): schema_from_json(schema)
            for name, schema in dict(decoder.body.get("columns", {})).items()
        }


def _write(flow: _AnyDataflow, program: Callable[[_AnyDataflow], object]) -> None:
    """Run the function that builds the program.

    Raises
    ------
    ProgramChangedError
        If the program uses a column that a table has gained and the store lacks.
    """
    try:
        flow._write(program)
    except (DiffError, PySparkException) as error:
        for name, columns in flow._sources.left_out.items():
            text = in_words(error)
            used = [c for c in columns if re.search(rf"(?<!\w){re.escape(c)}(?!\w)", text)]
            if used:
                raise ProgramChangedError(
                    f"the program uses column {', '.join(used)} of input {name!r}, which its "
                    f"source has gained and the store lacks: {text}. Nothing has been "
                    "done: open it with on_change='rebuild' to read the source again with all "
                    "columns"
                ) from error
        for name, renamed in flow._sources.renamed.items():
            for new, old in renamed.items():
                if re.search(rf"(?<!\w){re.escape(new)}(?!\w)", text := in_words(error)):
                    raise ProgramChangedError(
                        f"the program uses column {new} of input {name!r}, the new name of "
                        f"{old}: {text}. Nothing has been done. Use {old} in the program; or open "
                        "it with on_change='rebuild' to read the source again"
                    ) from error
        raise


def _same_buckets(objects: Objects, decoder: Decoder, buckets: int | None) -> int:
    with understood():
        there = int(decoder.body["buckets"])
        if not 0 < there <= 1 << 20:
            raise ValueError(f"{there} buckets")
    if buckets not in (None, there):
        raise SchemaError(
            f"the store at {objects.root} has {there} buckets, and that never changes: leave "
            f"buckets={buckets} out, or load a new store"
        )
    return there


def _restored(
    flow: BaseDataflow, objects: Objects, decoder: Decoder, on_change: OnChange
) -> tuple[State, dict[Node, Fingerprint]]:
    """The state of a store, as far as a program reuses it, and the program's fingerprints.

    Raises
    ------
    ProgramChangedError
    """
    with understood():
        stored = {name: str(decoder.body[name]) for name in ("time_type", "time", "diff")}
        base, before = _settings_in(decoder.body, flow._base)
        names = set(dict(decoder.body["kept"]))
        inputs = dict(decoder.body.get("inputs", {}))
        sinks = list(decoder.body.get("sinks", []))
        given_to = {name: entry[0] for name, entry in decoder.body.get("given_to", {}).items()}
        described = json.loads(decoder.program)
    here = flow._settings(flow._state)
    for name, what in ("time_type", "times of type"), ("time", "times in"), ("diff", "diffs in"):
        if here[name] != stored[name]:
            raise SchemaError(
                f"the store at {objects.root} has {what} {stored[name]!r}, and not {here[name]!r}: "
                f"open it with {name}={stored[name]!r}"
            )
    if described is None:
        return flow._state, {}
    program = written(flow._wanted())
    flow._base = base
    prints = fingerprints(program, rows=True, base=base)
    reused = rebuilt(described, program, prints, flow._outputs.called())
    changes = _settings_changed(program.nodes, before, recorded(flow.spark), objects.root)
    changes += _changes(reused, names, set(flow._outputs.names()))
    changes += [f"sink {name!r} is gone" for name in sinks if name not in here["sinks"]]
    changes += [
        f"sink {name!r} is new, and receives its whole collection" for name in here["sinks"]
        if name not in sinks
    ]
    changes += [
        f"sink {name!r} has another collection, and receives all of it" for name in sinks
        if name in here["sinks"] and name in given_to and given_to[name] not in reused.nodes
    ]
    changes += [
        f"input {name!r} has ({here['inputs'][name]}) and had ({inputs.get(name)}), so its source "
        "is read again" for name in sorted(flow._sources.read_again)
    ]
    state = decoder.state(reused.nodes, reused.graph)
    state = replace(state, offsets={
        name: offset for name, offset in state.offsets.items()
        if name not in flow._sources.read_again
    })
    begin = f"the program is not the one that the store at {objects.root} was written by"
    missing: NotReadableError | None = None
    try:
        for name, columns in here["inputs"].items():
            if inputs.get(name, columns) != columns and name not in flow._sources.read_again:
                # As a new input it would begin empty, and so would all dependent collections.
                raise NotReadableError(
                    f"input {name!r} has ({columns}) and had ({inputs[name]}), so its saved state "
                    "cannot be reused"
                )
        grown(flow._wanted(), state.graph, state)
    except NotReadableError as error:
        missing = error
    if missing is not None and on_change != "rebuild":
        fed_again, others = _without_new_parts(flow, described, reused, prints)
        again = [repr(flow._inputs.names()[node]) for node in fed_again]
        rows = decoder.rows() - _rows(decoder.state(others.nodes, others.graph))
        raise ProgramChangedError(
            f"{begin}: {'; '.join(changes)}. No kept collection can fill the new one: {missing}. "
            "Nothing has been done: on_change='rebuild' discards the state of the same inputs, "
            f"{rows} rows of {decoder.rows()}, and these are then fed again from the beginning"
            + (f": {', '.join(again)}" if again else "")
        ) from missing
    if changes and on_change == "refuse":
        raise ProgramChangedError(
            f"{begin}: {'; '.join(changes)}. All else would be kept. Nothing has been done: "
            "on_change='extend' fills new collections from kept ones, which reads at "
            f"most {_rows(state)} rows, and drops the others"
        )
    for change in changes:
        _logger.info("store at %s: %s", objects.root, change)
    if missing is not None:
        state = _anew(flow, described, decoder, reused, prints)
    return state, prints


def _settings_in(
    body: Mapping[str, Any], here: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """The settings that a store's fingerprints are compared with, and the last writer's settings.

    A store of an earlier version has recorded the time zone only.
    """
    if "settings" not in body:
        base = {**here, ZONE: str(body["zone"])}
        return base, base
    base = {str(name): str(value) for name, value in dict(body["settings"]).items()}
    other = {str(name): str(value) for name, value in dict(body["other_settings"]).items()}
    return base, base | other


def _settings_changed(
    nodes: Sequence[Node], before: Mapping[str, str], now: Settings, root: str
) -> list[str]:
    """The settings of the session that have changed and that expressions may depend on."""
    stages = [node.stage for node in nodes if isinstance(node, Linear)]
    read = {
        name for stage in stages if isinstance(stage, (Compute, Expression, Filter))
        for name in stage.other_than(before)
    }
    changes = []
    for name, (value, old) in now.differing(before).items():
        if name in read:
            changes.append(
                f"{name} was {old} and is {value} (spark.conf.set({name!r}, {old!r}) sets it back)"
            )
        else:
            _logger.warning(
                "the store at %s was written with %s = %s, and now it is %s; no expression of the "
                "program depends on it", root, name, old, value,
            )
    return changes


def _anew(
    flow: BaseDataflow, described: Mapping[str, Any], decoder: Decoder, reused: Rebuilt,
    prints: Mapping[Node, Fingerprint],
) -> State:
    """The state without the parts of the program that have a new collection."""
    inputs, reused = _without_new_parts(flow, described, reused, prints)
    flow._inputs.begin_anew(inputs)
    names = [flow._inputs.names()[node] for node in inputs]
    staleness.warn(
        "as the program has changed, collections begin anew that depend on "
        f"{', '.join(map(repr, names)) or 'constants'}: feed these inputs again, from the "
        "beginning; catch_up() reads inputs with a source again"
    )
    state = decoder.state(reused.nodes, reused.graph)
    offsets = {name: at for name, at in state.offsets.items() if name not in names}
    return replace(state, offsets=offsets)


def _without_new_parts(
    flow: BaseDataflow, described: Mapping[str, Any], reused: Rebuilt,
    prints: Mapping[Node, Fingerprint],
) -> tuple[list[Node], Rebuilt]:
    """The inputs of the parts of the program with a new collection, and the reuse of the others."""
    wanted = flow._wanted()
    parts = _parts(written(wanted).nodes)
    fresh = {parts[node] for node in reused.added}
    unchanged = [sink for sink in wanted if parts[sink] not in fresh]
    inputs = [node for node in flow._inputs.nodes() if parts[node] in fresh]
    return inputs, rebuilt(described, written(unchanged), prints)


def _rows(state: State) -> int:
    return sum(trace.rows for trace in state.traces.values())


def _parts(nodes: Sequence[Node]) -> dict[Node, int]:
    """The number of the connected part of each node of a program."""
    members: dict[Node, list[Node]] = {}
    for node in nodes:
        sources = list(node.inputs)
        if isinstance(node, Variable) and node.result is not None:
            sources.append(node.result)
        parts = {id(part): part for n in (node, *sources) for part in [members.setdefault(n, [n])]}
        whole = [n for part in parts.values() for n in part]
        members.update(dict.fromkeys(whole, whole))
    return {node: id(part) for node, part in members.items()}


def _changes(reused: Rebuilt, before: set[str], now: set[str]) -> list[str]:
    """The changes of a program, in words."""
    changes = list(reused.reasons)
    changes += [f"no collection is kept as {name!r} any more" for name in sorted(before - now)]
    changes += [f"a collection is kept as {name!r} now" for name in sorted(now - before)]
    return changes
