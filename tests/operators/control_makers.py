"""Draws nodes with operands and bodies for If, Loop, Scan and SequenceMap, for the operators on sequences, and for operators that draw random
numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from draft import Draft
from elementwise_makers import onnx_kinds

_KINDS = onnx_kinds()
_STEPS = [("Add", 2), ("Sub", 2), ("Mul", 2), ("Neg", 1), ("Abs", 1), ("Identity", 1)]
_BODY_DTYPES = (np.float32, np.float64, np.int64, np.int32)


class Body:
    """Builds the graph of a body. A name that begins with @ means a value of the graph around the body: a number means the operand of the
    node with this number, and c0, c1 … mean captured values."""

    def __init__(self, d: Draft, name: str) -> None:
        self.d, self.name = d, name
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def op(self, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        output = f"{self.name}_v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def constant(self, value: np.ndarray) -> str:
        self.constants.append(onnx.numpy_helper.from_array(value, f"{self.name}_c{len(self.constants)}"))
        return str(self.constants[-1].name)

    def changed(self, value: str, dtype: Any, others: Sequence[str] = ()) -> str:
        """Appends up to three pointwise nodes to the value, which use constants of one element or other values of its shape, and returns the
        result."""
        broadcasts = self.d.opset >= 7
        for _ in range(self.d.number(0, 3)):
            op, arity = self.d.pick(_STEPS)
            if arity == 1:
                value = self.op(op, [value])
            elif others and (self.d.flip(0.3) or not broadcasts):
                value = self.op(op, [value, self.d.pick(others)])
            elif broadcasts:
                value = self.op(op, [value, self.constant(np.array(self.d.number(-2, 2), dtype))])
        return value

    def graph(self, inputs: Sequence[tuple[str, Any, Sequence[Any]]], outputs: Sequence[tuple[str, Any, Sequence[Any] | None]]) -> onnx.GraphProto:
        """Makes the body. Each output comes from an Identity of its own, because in old opsets an output of a body must not be one of its
        inputs."""
        given = []
        for number, (value, dtype, shape) in enumerate(outputs):
            name = f"{self.name}_y{number}"
            self.nodes.append(helper.make_node("Identity", [value], [name]))
            given.append(helper.make_tensor_value_info(name, _KINDS[np.dtype(dtype)], shape))
        taken = [helper.make_tensor_value_info(name, _KINDS[np.dtype(dtype)], shape) for name, dtype, shape in inputs]
        return helper.make_graph(self.nodes, self.name, taken, given, self.constants)


def body_dtype(d: Draft) -> Any:
    return np.dtype(d.pick(_BODY_DTYPES))


def if_(d: Draft) -> None:
    dtype, shape = body_dtype(d), d.shape(0, 3)
    count, captured = d.number(1, 2), [d.array(dtype, shape, edges=False) for _ in range(d.number(1, 2))]
    d.add(np.array(d.flip()) if d.since > 1 or d.flip() else np.array([d.flip()]))
    d.captured += captured
    names = [f"@c{i}" for i in range(len(captured))]
    for branch in ("then_branch", "else_branch"):
        body = Body(d, branch)
        outputs = [(body.changed(d.pick(names), dtype, names), dtype, list(shape)) for _ in range(count)]
        d.attributes[branch] = body.graph([], outputs)
    d.num_outputs = count


def loop(d: Draft) -> None:
    dtype, shape = body_dtype(d), d.shape(0, 2)
    carried, scans, trips = d.number(1, 2), d.number(0, 2), d.number(0, 4)
    stops = d.flip(0.3)
    d.add(np.array(trips, np.int64) if not stops or d.flip() else None)
    d.add(np.array(d.flip(0.8)) if stops or d.flip() else None)
    for _ in range(carried):
        d.add(d.array(dtype, shape, edges=False))
    d.captured.append(d.array(dtype, shape, edges=False))
    body = Body(d, "body")
    states = [f"body_s{i}" for i in range(carried)]
    condition = "body_condition"
    if stops:
        last = body.constant(np.array(d.number(0, 3), np.int64))
        condition = body.op("Less", ["body_i", last]) if d.opset >= 9 else condition
        d.reject_if(d.opset < 9)
    others = [*states, "@c0"]
    outputs = [(condition, np.bool_, [])]
    outputs += [(body.changed(state, dtype, others), dtype, list(shape)) for state in states]
    outputs += [(body.changed(d.pick(states), dtype, others), dtype, list(shape)) for _ in range(scans)]
    inputs = [("body_i", np.int64, []), ("body_condition", np.bool_, []), *((state, dtype, list(shape)) for state in states)]
    d.attributes["body"] = body.graph(inputs, outputs)
    d.num_outputs = carried + scans


def scan(d: Draft) -> None:
    d.reject_if(d.since < 9)  # Scan of opset 8 has a batch axis and sequence lengths
    dtype, row = body_dtype(d), d.shape(0, 2)
    length, carried, scanned, stacked = d.number(1, 4), d.number(0, 2), d.number(1, 2), d.number(0, 2)
    d.reject_if(carried + stacked == 0)
    for _ in range(carried):
        d.add(d.array(dtype, row, edges=False))
    axes, out_axes = [], []
    for _ in range(scanned):
        axis = d.axis(len(row) + 1, negative=d.since >= 11)
        whole = list(row)
        whole.insert(axis % (len(row) + 1), length)
        axes.append(axis)
        d.add(d.array(dtype, whole, edges=False))
    out_axes = [d.axis(len(row) + 1, negative=d.since >= 11) for _ in range(stacked)]
    body = Body(d, "body")
    states, rows = [f"body_s{i}" for i in range(carried)], [f"body_r{i}" for i in range(scanned)]
    others = [*states, *rows]
    outputs = [(body.changed(state, dtype, others), dtype, list(row)) for state in states]
    outputs += [(body.changed(d.pick(others), dtype, others), dtype, list(row)) for _ in range(stacked)]
    d.attributes["body"] = body.graph([(name, dtype, list(row)) for name in others], outputs)
    d.attributes["num_scan_inputs"] = scanned
    if d.flip() or any(axes):
        d.attributes["scan_input_axes"] = axes
    if stacked and (d.flip() or any(out_axes)):
        d.attributes["scan_output_axes"] = out_axes
    if d.flip(0.4):
        d.attributes["scan_input_directions"] = [d.below(2) for _ in range(scanned)]
    if stacked and d.flip(0.4):
        d.attributes["scan_output_directions"] = [d.below(2) for _ in range(stacked)]
    d.num_outputs = carried + stacked


def sequence(d: Draft, dtype: Any, low: int = 1) -> list[np.ndarray]:
    """Returns a sequence's elements: tensors of one rank, most often of one shape."""
    shape = d.shape(0, 3)
    found = []
    for _ in range(d.number(low, 4)):
        own = tuple(d.extent() for _ in shape) if d.flip(0.2) else shape
        found.append(d.array(dtype, own if np.prod(own) < 4000 else shape))
    return found


