"""The inbox of a store: batches of rows from streaming queries, each exactly once.

    put_batch(q, b) by any number of attempts
        =>  batches() has (q, b) once, with the rows of one attempt

    batches() has (q, b), and no call removes it  =>  it has (q, b) for ever, with the same rows

A query and a number identify a batch. Its files are written first, under names of the attempt. Then
its manifest is created, and only one attempt succeeds with that. Files without a manifest belong to
attempts that lost, and are never read::

    inbox/<name>/<query>/<number>.json
    inbox/<name>/<query>/<number>-<attempt>/<part>-<checksum>-<length>.arrow

An offset is the number of the last batch of each query. The batches of a query arrive in order, as
its engine finishes each batch before it begins the next.
"""

from __future__ import annotations

import json
import re
import secrets
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
from pyspark.sql import types as T

from pyspark_diff.errors import DamagedStateError, FormatError, StorageError
from pyspark_diff.spark.stored_schema import schema_from_json, schema_to_json
from pyspark_diff.trace.objects import INBOX, Objects
from pyspark_diff.trace.roots import objects_at

#: A change of a manifest's meaning increments it.
FORMAT = 1
#: The maximum bytes of a manifest.
_MOST_BYTES = 1 << 26
_MANIFEST = re.compile(r"([0-9]{16})\.json")
_PART = re.compile(r"[0-9]{16}-[0-9a-f]{12}/[0-9]{5,10}-[0-9a-f]{6}-[0-9a-f]{8}-[0-9]{1,15}\.arrow")


@dataclass(frozen=True)
class InboxFile:
    """A file of a batch: its name in the store, its length, its rows, its checksum."""

    name: str
    length: int
    rows: int
    checksum: int


@dataclass(frozen=True)
class InboxBatch:
    """A batch in an inbox.

    Parameters
    ----------
    root : str
        The root of the store.
    query : str
        The query that wrote the batch.
    number : int
        The number of the batch in its query.
    schema : pyspark.sql.types.StructType
    """

    root: str
    query: str
    number: int
    schema: T.StructType
    files: tuple[InboxFile, ...]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(file.rows for file in self.files)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows of the batch.

        Raises
        ------
        DamagedStateError
        """
        for file in self.files:
            yield from read_file(self.root, file)


def put_file(
    objects: Objects, name: str, query: str, number: int, attempt: str, part: int,
    rows: Sequence[pa.RecordBatch],
) -> InboxFile:
    """Write a file of rows for a batch. The batch exists only after `put_batch` names its files.

    Parameters
    ----------
    name : str
        The name of the inbox.
    attempt : str
        Twelve hexadecimal digits.
    rows : sequence of pyarrow.RecordBatch
        At least one.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows[0].schema) as writer:
        for batch in rows:
            writer.write_batch(batch)
    data = memoryview(sink.getvalue())
    checksum = zlib.crc32(data)
    # Two concurrent runs of a task write two names.
    base = f"{part:05d}-{secrets.token_hex(3)}-{checksum:08x}-{len(data)}.arrow"
    full = f"{_folder(name, query)}/{number:016d}-{attempt}/{base}"
    if not objects.create(full, [data]):
        raise StorageError(f"{full!r} exists already in {objects.root!r}. Try again")
    return InboxFile(full, len(data), sum(batch.num_rows for batch in rows), checksum)


def put_batch(
    objects: Objects, name: str, query: str, number: int, schema: T.StructType,
    files: Iterable[InboxFile],
) -> bool:
    """Put a batch into an inbox; False if the inbox has it already, with other files."""
    files = list(files)
    folder = _folder(name, query)
    content = {
        "format": FORMAT, "query": query, "batch": number, "schema": schema_to_json(schema),
        "files": [[f.name.removeprefix(f"{folder}/"), f.length, f.rows, f.checksum] for f in files],
    }
    text = json.dumps(content, separators=(",", ":")).encode()
    manifest = f"{folder}/{number:016d}.json"
    # After a lost answer and a second request, the manifest there may be our own.
    return objects.create(manifest, [text]) or objects.read(manifest) == text


def inbox_batches(
    path: str, name: str, after: Mapping[str, int] | None = None
) -> list[InboxBatch]:
    """The batches of an inbox after an offset, in order of the query and the number.

    Parameters
    ----------
    path : str
        The root of the store.
    name : str
        The name of the inbox.
    after : mapping of str to int, optional
        The number of the last batch that is known already, by query.

    Raises
    ------
    DamagedStateError
        If a manifest is damaged.

    Examples
    --------
    >>> objects = objects_at("memory://doctest-inbox")
    >>> rows = pa.RecordBatch.from_pydict({"n": [1, 2]})
    >>> file = put_file(objects, "words", "a-query", 0, "0" * 12, 0, [rows])
    >>> struct = T.StructType().add("n", "long")
    >>> [put_batch(objects, "words", "a-query", 0, struct, files) for files in ([file], [])]
    [True, False]
    >>> (batch,) = inbox_batches("memory://doctest-inbox", "words")
    >>> batch.query, batch.number, batch.rows
    ('a-query', 0, 2)
    >>> inbox_batches("memory://doctest-inbox", "words", offset_after([batch]))
    []
    """
    objects = objects_at(path)
    folder = f"{INBOX}/{_coded(name)}"
    known = after or {}
    manifests = []
    for item in objects.names(folder):
        query, _, rest = item.name.removeprefix(f"{folder}/").partition("/")
        number = _MANIFEST.fullmatch(rest)
        if number and int(number[1]) > known.get(_decoded(query), -1):
            manifests.append((_decoded(query), int(number[1]), item.name))
    return [_read(objects, query, number, at) for query, number, at in sorted(manifests)]


