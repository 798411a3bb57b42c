"""Columns that a user takes from a frame: ``df["x"]`` is the column ``x`` of that collection and of
no other.

Spark knows no collections, so in Spark such a column has a generated name: ``x#7``, as in its
plans. Every column of a collection has a *handle*, and a *lineage*: its handle, and the handles of
the same column, unchanged, in earlier collections::

    h refers to a column of collection c  ⟺  h is in the lineage of that column of c

A frame on which Spark evaluates an expression has the columns of its handles also under the names
of the handles.

A plain Spark frame that becomes a collection has columns of its own, ``df["x"]``. In an expression,
the handle of the collection's column replaces such a column.
"""

from __future__ import annotations

import itertools
import json
import re
import weakref
from dataclasses import dataclass, field
from typing import Collection, Iterable, Iterator, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pyspark_diff.errors import SchemaError
from pyspark_diff.spark.calls import with_arguments
from pyspark_diff.spark.frames import quoted
from pyspark_diff.spark.jvm import expression_json
from pyspark_diff.spark.mentions import references

#: The name of a handle for all columns.
STAR = "*"
#: The kind of an owner that is a plain Spark frame.
PLAIN = "DataFrame"

_numbers = itertools.count(1)
#: The handles whose columns are in use, by number.
_in_use: "weakref.WeakValueDictionary[int, Handle]" = weakref.WeakValueDictionary()

_NUMBER = re.compile(r"#(\d+)")
#: Functions that name the fields of their result after their arguments.
_NAMING = frozenset({"struct", "arrays_zip"})


