"""Roots of stores: the kind of objects below a path or a URL."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

from pyspark_diff.errors import StorageError
from pyspark_diff.trace.local_objects import LocalObjects
from pyspark_diff.trace.objects import Objects, redacted, volume_url
from pyspark_diff.trace.remote_objects import RemoteObjects
from pyspark_diff.trace.volume_objects import VolumeObjects

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):/", re.IGNORECASE)
_REMOTE = frozenset({"s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "memory"})


def objects_at(root: str | os.PathLike[str]) -> Objects:
    """The objects below a path, a ``file:`` URL, a volume, or the URL of an object store.

    Examples
    --------
    >>> objects = objects_at("memory://doctest")
    >>> objects.create("commits/first", [b"a", b"b"]), objects.create("commits/first", [b"c"])
    (True, False)
    >>> objects.read("commits/first")
    b'ab'
    """
    if not isinstance(root, (str, os.PathLike)) or not os.fspath(root).strip():
        raise StorageError(
            f"the root of a store is {root!r}. Pass the path of a folder, or a URL such as "
            "s3://bucket/folder"
        )
    path = os.fspath(root)
    volume = volume_url(path)
    if volume is not None:
        return VolumeObjects(volume)
    scheme = _SCHEME.match(path)
    if scheme is None:
        return LocalObjects(path)
    parts = urlsplit(path)
    if scheme[1].lower() in _REMOTE:
        return RemoteObjects(path)
    if scheme[1].lower() != "file" or parts.netloc not in ("", "localhost"):
        raise StorageError(
            f"the root of a store is {redacted(path)!r}. Pass the path of a folder, or a URL that "
            f"begins with file:, dbfs:/Volumes/, "
            f"{', '.join(sorted(f'{name}://' for name in _REMOTE))}"
        )
    return LocalObjects(unquote(parts.path))
