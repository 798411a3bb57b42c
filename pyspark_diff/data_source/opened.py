"""A kept collection at a commit, as it is planned how to read it, and what tasks are told of it.

    rows of a bucket  =  those that `Rows.decoded` makes of the updates in its `Held` parts

A plan names files by their certified names, and small batches by their places in commits, so that
a task needs nothing but the store.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Union

import pyarrow as pa
from pyspark.sql import types as T

from pyspark_diff.data_source.options import Options
from pyspark_diff.errors import DamagedStateError, NotReadableError, SchemaError
from pyspark_diff.kernels import ipc
from pyspark_diff.kernels.layout import Layout
from pyspark_diff.kernels.updates import Updates, joined
from pyspark_diff.spark.schema import arrow_schema
from pyspark_diff.spark.values import filled
from pyspark_diff.trace import storage
from pyspark_diff.trace.batch import Batch
from pyspark_diff.trace.commits import Commit, Commits
from pyspark_diff.trace.kept import Kept, kept
from pyspark_diff.trace.manifest import Segment
from pyspark_diff.trace.objects import Objects
from pyspark_diff.trace.read_holds import ReadHold, held
from pyspark_diff.trace.roots import objects_at
from pyspark_diff.trace.stored_traces import Place, StoredTraces, stored_traces

#: Rows of one record batch.
BATCH_ROWS = 1 << 16
#: Options of what is read.
READ = ("path", "name", "shape", "time", "commit", "since", "until", "start", "allowNegative",
        "holdSeconds")
#: What rows look like.
SHAPES = ("rows", "changes", "cdc")
CHANGE_TYPE, COMMIT_VERSION = "_change_type", "_commit_version"

#: A part of a bucket: a file, by its path, or a small batch in a commit.
Held = Union[str, Place]


@dataclass(frozen=True)
class Pin:
    """The commit that a frame reads, and the hold on it."""

    commit: int
    hold: str
    until: float


class Collection:
    """A kept collection at a commit that is held.

    Parameters
    ----------
    options : Options
    pin : Pin or int, optional
        Which commit, and the hold on it if there is one; the latest one if not given.
    """

    def __init__(self, options: Options, pin: Pin | int | None = None):
        path = options.needed("path", "where the store is")
        name = options.needed("name", "under which the collection was kept")
        self.objects: Objects = objects_at(path)
        self.commits = Commits(self.objects)
        self.commit, self.hold = _held(self.objects, self.commits, pin, options.seconds())
        own = f"/held/{secrets.token_hex(8)}"
        self._decoder = stored_traces(
            self.objects, self.commits, self.commit, own, StoredTraces
        )
        try:
            self.kept: Kept = kept(
                self._decoder, name, f"commit {self.commit.number} of {self.objects.root}"
            )
            self.places = dict(self._decoder.places)
        finally:
            storage.remove_files(list(self._decoder.places))  # it was held in memory
        if self.kept.times is not None:
            self.hold.release()
            raise NotReadableError(
                f"the times of this store are structs, {self.kept.times.simpleString()}: those of "
                "one record lie in several buckets, and this source reads bucket by bucket; and of "
                "several complete times none is the latest, for a stream to go on from. Read it "
                "with StateReader(path, spark=spark)[name]: .at(time), .changes(since, until)"
            )
        if len(set(map(str.lower, self.kept.columns))) < len(self.kept.columns):
            raise SchemaError(
                f"{name!r} has columns of one name: {', '.join(self.kept.columns)}. Rename them "
                "where it is kept, or read it with StateReader"
            )

    @property
    def program(self) -> bytes:
        """What told of the program that made the commit."""
        return self._decoder.program

    def next_to_do(self) -> str:
        """What brings a reader further, for messages."""
        return f"That is how it was at commit {self.commit.number}"

    def struct(self, shape: str) -> T.StructType:
        """The columns of what is read, in a shape."""
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
                f"a column is called as one of those that shape {shape!r} adds: "
                f"{', '.join(field.name for field in fields)}. Rename it where it is kept"
            )
        if not fields:
            raise SchemaError(
                "this collection has no columns, of which Spark's data sources read no rows; read "
                "it with StateReader"
            )
        return T.StructType(fields)

    def checked(self, schema: T.StructType, shape: str) -> None:
        """Refuse a schema that is not that of what is read.

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
                "schema out; a stream that began before they changed begins anew, with another "
                "checkpoint"
            )

    def rows(self, shape: str) -> Rows:
        """What tasks are told of rows."""
        arrangement = self.kept.arrangement
        names = dict(zip(arrangement.schema.names, self.kept.columns))
        return Rows(
            self.objects.root, arrangement.layout, tuple(names[n] for n in arrangement.stored),
            len(arrangement.key), self.struct(shape), shape, self.commit.number,
            arrangement.time_type.arrow,
        )

    def parts(self, batches: Sequence[Batch]) -> dict[int, list[Held]]:
        """The parts of each bucket that has any, oldest first."""
        found: dict[int, list[Held]] = {}
        for batch in batches:
            for bucket, files in batch.files.items():
                for file in files:
                    found.setdefault(bucket, []).append(self.places.get(file.path, file.path))
        return found


