"""Tests nodes that ONNX's text forbids or leaves undefined and that onnxruntime refuses: Treadle refuses them too, whether or not shapes
are declared."""

import numpy as np
import onnx
import pytest
from onnx import helper

import treadle
from contrib import model, run

X = np.arange(12, dtype=np.float32).reshape(3, 4)
TERMS = {"max_gram_length": 1, "min_gram_length": 1, "max_skip_count": 0, "mode": "TF", "ngram_counts": [0], "ngram_indexes": [0, 1]}


def _attention(lengths) -> dict[str, np.ndarray]:
    heads = np.ones((1, 2, 3, 4), np.float32)
    return {"Q": heads, "K": heads, "V": heads, "": None, " ": None, "  ": None, "lengths": np.array(lengths)}


CASES = {
    "axes of Slice, one twice": ("Slice", 13, {"x": X, "starts": np.array([0, 1]), "ends": np.array([2, 3]), "axes": np.array([1, -1])}, 1, {}, "twice|-1"),
    "axes of Slice 1, one twice": ("Slice", 1, {"x": X}, 1, {"starts": [0, 1], "ends": [2, 3], "axes": [1, 1]}, "axes names axis 1 twice"),
    "two constants for Pad": ("Pad", 18, {"x": X, "pads": np.array([1, 0, 0, 1]), "constant": np.array([1, 2], np.float32)}, 1, {}, "constant_value"),
    "unequal parts of Split 2": ("Split", 2, {"x": X}, 3, {"axis": 1}, "4 elements|leave 1 of 4|= 4 differ"),
    "unequal parts of Split 13": ("Split", 13, {"x": X}, 2, {"axis": 0}, "3 elements|leave 1 of 3|= 3 differ"),
    "parts of Split that are told twice": ("Split", 18, {"x": X, "split": np.array([1, 2])}, 2, {"num_outputs": 2}, "both the input split and the attribute num_outputs"),
    "a Resize by scales and sizes": ("Resize", 13, {"x": X, "": None, "scales": np.ones(2, np.float32), "sizes": np.array([3, 4])}, 1, {}, "both scales and sizes"),
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


@pytest.mark.parametrize(
    "op, inputs, attributes, words",
    [
        ("Constant", [], {"value_int": 1, "value_float": 2.0}, "2 attributes hold a value"),
        ("Imputer", [X], {"imputed_value_floats": [1.0], "imputed_value_int64s": [1]}, "just one of imputed_value_floats"),
        ("TfIdfVectorizer", [np.array([1, 2])], {**TERMS, "pool_int64s": [1, 2], "pool_strings": ["a", "b"]}, "just one of pool_int64s"),
        ("TfIdfVectorizer", [np.array([1, 2])], TERMS, "just one of pool_int64s"),
    ],
)
def test_just_one_attribute_tells_the_values(op, inputs, attributes, words):
    """If a node has several such attributes, onnxruntime takes the last one of a Constant, and the strings of a TfIdfVectorizer."""
    domain = "ai.onnx.ml" if op == "Imputer" else ""
    node = helper.make_node(op, ["x"][: len(inputs)], ["y"], domain=domain, **attributes)
    fed = [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for x in inputs]
    graph = helper.make_graph([node], "one_node", fed, [helper.make_value_info("y", onnx.TypeProto())])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)], ir_version=10)
    with pytest.raises(treadle.Error, match=words):
        run(made.SerializeToString(), dict(zip("x", inputs, strict=False)))


@pytest.mark.parametrize("static", [True, False, None], ids=["extents", "symbols", "nothing"])
def test_split_is_told_its_parts(static):
    """onnxruntime refuses this if extents are declared, and otherwise splits into equal parts."""
    with pytest.raises(treadle.Error, match="neither the input split nor the attribute num_outputs"):
        run(model("Split", {"x": X}, 2, {"axis": 1}, (), static, domain="", opset=18), {"x": X})


@pytest.mark.parametrize("static", [True, False, None], ids=["extents", "symbols", "nothing"])
def test_pad_names_each_axis_once(static):
    """ONNX says that naming an axis twice is undefined."""
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
