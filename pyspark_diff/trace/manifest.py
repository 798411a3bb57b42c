"""The bytes of a commit, in a format that makes damage and forged content detectable.

::

    magic | segments | state | header (JSON) | footer (offset of the header, its digest, magic)

    decode(b"".join(encode(commit, payload))) = commit
    decode(data) is a commit  =>  its header did not change, and its offsets and names lie inside
                                  the object and the store

A retired commit is replaced by a smaller object, and its name is never free again. The length of an
object encodes its kind, so a listing suffices, and the bytes of the object must agree::

    length = 64         a tombstone
    length % 64 = 32    the payload of a retired commit, which other commits still need
    length % 64 = 0     a commit

A segment has the same offset before and after the retirement.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import lru_cache
from hashlib import blake2b
from typing import Union

import pyarrow as pa

from pyspark_diff.errors import DamagedStateError, FormatError, StorageError
from pyspark_diff.trace.objects import Part

#: A change of the format's meaning increments it.
FORMAT = 1
#: The first and the last bytes of an object of a commit.
_MAGIC = b"\x89pd-cmt\n"
_GONE_MAGIC = b"\x89pd-end\n"
_ALIGNMENT = 64
#: Offset and length of the header, format, the header's digest, magic.
_FOOTER = struct.Struct("<QQQ16s8s")
#: Magic, format, epoch, number, store, nonce, and the checksum of the previous fields.
_GONE = struct.Struct("<8sIQQ16s16sI")
TOMBSTONE_BYTES = _GONE.size
#: Limits far above the values of real commits, which a hostile commit must not exceed.
_MOST_HEADER = 1 << 28
_MOST_NUMBER = 10**16 - 1
_MOST_TOKEN = 4096

_COMMIT, _PAYLOAD = "commit", "payload"
_IDENTITY = re.compile(r"[0-9a-f]{32}")
_NAME = re.compile(r"commits/(\d{16})\.commit")
#: A batch file: its epoch and folder, its name such as a bucket, its checksum and its length.
DATA_FILE = re.compile(
    r"data/e(\d{4,9})-[A-Za-z0-9_][A-Za-z0-9_.=-]{0,199}-[0-9a-f]{12}\.durable/"
    r"([A-Za-z0-9][A-Za-z0-9-]{0,99})-crc([0-9a-f]{8})-(\d{1,15})\.arrow"
)

Payload = Sequence[Union[bytes, memoryview, pa.Buffer]]


@dataclass(frozen=True)
class Segment:
    """A part of a commit's payload: its offset in the object, its length, its CRC-32."""

    offset: int
    length: int
    checksum: int


@dataclass(frozen=True)
class FileInfo:
    """A commit's entry for a batch file: its length in bytes, its rows, the sum of their diffs."""

    length: int
    rows: int
    diffs: int


@dataclass(frozen=True)
class Commit:
    """One commit of a store.

    Attributes
    ----------
    number : int
        Its position in the chain, from 0, without gaps.
    epoch : int
        Incremented by each writer that opens the store.
    nonce, previous, store : str
        Its own identity, the identity of the commit before it ("" for the first) and that of the
        store.
    written : datetime
        The time of writing, in UTC, by the writer's clock.
    token : str or None
        A text by which the user can identify the commit.
    files : mapping
        The batch files that it needs, by their names in the store.
    uses : tuple of int
        The older commits whose segments it needs.
    segments : tuple of Segment
        Its own payload.
    state : bytes
        The state of the engine, opaque here.
    """

    number: int
    epoch: int
    nonce: str
    previous: str
    store: str
    written: datetime
    token: str | None
    files: Mapping[str, FileInfo]
    uses: tuple[int, ...]
    segments: tuple[Segment, ...]
    state: bytes = field(repr=False)


@dataclass(frozen=True)
class Retired:
    """The object that replaces a retired commit."""

    number: int
    epoch: int
    nonce: str
    store: str
    #: The payload that other commits still need.
    segments: tuple[Segment, ...] = ()


def name_of(number: int) -> str:
    """The name of the object of a commit.

    Examples
    --------
    >>> name_of(7)
    'commits/0000000000000007.commit'
    """
    return f"commits/{number:016d}.commit"


