"""What a commit keeps by a name, found without the program that wrote it and without a session.

    kept_in(decoder of commit n)[name]  =  flow[name]  of the dataflow when it had made commit n
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

#: What fields of times may be, by what Spark calls them.
_INTEGERS = {
    "tinyint": T.ByteType(), "smallint": T.ShortType(), "int": T.IntegerType(),
    "bigint": T.LongType(),
}
#: A field in the name of a struct's type: a name may have commas and colons, too.
_FIELD = re.compile(f"(.+?):({'|'.join(_INTEGERS)})(?:,|$)", re.DOTALL)


@dataclass(frozen=True)
class Kept:
    """A collection that was kept by a name.

    Parameters
    ----------
    arrangement : Arrangement
    columns : tuple of str
        The user's names of its columns, of which some may be there twice.
    buckets : int
        Of the dataflow.
    times : StructType or None
        The type of times, if these are structs: the last columns are then their fields, but for
        the first.
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
        """The user's names of the columns that rows are held by."""
        arrangement = self.arrangement
        names = dict(zip(arrangement.schema.names, self.columns))
        return tuple(names[name] for name in arrangement.key)


def kept_in(decoder: StoredTraces) -> dict[str, Any]:
    """What is told of the collections that are kept, by their names."""
    with understood():
        return dict(decoder.body["kept"])


def time_types_of(decoder: StoredTraces) -> tuple[T.StructType | None, TimeType]:
    """The type of the times of the dataflow if it is a struct, and that of times, or of their first
    field."""
    with understood():
        name = str(decoder.body["time_type"])
        if not name.startswith("struct<"):
            return None, parse_time_type(name)
        times = T.StructType()
        # Without a session, which Spark would ask to parse it.
        for field, kind in _FIELD.findall(name.removeprefix("struct<").removesuffix(">")):
            times.add(field, _INTEGERS[kind])
        return times, TimeType(times.fields[0].dataType)


def kept(decoder: StoredTraces, name: str, where: str) -> Kept:
    """The collection of a name.

    Parameters
    ----------
    decoder : StoredTraces
    name : str
    where : str
        Tells which commit it is, of which store.

    Raises
    ------
    NotReadableError
        If there is none of that name.
    """
    every = kept_in(decoder)
    if name not in every:
        names = ", ".join(map(repr, every)) or "none"
        raise NotReadableError(
            f"no collection was kept under the name {name!r} at {where}, of these: {names}"
        )
    times, time_type = time_types_of(decoder)
    with understood():
        told = every[name]
        schema = Schema(schema_from_json(told["schema"]))
        key, stored = [tuple(map(str, told[part])) for part in ("key", "stored")]
        columns = tuple(map(str, told["columns"]))
        if sorted(stored) != sorted(schema.names) or len(columns) != len(stored):
            raise ValueError(f"{name!r} has other columns than are kept of it")
        trace = decoder.trace(int(told["trace"]))
        if trace is None:
            raise ValueError(f"nothing is kept of {name!r}")
        body = decoder.body
        arrangement = Arrangement(
            trace, schema, schema.layout_by(key, stored), stored, time_type,
            str(body["time"]), str(body["diff"]),
        )
        return Kept(arrangement, columns, int(body["buckets"]), times)
