"""What a store is made of: objects below a root, in a folder or in a bucket, behind one door.

An object has a name within its root, ``folder/name``, and is whole or not there. What all that is
durable stands on is one request::

    create(name, parts) = True   =>  the object was not there, and outlives a crash from now on
    create(name, parts) = False  =>  the name is taken; what it holds is as it was

`False` says nothing of who took the name. A client that tries again when an answer is lost is told
that its own object is there already, by S3 as by NFS: whoever creates reads back whose it is.
"""

from __future__ import annotations

import re
import secrets
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Union

from pyspark_diff.errors import StorageError

Part = Union[bytes, memoryview]

#: How the name of a file ends that is being written.
SCRATCH = ".tmp"
#: A hint at the last commit, beside the folders.
HEAD = "head"
#: No object that is read as a whole has more bytes.
MOST_BYTES = 1 << 32
#: The key that is created twice, to see that the second time is refused.
PROBE = "probe-"
#: Where others put what a dataflow is to take in.
INBOX = "inbox"
#: The folders of a store. What else lies below its root is somebody else's.
FOLDERS = ("commits", "data", "floor", INBOX, "readers")
#: The folder in which Databricks mounts the volumes of Unity Catalog.
VOLUMES = "/Volumes"
_VOLUME = re.compile(r"(dbfs:)?/*(/Volumes/[^/]+/[^/]+/[^/]+(?:/[^/]+)*)/*")
#: What the parts of names are that we give.
SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=-]{0,254}")


@dataclass(frozen=True)
class Found:
    """An object in a listing: its name within the root, its bytes, when it was written."""

    name: str
    size: int
    modified: float


class Objects(ABC):
    """The objects below one root."""

    root: str
    #: Whether a listing has each object that was created before.
    lists_all = False

    @abstractmethod
    def create(self, name: str, parts: Sequence[Part]) -> bool:
        """Put an object where there is none, in one request.

        Returns True when it is there and durable, False where the name is taken. Where the answer
        is lost that is an `UnknownOutcomeError`; after every other error the object is not there.
        """

    @abstractmethod
    def replace(self, name: str, data: bytes, *, lasting: bool = True) -> None:
        """Put an object whether there is one or not.

        One that need not outlive a crash may also be damaged by it, and is quicker.
        """

    @abstractmethod
    def upload(self, name: str, path: str) -> None:
        """Put a file where nothing else is ever put, durably, however large it is."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """All of an object. A `FileNotFoundError` where there is none."""

    @abstractmethod
    def read_range(self, name: str, offset: int, length: int) -> bytes:
        """A part of an object, shorter where it ends before."""

    @abstractmethod
    def names(self, folder: str) -> list[Found]:
        """What is in a folder and in those within it, in no order; "" for all below the root."""

    @abstractmethod
    def leftovers(self) -> list[Found]:
        """What was being written when its process ended, or is written now."""

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; those that are gone are no error."""

    @abstractmethod
    def locate(self, name: str) -> str:
        """Where an object is: an absolute path, or a URL."""

    def secure(self, name: str) -> None:
        """Make durable an object that is there, and its folders, where `create` could not say so.

        Also for files that were written where `locate` has said.
        """

    @abstractmethod
    def foreign(self) -> list[str]:
        """Names right below the root that are none of a store, a few of them."""

    def remove_empty(self, folder: str, before: float) -> None:
        """Remove folders in a folder that are empty and older than a time."""

    def probe(self) -> None:
        """See that a second create of one key is refused; a `StorageError` where it is not.

        Some mounted object stores write over what is there, and say that they have created it.
        """
        name = f"{PROBE}{secrets.token_hex(8)}"
        try:
            if not self.create(name, [b"first"]) and self.read(name) != b"first":
                raise StorageError(
                    f"{self.root!r}: it says that a new key is taken, so commits cannot be told "
                    "from those of others there. Keep the store somewhere else"
                )
            if self.create(name, [b"second"]) or self.read(name) != b"first":
                raise StorageError(
                    f"{self.root!r}: a second create of one key is not refused there, so two "
                    "writers would overwrite each other's commits. Keep the store on a file system "
                    "with hard links, or in an object store with conditional writes"
                )
        finally:
            try:
                self.delete([name])
            except StorageError:
                pass  # vacuum finds it


def volume_url(path: str) -> str | None:
    """The URL of a folder in a volume of Unity Catalog; None if a path leads to none.

    On macOS, disks are mounted in the folder of this name. There a volume needs ``dbfs:``.

    Examples
    --------
    >>> volume_url("dbfs:/Volumes/catalog/schema/volume/store/")
    'dbfs:///Volumes/catalog/schema/volume/store'
    >>> volume_url("/Volumes/catalog") is None
    True
    """
    match = _VOLUME.fullmatch(path)
    if match is None or match[1] is None and (sys.platform == "darwin" or path.startswith("//")):
        return None
    return None if {".", ".."} & set(match[2].split("/")) else f"dbfs://{match[2]}"


def redacted(text: str) -> str:
    """A URL, or a text with URLs in it, without passwords and without queries, which may be keys.

    Examples
    --------
    >>> redacted("s3://me:secret@bucket/folder?X-Amz-Signature=abc")
    's3://bucket/folder'
    """
    text = re.sub(r"(\w://)[^/@\s'\"]*:[^/@\s'\"]*@", r"\1", text)
    return re.sub(r"(\w://[^\s?'\"]*)\?[^\s'\"]*", r"\1", text)


def checked(name: str) -> str:
    """A name of an object, if it can be one: relative, of plain characters, and nowhere else."""
    if not (len(name) <= 1024 and all(map(SEGMENT.fullmatch, name.split("/")))):
        raise StorageError(
            f"{name[:200]!r} is no name of an object: parts of letters, digits, '_', '.', '=' and "
            "'-' between slashes, each beginning with a letter, a digit or '_'"
        )
    return name


def foreign_among(names: Iterable[str]) -> list[str]:
    """Names right below a root that are none of a store, a few of them."""
    return sorted(
        name for name in names
        if name not in (*FOLDERS, HEAD) and not name.startswith((PROBE, f"{HEAD}."))
    )[:5]
