"""Converts a model to float64. Its results are the truth for float32 errors."""

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, numpy_helper


def _tensor(tensor):
    if tensor.data_type == TensorProto.FLOAT:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))


def _type(type_proto):
    if type_proto.HasField("tensor_type") and type_proto.tensor_type.elem_type == TensorProto.FLOAT:
        type_proto.tensor_type.elem_type = TensorProto.DOUBLE


def _graph(graph):
    for tensor in graph.initializer:
        _tensor(tensor)  # also converts roi and scales of Resize, for which the reference implementation accepts both dtypes
    for value in [*graph.input, *graph.output, *graph.value_info]:
        _type(value.type)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                _tensor(attribute.t)
            elif attribute.type == AttributeProto.GRAPH:
                _graph(attribute.g)
            elif node.op_type in ("Cast", "RandomUniform", "EyeLike") and attribute.name in ("to", "dtype"):
                attribute.i = TensorProto.DOUBLE if attribute.i == TensorProto.FLOAT else attribute.i
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value_float":
                    attribute.CopyFrom(onnx.helper.make_attribute("value", numpy_helper.from_array(np.float64(attribute.f))))
                elif attribute.name == "value_floats":
                    attribute.CopyFrom(onnx.helper.make_attribute("value", numpy_helper.from_array(np.float64(attribute.floats))))


def to_double(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model with float64 in place of float32 everywhere."""
    _graph(model.graph)
    return model
