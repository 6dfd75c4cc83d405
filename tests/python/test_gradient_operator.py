"""Compares the operator ai.onnx.preview.training.Gradient with PyTorch: first and second derivatives."""

from __future__ import annotations

import numpy as np
import pytest
import treadle

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

DOMAIN = "ai.onnx.preview.training"


def gradient(inputs, outputs, *, xs, y, zs=()):
    attributes = {"xs": list(xs), "y": y, **({"zs": list(zs)} if zs else {})}
    return helper.make_node("Gradient", list(inputs), list(outputs), domain=DOMAIN, **attributes)


def run(nodes, feeds, outputs, initializers=(), **options):
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape) for name, value in feeds.items()],
                              [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in outputs],
                              [numpy_helper.from_array(value, name) for name, value in initializers])
    for output in graph.output:
        output.type.tensor_type.elem_type = TensorProto.FLOAT
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)], ir_version=9)
    session = treadle.InferenceSession(model.SerializeToString(), **options)
    return session.run(list(outputs), feeds)


RNG = np.random.default_rng(0)
A, B, W = RNG.normal(size=(3, 4)).astype(np.float32), RNG.normal(size=(3, 4)).astype(np.float32), RNG.normal(size=(4, 2)).astype(np.float32)


def tensors(*arrays):
    return [torch.tensor(array, requires_grad=True) for array in arrays]


def test_gradients_of_a_network_are_pytorchs() -> None:
    nodes = [helper.make_node("MatMul", ["a", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["t"]), helper.make_node("ReduceSum", ["t"], ["y"], keepdims=0),
             gradient(["a", "w"], ["da", "dw"], xs=["a", "w"], y="y")]
    a, w = tensors(A, W)
    expected = torch.autograd.grad(torch.tanh(a @ w).sum(), [a, w])
    for ours, theirs in zip(run(nodes, {"a": A, "w": W}, ["da", "dw"]), expected):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5, atol=1e-6)


def test_it_is_computed_at_the_values_that_it_is_given() -> None:
    # Differentiates y = a * z at a = b and z = twice. Nodes before z are not part of the differentiated function.
    nodes = [helper.make_node("Exp", ["a"], ["z"]), helper.make_node("Mul", ["a", "z"], ["y"]), helper.make_node("Add", ["z", "z"], ["twice"]),
             gradient(["b", "twice"], ["da"], xs=["a"], zs=["z"], y="y")]
    np.testing.assert_allclose(run(nodes, {"a": A, "b": B}, ["da"])[0], 2 * np.exp(A), rtol=1e-5)


def test_what_y_does_not_depend_on_has_zeros() -> None:
    nodes = [helper.make_node("Exp", ["a"], ["y"]), gradient(["a", "b"], ["da", "db"], xs=["a", "b"], y="y")]
    da, db = run(nodes, {"a": A, "b": B}, ["da", "db"])
    np.testing.assert_allclose(da, np.exp(A), rtol=1e-6)
    np.testing.assert_array_equal(db, np.zeros_like(B))


