"""The networks of networks.py as ONNX models, with the same weights and with MXNet's names of values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import networks as nets
from operator_cases import Case
from random_graphs import RandomGraph

OPSETS = (("", 20), ("treadle", 1))
_TYPES = {"f": TensorProto.FLOAT, "i": TensorProto.INT64}


def value(name: str, shape: Sequence[Any], kind: str = "f") -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, _TYPES[kind], list(shape))


def model(
    nodes: Iterable[onnx.NodeProto],
    inputs: Iterable[onnx.ValueInfoProto],
    outputs: Iterable[onnx.ValueInfoProto],
    weights: Mapping[str, np.ndarray] | None = None,
) -> bytes:
    """Returns a model whose nodes are named, as in MXNet, by their first output without "_output"."""
    nodes = list(nodes)
    for node in nodes:
        node.name = node.name or node.output[0].removesuffix("_output")
    initializers = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(nodes, "network", list(inputs), list(outputs), initializers)
    domains = {node.domain for node in nodes}
    opsets = [helper.make_opsetid(*opset) for opset in OPSETS if not opset[0] or opset[0] in domains]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), list(outputs), **attributes)


def dense(name: str, source: str) -> onnx.NodeProto:
    """Returns nodes for MXNet's FullyConnected."""
    return node("Gemm", [source, f"{name}_weight", f"{name}_bias"], [f"{name}_output"], transB=1)


def mlp(groups: Mapping[str, str] | None = None) -> bytes:
    """Returns a model of fc2(tanh(fc1(data))). With `groups`, nodes name their group."""
    nodes = [dense("fc1", "data"), node("Tanh", ["fc1_output"], ["act_output"]), dense("fc2", "act_output")]
    for made in nodes:
        if groups:
            made.metadata_props.append(onnx.StringStringEntryProto(key="ctx_group", value=groups[made.output[0]]))
    return model(nodes, [value("data", ["N", 5])], [value("fc2_output", ["N", 3])], nets.MLP)


def convnet() -> bytes:
    normalised = ["conv_output", "bn_gamma", "bn_beta", "bn_moving_mean", "bn_moving_var"]
    nodes = [
        node("Conv", ["data", "conv_weight", "conv_bias"], ["conv_output"], pads=[1, 1, 1, 1]),
        node("BatchNormalization", normalised, ["bn_output"], epsilon=nets.EPSILON, momentum=nets.MOMENTUM),
        node("Relu", ["bn_output"], ["relu_output"]),
        node("MaxPool", ["relu_output"], ["pool_output"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", ["pool_output"], ["flat_output"]),
        dense("fc", "flat_output"),
    ]
    return model(nodes, [value("data", ["N", 2, 6, 6])], [value("fc_output", ["N", 3])], {**nets.CONV, **nets.CONV_STATES})


def function(op: str, operands: Mapping[str, np.ndarray], constants: Sequence[Any] = (), **attributes: Any) -> bytes:
    """Returns a model of y = op(operands…, constants…). The operands are parameters, as a model with inputs only has nothing to train."""
    weights = {name: array for name, array in operands.items()}
    weights.update({f"constant_{i}": np.asarray(constant) for i, constant in enumerate(constants)})
    return model([node(op, list(weights), ["y"], **attributes)], [], [value("y", next(iter(operands.values())).shape)], weights)


def operator(case: Case) -> bytes:
    """Returns a case's operator with parameters as operands. Its outputs "y0" … have any shape."""
    first = {f"first_{i}": np.asarray(constant) for i, constant in enumerate(case.first)}
    last = {f"constant_{i}": np.asarray(constant) for i, constant in enumerate(case.constants)}
    weights = {**first, **case.operands, **last}
    outputs = [f"y{i}" for i in range(case.outputs)]
    shapeless = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    unread = [f"unread{i}" for i in range(case.unread)]
    return model([node(case.op, list(weights), [*outputs, *unread], **case.attributes)], [], shapeless, weights)


_RANDOM = {
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "relu": "Relu",
    "negative": "Neg",
    "sine": "Sin",
    "transpose": "Transpose",
    "softmax": "Softmax",
    "add": "Add",
    "subtract": "Sub",
    "multiply": "Mul",
    "product": "MatMul",
}


def random_model(graph: RandomGraph) -> bytes:
    """Returns a random graph whose parameters are initializers."""
    constants = {"half": np.float32(0.5), "zero": np.array([0]), "middle": np.array([2]), "end": np.array([4]), "columns": np.array([1])}
    nodes = []
    for step in graph.steps:
        if step.op == "join":
            nodes.append(node("Slice", [step.operands[0], "middle", "end", "columns"], [f"{step.value}_right"]))
            nodes.append(node("Slice", [step.operands[1], "zero", "middle", "columns"], [f"{step.value}_left"]))
            nodes.append(node("Concat", [f"{step.value}_right", f"{step.value}_left"], [step.value], axis=1))
        elif step.op == "halve":
            nodes.append(node("Mul", [step.operands[0], "half"], [step.value]))
        else:
            nodes.append(node(_RANDOM[step.op], step.operands, [step.value]))
    inputs = [value(name, [4, 4]) for name in graph.arrays if name[0] == "x"]
    weights = {name: array for name, array in graph.arrays.items() if name[0] == "p"}
    return model(nodes, inputs, [value(name, [4, 4]) for name in graph.outputs], {**weights, **constants})
