#!/usr/bin/env python3
"""Loads small models that declare huge things, and measures the memory and time of each load.

    tests/fuzz/hostile_models.py [--cases 10000] [--seed 0] [--replay SEED] [--keep FOLDER]

A case is a file of at most 100 kB. Either the operator fuzzer (tests/operators) draws a node, and huge numbers replace its extents, attributes,
shapes and lengths; or the model is a chain, nest or tree of nodes that grows with every step. The model may load or be refused, in a child process,
without a crash and within 64 MiB beyond the process's memory at the start. The report names the seeds of cases that violate this, and the slowest
cases.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

warnings.simplefilter("ignore")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "operators"))

import numpy as np  # noqa: E402
import onnx  # noqa: E402
from onnx import AttributeProto, TensorProto, defs, helper, numpy_helper  # noqa: E402

import fuzz_operators  # noqa: E402
import microsoft_makers  # noqa: E402
import treadle  # noqa: E402
from draft import Case, Choices, Rejected  # noqa: E402
from hostile_chains import CHAINS  # noqa: E402
from judges import model_of  # noqa: E402

MEMORY_LIMIT = 64 << 20  # limit in bytes, beyond the memory that the process had before the load
FILE_LIMIT = 100_000
CPU_LIMIT = 20  # limit in seconds; only a load that never ends reaches it
ADDRESS_LIMIT = 2 << 30  # limit in bytes, beyond the address space that the process had before the load
NUMBERS = [0, 1, -1, 2, 7, 64, 1000, 65_536, 1_000_003, 100_000_007, 1_000_000_007, 2**31 - 1, 2**31, -(2**31), 2**32, 2**40, 2**62, 2**63 - 1, -(2**63)]
HUGE_FLOATS = [0.0, -1.0, 1e9, 1e30, float("inf"), float("nan")]


@dataclass
class Load:
    """Memory and time of a load, and its outcome: loaded, refused, or the death of its process."""

    verdict: str
    text: str
    memory: int
    seconds: float

    @property
    def is_fine(self) -> bool:
        return self.verdict in ("loaded", "refused") and self.memory <= MEMORY_LIMIT


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def load_in_child(raw: bytes, load: Callable[[bytes], object] = treadle.InferenceSession) -> Load:
    """Loads the bytes in a child process, and measures its peak beyond its memory at the start."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT, CPU_LIMIT + 1))
        with open("/proc/self/statm") as file:
            mapped = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + ADDRESS_LIMIT,) * 2)
        before, began = resident(), time.process_time()
        try:
            load(raw)
            verdict, text = "loaded", ""
        except treadle.Error as error:
            verdict, text = "refused", str(error)
        except BaseException as error:
            verdict, text = "not an error of Treadle's", f"{type(error).__name__}: {error}"
        seconds = time.process_time() - began
        memory = max(0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before)
        os.write(writer, f"{verdict}\n{memory}\n{seconds}\n{len(text)}\n{text[-2000:]}".encode(errors="replace"))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read().decode(errors="replace")
    _, status, usage = os.wait4(child, 0)
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return Load(f"killed by {name}", "", usage.ru_maxrss * 1024, usage.ru_utime + usage.ru_stime)
    verdict, memory, seconds, length, text = answer.split("\n", 4)
    if int(length) > 100_000:
        verdict = f"an error of {length} characters"
    return Load(verdict, text, int(memory), float(seconds))


# Mutations. Each makes a part of a model huge, and returns False if the model has no such part.


