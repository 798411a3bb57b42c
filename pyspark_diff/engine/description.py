"""Digests of values that are equal in all processes.

    digest(x) == digest(y)  ⟸  x and y have equal definitions, in whichever processes
    digest(x) != digest(y)  ⟸  x and y differ in a compared part

A digest compares values by type and content, functions by their code and all values that the code
reaches, and objects by class and attributes. Line numbers, names of local functions and the order
of sets make no difference. Values of one process, such as a lock or the rows of a Spark frame, are
compared by their class alone, and listed as not compared.

The code of functions is Python's bytecode, which differs between minor versions: see `PYTHON`. No
function is called for its digest, and no value is created from a digest.
"""

from __future__ import annotations

import dataclasses
import dis
import enum
import functools
import hashlib
import logging
import re
import sys
import types
from typing import Any, Iterable, Iterator

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import types as T

from pyspark_diff.errors import DiffError
from pyspark_diff.expressions.names import Resolver
from pyspark_diff.kernels.consolidate import consolidate
from pyspark_diff.operators.node import Node
from pyspark_diff.spark.expression_parts import expression_parts
from pyspark_diff.spark.schema import Schema

#: The version of Python that compiled the functions of this process.
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"

#: The number of hexadecimal digits of a digest.
DIGITS = 32

_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]+|@[0-9a-f]{5,}\b")
#: The number of a column that a user took from a frame: each process counts from zero.
_HANDLE = re.compile(r"#\d+")

#: The functions of Python 3.14 that return the annotations of a class, which have no effect.
_ANNOTATIONS = ("__annotate_func__", "__annotate__")
#: Packages with functions that are compared by name: other versions have equal functions.
_KNOWN = frozenset({
    "builtins", "numpy", "pandas", "py4j", "pyarrow", "pyspark", "pyspark_diff",
    *sys.stdlib_module_names,
}) - {"__main__"}
#: Packages with objects that belong to one process.
_OF_THIS_PROCESS = frozenset({
    "_thread", "_weakref", "py4j", "pyspark", "pyspark_diff", "threading", "weakref",
})
#: Instructions that look a name up in a module.
_LOOKS_UP = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})

_Digest = bytes


@dataclasses.dataclass(frozen=True)
class ValueDigest:
    """A digest, and the values that are not compared.

    Parameters
    ----------
    unseen : tuple of str
        Descriptions of values that are not compared.
    """

    digest: str
    unseen: tuple[str, ...] = ()


def described(value: object) -> ValueDigest:
    """The digest of a value.

    Examples
    --------
    >>> def of(bound):
    ...     return lambda n: min(n, bound)
    >>> described(of(2)) == described(of(2)), described(of(2)) == described(of(3))
    (True, False)
    >>> described({"b", "a"}) == described({"a", "b"}), described(1) == described(True)
    (True, False)
    >>> described(object()).unseen
    ('an object of class object',)
    """
    describer = _Describer()
    digest = describer.digest(value)
    return ValueDigest(digest.hex()[:DIGITS], tuple(dict.fromkeys(describer.unseen)))


def digest_of(*parts: str) -> str:
    """One digest of several digests."""
    return _hashed("digests", [part.encode() for part in parts]).hex()[:DIGITS]


def _hashed(tag: str, parts: Iterable[bytes]) -> _Digest:
    """The digest of parts under a tag; the length of each part precedes it."""
    digest = hashlib.sha256()
    for part in (tag.encode(), *parts):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


