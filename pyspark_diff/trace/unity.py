"""Temporary credentials of Unity Catalog for stores in external locations."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from enum import Enum
from typing import Any

from pyspark_diff.errors import StorageError
from pyspark_diff.trace.objects import redacted


class _Operation(Enum):
    """The operation that the service expects, without an import of its client."""

    READ_WRITE = "PATH_READ_WRITE"


class UnityCredentials:
    """Credentials that Unity Catalog issues for one path, for `set_credentials`.

    They last about an hour, and the driver renews them. A task gets the credentials that are
    current when its job is planned, so a single job must end within that hour.

    Parameters
    ----------
    client : databricks.sdk.WorkspaceClient
        A client from the extra ``databricks``. Its user needs ``EXTERNAL USE LOCATION`` on the
        location.
    url : str
        The path of the store, such as ``s3://bucket/folder``.

    Examples
    --------
    On Databricks::

        from databricks.sdk import WorkspaceClient
        url = "s3://bucket/states"
        pyspark_diff.set_credentials(url, UnityCredentials(WorkspaceClient(), url))

    Source: `Temporary path credentials
    <https://docs.databricks.com/api/workspace/temporarypathcredentials>`_.
    """

    def __init__(self, client: Any, url: str):
        self._client, self._url = client, url
        self._last: Mapping[str, Any] | None = None

    def __call__(self) -> Mapping[str, Any]:
        """The credentials in the form that obstore expects.

        Raises
        ------
        StorageError
            If the service answers with credentials of an unsupported kind of store, or if the
            credentials of a task have expired.
        """
        if self._client is None:
            return self._unexpired()
        answer = self._client.temporary_path_credentials.generate_temporary_path_credentials(
            self._url, _Operation.READ_WRITE)
        self._last = _credentials_in(answer, self._url)
        return self._last

    def _unexpired(self) -> Mapping[str, Any]:
        assert self._last is not None
        if self._last["expires_at"] <= datetime.now(timezone.utc):
            raise StorageError(
                f"the temporary credentials of {redacted(self._url)!r} have expired in a task that "
                "began with valid ones. Run the step again with more buckets, so that its jobs are "
                "shorter"
            )
        return self._last

    def __getstate__(self) -> dict[str, Any]:
        # A client has locks and the workspace's own token: tasks get only temporary credentials.
        last = self._last if self._client is None else self()
        return {"_client": None, "_url": self._url, "_last": last}

    def __repr__(self) -> str:
        return f"UnityCredentials({redacted(self._url)!r})"


def _credentials_in(answer: Any, url: str) -> Mapping[str, Any]:
    expires = datetime.fromtimestamp(answer.expiration_time / 1000, timezone.utc)
    s3 = answer.aws_temp_credentials or getattr(answer, "r2_temp_credentials", None)
    if s3 is not None:
        return {
            "access_key_id": s3.access_key_id, "secret_access_key": s3.secret_access_key,
            "token": s3.session_token, "expires_at": expires,
        }
    if answer.azure_user_delegation_sas is not None:
        return {"sas_token": answer.azure_user_delegation_sas.sas_token, "expires_at": expires}
    if answer.azure_aad is not None:
        return {"token": answer.azure_aad.aad_token, "expires_at": expires}
    if answer.gcp_oauth_token is not None:
        return {"token": answer.gcp_oauth_token.oauth_token, "expires_at": expires}
    raise StorageError(
        f"Unity Catalog has issued no credentials of S3, Azure, Google Cloud or R2 for "
        f"{redacted(url)!r}. Check that the path lies in an external location"
    )