def sequence_dtype(d: Draft) -> Any:
    return np.dtype(d.pick([np.float32, np.float32, np.int64, np.float64, np.int32, np.bool_, np.uint8, np.object_]))


def position(d: Draft, count: int) -> np.ndarray:
    d.reject_if(count == 0)
    return np.array(d.number(0, count - 1) - (count if d.flip(0.4) else 0), d.pick([np.int64, np.int32]))


def sequence_at(d: Draft) -> None:
    elements = sequence(d, sequence_dtype(d))
    d.add_sequence(elements)
    d.add(position(d, len(elements)))


def sequence_erase(d: Draft) -> None:
    elements = sequence(d, sequence_dtype(d))
    d.add_sequence(elements)
    d.add(position(d, len(elements)) if d.flip(0.8) else None)


def sequence_insert(d: Draft) -> None:
    dtype = sequence_dtype(d)
    elements = sequence(d, dtype)
    d.add_sequence(elements)
    d.add(d.array(dtype, d.shape(elements[0].ndim, elements[0].ndim)))
    d.add(position(d, len(elements)) if d.flip(0.8) else None)


def sequence_length(d: Draft) -> None:
    d.add_sequence(sequence(d, sequence_dtype(d)))


def sequence_construct(d: Draft) -> None:
    dtype = sequence_dtype(d)
    for element in sequence(d, dtype):
        d.add(element)


