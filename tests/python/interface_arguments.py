"""Arguments of calls of ONNX Runtime's C interface, drawn by their types and names, and what is read of what a call gives."""

from __future__ import annotations

import ctypes
import math
import re
import threading
from collections.abc import Callable
from ctypes import byref, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

import interface_material as material
import numpy as np
from onnxruntime_c import DTYPES, MAP, SEQUENCE, TENSOR, Api, StatusError, handles, strings
from test_onnxruntime_statuses import EnvironmentOptions

ROOM = 1 << 13  # bytes behind every pointer that a function may write to
NULLS = 0.008  # of pointers: onnxruntime looks at few of them
SPARSE, OPTIONAL = 5, 6


@dataclass(eq=False)
class Handle:
    kind: str
    number: int
    pointer: int
    parents: tuple[Handle, ...]
    owned: bool  # it is to be released
    keep: bool  # not within a sequence
    role: str = ""  # of a value in a graph: which function has put it there

    @property
    def name(self) -> str:
        return f"{self.kind}[{self.number}]"


@dataclass
class Argument:
    value: Any
    said: Any
    read: Callable[[tuple[Handle, ...]], Any] | None = None  # what was written, of a call that succeeded
    after: Callable[[], None] | None = None
    handle: Handle | None = None


SCALARS = {"size_t": c_size_t, "int": c_int, "int64_t": c_int64, "uint64_t": c_uint64, "uint32_t": c_uint32, "int32_t": c_int32, "bool": ctypes.c_bool, "float": c_float}


def bare(kind: str) -> str:
    return re.sub(r"\bconst\b|\s", "", kind)


def numbers(array: Any) -> Any:
    """NaN and infinities have no JSON."""
    return [str(each) if isinstance(each, float) and not math.isfinite(each) else each for each in np.asarray(array).ravel().tolist()[:64]]


def content(api: Api, value: c_void_p) -> Any:
    kind = api.number("GetValueType", value, kind=c_int)
    if kind == TENSOR:
        has = api.number("HasValue", value, kind=c_int)
        dtype, dims, _ = api.shape_and_dtype(api.made("GetTensorTypeAndShape", value)) if has else (0, [], [])
        if dtype not in DTYPES and dtype != 8 or math.prod(dims) > 64 or not has:
            return [kind, has, dtype, dims]
        array = api.content(value)
        return [kind, dtype, list(array.shape), [str(each) for each in array.ravel()] if dtype == 8 else numbers(array)]
    if kind in (SEQUENCE, MAP):
        parts = []
        for i in range(api.number("GetValueCount", value)):
            part = c_void_p()
            api.call("GetValue", value, i, api.allocator, byref(part))
            parts.append(content(api, part))
        return [kind, parts]
    if kind == SPARSE:
        return [kind, api.number("GetSparseTensorFormat", value, kind=c_int), api.shape_and_dtype(api.made("GetTensorTypeAndShape", value)),
                api.shape_and_dtype(api.made("GetSparseTensorValuesTypeAndShape", value))]
    return [kind, api.number("HasValue", value, kind=c_int)]


def memory_info(api: Api, info: c_void_p) -> list:
    out = c_char_p()
    api.call("MemoryInfoGetName", info, byref(out))
    device = c_int(-9)
    api.call("MemoryInfoGetDeviceType", info, byref(device), result=None)
    numbers_of = [api.number(f"MemoryInfoGet{what}", info, kind=c_int) for what in ("Id", "MemType", "Type")]
    return [out.value.decode(), *numbers_of, device.value, *[api.call(f"MemoryInfoGet{what}", info, result=c_int) for what in ("DeviceMemType", "VendorId")]]


def pairs(api: Api, given: c_void_p) -> list:
    keys, values, count = c_void_p(), c_void_p(), c_size_t()
    api.call("GetKeyValuePairs", given, byref(keys), byref(values), byref(count), result=None)
    both = [(c_char_p * count.value).from_address(place.value) if count.value else [] for place in (keys, values)]
    return sorted([[key.decode(errors="replace")[:40], value.decode(errors="replace")[:40]] for key, value in zip(*both)])


def session_said(api: Api, session: c_void_p) -> Any:
    return [[what, [[name, str(kind)] for name, kind in entries]] for what, entries in api.describe(session).items() if isinstance(entries, list)]


def metadata_said(api: Api, metadata: c_void_p) -> Any:
    return [api.text(f"ModelMetadataGet{what}", metadata) for what in ("ProducerName", "GraphName", "Domain", "Description", "GraphDescription")] + [
        api.number("ModelMetadataGetVersion", metadata, kind=c_int64)]