@pytest.mark.parametrize("operator", ["Exp", "Tanh", "Sigmoid", "Sin", "Sqrt", "Log", "Reciprocal", "Softplus", "Erf"])
def test_second_derivatives_are_pytorchs(operator: str) -> None:
    of = {"Softplus": torch.nn.functional.softplus, "Reciprocal": torch.reciprocal}.get(operator) or getattr(torch, operator.lower())
    at = np.abs(A) + 0.5
    nodes = [helper.make_node(operator, ["a"], ["f"]), helper.make_node("Mul", ["f", "f"], ["y"]), gradient(["a"], ["first"], xs=["a"], y="y"),
             gradient(["a"], ["second"], xs=["a"], y="first")]
    (a,) = tensors(at)
    (first,) = torch.autograd.grad((of(a) ** 2).sum(), [a], create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), [a])
    ours = run(nodes, {"a": at}, ["first", "second"])
    np.testing.assert_allclose(ours[0], first.detach().numpy(), rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(ours[1], second.numpy(), rtol=2e-4, atol=1e-5)


def test_a_penalty_of_gradients_is_pytorchs() -> None:
    """Computes d |dy/da|^2 / dw, the gradient of a penalty that is itself made of gradients."""
    nodes = [helper.make_node("MatMul", ["a", "w"], ["h"]), helper.make_node("Sigmoid", ["h"], ["s"]), helper.make_node("ReduceMean", ["s"], ["y"], keepdims=0),
             gradient(["a", "w"], ["da"], xs=["a"], zs=["w"], y="y"), helper.make_node("ReduceSumSquare", ["da"], ["penalty"], keepdims=0),
             gradient(["w", "a"], ["dw"], xs=["w"], zs=["a"], y="penalty")]
    a, w = tensors(A, W)
    (da,) = torch.autograd.grad(torch.sigmoid(a @ w).mean(), [a], create_graph=True)
    (dw,) = torch.autograd.grad((da**2).sum(), [w])
    np.testing.assert_allclose(run(nodes, {"a": A, "w": W}, ["dw"])[0], dw.numpy(), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(("node", "message"), [
    (gradient(["a"], ["da"], xs=["a"], y="absent"), 'the value "absent"'),
    (gradient(["a"], ["da"], xs=["a", "b"], y="y"), "xs and zs name 2"),
    (gradient(["a"], ["da"], xs=["a"], y="later"), 'the value "later"'),
])
def test_names_that_are_not_there_are_errors(node, message: str) -> None:
    nodes = [helper.make_node("Exp", ["a"], ["y"]), node, helper.make_node("Exp", ["y"], ["later"])]
    with pytest.raises(Exception, match=message):
        run(nodes, {"a": A, "b": B}, ["da", "later"])


BODIES = {
    "If": ("""c = Greater(total, zero) h = If(c) <then_branch = yes () => (d) { e = Mul(a, b) d = Sin(e) }, else_branch = no () => (f) { f = Mul(a, a) }>""",
           lambda a, b: torch.sin(a * b) if a.sum() > 0 else a * a),
    "Loop": ("""n = Constant <value = int64 {3}> () yes = Constant <value = bool {1}> ()
                h, each = Loop(n, yes, a) <body = step (int64 i, bool go, float[3, 4] s) => (go2, s2, s3) {
                  go2 = Identity(go) p = Mul(s, b) s2 = Tanh(p) s3 = Mul(s, s) }>""", None),
    "Scan": ("""i = Constant <value = float[4] {0, 0, 0, 0}> ()
                h, each = Scan <num_scan_inputs = 1, body = step (float[4] s, float[4] t) => (s2, s3) { p = Add(s, t) s2 = Sin(p) s3 = Mul(s2, t) }> (i, a)""", None),
}


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("sign", [1, -1])
def test_bodies_stand_between_the_values(kind: str, sign: int) -> None:
    """Computes first and second derivatives through If, Loop and Scan, whose bodies read values from outside."""
    from onnx import parser

    nodes, function = BODIES[kind]
    second = "each" if kind != "If" else "h"
    text = f"""<ir_version: 10, opset_import: ["" : 20, "ai.onnx.preview.training" : 1]>
    agraph (float[3, 4] a, float[3, 4] b) => (float[3, 4] da, float[3, 4] db, float[3, 4] dda, float[3, 4] ddb) {{
      zero = Constant <value = float {{0}}> ()
      total = ReduceSum <keepdims = 0> (a)
      {nodes}
      y1 = ReduceSum <keepdims = 0> (h)
      y2 = ReduceSumSquare <keepdims = 0> ({second})
      y = Add(y1, y2)
      da, db = ai.onnx.preview.training.Gradient <xs = ["a", "b"], y = "y"> (a, b)
      penalty = ReduceSumSquare <keepdims = 0> (da)
      dda, ddb = ai.onnx.preview.training.Gradient <xs = ["a", "b"], y = "penalty"> (a, b)
    }}"""
    at = np.abs(A) * sign
    ours = treadle.InferenceSession(parser.parse_model(text).SerializeToString()).run(None, {"a": at, "b": B})

    def loop(a, b):
        s, total = a, 0
        for _ in range(3):
            total = total + (s**4).sum()
            s = torch.tanh(s * b)
        return s.sum() + total

    def scan(a, b):
        s, total = torch.zeros(4, dtype=a.dtype), 0
        for t in a:
            s = torch.sin(s + t)
            total = total + ((s * t) ** 2).sum()
        return s.sum() + total

    a, b = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (at, B))
    y = {"Loop": loop, "Scan": scan}[kind](a, b) if kind != "If" else function(a, b).sum() + (function(a, b) ** 2).sum()
    first = torch.autograd.grad(y, [a, b], create_graph=True, allow_unused=True)
    second = torch.autograd.grad((first[0] ** 2).sum(), [a, b], allow_unused=True)
    for got, wanted in zip(ours, [*first, *second], strict=True):
        np.testing.assert_allclose(got, np.zeros((3, 4)) if wanted is None else wanted.detach().numpy(), rtol=2e-4, atol=2e-4)


def second(function, arrays, of) -> None:
    """Returns the gradients, by all operands, of the squared norm of the gradients, in float64 like PyTorch's double backward."""
    names = list(arrays)
    total = [helper.make_node("Mul", ["f", "weights"], ["weighted"]), helper.make_node("ReduceSum", ["weighted"], ["y"], keepdims=0)]
    firsts, seconds = [f"d_{name}" for name in names], [f"dd_{name}" for name in names]
    squares = [helper.make_node("ReduceSumSquare", [first], [f"{first}_square"], keepdims=0) for first in firsts]
    nodes = [*function, *total, gradient(names, firsts, xs=names, y="y"), *squares, helper.make_node("Sum", [f"{first}_square" for first in firsts], ["length"]),
             gradient(names, seconds, xs=names, y="length")]
    inputs = [torch.tensor(array, requires_grad=True) for array in arrays.values()]
    f = of(*inputs)
    weights = np.random.default_rng(3).normal(size=f.shape)
    expected = torch.autograd.grad((f * torch.tensor(weights)).sum(), inputs, create_graph=True)
    length = sum((e**2).sum() for e in expected)
    twice = torch.autograd.grad(length, inputs, allow_unused=True) if length.requires_grad else [None] * len(inputs)
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info(name, TensorProto.DOUBLE, value.shape) for name, value in arrays.items()],
                              [helper.make_tensor_value_info(name, TensorProto.DOUBLE, None) for name in firsts + seconds], [numpy_helper.from_array(weights, "weights")] + CONSTANTS)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 26), helper.make_opsetid(DOMAIN, 1)], ir_version=12)
    ours = treadle.InferenceSession(model.SerializeToString()).run(None, dict(arrays))
    for array, theirs in zip(ours, [*expected, *twice]):
        np.testing.assert_allclose(array, 0 if theirs is None else theirs.detach().numpy(), rtol=1e-9, atol=1e-9)


