"""Small models made with onnx.helper, which ONNX Runtime can run too."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSETS = (("", 21), ("ai.onnx.ml", 3))


def tensor(name, shape, dtype=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def sequence(name, shape, dtype=TensorProto.FLOAT):
    return helper.make_value_info(name, helper.make_sequence_type_proto(helper.make_tensor_type_proto(dtype, shape)))


def optional(name, shape, dtype=TensorProto.FLOAT):
    return helper.make_value_info(name, helper.make_optional_type_proto(helper.make_tensor_type_proto(dtype, shape)))


def model(nodes, inputs, outputs, initializers=(), value_info=(), opset=OPSETS[0][1], **fields):
    graph = helper.make_graph(
        nodes, "small", inputs, outputs, list(initializers), doc_string="a small graph", value_info=list(value_info)
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), *(helper.make_opsetid(*other) for other in OPSETS[1:])], ir_version=10)
    for name, value in fields.pop("metadata", {}).items():
        made.metadata_props.append(onnx.StringStringEntryProto(key=name, value=value))
    for name, value in fields.items():
        setattr(made, name, value)
    return made.SerializeToString()


def node(op, inputs, outputs, domain="", **attributes):
    return helper.make_node(op, inputs, outputs, domain=domain, **attributes)


def affine():
    """Returns y = x * scale + shift, z = x + x. The initializer `shift` may be fed."""
    return model(
        [node("Mul", ["x", "scale"], ["scaled"]), node("Add", ["scaled", "shift"], ["y"]), node("Add", ["x", "x"], ["z"])],
        [tensor("x", ["N", 3]), tensor("shift", [3])],
        [tensor("y", ["N", 3]), tensor("z", ["N", 3])],
        [
            numpy_helper.from_array(np.float32([1, 2, 3]), "scale"),
            numpy_helper.from_array(np.float32([0.5, -1, 0]), "shift"),
        ],
        producer_name="tests",
        producer_version="7",
        domain="org.example",
        model_version=42,
        doc_string="a small model",
        metadata={"classes": "a,b", "é": "ü"},
    )


def convolution_classifier(stride=1, normalises=False, last="softmax"):
    """Returns a classifier of images [8, 28, 28]: conv (and bn), relu, a matrix product, and a Softmax named `last`."""
    random = np.random.default_rng(0)
    ones, zeros = np.ones(16, np.float32), np.zeros(16, np.float32)
    extent = 28 // stride
    weights = {
        "w": random.standard_normal((16, 8, 3, 3), dtype=np.float32),
        "m": random.standard_normal((16 * extent * extent, 10), dtype=np.float32),
    }
    nodes = [node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1], strides=[stride, stride])]
    if normalises:
        weights |= {"scale": 2 * ones, "bias": zeros, "mean": zeros, "variance": ones}
        nodes.append(node("BatchNormalization", ["c", "scale", "bias", "mean", "variance"], ["n"], name="bn"))
    nodes += [
        node("Relu", [nodes[-1].output[0]], ["r"], name="relu"),
        node("Flatten", ["r"], ["f"], name="flatten"),
        node("MatMul", ["f", "m"], ["p"], name="product"),
        node("Softmax", ["p"], ["y"], name=last),
    ]
    initializers = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    return model(nodes, [tensor("x", ["batch", 8, 28, 28])], [tensor("y", ["batch", 10])], initializers)


def identity(dtype, shape=("N",)):
    return model([node("Identity", ["x"], ["y"])], [tensor("x", list(shape), dtype)], [tensor("y", list(shape), dtype)])


def endless_loop():
    """Returns a model that counts to 2^62, so a run ends only if it is stopped."""
    body = helper.make_graph(
        [node("Add", ["count", "one"], ["next"]), node("Identity", ["go"], ["go_on"])],
        "body",
        [tensor("i", [], TensorProto.INT64), tensor("go", [], TensorProto.BOOL), tensor("count", [], TensorProto.INT64)],
        [tensor("go_on", [], TensorProto.BOOL), tensor("next", [], TensorProto.INT64)],
    )
    return model(
        [node("Loop", ["trips", "", "start"], ["total"], body=body)],
        [tensor("start", [], TensorProto.INT64)],
        [tensor("total", [], TensorProto.INT64)],
        [
            helper.make_tensor("trips", TensorProto.INT64, [], [2**62]),
            helper.make_tensor("one", TensorProto.INT64, [], [1]),
        ],
    )