DESCRIBE: dict[str, Callable[[Api, c_void_p], Any]] = {
    "OrtValue": content,
    "OrtTypeInfo": lambda api, info: str(api.describe_type(info)),
    "OrtTensorTypeAndShapeInfo": lambda api, info: [str(api.shape_and_dtype(info)), api.call("TensorTypeAndShape_HasShape", info, result=c_int) & 1],
    "OrtMemoryInfo": memory_info,
    "OrtKeyValuePairs": pairs,
    "OrtSession": session_said,
    "OrtModelMetadata": metadata_said,
}


def described(api: Api, kind: str, pointer: c_void_p) -> Any:
    if kind not in DESCRIBE:
        return None
    try:
        return DESCRIBE[kind](api, pointer)
    except StatusError as error:
        return f"status {error.code}"


class Arguments:
    """Of one call."""

    def __init__(self, machine: Any, function: Any, fixed: Handle | None) -> None:
        self.machine, self.function, self.fixed = machine, function, fixed
        self.api, self.draw = machine.api, machine.draw
        self.kept: list[Any] = []
        self.has_handles = True
        self.owner: Handle | None = None  # of what the function takes over: its first handle

    def drawn(self) -> list[Argument] | None:
        """Nothing if there is no handle of a kind that it takes."""
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
        if kind != "OrtLoraAdapter" and self.is_null():  # which onnxruntime takes, and reads in the run
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

    # What a function writes to.

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
        """Memory that nobody has written to is anything."""
        if self.api.number("GetTensorElementType", self.api.made("GetTensorTypeAndShape", value), kind=c_int) != 8:
            size = self.api.number("GetTensorSizeInBytes", value)
            if size:
                ctypes.memset(self.api.made("GetTensorMutableData", value).value, 0, size)

    # What a function calls.

    def callback(self, plain: str, name: str) -> Argument:
        if self.is_null():
            return Argument(c_void_p(), None)
        make = CALLBACKS.get(plain) or CALLBACKS.get(name)
        if make is None:
            return Argument(c_void_p(), None)
        function = make(self)
        self.kept.append(function)
        return Argument(ctypes.cast(function, c_void_p), f"{name}()")

    # Several parameters that belong together.

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
        """Mostly what the session takes, and now and then something else."""
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


# Handles that a function keeps, which the client may not release any more.
TAKEN = {("AddNodeToGraph", "OrtNode"), ("AddGraphToModel", "OrtGraph"), ("AddInitializerToGraph", "OrtValue"), ("ApplyModelToModelEditorSession", "OrtModel")}
# What may be null: the others need one.
OPTIONAL_HANDLES = {"OrtRunOptions", "OrtThreadingOptions", "OrtArenaCfg", "OrtPrepackedWeightsContainer", "OrtSyncStream"}
# What they give out is the library's.
LENDING = {"GetSharedAllocator", "CreateSharedAllocator", "GetAllocatorWithDefaultOptions", "KernelContext_GetAllocator"}
# What ends with what it was made of.
BELONGING = {"OrtIoBinding", "OrtAllocator", "OrtValue", "OrtGraph", "OrtOp", "OrtKernelInfo"}

_LOG = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_char_p, c_char_p, c_char_p)
_WORK = ctypes.CFUNCTYPE(None, c_void_p)
_CREATE = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_void_p)
_RUN_ENDS = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_size_t, c_void_p)
_WRITE = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_size_t)
_LOCATE = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_char_p, c_void_p, c_void_p, c_void_p)
_SELECT = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_size_t, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p)
_PART = ctypes.CFUNCTYPE(None, c_void_p, c_size_t)
THREADS: dict[int, threading.Thread] = {}


def _logger(arguments: Arguments) -> Any:
    def log(_param: Any, severity: int, _category: bytes, _logid: bytes, _location: bytes, message: bytes) -> None:
        if message.startswith(b"client:"):
            arguments.machine.tell(["logged", severity, message.decode()])

    return _LOG(log)


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


# Groups of parameters. Each: a pattern over the function, names, and what makes the arguments.