def number_in(name: str) -> int | None:
    """The number in the name of a commit's object; None for other names."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def segments_of(payload: Payload) -> tuple[Segment, ...]:
    """The segments that the parts of a payload will have in the object of a new commit.

    Examples
    --------
    >>> [(segment.offset, segment.length) for segment in segments_of([b"abc", b"", b"d" * 65])]
    [(64, 3), (128, 0), (128, 65)]
    """
    segments = []
    offset = _ALIGNMENT
    for part in payload:
        view = memoryview(part).cast("B")
        segments.append(Segment(offset, len(view), zlib.crc32(view)))
        offset = _aligned(offset + len(view))
    return tuple(segments)


def encode(commit: Commit, payload: Payload) -> list[Part]:
    """The bytes of a commit, in parts. Its segments must be those of the payload."""
    parts, offset = _with_payload(commit.segments, payload)
    end = offset + len(commit.state)
    header = _header_of(commit, _COMMIT) | {
        "previous": commit.previous,
        "written": commit.written.isoformat(),
        "token": commit.token,
        "uses": list(commit.uses),
        "state": [offset, len(commit.state), zlib.crc32(commit.state)],
    }
    try:
        _fields({**header, "files": {}}, end, commit.number)
        files = [
            _file_text(name, commit.epoch, info.length, info.rows, info.diffs)
            for name, info in commit.files.items()
        ]
    except ValueError as error:
        raise StorageError(
            f"{name_of(commit.number)!r} could not be read again, and was not written: {error}"
        ) from None
    text = f'{_json(header)[:-1]},"files":{{{",".join(files)}}}}}'
    return [*parts, commit.state, *_ending(text, end, 0)]


def tombstone_of(commit: Commit | Retired) -> bytes:
    """The bytes that replace a retired commit without a used payload."""
    plain = _GONE.pack(
        _GONE_MAGIC, FORMAT, commit.epoch, commit.number, bytes.fromhex(commit.store),
        bytes.fromhex(commit.nonce), 0,
    )[:-4]
    return plain + struct.pack("<I", zlib.crc32(plain))


def payload_of(commit: Commit, data: bytes) -> bytes:
    """The bytes that replace a retired commit whose payload is still used."""
    end = max((s.offset + s.length for s in commit.segments), default=_ALIGNMENT)
    return b"".join([
        data[:end], *_ending(_json(_header_of(commit, _PAYLOAD)), end, _ALIGNMENT // 2)
    ])


def is_tombstone(size: int) -> bool:
    """Whether an object of this length is a tombstone."""
    return size == TOMBSTONE_BYTES


def is_payload(size: int) -> bool:
    """Whether an object of this length holds the payload of a retired commit."""
    return size % _ALIGNMENT == _ALIGNMENT // 2


def decode(data: bytes, number: int) -> Commit | Retired:
    """Decode the object of a commit, or of a retired commit.

    Raises
    ------
    DamagedStateError
        The bytes have changed, or they are of another number.
    FormatError
        Another version of the library wrote them.
    """
    name = name_of(number)
    if is_tombstone(len(data)):
        return _decode_tombstone(data, number)
    if len(data) < _ALIGNMENT + _FOOTER.size:
        raise _damaged(name, f"it has {len(data)} bytes, fewer than the shortest commit")
    start, length, version, digest, magic = _FOOTER.unpack_from(data, len(data) - _FOOTER.size)
    if magic != _MAGIC or data[:len(_MAGIC)] != _MAGIC:
        raise _damaged(name, "it does not begin and end as a commit does; it may be cut short")
    _check_version(name, version)
    end = len(data) - _FOOTER.size
    if length > _MOST_HEADER or start + length != end:
        raise _damaged(name, f"its header of {length:,} bytes at {start:,} does not fit into it")
    text = data[start:end]
    if _digest(text) != digest:
        raise _damaged(name, "its header has changed")
    header = _parsed(name, text)
    kind = header.get("kind")
    if is_payload(len(data)) != (kind == _PAYLOAD) or len(data) % (_ALIGNMENT // 2):
        raise _damaged(name, f"its {len(data):,} bytes are not those of a {str(kind)[:20]!r}")
    try:
        fields = _fields(header, start, number)
    except ValueError as error:
        raise _damaged(name, str(error)) from None
    if isinstance(fields, Retired):
        return fields
    offset, size, checksum = _triple(header["state"], "state")
    state = data[offset:offset + size]
    if zlib.crc32(state) != checksum:
        raise _damaged(name, "its state has changed")
    return replace(fields, state=state)


def _with_payload(segments: Sequence[Segment], payload: Payload) -> tuple[list[Part], int]:
    parts: list[Part] = [_MAGIC]
    at = len(_MAGIC)
    for segment, part in zip(segments, payload, strict=True):
        parts += [bytes(segment.offset - at), memoryview(part).cast("B")]
        at = segment.offset + segment.length
    offset = _aligned(at)
    return [*parts, bytes(offset - at)], offset


def _header_of(commit: Commit, kind: str) -> dict[str, object]:
    return {
        "kind": kind,
        "number": commit.number,
        "epoch": commit.epoch,
        "nonce": commit.nonce,
        "store": commit.store,
        "segments": [[s.offset, s.length, s.checksum] for s in commit.segments],
    }


def _json(header: Mapping[str, object]) -> str:
    return json.dumps(header, separators=(",", ":"), allow_nan=False)


@lru_cache(maxsize=1 << 15)
def _file_text(name: str, epoch: int, length: int, rows: int, diffs: int) -> str:
    """The JSON of a file in a header. Nearly all files are the same from one commit to the next."""
    _file(name, [length, rows, diffs], epoch)
    return f"{json.dumps(name)}:[{length},{rows},{diffs}]"


def _ending(header: str, start: int, remainder: int) -> list[bytes]:
    """Header and footer, padded so that the length of the object encodes its kind."""
    text = header.encode()
    text += b" " * ((remainder - start - len(text) - _FOOTER.size) % _ALIGNMENT)
    if (start + len(text) + _FOOTER.size) == TOMBSTONE_BYTES:
        raise AssertionError("no header is so short")
    return [text, _FOOTER.pack(start, len(text), FORMAT, _digest(text), _MAGIC)]


def _decode_tombstone(data: bytes, number: int) -> Retired:
    name = name_of(number)
    magic, version, epoch, inside, store, nonce, checksum = _GONE.unpack(data)
    if magic != _GONE_MAGIC:
        raise _damaged(name, "it is neither a commit nor the tombstone of one")
    _check_version(name, version)
    if zlib.crc32(data[:-4]) != checksum:
        raise _damaged(name, "its tombstone has changed")
    if inside != number:
        raise _damaged(name, f"it is the tombstone of commit {inside}")
    return Retired(number, epoch, nonce.hex(), store.hex())


def _check_version(name: str, version: int) -> None:
    if version > FORMAT:
        raise FormatError(
            f"{name!r} is in format {version}, and this version of pyspark_diff reads formats up "
            f"to {FORMAT}. Open the store with the version that wrote it, or a newer one"
        )
    if version != FORMAT:
        raise _damaged(name, f"its format is {version}, and the first format was 1")


def _parsed(name: str, text: bytes) -> dict[str, object]:
    try:
        header = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise _damaged(name, f"its header cannot be read: {type(error).__name__}") from None
    if not isinstance(header, dict):
        raise _damaged(name, "its header is no JSON object")
    return header


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name occurs twice")
    return fields


def _no_constant(text: str) -> object:
    raise ValueError(text)


def _fields(header: Mapping[str, object], end: int, number: int) -> Commit | Retired:
    """The content of a header. A `ValueError` describes its first fault."""
    kind = header.get("kind")
    known = {"kind", "number", "epoch", "nonce", "store", "segments"}
    if kind == _COMMIT:
        known |= {"previous", "written", "token", "files", "uses", "state"}
    if kind not in (_COMMIT, _PAYLOAD) or set(header) != known:
        raise ValueError(f"its header is not that of a commit: {str(sorted(header))[:200]}")
    inside = _whole(header["number"], "number", _MOST_NUMBER)
    if inside != number:
        raise ValueError(f"it is commit {inside}, under the name of commit {number}")
    epoch = _whole(header["epoch"], "epoch", 10**9)
    nonce = _identity(header["nonce"], "nonce")
    store = _identity(header["store"], "store")
    segments = _segments(header["segments"], end)
    if kind == _PAYLOAD:
        return Retired(number, epoch, nonce, store, segments)
    previous = header["previous"]
    if number or previous != "":
        previous = _identity(previous, "previous")
    token = header["token"]
    if not (token is None or isinstance(token, str) and len(token) <= _MOST_TOKEN):
        raise ValueError(f"its token is no text of at most {_MOST_TOKEN} characters")
    start, size, _ = _triple(header["state"], "state")
    if start < _ALIGNMENT or start + size != end:
        raise ValueError(f"its state of {size:,} bytes at {start:,} does not fit into it")
    if any(segment.offset + segment.length > start for segment in segments):
        raise ValueError("its segments and its state overlap")
    assert isinstance(previous, str) and (token is None or isinstance(token, str))
    return Commit(
        number, epoch, nonce, previous, store, _moment(header["written"]), token,
        _files(header["files"], epoch), _uses(header["uses"], number), segments, b"",
    )


def _segments(value: object, end: int) -> tuple[Segment, ...]:
    if not isinstance(value, list):
        raise ValueError("its segments are no list")
    segments = tuple(Segment(*_triple(item, "segment")) for item in value)
    at = _ALIGNMENT
    for segment in segments:
        if segment.offset != at or segment.offset + segment.length > end:
            raise ValueError(
                f"a segment of {segment.length:,} bytes at {segment.offset:,} does not fit into it"
            )
        at = _aligned(segment.offset + segment.length)
    return segments


def _files(value: object, epoch: int) -> Mapping[str, FileInfo]:
    if not isinstance(value, dict):
        raise ValueError("its files are no JSON object")
    return {name: _file(name, item, epoch) for name, item in value.items()}


def _file(name: str, item: object, epoch: int) -> FileInfo:
    match = DATA_FILE.fullmatch(name)
    if match is None or ".." in name:
        raise ValueError(f"{name[:200]!r} is no name of a batch file")
    if not (isinstance(item, list) and len(item) == 3 and type(item[2]) is int):
        raise ValueError(f"its entry for {name!r} is no length, rows and sum of diffs")
    length = _whole(item[0], "length of a file", 1 << 60)
    rows = _whole(item[1], "rows of a file", 1 << 60)
    if length != int(match[4]) or int(match[1]) > epoch or abs(item[2]) >= 1 << 128:
        raise ValueError(f"its entry for {name!r} does not agree with that name")
    return FileInfo(length, rows, item[2])


def _uses(value: object, number: int) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ValueError("the commits that it uses are no list")
    uses = tuple(_whole(item, "number of a commit that it uses", _MOST_NUMBER) for item in value)
    if list(uses) != sorted(set(uses)) or any(used >= number for used in uses):
        raise ValueError(f"the commits that it uses are not in order, or not before {number}")
    return uses


def _moment(value: object) -> datetime:
    try:
        moment = datetime.fromisoformat(value)  # type: ignore[arg-type]
        if moment.utcoffset() is not None:
            return moment.astimezone(timezone.utc)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError("its time of writing is no time with a zone")


def _triple(value: object, what: str) -> tuple[int, int, int]:
    if not (isinstance(value, list) and len(value) == 3):
        raise ValueError(f"its {what} is no offset, length and checksum")
    offset, length, checksum = value
    return (
        _whole(offset, f"offset of its {what}", 1 << 60),
        _whole(length, f"length of its {what}", 1 << 60),
        _whole(checksum, f"checksum of its {what}", (1 << 32) - 1),
    )


def _whole(value: object, what: str, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"the {what} is no whole number from 0 to {most}")
    return value


def _identity(value: object, what: str) -> str:
    if not (isinstance(value, str) and _IDENTITY.fullmatch(value)):
        raise ValueError(f"its {what} is no identity")
    return value


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def _damaged(name: str, what: str) -> DamagedStateError:
    return DamagedStateError(
        f"{name!r} is damaged: {what}. Nothing of it was used. Put it back from a copy of the "
        "store, or start a new store"
    )
