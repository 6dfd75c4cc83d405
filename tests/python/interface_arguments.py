"""Draws arguments for calls of ONNX Runtime's C interface by their types and names, and reads what calls return."""

from __future__ import annotations

import ctypes
import math
import re
import threading
from collections.abc import Callable
from ctypes import byref, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

import interface_material as material
import numpy as np
from interface_reading import described
from onnxruntime_c import DTYPES, SEQUENCE, TENSOR, StatusError, handles, strings
from test_onnxruntime_statuses import EnvironmentOptions

ROOM = 1 << 13  # bytes of memory behind each pointer that a function may write to
NULLS = 0.008  # share of null pointers; it is small, because onnxruntime checks few pointers


@dataclass(eq=False)
class Handle:
    kind: str
    number: int
    pointer: int
    parents: tuple[Handle, ...]
    owned: bool  # true if the client has to release it
    keep: bool  # true if it lives longer than a sequence
    role: str = ""  # for a value in a graph: the name of the function that added it

    @property
    def name(self) -> str:
        return f"{self.kind}[{self.number}]"


@dataclass
class Argument:
    value: Any
    said: Any
    read: Callable[[tuple[Handle, ...]], Any] | None = None  # a function that reads what a successful call has written
    after: Callable[[], None] | None = None
    handle: Handle | None = None


SCALARS = {"size_t": c_size_t, "int": c_int, "int64_t": c_int64, "uint64_t": c_uint64, "uint32_t": c_uint32, "int32_t": c_int32, "bool": ctypes.c_bool, "float": c_float}


def bare(kind: str) -> str:
    return re.sub(r"\bconst\b|\s", "", kind)