def _memory(a: Arguments) -> list[Argument]:
    if a.function.name == "CreateTensorWithDataAndDeleterAsOrtValue":  # which gives it back
        length, out = a.draw.choice([0, 24, 24, 48, 4096]), c_void_p()
        a.api.call("AllocatorAlloc", a.api.allocator, c_size_t(4096), byref(out))
        ctypes.memset(out.value, 0, 4096)
        return [Argument(c_void_p(out.value), "data of the allocator"), Argument(c_size_t(length), length)]
    length = a.draw.choice([0, 4, 16, 24, 24, 48, 4096])
    data = np.resize(np.arange(5, dtype=np.float32), ROOM // 4)
    a.kept.append(data)
    pointer = c_void_p() if a.is_null() else c_void_p(data.ctypes.data)
    return [Argument(pointer, "data" if pointer.value else None), Argument(c_size_t(length), length)]


def _values(a: Arguments) -> list[Argument]:
    chosen, said = a.some_values()
    return [Argument(a.array_of(chosen), said), Argument(c_size_t(len(chosen)), len(chosen))]


def _values_of_int(a: Arguments) -> list[Argument]:
    made = _values(a)
    return [made[0], Argument(c_int(made[1].said), made[1].said)]


def _texts_in(a: Arguments) -> list[Argument]:
    made = a.texts([each for each in material.STRINGS if each is not None], a.draw.choice([0, 1, 2, 2, 2, 3]))
    return [made, Argument(c_size_t(len(made.said)), len(made.said))]


def _pairs_in(a: Arguments) -> list[Argument]:
    count = a.draw.choice([0, 0, 1, 2])
    return [a.texts([b"a", b"nosuch", b""], count), a.texts([b"1", b""], count), Argument(c_size_t(count), count)]


def _named_values(a: Arguments) -> list[Argument]:
    chosen, said = a.some_values()
    names = a.texts([b"w", b"w", b"x", b"nosuch", b""], len(chosen))
    return [names, Argument(a.array_of(chosen), said), Argument(c_size_t(len(chosen)), len(chosen))]


def _model_bytes(a: Arguments) -> list[Argument]:
    name = a.draw.choice([*material.MODELS, *["plain", "described", "relu", "probe"] * 4])
    data = material.MODELS[name]
    if a.is_null():
        return [Argument(c_void_p(), None), Argument(c_size_t(len(data)), len(data))]
    return [Argument(c_char_p(data), name), Argument(c_size_t(len(data)), len(data))]


def _adapter_bytes(a: Arguments) -> list[Argument]:
    data = a.draw.choice([material.ADAPTER, b"no adapter", b""])
    return [Argument(c_char_p(data), len(data)), Argument(c_size_t(len(data)), len(data))]


def _run(a: Arguments) -> list[Argument]:
    session = a.handle("OrtSession")
    options = a.handle("OrtRunOptions") if a.draw.random() < 0.5 else Argument(c_void_p(), None)
    names, chosen = a.feeds(session.handle)
    outputs = a.outputs(session.handle)
    given = [a.some("OrtValue") if a.draw.random() < 0.08 else None for _ in outputs]
    results = a.array_of(given)

    def read(_: Any) -> Any:
        made = []
        for place, before in enumerate(given):
            pointer = results[place]
            if pointer and before is None:
                made.append([a.machine.add("OrtValue", pointer), described(a.api, "OrtValue", c_void_p(pointer))])
            elif pointer:
                made.append(described(a.api, "OrtValue", c_void_p(pointer)))
        return made

    said = [each.decode() for each in names]
    made = [session, options, Argument(strings(*names), said), Argument(a.array_of(chosen), [each.name if each else None for each in chosen]), Argument(c_size_t(len(names)), len(names)),
            Argument(strings(*outputs), [each.decode() for each in outputs]), Argument(c_size_t(len(outputs)), len(outputs))]
    if a.function.name == "Run":
        return [*made, Argument(results, [each.name if each else None for each in given], read=read)]
    ended, status = threading.Event(), []

    def ends(_data: Any, _outputs: Any, count: int, failed: int | None) -> None:
        try:
            a.api.check(failed)
            status.append(["ok", count])
        except StatusError as error:
            status.append([error.code, count])
        ended.set()

    def waited(parents: Any) -> Any:
        came = ended.wait(10)
        return [came, status, read(parents) if came and status[0][0] == "ok" else None]

    callback = _RUN_ENDS(ends)
    a.kept.append(callback)
    return [*made, Argument(results, [each.name if each else None for each in given]), Argument(ctypes.cast(callback, c_void_p), "callback()", read=waited), Argument(c_void_p(), None)]


def _devices_in(a: Arguments) -> list[Argument]:
    chosen = [a.some("OrtEpDevice") for _ in range(a.draw.choice([0, 1, 1, 2]))]
    if None in chosen:
        chosen = []
    return [Argument(a.array_of(chosen), [each.name for each in chosen if each]), Argument(c_size_t(len(chosen)), len(chosen))]


def _devices_out(a: Arguments) -> list[Argument]:
    room, count = c_void_p(), c_size_t()

    def read(_: Any) -> Any:
        table = (c_void_p * count.value).from_address(room.value or 0) if count.value else []
        kind = "OrtEpDevice" if a.function.name == "GetEpDevices" else "OrtEpAssignedSubgraph" if a.function.name.startswith("Session_") else "OrtEpAssignedNode"
        return [a.machine.add(kind, each, (a.owner,) if a.owner else (), owned=False) for each in list(table)[:3]]

    return [Argument(byref(room), "&out", read=read), Argument(byref(count), "&count", read=lambda _: count.value)]


def _handles_out(a: Arguments) -> list[Argument]:
    count = a.draw.choice([0, 1, 2, 2, 3, 8])
    room = (c_void_p * 16)()
    kind = next(bare(kind)[:-2] for kind, name in a.function.parameters if "Ort" in kind and bare(kind).endswith("**"))

    def read(parents: Any) -> Any:
        return [a.machine.add(kind, each, parents, owned=False) if each else None for each in list(room)[:count]]

    return [Argument(room, "&out", read=read), Argument(c_size_t(count), count)]


def _consumers(a: Arguments) -> list[Argument]:
    nodes, count = _handles_out(a)
    return [nodes, Argument((c_int64 * 16)(), "&indices"), count]


def _dims_out(a: Arguments) -> list[Argument]:
    count = a.draw.choice([0, 1, 2, 2, 3])
    room = (c_int64 * 8)()
    return [Argument(room, "&dims", read=lambda _: list(room)), Argument(c_size_t(count), count)]


def _symbols_out(a: Arguments) -> list[Argument]:
    count = a.draw.choice([0, 1, 2, 2, 3])
    room = (c_char_p * 8)()
    return [Argument(room, "&names", read=lambda _: [each.decode() if each is not None else None for each in room]), Argument(c_size_t(count), count)]


def _symbols_in(a: Arguments) -> list[Argument]:
    made = a.texts([b"rows", b"", b"n"], a.draw.choice([0, 1, 2]))
    return [made, Argument(c_size_t(len(made.said)), len(made.said))]


def _fitting_coo(a: Arguments) -> list[Argument]:
    count = a.draw.choice([1, 2, 3])
    indices = a.draw.choice([[0, 4, 8], [1, 2, 5], [0, 0, 1, 1, 2, 2], [0, 9, 1]])
    indices = indices[: count * (2 if len(indices) == 6 else 1)]
    return [Argument((c_int64 * 1)(count), [count]), Argument(c_size_t(1), 1), *_data(a), Argument((c_int64 * 8)(*indices), indices), Argument(c_size_t(len(indices)), len(indices))]


def _fitting_csr(a: Arguments) -> list[Argument]:
    outer = a.draw.choice([[0, 1, 2, 2], [0, 0, 1, 2], [0, 2, 1, 2]])
    return [Argument((c_int64 * 1)(2), [2]), Argument(c_size_t(1), 1), *_data(a), Argument((c_int64 * 2)(0, 1), [0, 1]), Argument(c_size_t(2), 2),
            Argument((c_int64 * 4)(*outer), outer), Argument(c_size_t(4), 4)]


def _fitting_blocks(a: Arguments) -> list[Argument]:
    array = (c_int32 * 4)(0, 1, 1, 2)
    a.kept.append(array)
    return [Argument((c_int64 * 3)(2, 2, 2), [2, 2, 2]), Argument(c_size_t(3), 3), *_data(a), Argument((c_int64 * 2)(2, 2), [2, 2]), Argument(c_size_t(2), 2), Argument(array, "indices")]


def _values_in_memory(a: Arguments) -> list[Argument]:
    """With elements for which _fitting_indices() has places."""
    return [*_data(a), Argument((c_int64 * 2)(3, 3), [3, 3]), Argument(c_size_t(2), 2), Argument((c_int64 * 1)(3), [3]), Argument(c_size_t(1), 1), Argument(c_int(1), 1)]


def _fitting_indices(a: Arguments) -> list[Argument]:
    array = (c_int64 * 3)(0, 4, 8)
    a.kept.append(array)
    return [Argument(array, [0, 4, 8]), Argument(c_size_t(3), 3)]


def _fitting_rows(a: Arguments) -> list[Argument]:
    arrays = (c_int64 * 3)(0, 1, 2), (c_int64 * 4)(0, 1, 2, 3)
    a.kept.append(arrays)
    return [Argument(arrays[0], [0, 1, 2]), Argument(c_size_t(3), 3), Argument(arrays[1], [0, 1, 2, 3]), Argument(c_size_t(4), 4)]


def _binding_of(a: Arguments) -> list[Argument]:
    binding = a.handle("OrtIoBinding")
    sessions = [each for each in (binding.handle.parents if binding.handle else ()) if each.kind == "OrtSession"]
    session = Argument(c_void_p(sessions[0].pointer), sessions[0].name, handle=sessions[0]) if sessions and a.draw.random() < 0.9 else a.handle("OrtSession")
    return [session, a.handle("OrtRunOptions") if a.draw.random() < 0.3 else Argument(c_void_p(), None), binding]


def _bound_input(a: Arguments) -> list[Argument]:
    value = next((each for each in a.machine.handles["OrtValue"] if each.number == 0), None)
    return [Argument(c_char_p(b"x"), "x"), Argument(c_void_p(value.pointer), value.name, handle=value) if value else a.handle("OrtValue")]


def _bound_output(a: Arguments) -> list[Argument]:
    return [Argument(c_char_p(b"y"), "y"), a.handle("OrtMemoryInfo")]


def _no_allocator(a: Arguments) -> list[Argument]:
    return [Argument(c_void_p(), None)]


def _ints(a: Arguments, kind: Any = c_int64, most: int = 9) -> tuple[Any, list[int]]:
    chosen = [a.draw.choice([0, 1, 1, 2, 5, most, -1]) if a.draw.random() < 0.4 else place for place in range(a.draw.choice([0, 1, 2, 2, 3, 4]))]
    return (kind * max(len(chosen), 1))(*chosen), chosen


def _indices(a: Arguments) -> list[Argument]:
    array, chosen = _ints(a)
    a.kept.append(array)
    return [Argument(array, chosen), Argument(c_size_t(len(chosen)), len(chosen))]


_LETTERS = [ctypes.create_string_buffer(bytes([97 + i % 26])) for i in range(64)]
_POINTERS = (c_void_p * 64)(*[ctypes.addressof(each) for each in _LETTERS])  # for texts, and as good as any bytes for the others


def _data(a: Arguments) -> list[Argument]:
    return [Argument(c_void_p(), None) if a.is_null() else Argument(_POINTERS, "data")]


def _block_indices(a: Arguments) -> list[Argument]:
    array = (c_int32 * 64)(*([0, 1] * 32))
    a.kept.append(array)
    return [*a.shape(), Argument(array, "indices")]


def _arena(a: Arguments) -> list[Argument]:
    keys = [b"max_mem", b"arena_extend_strategy", b"initial_chunk_size_bytes", b"max_dead_bytes_per_chunk", b"initial_growth_chunk_size_bytes", b"nosuch"]
    made = a.texts(keys, a.draw.choice([0, 1, 2]))
    chosen = [a.draw.choice([0, 1, 2, 1024, 2**64 - 1]) for _ in made.said]
    return [made, Argument((c_size_t * 4)(*chosen), chosen), Argument(c_size_t(len(chosen)), len(chosen))]


def _files_in_memory(a: Arguments) -> list[Argument]:
    names = a.texts([b"w.bin", b"absent.bin", b"./w.bin", b""], a.draw.choice([0, 1, 1, 2]))
    lengths = [a.draw.choice([24, 24, 12, 0, 64]) for _ in names.said]
    data = ctypes.create_string_buffer(bytes(range(64)))
    a.kept.append(data)
    return [names, Argument((c_void_p * 4)(*[ctypes.addressof(data)] * len(lengths)), "bytes"), Argument((c_size_t * 4)(*lengths), lengths), Argument(c_size_t(len(lengths)), len(lengths))]


def _attribute(a: Arguments) -> list[Argument]:
    kind = a.draw.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, 99])
    length = a.draw.choice([0, 1, 1, 2, 3])
    if kind in (3, 4):
        data: Any = (c_float * 4)(0.5, 1, 2, 3)
    elif kind == 5:
        data = ctypes.create_string_buffer(b"abc")
    elif kind == 6:
        data = strings(b"a", b"bc", b"d")
    elif kind == 8:
        value = a.some("OrtValue")
        data = c_void_p(value.pointer if value else 0)
    else:
        data = (c_int64 * 4)(1, 2, 3, 4)
    if isinstance(data, ctypes.Array):
        a.kept.append(data)
    return [Argument(data, f"of {kind}"), Argument(c_int(length), length), Argument(c_int(kind), kind)]


