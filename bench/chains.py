#!/usr/bin/env python3
"""Measures chains of elementwise nodes: eight nodes over a million floats against a compiled loop, and a thousand over 65,536 against ONNX Runtime.

    PYTHONPATH=build/python/python bench/chains.py [--threads 1] [--rounds 40] [--clock cpu]

The loop is plain C, compiled here with `gcc -O3 -march=native`; it, a copy of as many bytes, and both runtimes work on the same arrays, bound as
inputs and outputs, in turn. Medians over rounds of some milliseconds, and the median of the rounds' ratios.
"""

import argparse
import ctypes
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from ceilings import compile_shared

# Each row: (operator, second operand, the same operation in C). The operators are cheap and binary, and no algebraic rule removes them.
EIGHT = [
    ("Mul", 1.5, "t = t * 1.5f;"),
    ("Add", "y", "t = t + y[i];"),
    ("Sub", 0.25, "t = t - 0.25f;"),
    ("Max", -2.0, "t = t > -2.0f ? t : -2.0f;"),
    ("Mul", "y", "t = t * y[i];"),
    ("Min", 4.0, "t = t < 4.0f ? t : 4.0f;"),
    ("Add", "x", "t = t + x[i];"),
    ("Mul", 0.75, "t = t * 0.75f;"),
]
FOUR = [("Mul", 0.9), ("Add", 0.1), ("Max", -1.0), ("Min", 2.0)]


def chain(operators: list, size: int) -> bytes:
    nodes, constants, value = [], {}, "x"
    for i, (op, operand, *_) in enumerate(operators):
        if not isinstance(operand, str):
            constants[f"c{operand}"] = np.float32(operand)
            operand = f"c{operand}"
        result = "out" if i == len(operators) - 1 else f"v{i}"
        nodes.append(helper.make_node(op, [value, operand], [result]))
        value = result
    info = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [size])
    inputs = ["x", "y"] if any(o[1] == "y" for o in operators) else ["x"]
    stored = [numpy_helper.from_array(v, n) for n, v in constants.items()]
    graph = helper.make_graph(nodes, "chain", [info(n) for n in inputs], [info("out")], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def bound(library, model: bytes, arrays: dict, out: np.ndarray, threads: int):
    """Returns a function that runs the model with these arrays bound as inputs and outputs."""
    options = library.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    session = library.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for i in session.get_inputs():
        array = arrays[i.name]
        binding.bind_input(i.name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
    binding.bind_output("out", "cpu", 0, np.float32, out.shape, out.ctypes.data)
    return lambda: session.run_with_iobinding(binding)


def measure(runs: dict, rounds: int, seconds: float, clock) -> dict[str, list[float]]:
    """Returns, for each function of `runs`, the microseconds per run in each round. The functions alternate."""
    times = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            run()
            count, end, start = 0, time.perf_counter() + seconds, clock()
            while time.perf_counter() < end or count == 0:
                run()
                count += 1
            times[name].append((clock() - start) / count * 1e6)
    return times


def show(title: str, times: dict, base: str) -> None:
    print(title)
    for name, taken in times.items():
        ratio = statistics.median(t / b for t, b in zip(taken, times[base]))
        print(f"  {name:14} {statistics.median(taken):10.1f} us  {ratio:6.2f} of {base}'s time")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=0.01, help="of a round")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    args = parser.parse_args()
    import onnxruntime

    import treadle

    if args.threads == 1 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    clock = time.process_time if args.clock == "cpu" else time.perf_counter
    random = np.random.default_rng(0)
    libraries = {"treadle": treadle, "onnxruntime": onnxruntime}

    size = 1_000_000
    arrays = {name: random.standard_normal(size, np.float32) for name in "xy"}
    out, want = np.empty(size, np.float32), np.empty(size, np.float32)
    model = chain(EIGHT, size)
    runs = {name: bound(library, model, arrays, out, args.threads) for name, library in libraries.items()}
    body = " ".join(code for *_, code in EIGHT)
    source = f"void loop(long n, const float* restrict x, const float* restrict y, float* restrict out) {{ for (long i = 0; i < n; ++i) {{ float t = x[i]; {body} out[i] = t; }} }}"
    with tempfile.TemporaryDirectory() as folder:
        library = compile_shared(source, folder)
    if library is None:
        print("no C compiler: nothing to compare the chain of eight with", file=sys.stderr)
    else:
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (arrays["x"], arrays["y"], out)]
        runs["compiled loop"] = lambda: library.loop(ctypes.c_long(size), *pointers)
        library.loop(ctypes.c_long(size), *pointers[:2], ctypes.c_void_p(want.ctypes.data))
        runs["treadle"]()
        difference = np.abs(out - want).max()
        assert difference < 1e-5, difference
    runs["copy"] = lambda: np.copyto(out, arrays["x"])
    show("8 nodes, 1,000,000 floats", measure(runs, args.rounds, args.seconds, clock), "compiled loop" if library else "treadle")

    size = 65_536
    x, out = arrays["x"][:size].copy(), np.empty(size, np.float32)
    model = chain([FOUR[i % 4] for i in range(1000)], size)
    runs = {name: bound(library, model, {"x": x}, out, args.threads) for name, library in libraries.items()}
    runs["treadle"]()
    want = out.copy()
    runs["onnxruntime"]()
    difference = np.abs(out - want).max()
    assert difference < 1e-5, difference
    show("1,000 nodes, 65,536 floats", measure(runs, max(5, args.rounds // 2), args.seconds, clock), "treadle")


if __name__ == "__main__":
    main()
