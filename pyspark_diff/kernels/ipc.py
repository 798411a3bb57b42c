"""Updates as Arrow IPC: the one format of batch files and of shuffles.

One record batch: ``key64``, the record's columns ``k0, k1, …`` if there are any, ``time``,
``coordinate``, ``diff``. If records are pairs of a key and a value, also ``val64`` and
``v0, v1, …``. If all rows share a time, a coordinate or a diff, it is in the schema's metadata
instead of a column. The format is uncompressed, so that a mapped file *is* the arrays. For
transport, integers are narrowed to the bytes that they need.
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa

from pyspark_diff.kernels.diff_vectors import DiffVectors
from pyspark_diff.kernels.layout import as_int64
from pyspark_diff.kernels.updates import PerRow, UpdateChunk

#: Increased if the meaning of the format changes; every file contains it.
FORMAT = b"1"


def to_batch(updates: UpdateChunk, *, narrow: bool = False) -> pa.RecordBatch:
    """One record batch with the updates.

    Parameters
    ----------
    narrow : bool
        Store integers in as few bytes as their range allows. The result is smaller, but a reader
        has to copy the integers; leave it off for files that are mapped.
    """
    metadata = {b"format": FORMAT}
    names: list[str] = []
    arrays: list[pa.Array] = []

    def add(name: str, value: PerRow) -> None:
        if not isinstance(value, np.ndarray):
            metadata[name.encode()] = str(int(value)).encode()
            return
        if narrow and value.size:
            base, value = _narrowed(value)
            metadata[name.encode() + b"+"] = str(base).encode()
        names.append(name)
        arrays.append(pa.array(value))

    add("key64", updates.key64)
    for i, column in enumerate(updates.columns or ()):
        names.append(f"k{i}")
        arrays.append(column)
    if updates.val64 is not None:
        add("val64", updates.val64)
    for i, column in enumerate(updates.values or ()):
        names.append(f"v{i}")
        arrays.append(column)
    add("time", updates.time)
    add("coordinate", updates.coordinate)
    if isinstance(updates.diff, DiffVectors):
        metadata[b"pairs"] = json.dumps(updates.diff.pairs).encode()
        names.append("vectors")
        flat = pa.array(updates.diff.values.reshape(-1))
        arrays.append(pa.FixedSizeListArray.from_arrays(flat, updates.diff.width))
    else:
        add("diff", updates.diff)
    if updates.ordering is not None:
        metadata[b"ordering"] = json.dumps(updates.ordering).encode()
    schema = pa.schema([(n, a.type) for n, a in zip(names, arrays)], metadata=metadata)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def from_batch(batch: pa.RecordBatch) -> UpdateChunk:
    """Undo `to_batch`; arrays are views of the batch's memory unless they were narrowed.

    Examples
    --------
    >>> u = UpdateChunk(np.array([1000, 1001]), None, 7, np.array([1, -1]))
    >>> v = from_batch(to_batch(u, narrow=True))
    >>> v.key64.tolist(), v.time, v.diff.tolist()
    ([1000, 1001], 7, [1, -1])
    """
    metadata = batch.schema.metadata
    if metadata.get(b"format") != FORMAT:
        raise ValueError(
            f"a batch in format {metadata.get(b'format')!r} cannot be read, expected {FORMAT!r}"
        )

    def get(name: str) -> PerRow:
        shared = metadata.get(name.encode())
        if shared is not None:
            return int(shared)
        column = batch.column(name)
        base = metadata.get(name.encode() + b"+")
        if base is None:
            return as_int64(column).to_numpy()
        return column.to_numpy().astype(np.int64) + int(base)

    names = batch.schema.names
    key64 = get("key64")
    assert isinstance(key64, np.ndarray)
    val64 = get("val64") if "val64" in names else None
    assert not isinstance(val64, int)

    def columns(letter: str) -> tuple[pa.Array, ...] | None:
        count = sum(1 for name in names if name[0] == letter and name[1:].isdigit())
        return tuple(batch.column(f"{letter}{i}") for i in range(count)) if count else None

    diff = _vectors(batch) if "vectors" in names else get("diff")
    ordered = metadata.get(b"ordering")
    ordering = None
    if ordered is not None:
        ordering = tuple((bool(down), bool(last)) for down, last in json.loads(ordered))
    values = columns("v")
    if values is None and ordering == ():
        values = ()  # no columns, in contrast to one column in the place of its hash
    return UpdateChunk(
        key64, columns("k"), get("time"), diff, val64, values, ordering,
        get("coordinate"),
    )


def _vectors(batch: pa.RecordBatch) -> DiffVectors:
    column = batch.column("vectors")
    width = column.type.list_size
    values = column.flatten().to_numpy().reshape(len(column), width)
    return DiffVectors(values, tuple(json.loads(batch.schema.metadata[b"pairs"])))


def to_bytes(updates: UpdateChunk) -> bytes:
    """Updates as one narrowed IPC stream."""
    batch = to_batch(updates, narrow=True)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def from_bytes(data: bytes | pa.Buffer) -> UpdateChunk:
    """Undo `to_bytes`."""
    with pa.ipc.open_stream(data) as reader:
        return from_batch(reader.read_next_batch())


def _narrowed(values: np.ndarray) -> tuple[int, np.ndarray]:
    low, high = int(values.min()), int(values.max())
    reach = high - low
    for kind in (np.uint8, np.uint16, np.uint32):
        if reach <= np.iinfo(kind).max:
            return low, (values - low).astype(kind)
    return 0, values
