"""Every error is a `DiffError` and a builtin, and travels as two strings."""

from __future__ import annotations

import builtins
import doctest
import inspect
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_diff import errors
from pyspark_diff.errors import DiffError, SchemaError, from_payload, to_payload

BUILTIN_OF = {
    "SchemaError": TypeError,
    "InvalidTimeError": ValueError,
    "InvalidDiffError": ValueError,
    "DuplicateKeyError": ValueError,
    "FallbackError": RuntimeError,
    "FullScanError": ValueError,
    "UnsupportedQueryError": ValueError,
    "TimeRegressionError": ValueError,
    "ReservedNameError": ValueError,
    "UnsupportedTypeError": TypeError,
    "DiffOverflowError": OverflowError,
    "ClosedError": RuntimeError,
    "NonDeterministicError": ValueError,
    "NegativeMultiplicityError": ValueError,
    "AssertionFailedError": AssertionError,
    "NotReadableError": LookupError,
    "FunctionError": RuntimeError,
    "StalledError": RuntimeError,
    "StepError": RuntimeError,
    "StepCancelledError": RuntimeError,
    "StorageError": OSError,
    "ConcurrentWriteError": RuntimeError,
    "ProgramChangedError": ValueError,
    "SettingsChangedError": ValueError,
    "RepeatedTokenError": ValueError,
    "SourceError": RuntimeError,
    "SinkError": RuntimeError,
    "TooManyRowsError": MemoryError,
}
#: Errors that are a special case of another.
SPECIAL = {
    "DamagedStateError": errors.StorageError,
    "FormatError": errors.StorageError,
    "UnknownOutcomeError": errors.StorageError,
}
NAMES = ["DiffError", *BUILTIN_OF, *SPECIAL]


def test_the_module_defines_exactly_these_errors() -> None:
    defined = [
        name for name, value in vars(errors).items()
        if inspect.isclass(value) and value.__module__ == errors.__name__
    ]
    assert sorted(defined) == sorted(NAMES)


@pytest.mark.parametrize("name", BUILTIN_OF)
def test_an_error_is_a_diff_error_and_its_builtin(name: str) -> None:
    assert getattr(errors, name).__bases__ == (DiffError, BUILTIN_OF[name])


@pytest.mark.parametrize("name", SPECIAL)
def test_a_special_case_is_of_its_error_alone(name: str) -> None:
    assert getattr(errors, name).__bases__ == (SPECIAL[name],)


def test_the_base_is_no_builtin_but_exception() -> None:
    assert DiffError.__bases__ == (Exception,)


@pytest.mark.parametrize("name", NAMES)
def test_an_error_says_when_it_is_raised(name: str) -> None:
    documentation = inspect.getdoc(getattr(errors, name))
    assert documentation and len(documentation.split("\n\n")) == 2


@settings(deadline=None)
@given(name=st.sampled_from(NAMES), message=st.text())
def test_a_payload_gives_the_class_and_the_message_back(name: str, message: str) -> None:
    payload = to_payload(getattr(errors, name)(message))
    assert payload == (name, message)
    rebuilt = from_payload(*payload)
    assert type(rebuilt) is getattr(errors, name)
    assert str(rebuilt) == message


@pytest.mark.parametrize("name", NAMES)
def test_an_error_survives_pickling(name: str) -> None:
    error = pickle.loads(pickle.dumps(getattr(errors, name)("why")))
    assert (type(error).__name__, str(error)) == (name, "why")


@pytest.mark.parametrize("name", ["SystemExit", "ValueError", "", "to_payload", "annotations"])
def test_an_unknown_name_gives_the_base_and_is_not_lost(name: str) -> None:
    rebuilt = from_payload(name, "why")
    assert type(rebuilt) is DiffError
    assert str(rebuilt) == f"{name}: why"


@settings(deadline=None)
@given(name=st.text() | st.sampled_from(dir(builtins)), message=st.text())
def test_only_classes_of_the_module_are_rebuilt(name: str, message: str) -> None:
    assert type(from_payload(name, message)).__module__ == errors.__name__


def test_a_subclass_travels_as_the_nearest_class_of_the_module() -> None:
    class ColumnError(SchemaError):
        pass

    assert to_payload(ColumnError("no column src")) == ("SchemaError", "no column src")


def test_a_stranger_of_the_same_name_is_not_mistaken_for_ours() -> None:
    stranger = type("SchemaError", (DiffError,), {})
    assert to_payload(stranger("why")) == ("DiffError", "why")


def test_only_our_own_errors_become_payloads() -> None:
    with pytest.raises(TypeError, match="not ValueError: why"):
        to_payload(ValueError("why"))  # type: ignore[arg-type]


def test_examples_run() -> None:
    result = doctest.testmod(errors)
    assert result.attempted and not result.failed
