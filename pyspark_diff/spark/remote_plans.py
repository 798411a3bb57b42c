"""The plans of frames of Spark Connect, as their client sends them to the server."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T


def relation_of(frame: DataFrame) -> Any:
    """The relation of a frame: a message of Connect's protocol. The server is not asked."""
    plan: Any = frame
    return plan._plan.plan(plan._session.client)


def frame_of_relation(relation: Any, spark: SparkSession) -> DataFrame:
    """The frame of a relation."""
    from pyspark.sql.connect.dataframe import DataFrame as RemoteFrame
    from pyspark.sql.connect.plan import CachedRelation

    copy = type(relation)()
    copy.CopyFrom(relation)
    session: Any = spark
    frame: Any = RemoteFrame(CachedRelation(copy), session)
    return frame


def type_of_message(message: Any) -> T.DataType:
    """The type that a message of Connect's protocol describes."""
    from pyspark.sql.connect.types import proto_schema_to_pyspark_data_type

    return proto_schema_to_pyspark_data_type(message)


def value_of_literal(message: Any) -> Any:
    """The value of a literal of Connect's protocol."""
    from pyspark.sql.connect.expressions import LiteralExpression

    return LiteralExpression._to_value(message)
