"""Live objects for calls of treadle.h: how to make one of each kind, and which must outlive which."""

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
AT_MOST = 4  # limit of objects per kind; when it is reached, existing ones are reused


def _model(nodes: list[Any], outputs: list[Any], **initializers: Any) -> bytes:
    constants = [numpy_helper.from_array(np.float32(value), name) for name, value in initializers.items()]
    graph = helper.make_graph(nodes, "small", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])], outputs, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("treadle", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


@functools.cache
def models() -> dict[bytes, bytes]:
    """Returns the models by file name. All have the input x of [N, 3]."""
    node, y = helper.make_node, helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2])
    weights = {"w": np.arange(6).reshape(3, 2) / 7, "b": [0, 0]}
    linear = [node("MatMul", ["x", "w"], ["product"], "first"), node("Add", ["product", "b"], ["y"], "second")]
    statistics = {"scale": [1, 1], "mean": [0, 0], "variance": [1, 1]}
    normalised = [linear[0], node("BatchNormalization", ["product", "scale", "b", "mean", "variance"], ["y"], "second")]
    stops = [linear[0], node("Yield", ["product"], ["sum"], "stop", domain="treadle"), node("Add", ["sum", "b"], ["y"], "second")]
    squared = [node("Mul", ["x", "x"], ["y"], "first")]
    listed = [node("SequenceConstruct", ["x", "x"], ["y"], "first")]
    sequence = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)
    return {
        b"linear.onnx": _model(linear, [y], **weights),
        b"normalised.onnx": _model(normalised, [y], **weights, **statistics),
        b"squared.onnx": _model(squared, [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])]),
        b"stops.onnx": _model(stops, [y], **weights),
        b"listed.onnx": _model(listed, [sequence]),
    }


@functools.cache
def data_bytes() -> bytes:
    file = io.BytesIO()
    np.savez(file, x=np.ones((8, 3), np.float32), labels=np.arange(8, dtype=np.int64) % 2)
    return file.getvalue()


_PATHS = "path folder recording model_dir stream_to profile_file_prefix spill_folder"
_OPTIONS = "key value"


