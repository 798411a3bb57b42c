"""What a value is, told in a digest that another process finds again.

    digest(x) == digest(y)  ⟸  x and y were written down in the same way, in whichever process
    digest(x) != digest(y)  ⟸  they differ in something that is compared

Compared are values by type and content, functions by their code and all that it reaches, objects by
class and attributes. Where a line stands, what a local function is called, and in which order a set
has its elements makes no difference. What cannot be told from one process to the next, such as a
lock or the rows of a Spark frame, is described by its class alone and listed as not compared.

The code of functions is Python's own, and another minor version of Python has another: see
`PYTHON`. Nothing that is described is called, and nothing is ever made of a digest.
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

#: The version of Python whose code functions have here.
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"

#: So many hexadecimal digits a digest has.
DIGITS = 32

_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]+|@[0-9a-f]{5,}\b")
#: A column as a user took it from a frame: its name, and a number that every process counts anew.
_HANDLE = re.compile(r"#\d+")

#: Packages whose functions are what their names say: other versions of them do the same.
_KNOWN = frozenset({
    "builtins", "numpy", "pandas", "py4j", "pyarrow", "pyspark", "pyspark_diff",
    *sys.stdlib_module_names,
}) - {"__main__"}
#: Packages whose objects hold what belongs to a process.
_OF_THIS_PROCESS = frozenset({
    "_thread", "_weakref", "py4j", "pyspark", "pyspark_diff", "threading", "weakref",
})
#: Instructions that look a name up in a module.
_LOOKS_UP = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})

_Digest = bytes


@dataclasses.dataclass(frozen=True)
class ValueDigest:
    """A digest, and what is not in it.

    Parameters
    ----------
    digest : str
    unseen : tuple of str
        What was not compared, in words.
    """

    digest: str
    unseen: tuple[str, ...] = ()


def described(value: object) -> ValueDigest:
    """What a value is.

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
    digest = describer.of(value)
    return ValueDigest(digest.hex()[:DIGITS], tuple(dict.fromkeys(describer.unseen)))


def digest_of(*parts: str) -> str:
    """One digest of several."""
    return _hashed("digests", [part.encode() for part in parts]).hex()[:DIGITS]


def _hashed(tag: str, parts: Iterable[bytes]) -> _Digest:
    """The digest of parts under a tag, in which each part has its length in front."""
    made = hashlib.sha256()
    for part in (tag.encode(), *parts):
        made.update(len(part).to_bytes(8, "little"))
        made.update(part)
    return made.digest()