def _read_attribute(a: Arguments) -> list[Argument]:
    room, count = ctypes.create_string_buffer(ROOM), c_size_t()
    kind, length = a.draw.choice([0, 1, 2, 3, 4, 5, 6, 8, 99]), a.draw.choice([0, 4, 8, 16, 64])
    return [Argument(c_int(kind), kind), Argument(room, "&data"), Argument(c_size_t(length), length), Argument(byref(count), "&out", read=lambda _: count.value)]


def _texts_content(a: Arguments) -> list[Argument]:
    room, offsets = ctypes.create_string_buffer(ROOM), (c_size_t * 16)()
    size, count = a.draw.choice([0, 2, 3, 3, 64]), a.draw.choice([0, 1, 2, 2, 3])
    return [Argument(room, "&s", read=lambda _: room.raw[:16].hex()), Argument(c_size_t(size), size), Argument(offsets, "&offsets", read=lambda _: list(offsets)[:4]), Argument(c_size_t(count), count)]


def _text_element(a: Arguments) -> list[Argument]:
    room = ctypes.create_string_buffer(ROOM)
    size, index = a.draw.choice([0, 1, 2, 8]), a.draw.choice([0, 1, 2])
    return [Argument(c_size_t(size), size), Argument(c_size_t(index), index), Argument(room, "&s", read=lambda _: room.raw[:8].hex())]


