"""Single operators for which gradients are compared between ONNX Runtime, MXNet and Treadle: operands, constants and attributes as in ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import networks as nets


@dataclass(frozen=True)
class Case:
    """y = op(operands…, constants…). Gradients are compared for all operands."""

    op: str
    operands: dict[str, np.ndarray]
    constants: Sequence[Any] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    first: Sequence[Any] = ()  # constants that come before the operands
    unread: int = 0  # number of the node's outputs that the model does not return

    def heads(self, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
        """Returns a gradient for each output, with which the backward pass begins."""
        return [nets.normal(500 + i, head=tuple(shape))["head"] for i, shape in enumerate(shapes)]


_P, _Q = nets.POINTS, nets.OTHER
_M = nets.normal(100, a=(3, 4), b=(4, 5), c=(3, 5), row=(4,), column=(3, 1), stack=(2, 3, 4), other=(2, 4, 3))
_I = nets.normal(
    101,
    image=(2, 2, 6, 5),
    kernel=(3, 2, 3, 3),
    bias=(3,),
    grouped=(4, 1, 3, 3),
    depthwise=(2, 1, 3, 3),
    line=(2, 3, 3),
    volume=(1, 2, 3, 4, 3),
    cube=(2, 2, 2, 2, 2),
)
_LABELS, _LABEL_MAPS = np.array([1, 3, 0], np.int64), np.array([[0, 1, 2, 1], [2, 2, 0, 1]], np.int64)


def _ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def _unary(op: str, points: np.ndarray = _P, **attributes: Any) -> Case:
    return Case(op, {"a": points}, attributes=attributes)


def _binary(op: str, a: np.ndarray, b: np.ndarray, **attributes: Any) -> Case:
    return Case(op, {"a": a, "b": b}, attributes=attributes)


CASES = {
    **{
        op: _unary(op)
        for op in ("Relu", "Tanh", "Sigmoid", "Exp", "Neg", "Abs", "Sin", "Cos", "Erf", "Gelu", "Softplus", "HardSigmoid", "Identity")
    },
    **{op: _unary(op, nets.POSITIVE) for op in ("Log", "Sqrt", "Reciprocal")},
    "LeakyRelu": _unary("LeakyRelu", alpha=0.1),
    "Elu": _unary("Elu", alpha=0.7),
    "Gelu tanh": _unary("Gelu", approximate="tanh"),
    "Clip": Case("Clip", {"a": _P}, [np.float32(-0.5), np.float32(1)]),
    "Add": _binary("Add", _P, _Q),
    "Sub": _binary("Sub", _P, _Q),
    "Mul": _binary("Mul", _P, _Q),
    "Div": _binary("Div", _Q, nets.POSITIVE),
    "Pow": _binary("Pow", nets.POSITIVE, _Q),
    "Pow, constant exponent": Case("Pow", {"a": _P}, [np.float32(3)]),
    "Max": _binary("Max", _P, _Q),
    "Min": _binary("Min", _P, _Q),
    "Add, broadcast row": _binary("Add", _M["a"], _M["row"]),
    "Mul, broadcast column": _binary("Mul", _M["a"], _M["column"]),
    "Div, broadcast both": _binary("Div", _M["row"], np.abs(_M["column"]) + 0.5),
    "Sum of three": Case("Sum", {"a": _P, "b": _Q, "c": nets.POSITIVE}),
    "Where": Case("Where", {"a": _P, "b": _Q}, first=[_P > 0]),
    "MatMul": _binary("MatMul", _M["a"], _M["b"]),
    "MatMul, batched": _binary("MatMul", _M["stack"], _M["other"]),
    "MatMul, one matrix for a batch": _binary("MatMul", _M["stack"], _M["b"]),
    "Gemm": Case("Gemm", {"a": _M["a"], "b": _M["b"], "c": _M["c"]}, attributes={"alpha": 0.5, "beta": 2.0}),
    "Gemm, both transposed": Case(
        "Gemm", {"a": _M["a"].T.copy(), "b": _M["b"].T.copy(), "c": _M["c"][0]}, attributes={"transA": 1, "transB": 1}
    ),
    "Softmax": Case("Softmax", {"a": _M["stack"]}, attributes={"axis": 1}),
    "LogSoftmax": Case("LogSoftmax", {"a": _M["stack"]}, attributes={"axis": -1}),
    "LayerNormalization": Case(
        "LayerNormalization", {"a": _M["stack"], "scale": _M["row"], "bias": _M["row"][::-1].copy()}, attributes={"axis": -1}, unread=2
    ),
    "ReduceSum": Case("ReduceSum", {"a": _M["stack"]}, [_ints(1)], {"keepdims": 0}),
    "ReduceMean": Case("ReduceMean", {"a": _M["stack"]}, [_ints(0, 2)], {"keepdims": 1}),
    "Reshape": Case("Reshape", {"a": _M["stack"]}, [_ints(4, -1)]),
    "Transpose": Case("Transpose", {"a": _M["stack"]}, attributes={"perm": [2, 0, 1]}),
    "Squeeze": Case("Squeeze", {"a": _M["column"]}, [_ints(1)]),
    "Unsqueeze": Case("Unsqueeze", {"a": _M["row"]}, [_ints(0, 2)]),
    "Expand": Case("Expand", {"a": _M["column"]}, [_ints(2, 3, 4)]),
    "Flatten": Case("Flatten", {"a": _M["stack"]}, attributes={"axis": 2}),
    "Concat": Case("Concat", {"a": _M["a"], "b": _M["c"]}, attributes={"axis": 1}),
    "Split": Case("Split", {"a": _M["b"]}, [_ints(2, 3)], {"axis": 1}, outputs=2),
    "Slice": Case("Slice", {"a": _M["b"]}, [_ints(3, 0), _ints(0, 5), _ints(0, 1), _ints(-1, 2)]),
    "Gather": Case("Gather", {"a": _M["b"]}, [np.array([[3, 0], [3, 1]], np.int64)], {"axis": 0}),
    "Gather along the second axis": Case("Gather", {"a": _M["b"]}, [_ints(4, 0, 4)], {"axis": 1}),
    "Conv": Case("Conv", {"a": _I["image"], "w": _I["kernel"], "b": _I["bias"]}, attributes={"pads": [1, 1, 1, 1]}),
    "Conv, strides": Case("Conv", {"a": _I["image"], "w": _I["kernel"]}, attributes={"strides": [2, 1], "pads": [1, 0, 0, 1]}),
    "Conv, dilations": Case("Conv", {"a": _I["image"], "w": _I["kernel"]}, attributes={"dilations": [2, 2], "pads": [2, 2, 2, 2]}),
    "Conv, groups": Case("Conv", {"a": _I["image"], "w": _I["grouped"]}, attributes={"group": 2, "pads": [1, 1, 1, 1]}),
    "Conv, depthwise": Case("Conv", {"a": _I["image"], "w": _I["depthwise"]}, attributes={"group": 2}),
    "MaxPool": Case("MaxPool", {"a": _I["image"]}, attributes={"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "AveragePool": Case("AveragePool", {"a": _I["image"]}, attributes={"kernel_shape": [3, 2], "pads": [1, 0, 1, 1]}),
    "AveragePool, padding counted": Case(
        "AveragePool", {"a": _I["image"]}, attributes={"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}
    ),
    "GlobalAveragePool": Case("GlobalAveragePool", {"a": _I["image"]}),
    "BatchNormalization": Case(
        "BatchNormalization",
        {"a": _I["image"], "scale": _P[:2], "bias": _Q[:2]},
        [np.float32([0.5, -0.5]), np.float32([1, 2])],
        {"epsilon": 1e-3},
    ),
    "Conv, one axis": Case("Conv", {"a": _M["stack"], "w": _I["line"]}, attributes={"pads": [1, 1]}),
    "Conv, three axes": Case("Conv", {"a": _I["volume"], "w": _I["cube"]}),
    "MaxPool, dilations": Case("MaxPool", {"a": _I["image"]}, attributes={"kernel_shape": [2, 2], "dilations": [2, 2]}),
    "MaxPool, ceil": Case("MaxPool", {"a": _I["image"]}, attributes={"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    "AveragePool, ceil": Case("AveragePool", {"a": _I["image"]}, attributes={"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    "MatMul, a vector on the left": _binary("MatMul", _M["row"], _M["b"]),
    "MatMul, a batch on the right": _binary("MatMul", _M["a"], _M["other"]),
    "LayerNormalization over two axes": Case(
        "LayerNormalization", {"a": _M["stack"], "scale": _M["a"], "bias": _M["a"] + 1}, attributes={"axis": 1}, unread=2
    ),
    "ReduceSum of all": Case("ReduceSum", {"a": _M["stack"]}, attributes={"keepdims": 0}),
    "Concat of three": Case("Concat", {"a": _M["stack"], "b": _M["stack"] * 2, "c": _M["stack"][:, :1]}, attributes={"axis": 1}),
    "Split, uneven": Case("Split", {"a": _M["b"]}, attributes={"axis": 1, "num_outputs": 2}, outputs=2),
    "Max, broadcast": _binary("Max", _M["a"], _M["row"]),
    "Where, broadcast": Case("Where", {"a": _M["a"], "b": _M["row"]}, first=[_M["a"] > 0]),
    "SoftmaxCrossEntropyLoss": Case("SoftmaxCrossEntropyLoss", {"a": _M["a"]}, [_LABELS], unread=1),
    "SoftmaxCrossEntropyLoss, sum": Case("SoftmaxCrossEntropyLoss", {"a": _M["a"]}, [_LABELS], {"reduction": "sum"}, unread=1),
    "SoftmaxCrossEntropyLoss, each": Case("SoftmaxCrossEntropyLoss", {"a": _M["a"]}, [_LABELS], {"reduction": "none"}, unread=1),
    "SoftmaxCrossEntropyLoss, ignored class": Case("SoftmaxCrossEntropyLoss", {"a": _M["a"]}, [_LABELS], {"ignore_index": 3}, unread=1),
    "SoftmaxCrossEntropyLoss, weights": Case("SoftmaxCrossEntropyLoss", {"a": _M["a"]}, [_LABELS, np.float32([1, 2, 3, 4])], unread=1),
    "SoftmaxCrossEntropyLoss, of maps": Case("SoftmaxCrossEntropyLoss", {"a": _M["stack"]}, [_LABEL_MAPS], unread=1),
    "ReduceL2": Case("ReduceL2", {"a": _M["stack"]}, [_ints(1)]),
    "ReduceLogSumExp": Case("ReduceLogSumExp", {"a": _M["stack"]}, [_ints(1)]),
    "Tile": Case("Tile", {"a": _M["a"]}, [_ints(2, 1)]),
    "GatherND": Case("GatherND", {"a": _M["a"]}, [np.array([[0, 1], [2, 2]], np.int64)]),
    "GatherElements": Case("GatherElements", {"a": _M["a"]}, [np.array([[0, 1], [2, 2]], np.int64)], {"axis": 1}),
    "ScatterND": Case("ScatterND", {"a": _M["a"]}, [np.array([[0], [2]], np.int64), np.ones((2, 4), np.float32)]),
    "Trilu": Case("Trilu", {"a": _M["a"]}),
    "Pad": Case("Pad", {"a": _M["a"]}, [_ints(1, 0, 2, 1)]),
}
