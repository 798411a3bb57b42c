"""Credentials of object stores: the choice by URL, the refresh, and texts without secrets."""

from __future__ import annotations

import pickle
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import pytest

import pyspark_diff
from pyspark_diff.errors import StorageError
from pyspark_diff.trace import credentials
from pyspark_diff.trace.credentials import access_of, set_credentials
from pyspark_diff.trace.roots import objects_at
from pyspark_diff.trace.unity import UnityCredentials


@pytest.fixture(autouse=True)
def none_registered(monkeypatch):
    monkeypatch.setattr(credentials, "_registered", {})


def keys():
    return {"access_key_id": "id", "secret_access_key": "hunter2", "expires_at": None}


def others():
    return {"access_key_id": "other", "secret_access_key": "hunter3", "expires_at": None}


def test_the_longest_url_counts():
    set_credentials("s3://bucket", keys)
    set_credentials("s3://bucket/a/b/", others, region="eu-central-1")
    assert access_of("s3://bucket/a/bc").provider is keys
    assert access_of("s3://bucket").provider is keys
    assert access_of("s3://bucket/a/b/store").provider is others
    assert access_of("s3://bucket/a/b").options == {"region": "eu-central-1"}
    assert access_of("s3://bucket2/a").provider is None
    set_credentials("s3://bucket/a/b")
    assert access_of("s3://bucket/a/b/store").provider is keys


@pytest.mark.parametrize("url", [
    "bucket/x", "s3://", "s3://me:hunter2@b/x", "s3://b/x?sig=1", None,
])
def test_what_is_no_url_of_an_object_store(url):
    with pytest.raises(StorageError, match="no URL of an object store") as error:
        set_credentials(url, keys)
    assert "hunter2" not in str(error.value)


def test_credentials_are_a_function():
    with pytest.raises(StorageError, match="of type dict. Pass a function"):
        set_credentials("s3://bucket", keys())


def test_tasks_get_a_copy_and_nobody_is_shown_a_secret():
    set_credentials("s3://bucket", keys, region="eu-central-1")
    provide = credentials.sent(lambda: lambda: access_of("s3://bucket/x").provider())()
    credentials._registered.clear()
    assert provide() == keys()
    assert "hunter2" not in repr(access_of("s3://bucket"))


def test_without_credentials_a_task_is_as_before():
    function = len
    assert credentials.with_credentials(function) is function


class Client:
    """A stand-in for the client of a workspace; `issued` counts the calls."""

    def __init__(self, seconds=3600, **answer):
        self.issued, self._answer, self._seconds = [], answer, seconds
        self.temporary_path_credentials = self

    def generate_temporary_path_credentials(self, url, operation):
        self.issued.append((url, operation.value))
        expires = datetime.now(timezone.utc) + timedelta(seconds=self._seconds)
        kinds = ("aws_temp_credentials", "azure_aad", "azure_user_delegation_sas",
                 "gcp_oauth_token", "r2_temp_credentials")
        return SimpleNamespace(**{
            **dict.fromkeys(kinds), **self._answer,
            "expiration_time": int(expires.timestamp() * 1000),
        })

    def __reduce__(self):
        raise TypeError("a client holds locks")


AWS = SimpleNamespace(access_key_id="id", secret_access_key="hunter2", session_token="token")


@pytest.mark.parametrize("answer, expected", [
    ({"aws_temp_credentials": AWS},
     {"access_key_id": "id", "secret_access_key": "hunter2", "token": "token"}),
    ({"r2_temp_credentials": AWS},
     {"access_key_id": "id", "secret_access_key": "hunter2", "token": "token"}),
    ({"azure_user_delegation_sas": SimpleNamespace(sas_token="sas")}, {"sas_token": "sas"}),
    ({"azure_aad": SimpleNamespace(aad_token="aad")}, {"token": "aad"}),
    ({"gcp_oauth_token": SimpleNamespace(oauth_token="gcp")}, {"token": "gcp"}),
])
def test_unity_catalog_issues_credentials_of_each_cloud(answer, expected):
    client = Client(**answer)
    got = dict(UnityCredentials(client, "s3://bucket/x")())
    assert got.pop("expires_at") > datetime.now(timezone.utc)
    assert got == expected
    assert client.issued == [("s3://bucket/x", "PATH_READ_WRITE")]


def test_unity_catalog_issues_none():
    with pytest.raises(StorageError, match="external location"):
        UnityCredentials(Client(), "s3://bucket/x")()


def test_a_task_gets_temporary_credentials_and_no_client():
    provider = UnityCredentials(Client(aws_temp_credentials=AWS), "s3://bucket/x")
    there = pickle.loads(pickle.dumps(provider))
    assert there()["access_key_id"] == "id"
    assert pickle.loads(pickle.dumps(there))()["token"] == "token"
    late = pickle.loads(pickle.dumps(
        UnityCredentials(Client(seconds=-5, aws_temp_credentials=AWS), "s3://bucket/x")))
    with pytest.raises(StorageError, match="have expired in a task"):
        late()
    assert "hunter2" not in repr(provider)


def test_a_client_of_obstore_takes_the_credentials_of_its_url():
    obstore = pytest.importorskip("obstore")
    asked = []

    def provider():
        asked.append(1)
        return keys()

    set_credentials("s3://bucket", provider, endpoint="http://127.0.0.1:1", region="us-east-1")
    objects = objects_at("s3://bucket/x")
    assert objects._store.config["endpoint"] == "http://127.0.0.1:1"
    assert obstore and "hunter2" not in repr(objects._store)


def test_the_public_name():
    assert pyspark_diff.set_credentials is set_credentials
