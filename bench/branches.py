"""Measures four independent branches, run concurrently and one after the other, in Treadle and in ONNX Runtime.

    python bench/branches.py [--rounds 7]

Engines alternate in every round, and the medians over the rounds are printed. In one model a branch is 20 elementwise nodes over 200,000 floats, in
the other 4 products of 384 x 384 matrices.
"""

import argparse
import statistics
import time

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

import treadle


def model(kind):
    nodes, ends = [], []
    for branch in range(4):
        value = "x"
        for step in range(20 if kind == "elementwise" else 4):
            out = f"b{branch}_{step}"
            if kind == "elementwise":
                # The branches contain different operators, so that no optimizer merges the branches.
                nodes.append(helper.make_node(("Sin", "Tanh", "Exp", "Sigmoid")[(branch + step) % 4], [value], [out]))
                if step % 4 == 3:
                    nodes.append(helper.make_node("Sigmoid", [out], [out + "s"]))
                    out += "s"
            else:
                nodes.append(helper.make_node("MatMul", [value, f"w{branch}"], [out]))
            value = out
        ends.append(value)
    nodes.append(helper.make_node("Sum", ends, ["y"]))
    shape = [200_000] if kind == "elementwise" else [384, 384]
    rng = np.random.default_rng(0)
    weights = [onnx.numpy_helper.from_array((rng.standard_normal((384, 384)) / 20).astype(np.float32), f"w{i}") for i in range(4)]
    graph = helper.make_graph(
        nodes,
        kind,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        weights if kind == "products" else [],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return made.SerializeToString(), rng.standard_normal(shape).astype(np.float32)


def session(module, content, parallel, threads=None):
    options = module.SessionOptions()
    if threads is not None:
        options.intra_op_num_threads, options.inter_op_num_threads = threads
    if parallel:
        options.execution_mode = module.ExecutionMode.ORT_PARALLEL
    return module.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def seconds(run, at_least):
    run()
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < at_least:
        run()
        count += 1
    return (time.perf_counter() - start) / count


def branches(rounds):
    for kind in ("elementwise", "products"):
        content, x = model(kind)
        sessions = {
            "treadle, in order, 1 thread": session(treadle, content, False, (1, 1)),
            "treadle, in order, 2 threads": session(treadle, content, False, (2, 1)),
            "treadle, parallel, 1 thread a node": session(treadle, content, True, (1, 2)),
            "treadle, parallel, one pool of 2": session(treadle, content, True, (2, 2)),
            "onnxruntime, in order, 1 thread": session(onnxruntime, content, False, (1, 1)),
            "onnxruntime, in order, 2 threads": session(onnxruntime, content, False, (2, 1)),
            "onnxruntime, parallel": session(onnxruntime, content, True, (1, 2)),
        }
        times = {name: [] for name in sessions}
        for _ in range(rounds):
            for name, made in sessions.items():
                times[name].append(seconds(lambda made=made: made.run(None, {"x": x}), 0.15))
        base = {"t": statistics.median(times["treadle, in order, 1 thread"]), "o": statistics.median(times["onnxruntime, in order, 1 thread"])}
        print(kind)
        for name, values in times.items():
            median = statistics.median(values)
            print(f"  {name:38s} {1e3 * median:8.2f} ms  {base[name[0]] / median:5.2f} x its own 1 thread")
        results = [made.run(None, {"x": x})[0] for name, made in sessions.items() if name.startswith("treadle")]
        print("  treadle's bits are", "the same" if all(np.array_equal(results[0], other) for other in results) else "DIFFERENT")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    branches(arguments.rounds)