def _copies(a: Arguments) -> list[Argument]:
    count = a.draw.choice([0, 1, 1, 2])
    both = [[a.some("OrtValue") for _ in range(count)] for _ in range(2)]
    return [*[Argument(a.array_of(each), [value.name if value else None for value in each]) for each in both], Argument(c_void_p(), None), Argument(c_size_t(count), count)]


def _taken_values(a: Arguments) -> list[Argument]:
    there = [each for each in a.machine.handles["OrtValueInfo"] if each.owned]
    chosen = a.draw.sample(there, min(len(there), a.draw.choice([0, 1, 1, 1, 2])))

    def after() -> None:
        role = a.function.name
        for each in [each for each in a.machine.handles["OrtValueInfo"] if each.role == role and a.owner in each.parents]:
            a.machine.forget(each)  # the new ones take their place
        for each in chosen:
            a.take_over(each)
            each.role = role

    return [Argument(a.array_of(chosen), [each.name for each in chosen], after=after), Argument(c_size_t(len(chosen)), len(chosen))]


def _node_parts(a: Arguments) -> list[Argument]:
    made = []
    for choices in ([b"x", b"x", b"w", b"z", b""], [b"y", b"y", b"z"]):
        texts = a.texts(choices, a.draw.choice([0, 1, 1, 1, 2]))
        made += [texts, Argument(c_size_t(len(texts.said)), len(texts.said))]
    there = [each for each in a.machine.handles["OrtOpAttr"] if each.owned]
    chosen = a.draw.sample(there, min(len(there), a.draw.choice([0, 0, 0, 1])))

    def after() -> None:
        for each in chosen:
            a.machine.forget(each)

    return [*made, Argument(a.array_of(chosen), [each.name for each in chosen], after=after), Argument(c_size_t(len(chosen)), len(chosen))]