def _graphs(graph: onnx.GraphProto) -> Iterable[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _graphs(attribute.g)


def _number(draw: random.Random) -> int:
    return draw.choice(NUMBERS)


def change_attribute(model: onnx.ModelProto, draw: random.Random) -> None:
    found = [a for g in _graphs(model.graph) for n in g.node for a in n.attribute if a.type in (1, 2, 3, 6, 7, 8)]
    if not found:
        return
    attribute = draw.choice(found)
    if attribute.type == AttributeProto.INT:
        attribute.i = _number(draw)
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = draw.choice(HUGE_FLOATS)
    elif attribute.type == AttributeProto.STRING:
        attribute.s = draw.choice([b"x" * 50_000, b"", attribute.s * 1000])[:50_000]
    elif attribute.type == AttributeProto.INTS:
        if draw.random() < 0.2:
            attribute.ints.extend([_number(draw)] * draw.choice([1, 100, 20_000]))
        elif attribute.ints:
            attribute.ints[draw.randrange(len(attribute.ints))] = _number(draw)
    elif attribute.type == AttributeProto.FLOATS and attribute.floats:
        attribute.floats[draw.randrange(len(attribute.floats))] = draw.choice(HUGE_FLOATS)


def add_attribute(model: onnx.ModelProto, draw: random.Random) -> None:
    """Adds a huge attribute that the operator has and the node omits."""
    node = draw.choice(model.graph.node)
    if not defs.has(node.op_type, node.domain):
        return
    given = {a.name for a in node.attribute}
    found = [a for a in defs.get_schema(node.op_type, node.domain).attributes.values() if a.name not in given and a.type in (defs.OpSchema.AttrType.INT, defs.OpSchema.AttrType.INTS)]
    if not found:
        return
    attribute = draw.choice(found)
    is_list = attribute.type == defs.OpSchema.AttrType.INTS
    value = [_number(draw) for _ in range(draw.choice([1, 2, 4]))] if is_list else _number(draw)
    node.attribute.append(helper.make_attribute(attribute.name, value))


def change_declared_extent(model: onnx.ModelProto, draw: random.Random) -> None:
    found = [i.type.tensor_type for i in model.graph.input if i.type.HasField("tensor_type")]
    if not found:
        return
    shape = draw.choice(found).shape
    kind = draw.randrange(4)
    if kind == 0 or not shape.dim:
        shape.dim.add().dim_value = _number(draw)
    elif kind == 1:
        draw.choice(shape.dim).dim_param = "n"
    elif kind == 2:
        for _ in range(draw.choice([3, 12, 13, 1000])):
            shape.dim.add().dim_value = draw.choice([1, 2])
    else:
        draw.choice(shape.dim).dim_value = _number(draw)


def change_constant(model: onnx.ModelProto, draw: random.Random) -> None:
    """Changes an element of an integer constant, which may be an extent, an axis or a length."""
    found = [t for t in model.graph.initializer if t.data_type in (TensorProto.INT64, TensorProto.INT32) and t.raw_data]
    if not found:
        return
    tensor = draw.choice(found)
    values = numpy_helper.to_array(tensor).copy()
    if values.size:
        info = np.iinfo(values.dtype)
        values.reshape(-1)[draw.randrange(values.size)] = max(info.min, min(info.max, _number(draw)))
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def declare_constant(model: onnx.ModelProto, draw: random.Random) -> None:
    """Replaces a constant by an input with a declared length."""
    if not model.graph.initializer:
        return
    i = draw.randrange(len(model.graph.initializer))
    tensor = model.graph.initializer[i]
    shape = [_number(draw) for _ in tensor.dims] or [_number(draw)]
    model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, shape))
    del model.graph.initializer[i]


def make_large(model: onnx.ModelProto, draw: random.Random) -> None:
    """Replaces an operand by a constant fill with the same number of axes, but large extents, which needs few bytes in the file."""
    found = [i for i in model.graph.input if i.type.HasField("tensor_type")] + list(model.graph.initializer)
    if not found:
        return
    operand = draw.choice(found)
    is_input = isinstance(operand, onnx.ValueInfoProto)
    dtype = operand.type.tensor_type.elem_type if is_input else operand.data_type
    rank = len(operand.type.tensor_type.shape.dim if is_input else operand.dims)
    if dtype == TensorProto.STRING:
        return
    size = draw.choice([10_000, 1_000_000, 6_000_000, 10**9])
    shape = [max(1, round(size ** (1 / max(rank, 1))))] * rank
    if rank and draw.random() < 0.5:
        shape = [1] * (rank - 1) + [size]
    name = operand.name
    (model.graph.input if is_input else model.graph.initializer).remove(operand)
    model.graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), name + ".shape"))
    value = helper.make_tensor("v", dtype, [1], np.array([draw.choice([0, 1])], helper.tensor_dtype_to_np_dtype(dtype)).tobytes(), raw=True)
    model.graph.node.insert(0, helper.make_node("ConstantOfShape", [name + ".shape"], [name], value=value))
    for opset in model.opset_import:
        if opset.domain == "":
            opset.version = max(opset.version, 21)


def make_sparse(model: onnx.ModelProto, draw: random.Random) -> None:
    """Replaces a constant by a sparse one with few elements and huge extents."""
    if not model.graph.initializer:
        return
    i = draw.randrange(len(model.graph.initializer))
    tensor = model.graph.initializer[i]
    if tensor.data_type == TensorProto.STRING or not tensor.dims:
        return
    values = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=[0], raw_data=b"")
    indices = numpy_helper.from_array(np.zeros(0, np.int64))
    sparse = onnx.SparseTensorProto(values=values, indices=indices, dims=[draw.choice([1, 1000, 8_000_000, 60_000_000]), *[1] * (len(tensor.dims) - 1)])
    model.graph.sparse_initializer.append(sparse)
    del model.graph.initializer[i]