class Arguments:
    """The arguments of one call."""

    def __init__(self, machine: Any, function: Any, fixed: Handle | None) -> None:
        self.machine, self.function, self.fixed = machine, function, fixed
        self.api, self.draw = machine.api, machine.draw
        self.kept: list[Any] = []
        self.has_handles = True
        self.owner: Handle | None = None  # the first argument that is a handle, for functions that take ownership of objects

    def drawn(self) -> list[Argument] | None:
        """Returns arguments; None if there is no handle of a kind that the function needs."""
        plan = self.function.fitting if self.function.fitting and self.draw.random() < 0.5 else self.function.plan
        made = [argument for make in plan for argument in make(self)]
        self.machine.kept.append((made, self.kept))
        return made if self.has_handles else None

    def is_null(self) -> bool:
        return self.draw.random() < NULLS

    def single(self, kind: str, name: str) -> Argument:
        plain = bare(kind)
        if plain in material.NUMBERS or plain.startswith(("Ort", "ONNX")) and not plain.endswith("*") and not plain.endswith(("Fn", "Func", "Function", "Delegate")):
            return self.number(plain, name)
        if plain == "char*" and "const" in kind:
            return self.text(name)
        if plain.endswith(("Fn", "Func", "Function", "Delegate")) or plain == "afunction":
            return self.callback(plain, name)
        if plain == "OrtEnvCreationOptions*":
            options = EnvironmentOptions(self.draw.choice([32, 32, 25, 1]), self.draw.choice([4, 4, 9]), self.draw.choice([b"id", None]), None, None, None, None)
            return Argument(byref(options) if not self.is_null() else c_void_p(), [options.version, options.level, bool(options.id)])
        if plain == "OrtCustomOp*":
            return Argument(c_void_p(ctypes.addressof(self.machine.library.probe.op)), "the operator")
        if plain.endswith("**") or plain.endswith("*") and plain[:-1] in SCALARS or plain in ("OrtErrorCode*",) or plain.endswith("*") and self.is_enum(plain[:-1]):
            return self.output(kind, plain, name)
        if plain.startswith("Ort") and plain.endswith("*"):
            return self.handle(plain[:-1])
        if self.is_null():
            return Argument(c_void_p(), None)
        room = ctypes.create_string_buffer(ROOM)
        return Argument(room, f"&{name}")

    @staticmethod
    def is_enum(kind: str) -> bool:
        return kind in material.NUMBERS and kind[0].isupper() or kind in ("OrtSparseFormat", "OrtCompiledModelCompatibility", "OrtLoggingLevel", "OrtHardwareDeviceType")

    def number(self, kind: str, name: str) -> Argument:
        choices = material.NUMBERS.get(f"{self.function.name}.{name}") or material.NUMBERS.get(name) or material.NUMBERS.get(kind) or [0, 1, 99]
        chosen = self.draw.choice(choices)
        return Argument(SCALARS.get(kind, c_int)(chosen), chosen)

    def chosen_text(self, name: str) -> bytes:
        short = self.function.name.replace("ModelCompilationOptions_", "")
        return self.draw.choice(material.TEXTS.get(f"{short}.{name}") or material.TEXTS.get(name) or [b"x", b"", b"nosuch"])

    def text(self, name: str) -> Argument:
        if self.is_null():
            return Argument(c_char_p(), None)
        text = self.chosen_text(name)
        return Argument(c_char_p(text), text.decode(errors="replace")[:50])

    def some(self, kind: str, owned: bool = False) -> Handle | None:
        there = [each for each in self.machine.handles[kind] if not owned or each.owned and not each.keep]
        if kind == "OrtValue" and there and re.search(r"Sparse|^Use", self.function.name) and self.draw.random() < 0.6:
            return there[-1]
        return self.draw.choice(there) if there else None

    def handle(self, kind: str) -> Argument:
        if self.fixed and self.fixed.kind == kind:
            return Argument(c_void_p(self.fixed.pointer), self.fixed.name, handle=self.fixed)
        if kind != "OrtLoraAdapter" and self.is_null():  # onnxruntime accepts a null adapter, and reads it during the run
            return Argument(c_void_p(), None)
        releases = self.function.name.startswith("Release")
        taken = releases or (self.function.name, kind) in TAKEN
        chosen = self.some(kind, owned=taken)
        if chosen is None:
            if kind not in OPTIONAL_HANDLES or taken:
                self.has_handles = False
            return Argument(c_void_p(), None)
        self.owner = self.owner or chosen
        after = None
        if releases:
            after = lambda: self.machine.forget(chosen)
        elif taken:
            after = lambda: self.take_over(chosen)
        return Argument(c_void_p(chosen.pointer), chosen.name, after=after, handle=chosen)

    def take_over(self, chosen: Handle) -> None:
        chosen.owned = False
        if self.owner is not None and self.owner is not chosen:
            chosen.parents = (*chosen.parents, self.owner)

    # Arguments to which a function writes.

    def output(self, kind: str, plain: str, name: str) -> Argument:
        if self.is_null():
            return Argument(c_void_p(), None)
        room = ctypes.create_string_buffer(ROOM)
        said: Any = f"&{name}"
        if plain == "size_t*" and name == "size":
            said = self.draw.choice([0, 8, 64])
            c_size_t.from_buffer(room).value = said
        return Argument(room, said, read=lambda parents: self.written(kind, plain, room, parents))

    def written(self, kind: str, plain: str, room: Any, parents: tuple[Handle, ...]) -> Any:
        pointer = c_void_p.from_buffer(room)
        if plain.startswith("Ort") and plain.endswith("***") or plain.endswith("*const**"):
            return "handles" if pointer.value else None
        if plain.startswith("Ort") and plain.endswith("**"):
            if not pointer.value:
                return None
            if self.function.name in ("CreateTensorAsOrtValue", "KernelContext_GetOutput"):
                self.clear(pointer)
            name = plain[:-2]
            of = parents if "const" in kind or name in BELONGING else ()
            owned = "const" not in kind and self.function.name not in LENDING
            return [self.machine.add(name, pointer.value, of, owned=owned), described(self.api, name, c_void_p(pointer.value))]
        if plain == "char**":
            return ctypes.string_at(pointer.value)[:200].decode(errors="replace") if pointer.value and self.function.name != "GetResizedStringTensorElementBuffer" else bool(pointer.value)
        if plain == "char*":
            return ctypes.string_at(room)[:200].decode(errors="replace")
        if plain == "void**":
            return "memory" if pointer.value else None
        if plain.endswith("**"):
            return bool(pointer.value)
        if plain[:-1] in SCALARS:
            value = SCALARS[plain[:-1]].from_buffer(room).value
            return round(value, 4) if isinstance(value, float) else value
        return c_int.from_buffer(room).value

    def clear(self, value: c_void_p) -> None:
        """Zeroes a new value's memory, which would otherwise be random."""
        if self.api.number("GetTensorElementType", self.api.made("GetTensorTypeAndShape", value), kind=c_int) != 8:
            size = self.api.number("GetTensorSizeInBytes", value)
            if size:
                ctypes.memset(self.api.made("GetTensorMutableData", value).value, 0, size)

    # Callback functions.

    def callback(self, plain: str, name: str) -> Argument:
        if self.is_null():
            return Argument(c_void_p(), None)
        make = CALLBACKS.get(plain) or CALLBACKS.get(name)
        if make is None:
            return Argument(c_void_p(), None)
        function = make(self)
        self.kept.append(function)
        return Argument(ctypes.cast(function, c_void_p), f"{name}()")

    # Groups of parameters whose arguments must fit together.

    def shape(self) -> list[Argument]:
        dims = self.draw.choice(material.SHAPES)
        return [Argument((c_int64 * max(len(dims), 1))(*dims), dims), Argument(c_size_t(len(dims)), len(dims))]

    def some_values(self, most: int = 3) -> tuple[list[Handle | None], list]:
        count = self.draw.choice([0, 1, 1, 2, 2, most])
        chosen = [None if self.is_null() else self.some("OrtValue") for _ in range(count)]
        return chosen, [each.name if each else None for each in chosen]

    def array_of(self, chosen: list[Handle | None]) -> Any:
        return handles(*[c_void_p(each.pointer) if each else None for each in chosen])

    def texts(self, choices: list[bytes], count: int) -> Argument:
        chosen = [None if self.is_null() else self.draw.choice(choices) for _ in range(count)]
        return Argument(strings(*chosen), [each.decode(errors="replace") if each is not None else None for each in chosen])

    def feeds(self, session: Handle | None) -> tuple[list[bytes], list[Handle | None]]:
        """Chooses feeds: mostly the session's inputs, sometimes other values."""
        names: list[bytes] = []
        chosen: list[Handle | None] = []
        if session is None:
            return names, chosen
        try:
            said = self.api.describe(c_void_p(session.pointer))
        except StatusError:
            return [b"x"], [self.some("OrtValue")]
        for name, kind in said["Input"]:
            if self.draw.random() < 0.04:
                continue
            names.append(name.encode() if self.draw.random() > 0.03 else self.draw.choice([b"nosuch", b"", b"w"]))
            fitting = self.fitting(kind) if self.draw.random() > 0.1 else None
            chosen.append(fitting or self.some("OrtValue"))
        if self.draw.random() < 0.1:
            names.append(self.draw.choice([b"w", b"x", b"nosuch"]))
            chosen.append(self.some("OrtValue"))
        return names, chosen

    def fitting(self, kind: Any) -> Handle | None:
        if kind[0] == SEQUENCE:
            return next((each for each in self.machine.handles["OrtValue"] if each.number == 4), None)
        if kind[0] != TENSOR:
            return None
        dtype, dims = kind[1], [extent if extent >= 0 else 2 for extent in kind[2]]
        if dtype != 8 and dtype not in DTYPES:
            return None
        count = math.prod(dims)
        array = np.array([str(i) for i in range(count)], object) if dtype == 8 else np.arange(count) % 5
        value = self.api.value(array.reshape(dims) if dtype == 8 else array.astype(DTYPES[dtype]).reshape(dims))
        self.machine.add("OrtValue", value.value or 0)
        return self.machine.handles["OrtValue"][-1]

    def outputs(self, session: Handle | None) -> list[bytes]:
        names = [b"y"]
        if session is not None:
            try:
                names = [name.encode() for name, _ in self.api.describe(c_void_p(session.pointer))["Output"]]
            except StatusError:
                return names
        if self.draw.random() < 0.1:
            names = self.draw.choice([[b"nosuch"], [], [b""], names + names, [b"w"], [b"x"]])
        return names


