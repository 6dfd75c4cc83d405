"""Gradients of gradients (ai.onnx.preview.training.Gradient) in float64, compared with PyTorch's, for operators whose first gradient is one
kernel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import treadle

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
import torch.nn.functional as F  # noqa: E402
from onnx import parser  # noqa: E402

RNG = np.random.default_rng(7)
NAMES = {np.dtype(np.float64): "double", np.dtype(np.int64): "int64", np.dtype(bool): "bool"}


def declared(name: str, value: np.ndarray, symbolic: bool) -> str:
    shape = [f"{name}{i}" if symbolic else str(n) for i, n in enumerate(value.shape)]
    return f"{NAMES[value.dtype]}{'[' + ', '.join(shape) + ']' if shape else ''} {name}"


def derivatives(nodes: str, feeds: dict[str, np.ndarray], by: list[str], symbolic: bool = False) -> list[np.ndarray]:
    """Differentiates sum(tanh(h) r). Returns the gradients by `by`; and the gradients, by `by` and r, of the first ones' sum weighted with the feeds
    u_*."""
    names = ", ".join(f'"{name}"' for name in by)
    first = ", ".join(f"g_{name}" for name in by)
    parts = "\n".join(f"p_{name} = Mul(g_{name}, u_{name}) t_{name} = ReduceSum <keepdims = 0> (p_{name})" for name in by)
    text = f"""<ir_version: 10, opset_import: ["" : 23, "ai.onnx.preview.training" : 1]>
    agraph ({", ".join(declared(name, value, symbolic) for name, value in feeds.items())})
        => ({", ".join(f"double[?] g_{name}, double[?] s_{name}" for name in by)}, double[?] s_r) {{
      {nodes}
      t = Tanh(h)
      hr = Mul(t, r)
      y = ReduceSum <keepdims = 0> (hr)
      {first} = ai.onnx.preview.training.Gradient <xs = [{names}], y = "y"> ({", ".join(by)})
      {parts}
      total = Sum({", ".join(f"t_{name}" for name in by)})
      {", ".join(f"s_{name}" for name in by)}, s_r = ai.onnx.preview.training.Gradient <xs = [{names}, "r"], y = "total"> ({", ".join(by)}, r)
    }}"""
    model = parser.parse_model(text.replace("[?]", "[" + "]"))
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return treadle.InferenceSession(model.SerializeToString()).run([f"g_{n}" for n in by] + [f"s_{n}" for n in by] + ["s_r"], feeds)


def expected(function: Callable, feeds: dict[str, np.ndarray], by: list[str]) -> list[np.ndarray]:
    tensors = {name: torch.tensor(value, requires_grad=value.dtype == np.float64) for name, value in feeds.items()}
    y = (torch.tanh(function(tensors)) * tensors["r"]).sum()
    first = torch.autograd.grad(y, [tensors[n] for n in by], create_graph=True)
    total = sum((g * tensors[f"u_{n}"]).sum() for g, n in zip(first, by))
    second = torch.autograd.grad(total, [tensors[n] for n in by] + [tensors["r"]], allow_unused=True)
    return [g.detach().numpy() for g in first] + [np.zeros(tensors[n].shape) if s is None else s.numpy() for s, n in zip(second, [*by, "r"])]


def check(nodes: str, function: Callable, operands: dict[str, np.ndarray], by: list[str], symbolic: bool = False) -> None:
    with torch.no_grad():
        shape = function({name: torch.tensor(value) for name, value in operands.items()}).shape
    feeds = {**operands, "r": RNG.uniform(0.5, 1.5, tuple(shape)), **{f"u_{name}": RNG.normal(size=operands[name].shape) for name in by}}
    for ours, theirs in zip(derivatives(nodes, feeds, by, symbolic), expected(function, feeds, by), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-8)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape)


@pytest.mark.parametrize("axis", [-1, 1])
def test_softmax(axis: int) -> None:
    check(f"h = Softmax <axis = {axis}> (x)", lambda t: F.softmax(t["x"], axis), {"x": normal(2, 3, 4)}, ["x"])
    check(f"h = LogSoftmax <axis = {axis}> (x)", lambda t: F.log_softmax(t["x"], axis), {"x": normal(2, 3, 4)}, ["x"])


@pytest.mark.parametrize("axis", [-1, 1])
def test_layer_and_rms_normalization(axis: int) -> None:
    shape = (2, 3, 4)[axis:] if axis > 0 else (4,)
    operands = {"x": normal(2, 3, 4), "w": normal(*shape), "b": normal(*shape)}
    check(f"h = LayerNormalization <axis = {axis}, epsilon = 0.125> (x, w, b)", lambda t: F.layer_norm(t["x"], shape, t["w"], t["b"], 0.125), operands, ["x", "w", "b"])
    del operands["b"]
    check(f"h = RMSNormalization <axis = {axis}, epsilon = 0.125> (x, w)", lambda t: F.rms_norm(t["x"], shape, t["w"], 0.125), operands, ["x", "w"])


def test_normalizations_over_images() -> None:
    operands = {"x": normal(3, 4, 5, 2), "w": normal(4), "b": normal(4)}
    check("""four = Constant <value = int64[1] {4}> () m = ConstantOfShape <value = double[1] {1}> (four)
             h, m2, v2 = BatchNormalization <training_mode = 1, epsilon = 0.125> (x, w, b, m, m)""",
          lambda t: F.batch_norm(t["x"], None, None, t["w"], t["b"], True, eps=0.125), operands, ["x", "w", "b"])
    check("h = InstanceNormalization <epsilon = 0.125> (x, w, b)", lambda t: F.instance_norm(t["x"], weight=t["w"], bias=t["b"], eps=0.125), operands, ["x", "w", "b"])
    check("h = GroupNormalization <epsilon = 0.125, num_groups = 2> (x, w, b)", lambda t: F.group_norm(t["x"], 2, t["w"], t["b"], 0.125), operands, ["x", "w", "b"])


@pytest.mark.parametrize("attributes, options", [
    ("", {}),
    ("<strides = [2, 1], pads = [1, 0, 1, 0], dilations = [1, 2]>", {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}),
    ("<group = 2, pads = [1, 1, 1, 1]>", {"groups": 2, "padding": 1}),
])
def test_convolutions(attributes: str, options: dict) -> None:
    groups = options.get("groups", 1)
    check(f"h = Conv {attributes} (x, w, b)", lambda t: F.conv2d(t["x"], t["w"], t["b"], **options), {"x": normal(2, 4, 6, 7), "w": normal(6, 4 // groups, 3, 3), "b": normal(6)}, ["x", "w", "b"])
    check(f"h = ConvTranspose {attributes} (x, w, b)", lambda t: F.conv_transpose2d(t["x"], t["w"], t["b"], **options),
          {"x": normal(2, 4, 4, 5), "w": normal(4, 6 // groups, 3, 3), "b": normal(6)}, ["x", "w", "b"])


def test_pools() -> None:
    x = {"x": normal(2, 3, 7, 6)}
    check("h = MaxPool <kernel_shape = [3, 2], strides = [2, 2], pads = [1, 0, 1, 0]> (x)", lambda t: F.max_pool2d(F.pad(t["x"], (0, 0, 1, 1), value=-1e9), (3, 2), 2), x, ["x"])
    for includes in (0, 1):
        check(f"h = AveragePool <kernel_shape = [3, 3], strides = [2, 1], pads = [1, 1, 1, 1], count_include_pad = {includes}> (x)",
              lambda t, includes=includes: F.avg_pool2d(t["x"], 3, (2, 1), 1, count_include_pad=bool(includes)), x, ["x"])
    for p in (2, 3):
        check(f"h = LpPool <kernel_shape = [2, 3], strides = [1, 2], p = {p}> (x)", lambda t, p=p: (F.avg_pool2d(t["x"].abs() ** p, (2, 3), (1, 2)) * 6) ** (1 / p), x, ["x"])
    check("h = GlobalAveragePool(x)", lambda t: t["x"].mean((2, 3), keepdim=True), x, ["x"])


def test_indexing() -> None:
    x = {"x": normal(4, 5)}
    check("i = Constant <value = int64[3] {1, 3, 1}> () q = Mul(x, x) h = Gather <axis = 1> (q, i)", lambda t: (t["x"] ** 2)[:, [1, 3, 1]], x, ["x"])
    check("""a = Constant <value = int64[2] {3, 1}> () b = Constant <value = int64[2] {-9, 5}> () c = Constant <value = int64[2] {0, 1}> ()
             d = Constant <value = int64[2] {-2, 2}> () q = Mul(x, x) h = Slice(q, a, b, c, d)""", lambda t: (t["x"] ** 2)[[3, 1], 1:5:2], x, ["x"])


def test_broadcasts_between_symbols() -> None:
    check("q = Mul(x, w) h = Mul(q, w)", lambda t: t["x"] * t["w"] ** 2, {"x": normal(3, 1, 4), "w": normal(2, 1)}, ["x", "w"], symbolic=True)


def test_losses() -> None:
    operands = {"x": normal(5, 4), "w": np.abs(normal(4)), "l": np.array([0, 3, 1, 2, 2])}
    for reduction in ("mean", "sum", "none"):
        check(f'h = SoftmaxCrossEntropyLoss <reduction = "{reduction}", ignore_index = 2> (x, l, w)',
              lambda t, reduction=reduction: F.cross_entropy(t["x"], t["l"], t["w"].detach(), ignore_index=2, reduction=reduction), operands, ["x"])


def test_third_derivatives_of_softmax_and_normalization() -> None:
    text = """<ir_version: 10, opset_import: ["" : 23, "ai.onnx.preview.training" : 1]>
    agraph (double[2, 4] x, double[4] w) => (double[2, 4] c) {
      n = LayerNormalization <epsilon = 0.125> (x, w)
      s = Softmax(n)
      q = Mul(s, s)
      y = ReduceSum <keepdims = 0> (q)
      a = ai.onnx.preview.training.Gradient <xs = ["x"], y = "y"> (x)
      aa = Mul(a, a)
      y2 = ReduceSum <keepdims = 0> (aa)
      b = ai.onnx.preview.training.Gradient <xs = ["x"], y = "y2"> (x)
      bb = Mul(b, b)
      y3 = ReduceSum <keepdims = 0> (bb)
      c = ai.onnx.preview.training.Gradient <xs = ["x"], y = "y3"> (x)
    }"""
    x, w = normal(2, 4), normal(4)
    (ours,) = treadle.InferenceSession(parser.parse_model(text).SerializeToString()).run(None, {"x": x, "w": w})
    xt, wt = torch.tensor(x, requires_grad=True), torch.tensor(w)
    centred = xt - xt.mean(-1, keepdim=True)  # PyTorch's layer_norm has wrong third derivatives
    y = (F.softmax(centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + 0.125) * wt, -1) ** 2).sum()
    for _ in range(2):
        (g,) = torch.autograd.grad(y, xt, create_graph=True)
        y = (g**2).sum()
    (g,) = torch.autograd.grad(y, xt)
    np.testing.assert_allclose(ours, g.numpy(), rtol=1e-6, atol=1e-9)
