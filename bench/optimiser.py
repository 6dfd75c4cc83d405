#!/usr/bin/env python3
"""How long the graph optimiser takes with large graphs, and whether that is linear.

    PYTHONPATH=build/python/python bench/optimiser.py [--nodes 2500 10000 40000] [--program build/release/src/cli/treadle]

Three kinds of graphs with tiny extents: blocks of a transformer and of a convolution network as exporters write them, and elementwise chains. Time of
the making of a session with and without the optimiser (the latter lowers all nodes as they are written), and, with --program, of the
passes alone, the slowest of them named.
"""

import argparse
import re
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

WIDTH = 8


class Writer:
    def __init__(self) -> None:
        self.nodes, self.constants = [], {}

    def constant(self, name: str, value) -> str:
        self.constants.setdefault(name, numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(self, name: str, *shape: int) -> str:
        return self.constant(name, np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32) * np.float32(0.1))

    def add(self, op: str, *inputs: str, **attributes) -> str:
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name


def transformer_block(w: Writer, x: str) -> str:
    """Normalisation and Gelu written out, one head; 33 nodes."""

    def norm(x: str) -> str:
        axes = {"axes": [-1], "keepdims": 1}
        centred = w.add("Sub", x, w.add("ReduceMean", x, **axes))
        variance = w.add("ReduceMean", w.add("Pow", centred, w.constant("two", np.float32(2))), **axes)
        root = w.add("Sqrt", w.add("Add", variance, w.constant("epsilon", np.float32(1e-5))))
        return w.add("Add", w.add("Mul", w.add("Div", centred, root), w.weight("scale", WIDTH)), w.weight("shift", WIDTH))

    def linear(x: str, name: str, inputs: int, outputs: int) -> str:
        return w.add("Add", w.add("MatMul", x, w.weight(name, inputs, outputs)), w.weight(f"{name}.bias", outputs))

    y = norm(x)
    q, k, v = (linear(y, name, WIDTH, WIDTH) for name in "qkv")
    scores = w.add("Mul", w.add("MatMul", q, w.add("Transpose", k, perm=[0, 2, 1])), w.constant("root", np.float32(WIDTH**-0.5)))
    x = w.add("Add", x, linear(w.add("MatMul", w.add("Softmax", scores, axis=-1), v), "out", WIDTH, WIDTH))
    y = linear(norm(x), "up", WIDTH, 2 * WIDTH)
    gate = w.add("Add", w.add("Erf", w.add("Div", y, w.constant("root2", np.float32(2**0.5)))), w.constant("one", np.float32(1)))
    gelu = w.add("Mul", w.add("Mul", y, gate), w.constant("half", np.float32(0.5)))
    return w.add("Add", x, linear(gelu, "down", 2 * WIDTH, WIDTH))


def convolution_block(w: Writer, x: str) -> str:
    """A residual block with squeeze-and-excitation; 13 nodes."""
    statistics_ = [w.weight(name, WIDTH) for name in ("s", "b", "m")] + [w.constant("v", np.full(WIDTH, 1.5, np.float32))]
    conv = lambda x, name, kernel: w.add("Conv", x, w.weight(name, WIDTH, WIDTH, kernel, kernel), pads=[kernel // 2] * 4)
    y = w.add("Relu", w.add("BatchNormalization", conv(x, "w1", 3), *statistics_))
    y = w.add("BatchNormalization", conv(y, "w2", 3), *statistics_)
    gate = w.add("Sigmoid", conv(w.add("Relu", conv(w.add("GlobalAveragePool", y), "w3", 1)), "w4", 1))
    return w.add("Relu", w.add("Add", w.add("Mul", y, gate), x))


def elementwise_block(w: Writer, x: str) -> str:
    """Cheap operators and one that is not; 6 nodes."""
    for op, value in (("Mul", 0.9), ("Add", 0.1), ("Max", -1.0), ("Min", 2.0)):
        x = w.add(op, x, w.constant(f"c{value}", np.float32(value)))
    return w.add("Add", w.add("Tanh", x), x)


KINDS = {"transformer": (transformer_block, ["n", 4, WIDTH]), "convolutions": (convolution_block, [1, WIDTH, 6, 6]), "elementwise": (elementwise_block, ["n", WIDTH])}


def model_of(kind: str, nodes: int):
    block, shape = KINDS[kind]
    w, x = Writer(), "x"
    while len(w.nodes) < nodes:
        x = block(w, x)
    info = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    graph = helper.make_graph(w.nodes, kind, [info("x")], [info(x)], list(w.constants.values()))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), len(w.nodes)


def creation_s(model: bytes, level, repeats: int) -> float:
    import treadle

    times = []
    for _ in range(repeats):
        options = treadle.SessionOptions()
        options.graph_optimization_level = level
        start = time.process_time()
        treadle.InferenceSession(model, options)
        times.append(time.process_time() - start)
    return statistics.median(times)


def passes_s(program: str, file: Path) -> list[tuple[str, float]]:
    """(pass, s), the slowest first, from the command line. It leaves out the layouts of sessions."""
    done = subprocess.run([program, "optimize", str(file), "-o", str(file.with_suffix(".out")), "-v"], capture_output=True, text=True, check=True)
    sums: dict[str, float] = {}
    for name, taken in re.findall(r"^([\w-]+)\s+(\d+) us", done.stdout + done.stderr, re.MULTILINE):
        sums[name] = sums.get(name, 0) + int(taken) / 1e6
    return sorted(sums.items(), key=lambda item: -item[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[2500, 10000, 40000])
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--program", help="the command line, for the time of each pass")
    args = parser.parse_args()
    import treadle

    levels = treadle.GraphOptimizationLevel
    for kind in args.kinds:
        for nodes in args.nodes:
            model, count = model_of(kind, nodes)
            data = model.SerializeToString()
            without, with_ = (creation_s(data, level, args.repeats) for level in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_ALL))
            text = f"{kind:13}{count:7} nodes: session {with_:7.3f} s of CPU time with the optimiser, {without:7.3f} without"
            if args.program:
                with tempfile.TemporaryDirectory() as folder:
                    save(model, Path(folder) / "model.onnx")
                    found = passes_s(args.program, Path(folder) / "model.onnx")
                slowest = ", ".join(f"{name} {taken:.3f}" for name, taken in found[:4])
                text += f"; passes {sum(taken for _, taken in found):.3f} ({slowest})"
            print(text, flush=True)


if __name__ == "__main__":
    main()
