"""The inbox of a store: batches of rows that streaming queries have put there, each once.

    put(q, b) by any number of attempts  =>  batches() has (q, b) once, with the rows of one attempt
    it was in batches(), and nobody removed it  =>  it is there for ever, with the same rows

A batch is known by its query and its number. Its files are written first, under names of the
attempt; then its manifest is created, which only one attempt can. Files that no manifest names are
those of attempts that lost, and are never read::

    inbox/<name>/<query>/<number>.json
    inbox/<name>/<query>/<number>-<attempt>/<part>-<checksum>-<length>.arrow

An offset is the number of the last batch of each query. Those of one query come in order, as its
engine finishes one before it begins the next.
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

#: Raised when the meaning of a manifest changes.
FORMAT = 1
#: No manifest has more bytes.
_MOST_BYTES = 1 << 26
_MANIFEST = re.compile(r"([0-9]{16})\.json")
_PART = re.compile(r"[0-9]{16}-[0-9a-f]{12}/[0-9]{5,10}-[0-9a-f]{6}-[0-9a-f]{8}-[0-9]{1,15}\.arrow")


@dataclass(frozen=True)
class InboxFile:
    """A file of a batch: its name in the store, its bytes, rows, and the checksum of its bytes."""

    name: str
    length: int
    rows: int
    checksum: int


@dataclass(frozen=True)
class InboxBatch:
    """A batch that was put into an inbox.

    Parameters
    ----------
    root : str
        Of the store.
    query : str
        That put it there.
    number : int
        Among those of the query.
    schema : pyspark.sql.types.StructType
    files : tuple of InboxFile
    """

    root: str
    query: str
    number: int
    schema: T.StructType
    files: tuple[InboxFile, ...]

    @property
    def rows(self) -> int:
        """How many it has."""
        return sum(file.rows for file in self.files)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All its rows.

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
    """Write some rows of a batch, which is there only when `put` has named them.

    Parameters
    ----------
    objects : Objects
    name : str
        Of the inbox.
    query : str
    number : int
    attempt : str
        Twelve hexadecimal digits.
    part : int
    rows : sequence of pyarrow.RecordBatch
        At least one.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows[0].schema) as writer:
        for batch in rows:
            writer.write_batch(batch)
    data = memoryview(sink.getvalue())
    checksum = zlib.crc32(data)
    # A task that runs twice at once has two names.
    base = f"{part:05d}-{secrets.token_hex(3)}-{checksum:08x}-{len(data)}.arrow"
    full = f"{_folder(name, query)}/{number:016d}-{attempt}/{base}"
    if not objects.create(full, [data]):
        raise StorageError(f"{full!r} is there already, in {objects.root!r}; try again")
    return InboxFile(full, len(data), sum(batch.num_rows for batch in rows), checksum)


def put(
    objects: Objects, name: str, query: str, number: int, schema: T.StructType,
    files: Iterable[InboxFile],
) -> bool:
    """Put a batch into an inbox; False if it is there already, with other files."""
    files = list(files)
    folder = _folder(name, query)
    told = {
        "format": FORMAT, "query": query, "batch": number, "schema": schema_to_json(schema),
        "files": [[f.name.removeprefix(f"{folder}/"), f.length, f.rows, f.checksum] for f in files],
    }
    text = json.dumps(told, separators=(",", ":")).encode()
    manifest = f"{folder}/{number:016d}.json"
    # Where an answer was lost, and the request was sent again, it may be our own that is there.
    return objects.create(manifest, [text]) or objects.read(manifest) == text


def inbox_batches(
    path: str, name: str, after: Mapping[str, int] | None = None
) -> list[InboxBatch]:
    """The batches of an inbox that came after an offset: by query, and of each in order.

    Parameters
    ----------
    path : str
        Of the store.
    name : str
        Of the inbox.
    after : mapping of str to int, optional
        By query the number of its last batch that is known already.

    Raises
    ------
    DamagedStateError
        If a manifest is not as it was written.

    Examples
    --------
    >>> objects = objects_at("memory://doctest-inbox")
    >>> rows = pa.RecordBatch.from_pydict({"n": [1, 2]})
    >>> file = put_file(objects, "words", "a-query", 0, "0" * 12, 0, [rows])
    >>> struct = T.StructType().add("n", "long")
    >>> [put(objects, "words", "a-query", 0, struct, files) for files in ([file], [])]
    [True, False]
    >>> (found,) = inbox_batches("memory://doctest-inbox", "words")
    >>> found.query, found.number, found.rows
    ('a-query', 0, 2)
    >>> inbox_batches("memory://doctest-inbox", "words", offset_after([found]))
    []
    """
    objects = objects_at(path)
    folder = f"{INBOX}/{_coded(name)}"
    known = after or {}
    found = []
    for one in objects.names(folder):
        query, _, rest = one.name.removeprefix(f"{folder}/").partition("/")
        number = _MANIFEST.fullmatch(rest)
        if number and int(number[1]) > known.get(_decoded(query), -1):
            found.append((_decoded(query), int(number[1]), one.name))
    return [_read(objects, query, number, at) for query, number, at in sorted(found)]