# Handles of which a function takes ownership, so that the client must not release them.
TAKEN = {("AddNodeToGraph", "OrtNode"), ("AddGraphToModel", "OrtGraph"), ("AddInitializerToGraph", "OrtValue"), ("ApplyModelToModelEditorSession", "OrtModel")}
# Kinds of handles that may be null.
OPTIONAL_HANDLES = {"OrtRunOptions", "OrtThreadingOptions", "OrtArenaCfg", "OrtPrepackedWeightsContainer", "OrtSyncStream"}
# Functions whose results belong to the library, so that the caller must not release them.
LENDING = {"GetSharedAllocator", "CreateSharedAllocator", "GetAllocatorWithDefaultOptions", "KernelContext_GetAllocator"}
# Kinds of objects that must not live longer than the object from which they were made.
BELONGING = {"OrtIoBinding", "OrtAllocator", "OrtValue", "OrtGraph", "OrtOp", "OrtKernelInfo"}

LOG = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_char_p, c_char_p, c_char_p)
_WORK = ctypes.CFUNCTYPE(None, c_void_p)
_CREATE = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_void_p)
RUN_ENDS = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_size_t, c_void_p)
_WRITE = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_size_t)
_LOCATE = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_char_p, c_void_p, c_void_p, c_void_p)
_SELECT = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_size_t, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p)
_PART = ctypes.CFUNCTYPE(None, c_void_p, c_size_t)
THREADS: dict[int, threading.Thread] = {}


