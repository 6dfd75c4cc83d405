"""Forms of com.microsoft's operators that few models have, with onnxruntime's answers."""

import numpy as np
import pytest

from contrib import compare, feeds_of, model, run

RNG = np.random.default_rng(0)


def floats(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def test_without_segment_ids_all_are_of_the_first_segment(ort):
    inputs = {"ids": np.array([[1, 4, 2], [0, 3, 3]], np.int32), "segments": None, "words": floats(5, 6), "positions": floats(4, 6), "segment_rows": floats(2, 6)}
    compare(ort, "EmbedLayerNormalization", inputs | {"gamma": floats(6), "beta": floats(6)}, 2, {"epsilon": 1e-3})


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
    """Against the same numbers in float32: onnxruntime has no kernel for all of these."""
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
