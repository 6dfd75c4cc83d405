"""Computes an upper bound of a model's speed from the operations of each layer and the machine's peak rate, measured at the same time.

The ceiling is a bound that no engine reaches. It grants matrix products, ordinary convolutions and recurrent networks 97 % of the peak, depthwise
convolutions 92 %, and 3x3 convolutions with stride 1 2.6 times the peak (Winograd's F(4,3) needs a quarter of the multiplications, and additional
work). All else, such as elementwise nodes and normalisations, is free. If reading all weights once takes longer, at the speed of a plain loop over as
many bytes, that time is the ceiling instead (networks of products with few rows).
"""

from __future__ import annotations

import ctypes
import functools
import math
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

# For each kind of layer: the highest rate that the ceiling assumes, relative to the machine's peak (Winograd needs fewer products).
RATES = {"gemm": 0.97, "rnn": 0.97, "depthwise": 0.92, "winograd": 2.6}
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@dataclass(frozen=True)
class Layer:
    """A node that multiplies: its name in the model, its kind (a key of RATES), its number of operations, and a description."""

    name: str
    op: str
    kind: str
    flops: int
    label: str


def count_conv(x: list[int], weights: list[int], y: list[int], group: int, strides: list[int], dilations: list[int], transposed: bool = False) -> tuple[str, int]:
    """Returns kind and number of operations of a convolution (a product and a sum are two), from the shapes of its operands and its result."""
    window = math.prod(weights[2:])
    if transposed:  # weights are [C, M / group, ...]; each input element is multiplied with all weights of its channel
        return "gemm", 2 * math.prod(x) * weights[1] * window
    flops = 2 * math.prod(y) * weights[1] * window
    if group > 1 and weights[1] == 1:
        return "depthwise", flops
    plain = group == 1 and all(s == 1 for s in strides) and all(d == 1 for d in dilations)
    return ("winograd" if plain and weights[2:] == [3, 3] else "gemm"), flops


def count_product(a: list[int], b: list[int], y: list[int]) -> int:
    """Returns the operations of a MatMul: a product and a sum for each element of the result and each column of `a`."""
    return 2 * math.prod(y) * a[-1] if a and b else 0


def count_recurrent(op: str, x: list[int], weights: list[int], recurrence: list[int]) -> int:
    """Returns the operations of LSTM, GRU and RNN: x [steps, batch, inputs], weights [directions, gates * hidden, inputs], recurrence [.., ..,
    hidden]."""
    steps, batch, inputs = x
    directions, hidden = weights[0], recurrence[-1]
    return 2 * steps * batch * directions * GATES[op] * hidden * (inputs + hidden)


def ceiling_flops(layers: Iterable[Layer]) -> float:
    """Returns the operations that the machine would do at its peak in the time of the ceiling."""
    return sum(layer.flops / RATES[layer.kind] for layer in layers)


def read_with_shapes(path: Path, feeds: dict):
    """Returns the model with the shapes of all values for these feeds. Large weights become inputs, as inference needs only their shapes."""
    import onnx
    from onnx import helper, shape_inference

    model = onnx.load(str(path), load_external_data=False)
    graph = model.graph
    stated = {i.name for i in graph.input}
    for value in graph.input:
        if value.name in feeds:
            shape = value.type.tensor_type.shape
            del shape.dim[:]
            for extent in feeds[value.name].shape:
                shape.dim.add().dim_value = extent
    large = [t for t in graph.initializer if math.prod(t.dims) > 1024]
    for tensor in large:
        if tensor.name not in stated:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        graph.initializer.remove(tensor)
    # The exporter has stored shapes of inner values, which may differ from the shapes that follow from the feeds.
    del graph.value_info[:]
    for value in graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    return shape_inference.infer_shapes(model, data_prop=True)


def layers_of(path: Path, feeds: dict) -> list[Layer] | None:
    """Returns the layers that count; None if a shape is unknown, or if products are in bodies or compute with bytes."""
    from onnx import helper

    graph = read_with_shapes(path, feeds).graph
    shapes: dict[str, list[int]] = {t.name: list(t.dims) for t in graph.initializer}
    for value in [*graph.input, *graph.value_info, *graph.output]:
        dims = value.type.tensor_type.shape.dim if value.type.tensor_type.HasField("shape") else None
        if dims is not None and all(d.HasField("dim_value") for d in dims):
            shapes[value.name] = [d.dim_value for d in dims]
    layers = []
    for node in graph.node:
        if node.op_type in ("If", "Loop", "Scan", "Attention", "Einsum") or "Integer" in node.op_type or "QLinear" in node.op_type or "Quantize" in node.op_type:
            return None
        if node.op_type not in ("Conv", "ConvTranspose", "MatMul", "Gemm", *GATES):
            continue
        try:
            operands = [shapes[name] for name in node.input[: 3 if node.op_type in GATES else 2]]
            y = shapes[next(name for name in node.output if name)] if node.op_type not in GATES else []
        except KeyError:
            return None
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        layers.append(describe(node.name or node.output[0], node.op_type, attributes, operands, y))
    return layers


