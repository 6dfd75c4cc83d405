"""Nodes that ONNX's text forbids, or leaves undefined, and onnxruntime refuses: they are refused here, whether the model declares their shapes or not."""

import numpy as np
import pytest

import treadle
from contrib import model, run

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def _attention(lengths) -> dict[str, np.ndarray]:
    heads = np.ones((1, 2, 3, 4), np.float32)
    return {"Q": heads, "K": heads, "V": heads, "": None, " ": None, "  ": None, "lengths": np.array(lengths)}


CASES = {
    "axes of Slice, one twice": ("Slice", 13, {"x": X, "starts": np.array([0, 1]), "ends": np.array([2, 3]), "axes": np.array([1, -1])}, 1, {}, "twice|-1"),
    "axes of Slice 1, one twice": ("Slice", 1, {"x": X}, 1, {"starts": [0, 1], "ends": [2, 3], "axes": [1, 1]}, "axes names axis 1 twice"),
    "two constants for Pad": ("Pad", 18, {"x": X, "pads": np.array([1, 0, 0, 1]), "constant": np.array([1, 2], np.float32)}, 1, {}, "constant_value"),
    "unequal parts of Split 2": ("Split", 2, {"x": X}, 3, {"axis": 1}, "4 elements|leave 1 of 4|= 4 differ"),
    "unequal parts of Split 13": ("Split", 13, {"x": X}, 2, {"axis": 0}, "3 elements|leave 1 of 3|= 3 differ"),
    "an operand of Einsum with too few axes": ("Einsum", 12, {"x": X[0], "y": X.T}, 1, {"equation": "ij,jk->ik"}, "rank 1 for a term of 2 labels"),
    "an operand of Einsum with too many axes": ("Einsum", 12, {"x": X[None], "y": X.T}, 1, {"equation": "ij,jk->ik"}, "rank 3 for a term of 2 labels"),
    "one operand of Einsum with too few axes": ("Einsum", 12, {"x": X[0]}, 1, {"equation": "ij->ij"}, "rank 1 for a term of 2 labels"),
    "ellipses of Einsum that stand for other axes": ("Einsum", 12, {"x": X, "y": X[0]}, 1, {"equation": "...,...->..."}, "ellipsis stands for 2 axes and for 1"),
    "a diagonal of Einsum that is none": ("Einsum", 12, {"x": X[:, :1]}, 1, {"equation": "ii->i"}, "3 and 1|in one operand"),
    "a scalar of lengths for Attention": ("Attention", 24, _attention(2), 1, {}, "nonpad_kv_seqlen|rank 0"),
}  # fmt: skip


@pytest.mark.parametrize("static", [True, False, None], ids=["extents", "symbols", "nothing"])
@pytest.mark.parametrize("case", CASES)
def test_it_is_refused(ort, case, static):
    op, opset, inputs, outputs, attributes, words = CASES[case]
    made = model(op, inputs, outputs, attributes, (), static, domain="", opset=opset)
    feeds = {name: value for name, value in inputs.items() if value is not None}
    with pytest.raises(Exception):
        ort.InferenceSession(made, providers=["CPUExecutionProvider"]).run(None, feeds)
    with pytest.raises(treadle.Error, match=words):
        run(made, feeds)


@pytest.mark.parametrize("static", [True, False, None], ids=["extents", "symbols", "nothing"])
def test_pad_names_each_axis_once(static):
    """ONNX says that more is undefined."""
    inputs = {"x": X, "pads": np.array([1, 0, 0, 1]), "": None, "axes": np.array([0, 0])}
    with pytest.raises(treadle.Error, match="axes names axis 0 twice"):
        run(model("Pad", inputs, 1, {}, (), static, domain="", opset=18), {name: value for name, value in inputs.items() if value is not None})


@pytest.mark.parametrize("opset", [2, 11, 13])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_equal_parts_need_no_declared_extent(opset, axis):
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    found = run(model("Split", {"x": x}, 2, {"axis": axis}, (), None, domain="", opset=opset), {"x": x})
    for part, expected in zip(found, np.split(x, 2, axis), strict=True):
        np.testing.assert_array_equal(part, expected)


@pytest.mark.parametrize("equation", ["ij,jk->ik", "ij->ji", "ij->ij", "ij->", "ij,jk,kl->il", "ii->i"])
def test_products_need_no_declared_rank(equation):
    rng = np.random.default_rng(1)
    inputs = {name: rng.standard_normal((3, 3)).astype(np.float32) for name, _ in zip("xyz", equation.split("->")[0].split(","))}
    found = run(model("Einsum", inputs, 1, {"equation": equation}, (), None, domain="", opset=12), inputs)[0]
    np.testing.assert_allclose(found, np.einsum(equation, *inputs.values()), rtol=1e-5, atol=1e-6)