class _Describer:
    """Walks through one value. It holds state: where it is, and what it could not see."""

    def __init__(self) -> None:
        self.unseen: list[str] = []
        #: Values that are being described, by their identity: they may be parts of themselves.
        self._open: dict[int, int] = {}
        #: The packages that the functions around belong to.
        self._homes: list[str] = []
        #: By the text of a handle the column that it stands for.
        self._bound: dict[str, str] = {}
        self._handles: dict[str, int] = {}
        #: Functions and classes that were described, for whom: many may name the same.
        self._found: dict[tuple[int, str], _Digest] = {}

    def of(self, value: Any) -> _Digest:
        """The digest of a value."""
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
            if type(value) in (bool, int, float, complex, str, bytes, type(None)):
                return _hashed(type(value).__name__, [_plain(value)])
        if id(value) in self._open:
            return _hashed("itself", [str(self._open[id(value)]).encode()])
        place = id(value), self._homes[-1] if self._homes else ""
        if place in self._found:
            return self._found[place]
        self._open[id(value)] = len(self._open)
        try:
            found = self._of(value)
        finally:
            del self._open[id(value)]
        if self._homes and isinstance(value, (types.FunctionType, type)):
            self._found[place] = found
        return found

    def _of(self, value: Any) -> _Digest:
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
            return _hashed(type(value).__name__, sorted(map(self.of, value)))
        if isinstance(value, dict):
            pairs = [(self.of(key), self.of(held)) for key, held in value.items()]
            return _hashed("mapping", [
                self._class_name(type(value)), *(part for pair in pairs for part in pair)
            ])
        return self._object(value)

    def _all(self, tag: str, parts: Iterable[Any]) -> _Digest:
        return _hashed(tag, [self.of(part) for part in parts])

    def _named(self, tag: str, kind: type, parts: Iterable[Any]) -> _Digest:
        return _hashed(tag, [self._class_name(kind), *map(self.of, parts)])

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
        held = {name: cell.cell_contents for name, cell in cells.items() if not _is_empty(cell)}
        outer = self._bound
        for content in held.values():
            if isinstance(content, Resolver):
                self._bound = {**self._bound, **dict(content.bound)}
        try:
            reached = [self.of(sorted(cells)), *(self.of(held[name]) for name in sorted(held))]
            reached += [self.of(value.__defaults__), self.of(value.__kwdefaults__)]
            if home in _KNOWN:
                # What the library and others do is told by name, so that it may be put in order.
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
                    reached.append(_hashed(name, [self.of(value.__globals__[name])]))
            finally:
                self._homes.pop()
            return _hashed("function", [code, *reached])
        finally:
            self._bound = outer

    def _code(self, code: types.CodeType, doc: str | None = None) -> _Digest:
        consts = list(code.co_consts)
        if doc is not None and consts and consts[0] == doc:
            consts[0] = None  # what is said of a function is not what it does
        return _hashed("code", [
            code.co_code,
            getattr(code, "co_exceptiontable", b""),
            *map(self.of, (
                consts, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars,
                code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags,
            )),
        ])

    # Classes and objects.

    def _near(self, kind: type) -> bool:
        """Whether the methods of a class belong to the code that is described."""
        home = kind.__module__.partition(".")[0]
        return home not in _KNOWN and (not self._homes or home == self._homes[-1])

    def _class(self, kind: type) -> _Digest:
        name = self._class_name(kind)
        if not self._near(kind):
            if kind.__module__.partition(".")[0] not in _KNOWN:
                self._miss(f"the code of class {name.decode()}")
            return _hashed("class", [name])
        body = {
            key: held for key, held in vars(kind).items()
            if not (key.startswith("__") and not isinstance(held, types.FunctionType))
        }
        parts = [name, *map(self.of, kind.__bases__)]
        for key in sorted(body):
            if not key.startswith("_abc_") and not _is_slot(body[key]):
                parts.append(_hashed(key, [self.of(body[key])]))
        return _hashed("class", parts)

    def _dataclass(self, value: Any) -> _Digest:
        ours = type(value).__module__.partition(".")[0] == "pyspark_diff"
        parts = [self._class_name(type(value)) if ours else self.of(type(value))]
        for part in dataclasses.fields(value):
            if part.compare or not ours:
                held = getattr(value, part.name, None)
                parts.append(_hashed(part.name, [self.of(held)]))
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
            text, held = _text(value), _attributes(value)
            if text is not None and (held is None or home in sys.stdlib_module_names):
                return _hashed("object", [name.encode(), text.encode()])
            if held is not None:
                return _hashed("object", [self.of(kind), *(
                    _hashed(key, [self.of(held[key])]) for key in sorted(held)
                )])
        self._miss("an object of class " + name.removeprefix("builtins."))
        return _hashed("object of class", [name.encode()])

    # Tables.

    def _numpy(self, array: "np.ndarray[Any, Any]") -> _Digest:
        head = [str(array.dtype).encode(), str(array.shape).encode()]
        if array.dtype.hasobject:
            # Any of them may be a function. They are what a program has in its text or its
            # closures, and not rows of a collection.
            return _hashed("array of objects", [*head, *map(self.of, array.ravel().tolist())])
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
        return _hashed("column", [self.of(parts)])

    def _attribute(self, name: str) -> str:
        """The name of a column in an expression, without numbers that only this process knows."""
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
    """How an object shows itself, if that says what it is."""
    if type(value).__repr__ is object.__repr__:
        return None
    try:
        text = repr(value)
    except Exception:  # it is a user's object, whose `__repr__` may raise anything
        return None
    return None if _ADDRESS.search(text) else text


def _attributes(value: object) -> dict[str, Any] | None:
    """What an object holds; None where Python does not tell."""
    slots = [
        name for kind in type(value).__mro__
        for name in _listed(vars(kind).get("__slots__", ())) if name not in (
            "__dict__", "__weakref__")
    ]
    held = getattr(value, "__dict__", None)
    if held is None and not slots:
        return None
    found = dict(held or {})
    for name in slots:
        try:
            found[name] = getattr(value, name)
        except AttributeError:
            continue
    return found


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
    """What a function of C belongs to."""
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
    # Taken anew, so that nothing is left of the array that it was a part of, nor of what stood in
    # the place of nulls.
    whole = array.take(pa.array(np.arange(len(array))))
    batch = pa.record_batch([whole], names=["values"])
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return [sink.getvalue().to_pybytes()]


def rows_of(schema: Schema, table: pa.Table) -> ValueDigest:
    """What rows are, in whichever order they come.

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
        # Maps are not compared by anybody: their rows count in the order in which they come.
        return ValueDigest(_hashed("rows", _arrow_parts(table)).hex()[:DIGITS])
    found = consolidate(updates).updates
    parts = [part for column in layout.decode(found) for part in _arrow_parts(column)]
    parts.append(np.ascontiguousarray(found.diffs()).tobytes())
    return ValueDigest(_hashed("rows", parts).hex()[:DIGITS])
