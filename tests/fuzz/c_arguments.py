"""Right and wrong arguments for functions of treadle.h: NULL, handles of other kinds, impossible counts, numbers outside of an enum."""

from __future__ import annotations

import ctypes
import math
import random
from collections.abc import Callable
from typing import Any

import c_header

HUGE = (1 << 63, (1 << 63) + 7, (1 << 64) - 1, (1 << 64) - 5)  # counts that no memory can hold; as int64_t they are negative
OUTSIDE = (-1, 99, 257, 1 << 16, -(1 << 31), (1 << 31) - 1)  # values that no enum has
ROOM = 16  # number of elements that are allocated for each list, whatever its count says

_SCALARS: dict[str, Any] = {
    "int": ctypes.c_int, "int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64, "uint32_t": ctypes.c_uint32, "uint64_t": ctypes.c_uint64,
    "size_t": ctypes.c_size_t, "double": ctypes.c_double,
}  # fmt: skip
_DOUBLES = (0.0, 1.0, 0.5, -1.0, 100.0, 1e-3, 1e308, math.inf, -math.inf, math.nan)
_INTEGERS = (0, 1, 2, 3, 4, 7, 32, 1000)
_ODD_TEXTS = (b"", b"nope", b"\xff\xfe\x80", b"x" * 5000, b"*", b"[", b"%s%n", b"../", b"a\x1b[2J")

Operation = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
Release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
Watch = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
Told = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
Message = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p)
Report = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)
Allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32)
Free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32)
Trim = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p)

