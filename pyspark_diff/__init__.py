"""Differential dataflow for Spark: incremental DataFrame operators that are exact at every time."""

from pyspark_diff import graphs
from pyspark_diff.dataflow.dataflow import Dataflow
from pyspark_diff.frame.diffframe import DiffFrame
from pyspark_diff.errors import (
    ClosedError,
    DiffError,
    DiffOverflowError,
    FunctionError,
    InvalidDiffError,
    InvalidTimeError,
    NegativeMultiplicityError,
    NonDeterministicError,
    NotReadableError,
    ReservedNameError,
    SchemaError,
    StalledError,
    TimeRegressionError,
    UnsupportedTypeError,
)
from pyspark_diff.frame.grouped import GroupedDiff
from pyspark_diff.dataflow.hold import Hold
from pyspark_diff.dataflow.input_session import InputSession
from pyspark_diff.frame.loop_methods import Loop
from pyspark_diff.dataflow.probe import Probe
from pyspark_diff.spark.session import configure, session
from pyspark_diff.times import Antichain

__version__ = "0.1.0"

__all__ = [
    "Antichain",
    "ClosedError",
    "Dataflow",
    "DiffError",
    "DiffFrame",
    "DiffOverflowError",
    "FunctionError",
    "GroupedDiff",
    "Hold",
    "InputSession",
    "InvalidDiffError",
    "InvalidTimeError",
    "Loop",
    "NegativeMultiplicityError",
    "NonDeterministicError",
    "NotReadableError",
    "Probe",
    "ReservedNameError",
    "SchemaError",
    "StalledError",
    "TimeRegressionError",
    "UnsupportedTypeError",
    "configure",
    "graphs",
    "session",
]
