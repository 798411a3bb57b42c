"""Schemas of collections, and the types a logical time may have.

The records of a collection are *data columns*. Two columns of the library, ``__time`` and
``__diff``, have the time and the diff of each record. For every time type::

    decode(encode(t)) == t      and      encode(s) <= encode(t)  iff  s <= t
"""

from __future__ import annotations

import datetime
import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Iterable, Literal, Sequence

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from pyspark_diff.errors import (
    InvalidTimeError,
    ReservedNameError,
    SchemaError,
    UnsupportedTypeError,
)
from pyspark_diff.kernels.layout import Layout
from pyspark_diff.spark.data_types import (
    arrow_type,
    components,
    contains,
    incomparable,
    without_nullability,
)
from pyspark_diff.spark.settings import CASE, is_on

#: The columns of the library, which users never see.
TIME, DIFF = "__time", "__diff"

_EPOCH = datetime.datetime(1970, 1, 1)
_EPOCH_UTC = _EPOCH.replace(tzinfo=datetime.timezone.utc)
_MICROSECOND = datetime.timedelta(microseconds=1)


@dataclass(frozen=True)
class Schema:
    """The data columns of a collection.

    Parameters
    ----------
    struct : pyspark.sql.types.StructType
        Names and Spark types, in order.

    Raises
    ------
    ReservedNameError
        If a name starts with two underscores.
    SchemaError
        If two names are the same up to case, or two fields of a struct have one name.

    Examples
    --------
    >>> from pyspark.sql.types import StructType
    >>> Schema(StructType.fromDDL("src long, dst long")).names
    ('src', 'dst')
    """

    struct: T.StructType

    def __post_init__(self) -> None:
        check_names(self.names)
        for field in self.struct.fields:
            _check_fields(field.name, field.dataType)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Column names in order."""
        return tuple(self.struct.names)

    @cached_property
    def types(self) -> tuple[T.DataType, ...]:
        """Spark types in order."""
        return tuple(field.dataType for field in self.struct.fields)

    @cached_property
    def _fields(self) -> dict[str, T.StructField]:
        # A look-up of a name in a struct goes through all of its fields.
        return {field.name: field for field in self.struct.fields}

    def field(self, name: str) -> T.StructField:
        """The column of this name."""
        return self._fields[name]

    def arrow_types(self) -> tuple[pa.DataType, ...]:
        """Arrow types in order, as Spark passes columns to Python."""
        return tuple(_arrow_type_of(field) for field in self.struct.fields)

    def arrow(self, names: Iterable[str] | None = None) -> pa.Schema:
        """Arrow schema of all columns, or of the named columns in this order."""
        wanted = self.names if names is None else tuple(names)
        kinds = dict(zip(self.names, self.arrow_types()))
        return pa.schema([(name, kinds[name]) for name in wanted])

    def only(self, names: Iterable[str]) -> "Schema":
        """The schema of some columns, in the given order."""
        return Schema(T.StructType([self.field(name) for name in names]))

    def resolved(
        self, names: str | Sequence[str], what: str, spark: SparkSession
    ) -> tuple[str, ...]:
        """The columns that some names mean under the setting ``spark.sql.caseSensitive``.

        Raises
        ------
        SchemaError
            If a name has no column, a column is named twice, or no name is given.
        """
        listed = [names] if isinstance(names, str) else names
        if not isinstance(listed, (list, tuple)) or not listed:
            raise SchemaError(f"{what} is a column name or a list of them, not {names!r}")
        columns: list[str] = []
        for name in listed:
            like = meant_by(name, self.names, spark)
            if not like:
                raise SchemaError(
                    f"there is no column {name!r} for {what}; the columns are "
                    f"{', '.join(self.names)}"
                )
            columns += like
        if len(set(columns)) < len(columns):
            raise SchemaError(f"{what} names a column more than once: {', '.join(columns)}")
        return tuple(columns)

    def layout(self, names: Iterable[str] | None = None) -> Layout:
        """The layout of records with some columns. Two records are equal if their bytes are equal,
        in the normal form of `pyspark_diff.kernels.equality`.

        Raises
        ------
        UnsupportedTypeError
            If a type has no form in Arrow.
        """
        wanted = self.names if names is None else tuple(names)
        for name in wanted:
            kind = self.field(name).dataType
            if contains(kind, T.UserDefinedType):
                raise UnsupportedTypeError(
                    f"column {name!r} of type {kind.simpleString()} cannot be kept: a user-defined "
                    "type has no equality in this library. Drop the column, or take the parts "
                    "that you need as columns of Spark's own types"
                )
        return Layout(tuple(self.arrow(wanted).types))

    def layout_by(self, key: Sequence[str], stored: Sequence[str]) -> Layout:
        """The layout of records that are stored by a key, with the columns of the key first."""
        layout = self.layout(key)
        if len(key) == len(self.names):
            return layout
        return replace(layout, value=self.layout(stored[len(key):]))

    def check_compared(
        self, names: Iterable[str] | None = None, use: Literal["key", "order", "join"] = "key"
    ) -> None:
        """Refuse columns that an operator cannot compare as Spark does.

        Parameters
        ----------
        names : iterable of str, optional
            The columns that it compares. The default is all columns.
        use : {"key", "order", "join"}
            The use of the columns. Spark groups by maps, but does not sort or join by maps.

        Raises
        ------
        UnsupportedTypeError
        """
        for name in self.names if names is None else names:
            kind = self.field(name).dataType
            reason = incomparable(kind, ordered=use != "key")
            if reason:
                raise UnsupportedTypeError(
                    f"column {name!r} of type {kind.simpleString()} cannot be "
                    f"{_USES[use]}: {reason}; drop it, or turn it into columns that can be "
                    "compared (for a map: array_sort(map_entries(...)))"
                )

    def describe(self) -> str:
        """Names and types in one line, for messages."""
        return ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in self.struct.fields)

    def same_types(self, other: "Schema") -> bool:
        """Whether both have the same names and types, in the same order, regardless of
        nullability."""
        return self.names == other.names and all(
            without_nullability(a) == without_nullability(b)
            for a, b in zip(self.types, other.types)
        )


def meant_by(name: object, known: Iterable[str], spark: SparkSession) -> list[str]:
    """The columns that a name means under the setting ``spark.sql.caseSensitive``.

    Examples
    --------
    >>> meant_by("SRC", ["src", "dst"], spark), meant_by("nosuch", ["src"], spark)
    (['src'], [])
    """
    columns = list(known)
    exact = [column for column in columns if column == name]
    if not isinstance(name, str):
        return exact
    any_case = [column for column in columns if column.lower() == name.lower()]
    if len(any_case) == len(exact):
        return exact  # the setting makes no difference
    return exact if case_matters(spark) else any_case


def case_matters(spark: SparkSession) -> bool:
    """Whether names that differ in case only are different columns."""
    return is_on(spark, CASE)


def parse_schema(schema: str | T.StructType) -> Schema:
    """A schema from a DDL string (``"src long, dst long"``) or a StructType.

    All columns become nullable: nothing checks the rows, and Spark would compute wrongly with a
    null in a non-null column.
    """
    struct = _from_ddl(schema) if isinstance(schema, str) else schema
    if not isinstance(struct, T.StructType):
        raise SchemaError(
            f"a schema is a text such as 'src long, dst long' or a StructType, not {schema!r}"
        )
    return Schema(without_nullability(struct))


def quoted(name: str) -> str:
    """A column name in quotes, which Spark takes literally, with any characters.

    Examples
    --------
    >>> quoted("a.b")
    '`a.b`'
    """
    return "`" + name.replace("`", "``") + "`"


def as_keys(key: str | Sequence[str]) -> tuple[str, ...]:
    """The columns of a key, from one name or several.

    Examples
    --------
    >>> as_keys("src"), as_keys(["src", "dst"])
    (('src',), ('src', 'dst'))
    """
    return (key,) if isinstance(key, str) else tuple(key)


def check_names(names: Sequence[str]) -> None:
    """Refuse names that the library reserves, and names that differ only in case."""
    odd = [name for name in names if not isinstance(name, str)]
    if odd:
        raise SchemaError(f"column names are texts, not {', '.join(map(repr, odd))}")
    reserved = [name for name in names if name.startswith("__")]
    if reserved:
        raise ReservedNameError(
            f"column names that start with two underscores are reserved: {', '.join(reserved)}; "
            "rename these columns"
        )
    twice = [name for name, n in Counter(name.lower() for name in names).items() if n > 1]
    if twice:
        raise SchemaError(
            f"columns appear more than once (names are compared without case): {', '.join(twice)}. "
            f"The columns are {', '.join(names)}; rename or drop some"
        )


def _check_fields(name: str, kind: T.DataType) -> None:
    """Refuse a struct with two fields of one name: Arrow and Python find fields by their names."""
    if isinstance(kind, T.StructType):
        twice = [field for field, n in Counter(kind.names).items() if n > 1]
        if twice:
            raise SchemaError(
                f"column {name!r} of type {kind.simpleString()} has a struct with two fields "
                f"called {twice[0]!r}. Give each field a name of its own, as in "
                "struct(x.alias('a'), x.alias('b')) or named_struct('a', x, 'b', x)"
            )
    for part in components(kind):
        _check_fields(name, part)


def check_data_names(names: Sequence[str], time: str, diff: str, what: str) -> None:
    """Refuse data columns with the name of the time or diff column."""
    clash = [name for name in names if name.lower() in (time.lower(), diff.lower())]
    if clash:
        raise SchemaError(
            f"{what} has a data column {', '.join(clash)}, which is the name of the time or diff "
            "column (names are compared without case). Rename it, or choose other names for time "
            "and diff with time=... and diff=..."
        )


def _arrow_type_of(field: T.StructField) -> pa.DataType:
    """The Arrow type of a column. An error names the column."""
    try:
        return arrow_type(field.dataType)
    except UnsupportedTypeError as error:
        raise UnsupportedTypeError(f"column {field.name!r}: {error}") from error


#: The use of a column, in messages.
_USES = {"key": "part of a key", "order": "part of an order", "join": "joined by"}


@dataclass(frozen=True)
class TimeType:
    """A totally ordered type of logical times: an integer, date or timestamp.

    Examples
    --------
    >>> TimeType(T.DateType()).encode(datetime.date(1970, 1, 3))
    2
    """

    kind: T.DataType

    def __post_init__(self) -> None:
        if not isinstance(
            self.kind,
            (T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.DateType, T.TimestampType,
             T.TimestampNTZType),
        ):
            raise SchemaError(
                f"a time column must be an integer, date or timestamp, not "
                f"{self.kind.simpleString()}; cast it"
            )

    @cached_property  # each step reads it several times
    def arrow(self) -> pa.DataType:
        """Arrow type of the time column."""
        return arrow_type(self.kind)

    @property
    def name(self) -> str:
        """Spark's name of the type."""
        return self.kind.simpleString()

    @property
    def start(self) -> int:
        """The default first time of inputs: zero, or the epoch."""
        return 0

    def encode(self, value: Any) -> int:
        """A time as the integer of kernels: the number itself, or days or microseconds since the
        epoch."""
        if isinstance(self.kind, T.DateType):
            if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
                return (value - _EPOCH.date()).days
        elif isinstance(self.kind, (T.TimestampType, T.TimestampNTZType)):
            if isinstance(value, datetime.datetime):
                return self._encode_timestamp(value)
        elif not isinstance(value, bool) and hasattr(value, "__index__"):
            number = value.__index__()
            bound = 1 << (self.arrow.bit_width - 1)
            if -bound <= number < bound:
                return int(number)
        raise InvalidTimeError(
            f"{value!r} is not a time of this dataflow, whose times are of type {self.name}"
        )

    def measures(self, kind: T.DataType) -> bool:
        """Whether values of a column are times of this type, or integers of another width."""
        if isinstance(self.kind, T.IntegralType):
            return isinstance(kind, T.IntegralType)
        return kind == self.kind

    def interval(self, value: Any, what: str) -> int:
        """An interval of time as a number: in the unit of integer times, in days or in
        microseconds.

        Raises
        ------
        InvalidTimeError
            If the value is no interval of these times, or not positive.

        Examples
        --------
        >>> TimeType(T.TimestampType()).interval("90 seconds", "delay")
        90000000
        >>> TimeType(T.DateType()).interval(datetime.timedelta(weeks=1), "delay")
        7
        """
        number: int | None = None
        if isinstance(self.kind, T.IntegralType):
            wanted = (
                "an integer, as the times are (for instants as times, make the dataflow with "
                "time_type='timestamp')"
            )
            if not isinstance(value, bool) and hasattr(value, "__index__"):
                number = int(value.__index__())
        else:
            dates = isinstance(self.kind, T.DateType)
            wanted = "a timedelta, or a text such as '7 days' or '2 weeks'"
            wanted += ", of whole days" if dates else ", '90 seconds'"
            length = _length(value) if isinstance(value, str) else value
            unit = datetime.timedelta(days=1) if dates else _MICROSECOND
            if isinstance(length, datetime.timedelta) and not length % unit:
                number = length // unit
        if number is None:
            raise InvalidTimeError(
                f"{what} takes an interval, which for times of type {self.name} is {wanted}; not "
                f"{value!r}"
            )
        if number <= 0:
            raise InvalidTimeError(f"the interval of {what} is positive, not {value!r}")
        return number

    def _encode_timestamp(self, value: datetime.datetime) -> int:
        if isinstance(self.kind, T.TimestampNTZType):
            if value.tzinfo is not None:
                raise InvalidTimeError(
                    f"{value!r} has a time zone, times of type timestamp_ntz have none"
                )
            return (value - _EPOCH) // _MICROSECOND
        # A naive datetime is local time, as everywhere in PySpark.
        return (value.astimezone(datetime.timezone.utc) - _EPOCH_UTC) // _MICROSECOND

    def decode(self, number: int) -> Any:
        """The Python value of an encoded time."""
        if isinstance(self.kind, T.DateType):
            return _EPOCH.date() + datetime.timedelta(days=number)
        if isinstance(self.kind, T.TimestampNTZType):
            return _EPOCH + datetime.timedelta(microseconds=number)
        if isinstance(self.kind, T.TimestampType):
            # Local time; the attribute `fold` distinguishes the second of two equal hours from the
            # first.
            seconds, rest = divmod(number, 1_000_000)
            return datetime.datetime.fromtimestamp(seconds).replace(microsecond=rest)
        return int(number)