class _Describer:
    """Walks through one value. It holds state: its path, and the values that are not compared."""

    def __init__(self) -> None:
        self.unseen: list[str] = []
        #: Numbers of the values on the path, by their identity: a value may contain itself.
        self._open: dict[int, int] = {}
        #: The packages of the functions on the path.
        self._homes: list[str] = []
        #: Columns by the texts of their handles.
        self._bound: dict[str, str] = {}
        self._handles: dict[str, int] = {}
        #: Digests of functions and classes for a package: several values may refer to them.
        self._digests: dict[tuple[int, str], _Digest] = {}

    def digest(self, value: Any) -> _Digest:
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
            if type(value) in (bool, int, float, complex, str, bytes, type(None)):
                return _hashed(type(value).__name__, [_plain(value)])
        if id(value) in self._open:
            return _hashed("itself", [str(self._open[id(value)]).encode()])
        place = id(value), self._homes[-1] if self._homes else ""
        if place in self._digests:
            return self._digests[place]
        self._open[id(value)] = len(self._open)
        try:
            digest = self._digest_of(value)
        finally:
            del self._open[id(value)]
        if self._homes and isinstance(value, (types.FunctionType, type)):
            self._digests[place] = digest
        return digest

    def _digest_of(self, value: Any) -> _Digest:
        if isinstance(value, enum.Enum):
            return self._named("enum", type(value), [value.name, value.value])
        if isinstance(value, Resolver):
            return self._resolver(value)
        if isinstance(value, T.DataType):
            return _hashed("Spark type", [value.json().encode()])
        if isinstance(value, T.StructField):
            return _hashed("Spark field", [value.json().encode()])
        if isinstance(value, T.Row):
            return self._all("row", [list(getattr(value, "__fields__", ())), list(value)])
        if isinstance(value, Column):
            return self._column(value)
        if isinstance(value, DataFrame):
            self._miss("the rows of a Spark frame")
            return self._all("Spark frame", [value.schema])
        if isinstance(value, Node):
            self._miss("a collection inside of a function")
            return self._all("node", [value.kind, value.schema.struct])
        if isinstance(value, (pa.DataType, pa.Field, pa.Schema)):
            return _hashed(type(value).__name__, [_arrow_type_text(value).encode()])
        if isinstance(value, (pa.Table, pa.RecordBatch, pa.Array, pa.ChunkedArray, pa.Scalar)):
            return _hashed("Arrow", _arrow_parts(value))
        if isinstance(value, (np.ndarray, np.generic)):
            return self._numpy(np.asarray(value))
        if isinstance(value, (pd.DataFrame, pd.Series, pd.Index)):
            return self._pandas(value)
        if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
            return self._callable(value)
        if isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
            return self._all("builtin", [
                value.__qualname__, _owner_of(getattr(value, "__self__", None)),
            ])
        if isinstance(value, types.CodeType):
            return self._code(value)
        if isinstance(value, types.ModuleType):
            return _hashed("module", [value.__name__.encode()])
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, (staticmethod, classmethod)):
            return self._all(type(value).__name__, [value.__func__])
        if isinstance(value, property):
            return self._all("property", [value.fget, value.fset])
        if isinstance(value, functools.cached_property):
            return self._all("cached property", [value.func])
        if dataclasses.is_dataclass(value):
            return self._dataclass(value)
        if isinstance(value, (tuple, list)):
            return self._named("sequence", type(value), value)
        if isinstance(value, (set, frozenset)):
            return _hashed(type(value).__name__, sorted(map(self.digest, value)))
        if isinstance(value, dict):
            pairs = [(self.digest(key), self.digest(content)) for key, content in value.items()]
            return _hashed("mapping", [
                self._class_name(type(value)), *(part for pair in pairs for part in pair)
            ])
        return self._object(value)

    def _all(self, tag: str, parts: Iterable[Any]) -> _Digest:
        return _hashed(tag, [self.digest(part) for part in parts])

    def _named(self, tag: str, kind: type, parts: Iterable[Any]) -> _Digest:
        return _hashed(tag, [self._class_name(kind), *map(self.digest, parts)])

    def _class_name(self, kind: type) -> bytes:
        return f"{kind.__module__}.{kind.__qualname__}".encode()

    def _miss(self, what: str) -> None:
        self.unseen.append(what)

    # Functions.

    def _callable(self, value: Any) -> _Digest:
        if isinstance(value, functools.partial):
            return self._all("partial", [value.func, value.args, value.keywords])
        if isinstance(value, types.MethodType):
            return self._all("method", [value.__func__, value.__self__])
        return self._function(value)

    def _function(self, value: types.FunctionType) -> _Digest:
        module = value.__module__ or ""
        home = module.partition(".")[0]
        cells = dict(zip(value.__code__.co_freevars, value.__closure__ or ()))
        contents = {name: cell.cell_contents for name, cell in cells.items() if not _is_empty(cell)}
        outer = self._bound
        for content in contents.values():
            if isinstance(content, Resolver):
                self._bound = {**self._bound, **dict(content.bound)}
        try:
            reached = [
                self.digest(sorted(cells)), *(self.digest(contents[n]) for n in sorted(contents))
            ]
            reached += [self.digest(value.__defaults__), self.digest(value.__kwdefaults__)]
            if home in _KNOWN:
                # Functions of the library and of others are compared by name, so that their code
                # may change.
                return _hashed("known function", [
                    f"{module}.{value.__qualname__}".encode(), *reached
                ])
            if self._homes and home != self._homes[-1]:
                self._miss(f"the code of function {module}.{value.__qualname__}")
                return _hashed("function elsewhere", [
                    f"{module}.{value.__qualname__}".encode(), *reached
                ])
            self._homes.append(home)
            try:
                code = self._code(value.__code__, value.__doc__)
                named = sorted(set(_names_in(value.__code__)) & set(value.__globals__))
                for name in named:
                    reached.append(_hashed(name, [self.digest(value.__globals__[name])]))
            finally:
                self._homes.pop()
            return _hashed("function", [code, *reached])
        finally:
            self._bound = outer

    def _code(self, code: types.CodeType, doc: str | None = None) -> _Digest:
        consts = list(code.co_consts)
        if doc is not None and consts and consts[0] == doc:
            consts[0] = None  # a docstring has no effect
        return _hashed("code", [
            code.co_code,
            getattr(code, "co_exceptiontable", b""),
            *map(self.digest, (
                consts, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars,
                code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags,
            )),
        ])

    # Classes and objects.

    def _near(self, kind: type) -> bool:
        """Whether the methods of a class belong to the compared code."""
        home = kind.__module__.partition(".")[0]
        return home not in _KNOWN and (not self._homes or home == self._homes[-1])

    def _class(self, kind: type) -> _Digest:
        name = self._class_name(kind)
        if not self._near(kind):
            if kind.__module__.partition(".")[0] not in _KNOWN:
                self._miss(f"the code of class {name.decode()}")
            return _hashed("class", [name])
        body = {
            key: content for key, content in vars(kind).items()
            if not (key.startswith("__") and not isinstance(content, types.FunctionType))
            and key not in _ANNOTATIONS
        }
        parts = [name, *map(self.digest, kind.__bases__)]
        for key in sorted(body):
            if not key.startswith("_abc_") and not _is_slot(body[key]):
                parts.append(_hashed(key, [self.digest(body[key])]))
        return _hashed("class", parts)

    def _dataclass(self, value: Any) -> _Digest:
        ours = type(value).__module__.partition(".")[0] == "pyspark_diff"
        parts = [self._class_name(type(value)) if ours else self.digest(type(value))]
        for part in dataclasses.fields(value):
            if part.compare or not ours:
                content = getattr(value, part.name, None)
                parts.append(_hashed(part.name, [self.digest(content)]))
        return _hashed("dataclass", parts)

    def _object(self, value: Any) -> _Digest:
        kind = type(value)
        home = kind.__module__.partition(".")[0]
        name = f"{kind.__module__}.{kind.__qualname__}"
        if isinstance(value, SparkSession):
            return _hashed("session", [])
        if isinstance(value, re.Pattern):
            return self._all("pattern", [value.pattern, value.flags])
        if isinstance(value, logging.Logger):
            return self._all("logger", [value.name])
        if home == "numba" and hasattr(value, "py_func"):
            return self._all("compiled", [value.py_func])
        if home == "pyspark" and kind.__name__ == "UserDefinedFunction":
            return self._all("Python function in Spark", [
                value.func, value.returnType, value.evalType, value.deterministic,
            ])
        if home not in _OF_THIS_PROCESS:
            text, attributes = _text(value), _attributes(value)
            if text is not None and (attributes is None or home in sys.stdlib_module_names):
                return _hashed("object", [name.encode(), text.encode()])
            if attributes is not None:
                return _hashed("object", [self.digest(kind), *(
                    _hashed(key, [self.digest(attributes[key])]) for key in sorted(attributes)
                )])
        self._miss("an object of class " + name.removeprefix("builtins."))
        return _hashed("object of class", [name.encode()])

    # Tables.

    def _numpy(self, array: "np.ndarray[Any, Any]") -> _Digest:
        head = [str(array.dtype).encode(), str(array.shape).encode()]
        if array.dtype.hasobject:
            # Any element may be a function. The array is part of a program's text or closures;
            # it has no rows of a collection.
            return _hashed("array of objects", [*head, *map(self.digest, array.ravel().tolist())])
        return _hashed("array", [*head, np.ascontiguousarray(array).tobytes()])

    def _pandas(self, value: Any) -> _Digest:
        if isinstance(value, pd.DataFrame):
            columns = [value.iloc[:, i] for i in range(value.shape[1])]
            return self._all("pandas frame", [value.columns.tolist(), value.index, *columns])
        array = np.asarray(value)
        return self._all("pandas", [type(value).__name__, str(value.dtype), value.name, array])

    # Expressions of Spark.

    def _resolver(self, resolver: Resolver) -> _Digest:
        entries = [(entry.alias, entry.visible, entry.internal) for entry in resolver.entries]
        return self._all("names", [entries, sorted(internal for _, internal in resolver.bound)])

    def _column(self, column: Column) -> _Digest:
        parts, functions = expression_parts(column, self._attribute)
        for name in functions:
            self._miss(f"the code of the Python function {name} in a column")
        return _hashed("column", [self.digest(parts)])

    def _attribute(self, name: str) -> str:
        """The name of a column in an expression, without numbers of this process."""
        if name in self._bound:
            return f"{_HANDLE.sub('', name)}#={self._bound[name]}"
        if _HANDLE.search(name):
            number = self._handles.setdefault(name, len(self._handles))
            return _HANDLE.sub(f"#{number}", name)
        return name


