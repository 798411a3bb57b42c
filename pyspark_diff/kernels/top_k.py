"""The first k records of each touched key, found without reading the others.

With ``I`` the input and ``O = top_k(I)``, for every key and every time ``t``::

    accumulate(O, t)  =  the first k places of accumulate(I, t)

where a record that is there ``c > 0`` times takes ``c`` places, in the order of the values, and one
with ``c <= 0`` takes none. Batches hold the rows of a key in that order, so its first records are
found in the first rows of its range in each of them. ::

    places before r  =  sum(max(count of q, 0) for records q that come before r)
    r is in the top k of rows  iff  places before r < k
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pyspark_diff.errors import DiffOverflowError
from pyspark_diff.kernels import ranking
from pyspark_diff.kernels.buffers import read_only
from pyspark_diff.kernels.consolidate import Grouped
from pyspark_diff.kernels.equality import rows_equal
from pyspark_diff.kernels.history import distinct_keys, key_lengths, key_starts
from pyspark_diff.kernels.places import replay_places
from pyspark_diff.kernels.jit import jit
from pyspark_diff.kernels.ranking import Ordering
from pyspark_diff.kernels.updates import Int64, PerRow, Updates, concat, empty, joined