def make_empty(model: onnx.ModelProto, draw: random.Random) -> None:
    """Gives a constant an extent of 0, so that huge other extents need no bytes."""
    if not model.graph.initializer:
        return
    tensor = draw.choice(model.graph.initializer)
    if tensor.data_type == TensorProto.STRING or not tensor.dims:
        return
    shape = list(tensor.dims)
    for i in range(len(shape)):
        if draw.random() < 0.5:
            shape[i] = draw.choice([1000, 1_000_000, 10**9, 2**40, 2**62])
    shape[draw.randrange(len(shape))] = 0
    tensor.CopyFrom(TensorProto(name=tensor.name, data_type=tensor.data_type, dims=shape, raw_data=b""))


def repeat_operands(model: onnx.ModelProto, draw: random.Random) -> None:
    node = draw.choice(model.graph.node)
    count = draw.choice([2, 33, 3000])
    if draw.random() < 0.5 and node.input:
        node.input.extend([node.input[-1]] * count)
    elif node.output:
        name = node.output[0]
        node.output.extend(f"{name}.{i}" for i in range(count))


MUTATIONS = [change_attribute, change_attribute, add_attribute, change_declared_extent, change_declared_extent, change_constant, change_constant, declare_constant, make_large, make_large, make_sparse, make_empty, repeat_operands]


def drawn_case(draw: random.Random) -> Case | None:
    domain = draw.choice(["", "", "", "ai.onnx.ml", microsoft_makers.DOMAIN])
    if domain == microsoft_makers.DOMAIN:
        try:
            return microsoft_makers.make_case(draw.choice(sorted(microsoft_makers.MAKERS)), 1, Choices(draw.randrange(1 << 30)))
        except Rejected:
            return None
    newest = fuzz_operators.NEWEST[domain]
    opset = newest if draw.random() < 0.5 else draw.randint(1, newest)
    names = fuzz_operators.names_of(domain, opset, frozenset())
    return fuzz_operators.make_case(draw.choice(names), domain, opset, draw.randrange(1 << 30)) if names else None


def mutated(seed: int) -> bytes | None:
    """Returns a drawn node with one to four mutations."""
    draw = random.Random(seed)
    case = drawn_case(draw)
    if case is None:
        return None
    constant = draw.randrange(3)
    if constant:  # the node may be folded
        case.constant = [isinstance(x, np.ndarray) and (constant == 1 or draw.random() < 0.7) for x in case.inputs]
    model = onnx.ModelProto.FromString(model_of([case], case.opset, 10)[0])
    for _ in range(draw.randint(1, 4)):
        draw.choice(MUTATIONS)(model, draw)
    raw = model.SerializeToString()
    return raw if len(raw) <= FILE_LIMIT else None


def case_of(seed: int) -> tuple[str, bytes | None]:
    """Returns the name and the bytes of the case for a seed; no bytes if the random choices give no valid case."""
    draw = random.Random(seed)
    if draw.random() < 0.1:
        name = draw.choice(sorted(CHAINS))
        raw = CHAINS[name](draw).SerializeToString()
        return name, raw if len(raw) <= FILE_LIMIT else None
    return "mutated", mutated(seed)


def sweep(seeds: Iterable[int], keep: Path | None = None) -> list[tuple[int, str, Load]]:
    """Loads the cases of all seeds."""
    loads = []
    for seed in seeds:
        name, raw = case_of(seed)
        if raw is None:
            continue
        load = load_in_child(raw)
        loads.append((seed, name, load))
        if keep and not load.is_fine:
            keep.mkdir(parents=True, exist_ok=True)
            (keep / f"{seed}.onnx").write_bytes(raw)
    return loads


def describe(raw: bytes) -> str:
    model = onnx.ModelProto.FromString(raw)
    return ", ".join(sorted({f"{n.domain or 'ai.onnx'}.{n.op_type}" for g in _graphs(model.graph) for n in g.node}))[:200]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--replay", type=int, help="one case, loaded in this process")
    parser.add_argument("--keep", type=Path, help="a folder for the files of the cases that fail")
    options = parser.parse_args()
    if options.replay is not None:
        name, raw = case_of(options.replay)
        print(name, raw and describe(raw))
        if raw:
            treadle.InferenceSession(raw)
        return 0
    loads = sweep(range(options.seed, options.seed + options.cases), options.keep)
    failed = [entry for entry in loads if not entry[2].is_fine]
    for seed, name, load in failed:
        raw = case_of(seed)[1]
        print(f"{seed} {name} ({describe(raw)}, {len(raw)} bytes): {load.verdict}, {load.memory >> 20} MiB, {load.seconds:.2f} s {load.text[-200:]}")
    print("slowest:")
    for seed, name, load in sorted(loads, key=lambda entry: -entry[2].seconds)[:20]:
        print(f"{seed} {name} ({describe(case_of(seed)[1])}): {load.verdict}, {load.memory >> 20} MiB, {load.seconds:.2f} s")
    verdicts = {v: sum(load.verdict == v for _, _, load in loads) for v in sorted({load.verdict for _, _, load in loads})}
    print(f"{len(loads)} cases: {verdicts}; {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