CONSTANTS = [numpy_helper.from_array(np.array(1, np.int64), "axis"), numpy_helper.from_array(np.array([5, 6], np.int64), "image"),
             numpy_helper.from_array(np.array([2, 3], np.int64), "block")]


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_second_derivatives_of_products_along_an_axis(exclusive: int, reverse: int) -> None:
    x = np.random.default_rng(1).normal(size=(2, 4, 3))
    x[0, 1, 2] = x[1, :2, 0] = 0  # with these zeros, a formula that divides by x would fail

    def of(x: torch.Tensor) -> torch.Tensor:
        x = x.flip(1) if reverse else x
        if exclusive:
            x = torch.cat([torch.ones_like(x[:, :1]), x[:, :-1]], 1)
        y = torch.stack([x[:, : i + 1].prod(1) for i in range(x.shape[1])], 1)
        return y.flip(1) if reverse else y

    second([helper.make_node("CumProd", ["x", "axis"], ["f"], exclusive=exclusive, reverse=reverse)], {"x": x}, of)


@pytest.mark.parametrize("equation", ["ii->i", "ii->", "iij,jk->ik", "bii,bij->bj", "ij,jj,i->j"])
def test_second_derivatives_of_sums_with_diagonals(equation: str) -> None:
    rng = np.random.default_rng(2)
    sizes = {"i": 3, "j": 2, "k": 4, "b": 2}
    arrays = {f"x{i}": rng.normal(size=[sizes[label] for label in term]) for i, term in enumerate(equation.split("->")[0].split(","))}
    second([helper.make_node("Einsum", list(arrays), ["f"], equation=equation)], arrays, lambda *xs: torch.einsum(equation, *xs))


def test_second_derivatives_of_an_image_of_columns() -> None:
    x = np.random.default_rng(4).normal(size=(2, 18, 12))
    nodes = [helper.make_node("Mul", ["x", "x"], ["squares"]), helper.make_node("Col2Im", ["squares", "image", "block"], ["f"], pads=[0, 1, 0, 1], strides=[1, 2])]
    second(nodes, {"x": x}, lambda x: torch.nn.functional.fold(x * x, (5, 6), (2, 3), padding=(0, 1), stride=(1, 2)))


@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("spatial", [2, 3])
def test_second_derivatives_of_samples_of_an_image(mode: str, padding: str, aligned: int, spatial: int) -> None:
    if (mode, spatial) == ("cubic", 3):
        pytest.skip("PyTorch has none")
    rng = np.random.default_rng(6)
    x = rng.normal(size=(2, 3, *(4, 5, 3)[:spatial]))
    grid = rng.uniform(-1.6, 1.6, size=(2, *(3, 4, 2)[:spatial], spatial))
    torchs = {"linear": "bilinear", "cubic": "bicubic", "nearest": "nearest"}[mode]
    second([helper.make_node("GridSample", ["x", "grid"], ["f"], mode=mode, padding_mode=padding, align_corners=aligned)], {"x": x, "grid": grid},
           lambda x, grid: torch.nn.functional.grid_sample(x, grid, torchs, padding, bool(aligned)))


@pytest.mark.parametrize("parts", [1, 2])
def test_a_transform_need_not_know_extents_ahead(parts: int) -> None:
    nodes = [helper.make_node("DFT", ["x"], ["f"]), helper.make_node("Mul", ["f", "f"], ["squares"]), helper.make_node("Mul", ["squares", "f"], ["y"]), gradient(["x"], ["dx"], xs=["x"], y="y")]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "length", "parts"])],
                              [helper.make_tensor_value_info("dx", TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)], ir_version=9)
    x = np.random.default_rng(5).normal(size=(2, 7, parts)).astype(np.float32)
    (at,) = tensors(x)
    f = torch.view_as_real(torch.fft.fft(torch.complex(at[..., 0], at[..., 1] if parts == 2 else torch.zeros(2, 7)), dim=1))
    (expected,) = torch.autograd.grad((f**3).sum(), [at])
    np.testing.assert_allclose(treadle.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0], expected.numpy(), rtol=1e-4, atol=1e-3)
