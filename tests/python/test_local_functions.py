"""Tests model-local functions with attributes that are graphs. Such a body reads its caller's values."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import treadle
from onnx import TensorProto, helper

FEEDS = {"c": np.array(True), "n": np.array(3, np.int64), "a": np.array([1, 2], np.float32), "x": np.array([10, 20], np.float32)}
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]


def floats(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])


def scalar(name: str, dtype: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, [])


def with_reference(node: onnx.NodeProto, name: str, attribute: str) -> onnx.NodeProto:
    node.attribute.add(name=name, ref_attr_name=attribute, type=onnx.AttributeProto.GRAPH)
    return node


def graph(nodes: list, output: str = "r", inputs: tuple = (), initializers: tuple = ()) -> onnx.GraphProto:
    return helper.make_graph(nodes, "body", list(inputs), [floats(output)], list(initializers))


def function(name: str, nodes: list, attributes: tuple = ("body",), inputs: tuple = ("c", "x")) -> onnx.FunctionProto:
    return helper.make_function("local", name, list(inputs), ["y"], nodes, OPSETS, list(attributes))


def model(nodes: list, functions: list) -> bytes:
    inputs = [scalar("c", TensorProto.BOOL), scalar("n", TensorProto.INT64), floats("a"), floats("x")]
    main = helper.make_graph(nodes, "main", inputs, [floats("out")])
    return helper.make_model(main, opset_imports=OPSETS, functions=functions, ir_version=9).SerializeToString()


def node(op: str, inputs: list, output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [output], **attributes)


def choice(output: str = "y") -> onnx.NodeProto:
    """Returns an If whose then_branch is an attribute of the function."""
    return with_reference(node("If", ["c"], output, else_branch=graph([node("Neg", ["x"], "e")], "e")), "then_branch", "body")


def call(op: str, inputs: list, output: str = "out", **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [output], domain="local", **attributes)


DOUBLE = node("Add", ["a", "a"], "t")
SQUARE = graph([node("Mul", ["t", "t"], "r")])


def result(content: bytes) -> list:
    return treadle.InferenceSession(content).run(None, FEEDS)[0].tolist()


def test_a_body_of_a_loop_reads_the_callers_value_as_in_onnxruntime() -> None:
    body = helper.make_graph(
        [node("Identity", ["ci"], "co"), node("Add", ["s", "t"], "so")], "body",
        [scalar("i", TensorProto.INT64), scalar("ci", TensorProto.BOOL), floats("s")], [scalar("co", TensorProto.BOOL), floats("so")], value_info=[floats("t")],
    )  # fmt: skip
    loop = with_reference(node("Loop", ["n", "c", "x"], "y"), "body", "body")
    content = model([DOUBLE, call("F", ["n", "c", "x"], body=body)], [function("F", [loop], inputs=("n", "c", "x"))])
    assert result(content) == [16, 32]
    assert onnxruntime.InferenceSession(content).run(None, FEEDS)[0].tolist() == [16, 32]


def test_a_body_in_an_if_reads_the_callers_value() -> None:
    assert result(model([DOUBLE, call("F", ["c", "x"], body=SQUARE)], [function("F", [choice()])])) == [4, 16]


def test_a_body_is_handed_on_into_a_body_of_a_body() -> None:
    inner = with_reference(call("F", ["c", "x"], "z"), "body", "outer")
    outer = function("G", [node("If", ["c"], "y", then_branch=graph([inner], "z"), else_branch=graph([node("Neg", ["x"], "e")], "e"))], ("outer",))
    content = model([DOUBLE, call("G", ["c", "x"], outer=SQUARE)], [function("F", [choice()]), outer])
    assert result(content) == [4, 16]


def test_a_body_is_used_twice_and_reads_two_values() -> None:
    both = function("F", [choice("u"), choice("v"), node("Sub", ["u", "v"], "w"), node("Add", ["w", "u"], "y")])
    body = graph([node("Mul", ["t", "a"], "p"), node("Add", ["p", "t"], "r")])
    assert result(model([DOUBLE, call("F", ["c", "x"], body=body)], [both])) == [4, 12]


def test_a_name_of_the_function_comes_first_as_in_onnxruntime() -> None:
    content = model([call("F", ["c", "a"], body=graph([node("Mul", ["x", "x"], "r")]))], [function("F", [choice()])])
    assert result(content) == [1, 4]
    assert onnxruntime.InferenceSession(content).run(None, FEEDS)[0].tolist() == [1, 4]


def test_an_attribute_within_a_body_is_that_of_the_function_that_gives_it() -> None:
    """G passes F a body that refers to alpha. It must mean G's attribute, though F has one too."""
    leaky = node("LeakyRelu", ["x"], "r")
    leaky.attribute.add(name="alpha", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT)
    inner = function("F", [choice()], ("body", "alpha"))
    outer = function("G", [node("Neg", ["x"], "m"), call("F", ["c", "m"], "y", body=graph([leaky]), alpha=0.25)], ("alpha",))
    assert result(model([call("G", ["c", "a"], alpha=0.5)], [inner, outer])) == [-0.5, -1]


def test_a_value_that_neither_has_is_an_error() -> None:
    with pytest.raises(treadle.Error, match='reads "t", which nothing makes'):
        result(model([call("F", ["c", "x"], body=SQUARE)], [function("F", [choice()])]))


def test_a_default_that_refers_to_itself_is_an_error() -> None:
    recursive = function("F", [choice()], ())
    recursive.attribute_proto.append(helper.make_attribute("body", graph([choice("r")])))
    with pytest.raises(treadle.Error, match="more than 64 deep"):
        result(model([call("F", ["c", "x"])], [recursive]))


def test_bodies_of_many_values_that_are_used_many_times_are_refused() -> None:
    initializers = tuple(helper.make_tensor(f"k{i}", TensorProto.FLOAT, [0], []) for i in range(3000))
    nodes = [choice(f"y{i}" if i else "y") for i in range(3000)]
    with pytest.raises(treadle.Error, match="local functions unfold into"):
        result(model([DOUBLE, call("F", ["c", "x"], body=graph([node("Mul", ["t", "t"], "r")], initializers=initializers))], [function("F", nodes)]))