_LENGTH = re.compile(r"\s*(\d+)\s*(microsecond|millisecond|second|minute|hour|day|week)s?\s*")


def _length(text: str) -> datetime.timedelta | None:
    """The length of an interval in text form; months have no fixed length and are refused."""
    match = _LENGTH.fullmatch(text.lower())
    try:
        return None if match is None else datetime.timedelta(**{f"{match[2]}s": int(match[1])})
    except OverflowError:
        return None


#: Time types, by Spark's names.
_TIME_TYPES: dict[str, T.DataType] = {
    kind.simpleString(): kind for kind in (
        T.ByteType(), T.ShortType(), T.IntegerType(), T.LongType(), T.DateType(),
        T.TimestampType(), T.TimestampNTZType(),
    )
}


def parse_time_type(kind: str | T.DataType) -> TimeType:
    """A time type from its Spark name (``"long"``, ``"date"``, ``"timestamp"``) or type."""
    if isinstance(kind, str):
        # A type with Spark's own name needs no session, so it is available in tasks.
        known = _TIME_TYPES.get(kind)
        if known is None:
            try:
                known = _from_ddl(f"t {kind}").fields[0].dataType
            except PySparkException as error:
                raise SchemaError(
                    f"the time type is {kind!r}, which is no type of Spark; take one of "
                    f"{', '.join(_TIME_TYPES)}, or a struct of integers"
                ) from error
        return TimeType(known)
    if not isinstance(kind, T.DataType):
        raise SchemaError(
            f"a time type is a text such as 'long' or 'timestamp', or a DataType, not {kind!r}"
        )
    return TimeType(kind)


def _from_ddl(ddl: str) -> T.StructType:
    struct = T.StructType.fromDDL(ddl)
    if not isinstance(struct, T.StructType):
        raise SchemaError(f"{ddl!r} is not a list of columns such as 'src long, dst long'")
    return struct
