"""The support matrix is what running each operator gives."""

from __future__ import annotations

import warnings

import support_matrix

from pyspark_diff import StaleWarning


def test_page_is_what_operators_tell(spark, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StaleWarning)
        found = support_matrix.rows(spark, str(tmp_path), run=False)
    told = support_matrix.PAGE.read_text(encoding="utf-8")
    assert told == support_matrix.page(found), "run ci/support_matrix"