def _opsets(a: Arguments) -> list[Argument]:
    domains = a.texts([b"", b"", b"ai.onnx", b"com.microsoft", b"nosuch"], a.draw.choice([0, 1, 1, 1, 2]))
    versions = [a.draw.choice([21, 21, 21, 1, 0, 99, 22]) for _ in domains.said]
    return [domains, Argument((c_int * 4)(*versions), versions), Argument(c_size_t(len(versions)), len(versions))]


def _constraints(a: Arguments) -> list[Argument]:
    there = a.draw.random() < 0.8
    return [Argument(strings(b"T"), there), Argument((c_int * 1)(a.draw.choice([1, 1, 7])), "types"), Argument(c_int(int(there)), int(there)), Argument(handles(), []), Argument(c_int(0), 0)]


def _buffer(a: Arguments) -> list[Argument]:
    room, size = c_void_p(), c_size_t()
    a.kept.append((room, size))
    return [Argument(ctypes.pointer(room), "&data"), Argument(ctypes.pointer(size), "&size")]


def _view(a: Arguments) -> list[Argument]:
    chosen = [a.some("OrtNode") for _ in range(a.draw.choice([0, 1, 2]))]
    chosen = [each for each in chosen if each]
    return [Argument(a.array_of(chosen), [each.name for each in chosen]), Argument(c_size_t(len(chosen)), len(chosen))]


def _bound_names(a: Arguments) -> list[Argument]:
    texts, lengths, count = c_void_p(), c_void_p(), c_size_t()

    def read(_: Any) -> Any:
        sizes = list((c_size_t * count.value).from_address(lengths.value)) if count.value and lengths.value else []
        return [count.value, sizes, ctypes.string_at(texts.value, sum(sizes)).decode() if sum(sizes) else ""]

    return [Argument(byref(texts), "&buffer", read=read), Argument(byref(lengths), "&lengths"), Argument(byref(count), "&count")]


