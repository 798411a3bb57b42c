"""The tables of TPC-H as a stream of changes, and their contents at any time.

`tpchgen-cli` makes the tables once, into a cache folder. Their records come round-robin: round
``r`` brings record ``r`` of each relation that has so many. With deletes, one order in ten goes
with its lineitems. It goes some rounds after its last record, and comes back as many rounds later.
A number of rounds is one logical time:

    the tables at time t  =  the sums of all changes of rounds before (t + 1) * logical
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")
#: One order in so many is deleted and comes back.
ONE_IN = 10
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "pyspark_diff" / "tpch"


def generated(scale: float, cache: Path = CACHE) -> Path:
    """The folder with the tables at a scale factor as Parquet files; creates it if needed.

    Raises
    ------
    FileNotFoundError
        If tpchgen-cli is not installed.
    """
    folder = cache / f"sf{scale:g}"
    if folder.is_dir():
        return folder
    scripts = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    generator = shutil.which("tpchgen-cli", path=scripts)
    if generator is None:
        raise FileNotFoundError(
            f"tpchgen-cli is not there; install it: {sys.executable} -m pip install tpchgen-cli"
        )
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        whole = Path(scratch) / "whole"
        command = [generator, "parquet", "-s", f"{scale:g}", "-o", str(whole)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        try:
            whole.rename(folder)  # all tables, or none
        except OSError:
            if not folder.is_dir():  # no other process was faster
                raise
    return folder


@dataclass(frozen=True)
class Changes:
    """The changes of one table.

    Parameters
    ----------
    records : pyarrow.Table
    rounds, rows, diffs : ndarray
        The round, the record and the diff of each change, in order of rounds.
    """

    records: pa.Table
    rounds: np.ndarray
    rows: np.ndarray
    diffs: np.ndarray

    def between(self, first: int, stop: int, logical: int) -> pa.Table:
        """The update rows of some rounds, with their logical times."""
        begin, end = np.searchsorted(self.rounds, [first, stop])
        updates = self.records.take(pa.array(self.rows[begin:end]))
        updates = updates.append_column("time", pa.array(self.rounds[begin:end] // logical))
        return updates.append_column("diff", pa.array(self.diffs[begin:end]))

    def before(self, stop: int) -> pa.Table:
        """The records before a round."""
        end = np.searchsorted(self.rounds, stop)
        there = np.zeros(self.records.num_rows, np.int64)
        np.add.at(there, self.rows[:end], self.diffs[:end])
        return self.records.take(pa.array(np.repeat(np.arange(there.size), there)))


class Stream:
    """The changes of all tables. It holds state: the tables, in memory.

    Parameters
    ----------
    scale : float
        Scale factor: with 1 there are six million lineitems.
    columns : dict of str to list of str
        The columns to read, by table.
    deletes : bool
        Whether orders go and come back.
    cache : Path
        The folder of the tables.
    """

    def __init__(
        self, scale: float, columns: dict[str, list[str]], deletes: bool = False,
        cache: Path = CACHE,
    ):
        folder = generated(scale, cache)
        self.changes = {
            name: _inserted(_read(folder, name, names)) for name, names in columns.items()
        }
        if deletes:
            self._delete(folder)
        #: The number of rounds.
        self.rounds = _rounds(self.changes)

    def only(self, columns: dict[str, list[str]]) -> "Stream":
        """The same stream with only some tables and columns."""
        stream = copy(self)
        stream.changes = {
            name: replace(self.changes[name], records=self.changes[name].records.select(names))
            for name, names in columns.items()
        }
        stream.rounds = _rounds(stream.changes)
        return stream

    def _delete(self, folder: Path) -> None:
        orders = _read(folder, "orders", ["o_orderkey"])["o_orderkey"].to_numpy()
        lines = _read(folder, "lineitem", ["l_orderkey"])["l_orderkey"].to_numpy()
        order_of = np.searchsorted(orders, lines)
        last = np.maximum(np.searchsorted(lines, orders, "right") - 1, np.arange(orders.size))
        gone, wait = np.arange(orders.size) % ONE_IN == 0, max(1, lines.size // 20)
        for name, order in (("orders", np.arange(orders.size)), ("lineitem", order_of)):
            if name not in self.changes:
                continue
            table = self.changes[name]
            rows = np.flatnonzero(gone[order])
            rounds = [last[order[rows]] + wait, last[order[rows]] + 2 * wait]
            whole = np.concatenate([table.rounds, *rounds])
            by_round = np.argsort(whole, kind="stable")
            there = np.concatenate([table.rows, rows, rows])
            diffs = np.concatenate([table.diffs, np.repeat([-1, 1], rows.size)])
            self.changes[name] = Changes(
                table.records, whole[by_round], there[by_round], diffs[by_round])


def _rounds(changes: dict[str, Changes]) -> int:
    return max(int(table.rounds[-1]) + 1 for table in changes.values())


def _read(folder: Path, name: str, columns: list[str]) -> pa.Table:
    table = pq.read_table(folder / f"{name}.parquet", columns=columns)
    # Types that numpy, pandas and Spark know, without the file's metadata of its fields.
    plain = [pa.field(f.name, pa.string() if pa.types.is_string_view(f.type) else f.type)
             for f in table.schema]
    return table.cast(pa.schema(plain))


def _inserted(records: pa.Table) -> Changes:
    number = np.arange(records.num_rows)
    return Changes(records, number, number, np.ones_like(number))