def _plain(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    text = value if isinstance(value, str) else repr(value)
    return text.encode("utf-8", "surrogatepass")


def _text(value: object) -> str | None:
    """The text of an object, if it describes the object's value."""
    if type(value).__repr__ is object.__repr__:
        return None
    try:
        text = repr(value)
    except Exception:  # it is a user's object, whose `__repr__` may raise anything
        return None
    return None if _ADDRESS.search(text) else text


def _attributes(value: object) -> dict[str, Any] | None:
    """The attributes of an object; None if Python cannot list them."""
    slots = [
        name for kind in type(value).__mro__
        for name in _listed(vars(kind).get("__slots__", ())) if name not in (
            "__dict__", "__weakref__")
    ]
    values = getattr(value, "__dict__", None)
    if values is None and not slots:
        return None
    attributes = dict(values or {})
    for name in slots:
        try:
            attributes[name] = getattr(value, name)
        except AttributeError:
            continue
    return attributes


def _listed(names: Any) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _is_slot(value: object) -> bool:
    return isinstance(value, (types.MemberDescriptorType, types.GetSetDescriptorType))


def _is_empty(cell: Any) -> bool:
    try:
        cell.cell_contents
    except ValueError:
        return True
    return False


def _owner_of(value: object) -> str:
    """The module or class of a C function."""
    if value is None or isinstance(value, (types.ModuleType, type)):
        return "" if value is None else value.__name__
    return type(value).__name__


def _names_in(code: types.CodeType) -> Iterator[str]:
    """The names that a function looks up in its module."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in _LOOKS_UP:
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _arrow_type_text(value: pa.DataType | pa.Field | pa.Schema) -> str:
    if isinstance(value, pa.Schema):
        return "; ".join(_arrow_type_text(field) for field in value)
    if isinstance(value, pa.Field):
        return f"{value.name!r}: {value.type}{'' if value.nullable else ' not null'}"
    return str(value)


def _arrow_parts(value: Any) -> list[bytes]:
    """The content of a table, an array or a scalar of Arrow."""
    if isinstance(value, pa.Scalar):
        return [str(value.type).encode(), *_arrow_parts(pa.array([value.as_py()], value.type))]
    if isinstance(value, pa.RecordBatch):
        value = pa.Table.from_batches([value])
    if isinstance(value, pa.Table):
        columns = [part for column in value.columns for part in _arrow_parts(column)]
        return [_arrow_type_text(value.schema).encode(), *columns]
    array = pa.concat_arrays(value.chunks) if isinstance(value, pa.ChunkedArray) and (
        value.num_chunks) else value
    if isinstance(array, pa.ChunkedArray):
        array = pa.array([], array.type)
    sink = pa.BufferOutputStream()
    # A copy contains no other part of the array's buffers, and no values of null rows.
    whole = array.take(pa.array(np.arange(len(array))))
    batch = pa.record_batch([whole], names=["values"])
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return [sink.getvalue().to_pybytes()]


def rows_of(schema: Schema, table: pa.Table) -> ValueDigest:
    """The digest of rows, in any order.

    Examples
    --------
    >>> schema = Schema(T.StructType.fromDDL("n int, s string"))
    >>> table = pa.table({"n": pa.array([1, 2], pa.int32()), "s": ["a", None]})
    >>> rows_of(schema, table) == rows_of(schema, table.take(pa.array([1, 0])))
    True
    >>> rows_of(schema, table) == rows_of(schema, table.slice(1))
    False
    """
    try:
        layout = schema.layout()
        updates = layout.encode(table.columns, np.zeros(table.num_rows, np.int64), np.ones(
            table.num_rows, np.int64))
    except (DiffError, pa.ArrowException):
        # Maps have no equality: their rows are compared in their order.
        return ValueDigest(_hashed("rows", _arrow_parts(table)).hex()[:DIGITS])
    rows = consolidate(updates).updates
    parts = [part for column in layout.decode(rows) for part in _arrow_parts(column)]
    parts.append(np.ascontiguousarray(rows.diffs()).tobytes())
    return ValueDigest(_hashed("rows", parts).hex()[:DIGITS])
