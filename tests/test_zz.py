import os
from hypothesis import given, settings, Phase, strategies as st
from test_reopening import check_reopening, buckets, held
@settings(max_examples=int(os.environ.get("N","25")), phases=[Phase.generate], deadline=None, report_multiple_bugs=False)
@given(data=st.data(), buckets=buckets, held=held)
def test_zz(spark, data, buckets, held):
    check_reopening(spark, data, lags="LAGS" in os.environ, runner="local", buckets=buckets, held=held)
