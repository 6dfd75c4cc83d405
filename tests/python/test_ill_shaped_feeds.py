"""Tests operands whose shapes are only known during the run and do not fit the operator. The error must name the node and be one of the
caller."""

import numpy as np
import pytest
from onnx import TensorProto, helper

import treadle

F = np.float32


def ints(*values, dtype=np.int64):
    return np.array(values, dtype)


X = np.arange(24, dtype=F).reshape(2, 3, 4)
PAIR, NONE, MATRIX = ints(1, 2), ints(), np.ones((2, 2), np.int64)

CASES = [
    ("Range", [ints(1, 2), ints(5), ints(1)], {}),
    ("Range", [np.array(0, F), np.zeros((1, 2), F), np.array(1, F)], {}),
    ("Range", [NONE, ints(5), ints(1)], {}),
    *((window, [size], {}) for window in ("HannWindow", "HammingWindow", "BlackmanWindow") for size in (PAIR, NONE, MATRIX)),
    ("MelWeightMatrix", [PAIR, ints(16), ints(8000), np.array(0, F), np.array(4000, F)], {}),
    ("MelWeightMatrix", [ints(8), ints(16), NONE, np.array(0, F), np.array(4000, F)], {}),
    ("MelWeightMatrix", [ints(8), ints(16), ints(8000), np.zeros(0, F), np.array(4000, F)], {}),
    ("GatherND", [X, np.array(1)], {}),
    ("GatherND", [X, np.zeros((2, 4), np.int64)], {}),
    ("GatherND", [np.array(1, F), np.zeros((2, 1), np.int64)], {}),
    ("CumSum", [X, NONE], {}),
    ("Trilu", [X, NONE], {}),
    ("TopK", [X, NONE], {}),
    ("TopK", [X, PAIR], {}),
    ("OneHot", [PAIR, NONE, np.array([0, 1], F)], {}),
    ("OneHot", [PAIR, PAIR, np.array([0, 1], F)], {}),
    ("DFT", [X[..., :2], NONE], {}),
    ("DFT", [X[..., :2], ints(3), NONE], {}),
    ("STFT", [X, NONE, np.ones(2, F)], {}),
    ("Reshape", [X, MATRIX], {}),
    ("Expand", [X, MATRIX], {}),
    ("Tile", [X, MATRIX], {}),
    ("Tile", [X, PAIR], {}),
    ("ConstantOfShape", [MATRIX], {}),
    ("Slice", [X, MATRIX, MATRIX], {}),
    ("Slice", [X, PAIR, ints(3)], {}),
    ("Pad", [X, PAIR], {}),
    ("Pad", [X, MATRIX], {}),
    ("Unsqueeze", [X, MATRIX], {}),
    ("Squeeze", [X, ints(1, 1)], {}),
    ("Split", [X, PAIR], {}),
    ("Split", [X, MATRIX], {}),
    ("Resize", [X, None, np.ones(2, F)], {}),
    ("Resize", [X, None, np.ones((3, 1), F)], {}),
    ("CenterCropPad", [X, PAIR], {}),
    ("Col2Im", [X, NONE, PAIR], {}),
    ("AffineGrid", [X, PAIR], {}),
    ("Concat", [X, X[0]], {"axis": 0}),
    ("MatMul", [X, X], {}),
    ("MatMul", [X, np.array(1, F)], {}),
    ("Dropout", [X, None, np.zeros(0, bool)], {}),
    ("GridSample", [np.array(1, F), np.array(1, F)], {}),
    ("Gemm", [X, X], {}),
    ("Conv", [X[0], X], {}),
    ("MaxPool", [X[0, 0]], {"kernel_shape": [2]}),
    ("MaxUnpool", [X, np.zeros((2, 3, 4), np.int64), MATRIX], {"kernel_shape": [2]}),
    ("DepthToSpace", [X], {"blocksize": 2}),
    ("Compress", [X, np.ones((2, 2), bool)], {"axis": 0}),
    ("Where", [np.ones((5,), bool), X, X], {}),
    ("ScatterND", [X, np.array(1), X], {}),
    ("ScatterElements", [X, MATRIX, X], {}),
    ("LayerNormalization", [X, np.ones(3, F)], {}),
]


@pytest.mark.parametrize("optimized", [True, False])
@pytest.mark.parametrize(("op", "operands", "attributes"), CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_operands_of_wrong_shapes_are_errors_that_name_the_node(op, operands, attributes, optimized):
    names = ["" if value is None else f"x{i}" for i, value in enumerate(operands)]
    feeds = {name: value for name, value in zip(names, operands) if name}
    inputs = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), None) for name, value in feeds.items()]
    y = helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)
    outputs = ["y", "other"] if op in ("TopK", "Split") else ["y"]
    graph = helper.make_graph([helper.make_node(op, names, outputs, name="the_node", **attributes)], "g", inputs, [y])
    graph.output[0].ClearField("type")
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = treadle.SessionOptions()
    if not optimized:
        options.graph_optimization_level = treadle.GraphOptimizationLevel.ORT_DISABLE_ALL
    with pytest.raises(treadle.Error, match="the_node") as caught:
        treadle.InferenceSession(made.SerializeToString(), options).run(None, feeds)
    assert caught.value.code in ("invalid_argument", "invalid_model", "not_implemented"), caught.value


B, S, HEADS, SIZE = 1, 2, 2, 4
GROUPED = {
    "query": np.ones((B, S, HEADS * SIZE), F), "key": np.ones((B, S, HEADS * SIZE), F), "value": np.ones((B, S, HEADS * SIZE), F),
    "past_key": np.zeros((B, HEADS, 0, SIZE), F), "past_value": np.zeros((B, HEADS, 0, SIZE), F),
    "seqlens_k": ints(S - 1, dtype=np.int32), "total_sequence_length": ints(S, dtype=np.int32),
}  # fmt: skip


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("how", ["flat", "axis", "empty", "twice"])
def test_grouped_attention_refuses_operands_of_wrong_shapes(name, how):
    value = GROUPED[name]
    wrong = {"flat": value.reshape(-1), "axis": value[..., None], "empty": value[:0], "twice": np.concatenate([value, value])}
    feeds = {**GROUPED, name: wrong[how]}
    if feeds[name].shape == GROUPED[name].shape or (feeds[name].size == 1 and name in ("seqlens_k", "total_sequence_length")):
        pytest.skip("that is one of its shapes")
    inputs = [helper.make_tensor_value_info(key, helper.np_dtype_to_tensor_dtype(value.dtype), None) for key, value in feeds.items()]
    outputs = [helper.make_tensor_value_info(key, TensorProto.FLOAT, None) for key in ("y", "present_key", "present_value")]
    made_of = [o.name for o in outputs]
    node = helper.make_node("GroupQueryAttention", list(GROUPED), made_of, "the_node", domain="com.microsoft", num_heads=HEADS, kv_num_heads=HEADS)
    graph = helper.make_graph([node], "g", inputs, outputs)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)], ir_version=10)
    with pytest.raises(treadle.Error, match="the_node") as caught:
        treadle.InferenceSession(made.SerializeToString()).run(None, feeds)
    assert caught.value.code in ("invalid_argument", "not_implemented"), caught.value
