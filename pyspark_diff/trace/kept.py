"""The kept collections of a commit, read without the writing program and without a session.

    kept_in(decoder of commit n)[name]  =  flow[name]  of the dataflow after commit n
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pyspark.sql import types as T

from pyspark_diff.errors import NotReadableError
from pyspark_diff.spark.schema import Schema, TimeType, parse_time_type
from pyspark_diff.spark.stored_schema import schema_from_json
from pyspark_diff.trace.arrangement import Arrangement
from pyspark_diff.trace.stored_traces import StoredTraces, understood

#: The types that a field of a time may have, by Spark's names for them.
_INTEGERS = {
    "tinyint": T.ByteType(), "smallint": T.ShortType(), "int": T.IntegerType(),
    "bigint": T.LongType(),
}
#: A field in the name of a struct's type: a name may have commas and colons, too.
_FIELD = re.compile(f"(.+?):({'|'.join(_INTEGERS)})(?:,|$)", re.DOTALL)


@dataclass(frozen=True)
class KeptCollection:
    """A collection that was kept under a name.

    Parameters
    ----------
    columns : tuple of str
        The user's names of its columns, possibly with duplicates.
    buckets : int
        The number of buckets of the dataflow.
    times : StructType or None
        The type of times, if these are structs. The last columns are then the fields of the
        struct without its first field.
    """

    arrangement: Arrangement
    columns: tuple[str, ...]
    buckets: int
    times: T.StructType | None = None

    @property
    def struct(self) -> T.StructType:
        """Spark schema of the records, by the user's names."""
        fields = self.arrangement.schema.struct.fields
        return T.StructType([
            T.StructField(name, field.dataType, field.nullable)
            for name, field in zip(self.columns, fields)
        ])

    @property
    def key(self) -> tuple[str, ...]:
        """The user's names of the columns of the key."""
        arrangement = self.arrangement
        names = dict(zip(arrangement.schema.names, self.columns))
        return tuple(names[name] for name in arrangement.key)


def kept_in(decoder: StoredTraces) -> dict[str, Any]:
    """The JSON description of each kept collection, by its name."""
    with understood():
        return dict(decoder.body["kept"])


def time_types_of(decoder: StoredTraces) -> tuple[T.StructType | None, TimeType]:
    """The struct type of the dataflow's times, or None, and the type of their first coordinate."""
    with understood():
        name = str(decoder.body["time_type"])
        if not name.startswith("struct<"):
            return None, parse_time_type(name)
        times = T.StructType()
        # Spark would need a session to parse the type.
        for field, kind in _FIELD.findall(name.removeprefix("struct<").removesuffix(">")):
            times.add(field, _INTEGERS[kind])
        return times, TimeType(times.fields[0].dataType)


def kept_collection(decoder: StoredTraces, name: str, where: str) -> KeptCollection:
    """The collection that was kept under a name.

    Parameters
    ----------
    where : str
        The commit and the store, for messages.

    Raises
    ------
    NotReadableError
        If no collection has this name.
    """
    collections = kept_in(decoder)
    if name not in collections:
        names = ", ".join(map(repr, collections)) or "none"
        raise NotReadableError(
            f"no collection was kept under the name {name!r} at {where}. The kept names: {names}"
        )
    times, time_type = time_types_of(decoder)
    with understood():
        encoded = collections[name]
        schema = Schema(schema_from_json(encoded["schema"]))
        key, stored = [tuple(map(str, encoded[part])) for part in ("key", "stored")]
        columns = tuple(map(str, encoded["columns"]))
        if sorted(stored) != sorted(schema.names) or len(columns) != len(stored):
            raise ValueError(f"the columns of {name!r} are not those of its arrangement")
        trace = decoder.trace(int(encoded["trace"]))
        if trace is None:
            raise ValueError(f"{name!r} has no arrangement")
        body = decoder.body
        arrangement = Arrangement(
            trace, schema, schema.layout_by(key, stored), stored, time_type,
            str(body["time"]), str(body["diff"]),
        )
        return KeptCollection(arrangement, columns, int(body["buckets"]), times)