def _bound_values(a: Arguments) -> list[Argument]:
    values, count = c_void_p(), c_size_t()

    def read(parents: Any) -> Any:
        given = list((c_void_p * count.value).from_address(values.value)) if count.value and values.value else []
        return [[a.machine.add("OrtValue", each, parents), described(a.api, "OrtValue", c_void_p(each))] for each in given]

    return [Argument(byref(values), "&output", read=read), Argument(byref(count), "&count")]


# Those that are drawn in half of the calls only, so that some succeed.
FITTING: list[tuple[str, str, Callable[[Arguments], list[Argument]]]] = [
    (r"^FillSparseTensorCoo$", "values_shape values_shape_len values indices_data indices_num", _fitting_coo),
    (r"^FillSparseTensorCsr$", "values_shape values_shape_len values inner_indices_data inner_indices_num outer_indices_data outer_indices_num", _fitting_csr),
    (r"^FillSparseTensorBlockSparse$", "values_shape values_shape_len values indices_shape_data indices_shape_len indices_data", _fitting_blocks),
    (r"^CreateSparseTensorWithValues", "p_data dense_shape dense_shape_len values_shape values_shape_len type", _values_in_memory),
    (r"^UseCooIndices$", "indices_data indices_num", _fitting_indices),
    (r"^UseCsrIndices$", "inner_data inner_num outer_data outer_num", _fitting_rows),
    (r"^BindInput$", "name val_ptr", _bound_input),
    (r"^BindOutputToDevice$", "name mem_info_ptr", _bound_output),
    (r"^CreateLoraAdapter", "allocator", _no_allocator),
]
GROUPS: list[tuple[str, str, Callable[[Arguments], list[Argument]]]] = [
    (r"^RunWithBinding$", "session run_options binding_ptr", _binding_of),
    (r"^Run$", "session run_options input_names inputs input_len output_names output_names_len outputs", _run),
    (r"^RunAsync$", "session run_options input_names input input_len output_names output_names_len output run_async_callback user_data", _run),
    (r"Fill.*Block|UseBlock", "indices_shape_data indices_shape_len indices_data", _block_indices),
    (r"UseBlock", "indices_shape indices_shape_len indices_data", _block_indices),
    (r"", "shape shape_len", Arguments.shape),
    (r"", "dense_shape dense_shape_len", Arguments.shape),
    (r"", "values_shape values_shape_len", Arguments.shape),
    (r"^(?!Get)", "dim_values dim_count", Arguments.shape),
    (r"", "location_values location_values_count", lambda a: _indices(a)),
    (r"^Fill", "values", _data),
    (r"", "p_data p_data_len", _memory),
    (r"^CreateSparse", "p_data", _data),
    (r"", "indices_data indices_num", _indices),
    (r"", "inner_indices_data inner_indices_num", _indices),
    (r"", "outer_indices_data outer_indices_num", _indices),
    (r"", "inner_data inner_num", _indices),
    (r"", "outer_data outer_num", _indices),
    (r"^CreateValue$", "in num_values", _values),
    (r"^FillStringTensor$", "s s_len", _texts_in),
    (r"^GetStringTensorContent$", "s s_len offsets offsets_len", _texts_content),
    (r"^GetStringTensorElement$", "s_len index s", _text_element),
    (r"", "provider_options_keys provider_options_values num_keys", _pairs_in),
    (r"", "ep_option_keys ep_option_vals num_ep_options", _pairs_in),
    (r"", "keys values kv_len", _pairs_in),
    (r"", "initializer_names initializers num_initializers", _named_values),
    (r"", "external_initializer_file_names external_initializer_file_buffer_array external_initializer_file_lengths num_external_initializer_files", _files_in_memory),
    (r"", "arena_config_keys arena_config_values num_keys", _arena),
    (r"", "model_data model_data_length", _model_bytes),
    (r"FromArray|FromBuffer", "data size", _model_bytes),
    (r"", "bytes num_bytes", _adapter_bytes),
    (r"^(SessionOptionsAppend|GetModelCompat)", "ep_devices num_ep_devices", _devices_in),
    (r"^GetEpDevices$", "ep_devices num_ep_devices", _devices_out),
    (r"", "ep_subgraphs num_ep_subgraphs", _devices_out),
    (r"", "ep_nodes num_ep_nodes", _devices_out),
    (r"^GetDimensions$", "dim_values dim_values_length", _dims_out),
    (r"^GetSymbolicDimensions$", "dim_params dim_params_length", _symbols_out),
    (r"^SetSymbolicDimensions$", "dim_params dim_params_length", _symbols_in),
    (r"^CreateOpAttr$", "data len type", _attribute),
    (r"^ReadOpAttr$", "type data len out", _read_attribute),
    (r"^CopyTensors$", "src_tensors dst_tensors stream num_tensors", _copies),
    (r"SetGraphInputs", "inputs count", _taken_values),
    (r"SetGraphOutputs", "outputs count", _taken_values),
    (r"CreateNode", "input_names num_inputs output_names num_outputs attributes num_attributes", _node_parts),
    (r"CreateModel$", "domain_names opset_versions count", _opsets),
    (r"^CreateOp$", "type_constraint_names type_constraint_values type_constraint_count attr_values attr_count", _constraints),
    (r"^InvokeOp$", "input_values input_count", _values_of_int),
    (r"^InvokeOp$", "output_values output_count", _values_of_int),
    (r"", "buffer lengths count", _bound_names),
    (r"^GetBoundOutputValues$", "output output_count", _bound_values),
    (r"SetOutputModelBuffer", "data size", _buffer),
    (r"^Graph_GetGraphView$", "nodes num_nodes", _view),
    (r"^ValueInfo_GetValueConsumers$", "nodes input_indices num_consumers", _consumers),
    (r"^(Graph|Node)_Get|^SessionGet(Memory|EpDevice)|^GetHardwareDevices", "* num_*", _handles_out),
]


