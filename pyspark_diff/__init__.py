"""Differential dataflow for Spark: incremental DataFrame operators that are exact at every time.

Importing the package imports nothing: each name below is looked up when it is first used. Spark
imports every package whose name begins with ``pyspark_`` when it looks for data sources, so ours
must be quick then, and must not fail.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_diff import graphs
    from pyspark_diff.dataflow.background import RunningStep
    from pyspark_diff.dataflow.explanation import Explanation
    from pyspark_diff.dataflow.plot import Plot
    from pyspark_diff.dataflow.hold import Hold
    from pyspark_diff.dataflow.input_session import InputSession
    from pyspark_diff.dataflow.keyed_session import KeyedSession
    from pyspark_diff.dataflow.probe import Probe
    from pyspark_diff.dataflow.product_session import ProductSession
    from pyspark_diff.dataflow.staleness import StaleWarning
    from pyspark_diff.dataflow.stored import StateReader
    from pyspark_diff.engine.progress import Progress
    from pyspark_diff.errors import (
        ClosedError,
        ConcurrentWriteError,
        DamagedStateError,
        DiffError,
        DiffOverflowError,
        DuplicateKeyError,
        FallbackError,
        FormatError,
        FullScanError,
        FunctionError,
        InvalidDiffError,
        InvalidTimeError,
        NegativeMultiplicityError,
        NonDeterministicError,
        NotReadableError,
        ProgramChangedError,
        RepeatedTokenError,
        ReservedNameError,
        SchemaError,
        SettingsChangedError,
        SinkError,
        SourceError,
        StalledError,
        StepCancelledError,
        StepError,
        StorageError,
        TimeRegressionError,
        TooManyRowsError,
        UnknownOutcomeError,
        UnsupportedQueryError,
        UnsupportedTypeError,
    )
    from pyspark_diff.query.dataflow import Dataflow
    from pyspark_diff.frame.diffframe import DiffFrame
    from pyspark_diff.frame.grouped import GroupedDiff
    from pyspark_diff.frame.loops import Loop
    from pyspark_diff.reasons import REASONS, Reason
    from pyspark_diff.spark.doctor import doctor
    from pyspark_diff.spark.session import configure, session
    from pyspark_diff.times import Antichain
    from pyspark_diff.trace.credentials import set_credentials
    from pyspark_diff.trace.unity import UnityCredentials
    from pyspark_diff.views.forecast import Plan
    from pyspark_diff.views.materialized import MaterializedView, materialized_view
    from pyspark_diff.views.reports import Refreshed

__version__ = "0.1.0"

#: Where each public name comes from. A dataflow makes frames, whose class is in a layer above its
#: own: with that module it is whole.
_HOMES = {
    "Antichain": "times",
    "AssertionFailedError": "errors",
    "ClosedError": "errors",
    "CogroupedDiff": "frame.cogrouped",
    "ConcurrentWriteError": "errors",
    "DamagedStateError": "errors",
    "Dataflow": "query.dataflow",
    "DiffError": "errors",
    "DiffFrame": "frame.diffframe",
    "DiffOverflowError": "errors",
    "DuplicateKeyError": "errors",
    "Explanation": "dataflow.explanation",
    "FallbackError": "errors",
    "FormatError": "errors",
    "FullScanError": "errors",
    "FunctionError": "errors",
    "GroupedDiff": "frame.grouped",
    "Hold": "dataflow.hold",
    "InputSession": "dataflow.input_session",
    "InvalidDiffError": "errors",
    "InvalidTimeError": "errors",
    "KeyedSession": "dataflow.keyed_session",
    "Loop": "frame.loops",
    "MaterializedView": "views.materialized",
    "NegativeMultiplicityError": "errors",
    "NonDeterministicError": "errors",
    "NotReadableError": "errors",
    "Plan": "views.forecast",
    "Plot": "dataflow.plot",
    "Probe": "dataflow.probe",
    "ProductSession": "dataflow.product_session",
    "ProgramChangedError": "errors",
    "Progress": "engine.progress",
    "REASONS": "reasons",
    "Reason": "reasons",
    "Refreshed": "views.reports",
    "RepeatedTokenError": "errors",
    "ReservedNameError": "errors",
    "RunningStep": "dataflow.background",
    "SchemaError": "errors",
    "SettingsChangedError": "errors",
    "SinkError": "errors",
    "SourceError": "errors",
    "StaleWarning": "dataflow.staleness",
    "StalledError": "errors",
    "StateReader": "dataflow.stored",
    "StepCancelledError": "errors",
    "StepError": "errors",
    "StorageError": "errors",
    "TimeRegressionError": "errors",
    "TooManyRowsError": "errors",
    "UnityCredentials": "trace.unity",
    "UnknownOutcomeError": "errors",
    "UnsupportedQueryError": "errors",
    "UnsupportedTypeError": "errors",
    "configure": "spark.session",
    "doctor": "spark.doctor",
    "graphs": "graphs",
    "materialized_view": "views.materialized",
    "session": "spark.session",
    "set_credentials": "trace.credentials",
}

__all__ = [
    "Antichain",
    "AssertionFailedError",
    "ClosedError",
    "CogroupedDiff",
    "ConcurrentWriteError",
    "DamagedStateError",
    "Dataflow",
    "DiffError",
    "DiffFrame",
    "DiffOverflowError",
    "DuplicateKeyError",
    "Explanation",
    "FallbackError",
    "FormatError",
    "FullScanError",
    "FunctionError",
    "GroupedDiff",
    "Hold",
    "InputSession",
    "InvalidDiffError",
    "InvalidTimeError",
    "KeyedSession",
    "Loop",
    "MaterializedView",
    "NegativeMultiplicityError",
    "NonDeterministicError",
    "NotReadableError",
    "Plan",
    "Plot",
    "Probe",
    "ProductSession",
    "ProgramChangedError",
    "Progress",
    "REASONS",
    "Reason",
    "Refreshed",
    "RepeatedTokenError",
    "ReservedNameError",
    "RunningStep",
    "SchemaError",
    "SettingsChangedError",
    "SinkError",
    "SourceError",
    "StaleWarning",
    "StalledError",
    "StateReader",
    "StepCancelledError",
    "StepError",
    "StorageError",
    "TimeRegressionError",
    "TooManyRowsError",
    "UnityCredentials",
    "UnknownOutcomeError",
    "UnsupportedQueryError",
    "UnsupportedTypeError",
    "configure",
    "doctor",
    "graphs",
    "materialized_view",
    "session",
    "set_credentials",
]


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        return _data_source()
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{home}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "pyspark":
            raise
        # Spark is an extra: a cluster brings its own.
        raise ImportError(
            f"pyspark_diff.{name} needs PySpark, which is not installed here: "
            'pip install "pyspark_diff[spark]", or use the Python that your cluster\'s Spark uses',
            name="pyspark",
        ) from error
    value = module if name == "graphs" else getattr(module, name)
    globals()[name] = value
    return value


def _data_source() -> Any:
    """Import the data source of this package.

    In each session Spark looks for one in every package with such a name. An import that fails
    means that there is none, so that data sources of other packages do not fail.
    """
    try:
        from pyspark_diff.data_source.source import DefaultSource
    except Exception as error:
        raise AttributeError(f"module {__name__!r} has no data source here: {error}") from error
    globals()[DefaultSource.__name__] = DefaultSource
    return DefaultSource


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