def describe(name: str, op: str, attributes: dict, operands: list[list[int]], y: list[int]) -> Layer:
    x, weights = operands[:2]
    if op in ("Conv", "ConvTranspose"):
        axes = len(weights) - 2
        group = attributes.get("group", 1)
        strides, dilations = attributes.get("strides", [1] * axes), attributes.get("dilations", [1] * axes)
        kind, flops = count_conv(x, weights, y, group, strides, dilations, op == "ConvTranspose")
        parts = [op, "x".join(map(str, weights[2:])), f"{x[1]}->{y[1]}", "at", "x".join(map(str, y[2:]))]
        parts += [f"group {group}"] if group > 1 else []
        parts += [f"stride {max(strides)}"] if max(strides, default=1) > 1 else []
        parts += [f"dilation {max(dilations)}"] if max(dilations, default=1) > 1 else []
        return Layer(name, op, kind, flops, " ".join(parts))
    if op in GATES:
        return Layer(name, op, "rnn", count_recurrent(op, x, weights, operands[2]), f"{op} {x[0]} steps, {x[2]}->{operands[2][-1]}, {weights[0]} directions")
    if op == "Gemm":
        rows, depth = (x[1], x[0]) if attributes.get("transA") else x
        return Layer(name, op, "gemm", 2 * rows * depth * y[1], f"Gemm {rows}x{depth}x{y[1]}")
    batch = math.prod(y) // max(1, math.prod(y[-2:]))
    rows = y[-2] if len(y) > 1 else 1
    return Layer(name, op, "gemm", count_product(x, weights, y), f"MatMul {f'{batch} x ' if batch > 1 else ''}{rows}x{x[-1]}x{y[-1] if y else 1}")


# C source of the loops. The loop chains() computes sixteen independent chains of multiply-adds in registers, without memory accesses:
# two units with a latency of four cycles need at least eight chains. The loop read_all() reads memory.
PEAK_SOURCE = """
#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif
typedef float vec __attribute__((vector_size(BYTES)));
#define ALL(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11) F(12) F(13) F(14) F(15)
long lanes(void) { return BYTES / 4; }
float chains(long steps, float factor, float addend) {
  vec a = factor - (vec){}, b = addend - (vec){};
#define DECLARE(i) vec x##i = b * (float)i;
#define STEP(i) x##i = x##i * a + b;
#define SUM(i) sum += x##i;
  ALL(DECLARE)
  for (long s = 0; s < steps; ++s) { ALL(STEP) }
  vec sum = b;
  ALL(SUM)
  return sum[0];
}
float read_all(const vec* data, long bytes, long times) {
  vec a = {}, b = {}, c = {}, d = {};
  for (long t = 0; t < times; ++t) {
    for (long i = 0; i + 4 <= bytes / BYTES; i += 4) { a += data[i]; b += data[i + 1]; c += data[i + 2]; d += data[i + 3]; }
    __asm__ volatile("" ::: "memory");
  }
  return (a + b + c + d)[0];
}
"""
CHAINS = 16


def compile_shared(source: str, folder: str | Path, flags: Iterable[str] = ("-O3", "-march=native")) -> ctypes.CDLL | None:
    """Compiles the C source, and returns the loaded library; None without a compiler."""
    compiler = next((c for c in ("gcc", "cc", "clang") if shutil.which(c)), None)
    if not compiler:
        return None
    file, library = Path(folder) / "source.c", Path(folder) / "library.so"
    file.write_text(source)
    subprocess.run([compiler, *flags, "-shared", "-fPIC", str(file), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


@functools.cache
def library() -> ctypes.CDLL | None:
    with tempfile.TemporaryDirectory() as folder:
        loaded = compile_shared(PEAK_SOURCE, folder)
    if loaded is None:
        return None
    loaded.chains.argtypes, loaded.chains.restype = [ctypes.c_long, ctypes.c_float, ctypes.c_float], ctypes.c_float
    loaded.read_all.argtypes, loaded.read_all.restype = [ctypes.c_void_p, ctypes.c_long, ctypes.c_long], ctypes.c_float
    loaded.lanes.restype = ctypes.c_long
    return loaded


def on_threads(threads: int, work: Callable[[int], object]) -> Callable[[], None]:
    """Returns a function that calls work(0) … work(threads - 1) concurrently. Calls into a loaded library release the GIL."""

    def run() -> None:
        others = [threading.Thread(target=work, args=[i]) for i in range(1, threads)]
        for other in others:
            other.start()
        work(0)
        for other in others:
            other.join()

    return run


# Number of steps of a run, which then takes milliseconds: starting the run's threads takes far less time.
PEAK_STEPS = 1_000_000
READ_BYTES = 1 << 26


def peak_runner(threads: int = 1) -> Callable[[], None]:
    """Returns a function that performs peak_flops(threads) operations at the peak speed of `threads` cores."""
    chains = library().chains
    return on_threads(threads, lambda _: chains(PEAK_STEPS, 0.5, 0.25))


def peak_flops(threads: int = 1) -> int:
    return 2 * CHAINS * library().lanes() * PEAK_STEPS * threads


def read_runner(size_bytes: int, threads: int = 1) -> Callable[[], None]:
    """Returns a function that reads so many bytes read_times(size_bytes) times."""
    import numpy as np

    memory = np.ones(size_bytes // 4 + 64, np.float32)
    start = memory.ctypes.data + -memory.ctypes.data % 64
    part = size_bytes // threads // 64 * 64
    read = library().read_all
    return on_threads(threads, lambda i: (read(start + i * part, part, read_times(size_bytes)), memory)[0])


def read_times(size_bytes: int) -> int:
    return max(1, READ_BYTES // max(size_bytes, 1))


def weight_bytes(path: Path) -> int:
    """Returns the bytes of the model's constants, which a run reads at least once if it uses all of them."""
    import onnx

    sizes = {onnx.TensorProto.FLOAT: 4, onnx.TensorProto.DOUBLE: 8, onnx.TensorProto.INT64: 8, onnx.TensorProto.FLOAT16: 2, onnx.TensorProto.INT32: 4}
    return sum(math.prod(t.dims) * sizes.get(t.data_type, 1) for t in onnx.load(str(path), load_external_data=False).graph.initializer)