def _held(
    objects: Objects, commits: Commits, pin: Pin | int | None, seconds: float
) -> tuple[Commit, ReadHold]:
    if isinstance(pin, Pin):
        hold = ReadHold(objects, pin.hold, pin.commit, seconds, pin.until)
        try:
            hold.renew()
            return commits.read(pin.commit), hold
        except NotReadableError:
            pass  # it has expired, and the commit may still be there
    return held(objects, commits, pin.commit if isinstance(pin, Pin) else pin, seconds)


def planned(given: Mapping[str, str]) -> tuple[T.StructType, Pin]:
    """The columns of what is read by some options, and the commit, which is held from now on."""
    options = Options(given, READ, "a read")
    shape = shape_of(options)
    collection = Collection(options, options.whole("commit"))
    hold = collection.hold
    try:
        return collection.struct(shape), Pin(collection.commit.number, hold.name, hold.until)
    except BaseException:
        hold.release()
        raise


def shape_of(options: Options) -> str:
    """What rows look like: changes where an interval is given."""
    if options.get("shape") is None and (options.get("since") or options.get("until")):
        return "changes"
    return options.one_of("shape", *SHAPES)


@dataclass(frozen=True)
class Rows:
    """How a task makes rows of updates.

    Parameters
    ----------
    root : str
        Of the store.
    layout : Layout
    stored : tuple of str
        The columns as they lie in the layout, by the user's names.
    width : int
        How many of them are the key.
    struct : StructType
        Of the rows.
    shape : str
    commit : int
    moment : pyarrow.DataType
        Of times.
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
    def opened(self, parts: Sequence[Held]) -> Iterator[list[Updates]]:
        """The updates of parts, each consolidated."""
        with storage.opened_for_task():
            commits: Commits | None = None
            found = []
            for part in parts:
                if isinstance(part, str):
                    found.append(storage.open_updates(part))
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
                found.append(updates)
            yield found

    def batches(
        self, updates: Updates, beside: Sequence[pa.Array] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Record batches of `BATCH_ROWS` rows: those of the records, and what is beside."""
        schema = arrow_schema(self.struct)
        columns = dict(zip(self.stored, self.layout.decode(updates)))
        arrays = [columns[name] for name in self.struct.names[:len(columns)]] + list(beside)
        if arrays:
            table = filled(pa.table(arrays, names=self.struct.names), self.struct)
            arrays = [joined([column]) for column in table.columns]
        fitted = [
            array if array.type == field.type else array.cast(field.type)
            for array, field in zip(arrays, schema)
        ]
        whole = pa.RecordBatch.from_arrays(fitted, schema=schema)
        for start in range(0, whole.num_rows, BATCH_ROWS):
            yield whole.slice(start, BATCH_ROWS)
