"""The record of a group of views, an object next to the state of its dataflow.

    a kill between a commit of a target and its record  =>  the record is older, never newer

So the version of a target in the record is a version that the group has written, and each later
version of the table must be one of the group, or maintenance.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pyspark_diff.errors import StorageError
from pyspark_diff.trace.local_objects import LocalObjects
from pyspark_diff.trace.objects import Objects
from pyspark_diff.trace.roots import objects_at

_NAME = "views.json"
_FORMAT = 1
#: The number of refreshes in a record.
COSTS_MAX = 20


@dataclass(frozen=True)
class Cost:
    """The cost of a refresh: changed rows of the sources, seconds, and the seconds of the forecast.

    Parameters
    ----------
    first : bool
        Whether the refresh read whole sources into an empty state.
    """

    rows: int
    seconds: float
    forecast: float | None
    first: bool


@dataclass(frozen=True)
class Record:
    """The facts about a group of views that the state of its dataflow does not have.

    Parameters
    ----------
    generation : int
        The number of the state; a rebuild starts the next one.
    queries : mapping of str to str
        The query of each target, when its state was begun.
    targets : mapping of str to object
        The id, version and time stamp of each target after its last write.
    offsets : mapping of str to object
        The offset of each source at the last refresh.
    columns : mapping of str to str
        The columns that the state has of each source, as JSON.
    programs : mapping of str to str
        The digest of the collection of each target.
    rebuild : str
        Why the running generation is a rebuild that has not ended; empty if there is none.
    """

    generation: int = 1
    queries: Mapping[str, str] = field(default_factory=dict)
    targets: Mapping[str, Any] = field(default_factory=dict)
    offsets: Mapping[str, Any] = field(default_factory=dict)
    costs: tuple[Cost, ...] = ()
    rebuild: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    programs: Mapping[str, str] = field(default_factory=dict)

    def with_target(self, name: str, mark: Mapping[str, Any]) -> Record:
        """The record after a write of a target."""
        return replace(self, targets={**self.targets, name: dict(mark)})

    def with_cost(self, cost: Cost) -> Record:
        """The record after a refresh."""
        return replace(self, costs=(*self.costs, cost)[-COSTS_MAX:])


class RecordFile:
    """The object with the record of a group of views."""

    def __init__(self, store: str | os.PathLike[str]):
        self._objects: Objects = objects_at(store)

    @property
    def root(self) -> str:
        return self._objects.root

    def state(self, generation: int) -> str:
        """The place of the state of a generation."""
        return f"{self.root.rstrip('/')}/state-{generation}"

    def remove_before(self, generation: int) -> None:
        """Delete the states of the generations before one, which no refresh reads again.

        A process that ended in between has left a part, which the next call deletes.
        """
        for number in range(generation - 1, 0, -1):
            names = [item.name for item in self._objects.names(f"state-{number}")]
            if not names:
                return
            self._objects.delete(names)
            if isinstance(self._objects, LocalObjects):
                shutil.rmtree(self.state(number), ignore_errors=True)

    def read(self) -> Record:
        """The record; an empty one if there is none."""
        try:
            text = self._objects.read(_NAME)
        except FileNotFoundError:
            return Record()
        try:
            body = json.loads(text)
            if body.pop("format") != _FORMAT:
                raise ValueError("another format")
            costs = tuple(Cost(**cost) for cost in body.pop("costs"))
            return Record(**body, costs=costs)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StorageError(
                f"the record {_NAME} of the views at {self.root} cannot be read ({error}). Put it "
                "back from a copy of the store, or name a new store"
            ) from error

    def write(self, record: Record) -> None:
        text = json.dumps({"format": _FORMAT, **asdict(record)}, sort_keys=True)
        self._objects.replace(_NAME, text.encode())
