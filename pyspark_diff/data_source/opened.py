"""The plan of a read of a kept collection at a commit, and the values that tasks receive.

    rows of a bucket  =  the rows that `Rows` decodes from the updates in the bucket's parts

A plan names files by their certified names, and small batches by their places in commits, so that
a task needs only the store.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Union

import pyarrow as pa
from pyspark.sql import types as T

from pyspark_diff import thresholds
from pyspark_diff.data_source.options import Options
from pyspark_diff.errors import DamagedStateError, NotReadableError, SchemaError
from pyspark_diff.kernels import ipc
from pyspark_diff.kernels.layout import Layout
from pyspark_diff.kernels.updates import UpdateChunk, joined
from pyspark_diff.spark.data_types import arrow_schema
from pyspark_diff.spark.values import filled
from pyspark_diff.trace import storage
from pyspark_diff.trace.batch import Batch
from pyspark_diff.trace.commits import Commit, Commits
from pyspark_diff.trace.kept import KeptCollection, kept_collection
from pyspark_diff.trace.manifest import Segment
from pyspark_diff.trace.objects import Objects
from pyspark_diff.trace.read_holds import ReadHold, read_with_hold
from pyspark_diff.trace.roots import objects_at
from pyspark_diff.trace.stored_traces import PayloadPlace, StoredTraces, stored_traces

#: The options of reads.
READ = ("path", "name", "shape", "time", "commit", "since", "until", "start", "allowNegative",
        "holdSeconds")
#: The shapes of rows.
SHAPES = ("rows", "changes", "cdc")
CHANGE_TYPE, COMMIT_VERSION = "_change_type", "_commit_version"

#: A part of a bucket: a file, by its path, or a small batch in a commit.
Held = Union[str, PayloadPlace]


@dataclass(frozen=True)
class Pin:
    """The commit that a frame reads, and the hold on it."""

    commit: int
    hold: str
    until: float


class OpenedCollection:
    """A kept collection at a commit with a hold.

    Parameters
    ----------
    pin : Pin or int, optional
        The commit, and the hold on it if there is one; by default the latest commit.
    """

    def __init__(self, options: Options, pin: Pin | int | None = None):
        path = options.store()
        name = options.needed("name", "under which the collection was kept")
        self.objects: Objects = objects_at(path)
        self.commits = Commits(self.objects)
        self.commit, self.hold = _hold(self.objects, self.commits, pin, options.seconds())
        own = f"/held/{secrets.token_hex(8)}"
        self._decoder = stored_traces(
            self.objects, self.commits, self.commit, own, StoredTraces
        )
        try:
            self.kept: KeptCollection = kept_collection(
                self._decoder, name, f"commit {self.commit.number} of {self.objects.root}"
            )
            self.places = dict(self._decoder.places)
        finally:
            storage.remove_files(list(self._decoder.places))  # frees their memory
        if self.kept.times is not None:
            self.hold.release()
            raise NotReadableError(
                f"the times of this store are structs, {self.kept.times.simpleString()}: a record "
                "has times in several buckets, and this source reads bucket by bucket. Read it "
                "with StateReader(path, spark=spark)[name]: .at(time), .changes(since, until)"
            )
        if len(set(map(str.lower, self.kept.columns))) < len(self.kept.columns):
            raise SchemaError(
                f"{name!r} has columns of one name: {', '.join(self.kept.columns)}. Rename them "
                "where it is kept, or read it with StateReader"
            )

    @property
    def program(self) -> bytes:
        """The commit's description of its program."""
        return self._decoder.program

    def next_to_do(self) -> str:
        """The sentence about the commit in messages."""
        return f"This is the state at commit {self.commit.number}"

    def struct(self, shape: str) -> T.StructType:
        """The columns of the rows in a shape."""
        fields = list(self.kept.struct.fields)
        arrangement = self.kept.arrangement
        if shape == "changes":
            fields += [
                T.StructField(arrangement.time, arrangement.time_type.kind, False),
                T.StructField(arrangement.diff, T.LongType(), False),
            ]
        if shape == "cdc":
            fields += [
                T.StructField(CHANGE_TYPE, T.StringType(), False),
                T.StructField(COMMIT_VERSION, T.LongType(), False),
            ]
        names = [field.name.lower() for field in fields]
        if len(set(names)) < len(names):
            raise SchemaError(
                f"a column has the name of a column that shape {shape!r} adds: "
                f"{', '.join(field.name for field in fields)}. Rename it where it is kept"
            )
        if not fields:
            raise SchemaError(
                "this collection has no columns, and Spark's data sources read no rows without "
                "columns; read it with StateReader"
            )
        return T.StructType(fields)

    def checked(self, schema: T.StructType, shape: str) -> None:
        """Refuse a schema that differs from the collection's.

        Raises
        ------
        SchemaError
        """
        wanted = self.struct(shape)
        if [(f.name, f.dataType.simpleString()) for f in schema.fields] != [
            (f.name, f.dataType.simpleString()) for f in wanted.fields
        ]:
            raise SchemaError(
                f"the collection has the columns {wanted.simpleString()} at commit "
                f"{self.commit.number}, and it is read as {schema.simpleString()}: leave the "
                "schema out. If the columns have changed, begin a stream anew with another "
                "checkpoint"
            )

    def rows(self, shape: str) -> Rows:
        """The decoder of rows for tasks."""
        arrangement = self.kept.arrangement
        names = dict(zip(arrangement.schema.names, self.kept.columns))
        return Rows(
            self.objects.root, arrangement.layout, tuple(names[n] for n in arrangement.stored),
            len(arrangement.key), self.struct(shape), shape, self.commit.number,
            arrangement.time_type.arrow,
        )

    def parts(self, batches: Sequence[Batch]) -> dict[int, list[Held]]:
        """The parts of each bucket that has any, oldest first."""
        by_bucket: dict[int, list[Held]] = {}
        for batch in batches:
            for bucket, files in batch.files.items():
                for file in files:
                    part = self.places.get(file.path, file.path)
                    by_bucket.setdefault(bucket, []).append(part)
        return by_bucket


