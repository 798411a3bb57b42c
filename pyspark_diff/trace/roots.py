"""Roots of stores: the kind of objects below a path or a URL."""

from __future__ import annotations

import os

from pyspark_diff.errors import StorageError
from pyspark_diff.trace.local_objects import LocalObjects
from pyspark_diff.trace.objects import Objects, redacted, volume_url
from pyspark_diff.trace.paths import REMOTE_SCHEMES, local_folder
from pyspark_diff.trace.remote_objects import RemoteObjects
from pyspark_diff.trace.volume_objects import VolumeObjects


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
    path = os.fspath(root) if isinstance(root, (str, os.PathLike)) else None
    if not isinstance(path, str) or not path.strip():
        raise StorageError(
            f"the root of a store is {root!r}. Pass the path of a folder, or a URL such as "
            "s3://bucket/folder"
        )
    volume = volume_url(path)
    if volume is not None:
        return VolumeObjects(volume)
    folder = local_folder(path)
    if folder is not None:
        return LocalObjects(folder)
    if path.partition(":")[0].lower() in REMOTE_SCHEMES:
        return RemoteObjects(path)
    raise StorageError(
        f"the root of a store is {redacted(path)!r}. Pass the path of a folder, or a URL that "
        f"begins with file:, dbfs:/Volumes/, "
        f"{', '.join(sorted(f'{name}://' for name in REMOTE_SCHEMES))}"
    )
