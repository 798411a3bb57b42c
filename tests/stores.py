"""Roots of stores for tests: a folder, memory, a bucket of one server, a volume of another."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pytest
import volumes

from pyspark_diff.trace.credentials import set_credentials

KINDS = ["local", "memory", "s3", "volume"]


@lru_cache(maxsize=1)
def s3_server() -> Any:
    """A server of this process, with one bucket named ``bucket``."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    urllib.request.urlopen(urllib.request.Request(f"{address_of(server)}/bucket", method="PUT"))
    return server


def address_of(server: Any) -> str:
    """The address of a server for S3."""
    return "http://{}:{}".format(*server.get_host_and_port())


class Late:
    """Lets some requests that write wait at a server before it reads them.

    Attributes
    ----------
    under_way : int
        The requests that write and have no answer yet.
    """

    def __init__(self, server: Any, *, share: float, seconds: float, seed: int):
        self._server, self._app = server._server, server._server.app
        self._chance, self._share, self._seconds = random.Random(seed), share, seconds
        self._lock = threading.Lock()
        self.under_way = 0

    def __call__(self, request: Any, respond: Any) -> Any:
        if request["REQUEST_METHOD"] not in ("PUT", "POST", "DELETE"):
            return self._app(request, respond)
        with self._lock:
            self.under_way += 1
            waits = self._chance.random() < self._share
            seconds = self._chance.random() * self._seconds * waits
        try:
            time.sleep(seconds)
            return self._app(request, respond)
        finally:
            with self._lock:
                self.under_way -= 1

    def __enter__(self) -> Late:
        self._server.app = self
        return self

    def __exit__(self, *_: object) -> None:
        self._server.app = self._app


def environment() -> dict[str, str]:
    """The address and credentials for a client of S3."""
    return {
        "AWS_ENDPOINT_URL": address_of(s3_server()),
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "an-id",
        "AWS_SECRET_ACCESS_KEY": "a-very-secret-key",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


@pytest.fixture(params=KINDS)
def root(
    request: pytest.FixtureRequest, tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A root where nothing is yet, of each kind."""
    if request.param == "local":
        yield os.path.join(tmp_path, "made", "with", "it")
        return
    if request.param == "volume":
        pytest.importorskip("databricks.sdk")
        there = volumes.workspace()
        set_credentials(volumes.VOLUME, there.client, mount=str(there.folder))
        yield f"{volumes.VOLUME}/{uuid.uuid4().hex}"
        set_credentials(volumes.VOLUME)
        return
    pytest.importorskip("obstore")
    if request.param == "memory":
        yield f"memory://{uuid.uuid4().hex}/folder"
        return
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    yield f"s3://bucket/{uuid.uuid4().hex}"