@dataclass(frozen=True, eq=False)
class Owner:
    """A collection in messages.

    Parameters
    ----------
    kind : str
        The input or the operator of the collection.
    frame : DataFrame, optional
        Its plain Spark frame, whose own columns are the same.
    """

    kind: str
    columns: tuple[str, ...]
    frame: DataFrame | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the frame is a plain table, and no wrapped frame of updates."""
        return self.kind == PLAIN and self.frame is not None

    def __str__(self) -> str:
        return f"{self.kind}[{', '.join(self.columns)}]"


@dataclass(frozen=True, eq=False)
class Handle:
    """The identity of one column of one collection.

    Parameters
    ----------
    name : str
        The user's name of the column; a star for all columns.
    members : tuple of Handle
        The columns of a star.
    """

    name: str
    owner: Owner
    members: tuple["Handle", ...] = ()
    number: int = field(default_factory=lambda: next(_numbers))

    @property
    def text(self) -> str:
        """The name in Spark."""
        return f"{self.name}#{self.number}"

    def column(self, name: str | None = None, part: str = "") -> Column:
        """The column of Spark for the handle, in any expression.

        Parameters
        ----------
        name : str, optional
            The name in the user's spelling, which may differ in case.
        part : str
            The part to take, such as ``.field``.
        """
        _in_use[self.number] = self
        return F.col(quoted(f"{name or self.name}#{self.number}") + part)


@dataclass(frozen=True, eq=False, repr=False)
class Lineage:
    """The handles of a column, the newest first.

    Parameters
    ----------
    before : Lineage, optional
        The handles of earlier collections.
    """

    handle: Handle
    before: "Lineage | None" = None

    def __iter__(self) -> Iterator[Handle]:
        at: Lineage | None = self
        while at is not None:
            yield at.handle
            at = at.before

    def without(self, gone: Collection[Handle]) -> "Lineage | None":
        """The lineage without some handles."""
        handles = list(self)
        return lineage_of(h for h in handles if h not in gone) if gone else self


def lineage_of(handles: Iterable[Handle]) -> Lineage | None:
    """The lineage of some handles, the newest first; None without handles."""
    lineage: Lineage | None = None
    for handle in reversed(list(handles)):
        lineage = Lineage(handle, lineage)
    return lineage


def handles_in(values: Iterable[object]) -> list[Handle]:
    """The handles in columns, also within lists, tuples and dicts; other values have none.

    Examples
    --------
    >>> x = Handle("x", Owner("edges", ("x", "y")))
    >>> [str(found.owner) for found in handles_in([x.column() + 1, "y", F.lit("x#1")])]
    ['edges[x, y]']
    """
    handles: dict[int, Handle] = {}
    for thing in values:
        if isinstance(thing, Column):
            handles.update((handle.number, handle) for handle in _handles_of(thing))
        elif isinstance(thing, (list, tuple)):
            handles.update((handle.number, handle) for handle in handles_in(thing))
        elif isinstance(thing, dict):
            handles.update((handle.number, handle) for handle in handles_in(thing.values()))
    return list(handles.values())


def _handles_of(column: Column) -> list[Handle]:
    shown = str(column)
    handles: list[Handle] = []
    for number in _NUMBER.finditer(shown):
        handle = _in_use.get(int(number.group(1)))
        if handle is None or handle in handles:
            continue
        name = handle.name.lower()
        # Connect shows names in backticks, with backticks of the name doubled.
        if shown[:number.start()].lower().endswith((name, name.replace("`", "``"))):
            handles.append(handle)
    # A text may look like a handle.
    of_client = references(column) if handles else None
    if of_client is not None:
        names = [name.lower() for name in of_client]
        return [h for h in handles if any(n.startswith(quoted(h.text.lower())) for n in names)]
    tree = expression_json(column) if handles else None
    if tree is None:
        return handles
    names = [str(node["nameParts"]).lower() for node in json.loads(tree) if "nameParts" in node]
    return [
        handle for handle in handles
        if any(name.startswith(f"[{handle.text.lower()}{end}") for name in names for end in "],")
    ]


def handle_text(column: Column) -> str:
    """The name of an expression that is a column; other text for other expressions."""
    shown = str(column).removeprefix("Column<'").removesuffix("'>")
    # Connect shows names in backticks if they have other characters.
    return shown[1:-1].replace("``", "`") if shown.startswith("`") else shown


def with_handles_spelled(column: Column, handles: Sequence[Handle]) -> Column:
    """The expression in which columns replace the star of a frame, ``df["*"]``, as an argument.

    A function that names fields after its arguments gets the name of a column, without the number
    of its handle. ``count(df["*"])`` counts rows.

    Raises
    ------
    SchemaError
        If a star is no argument of a function.

    Examples
    --------
    >>> x = Handle("x", Owner("edges", ("x", "y")))
    >>> star = Handle(STAR, x.owner, (x,))
    >>> with_handles_spelled(F.count(star.column()), [star])
    Column<'count(1)'>
    """
    named = {handle.text.lower(): handle for handle in handles}
    stars = [handle for handle in handles if handle.members]
    shown = str(column).lower()
    if not stars and not any(f"{name}(" in shown for name in _NAMING):
        return column

    def spelled(function: str, distinct: bool, arguments: list[Column]) -> list[Column] | None:
        """The new arguments of a function; None if they stay unchanged."""
        own = [named.get(handle_text(argument).lower()) for argument in arguments]
        if function == "count" and not distinct and len(own) == 1 and own[0] in stars:
            return [F.lit(1)]
        names = function in _NAMING
        if not any(handle in stars or (names and handle) for handle in own):
            return None
        spread: list[Column] = []
        for argument, handle in zip(arguments, own):
            if handle is None:
                spread.append(argument)
                continue
            for member in handle.members or (handle,):
                # The name in the user's spelling, which may differ in case.
                part = member.column() if handle.members else argument
                name = handle_text(part)[: len(member.name)]
                spread.append(part.alias(name) if names else part)
        return spread

    result = with_arguments(column, spelled)
    left = [handle for handle in handles_in([result]) if handle.members]
    if left:
        columns = ", ".join(left[0].owner.columns)
        raise SchemaError(
            f"the star of {left[0].owner} means several columns, which only select and "
            f"functions take. Name the columns here: {columns}"
        )
    return result


def as_named(text: str, handles: Iterable[str]) -> str:
    """The name of a result, as over plain columns.

    Examples
    --------
    >>> as_named("(x#7 + y#17)", ["x#7", "y#17"])
    '(x + y)'
    >>> as_named("struct(x#7 AS x, (y#17 AS `z`))", ["x#7", "y#17"])
    'struct(x, (y AS `z`))'
    """
    for handle in handles:
        name, _, number = handle.rpartition("#")
        # The alias of a field.
        own = rf"({re.escape(name)})#{number} AS (`?)\1\2(?=[,)])"
        text = re.sub(own, r"\1", text, flags=re.IGNORECASE)
        text = re.sub(rf"({re.escape(name)})#{number}(?!\d)", r"\1", text, flags=re.IGNORECASE)
    return text
