"""Credentials of object stores, by the URLs below which they are used.

The registry belongs to a process. `sent` takes it to the processes of Spark's tasks, with each task
that may read or write there. Nothing of it is written to a store.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pyspark_diff.errors import StorageError
from pyspark_diff.trace.objects import redacted, volume_url

_Factory = TypeVar("_Factory", bound=Callable[..., Callable[..., Any]])


@dataclass(frozen=True)
class Access:
    """How a client opens the URLs below a prefix.

    Attributes
    ----------
    provider : callable or None
        Returns the credentials; None for those of the environment.
    options : mapping of str to str
        Settings of the client, such as the region.
    number : int
        The number of the call that set them; tasks have those of the driver.
    """

    provider: Callable[[], Mapping[str, Any]] | None
    options: Mapping[str, str]
    number: int = 0


_numbers = count(1)
_registered: dict[str, Access] = {}


def set_credentials(
    url: str, provider: Callable[[], Mapping[str, Any]] | None = None, **options: str
) -> None:
    """Set the credentials of all stores and inboxes below a URL, for this process and its tasks.

    Without a call, each client takes its credentials from the environment. Call it before opening
    the store. A later call for the same URL replaces the credentials for stores that are opened
    afterwards; without a provider and options it removes them.

    Parameters
    ----------
    url : str
        The URL of a bucket or a folder in it, such as ``s3://bucket/folder``. For a store, the
        longest such prefix of its URL counts. Or the path of a volume,
        ``/Volumes/catalog/schema/volume``.
    provider : callable, optional
        Takes no argument, and returns the credentials as a dict. The client calls it at the first
        use, and again when their ``expires_at`` has passed. Any `credential provider of obstore
        <https://developmentseed.org/obstore/latest/authentication/>`_ works, for example
        ``obstore.auth.boto3.Boto3CredentialProvider()``. Spark's tasks get a copy. For a volume
        it returns a ``databricks.sdk.WorkspaceClient``, such as the class itself. Tasks get none:
        they read and write the volume by path.
    **options : str
        Settings of obstore's client, such as ``region`` and ``endpoint``, which override those of
        the environment. A volume only has ``mount``, the folder in which all machines have the
        volumes if it is not ``/Volumes``.

    Raises
    ------
    StorageError
        If the URL is not one of an object store.

    Examples
    --------
    >>> import pyspark_diff
    >>> def secret():
    ...     return {"access_key_id": "id", "secret_access_key": "key", "expires_at": None}
    >>> pyspark_diff.set_credentials("s3://bucket/states", secret, region="eu-central-1")
    >>> pyspark_diff.set_credentials("s3://bucket/states")
    """
    volume = volume_url(url) if isinstance(url, str) else None
    there = urlsplit(url) if isinstance(url, str) else None
    if volume is None and (
        there is None or not there.scheme or not there.netloc or there.query or "@" in there.netloc
    ):
        raise StorageError(
            f"credentials were set for {redacted(str(url))!r}, which is no URL of an object store. "
            "Pass a URL such as s3://bucket/folder, without a password and a query"
        )
    if provider is not None and not callable(provider):
        raise StorageError(
            f"the credentials for {url!r} are of type {type(provider).__name__}. Pass a function "
            "that returns them, so that they can be renewed"
        )
    prefix = volume or url.rstrip("/")
    if provider is None and not options:
        _registered.pop(prefix, None)
    else:
        _registered[prefix] = Access(provider, dict(options), next(_numbers))


def access_of(url: str) -> Access:
    """The settings for opening a URL.

    Examples
    --------
    >>> access_of("s3://other/states").provider is None
    True
    """
    path = url.rstrip("/")
    while "://" in path:
        if path in _registered:
            return _registered[path]
        path = path.rpartition("/")[0]
    return Access(None, {})


def sent(factory: _Factory) -> _Factory:
    """Wrap a factory of task functions, so that the tasks know the credentials of this process."""

    @functools.wraps(factory)
    def make(*arguments: Any, **options: Any) -> Callable[..., Any]:
        return with_credentials(factory(*arguments, **options))

    return make  # type: ignore[return-value]


def with_credentials(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a task function, so that the tasks know the credentials of this process."""
    if not _registered:
        return function
    # A client of a workspace has locks, and tasks of serverless compute have no network.
    accesses = {
        url: replace(access, provider=None) if volume_url(url) else access
        for url, access in _registered.items()
    }

    def run(*arguments: Any) -> Any:
        adopt(accesses)
        return function(*arguments)

    return run


def adopt(accesses: Mapping[str, Access]) -> None:
    """Use the credentials of the driver in this process."""
    # It must be a function of this module: a task gets copies of other objects of its function.
    for url, access in accesses.items():
        known = _registered.get(url)
        # On the driver itself, the client of a workspace stays.
        if known is None or known.number != access.number or access.provider is not None:
            _registered[url] = access
