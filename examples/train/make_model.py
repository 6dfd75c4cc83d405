#!/usr/bin/env python3
"""Writes spirals.onnx, the untrained network that the programs in this folder train. Its input is a point (two numbers), its output the scores of
two classes."""

import pathlib

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HIDDEN = 32


def main():
    rng = np.random.default_rng(0)
    weights, nodes, x = [], [], "point"
    for i, (inputs, outputs) in enumerate([(2, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 2)], start=1):
        weight = rng.normal(0, np.sqrt(1 / inputs), (inputs, outputs))
        weights.append(numpy_helper.from_array(weight.astype(np.float32), f"layer{i}.weight"))
        weights.append(numpy_helper.from_array(np.zeros(outputs, np.float32), f"layer{i}.bias"))
        y = "scores" if i == 3 else f"layer{i}"
        nodes.append(helper.make_node("Gemm", [x, f"layer{i}.weight", f"layer{i}.bias"], [y], name=f"layer{i}"))
        x = y
        if i < 3:
            x = f"tanh{i}"
            nodes.append(helper.make_node("Tanh", [y], [x], name=x))
    graph = helper.make_graph(
        nodes,
        "spirals",
        [helper.make_tensor_value_info("point", TensorProto.FLOAT, ["batch", 2])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 2])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="treadle examples/train")
    onnx.checker.check_model(model)
    onnx.save(model, pathlib.Path(__file__).parent / "spirals.onnx")


if __name__ == "__main__":
    main()
