#!/usr/bin/env python3
"""Measures decoders with 4-bit weights, in tokens per second, and compares with ONNX Runtime's MatMulNBits and with float32.

    bench/blocked_weights.py [--threads 1] [--layers 8] [--width 1024] [--hidden 2816] [--vocabulary 8000]

The model is a LLaMA without the Concat of its cache: in each layer RMS normalisation, four projections and a gated feed-forward part, with random
weights. A run computes one token (or --tokens). All engines run alternately in one process, and the medians of their ratios are printed. Both are
measured with accuracy_level 0 (float32 kernels) and 4 (activations in int8).
"""

import argparse
import os
import pathlib
import statistics
import tempfile
import time

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import treadle
from treadle import quantize


def decoder(layers, width, hidden, vocabulary):
    random = np.random.default_rng(0)
    nodes, initializers = [], []

    def weight(name, *shape):
        initializers.append(numpy_helper.from_array(random.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[0])), name))
        return name

    def op(kind, inputs, name, **attributes):
        nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    initializers.append(numpy_helper.from_array(np.float32([1e-5]), "epsilon"))
    initializers.append(numpy_helper.from_array(np.ones(width, np.float32), "scale"))
    initializers.append(numpy_helper.from_array(np.int64([-1]), "axis"))

    def norm(x, name):
        mean = op("ReduceMean", [op("Mul", [x, x], f"{name}_square"), "axis"], f"{name}_mean", keepdims=1)
        root = op("Sqrt", [op("Add", [mean, "epsilon"], f"{name}_add")], f"{name}_root")
        return op("Mul", [op("Div", [x, root], f"{name}_div"), "scale"], name)

    x = "x"
    for i in range(layers):
        n = norm(x, f"norm{i}a")
        q, k, v = (op("MatMul", [n, weight(f"w{i}{c}", width, width)], f"{c}{i}") for c in "qkv")
        mixed = op("Mul", [op("Add", [q, k], f"qk{i}"), v], f"mixed{i}")  # takes the place of attention over a short cache
        x = op("Add", [x, op("MatMul", [mixed, weight(f"w{i}o", width, width)], f"o{i}")], f"r{i}")
        n = norm(x, f"norm{i}b")
        gate = op("MatMul", [n, weight(f"w{i}g", width, hidden)], f"g{i}")
        up = op("MatMul", [n, weight(f"w{i}u", width, hidden)], f"u{i}")
        act = op("Mul", [op("Mul", [gate, op("Sigmoid", [gate], f"s{i}")], f"silu{i}"), up], f"act{i}")
        x = op("Add", [x, op("MatMul", [act, weight(f"w{i}d", hidden, width)], f"d{i}")], f"x{i}")
    op("MatMul", [norm(x, "last"), weight("head", width, vocabulary)], "logits")
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "decoder",
        [info("x", TensorProto.FLOAT, ["n", width])],
        [info("logits", TensorProto.FLOAT, ["n", vocabulary])],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    defaults = {"threads": 1, "layers": 8, "width": 1024, "hidden": 2816, "vocabulary": 8000, "tokens": 1, "rounds": 15}
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument("--bits", type=int, default=4)
    parser.add_argument("--wall", action="store_true", help="wall time; otherwise CPU time of one thread")
    a = parser.parse_args()
    clock = time.perf_counter if a.wall or a.threads > 1 else time.process_time
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        onnx.save(decoder(a.layers, a.width, a.hidden, a.vocabulary), folder / "float.onnx")
        result = quantize.weights(folder / "float.onnx", folder / "nbits.onnx", bits=a.bits, block_size=a.block)
        print(str(result.report).splitlines()[-1])
        nbits = onnx.load(folder / "nbits.onnx")
        for node in nbits.graph.node:
            if node.op_type == "MatMulNBits":
                node.attribute.append(helper.make_attribute("accuracy_level", 4))
        onnx.save(nbits, folder / "level4.onnx")

        def peer(name):
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = a.threads
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
            return onnxruntime.InferenceSession(str(folder / name), options, providers=["CPUExecutionProvider"])

        def ours(name):
            options = treadle.SessionOptions()
            options.intra_op_num_threads = a.threads
            return treadle.InferenceSession(str(folder / name), options)

        engines = {
            "treadle": ours("nbits.onnx"),
            "treadle level 4": ours("level4.onnx"),
            "onnxruntime level 0": peer("nbits.onnx"),
            "onnxruntime level 4": peer("level4.onnx"),
            "treadle float32": ours("float.onnx"),
            "onnxruntime float32": peer("float.onnx"),
        }
        x = np.random.default_rng(1).standard_normal((a.tokens, a.width)).astype(np.float32)
        exact = engines["onnxruntime float32"].run(None, {"x": x})[0].astype(np.float64)
        times = {name: [] for name in engines}
        for _ in range(a.rounds):
            for name, session in engines.items():
                session.run(None, {"x": x})
                begin, count = clock(), 0
                while clock() - begin < 0.1:
                    session.run(None, {"x": x})
                    count += 1
                times[name].append((clock() - begin) / count)
        for name, session in engines.items():
            error = session.run(None, {"x": x})[0] - exact
            noise = 10 * np.log10(np.mean(exact**2) / max(np.mean(error**2), 1e-30))
            ratio = statistics.median(t / b for t, b in zip(times[name], times["treadle"]))
            median = statistics.median(times[name])
            print(f"{name:22} {a.tokens / median:9.1f} tokens/s  {ratio:6.2f} x treadle's time   {noise:5.1f} dB against float32")


if __name__ == "__main__":
    main()