@functools.cache
def texts() -> dict[str, list[bytes]]:
    """Returns meaningful texts by names of parameters. `bytes`: contents of memory."""
    return {
        "bytes": [models()[b"linear.onnx"], models()[b"linear.onnx"][:60], b"", bytes(4096)],
        _PATHS: [
            b"model.onnx",
            b"out.onnx",
            b"data.npz",
            b"out",
            b"missing/out.onnx",
            b"/dev/null",
            b"/dev/full",
            b".",
            b"p.trace.json",
            b"p.folded",
            b"p.speedscope.json",
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


PAIRS = (
    (b"data", b"own-data.npz"), (b"batch_size", b"2"), (b"seed", b"3"), (b"optimizer", b"adamw"), (b"learning_rate", b"0.1"), (b"loss", b"mse"),
    (b"session.precision", b"bfloat16"), (b"treadle.device", b"sim"), (b"treadle.node_counters", b"1"), (b"treadle.check_finite", b"1"),
    (b"outputs", b"y"), (b"ema_decay", b"0.9"), (b"w", b"write"), (b"x", b"float32"), (b"epoch", b"1"),
)  # fmt: skip
TRAINERS = (
    {"loss": b"softmax_cross_entropy"},
    {"loss": b"softmax_cross_entropy", "ema_decay": b"0.9", "optimizer": b"adamw"},
    {"loss": b"softmax_cross_entropy", "lora_rank": b"1"},
)


class Objects:
    """The live objects, and which must outlive which."""

    def __init__(self, header: c_header.Header, library: ctypes.CDLL, rng: random.Random) -> None:
        self.header, self.library, self.random = header, library, rng
        self.alive: dict[int, str] = {}  # the kind of each object that is alive, by its address
        self.of_kind: dict[str, list[int]] = {kind: [] for kind in header.handles}
        self.needed: dict[int, set[int]] = {}  # for each address, the objects that need the object there
        self.kept: list[Any] = []
        self.arguments = Arguments(header, rng, texts(), PAIRS, self.one)
        self.arguments.fitting = self.fitting
        for name, content in {**models(), b"data.npz": data_bytes()}.items():
            for path in (name, OWN + name):  # calls may overwrite files that they get
                Path(path.decode()).write_bytes(content)

    def one(self, kind: str) -> int:
        """Returns an object of the kind; makes one if there is none."""
        if not self.of_kind[kind]:
            return self.fresh(kind)
        return self.random.choice(self.of_kind[kind])

    def fresh(self, kind: str) -> int:
        """Makes a new object: existing ones may be closed, limited or finished by calls."""
        address = RECIPES[kind](self)
        self.add(kind, address)
        return address

    def fitting(self, name: str) -> int:
        """Returns a value that is valid for a parameter of this name."""
        address = self.value_of("classes" if name == "labels" else "input")
        self.add("treadle_value", address)
        return address

    def add(self, kind: str, address: int | None) -> list[int]:
        """Registers a new object by its address."""
        if not address or address in self.alive:  # all statuses for exhausted memory are the same object
            return []
        self.alive[address] = kind
        self.of_kind[kind].append(address)
        return [address]

    def trim(self) -> None:
        """Releases older objects of kinds with too many. Only between calls, since a call's arguments live until it returns."""
        for addresses in self.of_kind.values():
            for old in addresses[:-AT_MOST]:
                if self.may_be_released(old):
                    self.release(old)

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
            for keepers in self.needed.values():  # forgets the address, because a new object may soon have it
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
        """Returns the handle that a function writes to its last argument."""
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

    def model(self, name: bytes) -> int:
        made = self.made("treadle_model_load", self.text(OWN + name))
        self.add("treadle_model", made)
        return made

    def session(self) -> int:
        """Makes a session, with a memory limit and node counters or without."""
        options = None
        if self.random.random() < 0.5:
            struct = self.arguments.structs["treadle_session_options"]()
            struct.struct_size = ctypes.sizeof(struct)
            struct.memory_limit_bytes = 1 << 30
            struct.config_entries, struct.num_config_entries = self.entries(**{"treadle.node_counters": b"1"})
            self.kept.append(struct)
            options = ctypes.addressof(struct)
        return self.made("treadle_session_create", self.fresh("treadle_model"), options)

    def value(self) -> int:
        return self.value_of(self.random.choice(("input", "input", "classes", "strings")))

    def value_of(self, kind: str) -> int:
        """Returns a tensor for the models' input, one of classes for a loss, or one of strings."""
        if kind == "input":
            return self.tensor()
        self.kept.append((ctypes.c_int64 * 1)(2))
        shape = ctypes.addressof(self.kept[-1])
        if kind == "strings":
            return self.made("treadle_tensor_from_strings", shape, 1, self.list_of(self.text(b"a"), self.text(b"\xff")), 2)
        self.kept.append((ctypes.c_int64 * 2)(0, 1))
        return self.made("treadle_tensor_borrow", 7, shape, 1, ctypes.addressof(self.kept[-1]), 16, None, None)

    def fed(self) -> tuple[int, int, int]:
        """Returns the list of names, the list of values, and their number."""
        value = self.tensor()
        self.add("treadle_value", value)
        return self.list_of(self.text(b"x")), self.list_of(value), 1

    def samples(self) -> int:
        names, values, count = self.fed()
        self.kept.append((ctypes.c_uint64 * 5)(40, names, count, values, 1))
        return ctypes.addressof(self.kept[-1])

    def allocator(self) -> int:
        struct = self.arguments.structs["treadle_allocator_callbacks"]()
        struct.struct_size = ctypes.sizeof(struct)
        for name in ("allocate", "free"):
            setattr(struct, name, self.arguments.pointer(c_header.Parameter(name, "callback")).value)
        self.kept.append(struct)
        return self.made("treadle_allocator_create", ctypes.addressof(struct))

    def session_of(self, name: bytes) -> int:
        session = self.made("treadle_session_create", self.model(name), None)
        self.add("treadle_session", session)
        return session

    def io_binding(self) -> int:
        session = self.fresh("treadle_session")
        made = self.made("treadle_io_binding_create", session)
        self.add("treadle_io_binding", made)
        self.needs(made, [session])
        return made

    def stateful_run(self) -> int:
        """Returns runs whose state x is the product of the run before."""
        session = self.session_of(b"squared.onnx")
        names, values, _ = self.fed()
        made = self.made("treadle_stateful_run_create", session, self.list_of(self.text(b"x"), self.text(b"y")), 1, names, values, 1)
        self.add("treadle_stateful_run", made)
        self.needs(made, [session])
        return made

    def async_run(self) -> int:
        session = self.session_of(b"linear.onnx")
        made = self.made("treadle_session_run_async", session, *self.fed(), None, 1)
        self.add("treadle_async_run", made)
        self.needs(made, [session])
        return made

    def executor(self) -> int:
        names, values, _ = self.fed()
        pair = self.list_of(ctypes.c_void_p.from_address(names).value, ctypes.c_void_p.from_address(values).value)
        return self.made("treadle_executor_bind", self.model(self.random.choice((b"linear.onnx", b"normalised.onnx"))), pair, 1, None)


RECIPES: dict[str, Any] = {
    "treadle_status": lambda o: o.library.treadle_status_create(4, o.text(b"made up")),
    "treadle_model": lambda o: o.model(o.random.choice(list(models()))),
    "treadle_session": lambda o: o.session(),
    "treadle_run_options": lambda o: o.made("treadle_run_options_create"),
    "treadle_value": lambda o: o.value(),
    "treadle_partial_run": lambda o: o.made("treadle_partial_run_create", o.fresh("treadle_session"), *o.fed()),
    "treadle_io_binding": lambda o: o.io_binding(),
    "treadle_stateful_run": lambda o: o.stateful_run(),
    "treadle_async_run": lambda o: o.async_run(),
    "treadle_job": lambda o: o.made("treadle_job_create", None, 0, 100.0, 0),
    "treadle_allocator": lambda o: o.allocator(),
    "treadle_engine": lambda o: o.made("treadle_engine_create", 0, 2),
    "treadle_variable": lambda o: o.made("treadle_engine_variable", o.fresh("treadle_engine")),
    "treadle_scratch": lambda o: o.made("treadle_engine_scratch", o.fresh("treadle_engine")),
    "treadle_random_stream": lambda o: o.made("treadle_engine_random_stream", o.fresh("treadle_engine"), 1),
    "treadle_trainer": lambda o: o.made("treadle_trainer_create", o.model(b"linear.onnx"), *o.entries(**o.random.choice(TRAINERS))),
    "treadle_checkpoint_folder": lambda o: o.made("treadle_checkpoint_folder_open", o.text(b"checkpoints"), 2, 0),
    "treadle_dataset": lambda o: o.made("treadle_dataset_open", o.fresh("treadle_trainer"), *o.entries(data=OWN + b"data.npz"), None),
    "treadle_data_loader": lambda o: o.made("treadle_data_loader_create", o.fresh("treadle_dataset"), *o.entries(batch_size=b"2")),
    "treadle_joint_module": lambda o: o.made("treadle_joint_module_create", o.model(b"linear.onnx"), None, 0),
    "treadle_joint_run": lambda o: o.made("treadle_joint_module_forward", o.fresh("treadle_joint_module"), None, *o.fed()),
    "treadle_executor": lambda o: o.executor(),
    "treadle_shared_buffer": lambda o: o.made("treadle_shared_buffer_create"),
    "treadle_precision_choice": lambda o: o.made("treadle_choose_precision", o.model(b"linear.onnx"), 0.1, o.samples()),
    "treadle_metrics_reporter": lambda o: o.made("treadle_metrics_report_to_file", o.text(b"metrics.prom"), 1000.0),
    "treadle_profiler": lambda o: o.made("treadle_profiler_start", o.fresh("treadle_session"), None),
}


def released_by(function: c_header.Function) -> str:
    """Returns the parameter whose handle the function releases; "" for other functions."""
    return function.parameters[0].name if function.name.endswith("_release") and function.returns == "void" else ""


def makes_status(function: c_header.Function) -> bool:
    """True if the function returns the status that it makes, so that it tells of no error."""
    return function.name.startswith("treadle_status_create")


def release_function(header: c_header.Header, kind: str) -> str:
    return next(f.name for f in header.functions.values() if released_by(f) and f.parameters[0].base == kind)
