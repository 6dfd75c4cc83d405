"""Compares rare forms of com.microsoft's operators with onnxruntime."""

import numpy as np
import onnx
import pytest
from onnx import helper

import treadle
from contrib import compare, feeds_of, model, run

RNG = np.random.default_rng(0)


def floats(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def test_without_segment_ids_all_are_of_the_first_segment(ort):
    inputs = {"ids": np.array([[1, 4, 2], [0, 3, 3]], np.int32), "segments": None, "words": floats(5, 6), "positions": floats(4, 6), "segment_rows": floats(2, 6)}
    compare(ort, "EmbedLayerNormalization", inputs | {"gamma": floats(6), "beta": floats(6)}, 2, {"epsilon": 1e-3})


def test_elements_of_a_mask_that_are_one_count(ort):
    inputs = {"ids": np.array([[1, 4, 2], [0, 3, 3]], np.int32), "segments": None, "words": floats(5, 6), "positions": floats(4, 6), "segment_rows": None}
    inputs |= {"gamma": floats(6), "beta": floats(6), "mask": np.array([[2, 1, 0], [1, 3, 1]], np.int32)}
    compare(ort, "EmbedLayerNormalization", inputs, 2)
    table, scale = lambda rows: RNG.integers(0, 255, (rows, 6)).astype(np.uint8), np.array(0.01, np.float32)  # noqa: E731
    coded = inputs | {"words": table(5), "positions": table(4), "gamma": table(1)[0], "beta": table(1)[0]}
    coded |= {f"scale{i}": None if i == 2 else scale for i in range(5)} | {f"zero{i}": None if i == 2 else np.array(100, np.uint8) for i in range(5)}
    compare(ort, "QEmbedLayerNormalization", coded, 2, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("y_scale", [None, 0.5])
@pytest.mark.parametrize("y_zero_point", [None, 3])
def test_the_zero_point_of_the_result_says_whether_a_product_is_quantised(ort, y_scale, y_zero_point):
    inputs = {
        "a": RNG.integers(0, 255, (3, 8)).astype(np.uint8),
        "a_scale": np.array(0.01, np.float32),
        "a_zero": np.array(7, np.uint8),
        "b": RNG.integers(0, 255, (8, 4)).astype(np.uint8),
        "b_scale": np.array(0.02, np.float32),
        "b_zero": np.array(100, np.uint8),
        "c": None,
        "y_scale": None if y_scale is None else np.array(y_scale, np.float32),
        "y_zero": None if y_zero_point is None else np.array(y_zero_point, np.uint8),
    }
    compare(ort, "QGemm", inputs, steps=1)


@pytest.mark.parametrize("operand", ["scales1", "bias1", "scales2"])
def test_scales_and_biases_of_experts_may_be_of_another_dtype(operand):
    """Compares with results for the same numbers in float32, because onnxruntime has no kernels for some of these dtypes."""
    inputs = {
        "x": floats(3, 16),
        "router": floats(3, 2),
        "w1": RNG.integers(0, 255, (2, 8, 8)).astype(np.uint8),
        "scales1": np.abs(floats(2, 8)),
        "bias1": floats(2, 8),
        "w2": RNG.integers(0, 255, (2, 16, 4)).astype(np.uint8),
        "scales2": np.abs(floats(2, 16)),
    }
    inputs[operand] = inputs[operand].astype(np.float16)
    wide = {name: value.astype(np.float32) if value.dtype == np.float16 else value for name, value in inputs.items()}
    attributes = {"k": 1, "activation_type": "silu"}
    actual, expected = (run(model("QMoE", each, 1, attributes), feeds_of(each, ()))[0] for each in (inputs, wide))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_a_skipped_rms_normalisation_has_onnxruntimes_epsilon(ort):
    inputs = {"x": 1e-3 * floats(2, 3, 4), "skip": 1e-3 * floats(2, 3, 4), "gamma": floats(4)}
    compare(ort, "SkipSimplifiedLayerNormalization", inputs)


@pytest.mark.parametrize("static", [True, False, None])
@pytest.mark.parametrize("shape", [(4, 1), (1, 4), (4,)])
def test_scales_and_biases_of_columns_may_have_further_axes(ort, shape, static):
    """Only the number of elements matters, for a bias in all cases, for a scale only if it is known to have two axes."""
    codes, zero = RNG.integers(0, 255, (8, 4)).astype(np.uint8), RNG.integers(90, 160, 4).astype(np.uint8)
    own = () if static is None or shape[1:] == (1,) else shape  # for several rows, onnxruntime refuses such a scale
    scale = (abs(floats(4)) / 50).astype(np.float32)
    inputs = {"a": floats(3, 8), "b": codes, "b_scale": scale.reshape(own or 4), "b_zero": zero, "bias": floats(*shape)}
    compare(ort, "DynamicQuantizeMatMul", inputs, static=static, ranks=static is None, rtol=1e-4, atol=1e-4)
    bytes_too = {"a": RNG.integers(0, 255, (3, 8)).astype(np.uint8), "b": codes, "a_scale": np.array(0.02, np.float32), "b_scale": inputs["b_scale"], "a_zero": np.array(7, np.uint8)}
    compare(ort, "MatMulIntegerToFloat", bytes_too | {"b_zero": inputs["b_zero"], "bias": inputs["bias"]}, static=static, ranks=static is None, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(), (1,), (2, 1), (1, 4), (4,)])
def test_a_gated_normalisation_goes_by_the_elements_of_its_scale(ort, shape):
    for static in (True, False):
        compare(ort, "GatedRMSNorm", {"x": floats(2, 3, 4), "scale": floats(*shape), "gate": floats(2, 3, 4)}, static=static)


STREAMS = [  # rows of: operator, shapes of its operands without the batch, and num_branches
    ("HyperConnectionPreMix", [(5, 7), (5,)], 0),
    ("HyperConnectionPreMix", [(5, 7), (5, 1)], 0),
    ("HyperConnectionPreMix", [(5, 7), (5, 7)], 0),
    ("HyperConnectionPreMix", [(14,), (2,)], 2),
    ("HyperConnectionPreMix", [(14,), (2, 1)], 2),
    ("HyperConnectionPostMix", [(5, 7), (7,), (5,), (5, 5)], 0),
    ("HyperConnectionPostMix", [(5, 7), (7,), (5, 1), None], 0),
    ("HyperConnectionPostMix", [(5, 7), (7,), (5, 7), (5, 5)], 0),
]


@pytest.mark.parametrize("batch", [(3,), (2, 3), (2, 3, 1)])
@pytest.mark.parametrize(("op_type", "shapes", "branches"), STREAMS)
def test_streams_of_no_declared_rank_have_that_of_the_other_operands(ort, op_type, shapes, branches, batch):
    """The other operands rule out ranks that do not fit to them."""
    inputs = {f"x{i}": None if shape is None else floats(*batch, *shape) for i, shape in enumerate(shapes)}
    attributes = {"num_branches": branches}
    compare(ort, op_type, inputs, attributes=attributes, ranks=len(batch) < 3)
    expected = run(model(op_type, inputs, 1, attributes), feeds_of(inputs, ()))[0]
    graph = onnx.load_from_string(model(op_type, inputs, 1, attributes))
    graph.graph.input[0].type.tensor_type.ClearField("shape")
    np.testing.assert_allclose(run(graph.SerializeToString(), feeds_of(inputs, ()))[0], expected, rtol=1e-6)


@pytest.mark.parametrize("op_type", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("clip", [0.0, -1.0, float("nan")])
def test_recurrent_layers_are_clipped_at_a_positive_number(op_type, clip):
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op_type]
    inputs = {"x": floats(2, 1, 3), "w": floats(1, 2 * gates, 3), "r": floats(1, 2 * gates, 2)}
    with pytest.raises(treadle.Error, match="clip is"):
        run(model(op_type, inputs, 1, {"hidden_size": 2, "clip": clip}, domain=""), inputs)


def test_a_word_is_as_long_as_it_has_characters(ort):
    """A word is as long as its number of nonzero characters, even if there are zeros between them."""
    ids = np.array([[3, 0, 0, 1, 0], [4, 2, 1, 5, 3], [7, 0, 0, 0, 0]], np.int32)
    for window in (1, 2, 3):
        inputs = {"ids": ids, "w": floats(3, 1, window, 4), "b": floats(3), "c": floats(8, 4)}
        compare(ort, "WordConvEmbedding", inputs, constants=("w", "b", "c"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("version", [1, 2, 4])
def test_of_labels_that_are_there_twice_one_counts(ort, version):
    """If keys are equal, the first one counts; if classes are equal (version 1), the last one. ONNX does not define this."""
    attributes = {"classes_strings": ["a", "b", "a"]} if version == 1 else {"keys_strings": ["a", "b", "a"], "values_int64s": [10, 11, 12]}
    node = helper.make_node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", **attributes)
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", 8, [3])], [helper.make_tensor_value_info("y", 7, [3])])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("ai.onnx.ml", version), helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    x = {"x": np.array(["a", "b", "c"], object)}
    assert run(made, x)[0].tolist() == ort.InferenceSession(made, providers=["CPUExecutionProvider"]).run(None, x)[0].tolist()


@pytest.mark.parametrize("constants", [(), ("B",), ("B_shape",)])
@pytest.mark.parametrize("with_zeros", [0, 1])
def test_codes_that_only_the_run_tells(ort, with_zeros, constants):
    for depth, columns in ((70, 3), (32, 1), (5, 4)):
        blocks = columns * -(-depth // 32)
        parts = [RNG.random((blocks, 1), np.float32).view(np.uint8), RNG.integers(0, 16, (blocks, with_zeros)), RNG.integers(0, 256, (blocks, 16))]
        inputs = {"A": floats(2, 3, depth), "B": np.concatenate(parts, 1).astype(np.uint8).ravel(), "B_shape": np.array([depth, columns])}
        made = model("MatMulFpQ4", inputs, 1, {"blk_quant_type": with_zeros}, ("B", "B_shape"))
        expected = ort.InferenceSession(made, providers=["CPUExecutionProvider"]).run(None, feeds_of(inputs, ("B", "B_shape")))[0]
        given = run(model("MatMulFpQ4", inputs, 1, {"blk_quant_type": with_zeros}, constants, None), feeds_of(inputs, constants))[0]
        np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(treadle.Error):
        run(model("MatMulFpQ4", inputs, 1, {"blk_quant_type": with_zeros}, (), None), inputs | {"B_shape": np.array([depth, columns + 1])})


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
def test_values_may_have_more_heads_than_queries_and_keys(ort, rule):
    for heads, key_heads, kv, size, width in ((2, 2, 4, 8, 5), (1, 1, 3, 4, 4), (2, 4, 4, 6, 3), (1, 2, 4, 4, 2), (3, 1, 3, 6, 2), (4, 2, 4, 4, 3), (4, 1, 2, 3, 5)):
        inputs = {"query": floats(2, 3, heads * size), "key": floats(2, 3, key_heads * size) / size, "value": floats(2, 3, kv * width), "past_state": floats(2, kv, size, width)}
        inputs["decay"] = -np.abs(floats(2, 3, kv)) if "gated" in rule else None
        inputs["beta"] = np.abs(floats(2, 3, kv)) / 2 if "delta" in rule else None
        compare(ort, "LinearAttention", inputs, 2, {"q_num_heads": heads, "kv_num_heads": kv, "update_rule": rule}, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("static", [True, None])
def test_a_product_of_vectors_is_a_scalar(ort, static):
    codes, other = (RNG.integers(90, 160, 8).astype(np.uint8) for _ in range(2))
    numbers = {"b_scale": np.array([0.03], np.float32), "b_zero": np.array([120], np.uint8), "bias": np.array([1.5], np.float32)}
    compare(ort, "DynamicQuantizeMatMul", {"a": floats(8), "b": codes} | numbers, static=static, rtol=1e-4, atol=1e-4)
    scales = {"a_scale": np.array([0.02], np.float32), "b_scale": numbers.pop("b_scale"), "a_zero": np.array([7], np.uint8)}
    compare(ort, "MatMulIntegerToFloat", {"a": other, "b": codes} | scales | numbers, static=static, rtol=1e-4, atol=1e-4)