def environment(api: Api, draw: Any, tell: Callable[[Any], None]) -> c_void_p:
    """The first one of a process."""
    how = draw.choice(["plain", "pools", "logger", "logger and pools", "options"])
    log, level = _LOG(lambda *_: None), draw.choice([4, 4, 3, 2])
    threads = api.made("CreateThreadingOptions")
    said: list[Any] = [how, level]
    for name in ("SetGlobalIntraOpNumThreads", "SetGlobalInterOpNumThreads"):
        said.append(draw.choice([0, 1, 2]))
        api.call(name, threads, said[-1])
    if draw.random() < 0.2:
        said.append(draw.choice(material.TEXTS["affinity_string"]).decode()[:20])
        try:
            api.call("SetGlobalIntraOpThreadAffinity", threads, said[-1].encode())
        except StatusError as error:
            said.append(error.code)
    KEPT.append(log)
    calls: dict[str, Callable[[], c_void_p]] = {
        "plain": lambda: api.made("CreateEnv", level, b"test"),
        "pools": lambda: api.made("CreateEnvWithGlobalThreadPools", level, b"test", threads),
        "logger": lambda: api.made("CreateEnvWithCustomLogger", log, c_void_p(), level, b"test"),
        "logger and pools": lambda: api.made("CreateEnvWithCustomLoggerAndGlobalThreadPools", log, c_void_p(), level, b"test", threads),
        "options": lambda: api.made("CreateEnvWithOptions", byref(EnvironmentOptions(32, level, b"test", None, None, threads.value if draw.random() < 0.5 else None, None))),
    }
    tell(["call", "the environment", said])
    try:
        made = calls[how]()
    except StatusError as error:
        tell(["gave", ["failed", error.code, error.message[:300]]])
        return api.made("CreateEnv", level, b"test")
    tell(["gave", ["ok"]])
    return made


KEPT: list[Any] = []


def _matches(names: list[str], wanted: list[str]) -> bool:
    return len(names) >= len(wanted) and all(re.fullmatch(want.replace("*", r"\w*"), have) for have, want in zip(names, wanted))


def _together(name: str, parameters: list[tuple[str, str]], groups: list) -> tuple[int, Callable[[Arguments], list[Argument]] | None]:
    """How many of the parameters belong together, and what makes their arguments; None: one, by its type."""
    for pattern, wanted, make in groups:
        words = wanted.split()
        if re.search(pattern, name) and _matches([each for _, each in parameters], words) and ("*" not in wanted or bare(parameters[0][0]).endswith("**")):
            return len(words), make
    return 1, None


def plan(name: str, parameters: list[tuple[str, str]], groups: list = GROUPS) -> list[Callable[[Arguments], list[Argument]]]:  # noqa: B006
    """What makes the arguments of a function, one after the other."""
    made, place = [], 0
    while place < len(parameters):
        count, make = _together(name, parameters[place:], groups)
        made.append(make or (lambda a, parameter=parameters[place]: [a.single(*parameter)]))
        place += count
    return made
