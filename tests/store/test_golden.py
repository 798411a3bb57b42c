"""Stores of all versions of the format are read by this one."""

from __future__ import annotations

import shutil
from collections import Counter
from datetime import datetime, timezone

import pytest
from golden_stores import EXPECTED, GOLDEN, open_store

from pyspark_diff.dataflow.stored import StateReader
from pyspark_diff.trace.manifest import FORMAT

FORMATS = sorted(int(path.name) for path in GOLDEN.iterdir())


def test_there_is_a_store_of_each_format():
    assert FORMATS == list(range(1, FORMAT + 1))


@pytest.mark.parametrize("format", FORMATS)
def test_a_store_of_before_is_opened_and_gone_on_with(spark, tmp_path, format):
    root = str(tmp_path / "store")
    shutil.copytree(GOLDEN / str(format) / "store", root)
    with StateReader(root, spark=spark) as reader:
        assert reader.token == "the last"
        for name, expected in EXPECTED.items():
            assert Counter(map(tuple, reader[name].at(9).collect())) == expected
        assert reader["prices"].at(9).count() == 11
    with open_store(spark, root) as flow:
        assert flow.verify() == [] and flow.session("people").time() == 20
        for name, expected in EXPECTED.items():
            assert Counter(map(tuple, flow[name].at(9).collect())) == expected
        # The waiting updates appear at their time.
        flow.session("visits").insert([(3, "late", datetime(2024, 2, 1, tzinfo=timezone.utc))])
        flow.advance_to(21)
        more = Counter(map(tuple, flow["joined"].at(20).collect())) - EXPECTED["joined"]
        assert more == {(3, "name 3", "late"): 1, (3, "waits", "late"): 1,
                        (3, "waits", "place 0"): 1}
        assert flow.history().count() >= 3
