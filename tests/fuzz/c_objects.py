"""Live objects for calls of treadle.h: how one of each kind is made, and which must outlive which."""

from __future__ import annotations

import ctypes
import functools
import io
import random
from pathlib import Path
from typing import Any

import c_header
import numpy as np
from c_arguments import Arguments
from onnx import TensorProto, helper, numpy_helper

OWN = b"own-"
AT_MOST = 4  # of a kind; then one of them is used again


@functools.cache
def model_bytes() -> bytes:
    """y = relu(x w + b), with a loss that can be trained."""
    rng = np.random.default_rng(0)
    w, b = rng.standard_normal((3, 2)).astype(np.float32), np.zeros(2, np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["product"], "first"), helper.make_node("Add", ["product", "b"], ["y"], "second")]
    graph = helper.make_graph(
        nodes,
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2])],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(b, "b")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


@functools.cache
def data_bytes() -> bytes:
    file = io.BytesIO()
    np.savez(file, x=np.ones((8, 3), np.float32), labels=np.arange(8, dtype=np.int64) % 2)
    return file.getvalue()


_PATHS = "path folder recording model_dir stream_to profile_file_prefix spill_folder"
_OPTIONS = "key value"


@functools.cache
def texts() -> dict[str, list[bytes]]:
    """Texts that mean something, by the names of parameters. `bytes`: contents of memory."""
    return {
        "bytes": [model_bytes(), model_bytes()[:60], b"", bytes(4096)],
        _PATHS: [
            b"model.onnx",
            b"out.onnx",
            b"data.npz",
            b"out",
            b"missing/out.onnx",
            b"/dev/null",
            b"/dev/full",
            b".",
            b"p.json",
            b"p.html",
            b"p.csv",
            b"p.pftrace",
        ],
        "device": [b"cpu", b"sim", b"sim:1", b"abacus"],
        "allocator": [b"plain", b"arena", b"guard", b"nan+guard", b"recording", b"magic"],
        "backends": [b"onednn", b"nope.property"],
        "pattern include exclude": [b"*", b"fir?t", b"y"],
        "mode method": [b"dynamic", b"qdq", b"weights", b"minmax", b"percentile"],
        "request": [b"write", b"add", b"null"],
        "key": [
            b"data",
            b"labels",
            b"batch_size",
            b"optimizer",
            b"learning_rate",
            b"loss",
            b"session.precision",
            b"treadle.device",
            b"treadle.check_finite",
            b"x",
            b"w",
            b"outputs",
        ],
        "value": [b"data.npz", b"1", b"2", b"0", b"adamw", b"0.1", b"mse", b"float16", b"sim", b"softmax_cross_entropy", b"int32", b"write", b"y"],
        "name": [b"x", b"x", b"y", b"w", b"b", b"first", b"second", b"labels"],
    }


class Objects:
    """What is alive, and what of it must outlive what."""

    def __init__(self, header: c_header.Header, library: ctypes.CDLL, rng: random.Random) -> None:
        self.header, self.library, self.random = header, library, rng
        self.alive: dict[int, str] = {}  # address, kind
        self.of_kind: dict[str, list[int]] = {kind: [] for kind in header.handles}
        self.needed: dict[int, set[int]] = {}  # by what lives shorter
        self.kept: list[Any] = []
        for name, content in ((b"model.onnx", model_bytes()), (b"data.npz", data_bytes())):
            for path in (name, OWN + name):  # those that calls are given may be written over
                Path(path.decode()).write_bytes(content)

    def one(self, kind: str) -> int:
        """One of the kind, a new one if there is none."""
        if not self.of_kind[kind]:
            return self.fresh(kind)
        return self.random.choice(self.of_kind[kind])

    def fresh(self, kind: str) -> int:
        """A new one, which no call has seen: another may be closed, limited or at its end."""
        address = RECIPES[kind](self)
        self.add(kind, address)
        return address

    def add(self, kind: str, address: int | None) -> list[int]:
        """Takes over a new object. Of too many, older ones go."""
        if not address or address in self.alive:  # a status of memory that ran out is one for all
            return []
        self.alive[address] = kind
        self.of_kind[kind].append(address)
        for old in self.of_kind[kind][:-AT_MOST]:
            if self.may_be_released(old):
                self.release(old)
        return [address]

    def needs(self, short: int | None, keepers: list[int | None]) -> None:
        if short in self.alive:
            self.needed.setdefault(short, set()).update(keeper for keeper in keepers if keeper in self.alive and keeper != short)

    def may_be_released(self, address: int | None) -> bool:
        return not any(address in keepers for keepers in self.needed.values())

    def forget(self, address: int | None) -> None:
        kind = self.alive.pop(address, None)  # type: ignore[arg-type]
        if kind:
            self.of_kind[kind].remove(address)  # type: ignore[arg-type]
            self.needed.pop(address, None)  # type: ignore[arg-type]
            for keepers in self.needed.values():  # the address may be that of a new object soon
                keepers.discard(address)  # type: ignore[arg-type]

    def release(self, address: int) -> None:
        kind = self.alive[address]
        self.forget(address)
        getattr(self.library, release_function(self.header, kind))(address)

    def release_all(self) -> None:
        while self.alive:
            free = [address for address in self.alive if self.may_be_released(address)]
            assert free, "objects that keep each other alive"
            for address in free:
                self.release(address)

    def made(self, function: str, *given: Any) -> int:
        """What a function gives out by its last argument."""
        out = ctypes.c_void_p()
        status = getattr(self.library, function)(*given, ctypes.addressof(out))
        if status:
            raise AssertionError(f"{function}: {ctypes.string_at(self.library.treadle_status_message(status)).decode()}")
        assert out.value
        return out.value

    def list_of(self, *values: Any) -> int:
        self.kept.append((ctypes.c_void_p * len(values))(*values))
        return ctypes.addressof(self.kept[-1])

    def text(self, text: bytes) -> int:
        self.kept.append(ctypes.create_string_buffer(text))
        return ctypes.addressof(self.kept[-1])

    def entries(self, **options: bytes) -> tuple[int, int]:
        flat = [self.text(text) for key, value in options.items() for text in (key.encode(), value)]
        return self.list_of(*flat), len(options)

    def tensor(self) -> int:
        self.kept.append((ctypes.c_int64 * 2)(2, 3))
        made = self.made("treadle_tensor_create", 1, ctypes.addressof(self.kept[-1]), 2)
        ctypes.memset(self.library.treadle_tensor_data(made), 0, 24)
        return made

    def fed(self) -> tuple[int, int, int]:
        """The list of names, that of values, and their number."""
        value = self.tensor()
        self.add("treadle_value", value)
        return self.list_of(self.text(b"x")), self.list_of(value), 1

    def samples(self) -> int:
        names, values, count = self.fed()
        self.kept.append((ctypes.c_uint64 * 5)(40, names, count, values, 1))
        return ctypes.addressof(self.kept[-1])

    def allocator(self) -> int:
        arguments = Arguments(self.header, self.random, texts(), self.one)
        self.kept.append(arguments)
        struct = arguments.structs["treadle_allocator_callbacks"]()
        struct.struct_size = ctypes.sizeof(struct)
        for name in ("allocate", "free"):
            setattr(struct, name, arguments.pointer(c_header.Parameter(name, "callback")).value)
        self.kept.append(struct)
        return self.made("treadle_allocator_create", ctypes.addressof(struct))

    def executor(self) -> int:
        names, values, _ = self.fed()
        pair = self.list_of(ctypes.c_void_p.from_address(names).value, ctypes.c_void_p.from_address(values).value)
        return self.made("treadle_executor_bind", self.fresh("treadle_model"), pair, 1, None)