def _hold(
    objects: Objects, commits: Commits, pin: Pin | int | None, seconds: float
) -> tuple[Commit, ReadHold]:
    if isinstance(pin, Pin):
        hold = ReadHold(objects, pin.hold, pin.commit, seconds, pin.until)
        try:
            hold.renew()
            return commits.read(pin.commit), hold
        except NotReadableError:
            pass  # the hold has expired, and the commit may still be readable
    return read_with_hold(objects, commits, pin.commit if isinstance(pin, Pin) else pin, seconds)


def planned(given: Mapping[str, str]) -> tuple[T.StructType, Pin]:
    """The columns of a read by its options, and its commit, with a new hold."""
    options = Options(given, READ, "a read")
    shape = shape_of(options)
    collection = OpenedCollection(options, options.whole("commit"))
    hold = collection.hold
    try:
        return collection.struct(shape), Pin(collection.commit.number, hold.name, hold.until)
    except BaseException:
        hold.release()
        raise


def shape_of(options: Options) -> str:
    """The shape of rows: by default changes if the options have an interval."""
    if options.get("shape") is None and (options.get("since") or options.get("until")):
        return "changes"
    return options.one_of("shape", *SHAPES)


@dataclass(frozen=True)
class Rows:
    """Decodes updates to rows in a task.

    Parameters
    ----------
    root : str
        The location of the store.
    stored : tuple of str
        The user's names of the columns, in the order of the layout.
    width : int
        The number of key columns, which are the first ones.
    struct : StructType
        The columns of the rows.
    moment : pyarrow.DataType
        The type of times.
    """

    root: str
    layout: Layout
    stored: tuple[str, ...]
    width: int
    struct: T.StructType
    shape: str
    commit: int
    moment: pa.DataType

    @contextmanager
    def opened(self, parts: Sequence[Held]) -> Iterator[list[UpdateChunk]]:
        """The updates of parts, each consolidated."""
        with storage.opened_for_task():
            commits: Commits | None = None
            batches = []
            for part in parts:
                if isinstance(part, str):
                    batches.append(storage.open_updates(part))
                    continue
                commits = commits or Commits(objects_at(self.root))
                data = commits.segment_bytes(
                    part.commit, Segment(part.offset, part.length, part.checksum)
                )
                with pa.ipc.open_file(pa.py_buffer(data)) as reader:
                    updates = ipc.from_batch(reader.get_batch(0))
                if len(updates) != part.rows:
                    raise DamagedStateError(
                        f"a small batch of commit {part.commit} of {self.root!r} has "
                        f"{len(updates)} rows and not {part.rows}"
                    )
                batches.append(updates)
            yield batches

    def batches(
        self, updates: UpdateChunk, extra: Sequence[pa.Array] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Record batches of `read_batch_rows` rows: columns of the records, and extra columns."""
        schema = arrow_schema(self.struct)
        columns = dict(zip(self.stored, self.layout.decode(updates)))
        arrays = [columns[name] for name in self.struct.names[:len(columns)]] + list(extra)
        if arrays:
            table = filled(pa.table(arrays, names=self.struct.names), self.struct)
            arrays = [joined([column]) for column in table.columns]
        fitted = [
            array if array.type == field.type else array.cast(field.type)
            for array, field in zip(arrays, schema)
        ]
        whole = pa.RecordBatch.from_arrays(fitted, schema=schema)
        rows = thresholds.current.read_batch_rows
        for start in range(0, whole.num_rows, rows):
            yield whole.slice(start, rows)