def offset_after(
    batches: Iterable[InboxBatch], before: Mapping[str, int] | None = None
) -> dict[str, int]:
    """The offset after some batches, and after an earlier offset."""
    offset = dict(before or {})
    for batch in batches:
        offset[batch.query] = max(offset.get(batch.query, -1), batch.number)
    return offset


def remove_batches(path: str, name: str, until: Mapping[str, int]) -> int:
    """Remove the batches up to a committed offset; returns their number.

    A query that repeats one of them puts it there again. That batch lies before the offset, and
    is not read.
    """
    objects = objects_at(path)
    folder = f"{INBOX}/{_coded(name)}"
    manifests: list[str] = []
    files: list[str] = []
    for item in objects.names(folder):
        query, _, rest = item.name.removeprefix(f"{folder}/").partition("/")
        number = re.match(r"([0-9]{16})[-.]", rest)
        if number and int(number[1]) <= until.get(_decoded(query), -1):
            (manifests if _MANIFEST.fullmatch(rest) else files).append(item.name)
    objects.delete(manifests)  # first, so that each manifest has all its files
    objects.delete(files)
    return len(manifests)


def read_file(root: str, file: InboxFile) -> Iterator[pa.RecordBatch]:
    """The rows of a file, after a check of its length and checksum.

    Raises
    ------
    DamagedStateError
    """
    objects = objects_at(root)
    try:
        data = objects.read(file.name)
    except FileNotFoundError:
        raise _damaged(objects, file.name, "it is missing, and a batch names it") from None
    if len(data) != file.length or zlib.crc32(data) != file.checksum:
        raise _damaged(objects, file.name, "its bytes have changed")
    with pa.ipc.open_file(pa.py_buffer(data)) as reader:
        for i in range(reader.num_record_batches):
            yield reader.get_batch(i)


def _read(objects: Objects, query: str, number: int, name: str) -> InboxBatch:
    try:
        data = objects.read(name)
        content = json.loads(data) if len(data) < _MOST_BYTES else None
        if not isinstance(content, dict):
            raise ValueError("it is no JSON object")
        if type(content.get("format")) is int and content["format"] > FORMAT:
            raise FormatError(
                f"{name!r} is in format {content['format']}, and this version of pyspark_diff "
                f"reads formats up to {FORMAT}. Read it with the version that wrote it, or a newer "
                "one"
            )
        if (content["format"], content["query"], content["batch"]) != (FORMAT, query, number):
            raise ValueError("it is that of another batch")
        folder = name.rpartition("/")[0]
        files = tuple(_file(folder, entry) for entry in content["files"])
        return InboxBatch(objects.root, query, number, schema_from_json(content["schema"]), files)
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, StorageError):
            raise
        raise _damaged(objects, name, f"{type(error).__name__}: {error}") from error


def _file(folder: str, entry: Any) -> InboxFile:
    name, length, rows, checksum = entry
    if not (isinstance(name, str) and _PART.fullmatch(name)):
        raise ValueError(f"{str(name)[:200]!r} is no name of a file")
    if not all(type(n) is int and 0 <= n < 1 << 60 for n in (length, rows, checksum)):
        raise ValueError(f"its entry for {name!r} is no length, rows and checksum")
    return InboxFile(f"{folder}/{name}", length, rows, checksum)


def _folder(name: str, query: str) -> str:
    coded = _coded(query)
    if _decoded(coded) != query:
        raise ValueError(f"the name of a query is too long: {query[:60]!r}...")
    return f"{INBOX}/{_coded(name)}/{coded}"


def _coded(text: str) -> str:
    """Encode a text as a part of an object's name. `_decoded` inverts it, except for long texts."""
    if not isinstance(text, str) or not text:
        raise ValueError(f"an inbox and its queries have names, and {text!r} is no name")
    code = "=" + quote(text, safe="").replace("~", "%7E").replace("%", "=")
    if len(code) > 200:
        code = f"{code[:150]}={blake2b(text.encode(), digest_size=16).hexdigest()}"
    return f"n{code}"


def _decoded(part: str) -> str:
    return unquote(part.removeprefix("n=").replace("=", "%"))


def _damaged(objects: Objects, name: str, what: str) -> DamagedStateError:
    return DamagedStateError(
        f"{name!r} in {objects.root!r} is damaged: {what}. Nothing of it was used. Put it back "
        "from a copy, or remove the batch and let its query send it again from its checkpoint"
    )
