"""Random histories of edges: a load, and then steps that insert and remove edges.

    rows after a step  =  rows before it  +  inserted rows  -  removed rows     (with copies)
"""

from __future__ import annotations

import random
from typing import Any, Callable, Sequence

#: The source, the target and a value.
Edge = tuple[Any, Any, int]


class EdgeHistory:
    """The edges of an input. It holds state: the present rows.

    Parameters
    ----------
    session : InputSession
    chance : random.Random
    draw : callable
        Returns a new edge for a number.
    """

    def __init__(self, session: Any, chance: random.Random, draw: Callable[[int], Edge]):
        self.rows: list[Edge] = []
        self._session, self._chance, self._draw = session, chance, draw

    def load(self, number: int, others: Sequence[Edge] = ()) -> None:
        """Insert a number of random edges, and some others."""
        self._change([*map(self._draw, range(number)), *others], [])

    def change(self, number: int, *, twice: bool = False) -> None:
        """Remove three edges and insert `number` ones; `twice` inserts a removed edge again."""
        removed = self._chance.sample(self.rows, 3)
        again = removed[:1] if twice else []
        self._change([*map(self._draw, range(number)), *again], removed)

    def _change(self, inserted: list[Edge], removed: list[Edge]) -> None:
        self._session.insert(inserted)
        self._session.remove(removed)
        self.rows += inserted
        for row in removed:
            self.rows.remove(row)
