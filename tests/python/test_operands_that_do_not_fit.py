"""Operands declared with a rank only whose extents do not fit the operator: both Treadle and onnxruntime refuse them."""

import numpy as np
import pytest
from onnx import helper

import treadle
from contrib import feeds_of, model, run

X = np.arange(9, dtype=np.float32).reshape(3, 3)


@pytest.mark.parametrize("static", [True, False, None])
@pytest.mark.parametrize(
    ("op_type", "operand", "outputs"),
    [("Clip", np.zeros(2, np.float32), 1), ("Clip", np.zeros(0, np.float32), 1), ("Trilu", np.array([1, 2]), 1), ("CumSum", np.array([0, 1]), 1), ("TopK", np.array([1, 2]), 2)],
)
def test_a_scalar_has_one_element(ort, op_type, operand, outputs, static):
    inputs = {"x": X, "operand": operand}
    made = model(op_type, inputs, outputs, static=static, domain="")
    with pytest.raises(treadle.Error):
        run(made, inputs)
    with pytest.raises(Exception, match="RUNTIME_EXCEPTION|INVALID_ARGUMENT|FAIL"):
        ort.InferenceSession(made, providers=["CPUExecutionProvider"]).run(None, feeds_of(inputs, ()))


@pytest.mark.parametrize("axis", [1, 2, -2])
def test_a_scalar_has_one_axis_to_look_along(axis):
    scalar = {"x": np.array(3, np.float32)}
    with pytest.raises(treadle.Error, match="axis"):
        run(model("ArgMax", scalar, 1, {"axis": axis}, domain=""), scalar)
    assert run(model("ArgMax", scalar, 1, {"axis": -1}, domain=""), scalar)[0] == 0


@pytest.mark.parametrize("static", [True, False, None])
@pytest.mark.parametrize("channels_last", [0, 1])
def test_a_state_is_as_long_as_the_taps_reach(static, channels_last):
    inputs = {"x": np.ones((2, 3, 4), np.float32), "w": np.ones((4 if channels_last else 3, 1, 2), np.float32), "b": None}
    state = np.ones((2, 3, 4) if channels_last else (2, 3, 3), np.float32)
    with pytest.raises(treadle.Error):
        run(model("CausalConvWithState", inputs | {"state": state}, 2, {"channels_last": channels_last}, ("w",), static), feeds_of(inputs | {"state": state}, ("w",)))


@pytest.mark.parametrize("branch", ["nodes_truenodeids", "nodes_falsenodeids"])
def test_a_node_of_a_tree_is_not_its_own_child(branch):
    nodes = {"nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0, 0, 0], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_values": [0.5, 0.0, 0.0]}
    nodes |= {"nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0], "target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0], "target_weights": [1.0, 2.0]}
    node = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1, **(nodes | {branch: [0, 0, 0]}))
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", 1, [1, 1])], [helper.make_tensor_value_info("y", 1, None)])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("ai.onnx.ml", 3), helper.make_opsetid("", 21)], ir_version=10)
    with pytest.raises(treadle.Error, match="its own child"):
        run(made.SerializeToString(), {"x": np.ones((1, 1), np.float32)})


@pytest.mark.parametrize("static", [True, False, None])
def test_offsets_of_a_deformed_convolution_have_two_for_each_tap(static):
    """Another shape with the same number of elements is refused."""
    inputs = {"x": np.ones((1, 2, 3, 4), np.float32), "w": np.ones((1, 2, 1, 3), np.float32), "offset": np.ones((1, 18, 1, 2), np.float32)}
    with pytest.raises(treadle.Error, match="offset"):
        run(model("DeformConv", inputs, 1, static=static, domain=""), inputs)


@pytest.mark.parametrize("static", [True, False, None])
def test_boxes_have_three_axes(static):
    inputs = {"boxes": np.ones((1, 1, 4, 1), np.float32), "scores": np.ones((1, 3, 1), np.float32), "most": np.array(1)}
    with pytest.raises(treadle.Error, match="boxes"):
        run(model("NonMaxSuppression", inputs, 1, static=static, domain=""), inputs)


@pytest.mark.parametrize("static", [True, False, None])
def test_a_size_is_a_vector(ort, static):
    inputs = {"theta": np.ones((2, 2, 3), np.float32), "size": np.array([[2], [1], [1], [2]])}
    made = model("AffineGrid", inputs, 1, static=static, domain="")
    with pytest.raises(treadle.Error, match="size is of rank 2, not 1"):
        run(made, inputs)
    with pytest.raises(Exception, match="FAIL|INVALID_ARGUMENT"):
        ort.InferenceSession(made, providers=["CPUExecutionProvider"]).run(None, feeds_of(inputs, ()))


@pytest.mark.parametrize("static", [True, False, None])
@pytest.mark.parametrize("op_type", ["DequantizeLinear", "QuantizeLinear"])
def test_blocks_of_a_vector_have_a_scale_each(op_type, static):
    inputs = {"x": np.array([24, 30, -128], np.int8 if op_type == "DequantizeLinear" else np.float32), "scale": np.array([2, 0.5, 1.5], np.float32)}
    with pytest.raises(treadle.Error, match="3 scales for an axis of extent 3 in blocks of 3"):
        run(model(op_type, inputs, 1, {"block_size": 3, "axis": 0}, static=static, domain=""), inputs)
    with pytest.raises(treadle.Error, match="the scale is of rank 1, not 0 or the input's 2"):
        run(model(op_type, inputs | {"x": inputs["x"][None]}, 1, {"block_size": 1, "axis": 1}, static=static, domain=""), inputs | {"x": inputs["x"][None]})
    np.testing.assert_array_equal(run(model("DequantizeLinear", inputs | {"x": np.array([2, 4, 6], np.int8)}, 1, {"axis": 0}, static=static, domain=""), inputs | {"x": np.array([2, 4, 6], np.int8)})[0], [4, 2, 9])
