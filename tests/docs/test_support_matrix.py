"""The support matrix equals the results of a run of each operator."""

from __future__ import annotations

import warnings

import support_matrix

from pyspark_diff import StaleWarning


def test_page_is_what_operators_tell(spark, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StaleWarning)
        rows = support_matrix.rows(spark, str(tmp_path), run=False)
    text = support_matrix.PAGE.read_text(encoding="utf-8")
    assert text == support_matrix.page(rows), "run ci/support_matrix"