def offset_after(
    batches: Iterable[InboxBatch], before: Mapping[str, int] | None = None
) -> dict[str, int]:
    """The offset behind some batches, and behind those before them."""
    found = dict(before or {})
    for batch in batches:
        found[batch.query] = max(found.get(batch.query, -1), batch.number)
    return found


def remove_batches(path: str, name: str, until: Mapping[str, int]) -> int:
    """Remove the batches up to an offset, which must be known for good; gives how many.

    A query that is told to do one of them again puts it there again. It is behind the offset, and
    is not read.
    """
    objects = objects_at(path)
    folder = f"{INBOX}/{_coded(name)}"
    manifests: list[str] = []
    files: list[str] = []
    for one in objects.names(folder):
        query, _, rest = one.name.removeprefix(f"{folder}/").partition("/")
        number = re.match(r"([0-9]{16})[-.]", rest)
        if number and int(number[1]) <= until.get(_decoded(query), -1):
            (manifests if _MANIFEST.fullmatch(rest) else files).append(one.name)
    objects.delete(manifests)  # first: what is named is whole
    objects.delete(files)
    return len(manifests)


def read_file(root: str, file: InboxFile) -> Iterator[pa.RecordBatch]:
    """The rows of a file, if it is as it was written.

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
        raise _damaged(objects, file.name, "it is not as it was written")
    with pa.ipc.open_file(pa.py_buffer(data)) as reader:
        for i in range(reader.num_record_batches):
            yield reader.get_batch(i)


def _read(objects: Objects, query: str, number: int, name: str) -> InboxBatch:
    try:
        data = objects.read(name)
        told = json.loads(data) if len(data) < _MOST_BYTES else None
        if not isinstance(told, dict):
            raise ValueError("it is no JSON object")
        if type(told.get("format")) is int and told["format"] > FORMAT:
            raise FormatError(
                f"{name!r} is in format {told['format']}, and this version of pyspark_diff reads "
                f"formats up to {FORMAT}. Read it with the version that wrote it, or a newer one"
            )
        if (told["format"], told["query"], told["batch"]) != (FORMAT, query, number):
            raise ValueError("it is that of another batch")
        folder = name.rpartition("/")[0]
        files = tuple(_file(folder, one) for one in told["files"])
        return InboxBatch(objects.root, query, number, schema_from_json(told["schema"]), files)
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, StorageError):
            raise
        raise _damaged(objects, name, f"{type(error).__name__}: {error}") from error


def _file(folder: str, told: Any) -> InboxFile:
    name, length, rows, checksum = told
    if not (isinstance(name, str) and _PART.fullmatch(name)):
        raise ValueError(f"{str(name)[:200]!r} is no name of a file")
    if not all(type(n) is int and 0 <= n < 1 << 60 for n in (length, rows, checksum)):
        raise ValueError(f"what it says of {name!r} is no length, rows and checksum")
    return InboxFile(f"{folder}/{name}", length, rows, checksum)


def _folder(name: str, query: str) -> str:
    coded = _coded(query)
    if _decoded(coded) != query:
        raise ValueError(f"the name of a query is too long: {query[:60]!r}...")
    return f"{INBOX}/{_coded(name)}/{coded}"


def _coded(text: str) -> str:
    """A text as a part of an object's name, from which it can be told again unless it is long."""
    if not isinstance(text, str) or not text:
        raise ValueError(f"an inbox and its queries have names, and {text!r} is none")
    found = "=" + quote(text, safe="").replace("~", "%7E").replace("%", "=")
    if len(found) > 200:
        found = f"{found[:150]}={blake2b(text.encode(), digest_size=16).hexdigest()}"
    return f"n{found}"


def _decoded(part: str) -> str:
    return unquote(part.removeprefix("n=").replace("=", "%"))


def _damaged(objects: Objects, name: str, what: str) -> DamagedStateError:
    return DamagedStateError(
        f"{name!r} in {objects.root!r} is damaged: {what}. Nothing of it was used. Put it back "
        "from a copy; or remove the batch, and let its query give it again from its checkpoint"
    )
