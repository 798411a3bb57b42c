"""The folder that a path or a ``file:`` URI names."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote_to_bytes

from pyspark_diff.errors import StorageError

#: Schemes of object stores, for roots such as ``s3://bucket/folder``.
REMOTE_SCHEMES = frozenset({"s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "memory"})
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):(/*)", re.IGNORECASE)
_FILE_URI = re.compile(r"file:(?://(?:localhost)?(?=/)|(?!//))(/.*)", re.IGNORECASE | re.DOTALL)


def local_folder(path: str) -> str | None:
    """The absolute path of a folder; None for the URL of another file system or host.

    Raises
    ------
    StorageError
        If Python and other programs would read the path as different folders.

    Examples
    --------
    >>> local_folder("/data/./a b"), local_folder("file:///data/a%20b"), local_folder("/data/a%20b")
    ('/data/a b', '/data/a b', '/data/a%20b')
    >>> local_folder("s3://bucket/folder") is None
    True
    """
    if "\0" in path:
        raise StorageError(
            f"the path {path!r} has a null character, and no file system stores one. Pass the path "
            "of a folder without it"
        )
    if path.startswith("~"):
        raise StorageError(
            f"the path {path!r} begins with '~', and only a shell replaces it by a home directory. "
            f"Pass os.path.expanduser({path!r}), or an absolute path if the folder has this name"
        )
    scheme = _SCHEME.match(path)
    if scheme is None:
        return os.path.abspath(path)
    name, slashes = scheme[1].lower(), len(scheme[2])
    if name in REMOTE_SCHEMES and (slashes != 2 or len(path) == scheme.end()):
        raise StorageError(
            f"the root begins with '{name}:', and names no bucket. Pass a text such as "
            f"'{name}://bucket/folder': pathlib removes a slash of a URL. For a folder of this "
            "name, pass its absolute path"
        )
    if name in ("file", "dbfs") and not slashes:
        raise StorageError(
            f"the path {path!r} begins with a scheme, and no slash is next. Pass a URL such as "
            f"'{name}:/folder', or the absolute path if the folder has this name"
        )
    if not slashes:
        return os.path.abspath(path)  # a colon in a name
    uri = _FILE_URI.fullmatch(path)
    if uri is None:
        return None
    if "?" in path or "#" in path:
        raise StorageError(
            f"the URI {path!r} has a '?' or a '#', where the path of a URI ends. Write %3F or %23 "
            "in its place, as pathlib.Path.as_uri does, or pass the path without file:"
        )
    folder = os.fsdecode(unquote_to_bytes(os.fsencode(uri[1])))
    if "\0" in folder:
        raise StorageError(
            f"the URI {path!r} has a null character, and no file system stores one. Pass the path "
            "of a folder without it"
        )
    return os.path.abspath(folder)
