"""Columns as a user takes them from a frame: ``df["x"]``, which stands for the column ``x`` of that
collection and of no other.

Spark knows no collections, so such a column is for it one of a name of its own: ``x#7``, as in its
plans. Every column of every collection has a *handle*, and a *lineage*: its handle, and those of
the columns of earlier collections that it is, unchanged::

    h stands for a column of collection c  ⟺  h is in the lineage of that column of c

and whoever evaluates an expression with handles in it has these columns under their own names too.

A plain Spark frame that becomes a collection has columns of its own, ``df["x"]``. Where an
expression has one, it is told by the handle of that column of that collection instead.
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

#: The name of a handle that stands for all columns.
STAR = "*"
#: The kind of the owner that is a plain Spark frame next to a collection.
PLAIN = "DataFrame"

_numbers = itertools.count(1)
#: Those that somebody has a column of.
_taken: "weakref.WeakValueDictionary[int, Handle]" = weakref.WeakValueDictionary()

_NUMBER = re.compile(r"#(\d+)")
#: Functions that name the fields of their result after their arguments.
_NAMING = frozenset({"struct", "arrays_zip"})


@dataclass(frozen=True, eq=False)
class Owner:
    """A collection, as messages call it.

    Parameters
    ----------
    kind : str
        The input, or the operator that it comes from.
    columns : tuple of str
    frame : DataFrame, optional
        The plain Spark frame that it is, whose own columns are these too.
    """

    kind: str
    columns: tuple[str, ...]
    frame: DataFrame | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it is a plain frame, and no frame of updates that is wrapped."""
        return self.kind == PLAIN and self.frame is not None

    def __str__(self) -> str:
        return f"{self.kind}[{', '.join(self.columns)}]"


@dataclass(frozen=True, eq=False)
class Handle:
    """What one column of one collection is told by.

    Parameters
    ----------
    name : str
        As the user calls it there; a star stands for all columns.
    owner : Owner
    members : tuple of Handle
        What a star stands for.
    """

    name: str
    owner: Owner
    members: tuple["Handle", ...] = ()
    number: int = field(default_factory=lambda: next(_numbers))

    @property
    def text(self) -> str:
        """The name that Spark has for it."""
        return f"{self.name}#{self.number}"

    def column(self, name: str | None = None, part: str = "") -> Column:
        """The column that stands for it, in any expression.

        Parameters
        ----------
        name : str, optional
            Its name as the user has written it, which may be in another case.
        part : str
            What is taken of it, such as ``.field``.
        """
        _taken[self.number] = self
        return F.col(quoted(f"{name or self.name}#{self.number}") + part)


@dataclass(frozen=True, eq=False, repr=False)
class Lineage:
    """The handles of a column, the newest first.

    Parameters
    ----------
    handle : Handle
    before : Lineage, optional
        Those of earlier collections.
    """

    handle: Handle
    before: "Lineage | None" = None

    def __iter__(self) -> Iterator[Handle]:
        at: Lineage | None = self
        while at is not None:
            yield at.handle
            at = at.before

    def without(self, gone: Collection[Handle]) -> "Lineage | None":
        """The same without some handles."""
        handles = list(self)
        return lineage_of(h for h in handles if h not in gone) if gone else self


def lineage_of(handles: Iterable[Handle]) -> Lineage | None:
    """The lineage of some handles, the newest first; None if there are none."""
    found: Lineage | None = None
    for handle in reversed(list(handles)):
        found = Lineage(handle, found)
    return found


def handles_in(given: Iterable[object]) -> list[Handle]:
    """The handles in some columns, and in those that lists and dicts have; other things have none.

    Examples
    --------
    >>> x = Handle("x", Owner("edges", ("x", "y")))
    >>> [str(found.owner) for found in handles_in([x.column() + 1, "y", F.lit("x#1")])]
    ['edges[x, y]']
    """
    found: dict[int, Handle] = {}
    for thing in given:
        if isinstance(thing, Column):
            found.update((handle.number, handle) for handle in _handles_of(thing))
        elif isinstance(thing, (list, tuple)):
            found.update((handle.number, handle) for handle in handles_in(thing))
        elif isinstance(thing, dict):
            found.update((handle.number, handle) for handle in handles_in(thing.values()))
    return list(found.values())


def _handles_of(column: Column) -> list[Handle]:
    shown = str(column)
    found: list[Handle] = []
    for number in _NUMBER.finditer(shown):
        handle = _taken.get(int(number.group(1)))
        if handle is None or handle in found:
            continue
        name = handle.name.lower()
        # Connect shows names in backticks, of which those in them are there twice.
        if shown[:number.start()].lower().endswith((name, name.replace("`", "``"))):
            found.append(handle)
    # A text may look like a handle.
    of_client = references(column) if found else None
    if of_client is not None:
        names = [name.lower() for name in of_client]
        return [h for h in found if any(n.startswith(quoted(h.text.lower())) for n in names)]
    tree = expression_json(column) if found else None
    if tree is None:
        return found
    names = [str(node["nameParts"]).lower() for node in json.loads(tree) if "nameParts" in node]
    return [
        handle for handle in found
        if any(name.startswith(f"[{handle.text.lower()}{end}") for name in names for end in "],")
    ]


def handle_text(column: Column) -> str:
    """The name of a column that an expression is, if it is one."""
    shown = str(column).removeprefix("Column<'").removesuffix("'>")
    # Connect shows names in backticks if they have other characters.
    return shown[1:-1].replace("``", "`") if shown.startswith("`") else shown


def with_handles_spelled(column: Column, handles: Sequence[Handle]) -> Column:
    """The expression in which a function takes columns for the star of a frame, ``df["*"]``.

    A function that names fields after its arguments takes the name of a column, without the number
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
        """The arguments of a function; None if they stay."""
        taken = [named.get(handle_text(argument).lower()) for argument in arguments]
        if function == "count" and not distinct and len(taken) == 1 and taken[0] in stars:
            return [F.lit(1)]
        names = function in _NAMING
        if not any(handle in stars or (names and handle) for handle in taken):
            return None
        made: list[Column] = []
        for argument, handle in zip(arguments, taken):
            if handle is None:
                made.append(argument)
                continue
            for one in handle.members or (handle,):
                # The name as the user has written it, which may be in another case.
                given = one.column() if handle.members else argument
                name = handle_text(given)[: len(one.name)]
                made.append(given.alias(name) if names else given)
        return made

    found = with_arguments(column, spelled)
    left = [handle for handle in handles_in([found]) if handle.members]
    if left:
        columns = ", ".join(left[0].owner.columns)
        raise SchemaError(
            f"the star of {left[0].owner} means several columns, which only select and "
            f"functions take. Name the columns here: {columns}"
        )
    return found


def as_named(text: str, handles: Iterable[str]) -> str:
    """The name that a result has over plain columns.

    Examples
    --------
    >>> as_named("(x#7 + y#17)", ["x#7", "y#17"])
    '(x + y)'
    >>> as_named("struct(x#7 AS x, (y#17 AS `z`))", ["x#7", "y#17"])
    'struct(x, (y AS `z`))'
    """
    for handle in handles:
        name, _, number = handle.rpartition("#")
        # The alias that names a field.
        own = rf"({re.escape(name)})#{number} AS (`?)\1\2(?=[,)])"
        text = re.sub(own, r"\1", text, flags=re.IGNORECASE)
        text = re.sub(rf"({re.escape(name)})#{number}(?!\d)", r"\1", text, flags=re.IGNORECASE)
    return text