def _logger(arguments: Arguments) -> Any:
    def log(_param: Any, severity: int, _category: bytes, _logid: bytes, _location: bytes, message: bytes) -> None:
        if message.startswith(b"client:"):
            arguments.machine.tell(["logged", severity, message.decode()])

    return LOG(log)


def _create_thread(arguments: Arguments) -> Any:
    def create(_options: Any, work: int, argument: int) -> int:
        number = len(THREADS) + 1
        THREADS[number] = threading.Thread(target=lambda: _WORK(work)(argument), daemon=True)
        THREADS[number].start()
        return number

    return _CREATE(create)


def _write(arguments: Arguments) -> Any:
    fails = arguments.draw.random() < 0.3
    return _WRITE(lambda *_: arguments.api.call("CreateStatus", 11, b"no space", result=c_void_p) if fails else None)


def _locate(arguments: Arguments) -> Any:
    return _LOCATE(lambda *_: None)


def _select(arguments: Arguments) -> Any:
    how = arguments.draw.choice(["first", "first", "none", "fails"])

    def select(devices: int, count: int, _model: Any, _runtime: Any, selected: int, _most: int, num_selected: int, _state: Any) -> int | None:
        if how == "fails":
            return arguments.api.call("CreateStatus", 1, b"no choice", result=c_void_p)
        c_size_t.from_address(num_selected).value = int(how == "first")
        if how == "first" and count:
            c_void_p.from_address(selected).value = c_void_p.from_address(devices).value
        return None

    return _SELECT(select)


CALLBACKS: dict[str, Callable[[Arguments], Any]] = {
    "OrtLoggingFunction": _logger,
    "OrtCustomCreateThreadFn": _create_thread,
    "OrtCustomJoinThreadFn": lambda _: _WORK(lambda number: THREADS[number].join(5) if number in THREADS else None),
    "OrtWriteBufferFunc": _write,
    "OrtGetInitializerLocationFunc": _locate,
    "EpSelectionDelegate": _select,
    "afunction": lambda _: _PART(lambda _data, _place: None),
}