def concat_from_sequence(d: Draft) -> None:
    dtype, stacks = sequence_dtype(d), d.flip(0.3)
    shape = d.shape(0 if stacks else 1, 3)
    axis = d.axis(len(shape) + (1 if stacks else 0))
    elements = []
    for _ in range(d.number(1, 4)):
        own = list(shape)
        if not stacks:
            own[axis] = d.pick([1, 2, 3])
        elements.append(d.array(dtype, own))
    d.add_sequence(elements)
    d.attributes["axis"] = axis
    if stacks or d.flip(0.3):
        d.attributes["new_axis"] = int(stacks)


def split_to_sequence(d: Draft) -> None:
    dtype = d.dtype(0)
    shape = list(d.shape(1, 3))
    axis = d.axis(len(shape))
    extent = shape[axis] = d.pick([4, 6, 1, 5, 3])
    d.add(d.array(dtype, shape))
    kind, index = d.below(3), d.pick([np.int64, np.int32])
    if kind == 1:
        d.add(np.array(d.number(1, extent + 1), index))
    elif kind == 2:
        first = d.number(0, extent)
        d.add(np.array([first, extent - first], index))
    d.attributes["axis"] = axis
    d.maybe("keepdims", lambda: d.below(2))


def sequence_map(d: Draft) -> None:
    dtype = body_dtype(d)
    shape = d.shape(0, 2)
    elements = [d.array(dtype, shape, edges=False) for _ in range(d.number(1, 3))]
    d.add_sequence(elements)
    names = ["body_x0"]
    if d.flip():
        names.append("body_x1")
        if d.flip():
            d.add(d.array(dtype, shape, edges=False))
        else:
            d.add_sequence([d.array(dtype, shape, edges=False) for _ in elements])
    body = Body(d, "body")
    count = d.number(1, 2)
    outputs = [(body.changed(d.pick(names), dtype, names), dtype, list(shape)) for _ in range(count)]
    d.attributes["body"] = body.graph([(name, dtype, list(shape)) for name in names], outputs)
    d.num_outputs = count


# A case draws at least this many random numbers, so that their distribution can be compared.
_MANY = 4000


def random_shape(d: Draft) -> list[int]:
    columns = d.pick([1, 2, 5])
    return [d.pick([1, 2]), -(-_MANY // columns), columns]


def random_attributes(d: Draft) -> None:
    d.is_random = True
    for name, low, high in (("mean", -2, 2), ("scale", 0.5, 3), ("low", -2, 0), ("high", 0.5, 3)):
        d.maybe(name, lambda low=low, high=high: d.fraction(low, high))
    d.maybe("seed", lambda: float(d.below(100)), 0.3)
    d.maybe("dtype", lambda: int(d.pick([onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE])), 0.4)


def random_of_shape(d: Draft) -> None:
    random_attributes(d)
    d.attributes["shape"] = random_shape(d)


def random_like(d: Draft) -> None:
    random_attributes(d)
    d.add(np.zeros(random_shape(d), d.pick([np.float32, np.float64])))


def bernoulli(d: Draft) -> None:
    d.is_random = True
    d.maybe("seed", lambda: float(d.below(100)), 0.3)
    d.maybe("dtype", lambda: int(d.pick([onnx.TensorProto.FLOAT, onnx.TensorProto.INT32, onnx.TensorProto.BOOL])), 0.4)
    d.add(np.full(random_shape(d), d.fraction(0, 1), d.pick([np.float32, np.float64])))


def multinomial(d: Draft) -> None:
    d.is_random = True
    classes = d.number(1, 6)
    row = d.array(np.float32, [1, classes], -3, 3, edges=False)
    d.add(np.repeat(row, d.pick([1, 2]), 0))
    d.attributes["sample_size"] = _MANY
    d.maybe("seed", lambda: float(d.below(100)), 0.3)
    d.maybe("dtype", lambda: int(d.pick([onnx.TensorProto.INT32, onnx.TensorProto.INT64])), 0.4)


MAKERS = {
    "If": if_, "Loop": loop, "Scan": scan, "SequenceMap": sequence_map, "SequenceAt": sequence_at, "SequenceErase": sequence_erase,
    "SequenceInsert": sequence_insert, "SequenceLength": sequence_length, "SequenceConstruct": sequence_construct,
    "ConcatFromSequence": concat_from_sequence, "SplitToSequence": split_to_sequence, "RandomNormal": random_of_shape,
    "RandomUniform": random_of_shape, "RandomNormalLike": random_like, "RandomUniformLike": random_like, "Bernoulli": bernoulli,
    "Multinomial": multinomial,
}  # fmt: skip
