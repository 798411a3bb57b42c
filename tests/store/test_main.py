"""Commands of a shell or a scheduler: run and inspect a store."""

from __future__ import annotations

import sys

import pytest

from pyspark_diff.__main__ import main

PROGRAM = """
from pyspark_diff.sources import snapshots

def program(flow):
    orders = flow.source("orders", snapshots("main_orders", key="id"))
    orders.groupBy("region").count().keep("counts")
"""


def test_a_store_is_run_and_looked_at(spark, tmp_path, monkeypatch, capsys):
    (tmp_path / "a_main_program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    store = str(tmp_path / "store")
    spark.createDataFrame([(1, "north"), (2, "south")], "id LONG, region STRING") \
        .createOrReplaceTempView("main_orders")
    night = ["run", "a_main_program:program", "--store", store, "--catch-up", "--token", "monday"]
    try:
        assert main(night) == 0
        assert capsys.readouterr().out.splitlines() == ["caught up", f"{store} keeps counts"]
        assert main(["inspect", store]) == 0
        commit, columns, times = capsys.readouterr().out.splitlines()
        assert commit.startswith("commit ") and commit.endswith("'monday'")
        assert columns.startswith("counts: struct<region:string,count:bigint")
        assert times.strip() == "readable from 0, complete up to 1"
        assert main(night) == 0
        assert "nothing to do" in capsys.readouterr().out
        # The opening is a commit as well, without a token of its own.
        assert main(["inspect", store]) == 0
        again = capsys.readouterr().out.splitlines()[0]
        assert again.endswith("'monday'") and again != commit
    finally:
        spark.catalog.dropTempView("main_orders")
        sys.modules.pop("a_main_program", None)


def test_a_store_that_is_not_there_is_told(spark, tmp_path, capsys):
    assert main(["inspect", str(tmp_path / "nothing")]) == 1
    message = capsys.readouterr().err
    assert message.startswith("error: ") and "nothing" in message and len(message.splitlines()) == 1


@pytest.mark.parametrize("program, message", [
    ("os:getcwd", "is called with the dataflow, as def getcwd(flow)"),
    ("no_colon", "give module:function"),
    ("no_such_module:program", "there is no module 'no_such_module'"),
    ("json:program", "'json' has no function 'program'"),
])
def test_a_program_that_is_not_there_is_told(program, message, capsys):
    with pytest.raises(SystemExit):
        main(["run", program, "--store", "nowhere"])
    assert message in capsys.readouterr().err
