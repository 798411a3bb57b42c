"""doctor: the capabilities of a session and a machine, each with its consequence and remedy."""

import errno
import os
import sys
from types import ModuleType

import pytest

from pyspark_diff import doctor
from pyspark_diff.__main__ import main
from pyspark_diff.spark import doctor as module


def finding_of(findings, subject):
    """The finding about a subject."""
    return next(item for item in findings.findings if item.subject.startswith(subject))


def test_it_reports_this_session(spark, tmp_path):
    findings = doctor(spark, root=tmp_path / "state")
    assert finding_of(findings, "Spark").state == spark.version
    assert finding_of(findings, "folder").state == "lock, map, link and rename are available"
    assert finding_of(findings, "methods").state.count(",") == 1
    assert not os.listdir(tmp_path / "state")
    assert "ANSI mode" in str(findings)


@pytest.mark.parametrize("call", ["rename", "link"])
def test_a_folder_without_a_call_has_a_remedy(spark, tmp_path, monkeypatch, call):
    def refuse(*_, **__):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, {"rename": "replace", "link": "link"}[call], refuse)
    findings = doctor(spark, root=tmp_path)
    finding = finding_of(findings, "folder")
    assert f"no {call} (ENOSYS)" in finding.state and "store" in finding.remedy
    assert finding in findings.advice
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("installed", [True, False])
def test_a_folder_of_a_volume_needs_the_package(monkeypatch, installed):
    monkeypatch.setitem(sys.modules, "databricks", None)
    monkeypatch.setitem(sys.modules, "databricks.sdk", None)
    if installed:
        monkeypatch.setitem(sys.modules, "databricks", ModuleType("databricks"))
        monkeypatch.setitem(sys.modules, "databricks.sdk", ModuleType("databricks.sdk"))
    finding = module._of_volume("folder /Volumes/c/s/v", ["no link (ENOSYS)"])
    assert finding.remedy == ("" if installed else 'pip install "pyspark_diff[databricks]"')


def test_a_folder_that_is_a_file_has_a_remedy(spark, tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    assert "not writable" in finding_of(doctor(spark, root=path), "folder").state


def test_a_missing_package_has_its_command(spark, monkeypatch):
    monkeypatch.setitem(sys.modules, "deltalake", None)
    finding = finding_of(doctor(spark), "deltalake")
    assert finding.remedy == 'pip install "pyspark_diff[delta]"'


def test_another_python_of_the_tasks_has_a_remedy(spark, monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/another")
    assert "PYSPARK_PYTHON" in finding_of(doctor(spark), "PYSPARK_PYTHON").remedy


def test_settings_of_the_session_count(spark, monkeypatch):
    name = "spark.pyspark_diff.compileExpressions"
    spark.conf.set(name, "false")
    try:
        assert "unset" in finding_of(doctor(spark), "compiled expressions").remedy
    finally:
        spark.conf.unset(name)


def test_without_kernels_the_first_step_waits(spark, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "folders", lambda file: [str(tmp_path)])
    assert finding_of(doctor(spark), "compiled kernels").remedy == "python -m pyspark_diff warm_up"


def test_the_command_prints_it(spark, capsys, tmp_path):
    assert main(["doctor", "--root", str(tmp_path)]) == 0
    assert f"folder {tmp_path}" in capsys.readouterr().out