_libc = ctypes.CDLL(None)
_libc.aligned_alloc.restype = ctypes.c_void_p
_libc.aligned_alloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
_libc.free.argtypes = [ctypes.c_void_p]
_CALLBACKS = {
    "report": Report(lambda context, text, size: None),
    "operation": Operation(lambda context: None),
    "release": Release(lambda context: None),
    "callback": Watch(lambda context, name, value: None),
    "watch": Told(lambda context, event: None),
    "hook": Told(lambda context, run: None),
    "on_message": Message(lambda context, severity, message: None),
    "allocate": Allocate(lambda context, size, memory_class: _libc.aligned_alloc(64, (size + 63) // 64 * 64)),
    "free": Free(lambda context, data, size, memory_class: _libc.free(data)),
    "trim": Trim(lambda context: 0),
}


class Argument:
    """One argument of a call."""

    def __init__(self, value: Any, text: str, wrong: str = "", cell: Any = None) -> None:
        self.value, self.text = value, text
        self.wrong = wrong  # "null", "kind", "huge" or "enum": a wrong value that the library must refuse; "" if the argument is correct
        self.cell = cell  # the memory to which the function writes


class Arguments:
    """Makes arguments by the header's types. It keeps alive the memory that they point to."""

    def __init__(
        self,
        header: c_header.Header,
        rng: random.Random,
        texts: dict[str, list[bytes]],
        pairs: tuple[tuple[bytes, bytes], ...],
        handle: Callable[[str], int],
    ) -> None:
        self.header, self.random, self.texts, self.pairs, self.handle = header, rng, texts, pairs, handle
        self.fitting: Callable[[str], int] = lambda name: handle("treadle_value")  # makes a value that suits the input with the given name
        self.kept: list[Any] = []
        self.structs: dict[str, Any] = {}
        for name, fields in header.structs.items():
            self.structs[name] = type(name, (ctypes.Structure,), {"_fields_": [(f.name, self.field_type(f)) for f in fields]})

    def field_type(self, field: c_header.Parameter) -> Any:
        if field.type.startswith("char["):
            return ctypes.c_char * int(field.type[5:-1])
        return _SCALARS.get(field.type, ctypes.c_void_p)

    def c_type(self, parameter: c_header.Parameter) -> Any:
        """Returns the ctypes type of a parameter. Raises KeyError for types that this fuzzer does not know."""
        if parameter.depth or parameter.type in ("callback", "treadle_operation"):
            return ctypes.c_void_p
        return ctypes.c_int32 if parameter.type in self.header.enums else _SCALARS[parameter.type]

    def keep(self, what: Any) -> int:
        self.kept.append(what)
        return ctypes.addressof(what)

    def wrongs(self, parameter: c_header.Parameter) -> list[str]:
        """Returns the faults that an argument for this parameter can have."""
        found = []
        if parameter.depth or parameter.type in ("callback", "treadle_operation"):
            found.append("null")
        if self.header.is_handle(parameter):
            found.append("kind")
        if parameter.counts:
            found.append("huge")
        if parameter.type in self.header.enums or parameter.name in ("job_class", "memory_class", "point", "lowest"):
            found.append("enum")
        return found

    def make(self, parameter: c_header.Parameter, wrong: str = "") -> Argument:
        if wrong == "null":
            return Argument(None, "NULL", wrong)
        if wrong == "kind":
            kind = self.random.choice(sorted(self.header.handles - {parameter.base}))
            return Argument(self.handle(kind), f"({kind})", wrong)
        if wrong in ("huge", "enum"):
            number = self.random.choice(HUGE if wrong == "huge" else OUTSIDE)
            return Argument(number, str(number), wrong)
        return self.pointer(parameter) if self.c_type(parameter) is ctypes.c_void_p else self.scalar(parameter)

    def scalar(self, parameter: c_header.Parameter) -> Argument:
        if parameter.type == "double":
            value = self.random.choice(_DOUBLES)
        elif parameter.type in self.header.enums:
            value = self.random.choice(sorted(self.header.enums[parameter.type].values()))
        elif parameter.counts:
            value = self.random.choice((0, 1, 1, 1, 1, 1, 1, 2, 3, 4))
        elif parameter.type in ("int", "int32_t", "int64_t") and self.random.random() < 0.2:
            value = self.random.choice((-1, -7, -(1 << 31), (1 << 31) - 1))
        elif parameter.type in ("size_t", "uint64_t") and self.random.random() < 0.2:
            value = self.random.choice((*HUGE, 1 << 32, (1 << 31) - 1))
        else:
            value = self.random.choice(_INTEGERS)
        return Argument(value, str(value))

    def text(self, name: str) -> bytes:
        known = next((texts for words, texts in self.texts.items() if name in words.split()), self.texts["name"])
        return self.random.choice(known if self.random.random() < 0.85 else _ODD_TEXTS)

    def pointer(self, parameter: c_header.Parameter) -> Argument:
        base, name = parameter.base, parameter.name
        if parameter.type in ("callback", "treadle_operation"):
            callback = _CALLBACKS["operation" if parameter.type == "treadle_operation" else name]
            return Argument(ctypes.cast(callback, ctypes.c_void_p).value, name)
        if base == "treadle_value" and parameter.depth == 1 and self.random.random() < 0.5:
            return Argument(self.fitting(name), "a fitting treadle_value")
        if self.header.is_handle(parameter):
            return Argument(self.handle(base), f"a {base}")
        if parameter.type == "const char*":
            text = self.text(name)
            return Argument(self.keep(ctypes.create_string_buffer(text)), repr(text[:40]))
        if base in self.structs and parameter.depth == 1:
            return self.struct_list(base)
        if parameter.type.endswith("* const*"):
            return self.pointer_list(parameter)
        if parameter.type in ("const void*", "void*"):
            content = self.random.choice(self.texts["bytes"])
            return Argument(self.keep(ctypes.create_string_buffer(content, max(len(content), 4096))), f"{len(content)} bytes")
        if parameter.type == "const int64_t*":
            extents = [self.random.choice((0, 1, 2, 2, 2, 4, 4, 3, -1, 1 << 20)) for _ in range(ROOM)]
            return Argument(self.keep((ctypes.c_int64 * ROOM)(*extents)), str(extents[:4]))
        cell = (ctypes.c_uint64 * 4096)()  # large enough for anything that a function writes
        return Argument(self.keep(cell), "room", cell=cell)

    def pointer_list(self, parameter: c_header.Parameter) -> Argument:
        makes_text = parameter.base == "char"
        element = c_header.Parameter(parameter.name, "const char*" if makes_text else f"{parameter.base}*")
        made = [self.make(element, self.random.choices(("", *self.wrongs(element)), (30, *[1] * len(self.wrongs(element))))[0]) for _ in range(ROOM)]
        if self.random.random() < 0.7 and (parameter.base == "treadle_value" or parameter.name == "input_names"):
            fits = self.keep(ctypes.create_string_buffer(b"x")) if makes_text else self.fitting(parameter.name)
            made[0] = Argument(fits, "b'x'" if makes_text else "a fitting treadle_value")
        described = ", ".join(argument.text for argument in made[:4])
        return Argument(self.keep((ctypes.c_void_p * ROOM)(*[argument.value for argument in made])), f"{{{described}, ...}}")

    def struct_list(self, name: str) -> Argument:
        """Returns ROOM structs in a row: a list, or the first one as a single struct."""
        made = (self.structs[name] * ROOM)()
        described = []
        for k in range(ROOM):
            if name in ("treadle_config_entry", "treadle_named_value", "treadle_named_shape") and self.random.random() < 0.7:
                texts = self.fill_fitting(made[k], name)
            else:
                texts = self.fill(made[k], name, sparse=k > 0)
            if k < 2:
                described.append(f"{{{', '.join(texts)}}}")
        return Argument(self.keep(made), f"{name}[{', '.join(described)}]")

    def fill_fitting(self, struct: Any, name: str) -> list[str]:
        """Sets a key with a meaningful value, or the models' input."""
        if name == "treadle_config_entry":
            key, value = self.random.choice(self.pairs)
            struct.key, struct.value = (self.keep(ctypes.create_string_buffer(text)) for text in (key, value))
            return [repr(key), repr(value)]
        struct.name = self.keep(ctypes.create_string_buffer(b"x"))
        if name == "treadle_named_value":
            struct.value = self.fitting("x")
        else:
            struct.extents, struct.rank = self.keep((ctypes.c_int64 * ROOM)(2, 3)), 2
        return ["x", "..."]

    def fill(self, struct: Any, name: str, sparse: bool) -> list[str]:
        """Sets names and values of entries; other fields mostly stay zero, as in real programs."""
        texts = []
        always = {"key", "value", "name", "extents", "rank", "allocate", "free"}
        for field in self.header.structs[name]:
            if field.name == "struct_size":
                size = ctypes.sizeof(struct)
                value: Any = size if self.random.random() < 0.9 else self.random.choice((0, 8, size - 8, size + 8, size + 1, 1 << 20, (1 << 64) - 1))
            elif field.type.startswith("char[") or (field.name not in always and (sparse or self.random.random() < 0.7)):
                continue
            else:
                wrongs = self.wrongs(field)
                value = self.make(field, self.random.choices(("", *wrongs), (20, *[1] * len(wrongs)))[0]).value
            setattr(struct, field.name, value)
            texts.append(f".{field.name} = {value}")
        return texts