RECIPES: dict[str, Any] = {
    "treadle_status": lambda o: o.library.treadle_status_create(4, o.text(b"made up")),
    "treadle_model": lambda o: o.made("treadle_model_load", o.text(OWN + b"model.onnx")),
    "treadle_session": lambda o: o.made("treadle_session_create", o.fresh("treadle_model"), None),
    "treadle_run_options": lambda o: o.made("treadle_run_options_create"),
    "treadle_value": lambda o: o.tensor(),
    "treadle_partial_run": lambda o: o.made("treadle_partial_run_create", o.fresh("treadle_session"), *o.fed()),
    "treadle_job": lambda o: o.made("treadle_job_create", None, 0, 100.0, 0),
    "treadle_allocator": lambda o: o.allocator(),
    "treadle_engine": lambda o: o.made("treadle_engine_create", 0, 2),
    "treadle_variable": lambda o: o.made("treadle_engine_variable", o.fresh("treadle_engine")),
    "treadle_scratch": lambda o: o.made("treadle_engine_scratch", o.fresh("treadle_engine")),
    "treadle_random_stream": lambda o: o.made("treadle_engine_random_stream", o.fresh("treadle_engine"), 1),
    "treadle_trainer": lambda o: o.made("treadle_trainer_create", o.fresh("treadle_model"), *o.entries(loss=b"softmax_cross_entropy")),
    "treadle_checkpoint_folder": lambda o: o.made("treadle_checkpoint_folder_open", o.text(b"checkpoints"), 2, 0),
    "treadle_dataset": lambda o: o.made("treadle_dataset_open", o.fresh("treadle_trainer"), *o.entries(data=OWN + b"data.npz"), None),
    "treadle_data_loader": lambda o: o.made("treadle_data_loader_create", o.fresh("treadle_dataset"), *o.entries(batch_size=b"2")),
    "treadle_joint_module": lambda o: o.made("treadle_joint_module_create", o.fresh("treadle_model"), None, 0),
    "treadle_joint_run": lambda o: o.made("treadle_joint_module_forward", o.fresh("treadle_joint_module"), None, *o.fed()),
    "treadle_executor": lambda o: o.executor(),
    "treadle_shared_buffer": lambda o: o.made("treadle_shared_buffer_create"),
    "treadle_precision_choice": lambda o: o.made("treadle_choose_precision", o.fresh("treadle_model"), 0.1, o.samples()),
    "treadle_profiler": lambda o: o.made("treadle_profiler_start", o.fresh("treadle_session"), None),
}


def released_by(function: c_header.Function) -> str:
    """The parameter whose handle the function releases; "" for others."""
    return function.parameters[0].name if function.name.endswith("_release") and function.returns == "void" else ""


def makes_status(function: c_header.Function) -> bool:
    """Whether the status that it returns is what was asked for, and tells of no error."""
    return function.name.startswith("treadle_status_create")


def release_function(header: c_header.Header, kind: str) -> str:
    return next(f.name for f in header.functions.values() if released_by(f) and f.parameters[0].base == kind)
