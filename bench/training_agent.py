#!/usr/bin/env python3
"""Measures forward and backward passes of Treadle's JointModule and of ONNX Runtime's TrainingAgent in turn: the executor that ORTModule drives.

    PYTHONPATH=build/release/python python bench/training_agent.py [--only REGEX] [--rounds 9]

Needs onnxruntime-training-cpu 1.19.2 in place of onnxruntime, the last there is, beside PyTorch, which exports the models of bench/training.py.
(ORTModule itself needs extensions that do not compile against PyTorch 2.13.) Both get the same file, parameters, inputs and gradients of outputs,
and run on one thread. `ratio` is ONNX Runtime's median over Treadle's; differences are those of gradients to PyTorch's, each in parts of its
largest magnitude, the median over the parameters.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

# The package onnxruntime.training imports two parts that need other versions of PyTorch. Empty modules replace them: the benchmark needs
# none.
for part in ("amp", "optim"):
    sys.modules[f"onnxruntime.training.{part}"] = types.ModuleType(f"onnxruntime.training.{part}")
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import onnx
import onnxruntime
from onnxruntime.capi import _pybind_state as native

import training
import treadle
from treadle.train import JointModule

HOST = native.OrtDevice(native.OrtDevice.cpu(), native.OrtDevice.default_memory(), 0)
Pass = Callable[[], dict[str, np.ndarray]]


def values_of(arrays: list[np.ndarray]) -> native.OrtValueVector:
    """Makes values that share the arrays' memory. @pre the arrays live as long as the values"""
    vector = native.OrtValueVector()
    for array in arrays:
        vector.push_back(native.OrtValue.ortvalue_from_numpy(array, HOST))
    return vector


def in_onnxruntime(model: bytes, x: np.ndarray, head: np.ndarray) -> Pass:
    """Runs the model as ORTModule does: parameters are inputs of a graph with a Yield between forward and backward."""
    adapted = onnx.load_from_string(model)
    statistics_of_batches = set()
    for node in adapted.graph.node:
        if node.op_type == "LayerNormalization":  # its gradient reads outputs that inference may omit
            node.output.extend(f"{node.output[0]}/{what}" for what in ("mean", "deviation")[len(node.output) - 1 :])
        elif node.op_type == "BatchNormalization":
            statistics_of_batches.update(node.input[3:5])
    weights = {tensor.name: np.ascontiguousarray(onnx.numpy_helper.to_array(tensor)) for tensor in adapted.graph.initializer}
    trained = [name for name, weight in weights.items() if weight.dtype == np.float32 and weight.ndim > 0 and name not in statistics_of_batches]
    config = native.OrtModuleGraphBuilderConfiguration()
    config.initializer_names, config.initializer_names_to_train = list(weights), trained
    config.build_gradient_graph = True
    builder = native.OrtModuleGraphBuilder()
    builder.initialize(adapted.SerializeToString(), config)
    builder.build(native.TrainingGraphTransformerConfiguration())
    made = onnx.load_from_string(builder.get_gradient_model()).graph
    feeds, gradients = [value.name for value in made.input], [value.name for value in made.output]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(builder.get_gradient_model(), options, providers=["CPUExecutionProvider"])
    outputs = [HOST] * len(builder.get_graph_info().user_output_names)
    agent = native.TrainingAgent(session._sess, feeds, outputs, gradients, [HOST] * len(gradients), 0)
    fed = [x if name == "x" else weights[name] for name in feeds]
    given, heads = values_of(fed), values_of([head])

    def run() -> dict[str, np.ndarray]:
        state, results, made_gradients = native.PartialGraphExecutionState(), native.OrtValueVector(), native.OrtValueVector()
        agent.run_forward(given, results, state, None)
        agent.run_backward(heads, made_gradients, state)
        return {name.removesuffix("_grad"): made_gradients[i].numpy() for i, name in enumerate(gradients)}

    run.keep = (session, fed)  # type: ignore[attr-defined]
    return run


def in_treadle(model: bytes, x: np.ndarray, head: np.ndarray) -> Pass:
    module = JointModule(model, num_threads=1)
    return lambda: module.forward({"x": x}).backward([head])


def compare(name: str, batch: int, rounds: int) -> float | None:
    module, given = training.make_module(name, batch)
    model = training.exported(module.train(), given)
    x = np.ascontiguousarray(given.numpy())
    head = np.random.default_rng(0).standard_normal(tuple(module(given).shape), dtype=np.float32)
    try:
        passes = [in_treadle(model, x, head), in_onnxruntime(model, x, head)]
        ours, theirs = (run() for run in passes)
    except Exception as error:  # operators without a gradient raise an error
        reason = " ".join(str(error).split())[-160:]
        print(f"| {name} | {batch} | – | – | – | – | {reason} |", flush=True)
        return None
    module(given).backward(training.torch.from_numpy(head))
    judge = {key: parameter.grad.numpy() for key, parameter in module.named_parameters() if key in ours and key in theirs}
    found = [[float(np.abs(made[key] - right).max() / np.abs(right).max()) for key, right in judge.items()] for made in (ours, theirs)]
    differences = [statistics.median(of_all) for of_all in found]
    times: list[list[float]] = [[], []]
    for _ in range(rounds + 1):
        for found, run in zip(times, passes, strict=True):
            start = time.perf_counter()
            run()
            found.append(time.perf_counter() - start)
    medians = [statistics.median(found[1:]) for found in times]
    ratio = medians[1] / medians[0]
    print(f"| {name} | {batch} | {medians[0] * 1e3:.2f} | {medians[1] * 1e3:.2f} | {ratio:.2f} | {differences[0]:.0e} | {differences[1]:.0e} |", flush=True)
    return ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    training.torch.set_num_threads(1)
    print(f"onnxruntime-training {onnxruntime.__version__}, treadle {treadle.__version__}")
    print("| model | batch | Treadle, ms | ONNX Runtime, ms | ratio | difference | ONNX Runtime's |\n|---|---|---|---|---|---|---|")
    ratios = [compare(name, batch, args.rounds) for name, batch in training.CASES.items() if re.search(args.only, name)]
    known = [ratio for ratio in ratios if ratio is not None]
    if known:
        print(f"\ngeometric mean {statistics.geometric_mean(known):.2f}, lowest {min(known):.2f}")


if __name__ == "__main__":
    main()
