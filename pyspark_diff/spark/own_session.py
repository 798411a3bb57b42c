"""A session of the same Spark application with its own settings, classic and over Connect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pyspark.sql import SparkSession, is_remote
from pyspark.sql import types as T

from pyspark_diff.errors import SinkError
from pyspark_diff.spark.jvm import frame_of_no_rows


@contextmanager
def own_session(spark: SparkSession) -> Iterator[SparkSession]:
    """Another session with the settings of a session; later changes reach only one of the two.

    Raises
    ------
    SinkError
        If the client of Connect can make no other session.
    """
    session = _new(spark)
    there = session.conf.getAll
    for name, value in spark.conf.getAll.items():
        if there.get(name) != value and session.conf.isModifiable(name):
            session.conf.set(name, value)
    try:
        yield session
    finally:
        if is_remote():
            # The server also drops it after an hour without a request. A channel that is not
            # closed may block the process: gRPC takes a lock when the channel is collected.
            with suppress(Exception):
                session.client.release_session()
            with suppress(Exception):
                session.client.close()
        # A new session becomes the active one; this makes the user's session active again.
        frame_of_no_rows(spark, T.StructType())


def _new(spark: SparkSession) -> SparkSession:
    # A client of Connect has it since 4.3. That of Databricks 18 has a cloneSession, which fails.
    new: Callable[[SparkSession], SparkSession] | None = getattr(type(spark), "newSession", None)
    if new is not None:
        return new(spark)
    builder = spark.client._builder
    if builder.session_id is not None:
        raise SinkError(
            "A sink of Delta needs a session of its own. This client of Spark Connect makes none, "
            "because its address names the session. Remove session_id from the address"
        )
    return type(spark)(connection=builder)  # type: ignore[call-arg]
